"""Running one-time queries: parse, confine, pin, plan, run. Isolation levels other than `snapshot` build on this in `isolation`."""

import datetime as dt
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from windrow import times
from windrow.catalog import Tables
from windrow.errors import QueryError
from windrow.queries import engine, system
from windrow.queries.answers import Answer, Window
from windrow.queries.confine import confine
from windrow.queries.planner import Planner, Pruned, bounds_of
from windrow.queries.statements import Reference, Statement, parse
from windrow.queries.types import quoted, text
from windrow.snapshot import Snapshot, StreamView
from windrow.store import Store

BATCH_ROWS = 100_000


@dataclass(frozen=True)
class Prepared:
    """A statement ready to run on a cursor of its own."""

    statement: Statement
    snapshot: Snapshot
    cursor: Any
    pruned: tuple[Pruned, ...]
    windows: tuple[Window, ...]

    def close(self) -> None:
        """Let go of cursor and snapshot."""
        self.cursor.close()
        self.snapshot.close()


def sql(
    store: Store,
    statement: str,
    params: Sequence[Any] | dict[str, Any] | None = None,
    *,
    timeout: float | None = None,
    snapshot: Snapshot | None = None,
) -> Answer:
    """Answer a statement from a snapshot.

    Args:
        store: The warehouse.
        statement: DuckDB SQL with window clauses.
        params: Bound to ``?``, ``$1`` or ``$name``.
        timeout: Seconds after which the query is cancelled.
        snapshot: Ask an open snapshot instead of a new one; it stays open.
    """
    prepared = prepare(store, statement, params, snapshot)
    try:
        reader = run(prepared, params, timeout)
    except BaseException:
        _let_go(prepared, snapshot)
        raise
    return Answer(
        reader,
        prepared.windows,
        "snapshot",
        lambda: _let_go(prepared, snapshot),
        lambda: staleness(store, prepared.windows),
        statement,
    )


@dataclass(frozen=True)
class Explanation:
    """What a statement would read."""

    relations: tuple[Pruned, ...]
    windows: tuple[Window, ...]
    plan: str
    """DuckDB's own plan."""

    def __str__(self) -> str:
        lines = []
        for pruned, window in zip(self.relations, self.windows, strict=True):
            read, stored = pruned.bytes
            lines.append(
                f"{window.stream} {window.clause} at slide {window.slide}: {pruned.path}; cells {pruned.cells[0]} of {pruned.cells[1]}, "
                f"segments {pruned.segments[0]} of {pruned.segments[1]}, rows {pruned.rows[0]} of {pruned.rows[1]}, "
                f"bytes {read} of {stored}; search key: {pruned.keys}"
            )
        return "\n".join([*lines, self.plan])


def explain(store: Store, statement: str, params: Any = None) -> Explanation:
    """Plan a statement without running it."""
    prepared = prepare(store, statement, params)
    try:
        rows = prepared.cursor.execute(f"EXPLAIN {prepared.statement.sql}", params).fetchall()
        return Explanation(prepared.pruned, prepared.windows, "\n".join(str(row[1]) for row in rows))
    except duckdb.Error as error:
        raise told(prepared.statement, error) from None
    finally:
        prepared.close()


def _let_go(prepared: Prepared, borrowed: Snapshot | None) -> None:
    prepared.cursor.close()
    if borrowed is None:
        prepared.snapshot.close()


def prepare(store: Store, text_: str, params: Any, snapshot: Snapshot | None = None) -> Prepared:
    """Parse and confine a statement, pin what it reads and make that readable on a new cursor."""
    statement = parse(text_)
    pinned = snapshot or Snapshot(store, _named(store, statement))
    try:
        cursor = engine.cursor(store)
        try:
            return _prepare(statement, pinned, cursor, params)
        except BaseException:
            cursor.close()
            raise
    except BaseException:
        if snapshot is None:
            pinned.close()
        raise


