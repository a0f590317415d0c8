"""Search keys that come from a small table: by an inner join with it, or by IN over a plain query of it.

The statement's tree is searched for conditions that no row of a stream survives unless its key is among the table's.
Where there is any doubt (an outer join, a function, a name that may mean something else) nothing is concluded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windrow.queries.engine.types import quote_name
from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Statement, cached_per_template

_FILTER_CLASSES = {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "BETWEEN", "OPERATOR", "PARAMETER"}
"""What a condition on the table may be made of: nothing that could fail, or give something else the next time."""
_OPERATORS = {"COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
_JOIN_TYPES = {"INNER", "LEFT", "RIGHT", "FULL"}
_PLAIN_JOINS = {"REGULAR", "CROSS"}

Node = parse_tree.Node


@dataclass(frozen=True)
class KeySource:
    """A query that gives all the values which a stream's column can have where it matters."""

    relation: str
    """Of the stream."""
    column: str
    table: str
    """Relation of the table, for explanations."""
    table_column: str
    sql: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class _FromRelation:
    """A relation in a FROM clause; `columns` is None if they are not known."""

    node: Node
    alias: str
    relation: str
    columns: tuple[str, ...] | None


@dataclass(frozen=True)
class _ResolvedColumn:
    leaf: _FromRelation
    name: str


ColumnsByRelation = tuple[tuple[str, tuple[str, ...]], ...]
_Match = tuple[_FromRelation, str, _ResolvedColumn, list[Node]]
"""A stream, its column, the column that it must be equal to, and conditions on that column's relation."""


