"""Running one-time queries: parse, confine, pin, plan, run. Isolation levels other than `snapshot` build on this.

Whatever a statement needs (cursor, snapshot, timer) hangs on its `PreparedStatement`, and closing that lets go of all of it.
"""

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa

from windrow import times
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.errors import QueryError, UnknownStreamError
from windrow.formats.text import HUGE
from windrow.queries import system_tables
from windrow.queries.answer import Answer, Explanation, Window
from windrow.queries.engine import arrow_source, cursor_pool, instance, interrupt
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.interrupt import run_interruptibly
from windrow.queries.engine.types import cast_to_marked, check_arrow_type, mark_schema, quote_name
from windrow.queries.periodic import result_store
from windrow.queries.periodic.result_store import StoredResults
from windrow.queries.planner.planner import Planner, RelationPlan, find_bounds
from windrow.queries.planner.scan_sql import table_sql
from windrow.queries.sql import macros, volatility
from windrow.queries.sql.confinement import confine
from windrow.queries.sql.statement import Reference, Statement, cached_per_template, parse
from windrow.queries.sql.window_spec import AllRows
from windrow.queries.views import update_patterns
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

BATCH_ROWS = 100_000
_SNAPSHOT_ATTEMPTS = 5
_READ_ERRORS = (duckdb.Error, OSError, pa.ArrowException, RuntimeError)
"""What a failing query raises while its rows are read, depending on who notices first."""

Params = Sequence[Any] | dict[str, Any] | None


@dataclass
class PreparedStatement:
    """A statement ready to run on a desk of its own."""

    statement: Statement
    snapshot: Snapshot
    desk: PooledCursor
    pruned: tuple[RelationPlan, ...]
    windows: tuple[Window, ...]
    borrowed: bool = False
    """Whether the snapshot is somebody else's to close."""
    tidy: bool = False
    """Whether the desk is left as it was found: all rows were read, and no transaction is open."""
    timers: list[threading.Timer] = field(default_factory=list)
    _closed: bool = False

    @property
    def cursor(self) -> Any:
        """The desk's."""
        return self.desk.cursor

    def close(self) -> None:
        """Let go of desk and snapshot."""
        if self._closed:
            return
        self._closed = True
        for timer in self.timers:
            timer.cancel()
        self.desk.leave(tidy=self.tidy)
        if not self.borrowed:
            self.snapshot.close()


def answer_from_snapshot(
    store: Store,
    statement: str,
    params: Params = None,
    *,
    timeout: float | None = None,
    snapshot: Snapshot | None = None,
    memory_limit: str | None = None,
) -> Answer:
    """Answer a statement from a snapshot.

    Args:
        store: The warehouse.
        statement: DuckDB SQL with window clauses.
        params: Bound to ``?``, ``$1`` or ``$name``.
        timeout: Seconds after which the query is cancelled.
        snapshot: Ask an open snapshot instead of a new one; it stays open.
        memory_limit: Such as ``"500MB"``; what needs more is spilled to disk, or refused.
    """
    prepared = prepare(store, statement, params, snapshot, memory_limit)
    try:
        reader = run(prepared, params, timeout)
    except BaseException:
        prepared.close()
        raise
    return Answer(
        reader,
        prepared.windows,
        "snapshot",
        prepared.close,
        lambda: measure_staleness(store, prepared.windows, prepared.snapshot.version),
        statement,
        params=params,
    )


def explain(store: Store, statement: str, params: Params = None, snapshot: Snapshot | None = None) -> Explanation:
    """Plan a statement without running it, unless it says EXPLAIN ANALYZE."""
    prepared = prepare(store, statement, params, snapshot)
    try:
        return _explain_prepared(prepared, params)
    finally:
        prepared.close()


def prepare(
    store: Store,
    text_: str,
    params: Params,
    snapshot: Snapshot | None = None,
    memory_limit: str | None = None,
) -> PreparedStatement:
    """Parse and confine a statement, pin what it reads and make that readable on a new cursor."""
    statement = parse(text_)
    pinned, held = (snapshot, None) if snapshot is not None else _pin(store, statement)
    desk: PooledCursor | None = None
    try:
        desk = cursor_pool.take_cursor(store, memory_limit)
        streams = _offer_tables(statement, pinned, held, desk)
        pruned = Planner(pinned, statement, params, desk).prepare(streams)
        windows = tuple([describe_window(pinned.view(reference.name), reference) for reference in streams])
    except BaseException:
        if desk is not None:
            desk.leave(tidy=False)
        if snapshot is None:
            pinned.close()
        raise
    return PreparedStatement(statement, pinned, desk, tuple(pruned), windows, borrowed=snapshot is not None)


