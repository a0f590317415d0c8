"""Strict statements that need not be recomputed: a result depends only on rows that share the values of some columns.

Such a statement can be computed for some of these values alone: for those of rows that came, and of rows whose end
brings other results. That holds where the inputs are joined by equalities: outer, semi and anti joins, EXISTS, IN,
and EXCEPT and INTERSECT, in which the whole rows are compared. Everything else is refused here, and recomputed.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.queries.engine.types import quote_name
from windrow.queries.sql import parse_tree
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.statement import Statement
from windrow.queries.sql.tokens import Token
from windrow.queries.sql.window_spec import AllRows, RangeWindow
from windrow.queries.views.plan import Partition, PlainJoin, PlanPart
from windrow.queries.views.update_patterns import has_groups, list_expressions, reads_several_rows

_Column = tuple[int, str]
"""A part, by number, and a column of it."""
_Edit = tuple[int, int, str]
"""A range of bytes and the text that takes its place."""
_SET_OPERATIONS = {"EXCEPT", "INTERSECT"}


class NotPartitionedError(Exception):
    """A statement of which more than rows with equal values must be known; it never reaches a user."""


@dataclass(frozen=True)
class _Source:
    """What a piece of a FROM clause gives.

    Args:
        visible: The parts whose columns it shows.
        every: Those and the ones that only decide which rows there are.
        life: The longest that its rows live; None: for ever.
    """

    visible: tuple[PlanPart, ...]
    every: tuple[PlanPart, ...]
    life: int | None


@dataclass(frozen=True)
class PartitionedStatement:
    """A statement that can be computed for some partitions alone, and its SQL with begin and end of each result."""

    partition: Partition
    sql: str


def find_partition(
    statement: Statement, parts: Sequence[PlanPart], begins: str, ends: str, prefix: str
) -> PartitionedStatement | None:
    """How a strict statement can be kept up from new rows; None if it has to be recomputed.

    Args:
        statement: As parsed.
        parts: What it reads.
        begins: A name for the column with the beginning of a result.
        ends: A name for the column with its end.
        prefix: Begins the names of hidden columns of parts; see `ViewPlan.time_columns`.
    """
    try:
        return _Analysis(statement, parts, begins, ends, prefix).partitioned()
    except NotPartitionedError:
        return None


class _Analysis:
    def __init__(self, statement: Statement, parts: Sequence[PlanPart], begins: str, ends: str, prefix: str) -> None:
        self.statement, self.parts = statement, parts
        self.begins, self.ends, self.prefix = quote_name(begins), quote_name(ends), prefix
        self.links: list[tuple[_Column, _Column]] = []
        self.watched: set[int] = set()
        self.not_in: dict[int, int] = {}
        self.divided = True
        self.edits: list[_Edit] = []
        offsets = [part.reference.span for part in parts]
        self.by_place = {
            len(statement.text[: span[0]].encode()): part
            for span, part in zip(offsets, parts, strict=True)
            if span is not None
        }
        if len(self.by_place) < len(parts):
            raise NotPartitionedError

    def partitioned(self) -> PartitionedStatement:
        tree = self.statement.tree
        for part in self.parts:
            definition = part.definition
            if definition is None or definition.floor is not None:
                raise NotPartitionedError
            if not isinstance(part.reference.window, AllRows | RangeWindow):
                raise NotPartitionedError
        if tree["type"] == "SET_OPERATION_NODE":
            return self._partition_set_operation(tree)
        source = self._read_select(tree, nested=False)
        alone = frozenset(part.number for part in source.visible) - self.watched
        join = self._find_plain_join(tree, source)
        watched = frozenset(self.watched)
        columns = self._choose_columns()
        partition = Partition(columns, watched, alone, source.life, join, self.not_in, divided=self.divided)
        return PartitionedStatement(partition, self._edit_select(tree, source, self._tokens))

    # -- what depends on what ------------------------------------------------------------------------------------------

    def _read_select(self, select: Node, *, nested: bool) -> _Source:
        """The FROM clause of a SELECT that gives a result for each row of it, and what WHERE adds."""
        expressions = [e for name in ("select_list", "where_clause") for e in list_expressions(select[name])]
        if (
            select["type"] != "SELECT_NODE"
            or select["cte_map"]["map"]
            or select["modifiers"]
            or select["sample"] is not None
            or select["having"] is not None
            or select["qualify"] is not None
            or has_groups(select)
            or any(map(reads_several_rows, expressions))
            or any(_has_subquery(item) for item in select["select_list"])
        ):
            raise NotPartitionedError
        source = self._read_from(select["from_table"], watched=nested)
        for condition in parse_tree.split_conjuncts(select["where_clause"]):
            if _has_subquery(condition):
                if nested:
                    raise NotPartitionedError
                source = self._read_subquery(condition, source)
        return source

    def _read_from(self, node: Node, *, watched: bool) -> _Source:
        if node["type"] == "BASE_TABLE" and not node["sample"] and not node["column_name_alias"]:
            part = self.by_place.get(node["query_location"])
            if part is None:
                raise NotPartitionedError
            if watched:
                self.watched.add(part.number)
            return _Source((part,), (part,), part.life)
        kind = node.get("join_type")
        if node["type"] != "JOIN" or node["ref_type"] != "REGULAR" or _has_subquery(node["condition"]):
            raise NotPartitionedError
        left = self._read_from(node["left"], watched=watched or kind in ("RIGHT", "OUTER", "FULL"))
        right = self._read_from(node["right"], watched=watched or kind in ("LEFT", "OUTER", "FULL", "SEMI", "ANTI"))
        for condition in parse_tree.split_conjuncts(node["condition"]):
            self._link(condition, left.visible, right.visible)
        for column in node["using_columns"]:
            self._link_columns(_find_one(column, left.visible), _find_one(column, right.visible))
        every, both = (*left.every, *right.every), (*left.visible, *right.visible)
        if kind == "INNER":
            return _Source(both, every, _shortest(left.life, right.life))
        if kind in ("LEFT", "RIGHT"):
            return _Source(both, every, left.life if kind == "LEFT" else right.life)
        if kind in ("OUTER", "FULL"):
            return _Source(both, every, _longest(left.life, right.life))
        if kind in ("SEMI", "ANTI"):
            return _Source(left.visible, every, left.life)
        raise NotPartitionedError

    def _read_subquery(self, condition: Node, outer: _Source) -> _Source:
        """A condition that asks whether a subquery has a row: [NOT] EXISTS, or a column IN its only column."""
        negated = condition.get("type") == "OPERATOR_NOT"
        asked = condition["children"][0] if negated else condition
        kind = asked.get("subquery_type")
        if asked.get("class") != "SUBQUERY" or kind not in ("EXISTS", "NOT_EXISTS", "ANY"):
            raise NotPartitionedError
        select = asked["subquery"]["node"]
        inner = self._read_select(select, nested=True)
        if inner.visible != inner.every:
            raise NotPartitionedError
        for term in parse_tree.split_conjuncts(select["where_clause"]):
            self._link(term, inner.visible, outer.visible, inner_first=True)
        if kind == "ANY":
            if asked["comparison_type"] != "COMPARE_EQUAL" or len(select["select_list"]) != 1:
                raise NotPartitionedError
            if negated:
                # Whether there is a row, and one with a null, is only known of whole streams.
                if len(outer.visible) > 1 or len(inner.every) > 1 or select["where_clause"] is not None:
                    raise NotPartitionedError
                self.not_in[inner.visible[0].number] = outer.visible[0].number
            column, value = _resolve(select["select_list"][0], inner.visible), _resolve(asked["child"], outer.visible)
            self._link_columns(column, value)
        return _Source(outer.visible, (*outer.every, *inner.every), outer.life)

    def _link(
        self, term: Node, left: Sequence[PlanPart], right: Sequence[PlanPart], *, inner_first: bool = False
    ) -> None:
        """Note an equality of two columns, one of each side. A name means the inner relation's column first."""
        if term.get("class") != "COMPARISON" or term["type"] != "COMPARE_EQUAL":
            return
        for one, other in ((term["left"], term["right"]), (term["right"], term["left"])):
            first, second = _resolve(one, left), _resolve(other, right)
            if inner_first and _resolve(other, left) is not None:
                continue
            if first is not None and second is not None:
                self._link_columns(first, second)
                return

    def _link_columns(self, one: _Column | None, other: _Column | None) -> None:
        if one is None or other is None:
            raise NotPartitionedError
        self.links.append((one, other))

    def _choose_columns(self) -> dict[int, tuple[str, ...]]:
        """For each part the columns that have the same values in all rows on which a result depends."""
        if len(self.parts) == 1:
            (part,) = self.parts
            assert part.definition is not None
            names = [name for name in part.definition.key or part.columns if is_exact(_type_of(part, name))]
            if not names:
                raise NotPartitionedError
            return {part.number: tuple(names if part.definition.key else names[:1])}
        classes: list[set[_Column]] = []
        for pair in self.links:
            linked = set(pair)
            for other in [each for each in classes if each & linked]:
                classes.remove(other)
                linked |= other
            classes.append(linked)
        shared, divides = [], []
        for each in classes:
            columns = {number: min(c for n, c in each if n == number) for number, _ in sorted(each)}
            kinds = {_type_of(self.parts[number], column) for number, column in columns.items()}
            if len(columns) == len(self.parts) and len(kinds) == 1 and is_exact(kinds.pop()):
                shared.append(columns)
                # A row whose two columns differ has no partner among two parts, but one part each among three.
                divides.append(len(each) == len(columns) or len(columns) == 2)
        if not shared:
            raise NotPartitionedError
        self.divided = all(divides)
        return {part.number: tuple(columns[part.number] for columns in shared) for part in self.parts}

    def _find_plain_join(self, select: Node, source: _Source) -> PlainJoin | None:
        """The statement as a join that is nothing but that; None of any other."""
        if len(self.parts) != 2 or not self.links:
            return None
        joined, where = select["from_table"], select["where_clause"]
        if joined["type"] == "JOIN" and where is None:
            kind = "FULL" if joined["join_type"] == "OUTER" else joined["join_type"]
            terms = [*parse_tree.split_conjuncts(joined["condition"]), *joined["using_columns"]]
        elif joined["type"] == "BASE_TABLE" and len(conditions := list(parse_tree.split_conjuncts(where))) == 1:
            negated = conditions[0].get("type") == "OPERATOR_NOT"
            asked = conditions[0]["children"][0] if negated else conditions[0]
            kind = "ANTI" if negated is not (asked["subquery_type"] == "NOT_EXISTS") else "SEMI"
            inner = asked["subquery"]["node"]
            terms = [
                *parse_tree.split_conjuncts(inner["where_clause"]),
                *([0] if asked["subquery_type"] == "ANY" else []),
            ]
        else:
            return None
        columns = self._list_columns(select, source.visible)
        if len(terms) != len(self.links) or columns is None:
            return None
        keys = [dict(pair) for pair in self.links]
        return PlainJoin(kind, tuple((pair[0], pair[1]) for pair in keys), tuple(columns))

    # -- SQL -----------------------------------------------------------------------------------------------------------

    @property
    def _tokens(self) -> tuple[Token, ...]:
        tokens = self.statement.source.tokens
        return tokens[:-1] if tokens and tokens[-1].text == ";" else tokens

    def _times(self, part: PlanPart) -> tuple[str, str]:
        return f"{self.prefix}t{part.number}", f"{self.prefix}e{part.number}"

    def _edit_select(self, select: Node, source: _Source, tokens: Sequence[Token]) -> str:
        """The text of a SELECT over relations of our own, with the begin and the end of each row before its columns."""
        if not tokens or tokens[0].word != "select" or tokens[1].word in ("distinct", "all"):
            raise NotPartitionedError
        edits = list(self._edit_relations(source.every, tokens[0].start, tokens[-1].stop))
        begins, ends = (
            f"{word}({', '.join(f'{quote_name(p.alias)}.{quote_name(self._times(p)[n])}' for p in source.visible)})"
            for n, word in enumerate(("greatest", "least"))
        )
        edits.append((tokens[0].stop, tokens[0].stop, f" {begins} AS {self.begins}, {ends} AS {self.ends},"))
        edits += self._edit_stars(source.visible, tokens)
        data, copied, pieces = self.statement.sql.encode(), tokens[0].start, list[bytes]()
        for start, stop, text in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [data[copied:start], text.encode()]
            copied = stop
        sql = b"".join([*pieces, data[copied : tokens[-1].stop]]).decode()
        edited = parse_tree.parse_statements(sql)
        if not isinstance(edited, list) or len(edited) != 1 or edited[0]["type"] != "SELECT_NODE":
            raise NotPartitionedError
        after = {**edited[0], "select_list": edited[0]["select_list"][2:]}
        if _plain(after) != _plain(select):
            raise NotPartitionedError
        return sql

    def _edit_relations(self, parts: Iterable[PlanPart], first: int, last: int) -> Iterator[_Edit]:
        text, data = self.statement.text, self.statement.sql.encode()
        nodes = {
            visit.node["query_location"]: visit.node
            for visit in parse_tree.walk(self.statement.tree)
            if visit.node.get("type") == "BASE_TABLE"
        }
        for part in parts:
            assert part.reference.span is not None
            start, stop = (len(text[:offset].encode()) for offset in part.reference.span)
            node = nodes.get(start)
            if node is None or not first <= start < stop <= last:
                raise NotPartitionedError
            written = data[start:stop].decode()
            suffix = written[len(node["table_name"]) :] if written.startswith(node["table_name"]) else ""
            alias = "" if node["alias"] else f" AS {quote_name(part.alias)}"
            yield start, stop, f"{quote_name(part.relation)}{suffix}{alias}"

    def _edit_stars(self, visible: Sequence[PlanPart], tokens: Sequence[Token]) -> Iterator[_Edit]:
        """Leave the hidden columns out of each star of the select list."""
        depth = 0
        for position, token in enumerate(tokens[1:], 1):
            depth += (token.text == "(") - (token.text == ")")
            if depth == 0 and token.word == "from":
                return
            before = tokens[position - 1]
            if depth or token.text != "*" or not (before.word == "select" or before.text in (",", ".")):
                continue
            parts = visible
            if before.text == ".":
                parts = tuple(p for p in visible if p.alias.lower() == tokens[position - 2].name.lower())
            hidden = ", ".join(quote_name(column) for part in parts for column in self._times(part))
            if tokens[position + 1].word == "exclude":
                if tokens[position + 2].text != "(":
                    raise NotPartitionedError
                yield tokens[position + 2].stop, tokens[position + 2].stop, f"{hidden}, "
            else:
                yield token.stop, token.stop, f" EXCLUDE ({hidden})"

    # -- EXCEPT and INTERSECT ------------------------------------------------------------------------------------------

    def _partition_set_operation(self, tree: Node) -> PartitionedStatement:
        """Two SELECTs of one stream each, whose rows are compared as a whole; nulls are equal."""
        kind, children = tree["setop_type"], tree["children"]
        if kind not in _SET_OPERATIONS or len(children) != 2 or tree["modifiers"] or tree["cte_map"]["map"]:
            raise NotPartitionedError
        sides = [self._read_select(child, nested=False) for child in children]
        if any(
            len(side.every) != 1 or "where_clause" not in child for side, child in zip(sides, children, strict=True)
        ):
            raise NotPartitionedError
        parts = [side.visible[0] for side in sides]
        columns = list[list[tuple[str, str]]]()
        for child, part in zip(children, parts, strict=True):
            listed = self._list_columns(child, [part])
            if listed is None:
                raise NotPartitionedError
            columns.append([(name, column) for name, _, column in listed])
        names = [name for name, _ in columns[0]]
        kinds = [
            [_type_of(part, column) for _, column in of_part] for part, of_part in zip(parts, columns, strict=True)
        ]
        if kinds[0] != kinds[1] or not all(map(is_exact, kinds[0])) or len({n.lower() for n in names}) < len(names):
            raise NotPartitionedError
        cut = [position for position, token in enumerate(self._tokens) if token.word == kind.lower()]
        if len(cut) != 1:
            raise NotPartitionedError
        rest = self._tokens[cut[0] + 1 :]
        halves = [self._tokens[: cut[0]], rest[1:] if rest and rest[0].word in ("all", "distinct") else rest]
        places = [f"c{position}" for position in range(len(names))]
        left, right = (
            f"({self._edit_select(child, side, half)}\n) AS {name}(t, e, {', '.join(places)})"
            for child, side, half, name in zip(children, sides, halves, "lr", strict=True)
        )
        sql = _set_operation_sql(kind, left, right, places, all_rows=tree["setop_all"])
        shown = ", ".join(f"{place} AS {quote_name(name)}" for place, name in zip(places, names, strict=True))
        # Which copies are left is chosen so that each ends with a row of its own: what ends on the left side, and on
        # both of an intersection, takes no other result with it and brings none.
        watched = frozenset([parts[1].number]) if kind == "EXCEPT" else frozenset[int]()
        life = parts[0].life if kind == "EXCEPT" else _shortest(parts[0].life, parts[1].life)
        partition = Partition(
            {part.number: tuple(column for _, column in of_part) for part, of_part in zip(parts, columns, strict=True)},
            watched, frozenset(), life,
        )  # fmt: skip
        return PartitionedStatement(partition, f"SELECT t AS {self.begins}, e AS {self.ends}, {shown} FROM ({sql})")

    @staticmethod
    def _list_columns(select: Node, visible: Sequence[PlanPart]) -> list[tuple[str, int, str]] | None:
        """The result's columns, each a column of a stream: its name, the part, and as the stream has it."""
        columns = list[tuple[str, int, str]]()
        for item in select["select_list"]:
            if item.get("class") == "STAR":
                changed = ("columns", "exclude_list", "replace_list", "rename_list", "expr")
                if len(visible) > 1 or any(item[each] for each in changed):
                    return None
                columns += [(name, visible[0].number, name) for name in visible[0].columns]
                continue
            resolved = _resolve(item, visible)
            if resolved is None:
                return None
            columns.append((item["alias"] or resolved[1], *resolved))
        return columns


