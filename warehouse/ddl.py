"""Streams are created, dropped and altered while others are read and written.

A lifetime belongs to the stream, not to the row: exp = ts + lifetime holds for stored rows too, from the commit on.
Expired rows stay gone, so a lengthened lifetime leaves a floor below which the stream keeps nothing.
"""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_name_clash, find_stream, refuse_view
from windrow.catalog.records import Layout, QueryState, ReclaimEntry, SpoolEntry, StreamEntry, StreamState, ViewEntry
from windrow.catalog.segment_log import forget_dropped
from windrow.definitions import StreamDefinition, check_erase_within, check_history, choose_index, is_hidden
from windrow.errors import DefinitionError, InUseError, StreamExistsError, UnknownStreamError, ViewError
from windrow.files import disk_errors
from windrow.gaps import note_version
from windrow.history import NO_HISTORY, change_history, drop_history, note_definition
from windrow.indexes.manifest import Manifest
from windrow.indexes.partitioners import Index
from windrow.indexes.segments import Segment
from windrow.layouts import (
    add_layout,
    drop_empty_layouts,
    make_first_layout,
    recompute_expiries,
    without_expiry_columns,
)
from windrow.locks import locked
from windrow.relayout import LayoutContents, hold_stream_lock, read_layout_contents
from windrow.row_checks import Checks
from windrow.row_spool import list_files
from windrow.schema_changes import Column, add_column, widen_column
from windrow.store import Store

_log = logging.getLogger(__name__)


def create_stream(store: Store, definition: StreamDefinition, index: Index | str) -> None:
    """Record a stream that was declared."""
    store.check_writable()
    layout = choose_first_layout(definition, index)
    with disk_errors(f"creating stream {definition.name!r}"):
        make_stream_folders(store, definition.name)
        with store.catalog.write() as tables:
            record_stream(tables, definition, layout, store.clock())
    _log.info("created stream %s", definition.name)


def make_stream_folders(store: Store, name: str) -> None:
    """Make the folders of a new stream, durably."""
    for part in ("segments", "rejected"):
        store.files.make_folder(store.stream_folder(name) / part)


def choose_first_layout(definition: StreamDefinition, index: Index | str) -> Layout:
    """The layout that a stream begins with: the user's, or one by its update pattern."""
    if isinstance(index, Index):
        chosen, why = index, "chosen by the user"
    elif index == "auto":
        chosen, why = choose_index(definition)
    else:
        raise DefinitionError(f"index must be 'auto' or windrow.Index(…), not {index!r}")
    return make_first_layout(definition, chosen, why)


def record_stream(tables: Tables, definition: StreamDefinition, layout: Layout, now: int) -> StreamEntry:
    """Record a new stream, or say what has its name."""
    other = find_name_clash(tables, definition.name)
    if other is not None:
        raise StreamExistsError(
            f"{other!r} exists already (SQL does not tell capitals apart); drop it first or choose another name"
        )
    number = tables.allocate("streams") + 1
    entry = StreamEntry(id=number, definition=definition, created=now)
    tables.put("streams", definition.name.encode(), entry)
    tables.put("states", catalog_key(number), StreamState(layouts=(layout,), manifest=tables.version))
    note_version(tables, entry)
    return entry


