"""Streams as DuckDB sees them while it plans and runs: stand-ins that listen to predicates, and rows on demand.

DuckDB's hook for this is private to its Python package; this is the only module that touches it.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa
from duckdb._sources import ArrowScanSource, nodes

from windrow.queries.marking import arriving
from windrow.queries.types import bridge, cross

Read = Callable[[pa.Schema], Iterable[pa.RecordBatch]]

_SCAN = "PYTHON_ARROW_SCAN"
_FIRST_NUMBER = 1_000_003
_NARROWED = 64
_FEW = 20_000
"""Rows that need not be shared among DuckDB's threads."""


class ListeningSource(ArrowScanSource):
    """A relation that remembers which predicates DuckDB would push into it, and that reads its rows when it is run.

    Args:
        schema: Its columns.
        read: Gives the rows with the columns of a narrower schema; as a list, if they are in memory already.
        rows: How many they are, as far as DuckDB's planner is told; None for unknown.
    """

    schema_is_stable = True

    def __init__(self, schema: pa.Schema, read: Read | None = None, rows: int | None = None) -> None:
        super().__init__(schema)
        self.schema = schema
        self.shown = bridge(schema)
        self.read = read
        self.told = rows
        self.predicates: list[nodes.Node] = []
        self._narrowed: dict[tuple[int, ...], tuple[pa.Schema, pa.Schema, bool]] = {}

    def rows(self) -> int | None:
        """What the planner is told."""
        return self.told

    def accepts(self, predicate: nodes.Node) -> bool:
        """Remember the predicate; DuckDB applies it itself."""
        self.predicates.append(predicate)
        return False

    def stream(self, columns: Sequence[int] | None, filters: Sequence[nodes.Node]) -> tuple[object, bool]:  # noqa: ARG002
        """The rows, with just the columns that the statement needs; DuckDB asks for at least one."""
        narrow, shown, alike = self._of(tuple(range(len(self.schema)) if columns is None else columns))
        rows = () if self.read is None else self.read(narrow)
        if alike and isinstance(rows, list) and len(rows) == 1 and rows[0].num_rows <= _FEW:
            return rows[0].__arrow_c_array__(), True
        if isinstance(rows, list):  # all there: DuckDB's threads take them without waiting for each other in Python
            return cross(pa.Table.from_batches(rows, narrow), shown).to_reader().__arrow_c_stream__(), True
        if not alike:
            rows = (crossed for batch in rows for crossed in cross(pa.Table.from_batches([batch]), shown).to_batches())
        return pa.RecordBatchReader.from_batches(shown, rows).__arrow_c_stream__(), True

    def _of(self, wanted: tuple[int, ...]) -> tuple[pa.Schema, pa.Schema, bool]:
        """Some of the columns as they are read and as they are shown, and whether that is the same."""
        known = self._narrowed.get(wanted)
        if known is None:
            narrow, shown = (pa.schema([each.field(at) for at in wanted]) for each in (self.schema, self.shown))
            if len(self._narrowed) >= _NARROWED:
                self._narrowed.clear()
            known = self._narrowed[wanted] = narrow, shown, narrow.equals(shown)
        return known

    def __arrow_c_schema__(self) -> object:
        return self.shown.__arrow_c_schema__()


def register(cursor: Any, name: str, source: ListeningSource) -> None:
    """Let DuckDB find `source` under `name` on this cursor."""
    cursor._register_arrow_source(name, source)


def unregister(cursor: Any, name: str) -> None:
    """Take it away again."""
    cursor.unregister(name)


def run(cursor: Any, sql: str, parameters: Any, batch_rows: int) -> tuple[pa.RecordBatchReader, list[str]]:
    """Start a statement whose rows are streamed; gives them and the names of DuckDB's types."""
    if parameters is not None and not isinstance(parameters, dict):
        parameters = list(parameters)
    result = cursor._submit(sql, parameters, "stream", batch_rows)
    types = [arriving(column[0], column[1]) for column in result.description]
    return result.arrow_reader(), types


def listen(cursor: Any, sql: str, parameters: Any, schemas: dict[str, pa.Schema]) -> dict[str, list[nodes.Node]]:
    """Let DuckDB plan a statement over stand-ins, and hear which predicates reach each of them.

    Only relations that the plan scans exactly once are in the answer: of one that is scanned twice nobody can say
    which scan a predicate belongs to. Scans are told apart by their number of rows, which is made up.
    """
    heard = {
        name: ListeningSource(schema, rows=_FIRST_NUMBER + at) for at, (name, schema) in enumerate(schemas.items())
    }
    for name, listener in heard.items():
        register(cursor, name, listener)
    try:
        rows = cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters).fetchall()
    finally:
        with contextlib.suppress(duckdb.Error):  # a transaction that failed takes them away by itself
            for name in heard:
                unregister(cursor, name)
    scans = Counter(_scans(json.loads(rows[0][1])))
    numbers = {str(listener.told) for listener in heard.values()}
    if not numbers.issuperset(scans):
        return {}
    return {name: listener.predicates for name, listener in heard.items() if scans[str(listener.told)] == 1}


def _scans(plan: Iterable[dict[str, Any]]) -> list[str]:
    """The numbers of rows that the stand-ins' scans in a plan are said to have."""
    found: list[str] = []
    pending = list(plan)
    while pending:
        operator = pending.pop()
        pending += operator["children"]
        if operator["name"] == _SCAN:
            found.append(str(operator["extra_info"].get("Estimated Cardinality")))
    return found
