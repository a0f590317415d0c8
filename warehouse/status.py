"""The present status of the warehouse and its streams, for people and for machines."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.background import background_of
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import SlideEntry
from windrow.definitions import StreamDefinition, is_hidden
from windrow.expired_rows import find_oldest_expired
from windrow.formats.html import ShownAsTable, TableRecord
from windrow.indexes.row_model import NEVER
from windrow.indexes.segment_reader import read_live
from windrow.indexes.selection import WindowBounds
from windrow.reclaim import find_oldest_pin
from windrow.row_spool import list_files, list_waiting
from windrow.snapshot import StreamSnapshot, load_stream
from windrow.sources import SourceProgress, SourceStatus
from windrow.store import Store
from windrow.times import format_time, to_datetime

if TYPE_CHECKING:
    from windrow.object_store.segment_store import StoreStatus
    from windrow.relayout import RelayoutReport


_ROW_CACHES = "row cache", "row cache of standing statements"
"""What is kept in memory for SQL."""


@dataclass(frozen=True)
class PartitionStatus(TableRecord):
    """A partition of Kafka, as the last batch of the query that reads it has left it."""

    name: str
    """Its topic and number, as in topic-0."""
    offset: int
    """The next one that is not in the stream yet."""
    lag: int
    """How many offsets lay behind that one when the batch began."""
    seen: dt.datetime
    """When that was. Nothing is known of what has come to Kafka since."""


@dataclass(frozen=True)
class StreamStatus(TableRecord):
    """One stream: what it is, where its clock stands, whom it waits for, how large it is."""

    name: str
    definition: StreamDefinition
    index: str
    index_why: str
    slide: int | None
    now: dt.datetime | None
    waiting_for: tuple[str, ...]
    """Sources that hold the clock where it is."""
    waits_for: str
    """What has to happen before the clock moves on, in words; a slide, if one would move it now."""
    missing: tuple[str, ...]
    """Sources that the last slide went on without."""
    spoken_for: tuple[str, ...]
    sources: tuple[SourceStatus, ...]
    live_rows: int
    stored_rows: int
    """Live rows and rows that expired but were not rewritten away yet."""
    segments: int
    files: int
    bytes: int
    directory_bytes: int
    spooled_rows: int
    spooled_bytes: int
    spooled_files: int
    inserted: int
    expired: int
    late: int
    rejected: int
    last: SlideEntry | None
    layouts: int
    relayout: "RelayoutReport | None"
    """Where a change of layout stands, None if none is under way."""
    history_rows: int = 0
    history_bytes: int = 0
    """Expired rows that are kept aside."""
    oldest_expired_on_disk: dt.datetime | None = None
    """When the row expired that has been expired for longest of those that files still hold, history included."""
    partitions: tuple[PartitionStatus, ...] = ()
    """Of Kafka, if its rows come from there by `windrow ingest` or `write_stream`."""


@dataclass(frozen=True)
class WarehouseStatus(ShownAsTable):
    """The whole warehouse."""

    path: str
    version: int
    streams: tuple[StreamStatus, ...]
    readers: int
    """Pinned snapshots of living processes."""
    oldest_reader: int | None
    """The commit that the oldest of them pins."""
    reclaimable_files: int
    """Replaced files that are not removed yet."""
    catalog_bytes: int
    memory_rows: int = 0
    """Rows that this process keeps in memory for SQL, and the bytes that they take there."""
    memory_bytes: int = 0
    background: tuple[str, ...] = ()
    """What waits to be done in this process while it slides or serves."""
    store: "StoreStatus | None" = None
    """Where the files are, if not only in the folder."""

    def _table(self) -> tuple[Sequence[str], Iterable[Sequence[Any]], str]:
        columns = ("name", "now", "live_rows", "spooled_rows", "late", "rejected", "segments", "bytes", "waits_for")
        rows = ([getattr(stream, column) for column in columns] for stream in self.streams)
        place = "" if self.store is None else f", files in {self.store.uri}"
        return columns, rows, f"{self.path}{place}, commit {self.version}, {self.readers} readers"


def stream_status(store: Store, name: str) -> StreamStatus:
    """The status of one stream."""
    return store.catalog.read(lambda tables: _stream_status(store, tables, load_stream(store, tables, name)))


def warehouse_status(store: Store) -> WarehouseStatus:
    """The status of the warehouse, consistent over all streams."""

    def read_status(tables: Tables) -> tuple[int, tuple[StreamStatus, ...], int]:
        names = [name for key, _ in tables.raw_items("streams") if not is_hidden(name := key.decode())]
        waiting = sum(len(record.files) for _, record in tables.items("reclaim"))
        return (
            tables.version,
            tuple(_stream_status(store, tables, load_stream(store, tables, name)) for name in names),
            waiting,
        )

    version, streams, waiting = store.catalog.read(read_status)
    oldest, readers = find_oldest_pin(store)
    caches = [cache for cache in map(store.shared.find, _ROW_CACHES) if cache is not None]
    return WarehouseStatus(
        path=str(store.root),
        version=version,
        streams=streams,
        readers=readers,
        oldest_reader=oldest,
        reclaimable_files=waiting,
        catalog_bytes=store.catalog.size(),
        memory_rows=sum(cache.rows for cache in caches),
        memory_bytes=sum(cache.bytes for cache in caches),
        background=background_of(store).waiting(),
        store=None if store.remote is None else store.remote.status(),
    )


def _stream_status(store: Store, tables: Tables, view: StreamSnapshot) -> StreamStatus:
    state, stream = view.state, catalog_key(view.entry.id)
    progress = view.progress()
    spooled = [record for _, record in list_files(tables, stream)]
    waiting = [each.head for each in list_waiting(tables, stream)]
    spooled_rows = sum(r.rows for r in spooled) + sum(r.rows for r in waiting)
    slide = state.slide
    stored = sum(segment.rows for segment in view.segments)
    dead = 0 if slide is None else sum(segment.dead(slide) for segment in view.segments)
    ahead = count_rows_ahead(store, view)
    oldest = find_oldest_expired(store, tables, view)
    directories = sum(len(tables.raw("directories", catalog_key(segment.id)) or b"") for segment in view.segments)
    return StreamStatus(
        name=view.name,
        definition=view.entry.definition,
        index=str(state.layout.index),
        index_why=state.layout.why,
        slide=slide,
        now=None if view.now is None else to_datetime(view.now),
        waiting_for=progress.waiting_for(),
        waits_for=_describe_wait(view, progress, ahead + spooled_rows),
        missing=state.missing,
        spoken_for=state.spoken_for,
        sources=progress.sources,
        live_rows=stored - dead - ahead,
        stored_rows=stored,
        segments=len(view.segments),
        files=len({s.file for s in view.segments}),
        bytes=sum(segment.bytes for segment in view.segments),
        directory_bytes=directories,
        spooled_rows=spooled_rows,
        spooled_bytes=sum(r.bytes for r in spooled) + sum(r.bytes for r in waiting),
        spooled_files=len(spooled),
        inserted=state.inserted,
        expired=state.expired,
        late=state.late,
        rejected=state.rejected,
        last=tables.get("slides", stream + catalog_key(state.ordinal)),
        layouts=len(state.layouts),
        relayout=None if state.relayout is None else _report_relayout(store, tables, view.name),
        history_rows=state.history_rows,
        history_bytes=state.history_bytes,
        oldest_expired_on_disk=None if oldest is None else to_datetime(oldest),
        partitions=tuple(_list_partitions(tables, stream)),
    )


def _list_partitions(tables: Tables, stream: bytes) -> Iterable[PartitionStatus]:
    """Where the stream's queries are in Kafka; of two that have read a partition, the later one counts."""
    reached = sorted((entry for _, entry in tables.items("checkpoints", stream)), key=lambda entry: entry.seen)
    last = {name: (*position, entry.seen) for entry in reached for name, position in entry.partitions.items()}
    for name, (offset, lag, seen) in sorted(last.items()):
        yield PartitionStatus(name, offset, lag, to_datetime(seen))