def drop_stream(store: Store, name: str, timeout: float = 60.0, *, view: bool = False) -> None:
    """Remove a stream (or a view); its files go when the last reader that pins them has gone."""
    store.check_writable()
    try:
        entry, _ = store.catalog.read(lambda tables: find_stream(tables, name))
    except UnknownStreamError:
        if not view:
            raise
        plans = store.catalog.read(lambda tables: [plan.name for _, plan in tables.items("plans")])
        views = [view for view in plans if not is_hidden(view)]
        hint = f"the views are {', '.join(views)}" if views else "none was created yet"
        raise UnknownStreamError(f"there is no view {name!r}; {hint}") from None
    if view != bool(entry.definition.inputs):
        raise ViewError(
            f"{name!r} is a {'stream' if view else 'view'}; drop it with drop_{'stream' if view else 'view'} "
            f"or 'windrow {'stream' if view else 'view'} drop'"
        )
    store.catalog.read(lambda tables: _refuse_if_asked(tables, name))
    drop_hidden_views(store, entry.id, timeout)
    path = store.lock_path(entry.id)
    path.parent.mkdir(exist_ok=True)
    with locked(path, f"the slide of stream {name!r}", timeout, store.sleep), store.catalog.write() as tables:
        entry, _ = find_stream(tables, name)
        _refuse_if_asked(tables, name)
        _refuse_if_viewed(tables, entry)
        stream = catalog_key(entry.id)
        plan: ViewEntry | None = tables.get("plans", stream)
        if plan is not None and plan.joined is not None:
            _decide_anew(tables, plan)
        files = [input_key.decode() for input_key, record in tables.items("files") if record.stream == entry.id]
        segments = [record.id for _, record in tables.items("segments", stream)]
        segments += [segment.id for _, record in list_files(tables, stream) for segment in record.segments]
        segments += [record.segment.id for _, record in tables.items("history", stream) if record.gone is None]
        rejected = [record.file for _, record in tables.items("rejected", stream)]
        record = ReclaimEntry(stream=entry.id, segments=tuple(segments), files=(*files, *rejected))
        tables.put("reclaim", catalog_key(tables.version, tables.allocate("reclaims")), record)
        for file in files:
            tables.delete("files", file.encode())
        for table in (
            "segments",
            "spool",
            "waiting",
            "slides",
            "sources",
            "gaps",
            "batches",
            "checkpoints",
            "rejected",
            "usage",
            "synopses",
            "publications",
            "published",
            "published_versions",
            "stream_versions",
            "past_definitions",
            "erasures",
            "arrivals",
            "summaries",
        ):
            tables.delete_prefix(table, stream)
        for input_key in [
            input_key for input_key, _ in tables.raw_items("views") if decode_last_int(input_key) == entry.id
        ]:
            tables.delete("views", input_key)
        drop_history(tables, entry.id)
        tables.delete("plans", stream)
        tables.delete("states", stream)
        tables.delete("streams", name.encode())
        forget_dropped(store, tables)
    with disk_errors(f"removing the published log of stream {name!r}"):
        if (store.stream_folder(name) / "_delta_log").is_dir():
            from windrow.publication import remove_log  # only here: few streams are published

            remove_log(store, entry.id, name)
    _log.info("dropped %s %s", "view" if view else "stream", name)
    if plan is not None and plan.grouped is not None and not plan.partials_of:
        for partials in plan.inputs:
            drop_stream(store, partials, timeout, view=True)


def _refuse_if_asked(tables: Tables, name: str) -> None:
    """Refuse to drop a stream that periodic queries read."""
    readers = [query.name for _, query in tables.items("queries") if name in query.reads]
    if readers:
        raise DefinitionError(f"stream {name!r} is read by periodic queries ({', '.join(readers)}); drop them first")


def _decide_anew(tables: Tables, view: ViewEntry) -> None:
    """Have the next round decide on the queries that a view of a join may have served: it goes."""
    users = [query for _, query in tables.items("queries") if set(query.reads) == set(view.inputs)]
    for query in users:
        state: QueryState = tables.get("paced", catalog_key(query.id))
        tables.put("paced", catalog_key(query.id), replace(state, judged=0))


def _find_views(tables: Tables, stream: int) -> list[str]:
    """The views of a stream, also those of joins that standing queries share."""
    numbers = [decode_last_int(key) for key, _ in tables.raw_items("views", catalog_key(stream))]
    return [tables.get("plans", catalog_key(number)).name for number in numbers]


def drop_hidden_views(store: Store, stream: int, timeout: float = 60.0) -> None:
    """Drop views of joins of a stream, or of its views: a round may keep such views again."""

    def find(tables: Tables) -> list[str]:
        names = _find_views(tables, stream)
        for name in names:  # it grows meanwhile
            names += _find_views(tables, find_stream(tables, name)[0].id)
        return list(dict.fromkeys(filter(is_hidden, names)))

    for name in store.catalog.read(find):
        with contextlib.suppress(UnknownStreamError):  # somebody else was quicker
            drop_stream(store, name, timeout, view=True)


def _refuse_if_viewed(tables: Tables, entry: StreamEntry) -> None:
    """Refuse to drop a stream that views are derived from."""
    plans = [
        tables.get("plans", catalog_key(decode_last_int(key)))
        for key, _ in tables.raw_items("views", catalog_key(entry.id))
    ]
    views = [plan.partials_of or plan.name for plan in plans]
    if views:
        raise InUseError(
            f"{entry.definition.name!r} is needed by the view{'s' if len(views) > 1 else ''} {', '.join(views)}; "
            "drop what is derived from it first"
        )


FOREVER = "forever"
"""The lifetime of rows that never expire, as a user writes it."""
NEVER_SPOKEN_FOR = "never"
"""The max_skew of a stream that waits for silent sources."""
_NO_LIMITS = (
    ("max_skew", NEVER_SPOKEN_FOR), ("rejected_retention", FOREVER), ("history", NO_HISTORY),
    ("erase_within", NO_HISTORY),
)  # fmt: skip
"""What a user writes to take a limit away."""


