"""What executions cost, in merges of states: the relative cost model behind kinds of synopsis and aligned periods.

Keeping a synopsis costs the same under every schedule, so a schedule is judged by what answering costs per slide.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from windrow.queries.synopses.kinds import BASIC, INTERVAL, KINDS, RUNNING

T = TypeVar("T", bound=Hashable)

SCHEDULE_HORIZON = 2520
"""Slides over which a schedule is averaged where its periods do not come together sooner."""
_SHORT_HORIZON = 360
"""The same while many ways of aligning are tried."""
_MAX_EXHAUSTIVE = 6
"""Up to so many sub-groups every way of aligning them is compared. These three bound the time of planning."""


@dataclass(frozen=True)
class SubGroup:
    """Queries of one group with the same period.

    Args:
        period: In slides.
        windows: Their lengths in slots.
        finishing: What it costs to finish their answers, in merges.
    """

    period: int
    windows: tuple[int, ...]
    finishing: float = 0.0


@dataclass(frozen=True)
class Alignment:
    """Sub-groups, and the period at which each is executed."""

    periods: tuple[int, ...]
    cost: float
    """Per slide."""


def execution_cost(kind: str, windows: Iterable[int]) -> float:
    """Merges for one joint execution of queries over windows of so many slots.

    One pass from youngest to oldest over a basic synopsis answers all shorter windows on the way; of the other kinds
    each window is put together from nodes of its own.
    """
    lengths = set(windows)
    if not lengths:
        return 0.0
    if kind == BASIC:
        return float(max(lengths) - 1)
    if kind == RUNNING:
        return float(len(lengths))
    return float(sum(max(1, 2 * math.log2(n) - 2) if n > 1 else 0 for n in lengths))


def schedule_cost(
    kind: str, groups: Sequence[SubGroup], periods: Sequence[int], horizon: int = SCHEDULE_HORIZON
) -> float:
    """The mean cost per slide if each sub-group is executed at its period, and together with whoever is due too."""
    span = min(math.lcm(*periods), horizon) if periods else 1
    ticks = np.arange(1, span + 1)
    due = [ticks % period == 0 for period in periods]
    total = np.zeros(span)
    for group, mask in zip(groups, due, strict=True):
        total += mask * group.finishing
    if kind == BASIC:
        scans = np.zeros(span)
        for group, mask in zip(groups, due, strict=True):
            scans = np.maximum(scans, mask * execution_cost(kind, group.windows))
        return float((total + scans).mean())
    lengths = {n for group in groups for n in group.windows}
    for n in lengths:
        wanted = np.zeros(span, bool)
        for group, mask in zip(groups, due, strict=True):
            if n in group.windows:
                wanted |= mask
        total += wanted * execution_cost(kind, (n,))
    return float(total.mean())


def align_periods(kind: str, groups: Sequence[SubGroup]) -> Alignment:
    """The cheapest way of shortening periods so that sub-groups are executed together (hybrid scheduling).

    Sub-groups that are aligned take the shortest period among them. A few are compared in every way; many are joined
    step by step, each with one of the next shorter or a dividing period, as long as that helps.
    """
    return _align_cached(kind, tuple(groups))


@lru_cache(maxsize=512)
def _align_cached(kind: str, groups: tuple[SubGroup, ...]) -> Alignment:
    if not groups:
        return Alignment((), 0.0)
    if len(groups) <= _MAX_EXHAUSTIVE:
        return min((_make_alignment(kind, groups, blocks) for blocks in _partitions(len(groups))), key=lambda a: a.cost)
    blocks = [[position] for position in sorted(range(len(groups)), key=lambda position: groups[position].period)]
    best = _make_alignment(kind, groups, blocks, _SHORT_HORIZON)
    while True:
        better = None
        for first, second in _joinable_blocks([groups[block[0]].period for block in blocks]):
            tried = [
                [*block, *(blocks[second] if position == first else ())]
                for position, block in enumerate(blocks)
                if position != second
            ]
            alignment = _make_alignment(kind, groups, tried, _SHORT_HORIZON)
            if alignment.cost < best.cost - 1e-12:
                best, better = alignment, tried
        if better is None:
            return _make_alignment(kind, groups, blocks)
        blocks = better


def _joinable_blocks(periods: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Blocks that may be joined: a longer period with the next shorter one, or with one that divides it."""
    for second in range(1, len(periods)):
        for first in range(second):
            if first == second - 1 or periods[second] % periods[first] == 0:
                yield first, second


def _make_alignment(
    kind: str, groups: Sequence[SubGroup], blocks: Sequence[Sequence[int]], horizon: int = SCHEDULE_HORIZON
) -> Alignment:
    periods = [0] * len(groups)
    for block in blocks:
        for position in block:
            periods[position] = min(groups[member].period for member in block)
    return Alignment(tuple(periods), schedule_cost(kind, groups, periods, horizon))


