"""Writers of rows: a table on the terminal, CSV or JSON lines on stdout, or a file in one of four formats.

A file appears under its name only when it is complete.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.cli.terminal import ProgressCallback, format_cell, print_table
from windrow.errors import StorageError, WindowError

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS = 20
"""A table shows so many rows unless the user gives a limit."""

WriteBytes = Callable[[bytes], Any]


def limit_rows(reader: "pa.RecordBatchReader", limit: int | None) -> "pa.RecordBatchReader":
    """Keep the first `limit` rows."""
    import pyarrow as pa

    if limit is None:
        return reader

    def pieces() -> "Iterator[pa.RecordBatch]":
        remaining = limit
        for batch in reader if remaining > 0 else ():
            yield batch.slice(0, remaining)
            remaining -= batch.num_rows
            if remaining <= 0:
                return

    return pa.RecordBatchReader.from_batches(reader.schema, pieces())


def show_rows(reader: "pa.RecordBatchReader", *, records: bool = False) -> int:
    """Print rows as a table, or one column a line; return how many."""
    import pyarrow as pa

    from windrow.formats.text import json_values

    is_ = pa.types
    numbers = [
        f.name for f in reader.schema if is_.is_integer(f.type) or is_.is_floating(f.type) or is_.is_decimal(f.type)
    ]
    rows: list[tuple[str, ...]] = []
    for batch in reader:
        columns = [map(format_cell, json_values(*pair)) for pair in zip(batch.columns, batch.schema, strict=True)]
        rows.extend(zip(*columns, strict=True))
    print_table(reader.schema.names, rows, right=numbers, records=records)
    return len(rows)


def print_csv(reader: "pa.RecordBatchReader") -> None:
    """Print rows as CSV."""
    from windrow.formats.text import write_csv

    write_csv(reader, reader.schema, open_stdout())


def print_json(rows: "Iterable[pa.RecordBatch]") -> None:
    """Print rows as JSON, one object a line."""
    from windrow.formats.text import write_json_lines

    write_json_lines(rows, open_stdout())


def open_stdout() -> WriteBytes:
    """Give a function that writes bytes to stdout."""
    sys.stdout.flush()
    stream = sys.stdout.buffer

    def write(data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:  # with PYTHONUNBUFFERED a pipe may accept only a part
            unwritten = unwritten[stream.write(unwritten) :]
        stream.flush()

    return write


def write_file(reader: "pa.RecordBatchReader", path: str, report_progress: ProgressCallback) -> int:
    """Write rows to a file whose suffix tells the format; return how many."""
    target = Path(path)
    suffix = target.suffix.lower().lstrip(".")
    codec = _CODECS.get(suffix)
    suffix = suffix if codec is None else target.with_suffix("").suffix.lower().lstrip(".")
    if suffix not in _WRITERS or (codec is not None and suffix not in ("csv", "json", "jsonl")):
        raise WindowError(f"{path} has no suffix that tells its format; use one of .{', .'.join(_WRITERS)}, or .csv.gz")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise StorageError(f"{path} cannot be written: {'it is' if target.is_dir() else 'there is no'} such folder")
    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        row_count = _WRITERS[suffix](reader, hidden, report_progress, codec)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)
    return row_count


def convert_for_parquet(reader: "pa.RecordBatchReader") -> "pa.RecordBatchReader":
    """Make of values that have no type in Parquet text."""
    import pyarrow as pa

    from windrow.formats.text import is_opaque

    def is_unsupported(kind: pa.DataType) -> bool:
        return bool(pa.types.is_interval(kind) or pa.types.is_union(kind) or is_opaque(kind))

    return _convert_to_text(reader, is_unsupported)


def convert_for_arrow(reader: "pa.RecordBatchReader") -> "pa.RecordBatchReader":
    """Make dictionaries plain, since they may not change within an IPC file, and DuckDB's own types text."""
    from windrow.formats.text import is_opaque

    return _decode_dictionaries(_convert_to_text(reader, is_opaque))


def _write_parquet(reader: "pa.RecordBatchReader", path: Path, report_progress: ProgressCallback, _: str | None) -> int:
    import pyarrow.parquet as pq

    return _write_batches(convert_for_parquet(reader), report_progress, lambda schema: pq.ParquetWriter(path, schema))


def _write_arrow(reader: "pa.RecordBatchReader", path: Path, report_progress: ProgressCallback, _: str | None) -> int:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink:
        return _write_batches(convert_for_arrow(reader), report_progress, lambda schema: pa.ipc.new_file(sink, schema))


def _write_batches(
    rows: "pa.RecordBatchReader", report_progress: ProgressCallback, open_: Callable[["pa.Schema"], Any]
) -> int:
    row_count = 0
    with open_(rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
            row_count += batch.num_rows
            report_progress(row_count)
    return row_count


def _convert_to_text(
    reader: "pa.RecordBatchReader", is_unsupported: Callable[["pa.DataType"], bool]
) -> "pa.RecordBatchReader":
    """Make names of columns distinct, and convert to text the types that the file's format does not have."""
    import pyarrow as pa

    from windrow.formats.text import BITS, contains_type, distinct_names, format_column

    fields: pa.Schema = reader.schema
    as_text = [contains_type(field.type, is_unsupported) or field.metadata == BITS for field in fields]
    schema = pa.schema(
        [
            pa.field(name, pa.string()) if in_text else field.with_name(name)
            for name, field, in_text in zip(distinct_names(fields.names), fields, as_text, strict=True)
        ],
        fields.metadata,
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        for batch in reader:
            columns = [
                format_column(column, field) if in_text else column
                for column, field, in_text in zip(batch.columns, fields, as_text, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, pieces())


def _decode_dictionaries(reader: "pa.RecordBatchReader") -> "pa.RecordBatchReader":
    import pyarrow as pa

    has_dictionary = [pa.types.is_dictionary(field.type) for field in reader.schema]
    schema = pa.schema(
        [
            field.with_type(field.type.value_type) if decode else field
            for field, decode in zip(reader.schema, has_dictionary, strict=True)
        ],
        reader.schema.metadata,
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        for batch in reader:
            columns = [
                column.dictionary_decode() if decode else column
                for column, decode in zip(batch.columns, has_dictionary, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, pieces())


def _write_csv(reader: "pa.RecordBatchReader", path: Path, report_progress: ProgressCallback, codec: str | None) -> int:
    from windrow.formats.text import write_csv

    with _open_sink(path, codec) as sink:
        return write_csv(reader, reader.schema, sink.write, report_progress)


def _write_json(
    reader: "pa.RecordBatchReader", path: Path, report_progress: ProgressCallback, codec: str | None
) -> int:
    from windrow.formats.text import write_json_lines

    with _open_sink(path, codec) as sink:
        return write_json_lines(reader, sink.write, report_progress)


def _open_sink(path: Path, codec: str | None) -> Any:
    import pyarrow as pa

    return path.open("wb") if codec is None else pa.CompressedOutputStream(str(path), codec)


_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
"""What a file of text may be packed with, by its last suffix."""
_WRITERS: dict[str, Callable[["pa.RecordBatchReader", Path, ProgressCallback, str | None], int]] = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "csv": _write_csv,
    "json": _write_json,
    "jsonl": _write_json,
}
