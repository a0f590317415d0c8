"""Erasure: rows go for good, by key or by condition, from every place where a stream keeps any, with a receipt.

Files that hold such rows are written anew without them, everything is exchanged in one transaction, and what was
replaced is removed at once if no reader needs it. What cannot be changed from here is said.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from windrow.background import background_of
from windrow.catalog.environment import DATABASES, Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_logs, find_stream
from windrow.catalog.records import ErasureEntry, RejectedEntry, SpoolEntry, StreamEntry, StreamState
from windrow.catalog.segment_log import (
    exchange_segments,
    find_torn_files,
    load_segments,
    note_change,
    retire_files,
    retire_segments,
)
from windrow.errors import BusyError, DefinitionError, QueryError
from windrow.files import disk_errors
from windrow.gaps import note_version
from windrow.history import give_up, keep_expired, revoke
from windrow.history_merge import TASK as HISTORY_TASK
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.manifest import Manifest
from windrow.indexes.merge import rewrite_segment
from windrow.indexes.probe import KeyRange, encode_key_ranges, find_row_ranges, find_sort_orders, match_keys
from windrow.indexes.row_model import SEQ, Bools
from windrow.indexes.segment_builder import SegmentDraft
from windrow.indexes.segment_reader import read_ranges
from windrow.indexes.segments import Histogram, Segment, pack_histogram, unpack_histogram
from windrow.layouts import drop_empty_layouts
from windrow.publication import publish_due
from windrow.reclaim import find_holders, remove_replaced
from windrow.rejected_rows import read_rejected_file
from windrow.rejection import rejected_schema
from windrow.relayout import hold_stream_lock
from windrow.row_checks import evaluate, find_columns
from windrow.row_spool import BatchRows, find_batch, find_waiting, list_files
from windrow.segment_files import Placement, StagedFile, StagedWriter, make_segment, publish_files, record_file
from windrow.slide_hooks import PrepareContribution, SlideContext, SlideHook
from windrow.small_append import gather_rows
from windrow.store import Store

_ATTEMPTS = 5
"""How often an erasure begins again because rows were appended while it was prepared."""
_WIPE_PAGES = 1024
"""Free pages of the catalog that one transaction overwrites."""
_MOST_WIPES = 1 << 16


@dataclass(frozen=True)
class EraseReport:
    """The receipt of an erasure: what went, and what is left where."""

    stream: str
    commit: int
    at: int
    """Wall time, in microseconds."""
    digest: str
    """Of what was asked for, with the warehouse's id: it proves a request without telling it."""
    rows: dict[str, int]
    """Rows that went, by place: window (expired ones that were still there included), history, spool, rejected."""
    files: int
    """Files that were written anew."""
    gone: bool
    """Whether the bytes are gone from the warehouse's folder now."""
    held_by: tuple[str, ...]
    """Who still keeps files that were replaced; they go when those let go."""
    untouched: tuple[str, ...]
    """What may hold such rows, or figures of them, and cannot be changed from here."""

    @property
    def total(self) -> int:
        """How many rows went."""
        return sum(self.rows.values())


class _OvertakenError(Exception):
    """Rows were appended, or rejected ones taken away, while the erasure was prepared."""