def _pin(store: Store, statement: Statement) -> tuple[Snapshot, system_tables.CatalogRecords | None]:
    """A new snapshot of what the statement names, and what system tables show beside it, of the same commit."""
    references = statement.references
    if not any(reference.schema for reference in references):
        return Snapshot(store, alike=frozenset([reference.name.lower() for reference in references])), None
    for _ in range(_SNAPSHOT_ATTEMPTS):
        pinned = Snapshot(store)
        held = system_tables.read_records(pinned)
        if held.version == pinned.version:
            break
        pinned.close()
    else:
        pinned = Snapshot(store)  # commits come too fast: the tables may be a commit apart
    return pinned, held


def _offer_tables(
    statement: Statement, snapshot: Snapshot, held: system_tables.CatalogRecords | None, desk: PooledCursor
) -> list[Reference]:
    """Confine the statement, make its tables readable, and give its references to streams, each relation once."""
    streams = {name.lower(): name for name in snapshot.streams()}
    tables = {name.lower(): name for name in snapshot.tables}
    delivered = _find_results(statement, snapshot, {*streams, *tables})

    def exists(reference: Reference) -> bool:
        if reference.schema:
            return reference.schema.lower() == "windrow" and reference.name.lower() in system_tables.TABLE_NAMES
        return any(reference.name.lower() in known for known in (streams, tables, delivered))

    found = tuple(map(exists, statement.references))
    if not _is_confined(statement, found):
        _confine(statement, found)
    own = []
    for reference in {each.relation.lower(): each for each in statement.references}.values():
        folded = reference.name.lower()
        if folded not in streams or reference.schema:
            _refuse_window(statement, reference)
        if reference.schema:
            held = held or system_tables.read_records(snapshot)
            desk.rows(reference.relation, system_tables.build_table(snapshot, held, folded))
        elif folded in streams:
            own.append(replace(reference, name=streams[folded]))
        elif folded in tables:
            desk.view(reference.relation, table_sql(snapshot.store.root, snapshot.tables[tables[folded]]))
        else:
            _offer_results(desk, reference.relation, delivered[folded], snapshot.store)
    return own


def _find_results(statement: Statement, snapshot: Snapshot, known: set[str]) -> dict[str, StoredResults]:
    """The results tables that a statement names, as far as the snapshot has come."""
    wanted = {r.name.lower() for r in statement.references if not r.schema} - known

    def look(tables: Tables) -> dict[str, StoredResults]:
        named = [(at.decode(), at) for at, _ in tables.raw_items("queries") if at.decode().lower() in wanted]
        return {
            n.lower(): result_store.read_stored_results(tables, tables.get("queries", at), snapshot.version)
            for n, at in named
        }

    return snapshot.store.catalog.read(look) if wanted else {}


def _offer_results(desk: PooledCursor, relation: str, results: StoredResults, store: Store) -> None:
    """Make a results table readable; integers that Arrow carries as decimals are integers again."""
    hidden = f"_results_of_{relation}"
    schema = results.schema
    desk.source(hidden, schema, lambda columns: results.batches(store, columns.names))
    columns = [
        f"CAST({quote_name(f.name)} AS HUGEINT) AS {quote_name(f.name)}" if f.metadata == HUGE else quote_name(f.name)
        for f in schema
    ]
    desk.view(relation, f"SELECT {', '.join(columns)} FROM {quote_name(hidden)}")


def _refuse_window(statement: Statement, reference: Reference) -> None:
    if not isinstance(reference.window, AllRows):
        offset = None if reference.span is None else len(statement.text[: reference.span[0]].encode())
        raise statement.error(offset, f"{reference.name} is a table, which has no windows; leave the clause out")


def describe_window(view: StreamSnapshot, reference: Reference) -> Window:
    """Which window of a stream a reference means."""
    bounds = find_bounds(view, reference.window)
    state = view.state
    return Window(
        stream=reference.name,
        clause=str(reference.window),
        slide=state.slide,
        start=None if bounds is None or bounds.after is None else times.to_datetime(bounds.after),
        end=None if bounds is None else times.to_datetime(bounds.upto),
        complete=not state.missing,
        sources=tuple(view.sources),
        missing=state.missing,
        spoken_for=state.spoken_for,
        rejected=state.rejected,
    )


