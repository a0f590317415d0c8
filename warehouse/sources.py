"""How far a stream may slide: the progress of its sources, which of them it waits for, and for which max_skew speaks.

Sources report progress by their rows and by heartbeats, and may be declared failed.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream, refuse_view, resolve_source
from windrow.catalog.records import SlideEntry, SourceEntry, SpoolEntry, StreamEntry, StreamState, TraceEntry
from windrow.definitions import StreamDefinition
from windrow.errors import ClockError, GapError, SourceBehindError, UnknownSourceError
from windrow.gaps import BEFORE_FIRST, Ledger
from windrow.store import Store
from windrow.times import format_duration, format_time, parse_instant

_log = logging.getLogger(__name__)

TRACE_LENGTH = 1000
"""Heartbeats and failures that are kept, of all streams together."""


@dataclass(frozen=True)
class SourceStatus:
    """One source as it stands."""

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

    def state(self, now: int | None) -> str:
        """How it is doing, seen from the stream's clock."""
        if self.failed is not None:
            return "failed"
        if self.progress is None:
            return "never seen"
        return "behind" if now is not None and self.progress < now else "current"


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


def heartbeat(store: Store, stream: str, source: str | None, up_to: int, covers: int | None = None) -> None:
    """Record that nothing at or before `up_to` will follow from the source, and that all since `covers` has come."""
    store.check_writable()
    now = store.clock()
    claim = () if covers is None else (check_covers(covers, up_to),)
    with store.catalog.write() as tables:
        entry, state = find_stream(tables, stream)
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
        record = replace(old, heartbeat=latest, failed=None, heard=now, covers=merge_claims(old.covers, claim))
        tables.put("sources", key, settle_source(tables, entry, state, name, record, now))
        _trace(tables, TraceEntry(stream=entry.id, source=name, event="heartbeat", at=now, up_to=up_to))


def fail_source(store: Store, stream: str, source: str, reason: str) -> None:
    """Record that a source has failed."""
    store.check_writable()
    with store.catalog.write() as tables:
        entry, state = find_stream(tables, stream)
        refuse_view(entry, "failed by a source")
        name = resolve_source(entry, source)
        recorded = tables.raw("sources", catalog_key(entry.id) + name.encode()) is not None
        if not recorded and not entry.definition.sources:
            raise UnknownSourceError(f"stream {stream!r} never heard of source {source!r}")
        record_failure(tables, entry, state, name, reason or "declared failed", store.clock())


def record_failure(
    tables: Tables, entry: StreamEntry, state: StreamState, name: str, reason: str, wall_time: int
) -> None:
    """Record that a source has failed, and what the clock has already passed without it."""
    key = catalog_key(entry.id) + name.encode()
    failed = replace(tables.get("sources", key) or SourceEntry(), failed=reason)
    _log.warning("source %r of stream %r has failed: %s", name, entry.definition.name, reason)
    tables.put("sources", key, failed)
    _trace(tables, TraceEntry(stream=entry.id, source=name, event="failed", at=wall_time, note=reason))
    if state.slide is not None:
        now, progress = entry.definition.model.slot_end(state.slide), _own_progress(failed, entry.definition.slack)
        if progress is None or progress < now:
            Ledger(tables, entry, state.ordinal, wall_time).add_failure(name, progress, now, reason)


def _trace(tables: Tables, event: TraceEntry) -> None:
    """Put down an event, and forget the oldest of a thousand."""
    number = tables.allocate("trace")
    tables.put("trace", catalog_key(number), event)
    tables.delete("trace", catalog_key(number - TRACE_LENGTH))


def fail_silent_sources(store: Store, stream: str | None = None) -> list[tuple[str, str]]:
    """Fail declared sources from which nothing arrived for their stream's `liveness`; gives (stream, source)."""
    now = store.clock()
    if not store.catalog.read(lambda tables: _find_silent(tables, stream, now)):
        return []
    with store.catalog.write() as tables:
        silent = _find_silent(tables, stream, now)
        for entry, name in silent:
            _, state = find_stream(tables, entry.definition.name)
            reason = f"nothing arrived for {format_duration(entry.definition.liveness or 0)}"
            record_failure(tables, entry, state, name, reason, now)
    return [(entry.definition.name, name) for entry, name in silent]


