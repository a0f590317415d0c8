"""Reading rows by range: by page from mapped memory where our own reader can, by row group with pyarrow elsewhere."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from windrow.errors import DamageError
from windrow.indexes.model import Bools, Int64s, RowModel
from windrow.indexes.parquet import FileReader, conform
from windrow.indexes.selection import Bounds
from windrow.native import pages

Parts = Mapping[str, Sequence[tuple[int, int]]]


def read_ranges(parts: Parts, schema: pa.Schema, full: pa.Schema, reader: FileReader) -> pa.Table:
    """The rows of several ranges of several files, in the order of `parts`.

    Args:
        parts: Row ranges by file.
        schema: The wanted columns.
        full: All columns that a file may have; the same object for each call of a stream, if time matters.
        reader: Of the files.
    """
    if not schema.names:
        return read_ranges(parts, pa.schema([full.field(0)]), full, reader).select([])
    mapped = []
    for file, ranges in parts.items():
        memory, layout = reader.mapped(file, full)
        if layout.declined and any(name in layout.declined for name in schema.names):
            return _one_by_one(parts, schema, full, reader)
        mapped.append((memory, layout, [start for start, _ in ranges], [stop for _, stop in ranges]))
    try:
        return pages.read_ranges(mapped, schema.names, full)
    except pages.Declined:
        return _one_by_one(parts, schema, full, reader)
    except ValueError as error:
        raise _damaged(list(parts)[getattr(error, "part", None) or 0], error) from None


def _one_by_one(parts: Parts, schema: pa.Schema, full: pa.Schema, reader: FileReader) -> pa.Table:
    tables = [schema.empty_table()]
    for file, ranges in parts.items():
        memory, layout = reader.mapped(file, full)
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        try:
            tables.append(pages.read_ranges([(memory, layout, starts, stops)], schema.names, full))
        except pages.Declined:
            for start, stop in ranges:
                tables += [conform(table, schema) for table in reader.batches(file, start, stop, schema.names)]
        except ValueError as error:
            raise _damaged(file, error) from None
    return pa.concat_tables(tables).combine_chunks()


def _damaged(file: str, error: ValueError) -> DamageError:
    return DamageError(f"segment file {file} is damaged ({error}); run 'windrow check'")


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
    """The rows of [start, stop) that are in the window: times are looked at first, then only live rows are copied."""
    _, layout = reader.mapped(file, full)
    timed = [name for name in (model.time, model.expires) if name is not None]
    if any(name in layout.declined for name in (*timed, *schema.names)):
        wide = pa.schema([*schema, *(full.field(name) for name in timed if name not in schema.names)])
        return bounds.filter(read_ranges({file: [(start, stop)]}, wide, full, reader), model).select(schema.names)
    times = read_ranges({file: [(start, stop)]}, pa.schema([full.field(name) for name in timed]), full, reader)
    starts, stops = runs(bounds.mask(times, model))
    if len(starts) == 0:
        return schema.empty_table()
    ranges = list(zip((starts + start).tolist(), (stops + start).tolist(), strict=True))
    return read_ranges({file: ranges}, schema, full, reader)


def runs(mask: Bools) -> tuple[Int64s, Int64s]:
    """Where a mask is true, as ranges: first rows, and one past the last rows."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).view(np.int8)))
    return edges[0::2].astype(np.int64), edges[1::2].astype(np.int64)


def narrow(parts: Parts, mask: Bools) -> Parts:
    """Those rows of `parts` (in their order) for which `mask` is true."""
    if bool(mask.all()):
        return parts
    files = [file for file, ranges in parts.items() for _ in ranges]
    bounds = np.array([pair for ranges in parts.values() for pair in ranges], np.int64).reshape(-1, 2)
    offsets = np.concatenate(([0], np.cumsum(bounds[:, 1] - bounds[:, 0])))
    before, after = np.concatenate(([False], mask[:-1])), np.concatenate((mask[1:], [False]))
    before[offsets[:-1]] = False  # a run never crosses from one range into the next
    after[offsets[1:] - 1] = False
    starts, stops = np.flatnonzero(mask & ~before), np.flatnonzero(mask & ~after) + 1
    home = np.searchsorted(offsets, starts, side="right") - 1
    shift = bounds[home, 0] - offsets[home]
    kept: dict[str, list[tuple[int, int]]] = {}
    for at, start, stop in zip(home.tolist(), (starts + shift).tolist(), (stops + shift).tolist(), strict=True):
        kept.setdefault(files[at], []).append((start, stop))
    return kept
