"""The named isolation levels of one-time queries: `serial`, `snapshot` and `latest`.

At `serial` slides wait for the query; at `snapshot` nobody waits and the answer is of the slide at which it was asked;
at `latest` it is of the last slide committed when the query made its final check, an instant that the answer records.
"""

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from windrow import times
from windrow.catalog import Tables
from windrow.errors import QueryError, UnknownStreamError
from windrow.files import disk_errors
from windrow.locks import locked
from windrow.lookups import find_stream
from windrow.queries import execution, slotwise, states, windows
from windrow.queries.answers import Answer, Window
from windrow.queries.desks import Desk
from windrow.queries.execution import Prepared
from windrow.queries.marking import as_marked, marked, may_be_lost
from windrow.queries.pieces import CannotCutError
from windrow.queries.planner import Planner
from windrow.queries.priorities import GATE, ONE_TIME
from windrow.queries.slotwise import Between, OvertakenError, Slotwise, picked
from windrow.queries.statements import Reference, parse
from windrow.store import Store

LEVELS = ("snapshot", "latest", "serial")
RERUNS = 3
"""How often a statement that cannot be computed slot by slot is run again because a slide overtook it."""
LOCK_SECONDS = 60.0
"""How long `serial` waits for a slide that is under way, unless the query has a timeout of its own."""

Params = Sequence[Any] | dict[str, Any] | None
Described = list[tuple[str, str]]
"""Names and DuckDB types of an answer's columns."""
_functions: dict[int, states.Functions] = {}


@dataclass(frozen=True)
class Asked:
    """One query, as it was asked."""

    store: Store
    text: str
    params: Params
    deadline: float | None
    timeout: float | None
    priority: int
    between: Between
    memory_limit: str | None = None

    def left(self) -> float | None:
        """Seconds that are left."""
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def named(self) -> dict[str, Any]:
        """The parameters by name; those without one are numbered from 1."""
        if isinstance(self.params, dict):
            return dict(self.params)
        return {str(number): value for number, value in enumerate(self.params or (), 1)}

    def late(self) -> QueryError:
        """What to say when no time is left."""
        return QueryError(f"the query was cancelled: it took longer than {self.timeout:g} s")


