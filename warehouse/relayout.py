"""Changing a stream's layout or search key while it is read and written.

From the commit of a change on, appends are cut for the new layout; what lies in older ones is answered from there until
it expires or a step (see `moving`) has moved it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from windrow.catalog.environment import Tables
from windrow.catalog.environment import key as catalog_key
from windrow.catalog.lookups import find_stream, refuse_view
from windrow.catalog.records import StreamState
from windrow.definitions import StreamDefinition, check_key, choose_index
from windrow.errors import DefinitionError
from windrow.files import disk_errors
from windrow.indexes.partitioners import Index
from windrow.layouts import settled, turn_to
from windrow.locks import locked
from windrow.moving import STEP_BYTES, Stock, move, take_stock
from windrow.store import Store

MOVES = (False, "steps", "now")

Progress = Callable[["RelayoutReport"], None]


@dataclass(frozen=True)
class RelayoutReport:
    """Where a change of layout stands."""

    stream: str
    index: str
    """The layout that new rows go to."""
    key: tuple[str, ...]
    why: str
    moved_bytes: int
    """Bytes that steps have taken out of older layouts."""
    left_bytes: int
    """Bytes that still lie in older layouts, or are spooled for them."""
    total_bytes: int
    """Bytes that lay there when the change began."""
    budget: int
    """Bytes that each slide moves; 0: the older layouts empty out by themselves."""
    can_cancel: bool
    """Whether there is a way back to the layout before."""
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        """Whether only the current layout is left."""
        return self.left_bytes == 0


def relayout(
    store: Store,
    stream: str,
    index: Index | str | None = None,
    key: Sequence[str] | str | None = None,
    *,
    move: bool | str = False,
    budget: int = STEP_BYTES,
    timeout: float = 60.0,
    progress: Progress | None = None,
    auto: bool = False,
    why: str = "chosen by the user",
) -> RelayoutReport:
    """Turn a stream to another layout or search key; see `Warehouse.relayout`."""
    if move not in MOVES:
        raise DefinitionError(f"move must be False, 'steps' or 'now', not {move!r}")
    if budget < 1:
        raise DefinitionError(f"a step moves at least one byte, not {budget}")
    with disk_errors(f"changing the layout of stream {stream!r}"), holding(store, stream, timeout):
        with store.catalog.write() as tables:
            _turn(store, tables, stream, index, key, budget if move == "steps" else 0, auto=auto, why=why)
        store.files.reach("relayout.committed")
    if move == "now":
        return move_all(store, stream, budget=budget, timeout=timeout, progress=progress)
    return relayout_report(store, stream)


def _turn(
    store: Store,
    tables: Tables,
    stream: str,
    index: Index | str | None,
    key: Sequence[str] | str | None,
    budget: int,
    *,
    auto: bool,
    why: str,
) -> None:
    stock = take_stock(store, tables, stream)
    entry, state = stock.entry, stock.state
    definition, wanted, why = _wanted(entry.definition, state, index, key, why)
    definition = replace(definition, index_auto=definition.index_auto or auto)
    if definition.key != entry.definition.key or wanted != state.layout.index:
        total = sum(segment.bytes for segment in stock.segments) + _spooled(tables, entry.id)
        state = turn_to(state, definition, wanted, why, now=store.clock(), total=total, budget=budget)
    elif state.relayout is not None:
        state = replace(state, relayout=replace(state.relayout, budget=budget))
    tables.put("streams", stream.encode(), replace(entry, definition=definition))
    tables.put("states", catalog_key(entry.id), settled(tables, entry.id, state, stock.segments))


def _spooled(tables: Tables, stream: int) -> int:
    return sum(record.bytes for _, record in tables.items("spool", catalog_key(stream)))


def _wanted(
    old: StreamDefinition, state: StreamState, index: Index | str | None, key: Sequence[str] | str | None, why: str
) -> tuple[StreamDefinition, Index, str]:
    """The definition after the change, the layout, and why."""
    columns = old.key if key is None else check_key(old.name, old.schema, key)
    definition = rekeyed(old, columns)
    if index is None:
        return definition, state.layout.index, state.layout.why
    if isinstance(index, Index):
        return replace(definition, index_auto=False), index, why
    if index != "auto":
        raise DefinitionError(f"index must be 'auto' or windrow.Index(…), not {index!r}")
    chosen, pattern = choose_index(definition, late_rows=state.late > 0)
    return replace(definition, index_auto=True), chosen, pattern


def rekeyed(definition: StreamDefinition, key: tuple[str, ...]) -> StreamDefinition:
    """A definition with another search key; batches go on being told apart by the first one."""
    if key == definition.key:
        return definition
    first = definition.key if definition.first_key is None else definition.first_key
    return replace(definition, key=key, first_key=first)


def cancel_relayout(store: Store, stream: str, timeout: float = 60.0) -> RelayoutReport:
    """Go back to the layout and key before the change; what was moved already leaves the new one by expiring."""
    with disk_errors(f"changing the layout of stream {stream!r}"), holding(store, stream, timeout):
        with store.catalog.write() as tables:
            stock = take_stock(store, tables, stream)
            entry, state, change = stock.entry, stock.state, stock.state.relayout
            if change is None:
                raise DefinitionError(f"no change of layout of stream {stream!r} is under way; there is none to cancel")
            if change.previous is None:
                raise DefinitionError(
                    f"the layout of stream {stream!r} follows its new lifetime and has no way back; "
                    "alter the lifetime instead"
                )
            back = change.previous
            total = sum(segment.bytes for segment in stock.segments if segment.layout != back.id)
            undone = replace(change, previous=state.layout, started=store.clock(), total=total, moved=0, budget=0)
            others = tuple(layout for layout in state.layouts if layout.id != back.id)
            state = replace(state, layouts=(*others, back), relayout=undone)
            definition = rekeyed(entry.definition, back.key)
            tables.put("streams", stream.encode(), replace(entry, definition=definition))
            tables.put("states", catalog_key(entry.id), settled(tables, entry.id, state, stock.segments))
        store.files.reach("relayout.committed")
    return relayout_report(store, stream)


def move_all(
    store: Store,
    stream: str,
    *,
    budget: int = STEP_BYTES,
    steps: int | None = None,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> RelayoutReport:
    """Move what lies in older layouts, step by step; slides and appends go on between the steps.

    Args:
        store: The warehouse.
        stream: Its name.
        budget: Bytes that one step moves at most; at least one segment.
        steps: How many steps at most; None: until nothing is left. Rows that are still spooled follow their slide.
        timeout: Seconds to wait for a slide.
        progress: Called after each step.
    """
    started, moved = time.perf_counter(), 0
    before = relayout_report(store, stream)
    report = before
    while steps is None or steps > 0:
        with disk_errors(f"moving rows of stream {stream!r}"), holding(store, stream, timeout):
            step = move(store, stream, budget)
        moved += step
        steps = None if steps is None else steps - 1
        report = changed(
            relayout_report(store, stream),
            moved_bytes=before.moved_bytes + moved,
            total_bytes=before.total_bytes,
            seconds=time.perf_counter() - started,
        )
        if step and progress is not None:
            progress(report)
        if not step:
            break
    return report


def relayout_report(store: Store, stream: str) -> RelayoutReport:
    """Where a change of layout stands."""
    return store.catalog.read(lambda tables: report_of(take_stock(store, tables, stream)))


def report_of(stock: Stock) -> RelayoutReport:
    """The same, of what was looked at."""
    state, change = stock.state, stock.state.relayout
    return RelayoutReport(
        stream=stock.entry.definition.name,
        index=str(state.layout.index),
        key=stock.entry.definition.key,
        why=state.layout.why,
        moved_bytes=0 if change is None else change.moved,
        left_bytes=stock.left,
        total_bytes=0 if change is None else change.total,
        budget=0 if change is None else change.budget,
        can_cancel=change is not None and change.previous is not None,
    )


def holding(store: Store, stream: str, timeout: float) -> AbstractContextManager[None]:
    """The stream's lock: no slide and no other change meanwhile; appends and readers go on."""
    store.check_writable()
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, stream))
    refuse_view(entry, "changed by hand")
    path = store.lock_path(entry.id)
    path.parent.mkdir(exist_ok=True)
    return locked(path, f"the slide of stream {stream!r}", timeout, store.sleep)
