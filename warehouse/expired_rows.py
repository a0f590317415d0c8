"""Expired rows in files, and `erase_within`: how long after its expiry, or the end of history, a file may hold a row.

A file is written anew without such rows when the first of them has been dead for so long, and so no byte is rewritten
more than once in that time. Background work does it a slide before; a slide itself does only what has become overdue.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from windrow.background import Steps, background_of
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import ReclaimEntry, StreamEntry, StreamState
from windrow.catalog.segment_log import exchange_segments, find_torn_files, load_segments, note_change
from windrow.errors import WindrowError
from windrow.files import disk_errors
from windrow.history import find_cutoff, give_up, keep_expired
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.end_overrides import can_merge
from windrow.indexes.manifest import Manifest
from windrow.indexes.merge import rewrite_segment
from windrow.indexes.row_model import NEVER, RowModel, to_microseconds
from windrow.indexes.segments import Segment
from windrow.layouts import drop_empty_layouts
from windrow.locks import locked
from windrow.reclaim import find_holders, remove_replaced
from windrow.slide_hooks import SlideHook, find_removal_limit
from windrow.snapshot import StreamSnapshot
from windrow.store import Store
from windrow.times import format_duration, format_time

if TYPE_CHECKING:
    from windrow.segment_files import StagedFile

_STEP_BYTES = 64 << 20
"""Bytes of files that one step writes anew; a file is written whole. Not measured: it bounds what a slide waits for."""
_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class FileAge:
    """A file, and since when it has held expired rows."""

    file: str
    bytes: int
    first: int
    """When the first of its rows expired, or will."""
    retired: bool = False
    """Whether no segment lies in it any more: it goes when no reader needs it."""


@dataclass(frozen=True)
class LimitReport:
    """What a slide had to rewrite, or why it could not."""

    erased_late: int = 0
    limit_problem: str | None = None


@dataclass(frozen=True)
class _Contents:
    """A stream or view, its files and how long these may hold expired rows."""

    entry: StreamEntry
    state: StreamState
    segments: Manifest
    history: tuple[Segment, ...]
    clock: int
    """Up to where dead rows may go: the stream's clock, or that of a view that has still to read them."""
    cutoff: int
    """Rows that expired at or before it are kept no longer, as history neither."""
    limit: int
    files: tuple[FileAge, ...]
    altered: bool
    """Whether its rows once lived otherwise, as far as its history reaches."""

    def due(self, age: FileAge) -> int:
        """The clock at which a file must be gone, or be without the rows that expired first."""
        since = self.state.history_from
        history = 0 if since is not None and age.first <= since else self.entry.definition.history or 0
        return age.first + history + self.limit


def find_limit(tables: Tables, entry: StreamEntry) -> int | None:
    """How long the files of a stream may hold expired rows; a view keeps to the strictest of its streams."""
    if not entry.definition.inputs:
        return entry.definition.erase_within
    inputs = [tables.get("streams", name.encode()) for name in entry.definition.inputs]
    limits = [find_limit(tables, each) for each in inputs if each is not None]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_model(tables: Tables, entry: StreamEntry) -> RowModel:
    """When rows are dead for certain: history keeps rows by the lifetimes that held when they expired."""
    definition = entry.definition
    past = [each for _, each in tables.items("past_definitions", catalog_key(entry.id))]
    if definition.expires is not None or not past:
        return definition.model
    lives = [each.lifetime for each in (*past, definition) if each.lifetime is not None]
    return replace(definition, floor=None, lifetime=max(lives, default=None)).model


def _first_expiry(model: RowModel, min_ts: int, min_exp: int) -> int:
    """When the first row of a file expires; where a lifetime was altered, not after that."""
    if model.expires is not None:
        return min_exp
    if model.floor is not None and min_ts <= model.floor:
        return min_ts + 1
    return NEVER if model.lifetime is None else min_ts + model.lifetime


