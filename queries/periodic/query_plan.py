"""How the standing queries would be answered: which are computed together, what they share and why, in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import QueryEntry
from windrow.definitions import is_hidden
from windrow.formats.html import TableList, TableRecord
from windrow.queries.periodic.chains import order_levels
from windrow.queries.periodic.evaluation import FROM_SNAPSHOT
from windrow.queries.synopses import node_store
from windrow.queries.synopses.sharing import StandingQuery, analyse_queries, group_queries, share_synopses
from windrow.queries.synopses.synopsis_choice import estimate_bytes
from windrow.snapshot import Snapshot
from windrow.store import Store


@dataclass(frozen=True)
class QueryPlanGroup(TableRecord):
    """Queries that are answered together."""

    queries: tuple[str, ...]
    by: str
    """What answers them: the rows of the snapshot, synopses, or a summary while its answer is certain."""
    why: tuple[str, ...]
    """What they share and by which rule, or why only their rows can answer them."""
    after: tuple[str, ...] = ()
    """The queries whose results they read: these are run first."""


def plan_queries(store: Store) -> list[QueryPlanGroup]:
    """The groups of all standing queries: those that synopses answer first, by stream."""
    with Snapshot(store) as snapshot:
        entries = store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
        analysed = analyse_queries(store, snapshot, entries)
        reasons = store.catalog.read(lambda tables: _read_reasons(tables, entries))
        groups = [
            group
            for stream in dict.fromkeys(query.stream for query in analysed)
            for group in _make_groups(store, snapshot, stream, [q for q in analysed if q.stream == stream], reasons)
        ]
    reads = {entry.name: tuple(dict.fromkeys(read.query for read in entry.after)) for entry in entries if entry.after}
    levels = enumerate(order_levels(entries, entries))
    order = {entry.name: number for number, level in levels for entry in level}
    chained = [
        replace(group, after=reads[group.queries[0]]) if group.queries[0] in reads else group for group in groups
    ]
    return TableList(sorted(chained, key=lambda group: (order[group.queries[0]], group.by == FROM_SNAPSHOT)))


def _read_reasons(tables: Tables, entries: Sequence[QueryEntry]) -> dict[str, str]:
    """Why rows answer queries, as it was decided."""
    states = {entry.name: tables.get("paced", catalog_key(entry.id)) for entry in entries}
    return {name: state.from_rows for name, state in states.items() if state is not None}


def _make_groups(
    store: Store, snapshot: Snapshot, stream: str, queries: Sequence[StandingQuery], reasons: Mapping[str, str]
) -> Iterator[QueryPlanGroup]:
    view = snapshot.view(stream)
    synopses = store.catalog.read(lambda tables: list(node_store.read_entries(tables, view.entry.id)))
    groups = group_queries(queries, share_synopses(queries, view.schema), synopses)
    grouped = {query.name for group in groups for query in group.queries}
    for group in groups:
        names = tuple(query.name for query in group.queries)
        numbers = ", ".join(str(number) for number in group.synopses)
        noun = "synopsis" if len(group.synopses) == 1 else "synopses"
        sharing = [q.name for o in groups if o is not group and {*o.synopses} & {*group.synopses} for q in o.queries]
        also_shared = (f"SS1: kept once, also for {', '.join(sharing)}",) if sharing else ()
        why = (*group.rules, *also_shared) or ("it shares with no other query",)
        size = sum(estimate_bytes(entry) for entry in synopses if entry.number in group.synopses)
        stored = sum(segment.bytes for segment in view.segments)
        whose = "the results of the join" if is_hidden(stream) else "the window's rows"
        room = f"about {size:,.0f} bytes; {whose} take {stored:,.0f}"
        yield QueryPlanGroup(names, f"{group.kind} {noun} {numbers}", (*why, room))
    for query in queries:
        if query.name not in grouped:
            reason = query.why or reasons.get(query.name) or "no synopsis is kept for it yet"
            yield QueryPlanGroup((query.name,), query.by or FROM_SNAPSHOT, (reason,))
