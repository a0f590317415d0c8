"""The cursors of a warehouse that statements run on, kept between statements with the relations that they can read.

Registering a relation costs as much as a small query, so a relation that is already there under the same name and with
the same columns only gets another function that reads its rows. The pool is closed with the warehouse.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from windrow.fork_safety import keep_in_child
from windrow.queries.engine import arrow_source, instance
from windrow.queries.engine.arrow_source import ReadRows, RelationSource
from windrow.queries.engine.types import quote_name
from windrow.store import Store

_MAX_IDLE = 4
"""Idle cursors of one warehouse and process. Not measured: a bound on memory."""


class CursorPool:
    """The idle cursors of one warehouse in this process.

    Args:
        engine: The warehouse's instance of DuckDB.
    """

    def __init__(self, engine: instance.WarehouseInstance) -> None:
        self.engine = engine
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._idle: list[PooledCursor] | None = []
        keep_in_child(self)

    def take(self) -> "PooledCursor | None":
        """An idle cursor, None if there is none."""
        with self._guard:
            while self._idle:
                if (cursor := self._idle.pop()).generation == self.engine.generation:
                    return cursor
                cursor.cursor.close()
            return None

    def put_back(self, cursor: "PooledCursor") -> bool:
        """Keep a cursor for the next statement; False if there are enough, or the warehouse is closed."""
        if os.getpid() != self._process:
            return False  # inherited by a fork, perhaps with its lock taken
        with self._guard:
            if self._idle is None or len(self._idle) >= _MAX_IDLE:
                return False
            self._idle.append(cursor)
            return True

    def close(self) -> None:
        """Close the idle cursors; those that are in use are closed when their statement is over."""
        with self._guard:
            idle, self._idle = self._idle or [], None
        for cursor in idle:
            cursor.cursor.close()


class PooledCursor:
    """A cursor and the relations that it can read.

    Args:
        cursor: Of the warehouse's instance.
        pool: Where it goes when its statement is over; None: it is closed.
    """

    def __init__(self, cursor: Any, pool: CursorPool | None = None) -> None:
        self.cursor = cursor
        self._pool = pool
        self.generation = 0 if pool is None else pool.engine.generation
        self._sources: dict[str, RelationSource] = {}
        self._views: dict[str, str] = {}
        self._held: list[Callable[[], None]] = []

    @property
    def engine(self) -> instance.WarehouseInstance | None:
        """The instance of this process that it is of, whose tables it can read; None if it has one of its own."""
        return None if self._pool is None else self._pool.engine

    def hold(self, release: Callable[[], None]) -> None:
        """Call this when the statement is over."""
        self._held.append(release)

    def offer_source(self, name: str, schema: pa.Schema, read: ReadRows, row_count: int | None = None) -> None:
        """Let DuckDB find rows under a name; they are read when a statement needs them."""
        source = self._sources.get(name.lower())
        if source is not None and source.schema.equals(schema):
            source.read, source.row_count = read, row_count
            return
        self._drop(name)
        source = RelationSource(schema, read, row_count)
        arrow_source.register_source(self.cursor, name, source)
        self._sources[name.lower()] = source

    def create_view(self, name: str, sql: str) -> None:
        """Let DuckDB find a query under a name."""
        if self._views.get(name.lower()) == sql:
            return
        if name.lower() not in self._views:  # else it is replaced, which is quicker
            self._drop(name)
        self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {quote_name(name)} AS {sql}")
        self._views[name.lower()] = sql

    def has_view(self, name: str) -> bool:
        """Whether it finds a query under a name."""
        return name.lower() in self._views

    def offer_table(self, name: str, rows: pa.Table) -> None:
        """Let DuckDB find an Arrow table under a name."""
        self.offer_source(name, rows.schema, lambda schema: rows.select(schema.names).to_batches(), rows.num_rows)

    def _drop(self, name: str) -> None:
        if self._sources.pop(name.lower(), None) is not None:
            arrow_source.unregister_source(self.cursor, name)
        if self._views.pop(name.lower(), None) is not None:
            self.cursor.execute(f"DROP VIEW IF EXISTS {quote_name(name)}")

    def drop(self, names: Iterable[str]) -> None:
        """Make these names free."""
        for name in names:
            self._drop(name)

    def release(self, *, reusable: bool) -> None:
        """The statement is over; the cursor is `reusable` if all rows were read and no transaction is open."""
        for source in self._sources.values():
            source.read = None
            source.predicates.clear()
        while self._held:
            self._held.pop()()
        if not reusable and self._pool is not None:
            self._pool.engine.replace_if_dead(self.cursor, self.generation)
        if not (reusable and self._pool is not None and self._pool.put_back(self)):
            self.cursor.close()


def take_cursor(store: Store, memory_limit: str | None = None) -> PooledCursor:
    """An idle cursor of the warehouse, or a new one; with a memory limit it is new and is not kept."""
    if memory_limit is not None:
        return PooledCursor(instance.open_cursor(store, memory_limit))
    engine = instance.warehouse_instance(store)
    pool: CursorPool = store.shared.attached("cursor pool", lambda: CursorPool(engine))
    return pool.take() or PooledCursor(engine.open_cursor(), pool)
