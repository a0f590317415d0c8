"""Stores the rows of runs: small ones in the catalog beside the record of their run, large or many in Parquet parts.

A run's rows and its record are written by one commit, so that a hundred small runs cost one write to the disk, and a
crash leaves a run whole or not at all. Parts are written as all files are: staged, synced, renamed, then named.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import QueryEntry, QueryState, ResultPart, RunEntry
from windrow.catalog.segment_log import retire_files
from windrow.errors import DefinitionError, QueryError, StorageError
from windrow.files import disk_errors
from windrow.formats.durations import format_durations
from windrow.formats.text import BITS, contains_type, is_opaque, type_name
from windrow.indexes.arrow_arrays import compute as pc
from windrow.indexes.arrow_arrays import parquet as pq
from windrow.indexes.segment_reader import conform_to_schema
from windrow.queries.engine import arrow_ipc
from windrow.queries.engine.types import UNSIGNED
from windrow.queries.periodic.definition import (
    REVISION,
    add_revision,
    read_own_schema,
    read_result_schema,
    read_stored_schema,
)
from windrow.store import Store
from windrow.windows import Window

INLINE_BYTES = 128 << 10
"""Up to this size a run's rows are kept in the catalog."""
TAIL_RUNS = 64
TAIL_BYTES = 1 << 20
"""When more than this has gathered in the catalog, it is rolled into a part. None of the three is measured: they
bound what results take in the catalog."""
MAX_TROUBLES = 200
"""Failed and missed runs of a query that stay on record."""
_FEW_BYTES = 2 << 10
"""Rows of up to this size are not compressed."""
_MOST_DAYS = 106_000_000
"""Of an interval; a little less than what 64 bits hold in microseconds, so that its hours fit too."""
_RUN_KEY = 8 + 1 + 8
"""Bytes of a run's key up to its slide."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def encode_result_rows(rows: pa.Table) -> bytes:
    """Rows as bytes; a few are not worth compressing."""
    batch = arrow_ipc.as_single_batch(rows) if rows.nbytes <= _FEW_BYTES else None
    if batch is not None:
        return arrow_ipc.encode_batch(batch)
    packed: bytes = arrow_ipc.encode_table(rows, _OPTIONS).to_pybytes()
    return packed


def decode_result_rows(raw: bytes) -> pa.Table:
    """The rows that `encode_result_rows` was given."""
    return pa.ipc.open_stream(pa.py_buffer(raw)).read_all()


def is_changed_by_files(field: pa.Field) -> bool:
    """Whether values of a column of an answer would be others when they are read back from a file."""
    return field.type == UNSIGNED or field.metadata == BITS or contains_type(field.type, is_opaque)


def to_storable_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as a results table keeps them; refuses what Parquet has no place for."""
    storable = pa.schema(
        [field.with_type(pa.duration("us")) if pa.types.is_interval(field.type) else field for field in schema]
    )
    for field in storable:
        try:
            if is_changed_by_files(field):
                raise NotImplementedError("DuckDB would read it as something else")
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowException, NotImplementedError):
            raise DefinitionError(
                f"column {field.name!r} has the type {type_name(field)}, which results cannot be kept in; "
                "cast it to another"
            ) from None
    return storable


def conform_answer(entry: QueryEntry, rows: pa.Table) -> pa.Table:
    """An answer with the columns that the query had when it was registered."""
    schema = read_own_schema(entry)
    if rows.schema.equals(schema):
        return rows
    if rows.schema.names != schema.names:
        raise QueryError(
            f"the columns are no longer {', '.join(schema.names)} but {', '.join(rows.schema.names)}; "
            "drop the query and add it again"
        )
    columns = []
    for column, field in zip(rows.columns, schema, strict=True):
        if pa.types.is_interval(column.type):
            column = pa.chunked_array([_microseconds(chunk) for chunk in column.chunks], pa.duration("us"))  # noqa: PLW2901
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowException:
            raise QueryError(
                f"column {field.name!r} is no longer {field.type} but {column.type}; drop the query and add it again"
            ) from None
    return pa.table(columns, schema=schema)