@dataclass(frozen=True)
class _Condition:
    """Which rows go: those with a search key in `ranges`, or those that a predicate holds for."""

    ranges: Sequence[KeyRange] | None
    texts: tuple[str, ...]
    """Keys as lines of text files have them."""
    where: str | None
    entry: StreamEntry
    asked: str
    """What was asked for, for the digest."""
    batch: BatchRows | None = None
    """The rows of one batch, and no others."""

    @property
    def kind(self) -> str:
        """By what rows are chosen."""
        return "batch" if self.batch is not None else "where" if self.where is not None else "keys"

    def matches(self, rows: pa.Table, base: int = 0) -> Bools:
        """Which rows go; `base` is added to their sequences."""
        if not rows.num_rows:
            return np.zeros(0, bool)
        if self.batch is not None:
            arrived, chosen = rows.column(SEQ).to_numpy() + base, np.zeros(rows.num_rows, bool)
            for first, stop in self.batch.arrivals:
                chosen |= (arrived >= first) & (arrived < stop)
            return chosen
        if self.ranges is not None:
            return match_keys(self.entry.definition.model.encoded_keys(rows), self.ranges)
        import duckdb

        try:
            (holding,) = evaluate(rows.select(self.columns(rows.schema)), [f"NOT ({self.where}\n)"])
        except duckdb.Error as error:
            raise QueryError(
                f"where={self.where!r} cannot be computed for rows of stream {self.entry.definition.name!r} "
                f"({str(error).splitlines()[0]}); nothing was erased"
            ) from None
        return holding

    def columns(self, schema: pa.Schema) -> list[str]:
        """The columns that it reads."""
        if self.batch is not None:
            return [SEQ]
        if self.where is None:
            return list(self.entry.definition.key)
        return find_columns(((self.where, ""),), schema) or schema.names[:1]

    def leave(self, rows: pa.Table) -> pa.Table:
        """The rows that stay."""
        return rows.filter(to_arrow(~self.matches(rows)))

    def match_rejected(self, rows: pa.Table) -> Bools:
        """Which rejected rows go; lines that are no rows go if a key stands in them."""
        matching = self.matches(rows.select(self.entry.definition.schema.names))
        if "_text" not in rows.schema.names or self.ranges is None or "_text" in self.entry.definition.schema.names:
            return matching
        lines = rows.column("_text").to_pylist()  # of rejected lines, which are few
        named = [line is not None and any(text in line for text in self.texts) for line in lines]
        either: Bools = matching | np.array(named, bool)
        return either


@dataclass
class _Contents:
    """What a stream has, as of one commit."""

    entry: StreamEntry
    state: StreamState
    segments: Manifest
    history: tuple[Segment, ...]
    spool: dict[int, SpoolEntry]
    rejected: dict[int, RejectedEntry]


@dataclass
class _Rewrite:
    """What takes the place of what goes, written and sealed."""

    cells: "_NewFile"
    history: "_NewFile"
    spool: dict[int, "_NewFile"] = field(default_factory=dict)
    rejected: dict[int, tuple[StagedFile | None, int, dict[str, int]]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)

    @property
    def is_empty(self) -> bool:
        """Whether no file is replaced."""
        return not (self.cells.old or self.history.old or self.spool or self.rejected)

    def forget_files(self, store: Store) -> None:
        """Close files that were replaced."""
        store.reader.forget({segment.file for segment in (*self.cells.old, *self.history.old)})

    def staged(self) -> list[StagedFile]:
        """Its files of segments."""
        files = (self.cells, self.history, *self.spool.values())
        return [each.staged for each in files if each.staged is not None]


@dataclass
class _NewFile:
    """Segments that are written anew, into one file."""

    old: list[Segment] = field(default_factory=list)
    kept: list[Segment] = field(default_factory=list)
    """Those of `old` that have rows left, in the order of the drafts."""
    staged: StagedFile | None = None
    placed: dict[int, Segment] = field(default_factory=dict)
    """What takes the place of an old segment, by its number."""

    def record(self, tables: Tables, stream: int) -> list[Segment]:
        """Name the file, and give the new segments."""
        if self.staged is None:
            return []
        numbers = record_file(tables, stream, self.staged)
        self.placed = {
            old.id: replace(make_segment(self.staged, draft, number, place), seq_base=0)
            for old, draft, number, place in zip(
                self.kept, self.staged.drafts, numbers, self.staged.placements, strict=True
            )
        }
        return list(self.placed.values())


