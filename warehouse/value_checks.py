"""Checks of values where rows come in: what Arrow trusts, DuckDB cannot survive, or SQL could not give back is refused.

Arrow believes the buffers that it is given, and DuckDB ends its whole instance on text that is not UTF-8 or on a
decimal with more digits than its type has. The checks run over buffers, not over values, wherever all are harmless.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.errors import SchemaError
from windrow.formats.text import contains_type
from windrow.indexes.arrow_arrays import compute as pc

_MOST_DIGITS = 38
_FEW = 64
"""Texts that are looked at one by one sooner than their buffers are found."""
_TIME_UNITS = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def check_values(column: pa.Array, name: str, what: str, *, rejected: bool = False) -> None:
    """Refuse a column with values that could not be stored and asked as they are; `what` would have it.

    Instants that are out of range are `rejected` row by row where rows are judged by them; they only need to be stored.
    """
    kind = column.type
    if not is_checked(kind):
        return
    try:
        if rejected:
            if pa.types.is_timestamp(kind) and kind.unit == "s":
                column.cast(pa.timestamp("ms", kind.tz))  # the coarsest unit of files
            return
        if _is_harmless_text(column):
            return
        column.view(_without_times(kind)).validate(full=True)
        for times in _find_parts(column, _is_time_type):
            _check_times(times)
        for decimals in _find_parts(column, _has_most_digits):
            _check_digits(decimals)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{what}: column {name!r} {_explain(str(error), kind)}; nothing was changed") from None


def _explain(error: str, kind: pa.DataType) -> str:
    if "UTF8" in error or "UTF-8" in error:
        return "has text that is not UTF-8; decode it first, or make the column binary"
    reason = error.rpartition("Invalid: ")[2].splitlines()[0]
    return f"of type {kind} has a value that SQL cannot hold ({reason})"


@lru_cache(maxsize=1024)
def is_checked(kind: pa.DataType) -> bool:
    """Whether a type has values that can be wrong in themselves; numbers, dates and microseconds cannot."""
    return contains_type(kind, _can_be_wrong)


def _can_be_wrong(kind: pa.DataType) -> bool:
    is_ = pa.types
    plain = is_.is_primitive(kind) or is_.is_null(kind) or is_.is_fixed_size_binary(kind)
    return bool(_is_time_type(kind) or is_.is_decimal(kind) or not plain)


def _is_time_type(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_time(kind) or ((is_.is_duration(kind) or is_.is_timestamp(kind)) and kind.unit in ("s", "ms")))


def _is_harmless_text(column: pa.Array) -> bool:
    """Whether a column is text of ASCII characters in order: 25 times as quick as looking at each value."""
    kind = column.type
    wide = pa.types.is_large_string(kind)
    if not (wide or pa.types.is_string(kind)) or not len(column):
        return False
    if len(column) < _FEW:
        column.validate(full=True)
        return True
    column.validate()
    _, offset_buffer, data = column.buffers()
    offsets: np.ndarray[Any, Any] = np.frombuffer(
        offset_buffer, np.int64 if wide else np.int32, len(column) + 1, column.offset * (8 if wide else 4)
    )
    first, last = int(offsets[0]), int(offsets[-1])
    if data is None or first == last:
        return bool((offsets == first).all())
    return (
        bool((offsets[1:] >= offsets[:-1]).all()) and int(np.frombuffer(data, np.int8, last - first, first).min()) >= 0
    )


def _without_times(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for times of the day: 24:00 is a time in SQL and not in Arrow."""
    return map_type(
        kind, lambda leaf: pa.int32() if pa.types.is_time32(leaf) else pa.int64() if pa.types.is_time64(leaf) else leaf
    )


def map_type(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with `change` made to every type nested in it, or to itself if nothing is."""
    if not contains_type(kind, lambda inner: change(inner) != inner):
        return kind

    def within(field: pa.Field) -> pa.Field:
        return field.with_type(map_type(field.type, change))

    is_ = pa.types
    kind = change(kind)
    if is_.is_struct(kind):
        return pa.struct([within(kind.field(position)) for position in range(kind.num_fields)])
    if is_.is_map(kind):
        return pa.map_(within(kind.key_field), within(kind.item_field))
    if is_.is_fixed_size_list(kind):
        return pa.list_(within(kind.value_field), kind.list_size)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return (pa.large_list if is_.is_large_list(kind) else pa.list_)(within(kind.value_field))
    return kind


def _find_parts(column: pa.Array, wanted: Callable[[pa.DataType], bool]) -> Iterator[pa.Array]:
    """The columns nested in a column whose type is `wanted`, without the values that a null hides."""
    kind = column.type
    if wanted(kind):
        yield column
    elif pa.types.is_dictionary(kind):
        yield from _find_parts(column.dictionary, wanted)
    elif pa.types.is_map(kind):
        yield from _find_parts(column.keys, wanted)
        yield from _find_parts(column.items, wanted)
    elif pa.types.is_nested(kind) and not pa.types.is_union(kind) and contains_type(kind, wanted):
        flat = column.flatten()
        for part in flat if pa.types.is_struct(kind) else (flat,):
            yield from _find_parts(part, wanted)


def _check_times(times: pa.Array) -> None:
    """Raise ArrowInvalid for times of no day, and for instants and durations that are no number of microseconds."""
    kind = times.type
    if not pa.types.is_time(kind):
        times.cast(pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", kind.tz))
        return
    span = pc.min_max(times.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
    if span["min"] is not None and not 0 <= span["min"] <= span["max"] <= _TIME_UNITS[kind.unit]:
        raise pa.ArrowInvalid(f"{span['min'] if span['min'] < 0 else span['max']} {kind.unit} is no time of a day")


def _has_most_digits(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(kind)) and kind.precision == _MOST_DIGITS


def _check_digits(decimals: pa.Array) -> None:
    """Raise ArrowInvalid for 39 digits, which 128 bits can hold and Arrow's own validation does not look for."""
    words = np.frombuffer(decimals.buffers()[1] or b"", np.int64).reshape(-1, 2)
    high, limit = words[decimals.offset : decimals.offset + len(decimals), 1], 10**_MOST_DIGITS >> 64
    for row in np.flatnonzero((high >= limit) | (high < -limit)):
        value = decimals[int(row)].as_py()
        if value is not None and len(value.as_tuple().digits) > _MOST_DIGITS:
            raise pa.ArrowInvalid(f"{value} has more than {_MOST_DIGITS} digits")


def is_list_view(kind: pa.DataType) -> bool:
    """Whether a type is one of the views of lists."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def without_list_view(kind: pa.DataType) -> pa.DataType:
    """The plain list type of a view of lists; files have no views, and DuckDB and Arrow read them differently."""
    if not is_list_view(kind):
        return kind
    return (pa.large_list if pa.types.is_large_list_view(kind) else pa.list_)(kind.value_field)


def to_plain_list(column: pa.Array) -> pa.Array:
    """A view of lists as lists; Arrow's own cast makes one offset too few."""
    column.validate(full=True)
    wide = pa.types.is_large_list_view(column.type)
    sizes = column.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    array = pa.LargeListArray if wide else pa.ListArray
    return array.from_arrays(
        pa.array(offsets, pa.int64() if wide else pa.int32()),
        column.flatten(),
        without_list_view(column.type),
        mask=column.is_null(),
    )