def _describe_wait(view: StreamSnapshot, progress: SourceProgress, waiting: int) -> str:
    """What a stream waits for, in words."""
    definition, slide = view.entry.definition, view.state.slide
    if definition.inputs:
        return f"slides of {', '.join(definition.inputs)}"
    upto = progress.upto
    if upto is not None and (slide is None or definition.model.last_slot(upto) > slide):
        return f"a slide, which may go to {format_time(definition.model.slot_end(definition.model.last_slot(upto)))}"
    if definition.sources:
        return ", ".join(f"source {name!r}" for name in progress.waiting_for())
    if upto is None:
        return "its first rows"
    return "newer rows, or a slide that names its time" if waiting else "newer rows"


def _report_relayout(store: Store, tables: Tables, name: str) -> "RelayoutReport":
    from windrow.relayout import make_relayout_report, read_layout_contents

    return make_relayout_report(read_layout_contents(store, tables, name))


def count_rows_ahead(store: Store, view: StreamSnapshot) -> int:
    """Rows that are stored and not expired, but later than the clock; only segments that hold some are looked at."""
    now, model = view.now, view.entry.definition.model
    if now is None:
        return 0
    names = [name for name in (model.time, model.expires) if name is not None]
    schema = pa.schema([view.schema.field(name) for name in names])
    later = WindowBounds(after=now, upto=NEVER, now=now)
    return sum(
        read_live(s.file, s.start, s.stop, later, model, schema, view.stored_schema, store.reader).num_rows
        for s in view.segments
        if s.max_ts > now
    )
