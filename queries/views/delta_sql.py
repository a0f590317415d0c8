"""New results of a view from new rows of its inputs: algorithms 4 and 5 of the thesis in their corrected form.

For each input in turn, its new rows are joined with all rows of the inputs before it and with the known rows of those
behind it, so that each combination is found once: when the last of its parts has come. A result begins with its last
part and ends with its first; it counts if it lives now, or with restore semantics if it lived since the last update.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import TableEntry
from windrow.errors import ViewError
from windrow.indexes.probe import KeyRange
from windrow.indexes.segments import Segment
from windrow.queries.engine import arrow_source, cursor_pool, instance
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.scan_sql import table_sql
from windrow.queries.views import join_order
from windrow.queries.views.inputs import (
    ALL,
    KNOWN,
    NEW,
    InputPosition,
    InputState,
    RelationBinder,
    SegmentGroup,
    UpdateInterval,
    ends_sql,
)
from windrow.queries.views.join_order import InputRate
from windrow.queries.views.partner_filter import (
    MAX_LOOKUP_KEYS,
    Mask,
    encode_partner_ranges,
    make_mask,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.queries.views.plan import JoinLink, PlanBranch, PlanPart, Prune, ViewPlan
from windrow.store import Store

BATCH_ROWS = 100_000
_REPEATS = 8
"""New rows repeat a value hardly more often than this: with more rows than that for each value that may be looked up,
the values need not be counted."""
_MANY_SEGMENTS = 4
"""A partner with so many times more rows is thinned before it is joined."""
_RESULTS = "_v results"
_UNSUPPORTED_TYPES = {"UHUGEINT", "BIT", "BIGNUM"}
"""Types that would be others when they are read back from a file."""


@dataclass(frozen=True)
class UpdateInputs:
    """All that an update of a view reads.

    Args:
        name: Of the view.
        plan: Of the view.
        moment: From when to when.
        sides: The inputs, by name.
        seen: What the view has of them, by name.
        tables: The tables, by name.
        rates: What is known of the streams, by part; for the order of joins.
        own: The view itself as it was before, where duplicates are eliminated.
    """

    name: str
    plan: ViewPlan
    moment: UpdateInterval
    sides: Mapping[str, InputState]
    seen: Mapping[str, InputPosition]
    tables: Mapping[str, TableEntry]
    rates: Mapping[int, InputRate] = field(default_factory=dict)
    own: InputState | None = None


@contextlib.contextmanager
def translating_errors(
    name: str, advice: str = "make its statement accept every row (TRY_CAST, CASE), or drop the view"
) -> Iterator[None]:
    """DuckDB's errors in our words, and what to do."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        said = instance.read_error_message(error)
        raise ViewError(f"view {name!r} cannot be computed ({said}), so nothing was changed; {advice}") from None


def describe_columns(store: Store, name: str, plan: ViewPlan, tables: Mapping[str, TableEntry]) -> pa.Schema:
    """The columns that the plan's SQL gives."""
    nothing = UpdateInterval(None, 0, 0)
    desk = cursor_pool.take_cursor(store)
    try:
        with translating_errors(name, "check the names and types in its statement"):
            binder = RelationBinder(store, desk, nothing)
            for part in plan.parts:
                _register_empty(store, desk, binder, plan, part, tables)
            reader, types = arrow_source.run_streaming(
                desk.cursor, f"SELECT * FROM ({plan.sql}) LIMIT 0", None, BATCH_ROWS
            )
            schema = reader.schema
            reader.read_all()
        for column, kind in zip(schema.names, types, strict=True):
            if kind in _UNSUPPORTED_TYPES:
                raise ViewError(f"view {name!r}: column {column!r} is of type {kind}; cast it to another")
        return schema
    finally:
        desk.leave(tidy=False)


def _register_empty(
    store: Store,
    desk: PooledCursor,
    binder: RelationBinder,
    plan: ViewPlan,
    part: PlanPart,
    tables: Mapping[str, TableEntry],
) -> None:
    if part.definition is None:
        desk.view(part.relation, table_sql(store.root, tables[part.name]))
    else:
        binder.offer(part, part.definition, (), None if plan.recompute else plan.hidden(part))