def erase(
    store: Store,
    stream: str,
    keys: Sequence[Any] | None,
    where: str | None,
    *,
    refill: PrepareContribution,
    hooks: Sequence[SlideHook] = (),
    timeout: float = 60.0,
) -> EraseReport:
    """Erase rows of a stream by key or by condition; see `Warehouse.erase`."""
    store.check_writable()
    background_of(store).drop(HISTORY_TASK)  # which pins what it reads
    with disk_errors(f"erasing rows of stream {stream!r}"), hold_stream_lock(store, stream, timeout, or_log=True):
        for _ in range(_ATTEMPTS):
            gather_rows(store, stream, store.catalog.read(lambda tables: find_waiting(tables, stream)), hooks)
            contents = store.catalog.read(lambda tables: _read_contents(store, tables, stream))
            condition = _make_condition(contents.entry, keys, where)
            rewrite = _write(store, contents, condition)
            record = _make_record(store, contents, condition, rewrite)
            if rewrite.is_empty:  # what an erasure before this one replaced may still be there
                commit = store.catalog.version()
                break
            try:
                commit = _commit(store, contents, rewrite, record, refill, timeout)
                break
            except _OvertakenError:
                continue
        else:
            raise BusyError(f"rows are appended to stream {stream!r} all the time; pause the appends and erase again")
    rewrite.forget_files(store)
    problem = publish_due(store, at_once=True)  # then the last version keeps showing the rows
    files = len(rewrite.staged()) + sum(staged is not None for staged, _, _ in rewrite.rejected.values())
    held = _remove_replaced(store)
    return _report(stream, commit, record, files, (*held, problem) if held and problem else held)


@dataclass(frozen=True)
class Replacement:
    """What an append puts in the place of a batch's rows, in the transaction that removes them."""

    batch_id: str
    places: tuple[tuple[int, int, int], ...]
    """Where the rows were spooled."""
    publish: Callable[[], Sequence[str]]
    """Puts files in place that the record names; gives their names."""
    record: Callable[[Tables], None]


def replace_batch(
    store: Store, stream: str, new: Replacement, *, refill: PrepareContribution, hooks: Sequence[SlideHook]
) -> int:
    """Remove the rows of a batch and record what takes their place; the stream's lock must be held.

    Returns:
        How many rows went.
    """
    gather_rows(store, stream, store.catalog.read(lambda tables: find_waiting(tables, stream)), hooks)
    contents = store.catalog.read(lambda tables: _read_contents(store, tables, stream))
    batch = store.catalog.read(lambda tables: find_batch(tables, contents.entry.id, new.places))
    condition = _Condition(None, (), None, contents.entry, repr(("batch", new.batch_id)), batch)
    rewrite = _write(store, contents, condition)
    record = _make_record(store, contents, condition, rewrite)
    _commit(store, contents, rewrite, record, refill, 60.0, new)
    rewrite.forget_files(store)
    return sum(rewrite.rows.values())


def _report(stream: str, commit: int, record: ErasureEntry, files: int, held: tuple[str, ...] = ()) -> EraseReport:
    return EraseReport(stream, commit, record.at, record.digest, record.rows, files, not held, held, record.untouched)


def list_erasures(store: Store, stream: str) -> list[EraseReport]:
    """The receipts of a stream."""

    def read(tables: Tables) -> list[EraseReport]:
        entry, _ = find_stream(tables, stream)
        return [
            _report(stream, decode_last_int(key), record, record.files)
            for key, record in tables.items("erasures", catalog_key(entry.id))
        ]

    return store.catalog.read(read)


def _read_contents(store: Store, tables: Tables, stream: str) -> _Contents:
    entry, state = find_stream(tables, stream)
    prefix = catalog_key(entry.id)
    return _Contents(
        entry,
        state,
        load_segments(store, tables, entry.id, state),
        tuple(record.segment for _, record in tables.items("history", prefix) if record.gone is None),
        {decode_last_int(key): record for key, record in list_files(tables, prefix)},
        {decode_last_int(key): record for key, record in tables.items("rejected", prefix)},
    )


def _make_condition(entry: StreamEntry, keys: Sequence[Any] | None, where: str | None) -> _Condition:
    definition = entry.definition
    if (keys is None) == (where is None):
        raise DefinitionError(f"erasing rows of stream {definition.name!r} takes either keys=[…] or where='…'")
    if keys is None:
        return _Condition(None, (), where, entry, repr(("where", where)))
    ranges = encode_key_ranges(definition.name, definition.key, definition.key_types(), None, keys, None)
    parts = [value for key in keys for value in (key if isinstance(key, (tuple, list)) else (key,))]
    asked = repr(("keys", sorted(map(repr, keys))))
    return _Condition(ranges, tuple(str(value) for value in parts if value is not None), None, entry, asked)


