"""Runs one-time queries: parse, confine, pin, plan, run. Isolation levels other than `snapshot` build on this.

Whatever a statement needs (cursor, snapshot, timer) is held by its `PreparedStatement` and released with it.
"""

import contextlib
import datetime as dt
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.errors import DamageError, QueryError, QueryTimeoutError, UnknownStreamError, WindrowError
from windrow.formats.text import HUGE
from windrow.native.parquet_reader import count_lost_pages
from windrow.past import AsOf, Past
from windrow.queries.answer import Answer, Explanation
from windrow.queries.engine import arrow_source, cursor_pool, instance, interrupt
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.interrupt import run_interruptibly
from windrow.queries.engine.types import cast_to_marked, check_arrow_type, mark_schema, quote_name
from windrow.queries.planner.planner import RelationPlan, find_bounds, plan_relations
from windrow.queries.planner.reads import offer_relation
from windrow.queries.planner.scan_sql import table_sql, timestamp_literal
from windrow.queries.sql import calendar_units, parse_tree
from windrow.queries.sql.analysis import analyse
from windrow.queries.sql.confinement import confine
from windrow.queries.sql.foreign_dialect import ForeignStatement
from windrow.queries.sql.statement import Reference, Statement, cached_per_template, parse
from windrow.queries.sql.volatility import find_change
from windrow.queries.sql.window_spec import (
    AllRows,
    CalendarWindow,
    FixedWindow,
    LandmarkWindow,
    OffsetWindow,
    RangeWindow,
)
from windrow.queries.statement_context import NO_CONTEXT, ResultTable, Shortcut, StatementContext, SummaryTable
from windrow.snapshot import Snapshot, StreamSnapshot, restrict_schema
from windrow.store import Store
from windrow.windows import Window, make_window

if TYPE_CHECKING:
    from windrow.queries.incremental import StepHook
    from windrow.queries.system_tables import CatalogRecords

BATCH_ROWS = 100_000
"""Rows that DuckDB gives at once."""
_SNAPSHOT_ATTEMPTS = 5
"""How often a snapshot is taken again because a commit came before the system tables were read."""
_READ_ERRORS = (duckdb.Error, OSError, pa.ArrowException, RuntimeError)
"""What a failing query raises while its rows are read, depending on which library notices first."""

_NO_FILE = re.compile(r'No files found that match the pattern \\?"([^"\\]+)')

AnyStatement = Statement | ForeignStatement
"""In DuckDB's SQL, or in that of another engine."""
Params = Sequence[Any] | dict[str, Any] | None


@dataclass(eq=False)
class PreparedStatement:
    """A statement ready to run on a cursor of its own."""

    statement: Statement
    snapshot: Snapshot
    pooled: PooledCursor
    relations: tuple[RelationPlan, ...]
    windows: tuple[Window, ...]
    context: StatementContext = NO_CONTEXT
    results: tuple[Window, ...] = ()
    """Of result tables that it reads."""
    borrowed: bool = False
    """Whether the snapshot is somebody else's to close."""
    finished: bool = False
    """Whether all rows were read."""
    reusable: bool = False
    """Whether another statement can use the cursor: none or all rows were read, and no transaction is open."""
    timers: list[threading.Timer] = field(default_factory=list)
    interrupted: bool = False
    """Whether somebody has cancelled it, other than its own time."""
    version: int = 0
    """The commit that its answer is of."""
    shortcut: Shortcut | None = None
    """What spares it rows."""
    answered: pa.Table | None = None
    """The whole answer, where no row need be read."""
    _closed: bool = False

    @property
    def cursor(self) -> Any:
        """DuckDB's own cursor."""
        return self.pooled.cursor

    def interrupt(self) -> None:
        """End what DuckDB is doing for it."""
        self.interrupted = True
        interrupt.interrupt_cursor(self.cursor)

    def close(self) -> None:
        """Release the cursor and the snapshot."""
        if self._closed:
            return
        self._closed = True
        for timer in self.timers:
            timer.cancel()
        self.pooled.release(reusable=self.reusable)
        for relation in self.relations if self.finished else ():
            if relation.read is not None:
                relation.read.keep()
        if not self.borrowed:
            self.snapshot.close()


