"""The named isolation levels of one-time queries: `serial`, `snapshot` and `latest`.

At `serial` slides wait for the query; at `snapshot` nobody waits and the answer is of the slide at which it was asked;
at `latest` it is of the last slide committed when the query made its final check, whose time the answer records.
"""

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from windrow import times
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.errors import QueryError, UnknownStreamError
from windrow.files import disk_errors
from windrow.locks import locked
from windrow.queries import execution, incremental
from windrow.queries.answer import Answer, check_gap_policy
from windrow.queries.engine.interrupt import Deadline, interrupt_after
from windrow.queries.engine.types import cast_to_marked, mark_schema, may_lose_values
from windrow.queries.execution import PreparedStatement
from windrow.queries.incremental import IncrementalAggregation, OvertakenError, StepHook, select_parameters
from windrow.queries.priorities import MAX_PAUSE, ONE_TIME, PROCESS_GATE
from windrow.queries.sql import split_aggregate, window_spec
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.sql.statement import Reference, parse
from windrow.queries.statement_context import NO_CONTEXT, StatementContext
from windrow.store import Store
from windrow.windows import Window

LEVELS = ("snapshot", "latest", "serial")
MAX_RERUNS = 3
"""How often a statement that cannot be computed slot by slot is run again because a slide overtook it."""
LOCK_SECONDS = 60.0
"""How long `serial` waits for a slide that is under way, unless the query has a timeout of its own."""

Params = Sequence[Any] | dict[str, Any] | None
DescribedColumns = list[tuple[str, str]]
"""Names and DuckDB types of an answer's columns."""


@dataclass(frozen=True)
class QueryRequest:
    """One query with its limits and its priority."""

    store: Store
    text: str
    params: Params
    deadline: float | None
    timeout: float | None
    priority: int
    between: StepHook
    memory_limit: str | None = None
    context: StatementContext = NO_CONTEXT
    limit: Deadline | None = None

    def prepare(self) -> PreparedStatement:
        """The statement, ready to run on the streams' last slides."""
        return execution.prepare(
            self.store, self.text, self.params, memory_limit=self.memory_limit, context=self.context
        )

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, None without one."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0 and self.limit is not None:
            raise self.limit.error()
        return left

    def named(self) -> dict[str, Any]:
        """The parameters by name; those without one are numbered from 1."""
        if isinstance(self.params, dict):
            return dict(self.params)
        return {str(number): value for number, value in enumerate(self.params or (), 1)}


def answer_query(
    store: Store,
    statement: str,
    params: Params = None,
    *,
    isolation: str = "snapshot",
    timeout: float | None = None,
    memory_limit: str | None = None,
    priority: int = ONE_TIME,
    between: StepHook | None = None,
    context: StatementContext = NO_CONTEXT,
    on_gap: str = "tell",
) -> Answer:
    """Answer a statement at an isolation level.

    Args:
        store: The warehouse.
        statement: DuckDB SQL with window clauses.
        params: Bound to ``?``, ``$1`` or ``$name``.
        isolation: One of `LEVELS`.
        timeout: Seconds after which the query is cancelled; waiting for slides counts.
        memory_limit: Such as ``"500MB"``; what needs more is spilled to disk, or refused.
        priority: A query pauses between its reads while one with a higher number runs in this process.
        between: Called before each step of a query at ``latest``, for tests and for whoever schedules.
        context: What the statement can name beside streams and tables.
        on_gap: One of `GAP_POLICIES`.
    """
    check_gap_policy(on_gap)
    if isolation not in LEVELS:
        raise QueryError(f"there is no isolation level {isolation!r}; choose one of {', '.join(LEVELS)}")

    def step(name: str) -> None:
        if between is not None:
            between(name)
        left = request.seconds_left()
        PROCESS_GATE.pause(priority, MAX_PAUSE if left is None else min(left, MAX_PAUSE))

    deadline = None if timeout is None else time.monotonic() + timeout
    limit = None if timeout is None else Deadline(timeout)
    request = QueryRequest(store, statement, params, deadline, timeout, priority, step, memory_limit, context, limit)
    ask = {"latest": _latest, "serial": _serial}.get(isolation, lambda each: _stream(each, "snapshot", _nothing))
    answer = ask(request) if limit is None else limit.call(lambda: ask(request), Answer.close)
    return answer.without_gaps() if on_gap == "error" else answer


