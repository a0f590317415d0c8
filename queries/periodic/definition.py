"""The definition of a periodic query: its options, streams, windows and periods, checked when it is registered.

The statement itself stays as it was written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from msgspec import structs

from windrow import times
from windrow.arguments import check_path
from windrow.catalog.records import CalendarPace, Pace, QueryEntry
from windrow.errors import DefinitionError, QueryError
from windrow.queries.execution import AnyStatement
from windrow.queries.periodic.outbound import OUTBOUND, check_target
from windrow.queries.sql.statement import Reference, Statement, parse, refuse_past
from windrow.queries.sql.window_spec import CalendarWindow, OffsetWindow, RangeWindow
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

ISOLATION_LEVELS = ("snapshot", "latest")
MISSED_POLICIES = ("latest", "every", "skip")
OUTPUTS = ("whole", "inserts", "deletes")
SINKS = ("table", "parquet", "csv", "jsonl", "html")
KEEP_RUNS = 1000
"""Runs of a results table that are kept unless its query says otherwise."""
TIMEOUT = 600.0
"""Seconds after which a run is cancelled unless its query says otherwise."""
RUN_COLUMNS = pa.schema([
    ("_slide", pa.int64()), ("_window_start", pa.timestamp("us", "UTC")), ("_window_end", pa.timestamp("us", "UTC")),
    ("_complete", pa.bool_()), ("_staleness", pa.duration("us")), ("_coverage", pa.float64()),
])  # fmt: skip
"""What stands before a query's own columns: which window a row is of."""
REVISION = pa.field("_revision", pa.int64())
"""Stored behind them where windows are revised, and shown with all revisions."""
_MAX_PRIORITY = 1_000_000

Params = Sequence[Any] | dict[str, Any] | None


@dataclass(frozen=True)
class QueryOptions:
    """How a query's runs are to be made and delivered, checked."""

    sink: str
    folder: str
    priority: int
    missed: str
    output: str
    isolation: str
    keep_runs: int | None
    keep_time: int | None
    timeout: float | None


def check_options(
    store: Store,
    sink: str | None,
    priority: int,
    missed: str,
    output: str,
    isolation: str,
    keep: int | times.Duration | None,
    timeout: float | times.Duration | None,
) -> QueryOptions:
    """Check everything that is not the statement."""
    if missed not in MISSED_POLICIES:
        raise DefinitionError(f"missed={missed!r} is not a policy; choose one of {', '.join(MISSED_POLICIES)}")
    if output not in OUTPUTS:
        raise DefinitionError(f"output={output!r} is not an output mode; choose one of {', '.join(OUTPUTS)}")
    if isolation not in ISOLATION_LEVELS:
        raise DefinitionError(
            f"isolation={isolation!r} is no level of a periodic query; choose one of {', '.join(ISOLATION_LEVELS)}"
        )
    if isolation == "latest" and missed == "every":
        raise DefinitionError(
            "isolation='latest' goes on to the newest slide while it runs, and missed='every' has a run for every "
            "slide; use missed='latest'"
        )
    if not isinstance(priority, int) or abs(priority) > _MAX_PRIORITY:
        raise DefinitionError(f"priority={priority!r} must be a whole number of at most {_MAX_PRIORITY}")
    kind, folder = _parse_sink(store, sink)
    runs, time = _parse_retention(keep)
    return QueryOptions(kind, folder, priority, missed, output, isolation, runs, time, _check_timeout(timeout))


def _parse_sink(store: Store, sink: str | None) -> tuple[str, str]:
    """``csv`` writes beside the results table, ``csv:/some/folder`` where the user says, others send it away."""
    if sink is None:
        return "table", ""
    kind, _, folder = str(sink).partition(":")
    if any("\ud800" <= letter <= "\udfff" for letter in folder):
        raise DefinitionError(f"sink={sink!r} is not text that can be stored")
    if kind in OUTBOUND:
        check_target(store, kind, folder)
        return kind, folder
    if kind not in SINKS or (kind == "table" and folder):
        raise DefinitionError(
            f"sink={sink!r} is not a sink; choose one of {', '.join(SINKS)}, and for files a folder: 'csv:/reports', "
            "or send it with 'webhook:URL' or 'command:/path'"
        )
    if not folder:
        return kind, ""
    path = check_path(folder).expanduser().absolute()
    nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())
    if not nearest.is_dir():
        raise DefinitionError(f"sink={sink!r}: {nearest} is a file; name a folder, which is made if it is not there")
    return kind, str(path)


