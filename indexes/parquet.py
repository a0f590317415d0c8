"""Segment files: how they are written, and how row ranges of them are read again.

Row groups are sized in bytes and never straddle two segments, so that a row range costs what it holds and not more.
"""

import mmap
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windrow.errors import DamageError
from windrow.native import pages

_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 128 << 10
_WORTH_SAVING = 0.1
"""The share of a row's bytes that compressing a column must save."""
_DAMAGE = (pa.lib.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises when a file is not what it was."""
_CACHED_FOOTERS = 4096
_CACHED_MAPS = 1024
_JUDGED_FOR = 64
"""Files of one schema that are written before its columns are judged anew."""


_judged: dict[tuple[bytes, tuple[str, ...]], tuple[dict[str, Any], int]] = {}
"""By schema: how its columns are written, and for how many more files that judgement stands."""


class SegmentFileWriter:
    """Writes tables in storage order into one Parquet file; each `add` starts new row groups.

    Args:
        sink: An Arrow output stream.
        schema: Of the rows, with `_seq`.
        row_group_bytes: Aimed size of a row group.
        sorted_by: Columns whose minimum and maximum per row group are worth keeping.

    Which columns are worth a dictionary or compression is judged on the first rows.
    """

    def __init__(self, sink: Any, schema: pa.Schema, row_group_bytes: int, sorted_by: Sequence[str] = ()) -> None:
        self._sink = sink
        self._schema = schema
        self._row_group_bytes = row_group_bytes
        self._sorted_by = list(sorted_by)
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self.rows = 0

    def add(self, table: pa.Table, *, last: bool = True) -> None:
        """Append rows of one segment; `last` ends the segment, so that the next row group starts a new one."""
        self.rows += table.num_rows
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if last or self._pending_bytes >= 4 * self._row_group_bytes:
            self._flush()

    def _flush(self) -> None:
        table = pa.concat_tables(self._pending)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, self._schema, **self._settings(table))
        if table.num_rows:
            self._writer.write_table(table, row_group_size=group_rows(table, self._row_group_bytes))
        self._pending, self._pending_bytes = [], 0

    def _settings(self, table: pa.Table) -> dict[str, Any]:
        schema = (self._schema.serialize().to_pybytes(), tuple(self._sorted_by))
        settings, left = _judged.get(schema, ({}, 0))
        if left <= 0:
            if len(_judged) > _CACHED_FOOTERS:
                _judged.clear()
            settings, left = column_settings(table, self._sorted_by), _JUDGED_FOR
        _judged[schema] = settings, left - 1
        return settings

    def close(self) -> None:
        """Write what is pending and the footer."""
        if self._pending:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def __del__(self) -> None:
        # After a failure the sink is closed already: pyarrow would complain on stderr that it cannot write a footer.
        if self._writer is not None:
            self._writer.is_open = False


def group_rows(table: pa.Table, row_group_bytes: int) -> int:
    """Rows per row group so that each holds about `row_group_bytes`, of equal size."""
    if not table.num_rows:
        return 1
    groups = max(1, round(table.nbytes / row_group_bytes))
    return int(max(32, -(-table.num_rows // groups)))


def column_settings(sample: pa.Table, sorted_by: list[str]) -> dict[str, Any]:
    """Dictionary and compression only for columns that gain from them, judged on a few rows.

    Compression must pay for the row, not for the column: single rows are read by page, and squeezing eight bytes
    beside a thousand would only make each of them dearer.
    """
    rows = max(1, min(_SAMPLE_ROWS, sample.num_rows))
    picked = sample.slice(0, max(64, min(rows, _SAMPLE_BYTES * sample.num_rows // max(1, sample.nbytes))))
    total = max(1, picked.nbytes)
    codec = pa.Codec("lz4_raw")
    dictionary, squeezed = [], []
    for field, column in zip(picked.schema, picked.columns, strict=True):
        if not pa.types.is_nested(field.type) and _repeats(column):
            dictionary.append(field.name)
        elif _saving(column, codec) > _WORTH_SAVING * total:
            squeezed.append(field.name)
    nested = any(pa.types.is_nested(field.type) for field in picked.schema)
    codecs = {name: "lz4" if name in squeezed else "none" for name in picked.schema.names}
    return {
        "use_dictionary": dictionary or False,
        "write_statistics": [name for name in sorted_by if _has_extremes(picked.schema.field(name).type)] or False,
        "version": "2.6",
        "compression": ("lz4" if squeezed else "none") if nested else codecs,
    }


def _has_extremes(kind: pa.DataType) -> bool:
    """Whether minimum and maximum are safe to write.

    Those of floats leave NaN out, and readers would then miss such rows; DuckDB 2.0.0 answers ``IS DISTINCT FROM``
    wrongly for text of which they say that it is all one value, where there are nulls beside it.
    """
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(plain) or pa.types.is_temporal(plain) or pa.types.is_decimal(plain))


def _repeats(column: pa.ChunkedArray) -> bool:
    if pa.types.is_dictionary(column.type):
        return True
    if pa.types.is_boolean(column.type) or pa.types.is_null(column.type) or len(column) < 64:
        return False
    return int(pc.count_distinct(column, mode="all").as_py()) * 8 <= len(column)


def _saving(column: pa.ChunkedArray, codec: pa.Codec) -> float:
    """Bytes that compression saves."""
    if not len(column) or pa.types.is_null(column.type):
        return 0.0
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    compact = pa.concat_arrays([array, array.slice(0, 0)]) if array.offset or array.nbytes < column.nbytes else array
    buffers = [buffer for buffer in compact.buffers() if buffer is not None]
    plain = sum(min(buffer.size, array.nbytes) for buffer in buffers)
    shrunk = sum(len(codec.compress(buffer.slice(0, min(buffer.size, array.nbytes)))) for buffer in buffers)
    return max(0.0, float(plain - shrunk))


class FileReader:
    """Reads row ranges of segment files under one root, keeping footers (not file handles) in memory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, np.ndarray[Any, Any]]] = OrderedDict()
        self._maps: OrderedDict[str, tuple[pa.Schema, mmap.mmap, pages.Layout]] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, file: str) -> Path:
        """Where a file of the catalog lies."""
        return self._root / file

    def open(self, file: str) -> tuple[pq.ParquetFile, Any]:
        """An open Parquet file and the first row of each of its row groups (with the total at the end)."""
        with self._lock:
            known = self._footers.get(file)
        try:
            source = pa.memory_map(str(self.path(file)))
            opened = pq.ParquetFile(source, metadata=known[0] if known else None)
        except FileNotFoundError:
            raise _missing(file) from None
        except _DAMAGE as error:
            raise DamageError(
                f"segment file {file} cannot be read ({_first_line(error)}); run 'windrow check'"
            ) from None
        if known is None:
            footer = opened.metadata
            counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            known = (footer, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64))
            with self._lock:
                self._footers[file] = known
                while len(self._footers) > _CACHED_FOOTERS:
                    self._footers.popitem(last=False)
        return opened, known[1]

    def mapped(self, file: str, schema: pa.Schema) -> tuple[mmap.mmap, pages.Layout]:
        """A whole file as memory, and where its columns lie, for reading single rows without its row groups.

        Args:
            file: Of the catalog.
            schema: The stream's schema.
        """
        with self._lock:
            known = self._maps.get(file)
        if known is not None and known[0] is schema:
            return known[1], known[2]
        try:
            with self.path(file).open("rb") as stream:
                memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            layout = pages.open_layout(memory, schema)
        except FileNotFoundError:
            raise _missing(file) from None
        except (pages.Damaged, pages.Declined, OSError, ValueError) as error:
            raise DamageError(f"segment file {file} is damaged ({_first_line(error)}); run 'windrow check'") from None
        with self._lock:
            self._maps[file] = (schema, memory, layout)
            while len(self._maps) > _CACHED_MAPS:
                self._maps.popitem(last=False)
        return memory, layout

    def forget(self, files: Iterable[str]) -> None:
        """Drop what is known of files that are gone."""
        with self._lock:
            for file in files:
                self._footers.pop(file, None)
                self._maps.pop(file, None)

    def retain(self, folder: str, files: set[str]) -> None:
        """Let go of maps of files below `folder` that are not in `files`: a map keeps a deleted file's space."""
        with self._lock:
            for file in [file for file in self._maps if file.startswith(folder) and file not in files]:
                del self._maps[file]

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
            table = read_groups(opened, groups, wanted, file)
            low, high = int(firsts[groups[0]]), int(firsts[groups[-1] + 1])
            if low < start or high > stop:
                table = table.slice(max(0, start - low), min(high, stop) - max(low, start))
            yield table


def read_groups(opened: pq.ParquetFile, groups: list[int], columns: list[str], file: str) -> pa.Table:
    """Row groups of an open file, with damage told in our words."""
    try:
        return opened.read_row_groups(groups, columns=columns, use_threads=False)
    except _DAMAGE as error:
        raise DamageError(f"segment file {file} is damaged ({_first_line(error)}); run 'windrow check'") from None


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema`: older files lack added columns, Spark's files lack Arrow's own types."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            column = table.column(at)
            columns.append(column if column.type.equals(field.type) else _cast(column, field.type))
    return pa.table(columns, schema=schema) if columns else table.select([])


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([_encode(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _encode(chunk: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
    return plain.cast(kind.value_type).dictionary_encode().cast(kind)


def _missing(file: str) -> DamageError:
    return DamageError(f"segment file {file} is missing; run 'windrow check' to see what is affected")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
