"""The part of a slide that belongs to views: all views that depend on the stream move in the slide's transaction.

Views are updated in the order of their numbers, in which each comes after its inputs. The lock of a view is held until
after the commit, so that two inputs that slide at the same time see each other's clock.
"""

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import partial

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import StreamEntry, TableEntry, ViewEntry, ViewInput
from windrow.definitions import StreamDefinition
from windrow.errors import DamageError
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.row_model import RowModel
from windrow.locks import locked
from windrow.queries.planner.scan_sql import read_table_schema
from windrow.queries.views.delta_join import NativeJoin, can_join_natively
from windrow.queries.views.delta_sql import SqlUpdate, UpdateInputs
from windrow.queries.views.group_view import GroupUpdate, PartialUpdate
from windrow.queries.views.inputs import InputPosition, InputState, UpdateInterval
from windrow.queries.views.join_statistics import estimate_rate, update_statistics
from windrow.queries.views.plan import ViewPlan
from windrow.queries.views.planner import make_plan
from windrow.queries.views.storage import ViewSlide, to_stream_rows
from windrow.queries.views.strict_update import StrictUpdate
from windrow.reference_tables import read_versions
from windrow.slide_hooks import Contribution, SlideContext, SlideHook, find_removal_limit, prepare_contributions
from windrow.snapshot import Snapshot
from windrow.store import Store

LOCK_SECONDS = 60.0
_MAX_PLANS = 256
"""Plans of views that a warehouse keeps in memory; making one again costs some milliseconds."""
_PlanCache = BoundedCache[int, tuple[object, ViewPlan]]
"""By view: what its plan was made from, and the plan."""


@dataclass(frozen=True)
class InputUpdate:
    """A view's record of one input after an update."""

    number: int
    record: ViewInput


@dataclass
class ViewUpdates:
    """Views that move together with one slide."""

    moved: list[tuple[ViewSlide, list[InputUpdate]]] = field(default_factory=list)
    contributions: list[Contribution] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    """Views with `keep` that had no clock before, and their first one."""
    anew: bool = False
    """They do not move but are filled anew; synopses of them go, and whoever asked for it has those filled again."""

    @property
    def files(self) -> Sequence[str]:
        """The files that the commit names."""
        view_files = [file for moved, _ in self.moved for file in moved.files]
        return [*view_files, *(file for other in self.contributions for file in other.files)]

    def commit(self, tables: Tables) -> None:
        """Record all views, each after its inputs."""
        for number, clock in self.begun.items():
            key = catalog_key(number)
            tables.put("plans", key, replace(tables.get("plans", key), since=clock))
        for moved, input_updates in self.moved:
            moved.commit(tables, [update.number for update in input_updates])
            if self.anew:
                tables.delete_prefix("synopses", catalog_key(moved.entry.id))
            for update in input_updates:
                tables.put("views", catalog_key(update.number, moved.entry.id), update.record)
        for other in self.contributions:
            other.commit(tables)

    def discard(self) -> None:
        """Remove what was written."""
        for moved, _ in self.moved:
            moved.discard()


def find_plan(store: Store, view: ViewEntry, streams: dict[str, StreamDefinition], snapshot: Snapshot) -> ViewPlan:
    """The plan of a view; it is made again only where the definition of an input has changed."""
    tables = {name: read_table_schema(snapshot.tables[name]) for name in view.tables}
    made_from = view.sql, {name: streams[name] for name in view.inputs}, tables
    plans: _PlanCache = store.shared.attached("view plans", lambda: _PlanCache(_MAX_PLANS))
    cached = plans.get(view.id)
    if cached is None or cached[0] != made_from:
        cached = made_from, make_plan(view.name, view.sql, streams, tables, view.retroactive, recompute=view.recompute)
        plans.put(view.id, cached)
    return cached[1]


@contextmanager
def prepare_views(store: Store, context: SlideContext) -> Iterator[Contribution | None]:
    """The part of a slide that belongs to views."""
    with ExitStack() as stack:
        updates = ViewUpdates()
        try:
            _prepare(store, context, stack, updates)
        except BaseException:
            updates.discard()
            raise
        yield updates if updates.moved else None


