"""The values of an answer as Python objects, for tuples, in the same forms that DuckDB's own client gives.

Python's dates reach from year 1 to 9999, its times end before 24:00, its durations at a thousand million days. An
infinite time is the first or last date, as in DuckDB; all other values that Python lacks are text, as `formats.text`
writes them.
"""

import datetime as dt
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.formats import text as text_format
from windrow.formats.text import BITS, HUGE
from windrow.indexes.arrow_arrays import compute as pc

_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_INTERVAL = np.dtype([("months", np.int32), ("days", np.int32), ("nanoseconds", np.int64)])
_DAYS_OF_MONTH = 30
_MOST_DAYS = 90_000_000
"""With these days, and the longest time that Arrow may put beside them, microseconds still fit into 64 bits."""
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
    if is_.is_interval(kind):
        return _convert_intervals(column)
    if is_.is_list(kind) or is_.is_struct(kind) or is_.is_map(kind):
        return _convert_nested(column)
    return None if field.metadata else _convert_leaves(column)


def _convert_leaves(column: pa.Array) -> list[Any] | None:
    """Bytes, times of a day, and instants in other units than microseconds."""
    is_, kind = pa.types, column.type
    if is_.is_null(kind):
        return [None] * len(column)
    if is_.is_binary(kind):
        ends = np.frombuffer(column.buffers()[1] or b"", np.int32)[column.offset :][: len(column) + 1].tolist()
        data = bytes(memoryview(column.buffers()[2] or b"")[ends[0] : ends[-1]]) if ends else b""
        return _with_nulls(column, [data[start - ends[0] : end - ends[0]] for start, end in pairwise(ends)])
    if is_.is_time64(kind) and kind.unit == "us" and not pc.any(_is_end_of_day(column)).as_py():
        instants = _convert_times(column.view(pa.int64()).view(pa.timestamp("us")))
        return None if instants is None else [None if instant is None else instant.time() for instant in instants]
    if is_.is_timestamp(kind) and kind.tz in (None, "UTC") and not pc.any(_is_infinite(column)).as_py():
        try:
            return _convert_times(column.cast(pa.timestamp("us", kind.tz), safe=kind.unit != "ns"))
        except pa.ArrowInvalid:
            return None
    return None


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, pc.is_valid(column).to_pylist(), strict=True)]


def to_durations(column: pa.Array) -> pa.Array | None:
    """Intervals as durations in microseconds, a month as 30 days as in DuckDB's client; None if one is too long."""
    parts = np.frombuffer(column.buffers()[1] or b"", _INTERVAL)[column.offset : column.offset + len(column)]
    valid = np.asarray(pc.is_valid(column)) if column.null_count else None
    days = parts["days"].astype(np.int64) + parts["months"].astype(np.int64) * _DAYS_OF_MONTH
    if valid is not None:
        days[~valid] = 0  # whatever lies under a null
    if len(days) and max(days.max(), -days.min()) > _MOST_DAYS:
        return None
    micros = days * _DAY["us"] + parts["nanoseconds"] // 1000
    return pa.array(micros, pa.int64(), mask=None if valid is None else ~valid).view(pa.duration("us"))


def _convert_intervals(column: pa.Array) -> list[Any] | None:
    durations = to_durations(column)
    if durations is None:
        return None
    spans: list[Any] = np.frombuffer(durations.buffers()[1] or b"", "timedelta64[us]")[: len(column)].tolist()
    return _with_nulls(column, spans)


def _convert_nested(column: pa.Array) -> list[Any] | None:
    """Structs, lists and maps of quick values: all inner values at once, then one dict or list for each row."""
    kind = column.type
    if not len(column):
        return []
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        columns = [_convert_inner(inner, kind.field(index)) for index, inner in enumerate(column.flatten())]
        if not names or len(set(names)) < len(names) or any(values is None for values in columns):
            return None
        return _with_nulls(column, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
    offsets = column.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    parts = list(pairwise(end - first for end in offsets))
    if not pa.types.is_map(kind):
        values = _convert_inner(column.values.slice(first, count), kind.value_field)
        return None if values is None else _with_nulls(column, [values[start:end] for start, end in parts])
    keys = (
        None if pa.types.is_nested(kind.key_type) else _convert_inner(column.keys.slice(first, count), kind.key_field)
    )
    items = _convert_inner(column.items.slice(first, count), kind.item_field)
    if keys is None or items is None:
        return None
    pairs = list(zip(keys, items, strict=True))
    return _with_nulls(column, [dict(pairs[start:end]) for start, end in parts])


def _convert_inner(column: pa.Array, field: pa.Field) -> list[Any] | None:
    return None if field.metadata else _convert_at_once(column, field)


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
        from zoneinfo import ZoneInfo  # nothing else in an answer needs it

        zone = ZoneInfo("UTC")
        python_values = [value.replace(tzinfo=zone) for value in python_values]
    if column.null_count:
        missing = column.view(pa.int32() if unit == "D" else pa.int64()).to_pylist()
        python_values = [
            None if stored is None else value for value, stored in zip(python_values, missing, strict=True)
        ]
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
