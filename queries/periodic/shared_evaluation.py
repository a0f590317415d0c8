"""Due queries answered together: synopses are brought up to date once, and each window is merged once for all who ask.

What no synopsis answers is handed back; so is everything if a slide overtakes the snapshot meanwhile.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING, ScheduledQuery, SchedulingGroup, order_batches
from windrow.queries.priorities import BACKGROUND, PROCESS_GATE
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import array_answers, evaluate, node_store
from windrow.queries.synopses.array_answers import WindowTotals
from windrow.queries.synopses.array_engine import ArraySynopsis, TooLargeError, can_use_arrays
from windrow.queries.synopses.evaluate import AnswerPlan, SynopsisWindow
from windrow.queries.synopses.kinds import BASIC
from windrow.queries.synopses.node_cache import CatalogSynopses, NodeCache, node_cache_of, open_node_cursor
from windrow.snapshot import Snapshot
from windrow.store import Store

_WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class SharedAnswer:
    """One query's answer."""

    query: QueryEntry
    rows: pa.Table
    seconds: float
    how: str


def answer_from_synopses(
    store: Store,
    snapshot: Snapshot,
    queries: Sequence[QueryEntry],
    policy: str = HYBRID_LATE_PENDING,
    late: Mapping[str, int] | None = None,
) -> Iterator[SharedAnswer | QueryEntry]:
    """Answers out of synopses, and the queries that synopses do not answer.

    Args:
        store: The warehouse.
        snapshot: What is asked.
        queries: Those that are due.
        policy: Which of them are executed together, and in which order.
        late: By how many slides each is past its deadline.
    """
    plans: list[tuple[QueryEntry, AnswerPlan]] = []
    seen: dict[str, CatalogSynopses] = {}
    for query in queries:
        try:
            if query.params:
                raise CannotSplitError("it has parameters")
            plans.append((query, evaluate.plan_answer(store, snapshot, query.sql, seen)))
        except CannotSplitError:
            yield query
    by_name = {query.name: (query, planned) for query, planned in plans}
    for names in order_batches(policy, _group_plans(plans), dict(late or {})):
        yield from _answer_group(store, [by_name[name] for name in names], seen)


def _group_plans(plans: Sequence[tuple[QueryEntry, AnswerPlan]]) -> list[SchedulingGroup]:
    """Queries that may be executed together: over the same basic synopses, or over the same window of others."""
    groups: dict[tuple[object, ...], list[ScheduledQuery]] = {}
    kinds_of: dict[tuple[object, ...], str] = {}
    for query, planned in plans:
        entries = [source.entry for sources in planned.sources for source in sources]
        at: tuple[object, ...] = tuple(sorted({(entry.stream, entry.number) for entry in entries}))
        if any(entry.kind != BASIC for entry in entries):
            at = (*at, planned.asked.slots)
        member = ScheduledQuery(query.name, planned.asked.slots, query.paces[0].period, query.priority)
        groups.setdefault(at, []).append(member)
        kinds_of[at] = entries[0].kind
    return [SchedulingGroup(tuple(members), kinds_of[at]) for at, members in groups.items()]


def _answer_group(
    store: Store, plans: Sequence[tuple[QueryEntry, AnswerPlan]], seen: Mapping[str, CatalogSynopses]
) -> Iterator[SharedAnswer | QueryEntry]:
    shelf = node_cache_of(store)
    with shelf.lock:
        try:
            merged, done = _merge_windows(store, shelf, plans, seen)
        except CannotSplitError:
            yield from (query for query, _ in plans)
            return
        yield from done.values()
        rest = [(query, planned) for query, planned in plans if query.name not in done]
        if len(rest) <= 1:
            with open_node_cursor(shelf) as cursor:
                yield from (_answer_one(shelf, cursor, merged, *each) for each in rest)
            return
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="windrow-synopses") as pool:
            shares = [rest[at::_WORKERS] for at in range(_WORKERS)]
            for answered in pool.map(lambda share: _run_worker(shelf, merged, share), shares):
                yield from answered


_MergedWindows = dict[tuple[int, int], dict[int, pa.Table]]
"""By synopsis: its merged windows, by length."""
_WindowUse = tuple[SynopsisWindow, QueryEntry, AnswerPlan]


def _merge_windows(
    store: Store, shelf: NodeCache, plans: Sequence[tuple[QueryEntry, AnswerPlan]], seen: Mapping[str, CatalogSynopses]
) -> tuple[_MergedWindows, dict[str, SharedAnswer]]:
    """Bring synopses up to date; of basic ones merge all windows in one pass, and answer whom it answers on the way.

    The others are loaded into DuckDB.
    """
    passing, rest = _choose_engines(plans)
    merged: _MergedWindows = {}
    done: dict[str, SharedAnswer] = {}
    for at, uses in passing.items():
        (source, _, planned) = max(uses, key=lambda use: use[2].asked.slots)
        there = seen[planned.view.name].changed[source.entry.number]
        try:
            passed = shelf.passed(store, source.entry, there, [node for node, _ in source.nodes])
            if passed is None:
                raise CannotSplitError("a slide came meanwhile")
            merged[at], answered = _answer_by_arrays(passed, planned.view.state.slide, uses)
            done |= answered
        except TooLargeError:
            shelf.passes.pop(at, None)
            rest += [planned for _, _, planned in uses if planned not in rest]
    if rest:
        evaluate.load_nodes(store, shelf, rest)
    return merged, done


