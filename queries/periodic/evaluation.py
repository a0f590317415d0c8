"""Answers due queries over one snapshot: from synopses where these suffice, from the window's rows otherwise.

Each query is answered exactly once, and a slow or broken query harms no other.
"""

import contextlib
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import duckdb
import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.errors import QueryError, QueryTimeoutError, WindrowError
from windrow.queries import execution
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.interrupt import Deadline
from windrow.queries.periodic import shared_evaluation
from windrow.queries.periodic.definition import unpack_params
from windrow.queries.periodic.result_tables import PERIODIC_CONTEXT
from windrow.queries.periodic.run_engine import DUCKDB, RunEngine
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING
from windrow.queries.periodic.shared_rows import SharedRows
from windrow.queries.priorities import BACKGROUND, PROCESS_GATE, YIELDING
from windrow.queries.statement_context import Shortcut
from windrow.queries.synopses import summaries
from windrow.snapshot import Snapshot
from windrow.store import Store

_guard = threading.Lock()
_running: "set[_RunningStatement]" = set()
"""Statements of periodic queries that are running in this process."""
FROM_SNAPSHOT = "snapshot"
"""`RunAnswer.how` of what was computed from the window's rows."""
FROM_SUMMARY = "summary"
"""Of what a summary knew, or found by the rows of few groups."""
_WORKERS = min(4, os.cpu_count() or 1)
_POLL_SECONDS = 0.1
"""How often statements are looked at that may take too long."""
_NICE = 10
"""Added to the niceness of threads that answer standing queries: they get a tenth of what one-time statements get."""


@dataclass(frozen=True)
class RunAnswer:
    """One query's answer over a snapshot: its own columns, or why there is none."""

    query: str
    rows: pa.Table | None
    error: WindrowError | None = None
    seconds: float = 0.0
    how: str = FROM_SNAPSHOT


def answer_due(
    store: Store,
    snapshot: Snapshot,
    queries: Sequence[QueryEntry],
    policy: str = HYBRID_LATE_PENDING,
    late: Mapping[str, int] | None = None,
    shared_rows: SharedRows | None = None,
    engine: RunEngine | None = None,
) -> Iterator[RunAnswer]:
    """The answers of due queries, each exactly once, as they are ready; all of a higher priority come first.

    `policy` says which of them synopses answer together, and in which order (`scheduler.POLICIES`); `late`, by how
    many slides each is past its deadline; `shared_rows` are rows that are shared with others, too; `engine` runs what
    is not DuckDB's.
    The snapshot may be of an older slide than the catalog's last one (a run that was missed, or a slide that came
    meanwhile): an answer must be of the snapshot's slide.
    """
    elsewhere = [query for query in queries if query.engine != DUCKDB]
    here = [query for query in queries if query.engine == DUCKDB]
    shortcuts = _find_shortcuts(snapshot, here)
    planned, unplanned = shared_evaluation.plan_queries(store, snapshot, [q for q in here if q.name not in shortcuts])
    with contextlib.ExitStack() as stack:
        shared = shared_rows or stack.enter_context(contextlib.closing(SharedRows(store, snapshot)))
        if shared_rows is None:
            shared.plan(unplanned)
        for priority in sorted({query.priority for query in queries}, reverse=True):
            from_rows = [query for query in (*elsewhere, *unplanned) if query.priority == priority]
            for query in (query for query in here if query.priority == priority and query.name in shortcuts):
                yield _answer_by_shortcut(store, snapshot, query, shortcuts[query.name])
            for answer in planned.answer(priority, policy, late):
                if isinstance(answer, shared_evaluation.SharedAnswer):
                    yield RunAnswer(answer.query.name, answer.rows, None, answer.seconds, answer.how)
                else:
                    from_rows.append(answer)
            yield from answer_from_rows(store, snapshot, from_rows, shared, engine)


def _find_shortcuts(snapshot: Snapshot, queries: Sequence[QueryEntry]) -> dict[str, Shortcut]:
    """The queries that summaries answer, by name."""
    if not summaries.are_there(snapshot.store):
        return {}
    shortcuts = ((query.name, PERIODIC_CONTEXT.find_shortcut(snapshot, query.sql, query.params)) for query in queries)
    return {name: shortcut for name, shortcut in shortcuts if shortcut is not None}


def _answer_by_shortcut(store: Store, snapshot: Snapshot, query: QueryEntry, shortcut: Shortcut) -> RunAnswer:
    """One statement whose answer a summary knows, or finds by few rows."""
    started = time.perf_counter()
    if not shortcut.is_known:
        return replace(_RowStatements(store, snapshot, None).answer(query, None), how=FROM_SUMMARY)
    return RunAnswer(query.name, shortcut.answer(), None, time.perf_counter() - started, FROM_SUMMARY)


def answer_from_rows(
    store: Store,
    snapshot: Snapshot,
    queries: Sequence[QueryEntry],
    shared: SharedRows | None = None,
    engine: RunEngine | None = None,
) -> Iterator[RunAnswer]:
    """Each statement over the rows of the snapshot: those that share rows over these, the others by themselves."""
    if not queries:
        return
    waiting, work = deque(queries), _RowStatements(store, snapshot, shared, engine)
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="windrow-query", initializer=_lower_priority) as pool:
        answers: queue.SimpleQueue[RunAnswer | None] = queue.SimpleQueue()
        workers = [pool.submit(work.answer_all, waiting, answers) for _ in range(min(_WORKERS, len(queries)))]
        running = len(workers)
        try:
            while running:
                with contextlib.suppress(queue.Empty):
                    answer = answers.get(timeout=_POLL_SECONDS)
                    if answer is not None:
                        yield answer
                    else:
                        running -= 1
                interrupt_periodic(only_late=True)
            for worker in workers:
                worker.result()
        finally:
            waiting.clear()


