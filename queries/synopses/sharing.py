"""Which standing queries share synopses (rules SS1-SS4) and which are computed together (CS1-CS8), and why.

Queries with the same rows and groups share one synopsis; a query whose rows are the sum or difference of others' needs
none of its own. This module looks at queries only, never at rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from windrow.catalog.records import QueryEntry, SynopsisColumn, SynopsisEntry
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import predicate_cover
from windrow.queries.synopses.kinds import BASIC
from windrow.queries.synopses.node_store import choose_columns
from windrow.queries.synopses.partial_aggregates import SynopsisNeed
from windrow.queries.synopses.query_shape import NO_JOIN_VIEW, SynopsisStatement, analyse_statement
from windrow.queries.synopses.top_groups import find_top_groups
from windrow.snapshot import Snapshot
from windrow.store import Store

Identity = tuple[str, tuple[str, ...]]


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its word."""
    return f"{count} {one if count == 1 else many or one + 's'}"


@dataclass(frozen=True)
class StandingQuery:
    """A periodic query, and what synopses can do for it."""

    name: str
    stream: str
    period: int
    """In slides of the stream."""
    priority: int
    statement: SynopsisStatement | None
    why: str
    """Why only its rows can answer it, where they must; empty where that was decided by costs."""
    sql: str = ""
    by: str = ""
    """What answers it instead, if a summary does."""


@dataclass(frozen=True)
class WantedSynopsis:
    """A synopsis that should be kept."""

    where: str
    where_key: str
    terms: tuple[predicate_cover.Term, ...] | None
    groups: tuple[tuple[str, str, str], ...]
    counted: bool
    columns: tuple[SynopsisColumn, ...]
    slots: int
    users: tuple[str, ...]
    uses: tuple[tuple[int, int], ...]
    """Window and period of each use."""
    shares: tuple[float, ...]
    """What part of the query each use is: one of as many as the query has needs."""
    merges: frozenset[str] = frozenset()
    """How the columns that somebody asked for are merged."""
    finished: float = 0.0
    """How many statements DuckDB has to finish in a slide, even where arrays merge the nodes."""

    @property
    def identity(self) -> Identity:
        """As of the needs that it meets."""
        return self.where_key, tuple(sorted(key for _, key, _ in self.groups))


@dataclass(frozen=True)
class SharedSynopses:
    """What is kept for a stream's standing queries."""

    wanted: tuple[WantedSynopsis, ...]
    covered: dict[Identity, tuple[tuple[Identity, int], ...]] = field(default_factory=dict)
    """Needs without a synopsis of their own: those that add up to it, with signs."""