def _nothing() -> None:
    pass


def _stream(request: QueryRequest, isolation: str, release: Callable[[], None]) -> Answer:
    """Rows as they are read out of one snapshot."""
    store = request.store
    request.between("read")
    with PROCESS_GATE.running(request.priority):
        prepared = request.prepare()
        try:
            reader = execution.run(prepared, request.params, request.timeout)
        except BaseException:
            prepared.close()
            raise

    def let_go() -> None:
        prepared.close()
        release()

    rows, limit = PROCESS_GATE.batches(reader, request.priority), request.limit
    return Answer(
        rows if limit is None else limit.batches(rows),
        prepared.windows + prepared.results,
        isolation,
        let_go if limit is None else lambda: limit.when_idle(let_go),
        lambda: execution.measure_staleness(store, prepared.windows, prepared.snapshot.version),
        request.text,
        params=request.params,
        version=prepared.snapshot.version,
    )


# -- serial ----------------------------------------------------------------------------------------------------------


def _serial(request: QueryRequest) -> Answer:
    """Hold the slide locks of the statement's streams until the answer is used up or closed."""
    held = _lock_streams(request)
    try:
        return _stream(request, "serial", held)
    except BaseException:
        held()
        raise


def _lock_streams(request: QueryRequest) -> Callable[[], None]:
    """Take the locks, always in the order of stream numbers; gives how to let them go."""
    store = request.store
    store.check_writable()
    stack, process = ExitStack(), os.getpid()
    try:
        with disk_errors("waiting for slides"):
            for number, name in sorted(_find_streams(store, request.text)):
                path = store.lock_path(number)
                path.parent.mkdir(exist_ok=True)
                left = request.seconds_left()
                what = f"the slide of stream {name!r}"
                stack.enter_context(
                    locked(path, what, LOCK_SECONDS if left is None else left, store.sleep, shared=True)
                )
    except BaseException:
        stack.close()
        raise

    def let_go() -> None:
        if os.getpid() == process:  # in a forked child the locks are still the parent's
            stack.close()

    return let_go


def _find_streams(store: Store, statement: str) -> list[tuple[int, str]]:
    """Numbers and names of the streams that a statement reads; of all streams if it asks a system table."""
    references = parse(statement).references
    every = any(reference.schema for reference in references)
    wanted = {reference.name.lower() for reference in references}

    def list_streams(tables: Tables) -> list[tuple[int, str]]:
        streams = [(record.id, raw_name.decode()) for raw_name, record in tables.items("streams")]
        return [(number, name) for number, name in streams if every or name.lower() in wanted]

    return store.catalog.read(list_streams)


# -- latest ----------------------------------------------------------------------------------------------------------


def _latest(request: QueryRequest) -> Answer:
    """Slot by slot if the statement can be cut, else again and again until no slide came meanwhile."""
    answer: Answer | None = None
    attempts, cuttable = 0, True
    while answer is None:
        request.between("read")
        with PROCESS_GATE.running(request.priority):
            prepared = request.prepare()
            try:
                cut = _split(request, prepared) if cuttable else None
                if cut is not None:
                    answer = _slot_by_slot(request, prepared, *cut)
                else:
                    answer = _whole(request, prepared, last=attempts >= MAX_RERUNS)
                attempts += 1
            except OvertakenError:
                attempts, cuttable = attempts + 1, attempts < MAX_RERUNS
            except CannotSplitError:
                cuttable = False
            finally:
                prepared.close()
    return answer


