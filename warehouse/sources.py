"""How far a stream may slide: the progress of its sources, which of them it waits for, and for which max_skew speaks.

Sources report progress by their rows and by heartbeats, and may be declared failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from windrow.catalog.environment import catalog_key
from windrow.catalog.lookups import find_stream, refuse_view, resolve_source
from windrow.catalog.records import SourceEntry, StreamState
from windrow.definitions import StreamDefinition
from windrow.errors import ClockError, SourceBehindError, UnknownSourceError
from windrow.store import Store
from windrow.times import format_duration, format_time


@dataclass(frozen=True)
class SourceStatus:
    """One source at one moment."""

    name: str
    progress: int | None
    """Nothing at or before this time is expected any more; None if it was never heard."""
    effective: int | None
    """Its progress, or what max_skew says for it."""
    failed: str | None
    excluded: bool
    rows: int
    rejected: int
    heard: int | None

    @property
    def spoken_for(self) -> bool:
        """Whether max_skew speaks for it."""
        return self.effective is not None and self.effective != self.progress


@dataclass(frozen=True)
class SourceProgress:
    """What the sources allow."""

    sources: tuple[SourceStatus, ...]
    upto: int | None
    """The stream may slide to this time; None if it may not slide at all."""

    def waiting_for(self, time: int | None = None) -> tuple[str, ...]:
        """Sources that have not reached `time` (by default: those that hold the stream where it is)."""
        counted = [s for s in self.sources if not s.excluded]
        if time is None:
            return tuple(s.name for s in counted if s.effective is None or s.effective == self.upto)
        return tuple(s.name for s in counted if s.effective is None or s.effective < time)

    @property
    def excluded(self) -> tuple[str, ...]:
        """Failed sources that the stream goes on without."""
        return tuple(s.name for s in self.sources if s.excluded)

    def spoken_for(self, time: int) -> tuple[str, ...]:
        """Silent sources that reach `time` only because max_skew speaks for them."""
        return tuple(s.name for s in self.sources if s.spoken_for and (s.progress is None or s.progress < time))


def compute_progress(
    definition: StreamDefinition, state: StreamState, entries: Mapping[str, SourceEntry]
) -> SourceProgress:
    """Weigh the sources of a stream."""
    names = definition.sources or tuple(entries)
    reported = {name: _own_progress(entries.get(name), definition.slack) for name in names}
    statuses = tuple(_source_status(name, definition, reported, entries.get(name)) for name in names)
    counted = [s.effective for s in statuses if not s.excluded]
    times = [t for t in counted if t is not None]
    upto = min(times) if counted and len(times) == len(counted) else None
    if not definition.sources and state.heartbeat is not None:
        upto = state.heartbeat if upto is None else max(upto, state.heartbeat)
    return SourceProgress(statuses, upto)


def _own_progress(entry: SourceEntry | None, slack: int) -> int | None:
    if entry is None:
        return None
    times = [t for t in (entry.heartbeat, None if entry.max_ts is None else entry.max_ts - slack) if t is not None]
    return max(times) if times else None


def _source_status(
    name: str, definition: StreamDefinition, reported: dict[str, int | None], entry: SourceEntry | None
) -> SourceStatus:
    progress = reported[name]
    effective = progress
    if definition.max_skew is not None:
        others = [t for other, t in reported.items() if other != name and t is not None]
        if others:
            skewed = max(others) - definition.max_skew
            effective = skewed if progress is None else max(progress, skewed)
    failed = entry.failed if entry else None
    return SourceStatus(
        name=name,
        progress=progress,
        effective=effective,
        failed=failed,
        excluded=failed is not None and definition.on_source_failure == "exclude",
        rows=entry.rows if entry else 0,
        rejected=entry.rejected if entry else 0,
        heard=entry.heard if entry else None,
    )


def behind_error(definition: StreamDefinition, progress: SourceProgress, target: int) -> SourceBehindError:
    """The refusal to slide to `target`, naming who is behind and how far each has come."""
    behind = {s.name: s for s in progress.sources if s.name in progress.waiting_for(target)}
    words = ", ".join(f"source {s.name!r} {_describe_position(s)}" for s in behind.values())
    return SourceBehindError(
        f"stream {definition.name!r} cannot slide to {format_time(target)}: {words}; "
        "wait, send a heartbeat, or slide with force=True"
    )


def _describe_position(source: SourceStatus) -> str:
    if source.failed:
        return f"failed ({source.failed})"
    return "was never heard" if source.effective is None else f"has reached {format_time(source.effective)}"


def heartbeat(store: Store, stream: str, source: str | None, up_to: int) -> None:
    """Record that nothing at or before `up_to` will follow from the source."""
    store.check_writable()
    now = store.clock()
    with store.catalog.write() as tables:
        entry, _ = find_stream(tables, stream)
        refuse_view(entry, "given a heartbeat")
        name = resolve_source(entry, source)
        if up_to > now + entry.definition.max_ahead:
            raise ClockError(
                f"heartbeat {format_time(up_to)} of stream {stream!r} is more than max_ahead "
                f"({format_duration(entry.definition.max_ahead)}) ahead of the wall clock; "
                "it would let the stream expire rows before their time"
            )
        key = catalog_key(entry.id) + name.encode()
        old: SourceEntry = tables.get("sources", key) or SourceEntry()
        latest = up_to if old.heartbeat is None else max(old.heartbeat, up_to)
        tables.put("sources", key, replace(old, heartbeat=latest, failed=None, heard=now))


def fail_source(store: Store, stream: str, source: str, reason: str) -> None:
    """Record that a source has failed."""
    store.check_writable()
    with store.catalog.write() as tables:
        entry, _ = find_stream(tables, stream)
        refuse_view(entry, "failed by a source")
        name = resolve_source(entry, source)
        key = catalog_key(entry.id) + name.encode()
        old: SourceEntry | None = tables.get("sources", key)
        if old is None and not entry.definition.sources:
            raise UnknownSourceError(f"stream {stream!r} never heard of source {source!r}")
        tables.put("sources", key, replace(old or SourceEntry(), failed=reason or "declared failed"))
