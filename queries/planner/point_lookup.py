"""Point lookups, ``… FROM stream WHERE key = constant`` or ``IN``: the parse tree alone tells which keys they need.

DuckDB need not plan such a statement twice, once to collect its predicates and once to run it (`bench sql`: aggregate
by a new key). A row passes WHERE only if every condition holds; so what one condition says of the key is true of all
rows that count. Where a name, a type or a condition on key or time leaves any doubt, nothing is concluded, and the
predicates are collected from DuckDB's planner.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.definitions import StreamDefinition, read_schema
from windrow.indexes.probe import KeyRange
from windrow.indexes.row_model import encode_value
from windrow.queries.engine.arrow_source import Binary, Column, In, Literal, Predicate
from windrow.queries.planner.key_ranges import KeyPredicate, find_key_predicate
from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Statement, TreePath, cached_per_template

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_UNCLEAR_CLASSES = {"STAR", "POSITIONAL_REFERENCE", "SUBQUERY", "LAMBDA", "LAMBDA_REF"}
"""Expressions that may mean a column without naming it, or another one than they name."""


def find_point_predicate(statement: Statement, parameters: Any, definition: StreamDefinition) -> KeyPredicate | None:
    """The search keys that a statement needs of the only stream that it reads; None if the tree does not tell."""
    points, schema = (
        _find_key_equalities(statement, definition.key, definition.time, definition.schema_bytes),
        definition.schema,
    )
    if points is None:
        return None
    values = [
        (column, [_constant_value(_node_at(statement.tree, path), parameters) for path in paths])
        for column, paths in points
    ]
    if not all(_compares_exactly(value, schema.field(column).type) for column, among in values for value in among):
        return None
    if len(values) == len(definition.key) == len(values[0][1]) == 1:
        whole = encode_value(values[0][1][0], schema.field(values[0][0]).type)
        if whole is not None:
            return KeyPredicate((KeyRange(whole, whole),), None, None)
    conditions: list[Predicate] = [
        Binary("=", Column((column,)), Literal(among[0], ""))
        if len(among) == 1
        else In(Column((column,)), [Literal(value, "") for value in among])
        for column, among in values
    ]
    predicate = find_key_predicate(conditions, definition.model, schema)
    return None if predicate.keys is None else predicate


@cached_per_template
def _find_key_equalities(
    statement: Statement, key: tuple[str, ...], time: str, schema_bytes: bytes
) -> tuple[tuple[str, tuple[TreePath, ...]], ...] | None:
    """The key columns that must equal something, or one of some things, and where those stand in the tree.

    None if the key's first column is not among them, or if another condition may say something of key or time.
    """
    tree, columns = statement.tree, read_schema(schema_bytes).names
    if not key or len(statement.references) != 1 or not _reads_one(tree):
        return None
    if not all(name.isascii() for name in columns) or len({name.lower() for name in columns}) < len(columns):
        return None  # DuckDB's cases are not Python's
    alias = statement.references[0].alias.lower()
    names = {name.lower(): name for name in (time, *key)}
    equalities = []
    for condition, path in _conditions(tree["where_clause"], ("where_clause",)):
        point = _match_equality(condition, alias, names)
        if point is not None and point[0] in key:
            equalities.append((point[0], tuple((*path, *place) for place in point[1])))
        elif _may_name(condition, names):
            return None
    return tuple(equalities) if key[0] in {column for column, _ in equalities} else None


def _reads_one(tree: parse_tree.Node) -> bool:
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


def _conditions(node: parse_tree.Node, path: TreePath) -> Iterator[tuple[parse_tree.Node, TreePath]]:
    if node.get("type") == "CONJUNCTION_AND":
        for number, child in enumerate(node["children"]):
            yield from _conditions(child, (*path, "children", number))
    else:
        yield node, path


def _match_equality(
    condition: parse_tree.Node, alias: str, names: Mapping[str, str]
) -> tuple[str, tuple[TreePath, ...]] | None:
    """The column that a condition wants to be equal to a constant or parameter in it, or to one of several."""
    kind = condition.get("class"), condition.get("type")
    sides: list[tuple[parse_tree.Node, list[TreePath]]]
    if kind == ("COMPARISON", "COMPARE_EQUAL"):
        sides = [(condition[side], [(other,)]) for side, other in (("left", "right"), ("right", "left"))]
    elif kind == ("OPERATOR", "COMPARE_IN"):
        sides = [(condition["children"][0], [("children", n) for n in range(1, len(condition["children"]))])]
    else:
        return None
    for column, places in sides:
        among = [_node_at(condition, place).get("class") for place in places]
        if column.get("class") == "COLUMN_REF" and among and {*among} <= {"CONSTANT", "PARAMETER"}:
            path = [str(name).lower() for name in column["column_names"]]
            if path[:-1] in ([], [alias]) and path[-1] in names:
                return names[path[-1]], tuple(places)
    return None


def _may_name(condition: parse_tree.Node, names: Mapping[str, str]) -> bool:
    """Whether a condition may say something of one of the columns."""
    for visit in parse_tree.walk(condition):
        role = visit.node.get("class")
        path = visit.node.get("column_names") or ()
        if role in _UNCLEAR_CLASSES or any(not str(n).isascii() or str(n).lower() in names for n in path):
            return True
    return False


def _node_at(tree: Any, path: TreePath) -> parse_tree.Node:
    for step in path:
        tree = tree[step]
    node: parse_tree.Node = tree
    return node


def _constant_value(node: parse_tree.Node, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Any:
    """What a constant or a parameter is: an integer or a string; None for all others."""
    if node["class"] == "PARAMETER":
        return _parameter_value(str(node["identifier"]), parameters)
    literal = node.get("literal") or {}
    if literal.get("kind") == "INTEGER" and _INTEGER.fullmatch(literal["text"]):
        return int(literal["text"])
    return literal["text"] if literal.get("kind") == "STRING" else None


def _parameter_value(name: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Any:
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
