"""Declares views: plans the statement, defines the stream that the view becomes, and fills it with its first rows."""

import dataclasses
import datetime as dt
import itertools
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from windrow import arguments, times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import (
    GroupedStatement,
    JoinedWindows,
    Layout,
    StreamEntry,
    StreamState,
    ViewEntry,
    ViewInput,
)
from windrow.ddl import choose_first_layout, drop_stream, make_stream_folders, record_stream
from windrow.definitions import HIDDEN_PREFIX, StreamDefinition, check_name, is_hidden, make_definition
from windrow.errors import StreamExistsError, UnknownTableError, ViewError
from windrow.expired_rows import find_limit
from windrow.files import disk_errors
from windrow.formats.html import TableList, TableRecord
from windrow.history import find_cutoff
from windrow.indexes.partitioners import Index
from windrow.locks import locked
from windrow.past import IncludingExpired
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.scan_sql import read_table_schema
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.views.delta_sql import describe_columns
from windrow.queries.views.group_plan import partials_sql
from windrow.queries.views.group_view import plan_groups
from windrow.queries.views.inputs import InputState
from windrow.queries.views.join_statistics import JoinOrder, list_join_orders
from windrow.queries.views.partitions import is_exact
from windrow.queries.views.plan import Partition, ViewPlan
from windrow.queries.views.planner import expand_views, make_plan
from windrow.queries.views.slide_hook import (
    LOCK_SECONDS,
    InputClock,
    ViewUpdates,
    find_common_slot,
    find_plan,
    see_at,
    update_view,
)
from windrow.queries.views.storage import DIED_COLUMN, ViewSlide
from windrow.queries.views.update_patterns import Pattern
from windrow.reference_tables import find_table
from windrow.snapshot import Snapshot
from windrow.store import Store

_MAX_SLOTS = 1_000_000
"""Slots of a view's longest life; with more, a slide would have to be given by the user."""
_LONGEST_STEM = 50
"""So much of a view's name begins the name of its partial aggregates: names have 63 letters at most."""


@dataclass(frozen=True)
class View(TableRecord):
    """A view as it is reported to users."""

    name: str
    sql: str
    inputs: tuple[str, ...]
    tables: tuple[str, ...]
    retroactive: tuple[str, ...]
    pattern: str
    why: str
    restore: bool
    recomputed: bool
    index: str
    slide: int | None
    now: dt.datetime | None
    """Its clock: the least of its inputs' clocks."""
    waiting_for: tuple[str, ...]
    """The inputs that hold its clock where it is."""
    keep: str | None = None
    """How long results stay after they came about, whatever becomes of their parts."""
    error: str = ""
    """Of a view of results: why it could not be computed again, and stays where it is."""
    joins: tuple[JoinOrder, ...] = ()
    """How new rows of each input of a join find their partners, and what that costs."""
    partials: str | None = None
    """Of a view with GROUP BY that is kept from new rows: the view of its partial aggregates."""


@dataclass(frozen=True)
class ViewOptions:
    """What a user chooses of a view beside its statement; see `Warehouse.create_view`."""

    key: str | Sequence[str] | None = None
    index: Index | str = "auto"
    slide: times.Duration | None = None
    time: str = "_ts"
    expires: str = "_exp"
    restore: bool = False
    retroactive: tuple[str, ...] = ()
    keep: times.Duration | None = None
    recompute: bool = False


def create_view(store: Store, name: str, sql: str, options: ViewOptions) -> View:
    """Declare a view, fill it from what its inputs hold, and return its description."""
    key, keep, recompute = options.key, options.keep, options.recompute
    store.check_writable()
    arguments.check_statement(sql)
    check_name(name, "view")
    with ExitStack() as stack:
        written = sql
        sql, plan, snapshot = _plan_locked(store, name, sql, options.retroactive, stack, recompute=recompute)
        schema = describe_columns(store, name, plan, snapshot.tables)
        is_nested = any(pa.types.is_nested(field.type) for field in schema)
        if plan.partition is not None and plan.partition.window is None and is_nested:
            # Rows that have ended are found by their values, which lists and structs are not compared by.
            sql, plan = _plan_in_snapshot(snapshot, name, written, options.retroactive, recompute=True)
            schema = describe_columns(store, name, plan, snapshot.tables)
        draft = replace(
            _draft_view(name, sql, plan, snapshot),
            retroactive=options.retroactive,
            restore=options.restore,
            written="" if sql == written else written,
            keep=None if keep is None else times.parse_duration(keep, f"view {name!r}: keep"),
        )
        _check_options(draft, plan)
        columns = list(schema)[0 if plan.recompute else 2 :]
        if key is None and plan.partition is not None and not is_nested:
            key = choose_key(columns, plan.partition)
        options = dataclasses.replace(options, key=key)
        grouped = None
        if plan.recompute and not options.retroactive and not recompute:
            draft, grouped = _try_groups(store, draft, plan, snapshot, schema)
        if grouped is None:
            _declare(store, draft, plan, columns, snapshot, options)
    if grouped is not None:
        _create_grouped(store, replace(draft, written=written), *grouped, schema, options)
    return next(view for view in list_views(store) if view.name == name)


