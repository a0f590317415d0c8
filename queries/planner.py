"""From a statement and a snapshot to relations that DuckDB can read, pruned by slot, expiry, time and search key.

What is left out could not have changed the answer: DuckDB applies every predicate itself to whatever is read.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.errors import WindowError
from windrow.indexes.columns import Picks
from windrow.indexes.manifest import Manifest
from windrow.indexes.probing import SORTED, KeyRange, Located, read_found, read_near
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Bounds, Selection
from windrow.queries import edges, macros, windows
from windrow.queries.desks import Desk
from windrow.queries.filters import filtered_columns
from windrow.queries.hearing import Heard, Listener
from windrow.queries.pruning import Asked
from windrow.queries.relations import absent_columns, edge_condition, ordered_sql, window_sql
from windrow.queries.statements import Reference, Statement
from windrow.queries.topk import First, Top, first_of
from windrow.queries.types import quoted
from windrow.snapshot import Snapshot, StreamView

PROBE_ROWS, PROBE_RANGES = 20_000, 2_000
"""Up to so many rows in so many places are read by page; more are picked out of decoded columns."""
NEAR_ROWS = 2_000
"""Up to so many rows are read with all their columns before anybody has looked at their keys."""
PROBE_SHARE = 0.2
"""Where more than this share of a stream has the wanted keys, whole segments are read."""
Picking = Callable[[Sequence[Segment]], Picks]
"""Which rows of segments are wanted; asked when they are read."""


@dataclass(frozen=True)
class Pruned:
    """What a reference to a stream reads, out of what the stream has."""

    reference: Reference
    bounds: Bounds | None
    path: str
    """How it is read: ``columns`` (kept in memory), ``scan`` (files), ``probe`` (rows by key), ``empty``."""
    selection: Selection
    """The segments that are read."""
    stored: Manifest
    """Those that the stream has."""
    picked: int | None
    """Rows that are read if they are found by key; None: all of the segments."""
    asked: Asked
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
        return _in_words(self.asked.keys) + (self.origin if self.asked.keys else "")


@dataclass(frozen=True)
class _Ready:
    """A stream relation before it is given to DuckDB."""

    reference: Reference
    view: StreamView
    selection: Selection
    asked: Asked
    found: Located | None


def _kept(selection: Selection, keep: Callable[[Segment], bool]) -> Selection:
    return Selection(selection.bounds, tuple(filter(keep, selection.whole)), tuple(filter(keep, selection.edge)))


def _narrowed(selection: Selection, wanted: Asked) -> Selection:
    """Without the segments that a predicate on the time leaves nothing of; the rest is DuckDB's to filter."""
    after, upto = wanted.after, wanted.upto
    if after is None and upto is None:
        return selection
    return _kept(
        selection,
        lambda segment: (after is None or segment.max_ts > after) and (upto is None or segment.min_ts <= upto),
    )


def _is_probe(found: Located) -> bool:
    """Whether the rows are so few, and in so few places, that they are read by page."""
    return len(found.start) <= PROBE_RANGES and found.rows <= PROBE_ROWS


def _in_words(ranges: Sequence[KeyRange] | None) -> str:
    if ranges is None:
        return "any"
    points = sum(each.is_point for each in ranges)
    counts = {"key": points, "range": len(ranges) - points}
    words = [f"{number:,} {word}{'' if number == 1 else 's'}" for word, number in counts.items() if number]
    return " and ".join(words) or "none"


