"""Relations that DuckDB reads from Python: it tells them its predicates and asks them for rows while a statement runs.

DuckDB has this only as a private hook of its Python package: the package ``duckdb._sources`` and the methods
``_register_arrow_source`` and ``_submit`` of a connection. This is the only module that touches it (a test of the
structure checks that). When a new DuckDB changes the hook, ``tests/queries/engine/test_arrow_source.py`` fails and says
which part; then mend this module, or keep the pin of DuckDB in ``pyproject.toml`` until it is mended. Without the hook
relations could be registered as Arrow datasets, at the cost of pruning by search key: `collect_predicates` would return
nothing, and statements would read all segments of their windows.
"""

import contextlib
import functools
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
from duckdb._sources import ArrowScanSource, nodes
from duckdb._sources.to_arrow import to_arrow

from windrow.indexes.bounded_cache import BoundedCache
from windrow.queries.engine.types import cast_to_schema, check_arrow_type, output_columns, quote_name, to_duckdb_schema

Predicate = nodes.Node
Binary, Column, Literal, In, NullTest = nodes.Binary, nodes.Col, nodes.Lit, nodes.In, nodes.Postfix
"""The nodes of a predicate, as DuckDB gives them: see the docstrings of its classes."""
ReadRows = Callable[[pa.Schema], Iterable[pa.RecordBatch]]
ReadFiltered = Callable[[Sequence[Predicate], pa.Schema], Iterator[pa.RecordBatch]]
"""Gives at least the rows for which the predicates hold, with the columns of a schema."""

_SCAN_OPERATOR = "PYTHON_ARROW_SCAN"
_FIRST_MARKER = 1_000_003
"""Row counts from here on mark the relations whose predicates are collected; no real relation is taken for one."""
_MAX_PROJECTIONS = 64
"""Selections of columns that a relation remembers."""
_SINGLE_BATCH_ROWS = 20_000
"""Up to so many rows need not be shared among DuckDB's threads (`bench sql`: statements by key)."""


class RelationSource(ArrowScanSource):
    """A relation that remembers which predicates DuckDB would push into it, and that reads its rows when DuckDB asks.

    Args:
        schema: Its columns.
        read: Gives the rows with the columns of a narrower schema; as a list, if they are in memory already.
        row_count: How many rows DuckDB's planner expects; None for unknown.
    """

    schema_is_stable = True

    def __init__(self, schema: pa.Schema, read: ReadRows | None = None, row_count: int | None = None) -> None:
        super().__init__(schema)
        self.schema = schema
        self.duckdb_schema = to_duckdb_schema(schema)
        self.read = read
        self.row_count = row_count
        self.predicates: list[Predicate] = []
        self._projections = BoundedCache[tuple[int, ...], tuple[pa.Schema, pa.Schema, bool]](_MAX_PROJECTIONS)

    def rows(self) -> int | None:
        """How many rows the planner expects."""
        return self.row_count

    def accepts(self, predicate: Predicate) -> bool:
        """Remember the predicate; DuckDB applies it itself."""
        self.predicates.append(predicate)
        return False

    def stream(self, columns: Sequence[int] | None, filters: Sequence[Predicate]) -> tuple[object, bool]:  # noqa: ARG002
        """The rows, with just the columns that the statement needs; DuckDB asks for at least one."""
        narrow, shown, same = self._project(tuple(range(len(self.schema)) if columns is None else columns))
        rows = () if self.read is None else self.read(narrow)
        if same and isinstance(rows, list) and len(rows) == 1 and rows[0].num_rows <= _SINGLE_BATCH_ROWS:
            return rows[0].__arrow_c_array__(), True
        if isinstance(rows, list):  # all there: DuckDB's threads take them without waiting for each other in Python
            return cast_to_schema(pa.Table.from_batches(rows, narrow), shown).to_reader().__arrow_c_stream__(), True
        if not same:
            rows = (
                crossed
                for batch in rows
                for crossed in cast_to_schema(pa.Table.from_batches([batch]), shown).to_batches()
            )
        return pa.RecordBatchReader.from_batches(shown, rows).__arrow_c_stream__(), True

    def _project(self, wanted: tuple[int, ...]) -> tuple[pa.Schema, pa.Schema, bool]:
        """Some of the columns as they are read and as DuckDB sees them, and whether that is the same."""
        return self._projections.get_or_make(wanted, lambda: self._make_projection(wanted))

    def _make_projection(self, wanted: tuple[int, ...]) -> tuple[pa.Schema, pa.Schema, bool]:
        narrow, shown = (pa.schema([full.field(i) for i in wanted]) for full in (self.schema, self.duckdb_schema))
        return narrow, shown, narrow.equals(shown)

    def __arrow_c_schema__(self) -> object:
        return self.duckdb_schema.__arrow_c_schema__()


