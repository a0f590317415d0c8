"""The inputs of a view as DuckDB sees them: rows that are new to the view, rows that it knows, or both.

A row is known if the view's last update had taken it in and its time had been reached by then. So what arrives late,
and what was stored ahead of the view's clock, is new exactly once. Whole segments are told apart by what the catalog
knows of them; only where one holds both kinds are its rows looked at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.catalog.records import StreamEntry
from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.row_model import NEVER, SEQ, RowModel
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.scan_sql import empty_sql
from windrow.queries.sql.window_spec import CountWindow, FixedWindow, LandmarkWindow
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
        floor: What ended at or before this is not looked at: `now`, or with restore semantics `before`.
    """

    before: int | None
    now: int
    floor: int


@dataclass(frozen=True)
class InputPosition:
    """What a view has of an input: the ordinal and the slot of the input's slide at the last update."""

    ordinal: int
    slide: int | None


@dataclass(frozen=True)
class SegmentGroup:
    """Segments of which the same rows count."""

    segments: tuple[Segment, ...]
    condition: str
    base: int
    """Added to the sequence of its rows, where that matters."""


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


def may_matter(part: PlanPart, segment: Segment, moment: UpdateInterval) -> bool:
    """Whether a segment may have rows that count."""
    floor, window = moment.floor, part.window
    if segment.max_exp <= floor or segment.min_ts > moment.now:
        return False
    bounds = part.reference.window
    if isinstance(bounds, LandmarkWindow | FixedWindow) and segment.max_ts <= bounds.start:
        return False
    return window is None or segment.max_ts + window > floor


def find_row_filter(segment: Segment, seen: InputPosition, which: str, before: int | None) -> tuple[bool, bool] | None:
    """By what its new or known rows are told apart: by when they arrived, by their time; None if it has none.

    Args:
        segment: Some rows; those count as known that arrived by the slide that was seen and whose time was reached.
        seen: What the view has of the stream.
        which: `NEW`, `KNOWN`, or `ALL`, for which nothing is told apart.
        before: The view's clock before the update.
    """
    if which == ALL:
        return False, False
    if before is None or seen.slide is None or segment.first_slide > seen.slide:
        return (False, False) if which == NEW else None
    mixed, ahead = segment.last_slide > seen.slide, segment.max_ts > before
    if not mixed and not ahead:
        return (False, False) if which == KNOWN else None
    return mixed, ahead


