"""Snapshots: a pinned, consistent view of streams, and reading windows out of it by scan and by probe.

A pin is a locked file published before the manifest is read, so nothing that the snapshot names can go while it lives.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from windrow import arguments, times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import RetainedSlideEntry, SourceEntry, StreamEntry, StreamState, TableEntry
from windrow.catalog.segment_log import load_segments
from windrow.errors import ClosedError, UnknownStreamError, WindowError
from windrow.files import disk_errors
from windrow.indexes.manifest import Manifest
from windrow.indexes.probe import KeyRange, SortOrders, encode_key_ranges, find_sort_orders, probe_segments
from windrow.indexes.row_model import RowModel
from windrow.indexes.scan import scan_segments
from windrow.indexes.selection import Selection, WindowBounds, select_segments
from windrow.pins import Pin
from windrow.sources import SourceProgress, compute_progress
from windrow.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from windrow.queries.answer import Answer


_MOST_CACHED = 16
"""Selections of streams whose contents at the last commit are cached."""


@dataclass(frozen=True)
class StreamSnapshot:
    """One stream as a snapshot sees it."""

    entry: StreamEntry
    state: StreamState
    segments: Manifest
    sources: dict[str, SourceEntry]
    model: RowModel = field(init=False, repr=False, compare=False)
    """What the index needs to know of its rows."""
    now: int | None = field(init=False, repr=False, compare=False)
    """The stream's clock."""
    sorted_by: SortOrders = field(init=False, repr=False, compare=False)
    """How its layouts are sorted, seen from its search key."""

    def __post_init__(self) -> None:
        definition, slide = self.entry.definition, self.state.slide
        attributes = self.__dict__  # frozen for everybody else
        model = attributes["model"] = definition.model
        attributes["now"] = None if slide is None else model.slot_end(slide)
        attributes["sorted_by"] = find_sort_orders(
            definition.key, [(layout.id, layout.key) for layout in self.state.layouts]
        )

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.entry.definition.name

    @property
    def schema(self) -> pa.Schema:
        """The schema of its rows."""
        return self.entry.definition.schema

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of its files."""
        return self.entry.definition.stored_schema

    def progress(self) -> SourceProgress:
        """How far its sources have come."""
        return compute_progress(self.entry.definition, self.state, self.sources)

    def bounds(self, after: int | None = None, upto: int | None = None) -> WindowBounds | None:
        """A window's bounds at the clock; None before the first slide, when there is nothing to see."""
        now = self.now
        return None if now is None else WindowBounds(after, now if upto is None else min(upto, now), now)

    def last(self, length: int) -> WindowBounds | None:
        """The bounds of the last `length` microseconds; refuses a window longer than the stream keeps."""
        kept = self.entry.definition.longest_life
        if kept is not None and length > kept:
            raise WindowError(
                f"stream {self.name!r} keeps rows for {times.format_duration(kept)}; "
                f"a window of {times.format_duration(length)} would not be complete"
            )
        now, floor = self.now, self.entry.definition.floor
        if now is not None and floor is not None and now - length < floor:
            raise WindowError(
                f"stream {self.name!r} keeps rows only from {times.format_time(floor)} on, "
                "when its lifetime was lengthened; "
                f"a window of {times.format_duration(length)} would not be complete before "
                f"{times.format_time(floor + length)}"
            )
        return None if now is None else self.bounds(after=now - length)

    def select(self, bounds: WindowBounds | None) -> Selection:
        """The segments that the window needs."""
        return (
            select_segments(self.segments, bounds)
            if bounds is not None
            else Selection(WindowBounds(None, 0, 0), (), ())
        )


def load_stream(store: Store, tables: Tables, name: str) -> StreamSnapshot:
    """One stream, out of an open read transaction."""
    entry, state = find_stream(tables, name)
    stream = catalog_key(entry.id)
    sources = {key[len(stream) :].decode(): record for key, record in tables.items("sources", stream)}
    return StreamSnapshot(entry, state, load_segments(store, tables, entry.id, state), sources)


