"""Ranges of a stream's search key and time that predicates allow: a superset of the rows that WHERE will keep.

The predicates come from DuckDB's planner, so parameters are bound, views and subqueries expanded and constants computed
before they get here.
"""

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.indexes.probe import KeyRange
from windrow.indexes.row_model import RowModel, encode_value
from windrow.native import key_encoding as native_keys
from windrow.queries.engine.arrow_source import Binary, Column, In, Literal, NullTest, Predicate

MAX_KEY_POINTS = 10_000
"""With more combinations of key values than this, the key counts as unrestricted from that column on. Not measured: a
bound on the memory and time of planning."""
_NOT_NULL, _END = b"\x01", b"\x02"
_TIME_MARGIN = 2
"""Microseconds by which a time constant may be off: finer units are rounded, and an open end becomes a closed one."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Interval = tuple[bytes, bytes]
"""Encoded values of one column from the first, up to but without the second."""
Intervals = list[Interval]
TimeRange = tuple[int | None, int | None]
Encode = Callable[[Any], bytes | None]


@dataclass(frozen=True)
class KeyPredicate:
    """What predicates allow of a stream: ranges of its search key, and times with ``after < ts <= upto``."""

    keys: tuple[KeyRange, ...] | None
    """Ranges of the search key; None: any key."""
    after: int | None
    upto: int | None


def find_key_predicate(
    predicates: Iterable[Predicate],
    model: RowModel,
    schema: pa.Schema,
    among: Mapping[str, pa.Array] | None = None,
) -> KeyPredicate:
    """The ranges that all of `predicates` together allow.

    Args:
        predicates: As DuckDB gives them.
        model: Of the stream.
        schema: Of the relation that the predicates were collected with.
        among: Values by key column, outside of which no row counts.
    """
    conditions = list(predicates)
    unbounded: tuple[int | None, int | None] = (None, None)
    after, upto = functools.reduce(
        _both, (_find_time_range(predicate, model.time) for predicate in conditions), unbounded
    )
    per_column: list[Intervals | None] = []
    for name in model.key:
        encode = _encoder(schema.field(name).type)
        allowed = _points((among or {}).get(name), schema.field(name).type)
        for predicate in conditions:
            intervals = _find_intervals(predicate, name, encode)
            allowed = intervals if allowed is None else allowed if intervals is None else _intersect(allowed, intervals)
        per_column.append(allowed)
    return KeyPredicate(_compose(per_column), after, upto)


def _points(values: pa.Array | None, kind: pa.DataType) -> Intervals | None:
    """The values that a column of type `kind` can hold, as ranges; None if they cannot be compared for certain."""
    if values is None:
        return None
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    present = values.drop_null()
    if pa.types.is_integer(plain) and pa.types.is_integer(present.type):
        limits = np.iinfo(plain.to_pandas_dtype())
        fitting = [value for value in present.to_pylist() if limits.min <= value <= limits.max]
        present = pa.array(fitting, plain)
    elif _is_text(plain) and _is_text(present.type):
        present = present.cast(plain)
    elif present.type != plain or pa.types.is_floating(plain):
        return None
    return _unite([_point(value) for value in native_keys.encode([present]).to_pylist()])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@functools.lru_cache(maxsize=64)
def _encoder(kind: pa.DataType) -> Encode:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_time = pa.types.is_timestamp(plain)

    def encode(value: Any) -> bytes | None:
        direct = encode_value(value, plain)
        if direct is not None:
            return direct
        try:
            if is_time and isinstance(value, int):
                array = pa.array([value], pa.timestamp("us", plain.tz)).cast(plain)
            else:
                array = pa.array([value], plain)
                if array[0].as_py() != value:  # the column cannot hold it, so it lies between two that it can hold
                    return None
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
        encoded: bytes = native_keys.encode([array])[0].as_py()
        return encoded

    return encode


def _find_intervals(predicate: Predicate, column: str, encode: Encode) -> Intervals | None:
    """The values of `column` for which the predicate can be true; None: it does not say."""
    if isinstance(predicate, Binary) and predicate.op in ("AND", "OR"):
        left = _find_intervals(predicate.left, column, encode)
        right = _find_intervals(predicate.right, column, encode)
        if predicate.op == "AND":
            return right if left is None else left if right is None else _intersect(left, right)
        return None if left is None or right is None else _unite(left + right)
    if not _is_column(predicate, column):
        return None
    if isinstance(predicate, In):
        points = [encode(item.value) for item in predicate.values if isinstance(item, Literal)]
        return None if None in points else _unite([_point(value) for value in points if value is not None])
    if isinstance(predicate, NullTest):
        null = encode(None)
        return [(_NOT_NULL, _END)] if predicate.op == "IS NOT NULL" else None if null is None else [_point(null)]
    if isinstance(predicate, Binary) and isinstance(predicate.right, Literal):
        value = encode(predicate.right.value)
        return None if value is None else _comparison(predicate.op, value)
    return None


def _is_column(predicate: Predicate, column: str) -> bool:
    operand = getattr(predicate, "left", None) or getattr(predicate, "operand", None)
    return isinstance(operand, Column) and operand.parts == (column,)


def _point(value: bytes) -> Interval:
    return value, native_keys.successor(value) or _END


def _is_point(interval: Interval) -> bool:
    low, high = interval
    return low != _NOT_NULL and native_keys.successor(low) == high


def _comparison(op: str, value: bytes) -> Intervals | None:
    behind = native_keys.successor(value) or _END
    interval = {
        "=": (value, behind),
        "<": (_NOT_NULL, value),
        "<=": (_NOT_NULL, behind),
        ">": (behind, _END),
        ">=": (value, _END),
    }.get(op)
    return None if interval is None else [interval]


def _unite(intervals: Intervals) -> Intervals:
    merged: Intervals = []
    for low, high in sorted(intervals):
        if merged and low < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        elif low < high:
            merged.append((low, high))
    return merged


def _intersect(left: Intervals, right: Intervals) -> Intervals:
    return [(max(a[0], b[0]), min(a[1], b[1])) for a in left for b in right if max(a[0], b[0]) < min(a[1], b[1])]


def _compose(columns: Sequence[Intervals | None]) -> tuple[KeyRange, ...] | None:
    """Ranges of the whole key from those of its columns: points lengthen a prefix, a range ends it."""
    prefixes, ranges = [b""], list[KeyRange]()
    for depth, intervals in enumerate(columns):
        if intervals is None or len(prefixes) * len(intervals) > MAX_KEY_POINTS:
            return None if depth == 0 else _sorted([*ranges, *(_prefix_range(prefix) for prefix in prefixes)])
        points = []
        for low, high in intervals:
            if _is_point((low, high)):
                points.append(low)
            else:
                ranges += [KeyRange(prefix + low, prefix + high, open_ended=True) for prefix in prefixes]
        prefixes = [prefix + low for prefix in prefixes for low in points]
    return _sorted([*ranges, *(KeyRange(prefix, prefix) for prefix in prefixes)]) if columns else None


def _sorted(ranges: list[KeyRange]) -> tuple[KeyRange, ...]:
    return tuple(sorted(ranges, key=lambda key_range: key_range.low))


def _prefix_range(prefix: bytes) -> KeyRange:
    return KeyRange(prefix, native_keys.successor(prefix), open_ended=True)


def _find_time_range(predicate: Predicate, column: str) -> TimeRange:
    """Bounds ``after < ts <= upto`` that a predicate implies; None where it does not."""
    if isinstance(predicate, Binary) and predicate.op in ("AND", "OR"):
        left, right = _find_time_range(predicate.left, column), _find_time_range(predicate.right, column)
        return _both(left, right) if predicate.op == "AND" else _either(left, right)
    if not _is_column(predicate, column):
        return None, None
    if isinstance(predicate, In):
        spans = [_compare_time("=", item) for item in predicate.values]
        return functools.reduce(_either, spans)
    if isinstance(predicate, Binary):
        return _compare_time(predicate.op, predicate.right)
    return None, None


def _compare_time(op: str, constant: Predicate) -> TimeRange:
    time = _to_micros(constant.value) if isinstance(constant, Literal) else None
    if time is None:
        return None, None
    return time - _TIME_MARGIN if op in (">", ">=", "=") else None, time + _TIME_MARGIN if op in (
        "<",
        "<=",
        "=",
    ) else None


def _both(left: TimeRange, right: TimeRange) -> TimeRange:
    afters, uptos = ([bound for bound in pair if bound is not None] for pair in zip(left, right, strict=True))
    return max(afters, default=None), min(uptos, default=None)


def _either(left: TimeRange, right: TimeRange) -> TimeRange:
    (a, b), (c, d) = left, right
    return None if a is None or c is None else min(a, c), None if b is None or d is None else max(b, d)


def _to_micros(value: object) -> int | None:
    """Microseconds of a time constant, within `_TIME_MARGIN`."""
    if isinstance(value, dt.datetime):
        stamped = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (stamped - _EPOCH) // dt.timedelta(microseconds=1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
