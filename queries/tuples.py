"""Values of an answer as Python has them, in the forms that DuckDB gives: for tuples.

Python's dates reach from year 1 to 9999. What is endless is the last or first of them, as in DuckDB; all else outside
is text, in the form of `windrow.instants`.
"""

import datetime as dt
from typing import Any

import pyarrow as pa

from windrow import texts
from windrow.instants import iso
from windrow.texts import BITS, HUGE


def values(column: pa.Array, field: pa.Field) -> list[Any]:
    """The values of a column; times in nanoseconds are cut to microseconds, which is what Python has."""
    kind = column.type
    if field.metadata == HUGE:
        return [None if value is None else int(value) for value in column.to_pylist()]
    if field.metadata == BITS:
        return list(texts.text(column, field).to_pylist())
    if pa.types.is_interval(kind):
        return [None if value is None else _delta(value) for value in column.to_pylist()]
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return list(column.cast(pa.time64("us"), safe=False).to_pylist())
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # a date that Python has not
        return [_value(scalar) for scalar in column]


def _delta(value: Any) -> dt.timedelta:
    return dt.timedelta(days=value.days + 30 * value.months, microseconds=value.nanoseconds // 1000)


def _value(scalar: Any) -> Any:
    """One value, in which any date may lie outside of what Python has."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return _value(scalar.value)
    if pa.types.is_map(kind):
        return [(_value(pair[0]), _value(pair[1])) for pair in scalar.values]
    if pa.types.is_struct(kind):
        return {name: _value(inner) for name, inner in scalar.items()}
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return [_value(inner) for inner in scalar.values]
    if pa.types.is_union(kind):
        return _value(scalar.value)
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _outside(scalar)


def _outside(scalar: Any) -> Any:
    text = str(iso(pa.array([scalar], scalar.type))[0])
    if "infinity" not in text.lower():
        return text
    if pa.types.is_date(scalar.type):
        return dt.date.min if text.startswith("-") else dt.date.max
    end = dt.datetime.min if text.startswith("-") else dt.datetime.max  # noqa: DTZ901, it has the column's zone or none
    return end.replace(tzinfo=dt.UTC) if scalar.type.tz else end
