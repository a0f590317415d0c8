"""From a statement and a snapshot to relations that DuckDB can read, pruned by slot, expiry, time and search key.

What is left out could not have changed the answer: DuckDB applies every predicate itself to whatever is read.

The edge of a small window: of its segments only the rows in the window are handed to DuckDB, in one batch.

DuckDB could compare the times itself, and does in large windows. But then the view that says with what to compare them
is made anew at each slide, and every segment is a batch, which costs more than looking at some thousand rows.
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
from windrow.queries.sql import macros, window_spec
from windrow.queries.sql.column_usage import find_filtered_columns
from windrow.queries.sql.statement import Reference, Statement
from windrow.snapshot import Snapshot, StreamSnapshot

EDGE_ROWS = 100_000
"""Rows that one thread has picked sooner than DuckDB's would have begun."""


def is_small_edge(view: StreamSnapshot, selection: Selection, reader: SegmentFileReader) -> bool:
    """Whether the edge of a window is worth picking here: it has few rows, and its pages need not be unpacked."""
    edge = Manifest.of(selection.edge)
    if edge.rows > EDGE_ROWS:
        return False
    files = edge.files()
    reader.map_files(tuple(files), view.stored_schema)  # what is not known yet says nothing
    return not reader.has_compressed(files)


def to_text_views(schema: pa.Schema) -> pa.Schema:
    """The columns as they are handed out: texts as views of the files that they lie in, so that none is copied."""
    return pa.schema([field.with_type(_text_view_type(field.type)) for field in schema])


def _text_view_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string_view()
    return pa.binary_view() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else kind


def read_edge_rows(
    view: StreamSnapshot, selection: Selection, schema: pa.Schema, reader: SegmentFileReader
) -> list[pa.RecordBatch]:
    """The rows at the edge that are in the window, with some of the columns that are `to_text_views`."""
    spans, bounds, full = Spans.of_segments(selection.edge), selection.edge_bounds(), view.stored_schema
    limits = bounds.limits(view.model, full)
    found = None if limits is None else read_within_limits(spans, limits, schema, full, reader)
    if found is not None:
        return [found]
    stored = pa.schema([full.field(name) for name in schema.names])
    copied = read_live_spans(spans, bounds, view.model, stored, full, reader)
    batches: list[pa.RecordBatch] = copied.cast(schema).to_batches()
    return batches


PROBE_ROWS, PROBE_RANGES = 20_000, 2_000
"""Up to so many rows in so many places are read by page; more are picked out of decoded columns."""
NEAR_ROWS = 2_000
"""Up to so many rows are read with all their columns before anybody has looked at their keys."""
PROBE_SHARE = 0.2
"""Where more than this share of a stream has the wanted keys, whole segments are read."""
PickRows = Callable[[Sequence[Segment]], SegmentRanges]
"""Which rows of segments are wanted; asked when they are read."""


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
    picked: int | None
    """Rows that are read if they are found by key; None: all of the segments."""
    asked: KeyPredicate
    origin: str = ""
    """Where keys come from that the statement does not name itself, in words."""

    @property
    def cells(self) -> tuple[int, int]:
        """How many are read, and how many the stream has; likewise the following three."""
        read, stored = ({segment.cell for segment in each} for each in (self.selection.segments, self.stored))
        return len(read), len(stored)

    @property
    def segments(self) -> tuple[int, int]:
        """Segments."""
        return len(self.selection.segments), len(self.stored)

    @property
    def rows(self) -> tuple[int, int]:
        """Rows."""
        return self.selection.segments.rows if self.picked is None else self.picked, self.stored.rows

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes; of rows that are found by key, their share."""
        read, stored = (sum(segment.bytes for segment in each) for each in (self.selection.segments, self.stored))
        return read if self.picked is None else read * self.picked // max(1, self.selection.segments.rows), stored

    @property
    def keys(self) -> str:
        """What the search key was found to be restricted to, in words."""
        return _describe_ranges(self.asked.keys) + (self.origin if self.asked.keys else "")


@dataclass(frozen=True)
class _SelectedRelation:
    """A stream relation before it is given to DuckDB."""

    reference: Reference
    view: StreamSnapshot
    selection: Selection
    asked: KeyPredicate
    found: LocatedRows | None


def _filter_segments(selection: Selection, keep: Callable[[Segment], bool]) -> Selection:
    return Selection(selection.bounds, tuple(filter(keep, selection.whole)), tuple(filter(keep, selection.edge)))


def _prune_by_time(selection: Selection, wanted: KeyPredicate) -> Selection:
    """Without the segments that a predicate on the time leaves nothing of; the rest is DuckDB's to filter."""
    after, upto = wanted.after, wanted.upto
    if after is None and upto is None:
        return selection
    return _filter_segments(
        selection,
        lambda segment: (after is None or segment.max_ts > after) and (upto is None or segment.min_ts <= upto),
    )


def _is_probe(found: LocatedRows) -> bool:
    """Whether the rows are so few, and in so few places, that they are read by page."""
    return len(found.start) <= PROBE_RANGES and found.rows <= PROBE_ROWS


