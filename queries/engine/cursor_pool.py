"""Desks: cursors with relations laid out on them, kept between statements since laying out costs as much as a query.

What is already there under the same name and with the same columns is only told where its rows come from now.
"""

import os
import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from windrow.queries.engine import arrow_source, instance
from windrow.queries.engine.arrow_source import ReadRows, RelationSource
from windrow.queries.engine.fork_safety import forget_after_fork
from windrow.queries.engine.types import quote_name
from windrow.store import Store

_MAX_IDLE = 4
"""Idle desks of one warehouse and process."""
_guard = threading.Lock()
PoolKey = tuple[int, str]
"""A process and a warehouse."""
_idle: dict[PoolKey, list["PooledCursor"]] = {}
forget_after_fork(_idle, _guard)


class PooledCursor:
    """A cursor and what lies on it.

    Args:
        cursor: To the warehouse's instance.
        home: Where it goes when it is no longer needed; None: it is closed.
    """

    def __init__(self, cursor: Any, home: PoolKey | None = None) -> None:
        self.cursor = cursor
        self._home = home
        self._sources: dict[str, RelationSource] = {}
        self._views: dict[str, str] = {}

    def source(self, name: str, schema: pa.Schema, read: ReadRows, rows: int | None = None) -> None:
        """Let DuckDB find rows under a name; they are read when a statement wants them."""
        found = self._sources.get(name.lower())
        if found is not None and found.schema.equals(schema):
            found.read, found.told = read, rows
            return
        self._take_away(name)
        source = RelationSource(schema, read, rows)
        arrow_source.register_source(self.cursor, name, source)
        self._sources[name.lower()] = source

    def view(self, name: str, sql: str) -> None:
        """Let DuckDB find a query under a name."""
        if self._views.get(name.lower()) == sql:
            return
        if name.lower() not in self._views:  # else it is replaced, which is quicker
            self._take_away(name)
        self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {quote_name(name)} AS {sql}")
        self._views[name.lower()] = sql

    def rows(self, name: str, rows: pa.Table) -> None:
        """Let DuckDB find a table of Arrow under a name."""
        self.source(name, rows.schema, lambda schema: rows.select(schema.names).to_batches(), rows.num_rows)

    def _take_away(self, name: str) -> None:
        if self._sources.pop(name.lower(), None) is not None:
            arrow_source.unregister_source(self.cursor, name)
        if self._views.pop(name.lower(), None) is not None:
            self.cursor.execute(f"DROP VIEW IF EXISTS {quote_name(name)}")

    def clear(self, names: Iterable[str]) -> None:
        """Make room for something else under these names."""
        for name in names:
            self._take_away(name)

    def leave(self, *, tidy: bool) -> None:
        """The statement is over; a desk that it left tidy (all rows read, no transaction) can be used again."""
        for source in self._sources.values():
            source.read = None
            source.predicates.clear()
        if tidy and self._home is not None and self._home[0] == os.getpid():
            with _guard:
                waiting = _idle.setdefault(self._home, [])
                if len(waiting) < _MAX_IDLE:
                    waiting.append(self)
                    return
        self.cursor.close()


def take_cursor(store: Store, memory_limit: str | None = None) -> PooledCursor:
    """An idle desk of the warehouse, or a new one.

    Args:
        store: The warehouse.
        memory_limit: Of what is done on it; it is not kept then.
    """
    if memory_limit is not None:
        return PooledCursor(instance.open_cursor(store, memory_limit))
    home = os.getpid(), str(store.root)
    with _guard:
        waiting = _idle.get(home)
        if waiting:
            return waiting.pop()
    return PooledCursor(instance.open_cursor(store), home)
