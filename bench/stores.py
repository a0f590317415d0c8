"""Stores that hold streams of any schema: ours, and what a user would take instead.

Unlike `systems`, which have one fixed schema, these take several definitions and answer any SQL that they understand.
All of them open what is there already, so that a process can begin cold on files that another one wrote.
"""

import datetime as dt
import importlib.util
import os
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import windrow
from bench.generators import Definition
from windrow.times import to_datetime

Scanned = tuple[int, str]
_MICRO = dt.timedelta(microseconds=1)


class Store(ABC):
    """A store of some streams.

    Args:
        folder: Of its files; may hold those of an earlier process.
        definitions: Of its streams.
    """

    name = ""
    about = ""
    needs = ""
    """The module that must be installed, if it is an optional one."""

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        self.folder = folder
        self.definitions = {definition.name: definition for definition in definitions}
        self.now: dict[str, int] = {}

    @classmethod
    def missing(cls) -> str:
        """Why it cannot take part; empty if it can."""
        absent = cls.needs and importlib.util.find_spec(cls.needs) is None
        return f"{cls.needs} is not installed" if absent else ""

    def prepare(self, rows: pa.Table) -> Any:
        """Rows in the form that the store takes; not timed."""
        return rows

    def as_arrow(self, answer: Any) -> Any:
        """An answer to be compared; not timed."""
        return answer

    def space(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.rglob("*") if path.is_file())

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""

    def dead(self, name: str, now: int) -> str:
        """The condition of rows that have expired, with times as DuckDB has them."""
        definition = self.definitions[name]
        if definition.expires:
            return f"{definition.expires} <= make_timestamp({now})"
        return f"ts <= make_timestamp({now - definition.lifetime})"


class RowStore(Store):
    """A store that takes rows at any time."""

    @abstractmethod
    def insert(self, name: str, prepared: Any) -> None:
        """Take rows in, durably."""

    def writer(self, name: str) -> Callable[[Any], None]:
        """What a thread of its own inserts with."""
        return lambda prepared: self.insert(name, prepared)


class WindowStore(Store):
    """A store that holds the live rows of a window and finds them."""

    @abstractmethod
    def update(self, name: str, prepared: Any, now: int) -> None:
        """Take rows in, durably, and let expired rows go; in one transaction where the store has them."""

    @abstractmethod
    def probe(self, name: str, key: Any) -> Any:
        """All columns of the live rows with this key."""

    @abstractmethod
    def scan(self, name: str) -> Scanned:
        """Count the live rows and find the greatest value of the definition's column, as text."""


class SlidingStore(RowStore, WindowStore):
    """A store that takes rows at any time and lets them go at another."""

    @abstractmethod
    def slide(self, name: str, now: int) -> None:
        """Let expired rows go."""

    def update(self, name: str, prepared: Any, now: int) -> None:
        """Both, one after the other."""
        self.insert(name, prepared)
        self.slide(name, now)


class SqlStore(WindowStore):
    """A store that answers any statement."""

    @abstractmethod
    def put_table(self, name: str, rows: pa.Table) -> None:
        """Keep a small table to join with."""

    @abstractmethod
    def ask(self, sql: str) -> Any:
        """An answer in SQL."""


class DuckReader(SqlStore):
    """What DuckDB reads."""

    connection: duckdb.DuckDBPyConnection

    def probe(self, name: str, key: Any) -> Any:
        """By an index, or by the statistics of row groups."""
        rows = self.connection.sql(f"SELECT * FROM {name} WHERE {self.definitions[name].key} = ?", params=[key])
        return rows.to_arrow_table()

    def scan(self, name: str) -> Scanned:
        """An aggregate."""
        sql = f"SELECT count(*), max({self.definitions[name].scanned}) FROM {name}"
        count, greatest = self.connection.sql(sql).fetchall()[0]
        return int(count), str(greatest)

    def ask(self, sql: str) -> Any:
        """As Arrow."""
        return self.connection.sql(sql).to_arrow_table()

    def close(self) -> None:
        """Close DuckDB."""
        self.connection.close()


