"""New results of a view from new rows of its inputs, by DuckDB (see docs/references.md, [1], algorithms 4 and 5).

For each input in turn, its new rows are joined with all rows of the inputs before it and with the known rows of those
behind it, so that each combination is found once: when the last of its parts has come. A result begins with its last
part and ends with its first; it counts if it lives now, or with restore semantics if it lived since the last update.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    MANY_PARTNER_ROWS,
    MAX_LOOKUP_KEYS,
    MAX_REPEATS,
    Mask,
    encode_partner_ranges,
    make_mask,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.queries.views.plan import JoinLink, PlanBranch, PlanPart, Prune, ViewPlan
from windrow.reference_tables import ALWAYS, NEVER
from windrow.store import Store

BATCH_ROWS = 100_000
_RESULTS, _LONGER = "_v results", "_v longer"
_UNSUPPORTED_TYPES = {"UHUGEINT", "BIT", "BIGNUM"}
"""Types that would change when they are read back from a file."""


@dataclass(frozen=True)
class UpdateInputs:
    """All that an update of a view reads.

    Args:
        name: Of the view.
        plan: Of the view.
        interval: Of the update.
        inputs: The input streams, by name.
        positions: How far the view has read each of them, by name.
        tables: The tables, by name.
        rates: What is known of the streams, by part; for the order of joins.
        previous: The view itself as it was before, where duplicates are eliminated.
        pending: See `ViewInput.pending`.
        versions: Of tables, oldest first, each with the time after which rows meet it.
    """

    name: str
    plan: ViewPlan
    interval: UpdateInterval
    inputs: Mapping[str, InputState]
    positions: Mapping[str, InputPosition]
    tables: Mapping[str, TableEntry]
    rates: Mapping[int, InputRate] = field(default_factory=dict)
    previous: InputState | None = None
    pending: int | None = None
    versions: Mapping[str, Sequence[tuple[int, TableEntry]]] = field(default_factory=dict)


@contextlib.contextmanager
def translating_errors(
    name: str, advice: str = "make its statement accept every row (TRY_CAST, CASE), or drop the view"
) -> Iterator[None]:
    """Turn errors of DuckDB and Arrow into a `ViewError` with advice."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        message = instance.read_error_message(error)
        raise ViewError(f"view {name!r} cannot be computed ({message}), so nothing was changed; {advice}") from None


def describe_columns(
    store: Store, name: str, plan: ViewPlan, tables: Mapping[str, TableEntry], sql: str | None = None
) -> pa.Schema:
    """The columns that the plan's SQL gives, or another statement over the same relations."""
    interval = UpdateInterval(None, 0, 0)
    pooled = cursor_pool.take_cursor(store)
    try:
        with translating_errors(name, "check the names and types in its statement"):
            binder = RelationBinder(store, pooled, interval)
            register_empty_parts(store, pooled, binder, plan, tables)
            reader, types = arrow_source.run_streaming(
                pooled.cursor, f"SELECT * FROM ({sql or plan.sql}\n) LIMIT 0", None, BATCH_ROWS
            )
            schema = reader.schema
            reader.read_all()
        for column, kind in zip(schema.names, types, strict=True):
            if kind in _UNSUPPORTED_TYPES:
                raise ViewError(f"view {name!r}: column {column!r} is of type {kind}; cast it to another")
        return schema
    finally:
        pooled.release(reusable=False)


def register_empty_parts(
    store: Store, pooled: PooledCursor, binder: RelationBinder, plan: ViewPlan, tables: Mapping[str, TableEntry]
) -> None:
    """Register all relations of a plan without rows of streams, to ask DuckDB for names and types."""
    for part in plan.parts:
        _register_empty(store, pooled, binder, plan, part, tables)


def _register_empty(
    store: Store,
    pooled: PooledCursor,
    binder: RelationBinder,
    plan: ViewPlan,
    part: PlanPart,
    tables: Mapping[str, TableEntry],
) -> None:
    if part.definition is None:
        pooled.create_view(part.relation, table_sql(store.root, tables[part.name], store.reader))
    else:
        binder.register_part(part, part.definition, (), None if plan.recompute else plan.time_columns(part))