def create_join_view(store: Store, name: str, sql: str, joined: JoinedWindows) -> None:
    """Declare a view of a join that standing queries share, and fill it.

    Args:
        store: The warehouse.
        name: A hidden one.
        sql: The join, of nothing but windows of streams.
        joined: Which join it is.
    """
    with ExitStack() as stack:
        sql, plan, snapshot = _plan_locked(store, name, sql, (), stack, recompute=False)
        limited = find_join_problem(store, [part.name for part in plan.streams])
        if limited:
            raise ViewError(limited)
        columns = list(describe_columns(store, name, plan, snapshot.tables))[2:]
        draft = replace(_draft_view(name, sql, plan, snapshot), joined=joined)
        _declare(store, draft, plan, columns, snapshot, ViewOptions())


def find_join_problem(store: Store, streams: Iterable[str]) -> str:
    """Why no view of a join of some streams is kept: nobody would see that it keeps rows too long; empty if it may."""

    def find(tables: Tables) -> list[str]:
        return [name for name in streams if find_limit(tables, find_stream(tables, name)[0]) is not None]

    limited = store.catalog.read(find)
    return f"no view of its join is kept, since {limited[0]!r} is under erase_within" if limited else ""


def _draft_view(name: str, sql: str, plan: ViewPlan, snapshot: Snapshot) -> ViewEntry:
    return ViewEntry(
        id=0,
        name=name,
        sql=sql,
        inputs={part.name: snapshot.view(part.name).entry.id for part in plan.streams},
        tables=tuple(dict.fromkeys(part.name for part in plan.parts if part.definition is None)),
        recompute=plan.recompute,
        distinct=plan.distinct,
        why=plan.label.why,
        reach=plan.reach,
    )


def _declare(
    store: Store,
    draft: ViewEntry,
    plan: ViewPlan,
    columns: Sequence[pa.Field],
    snapshot: Snapshot,
    options: ViewOptions,
) -> None:
    """Define the stream that a view is, and fill it."""
    definitions = [part.definition for part in plan.streams if part.definition is not None]
    step, origin = choose_slots(definitions, [part.life for part in plan.streams], draft.name, options.slide)
    lifetime, longest = _find_lifetime(draft, plan, step)
    pattern = plan.label.pattern if draft.keep is None else Pattern.WEAKEST
    if draft.grouped is not None and not draft.partials_of:
        pattern = Pattern.STRICT
    definition = make_view_definition(draft, columns, definitions, step, origin, lifetime, longest, pattern, options)
    layout = choose_first_layout(definition, options.index)
    with disk_errors(f"creating view {draft.name!r}"):
        make_stream_folders(store, draft.name)
        _fill_view(store, draft, plan, definition, layout, snapshot)


def _try_groups(
    store: Store, draft: ViewEntry, plan: ViewPlan, snapshot: Snapshot, schema: pa.Schema
) -> tuple[ViewEntry, tuple[str, GroupedStatement] | None]:
    """The draft, which says why if it has groups that cannot be kept in parts; else what keeps them."""
    streams = {stream: snapshot.view(stream).entry.definition for stream in snapshot.streams()}
    tables = {table: read_table_schema(entry) for table, entry in snapshot.tables.items()}
    try:
        return draft, plan_groups(store, plan, draft.name, streams, snapshot.tables, tables, schema)
    except CannotSplitError as reason:
        return replace(draft, why=f"{draft.why}; {reason}"), None
    except ViewError:  # what is grouped is no view that could be kept from new rows
        return draft, None


