"""A standing statement over an equi-join of windows in two: the join, which many may share, and the rest of it.

The join is named by its streams, the columns that are equal and how much longer one window is than the other, but not
by how long they are: a view of the join over the longest windows has the rows of all shorter ones (rule SS3). The rest
is the user's own text over the columns of that view, and is parsed again and compared.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.queries.engine.types import quote_name
from windrow.queries.sql.parse_tree import Node, find_location, split_conjuncts
from windrow.queries.sql.split_aggregate import (
    CannotSplitError,
    EngineFunctions,
    StatementSplitter,
    find_clauses,
    parse_single_select,
    without_locations,
)
from windrow.queries.sql.statement import Statement
from windrow.queries.sql.window_spec import AllRows, RangeWindow

ColumnPlace = tuple[int, str]
"""A stream of the join, by number, and a column of it."""
_STRICT = "strict"
_REWRITTEN = ("select_list", "group_expressions", "having", "qualify", "modifiers")
_COPIED = ("group_sets", "aggregate_handling")
_REST = ("group", "having", "order", "limit", "offset")


@dataclass(frozen=True)
class JoinedStream:
    """A stream of a join.

    Args:
        definition: Of the stream.
        longer: How much longer its window is than the shortest of the join.
    """

    definition: StreamDefinition
    longer: int


@dataclass(frozen=True)
class WindowJoin:
    """An equi-join of windows, whatever their lengths are.

    Args:
        streams: In an order that does not depend on the statement, where their names differ.
        equal: Sets of columns that are equal in every result, sorted.
        window: The length of the shortest window; part of the join's key where `shrinks` is false.
        shrinks: Whether the join of shorter windows is a part of that of longer ones, told by when rows end: not where
            rows have lifetimes of their own, for these do not become shorter with the window.
    """

    streams: tuple[JoinedStream, ...]
    equal: tuple[tuple[ColumnPlace, ...], ...]
    window: int
    shrinks: bool

    @property
    def slide(self) -> int:
        """The slots of a view of it: the longest whose ends meet every slot end of its streams."""
        definitions = [stream.definition for stream in self.streams]
        origins = [abs(each.origin - definitions[0].origin) for each in definitions]
        return math.gcd(*(each.slide for each in definitions), *origins)

    @property
    def key(self) -> str:
        """What joins that one view serves have in common."""
        names = [[stream.definition.name, stream.longer] for stream in self.streams]
        return json.dumps([names, self.equal, self.window % self.slide if self.shrinks else self.window, self.shrinks])

    def view_sql(self, window: int, columns: Sequence[ColumnPlace]) -> str:
        """The statement of a view of it, over a shortest window of some length."""
        items = [f"p{n}.{quote_name(column)} AS {quote_name(column_name((n, column)))}" for n, column in columns]
        tables = [
            f"{quote_name(stream.definition.name)} [WINDOW {window + stream.longer} MICROSECONDS] AS p{number}"
            for number, stream in enumerate(self.streams)
        ]
        terms = [
            f"p{first[0]}.{quote_name(first[1])} = p{n}.{quote_name(column)}"
            for first, *others in self.equal
            for n, column in others
        ]
        return f"SELECT {', '.join(items)} FROM {', '.join(tables)} WHERE {' AND '.join(terms)}"


@dataclass(frozen=True)
class JoinStatement:
    """A statement over a join of windows.

    Args:
        join: What it joins.
        columns: The columns of the join that it reads.
        before: Its select list.
        after: Its remaining conditions, groups and all that follows.
    """

    join: WindowJoin
    columns: tuple[ColumnPlace, ...]
    before: str
    after: str

    @property
    def schema(self) -> pa.Schema:
        """Of a view of the join with these columns."""
        fields = {place: self.join.streams[place[0]].definition.schema.field(place[1]) for place in self.columns}
        return pa.schema([field.with_name(column_name(place)) for place, field in fields.items()])

    def sql_over(self, view: str) -> str:
        """The statement over a view of the join."""
        return f"{self.before}\nFROM {quote_name(view)}\n{self.after}"


def column_name(place: ColumnPlace) -> str:
    """What a view of a join calls a column."""
    return f"p{place[0]}_{place[1]}"


def split_join(
    statement: Statement, definitions: Sequence[StreamDefinition], functions: EngineFunctions
) -> JoinStatement:
    """Split a statement over an equi-join of windows.

    Args:
        statement: As parsed.
        definitions: The stream of each of its references.
        functions: Of the engine.

    Raises:
        CannotSplitError: why only its rows can answer it.
    """
    aliases = [reference.alias.lower() for reference in statement.references]
    relations = {
        each.alias: tuple(definition.schema.names)
        for each, definition in zip(statement.references, definitions, strict=True)
    }
    names = {name.lower() for columns in relations.values() for name in columns}
    if len(set(aliases)) < len(aliases) or names & set(aliases):
        raise CannotSplitError("two relations, or a relation and a column, have the same name")
    return _JoinSplitter(statement, relations, definitions, functions).split()


class _JoinSplitter(StatementSplitter):
    """Splits one statement."""

    def __init__(
        self,
        statement: Statement,
        relations: Mapping[str, Sequence[str]],
        definitions: Sequence[StreamDefinition],
        functions: EngineFunctions,
    ) -> None:
        super().__init__(statement, statement.references[0], relations, functions)
        self._definitions = definitions
        self._aliases = [reference.alias.lower() for reference in statement.references]
        self._merged: dict[str, ColumnPlace] = {}
        """Columns that USING made one: where the value of each comes from."""
        names = [definition.name.lower() for definition in definitions]
        in_order = sorted(range(len(names)), key=names.__getitem__)
        self._order = in_order if len(set(names)) == len(names) else list(range(len(names)))
        self._place_of: dict[ColumnPlace, ColumnPlace] = {}
        """Columns that are equal to an earlier one, which stands for them."""
        self._read: set[ColumnPlace] = set()

    def split(self) -> JoinStatement:
        """The join and the rest."""
        self._refuse()
        clauses = find_clauses(self.statement)
        if any(word in clauses for word in ("window", "qualify")):
            raise CannotSplitError("it has a window function")
        tables = list(_list_tables(self.tree["from_table"]))
        if [table["table_name"] for table in tables] != [each.relation for each in self.statement.references]:
            raise CannotSplitError("it reads streams outside of FROM")
        links, others = self._sort_conditions()
        join = self._find_join(links)
        expected = {name: self._renamed(self.tree[name]) for name in _REWRITTEN}
        terms = [without_locations(self._renamed(term)) for term in others]
        where = " AND ".join(f"({self._text(*self._span(term))}\n)" for term in others)
        rest = [f"WHERE {where}"] if where else []
        rest += [self._text(*clauses[word]) for word in _REST if word in clauses]
        columns = tuple(sorted(self._read)) or (join.equal[0][0],)
        split = JoinStatement(join, columns, self._text(*clauses["select"]), "\n".join(rest))
        self._confirm(split, expected, terms)
        return split

    def _confirm(self, split: JoinStatement, expected: Mapping[str, Any], terms: Sequence[Any]) -> None:
        """The rewritten text must read as the statement did, with other columns."""
        tree = parse_single_select(split.sql_over("v"))
        same = all(without_locations(tree[name]) == without_locations(expected[name]) for name in _REWRITTEN)
        same = same and all(tree[name] == self.tree[name] for name in _COPIED)
        if not same or [without_locations(term) for term in split_conjuncts(tree["where_clause"])] != terms:
            raise CannotSplitError("the rest of it reads differently over the join")

    # -- the join ----------------------------------------------------------------------------------------------------

    def _sort_conditions(self) -> tuple[list[tuple[ColumnPlace, ColumnPlace]], list[Node]]:
        """Columns of two streams that are equal, and all other conditions."""
        links: list[tuple[ColumnPlace, ColumnPlace]] = []
        others: list[Node] = []
        for join in _list_joins(self.tree["from_table"]):
            links += self._merge_columns(join)
        conditions = [join["condition"] for join in _list_joins(self.tree["from_table"])]
        for term in (term for each in (*conditions, self.tree["where_clause"]) for term in split_conjuncts(each)):
            sides = [self._resolve(term[side]) for side in ("left", "right")] if _is_equality(term) else []
            if len(sides) == 2 and sides[0] is not None and sides[1] is not None and sides[0][0] != sides[1][0]:
                links.append((sides[0], sides[1]))
            else:
                others.append(term)
        return links, others

    def _merge_columns(self, join: Node) -> Iterator[tuple[ColumnPlace, ColumnPlace]]:
        """What USING compares; the left side stands for both afterwards."""
        for name in join["using_columns"]:
            sides = [
                [place for table in _list_tables(join[side]) for place in self._find_columns(table["table_name"], name)]
                for side in ("left", "right")
            ]
            if len(sides[1]) != 1 or not sides[0] or (len(sides[0]) > 1 and name.lower() not in self._merged):
                raise CannotSplitError("a column of USING is not one of each side")
            first = self._merged.setdefault(name.lower(), sides[0][0])
            yield first, sides[1][0]

    def _find_columns(self, relation: str, name: str) -> Iterator[ColumnPlace]:
        for number, reference in enumerate(self.statement.references):
            if reference.relation == relation:
                columns = self._definitions[number].schema.names
                yield from ((number, column) for column in columns if column.lower() == name.lower())

    def _find_join(self, links: Sequence[tuple[ColumnPlace, ColumnPlace]]) -> WindowJoin:
        """The join, its streams in an order of their own."""
        number_of = {old: new for new, old in enumerate(self._order)}
        definitions = [self._definitions[old] for old in self._order]
        windows = [self._find_window(old) for old in self._order]
        shrinks = all(definition.expires is None for definition in definitions)
        classes: list[set[ColumnPlace]] = []
        for link in links:
            if len({self._type_of(place) for place in link}) > 1:
                raise CannotSplitError("columns of different types are compared")
            linked = {(number_of[number], column) for number, column in link}
            touched = [members for members in classes if members & linked]
            classes = [members for members in classes if not members & linked] + [linked.union(*touched)]
        equal = tuple(sorted(tuple(sorted(members)) for members in classes))
        reached = {0}
        for _ in definitions:
            reached |= {n for members in equal if reached & {m for m, _ in members} for n, _ in members}
        if len(reached) < len(definitions):
            raise CannotSplitError("it joins streams without columns that are equal")
        for members in equal:  # what is equal is the same, but for the sign of zero
            if not pa.types.is_floating(definitions[members[0][0]].schema.field(members[0][1]).type):
                self._place_of |= dict.fromkeys(members, members[0])
        shortest = min(windows)
        streams = tuple(JoinedStream(*each) for each in zip(definitions, (w - shortest for w in windows), strict=True))
        return WindowJoin(streams, equal, shortest, shrinks)

    def _type_of(self, place: ColumnPlace) -> pa.DataType:
        return self._definitions[place[0]].schema.field(place[1]).type

    def _find_window(self, number: int) -> int:
        """How long rows of a stream are in its window at most."""
        window, definition = self.statement.references[number].window, self._definitions[number]
        if definition.pattern == _STRICT:
            raise CannotSplitError("it joins a view whose rows can end before they expire")
        if isinstance(window, RangeWindow):
            if definition.longest_life is not None and window.length > definition.longest_life:
                raise CannotSplitError("its window is longer than the stream keeps rows")
            return window.length
        if not isinstance(window, AllRows):
            raise CannotSplitError("it joins a window that does not go by time, or does not end at the stream's clock")
        if definition.longest_life is None:
            raise CannotSplitError("it joins all rows of a stream that keeps them for ever")
        return definition.longest_life

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _resolve(self, node: Node) -> ColumnPlace | None:
        """The stream and column that an expression is; None if it is no column."""
        if node.get("class") != "COLUMN_REF":
            return None
        *alias, name = (each.lower() for each in node["column_names"])
        if len(alias) > 1 or (alias and alias[0] not in self._aliases):
            raise CannotSplitError("it names a column in a way that is not understood here")
        if not alias and name in self._merged:
            return self._merged[name]
        places = [
            (number, column)
            for number, definition in enumerate(self._definitions)
            if not alias or self._aliases[number] == alias[0]
            for column in definition.schema.names
            if column.lower() == name
        ]
        if len(places) > 1:
            raise CannotSplitError("it names a column that two streams have")
        return places[0] if places else None

    def _renamed(self, value: Any) -> Any:
        """A part of the tree with columns of the view; notes the replacements in the text."""
        if isinstance(value, list):
            return [self._renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("class") != "COLUMN_REF":
            return {name: self._renamed(item) for name, item in value.items()}
        place = self._resolve(value)
        name = value["column_names"][-1].lower()
        hiding = [item for item in self.tree["select_list"] if item["alias"].lower() == name]
        if place is None:
            if not hiding:
                raise CannotSplitError("it names what is neither a column nor an alias")
            return value
        if len(value["column_names"]) == 1 and any(self._resolve(item) != place for item in hiding):
            raise CannotSplitError("an alias has the name of a column")
        number = self._order.index(place[0])
        place = self._place_of.get((number, place[1]), (number, place[1]))
        start = find_location(value)
        if start is None:
            raise CannotSplitError("a column has no place")
        self._read.add(place)
        self.replacements.append((start, start + value["query_location_length"], quote_name(column_name(place))))
        return {**value, "column_names": [column_name(place)]}


def _list_tables(node: Node) -> Iterator[Node]:
    """The relations of a plain inner join, in the order of the text."""
    if node["type"] == "JOIN":
        yield from _list_tables(node["left"])
        yield from _list_tables(node["right"])
    elif node["type"] == "BASE_TABLE":
        yield node
    else:
        raise CannotSplitError("it reads more than streams")


def _list_joins(node: Node) -> Iterator[Node]:
    """The joins of a FROM clause, inner before outer."""
    if node["type"] == "JOIN":
        if node["join_type"] != "INNER" or node["ref_type"] not in ("REGULAR", "CROSS"):
            raise CannotSplitError("it has another join than a plain inner one")
        yield from _list_joins(node["left"])
        yield from _list_joins(node["right"])
        yield node


def _is_equality(term: Node) -> bool:
    return term.get("class") == "COMPARISON" and term["type"] == "COMPARE_EQUAL"
