"""Stores the rows of runs: small ones in the catalog beside the record of their run, large or many in Parquet parts.

A run's rows and its record are written by one commit, so that a hundred small runs cost one write to the disk, and a
crash leaves a run whole or not at all. Parts are written as all files are: staged, synced, renamed, then named.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import QueryEntry, QueryState, ReclaimEntry, ResultPart, RunEntry
from windrow.errors import DamageError, DefinitionError, QueryError, StorageError
from windrow.files import disk_errors
from windrow.formats.durations import format_durations
from windrow.formats.text import BITS, contains_type, is_opaque, type_name
from windrow.queries.engine import arrow_ipc
from windrow.queries.engine.types import UNSIGNED
from windrow.queries.periodic.definition import read_own_schema, read_result_schema
from windrow.store import Store

INLINE_BYTES = 128 << 10
"""Up to this size a run's rows are kept in the catalog."""
TAIL_RUNS = 64
TAIL_BYTES = 1 << 20
"""When more than this has gathered in the catalog, it is rolled into a part."""
MAX_TROUBLES = 200
"""Failed and missed runs of a query that stay on record."""
_FEW_BYTES = 2 << 10
"""Rows of up to this size are not compressed."""
_MOST_DAYS = 106_000_000
"""Of an interval; a little less than what 64 bits hold in microseconds, so that its hours fit too."""
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


def to_storable_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as a results table keeps them; refuses what Parquet has no place for."""
    storable = pa.schema(
        [field.with_type(pa.duration("us")) if pa.types.is_interval(field.type) else field for field in schema]
    )
    for field in storable:
        try:
            if field.type == UNSIGNED or field.metadata == BITS or contains_type(field.type, is_opaque):
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
    writer = store.writer
    with disk_errors(f"writing results of query {entry.name!r}"), writer.staging() as path:
        with store.files.sink(path) as sink:
            pq.write_table(rows, sink, compression="zstd")
        size, digest = writer.seal(path)
        (file,) = writer.publish([path], store.root / "results" / entry.name / "parts", "query")
    return ResultPart(file=file, first=first, last=last, rows=rows.num_rows, bytes=size, digest=digest)


def encode_run_key(query: int, slide: int) -> bytes:
    """The catalog key of a run's rows."""
    return catalog_key(query) + b"r" + catalog_key(slide)