# -- finding and writing -----------------------------------------------------------------------------------------------


def _find_files(store: Store, contents: _Contents, condition: _Condition, segments: Sequence[Segment]) -> set[str]:
    """The files that hold such rows."""
    schema = contents.entry.definition.stored_schema
    wanted = pa.schema([schema.field(name) for name in condition.columns(contents.entry.definition.schema)])

    def holds(file: str, ranges: Iterable[tuple[int, int]], base: int = 0) -> bool:
        rows = read_ranges({file: list(ranges)}, wanted, schema, store.reader)
        return bool(condition.matches(rows, base).any())

    if condition.ranges is None:
        return {each.file for each in segments if holds(each.file, [(each.start, each.stop)], each.seq_base)}
    layouts = [(layout.id, layout.key) for layout in (*contents.state.layouts, *contents.state.past_layouts)]
    sorted_by = find_sort_orders(contents.entry.definition.key, layouts)
    names: set[str] = set()
    candidates: dict[str, set[tuple[int, int]]] = defaultdict(set)
    manifest = Manifest(segments)
    for each in find_row_ranges(manifest, condition.ranges, lambda some, use: use(store.directories(some)), sorted_by):
        if each.stop > each.start and each.exact:
            names.add(each.segment.file)
        elif each.stop > each.start:
            candidates[each.segment.file].add((each.start, each.stop))
    return names | {file for file, parts in candidates.items() if file not in names and holds(file, sorted(parts))}


def _find_torn_files(store: Store, contents: _Contents, condition: _Condition, segments: Sequence[Segment]) -> set[str]:
    """The files that hold such rows where no segment is any more.

    A merge has put these rows elsewhere, or left them out. No directory knows them, so they are read.
    """
    schema = contents.entry.definition.stored_schema
    wanted = pa.schema([schema.field(name) for name in condition.columns(contents.entry.definition.schema)])
    parts: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        parts[segment.file].append(segment)
    torn = set()
    for file, named in parts.items():
        ends = [0, *(end for each in sorted(named, key=lambda s: s.start) for end in (each.start, each.stop))]
        ends.append(named[0].file_rows)
        ranges = [(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=True) if start < stop]
        if ranges and condition.matches(read_ranges({file: ranges}, wanted, schema, store.reader)).any():
            torn.add(file)
    return torn


def _write(store: Store, contents: _Contents, condition: _Condition) -> _Rewrite:
    """Write everything that holds such rows anew, without them."""
    candidates = _list_candidates(contents, condition.batch)
    files = _find_files(store, contents, condition, candidates)
    if condition.batch is None:
        files |= _find_torn_files(store, contents, condition, [each for each in candidates if each.file not in files])
    rewrite = _Rewrite(
        _NewFile([segment for segment in contents.segments if segment.file in files]),
        _NewFile([segment for segment in contents.history if segment.file in files]),
        {
            number: _NewFile(list(record.segments))
            for number, record in contents.spool.items()
            if record.segments[0].file in files
        },
    )
    for place, new in (("window", rewrite.cells), ("history", rewrite.history)):
        _write_segments(store, contents, condition, new)
        _count(rewrite, place, new)
    for new in rewrite.spool.values():
        _write_segments(store, contents, condition, new, spooled=True)
        _count(rewrite, "spool", new)
    for number, record in contents.rejected.items() if condition.batch is None else ():
        _write_rejected(store, contents, condition, rewrite, number, record)
    folder = store.stream_folder(contents.entry.definition.name)
    publish_files(store, rewrite.staged(), folder / "segments", "erase")
    rejected = [staged for staged, _, _ in rewrite.rejected.values() if staged is not None]
    publish_files(store, rejected, folder / "rejected", "erase")
    return rewrite