def _set_operation_sql(kind: str, left: str, right: str, places: Sequence[str], *, all_rows: bool) -> str:
    """Begin, end and columns of what is left of one relation, and for how long as far as is known now."""
    names = ", ".join(places)
    shown = ", ".join(f"l.{place}" for place in places)
    same = " AND ".join(f"l.{place} IS NOT DISTINCT FROM r.{place}" for place in places)
    if not all_rows:
        longest, other = (
            f"(SELECT max(row(e, t)) AS life, {names} FROM {side} GROUP BY ALL)" for side in (left, right)
        )
        if kind == "EXCEPT":
            return f"SELECT l.life[2] AS t, l.life[1] AS e, {shown} FROM {longest} l ANTI JOIN {other} r ON {same}"
        return (
            f"SELECT greatest(l.life[2], r.life[2]) AS t, least(l.life[1], r.life[1]) AS e, {shown} "
            f"FROM {longest} l JOIN {other} r ON {same}"
        )
    over = f"row_number() OVER (PARTITION BY {names} ORDER BY"
    if kind == "EXCEPT":
        return (
            f"SELECT l.t, l.e, {shown} FROM (SELECT *, {over} e, t) AS place, "
            f"count(*) OVER (PARTITION BY {names}) AS copies FROM {left}) l "
            f"LEFT JOIN (SELECT {names}, count(*) AS copies FROM {right} GROUP BY ALL) r ON {same} "
            "WHERE l.place <= l.copies - coalesce(r.copies, 0)"
        )
    ranked = [f"(SELECT *, {over} e DESC, t DESC) AS place FROM {side})" for side in (left, right)]
    return (
        f"SELECT greatest(l.t, r.t) AS t, least(l.e, r.e) AS e, {shown} FROM {ranked[0]} l JOIN {ranked[1]} r "
        f"ON {same} AND l.place = r.place"
    )


