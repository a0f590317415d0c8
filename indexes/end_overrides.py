"""End overrides: rows of a segment that ended before the expiry that is stored with them.

Segments never change, so a row that later rows end sooner is named in the record of its segment, with its new end. The
record's statistics follow: the row counts in the expiry slot of its new end, and `min_exp` is no later than that. So a
segment with rows that have ended is always at the edge of a window, where rows are filtered; whoever filters them by
their times leaves out what `find_ended_rows` names as well. An override only shortens, so no statistic that prunes
becomes wrong, and a snapshot sees the overrides of its own commit, since it has that commit's records.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from windrow.indexes.row_model import NEVER, Int64s, RowModel
from windrow.indexes.segments import Segment, pack_histogram, unpack_histogram
from windrow.native import rows as native_rows

_MOST_OVERRIDDEN = 10
"""A segment of which more than one row in so many has ended by an override is written again without them. With 4,
slides of `bench views` with an ANTI or LEFT view over 200,000 rows took 14 to 16 % less processor time, for 10 to 15 %
more stored rows."""
_MAX_SEGMENT_ROWS = 1 << 32
_CACHED_SEGMENTS = 4096
"""Unpacked overrides that are remembered. Not measured: a bound on memory."""


class RowEnds(NamedTuple):
    """Rows, ascending, and the end of each."""

    rows: Int64s
    ends: Int64s


_NONE = RowEnds(np.empty(0, np.int64), np.empty(0, np.int64))


def read_ends(segment: Segment) -> RowEnds:
    """The overrides of a segment; rows are counted as in its file."""
    if not segment.ended:
        return _NONE
    rows, ends = _unpack(segment.ended)
    return RowEnds(rows + segment.start, ends)


def find_ended_rows(segment: Segment, now: int | None = None) -> Int64s:
    """The rows of a segment, as its file counts them, that overrides have ended by `now` (None: at any time)."""
    rows, ends = read_ends(segment)
    return rows if now is None else rows[ends <= now]


def find_ended_between(segment: Segment, after: int, upto: int) -> Int64s:
    """The rows, as the file counts them, that overrides have ended later than `after`, and by `upto`."""
    if not segment.ended:
        return _NONE.rows
    ends, rows, positions = _open(segment.ended)
    between = (ends > after) & (ends <= upto)
    return rows[between[positions]].astype(np.int64) + segment.start if between.any() else _NONE.rows


def find_live_ranges(segment: Segment, now: int | None = None) -> tuple[Int64s, Int64s]:
    """First rows and one past the last rows of the ranges between rows that overrides have ended by `now`."""
    ended = find_ended_rows(segment, now)
    starts, stops = np.concatenate(([segment.start], ended + 1)), np.concatenate((ended, [segment.stop]))
    return starts[starts < stops], stops[starts < stops]


def list_live_ranges(segment: Segment, now: int, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """The same ranges one by one, only what of them lies from row `start` up to row `stop` of the file."""
    if not segment.ended:
        return [(max(start, segment.start), segment.stop if stop is None else min(stop, segment.stop))]
    starts, stops = find_live_ranges(segment, now)
    starts, stops = np.maximum(starts, start), stops if stop is None else np.minimum(stops, stop)
    return [(low, high) for low, high in zip(starts.tolist(), stops.tolist(), strict=True) if low < high]


def find_ends(segment: Segment, rows: Int64s) -> Int64s:
    """When overrides end some rows of a segment, as its file counts them; `NEVER` for those without one."""
    ends, numbers, positions = _open(segment.ended)
    wanted = (rows - segment.start).astype("<u4")
    nearest = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    found: Int64s = np.where(numbers[nearest] == wanted, ends[positions[nearest]], NEVER)
    return found


def override_ends(segment: Segment, rows: Int64s, old_ends: Int64s, new_ends: Int64s, model: RowModel) -> Segment:
    """The segment with some of its rows ending sooner.

    Args:
        segment: As it is.
        rows: As its file counts them, each once.
        old_ends: When they would have ended, by what is stored or by an earlier override.
        new_ends: When they end; a later end than the old one changes nothing.
        model: Of the stream.
    """
    sooner = new_ends < old_ends
    rows, old_ends, new_ends = rows[sooner], old_ends[sooner], new_ends[sooner]
    if not len(rows):
        return segment
    earlier = read_ends(segment)
    every = np.concatenate((earlier.rows, rows))
    order = np.argsort(every, kind="stable")
    every = every[order]
    last = np.append(every[1:] != every[:-1], True)  # of two overrides of a row the later one counts
    return replace(
        segment,
        ended=_pack(every[last] - segment.start, np.concatenate((earlier.ends, new_ends))[order[last]]),
        min_exp=min(segment.min_exp, int(new_ends.min())),
        expiries=_move(segment.expiries, model.slots(old_ends), model.slots(new_ends)),
    )


def must_rewrite(segment: Segment, gone_at: int) -> bool:
    """Whether a segment has so many overridden rows that it is written again without them, and nobody needs them."""
    return _MOST_OVERRIDDEN * count_ended(segment) > segment.rows and can_merge(segment, gone_at)


def can_merge(segment: Segment, gone_at: int) -> bool:
    """Whether all overridden rows of a segment are dead to every reader at `gone_at`, so that they can be left out."""
    return not segment.ended or int(read_ends(segment).ends.max()) <= gone_at


def count_ended(segment: Segment) -> int:
    """How many rows have an override."""
    return len(read_ends(segment).rows)


def _move(expiries: bytes, before: Int64s, after: Int64s) -> bytes:
    """A histogram of slots after rows have gone from some slots to others."""
    slots, counts = unpack_histogram(expiries)
    (gone, losses), (come, gains) = native_rows.histogram(before), native_rows.histogram(after)
    every, positions = np.unique(np.concatenate((slots, gone, come)), return_inverse=True)
    sums = np.bincount(positions, np.concatenate((counts, -losses, gains)), len(every)).astype(np.int64)
    return pack_histogram(every[sums > 0], sums[sums > 0])


def _pack(rows: Int64s, ends: Int64s) -> bytes:
    """Few ends stand for many rows: how many ends, the ends, then the rows, then which end each has (little-endian)."""
    distinct, positions = np.unique(ends, return_inverse=True)
    if len(rows) and int(rows[-1]) >= _MAX_SEGMENT_ROWS:
        raise OverflowError(f"a segment of {int(rows[-1]):,} rows is too long for overrides")
    head = np.array([len(distinct)], "<i8").tobytes() + distinct.astype("<i8").tobytes()
    return head + rows.astype("<u4").tobytes() + positions.astype("<u4").tobytes()


@lru_cache(maxsize=_CACHED_SEGMENTS)
def _unpack(packed: bytes) -> RowEnds:
    ends, rows, positions = _open(packed)
    return RowEnds(rows.astype(np.int64), ends[positions].astype(np.int64))


def _open(packed: bytes) -> tuple[Int64s, npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """The ends, the rows, and which end each has, without copying."""
    count = int(np.frombuffer(packed, "<i8", 1)[0])
    numbers = np.frombuffer(packed, "<u4", -1, 8 * (count + 1))
    half = len(numbers) // 2
    return np.frombuffer(packed, "<i8", count, 8), numbers[:half], numbers[half:]