def _microseconds(intervals: pa.Array) -> pa.Array:
    """Months (of 30 days), days and nanoseconds as one number, as Python's timedelta has it.

    Raises:
        QueryError: one is too long to be counted in microseconds.
    """
    kind = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
    raw = np.frombuffer(intervals.buffers()[1], kind)[intervals.offset : intervals.offset + len(intervals)]
    days = raw["days"].astype(np.int64) + 30 * raw["months"].astype(np.int64)
    empty = np.asarray(intervals.is_null())
    if (long := (np.abs(days) > _MOST_DAYS) & ~empty).any():
        worst = format_durations(intervals.slice(int(np.argmax(long)), 1))[0]
        raise QueryError(f"the interval '{worst}' is longer than results can keep; cast it to text")
    micros = days * 86_400_000_000 + raw["nanos"] // 1000
    return pa.array(np.where(empty, 0, micros), pa.int64(), mask=empty).cast(pa.duration("us"))


def stage_part(store: Store, entry: QueryEntry, rows: pa.Table, first: int, last: int) -> ResultPart:
    """Write rows as a part and publish it; a commit must name it."""
    from windrow.segment_files import StagedWriter, publish_files  # a statement that reads results writes nothing

    with disk_errors(f"writing results of query {entry.name!r}"), StagedWriter(store) as file:
        pq.write_table(rows, file.sink, compression="zstd")
        part = file.seal()
        publish_files(store, [part], store.root / "results" / entry.name / "parts", "query")
    return ResultPart(file=part.name, first=first, last=last, rows=rows.num_rows, bytes=part.bytes, digest=part.digest)


def encode_run_key(query: int, slide: int, revision: int = 0) -> bytes:
    """The catalog key of the rows of a run, or of a revision of it."""
    return catalog_key(query) + b"r" + (catalog_key(slide, revision) if revision else catalog_key(slide))


def _decode_slide(key: bytes) -> int:
    """The slide in a key that `encode_run_key` made."""
    return decode_last_int(key[:_RUN_KEY])


def encode_whole_key(query: int, slide: int | None = None) -> bytes:
    """The catalog key of the last whole answer, or that of a slide, for a query that delivers differences."""
    return catalog_key(query) + b"w" + (b"" if slide is None else catalog_key(slide))


