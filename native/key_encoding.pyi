"""Types of the key kernel."""

from collections.abc import Sequence

import pyarrow as pa

def is_supported(type: pa.DataType) -> bool:
    """Tells whether values of an Arrow type can be encoded as keys."""

def encode(arrays: Sequence[pa.Array | pa.ChunkedArray], *, nulls_last: bool = False) -> pa.Array:
    """Encodes the rows of one or more key columns so that byte order is value order."""

def successor(prefix: bytes) -> bytes | None:
    """Gives the smallest byte string greater than all that start with the prefix, or None if there is none."""
