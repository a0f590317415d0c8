"""SQLite with indexes on the search key and the expiry; rows leave by DELETE."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.systems.base import Scanned, System, rows_to_arrow
from bench.workload import Batch, SlidingRows


class SqliteTable(System):
    """Write-ahead log with synchronous=FULL: each commit is synced, as it is for the others.

    Turning Arrow into Python rows and back is not counted against it.
    """

    name = "sqlite"
    about = (
        "indexes on key and exp, WAL, synchronous=FULL, INSERT + DELETE WHERE exp <= now; "
        "conversion to and from Python rows not counted"
    )

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.connection = sqlite3.connect(folder / "rows.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "PRAGMA cache_size = -65536",
            "PRAGMA mmap_size = 4294967296",
            "CREATE TABLE rows (key INTEGER, ts INTEGER, exp INTEGER, payload TEXT)",
            "CREATE INDEX by_key ON rows (key)",
            "CREATE INDEX by_exp ON rows (exp)",
        ):
            self.connection.execute(statement)

    def prepare(self, batch: Batch) -> Any:
        """Python tuples."""
        rows = batch.rows
        numbers = [rows.column(name).cast(pa.int64()).to_pylist() for name in ("key", "ts", "exp")]
        return list(zip(*numbers, rows.column("payload").to_pylist(), strict=True))

    def update(self, batch: Batch, prepared: Any) -> None:
        """One transaction."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", prepared)
        connection.execute("DELETE FROM rows WHERE exp <= ?", (batch.now,))
        connection.execute("COMMIT")

    def probe(self, key: int) -> Any:
        """Python rows by the index."""
        return self.connection.execute("SELECT * FROM rows WHERE key = ?", (key,)).fetchall()

    def as_arrow(self, answer: Any) -> pa.Table:
        """Columns of the workload's schema."""
        return rows_to_arrow(answer, self.workload.schema)

    def scan(self) -> Scanned:
        """An aggregate over the payload."""
        count, greatest = self.connection.execute("SELECT count(*), max(payload) FROM rows").fetchone()
        return int(count), str(greatest or "")

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """A connection of its own."""
        other = sqlite3.connect(self.folder / "rows.sqlite", isolation_level=None, check_same_thread=False)
        asked = "SELECT count(*) FROM rows WHERE exp <= ?"
        return lambda now: int(other.execute(asked, (now,)).fetchone()[0]), other.close

    def close(self) -> None:
        """Close the database."""
        self.connection.close()