def encode_whole_key(query: int) -> bytes:
    """The catalog key of the last whole answer, for a query that delivers differences."""
    return catalog_key(query) + b"w"


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

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return read_result_schema(self.entry)

    def batches(self, store: Store, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows in the order of the slides, those of one run as the query gave them."""
        names = list(columns) if columns is not None else self.schema.names
        wanted = names if "_slide" in names else [*names, "_slide"]
        parts = sorted((p for p in self.parts if p.first <= self.last and p.last >= self.first), key=lambda p: p.first)
        pieces: list[tuple[int, int, Callable[[], Iterator[pa.RecordBatch]]]] = [
            (part.first, part.last, partial(_read, store, part, wanted)) for part in parts
        ]
        pieces += [
            (slide, slide, partial(_decoded, raw)) for slide, raw in self.tail if self.first <= slide <= self.last
        ]
        pieces.sort(key=lambda piece: piece[:2])
        rows = (batch for *_, read in pieces for batch in read())
        if any(before[1] >= after[0] for before, after in pairwise(pieces)):
            # A large run went into a part of its own while smaller ones gathered: their slides are interleaved.
            whole = pa.Table.from_batches(list(rows), pa.schema([self.schema.field(name) for name in wanted]))
            rows = iter(whole.take(pc.sort_indices(whole, [("_slide", "ascending")])).to_batches())
        for batch in rows:
            yield from self._filter_slides(pa.Table.from_batches([batch]), names)

    def _filter_slides(self, rows: pa.Table, names: list[str]) -> list[pa.RecordBatch]:
        slides = rows.column("_slide")
        inside = pc.and_(pc.greater_equal(slides, self.first), pc.less_equal(slides, self.last))
        shown: list[pa.RecordBatch] = rows.filter(inside).select(names).to_batches()
        return shown


def _decoded(raw: bytes) -> Iterator[pa.RecordBatch]:
    yield from decode_result_rows(raw).to_batches()


def _read(store: Store, part: ResultPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(store.root / part.file) as file:
            yield from file.iter_batches(columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise DamageError(
            f"results in {part.file} cannot be read ({error}); 'windrow check' says what is damaged"
        ) from None


def read_stored_results(tables: Tables, entry: QueryEntry, version: int | None = None) -> StoredResults:
    """A query's results in a transaction, with the runs that were delivered up to a commit."""
    state: QueryState = tables.get("paced", catalog_key(entry.id))
    first = next((decode_last_int(key) for key, _ in tables.raw_items("runs", catalog_key(entry.id))), 0)
    last = state.delivered
    if last is not None and version is not None:
        run: RunEntry | None = tables.get("runs", catalog_key(entry.id, last))
        if run is None or run.version > version:
            visible = [
                r.slide
                for _, r in tables.items("runs", catalog_key(entry.id))
                if _delivered_runs(r) and r.version <= version
            ]
            last = max(visible, default=None)
    if last is None:
        return StoredResults(entry, (), (), 0, -1)
    tail = tuple(
        (decode_last_int(key), bytes(raw)) for key, raw in tables.raw_items("results", catalog_key(entry.id) + b"r")
    )
    return StoredResults(entry, state.parts, tail, first, last)


def read_all_results(tables: Tables, version: int | None = None) -> dict[str, StoredResults]:
    """Every results table in a transaction, by the query's name."""
    return {entry.name: read_stored_results(tables, entry, version) for _, entry in tables.items("queries")}


def _delivered_runs(run: RunEntry) -> bool:
    return run.outcome == "delivered"


def read_run(store: Store, entry: QueryEntry, slide: int) -> pa.Table:
    """The rows of one delivered run."""
    results = store.catalog.read(lambda tables: read_stored_results(tables, entry))
    run = replace_bounds(results, slide)
    return pa.Table.from_batches(list(run.batches(store)), run.schema)


def replace_bounds(results: StoredResults, slide: int) -> StoredResults:
    """The same results, of one slide."""
    return StoredResults(results.entry, results.parts, results.tail, slide, slide)


def read_last_runs(store: Store, entry: QueryEntry, count: int) -> pa.Table:
    """The rows of the last `count` runs."""

    def look(tables: Tables) -> StoredResults:
        slides = [decode_last_int(key) for key, _ in tables.raw_items("runs", catalog_key(entry.id))]
        results = read_stored_results(tables, entry)
        return StoredResults(
            entry, results.parts, results.tail, max([results.first, *slides[-count:][:1]]), results.last
        )

    results = store.catalog.read(look)
    return pa.Table.from_batches(list(results.batches(store)), results.schema)


def lock_folder(store: Store) -> Path:
    """Where the lock files of queries are."""
    return store.catalog.folder / "locks"


def query_lock_path(store: Store, entry: QueryEntry) -> Path:
    """The lock file of a query: whoever holds it runs the query, and puts its files in their folder."""
    return lock_folder(store) / f"query-{entry.id}.lock"


def read_previous_answer(store: Store, entry: QueryEntry) -> pa.Table | None:
    """The last whole answer of a query that delivers differences; None before its first run."""

    def look(tables: Tables) -> tuple[bytes | None, ResultPart | None]:
        raw = tables.raw("results", encode_whole_key(entry.id))
        state: QueryState | None = tables.get("paced", catalog_key(entry.id))
        return None if raw is None else bytes(raw), None if state is None else state.previous

    raw, part = store.catalog.read(look)
    if raw is not None:
        return decode_result_rows(raw)
    if part is None:
        return None
    schema = read_own_schema(entry)
    return pa.Table.from_batches(list(_read(store, part, schema.names)), None if part.rows else schema)


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
        raw = tables.raw("results", encode_run_key(entry.id, run.slide))
        if raw is not None:
            tail_runs, tail_bytes = tail_runs - 1, tail_bytes - len(raw)
            tables.delete("results", encode_run_key(entry.id, run.slide))
        if run.file.startswith(own_files):
            obsolete.append(run.file)
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


def retire_files(tables: Tables, files: Sequence[str]) -> None:
    """Hand files to reclaim that no record names any more; readers may still use them."""
    if files:
        record = ReclaimEntry(stream=0, files=tuple(files))
        tables.put("reclaim", catalog_key(tables.version, tables.allocate("reclaims")), record)


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
    with store.publishing([runs.part.file for runs in rolled]) as tables:
        unused = [runs for runs in rolled if not _name_part(tables, runs)]
    for runs in unused:
        store.files.unlink(store.root / runs.part.file)
    store.files.reach("query.rolled")


def _roll_one(store: Store, entry: QueryEntry) -> _RolledRuns:
    prefix = catalog_key(entry.id) + b"r"
    raws = store.catalog.read(lambda tables: {key: bytes(raw) for key, raw in tables.raw_items("results", prefix)})
    rows = pa.concat_tables([decode_result_rows(raw) for raw in raws.values()])
    slides = [decode_last_int(key) for key in raws]
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
