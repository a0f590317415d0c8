"""From a statement and a snapshot to relations that DuckDB can read, pruned by slot, expiry, time and search key.

What is left out could not have changed the answer: DuckDB applies every predicate itself to whatever is read. How a
window is read (by key, from memory, from files) is decided here, by the thresholds below.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.errors import WindowError
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.manifest import Manifest
from windrow.indexes.probe import SORTED_BY_KEY, KeyRange, LocatedRows, read_candidates, read_matching
from windrow.indexes.segment_reader import SegmentFileReader, Spans, read_live_spans, read_within_limits
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.key_ranges import KeyPredicate
from windrow.queries.planner.predicates import CollectedPredicates, PredicateCollector
from windrow.queries.planner.scan_sql import edge_condition, find_missing_columns, ordered_sql, window_sql
from windrow.queries.planner.top_k import TopK, TopKPicker, find_top_k
from windrow.queries.sql import sequence_column, window_spec
from windrow.queries.sql.column_usage import find_filtered_columns
from windrow.queries.sql.statement import Reference, Statement
from windrow.snapshot import Snapshot, StreamSnapshot

PROBE_ROWS, PROBE_RANGES = 20_000, 2_000
"""Up to so many rows in so many ranges are read by page; more are picked out of decoded columns."""
PROBE_SHARE, PROBE_FEW_ROWS = 0.2, 1_000
"""Where more than this share of a stream, and more than so many rows, have the wanted keys, whole segments are read."""
NEAR_ROWS = 2_000
"""Up to so many rows are read with all their columns before their keys are compared (`bench sql`: aggregate by key)."""
EDGE_ROWS = 100_000
"""Up to so many rows at the edge of a window are filtered here, in one thread (`bench sql`: scan of 36 MB)."""


def is_small_edge(view: StreamSnapshot, selection: Selection, reader: SegmentFileReader) -> bool:
    """Whether the edge of a window is filtered here: it has few rows, and its pages are not compressed.

    DuckDB could compare the times itself, and does in large windows. But then the view with the times to compare them
    with is made anew at each slide, and every segment is a batch, which costs more than to filter some thousand rows.
    """
    edge = Manifest.of(selection.edge)
    if edge.rows > EDGE_ROWS:
        return False
    files = edge.files()
    reader.map_files(tuple(files), view.stored_schema)  # so that the question below has an answer for all of them
    return not reader.has_compressed(files)


def to_text_views(schema: pa.Schema) -> pa.Schema:
    """The columns with texts as views into the mapped files, so that no text is copied."""
    return pa.schema([field.with_type(_text_view_type(field.type)) for field in schema])


def _text_view_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string_view()
    return pa.binary_view() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else kind


def read_edge_rows(
    view: StreamSnapshot, selection: Selection, schema: pa.Schema, reader: SegmentFileReader
) -> list[pa.RecordBatch]:
    """The rows at the edge that are in the window, with some of the columns of `to_text_views`."""
    spans, bounds, full = Spans.of_segments(selection.edge), selection.edge_bounds(), view.stored_schema
    limits = bounds.limits(view.model, full)
    batch = None if limits is None else read_within_limits(spans, limits, schema, full, reader)
    if batch is not None:
        return [batch]
    stored = pa.schema([full.field(name) for name in schema.names])
    rows = read_live_spans(spans, bounds, view.model, stored, full, reader)
    batches: list[pa.RecordBatch] = rows.cast(schema).to_batches()
    return batches


PickRows = Callable[[Sequence[Segment]], SegmentRanges]
"""Gives the wanted rows of segments; called when they are read."""


@dataclass(frozen=True)
class RelationPlan:
    """What a reference to a stream reads, out of what the stream has."""

    reference: Reference
    bounds: WindowBounds | None
    path: str
    """How it is read: ``columns`` (kept in memory), ``scan`` (files), ``probe`` (rows by key), ``empty``."""
    selection: Selection
    """The segments that are read."""
    stored: Manifest
    """Those that the stream has."""
    probed_rows: int | None
    """Rows that are read if they are found by key; None: all of the segments."""
    predicate: KeyPredicate
    origin: str = ""
    """Where keys come from that the statement does not name itself, for EXPLAIN."""

    @property
    def cells(self) -> tuple[int, int]:
        """Cells that are read, and that the stream has."""
        read, stored = ({segment.cell for segment in segments} for segments in (self.selection.segments, self.stored))
        return len(read), len(stored)

    @property
    def segments(self) -> tuple[int, int]:
        """Segments that are read, and that the stream has."""
        return len(self.selection.segments), len(self.stored)

    @property
    def rows(self) -> tuple[int, int]:
        """Rows that are read, and that the stream has."""
        return self.selection.segments.rows if self.probed_rows is None else self.probed_rows, self.stored.rows

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that are read (of rows that are found by key, their share), and that the stream has."""
        read, stored = (
            sum(segment.bytes for segment in segments) for segments in (self.selection.segments, self.stored)
        )
        return read if self.probed_rows is None else read * self.probed_rows // max(
            1, self.selection.segments.rows
        ), stored

    @property
    def keys(self) -> str:
        """What the statement restricts the search key to, for EXPLAIN."""
        return _describe_ranges(self.predicate.keys) + (self.origin if self.predicate.keys else "")