class RelationBinder:
    """Lays the parts of a plan out on a desk.

    Args:
        store: The warehouse.
        desk: Where the statement will run.
        moment: Of the update.
    """

    def __init__(self, store: Store, desk: PooledCursor, moment: UpdateInterval) -> None:
        self._store = store
        self._desk = desk
        self.moment = moment

    def groups(self, part: PlanPart, side: InputState, seen: InputPosition, which: str) -> list[SegmentGroup]:
        """The segments that hold such rows, and which of their rows those are."""
        before = self.moment.before
        ordered = isinstance(part.reference.window, CountWindow)
        kinds: dict[tuple[str, int], list[Segment]] = {}
        for segment in side.segments:
            if not may_matter(part, segment, self.moment):
                continue
            condition = self._edge(part, segment)
            chosen = self._chosen(part, segment, seen, which, before)
            if chosen is None:
                continue
            condition = " AND ".join(term for term in (condition, chosen) if term)
            kinds.setdefault((condition, segment.seq_base if ordered else 0), []).append(segment)
        return [SegmentGroup(tuple(own), condition, base) for (condition, base), own in kinds.items()]

    def _edge(self, part: PlanPart, segment: Segment) -> str:
        """What rows of a segment must fulfil to count now; empty if all do."""
        definition = part.definition
        assert definition is not None
        window, floor, bounds = part.window, self.moment.floor, part.reference.window
        if (
            segment.max_ts <= self.moment.now
            and segment.min_exp > floor
            and (window is None or segment.min_ts + window > floor)
            and not isinstance(bounds, LandmarkWindow | FixedWindow)
        ):
            return ""
        model, schema = definition.model, definition.schema
        begins, terms = time_sql(model.time, schema.field(model.time).type), []
        if segment.max_ts > self.moment.now:
            terms.append(f"{begins} <= {self.moment.now}")
        if segment.min_exp <= floor or (window is not None and segment.min_ts + window <= floor):
            terms.append(f"{ends_sql(model, schema, window)} > {floor}")
        if isinstance(bounds, LandmarkWindow | FixedWindow) and segment.min_ts <= bounds.start:
            terms.append(f"{begins} > {bounds.start}")
        if isinstance(bounds, FixedWindow) and segment.max_ts > bounds.stop:
            terms.append(f"{begins} <= {bounds.stop}")
        return " AND ".join(terms)

    def _chosen(
        self, part: PlanPart, segment: Segment, seen: InputPosition, which: str, before: int | None
    ) -> str | None:
        """What new or known rows of a segment must fulfil; None if it has none."""
        definition = part.definition
        assert definition is not None
        found = find_row_filter(segment, seen, which, before)
        if found is None or not any(found):
            return None if found is None else ""
        mixed, ahead = found
        begins = time_sql(definition.time, definition.schema.field(definition.time).type)
        arrived = f"(({quote_name(SEQ)} + {segment.seq_base}) >> {SEQ_BITS}) <= {seen.ordinal}"
        terms = [term for term, needed in ((arrived, mixed), (f"{begins} <= {before}", ahead)) if needed]
        known = " AND ".join(terms)
        return f"({known})" if which == KNOWN else f"NOT ({known})"

    def offer(
        self,
        part: PlanPart,
        definition: StreamDefinition,
        groups: Sequence[SegmentGroup],
        hidden: tuple[str, str] | None,
        prune: Prune | None = None,
        meets: tuple[str, Mask] | None = None,
    ) -> int:
        """Let DuckDB find rows under the part's relation; gives about how many those are.

        Args:
            part: Of the plan.
            definition: Of its stream.
            groups: What it holds.
            hidden: Names for the beginning and the end of its rows.
            prune: Names the rows that are read.
            meets: A column and which of its values count.
        """
        schema, model = definition.schema, definition.model
        extra = ""
        if hidden is not None:
            begins = time_sql(model.time, schema.field(model.time).type)
            extra = f", {begins} AS {quote_name(hidden[0])}, {ends_sql(model, schema, part.window)} AS {quote_name(hidden[1])}"
        columns = ", ".join(quote_name(name) for name in schema.names)
        newest = part.reference.window.count if isinstance(part.reference.window, CountWindow) else 0
        selects, rows = [], 0
        for number, group in enumerate(groups):
            segments, picks = (prune(group.segments) if prune is not None else None) or (group.segments, None)
            if not segments:
                continue
            own = f"{part.relation} {number}"
            rows += self.columns(own, definition, segments, picks, meets)
            where = f" WHERE {group.condition}" if group.condition else ""
            arrival = f", {quote_name(SEQ)} + {group.base} AS {quote_name(SEQ)}" if newest else ""
            selects.append(f"SELECT {columns}{extra}{arrival} FROM {quote_name(own)}{where}")
        if not selects:
            self._desk.view(part.relation, f"SELECT {columns}{extra} FROM ({empty_sql(schema)})")
            return 0
        sql = " UNION ALL ".join(selects)
        if newest:
            last = f"ORDER BY {quote_name(definition.time)} DESC, {quote_name(SEQ)} DESC LIMIT {newest}"
            sql = f"SELECT {columns} FROM ({sql}) {last}"
        self._desk.view(part.relation, sql)
        return rows

    def values(self, part: PlanPart, groups: Sequence[SegmentGroup], column: str) -> pa.Array | None:
        """What a column of a part has, without nulls; None if only DuckDB can tell, as not all rows count."""
        definition = part.definition
        if definition is None or any(group.condition for group in groups):
            return None
        full = definition.stored_schema
        segments = [segment for group in groups for segment in group.segments]
        narrow = pa.schema([full.field(column)])
        found = [batch.column(0) for batch in self._store.columns.batches(segments, narrow, full)]
        return pa.chunked_array(found, narrow.field(0).type).combine_chunks().drop_null()

    def columns(
        self,
        name: str,
        definition: StreamDefinition,
        segments: Sequence[Segment],
        picks: SegmentRanges | None,
        meets: tuple[str, Mask] | None = None,
    ) -> int:
        """Let DuckDB find rows of segments under a name; gives how many there are."""
        cache, full = self._store.columns, definition.stored_schema
        repeating = cache.repeating(segments, full)
        schema = pa.schema(
            [
                field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in repeating else field
                for field in full
            ]
        )
        if picks is None:
            rows = sum(segment.rows for segment in segments)
        else:
            rows = sum(int((stops - starts).sum()) for starts, stops in (picks[segment.id] for segment in segments))

        def read(narrow: pa.Schema) -> Iterable[pa.RecordBatch]:
            found = cache.batches(segments, narrow, full, picks)
            if meets is None or meets[0] not in narrow.names or pa.types.is_dictionary(narrow.field(meets[0]).type):
                return found
            return filter_rows(found, narrow, *meets)

        self._desk.source(name, schema, read, rows)
        return rows
