"""Types of the row kernels."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

NEVER: Final[int]
OK: Final[int]
NULL_TIME: Final[int]
ABSURD_TIME: Final[int]
TOO_FAR_AHEAD: Final[int]
NULL_EXPIRY: Final[int]
EXPIRY_NOT_AFTER_TIME: Final[int]
LIFETIME_TOO_LONG: Final[int]
DEAD_ON_ARRIVAL: Final[int]
REASONS: Final[tuple[str, ...]]

_Flags: TypeAlias = npt.NDArray[np.bool_] | npt.NDArray[np.uint8] | None

def slots(times: npt.NDArray[np.int64], origin: int, delta: int) -> npt.NDArray[np.int64]:
    """Gives the slot of each time, ceil((t - origin) / delta); a time that never comes stays INT64_MAX."""

def classify(
    ts: npt.NDArray[np.int64],
    ts_valid: _Flags,
    exp: npt.NDArray[np.int64] | None,
    exp_valid: _Flags,
    *,
    now: int | None,
    horizon: int | None,
    max_lifetime: int | None,
    earliest: int | None,
) -> npt.NDArray[np.uint8]:
    """Gives each row's reason for rejection, or OK: the first that applies in the order of REASONS."""

def sort_order(
    column: npt.NDArray[np.uint16] | None,
    keys: pa.Array | pa.ChunkedArray | None,
    exp: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64]:
    """Gives the order of rows by (column, key, expiry, position); any of the three may be None."""

def histogram(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Gives the distinct values in ascending order and how often each occurs."""

def find_run_starts(column: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Gives the distinct values of a sorted column and the row at which each begins."""

def find_members(values: npt.NDArray[np.int64], low: int, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Gives the positions of values that a table of flags, the first of which stands for `low`, knows."""

def number_distinct(values: npt.NDArray[np.int64]) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Gives the position at which each distinct value comes first, and of every value which of those it is."""

def digest(
    ts: npt.NDArray[np.int64],
    exp: npt.NDArray[np.int64] | None = None,
    keys: pa.Array | pa.ChunkedArray | None = None,
) -> int:
    """Gives a 64-bit digest of a multiset of rows; digests of its parts add up to it modulo 2**64."""

def count_rows_between(packed: list[bytes], after: int | None, upto: int) -> npt.NDArray[np.int64]:
    """How many rows of each histogram lie in the slots (after, upto]; `after` None: in all up to `upto`."""
