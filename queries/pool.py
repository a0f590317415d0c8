"""Hot rows in DuckDB's own tables, of which it knows the least and the greatest values, as it does not of Arrow.

A window of which sums are asked again and again between two slides gets a table with the columns that were asked for.
After a slide, when it is asked again and again, rows of segments that left are deleted and those of new ones inserted;
until then, and whatever else is asked, rows are read as Arrow. Tables are a cache: their bytes are part of the column
cache's budget. No statement can name them: they stand in a schema, and statements may name none.
"""

import contextlib
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from windrow.indexes.columns import ColumnCache
from windrow.indexes.segments import Segment
from windrow.queries import engine, sources
from windrow.queries.forks import leave_to_parent
from windrow.queries.held import (
    NUMBER,
    Kept,
    Place,
    bytes_of,
    column_sql,
    has_columns,
    place_of,
    suits,
)
from windrow.queries.relations import table_sql
from windrow.queries.sources import ListeningSource
from windrow.queries.types import duckdb_type, quoted
from windrow.records import TableEntry
from windrow.snapshot import StreamView
from windrow.store import Store

SCHEMA = "_pool"
WORTH_ROWS = 1 << 21
"""A window of fewer rows is read about as quickly as Arrow."""
PATIENCE = 3
"""So many statements are answered as before, after each slide, until the table is brought up to date."""
PAYS = 8
"""If fewer than this read the table before the next slide, it will be waited longer for the next time."""
_LONGEST = 64
SMALL_TABLE = 1 << 22
"""Bytes of a table file that is worth keeping."""
_TABLES = 16
_FAILURES = (duckdb.Error, OSError, pa.ArrowException)
_given = itertools.count()
_guard = threading.Lock()
_pools: dict[tuple[int, int], "Pool"] = {}
leave_to_parent(_pools, _guard)


@dataclass
class _Asked:
    """What is asked of a stream."""

    patience: int
    kept: Kept | None = None
    segments: dict[Place, Segment] = field(default_factory=dict)
    """Those of the last statements that found no table of exactly them."""
    lacking: int = 0
    """How many statements these were."""
    columns: set[str] = field(default_factory=set)
    """And what they wanted."""
    busy: bool = False


@dataclass(frozen=True)
class Found:
    """A query that gives rows out of a table, and what to call when it is over."""

    sql: str
    release: Callable[[], None]


def pool_of(store: Store) -> "Pool":
    """The tables of an open warehouse in this process; they go when it is closed, or was dropped without that."""
    identity = os.getpid(), id(store)
    with _guard:
        pool = _pools.get(identity)
        if pool is not None and pool.is_of(store):
            return pool
        # A warehouse that is gone may have had the number that this one has now.
        abandoned = [other for other in _pools.values() if other.is_of(None)]
    for other in abandoned:
        other.close()
    with _guard:
        pool = _pools.get(identity)
        if pool is None or not pool.is_of(store):
            pool = _pools[identity] = Pool(store)
            store.when_closed(pool.close)
    return pool


