"""Cells of CSV and JSON files as typed values: what `windrow.formats.text` writes is read back unchanged.

Arrow's parsers read whole columns. Where they accept less than users write (times, durations, bytes, nested CSV cells),
a column is read in an intermediate type and converted; only after a failure is the wrong cell searched for and named.
"""

import json
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windrow.arguments import find_first_failing
from windrow.errors import DefinitionError, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[["pa.Array", "pa.DataType"], "pa.Array"]
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NON_FINITE_LINE = re.compile(rb'^.*"(?:NaN|-?Infinity)".*$', re.MULTILINE)
_HEXADECIMAL = "\\x"
_MAX_SHOWN_CHARACTERS = 60
"""Longer values are cut in error messages."""


def find_intermediate_type(kind: "pa.DataType", *, json: bool) -> "pa.DataType":
    """Find the type in which Arrow's CSV or JSON reader reads a column that is to become `kind`."""
    import pyarrow as pa

    from windrow.formats.text import is_bytes

    is_ = pa.types
    if is_.is_dictionary(kind):
        return find_intermediate_type(kind.value_type, json=json)
    if is_.is_map(kind) or is_.is_union(kind) or is_.is_run_end_encoded(kind):
        raise DefinitionError(f"a column of type {kind} cannot be read from text; use Parquet or Arrow")
    if is_.is_temporal(kind) or is_.is_string_view(kind) or (is_.is_decimal256(kind) and not json):
        return pa.string()
    if is_.is_float16(kind):
        return pa.float32()
    if is_bytes(kind):
        return pa.string() if json else pa.binary()
    if not is_.is_nested(kind):
        return kind
    return _find_nested_intermediate(kind) if json else pa.string()


def _find_nested_intermediate(kind: "pa.DataType") -> "pa.DataType":
    """The same for nested types; lists of all kinds are read as plain lists."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, find_intermediate_type(field.type, json=True)) for field in fields])
    return pa.list_(find_intermediate_type(kind.value_type, json=True))


def convert_column(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """Convert a column from its intermediate type to `kind`; dictionaries stay plain. Raises `pa.ArrowException`."""
    import pyarrow as pa

    from windrow.formats.text import is_bytes

    if pa.types.is_dictionary(kind):
        return convert_column(column, kind.value_type)
    if is_bytes(kind):
        return _parse_bytes(column).cast(kind)
    if column.type.equals(kind):
        return column
    if pa.types.is_string(column.type):
        return _parse_text(column, kind)
    if pa.types.is_nested(column.type):
        return _convert_nested(column, kind)
    return column.cast(kind)


def _parse_text(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    from windrow.formats.durations import parse_durations
    from windrow.formats.timestamps import parse_iso

    if pa.types.is_duration(kind):
        return parse_durations(column, kind)
    if pa.types.is_temporal(kind):
        return parse_iso(column, kind)
    return _parse_nested_cells(column, kind) if pa.types.is_nested(kind) else column.cast(kind)


def _parse_bytes(column: "pa.Array") -> "pa.Array":
    r"""Convert text to bytes, which are hexadecimal after \x."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.binary())
    if not pc.any(pc.starts_with(column, _HEXADECIMAL)).as_py():
        return column
    return pa.array([None if value is None else read_bytes(value) for value in column.to_pylist()], pa.binary())


def read_bytes(text: bytes) -> bytes:
    r"""Read the bytes that a text stands for: hexadecimal digits after \x, or the text itself."""
    import pyarrow as pa

    if not text.startswith(_HEXADECIMAL.encode()):
        return text
    try:
        return bytes.fromhex(text[2:].decode())
    except ValueError:
        raise pa.ArrowInvalid(f"{text!r} has other characters than hexadecimal digits after \\x") from None


def _convert_nested(column: Any, kind: "pa.DataType") -> "pa.Array":
    """Convert the parts of nested values, each by its type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        parts = [convert_column(column.field(position), field.type) for position, field in enumerate(fields)]
        converted_fields = [field.with_type(part.type) for field, part in zip(fields, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=converted_fields, mask=column.is_null()).cast(kind)
    offsets = column.offsets
    first = offsets[0].as_py()
    items = convert_column(column.values.slice(first, offsets[-1].as_py() - first), kind.value_type)
    lists = pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), items, mask=column.is_null())
    return lists.cast(kind)


def _parse_nested_cells(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """Parse CSV cells that hold JSON."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    if not len(column):
        return pa.nulls(0, kind)
    lines = pc.binary_join_element_wise('{"v":', pc.fill_null(column, "null"), "}", "")
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_py().encode()
    block = unquote_numbers(text, pa.schema([("v", kind)]))
    table = pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(block_size=len(block) + 64),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([("v", _find_nested_intermediate(kind))]), newlines_in_values=True
        ),
    )
    return _convert_nested(table.column("v").combine_chunks(), kind)


