"""What a slide rewrites: the choice of segments to merge, for each kind of maintenance.

``rebuild`` merges every touched sub-index, ``norebuild`` none. ``adaptive`` merges from a budget that follows the
batch, so that the cost of a slide does not grow with the window; it merges where
a byte rewritten removes most dead bytes.
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

# Thresholds of what is merged; set by the updates of `bench core` and by `bench growth` (docs/storage.md).
_SMALL_BYTES = 1 << 20
"""New files below this are merged at the slide,"""
_SMALL_FILES = 4
"""if there are at least so many of them."""
_CROWDING_BYTES = 256 << 10
"""Files that are smaller than this cost their readers all alike, larger ones less and less for each byte."""
_LEAST_WEIGHT = 1 / 16
"""What a large file counts at least, when files are counted against `max_segments`."""
_FAN_IN = 4
"""Files with many dead rows are merged so many at a time."""
_WIDE_FAN_IN = 16
"""Files that are too many are merged so many at a time: a merge costs two disk syncs, which many slides share."""
_MOST_INPUTS = 64
"""Files of one merge."""
_SMALLEST_SIZE = 64 << 10
"""Files below this are of one size when files are sorted into sizes."""
_LARGEST_MERGE = 1
"""In batches (of at least a megabyte): one slide never rewrites more than it could have taken in."""
_LEAST_MERGE = 0.25
"""In batches, too: a merge costs a file and its syncs however small it is, so small ones wait."""
_DEAD_SHARE = 0.5
"""Dead rows cost readers next to nothing and leave by themselves, band by band: they are merged away only where this
share of an insertion row's bytes is dead."""

# What bounds the disk space of a whole stream; set by the quotes of `bench realistic`.
_DEAD_BYTES = 1.0
"""Bytes of dead rows that a stream may hold for each byte of living ones, unless its index says less,"""
_LEAST_DEAD_BYTES = 256 << 10
"""and so many in any case: a small stream has nothing to save."""
_LEAST_REMOVED = 64 << 10
"""A merge for their sake removes at least so many: it costs a file and its syncs."""
_MOST_KEPT = 0.75
"""Files of which more lives stay as they are, so a byte that dies has at most three others written again."""

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
    return merge_each_cell(chain.from_iterable(small), slide) if len(small) >= _SMALL_FILES else []


@dataclass(frozen=True)
class FileArrays:
    """The files of an insertion row, as arrays: there may be thousands, and a Python step for each would be slow."""

    segments: Sequence[Segment]
    file_of: Int64s
    """The file of each segment, as a position in the arrays that follow."""
    size: Int64s
    live: Int64s
    """Estimated bytes of live rows."""
    rows: Int64s
    dead: Int64s
    whole: Int64s
    """Estimated bytes of the files, rows included that are in no segment any more."""

    @classmethod
    def of(cls, segments: Sequence[Segment], arrays: SegmentArrays, dead: Int64s) -> "FileArrays":
        """Add up the statistics of segments, and how many of their rows are dead, by file."""
        _, first, number = np.unique(arrays.file, return_index=True, return_inverse=True)
        order = np.argsort(first)  # as the segments come, whatever numbers stand for the files
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        file_of = rank[number]
        live = arrays.bytes * ((arrays.rows - dead) / np.maximum(1, arrays.rows))
        values = arrays.bytes, np.ceil(live), arrays.rows, dead
        size, alive, rows, gone = (_sum_by_file(file_of, len(first), each) for each in values)
        whole = (size * (arrays.file_rows[first[order]] / np.maximum(1, rows))).astype(np.int64)
        return cls(segments, file_of, size, alive, rows, gone, whole)

    def segments_of(self, files: Int64s) -> list[Segment]:
        """The segments of some of the files."""
        return list(compress(self.segments, np.isin(self.file_of, files).tolist()))


