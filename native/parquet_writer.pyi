"""Types of the Parquet writer."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

from windrow.native.parquet_reader import Declined as Declined

class PageWriter:
    """One Parquet file under way; rows are gathered from Arrow columns straight into its pages."""

    rows: int
    size: int
    digest: str | None
    def __init__(self, sink: Any, schema: pa.Schema, extremes: Iterable[str] = ()) -> None:
        """Begin a file in `sink`, which has `write`; least and greatest values of `extremes` go into the footer."""

    def add_group(self, columns: list[pa.Array], order: npt.NDArray[np.int64]) -> None:
        """Write one row group: the rows `order` of the columns, which are arrays of the schema's types."""

    def close(self) -> None:
        """Write the footer; `size` and `digest` (XXH3 of all bytes) are then of the whole file."""

def crc32(data: Buffer) -> int:
    """Gives the checksum of a page's bytes."""
