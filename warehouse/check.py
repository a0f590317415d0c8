"""The check: verifies every promise of the storage on the files themselves, and changes nothing."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.catalog.environment import DATABASES, Tables, decode_last_int
from windrow.catalog.records import FileEntry, RejectedEntry, ResultPart, SpoolEntry, TableEntry
from windrow.errors import DamageError, FormatError, StorageError
from windrow.expired_rows import find_breaches
from windrow.files import compute_digest, find_living_writers, parse_writer_name
from windrow.indexes.end_overrides import read_ends
from windrow.indexes.row_model import SEQ, Int64s
from windrow.indexes.segment_reader import conform_to_schema
from windrow.indexes.segments import Segment, pack_histogram
from windrow.native import directory as native_directory
from windrow.native import rows as native_rows
from windrow.orphans import data_files, find_catalog_gap, marked_files, named_files
from windrow.row_spool import find_problems, list_files
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_ADVICE = re.compile(r"[;,] run 'windrow check'[^)]*")
"""What errors of damaged files end with; who checks has done that."""


@dataclass(frozen=True)
class CheckReport:
    """What was looked at and what was found."""

    problems: tuple[str, ...]
    streams: int
    segments: int
    files: int
    rows: int
    orphans: int = 0
    """Files that no record names and that are marked, to be removed by 'windrow gc' an hour later: no problem."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class _FileRecords:
    """All records of one commit that say something about files."""

    files: dict[str, FileEntry]
    spool: dict[int, list[SpoolEntry]]
    others: list[RejectedEntry | TableEntry | ResultPart]
    """Files that are not segments."""
    directories: dict[int, bytes]
    reclaimed: set[int]
    """Segments that are gone but whose directory a reader may still need."""
    named: set[str]
    history: dict[int, list[Segment]]
    """By the stream's number."""
    held: set[str]
    """Files of slides that are kept for periodic queries."""


def check_warehouse(store: Store, progress: Callable[[str], None] | None = None) -> CheckReport:
    """Verify the warehouse as of one commit; writers and readers may go on meanwhile."""
    tell_progress = progress or (lambda _: None)
    damage = store.catalog.read(_check_catalog)
    if damage:  # nothing else can be judged by such records
        return CheckReport(tuple(damage), 0, 0, 0, 0)
    present = set(data_files(store.root))
    alive = find_living_writers(store.root)
    with Snapshot(store) as snapshot:
        views = [snapshot.view(name) for name in (*snapshot.streams(), *snapshot.hidden())]
        records = store.catalog.read(_read_records)
        problems = store.catalog.read(lambda tables: list(find_problems(tables)))
        rows = segments = 0
        for view in views:
            all_segments = [
                *view.segments,
                *(s for entry in records.spool.get(view.entry.id, []) for s in entry.segments),
            ]
            past = records.history.get(view.entry.id, [])
            segments += len(all_segments) + len(past)
            for segment in past:
                tell_progress(f"{view.name}: {segment.file}")
                rows += segment.rows
                problems += [
                    f"stream {view.name}: history segment {segment.id} in {segment.file}: {p}"
                    for p in _check_segment(store, view, segment, records, past=True)
                ]
            for segment in all_segments:
                tell_progress(f"{view.name}: {segment.file}")
                rows += segment.rows
                problems += [
                    f"stream {view.name}: segment {segment.id} in {segment.file}: {p}"
                    for p in _check_segment(store, view, segment, records)
                ]
            problems += _check_references(view, [*all_segments, *past], records)
        for file, record in records.files.items():
            tell_progress(file)
            problems += find_file_problems(store, file, record)
        if store.remote is not None:
            tell_progress("objects")
            problems += store.remote.find_problems()
        for other in records.others:
            problems += find_file_problems(store, other.file, other)
        in_use = (
            records.reclaimed
            | {s.id for view in views for s in view.segments}
            | {s.id for past in records.history.values() for s in past}
            | {s.id for entries in records.spool.values() for entry in entries for s in entry.segments}
        )
        problems += [
            f"a held slide needs file {file}, which no record names" for file in sorted(records.held - records.named)
        ]
        problems += [
            f"directory {number} belongs to no segment" for number in sorted(set(records.directories) - in_use)
        ]
        unnamed = [
            file for file in sorted(present - records.named) if parse_writer_name(file.rsplit("/", 1)[1]) not in alive
        ]
        wrong, orphans = _unnamed(store, unnamed, present) if unnamed else ([], 0)
        problems += wrong
    problems += store.catalog.read(lambda tables: list(find_breaches(store, tables)))
    return CheckReport(tuple(map(without_advice, problems)), len(views), segments, len(records.files), rows, orphans)


