"""The OpenAPI document, made of the same table as the routes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from windrow.service import row_formats

if TYPE_CHECKING:
    from windrow.service.operations import Operation

_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
}
_ERRORS = {
    "400": "The request cannot be answered",
    "401": "A token is needed, or the one sent is not valid",
    "403": "The role may not do this",
    "404": "There is no such thing",
    "406": "Rows cannot be had in that format",
    "409": "It contradicts what is there",
    "413": "The body is too long",
    "415": "The body has the wrong media type",
    "503": "Busy; ask again later",
}


def describe(operations: "Sequence[Operation]") -> dict[str, Any]:
    """The document."""
    kinds = sorted({kind for o in operations for kind in (o.body,) if kind is not None}, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Windrow", "version": "1", "description": "Sliding windows over streams, asked in SQL."},
        "paths": paths,
        "components": {
            "schemas": components | {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _describe(operation: "Operation") -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.method.lower() + operation.path.replace("/", "_").replace("{", "").replace("}", ""),
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query)],
        "responses": {
            str(operation.status): {"description": "Done", "content": _contents(operation)},
            **{
                code: {
                    "description": text,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
                for code, text in _ERRORS.items()
            },
        },
    }
    if operation.body is not None:
        reference = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    if operation.takes_rows:
        binary = {"schema": {"type": "string", "format": "binary"}}
        described["requestBody"] = {"required": True, "content": dict.fromkeys(row_formats.READ, binary)}
    return described


def _contents(operation: "Operation") -> dict[str, Any]:
    if operation.gives_rows:
        return {media: {} for media in row_formats.WRITTEN}
    if operation.path == "/" or operation.path.startswith("/console/"):
        return {media: {} for media in ("text/html", "text/css", "text/javascript", "image/svg+xml")}
    if operation.path in ("/metrics", "/healthz", "/readyz"):
        return {"text/plain": {}}
    return {"text/event-stream": {}} if operation.path == "/events" else {"application/json": {}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for part in path.split("/")
        if part.startswith("{")
    ]


def _query_parameters(kind: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if kind is None:
        return []
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": _without_null(kind)}
        for name, kind in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, not null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return choices[0] if choices else {name: value for name, value in schema.items() if name != "default"}