def unquote_numbers(block: bytes, schema: "pa.Schema") -> bytes:
    """Remove the quotes of "NaN", "Infinity" and "-Infinity" in lines of JSON, where a number belongs.

    JSON has no such numbers, so they are written as text, but Arrow's reader accepts them only without quotes.
    """
    import pyarrow as pa

    from windrow.formats.text import contains_type

    numbers = [field for field in schema if contains_type(field.type, pa.types.is_floating)]
    if not numbers or not any(f'"{word}"'.encode() in block for word in _NON_FINITE):
        return block
    return _NON_FINITE_LINE.sub(lambda line: _unquote_line(line[0], numbers), block)


def _unquote_line(line: bytes, numbers: "list[pa.Field]") -> bytes:
    try:
        row = json.loads(line)
    except ValueError:
        return line  # Arrow's error will say what is wrong
    if not isinstance(row, dict):
        return line
    for field in numbers:
        if field.name in row:
            row[field.name] = _unquote_value(row[field.name], field.type)
    return json.dumps(row).encode()


def _unquote_value(value: Any, kind: "pa.DataType") -> Any:
    import pyarrow as pa

    if isinstance(value, str) and pa.types.is_floating(kind):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        fields = (kind.field(position) for position in range(kind.num_fields))
        return value | {f.name: _unquote_value(value[f.name], f.type) for f in fields if f.name in value}
    if isinstance(value, list) and pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        return [_unquote_value(item, kind.field(0).type) for item in value]
    return value


def convert_checked(column: "pa.Array", field: "pa.Field", before: int, convert: "Convert | None" = None) -> "pa.Array":
    """Convert a column; an error names the first value that does not fit.

    Args:
        column: In its intermediate type.
        field: What it is to become.
        before: Rows of the file that came earlier.
        convert: How; by default as `convert_column` does.
    """
    import pyarrow as pa

    convert = convert or convert_column

    def fails(start: int, end: int) -> bool:
        try:
            convert(column.slice(start, end - start), field.type)
        except pa.ArrowException:
            return True
        return False

    try:
        return convert(column, field.type)
    except pa.ArrowException:
        position = find_first_failing(len(column), fails)
        raise build_value_error(before + position + 1, field, column[position].as_py()) from None


def build_value_error(row: int, field: "pa.Field", value: Any) -> SchemaError:
    """Build the error for a value that is not of its column's type."""
    return SchemaError(
        f"row {row:,}, column {field.name!r}: {_shorten(value)} is not {describe_type(field.type)}; "
        "nothing was appended"
    )


def _shorten(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


def describe_type(kind: "pa.DataType") -> str:  # noqa: PLR0911 - one for each family of types
    """Describe how a value of a type is written in a file."""
    import pyarrow as pa

    from windrow.formats.text import is_bytes

    is_ = pa.types
    if is_.is_dictionary(kind):
        return describe_type(kind.value_type)
    if is_.is_timestamp(kind):
        return "a time like 2025-01-01T12:00:00Z"
    if is_.is_date(kind):
        return "a date like 2025-01-01"
    if is_.is_time(kind):
        return "a time of the day like 12:30:00"
    if is_.is_duration(kind):
        return f"a duration like '20 minutes' that can be counted in {kind.unit}"
    if is_.is_integer(kind):
        low = 0 if is_.is_unsigned_integer(kind) else -(1 << (kind.bit_width - 1))
        return f"a whole number from {low} to {low + (1 << kind.bit_width) - 1}"
    if is_.is_decimal(kind):
        return f"a number with at most {kind.precision - kind.scale} digits before the point and {kind.scale} after it"
    if is_.is_floating(kind):
        return "a number"
    if is_.is_boolean(kind):
        return "true or false"
    if is_bytes(kind):
        size = f", {kind.byte_width} of them" if is_.is_fixed_size_binary(kind) else ""
        return f"bytes{size}: text, or \\x and hexadecimal digits"
    return f"JSON for {kind}" if is_.is_nested(kind) else "text"
