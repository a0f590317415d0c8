"""Types of the hash join kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

class Matcher:
    """Keys of one or more whole numbers, and the places at which each stands.

    Args:
        columns: One for each number of a key, all equally long and without nulls: fewer than 2**30 rows.
    """

    distinct: int

    def __init__(self, columns: Sequence[npt.NDArray[Any]]) -> None: ...
    def match(
        self, columns: Sequence[Sequence[pa.Array]], start: int = 0, most: int = ...
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
        """Pairs of equal keys: a place in a window, from `start` on, and one in the keys. What has a null is in none.

        Args:
            columns: One for each number of a key, each a list of chunks: arrays of whole numbers of up to 64 bits,
                signed, or of fewer.
            start: The first place to look at.
            most: No other one is looked at once there are so many pairs.

        Returns:
            The places in the window, in their order, those in the keys, and the first place that was not looked at.
        """

def can_gather(kind: pa.DataType) -> bool:
    """Whether values of a type can be gathered: fixed width, texts, and dictionaries of texts."""

def gather(chunks: Sequence[pa.Array], places: npt.NDArray[np.int64]) -> pa.Array:
    """The values at `places` of a column that lies in `chunks`; those of a dictionary come as they are, without it.

    Args:
        chunks: At least one array, all of the same type.
        places: As `Matcher.match` gives them; of a single chunk, just its rows.
    """