def is_exact(kind: pa.DataType) -> bool:
    """Whether equal values of a type have equal bytes; of floats zero and minus zero are equal."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_integer(plain)
        or pa.types.is_boolean(plain)
        or pa.types.is_string(plain)
        or pa.types.is_large_string(plain)
        or pa.types.is_binary(plain)
        or pa.types.is_temporal(plain)
        or pa.types.is_decimal(plain)
    )


def _type_of(part: PlanPart, column: str) -> pa.DataType:
    assert part.definition is not None
    kind = part.definition.schema.field(column).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _shortest(one: int | None, other: int | None) -> int | None:
    lives = [life for life in (one, other) if life is not None]
    return min(lives) if lives else None


def _longest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _has_subquery(node: Any) -> bool:
    return node is not None and any(visit.node.get("class") == "SUBQUERY" for visit in parse_tree.walk(node))


def _resolve(node: Node, parts: Sequence[PlanPart]) -> _Column | None:
    """The part and column that an expression is, if it is plainly one."""
    if node.get("class") != "COLUMN_REF" or len(node["column_names"]) > 2:
        return None
    *alias, column = (name.lower() for name in node["column_names"])
    matches = [
        (part.number, name)
        for part in parts
        if not alias or part.alias.lower() == alias[0]
        for name in part.columns
        if name.lower() == column
    ]
    return matches[0] if len(matches) == 1 else None


def _find_one(column: str, parts: Sequence[PlanPart]) -> _Column | None:
    """The only column of that name; of several that USING has made one, the first."""
    return next(
        ((part.number, name) for part in parts for name in part.columns if name.lower() == column.lower()), None
    )


def _plain(node: Any) -> str:
    """A tree without places, without what its relations are called, and without what its stars leave out."""

    def strip(value: Any) -> Any:
        if isinstance(value, list):
            return [strip(item) for item in value]
        if not isinstance(value, dict):
            return value
        dropped = {"query_location", "query_location_length"}
        if value.get("type") == "BASE_TABLE":
            dropped |= {"table_name", "qualified_name", "alias"}
        if value.get("class") == "STAR":
            dropped |= {"exclude_list", "qualified_exclude_list"}
        return {key: strip(item) for key, item in value.items() if key not in dropped}

    return json.dumps(strip(node), sort_keys=True)
