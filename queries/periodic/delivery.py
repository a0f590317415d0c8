"""Delivers runs exactly once: one commit holds a run's record, its rows and how far its query has come.

Whoever commits first has delivered the run; another process finds in its own transaction that it came too late and
drops its rows. A crash before the commit leaves nothing, one after it at most a file that is not in its folder yet.
Differences between two answers compare rows as SQL's EXCEPT ALL does: nulls are equal, and duplicates count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import QueryEntry, QueryState, ResultPart, RunEntry
from windrow.catalog.segment_log import retire_files
from windrow.errors import QueryError, WindrowError
from windrow.files import disk_errors
from windrow.queries.engine import instance
from windrow.queries.periodic import result_store
from windrow.queries.periodic.definition import find_shown_zone, read_stored_schema
from windrow.queries.periodic.due import Clocks, SlideNumbers, count_missed_periods
from windrow.queries.periodic.evaluation import RunAnswer
from windrow.queries.periodic.outbound import OUTBOUND
from windrow.queries.periodic.retained_slides import release_slide
from windrow.queries.periodic.revisions import LateRows, note_late_rows
from windrow.queries.periodic.sinks import latest_file_name, query_folder, run_file_name
from windrow.store import Store


def subtract_rows(store: Store, left: pa.Table, right: pa.Table | None) -> pa.Table:
    """The rows of `left` that are not in `right`, as often as they are there more often."""
    if right is None or not right.num_rows or not left.num_rows:
        return left
    names = [f"c{position}" for position in range(left.num_columns)]
    cursor = instance.open_cursor(store)
    try:
        cursor.register("_left", left.rename_columns(names))
        cursor.register("_right", right.rename_columns(names))
        positions = cursor.sql(_difference_sql(names)).to_arrow_table()
    finally:
        cursor.close()
    return left.take(positions.column(0))


def _difference_sql(names: list[str]) -> str:
    columns = ", ".join(names)

    def counted(relation: str) -> str:
        numbered = f"SELECT *, row_number() OVER () AS _row FROM {relation}"
        return f"SELECT *, row_number() OVER (PARTITION BY {columns} ORDER BY _row) AS _copy FROM ({numbered})"

    same = " AND ".join(f"l.{name} IS NOT DISTINCT FROM r.{name}" for name in (*names, "_copy"))
    return f"SELECT l._row - 1 FROM ({counted('_left')}) l ANTI JOIN ({counted('_right')}) r ON {same} ORDER BY l._row"


def compute_delivered_rows(store: Store, output: str, now: pa.Table, before: pa.Table | None) -> pa.Table:
    """What a run delivers: the whole answer, what is new in it, or what is no longer in it."""
    if output == "inserts":
        return subtract_rows(store, now, before)
    if output == "deletes":
        return now.slice(0, 0) if before is None else subtract_rows(store, before, now)
    return now


MAX_BACK_OFF = 3600 * times.SECOND
"""The longest wait after a failed run; each failure doubles the wait."""
_FIRST_BACK_OFF = times.SECOND
_MAX_WHOLE_BYTES = 1 << 20
"""Of a whole answer that is kept in the catalog so that the differences of its revisions can be told."""


@dataclass(frozen=True)
class DueRun:
    """A run that is to be made, with the state of its query when that was decided."""

    entry: QueryEntry
    state: QueryState
    slides: SlideNumbers
    window: tuple[int | None, int | None]
    """Bounds of the first pacing stream's window, in microseconds."""
    complete: bool
    hold: bytes | None = None
    """The hold that keeps its slide, if it is a missed one."""
    coverage: float = 1.0
    windows: str = ""
    clocks: Clocks = field(default_factory=dict)
    """Where streams are seen otherwise than the snapshot has them."""
    revision: int = 0
    """Of a window that was delivered before: the number of the revision."""
    known: SlideNumbers = field(default_factory=dict)
    """Of a revision: up to which slides late rows are in it; of any run, up to which commits revisions of results."""
    backfilled: int | None = None
    """Of a run that is made from history: the commit that it is as of."""

    @property
    def slide(self) -> int:
        """The slide that numbers the run: that of the stream that paces the query first."""
        return self.slides[self.entry.paces[0].stream]


