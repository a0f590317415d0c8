"""From a statement and a snapshot to relations that DuckDB can read, pruned by slot, expiry, time and search key.

What is left out could not have changed the answer: DuckDB applies every predicate itself to whatever is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from windrow.errors import WindowError
from windrow.indexes.probing import KeyRange, RowRange, find_rows, read_found
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Bounds, Selection
from windrow.queries import sources, windows
from windrow.queries.pruning import Asked, asked_of
from windrow.queries.relations import edge_condition, newest_sql, window_sql
from windrow.queries.sources import ListeningSource
from windrow.queries.statements import Reference, Statement
from windrow.queries.types import quoted
from windrow.snapshot import Snapshot, StreamView

PROBE_ROWS = 200_000
PROBE_SHARE = 0.2
"""A probe reads rows one by one; past these limits DuckDB's own scan of whole row groups is faster."""

_CLOCKS = ("now", "today", "current", "localtime", "transaction_timestamp")


@dataclass(frozen=True)
class Pruned:
    """What a reference to a stream reads, out of what the stream has."""

    reference: Reference
    bounds: Bounds | None
    path: str
    """How it is read: ``columns`` (kept in memory), ``scan`` (files), ``probe`` (rows by key), ``empty``."""
    cells: tuple[int, int]
    segments: tuple[int, int]
    rows: tuple[int, int]
    bytes: tuple[int, int]
    """Each: what is read, and what the stream has."""
    keys: str
    """What the search key was found to be restricted to, in words."""
    selection: Selection
    """The segments that are read."""


@dataclass(frozen=True)
class _Ready:
    """A stream relation before it is given to DuckDB."""

    reference: Reference
    view: StreamView
    selection: Selection
    asked: Asked
    found: list[RowRange] | None


def _asks_the_clock(statement: Statement) -> bool:
    """Whether a constant of the statement may depend on when it is run."""
    return any(word in token.text.lower() for token in statement.source.tokens for word in _CLOCKS)