class Pool:
    """Tables of hot rows.

    Args:
        store: The warehouse.
    """

    def __init__(self, store: Store) -> None:
        self._identity = os.getpid(), id(store)
        self._owner = weakref.ref(store)
        self._cursor = engine.cursor(store)
        self._cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        self._cache: ColumnCache = store.columns
        self._root = store.root
        self._lock = threading.RLock()  # an answer that is garbage-collected gives its table back anywhere
        self._streams: OrderedDict[int, _Asked] = OrderedDict()
        self._tables: OrderedDict[str, Kept | None] = OrderedDict()

    def is_of(self, store: Store | None) -> bool:
        """Whether it was made for this open warehouse; for None, whether that is gone."""
        return self._owner() is store

    def close(self) -> None:
        """Drop all tables."""
        if os.getpid() != self._identity[0]:
            return
        with _guard:
            if _pools.get(self._identity) is self:
                del _pools[self._identity]
        with self._lock:
            for asked in self._streams.values():
                self._drop(asked)
            for kept in self._tables.values():
                self._retire(kept)
            self._tables.clear()

    # Streams

    def find(self, view: StreamView, segments: Sequence[Segment], wanted: Collection[str]) -> Found | None:
        """All rows of segments out of a table that has these rows, no others, and all the wanted columns.

        Args:
            view: Of the stream.
            segments: All rows of which are wanted.
            wanted: Columns; the others are not there, and an error if they are read after all.
        """
        names = {name.lower() for name in view.schema.names}
        if not segments or sum(segment.rows for segment in segments) < WORTH_ROWS or NUMBER in names:
            return None
        if len(names) < len(view.schema) or not all(suits(view.schema.field(name).type) for name in wanted):
            return None
        places = {place_of(segment): segment for segment in segments}
        with self._lock:
            if view.entry.id not in self._streams:
                self._forget_dropped()
            asked = self._streams.setdefault(view.entry.id, _Asked(patience=PATIENCE))
            self._streams.move_to_end(view.entry.id)
            if asked.busy:
                return None
            found = _complete(asked.kept, view, places, wanted)
            due = asked.busy = not found and _worth_it(asked, places, wanted)
            if not found and not due:
                return None
        if due:
            try:
                self._renew(asked, view)
            finally:
                asked.busy = False
        with self._lock:
            kept = asked.kept
            if asked.busy or kept is None or not _complete(kept, view, places, wanted):
                return None
            kept.uses += 1
            kept.readers += 1
        columns = ", ".join(column_sql(field, kept) for field in view.schema)
        return Found(f"SELECT {columns} FROM {kept.name}", self._releasing(kept))

    def _forget_dropped(self) -> None:
        """Drop the tables of streams that are gone."""
        store = self._owner()
        known = self._streams.keys() if store is None else store.manifests.keys()
        for stream in [stream for stream, asked in self._streams.items() if stream not in known and not asked.busy]:
            self._drop(self._streams.pop(stream))

    def _renew(self, asked: _Asked, view: StreamView) -> None:
        """Make a stream's table what was asked for; where that fails there is none."""
        kept, schema = asked.kept, view.schema
        columns = {name: schema.field(name) for name in schema.names if name in asked.columns}
        if kept is not None:
            columns = {name: schema.field(name) for name in kept.columns if name in schema.names} | columns
            asked.patience = PATIENCE if kept.uses >= PAYS else min(2 * asked.patience, _LONGEST)
        asked.lacking = 0
        try:
            if kept is None or columns != kept.columns:
                self._build(asked, view, columns)
            elif not kept.readers:
                self._change(kept, view, asked.segments)
        except BaseException as error:
            with self._lock:
                self._drop(asked)
            if not isinstance(error, _FAILURES):
                raise

    def _build(self, asked: _Asked, view: StreamView, columns: dict[str, pa.Field]) -> None:
        segments = asked.segments
        size = bytes_of(columns.values(), sum(segment.rows for segment in segments.values()))
        with self._lock:
            self._drop(asked)
            if not self._room(size):
                return
            kept = Kept(f"{SCHEMA}.s{next(_given)}", columns)
        kinds = ", ".join(f"{quoted(name)} {duckdb_type(f.type)}" for name, f in columns.items())
        with contextlib.closing(self._cursor.cursor()) as cursor:
            cursor.execute(f"CREATE TABLE {kept.name} ({NUMBER} INTEGER{', ' if kinds else ''}{kinds})")
            try:
                self._insert(cursor, kept, view, segments)
            except BaseException:
                cursor.execute(f"DROP TABLE {kept.name}")
                raise
        with self._lock:
            kept.bytes = size
            self._cache.lend(size)
            asked.kept = kept

    def _change(self, kept: Kept, view: StreamView, segments: Mapping[Place, Segment]) -> None:
        """Take out the segments that are not asked for any more, and put in those that are new."""
        gone = {place: number for place, number in kept.numbers.items() if place not in segments}
        new = {place: segment for place, segment in segments.items() if place not in kept.numbers}
        size = bytes_of(kept.columns.values(), sum(segment.rows for segment in segments.values()))
        with self._lock:
            if not self._room(size - kept.bytes):
                raise OSError("there is no room for the new segments")
            self._cache.lend(size - kept.bytes)
            kept.bytes, kept.uses = size, 0
        with contextlib.closing(self._cursor.cursor()) as cursor:
            cursor.execute("BEGIN TRANSACTION")
            if gone:
                numbers = ", ".join(map(str, gone.values()))
                count = cursor.execute(f"DELETE FROM {kept.name} WHERE {NUMBER} IN ({numbers})").fetchone()
                if count != (sum(stop - start for _, start, stop in gone),):
                    raise OSError(f"{count} rows went of {len(gone)} segments")
            self._insert(cursor, kept, view, new)
            cursor.execute("COMMIT")
        for place in gone:
            del kept.numbers[place]

    def _insert(self, cursor: Any, kept: Kept, view: StreamView, segments: Mapping[Place, Segment]) -> None:
        """Copy decoded columns into a table."""
        if not segments:
            return
        # The files' own sequence is read where nothing else is: a segment is told by its rows, not by its columns.
        narrow = pa.schema(list(kept.columns.values()) or [view.schema.field(view.entry.definition.time)])
        schema = pa.schema([pa.field(NUMBER, pa.int32()), *kept.columns.values()])
        ordered = sorted(segments.items(), key=lambda item: (item[1].min_ts, item[1].id))
        first = max(kept.numbers.values(), default=-1) + 1
        numbers = {place: first + at for at, (place, _) in enumerate(ordered)}

        def read(columns: pa.Schema) -> Iterator[pa.RecordBatch]:
            for place, segment in ordered:
                for batch in self._cache.batches([segment], narrow, view.stored_schema):
                    number = pa.array(np.full(batch.num_rows, numbers[place], np.int32))
                    arrays = dict(zip(narrow.names, batch.columns, strict=True)) | {NUMBER: number}
                    yield pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)

        source = f"{kept.name.removeprefix(SCHEMA)} new"
        sources.register(cursor, source, ListeningSource(schema, read))
        try:
            names = ", ".join(quoted(name) for name in schema.names)
            given = cursor.execute(f"INSERT INTO {kept.name} ({names}) SELECT {names} FROM {quoted(source)}").fetchone()
        finally:
            sources.unregister(cursor, source)
        if given != (sum(segment.rows for segment in segments.values()),):
            raise OSError(f"{given} rows came of {len(segments)} segments")
        kept.numbers.update(numbers)
        self._cache.cool(segments.values(), kept.columns)

    # Tables

    def table(self, entry: TableEntry) -> Found | None:
        """A small table of the warehouse, if it was asked for before."""
        if entry.bytes > SMALL_TABLE:
            return None
        with self._lock:
            known = entry.file in self._tables
            kept = self._tables.setdefault(entry.file, None)
            self._tables.move_to_end(entry.file)
            if known and kept is None:
                kept = self._tables[entry.file] = self._load(entry)
            while len(self._tables) > _TABLES:
                self._retire(self._tables.popitem(last=False)[1])
            if kept is None:
                return None
            kept.readers += 1
        return Found(f"SELECT * FROM {kept.name}", self._releasing(kept))

    def _load(self, entry: TableEntry) -> Kept | None:
        kept = Kept(f"{SCHEMA}.t{next(_given)}", bytes=8 * entry.bytes)
        if not self._room(kept.bytes):
            return None
        try:
            with contextlib.closing(self._cursor.cursor()) as cursor:
                cursor.execute(f"CREATE TABLE {kept.name} AS {table_sql(self._root, entry)}")
        except duckdb.Error:
            return None
        self._cache.lend(kept.bytes)
        return kept

    # Room

    def _room(self, wanted: int) -> bool:
        """Whether tables may take so many bytes more; those of streams that nobody asks for any more make room."""
        most = self._cache.budget // 2
        for asked in list(self._streams.values()):
            if self._cache.lent + wanted <= most:
                break
            if not asked.busy:
                self._drop(asked)
        return self._cache.lent + wanted <= most

    def _releasing(self, kept: Kept) -> Callable[[], None]:
        def release() -> None:
            if os.getpid() == self._identity[0]:
                with self._lock:
                    kept.readers -= 1
                    self._sweep(kept)

        return release

    def _drop(self, asked: _Asked) -> None:
        kept, asked.kept = asked.kept, None
        self._retire(kept)

    def _retire(self, kept: Kept | None) -> None:
        """A table that no new statement will read; it goes with its last reader."""
        if kept is not None and not kept.dropped:
            kept.dropped = True
            self._sweep(kept)

    def _sweep(self, kept: Kept) -> None:
        if kept.dropped and not kept.readers and kept.bytes >= 0:
            with contextlib.suppress(duckdb.Error):
                self._cursor.execute(f"DROP TABLE IF EXISTS {kept.name}")
            self._cache.lend(-kept.bytes)
            kept.bytes = -1


def _complete(kept: Kept | None, view: StreamView, places: Mapping[Place, Segment], wanted: Collection[str]) -> bool:
    """Whether a table has exactly the rows that are asked for."""
    return kept is not None and kept.numbers.keys() == places.keys() and has_columns(kept, view, wanted)


def _worth_it(asked: _Asked, places: dict[Place, Segment], wanted: Collection[str]) -> bool:
    """Take note of a statement that found no table; gives whether there were so many of them that one shall be made."""
    if asked.segments.keys() != places.keys():
        asked.segments, asked.lacking = places, 0
        asked.columns.clear()
    asked.lacking += 1
    asked.columns.update(wanted)
    return asked.lacking > asked.patience
