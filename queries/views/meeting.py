"""Leaving out rows that meet no new row before DuckDB sees them: a window has many rows, a batch has few keys.

What passes is a superset; the join itself decides.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_WIDEST = 1 << 24
"""Integers that lie no further apart than this are looked up in a table of bits (bytes, to be quick)."""
_ROWS = 1 << 19
"""Rows that are looked at together: many segments are small."""

Mask = Callable[[pa.ChunkedArray], pa.Array]


def mask_of(values: pa.Array) -> Mask:
    """Which of many values are among `values`, which has no nulls."""
    if pa.types.is_integer(values.type) and len(values):
        low, high = pc.min_max(values).as_py().values()
        if high - low < _WIDEST:
            return _by_table(values.to_numpy(zero_copy_only=False), low, high)
    return lambda column: pc.is_in(column, value_set=values)


def _by_table(values: npt.NDArray[np.integer], low: int, high: int) -> Mask:
    wide = np.uint64 if values.dtype == np.uint64 else np.int64  # differences do not fit into narrow types
    known = np.zeros(high - low + 2, bool)
    known[values.astype(wide) - wide(low)] = True
    last = wide(high - low + 1)  # never known: what lies outside is looked up there

    def mask(column: pa.ChunkedArray) -> pa.Array:
        if column.null_count:
            return pc.is_in(column, value_set=pa.array(values))
        keys = column.to_numpy().astype(wide, copy=False)
        inside = (keys >= low) & (keys <= high)
        return pa.array(known[np.where(inside, keys - wide(low), last)])

    return mask


def meeting(rows: Iterable[pa.RecordBatch], schema: pa.Schema, column: str, mask: Mask) -> Iterator[pa.RecordBatch]:
    """The rows whose value in `column` passes."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in rows:
        waiting.append(batch)
        count += batch.num_rows
        if count >= _ROWS:
            yield from _passing(waiting, schema, column, mask)
            waiting, count = [], 0
    if waiting:
        yield from _passing(waiting, schema, column, mask)


def _passing(rows: list[pa.RecordBatch], schema: pa.Schema, column: str, mask: Mask) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches(rows, schema)
    batches: list[pa.RecordBatch] = table.filter(mask(table.column(column))).combine_chunks().to_batches()
    return batches
