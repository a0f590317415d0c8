"""Verification of the files that Spark staged, before they become part of an append.

Everything that Spark computed is computed again from the key and time columns: rejected rows are set apart, files are
cut into segments, and a file that is not in storage order is written again.
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
from windrow.row_checks import apply_checks, find_columns
from windrow.segment_files import StagedFile
from windrow.value_checks import check_values, is_checked

_NO_TIME = -(1 << 63)
_DIGEST_ROWS = 1 << 16
"""Rows that are read at a time for their digest and their checks."""
_MAX_REWRITE_BYTES = 64 << 20
"""A file up to this size is written again without its rejected rows; a larger one keeps them at its end, unused. Not
measured: bounds what an append writes twice."""


@dataclass(frozen=True)
class _InspectedFile:
    """What the inspection of one staged file found."""

    path: Path
    rows: int
    sorted_rows: int
    """The first rows, in storage order; the others were rejected or have still to be sorted."""
    ts: Int64s
    exp: Int64s
    codes: npt.NDArray[np.uint8]
    keys: pa.Array | None
    digest: int
    """Of all its rows."""
    cuts: tuple[SegmentDraft, ...] | None
    """None if the rows are not in storage order or the file is better written again."""
    sealed: tuple[int, str]


def add_staged_files(append: Append, paths: Sequence[Path], horizon: int) -> None:
    """Add staged files, in the order of arrival, to an append, which then has only to be committed."""
    writer = append.store.writer
    renamed = [path.rename(writer.stage()) for path in paths]
    try:
        # Files are synced and their digests computed meanwhile, because nearly all of them stay as they are.
        with ThreadPoolExecutor(2, "windrow-sealed") as disk, ThreadPoolExecutor(2, "windrow-staged") as pool:
            sealed = [disk.submit(writer.seal, path) for path in renamed]
            inspections = [
                pool.submit(_inspect_file, append, *pair, horizon) for pair in zip(renamed, sealed, strict=True)
            ]
            for inspection in inspections:
                _add_file(append, inspection.result())
    except BaseException:
        writer.discard(renamed)
        raise


def _inspect_file(append: Append, path: Path, sealing: Future[tuple[int, str]], horizon: int) -> _InspectedFile | None:
    file = pq.ParquetFile(path, memory_map=True)
    _check_columns(file, append)
    rows = file.metadata.num_rows
    if not rows:
        sealing.result()
        append.store.writer.discard([path])
        return None
    model = append.model
    key_and_time = {model.time, model.expires, *model.key, *find_columns(append.definition.checks, append.schema)}
    names = [name for name in append.schema.names if name in key_and_time]
    table = conform_to_schema(file.read(names), pa.schema([append.schema.field(name) for name in names]))
    ts, exp, codes = classify_rows(table, append.definition, append.now, horizon)
    codes = apply_checks(table, append.definition, codes)
    latest = (ts if model.expires is None else exp)[codes == 0].max(initial=_NO_TIME)
    sample = pa.Table.from_batches([next(file.iter_batches(SAMPLE_ROWS))])
    update_profile(append, table, None if latest == _NO_TIME else int(latest), sample)
    keys = model.encoded_keys(table) if model.key else None
    sorted_rows = _count_numbered_rows(file)
    keeps_file = sorted_rows == rows or (sorted_rows > 0 and path.stat().st_size > _MAX_REWRITE_BYTES)
    cuts = None
    if keeps_file and not codes[:sorted_rows].any():
        cuts = _cut_segments(
            append, ts[:sorted_rows], exp[:sorted_rows], None if keys is None else keys.slice(0, sorted_rows)
        )
    digest = check_rows(append, file)
    return _InspectedFile(path, rows, sorted_rows, ts, exp, codes, keys, digest, cuts, sealing.result())


def check_rows(append: Append, file: pq.ParquetFile) -> int:
    """Refuse values that SQL cannot hold, such as text that is not UTF-8; gives the digest of all rows if wanted."""
    definition, fields = append.definition, append.schema
    if not append.digests:
        fields = pa.schema([field for field in append.schema if is_checked(field.type)])
    digest = 0
    for batch in file.iter_batches(_DIGEST_ROWS, columns=fields.names) if fields.names else ():
        rows = conform_to_schema(pa.Table.from_batches([batch]), fields)
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            for chunk in column.chunks:
                judged = name in (definition.time, definition.expires)
                check_values(chunk, name, f"stream {definition.name!r}", rejected=judged)
        digest += append.digest(rows)
    return digest


def count_staged_files(append: Append, paths: Sequence[Path]) -> None:
    """Count the rows of staged files, to compare them with a batch that was appended before."""
    with ThreadPoolExecutor(2, "windrow-staged") as pool:
        files = [pq.ParquetFile(path, memory_map=True) for path in paths]
        for file, digest in zip(files, pool.map(lambda file: check_rows(append, file), files), strict=True):
            append.count(file.metadata.num_rows, digest)


def _check_columns(file: pq.ParquetFile, append: Append) -> None:
    """Refuse a missing column, which would be read as null, and times of another form."""
    missing = [name for name in append.schema.names if name not in file.schema_arrow.names]
    if missing:
        raise StorageError(
            f"stream {append.definition.name!r}: Spark wrote no column {missing[0]!r}, which it was told to write; "
            "nothing was appended"
        )
    columns = [file.schema.column(position) for position in range(len(file.schema))]
    int96 = [column.path for column in columns if column.physical_type == "INT96"]
    if int96:
        raise StorageError(
            f"stream {append.definition.name!r}: Spark wrote column {int96[0]!r} as INT96 although told otherwise; "
            "somebody changed spark.sql.parquet.outputTimestampType while rows were appended, append them again"
        )


def _count_numbered_rows(file: pq.ParquetFile) -> int:
    """Count the rows that have an arrival number; if these are not exactly 0, 1, 2…, there are none."""
    footer = file.metadata
    column = next(position for position in range(footer.num_columns) if footer.schema.column(position).path == SEQ)
    statistics = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
    if all(
        item is not None and item.has_null_count and (item.has_min_max or not item.num_values) for item in statistics
    ):
        count = footer.num_rows - sum(item.null_count for item in statistics)
        last = max((item.max for item in statistics if item.has_min_max), default=-1)
    else:
        numbers = file.read([SEQ]).column(SEQ)
        count, last = len(numbers) - numbers.null_count, pc.max(numbers).as_py()
        last = -1 if last is None else last
    return count if last == count - 1 else 0


def _cut_segments(append: Append, ts: Int64s, exp: Int64s, keys: pa.Array | None) -> tuple[SegmentDraft, ...] | None:
    """Cut rows in storage order into segments; None if they are in another order."""
    slots = append.model.slots(exp)
    partitioner = append.layout.partitioner()
    if partitioner.columns == 1:
        values, starts = [0], [0]
    else:
        try:
            found_values, found_starts = native_rows.find_run_starts(partitioner.columns_of(slots))
        except ValueError:
            return None
        values, starts = found_values.tolist(), found_starts.tolist()
    stops = [*starts[1:], len(ts)]
    if not all(_are_expiries_sorted(keys, exp, start, stop) for start, stop in zip(starts, stops, strict=True)):
        return None
    try:
        return tuple(
            draft_segment(value, start, stop, ts, exp, slots, keys)
            for value, start, stop in zip(values, starts, stops, strict=True)
        )
    except ValueError:
        return None  # the directory found a key that is less than the one before it


def _are_expiries_sorted(keys: pa.Array | None, exp: Int64s, start: int, stop: int) -> bool:
    """Whether expiries ascend within each key; the order of the keys is checked by the directory."""
    descents = np.flatnonzero(exp[start + 1 : stop] < exp[start : stop - 1]) + start
    if keys is None or not len(descents):
        return not len(descents)
    return not pc.any(pc.equal(keys.take(pa.array(descents)), keys.take(pa.array(descents + 1)))).as_py()


def _add_file(append: Append, inspected: _InspectedFile | None) -> None:
    if inspected is None:
        return
    append.count(inspected.rows, inspected.digest)
    accepted = inspected.codes == 0
    if not accepted.all():
        append.reject(
            _read_rows(append, inspected.path, ~accepted).select(append.schema.names), inspected.codes[~accepted]
        )
    to_sort = accepted
    if inspected.cuts is not None:
        ts = inspected.ts[: inspected.sorted_rows]
        events = pack_histogram(*native_rows.histogram(append.model.slots(ts)))
        append.adopt(
            StagedFile(inspected.path, inspected.rows, *inspected.sealed, inspected.cuts, events), int(ts.max())
        )
        to_sort = accepted.copy()
        to_sort[: inspected.sorted_rows] = False
    if to_sort.any():
        rows = _read_rows(append, inspected.path, to_sort)
        append.stage(
            rows.select(append.schema.names),
            inspected.ts[to_sort],
            inspected.exp[to_sort],
            _rank_arrivals(rows.column(SEQ)),
        )
    if inspected.cuts is None:
        append.store.writer.discard([inspected.path])


def _rank_arrivals(seq: pa.ChunkedArray) -> Int64s:
    """Number rows by arrival, from 0 on; rows without a number come last."""
    order = pc.sort_indices(seq).to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _read_rows(append: Append, path: Path, chosen: Any) -> pa.Table:
    """Read some rows of a staged file with all columns and `_seq`."""
    schema = append.schema.append(pa.field(SEQ, pa.int64()))
    rows: pa.Table = pq.ParquetFile(path, memory_map=True).read().filter(pa.array(chosen))
    return conform_to_schema(rows, pa.schema([field.with_nullable(True) for field in schema]))
