"""Brings a stream's synopses in line with its standing queries: those that pay are filled, all others dropped."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import QueryEntry, QueryState, SlideEntry, StreamEntry, SynopsisEntry
from windrow.definitions import is_hidden
from windrow.errors import BusyError, UnknownStreamError
from windrow.queries.synopses import maintenance, node_store
from windrow.queries.synopses.array_engine import would_use_arrays
from windrow.queries.synopses.cost_model import (
    BUDGET,
    SynopsisCosts,
    SynopsisLoad,
    choose_kind,
    compare_with_rows,
    cost_of_rows,
    fit_budget,
    kind_costs,
    sum_costs,
)
from windrow.queries.synopses.kinds import BASIC, INTERVAL, RUNNING
from windrow.queries.synopses.sharing import (
    Identity,
    SharedSynopses,
    StandingQuery,
    WantedSynopsis,
    analyse_queries,
    collect_needs,
    share_synopses,
)
from windrow.queries.synopses.summaries import renew_summaries
from windrow.queries.synopses.tally import make_build_plans
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

SWITCH = "WINDROW_SYNOPSES"
"""Variable of the environment: ``always`` keeps a synopsis for every query that one can answer."""
_RECENT_SLIDES = 32
"""Slides whose late rows say how many to expect."""
_UNKNOWN_GROUPS = 1000.0
"""Groups that are expected where none were seen yet: a guess, until the first rows are counted."""
_ROW_COST_OF_ANSWER = 0.02
"""A judgement, not a measurement: merging a row in a pass was measured at 0.07 to 0.3 of what it costs in DuckDB. It is
set lower because other kinds also need a DuckDB statement of milliseconds for each answer, which no cost counts yet."""
_REBUILD_FACTOR = 2.0
"""A kind stays until another one would cost less than half. Not measured: it keeps two kinds from taking turns."""


def keeps_always() -> bool:
    """Whether every query gets a synopsis that one can answer, whatever it costs; for tests and comparisons."""
    return os.environ.get(SWITCH) == "always"


def reconcile_stream(store: Store, stream: str, *, kind: str | None = None) -> list[SynopsisEntry]:
    """Keep what the stream's standing queries need and what pays, and nothing else; gives what is kept now.

    Args:
        store: The warehouse.
        stream: Its name.
        kind: Of every synopsis that allows it, instead of the cheapest; all are kept then.
    """
    try:
        entry, _ = store.catalog.read(lambda tables: find_stream(tables, stream))
    except UnknownStreamError:
        return []
    with contextlib.ExitStack() as stack:
        stack.enter_context(maintenance.stream_lock(store, entry.id, stream))
        entries, queries = store.catalog.read(lambda tables: _read_statistics(tables, entry))
        several = is_hidden(stream) or any(len(query.reads) > 1 for query in queries)
        snapshot = stack.enter_context(Snapshot(store, None if several else [stream]))
        view = snapshot.view(stream)
        late = _late_share(store, view)
        analysed = [query for query in analyse_queries(store, snapshot, queries) if query.stream == stream]
        current = [synopsis for synopsis in entries if synopsis.slide == view.state.slide]
        reasons = {query.name: query.why for query in analysed if query.statement is None and query.why}
        if kind is None and not keeps_always():
            joined = [snapshot.view(name) for name in view.entry.definition.inputs] if is_hidden(stream) else []
            reasons |= _Choice(store, view, current, late, joined).find_reasons(analysed)
        shared = share_synopses([query for query in analysed if query.name not in reasons], view.schema)
        retained, missing = _compare_entries(shared, current, kind, late)
        obsolete = [synopsis for synopsis in entries if synopsis.number not in {k.number for k in retained}]
        if missing or obsolete:
            first = maintenance.allocate_numbers(store, len(missing)) if missing else 0
            fresh = [_make_entry(view, wanted, first + position, kind, late) for position, wanted in enumerate(missing)]
            chosen = None if kind is not None else _KindChooser(missing, late)
            filled = maintenance.fill_synopses(store, snapshot, stream, fresh, chosen)
            maintenance.commit_synopses(store, view.state.ordinal, filled, obsolete)
            retained = [*retained, *(changed.entry for changed in filled)]
        decided = {each.name: reasons.get(each.name, "") for each in analysed if each.statement or each.why}
        record_reasons(store, queries, decided, stream, view.segments.rows)
        return retained


def record_reasons(
    store: Store, queries: Sequence[QueryEntry], reasons: Mapping[str, str], stream: str = "", rows: int = 0
) -> None:
    """Put down why rows answer queries, empty where synopses do, and with how many rows of a stream that was decided.

    Of queries that are paced by another stream, and of those without a reason here, the former stays.
    """
    with store.catalog.write() as tables:
        for query in queries:
            state: QueryState | None = tables.get("paced", catalog_key(query.id))
            if state is not None:
                judged = rows if query.paces[0].stream == stream else state.judged
                changed = replace(state, judged=judged, from_rows=reasons.get(query.name, state.from_rows))
                if changed != state:
                    tables.put("paced", catalog_key(query.id), changed)


@dataclass(frozen=True)
class _Choice:
    """Decides which queries of a stream are answered from synopses: where that costs less, within a budget of bytes."""

    store: Store
    view: StreamSnapshot
    entries: Sequence[SynopsisEntry]
    """What is kept."""
    late: float
    joined: Sequence[StreamSnapshot] = ()
    """Of a view of a join: the streams whose rows a statement would have to join."""

    def find_reasons(self, queries: Sequence[StandingQuery]) -> dict[str, str]:
        """Why queries are answered from their rows, though synopses could; the others are worth one."""
        wanted = collect_needs(queries)
        sizes = {identity: self._known_sizes(each) for identity, each in wanted.items()}
        small = maintenance.NodeSizes(1.0, 1.0, 0.0, 0.0)
        costs = {i: self._compare(each, sizes[i] or small, existing=sizes[i] is not None) for i, each in wanted.items()}
        unknown = [i for i, measured in sizes.items() if measured is None and costs[i].pays(existing=False)]
        probes = [_make_entry(self.view, wanted[i], 0, None, self.late) for i in unknown]
        for identity, measured in zip(unknown, maintenance.measure_nodes(self.store, self.view, probes), strict=True):
            costs[identity] = self._compare(wanted[identity], measured, existing=False)
        paying = {i: cost for i, cost in costs.items() if cost.pays(existing=sizes[i] is not None)}
        together = sum_costs((cost for cost in paying.values() if not cost.by_arrays), self._slot_rows)
        kept = any(sizes[i] is not None for i, cost in paying.items() if not cost.by_arrays)
        if not self.joined and not together.pays(existing=kept):
            paying = {i: cost for i, cost in paying.items() if cost.by_arrays}
        budget = BUDGET * sum(segment.bytes for view in self.joined or [self.view] for segment in view.segments)
        affordable = fit_budget(paying, budget)
        reasons = {}
        for query in queries:
            needs = () if query.statement is None else query.statement.shape.needs
            for need in needs:
                cost = costs[need.identity]
                if need.identity not in paying:
                    pays = cost.pays(existing=sizes[need.identity] is not None)
                    whose = "all that DuckDB would make" if pays else "a synopsis"
                    reasons[query.name] = f"its rows cost less: {whose} {together if pays else cost}"
                elif need.identity not in affordable:
                    reasons[query.name] = (
                        f"others save more in the {budget:,.0f} bytes that synopses may take: it would need "
                        f"{cost.size:,.0f}"
                    )
        return reasons

    def _known_sizes(self, wanted: WantedSynopsis) -> maintenance.NodeSizes | None:
        for entry in self._by_identity.get(wanted.identity, ()):
            if entry.slot_bytes and _keeps_enough(entry, wanted):
                stored = entry.slot_stored or node_store.estimate_stored(entry.slot_bytes)
                return maintenance.NodeSizes(entry.slot_groups, entry.all_groups, entry.slot_bytes, stored)
        return None

    @cached_property
    def _by_identity(self) -> dict[Identity, list[SynopsisEntry]]:
        return _index_entries(self.entries)

    @cached_property
    def _slot_rows(self) -> float:
        """Rows of a slot, on average over those that are there."""
        definition, slide = self.view.entry.definition, self.view.state.slide
        if slide is None or not len(self.view.segments):
            return 0.0
        oldest = definition.model.slot_of(min(segment.min_ts for segment in self.view.segments))
        slots = max(1, slide - oldest + 1)
        if definition.longest_life is not None:
            slots = min(slots, max(1, definition.longest_life // definition.slide))
        return self.view.segments.rows / slots

    def _compare(self, wanted: WantedSynopsis, sizes: maintenance.NodeSizes, *, existing: bool) -> SynopsisCosts:
        expiring = _is_by_expiry(self.view)
        load = _estimate_load(wanted, sizes.groups, sizes.distinct, self.late, expiring=expiring)
        entry = next((e for e in self._by_identity.get(wanted.identity, ()) if existing), None)
        kind = choose_kind(load)[0] if entry is None else entry.kind
        probe = _make_entry(self.view, wanted, 0, None, self.late) if entry is None else entry
        (plan,) = make_build_plans([probe], self.view.schema)
        costs = compare_with_rows(
            kind,
            load,
            probe.slots,
            self._slot_rows,
            sizes.bytes,
            sizes.stored,
            built_by_arrays=plan is not None,
            finished=wanted.finished,
        )
        if not self.joined:
            return costs
        rows = self.view.segments.rows + sum(view.segments.rows for view in self.joined)
        joins = cost_of_rows(load.uses, rows / _count_slots(self.view), load.shares, joining=True)
        return dataclasses.replace(costs, rows=joins)


def estimate_bytes(entry: SynopsisEntry) -> float:
    """What the nodes of a synopsis take, by their size when it was filled."""
    nodes = {BASIC: 1.0, INTERVAL: 2.0, RUNNING: max(1.0, entry.all_groups / max(1.0, entry.slot_groups))}[entry.kind]
    return entry.slots * nodes * (entry.slot_stored or node_store.estimate_stored(entry.slot_bytes))


def reconcile_all(store: Store, streams: Iterable[str]) -> None:
    """`reconcile_stream` for some streams; one whose lock is taken is left for the next time."""
    for stream in dict.fromkeys(streams):
        with contextlib.suppress(BusyError):
            reconcile_stream(store, stream)


def renew_synopses(store: Store) -> None:
    """Fill synopses and summaries anew where they were taken away: their streams lost rows, or have other columns."""

    def read(tables: Tables) -> list[str]:
        hidden = [name for key, _ in tables.raw_items("streams") if is_hidden(name := key.decode())]
        return [pace.stream for _, entry in tables.items("queries") for pace in entry.paces] + hidden

    reconcile_all(store, store.catalog.read(read))
    renew_summaries(store)


def _read_statistics(tables: Tables, stream: StreamEntry) -> tuple[list[SynopsisEntry], list[QueryEntry]]:
    """The synopses of a stream, and the queries that it paces; of a view of a join, those that read what it joins."""
    name, inputs = stream.definition.name, set(stream.definition.inputs)
    queries = [entry for _, entry in tables.items("queries")]
    paced = [query for query in queries if any(pace.stream_id == stream.id for pace in query.paces)]
    reading = [query for query in queries if set(query.reads) == inputs] if is_hidden(name) else paced
    return node_store.read_entries(tables, stream.id), reading


def _is_by_expiry(view: StreamSnapshot) -> bool:
    """Whether windows of a stream are told by event and expiry slot; of a view of a join, the latter is enough."""
    return view.entry.definition.model.expires is not None and not is_hidden(view.name)


def _count_slots(view: StreamSnapshot) -> int:
    """How many slots the rows of a stream live at most."""
    definition = view.entry.definition
    return -(-(definition.longest_life or definition.slide) // definition.slide)


def _index_entries(entries: Sequence[SynopsisEntry]) -> dict[Identity, list[SynopsisEntry]]:
    indexed: dict[Identity, list[SynopsisEntry]] = {}
    for entry in entries:
        indexed.setdefault((entry.where_key, tuple(sorted(k for _, k, _ in entry.groups))), []).append(entry)
    return indexed


def _compare_entries(
    shared: SharedSynopses, entries: Sequence[SynopsisEntry], kind: str | None, late: float
) -> tuple[list[SynopsisEntry], list[WantedSynopsis]]:
    """What can stay, and what is missing. A synopsis that keeps more than is needed stays as it is."""
    retained, missing, indexed = [], [], _index_entries(entries)
    for wanted in shared.wanted:
        candidates = indexed.get(wanted.identity, ())
        suitable = next((entry for entry in candidates if _serves(entry, wanted, kind, late)), None)
        if suitable is None:
            missing.append(wanted)
        else:
            retained.append(suitable)
    return retained, missing


def _serves(entry: SynopsisEntry, wanted: WantedSynopsis, kind: str | None, late: float) -> bool:
    if not _keeps_enough(entry, wanted):
        return False
    if kind is not None:
        return entry.kind == _allowed_kind(kind, wanted)
    groups, distinct = _sizes(entry, wanted)
    costs = kind_costs(_estimate_load(wanted, groups, distinct, late, expiring=entry.expiring and not entry.span))
    # Filling another kind costs a pass over the window, so it must be worth it.
    return entry.kind in costs and costs[entry.kind] <= _REBUILD_FACTOR * min(costs.values())


def _keeps_enough(entry: SynopsisEntry, wanted: WantedSynopsis) -> bool:
    return entry.slots >= wanted.slots and {c.key for c in wanted.columns} <= {c.key for c in entry.columns}


def _sizes(entry: SynopsisEntry | None, wanted: WantedSynopsis) -> tuple[float, float]:
    """Groups of a slot and of the whole window, as seen or guessed."""
    if entry is not None and entry.slot_groups:
        return entry.slot_groups, entry.all_groups
    guess = _UNKNOWN_GROUPS if wanted.groups else 1.0
    return guess, guess


def _allowed_kind(kind: str, wanted: WantedSynopsis) -> str:
    """A kind, or the one that can stand for it: running sums only of what can be taken out again exactly."""
    return "basic" if kind == "running" and not all(c.subtractable for c in wanted.columns) else kind


def _make_entry(
    view: StreamSnapshot, wanted: WantedSynopsis, number: int, kind: str | None, late: float
) -> SynopsisEntry:
    chosen, why = choose_kind(_estimate_load(wanted, *_sizes(None, wanted), late, expiring=_is_by_expiry(view)))
    if kind is not None:
        chosen, why = _allowed_kind(kind, wanted), "asked for"
    return SynopsisEntry(
        stream=view.entry.id,
        number=number,
        where=wanted.where,
        where_key=wanted.where_key,
        terms=wanted.terms,
        groups=wanted.groups,
        columns=wanted.columns,
        kind=chosen,
        slots=_choose_reach(view, wanted.slots),
        expiring=view.entry.definition.model.expires is not None,
        span=_count_slots(view) if is_hidden(view.name) else 0,
        floor=0,
        slide=None,
        why=why,
    )


def _choose_reach(view: StreamSnapshot, slots: int) -> int:
    """Somewhat further back than is asked for, so that the next longer window need not fill it again."""
    definition = view.entry.definition
    longest = definition.longest_life
    further = 1 << (slots - 1).bit_length()
    return further if longest is None else max(slots, min(further, -(-longest // definition.slide)))


def _estimate_load(
    wanted: WantedSynopsis, groups: float, distinct: float, late: float, *, expiring: bool
) -> SynopsisLoad:
    subtractable = all(column.subtractable for column in wanted.columns)
    passing = _ROW_COST_OF_ANSWER if would_use_arrays(expiring, len(wanted.groups), wanted.columns) else 1.0
    return SynopsisLoad(wanted.slots, groups, distinct, late, wanted.uses, subtractable, passing, wanted.shares)


class _KindChooser:
    """Chooses the kind of a synopsis when its rows have been seen."""

    def __init__(self, wanted: Sequence[WantedSynopsis], late: float) -> None:
        self.wanted = {synopsis.identity: synopsis for synopsis in wanted}
        self.late = late

    def __call__(self, entry: SynopsisEntry, sizes: maintenance.NodeSizes) -> SynopsisEntry:
        """The synopsis with the cheapest kind."""
        identity = entry.where_key, tuple(sorted(k for _, k, _ in entry.groups))
        by_expiry = entry.expiring and not entry.span
        kind, why = choose_kind(
            _estimate_load(
                self.wanted[identity],
                sizes.groups,
                sizes.distinct,
                self.late,
                expiring=by_expiry,
            )
        )
        return replace(
            entry,
            kind=kind,
            why=why,
            slot_groups=sizes.groups,
            all_groups=sizes.distinct,
            slot_bytes=sizes.bytes,
            slot_stored=sizes.stored,
        )


def _late_share(store: Store, view: StreamSnapshot) -> float:
    """The share of recent slides that took in late rows."""

    def read(tables: Tables) -> list[Any]:
        return [record for _, record in tables.items("slides", catalog_key(view.entry.id))][-_RECENT_SLIDES:]

    slides: list[SlideEntry] = store.catalog.read(read)
    return sum(slide.late > 0 for slide in slides) / len(slides) if slides else 0.0