def find_dependents(tables: Tables, stream: int) -> list[int]:
    """Numbers of the views that read a stream."""
    return [decode_last_int(key) for key, _ in tables.raw_items("views", catalog_key(stream))]


def compute_clock(tables: Tables, view: ViewEntry, new_clocks: dict[int, int]) -> int | None:
    """Where a view's clock will be once some of its inputs have moved to the given times; None if one has no clock."""
    entry = tables.get("streams", view.name.encode())
    inputs = []
    for name, number in view.inputs.items():
        state, of_input = tables.get("states", catalog_key(number)), tables.get("streams", name.encode())
        clock = new_clocks.get(number)
        if clock is None and state.slide is not None:
            clock = of_input.definition.model.slot_end(state.slide)
        inputs.append(InputClock(of_input, clock, state.ordinal))
    slot = find_common_slot(tables, entry.definition.model, inputs)
    return None if slot is None else int(entry.definition.model.slot_end(slot))


@dataclass(frozen=True)
class InputClock:
    """Where the clock of a view's input stands: also of a slide that is not committed yet."""

    entry: StreamEntry
    now: int | None
    ordinal: int
    """Of its last slide; earlier ones are on record."""


def find_common_slot(tables: Tables, model: RowModel, inputs: Sequence[InputClock]) -> int | None:
    """The last slot of a view that all of its inputs have reached; None before they have.

    A strict view is known at the instants of its own slides only: what is read from one has an end at such an instant.
    """
    clocks = [each.now for each in inputs if each.now is not None]
    if len(clocks) < len(inputs):
        return None
    strict, slot = [each for each in inputs if each.entry.definition.has_overrides], model.last_slot(min(clocks))
    while True:
        instants = [_find_instant(tables, each, model.slot_end(slot)) for each in strict]
        reached = [instant for instant in instants if instant is not None]
        if len(reached) < len(instants):
            return None
        if all(instant == model.slot_end(slot) for instant in reached):
            return int(slot)
        slot = min(slot - 1, *(model.last_slot(instant) for instant in reached))


def _find_instant(tables: Tables, each: InputClock, clock: int) -> int | None:
    """The last instant up to `clock` at which an input has slid."""
    if each.now is not None and each.now <= clock:
        return each.now
    for ordinal in range(each.ordinal, 0, -1):
        entry = tables.get("slides", catalog_key(each.entry.id, ordinal))
        if entry is not None and entry.now <= clock:
            return int(entry.now)
    return None


def find_needed_rows(tables: Tables, entry: StreamEntry, now: int) -> int | None:
    """Rows that expire after this time are needed by a view that is behind the stream.

    Views of joins that standing queries share keep nothing back: they answer only where all their streams stand at one
    time, and of what lives then nothing has gone.
    """
    times = []
    for number in find_dependents(tables, entry.id):
        view: ViewEntry = tables.get("plans", catalog_key(number))
        if view.joined is not None:
            continue
        clock = compute_clock(tables, view, {entry.id: now})
        times.append(-(1 << 62) if clock is None else clock)
    return min(times) if times else None


def _prepare(store: Store, context: SlideContext, stack: ExitStack, updates: ViewUpdates) -> None:
    views = _lock_views(store, context, stack)
    if not views:
        return
    snapshot, inputs = _read_inputs(store, views, context, stack)
    numbers = itertools.count(-1, -1)
    for view_entry in views:
        view_slide = _prepare_view(store, view_entry, inputs, snapshot, context, numbers, updates)
        if view_slide is None:
            continue
        inputs[view_entry.name] = view_slide.side()
        hooks = store.catalog.read(partial(_beside_views, context, view_entry.id))
        if hooks:
            view_context = view_slide.context(context.hooks)
            updates.contributions += stack.enter_context(prepare_contributions(store, hooks, view_context))


def _read_inputs(
    store: Store, views: Sequence[ViewEntry], context: SlideContext, stack: ExitStack
) -> tuple[Snapshot, dict[str, InputState]]:
    """What the views read, and the views themselves: the context's stream as it will be, all others as they are."""
    names = {view.name for view in views} | {name for view in views for name in view.inputs}
    snapshot = stack.enter_context(Snapshot(store, sorted(names)))
    inputs = {}
    for name in names:
        view = snapshot.view(name)
        inputs[name] = InputState(view.entry, view.state.slide, view.state.ordinal, view.segments)
    stream = context.entry.definition.name
    inputs[stream] = InputState(context.entry, context.slide, context.ordinal, (*context.segments, *context.arrived))
    return snapshot, inputs