def _lower_priority() -> None:
    """Let the system run other threads before this one: one-time statements go first even while it computes."""
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICE))


@dataclass(frozen=True)
class _RowStatements:
    """Statements over the rows of a snapshot."""

    store: Store
    snapshot: Snapshot
    shared: SharedRows | None
    engine: RunEngine | None = None

    def answer_all(self, waiting: "deque[QueryEntry]", answers: "queue.SimpleQueue[RunAnswer | None]") -> None:
        """Answer what waits, one after the other, together with other workers; None comes last."""
        try:
            with contextlib.ExitStack() as stack:
                pooled = None
                while waiting:
                    with contextlib.suppress(IndexError):  # another worker has taken the last one
                        query = waiting.popleft()
                        if pooled is None and self.shared is not None and self._shares(query):
                            pooled = stack.enter_context(self.shared.cursor())
                        answers.put(self.answer(query, pooled))
        finally:
            answers.put(None)

    def _shares(self, query: QueryEntry) -> bool:
        return query.engine == DUCKDB and self.shared is not None and self.shared.serves(query)

    def answer(self, query: QueryEntry, pooled: PooledCursor | None) -> RunAnswer:
        """One statement. One-time queries go first: it waits a while for those that are running."""
        YIELDING.pause()
        started = time.perf_counter()
        how = FROM_SNAPSHOT if query.engine == DUCKDB else query.engine
        try:
            rows = self._answer_shared(query, pooled)
            if rows is None:
                rows = self._answer_alone(query) if query.engine == DUCKDB else self._answer_elsewhere(query)
        except WindrowError as error:
            return RunAnswer(query.name, None, error, time.perf_counter() - started, how)
        except Exception as error:  # noqa: BLE001 - whatever it was, the other queries go on
            failure = QueryError(f"{type(error).__name__}: {error}")
            return RunAnswer(query.name, None, failure, time.perf_counter() - started, how)
        return RunAnswer(query.name, rows, None, time.perf_counter() - started, how)

    def _answer_shared(self, query: QueryEntry, pooled: PooledCursor | None) -> pa.Table | None:
        """The answer out of shared rows; None if it must be found alone, which also tells what is wrong with it."""
        if self.shared is None or pooled is None or not self._shares(query):
            return None
        with _RunningStatement(pooled.cursor, query.timeout) as running:
            try:
                return self.shared.answer(pooled, query, running.pause)
            except (duckdb.Error, pa.ArrowException, OSError, RuntimeError):
                running.check()
                return None

    def _answer_alone(self, query: QueryEntry) -> pa.Table:
        if query.timeout is None:
            return self._run(query, None)
        limit = Deadline(query.timeout)
        return limit.call(lambda: self._run(query, limit))

    def _answer_elsewhere(self, query: QueryEntry) -> pa.Table:
        """By the engine that was given: it is asked to end what is late, and is not left alone."""
        assert self.engine is not None
        statement = self.engine.plan(self.snapshot, query.sql, unpack_params(query.params), PERIODIC_CONTEXT)
        with _RunningStatement(statement, query.timeout) as running:
            try:
                return statement.read()
            except WindrowError:
                running.check()
                raise

    def _run(self, query: QueryEntry, limit: Deadline | None) -> pa.Table:
        params = unpack_params(query.params)
        prepared = execution.prepare(self.store, query.sql, params, self.snapshot, query.memory_limit, PERIODIC_CONTEXT)
        try:
            with _RunningStatement(prepared.cursor, query.timeout, limit) as running:
                try:
                    reader = execution.run(prepared, params)
                    return PROCESS_GATE.batches(reader, BACKGROUND, running.pause).read_all()
                except WindrowError:
                    running.check()
                    raise
        finally:
            prepared.close()


class _RunningStatement:
    """A statement that is running, until it is done or has taken too long; waiting for one-time queries counts not."""

    def __init__(self, cursor: Any, timeout: float | None, limit: Deadline | None = None) -> None:
        self._cursor, self._timeout, self._limit = cursor, timeout, limit
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._late = False

    def __enter__(self) -> Self:
        with _guard:
            _running.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _guard:
            _running.discard(self)

    def pause(self) -> None:
        """Let one-time queries go first."""
        waited = YIELDING.pause()
        self._deadline += waited
        if self._limit is not None:
            self._limit.extend(waited)

    def interrupt(self, *, only_late: bool) -> None:
        """End it; with `only_late`, if it has taken too long."""
        self._late = time.monotonic() > self._deadline
        if self._late or not only_late:
            self._cursor.interrupt()

    def check(self) -> None:
        """Say so if it was ended because it took too long."""
        if self._late:
            raise QueryTimeoutError(f"the query was cancelled: it took longer than {self._timeout:g} s") from None


def interrupt_periodic(*, only_late: bool = False) -> None:
    """End the statements of periodic queries that are running in this process."""
    with _guard:
        for statement in _running:
            statement.interrupt(only_late=only_late)
