"""What a statement asks of each stream's search key and time: heard from DuckDB's planner, and from tables it joins.

Dashboards ask the same again and again, so what was heard is remembered: it depends on the statement, its parameters,
the columns and the versions of tables, never on a stream's rows.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import TableEntry
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.probe import DirectoryLoader, LocatedRows, SortOrders, locate_rows
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import Segment
from windrow.queries.engine import arrow_source
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.planner import point_lookup
from windrow.queries.planner.join_keys import KeySource, KeySourceFinder
from windrow.queries.planner.key_ranges import MAX_KEY_POINTS, KeyPredicate, find_key_predicate
from windrow.queries.planner.scan_sql import read_table_schema
from windrow.queries.sql import macros
from windrow.queries.sql.statement import Reference, Statement, cached_per_template
from windrow.queries.sql.volatility import has_volatile_constant
from windrow.snapshot import Snapshot, StreamSnapshot

SMALL_TABLE_ROWS = 100_000
"""Rows of a table that is worth looking into for keys before a stream is read."""
_MAX_CACHED = 256
_MAX_CACHED_ROW_BYTES = 1 << 16


@dataclass
class CollectedPredicates:
    """What a statement asks, by relation."""

    asked: dict[str, KeyPredicate] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Where keys come from that the statement does not name itself, in words."""
    number: int = field(default_factory=itertools.count().__next__)
    again: bool = False
    """Whether it was remembered."""
    _found: dict[str, tuple[tuple[Segment, ...], LocatedRows]] = field(default_factory=dict)
    _picks: dict[str, tuple[LocatedRows, SegmentRanges]] = field(default_factory=dict)
    _rows: dict[str, tuple[LocatedRows, pa.Schema, pa.Table]] = field(default_factory=dict)

    def located(
        self, relation: str, segments: tuple[Segment, ...], directories: DirectoryLoader, sorted_by: SortOrders
    ) -> LocatedRows:
        """Where the rows with the wanted keys are; known already if the same segments were asked last."""
        known = self._found.get(relation)
        if known is None or not _same_segments(known[0], segments):
            found = locate_rows(segments, self.asked[relation].keys or (), directories, sorted_by)
            known = self._found[relation] = segments, found
        return known[1]

    def picks(self, relation: str, found: LocatedRows) -> tuple[SegmentRanges, str | None]:
        """Where they are, by segment, and a name for these keys if they are asked for again and again."""
        known = self._picks.get(relation)
        if known is None or known[0] is not found:
            known = self._picks[relation] = found, found.by_segment()
        return known[1], f"picked {self.number} {relation}" if self.again else None

    def rows(self, relation: str, found: LocatedRows, schema: pa.Schema, read: Callable[[], pa.Table]) -> pa.Table:
        """The rows that are there, all of which are in the window; if they are few they are remembered too."""
        known = self._rows.get(relation)
        if known is None or known[0] is not found or not known[1].equals(schema):
            rows = read()
            if not self.again or rows.nbytes > _MAX_CACHED_ROW_BYTES:
                return rows
            known = self._rows[relation] = found, schema, rows
        return known[2]


def _same_segments(some: tuple[Segment, ...], others: tuple[Segment, ...]) -> bool:
    # Files are named once for all, ids are not: there may be another warehouse now where one was removed.
    return len(some) == len(others) and all(
        one is other or (one.id == other.id and one.file == other.file) for one, other in zip(some, others, strict=True)
    )


_guard = threading.Lock()
_cache: OrderedDict[Hashable, CollectedPredicates] = OrderedDict()


def _cache_predicates(question: Hashable, heard: CollectedPredicates) -> None:
    with _guard:
        _cache[question] = heard
        while len(_cache) > _MAX_CACHED:
            _cache.popitem(last=False)


@cached_per_template
def _find_names(statement: Statement) -> frozenset[str]:
    """The names in a statement."""
    return frozenset(token.name.lower() for token in statement.source.tokens if token.named)


def _collector_schema(view: StreamSnapshot) -> pa.Schema:
    """What a stand-in shows: times in nanoseconds as microseconds, since DuckDB keeps predicates on the former."""
    definition, schema = view.entry.definition, view.schema
    kind = schema.field(definition.time).type
    if kind.unit != "ns" or definition.time in definition.key:
        return schema
    at = schema.get_field_index(definition.time)
    return schema.set(at, schema.field(at).with_type(pa.timestamp("us", kind.tz)))


