"""DuckDB's own table with an ART index on the search key; rows leave by DELETE."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from bench.systems.base import Scanned, System
from bench.workload import Batch, SlidingRows


class DuckTable(System):
    """INSERT and DELETE in one transaction; checkpoints and threads as its defaults have them."""

    name = "duckdb"
    about = "native table, ART index on key, INSERT + DELETE WHERE exp <= now in one transaction, defaults"
    indexed = True

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.connection = duckdb.connect(str(folder / "rows.duckdb"))
        self.connection.execute("CREATE TABLE rows (key BIGINT, ts TIMESTAMP, exp TIMESTAMP, payload VARCHAR)")
        if self.indexed:
            self.connection.execute("CREATE INDEX by_key ON rows (key)")

    def update(self, batch: Batch, prepared: Any) -> None:
        """One transaction."""
        connection = self.connection
        connection.register("arrived", prepared)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO rows SELECT * FROM arrived")
        connection.execute("DELETE FROM rows WHERE exp <= make_timestamp(?)", [batch.now])
        connection.execute("COMMIT")
        connection.unregister("arrived")

    def probe(self, key: int) -> Any:
        """By the index, as Arrow."""
        return self.connection.sql("SELECT * FROM rows WHERE key = ?", params=[key]).to_arrow_table()

    def scan(self) -> Scanned:
        """An aggregate over the payload."""
        totals = self.connection.sql("SELECT count(*), max(payload) FROM rows").fetchall()[0]
        return int(totals[0]), str(totals[1] or "")

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """A cursor: another process could not open the file while this one has it."""
        cursor = self.connection.cursor()
        asked = "SELECT count(*) FROM rows WHERE exp <= make_timestamp(?)"
        return lambda now: int(cursor.execute(asked, [now]).fetchall()[0][0]), cursor.close

    def close(self) -> None:
        """Close the database."""
        self.connection.close()


class PlainDuckTable(DuckTable):
    """Without the index, which its documentation advises for bulk loads."""

    name = "duckdb-plain"
    about = "the same without the index"
    indexed = False
