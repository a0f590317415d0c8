"""The segments of a stream out of the catalog: what this process knew, and what commits have changed since.

A manifest is known by the commit that made it. Commits that came after it, whoever made them, are followed one by one
while the stream's state still says what they did; else the records are gone through, and unknown ones decoded.

What a commit that writes rows anew leaves behind: segments to retire, files that are torn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import FileEntry, ReclaimEntry, SegmentChange, StreamState
from windrow.indexes.manifest import Manifest
from windrow.indexes.segments import Segment
from windrow.store import Store


def load_segments(store: Store, tables: Tables, stream: int, state: StreamState) -> Manifest:
    """The segments of a stream, decoding only those that this process has not seen yet."""
    cached = store.manifests.get(stream)
    if cached is not None and cached[0] == state.manifest:
        return cached[1]
    if cached is not None and cached[0] > state.manifest:
        return _read_all(tables, stream, ())  # of an older commit than is known: records may have been other ones then
    known = cached[1] if cached is not None and cached[0] >= state.rewritten else None
    segments = None if cached is None or known is None else _apply_changes(tables, stream, state, cached[0], known)
    if segments is None:
        segments = _read_all(tables, stream, known or ())
    if cached is None:
        forget_dropped(store, tables)
    else:
        _evict_caches(store, cached[1], segments)
    store.manifests[stream] = state.manifest, segments
    return segments


def forget_dropped(store: Store, tables: Tables) -> None:
    """Let go of all that is held of streams that are gone, whoever dropped them."""
    there = {decode_last_int(at) for at, _ in tables.raw_items("states")}
    for stream in store.manifests.keys() - there:
        known = store.manifests.pop(stream, None)
        if known is not None:
            _evict_caches(store, known[1], Manifest(()))
    for stream in store.judges.keys() - there:
        store.judges.pop(stream, None)


def _apply_changes(tables: Tables, stream: int, state: StreamState, version: int, known: Manifest) -> Manifest | None:
    """The manifest of commit `version`, changed as later commits changed it; None if not all of them are known."""
    cached, come = version, dict[int, None]()
    gone: set[int] = set()
    for change in state.changes:
        # One commit may move a view several times: what it did is known as a whole, or not at all.
        if change.after > cached and change.before == version:
            version = change.after
            come |= dict.fromkeys(change.come)
            gone |= set(change.gone)
    if version != state.manifest:
        return None
    fresh: list[Segment | None] = [
        tables.get("segments", catalog_key(stream, number)) for number in come if number not in gone
    ]
    found = [segment for segment in fresh if segment is not None]
    return known.changed(gone, found) if len(found) == len(fresh) else None


def _read_all(tables: Tables, stream: int, known: tuple[Segment, ...]) -> Manifest:
    seen = {segment.id: segment for segment in known}
    return Manifest(
        seen.get(decode_last_int(at)) or tables.decode("segments", raw)
        for at, raw in tables.raw_items("segments", catalog_key(stream))
    )


def _evict_caches(store: Store, before: Manifest, after: Manifest) -> None:
    """Drop what is held of files that no segment is in any more: a map keeps a deleted file's space."""
    if before:
        folder, files = before[0].file.rsplit("/", 1)[0], after.files()
        store.reader.retain(folder, files)
        store.columns.retain(folder, files)
        store.copies.forget(set(before.figures.id.tolist()) - set(after.figures.id.tolist()))


_CHANGES_KEPT = 8
_MOST_SEGMENTS_NOTED = 256


def exchange_segments(tables: Tables, stream: int, come: Iterable[Segment], gone: Sequence[Segment]) -> None:
    """Put segments into the cells of a stream, and take those out that they replace."""
    for segment in come:
        tables.put("segments", catalog_key(stream, segment.id), segment)
    retire_segments(tables, stream, gone)


def retire_segments(tables: Tables, stream: int, replaced: Sequence[Segment]) -> None:
    """Take segments out of the cells; what they need on disk goes when no reader is left that may look at it."""
    gone: list[str] = []
    for file, count in Counter(segment.file for segment in replaced).items():
        known: FileEntry = tables.get("files", file.encode())
        if known.segments <= count:
            tables.delete("files", file.encode())
            gone.append(file)
        else:
            tables.put("files", file.encode(), replace(known, segments=known.segments - count))
    for segment in replaced:
        tables.delete("segments", catalog_key(stream, segment.id))
    retire_files(tables, gone, stream, [segment.id for segment in replaced])


def retire_files(tables: Tables, files: Sequence[str], stream: int = 0, segments: Sequence[int] = ()) -> None:
    """Files, and directories of segments, that no record names any more; they go when no reader may look at them."""
    if files or segments:
        record = ReclaimEntry(stream=stream, segments=tuple(segments), files=tuple(files))
        tables.put("reclaim", catalog_key(tables.version, tables.allocate("reclaims")), record)


def note_change(state: StreamState, version: int, come: Sequence[Segment], gone: Sequence[Segment]) -> StreamState:
    """The state after commit `version` has changed the stream's segments; a change of very many is not put down."""
    if len(come) + len(gone) > _MOST_SEGMENTS_NOTED:
        return replace(state, manifest=version, changes=())
    change = SegmentChange(state.manifest, version, tuple(s.id for s in come), tuple(s.id for s in gone))
    return replace(state, manifest=version, changes=(*state.changes[1 - _CHANGES_KEPT :], change))


def find_torn_files(
    known: Iterable[str], rewritten: Iterable[Segment], placed: Sequence[Segment], left: Manifest
) -> tuple[str, ...]:
    """Files whose rows may be read only by the ranges of their segments.

    Args:
        known: Those that were torn before.
        rewritten: Segments whose rows now lie elsewhere.
        placed: Segments that came in.
        left: All that there are afterwards.
    """
    torn = set(known) | {segment.file for segment in rewritten}
    covered: Counter[str] = Counter()
    for segment in placed:
        covered[segment.file] += segment.rows
    torn |= {segment.file for segment in placed if covered[segment.file] != segment.file_rows}
    return tuple(sorted(torn & left.files())) if torn else ()
