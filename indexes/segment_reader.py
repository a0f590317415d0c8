"""Reading segment files by row range: by page from mapped memory where our own reader can, with pyarrow elsewhere.

Footers and maps are kept between reads. When a file is first opened, its size and footer are compared with what was
written; each column chunk is when it is first read, by us, or by `verify_columns` before somebody else reads it. A
damaged or exchanged file raises `DamageError`, which names it.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from windrow.errors import DamageError
from windrow.indexes.arrow_arrays import encode_dictionary
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import Bools, Int64s, RowModel
from windrow.indexes.segments import Segment
from windrow.indexes.selection import ColumnLimits, WindowBounds
from windrow.native import parquet_reader
from windrow.native import rows as native_rows
from windrow.native.parquet_reader import FileLayout, FileMap

if TYPE_CHECKING:
    import pyarrow.parquet as pq
else:
    from windrow.indexes.arrow_arrays import parquet as pq

_DAMAGE = (pa.lib.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises when a file is not what it was."""
_CACHED_FOOTERS = 4096
_CACHED_MAPS = 8192
"""Not measured: maps take addresses and no descriptors, and Linux lets a process have some 65,000."""
_PAGE_BYTES = 32 << 20
"""Unpacked pages that are kept, so that probes of neighbouring keys do not unpack them again (`bench realistic`)."""
_THREADS = min(8, os.cpu_count() or 1)
_MOST_BROUGHT = 8
"""How often a file is brought that is removed before it can be opened: the folder then holds far too little."""
_NO_COLUMNS = pa.schema([])


class FileProvider(Protocol):
    """Brings files into the warehouse's folder that lie elsewhere."""

    def touch(self, files: Iterable[str]) -> None:
        """Note that files are read now."""

    def bring(self, files: Collection[str]) -> None:
        """See that files are there, all at once; those that were brought were compared with their digests."""

    def hold(self, files: Collection[str]) -> None:
        """The same, and keep them until all snapshots have ended that are open now."""

    def replace(self, file: str) -> bool:
        """Bring a file again that is damaged; False if it is nowhere else."""


