"""Registers, lists and drops periodic queries; a query is accepted only after it was run once and gave an answer."""

import datetime as dt
from dataclasses import dataclass
from dataclasses import replace as replaced

import pyarrow as pa
from msgspec.structs import replace

from windrow import arguments, times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_name_clash
from windrow.catalog.records import QueryEntry, QueryState
from windrow.catalog.segment_log import retire_files
from windrow.definitions import check_name
from windrow.errors import DefinitionError, GapError, InUseError, QueryError, UnknownQueryError
from windrow.formats.html import TableList, TableRecord
from windrow.queries import execution
from windrow.queries.answer import GAP_POLICIES, Answer, check_gap_policy
from windrow.queries.periodic import result_store
from windrow.queries.periodic.backfill import BackfillPlan, plan_backfill, set_backfill
from windrow.queries.periodic.chains import check_cycle, find_reads
from windrow.queries.periodic.definition import (
    Params,
    check_options,
    find_paces,
    find_results,
    find_streams,
    format_period,
    pack_params,
    read_columns,
    read_own_schema,
    read_statement,
    unpack_params,
)
from windrow.queries.periodic.due import SlideNumbers, is_due, read_committed_slides
from windrow.queries.periodic.join_views import reconcile_synopses
from windrow.queries.periodic.outbound import describe_sink
from windrow.queries.periodic.result_tables import PERIODIC_CONTEXT
from windrow.queries.periodic.retained_slides import release_query, set_retention
from windrow.queries.periodic.revisions import LateRows, check_room, count_outdated
from windrow.queries.periodic.run_engine import (
    DUCKDB,
    RunEngine,
    check_engine,
    find_unwindowed,
    plan_foreign_statement,
    read_foreign_statement,
)
from windrow.queries.periodic.sinks import latest_file_name, query_folder
from windrow.queries.synopses.synopsis_choice import keeps_always
from windrow.schema_changes import is_wider
from windrow.snapshot import Snapshot
from windrow.store import Store


@dataclass(frozen=True)
class QueryStatus(TableRecord):
    """A periodic query and the state of its runs."""

    name: str
    sql: str
    streams: tuple[str, ...]
    """Those that pace it."""
    period: str
    sink: str
    """``table``, or the format and folder of its files."""
    priority: int
    missed: str
    output: str
    keep: str
    timeout: float | None
    created: dt.datetime
    slide: int | None
    """The slide of its last delivered run."""
    delivered_at: dt.datetime | None
    due: bool
    """Whether a run would be made now; also true while it waits after a failure."""
    waiting: int
    """Runs of earlier slides that are still to be made."""
    runs: int
    """Delivered so far."""
    missed_runs: int
    """Periods that passed without a run of their own."""
    failures: int
    """How many times in a row it has failed."""
    error: str | None
    retry_at: dt.datetime | None
    """It failed, and is left alone until then."""
    seconds: float | None
    """How long its last run took."""
    revise: str | None = None
    """For how long after its end a window is run again when late rows have changed it."""
    revisions: int = 0
    """Delivered so far."""
    outdated: int = 0
    """Delivered windows that late rows have changed since, and that were not run again."""
    isolation: str = "snapshot"
    """Whether slides that commit while a round runs are for the next one, or absorbed: snapshot or latest."""
    engine: str = "duckdb"
    """Who runs it: duckdb or spark. When one of Spark is due, it waits for rounds that were given a session."""
    to_backfill: int = 0
    """Runs of slides from before it was there that are still to be made."""


