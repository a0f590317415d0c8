"""Reading segment files by row range: by page from mapped memory where our own reader can, with pyarrow elsewhere.

Footers and maps are kept between reads. A damaged file raises `DamageError`, which names it.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.errors import DamageError
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import Bools, Int64s, RowModel
from windrow.indexes.segments import Segment
from windrow.indexes.selection import ColumnLimits, WindowBounds
from windrow.native import parquet_reader
from windrow.native import rows as native_rows
from windrow.native.parquet_reader import FileLayout, FileMap

_DAMAGE = (pa.lib.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises when a file is not what it was."""
_CACHED_FOOTERS = 4096
_CACHED_MAPS = 8192
"""Maps take addresses and no descriptors: Linux lets a process have some 65,000."""


class SegmentFileReader:
    """Reads row ranges of segment files under one root, keeping footers (not file handles) in memory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, np.ndarray[Any, Any]]] = OrderedDict()
        self._maps: OrderedDict[str, tuple[pa.Schema, FileMap, FileLayout]] = OrderedDict()
        self._columns: dict[str, frozenset[str]] = {}
        self._compressed: set[str] = set()
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, file: str) -> Path:
        """Where a file of the catalog lies."""
        return self._root / file

    def open(self, file: str) -> tuple[pq.ParquetFile, Any]:
        """An open Parquet file and the first row of each of its row groups (with the total at the end)."""
        with self._lock:
            cached = self._footers.get(file)
        try:
            source = pa.memory_map(str(self.path(file)))
            opened = pq.ParquetFile(source, metadata=cached[0] if cached else None, page_checksum_verification=True)
        except FileNotFoundError:
            raise _missing(file) from None
        except _DAMAGE as error:
            raise DamageError(
                f"segment file {file} cannot be read ({_first_line(error)}); run 'windrow check'"
            ) from None
        if cached is None:
            footer = opened.metadata
            counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            cached = (footer, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64))
            with self._lock:
                self._footers[file] = cached
                while len(self._footers) > _CACHED_FOOTERS:
                    self._footers.popitem(last=False)
        return opened, cached[1]

    def map_file(self, file: str, schema: pa.Schema) -> tuple[FileMap, FileLayout]:
        """Map a whole file, and find where its columns lie, to read single rows and not whole row groups.

        Args:
            file: Of the catalog.
            schema: The stream's schema.
        """
        with self._lock:
            cached = self._maps.get(file)
        if cached is not None and cached[0] is schema:
            return cached[1], cached[2]
        try:
            memory = _map(f"{self._root}/{file}")
            layout = parquet_reader.open_file_layout(memory, schema)
            layout.trusted = file in self._trusted
        except FileNotFoundError:
            raise _missing(file) from None
        except (parquet_reader.Damaged, parquet_reader.Declined, OSError, ValueError) as error:
            raise DamageError(f"segment file {file} is damaged ({_first_line(error)}); run 'windrow check'") from None
        with self._lock:
            self._maps[file] = (schema, memory, layout)
            if layout.packed or layout.declined:
                self._compressed.add(file)
            while len(self._maps) > _CACHED_MAPS:
                self._maps.popitem(last=False)
        return memory, layout

    def map_files(self, files: Sequence[str], schema: pa.Schema) -> list[tuple[FileMap, FileLayout]]:
        """`map_file` of many files."""
        with self._lock:
            cached = [self._maps.get(file) for file in files]
        return [
            (entry[1], entry[2]) if entry is not None and entry[0] is schema else self.map_file(file, schema)
            for file, entry in zip(files, cached, strict=True)
        ]

    def has_compressed(self, files: Iterable[str]) -> bool:
        """Whether some of these files, as far as they were read before, are compressed or left to pyarrow."""
        return not self._compressed.isdisjoint(files)

    def columns(self, file: str) -> frozenset[str]:
        """The names of a file's columns: one that was written before a column was added lacks it."""
        names = self._columns.get(file)
        if names is None:
            names = frozenset(self.open(file)[0].schema_arrow.names)
            with self._lock:
                if len(self._columns) > _CACHED_FOOTERS:
                    self._columns.clear()
                self._columns[file] = names
        return names

    def trust(self, files: Iterable[str]) -> None:
        """Note files that this process has just written: their pages need not be compared with their checksums."""
        with self._lock:
            self._trusted.update(dict.fromkeys(files))
            while len(self._trusted) > _CACHED_MAPS:
                self._trusted.popitem(last=False)

    def forget(self, files: Iterable[str]) -> None:
        """Drop what is known of files that are gone."""
        with self._lock:
            for file in files:
                self._footers.pop(file, None)
                self._maps.pop(file, None)
                self._compressed.discard(file)
                self._columns.pop(file, None)

    def retain(self, folder: str, files: set[str]) -> None:
        """Let go of maps of files below `folder` that are not in `files`: a map keeps a deleted file's space."""
        with self._lock:
            for file in [file for file in self._maps if file.startswith(folder) and file not in files]:
                del self._maps[file]
                self._compressed.discard(file)

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
        for group in range(first, last, step):
            groups = list(range(group, min(group + step, last)))
            table = read_row_groups(opened, groups, wanted, file)
            low, high = int(firsts[groups[0]]), int(firsts[groups[-1] + 1])
            if low < start or high > stop:
                table = table.slice(max(0, start - low), min(high, stop) - max(low, start))
            yield table


