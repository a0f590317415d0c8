"""Predicates on each stream's search key and time, collected from DuckDB's planner and from small tables that it joins.

Dashboards repeat their statements, so the result is cached: it depends on the statement, its parameters, the columns
and the versions of tables, never on a stream's rows.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import TableEntry
from windrow.indexes.bounded_cache import BoundedCache
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
from windrow.queries.sql import sequence_column
from windrow.queries.sql.statement import Reference, Statement, cached_per_template
from windrow.queries.sql.volatility import has_volatile_constant
from windrow.snapshot import Snapshot, StreamSnapshot

SMALL_TABLE_ROWS = 100_000
"""Rows of a table that is worth looking into for keys before a stream is read."""
_MAX_CACHED = 256
"""Statements whose predicates are remembered."""
_MAX_CACHED_ROW_BYTES = 1 << 16
"""Rows of a repeated point lookup are remembered up to this size."""


@dataclass
class CollectedPredicates:
    """The predicates of a statement, and what was found with them in the segments that it read last."""

    by_relation: dict[str, KeyPredicate] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Where keys come from that the statement does not name itself, for EXPLAIN."""
    number: int = field(default_factory=itertools.count().__next__)
    repeated: bool = False
    """Whether the statement was asked before."""
    _located: dict[str, tuple[tuple[Segment, ...], LocatedRows]] = field(default_factory=dict)
    _picks: dict[str, tuple[LocatedRows, SegmentRanges]] = field(default_factory=dict)
    _rows: dict[str, tuple[LocatedRows, pa.Schema, pa.Table]] = field(default_factory=dict)

    def located(
        self, relation: str, segments: tuple[Segment, ...], directories: DirectoryLoader, sorted_by: SortOrders
    ) -> LocatedRows:
        """Where the rows with the wanted keys are; remembered for the segments that were read last."""
        cached = self._located.get(relation)
        if cached is None or not _same_segments(cached[0], segments):
            located = locate_rows(segments, self.by_relation[relation].keys or (), directories, sorted_by)
            cached = self._located[relation] = segments, located
        return cached[1]

    def picks(self, relation: str, located: LocatedRows) -> tuple[SegmentRanges, str | None]:
        """Where they are, by segment, and a name for these keys if the statement is repeated."""
        cached = self._picks.get(relation)
        if cached is None or cached[0] is not located:
            cached = self._picks[relation] = located, located.by_segment()
        return cached[1], f"picked {self.number} {relation}" if self.repeated else None

    def rows(self, relation: str, located: LocatedRows, schema: pa.Schema, read: Callable[[], pa.Table]) -> pa.Table:
        """The located rows, all of which are in the window; few rows of a repeated statement are remembered."""
        cached = self._rows.get(relation)
        if cached is None or cached[0] is not located or not cached[1].equals(schema):
            rows = read()
            if not self.repeated or rows.nbytes > _MAX_CACHED_ROW_BYTES:
                return rows
            cached = self._rows[relation] = located, schema, rows
        return cached[2]


def _same_segments(left: tuple[Segment, ...], right: tuple[Segment, ...]) -> bool:
    # Files are named once for all, ids are not: there may be another warehouse now where one was removed.
    return len(left) == len(right) and all(
        segment is other or (segment.id == other.id and segment.file == other.file)
        for segment, other in zip(left, right, strict=True)
    )


PredicateCache = BoundedCache[Hashable, CollectedPredicates]
"""The predicates of a warehouse's statements, by all that decides them; dropped with the last handle."""


@cached_per_template
def _find_names(statement: Statement) -> frozenset[str]:
    """The names in a statement."""
    return frozenset(token.name.lower() for token in statement.source.tokens if token.is_name)


def _collector_schema(view: StreamSnapshot) -> pa.Schema:
    """The columns to plan with: times in nanoseconds are microseconds, since DuckDB offers no predicates on those."""
    definition, schema = view.entry.definition, view.schema
    kind = schema.field(definition.time).type
    if kind.unit != "ns" or definition.time in definition.key:
        return schema
    index = schema.get_field_index(definition.time)
    return schema.set(index, schema.field(index).with_type(pa.timestamp("us", kind.tz)))


