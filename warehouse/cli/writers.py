"""Rows for whoever asked: a table on the terminal, CSV or JSON lines on stdout, or a file."""

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
"""Rows that a table shows if no limit is given."""

WriteBytes = Callable[[bytes], Any]


def limit_rows(reader: "pa.RecordBatchReader", limit: int | None) -> "pa.RecordBatchReader":
    """The first `limit` rows."""
    import pyarrow as pa

    if limit is None:
        return reader

    def pieces() -> "Iterator[pa.RecordBatch]":
        left = limit
        for batch in reader if left > 0 else ():
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    return pa.RecordBatchReader.from_batches(reader.schema, pieces())


def show_rows(reader: "pa.RecordBatchReader") -> int:
    """Print rows as a table; gives how many."""
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
    print_table(reader.schema.names, rows, right=numbers)
    return len(rows)


def print_csv(reader: "pa.RecordBatchReader") -> None:
    """Rows as CSV on stdout."""
    from windrow.formats.text import write_csv

    write_csv(reader, reader.schema, open_stdout())


def print_json(rows: "Iterable[pa.RecordBatch]") -> None:
    """Rows as JSON on stdout, one object a line."""
    from windrow.formats.text import write_json_lines

    write_json_lines(rows, open_stdout())


def open_stdout() -> WriteBytes:
    """Bytes onto stdout."""
    sys.stdout.flush()
    stream = sys.stdout.buffer

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # with PYTHONUNBUFFERED a pipe may take less than all
            rest = rest[stream.write(rest) :]
        stream.flush()

    return write


def write_file(reader: "pa.RecordBatchReader", path: str, moved: ProgressCallback) -> int:
    """Write rows to a file whose suffix tells the format; the file is complete when it appears. Gives how many rows."""
    target = Path(path)
    suffix = target.suffix.lower().lstrip(".")
    if suffix not in _WRITERS:
        raise WindowError(f"{path} has no suffix that tells its format; use one of .{', .'.join(_WRITERS)}")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise StorageError(f"{path} cannot be written: {'it is' if target.is_dir() else 'there is no'} such folder")
    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        done = _WRITERS[suffix](reader, hidden, moved)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)
    return done


def _write_parquet(reader: "pa.RecordBatchReader", path: Path, moved: ProgressCallback) -> int:
    """A Parquet file; what the format has no type for is written as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from windrow.formats.text import is_opaque

    def strange(kind: pa.DataType) -> bool:
        return bool(pa.types.is_interval(kind) or pa.types.is_union(kind) or is_opaque(kind))

    return _write_batches(_convert_to_text(reader, strange), moved, lambda schema: pq.ParquetWriter(path, schema))


def _write_arrow(reader: "pa.RecordBatchReader", path: Path, moved: ProgressCallback) -> int:
    """An IPC file, which may not change a dictionary on the way: dictionary columns are written plain."""
    import pyarrow as pa

    from windrow.formats.text import is_opaque

    with pa.OSFile(str(path), "wb") as sink:
        return _write_batches(
            _decode_dictionaries(_convert_to_text(reader, is_opaque)),
            moved,
            lambda schema: pa.ipc.new_file(sink, schema),
        )


def _write_batches(rows: "pa.RecordBatchReader", moved: ProgressCallback, open_: Callable[["pa.Schema"], Any]) -> int:
    done = 0
    with open_(rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
            done += batch.num_rows
            moved(done)
    return done


def _convert_to_text(
    reader: "pa.RecordBatchReader", strange: Callable[["pa.DataType"], bool]
) -> "pa.RecordBatchReader":
    """Rows with no name twice, and with text instead of types that are strange to the file's format."""
    import pyarrow as pa

    from windrow.formats.text import BITS, contains_type, distinct_names, format_column

    given: pa.Schema = reader.schema
    odd = [contains_type(field.type, strange) or field.metadata == BITS for field in given]
    schema = pa.schema(
        [
            pa.field(name, pa.string()) if told else field.with_name(name)
            for name, field, told in zip(distinct_names(given.names), given, odd, strict=True)
        ]
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        for batch in reader:
            columns = [
                format_column(column, field) if told else column
                for column, field, told in zip(batch.columns, given, odd, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, pieces())


def _decode_dictionaries(reader: "pa.RecordBatchReader") -> "pa.RecordBatchReader":
    import pyarrow as pa

    coded = [pa.types.is_dictionary(field.type) for field in reader.schema]
    schema = pa.schema(
        [f.with_type(f.type.value_type) if code else f for f, code in zip(reader.schema, coded, strict=True)]
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        for batch in reader:
            columns = [c.dictionary_decode() if code else c for c, code in zip(batch.columns, coded, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, pieces())


def _write_csv(reader: "pa.RecordBatchReader", path: Path, moved: ProgressCallback) -> int:
    from windrow.formats.text import write_csv

    with path.open("wb") as sink:
        return write_csv(reader, reader.schema, sink.write, moved)


def _write_json(reader: "pa.RecordBatchReader", path: Path, moved: ProgressCallback) -> int:
    from windrow.formats.text import write_json_lines

    with path.open("wb") as sink:
        return write_json_lines(reader, sink.write, moved)


_WRITERS: dict[str, Callable[["pa.RecordBatchReader", Path, ProgressCallback], int]] = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "csv": _write_csv,
    "json": _write_json,
    "jsonl": _write_json,
}
