"""A snapshot as a plain DuckDB connection: its streams and tables are there by name, read as they are asked for.

Predicates on the search key go through the directory and those on time leave segments out, as in `wh.sql`.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb._sources import ArrowScanSource, nodes
from duckdb._sources.to_arrow import to_arrow

from windrow import times
from windrow.indexes.probe import find_row_ranges, read_matching
from windrow.indexes.scan import scan_segments
from windrow.queries.engine.instance import open_connection
from windrow.queries.engine.types import quote_name, quote_text
from windrow.queries.periodic import result_store
from windrow.queries.planner.key_ranges import find_key_predicate
from windrow.queries.planner.planner import PROBE_ROWS, PROBE_SHARE
from windrow.snapshot import Snapshot, StreamSnapshot


class StreamSource(ArrowScanSource):
    """All live rows of a stream, as DuckDB asks for them: only the columns it needs, only segments that can matter.

    Args:
        snapshot: Keeps the files in place as long as the source lives.
        view: The stream in it.
    """

    schema_is_stable = True

    def __init__(self, snapshot: Snapshot, view: StreamSnapshot) -> None:
        super().__init__(view)
        self._snapshot = snapshot
        self._view = view

    def __arrow_c_schema__(self) -> object:
        return self._view.schema.__arrow_c_schema__()

    def accepts(self, predicate: nodes.Node) -> bool:
        """Whether pyarrow evaluates the predicate exactly as DuckDB would."""
        try:
            to_arrow(predicate, self._view.schema)
        except nodes.Untranslatable:
            return False
        return True

    def stream(self, columns: Sequence[int] | None, filters: Sequence[nodes.Node]) -> tuple[object, bool]:
        """The rows for which all `filters` hold, with just `columns`."""
        schema = self._view.schema
        wanted = schema if columns is None else pa.schema([schema.field(at) for at in columns])
        tested = [name for name in _find_columns(filters) if name not in wanted.names]
        wide = pa.schema([*wanted, *(schema.field(name) for name in tested)])
        terms = [to_arrow(predicate, schema) for predicate in filters]
        mask = functools.reduce(operator.and_, terms) if terms else None
        rows = self._filtered(self._rows(filters, wide), mask, wanted.names)
        return pa.RecordBatchReader.from_batches(wanted, rows).__arrow_c_stream__(), True

    def _filtered(self, rows: Iterator[pa.RecordBatch], mask: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if mask is None:
                yield batch
            else:
                yield from pa.Table.from_batches([batch]).filter(mask).select(names).to_batches()

    def _rows(self, filters: Sequence[nodes.Node], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        view, reader = self._view, self._snapshot.store.reader
        model, full = view.entry.definition.model, view.stored_schema
        asked = find_key_predicate(filters, model, view.schema)
        bounds = view.bounds()
        if bounds is not None and asked.after is not None:
            bounds = replace(bounds, after=asked.after)
        if bounds is not None and asked.upto is not None:
            bounds = replace(bounds, upto=min(bounds.upto, asked.upto))
        selection = view.select(bounds)
        if asked.keys is not None:
            found = find_row_ranges(selection.segments, asked.keys, self._snapshot.directories, view.sorted_by)
            count, stored = sum(p.stop - p.start for p in found), sum(s.rows for s in view.segments)
            if count <= PROBE_ROWS and count <= max(1000, PROBE_SHARE * stored):
                yield from read_matching(found, selection, asked.keys, model, full, schema, reader).to_batches()
                return
        yield from scan_segments(selection, model, full, schema, reader)


def _find_columns(predicates: Sequence[nodes.Node]) -> list[str]:
    """The columns that predicates look at."""
    found: dict[str, None] = {}
    pending = list(predicates)
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.Col):
            found[node.parts[0]] = None
        pending.extend(node._children())
    return list(found)


def open_snapshot_connection(
    snapshot: Snapshot, memory: str | None = None, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A locked DuckDB connection over a snapshot.

    Temporary views, tables and macros are the user's; there is no file system, so nothing outside can be reached. The
    function form ``"window"('packets', INTERVAL 10 MINUTE)`` gives a window.
    """
    opened = open_connection(memory, threads)
    tables = {name: pq.ParquetFile(snapshot.store.root / entry.file).read() for name, entry in snapshot.tables.items()}
    delivered = snapshot.store.catalog.read(lambda read: result_store.read_all_results(read, snapshot.version))
    for name, results in delivered.items():
        tables[name] = pa.Table.from_batches(list(results.batches(snapshot.store)), results.schema)
    macro = _window_macro(snapshot)

    def offer(cursor: duckdb.DuckDBPyConnection) -> None:
        for name in snapshot.streams():
            cursor._register_arrow_source(name, StreamSource(snapshot, snapshot.view(name)))
        for name, table in tables.items():
            cursor.register(name, table)
        cursor.execute(macro)

    return _with_cursors(opened, offer)


def _with_cursors(opened: Any, offer: Callable[[Any], None]) -> duckdb.DuckDBPyConnection:
    """The connection, whose cursors see what it sees: relations are registered for one of them alone."""

    class Connection(duckdb.DuckDBPyConnection):
        """Tools such as pandas and ibis ask by a cursor of the connection that they are given."""

        __slots__ = ()

        def cursor(self) -> Any:
            """Another connection to the same."""
            return _with(super().cursor())

        duplicate = cursor

    def _with(made: Any) -> Any:
        offer(made)
        made.__class__ = Connection
        return made

    given: duckdb.DuckDBPyConnection = _with(opened)
    return given


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
    """SQL that refuses a window longer than the stream keeps, to stand before what such a window gives."""
    definition = view.entry.definition
    kept, now, floor = definition.longest_life, view.now, definition.floor
    if now is not None and floor is not None and (kept is None or now - floor < kept):
        kept = now - floor  # its lifetime was lengthened, and older rows are gone
    if kept is None:
        return ""
    words = f"stream {definition.name!r} keeps rows for {times.format_duration(kept)}; a longer window would not be complete"
    return (
        f"CASE WHEN CAST(length AS INTERVAL) > to_microseconds({kept}) THEN error({quote_text(words)}) ELSE '' END || "
    )
