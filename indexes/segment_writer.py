"""Writing segment files: rows gathered in storage order, row groups that never hold rows of two segments.

pyarrow writes them. Each column gets the encoding that stores its rows in the fewest bytes, unless that makes them
slower to read for little: found by trying on some thousand rows, and kept for the stream's files that follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import leave_out_unused_values
from windrow.indexes.arrow_arrays import parquet as pq
from windrow.indexes.row_model import Int64s

WriterSettings = dict[str, Any]
"""How columns are written: arguments of pyarrow's writer."""

# How columns are encoded: set by the bytes, update and probe lines of `bench realistic` and `bench core`.
_SAMPLE_ROWS = 1 << 14
_SAMPLE_BYTES = 4 << 20
_SAMPLE_RUNS = 8
"""A sample is made of so many runs of neighbouring rows, spread over the file: the rows are sorted."""
_ENOUGH_ROWS = 256
"""Fewer rows are written as they are, if the stream's larger files have not shown what is best."""
_ENCODED_SHARE = 0.9
"""An encoding must bring a column to this share of its plain bytes."""
_COMPRESSED_SHARE = 0.6
"""Compression must bring a column to this share of its encoded bytes: a compressed page is read as a whole,"""
_COMPRESSED_SAVING = 1.0
"""and save so many bytes a row."""
_ZSTD_SHARE = 0.7
"""zstd must bring it to this share of LZ4's bytes, and save as much again: its pages take much longer to read."""
_FILES_PER_CHOICE = 64
"""Files that are written before the next choice."""
_PAGE_BYTES = 32 << 10
_PAGE_ROWS = 2048
"""Single rows of encoded columns are read by page."""
_OPEN_PAGE = 1 << 30
"""Where nothing has to be decoded, a page is a row group: a column of it is then handed out where it lies."""
_WORTHWHILE_SHARE = 0.95
"""What has to be decoded page by page must bring the rows to this share of their bytes."""
_COLUMN_BYTES = 16 << 10
"""Stored bytes of a column in a row group, at least: each has headers, a dictionary and statistics of its own."""
_GATHERED_BYTES = 32 << 20
"""Rows in memory that are gathered before row groups are cut."""

_PACKED = {
    "INT32": "DELTA_BINARY_PACKED",
    "INT64": "DELTA_BINARY_PACKED",
    "FLOAT": "BYTE_STREAM_SPLIT",
    "DOUBLE": "BYTE_STREAM_SPLIT",
    "BYTE_ARRAY": "DELTA_LENGTH_BYTE_ARRAY",
}
"""What values of a physical type are encoded as, where they do not repeat; DuckDB reads split bytes of no other."""


@dataclass(frozen=True)
class Encodings:
    """How the files of a stream are written, and what that makes of their rows."""

    settings: WriterSettings
    share: float = 1.0
    """Stored bytes for each byte in memory."""


class EncodingChooser:
    """Chooses how the files of one stream are written, and keeps to it for some files while the schema stays the same.

    Every stream has its own: rows of one stream are alike, those of two streams with the same columns need not be.
    """

    def __init__(self) -> None:
        self._choice: tuple[pa.Schema, list[str], Encodings] | None = None
        self._rows = 0
        self._files_left = 0

    def choose(self, table: pa.Table, order: Int64s | None, sorted_by: Sequence[str]) -> Encodings:
        """How a file that begins with these rows is written.

        Args:
            table: Rows.
            order: Which of them, in the order of the file; None for all as they are.
            sorted_by: Columns by which they are sorted.
        """
        names, choice, rows = list(sorted_by), self._choice, table.num_rows if order is None else len(order)
        self._files_left -= 1
        if choice is not None and choice[0].equals(table.schema) and choice[1] == names:
            # Many more rows may show more; much fewer show nothing new.
            more = rows >= 4 * self._rows and self._rows < _SAMPLE_ROWS
            if not more and (self._files_left >= 0 or 4 * rows < self._rows):
                return choice[2]
        encodings = choose_encodings(_sample(table, order), names)
        self._choice, self._rows, self._files_left = (table.schema, names, encodings), rows, _FILES_PER_CHOICE - 1
        return encodings


