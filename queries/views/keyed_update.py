"""Views whose rows belong to keys, such as groups: a slide replaces the rows of the keys that it changes.

A key changes when rows of it come or end. Its result is computed anew from its rows alone and compared with what the
view has of it: rows that are no longer there end now, which the slide records as end overrides, and rows that are not
there yet are stored. So the work follows the changed keys, not the window.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.segments import Segment
from windrow.queries.engine import arrow_source
from windrow.queries.views.delta_sql import BATCH_ROWS, SqlUpdate, UpdateInputs, translating_errors
from windrow.queries.views.input_rows import InputRows
from windrow.queries.views.inputs import ALL, InputPosition
from windrow.queries.views.key_rows import KeyedRows, KeySet, PlacedRows, end_places, plain_type
from windrow.queries.views.plan import PlanPart, RowKeys
from windrow.queries.views.storage import RowEnding, match_copies
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

    @cached_property
    def _source(self) -> InputRows:
        """The rows of the stream that is read."""
        name, update = self.part.name, self.update
        return InputRows(
            self.store, self.part, update.inputs[name], update.positions[name], update.interval, self.keys.source
        )

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
                    yield from self._replace_rows()
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

    def _replace_rows(self) -> Iterator[pa.RecordBatch]:
        changed, keys = self._find_changed_keys()
        if not changed:
            return
        rows = self._source.read_live(self.choose_segments(self._source.list_live()), keys)
        self.offer_rows(rows)
        sql = self.select_results()
        results = arrow_source.run_streaming(self.pooled.cursor, sql, None, BATCH_ROWS)[0].read_all()
        yield from self._store_difference(results, keys)

    def _find_changed_keys(self) -> tuple[bool, KeySet | None]:
        """Whether some key has changed, and which; None if that cannot be told, so that any may have."""
        fields = [self._source.definition.schema.field(name) for name in self.keys.source]
        schema = pa.schema([(field.name, plain_type(field.type)) for field in fields])
        changed = self._source.find_changed(watched=self.changes_by_expiry())
        stored_types = [plain_type(self.definition.schema.field(name).type) for name in self.keys.result]
        any_changed, alike = any(map(len, changed)), stored_types == schema.types
        keys = KeySet.collect([self._source.collect_keys(changed, schema)], schema) if any_changed and alike else None
        return any_changed, keys

    # -- what is stored ------------------------------------------------------------------------------------------------

    def _store_difference(self, results: pa.Table, keys: KeySet | None) -> Iterator[pa.RecordBatch]:
        """The rows of changed keys that are not stored yet; those that are stored but should not be, end now."""
        previous, definition = self.update.previous, self.definition
        assert previous is not None
        now = self.update.interval.now
        names = self.result_names
        segments = [segment for segment in previous.segments if segment.max_exp > now]
        stored = KeyedRows(self.store, definition, self.keys.result).read(segments, keys)
        stored = stored.select(stored.last_ends > now)
        fields = [definition.schema.field(name) for name in names]
        new_columns = [results.column(n + 2).cast(field.type) for n, field in enumerate(fields)]
        new = pa.table([results.column(0), results.column(1), *new_columns], [_BEGINS, _ENDS, *names])
        if any(pa.types.is_nested(field.type) for field in fields):  # such values are not compared
            self.endings += end_places(segments, stored, now)
            yield from new.to_batches()
            return
        old = pa.table(
            [to_arrow(stored.begins), to_arrow(stored.last_ends), *map(stored.take, names)], [_BEGINS, _ENDS, *names]
        )
        by = new.column_names[1:] if self.begins_with_slide else new.column_names
        stays, is_stored = match_copies(old.select(by), new.select(by).cast(old.select(by).schema))
        self.endings += end_places(segments, stored.select(~stays), now)
        yield from new.filter(to_arrow(~is_stored)).to_batches()
