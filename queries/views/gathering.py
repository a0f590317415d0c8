"""Rows of a window, column by column as they lie decoded in memory, and results that are made of them.

A window has many segments, each of which is a chunk here. Keys are looked up in all of them; of everything else only
what was found is gathered, by a kernel where the type allows it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.indexes.row_model import Int64s
from windrow.native import hash_match as native_matches
from windrow.queries.views.chaining import Place

_ROW = (1 << 32) - 1


class Stretch:
    """Some rows of a part, in chunks.

    Args:
        lengths: Of the chunks.
        read: Gives a column, an array for each chunk.
    """

    def __init__(self, lengths: Sequence[int], read: Callable[[str], Sequence[pa.Array]]) -> None:
        self.stop = len(lengths) << 32
        """The place behind the last row."""
        self._lengths = lengths
        self._read = read
        self._known: dict[str, Sequence[pa.Array]] = {}

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch]) -> "Stretch":
        """Rows that were read with all their columns."""
        return cls([batch.num_rows for batch in batches], lambda name: [batch.column(name) for batch in batches])

    @property
    def places(self) -> Int64s:
        """Those of all rows."""
        own = [np.arange(length, dtype=np.int64) + (at << 32) for at, length in enumerate(self._lengths)]
        return np.concatenate(own) if own else np.empty(0, np.int64)

    def column(self, name: str) -> Sequence[pa.Array]:
        """A column, an array for each chunk."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def take(self, name: str, places: Int64s) -> pa.Array:
        """What a column has at some places."""
        return taken(self.column(name), places)


def taken(chunks: Sequence[pa.Array], places: Int64s) -> pa.Array:
    """What chunks of a column have at some places, without a dictionary."""
    if not any(isinstance(chunk, pa.ChunkedArray) for chunk in chunks) and native_matches.gathers(chunks[0].type):
        return native_matches.gather(chunks, places)
    starts = np.cumsum([0, *map(len, chunks)])
    flat = [piece for chunk in chunks for piece in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    found = pa.chunked_array(flat).take(pa.array(starts[places >> 32] + (places & _ROW)))
    whole = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


@dataclass(frozen=True)
class Combined:
    """Combinations of rows of some parts, which may become results when the other parts join.

    Args:
        begins: With the last of its parts, each.
        ends: With the first of them.
        columns: What later steps and the result need.
    """

    begins: Int64s
    ends: Int64s
    columns: Mapping[Place, pa.Array]

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.begins)

    @property
    def nbytes(self) -> int:
        """How large."""
        return int(self.begins.nbytes + self.ends.nbytes + sum(column.nbytes for column in self.columns.values()))

    def keys(self, places: Sequence[Place]) -> tuple[list[Int64s], Int64s | None]:
        """Columns of whole numbers, and which combinations have them all; None: every one."""
        own = [self.columns[place] for place in places]
        rows = None
        if any(column.null_count for column in own):
            valid = [column.is_valid().to_numpy(zero_copy_only=False) for column in own]
            rows = np.flatnonzero(np.logical_and.reduce(valid))
            own = [column.take(pa.array(rows)) for column in own]
        return [column.to_numpy() for column in own], rows

    @classmethod
    def together(cls, several: Iterable["Combined"]) -> "Combined":
        """All combinations of several, which have the same columns."""
        own = list(several)
        if len(own) == 1:
            return own[0]
        return cls(
            np.concatenate([each.begins for each in own]),
            np.concatenate([each.ends for each in own]),
            {place: pa.concat_arrays([each.columns[place] for each in own]) for place in own[0].columns},
        )
