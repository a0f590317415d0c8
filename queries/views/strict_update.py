"""Updates of strict views from new rows: what was in the result for the rows that changed, and what is now.

A strict view that is divided into partitions (see `partitions.py`) is computed twice at a slide, for the partitions
alone of which rows came, ended before their time, or ended where that brings other results: as of its last slide and as
of this one. What is only in the first has ended and is found again in the view's own segments, what is only in the
second has come. So no row need say why it is there, and late rows, lagging inputs and views of views are no special
cases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.column_cache import SegmentRanges, list_rows
from windrow.indexes.end_overrides import find_ended_rows, read_ends
from windrow.indexes.row_model import NEVER, Int64s, to_microseconds
from windrow.indexes.segments import Segment
from windrow.queries.engine import arrow_source, cursor_pool
from windrow.queries.engine.types import quote_name
from windrow.queries.sql import parse_tree
from windrow.queries.views.delta_sql import BATCH_ROWS, UpdateInputs, translating_errors
from windrow.queries.views.inputs import (
    ALL,
    KNOWN,
    NEW,
    InputState,
    RelationBinder,
    SegmentGroup,
    UpdateInterval,
)
from windrow.queries.views.partner_filter import (
    MANY_PARTNER_ROWS,
    MAX_LOOKUP_KEYS,
    Mask,
    encode_partner_ranges,
    make_mask,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.queries.views.plan import Partition, PlanPart, Prune
from windrow.queries.views.storage import RowEnding, group_endings, match_copies
from windrow.store import Store

_KEYS, _CHANGES = "_v keys", "_v changes"
_STATE, _OWNER = "_v state", "_v part"
_ENDED, _STAYS, _NEW = 0, 1, 2
"""Rows of an input that an override has ended since the last update; that were there; that have come."""
_CAME = f'"{_STATE}" = {_NEW}'
_SEGMENT, _ROW = "_v segment", "_v row"
_COPIES, _COPY = "_v copies", "_v copy"


@dataclass(frozen=True)
class _Rows:
    """Rows of a part at an update: its relation, and how many there are at most."""

    part: PlanPart
    groups: Sequence[SegmentGroup]
    binder: RelationBinder
    prune: Prune | None = None


class StrictUpdate:
    """One update of one strict view.

    Args:
        store: The warehouse.
        update: What it reads.
    """

    def __init__(self, store: Store, update: UpdateInputs) -> None:
        assert update.plan.partition is not None
        self.store, self.update, self.plan = store, update, update.plan
        self.partition: Partition = update.plan.partition
        self.pooled = cursor_pool.take_cursor(store)
        self.distinct: dict[int, dict[str, float]] = {}
        """As in `SqlUpdate`; nothing is counted here."""
        self.pending: int | None = None
        """No duplicates are eliminated here."""
        self._changes: str | None = None
        self._temporary: list[str] = []

    def find_endings(self) -> list[RowEnding]:
        """Rows of the view that have ended before their time; to be called before `compute_results`."""
        try:
            with translating_errors(self.update.name):
                if self.update.interval.before is None:
                    self._register_whole()
                    self._changes = f"SELECT * FROM ({self.plan.sql}\n)"
                    return []
                if not self._store_changed_rows():
                    return []
                self._store_changes()
                self._changes = f"SELECT * EXCLUDE ({quote_name(_STATE)}) FROM {quote_name(_CHANGES)} WHERE {_CAME}"
                return self._find_ended()
        except BaseException:
            self.pooled.release(reusable=False)
            raise

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """Results that have come: when they begin and end in microseconds, then their columns."""
        reusable = False
        try:
            with translating_errors(self.update.name):
                if self._changes is not None:
                    reader, _ = arrow_source.run_streaming(self.pooled.cursor, self._changes, None, BATCH_ROWS)
                    yield from reader
                for name in self._temporary:
                    self.pooled.cursor.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
            reusable = True
        finally:
            self.pooled.release(reusable=reusable)

    # -- the rows that matter ------------------------------------------------------------------------------------------

    def _state(self, part: PlanPart) -> InputState:
        return self.update.inputs[part.name]

    def _register_whole(self) -> None:
        """All rows that live now."""
        now = self.update.interval.now
        binder = RelationBinder(self.store, self.pooled, UpdateInterval(None, now, now))
        for part in self.plan.parts:
            state, position = self._state(part), self.update.positions[part.name]
            groups = binder.find_groups(part, state, position, ALL)
            binder.register_part(part, state.definition, groups, self.plan.time_columns(part))

    def _store_changed_rows(self) -> bool:
        """Put the rows of the changed partitions into a temporary table for each part; False if nothing changed."""
        before, now = self.update.interval.before, self.update.interval.now
        assert before is not None
        then = UpdateInterval(before, before, before)
        came = RelationBinder(self.store, self.pooled, UpdateInterval(before, now, now))
        stays, ended = (RelationBinder(self.store, self.pooled, then, ended_by=by) for by in (now, before))
        earlier_rows = {}
        for part in self.plan.parts:
            state, position = self._state(part), self.update.positions[part.name]
            groups = stays.find_groups(part, state, position, KNOWN)
            earlier_rows[part.number] = _Rows(part, groups, stays)
            self._create_table(_Rows(part, came.find_groups(part, state, position, NEW), came))
            ended_groups = [g for g in (_keep_ended(group, before, now) for group in groups) if g is not None]
            if ended_groups:
                self._insert(part, _ENDED, self._register(_Rows(part, ended_groups, ended, _pick_ended(before, now))))
        if not self._store_keys(earlier_rows):
            return False
        for part in self.plan.parts:
            self._insert_known(earlier_rows[part.number])
        return True

    def _columns(self, part: PlanPart, definition: StreamDefinition) -> list[str]:
        """The columns that the statement may read."""
        names = definition.schema.names
        named = {name.lower() for name in self.partition.columns[part.number]}
        for visit in parse_tree.walk(self.plan.statement.tree):
            if visit.node.get("class") == "STAR" and visit.node["relation_name"].lower() in ("", part.alias.lower()):
                return list(names)
            path = [str(name).lower() for name in visit.node.get("column_names") or ()]
            if path and (len(path) != 2 or path[0] == part.alias.lower()):
                named.update(path)  # what is longer may be a field of a column
            named.update(name.lower() for name in visit.node.get("using_columns") or ())
        return [name for name in names if name.lower() in named]

    def _table(self, part: PlanPart) -> str:
        return f"{part.relation} rows"

    def _create_table(self, rows: _Rows) -> None:
        """Begin a part's table with its new rows."""
        part, relation = rows.part, self._register(rows)
        state = f"{_NEW}::TINYINT AS {quote_name(_STATE)}"
        self._store(self._table(part), f"SELECT {self._shown(part)}, {state} FROM {quote_name(relation)}")

    def _shown(self, part: PlanPart) -> str:
        columns = self._columns(part, self._state(part).definition)
        return ", ".join(map(quote_name, [*columns, *self.plan.time_columns(part)]))

    def _register(self, rows: _Rows, value_filter: tuple[str, Mask] | None = None, prune: Prune | None = None) -> str:
        """Give rows of a part a name of their own."""
        named = replace(rows.part, relation=f"{rows.part.relation} all")
        definition, hidden = self._state(rows.part).definition, self.plan.time_columns(rows.part)
        rows.binder.register_part(named, definition, rows.groups, hidden, rows.prune or prune, value_filter)
        return named.relation

    def _insert(self, part: PlanPart, state: int, relation: str, condition: str = "") -> None:
        source = f"{quote_name(relation)} s {condition}"
        self._run(f"INSERT INTO {quote_name(self._table(part))} SELECT {self._shown(part)}, {state} FROM {source}")

    def _store_keys(self, earlier_rows: dict[int, _Rows]) -> int:
        """Which partitions have changed, and by which part; returns how many."""
        now, selects = self.update.interval.now, []
        for part in self.plan.parts:
            columns = self._key_columns(part)
            selects.append(
                f"SELECT {part.number} AS {quote_name(_OWNER)}, {columns} FROM {quote_name(self._table(part))}"
            )
        self._store(_KEYS, f"SELECT DISTINCT * FROM ({' UNION ALL '.join(selects)})")
        for part in self.plan.parts:
            if part.number not in self.partition.watched:
                continue
            rows = earlier_rows[part.number]
            groups = [g for g in (_keep_expiring(group, part, now) for group in rows.groups) if g is not None]
            if groups:
                relation = self._register(_Rows(part, groups, rows.binder))
                ends = quote_name(self.plan.time_columns(part)[1])
                self._run(
                    f"INSERT INTO {quote_name(_KEYS)} SELECT DISTINCT {part.number}, {self._key_columns(part)} "
                    f"FROM {quote_name(relation)} WHERE {ends} <= {now}"
                )
        return self._count(quote_name(_KEYS))

    def _key_columns(self, part: PlanPart) -> str:
        columns = self.partition.columns[part.number]
        return ", ".join(f"{quote_name(column)} AS c{position}" for position, column in enumerate(columns))

    def _insert_known(self, rows: _Rows) -> None:
        """Add the known rows of the changed partitions to a part's table."""
        part = rows.part
        # What a new row of such a part does has nothing to do with the others of that part.
        others = f" WHERE {quote_name(_OWNER)} <> {part.number}" if part.number in self.partition.alone else ""
        columns = self.partition.columns[part.number]
        keys = f"(SELECT DISTINCT {', '.join(f'c{n}' for n in range(len(columns)))} FROM {quote_name(_KEYS)}{others})"
        count = self._count(keys)
        if not count or not rows.groups:
            return
        relation = self._register(rows, *self._narrow(part, rows, keys, count))
        same = " AND ".join(f"s.{quote_name(column)} IS NOT DISTINCT FROM k.c{n}" for n, column in enumerate(columns))
        self._insert(part, _STAYS, relation, f"SEMI JOIN {keys} k ON {same}")

    def _narrow(
        self, part: PlanPart, rows: _Rows, keys: str, count: int
    ) -> tuple[tuple[str, Mask] | None, Prune | None]:
        """How known rows of some partitions are found: by the values of a column, or by the directories."""
        columns, definition = self.partition.columns[part.number], self._state(part).definition
        segments = [segment for group in rows.groups for segment in group.segments]
        values = self.pooled.cursor.sql(f"FROM {keys}").to_arrow_table()
        searched, prune = list(takewhile(columns.__contains__, definition.key)), None
        if searched and count <= min(max_lookup_keys(segments), MAX_LOOKUP_KEYS):
            picked = [values.column(f"c{columns.index(column)}") for column in searched]
            ranges = encode_partner_ranges(definition, picked)
            prune = None if ranges is None else prune_by_directory(self.store, definition, ranges)
        if count * MANY_PARTNER_ROWS < sum(segment.rows for segment in segments):
            for position, column in enumerate(columns):
                kind, of_key = definition.schema.field(column).type, values.column(f"c{position}").combine_chunks()
                if of_key.type.equals(kind) and not of_key.null_count and _can_filter(kind):
                    return (column, make_mask(of_key)), prune
        return None, prune

    # -- results -------------------------------------------------------------------------------------------------------

    def _store_changes(self) -> None:
        """The results of the changed partitions that only the last update had, and those that only this one has."""
        now, answers = self.update.interval.now, []
        for there in (f"{{state}} <> {_NEW}", f"{{state}} <> {_ENDED} AND {{ends}} > {now}"):
            inputs = []
            for part in self.plan.parts:
                where = there.format(state=quote_name(_STATE), ends=quote_name(self.plan.time_columns(part)[1]))
                rows = f"SELECT {self._shown(part)} FROM {quote_name(self._table(part))} WHERE {where}"
                inputs.append(f"{quote_name(part.relation)} AS ({rows})")
            answers.append(f"(WITH {', '.join(inputs)} SELECT * FROM ({self.plan.sql}\n))")
        before, after = answers
        state, copies = quote_name(_STATE), quote_name(_COPIES)
        # One aggregate counts the copies on both sides; EXCEPT ALL would number them by a window function, twice.
        self._store(
            _CHANGES,
            f"WITH net AS (SELECT * EXCLUDE ({copies}), sum({copies})::BIGINT AS {copies} "
            f"FROM (SELECT 1 AS {copies}, * FROM {after} UNION ALL SELECT -1, * FROM {before}) GROUP BY ALL) "
            f"SELECT if({copies} > 0, {_NEW}, {_ENDED})::TINYINT AS {state}, * EXCLUDE ({copies}, {quote_name(_COPY)}) "
            f"FROM (SELECT *, unnest(range(abs({copies}))) AS {quote_name(_COPY)} FROM net WHERE {copies} <> 0) "
            f"WHERE {copies} > 0 OR {quote_name(self.plan.ends)} > {now}",
        )

    def _find_ended(self) -> list[RowEnding]:
        """Find the results that are no more among the view's rows."""
        previous, now = self.update.previous, self.update.interval.now
        assert previous is not None
        gone = self.pooled.cursor.sql(f"FROM {quote_name(_CHANGES)} WHERE NOT {_CAME}").to_arrow_table()
        if not gone.num_rows:
            return []
        definition, model = previous.definition, previous.definition.model
        names = [n for n in definition.schema.names if n not in (definition.time, definition.expires)]
        stored = _StoredRows(self.store, previous, now).find(gone)
        begins, _ = to_microseconds(stored.column(definition.time))
        ends, _ = model.expiries(stored, begins)
        names_compared = [*names, self.plan.begins, self.plan.ends]
        plain = [_plain(stored.column(name)) for name in names]
        columns = pa.table([*plain, to_arrow(begins), to_arrow(ends)], names_compared)
        matches = match_copies(columns, gone.select(names_compared).cast(columns.schema))[0]
        segments = stored.column(_SEGMENT).to_numpy()[matches]
        rows, old_ends = stored.column(_ROW).to_numpy()[matches], np.minimum(ends[matches], NEVER)
        return group_endings(segments, rows, old_ends, now)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _run(self, sql: str) -> None:
        self.pooled.cursor.execute(sql)

    def _store(self, name: str, sql: str) -> None:
        """Keep the rows of a query until the update is over."""
        self._run(f"CREATE OR REPLACE TEMP TABLE {quote_name(name)} AS {sql}")
        self._temporary.append(name)

    def _count(self, relation: str) -> int:
        return int(self.pooled.cursor.execute(f"SELECT count(*) FROM {relation}").fetchall()[0][0])