def plan_adaptive_merges(files: FileArrays, index: Index, bucket: int, batch_bytes: int, slide: int) -> list[Merge]:
    """Merges that are worth it and that the budget pays, in the insertion row that the slide touches anyway.

    Whole files are rewritten, all their cells at once: a file is deleted when its last segment leaves, and readers need
    not skip segments that are gone.

    Args:
        files: Those with segments in touched cells of that row.
        index: Its thresholds.
        bucket: Bytes saved up for merging.
        batch_bytes: Bytes that this slide takes in; one slide never rewrites much more than that.
        slide: The slide under way.
    """
    limit = min(bucket, max(batch_bytes, _SMALL_BYTES) * _LARGEST_MERGE)
    cheapest = np.argsort(files.live, kind="stable")
    mostly_dead = cheapest[(files.dead >= index.dead_fraction * files.rows)[cheapest]]
    if files.size.sum() - files.live.sum() < _DEAD_SHARE * files.size.sum():
        mostly_dead = mostly_dead[:0]
    wide_fan_in = min(_WIDE_FAN_IN, max(2, index.max_segments // 4))
    surplus = _same_size(cheapest, files.live, wide_fan_in) if measure_crowding(files.size, index) > 1 else cheapest[:0]
    for candidates, budget, fan_in in ((mostly_dead, limit, _FAN_IN), (surplus, max(limit, _SMALL_BYTES), wide_fan_in)):
        chosen = _affordable(candidates, files.live, budget)
        cost = int(files.live[chosen].sum())
        worthwhile = cost >= max(batch_bytes, _SMALL_BYTES) * _LEAST_MERGE or len(chosen) >= fan_in
        if len(chosen) > 1 and worthwhile:
            return merge_each_cell(files.segments_of(chosen), slide)
    return []


def plan_dead_merges(files: FileArrays, index: Index, fresh_bytes: int, spent: int, slide: int) -> list[Merge]:
    """Merges that keep the dead bytes of a stream within a share of the living ones: the deadest files, rewritten.

    Each byte that dies pays for at most three that are written again, whatever lifetimes are like.

    Args:
        files: All of the stream's that no other merge rewrites, but for those that came with this slide.
        index: Its thresholds.
        fresh_bytes: Of files that came with it.
        spent: Bytes that its other merges write: all together are no more than it could have taken in.
        slide: The slide under way.
    """
    dead = files.whole - files.live
    allowed = min(_DEAD_BYTES, index.dead_fraction / max(1e-9, 1.0 - index.dead_fraction))
    excess = int(dead.sum()) - max(_LEAST_DEAD_BYTES, int(allowed * (int(files.live.sum()) + fresh_bytes)))
    if excess <= 0:
        return []
    share = files.live / np.maximum(1, files.whole)
    deadest = np.argsort(share, kind="stable")
    deadest = deadest[share[deadest] <= _MOST_KEPT]
    chosen = _affordable(deadest, files.live, max(fresh_bytes, _SMALL_BYTES) * _LARGEST_MERGE - spent)
    enough = int(np.searchsorted(np.cumsum(dead[chosen]), max(excess, _LEAST_REMOVED))) + 1
    chosen = chosen[:enough]
    if int(dead[chosen].sum()) < _LEAST_REMOVED:
        return []
    return merge_each_cell(files.segments_of(chosen), slide)


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


def _affordable(files: Int64s, live: Int64s, limit: int) -> Int64s:
    """As many of the cheapest files as the limit pays."""
    first = files[:_MOST_INPUTS]
    return first[: int(np.searchsorted(np.cumsum(live[first]), limit, side="right"))]


def _sum_by_file(file_of: Int64s, count: int, values: npt.NDArray[Any]) -> Int64s:
    sums: Int64s = np.bincount(file_of, weights=values, minlength=count).astype(np.int64)
    return sums


def group_by_cell(segments: Iterable[Segment]) -> dict[CellKey, list[Segment]]:
    """Segments by their cells."""
    cells: dict[CellKey, list[Segment]] = {}
    for segment in segments:
        cells.setdefault(segment.cell, []).append(segment)
    return cells


def merge_each_cell(segments: Iterable[Segment], slide: int) -> list[Merge]:
    """Merge the segments of each cell into one."""
    cells = group_by_cell(segments)
    return [Merge(cell, tuple(members), sum(s.live_bytes(slide) for s in members)) for cell, members in cells.items()]