def list_ages(
    store: Store, tables: Tables, entry: StreamEntry, segments: Iterable[Segment], *, retired: bool = False
) -> list[FileAge]:
    """The files of a stream with `segments` in its cells; with `retired` also replaced ones that a reader keeps."""
    model = _limit_model(tables, entry)
    ended: dict[str, int] = {}
    for segment in segments if entry.definition.has_overrides else ():
        if segment.ended:
            ended[segment.file] = min(segment.min_exp, ended.get(segment.file, NEVER))
    folder = store.stream_folder(entry.definition.name).relative_to(store.root).as_posix() + "/"
    ages = []
    for key, record in tables.items("files", folder.encode()):
        bounds = (record.min_ts, record.min_exp)
        if record.stream == entry.id:
            limits = bounds if bounds[0] is not None else _read_bounds(store, key.decode(), model)
            if limits is not None:
                first = min(_first_expiry(model, *limits), ended.get(key.decode(), NEVER))
                ages.append(FileAge(key.decode(), record.bytes, first))
    if retired:
        gone: list[ReclaimEntry] = [each for _, each in tables.items("reclaim") if each.stream == entry.id]
        for file in (file for each in gone for file in each.files if file.startswith(folder)):
            limits = _read_bounds(store, file, model)
            if limits is not None:
                ages.append(FileAge(file, 0, _first_expiry(model, *limits), retired=True))
    return ages


def _read_bounds(store: Store, file: str, model: RowModel) -> tuple[int, int] | None:
    """The least time and expiry in a file, by its own statistics; None if it is not there, or has none."""
    try:
        metadata = store.reader.open(file)[0].metadata
    except (WindrowError, OSError):
        return None
    names = {metadata.schema.column(position).path: position for position in range(metadata.num_columns)}
    least = []
    for name in (model.time, model.expires or model.time):
        position = names.get(name)
        if position is None:
            return None
        groups = [metadata.row_group(number).column(position).statistics for number in range(metadata.num_row_groups)]
        values = [each.min for each in groups if each is not None and each.has_min_max]
        if not values:
            return None
        least.append(int(to_microseconds(pa.array([min(values)]))[0][0]))
    return least[0], least[1]


def find_oldest_expired(store: Store, tables: Tables, view: StreamSnapshot) -> int | None:
    """When the row expired that has been expired for longest of those that files still hold; None if none has."""
    ages = list_ages(store, tables, view.entry, view.segments, retired=True)
    first = min((age.first for age in ages), default=NEVER)
    return first if view.now is not None and first <= view.now else None


def find_breaches(store: Store, tables: Tables) -> Iterator[str]:
    """Files that hold rows for longer than their streams allow, and who keeps them."""
    for _, entry in tables.items("streams"):
        contents = _read_contents(store, tables, entry.definition.name, ())
        if contents is None:
            continue
        now = entry.definition.model.slot_end(contents.state.slide or 0)
        ages = list_ages(store, tables, entry, contents.segments, retired=True)
        late = sorted((age for age in ages if contents.due(age) <= now), key=lambda age: age.first)
        for age in late:
            who = ", ".join(find_holders(store)) if age.retired else _name_views(tables, entry.id)
            yield (
                f"stream {entry.definition.name}: {age.file} still holds rows that expired at "
                f"{format_time(age.first)}, longer than erase_within "
                f"{format_duration(contents.limit)} allows; it is kept by {who}"
            )


def _name_views(tables: Tables, stream: int) -> str:
    views = [tables.get("plans", key[8:]).name for key, _ in tables.raw_items("views", catalog_key(stream))]
    return f"views that are behind ({', '.join(views)})" if views else "nobody: slide, and look again"


# -- rewriting ---------------------------------------------------------------------------------------------------------


def keep_limit(store: Store, stream: str, hooks: Sequence[SlideHook]) -> LimitReport:
    """What a slide does, under its lock and after its commit: erase what is overdue, and leave what nears its limit.

    The slide is committed, so a failure is only reported.
    """
    written = 0
    try:
        with disk_errors(f"erasing expired rows of stream {stream!r}"):
            for name in store.catalog.read(lambda tables: _list_limited(tables, stream)):
                with nullcontext() if name == stream else _hold_lock(store, name, _LOCK_SECONDS):
                    while (size := _erase_step(store, name, hooks, ahead=False)) is not None:
                        written += size
                if store.catalog.read(partial(_has_overdue_remains, store, name)):
                    from windrow.history_merge import TASK  # status reads this module and writes nothing

                    background_of(store).drop(TASK)  # which pins what it reads
                    remove_replaced(store)  # which else is left to the next slide
                _offer(store, name, hooks)
    except WindrowError as error:
        return LimitReport(written, str(error))
    return LimitReport(written)