class SegmentFileReader:
    """Reads row ranges of segment files under one root, keeping footers (not file handles) in memory.

    Args:
        root: The warehouse.
        find_checksums: What a file is compared with (see `FileLayout.checksums`): None if it is not on record, empty
            if it was written before there were checksums.
        page_bytes: Bytes of unpacked pages that are kept at most.
    """

    def __init__(
        self,
        root: Path,
        find_checksums: Callable[[str], bytes | None] = lambda _: b"",
        page_bytes: int = _PAGE_BYTES,
    ) -> None:
        self._root = root
        self._pages: BoundedCache[tuple[str, int], pa.Buffer] = BoundedCache(
            min(page_bytes, _PAGE_BYTES), size=lambda page: page.size
        )
        self._find_checksums = find_checksums
        self._footers: BoundedCache[str, tuple[pq.FileMetaData, np.ndarray[Any, Any]]] = BoundedCache(_CACHED_FOOTERS)
        self._maps: BoundedCache[str, tuple[pa.Schema, FileMap, FileLayout]] = BoundedCache(_CACHED_MAPS)
        self._types: BoundedCache[str, Mapping[str, pa.DataType]] = BoundedCache(_CACHED_FOOTERS)
        self._trusted: BoundedCache[str, bool] = BoundedCache(_CACHED_MAPS)
        self._verified: BoundedCache[str, frozenset[str]] = BoundedCache(_CACHED_MAPS)
        self.provider: FileProvider | None = None
        """Where files come from that are not in the folder."""

    def path(self, file: str) -> Path:
        """Where a file of the catalog lies."""
        return self._root / file

    def open(self, file: str) -> "tuple[pq.ParquetFile, Any]":
        """An open Parquet file and the first row of each of its row groups (with the total at the end)."""
        cached = self._footers.get(file)
        memory, _ = self._map_any(file)
        try:
            source = pa.BufferReader(pa.py_buffer(memory))
            opened = pq.ParquetFile(source, metadata=cached[0] if cached else None, page_checksum_verification=True)
        except _DAMAGE as error:
            raise _damaged(file, error) from None
        if cached is None:
            footer = opened.metadata
            counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            cached = (footer, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64))
            self._footers.put(file, cached)
        return opened, cached[1]

    def map_file(self, file: str, schema: pa.Schema) -> tuple[FileMap, FileLayout]:
        """Map a whole file, and find where its columns lie, to read single rows and not whole row groups.

        Args:
            file: Of the catalog.
            schema: The stream's schema.
        """
        cached = self._maps.get(file)
        if cached is not None and cached[0] is schema:
            return cached[1], cached[2]
        try:
            memory, layout = self._open_map(file, schema)
        except FileNotFoundError:
            if self.provider is None:
                raise _missing(file) from None
            memory, layout = self._bring_and_open(file, schema)
        except (parquet_reader.Damaged, parquet_reader.Declined, OSError, ValueError) as error:
            if not self._replace_damaged(file):
                raise _damaged(file, error) from None
            memory, layout = self._bring_and_open(file, schema)
        self._maps.put(file, (schema, memory, layout))
        return memory, layout

    def _open_map(self, file: str, schema: pa.Schema) -> tuple[FileMap, FileLayout]:
        checksums = self._find_checksums(file)
        if checksums is None and file not in self._trusted:
            raise DamageError(f"{_describe(file)} has no checksums in the catalog; run 'windrow check'")
        memory = _map(f"{self._root}/{file}")
        layout = parquet_reader.open_file_layout(memory, schema, checksums or None)
        layout.trusted = file in self._trusted
        layout.kept, layout.name = self._pages, file
        return memory, layout

    def _bring_and_open(self, file: str, schema: pa.Schema) -> tuple[FileMap, FileLayout]:
        assert self.provider is not None
        for _ in range(_MOST_BROUGHT):
            self.provider.bring([file])
            with contextlib.suppress(FileNotFoundError):  # somebody else needed its place at once
                return self._open_map(file, schema)
        raise _missing(file)

    def _replace_damaged(self, file: str) -> bool:
        """Whether a damaged file was brought anew from elsewhere; all that is known of the old one is forgotten."""
        if self.provider is None or not self.provider.replace(file):
            return False
        self.forget([file])
        return True

    def refuse_damaged(self, file: str, error: BaseException) -> None:
        """Raise what is wrong with a file, unless it could be brought anew: then it is to be read again."""
        if not self._replace_damaged(file):
            raise _damaged(file, error) from None

    def prepare(self, files: Iterable[str]) -> None:
        """Bring files that lie elsewhere all at once, before they are read one by one."""
        if self.provider is not None:
            wanted = dict.fromkeys(files)
            self.provider.touch(wanted)
            unmapped = [file for file in wanted if file not in self._maps]
            if unmapped:
                self.provider.bring(unmapped)

    def _map_any(self, file: str) -> tuple[FileMap, FileLayout]:
        """`map_file` for a reader that does not ask the layout for columns."""
        cached = self._maps.get(file)
        return (cached[1], cached[2]) if cached is not None else self.map_file(file, _NO_COLUMNS)

    def types(self, file: str) -> Mapping[str, pa.DataType]:
        """The types of a file's columns by name: an older file lacks columns, or has them in narrower types."""

        def read() -> Mapping[str, pa.DataType]:
            schema = self.open(file)[0].schema_arrow
            return dict(zip(schema.names, schema.types, strict=True))

        return self._types.get_or_make(file, read)

    def verify_columns(self, files: Iterable[str], columns: Collection[str]) -> None:
        """Compare columns of whole files with their checksums, each once: for readers that compare none, as DuckDB's.

        Raises:
            DamageError: one is not what was written, or is missing.
        """
        wanted, files = frozenset(columns), list(dict.fromkeys(files))
        if self.provider is not None:
            self.provider.hold(files)
        verified_columns = self._verified.get
        unknown = [file for file in files if not wanted <= (verified_columns(file) or frozenset())]
        if len(unknown) > 1 and _THREADS > 1:
            with ThreadPoolExecutor(_THREADS, "windrow-verify") as pool:
                list(pool.map(self._verify, unknown, [wanted] * len(unknown)))
        else:
            for file in unknown:
                self._verify(file, wanted)

    def _verify(self, file: str, wanted: frozenset[str]) -> None:
        verified = self._verified.get(file) or frozenset()
        memory, layout = self._map_any(file)
        try:
            layout.verify(memory, sorted(wanted - verified))
        except ValueError as error:
            if not self._replace_damaged(file):
                raise _damaged(file, error) from None
            self._map_any(file)  # what was brought was compared with its digest as a whole
        self._verified.put(file, verified | wanted)

    def read_file(self, file: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows of a file, with all or some of its columns, in batches."""
        opened, _ = self.open(file)
        self.verify_columns([file], opened.schema_arrow.names if columns is None else columns)
        try:
            yield from opened.iter_batches(columns=None if columns is None else list(columns))
        except _DAMAGE as error:
            raise _damaged(file, error) from None

    def mapped(self) -> list[str]:
        """The files that are mapped now."""
        return list(self._maps)

    def drop_lost(self) -> bool:
        """Forget maps of files that became shorter: they are opened, and compared, again. Gives whether any was."""
        shortened = [file for file, (_, memory, _) in self._maps.items() if memory.lost]
        self.forget(shortened)
        return bool(shortened)

    def trust(self, files: Iterable[str]) -> None:
        """Note files that this process has just written: their pages need not be compared with their checksums."""
        for file in files:
            self._trusted.put(file, True)

    def forget(self, files: Iterable[str]) -> None:
        """Drop what is known of files that are gone."""
        for file in files:
            for cache in (self._footers, self._maps, self._types, self._verified):
                cache.pop(file)

    def retain(self, folder: str, files: set[str]) -> None:
        """Let go of maps of files below `folder` that are not in `files`: a map keeps a deleted file's space."""
        for file in self._maps:
            if file.startswith(folder) and file not in files:
                self._maps.pop(file)

    def batches(
        self, file: str, start: int, stop: int, columns: Sequence[str], chunk_bytes: int = 8 << 20
    ) -> Iterator[pa.Table]:
        """Rows [start, stop) of a file as tables of about `chunk_bytes`, in file order."""
        opened, firsts = self.open(file)
        first = int(np.searchsorted(firsts, start, side="right")) - 1
        last = int(np.searchsorted(firsts, stop, side="left"))
        group_bytes = max(1, opened.metadata.row_group(first).total_byte_size) if last > first else 1
        step = max(1, chunk_bytes // group_bytes)
        present = set(opened.schema_arrow.names)
        wanted = [name for name in columns if name in present]
        memory, layout = self._map_any(file)
        for group in range(first, last, step):
            groups = list(range(group, min(group + step, last)))
            try:
                layout.verify(memory, wanted, groups[0], groups[-1] + 1)
            except ValueError as error:
                if not self._replace_damaged(file):
                    raise _damaged(file, error) from None
                yield from self.batches(file, max(start, int(firsts[group])), stop, columns, chunk_bytes)
                return
            table = read_row_groups(opened, groups, wanted, file)
            low, high = int(firsts[groups[0]]), int(firsts[groups[-1] + 1])
            if low < start or high > stop:
                table = table.slice(max(0, start - low), min(high, stop) - max(low, start))
            yield table


def read_row_groups(opened: "pq.ParquetFile", groups: list[int], columns: list[str], file: str) -> pa.Table:
    """Read row groups of an open file; damage raises `DamageError`."""
    try:
        return opened.read_row_groups(groups, columns=columns, use_threads=False)
    except _DAMAGE as error:
        raise _damaged(file, error) from None


def conform_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give `table` the columns of `schema`: older ones lack some or have narrower types, Spark's lack Arrow's own."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        position = table.schema.get_field_index(field.name)
        if position < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            column = table.column(position)
            columns.append(column if column.type.equals(field.type) else _cast(column, field.type))
    return pa.table(columns, schema=schema) if columns else table.select([])


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([encode_dictionary(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _map(path: str) -> FileMap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # who opens a pipe would wait for its writer
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise parquet_reader.Damaged("it is not a file")
        return FileMap(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def compute_checksums(path: Path) -> bytes:
    """What a file that was just written is to be compared with whenever it is opened."""
    memory = _map(str(path))
    return parquet_reader.open_file_layout(memory, _NO_COLUMNS).checksums(memory)


def _describe(file: str) -> str:
    """A file and whose it is, which its path says."""
    folder, _, rest = file.partition("/")
    owner = {"streams": "segment file {} of stream {!r}", "tables": "file {} of table {!r}"}
    owner["results"] = "file {} of the results of query {!r}"
    if "/rejected/" in file:
        owner["streams"] = "file of rejected rows {} of stream {!r}"
    return owner.get(folder, "file {}").format(file, rest.partition("/")[0])


def _missing(file: str) -> DamageError:
    return DamageError(f"{_describe(file)} is missing; run 'windrow check' to see what is affected")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


RangesByFile = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Spans:
    """Row ranges of several files, as arrays: thousands of them are handled without a Python step for each."""

    files: tuple[str, ...]
    part: Int64s
    """The file of each range, as a position in `files`."""
    start: Int64s
    stop: Int64s

    @classmethod
    def of(cls, parts: RangesByFile) -> "Spans":
        """From ranges by file."""
        bounds = np.array([pair for ranges in parts.values() for pair in ranges], np.int64).reshape(-1, 2)
        counts = np.array([len(ranges) for ranges in parts.values()], np.int64)
        part = np.repeat(np.arange(len(parts), dtype=np.int64), counts)
        return cls(tuple(parts), part, bounds[:, 0].copy(), bounds[:, 1].copy())

    @classmethod
    def of_segments(cls, segments: Iterable[Segment]) -> "Spans":
        """Whole segments, in their order."""
        manifest = Manifest.of(segments)
        file, start, rows = manifest.arrays.file, manifest.arrays.start, manifest.arrays.rows
        first, part = native_rows.number_distinct(np.ascontiguousarray(file))
        files = tuple([manifest[position].file for position in first])
        return cls(files, part, np.ascontiguousarray(start), start + rows)

    def where(self, mask: Bools) -> "Spans":
        """Those of the rows (in their order) for which `mask` is true."""
        if bool(mask.all()):
            return self
        nonempty = self.start < self.stop
        part, start, stop = self.part[nonempty], self.start[nonempty], self.stop[nonempty]
        offsets = np.concatenate(([0], np.cumsum(stop - start)))
        before, after = np.concatenate(([False], mask[:-1])), np.concatenate((mask[1:], [False]))
        before[offsets[:-1]] = False  # a run never crosses from one range into the next
        after[offsets[1:] - 1] = False
        first, last = np.flatnonzero(mask & ~before), np.flatnonzero(mask & ~after) + 1
        range_of = np.searchsorted(offsets, first, side="right") - 1
        shift = start[range_of] - offsets[range_of]
        return Spans(self.files, part[range_of], first + shift, last + shift)

    def without_ended(self, segments: Iterable[Segment], now: int | None) -> "Spans":
        """The same rows without those of `segments` that overrides have ended by `now` (None: at any time)."""
        ended: dict[str, list[Int64s]] = {}
        for segment in Manifest.of(segments).ended:
            ended.setdefault(segment.file, []).append(find_ended_rows(segment, now))
        if not ended:
            return self
        mask, offsets = np.ones(self.rows, bool), np.concatenate(([0], np.cumsum(self.stop - self.start)))
        for part, file in enumerate(self.files):
            if file in ended:
                rows, ranges = np.sort(np.concatenate(ended[file])), np.flatnonzero(self.part == part)
                first, last = (np.searchsorted(rows, bounds[ranges]) for bounds in (self.start, self.stop))
                counts = last - first
                steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
                inside = rows[steps + np.repeat(first, counts)]
                mask[inside + np.repeat(offsets[:-1][ranges] - self.start[ranges], counts)] = False
        return self.where(mask)

    def by_file(self) -> dict[str, list[tuple[int, int]]]:
        """The ranges of each file one by one, for readers that cannot take arrays."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        for part, start, stop in zip(self.part.tolist(), self.start.tolist(), self.stop.tolist(), strict=True):
            ranges.setdefault(self.files[part], []).append((start, stop))
        return ranges

    @property
    def rows(self) -> int:
        """Rows of all ranges together."""
        return int((self.stop - self.start).sum())


def read_spans(spans: Spans, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader) -> pa.Table:
    """The rows of many ranges, in their order, in one chunk.

    Args:
        spans: The ranges.
        schema: The wanted columns.
        full: All columns that a file may have; the same object for each call of a stream, if time matters.
        reader: Of the files.
    """
    if not schema.names:
        return read_spans(spans, pa.schema([full.field(0)]), full, reader).select([])
    reader.prepare(spans.files)
    mapped = [reader.map_file(file, full) for file in spans.files]
    if any(name in layout.declined for _, layout in mapped if layout.declined for name in schema.names):
        return _one_by_one(spans, schema, full, reader)
    try:
        return parquet_reader.read_spans(mapped, spans.part, spans.start, spans.stop, schema.names, full)
    except parquet_reader.Declined:
        return _one_by_one(spans, schema, full, reader)
    except ValueError as error:
        reader.refuse_damaged(spans.files[getattr(error, "part", None) or 0], error)
        return read_spans(spans, schema, full, reader)


def read_ranges(parts: RangesByFile, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader) -> pa.Table:
    """The rows of several ranges of several files, in the order of `parts`; arguments as of `read_spans`."""
    return read_spans(Spans.of(parts), schema, full, reader)


def _one_by_one(spans: Spans, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader) -> pa.Table:
    tables = [schema.empty_table()]
    for part, start, stop in zip(spans.part.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True):
        file = spans.files[part]
        memory, layout = reader.map_file(file, full)
        try:
            tables.append(parquet_reader.read_ranges([(memory, layout, [start], [stop])], schema.names, full))
        except parquet_reader.Declined:
            tables += [conform_to_schema(table, schema) for table in reader.batches(file, start, stop, schema.names)]
        except ValueError as error:
            reader.refuse_damaged(file, error)
            return _one_by_one(spans, schema, full, reader)
    return pa.concat_tables(tables).combine_chunks()


def _damaged(file: str, error: BaseException) -> DamageError:
    return DamageError(f"{_describe(file)} is damaged ({_first_line(error)}); run 'windrow check'")


def read_within_limits(
    spans: Spans, limits: ColumnLimits, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader
) -> pa.RecordBatch | None:
    """The rows that are within limits, in one pass; None if pyarrow must read them. Arguments as of `read_spans`."""
    mapped = [reader.map_file(file, full) for file in spans.files]
    try:
        return parquet_reader.read_live(mapped, spans.part, spans.start, spans.stop, limits, schema, full)
    except parquet_reader.Declined:
        return None
    except ValueError as error:
        reader.refuse_damaged(spans.files[getattr(error, "part", None) or 0], error)
        return read_within_limits(spans, limits, schema, full, reader)


def split_at_row_groups(segment: Segment, full: pa.Schema, reader: SegmentFileReader) -> list[tuple[int, int]]:
    """The parts of a segment in the row groups of its file."""
    _, layout = reader.map_file(segment.file, full)
    return list(pairwise([segment.start, *layout.cuts(segment.start, segment.stop), segment.stop]))


def count_unmapped_bytes(arrays: Iterable[pa.Array], memory: FileMap) -> int:
    """Bytes of arrays, without text that lies in a mapped file."""
    size = 0
    for array in arrays:
        buffers = array.buffers()
        is_open = len(buffers) == 3 and buffers[2] is not None and memory.holds(buffers[2].address)
        size += sum(buffer.size for buffer in buffers[:2] if buffer is not None) if is_open else array.nbytes
    return size


def read_row_group(
    file: str, start: int, stop: int, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader
) -> pa.RecordBatch | None:
    """One row range of one file; None if pyarrow must read it."""
    memory, layout = reader.map_file(file, full)
    try:
        return parquet_reader.read_rows(memory, layout, start, stop, schema, full)
    except parquet_reader.Declined:
        return None
    except ValueError as error:
        reader.refuse_damaged(file, error)
        return read_row_group(file, start, stop, schema, full, reader)


def read_live_spans(
    spans: Spans, bounds: WindowBounds, model: RowModel, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader
) -> pa.Table:
    """The rows that are in the window: times are read first, then only live rows are copied."""
    limits = bounds.limits(model, full)
    reader.prepare(spans.files)
    if limits is not None and schema.names:
        batch = read_within_limits(spans, limits, schema, full, reader)
        if batch is not None:
            return pa.Table.from_batches([batch], schema)
    timed = bounds.deciding(model)
    declined = [reader.map_file(file, full)[1].declined for file in spans.files]
    if any(name in reasons for reasons in declined if reasons for name in (*timed, *schema.names)):
        wide = pa.schema([*schema, *(full.field(name) for name in timed if name not in schema.names)])
        return bounds.filter(read_spans(spans, wide, full, reader), model).select(schema.names)
    times = read_spans(spans, pa.schema([full.field(name) for name in timed]), full, reader)
    return read_spans(spans.where(bounds.mask(times, model)), schema, full, reader)


def read_live(
    file: str,
    start: int,
    stop: int,
    bounds: WindowBounds,
    model: RowModel,
    schema: pa.Schema,
    full: pa.Schema,
    reader: SegmentFileReader,
) -> pa.Table:
    """The rows of [start, stop) of a file that are in the window."""
    return read_live_spans(Spans.of({file: [(start, stop)]}), bounds, model, schema, full, reader)