def _create_grouped(
    store: Store,
    draft: ViewEntry,
    inner_sql: str,
    grouped: GroupedStatement,
    schema: pa.Schema,
    options: ViewOptions,
) -> None:
    """Declare the view of the partial aggregates, then the one that finishes them."""
    partials = _choose_partials_name(store, draft.name)
    groups = [f"g{number}" for number in range(len(grouped.types))]
    with ExitStack() as stack:
        _, plan, snapshot = _plan_locked(store, partials, inner_sql, (), stack, recompute=False)
        inner = _draft_view(partials, plan.statement.text, plan, snapshot)
        inner = replace(
            inner, grouped=grouped, partials_of=draft.name, why=f"partial aggregates of view {draft.name}: {inner.why}"
        )
        sql = partials_sql(grouped, plan.sql, "0::BIGINT", "0::BIGINT")
        columns = list(describe_columns(store, draft.name, plan, snapshot.tables, sql))[2:]
        keyed = [field.name for field in columns if field.name in groups and not pa.types.is_nested(field.type)]
        key = groups if groups and keyed == groups else None
        _declare(store, inner, plan, columns, snapshot, ViewOptions(key, slide=options.slide))
    try:
        with ExitStack() as stack:
            sql = f"SELECT {', '.join(quote_name(field.name) for field in columns)} FROM {quote_name(partials)}"
            sql, plan, snapshot = _plan_locked(store, draft.name, sql, (), stack, recompute=False)
            outer = _draft_view(draft.name, sql, plan, snapshot)
            outer = replace(outer, grouped=grouped, written=draft.written, why=draft.why)
            outer_key = grouped.keys if options.key is None and key is not None else options.key
            _declare(store, outer, plan, list(schema), snapshot, dataclasses.replace(options, key=outer_key))
    except BaseException:
        drop_stream(store, partials, view=True)
        raise


