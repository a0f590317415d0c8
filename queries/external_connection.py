"""A snapshot as a DuckDB connection of the user's own: its streams, tables and results are there by name.

Predicates on the search key are looked up in the directories and those on time leave segments out, as in `wh.sql`.
"""

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import duckdb
import pyarrow as pa

from windrow import times
from windrow.errors import QueryError
from windrow.indexes.probe import find_row_ranges, read_matching
from windrow.indexes.scan import scan_segments
from windrow.queries.engine.arrow_source import FilteringSource, Predicate, register_source
from windrow.queries.engine.instance import open_connection
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.key_ranges import find_key_predicate
from windrow.queries.planner.planner import PROBE_FEW_ROWS, PROBE_ROWS, PROBE_SHARE
from windrow.queries.sql.window_spec import AllRows
from windrow.queries.statement_context import NO_CONTEXT, StatementContext
from windrow.snapshot import Snapshot, StreamSnapshot

Offer = Callable[[Any], None]
"""Registers one relation on a cursor."""
Windows = Mapping[str, list[str | None]]


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
    loaded: dict[str, pa.Table] = {}

    def offer_stream(name: str, cursor: Any) -> None:
        register_source(cursor, name, _stream_source(snapshot, snapshot.view(name)))

    def offer_table(name: str, cursor: Any) -> None:
        if name not in loaded:
            if name in results:
                batches, schema = results[name].batches(snapshot.store), results[name].schema
            else:
                file, reader = snapshot.tables[name].file, snapshot.store.reader
                batches, schema = reader.read_file(file), reader.open(file)[0].schema_arrow
            loaded[name] = pa.Table.from_batches(list(batches), schema)
        cursor.register(name, loaded[name])

    def offer_summary(name: str, cursor: Any) -> None:
        with suppress(QueryError):  # it has no bounds of all that lives, so there is no such relation
            cursor.register(name, summaries[name].read(snapshot, AllRows()))

    results, summaries = context.find_results(snapshot, None), context.find_summaries(snapshot, None)
    offers: dict[str, Offer] = {name.lower(): partial(offer_stream, name) for name in snapshot.streams()}
    offers |= {name.lower(): partial(offer_table, name) for name in (*snapshot.tables, *results)}
    offers |= {name: partial(offer_summary, name) for name in summaries if summaries[name].stream in snapshot.streams()}
    windows = {name.lower(): _window_sql(snapshot.view(name)) for name in snapshot.streams()}
    connection: duckdb.DuckDBPyConnection = _make_connection(open_connection(memory, threads), offers, windows)
    return connection


def select_from(name: str, rows: pa.Table, statement: str) -> pa.Table:
    """What a user's statement makes of rows that it knows as `name`; it reaches nothing else."""
    connection = open_connection(None, None)
    try:
        connection.register(name, rows)
        return connection.sql(statement).to_arrow_table()
    except (duckdb.Error, AttributeError) as error:
        raise QueryError(f"{name} cannot be selected from like that: {str(error).splitlines()[0]}") from None
    finally:
        connection.close()