def _list_candidates(contents: _Contents, batch: BatchRows | None) -> list[Segment]:
    """The segments that may hold such rows."""
    taken_in = [*contents.segments, *contents.history]
    spool = contents.spool
    if batch is not None:
        taken_in = [s for s in taken_in if any(s.first_slide <= slide <= s.last_slide for slide in batch.slides)]
        spool = {number: record for number, record in spool.items() if number in batch.spooled}
    return [*taken_in, *(segment for record in spool.values() for segment in record.segments)]


def _count(rewrite: _Rewrite, place: str, new: _NewFile) -> None:
    gone = sum(segment.rows for segment in new.old) - (0 if new.staged is None else new.staged.rows)
    if gone:
        rewrite.rows[place] += gone


def _write_segments(
    store: Store, contents: _Contents, condition: _Condition, new: _NewFile, *, spooled: bool = False
) -> None:
    if not new.old:
        return
    entry, state, schema = contents.entry, contents.state, contents.entry.definition.stored_schema
    drafts: list[SegmentDraft] = []
    events: list[Histogram] = []
    places: list[Placement] = []
    with StagedWriter(store) as file:
        output = file.write_segments(entry, state.layout, schema)
        for segment in new.old:
            model = entry.definition.model.with_key(state.layout_of(segment.layout).key)
            written = rewrite_segment(segment, condition.leave, model, schema, store.reader, output)
            if written is None:
                continue
            drafts.append(written[0])
            events.append(written[1])
            new.kept.append(segment)
            places.append(Placement(segment.layout, segment.row, segment.first_slide, segment.last_slide))
        if drafts:
            new.staged = file.seal(drafts, _sum_events(events) if spooled else b"", places)


def _sum_events(events: Iterable[Histogram]) -> Histogram:
    parts = [unpack_histogram(each) for each in events]
    slots, inverse = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(len(slots), np.int64)
    np.add.at(counts, inverse, np.concatenate([part[1] for part in parts]))
    return pack_histogram(slots, counts)


def _write_rejected(
    store: Store, contents: _Contents, condition: _Condition, rewrite: _Rewrite, number: int, record: RejectedEntry
) -> None:
    rows = read_rejected_file(store, record, rejected_schema(contents.entry.definition.schema))
    match = condition.match_rejected(rows)
    gone = int(match.sum())
    if not gone:
        return
    left = rows.filter(to_arrow(~match))
    staged: StagedFile | None = None
    if left.num_rows:
        with StagedWriter(store) as file:
            file.write_rows(left.schema).add(left)
            staged = file.seal()
    rewrite.rows["rejected"] += gone
    rewrite.rejected[number] = staged, gone, dict(Counter(left.column("_reason").to_pylist()))


# -- recording ---------------------------------------------------------------------------------------------------------


def _make_record(store: Store, contents: _Contents, condition: _Condition, rewrite: _Rewrite) -> ErasureEntry:
    name = contents.entry.definition.name
    untouched = ["backups and copies of the folder that were made before"]
    if store.remote is not None:
        untouched.append("earlier versions of objects, if the bucket keeps them")
    queries = store.catalog.read(lambda tables: [q.name for _, q in tables.items("queries") if name in q.reads])
    if queries:
        untouched.append(f"results of {', '.join(sorted(queries))} that were delivered, here and outside")
    logs = store.catalog.read(lambda tables: find_logs(tables, contents.entry.id))
    if logs:
        untouched.append(f"what came about from the rows before and is kept by {', '.join(logs)}: erase it there too")
    if condition.where is not None and contents.rejected:
        untouched.append("rejected lines of text files that could not be read, which no condition can judge")
    secret = store.catalog.read(lambda tables: bytes(tables.raw("meta", b"uuid") or b""))
    return ErasureEntry(
        at=store.clock(),
        digest=hashlib.blake2b(f"{name} {condition.asked}".encode(), key=secret[:64], digest_size=16).hexdigest(),
        by=condition.kind,
        rows=dict(rewrite.rows),
        files=len(rewrite.staged()),
        untouched=tuple(untouched),
    )


