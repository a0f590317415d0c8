"""Dates and times as ISO 8601 text, and back, over all that Arrow and DuckDB can count, infinity included.

Arrow writes and reads the years 0 to 9999, column by column. Values outside are rare; a column that has some goes
through NumPy, with the signs that ISO 8601 asks of such years: -0043-01-01 is a day of 44 BC, +12345-01-01 one of the
year 12345.
"""

import re
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import compute as pc
from windrow.indexes.arrow_arrays import from_values

_SECONDS = (-62_167_219_200, 253_402_300_799)
"""The first second of the year 0 and the last of 9999, since 1970."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400
_ODD = r"(?i)^([+-]\d{4,11}-\d\d-\d\d|[+-]?infinity$)"
_PLAIN_ZONE = re.compile(r"(Z|[+-]00(:?00)?)$")
_ZONED = r"[T ]\d.*(Z|[+-]\d{2}(:?\d{2})?)$"
_DATE_ONLY = r"^\d{4}-\d{2}-\d{2}$"


def format_iso(column: pa.Array) -> pa.Array:
    """Dates, timestamps or times of the day as text; times with a zone are given in UTC, with a Z."""
    kind = column.type
    if pa.types.is_date64(kind):
        return format_iso(column.cast(pa.date32()))
    if pa.types.is_time(kind):
        return _format_times_of_day(column)
    zone = "Z" if pa.types.is_timestamp(kind) and kind.tz else ""
    if not _has_usual_years(column):
        return _format_unusual(column, zone)
    if pa.types.is_date(kind):
        return column.cast(pa.string())
    text = pc.replace_substring(column.cast(pa.timestamp(kind.unit)).cast(pa.string()), " ", "T", max_replacements=1)
    return _with_zone(text if kind.unit == "s" else _trim_zeros(text), zone)


def _to_counts(column: pa.Array) -> pa.Array:
    return column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())


def _has_usual_years(column: pa.Array) -> bool:
    """Whether all values are of years that have four digits, and no infinity."""
    extremes = pc.min_max(_to_counts(column))
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if low is None:
        return True
    if pa.types.is_date(column.type):
        return bool(_SECONDS[0] // _DAY <= low and high <= _SECONDS[1] // _DAY)
    unit = _PER_SECOND[column.type.unit]
    endless = column.type.unit == "ns" and (
        high == _infinity_count(column.type) or low == -_infinity_count(column.type)
    )
    return bool(_SECONDS[0] * unit <= low and high < (_SECONDS[1] + 1) * unit and not endless)


def _infinity_count(kind: pa.DataType) -> int:
    """The number that DuckDB has for infinity."""
    return (1 << 31) - 1 if pa.types.is_date(kind) else (1 << 63) - 1


def _format_unusual(column: pa.Array, zone: str) -> pa.Array:
    unit = "D" if pa.types.is_date(column.type) else column.type.unit
    counts = np.asarray(pc.fill_null(_to_counts(column).cast(pa.int64()), 0))
    texts = [_format_year(text, zone) for text in np.datetime_as_string(counts.astype(f"datetime64[{unit}]")).tolist()]
    endless = _infinity_count(column.type)
    formatted = [
        "infinity" if count == endless else "-infinity" if count == -endless else text
        for count, text in zip(counts.tolist(), texts, strict=True)
    ]
    return pa.array(formatted, pa.string(), mask=np.asarray(column.is_null()))


def _format_year(text: str, zone: str) -> str:
    """NumPy's text with as many digits and the sign that ISO 8601 wants."""
    if text == "NaT":  # the one number below DuckDB's -infinity
        return "-infinity"
    sign, year, rest = re.fullmatch(r"(-?)(\d+)(-.*)", text).groups()  # type: ignore[union-attr]
    if "." in rest:
        rest = rest.rstrip("0").rstrip(".")
    return f"{sign or ('+' if len(year) > 4 else '')}{year:0>4}{rest}{zone}"


def _with_zone(text: pa.Array, zone: str) -> pa.Array:
    if not zone:
        return text
    ends = from_values([zone, ""], pa.string())
    return pc.binary_join_element_wise(text, ends[0], ends[1])


def _format_times_of_day(column: pa.Array) -> pa.Array:
    whole = _DAY * _PER_SECOND[column.type.unit]  # DuckDB has 24:00:00, which Arrow cannot write
    counts = column.cast(pa.int32() if pa.types.is_time32(column.type) else pa.int64())
    midnight = pc.equal(counts, whole)
    text = pc.if_else(midnight, None, counts).cast(column.type).cast(pa.string())
    return pc.if_else(midnight, "24:00:00", text if column.type.unit == "s" else _trim_zeros(text))


def _trim_zeros(times: pa.Array) -> pa.Array:
    """Times without the zeros that say nothing: 12:00:00.500000 is 12:00:00.5."""
    trimmed = pc.replace_substring_regex(times, r"(\.\d*?)0+$", r"\1")
    return pc.replace_substring_regex(trimmed, r"\.$", "")


def parse_iso(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text as dates, timestamps or times of the day; times without a zone are UTC. No text is no time."""
    column = pc.if_else(pc.equal(column, ""), None, column.cast(pa.string()))
    if pa.types.is_time(kind):
        return _parse_usual(pc.binary_join_element_wise("1970-01-01T", column, ""), pa.timestamp(kind.unit)).cast(kind)
    if pa.types.is_date64(kind):
        return parse_iso(column, pa.date32()).cast(kind)
    odd = pc.fill_null(pc.match_substring_regex(column, _ODD), False)
    usual = pc.if_else(odd, None, column)
    parsed = usual.cast(kind) if pa.types.is_date(kind) else _parse_usual(usual, kind)
    if not pc.any(odd).as_py():
        return parsed
    counts = [_parse_unusual(text, kind) for text in column.filter(odd).to_pylist()]
    whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
    return pc.replace_with_mask(parsed.cast(whole), odd, pa.array(counts, whole)).cast(kind)


def _parse_usual(column: pa.Array, kind: pa.DataType) -> pa.Array:
    dated = pc.if_else(
        pc.match_substring_regex(column, _DATE_ONLY), pc.binary_join_element_wise(column, "T00:00:00", ""), column
    )
    zoned = pc.if_else(pc.match_substring_regex(dated, _ZONED), dated, pc.binary_join_element_wise(dated, "Z", ""))
    return zoned.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


def _parse_unusual(text: str, kind: Any) -> int:
    """What Arrow counts for an infinity or for a year that is not of four digits."""
    if text.lower().endswith("infinity"):
        return -_infinity_count(kind) if text.startswith("-") else _infinity_count(kind)
    plain = _PLAIN_ZONE.sub("", text) if "T" in text or " " in text else text
    unit: Any
    unit, per_second = ("D", 1 / _DAY) if pa.types.is_date(kind) else (kind.unit, _PER_SECOND[kind.unit])
    try:
        seconds = int(np.datetime64(plain, "s").astype("i8"))
        count = int(np.datetime64(plain, unit).astype("i8"))
    except ValueError:
        raise pa.ArrowInvalid(f"{text!r} is not a time") from None
    if abs(seconds) * per_second >= _infinity_count(kind):
        raise pa.ArrowInvalid(f"{text!r} is further away than can be counted")
    return count
