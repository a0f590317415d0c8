"""DuckDB's own parser, asked for the tree of a statement, and a walk over such trees that knows which names are CTEs.

The statement is only ever a parameter here: nothing of it is run.
"""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from windrow.queries.engine.fork_safety import leave_to_parent

Node = dict[str, Any]

_NOWHERE = (1 << 64) - 1
_DEEPEST = 8000  # DuckDB nests at most 1000 expressions, each a few JSON levels deep
_lock = threading.Lock()
_parsers: dict[str, duckdb.DuckDBPyConnection] = {}
leave_to_parent(_parsers, _lock)


@dataclass(frozen=True)
class Refusal:
    """Why DuckDB gave no tree: a syntax error at `offset`, or (`select` is False) a statement that is no query."""

    message: str
    offset: int | None
    select: bool


@dataclass(frozen=True)
class Visit:
    """A node of the tree and the CTE names, in lower case, that hide relations from it."""

    node: Node
    hidden: frozenset[str]


def _connection() -> duckdb.DuckDBPyConnection:
    """A cursor of the process's parser."""
    with _lock:
        if not _parsers:
            settings: dict[str, Any] = {"threads": 1, "python_enable_replacements": False}
            opened = duckdb.connect(":memory:", config=settings)
            opened.execute("SET GLOBAL enable_external_access = false")
            opened.execute("SET GLOBAL TimeZone = 'UTC'")
            opened.execute("SET GLOBAL lock_configuration = true")
            _parsers["parser"] = opened
        return _parsers["parser"].cursor()


def statements(sql: str) -> list[Node] | Refusal:
    """The tree of each statement of a text that holds only queries, or why there is none."""
    with _connection() as parser:
        row = parser.execute("SELECT json_serialize_sql($1)", [sql]).fetchone()
    answer = _decode(row[0] if row else "{}")
    if not answer["error"]:
        return [statement["node"] for statement in answer["statements"]]
    message = str(answer["error_message"])
    offset = int(answer["position"]) if answer.get("position") else None
    return Refusal(message, offset, not message.startswith("Only SELECT statements"))


def kinds(sql: str) -> list[str]:
    """DuckDB's word for the kind of each statement of a text, such as SELECT, MULTI (a pivot) or COPY."""
    with _connection() as parser:
        return [statement.type.name for statement in parser.extract_statements(sql)]


def instant(kind: str, text: str) -> int | None:
    """Microseconds UTC of a time as DuckDB reads it, None if it cannot."""
    with _connection() as parser:
        try:
            row = parser.execute(f"SELECT epoch_us(CAST(CAST($1 AS {kind}) AS TIMESTAMPTZ))", [text]).fetchone()
        except duckdb.Error:
            return None
    return row[0] if row else None


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        pass
    with _lock:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(usual + _DEEPEST)
        try:
            return json.loads(text)
        finally:
            sys.setrecursionlimit(usual)


def walk(tree: Node) -> Iterator[Visit]:
    """Every object of a tree, outer before inner, with the CTE names in its scope."""
    pending: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while pending:
        value, hidden = pending.pop()
        if isinstance(value, list):
            pending.extend((item, hidden) for item in reversed(value))
        elif isinstance(value, dict):
            yield Visit(value, hidden)
            pending.extend(reversed(_inside(value, hidden)))


def _inside(node: Node, hidden: frozenset[str]) -> list[tuple[Any, frozenset[str]]]:
    """The values of a node with their scopes: a CTE sees those before it, the rest of the node sees all of them."""
    inner: list[tuple[Any, frozenset[str]]] = []
    for entry in (node.get("cte_map") or {}).get("map", ()):
        inner.append((entry["value"], hidden))
        hidden |= {entry["key"].lower()}
    recursive = node.get("type") == "RECURSIVE_CTE_NODE"
    for field, value in node.items():
        if field == "cte_map":
            continue
        own = recursive and field == "right"  # only the recursive branch sees the CTE itself
        inner.append((value, hidden | {node["cte_name"].lower()} if own else hidden))
    return inner


def location(node: Node) -> int | None:
    """The byte offset of a node, None where DuckDB does not keep it."""
    offset = node.get("query_location", _NOWHERE)
    return None if offset == _NOWHERE else offset
