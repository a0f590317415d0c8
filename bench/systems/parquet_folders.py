"""Parquet in hive-partitioned folders, one per slot, written and read by DuckDB, as many users build it by hand."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from bench.systems.base import Scanned, System
from bench.workload import ORIGIN, Batch, SlidingRows


class ParquetFolders(System):
    """A folder goes when the longest possible lifetime is over; until then queries filter by expiry."""

    name = "parquet-folders"
    about = (
        "a hive-partitioned folder per slot, COPY ... ORDER BY key, fsync; folders older than S removed, exp filtered"
    )

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.connection = duckdb.connect()
        self.connection.execute("SET enable_object_cache = true")
        self.now = ORIGIN

    def update(self, batch: Batch, prepared: Any) -> None:
        """Write the slot's folder, remove the one that is too old."""
        hidden = self.folder / f".slot={batch.slot}"
        hidden.mkdir()
        file = hidden / "rows.parquet"
        self.connection.register("arrived", prepared)
        self.connection.execute(
            f"COPY (FROM arrived ORDER BY key, exp) TO '{file}' (FORMAT parquet, COMPRESSION uncompressed)"
        )
        self.connection.unregister("arrived")
        for path in (file, hidden):
            _sync(path)
        hidden.rename(self.folder / f"slot={batch.slot}")
        _sync(self.folder)
        self.now = batch.now
        old = self.folder / f"slot={batch.slot - self.workload.slots - 1}"
        if old.exists():
            shutil.rmtree(old)

    def _from(self) -> str:
        rows = f"read_parquet('{self.folder}/slot=*/*.parquet', hive_partitioning = true)"
        return f"FROM {rows} WHERE exp > make_timestamp({self.now})"

    def probe(self, key: int) -> Any:
        """By the statistics of the row groups."""
        return self.connection.sql(
            f"SELECT key, ts, exp, payload {self._from()} AND key = ?", params=[key]
        ).to_arrow_table()

    def scan(self) -> Scanned:
        """An aggregate over the payload."""
        totals = self.connection.sql(f"SELECT count(*), max(payload) {self._from()}").fetchall()[0]
        return int(totals[0]), str(totals[1] or "")

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """The folders that are there, without the filter."""
        cursor = self.connection.cursor()
        asked = f"SELECT count(*) FROM read_parquet('{self.folder}/slot=*/*.parquet') WHERE exp <= make_timestamp(?)"
        return lambda now: int(cursor.execute(asked, [now]).fetchall()[0][0]), cursor.close

    def close(self) -> None:
        """Close DuckDB."""
        self.connection.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