def _find_silent(tables: Tables, stream: str | None, wall_time: int) -> list[tuple[StreamEntry, str]]:
    entries = [entry for _, entry in tables.items("streams")] if stream is None else [find_stream(tables, stream)[0]]
    silent = []
    for entry in entries:
        for name in entry.definition.sources if entry.definition.liveness is not None else ():
            source = tables.get("sources", catalog_key(entry.id) + name.encode()) or SourceEntry()
            if (
                source.failed is None
                and max(source.heard, entry.created) + (entry.definition.liveness or 0) <= wall_time
            ):
                silent.append((entry, name))
    return silent


def check_covers(start: int, end: int) -> tuple[int, int]:
    """An interval that a source says is whole."""
    if start >= end:
        raise GapError(
            f"covers from {format_time(start)} to {format_time(end)} is empty; it has to begin before it ends"
        )
    return start, end


def parse_covers(covers: object) -> tuple[int, int] | None:
    """`covers` of an append as its user gives it: two times, or one text ``START/END``."""
    if covers is None:
        return None
    bounds = covers.split("/") if isinstance(covers, str) else covers
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise GapError(f"covers={covers!r} is no interval; give (start, end), or 'START/END' as text")
    return check_covers(parse_instant(bounds[0], "covers"), parse_instant(bounds[1], "covers"))


def merge_claims(claims: tuple[tuple[int, int], ...], more: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Intervals that a source says are whole; those that meet are one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((*claims, *more)) if more else claims:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)


def settle_source(
    tables: Tables, entry: StreamEntry, state: StreamState, name: str, record: SourceEntry, wall_time: int
) -> SourceEntry:
    """Close the gaps of a source that has nothing in the spool; otherwise the slide that takes its rows in does."""
    if _first_spooled(tables, entry.id) <= record.spooled:
        return record
    ledger = Ledger(tables, entry, state.ordinal, wall_time)
    _close_reached(ledger, name, _own_progress(record, entry.definition.slack))
    _close_covered(ledger, name, record.covers)
    return replace(record, covers=())


def _first_spooled(tables: Tables, stream: int) -> int:
    """The number of the oldest spooled file; a great one if there is none."""
    return next((decode_last_int(key) for key, _ in tables.raw_items("spool", catalog_key(stream))), 1 << 62)


def record_gaps(
    tables: Tables,
    entry: StreamEntry,
    before: StreamState,
    slide: SlideEntry,
    sources: Mapping[str, SourceEntry],
    progress: SourceProgress,
    spooled: Iterable[SpoolEntry],
) -> None:
    """Open, grow and close gaps with a slide, whose taken files have left the spool already.

    Args:
        tables: Of the slide's transaction.
        entry: The stream.
        before: Its state before the slide.
        slide: The slide.
        sources: As they were when the slide looked which files it takes in.
        progress: Theirs, then.
        spooled: Those files.
    """
    definition, now, ledger = entry.definition, slide.now, Ledger(tables, entry, slide.ordinal, slide.at)
    stream, waiting = catalog_key(entry.id), _first_spooled(tables, entry.id)
    current = {key[len(stream) :].decode(): record for key, record in tables.items("sources", stream)}
    # What a source said while the slide was under way counts only if it had sent no rows with it.
    settled = {
        name: record if record.spooled < waiting else sources.get(name, SourceEntry())
        for name, record in current.items()
    }
    passed = None if before.slide is None else definition.model.slot_end(before.slide)
    _record_first_data(ledger, definition, before, spooled)
    settled_progress = progress if settled == sources else compute_progress(definition, before, settled)
    for source in settled_progress.sources:
        _close_reached(ledger, source.name, source.progress)
        if source.progress is not None and source.progress >= now:
            continue
        if source.failed is not None:
            _grow_gap(ledger, "failed", source, passed, now, source.failed)
        elif definition.sources or source.spoken_for:
            cause = "max_skew spoke for it" if source.spoken_for else "the slide was forced past it"
            _grow_gap(ledger, "behind", source, passed, now, cause)
    for name, record in settled.items():
        if record.covers:
            _close_covered(ledger, name, record.covers)
            claims = () if record is current[name] else tuple(c for c in current[name].covers if c not in record.covers)
            tables.put("sources", stream + name.encode(), replace(current[name], covers=claims))
    ledger.prune(None if definition.longest_life is None else now - definition.longest_life)


