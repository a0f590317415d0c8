"""How the standing queries would be answered: which are computed together, what they share and why, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windrow.catalog.records import QueryEntry
from windrow.queries.periodic.evaluation import FROM_SNAPSHOT
from windrow.queries.synopses import node_store
from windrow.queries.synopses.sharing import analyse_queries, group_queries, share_synopses
from windrow.snapshot import Snapshot
from windrow.store import Store


@dataclass(frozen=True)
class QueryPlanGroup:
    """Queries that are answered together."""

    queries: tuple[str, ...]
    by: str
    """What answers them: the rows of the snapshot, or synopses."""
    why: tuple[str, ...]
    """What they share and by which rule, or why only their rows can answer them."""


def plan_queries(store: Store) -> list[QueryPlanGroup]:
    """The groups of all standing queries: those that synopses answer first, by stream."""
    with Snapshot(store) as snapshot:
        entries = store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
        streams = dict.fromkeys(entry.paces[0].stream for entry in entries)
        groups = [
            group
            for stream in streams
            for group in _make_groups(store, snapshot, stream, [e for e in entries if e.paces[0].stream == stream])
        ]
    return sorted(groups, key=lambda group: group.by == FROM_SNAPSHOT)


def _make_groups(
    store: Store, snapshot: Snapshot, stream: str, entries: Sequence[QueryEntry]
) -> Iterator[QueryPlanGroup]:
    view = snapshot.view(stream)
    queries = analyse_queries(store, snapshot, entries)
    kept = store.catalog.read(lambda tables: list(node_store.read_entries(tables, view.entry.id)))
    groups = group_queries(queries, share_synopses(queries, view.schema), kept)
    grouped = {query.name for group in groups for query in group.queries}
    for group in groups:
        names = tuple(query.name for query in group.queries)
        numbers = ", ".join(str(number) for number in group.synopses)
        noun = "synopsis" if len(group.synopses) == 1 else "synopses"
        sharing = [q.name for o in groups if o is not group and {*o.synopses} & {*group.synopses} for q in o.queries]
        also_shared = (f"SS1: kept once, also for {', '.join(sharing)}",) if sharing else ()
        yield QueryPlanGroup(
            names, f"{group.kind} {noun} {numbers}", (*group.rules, *also_shared) or ("it shares with no other query",)
        )
    for query in queries:
        if query.name not in grouped:
            yield QueryPlanGroup((query.name,), FROM_SNAPSHOT, (query.why or "no synopsis is kept for it yet",))
