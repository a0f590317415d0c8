"""Standing statements from rows that are kept in memory for all of them: the windows of a round as views of one table.

Each stream that due statements read is kept in a table of their own instance (`row_cache`), with the columns that any
of them names; a round adds what has come since the last one. A statement runs over views of it as it was written. What
is not plain enough for this, or does not fit, runs by itself (`evaluation.answer_from_rows`).
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.indexes.selection import WindowBounds
from windrow.queries.engine.arrow_source import run_streaming
from windrow.queries.engine.cursor_pool import CursorPool, PooledCursor
from windrow.queries.engine.instance import standing_instance
from windrow.queries.engine.types import cast_to_marked, mark_schema
from windrow.queries.periodic.definition import unpack_params
from windrow.queries.planner.planner import find_bounds
from windrow.queries.planner.reads import needed_fields, plan_window
from windrow.queries.planner.row_cache import row_cache
from windrow.queries.planner.scan_sql import table_sql
from windrow.queries.priorities import BACKGROUND, PROCESS_GATE
from windrow.queries.sql import window_spec
from windrow.queries.sql.statement import Reference
from windrow.queries.synopses.query_shape import StandingStatement, read_standing_statement
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_FILE, _VALUE = 0.25e-3, 8e-9
_STATEMENT, _ROW = 2e-3, 20e-9
"""Seconds that it costs to put a file and a value into memory, and that a statement saves, and for each row of its
stream; only their ratios matter. No trial of them is on record; they matter to `bench standing`."""
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
    period: int | None = None
    """The time from one round to the next: of the statement that comes most often."""

    def include(self, bounds: WindowBounds, names: Collection[str] | None, period: int) -> None:
        """One more statement reads it."""
        self.statements += 1
        self.after = None if self.after is None or bounds.after is None else min(self.after, bounds.after)
        self.names = None if self.names is None or names is None else self.names | set(names)
        self.period = period if self.period is None else min(self.period, period)

    def choose_names(self, view: StreamSnapshot) -> tuple[str, ...]:
        """The columns that are kept, as the stream spells them."""
        return tuple(name for name in view.schema.names if self.names is None or name.lower() in self.names)


class SharedRows:
    """The rows that the statements of one round share.

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
        self._filled: set[str] = set()
        """Streams that this round has seen to."""
        self._loaded: dict[str, str] = {}
        """The tables that hold the warehouse's tables."""
        engine = standing_instance(store)
        self._pool: CursorPool = store.shared.attached("cursors of standing statements", lambda: CursorPool(engine))
        self._generation = engine.generation

    def seen_at(self, snapshot: Snapshot) -> "SharedRows":
        """The same rows as windows of earlier slides. See `Snapshot.at`."""
        shared = copy(self)
        shared._seen = snapshot
        return shared

    def plan(self, queries: Iterable[QueryEntry], *more: tuple[Snapshot, Iterable[QueryEntry]]) -> None:
        """Count who reads what, now or at earlier slides; to be called before the first answer."""
        for snapshot, query in ((s, q) for s, group in ((self._snapshot, queries), *more) for q in group):
            statement = read_standing_statement(self._store, query.sql)
            if query.memory_limit is not None or not self._suits(statement):
                continue
            for reference in statement.references:
                if (name := self._names.get(reference.name.lower())) is not None:
                    view = snapshot.view(name)
                    bounds = None if view.is_past else find_bounds(view, reference.window)
                    if bounds is not None:
                        shared = self._streams.setdefault(name, _SharedStream(bounds.after))
                        shared.include(bounds, statement.names, _find_period(query, view))
        for name, shared in list(self._streams.items()):
            if not self._pays(name, shared):
                del self._streams[name]

    def _pays(self, name: str, shared: _SharedStream) -> bool:
        """Whether keeping the rows up to date costs less than each statement's own reading of them, and is allowed."""
        view = self._snapshot.view(name)
        rows, files = view.segments.rows, len({segment.file for segment in view.segments})
        cost = files * _FILE + rows * (len(shared.choose_names(view)) + 1) * _VALUE
        if shared.after is not None and shared.period is not None and view.now is not None:
            cost *= min(1.0, shared.period / max(1, view.now - shared.after))
        saved = shared.statements * (_STATEMENT + rows * _ROW)
        return cost <= saved and row_cache(self._store, self._pool.engine) is not None

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
        cursor = PooledCursor(self._pool.engine.open_cursor(), self._pool)
        try:
            yield cursor
        finally:
            cursor.release(reusable=False)

    def answer(self, pooled: PooledCursor, query: QueryEntry, pause: Callable[[], None]) -> pa.Table:
        """The rows of a query's answer; `pause` lets one-time queries go first, and is called before each read.

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
        rows = PROCESS_GATE.batches(reader, BACKGROUND, pause).read_all()
        return pa.Table.from_arrays(cast_to_marked(rows.columns, schema), schema=schema)

    def _offer(self, pooled: PooledCursor, reference: Reference) -> str:
        """The name under which a statement finds the rows of one of its references."""
        folded = reference.name.lower()
        if folded not in self._names:
            pooled.create_view(reference.relation, f"SELECT * FROM {self._load_table(pooled, folded)}")
            return reference.relation
        name = self._names[folded]
        self._fill(name)
        view, shared = self._snapshot.view(name), self._streams[name]
        bounds = find_bounds(self._seen.view(name), reference.window)
        assert bounds is not None
        windowed = not isinstance(reference.window, window_spec.AllRows)
        label = f"_window_{view.entry.id}_{bounds.after}_{bounds.upto}" if windowed else reference.relation
        if not (windowed and pooled.has_view(label)):
            # Rows of an earlier slide's window that have died since are missing: only revisions look back, and they
            # only where rows of a window still live.
            selection = view.select(view.bounds(bounds.after, bounds.upto))
            read = plan_window(self._snapshot, pooled, view, selection, shared.choose_names(view))
            pooled.create_view(label, read.sql)
        return label

    def _fill(self, name: str) -> None:
        """See that the rows of a stream are in memory, once in a round."""
        with self._lock:
            if name not in self._filled:
                view, shared = self._snapshot.view(name), self._streams[name]
                cache = row_cache(self._store, self._pool.engine)
                if cache is not None:
                    fields = needed_fields(view, shared.choose_names(view))
                    cache.fill(self._store, view, fields, view.select(view.bounds(after=shared.after)))
                self._filled.add(name)

    def _load_table(self, pooled: PooledCursor, folded: str) -> str:
        """Put a table of the warehouse into memory, once in a round."""
        with self._lock:
            if folded not in self._loaded:
                table = f"_table_{next(_numbers)}"
                entry = self._snapshot.tables[self._tables[folded]]
                sql = table_sql(self._store.root, entry, self._store.reader)
                pooled.cursor.execute(f"CREATE TABLE {table} AS {sql}")
                self._loaded[folded] = table
            return self._loaded[folded]

    def close(self) -> None:
        """Drop what only this round needed."""
        if self._loaded:
            with self.cursor() as pooled:
                if self._pool.engine.generation == self._generation:
                    for table in self._loaded.values():
                        pooled.cursor.execute(f"DROP TABLE IF EXISTS {table}")
            self._loaded.clear()


def _find_period(query: QueryEntry, view: StreamSnapshot) -> int:
    """The time between two runs of a query; a slot if it moves with the calendar."""
    delta = view.entry.definition.slide
    return min((pace.period * delta for pace in query.paces if pace.stream == view.name), default=delta)