class FilteringSource(ArrowScanSource):
    """A relation that applies predicates itself where Arrow evaluates them exactly as DuckDB would.

    Args:
        schema: Its columns.
        read: Gives rows of which all others can be left out; they are filtered here.
    """

    schema_is_stable = True

    def __init__(self, schema: pa.Schema, read: ReadFiltered) -> None:
        super().__init__(schema)
        self._schema, self._read = schema, read

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def accepts(self, predicate: Predicate) -> bool:
        """Whether Arrow evaluates the predicate exactly as DuckDB would."""
        try:
            to_arrow(predicate, self._schema)
        except nodes.Untranslatable:
            return False
        return True

    def stream(self, columns: Sequence[int] | None, filters: Sequence[Predicate]) -> tuple[object, bool]:
        """The rows for which all `filters` hold, with just `columns`."""
        schema = self._schema
        wanted = schema if columns is None else pa.schema([schema.field(index) for index in columns])
        tested = [name for name in _find_columns(filters) if name not in wanted.names]
        wide = pa.schema([*wanted, *(schema.field(name) for name in tested)])
        terms = [to_arrow(predicate, schema) for predicate in filters]
        mask = functools.reduce(operator.and_, terms) if terms else None
        rows = _filter(self._read(filters, wide), mask, wanted.names)
        return pa.RecordBatchReader.from_batches(wanted, rows).__arrow_c_stream__(), True


def _filter(rows: Iterator[pa.RecordBatch], mask: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        if mask is None:
            yield batch
        else:
            yield from pa.Table.from_batches([batch]).filter(mask).select(names).to_batches()


def _find_columns(predicates: Sequence[Predicate]) -> list[str]:
    """The columns that predicates look at."""
    names: dict[str, None] = {}
    pending = list(predicates)
    while pending:
        node = pending.pop()
        if isinstance(node, Column):
            names[node.parts[0]] = None
        pending.extend(node._children())
    return list(names)


def register_source(cursor: Any, name: str, source: RelationSource | FilteringSource) -> None:
    """Let DuckDB find `source` under `name` on this cursor."""
    cursor._register_arrow_source(name, source)


def unregister_source(cursor: Any, name: str) -> None:
    """Remove a relation from this cursor."""
    cursor.unregister(name)


def run_streaming(cursor: Any, sql: str, parameters: Any, batch_rows: int) -> tuple[pa.RecordBatchReader, list[str]]:
    """Start a statement whose rows are streamed; gives them and the names of DuckDB's types."""
    if parameters is not None and not isinstance(parameters, dict):
        parameters = list(parameters)
    result = cursor._submit(sql, parameters, "stream", batch_rows)
    described = result.description
    columns = [f"_{position}" for position in range(len(described))]
    output = output_columns(columns, [column[1] for column in described])
    if output is not None:
        del result  # a cursor has one result at a time
        shown = ", ".join(
            f"{value} AS {quote_name(column[0])}" for value, column in zip(output, described, strict=True)
        )
        inner = f"({sql}\n) AS _({', '.join(columns)})"
        result = cursor._submit(f"SELECT {shown} FROM {inner}", parameters, "stream", batch_rows)
    types = [check_arrow_type(column[0], column[1]) for column in result.description]
    return result.arrow_reader(), types


def collect_predicates(
    cursor: Any, sql: str, parameters: Any, schemas: dict[str, pa.Schema]
) -> dict[str, list[Predicate]]:
    """Let DuckDB plan a statement over relations without rows; gives the predicates that reach each of them.

    Only relations that the plan scans exactly once are in the result: of one that is scanned twice nobody can say
    which scan a predicate belongs to. Scans are told apart by their number of rows, which is invented.
    """
    collectors = {
        name: RelationSource(schema, row_count=_FIRST_MARKER + number)
        for number, (name, schema) in enumerate(schemas.items())
    }
    for name, collector in collectors.items():
        register_source(cursor, name, collector)
    try:
        rows = cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters).fetchall()
    finally:
        with contextlib.suppress(duckdb.Error):  # a transaction that failed has removed them already
            for name in collectors:
                unregister_source(cursor, name)
    scans = Counter(_find_scan_markers(json.loads(rows[0][1])))
    markers = {str(collector.row_count) for collector in collectors.values()}
    if not markers.issuperset(scans):
        return {}
    return {name: each.predicates for name, each in collectors.items() if scans[str(each.row_count)] == 1}


def _find_scan_markers(plan: Iterable[dict[str, Any]]) -> list[str]:
    """The numbers of rows that the scans of our relations have in a plan."""
    markers: list[str] = []
    pending = list(plan)
    while pending:
        operator = pending.pop()
        pending += operator["children"]
        if operator["name"] == _SCAN_OPERATOR:
            markers.append(str(operator["extra_info"].get("Estimated Cardinality")))
    return markers
