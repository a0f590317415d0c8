"""ClickHouse in this process (chdb): a MergeTree sorted by key and expiry, with its three ways to remove rows.

Queries filter by expiry in all three, because a TTL is applied only when parts happen to merge.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from bench.systems.base import Scanned, System
from bench.workload import ORIGIN, Batch, SlidingRows

_DURABLE = "fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1"
_COLUMNS = "key Int64, ts DateTime64(6, 'UTC'), exp DateTime64(6, 'UTC'), payload String"


class _Engine:
    """The one connection that chdb allows a process, shared by all tables of a run."""

    connection: ClassVar[Any] = None
    users: ClassVar[int] = 0

    @classmethod
    def take(cls, folder: Path) -> Any:
        if cls.connection is None:
            import chdb

            cls.connection = chdb.connect(str(folder))
        cls.users += 1
        return cls.connection

    @classmethod
    def release(cls) -> None:
        cls.users -= 1
        if cls.users == 0:
            cls.connection.close()
            cls.connection = None


class ClickHouse(System):
    """Rows leave by the table's TTL, when parts merge."""

    name = "clickhouse-ttl"
    about = (
        "chdb, MergeTree ORDER BY (key, exp), TTL exp DELETE, fsync after insert; queries filter exp > now; "
        "the TTL goes by the wall clock, so it is moved along with the workload's, not timed"
    )
    needs = "chdb"
    by_ttl = True
    remove = ""

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.connection = _Engine.take(folder.parent / "clickhouse-engine")
        self.database = self.name.replace("-", "_")
        self.now = ORIGIN
        self._run(f"CREATE DATABASE {self.database}")
        self._run(
            f"CREATE TABLE {self.database}.rows ({_COLUMNS}) ENGINE = MergeTree ORDER BY (key, exp) "
            f"SETTINGS {_DURABLE}, merge_with_ttl_timeout = 0"
        )

    def _run(self, statement: str, output: str = "CSV") -> Any:
        return self.connection.query(statement, output)

    def _live(self) -> str:
        return f"exp > fromUnixTimestamp64Micro({self.now}, 'UTC')"

    def prepare(self, batch: Batch) -> Any:
        """Shift the TTL: the workload's minutes pass faster than the wall clock's."""
        if self.by_ttl:
            # One slot of room: a merge may come later than this, and must not take rows that are still alive.
            shift = int(time.time()) - (batch.now - self.workload.delta) // 1_000_000 + 60
            self._run(
                f"ALTER TABLE {self.database}.rows MODIFY TTL toDateTime(exp) + toIntervalSecond({shift}) "
                "SETTINGS materialize_ttl_after_modify = 0"
            )
        return batch.rows

    def update(self, batch: Batch, prepared: Any) -> None:
        """INSERT from Arrow, and what this variant does about expired rows."""
        arrived = prepared  # noqa: F841 - chdb finds it by its name in this frame
        self._run(f"INSERT INTO {self.database}.rows SELECT key, ts, exp, payload FROM Python(arrived)")
        self.now = batch.now
        if self.remove:
            dead = f"exp <= fromUnixTimestamp64Micro({batch.now}, 'UTC')"
            self._run(self.remove.format(table=f"{self.database}.rows", dead=dead))

    def probe(self, key: int) -> Any:
        """By the sorting key, as Arrow."""
        return self._run(f"SELECT * FROM {self.database}.rows WHERE key = {key} AND {self._live()}", "ArrowTable")

    def as_arrow(self, answer: Any) -> pa.Table:
        """Times lose their zone, text its binary type."""
        columns = [answer.column(field.name) for field in self.workload.schema]
        return pa.table(
            [_cast(column, field.type) for column, field in zip(columns, self.workload.schema, strict=True)],
            schema=self.workload.schema,
        )

    def scan(self) -> Scanned:
        """An aggregate over the payload."""
        text = str(
            self._run(f"SELECT count(), max(payload) FROM {self.database}.rows WHERE {self._live()}", "JSONCompact")
        )
        count, greatest = json.loads(text)["data"][0]
        return int(count), str(greatest)

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """The one connection that there is."""

        def ask(now: int) -> int:
            dead = f"exp <= fromUnixTimestamp64Micro({now}, 'UTC')"
            return int(str(self._run(f"SELECT count() FROM {self.database}.rows WHERE {dead}")))

        return ask, lambda: None

    def space(self) -> int:
        """Of all parts, also ones that wait to be removed."""
        text = str(self._run(f"SELECT sum(bytes_on_disk) FROM system.parts WHERE database = '{self.database}'", "CSV"))
        return int(text or 0)

    def close(self) -> None:
        """Drop the tables; the last one closes the engine."""
        self._run(f"DROP DATABASE {self.database} SYNC")
        _Engine.release()


class ClickHouseAlter(ClickHouse):
    """Rows leave by a mutation that rewrites the parts they are in."""

    name = "clickhouse-alter"
    about = "the same with ALTER TABLE ... DELETE WHERE exp <= now after each insert, waited for"
    by_ttl = False
    remove = "ALTER TABLE {table} DELETE WHERE {dead} SETTINGS mutations_sync = 1"


class ClickHouseDelete(ClickHouse):
    """Rows leave by a mask that queries apply, and by merges later."""

    name = "clickhouse-delete"
    about = "the same with the lightweight DELETE FROM ... WHERE exp <= now after each insert, waited for"
    by_ttl = False
    remove = "DELETE FROM {table} WHERE {dead} SETTINGS lightweight_deletes_sync = 1"


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us", "UTC")).cast(kind) if pa.types.is_timestamp(kind) else column.cast(kind)
