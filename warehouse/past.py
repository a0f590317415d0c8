"""The past of a stream: what it showed at an earlier slide, or its live rows and those that have expired since.

Every row that was taken in is in one segment, in a cell or in history. Its sequence says which slide took it in, and
its expiry how long it lived, so that rows of an earlier commit are found by pruning and filtering what there is now.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from msgspec import structs

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import GapEntry, Role, SpoolEntry, StreamVersion, TableEntry
from windrow.catalog.segment_log import find_torn_files
from windrow.definitions import StreamDefinition
from windrow.errors import BusyError, UnknownStreamError, WindowError
from windrow.history import find_cutoff, find_table_version, list_past_tables, read_history
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import NEVER, RowModel
from windrow.indexes.segments import Segment, compute_seq_base
from windrow.row_spool import list_files, list_waiting
from windrow.schema_changes import restate_types
from windrow.slide_hooks import SlideHook
from windrow.snapshot import Snapshot, StreamSnapshot, load_stream, restrict_views
from windrow.store import Store

_FRESH_ATTEMPTS = 20
"""How often the spool is read again because a stream slid meanwhile. Not measured: a bound on waiting."""
_CACHED_PASTS = 32
"""Streams as of some commit that are remembered. Not measured: a bound on memory."""


@dataclass(frozen=True)
class AsOf:
    """An earlier state: by a time or a slide of the stream's own clock, or by the number of a commit."""

    kind: Literal["timestamp", "slide", "commit"]
    value: int

    def __str__(self) -> str:
        shown = f"'{times.format_time(self.value)}'" if self.kind == "timestamp" else self.value
        return f"AS OF {self.kind.upper()} {shown}"


@dataclass(frozen=True)
class IncludingExpired:
    """Beside the live rows those that have expired and are kept as history."""

    def __str__(self) -> str:
        return "INCLUDING EXPIRED"


Past = AsOf | IncludingExpired


def find_past(store: Store, view: StreamSnapshot, version: int, past: Past) -> StreamSnapshot:
    """A stream as it was, or with its expired rows; `version` is the commit that is pinned."""
    if view.entry.definition.inputs:
        raise WindowError(f"{view.name!r} is a view, which has no history of its own; ask the streams that it reads")
    if view.entry.definition.history is None:
        raise WindowError(
            f"stream {view.name!r} keeps no history, so {past} cannot be asked of it; "
            "declare history=… or use 'windrow stream alter --history'"
        )
    pasts: BoundedCache[Any, StreamSnapshot] = store.shared.attached("pasts", lambda: BoundedCache(_CACHED_PASTS))
    key = view.entry.id, version, past
    cached = pasts.get(key)
    if cached is None:
        make = _show_version if isinstance(past, AsOf) else _add_expired
        plain = StreamSnapshot(view.entry, view.state, view.segments, view.sources, view.gaps)  # whoever asks
        cached = store.catalog.read(lambda tables: make(tables, plain, version, past))
        pasts.put(key, cached)
    return cached


def _add_expired(tables: Tables, view: StreamSnapshot, version: int, _: Past) -> StreamSnapshot:
    if view.now is None:
        return view
    definition = view.entry.definition
    cutoff = find_cutoff(view.entry, view.state)
    assert cutoff is not None
    # Rows below the floor count by the lifetime that holds now: they are history, and not live again.
    plain = structs.replace(definition, floor=None)
    altered = definition.floor is not None or _was_altered(tables, view.entry.id)
    segments = [*view.segments, *read_history(tables, view.entry.id, version, None if altered else cutoff)]
    if altered:
        segments = [_restate(segment, plain) for segment in segments]
    return _make(view, plain, segments, {}, since=cutoff)


