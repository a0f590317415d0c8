"""What a slide does to views: all that depend on the stream, also through other views, move in its transaction.

Views are taken in the order of their numbers, which is also an order in which each comes after its inputs. The lock of
a view is held until after the commit, so that two inputs which slide at the same time see each other's clock.
"""

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import StreamEntry, TableEntry, ViewEntry, ViewInput
from windrow.definitions import StreamDefinition
from windrow.locks import locked
from windrow.queries.planner.scan_sql import read_table_schema
from windrow.queries.views.delta_join import NativeJoin, can_join_natively
from windrow.queries.views.delta_sql import SqlUpdate, UpdateInputs
from windrow.queries.views.inputs import InputPosition, InputState, UpdateInterval
from windrow.queries.views.join_order import InputRate
from windrow.queries.views.plan import ViewPlan
from windrow.queries.views.planner import make_plan
from windrow.queries.views.storage import ViewSlide, to_stream_rows
from windrow.slide_hooks import Contribution, SlideContext, SlideHook, find_removal_limit, prepare_contributions
from windrow.snapshot import Snapshot
from windrow.store import Store

LOCK_SECONDS = 60.0
_STATISTICS_DECAY = 0.9
"""How much of what was learned before an update still counts after it."""
_plans: dict[tuple[str, int], tuple[object, ViewPlan]] = {}
"""By warehouse and view: what its plan was made of, and the plan."""


@dataclass(frozen=True)
class InputUpdate:
    """A view's record of one input after an update."""

    number: int
    record: ViewInput


@dataclass
class ViewUpdates:
    """Views that move together with one slide."""

    moved: list[tuple[ViewSlide, list[InputUpdate]]] = field(default_factory=list)
    others: list[Contribution] = field(default_factory=list)

    @property
    def files(self) -> Sequence[str]:
        """What the commit names."""
        own = [file for moved, _ in self.moved for file in moved.files]
        return [*own, *(file for other in self.others for file in other.files)]

    def commit(self, tables: Tables) -> None:
        """Put down all views, each after its inputs."""
        for moved, learned in self.moved:
            moved.commit(tables, [each.number for each in learned])
            for each in learned:
                tables.put("views", catalog_key(each.number, moved.entry.id), each.record)
        for other in self.others:
            other.commit(tables)

    def discard(self) -> None:
        """Remove what was written."""
        for moved, _ in self.moved:
            moved.discard()


def find_plan(store: Store, view: ViewEntry, streams: dict[str, StreamDefinition], snapshot: Snapshot) -> ViewPlan:
    """The plan of a view; it is made again only where its inputs are defined in another way than they were.

    They may have been altered, or this may be another warehouse where one was removed.
    """
    tables = {name: read_table_schema(snapshot.tables[name]) for name in view.tables}
    made_of = view.sql, {name: streams[name] for name in view.inputs}, tables
    known = _plans.get((str(store.root), view.id))
    if known is None or known[0] != made_of:
        known = made_of, make_plan(view.name, view.sql, streams, tables, view.retroactive)
        _plans[str(store.root), view.id] = known
    return known[1]


@contextmanager
def prepare_views(store: Store, moving: SlideContext) -> Iterator[Contribution | None]:
    """The part of a slide that belongs to views."""
    with ExitStack() as held:
        motion = ViewUpdates()
        try:
            _prepare(store, moving, held, motion)
        except BaseException:
            motion.discard()
            raise
        yield motion if motion.moved else None


def find_dependents(tables: Tables, stream: int) -> list[int]:
    """Numbers of the views that read a stream."""
    return [decode_last_int(at) for at, _ in tables.raw_items("views", catalog_key(stream))]


def compute_clock(tables: Tables, view: ViewEntry, moved: dict[int, int]) -> int | None:
    """Where a view's clock will be once some of its inputs have moved to the given times; None if one has no clock."""
    entry = tables.get("streams", view.name.encode())
    clocks = []
    for name, number in view.inputs.items():
        state = tables.get("states", catalog_key(number))
        clock = moved.get(number)
        if clock is None and state.slide is not None:
            clock = tables.get("streams", name.encode()).definition.model.slot_end(state.slide)
        if clock is None:
            return None
        clocks.append(clock)
    model = entry.definition.model
    return int(model.slot_end(model.last_slot(min(clocks))))


