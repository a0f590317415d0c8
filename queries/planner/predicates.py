"""Predicates on each stream's search key and time, collected from DuckDB's planner and from small tables that it joins.

Dashboards repeat their statements, so the result is cached: it depends on the statement, its parameters, the columns
and the versions of tables, never on a stream's rows.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import TableEntry
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.probe import DirectoryLoader, LocatedRows, SortOrders, locate_rows
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import Segment
from windrow.queries.engine import arrow_source
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.planner import point_lookup
from windrow.queries.planner.key_ranges import MAX_KEY_POINTS, KeyPredicate, find_key_predicate
from windrow.queries.planner.scan_sql import read_table_schema
from windrow.queries.sql.analysis import SEQUENCE_TYPE, analyse
from windrow.queries.sql.statement import Reference, Statement
from windrow.snapshot import Snapshot, StreamSnapshot

if TYPE_CHECKING:
    from windrow.queries.planner.join_keys import ColumnsByRelation, KeySource
    from windrow.queries.planner.join_ranges import JoinedColumns

SMALL_TABLE_ROWS = 100_000
"""Rows of a table that is looked into for keys before a stream is read. Not measured: bounds the time of planning."""
_MAX_CACHED = 256
"""Statements whose predicates are remembered. Not measured: a bound on memory."""


@dataclass
class CollectedPredicates:
    """The predicates of a statement, and what was found with them in the segments that it read last."""

    by_relation: dict[str, KeyPredicate] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Where keys come from that the statement does not name itself, for EXPLAIN."""
    joined: "tuple[JoinedColumns, ...]" = ()
    """Columns of streams that inner and semi joins compare."""
    _located: dict[str, tuple[tuple[Segment, ...], LocatedRows]] = field(default_factory=dict)

    def located(
        self, relation: str, segments: tuple[Segment, ...], directories: DirectoryLoader, sorted_by: SortOrders
    ) -> LocatedRows:
        """Where the rows with the wanted keys are; remembered for the segments that were read last."""
        cached = self._located.get(relation)
        if cached is None or not _same_segments(cached[0], segments):
            located = locate_rows(segments, self.by_relation[relation].keys or (), directories, sorted_by)
            cached = self._located[relation] = segments, located
        return cached[1]


def _same_segments(left: tuple[Segment, ...], right: tuple[Segment, ...]) -> bool:
    # Files are named once for all, ids are not: there may be another warehouse now where one was removed.
    return len(left) == len(right) and all(
        segment is other or (segment.id == other.id and segment.file == other.file)
        for segment, other in zip(left, right, strict=True)
    )


PredicateCache = BoundedCache[Hashable, CollectedPredicates]
"""The predicates of a warehouse's statements, by all that decides them; dropped with the last handle."""


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
        self._analysis = analyse(statement)
        self._views = {relation: snapshot.view(reference.name) for relation, reference in streams.items()}

    def collect(self) -> CollectedPredicates:
        """The predicates; a relation without any is not restricted."""
        restricted = self._may_have_predicates()
        if not restricted:
            return CollectedPredicates(joined=self._joined_columns() if len(self.streams) > 1 else ())
        volatile = self._analysis.is_volatile
        key = None if volatile else self._cache_key()
        cache: PredicateCache = self.snapshot.store.shared.attached("predicates", lambda: PredicateCache(_MAX_CACHED))
        cached = cache.get(key)
        if cached is not None:
            return cached
        collected = None if volatile else self._collect_from_tree()
        if collected is None:
            collected = self._collect_from_planner(volatile=volatile)
        if len(self.streams) > 1 and collected is not None:
            collected = replace(collected, joined=self._joined_columns())
        if key is not None and collected is not None:
            cache.put(key, collected)
        return collected or CollectedPredicates()

    def _schemas(self) -> dict[str, pa.Schema]:
        """The columns that DuckDB plans with."""
        schemas = {name: _collector_schema(self._view(name)) for name in self.streams}
        if self._analysis.uses_sequence:
            schemas = {name: schema.append(pa.field(SEQ, SEQUENCE_TYPE)) for name, schema in schemas.items()}
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
        """Whether a condition restricts a search key or time column, so that a predicate on one is possible."""
        definitions = [self._view(name).entry.definition for name in self.streams]
        if any(self._analysis.may_restrict((each.time, *each.key)) for each in definitions):
            return True
        tables = self._tables()
        if not tables or self._reads_results():
            return False
        from windrow.queries.planner.join_keys import joins_keys

        keys = tuple((name, each.key) for name, each in zip(self.streams, definitions, strict=True))
        return joins_keys(self.statement, keys, tuple(tables), self._columns(tables))

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
        tables = self._tables()
        keys = {name: self._view(name).entry.definition.key for name in self.streams}
        values_by_relation: dict[str, dict[str, pa.Array]] = {}
        origins: dict[str, str] = {}
        if not tables or not any(keys.values()) or self._reads_results():
            return values_by_relation, origins
        from windrow.queries.planner.join_keys import KeySourceFinder

        columns = dict(self._columns(tables))
        small = [name for name, reference in tables.items() if self._table(reference).rows <= SMALL_TABLE_ROWS]
        for source in KeySourceFinder(self.statement, self.parameters, keys, small, columns).sources():
            values = self._values(source)
            if values is not None:
                values_by_relation.setdefault(source.relation, {})[source.column] = values
                origins[source.relation] = f" from {source.table}.{source.table_column}"
        return values_by_relation, origins

    def _joined_columns(self) -> "tuple[JoinedColumns, ...]":
        """Columns of two streams of which rows count only where they are equal."""
        from windrow.queries.planner.join_keys import find_joined_columns
        from windrow.queries.planner.join_ranges import MAX_COLUMNS, JoinedColumns

        pairs = find_joined_columns(self.statement, self._columns({}))
        return tuple(JoinedColumns(*pair) for pair in pairs[: 2 * MAX_COLUMNS])

    def _tables(self) -> dict[str, Reference]:
        """What is neither a stream nor a system table, by relation."""
        return {r.relation: r for r in self.statement.references if not r.schema and r.relation not in self.streams}

    def _columns(self, tables: dict[str, Reference]) -> "ColumnsByRelation":
        """The columns of the streams and of some tables."""
        columns = [(name, tuple(self._view(name).schema.names)) for name in self.streams]
        columns += [(name, tuple(read_table_schema(self._table(of)).names)) for name, of in tables.items()]
        return tuple(columns)

    def _values(self, source: "KeySource") -> pa.Array | None:
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