def _show_version(tables: Tables, view: StreamSnapshot, version: int, past: Past) -> StreamSnapshot:
    assert isinstance(past, AsOf)
    commit, shown = _find_version(tables, view, version, past)
    current = view.entry.definition
    definition = _find_definition(tables, view, commit)
    changes = {
        "slide": shown.slide, "ordinal": shown.ordinal, "missing": shown.missing, "ledger": shown.ledger,
        "spoken_for": shown.spoken_for, "rejected": shown.rejected,
    }  # fmt: skip
    gaps = shown.gaps or tuple(structs.replace(part, gaps=()) for part in view.gaps)
    revoked = tuple(what for when, what in view.state.revoked if when > commit)
    if shown.slide is None:
        return replace(_make(view, definition, [], changes), gaps=gaps, revoked=revoked)
    now = definition.model.slot_end(shown.slide)
    cutoff = find_cutoff(view.entry, view.state)
    if cutoff is not None and now < cutoff:
        raise _too_old(view, past)
    altered = current.floor is not None or _was_altered(tables, view.entry.id)
    stored = [*view.segments, *read_history(tables, view.entry.id, version, None if altered else now)]
    segments = [_as_then(each, shown.slide, now) for each in stored if each.first_slide <= shown.slide]
    if altered:
        segments = [_as_then(_restate(segment, definition), shown.slide, now) for segment in segments]
    before = compute_seq_base(shown.ordinal + 1, 0)
    shown_then = _make(view, definition, segments, changes, before=before)
    return replace(shown_then, gaps=gaps, revoked=revoked)


def _make(
    view: StreamSnapshot,
    definition: StreamDefinition,
    segments: Iterable[Segment],
    changes: Mapping[str, Any],
    *,
    since: int | None = None,
    before: int | None = None,
) -> StreamSnapshot:
    segments = tuple(segments)
    rows: Counter[str] = Counter()
    for segment in segments:
        rows[segment.file] += segment.rows
    # What else lies in their files was rewritten elsewhere or given up.
    torn = tuple({segment.file for segment in segments if rows[segment.file] != segment.file_rows})
    return replace(
        view,
        entry=structs.replace(view.entry, definition=structs.replace(definition, key=view.entry.definition.key)),
        state=structs.replace(view.state, **changes, torn=torn),
        segments=Manifest(segments),
        since=since,
        before=before,
    )


def _as_then(segment: Segment, slide: int, now: int) -> Segment:
    """A segment as the window of a slide sees it: one that later slides added rows to never counts as whole."""
    return segment if segment.last_slide <= slide else structs.replace(segment, min_exp=min(segment.min_exp, now))


def _restate(segment: Segment, definition: StreamDefinition) -> Segment:
    """Between which times a segment's rows expire under another lifetime; the times may lie further apart than they."""
    model: RowModel = definition.model
    if model.expires is not None:
        return segment
    life, floor = model.lifetime, model.floor
    first, last = (NEVER, NEVER) if life is None else (segment.min_ts + life, segment.max_ts + life)
    if floor is not None and segment.min_ts <= floor:
        first = segment.min_ts + 1
        last = segment.max_ts + 1 if segment.max_ts <= floor else last
    return structs.replace(segment, min_exp=first, max_exp=last)


def _was_altered(tables: Tables, stream: int) -> bool:
    return next(iter(tables.raw_items("past_definitions", catalog_key(stream))), None) is not None


def _find_definition(tables: Tables, view: StreamSnapshot, commit: int) -> StreamDefinition:
    """The definition that held at a commit: what the first later change replaced."""
    stream = catalog_key(view.entry.id)
    start = catalog_key(view.entry.id, commit + 1)
    for _, raw in tables.raw_items("past_definitions", stream, start):
        return restate_types(tables.decode("past_definitions", raw), view.entry.definition)
    return view.entry.definition


# -- versions ----------------------------------------------------------------------------------------------------------


