"""Leaves out rows of a large window that cannot join with a small batch of new rows, before DuckDB reads them.

Rows are found by the values of a joined column or by the directories of the partner's segments. What passes is a
superset: the join itself decides.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.catalog.lookups import find_stream
from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.probe import KeyRange, locate_rows
from windrow.indexes.row_model import Int64s
from windrow.indexes.segments import Segment
from windrow.native import key_encoding as native_keys
from windrow.native import rows as native_rows
from windrow.queries.views.plan import Prune
from windrow.store import Store

# How a large partner is read: by its directories, filtered, or whole. They matter to `bench views`, but
# no trial of the single numbers is on record; the first two bound memory.
_MAX_TABLE_RANGE = 1 << 24
"""Integers in a range no longer than this are looked up in a table of flags."""
_ROWS = 1 << 19
"""Rows that are filtered before those that pass go on together: many segments are small."""
MAX_LOOKUP_KEYS = 4_000
"""Up to so many values are looked up in the directories of a partner; more are joined by hash."""
_ROWS_PER_LOOKUP = 12
"""A lookup of one value in one directory costs as much as joining so many rows by hash."""
_ROWS_PER_LOOKUP_BY_KERNEL = 40
"""The same where a kernel looks at the rows (`bench views`: 90 ns for a lookup, 2.5 ns for a row)."""
_MAX_LOOKUP_SHARE = 0.2
"""If directories find more than this share of the rows, the whole window is read."""
MAX_REPEATS = 8
"""New rows repeat a value hardly more often than this: with more rows than that for each value that may be looked up,
the values need not be counted."""
MANY_PARTNER_ROWS = 4
"""A partner with so many times more rows than those it meets is filtered before it is joined."""

Mask = Callable[[pa.Array], Int64s]
"""Gives the positions of values that pass."""


def make_mask(values: pa.Array) -> Mask:
    """Which of many values are among `values`, which has no nulls."""
    if pa.types.is_integer(values.type) and not pa.types.is_uint64(values.type) and len(values):
        low, high = pc.min_max(values).as_py().values()
        if high - low < _MAX_TABLE_RANGE:
            return _by_table(values, low, high)

    def among(column: pa.Array) -> Int64s:
        positions: Int64s = np.flatnonzero(pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False))
        return positions

    return among


def _by_table(values: pa.Array, low: int, high: int) -> Mask:
    flags = np.zeros(high - low + 1, bool)
    flags[_numbers(values) - low] = True

    def mask(column: pa.Array) -> Int64s:
        if not column.null_count:
            return native_rows.find_members(_numbers(column), low, flags)
        valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        return valid[native_rows.find_members(_numbers(column.drop_null()), low, flags)]

    return mask


def _numbers(column: pa.Array) -> Int64s:
    """Integers without nulls; differences of narrow ones would not fit into their own type."""
    numbers: Int64s = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def filter_rows(rows: Iterable[pa.RecordBatch], schema: pa.Schema, column: str, mask: Mask) -> Iterator[pa.RecordBatch]:
    """The rows whose value in `column` passes."""
    waiting: list[pa.RecordBatch] = []
    count, position = 0, schema.get_field_index(column)
    for batch in rows:
        # Batch by batch, since these stay in the processor's cache.
        passing = mask(batch.column(position))
        if len(passing):
            waiting.append(batch.take(pa.array(passing)))
        count += batch.num_rows
        if count >= _ROWS:
            yield from _combine(waiting, schema)
            waiting, count = [], 0
    yield from _combine(waiting, schema)


def _combine(rows: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = pa.Table.from_batches(rows, schema).combine_chunks().to_batches()
    return batches


def max_lookup_keys(segments: Sequence[Segment], *, by_kernel: bool = False) -> int:
    """How many values may be looked up in directories before it would be dearer than to look at all rows."""
    rows_per_lookup = _ROWS_PER_LOOKUP_BY_KERNEL if by_kernel else _ROWS_PER_LOOKUP
    return sum(segment.rows for segment in segments) // (rows_per_lookup * max(1, len(segments)))


def encode_partner_ranges(definition: StreamDefinition, values: Sequence[pa.ChunkedArray]) -> list[KeyRange] | None:
    """Where the first columns of a search key have given values, which are not null; None if they never can."""
    kinds = [_plain(kind) for kind in definition.key_types()[: len(values)]]
    try:
        arrays = [column.cast(kind).combine_chunks() for column, kind in zip(values, kinds, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if not len(arrays[0]):
        return []
    encoded = sorted(native_keys.encode(arrays).to_pylist())
    if len(values) == len(definition.key):
        return [KeyRange(low, low) for low in encoded]
    return [KeyRange(low, native_keys.successor(low), open_ended=True) for low in encoded]


def prune_by_directory(store: Store, definition: StreamDefinition, ranges: Sequence[KeyRange]) -> Prune:
    """Which rows of a stream's segments have such keys."""
    directories = store.directories
    layouts = store.catalog.read(lambda tables: find_stream(tables, definition.name)[1].layouts)
    sorted_by_key = {layout.id for layout in layouts if layout.key == definition.key}

    def prune(segments: Sequence[Segment]) -> tuple[Sequence[Segment], SegmentRanges] | None:
        stored = [segment for segment in segments if segment.id >= 0 and segment.layout in sorted_by_key]
        located = locate_rows(stored, ranges, lambda segments_read, read: read(directories(segments_read)))
        if located.rows > _MAX_LOOKUP_SHARE * sum(segment.rows for segment in segments):
            return None
        ranges_by_segment = located.by_segment()
        # What the same slide has just made has no directory yet, and the directories of a layout before a change of
        # the key are of another one: both are read whole.
        used = {segment.id for segment in stored}
        ranges_by_segment |= {s.id: (np.array([s.start]), np.array([s.stop])) for s in segments if s.id not in used}
        return [segment for segment in segments if segment.id in ranges_by_segment], ranges_by_segment

    return prune


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
