"""The inputs of a view as relations of DuckDB: rows that are new to the view, rows that it knows, or both.

A row is known if the view's last update had read it and its time had been reached by then. So a row that arrives late,
or that was stored ahead of the view's clock, is new exactly once. The catalog's statistics tell whole segments apart;
rows are compared only in segments that hold both kinds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.catalog.records import StreamEntry
from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.row_model import NEVER, SEQ, RowModel
from windrow.indexes.segment_reader import Spans
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.planner import resolve_keys
from windrow.queries.planner.scan_sql import empty_sql, ordered_window_sql
from windrow.queries.sql.window_spec import FixedWindow, LandmarkWindow, OffsetWindow, OrderedWindow
from windrow.queries.views.partner_filter import Mask, filter_rows
from windrow.queries.views.plan import PlanPart, Prune
from windrow.store import Store

NEW, KNOWN, ALL = "new", "known", "all"


@dataclass(frozen=True)
class InputState:
    """A stream as an update of a view sees it: also rows of a slide that is not committed yet."""

    entry: StreamEntry
    slide: int | None
    """The slot that its clock has reached."""
    ordinal: int
    segments: tuple[Segment, ...]

    @property
    def definition(self) -> StreamDefinition:
        """Of the stream."""
        return self.entry.definition

    @property
    def now(self) -> int | None:
        """Its clock."""
        return None if self.slide is None else self.definition.model.slot_end(self.slide)


@dataclass(frozen=True)
class UpdateInterval:
    """An update of a view, from one instant to another.

    Args:
        before: The view's clock before it, None at the first.
        now: Its clock after it.
        floor: Rows that ended at or before this time are left out: `now`, or `before` with `restore` or `keep`.
    """

    before: int | None
    now: int
    floor: int


@dataclass(frozen=True)
class InputPosition:
    """How far a view has read an input: the ordinal and the slot of the input's slide at the last update."""

    ordinal: int
    slide: int | None


@dataclass(frozen=True)
class SegmentGroup:
    """Segments whose rows count under the same condition."""

    segments: tuple[Segment, ...]
    condition: str
    base: int
    """Added to the sequence of its rows, where their order counts."""


def time_sql(column: str, kind: pa.TimestampType) -> str:
    """A time column in microseconds, rounded up, as SQL."""
    if kind.unit == "ns":
        return f"(-((-epoch_ns({quote_name(column)})) // 1000))"
    return f"epoch_us({quote_name(column)})"


def ends_sql(model: RowModel, schema: pa.Schema, window: int | None) -> str:
    """When a row ceases to count, in microseconds, as SQL."""
    begins = time_sql(model.time, schema.field(model.time).type)
    ends = []
    if model.expires is not None:
        ends.append(time_sql(model.expires, schema.field(model.expires).type))
    lives = [life for life in (model.lifetime if model.expires is None else None, window) if life is not None]
    if lives:
        ends.append(f"({begins} + {min(lives)})")
    return f"least({', '.join(ends)})" if ends else f"{NEVER}::BIGINT"


def may_matter(part: PlanPart, segment: Segment, interval: UpdateInterval) -> bool:
    """Whether a segment may have rows that count."""
    floor, window = interval.floor, part.window
    if segment.max_exp <= floor or segment.min_ts > interval.now:
        return False
    after, upto = _find_limits(part, interval)
    if (after is not None and segment.max_ts <= after) or (upto is not None and segment.min_ts > upto):
        return False
    return window is None or segment.max_ts + window > floor


def _find_limits(part: PlanPart, interval: UpdateInterval) -> tuple[int | None, int | None]:
    """The times after which, and up to which, rows are in a part's window, apart from those of all rows."""
    window = part.reference.window
    if isinstance(window, OffsetWindow):
        return None, interval.now - window.offset
    if isinstance(window, LandmarkWindow):
        return window.start, None
    return (window.start, window.stop) if isinstance(window, FixedWindow) else (None, None)


def find_row_filter(
    segment: Segment, position: InputPosition, which: str, before: int | None
) -> tuple[bool, bool] | None:
    """Whether new or known rows of a segment are found by their arrival, and by their time; None if it has none.

    Args:
        segment: Its rows are known that had arrived by the last slide that was read, and whose time was reached.
        position: What the view has of the stream.
        which: `NEW`, `KNOWN`, or `ALL`, for which nothing is told apart.
        before: The view's clock before the update.
    """
    if which == ALL:
        return False, False
    if before is None or position.slide is None or segment.first_slide > position.slide:
        return (False, False) if which == NEW else None
    mixed, ahead = segment.last_slide > position.slide, segment.max_ts > before
    if not mixed and not ahead:
        return (False, False) if which == KNOWN else None
    return mixed, ahead