def _answer_by_arrays(
    passed: ArraySynopsis, slide: int | None, uses: Sequence[_WindowUse]
) -> tuple[dict[int, pa.Table], dict[str, SharedAnswer]]:
    """One pass: answers straight from its totals, and the windows that DuckDB finishes for the others."""
    assert slide is not None
    names = node_store.name_columns(passed.entry)
    columns = {int(names[c.key][1:]) for _, _, p in uses for need in p.asked.shape.needs for c in need.columns
               if c.key in names}  # fmt: skip
    lengths: dict[int, list[tuple[QueryEntry, AnswerPlan]]] = {}
    for _, query, planned in uses:
        lengths.setdefault(planned.asked.slots, []).append((query, planned))
    tables, done = {}, {}
    ranked = _find_ranked_column(passed, [(source, planned) for source, _, planned in uses])
    for length, totals in passed.walk(slide, lengths, columns):
        window, left = WindowTotals(passed, totals), False
        for query, planned in lengths[length]:
            started = time.perf_counter()
            direct = planned.asked.direct
            rows = None if direct is None else array_answers.answer_from_totals(window, planned, direct)
            if rows is None:
                left = True
            else:
                done[query.name] = SharedAnswer(query, rows, time.perf_counter() - started, f"{planned.kinds} synopsis")
        if left:
            tables[length] = passed.table(totals, None if ranked is None else passed.ranked(ranked))
    return tables, done


def _find_ranked_column(passed: ArraySynopsis, uses: Sequence[tuple[SynopsisWindow, AnswerPlan]]) -> int | None:
    """The group column whose values are counted, if all who use the synopsis count the same one."""
    columns = set()
    for source, planned in uses:
        for need, sources in zip(planned.asked.shape.needs, planned.sources, strict=True):
            if sources[0] is source:
                places = node_store.find_group_positions(source.entry, need)
                columns.add(places[-1] if need.counted and places else None)
    column = columns.pop() if len(columns) == 1 else None
    return column if column is not None and passed.rankable(column) else None


def _choose_engines(
    plans: Sequence[tuple[QueryEntry, AnswerPlan]],
) -> tuple[dict[tuple[int, int], list[_WindowUse]], list[AnswerPlan]]:
    """Which synopses are passed over, and for whom; and plans that need DuckDB to merge for them."""
    passing: dict[tuple[int, int], list[_WindowUse]] = {}
    rest = []
    for query, planned in plans:
        singles = [sources[0] for sources in planned.sources if len(sources) == 1 and can_use_arrays(sources[0].entry)]
        if len(singles) < len(planned.sources):
            rest.append(planned)
            continue
        for source in singles:
            passing.setdefault((source.entry.stream, source.entry.number), []).append((source, query, planned))
    return passing, rest


def _run_worker(
    shelf: NodeCache, merged: _MergedWindows, plans: Sequence[tuple[QueryEntry, AnswerPlan]]
) -> list[SharedAnswer | QueryEntry]:
    """One worker's part."""
    with open_node_cursor(shelf) as cursor:
        return [_answer_one(shelf, cursor, merged, query, planned) for query, planned in plans]


def _answer_one(
    shelf: NodeCache, cursor: Any, merged: _MergedWindows, query: QueryEntry, planned: AnswerPlan
) -> SharedAnswer | QueryEntry:
    PROCESS_GATE.pause(BACKGROUND)
    started = time.perf_counter()
    try:
        relations = [_merged_relation(cursor, merged, planned, number) for number in range(len(planned.sources))]
        if None in relations:
            rows = evaluate.answer_plan(shelf, cursor, planned)
        else:
            told = [relation for relation in relations if relation is not None]
            ranked = all(ranked for _, ranked in told)
            rows = evaluate.finish_statement(cursor, planned, [text for text, _ in told], ranked=ranked)
    except (CannotSplitError, duckdb.Error):
        return query  # its rows will say what is wrong with it
    return SharedAnswer(query, rows, time.perf_counter() - started, f"{planned.kinds} synopsis")


def _merged_relation(cursor: Any, merged: _MergedWindows, planned: AnswerPlan, number: int) -> tuple[str, bool] | None:
    """What was merged for a need, as a relation on the cursor, and whether it is ranked; None if DuckDB must merge."""
    need, source = planned.asked.shape.needs[number], planned.sources[number][0]
    entry = source.entry
    windows = merged.get((entry.stream, entry.number))
    if windows is None or len(planned.sources[number]) > 1 or planned.asked.slots not in windows:
        return None
    rows, places, names = (
        windows[planned.asked.slots],
        node_store.find_group_positions(entry, need),
        node_store.name_columns(entry),
    )
    assert places is not None
    columns = {f"g{at}": rows.column(f"g{place}") for at, place in enumerate(places)}
    columns |= {f"c{at}": rows.column(names[column.key]) for at, column in enumerate(need.columns)}
    ranked = need.counted and f"h_{names[need.columns[0].key]}" in rows.column_names
    if ranked:
        for at, column in enumerate(need.columns):
            columns |= {f"{p}_c{at}": rows.column(f"{p}_{names[column.key]}") for p in ("h", "t")}
    columns["n"] = rows.column("c0")
    name = f"_merged{number}"
    cursor.register(name, pa.table(columns))
    typed = [f"CAST(g{at} AS {kind}) AS g{at}" for at, kind in enumerate(need.types)]
    values = [each for each in columns if each[0] not in "gn"]
    if need.groups:
        return f"SELECT {', '.join([*typed, *values])} FROM {name} WHERE n > 0", ranked or not need.counted
    # Without groups there is an answer even if no row is there.
    return f"SELECT {', '.join(f'any_value({value}) AS {value}' for value in values)} FROM {name} WHERE n > 0", True