def _partitions(count: int) -> Iterator[list[list[int]]]:
    """Every way of putting numbers into blocks."""
    if count == 0:
        yield []
        return
    for rest in _partitions(count - 1):
        yield [*rest, [count - 1]]
        for position in range(len(rest)):
            yield [*rest[:position], [*rest[position], count - 1], *rest[position + 1 :]]


@dataclass(frozen=True)
class SynopsisLoad:
    """What a synopsis is for and what comes in.

    Args:
        slots: How far it must reach back.
        groups: Rows of a slot's node.
        distinct: Rows of all slots merged.
        late: Late slots that a slide touches, on average.
        uses: Window and period, in slots, of each query.
        subtractable: Whether every column can be taken out again exactly.
        passing: What a row costs in one pass over a basic synopsis, where merging it in DuckDB costs 1.
        shares: What part of each query it answers; other synopses answer the rest. Nothing: all of it.
    """

    slots: int
    groups: float
    distinct: float
    late: float
    uses: tuple[tuple[int, int], ...]
    subtractable: bool
    passing: float = 1.0
    shares: tuple[float, ...] = ()


def kind_costs(load: SynopsisLoad) -> dict[str, float]:
    """What each kind that is possible costs per slide: keeping and answering, in rows that are read or written."""
    by_period: dict[int, list[int]] = {}
    for window, period in load.uses:
        by_period.setdefault(period, []).append(window)
    groups = [SubGroup(period, tuple(windows)) for period, windows in sorted(by_period.items())]
    costs = {}
    for kind in KINDS:
        if kind == RUNNING and not load.subtractable:
            continue
        # Nodes of an interval synopsis grow with their level until they hold every group there is.
        size = {BASIC: load.groups, INTERVAL: min(load.distinct, load.groups * 2), RUNNING: load.distinct}[kind]
        depth = max(1.0, math.log2(max(load.slots, 2)))
        keeping = {
            BASIC: load.groups * (1 + load.late),
            INTERVAL: load.groups * (1 + load.late) + size * (1 + load.late * depth),
            RUNNING: load.distinct * (2 + load.late * load.slots / 2),
        }[kind]
        periods = align_periods(kind, groups).periods if len(groups) <= _MAX_EXHAUSTIVE else [g.period for g in groups]
        row = load.passing if kind == BASIC else 1.0
        costs[kind] = keeping + row * size * schedule_cost(kind, groups, list(periods))
    return costs


def choose_kind(load: SynopsisLoad) -> tuple[str, str]:
    """The cheapest kind, and why."""
    costs = kind_costs(load)
    best = min(costs, key=lambda kind: (costs[kind], KINDS.index(kind)))
    costs_text = ", ".join(f"{kind} {cost:,.0f}" for kind, cost in sorted(costs.items(), key=lambda item: item[1]))
    return best, f"rows per slide: {costs_text}"


# -- a synopsis, or the rows ------------------------------------------------------------------------------------------

_SHARED_STATEMENT, _SHARED_ROW = 2.0e-3, 17e-9
_SCAN_ROW = 42e-9
_STATEMENT, _BUILD, _MERGE = 1.2e-3, 1.45e-3, 4.5e-3
_ARRAY_BUILD, _ARRAY_PASS, _ARRAY_ANSWER = 0.2e-3, 1.8e-3, 0.1e-3
_KEPT_BYTE = 4e-9
_FETCH, _FETCHED_ROW = 2.5e-3, 0.3e-6
_VIEW, _RESULT = 12e-3, 0.5e-6
"""Seconds of processor time as measured on one machine (`bench standing`, with windows of 60 slots); only their ratios
matter: to run a statement over shared rows, and to read one of them; to read a row where a node is made or streams are
joined; to run a statement that joins or finishes answers, to make a node, to merge a window's nodes, each in DuckDB; by
arrays, to make a node, to walk over a synopsis for all its users, to answer one of them; to write or merge a byte of a
node; to put a slide's rows where DuckDB makes nodes of them, and each of these rows; to move a view of a join with a
slide, and for each result that it gets."""
BUDGET = 1.0
"""Bytes that the synopses of a stream may take, as a multiple of those of its window."""
_NEW_FACTOR, _OLD_FACTOR = 0.8, 1.5
"""A new synopsis must cost less than this share of what its users' rows cost; one that is there may cost so much more,
since whoever changes his mind pays for a pass over the window. A judgement, not a measurement, as is `BUDGET`."""