def _whole(request: QueryRequest, prepared: PreparedStatement, *, last: bool) -> Answer | None:
    """The whole statement on one snapshot; None if a slide overtook it and it can be run again."""
    try:
        rows = execution.run(prepared, request.params, request.seconds_left()).read_all()
    except QueryError:
        request.seconds_left()  # the whole query's time, not what was left of it for this run, is what the user knows
        raise
    request.between("check")
    check = _check(request.store, prepared)
    if (check.behind or check.altered) and not last:
        return None
    return _answer(
        request,
        rows,
        prepared.windows + prepared.results,
        check.at,
        check.version,
        dt.timedelta(microseconds=check.behind),
    )


@dataclass(frozen=True)
class _SnapshotCheck:
    at: dt.datetime
    version: int
    behind: int
    """Microseconds by which a stream's clock has moved on."""
    altered: bool
    """Whether a stream was given another lifetime, or otherwise defined anew."""


def _check(store: Store, prepared: PreparedStatement) -> _SnapshotCheck:
    def compare_windows(tables: Tables) -> _SnapshotCheck:
        checked_at, worst, altered = times.to_datetime(store.clock()), 0, False
        for window in prepared.windows:
            try:
                entry, state = find_stream(tables, window.stream)
            except UnknownStreamError:
                continue  # dropped meanwhile: what we have is the last there was
            altered = altered or entry.definition != prepared.snapshot.view(window.stream).entry.definition
            if state.slide is not None:
                since = state.slide - 1 if window.slide is None else window.slide
                worst = max(worst, (state.slide - since) * entry.definition.slide)
        return _SnapshotCheck(checked_at, tables.version, worst, altered)

    return store.catalog.read(compare_windows)


def _slot_by_slot(
    request: QueryRequest,
    prepared: PreparedStatement,
    stream: Reference,
    parts: split_aggregate.SplitStatement,
    described: DescribedColumns,
) -> Answer:
    """The answer out of partial states."""
    selection = prepared.relations[0].selection
    tables = tuple(
        sorted({_table(prepared, r) for r in prepared.statement.references if r.relation != stream.relation})
    )
    work = IncrementalAggregation(
        request.store,
        prepared.snapshot,
        prepared.pooled,
        prepared.statement,
        stream,
        selection.segments,
        tables,
        parts,
        request.named(),
        request.between,
    )
    try:
        with _interrupted(prepared.cursor, request.seconds_left()):
            rows, view, check = work.run()
    except duckdb.InterruptException:
        request.seconds_left()
        raise
    except duckdb.Error as error:
        raise CannotSplitError(str(error)) from None  # the statement itself will say what is wrong with it
    state = view.state
    behind = 0 if check.slide is None or state.slide is None else check.slide - state.slide
    window = execution.describe_window(view, stream)
    stale = dt.timedelta(microseconds=behind * view.entry.definition.slide)
    return _answer(request, _as_described(rows, described), (window,), check.at, check.version, stale)


def _split(
    request: QueryRequest, prepared: PreparedStatement
) -> tuple[Reference, split_aggregate.SplitStatement, DescribedColumns] | None:
    """The stream, the statement in two, and its columns' names; None if it cannot be computed slot by slot."""
    try:
        stream, parts = _split_prepared(prepared)
        return stream, parts, _describe(prepared, parts, request.named())
    except (CannotSplitError, duckdb.Error):
        return None


