"""The words of an editor of statements: relations that the role may name, functions and keywords."""

import functools
from typing import Any

import duckdb

from windrow.catalog.environment import Tables
from windrow.queries.system_tables import TABLE_NAMES, shows
from windrow.service.role_session import RoleSession

_MORE_KEYWORDS = (
    "BETWEEN", "EXISTS", "OVER", "PARTITION", "BY", "FILTER", "VALUES", "TIMESTAMP", "INTERVAL",
    "WINDOW", "SLIDE", "SINCE", "RANGE", "ROWS", "MINUTES", "HOURS", "DAYS", "SECONDS", "WEEKS",
)  # fmt: skip
"""Words that DuckDB does not reserve, and those of window clauses."""
_MOST_RELATIONS = 5_000
"""Relations that a prompt can complete. A bound, not measured."""


def read_vocabulary(session: RoleSession) -> dict[str, Any]:
    """Names with their kinds; columns are asked for by a statement when a relation is named."""

    def read(tables: Tables) -> list[tuple[str, str]]:
        streams = [entry.definition for _, entry in tables.items("streams")]
        relations = [(stream.name, "view" if stream.inputs else "stream") for stream in streams]
        relations += [(entry.name, "summary") for _, entry in tables.items("summaries")]
        return relations + [(entry.name, "result") for _, entry in tables.items("queries")]

    role = session.role
    role.check("read")
    names = session.warehouse._store.catalog.read(read) + [(name, "table") for name in session.warehouse.tables()]
    system = [(f"windrow.{name}", "system") for name in sorted(TABLE_NAMES) if shows(role, name)]
    visible = sorted((name, kind) for name, kind in names if role.sees(name))[:_MOST_RELATIONS]
    functions, keywords = _words_of_duckdb()
    return {
        "relations": [{"name": name, "kind": kind} for name, kind in visible + system],
        "functions": functions,
        "keywords": keywords,
    }


@functools.cache
def _words_of_duckdb() -> tuple[list[str], list[str]]:
    """Functions whose names are words, and the keywords of queries; the same for every warehouse."""
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        functions = connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type IN "
            "('scalar', 'aggregate', 'macro') AND regexp_full_match(function_name, '[a-z][a-z0-9_]*') "
            "AND NOT starts_with(function_name, 'pg_') AND NOT starts_with(function_name, 'duckdb_') ORDER BY 1"
        ).fetchall()
        keywords = connection.execute(
            "SELECT upper(keyword_name) FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function') "
            "UNION SELECT unnest(?) ORDER BY 1",
            [list(_MORE_KEYWORDS)],
        ).fetchall()
    return [row[0] for row in functions], [row[0] for row in keywords]
