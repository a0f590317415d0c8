"""Writing segment files: rows gathered in storage order, row groups that never hold rows of two segments.

Rows that gain from neither dictionary nor compression go straight from where they lie into the file's pages
(`native/parquet_writer.pyx`); pyarrow writes the others. Which columns gain is decided on a few rows of a stream, and
kept for the files that follow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windrow.indexes.row_model import Int64s
from windrow.native import parquet_writer

WriterSettings = dict[str, Any]
"""How columns are written: arguments of pyarrow's writer."""

# What is worth a dictionary or compression, as shares of a row's bytes (update and probe lines of `bench core`).
_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 128 << 10
_COLUMN_SAVING = 0.1
"""Compressing a column must save so much."""
_ROW_SAVING = 0.25
"""All compressed columns together must save so much, where no column has a dictionary: otherwise rows are written, and
read, as they are. A search key that repeats, compressed alone, made probes of a view twenty times as long and saved a
seventh of its bytes."""
_DICTIONARY_SHARE = 0.02
"""A column of repeating text must have so much to get a dictionary; one of numbers `_COLUMN_SAVING`."""
_FILES_PER_CHOICE = 64
"""Files that are written before the next choice."""


class EncodingChooser:
    """Chooses how the files of one stream are written, and keeps to it for some files while the schema stays the same.

    Every stream has its own: rows of one stream are alike, those of two streams with the same columns need not be.
    """

    def __init__(self) -> None:
        self._choice: tuple[pa.Schema, list[str], WriterSettings] | None = None
        self._files_left = 0

    def choose_settings(self, table: pa.Table, order: Int64s | None, sorted_by: Sequence[str]) -> WriterSettings:
        """How a file that begins with these rows is written.

        Args:
            table: Rows.
            order: Which of them, in the order of the file; None for all as they are.
            sorted_by: Columns whose minimum and maximum per row group are worth keeping.
        """
        names, choice = list(sorted_by), self._choice
        self._files_left -= 1
        if choice is not None and self._files_left >= 0 and choice[0].equals(table.schema) and choice[1] == names:
            return choice[2]
        sample = table.slice(0, _SAMPLE_ROWS) if order is None else table.take(pa.array(order[:_SAMPLE_ROWS]))
        settings = choose_column_settings(sample, names)
        self._choice, self._files_left = (table.schema, names, settings), _FILES_PER_CHOICE - 1
        return settings


def is_plain(settings: WriterSettings) -> bool:
    """Whether no column has a dictionary or is compressed."""
    codecs = settings["compression"]
    used = {codecs} if isinstance(codecs, str) else set(codecs.values())
    return not settings["use_dictionary"] and used <= {"none"}