@dataclass(frozen=True)
class Alteration:
    """What changes of a stream's definition; what is None stays as it is. See `Warehouse.alter_stream`."""

    add_column: Column | None
    widen_column: Column | None
    lifetime: times.Duration | None
    max_lifetime: times.Duration | None
    checks: Checks | None
    limits: Mapping[str, times.Duration | None]
    """The others, by name."""

    @property
    def changes_columns(self) -> bool:
        """Whether the stream will have other columns."""
        return self.add_column is not None or self.widen_column is not None

    @property
    def changes_lifetime(self) -> bool:
        """Whether rows will live otherwise."""
        return (self.lifetime, self.max_lifetime) != (None, None)


def alter_stream(store: Store, stream: str, change: Alteration, timeout: float) -> None:
    """Change a stream's definition in one transaction, after `timeout` seconds of waiting for a slide at most."""
    with disk_errors(f"altering stream {stream!r}"), hold_stream_lock(store, stream, timeout):
        contents = store.catalog.read(lambda tables: read_layout_contents(store, tables, stream))
        old = contents.entry.definition
        refuse_view(contents.entry, "altered")
        new = _check_change(store, contents, change)
        recomputed = _recompute_segments(store, contents, new) if new.lasts_otherwise(old) else None
        if change.changes_columns or new.erase_within not in (None, old.erase_within):
            drop_hidden_views(store, contents.entry.id, timeout)  # none is made meanwhile: that takes the stream's lock
        store.files.reach("alter.committing")
        with store.catalog.write() as tables:
            entry, state = find_stream(tables, stream)
            if recomputed is not None:
                state = _record_recomputed(store, tables, contents, state, new, recomputed)
            elif new.lifetime_slots != old.lifetime_slots:
                state = _layout_for_lifetime(
                    store, contents, state, new, sum(segment.bytes for segment in contents.segments)
                )
                state = drop_empty_layouts(tables, entry.id, state, contents.segments)
            if new.history is not None and (new.lasts_otherwise(old) or change.changes_columns):
                note_definition(tables, entry)
            changed = replace(entry, definition=new)
            if change.widen_column is not None and new.schema != old.schema:
                tables.delete_prefix("synopses", catalog_key(entry.id))  # whoever asked for it has them filled again
            tables.put("streams", stream.encode(), changed)
            tables.put("states", catalog_key(entry.id), change_history(tables, entry, new, state))
            note_version(tables, changed)
        store.files.reach("alter.committed")
    _log.info("altered stream %s", stream)


_KEPT_BY_LIFETIME = (
    "standing queries or summaries keep synopses of stream {!r}, by the lifetime that it has; drop them first"
)


def _check_change(store: Store, contents: LayoutContents, change: Alteration) -> StreamDefinition:
    """What a stream will be, or why it cannot: a lifetime stays while views, queries or summaries rely on it."""
    old, number = contents.entry.definition, contents.entry.id
    views = store.catalog.read(lambda tables: _find_views(tables, number))
    if not all(map(is_hidden, views)) and (change.changes_columns or change.changes_lifetime):
        raise DefinitionError(
            f"views are derived from stream {old.name!r}, by the columns and lifetime that it has; drop them first"
        )
    if contents.has_summaries and change.widen_column is not None:
        raise DefinitionError(
            f"summaries of stream {old.name!r} group by the types that its columns have; drop them first, and create "
            "them again"
        )
    if (contents.summarised or views) and change.changes_lifetime:
        raise DefinitionError(_KEPT_BY_LIFETIME.format(old.name))
    new = old if change.add_column is None else add_column(old, change.add_column)
    if change.widen_column is not None:
        layouts = (*contents.state.layouts, *contents.state.past_layouts)
        sorted_by = {*(old.first_key or ()), *(name for layout in layouts for name in layout.key)}
        new = widen_column(new, change.widen_column, sorted_by)
    new = _change_limits(new if change.checks is None else replace(new, checks=change.checks), change.limits)
    return _change_lifetime(new, contents.state, change.lifetime, change.max_lifetime)


