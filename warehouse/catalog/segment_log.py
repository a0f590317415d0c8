"""The segments of a stream in the catalog: read into a cached manifest, added, and retired when they are replaced.

A manifest belongs to the commit that made it. Later commits are applied to it one by one while the stream's state still
lists their changes; otherwise the records are read, and only unknown ones are decoded.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import FileEntry, ReclaimEntry, SegmentChange, StreamState
from windrow.errors import FormatError
from windrow.indexes.manifest import Manifest
from windrow.indexes.segments import Segment
from windrow.store import Store

_CHANGES_KEPT = 8
"""Commits whose changes a stream's state lists; a process that is further behind reads all records."""
_MOST_SEGMENTS_NOTED = 256
"""A commit that changes more segments than this is not listed: the state is rewritten with every append.
Not measured: both bound the bytes of a state."""


def load_segments(store: Store, tables: Tables, stream: int, state: StreamState) -> Manifest:
    """The segments of a stream, decoding only those that this process has not seen yet."""
    cached = store.manifests.get(stream)
    if cached is not None and cached[0] == state.manifest:
        return cached[1]
    if cached is not None and cached[0] > state.manifest:
        # Of an older commit than is known: records may have been other ones then.
        return _read_all(tables, stream, (), state.segments)
    earlier = cached[1] if cached is not None and cached[0] >= state.rewritten else None
    segments = None if cached is None or earlier is None else _apply_changes(tables, stream, state, cached[0], earlier)
    if segments is None:
        unchanged = earlier is not None and cached is not None and cached[0] >= state.overridden
        segments = _read_all(tables, stream, earlier if earlier is not None and unchanged else (), state.segments)
    if cached is None:
        forget_dropped(store, tables)
    else:
        _evict_caches(store, cached[1], segments)
    store.manifests[stream] = state.manifest, segments
    return segments


def forget_dropped(store: Store, tables: Tables) -> None:
    """Drop what is cached of streams that were dropped, by this process or another."""
    existing = {decode_last_int(key) for key, _ in tables.raw_items("states")}
    for stream in store.manifests.keys() - existing:
        cached = store.manifests.pop(stream, None)
        if cached is not None:
            _evict_caches(store, cached[1], Manifest(()))
    for stream in store.encodings.keys() - existing:
        store.encodings.pop(stream, None)


def _apply_changes(tables: Tables, stream: int, state: StreamState, version: int, earlier: Manifest) -> Manifest | None:
    """The manifest of commit `version`, changed as later commits changed it; None if not all of them are known."""
    cached, added = version, dict[int, None]()
    removed: set[int] = set()
    for change in state.changes:
        # One commit may move a view several times: what it did is known as a whole, or not at all.
        if change.after > cached and change.before == version:
            version = change.after
            for number in change.gone:
                added.pop(number, None)
            removed |= set(change.gone)
            added |= dict.fromkeys(change.come)  # a segment that both came and went has a new record
    if version != state.manifest:
        return None
    records: list[Segment | None] = [tables.get("segments", catalog_key(stream, number)) for number in added]
    segments = [segment for segment in records if segment is not None]
    return earlier.replace(removed, segments) if len(segments) == len(records) else None


def _read_all(tables: Tables, stream: int, cached: tuple[Segment, ...], count: int | None) -> Manifest:
    by_number = {segment.id: segment for segment in cached}
    segments = Manifest(
        by_number.get(decode_last_int(key)) or tables.decode("segments", raw)
        for key, raw in tables.raw_items("segments", catalog_key(stream))
    )
    if count is not None and count != len(segments):
        raise FormatError(
            f"the catalog is damaged: stream {stream} has {count} segments, {len(segments)} of them can be found; "
            "restore the catalog from a copy"
        )
    return segments


def _evict_caches(store: Store, before: Manifest, after: Manifest) -> None:
    """Drop what is cached of files without segments: a memory map keeps the space of a deleted file."""
    if before:
        folder, files = before[0].file.rsplit("/", 1)[0], after.files()
        store.reader.retain(folder, files)
        store.columns.retain(folder, files)
        store.scan_cache.forget(set(before.arrays.id.tolist()) - set(after.arrays.id.tolist()))


def override_segments(tables: Tables, stream: int, segments: Iterable[Segment]) -> None:
    """Put down the records of segments whose rows end sooner than before; nothing else of them has changed."""
    for segment in segments:
        tables.put("segments", catalog_key(stream, segment.id), segment)


def exchange_segments(tables: Tables, stream: int, added: Iterable[Segment], replaced: Sequence[Segment]) -> None:
    """Put segments into the cells of a stream, and take those out that they replace."""
    for segment in added:
        tables.put("segments", catalog_key(stream, segment.id), segment)
    retire_segments(tables, stream, replaced)


def retire_segments(tables: Tables, stream: int, replaced: Sequence[Segment]) -> None:
    """Take segments out of the cells; what they need on disk goes when no reader is left that may look at it."""
    files = release_files(tables, replaced)
    for segment in replaced:
        tables.delete("segments", catalog_key(stream, segment.id))
    retire_files(tables, files, stream, [segment.id for segment in replaced])


def release_files(tables: Tables, segments: Iterable[Segment]) -> list[str]:
    """Count segments off their files; gives the files that have none left, which have no record any more."""
    files: list[str] = []
    for file, count in Counter(segment.file for segment in segments).items():
        entry: FileEntry = tables.get("files", file.encode())
        if entry.segments <= count:
            tables.delete("files", file.encode())
            files.append(file)
        else:
            tables.put("files", file.encode(), replace(entry, segments=entry.segments - count))
    return files


def retire_files(
    tables: Tables,
    files: Sequence[str],
    stream: int = 0,
    segments: Sequence[int] = (),
    history: Sequence[bytes] = (),
) -> None:
    """Files, and directories of segments, that no record names any more; they go when no reader may look at them."""
    if files or segments:
        record = ReclaimEntry(stream=stream, segments=tuple(segments), files=tuple(files), history=tuple(history))
        tables.put("reclaim", catalog_key(tables.version, tables.allocate("reclaims")), record)


def note_change(
    state: StreamState, version: int, added: Sequence[Segment], removed: Sequence[Segment], remaining: Sequence[Segment]
) -> StreamState:
    """The state after commit `version` has changed the stream's segments; a change of very many is not put down."""
    state = replace(state, segments=len(remaining))
    if len(added) + len(removed) > _MOST_SEGMENTS_NOTED:
        return replace(state, manifest=version, changes=())
    change = SegmentChange(state.manifest, version, tuple(s.id for s in added), tuple(s.id for s in removed))
    return replace(state, manifest=version, changes=(*state.changes[1 - _CHANGES_KEPT :], change))


def find_torn_files(
    torn_before: Iterable[str], rewritten: Iterable[Segment], placed: Sequence[Segment], remaining: Manifest
) -> tuple[str, ...]:
    """Files whose rows may be read only by the ranges of their segments.

    Args:
        torn_before: Those that were torn before.
        rewritten: Segments whose rows now lie elsewhere.
        placed: Segments that came in.
        remaining: All that there are afterwards.
    """
    torn = set(torn_before) | {segment.file for segment in rewritten}
    covered: Counter[str] = Counter()
    for segment in placed:
        covered[segment.file] += segment.rows
    torn |= {segment.file for segment in placed if covered[segment.file] != segment.file_rows}
    return tuple(sorted(torn & remaining.files())) if torn else ()
