"""Parse trees of statements by DuckDB's own parser, and a walk over such trees that knows which names are CTEs.

The statement is only ever a parameter here: nothing of it is run. DuckDB gives no tree of a PIVOT without an IN list,
since it runs that as several statements. To be checked, ``ON a, b IN (SELECT …)`` is parsed as
``ON (a) IN (''), b IN ((SELECT …), '')``: no token is removed or moved, and what is put in parentheses must be an
expression, so the tree holds all that DuckDB will run.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb

from windrow.fork_safety import forget_after_fork
from windrow.queries.engine import instance
from windrow.queries.sql.tokens import SourceText, Token, tokenize

Node = dict[str, Any]

_NO_LOCATION = (1 << 64) - 1
_MAX_JSON_DEPTH = 8000  # DuckDB nests at most 1000 expressions, each a few JSON levels deep
_lock = threading.Lock()
_parsers: dict[str, duckdb.DuckDBPyConnection] = {}
forget_after_fork(_parsers, _lock)


@dataclass(frozen=True)
class Refusal:
    """Why DuckDB gave no tree: a syntax error at `offset`, or (`select` is False) a statement that is no query."""

    message: str
    offset: int | None
    select: bool


class Visit(NamedTuple):
    """A node of the tree and the CTE names, in lower case, that hide relations from it."""

    node: Node
    cte_names: frozenset[str]


def _connection() -> duckdb.DuckDBPyConnection:
    """A cursor to parse on: of an open warehouse's instance, or else of an instance that does nothing but parse."""
    with contextlib.suppress(duckdb.Error):  # a fatal error has ended that instance
        if (cursor := instance.borrow_cursor()) is not None:
            return cursor
    with _lock:
        if not _parsers:
            settings: dict[str, Any] = {"threads": 1, "python_enable_replacements": False}
            connection = duckdb.connect(":memory:", config=settings)
            connection.execute("SET GLOBAL enable_external_access = false")
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            connection.execute("SET GLOBAL lock_configuration = true")
            _parsers["parser"] = connection
        return _parsers["parser"].cursor()


def parse_statements(sql: str) -> list[Node] | Refusal:
    """The tree of each statement of a text that holds only queries, or why there is none."""
    with _connection() as parser:
        row = parser.execute("SELECT json_serialize_sql($1)", [sql]).fetchone()
    answer = _decode(row[0] if row else "{}")
    if not answer["error"]:
        return [statement["node"] for statement in answer["statements"]]
    message = str(answer["error_message"])
    offset = int(answer["position"]) if answer.get("position") else None
    return Refusal(message, offset, not message.startswith("Only SELECT statements"))


def list_functions() -> list[tuple[str, str | None, str | None]]:
    """Name and stability of DuckDB's functions that are not always the same, and name and text of its macros."""
    with _connection() as parser:
        return parser.execute(
            """SELECT lower(function_name), stability, lower(macro_definition) FROM duckdb_functions()
            WHERE stability <> 'CONSISTENT' OR function_type = 'macro'"""
        ).fetchall()


def list_statement_kinds(sql: str) -> list[str]:
    """DuckDB's word for the kind of each statement of a text, such as SELECT, MULTI (a pivot) or COPY."""
    with _connection() as parser:
        return [statement.type.name for statement in parser.extract_statements(sql)]


def parse_timestamp(kind: str, text: str) -> int | None:
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
        sys.setrecursionlimit(usual + _MAX_JSON_DEPTH)
        try:
            return json.loads(text)
        finally:
            sys.setrecursionlimit(usual)


def split_conjuncts(node: Node | None) -> Iterator[Node]:
    """The terms that AND holds together in a condition; the whole of one that is not an AND."""
    if node is None:
        return
    if node.get("class") == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from split_conjuncts(child)
    else:
        yield node


def walk(tree: Node) -> Iterator[Visit]:
    """Every object of a tree, outer before inner, with the CTE names in its scope; a constant has no inner ones."""
    pending: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while pending:
        value, cte_names = pending.pop()
        if isinstance(value, list):
            pending.extend([(item, cte_names) for item in reversed(value) if isinstance(item, dict | list)])
        else:
            yield Visit(value, cte_names)
            if value.get("class") != "CONSTANT":
                pending.extend(reversed(_inside(value, cte_names)))


