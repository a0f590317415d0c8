"""How the standing queries would be answered: which go together, what they share and why, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windrow.catalog.records import QueryEntry
from windrow.queries.periodic.evaluation import SNAPSHOT
from windrow.queries.synopses import node_store
from windrow.queries.synopses.sharing import share, standings, together
from windrow.snapshot import Snapshot
from windrow.store import Store


@dataclass(frozen=True)
class Group:
    """Queries that are answered together."""

    queries: tuple[str, ...]
    by: str
    """What answers them: the rows of the snapshot, or synopses."""
    why: tuple[str, ...]
    """What they share and by which rule, or why only their rows can answer them."""


def plan(store: Store) -> list[Group]:
    """The groups of all standing queries: those that synopses answer first, by stream."""
    with Snapshot(store) as snapshot:
        entries = store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
        streams = dict.fromkeys(entry.paces[0].stream for entry in entries)
        groups = [
            group
            for stream in streams
            for group in _groups(store, snapshot, stream, [e for e in entries if e.paces[0].stream == stream])
        ]
    return sorted(groups, key=lambda group: group.by == SNAPSHOT)


def _groups(store: Store, snapshot: Snapshot, stream: str, entries: Sequence[QueryEntry]) -> Iterator[Group]:
    view = snapshot.view(stream)
    queries = standings(store, snapshot, entries)
    kept = store.catalog.read(lambda tables: list(node_store.entries(tables, view.entry.id)))
    found = together(queries, share(queries, view.schema), kept)
    grouped = {query.name for group in found for query in group.queries}
    for group in found:
        names = tuple(query.name for query in group.queries)
        numbers = ", ".join(str(number) for number in group.synopses)
        word = "synopsis" if len(group.synopses) == 1 else "synopses"
        others = [q.name for o in found if o is not group and {*o.synopses} & {*group.synopses} for q in o.queries]
        also = (f"SS1: kept once, also for {', '.join(others)}",) if others else ()
        yield Group(
            names, f"{group.kind} {word} {numbers}", (*group.rules, *also) or ("it shares with no other query",)
        )
    for query in queries:
        if query.name not in grouped:
            yield Group((query.name,), SNAPSHOT, (query.why or "no synopsis is kept for it yet",))
