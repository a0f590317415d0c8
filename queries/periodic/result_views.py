"""Views of results: computed anew when the runs that they read have been delivered, in a commit of their own.

Such a view stands at the newest time for which every query that it reads has delivered what was due, and holds what its
statement gives over the results up to there. A crash between a delivery and the view leaves it one step behind, with a
clock that says so; the next round moves it.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from windrow import arguments
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import QueryEntry, QueryState, StreamEntry, StreamState, ViewEntry
from windrow.ddl import choose_first_layout, make_stream_folders, record_stream
from windrow.definitions import StreamDefinition
from windrow.errors import QueryError, ViewError
from windrow.files import disk_errors
from windrow.formats.text import type_name
from windrow.locks import locked
from windrow.queries import execution
from windrow.queries.answer import Answer
from windrow.queries.periodic.due import is_due, read_committed_slides
from windrow.queries.periodic.result_store import StoredResults, is_changed_by_files, read_stored_results
from windrow.queries.periodic.retained_slides import prepare_retention
from windrow.queries.sql.statement import Statement, parse, refuse_past
from windrow.queries.sql.window_spec import RangeWindow
from windrow.queries.statement_context import StatementContext
from windrow.queries.synopses.maintenance import prepare_synopses
from windrow.queries.synopses.synopsis_choice import reconcile_all
from windrow.queries.views.ddl import (
    View,
    ViewOptions,
    check_free_name,
    choose_slots,
    expand_statement,
    list_views,
    make_view_definition,
)
from windrow.queries.views.inputs import UpdateInterval
from windrow.queries.views.planner import check_statement
from windrow.queries.views.slide_hook import LOCK_SECONDS, ViewUpdates
from windrow.queries.views.storage import ViewSlide, to_stream_rows
from windrow.queries.views.update_patterns import Pattern
from windrow.reference_tables import find_table
from windrow.slide_hooks import SlideHook, prepare_contributions
from windrow.snapshot import Snapshot
from windrow.store import Store

_HOOKS = (SlideHook("keepers", lambda: prepare_retention), SlideHook("synopses", lambda: prepare_synopses))
"""What may depend on such a view: periodic queries. Views that read it read its results themselves."""


@dataclass(frozen=True)
class _Step:
    """Where a view of results is to be."""

    clock: int
    again: bool
    """It stays at its clock, but results that it read were revised."""


def reads_results(store: Store, name: str, sql: str) -> bool:
    """Whether the statement of a view reads results of periodic queries."""
    arguments.check_statement(sql)
    references = parse(expand_statement(store, name, sql)).references
    queries = store.catalog.read(lambda tables: {entry.name.lower() for _, entry in tables.items("queries")})
    return any(not reference.schema and reference.name.lower() in queries for reference in references)


def create_view(store: Store, name: str, sql: str, options: ViewOptions) -> View:
    """Declare a view of results, fill it from those that are there, and return its description."""
    store.check_writable()
    if options.restore:
        raise ViewError(f"view {name!r} reads results, of which none is lost between two slides; leave restore out")
    if options.keep is not None:
        raise ViewError(f"view {name!r} reads results, which their queries keep as long as their own keep= says")
    written, sql = sql, expand_statement(store, name, sql)
    statement = parse(sql)
    refuse_past(statement.references, "a view")
    with Snapshot(store) as snapshot:
        check_free_name(snapshot, name)
        queries = store.catalog.read(lambda tables: _find_queries(tables, name, statement, snapshot))
        tables_read = _check_relations(name, statement, snapshot, queries, options.retroactive)
        draft = ViewEntry(
            id=0,
            name=name,
            sql=sql,
            inputs={},
            tables=tables_read,
            retroactive=options.retroactive,
            recompute=True,
            why=f"it is computed anew when {', '.join(queries)} {'has' if len(queries) == 1 else 'have'} delivered",
            written="" if sql == written else written,
            results={query.name: query.id for query in queries.values()},
        )
        followed = [snapshot.view(query.paces[0].stream).entry.definition for query in queries.values()]
        step, origin = choose_slots(followed, [], name, options.slide)
        columns = _describe_columns(store, draft, snapshot)
        definition = make_view_definition(draft, columns, followed, step, origin, step, None, Pattern.STRICT, options)
        layout = choose_first_layout(definition, options.index)
        with disk_errors(f"creating view {name!r}"), store.catalog.write() as tables:
            for table in draft.tables:
                find_table(tables, table)
            for query in queries.values():
                if tables.get("queries", query.name.encode()) != query:
                    raise ViewError(f"query {query.name!r} was dropped meanwhile; view {name!r} was not created")
            entry = record_stream(tables, definition, layout, store.clock())
            tables.put("plans", catalog_key(entry.id), replace(draft, id=entry.id))
    make_stream_folders(store, name)
    _move(store, entry.id)
    store.files.reach("view.created")
    return next(view for view in list_views(store) if view.name == name)


def _find_queries(tables: Tables, name: str, statement: Statement, snapshot: Snapshot) -> dict[str, QueryEntry]:
    """The queries whose results a statement reads, by name; refuses what it may not read beside them."""
    by_name: dict[str, QueryEntry] = {entry.name.lower(): entry for _, entry in tables.items("queries")}
    streams = {stream.lower(): stream for stream in snapshot.streams()}
    chosen: dict[str, QueryEntry] = {}
    for reference in statement.references:
        folded = reference.name.lower()
        if reference.schema:
            raise ViewError(f"view {name!r}: windrow.{reference.name} is of the catalog; a view reads no system tables")
        if folded in streams:
            raise ViewError(
                f"view {name!r} reads results, which come with runs, and {streams[folded]!r}, whose rows come with "
                "slides; add a query that reads both, and make this a view of its results"
            )
        if folded in by_name:
            chosen[by_name[folded].name] = by_name[folded]
            if isinstance(reference.window, RangeWindow) and reference.window.slide is not None:
                raise ViewError(f"view {name!r}: a view moves with its inputs; leave SLIDE out of {reference.window}")
    return chosen


def _check_relations(
    name: str, statement: Statement, snapshot: Snapshot, queries: Mapping[str, QueryEntry], retroactive: Sequence[str]
) -> tuple[str, ...]:
    """Refuse what no view may contain; gives the tables that it reads."""
    check_statement(name, statement)
    by_name = {table.lower(): table for table in snapshot.tables}
    results = {query.lower() for query in queries}
    names = {reference.name.lower() for reference in statement.references} - results
    read = [by_name[name] for name in sorted(names) if name in by_name]
    for table in retroactive:
        if table not in read:
            raise ViewError(f"view {name!r} does not read table {table!r}; leave it out of retroactive")
    return tuple(read)


def _describe_columns(store: Store, view: ViewEntry, snapshot: Snapshot) -> list[pa.Field]:
    """The columns that the statement gives."""
    # Results of no run: the columns do not depend on the rows.
    with _answer(store, view, snapshot, None) as answer:
        schema = answer.schema
    for field in schema:
        if is_changed_by_files(field):
            raise ViewError(
                f"view {view.name!r}: column {field.name!r} is of type {type_name(field)}; cast it to another"
            )
    return list(schema)


def _answer(store: Store, view: ViewEntry, snapshot: Snapshot, clock: int | None) -> Answer:
    return execution.answer_from_snapshot(store, view.sql, snapshot=snapshot, context=_results_up_to(view, clock))


def _results_up_to(view: ViewEntry, clock: int | None) -> StatementContext:
    """What the view's statement can read: results of runs up to a time; None: of none."""

    def find_results(snapshot: Snapshot, names: Collection[str] | None = None) -> dict[str, StoredResults]:
        def read(tables: Tables) -> dict[str, StoredResults]:
            delivered = {}
            for name in view.results:
                if names is None or name.lower() in names:
                    entry: QueryEntry = tables.get("queries", name.encode())
                    model = snapshot.view(entry.paces[0].stream).model
                    upto = -(1 << 62) if clock is None else model.last_slot(clock)
                    delivered[name] = read_stored_results(tables, entry, snapshot.version, upto)
            return delivered

        return snapshot.store.catalog.read(read)

    return StatementContext(find_results)


