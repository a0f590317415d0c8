"""A snapshot as a DuckDB connection of the user's own: its streams, tables and results are there by name.

Predicates on the search key are looked up in the directories and those on time leave segments out, as in `wh.sql`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from windrow import times
from windrow.indexes.probe import find_row_ranges, read_matching
from windrow.indexes.scan import scan_segments
from windrow.queries.engine.arrow_source import FilteringSource, Predicate, register_source
from windrow.queries.engine.instance import open_connection
from windrow.queries.engine.types import quote_name, quote_text
from windrow.queries.planner.key_ranges import find_key_predicate
from windrow.queries.planner.planner import PROBE_FEW_ROWS, PROBE_ROWS, PROBE_SHARE
from windrow.queries.statement_context import NO_CONTEXT, StatementContext
from windrow.snapshot import Snapshot, StreamSnapshot


def _stream_source(snapshot: Snapshot, view: StreamSnapshot) -> FilteringSource:
    """All live rows of a stream, of which DuckDB's predicates leave out whole segments; it keeps the snapshot alive."""

    def read(filters: Sequence[Predicate], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        reader, model, full = snapshot.store.reader, view.entry.definition.model, view.stored_schema
        wanted = find_key_predicate(filters, model, view.schema)
        bounds = view.bounds()
        if bounds is not None and wanted.after is not None:
            bounds = replace(bounds, after=wanted.after)
        if bounds is not None and wanted.upto is not None:
            bounds = replace(bounds, upto=min(bounds.upto, wanted.upto))
        selection = view.select(bounds)
        if wanted.keys is not None:
            places = find_row_ranges(selection.segments, wanted.keys, snapshot.directories, view.sorted_by)
            count, stored = sum(p.stop - p.start for p in places), sum(s.rows for s in view.segments)
            if count <= PROBE_ROWS and count <= max(PROBE_FEW_ROWS, PROBE_SHARE * stored):
                yield from read_matching(places, selection, wanted.keys, model, full, schema, reader).to_batches()
                return
        yield from scan_segments(selection, model, full, schema, reader)

    return FilteringSource(view.schema, read)


def open_snapshot_connection(
    snapshot: Snapshot, memory: str | None = None, threads: int | None = None, context: StatementContext = NO_CONTEXT
) -> duckdb.DuckDBPyConnection:
    """A locked DuckDB connection over a snapshot.

    Temporary views, tables and macros are the user's; there is no file system, so nothing outside can be reached. The
    function form ``"window"('packets', INTERVAL 10 MINUTE)`` gives a window.
    """
    first = open_connection(memory, threads)
    tables = {name: pq.ParquetFile(snapshot.store.root / entry.file).read() for name, entry in snapshot.tables.items()}
    for name, results in context.find_results(snapshot, None).items():
        tables[name] = pa.Table.from_batches(list(results.batches(snapshot.store)), results.schema)
    macro = _window_macro(snapshot)

    def offer(cursor: duckdb.DuckDBPyConnection) -> None:
        for name in snapshot.streams():
            register_source(cursor, name, _stream_source(snapshot, snapshot.view(name)))
        for name, table in tables.items():
            cursor.register(name, table)
        cursor.execute(macro)

    return _with_cursors(first, offer)


def _with_cursors(first: Any, offer: Callable[[Any], None]) -> duckdb.DuckDBPyConnection:
    """The connection, whose cursors see what it sees: DuckDB registers relations for one connection only."""

    class Connection(duckdb.DuckDBPyConnection):
        """Tools such as pandas and ibis query through a cursor of the connection that they are given."""

        __slots__ = ()

        def cursor(self) -> Any:
            """Another connection to the same snapshot."""
            return _with(super().cursor())

        duplicate = cursor

    def _with(cursor: Any) -> Any:
        offer(cursor)
        cursor.__class__ = Connection
        return cursor

    connection: duckdb.DuckDBPyConnection = _with(first)
    return connection


def _window_macro(snapshot: Snapshot) -> str:
    """``window(stream, length)`` as a table macro; each stream's own time column and clock are written into it."""
    cases = []
    for name in snapshot.streams():
        view = snapshot.view(name)
        definition = view.entry.definition
        kind = view.schema.field(definition.time).type
        clock = f"make_timestamp({view.now or 0})" + (" AT TIME ZONE 'UTC'" if kind.tz is not None else "")
        # DuckDB compares times with a zone in nanoseconds only with their like.
        start, end = ("CAST(", "' AS TIMESTAMPTZ_NS)") if kind.tz is not None and kind.unit == "ns" else ("", "'")
        first = f"SELECT * FROM {quote_name(name)} WHERE {quote_name(definition.time)} > {start}{clock} - INTERVAL '"
        rest = f"CAST(length AS VARCHAR) || {quote_text(end)}"
        cases.append(
            f"WHEN {quote_text(name.lower())} THEN {_NOT_SHORT}{_unless_too_long(view)}{quote_text(first)} || {rest}"
        )
    choice = f"CASE lower(stream) {' '.join(cases)} ELSE error('there is no stream ' || stream) END" if cases else "''"
    return f'CREATE TEMP MACRO "window"(stream, length) AS TABLE FROM query({choice})'


_NOT_SHORT = (
    "CASE WHEN CAST(length AS INTERVAL) <= to_microseconds(0) THEN error('a window must be longer than zero') "
    "ELSE '' END || "
)


def _unless_too_long(view: StreamSnapshot) -> str:
    """SQL that refuses a window longer than the stream keeps rows, to be put before the window's own SQL."""
    definition = view.entry.definition
    lifetime, now, floor = definition.longest_life, view.now, definition.floor
    if now is not None and floor is not None and (lifetime is None or now - floor < lifetime):
        lifetime = now - floor  # its lifetime was lengthened, and older rows are gone
    if lifetime is None:
        return ""
    shown = times.format_duration(lifetime)
    message = quote_text(f"stream {definition.name!r} keeps rows for {shown}; a longer window would not be complete")
    return f"CASE WHEN CAST(length AS INTERVAL) > to_microseconds({lifetime}) THEN error({message}) ELSE '' END || "