def add_query(
    store: Store,
    name: str,
    sql: str,
    *,
    params: Params = None,
    slide: times.Duration | None = None,
    lag: times.Duration | None = None,
    sink: str | None = None,
    priority: int = 0,
    missed: str = "latest",
    output: str = "whole",
    revise: times.Duration | None = None,
    keep: int | times.Duration | None = None,
    timeout: float | times.Duration | None = None,
    memory_limit: str | None = None,
    on_gap: str = "tell",
    deadline: times.Duration | None = None,
    isolation: str = "snapshot",
    engine: str = DUCKDB,
    run_engine: RunEngine | None = None,
    backfill: times.Duration | None = None,
) -> QueryStatus:
    """Check a query by running it once (Spark only plans it) and register it; it is due in its next period."""
    store.check_writable()
    check_name(name, "query")
    arguments.check_statement(sql, params)
    arguments.check_size(memory_limit, "memory")
    options = check_options(store, sink, priority, missed, output, isolation, keep, timeout)
    check_engine(engine, run_engine, memory_limit)
    statement: execution.AnyStatement = read_statement(sql) if engine == DUCKDB else read_foreign_statement(sql)
    patience = check_waiting(on_gap, deadline, missed, isolation)
    if missed == "every" and any(reference.schema for reference in statement.references):
        raise QueryError("system tables show the present, and missed='every' asks for the past; use missed='latest'")
    with Snapshot(store) as snapshot:
        values = unpack_params(pack_params(params))
        if run_engine is None:
            columns = _ask_once(snapshot, sql, values, options.timeout, memory_limit)
        else:
            statement, columns = plan_foreign_statement(run_engine, snapshot, sql, values)
        streams = find_streams(statement, snapshot)
        period = None if slide is None else times.parse_duration(slide, "slide")
        results = find_results(statement, snapshot, store.catalog.read(_queries_by_name))
        numbering = [(reference, query, snapshot.view(query.paces[0].stream)) for reference, query in results]
        paces = find_paces(
            statement, streams, period, None if lag is None else times.parse_slack(lag, "lag"), numbering
        )
        after = find_reads(results, {view.name: view.entry.definition.slide for *_, view in numbering})
        room = None if revise is None else times.parse_duration(revise, "revise")
        read = [*streams, *((None, view) for *_, view in numbering)]
        for option, length in (("revise", room), ("deadline", patience)):
            if length is not None:
                check_room(read, [pace.stream for pace in paces], length, option)
        reads = [*(view.name for _, view in streams), *(pace.stream for _, query in results for pace in query.paces)]
        entry = QueryEntry(
            id=0, name=name, sql=sql, params=pack_params(params), paces=paces, reads=tuple(dict.fromkeys(reads)),
            schema_bytes=result_store.to_storable_schema(read_columns(columns)).serialize().to_pybytes(),
            **vars(options), memory_limit=memory_limit, created=store.clock(), created_slides={}, revise=room,
            after=after, on_gap=on_gap, deadline=patience, engine=engine,
            unwindowed=() if run_engine is None else find_unwindowed(statement.references),
        )  # fmt: skip
        back = None if backfill is None else times.parse_duration(backfill, "backfill")
        plan = None if back is None else plan_backfill(store, entry, None, snapshot, None, back)
    with store.catalog.write() as tables:
        record_query(tables, entry, plan)
    if keeps_always():  # else the first round decides, when all that were added together are there
        reconcile_synopses(store, [pace.stream for pace in entry.paces])
    return query_status(store, name)


def _ask_once(
    snapshot: Snapshot, sql: str, values: Params, timeout: float | None, memory_limit: str | None
) -> pa.Schema:
    """The columns of a statement's answer, of which all rows have been read."""
    with execution.answer_from_snapshot(
        snapshot.store,
        sql,
        values,
        timeout=timeout,
        snapshot=snapshot,
        memory_limit=memory_limit,
        context=PERIODIC_CONTEXT,
    ) as answer:
        return answer.arrow().schema


def check_waiting(on_gap: str, deadline: times.Duration | None, missed: str, isolation: str) -> int | None:
    """What is to become of runs whose windows are not complete, checked; gives how long they wait."""
    check_gap_policy(on_gap, (*GAP_POLICIES, "wait"))
    if (on_gap == "wait") != (deadline is not None):
        raise GapError("on_gap='wait' goes with deadline=…, how long a run waits at most by the stream's clock")
    if deadline is not None and missed == "every":
        raise GapError("on_gap='wait' runs a window later, with what has come by then; use missed='latest'")
    if deadline is not None and isolation == "latest":
        raise GapError("on_gap='wait' keeps to the slide that it waits for; use isolation='snapshot'")
    return None if deadline is None else times.parse_duration(deadline, "deadline")


