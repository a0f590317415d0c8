"""Files that Spark staged become known to the warehouse: verified, cut into segments, durable, rejected rows set apart.

All that Spark computed is computed again from the key and time columns; a file not in storage order is rewritten.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windrow.append import Append
from windrow.errors import StorageError
from windrow.indexes.row_model import SEQ, Int64s
from windrow.indexes.segment_builder import SegmentDraft, draft_segment
from windrow.indexes.segment_reader import conform_to_schema
from windrow.indexes.segments import pack_histogram
from windrow.ingest.sort_key import SAMPLE_ROWS, update_profile
from windrow.native import rows as native_rows
from windrow.rejection import classify_rows
from windrow.segment_files import StagedFile

_NO_TIME = -(1 << 63)
_MAX_REWRITE_BYTES = 64 << 20
"""A file up to this size is written again without its rejected rows; a larger one keeps them, unnamed, at its end."""


@dataclass(frozen=True)
class _InspectedFile:
    """What was found in one staged file."""

    path: Path
    rows: int
    main: int
    """Rows in storage order; those behind them were rejected, or are left for us to place."""
    ts: Int64s
    exp: Int64s
    codes: npt.NDArray[np.uint8]
    keys: pa.Array | None
    identity: pa.Array | None
    """Keys by which the batch is known again."""
    cuts: tuple[SegmentDraft, ...] | None
    """None: the rows are not in storage order, or the file is not worth keeping as it is."""
    sealed: tuple[int, str]


def add_staged_files(append: Append, paths: Sequence[Path], horizon: int) -> None:
    """Count staged files (in arrival order) into an append under way; it then has only to be committed."""
    writer = append.store.writer
    renamed = [path.rename(writer.stage()) for path in paths]
    try:
        # Files are made durable, and their digests taken, while we look at them: nearly all of them stay as they are.
        with ThreadPoolExecutor(2, "windrow-sealed") as disk, ThreadPoolExecutor(2, "windrow-staged") as pool:
            sealed = [disk.submit(writer.seal, path) for path in renamed]
            looks = [pool.submit(_inspect_file, append, *each, horizon) for each in zip(renamed, sealed, strict=True)]
            for looked in looks:
                _add_file(append, looked.result())
    except BaseException:
        writer.discard(renamed)
        raise


def _inspect_file(append: Append, path: Path, sealing: Future[tuple[int, str]], horizon: int) -> _InspectedFile | None:
    opened = pq.ParquetFile(path, memory_map=True)
    _check_columns(opened, append)
    rows = opened.metadata.num_rows
    if not rows:
        sealing.result()
        append.store.writer.discard([path])
        return None
    model = append.model
    wanted = {model.time, model.expires, *model.key, *append.identity.key}
    needed = [name for name in append.schema.names if name in wanted]
    table = conform_to_schema(opened.read(needed), pa.schema([append.schema.field(name) for name in needed]))
    ts, exp, codes = classify_rows(table, append.definition, append.now, horizon)
    last = (ts if model.expires is None else exp)[codes == 0].max(initial=_NO_TIME)
    sample = pa.Table.from_batches([next(opened.iter_batches(SAMPLE_ROWS))])
    update_profile(append, table, None if last == _NO_TIME else int(last), sample)
    keys = model.encoded_keys(table) if model.key else None
    main = _count_numbered_rows(opened)
    kept = main == rows or (main > 0 and path.stat().st_size > _MAX_REWRITE_BYTES)
    cuts = None
    if kept and not codes[:main].any():
        cuts = _cut_segments(append, ts[:main], exp[:main], None if keys is None else keys.slice(0, main))
    sealed = sealing.result()
    first = append.identity
    known = keys if first.key == model.key else first.encoded_keys(table) if first.key else None
    return _InspectedFile(path, rows, main, ts, exp, codes, keys, known, cuts, sealed)


def _check_columns(opened: pq.ParquetFile, append: Append) -> None:
    """A column that is not there would be read as null, and a time of another form as another time."""
    missing = [name for name in append.schema.names if name not in opened.schema_arrow.names]
    if missing:
        raise StorageError(
            f"stream {append.definition.name!r}: Spark wrote no column {missing[0]!r}, which it was told to write; "
            "nothing was appended"
        )
    columns = [opened.schema.column(at) for at in range(len(opened.schema))]
    wide = [column.path for column in columns if column.physical_type == "INT96"]
    if wide:
        raise StorageError(
            f"stream {append.definition.name!r}: Spark wrote column {wide[0]!r} as INT96 although told otherwise; "
            "somebody changed spark.sql.parquet.outputTimestampType while rows were appended, append them again"
        )


def _count_numbered_rows(opened: pq.ParquetFile) -> int:
    """How many rows of a file have an arrival number; if these are not exactly 0, 1, 2…, none counts."""
    footer = opened.metadata
    place = next(at for at in range(footer.num_columns) if footer.schema.column(at).path == SEQ)
    found = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
    if all(item is not None and item.has_null_count and (item.has_min_max or not item.num_values) for item in found):
        count = footer.num_rows - sum(item.null_count for item in found)
        last = max((item.max for item in found if item.has_min_max), default=-1)
    else:
        numbers = opened.read([SEQ]).column(SEQ)
        count, last = len(numbers) - numbers.null_count, pc.max(numbers).as_py()
        last = -1 if last is None else last
    return count if last == count - 1 else 0


def _cut_segments(append: Append, ts: Int64s, exp: Int64s, keys: pa.Array | None) -> tuple[SegmentDraft, ...] | None:
    """The segments of rows in storage order; None if they are not."""
    slots = append.model.slots(exp)
    partitioner = append.layout.partitioner()
    if partitioner.columns == 1:
        values, starts = [0], [0]
    else:
        try:
            found, begins = native_rows.find_run_starts(partitioner.columns_of(slots))
        except ValueError:
            return None
        values, starts = found.tolist(), begins.tolist()
    stops = [*starts[1:], len(ts)]
    if not all(_are_expiries_sorted(keys, exp, start, stop) for start, stop in zip(starts, stops, strict=True)):
        return None
    try:
        return tuple(
            draft_segment(value, start, stop, ts, exp, slots, keys)
            for value, start, stop in zip(values, starts, stops, strict=True)
        )
    except ValueError:
        return None  # the directory found a key below the one before it


def _are_expiries_sorted(keys: pa.Array | None, exp: Int64s, start: int, stop: int) -> bool:
    """Whether expiries ascend within each key; that the keys ascend, their directory notices."""
    falls = np.flatnonzero(exp[start + 1 : stop] < exp[start : stop - 1]) + start
    if keys is None or not len(falls):
        return not len(falls)
    return not pc.any(pc.equal(keys.take(pa.array(falls)), keys.take(pa.array(falls + 1)))).as_py()


def _add_file(append: Append, looked: _InspectedFile | None) -> None:
    if looked is None:
        return
    append.count(looked.ts, looked.exp, looked.identity)
    taken = looked.codes == 0
    if not taken.all():
        append.reject(_read_rows(append, looked.path, ~taken).select(append.schema.names), looked.codes[~taken])
    left = taken
    if looked.cuts is not None:
        ts = looked.ts[: looked.main]
        events = pack_histogram(*native_rows.histogram(append.model.slots(ts)))
        append.adopt(StagedFile(looked.path, looked.rows, *looked.sealed, looked.cuts, events), int(ts.max()))
        left = taken.copy()
        left[: looked.main] = False
    if left.any():
        rows = _read_rows(append, looked.path, left)
        append.stage(
            rows.select(append.schema.names), looked.ts[left], looked.exp[left], _rank_arrivals(rows.column(SEQ))
        )
    if looked.cuts is None:
        append.store.writer.discard([looked.path])


def _rank_arrivals(seq: pa.ChunkedArray) -> Int64s:
    """Arrival numbers from 0 on, rows that have none last."""
    order = pc.sort_indices(seq).to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _read_rows(append: Append, path: Path, wanted: Any) -> pa.Table:
    """Some rows of a staged file, in full, with `_seq`."""
    schema = append.schema.append(pa.field(SEQ, pa.int64()))
    picked: pa.Table = pq.ParquetFile(path, memory_map=True).read().filter(pa.array(wanted))
    return conform_to_schema(picked, pa.schema([field.with_nullable(True) for field in schema]))