@contextmanager
def prepare_refill(store: Store, context: SlideContext) -> Iterator[Contribution | None]:
    """Fill all views that depend on a stream anew, where their clocks stand: it has lost rows that they may know.

    Args:
        store: The warehouse.
        context: The stream as it stands, with the segments that it will have.
    """
    with ExitStack() as stack:
        updates, numbers = ViewUpdates(anew=True), itertools.count(-1, -1)
        try:
            views = _lock_views(store, context, stack)
            snapshot, inputs = _read_inputs(store, views, context, stack)
            for view in views:
                current = snapshot.view(view.name)
                if current.state.slide is None or current.now is None or view.keep is not None:
                    continue  # a log keeps what came about
                unfilled = replace(current.state, slide=None)
                filled = ViewSlide(store, current.entry, unfilled, current.state.slide, current.now, ())
                nothing = InputState(current.entry, None, current.state.ordinal, ())
                plan = find_plan(store, view, {name: inputs[name].definition for name in view.inputs}, snapshot)
                records = {name: ViewInput() for name in view.inputs}
                try:
                    update_view(
                        store, view, plan, filled, nothing, inputs, records, snapshot.tables, numbers, None, updates
                    )
                except DamageError:  # another input is damaged too, and its repair will fill the view
                    updates.moved.pop()[0].discard()
                    continue
                inputs[view.name] = filled.side()
                filled.segments = current.segments
                filled.update.dropped += current.segments
        except BaseException:
            updates.discard()
            raise
        yield updates if updates.moved else None


def _beside_views(context: SlideContext, number: int, tables: Tables) -> list[SlideHook]:
    """The other hooks of a view's slide: its synopses, and the periodic queries that it paces."""
    return [f for f in context.hooks if f.table != "views" and f.applies_to(tables, number)]


def _read_views(number: int, tables: Tables) -> tuple[ViewEntry | None, list[int]]:
    return tables.get("plans", catalog_key(number)), find_dependents(tables, number)


def _lock_views(store: Store, context: SlideContext, stack: ExitStack) -> list[ViewEntry]:
    """Every view that depends on a stream, its lock held; none can be made on it or on them meanwhile."""
    names, waiting = store.catalog.read(
        lambda tables: (
            {record.id: record.name for _, record in tables.items("plans")},
            find_dependents(tables, context.entry.id),
        )
    )
    heapq.heapify(waiting)
    views: dict[int, ViewEntry] = {}
    while waiting:
        number = heapq.heappop(waiting)
        if number in views:
            continue
        path = store.lock_path(number)
        operation = (
            f"the slide of view {names.get(number, str(number))!r}, which moves with {context.entry.definition.name!r},"
        )
        stack.enter_context(locked(path, operation, context.timeout, store.sleep))
        view, dependents = store.catalog.read(partial(_read_views, number))
        if view is None:  # it was dropped while we waited
            continue
        views[number] = view
        for dependent in dependents:
            heapq.heappush(waiting, dependent)
    return list(views.values())


def _prepare_view(
    store: Store,
    view: ViewEntry,
    inputs: dict[str, InputState],
    snapshot: Snapshot,
    context: SlideContext,
    numbers: Iterator[int],
    updates: ViewUpdates,
) -> ViewSlide | None:
    """Compute and write what a view's next slide needs; None if its clock stays where it is."""
    current = snapshot.view(view.name)
    model = current.entry.definition.model
    clocks = [InputClock(inputs[name].entry, inputs[name].now, inputs[name].ordinal) for name in view.inputs]
    slide = store.catalog.read(lambda tables: find_common_slot(tables, model, clocks))
    if slide is None:
        return None
    if current.state.slide is not None and slide <= current.state.slide:
        return None
    if current.state.slide is None and view.start is not None and model.slot_end(slide) < view.start:
        return None
    records: dict[str, ViewInput] = store.catalog.read(
        lambda tables: {name: tables.get("views", catalog_key(number, view.id)) for name, number in view.inputs.items()}
    )
    view_slide = ViewSlide(store, current.entry, current.state, slide, model.slot_end(slide), current.segments)
    view_state = InputState(current.entry, current.state.slide, current.state.ordinal, current.segments)
    hooks = [f for f in context.hooks if f.needed_after]
    needed = store.catalog.read(lambda tables: find_removal_limit(tables, hooks, current.entry, slide))
    plan = find_plan(store, view, {name: inputs[name].definition for name in view.inputs}, snapshot)
    visible = {name: see_at(store, inputs[name], view_slide.now) for name in view.inputs}
    update_view(store, view, plan, view_slide, view_state, visible, records, snapshot.tables, numbers, needed, updates)
    if view.keep is not None and current.state.slide is None:
        updates.begun[view.id] = view_slide.now
    store.files.reach("view.written")
    return view_slide


