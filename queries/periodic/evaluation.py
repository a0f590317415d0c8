"""Answers due queries over one snapshot: from synopses where these suffice, from the window's rows otherwise.

Each query is answered exactly once, and a slow or broken query harms no other.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.errors import QueryError, WindrowError
from windrow.queries import execution
from windrow.queries.periodic import shared_evaluation
from windrow.queries.periodic.definition import unpack_params
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING
from windrow.queries.priorities import BACKGROUND, PROCESS_GATE
from windrow.snapshot import Snapshot
from windrow.store import Store

_guard = threading.Lock()
_cursors: set[Any] = set()
"""Cursors of periodic queries that are running in this process."""
FROM_SNAPSHOT = "snapshot"
"""`RunAnswer.how` of what was computed from the window's rows."""
_WORKERS = min(4, os.cpu_count() or 1)


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
) -> Iterator[RunAnswer]:
    """The answers of due queries, each exactly once, as they are ready; the first ones are the most urgent.

    `policy` says which of them synopses answer together, and in which order (`scheduler.POLICIES`); `late`, by how
    many slides each is past its deadline.
    The snapshot may be of an older slide than the catalog's last one (a run that was missed, or a slide that came
    meanwhile): an answer must be of the snapshot's slide.
    """
    unanswered = []
    for answer in shared_evaluation.answer_from_synopses(store, snapshot, queries, policy, late):
        if isinstance(answer, shared_evaluation.SharedAnswer):
            yield RunAnswer(answer.query.name, answer.rows, None, answer.seconds, answer.how)
        else:
            unanswered.append(answer)
    if unanswered:
        yield from answer_from_rows(store, snapshot, unanswered)


def answer_from_rows(store: Store, snapshot: Snapshot, queries: Sequence[QueryEntry]) -> Iterator[RunAnswer]:
    """Each statement by itself over the rows of the snapshot, a few at a time."""
    if len(queries) == 1:
        yield answer_one(store, snapshot, queries[0])
        return
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="windrow-query") as pool:
        futures = [pool.submit(answer_one, store, snapshot, query) for query in queries]
        try:
            for finished in as_completed(futures):
                yield finished.result()
        finally:
            for future in futures:
                future.cancel()


def answer_one(store: Store, snapshot: Snapshot, query: QueryEntry) -> RunAnswer:
    """One statement over the rows of the snapshot. One-time queries go first: it waits for those that are running."""
    PROCESS_GATE.pause(BACKGROUND)
    started = time.perf_counter()
    try:
        rows = _read_rows(store, snapshot, query)
    except WindrowError as error:
        return RunAnswer(query.name, None, error, time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001 - whatever it was, the other queries go on
        return RunAnswer(
            query.name, None, QueryError(f"{type(error).__name__}: {error}"), time.perf_counter() - started
        )
    return RunAnswer(query.name, rows, None, time.perf_counter() - started)


def _read_rows(store: Store, snapshot: Snapshot, query: QueryEntry) -> pa.Table:
    params = unpack_params(query.params)
    prepared = execution.prepare(store, query.sql, params, snapshot)
    with _guard:
        _cursors.add(prepared.cursor)
    try:
        return PROCESS_GATE.batches(execution.run(prepared, params, query.timeout), BACKGROUND).read_all()
    finally:
        with _guard:
            _cursors.discard(prepared.cursor)
        prepared.close()


def interrupt_periodic() -> None:
    """End the statements of periodic queries that are running in this process."""
    with _guard:
        for cursor in _cursors:
            cursor.interrupt()