def _choose_partials_name(store: Store, name: str) -> str:
    """A free name for the partial aggregates of a view; what a creation that did not end has left of them goes."""
    chosen = f"{name[:_LONGEST_STEM]}_partials"
    records = store.catalog.read(lambda tables: [record for _, record in tables.items("plans")])
    if any(record.name == chosen and record.partials_of == name for record in records):
        drop_stream(store, chosen, view=True)
    with Snapshot(store) as snapshot:
        taken = {existing.lower() for existing in (*snapshot.streams(), *snapshot.tables)}
    names = itertools.chain([chosen], (f"{chosen}{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if candidate.lower() not in taken)


def _plan_locked(
    store: Store, name: str, sql: str, retroactive: Sequence[str], stack: ExitStack, *, recompute: bool
) -> tuple[str, ViewPlan, Snapshot]:
    """The statement of a view whose inputs are locked, its plan, and a snapshot of them."""
    with Snapshot(store) as first:
        check_free_name(first, name)
        parts = _plan_in_snapshot(first, name, sql, retroactive, recompute=recompute)[1].streams
        numbers = {first.view(part.name).entry.id: part.name for part in parts}
    for number in sorted(numbers):
        path = store.lock_path(number)
        path.parent.mkdir(exist_ok=True)
        operation = f"the slide of stream {numbers[number]!r}"
        stack.enter_context(locked(path, operation, LOCK_SECONDS, store.sleep))
    snapshot = stack.enter_context(Snapshot(store))
    return *_plan_in_snapshot(snapshot, name, sql, retroactive, recompute=recompute), snapshot


def _plan_in_snapshot(
    snapshot: Snapshot, name: str, sql: str, retroactive: Sequence[str], *, recompute: bool
) -> tuple[str, ViewPlan]:
    tables = {table: read_table_schema(entry) for table, entry in snapshot.tables.items()}
    for table in retroactive:
        if table not in tables:
            raise UnknownTableError(f"view {name!r}: there is no table {table!r} that could be retroactive")
    streams = {stream: snapshot.view(stream).entry.definition for stream in snapshot.streams()}
    sql = expand_statement(snapshot.store, name, sql)
    return sql, make_plan(name, sql, streams, tables, retroactive, recompute=recompute)


def expand_statement(store: Store, name: str, sql: str) -> str:
    """A view's statement with recomputed views that it reads in the place of their names."""
    views = store.catalog.read(lambda tables: {view.name: view for _, view in tables.items("plans")})
    return expand_views(name, sql, views)


def check_free_name(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that no view can have, or that a stream or table has already."""
    if not is_hidden(name):
        check_name(name, "view")
    taken = {existing.lower(): existing for existing in (*snapshot.streams(), *snapshot.tables)}
    if name.lower() in taken:
        raise StreamExistsError(
            f"{taken[name.lower()]!r} exists already (SQL does not tell capitals apart); "
            "drop it first or choose another name"
        )


def _check_options(view: ViewEntry, plan: ViewPlan) -> None:
    for table in view.retroactive:
        if table not in view.tables:
            raise ViewError(f"view {view.name!r} does not read table {table!r}; leave it out of retroactive")
    strict = f"is {'recomputed at each slide' if plan.recompute else 'strict'} ({plan.label.why})"
    if view.keep is not None and (plan.label.pattern is Pattern.STRICT or plan.distinct):
        why = "eliminates duplicates" if plan.distinct else strict
        raise ViewError(
            f"view {view.name!r} {why}, and keep= logs each result once when it comes about; keep a plain selection, "
            "join or union of windows, and group or deduplicate when asking it"
        )
    if view.keep is not None and view.restore:
        raise ViewError(f"view {view.name!r}: keep= has results that lived between two slides too; leave restore out")
    if view.restore and plan.label.pattern is Pattern.STRICT:
        raise ViewError(
            f"view {view.name!r} {strict}, so it cannot restore what lived between two slides; leave restore out"
        )
    if view.restore and plan.distinct:
        raise ViewError(
            f"view {view.name!r}: restore does not go with DISTINCT, whose values live on in other rows; "
            "restore in a view without DISTINCT, and make this a view of that"
        )


def choose_key(columns: Sequence[pa.Field], partition: Partition) -> str | Sequence[str] | None:
    """The search key of a strict view for which none was given: by it the rows are found that end before their time."""
    if partition.window is not None:
        return partition.shown or None
    compared = {name.lower() for names in partition.columns.values() for name in names}
    fields = [field for field in columns if is_exact(field.type)]
    best = [field.name for field in fields if field.name.lower() in compared] or [field.name for field in fields]
    return best[0] if best else None


def choose_slots(
    definitions: Sequence[StreamDefinition], lives: Sequence[int | None], name: str, slide: times.Duration | None
) -> tuple[int, int]:
    """A view's slide and origin: the longest slots whose ends meet every slot end of its inputs."""
    origin = definitions[0].origin
    if slide is not None:
        return times.parse_duration(slide, f"view {name!r}: slide"), origin
    step = math.gcd(
        *(definition.slide for definition in definitions),
        *(abs(definition.origin - origin) for definition in definitions),
    )
    longest = max((life for life in lives if life is not None), default=0)
    if longest // step > _MAX_SLOTS:
        slides = ", ".join(f"{definition.name} {times.format_duration(definition.slide)}" for definition in definitions)
        raise ViewError(
            f"view {name!r}: the slides of its inputs ({slides}) meet only every {times.format_duration(step)}; "
            "say how often it shall move with slide=…"
        )
    return step, origin


def _find_lifetime(view: ViewEntry, plan: ViewPlan, step: int) -> tuple[int | None, int | None]:
    """The lifetime that all rows have, or the longest that one can have; neither if rows never expire."""
    pattern = plan.label.pattern
    if view.keep is not None:
        return view.keep, None
    if view.partials_of and pattern is Pattern.WEAKEST and plan.label.life is not None:
        return None, plan.label.life + step  # they end with slots
    if plan.partition is not None:
        return None, None if plan.partition.life is None else max(step, plan.partition.life)
    if pattern is Pattern.STRICT:
        return step, None
    longest = []
    for branch in plan.branches:
        lives = [part.life for part in branch.streams if part.life is not None]
        longest.append(min(lives) if lives else None)
    bounded = [life for life in longest if life is not None]
    if not bounded:
        return None, None
    if len(bounded) < len(longest):
        raise ViewError(
            f"view {view.name!r} unites rows that expire with rows that never do; give the latter a window, "
            "as in stream [WINDOW 1 DAY]"
        )
    if pattern is Pattern.WEAKEST and not view.restore:
        return plan.label.life, None
    return None, max(step, max(bounded)) + (step if view.restore or view.partials_of else 0)  # noqa: PLW3301 - of many


def make_view_definition(
    view: ViewEntry,
    columns: Sequence[pa.Field],
    definitions: Sequence[StreamDefinition],
    step: int,
    origin: int,
    lifetime: int | None,
    longest: int | None,
    pattern: Pattern,
    options: ViewOptions,
) -> StreamDefinition:
    """The stream that a view is.

    Args:
        view: As it was declared.
        columns: Of its results.
        definitions: Of the streams that it follows.
        step: The length of its slots.
        origin: Where they are counted from.
        lifetime: Of all rows, if they have one.
        longest: The longest that a row can have, if each has its own.
        pattern: How rows leave it.
        options: Its search key, index and the names of its times, as a user chose them.
    """
    time, expires = options.time, options.expires
    zones = [definition.schema.field(definition.time).type.tz for definition in definitions]
    stamp = pa.timestamp("us", next((zone for zone in zones if zone is not None), None))
    names = [
        time,
        *([] if longest is None else [expires]),
        *([DIED_COLUMN] if longest is not None and view.restore else []),
    ]
    dropped = {name.lower() for name in (*names, expires)}
    columns = [field for field in columns if field.name.lower() not in dropped]
    if not columns:
        raise ViewError(f"view {view.name!r} has no columns besides its times; select at least one")
    schema = pa.schema([*(pa.field(field.name, field.type) for field in columns), *(pa.field(n, stamp) for n in names)])
    definition = make_definition(
        view.name.removeprefix(HIDDEN_PREFIX),
        schema,
        time=time,
        key=options.key,
        slide=dt.timedelta(microseconds=step),
        lifetime=None if lifetime is None else dt.timedelta(microseconds=lifetime),
        expires=None if longest is None else expires,
        max_lifetime=None if longest is None else dt.timedelta(microseconds=longest),
        sources=None,
        slack="0 seconds",
        max_skew=None,
        max_ahead="1 hour",
        origin=None,
        on_source_failure="block",
        index_auto=options.index == "auto",
    )
    pattern = max(pattern, Pattern.WEAK) if longest is not None else pattern
    inputs = (*view.inputs, *view.results)
    return replace(definition, name=view.name, origin=origin, inputs=inputs, pattern=str(Pattern(pattern)))


def _fill_view(
    store: Store, draft: ViewEntry, plan: ViewPlan, definition: StreamDefinition, layout: Layout, snapshot: Snapshot
) -> None:
    """Compute the view's first rows, and record the view and the rows in one transaction."""
    floor = None if draft.keep is None else _find_log_start(snapshot, draft)
    inputs = {}
    for name in draft.inputs:
        view = snapshot.view(name)
        if floor is not None and view.entry.definition.history is not None:
            view = snapshot.past_view(name, IncludingExpired())
        inputs[name] = InputState(view.entry, view.state.slide, view.state.ordinal, view.segments)
    entry = StreamEntry(id=0, definition=definition, created=store.clock())
    clocks = [InputClock(side.entry, side.now, side.ordinal) for side in inputs.values()]
    updates, model = ViewUpdates(), definition.model
    slide = store.catalog.read(lambda tables: find_common_slot(tables, model, clocks))
    try:
        if any(each.now is not None for each in clocks):
            clock = None if slide is None else model.slot_end(slide)
            draft = replace(draft, start=_find_start(snapshot, draft.inputs, clock))
        if slide is not None and draft.start is None:
            view_slide = ViewSlide(store, entry, StreamState(layouts=(layout,)), slide, model.slot_end(slide), ())
            records = {name: ViewInput() for name in draft.inputs}
            view_state = InputState(entry, None, 0, ())
            inputs = {name: see_at(store, side, view_slide.now) for name, side in inputs.items()}
            update_view(
                store,
                draft,
                plan,
                view_slide,
                view_state,
                inputs,
                records,
                snapshot.tables,
                itertools.count(-1, -1),
                None,
                updates,
                floor,
            )
            if draft.keep is not None:
                draft = replace(draft, since=view_slide.now if floor is None else min(floor, view_slide.now))
    except BaseException:
        updates.discard()
        raise
    store.files.reach("view.written")
    with store.write_with_files(updates.files) as tables:
        for table in draft.tables:
            find_table(tables, table)
        recorded = record_stream(tables, definition, layout, store.clock())
        tables.put("plans", catalog_key(recorded.id), replace(draft, id=recorded.id))
        for number in draft.inputs.values():
            tables.put("views", catalog_key(number, recorded.id), ViewInput())
        for view_slide, _ in updates.moved:
            view_slide.entry = recorded
        updates.commit(tables)
    store.files.reach("view.created")


def _find_log_start(snapshot: Snapshot, view: ViewEntry) -> int | None:
    """From when on the history of its inputs has all that a new log would have; None if it has nothing for it."""
    starts = []
    for name in view.inputs:
        stream = snapshot.view(name)
        if stream.now is None:
            return None
        cutoff = find_cutoff(stream.entry, stream.state)
        oldest = stream.now - (view.keep or 0)
        lost = stream.now if stream.entry.definition.history is None else cutoff
        starts.append(oldest if lost is None else max(oldest, lost))
    return max(starts)


def _find_start(snapshot: Snapshot, inputs: Iterable[str], clock: int | None) -> int | None:
    """When the clock of a new view can begin, None for at once.

    An input that is ahead of the view's clock has let rows expire that the view would have: it begins where the most
    advanced of them is. Without a `clock` an input has none yet, and may begin anywhere.
    """
    expiring = [view.now for view in map(snapshot.view, inputs) if view.now is not None and view.state.expired]
    return max((now for now in expiring if clock is None or now > clock), default=None)


def list_views(store: Store) -> list[View]:
    """All views, by name; of views with GROUP BY, not those of their partial aggregates."""
    with Snapshot(store) as snapshot:
        records = store.catalog.read(lambda tables: [record for _, record in tables.items("plans")])
        joined = [record for record in records if record.grouped is None or record.partials_of]
        joins = {record.partials_of or record.name: _list_joins(snapshot, record) for record in joined}

    def read(tables: Tables) -> list[View]:
        records = (record for _, record in tables.items("plans") if not is_hidden(record.name))
        shown = (record for record in records if not record.partials_of)
        views = (_describe_view(tables, record, joins.get(record.name, ())) for record in shown)
        return TableList(sorted(views, key=lambda view: view.name))

    return store.catalog.read(read)


def _list_joins(snapshot: Snapshot, record: ViewEntry) -> tuple[JoinOrder, ...]:
    if record.recompute or not record.inputs or not {record.name, *record.inputs} <= set(snapshot.streams()):
        return ()
    plan = find_plan(
        snapshot.store, record, {name: snapshot.view(name).entry.definition for name in record.inputs}, snapshot
    )
    inputs: dict[str, ViewInput] = snapshot.store.catalog.read(
        lambda tables: {name: tables.get("views", catalog_key(n, record.id)) for name, n in record.inputs.items()}
    )
    return list_join_orders(plan, snapshot.view(record.name).entry.definition, inputs)


def _describe_view(tables: Tables, record: ViewEntry, joins: tuple[JoinOrder, ...]) -> View:
    entry: StreamEntry = tables.get("streams", record.name.encode())
    partials = next(iter(record.inputs), None) if record.grouped is not None and not record.partials_of else None
    source: ViewEntry = record if partials is None else tables.get("plans", catalog_key(record.inputs[partials]))
    state: StreamState = tables.get("states", catalog_key(record.id))
    model = entry.definition.model
    clocks = {}
    for name, number in source.inputs.items():
        input_state = tables.get("states", catalog_key(number))
        input_entry = tables.get("streams", name.encode())
        clocks[name] = None if input_state.slide is None else input_entry.definition.model.slot_end(input_state.slide)
    least = min((clock for clock in clocks.values() if clock is not None), default=None)
    silent = tuple(name for name, clock in clocks.items() if clock is None)
    behind = tuple(
        name for name, clock in clocks.items() if clock == least and any(c != least for c in clocks.values())
    )
    return View(
        name=record.name,
        sql=record.written or record.sql,
        inputs=(*source.inputs, *record.results),
        tables=source.tables,
        retroactive=record.retroactive,
        pattern=entry.definition.update_pattern,
        why=record.why,
        restore=record.restore,
        recomputed=record.recompute,
        index=str(state.layout.index),
        slide=state.slide,
        now=None if state.slide is None else times.to_datetime(model.slot_end(state.slide)),
        waiting_for=silent or behind or (tuple(record.results) if state.slide is None else ()),
        error=record.error,
        joins=joins,
        partials=partials,
        keep=None if record.keep is None else times.format_duration(record.keep),
    )