class _StoredRows:
    """The rows of the view itself, found by its search key."""

    def __init__(self, store: Store, view: InputState, now: int) -> None:
        self._store, self._view, self._now = store, view, now

    def find(self, wanted: pa.Table) -> pa.Table:
        """The live rows that may be among `wanted`, with the segment and the row in its file."""
        definition = self._view.definition
        segments = [segment for segment in self._view.segments if segment.max_exp > self._now]
        ranges = self._choose_rows(segments, wanted)
        chosen = [segment for segment in segments if len(ranges[segment.id][0])]
        full = definition.stored_schema
        batches = list(self._store.columns.read_batches(chosen, definition.schema, full, ranges))
        rows = pa.Table.from_batches(batches, definition.schema)
        places = [list_rows(*ranges[segment.id]) for segment in chosen]
        numbers = np.repeat(np.array([segment.id for segment in chosen], np.int64), list(map(len, places)))
        place = np.concatenate(places) if places else np.empty(0, np.int64)
        return rows.append_column(_SEGMENT, to_arrow(numbers)).append_column(_ROW, to_arrow(place))

    def _choose_rows(self, segments: Sequence[Segment], wanted: pa.Table) -> dict[int, tuple[Int64s, Int64s]]:
        """Ranges of rows by segment, without those that have ended already."""
        definition = self._view.definition
        values = [_plain(wanted.column(name)) for name in definition.key]
        ranges: SegmentRanges | None = None
        if definition.key and wanted.num_rows <= min(max_lookup_keys(segments), MAX_LOOKUP_KEYS):
            keys = pa.table(values, list(definition.key)).group_by(list(definition.key)).aggregate([])
            encoded = encode_partner_ranges(definition, keys.columns)
            pruned = None if encoded is None else prune_by_directory(self._store, definition, encoded)(segments)
            ranges = None if pruned is None else pruned[1]
        if definition.key and ranges is None:
            kind, of_key = definition.schema.field(definition.key[0]).type, values[0].combine_chunks()
            if of_key.type.equals(kind) and not of_key.null_count and _can_filter(kind):
                ranges = self._filter(segments, definition.schema.field(definition.key[0]), make_mask(of_key))
        if ranges is None:
            ranges = {s.id: (np.array([s.start]), np.array([s.stop])) for s in segments}
        nothing = np.empty(0, np.int64), np.empty(0, np.int64)
        return {segment.id: _without_ended(segment, *ranges.get(segment.id, nothing)) for segment in segments}

    def _filter(self, segments: Sequence[Segment], field: pa.Field, mask: Mask) -> SegmentRanges:
        """The rows whose first key column has one of some values."""
        full = self._view.definition.stored_schema
        columns = self._store.columns.read_column(segments, field, full)
        rows = {s.id: mask(column) + s.start for s, column in zip(segments, columns, strict=True)}
        return {number: (places, places + 1) for number, places in rows.items()}


