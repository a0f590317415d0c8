"""Snapshots: a pinned, consistent view of streams, and reading windows out of it by scan and by probe.

A pin is a locked file published before the manifest is read, so nothing that the snapshot names can go while it lives.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from msgspec import structs

from windrow import arguments, times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import (
    OWNER,
    RetainedSlideEntry,
    Role,
    SourceEntry,
    StreamEntry,
    StreamGaps,
    StreamState,
    TableEntry,
)
from windrow.catalog.segment_log import load_segments
from windrow.definitions import is_hidden
from windrow.errors import ClosedError, SchemaError, UnknownStreamError, WindowError
from windrow.files import disk_errors
from windrow.gaps import Gap, read_gaps
from windrow.indexes.bounded_cache import Findings
from windrow.indexes.manifest import Manifest
from windrow.indexes.probe import KeyRange, SortOrders, encode_key_ranges, find_sort_orders, probe_segments
from windrow.indexes.row_model import RowModel
from windrow.indexes.scan import scan_segments
from windrow.indexes.selection import Selection, WindowBounds, select_segments
from windrow.pins import Pin, PinPool
from windrow.store import Store
from windrow.windows import Coverage, attach, find_start, make_about, make_window, measure

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from windrow.object_store.segment_cache import SegmentCache
    from windrow.past import Past
    from windrow.queries.answer import Answer
    from windrow.sources import SourceProgress


_MOST_CACHED = 16
"""Selections of streams whose contents at the last commit are cached."""
_MOST_FINDINGS = 256
"""What is remembered of a stream at one commit. Not measured: bounds memory."""


@dataclass(frozen=True)
class StreamSnapshot:
    """One stream as a snapshot sees it."""

    entry: StreamEntry
    state: StreamState
    segments: Manifest
    sources: dict[str, SourceEntry]
    gaps: tuple[StreamGaps, ...] = ()
    """What is missing of it; of a view, of its inputs."""
    calendar: int | None = field(default=None, kw_only=True)
    """The instant that calendar windows are reckoned from, if it is not the clock: a report is of a unit that ended."""
    since: int | None = field(default=None, kw_only=True)
    """With the rows that were live after this time, not only those that are live at the clock; see `past`."""
    before: int | None = field(default=None, kw_only=True)
    """As of an earlier slide: rows whose sequence is below this had been taken in by then."""
    at_last_slide: "StreamSnapshot | None" = field(default=None, kw_only=True)
    """If it shows rows that no slide has taken in yet (`past.take_fresh`), its segments at the last slide's clock."""
    revoked: tuple[str, ...] = field(default=(), kw_only=True)
    """What was done to stored rows after that slide, so that not all of them can be shown again."""
    model: RowModel = field(init=False, repr=False, compare=False)
    """What the index needs to know of its rows."""
    now: int | None = field(init=False, repr=False, compare=False)
    """The stream's clock."""
    sorted_by: SortOrders = field(init=False, repr=False, compare=False)
    """How its layouts are sorted, seen from its search key."""

    @cached_property
    def findings(self) -> Findings:
        """What statements found out about it (`cached_in_findings`): it is the same for all that see this commit."""
        return Findings(_MOST_FINDINGS)

    def __post_init__(self) -> None:
        definition, slide = self.entry.definition, self.state.slide
        attributes = self.__dict__  # frozen for everybody else
        model = attributes["model"] = definition.model
        attributes["now"] = None if slide is None else model.slot_end(slide)
        attributes["sorted_by"] = find_sort_orders(
            definition.key,
            [(layout.id, layout.key) for layout in (*self.state.layouts, *self.state.past_layouts)],
        )

    @property
    def is_past(self) -> bool:
        """Whether it is not the stream as the snapshot's commit shows it."""
        return self.since is not None or self.before is not None or self.at_last_slide is not None

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

    @property
    def reckoned(self) -> int | None:
        """The instant whose calendar unit a calendar window means; None before the first slide."""
        return self.now if self.calendar is None else self.calendar

    def progress(self) -> "SourceProgress":
        """How far its sources have come."""
        from windrow.sources import compute_progress

        return compute_progress(self.entry.definition, self.state, self.sources)

    def bounds(self, after: int | None = None, upto: int | None = None) -> WindowBounds | None:
        """A window's bounds at the clock; None before the first slide, when there is nothing to see."""
        now = self.now
        if now is None:
            return None
        alive = now if self.since is None else self.since
        return WindowBounds(after, now if upto is None else min(upto, now), alive, self.before)

    def last(self, length: int) -> WindowBounds | None:
        """The bounds of the last `length` microseconds; refuses a window longer than the stream keeps."""
        now = self.now
        self.check_kept(length, None if now is None else now - length)
        return None if now is None else self.bounds(after=now - length)

    def coverage(self, bounds: WindowBounds | None) -> Coverage:
        """Which gaps meet a window; before the first slide nothing is known."""
        if bounds is None:
            return Coverage((), 0.0)
        definition, life = self.entry.definition, self.entry.definition.longest_life
        oldest = [time for time in (None if life is None else bounds.now - life, definition.floor) if time is not None]
        after = bounds.after
        if after is None:
            after = max(oldest) if oldest else find_start(self.gaps, bounds.upto)
        if not oldest or after >= max(oldest) or after >= bounds.upto:
            return measure(self.gaps, after, bounds.upto)
        reason = "the lifetime was lengthened later" if definition.floor == max(oldest) else "rows live no longer"
        end = times.to_datetime(min(bounds.upto, max(oldest)))
        expired = Gap(None, self.name, None, times.to_datetime(after), end, "expired", reason)
        return measure(self.gaps, after, bounds.upto, expired)

    def check_kept(self, length: int, start: int | None, what: str = "a window of {}") -> None:
        """Refuse a window that is longer than the stream keeps rows, or begins before those that it has."""
        longest_life, floor = self.entry.definition.longest_life, self.entry.definition.floor
        if self.since is not None and longest_life is not None and self.now is not None:
            longest_life += self.now - self.since
        cut = f"{what.format(times.format_duration(length))} would not be complete"
        if longest_life is not None and length > longest_life:
            raise WindowError(f"stream {self.name!r} keeps rows for {times.format_duration(longest_life)}; {cut}")
        if start is not None and floor is not None and start < floor:
            raise WindowError(
                f"stream {self.name!r} keeps rows only from {times.format_time(floor)} on, when its lifetime was "
                f"lengthened; {cut} before {times.format_time(floor + length)}"
            )

    def select(self, bounds: WindowBounds | None) -> Selection:
        """The segments that the window needs."""
        return (
            select_segments(self.segments, bounds)
            if bounds is not None
            else Selection(WindowBounds(None, 0, 0), (), ())
        )


