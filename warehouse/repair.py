"""Repair: a stream goes on without files that are damaged or missing; what can be read of them is saved.

In one transaction the segments of such files leave, what was saved of their rows comes in, and gaps say what is lost.
Nobody does this by itself: lost rows may still lie in a backup.
"""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import pairwise

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import FileEntry, GapEntry, SpoolEntry, StreamEntry, StreamState
from windrow.catalog.segment_log import exchange_segments, find_torn_files, load_segments, note_change, retire_segments
from windrow.check import find_file_problems
from windrow.errors import DamageError
from windrow.files import disk_errors
from windrow.gaps import Ledger
from windrow.history import give_up, revoke
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import SEQ
from windrow.indexes.segment_builder import SegmentDraft, sort_into_segments
from windrow.indexes.segment_reader import conform_to_schema
from windrow.indexes.segments import Segment, pack_histogram
from windrow.layouts import drop_empty_layouts
from windrow.native import rows as native_rows
from windrow.relayout import hold_stream_lock
from windrow.row_spool import list_files
from windrow.segment_files import (
    Placement,
    StagedFile,
    StagedWriter,
    make_segment,
    publish_files,
    record_file,
    record_placed,
)
from windrow.slide_hooks import PrepareContribution, SlideContext
from windrow.store import Store


@dataclass(frozen=True)
class RepairReport:
    """What is damaged, and what became of it."""

    stream: str
    files: tuple[str, ...]
    problems: tuple[str, ...]
    rows_lost: int
    rows_saved: int
    gaps: tuple[int, ...]
    """Numbers of the gaps that say what is missing now."""
    repaired: bool
    """False: nothing was changed."""


@dataclass
class _DamagedFile:
    """One file, with what can be read of it."""

    name: str
    segments: list[Segment]
    spooled: tuple[int, SpoolEntry] | None
    saved: list[tuple[Segment, pa.Table]]
    lost: int = 0
    start: int | None = None
    end: int = 0
    staged: StagedFile | None = None


@dataclass(frozen=True)
class _Contents:
    entry: StreamEntry
    state: StreamState
    segments: Manifest
    spool: dict[int, SpoolEntry]
    files: dict[str, FileEntry]
    history: tuple[Segment, ...] = ()


def repair(
    store: Store, stream: str, *, give_up: bool, refill: PrepareContribution, timeout: float = 60.0
) -> RepairReport:
    """Look at every file of a stream; with `give_up`, go on without what cannot be read.

    Args:
        store: The warehouse.
        stream: Its name.
        give_up: Whether anything is changed.
        refill: Makes what depends on the stream's rows anew, in the transaction of the repair.
        timeout: Seconds to wait for a lock.
    """
    with disk_errors(f"repairing stream {stream!r}"), hold_stream_lock(store, stream, timeout):
        contents = store.catalog.read(lambda tables: _read_contents(store, tables, stream))
        store.reader.forget(contents.files)  # what is known of them may be older than the damage
        problems: dict[str, str] = {}
        for name, record in contents.files.items():
            if (problem := next(find_file_problems(store, name, record), None)) is not None:
                problems[name] = problem
        damaged = [_salvage(store, contents, name) for name in problems]
        numbers: list[int] = []
        if damaged and give_up:
            numbers = _replace_files(store, contents, damaged, refill, timeout)
        return RepairReport(
            stream, tuple(problems), tuple(problems.values()), sum(file.lost for file in damaged),
            sum(rows.num_rows for file in damaged for _, rows in file.saved), tuple(numbers), bool(damaged) and give_up,
        )  # fmt: skip


def _read_contents(store: Store, tables: Tables, stream: str) -> _Contents:
    entry, state = find_stream(tables, stream)
    return _Contents(
        entry,
        state,
        load_segments(store, tables, entry.id, state),
        {decode_last_int(key): record for key, record in list_files(tables, catalog_key(entry.id))},
        {key.decode(): record for key, record in tables.items("files") if record.stream == entry.id},
        tuple(record.segment for _, record in tables.items("history", catalog_key(entry.id)) if record.gone is None),
    )


