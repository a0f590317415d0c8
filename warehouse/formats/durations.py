"""Durations and intervals in words, '20 minutes' or '1 month 3 days', and back.

These are the words that windrow reads in its own options and that DuckDB reads as an INTERVAL. Every value has words,
and the words of a duration give exactly that duration back.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import compute as pc
from windrow.times import format_duration, unit_micros

if TYPE_CHECKING:
    from fractions import Fraction

_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY = 86_400 * _NANOS["s"]
_MONTHS = {"month": 1, "mon": 1, "year": 12}
_NANOSECOND = ("nanosecond", "nanoseconds", "ns")
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*,?")
_CLOCK = re.compile(r"\s*([+-]?)(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?\s*$")
_ISO = re.compile(r"([+-]?)P(?=.)((?:\d+(?:\.\d+)?[YMWD])*)(?:T((?:\d+(?:\.\d+)?[HMS])+))?")
_ISO_UNITS = {"Y": "year", "M": "month", "W": "week", "D": "day"}
_ISO_TIMES = {"H": "hour", "M": "minute", "S": "second"}
_LAYOUT = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])


def format_durations(column: pa.Array) -> pa.Array:
    """A column of durations or intervals as text."""
    if pa.types.is_duration(column.type):
        scale = _NANOS[column.type.unit]
        return map_distinct(
            column, lambda values: [format_interval(v * scale) for v in values.cast(pa.int64()).to_pylist()]
        )
    return map_distinct(
        column, lambda values: [format_interval(v.nanoseconds, v.days, v.months) for v in values.to_pylist()]
    )


def map_distinct(column: pa.Array, make: Callable[[pa.Array], list[str]]) -> pa.Array:
    """A column of text that is made once for each distinct value."""
    coded = column.dictionary_encode()
    return pa.array(make(coded.dictionary), pa.string()).take(coded.indices)


def format_interval(nanos: int, days: int = 0, months: int = 0) -> str:
    """One value in words; every part has its own sign."""
    parts = [
        f"{amount} {unit}{'' if abs(amount) == 1 else 's'}"
        for amount, unit in ((months, "month"), (days, "day"))
        if amount
    ]
    if nanos or not parts:
        parts.append(_format_nanos(nanos))
    return " ".join(parts)


def _format_nanos(nanos: int) -> str:
    if not nanos:
        return "0 seconds"
    micros, rest = divmod(abs(nanos), 1000)
    sign = "-" if nanos < 0 else ""
    return f"{sign}{abs(nanos)} nanoseconds" if rest else f"{sign}{format_duration(micros)}"


def parse_durations(column: pa.Array, kind: pa.DurationType) -> pa.Array:
    """Text as durations: words, ISO 8601 (PT90S), a clock (01:30:00), or a bare number of the column's unit."""
    coded = column.dictionary_encode()
    counts = [_parse_count(text, kind) for text in coded.dictionary.to_pylist()]
    return pa.array(counts, pa.int64()).cast(kind).take(coded.indices)


def _parse_count(text: str, kind: pa.DurationType) -> int | None:
    if not text.strip():
        return None
    if re.fullmatch(r"\s*[+-]?\d+\s*", text):
        return int(text)
    months, nanos = _parse_parts(text)
    exact = nanos / _NANOS[kind.unit]
    if months or exact.denominator != 1 or abs(exact) >= 1 << 63:
        raise pa.ArrowInvalid(f"{text!r} is no duration that can be counted in {kind.unit}")
    return int(exact)


def _parse_parts(text: str) -> tuple["Fraction", "Fraction"]:
    """Months and nanoseconds of a text."""
    from fractions import Fraction

    if iso := _ISO.fullmatch(text.strip()):
        dated = re.sub(r"[A-Z]", lambda unit: f" {_ISO_UNITS[unit[0]]} ", iso[2])
        timed = re.sub(r"[A-Z]", lambda unit: f" {_ISO_TIMES[unit[0]]} ", iso[3] or "")
        months, nanos = _parse_parts(dated + timed)
        return (-months, -nanos) if iso[1] == "-" else (months, nanos)
    months = nanos = Fraction(0)
    position = 0
    while position < len(text.rstrip()):
        if clock := _CLOCK.match(text, position):
            seconds = (int(clock[2]) * 60 + int(clock[3])) * 60 + Fraction(clock[4] or 0)
            nanos += (-seconds if clock[1] == "-" else seconds) * _NANOS["s"]
            break
        part = _PART.match(text, position)
        if part is None:
            raise pa.ArrowInvalid(f"{text!r} is not a duration")
        unit = part[2].lower()
        if (size := _MONTHS.get(unit) or _MONTHS.get(unit.removesuffix("s"))) is not None:
            months += Fraction(part[1]) * size
        else:
            micros = Fraction(1, 1000) if unit in _NANOSECOND else unit_micros(unit)
            if micros is None:
                raise pa.ArrowInvalid(f"{text!r} is not a duration")
            nanos += Fraction(part[1]) * micros * 1000
        position = part.end()
    return months, nanos


def to_durations(column: Any, kind: pa.DurationType) -> pa.Array:
    """Intervals as durations, a day being 24 hours; one with months, or too fine or long to be counted, is refused."""
    parts = np.frombuffer(column.buffers()[1], _LAYOUT, len(column), column.offset * _LAYOUT.itemsize)
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    months, days, nanos = (np.where(valid, parts[name], 0) for name in ("months", "days", "nanos"))
    unit = _NANOS[kind.unit]
    unfit = (months != 0) | (nanos % unit != 0) | (np.abs(days.astype(float) * (_DAY / unit)) >= float(1 << 62))
    if unfit.any():
        first = column[int(np.argmax(unfit))].as_py()
        described = format_interval(first.nanoseconds, first.days, first.months)
        raise pa.ArrowInvalid(f"the interval '{described}' is no number of {kind.unit}; cast it to text")
    return pa.array(days.astype("i8") * (_DAY // unit) + nanos // unit, pa.int64(), mask=~valid).cast(kind)
