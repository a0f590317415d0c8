"""Views whose rows belong to keys, such as groups: a slide replaces the rows of the keys that it changes.

A key changes when rows of it come or end. Its result is computed anew from its rows alone and compared with what the
view has of it: rows that are no longer there end now, which the slide records as end overrides, and rows that are not
there yet are stored. So the work follows the changed keys, not the window.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.row_model import SEQ, Bools, Int64s
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.queries.engine import arrow_source
from windrow.queries.views.delta_sql import BATCH_ROWS, SqlUpdate, UpdateInputs, translating_errors
from windrow.queries.views.inputs import ALL, NEW, InputPosition, find_row_filter
from windrow.queries.views.key_rows import KeyedRows, KeySet, PlacedRows, split_place
from windrow.queries.views.plan import PlanPart, RowKeys
from windrow.queries.views.storage import RowEnding, group_endings, match_copies
from windrow.store import Store

_BEGINS, _ENDS = "_windrow_begins", "_windrow_ends"


class KeyedUpdate(SqlUpdate):
    """One update of one view.

    Args:
        store: The warehouse.
        update: What it reads.
        definition: Of the view's stream.
        keys: Of its rows.
    """

    begins_with_slide = False
    """Whether all new rows begin with the slide, so that a row that stays as it was may have begun earlier."""

    def __init__(self, store: Store, update: UpdateInputs, definition: StreamDefinition, keys: RowKeys) -> None:
        super().__init__(store, update)
        self.definition = definition
        self.keys = keys
        self.endings: list[RowEnding] = []
        """Stored rows that end with this slide."""
        self._source = KeyedRows(store, update.inputs[self.part.name].definition, keys.source, self.part.window)

    @property
    def result_names(self) -> list[str]:
        """The view's columns besides its times."""
        times = (self.definition.time, self.definition.expires)
        return [name for name in self.definition.schema.names if name not in times]

    @property
    def part(self) -> PlanPart:
        """The stream that is read."""
        return self.plan.streams[0]

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """New rows: when they begin and end in microseconds, then their columns; `endings` is complete after them."""
        reusable = False
        with translating_errors(self.update.name):
            try:
                if self.update.interval.before is None:
                    yield from self._compute_all()
                else:
                    yield from self._replace_rows(self.update.interval.before)
                reusable = True
            finally:
                self.pooled.release(reusable=reusable)

    def select_results(self) -> str:
        """The result of the rows of the part's relation: when each begins and ends, then the view's columns."""
        raise NotImplementedError

    def offer_rows(self, rows: PlacedRows) -> None:
        """Let DuckDB find the live rows of changed keys under the name of the part."""
        raise NotImplementedError

    def choose_segments(self, segments: Sequence[Segment]) -> list[Segment]:
        """Of the segments with live rows those that matter."""
        return list(segments)

    def changes_by_expiry(self) -> bool:
        """Whether rows that end can change more of a result than that they are gone themselves."""
        return True

    def _compute_all(self) -> Iterator[pa.RecordBatch]:
        part, state = self.part, self.update.inputs[self.part.name]
        groups = self.binder.find_groups(part, state, InputPosition(0, None), ALL)
        self.binder.register_part(part, state.definition, groups, self.plan.time_columns(part))
        yield from self._run(self.select_results())

    def _replace_rows(self, before: int) -> Iterator[pa.RecordBatch]:
        state, now = self.update.inputs[self.part.name], self.update.interval.now
        changed, keys = self._find_changed_keys(before)
        if not changed:
            return
        live = [segment for segment in state.segments if segment.max_exp > now and segment.min_ts <= now]
        segments = self.choose_segments(live)
        rows = self._source.read(segments, self._read_names(), keys, ended_by=now)
        self.offer_rows(rows.select((rows.begins <= now) & (rows.ends > now)))
        sql = self.select_results()
        results = arrow_source.run_streaming(self.pooled.cursor, sql, None, BATCH_ROWS)[0].read_all()
        yield from self._store_difference(results, keys)

    def _read_names(self) -> Sequence[str]:
        """The columns of the source that are needed."""
        return [*self.part.columns, SEQ]

    # -- changed keys --------------------------------------------------------------------------------------------------

    def _find_changed_keys(self, before: int) -> tuple[bool, KeySet | None]:
        """Whether some key has changed, and which; None if that cannot be told, so that any may have."""
        part, now = self.part, self.update.interval.now
        state, position = self.update.inputs[part.name], self.update.positions[part.name]
        schema = pa.schema([state.definition.schema.field(name) for name in self.keys.source])
        changed = []
        for segment in state.segments:
            row_filter = find_row_filter(segment, position, NEW, before)
            new = row_filter is not None and segment.min_ts <= now and segment.max_exp > before
            ending = self.changes_by_expiry() and self._may_end(segment, before)
            if new or ending:
                rows = self._source.read([segment], [SEQ], ended_by=before)
                chosen = np.zeros(len(rows.places), bool)
                if row_filter is not None and new:
                    chosen |= self._is_new(rows, row_filter, before)
                if ending:
                    chosen |= (rows.begins <= before) & (rows.ends > before) & (rows.ends <= now)
                if chosen.any():
                    changed.append(rows.select(chosen).rows.select(schema.names).cast(schema))
        stored_types = [self.definition.schema.field(name).type for name in self.keys.result]
        alike = stored_types == schema.types
        return bool(changed), KeySet.collect(changed, schema) if changed and alike else None

    def _may_end(self, segment: Segment, before: int) -> bool:
        """Whether rows of a segment can end in the update's time."""
        window, now = self.part.window, self.update.interval.now
        least, most = segment.min_exp, segment.max_exp
        if window is not None:
            least, most = min(least, segment.min_ts + window), min(most, segment.max_ts + window)
        return least <= now and most > before

    def _is_new(self, rows: PlacedRows, row_filter: tuple[bool, bool], before: int) -> Bools:
        """Which rows have come since the last update, or were ahead of the clock then."""
        mixed, ahead = row_filter
        old = np.full(len(rows.places), mixed or ahead)
        if mixed:
            arrived = rows.sequence >> SEQ_BITS
            old &= arrived <= self.update.positions[self.part.name].ordinal
        if ahead:
            old &= rows.begins <= before
        new: Bools = ~old & (rows.begins <= self.update.interval.now) & (rows.ends > self.update.interval.now)
        return new

    # -- what is stored ------------------------------------------------------------------------------------------------

    def _store_difference(self, results: pa.Table, keys: KeySet | None) -> Iterator[pa.RecordBatch]:
        """The rows of changed keys that are not stored yet; those that are stored but should not be, end now."""
        previous, definition = self.update.previous, self.definition
        assert previous is not None
        now = self.update.interval.now
        names = self.result_names
        segments = [segment for segment in previous.segments if segment.max_exp > now]
        stored = KeyedRows(self.store, definition, self.keys.result).read(segments, names, keys, ended_by=now)
        stored = stored.select(stored.ends > now)
        fields = [definition.schema.field(name) for name in names]
        new_columns = [results.column(n + 2).cast(field.type) for n, field in enumerate(fields)]
        new = pa.table([results.column(0), results.column(1), *new_columns], [_BEGINS, _ENDS, *names])
        if any(pa.types.is_nested(field.type) for field in fields):  # such values are not compared
            self._end_rows(segments, stored.places, stored.ends)
            yield from new.to_batches()
            return
        old = pa.table(
            [to_arrow(stored.begins), to_arrow(stored.ends), *(stored.rows.column(name) for name in names)],
            [_BEGINS, _ENDS, *names],
        )
        yield from self._compare(segments, old, stored.places, new)

    def _compare(
        self, segments: Sequence[Segment], old: pa.Table, places: Int64s, new: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        """The rows of `new` that `old` has not; those of `old` that `new` has not end. Equal rows are counted."""
        by = new.column_names[1:] if self.begins_with_slide else new.column_names
        stays, stored = match_copies(old.select(by), new.select(by).cast(old.select(by).schema))
        ends = old.column(_ENDS).to_numpy()
        self._end_rows(segments, places[~stays], ends[~stays])
        yield from new.filter(to_arrow(~stored)).to_batches()

    def _end_rows(self, segments: Sequence[Segment], places: Int64s, ends: Int64s) -> None:
        positions, rows = split_place(places)
        numbers = np.array([segment.id for segment in segments], np.int64)[positions]
        self.endings += group_endings(numbers, rows, ends, self.update.interval.now)