def _has_overdue_remains(store: Store, name: str, tables: Tables) -> bool:
    """Whether replaced files of a stream hold rows for longer than it allows."""
    contents = _read_contents(store, tables, name, ())
    if contents is None:
        return False
    ages = list_ages(store, tables, contents.entry, contents.segments, retired=True)
    return any(age.retired and contents.due(age) <= contents.clock for age in ages)


def offer_erasure(store: Store, hooks: Sequence[SlideHook]) -> None:
    """Let what nears its limit be erased in the background, for all streams."""

    def list_streams(tables: Tables) -> list[str]:
        entries = [entry for _, entry in tables.items("streams")]
        return [entry.definition.name for entry in entries if find_limit(tables, entry) is not None]

    for name in store.catalog.read(list_streams):
        _offer(store, name, hooks)


def _offer(store: Store, name: str, hooks: Sequence[SlideHook]) -> None:
    contents = store.catalog.read(lambda tables: _read_contents(store, tables, name, hooks))
    if contents is not None and _choose_files(contents, ahead=True):
        background_of(store).add(store, f"expired rows of {name}", _erase_in_steps(store, name, hooks))


def _list_limited(tables: Tables, stream: str) -> list[str]:
    """A stream and the views above it whose files are to be without expired rows after a while."""
    names: list[str] = []
    waiting = [find_stream(tables, stream)[0]]
    while waiting:
        entry = waiting.pop()
        if entry.definition.name not in names and find_limit(tables, entry) is not None:
            names.append(entry.definition.name)
        for key, _ in tables.raw_items("views", catalog_key(entry.id)):
            view = tables.get("plans", key[8:])
            waiting.append(find_stream(tables, view.name)[0])
    return names


def _hold_lock(store: Store, name: str, timeout: float) -> AbstractContextManager[None]:
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, name))
    path = store.lock_path(entry.id)
    path.parent.mkdir(exist_ok=True)
    return locked(path, f"the slide of stream {name!r}", timeout, store.sleep)


def _erase_in_steps(store: Store, name: str, hooks: Sequence[SlideHook]) -> Steps:
    """Background work: what nears its limit, a file at a time."""
    while True:
        with disk_errors(f"erasing expired rows of stream {name!r}"), _hold_lock(store, name, 0.0):
            if _erase_step(store, name, hooks, ahead=True) is None:
                return
        yield


def _read_contents(store: Store, tables: Tables, name: str, hooks: Sequence[SlideHook]) -> _Contents | None:
    entry, state = find_stream(tables, name)
    limit = find_limit(tables, entry)
    if limit is None or state.slide is None:
        return None
    now = entry.definition.model.slot_end(state.slide)
    needed = find_removal_limit(tables, [h for h in hooks if h.applies_to(tables, entry.id)], entry, state.slide)
    clock = now if needed is None else needed[1]
    cutoff = find_cutoff(entry, state) if entry.definition.history is not None else None
    history = tuple(
        record.segment for _, record in tables.items("history", catalog_key(entry.id)) if record.gone is None
    )
    segments = load_segments(store, tables, entry.id, state)
    return _Contents(
        entry, state, segments, history, clock,
        clock if entry.definition.history is None else min(clock, -NEVER if cutoff is None else cutoff),
        limit, tuple(list_ages(store, tables, entry, segments)),
        next(iter(tables.raw_items("past_definitions", catalog_key(entry.id))), None) is not None,
    )  # fmt: skip


def _choose_files(contents: _Contents, *, ahead: bool) -> set[str]:
    """Files to be written anew now, or with `ahead` those that a slide would have to; as many as a step may be."""
    clock = contents.clock + (contents.entry.definition.slide if ahead else 0)
    named = {segment.file for segment in (*contents.segments, *contents.history)}
    named -= {segment.file for segment in contents.segments if not can_merge(segment, contents.clock)}
    due = sorted(
        (age for age in contents.files if age.file in named and contents.due(age) <= clock), key=lambda age: age.first
    )
    chosen: set[str] = set()
    room = _STEP_BYTES
    for age in due:
        if chosen and age.bytes > room:
            break
        chosen.add(age.file)
        room -= age.bytes
    return chosen