class _Relations:
    """The relations of a snapshot, each registered on a connection when a statement may need it.

    A thousand would take half a second. DuckDB registers relations for one connection only.
    """

    def __init__(self, connection: Any, offers: Mapping[str, Offer]) -> None:
        self._connection, self._offers, self._waiting = weakref.ref(connection), offers, dict(offers)

    def offer(self, names: Iterable[str]) -> bool:
        """Register relations that are not there yet; False if all are."""
        connection, requested = self._connection(), self._waiting.keys() & names
        for name in requested:
            self._waiting.pop(name)(connection)
        return bool(requested)

    def _can_offer_all(self) -> bool:
        """Whether more relations could be registered: not in a transaction that an error has ended."""
        try:
            return self.offer(self._offers)
        except duckdb.TransactionException:
            return False

    def begin_anew(self) -> None:
        """After a transaction was rolled back, which takes relations away that were registered in it."""
        self._waiting.update(self._offers)

    def offering_all(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the connection, or of a relation of it, that may read any relation."""

        @wraps(method)
        def call(owner: Any, *arguments: Any, **options: Any) -> Any:
            self.offer(self._offers)
            with _advice_on_changes():
                return method(owner, *arguments, **options)

        return call

    def offering_named(self, method: Callable[..., Any], relation_class: type) -> Callable[..., Any]:
        """A method of the connection that runs a statement over the relations that its text names."""

        @wraps(method)
        def call(connection: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(query, str) and _ROLLBACK.match(query):
                self.begin_anew()
                return method(connection, query, *arguments, **options)
            words = _find_words(query)
            self.offer(self._offers if words is None else words)
            with _advice_on_changes():
                try:
                    answer = method(connection, query, *arguments, **options)
                except duckdb.CatalogException:
                    if not self._can_offer_all():
                        raise
                    answer = method(connection, query, *arguments, **options)  # it was refused before it did anything
            if isinstance(answer, duckdb.DuckDBPyRelation):
                answer.__class__ = relation_class
            return answer

        return call


def _make_connection(cursor: Any, offers: Mapping[str, Offer], windows: Windows) -> Any:
    """A connection whose relations are registered when a statement may need them; every cursor begins anew."""
    relations = _Relations(cursor, offers)

    class Relation(duckdb.DuckDBPyRelation):
        """What `sql` gives: to be read it needs what its text names; what is made of it may name any relation."""

        __slots__ = ()

    class Connection(duckdb.DuckDBPyConnection):
        """Tools such as pandas and ibis query through a cursor of the connection that they are given."""

        __slots__ = ()

        def cursor(self) -> Any:
            """Another connection to the same snapshot."""
            return _make_connection(super().cursor(), offers, windows)

        duplicate = cursor

        def rollback(self) -> Any:
            """End a transaction; relations that were registered in it are registered again when they are named."""
            relations.begin_anew()
            return super().rollback()

    for name in ("execute", "sql", "query", "from_query"):
        setattr(Connection, name, relations.offering_named(getattr(duckdb.DuckDBPyConnection, name), Relation))
    # What these give can read more relations later, which no text tells beforehand.
    for name in ("table", "view", "executemany", "table_function"):
        setattr(Connection, name, relations.offering_all(getattr(duckdb.DuckDBPyConnection, name)))
    for name, method in vars(duckdb.DuckDBPyRelation).items():
        if callable(method) and not name.startswith("_") and name not in _READING:
            setattr(Relation, name, relations.offering_all(method))
    cursor.execute(
        "SET VARIABLE windrow_windows = map(?::VARCHAR[], ?::VARCHAR[][])", [[*windows], [*windows.values()]]
    )
    cursor.execute(_WINDOW_MACRO)
    cursor.__class__ = Connection
    return cursor


def _find_words(query: Any) -> set[str] | None:
    """The words of one statement, among them the relations that it names; None if it may need others too."""
    if not isinstance(query, str) or ";" in query.rstrip().rstrip(";") or _ABOUT_RELATIONS.search(query):
        return None
    return {word.lower() for pattern in (r"\w+", r"[\w-]+") for word in re.findall(pattern, query)}


@contextmanager
def _advice_on_changes() -> Iterator[None]:
    """Where DuckDB refuses a change of a relation, say what to do instead."""
    try:
        yield
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        if not _REFUSED_CHANGE.search(str(error)):
            raise
        advice = "a snapshot is only read; add rows with wh.append(), or change a copy: CREATE TABLE … AS SELECT …"
        raise type(error)(f"{error}: {advice}") from None


_REFUSED_CHANGE = re.compile(r"(?i)is not an? table|base table|can only modify view|is of type view")
_READING = frozenset(
    ("fetchall", "df", "to_df", "fetchdf", "arrow", "to_arrow_table", "fetch_arrow_table", "pl", "show")
)
"""What reads a whole relation and makes no other of it."""
_ROLLBACK = re.compile(r"(?i)\s*(rollback|abort)\b")
_ABOUT_RELATIONS = re.compile(r"(?i)\b(show|describe|desc|summarize|pragma|information_schema|duckdb_|pg_|sqlite_)")
"""Statements that tell which relations there are."""
_WINDOW_MACRO = """
    CREATE TEMP MACRO "window"(stream, length) AS TABLE FROM query(
        CASE WHEN getvariable('windrow_windows')[lower(stream)] IS NULL THEN error('there is no stream ' || stream)
        WHEN CAST(length AS INTERVAL) <= to_microseconds(0) THEN error('a window must be longer than zero')
        WHEN CAST(length AS INTERVAL) > to_microseconds(getvariable('windrow_windows')[lower(stream)][2]::BIGINT)
        THEN error(getvariable('windrow_windows')[lower(stream)][3])
        ELSE replace(getvariable('windrow_windows')[lower(stream)][1], '{length}', length::VARCHAR) END)
"""


def _window_sql(view: StreamSnapshot) -> list[str | None]:
    """For the function ``window``: a stream's SQL, the longest window in microseconds, and what is said beyond that."""
    definition = view.entry.definition
    kind = view.schema.field(definition.time).type
    clock = f"make_timestamp({view.now or 0})" + (" AT TIME ZONE 'UTC'" if kind.tz is not None else "")
    start = f"{clock} - INTERVAL '{{length}}'"
    if (
        kind.tz is not None and kind.unit == "ns"
    ):  # DuckDB compares times with a zone in nanoseconds only with their like
        start = f"CAST({start} AS TIMESTAMPTZ_NS)"
    sql = f"SELECT * FROM {quote_name(view.name)} WHERE {quote_name(definition.time)} > {start}"
    lifetime, now, floor = definition.longest_life, view.now, definition.floor
    if now is not None and floor is not None and (lifetime is None or now - floor < lifetime):
        lifetime = now - floor  # its lifetime was lengthened, and older rows are gone
    if lifetime is None:
        return [sql, None, None]
    shown = times.format_duration(lifetime)
    return [sql, str(lifetime), f"stream {view.name!r} keeps rows for {shown}; a longer window would not be complete"]
