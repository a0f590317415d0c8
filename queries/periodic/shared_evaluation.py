"""Answers due queries together from synopses: each synopsis is brought up to date once, each window is merged once.

Queries that no synopsis answers are returned unanswered; so are all of them if a slide overtakes the snapshot.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.records import QueryEntry
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING, ScheduledQuery, SchedulingGroup, order_batches
from windrow.queries.priorities import YIELDING
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import array_answers, merged_answers
from windrow.queries.synopses.array_answers import WindowTotals
from windrow.queries.synopses.array_engine import ArraySynopsis, TooLargeError, can_use_arrays
from windrow.queries.synopses.kinds import BASIC
from windrow.queries.synopses.merged_answers import AnswerPlan, SynopsisWindow
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


@dataclass(frozen=True)
class PlannedQueries:
    """The due queries that synopses answer."""

    store: Store
    plans: Sequence[tuple[QueryEntry, AnswerPlan]]
    synopses: Mapping[str, CatalogSynopses]

    def answer(
        self, priority: int, policy: str = HYBRID_LATE_PENDING, late: Mapping[str, int] | None = None
    ) -> Iterator[SharedAnswer | QueryEntry]:
        """Answers of the queries of one priority, and those of them that synopses do not answer after all.

        Args:
            priority: Of the queries.
            policy: Which of them are executed together, and in which order.
            late: By how many slides each is past its deadline.
        """
        plans = {query.name: (query, plan) for query, plan in self.plans if query.priority == priority}
        for names in order_batches(policy, _group_plans(list(plans.values())), dict(late or {})):
            yield from _answer_group(self.store, [plans[name] for name in names], self.synopses)


def plan_queries(
    store: Store, snapshot: Snapshot, queries: Sequence[QueryEntry]
) -> tuple[PlannedQueries, list[QueryEntry]]:
    """Which of some due queries synopses answer, and the others."""
    plans: list[tuple[QueryEntry, AnswerPlan]] = []
    others: list[QueryEntry] = []
    synopses: dict[str, CatalogSynopses] = {}
    for query in queries:
        try:
            if query.params:
                raise CannotSplitError("it has parameters")
            plans.append((query, merged_answers.plan_answer(store, snapshot, query.sql, synopses)))
        except CannotSplitError:
            others.append(query)
    return PlannedQueries(store, plans, synopses), others


def _group_plans(plans: Sequence[tuple[QueryEntry, AnswerPlan]]) -> list[SchedulingGroup]:
    """Queries that may be executed together: over the same basic synopses, or over the same window of others."""
    groups: dict[tuple[object, ...], list[ScheduledQuery]] = {}
    kinds_of: dict[tuple[object, ...], str] = {}
    for query, plan in plans:
        entries = [source.entry for sources in plan.sources for source in sources]
        key: tuple[object, ...] = tuple(sorted({(entry.stream, entry.number) for entry in entries}))
        if any(entry.kind != BASIC for entry in entries):
            key = (*key, plan.statement.slots)
        member = ScheduledQuery(query.name, plan.statement.slots, query.paces[0].period, query.priority)
        groups.setdefault(key, []).append(member)
        kinds_of[key] = entries[0].kind
    return [SchedulingGroup(tuple(members), kinds_of[key]) for key, members in groups.items()]


def _answer_group(
    store: Store, plans: Sequence[tuple[QueryEntry, AnswerPlan]], synopses: Mapping[str, CatalogSynopses]
) -> list[SharedAnswer | QueryEntry]:
    """All answers of a group; a generator that is left half-way would hold the lock for good."""
    cache = node_cache_of(store)
    with cache.lock:
        try:
            merged, done = _merge_windows(store, cache, plans, synopses)
        except CannotSplitError:
            return [query for query, _ in plans]
        rest = [(query, plan) for query, plan in plans if query.name not in done]
        if len(rest) <= 1:
            return [*done.values(), *(_run_worker(cache, merged, rest) if rest else ())]
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="windrow-synopses") as pool:
            shares = [rest[number::_WORKERS] for number in range(_WORKERS)]
            answers = pool.map(lambda share: _run_worker(cache, merged, share), shares)
            return [*done.values(), *chain.from_iterable(answers)]


_MergedWindows = dict[tuple[int, int], dict[int, pa.Table]]
"""By synopsis: its merged windows, by length."""
_WindowUse = tuple[SynopsisWindow, QueryEntry, AnswerPlan]


def _merge_windows(
    store: Store,
    cache: NodeCache,
    plans: Sequence[tuple[QueryEntry, AnswerPlan]],
    synopses: Mapping[str, CatalogSynopses],
) -> tuple[_MergedWindows, dict[str, SharedAnswer]]:
    """Bring synopses up to date; merge all windows of basic ones in one pass, and answer queries on the way.

    The others are loaded into DuckDB.
    """
    array_uses, duckdb_plans = _choose_engines(plans)
    merged: _MergedWindows = {}
    done: dict[str, SharedAnswer] = {}
    for key, uses in array_uses.items():
        (source, _, plan) = max(uses, key=lambda use: use[2].statement.slots)
        changes = synopses[plan.view.name].changed[source.entry.number]
        try:
            arrays = cache.load_arrays(store, source.entry, changes, [node for node, _ in source.nodes])
            if arrays is None:
                raise CannotSplitError("a slide came meanwhile")
            merged[key], answers = _answer_by_arrays(arrays, plan.view.state.slide, uses)
            done |= answers
        except TooLargeError:
            cache.arrays.pop(key, None)
            duckdb_plans += [plan for _, _, plan in uses if plan not in duckdb_plans]
    if duckdb_plans:
        merged_answers.load_nodes(store, cache, duckdb_plans, synopses)
    return merged, done


def _answer_by_arrays(
    arrays: ArraySynopsis, slide: int | None, uses: Sequence[_WindowUse]
) -> tuple[dict[int, pa.Table], dict[str, SharedAnswer]]:
    """One pass: the answers that its totals give, and the windows that DuckDB finishes for the other queries."""
    assert slide is not None
    columns = {column for source, _, _ in uses for column in source.columns}
    lengths: dict[int, list[tuple[QueryEntry, AnswerPlan]]] = {}
    for _, query, plan in uses:
        lengths.setdefault(plan.statement.slots, []).append((query, plan))
    tables, done = {}, {}
    ranked = _find_ranked_column(arrays, [(source, plan) for source, _, plan in uses])
    for length, totals in arrays.walk(slide, lengths, columns):
        window, unanswered = WindowTotals(arrays, totals), False
        for query, plan in lengths[length]:
            started = time.perf_counter()
            array_form = plan.statement.array_form
            rows = None if array_form is None else array_answers.answer_from_totals(window, plan, array_form)
            if rows is None:
                unanswered = True
            else:
                done[query.name] = SharedAnswer(query, rows, time.perf_counter() - started, f"{plan.kinds} synopsis")
        if unanswered:
            tables[length] = arrays.table(totals, None if ranked is None else arrays.ranked(ranked))
    return tables, done


def _find_ranked_column(arrays: ArraySynopsis, uses: Sequence[tuple[SynopsisWindow, AnswerPlan]]) -> int | None:
    """The group column whose values are counted, if all users of the synopsis count the same one."""
    columns = set()
    for source, plan in uses:
        for need, sources in zip(plan.statement.shape.needs, plan.sources, strict=True):
            if sources[0] is source:
                columns.add(source.groups[-1] if need.counted and source.groups else None)
    column = columns.pop() if len(columns) == 1 else None
    return column if column is not None and arrays.rankable(column) else None


def _choose_engines(
    plans: Sequence[tuple[QueryEntry, AnswerPlan]],
) -> tuple[dict[tuple[int, int], list[_WindowUse]], list[AnswerPlan]]:
    """The synopses that arrays merge, with their uses, and the plans whose windows DuckDB merges."""
    array_uses: dict[tuple[int, int], list[_WindowUse]] = {}
    duckdb_plans = []
    for query, plan in plans:
        singles = [sources[0] for sources in plan.sources if len(sources) == 1 and can_use_arrays(sources[0].entry)]
        if len(singles) < len(plan.sources):
            duckdb_plans.append(plan)
            continue
        for source in singles:
            array_uses.setdefault((source.entry.stream, source.entry.number), []).append((source, query, plan))
    return array_uses, duckdb_plans


def _run_worker(
    cache: NodeCache, merged: _MergedWindows, plans: Sequence[tuple[QueryEntry, AnswerPlan]]
) -> list[SharedAnswer | QueryEntry]:
    """One worker's part."""
    with open_node_cursor(cache) as cursor:
        return [_answer_one(cache, cursor, merged, query, plan) for query, plan in plans]