def _keep_expiring(group: SegmentGroup, part: PlanPart, now: int) -> SegmentGroup | None:
    """The segments of a group with rows that may have ended by now."""
    window = part.window
    chosen = tuple(s for s in group.segments if s.min_exp <= now or (window is not None and s.min_ts + window <= now))
    return replace(group, segments=chosen) if chosen else None


def _keep_ended(group: SegmentGroup, before: int, now: int) -> SegmentGroup | None:
    """The segments of a group of which overrides have ended rows since `before`."""
    chosen = tuple(s for s in group.segments if s.ended and len(_find_between(s, before, now)))
    return replace(group, segments=chosen) if chosen else None


def _find_between(segment: Segment, before: int, now: int) -> Int64s:
    rows, ends = read_ends(segment)
    return rows[(ends > before) & (ends <= now)]


def _pick_ended(before: int, now: int) -> Prune:
    def prune(segments: Sequence[Segment]) -> tuple[Sequence[Segment], SegmentRanges]:
        rows = {segment.id: _find_between(segment, before, now) for segment in segments}
        return segments, {number: (places, places + 1) for number, places in rows.items()}

    return prune


def _without_ended(segment: Segment, starts: Int64s, stops: Int64s) -> tuple[Int64s, Int64s]:
    if not segment.ended or not len(starts):
        return starts, stops
    rows = np.setdiff1d(list_rows(starts, stops), find_ended_rows(segment), assume_unique=True)
    return rows, rows + 1


def _can_filter(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind)) and not pa.types.is_uint64(kind)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
