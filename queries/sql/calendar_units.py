"""Calendar units in a time zone: which hour, day, week, month, quarter or year holds an instant, and which one before.

A unit is (start, end] like every window: the instant of midnight belongs to the day that ends there. Days have 23 or
25 hours where the clocks change; an hour that comes twice is two hours.
"""

import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from windrow import times
from windrow.errors import WindowError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_HOUR, _DAY = 3600 * times.SECOND, 86400 * times.SECOND
UNIT_LENGTHS = {
    "hour": _HOUR, "day": _DAY, "week": 7 * _DAY, "month": 31 * _DAY, "quarter": 92 * _DAY, "year": 366 * _DAY,
}  # fmt: skip
"""The longest that each unit is where clocks never change."""
MAX_PREVIOUS = 10_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@lru_cache(maxsize=256)
def find_zone(name: str) -> "ZoneInfo":
    """A time zone by its name.

    Raises:
        WindowError: there is none; the error names one that is written alike.
    """
    from difflib import get_close_matches  # few statements name a zone
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    try:
        if name in available_timezones():
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    alike = get_close_matches(name, sorted(available_timezones()), 1)
    hint = f"did you mean {alike[0]!r}?" if alike else "write it like 'Europe/Berlin' or 'UTC'"
    raise WindowError(f"there is no time zone {name!r}; {hint}")


def _local(zone: "ZoneInfo", instant: int) -> dt.datetime:
    return (_EPOCH + dt.timedelta(microseconds=instant)).astimezone(zone)


def _offset(zone: "ZoneInfo", instant: int) -> dt.timedelta:
    return _local(zone, instant).utcoffset() or dt.timedelta(0)


def _bisect(low: int, high: int, reached: Callable[[int], bool]) -> int:
    """The first instant after `low`, up to `high`, at which something is reached that stays so."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _begin(zone: "ZoneInfo", wall: dt.datetime) -> int:
    """The first instant at which the clocks show `wall` or, where they skip it, a later time."""
    early, late = (
        (wall.replace(tzinfo=zone, fold=fold) - _EPOCH) // _MICROSECOND for fold in (1, 0)
    )  # in the hour that comes twice, fold 0 is the first of them; in one that is skipped, fold 1 is before it
    if early >= late:
        return late
    return _bisect(early - 1, late, lambda instant: _local(zone, instant).replace(tzinfo=None) >= wall)


def _find_hour(zone: "ZoneInfo", inside: int) -> tuple[int, int]:
    """The hour of the wall clock around an instant, as far as the clocks do not change in it."""
    offset = _offset(zone, inside)
    shift = offset // _MICROSECOND
    start = (inside + shift) // _HOUR * _HOUR - shift
    end = start + _HOUR
    if _offset(zone, start) != offset:
        start = _bisect(start, inside, lambda instant: _offset(zone, instant) == offset)
    if _offset(zone, end - 1) != offset:
        end = _bisect(inside, end, lambda instant: _offset(zone, instant) != offset)
    return start, end


def _first_day(unit: str, day: dt.date) -> dt.date:
    if unit == "week":
        return day - dt.timedelta(days=day.weekday())
    if unit == "quarter":
        return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
    return day if unit == "day" else day.replace(day=1) if unit == "month" else day.replace(month=1, day=1)


def _following(unit: str, first: dt.date) -> dt.date:
    if unit in ("day", "week"):
        return first + dt.timedelta(days=1 if unit == "day" else 7)
    return _first_day(unit, first + dt.timedelta(microseconds=UNIT_LENGTHS[unit] + 3 * _DAY))


@lru_cache(maxsize=4096)
def find_unit(unit: str, zone_name: str, instant: int, previous: int = 0) -> tuple[int, int]:
    """Start and end of the unit that holds an instant, or of the n-th before it, in microseconds."""
    zone = find_zone(zone_name)
    try:
        for _ in range(previous):
            instant = find_unit(unit, zone_name, instant)[0]
        if unit == "hour":
            return _find_hour(zone, instant - 1)
        first = _first_day(unit, _local(zone, instant - 1).date())
        start, end = (_begin(zone, dt.datetime.combine(day, dt.time())) for day in (first, _following(unit, first)))
    except (OverflowError, ValueError):
        raise WindowError(f"the calendar of {zone_name} ends before {times.format_time(instant)}") from None
    return start, end


def find_last_end(unit: str, zone_name: str, instant: int) -> int:
    """The end of the last unit that is over at an instant."""
    start, end = find_unit(unit, zone_name, instant)
    return end if end == instant else start


def count_units(unit: str, zone_name: str, first: int, last: int) -> int:
    """How many units end after `first`, itself the end of one, up to `last`."""
    if unit == "hour":
        return (last - first) // _HOUR
    days = [_local(find_zone(zone_name), instant).date() for instant in (first, last)]
    if unit in ("day", "week"):
        return (days[1] - days[0]).days // (1 if unit == "day" else 7)
    months = (days[1].year - days[0].year) * 12 + days[1].month - days[0].month
    return months // {"month": 1, "quarter": 3, "year": 12}[unit]


@lru_cache(maxsize=256)
def longest_span(unit: str, zone_name: str, units: int, around: int) -> int:
    """The longest that so many units in a row can be, by the clock changes of the year around an instant."""
    length = units * UNIT_LENGTHS[unit]
    if unit == "hour":
        return length
    zone = find_zone(zone_name)
    try:
        offsets = [_offset(zone, around + month * 30 * _DAY) // _MICROSECOND for month in range(-6, 7)]
    except (OverflowError, ValueError):
        raise WindowError(f"the calendar of {zone_name} ends before {times.format_time(around)}") from None
    return length + (max(offsets) - min(offsets) if unit != "year" else 0)
