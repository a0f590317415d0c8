"""What is wrong with a cell of a file, told so that it can be found: row, column, value, and what was expected.

Arrow's parsers take whole columns and say little about the one value that they stumble over; only then it is sought.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windrow.cli.cells import restore
from windrow.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 60


def restored(column: "pa.Array", field: "pa.Field", before: int) -> "pa.Array":
    """`restore`, with an error that names the first value that does not fit; `before` rows of the file came earlier."""
    import pyarrow as pa

    def fails(start: int, end: int) -> bool:
        try:
            restore(column.slice(start, end - start), field.type)
        except pa.ArrowException:
            return True
        return False

    try:
        return restore(column, field.type)
    except pa.ArrowException:
        at = first_failing(len(column), fails)
        raise mistake(before + at + 1, field, column[at].as_py()) from None


def first_failing(count: int, fails: Callable[[int, int], bool]) -> int:
    """The first of `count` things that fails, found by halving; some part of them does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(low, middle) else (middle, high)
    return low


def mistake(row: int, field: "pa.Field", value: Any) -> SchemaError:
    """The error for a value that is not of its column's type."""
    return SchemaError(
        f"row {row:,}, column {field.name!r}: {_shown(value)} is not {expected(field.type)}; nothing was appended"
    )


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def expected(kind: "pa.DataType") -> str:  # noqa: PLR0911 - one for each family of types
    """What a value of a type looks like in a file."""
    import pyarrow as pa

    from windrow.formats.text import is_bytes

    is_ = pa.types
    if is_.is_dictionary(kind):
        return expected(kind.value_type)
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
