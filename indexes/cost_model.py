"""The advisor's cost model: what each layout would cost for a stream's measured workload, by simulating its slides.

Costs are not estimated by a formula: the very code that plans a slide (`update_plan.plan_update`) is run over segments
that exist only as statistics, until their number is steady. What it reads and writes becomes time by `CostConstants`,
which `bench advisor` measures.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from windrow.indexes.maintenance import Merge
from windrow.indexes.partitioners import Index, Partitioner
from windrow.indexes.segment_builder import BAND_BYTES, MOST_BANDS
from windrow.indexes.segments import Segment, pack_histogram, unpack_histogram
from windrow.indexes.update_plan import UpdatePlan, plan_update

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that pauses after each small step and gives its result at the end."""
MOST_SLOTS = 48
"""A longer lifetime is simulated with wider slots: the shape of the result is the same, and the advice is quick."""
_COUNTED_SLIDES = 16
"""Slides that are counted, after the lifetime has passed once and a half. Both bound the time of an advice; what is
found with them is compared with real runs by `bench advisor`."""
_NO_EXPIRY = 1 << 62
"""The expiry slot of rows that never expire."""


@dataclass(frozen=True)
class Workload:
    """What was measured of a stream.

    Args:
        rows: Rows that a slide takes in, on average.
        row_bytes: Bytes of a stored row.
        lives: Slots that a row lives from the slide that took it in, each with its share of the rows; late rows and
            rows with little life left are in here. None: rows never expire.
        spread: How much the batches differ: standard deviation over mean.
        files: Files that a slide takes in.
        probes: Probes by the search key between two slides.
        scans: Scans between two slides.
        probe_rows: Rows that a probe finds.
    """

    rows: float
    row_bytes: float
    lives: Mapping[int, float] | None
    spread: float = 0.0
    files: float = 1.0
    probes: float = 0.0
    scans: float = 0.0
    probe_rows: float = 1.0

    @property
    def batch_bytes(self) -> float:
        """Bytes that a slide takes in."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class CostConstants:
    """Milliseconds of processor time, fitted to ``bench advisor`` (docs/benchmarks.md names the machine)."""

    append: float = 3.5
    """An append and its commit."""
    append_mb: float = 1.5
    """Sorting and writing a megabyte."""
    append_segment: float = 0.09
    """Each segment of the batch: its directory and record."""
    slide: float = 1.5
    """A slide that merges nothing."""
    slide_segment: float = 0.0005
    """Each segment of the stream."""
    merge: float = 3.5
    """A slide that merges anything: one file more."""
    merge_mb: float = 1.75
    """Reading, merging and writing a megabyte."""
    merge_segment: float = 0.67
    """Each segment that is merged."""
    probe: float = 0.71
    probe_segment: float = 0.0143
    probe_row: float = 0.0005
    scan: float = 0.49
    scan_segment: float = 0.0445
    scan_mb: float = 0.047
    scan_mixed_mb: float = 0.276
    """A megabyte in which live and dead rows alternate: they are picked one by one."""
    scan_dead_mb: float = 0.123
    """A megabyte of segments in which rows are dead: their times are read first."""


@dataclass(frozen=True)
class Estimate:
    """What one layout is expected to cost; times in milliseconds of the processor."""

    index: Index
    update: float
    probe: float
    scan: float
    total: float
    """Of one slide and the queries before the next."""
    space: float
    """Bytes on disk, dead rows included."""
    segments: float
    written: float
    """Bytes that a slide writes anew, besides what was appended."""


@dataclass
class _Simulation:
    """What was counted at each slide, after the number of segments was steady."""

    segments: list[int] = field(default_factory=list)
    live: list[float] = field(default_factory=list)
    edge: list[float] = field(default_factory=list)
    mixed: list[float] = field(default_factory=list)
    stored: list[float] = field(default_factory=list)
    merged_bytes: list[float] = field(default_factory=list)
    merged_segments: list[int] = field(default_factory=list)
    merges: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)


def finish(steps: Steps[T]) -> T:
    """Do work to its end, and give its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def propose_layouts(workload: Workload, slots: int | None) -> list[Index]:
    """The layouts that are worth comparing."""
    if slots is None or workload.lives is None:
        return [Index("append-only"), Index("append-only", max_segments=16, merge_budget=1.0)]
    sides = [side for side in (2, 4, 8) if side <= max(2, slots)]
    layouts = [
        Index("round-robin", side, side, maintenance=maintenance)
        for side in sides[:2]
        for maintenance in ("rebuild", "norebuild")
    ]
    layouts += [Index("round-robin", side, side) for side in sides]
    layouts.append(Index("round-robin", 4, 4, max_segments=16, merge_budget=1.0))
    layouts += [
        Index("wave-insertion", side, maintenance=maintenance)
        for side in sides[:2]
        for maintenance in ("norebuild", "adaptive")
    ]
    layouts += [Index("wave-insertion", 4, max_segments=16, merge_budget=1.0), Index("wave-expiry", 4)]
    return layouts


