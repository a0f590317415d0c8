"""From rows to segments: split by expiry column, sorted by (search key, expiry, arrival), with directories.

The sorted order is an array of row numbers: a sorted copy of the rows is never made, they are gathered when written.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.indexes.partitioners import Partitioner
from windrow.indexes.row_model import SEQ, Int64s, RowModel
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.segments import pack_histogram
from windrow.native import directory as native_directory
from windrow.native import rows as native_rows

# Sizes of segments and directories; set by the update and probe lines of `bench core`.
BAND_BYTES = 1 << 20
"""Rows of neighbouring expiry slots that make a segment of their own."""
MOST_BANDS = 4
"""For each expiry column of a file: more segments would cost readers more than dead rows do."""
_MOST_BAND_COUNTERS = 1 << 20
"""Expiry slots times columns, up to which bands are made."""
_BLOCK_BYTES = 4096
"""Rows that one entry of a sparse directory stands for."""
_ENTRY_BYTES = 16
"""About what a directory entry takes."""
_DIRECTORY_SHARE = 0.02
"""Bytes that a directory may take, in bytes of its rows."""
_MOST_REPEATS = 32
"""Rows per distinct key from which each key has an entry, at most."""


@dataclass(frozen=True)
class SegmentDraft:
    """A segment that is not in the catalog yet: a run of rows of one expiry column in a sorted batch."""

    column: int
    start: int
    rows: int
    min_ts: int
    max_ts: int
    min_exp: int
    max_exp: int
    expiries: bytes
    directory: bytes


@dataclass(frozen=True)
class SortedBatch:
    """A table, the order in which its rows are stored, and the segments that they make in that order."""

    table: pa.Table
    order: Int64s
    cuts: tuple[SegmentDraft, ...]

    def write(self, output: SegmentFileWriter) -> None:
        """Write the rows, gathered in their order."""
        for cut in self.cuts:
            output.add(self.table, self.order[cut.start : cut.start + cut.rows])


def sort_into_segments(
    table: pa.Table, model: RowModel, partitioner: Partitioner, ts: Int64s, exp: Int64s, seq: Int64s
) -> SortedBatch:
    """Sort `table` (without `_seq`) into storage order.

    Args:
        table: Rows, all of them acceptable.
        model: How to read them.
        partitioner: Gives the expiry column.
        ts: Event times.
        exp: Expiry times.
        seq: Arrival order, becomes the hidden column.
    """
    slots = model.slots(exp)
    columns = partitioner.columns_of(slots)
    row_bytes = table.nbytes / max(1, table.num_rows)
    bands, column_of = _bands(columns, slots, partitioner.columns, row_bytes)
    keys = model.encoded_keys(table) if model.key else None
    order = native_rows.sort_order(bands if len(column_of) > 1 else None, keys, exp)
    if keys is not None:
        keys = keys.take(pa.array(order))
    ts, exp, slots = ts[order], exp[order], slots[order]
    band_numbers, starts = native_rows.find_run_starts(bands[order])
    stops = [*starts.tolist()[1:], len(order)]
    cuts = tuple(
        draft_segment(column_of[band], start, stop, ts, exp, slots, keys, row_bytes)
        for band, start, stop in zip(band_numbers.tolist(), starts.tolist(), stops, strict=True)
    )
    return SortedBatch(table.append_column(SEQ, pa.array(seq)).combine_chunks(), order, cuts)


def _bands(
    columns: npt.NDArray[np.uint16], slots: Int64s, count: int, row_bytes: float
) -> tuple[npt.NDArray[np.uint16], list[int]]:
    """Split each expiry column into bands of neighbouring expiry slots, each a segment of its own.

    Rows that die at about the same time then lie together and leave together: nothing has to be rewritten to remove
    them, and few segments hold both live and dead rows.

    Returns:
        The band of each row, counted over all columns, and the column of each band.
    """
    first, last = int(slots.min()), int(slots.max())
    per_band = max(1, int(BAND_BYTES / max(1.0, row_bytes)))
    spread = last - first + 1
    if len(slots) <= per_band or spread * count > _MOST_BAND_COUNTERS:
        return columns, list(range(count))
    codes = columns.astype(np.int64) * spread + (slots - first)
    counts = np.bincount(codes, minlength=spread * count).reshape(count, spread)
    totals = counts.sum(axis=1, keepdims=True)
    wanted = np.clip(np.round(totals / per_band), 1, MOST_BANDS).astype(np.int64)
    within = np.minimum((np.cumsum(counts, axis=1) - counts) * wanted // np.maximum(1, totals), wanted - 1)
    offsets = np.concatenate(([0], np.cumsum(within.max(axis=1) + 1)[:-1]))
    band_of = (within + offsets[:, None]).astype(np.uint16)
    column_of = [column for column in range(count) for _ in range(int(within[column].max()) + 1)]
    return band_of.reshape(-1)[codes], column_of


def draft_segment(
    column: int,
    start: int,
    stop: int,
    ts: Int64s,
    exp: Int64s,
    slots: Int64s,
    keys: pa.Array | None,
    row_bytes: float = 100.0,
) -> SegmentDraft:
    """The statistics and directory of rows [start, stop), given in storage order."""
    rows = slice(start, stop)
    segment_keys = keys.slice(start, stop - start) if keys is not None else None
    return SegmentDraft(
        column=int(column),
        start=start,
        rows=stop - start,
        min_ts=int(ts[rows].min()),
        max_ts=int(ts[rows].max()),
        min_exp=int(exp[rows].min()),
        max_exp=int(exp[rows].max()),
        expiries=pack_histogram(*native_rows.histogram(slots[rows])),
        directory=build_directory(segment_keys, row_bytes) if segment_keys is not None else b"",
    )


def build_directory(keys: pa.Array, row_bytes: float) -> bytes:
    """The directory of a segment, finer where rows are wide: an entry should save more reading than it costs."""
    block_rows = max(4, int(_BLOCK_BYTES / max(1.0, row_bytes)))
    repeats = max(1, int(_ENTRY_BYTES / (_DIRECTORY_SHARE * max(1.0, row_bytes))))
    return native_directory.build(keys, block_rows=block_rows, repeats=min(repeats, _MOST_REPEATS))


def number_arrivals(rows: int, before: int) -> Int64s:
    """Arrival ordinals of `rows` rows that follow `before` others."""
    return np.arange(before, before + rows, dtype=np.int64)