def _change_limits(old: StreamDefinition, limits: Mapping[str, times.Duration | None]) -> StreamDefinition:
    """The definition with other limits; those that are None stay."""
    changed = {name: value for name, value in limits.items() if value is not None}
    spans = {
        name: None if (name, value) in _NO_LIMITS else times.parse_slack(value, f"stream {old.name!r}: {name}")
        for name, value in changed.items()
    }
    if spans.get("history") is not None:
        check_history(old.name, changed["history"], old.slide)
    if spans.get("erase_within") is not None:
        check_erase_within(old.name, changed["erase_within"], old.slide, old.longest_life)
    return replace(old, **spans)


def _change_lifetime(
    old: StreamDefinition, state: StreamState, lifetime: times.Duration | None, max_lifetime: times.Duration | None
) -> StreamDefinition:
    """The definition with another lifetime."""
    if old.expires is None and max_lifetime is not None:
        raise DefinitionError(f"stream {old.name!r}: all its rows live equally long; alter lifetime, not max_lifetime")
    if old.expires is not None and lifetime is not None:
        raise DefinitionError(
            f"stream {old.name!r}: its rows have their own expiry in {old.expires!r}; "
            "alter max_lifetime, the longest that rows to come may live"
        )
    if max_lifetime is not None:
        longest = times.parse_duration(max_lifetime, f"stream {old.name!r}: max_lifetime")
        return replace(old, max_lifetime=_check_lifetime(old, longest))
    if lifetime is None:
        return old
    length = None if lifetime == FOREVER else times.parse_duration(lifetime, f"stream {old.name!r}: lifetime")
    if length is not None:
        _check_lifetime(old, length)
    floor = old.floor
    if state.slide is not None and old.lifetime is not None and (length is None or length > old.lifetime):
        expired_until = old.model.slot_end(state.slide) - old.lifetime
        floor = expired_until if floor is None else max(floor, expired_until)
    return replace(old, lifetime=length, floor=floor)


def _check_lifetime(old: StreamDefinition, length: int) -> int:
    if length < old.slide:
        raise DefinitionError(
            f"stream {old.name!r}: lifetime {times.format_duration(length)} is shorter than the slide "
            f"{times.format_duration(old.slide)}; rows would be gone before they are seen"
        )
    return length


# -- stored rows under another lifetime ------------------------------------------------------------------------------


def _recompute_segments(store: Store, contents: LayoutContents, new: StreamDefinition) -> dict[int, Segment]:
    """The records of all stored and spooled segments under the new lifetime, by their number."""
    spool = store.catalog.read(
        lambda tables: [record for _, record in list_files(tables, catalog_key(contents.entry.id))]
    )
    segments = [*contents.segments, *(segment for record in spool for segment in record.segments)]
    schema = contents.entry.definition.stored_schema
    return {segment.id: recompute_expiries(segment, new.model, schema, store.reader) for segment in segments}


def _record_recomputed(
    store: Store,
    tables: Tables,
    contents: LayoutContents,
    state: StreamState,
    new: StreamDefinition,
    recomputed: dict[int, Segment],
) -> StreamState:
    """Record the recomputed segments; they go to layouts without expiry columns."""
    stream = contents.entry.id
    schema, expired, total = contents.entry.definition.stored_schema, 0, 0
    for segment in contents.segments:
        tables.put("segments", catalog_key(stream, segment.id), recomputed[segment.id])
        total += segment.bytes
        if state.slide is not None:
            expired += recomputed[segment.id].dead(state.slide) - segment.dead(state.slide)
    entry: SpoolEntry
    for spool_key, entry in list(list_files(tables, catalog_key(stream))):
        # What was appended since we looked is read here.
        segments = tuple(
            recomputed.get(segment.id) or recompute_expiries(segment, new.model, schema, store.reader)
            for segment in entry.segments
        )
        tables.put("spool", spool_key, replace(entry, segments=segments))
        total += entry.bytes
    loose = contents.entry.definition.lifetime is None
    layouts = tuple(without_expiry_columns(layout, loose=loose) for layout in state.layouts)
    state = replace(
        state, layouts=layouts, expired=state.expired + expired, manifest=tables.version, rewritten=tables.version
    )
    state = _layout_for_lifetime(store, contents, state, new, total)
    return drop_empty_layouts(tables, stream, state, Manifest(recomputed.values()))


def _layout_for_lifetime(
    store: Store, contents: LayoutContents, state: StreamState, new: StreamDefinition, total: int
) -> StreamState:
    """The stream with a layout for the new lifetime: chosen anew, or the user's own for another number of slots."""
    index, why = contents.state.layout.index, contents.state.layout.why
    if new.index_auto:
        index, why = choose_index(new, late_rows=state.late > 0)
    return add_layout(state, new, index, why, now=store.clock(), total=total, way_back=False)
