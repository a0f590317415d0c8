r"""How a value of every type is written: the one place that knows, for JSON, CSV, tables, files and reports.

Numbers, truth values and text are what they are. Times are ISO 8601 in UTC, durations are in words, bytes are text if
they are printable and \x with hexadecimal digits if not, nested values are JSON. `windrow.cli.cells` reads it back.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from windrow.formats.durations import format_durations
from windrow.formats.timestamps import format_iso
from windrow.indexes.arrow_arrays import compute as pc

MARK = b"windrow.type"
HUGE = {MARK: b"HUGEINT"}
"""Marks a column of integers that DuckDB computes with 128 bits, such as a sum; Arrow carries them as decimals."""
BITS = {MARK: b"BIT"}
"""Marks a column of bit strings, which Arrow carries as bytes."""
EXTENSION = b"ARROW:extension:name"
"""Names a column's type in its metadata where Arrow does not know it, such as DuckDB's VARIANT and GEOMETRY."""
_JSON_ROWS = 8192

WriteBytes = Callable[[bytes], Any]
ReportRows = Callable[[int], None]


def bytes_text(value: bytes) -> str:
    r"""Bytes as text if they are printable UTF-8, as \x and hexadecimal digits if not."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\x00"
    return text if text.isprintable() and not text.startswith("\\x") else "\\x" + value.hex()


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a type is one of bytes."""
    is_ = pa.types
    return bool(
        is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind)
    )


def is_opaque(kind: pa.DataType) -> bool:
    """Whether a type is one of DuckDB's own, whose bytes only DuckDB understands."""
    return isinstance(kind, pa.OpaqueType)


def type_name(field: pa.Field) -> str:
    """A column's type as Arrow calls it, but for those that only DuckDB has."""
    if is_opaque(field.type):
        return str(field.type.type_name).upper()
    if field.metadata and EXTENSION in field.metadata:
        return str(field.metadata[EXTENSION].decode())
    return "BIT" if field.metadata == BITS else str(field.type)


