"""Creating and dropping streams."""

from collections.abc import Sequence

import pyarrow as pa

from windrow import times
from windrow.catalog.environment import Tables, key, last_int
from windrow.catalog.lookups import find_stream, taken
from windrow.catalog.records import Layout, Reclaim, StreamEntry, StreamState
from windrow.catalog.segment_log import forget_dropped
from windrow.definitions import StreamDefinition, choose_index, define
from windrow.errors import DefinitionError, InUseError, StreamExistsError, UnknownStreamError, ViewError
from windrow.files import disk_errors
from windrow.indexes.partitioners import Index
from windrow.layouts import opening_layout
from windrow.locks import locked
from windrow.store import Store


def create_stream(
    store: Store,
    name: str,
    schema: pa.Schema,
    *,
    time: str,
    key: str | Sequence[str] | None,
    slide: times.Duration,
    lifetime: times.Duration | None,
    expires: str | None,
    max_lifetime: times.Duration | None,
    index: Index | str,
    sources: Sequence[str] | None,
    slack: times.Duration,
    max_skew: times.Duration | None,
    max_ahead: times.Duration,
    origin: times.Instant | None,
    on_source_failure: str,
) -> None:
    """Check the declaration and record the stream."""
    store.check_writable()
    definition = define(
        name,
        schema,
        time=time,
        key=key,
        slide=slide,
        lifetime=lifetime,
        expires=expires,
        max_lifetime=max_lifetime,
        sources=sources,
        slack=slack,
        max_skew=max_skew,
        max_ahead=max_ahead,
        origin=origin,
        on_source_failure=on_source_failure,
        index_auto=index == "auto",
    )
    layout = first_layout(definition, index)
    with disk_errors(f"creating stream {name!r}"):
        make_folders(store, name)
        with store.catalog.write() as tables:
            record_stream(tables, definition, layout, store.clock())


def make_folders(store: Store, name: str) -> None:
    """The folders of a stream that is to be."""
    for part in ("segments", "rejected"):
        (store.stream_folder(name) / part).mkdir(parents=True, exist_ok=True)
    store.files.sync(store.stream_folder(name))
    store.files.sync(store.root / "streams")


def first_layout(definition: StreamDefinition, index: Index | str) -> Layout:
    """The layout that a stream begins with: the user's, or one by its update pattern."""
    if isinstance(index, Index):
        chosen, why = index, "chosen by the user"
    elif index == "auto":
        chosen, why = choose_index(definition)
    else:
        raise DefinitionError(f"index must be 'auto' or windrow.Index(…), not {index!r}")
    return opening_layout(definition, chosen, why)


def record_stream(tables: Tables, definition: StreamDefinition, layout: Layout, now: int) -> StreamEntry:
    """Put a new stream down, or say who has its name."""
    other = taken(tables, definition.name)
    if other is not None:
        raise StreamExistsError(
            f"{other!r} exists already (SQL does not tell capitals apart); drop it first or choose another name"
        )
    number = tables.allocate("streams") + 1
    entry = StreamEntry(id=number, definition=definition, created=now)
    tables.put("streams", definition.name.encode(), entry)
    tables.put("states", key(number), StreamState(layouts=(layout,), manifest=tables.version))
    return entry


def drop_stream(store: Store, name: str, timeout: float = 60.0, *, view: bool = False) -> None:
    """Remove a stream (or a view); its files go when the last reader that pins them has gone."""
    store.check_writable()
    try:
        entry, _ = store.catalog.read(lambda tables: find_stream(tables, name))
    except UnknownStreamError:
        if not view:
            raise
        known = store.catalog.read(lambda tables: [plan.name for _, plan in tables.items("plans")])
        there = f"the views are {', '.join(known)}" if known else "none was created yet"
        raise UnknownStreamError(f"there is no view {name!r}; {there}") from None
    if view != bool(entry.definition.inputs):
        raise ViewError(
            f"{name!r} is a {'stream' if view else 'view'}; drop it with drop_{'stream' if view else 'view'} "
            f"or 'windrow {'stream' if view else 'view'} drop'"
        )
    path = store.lock_path(entry.id)
    path.parent.mkdir(exist_ok=True)
    with locked(path, f"the slide of stream {name!r}", timeout, store.sleep), store.catalog.write() as tables:
        entry, _ = find_stream(tables, name)
        asking = [query.name for _, query in tables.items("queries") if name in query.reads]
        if asking:
            raise DefinitionError(f"stream {name!r} is read by periodic queries ({', '.join(asking)}); drop them first")
        _refuse_needed(tables, entry)
        stream = key(entry.id)
        files = [at.decode() for at, record in tables.items("files") if record.stream == entry.id]
        segments = [record.id for _, record in tables.items("segments", stream)]
        segments += [segment.id for _, record in tables.items("spool", stream) for segment in record.segments]
        rejected = [record.file for _, record in tables.items("rejected", stream)]
        record = Reclaim(stream=entry.id, segments=tuple(segments), files=(*files, *rejected))
        tables.put("reclaim", key(tables.version, tables.allocate("reclaims")), record)
        for file in files:
            tables.delete("files", file.encode())
        for table in ("segments", "spool", "slides", "sources", "batches", "rejected", "usage", "synopses"):
            tables.delete_prefix(table, stream)
        for at in [at for at, _ in tables.raw_items("views") if last_int(at) == entry.id]:
            tables.delete("views", at)
        tables.delete("plans", stream)
        tables.delete("states", stream)
        tables.delete("streams", name.encode())
        forget_dropped(store, tables)


def _refuse_needed(tables: Tables, entry: StreamEntry) -> None:
    """A stream that views are derived from stays."""
    views = [tables.get("plans", key(last_int(at))).name for at, _ in tables.raw_items("views", key(entry.id))]
    if views:
        raise InUseError(
            f"{entry.definition.name!r} is needed by the view{'s' if len(views) > 1 else ''} {', '.join(views)}; "
            "drop what is derived from it first"
        )
