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
from windrow.indexes.column_cache import Picks
from windrow.indexes.probe import Directories, Located, Sorting, locate
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import Segment
from windrow.queries.engine import arrow_source
from windrow.queries.engine.cursor_pool import Desk
from windrow.queries.planner import point_lookup
from windrow.queries.planner.join_keys import Finder, KeySource
from windrow.queries.planner.key_ranges import MOST_POINTS, Asked, asked_of
from windrow.queries.planner.scan_sql import table_schema
from windrow.queries.sql import macros
from windrow.queries.sql.statement import Reference, Statement, by_likeness
from windrow.queries.sql.volatility import asks_the_clock
from windrow.snapshot import Snapshot, StreamView

SMALL_TABLE = 100_000
"""Rows of a table that is worth looking into for keys before a stream is read."""
_REMEMBERED = 256
_FEW_BYTES = 1 << 16


@dataclass
class Heard:
    """What a statement asks, by relation."""

    asked: dict[str, Asked] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Where keys come from that the statement does not name itself, in words."""
    number: int = field(default_factory=itertools.count().__next__)
    again: bool = False
    """Whether it was remembered."""
    _found: dict[str, tuple[tuple[Segment, ...], Located]] = field(default_factory=dict)
    _picks: dict[str, tuple[Located, Picks]] = field(default_factory=dict)
    _rows: dict[str, tuple[Located, pa.Schema, pa.Table]] = field(default_factory=dict)

    def located(
        self, relation: str, segments: tuple[Segment, ...], directories: Directories, sorted_by: Sorting
    ) -> Located:
        """Where the rows with the wanted keys are; known already if the same segments were asked last."""
        known = self._found.get(relation)
        if known is None or not _same(known[0], segments):
            found = locate(segments, self.asked[relation].keys or (), directories, sorted_by)
            known = self._found[relation] = segments, found
        return known[1]

    def picks(self, relation: str, found: Located) -> tuple[Picks, str | None]:
        """Where they are, by segment, and a name for these keys if they are asked for again and again."""
        known = self._picks.get(relation)
        if known is None or known[0] is not found:
            known = self._picks[relation] = found, found.by_segment()
        return known[1], f"picked {self.number} {relation}" if self.again else None

    def rows(self, relation: str, found: Located, schema: pa.Schema, read: Callable[[], pa.Table]) -> pa.Table:
        """The rows that are there, all of which are in the window; if they are few they are remembered too."""
        known = self._rows.get(relation)
        if known is None or known[0] is not found or not known[1].equals(schema):
            rows = read()
            if not self.again or rows.nbytes > _FEW_BYTES:
                return rows
            known = self._rows[relation] = found, schema, rows
        return known[2]


def _same(some: tuple[Segment, ...], others: tuple[Segment, ...]) -> bool:
    # Files are named once for all, ids are not: there may be another warehouse now where one was removed.
    return len(some) == len(others) and all(
        one is other or (one.id == other.id and one.file == other.file) for one, other in zip(some, others, strict=True)
    )


_guard = threading.Lock()
_remembered: OrderedDict[Hashable, Heard] = OrderedDict()


def _remember(question: Hashable, heard: Heard) -> None:
    with _guard:
        _remembered[question] = heard
        while len(_remembered) > _REMEMBERED:
            _remembered.popitem(last=False)


@by_likeness
def _words(statement: Statement) -> frozenset[str]:
    """The names in a statement."""
    return frozenset(token.name.lower() for token in statement.source.tokens if token.named)


def _listening_schema(view: StreamView) -> pa.Schema:
    """What a stand-in shows: times in nanoseconds as microseconds, since DuckDB keeps predicates on the former."""
    definition, schema = view.entry.definition, view.schema
    kind = schema.field(definition.time).type
    if kind.unit != "ns" or definition.time in definition.key:
        return schema
    at = schema.get_field_index(definition.time)
    return schema.set(at, schema.field(at).with_type(pa.timestamp("us", kind.tz)))


class Listener:
    """Listens to one statement.

    Args:
        snapshot: What is seen.
        desk: Where the statement will run.
        statement: As parsed and confined.
        parameters: Of the statement.
        streams: Its references to streams, by relation.
    """

    def __init__(
        self, snapshot: Snapshot, desk: Desk, statement: Statement, parameters: Any, streams: dict[str, Reference]
    ) -> None:
        self.snapshot, self.desk, self.statement, self.parameters = snapshot, desk, statement, parameters
        self.streams = streams
        self._views = {relation: snapshot.view(reference.name) for relation, reference in streams.items()}

    def listen(self) -> Heard:
        """What the statement asks; nothing of it is restricted where nothing was heard."""
        if not self._worth_listening():
            return Heard()
        clocked = asks_the_clock(self.statement)
        question = None if clocked else self._question()
        known = _remembered.get(question)
        if known is not None:
            known.again = True
            return known
        heard = None if clocked else self._pointed()
        if heard is None:
            heard = self._listened(clocked=clocked)
        if question is not None and heard is not None:
            _remember(question, heard)
        return heard or Heard()

    def _schemas(self) -> dict[str, pa.Schema]:
        """What the stand-ins show."""
        schemas = {name: _listening_schema(self._view(name)) for name in self.streams}
        if macros.asks_for_order(self.statement):
            schemas = {name: schema.append(pa.field(SEQ, macros.KIND)) for name, schema in schemas.items()}
        return schemas

    def _pointed(self) -> Heard | None:
        """What a statement asks that says it so plainly that DuckDB need not be asked."""
        if len(self.streams) != 1 or len(self.statement.references) != 1:
            return None
        (relation,) = self.streams
        asked = point_lookup.asked(self.statement, self.parameters, self._view(relation).entry.definition)
        return None if asked is None else Heard({relation: asked})

    def _listened(self, *, clocked: bool) -> Heard | None:
        """What DuckDB's planner says that the statement asks; None if it has something to say against it."""
        cursor, schemas = self.desk.cursor, self._schemas()
        if clocked:  # now() is one instant within a transaction: what was planned with is what will be run with
            cursor.execute("BEGIN TRANSACTION")
        try:
            self.desk.clear(schemas)
            return self._understood(schemas, arrow_source.listen(cursor, self.statement.sql, self.parameters, schemas))
        except (duckdb.Error, LookupError, TypeError, ValueError):
            if clocked:
                cursor.execute("ROLLBACK")
            return None  # the statement itself will say what is wrong with it, or with its parameters

    def _worth_listening(self) -> bool:
        """Whether the statement names a search key or time column at all, so that a predicate on one is possible."""
        words = _words(self.statement)
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

    def _understood(self, schemas: dict[str, pa.Schema], heard: dict[str, Any]) -> Heard:
        among, origins = self._join_keys()
        asked = {
            name: asked_of(heard.get(name, ()), self._view(name).entry.definition.model, schemas[name], own)
            for name in self.streams
            if (own := among.get(name)) or name in heard
        }
        return Heard(asked, origins)

    def _join_keys(self) -> tuple[dict[str, dict[str, pa.Array]], dict[str, str]]:
        """Values that the search keys of streams must have because of small tables, by relation and column."""
        tables = {r.relation: r for r in self.statement.references if not r.schema and r.relation not in self.streams}
        keys = {name: self._view(name).entry.definition.key for name in self.streams}
        found: dict[str, dict[str, pa.Array]] = {}
        origins: dict[str, str] = {}
        if not tables or not any(keys.values()) or self._reads_results():
            return found, origins
        columns: dict[str, Sequence[str]] = {name: self._view(name).schema.names for name in self.streams}
        columns |= {name: table_schema(self._table(reference)).names for name, reference in tables.items()}
        small = [name for name, reference in tables.items() if self._table(reference).rows <= SMALL_TABLE]
        for source in Finder(self.statement, self.parameters, keys, small, columns).sources():
            values = self._values(source)
            if values is not None:
                found.setdefault(source.relation, {})[source.column] = values
                origins[source.relation] = f" from {source.table}.{source.table_column}"
        return found, origins

    def _values(self, source: KeySource) -> pa.Array | None:
        """What a key source gives; None if that is too much, or cannot be computed by itself."""
        sql, cursor = f"{source.sql} LIMIT {MOST_POINTS + 1}", self.desk.cursor
        given = cursor.sql(sql, params=source.parameters or None).to_arrow_table().column(0).combine_chunks()
        return given if len(given) <= MOST_POINTS else None

    def _reads_results(self) -> bool:
        """Whether the statement names something that is neither stream nor table: what a periodic query delivered."""
        known = {name.lower() for name in (*self.snapshot.streams(), *self.snapshot.tables)}
        return any(not r.schema and r.name.lower() not in known for r in self.statement.references)

    def _table(self, reference: Reference) -> TableEntry:
        names = {name.lower(): name for name in self.snapshot.tables}
        return self.snapshot.tables[names[reference.name.lower()]]

    def _view(self, relation: str) -> StreamView:
        return self._views[relation]