class PredicateCollector:
    """Collects the predicates of one statement.

    Args:
        snapshot: What is seen.
        pooled: Where the statement will run.
        statement: As parsed and confined.
        parameters: Of the statement.
        streams: Its references to streams, by relation.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pooled: PooledCursor,
        statement: Statement,
        parameters: Any,
        streams: dict[str, Reference],
    ) -> None:
        self.snapshot, self.pooled, self.statement, self.parameters = snapshot, pooled, statement, parameters
        self.streams = streams
        self._views = {relation: snapshot.view(reference.name) for relation, reference in streams.items()}

    def collect(self) -> CollectedPredicates:
        """The predicates; a relation without any is not restricted."""
        if not self._may_have_predicates():
            return CollectedPredicates()
        volatile = has_volatile_constant(self.statement)
        key = None if volatile else self._cache_key()
        cache: PredicateCache = self.snapshot.store.shared.attached("predicates", lambda: PredicateCache(_MAX_CACHED))
        cached = cache.get(key)
        if cached is not None:
            cached.repeated = True
            return cached
        collected = None if volatile else self._collect_from_tree()
        if collected is None:
            collected = self._collect_from_planner(volatile=volatile)
        if key is not None and collected is not None:
            cache.put(key, collected)
        return collected or CollectedPredicates()

    def _schemas(self) -> dict[str, pa.Schema]:
        """The columns that DuckDB plans with."""
        schemas = {name: _collector_schema(self._view(name)) for name in self.streams}
        if sequence_column.uses_sequence(self.statement):
            schemas = {
                name: schema.append(pa.field(SEQ, sequence_column.SEQUENCE_TYPE)) for name, schema in schemas.items()
            }
        return schemas

    def _collect_from_tree(self) -> CollectedPredicates | None:
        """The predicates of a point lookup; None if the statement is none."""
        if len(self.streams) != 1 or len(self.statement.references) != 1:
            return None
        (relation,) = self.streams
        definition = self._view(relation).entry.definition
        predicate = point_lookup.find_point_predicate(self.statement, self.parameters, definition)
        return None if predicate is None else CollectedPredicates({relation: predicate})

    def _collect_from_planner(self, *, volatile: bool) -> CollectedPredicates | None:
        """The predicates that DuckDB's planner pushes into the relations; None if it refuses the statement."""
        cursor, schemas = self.pooled.cursor, self._schemas()
        if volatile:  # now() is one instant within a transaction: the statement runs with what it was planned with
            cursor.execute("BEGIN TRANSACTION")
        try:
            self.pooled.drop(schemas)
            return self._find_predicates(
                schemas, arrow_source.collect_predicates(cursor, self.statement.sql, self.parameters, schemas)
            )
        except (duckdb.Error, LookupError, TypeError, ValueError):
            if volatile:
                cursor.execute("ROLLBACK")
            return None  # the statement itself will say what is wrong with it, or with its parameters

    def _may_have_predicates(self) -> bool:
        """Whether the statement names a search key or time column at all, so that a predicate on one is possible."""
        words = _find_names(self.statement)
        for name in self.streams:
            definition = self._view(name).entry.definition
            if any(column.lower() in words for column in (definition.time, *definition.key)):
                return True
        return False

    def _cache_key(self) -> Hashable | None:
        """All that decides the predicates; None if it cannot be hashed."""
        if self._reads_results():
            return None  # the query that wrote them may be dropped, and another one be added under its name
        parameters = self.parameters
        values = tuple(parameters.items()) if isinstance(parameters, dict) else tuple(parameters or ())
        streams = []
        for relation in self.streams:
            entry = self._view(relation).entry
            definition = entry.definition
            streams.append((relation, entry.id, definition.time, definition.key, definition.schema_bytes))
        tables = tuple(sorted([entry.file for entry in self.snapshot.tables.values()]))
        key = self.statement.sql, tuple(map(type, values)), values, tuple(streams), tables
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _find_predicates(self, schemas: dict[str, pa.Schema], pushed: dict[str, Any]) -> CollectedPredicates:
        among, origins = self._join_keys()
        by_relation = {
            name: find_key_predicate(
                pushed.get(name, ()), self._view(name).entry.definition.model, schemas[name], values
            )
            for name in self.streams
            if (values := among.get(name)) or name in pushed
        }
        return CollectedPredicates(by_relation, origins)

    def _join_keys(self) -> tuple[dict[str, dict[str, pa.Array]], dict[str, str]]:
        """Values that the search keys of streams must have because of small tables, by relation and column."""
        tables = {r.relation: r for r in self.statement.references if not r.schema and r.relation not in self.streams}
        keys = {name: self._view(name).entry.definition.key for name in self.streams}
        values_by_relation: dict[str, dict[str, pa.Array]] = {}
        origins: dict[str, str] = {}
        if not tables or not any(keys.values()) or self._reads_results():
            return values_by_relation, origins
        columns: dict[str, Sequence[str]] = {name: self._view(name).schema.names for name in self.streams}
        columns |= {name: read_table_schema(self._table(reference)).names for name, reference in tables.items()}
        small = [name for name, reference in tables.items() if self._table(reference).rows <= SMALL_TABLE_ROWS]
        for source in KeySourceFinder(self.statement, self.parameters, keys, small, columns).sources():
            values = self._values(source)
            if values is not None:
                values_by_relation.setdefault(source.relation, {})[source.column] = values
                origins[source.relation] = f" from {source.table}.{source.table_column}"
        return values_by_relation, origins

    def _values(self, source: KeySource) -> pa.Array | None:
        """What a key source gives; None if that is too much, or cannot be computed by itself."""
        sql, cursor = f"{source.sql} LIMIT {MAX_KEY_POINTS + 1}", self.pooled.cursor
        values = cursor.sql(sql, params=source.parameters or None).to_arrow_table().column(0).combine_chunks()
        return values if len(values) <= MAX_KEY_POINTS else None

    def _reads_results(self) -> bool:
        """Whether the statement names something that is neither stream nor table: what a periodic query delivered."""
        names = {name.lower() for name in (*self.snapshot.streams(), *self.snapshot.tables)}
        return any(not r.schema and r.name.lower() not in names for r in self.statement.references)

    def _table(self, reference: Reference) -> TableEntry:
        names = {name.lower(): name for name in self.snapshot.tables}
        return self.snapshot.tables[names[reference.name.lower()]]

    def _view(self, relation: str) -> StreamSnapshot:
        return self._views[relation]
