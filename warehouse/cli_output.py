"""Rows for whoever asked: a table on the terminal, CSV or JSON lines on stdout, or a file."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.cli_terminal import Moved, bytes_text, cell, table
from windrow.errors import StorageError, WindowError

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS = 20
"""Rows that a table shows if no limit is given."""
_JSON_ROWS = 8192

Write = Callable[[bytes], Any]


def limited(reader: "pa.RecordBatchReader", limit: int | None) -> "pa.RecordBatchReader":
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

    is_ = pa.types
    numbers = [
        f.name for f in reader.schema if is_.is_integer(f.type) or is_.is_floating(f.type) or is_.is_decimal(f.type)
    ]
    rows: list[tuple[str, ...]] = []
    for batch in reader:
        columns = [_column_cells(batch.column(at)) for at in range(batch.num_columns)]
        rows.extend(zip(*columns, strict=True))
    table(reader.schema.names, rows, right=numbers)
    return len(rows)


def _column_cells(column: "pa.Array") -> list[str]:
    return [cell(value) for value in _textual(column).to_pylist()]


def write_csv(reader: "pa.RecordBatchReader", write: Write, moved: Moved = lambda _: None) -> int:
    """Write rows as CSV with a header; gives how many."""
    import pyarrow as pa
    import pyarrow.csv as pcsv

    done = 0
    schema = pa.schema([(f.name, _csv_type(f.type)) for f in reader.schema])
    buffer = pa.BufferOutputStream()
    pcsv.write_csv(schema.empty_table(), buffer)
    write(buffer.getvalue().to_pybytes())
    bare = pcsv.WriteOptions(include_header=False)
    for batch in reader:
        buffer = pa.BufferOutputStream()
        columns = [_csv_column(batch.column(at)).cast(schema.field(at).type) for at in range(batch.num_columns)]
        pcsv.write_csv(pa.RecordBatch.from_arrays(columns, schema=schema), buffer, bare)
        write(buffer.getvalue().to_pybytes())
        done += batch.num_rows
        moved(done)
    return done


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    is_ = pa.types
    return bool(
        is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind)
    )


def _csv_type(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _csv_type(kind.value_type)
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_nested(kind) or _is_bytes(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind


def _csv_column(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        return pa.array([None if v is None else _json_line(v).decode() for v in column.to_pylist()], pa.string())
    return _bytes_as_text(_plain(column))


def write_json_lines(reader: "Iterable[pa.RecordBatch]", write: Write, moved: Moved = lambda _: None) -> int:
    """Write rows as JSON, one object a line; gives how many."""
    import pyarrow as pa

    done = 0
    for batch in reader:
        for start in range(0, batch.num_rows, _JSON_ROWS):
            piece = batch.slice(start, _JSON_ROWS)
            columns = [_textual(piece.column(at)) for at in range(piece.num_columns)]
            rows = pa.RecordBatch.from_arrays(columns, names=piece.schema.names).to_pylist()
            write(b"\n".join([_json_line(row) for row in rows]) + b"\n")
            done += len(rows)
        moved(done)
    return done


def _json_line(row: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(row, enc_hook=str)


def _plain(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _bytes_as_text(column: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    if not _is_bytes(column.type):
        return column
    return pa.array([None if value is None else bytes_text(value) for value in column.to_pylist()], pa.string())


def _textual(column: "pa.Array") -> "pa.Array":
    """Times in ISO form and bytes as text, column by column; the rest as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _bytes_as_text(_plain(column))
    if not pa.types.is_timestamp(column.type):
        return column
    zoned = column.cast(pa.timestamp(column.type.unit, "UTC")) if column.type.tz else column
    dated = pc.replace_substring(zoned.cast(pa.string()), " ", "T", max_replacements=1)
    return dated if column.type.unit == "s" else _short(dated)


def _short(times: "pa.Array") -> "pa.Array":
    """Times without the zeros that say nothing: 12:00:00.500000Z is 12:00:00.5Z."""
    import pyarrow.compute as pc

    trimmed = pc.replace_substring_regex(times, r"(\.\d*?)0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(trimmed, r"\.(Z?)$", r"\1")


def to_stdout() -> Write:
    """Bytes onto stdout."""
    sys.stdout.flush()
    stream = sys.stdout.buffer

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # with PYTHONUNBUFFERED a pipe may take less than all
            rest = rest[stream.write(rest) :]
        stream.flush()

    return write


def write_file(reader: "pa.RecordBatchReader", path: str, moved: Moved) -> int:
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


def _to_parquet(reader: "pa.RecordBatchReader", path: Path, moved: Moved) -> int:
    import pyarrow.parquet as pq

    done = 0
    with pq.ParquetWriter(path, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
            done += batch.num_rows
            moved(done)
    return done


def _to_arrow(reader: "pa.RecordBatchReader", path: Path, moved: Moved) -> int:
    """An IPC file, which may not change a dictionary on the way: dictionary columns are written plain."""
    import pyarrow as pa

    done = 0
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in reader.schema]
    schema = pa.schema([f.with_type(kind) for f, kind in zip(reader.schema, kinds, strict=True)])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in reader:
            writer.write_batch(pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], schema=schema))
            done += batch.num_rows
            moved(done)
    return done


def _to_csv(reader: "pa.RecordBatchReader", path: Path, moved: Moved) -> int:
    with path.open("wb") as sink:
        return write_csv(reader, sink.write, moved)


def _to_json(reader: "pa.RecordBatchReader", path: Path, moved: Moved) -> int:
    with path.open("wb") as sink:
        return write_json_lines(reader, sink.write, moved)


_WRITERS: dict[str, Callable[["pa.RecordBatchReader", Path, Moved], int]] = {
    "parquet": _to_parquet,
    "arrow": _to_arrow,
    "csv": _to_csv,
    "json": _to_json,
    "jsonl": _to_json,
}