def _commit(
    store: Store,
    contents: _Contents,
    rewrite: _Rewrite,
    record: ErasureEntry,
    refill: PrepareContribution,
    timeout: float,
    new: Replacement | None = None,
) -> int:
    """Record everything in one transaction; gives its number."""
    names = [staged.name for staged in rewrite.staged()]
    names += [staged.name for staged, _, _ in rewrite.rejected.values() if staged is not None]
    with refill(store, _make_context(contents, rewrite, timeout)) as filled:
        names += [*(filled.files if filled else ()), *(new.publish() if new else ())]
        store.files.reach("erase.committing")
        with store.write_with_files(names) as tables:
            if new is None:
                _check_unchanged(tables, contents)
            _record(tables, contents, rewrite, record)
            if filled:
                filled.commit(tables)
            if new is not None:
                new.record(tables)
            commit = tables.version
    store.files.reach("erase.committed")
    return commit


def _make_context(contents: _Contents, rewrite: _Rewrite, timeout: float) -> SlideContext:
    """The stream where it stands, with what will be in its cells, for views."""
    entry, state, new = contents.entry, contents.state, rewrite.cells
    gone = {segment.id for segment in new.old}
    staged = new.staged
    placed = [] if staged is None else [
        make_segment(staged, draft, -(1 << 40) - number, place)
        for number, (draft, place) in enumerate(zip(staged.drafts, staged.placements, strict=True))
    ]  # fmt: skip
    segments = (*(segment for segment in contents.segments if segment.id not in gone), *placed)
    slide = state.slide or 0  # before the first slide no view has rows
    end = entry.definition.model.slot_end(slide)
    return SlideContext(entry, state, slide, end, state.ordinal, (), segments, timeout=timeout)


def _check_unchanged(tables: Tables, contents: _Contents) -> None:
    prefix = catalog_key(contents.entry.id)
    spool = [decode_last_int(key) for key, _ in tables.raw_items("spool", prefix)]
    rejected = [decode_last_int(key) for key, _ in tables.raw_items("rejected", prefix)]
    if spool != list(contents.spool) or rejected != list(contents.rejected):
        raise _OvertakenError


def _record(tables: Tables, contents: _Contents, rewrite: _Rewrite, record: ErasureEntry) -> None:
    entry, stream, cells, past = contents.entry, catalog_key(contents.entry.id), rewrite.cells, rewrite.history
    placed = cells.record(tables, entry.id)
    exchange_segments(tables, entry.id, placed, cells.old)
    _, state = find_stream(tables, entry.definition.name)
    remaining = contents.segments.replace({segment.id for segment in cells.old}, placed)
    torn = find_torn_files(state.torn, (), placed, remaining)
    state = replace(note_change(state, tables.version, placed, cells.old, remaining), torn=torn)
    if past.old:
        state = give_up(tables, entry, state, past.old)
        rows, size = keep_expired(tables, entry, past.record(tables, entry.id))
        state = replace(state, history_rows=state.history_rows + rows, history_bytes=state.history_bytes + size)
    for number, new in rewrite.spool.items():
        _record_spooled(tables, contents, number, new)
    for number, (staged, gone, reasons) in rewrite.rejected.items():
        _record_rejected(tables, contents, number, staged, reasons)
        state = replace(state, rejected=state.rejected - gone)
    if rewrite.rows:
        total = sum(rewrite.rows.values())
        is_batch = record.by == "batch"
        what = "corrected" if is_batch else "erased"
        if rewrite.rows["window"] or rewrite.rows["history"]:  # no earlier answer had others
            state = revoke(entry, state, tables.version, f"{total} row{' was' if total == 1 else 's were'} {what}")
        if not is_batch:
            _forget_digests(tables, entry)
        _replace_in_holds(tables, entry.definition.name, cells.placed | past.placed, [*cells.old, *past.old])
        tables.delete_prefix("synopses", stream)  # whoever asked for the erasure has them filled again
        tables.put("erasures", stream + catalog_key(tables.version), record)
    tables.put("states", stream, drop_empty_layouts(tables, entry.id, state, remaining))
    note_version(tables, entry)