def find_needed_rows(tables: Tables, entry: StreamEntry, now: int) -> int | None:
    """Rows that expire after this time are needed by a view that is behind the stream."""
    times = []
    for number in find_dependents(tables, entry.id):
        clock = compute_clock(tables, tables.get("plans", catalog_key(number)), {entry.id: now})
        times.append(-(1 << 62) if clock is None else clock)
    return min(times) if times else None


def _prepare(store: Store, moving: SlideContext, held: ExitStack, motion: ViewUpdates) -> None:
    views = _lock_views(store, moving, held)
    if not views:
        return
    names = {view.name for view in views} | {name for view in views for name in view.inputs}
    snapshot = held.enter_context(Snapshot(store, sorted(names)))
    sides = {}
    for name in names:
        view = snapshot.view(name)
        sides[name] = InputState(view.entry, view.state.slide, view.state.ordinal, view.segments)
    own = moving.entry.definition.name
    sides[own] = InputState(moving.entry, moving.slide, moving.ordinal, (*moving.segments, *moving.arrived))
    numbers = itertools.count(-1, -1)
    for each in views:
        moved = _prepare_view(store, each, sides, snapshot, moving, numbers, motion)
        if moved is None:
            continue
        sides[each.name] = moved.side()
        concerned = store.catalog.read(partial(_beside_views, moving, each.id))
        if concerned:
            placed = tuple(moved.update.placed)
            own_moving = SlideContext(
                moved.entry,
                moved.state,
                moved.slide,
                moved.now,
                moved.ordinal,
                placed,
                moved.segments,
                moving.followers,
            )
            motion.others += held.enter_context(prepare_contributions(store, concerned, own_moving))


def _beside_views(moving: SlideContext, number: int, tables: Tables) -> list[SlideHook]:
    """What else follows a view: its synopses, and the periodic queries that it paces."""
    return [f for f in moving.followers if f.table != "views" and f.concerns(tables, number)]


def _read_views(number: int, tables: Tables) -> tuple[ViewEntry | None, list[int]]:
    return tables.get("plans", catalog_key(number)), find_dependents(tables, number)


def _lock_views(store: Store, moving: SlideContext, held: ExitStack) -> list[ViewEntry]:
    """Every view that depends on a stream, its lock held; none can be made on it or on them meanwhile."""
    names, waiting = store.catalog.read(
        lambda tables: (
            {record.id: record.name for _, record in tables.items("plans")},
            find_dependents(tables, moving.entry.id),
        )
    )
    heapq.heapify(waiting)
    found: dict[int, ViewEntry] = {}
    while waiting:
        number = heapq.heappop(waiting)
        if number in found:
            continue
        path = store.lock_path(number)
        what = (
            f"the slide of view {names.get(number, str(number))!r}, which moves with {moving.entry.definition.name!r},"
        )
        held.enter_context(locked(path, what, moving.timeout, store.sleep))
        view, beyond = store.catalog.read(partial(_read_views, number))
        if view is None:  # it was dropped while we waited
            continue
        found[number] = view
        for each in beyond:
            heapq.heappush(waiting, each)
    return list(found.values())