def compare_in_steps(workload: Workload, slots: int | None, indexes: Iterable[Index]) -> Steps[list[Estimate]]:
    """Estimates of layouts for a workload, the cheapest first, with a pause after each simulated slide.

    Args:
        workload: What was measured.
        slots: The longest lifetime in slots, None if rows never expire.
        indexes: The layouts.
    """
    estimates, costs = [], CostConstants()
    for index in indexes:
        simulation, slots_per_slide = yield from simulate_in_steps(workload, slots, index)
        estimates.append(_estimate(workload, index, simulation, slots_per_slide, costs))
    return sorted(estimates, key=lambda result: result.total)


def _estimate(
    workload: Workload, index: Index, simulation: "_Simulation", slots_per_slide: int, costs: CostConstants
) -> Estimate:
    mean = {name: float(np.mean(values)) for name, values in vars(simulation).items()}
    segments = mean["segments"] * (slots_per_slide if index.maintenance == "norebuild" else 1)
    merged_mb = mean["merged_bytes"] / slots_per_slide / 1e6
    update = (
        costs.append * workload.files
        + costs.append_mb * workload.batch_bytes / 1e6
        + costs.append_segment * mean["arrived"]
        + costs.slide
        + costs.slide_segment * segments
        + costs.merge * mean["merges"]
        + costs.merge_mb * merged_mb
        + costs.merge_segment * mean["merged_segments"]
    )
    probe = costs.probe + costs.probe_segment * segments + costs.probe_row * workload.probe_rows
    scan = (
        costs.scan
        + costs.scan_segment * segments
        + costs.scan_mb * mean["live"] / 1e6
        + costs.scan_mixed_mb * mean["mixed"] / 1e6
        + costs.scan_dead_mb * mean["edge"] / 1e6
    )
    return Estimate(
        index=index,
        update=update,
        probe=probe,
        scan=scan,
        total=update + workload.probes * probe + workload.scans * scan,
        space=mean["stored"],
        segments=segments,
        written=mean["merged_bytes"] / slots_per_slide,
    )


def simulate_slides(workload: Workload, slots: int | None, index: Index) -> tuple[_Simulation, int]:
    """Slide until the layout is steady, and count; also gives how many slots one simulated slide stands for."""
    return finish(simulate_in_steps(workload, slots, index))