def without_advice(problem: str) -> str:
    """A problem as a check reports it, which need not advise to check."""
    return _ADVICE.sub("", problem)


def _unnamed(store: Store, files: list[str], present: set[str]) -> tuple[list[str], int]:
    """What is wrong with files of dead writers that no record seems to name, and how many of them are marked.

    They are looked at again while nobody writes, if we may: an ordinary read can miss the commit of a writer that died.
    """

    def read_files(tables: Tables) -> tuple[set[str], set[str], str | None]:
        return named_files(tables), set(marked_files(tables)), find_catalog_gap(tables, store.root, present)

    if store.catalog.writable:
        with store.catalog.exclusive() as tables:
            named, marked, why = read_files(tables)
    else:
        named, marked, why = store.catalog.read(read_files)
    unnamed = [file for file in files if file not in named and (store.root / file).exists()]
    if why is not None and unnamed:
        return [f"{len(unnamed)} files, such as {unnamed[0]}, are named by no record: {why}"], 0
    return [
        f"file {file} is named by no record and its writer is dead; 'windrow gc' marks it, and removes it an hour later"
        for file in unnamed
        if file not in marked
    ], len(marked.intersection(unnamed))


def _check_catalog(tables: Tables) -> list[str]:
    """Compare every record of the catalog with its checksum, and their number with LMDB's own."""
    problems = []
    for name in DATABASES:
        try:
            for _ in tables.raw_items(name):
                pass  # each is compared with its checksum
        except FormatError as error:
            problems.append(str(error))
            continue
        disorder = tables.find_disorder(name)
        problems += [] if disorder is None else [disorder]
    return problems or _count_segments(tables)


def _count_segments(tables: Tables) -> list[str]:
    problems = []
    for key, state in tables.items("states"):
        count = sum(1 for _ in tables.raw_items("segments", key))
        if state.segments not in (None, count):
            problems.append(
                f"stream {decode_last_int(key)} should have {state.segments} segments, {count} can be found"
            )
    return problems


def _read_records(tables: Tables) -> _FileRecords:
    spool: dict[int, list[SpoolEntry]] = {}
    for key, record in list_files(tables):
        spool.setdefault(int.from_bytes(key[:8], "big") - (1 << 63), []).append(record)
    return _FileRecords(
        files={key.decode(): record for key, record in tables.items("files")},
        spool=spool,
        others=[
            *(record for kind in ("rejected", "tables", "versions") for _, record in tables.items(kind)),
            *(p for _, state in tables.items("paced") for p in (*state.parts, state.previous) if p is not None),
        ],
        directories={
            int.from_bytes(key, "big") - (1 << 63): bytes(raw) for key, raw in tables.raw_items("directories")
        },
        reclaimed={segment for _, record in tables.items("reclaim") for segment in record.segments},
        named=named_files(tables),
        history=_read_history(tables),
        held={s.file for _, hold in tables.items("holds") for view in hold.streams.values() for s in view.segments},
    )


def _read_history(tables: Tables) -> dict[int, list[Segment]]:
    past: dict[int, list[Segment]] = {}
    for key, record in tables.items("history"):
        if record.gone is None:
            past.setdefault(int.from_bytes(key[:8], "big") - (1 << 63), []).append(record.segment)
    return past


def find_file_problems(
    store: Store, file: str, record: FileEntry | RejectedEntry | TableEntry | ResultPart
) -> Iterator[str]:
    """What is wrong with a file, by its size, digest and number of rows."""
    path = store.root / file
    try:
        if store.remote is not None and not store.remote.replace(file):
            store.remote.bring([file])
    except (DamageError, StorageError) as error:
        yield str(error)
        return
    if not path.is_file():
        yield f"file {file} is {'not a file' if path.exists() else 'missing'}"
        return
    size = path.stat().st_size
    if size != record.bytes:
        yield f"file {file} has {size} bytes, {record.bytes} were written"
    elif compute_digest(path) != record.digest:
        yield f"file {file} does not have the checksum with which it was written"
        return
    try:
        rows = store.reader.open(file)[0].metadata.num_rows
    except DamageError as error:
        yield str(error)
        return
    if rows != record.rows:
        yield f"file {file} has {rows} rows, {record.rows} were written"