@dataclass(frozen=True)
class _PackedRun:
    """A run ready to be committed."""

    due: DueRun
    run: RunEntry
    raw: bytes | None = None
    part: ResultPart | None = None
    whole: bytes | None = None
    whole_part: ResultPart | None = None

    @property
    def files(self) -> list[str]:
        return [part.file for part in (self.part, self.whole_part) if part is not None]


def deliver_runs(store: Store, done: Sequence[tuple[DueRun, RunAnswer]]) -> list[tuple[QueryEntry, RunEntry]]:
    """Deliver runs, good and bad ones, in one commit; gives those that were ours to deliver."""
    if not done:
        return []
    clocks = store.catalog.read(lambda tables: _stream_clocks(tables, [due for due, _ in done]))
    staleness = [_staleness(clocks, due) for due, _ in done]
    packed: list[_PackedRun] = []
    run_columns = _RunColumns()
    with disk_errors("delivering results"):
        try:
            for (due, answer), late in zip(done, staleness, strict=True):
                packed.append(_pack_run(store, run_columns, due, answer, late))
        except BaseException:
            store.withdraw([file for packed_run in packed for file in packed_run.files])
            raise
        files = [file for packed_run in packed for file in packed_run.files]
        store.files.reach("query.committing")
        with store.write_with_files(files) as tables:
            late_rows = LateRows(tables)
            committed = [
                (packed_run, run)
                for packed_run in packed
                if (run := _commit_run(tables, store, packed_run, late_rows)) is not None
            ]
            result_store.cancel_removal(
                tables, _planned_files([(packed_run.due.entry, run) for packed_run, run in committed])
            )
    store.files.reach("query.committed")
    named = {file for packed_run, _ in committed for file in packed_run.files}
    store.withdraw([file for file in files if file not in named])
    return [(packed_run.due.entry, run) for packed_run, run in committed]


def _planned_files(runs: Sequence[tuple[QueryEntry, RunEntry]]) -> set[str]:
    """The files that will be written for runs, once they are committed."""
    return {file for entry, run in runs if run.file for file in (run.file, latest_file_name(entry))}


def _stream_clocks(tables: Tables, runs: Sequence[DueRun]) -> dict[str, tuple[int, int]]:
    """Slide and Δ of each stream that paces a run."""
    clocks = {}
    for name, number in {(pace.stream, pace.stream_id) for due in runs for pace in due.entry.paces}:
        state, entry = tables.get("states", catalog_key(number)), tables.get("streams", name.encode())
        if state is not None and entry is not None and state.slide is not None:
            clocks[name] = state.slide, entry.definition.slide
    return clocks


def _staleness(clocks: dict[str, tuple[int, int]], due: DueRun) -> int:
    """How far the streams have moved on from the run's slide, in microseconds."""
    behind = [
        (clocks[pace.stream][0] - due.slides[pace.stream]) * clocks[pace.stream][1]
        for pace in due.entry.paces
        if pace.stream in clocks
    ]
    return max(0, *behind) if behind else 0


class _RunColumns:
    """The columns before a query's own; runs that are delivered together have most of them in common."""

    def __init__(self) -> None:
        self._columns: dict[tuple[object, ...], list[pa.Array]] = {}

    def put_before(self, rows: pa.Table, due: DueRun, run: RunEntry) -> pa.Table:
        """The rows with the columns of their run before them."""
        values: tuple[float | None, ...] = (run.slide, *due.window, run.complete, run.staleness, run.coverage)
        schema = read_stored_schema(due.entry)
        if due.entry.revise is not None:
            values = (*values, run.revision)
        key = *values, rows.num_rows, find_shown_zone(due.entry)
        if key not in self._columns:
            scalars = [pa.scalar(value, schema.field(position).type) for position, value in enumerate(values)]
            self._columns[key] = [pa.repeat(scalar, rows.num_rows) for scalar in scalars]
        return pa.table([*self._columns[key], *rows.columns], schema=schema)


