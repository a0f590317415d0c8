"""What sources say besides rows: heartbeats, and that they have failed."""

from msgspec.structs import replace

from windrow.catalog.environment import key
from windrow.catalog.lookups import find_stream, refuse_view, source_name
from windrow.catalog.records import SourceEntry
from windrow.errors import ClockError, UnknownSourceError
from windrow.store import Store
from windrow.times import show, show_duration


def heartbeat(store: Store, stream: str, source: str | None, up_to: int) -> None:
    """Record that nothing at or before `up_to` will follow from the source."""
    store.check_writable()
    now = store.clock()
    with store.catalog.write() as tables:
        entry, _ = find_stream(tables, stream)
        refuse_view(entry, "given a heartbeat")
        name = source_name(entry, source)
        if up_to > now + entry.definition.max_ahead:
            raise ClockError(
                f"heartbeat {show(up_to)} of stream {stream!r} is more than max_ahead "
                f"({show_duration(entry.definition.max_ahead)}) ahead of the wall clock; "
                "it would let the stream expire rows before their time"
            )
        at = key(entry.id) + name.encode()
        known: SourceEntry = tables.get("sources", at) or SourceEntry()
        latest = up_to if known.heartbeat is None else max(known.heartbeat, up_to)
        tables.put("sources", at, replace(known, heartbeat=latest, failed=None, heard=now))


def fail_source(store: Store, stream: str, source: str, reason: str) -> None:
    """Record that a source has failed."""
    store.check_writable()
    with store.catalog.write() as tables:
        entry, _ = find_stream(tables, stream)
        refuse_view(entry, "failed by a source")
        name = source_name(entry, source)
        at = key(entry.id) + name.encode()
        known: SourceEntry | None = tables.get("sources", at)
        if known is None and not entry.definition.sources:
            raise UnknownSourceError(f"stream {stream!r} never heard of source {source!r}")
        tables.put("sources", at, replace(known or SourceEntry(), failed=reason or "declared failed"))
