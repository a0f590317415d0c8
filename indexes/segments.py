"""A segment: an immutable, sorted row range of a Parquet file in one cell, and what is known without reading it."""

from bisect import bisect_right
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

Histogram = bytes
"""How many rows each slot has, as bytes: see `pack_histogram`."""

PackedEnds = bytes
"""Rows and when they end, as bytes: see `end_overrides`."""

SEQ_BITS = 36
"""Low bits of a row's sequence number: its position in its slide. The others are the slide's ordinal."""


class Segment(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One segment, as the catalog keeps it."""

    id: int
    file: str
    """Path relative to the warehouse."""
    start: int
    """First row in the file."""
    rows: int
    file_rows: int
    """Rows of the whole file."""
    bytes: int
    layout: int
    row: int
    column: int
    first_slide: int
    """Slot numbers of the first and last slide that took in a row of this segment."""
    last_slide: int
    seq_base: int
    """Added to the stored `_seq` of each row."""
    min_ts: int
    max_ts: int
    min_exp: int
    max_exp: int
    expiries: Histogram
    """How many rows expire in each slot."""
    ended: PackedEnds = b""
    """Rows that ended sooner than is stored with them: see `end_overrides`."""

    @property
    def stop(self) -> int:
        """One past the last row in the file."""
        return self.start + self.rows

    @property
    def cell(self) -> tuple[int, int, int]:
        """(layout, row, column)."""
        return self.layout, self.row, self.column

    def dead(self, slide: int) -> int:
        """How many rows are dead at `slide`."""
        slots, rows_before = _cumulative_histogram(self.expiries)
        return int(rows_before[bisect_right(slots, slide)])

    def live_bytes(self, slide: int) -> int:
        """Estimated bytes of the rows that are live at `slide`."""
        return self.bytes * (self.rows - self.dead(slide)) // max(1, self.rows)


def pack_histogram(slots: Int64s, counts: Int64s) -> Histogram:
    """Distinct slots (ascending) and their row counts as bytes."""
    return np.concatenate([slots, counts]).astype("<i8").tobytes()


def unpack_histogram(packed: Histogram) -> tuple[Int64s, Int64s]:
    """The inverse of `pack_histogram`, without copying."""
    numbers = np.frombuffer(packed, "<i8")
    half = len(numbers) // 2
    return numbers[:half], numbers[half:]


@lru_cache(maxsize=1 << 14)
def _cumulative_histogram(packed: Histogram) -> tuple[Int64s, Int64s]:
    """Slots, and the rows before each of them and in all; cached because every slide needs it of each segment."""
    slots, counts = unpack_histogram(packed)
    return slots, np.concatenate(([0], np.cumsum(counts)))


def compute_seq_base(ordinal: int, rows_before: int) -> int:
    """The base of a segment's sequence: slide ordinal in the high bits, earlier rows of that slide in the low ones."""
    return (ordinal << SEQ_BITS) + rows_before