def read_row_groups(opened: pq.ParquetFile, groups: list[int], columns: list[str], file: str) -> pa.Table:
    """Read row groups of an open file; damage raises `DamageError`."""
    try:
        return opened.read_row_groups(groups, columns=columns, use_threads=False)
    except _DAMAGE as error:
        raise DamageError(f"segment file {file} is damaged ({_first_line(error)}); run 'windrow check'") from None


def conform_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give `table` the columns of `schema`: older files lack added columns, Spark's files lack Arrow's own types."""
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
        return pa.chunked_array([_encode(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _encode(chunk: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
    return plain.cast(kind.value_type).dictionary_encode().cast(kind)


def _map(path: str) -> FileMap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return FileMap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _missing(file: str) -> DamageError:
    return DamageError(f"segment file {file} is missing; run 'windrow check' to see what is affected")


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
    mapped = reader.map_files(spans.files, full)
    if any(name in layout.declined for _, layout in mapped if layout.declined for name in schema.names):
        return _one_by_one(spans, schema, full, reader)
    try:
        return parquet_reader.read_spans(mapped, spans.part, spans.start, spans.stop, schema.names, full)
    except parquet_reader.Declined:
        return _one_by_one(spans, schema, full, reader)
    except ValueError as error:
        raise _damaged(spans.files[getattr(error, "part", None) or 0], error) from None


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
            raise _damaged(file, error) from None
    return pa.concat_tables(tables).combine_chunks()


def _damaged(file: str, error: ValueError) -> DamageError:
    return DamageError(f"segment file {file} is damaged ({error}); run 'windrow check'")


def read_within_limits(
    spans: Spans, limits: ColumnLimits, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader
) -> pa.RecordBatch | None:
    """The rows that are within limits, in one pass; None if pyarrow must read them. Arguments as of `read_spans`."""
    mapped = reader.map_files(spans.files, full)
    try:
        return parquet_reader.read_live(mapped, spans.part, spans.start, spans.stop, limits, schema, full)
    except parquet_reader.Declined:
        return None
    except ValueError as error:
        raise _damaged(spans.files[getattr(error, "part", None) or 0], error) from None


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
        raise _damaged(file, error) from None


def read_live_spans(
    spans: Spans, bounds: WindowBounds, model: RowModel, schema: pa.Schema, full: pa.Schema, reader: SegmentFileReader
) -> pa.Table:
    """The rows that are in the window: times are read first, then only live rows are copied."""
    limits = bounds.limits(model, full)
    if limits is not None and schema.names:
        batch = read_within_limits(spans, limits, schema, full, reader)
        if batch is not None:
            return pa.Table.from_batches([batch], schema)
    timed = [name for name in (model.time, model.expires) if name is not None]
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
