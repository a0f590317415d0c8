"""Brings a stream's synopses in line with its standing queries: new synopses are filled, unneeded ones dropped."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import Pace, QueryEntry, SlideEntry, SynopsisEntry
from windrow.errors import BusyError, UnknownStreamError
from windrow.queries.synopses import maintenance, node_store
from windrow.queries.synopses.array_engine import would_use_arrays
from windrow.queries.synopses.cost_model import SynopsisLoad, choose_kind, kind_costs
from windrow.queries.synopses.sharing import SharedSynopses, WantedSynopsis, analyse_queries, share_synopses
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_RECENT_SLIDES = 32
"""Slides whose late rows say how many to expect."""
_UNKNOWN_GROUPS = 1000.0
_ROW_COST_OF_ANSWER = 0.02
"""A judgement, not a measurement: merging a row in a pass was measured at 0.07 to 0.3 of what it costs in DuckDB. It is
set lower because other kinds also need a DuckDB statement of milliseconds for each answer, which no cost counts yet."""
_REBUILD_FACTOR = 2.0
"""A kind stays until another one would cost less than half."""


def reconcile_stream(store: Store, stream: str, *, kind: str | None = None) -> list[SynopsisEntry]:
    """Keep what the stream's standing queries need, and nothing else; gives what is kept now.

    Args:
        store: The warehouse.
        stream: Its name.
        kind: Of every synopsis that allows it, instead of the cheapest.
    """
    try:
        entry, _ = store.catalog.read(lambda tables: find_stream(tables, stream))
    except UnknownStreamError:
        return []
    with maintenance.stream_lock(store, entry.id, stream), Snapshot(store, [stream]) as snapshot:
        view = snapshot.view(stream)
        entries, queries = store.catalog.read(lambda tables: _read_statistics(tables, view.entry.id))
        shared, late = share_synopses(analyse_queries(store, snapshot, queries), view.schema), _late_share(store, view)
        current = [synopsis for synopsis in entries if synopsis.slide == view.state.slide]
        kept, missing = _compare_entries(shared, current, kind, late)
        obsolete = [synopsis for synopsis in entries if synopsis.number not in {k.number for k in kept}]
        if not missing and not obsolete:
            return kept
        first = maintenance.allocate_numbers(store, len(missing)) if missing else 0
        fresh = [_make_entry(view, wanted, first + position, kind, late) for position, wanted in enumerate(missing)]
        chosen = None if kind is not None else _KindChooser(missing, late)
        filled = maintenance.fill_synopses(store, snapshot, stream, fresh, chosen)
        maintenance.commit_synopses(store, view.state.ordinal, filled, obsolete)
        return [*kept, *(changed.entry for changed in filled)]


def reconcile_all(store: Store, paces: Iterable[Pace]) -> None:
    """`reconcile_stream` for the streams that pace a query; a stream whose lock is taken is left for the next time."""
    for stream in dict.fromkeys(pace.stream for pace in paces):
        with contextlib.suppress(BusyError):
            reconcile_stream(store, stream)


def _read_statistics(tables: Tables, stream: int) -> tuple[list[SynopsisEntry], list[QueryEntry]]:
    queries = [entry for _, entry in tables.items("queries") if any(p.stream_id == stream for p in entry.paces)]
    return node_store.read_entries(tables, stream), queries


def _compare_entries(
    shared: SharedSynopses, entries: Sequence[SynopsisEntry], kind: str | None, late: float
) -> tuple[list[SynopsisEntry], list[WantedSynopsis]]:
    """What can stay, and what is missing. A synopsis that keeps more than is needed stays as it is."""
    kept, missing = [], []
    for wanted in shared.wanted:
        suitable = next((entry for entry in entries if _serves(entry, wanted, kind, late)), None)
        if suitable is None:
            missing.append(wanted)
        else:
            kept.append(suitable)
    return kept, missing


def _serves(entry: SynopsisEntry, wanted: WantedSynopsis, kind: str | None, late: float) -> bool:
    same = entry.where_key == wanted.where_key and wanted.identity[1] == tuple(sorted(k for _, k, _ in entry.groups))
    enough = entry.slots >= wanted.slots and {c.key for c in wanted.columns} <= {c.key for c in entry.columns}
    if not same or not enough:
        return False
    if kind is not None:
        return entry.kind == _allowed_kind(kind, wanted)
    groups, distinct = _sizes(entry, wanted)
    costs = kind_costs(_estimate_load(wanted, groups, distinct, late, expiring=entry.expiring))
    # Filling another kind costs a pass over the window, so it must be worth it.
    return entry.kind in costs and costs[entry.kind] <= _REBUILD_FACTOR * min(costs.values())


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
    chosen, why = choose_kind(
        _estimate_load(wanted, *_sizes(None, wanted), late, expiring=view.entry.definition.model.expires is not None)
    )
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
    return SynopsisLoad(wanted.slots, groups, distinct, late, wanted.uses, subtractable, passing)


class _KindChooser:
    """Chooses the kind of a synopsis when its rows have been seen."""

    def __init__(self, wanted: Sequence[WantedSynopsis], late: float) -> None:
        self.wanted = {synopsis.identity: synopsis for synopsis in wanted}
        self.late = late

    def __call__(self, entry: SynopsisEntry, groups: float, distinct: float) -> SynopsisEntry:
        """The synopsis with the cheapest kind."""
        identity = entry.where_key, tuple(sorted(k for _, k, _ in entry.groups))
        kind, why = choose_kind(
            _estimate_load(self.wanted[identity], groups, distinct, self.late, expiring=entry.expiring)
        )
        return replace(entry, kind=kind, why=why, slot_groups=groups, all_groups=distinct)


def _late_share(store: Store, view: StreamSnapshot) -> float:
    """The share of recent slides that took in late rows."""

    def read(tables: Tables) -> list[Any]:
        return [record for _, record in tables.items("slides", catalog_key(view.entry.id))][-_RECENT_SLIDES:]

    slides: list[SlideEntry] = store.catalog.read(read)
    return sum(slide.late > 0 for slide in slides) / len(slides) if slides else 0.0
