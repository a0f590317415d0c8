"""Desks: cursors with relations laid out on them, kept between statements since laying out costs as much as a query.

What is already there under the same name and with the same columns is only told where its rows come from now.
"""

import os
import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from windrow.queries import engine, sources
from windrow.queries.forks import leave_to_parent
from windrow.queries.sources import ListeningSource, Read
from windrow.queries.types import quoted
from windrow.store import Store

_KEPT = 4
"""Idle desks of one warehouse and process."""
_guard = threading.Lock()
Home = tuple[int, str]
"""A process and a warehouse."""
_idle: dict[Home, list["Desk"]] = {}
leave_to_parent(_idle, _guard)


class Desk:
    """A cursor and what lies on it.

    Args:
        cursor: To the warehouse's instance.
        home: Where it goes when it is no longer needed; None: it is closed.
    """

    def __init__(self, cursor: Any, home: Home | None = None) -> None:
        self.cursor = cursor
        self._home = home
        self._sources: dict[str, ListeningSource] = {}
        self._views: dict[str, str] = {}

    def source(self, name: str, schema: pa.Schema, read: Read, rows: int | None = None) -> None:
        """Let DuckDB find rows under a name; they are read when a statement wants them."""
        found = self._sources.get(name.lower())
        if found is not None and found.schema.equals(schema):
            found.read, found.told = read, rows
            return
        self._take_away(name)
        source = ListeningSource(schema, read, rows)
        sources.register(self.cursor, name, source)
        self._sources[name.lower()] = source

    def view(self, name: str, sql: str) -> None:
        """Let DuckDB find a query under a name."""
        if self._views.get(name.lower()) == sql:
            return
        if name.lower() not in self._views:  # else it is replaced, which is quicker
            self._take_away(name)
        self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {sql}")
        self._views[name.lower()] = sql

    def rows(self, name: str, rows: pa.Table) -> None:
        """Let DuckDB find a table of Arrow under a name."""
        self.source(name, rows.schema, lambda schema: rows.select(schema.names).to_batches(), rows.num_rows)

    def _take_away(self, name: str) -> None:
        if self._sources.pop(name.lower(), None) is not None:
            sources.unregister(self.cursor, name)
        if self._views.pop(name.lower(), None) is not None:
            self.cursor.execute(f"DROP VIEW IF EXISTS {quoted(name)}")

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
                if len(waiting) < _KEPT:
                    waiting.append(self)
                    return
        self.cursor.close()


def take(store: Store, memory_limit: str | None = None) -> Desk:
    """An idle desk of the warehouse, or a new one.

    Args:
        store: The warehouse.
        memory_limit: Of what is done on it; it is not kept then.
    """
    if memory_limit is not None:
        return Desk(engine.cursor(store, memory_limit))
    home = os.getpid(), str(store.root)
    with _guard:
        waiting = _idle.get(home)
        if waiting:
            return waiting.pop()
    return Desk(engine.cursor(store), home)