class Ours(SlidingStore, SqlStore):
    """Windrow, with the layout that it chooses."""

    name = "windrow"
    about = "the layout that Windrow chooses; update = append + slide"

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        super().__init__(folder, definitions)
        self.warehouse = windrow.open(folder / "warehouse")
        streams = set(self.warehouse.streams())
        for d in definitions:
            if d.name in streams:
                continue
            life = {"lifetime": d.lifetime * _MICRO}
            if d.expires:
                life = {"expires": d.expires, "max_lifetime": d.lifetime * _MICRO}
            self.warehouse.create_stream(d.name, d.schema, time="ts", key=d.key, slide=d.delta * _MICRO, **life)

    def insert(self, name: str, prepared: Any) -> None:
        """An append."""
        self.warehouse.append(name, prepared)

    def slide(self, name: str, now: int) -> None:
        """A slide."""
        self.warehouse.slide(name, to=to_datetime(now))

    def put_table(self, name: str, rows: pa.Table) -> None:
        """A table of the warehouse."""
        self.warehouse.put_table(name, rows)

    def probe(self, name: str, key: Any) -> Any:
        """By the directory."""
        return self.warehouse.probe(name, key)

    def scan(self, name: str) -> Scanned:
        """The reader as a table, folded by pyarrow in all its threads."""
        column = self.definitions[name].scanned
        rows = self.warehouse.scan(name, columns=[column]).read_all()
        totals = rows.group_by([]).aggregate([([], "count_all"), (column, "max")])
        return totals["count_all"][0].as_py(), str(totals[f"{column}_max"][0].as_py())

    def ask(self, sql: str) -> Any:
        """As Arrow."""
        return self.warehouse.sql(sql).arrow()

    def close(self) -> None:
        """Close the warehouse."""
        self.warehouse.close()


class DuckFile(SlidingStore, DuckReader):
    """A DuckDB file; INSERT and DELETE in one transaction, an ART index on the key."""

    name = "duckdb"
    about = "a table in a file, ART index on the key, INSERT + DELETE of the expired in one transaction, defaults"
    indexed = True

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        super().__init__(folder, definitions)
        self.connection = duckdb.connect(str(folder / "rows.duckdb"))
        for d in definitions:
            self.connection.register("given", d.schema.empty_table())
            self.connection.execute(f"CREATE TABLE IF NOT EXISTS {d.name} AS FROM given")
            self.connection.unregister("given")
            if self.indexed:
                self.connection.execute(f"CREATE INDEX IF NOT EXISTS {d.name}_key ON {d.name} ({d.key})")

    def _insert(self, connection: Any, name: str, rows: Any) -> None:
        connection.register("arrived", rows)
        connection.execute(f"INSERT INTO {name} FROM arrived")
        connection.unregister("arrived")

    def insert(self, name: str, prepared: Any) -> None:
        """A statement is a transaction."""
        self._insert(self.connection, name, prepared)

    def slide(self, name: str, now: int) -> None:
        """DELETE."""
        self.connection.execute(f"DELETE FROM {name} WHERE {self.dead(name, now)}")

    def update(self, name: str, prepared: Any, now: int) -> None:
        """One transaction."""
        self.connection.execute("BEGIN")
        super().update(name, prepared, now)
        self.connection.execute("COMMIT")

    def writer(self, name: str) -> Callable[[Any], None]:
        """A cursor of its own."""
        cursor = self.connection.cursor()
        return lambda rows: self._insert(cursor, name, rows)

    def put_table(self, name: str, rows: pa.Table) -> None:
        """A table."""
        self.connection.register("given", rows)
        self.connection.execute(f"CREATE TABLE {name} AS FROM given")
        self.connection.unregister("given")

    def space(self) -> int:
        """After a checkpoint."""
        self.connection.execute("CHECKPOINT")
        return super().space()


class FreshDuckFile(DuckFile):
    """The live rows loaded at once in order of time: nothing deleted, everything compressed."""

    name = "duckdb, fresh"
    about = "the live rows in a new file, in order of time, checkpointed; no index"
    indexed = False

    def update(self, name: str, prepared: Any, now: int) -> None:
        """Only live rows are loaded."""
        del now
        self.insert(name, prepared)
        self.connection.execute("CHECKPOINT")


