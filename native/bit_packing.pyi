"""Types of the bit packing of synopsis nodes."""

import numpy as np
import numpy.typing as npt

def pack(values: npt.NDArray[np.int64], *, differences: bool) -> bytes:
    """Bytes of whole numbers, or of the differences from each to the next."""

def unpack(packed: bytes | memoryview, count: int, *, differences: bool) -> npt.NDArray[np.int64]:
    """The whole numbers that `pack` was given.

    Raises:
        ValueError: these bytes are not so many numbers.
    """
