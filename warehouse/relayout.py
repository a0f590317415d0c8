"""Relayouts: a stream gets another layout or search key while it is read and written.

From the commit of the change on, appends are written for the new layout; rows in older layouts are read from there
until they expire or a step has moved them. A step moves a bounded number of bytes in one transaction, so a crash leaves
all of it or nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import groupby

import pyarrow as pa
from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream, refuse_view
from windrow.catalog.records import StreamEntry, StreamState
from windrow.catalog.segment_log import exchange_segments, find_torn_files, load_segments, note_change
from windrow.definitions import StreamDefinition, check_key, choose_index
from windrow.errors import DefinitionError, WindrowError
from windrow.files import disk_errors
from windrow.indexes.end_overrides import can_merge
from windrow.indexes.manifest import Manifest
from windrow.indexes.merge import read_live_rows
from windrow.indexes.partitioners import Index
from windrow.indexes.row_model import NEVER, SEQ
from windrow.indexes.segment_builder import SegmentDraft, sort_into_segments
from windrow.indexes.segments import Segment
from windrow.layouts import STEP_BYTES, add_layout, drop_empty_layouts
from windrow.locks import locked
from windrow.reclaim import find_reclaimable, forget_reclaimed, remove_files
from windrow.row_spool import list_files
from windrow.segment_files import CHUNK_BYTES, Placement, StagedFile, StagedWriter, publish_files, record_placed
from windrow.store import Store


@dataclass(frozen=True)
class LayoutContents:
    """A stream and the segments in its layouts."""

    entry: StreamEntry
    state: StreamState
    segments: Manifest
    spooled: int
    """Bytes that are spooled for older layouts."""
    viewed: bool
    """Whether views follow the stream: they may still need rows that are dead."""
    summarised: bool
    """Whether standing queries or summaries keep synopses of it, which know when its rows leave."""
    has_summaries: bool
    """Whether summaries group by its columns, as they are now."""
    read_upto: int | None = None
    """The clock of the view that is furthest behind, None if no view follows the stream."""

    @property
    def older(self) -> list[Segment]:
        """Segments that lie in older layouts."""
        return [segment for segment in self.segments if segment.layout != self.state.layout.id]

    @property
    def movable(self) -> list[Segment]:
        """Those of them that no view needs as they were before rows of them were ended."""
        return [segment for segment in self.older if self.read_upto is None or can_merge(segment, self.read_upto)]

    @property
    def left(self) -> int:
        """Bytes in older layouts."""
        return sum(segment.bytes for segment in self.older) + self.spooled


@dataclass(frozen=True)
class SlideRelayout:
    """What a slide moved between layouts."""

    relayout_bytes: int = 0
    relayout_problem: str | None = None


def read_layout_contents(store: Store, tables: Tables, stream: str) -> LayoutContents:
    """Read the layouts of a stream and their segments in a transaction."""
    entry, state = find_stream(tables, stream)
    spooled = 0
    if len(state.layouts) > 1:
        for _, record in list_files(tables, catalog_key(entry.id)):
            spooled += sum(segment.bytes for segment in record.segments if segment.layout != state.layout.id)
    viewed, synopses, summaries = (
        next(iter(tables.raw_items(table, catalog_key(entry.id))), None) is not None
        for table in ("views", "synopses", "summaries")
    )
    segments = load_segments(store, tables, entry.id, state)
    read_upto = _find_least_clock(tables, entry.id) if viewed and segments.ended else None
    return LayoutContents(entry, state, segments, spooled, viewed, synopses or summaries, summaries, read_upto)


def _find_least_clock(tables: Tables, stream: int) -> int:
    """The clock of the view of a stream that is furthest behind."""
    clocks = []
    for key, _ in tables.raw_items("views", catalog_key(stream)):
        view = tables.get("plans", catalog_key(decode_last_int(key)))
        entry, state = find_stream(tables, view.name)
        clocks.append(-NEVER if state.slide is None else entry.definition.model.slot_end(state.slide))
    return min(clocks)


def move_after_slide(store: Store, stream: str) -> SlideRelayout:
    """Move rows after a slide, under its lock. The slide is committed, so a failure here is only reported."""
    change = store.catalog.read(lambda tables: find_stream(tables, stream)[1].relayout)
    if change is None or not change.budget:
        return SlideRelayout()
    try:
        with disk_errors(f"moving rows of stream {stream!r}"):
            return SlideRelayout(move_step(store, stream, change.budget))
    except WindrowError as error:
        return SlideRelayout(relayout_problem=str(error))


def move_step(store: Store, stream: str, budget: int) -> int:
    """One step, under the stream's lock; gives the bytes that it took out of older layouts, 0 if there are none.

    Args:
        store: The warehouse.
        stream: Its name.
        budget: Bytes to move at most; a segment is moved whole, so one that is larger is moved all the same.
    """
    contents = store.catalog.read(lambda tables: read_layout_contents(store, tables, stream))
    chosen = _choose_segments(contents.movable, budget)
    if not chosen:
        return 0
    store.files.reach("relayout.planned")
    staged = _write_rows(store, contents, chosen)
    folder = store.stream_folder(stream) / "segments"
    names = publish_files(store, [staged] if staged else [], folder, "relayout")
    ready = find_reclaimable(store)
    remove_files(store, ready)
    store.files.reach("relayout.committing")
    with store.write_with_files(names) as tables:
        _record(tables, contents, chosen, record_placed(tables, contents.entry.id, staged))
        forget_reclaimed(store, tables, ready)
    store.files.reach("relayout.committed")
    return sum(segment.bytes for segment in chosen)


def _choose_segments(older: list[Segment], budget: int) -> list[Segment]:
    """The segments to move: of files whose rows live longest first, since others soon expire anyway."""
    files: dict[str, list[Segment]] = {}
    for segment in older:
        files.setdefault(segment.file, []).append(segment)
    chosen: list[Segment] = []
    for segments in sorted(files.values(), key=lambda segments: -max(segment.max_exp for segment in segments)):
        for segment in segments:
            if chosen and segment.bytes > budget:
                return chosen
            chosen.append(segment)
            budget -= segment.bytes
    return chosen


def _write_rows(store: Store, contents: LayoutContents, chosen: list[Segment]) -> StagedFile | None:
    """Write the live rows of segments in the order of the current layout, a chunk of each insertion row at a time."""
    entry, layout, model = contents.entry, contents.state.layout, contents.entry.definition.model
    partitioner = layout.partitioner()
    drafts: list[SegmentDraft] = []
    placements: list[Placement] = []
    with StagedWriter(store) as file:
        output = file.write_segments(entry, layout, entry.definition.stored_schema)
        by_row = sorted(chosen, key=lambda segment: (partitioner.row(segment.last_slide), segment.last_slide))
        for row, group in groupby(by_row, key=lambda segment: partitioner.row(segment.last_slide)):
            for rows, first, last in _read_chunks(store, contents, list(group)):
                ts, _ = model.times(rows)
                exp, _ = model.expiries(rows, ts)
                seq = rows.column(SEQ).to_numpy()
                batch = sort_into_segments(rows.drop_columns([SEQ]), model, partitioner, ts, exp, seq)
                start = output.rows
                batch.write(output)
                drafts += [replaced(draft, start=draft.start + start) for draft in batch.cuts]
                placements += [Placement(layout.id, row, first, last)] * len(batch.cuts)
        return file.seal(drafts, placements=placements) if drafts else None


def _read_chunks(
    store: Store, contents: LayoutContents, segments: list[Segment]
) -> Iterator[tuple[pa.Table, int, int]]:
    """The rows of segments that stay, with absolute sequences, in tables of bounded size, and which slides had them."""
    definition = contents.entry.definition
    keeps_dead = contents.viewed or definition.history is not None  # they become history with their last row
    slide = None if keeps_dead else contents.state.slide
    now = None if slide is None else definition.model.slot_end(slide)
    schema = definition.stored_schema
    pending: list[pa.Table] = []
    size, first, last = 0, segments[0].first_slide, segments[0].last_slide
    for segment in segments:
        for rows in read_live_rows(segment, now, definition.model, schema, store.reader, CHUNK_BYTES // 4):
            if size >= CHUNK_BYTES:
                yield pa.concat_tables(pending).combine_chunks(), first, last
                pending, size, first, last = [], 0, segment.first_slide, segment.last_slide
            pending.append(rows)
            size += rows.nbytes
            first, last = min(first, segment.first_slide), max(last, segment.last_slide)
    if pending:
        yield pa.concat_tables(pending).combine_chunks(), first, last


def _record(tables: Tables, contents: LayoutContents, chosen: list[Segment], placed: list[Segment]) -> None:
    stream = contents.entry.id
    exchange_segments(tables, stream, placed, chosen)
    remaining = contents.segments.replace({segment.id for segment in chosen}, placed)
    # Read again: appends may have changed it since we looked.
    _, state = find_stream(tables, contents.entry.definition.name)
    change = state.relayout
    if change is not None:
        change = replace(change, moved=change.moved + sum(segment.bytes for segment in chosen))
    torn = find_torn_files(state.torn, chosen, (), remaining)
    state = replace(note_change(state, tables.version, placed, chosen, remaining), torn=torn, relayout=change)
    tables.put("states", catalog_key(stream), drop_empty_layouts(tables, stream, state, remaining))


MOVE_CHOICES = (False, "steps", "now")

ReportProgress = Callable[["RelayoutReport"], None]


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
    progress: ReportProgress | None = None,
    auto: bool = False,
    why: str = "chosen by the user",
) -> RelayoutReport:
    """Turn a stream to another layout or search key; see `Warehouse.relayout`."""
    if move not in MOVE_CHOICES:
        raise DefinitionError(f"move must be False, 'steps' or 'now', not {move!r}")
    if budget < 1:
        raise DefinitionError(f"a step moves at least one byte, not {budget}")
    with disk_errors(f"changing the layout of stream {stream!r}"), hold_stream_lock(store, stream, timeout):
        with store.catalog.write() as tables:
            _change_layout(store, tables, stream, index, key, budget if move == "steps" else 0, auto=auto, why=why)
        store.files.reach("relayout.committed")
    if move == "now":
        return move_all(store, stream, budget=budget, timeout=timeout, progress=progress)
    return read_relayout_report(store, stream)


def _change_layout(
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
    contents = read_layout_contents(store, tables, stream)
    entry, state = contents.entry, contents.state
    definition, wanted, why = _resolve_change(entry.definition, state, index, key, why)
    definition = replace(definition, index_auto=definition.index_auto or auto)
    if definition.key != entry.definition.key or wanted != state.layout.index:
        total = sum(segment.bytes for segment in contents.segments) + _spooled_bytes(tables, entry.id)
        state = add_layout(state, definition, wanted, why, now=store.clock(), total=total, budget=budget)
    elif state.relayout is not None:
        state = replace(state, relayout=replace(state.relayout, budget=budget))
    tables.put("streams", stream.encode(), replace(entry, definition=definition))
    tables.put("states", catalog_key(entry.id), drop_empty_layouts(tables, entry.id, state, contents.segments))


def _spooled_bytes(tables: Tables, stream: int) -> int:
    return sum(record.bytes for _, record in list_files(tables, catalog_key(stream)))


def _resolve_change(
    old: StreamDefinition, state: StreamState, index: Index | str | None, key: Sequence[str] | str | None, why: str
) -> tuple[StreamDefinition, Index, str]:
    """The definition after the change, the layout, and why."""
    columns = old.key if key is None else check_key(old.name, old.schema, key)
    definition = with_key(old, columns)
    if index is None:
        return definition, state.layout.index, state.layout.why
    if isinstance(index, Index):
        return replace(definition, index_auto=False), index, why
    if index != "auto":
        raise DefinitionError(f"index must be 'auto' or windrow.Index(…), not {index!r}")
    chosen, pattern = choose_index(definition, late_rows=state.late > 0)
    return replace(definition, index_auto=True), chosen, pattern


def with_key(definition: StreamDefinition, key: tuple[str, ...]) -> StreamDefinition:
    """A definition with another search key; batches are still recognised by the first one."""
    if key == definition.key:
        return definition
    first = definition.key if definition.first_key is None else definition.first_key
    return replace(definition, key=key, first_key=first)


def cancel_relayout(store: Store, stream: str, timeout: float = 60.0) -> RelayoutReport:
    """Go back to the layout and key before the change; what was moved already leaves the new one by expiring."""
    with disk_errors(f"changing the layout of stream {stream!r}"), hold_stream_lock(store, stream, timeout):
        with store.catalog.write() as tables:
            contents = read_layout_contents(store, tables, stream)
            entry, state, change = contents.entry, contents.state, contents.state.relayout
            if change is None:
                raise DefinitionError(f"no change of layout of stream {stream!r} is under way; there is none to cancel")
            if change.previous is None:
                raise DefinitionError(
                    f"the layout of stream {stream!r} follows its new lifetime and has no way back; "
                    "alter the lifetime instead"
                )
            back = change.previous
            total = sum(segment.bytes for segment in contents.segments if segment.layout != back.id)
            undone = replace(change, previous=state.layout, started=store.clock(), total=total, moved=0, budget=0)
            others = tuple(layout for layout in state.layouts if layout.id != back.id)
            state = replace(state, layouts=(*others, back), relayout=undone)
            definition = with_key(entry.definition, back.key)
            tables.put("streams", stream.encode(), replace(entry, definition=definition))
            tables.put("states", catalog_key(entry.id), drop_empty_layouts(tables, entry.id, state, contents.segments))
        store.files.reach("relayout.committed")
    return read_relayout_report(store, stream)


def move_all(
    store: Store,
    stream: str,
    *,
    budget: int = STEP_BYTES,
    steps: int | None = None,
    timeout: float = 60.0,
    progress: ReportProgress | None = None,
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
    before = read_relayout_report(store, stream)
    report = before
    while steps is None or steps > 0:
        with disk_errors(f"moving rows of stream {stream!r}"), hold_stream_lock(store, stream, timeout):
            step = move_step(store, stream, budget)
        moved += step
        steps = None if steps is None else steps - 1
        report = replaced(
            read_relayout_report(store, stream),
            moved_bytes=before.moved_bytes + moved,
            total_bytes=before.total_bytes,
            seconds=time.perf_counter() - started,
        )
        if step and progress is not None:
            progress(report)
        if not step:
            break
    return report


def read_relayout_report(store: Store, stream: str) -> RelayoutReport:
    """Where a change of layout stands."""
    return store.catalog.read(lambda tables: make_relayout_report(read_layout_contents(store, tables, stream)))


def make_relayout_report(contents: LayoutContents) -> RelayoutReport:
    """The report of a stream whose layouts were read."""
    state, change = contents.state, contents.state.relayout
    return RelayoutReport(
        stream=contents.entry.definition.name,
        index=str(state.layout.index),
        key=contents.entry.definition.key,
        why=state.layout.why,
        moved_bytes=0 if change is None else change.moved,
        left_bytes=contents.left,
        total_bytes=0 if change is None else change.total,
        budget=0 if change is None else change.budget,
        can_cancel=change is not None and change.previous is not None,
    )


def hold_stream_lock(
    store: Store, stream: str, timeout: float, *, or_log: bool = False
) -> AbstractContextManager[None]:
    """The stream's lock: no slide and no other change meanwhile; appends and readers go on.

    Args:
        store: The warehouse.
        stream: Its name.
        timeout: Seconds to wait for a slide.
        or_log: It may be a view that keeps its rows whatever becomes of their parts.
    """
    store.check_writable()
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, stream))
    plan = store.catalog.read(lambda tables: tables.get("plans", catalog_key(entry.id))) if or_log else None
    if plan is None or plan.keep is None:
        refuse_view(entry, "changed by hand")
    path = store.lock_path(entry.id)
    path.parent.mkdir(exist_ok=True)
    return locked(path, f"the slide of stream {stream!r}", timeout, store.sleep)
