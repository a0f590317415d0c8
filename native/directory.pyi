"""Types of the directory kernel."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

class Ranges(NamedTuple):
    """Candidate rows as parallel arrays: rows [start, stop) of a blob, all of them matching where exact."""

    blob: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]

def build(keys: pa.Array | pa.ChunkedArray, *, block_rows: int = 128, max_key: int = 64, repeats: int = 32) -> bytes:
    """Makes the directory of a segment from its encoded keys in sorted order.

    Args:
        keys: as `windrow.native.key_encoding.encode` gives them.
        block_rows: rows per entry where keys are near-unique.
        max_key: longest part of a key that is kept.
        repeats: rows per distinct key from which on each key has an entry of its own.
    """

def lookup(blobs: Sequence[Buffer], lows: Sequence[bytes], highs: Sequence[bytes | None]) -> Ranges:
    """Finds the rows of each directory that may lie in any of the inclusive key ranges; a high of None is unbounded."""

def verify(blob: Buffer, keys: pa.Array | pa.ChunkedArray) -> str | None:
    """Says in a sentence what in a directory does not fit the sorted keys of its segment, or gives None."""

def describe(blob: Buffer) -> dict[str, int | bool]:
    """Says what a directory is: its rows, entries, size, and whether it is dense and exact."""

def find_extremes(blob: Buffer) -> tuple[bytes, bytes] | None:
    """The least key of a directory and what its greatest key begins with; either may be cut. None if it has no rows."""