def _parse_retention(keep: int | times.Duration | None) -> tuple[int | None, int | None]:
    if keep is None:
        return KEEP_RUNS, None
    if isinstance(keep, int):
        if keep < 1:
            raise DefinitionError(f"keep={keep} must be at least one run, or a duration such as '7 days'")
        return keep, None
    return None, times.parse_duration(keep, "keep")


def _check_timeout(timeout: float | times.Duration | None) -> float | None:
    return TIMEOUT if timeout is None else times.parse_seconds(timeout, "timeout")


def read_statement(sql: str) -> Statement:
    """The parsed text, if it can be asked again and again."""
    statement = parse(sql)
    refuse_past(statement.references, "a periodic query")
    if statement.explain:
        raise QueryError("EXPLAIN is asked once, with wh.explain or 'windrow explain'; register the query itself")
    return statement


def find_streams(statement: AnyStatement, snapshot: Snapshot) -> list[tuple[Reference, StreamSnapshot]]:
    """The references to streams, with what the snapshot knows of each, in the order of the text."""
    streams = {name.lower(): name for name in snapshot.streams()}
    return [
        (reference, snapshot.view(streams[reference.name.lower()]))
        for reference in statement.references
        if not reference.schema and reference.name.lower() in streams
    ]


def find_results(
    statement: AnyStatement, snapshot: Snapshot, queries: Mapping[str, QueryEntry]
) -> list[tuple[Reference, QueryEntry]]:
    """The references to results of other queries, which `queries` has by their names in lower case."""
    taken = {name.lower() for name in (*snapshot.streams(), *snapshot.tables)}
    named = [reference for reference in statement.references if not reference.schema]
    return [
        (reference, queries[reference.name.lower()])
        for reference in named
        if reference.name.lower() in queries and reference.name.lower() not in taken
    ]


def find_paces(
    statement: AnyStatement,
    streams: Sequence[tuple[Reference, StreamSnapshot]],
    period: int | None,
    lag: int | None = None,
    results: Sequence[tuple[Reference, QueryEntry, StreamSnapshot]] = (),
) -> tuple[Pace, ...]:
    """How each stream paces the query.

    Args:
        statement: As parsed.
        streams: Its references to streams.
        period: In microseconds, for streams whose clause names none; None: those do not pace it.
        lag: How long after the end of a calendar unit its run is due.
        results: Its references to results of other queries, with the streams that number their runs. Those with a
            SLIDE pace it too; where nothing else does, it is due with the first of them.

    Raises:
        QueryError: nothing paces it, a period does not fit its stream, or `period` would be for none.
    """
    if not streams and not results:
        raise QueryError("a periodic query runs when a stream slides, and this one reads no stream; name one in FROM")
    streams = [*streams, *((r, v) for r, _, v in results if _clause_period(r) is not None or not streams)]
    paces: dict[str, Pace] = {}
    _check_period(statement, streams, period)
    if lag is not None and not any(isinstance(reference.window, CalendarWindow) for reference, _ in streams):
        raise QueryError(
            "lag= is how long after a calendar unit its run is due; this query has no [DAY 'zone'] or the like"
        )
    for reference, view in streams:
        if isinstance(reference.window, CalendarWindow) and not any(reference is result for result, *_ in results):
            paces[view.name] = _calendar_pace(statement, reference, view, lag or 0, paces.get(view.name))
            continue
        window = reference.window.reach if isinstance(reference.window, RangeWindow | OffsetWindow) else None
        offset = reference.window.offset if isinstance(reference.window, OffsetWindow) else 0
        clause_period = _clause_period(reference)
        wanted = clause_period if clause_period is not None else period
        if wanted is None:
            continue
        slots = _slots(statement, reference, view, wanted)
        earlier = paces.get(view.name)
        if earlier is not None and (earlier.period != slots or earlier.calendar is not None):
            raise _two_periods(statement, reference, view)
        longest = window if earlier is None or earlier.window is None or window is None else max(earlier.window, window)
        ended = offset if earlier is None else min(earlier.offset, offset)
        paces[view.name] = Pace(stream=view.name, stream_id=view.entry.id, window=longest, period=slots, offset=ended)
    if not paces and results:
        return tuple(structs.replace(pace, window=None) for pace in results[0][1].paces)
    if not paces:
        raise QueryError(
            "a periodic query says how often it is due: write [WINDOW 10 MINUTES SLIDE 2 MINUTES] behind a stream, "
            "or give slide='2 minutes'"
        )
    return tuple(paces.values())


