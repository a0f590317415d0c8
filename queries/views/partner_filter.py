"""Leaving out rows that meet no new row before DuckDB sees them: a window has many rows, a batch has few keys.

What passes is a superset; the join itself decides.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.indexes.row_model import Int64s
from windrow.native import rows as native_rows

_WIDEST = 1 << 24
"""Integers that lie no further apart than this are looked up in a table of flags."""
_ROWS = 1 << 19
"""Rows that are looked at before those that pass go on together: many segments are small."""

Mask = Callable[[pa.Array], Int64s]
"""Gives the positions of values that pass."""


def mask_of(values: pa.Array) -> Mask:
    """Which of many values are among `values`, which has no nulls."""
    if pa.types.is_integer(values.type) and not pa.types.is_uint64(values.type) and len(values):
        low, high = pc.min_max(values).as_py().values()
        if high - low < _WIDEST:
            return _by_table(values, low, high)

    def among(column: pa.Array) -> Int64s:
        found: Int64s = np.flatnonzero(pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False))
        return found

    return among


def _by_table(values: pa.Array, low: int, high: int) -> Mask:
    known = np.zeros(high - low + 1, bool)
    known[_numbers(values) - low] = True

    def mask(column: pa.Array) -> Int64s:
        if not column.null_count:
            return native_rows.members(_numbers(column), low, known)
        valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        return valid[native_rows.members(_numbers(column.drop_null()), low, known)]

    return mask


def _numbers(column: pa.Array) -> Int64s:
    """Integers without nulls; differences of narrow ones would not fit into their own type."""
    numbers: Int64s = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def meeting(rows: Iterable[pa.RecordBatch], schema: pa.Schema, column: str, mask: Mask) -> Iterator[pa.RecordBatch]:
    """The rows whose value in `column` passes."""
    waiting: list[pa.RecordBatch] = []
    count, place = 0, schema.get_field_index(column)
    for batch in rows:
        # Batch by batch, since these stay in the processor's cache.
        passing = mask(batch.column(place))
        if len(passing):
            waiting.append(batch.take(pa.array(passing)))
        count += batch.num_rows
        if count >= _ROWS:
            yield from _together(waiting, schema)
            waiting, count = [], 0
    yield from _together(waiting, schema)


def _together(rows: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = pa.Table.from_batches(rows, schema).combine_chunks().to_batches()
    return batches