@dataclass(frozen=True)
class SnapshotContents:
    """What a snapshot reads from the catalog. A commit never changes, so all snapshots of one commit share it."""

    version: int
    views: dict[str, StreamSnapshot]
    tables: dict[str, TableEntry]


class Snapshot:
    """A pinned view of some or all streams. Close it, use it in a ``with`` block, or let it be garbage-collected.

    Args:
        store: The warehouse.
        streams: Names, None for all.
        alike: Of all, only those whose names in lower case are among these.
    """

    def __init__(self, store: Store, streams: Iterable[str] | None = None, alike: frozenset[str] | None = None) -> None:
        store.check_process()
        self.store = store
        wanted = None if streams is None else tuple(streams)
        pin = self._pin(store)
        try:
            loaded = _load(store, wanted, alike)
        except BaseException:
            if pin is not None:
                store.pins.release(pin)
            raise
        self.version, self._views, self.tables = loaded.version, loaded.views, loaded.tables
        self._release = _make_finalizer(self, pin)

    @classmethod
    def held(cls, store: Store, key: bytes) -> "Snapshot | None":
        """The slides that a hold keeps, pinned as they were; None if the hold has gone."""
        hold: RetainedSlideEntry | None = store.catalog.read(lambda tables: tables.get("holds", key))
        if hold is None:
            return None
        snapshot = cls.__new__(cls)
        snapshot.store = store
        pin = cls._pin(store, hold.version)
        snapshot._release = _make_finalizer(snapshot, pin)
        snapshot.version, snapshot.tables = hold.version, hold.tables
        snapshot._views = {
            name: StreamSnapshot(stream.entry, stream.state, Manifest.of(stream.segments), stream.sources)
            for name, stream in hold.streams.items()
        }
        if store.catalog.read(lambda tables: tables.raw("holds", key) is None):
            snapshot.close()  # let go before the pin was there: what it kept may be gone
            return None
        return snapshot

    @staticmethod
    def _pin(store: Store, version: int | None = None) -> Pin | None:
        if not store.catalog.writable:
            return None
        with disk_errors("pinning a snapshot"):
            if version is not None:
                return store.pins.acquire_at(version, store.unique_name)
            return store.pins.acquire(store.catalog.version, store.unique_name)

    def view(self, stream: str) -> StreamSnapshot:
        """One stream of the snapshot."""
        if not self._release.alive:
            raise ClosedError("this snapshot is closed; take a new one")
        self.store.check_process()
        if stream not in self._views:
            raise UnknownStreamError(
                f"the snapshot has no stream {stream!r}; it has {', '.join(self._views) or 'none'}"
            )
        return self._views[stream]

    def streams(self) -> list[str]:
        """Names of the streams in the snapshot."""
        return sorted(self._views)

    def now(self, stream: str) -> int | None:
        """The stream's clock in microseconds, None before its first slide."""
        return self.view(stream).now

    def scan(
        self, stream: str, window: times.Duration | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a window, streamed; the snapshot lives at least as long as the reader."""
        view = self.view(stream)
        schema = select_columns(view, columns)
        bounds = view.bounds() if window is None else view.last(times.parse_duration(window, "window"))
        self.store.count_scan(view.entry.id)
        return pa.RecordBatchReader.from_batches(schema, self._rows(view, view.select(bounds), schema))

    def _rows(self, view: StreamSnapshot, selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # A generator of a method: it holds the snapshot, and so the pin, until it is used up or thrown away.
        store = self.store
        yield from scan_segments(selection, view.model, view.stored_schema, schema, store.reader, store.scan_cache)

    def probe(
        self,
        stream: str,
        key: Any = None,
        *,
        keys: Sequence[Any] | None = None,
        between: tuple[Any, Any] | None = None,
        window: times.Duration | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of a window whose key equals `key`, is one of `keys`, or lies in `between` (both ends included)."""
        view = self.view(stream)
        definition = view.entry.definition
        ranges = encode_key_ranges(definition.name, definition.key, definition.key_types(), key, keys, between)
        bounds = view.bounds() if window is None else view.last(times.parse_duration(window, "window"))
        schema = select_columns(view, columns)
        selection = view.select(bounds)
        rows = self.probe_selection(view, selection, ranges, schema)
        self.store.count_probe(view.entry.id, rows.num_rows, definition.key[:1])
        return rows

    def probe_selection(
        self, view: StreamSnapshot, selection: Selection, ranges: Sequence[KeyRange], schema: pa.Schema
    ) -> pa.Table:
        """The rows of selected segments whose key lies in one of the encoded ranges."""
        return probe_segments(
            selection,
            ranges,
            view.model,
            view.stored_schema,
            schema,
            self.store.reader,
            self.directories,
            view.sorted_by,
        )

    def directories(self, segments: Manifest, use: Callable[[list[Any]], Any]) -> Any:
        """Call `use` with the directories of the segments; they never change, so those once seen are kept."""
        return use(self.store.directories(segments))

    def sql(
        self,
        statement: str,
        params: Sequence[Any] | dict[str, Any] | None = None,
        *,
        timeout: float | times.Duration | None = None,
    ) -> "Answer":
        """Ask this snapshot; every answer is of the same slides."""
        from windrow.queries import execution
        from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

        arguments.check_statement(statement, params)
        limit = None if timeout is None else times.parse_seconds(timeout, "timeout")
        return execution.answer_from_snapshot(
            self.store, statement, params, timeout=limit, snapshot=self, context=STATEMENT_CONTEXT
        )

    def duckdb(self, memory: str | None = None, threads: int | None = None) -> "DuckDBPyConnection":
        """A DuckDB connection of your own over this snapshot, for pandas, ibis, SQLAlchemy and notebooks.

        Temporary views, tables and macros work; there is no way to a file. Close it before the snapshot.

        Args:
            memory: Such as ``"2GB"``; there is no folder to spill to.
            threads: Worker threads; all cores by default.
        """
        from windrow.queries.external_connection import open_snapshot_connection
        from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

        return open_snapshot_connection(self, memory, threads, STATEMENT_CONTEXT)

    def close(self) -> None:
        """Release the pin."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _load(store: Store, wanted: tuple[str, ...] | None, alike: frozenset[str] | None) -> SnapshotContents:
    """The last commit, of which only what is wanted; from memory if the last snapshot here was of the same."""
    request = wanted, alike
    cached: SnapshotContents | None = store.snapshots.get(request)

    def look(tables: Tables) -> SnapshotContents:
        version = tables.version
        if cached is not None and cached.version == version:
            return cached
        names = [key.decode() for key, _ in tables.raw_items("streams")] if wanted is None else list(wanted)
        if alike is not None:
            names = [name for name in names if name.lower() in alike]
        views = {name: load_stream(store, tables, name) for name in names}
        return SnapshotContents(version, views, {key.decode(): record for key, record in tables.items("tables")})

    contents = store.catalog.read(look)
    if contents is not cached:
        current = {
            other_request: cached_contents
            for other_request, cached_contents in store.snapshots.items()
            if cached_contents.version == contents.version
        }
        store.snapshots = {**current, request: contents} if len(current) < _MOST_CACHED else {request: contents}
        store.pins.seen = contents.version
    return contents


def _make_finalizer(snapshot: Snapshot, pin: Pin | None) -> "weakref.finalize[[], Snapshot]":
    """Releases a snapshot's pin when it is called, or when the snapshot is garbage-collected."""
    if pin is None:
        return weakref.finalize(snapshot, _do_nothing)
    return weakref.finalize(snapshot, partial(snapshot.store.pins.release, pin))


def _do_nothing() -> None:
    pass


def select_columns(view: StreamSnapshot, columns: Sequence[str] | None) -> pa.Schema:
    """The schema of the wanted columns, or an error that names what there is."""
    schema = view.schema
    if columns is None:
        return schema
    wanted = arguments.check_names(columns, "columns")
    for name in wanted:
        if name not in schema.names:
            raise WindowError(f"stream {view.name!r} has no column {name!r}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in wanted])