def see_at(store: Store, state: InputState, clock: int) -> InputState:
    """An input as it was when its clock stood there; only of strict views, whose later slides change what was before.

    Rows that another stream takes in late belong to the earlier instants too.
    """
    if not state.definition.has_overrides or state.now is None or state.now <= clock:
        return state

    def find_slide(tables: Tables) -> InputState:
        for ordinal in range(state.ordinal, 0, -1):
            entry = tables.get("slides", catalog_key(state.entry.id, ordinal))
            if entry is not None and entry.now <= clock:
                return replaced(state, slide=entry.slide, ordinal=ordinal)
        return replaced(state, slide=None, ordinal=0)

    return store.catalog.read(find_slide)


def update_view(
    store: Store,
    view: ViewEntry,
    plan: ViewPlan,
    view_slide: ViewSlide,
    view_state: InputState,
    inputs: dict[str, InputState],
    records: dict[str, ViewInput],
    tables: Mapping[str, TableEntry],
    numbers: Iterator[int],
    needed: tuple[int, int] | None,
    updates: ViewUpdates,
    begun: int | None = None,
) -> None:
    """Compute and write a view's new rows; what must be committed goes into `updates`.

    `begun` is from when on a new log has what came about before it was there, out of the history of its inputs.
    """
    before = view_state.now
    floor = view_slide.now if begun is None else min(begun, view_slide.now)
    if (view.restore or view.keep is not None) and before is not None:
        floor = before
    interval = UpdateInterval(before, view_slide.now, floor)
    rates = {part.number: estimate_rate(plan, part.number, records[part.name]) for part in plan.streams}
    update_inputs = UpdateInputs(
        view.partials_of or view.name,
        plan,
        interval,
        inputs,
        {name: InputPosition(record.seen, record.slide) for name, record in records.items()},
        tables,
        {number: rate for number, rate in rates.items() if rate is not None},
        view_state,
        min((record.pending for record in records.values() if record.pending is not None), default=None),
        {} if view.recompute else store.catalog.read(lambda found: {t: read_versions(found, t) for t in view.tables}),
    )
    definition = view_slide.entry.definition
    update = _choose_update(store, view, plan, definition, update_inputs)
    input_updates: list[InputUpdate] = []
    updates.moved.append((view_slide, input_updates))
    if isinstance(update, StrictUpdate | GroupUpdate):
        view_slide.end_rows(update.find_endings())
    rows = to_stream_rows(update.compute_results(), view, definition, interval)
    view_slide.write(rows, numbers, needed)
    for name, number in view.inputs.items():
        record = update_statistics(records[name], inputs[name], interval, plan, name, update.distinct)
        input_updates.append(InputUpdate(number, replace(record, pending=update.pending)))


def _choose_update(
    store: Store, view: ViewEntry, plan: ViewPlan, definition: StreamDefinition, inputs: UpdateInputs
) -> SqlUpdate | NativeJoin | StrictUpdate:
    """How a view's next rows are computed."""
    if view.grouped is not None:
        kind = PartialUpdate if view.partials_of else GroupUpdate
        return kind(store, inputs, definition, view.grouped)
    if plan.partition is not None:
        return StrictUpdate(store, inputs)
    return NativeJoin(store, inputs) if can_join_natively(plan, definition) else SqlUpdate(store, inputs)