def exclude_ended(segments: Sequence[Segment], ranges: SegmentRanges | None, now: int) -> SegmentRanges | None:
    """Ranges of rows of segments (None: all rows) without the rows that overrides have ended by `now`."""
    if not any(segment.ended for segment in segments):
        return ranges
    live = {}
    for segment in segments:
        starts, stops = (np.array([segment.start]), np.array([segment.stop])) if ranges is None else ranges[segment.id]
        spans = Spans((segment.file,), np.zeros(len(starts), np.int64), starts, stops).without_ended([segment], now)
        live[segment.id] = spans.start, spans.stop
    return live


class RelationBinder:
    """Registers the parts of a plan as relations of a cursor.

    Args:
        store: The warehouse.
        pooled: The cursor on which the statement will run.
        interval: Of the update.
        ended_by: Rows that overrides have ended by then are left out; by default as those that expired.
    """

    def __init__(
        self, store: Store, pooled: PooledCursor, interval: UpdateInterval, ended_by: int | None = None
    ) -> None:
        self._store = store
        self._pooled = pooled
        self.interval = interval
        self._ended_by = interval.floor if ended_by is None else ended_by

    def find_groups(self, part: PlanPart, state: InputState, position: InputPosition, which: str) -> list[SegmentGroup]:
        """The segments that hold such rows, and which of their rows those are."""
        before = self.interval.before
        ordered = isinstance(part.reference.window, OrderedWindow)
        kinds: dict[tuple[str, int], list[Segment]] = {}
        for segment in state.segments:
            if not may_matter(part, segment, self.interval):
                continue
            if state.slide is None or segment.first_slide > state.slide:
                continue
            terms = [self._window_condition(part, segment)]
            if segment.last_slide > state.slide:  # the view is behind an input of which it sees an earlier slide
                terms.append(f"(({quote_name(SEQ)} + {segment.seq_base}) >> {SEQ_BITS}) <= {state.ordinal}")
            arrival_condition = self._arrival_condition(part, segment, position, which, before)
            if arrival_condition is None:
                continue
            condition = " AND ".join(term for term in (*terms, arrival_condition) if term)
            kinds.setdefault((condition, segment.seq_base if ordered else 0), []).append(segment)
        return [SegmentGroup(tuple(segments), condition, base) for (condition, base), segments in kinds.items()]

    def _window_condition(self, part: PlanPart, segment: Segment) -> str:
        """The condition that rows of a segment must meet to count now; empty if all do."""
        definition = part.definition
        assert definition is not None
        window, floor = part.window, self.interval.floor
        after, upto = _find_limits(part, self.interval)
        if (
            segment.max_ts <= self.interval.now
            and segment.min_exp > floor
            and (window is None or segment.min_ts + window > floor)
            and after is None
            and (upto is None or segment.max_ts <= upto)
        ):
            return ""
        model, schema = definition.model, definition.schema
        begins, terms = time_sql(model.time, schema.field(model.time).type), []
        if segment.max_ts > self.interval.now:
            terms.append(f"{begins} <= {self.interval.now}")
        if segment.min_exp <= floor or (window is not None and segment.min_ts + window <= floor):
            terms.append(f"{ends_sql(model, schema, window)} > {floor}")
        if after is not None and segment.min_ts <= after:
            terms.append(f"{begins} > {after}")
        if upto is not None and segment.max_ts > upto:
            terms.append(f"{begins} <= {upto}")
        return " AND ".join(terms)

    def _arrival_condition(
        self, part: PlanPart, segment: Segment, position: InputPosition, which: str, before: int | None
    ) -> str | None:
        """The condition that new or known rows of a segment must meet; None if it has none."""
        definition = part.definition
        assert definition is not None
        before = None if before is None else before - part.offset
        row_filter = find_row_filter(segment, position, which, before)
        if row_filter is None or not any(row_filter):
            return None if row_filter is None else ""
        mixed, ahead = row_filter
        begins = time_sql(definition.time, definition.schema.field(definition.time).type)
        arrived = f"(({quote_name(SEQ)} + {segment.seq_base}) >> {SEQ_BITS}) <= {position.ordinal}"
        terms = [term for term, needed in ((arrived, mixed), (f"{begins} <= {before}", ahead)) if needed]
        condition = " AND ".join(terms)
        return f"({condition})" if which == KNOWN else f"NOT ({condition})"

    def register_part(
        self,
        part: PlanPart,
        definition: StreamDefinition,
        groups: Sequence[SegmentGroup],
        hidden: tuple[str, str] | None,
        prune: Prune | None = None,
        value_filter: tuple[str, Mask] | None = None,
    ) -> int:
        """Register rows under the part's relation; returns about how many they are.

        Args:
            part: Of the plan.
            definition: Of its stream.
            groups: What it holds.
            hidden: Names for the beginning and the end of its rows.
            prune: Chooses the rows that are read.
            value_filter: A column and which of its values count.
        """
        schema, model = definition.schema, definition.model
        extra = ""
        if hidden is not None:
            begins = time_sql(model.time, schema.field(model.time).type)
            ends = ends_sql(model, schema, part.window)
            begins = f"{begins} + {part.offset}" if part.offset else begins
            extra = f", {begins} AS {quote_name(hidden[0])}, {ends} AS {quote_name(hidden[1])}"
        columns = ", ".join(quote_name(name) for name in schema.names)
        window = part.reference.window
        ordered = resolve_keys(part.name, schema, window) if isinstance(window, OrderedWindow) else None
        selects, rows = [], 0
        for number, group in enumerate(groups):
            segments, ranges = (prune(group.segments) if prune is not None else None) or (group.segments, None)
            if not segments:
                continue
            relation = f"{part.relation} {number}"
            rows += self.columns(relation, definition, segments, ranges, value_filter)
            where = f" WHERE {group.condition}" if group.condition else ""
            arrival = f", {quote_name(SEQ)} + {group.base} AS {quote_name(SEQ)}" if ordered else ""
            selects.append(f"SELECT {columns}{extra}{arrival} FROM {quote_name(relation)}{where}")
        if not selects:
            self._pooled.create_view(part.relation, f"SELECT {columns}{extra} FROM ({empty_sql(schema)})")
            return 0
        sql = " UNION ALL ".join(selects)
        if ordered is not None:
            names = [*schema.names, *(hidden or ())]
            sql = ordered_window_sql(sql, names, schema.field(definition.time), ordered)
        self._pooled.create_view(part.relation, sql)
        return rows

    def values(self, part: PlanPart, groups: Sequence[SegmentGroup], column: str) -> pa.Array | None:
        """The values of a part's column without nulls; None if not all rows count, so that only DuckDB can tell."""
        definition = part.definition
        if definition is None or any(group.condition for group in groups):
            return None
        full = definition.stored_schema
        segments = [segment for group in groups for segment in group.segments]
        narrow = pa.schema([full.field(column)])
        chunks = [batch.column(0) for batch in self._store.columns.read_batches(segments, narrow, full)]
        return pa.chunked_array(chunks, narrow.field(0).type).combine_chunks().drop_null()

    def columns(
        self,
        name: str,
        definition: StreamDefinition,
        segments: Sequence[Segment],
        ranges: SegmentRanges | None,
        value_filter: tuple[str, Mask] | None = None,
    ) -> int:
        """Register rows of segments under a name; returns how many there are."""
        cache, full = self._store.columns, definition.stored_schema
        repeating = cache.find_repeating(segments, full)
        schema = pa.schema(
            [
                field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in repeating else field
                for field in full
            ]
        )
        ranges = exclude_ended(segments, ranges, self._ended_by)
        if ranges is None:
            rows = sum(segment.rows for segment in segments)
        else:
            rows = sum(int((stops - starts).sum()) for starts, stops in (ranges[segment.id] for segment in segments))

        def read(narrow: pa.Schema) -> Iterable[pa.RecordBatch]:
            batches = cache.read_batches(segments, narrow, full, ranges)
            if (
                value_filter is None
                or value_filter[0] not in narrow.names
                or pa.types.is_dictionary(narrow.field(value_filter[0]).type)
            ):
                return batches
            return filter_rows(batches, narrow, *value_filter)

        self._pooled.offer_source(name, schema, read, rows)
        return rows