def are_joined(branch: PlanBranch, number: int, reached: set[int]) -> bool:
    """Whether a part is compared with one that was reached."""
    return any(
        (link.left == number and link.right in reached) or (link.right == number and link.left in reached)
        for link in branch.links
    )


class SqlUpdate:
    """One update of one view.

    Args:
        store: The warehouse.
        update: What it reads.
    """

    def __init__(self, store: Store, update: UpdateInputs) -> None:
        self.store = store
        self.update = update
        self.plan = update.plan
        self.pooled = cursor_pool.take_cursor(store)
        self.binder = RelationBinder(store, self.pooled, update.interval)
        self.distinct: dict[int, dict[str, float]] = {}
        """How many values the joined columns of new rows have, by part; filled where the order of joins matters."""
        self.pending = update.pending
        """As it is after the update."""
        self._temporary: list[str] = []
        self._reduced_relations: set[str] = set()
        """Relations that have fewer rows than their segments."""

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """New results: when they begin and end in microseconds, then their columns."""
        reusable = False
        with translating_errors(self.update.name):
            try:
                if self.plan.recompute:
                    yield from self._recompute()
                elif self.plan.distinct:
                    yield from self._eliminate_duplicates()
                else:
                    for sql in self._prepare_terms():
                        yield from self._run(sql)
                for name in self._temporary:
                    self.pooled.cursor.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
                reusable = True
            finally:
                self.pooled.release(reusable=reusable)

    def _run(self, sql: str) -> Iterator[pa.RecordBatch]:
        reader, _ = arrow_source.run_streaming(self.pooled.cursor, sql, None, BATCH_ROWS)
        yield from reader

    def _store_temporary(self, name: str, sql: str) -> int:
        """Store the rows of a query as a temporary table until the update is over; returns how many they are."""
        self.pooled.cursor.execute(f"CREATE OR REPLACE TEMP TABLE {quote_name(name)} AS {sql}")
        if name not in self._temporary:
            self._temporary.append(name)
        return int(self._fetch_row(f"SELECT count(*) FROM {quote_name(name)}")[0])

    def _fetch_row(self, sql: str) -> Any:
        """The only row of a query; all is fetched, so that the connection is free again."""
        return self.pooled.cursor.execute(sql).fetchall()[0]

    # -- from scratch --------------------------------------------------------------------------------------------------

    def _recompute(self) -> Iterator[pa.RecordBatch]:
        for part in self.plan.parts:
            if part.definition is None:
                self._register_table(part)
            else:
                state = self.update.inputs[part.name]
                self.binder.register_part(
                    part, state.definition, self.binder.find_groups(part, state, InputPosition(0, None), ALL), None
                )
        yield from self._run(f"SELECT * FROM ({self.plan.sql}\n)")

    def _register_table(self, part: PlanPart, time: int | None = None) -> None:
        """Register the version of a table that rows meet right after `time`; by default the one that was put last."""
        entry = self.update.tables[part.name]
        if time is not None:
            entry = next(version for since, version in reversed(self.update.versions[part.name]) if since <= time)
        self.pooled.create_view(part.relation, table_sql(self.store.root, entry, self.store.reader))

    # -- from new rows -------------------------------------------------------------------------------------------------

    def _prepare_terms(self, *, whole: bool = False) -> Iterator[str]:
        """For each input with new rows, the query for their results; its relations are registered when it is given.

        With `whole`, all rows count as new.
        """
        plan, interval = self.plan, self.update.interval
        alive = f"{quote_name(plan.begins)} < {quote_name(plan.ends)} AND {quote_name(plan.ends)} > {interval.floor}"
        for branch in plan.branches:
            for part in plan.parts:
                if part not in branch.parts:
                    _register_empty(self.store, self.pooled, self.binder, plan, part, self.update.tables)
            tables = [part for part in branch.parts if part.definition is None]
            for after, upto in self._find_stretches(branch, tables, whole=whole):
                for part in tables:
                    self._register_table(part, after)
                of_time = "" if after in (None, NEVER) else f" AND {quote_name(plan.begins)} > {after}"
                of_time += "" if upto is None else f" AND {quote_name(plan.begins)} <= {upto}"
                for seed in branch.streams[:1] if whole else branch.streams:
                    if self._register_term(branch, seed, whole=whole):
                        yield f"SELECT * FROM ({plan.sql}\n) WHERE {alive}{of_time}"

    def _find_stretches(
        self, branch: PlanBranch, tables: Sequence[PlanPart], *, whole: bool
    ) -> list[tuple[int | None, int | None]]:
        """The stretches of time, in which new results can begin, in each of which they meet the same versions."""
        starts = sorted({since for part in tables for since, _ in self.update.versions[part.name]})
        if len(starts) < 2:
            return [(next(iter(starts), None), None)]
        new = [
            segment.min_ts
            for part in branch.streams
            for group in self.binder.find_groups(
                part, self.update.inputs[part.name], self.update.positions[part.name], ALL if whole else NEW
            )
            for segment in group.segments
        ]
        stretches = zip(starts, [*starts[1:], None], strict=True)
        first, now = min(new, default=ALWAYS), self.update.interval.now
        return [(after, upto) for after, upto in stretches if after < now and (upto is None or upto >= first)]

    def _register_term(self, branch: PlanBranch, seed: PlanPart, *, whole: bool = False) -> bool:
        """Register the new rows of one input and the rows that they can join; False if there are none."""
        numbers = [part.number for part in branch.streams]
        groups: dict[int, list[SegmentGroup]] = {}
        for part in branch.streams:
            before = numbers.index(part.number) < numbers.index(seed.number)
            which = ALL if before or whole else NEW if part is seed else KNOWN
            state = self.update.inputs[part.name]
            groups[part.number] = self.binder.find_groups(part, state, self.update.positions[part.name], which)
            if not groups[part.number]:
                return False
        by_number = {part.number: part for part in branch.parts}
        self._reduced_relations.clear()
        rows = {seed.number: self._register(seed, groups[seed.number])}
        if len(numbers) > 2:
            self._count_values(branch, seed)
        bound = {seed.number} | {part.number for part in branch.parts if part.definition is None}
        order = self._choose_order(branch, seed)
        for number in order:
            part = by_number[number]
            links = [link.from_part(number) for link in branch.links if number in (link.left, link.right)]
            links = [link for link in links if link.right in bound]
            segments = [segment for group in groups[number] for segment in group.segments]
            prune = self._choose_ranges(part, links, by_number, segments, rows)
            value_filter = (
                None if prune is not None else self._choose_values(part, links, by_number, segments, rows, groups)
            )
            self._register(part, groups[number], prune, value_filter)
            if number != order[-1]:
                rows[number] = self._reduce_part(part, links, by_number)
                if not rows[number]:
                    return False
            bound.add(number)
        return True

    def _register(
        self,
        part: PlanPart,
        groups: Sequence[SegmentGroup],
        prune: Prune | None = None,
        value_filter: tuple[str, Mask] | None = None,
    ) -> int:
        state = self.update.inputs[part.name]
        return self.binder.register_part(
            part, state.definition, groups, self.plan.time_columns(part), prune, value_filter
        )

    def _choose_order(self, branch: PlanBranch, seed: PlanPart) -> tuple[int, ...]:
        """The order in which partners are joined: by rates, windows and numbers of values."""
        return join_order.choose_partner_order(
            seed.number,
            [part.number for part in branch.streams],
            self.update.rates,
            partial(are_joined, branch),
        )

    def _reduce_part(self, part: PlanPart, links: Sequence[JoinLink], parts: Mapping[int, PlanPart]) -> int:
        """Keep only rows that have a partner among the relations bound so far; returns how many they are."""
        conditions = [
            f"{quote_name(link.left_column)} IN (SELECT {quote_name(link.right_column)} "
            f"FROM {quote_name(parts[link.right].relation)})"
            for link in links
        ]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        name = f"{part.relation} met"
        row_count = self._store_temporary(name, f"SELECT * FROM {quote_name(part.relation)}{where}")
        self.pooled.create_view(part.relation, f"SELECT * FROM {quote_name(name)}")
        self._reduced_relations.add(part.relation)
        return row_count

    def _count_values(self, branch: PlanBranch, seed: PlanPart) -> None:
        """Count rows and values of what is new, for the next time that an order is chosen."""
        links = [link.from_part(seed.number) for link in branch.links if seed.number in (link.left, link.right)]
        columns = sorted({link.left_column for link in links})
        counts = ", ".join(f"approx_count_distinct({quote_name(column)})" for column in columns) or "0"
        row = self._fetch_row(f"SELECT {counts} FROM {quote_name(seed.relation)}")
        self.distinct[seed.number] = {column: float(value) for column, value in zip(columns, row, strict=False)}

    # -- the directories of partners -----------------------------------------------------------------------------------

    def _choose_ranges(
        self,
        part: PlanPart,
        links: Sequence[JoinLink],
        parts: Mapping[int, PlanPart],
        segments: Sequence[Segment],
        row_counts: Mapping[int, int],
    ) -> Prune | None:
        """Which rows of a partner can match, by its search key and the values that are bound."""
        definition = part.definition
        assert definition is not None
        by_column: dict[str, JoinLink] = {}
        for link in links:
            by_column.setdefault(link.left_column, link)
        chosen: list[JoinLink] = []
        for column in definition.key:
            key_link = by_column.get(column)
            if key_link is None or (chosen and key_link.right != chosen[0].right):
                break
            chosen.append(key_link)
        max_keys = max_lookup_keys(segments)
        if not chosen or row_counts.get(chosen[0].right, 0) > MAX_REPEATS * max_keys:
            return None
        ranges = self._find_ranges(part, chosen, parts, min(max_keys, MAX_LOOKUP_KEYS)) if max_keys else None
        return None if ranges is None else prune_by_directory(self.store, definition, ranges)

    def _choose_values(
        self,
        part: PlanPart,
        links: Sequence[JoinLink],
        parts: Mapping[int, PlanPart],
        segments: Sequence[Segment],
        row_counts: Mapping[int, int],
        groups: Mapping[int, Sequence[SegmentGroup]],
    ) -> tuple[str, Mask] | None:
        """Which values of a joined column can match, where a large partner is joined with few rows."""
        definition = part.definition
        assert definition is not None
        rows = sum(segment.rows for segment in segments)
        link = next((link for link in links if row_counts.get(link.right, rows) * MANY_PARTNER_ROWS < rows), None)
        if link is None:
            return None
        kind, other = definition.schema.field(link.left_column).type, parts[link.right]
        partner_groups, name = groups[link.right], link.right_column
        values = None if other.relation in self._reduced_relations else self.binder.values(other, partner_groups, name)
        if values is None:
            column = quote_name(name)
            sql = f"SELECT {column} FROM {quote_name(other.relation)} WHERE {column} IS NOT NULL"
            values = self.pooled.cursor.sql(sql).to_arrow_table().column(0).combine_chunks()
        if not values.type.equals(kind) or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            return None
        return link.left_column, make_mask(values)

    def _find_ranges(
        self, part: PlanPart, links: Sequence[JoinLink], parts: Mapping[int, PlanPart], max_keys: int
    ) -> list[KeyRange] | None:
        definition = part.definition
        assert definition is not None
        columns = ", ".join(quote_name(link.right_column) for link in links)
        not_null = " AND ".join(f"{quote_name(link.right_column)} IS NOT NULL" for link in links)
        relation = quote_name(parts[links[0].right].relation)
        sql = f"SELECT DISTINCT {columns} FROM {relation} WHERE {not_null} LIMIT {max_keys + 1}"
        values = self.pooled.cursor.sql(sql).to_arrow_table()
        if values.num_rows > max_keys:
            return None
        return encode_partner_ranges(definition, values.columns)

    # -- duplicates ----------------------------------------------------------------------------------------------------

    def _eliminate_duplicates(self) -> Iterator[pa.RecordBatch]:
        """One row for each value and stretch of time: what extends the life of a value begins where the last one ends.

        A value that comes again before its row has ended needs a second row only from then on. That row is stored ahead
        of the clock, and no query sees it before its time: at each instant a value has exactly one live row. It is not
        stored before half of what is left of the value's life has a row, so that a value that comes in every slot has a
        few rows and not one for each slot. What was put off is found again in the inputs, all of them at once, before
        the first value would end that lives on.
        """
        interval, results, plan = self.update.interval, _RESULTS, self.plan
        step, horizon = self._find_spans()
        whole = self.update.pending is not None and self.update.pending <= interval.now + step
        self.pending = None if whole else self.update.pending
        for number, sql in enumerate(self._prepare_terms(whole=whole)):
            if number == 0:
                self._store_temporary(results, sql)
            else:
                self.pooled.cursor.execute(f"INSERT INTO {quote_name(results)} {sql}")
        if results not in self._temporary:
            return
        begins, ends = quote_name(plan.begins), quote_name(plan.ends)
        described = self.pooled.cursor.execute(f"DESCRIBE {quote_name(results)}").fetchall()
        columns = [str(column[0]) for column in described][2:]
        names = ", ".join(quote_name(name) for name in columns)
        newest = f"SELECT max(row({ends}, {begins})) AS life, {names} FROM {quote_name(results)} GROUP BY {names}"
        same = " AND ".join(f"n.{quote_name(name)} IS NOT DISTINCT FROM k.{quote_name(name)}" for name in columns)
        self._store_temporary(
            _LONGER,
            f"SELECT k.upto AS upto, greatest(n.life[2], coalesce(k.upto, n.life[2])) AS {begins}, "
            f"n.life[1] AS {ends}, {', '.join(f'n.{quote_name(name)}' for name in columns)} "
            f"FROM ({newest}) n LEFT JOIN ({self._stored_values_sql(columns)}) k ON {same} "
            f"WHERE k.upto IS NULL OR n.life[1] > k.upto",
        )
        soon = f"greatest(({ends} - {interval.now}) // 2, {step + horizon // 8})"
        due = f"coalesce(upto - {interval.now} <= {soon}, true)"
        (put_off,) = self._fetch_row(f"SELECT min(upto) FROM {quote_name(_LONGER)} WHERE NOT {due}")
        self.pending = min((time for time in (self.pending, put_off) if time is not None), default=None)
        yield from self._run(f"SELECT {begins}, {ends}, {names} FROM {quote_name(_LONGER)} WHERE {due}")

    def _find_spans(self) -> tuple[int, int]:
        """The view's slide, and how long its rows may live."""
        if self.update.previous is None:
            return 0, 0
        definition = self.update.previous.definition
        return definition.slide, definition.longest_life or 0

    def _stored_values_sql(self, columns: Sequence[str]) -> str:
        """Until when the view has a row of each value."""
        previous, interval = self.update.previous, self.update.interval
        names = ", ".join(quote_name(name) for name in columns)
        live = () if previous is None else tuple(s for s in previous.segments if s.max_exp > interval.now)
        if previous is None or not live:
            return f"SELECT {names}, 0::BIGINT AS upto FROM {quote_name(_RESULTS)} WHERE false"
        schema, model = previous.definition.schema, previous.definition.model
        name = "_v own"
        self.binder.columns(name, previous.definition, live, None)
        ends = ends_sql(model, schema, None)
        live_rows = f"{quote_name(name)} WHERE {ends} > {interval.now}"
        return f"SELECT {names}, max({ends}) AS upto FROM {live_rows} GROUP BY {names}"