class SqliteFile(SlidingStore):
    """SQLite with indexes on key and end of life, write-ahead log, synced at each commit."""

    name = "sqlite"
    about = "indexes on key and expiry, WAL, synchronous=FULL; conversion to and from Python rows not counted"

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        super().__init__(folder, definitions)
        self.connection = self._connect()
        for d in definitions:
            columns = ", ".join(f'"{name}"' for name in d.schema.names)
            self.connection.execute(f"CREATE TABLE IF NOT EXISTS {d.name} ({columns})")
            for column in (d.key, d.expires or "ts"):
                self.connection.execute(f'CREATE INDEX IF NOT EXISTS {d.name}_{column} ON {d.name} ("{column}")')

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.folder / "rows.sqlite", isolation_level=None, check_same_thread=False, timeout=120
        )
        for setting in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536", "mmap_size = 4294967296"):
            connection.execute(f"PRAGMA {setting}")
        return connection

    def prepare(self, rows: pa.Table) -> Any:
        """Python tuples, times as whole numbers."""
        times = pa.types.is_timestamp
        columns = [rows[f.name].cast(pa.int64()) if times(f.type) else rows[f.name] for f in rows.schema]
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def _insert(self, connection: sqlite3.Connection, name: str, rows: Any) -> None:
        marks = ", ".join("?" * len(self.definitions[name].schema))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)

    def insert(self, name: str, prepared: Any) -> None:
        """One transaction."""
        if len(prepared) == 1:
            return self._insert(self.connection, name, prepared)
        self.connection.execute("BEGIN IMMEDIATE")
        self._insert(self.connection, name, prepared)
        self.connection.execute("COMMIT")
        return None

    def slide(self, name: str, now: int) -> None:
        """DELETE."""
        d = self.definitions[name]
        column, end = (d.expires, now) if d.expires else ("ts", now - d.lifetime)
        self.connection.execute(f'DELETE FROM {name} WHERE "{column}" <= ?', (end,))

    def update(self, name: str, prepared: Any, now: int) -> None:
        """One transaction."""
        self.connection.execute("BEGIN IMMEDIATE")
        self._insert(self.connection, name, prepared)
        self.slide(name, now)
        self.connection.execute("COMMIT")

    def writer(self, name: str) -> Callable[[Any], None]:
        """A connection of its own."""
        connection = self._connect()
        return lambda rows: self._insert(connection, name, rows)

    def probe(self, name: str, key: Any) -> Any:
        """Python rows by the index."""
        d = self.definitions[name]
        return name, self.connection.execute(f'SELECT * FROM {name} WHERE "{d.key}" = ?', (key,)).fetchall()

    def scan(self, name: str) -> Scanned:
        """An aggregate."""
        sql = f'SELECT count(*), max("{self.definitions[name].scanned}") FROM {name}'
        count, greatest = self.connection.execute(sql).fetchone()
        return int(count), str(greatest)

    def as_arrow(self, answer: Any) -> Any:
        """Columns of the schema."""
        if not (isinstance(answer, tuple) and isinstance(answer[1], list)):
            return answer
        schema = self.definitions[answer[0]].schema
        columns = list(zip(*answer[1], strict=True)) or [()] * len(schema)
        times = pa.types.is_timestamp
        arrays = [pa.array(c, pa.int64() if times(f.type) else f.type) for c, f in zip(columns, schema, strict=True)]
        return pa.table([array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema)

    def close(self) -> None:
        """Close the database."""
        self.connection.close()


class ClickHouseParts(WindowStore):
    """ClickHouse in the process (chdb): a MergeTree by key; queries filter by the end of life."""

    name = "clickhouse"
    about = "chdb, MergeTree by key, fsync after insert, DELETE of the expired every eighth update, queries filter"
    needs = "chdb"

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        super().__init__(folder, definitions)
        import chdb

        self.connection = chdb.connect(str(folder / "engine"))
        self._updates = 0
        for d in definitions:
            columns = ", ".join(f"`{f.name}` {_clickhouse_type(f)}" for f in d.schema)
            self._run(
                f"CREATE TABLE IF NOT EXISTS {d.name} ({columns}) ENGINE = MergeTree ORDER BY `{d.key}` "
                "SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
            )

    def _run(self, statement: str, output: str = "CSV") -> Any:
        return self.connection.query(statement, output)

    def dead(self, name: str, now: int) -> str:
        """With ClickHouse's times."""
        d = self.definitions[name]
        column, end = (d.expires, now) if d.expires else ("ts", now - d.lifetime)
        return f"{column} <= fromUnixTimestamp64Micro({end}, 'UTC')"

    def update(self, name: str, prepared: Any, now: int) -> None:
        """INSERT from Arrow; now and then a DELETE."""
        arrived = prepared  # noqa: F841 - chdb finds it by its name in this frame
        self._run(f"INSERT INTO {name} SELECT * FROM Python(arrived)")
        self.now[name] = now
        self._updates += 1
        if self._updates % 8 == 0:
            self._run(f"DELETE FROM {name} WHERE {self.dead(name, now)}")

    def probe(self, name: str, key: Any) -> Any:
        """By the sorting key."""
        value = f"'{key}'" if isinstance(key, str) else key
        live = f"NOT ({self.dead(name, self.now[name])})"
        rows = self._run(
            f"SELECT * FROM {name} WHERE `{self.definitions[name].key}` = {value} AND {live}", "ArrowTable"
        )
        schema = self.definitions[name].schema
        return pa.table([_from_clickhouse(rows.column(f.name), f.type) for f in schema], schema=schema)

    def scan(self, name: str) -> Scanned:
        """An aggregate."""
        column, live = self.definitions[name].scanned, f"NOT ({self.dead(name, self.now[name])})"
        totals = self._run(
            f"SELECT count() AS n, max(`{column}`) AS m FROM {name} WHERE {live}", "ArrowTable"
        ).to_pylist()[0]
        greatest = totals["m"]
        return int(totals["n"]), greatest.decode() if isinstance(greatest, bytes) else str(greatest)

    def close(self) -> None:
        """Close the engine."""
        self.connection.close()


def _clickhouse_type(field: pa.Field) -> str:
    if pa.types.is_timestamp(field.type):
        return "DateTime64(6, 'UTC')"
    kind = {"string": "String", "double": "Float64"}.get(str(field.type), str(field.type).title())
    return f"Nullable({kind})" if pa.types.is_floating(field.type) else kind


def _from_clickhouse(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return column.cast(pa.int64()).cast(wanted) if pa.types.is_timestamp(wanted) else column.cast(wanted)


class ParquetFolder(DuckReader):
    """A folder of Parquet files, one a slot, sorted by key and read by DuckDB."""

    name = "parquet"
    about = (
        "a zstd Parquet file a slot, sorted by key, synced; files older than the longest life removed, queries filter"
    )

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        super().__init__(folder, definitions)
        self.connection = duckdb.connect()
        self.connection.execute("SET enable_object_cache = true")
        for d in definitions:
            (folder / d.name).mkdir(exist_ok=True)
            if files := sorted((folder / d.name).glob("*.parquet")):
                self.now[d.name] = int(files[-1].stem)
                self._show(d.name)
        for file in folder.glob("*/table.parquet"):
            self.connection.execute(f"CREATE VIEW {file.parent.name} AS FROM '{file}'")

    def _show(self, name: str) -> None:
        self.connection.execute(
            f"CREATE OR REPLACE VIEW {name} AS FROM read_parquet('{self.folder}/{name}/*.parquet') "
            f"WHERE NOT ({self.dead(name, self.now[name])})"
        )

    def update(self, name: str, prepared: Any, now: int) -> None:
        """Write the slot's file, remove what is too old."""
        d = self.definitions[name]
        hidden = self.folder / name / f".{now}"
        self.connection.register("arrived", prepared)
        self.connection.execute(
            f"COPY (FROM arrived ORDER BY {d.key}) TO '{hidden}' (FORMAT parquet, COMPRESSION zstd)"
        )
        self.connection.unregister("arrived")
        for path in (hidden, hidden.parent):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        hidden.rename(self.folder / name / f"{now}.parquet")
        for old in (self.folder / name).glob("*.parquet"):
            if int(old.stem) <= now - d.lifetime:
                old.unlink()
        self.now[name] = now
        self._show(name)

    def put_table(self, name: str, rows: pa.Table) -> None:
        """A file."""
        (self.folder / name).mkdir()
        self.connection.register("given", rows)
        self.connection.execute(f"COPY (FROM given) TO '{self.folder}/{name}/table.parquet' (FORMAT parquet)")
        self.connection.execute(f"CREATE VIEW {name} AS FROM '{self.folder}/{name}/table.parquet'")


def remove(folder: Path) -> None:
    """Give a store's space back."""
    shutil.rmtree(folder, ignore_errors=True)