class PredicateCollector:
    """Listens to one statement.

    Args:
        snapshot: What is seen.
        desk: Where the statement will run.
        statement: As parsed and confined.
        parameters: Of the statement.
        streams: Its references to streams, by relation.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        desk: PooledCursor,
        statement: Statement,
        parameters: Any,
        streams: dict[str, Reference],
    ) -> None:
        self.snapshot, self.desk, self.statement, self.parameters = snapshot, desk, statement, parameters
        self.streams = streams
        self._views = {relation: snapshot.view(reference.name) for relation, reference in streams.items()}

    def listen(self) -> CollectedPredicates:
        """What the statement asks; nothing of it is restricted where nothing was heard."""
        if not self._worth_listening():
            return CollectedPredicates()
        clocked = has_volatile_constant(self.statement)
        question = None if clocked else self._question()
        known = _cache.get(question)
        if known is not None:
            known.again = True
            return known
        heard = None if clocked else self._pointed()
        if heard is None:
            heard = self._listened(clocked=clocked)
        if question is not None and heard is not None:
            _cache_predicates(question, heard)
        return heard or CollectedPredicates()

    def _schemas(self) -> dict[str, pa.Schema]:
        """What the stand-ins show."""
        schemas = {name: _collector_schema(self._view(name)) for name in self.streams}
        if macros.uses_sequence(self.statement):
            schemas = {name: schema.append(pa.field(SEQ, macros.SEQUENCE_TYPE)) for name, schema in schemas.items()}
        return schemas

    def _pointed(self) -> CollectedPredicates | None:
        """What a statement asks that says it so plainly that DuckDB need not be asked."""
        if len(self.streams) != 1 or len(self.statement.references) != 1:
            return None
        (relation,) = self.streams
        asked = point_lookup.find_point_predicate(
            self.statement, self.parameters, self._view(relation).entry.definition
        )
        return None if asked is None else CollectedPredicates({relation: asked})

    def _listened(self, *, clocked: bool) -> CollectedPredicates | None:
        """What DuckDB's planner says that the statement asks; None if it has something to say against it."""
        cursor, schemas = self.desk.cursor, self._schemas()
        if clocked:  # now() is one instant within a transaction: what was planned with is what will be run with
            cursor.execute("BEGIN TRANSACTION")
        try:
            self.desk.clear(schemas)
            return self._understood(
                schemas, arrow_source.collect_predicates(cursor, self.statement.sql, self.parameters, schemas)
            )
        except (duckdb.Error, LookupError, TypeError, ValueError):
            if clocked:
                cursor.execute("ROLLBACK")
            return None  # the statement itself will say what is wrong with it, or with its parameters

    def _worth_listening(self) -> bool:
        """Whether the statement names a search key or time column at all, so that a predicate on one is possible."""
        words = _find_names(self.statement)
        for name in self.streams:
            definition = self._view(name).entry.definition
            if any(column.lower() in words for column in (definition.time, *definition.key)):
                return True
        return False

    def _question(self) -> Hashable | None:
        """All that decides what is heard; None if it cannot be compared."""
        if self._reads_results():
            return None  # the query that wrote them may be dropped, and another one be added under its name
        given = self.parameters
        values = tuple(given.items()) if isinstance(given, dict) else tuple(given or ())
        streams = []
        for relation in self.streams:
            entry = self._view(relation).entry
            definition = entry.definition
            streams.append((relation, entry.id, definition.time, definition.key, definition.schema_bytes))
        tables = tuple(sorted([entry.file for entry in self.snapshot.tables.values()]))
        root = str(self.snapshot.store.root)
        question = root, self.statement.sql, tuple(map(type, values)), values, tuple(streams), tables
        try:
            hash(question)
        except TypeError:
            return None
        return question

    def _understood(self, schemas: dict[str, pa.Schema], heard: dict[str, Any]) -> CollectedPredicates:
        among, origins = self._join_keys()
        asked = {
            name: find_key_predicate(heard.get(name, ()), self._view(name).entry.definition.model, schemas[name], own)
            for name in self.streams
            if (own := among.get(name)) or name in heard
        }
        return CollectedPredicates(asked, origins)

    def _join_keys(self) -> tuple[dict[str, dict[str, pa.Array]], dict[str, str]]:
        """Values that the search keys of streams must have because of small tables, by relation and column."""
        tables = {r.relation: r for r in self.statement.references if not r.schema and r.relation not in self.streams}
        keys = {name: self._view(name).entry.definition.key for name in self.streams}
        found: dict[str, dict[str, pa.Array]] = {}
        origins: dict[str, str] = {}
        if not tables or not any(keys.values()) or self._reads_results():
            return found, origins
        columns: dict[str, Sequence[str]] = {name: self._view(name).schema.names for name in self.streams}
        columns |= {name: read_table_schema(self._table(reference)).names for name, reference in tables.items()}
        small = [name for name, reference in tables.items() if self._table(reference).rows <= SMALL_TABLE_ROWS]
        for source in KeySourceFinder(self.statement, self.parameters, keys, small, columns).sources():
            values = self._values(source)
            if values is not None:
                found.setdefault(source.relation, {})[source.column] = values
                origins[source.relation] = f" from {source.table}.{source.table_column}"
        return found, origins

    def _values(self, source: KeySource) -> pa.Array | None:
        """What a key source gives; None if that is too much, or cannot be computed by itself."""
        sql, cursor = f"{source.sql} LIMIT {MAX_KEY_POINTS + 1}", self.desk.cursor
        given = cursor.sql(sql, params=source.parameters or None).to_arrow_table().column(0).combine_chunks()
        return given if len(given) <= MAX_KEY_POINTS else None

    def _reads_results(self) -> bool:
        """Whether the statement names something that is neither stream nor table: what a periodic query delivered."""
        known = {name.lower() for name in (*self.snapshot.streams(), *self.snapshot.tables)}
        return any(not r.schema and r.name.lower() not in known for r in self.statement.references)

    def _table(self, reference: Reference) -> TableEntry:
        names = {name.lower(): name for name in self.snapshot.tables}
        return self.snapshot.tables[names[reference.name.lower()]]

    def _view(self, relation: str) -> StreamSnapshot:
        return self._views[relation]