def bounds_of(view: StreamView, window: windows.WindowSpec) -> Bounds | None:
    """The bounds of a window at the stream's clock; None before its first slide."""
    if isinstance(window, windows.Range):
        return view.last(window.length)
    if isinstance(window, windows.Since):
        return view.bounds(after=window.start)
    if isinstance(window, windows.Between):
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

    def __init__(self, snapshot: Snapshot, statement: Statement, parameters: Any, desk: Desk) -> None:
        self.desk = desk
        self.snapshot = snapshot
        self.statement = statement
        self.parameters = parameters
        self._root = snapshot.store.root
        self._heard = Heard()
        self._numbered = macros.asks_for_order(statement)

    def prepare(self, references: Sequence[Reference]) -> list[Pruned]:
        """Make every stream of the statement readable under its relation's name; gives what was pruned."""
        streams = {reference.relation: reference for reference in references}
        self._heard = Listener(self.snapshot, self.desk, self.statement, self.parameters, streams).listen()
        ready = [self._select(reference) for reference in streams.values()]
        return [self._make(each) for each in ready]

    def _view(self, reference: Reference) -> StreamView:
        return self.snapshot.view(reference.name)

    def _select(self, reference: Reference) -> _Ready:
        view = self._view(reference)
        bounds = bounds_of(view, reference.window)
        wanted = self._heard.asked.get(reference.relation, Asked(None, None, None))
        if isinstance(reference.window, windows.Rows):
            wanted = Asked(None, None, None)  # selection does not commute with a count window
        selection = _narrowed(view.select(bounds), wanted)
        if wanted.keys is None or not selection.segments:
            return _Ready(reference, view, selection, wanted, None)
        found = self._heard.located(reference.relation, selection.segments, self.snapshot.directories, view.sorted_by)
        kept = selection
        if not found.touches_all():
            holding = found.holding()
            kept = _kept(selection, lambda segment: segment.id in holding)
        few = found.rows <= 1000 or found.rows <= PROBE_SHARE * view.segments.rows
        return _Ready(reference, view, kept, wanted, found if few else None)

    def _make(self, ready: _Ready) -> Pruned:
        reference, view, selection = ready.reference, ready.view, ready.selection
        model, name = view.model, reference.relation
        path = "scan" if selection.segments else "empty"
        newest = reference.window.count if isinstance(reference.window, windows.Rows) else None
        if newest is not None or self._numbered:
            sql = ordered_sql(
                self._root,
                model,
                view.schema,
                selection,
                view.state.torn,
                newest=newest,
                numbered=self._numbered,
                absent=absent_columns(view, selection, self.snapshot.store.reader),
            )
            self._create_view(name, sql)
        elif (first := self._first(reference, view)) is not None and selection.segments and self._fits(view, selection):
            top = Top(first, selection.whole, self.snapshot.store.columns, view.stored_schema)
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

    def _count(self, ready: _Ready, path: str) -> None:
        """Tell the advisor what was asked."""
        view, store = ready.view, self.snapshot.store
        definition = view.entry.definition
        if path == "probe" and ready.found is not None:
            store.count_probe(view.entry.id, ready.found.rows, definition.key[:1])
        else:
            names = [name for name in view.schema.names if name not in (definition.time, definition.expires)]
            store.count_scan(view.entry.id, filtered_columns(self.statement, names))

    def offer(self, name: str, view: StreamView, selection: Selection, torn: Collection[str] = ()) -> str:
        """Make a window readable under a name; gives how it is read. Of `torn` files only its segments' rows are."""
        if selection.segments and self._fits(view, selection):
            self._register_columns(name, view, selection)
            return "columns"
        model = view.model
        absent = absent_columns(view, selection, self.snapshot.store.reader)
        files = {*view.state.torn, *torn}
        self._create_view(name, window_sql(self._root, model, view.schema, selection, files, absent))
        return "scan" if selection.segments else "empty"

    def _fits(self, view: StreamView, selection: Selection) -> bool:
        """Whether the window's columns can be kept in memory between queries."""
        return self.snapshot.store.columns.has_room_for(selection.segments, view.stored_schema)

    def _first(self, reference: Reference, view: StreamView) -> First | None:
        """What the statement orders by first, if it wants only a few rows of all."""
        first = first_of(self.statement, reference.relation, tuple(view.schema.names))
        return first if first is not None and Top.suits(view.schema.field(first.column).type) else None

    def _register_columns(
        self,
        name: str,
        view: StreamView,
        selection: Selection,
        picks: Picking | None = None,
        noted_as: str | None = None,
    ) -> None:
        """Offer the window out of the column cache; only segments at its edge are filtered."""
        store, parts = self.snapshot.store, list[str]()
        # Of all segments together: those that are wholly live are often only the newest, of which nothing is known yet.
        repeating = store.columns.repeating(selection.segments, view.stored_schema)
        picked = picks is None and bool(selection.edge) and edges.is_small(view, selection, store.reader)
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
            parts.append(f"SELECT * FROM {quoted(own)}{condition}")
        if not alone:
            self._create_view(name, " UNION ALL ".join(parts))

    def _offer_edge(self, name: str, view: StreamView, selection: Selection) -> None:
        reader, count = self.snapshot.store.reader, Manifest.of(selection.edge).rows
        self.desk.source(
            name, edges.shown(view.schema), lambda schema: edges.rows(view, selection, schema, reader), count
        )

    def _offer_columns(
        self,
        name: str,
        view: StreamView,
        segments: Sequence[Segment],
        repeating: Collection[str],
        picks: Picking | None,
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
            rows = cache.batches(segments, narrow, full, None if picks is None else picks(segments), noted_as)
            return list(rows) if cache.nearly_holds(segments, narrow, full) else rows

        self.desk.source(name, schema, read, sum(segment.rows for segment in segments))

    def _register_probe(self, name: str, ready: _Ready, found: Located) -> None:
        view, store = ready.view, self.snapshot.store
        model, full = view.model, view.stored_schema
        whole = not ready.selection.edge

        def looked_up(schema: pa.Schema) -> pa.Table:
            # A few rows are read from plain pages sooner than they are put together out of decoded columns.
            spans = found.spans()
            plain = found.rows <= NEAR_ROWS and not store.reader.unpacks(spans.files)
            if whole and not plain and (held := store.columns.held_rows(found.places(), schema)) is not None:
                return pa.Table.from_batches([held])
            # DuckDB looks at the keys of the few rows that lie beside those that count; of many, keys are read first.
            if view.sorted_by is SORTED and (found.rows <= NEAR_ROWS or found.exact.all()):
                return read_near(spans, ready.selection, model, full, schema, store.reader)
            ranges = ready.asked.keys or ()
            return read_found(found.ranges(), ready.selection, ranges, model, full, schema, store.reader)

        def read(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
            rows = self._heard.rows(name, found, schema, lambda: looked_up(schema)) if whole else looked_up(schema)
            batches: list[pa.RecordBatch] = rows.to_batches()
            return batches

        self.desk.source(name, view.schema, read, found.rows)

    def _create_view(self, name: str, sql: str) -> None:
        self.desk.view(name, sql)

    def _pruned(self, ready: _Ready, path: str) -> Pruned:
        return Pruned(
            reference=ready.reference,
            bounds=None if ready.view.state.slide is None else ready.selection.bounds,
            path=path,
            selection=ready.selection,
            stored=ready.view.segments,
            picked=ready.found.rows if path == "probe" and ready.found is not None else None,
            asked=ready.asked,
            origin=self._heard.origins.get(ready.reference.relation, ""),
        )