@dataclass(frozen=True)
class _SelectedRelation:
    """A stream relation before it is given to DuckDB."""

    reference: Reference
    view: StreamSnapshot
    selection: Selection
    predicate: KeyPredicate
    located: LocatedRows | None
    """The rows with the wanted keys, if they are few enough to be read by key."""


def _filter_segments(selection: Selection, keep: Callable[[Segment], bool]) -> Selection:
    return Selection(selection.bounds, tuple(filter(keep, selection.whole)), tuple(filter(keep, selection.edge)))


def _prune_by_time(selection: Selection, predicate: KeyPredicate) -> Selection:
    """Without the segments that a predicate on the time excludes; DuckDB filters the rest."""
    after, upto = predicate.after, predicate.upto
    if after is None and upto is None:
        return selection
    return _filter_segments(
        selection,
        lambda segment: (after is None or segment.max_ts > after) and (upto is None or segment.min_ts <= upto),
    )


def _is_probe(located: LocatedRows) -> bool:
    """Whether the rows are so few, and in so few places, that they are read by page."""
    return len(located.start) <= PROBE_RANGES and located.rows <= PROBE_ROWS


def _describe_ranges(ranges: Sequence[KeyRange] | None) -> str:
    if ranges is None:
        return "any"
    points = sum(key_range.is_point for key_range in ranges)
    counts = {"key": points, "range": len(ranges) - points}
    words = [f"{number:,} {word}{'' if number == 1 else 's'}" for word, number in counts.items() if number]
    return " and ".join(words) or "none"


def find_bounds(view: StreamSnapshot, window: window_spec.WindowSpec) -> WindowBounds | None:
    """The bounds of a window at the stream's clock; None before its first slide."""
    if isinstance(window, window_spec.RangeWindow):
        return view.last(window.length)
    if isinstance(window, window_spec.LandmarkWindow):
        return view.bounds(after=window.start)
    if isinstance(window, window_spec.FixedWindow):
        if window.stop <= window.start:
            raise WindowError(f"{window} is empty: it ends before it begins")
        return view.bounds(after=window.start, upto=window.stop)
    return view.bounds()