def record_query(tables: Tables, entry: QueryEntry, plan: BackfillPlan | None = None) -> None:
    """Record a checked query under a number of its own, as of the current slides of its streams."""
    clash = find_name_clash(tables, entry.name)
    if clash is not None:
        raise DefinitionError(
            f"{clash!r} exists already (SQL does not tell capitals apart); drop it first or choose another name"
        )
    for pace in entry.paces:
        stream = tables.get("streams", pace.stream.encode())
        if stream is None or stream.id != pace.stream_id:
            raise QueryError(f"stream {pace.stream!r} was dropped meanwhile; the query was not added")
    check_cycle(tables, entry)
    number = tables.allocate("queries") + 1
    now = read_committed_slides(tables, entry)
    recorded = replace(entry, id=number, created_slides=now)
    tables.put("queries", entry.name.encode(), recorded)
    tables.put(
        "paced",
        catalog_key(number),
        QueryState(
            reached=now,
            seen=now,
            checked=now | LateRows(tables).marks(entry),
            backfill=None if plan is None else plan.go_on(tables, recorded, now),
        ),
    )
    if recorded.missed != "latest":
        set_retention(tables, recorded, watched=True)


def renew_result_types(store: Store, stream: str) -> None:
    """Give the results of queries the wider types that a stream's columns have now; earlier runs are read as these."""
    readers = store.catalog.read(
        lambda tables: sorted((q for _, q in tables.items("queries") if stream in q.reads), key=lambda query: query.id)
    )
    for query in readers:  # one that reads results of another was added after it
        with (
            Snapshot(store) as snapshot,
            execution.answer_from_snapshot(
                store, query.sql, unpack_params(query.params), snapshot=snapshot, context=PERIODIC_CONTEXT
            ) as answer,
        ):
            schema = result_store.to_storable_schema(read_columns(answer.schema))
        old = read_own_schema(query)
        if schema.names != old.names or not any(map(_holds_more, schema.types, old.types)):
            continue
        with store.catalog.write() as tables:
            current: QueryEntry | None = tables.get("queries", query.name.encode())
            if current is not None and current.id == query.id and not _find_views(tables, current):
                packed = schema.serialize().to_pybytes()
                tables.put("queries", query.name.encode(), replace(current, schema_bytes=packed))


