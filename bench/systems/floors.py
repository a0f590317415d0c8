"""Lower bounds: the fastest known ways to write a batch, without index, catalog or deletion."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.systems.base import System
from bench.workload import Batch, SlidingRows

_CELLS = 4
_GROUP_BYTES = 512 << 10


class _Floor(System):
    """Writes one file per update and forgets the one before last, so that the disk does not fill."""

    answers = False

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.last: Path | None = None

    def prepare(self, batch: Batch) -> Any:
        if self.last is not None:
            self.last.unlink()
        self.last = self.folder / f"{batch.slot:06d}"
        return batch.rows


class SortedParquet(_Floor):
    """The batch sorted by (cell, key, expiry) with NumPy, taken and written by pyarrow as one file, and synced."""

    name = "floor-sorted"
    about = "NumPy lexsort, take, pyarrow writer: one Parquet file, row groups per cell, fsync; no index, no deletion"

    def update(self, batch: Batch, prepared: Any) -> None:
        """Sort, write, sync."""
        del batch
        assert self.last is not None
        exp = prepared.column("exp").chunk(0).view(pa.int64()).to_numpy()
        cell = (exp // self.workload.delta) % _CELLS
        order = np.lexsort((exp, prepared.column("key").to_numpy(), cell))
        rows = prepared.take(pa.array(order))
        bounds = np.searchsorted(cell[order], np.arange(_CELLS + 1))
        groups = max(1, round(rows.nbytes / _GROUP_BYTES / _CELLS))
        with self.last.open("wb") as file:
            with pq.ParquetWriter(
                file, rows.schema, compression="none", use_dictionary=["key"], write_statistics=False
            ) as writer:
                for start, stop in pairwise(bounds.tolist()):
                    writer.write_table(rows.slice(start, stop - start), row_group_size=-(-(stop - start) // groups))
            file.flush()
            os.fsync(file.fileno())


class RawBytes(_Floor):
    """The bytes of the batch, unsorted, written to one file and synced."""

    name = "floor-raw"
    about = "the batch's column buffers written as they are, fsync"

    def update(self, batch: Batch, prepared: Any) -> None:
        """Write and sync."""
        del batch
        assert self.last is not None
        with self.last.open("wb") as file:
            for column in prepared.columns:
                for chunk in column.chunks:
                    for buffer in chunk.buffers():
                        if buffer is not None:
                            file.write(buffer)
            file.flush()
            os.fsync(file.fileno())
