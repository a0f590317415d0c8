"""The row cache: rows of segments that statements asked for, kept in compressed tables of the statements' own DuckDB.

Segments never change, so a table is only added to: a column says which segment a row is of, and what a snapshot sees,
what has left a window and what the planner leaves out are plain predicates on it. When a third of a table's rows is
dead, or columns are wanted that it lacks, another takes its place; it is dropped whole when its last reader is done.
Rows that are dead already are not taken in: a snapshot that is older than that reads their segments from files.
A thread fills it after the answer that was read from files, and ends when there is nothing to do. Standing statements,
which come again after each slide, have one of their own and fill it themselves before they are answered.
"""

import contextlib
import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import StreamEntry
from windrow.errors import WindrowError
from windrow.fork_safety import keep_in_child
from windrow.indexes.bounded_cache import cached_in_findings
from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.manifest import Manifest
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.queries.engine.instance import WarehouseInstance
from windrow.queries.engine.types import duckdb_type, quote_name
from windrow.queries.planner.scan_sql import (
    SegmentPart,
    edge_condition,
    find_older_files,
    life_condition,
    parts_sql,
)
from windrow.snapshot import StreamSnapshot
from windrow.store import Store

_DATABASE = "windrow_rows"
_SEGMENT = " segment"
"""The column that says which segment a row is of; the space keeps it apart from what users name their columns."""
_STEP_BYTES = 64 << 20
"""About so much is added at a time, because rows are compressed by a checkpoint only; less if the budget is small. Not
measured: it bounds the peak of memory."""
_WHOLE_SHARE = 0.5
"""All columns of a stream are kept if its files have at most this share of what is free (`bench sql`, `statements`: the
next statement asks for other columns). Not measured: other streams have the rest."""
_UNCOMPRESSED = " USING COMPRESSION uncompressed"
"""Of texts that compression made little smaller in the files: to try again took more than three quarters of the time of
filling, and statements read them more slowly (`bench sql`: string scan)."""
_ROW_GROUP = 122_880
"""Rows that DuckDB compresses together at most."""
_VALUE_BYTES = 16
"""About what a value takes before it is compressed, beside the bytes of its text."""
_DEAD_SHARE = 3
"""A table is replaced when one row in so many is dead. Not measured: bounds the dead rows."""
_MOST_PARTS = 64
"""Selections of which a table remembers what it has. Not measured: bounds memory."""
MAX_SHOWN = 48
"""Columns that statements are shown at most beyond those that they need: DuckDB looks at each when it plans."""
_REST_SECONDS = 0.3
"""Filling waits so long for more columns to be asked for, and for a process that wants one answer only to end."""

Place = tuple[str, int]
"""A file and the first row of a segment in it: files are named once for all, segments' numbers are not."""


def _place(segment: Segment) -> Place:
    return segment.file, segment.start


@dataclass(eq=False)
class CachedTable:
    """Rows of one stream."""

    name: str
    columns: dict[str, pa.Field]
    numbers: dict[Place, int] = field(default_factory=dict)
    """The number that the rows of a segment have in the table."""
    without: dict[Place, int] = field(default_factory=dict)
    """Segments of which rows were left out that were dead at this time."""
    next: int = 0
    """The number of the next segment; also what was added in part only has one of its own."""
    rows: int = 0
    bytes: int = 0
    readers: int = 0
    used: int = 0
    """When it was last read, counted in reads of all tables."""
    parts: dict[tuple[int, int], "_CachedPart"] = field(default_factory=dict)
    """What it has of selections that statements asked for, until rows are added."""

    @property
    def sql_name(self) -> str:
        """As statements name it."""
        return f"{_DATABASE}.main.{self.name}"

    def find(self, segment: Segment, now: int) -> int | None:
        """The number of a segment's rows, if all are there that live at `now`."""
        place = _place(segment)
        # The rows that overrides have ended cannot be told from the others here.
        return None if segment.ended or self.without.get(place, now) > now else self.numbers.get(place)

    def locate(self, view: StreamSnapshot, selection: Selection) -> "_CachedPart":
        """What it has of a selection. Statements ask for the same one until the next slide."""
        key = id(selection), id(view.entry)
        part = self.parts.get(key)
        if part is None:
            if len(self.parts) >= _MOST_PARTS:
                self.parts.clear()
            part = self.parts[key] = self._locate(view, selection)
        return part

    def _locate(self, view: StreamSnapshot, selection: Selection) -> "_CachedPart":
        numbers = [self.find(segment, selection.bounds.now) for segment in selection.segments]
        is_cached, split = [number is not None for number in numbers], len(selection.whole)
        held = _filter(selection, is_cached, split)
        missing = _filter(selection, [not each for each in is_cached], split)
        # Also where all segments are wanted: more may be added before the statement runs.
        where = f"({' OR '.join(_ranges(sorted(number for number in numbers if number is not None)))})"
        if held.edge:
            where += f" AND {edge_condition(view, held)}"
        return _CachedPart((selection, view.entry), where if held.segments else None, missing)

    def has(self, fields: Iterable[pa.Field]) -> bool:
        """Whether it has these columns."""
        return all(field.name in self.columns and self.columns[field.name].equals(field) for field in fields)

    def has_outdated(self, view: StreamSnapshot) -> bool:
        """Whether the stream has a column of it in another type now, so that rows to come may not fit."""
        schema = view.entry.definition.schema
        return any(name in schema.names and schema.field(name) != field for name, field in self.columns.items())


