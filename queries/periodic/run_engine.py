"""Another engine than DuckDB for the runs of periodic queries: what a round asks of it, and what it gives.

Nothing in `queries/` knows Spark: whoever registers a query or makes a round passes the engine in.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.errors import DefinitionError
from windrow.queries.execution import AnyStatement
from windrow.queries.periodic.definition import Params
from windrow.queries.periodic.result_tables import PERIODIC_CONTEXT
from windrow.queries.sql.foreign_dialect import ForeignStatement, find_clauses
from windrow.queries.sql.statement import Reference, parse, refuse_past
from windrow.queries.sql.window_spec import AllRows
from windrow.queries.statement_context import StatementContext
from windrow.snapshot import Snapshot

DUCKDB = "duckdb"
SPARK = "spark"
ENGINES = (DUCKDB, SPARK)
WAITS_FOR_SPARK = "it waits for a Spark session: make rounds with run_due(spark=…), or 'windrow serve --spark MASTER'"


class EngineStatement(Protocol):
    """A statement that an engine has planned over a snapshot."""

    @property
    def columns(self) -> pa.Schema:
        """Names and types of its answer."""
        ...

    @property
    def references(self) -> tuple[Reference, ...]:
        """The relations that it reads, each place once; those with a window clause in the order of the text."""
        ...

    def read(self) -> pa.Table:
        """Run it."""
        ...

    def interrupt(self) -> None:
        """End what is running for it; to be repeated until `read` ends."""
        ...


class RunEngine(Protocol):
    """Plans statements with window clauses in its own SQL."""

    def plan(self, snapshot: Snapshot, sql: str, params: Params, context: StatementContext) -> EngineStatement:
        """Plan a statement that reads nothing but the warehouse; refuses what cannot be asked again and again."""
        ...


def check_engine(name: str, engine: RunEngine | None, memory_limit: str | None) -> None:
    """Refuse an engine that there is not, or that is not there to check the statement."""
    if name not in ENGINES:
        raise DefinitionError(f"engine={name!r} is not an engine; choose one of {', '.join(ENGINES)}")
    if name == SPARK and engine is None:
        raise DefinitionError(
            "engine='spark' needs a Spark session that plans the statement once: give spark=, or start one first"
        )
    if name == SPARK and memory_limit is not None:
        raise DefinitionError("memory_limit= is DuckDB's; what Spark may use is a setting of its session")


def read_foreign_statement(sql: str, unwindowed: tuple[str, ...] = ()) -> ForeignStatement:
    """A statement of another engine; `unwindowed` names the relations that it reads without a window clause."""
    statement = find_clauses(sql)
    refuse_past(statement.references, "a periodic query")
    plain = tuple(Reference(name, "", AllRows(), name, None, name) for name in unwindowed)
    return replace(statement, references=statement.references + plain)


def plan_foreign_statement(
    engine: RunEngine, snapshot: Snapshot, sql: str, params: Params
) -> tuple[ForeignStatement, pa.Schema]:
    """A statement with all relations that it reads, and the columns of its answer."""
    planned = engine.plan(snapshot, sql, params, PERIODIC_CONTEXT)
    return read_foreign_statement(sql, find_unwindowed(planned.references)), planned.columns


def find_unwindowed(references: Iterable[Reference]) -> tuple[str, ...]:
    """What is recorded of another engine's statement beside its text, so that it can be read without the engine."""
    return tuple(reference.name for reference in references if reference.span is None)


@lru_cache(maxsize=256)
def _read_again(sql: str, unwindowed: tuple[str, ...]) -> ForeignStatement:
    return read_foreign_statement(sql, unwindowed)


def read_registered(entry: QueryEntry) -> AnyStatement:
    """The statement of a registered query, with the relations that it reads."""
    return parse(entry.sql) if entry.engine == DUCKDB else _read_again(entry.sql, entry.unwindowed)
