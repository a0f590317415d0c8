"""From due queries to answers over one snapshot; a slow or broken query harms no other.

`answer_due` is the seam: whatever can answer several queries together is asked there first, the snapshot answers the rest.
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
"""What is running in this process."""
FROM_SNAPSHOT = "snapshot"
"""`Answered.how` of what was computed from the window's rows."""
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

    `policy` says which of them synopses answer together, and in which order (`scheduling.POLICIES`); `late`, by how
    many slides each is past its deadline.
    The snapshot may be of an older slide than the catalog's last one (a run that was missed, or a slide that came
    meanwhile): an answer must be of the snapshot's slide.
    """
    rest = []
    for answered in shared_evaluation.answer_from_synopses(store, snapshot, queries, policy, late):
        if isinstance(answered, shared_evaluation.SharedAnswer):
            yield RunAnswer(answered.query.name, answered.rows, None, answered.seconds, answered.how)
        else:
            rest.append(answered)
    if rest:
        yield from answer_from_rows(store, snapshot, rest)


def answer_from_rows(store: Store, snapshot: Snapshot, queries: Sequence[QueryEntry]) -> Iterator[RunAnswer]:
    """Each statement by itself over the rows of the snapshot, a few at a time."""
    if len(queries) == 1:
        yield answer_one(store, snapshot, queries[0])
        return
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="windrow-query") as pool:
        waiting = [pool.submit(answer_one, store, snapshot, query) for query in queries]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            for future in waiting:
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