def run(prepared: PreparedStatement, params: Params, timeout: float | None = None) -> pa.RecordBatchReader:
    """Start the statement; rows come as they are read. Errors show their place in the user's text."""
    cursor, statement = prepared.cursor, prepared.statement
    if timeout is not None:
        prepared.timers.append(interrupt.interrupt_after(timeout, cursor))
    with _translating_errors(prepared, timeout):
        if statement.explain:
            lines = str(run_interruptibly(cursor, lambda: _explain_prepared(prepared, params))).splitlines()
            return pa.table({"explain": pa.array(lines, pa.string())}).to_reader()
        reader, types = run_interruptibly(cursor, lambda: _start(cursor, statement, params))
    schema = mark_schema(reader.schema, types)
    unseen = macros.find_hidden_columns(statement, schema.names)
    shown = [at for at in range(len(schema)) if at not in unseen]
    rows = _batches(reader, schema, prepared, timeout)
    if unseen:
        schema = pa.schema([schema.field(at) for at in shown])
        rows = (batch.select(shown) for batch in rows)
    return pa.RecordBatchReader.from_batches(schema, rows)


def _start(cursor: Any, statement: Statement, params: Params) -> tuple[pa.RecordBatchReader, list[str]]:
    if _has_pivot(statement):  # DuckDB runs several statements for it
        relation = cursor.sql(statement.sql, params=params)
        types = [check_arrow_type(name, kind) for name, kind in zip(relation.columns, relation.types, strict=True)]
        return relation.to_arrow_reader(BATCH_ROWS), types
    return arrow_source.run_streaming(cursor, statement.sql, params, BATCH_ROWS)


@cached_per_template
def _has_pivot(statement: Statement) -> bool:
    return any("pivot" in token.word for token in statement.source.tokens)


@cached_per_template
def _is_confined(statement: Statement, found: tuple[bool, ...]) -> bool:
    """Check a statement once for each answer to which of its relations exist."""
    try:
        _confine(statement, found)
    except QueryError:
        return False  # what is wrong is said of the statement that was asked, not of one that is like it
    return True


def _confine(statement: Statement, found: tuple[bool, ...]) -> None:
    exists = dict(zip(map(id, statement.references), found, strict=True))
    confine(statement, lambda reference: exists[id(reference)])


def _batches(
    reader: pa.RecordBatchReader, schema: pa.Schema, prepared: PreparedStatement, timeout: float | None
) -> Iterator[pa.RecordBatch]:
    def following() -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None

    while True:
        with _translating_errors(prepared, timeout):
            batch = run_interruptibly(prepared.cursor, following)
        if batch is None:
            prepared.tidy = not volatility.has_volatile_constant(prepared.statement)
            break
        yield pa.RecordBatch.from_arrays(cast_to_marked(batch.columns, schema), schema=schema)
    for timer in prepared.timers:
        timer.cancel()


@contextlib.contextmanager
def _translating_errors(prepared: PreparedStatement, timeout: float | None) -> Iterator[None]:
    """Errors in our words."""
    try:
        yield
    except _READ_ERRORS as error:
        raise translate_error(prepared.statement, error, timeout) from None


def translate_error(statement: Statement, error: BaseException, timeout: float | None = None) -> QueryError:
    """DuckDB's error in our words, at its place in the user's text."""
    if isinstance(error, QueryError):
        return error
    message = str(error)
    if timeout is not None and "INTERRUPT" in message.upper():
        return QueryError(f"the query was cancelled: it took longer than {timeout:g} s")
    return instance.explain_error(statement, error)


def _explain_prepared(prepared: PreparedStatement, params: Params) -> Explanation:
    word = prepared.statement.explain or "explain"
    try:
        rows = prepared.cursor.execute(f"{word} {prepared.statement.sql}", params).fetchall()
    except duckdb.Error as error:
        raise instance.explain_error(prepared.statement, error, before=len(word) + 1) from None
    plan = "\n".join(str(row[1]) for row in rows)
    pattern = update_patterns.describe_pattern(prepared.statement, prepared.snapshot)
    return Explanation(prepared.pruned, prepared.windows, plan, pattern)


def measure_staleness(store: Store, windows: Sequence[Window], version: int) -> dt.timedelta:
    """How far the streams' clocks are now past the windows' slides, which are those of commit `version`."""

    def look(tables: Tables) -> int:
        if tables.version == version:
            return 0
        worst = 0
        for window in windows:
            with contextlib.suppress(UnknownStreamError):  # dropped meanwhile: what we have is the last there was
                entry, state = find_stream(tables, window.stream)
                if state.slide is not None and window.slide is not None:
                    worst = max(worst, (state.slide - window.slide) * entry.definition.slide)
        return worst

    return dt.timedelta(microseconds=store.catalog.read(look) if windows else 0)