class KeySourceFinder:
    """Looks for key sources in one statement.

    Args:
        statement: As parsed.
        parameters: Of the statement.
        streams: Search key columns by relation.
        tables: Relations of tables.
        columns: Columns of both.
    """

    def __init__(
        self,
        statement: Statement,
        parameters: Any,
        streams: Mapping[str, Sequence[str]],
        tables: Sequence[str],
        columns: Mapping[str, Sequence[str]],
    ) -> None:
        self._data = statement.sql.encode()
        self._parameters = parameters
        self._streams = {name.lower(): (name, {key.lower(): key for key in keys}) for name, keys in streams.items()}
        self._tables = {name.lower() for name in tables}
        self._columns = {name.lower(): tuple(names) for name, names in columns.items()}
        self._tree = statement.tree
        relations = [reference.relation.lower() for reference in statement.references]
        self._once = {name for name in relations if relations.count(name) == 1}
        self._hiding = {
            entry["key"].lower()
            for visit in parse_tree.walk(statement.tree)
            for entry in (visit.node.get("cte_map") or {}).get("map", ())
        }

    def sources(self) -> Iterator[KeySource]:
        """All key sources that the statement certainly has."""
        for match in self._matches():
            yield self._source(*match)

    def pairs(self) -> Iterator[tuple[str, str, str, str]]:
        """Relation and column that must be equal to a column of one of the tables, and that table and column."""
        for stream, key, other, _ in self._matches():
            yield self._streams[stream.relation.lower()][0], key, other.leaf.relation, other.name

    def _matches(self) -> "Iterator[_Match]":
        for visit in parse_tree.walk(self._tree):
            node = visit.node
            if node.get("type") == "SELECT_NODE" and node.get("from_table") and not node.get("sample"):
                leaves = list(self._leaves(node["from_table"]))
                if any(leaf.node.get("sample") for leaf in leaves):
                    continue
                yield from self._by_subquery(node, leaves)
                yield from self._by_join(node, leaves)

    # -- WHERE stream.key IN (SELECT column FROM table WHERE …)

    def _by_subquery(self, select: Node, leaves: list[_FromRelation]) -> "Iterator[_Match]":
        for condition in parse_tree.split_conjuncts(select.get("where_clause")):
            if condition.get("class") != "SUBQUERY" or condition["subquery_type"] != "ANY":
                continue
            column = self._resolve(condition.get("child"), leaves)
            inner = condition["subquery"]["node"]
            if condition["comparison_type"] != "COMPARE_EQUAL" or column is None or not _is_plain(inner):
                continue
            key = self._key(column, select["from_table"])
            tables = list(self._leaves(inner["from_table"]))
            if key is None or len(tables) != 1 or tables[0].relation.lower() not in self._tables:
                continue
            table_column = self._resolve(inner["select_list"][0], tables)
            conditions = list(parse_tree.split_conjuncts(inner.get("where_clause")))
            if table_column is not None:
                filters = [term for term in conditions if self._is_filter(term, tables[0], tables)]
                yield column.leaf, key, table_column, filters

    # -- FROM stream JOIN table USING (key) WHERE conditions on the table

    def _by_join(self, select: Node, leaves: list[_FromRelation]) -> "Iterator[_Match]":
        joins = list(_joins(select["from_table"]))
        if not joins or not all(_is_inner(join) for join in joins):
            return
        conditions = list(parse_tree.split_conjuncts(select.get("where_clause")))
        for join in joins:
            conditions += parse_tree.split_conjuncts(join.get("condition"))
        equal = [pair for condition in conditions for pair in self._equated(condition, leaves)]
        equal += [pair for join in joins for pair in self._used(join)]
        for one, other in equal:
            key = self._key(one, select["from_table"])
            if key is not None and other.leaf.relation.lower() in self._tables:
                filters = [condition for condition in conditions if self._is_filter(condition, other.leaf, leaves)]
                yield one.leaf, key, other, filters

    def _equated(
        self, condition: Node, leaves: list[_FromRelation]
    ) -> Iterator[tuple[_ResolvedColumn, _ResolvedColumn]]:
        if condition.get("type") == "COMPARE_EQUAL":
            left, right = self._resolve(condition["left"], leaves), self._resolve(condition["right"], leaves)
            if left is not None and right is not None:
                yield left, right
                yield right, left

    def _used(self, join: Node) -> Iterator[tuple[_ResolvedColumn, _ResolvedColumn]]:
        sides = [list(self._leaves(join[side])) for side in ("left", "right")]
        if all(len(side) == 1 for side in sides):
            (left,), (right,) = sides
            for name in join.get("using_columns") or ():
                yield _ResolvedColumn(left, name), _ResolvedColumn(right, name)
                yield _ResolvedColumn(right, name), _ResolvedColumn(left, name)

    # -- names

    def _leaves(self, node: Node) -> Iterator[_FromRelation]:
        if node.get("type") == "JOIN":
            yield from self._leaves(node["left"])
            yield from self._leaves(node["right"])
            return
        name = node["table_name"] if node.get("type") == "BASE_TABLE" else ""
        columns = self._columns.get(name.lower()) if len(node.get("qualified_name", {}).get("path", ())) == 1 else None
        if name.lower() in self._hiding or node.get("column_name_alias"):
            columns = None
        yield _FromRelation(node, (node.get("alias") or name).lower(), name, columns)

    def _resolve(self, node: Node | None, leaves: list[_FromRelation]) -> _ResolvedColumn | None:
        """The column that a reference certainly means."""
        if node is None or node.get("class") != "COLUMN_REF":
            return None
        names = [name.lower() for name in node["column_names"]]
        if len(names) == 2:
            owners = [leaf for leaf in leaves if leaf.alias == names[0]]
        elif len(names) == 1 and all(leaf.columns is not None for leaf in leaves):
            owners = [leaf for leaf in leaves if names[0] in {name.lower() for name in leaf.columns or ()}]
        else:
            return None
        if len(owners) != 1 or owners[0].columns is None:
            return None
        matches = [name for name in owners[0].columns if name.lower() == names[-1]]
        return _ResolvedColumn(owners[0], matches[0]) if matches else None

    def _key(self, column: _ResolvedColumn, source: Node) -> str | None:
        """The search key column that this is, if the conclusion may be drawn for its stream."""
        relation = column.leaf.relation.lower()
        if column.leaf.columns is None or relation not in self._streams or relation not in self._once:
            return None
        key = self._streams[relation][1].get(column.name.lower())
        return key if key is not None and _is_reachable(source, column.leaf.node) else None

    def _is_filter(self, condition: Node, leaf: _FromRelation, leaves: list[_FromRelation]) -> bool:
        """Whether a condition speaks of one relation only, and always says the same."""
        for visit in parse_tree.walk(condition):
            role = visit.node.get("class")
            if role is None:
                continue  # a literal
            if role not in _FILTER_CLASSES or (role == "OPERATOR" and visit.node["type"] not in _OPERATORS):
                return False
            if role == "COLUMN_REF":
                column = self._resolve(visit.node, leaves)
                if column is None or column.leaf.node is not leaf.node:
                    return False
        return True

    # -- the query

    def _source(
        self, stream: _FromRelation, key: str, table_column: _ResolvedColumn, conditions: list[Node]
    ) -> KeySource:
        relation = self._streams[stream.relation.lower()][0]
        texts: list[str] = []
        parameters: dict[str, Any] = {}
        for condition in conditions:
            written = self._written(condition)
            if written is not None:
                texts.append(f"({written[0]})")
                parameters |= written[1]
        where = f" WHERE {' AND '.join(texts)}" if texts else ""
        table = quote_name(table_column.leaf.relation)
        alias = quote_name(table_column.leaf.node.get("alias") or table_column.leaf.relation)
        sql = f"SELECT DISTINCT {alias}.{quote_name(table_column.name)} FROM {table} AS {alias}{where}"
        return KeySource(relation, key, table_column.leaf.relation, table_column.name, sql, parameters)

    def _written(self, condition: Node) -> tuple[str, dict[str, Any]] | None:
        """A condition as it was written, its parameters by name; None if its text cannot be told for certain."""
        nodes = [visit.node for visit in parse_tree.walk(condition) if parse_tree.find_location(visit.node) is not None]
        start = min(node["query_location"] for node in nodes)
        stop = max(node["query_location"] + node["query_location_length"] for node in nodes)
        again = parse_tree.parse_statements(f"SELECT {self._data[start:stop].decode(errors='replace')}")
        if (
            isinstance(again, parse_tree.Refusal)
            or len(again) != 1
            or _without_locations(again[0]["select_list"]) != _without_locations([condition])
        ):
            return None
        pieces: list[bytes] = []
        used: dict[str, Any] = {}
        for node in sorted((n for n in nodes if n.get("class") == "PARAMETER"), key=lambda n: int(n["query_location"])):
            name, offset = str(node["identifier"]), node["query_location"]
            used[f"p{name}"] = self._parameter(name)
            pieces += [self._data[start:offset], f"$p{name}".encode()]
            start = offset + node["query_location_length"]
        return b"".join([*pieces, self._data[start:stop]]).decode(), used

    def _parameter(self, name: str) -> Any:
        parameters = self._parameters
        return parameters[name] if isinstance(parameters, dict) else parameters[int(name) - 1]


