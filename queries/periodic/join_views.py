"""Views of joins that standing queries share: kept where they cost less than joining anew for each query, and hidden.

Synopses of such a view answer every query with that join (rule SS3). A view is made of the longest windows that are
asked for, out of the stored rows; it goes with the last query that it serves.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from windrow.catalog.environment import Tables
from windrow.catalog.records import JoinedWindows, QueryEntry, ViewEntry
from windrow.ddl import drop_stream
from windrow.definitions import HIDDEN_PREFIX
from windrow.errors import BusyError, UnknownStreamError, WindrowError
from windrow.locks import locked
from windrow.queries import execution
from windrow.queries.periodic.run_engine import DUCKDB
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import maintenance
from windrow.queries.synopses.cost_model import compare_join
from windrow.queries.synopses.join_statement import ColumnPlace, WindowJoin, column_name
from windrow.queries.synopses.query_shape import StandingJoin, read_join, read_standing_statement
from windrow.queries.synopses.synopsis_choice import keeps_always, reconcile_all, reconcile_stream, record_reasons
from windrow.queries.views.ddl import create_join_view, find_join_problem
from windrow.snapshot import Snapshot
from windrow.store import Store

_LOCK = 0
"""Of the lock for decisions on views of joins; streams are counted from 1."""


@dataclass(frozen=True)
class _SharedJoin:
    """A join, and the queries that have it."""

    queries: tuple[tuple[QueryEntry, StandingJoin], ...]

    @property
    def longest(self) -> WindowJoin:
        """The join with the longest windows."""
        return max((standing.split.join for _, standing in self.queries), key=lambda each: each.window)

    @property
    def columns(self) -> tuple[ColumnPlace, ...]:
        """What the queries read."""
        return tuple(sorted({place for _, standing in self.queries for place in standing.split.columns}))

    @property
    def names(self) -> list[str]:
        """Of the queries."""
        return [query.name for query, _ in self.queries]

    @property
    def streams(self) -> set[str]:
        """The names of what is joined."""
        return {stream.definition.name for stream in self.longest.streams}


def reconcile_synopses(store: Store, streams: Iterable[str]) -> None:
    """Keep what the standing queries over some streams need and what pays: views of joins, and synopses.

    Where another process decides just now, nothing is put down, and the next round tries again.
    """
    names, path = list(streams), store.lock_path(_LOCK)
    path.parent.mkdir(exist_ok=True)
    with contextlib.suppress(BusyError):
        with locked(path, "the choice of joins that are kept", 0.0, store.sleep):
            _reconcile_views(store, set(names))
        reconcile_all(store, names)


def renew_join_views(store: Store, stream: str) -> None:
    """Decide anew on views of joins of a stream, after they went because it was altered."""
    queries, _ = store.catalog.read(_read_records)
    if any(stream in entry.reads for entry in queries):
        reconcile_synopses(store, [stream])


def _reconcile_views(store: Store, streams: set[str]) -> None:
    """Keep the views that pay, drop all others; of joins of other streams, what was decided before holds."""
    queries, plans = store.catalog.read(_read_records)
    entries = [entry for entry in queries if entry.engine == DUCKDB and not entry.params]
    entries = [entry for entry in entries if len(read_standing_statement(store, entry.sql).references) > 1]
    if not plans and not entries:
        return
    with Snapshot(store) as snapshot:
        kept = {}
        for key, shared in _find_joins(store, snapshot, entries).items():
            existing = any(plan.joined is not None and plan.joined.key == key for plan in plans)
            why = find_join_problem(store, sorted(shared.streams))
            if not why and shared.streams & streams and not keeps_always():
                why = _compare(snapshot, shared, existing=existing)
            if why:
                record_reasons(store, [query for query, _ in shared.queries], dict.fromkeys(shared.names, why))
                continue
            if not existing and not shared.streams & streams:
                continue
            name = _find_view(snapshot, plans, shared) or _create(store, shared)
            if name is not None:
                kept[name] = shared
    for plan in plans:
        if plan.name not in kept:
            _drop(store, plan.name)
    for name, shared in kept.items():
        if shared.streams & streams:
            with contextlib.suppress(BusyError):
                if not reconcile_stream(store, name):
                    _drop(store, name)


def _read_records(tables: Tables) -> tuple[list[QueryEntry], list[ViewEntry]]:
    queries = [entry for _, entry in tables.items("queries")]
    return queries, [plan for _, plan in tables.items("plans") if plan.joined is not None]


def _find_joins(store: Store, snapshot: Snapshot, entries: Sequence[QueryEntry]) -> dict[str, _SharedJoin]:
    """The joins that views could be kept of, by their keys."""
    joins: dict[str, list[tuple[QueryEntry, StandingJoin]]] = {}
    for entry in entries:
        with contextlib.suppress(CannotSplitError):
            standing = read_join(store, snapshot, read_standing_statement(store, entry.sql))
            joins.setdefault(standing.split.join.key, []).append((entry, standing))
    return {key: _SharedJoin(tuple(queries)) for key, queries in joins.items()}


def _compare(snapshot: Snapshot, shared: _SharedJoin, *, existing: bool) -> str:
    """Why a view of a join is not worth what it costs; empty if it is."""
    if len(shared.queries) == 1:
        return "no other query has its join"
    join = shared.longest
    rows = 0.0
    for stream in join.streams:
        view, length = snapshot.view(stream.definition.name), join.window + stream.longer
        life = stream.definition.longest_life
        rows += view.segments.rows * (1.0 if life is None else min(1.0, length / life))
    counted = f"SELECT count(*) FROM ({join.view_sql(join.window, [join.equal[0][0]])})"
    try:
        with execution.answer_from_snapshot(snapshot.store, counted, snapshot=snapshot) as answer:
            (results,) = answer.fetchall()[0]
    except WindrowError as error:  # a window that is not complete yet, since rows live longer now
        return str(error)
    if results > rows:
        return f"its join multiplies rows: {results:,} from {rows:,.0f}"
    uses = [
        (-(-standing.split.join.window // join.slide), max(1, _find_period(snapshot, query) // join.slide))
        for query, standing in shared.queries
    ]
    needs = {need.identity for _, standing in shared.queries for need in standing.shape.needs}
    costs = compare_join(uses, -(-join.window // join.slide), rows, results, len(needs))
    return "" if costs.pays(existing=existing) else f"joining for each query costs less: a view of the join {costs}"


def _find_period(snapshot: Snapshot, query: QueryEntry) -> int:
    """The time between two runs of a query."""
    pace = query.paces[0]
    return pace.period * snapshot.view(pace.stream).entry.definition.slide


def _find_view(snapshot: Snapshot, plans: Sequence[ViewEntry], shared: _SharedJoin) -> str | None:
    """A view that serves all queries of a join."""
    join, wanted = shared.longest, {column_name(place) for place in shared.columns}
    names = [
        plan.name
        for plan in plans
        if plan.joined is not None and plan.joined.key == join.key and plan.joined.window >= join.window
    ]
    views = [snapshot.view(name) for name in names if name in snapshot.hidden()]
    return next((view.name for view in views if wanted <= set(view.schema.names)), None)


def _create(store: Store, shared: _SharedJoin) -> str | None:
    """Make a view over the longest windows; None if it cannot be, which is put down."""
    join = shared.longest
    name = f"{HIDDEN_PREFIX}join{maintenance.allocate_numbers(store, 1)}"
    joined = JoinedWindows(key=join.key, window=join.window)
    try:
        create_join_view(store, name, join.view_sql(join.window, shared.columns), joined)
    except BusyError:
        raise
    except WindrowError as error:
        record_reasons(store, [query for query, _ in shared.queries], dict.fromkeys(shared.names, str(error)))
        return None
    return name


def _drop(store: Store, name: str) -> None:
    with contextlib.suppress(UnknownStreamError, BusyError):
        drop_stream(store, name, view=True)
