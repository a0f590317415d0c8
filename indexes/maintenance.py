"""What a slide rewrites: the choice of segments to merge, for each kind of maintenance.

`plan_rebuild` merges every touched sub-index, `norebuild` none. `plan_adaptive_merges` merges from a budget that follows the batch, so
that the cost of a slide does not grow with the window; it spends where a byte rewritten removes most dead bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.indexes.manifest import SegmentArrays
from windrow.indexes.partitioners import Index
from windrow.indexes.row_model import Int64s
from windrow.indexes.segments import Segment

_SMALL_BYTES = 1 << 20
_SMALL_FILES = 4
_CROWDING_BYTES = 256 << 10
"""Files that are smaller than this cost their readers all alike, larger ones less and less for each byte."""
_LEAST_WEIGHT = 1 / 16
_FAN_IN = 4
_WIDE_FAN_IN = 16
"""Crowded files are merged so many at a time: a merge costs two syncs of the disk, which as many slides then share."""
_MOST_INPUTS = 64
_SMALLEST_SIZE = 64 << 10
_LARGEST_MERGE = 1
"""In batches (of at least a megabyte): one slide never rewrites more than it could have taken in."""
_WORTHWHILE = 0.25
"""A merge costs a file and its syncs however small it is: small ones wait until they are worth a share of a batch."""
_WASTED = 0.5
"""Dead rows cost readers next to nothing and leave by themselves, band by band: they are merged away only where most of
an insertion row's bytes are dead, which bounds the disk space at about twice what lives."""

CellKey = tuple[int, int, int]


@dataclass(frozen=True)
class Merge:
    """Segments of one cell that become one."""

    cell: CellKey
    segments: tuple[Segment, ...]
    cost: int
    """Bytes to write."""


def plan_rebuild(cells: Mapping[CellKey, Sequence[Segment]], slide: int) -> list[Merge]:
    """Merge all segments of each given (touched) cell that is not already one segment of live rows."""
    return [
        Merge(cell, tuple(segments), sum(s.live_bytes(slide) for s in segments))
        for cell, segments in cells.items()
        if len(segments) > 1 or (segments and segments[0].dead(slide))
    ]


def plan_small_merges(arrivals: Iterable[Segment], slide: int) -> list[Merge]:
    """Merge what one slide took in as many small files, once, at the slide."""
    files: dict[str, list[Segment]] = {}
    for segment in arrivals:
        files.setdefault(segment.file, []).append(segment)
    small = [segments for segments in files.values() if sum(s.bytes for s in segments) < _SMALL_BYTES]
    return _merge_each_cell(chain.from_iterable(small), slide) if len(small) >= _SMALL_FILES else []


@dataclass(frozen=True)
class FileArrays:
    """The files of an insertion row, as arrays: there may be thousands, and nothing here is a Python step for each."""

    segments: Sequence[Segment]
    place: Int64s
    """The file of each segment, as a position in the arrays that follow."""
    size: Int64s
    live: Int64s
    """Estimated bytes of live rows."""
    rows: Int64s
    dead: Int64s

    @classmethod
    def of(cls, segments: Sequence[Segment], figures: SegmentArrays, dead: Int64s) -> "FileArrays":
        """Of segments, their figures, and how many of their rows are dead."""
        _, first, place = np.unique(figures.file, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they came, whatever numbers stand for them
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        place = rank[place]
        live = figures.bytes * ((figures.rows - dead) / np.maximum(1, figures.rows))
        columns = (_summed(place, len(first), values) for values in (figures.bytes, np.ceil(live), figures.rows, dead))
        return cls(segments, place, *columns)

    def chosen(self, files: Int64s) -> list[Segment]:
        """The segments of some of them."""
        return list(compress(self.segments, np.isin(self.place, files).tolist()))


def plan_adaptive_merges(files: FileArrays, index: Index, bucket: int, batch_bytes: int, slide: int) -> list[Merge]:
    """Merges that are worth it and that the budget pays, in the insertion row that the slide touches anyway.

    Whole files are rewritten, all their cells at once: a file goes when its last segment does, and a reader need not
    step around segments that are gone.

    Args:
        files: Those with segments in touched cells of that row.
        index: Its thresholds.
        bucket: Bytes saved up for merging.
        batch_bytes: Bytes that this slide takes in; one slide never rewrites much more than that.
        slide: The slide under way.
    """
    limit = min(bucket, max(batch_bytes, _SMALL_BYTES) * _LARGEST_MERGE)
    cheapest = np.argsort(files.live, kind="stable")
    rotten = cheapest[(files.dead >= index.dead_fraction * files.rows)[cheapest]]
    if files.size.sum() - files.live.sum() < _WASTED * files.size.sum():
        rotten = rotten[:0]
    wide = min(_WIDE_FAN_IN, max(2, index.max_segments // 4))
    surplus = _same_size(cheapest, files.live, wide) if measure_crowding(files.size, index) > 1 else cheapest[:0]
    for group, most, fan_in in ((rotten, limit, _FAN_IN), (surplus, max(limit, _SMALL_BYTES), wide)):
        chosen = _affordable(group, files.live, most)
        cost = int(files.live[chosen].sum())
        worthwhile = cost >= max(batch_bytes, _SMALL_BYTES) * _WORTHWHILE or len(chosen) >= fan_in
        if len(chosen) > 1 and worthwhile:
            return _merge_each_cell(files.chosen(chosen), slide)
    return []


def measure_crowding(sizes: Int64s, index: Index) -> float:
    """How many times too many files a row holds; a large one costs its readers less for each byte, and counts less."""
    weights = np.clip(_CROWDING_BYTES / np.maximum(1, sizes), _LEAST_WEIGHT, 1.0)
    return float(weights.sum()) / index.max_segments


def refill_budget(files: FileArrays, index: Index, bucket: int, batch_bytes: int) -> int:
    """The budget of a slide: a share of what it took in, more while its insertion row holds too many files."""
    crowded = measure_crowding(files.size, index)
    share = index.merge_budget if crowded <= 1 else max(index.merge_budget, min(2.0, crowded - 1.0))
    return min(bucket + int(share * batch_bytes), max(batch_bytes, _SMALL_BYTES) * _LARGEST_MERGE)


def _same_size(cheapest: Int64s, live: Int64s, enough: int) -> Int64s:
    """The smallest files of about one size, of which there are enough: a row is then rewritten once per size."""
    sizes = np.frexp(live[cheapest] // _SMALLEST_SIZE)[1] // 3
    for size in np.unique(sizes).tolist():
        if int((sizes == size).sum()) >= enough:
            cheapest = cheapest[sizes == size]
            break
    return cheapest


def _affordable(group: Int64s, live: Int64s, limit: int) -> Int64s:
    """As many of the cheapest as the limit pays."""
    first = group[:_MOST_INPUTS]
    return first[: int(np.searchsorted(np.cumsum(live[first]), limit, side="right"))]


def _summed(place: Int64s, count: int, values: npt.NDArray[Any]) -> Int64s:
    found: Int64s = np.bincount(place, weights=values, minlength=count).astype(np.int64)
    return found


def group_by_cell(segments: Iterable[Segment]) -> dict[CellKey, list[Segment]]:
    """Segments by their cells."""
    cells: dict[CellKey, list[Segment]] = {}
    for segment in segments:
        cells.setdefault(segment.cell, []).append(segment)
    return cells


def _merge_each_cell(segments: Iterable[Segment], slide: int) -> list[Merge]:
    return [
        Merge(cell, tuple(own), sum(s.live_bytes(slide) for s in own)) for cell, own in group_by_cell(segments).items()
    ]
