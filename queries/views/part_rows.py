"""Rows of segments as views read them: columns in chunks as they lie in memory, and the values at some places."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.row_model import Int64s
from windrow.indexes.segments import Segment
from windrow.native import hash_match as native_matches

ROW_BITS = 32
"""A position is the number of a chunk, and below it in so many bits the row inside the chunk."""
ROW_MASK = (1 << ROW_BITS) - 1
MAX_HELD_ROWS = 1 << 20
"""Rows of a stream that are joined together: the columns of more might not fit into memory. Both are not measured."""
MAX_BATCH_BYTES = 64 << 20
"""Combinations of so many bytes go on to the next stream before others are searched."""


class PartRows:
    """Some rows of a part, in chunks.

    Args:
        lengths: Of the chunks.
        read: Gives a column, an array for each chunk.
    """

    def __init__(self, lengths: Sequence[int], read: Callable[[str], Sequence[pa.Array]]) -> None:
        self.stop = len(lengths) << ROW_BITS
        """The position behind the last row."""
        self._lengths = lengths
        self._read = read
        self._columns: dict[str, Sequence[pa.Array]] = {}

    @classmethod
    def from_batches(cls, batches: Sequence[pa.RecordBatch]) -> "PartRows":
        """Rows that were read with all their columns."""
        return cls([batch.num_rows for batch in batches], lambda name: [batch.column(name) for batch in batches])

    @property
    def positions(self) -> Int64s:
        """The positions of all rows."""
        return list_positions(self._lengths)

    def column(self, name: str) -> Sequence[pa.Array]:
        """A column, an array for each chunk."""
        if name not in self._columns:
            self._columns[name] = self._read(name)
        return self._columns[name]

    def take(self, name: str, places: Int64s) -> pa.Array:
        """The values of a column at some positions."""
        return take_values(self.column(name), places)


def list_positions(lengths: Sequence[int], starts: Sequence[int] = ()) -> Int64s:
    """The positions of all rows of chunks; those of each are counted from its start, or else from 0."""
    counts = np.array(lengths, np.int64)
    ends = np.cumsum(counts)
    firsts = (np.arange(len(counts), dtype=np.int64) << ROW_BITS) + (np.array(starts, np.int64) if starts else 0)
    positions: Int64s = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(firsts - (ends - counts), counts)
    return positions


def take_values(chunks: Sequence[pa.Array], positions: Int64s) -> pa.Array:
    """The values of a column in chunks at some positions, without a dictionary."""
    if not any(isinstance(chunk, pa.ChunkedArray) for chunk in chunks) and native_matches.can_gather(chunks[0].type):
        return native_matches.gather(chunks, positions)
    starts = np.cumsum([0, *map(len, chunks)])
    flat = [piece for chunk in chunks for piece in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    rows = pa.array(starts[positions >> ROW_BITS] + (positions & ROW_MASK))
    taken = pa.chunked_array(map(_widen_indices, flat)).take(rows)
    whole = taken.chunk(0) if taken.num_chunks == 1 else taken.combine_chunks()
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


def _widen_indices(values: pa.Array) -> pa.Array:
    """Dictionaries with small indices have no room for the values of other chunks."""
    if not pa.types.is_dictionary(values.type):
        return values
    return pa.DictionaryArray.from_arrays(values.indices.cast(pa.int32()), values.dictionary)


def open_segments(cache: ColumnCache, definition: StreamDefinition, segments: Sequence[Segment]) -> PartRows:
    """All rows of segments, a chunk for each; only the columns that are asked for are decoded."""
    full = definition.stored_schema
    repeating = cache.find_repeating(segments, full)
    lengths = [segment.rows for segment in segments]
    return PartRows(
        lengths,
        lambda name: cache.read_column(segments, compact_column(full.field(name), name in repeating), full),
    )


def compact_column(field: pa.Field, repeats: bool) -> pa.Field:
    """A column as it is held: text that repeats as a dictionary."""
    return field.with_type(pa.dictionary(pa.int32(), field.type)) if repeats else field


def batch_segments(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments in batches that are read together."""
    batch, rows, size = list[Segment](), 0, 0
    for segment in segments:
        batch.append(segment)
        rows, size = rows + segment.rows, size + segment.bytes
        if rows >= MAX_HELD_ROWS or size >= MAX_BATCH_BYTES:
            yield batch
            batch, rows, size = [], 0, 0
    if batch:
        yield batch