def record_restored(tables: Tables, taken: int, wall_time: int) -> None:
    """What sources sent after a backup was taken is not in the warehouse that is restored from it at `wall_time`."""
    cause = f"restored from a backup of {format_time(taken)}"
    for _, entry in list(tables.items("streams")):
        if entry.definition.inputs:
            continue
        _, state = find_stream(tables, entry.definition.name)
        stream, ledger = catalog_key(entry.id), Ledger(tables, entry, state.ordinal, wall_time)
        entries = {key[len(stream) :].decode(): record for key, record in tables.items("sources", stream)}
        progress = compute_progress(entry.definition, state, entries)
        reached = {source.name: source.progress for source in progress.sources} if entry.definition.sources else {}
        for source, start in (reached or {"": progress.upto}).items():
            if start is not None and start < wall_time:
                ledger.add("restored", source, start, wall_time, cause)


def _record_first_data(
    ledger: Ledger, definition: StreamDefinition, before: StreamState, spooled: Iterable[SpoolEntry]
) -> None:
    """A source of which rows come for the first time may have had earlier ones; nobody says."""
    unheard = [gap for gap in ledger.open.values() if gap.after is None and gap.kind in ("failed", "behind")]
    if before.slide is not None and not unheard:
        return
    least: dict[str, int] = {}
    for file in spooled:
        source = file.source if definition.sources else ""
        earliest = min((segment.min_ts for segment in file.segments), default=None)
        if earliest is not None:
            least[source] = min(earliest, least.get(source, earliest))
    for source, earliest in least.items():
        replaced = [gap for gap in unheard if gap.source == source]
        if before.slide is None or replaced:
            ledger.add(BEFORE_FIRST, source, None, earliest - 1, "nothing earlier has come")
        for gap in replaced:
            if gap.end < earliest:
                ledger.close(gap, f"{source} has sent its first rows")
            else:
                ledger.put(replace(gap, start=earliest - 1))


def _close_reached(ledger: Ledger, source: str, progress: int | None) -> None:
    """Close or shorten the gaps of a source that was behind and has come since."""
    for gap in list(ledger.open.values()) if progress is not None else ():
        if gap.kind == "behind" and gap.source == source and not gap.kept and progress is not None:
            if gap.end <= progress:
                ledger.close(gap, f"{source} has reached {format_time(progress)}")
            elif gap.after is None or gap.after < progress:
                ledger.put(ledger.shortened(gap, progress, gap.end))


def _close_covered(ledger: Ledger, source: str, claims: Iterable[tuple[int, int]]) -> None:
    for start, end in claims:
        ledger.cover(source, start, end, f"{source} covered {format_time(start)} to {format_time(end)}")


def _grow_gap(ledger: Ledger, kind: str, source: SourceStatus, before: int | None, now: int, cause: str) -> None:
    """The slide from `before` to `now` was made without the source; what earlier ones lacked of it is written down."""
    of_source = [gap for gap in ledger.open.values() if (gap.kind, gap.source) == (kind, source.name) and not gap.kept]
    start = max((time for time in (source.progress, before) if time is not None), default=None)
    last = next((gap for gap in of_source if gap.end == start == before), None)
    if last is None:
        ledger.add(kind, source.name, start, now, cause)
    else:
        ledger.put(replace(last, end=now))
