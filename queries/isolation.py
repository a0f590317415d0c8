"""The named isolation levels of one-time queries: `serial`, `snapshot` and `latest`.

At `serial` slides wait for the query; at `snapshot` nobody waits and the answer is of the slide at which it was asked;
at `latest` it is of the last slide committed when the query made its final check, whose time the answer records.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from windrow.catalog.environment import Tables
from windrow.errors import QueryError
from windrow.files import disk_errors
from windrow.locks import locked
from windrow.queries import execution
from windrow.queries.answer import Answer, check_gap_policy
from windrow.queries.engine.interrupt import Deadline
from windrow.queries.execution import QueryRequest, do_nothing
from windrow.queries.priorities import MAX_PAUSE, ONE_TIME, PROCESS_GATE
from windrow.queries.sql.statement import parse
from windrow.queries.statement_context import NO_CONTEXT, StatementContext
from windrow.snapshot import Snapshot
from windrow.store import Store

if TYPE_CHECKING:
    from windrow.queries.incremental import StepHook

LEVELS = ("snapshot", "latest", "serial", "fresh")
LOCK_SECONDS = 60.0
"""How long `serial` waits for a slide that is under way, unless the query has a timeout of its own."""

Params = Sequence[Any] | dict[str, Any] | None


def answer_query(
    store: Store,
    statement: str,
    params: Params = None,
    *,
    isolation: str = "snapshot",
    timeout: float | None = None,
    memory_limit: str | None = None,
    priority: int = ONE_TIME,
    between: "StepHook | None" = None,
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
        seconds = request.seconds_left()
        PROCESS_GATE.pause(priority, MAX_PAUSE if seconds is None else min(seconds, MAX_PAUSE))

    deadline = None if timeout is None else time.monotonic() + timeout
    limit = None if timeout is None else Deadline(timeout)
    request = QueryRequest(store, statement, params, deadline, timeout, priority, step, memory_limit, context, limit)
    ask = {"latest": _latest, "serial": _serial, "fresh": _fresh}.get(
        isolation, lambda each: _stream(each, "snapshot", do_nothing)
    )
    answer = ask(request) if limit is None else limit.call(lambda: ask(request), Answer.close)
    return answer.without_gaps() if on_gap == "error" else answer


def _stream(
    request: QueryRequest, isolation: str, release: Callable[[], None], snapshot: Snapshot | None = None
) -> Answer:
    """Rows as they are read out of one snapshot, by default a new one."""
    store = request.store
    request.between("read")
    with PROCESS_GATE.running(request.priority):
        prepared = request.prepare(snapshot)
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
        lambda: execution.measure_staleness(store, prepared.windows, prepared.version),
        request.text,
        params=request.params,
        version=prepared.version,
    )


# -- fresh -----------------------------------------------------------------------------------------------------------


def _fresh(request: QueryRequest) -> Answer:
    """Rows of the state that a forced slide of each stream would give, which is computed and not committed."""
    from windrow.past import take_fresh  # which few statements need
    from windrow.warehouse import SLIDE_HOOKS

    statement = parse(request.text)
    if statement.asks_past:
        raise QueryError("isolation='fresh' shows what no slide has taken in yet, and no past; choose another level")
    names = frozenset(reference.name.lower() for reference in statement.references)
    with Snapshot(request.store, alike=names, role=request.context.role) as last:
        names |= {summary.stream.lower() for summary in request.context.find_summaries(last, names).values()}
    snapshot = take_fresh(request.store, names, request.context.role, SLIDE_HOOKS)
    try:
        return _stream(request, "fresh", snapshot.close, snapshot)
    except BaseException:
        snapshot.close()
        raise


# -- serial ----------------------------------------------------------------------------------------------------------


def _serial(request: QueryRequest) -> Answer:
    """Hold the slide locks of the statement's streams until the answer is used up or closed."""
    unlock = _lock_streams(request)
    try:
        return _stream(request, "serial", unlock)
    except BaseException:
        unlock()
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
                seconds = request.seconds_left()
                what = f"the slide of stream {name!r}"
                stack.enter_context(
                    locked(path, what, LOCK_SECONDS if seconds is None else seconds, store.sleep, shared=True)
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
    if parse(request.text).asks_past:
        return _stream(request, "snapshot", do_nothing)  # the past does not move
    from windrow.queries.latest import answer_latest  # much that no other level needs

    return answer_latest(request)