def _split_prepared(prepared: PreparedStatement) -> tuple[Reference, split_aggregate.SplitStatement]:
    if len(prepared.relations) != 1 or prepared.statement.explain:
        raise CannotSplitError("it does not read exactly one stream")
    stream = prepared.relations[0].reference
    cuttable = window_spec.AllRows | window_spec.RangeWindow | window_spec.LandmarkWindow | window_spec.FixedWindow
    if not isinstance(stream.window, cuttable) or prepared.snapshot.now(stream.name) is None:
        raise CannotSplitError("its window is not made of slots, or the stream has no clock yet")
    if sum(reference.relation == stream.relation for reference in prepared.statement.references) != 1:
        raise CannotSplitError("it reads the stream more than once")
    relations: dict[str, tuple[str, ...]] = {}
    for reference in prepared.statement.references:
        if reference.schema or reference.alias in relations:
            raise CannotSplitError("it asks a system table, or one relation twice")
        if reference.relation == stream.relation:
            relations[reference.alias] = tuple(prepared.snapshot.view(stream.name).schema.names)
        else:
            entry = prepared.snapshot.tables[_table(prepared, reference)]
            relations[reference.alias] = tuple(pa.ipc.read_schema(pa.py_buffer(entry.schema_bytes)).names)
    functions = split_aggregate.read_engine_functions(prepared.cursor)
    return stream, split_aggregate.split_statement(prepared.statement, stream, tuple(relations.items()), functions)


def _table(prepared: PreparedStatement, reference: Reference) -> str:
    """The table that a reference means, as it was named when it was put."""
    names = [name for name in prepared.snapshot.tables if name.lower() == reference.name.lower()]
    if not names:
        raise CannotSplitError("it reads something that is neither stream nor table")
    return names[0]


def _describe(
    prepared: PreparedStatement, parts: split_aggregate.SplitStatement, params: dict[str, Any]
) -> DescribedColumns:
    """The statement's own columns; it is not cut if its pieces would give other types."""
    cursor = prepared.cursor
    expected = cursor.execute(f"DESCRIBE {prepared.statement.sql}", params).fetchall()
    groups, aggregates = parts.columns
    done = ", ".join([*groups, *(f"finalize(combine_aggr({name})) AS {name}" for name in aggregates)])
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE {parts.prefix}empty AS SELECT * FROM ({parts.far}) LIMIT 0",
        select_parameters(params, parts.near_parameters),
    )
    cursor.execute(f"CREATE OR REPLACE TEMP VIEW {parts.finished} AS SELECT {done} FROM {parts.prefix}empty{by}")
    actual = cursor.execute(f"DESCRIBE {parts.final}", select_parameters(params, parts.final_parameters)).fetchall()
    if [row[1] for row in expected] != [row[1] for row in actual]:
        raise CannotSplitError("its pieces have other types")
    if any(may_lose_values(str(row[1])) for row in expected):
        raise CannotSplitError("not all of its values may arrive as they are")
    return [(str(row[0]), str(row[1])) for row in expected]


def _as_described(rows: pa.Table, described: DescribedColumns) -> pa.Table:
    schema = mark_schema(rows.schema, [kind for _, kind in described])
    fields = [field.with_name(name) for field, (name, _) in zip(schema, described, strict=True)]
    return pa.Table.from_arrays(cast_to_marked(rows.columns, schema), schema=pa.schema(fields))


@contextmanager
def _interrupted(cursor: Any, seconds: float | None) -> Iterator[None]:
    """Interrupt the cursor's query after some time, or when the user wants it to stop."""
    timer = None if seconds is None else interrupt_after(seconds, cursor)
    try:
        yield
    except KeyboardInterrupt:
        cursor.interrupt()
        raise
    finally:
        if timer is not None:
            timer.cancel()


def _answer(
    request: QueryRequest,
    rows: pa.Table,
    windows: tuple[Window, ...],
    checked_at: dt.datetime,
    version: int,
    staleness: dt.timedelta,
) -> Answer:
    return Answer(
        rows.to_reader(), windows, "latest", _nothing, lambda: staleness, request.text,
        params=request.params, checked_at=checked_at, version=version,
    )  # fmt: skip


__all__ = ["LEVELS", "MAX_RERUNS", "answer_query", "incremental"]