@dataclass(frozen=True)
class StoredResults:
    """The results table of a query as one commit has it."""

    entry: QueryEntry
    parts: tuple[ResultPart, ...]
    tail: tuple[tuple[int, bytes], ...]
    first: int
    """The oldest slide that is still kept: parts may hold older ones."""
    last: int
    """The newest slide that is to be seen: a snapshot may be older than the last run."""
    revised: tuple[tuple[int, int], ...] = ()
    """The revision that is to be seen of each slide that has any."""
    revisions: bool = False
    """Whether all revisions are shown, with their numbers."""
    only: int | None = None
    """The one revision that is shown."""
    clock: int | None = None
    """The end of the newest window."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        shown = read_result_schema(self.entry)
        return add_revision(shown) if self.revisions else shown

    def describe(self, store: Store, bounds: tuple[int, int] | None, clause: str) -> Window:
        """What its runs knew of their windows: complete if all of them are, covered as the least of them."""

        def read_runs(tables: Tables) -> list[RunEntry]:
            prefix, revised = catalog_key(self.entry.id), dict(self.revised)
            first = [run for _, run in tables.items("runs", prefix) if run.slide not in revised]
            again = [run for _, run in tables.items("revisions", prefix) if revised.get(run.slide) == run.revision]
            return [run for run in (*first, *again) if _delivered_runs(run) and self.first <= run.slide <= self.last]

        runs = [
            run
            for run in store.catalog.read(read_runs)
            if bounds is None or (run.window_end is not None and bounds[0] < run.window_end <= bounds[1])
        ]
        starts, ends = (
            [run.window_start for run in runs],
            [run.window_end for run in runs if run.window_end is not None],
        )
        return Window(
            stream=self.entry.name,
            clause=clause,
            slide=self.last if runs else None,
            start=None if not starts or None in starts else times.to_datetime(min(s for s in starts if s is not None)),
            end=times.to_datetime(max(ends)) if ends else None,
            complete=all(run.complete for run in runs),
            sources=(),
            missing=(),
            spoken_for=(),
            rejected=0,
            coverage=min((run.coverage for run in runs), default=1.0),
            kind="results",
        )

    def batches(self, store: Store, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows in the order of the slides, those of one run as the query gave them."""
        names = list(columns) if columns is not None else self.schema.names
        stored = read_stored_schema(self.entry)
        needed = ("_slide", REVISION.name) if self.entry.revise is not None else ("_slide",)
        wanted = [*(name for name in names if name in stored.names), *(name for name in needed if name not in names)]
        parts = sorted((p for p in self.parts if p.first <= self.last and p.last >= self.first), key=lambda p: p.first)
        pieces: list[tuple[int, int, Callable[[], Iterator[pa.RecordBatch]]]] = [
            (part.first, part.last, partial(self._read, store, part, wanted)) for part in parts
        ]
        pieces += [
            (slide, slide, partial(self._decode, raw, wanted))
            for slide, raw in self.tail
            if self.first <= slide <= self.last
        ]
        pieces.sort(key=lambda piece: piece[:2])
        rows = (batch for *_, read in pieces for batch in read())
        if any(before[1] >= after[0] for before, after in pairwise(pieces)):
            # A large run went into a part of its own while smaller ones gathered: their slides are interleaved.
            whole = pa.Table.from_batches(list(rows), pa.schema([stored.field(name) for name in wanted]))
            rows = iter(whole.take(pc.sort_indices(whole, [("_slide", "ascending")])).to_batches())
        for batch in rows:
            yield from self._filter_rows(pa.Table.from_batches([batch]), names)

    def _decode(self, raw: bytes, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from (self._widen(batch, names) for batch in decode_result_rows(raw).to_batches())

    def _read(self, store: Store, part: ResultPart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        stored = store.reader.open(part.file)[0].schema_arrow.names
        batches = store.reader.read_file(part.file, [name for name in names if name in stored])
        yield from (self._widen(batch, names) for batch in batches)

    def _widen(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """The named columns; one that runs of earlier releases lack is null, and some had narrower types."""
        schema = read_stored_schema(self.entry)
        fields = [schema.field(name) for name in names]
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _filter_rows(self, rows: pa.Table, names: list[str]) -> list[pa.RecordBatch]:
        slides = rows.column("_slide")
        inside = pc.and_(pc.greater_equal(slides, self.first), pc.less_equal(slides, self.last))
        if self.entry.revise is None:
            if self.revisions:
                rows = rows.append_column(REVISION, pa.repeat(pa.scalar(0, REVISION.type), len(rows)))
        elif not self.revisions:
            newest: pa.Array | int = self.only or 0
            if self.only is None:
                revised, numbers = (pa.array([pair[n] for pair in self.revised], pa.int64()) for n in (0, 1))
                newest = numbers.take(pc.index_in(slides, revised).combine_chunks()).fill_null(0)
            inside = pc.and_(inside, pc.equal(rows.column(REVISION.name), newest))
        shown: list[pa.RecordBatch] = rows.filter(inside).select(names).to_batches()
        return shown


def read_stored_results(
    tables: Tables, entry: QueryEntry, version: int | None = None, upto: int | None = None
) -> StoredResults:
    """A query's results in a transaction, with the runs that were delivered up to a commit, or are up to a slide."""
    state: QueryState = tables.get("paced", catalog_key(entry.id))
    first = next((decode_last_int(key) for key, _ in tables.raw_items("runs", catalog_key(entry.id))), 0)
    last = state.delivered
    newest: RunEntry | None = None if last is None else tables.get("runs", catalog_key(entry.id, last))

    def is_visible(run: RunEntry) -> bool:
        return _delivered_runs(run) and run.version <= (version or run.version) and (upto is None or run.slide <= upto)

    if newest is not None and not is_visible(newest):
        visible = [run for _, run in tables.items("runs", catalog_key(entry.id)) if is_visible(run)]
        newest = max(visible, key=lambda run: run.slide, default=None)
        last = None if newest is None else newest.slide
    if last is None:
        return StoredResults(entry, (), (), 0, -1)
    tail = tuple(
        (_decode_slide(key), bytes(raw)) for key, raw in tables.raw_items("results", catalog_key(entry.id) + b"r")
    )
    revised: dict[int, int] = {}
    for _, run in tables.items("revisions", catalog_key(entry.id)) if state.revisions else ():
        visible_number = run.revision if version is None or run.version <= version else 0
        revised[run.slide] = max(revised.get(run.slide, 0), visible_number)
    return StoredResults(
        entry,
        state.parts,
        tail,
        first,
        last,
        tuple(revised.items()),
        clock=None if newest is None else newest.window_end,
    )


def _delivered_runs(run: RunEntry) -> bool:
    return run.outcome == "delivered"


def read_run(store: Store, entry: QueryEntry, slide: int, revision: int = 0) -> pa.Table:
    """The rows of one delivered run, or of a revision of it."""
    results = store.catalog.read(lambda tables: read_stored_results(tables, entry))
    run = replaced(results, first=slide, last=slide, only=revision)
    return pa.Table.from_batches(list(run.batches(store)), run.schema)


def read_last_runs(store: Store, entry: QueryEntry, count: int) -> pa.Table:
    """The rows of the last `count` runs."""

    def select_runs(tables: Tables) -> StoredResults:
        slides = [decode_last_int(key) for key, _ in tables.raw_items("runs", catalog_key(entry.id))]
        results = read_stored_results(tables, entry)
        return replaced(results, first=max([results.first, *slides[-count:][:1]]))

    results = store.catalog.read(select_runs)
    return pa.Table.from_batches(list(results.batches(store)), results.schema)


def lock_folder(store: Store) -> Path:
    """Where the lock files of queries are."""
    return store.catalog.folder / "locks"


def query_lock_path(store: Store, entry: QueryEntry) -> Path:
    """The lock file of a query: whoever holds it runs the query, and puts its files in their folder."""
    return lock_folder(store) / f"query-{entry.id}.lock"


def read_previous_answer(store: Store, entry: QueryEntry, slide: int | None = None) -> pa.Table | None:
    """The last whole answer of a query that delivers differences, or that of a slide; None before its first run."""

    def read_answer(tables: Tables) -> tuple[bytes | None, ResultPart | None]:
        raw = tables.raw("results", encode_whole_key(entry.id, slide))
        state: QueryState | None = tables.get("paced", catalog_key(entry.id))
        return None if raw is None else bytes(raw), None if state is None else state.previous

    raw, part = store.catalog.read(read_answer)
    schema = read_own_schema(entry)
    if raw is not None:
        return conform_to_schema(decode_result_rows(raw), schema)
    if part is None:
        return None
    rows = list(store.reader.read_file(part.file, schema.names))
    return conform_to_schema(pa.Table.from_batches(rows, None if part.rows else schema), schema)


def trim_runs(tables: Tables, entry: QueryEntry, state: QueryState, end: int | None, own_files: str) -> QueryState:
    """Remove the runs that a query's retention no longer keeps; their files go when no reader needs them."""
    if entry.keep_time is None and entry.keep_runs is not None and state.stored_runs <= entry.keep_runs:
        return state
    obsolete: list[str] = []
    tail_runs, tail_bytes, run_count, troubles = state.tail_runs, state.tail_bytes, state.stored_runs, state.troubles
    for key, run in tables.items("runs", catalog_key(entry.id)):
        too_many = entry.keep_runs is not None and run_count > entry.keep_runs
        too_old = entry.keep_time is not None and end is not None and (run.window_end or end) <= end - entry.keep_time
        if not (too_many or too_old) or run.slide == state.delivered:
            break
        for revision in range(run.revisions + 1):
            rows_key = encode_run_key(entry.id, run.slide, revision)
            raw = tables.raw("results", rows_key)
            if raw is not None:
                tail_runs, tail_bytes = tail_runs - 1, tail_bytes - len(raw)
                tables.delete("results", rows_key)
        revised = [revision for _, revision in tables.items("revisions", key)] if run.revisions else []
        obsolete += [each.file for each in (run, *revised) if each.file.startswith(own_files)]
        tables.delete_prefix("revisions", key)
        tables.delete("runs", key)
        run_count -= _delivered_runs(run)
        troubles -= not _delivered_runs(run)
    first = next((decode_last_int(key) for key, _ in tables.raw_items("runs", catalog_key(entry.id))), 0)
    parts = tuple(part for part in state.parts if part.last >= first)
    obsolete += [part.file for part in state.parts if part.last < first]
    retire_files(tables, obsolete)
    counts = {"tail_runs": tail_runs, "tail_bytes": tail_bytes, "stored_runs": run_count, "troubles": troubles}
    return replace(state, parts=parts, **counts)


def record_trouble(tables: Tables, entry: QueryEntry, state: QueryState, run: RunEntry) -> QueryState:
    """Record a run that was not delivered; of those, only the newest are kept."""
    key = catalog_key(entry.id, run.slide)
    count = state.troubles + (tables.raw("runs", key) is None)
    tables.put("runs", key, run)
    if count > MAX_TROUBLES:
        oldest = next(
            (key for key, recorded in tables.items("runs", catalog_key(entry.id)) if not _delivered_runs(recorded)),
            None,
        )
        if oldest is not None:
            tables.delete("runs", oldest)
            count -= 1
    return replace(state, troubles=count)


def cancel_removal(tables: Tables, files: Collection[str]) -> None:
    """Files that are to be removed but will be written anew: a query of the same name was there before."""
    if not files:
        return
    for key, record in list(tables.items("reclaim")):
        if not set(files).isdisjoint(record.files):
            remaining = tuple(file for file in record.files if file not in files)
            tables.put("reclaim", key, replace(record, files=remaining))


def is_tail_full(state: QueryState) -> bool:
    """Whether enough rows have gathered in the catalog to be rolled into a part."""
    return state.tail_runs > TAIL_RUNS or state.tail_bytes > TAIL_BYTES


@dataclass(frozen=True)
class _RolledRuns:
    """Runs of one query that were written as a part."""

    entry: QueryEntry
    part: ResultPart
    raws: dict[bytes, int]
    """The catalog keys of their rows, and how many bytes each has."""


def roll_tails(store: Store, entries: Iterable[QueryEntry]) -> None:
    """Move the rows that have gathered in the catalog into a part for each query, and name all parts in one commit.

    What cannot be written stays where it is, and does not keep others from it.
    """
    rolled = []
    for entry in entries:
        with contextlib.suppress(StorageError):
            rolled.append(_roll_one(store, entry))
    if not rolled:
        return
    with store.write_with_files([runs.part.file for runs in rolled]) as tables:
        unused = [runs for runs in rolled if not _name_part(tables, runs)]
    store.withdraw([runs.part.file for runs in unused])
    store.files.reach("query.rolled")


def _roll_one(store: Store, entry: QueryEntry) -> _RolledRuns:
    prefix = catalog_key(entry.id) + b"r"
    raws = store.catalog.read(lambda tables: {key: bytes(raw) for key, raw in tables.raw_items("results", prefix)})
    stored = read_stored_schema(entry)
    whole = StoredResults(entry, (), (), 0, 0)
    batches = [batch for raw in raws.values() for batch in whole._decode(raw, stored.names)]
    rows = pa.Table.from_batches(batches, stored)
    slides = [_decode_slide(key) for key in raws]
    part = stage_part(store, entry, rows, min(slides), max(slides))
    return _RolledRuns(entry, part, {key: len(raw) for key, raw in raws.items()})


def _name_part(tables: Tables, runs: _RolledRuns) -> bool:
    """Put a part in the place of the runs that it holds; false if one of them has gone meanwhile."""
    entry, raws = runs.entry, runs.raws
    registered: QueryEntry | None = tables.get("queries", entry.name.encode())
    state: QueryState | None = tables.get("paced", catalog_key(entry.id))
    if registered is None or state is None or any(tables.raw("results", key) is None for key in raws):
        return False
    for key in raws:
        tables.delete("results", key)
    counts = {"tail_runs": state.tail_runs - len(raws), "tail_bytes": state.tail_bytes - sum(raws.values())}
    tables.put("paced", catalog_key(entry.id), replace(state, parts=(*state.parts, runs.part), **counts))
    return True