@dataclass(frozen=True)
class QueryRequest:
    """One query with its limits and its priority."""

    store: Store
    text: str
    params: Params
    deadline: float | None
    timeout: float | None
    priority: int
    between: "StepHook"
    memory_limit: str | None = None
    context: StatementContext = NO_CONTEXT
    limit: interrupt.Deadline | None = None

    def prepare(self, snapshot: Snapshot | None = None) -> PreparedStatement:
        """The statement, ready to run on a snapshot, by default of the streams' last slides."""
        return prepare(self.store, self.text, self.params, snapshot, self.memory_limit, self.context)

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, None without one."""
        if self.deadline is None:
            return None
        seconds = self.deadline - time.monotonic()
        if seconds <= 0 and self.limit is not None:
            raise self.limit.error()
        return seconds

    def named(self) -> dict[str, Any]:
        """The parameters by name; those without one are numbered from 1."""
        if isinstance(self.params, dict):
            return dict(self.params)
        return {str(number): value for number, value in enumerate(self.params or (), 1)}


def do_nothing() -> None:
    """What an answer lets go of that holds nothing."""


def answer_from_snapshot(
    store: Store,
    statement: str,
    params: Params = None,
    *,
    timeout: float | None = None,
    snapshot: Snapshot | None = None,
    memory_limit: str | None = None,
    context: StatementContext = NO_CONTEXT,
) -> Answer:
    """Answer a statement from a snapshot.

    Args:
        store: The warehouse.
        statement: DuckDB SQL with window clauses.
        params: Bound to ``?``, ``$1`` or ``$name``.
        timeout: Seconds after which the query is cancelled.
        snapshot: Ask an open snapshot instead of a new one; it stays open.
        memory_limit: Such as ``"500MB"``; what needs more is spilled to disk, or refused.
        context: What it can name beside streams and tables.
    """
    prepared = prepare(store, statement, params, snapshot, memory_limit, context)
    try:
        reader = run(prepared, params, timeout)
    except BaseException:
        prepared.close()
        raise
    return Answer(
        reader,
        prepared.windows + prepared.results,
        "snapshot",
        prepared.close,
        lambda: measure_staleness(store, prepared.windows, prepared.version),
        statement,
        params=params,
        version=prepared.version,
    )


def explain(
    store: Store, statement: str, params: Params = None, *, context: StatementContext = NO_CONTEXT
) -> Explanation:
    """Plan a statement without running it, unless it says EXPLAIN ANALYZE."""
    prepared = prepare(store, statement, params, context=context)
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
    context: StatementContext = NO_CONTEXT,
) -> PreparedStatement:
    """Parse and confine a statement, pin what it reads and make that readable on a new cursor."""
    if memory_limit is None:
        store.check_process()
        instance.warehouse_instance(store).open()
    statement = parse(text_)
    pinned, records = (snapshot, None) if snapshot is not None else _pin(store, statement, context)
    pooled: PooledCursor | None = None
    try:
        limited = "limit" in text_.lower()  # only such statements have any, and most have none
        shortcut = context.find_shortcut(pinned, _explained(statement), params) if limited else None
        pooled = cursor_pool.take_cursor(store, memory_limit)
        if shortcut is not None and shortcut.is_known:
            window = describe_window(shortcut.view, shortcut.reference)
            rows = None if statement.explain else shortcut.answer()
            return PreparedStatement(
                statement, pinned, pooled, (), (window,), context, borrowed=snapshot is not None,
                version=pinned.version, shortcut=shortcut, answered=rows, reusable=True,
            )  # fmt: skip
        restricted = None if shortcut is None else shortcut.restrict()
        shortcut = None if restricted is None else shortcut
        if restricted is not None:
            statement = replace(parse(restricted), explain=statement.explain)
        visible = go_back(statement.references, pinned, lambda: find_change(statement))
        streams, results = _offer_tables(statement, visible, records, pooled, context)
        visible, streams = show_pasts(visible, streams)
        relations = plan_relations(visible, statement, params, pooled, streams)
        for relation in relations:
            offer_relation(relation, visible, pooled)
        windows = tuple([describe_window(visible.view(reference.name), reference) for reference in streams])
        if "sample" in text_.lower() and (sampling := parse_tree.find_sampling(statement.tree)):
            relations_ = [reference.relation.lower() for reference in streams]
            windows = tuple(
                replace(w, sampling=sampling.get(name, 1.0)) for w, name in zip(windows, relations_, strict=True)
            )
    except BaseException as error:
        if pooled is not None:
            pooled.release(reusable=False)
        if snapshot is None:
            pinned.close()
        if isinstance(error, duckdb.Error):
            raise translate_error(statement, error) from None
        raise
    return PreparedStatement(
        statement, pinned, pooled, tuple(relations), windows, context, tuple(results),
        borrowed=snapshot is not None, version=visible.version, shortcut=shortcut,
        reusable=not analyse(statement).is_volatile,
    )  # fmt: skip


_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?", re.IGNORECASE)


def _explained(statement: Statement) -> str:
    """The text of the statement that is answered, or whose plan is asked for."""
    return _EXPLAIN.sub("", statement.text, count=1) if statement.explain else statement.text


def go_back(references: Sequence[Reference], pinned: Snapshot, find_change: Callable[[], str | None]) -> Snapshot:
    """The snapshot that a statement is asked of: with AS OF COMMIT an earlier one, for all that it reads.

    Args:
        references: Of the statement.
        pinned: The snapshot that it would be asked of otherwise.
        find_change: Finds what in it gives something else each time.
    """
    pasts = {str(reference.past): reference.past for reference in references if reference.past is not None}
    then = next((past for past in pasts.values() if isinstance(past, AsOf) and past.kind == "commit"), None)
    if not pasts and pinned.commit is None:
        return pinned
    other = next((past for past in pasts.values() if past != AsOf("commit", pinned.commit or 0)), None)
    if pinned.commit is not None and other is not None:
        raise QueryError(f"{other} cannot be asked of what is AS OF COMMIT {pinned.commit} already; leave one out")
    if (change := find_change()) is not None:
        raise QueryError(
            f"{change} gives something else each time (it is volatile), so the statement cannot be asked of the past; "
            "leave it out"
        )
    if then is not None and len(pasts) > 1:
        raise QueryError(
            f"{then} holds for all that the statement reads; leave {' and '.join({*pasts} - {str(then)})} out"
        )
    return pinned if then is None or pinned.commit == then.value else pinned.as_of(then.value)


def show_pasts(snapshot: Snapshot, references: list[Reference]) -> tuple[Snapshot, list[Reference]]:
    """The streams that references ask for as they were, beside those of the snapshot; a reference gets their name."""
    pasts: dict[str, tuple[str, Past]] = {}
    shown = []
    for reference in references:
        if reference.past is None or snapshot.commit is not None:
            shown.append(reference)
            continue
        name = f"{reference.name} {reference.past}"
        pasts[name] = reference.name, reference.past
        shown.append(replace(reference, name=name))
    return (snapshot.with_pasts(pasts) if pasts else snapshot), shown


def _pin(store: Store, statement: Statement, context: StatementContext) -> "tuple[Snapshot, CatalogRecords | None]":
    """A new snapshot of what the statement names, and what system tables show beside it, of the same commit."""
    references, role = statement.references, context.role
    if not any(reference.schema for reference in references):
        names = frozenset([reference.name.lower() for reference in references])
        pinned = Snapshot(store, alike=names, role=role)
        relations = {name.lower() for name in (*pinned.streams(), *pinned.tables)}
        summaries = context.find_summaries(pinned, names - relations) if not names <= relations else {}
        if not summaries:
            return pinned, None
        pinned.close()
        streams = frozenset([summary.stream.lower() for summary in summaries.values()])
        return Snapshot(store, alike=names | streams, role=role), None
    from windrow.queries import system_tables

    shown = {reference.name.lower() for reference in references if reference.schema}
    only_system = all(reference.schema for reference in references) and not shown & system_tables.STREAM_TABLES.keys()
    alike: frozenset[str] | None = frozenset() if only_system else None
    for _ in range(_SNAPSHOT_ATTEMPTS):
        pinned = Snapshot(store, alike=alike, role=role)
        records = system_tables.read_records(pinned, shown)
        if records.version == pinned.version:
            break
        pinned.close()
    else:
        pinned = Snapshot(store, alike=alike, role=role)  # commits come too fast: the tables may be a commit apart
    return pinned, records


def _offer_tables(
    statement: Statement,
    snapshot: Snapshot,
    records: "CatalogRecords | None",
    pooled: PooledCursor,
    context: StatementContext,
) -> tuple[list[Reference], list[Window]]:
    """Confine the statement, make its tables readable, and give its references to streams, each relation once."""
    streams = {name.lower(): name for name in snapshot.streams()}
    tables = {name.lower(): name for name in snapshot.tables}
    others = {r.name.lower() for r in statement.references if not r.schema} - {*streams, *tables}
    stored_results = context.find_results(snapshot, others) if others else {}
    results = {name.lower(): table for name, table in stored_results.items() if snapshot.role.sees(name)}
    others -= results.keys()
    named_summaries = context.find_summaries(snapshot, others) if others else {}
    summaries = {name: each for name, each in named_summaries.items() if each.stream in snapshot.streams()}

    def exists(reference: Reference) -> bool:
        if reference.schema:
            from windrow.queries import system_tables

            return reference.schema.lower() == "windrow" and system_tables.shows(snapshot.role, reference.name.lower())
        return any(reference.name.lower() in names for names in (streams, tables, results, summaries))

    existing = tuple(map(exists, statement.references))
    if not _is_confined(statement, existing):
        _confine(statement, existing)  # raises
    stream_references: list[Reference] = []
    described: list[Window] = []
    for reference in {r.relation.lower(): r for r in statement.references}.values():
        folded = reference.name.lower()
        if reference.schema or folded in tables:
            _refuse_window(statement, reference)
        if reference.past is not None or snapshot.commit is not None:
            other = "a summary" if folded in summaries else "a table of results"
            _refuse_past(statement, reference, is_stream=folded in streams, is_table=folded in tables, other=other)
        if reference.schema:
            from windrow.queries import system_tables

            records = records or system_tables.read_records(snapshot, system_tables.TABLE_NAMES)
            pooled.offer_table(reference.relation, system_tables.build_table(snapshot, records, folded))
        elif folded in streams:
            stream_references.append(replace(reference, name=streams[folded]))
        elif folded in tables:
            _offer_table(pooled, reference.relation, tables[folded], snapshot)
        elif folded in summaries:
            described.append(_offer_summary(pooled, statement, reference, summaries[folded], snapshot))
        else:
            _offer_results(pooled, statement, reference, results[folded], snapshot)
            described.append(_describe_results(statement, reference, results[folded], snapshot))
    return stream_references, described


def _offer_table(pooled: PooledCursor, relation: str, name: str, snapshot: Snapshot) -> None:
    """Make a table readable, with the columns that the role may use."""
    sql, granted = (
        table_sql(snapshot.store.root, snapshot.tables[name], snapshot.store.reader),
        snapshot.role.columns(name),
    )
    if granted is not None:
        sql = f"SELECT {', '.join(map(quote_name, granted))} FROM ({sql})"
    pooled.create_view(relation, sql)


def _offer_summary(
    pooled: PooledCursor, statement: Statement, reference: Reference, summary: SummaryTable, snapshot: Snapshot
) -> Window:
    """Make the bounds of a window readable; gives the window of the stream that they are of."""
    try:
        pooled.offer_table(reference.relation, summary.read(snapshot, reference.window))
    except QueryError as error:
        raise _locate(statement, reference, str(error)) from None
    return describe_window(snapshot.view(summary.stream), reference)


def _offer_results(
    pooled: PooledCursor, statement: Statement, reference: Reference, results: ResultTable, snapshot: Snapshot
) -> None:
    """Make a window of a result table readable; wide integers, which Arrow has as decimals, are integers again."""
    store, relation, hidden = snapshot.store, reference.relation, f"_results_of_{reference.relation}"
    schema = restrict_schema(snapshot.role, reference.name, results.schema)
    read = restrict_schema(snapshot.role, reference.name, results.schema, ("_window_end",))  # a window needs it
    pooled.offer_source(hidden, read, lambda columns: results.batches(store, columns.names))
    columns = [
        f"CAST({quote_name(f.name)} AS HUGEINT) AS {quote_name(f.name)}" if f.metadata == HUGE else quote_name(f.name)
        for f in schema
    ]
    where = _window_of_results(statement, reference, results.clock)
    pooled.create_view(relation, f"SELECT {', '.join(columns)} FROM {quote_name(hidden)}{where}")


def _window_of_results(statement: Statement, reference: Reference, clock: int | None) -> str:
    """A window of results is one on the ends of their windows; their clock is the newest of these."""
    bounds = _find_result_bounds(statement, reference, clock)
    if bounds is None:
        return ""
    lower, upper = (timestamp_literal(time, pa.timestamp("us", "UTC")) for time in bounds)
    return f" WHERE _window_end > {lower} AND _window_end <= {upper}"


def _find_result_bounds(statement: AnyStatement, reference: Reference, clock: int | None) -> tuple[int, int] | None:
    """Between which ends of windows results are read; None: all of them."""
    window = reference.window
    if isinstance(window, AllRows):
        return None
    if isinstance(window, FixedWindow):
        return window.start, window.stop
    if not isinstance(window, RangeWindow | OffsetWindow | CalendarWindow | LandmarkWindow):
        raise _locate(statement, reference, f"{reference.name} is a table of results, whose windows go by _window_end")
    if clock is None:
        return None
    if isinstance(window, RangeWindow):
        return clock - window.length, clock
    if isinstance(window, OffsetWindow):
        return clock - window.reach, clock - window.offset
    if isinstance(window, CalendarWindow):
        return window.find(clock)
    return window.start, clock


def _refuse_window(statement: Statement, reference: Reference) -> None:
    if not isinstance(reference.window, AllRows):
        raise _locate(statement, reference, f"{reference.name} is a table, which has no windows; leave the clause out")


def _refuse_past(statement: Statement, reference: Reference, *, is_stream: bool, is_table: bool, other: str) -> None:
    """Only streams, and with AS OF COMMIT tables, have a past."""
    if not is_stream and not (is_table and reference.past is None):
        what = "a system table" if reference.schema else "a table" if is_table else other
        raise _locate(statement, reference, f"{reference.name} is {what}, which has no history; ask it as it is now")


def _locate(statement: AnyStatement, reference: Reference, message: str) -> QueryError:
    offset = None if reference.span is None else len(statement.text[: reference.span[0]].encode())
    return statement.error(offset, message)


def describe_window(view: StreamSnapshot, reference: Reference) -> Window:
    """Which window of a stream a reference means."""
    bounds = find_bounds(view, reference.window)
    window = reference.window
    zone = calendar_units.find_zone(window.zone) if isinstance(window, CalendarWindow) else dt.UTC
    return make_window(view, bounds, reference.clause, zone)


def _describe_results(
    statement: AnyStatement, reference: Reference, results: ResultTable, snapshot: Snapshot
) -> Window:
    bounds = _find_result_bounds(statement, reference, results.clock)
    return results.describe(snapshot.store, bounds, str(reference.window))


def describe_windows(snapshot: Snapshot, statement: AnyStatement, context: StatementContext) -> list[Window]:
    """The windows of what a statement reads: streams, and results of periodic queries."""
    streams = {name.lower(): name for name in snapshot.streams()}
    references = [reference for reference in statement.references if not reference.schema]
    of_streams = [reference for reference in references if reference.name.lower() in streams]
    windows = [describe_window(snapshot.view(streams[reference.name.lower()]), reference) for reference in of_streams]
    others = {reference.name.lower() for reference in references} - streams.keys()
    results = context.find_results(snapshot, others) if others else {}
    named = {name.lower(): table for name, table in results.items()}
    read = [reference for reference in references if reference.name.lower() in named]
    return windows + [_describe_results(statement, r, named[r.name.lower()], snapshot) for r in read]


def run(prepared: PreparedStatement, params: Params, timeout: float | None = None) -> pa.RecordBatchReader:
    """Start the statement; rows come as they are read. Errors show their place in the user's text."""
    cursor, statement = prepared.cursor, prepared.statement
    if prepared.answered is not None:
        prepared.finished = True
        return prepared.answered.to_reader()
    prepared.reusable = False
    if timeout is not None:
        prepared.timers.append(interrupt.interrupt_after(timeout, cursor))
    with _translating_errors(prepared, timeout):
        if statement.explain:
            lines = str(run_interruptibly(cursor, lambda: _explain_prepared(prepared, params))).splitlines()
            return pa.table({"explain": pa.array(lines, pa.string())}).to_reader()
        reader, types = run_interruptibly(cursor, lambda: _start(cursor, statement, params))
    schema = mark_schema(reader.schema, types)
    hidden = analyse(statement).hidden_columns(schema.names)
    shown = [index for index in range(len(schema)) if index not in hidden]
    rows = _batches(reader, schema, prepared, timeout)
    if hidden:
        schema = pa.schema([schema.field(index) for index in shown])
        rows = (batch.select(shown) for batch in rows)
    return pa.RecordBatchReader.from_batches(schema, rows)