def _check_references(view: StreamSnapshot, segments: list[Segment], records: _FileRecords) -> Iterator[str]:
    counts = Counter(segment.file for segment in segments)
    for file, count in counts.items():
        record = records.files.get(file)
        if record is None:
            yield f"stream {view.name}: file {file} is used by segments but not recorded"
        elif record.segments != count:
            yield f"stream {view.name}: file {file} should have {record.segments} segments in use, there are {count}"
    for file, record in records.files.items():
        if record.stream == view.entry.id and file not in counts:
            yield f"stream {view.name}: file {file} is recorded but no segment uses it"


def _check_segment(
    store: Store, view: StreamSnapshot, segment: Segment, records: _FileRecords, *, past: bool = False
) -> Iterator[str]:
    """What is wrong with a segment; one of the past has the expiries of a lifetime that may have been altered since."""
    definition, layout = view.entry.definition, view.state.layout_of(segment.layout)
    model = definition.model.with_key(layout.key)
    schema = definition.schema.append(pa.field(SEQ, pa.int64()))
    try:
        table = pa.concat_tables(
            [
                schema.empty_table(),
                *(
                    conform_to_schema(t, schema)
                    for t in store.reader.batches(segment.file, segment.start, segment.stop, schema.names)
                ),
            ]
        ).combine_chunks()
    except (DamageError, pa.ArrowInvalid, IndexError) as error:
        yield f"cannot be read: {error}"
        return
    if table.num_rows != segment.rows:
        yield f"has {table.num_rows} rows, {segment.rows} are recorded"
        return
    ts, _ = model.times(table)
    exp, _ = model.expiries(table, ts)
    if past:
        if (int(ts.min()), int(ts.max())) != (segment.min_ts, segment.max_ts):
            yield "has times outside the recorded range"
        yield from _check_directory(segment, model.encoded_keys(table) if model.key else None, records)
        return
    slots, shortened = model.slots(exp), _override_ends(segment, exp)
    if (int(ts.min()), int(ts.max()), int(shortened.min()), int(exp.max())) != (
        segment.min_ts,
        segment.max_ts,
        segment.min_exp,
        segment.max_exp,
    ):
        yield "has times or expiries outside the recorded range, or overrides that do not fit its rows"
    if pack_histogram(*native_rows.histogram(model.slots(shortened))) != segment.expiries:
        yield "has other expiry slots than recorded"
    partitioner = layout.partitioner()
    if partitioner.columns > 1 and bool(np.any(partitioner.columns_of(slots) != segment.column)):
        yield f"holds rows that do not belong in expiry column {segment.column}"
    if (
        segment.row >= 0
        and segment.first_slide == segment.last_slide
        and partitioner.row(segment.last_slide) != segment.row
    ):
        expected = partitioner.row(segment.last_slide)
        yield f"is in insertion row {segment.row}, slide {segment.last_slide} belongs in {expected}"
    keys = model.encoded_keys(table) if model.key else None
    order = native_rows.sort_order(None, keys, np.zeros_like(exp) if layout.loose else exp)
    if bool(np.any(order != np.arange(len(order)))):
        yield "is not sorted by search key and expiry"
    else:
        yield from _check_directory(segment, keys, records)
    seq = table.column(SEQ)
    if len(seq.unique()) != len(seq):
        yield "has two rows with the same sequence"


def _override_ends(segment: Segment, exp: Int64s) -> Int64s:
    """When the rows of a segment end; before all times where an override does not fit the rows."""
    rows, ends = read_ends(segment)
    rows = rows - segment.start
    if not len(rows):
        return exp
    if rows[0] < 0 or rows[-1] >= len(exp) or bool(np.any(np.diff(rows) <= 0)) or bool(np.any(ends > exp[rows])):
        return np.full(len(exp), -(1 << 62), np.int64)
    shortened = exp.copy()
    shortened[rows] = ends
    return shortened


def _check_directory(segment: Segment, keys: pa.Array | None, records: _FileRecords) -> Iterator[str]:
    if keys is None:
        return
    directory = records.directories.get(segment.id)
    problem = "is missing" if directory is None else native_directory.verify(directory, keys)
    if problem:
        yield f"its directory {problem}"