def _listening_schema(view: StreamView) -> pa.Schema:
    """What a stand-in shows: times in nanoseconds as microseconds, since DuckDB keeps predicates on the former."""
    definition, schema = view.entry.definition, view.schema
    kind = schema.field(definition.time).type
    if kind.unit != "ns" or definition.time in definition.key:
        return schema
    at = schema.get_field_index(definition.time)
    return schema.set(at, schema.field(at).with_type(pa.timestamp("us", kind.tz)))


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
    """Makes the relations of one statement on one cursor.

    Args:
        snapshot: What is seen.
        cursor: Where the statement will run.
        statement: As parsed and confined.
        parameters: Of the statement.
    """

    def __init__(self, snapshot: Snapshot, cursor: Any, statement: Statement, parameters: Any) -> None:
        self.snapshot = snapshot
        self.cursor = cursor
        self.statement = statement
        self.parameters = parameters
        self._root = snapshot.store.root

    def prepare(self, references: Sequence[Reference]) -> list[Pruned]:
        """Make every stream of the statement readable under its relation's name; gives what was pruned."""
        streams = {reference.relation: reference for reference in references}
        asked = self._listen(streams) if self._worth_listening(streams) else {}
        return [self._make(self._select(reference, asked.get(relation))) for relation, reference in streams.items()]

    def _worth_listening(self, streams: dict[str, Reference]) -> bool:
        """Whether the statement names a search key or time column at all, so that a predicate on one is possible."""
        words = {token.name.lower() for token in self.statement.source.tokens if token.named}
        for reference in streams.values():
            definition = self._view(reference).entry.definition
            if any(name.lower() in words for name in (definition.time, *definition.key)):
                return True
        return False

    def _listen(self, streams: dict[str, Reference]) -> dict[str, Asked]:
        schemas = {name: _listening_schema(self._view(reference)) for name, reference in streams.items()}
        clocked = _asks_the_clock(self.statement)
        if clocked:  # now() is one instant within a transaction: what was planned with is what will be run with
            self.cursor.execute("BEGIN TRANSACTION")
        try:
            heard = sources.listen(self.cursor, self.statement.sql, self.parameters, schemas)
        except duckdb.Error:
            if clocked:
                self.cursor.execute("ROLLBACK")
            return {}  # the statement itself will say what is wrong with it
        return {
            name: asked_of(predicates, self._view(streams[name]).entry.definition.model, schemas[name])
            for name, predicates in heard.items()
        }

    def _view(self, reference: Reference) -> StreamView:
        return self.snapshot.view(reference.name)

    def _select(self, reference: Reference, asked: Asked | None) -> _Ready:
        view = self._view(reference)
        bounds = bounds_of(view, reference.window)
        wanted = asked or Asked(None, None, None)
        if isinstance(reference.window, windows.Rows):
            wanted = Asked(None, None, None)  # selection does not commute with a count window
        selection = _narrowed(view.select(bounds), wanted)
        if wanted.keys is None or not selection.segments:
            return _Ready(reference, view, selection, wanted, None)
        found = self._find(selection, wanted.keys)
        holding = {part.segment.id for part in found}
        kept = _kept(selection, lambda segment: segment.id in holding)
        rows = sum(part.stop - part.start for part in found)
        stored = sum(segment.rows for segment in view.segments)
        few = rows <= PROBE_ROWS and rows <= max(1000, PROBE_SHARE * stored)
        return _Ready(reference, view, kept, wanted, found if few else None)

    def _find(self, selection: Selection, ranges: Sequence[KeyRange]) -> list[RowRange]:
        return find_rows(selection.segments, ranges, self.snapshot.directories)

    def _make(self, ready: _Ready) -> Pruned:
        reference, view, selection = ready.reference, ready.view, ready.selection
        model, name = view.entry.definition.model, reference.relation
        path = "scan" if selection.segments else "empty"
        if ready.found is not None and selection.segments:
            path = "probe"
            self._register_probe(name, ready)
        elif isinstance(reference.window, windows.Rows):
            self._create_view(
                name, newest_sql(self._root, model, view.schema, selection, reference.window.count, view.state.torn)
            )
        else:
            path = self.offer(name, view, selection)
        return self._pruned(ready, path)

    def offer(self, name: str, view: StreamView, selection: Selection) -> str:
        """Make a window readable under a name; gives how it is read."""
        if selection.segments and self._fits(selection):
            self._register_columns(name, view, selection)
            return "columns"
        model = view.entry.definition.model
        self._create_view(name, window_sql(self._root, model, view.schema, selection, view.state.torn))
        return "scan" if selection.segments else "empty"

    def _fits(self, selection: Selection) -> bool:
        """Whether the window's columns can be kept in memory between queries."""
        return sum(segment.bytes for segment in selection.segments) <= self.snapshot.store.columns.budget

    def _register_columns(self, name: str, view: StreamView, selection: Selection) -> None:
        """Offer the window out of the column cache; only segments at its edge are filtered."""
        parts = []
        for suffix, segments in (("whole", selection.whole), ("edge", selection.edge)):
            if not segments:
                continue
            alone = suffix == "whole" and not selection.edge
            own = name if alone else f"{name} {suffix}"
            sources.register(self.cursor, own, self._column_source(view, segments))
            condition = f" WHERE {edge_condition(view, selection.bounds)}" if suffix == "edge" else ""
            parts.append(f"SELECT * FROM {quoted(own)}{condition}")
        if selection.edge:
            self._create_view(name, " UNION ALL ".join(parts))

    def _column_source(self, view: StreamView, segments: Sequence[Segment]) -> ListeningSource:
        cache, full = self.snapshot.store.columns, view.stored_schema
        rows = sum(segment.rows for segment in segments)
        return ListeningSource(view.schema, lambda schema: cache.table(segments, schema, full), rows)

    def _register_probe(self, name: str, ready: _Ready) -> None:
        view, snapshot = ready.view, self.snapshot
        found, ranges = ready.found or [], ready.asked.keys or ()

        def read(schema: pa.Schema) -> pa.Table:
            model = view.entry.definition.model
            return read_found(found, ready.selection, ranges, model, view.stored_schema, schema, snapshot.store.reader)

        sources.register(self.cursor, name, ListeningSource(view.schema, read))

    def _create_view(self, name: str, sql: str) -> None:
        self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {sql}")

    @staticmethod
    def _pruned(ready: _Ready, path: str) -> Pruned:
        kept, stored = ready.selection.segments, ready.view.segments
        read_rows = sum(s.rows for s in kept)
        read_bytes = sum(s.bytes for s in kept)
        if path == "probe" and ready.found is not None:
            rows = sum(part.stop - part.start for part in ready.found)
            read_bytes = sum(p.segment.bytes * (p.stop - p.start) // max(1, p.segment.rows) for p in ready.found)
            read_rows = rows
        keys = "any" if ready.asked.keys is None else f"{len(ready.asked.keys)} range(s)"
        return Pruned(
            reference=ready.reference,
            bounds=ready.selection.bounds if ready.view.now is not None else None,
            path=path,
            cells=(len({s.cell for s in kept}), len({s.cell for s in stored})),
            segments=(len(kept), len(stored)),
            rows=(read_rows, sum(s.rows for s in stored)),
            bytes=(read_bytes, sum(s.bytes for s in stored)),
            keys=keys,
            selection=ready.selection,
        )