# -- where a view of results stands ---------------------------------------------------------------------------------


def _find_step(tables: Tables, view: ViewEntry) -> _Step | None:
    """Where a view is to be, None if it is there."""
    entry: StreamEntry = tables.get("streams", view.name.encode())
    state: StreamState = tables.get("states", catalog_key(view.id))
    delivered, limits, revised = [], [], 0
    for name, number in view.results.items():
        query: QueryEntry = tables.get("queries", name.encode())
        query_state: QueryState = tables.get("paced", catalog_key(number))
        definitions = {pace.stream: tables.get("streams", pace.stream.encode()).definition for pace in query.paces}
        if query_state.delivered is not None:
            delivered.append(definitions[query.paces[0].stream].model.slot_end(query_state.delivered))
        limit = _find_limit(query, query_state, read_committed_slides(tables, query), definitions)
        limits += [] if limit is None else [limit]
        revised = max(revised, query_state.revised_at)
    if not delivered:
        return None
    model = entry.definition.model
    slide = model.last_slot(min(max(delivered), *limits) if limits else max(delivered))
    if state.slide is None or slide > state.slide:
        return _Step(int(model.slot_end(slide)), again=False)
    return _Step(int(model.slot_end(state.slide)), again=True) if revised > view.seen else None


def _find_limit(
    query: QueryEntry,
    state: QueryState,
    committed: Mapping[str, int],
    definitions: Mapping[str, StreamDefinition],
) -> int | None:
    """Up to when all runs that were due are delivered; None if none is waited for."""
    if not is_due(query.paces, state.reached, committed) or (query.missed == "skip" and state.seen != committed):
        return None
    first = query.paces[0].stream
    model = definitions[first].model

    def is_due_at(slide: int) -> bool:
        end = model.slot_end(slide)
        slides = {name: min(reached, definitions[name].model.last_slot(end)) for name, reached in committed.items()}
        return is_due(query.paces, state.reached, slides)

    high = committed[first]
    low = state.reached.get(first, high - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_due_at(middle) else (middle, high)
    return int(model.slot_end(low))


def move_result_views(store: Store) -> None:
    """Move every view of results to where the deliveries of its queries have come."""

    def find_behind(tables: Tables) -> list[int]:
        views = [view for _, view in tables.items("plans") if view.results]
        return [view.id for view in views if _find_step(tables, view) is not None]

    for number in store.catalog.read(find_behind):
        _move(store, number)


def _move(store: Store, number: int) -> None:
    """Compute a view where it is to be; if its statement fails it stays, and says why."""
    with locked(store.lock_path(number), "the computation of a view of results", LOCK_SECONDS, store.sleep):
        step_read = store.catalog.read(lambda tables: _read_step(tables, number))
        if step_read is None:  # dropped, or moved by another process while we waited
            return
        view, step = step_read
        try:
            with Snapshot(store) as snapshot:  # after the step was decided: it has all runs that the step counts on
                _compute(store, view, step, snapshot)
        except QueryError as error:
            _record_error(store, view, str(error))
            return
    if step.again:
        reconcile_all(store, [view.name])


def _read_step(tables: Tables, number: int) -> tuple[ViewEntry, _Step] | None:
    view: ViewEntry | None = tables.get("plans", catalog_key(number))
    step = None if view is None else _find_step(tables, view)
    return None if view is None or step is None else (view, step)


def _record_error(store: Store, view: ViewEntry, error: str) -> None:
    if error != view.error:
        with store.catalog.write() as tables:
            tables.put("plans", catalog_key(view.id), replace(view, error=error))


def _compute(store: Store, view: ViewEntry, step: _Step, snapshot: Snapshot) -> None:
    """Write the view's rows at a clock, and record them in one transaction."""
    current = snapshot.view(view.name)
    definition = current.entry.definition
    windows = execution.describe_windows(snapshot, parse(view.sql), _results_up_to(view, step.clock))
    state = replace(current.state, slide=None) if step.again else current.state
    slide = definition.model.last_slot(step.clock)
    moved = ViewSlide(store, current.entry, state, slide, step.clock, () if step.again else current.segments)
    updates = ViewUpdates(moved=[(moved, [])], anew=step.again)
    with ExitStack() as stack:
        try:
            interval = UpdateInterval(current.now, step.clock, step.clock)
            answer = stack.enter_context(_answer(store, view, snapshot, step.clock))
            rows: Iterator[pa.RecordBatch] = to_stream_rows(answer.batches(), view, definition, interval)
            moved.write(rows, itertools.count(-1, -1), None)
            if step.again:
                moved.segments = current.segments
                moved.update.dropped += current.segments
            else:
                hooks = store.catalog.read(lambda tables: [h for h in _HOOKS if h.applies_to(tables, view.id)])
                updates.contributions += stack.enter_context(prepare_contributions(store, hooks, moved.context(_HOOKS)))
        except BaseException:
            updates.discard()
            raise
        store.files.reach("view.written")
        with store.write_with_files(updates.files) as tables:
            updates.commit(tables)
            changes = {
                "complete": all(window.complete for window in windows),
                "coverage": min((window.coverage for window in windows), default=1.0),
            }
            tables.put("plans", catalog_key(view.id), replace(view, seen=snapshot.version, error="", **changes))
        store.files.reach("view.moved")