@dataclass(frozen=True)
class RestrictedStream(StreamSnapshot):
    """A stream as a role sees it: fewer columns, and rows of some ages only."""

    role: Role = OWNER

    def coverage(self, bounds: WindowBounds | None) -> Coverage:
        """As it is; of inputs that the role does not see it learns only when something is missing."""
        whole = super().coverage(bounds)
        gaps = tuple(
            gap if self.role.sees(gap.stream) else Gap(None, self.name, None, gap.start, gap.end, gap.kind, "an input")
            for gap in whole.gaps
        )
        return Coverage(gaps, whole.share)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the role may use; time and expiry are always among them, since windows are cut by them."""
        return restrict_schema(self.role, self.name, self.entry.definition.schema, self._always())

    def _always(self) -> set[str]:
        definition = self.entry.definition
        return {definition.time} | ({definition.expires} if definition.expires else set())

    def bounds(self, after: int | None = None, upto: int | None = None) -> WindowBounds | None:
        """A window's bounds, cut to the ages that the role sees."""
        whole = super().bounds(after, upto)
        if whole is None:
            return None
        last = whole.upto if self.role.newest is None else min(whole.upto, whole.now - self.role.newest)
        first = whole.after
        if self.role.oldest is not None:
            first = max(whole.now - self.role.oldest, first if first is not None else whole.now - self.role.oldest)
        return replace(whole, after=first if first is None else min(first, last), upto=last)

    def check_kept(self, length: int, start: int | None, what: str = "a window of {}") -> None:
        """A window longer than the role sees is refused, not cut in silence."""
        if self.role.oldest is not None and length > self.role.oldest:
            raise WindowError(
                f"role {self.role.name!r} sees the last {times.format_duration(self.role.oldest)} of stream "
                f"{self.name!r}; {what.format(times.format_duration(length))} would not be complete"
            )
        super().check_kept(length, start, what)


