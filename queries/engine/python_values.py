"""The values of an answer as Python objects, for tuples, in the same forms that DuckDB's own client gives.

Python's dates reach from year 1 to 9999, its times end before 24:00, its durations at a thousand million days. An
infinite time is the first or last date, as in DuckDB; all other values that Python lacks are text, as `formats.text`
writes them.
"""

import datetime as dt
import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.formats import text as text_format
from windrow.formats.text import BITS, HUGE
from windrow.indexes.arrow_arrays import compute as pc

_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_PYTHON_TIMES = ("0001-01-01", "9999-12-31")
"""All times from the first to before the second are Python's too."""
_FEW_ROWS = 64
"""Below this huge integers are made one by one, without Arrow's functions, whose import takes a process that asks one
statement longer than the statement (bench cold)."""
_INFINITY = (1 << 63) - 1
_OUT_OF_RANGE = (OverflowError, ValueError, KeyError)
"""How Arrow says that Python has no such value; the last is of a map that has a key twice."""


def to_python_values(column: pa.Array, field: pa.Field) -> list[Any]:
    """The values of a column; times in nanoseconds are cut to microseconds, which is what Python has."""
    kind = column.type
    if (quick := _convert_at_once(column, field)) is not None:
        return quick
    if field.metadata == HUGE:
        return [None if value is None else int(value) for value in column.to_pylist()]
    if field.metadata == BITS:
        return list(text_format.format_column(column, field).to_pylist())
    if _in_nanoseconds(kind) and not pc.any(_is_infinite(column)).as_py():
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    if not _is_plain(column):
        return [_value(scalar) for scalar in column]
    try:
        return list(column.to_pylist(maps_as_pydicts="strict"))
    except _OUT_OF_RANGE:
        return [_value(scalar) for scalar in column]


def _convert_at_once(column: pa.Array, field: pa.Field) -> list[Any] | None:
    """The values of a column of numbers, texts, dates or times, or a long one of huge integers, if Python has them all.

    For huge integers, dates and times Arrow makes a scalar for each, which takes many times as long.
    """
    is_, kind = pa.types, column.type
    if field.metadata is None and (
        is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind) or is_.is_string(kind)
    ):
        return list(column.to_pylist())
    if field.metadata == HUGE and len(column) >= _FEW_ROWS:
        try:
            return list(column.cast(pa.int64()).to_pylist())
        except pa.ArrowInvalid:
            return None
    if is_.is_date32(kind) or (is_.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC")):
        return _convert_times(column)
    return None


def _convert_times(column: pa.Array) -> list[Any] | None:
    """Read from Arrow's buffer: to make an array for numpy, Arrow imports pandas."""
    kind = column.type
    unit, width = ("D", np.int32) if pa.types.is_date(kind) else ("us", np.int64)
    first, last = np.array(_PYTHON_TIMES, f"datetime64[{unit}]")
    counted = np.frombuffer(column.buffers()[1] or b"", width)[column.offset : column.offset + len(column)]
    values = counted.astype(np.int64, copy=False).view(f"datetime64[{unit}]")
    if len(values) and not (first <= values.min() and values.max() < last):
        return None
    python_values: list[Any] = values.tolist()
    if not (pa.types.is_date(kind) or kind.tz is None):
        zone = zoneinfo.ZoneInfo("UTC")
        python_values = [value.replace(tzinfo=zone) for value in python_values]
    if column.null_count:
        missing = column.view(pa.int32() if unit == "D" else pa.int64()).to_pylist()
        python_values = [None if given is None else value for value, given in zip(python_values, missing, strict=True)]
    return python_values


def _is_plain(column: pa.Array) -> bool:
    """Whether Arrow itself gives the values that are wanted, or says that it cannot."""
    kind = column.type
    if pa.types.is_time(kind) and kind.unit != "ns":
        return not pc.any(_is_end_of_day(column)).as_py()
    return not text_format.contains_type(kind, _needs_conversion)


def _needs_conversion(kind: pa.DataType) -> bool:
    is_ = pa.types
    if is_.is_map(kind):
        return bool(is_.is_nested(kind.key_type))
    return bool(is_.is_interval(kind) or is_.is_time(kind) or _in_nanoseconds(kind) or text_format.is_opaque(kind))


def _in_nanoseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def _is_infinite(instants: pa.Array) -> pa.Array:
    """Which times in nanoseconds are infinity, or the one before all."""
    return pc.is_in(instants.view(pa.int64()), pa.array([-_INFINITY, _INFINITY]))


def _is_end_of_day(times: pa.Array) -> pa.Array:
    """Which times are 24:00, which SQL has and Python has not."""
    counted = times.view(pa.int32() if pa.types.is_time32(times.type) else pa.int64())
    return pc.greater_equal(counted, _DAY[times.type.unit])


def _value(scalar: Any) -> Any:
    """One value, in which anything may have a form of its own or lie outside of what Python has."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_union(kind):
        return _value(scalar.value)
    if pa.types.is_map(kind):
        return _map(scalar)
    if pa.types.is_struct(kind):
        return {name: _value(inner) for name, inner in scalar.items()}
    if pa.types.is_nested(kind):
        return [_value(inner) for inner in scalar.values]
    return _leaf_value(scalar)


def _map(scalar: Any) -> dict[Any, Any]:
    """A map as a dict, or as two lists if Python cannot look its keys up."""
    pairs = [(_value(pair[0]), _value(pair[1])) for pair in scalar.values or ()]
    if pa.types.is_nested(scalar.type.key_type):
        return {"key": [key for key, _ in pairs], "value": [value for _, value in pairs]}
    return dict(pairs)


def _leaf_value(scalar: Any) -> Any:
    kind = scalar.type
    alone = pa.array([scalar], kind)
    if text_format.is_opaque(kind) or (pa.types.is_time(kind) and _is_end_of_day(alone)[0].as_py()):
        return _text(alone)
    if pa.types.is_time64(kind):
        return alone.cast(pa.time64("us"), safe=False)[0].as_py()
    if _in_nanoseconds(kind):
        cut = alone.cast(pa.timestamp("us", kind.tz), safe=False)[0]
        return _out_of_range_value(alone) if _is_infinite(alone)[0].as_py() else cut.as_py()
    try:
        return _delta(scalar.as_py()) if pa.types.is_interval(kind) else scalar.as_py()
    except _OUT_OF_RANGE:
        return _out_of_range_value(alone)


def _delta(value: Any) -> dt.timedelta:
    return dt.timedelta(days=value.days + 30 * value.months, microseconds=value.nanoseconds // 1000)


def _out_of_range_value(alone: pa.Array) -> Any:
    text, kind = _text(alone), alone.type
    if "infinity" not in text.lower():
        return text
    if pa.types.is_date(kind):
        return dt.date.min if text.startswith("-") else dt.date.max
    end = dt.datetime.min if text.startswith("-") else dt.datetime.max  # noqa: DTZ901, it has the column's zone or none
    return end.replace(tzinfo=dt.UTC) if kind.tz else end


def _text(alone: pa.Array) -> str:
    return str(text_format.format_column(alone, pa.field("", alone.type))[0])
