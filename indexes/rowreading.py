"""Reading rows by range: by page from mapped memory where our own reader can, by row group with pyarrow elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from windrow.errors import DamageError
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import Bools, Int64s, RowModel
from windrow.indexes.segment_reader import FileReader, conform
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Bounds, Limits
from windrow.native import parquet_reader
from windrow.native import rows as native_rows

Parts = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Spans:
    """Row ranges of several files, as arrays: thousands of them are handled without a step in Python for each."""

    files: tuple[str, ...]
    part: Int64s
    """The file of each range, as a position in `files`."""
    start: Int64s
    stop: Int64s

    @classmethod
    def of(cls, parts: Parts) -> "Spans":
        """From ranges by file."""
        bounds = np.array([pair for ranges in parts.values() for pair in ranges], np.int64).reshape(-1, 2)
        counts = np.array([len(ranges) for ranges in parts.values()], np.int64)
        part = np.repeat(np.arange(len(parts), dtype=np.int64), counts)
        return cls(tuple(parts), part, bounds[:, 0].copy(), bounds[:, 1].copy())

    @classmethod
    def of_segments(cls, segments: Iterable[Segment]) -> "Spans":
        """Whole segments, in their order."""
        manifest = Manifest.of(segments)
        file, start, rows = manifest.figures.file, manifest.figures.start, manifest.figures.rows
        first, part = native_rows.numbered(np.ascontiguousarray(file))
        return cls(tuple([manifest[at].file for at in first]), part, np.ascontiguousarray(start), start + rows)

    def where(self, mask: Bools) -> "Spans":
        """Those of the rows (in their order) for which `mask` is true."""
        if bool(mask.all()):
            return self
        kept = self.start < self.stop
        part, start, stop = self.part[kept], self.start[kept], self.stop[kept]
        offsets = np.concatenate(([0], np.cumsum(stop - start)))
        before, after = np.concatenate(([False], mask[:-1])), np.concatenate((mask[1:], [False]))
        before[offsets[:-1]] = False  # a run never crosses from one range into the next
        after[offsets[1:] - 1] = False
        first, last = np.flatnonzero(mask & ~before), np.flatnonzero(mask & ~after) + 1
        home = np.searchsorted(offsets, first, side="right") - 1
        shift = start[home] - offsets[home]
        return Spans(self.files, part[home], first + shift, last + shift)

    def by_file(self) -> dict[str, list[tuple[int, int]]]:
        """One by one, for readers that know no better; ranges of a file come together."""
        found: dict[str, list[tuple[int, int]]] = {}
        for part, start, stop in zip(self.part.tolist(), self.start.tolist(), self.stop.tolist(), strict=True):
            found.setdefault(self.files[part], []).append((start, stop))
        return found

    @property
    def rows(self) -> int:
        """How many rows."""
        return int((self.stop - self.start).sum())


def read_spans(spans: Spans, schema: pa.Schema, full: pa.Schema, reader: FileReader) -> pa.Table:
    """The rows of many ranges, in their order, in one chunk.

    Args:
        spans: The ranges.
        schema: The wanted columns.
        full: All columns that a file may have; the same object for each call of a stream, if time matters.
        reader: Of the files.
    """
    if not schema.names:
        return read_spans(spans, pa.schema([full.field(0)]), full, reader).select([])
    mapped = reader.mapped_all(spans.files, full)
    if any(name in layout.declined for _, layout in mapped if layout.declined for name in schema.names):
        return _one_by_one(spans, schema, full, reader)
    try:
        return parquet_reader.read_spans(mapped, spans.part, spans.start, spans.stop, schema.names, full)
    except parquet_reader.Declined:
        return _one_by_one(spans, schema, full, reader)
    except ValueError as error:
        raise _damaged(spans.files[getattr(error, "part", None) or 0], error) from None


def read_ranges(parts: Parts, schema: pa.Schema, full: pa.Schema, reader: FileReader) -> pa.Table:
    """The rows of several ranges of several files, in the order of `parts`; arguments as of `read_spans`."""
    return read_spans(Spans.of(parts), schema, full, reader)


def _one_by_one(spans: Spans, schema: pa.Schema, full: pa.Schema, reader: FileReader) -> pa.Table:
    tables = [schema.empty_table()]
    for part, start, stop in zip(spans.part.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True):
        file = spans.files[part]
        memory, layout = reader.mapped(file, full)
        try:
            tables.append(parquet_reader.read_ranges([(memory, layout, [start], [stop])], schema.names, full))
        except parquet_reader.Declined:
            tables += [conform(table, schema) for table in reader.batches(file, start, stop, schema.names)]
        except ValueError as error:
            raise _damaged(file, error) from None
    return pa.concat_tables(tables).combine_chunks()


def _damaged(file: str, error: ValueError) -> DamageError:
    return DamageError(f"segment file {file} is damaged ({error}); run 'windrow check'")


def read_within(
    spans: Spans, limits: Limits, schema: pa.Schema, full: pa.Schema, reader: FileReader
) -> pa.RecordBatch | None:
    """Those of the rows that are within limits, in one pass; None if our own reader cannot. Else as `read_spans`."""
    mapped = reader.mapped_all(spans.files, full)
    try:
        return parquet_reader.read_live(mapped, spans.part, spans.start, spans.stop, limits, schema, full)
    except parquet_reader.Declined:
        return None
    except ValueError as error:
        raise _damaged(spans.files[getattr(error, "part", None) or 0], error) from None


def row_groups(segment: Segment, full: pa.Schema, reader: FileReader) -> list[tuple[int, int]]:
    """A segment cut at the row groups of its file."""
    _, layout = reader.mapped(segment.file, full)
    return list(pairwise([segment.start, *layout.cuts(segment.start, segment.stop), segment.stop]))


def own_bytes(arrays: Iterable[pa.Array], memory: parquet_reader.FileMap) -> int:
    """Bytes of arrays without texts that lie in a mapped file."""
    size = 0
    for array in arrays:
        buffers = array.buffers()
        is_open = len(buffers) == 3 and buffers[2] is not None and memory.holds(buffers[2].address)
        size += sum(buffer.size for buffer in buffers[:2] if buffer is not None) if is_open else array.nbytes
    return size


def read_group(
    file: str, start: int, stop: int, schema: pa.Schema, full: pa.Schema, reader: FileReader
) -> pa.RecordBatch | None:
    """One row range of one file; None if our own reader cannot."""
    memory, layout = reader.mapped(file, full)
    try:
        return parquet_reader.read_rows(memory, layout, start, stop, schema, full)
    except parquet_reader.Declined:
        return None
    except ValueError as error:
        raise _damaged(file, error) from None


def read_live_spans(
    spans: Spans, bounds: Bounds, model: RowModel, schema: pa.Schema, full: pa.Schema, reader: FileReader
) -> pa.Table:
    """Those of the rows that are in the window: times are looked at first, then only live rows are copied."""
    limits = bounds.limits(model, full)
    if limits is not None and schema.names:
        found = read_within(spans, limits, schema, full, reader)
        if found is not None:
            return pa.Table.from_batches([found], schema)
    timed = [name for name in (model.time, model.expires) if name is not None]
    declined = [reader.mapped(file, full)[1].declined for file in spans.files]
    if any(name in reasons for reasons in declined if reasons for name in (*timed, *schema.names)):
        wide = pa.schema([*schema, *(full.field(name) for name in timed if name not in schema.names)])
        return bounds.filter(read_spans(spans, wide, full, reader), model).select(schema.names)
    times = read_spans(spans, pa.schema([full.field(name) for name in timed]), full, reader)
    return read_spans(spans.where(bounds.mask(times, model)), schema, full, reader)


def read_live(
    file: str,
    start: int,
    stop: int,
    bounds: Bounds,
    model: RowModel,
    schema: pa.Schema,
    full: pa.Schema,
    reader: FileReader,
) -> pa.Table:
    """The rows of [start, stop) of a file that are in the window."""
    return read_live_spans(Spans.of({file: [(start, stop)]}), bounds, model, schema, full, reader)
