"""The merge of history: what expired on one day becomes a few files, ordered by search key, in the background.

Rows become history in as many small segments as slides have left them in. A merge reads those of a day that is over,
some rows at a step and without a lock, and one commit exchanges them, unless they were erased or given up meanwhile.
"""

from collections.abc import Sequence
from dataclasses import replace as replaced
from functools import partial

from msgspec.structs import replace

from windrow import times
from windrow.background import Steps, background_of
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import HistoryEntry, StreamEntry
from windrow.files import disk_errors
from windrow.history import find_cutoff, give_up, keep_expired
from windrow.indexes.merge import MergedSegment, read_merged
from windrow.indexes.segments import Segment
from windrow.segment_files import Placement, StagedFile, StagedWriter, publish_files, record_placed
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_MERGED_BYTES = 64 << 20
"""Of files that one merge exchanges; those of half that size are large enough. It bounds for how long a merge pins what
it reads, and what an erasure, which writes whole files anew, has to write. Not measured."""
TASK = "history of "
"""How the names of such tasks begin."""
_DAY = 86_400 * times.SECOND
_SHARE = 16
"""A short history is merged by so many parts, since a file goes only with its last row."""
_LIFE_SHARE = 8
"""And so many to a lifetime: an earlier window reads whole files (`bench history`)."""


def find_period(entry: StreamEntry) -> int:
    """The length of what is merged together: a day, or less where rows, their history or `erase_within` are short."""
    definition = entry.definition
    bounds = [_DAY, (definition.history or 0) // _SHARE]
    bounds += [] if definition.longest_life is None else [definition.longest_life // _LIFE_SHARE]
    bounds += [] if definition.erase_within is None else [definition.erase_within]
    return max(definition.slide, min(bounds))


def offer_merge(store: Store, stream: str) -> None:
    """Let the history of a stream be merged in the background, if a day has ended since that was last looked at."""

    def find_clock(tables: Tables) -> tuple[int, int] | None:
        entry, state = find_stream(tables, stream)
        if entry.definition.history is None or state.slide is None or not state.history_rows:
            return None
        return entry.id, entry.definition.model.slot_end(state.slide) // find_period(entry)

    clock = store.catalog.read(find_clock)
    merged_periods: dict[int, int] = store.shared.attached("merged history", dict)
    if clock is not None and merged_periods.get(clock[0]) != clock[1]:
        merged_periods[clock[0]] = clock[1]
        background_of(store).add(store, f"{TASK}{stream}", merge_in_steps(store, stream))


def offer_merges(store: Store) -> None:
    """The same for all streams."""
    entries = store.catalog.read(lambda tables: [entry for _, entry in tables.items("streams")])
    for entry in entries:
        if entry.definition.history is not None:
            offer_merge(store, entry.definition.name)


def merge_in_steps(store: Store, stream: str) -> Steps:
    """Merge the days that are over, oldest first, a bounded number of bytes in each commit."""
    while True:
        with disk_errors(f"merging the history of stream {stream!r}"), Snapshot(store, (stream,)) as snapshot:
            view = snapshot.view(stream)
            segments = store.catalog.read(partial(_choose_segments, view))
            if not segments:
                return
            yield from _merge(store, view, segments)
        yield


def _choose_segments(view: StreamSnapshot, tables: Tables) -> list[Segment]:
    """Small segments of the oldest day (and layout) that is over and has several of them."""
    if view.now is None or view.entry.definition.history is None:
        return []
    period, state = find_period(view.entry), view.state
    sorted_alike = {
        layout.id
        for layout in (*state.layouts, *state.past_layouts)
        if not layout.loose and layout.key == view.entry.definition.key
    }
    days: dict[tuple[int, int], list[Segment]] = {}
    for _, record in tables.items("history", catalog_key(view.entry.id)):
        segment: Segment = record.segment
        if segment.max_exp > view.now // period * period:
            break
        if record.gone is None and segment.layout in sorted_alike and segment.bytes < _MERGED_BYTES // 2:
            days.setdefault((-(-segment.max_exp // period), segment.layout), []).append(segment)
    day = next((segments for segments in days.values() if len(segments) > 1), [])
    chosen: list[Segment] = []
    size = 0
    for segment in sorted(day, key=lambda each: each.id):
        if size + segment.bytes > _MERGED_BYTES:
            break
        chosen.append(segment)
        size += segment.bytes
    return chosen


def _merge(store: Store, view: StreamSnapshot, segments: Sequence[Segment]) -> Steps:
    """Write the rows of segments into a new file, a step at a time, and exchange them in one commit."""
    definition, layout = view.entry.definition, view.state.layout_of(segments[0].layout)
    altered = store.catalog.read(
        lambda tables: next(iter(tables.raw_items("past_definitions", catalog_key(view.entry.id))), None) is not None
    )
    # By another lifetime than that of then nobody can tell which rows the history has kept long enough.
    cutoff = None if altered else find_cutoff(view.entry, view.state)
    model, schema = definition.model.with_key(layout.key), definition.stored_schema
    first, last = min(s.first_slide for s in segments), max(s.last_slide for s in segments)
    staged: list[StagedFile] = []
    with StagedWriter(store) as file:
        output = file.write_segments(view.entry, layout, schema)
        merged = MergedSegment(segments[0].column, model, schema, output)
        for block in read_merged(list(segments), cutoff, model, schema, store.reader):
            merged.add(block)
            yield
        draft = merged.draft()
        if draft is not None:
            if altered:
                ends = [(s.min_exp, s.max_exp) for s in segments]
                draft = replaced(draft, min_exp=min(e for e, _ in ends), max_exp=max(e for _, e in ends))
            staged.append(file.seal([draft], placements=[Placement(layout.id, segments[0].row, first, last)]))
    names = publish_files(store, staged, store.stream_folder(definition.name) / "segments", "history")
    store.files.reach("history.committing")
    with store.write_with_files(names) as tables:
        done = _record(tables, view, segments, staged)
    store.files.reach("history.committed")
    for name in names if not done else ():
        store.files.unlink(store.root / name)


def _record(tables: Tables, view: StreamSnapshot, segments: Sequence[Segment], staged: Sequence[StagedFile]) -> bool:
    """Exchange the segments, if they are all still there."""
    entry = view.entry
    for segment in segments:
        record: HistoryEntry | None = tables.get("history", catalog_key(entry.id, segment.max_exp, segment.id))
        if record is None or record.gone is not None:
            return False
    _, state = find_stream(tables, entry.definition.name)
    state = give_up(tables, entry, state, segments)
    rows, size = keep_expired(
        tables, entry, [each for file in staged for each in record_placed(tables, entry.id, file)]
    )
    state = replace(state, history_rows=state.history_rows + rows, history_bytes=state.history_bytes + size)
    tables.put("states", catalog_key(entry.id), state)
    return True