@dataclass(frozen=True)
class _CachedPart:
    """What a table has of a selection of a stream."""

    of: tuple[Selection, StreamEntry]
    """Held, so that nothing else gets their identity."""
    where: str | None
    """What the rows fulfil that are there; None if there are none."""
    missing: Selection
    """What is not there."""


@dataclass(frozen=True)
class CachedRows:
    """The part of a window that is in memory, and what is left to be read from files; release it when it is read."""

    cache: "RowCache"
    table: CachedTable
    sql: str
    missing: Selection

    def release(self) -> None:
        """The statement is over."""
        self.cache.release(self.table)


@dataclass
class _Demand:
    """What statements wanted of a stream."""

    view: StreamSnapshot
    store: Store
    fields: dict[str, pa.Field]
    segments: dict[Place, Segment]

    @property
    def bytes(self) -> int:
        """About what it would take."""
        return sum(segment.bytes for segment in self.segments.values()) * len(self.fields)


class RowCache:
    """The tables of one warehouse in this process, shared by all its handles.

    Args:
        engine: Whose statements read them.
        columns: With whose columns they share the budget.
    """

    def __init__(self, engine: WarehouseInstance, columns: ColumnCache) -> None:
        self._engine, self._columns = engine, columns
        self._generation = engine.generation
        self._guard = threading.RLock()
        self._filling = threading.Lock()
        """Held by who adds to the tables: the thread, or a round of standing statements."""
        self._tables: dict[int, CachedTable] = {}
        self._retired: list[CachedTable] = []
        self._wanted: dict[int, _Demand] = {}
        self._refused: dict[int, int] = {}
        """By stream: the size of what did not fit."""
        self._narrow: set[int] = set()
        """Streams of which only the columns that are asked for are kept, because all of them did not fit."""
        self._thread: threading.Thread | None = None
        self._cursor: Any = None
        self._closed = threading.Event()
        self._measured: int | None = None
        """What all tables took after the last rows were added; None if one was dropped since."""
        self._names = itertools.count(1)
        self._reads = itertools.count(1)
        keep_in_child(self)

    # -- for statements

    def read(self, view: StreamSnapshot, fields: Sequence[pa.Field], selection: Selection) -> CachedRows | None:
        """The rows of a selection as far as they are in memory; None if nothing of it is."""
        with self._guard:
            self._forget_old_engine()
            table = self._tables.get(view.entry.id)
            if table is None or not table.has(fields):
                return None
            part = table.locate(view, selection)
            if part.where is None:
                return None
            table.readers += 1
            table.used = next(self._reads)
        shown = tuple([field.name for field in fields])
        if not part.missing.segments and len(table.columns) <= MAX_SHOWN:
            # More than is needed costs nothing, and the next statement finds the view that it wants.
            shown = tuple(table.columns)
        sql = f"SELECT {_list_columns(view, shown)} FROM {table.sql_name} WHERE {part.where}"
        return CachedRows(self, table, sql, part.missing)

    def holds(self, view: StreamSnapshot, fields: Sequence[pa.Field], selection: Selection) -> bool:
        """Whether all rows of a selection are in memory."""
        with self._guard:
            self._forget_old_engine()
            table = self._tables.get(view.entry.id)
            return table is not None and table.has(fields) and not table.locate(view, selection).missing.segments

    def release(self, table: CachedTable) -> None:
        """A statement that read the table is over."""
        with self._guard:
            table.readers -= 1
            if table in self._retired and not table.readers:
                self._start()

    def want(self, store: Store, view: StreamSnapshot, fields: Sequence[pa.Field], segments: Iterable[Segment]) -> None:
        """Keep these rows from now on, if there is room; returns at once."""
        wanted = {_place(segment): segment for segment in segments if not segment.ended}
        if not wanted:
            return
        with self._guard:
            demand = _Demand(view, store, {f.name: f for f in fields}, wanted)
            refused = self._refused.get(view.entry.id)
            if self._closed.is_set():
                return
            full = 2 * self._columns.reserved > self._columns.budget
            if refused is not None and demand.bytes > refused // 2 and full:
                return  # it did not fit, and nothing has changed
            earlier = self._wanted.get(view.entry.id)
            if earlier is not None:
                demand.fields = earlier.fields | demand.fields
                demand.segments = earlier.segments | demand.segments
            self._wanted[view.entry.id] = demand
            self._start()

    def fill(self, store: Store, view: StreamSnapshot, fields: Sequence[pa.Field], selection: Selection) -> None:
        """Keep these rows from now on, if there is room; returns when they are there."""
        if not self.holds(view, fields, selection):
            segments = {_place(segment): segment for segment in selection.segments}
            self._try_to_fill(_Demand(view, store, {f.name: f for f in fields}, segments))

    @property
    def bytes(self) -> int:
        """Bytes that the tables take."""
        with self._guard:
            return sum(table.bytes for table in (*self._tables.values(), *self._retired))

    @property
    def rows(self) -> int:
        """Rows in the tables."""
        with self._guard:
            return sum(table.rows for table in self._tables.values())

    def wait(self) -> None:
        """Until all that was wanted is there, or does not fit."""
        while (thread := self._thread) is not None:
            thread.join()

    def close(self) -> None:
        """End the filling; the tables go with the engine."""
        self._closed.set()
        with self._guard:
            thread, cursor = self._thread, self._cursor
        while thread is not None and thread.is_alive():
            with contextlib.suppress(duckdb.Error, RuntimeError):
                if cursor is not None:
                    cursor.interrupt()
            thread.join(0.05)
        if cursor is not None:
            cursor.close()

    # -- filling

    def _start(self) -> None:
        """Have the thread run; the caller has the guard. It may be a daemon, which would end in the midst of a call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="windrow-rows", daemon=False)
            self._thread.start()

    def _work(self) -> None:
        self._closed.wait(_REST_SECONDS)
        while True:
            with self._guard:
                idle = [table for table in self._retired if not table.readers]
                self._retired = [table for table in self._retired if table.readers]
                demand = self._wanted.pop(next(iter(self._wanted))) if self._wanted else None
                over = self._closed.is_set() or not threading.main_thread().is_alive()
                if over or not (idle or demand):
                    self._thread = None
                    return
            self._try_to_fill(demand, idle)

    def _try_to_fill(self, demand: _Demand | None, idle: Sequence[CachedTable] = ()) -> None:
        """Drop tables that nobody reads any more, and add rows."""
        with self._filling, contextlib.suppress(duckdb.Error, WindrowError, OSError, RuntimeError):
            # A file went, the engine was replaced, or all is being closed: what is there stays right.
            for table in idle:
                self._drop(table)
            if demand is not None:
                self._fill(demand)

    def _run(self, sql: str) -> Any:
        if self._cursor is None:
            self._cursor = self._engine.open_cursor()
            self._cursor.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_DATABASE} (COMPRESS)")
        return self._cursor.execute(sql).fetchall()

    def _forget_old_engine(self) -> None:
        if self._engine.generation != self._generation:
            self._generation, self._cursor, self._measured = self._engine.generation, None, None
            self._columns.reserve(-sum(table.bytes for table in (*self._tables.values(), *self._retired)))
            self._tables.clear()
            self._retired.clear()

    def _fill(self, demand: _Demand) -> None:
        stream, view = demand.view.entry.id, demand.view
        with self._guard:
            self._forget_old_engine()
            old = self._tables.get(stream)
        live = {_place(segment): segment for segment in view.segments}
        held = {} if old is None else {place: live[place] for place in old.numbers if place in live}
        slide = view.state.slide or 0
        dead = 0 if old is None else old.rows - sum(segment.rows - segment.dead(slide) for segment in held.values())
        wanted = {place: segment for place, segment in demand.segments.items() if place in live}
        if old is None or not old.has(demand.fields.values()) or old.has_outdated(view):
            wanted, reused = held | wanted, dict[Place, Segment]()
            table = self._create(demand, self._choose(demand, old, wanted), wanted.values())
        elif dead * _DEAD_SHARE > old.rows:
            table, reused = self._create(demand, old.columns, held.values()), held
        else:
            table, reused = old, dict[Place, Segment]()
            wanted = {place: segment for place, segment in wanted.items() if place not in old.numbers}
        if old is None:
            with self._guard:
                self._tables[stream] = table
        replaced = old is not None and table is not old
        try:
            fits = self._copy(view, old, table, reused) and self._add(demand, table, wanted)
        except BaseException:
            if replaced:
                self._retire(table)
            raise
        if fits:
            with self._guard:
                self._tables[stream] = table
                self._refused.pop(stream, None)
            if replaced and old is not None:
                self._retire(old)
        elif len(table.columns) > len(demand.fields) and stream not in self._narrow:
            self._retire(table)
            self._narrow.add(stream)
            self._fill(demand)
        else:
            with self._guard:
                self._refused[stream] = demand.bytes
            if replaced or self._columns.reserved > self._columns.budget:
                self._retire(table)

    def _choose(self, demand: _Demand, old: CachedTable | None, segments: dict[Place, Segment]) -> dict[str, pa.Field]:
        """The columns of a new table: all of the stream's if there is room, since other statements ask for others."""
        every, stream = {field.name: field for field in demand.view.entry.definition.schema}, demand.view.entry.id
        stored = sum(segment.bytes for segment in segments.values())
        free = self._columns.budget - self._columns.reserved + (0 if old is None else old.bytes)
        little = sum(_estimate(segment, len(every)) for segment in segments.values()) <= self._step
        if stream not in self._narrow and (little or stored <= free * _WHOLE_SHARE):
            return every
        names = demand.fields if old is None else old.columns | demand.fields
        return {name: every.get(name, field) for name, field in names.items()}

    def _create(self, demand: _Demand, fields: dict[str, pa.Field], segments: Iterable[Segment]) -> CachedTable:
        view = demand.view
        ordered = {name: fields[name] for name in view.entry.definition.schema.names if name in fields}
        table = CachedTable(f"t{next(self._names)}", ordered, used=next(self._reads))
        plain = _find_plain_texts(demand, list(segments))
        columns = [
            f"{quote_name(name)} {duckdb_type(field.type)}{_UNCOMPRESSED if name in plain else ''}"
            for name, field in ordered.items()
        ]
        self._run(f"CREATE TABLE {table.sql_name} ({', '.join(columns)}, {quote_name(_SEGMENT)} INTEGER)")
        return table

    def _copy(
        self, view: StreamSnapshot, old: CachedTable | None, table: CachedTable, reused: dict[Place, Segment]
    ) -> bool:
        """Take rows over from another table, with the numbers that they have there."""
        if old is None or not reused:
            return True
        table.next = old.next
        by_number = {old.numbers[place]: place for place in reused}
        living = life_condition(view)
        for numbers in _batch(
            sorted(by_number), lambda n: _estimate(reused[by_number[n]], len(table.columns)), self._step
        ):
            sql = f"SELECT * FROM {old.sql_name} WHERE ({' OR '.join(_ranges(numbers))}) AND {living}"
            places = {by_number[number]: number for number in numbers}
            without = {place: now for place, now in old.without.items() if place in places}
            without |= _find_thinned(view, [reused[place] for place in places])
            if not self._insert(table, sql, places, without):
                return False
        return True

    def _add(self, demand: _Demand, table: CachedTable, wanted: dict[Place, Segment]) -> bool:
        """Read segments from their files, those of one file together."""
        segments = [segment for place, segment in wanted.items() if place not in table.numbers]
        first, table.next = table.next, table.next + len(segments)
        parts = [part for number, segment in enumerate(segments, first) for part in self._cut(segment, table, number)]
        schema = pa.schema(list(table.columns.values()))
        demand.store.reader.verify_columns({segment.file for segment in segments}, schema.names)
        older_files = find_older_files(demand.view.entry.definition, segments, demand.store.reader)
        living, width = life_condition(demand.view), len(table.columns)
        for batch in _batch(parts, lambda part: _estimate(part.segment, width, part.rows), self._step):
            sql = parts_sql(demand.store.root, schema, batch, quote_name(_SEGMENT), older_files, living)
            done = {_place(part.segment): part.number for part in batch if part.stop == part.segment.stop}
            if not self._insert(table, sql, done, _find_thinned(demand.view, segments)):
                return False
        return True

    @property
    def _step(self) -> int:
        return min(_STEP_BYTES, self._columns.budget // 4)

    def _cut(self, segment: Segment, table: CachedTable, number: int) -> Iterator[SegmentPart]:
        """A segment in parts that are added at a time."""
        most = max(1, segment.rows * self._step // max(1, _estimate(segment, len(table.columns))))
        for start in range(segment.start, segment.stop, most):
            yield SegmentPart(segment, start, min(start + most, segment.stop), number)

    def _insert(self, table: CachedTable, sql: str, places: dict[Place, int], without: dict[Place, int]) -> bool:
        """Add rows and compress them; False if there is no room."""
        if self._closed.is_set() or not self._make_room(table, self._step):
            return False
        before = self._measured if self._measured is not None else self._measure()
        ((rows,),) = self._run(f"INSERT INTO {table.sql_name} {sql}")
        self._run(f"CHECKPOINT {_DATABASE}")
        self._measured = self._measure()
        grown = self._measured - before
        with self._guard:
            table.bytes += grown
            table.rows += rows
            table.without |= without
            table.numbers |= places
            table.parts.clear()
        self._columns.reserve(grown)
        return self._make_room(table, 0)

    def _measure(self) -> int:
        """What all tables take."""
        rows = self._run("SELECT memory_usage_bytes FROM duckdb_memory() WHERE tag = 'IN_MEMORY_TABLE'")
        return int(rows[0][0]) if rows else 0

    def _make_room(self, table: CachedTable, size: int) -> bool:
        """Drop tables of other streams, those first that were not read for longest, until so many bytes are free."""
        while self._columns.reserved + size > self._columns.budget:
            with self._guard:
                others = [
                    (other.used, stream)
                    for stream, other in self._tables.items()
                    if other.used < table.used and other.name != table.name
                ]
                if not others:
                    return False
                retired = self._tables.pop(min(others)[1])
            self._retire(retired)
        return True

    def _retire(self, table: CachedTable) -> None:
        """Let nobody read a table any more, and drop it, now or when its last reader is done."""
        with self._guard:
            for stream in [stream for stream, other in self._tables.items() if other is table]:
                del self._tables[stream]
            if table.readers:
                self._retired.append(table)
                return
        self._drop(table)

    def _drop(self, table: CachedTable) -> None:
        self._measured = None
        self._run(f"DROP TABLE IF EXISTS {table.sql_name}")
        self._columns.reserve(-table.bytes)


def row_cache(store: Store, engine: WarehouseInstance) -> RowCache | None:
    """The row cache of one of the instances of a warehouse; None if nothing is to be kept in memory."""
    if not store.columns.budget:
        return None
    name = "row cache" if engine.threads is None else "row cache of standing statements"
    cache: RowCache = store.shared.attached(name, lambda: RowCache(engine, store.columns))
    return cache


@cached_in_findings
def _list_columns(view: StreamSnapshot, names: tuple[str, ...]) -> str:
    """Some columns of a stream, as far as the view of it has them, in its order."""
    return ", ".join(quote_name(name) for name in view.schema.names if name in names)


def _filter(selection: Selection, keep: Sequence[bool], split: int) -> Selection:
    if all(keep):
        return selection
    whole = tuple(itertools.compress(selection.whole, keep[:split]))
    edge = tuple(itertools.compress(selection.edge, keep[split:]))
    return Selection(selection.bounds, Manifest(whole), Manifest(edge))


def _find_plain_texts(demand: _Demand, segments: Sequence[Segment]) -> Collection[str]:
    """The texts that are kept as they are: the files are, where it was tried whether compression pays."""
    if sum(segment.rows for segment in segments) < _ROW_GROUP:
        return ()  # each column of its own takes a whole block, and little is soon compressed
    largest = max(segments, key=lambda segment: segment.rows)
    _, layout = demand.store.reader.map_file(largest.file, demand.view.stored_schema)
    return layout.plain_texts()


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Sorted numbers as conditions on the segment's number, one for each run."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [f"{quote_name(_SEGMENT)} BETWEEN {first} AND {last}" for first, last in runs]


def _estimate(segment: Segment, columns: int, rows: int | None = None) -> int:
    """Bytes of rows that are not compressed."""
    each = _VALUE_BYTES * (columns + 1) + 2 * segment.bytes // max(1, segment.rows)
    return each * (segment.rows if rows is None else rows)


def _find_thinned(view: StreamSnapshot, segments: Iterable[Segment]) -> dict[Place, int]:
    """Those segments of which rows are dead now, with the time."""
    now = view.now
    return {} if now is None else {_place(segment): now for segment in segments if segment.min_exp <= now}


def _batch(items: Sequence[Any], size: Any, most: int) -> Iterator[list[Any]]:
    """Items together, up to a size."""
    batch, total = list[Any](), 0
    for item in items:
        if batch and total + size(item) > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch
