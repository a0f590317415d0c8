"""Registers, lists and drops periodic queries; a query is accepted only after it was run once and gave an answer."""

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from windrow import arguments, times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_name_clash
from windrow.catalog.records import QueryEntry, QueryState
from windrow.definitions import check_name
from windrow.errors import DefinitionError, QueryError, UnknownQueryError
from windrow.queries import execution
from windrow.queries.answer import Answer
from windrow.queries.periodic import result_store
from windrow.queries.periodic.definition import (
    Params,
    check_options,
    find_paces,
    find_streams,
    format_period,
    pack_params,
    read_columns,
    read_statement,
    unpack_params,
)
from windrow.queries.periodic.due import SlideNumbers, is_due, read_committed_slides
from windrow.queries.periodic.retained_slides import release_query, set_retention
from windrow.queries.periodic.sinks import latest_file_name, query_folder
from windrow.queries.synopses.reconcile import reconcile_all
from windrow.snapshot import Snapshot
from windrow.store import Store


@dataclass(frozen=True)
class QueryStatus:
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


def add_query(
    store: Store,
    name: str,
    sql: str,
    *,
    params: Params = None,
    slide: times.Duration | None = None,
    sink: str | None = None,
    priority: int = 0,
    missed: str = "latest",
    output: str = "whole",
    keep: int | times.Duration | None = None,
    timeout: float | times.Duration | None = None,
) -> QueryStatus:
    """Check a query by running it once, and register it; it is due at the first slide of its next period."""
    store.check_writable()
    check_name(name, "query")
    arguments.check_statement(sql, params)
    options = check_options(sink, priority, missed, output, keep, timeout)
    statement = read_statement(sql)
    if missed == "every" and any(reference.schema for reference in statement.references):
        raise QueryError("system tables are of the moment, and missed='every' is not; use missed='latest'")
    with Snapshot(store) as snapshot:
        streams = find_streams(statement, snapshot)
        values = unpack_params(pack_params(params))
        with execution.answer_from_snapshot(store, sql, values, timeout=options.timeout, snapshot=snapshot) as answer:
            rows = answer.arrow()
        paces = find_paces(statement, streams, None if slide is None else times.parse_duration(slide, "slide"))
        entry = QueryEntry(
            id=0,
            name=name,
            sql=sql,
            params=pack_params(params),
            paces=paces,
            reads=tuple(dict.fromkeys(view.name for _, view in streams)),
            schema_bytes=result_store.to_storable_schema(read_columns(rows.schema)).serialize().to_pybytes(),
            sink=options.sink,
            folder=options.folder,
            priority=options.priority,
            missed=options.missed,
            output=options.output,
            keep_runs=options.keep_runs,
            keep_time=options.keep_time,
            timeout=options.timeout,
            created=store.clock(),
            created_slides={},
        )
    with store.catalog.write() as tables:
        record_query(tables, entry)
    reconcile_all(store, entry.paces)
    return query_status(store, name)


def record_query(tables: Tables, entry: QueryEntry) -> None:
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
    number = tables.allocate("queries") + 1
    now = read_committed_slides(tables, entry)
    recorded = replace(entry, id=number, created_slides=now)
    tables.put("queries", entry.name.encode(), recorded)
    tables.put("paced", catalog_key(number), QueryState(reached=now, seen=now))
    if recorded.missed != "latest":
        set_retention(tables, recorded, watched=True)


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


def drop_query(store: Store, name: str) -> None:
    """Remove a query with its results; files in a folder that the user named stay."""
    store.check_writable()
    with store.catalog.write() as tables:
        entry = find_query(tables, name)
        state: QueryState = tables.get("paced", catalog_key(entry.id))
        files = [part.file for part in (*state.parts, state.previous) if part is not None]
        folder = query_folder(entry)
        files += [run.file for _, run in tables.items("runs", catalog_key(entry.id)) if run.file.startswith(folder)]
        if entry.sink == "html" and not entry.folder:
            files.append(latest_file_name(entry))
        result_store.retire_files(tables, files)
        release_query(tables, entry.id)
        set_retention(tables, entry, watched=False)
        tables.delete("queries", entry.name.encode())
        tables.delete("paced", catalog_key(entry.id))
        tables.delete_prefix("runs", catalog_key(entry.id))
        tables.delete_prefix("results", catalog_key(entry.id))
    result_store.query_lock_path(store, entry).unlink(missing_ok=True)
    reconcile_all(store, entry.paces)


def list_queries(store: Store) -> list[QueryStatus]:
    """All periodic queries, by name."""
    return store.catalog.read(lambda tables: [_status(tables, entry) for _, entry in tables.items("queries")])


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
        sink=f"{entry.sink}:{entry.folder}" if entry.folder else entry.sink,
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
    )


def _is_due_now(entry: QueryEntry, state: QueryState, now: SlideNumbers) -> bool:
    if entry.missed == "every":
        return state.waiting > 0
    return is_due(entry.paces, state.reached, now) and (entry.missed == "latest" or state.seen == now)


def read_results(store: Store, name: str, slide: int | None = None) -> Answer:
    """What a query has delivered and still keeps, in the order of the slides."""
    entry = store.catalog.read(lambda tables: find_query(tables, name))
    snapshot = Snapshot(store, ())
    all_results = store.catalog.read(lambda tables: result_store.read_stored_results(tables, entry))
    results = all_results if slide is None else result_store.replace_bounds(all_results, slide)
    reader = pa.RecordBatchReader.from_batches(results.schema, results.batches(store))
    return Answer(reader, (), "snapshot", snapshot.close, lambda: dt.timedelta(0), f'FROM "{entry.name}"')


def promote_statement(
    store: Store,
    answer: Answer | str,
    name: str,
    *,
    slide: times.Duration | None = None,
    params: Params = None,
    **delivery: object,
) -> QueryStatus:
    """Make a periodic query of one that was asked once: the same text, with a period for the streams that have none."""
    text = answer if isinstance(answer, str) else answer.text
    values = params if params is not None or isinstance(answer, str) else answer.params
    return add_query(store, name, text, params=values, slide=slide, **delivery)  # type: ignore[arg-type]