class SqlUpdate:
    """One update of one view.

    Args:
        store: The warehouse.
        given: What it reads.
    """

    def __init__(self, store: Store, given: UpdateInputs) -> None:
        self.store = store
        self.given = given
        self.plan = given.plan
        self.desk = cursor_pool.take_cursor(store)
        self.binder = RelationBinder(store, self.desk, given.moment)
        self.distinct: dict[int, dict[str, float]] = {}
        """How many values the joined columns of new rows have, by part; filled where the order of joins matters."""
        self._temporary: list[str] = []
        self._met: set[str] = set()
        """Relations that stand for fewer rows than their segments hold."""

    def results(self) -> Iterator[pa.RecordBatch]:
        """New results: when they begin and end in microseconds, then their columns."""
        tidy = False
        with translating_errors(self.given.name):
            try:
                if self.plan.recompute:
                    yield from self._recomputed()
                elif self.plan.distinct:
                    yield from self._distinct()
                else:
                    for sql in self._terms():
                        yield from self._run(sql)
                for name in self._temporary:
                    self.desk.cursor.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
                tidy = True
            finally:
                self.desk.leave(tidy=tidy)

    def _run(self, sql: str) -> Iterator[pa.RecordBatch]:
        reader, _ = arrow_source.run_streaming(self.desk.cursor, sql, None, BATCH_ROWS)
        yield from reader

    def _keep(self, name: str, sql: str) -> int:
        """Keep the rows of a query under a name until the update is over; gives how many they are."""
        self.desk.cursor.execute(f"CREATE OR REPLACE TEMP TABLE {quote_name(name)} AS {sql}")
        if name not in self._temporary:
            self._temporary.append(name)
        return int(self._one(f"SELECT count(*) FROM {quote_name(name)}")[0])

    def _one(self, sql: str) -> Any:
        """The only row of a query; all is fetched, so that the connection is free again."""
        return self.desk.cursor.execute(sql).fetchall()[0]

    # -- from scratch --------------------------------------------------------------------------------------------------

    def _recomputed(self) -> Iterator[pa.RecordBatch]:
        for part in self.plan.parts:
            if part.definition is None:
                self._offer_table(part)
            else:
                side = self.given.sides[part.name]
                self.binder.offer(
                    part, side.definition, self.binder.groups(part, side, InputPosition(0, None), ALL), None
                )
        yield from self._run(f"SELECT * FROM ({self.plan.sql})")

    def _offer_table(self, part: PlanPart) -> None:
        self.desk.view(part.relation, table_sql(self.store.root, self.given.tables[part.name]))

    # -- from new rows -------------------------------------------------------------------------------------------------

    def _terms(self) -> Iterator[str]:
        """For each input that has new rows, the query that gives their results; its relations are laid out by then."""
        plan, moment = self.plan, self.given.moment
        alive = f"{quote_name(plan.begins)} < {quote_name(plan.ends)} AND {quote_name(plan.ends)} > {moment.floor}"
        for branch in plan.branches:
            for part in plan.parts:
                if part not in branch.parts:
                    _register_empty(self.store, self.desk, self.binder, plan, part, self.given.tables)
            for part in branch.parts:
                if part.definition is None:
                    self._offer_table(part)
            for seed in branch.streams:
                if self._laid_out(branch, seed):
                    yield f"SELECT * FROM ({plan.sql}) WHERE {alive}"

    def _laid_out(self, branch: PlanBranch, seed: PlanPart) -> bool:
        """Lay out the new rows of one input and what they can meet; False if there is nothing to meet."""
        places = [part.number for part in branch.streams]
        groups: dict[int, list[SegmentGroup]] = {}
        for part in branch.streams:
            before = places.index(part.number) < places.index(seed.number)
            which = NEW if part is seed else ALL if before else KNOWN
            side = self.given.sides[part.name]
            groups[part.number] = self.binder.groups(part, side, self.given.seen[part.name], which)
            if not groups[part.number]:
                return False
        by_number = {part.number: part for part in branch.parts}
        self._met.clear()
        rows = {seed.number: self._offer(seed, groups[seed.number])}
        if len(places) > 2:
            self._measure(branch, seed)
        bound = {seed.number} | {part.number for part in branch.parts if part.definition is None}
        order = self._order(branch, seed)
        for number in order:
            part = by_number[number]
            links = [link.seen_from(number) for link in branch.links if number in (link.left, link.right)]
            links = [link for link in links if link.right in bound]
            segments = [segment for group in groups[number] for segment in group.segments]
            prune = self._prune(part, links, by_number, segments, rows)
            meets = None if prune is not None else self._meets(part, links, by_number, segments, rows, groups)
            self._offer(part, groups[number], prune, meets)
            if number != order[-1]:
                rows[number] = self._reduced(part, links, by_number)
                if not rows[number]:
                    return False
            bound.add(number)
        return True

    def _offer(
        self,
        part: PlanPart,
        groups: Sequence[SegmentGroup],
        prune: Prune | None = None,
        meets: tuple[str, Mask] | None = None,
    ) -> int:
        side = self.given.sides[part.name]
        return self.binder.offer(part, side.definition, groups, self.plan.hidden(part), prune, meets)

    def _order(self, branch: PlanBranch, seed: PlanPart) -> tuple[int, ...]:
        """Which partner is looked at first, and so on: by rates, windows and numbers of values."""

        def linked(number: int, reached: set[int]) -> bool:
            return any(
                (link.left == number and link.right in reached) or (link.right == number and link.left in reached)
                for link in branch.links
            )

        return join_order.choose_partner_order(
            seed.number, [part.number for part in branch.streams], self.given.rates, linked
        )

    def _reduced(self, part: PlanPart, links: Sequence[JoinLink], parts: Mapping[int, PlanPart]) -> int:
        """Keep only rows that have a partner among those bound so far; gives how many they are."""
        wanted = [
            f"{quote_name(link.left_column)} IN (SELECT {quote_name(link.right_column)} "
            f"FROM {quote_name(parts[link.right].relation)})"
            for link in links
        ]
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        name = f"{part.relation} met"
        found = self._keep(name, f"SELECT * FROM {quote_name(part.relation)}{where}")
        self.desk.view(part.relation, f"SELECT * FROM {quote_name(name)}")
        self._met.add(part.relation)
        return found

    def _measure(self, branch: PlanBranch, seed: PlanPart) -> None:
        """Count rows and values of what is new, for the next time that an order is chosen."""
        own = [link.seen_from(seed.number) for link in branch.links if seed.number in (link.left, link.right)]
        columns = sorted({link.left_column for link in own})
        counts = ", ".join(f"approx_count_distinct({quote_name(column)})" for column in columns) or "0"
        row = self._one(f"SELECT {counts} FROM {quote_name(seed.relation)}")
        self.distinct[seed.number] = {column: float(value) for column, value in zip(columns, row, strict=False)}

    # -- the directories of partners -----------------------------------------------------------------------------------

    def _prune(
        self,
        part: PlanPart,
        links: Sequence[JoinLink],
        parts: Mapping[int, PlanPart],
        segments: Sequence[Segment],
        bound: Mapping[int, int],
    ) -> Prune | None:
        """Which rows of a partner can match, by its search key and the values that are bound."""
        definition = part.definition
        assert definition is not None
        by_column: dict[str, JoinLink] = {}
        for link in links:
            by_column.setdefault(link.left_column, link)
        chosen: list[JoinLink] = []
        for column in definition.key:
            found = by_column.get(column)
            if found is None or (chosen and found.right != chosen[0].right):
                break
            chosen.append(found)
        most = max_lookup_keys(segments)
        if not chosen or bound.get(chosen[0].right, 0) > _REPEATS * most:
            return None
        ranges = self._ranges(part, chosen, parts, min(most, MAX_LOOKUP_KEYS)) if most else None
        return None if ranges is None else prune_by_directory(self.store, part, ranges)

    def _meets(
        self,
        part: PlanPart,
        links: Sequence[JoinLink],
        parts: Mapping[int, PlanPart],
        segments: Sequence[Segment],
        bound: Mapping[int, int],
        groups: Mapping[int, Sequence[SegmentGroup]],
    ) -> tuple[str, Mask] | None:
        """Which values of a joined column can match, where a large partner meets few rows."""
        definition = part.definition
        assert definition is not None
        rows = sum(segment.rows for segment in segments)
        link = next((link for link in links if bound.get(link.right, rows) * _MANY_SEGMENTS < rows), None)
        if link is None:
            return None
        kind, other = definition.schema.field(link.left_column).type, parts[link.right]
        known, name = groups[link.right], link.right_column
        found = None if other.relation in self._met else self.binder.values(other, known, name)
        if found is None:
            column = quote_name(name)
            sql = f"SELECT {column} FROM {quote_name(other.relation)} WHERE {column} IS NOT NULL"
            found = self.desk.cursor.sql(sql).to_arrow_table().column(0).combine_chunks()
        if not found.type.equals(kind) or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            return None
        return link.left_column, make_mask(found)

    def _ranges(
        self, part: PlanPart, links: Sequence[JoinLink], parts: Mapping[int, PlanPart], most: int
    ) -> list[KeyRange] | None:
        definition = part.definition
        assert definition is not None
        columns = ", ".join(quote_name(link.right_column) for link in links)
        wanted = " AND ".join(f"{quote_name(link.right_column)} IS NOT NULL" for link in links)
        relation = quote_name(parts[links[0].right].relation)
        sql = f"SELECT DISTINCT {columns} FROM {relation} WHERE {wanted} LIMIT {most + 1}"
        values = self.desk.cursor.sql(sql).to_arrow_table()
        if values.num_rows > most:
            return None
        return encode_partner_ranges(definition, values.columns)

    # -- duplicates ----------------------------------------------------------------------------------------------------

    def _distinct(self) -> Iterator[pa.RecordBatch]:
        """One row for each value and stretch of time: what extends the life of a value begins where the last one ends.

        A value that comes again before its row has ended needs a second row only from then on. That row is stored ahead
        of the clock, and no query sees it before its time: at each instant a value has exactly one live row.
        """
        found, plan = _RESULTS, self.plan
        for at, sql in enumerate(self._terms()):
            if at == 0:
                self._keep(found, sql)
            else:
                self.desk.cursor.execute(f"INSERT INTO {quote_name(found)} {sql}")
        if found not in self._temporary:
            return
        begins, ends = quote_name(plan.begins), quote_name(plan.ends)
        described = self.desk.cursor.execute(f"DESCRIBE {quote_name(found)}").fetchall()
        columns = [str(column[0]) for column in described][2:]
        names = ", ".join(quote_name(name) for name in columns)
        newest = f"SELECT max(row({ends}, {begins})) AS life, {names} FROM {quote_name(found)} GROUP BY {names}"
        same = " AND ".join(f"n.{quote_name(name)} IS NOT DISTINCT FROM k.{quote_name(name)}" for name in columns)
        yield from self._run(
            f"SELECT greatest(n.life[2], coalesce(k.upto, n.life[2])) AS {begins}, n.life[1] AS {ends}, "
            f"{', '.join(f'n.{quote_name(name)}' for name in columns)} "
            f"FROM ({newest}) n LEFT JOIN ({self._known_values(columns)}) k ON {same} "
            f"WHERE k.upto IS NULL OR n.life[1] > k.upto"
        )

    def _known_values(self, columns: Sequence[str]) -> str:
        """Until when the view has a row of each value."""
        own, moment = self.given.own, self.given.moment
        names = ", ".join(quote_name(name) for name in columns)
        live = () if own is None else tuple(s for s in own.segments if s.max_exp > moment.now)
        if own is None or not live:
            return f"SELECT {names}, 0::BIGINT AS upto FROM {quote_name(_RESULTS)} WHERE false"
        schema, model = own.definition.schema, own.definition.model
        name = "_v own"
        self.binder.columns(name, own.definition, live, None)
        upto = ends_sql(model, schema, None)
        return (
            f"SELECT {names}, max({upto}) AS upto FROM {quote_name(name)} WHERE {upto} > {moment.now} GROUP BY {names}"
        )