def sql(
    store: Store,
    statement: str,
    params: Params = None,
    *,
    isolation: str = "snapshot",
    timeout: float | None = None,
    memory_limit: str | None = None,
    priority: int = ONE_TIME,
    between: Between | None = None,
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
    """
    if isolation not in LEVELS:
        raise QueryError(f"there is no isolation level {isolation!r}; choose one of {', '.join(LEVELS)}")

    def step(name: str) -> None:
        if between is not None:
            between(name)
        GATE.pause(priority, None if asked.deadline is None else asked.left())

    deadline = None if timeout is None else time.monotonic() + timeout
    asked = Asked(store, statement, params, deadline, timeout, priority, step, memory_limit)
    if isolation == "latest":
        return _latest(asked)
    if isolation == "serial":
        return _serial(asked)
    return _stream(asked, "snapshot", _nothing)


def _nothing() -> None:
    pass


def _stream(asked: Asked, isolation: str, release: Callable[[], None]) -> Answer:
    """Rows as they are read out of one snapshot."""
    store = asked.store
    asked.between("read")
    with GATE.running(asked.priority):
        prepared = execution.prepare(store, asked.text, asked.params, memory_limit=asked.memory_limit)
        try:
            reader = execution.run(prepared, asked.params, asked.timeout)
        except BaseException:
            prepared.close()
            raise

    def let_go() -> None:
        prepared.close()
        release()

    return Answer(
        GATE.batches(reader, asked.priority),
        prepared.windows,
        isolation,
        let_go,
        lambda: execution.staleness(store, prepared.windows, prepared.snapshot.version),
        asked.text,
        params=asked.params,
    )


# -- serial ----------------------------------------------------------------------------------------------------------


def _serial(asked: Asked) -> Answer:
    """Hold the slide locks of the statement's streams until the answer is used up or closed."""
    held = _hold(asked)
    try:
        return _stream(asked, "serial", held)
    except BaseException:
        held()
        raise


def _hold(asked: Asked) -> Callable[[], None]:
    """Take the locks, always in the order of stream numbers; gives how to let them go."""
    store = asked.store
    store.check_writable()
    stack, process = ExitStack(), os.getpid()
    try:
        with disk_errors("waiting for slides"):
            for number, name in sorted(_streams(store, asked.text)):
                path = store.lock_path(number)
                path.parent.mkdir(exist_ok=True)
                left = asked.left()
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


def _streams(store: Store, statement: str) -> list[tuple[int, str]]:
    """Numbers and names of the streams that a statement reads; of all streams if it asks a system table."""
    references = parse(statement).references
    every = any(reference.schema for reference in references)
    wanted = {reference.name.lower() for reference in references}

    def look(tables: Tables) -> list[tuple[int, str]]:
        found = [(record.id, at.decode()) for at, record in tables.items("streams")]
        return [(number, name) for number, name in found if every or name.lower() in wanted]

    return store.catalog.read(look)


# -- latest ----------------------------------------------------------------------------------------------------------


def _latest(asked: Asked) -> Answer:
    """Slot by slot if the statement can be cut, else again and again until no slide came meanwhile."""
    answer: Answer | None = None
    attempts, cuttable = 0, True
    while answer is None:
        asked.between("read")
        with GATE.running(asked.priority):
            prepared = execution.prepare(asked.store, asked.text, asked.params, memory_limit=asked.memory_limit)
            try:
                cut = _cut(asked, prepared) if cuttable else None
                if cut is not None:
                    answer = _slot_by_slot(asked, prepared, *cut)
                else:
                    answer = _whole(asked, prepared, last=attempts >= RERUNS)
                attempts += 1
            except OvertakenError:
                attempts, cuttable = attempts + 1, attempts < RERUNS
            except CannotCutError:
                cuttable = False
            finally:
                prepared.close()
    return answer


def _whole(asked: Asked, prepared: Prepared, *, last: bool) -> Answer | None:
    """The whole statement on one snapshot; None if a slide overtook it and it can be run again."""
    try:
        rows = execution.run(prepared, asked.params, asked.left()).read_all()
    except QueryError:
        asked.left()  # the whole query's time, not what was left of it for this run, is what the user knows
        raise
    asked.between("check")
    check = _check(asked.store, prepared)
    if (check.behind or check.altered) and not last:
        return None
    return _answer(asked, rows, prepared.windows, check.at, check.version, dt.timedelta(microseconds=check.behind))


@dataclass(frozen=True)
class _Check:
    at: dt.datetime
    version: int
    behind: int
    """Microseconds by which a stream's clock has moved on."""
    altered: bool
    """Whether a stream was given another lifetime, or otherwise defined anew."""


def _check(store: Store, prepared: Prepared) -> _Check:
    def look(tables: Tables) -> _Check:
        at, worst, altered = times.to_datetime(store.clock()), 0, False
        for window in prepared.windows:
            try:
                entry, state = find_stream(tables, window.stream)
            except UnknownStreamError:
                continue  # dropped meanwhile: what we have is the last there was
            altered = altered or entry.definition != prepared.snapshot.view(window.stream).entry.definition
            if state.slide is not None:
                since = state.slide - 1 if window.slide is None else window.slide
                worst = max(worst, (state.slide - since) * entry.definition.slide)
        return _Check(at, tables.version, worst, altered)

    return store.catalog.read(look)


def _slot_by_slot(
    asked: Asked, prepared: Prepared, stream: Reference, parts: states.Parts, described: Described
) -> Answer:
    """The answer out of partial states."""
    selection = prepared.pruned[0].selection
    tables = tuple(
        sorted({_table(prepared, r) for r in prepared.statement.references if r.relation != stream.relation})
    )
    planner = Planner(prepared.snapshot, prepared.statement, asked.params, Desk(prepared.cursor))
    work = Slotwise(
        asked.store,
        prepared.snapshot,
        planner.offer,
        prepared.cursor,
        stream,
        selection.segments,
        tables,
        parts,
        asked.named(),
        asked.between,
    )
    try:
        with _interrupted(prepared.cursor, asked.left()):
            rows, view, check = work.run()
    except duckdb.InterruptException:
        asked.left()
        raise
    except duckdb.Error as error:
        raise CannotCutError(str(error)) from None  # the statement itself will say what is wrong with it
    state = view.state
    behind = 0 if check.slide is None or state.slide is None else check.slide - state.slide
    window = execution.window_of(view, stream)
    stale = dt.timedelta(microseconds=behind * view.entry.definition.slide)
    return _answer(asked, _as_described(rows, described), (window,), check.at, check.version, stale)


def _cut(asked: Asked, prepared: Prepared) -> tuple[Reference, states.Parts, Described] | None:
    """The stream, the statement in two, and its columns' names; None if it cannot be computed slot by slot."""
    try:
        stream, parts = _parts(prepared)
        return stream, parts, _describe(prepared, parts, asked.named())
    except (CannotCutError, duckdb.Error):
        return None


def _parts(prepared: Prepared) -> tuple[Reference, states.Parts]:
    if len(prepared.pruned) != 1 or prepared.statement.explain:
        raise CannotCutError("it does not read exactly one stream")
    stream = prepared.pruned[0].reference
    if isinstance(stream.window, windows.Rows) or prepared.snapshot.now(stream.name) is None:
        raise CannotCutError("its window is a count, or the stream has no clock yet")
    if sum(reference.relation == stream.relation for reference in prepared.statement.references) != 1:
        raise CannotCutError("it reads the stream more than once")
    relations: dict[str, tuple[str, ...]] = {}
    for reference in prepared.statement.references:
        if reference.schema or reference.alias in relations:
            raise CannotCutError("it asks a system table, or one relation twice")
        if reference.relation == stream.relation:
            relations[reference.alias] = tuple(prepared.snapshot.view(stream.name).schema.names)
        else:
            entry = prepared.snapshot.tables[_table(prepared, reference)]
            relations[reference.alias] = tuple(pa.ipc.read_schema(pa.py_buffer(entry.schema_bytes)).names)
    known = _functions.get(os.getpid())
    if known is None:
        known = _functions[os.getpid()] = states.known_functions(prepared.cursor)
    return stream, states.cut(prepared.statement, stream, tuple(relations.items()), known)


def _table(prepared: Prepared, reference: Reference) -> str:
    """The table that a reference means, as it was named when it was put."""
    found = [name for name in prepared.snapshot.tables if name.lower() == reference.name.lower()]
    if not found:
        raise CannotCutError("it reads something that is neither stream nor table")
    return found[0]


def _describe(prepared: Prepared, parts: states.Parts, params: dict[str, Any]) -> Described:
    """The statement's own columns; it is not cut if its pieces would give other types."""
    cursor = prepared.cursor
    asked = cursor.execute(f"DESCRIBE {prepared.statement.sql}", params).fetchall()
    groups, aggregates = parts.columns
    done = ", ".join([*groups, *(f"finalize(combine_aggr({name})) AS {name}" for name in aggregates)])
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE {parts.prefix}empty AS SELECT * FROM ({parts.far}) LIMIT 0",
        picked(params, parts.near_parameters),
    )
    cursor.execute(f"CREATE OR REPLACE TEMP VIEW {parts.finished} AS SELECT {done} FROM {parts.prefix}empty{by}")
    given = cursor.execute(f"DESCRIBE {parts.final}", picked(params, parts.final_parameters)).fetchall()
    if [row[1] for row in asked] != [row[1] for row in given]:
        raise CannotCutError("its pieces have other types")
    if any(may_be_lost(str(row[1])) for row in asked):
        raise CannotCutError("not all of its values may arrive as they are")
    return [(str(row[0]), str(row[1])) for row in asked]


def _as_described(rows: pa.Table, described: Described) -> pa.Table:
    schema = marked(rows.schema, [kind for _, kind in described])
    fields = [field.with_name(name) for field, (name, _) in zip(schema, described, strict=True)]
    return pa.Table.from_arrays(as_marked(rows.columns, schema), schema=pa.schema(fields))


@contextmanager
def _interrupted(cursor: Any, seconds: float | None) -> Iterator[None]:
    """Interrupt the cursor's query after some time, or when the user wants it to stop."""
    timer = None if seconds is None else threading.Timer(seconds, cursor.interrupt)
    if timer is not None:
        timer.start()
    try:
        yield
    except KeyboardInterrupt:
        cursor.interrupt()
        raise
    finally:
        if timer is not None:
            timer.cancel()


def _answer(
    asked: Asked, rows: pa.Table, of: tuple[Window, ...], at: dt.datetime, version: int, stale: dt.timedelta
) -> Answer:
    return Answer(
        rows.to_reader(), of, "latest", _nothing, lambda: stale, asked.text,
        params=asked.params, checked_at=at, version=version,
    )  # fmt: skip


__all__ = ["LEVELS", "RERUNS", "slotwise", "sql"]