def _start(cursor: Any, statement: Statement, params: Params) -> tuple[pa.RecordBatchReader, list[str]]:
    if analyse(statement).has_pivot:  # DuckDB runs it as several statements
        relation = cursor.sql(statement.sql, params=params)
        types = [check_arrow_type(name, kind) for name, kind in zip(relation.columns, relation.types, strict=True)]
        return relation.to_arrow_reader(BATCH_ROWS), types
    return arrow_source.run_streaming(cursor, statement.sql, params, BATCH_ROWS)


@cached_per_template
def _is_confined(statement: Statement, existing: tuple[bool, ...]) -> bool:
    """Check a statement; once for each combination of which of its relations exist."""
    try:
        _confine(statement, existing)
    except QueryError:
        return False  # the error is raised for the statement that was asked, not for another of its template
    return True


def _confine(statement: Statement, existing: tuple[bool, ...]) -> None:
    exists = dict(zip(map(id, statement.references), existing, strict=True))
    confine(statement, lambda reference: exists[id(reference)])


def _batches(
    reader: pa.RecordBatchReader, schema: pa.Schema, prepared: PreparedStatement, timeout: float | None
) -> Iterator[pa.RecordBatch]:
    def following() -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None

    lost_pages = count_lost_pages()
    while True:
        with _translating_errors(prepared, timeout):
            batch = run_interruptibly(prepared.cursor, following)
        if count_lost_pages() != lost_pages:  # DuckDB may have read zeros in the place of texts
            raise DamageError("a file of the warehouse became shorter while it was read; run 'windrow check'")
        if batch is None:
            prepared.finished = True
            prepared.reusable = not analyse(prepared.statement).is_volatile
            break
        yield pa.RecordBatch.from_arrays(cast_to_marked(batch.columns, schema), schema=schema)
    for timer in prepared.timers:
        timer.cancel()