def _pack_run(store: Store, run_columns: _RunColumns, due: DueRun, answer: RunAnswer, staleness: int) -> _PackedRun:
    entry = due.entry
    run = RunEntry(
        query=entry.name,
        slide=due.slide,
        slides=due.slides,
        outcome="delivered",
        window_start=due.window[0],
        window_end=due.window[1],
        at=store.clock(),
        seconds=answer.seconds,
        staleness=staleness,
        complete=due.complete,
        coverage=due.coverage,
        windows=due.windows,
        how=answer.how,
        revision=due.revision,
        known={} if due.revision else due.known,
        backfilled=due.backfilled is not None,
    )
    try:
        if answer.rows is None:
            raise answer.error or QueryError("the query gave no answer")
        whole = result_store.conform_answer(entry, answer.rows)
        differs = entry.output != "whole"
        since = due.slide if due.revision else None
        before = result_store.read_previous_answer(store, entry, since) if differs else None
        rows = run_columns.put_before(compute_delivered_rows(store, entry.output, whole, before), due, run)
        return _store_rows(store, due, run, rows, whole if differs else None)
    except (WindrowError, pa.ArrowException) as error:
        return _PackedRun(due, replace(run, outcome="failed", error=str(error)))


def _store_rows(store: Store, due: DueRun, run: RunEntry, rows: pa.Table, whole: pa.Table | None) -> _PackedRun:
    entry = due.entry
    raw: bytes | None = result_store.encode_result_rows(rows)
    run = replace(run, rows=rows.num_rows, bytes=len(raw or b""), file=_run_file(due))
    whole_bytes = None if whole is None else result_store.encode_result_rows(whole)
    part = whole_part = None
    if raw is not None and len(raw) > result_store.INLINE_BYTES:
        raw, part = None, result_store.stage_part(store, entry, rows, run.slide, run.slide)
    if whole_bytes is not None and entry.revise is not None:
        if len(whole_bytes) > _MAX_WHOLE_BYTES:
            raise QueryError(
                f"an answer of {len(whole_bytes):,} bytes is too large to be kept for differences of its revisions; "
                "use output='whole', or leave revise= out"
            )
    elif whole is not None and whole_bytes is not None and len(whole_bytes) > result_store.INLINE_BYTES:
        whole_bytes, whole_part = None, result_store.stage_part(store, entry, whole, run.slide, run.slide)
    return _PackedRun(due, run, raw, part, whole_bytes, whole_part)


def _run_file(due: DueRun) -> str:
    return (
        ""
        if due.entry.sink == "table" or due.entry.sink in OUTBOUND
        else run_file_name(due.entry, due.slide, due.window[1], due.revision)
    )