def choose_column_settings(sample: pa.Table, sorted_by: list[str]) -> WriterSettings:
    """Dictionary and compression only for columns that gain from them, decided on a few rows.

    Compression must save a share of the row, not of the column: single rows are read by page, and to compress eight
    bytes beside a thousand would only make each of them slower to read.
    """
    rows = max(1, min(_SAMPLE_ROWS, sample.num_rows))
    picked = sample.slice(0, max(64, min(rows, _SAMPLE_BYTES * sample.num_rows // max(1, sample.nbytes))))
    total = max(1, picked.nbytes)
    codec = pa.Codec("lz4_raw")
    dictionary, compressed = [], {}
    for field, column in zip(picked.schema, picked.columns, strict=True):
        if pa.types.is_dictionary(field.type) or (
            column.nbytes > _least_share(field.type) * total and _repeats(column)
        ):
            dictionary.append(field.name)
        elif (saved := _saving(column, codec)) > _COLUMN_SAVING * total:
            compressed[field.name] = saved
    if not dictionary and sum(compressed.values()) < _ROW_SAVING * total:
        compressed.clear()
    nested = any(pa.types.is_nested(field.type) for field in picked.schema)
    codecs = {name: "lz4" if name in compressed else "none" for name in picked.schema.names}
    return {
        "use_dictionary": dictionary or False,
        "write_statistics": [name for name in sorted_by if _has_extremes(picked.schema.field(name).type)] or False,
        "version": "2.6",
        "write_page_checksum": True,
        "compression": ("lz4" if compressed else "none") if nested else codecs,
    }


def _least_share(kind: pa.DataType) -> float:
    """The share of a row's bytes that a column must have for a dictionary to be worth it."""
    if pa.types.is_nested(kind):
        return 1.0
    return _COLUMN_SAVING if pa.types.is_primitive(kind) else _DICTIONARY_SHARE


def _has_extremes(kind: pa.DataType) -> bool:
    """Whether minimum and maximum are safe to write.

    Those of floats leave NaN out, and readers would then miss such rows; DuckDB 2.0.0 answers ``IS DISTINCT FROM``
    wrongly for text of which they say that it is all one value, where there are nulls beside it.
    """
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(plain) or pa.types.is_temporal(plain) or pa.types.is_decimal(plain))


def _repeats(column: pa.ChunkedArray) -> bool:
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


class SegmentFileWriter:
    """Writes rows in storage order into one Parquet file; each segment starts new row groups.

    Args:
        sink: An Arrow output stream.
        schema: Of the rows, with `_seq`.
        row_group_bytes: Aimed size of a row group.
        sorted_by: Columns whose minimum and maximum per row group are worth keeping.
        chooser: Chooses which columns get a dictionary or compression; without one, the first rows decide.
    """

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        row_group_bytes: int,
        sorted_by: Sequence[str] = (),
        chooser: EncodingChooser | None = None,
    ) -> None:
        self._sink = sink
        self._chooser = chooser or EncodingChooser()
        self._schema = schema
        self._row_group_bytes = row_group_bytes
        self._sorted_by = list(sorted_by)
        self._output: _PlainOutput | _ArrowOutput | None = None
        self._pending: list[tuple[pa.Table, Int64s | None]] = []
        self._pending_bytes = 0
        self.rows = 0

    @property
    def digest(self) -> str | None:
        """XXH3 of the closed file's bytes, if it is known without reading them again."""
        return self._output.pages.digest if isinstance(self._output, _PlainOutput) else None

    def add(self, table: pa.Table, order: Int64s | None = None, *, last: bool = True) -> None:
        """Append rows of one segment: those of `table`, or those that `order` names, in its order.

        `last` ends the segment, so that the next row group starts a new one.
        """
        rows = table.num_rows if order is None else len(order)
        self.rows += rows
        self._pending.append((table, order))
        self._pending_bytes += table.nbytes * rows // max(1, table.num_rows)
        if last or self._pending_bytes >= 4 * self._row_group_bytes:
            self._flush()

    def _flush(self) -> None:
        table, order = _join(self._pending)
        rows, size = table.num_rows if order is None else len(order), self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._output is None:
            self._output = self._begin(table, order)
        if rows:
            self._output.write(table, order, compute_group_rows(rows, size, self._row_group_bytes))

    def _begin(self, table: pa.Table, order: Int64s | None) -> "_PlainOutput | _ArrowOutput":
        settings = self._chooser.choose_settings(table, order, self._sorted_by)
        if is_plain(settings):
            try:
                return _PlainOutput(self._sink, self._schema, settings["write_statistics"] or ())
            except parquet_writer.Declined:
                pass
        return _ArrowOutput(self._sink, self._schema, settings)

    def close(self) -> None:
        """Write what is pending and the footer."""
        if self._pending:
            self._flush()
        if self._output is not None:
            self._output.close()


class _PlainOutput:
    """Writes rows as plain pages, by our own writer."""

    def __init__(self, sink: Any, schema: pa.Schema, extremes: Sequence[str]) -> None:
        self.pages = parquet_writer.PageWriter(sink, schema, extremes)

    def write(self, table: pa.Table, order: Int64s | None, per_group: int) -> None:
        columns = [_combine(column) for column in table.columns]
        picked = np.arange(table.num_rows, dtype=np.int64) if order is None else order
        for start in range(0, len(picked), per_group):
            self.pages.add_group(columns, picked[start : start + per_group])

    def close(self) -> None:
        self.pages.close()


class _ArrowOutput:
    """Writes rows by pyarrow, with dictionaries and compression."""

    def __init__(self, sink: Any, schema: pa.Schema, settings: dict[str, Any]) -> None:
        self._writer = pq.ParquetWriter(sink, schema, **settings)

    def write(self, table: pa.Table, order: Int64s | None, per_group: int) -> None:
        rows = table if order is None else table.take(pa.array(order))
        self._writer.write_table(rows, row_group_size=per_group)

    def close(self) -> None:
        self._writer.close()

    def __del__(self) -> None:
        # After a failure the sink is closed already: pyarrow would complain on stderr that it cannot write a footer.
        if hasattr(self, "_writer"):
            self._writer.is_open = False


def _combine(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _join(pending: Sequence[tuple[pa.Table, Int64s | None]]) -> tuple[pa.Table, Int64s | None]:
    """Several tables with their orders as one."""
    if len(pending) == 1:
        return pending[0]
    table = pa.concat_tables([piece for piece, _ in pending])
    if all(order is None for _, order in pending):
        return table, None
    orders, rows_before = [], 0
    for piece, order in pending:
        orders.append((np.arange(piece.num_rows, dtype=np.int64) if order is None else order) + rows_before)
        rows_before += piece.num_rows
    return table, np.concatenate(orders)


def compute_group_rows(rows: int, size: int, row_group_bytes: int) -> int:
    """Rows per row group so that each holds about `row_group_bytes`, of equal size."""
    groups = max(1, round(size / row_group_bytes))
    return int(max(32, -(-rows // groups)))
