"""Finds streams and sources in the catalog by the names that users give, or says which there are."""

from collections.abc import Mapping

import xxhash

from windrow.catalog.environment import Catalog, Tables, catalog_key, decode_last_int
from windrow.catalog.records import StreamEntry, StreamState
from windrow.definitions import DEFAULT_SOURCE, check_label, is_hidden
from windrow.errors import FormatError, UnknownSourceError, UnknownStreamError, ViewError


def find_stream(tables: Tables, name: str) -> tuple[StreamEntry, StreamState]:
    """A stream's records, or an error that names the streams there are."""
    entry = tables.get("streams", name.encode())
    if entry is None:
        raise _miss_stream(tables, name)
    state = tables.get("states", catalog_key(entry.id))
    if state is None:
        raise FormatError(f"the catalog has lost the state of stream {name!r}; restore it from a copy")
    return entry, state


def refuse_hidden(catalog: Catalog, name: str) -> str:
    """A name that a user gives; one of a view that standing queries share is the name of nothing to users."""
    if is_hidden(name):
        raise catalog.read(lambda tables: _miss_stream(tables, name))
    return name


def _miss_stream(tables: Tables, name: str) -> UnknownStreamError:
    names = [other for key, _ in tables.raw_items("streams") if not is_hidden(other := key.decode())]
    return UnknownStreamError(
        f"there is no stream {name!r}; {'the streams are ' + ', '.join(names) if names else 'none was created yet'}"
    )


def refuse_view(entry: StreamEntry, action: str) -> None:
    """Refuse what is done to streams from outside: a view follows its inputs."""
    inputs = entry.definition.inputs
    if inputs:
        raise ViewError(
            f"{entry.definition.name!r} is a view and cannot be {action}; it follows {', '.join(inputs)} by itself"
        )


def find_logs(tables: Tables, stream: int) -> list[str]:
    """The views with `keep` that are derived from a stream, also by way of other views."""
    reached, logs = [stream], []
    for number in reached:  # it grows meanwhile
        derived = [decode_last_int(key) for key, _ in tables.raw_items("views", catalog_key(number))]
        reached += [view for view in derived if view not in reached]
        plan = tables.get("plans", catalog_key(number))
        if number != stream and plan is not None and plan.keep is not None:
            logs.append(plan.name)
    return sorted(logs)


def resolve_source(entry: StreamEntry, source: str | None) -> str:
    """The source that an append or heartbeat speaks for, checked against the declared ones."""
    declared = entry.definition.sources
    if source is None:
        if len(declared) > 1:
            raise UnknownSourceError(
                f"stream {entry.definition.name!r} has the sources {', '.join(declared)}; say which one with source=…"
            )
        return declared[0] if declared else DEFAULT_SOURCE
    check_label(source, "source")
    if declared and source not in declared:
        raise UnknownSourceError(
            f"stream {entry.definition.name!r} has no source {source!r}; it declares {', '.join(declared)}"
        )
    return source


def encode_batch_key(stream_id: int, source: str, batch_id: str) -> bytes:
    """Where a batch is remembered."""
    return catalog_key(stream_id) + xxhash.xxh3_128_digest(f"{len(source)}:{source}{batch_id}".encode())


def encode_checkpoint_key(stream_id: int, query: str) -> bytes:
    """Where it is remembered how far a streaming query has come."""
    return catalog_key(stream_id) + xxhash.xxh3_128_digest(query.encode())


def find_checksums(catalog: Catalog, published: Mapping[str, bytes], file: str) -> bytes | None:
    """What a file is compared with when it is opened: None if it is not on record, nothing before there were checksums.

    Args:
        catalog: Of the warehouse.
        published: Of files that this process is about to commit.
        file: Its path relative to the warehouse.
    """
    if file in published:
        return published[file]

    def read_checksums(tables: Tables) -> bytes | None:
        raw = tables.raw("checksums", file.encode())
        return bytes(raw) if raw is not None else None if tables.is_sealed else b""

    return catalog.read(read_checksums)


def find_name_clash(tables: Tables, name: str, but: str = "") -> str | None:
    """What already has a name that SQL could not tell from `name`, other than the table in `but`."""
    for database in ("streams", "tables", "queries"):
        for key, _ in tables.raw_items(database):
            if key.decode().lower() == name.lower() and not (database == but and key.decode() == name):
                return key.decode()
    summaries = (entry.name for _, entry in tables.items("summaries"))
    return next((summary for summary in summaries if summary.lower() == name.lower()), None)