def _two_periods(statement: AnyStatement, reference: Reference, view: StreamSnapshot) -> QueryError:
    message = f"stream {view.name!r} has two periods in this query; give it one SLIDE, or one calendar unit and zone"
    return _locate_clause(statement, reference, message)


def _calendar_pace(
    statement: AnyStatement, reference: Reference, view: StreamSnapshot, lag: int, earlier: Pace | None
) -> Pace:
    """A run for each unit; refuses units of which rows would be gone when their run is due."""
    window, definition = reference.window, view.entry.definition
    assert isinstance(window, CalendarWindow)
    longest, needed = definition.longest_life, window.longest(view.now or 0) + lag + definition.slide
    if longest is not None and needed > longest:
        message = (
            f"stream {view.name!r} keeps rows for {times.format_duration(longest)}, and {window} with its lag and a "
            f"slide can be {times.format_duration(needed)} ago"
        )
        raise _locate_clause(statement, reference, message)
    first = last = window.previous
    if earlier is not None:
        if earlier.calendar is None or (earlier.calendar.unit, earlier.calendar.zone) != (window.unit, window.zone):
            raise _two_periods(statement, reference, view)
        first, last = max(first, earlier.calendar.first), min(last, earlier.calendar.last)
    calendar = CalendarPace(
        unit=window.unit,
        zone=window.zone,
        lag=lag,
        first=first,
        last=last,
        origin=definition.origin,
        delta=definition.slide,
    )
    return Pace(stream=view.name, stream_id=view.entry.id, window=None, period=1, calendar=calendar)


def _check_period(
    statement: AnyStatement, streams: Sequence[tuple[Reference, StreamSnapshot]], period: int | None
) -> None:
    """Refuse a period that would be passed over because every clause in the text has its own."""
    named = [
        (reference, clause_period)
        for reference, _ in streams
        if (clause_period := _clause_period(reference)) is not None
    ]
    if period is None or len(named) < len(streams):
        if period is not None and all(isinstance(reference.window, CalendarWindow) for reference, _ in streams):
            raise QueryError(f"slide= is given, and {streams[0][0].window} says how often it is due; leave slide= out")
        return
    for reference, clause_period in named:
        if clause_period != period:
            given_text, clause_text = times.format_duration(period), times.format_duration(clause_period).upper()
            message = f"slide={given_text!r} is given, and the clause says SLIDE {clause_text}; leave one of them out"
            raise _locate_clause(statement, reference, message)


def _clause_period(reference: Reference) -> int | None:
    """The period that a clause names."""
    return reference.window.slide if isinstance(reference.window, RangeWindow | OffsetWindow) else None