def _describe_ranges(ranges: Sequence[KeyRange] | None) -> str:
    if ranges is None:
        return "any"
    points = sum(each.is_point for each in ranges)
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
    """Makes the relations of one statement on one desk.

    Args:
        snapshot: What is seen.
        statement: As parsed and confined.
        parameters: Of the statement.
        desk: Where the statement will run.
    """

    def __init__(self, snapshot: Snapshot, statement: Statement, parameters: Any, desk: PooledCursor) -> None:
        self.desk = desk
        self.snapshot = snapshot
        self.statement = statement
        self.parameters = parameters
        self._root = snapshot.store.root
        self._heard = CollectedPredicates()
        self._numbered = macros.uses_sequence(statement)

    def prepare(self, references: Sequence[Reference]) -> list[RelationPlan]:
        """Make every stream of the statement readable under its relation's name; gives what was pruned."""
        streams = {reference.relation: reference for reference in references}
        self._heard = PredicateCollector(self.snapshot, self.desk, self.statement, self.parameters, streams).listen()
        ready = [self._select(reference) for reference in streams.values()]
        return [self._make(each) for each in ready]

    def _view(self, reference: Reference) -> StreamSnapshot:
        return self.snapshot.view(reference.name)

    def _select(self, reference: Reference) -> _SelectedRelation:
        view = self._view(reference)
        bounds = find_bounds(view, reference.window)
        wanted = self._heard.asked.get(reference.relation, KeyPredicate(None, None, None))
        if isinstance(reference.window, window_spec.CountWindow):
            wanted = KeyPredicate(None, None, None)  # selection does not commute with a count window
        selection = _prune_by_time(view.select(bounds), wanted)
        if wanted.keys is None or not selection.segments:
            return _SelectedRelation(reference, view, selection, wanted, None)
        found = self._heard.located(reference.relation, selection.segments, self.snapshot.directories, view.sorted_by)
        kept = selection
        if not found.touches_all():
            holding = found.segment_ids()
            kept = _filter_segments(selection, lambda segment: segment.id in holding)
        few = found.rows <= 1000 or found.rows <= PROBE_SHARE * view.segments.rows
        return _SelectedRelation(reference, view, kept, wanted, found if few else None)

    def _make(self, ready: _SelectedRelation) -> RelationPlan:
        reference, view, selection = ready.reference, ready.view, ready.selection
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
        elif (first := self._first(reference, view)) is not None and selection.segments and self._fits(view, selection):
            top = TopKPicker(first, selection.whole, self.snapshot.store.columns, view.stored_schema)
            self._register_columns(name, view, selection, top.picks)
            path = "columns"
        elif ready.found is not None and selection.segments:
            path = "probe"
            if _is_probe(ready.found):
                self._register_probe(name, ready, ready.found)
            elif self._fits(view, selection):
                picks, noted_as = self._heard.picks(name, ready.found)
                self._register_columns(name, view, selection, lambda _: picks, noted_as)
            else:
                path = self.offer(name, view, selection)
        else:
            path = self.offer(name, view, selection)
        self._count(ready, path)
        return self._pruned(ready, path)

    def _count(self, ready: _SelectedRelation, path: str) -> None:
        """Tell the advisor what was asked."""
        view, store = ready.view, self.snapshot.store
        definition = view.entry.definition
        if path == "probe" and ready.found is not None:
            store.count_probe(view.entry.id, ready.found.rows, definition.key[:1])
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
        picked = picks is None and bool(selection.edge) and is_small_edge(view, selection, store.reader)
        for suffix, segments in (("whole", selection.whole), ("edge", selection.edge)):
            if not segments:
                continue
            ready = suffix == "whole" or picked
            alone = ready and len(segments) == len(selection.segments)
            own = name if alone else f"{name} {suffix}"
            if suffix == "edge" and picked:
                self._offer_edge(own, view, selection)
            else:
                self._offer_columns(own, view, segments, repeating, picks, noted_as)
            condition = "" if ready else f" WHERE {edge_condition(view, selection)}"
            parts.append(f"SELECT * FROM {quote_name(own)}{condition}")
        if not alone:
            self._create_view(name, " UNION ALL ".join(parts))

    def _offer_edge(self, name: str, view: StreamSnapshot, selection: Selection) -> None:
        reader, count = self.snapshot.store.reader, Manifest.of(selection.edge).rows
        self.desk.source(
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

        self.desk.source(name, schema, read, sum(segment.rows for segment in segments))

    def _register_probe(self, name: str, ready: _SelectedRelation, found: LocatedRows) -> None:
        view, store = ready.view, self.snapshot.store
        model, full = view.model, view.stored_schema
        whole = not ready.selection.edge

        def looked_up(schema: pa.Schema) -> pa.Table:
            # A few rows are read from plain pages sooner than they are put together out of decoded columns.
            spans = found.spans()
            plain = found.rows <= NEAR_ROWS and not store.reader.has_compressed(spans.files)
            if whole and not plain and (held := store.columns.held_rows(found.places(), schema)) is not None:
                return pa.Table.from_batches([held])
            # DuckDB looks at the keys of the few rows that lie beside those that count; of many, keys are read first.
            if view.sorted_by is SORTED_BY_KEY and (found.rows <= NEAR_ROWS or found.exact.all()):
                return read_candidates(spans, ready.selection, model, full, schema, store.reader)
            ranges = ready.asked.keys or ()
            return read_matching(found.ranges(), ready.selection, ranges, model, full, schema, store.reader)

        def read(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            rows = self._heard.rows(name, found, schema, lambda: looked_up(schema)) if whole else looked_up(schema)
            batches: list[pa.RecordBatch] = rows.to_batches()
            return batches

        self.desk.source(name, view.schema, read, found.rows)

    def _create_view(self, name: str, sql: str) -> None:
        self.desk.view(name, sql)

    def _pruned(self, ready: _SelectedRelation, path: str) -> RelationPlan:
        return RelationPlan(
            reference=ready.reference,
            bounds=None if ready.view.state.slide is None else ready.selection.bounds,
            path=path,
            selection=ready.selection,
            stored=ready.view.segments,
            picked=ready.found.rows if path == "probe" and ready.found is not None else None,
            asked=ready.asked,
            origin=self._heard.origins.get(ready.reference.relation, ""),
        )