def _find_version(tables: Tables, view: StreamSnapshot, version: int, past: AsOf) -> tuple[int, StreamVersion]:
    """The last version at or before what was asked for, and the commit that it began with."""
    stream, model = view.entry.id, view.entry.definition.model

    def last_at(commit: int) -> tuple[int, StreamVersion] | None:
        item = tables.last_item("stream_versions", catalog_key(stream), catalog_key(stream, commit))
        return None if item is None else (decode_last_int(item[0]), item[1])

    if past.kind == "commit":
        if past.value > version:
            raise WindowError(f"{past} is in the future: the last commit is {version}")
        latest = last_at(past.value)
    else:
        slide = past.value if past.kind == "slide" else model.last_slot(past.value)
        if view.state.slide is None or slide > view.state.slide:
            clock = "it has not slid yet" if view.now is None else f"its clock is at {times.format_time(view.now)}"
            raise WindowError(f"{past} is ahead of stream {view.name!r}: {clock}, slide {view.state.slide}")
        low, high, latest = 0, version, None
        while low <= high:  # slides grow with commits
            middle = (low + high) // 2
            candidate = last_at(middle)
            if candidate is None or candidate[1].slide is None or candidate[1].slide <= slide:
                latest, low = candidate, middle + 1
            else:
                high = candidate[0] - 1
        latest = last_at(high)
    if latest is None:
        raise _too_old(view, past)
    return latest


def _too_old(view: StreamSnapshot, past: AsOf) -> WindowError:
    definition, cutoff = view.entry.definition, find_cutoff(view.entry, view.state)
    since = "" if cutoff is None else f", which reaches back to {times.format_time(cutoff)}"
    return WindowError(
        f"{past} lies before the history of stream {view.name!r}{since}; "
        f"it keeps {times.format_duration(definition.history or 0)}"
    )


# -- what a slide would show ------------------------------------------------------------------------------------------


def take_fresh(store: Store, alike: frozenset[str], role: Role, hooks: Sequence[SlideHook]) -> Snapshot:
    """A snapshot of streams as a forced slide of each to the end of its newest spooled slot would leave them.

    Rows of small appends that wait in the catalog are written to a file first, as a slide would do it.
    """
    from windrow.small_append import gather_waiting  # which writes; nothing else here does

    for _ in range(_FRESH_ATTEMPTS):
        base = Snapshot(store, alike=alike)
        try:
            for name in store.catalog.read(partial(_find_streams_with_waiting_rows, base=base)):
                gather_waiting(store, name, hooks)
            views = store.catalog.read(partial(_show_spooled_rows, base=base))
        except BaseException:
            base.close()
            raise
        if views is not None:
            return base.with_views(restrict_views(role, views) if role.is_restricted else views, role)
        base.close()
    raise BusyError("slides come so fast that what is spooled cannot be read between two of them; ask a snapshot")


def _find_streams_with_waiting_rows(tables: Tables, base: Snapshot) -> list[str]:
    return [name for name in base.streams() if any(list_waiting(tables, catalog_key(base.view(name).entry.id)))]


def _show_spooled_rows(tables: Tables, base: Snapshot) -> dict[str, StreamSnapshot] | None:
    """The streams of a snapshot with what is spooled; None if one has slid since."""
    views = {}
    for name in base.streams():
        view = base.view(name)
        if view.entry.definition.inputs:
            raise WindowError(
                f"{name!r} is a view, which moves with the slides of its streams; ask these, or a snapshot"
            )
        current = load_stream(base.store, tables, name) if tables.version != base.version else view
        if current.state.manifest != view.state.manifest or current.entry.id != view.entry.id:
            return None
        if any(list_waiting(tables, catalog_key(view.entry.id))):
            return None  # a small append came meanwhile
        spooled = [record for _, record in list_files(tables, catalog_key(view.entry.id))]
        views[name] = _take_in(current, spooled, base.store.clock())
    return views


