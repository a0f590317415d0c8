"""Last parts of statements that are nothing but columns, an order and a limit, so that arrays can answer them.

Whatever else a last part has (HAVING, expressions, DISTINCT) is not recognised, and DuckDB runs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.queries.periodic.components import Shape
from windrow.queries.periodic.decompose import Decomposed
from windrow.queries.trees import Node, statements

_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_GROUPS = _WHOLE | {"VARCHAR", "DATE", "TIMESTAMP", "BOOLEAN"}
_RESULTS = _WHOLE | {"HUGEINT", "DOUBLE"}
_NOTHING = ("where_clause", "having", "qualify", "sample")


@dataclass(frozen=True)
class Column:
    """A group or an aggregate of the statement, by its number."""

    group: bool
    number: int


@dataclass(frozen=True)
class Order:
    """What rows are ordered by."""

    column: Column
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Final:
    """A last part."""

    columns: tuple[Column, ...]
    orders: tuple[Order, ...]
    limit: int | None
    offset: int


@dataclass(frozen=True)
class Direct:
    """A statement that arrays answer."""

    final: Final
    schema: pa.Schema
    """As DuckDB would give it, with the answer's own names."""


def recognised(shape: Shape) -> Final | None:
    """The last part of a statement, if it and the aggregates before it are plain."""
    whole = shape.decomposed
    plain = all(finish.plain is not None and finish.type in _RESULTS for finish in shape.finishes)
    types = shape.needs[0].types[: len(whole.groups)]
    if not plain or len(shape.needs) != 1 or not _GROUPS.issuperset(types):
        return None
    trees = statements(whole.final)
    if not isinstance(trees, list) or len(trees) != 1:
        return None
    tree = trees[0]
    if not _bare(tree, whole):
        return None
    selected = [_column(node, whole) for node in tree["select_list"]]
    columns = tuple(column for column in selected if column is not None)
    if len(columns) < len(selected):
        return None
    names = [str(node["alias"]).lower() for node in tree["select_list"]]
    orders: tuple[Order, ...] | None = ()
    limit: tuple[int | None, int] | None = (None, 0)
    for modifier in tree["modifiers"]:
        if modifier["type"] == "ORDER_MODIFIER" and not orders:
            orders = _orders(modifier, whole, columns, names)
        elif modifier["type"] == "LIMIT_MODIFIER" and limit == (None, 0):
            limit = _limit(modifier)
        else:
            return None
    if orders is None or limit is None or (limit != (None, 0) and not orders):
        return None  # which rows a limit without an order gives is for DuckDB to say
    return Final(columns, orders, *limit)


def _bare(tree: Node, whole: Decomposed) -> bool:
    """Whether it reads what is done, all of it and nothing else."""
    if tree["type"] != "SELECT_NODE" or any(tree[name] is not None for name in _NOTHING):
        return False
    if tree["cte_map"]["map"] or tree["group_expressions"] or tree["group_sets"]:
        return False
    table = tree["from_table"]
    if table["type"] != "BASE_TABLE" or table["sample"] is not None or table["column_name_alias"]:
        return False
    return tree["aggregate_handling"] == "STANDARD_HANDLING" and bool(table["table_name"] == whole.done)


def _column(node: Node, whole: Decomposed) -> Column | None:
    if node.get("class") != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    name = node["column_names"][0].lower()
    for number in range(len(whole.groups)):
        if name == whole.group_column(number).lower():
            return Column(True, number)
    for number in range(len(whole.calls)):
        if name == whole.aggregate_column(number).lower():
            return Column(False, number)
    return None


def _orders(
    modifier: Node, whole: Decomposed, columns: Sequence[Column], names: Sequence[str]
) -> tuple[Order, ...] | None:
    found = []
    for order in modifier["orders"]:
        column = _ordered_by(order["expression"], whole, columns, names)
        if column is None or order["type"] not in ("ORDER_DEFAULT", "ASCENDING", "DESCENDING"):
            return None
        if order["null_order"] not in ("ORDER_DEFAULT", "NULLS FIRST", "NULLS LAST"):
            return None
        found.append(Order(column, order["type"] == "DESCENDING", order["null_order"] == "NULLS FIRST"))
    return tuple(found)


def _ordered_by(node: Node, whole: Decomposed, columns: Sequence[Column], names: Sequence[str]) -> Column | None:
    own = _column(node, whole)
    if own is not None:
        return own
    if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
        name = node["column_names"][0].lower()
        return columns[names.index(name)] if names.count(name) == 1 else None
    place = _whole(node)
    return columns[place - 1] if place is not None and 1 <= place <= len(columns) else None


def _limit(modifier: Node) -> tuple[int | None, int] | None:
    if modifier["limit_type"] != "ROW_COUNT":
        return None
    limit = None if modifier["limit"] is None else _whole(modifier["limit"])
    offset = 0 if modifier["offset"] is None else _whole(modifier["offset"])
    if offset is None or (limit is None and modifier["limit"] is not None):
        return None
    return limit, offset


def _whole(node: Node) -> int | None:
    """A constant that is a whole number."""
    literal = node.get("literal") or {}
    text = str(literal.get("text"))
    plain = node.get("class") == "CONSTANT" and literal.get("kind") == "INTEGER"
    return int(text) if plain and text.isdecimal() and len(text) <= len(str(1 << 40)) else None
