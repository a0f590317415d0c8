"""Types of the group-by kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def merge_totals(totals: npt.NDArray[Any], numbers: npt.NDArray[np.int32], values: npt.NDArray[Any], how: str) -> None:
    """Merge values into the totals of their groups: `how` is sum, min or max."""

def find_top(
    values: npt.NDArray[Any], counts: npt.NDArray[np.int64], most: int, *, descending: bool
) -> npt.NDArray[np.int64]:
    """Where the first `most` of the values are among groups that have rows, in no order, and all that equal the last.

    Args:
        values: One of each group: int64 above its least one, or float64 without NaN.
        counts: Groups whose count is 0 are left out.
        most: At least 1.
        descending: Whether large values come first.
    """

def tally(
    rows: int, keys: Sequence[tuple[npt.NDArray[Any], int, int]], values: Sequence[tuple[npt.NDArray[Any], str]]
) -> tuple[list[npt.NDArray[Any]], npt.NDArray[Any], list[npt.NDArray[Any]]]:
    """Groups of rows with equal keys, in the order of their codes, and what each adds up to.

    Args:
        rows: How many there are, below 2**30.
        keys: Columns of int8 to int64, each with its least value and how many bits are enough for what is above it,
            together at most 62. The code of a row has those of the first column in its lowest bits.
        values: Columns of int8 to int64, each with sum, min or max; sums must fit in 64 bits.

    Returns:
        The columns of the groups' keys, how many rows each group has, and a total for each of the values, all of them
        as narrow as they fit.
    """