def _prepare_view(
    store: Store,
    view: ViewEntry,
    sides: dict[str, InputState],
    snapshot: Snapshot,
    moving: SlideContext,
    numbers: Iterator[int],
    motion: ViewUpdates,
) -> ViewSlide | None:
    """Compute and write what a view's next slide needs; None if its clock stays where it is."""
    own = snapshot.view(view.name)
    model = own.entry.definition.model
    clocks = [sides[name].now for name in view.inputs]
    reached = [clock for clock in clocks if clock is not None]
    if len(reached) < len(clocks):
        return None
    slide = model.last_slot(min(reached))
    if own.state.slide is not None and slide <= own.state.slide:
        return None
    edges: dict[str, ViewInput] = store.catalog.read(
        lambda tables: {name: tables.get("views", catalog_key(number, view.id)) for name, number in view.inputs.items()}
    )
    moved = ViewSlide(store, own.entry, own.state, slide, model.slot_end(slide), own.segments)
    own_side = InputState(own.entry, own.state.slide, own.state.ordinal, own.segments)
    concerned = [f for f in moving.followers if f.needs]
    kept = store.catalog.read(lambda tables: find_removal_limit(tables, concerned, own.entry, slide))
    plan = find_plan(store, view, {name: sides[name].definition for name in view.inputs}, snapshot)
    update_view(store, view, plan, moved, own_side, sides, edges, snapshot.tables, numbers, kept, motion)
    store.files.reach("view.written")
    return moved


def update_view(
    store: Store,
    view: ViewEntry,
    plan: ViewPlan,
    moved: ViewSlide,
    own: InputState,
    sides: dict[str, InputState],
    edges: dict[str, ViewInput],
    tables: Mapping[str, TableEntry],
    numbers: Iterator[int],
    kept: tuple[int, int] | None,
    motion: ViewUpdates,
) -> None:
    """Compute and write a view's new rows; what is to be committed goes into `motion`."""
    before = own.now
    floor = moved.now
    if view.restore and before is not None:
        floor = before
    moment = UpdateInterval(before, moved.now, floor)
    rates = {part.number: _rate(plan, part.number, edges[part.name]) for part in plan.streams}
    given = UpdateInputs(
        view.name,
        plan,
        moment,
        sides,
        {name: InputPosition(edge.seen, edge.slide) for name, edge in edges.items()},
        tables,
        {number: rate for number, rate in rates.items() if rate is not None},
        own,
    )
    work = NativeJoin(store, given) if can_join_natively(plan, moved.entry.definition) else SqlUpdate(store, given)
    learned: list[InputUpdate] = []
    motion.moved.append((moved, learned))
    moved.write(to_stream_rows(work.results(), view, moved.entry.definition, moment), numbers, kept)
    learned += [
        InputUpdate(number, _update_statistics(edges[name], sides[name], moment, plan, name, work.distinct))
        for name, number in view.inputs.items()
    ]


def _rate(plan: ViewPlan, number: int, edge: ViewInput) -> InputRate | None:
    """What the catalog knows of a part, for the order of joins."""
    part = plan.parts[number]
    columns = {
        link.seen_from(number).left_column
        for branch in plan.branches
        for link in branch.links
        if number in (link.left, link.right)
    }
    values = [edge.distinct[column] for column in columns if column in edge.distinct]
    if not edge.span or not values:
        return None
    arrivals = edge.rows / edge.span
    window = float(part.life) if part.life is not None else max(edge.span, 1.0)
    return InputRate(arrivals, window, max(1.0, *values))


def _update_statistics(
    edge: ViewInput,
    side: InputState,
    moment: UpdateInterval,
    plan: ViewPlan,
    name: str,
    distinct: dict[int, dict[str, float]],
) -> ViewInput:
    """What is known of an input after an update: how fast it is, and how many values its joined columns have."""
    came = sum(s.rows for s in side.segments if edge.slide is None or s.first_slide > edge.slide)
    first = min((s.min_ts for s in side.segments), default=moment.now)
    span = moment.now - (first if moment.before is None else moment.before)
    counted = dict(edge.distinct)
    for part in plan.streams:
        if part.name == name:
            for column, values in distinct.get(part.number, {}).items():
                counted[column] = max(values, _STATISTICS_DECAY * counted.get(column, 0.0))
    return replace(
        edge,
        seen=side.ordinal,
        slide=side.slide,
        rows=_STATISTICS_DECAY * edge.rows + came,
        span=_STATISTICS_DECAY * edge.span + max(1, span),
        distinct=counted,
    )