def analyse_queries(store: Store, snapshot: Snapshot, entries: Iterable[QueryEntry]) -> list[StandingQuery]:
    """What synopses can do for each query."""
    queries = []
    for entry in entries:
        pace = entry.paces[0]
        stream, period = pace.stream, pace.period
        try:
            if entry.engine != "duckdb":
                why = "it was added for that engine"
                queries.append(
                    StandingQuery(entry.name, stream, period, entry.priority, None, why, entry.sql, entry.engine)
                )
                continue
            if entry.params:
                raise CannotSplitError("it has parameters")
            statement = analyse_statement(store, snapshot, entry.sql)
            top = find_top_groups(snapshot, entry.sql)
            if top is not None:
                by = f"summary {top.summary.name}"
                queries.append(
                    StandingQuery(entry.name, stream, period, entry.priority, None, top.describe(), entry.sql, by)
                )
                continue
            if statement.join is not None:
                joined = snapshot.view(statement.stream.name)
                period = max(1, period * snapshot.view(stream).entry.definition.slide // joined.entry.definition.slide)
                stream = joined.name
            queries.append(StandingQuery(entry.name, stream, period, entry.priority, statement, "", entry.sql))
        except CannotSplitError as error:
            why = "" if str(error) == NO_JOIN_VIEW else str(error)  # when it was decided, that was recorded
            queries.append(StandingQuery(entry.name, stream, period, entry.priority, None, why, entry.sql))
    return queries


def share_synopses(queries: Sequence[StandingQuery], schema: pa.Schema) -> SharedSynopses:
    """The synopses for a stream's queries: as few as rules SS1 to SS4 allow."""
    return _without_covered(collect_needs(queries), schema)


def collect_needs(queries: Sequence[StandingQuery]) -> dict[Identity, WantedSynopsis]:
    """What queries need, once for those with the same rows and groups (rules SS1 to SS3)."""
    by_identity: dict[Identity, WantedSynopsis] = {}
    for query in queries:
        if query.statement is None:
            continue
        for need in query.statement.shape.needs:
            use = query.statement.slots, query.period
            wanted = by_identity.get(need.identity)
            by_identity[need.identity] = (
                _first_need(need, query, use) if wanted is None else _join_wanted(wanted, need, query, use)
            )
    return by_identity


def _first_need(need: SynopsisNeed, query: StandingQuery, use: tuple[int, int]) -> WantedSynopsis:
    return WantedSynopsis(
        where="" if need.where is None else need.where.text,
        where_key="" if need.where is None else need.where.key,
        terms=need.terms,
        groups=tuple((group.text, group.key, kind) for group, kind in zip(need.groups, need.types, strict=True)),
        counted=need.counted,
        columns=choose_columns(need.columns),
        slots=use[0],
        users=(query.name,),
        uses=(use,),
        shares=(_find_share(query),),
        merges=frozenset(column.merge for column in need.columns),
        finished=_count_finished(query),
    )


def _find_share(query: StandingQuery) -> float:
    return 1.0 if query.statement is None else 1.0 / len(query.statement.shape.needs)


def _count_finished(query: StandingQuery) -> float:
    return 1.0 / query.period if query.statement is None or query.statement.array_form is None else 0.0


def _join_wanted(
    wanted: WantedSynopsis, need: SynopsisNeed, query: StandingQuery, use: tuple[int, int]
) -> WantedSynopsis:
    return replace(
        wanted,
        columns=choose_columns((*wanted.columns, *need.columns)),
        slots=max(wanted.slots, use[0]),
        users=tuple(dict.fromkeys((*wanted.users, query.name))),
        uses=(*wanted.uses, use),
        shares=(*wanted.shares, _find_share(query)),
        merges=wanted.merges | {column.merge for column in need.columns},
        finished=wanted.finished + _count_finished(query),
    )


def _without_covered(by_identity: dict[Identity, WantedSynopsis], schema: pa.Schema) -> SharedSynopses:
    """Take out what others add up to; they then keep its columns, as far back as it reaches."""
    read = predicate_cover.literal_reader(schema)
    remaining = dict(by_identity)
    covered: dict[Identity, tuple[tuple[Identity, int], ...]] = {}
    # Whoever has most terms is most likely a sum of others; whoever has one can only be a difference.
    for identity, wanted in sorted(by_identity.items(), key=lambda item: -len(item[1].terms or ())):
        used = {other for parts in covered.values() for other, _ in parts}
        if not wanted.terms or identity in used:
            continue
        names = [
            other
            for other, synopsis in remaining.items()
            if other != identity and other[1] == identity[1] and synopsis.terms
        ]
        cover = predicate_cover.find_cover(
            wanted.terms,
            {position: remaining[other].terms or () for position, other in enumerate(names)},
            sorted(wanted.merges),
            subtractable=all(column.subtractable for column in wanted.columns),
            read=read,
        )
        if cover is None:
            continue
        parts = tuple((names[position], sign) for position, sign in cover)
        del remaining[identity]
        covered[identity] = parts
        for other, _ in parts:
            remaining[other] = replace(
                remaining[other],
                columns=choose_columns((*remaining[other].columns, *wanted.columns)),
                slots=max(remaining[other].slots, wanted.slots),
                users=tuple(dict.fromkeys((*remaining[other].users, *wanted.users))),
                uses=(*remaining[other].uses, *wanted.uses),
                shares=(*remaining[other].shares, *wanted.shares),
                merges=remaining[other].merges | wanted.merges,
            )
    return SharedSynopses(tuple(remaining.values()), covered)


# -- groups ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryGroup:
    """Queries that are computed together."""

    queries: tuple[StandingQuery, ...]
    synopses: tuple[int, ...]
    kind: str
    rules: tuple[str, ...]
    """Each rule that lets them share, in words."""


def group_queries(
    queries: Sequence[StandingQuery], shared: SharedSynopses, stored: Sequence[SynopsisEntry]
) -> list[QueryGroup]:
    """The groups of queries that may be executed together; those that synopses cannot answer are not in any."""
    numbers = {(e.where_key, tuple(sorted(key for _, key, _ in e.groups))): e for e in stored}
    groups: dict[tuple[object, ...], list[StandingQuery]] = {}
    used: dict[tuple[object, ...], tuple[SynopsisEntry, ...]] = {}
    for query in queries:
        if query.statement is None:
            continue
        entries = _find_entries(query, shared, numbers)
        if entries is None:
            continue
        name: tuple[object, ...] = (query.stream, *sorted(entry.number for entry in entries))
        if any(entry.kind != BASIC for entry in entries):
            name = (*name, "window", query.statement.slots)
        groups.setdefault(name, []).append(query)
        used[name] = entries
    return [
        QueryGroup(
            tuple(members),
            tuple(e.number for e in used[group_key]),
            used[group_key][0].kind,
            tuple(_list_rules(members, used[group_key], shared)),
        )
        for group_key, members in groups.items()
    ]


def _find_entries(
    query: StandingQuery, shared: SharedSynopses, numbers: dict[Identity, SynopsisEntry]
) -> tuple[SynopsisEntry, ...] | None:
    assert query.statement is not None
    entries: list[SynopsisEntry] = []
    for need in query.statement.shape.needs:
        for identity, _ in shared.covered.get(need.identity, ((need.identity, 1),)):
            if identity not in numbers:
                return None
            entries.append(numbers[identity])
    return tuple(dict.fromkeys(entries))


def _list_rules(
    queries: Sequence[StandingQuery], entries: Sequence[SynopsisEntry], shared: SharedSynopses
) -> Iterable[str]:
    """Which rules apply to a group."""
    needs = [need for query in queries if query.statement for need in query.statement.shape.needs]
    expiring, basic = entries[0].expiring, entries[0].kind == BASIC
    lengths = {query.statement.slots for query in queries if query.statement}
    names = {call.name for query in queries if query.statement for call in query.statement.shape.decomposed.calls}
    if len(queries) > 1:
        yield f"SS1: one synopsis for {plural(len(queries), 'query', 'queries')} over {plural(len(lengths), 'window')}"
    if names & {"avg", "mean"}:
        yield "SS2: an average is a kept sum and a kept count"
    if entries[0].span:
        yield f"SS3: one view of the join for {plural(len(lengths), 'length')} of its windows, kept by expiry slot"
    elif expiring:
        yield "SS3: kept by expiry slot, so that rows with different lifetimes leave in time"
    covered = any(need.identity in shared.covered for need in needs)
    if covered:
        yield "SS4: its rows are the sum or difference of other synopses'"
    if len(queries) > 1:
        if covered:
            yield "CS7: executed after those it is made of" if basic else "CS6: executed with those of the same window"
        elif basic:
            yield f"{'CS5' if expiring else 'CS2'}: one pass from youngest to oldest gives every shorter window"
        else:
            yield f"{'CS4' if expiring else 'CS1'}: the same window is put together once"
        if names & {"avg", "mean"} and names & {"sum", "count", "count_star"}:
            yield "CS3: the average is divided out of the sum and the count"
    yield from _same_statement(queries)


def _same_statement(queries: Sequence[StandingQuery]) -> Iterable[str]:
    first_queries: dict[tuple[str, int], StandingQuery] = {}
    for query in sorted(queries, key=lambda query: query.period):
        assert query.statement is not None
        whole = query.statement.shape.decomposed
        where = "" if whole.where is None else whole.where.key
        keys = [where, *(group.key for group in whole.groups), *(call.key for call in whole.calls)]
        key = " ".join([whole.final, *keys]), query.statement.slots
        if key in first_queries and first_queries[key].name != query.name:
            yield f"CS8: {query.name} asks what {first_queries[key].name} asks more often, and takes its answer"
        first_queries.setdefault(key, query)