def _commit_run(tables: Tables, store: Store, packed: _PackedRun, late: LateRows) -> RunEntry | None:
    """Record one run, unless its query was dropped or another process has delivered it."""
    due, entry = packed.due, packed.due.entry
    registered: QueryEntry | None = tables.get("queries", entry.name.encode())
    state: QueryState | None = tables.get("paced", catalog_key(entry.id))
    if registered is None or registered.id != entry.id or state is None:
        return None
    if due.revision:
        return _commit_revision(tables, store, packed, state)
    if due.backfilled is not None:
        return _commit_backfilled(tables, store, packed, state)
    if state.reached != due.state.reached:
        return None
    key = catalog_key(entry.id, due.slide)
    before: RunEntry | None = tables.get("runs", key)
    run = replace(packed.run, version=tables.version, attempts=1 if before is None else before.attempts + 1)
    if run.outcome == "failed":
        state = result_store.record_trouble(tables, entry, state, run)
        tables.put("paced", catalog_key(entry.id), _record_failure(store, state, run))
        return run
    if due.hold is not None and not release_slide(tables, due.hold, [entry.id]):
        return None
    tables.put("runs", key, run)
    state = _advance_state(store, state, packed, run)
    if before is not None:
        state = replace(state, troubles=state.troubles - 1)
    if packed.raw is not None:
        tables.put_raw("results", result_store.encode_run_key(entry.id, run.slide), packed.raw)
    if entry.output != "whole":
        state = _keep_whole_answer(tables, entry, state, packed)
    state = result_store.trim_runs(tables, entry, state, due.window[1], query_folder(entry))
    state = note_late_rows(tables, late, entry, state, due.slides)
    tables.put("paced", catalog_key(entry.id), state)
    return run


def _commit_revision(tables: Tables, store: Store, packed: _PackedRun, state: QueryState) -> RunEntry | None:
    """Record a revision, unless its window has gone or another process has revised it."""
    due, entry = packed.due, packed.due.entry
    key = catalog_key(entry.id, due.slide)
    revised: RunEntry | None = tables.get("runs", key)
    if revised is None or revised.outcome != "delivered" or revised.revisions != due.revision - 1:
        return None
    run = replace(packed.run, version=tables.version)
    if run.outcome == "failed":
        tables.put("paced", catalog_key(entry.id), _record_failure(store, state, run))
        return run
    tables.put("revisions", key + catalog_key(due.revision), run)
    tables.put("runs", key, replace(revised, revisions=due.revision, known=due.known))
    if packed.raw is not None:
        tables.put_raw("results", result_store.encode_run_key(entry.id, run.slide, run.revision), packed.raw)
    if entry.output != "whole" and packed.whole is not None:
        tables.put_raw("results", result_store.encode_whole_key(entry.id, run.slide), packed.whole)
        if run.slide == state.delivered:
            tables.put_raw("results", result_store.encode_whole_key(entry.id), packed.whole)
    state = replace(
        state,
        revisions=state.revisions + 1,
        revised_at=tables.version,
        unplaced_revisions=(*state.unplaced_revisions, (run.slide, run.revision))
        if entry.sink != "table"
        else state.unplaced_revisions,
        parts=state.parts if packed.part is None else (*state.parts, packed.part),
        tail_runs=state.tail_runs + (packed.raw is not None),
        tail_bytes=state.tail_bytes + len(packed.raw or b""),
    )
    tables.put("paced", catalog_key(entry.id), state)
    return run


def _commit_backfilled(tables: Tables, store: Store, packed: _PackedRun, state: QueryState) -> RunEntry | None:
    """Record a run that was made from history, unless another process has made it."""
    due, entry = packed.due, packed.due.entry
    assert due.backfilled is not None
    backfill = state.backfill
    if backfill is None or backfill != due.state.backfill:
        return None
    key = catalog_key(entry.id, due.slide)
    before: RunEntry | None = tables.get("runs", key)
    if before is not None and before.outcome == "delivered":
        return None
    run = replace(packed.run, version=tables.version, attempts=1 if before is None else before.attempts + 1)
    if run.outcome == "failed":
        state = result_store.record_trouble(tables, entry, state, run)
        wait = _find_back_off(backfill.failures)
        failed = replace(backfill, failures=backfill.failures + 1, retry_at=store.clock() + wait)
        tables.put("paced", catalog_key(entry.id), replace(state, backfill=failed, error=run.error))
        return run
    tables.put("runs", key, run)
    if packed.raw is not None:
        tables.put_raw("results", result_store.encode_run_key(entry.id, run.slide), packed.raw)
    last = run.slide if state.delivered is None else max(state.delivered, run.slide)
    state = replace(
        state,
        delivered=last,
        delivered_at=store.clock(),
        runs=state.runs + 1,
        unplaced=(*state.unplaced, run.slide) if entry.sink != "table" else state.unplaced,
        error=None if backfill.failures else state.error,
        parts=state.parts if packed.part is None else (*state.parts, packed.part),
        tail_runs=state.tail_runs + (packed.raw is not None),
        tail_bytes=state.tail_bytes + len(packed.raw or b""),
        stored_runs=state.stored_runs + 1,
        troubles=state.troubles - (before is not None),
        revised_at=tables.version,  # whoever reads its results has read them without this run
        backfill=replace(
            backfill, commit=due.backfilled, reached=due.slides, left=backfill.left - 1, failures=0, retry_at=None
        ),
    )
    if entry.output != "whole":
        state = _keep_whole_answer(tables, entry, state, packed)
    newest: RunEntry = tables.get("runs", catalog_key(entry.id, last))
    state = result_store.trim_runs(tables, entry, state, newest.window_end, query_folder(entry))
    tables.put("paced", catalog_key(entry.id), state)
    return run


