"""History: expired segments kept aside, and in short what a stream showed from each commit on.

A segment whose last row is dead becomes history by its record, and no byte is written. Each row is in exactly one
segment, in a cell or in history, so both together are all rows of the last while: `past` asks them again.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import (
    HistoryEntry,
    PastTable,
    StreamEntry,
    StreamGaps,
    StreamState,
    StreamVersion,
    TableEntry,
)
from windrow.catalog.segment_log import release_files, retire_files
from windrow.definitions import StreamDefinition
from windrow.indexes.segments import Segment

NO_HISTORY = "none"
"""The history of a stream that keeps none, as a user writes it."""
_MOST_FORGOTTEN = 4096
"""Segments, and versions of streams, that one commit gives up at most. Not measured: a slide waits for it."""


def find_cutoff(entry: StreamEntry, state: StreamState) -> int | None:
    """The clock from which on the past is known: rows that expired later are kept; None: nothing was given up."""
    history, slide = entry.definition.history, state.slide
    bounds = [] if state.history_from is None else [state.history_from]
    if history is not None and slide is not None:
        bounds.append(entry.definition.model.slot_end(slide) - history)
    return max(bounds, default=None)


def revoke(entry: StreamEntry, state: StreamState, version: int, what: str) -> StreamState:
    """Say of what was asked before commit `version` that it cannot be given again in full, and why."""
    if entry.definition.history is None:
        return state
    return replace(state, revoked=(*state.revoked, (version, f"{what} at commit {version}")))


def keep_expired(tables: Tables, entry: StreamEntry, segments: Sequence[Segment]) -> tuple[int, int]:
    """Make segments history whose files are recorded; gives their rows and bytes."""
    for segment in segments:
        key = catalog_key(entry.id, segment.max_exp, segment.id)
        tables.put("history", key, HistoryEntry(segment=segment, came=tables.version))
        tables.delete("segments", catalog_key(entry.id, segment.id))
    return sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments)


def read_history(tables: Tables, stream: int, version: int, after: int | None = None) -> Iterator[Segment]:
    """What is history at a commit, but for segments whose last row expired at or before `after`."""
    prefix = catalog_key(stream)
    for _, raw in tables.raw_items("history", prefix, b"" if after is None else catalog_key(stream, after + 1)):
        record: HistoryEntry = tables.decode("history", raw)
        if record.came <= version and (record.gone is None or record.gone > version):
            yield record.segment


def give_up(tables: Tables, entry: StreamEntry, state: StreamState, segments: Sequence[Segment]) -> StreamState:
    """Take segments out of the history; they go when no reader is left that may look at them."""
    keys = [catalog_key(entry.id, segment.max_exp, segment.id) for segment in segments]
    for key in keys:
        tables.put("history", key, replace(tables.get("history", key), gone=tables.version))
    retire_files(tables, release_files(tables, segments), entry.id, [segment.id for segment in segments], keys)
    return replace(
        state,
        history_rows=state.history_rows - sum(segment.rows for segment in segments),
        history_bytes=state.history_bytes - sum(segment.bytes for segment in segments),
    )


def move_to_history(tables: Tables, entry: StreamEntry, state: StreamState, segments: Sequence[Segment]) -> StreamState:
    """What a slide does with what has expired, and with what has been history for long enough."""
    rows, size = keep_expired(tables, entry, segments)
    state = replace(state, history_rows=state.history_rows + rows, history_bytes=state.history_bytes + size)
    cutoff = find_cutoff(entry, state)
    if cutoff is None:
        return state
    old = _find_old(tables, entry.id, cutoff)
    return give_up(tables, entry, state, old) if old else state


def _find_old(tables: Tables, stream: int, cutoff: int) -> list[Segment]:
    old: list[Segment] = []
    for key, raw in tables.raw_items("history", catalog_key(stream)):
        if decode_last_int(key[:-8]) > cutoff or len(old) == _MOST_FORGOTTEN:
            break
        record: HistoryEntry = tables.decode("history", raw)
        if record.gone is None:
            old.append(record.segment)
    return old


def record_version(tables: Tables, entry: StreamEntry, gaps: Sequence[StreamGaps]) -> None:
    """Put down what a stream with history shows from the commit under way on; see `gaps.note_version`."""
    state: StreamState = tables.get("states", catalog_key(entry.id))
    shown = StreamVersion(
        state.slide, state.ordinal, state.missing, state.spoken_for, state.ledger, state.rejected,
        tuple(part for part in gaps if part.gaps),
    )  # fmt: skip
    tables.put("stream_versions", catalog_key(entry.id, tables.version), shown)
    cutoff = find_cutoff(entry, state)
    if cutoff is not None:
        _forget_versions(tables, entry, state, cutoff)


def _forget_versions(tables: Tables, entry: StreamEntry, state: StreamState, cutoff: int) -> None:
    """Forget versions before the clock `cutoff`, and what was changed before the first that is left."""
    stream, model, old = catalog_key(entry.id), entry.definition.model, list[bytes]()
    waiting: list[bytes] = []
    for key, raw in tables.raw_items("stream_versions", stream):
        shown: StreamVersion = tables.decode("stream_versions", raw)
        if shown.slide is None:
            waiting.append(key)  # before the first slide: kept as long as what came next
        elif model.slot_end(shown.slide) < cutoff and len(old) < _MOST_FORGOTTEN:
            old += [*waiting, key]
            waiting = []
        else:
            break
    if not old:
        return
    for key in old:
        tables.delete("stream_versions", key)
    last = decode_last_int(old[-1])
    for key in [key for key, _ in tables.raw_items("past_definitions", stream) if decode_last_int(key) <= last]:
        tables.delete("past_definitions", key)
    if any(commit <= last for commit, _ in state.revoked):
        remaining = tuple(each for each in state.revoked if each[0] > last)
        tables.put("states", stream, replace(state, revoked=remaining))


def drop_history(tables: Tables, stream: int) -> None:
    """Take all segments of a stream that is being dropped out of its history; its files are retired with its others."""
    for key, record in list(tables.items("history", catalog_key(stream))):
        if record.gone is None:
            tables.delete("history", key)


# -- definitions -------------------------------------------------------------------------------------------------------


def note_definition(tables: Tables, old: StreamEntry) -> None:
    """Keep the definition that the commit under way replaces, if earlier slides can be asked again."""
    if old.definition.history is not None:
        tables.put("past_definitions", catalog_key(old.id, tables.version), old.definition)


def change_history(tables: Tables, old: StreamEntry, new: StreamDefinition, state: StreamState) -> StreamState:
    """The state of a stream whose history becomes longer or shorter, begins or ends."""
    if old.definition.history == new.history:
        return state
    cutoff = find_cutoff(old, state)
    if new.history is None:
        expired = [record.segment for _, record in tables.items("history", catalog_key(old.id)) if record.gone is None]
        state = give_up(tables, old, state, expired) if expired else state
        for table in ("stream_versions", "past_definitions"):
            tables.delete_prefix(table, catalog_key(old.id))
        return replace(state, history_from=None, revoked=())
    if old.definition.history is None and state.slide is not None:
        cutoff = old.definition.model.slot_end(state.slide)
    return replace(state, history_from=cutoff)


# -- tables ------------------------------------------------------------------------------------------------------------


def note_table(tables: Tables, name: str, old: TableEntry | None) -> None:
    """Keep the version of a table that the commit under way replaces, while a stream has history."""
    if any(entry.definition.history is not None for _, entry in tables.items("streams")):
        forget_past_tables(tables)
        tables.put("past_tables", _table_key(name, tables.version), PastTable(old))


def find_table_version(tables: Tables, name: str, commit: int) -> tuple[bool, TableEntry | None]:
    """Whether a table was replaced since a commit, and the version of then."""
    prefix = name.encode() + b"\0"
    for _, raw in tables.raw_items("past_tables", prefix, _table_key(name, commit + 1)):
        past: PastTable = tables.decode("past_tables", raw)
        return True, past.entry
    return False, None


def list_past_tables(tables: Tables) -> set[str]:
    """The names of tables that have earlier versions."""
    return {key[:-9].decode() for key, _ in tables.raw_items("past_tables")}


def forget_past_tables(tables: Tables) -> None:
    """Give up versions of tables that no history reaches back to."""
    oldest = min(_first_versions(tables), default=None)
    old = [(key, past) for key, past in tables.items("past_tables") if oldest is None or decode_last_int(key) <= oldest]
    for key, _ in old:
        tables.delete("past_tables", key)
    retire_versions(tables, [past.entry for _, past in old if past.entry is not None])


def retire_versions(tables: Tables, versions: Sequence[TableEntry]) -> None:
    """Let the files of replaced versions go, unless views or an earlier commit can still meet them."""
    needed = {past.entry.file for _, past in tables.items("past_tables") if past.entry is not None}
    needed |= {version.file for _, version in tables.items("versions")}
    retire_files(tables, [version.file for version in versions if version.file not in needed])


def _first_versions(tables: Tables) -> Iterable[int]:
    for _, entry in tables.items("streams"):
        if entry.definition.history is not None:
            first = next(iter(tables.raw_items("stream_versions", catalog_key(entry.id))), None)
            if first is not None:
                yield decode_last_int(first[0])


def _table_key(name: str, commit: int) -> bytes:
    return name.encode() + b"\0" + catalog_key(commit)