@cached_per_template
def find_joined_columns(statement: Statement, columns: ColumnsByRelation) -> tuple[tuple[str, str, str, str], ...]:
    """Relation and column, and the relation and column that it must equal; given all streams with their columns."""
    by_relation = dict(columns)
    finder = KeySourceFinder(statement, None, by_relation, list(by_relation), by_relation)
    relations = {name.lower(): name for name in by_relation}
    return tuple(dict.fromkeys((r, c, relations[other.lower()], oc) for r, c, other, oc in finder.pairs()))


@cached_per_template
def joins_keys(
    statement: Statement, keys: ColumnsByRelation, tables: tuple[str, ...], columns: ColumnsByRelation
) -> bool:
    """Whether a search key must be equal to a column of one of the tables."""
    finder = KeySourceFinder(statement, None, dict(keys), tables, dict(columns))
    return next(finder.pairs(), None) is not None


def _without_locations(node: Any) -> Any:
    """A tree without the places in the text and the numbers of parameters."""
    if isinstance(node, list):
        return [_without_locations(item) for item in node]
    if isinstance(node, dict):
        left_out = {"query_location", "query_location_length", "identifier"}
        return {name: _without_locations(value) for name, value in node.items() if name not in left_out}
    return node


def _joins(node: Node) -> Iterator[Node]:
    if node.get("type") == "JOIN":
        yield node
        yield from _joins(node["left"])
        yield from _joins(node["right"])


def _is_inner(join: Node) -> bool:
    return join["join_type"] == "INNER" and join["ref_type"] in _PLAIN_JOINS


def _is_reachable(source: Node, leaf: Node) -> bool:
    """Whether only joins that keep or drop whole rows lie between a FROM clause and one of its relations."""
    if source is leaf:
        return True
    if (
        source.get("type") != "JOIN"
        or source["join_type"] not in _JOIN_TYPES
        or source["ref_type"] not in ("REGULAR", "CROSS")
    ):
        return False
    return _is_reachable(source["left"], leaf) or _is_reachable(source["right"], leaf)


def _is_plain(node: Node) -> bool:
    """Whether a subquery is ``SELECT column FROM … WHERE …``, with DISTINCT at most."""
    return (
        node.get("type") == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and not node["group_expressions"]
        and not node["having"]
        and not node["qualify"]
        and not node["sample"]
        and not node["cte_map"]["map"]
        and all(
            modifier["type"] == "DISTINCT_MODIFIER" and not modifier.get("distinct_on_targets")
            for modifier in node["modifiers"]
        )
        and not node["from_table"].get("sample")
    )
