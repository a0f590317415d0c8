"""SQLAlchemy over a warehouse: ``create_engine("windrow:////data/warehouse")``, for tools that list tables and reflect.

Each connection is of one commit, which stays pinned until it is closed. DuckDB answers, duckdb-engine writes the SQL;
tables and columns are listed from DuckDB's information schema, because duckdb-engine asks for what DuckDB 2.0 lacks.
"""

import re
from collections.abc import Callable
from typing import Any

import duckdb_engine
from sqlalchemy import Connection, pool, sql, types
from sqlalchemy.engine import URL, default, interfaces
from sqlalchemy.exc import NoSuchTableError

from windrow.errors import DefinitionError
from windrow.snapshot import Snapshot
from windrow.warehouse import Warehouse

_TYPES: dict[str, Callable[[], types.TypeEngine[Any]]] = {
    "BOOLEAN": types.Boolean,
    "TINYINT": types.SmallInteger,
    "SMALLINT": types.SmallInteger,
    "UTINYINT": types.SmallInteger,
    "INTEGER": types.Integer,
    "USMALLINT": types.Integer,
    "BIGINT": types.BigInteger,
    "UINTEGER": types.BigInteger,
    "UBIGINT": lambda: types.Numeric(20, 0),
    "HUGEINT": lambda: types.Numeric(38, 0),
    "FLOAT": types.Float,
    "DOUBLE": types.Double,
    "VARCHAR": types.String,
    "BLOB": types.LargeBinary,
    "DATE": types.Date,
    "TIME": types.Time,
    "INTERVAL": types.Interval,
    "UUID": types.Uuid,
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def to_sql_type(name: str) -> types.TypeEngine[Any]:
    """The type of SQLAlchemy for a column of DuckDB's; one that it has none for, as a struct, is left as it is."""
    if name.endswith("[]"):
        return types.ARRAY(to_sql_type(name[:-2]))
    if decimal := _DECIMAL.fullmatch(name):
        return types.Numeric(int(decimal[1]), int(decimal[2]))
    if name.startswith("TIMESTAMP"):
        return types.DateTime(timezone="WITH TIME ZONE" in name)
    return _TYPES.get(name, types.NullType)()


class _PinnedConnection(duckdb_engine.ConnectionWrapper):
    """A connection to a snapshot of its own."""

    def __init__(self, warehouse: Warehouse, snapshot: Snapshot) -> None:
        super().__init__(snapshot.duckdb())
        self._parts = snapshot, warehouse

    def close(self) -> None:
        """Let go of the commit's files."""
        super().close()
        for part in self._parts:
            part.close()


class WindrowDialect(duckdb_engine.Dialect):
    """DuckDB's dialect over a snapshot: streams, views, tables and results are tables, without keys or indexes."""

    name = "windrow"
    supports_statement_cache = True

    def create_connect_args(self, url: URL) -> tuple[Any, Any]:
        """The folder of the warehouse."""
        if not url.database:
            raise DefinitionError(f"{url} names no warehouse; write windrow:////data/warehouse, or windrow:///folder")
        return (url.database,), dict(url.query)

    def connect(self, *path: Any, **options: Any) -> Any:
        """Pin the last commit of the warehouse."""
        if options:
            raise DefinitionError(f"a warehouse is connected to by its path alone, without {', '.join(options)}")
        warehouse = Warehouse(path[0], create=False, read_only=True)
        try:
            return _PinnedConnection(warehouse, warehouse.snapshot())
        except BaseException:
            warehouse.close()
            raise

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:  # noqa: ARG003
        """None: a connection that is kept would show an old commit."""
        return pool.NullPool

    def get_schema_names(self, *_: Any, **__: Any) -> list[str]:
        """The one schema that there is."""
        return ["main"]

    def get_table_names(self, connection: Connection, schema: str | None = None, **_: Any) -> list[str]:
        """The streams, views, tables and results of the commit."""
        if schema not in (None, "main"):
            return []
        names = connection.execute(
            sql.text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'main' ORDER BY ALL")
        )
        return list(names.scalars())

    def get_view_names(self, *_: Any, **__: Any) -> list[str]:
        """None: they are tables here, as `reflect` looks for."""
        return []

    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> bool:
        """Whether there is a table of a name."""
        return table_name in self.get_table_names(connection, schema)

    def get_columns(
        self, connection: Connection, table_name: str, schema: str | None = None, **_: Any
    ) -> list[interfaces.ReflectedColumn]:
        """The columns of a table."""
        columns = connection.execute(
            sql.text(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = 'main' AND table_name = :name ORDER BY ordinal_position"
            ),
            {"name": table_name},
        ).all()
        if not columns or schema not in (None, "main"):
            raise NoSuchTableError(table_name)
        return [{"name": name, "type": to_sql_type(kind), "nullable": True, "default": None} for name, kind in columns]

    def get_pk_constraint(self, *_: Any, **__: Any) -> Any:
        """A search key is not unique, so it is no primary key."""
        return {"constrained_columns": [], "name": None}

    def _get_nothing(self, *_: Any, **__: Any) -> Any:
        return []

    get_foreign_keys = get_indexes = get_unique_constraints = get_check_constraints = _get_nothing

    def get_table_comment(self, *_: Any, **__: Any) -> Any:
        """There are none."""
        return {"text": None}

    def get_table_options(self, *_: Any, **__: Any) -> Any:
        """There are none."""
        return {}


_REFLECTED = (
    "columns", "pk_constraint", "foreign_keys", "indexes", "unique_constraints", "check_constraints", "table_comment",
    "table_options",
)  # fmt: skip
for _what in _REFLECTED:  # table by table, and not from the catalog in PostgreSQL's form
    setattr(WindrowDialect, f"get_multi_{_what}", getattr(default.DefaultDialect, f"get_multi_{_what}"))
