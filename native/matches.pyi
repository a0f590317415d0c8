"""Types of the kernel that finds rows with equal keys."""

from typing import Any

import numpy as np
import numpy.typing as npt

class Matcher:
    """Whole numbers and the places at which each stands.

    Args:
        keys: Of up to 64 bits, signed, or of fewer; fewer than 2**30.
    """

    distinct: int

    def __init__(self, keys: npt.NDArray[Any]) -> None: ...
    def match(
        self, values: npt.NDArray[Any], start: int = 0, most: int = ...
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
        """Pairs of equal numbers: a place in `values`, from `start` on, and one in the keys.

        Args:
            values: Of the same kinds as keys.
            start: The first to look at.
            most: No other one is looked at once there are so many pairs.

        Returns:
            The places in `values`, in their order, those in the keys, and the first place that was not looked at.
        """