def _take_in(view: StreamSnapshot, spooled: Sequence[SpoolEntry], at: int) -> StreamSnapshot:
    """The stream with spooled rows in its window, as a slide to the end of the newest of their slots would have it.

    Args:
        view: The stream.
        spooled: What is spooled.
        at: The wall time.
    """
    state, model = view.state, view.entry.definition.model
    newest = max((segment.max_ts for record in spooled for segment in record.segments), default=None)
    slot = None if newest is None else model.slot_of(newest)
    if slot is None or (state.slide is not None and slot <= state.slide):
        return view  # no slide would move it
    now, placed, before = model.slot_end(slot), list[Segment](), 0
    for record in spooled:
        base = compute_seq_base(state.ordinal + 1, before)
        for segment in record.segments:
            placed.append(structs.replace(segment, row=0, first_slide=slot, last_slide=slot, seq_base=base))
        before += max(record.rows, record.arrivals)
    progress, has_sources = view.progress(), bool(view.entry.definition.sources)
    missing = progress.excluded + (progress.waiting_for(now) if has_sources else ())
    progress_of = {source.name: source.progress for source in progress.sources}
    gaps = tuple(
        GapEntry(
            id=0,
            source=name,
            start=progress_of.get(name),
            end=now,
            kind="behind",
            cause="it has not come so far",
            opened=at,
        )
        for name in missing
    )
    segments = view.segments.concat(Manifest(placed))
    torn = find_torn_files(state.torn, (), placed, segments)
    changes = {"slide": slot, "ordinal": state.ordinal + 1, "missing": missing, "torn": torn, "ledger": not missing}
    return replace(
        view,
        state=structs.replace(state, spoken_for=progress.spoken_for(now), **changes),
        segments=segments,
        gaps=tuple(structs.replace(part, gaps=(*part.gaps, *gaps)) for part in view.gaps),
        at_last_slide=replace(view, segments=segments),
    )


# -- a whole commit ----------------------------------------------------------------------------------------------------


class PastSnapshot(Snapshot):
    """All streams with history, and all tables, as they were at an earlier commit; open as long as `base` is.

    Args:
        base: The pinned snapshot that it is made of.
        commit: Which commit.
    """

    def __init__(self, base: Snapshot, commit: int) -> None:
        self.store, self.role, self.version, self.commit = base.store, base.role, commit, commit
        self._base: Snapshot = base
        self._past_of = AsOf("commit", commit)
        if commit > base.version:
            raise WindowError(f"{self._past_of} is in the future: the last commit is {base.version}")
        self._views: dict[str, StreamSnapshot] = {}
        self.tables = base.store.catalog.read(self._find_tables)
        self._release = base._release

    def view(self, stream: str) -> StreamSnapshot:
        """One stream as it was."""
        if stream not in self._views:
            self._views[stream] = self._base.past_view(stream, self._past_of)
        return super().view(stream)

    def streams(self) -> list[str]:
        """Names of the streams that there are now."""
        return self._base.streams()

    def past_view(self, stream: str, past: Past) -> StreamSnapshot:
        """Refused: what was asked then had one past."""
        if past != self._past_of:
            raise WindowError(f"{past} cannot be asked of what is already {self._past_of}; leave one of them out")
        return self.view(stream)

    def _find_tables(self, tables: Tables) -> dict[str, TableEntry]:
        then = {}
        for name in {*self._base.tables, *list_past_tables(tables)}:
            was_replaced, entry = find_table_version(tables, name, self.version)
            entry = entry if was_replaced else self._base.tables.get(name)
            if entry is not None and self.role.sees(name):
                then[name] = entry
        return then


def past_view(snapshot: Snapshot, stream: str, past: Past) -> StreamSnapshot:
    """A stream of a snapshot, as it was; a role that sees rows of some ages only may not go back."""
    role, view = snapshot.role, snapshot.view(stream)
    if role.oldest is not None or role.newest is not None:
        raise WindowError(f"role {role.name!r} sees rows by their age, so {past} cannot be asked by it")
    past_stream = find_past(snapshot.store, view, snapshot.version, past)
    if not role.is_restricted:
        return past_stream
    visible = restrict_views(role, {view.name: past_stream}).get(view.name)
    if visible is None:
        raise UnknownStreamError(f"there is no stream {stream!r}")
    return visible