def _slots(statement: AnyStatement, reference: Reference, view: StreamSnapshot, period: int) -> int:
    delta = view.entry.definition.slide
    if period % delta:
        nearest = max(1, (2 * period + delta) // (2 * delta)) * delta
        raise _locate_clause(
            statement,
            reference,
            f"stream {view.name!r} slides every {times.format_duration(delta)}, and a period of "
            f"{times.format_duration(period)} is no multiple of that; the nearest is {times.format_duration(nearest)}",
        )
    return period // delta


def _locate_clause(statement: AnyStatement, reference: Reference, message: str) -> QueryError:
    offset = None if reference.span is None else len(statement.text[: reference.span[0]].encode())
    return statement.error(offset, message)


def read_columns(schema: pa.Schema) -> pa.Schema:
    """The query's own columns, if they can stand in a results table."""
    taken = {*RUN_COLUMNS.names, REVISION.name}
    for name in schema.names:
        if name.lower() in taken:
            raise QueryError(
                f"two columns of the results would be called {name!r} (SQL does not tell capitals apart); "
                "give one another name with AS"
            )
        taken.add(name.lower())
    return schema


def pack_params(params: Params) -> bytes:
    """Parameters as one row of Arrow, which keeps their types; empty for none."""
    if not params:
        return b""
    named = isinstance(params, Mapping)
    values = (
        dict(params) if isinstance(params, Mapping) else {str(position): value for position, value in enumerate(params)}
    )
    # Arrow has no integers of more than 64 bits, SQL has.
    wide = [name for name, value in values.items() if _is_wide_integer(value)]
    try:
        row = pa.Table.from_pylist([values | {name: str(values[name]) for name in wide}])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DefinitionError(
            f"these parameters cannot be kept with the query ({error}); use numbers, texts and times"
        ) from None
    row = row.replace_schema_metadata({b"named": b"1" if named else b"0", b"wide": "\0".join(wide).encode()})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as sink:
        sink.write_table(row)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def _is_wide_integer(value: Any) -> bool:
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def unpack_params(packed: bytes) -> Params:
    """What `pack_params` was given."""
    if not packed:
        return None
    row = pa.ipc.open_stream(pa.py_buffer(packed)).read_all()
    values: dict[str, Any] = row.to_pylist()[0]
    for name in filter(None, row.schema.metadata.get(b"wide", b"").decode().split("\0")):
        values[name] = int(values[name])
    return values if row.schema.metadata[b"named"] == b"1" else list(values.values())


def read_own_schema(entry: QueryEntry) -> pa.Schema:
    """The query's own columns."""
    return _schemas(entry.schema_bytes)[0]


def read_result_schema(entry: QueryEntry) -> pa.Schema:
    """The columns of its results table."""
    return _schemas(entry.schema_bytes, find_shown_zone(entry))[1]


@lru_cache(maxsize=1024)
def add_revision(schema: pa.Schema) -> pa.Schema:
    """The columns of results with the number of the revision."""
    return schema.insert(len(RUN_COLUMNS), REVISION)


def read_stored_schema(entry: QueryEntry) -> pa.Schema:
    """The columns that the rows of its runs are stored with."""
    return read_result_schema(entry) if entry.revise is None else add_revision(read_result_schema(entry))


def find_shown_zone(entry: QueryEntry) -> str:
    """The zone that the windows of its runs are shown in: that of its calendar windows, or UTC."""
    return entry.paces[0].calendar.zone if entry.paces and entry.paces[0].calendar is not None else "UTC"


@lru_cache(maxsize=1024)
def _schemas(packed: bytes, zone: str = "UTC") -> tuple[pa.Schema, pa.Schema]:
    """The columns of a query and of its results: the same from run to run."""
    query_columns = pa.ipc.read_schema(pa.py_buffer(packed))
    in_zone = pa.timestamp("us", zone)
    run_columns = [field.with_type(in_zone) if pa.types.is_timestamp(field.type) else field for field in RUN_COLUMNS]
    return query_columns, pa.schema([*run_columns, *query_columns])


def format_period(entry: QueryEntry, slides: Mapping[str, int]) -> str:
    """How often it is due, in words; `slides` gives each stream's Δ."""
    parts = {
        p.stream: times.format_duration(p.period * slides[p.stream])
        if p.calendar is None
        else f"{p.calendar.unit} in {p.calendar.zone}"
        for p in entry.paces
        if p.stream in slides
    }
    if len(set(parts.values())) == 1:
        return next(iter(parts.values()))
    return ", ".join(f"{name} {text}" for name, text in parts.items())