@contextlib.contextmanager
def _translating_errors(prepared: PreparedStatement, timeout: float | None) -> Iterator[None]:
    """Raise errors of DuckDB and Arrow as our own; the statement can be interrupted meanwhile."""
    running = prepared.snapshot.store.statements
    running.add(prepared)
    try:
        yield
    except _READ_ERRORS as error:
        if prepared.interrupted and "INTERRUPT" in str(error).upper():
            raise QueryError("the query was cancelled by interrupt() or close()") from None
        translated = translate_error(prepared.statement, error, timeout)
        if "'windrow check'" in str(error):  # damage that a relation told DuckDB, which tells only its text
            raise DamageError(str(translated)) from None
        raise translated from None
    finally:
        running.discard(prepared)


def translate_error(statement: Statement, error: BaseException, timeout: float | None = None) -> WindrowError:
    """An error of DuckDB or Arrow as our own, at its place in the user's text."""
    if isinstance(error, QueryError):
        return error
    message = str(error)
    if missing_file := _NO_FILE.search(message):
        return DamageError(f"file {missing_file[1]} is missing; run 'windrow check' to see what is affected")
    if timeout is not None and "INTERRUPT" in message.upper():
        return QueryTimeoutError(f"the query was cancelled: it took longer than {timeout:g} s")
    return _explain_error(statement, error)