def _erase_step(store: Store, name: str, hooks: Sequence[SlideHook], *, ahead: bool) -> int | None:
    """Write some files anew without what is due, in one transaction; gives the bytes written, None if nothing is due.

    The stream's lock must be held.
    """
    contents = store.catalog.read(lambda tables: _read_contents(store, tables, name, hooks))
    files = set[str]() if contents is None else _choose_files(contents, ahead=ahead)
    if contents is None or not files:
        return None
    definition = contents.entry.definition
    model, past_model = definition.model, store.catalog.read(lambda tables: _limit_model(tables, contents.entry))
    cells = [segment for segment in contents.segments if segment.file in files]
    past = [segment for segment in contents.history if segment.file in files]

    def select(using: RowModel, after: int, upto: int) -> Callable[[pa.Table], pa.Table]:
        def choose(rows: pa.Table) -> pa.Table:
            exp, _ = using.expiries(rows, using.times(rows)[0])
            return rows.filter(to_arrow((exp > after) & (exp <= upto)))

        return choose

    def choose_dead(rows: pa.Table) -> pa.Table:
        return select(past_model, contents.cutoff, NEVER)(select(model, -NEVER, contents.clock)(rows))

    dead = [segment for segment in cells if segment.min_exp <= contents.clock]
    staged = [
        _write(store, contents, cells, select(model, contents.clock, NEVER)),
        _write(store, contents, past, select(past_model, contents.cutoff, NEVER)),
        _write(store, contents, dead, choose_dead) if definition.history is not None else None,
    ]
    written = [file for file in staged if file is not None]
    from windrow.segment_files import publish_files

    names = publish_files(store, written, store.stream_folder(name) / "segments", "limit")
    store.files.reach("limit.committing")
    with store.write_with_files(names) as tables:
        _record(tables, contents, cells, past, staged)
    store.files.reach("limit.committed")
    store.reader.forget(files)
    remove_replaced(store)
    return sum(file.bytes for file in written)


def _write(
    store: Store, contents: _Contents, segments: Sequence[Segment], choose: Callable[[pa.Table], pa.Table]
) -> "StagedFile | None":
    """The rows of segments that `choose` leaves, in a file of their own; None if there are none."""
    entry, state, schema = contents.entry, contents.state, contents.entry.definition.stored_schema
    drafts, places = [], []
    past = {segment.id for segment in contents.history}
    from windrow.segment_files import Placement, StagedWriter

    with StagedWriter(store) as file:
        output = file.write_segments(entry, state.layout, schema)
        for segment in segments:
            model = entry.definition.model.with_key(state.layout_of(segment.layout).key)
            made = rewrite_segment(segment, choose, model, schema, store.reader, output)
            if made is not None:
                draft = made[0]
                if segment.id in past and contents.altered:  # they expired by the lifetime of then
                    draft = replaced(draft, min_exp=segment.min_exp, max_exp=segment.max_exp)
                drafts.append(draft)
                places.append(Placement(segment.layout, segment.row, segment.first_slide, segment.last_slide))
        return file.seal(drafts, placements=places) if drafts else None


def _record(
    tables: Tables,
    contents: _Contents,
    cells: list[Segment],
    past: list[Segment],
    staged: "Sequence[StagedFile | None]",
) -> None:
    entry, stream = contents.entry, catalog_key(contents.entry.id)
    from windrow.segment_files import record_placed

    live, ended, dead = (record_placed(tables, entry.id, file) for file in staged)
    exchange_segments(tables, entry.id, live, cells)
    remaining = contents.segments.replace({segment.id for segment in cells}, live)
    # Read again: appends may have changed it since we looked.
    _, state = find_stream(tables, entry.definition.name)
    torn = find_torn_files(state.torn, cells, (), remaining)
    state = replace(note_change(state, tables.version, live, cells, remaining), torn=torn)
    if past:
        state = give_up(tables, entry, state, past)
    rows, size = keep_expired(tables, entry, [*ended, *dead])
    state = replace(state, history_rows=state.history_rows + rows, history_bytes=state.history_bytes + size)
    tables.put("states", stream, drop_empty_layouts(tables, entry.id, state, remaining))
