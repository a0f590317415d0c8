"""Creating and dropping streams."""

from collections.abc import Sequence

import pyarrow as pa

from windrow import times
from windrow.catalog import Tables, key
from windrow.definitions import StreamDefinition, choose_index, define
from windrow.errors import DefinitionError, StreamExistsError
from windrow.files import disk_errors
from windrow.indexes.partitioners import Index
from windrow.locks import locked
from windrow.lookups import find_stream
from windrow.records import Layout, Reclaim, StreamEntry, StreamState
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
    layout = _layout(definition, index)
    with disk_errors(f"creating stream {name!r}"):
        for part in ("segments", "rejected"):
            (store.stream_folder(name) / part).mkdir(parents=True, exist_ok=True)
        store.files.sync(store.stream_folder(name))
        store.files.sync(store.root / "streams")
        with store.catalog.write() as tables:
            _record(tables, definition, layout, store.clock())


def _layout(definition: StreamDefinition, index: Index | str) -> Layout:
    if isinstance(index, Index):
        chosen, why = index, "chosen by the user"
    elif index == "auto":
        chosen, why = choose_index(definition)
    else:
        raise DefinitionError(f"index must be 'auto' or windrow.Index(…), not {index!r}")
    return Layout(id=0, index=chosen, lifetime_slots=definition.lifetime_slots, why=why)


def _record(tables: Tables, definition: StreamDefinition, layout: Layout, now: int) -> None:
    taken = {at.decode().lower(): at.decode() for at, _ in tables.raw_items("streams")}
    taken |= {at.decode().lower(): at.decode() for at, _ in tables.raw_items("tables")}
    if definition.name.lower() in taken:
        raise StreamExistsError(
            f"{taken[definition.name.lower()]!r} exists already (SQL does not tell capitals apart); "
            "drop it first or choose another name"
        )
    number = tables.allocate("streams") + 1
    tables.put("streams", definition.name.encode(), StreamEntry(id=number, definition=definition, created=now))
    tables.put("states", key(number), StreamState(layouts=(layout,), manifest=tables.version))


def drop_stream(store: Store, name: str, timeout: float = 60.0) -> None:
    """Remove a stream; its files go when the last reader that pins them has gone."""
    store.check_writable()
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, name))
    path = store.lock_path(entry.id)
    path.parent.mkdir(exist_ok=True)
    with locked(path, f"the slide of stream {name!r}", timeout, store.sleep), store.catalog.write() as tables:
        entry, _ = find_stream(tables, name)
        stream = key(entry.id)
        files = [at.decode() for at, record in tables.items("files") if record.stream == entry.id]
        segments = [record.id for _, record in tables.items("segments", stream)]
        segments += [segment.id for _, record in tables.items("spool", stream) for segment in record.segments]
        rejected = [record.file for _, record in tables.items("rejected", stream)]
        record = Reclaim(stream=entry.id, segments=tuple(segments), files=(*files, *rejected))
        tables.put("reclaim", key(tables.version, tables.allocate("reclaims")), record)
        for file in files:
            tables.delete("files", file.encode())
        for table in ("segments", "spool", "slides", "sources", "batches", "rejected"):
            tables.delete_prefix(table, stream)
        tables.delete("states", stream)
        tables.delete("streams", name.encode())