def contains_type(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one nested in it, is `wanted`."""
    inner = (kind.field(position).type for position in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return wanted(kind) or any(contains_type(inner_kind, wanted) for inner_kind in inner)


def decode_column(column: pa.Array) -> pa.Array:
    """A column without encodings and extensions: just its values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return decode_column(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return decode_column(pc.run_end_decode(column))
    if isinstance(kind, pa.Bool8Type):
        return column.storage.cast(pa.bool_())
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, (pa.OpaqueType, pa.UuidType)):
        return decode_column(column.storage)
    return column


def _find_formatter(kind: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """What writes the values of a type as text, None for types that need no words of their own."""
    is_ = pa.types
    if is_.is_timestamp(kind) or is_.is_date(kind) or is_.is_time(kind):
        return format_iso
    if is_.is_duration(kind) or is_.is_interval(kind):
        return format_durations
    if isinstance(kind, pa.UuidType):
        return _format_each(str)
    if is_opaque(kind):
        return _opaque
    return _format_each(bytes_text) if is_bytes(kind) else None


def _format_each(make: Callable[[Any], str]) -> Callable[[pa.Array], pa.Array]:
    return lambda column: pa.array([None if v is None else make(v) for v in column.to_pylist()], pa.string())


def _opaque(column: pa.Array) -> pa.Array:
    make = _bignum if column.type.type_name == "bignum" else bytes_text
    return _format_each(make)(column.storage)


def _bignum(stored: bytes) -> str:
    """DuckDB's big integer: three bytes of sign and length, then the amount; all inverted if it is negative."""
    negative = not stored[0] & 0x80
    amount = bytes(b ^ 0xFF for b in stored[3:]) if negative else stored[3:]
    return str(-int.from_bytes(amount, "big") if negative else int.from_bytes(amount, "big"))


def _bits(stored: bytes) -> str:
    """DuckDB's bit string: how many bits of the first byte do not count, then the bits."""
    return "".join(f"{b:08b}" for b in stored[1:])[stored[0] :]


def format_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as text if its type has a form of its own or is nested; else as it is."""
    if field.metadata == BITS:
        return _format_each(_bits)(column)
    column = decode_column(column)
    if pa.types.is_nested(column.type):
        return pa.array([None if v is None else encode_json(v).decode() for v in json_values(column)], pa.string())
    words = _find_formatter(column.type)
    return column if words is None else words(column)


def json_values(column: pa.Array, field: pa.Field | None = None) -> list[Any]:
    """A column's values as JSON has them: numbers, truth values, text, lists, objects and nulls."""
    if field is not None and field.metadata == BITS:
        return list(format_column(column, field).to_pylist())
    column = decode_column(column)
    kind = column.type
    if pa.types.is_nested(kind):
        return _nested(column)
    if pa.types.is_floating(kind):
        return _numbers(column)
    if pa.types.is_decimal(kind):
        return list(column.cast(pa.string()).to_pylist())
    words = _find_formatter(kind)
    return list((column if words is None else words(column)).to_pylist())


def _numbers(column: pa.Array) -> list[Any]:
    """Floating numbers; JSON has no others than finite ones, so the rest is text."""
    numbers = (column.cast(pa.float32()) if pa.types.is_float16(column.type) else column).to_pylist()
    return [value if value is None or math.isfinite(value) else _unbounded(value) for value in numbers]


def _unbounded(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _nested(column: Any) -> list[Any]:
    kind = column.type
    if pa.types.is_union(kind):
        return _union(column)
    mask = column.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = distinct_names([kind.field(position).name for position in range(kind.num_fields)])
        parts = [json_values(column.field(position)) for position in range(kind.num_fields)]
        rows = zip(*parts, strict=True) if parts else [()] * len(column)
        return [dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, mask, strict=True)]
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        inner = json_values(column.values.slice(column.offset * size, len(column) * size))
        return [inner[row * size : (row + 1) * size] if valid else None for row, valid in enumerate(mask)]
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _nested(column.cast(pa.large_list(kind.value_field)))
    offsets = column.offsets.to_pylist()
    first = offsets[0] if offsets else 0
    inner = _items(column, first, (offsets[-1] if offsets else 0) - first)
    return [inner[offsets[row] - first : offsets[row + 1] - first] if valid else None for row, valid in enumerate(mask)]


def _items(column: Any, start: int, length: int) -> list[Any]:
    if not pa.types.is_map(column.type):
        return json_values(column.values.slice(start, length))
    keys, items = column.keys.slice(start, length), column.items.slice(start, length)
    return [list(pair) for pair in zip(json_values(keys), json_values(items), strict=True)]


def _union(column: Any) -> list[Any]:
    kind = column.type
    parts = {code: json_values(column.field(position)) for position, code in enumerate(kind.type_codes)}
    places = column.offsets.to_pylist() if kind.mode == "dense" else range(len(column))
    return [parts[code][position] for code, position in zip(column.type_codes.to_pylist(), places, strict=True)]


def encode_json(value: Any) -> bytes:
    """A value of `json_values`, or a row of them, as JSON."""
    return msgspec.json.encode(value)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names of which none occurs twice, made so as DuckDB does: a, a_1."""
    originals, distinct = set(names), list[str]()
    names_in_use: set[str] = set()
    for name in names:
        candidate, number = name, 0
        while candidate in names_in_use or (number and candidate in originals):
            number += 1
            candidate = f"{name}_{number}"
        names_in_use.add(candidate)
        distinct.append(candidate)
    return distinct


def write_csv(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, write: WriteBytes, moved: ReportRows = lambda _: None
) -> int:
    """Write rows as CSV with a header; gives how many."""
    return _write(encode_csv(rows, schema), write, moved)


def encode_csv(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[tuple[bytes, int]]:
    """Rows as CSV with a header: pieces of text, each with its number of rows."""
    names = distinct_names(schema.names)
    header = pa.schema([(name, pa.string()) for name in names])
    # Not `empty_table`: an array made of a Python list makes pyarrow import pandas, if it is there.
    yield _csv(pa.Table.from_batches([], header), include_header=True), 0
    for batch in rows:
        columns = [_csv_column(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
        yield _csv(pa.RecordBatch.from_arrays(columns, names=names), include_header=False), batch.num_rows


def _write(pieces: Iterable[tuple[bytes, int]], write: WriteBytes, moved: ReportRows) -> int:
    end = 0
    for text, rows in pieces:
        write(text)
        end += rows
        moved(end)
    return end


def _csv(rows: Any, *, include_header: bool) -> bytes:
    import pyarrow.csv as pcsv

    buffer = pa.BufferOutputStream()
    pcsv.write_csv(rows, buffer, pcsv.WriteOptions(include_header=include_header))
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def _csv_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column that Arrow's CSV writer takes."""
    written = format_column(column, field)
    if pa.types.is_float16(written.type):
        return written.cast(pa.float32())
    return written.cast(pa.string()) if pa.types.is_string_view(written.type) else written


def write_json_lines(rows: Iterable[pa.RecordBatch], write: WriteBytes, moved: ReportRows = lambda _: None) -> int:
    """Write rows as JSON, one object a line; gives how many."""
    return _write(encode_json_lines(rows), write, moved)


def encode_json_lines(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
    """Rows as JSON, one object a line: pieces of text, each with its number of rows."""
    for batch in rows:
        names = distinct_names(batch.schema.names)
        for start in range(0, batch.num_rows, _JSON_ROWS):
            piece = batch.slice(start, _JSON_ROWS)
            columns = [json_values(column, field) for column, field in zip(piece.columns, piece.schema, strict=True)]
            lines = [encode_json(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
            yield b"\n".join(lines) + b"\n", piece.num_rows
