"""What a slide rewrites: the choice of segments to merge, for each kind of maintenance.

`rebuild` merges every touched sub-index, `norebuild` none. `adaptive` merges from a budget that follows the batch, so
that the cost of a slide does not grow with the window; it spends where a byte rewritten removes most dead bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from windrow.indexes.partitioners import Index
from windrow.indexes.segments import Segment

_SMALL_BYTES = 1 << 20
_SMALL_FILES = 4
_FAN_IN = 4
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


def rebuild(cells: Mapping[CellKey, Sequence[Segment]], slide: int) -> list[Merge]:
    """Merge all segments of each given (touched) cell that is not already one segment of live rows."""
    return [
        Merge(cell, tuple(segments), sum(s.live_bytes(slide) for s in segments))
        for cell, segments in cells.items()
        if len(segments) > 1 or (segments and segments[0].dead(slide))
    ]


def small_arrivals(arrivals: Mapping[CellKey, Sequence[Segment]], slide: int) -> list[Merge]:
    """Merge what one slide took in as many small files, once, at the slide."""
    files = _by_file(arrivals)
    small = {file: segments for file, segments in files.items() if sum(s.bytes for s in segments) < _SMALL_BYTES}
    return _by_cell(small.values(), slide) if len(small) >= _SMALL_FILES else []


def adaptive(
    cells: Mapping[CellKey, Sequence[Segment]], row: int, slide: int, index: Index, bucket: int, batch_bytes: int
) -> list[Merge]:
    """Merges that are worth it and that the budget pays, in the insertion row that the slide touches anyway.

    Whole files are rewritten, all their cells at once: a file goes when its last segment does, and a reader need not
    step around segments that are gone.

    Args:
        cells: Segments of each touched cell.
        row: The insertion row of this slide.
        slide: The slide under way.
        index: Its thresholds.
        bucket: Bytes saved up for merging.
        batch_bytes: Bytes that this slide takes in; one slide never rewrites much more than that.
    """
    files = _by_file({cell: segments for cell, segments in cells.items() if cell[1] == row})
    crowded = crowding(files.values(), index)
    limit = min(bucket, max(batch_bytes, _SMALL_BYTES) * _LARGEST_MERGE)
    live, rotten, stored = {}, [], 0
    for file, segments in files.items():
        dead, rows = sum(s.dead(slide) for s in segments), sum(s.rows for s in segments)
        size = sum(s.bytes for s in segments)
        live[file] = size * (rows - dead) // max(1, rows)
        stored += size
        if dead >= index.dead_fraction * rows:
            rotten.append(file)
    if stored - sum(live.values()) < _WASTED * stored:
        rotten = []
    cheapest = sorted(files, key=lambda file: live[file])
    rotten.sort(key=lambda file: live[file])
    surplus = _same_size(cheapest, live) if crowded > 1 else []
    for group in (rotten, surplus):
        chosen = _affordable(group, live, max(limit, _SMALL_BYTES) if group is surplus else limit)
        cost = sum(live[file] for file in chosen)
        worthwhile = cost >= batch_bytes * _WORTHWHILE or len(chosen) >= _FAN_IN
        if len(chosen) > 1 and worthwhile:
            return _by_cell([files[file] for file in chosen], slide)
    return []


def crowding(files: Iterable[Sequence[Segment]], index: Index) -> float:
    """How many times too many files a row holds; a large one costs its readers less for each byte, and counts less."""
    return (
        sum(min(1.0, max(0.25, _SMALL_BYTES / max(1, sum(s.bytes for s in own)))) for own in files) / index.max_segments
    )


def bucket_after(
    index: Index, bucket: int, batch_bytes: int, cells: Mapping[CellKey, Sequence[Segment]], row: int
) -> int:
    """The budget of a slide: a share of what it took in, more while its insertion row holds too many files."""
    crowded = crowding(_by_file({cell: own for cell, own in cells.items() if cell[1] == row}).values(), index)
    share = index.merge_budget if crowded <= 1 else max(index.merge_budget, min(2.0, crowded - 1.0))
    return min(bucket + int(share * batch_bytes), max(batch_bytes, _SMALL_BYTES) * _LARGEST_MERGE)


def _same_size(cheapest: Sequence[str], live: Mapping[str, int]) -> list[str]:
    """The smallest files of about one size, of which there are enough: a row is then rewritten once per size."""
    sizes: dict[int, list[str]] = {}
    for file in cheapest:
        sizes.setdefault((live[file] // _SMALLEST_SIZE).bit_length() // 3, []).append(file)
    return next((group for _, group in sorted(sizes.items()) if len(group) >= _FAN_IN), list(cheapest[:_FAN_IN]))


def _affordable(group: Sequence[str], live: Mapping[str, int], limit: int) -> list[str]:
    chosen = []
    for file in group[:_MOST_INPUTS]:
        if live[file] <= limit:
            chosen.append(file)
            limit -= live[file]
    return chosen


def _by_file(cells: Mapping[CellKey, Sequence[Segment]]) -> dict[str, list[Segment]]:
    files: dict[str, list[Segment]] = {}
    for segments in cells.values():
        for segment in segments:
            files.setdefault(segment.file, []).append(segment)
    return files


def _by_cell(files: Iterable[Sequence[Segment]], slide: int) -> list[Merge]:
    cells: dict[CellKey, list[Segment]] = {}
    for segments in files:
        for segment in segments:
            cells.setdefault(segment.cell, []).append(segment)
    return [Merge(cell, tuple(own), sum(s.live_bytes(slide) for s in own)) for cell, own in cells.items()]