def _salvage(store: Store, contents: _Contents, name: str) -> _DamagedFile:
    """Read what can be read of a file, row group by row group."""
    spooled = next(((n, each) for n, each in contents.spool.items() if each.segments[0].file == name), None)
    stored = (*contents.segments, *contents.history)  # saved history goes back into the cells, until the next slide
    segments = list(spooled[1].segments) if spooled else [s for s in stored if s.file == name]
    file = _DamagedFile(name, segments, spooled, [])
    for segment in segments:
        groups = list(_read_groups(store, contents.entry, segment))
        readable = sum(table.num_rows for _, table in groups)
        tables = [_leave_out_ended(segment, start, table) for start, table in groups]
        if any(table.num_rows for table in tables):
            file.saved.append((segment, pa.concat_tables(tables).combine_chunks()))
        if readable < segment.rows:
            file.lost += segment.rows - readable
            file.start = segment.min_ts - 1 if file.start is None else min(file.start, segment.min_ts - 1)
            file.end = max(file.end, segment.max_ts) if file.lost > segment.rows - readable else segment.max_ts
    return file


def _leave_out_ended(segment: Segment, start: int, rows: pa.Table) -> pa.Table:
    """The rows of a file from `start` on that no override has ended."""
    ended = find_ended_rows(segment) - start
    mask = np.ones(rows.num_rows, bool)
    mask[ended[(ended >= 0) & (ended < len(mask))]] = False
    return rows if bool(mask.all()) else rows.filter(pa.array(mask))


def _read_groups(store: Store, entry: StreamEntry, segment: Segment) -> Iterator[tuple[int, pa.Table]]:
    """The row groups of a segment that can be read, each with its first row in the file."""
    schema = entry.definition.stored_schema
    try:
        _, firsts = store.reader.open(segment.file)
    except DamageError:
        return
    bounds = [int(first) for first in firsts]
    for low, high in pairwise(bounds):
        start, stop = max(low, segment.start), min(high, segment.stop)
        if start < stop:
            try:
                tables = list(store.reader.batches(segment.file, start, stop, schema.names))
            except (DamageError, pa.ArrowException, IndexError):
                continue
            for table in tables:
                yield start, _with_sequences(conform_to_schema(table, schema), segment.seq_base)
                start += table.num_rows


def _with_sequences(rows: pa.Table, base: int) -> pa.Table:
    position = rows.schema.get_field_index(SEQ)
    sequences = rows.column(position).to_numpy() + base
    return rows.set_column(position, rows.schema.field(position), pa.array(sequences))


def _replace_files(
    store: Store, contents: _Contents, damaged: list[_DamagedFile], refill: PrepareContribution, timeout: float
) -> list[int]:
    """Write what was saved, and record everything in one transaction; gives the numbers of the gaps."""
    in_cells = [file for file in damaged if file.spooled is None]
    saved = _write_rows(store, contents, [each for file in in_cells for each in file.saved])
    for file in damaged:
        if file.spooled is not None:
            file.staged = _write_rows(store, contents, file.saved, spooled=True)
    staged = [each for each in (saved, *(file.staged for file in damaged)) if each is not None]
    names = publish_files(store, staged, store.stream_folder(contents.entry.definition.name) / "segments", "repair")
    is_less = any(file.lost for file in in_cells)
    with refill(store, _make_context(contents, damaged, saved, timeout)) if is_less else nullcontext() as filled:
        store.files.reach("repair.committing")
        with store.write_with_files([*names, *(filled.files if filled else ())]) as tables:
            numbers = _record(store, tables, contents, damaged, saved)
            if filled:
                filled.commit(tables)
    store.files.reach("repair.committed")
    store.reader.forget([file.name for file in damaged])
    return numbers


def _make_context(
    contents: _Contents, damaged: list[_DamagedFile], saved: StagedFile | None, timeout: float
) -> SlideContext:
    """The stream where it stands, with what will be in its cells."""
    entry, state = contents.entry, contents.state
    damaged_files = {file.name for file in damaged}
    numbers = itertools.count(-(1 << 40), -1)  # stand-ins
    placed = (
        [make_segment(saved, draft, next(numbers), place)
         for draft, place in zip(saved.drafts, saved.placements, strict=True)] if saved else []
    )  # fmt: skip
    segments = (*(segment for segment in contents.segments if segment.file not in damaged_files), *placed)
    slide = state.slide or 0  # before the first slide no view has rows
    return SlideContext(
        entry, state, slide, entry.definition.model.slot_end(slide), state.ordinal, (), segments, timeout=timeout
    )