def _holds_more(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether results go on in a new type; sums of decimals have 38 digits in all, before and after."""
    if pa.types.is_decimal(new) and pa.types.is_decimal(old):
        return bool(new.scale > old.scale or new.precision > old.precision)
    return is_wider(new, old)


def backfill_query(store: Store, name: str, since: times.Instant) -> QueryStatus:
    """Let a query make the runs of earlier slides that it has not made, from a time on."""
    store.check_writable()
    instant = times.parse_instant(since, "since")

    def find(tables: Tables) -> tuple[QueryEntry, QueryState]:
        entry = find_query(tables, name)
        return entry, tables.get("paced", catalog_key(entry.id))

    entry, state = store.catalog.read(find)
    set_backfill(store, entry, state, instant)
    return query_status(store, entry.name)


def _queries_by_name(tables: Tables) -> dict[str, QueryEntry]:
    return {entry.name.lower(): entry for _, entry in tables.items("queries")}


def find_query(tables: Tables, name: str) -> QueryEntry:
    """A query's record, or an error that names the queries there are."""
    names = [key.decode() for key, _ in tables.raw_items("queries")]
    match = next((existing for existing in names if existing.lower() == name.lower()), None)
    if match is None:
        raise UnknownQueryError(
            f"there is no periodic query {name!r}; {'there are ' + ', '.join(names) if names else 'none was added yet'}"
        )
    entry: QueryEntry = tables.get("queries", match.encode())
    return entry


def _find_views(tables: Tables, entry: QueryEntry) -> list[str]:
    """The views that read results of a query, by the columns that these have."""
    return [view.name for _, view in tables.items("plans") if entry.id in view.results.values()]


def drop_query(store: Store, name: str) -> None:
    """Remove a query with its results; files in a folder that the user named stay."""
    store.check_writable()
    with store.catalog.write() as tables:
        entry = find_query(tables, name)
        views = _find_views(tables, entry)
        if views:
            raise InUseError(f"results of query {name!r} are read by views ({', '.join(views)}); drop them first")
        state: QueryState = tables.get("paced", catalog_key(entry.id))
        files = [part.file for part in (*state.parts, state.previous) if part is not None]
        folder = query_folder(entry)
        runs = [run for name in ("runs", "revisions") for _, run in tables.items(name, catalog_key(entry.id))]
        files += [run.file for run in runs if run.file.startswith(folder)]
        if entry.sink == "html" and not entry.folder:
            files.append(latest_file_name(entry))
        retire_files(tables, files)
        release_query(tables, entry.id)
        set_retention(tables, entry, watched=False)
        tables.delete("queries", entry.name.encode())
        tables.delete("paced", catalog_key(entry.id))
        tables.delete_prefix("runs", catalog_key(entry.id))
        tables.delete_prefix("revisions", catalog_key(entry.id))
        tables.delete_prefix("results", catalog_key(entry.id))
    result_store.query_lock_path(store, entry).unlink(missing_ok=True)
    if keeps_always() or (state.judged and not state.from_rows):
        reconcile_synopses(store, [pace.stream for pace in entry.paces])


def list_queries(store: Store) -> list[QueryStatus]:
    """All periodic queries, by name."""
    return TableList(
        store.catalog.read(lambda tables: [_status(tables, entry) for _, entry in tables.items("queries")])
    )


def query_status(store: Store, name: str) -> QueryStatus:
    """One periodic query."""
    return store.catalog.read(lambda tables: _status(tables, find_query(tables, name)))


def _status(tables: Tables, entry: QueryEntry) -> QueryStatus:
    state: QueryState = tables.get("paced", catalog_key(entry.id))
    streams = [tables.get("streams", pace.stream.encode()) for pace in entry.paces]
    slides = {stream.definition.name: stream.definition.slide for stream in streams if stream is not None}
    now = read_committed_slides(tables, entry)
    return QueryStatus(
        name=entry.name,
        sql=entry.sql,
        streams=tuple(pace.stream for pace in entry.paces),
        period=format_period(entry, slides),
        sink=describe_sink(entry),
        priority=entry.priority,
        missed=entry.missed,
        output=entry.output,
        keep=f"{entry.keep_runs} runs" if entry.keep_time is None else times.format_duration(entry.keep_time),
        timeout=entry.timeout,
        created=times.to_datetime(entry.created),
        slide=state.delivered,
        delivered_at=None if state.delivered_at is None else times.to_datetime(state.delivered_at),
        due=_is_due_now(entry, state, now),
        waiting=state.waiting,
        runs=state.runs,
        missed_runs=state.missed,
        failures=state.failures,
        error=state.error,
        retry_at=None if state.retry_at is None else times.to_datetime(state.retry_at),
        seconds=state.seconds,
        revise=None if entry.revise is None else times.format_duration(entry.revise),
        revisions=state.revisions,
        outdated=count_outdated(tables, entry, state),
        isolation=entry.isolation,
        engine=entry.engine,
        to_backfill=0 if state.backfill is None else state.backfill.left,
    )


def _is_due_now(entry: QueryEntry, state: QueryState, now: SlideNumbers) -> bool:
    if entry.missed == "every":
        return state.waiting > 0
    return is_due(entry.paces, state.reached, now) and (entry.missed == "latest" or state.seen == now)


def read_results(store: Store, name: str, slide: int | None = None, *, revisions: bool = False) -> Answer:
    """What a query has delivered and still keeps, in the order of the slides: the newest revision of each, or all."""
    entry = store.catalog.read(lambda tables: find_query(tables, name))
    snapshot = Snapshot(store, ())
    all_results = store.catalog.read(lambda tables: result_store.read_stored_results(tables, entry))
    results = replaced(all_results, revisions=revisions)
    if slide is not None:
        results = replaced(results, first=slide, last=slide)
    reader = pa.RecordBatchReader.from_batches(results.schema, results.batches(store))
    return Answer(reader, (), "snapshot", snapshot.close, lambda: dt.timedelta(0), f'FROM "{entry.name}"')