@dataclass(frozen=True)
class SynopsisCosts:
    """What a synopsis costs and saves per slide.

    Args:
        kept: Seconds to keep it and to answer from it.
        rows: Seconds to answer the same queries from rows that they share.
        size: Bytes of all its nodes.
    """

    kept: float
    rows: float
    size: float
    by_arrays: bool = False
    """Whether its nodes are made without DuckDB."""

    def pays(self, *, existing: bool) -> bool:
        """Whether it is worth keeping."""
        return self.kept < self.rows * (_OLD_FACTOR if existing else _NEW_FACTOR)

    @property
    def usefulness(self) -> float:
        """What it saves for each byte."""
        return (self.rows - self.kept) / max(1.0, self.size)

    def __str__(self) -> str:
        return f"{self.kept * 1e3:.1f} ms a slide, from its rows {self.rows * 1e3:.1f} ms"


def compare_with_rows(
    kind: str,
    load: SynopsisLoad,
    reach: int,
    slot_rows: float,
    slot_bytes: float,
    slot_stored: float,
    *,
    built_by_arrays: bool,
    finished: float = 0.0,
) -> SynopsisCosts:
    """What a synopsis of a kind costs beside its users' rows.

    Args:
        kind: Of the synopsis.
        load: What it is for.
        reach: How many slots are kept.
        slot_rows: Rows of the stream in a slot.
        slot_bytes: Bytes of a slot's node in memory.
        slot_stored: Bytes of a slot's node in the catalog.
        built_by_arrays: Whether new rows are aggregated without DuckDB.
        finished: Statements that DuckDB has to finish in a slide, even where arrays merge the nodes.
    """
    by_arrays = kind == BASIC and load.passing < 1.0
    nodes = {BASIC: 1.0, INTERVAL: 2.0, RUNNING: max(1.0, load.distinct / max(1.0, load.groups))}[kind]
    building = (_ARRAY_BUILD if built_by_arrays else _BUILD) + slot_rows * _SCAN_ROW * (0.2 if built_by_arrays else 1)
    keeping = building + (0 if kind == BASIC else _BUILD) + nodes * slot_bytes * _KEPT_BYTE
    answering = 0.0
    for window, period in load.uses:
        merged = execution_cost(kind, (window,)) + 1
        answering += (_ARRAY_ANSWER if by_arrays else _MERGE + merged * slot_bytes * _KEPT_BYTE) / period
    if by_arrays and load.uses:  # one pass for all of them
        longest = max(window / period for window, period in load.uses)
        answering += longest * slot_bytes * _KEPT_BYTE * load.passing + finished * _STATEMENT
        answering += _ARRAY_PASS / min(period for _, period in load.uses)
    return SynopsisCosts(
        keeping + answering,
        cost_of_rows(load.uses, slot_rows, load.shares),
        reach * nodes * slot_stored,
        built_by_arrays,
    )


def compare_join(
    uses: Sequence[tuple[int, int]], slots: int, rows: float, results: float, synopses: int
) -> SynopsisCosts:
    """What a view of a join and its synopses cost, beside joining for each query.

    Args:
        uses: Window and period, in slots, of each query.
        slots: Of the longest windows.
        rows: In these.
        results: Of the join over these.
        synopses: How many are made of the view, at most.
    """
    came = 2 * results / max(1, slots)  # a result lives for half of a window, on average
    kept = _VIEW + came * _RESULT + synopses * (_BUILD + came * _SCAN_ROW) + len(uses) * _ARRAY_ANSWER
    return SynopsisCosts(kept, cost_of_rows(uses, (rows + results) / max(1, slots), joining=True), 0.0)


def cost_of_rows(
    uses: Sequence[tuple[int, int]], slot_rows: float, shares: Sequence[float] = (), *, joining: bool = False
) -> float:
    """Seconds per slide to run statements over rows that they share, with windows and periods in slots.

    With `shares`, only so much of each counts. A statement that joins streams costs more for each row.
    """
    statement, row = (_STATEMENT, _SCAN_ROW) if joining else (_SHARED_STATEMENT, _SHARED_ROW)
    return sum(
        share * (statement + window * slot_rows * row) / period
        for (window, period), share in zip(uses, shares or (1.0,) * len(uses), strict=True)
    )


def sum_costs(costs: Iterable[SynopsisCosts], slot_rows: float) -> SynopsisCosts:
    """What several synopses cost together whose nodes DuckDB makes: a slide's rows are put there once for all of them.

    Each may pay if the others are there anyway, and a few of them may still cost more than they save.
    """
    each = list(costs)
    fetching = _FETCH + slot_rows * _FETCHED_ROW
    return SynopsisCosts(fetching + sum(c.kept for c in each), sum(c.rows for c in each), sum(c.size for c in each))


def fit_budget(costs: Mapping[T, SynopsisCosts], budget: float) -> set[T]:
    """Those that fit into so many bytes together, the most useful ones first."""
    chosen, room = set(), budget
    for key, cost in sorted(costs.items(), key=lambda item: -item[1].usefulness):
        if cost.size <= room:
            chosen.add(key)
            room -= cost.size
    return chosen
