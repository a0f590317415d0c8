"""Statements that plainly point at search keys, ``… FROM stream WHERE key = constant``: their tree says what they ask.

DuckDB need not plan such a statement twice, once to hear its predicates and once to run it. No row survives WHERE
unless every condition of it holds; so what one condition says of the key is true of all rows that count. Where a name,
a type or a condition on key or time leaves any doubt, nothing is concluded, and DuckDB is listened to.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from duckdb._sources import nodes

from windrow.definitions import StreamDefinition, schema_of
from windrow.indexes.model import value_bytes
from windrow.indexes.probing import KeyRange
from windrow.queries import trees
from windrow.queries.alike import Path
from windrow.queries.pruning import Asked, asked_of
from windrow.queries.statements import Statement, by_likeness

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_UNCLEAR = {"STAR", "POSITIONAL_REFERENCE", "SUBQUERY", "LAMBDA", "LAMBDA_REF"}
"""What may mean a column without naming it, or another one than it names."""


def asked(statement: Statement, parameters: Any, definition: StreamDefinition) -> Asked | None:
    """What a statement asks of the search key of the only stream that it reads; None if that is not plain."""
    points, schema = _points(statement, definition.key, definition.time, definition.schema_bytes), definition.schema
    if points is None:
        return None
    values = [(column, _value(_at(statement.tree, path), parameters)) for column, path in points]
    if not all(_compares_exactly(value, schema.field(column).type) for column, value in values):
        return None
    if len(values) == len(definition.key) == 1:
        whole = value_bytes(values[0][1], schema.field(values[0][0]).type)
        if whole is not None:
            return Asked((KeyRange(whole, whole),), None, None)
    found = asked_of(
        [nodes.Binary("=", nodes.Col((column,)), nodes.Lit(value, "")) for column, value in values],
        definition.model,
        schema,
    )
    return None if found.keys is None else found


@by_likeness
def _points(
    statement: Statement, key: tuple[str, ...], time: str, schema_bytes: bytes
) -> tuple[tuple[str, Path], ...] | None:
    """The key columns that must equal something, and where that stands in the tree.

    None if the key's first column is not among them, or if another condition may say something of key or time.
    """
    tree, columns = statement.tree, schema_of(schema_bytes).names
    if not key or len(statement.references) != 1 or not _reads_one(tree):
        return None
    if not all(name.isascii() for name in columns) or len({name.lower() for name in columns}) < len(columns):
        return None  # DuckDB's cases are not Python's
    alias = statement.references[0].alias.lower()
    names = {name.lower(): name for name in (time, *key)}
    found = []
    for condition, at in _conditions(tree["where_clause"], ("where_clause",)):
        point = _point(condition, alias, names)
        if point is not None and point[0] in key:
            found.append((point[0], (*at, point[1])))
        elif _may_name(condition, names):
            return None
    return tuple(found) if key[0] in {column for column, _ in found} else None


def _reads_one(tree: trees.Node) -> bool:
    """Whether it is a SELECT whose WHERE sees the rows of one relation, under their own names."""
    source = tree.get("from_table") or {}
    return (
        tree["type"] == "SELECT_NODE"
        and bool(tree["where_clause"])
        and not tree["cte_map"]["map"]
        and not tree["sample"]
        and source.get("type") == "BASE_TABLE"
        and not source["sample"]
        and not source["column_name_alias"]
    )


def _conditions(node: trees.Node, at: Path) -> Iterator[tuple[trees.Node, Path]]:
    if node.get("type") == "CONJUNCTION_AND":
        for number, child in enumerate(node["children"]):
            yield from _conditions(child, (*at, "children", number))
    else:
        yield node, at


def _point(condition: trees.Node, alias: str, names: Mapping[str, str]) -> tuple[str, str] | None:
    """The column that a condition wants to be equal to the constant or parameter on its other side."""
    if condition.get("type") != "COMPARE_EQUAL" or condition.get("class") != "COMPARISON":
        return None
    for side, other in (("left", "right"), ("right", "left")):
        column, constant = condition[side], condition[other]
        if column.get("class") == "COLUMN_REF" and constant.get("class") in ("CONSTANT", "PARAMETER"):
            path = [str(name).lower() for name in column["column_names"]]
            if path[:-1] in ([], [alias]) and path[-1] in names:
                return names[path[-1]], other
    return None


def _may_name(condition: trees.Node, names: Mapping[str, str]) -> bool:
    """Whether a condition may say something of one of the columns."""
    for visit in trees.walk(condition):
        role = visit.node.get("class")
        path = visit.node.get("column_names") or ()
        if role in _UNCLEAR or any(not str(n).isascii() or str(n).lower() in names for n in path):
            return True
    return False


def _at(tree: Any, path: Path) -> trees.Node:
    for step in path:
        tree = tree[step]
    found: trees.Node = tree
    return found


def _value(node: trees.Node, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Any:
    """What a constant or a parameter is: an integer or a string; None for all others."""
    if node["class"] == "PARAMETER":
        return _given(str(node["identifier"]), parameters)
    literal = node.get("literal") or {}
    if literal.get("kind") == "INTEGER" and _INTEGER.fullmatch(literal["text"]):
        return int(literal["text"])
    return literal["text"] if literal.get("kind") == "STRING" else None


def _given(name: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Any:
    if isinstance(parameters, Mapping):
        return parameters.get(name)
    place = int(name) if name.isdigit() else 0
    return parameters[place - 1] if parameters is not None and 0 < place <= len(parameters) else None


def _compares_exactly(value: Any, kind: pa.DataType) -> bool:
    """Whether DuckDB compares such a value with a column of type `kind` as it is, without rounding or reading it."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if type(value) is int:
        return bool(pa.types.is_integer(plain))
    return type(value) is str and bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))
