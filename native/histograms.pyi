"""Types of the kernel over packed histograms."""

import numpy as np
import numpy.typing as npt

def rows_between(packed: list[bytes], after: int | None, upto: int) -> npt.NDArray[np.int64]:
    """How many rows of each histogram lie in the slots (after, upto]; `after` None: in all up to `upto`."""