def simulate_in_steps(workload: Workload, slots: int | None, index: Index) -> Steps[tuple[_Simulation, int]]:
    """`simulate_slides`, with a pause after each simulated slide."""
    longest = MOST_SLOTS if slots is None else slots
    slots_per_slide = max(1, -(-longest // MOST_SLOTS))
    partitioner = Partitioner(index, None if slots is None else max(1, -(-slots // slots_per_slide)))
    span = min(MOST_SLOTS, -(-longest // slots_per_slide))
    lives = _widen(workload.lives, slots_per_slide)
    segments: list[Segment] = []
    simulation, bucket, number = _Simulation(), 0, 0
    settled = span + span // 2
    for slide in range(1, settled + _COUNTED_SLIDES + 1):
        arrivals, number = _arrivals(workload, lives, partitioner, slide, slots_per_slide, number)
        update = plan_update(slide, slide - 1, slide, slide, {0: partitioner}, arrivals, segments, bucket)
        bucket = update.bucket
        replaced = {segment.id for segment in update.replaced()}
        merged, number = _merged(update, slide, number)
        segments = [*(s for s in segments if s.id not in replaced), *update.kept(), *merged]
        if slide > settled:
            _count(simulation, update, arrivals, segments, slide)
        yield
    return simulation, slots_per_slide


def _count(
    simulation: _Simulation,
    update: UpdatePlan,
    arrivals: Sequence[Sequence[Segment]],
    segments: list[Segment],
    slide: int,
) -> None:
    live = [segment.live_bytes(slide) for segment in segments]
    simulation.segments.append(len(segments))
    simulation.live.append(sum(live))
    simulation.edge.append(sum(s.bytes for s in segments if s.min_exp <= slide))
    simulation.mixed.append(sum(2 * min(size, s.bytes - size) for s, size in zip(segments, live, strict=True)))
    simulation.stored.append(sum(segment.bytes for segment in segments))
    simulation.merges.append(bool(update.merges))
    simulation.merged_bytes.append(sum(merge.cost for merge in update.merges))
    simulation.merged_segments.append(sum(len(merge.segments) for merge in update.merges))
    simulation.arrived.append(sum(len(file) for file in arrivals))


def _widen(lives: Mapping[int, float] | None, slots_per_slide: int) -> Mapping[int, float] | None:
    """Lifetimes counted in simulated slides."""
    if lives is None:
        return None
    wide: dict[int, float] = {}
    for life, share in sorted(lives.items()):
        slides = max(1, -(-life // slots_per_slide))
        wide[slides] = wide.get(slides, 0.0) + share
    return wide


def _arrivals(
    workload: Workload,
    lives: Mapping[int, float] | None,
    partitioner: Partitioner,
    slide: int,
    slots_per_slide: int,
    number: int,
) -> tuple[list[list[Segment]], int]:
    """The segments of the files that a slide takes in, as an append would cut them."""
    files = max(1, round(workload.files))
    swing = 1 + min(0.9, workload.spread) * (1 if slide % 2 else -1)
    rows = workload.rows * slots_per_slide * swing / files
    files_made = []
    for file in range(files):
        segments = []
        for slots, counts, column in _cuts(lives, partitioner, slide, workload.row_bytes, rows):
            number += 1
            segments.append(_segment(number, f"a{slide}.{file}", column, slots, counts, workload.row_bytes, slide))
        files_made.append(segments)
    return files_made, number


def _cuts(
    lives: Mapping[int, float] | None, partitioner: Partitioner, slide: int, row_bytes: float, rows: float
) -> Iterable[tuple[list[int], list[int], int]]:
    """Expiry slots and row counts of each segment of a file, and its column."""
    if lives is None:
        yield [_NO_EXPIRY], [max(1, int(rows))], 0
        return
    columns: dict[int, dict[int, float]] = {}
    for life, share in lives.items():
        columns.setdefault(partitioner.column(slide + life), {})[slide + life] = share * rows
    for column, counts in sorted(columns.items()):
        total = sum(counts.values())
        if total < 0.5:
            continue
        bands = int(min(MOST_BANDS, max(1, round(total * row_bytes / BAND_BYTES))))
        for band in _banded(counts, total, bands):
            yield list(band), [max(1, round(count)) for count in band.values()], column


def _banded(counts: Mapping[int, float], total: float, bands: int) -> list[dict[int, float]]:
    band_counts: list[dict[int, float]] = [{} for _ in range(bands)]
    before = 0.0
    for slot, count in counts.items():
        band_counts[min(bands - 1, int(before * bands / total))][slot] = count
        before += count
    return [band for band in band_counts if band]


def _segment(
    number: int, file: str, column: int, slots: list[int], counts: list[int], row_bytes: float, slide: int, row: int = 0
) -> Segment:
    rows = sum(counts)
    return Segment(
        id=number,
        file=file,
        start=0,
        rows=rows,
        file_rows=rows,
        bytes=int(rows * row_bytes),
        layout=0,
        row=row,
        column=column,
        first_slide=slide,
        last_slide=slide,
        seq_base=0,
        min_ts=0,
        max_ts=0,
        min_exp=slots[0],
        max_exp=slots[-1],
        expiries=pack_histogram(np.array(slots, np.int64), np.array(counts, np.int64)),
    )


def _merged(update: UpdatePlan, slide: int, number: int) -> tuple[list[Segment], int]:
    """The segments that the merges of a slide write."""
    segments = []
    for merge in update.merges:
        slots, counts = _histogram(merge, slide)
        if len(slots):
            number += 1
            size = sum(s.bytes for s in merge.segments) / max(1, sum(s.rows for s in merge.segments))
            _, row, column = merge.cell
            segments.append(_segment(number, f"m{slide}", column, slots, counts, size, slide, row))
    return segments, number


def _histogram(merge: Merge, slide: int) -> tuple[list[int], list[int]]:
    totals: dict[int, int] = {}
    for segment in merge.segments:
        slots, counts = unpack_histogram(segment.expiries)
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            if slot > slide:
                totals[slot] = totals.get(slot, 0) + count
    return sorted(totals), [totals[slot] for slot in sorted(totals)]