def _inside(node: Node, cte_names: frozenset[str]) -> list[tuple[Any, frozenset[str]]]:
    """The values of a node with their scopes: a CTE sees those before it, the rest of the node sees all of them."""
    inner: list[tuple[Any, frozenset[str]]] = []
    for entry in (node.get("cte_map") or {}).get("map", ()):
        inner.append((entry["value"], cte_names))
        cte_names |= {entry["key"].lower()}
    recursive = node.get("type") == "RECURSIVE_CTE_NODE"
    for field, value in node.items():
        if field == "cte_map" or not isinstance(value, dict | list):
            continue
        sees_itself = recursive and field == "right"  # only the recursive branch sees the CTE itself
        inner.append((value, cte_names | {node["cte_name"].lower()} if sees_itself else cte_names))
    return inner


def find_sampling(tree: Node) -> dict[str, float | None]:
    """The share of each relation's rows that TABLESAMPLE and USING SAMPLE leave; None for a fixed number of rows."""
    shares: dict[str, float | None] = {}
    for visit in walk(tree):
        node = visit.node
        sample, inner = node.get("sample"), node.get("from_table") or node
        if sample and inner.get("type") == "BASE_TABLE":
            share = float(sample["sample_size"]["value"]) / 100 if sample["is_percentage"] else None
            name = inner["qualified_name"]["path"][-1].lower()
            before = shares.get(name, 1.0)
            shares[name] = None if share is None or before is None else before * share
    return shares


def find_location(node: Node) -> int | None:
    """The byte offset of a node, None where DuckDB does not keep it."""
    offset = node.get("query_location", _NO_LOCATION)
    return None if offset == _NO_LOCATION else offset


_OPEN, _CLOSE = "([{", ")]}"
_PIVOT_ENDS = ("union", "except", "intersect", "group", "order", "limit", "offset", "fetch")
_QUERY_WORDS = ("select", "with", "from", "values", "table", "pivot", "unpivot", "pivot_wider", "pivot_longer")

Insert = tuple[int, bytes]


def parse_pivots(sql: str) -> list[Node] | None:
    """The trees of a text whose statements are queries and pivots, None if it is anything else or cannot be told."""
    kinds = list_statement_kinds(sql)
    if "MULTI" not in kinds or any(kind not in ("SELECT", "MULTI") for kind in kinds):
        return None
    answer = parse_statements(add_pivot_lists(tokenize(sql)))
    return answer if isinstance(answer, list) and len(answer) == len(kinds) else None


def add_pivot_lists(source: SourceText) -> str:
    """The text with an IN list for every pivot expression that has none."""
    inserts: list[Insert] = []
    for position, token in enumerate(source.tokens):
        if token.word in ("pivot", "pivot_wider"):
            for entry in _entries(source.tokens, position + 1):
                inserts += _inserts(source.tokens, entry)
    pieces, end = [], 0
    for offset, piece in sorted(inserts, key=lambda insert: insert[0]):
        pieces += [source.data[end:offset], piece]
        end = offset
    return b"".join([*pieces, source.data[end:]]).decode()


def _inserts(tokens: tuple[Token, ...], entry: list[int]) -> list[Insert]:
    """What makes one ON expression, given by the positions of its tokens outside brackets, an IN list."""
    last = _closing(tokens, entry[-1])
    if not any(tokens[position].word == "in" for position in entry):
        return [(tokens[entry[0]].start, b"("), (tokens[last].stop, b") IN ('')")]
    if last > entry[-1] and tokens[entry[-1] + 1].word in _QUERY_WORDS:
        return [(tokens[entry[-1]].stop, b"("), (tokens[last].start, b"), ''")]
    return []


def _closing(tokens: tuple[Token, ...], start: int) -> int:
    """The position of the bracket that closes the one at `start`, or `start` if no bracket is there."""
    depth = 0
    for position in range(start, len(tokens)):
        if tokens[position].kind == "operator":
            depth += (tokens[position].text in _OPEN) - (tokens[position].text in _CLOSE)
        if depth <= 0:
            return position
    return len(tokens) - 1


def _entries(tokens: tuple[Token, ...], start: int) -> Iterator[list[int]]:
    """The expressions of a pivot's ON list: what stands behind the last ON of its own level, between commas."""
    level = list(_level(tokens, start))
    places = [number for number, position in enumerate(level) if tokens[position].word == "on"]
    entry: list[int] = []
    for position in level[places[-1] + 1 :] if places else ():
        if tokens[position].word == "using":
            break
        if tokens[position].text != ",":
            entry.append(position)
        elif entry:
            yield entry
            entry = []
    if entry:
        yield entry


def _level(tokens: tuple[Token, ...], start: int) -> Iterator[int]:
    """Positions of a pivot's tokens outside brackets; a bracket counts by its first token."""
    position = start
    while position < len(tokens):
        token = tokens[position]
        if token.text == ";" or token.word in _PIVOT_ENDS or (token.kind == "operator" and token.text in _CLOSE):
            return
        yield position
        position = _closing(tokens, position) + 1
