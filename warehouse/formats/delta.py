"""The log of a Delta table: schemas, deletion vectors, file actions and checkpoints, as its protocol has them."""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.errors import DefinitionError

_MAGIC = 1681511377
"""Begins a serialised deletion vector."""
_ROARING = 12346
"""Begins a bitmap without runs."""
_Z85 = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8)
_REFUSED_IN_NAMES = frozenset(" ,;{}()\n\t=")
_SIMPLE_TYPES: tuple[tuple[Any, str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_date32, "date"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_binary_view, "binary"),
)
_FIXED_FEATURES = ("deletionVectors",)
_NTZ_FEATURE = "timestampNtz"


def to_delta_schema(schema: pa.Schema) -> str:
    """A schema as Delta's JSON.

    Raises:
        DefinitionError: a column has a type or a name that Delta has not.
    """
    return json.dumps({"type": "struct", "fields": [_to_delta_field(field) for field in schema]})


def _to_delta_field(field: pa.Field) -> dict[str, Any]:
    if not field.name or _REFUSED_IN_NAMES & set(field.name):
        raise DefinitionError(
            f"column {field.name!r} cannot be published: Delta allows no space and none of ,;{{}}()= in names"
        )
    return {"name": field.name, "type": _to_delta_type(field.name, field.type), "nullable": True, "metadata": {}}


def _to_delta_type(column: str, kind: pa.DataType) -> Any:
    if pa.types.is_dictionary(kind):
        return _to_delta_type(column, kind.value_type)
    for applies, name in _SIMPLE_TYPES:
        if applies(kind):
            return name
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "elementType": _to_delta_type(column, kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_to_delta_field(field) for field in kind]}
    if pa.types.is_map(kind):
        key, item = _to_delta_type(column, kind.key_type), _to_delta_type(column, kind.item_type)
        return {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": True}
    raise DefinitionError(f"column {column!r} cannot be published: Delta has no type for {kind}")


def make_protocol(schema: str) -> dict[str, Any]:
    """What a reader of such a table must understand."""
    features = [*_FIXED_FEATURES, *([_NTZ_FEATURE] if '"timestamp_ntz"' in schema else [])]
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}


def make_metadata(table: str, name: str, schema: str, created: int) -> dict[str, Any]:
    """A table's description.

    Args:
        table: Its id.
        name: What people call it.
        schema: As `to_delta_schema` makes it.
        created: When, in microseconds.
    """
    return {
        "id": table,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": {"delta.enableDeletionVectors": "true"},
        "createdTime": created // 1000,
    }


def encode_deletion_vector(deleted: npt.NDArray[np.bool_]) -> str:
    """Which rows of a file are not in the table, as an inline vector: its size and its text."""
    # A vector is of 64-bit numbers: how many blocks of 2^32 rows there are, then each with its number. Files have one.
    raw = struct.pack("<iqi", _MAGIC, 1, 0) + _serialize_bitmap(deleted)
    words = np.frombuffer(raw + bytes(-len(raw) % 4), ">u4").astype(np.uint32)
    digits = words[:, np.newaxis] // 85 ** np.arange(4, -1, -1, dtype=np.uint32) % 85
    return f"{len(raw)}:{_Z85[digits].tobytes().decode()}"


def _serialize_bitmap(members: npt.NDArray[np.bool_]) -> bytes:
    """A Roaring bitmap in its portable format: a container for each 2^16 numbers, an array or, above 4,096, bits."""
    heads, bodies = [], []
    for key, start in enumerate(range(0, len(members), 1 << 16)):
        chunk = members[start : start + (1 << 16)]
        count = int(np.count_nonzero(chunk))
        if count:
            heads.append((key, count - 1))
            bits = np.packbits(chunk, bitorder="little").tobytes().ljust(8192, b"\0") if count > 4096 else b""
            bodies.append(bits or np.flatnonzero(chunk).astype("<u2").tobytes())
    offsets = np.cumsum([8 + 8 * len(heads), *map(len, bodies[:-1])]).astype("<u4")
    return b"".join(
        [struct.pack("<II", _ROARING, len(heads)), np.array(heads, "<u2").tobytes(), offsets.tobytes(), *bodies]
    )


def make_file_action(path: str, size: int, rows: int, vector: str, dead: int, time: int) -> dict[str, Any]:
    """The action that adds a file.

    Args:
        path: Relative to the table.
        size: Bytes.
        rows: Rows, dead ones included.
        vector: As `encode_deletion_vector` makes it; empty if all rows are in the table.
        dead: Rows in it.
        time: When, in microseconds.
    """
    action: dict[str, Any] = {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": time // 1000,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows, "tightBounds": not vector}),
    }
    return action | _describe_vector(vector, dead)


def make_removal(path: str, size: int, vector: str, dead: int, time: int) -> dict[str, Any]:
    """The action that takes a file out again, as it was added."""
    action = {"path": path, "deletionTimestamp": time // 1000, "dataChange": True, "extendedFileMetadata": True}
    return {**action, "partitionValues": {}, "size": size, **_describe_vector(vector, dead)}


def _describe_vector(vector: str, dead: int) -> dict[str, Any]:
    if not vector:
        return {}
    size, _, text = vector.partition(":")
    described = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": int(size), "cardinality": dead}
    return {"deletionVector": described}


def encode_commit(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """A version's actions, one JSON object a line."""
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


_TEXTS = pa.map_(pa.string(), pa.string())
_FEATURES = pa.list_(pa.string())
_CHECKPOINT = pa.schema(
    [
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", _FEATURES),
                    ("writerFeatures", _FEATURES),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", _FEATURES),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    (
                        "deletionVector",
                        pa.struct(
                            [
                                ("storageType", pa.string()),
                                ("pathOrInlineDv", pa.string()),
                                ("offset", pa.int32()),
                                ("sizeInBytes", pa.int32()),
                                ("cardinality", pa.int64()),
                            ]
                        ),
                    ),
                ]
            ),
        ),
    ]
)


def write_checkpoint(sink: Any, protocol: Mapping[str, Any], metadata: Mapping[str, Any], adds: Sequence[Any]) -> None:
    """Write the state of a table at one version, so that a reader need not go through the versions before it."""
    rows = [{"protocol": protocol}, {"metaData": metadata}, *({"add": {**add, "dataChange": False}} for add in adds)]
    pq.write_table(pa.Table.from_pylist(rows, _CHECKPOINT), sink)
