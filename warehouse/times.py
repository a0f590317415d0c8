"""Durations and times as users write them, converted to microseconds UTC, which all other modules count in."""

import datetime as dt
import re

from windrow.errors import DefinitionError

SECOND = 1_000_000
NEVER = (1 << 63) - 1
"""The expiry of a row that never leaves."""

_UNITS = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": SECOND,
    "sec": SECOND,
    "s": SECOND,
    "minute": 60 * SECOND,
    "min": 60 * SECOND,
    "m": 60 * SECOND,
    "hour": 3600 * SECOND,
    "h": 3600 * SECOND,
    "day": 86400 * SECOND,
    "d": 86400 * SECOND,
    "week": 7 * 86400 * SECOND,
    "w": 7 * 86400 * SECOND,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*,?")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ENDS = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
_FIRST, _LAST = ((end - _EPOCH) // dt.timedelta(microseconds=1) for end in _ENDS)

Duration = str | dt.timedelta
Instant = str | dt.datetime


def unit_micros(unit: str) -> int | None:
    """Microseconds in one `unit` (singular, plural or short form), or None for a word that is no unit."""
    word = unit.lower()
    return _UNITS.get(word) or (_UNITS.get(word[:-1]) if word.endswith("s") else None)


def parse_duration(value: Duration, what: str = "duration") -> int:
    """Microseconds of a duration such as ``"1 hour 30 minutes"`` or a timedelta."""
    if isinstance(value, dt.timedelta):
        micros = value // dt.timedelta(microseconds=1)
    elif isinstance(value, str):
        micros, position = 0, 0
        while position < len(value.rstrip()):
            part = _PART.match(value, position)
            factor = unit_micros(part[2]) if part else None
            if part is None or factor is None:
                raise DefinitionError(
                    f"{what} {value!r} is not a duration; write it like '10 minutes' or '1 hour 30 minutes'"
                )
            exact = float(part[1]) * factor if "." in part[1] else int(part[1]) * factor
            micros += round(exact)
            position = part.end()
    else:
        raise DefinitionError(f"{what} must be a string like '10 minutes' or a timedelta, not {type(value).__name__}")
    if micros <= 0:
        raise DefinitionError(f"{what} {value!r} must be longer than zero")
    if micros > NEVER // 4:
        raise DefinitionError(f"{what} {value!r} is longer than can be counted in microseconds")
    return micros


def parse_seconds(value: float | Duration, what: str) -> float:
    """Seconds of a number of them, or of a duration."""
    if isinstance(value, str | dt.timedelta):
        return parse_duration(value, what) / SECOND
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise DefinitionError(f"{what}={value!r} must be seconds, more than zero, or a duration such as '5 seconds'")
    return float(value)


def parse_slack(value: Duration, what: str) -> int:
    """Like `parse_duration`, but zero is allowed."""
    if value in ("0", "0 seconds", "0s") or value == dt.timedelta(0):
        return 0
    return parse_duration(value, what)


def parse_instant(value: Instant, what: str = "time") -> int:
    """Microseconds since the epoch of a datetime or ISO string; without a zone it is taken as UTC."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise DefinitionError(f"{what} {value!r} is not a time; write it like '2026-11-16T12:00:00'") from None
    if not isinstance(value, dt.datetime):
        raise DefinitionError(f"{what} must be a datetime or an ISO string, not {type(value).__name__}")
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    return (value - _EPOCH) // dt.timedelta(microseconds=1)


def to_datetime(micros: int) -> dt.datetime:
    """The UTC datetime of `micros`; what is before the year 1 or after 9999 is the first or last that Python has."""
    return _EPOCH + dt.timedelta(microseconds=min(max(micros, _FIRST), _LAST))


def format_time(time: int | dt.datetime | None) -> str:
    """An instant (microseconds or a datetime) for people."""
    if time is None:
        return "-"
    micros = parse_instant(time) if isinstance(time, dt.datetime) else time
    try:
        return to_datetime(micros).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{micros} µs"


def format_duration(micros: int) -> str:
    """A duration for people, in the largest unit that holds it in whole numbers."""
    for name in ("week", "day", "hour", "minute", "second", "millisecond"):
        size = _UNITS[name]
        if micros and micros % size == 0 and (name != "week" or micros // size > 1):
            return f"{micros // size} {name}{'' if micros == size else 's'}"
    return f"{micros} microseconds"
