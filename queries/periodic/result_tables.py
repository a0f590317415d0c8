"""Result tables of periodic queries as statements name them, and the context that one-time and periodic queries run in.

A statement sees what was delivered up to the commit of its snapshot.
"""

from collections.abc import Collection

from windrow.catalog.environment import Tables
from windrow.queries.periodic.result_store import StoredResults, read_stored_results
from windrow.queries.statement_context import StatementContext
from windrow.queries.views import update_patterns
from windrow.snapshot import Snapshot


def find_results(snapshot: Snapshot, names: Collection[str] | None = None) -> dict[str, StoredResults]:
    """The result tables of a snapshot by name; only those whose name in lower case is among `names`, if given."""

    def look(tables: Tables) -> dict[str, StoredResults]:
        found = [raw_name for raw_name, _ in tables.raw_items("queries")]
        wanted = [raw_name for raw_name in found if names is None or raw_name.decode().lower() in names]
        return {
            name.decode(): read_stored_results(tables, tables.get("queries", name), snapshot.version) for name in wanted
        }

    return snapshot.store.catalog.read(look)


STATEMENT_CONTEXT = StatementContext(find_results, update_patterns.describe_pattern)