def _write_rows(
    store: Store, contents: _Contents, saved: Iterable[tuple[Segment, pa.Table]], *, spooled: bool = False
) -> StagedFile | None:
    """Rows as segments of the current layout, in the cells of the slides that took them in."""
    entry, layout, model = contents.entry, contents.state.layout, contents.entry.definition.model
    partitioner, drafts, placements, events = layout.partitioner(), list[SegmentDraft](), list[Placement](), []
    saved = list(saved)
    if not saved:
        return None
    with StagedWriter(store) as file:
        output = file.write_segments(entry, layout, entry.definition.stored_schema)
        groups = [(segment, rows) for segment, rows in saved]
        if spooled:  # a spooled file has each expiry column once
            groups = [(saved[0][0], pa.concat_tables([rows for _, rows in saved]).combine_chunks())]
        for segment, rows in groups:
            ts, _ = model.times(rows)
            exp, _ = model.expiries(rows, ts)
            sequences = rows.column(SEQ).to_numpy()
            batch = sort_into_segments(rows.drop_columns([SEQ]), model, partitioner, ts, exp, sequences)
            start = output.rows
            batch.write(output)
            drafts += [replaced(draft, start=draft.start + start) for draft in batch.cuts]
            row = -1 if spooled else partitioner.row(segment.last_slide)
            place = Placement(layout.id, row, segment.first_slide, segment.last_slide)
            placements += [place] * len(batch.cuts)
            events.append(pack_histogram(*native_rows.histogram(model.slots(ts))))
        return file.seal(drafts, events[0] if spooled else b"", placements)


def _record(
    store: Store, tables: Tables, contents: _Contents, damaged: list[_DamagedFile], saved: StagedFile | None
) -> list[int]:
    entry, stream = contents.entry, catalog_key(contents.entry.id)
    damaged_segments = [segment for file in damaged if file.spooled is None for segment in file.segments]
    placed = record_placed(tables, entry.id, saved)
    past = {segment.id for segment in contents.history}
    damaged_segments = [segment for segment in damaged_segments if segment.id not in past]
    exchange_segments(tables, entry.id, placed, damaged_segments)
    for file in damaged:
        if file.spooled is not None:
            _replace_spooled(tables, entry.id, contents, file)
    _, state = find_stream(tables, entry.definition.name)  # read again: appends may have changed it since we looked
    remaining = contents.segments.replace({segment.id for segment in damaged_segments}, placed)
    torn = find_torn_files(state.torn, (), placed, remaining)
    state = replace(note_change(state, tables.version, placed, damaged_segments, remaining), torn=torn)
    lost_history = [s for file in damaged if file.spooled is None for s in file.segments if s.id in past]
    state = give_up(tables, entry, state, lost_history) if lost_history else state
    if lost := sum(file.lost for file in damaged if file.spooled is None):
        state = revoke(entry, state, tables.version, f"{lost} rows of damaged files were given up")
    tables.put("states", stream, drop_empty_layouts(tables, entry.id, state, remaining))
    _forget_in_holds(tables, entry.definition.name, {segment.id for segment in damaged_segments})
    tables.delete_prefix("synopses", stream)  # they know lost rows; whoever asked for the repair has them filled again
    ledger = Ledger(tables, entry, state.ordinal, store.clock())
    return [_add_gap(ledger, entry, file).id for file in damaged if file.lost]


def _add_gap(ledger: Ledger, entry: StreamEntry, file: _DamagedFile) -> GapEntry:
    source = file.spooled[1].source if file.spooled is not None and entry.definition.sources else ""
    cause = f"{file.lost} rows of a damaged file were given up"
    return ledger.add("damaged", source, file.start, file.end, cause, file.lost, (file.name,))


def _replace_spooled(tables: Tables, stream: int, contents: _Contents, file: _DamagedFile) -> None:
    assert file.spooled is not None
    (number, entry), staged = file.spooled, file.staged
    key = catalog_key(stream, number)
    if tables.raw("spool", key) is None:
        return
    retire_segments(tables, stream, file.segments)
    if staged is None:
        tables.delete("spool", key)
        return
    placement, numbers = Placement(contents.state.layout.id), record_file(tables, stream, staged)
    segments = [make_segment(staged, *each, placement) for each in zip(staged.drafts, numbers, strict=True)]
    tables.put(
        "spool",
        key,
        replace(entry, segments=tuple(segments), rows=staged.taken, bytes=staged.bytes, events=staged.events),
    )


def _forget_in_holds(tables: Tables, name: str, gone: set[int]) -> None:
    """Slides that are kept for periodic queries lose the rows too."""
    for key, hold in list(tables.items("holds")):
        stream = hold.streams.get(name)
        if stream is not None and any(segment.id in gone for segment in stream.segments):
            segments = tuple(segment for segment in stream.segments if segment.id not in gone)
            streams = hold.streams | {name: replace(stream, segments=segments)}
            tables.put("holds", key, replace(hold, streams=streams))