def _answer_one(
    cache: NodeCache, cursor: Any, merged: _MergedWindows, query: QueryEntry, plan: AnswerPlan
) -> SharedAnswer | QueryEntry:
    YIELDING.pause()
    started = time.perf_counter()
    try:
        relations = [_merged_relation(cursor, merged, plan, number) for number in range(len(plan.sources))]
        if None in relations:
            rows = merged_answers.answer_plan(cache, cursor, plan)
        else:
            merged_relations = [relation for relation in relations if relation is not None]
            ranked = all(ranked for _, ranked in merged_relations)
            rows = merged_answers.finish_statement(cursor, plan, [text for text, _ in merged_relations], ranked=ranked)
    except (CannotSplitError, duckdb.Error):
        return query  # the answer from its rows will show what is wrong with it
    return SharedAnswer(query, rows, time.perf_counter() - started, f"{plan.kinds} synopsis")


def _merged_relation(cursor: Any, merged: _MergedWindows, plan: AnswerPlan, number: int) -> tuple[str, bool] | None:
    """The merged window of a need as SQL over a registered table, and if it is ranked; None if DuckDB must merge."""
    need, source = plan.statement.shape.needs[number], plan.sources[number][0]
    entry = source.entry
    windows = merged.get((entry.stream, entry.number))
    if windows is None or len(plan.sources[number]) > 1 or plan.statement.slots not in windows:
        return None
    rows = windows[plan.statement.slots]
    columns = {f"g{position}": rows.column(f"g{kept}") for position, kept in enumerate(source.groups)}
    columns |= {f"c{position}": rows.column(f"c{kept}") for position, kept in enumerate(source.columns)}
    ranked = need.counted and f"h_c{source.columns[0]}" in rows.column_names
    if ranked:
        for position, kept in enumerate(source.columns):
            columns |= {f"{p}_c{position}": rows.column(f"{p}_c{kept}") for p in ("h", "t")}
    columns["n"] = rows.column("c0")
    name = f"_merged{number}"
    cursor.register(name, pa.table(columns))
    typed = [f"CAST(g{position} AS {kind}) AS g{position}" for position, kind in enumerate(need.types)]
    values = [column_name for column_name in columns if column_name[0] not in "gn"]
    if need.groups:
        return f"SELECT {', '.join([*typed, *values])} FROM {name} WHERE n > 0", ranked or not need.counted
    # Without groups there is an answer even if no row is there.
    return f"SELECT {', '.join(f'any_value({value}) AS {value}' for value in values)} FROM {name} WHERE n > 0", True