def _sample(table: pa.Table, order: Int64s | None) -> pa.Table:
    rows = table.num_rows if order is None else len(order)
    wanted = max(_ENOUGH_ROWS, min(_SAMPLE_ROWS, _SAMPLE_BYTES * table.num_rows // max(1, table.nbytes)))
    if rows > wanted:
        length = wanted // _SAMPLE_RUNS
        starts = np.linspace(0, rows - length, _SAMPLE_RUNS).astype(np.int64)
        picked = (starts[:, None] + np.arange(length)).reshape(-1)
        return table.take(pa.array(picked if order is None else order[picked]))
    return table if order is None else table.take(pa.array(order))


def choose_encodings(sample: pa.Table, sorted_by: list[str]) -> Encodings:
    """The encoding of each column that is worth its cost to readers, found by trying on some rows."""
    schema = sample.schema
    settings: WriterSettings = {
        "use_dictionary": [field.name for field in schema if pa.types.is_dictionary(field.type)] or False,
        # Texts behind their lengths are no slower to read than plain ones, and can be handed out where they lie.
        "column_encoding": {f.name: "DELTA_LENGTH_BYTE_ARRAY" for f in schema if _is_text(f.type)} or None,
        "compression": "none",
        "write_statistics": [field.name for field in schema if _has_extremes(field.type)] or False,
        "sorting_columns": _sorting_columns(schema, sorted_by),
        "version": "2.6",
        "write_page_checksum": True,
        "data_page_size": _OPEN_PAGE,
        "max_rows_per_page": _OPEN_PAGE,
    }
    if sample.num_rows < _ENOUGH_ROWS or not schema.names:
        return Encodings(settings)
    plain = _measure(sample, use_dictionary=False)
    kinds = {name: column.physical_type for name, column in plain.items()}
    # Of a column of Arrow dictionaries, or one inside another, pyarrow could not read every encoding again.
    flat = {field.name for field in schema if not pa.types.is_dictionary(field.type)}
    packings = {name: _PACKED[kind] for name, kind in kinds.items() if kind in _PACKED and name in flat}
    tried = {
        "plain": plain,
        "dictionary": _measure(sample, use_dictionary=True),
        "packed": _measure(sample, use_dictionary=False, column_encoding=packings),
    }
    chunks = {
        name: {way: columns[name] for way, columns in tried.items() if way in _ways(kind, packed=name in packings)}
        for name, kind in kinds.items()
    }
    choices = {name: _choose_column(chunks[name], sample.num_rows) for name in kinds}
    easy = {name: _choose_column(chunks[name]) for name in kinds}
    if sum(each.size for each in choices.values()) > _WORTHWHILE_SHARE * sum(each.size for each in easy.values()):
        choices = easy
    compressed = [name for name, choice in choices.items() if choice.codec != "none"]
    dictionary = {name for name, choice in choices.items() if choice.way == "dictionary"}
    dictionary |= set(settings["use_dictionary"] or ())
    packed = {name: packings[name] for name in packings.keys() - dictionary if choices[name].way == "packed"}
    settings |= {"use_dictionary": sorted(dictionary) or False, "column_encoding": packed or None}
    settings["write_page_index"] = bool(settings["write_statistics"])
    if compressed:
        light = _measure(sample, "lz4", use_dictionary=settings["use_dictionary"], column_encoding=packed or None)
        for name in compressed:
            larger, smaller = light[name].total_compressed_size, choices[name].size
            if smaller > _ZSTD_SHARE * larger or larger - smaller < _COMPRESSED_SAVING * sample.num_rows:
                choices[name] = replace(choices[name], size=larger, codec="lz4")
        codecs = {name: choice.codec for name, choice in choices.items()}
        levels = {name: 1 for name, codec in codecs.items() if codec == "zstd"}
        settings |= {"compression": codecs, "compression_level": levels or None}
    if choices is not easy:
        settings |= {"data_page_size": _PAGE_BYTES, "max_rows_per_page": _PAGE_ROWS}
    return Encodings(settings, min(1.0, sum(choice.size for choice in choices.values()) / max(1, sample.nbytes)))


@dataclass(frozen=True)
class _Choice:
    """How one column is written, and the bytes that its sample then takes."""

    way: str
    size: int
    codec: str = "none"


def _ways(kind: str, *, packed: bool) -> tuple[str, ...]:
    """How columns of a physical type may be written, if their values can be packed or not."""
    if kind == "BOOLEAN":
        return ("plain",)
    if not packed:
        return "plain", "dictionary"
    return ("packed", "dictionary") if kind == "BYTE_ARRAY" else ("plain", "packed", "dictionary")


def _choose_column(tried: Mapping[str, pq.ColumnChunkMetaData], rows: int | None = None) -> _Choice:
    """The smallest encoding that is worth it; without `rows`, of those from which single values are read at once."""
    easy = [way for way in tried if rows is not None or way != "packed" or "plain" not in tried]
    weighed = {way: tried[way].total_uncompressed_size * (_ENCODED_SHARE if way == "plain" else 1) for way in easy}
    way = min(easy, key=weighed.__getitem__)
    size = tried[way].total_uncompressed_size
    best = min(easy, key=lambda each: tried[each].total_compressed_size)
    least = tried[best].total_compressed_size
    if rows is not None and least < _COMPRESSED_SHARE * size and size - least > _COMPRESSED_SAVING * rows:
        return _Choice(best, least, "zstd")
    return _Choice(way, size)


def _measure(sample: pa.Table, codec: str = "zstd", **settings: Any) -> dict[str, pq.ColumnChunkMetaData]:
    """Write rows, compressed, into memory; gives what each column (by its path, if it is nested) then takes."""
    sink = pa.BufferOutputStream()
    options: WriterSettings = {"compression": codec, "data_page_size": _PAGE_BYTES, "max_rows_per_page": _PAGE_ROWS}
    options |= {"compression_level": 1 if codec == "zstd" else None, "store_schema": False}
    with pq.ParquetWriter(sink, sample.schema, write_statistics=False, version="2.6", **options, **settings) as writer:
        writer.write_table(sample, row_group_size=sample.num_rows)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    columns = (group.column(position) for position in range(group.num_columns))
    return {column.path_in_schema: column for column in columns}


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _has_extremes(kind: pa.DataType) -> bool:
    """Whether minimum and maximum are safe to write.

    Those of floats leave NaN out, and readers would then miss such rows; DuckDB 2.0.0 answers ``IS DISTINCT FROM``
    wrongly for text of which they say that it is all one value, where there are nulls beside it.
    """
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(plain) or pa.types.is_temporal(plain) or pa.types.is_decimal(plain))


def _sorting_columns(schema: pa.Schema, sorted_by: list[str]) -> list[pq.SortingColumn] | None:
    """By which columns each row group is sorted, as far as other engines order their values as we do."""
    if any(pa.types.is_nested(field.type) for field in schema):  # columns are then numbered in another way
        return None
    columns = []
    for name in sorted_by:
        if pa.types.is_floating(schema.field(name).type):
            break
        columns.append(pq.SortingColumn(schema.get_field_index(name), descending=False, nulls_first=True))
    return columns or None


class SegmentFileWriter:
    """Writes rows in storage order into one Parquet file; each segment starts new row groups.

    Args:
        sink: An Arrow output stream.
        schema: Of the rows, with `_seq`.
        row_group_bytes: Aimed size of a row group, as stored; more where there are many columns.
        sorted_by: Columns by which the rows of a segment are sorted.
        chooser: Chooses how columns are encoded; without one, the first rows decide.
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
        self._row_group_bytes = max(row_group_bytes, _COLUMN_BYTES * len(schema))
        self._sorted_by = list(sorted_by)
        self._writer: pq.ParquetWriter | None = None
        self._share = 1.0
        self._pending: list[tuple[pa.Table, Int64s | None]] = []
        self._pending_bytes = 0
        self.rows = 0

    def add(self, table: pa.Table, order: Int64s | None = None, *, last: bool = True) -> None:
        """Append rows of one segment: those of `table`, or those that `order` names, in its order.

        `last` ends the segment, so that the next row group starts a new one.
        """
        rows = table.num_rows if order is None else len(order)
        self.rows += rows
        self._pending.append((table, order))
        self._pending_bytes += table.nbytes * rows // max(1, table.num_rows)
        if last or self._pending_bytes >= _GATHERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        table, order = _join(self._pending)
        rows, size = table.num_rows if order is None else len(order), self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._writer is None:
            encodings = self._chooser.choose(table, order, self._sorted_by)
            self._writer = pq.ParquetWriter(self._sink, self._schema, **encodings.settings)
            self._share = encodings.share
        if rows:
            per_group = compute_group_rows(rows, int(size * self._share), self._row_group_bytes)
            for start in range(0, rows, per_group):  # a sorted copy of all rows would take their memory again
                picked = slice(start, start + per_group)
                group = table[picked] if order is None else table.take(pa.array(order[picked]))
                self._writer.write_table(leave_out_unused_values(group), row_group_size=per_group)

    def close(self) -> None:
        """Write what is pending and the footer."""
        if self._pending:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def __del__(self) -> None:
        # After a failure the sink is closed already: pyarrow would complain on stderr that it cannot write a footer.
        writer = getattr(self, "_writer", None)
        if writer is not None:
            writer.is_open = False


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
