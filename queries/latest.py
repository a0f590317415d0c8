"""The isolation level `latest`: slot by slot if a statement can be cut, else run again until no slide came meanwhile.

The answer is of the last slide committed when the query made its final check, whose time the answer records.
"""

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from windrow import times
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.errors import QueryError, UnknownStreamError
from windrow.queries import execution
from windrow.queries.answer import Answer
from windrow.queries.engine.interrupt import interrupt_after
from windrow.queries.engine.types import cast_to_marked, mark_schema, may_lose_values
from windrow.queries.execution import PreparedStatement, QueryRequest, do_nothing
from windrow.queries.incremental import IncrementalAggregation, OvertakenError, select_parameters
from windrow.queries.priorities import PROCESS_GATE
from windrow.queries.sql import split_aggregate, window_spec
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.sql.statement import Reference
from windrow.store import Store
from windrow.windows import Window

MAX_RERUNS = 3
"""How often a statement that cannot be computed slot by slot is run again because a slide overtook it."""

DescribedColumns = list[tuple[str, str]]
"""Names and DuckDB types of an answer's columns."""


def answer_latest(request: QueryRequest) -> Answer:
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
    prepared.reusable = False  # its cursor gets tables of states
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
    if prepared.snapshot.view(stream.name).entry.definition.has_overrides:
        raise CannotSplitError("its stream is a strict view, whose rows can end before they expire")
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
    merged = ", ".join([*groups, *(f"finalize(combine_aggr({name})) AS {name}" for name in aggregates)])
    by = f" GROUP BY {', '.join(groups)}" if groups else ""
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE {parts.prefix}empty AS SELECT * FROM ({parts.far}) LIMIT 0",
        select_parameters(params, parts.near_parameters),
    )
    cursor.execute(f"CREATE OR REPLACE TEMP VIEW {parts.finished} AS SELECT {merged} FROM {parts.prefix}empty{by}")
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
        rows.to_reader(), windows, "latest", do_nothing, lambda: staleness, request.text,
        params=request.params, checked_at=checked_at, version=version,
    )  # fmt: skip