class Planner:
    """Makes the relations of one statement readable on its cursor.

    Args:
        snapshot: What is seen.
        statement: As parsed and confined.
        parameters: Of the statement.
        pooled: Where the statement will run.
    """

    def __init__(self, snapshot: Snapshot, statement: Statement, parameters: Any, pooled: PooledCursor) -> None:
        self.pooled = pooled
        self.snapshot = snapshot
        self.statement = statement
        self.parameters = parameters
        self._root = snapshot.store.root
        self._predicates = CollectedPredicates()
        self._numbered = sequence_column.uses_sequence(statement)

    def prepare(self, references: Sequence[Reference]) -> list[RelationPlan]:
        """Make every stream of the statement readable under its relation's name; gives what was pruned."""
        streams = {reference.relation: reference for reference in references}
        self._predicates = PredicateCollector(
            self.snapshot, self.pooled, self.statement, self.parameters, streams
        ).collect()
        selected = [self._select(reference) for reference in streams.values()]
        return [self._make(relation) for relation in selected]

    def _view(self, reference: Reference) -> StreamSnapshot:
        return self.snapshot.view(reference.name)

    def _select(self, reference: Reference) -> _SelectedRelation:
        view = self._view(reference)
        bounds = find_bounds(view, reference.window)
        predicate = self._predicates.by_relation.get(reference.relation, KeyPredicate(None, None, None))
        if isinstance(reference.window, window_spec.CountWindow):
            predicate = KeyPredicate(None, None, None)  # the newest rows must be counted before any are left out
        selection = _prune_by_time(view.select(bounds), predicate)
        if predicate.keys is None or not selection.segments:
            return _SelectedRelation(reference, view, selection, predicate, None)
        located = self._predicates.located(
            reference.relation, selection.segments, self.snapshot.directories, view.sorted_by
        )
        narrowed = selection
        if not located.touches_all():
            segment_ids = located.segment_ids()
            narrowed = _filter_segments(selection, lambda segment: segment.id in segment_ids)
        few = located.rows <= PROBE_FEW_ROWS or located.rows <= PROBE_SHARE * view.segments.rows
        return _SelectedRelation(reference, view, narrowed, predicate, located if few else None)

    def _make(self, selected: _SelectedRelation) -> RelationPlan:
        reference, view, selection = selected.reference, selected.view, selected.selection
        model, name = view.model, reference.relation
        path = "scan" if selection.segments else "empty"
        newest = reference.window.count if isinstance(reference.window, window_spec.CountWindow) else None
        if newest is not None or self._numbered:
            sql = ordered_sql(
                self._root,
                model,
                view.schema,
                selection,
                view.state.torn,
                newest=newest,
                numbered=self._numbered,
                absent=find_missing_columns(view, selection, self.snapshot.store.reader),
            )
            self._create_view(name, sql)
        elif (top_k := self._first(reference, view)) is not None and selection.segments and self._fits(view, selection):
            top = TopKPicker(top_k, selection.whole, self.snapshot.store.columns, view.stored_schema)
            self._register_columns(name, view, selection, top.picks)
            path = "columns"
        elif selected.located is not None and selection.segments:
            path = "probe"
            if _is_probe(selected.located):
                self._register_probe(name, selected, selected.located)
            elif self._fits(view, selection):
                picks, noted_as = self._predicates.picks(name, selected.located)
                self._register_columns(name, view, selection, lambda _: picks, noted_as)
            else:
                path = self.offer(name, view, selection)
        else:
            path = self.offer(name, view, selection)
        self._count(selected, path)
        return self._pruned(selected, path)

    def _count(self, selected: _SelectedRelation, path: str) -> None:
        """Count the read for the advisor."""
        view, store = selected.view, self.snapshot.store
        definition = view.entry.definition
        if path == "probe" and selected.located is not None:
            store.count_probe(view.entry.id, selected.located.rows, definition.key[:1])
        else:
            names = [name for name in view.schema.names if name not in (definition.time, definition.expires)]
            store.count_scan(view.entry.id, find_filtered_columns(self.statement, names))

    def offer(self, name: str, view: StreamSnapshot, selection: Selection, torn: Collection[str] = ()) -> str:
        """Make a window readable under a name; gives how it is read. Of `torn` files only its segments' rows are."""
        if selection.segments and self._fits(view, selection):
            self._register_columns(name, view, selection)
            return "columns"
        model = view.model
        absent = find_missing_columns(view, selection, self.snapshot.store.reader)
        files = {*view.state.torn, *torn}
        self._create_view(name, window_sql(self._root, model, view.schema, selection, files, absent))
        return "scan" if selection.segments else "empty"

    def _fits(self, view: StreamSnapshot, selection: Selection) -> bool:
        """Whether the window's columns can be kept in memory between queries."""
        return self.snapshot.store.columns.has_room_for(selection.segments, view.stored_schema)

    def _first(self, reference: Reference, view: StreamSnapshot) -> TopK | None:
        """What the statement orders by first, if it wants only a few rows of all."""
        first = find_top_k(self.statement, reference.relation, tuple(view.schema.names))
        return first if first is not None and TopKPicker.suits(view.schema.field(first.column).type) else None

    def _register_columns(
        self,
        name: str,
        view: StreamSnapshot,
        selection: Selection,
        picks: PickRows | None = None,
        noted_as: str | None = None,
    ) -> None:
        """Offer the window out of the column cache; only segments at its edge are filtered."""
        store, parts = self.snapshot.store, list[str]()
        # Of all segments together: those that are wholly live are often only the newest, of which nothing is known yet.
        repeating = store.columns.find_repeating(selection.segments, view.stored_schema)
        filtered = picks is None and bool(selection.edge) and is_small_edge(view, selection, store.reader)
        for suffix, segments in (("whole", selection.whole), ("edge", selection.edge)):
            if not segments:
                continue
            complete = suffix == "whole" or filtered
            single = complete and len(segments) == len(selection.segments)
            relation = name if single else f"{name} {suffix}"
            if suffix == "edge" and filtered:
                self._offer_edge(relation, view, selection)
            else:
                self._offer_columns(relation, view, segments, repeating, picks, noted_as)
            condition = "" if complete else f" WHERE {edge_condition(view, selection)}"
            parts.append(f"SELECT * FROM {quote_name(relation)}{condition}")
        if not single:
            self._create_view(name, " UNION ALL ".join(parts))

    def _offer_edge(self, name: str, view: StreamSnapshot, selection: Selection) -> None:
        reader, count = self.snapshot.store.reader, Manifest.of(selection.edge).rows
        self.pooled.offer_source(
            name, to_text_views(view.schema), lambda schema: read_edge_rows(view, selection, schema, reader), count
        )

    def _offer_columns(
        self,
        name: str,
        view: StreamSnapshot,
        segments: Sequence[Segment],
        repeating: Collection[str],
        picks: PickRows | None,
        noted_as: str | None,
    ) -> None:
        cache, full = self.snapshot.store.columns, view.stored_schema
        schema = pa.schema(
            [
                field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in repeating else field
                for field in view.schema
            ]
        )

        def read(narrow: pa.Schema) -> Iterable[pa.RecordBatch]:
            rows = cache.read_batches(segments, narrow, full, None if picks is None else picks(segments), noted_as)
            return list(rows) if cache.nearly_holds(segments, narrow, full) else rows

        self.pooled.offer_source(name, schema, read, sum(segment.rows for segment in segments))

    def _register_probe(self, name: str, selected: _SelectedRelation, located: LocatedRows) -> None:
        view, store = selected.view, self.snapshot.store
        model, full = view.model, view.stored_schema
        whole = not selected.selection.edge

        def looked_up(schema: pa.Schema) -> pa.Table:
            # A few rows are read from plain pages sooner than they are put together out of decoded columns.
            spans = located.spans()
            plain = located.rows <= NEAR_ROWS and not store.reader.has_compressed(spans.files)
            if whole and not plain and (cached := store.columns.held_rows(located.places(), schema)) is not None:
                return pa.Table.from_batches([cached])
            # DuckDB looks at the keys of the few rows that lie beside those that count; of many, keys are read first.
            if view.sorted_by is SORTED_BY_KEY and (located.rows <= NEAR_ROWS or located.exact.all()):
                return read_candidates(spans, selected.selection, model, full, schema, store.reader)
            ranges = selected.predicate.keys or ()
            return read_matching(located.ranges(), selected.selection, ranges, model, full, schema, store.reader)

        def read(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            rows = (
                self._predicates.rows(name, located, schema, lambda: looked_up(schema)) if whole else looked_up(schema)
            )
            batches: list[pa.RecordBatch] = rows.to_batches()
            return batches

        self.pooled.offer_source(name, view.schema, read, located.rows)

    def _create_view(self, name: str, sql: str) -> None:
        self.pooled.create_view(name, sql)

    def _pruned(self, selected: _SelectedRelation, path: str) -> RelationPlan:
        return RelationPlan(
            reference=selected.reference,
            bounds=None if selected.view.state.slide is None else selected.selection.bounds,
            path=path,
            selection=selected.selection,
            stored=selected.view.segments,
            probed_rows=selected.located.rows if path == "probe" and selected.located is not None else None,
            predicate=selected.predicate,
            origin=self._predicates.origins.get(selected.reference.relation, ""),
        )
