"""The status of the warehouse and its streams at this moment, for people and for machines."""

from dataclasses import dataclass

import pyarrow as pa

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import SlideEntry
from windrow.definitions import StreamDefinition
from windrow.indexes.row_model import NEVER
from windrow.indexes.segment_reader import read_live
from windrow.indexes.selection import WindowBounds
from windrow.reclaim import find_oldest_pin
from windrow.relayout import RelayoutReport, make_relayout_report, read_layout_contents
from windrow.snapshot import StreamSnapshot, load_stream
from windrow.sources import SourceStatus
from windrow.store import Store


@dataclass(frozen=True)
class StreamStatus:
    """One stream: what it is, where its clock stands, whom it waits for, how large it is."""

    name: str
    definition: StreamDefinition
    index: str
    index_why: str
    slide: int | None
    now: int | None
    waiting_for: tuple[str, ...]
    """Sources that hold the clock where it is."""
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
    relayout: RelayoutReport | None
    """Where a change of layout stands, None if none is under way."""


@dataclass(frozen=True)
class WarehouseStatus:
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


def stream_status(store: Store, name: str) -> StreamStatus:
    """The status of one stream."""
    return store.catalog.read(lambda tables: _stream_status(store, tables, load_stream(store, tables, name)))


def warehouse_status(store: Store) -> WarehouseStatus:
    """The status of the warehouse, consistent over all streams."""

    def read_status(tables: Tables) -> tuple[int, tuple[StreamStatus, ...], int]:
        names = [key.decode() for key, _ in tables.raw_items("streams")]
        waiting = sum(len(record.files) for _, record in tables.items("reclaim"))
        return (
            tables.version,
            tuple(_stream_status(store, tables, load_stream(store, tables, name)) for name in names),
            waiting,
        )

    version, streams, waiting = store.catalog.read(read_status)
    oldest, readers = find_oldest_pin(store)
    return WarehouseStatus(
        path=str(store.root),
        version=version,
        streams=streams,
        readers=readers,
        oldest_reader=oldest,
        reclaimable_files=waiting,
        catalog_bytes=store.catalog.size(),
    )


def _stream_status(store: Store, tables: Tables, view: StreamSnapshot) -> StreamStatus:
    state, stream = view.state, catalog_key(view.entry.id)
    progress = view.progress()
    spooled = [record for _, record in tables.items("spool", stream)]
    slide = state.slide
    stored = sum(segment.rows for segment in view.segments)
    dead = 0 if slide is None else sum(segment.dead(slide) for segment in view.segments)
    ahead = count_rows_ahead(store, view)
    directories = sum(len(tables.raw("directories", catalog_key(segment.id)) or b"") for segment in view.segments)
    return StreamStatus(
        name=view.name,
        definition=view.entry.definition,
        index=str(state.layout.index),
        index_why=state.layout.why,
        slide=slide,
        now=view.now,
        waiting_for=progress.waiting_for(),
        missing=state.missing,
        spoken_for=state.spoken_for,
        sources=progress.sources,
        live_rows=stored - dead - ahead,
        stored_rows=stored,
        segments=len(view.segments),
        files=len({s.file for s in view.segments}),
        bytes=sum(segment.bytes for segment in view.segments),
        directory_bytes=directories,
        spooled_rows=sum(r.rows for r in spooled),
        spooled_bytes=sum(r.bytes for r in spooled),
        spooled_files=len(spooled),
        inserted=state.inserted,
        expired=state.expired,
        late=state.late,
        rejected=state.rejected,
        last=tables.get("slides", stream + catalog_key(state.ordinal)),
        layouts=len(state.layouts),
        relayout=make_relayout_report(read_layout_contents(store, tables, view.name))
        if state.relayout is not None
        else None,
    )


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
