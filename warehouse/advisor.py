"""Advice on layouts and search keys: measures the workload of a stream and compares layouts by the cost model.

A stream with ``index="auto"`` follows the advice by itself, seldom and only where it is clearly better.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from windrow.background import SMALL_SHARE, background_of
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import SlideEntry, StreamEntry, StreamState, UsageEntry
from windrow.catalog.segment_log import load_segments
from windrow.errors import WindowError
from windrow.indexes.cost_model import Estimate, Steps, Workload, compare_in_steps, finish, propose_layouts
from windrow.indexes.partitioners import Index
from windrow.indexes.segments import Segment, unpack_histogram
from windrow.native import key_encoding as native_keys
from windrow.relayout import relayout
from windrow.store import Store

CLEARLY_BETTER_SHARE = 0.75
"""A layout is clearly better if it costs at most this share of what the present one costs: beyond the
20 % that `bench advisor` lets a choice miss the best by. The other numbers here are rules, not measured."""
FIRST_REVIEW, REVIEW_INTERVAL = 64, 512
"""Slides after which a stream that chooses for itself looks at the advice, and then how often."""
_MEASURED_SLIDES = 64
"""Slides over which rows, files and lifetimes are measured."""
_KEY_SHARE = 0.5
"""The share of filtering queries that must compare a column before it is worth being the search key."""
_FEW_QUERIES = 20
"""Comparisons that must have been counted before another search key is advised."""
_LARGE_GROUPS, _LARGE_BATCH = 4 << 20, 16 << 20
"""Bytes of row groups that are advised for streams that are only scanned, and of the batches from which on."""


@dataclass(frozen=True)
class Advice:
    """What would serve a stream best."""

    stream: str
    workload: Workload
    current: Estimate
    best: Estimate
    alternatives: tuple[Estimate, ...]
    """All that were compared, the cheapest first."""
    key: tuple[str, ...]
    """The search key to have; the present one unless queries filter by something else."""
    key_why: str
    row_group_bytes: int
    why: str
    measured_slides: int

    @property
    def clearly_better(self) -> bool:
        """Whether turning to it is worth the change."""
        return self.best.index != self.current.index and self.best.total <= CLEARLY_BETTER_SHARE * self.current.total


@dataclass(frozen=True)
class _Measurements:
    entry: StreamEntry
    state: StreamState
    segments: tuple[Segment, ...]
    slides: list[SlideEntry]
    usage: UsageEntry


def advise(store: Store, stream: str, among: Iterable[Index] | None = None) -> Advice:
    """Compare layouts for what was measured of a stream; see `Warehouse.advise`."""
    return finish(advise_in_steps(store, stream, among))


def advise_in_steps(store: Store, stream: str, among: Iterable[Index] | None = None) -> Steps[Advice]:
    """`advise`, with a pause after each slide that is played through."""
    measured = store.catalog.read(lambda tables: _read_measurements(store, tables, stream))
    if not measured.slides or not measured.state.inserted:
        raise WindowError(f"stream {stream!r} has taken in no rows yet; there is nothing to go by")
    workload = measure_workload(measured)
    slots = measured.entry.definition.lifetime_slots
    current = measured.state.layout.index
    indexes = list(dict.fromkeys([current, *(propose_layouts(workload, slots) if among is None else among)]))
    estimates = yield from compare_in_steps(workload, slots, indexes)
    own_estimate = next(estimate for estimate in estimates if estimate.index == current)
    key, key_why = _choose_key(measured)
    large = not workload.probes and workload.scans > 0 and workload.batch_bytes >= _LARGE_BATCH
    return Advice(
        stream=stream,
        workload=workload,
        current=own_estimate,
        best=estimates[0],
        alternatives=tuple(estimates),
        key=key,
        key_why=key_why,
        row_group_bytes=_LARGE_GROUPS if large else Index().row_group_bytes,
        why=_explain_choice(workload, own_estimate, estimates[0]),
        measured_slides=len(measured.slides),
    )


def follow_advice(store: Store, stream: str) -> None:
    """Let a stream with ``index="auto"`` turn to what is clearly better; called after a slide of it.

    Looked at when the stream has slid 64 times, then after 512 slides, 1024, 2048 and every 4096, in the background:
    playing layouts through takes some hundred milliseconds. Never before a lifetime has passed or while a change is
    under way: a layout must be steady to be judged.
    """

    def due(tables: Tables) -> bool:
        entry, state = find_stream(tables, stream)
        definition, number = entry.definition, state.ordinal
        if not definition.index_auto or definition.inputs or state.relayout is not None:
            return False
        if number < (definition.lifetime_slots or 0):
            return False
        rounds, rest = divmod(number, REVIEW_INTERVAL)
        return number == FIRST_REVIEW or (rest == 0 and (rounds in (1, 2, 4) or rounds % 8 == 0))

    if not store.read_only and store.catalog.read(due):
        background_of(store).add(store, f"advice for stream {stream!r}", review(store, stream), SMALL_SHARE)


def review(store: Store, stream: str) -> Steps[bool]:
    """Compare layouts, and turn the stream to one that is clearly better; gives whether it was turned."""
    advice = yield from advise_in_steps(store, stream)
    if advice.clearly_better:
        relayout(store, stream, advice.best.index, auto=True, why=advice.why)
    return advice.clearly_better


def _read_measurements(store: Store, tables: Tables, stream: str) -> _Measurements:
    entry, state = find_stream(tables, stream)
    first = max(0, state.ordinal - _MEASURED_SLIDES + 1)
    slides = [tables.get("slides", catalog_key(entry.id, ordinal)) for ordinal in range(first, state.ordinal + 1)]
    usage = tables.get("usage", catalog_key(entry.id)) or UsageEntry()
    segments = load_segments(store, tables, entry.id, state)
    return _Measurements(entry, state, segments, [slide for slide in slides if slide is not None], usage)


# -- measuring -------------------------------------------------------------------------------------------------------


def measure_workload(measured: _Measurements) -> Workload:
    """The workload of a stream, as the catalog has it."""
    inserted = np.array([slide.inserted for slide in measured.slides], float)
    rows = float(inserted.mean())
    stored = sum(segment.rows for segment in measured.segments)
    row_bytes = sum(segment.bytes for segment in measured.segments) / stored if stored else 100.0
    usage = measured.usage
    slides = max(1, usage.slides)
    return Workload(
        rows=max(1.0, rows),
        row_bytes=row_bytes,
        lives=_measure_lifetimes(measured),
        spread=float(inserted.std() / rows) if rows else 0.0,
        files=_files_per_slide(measured),
        probes=usage.probes / slides,
        scans=usage.scans / slides,
        probe_rows=usage.probe_rows / max(1, usage.probes),
    )


def _files_per_slide(measured: _Measurements) -> float:
    """Files that one slide takes in, by those that are still as they came."""
    files: dict[int, set[str]] = {}
    for segment in measured.segments:
        if segment.first_slide == segment.last_slide and segment.seq_base:
            files.setdefault(segment.last_slide, set()).add(segment.file)
    return float(np.mean([len(names) for names in files.values()])) if files else 1.0


def _measure_lifetimes(measured: _Measurements) -> dict[int, float] | None:
    """How many slots rows live from the slide that took them in, with their shares."""
    definition, slide = measured.entry.definition, measured.state.slide
    if definition.longest_life is None:
        return None
    slots = definition.lifetime_slots or 1
    shares = _lifetimes_of_last_slides(measured) or _lifetimes_of_stored_rows(measured, slide or 0)
    return shares or {slots: 1.0}


def _lifetimes_of_last_slides(measured: _Measurements) -> dict[int, float]:
    """Of rows that lie as they were appended; what is missing of a slide has died at once."""
    recent = {slide.slide: slide.inserted for slide in measured.slides[-4:] if slide.inserted}
    counts: dict[int, float] = {}
    for segment in measured.segments:
        if segment.first_slide == segment.last_slide and segment.seq_base and segment.last_slide in recent:
            for slot, count in zip(*map(np.ndarray.tolist, unpack_histogram(segment.expiries)), strict=True):
                life = max(1, slot - segment.last_slide)
                counts[life] = counts.get(life, 0.0) + count
    total, counted = float(sum(recent.values())), sum(counts.values())
    if counted < total / 2:
        return {}
    if total > counted:
        counts[1] = counts.get(1, 0.0) + total - counted
    return {life: count / max(total, counted) for life, count in sorted(counts.items())}


def _lifetimes_of_stored_rows(measured: _Measurements, slide: int) -> dict[int, float]:
    """In a steady stream as many rows have r slots left as live r slots or more: differences are what we look for."""
    rows_by_remaining: dict[int, float] = {}
    for segment in measured.segments:
        for slot, count in zip(*map(np.ndarray.tolist, unpack_histogram(segment.expiries)), strict=True):
            if slot > slide:
                rows_by_remaining[slot - slide] = rows_by_remaining.get(slot - slide, 0.0) + count
    if not rows_by_remaining:
        return {}
    longest = max(rows_by_remaining)
    counts = np.array([rows_by_remaining.get(slots, 0.0) for slots in range(1, longest + 2)])
    survived = np.maximum.accumulate(counts[::-1])[::-1]
    lives = np.maximum(0.0, survived[:-1] - survived[1:])
    return {position + 1: float(share) for position, share in enumerate(lives / max(lives.sum(), 1e-9)) if share > 0}


def _choose_key(measured: _Measurements) -> tuple[tuple[str, ...], str]:
    """The search key that queries ask for, and why."""
    definition, filters = measured.entry.definition, measured.usage.filters
    total = sum(filters.values())
    if total < _FEW_QUERIES:
        return definition.key, "too few queries were counted to judge the search key"
    column, count = max(filters.items(), key=lambda item: item[1])
    by_key = filters.get(definition.key[0], 0) if definition.key else 0
    if definition.key[:1] == (column,):
        return definition.key, f"{count / total:.0%} of comparisons are by {column!r}, which is the search key"
    schema = definition.schema
    if column not in schema.names or not native_keys.is_supported(schema.field(column).type):
        return definition.key, f"most comparisons are by {column!r}, which cannot be a search key"
    if count < _KEY_SHARE * total or count < 2 * by_key:
        return definition.key, f"no other column is compared much more often than {definition.key[:1]}"
    return (
        column,
    ), f"{count / total:.0%} of comparisons are by {column!r}, only {by_key / total:.0%} by the search key"


def _explain_choice(workload: Workload, current: Estimate, best: Estimate) -> str:
    """The reason in a sentence."""
    parts = {
        "updates": current.update - best.update,
        "probes": workload.probes * (current.probe - best.probe),
        "scans": workload.scans * (current.scan - best.scan),
    }
    shape = f"{workload.rows:,.0f} rows of {workload.row_bytes:,.0f} bytes a slide"
    load = f"{workload.probes:,.1f} probes and {workload.scans:,.1f} scans between slides"
    if best.index == current.index:
        return f"with {shape} and {load}, nothing that was compared costs less than {best.index}"
    saved = max(parts, key=lambda name: parts[name])
    costliest = min(parts, key=lambda name: parts[name])
    less = f"{saved} cost {parts[saved]:,.1f} ms less"
    more = f", {costliest} {-parts[costliest]:,.1f} ms more" if parts[costliest] < -0.05 else ""
    return f"with {shape} and {load}, {less} with {best.index}{more}"