def restrict_schema(role: Role, name: str, schema: pa.Schema, always: Iterable[str] = ()) -> pa.Schema:
    """The columns of a relation that a role may use."""
    columns = role.columns(name)
    if columns is None:
        return schema
    wanted = {column.lower() for column in (*columns, *always)}
    return pa.schema([field for field in schema if field.name.lower() in wanted], schema.metadata)


def restrict_views(role: Role, views: Mapping[str, StreamSnapshot]) -> dict[str, StreamSnapshot]:
    """The streams that a role sees, as it sees them."""
    return {
        name: RestrictedStream(
            view.entry,
            view.state,
            view.segments,
            view.sources,
            view.gaps,
            since=view.since,
            before=view.before,
            revoked=view.revoked,
            at_last_slide=view.at_last_slide,
            role=role,
        )
        for name, view in views.items()
        if role.sees(name)
    }


def load_stream(store: Store, tables: Tables, name: str) -> StreamSnapshot:
    """One stream, out of an open read transaction."""
    entry, state = find_stream(tables, name)
    stream = catalog_key(entry.id)
    sources = {key[len(stream) :].decode(): record for key, record in tables.items("sources", stream)}
    segments = load_segments(store, tables, entry.id, state)
    return StreamSnapshot(entry, state, segments, sources, read_gaps(tables, entry))


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
        role: Who asks: nothing that it may not see is in the snapshot.
    """

    commit: int | None = None
    """The earlier commit that it shows; None: the one that it pins."""
    _base: "Snapshot | None" = None
    """The one that it was made of, and that holds the pin."""

    def __init__(
        self,
        store: Store,
        streams: Iterable[str] | None = None,
        alike: frozenset[str] | None = None,
        role: Role = OWNER,
    ) -> None:
        store.check_process()
        store.drop_lost_files()
        self.store = store
        wanted = None if streams is None else tuple(streams)
        pin = self._pin(store)
        try:
            loaded = _load(store, wanted, alike)
        except BaseException:
            if pin is not None:
                store.pins.release(pin)
            raise
        self.version, self.role = loaded.version, role
        self._views, self.tables = loaded.views, loaded.tables
        if role.is_restricted:
            self._views = restrict_views(role, loaded.views)
            self.tables = {name: table for name, table in loaded.tables.items() if role.sees(name)}
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
        snapshot.version, snapshot.tables, snapshot.role = hold.version, hold.tables, OWNER
        snapshot._views = {
            name: StreamSnapshot(stream.entry, stream.state, Manifest.of(stream.segments), stream.sources, stream.gaps)
            for name, stream in hold.streams.items()
        }
        if store.catalog.read(lambda tables: tables.raw("holds", key) is None):
            snapshot.close()  # let go before the pin was there: what it kept may be gone
            return None
        return snapshot

    def at(self, clocks: Mapping[str, tuple[int | None, int | None]]) -> "Snapshot":
        """The same commit with other clocks: by stream, the slide that it is seen at and where calendars are reckoned.

        An earlier slide's windows have the rows that are known by now; those that have expired since are missing. It
        is open as long as this snapshot is.
        """
        other = Snapshot.__new__(Snapshot)
        other.store, other.version, other.tables, other.role = self.store, self.version, self.tables, self.role
        other._views = dict(self._views)
        for name, (slide, calendar) in clocks.items():
            view = self.view(name)
            state = view.state if slide is None else structs.replace(view.state, slide=slide)
            other._views[name] = replace(view, state=state, calendar=calendar)
        other._release = self._release
        return other

    @staticmethod
    def _pin(store: Store, version: int | None = None) -> Pin | None:
        if not store.can_pin:
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
            raise self._miss_stream(stream)
        return self._views[stream]

    def _seen_view(self, stream: str) -> StreamSnapshot:
        """One that users see."""
        if is_hidden(stream):
            raise self._miss_stream(stream)
        return self.view(stream)

    def _miss_stream(self, stream: str) -> UnknownStreamError:
        return UnknownStreamError(
            f"the snapshot has no stream {stream!r}; it has {', '.join(self.streams()) or 'none'}"
        )

    def past_view(self, stream: str, past: "Past") -> StreamSnapshot:
        """A stream as it was, or with its expired rows, by the history that this snapshot pins."""
        from windrow.past import past_view

        return past_view(self, stream, past)

    def as_of(self, commit: int) -> "Snapshot":
        """Streams with history, and tables, as they were at an earlier commit; open as long as this snapshot is."""
        from windrow.past import PastSnapshot

        arguments.check_count(commit, "as_of", "the number of a commit, which every answer has as its version")
        return PastSnapshot(self, commit)

    def with_pasts(self, pasts: "Mapping[str, tuple[str, Past]]") -> "Snapshot":
        """The same commit with streams as they were beside it: under a name, a stream and the past to show of it."""
        shown = {name: self.past_view(stream, past) for name, (stream, past) in pasts.items()}
        return self.with_views(self._views | shown, self.role)

    def with_views(self, views: dict[str, StreamSnapshot], role: Role) -> "Snapshot":
        """The same commit with other views of its streams; it holds the same pin."""
        other = Snapshot.__new__(Snapshot)
        other.store, other.version, other.role, other._views = self.store, self.version, role, views
        other.tables = {name: table for name, table in self.tables.items() if role.sees(name)}
        other._base = self  # which lets go of the pin when nobody needs it any more
        other._release = self._release
        return other

    def __repr__(self) -> str:
        return f"<Snapshot of commit {self.version}: {', '.join(self.streams()) or 'no streams'}>"

    def streams(self) -> list[str]:
        """Names of the streams in the snapshot."""
        return sorted(name for name in self._views if not is_hidden(name))

    def hidden(self) -> list[str]:
        """Names of the views in the snapshot that users do not see: standing queries share them."""
        return sorted(filter(is_hidden, self._views))

    def now(self, stream: str) -> int | None:
        """The stream's clock in microseconds, None before its first slide."""
        return self.view(stream).now

    def scan(
        self, stream: str, window: times.Duration | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a window, streamed; the snapshot lives at least as long as the reader."""
        view = self._seen_view(stream)
        schema = select_columns(view, columns)
        bounds = view.bounds() if window is None else view.last(times.parse_duration(window, "window"))
        self.store.count_scan(view.entry.id)
        described = self._describe(view, bounds, window, schema)
        return pa.RecordBatchReader.from_batches(described, self._rows(view, view.select(bounds), schema))

    def _describe(
        self, view: StreamSnapshot, bounds: WindowBounds | None, window: times.Duration | None, schema: pa.Schema
    ) -> pa.Schema:
        """The schema of a window's rows, with what is known of the window."""
        clause = "all live rows" if window is None else f"[WINDOW {_word_duration(window)}]"
        return attach(schema, make_about([make_window(view, bounds, clause)], "snapshot", 0.0, self.version))

    def _rows(self, view: StreamSnapshot, selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # A generator of a method: it holds the snapshot, and so the pin, until it is used up or thrown away.
        store = self.store
        cache = None if view.is_past else store.scan_cache  # copies are known by how many rows of a segment are dead
        yield from scan_segments(selection, view.model, view.stored_schema, schema, store.reader, cache)

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
        view = self._seen_view(stream)
        definition = view.entry.definition
        ranges = encode_key_ranges(definition.name, definition.key, definition.key_types(), key, keys, between)
        bounds = view.bounds() if window is None else view.last(times.parse_duration(window, "window"))
        schema = select_columns(view, columns)
        selection = view.select(bounds)
        rows = self.probe_selection(view, selection, ranges, schema)
        self.store.count_probe(view.entry.id, rows.num_rows, definition.key[:1])
        metadata = self._describe(view, bounds, window, schema).metadata
        if not rows.num_columns:  # without columns a table loses its number of rows here; batches do not
            batches = [batch.replace_schema_metadata(metadata) for batch in rows.to_batches()]
            return pa.Table.from_batches(batches, pa.schema([], metadata))
        return rows.replace_schema_metadata(metadata)

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
        on_gap: str = "tell",
    ) -> "Answer":
        """Ask this snapshot; every answer is of the same slides."""
        from windrow.queries import execution
        from windrow.queries.answer import check_gap_policy
        from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

        arguments.check_statement(statement, params)
        limit = None if timeout is None else times.parse_seconds(timeout, "timeout")
        check_gap_policy(on_gap)
        answer = execution.answer_from_snapshot(
            self.store, statement, params, timeout=limit, snapshot=self, context=STATEMENT_CONTEXT
        )
        return answer.without_gaps() if on_gap == "error" else answer

    def duckdb(self, memory: str | None = None, threads: int | None = None) -> "DuckDBPyConnection":
        """A DuckDB connection of your own over this snapshot, for pandas, ibis and notebooks.

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


def _word_duration(window: times.Duration) -> str:
    return times.format_duration(times.parse_duration(window, "window")).upper()


def _load(store: Store, wanted: tuple[str, ...] | None, alike: frozenset[str] | None) -> SnapshotContents:
    """The last commit, of which only what is wanted; from memory if the last snapshot here was of the same."""
    request = wanted, alike
    cached: SnapshotContents | None = store.snapshots.get(request)

    def load_contents(tables: Tables) -> SnapshotContents:
        version = tables.version
        if cached is not None and cached.version == version:
            return cached
        names = [key.decode() for key, _ in tables.raw_items("streams")] if wanted is None else list(wanted)
        if alike is not None:
            names = [name for name in names if name.lower() in alike]
        views = {name: load_stream(store, tables, name) for name in names}
        return SnapshotContents(version, views, {key.decode(): record for key, record in tables.items("tables")})

    contents = store.catalog.read(load_contents)
    if contents is not cached:
        current = {
            other_request: cached_contents
            for other_request, cached_contents in store.snapshots.items()
            if cached_contents.version == contents.version
        }
        store.snapshots = {**current, request: contents} if len(current) < _MOST_CACHED else {request: contents}
        store.pins.last_read = contents.version
    return contents


def _make_finalizer(snapshot: Snapshot, pin: Pin | None) -> "weakref.finalize[[], Snapshot]":
    """Releases a snapshot's pin when it is called, or when the snapshot is garbage-collected."""
    remote = snapshot.store.remote
    if remote is not None:
        cache = remote.cache
        return weakref.finalize(snapshot, partial(_release, snapshot.store.pins, pin, cache, cache.enter()))
    if pin is None:
        return weakref.finalize(snapshot, _do_nothing)
    return weakref.finalize(snapshot, partial(snapshot.store.pins.release, pin))


def _release(pins: PinPool, pin: Pin | None, cache: "SegmentCache", ticket: int) -> None:
    """The end of a snapshot whose files may be leased."""
    cache.leave(ticket)
    if pin is not None:
        pins.release(pin)


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
            raise SchemaError(f"stream {view.name!r} has no column {name!r}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in wanted])
