"""Standing statements from rows that are read once for all of them: the windows of a round as tables of one instance.

Each stream that several due statements read is put into memory once, as far back as the longest of their windows and
with the columns that any of them names. A window is then a view of that table, and a statement runs over views as it
was written. What is not plain enough for this runs by itself (`evaluation.answer_from_rows`).
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

import duckdb
import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.fork_safety import keep_in_child
from windrow.indexes.selection import Selection, WindowBounds
from windrow.queries.engine import instance
from windrow.queries.engine.arrow_source import run_streaming
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import cast_to_marked, mark_schema, quote_name
from windrow.queries.periodic.definition import unpack_params
from windrow.queries.planner.planner import find_bounds
from windrow.queries.planner.scan_sql import find_older_files, table_sql, timestamp_literal, window_sql
from windrow.queries.sql import window_spec
from windrow.queries.sql.statement import Reference
from windrow.queries.synopses.query_shape import StandingStatement, read_standing_statement
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_MIN_STATEMENTS = 3
_FILE, _VALUE = 0.25e-3, 8e-9
_STATEMENT, _ROW = 2e-3, 20e-9
"""Seconds that it costs to put a file and a value into memory, and that a statement saves, and for each row of its
stream; only their ratios matter. No trial of them, nor of the least number of statements, is on
record; they matter to `bench standing`."""
_MAX_BYTES = 2 << 30
"""What the rows of a round may take in memory. Not measured: a bound."""
_VALUE_BYTES = 16
_BATCH_ROWS = 100_000
_numbers = count()
"""Of tables: rounds of several threads use one instance."""


@dataclass
class _SharedStream:
    """A stream in memory."""

    after: int | None
    """The windows of all statements begin here or later."""
    names: set[str] | None = field(default_factory=set)
    """Columns that some statement names, in lower case; None: all."""
    statements: int = 0

    def include(self, bounds: WindowBounds, names: Collection[str] | None) -> None:
        """One more statement reads it."""
        self.statements += 1
        self.after = None if self.after is None or bounds.after is None else min(self.after, bounds.after)
        self.names = None if self.names is None or names is None else self.names | set(names)


class SharedRows:
    """The rows that the statements of one round share; they are dropped when it is over.

    Args:
        store: The warehouse.
        snapshot: What the statements are asked of.
    """

    def __init__(self, store: Store, snapshot: Snapshot) -> None:
        self._store, self._snapshot = store, snapshot
        self._seen = snapshot
        self._streams: dict[str, _SharedStream] = {}
        self._lock = threading.Lock()
        self._names = {name.lower(): name for name in snapshot.streams()}
        self._tables = {name.lower(): name for name in snapshot.tables}
        self._loaded: dict[str, str] = {}
        """The tables that hold streams and tables."""
        self._connection: duckdb.DuckDBPyConnection | None = None

    def seen_at(self, snapshot: Snapshot) -> "SharedRows":
        """The same rows as windows of earlier slides; they are dropped with these. See `Snapshot.at`."""
        if self._streams:
            self._connection = self._instance  # whose tables are dropped when this is closed
        seen = copy(self)
        seen._seen = snapshot
        return seen

    def plan(self, queries: Iterable[QueryEntry], *more: tuple[Snapshot, Iterable[QueryEntry]]) -> None:
        """Count who reads what, now or at earlier slides; to be called before the first answer."""
        for snapshot, query in ((s, q) for s, group in ((self._snapshot, queries), *more) for q in group):
            statement = read_standing_statement(self._store, query.sql)
            if query.memory_limit is not None or not self._suits(statement):
                continue
            for reference in statement.references:
                if (name := self._names.get(reference.name.lower())) is not None:
                    bounds = find_bounds(snapshot.view(name), reference.window)
                    if bounds is not None:
                        shared = self._streams.setdefault(name, _SharedStream(bounds.after))
                        shared.include(bounds, statement.names)
        for name, shared in list(self._streams.items()):
            if shared.statements < _MIN_STATEMENTS or not self._pays(name, shared):
                del self._streams[name]

    def _pays(self, name: str, shared: _SharedStream) -> bool:
        """Whether reading a stream once costs less than each statement's own reading of it, and there is room."""
        view = self._snapshot.view(name)
        rows, files = view.segments.rows, len({segment.file for segment in view.segments})
        columns = [f for f in view.schema if shared.names is None or f.name.lower() in shared.names]
        values = rows * (len(columns) + 1)
        saved = shared.statements * (_STATEMENT + rows * _ROW)
        return files * _FILE + values * _VALUE <= saved and values * _VALUE_BYTES <= _MAX_BYTES

    def _suits(self, statement: StandingStatement) -> bool:
        windows = (window_spec.AllRows, window_spec.RangeWindow, window_spec.LandmarkWindow)
        return (
            statement.plain
            and all(isinstance(reference.window, windows) for reference in statement.references)
            and all({reference.name.lower()} & {*self._names, *self._tables} for reference in statement.references)
        )

    def serves(self, query: QueryEntry) -> bool:
        """Whether all streams that a query reads are shared."""
        statement = read_standing_statement(self._store, query.sql)
        names = [self._names.get(reference.name.lower()) for reference in statement.references]
        streams = [name for name in names if name is not None]
        suits = query.memory_limit is None and self._suits(statement)
        return bool(streams) and suits and all(name in self._streams for name in streams)

    @contextmanager
    def cursor(self) -> Iterator[PooledCursor]:
        """A cursor for statements over the shared rows."""
        with self._lock:
            cursor = PooledCursor(self._instance.cursor())
        try:
            yield cursor
        finally:
            cursor.release(reusable=False)

    def answer(self, pooled: PooledCursor, query: QueryEntry) -> pa.Table:
        """The rows of a query's answer.

        Raises:
            duckdb.Error: it fails over these rows; by itself it says why at the right place of its text.
        """
        statement = read_standing_statement(self._store, query.sql)
        sql = statement.sql
        for reference in statement.references:
            view = self._offer(pooled, reference)
            if view != reference.relation:
                sql = re.sub(rf"\b{re.escape(reference.relation)}\b", view, sql)
        reader, types = run_streaming(pooled.cursor, sql, unpack_params(query.params), _BATCH_ROWS)
        schema = mark_schema(reader.schema, types)
        return pa.Table.from_arrays(cast_to_marked(reader.read_all().columns, schema), schema=schema)

    def _offer(self, pooled: PooledCursor, reference: Reference) -> str:
        """The name under which a statement finds the rows of one of its references."""
        folded = reference.name.lower()
        if folded not in self._names:
            entry = self._snapshot.tables[self._tables[folded]]
            table = self._load(f"t {folded}", lambda: table_sql(self._store.root, entry, self._store.reader))
            pooled.create_view(reference.relation, f"SELECT * FROM {table}")
            return reference.relation
        name = self._names[folded]
        view, shared = self._snapshot.view(name), self._streams[name]
        bounds = find_bounds(self._seen.view(name), reference.window)
        assert bounds is not None
        earlier = bounds.now != view.now
        table = self._load(f"s {folded}", lambda: self._rows_sql(view, shared))
        windowed = not isinstance(reference.window, window_spec.AllRows)
        label = f"_window_{view.entry.id}_{bounds.after}_{bounds.upto}" if windowed else reference.relation
        time, limits = view.schema.field(view.model.time), []
        if bounds.after is not None and bounds.after != shared.after:
            limits.append(f"{quote_name(time.name)} > {timestamp_literal(bounds.after, time.type)}")
        if earlier:  # only revisions look back, and these only where rows of a window are still live
            limits.append(f"{quote_name(time.name)} <= {timestamp_literal(bounds.upto, time.type)}")
        sql = f"SELECT * FROM {table}" + (f" WHERE {' AND '.join(limits)}" if limits else "")
        pooled.create_view(label, sql)
        return label

    def _load(self, key: str, make_sql: Callable[[], str]) -> str:
        """Put rows into memory once."""
        with self._lock:
            if key not in self._loaded:
                table = f"_rows_{next(_numbers)}"
                self._instance.execute(f"CREATE TABLE {table} AS {make_sql()}")
                self._loaded[key] = table
            return self._loaded[key]

    def _rows_sql(self, view: StreamSnapshot, shared: _SharedStream) -> str:
        """The rows of a stream; oldest first, so that DuckDB can skip what a short window does not need."""
        needed = {name.lower() for name in (view.model.time, view.model.expires) if name is not None}
        schema = view.schema
        if shared.names is not None:
            schema = pa.schema([f for f in schema if f.name.lower() in needed | shared.names])
        selection = view.select(view.bounds(after=shared.after))
        whole, edge = (tuple(sorted(part, key=lambda s: s.min_ts)) for part in (selection.whole, selection.edge))
        ordered = Selection(selection.bounds, whole, edge)
        self._store.reader.verify_columns({segment.file for segment in ordered.segments}, schema.names)
        older_files = find_older_files(view.entry.definition, ordered.segments, self._store.reader)
        return window_sql(self._store.root, view.model, schema, ordered, view.state.torn, older_files)

    @cached_property
    def _standing(self) -> "_StandingInstance":
        standing: _StandingInstance = self._store.shared.attached(
            "standing rows", lambda: _StandingInstance(self._store.root, instance.spill_folder(self._store))
        )
        return standing

    @property
    def _instance(self) -> duckdb.DuckDBPyConnection:
        """The same one during the whole round, though that of another thread may replace it."""
        if self._connection is None:
            self._connection = self._standing.connection
        return self._connection

    def close(self) -> None:
        """Drop the rows; if a statement has ended the instance, the next round has a new one."""
        if self._connection is None:
            return
        drops = [f"DROP TABLE IF EXISTS {table}" for table in self._loaded.values()]
        self._loaded.clear()
        try:
            for statement in drops or ["SELECT 1"]:
                self._connection.execute(statement)
        except duckdb.FatalException:
            self._standing.replace(self._connection)


class _StandingInstance:
    """An instance whose statements run on the thread that asks, so that this thread's priority is theirs."""

    def __init__(self, root: Path, spill: Path) -> None:
        self._root, self._spill = root, spill
        self._guard = threading.Lock()
        self.connection = self._open()
        keep_in_child(self)

    def _open(self) -> duckdb.DuckDBPyConnection:
        return instance.open_locked_instance(self._root, threads=1, spill=self._spill)

    def replace(self, dead: duckdb.DuckDBPyConnection) -> None:
        """Start anew after a fatal error inside DuckDB, which ends an instance for good."""
        with self._guard:
            if self.connection is dead:
                self.connection = self._open()

    def close(self) -> None:
        """Let go of the instance; it ends with the last of its cursors."""
        self.connection.close()