def _prepare(statement: Statement, snapshot: Snapshot, cursor: Any, params: Any) -> Prepared:
    streams = {name.lower(): name for name in snapshot.streams()}
    tables = {name.lower(): name for name in snapshot.tables}

    def exists(reference: Reference) -> bool:
        if reference.schema:
            return reference.schema.lower() == "windrow" and reference.name.lower() in system.TABLES
        return reference.name.lower() in streams or reference.name.lower() in tables

    confine(statement, exists)
    own = []
    for reference in statement.references:
        folded = reference.name.lower()
        if reference.schema:
            cursor.register(reference.relation, system.table(snapshot, folded))
        elif folded in streams:
            own.append(_named_as(reference, streams[folded]))
        elif folded in tables:
            path = snapshot.store.root / snapshot.tables[tables[folded]].file
            source = f"SELECT * FROM read_parquet({text(str(path))})"
            cursor.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(reference.relation)} AS {source}")
    pruned = Planner(snapshot, cursor, statement, params).prepare(own)
    return Prepared(statement, snapshot, cursor, tuple(pruned), tuple(window_of(snapshot.view(r.name), r) for r in own))


def _named_as(reference: Reference, name: str) -> Reference:
    from dataclasses import replace

    return replace(reference, name=name)


def _named(store: Store, statement: Statement) -> list[str] | None:
    """The streams that a statement names; None (all) if it asks a system table."""
    if any(reference.schema for reference in statement.references):
        return None
    wanted = {reference.name.lower() for reference in statement.references}

    def look(tables: Tables) -> list[str]:
        return [at.decode() for at, _ in tables.raw_items("streams") if at.decode().lower() in wanted]

    return store.catalog.read(look)


def window_of(view: StreamView, reference: Reference) -> Window:
    """Which window of a stream a reference means."""
    bounds = bounds_of(view, reference.window)
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


def run(prepared: Prepared, params: Any, timeout: float | None) -> pa.RecordBatchReader:
    """Start the statement; rows come as they are read. Errors show their place in the user's text."""
    cursor, statement = prepared.cursor, prepared.statement
    timer = threading.Timer(timeout, cursor.interrupt) if timeout is not None else None
    if timer is not None:
        timer.start()
    try:
        reader = cursor.sql(statement.sql, params=params).to_arrow_reader(BATCH_ROWS)
    except KeyboardInterrupt:
        cursor.interrupt()
        raise
    except duckdb.Error as error:
        raise told(statement, _placed(cursor, statement, params, error), timeout) from None
    if timer is None:
        return reader
    return pa.RecordBatchReader.from_batches(reader.schema, _until(reader, timer, statement, timeout))


def _until(reader: pa.RecordBatchReader, timer: threading.Timer, statement: Statement, timeout: float | None) -> Any:
    try:
        yield from reader
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        raise told(statement, error, timeout) from None
    finally:
        timer.cancel()


def _placed(cursor: Any, statement: Statement, params: Any, error: duckdb.Error) -> duckdb.Error:
    """The same error with its place, which DuckDB leaves out when a statement is bound lazily."""
    if isinstance(error, duckdb.BinderException) and "{" not in str(error):
        try:
            cursor.execute(statement.sql, params)
        except duckdb.Error as placed:
            return placed
    return error


def told(statement: Statement, error: BaseException, timeout: float | None = None) -> QueryError:
    """DuckDB's error in our words, at its place in the user's text."""
    if timeout is not None and "INTERRUPT" in str(error).upper():
        return QueryError(f"the query was cancelled: it took longer than {timeout:g} s")
    return engine.explain_error(statement, error)


def staleness(store: Store, windows: Sequence[Window]) -> dt.timedelta:
    """How far the streams' clocks are now past the windows' slides."""
    from windrow.lookups import find_stream

    def look(tables: Tables) -> int:
        worst = 0
        for window in windows:
            entry, state = find_stream(tables, window.stream)
            if state.slide is not None and window.slide is not None:
                worst = max(worst, (state.slide - window.slide) * entry.definition.slide)
        return worst

    return dt.timedelta(microseconds=store.catalog.read(look) if windows else 0)
