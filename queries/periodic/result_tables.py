"""Result tables of periodic queries as statements name them, and the context that one-time and periodic queries run in.

A statement sees what was delivered up to the commit of its snapshot.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from windrow.catalog.environment import Tables
from windrow.queries.statement_context import StatementContext
from windrow.snapshot import Snapshot

if TYPE_CHECKING:
    from windrow.queries.periodic.result_store import StoredResults
    from windrow.queries.sql.statement import Statement
    from windrow.queries.synopses.summaries import SummaryRelation
    from windrow.queries.synopses.top_groups import TopGroups


def find_results(snapshot: Snapshot, names: Collection[str] | None = None) -> "dict[str, StoredResults]":
    """The result tables of a snapshot by name; only those whose name in lower case is among `names`, if given."""
    from windrow.queries.periodic.result_store import read_stored_results

    def read_results(tables: Tables) -> "dict[str, StoredResults]":
        raw_names = [raw_name for raw_name, _ in tables.raw_items("queries")]
        wanted = [raw_name for raw_name in raw_names if names is None or raw_name.decode().lower() in names]
        return {
            name.decode(): read_stored_results(tables, tables.get("queries", name), snapshot.version) for name in wanted
        }

    return snapshot.store.catalog.read(read_results)


def find_delivered_results(snapshot: Snapshot, names: Collection[str] | None = None) -> "dict[str, StoredResults]":
    """The result tables as of the snapshot's slides: with what was delivered for these, though after its commit."""
    from windrow.queries.periodic.result_store import read_stored_results

    def read_results(tables: Tables) -> "dict[str, StoredResults]":
        delivered = {}
        for raw_name, _ in list(tables.raw_items("queries")):
            name = raw_name.decode()
            if names is None or name.lower() in names:
                entry = tables.get("queries", raw_name)
                pacing = [pace.stream for pace in entry.paces[:1] if pace.stream in snapshot.streams()]
                upto = snapshot.view(pacing[0]).state.slide if pacing else None
                delivered[name] = read_stored_results(tables, entry, upto=upto)
        return delivered

    return snapshot.store.catalog.read(read_results)


def _describe_pattern(statement: "Statement", snapshot: Snapshot) -> str:
    from windrow.queries.views.planner import describe_pattern

    return describe_pattern(statement, snapshot)


def _find_summaries(snapshot: Snapshot, names: Collection[str] | None) -> "dict[str, SummaryRelation]":
    from windrow.queries.synopses.summaries import find_summaries

    return find_summaries(snapshot, names)


def find_shortcut(snapshot: Snapshot, sql: str, params: object) -> "TopGroups | None":
    """The summary that answers a statement, if one does."""
    from windrow.queries.synopses.top_groups import find_top_groups

    return find_top_groups(snapshot, sql, params)


STATEMENT_CONTEXT = StatementContext(find_results, _describe_pattern, _find_summaries, find_shortcut)
PERIODIC_CONTEXT = StatementContext(find_delivered_results, _describe_pattern, _find_summaries, find_shortcut)
"""Of the runs of periodic queries."""
