"""Types of the kernels over numbered groups."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def merge(totals: npt.NDArray[Any], numbers: npt.NDArray[np.int32], values: npt.NDArray[Any], how: str) -> None:
    """Merge values into the totals of their groups: `how` is sum, min or max."""

def first(
    values: npt.NDArray[Any], counts: npt.NDArray[np.int64], most: int, *, descending: bool
) -> npt.NDArray[np.int64]:
    """Where the first `most` of the values are among groups that have rows, in no order, and all that equal the last.

    Args:
        values: One of each group: int64 above its least one, or float64 without NaN.
        counts: Groups whose count is 0 are left out.
        most: At least 1.
        descending: Whether large values come first.
    """

def codes(columns: Sequence[npt.NDArray[Any]], leasts: Sequence[int], shifts: Sequence[int]) -> npt.NDArray[np.int64]:
    """One number for the values of several columns: each counted from its least one and shifted to its own bits.

    Args:
        columns: int8 to int64, equally long, at least one; none has a value below its least one.
        leasts: What each is counted from.
        shifts: By how many bits each is shifted; that the codes do not overlap is the caller's to know.
    """

def number(
    keys: npt.NDArray[np.int64], bits: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Number equal keys in the order in which they come; gives the number of each, the keys by number, and how often.

    Args:
        keys: int64, not negative.
        bits: All of them have at most so many.
    """