def _find_back_off(failures: int) -> int:
    return min(_FIRST_BACK_OFF << min(failures, 32), MAX_BACK_OFF)


def _record_failure(store: Store, state: QueryState, run: RunEntry) -> QueryState:
    wait = _find_back_off(state.failures)
    return replace(
        state, failures=state.failures + 1, error=run.error, retry_at=store.clock() + wait, seconds=run.seconds
    )


def _advance_state(store: Store, state: QueryState, packed: _PackedRun, run: RunEntry) -> QueryState:
    due = packed.due
    missed_periods = (
        0 if due.entry.missed == "every" else count_missed_periods(due.entry.paces, state.reached, due.slides)
    )
    size = 0 if packed.raw is None else len(packed.raw)
    return replace(
        state,
        reached=due.slides,
        held={},
        seen=state.seen if due.entry.missed == "every" else {**state.seen, **due.slides},
        delivered=run.slide,
        delivered_at=store.clock(),
        runs=state.runs + 1,
        missed=state.missed + missed_periods,
        waiting=max(0, state.waiting - (due.hold is not None)),
        unplaced=(*state.unplaced, run.slide) if due.entry.sink != "table" else state.unplaced,
        failures=0,
        error=None,
        retry_at=None,
        seconds=run.seconds,
        parts=state.parts if packed.part is None else (*state.parts, packed.part),
        tail_runs=state.tail_runs + (packed.raw is not None),
        tail_bytes=state.tail_bytes + size,
        stored_runs=state.stored_runs + 1,
    )


def _keep_whole_answer(tables: Tables, entry: QueryEntry, state: QueryState, packed: _PackedRun) -> QueryState:
    """Keep the whole answer that the next run's difference is taken from."""
    if state.previous is not None:
        retire_files(tables, [state.previous.file])
    if packed.whole is None:
        tables.delete("results", result_store.encode_whole_key(entry.id))
    else:
        tables.put_raw("results", result_store.encode_whole_key(entry.id), packed.whole)
        if entry.revise is not None:
            tables.put_raw("results", result_store.encode_whole_key(entry.id, packed.run.slide), packed.whole)
            _forget_wholes(tables, entry, (packed.due.window[1] or 0) - entry.revise)
    return replace(state, previous=packed.whole_part)


def _forget_wholes(tables: Tables, entry: QueryEntry, before: int) -> None:
    """Delete the whole answers of windows that ended too long ago to be revised."""
    prefix = result_store.encode_whole_key(entry.id)
    for key in [key for key, _ in tables.raw_items("results", prefix) if len(key) > len(prefix)]:
        run: RunEntry | None = tables.get("runs", catalog_key(entry.id, decode_last_int(key)))
        if run is not None and (run.window_end or before) >= before:
            break
        tables.delete("results", key)
