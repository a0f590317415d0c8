"""What a commit that writes rows anew leaves behind: segments to retire, files that are torn."""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from windrow.catalog.environment import Tables, key
from windrow.catalog.records import Change, FileEntry, Reclaim, StreamState
from windrow.indexes.manifest import Manifest
from windrow.indexes.segments import Segment

_CHANGES_KEPT = 8
_MOST_NOTED = 256


def retire(tables: Tables, stream: int, replaced: Sequence[Segment]) -> None:
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
        tables.delete("segments", key(stream, segment.id))
    if replaced:
        record = Reclaim(stream=stream, segments=tuple(s.id for s in replaced), files=tuple(gone))
        tables.put("reclaim", key(tables.version, tables.allocate("reclaims")), record)


def noted(state: StreamState, version: int, come: Sequence[Segment], gone: Sequence[Segment]) -> StreamState:
    """The state after commit `version` has changed the stream's segments; a change of very many is not put down."""
    if len(come) + len(gone) > _MOST_NOTED:
        return replace(state, manifest=version, changes=())
    change = Change(state.manifest, version, tuple(s.id for s in come), tuple(s.id for s in gone))
    return replace(state, manifest=version, changes=(*state.changes[1 - _CHANGES_KEPT :], change))


def torn_files(
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