def _explain_error(statement: Statement, error: BaseException, before: int = 0) -> QueryError:
    """DuckDB's error in one sentence, shown at its place in the user's text where DuckDB names one.

    `before` is how many bytes stood before the statement in what DuckDB was given.
    """
    message, offset = instance.parse_error(error)
    return statement.error(None if offset is None else max(0, offset - before), message)


def _explain_prepared(prepared: PreparedStatement, params: Params) -> Explanation:
    word, shortcut = prepared.statement.explain or "explain", prepared.shortcut
    described = "" if shortcut is None else shortcut.describe()
    if shortcut is not None and shortcut.is_known:
        return Explanation((), (), "", summary=described)
    reusable, prepared.reusable = prepared.reusable, False
    try:
        rows = prepared.cursor.execute(f"{word} {prepared.statement.sql}", params).fetchall()
    except duckdb.Error as error:
        raise _explain_error(prepared.statement, error, before=len(word) + 1) from None
    prepared.reusable = reusable
    plan, role = "\n".join(str(row[1]) for row in rows), prepared.snapshot.role
    if not role.sees_counts:
        plan = f"DuckDB's plan counts rows that role {role.name!r} does not see, and is not shown"
    pattern = prepared.context.describe_pattern(prepared.statement, prepared.snapshot)
    return Explanation(prepared.relations, prepared.windows, plan, pattern, role.sees_counts, described)


def measure_staleness(store: Store, windows: Sequence[Window], version: int) -> dt.timedelta:
    """How far the streams' clocks are now past the windows' slides, which are those of commit `version`."""

    def measure_lag(tables: Tables) -> int:
        if tables.version == version:
            return 0
        worst = 0
        for window in windows:
            with contextlib.suppress(UnknownStreamError):  # dropped meanwhile: what we have is the last there was
                entry, state = find_stream(tables, window.stream)
                if state.slide is not None and window.slide is not None:
                    worst = max(worst, (state.slide - window.slide) * entry.definition.slide)
        return worst

    return dt.timedelta(microseconds=store.catalog.read(measure_lag) if windows else 0)