def _record_spooled(tables: Tables, contents: _Contents, number: int, new: _NewFile) -> None:
    stream, record = contents.entry.id, contents.spool[number]
    retire_segments(tables, stream, new.old)
    key = catalog_key(stream, number)
    segments = new.record(tables, stream)
    if new.staged is None:
        tables.delete("spool", key)
        return
    tables.put(
        "spool",
        key,
        replace(
            record,
            segments=tuple(segments),
            rows=new.staged.taken,
            bytes=new.staged.bytes,
            events=new.staged.events,
            arrivals=max(record.arrivals, record.rows),
        ),
    )


def _record_rejected(
    tables: Tables, contents: _Contents, number: int, staged: StagedFile | None, reasons: dict[str, int]
) -> None:
    stream, record = contents.entry.id, contents.rejected[number]
    key = catalog_key(stream, number)
    retire_files(tables, [record.file], stream)
    if staged is None:
        tables.delete("rejected", key)
    else:
        changed = replace(
            record, file=staged.name, rows=staged.rows, bytes=staged.bytes, digest=staged.digest, reasons=reasons
        )
        tables.put("rejected", key, changed)


def _forget_digests(tables: Tables, entry: StreamEntry) -> None:
    """Batches are recognised by their id and number of rows from now on: a digest tells of rows that are gone."""
    for key, batch in list(tables.items("batches", catalog_key(entry.id))):
        if not batch.erased:
            tables.put("batches", key, replace(batch, digest=0, erased=True))


def _replace_in_holds(tables: Tables, name: str, placed: dict[int, Segment], gone: Sequence[Segment]) -> None:
    """Slides that are kept for periodic queries lose the rows too."""
    lost = {segment.id for segment in gone}
    for key, hold in list(tables.items("holds")):
        kept = hold.streams.get(name)
        if kept is not None and any(segment.id in lost for segment in kept.segments):
            changed = (placed.get(segment.id) if segment.id in lost else segment for segment in kept.segments)
            left = tuple(segment for segment in changed if segment is not None)
            tables.put("holds", key, replace(hold, streams=hold.streams | {name: replace(kept, segments=left)}))


# -- removing ----------------------------------------------------------------------------------------------------------


def _remove_replaced(store: Store) -> tuple[str, ...]:
    """Remove what was replaced, and what the catalog knew of it; gives who keeps any of it."""
    remove_replaced(store)
    store.files.reach("erase.reclaimed")
    wipe(store)
    traces = () if store.remote is None else store.remote.erase_traces()
    waiting = store.catalog.read(lambda tables: sum(1 for _ in tables.raw_items("reclaim")))
    return (*(find_holders(store) if waiting else ()), *traces)


def wipe(store: Store) -> None:
    """Put the catalog's records on new pages and overwrite the free ones: both kept traces of what was removed.

    Pages that a reader of another process may still look at, which LMDB does not give out again yet, stay.
    """
    page = bytes(store.catalog.page_room())  # to its last byte
    _overwrite_free_pages(store, page)  # and with them the memory that LMDB makes pages in, which it does not clear
    waiting = list(reversed(DATABASES))
    while waiting:  # a commit costs more than most databases
        size = 0
        with store.catalog.exclusive() as tables:
            while waiting and size < _WIPE_PAGES * len(page):
                size += tables.rewrite(waiting.pop())
    _overwrite_free_pages(store, page)


def _overwrite_free_pages(store: Store, page: bytes) -> None:
    for turn in range(2):  # what a transaction frees can be used by the one after the next
        with store.catalog.exclusive() as tables:
            tables.put_raw("blank", catalog_key(turn), b"")
    count = 0
    for _ in range(_MOST_WIPES):
        before = store.catalog.used_pages()
        with store.catalog.exclusive() as tables:
            for number in range(count, count + _WIPE_PAGES):
                tables.put_raw("blank", catalog_key(number), page)
        count += _WIPE_PAGES
        if store.catalog.used_pages() - before >= _WIPE_PAGES * 3 // 4:
            break
    with store.catalog.exclusive() as tables:
        for number in range(count):
            tables.delete("blank", catalog_key(number))
