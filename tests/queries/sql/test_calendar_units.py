"""Calendar units against Python's zoneinfo: a unit is what shares one label on the wall, and nothing beside it does.

Berlin, 30 March 2025:   (23:00Z ........ 01:00Z | clocks go from 02:00 to 03:00 | ........ 22:00Z]   23 hours
"""

import datetime as dt
import random
from zoneinfo import ZoneInfo

import pytest

from windrow.errors import QueryError, WindowError
from windrow.queries.sql.calendar_units import UNIT_LENGTHS, count_units, find_last_end, find_unit, longest_span
from windrow.queries.sql.statement import parse
from windrow.queries.sql.window_spec import CalendarWindow

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
HOUR = 3_600_000_000
ZONES = {  # each with its two changes of the clock around 2025
    "Europe/Berlin": ("2025-03-30T01:00", "2025-10-26T01:00"),
    "America/New_York": ("2025-03-09T07:00", "2025-11-02T06:00"),
    "Australia/Lord_Howe": ("2025-04-05T15:00", "2025-10-04T15:30"),  # by half an hour
    "America/Havana": ("2025-03-09T05:00", "2025-11-02T05:00"),  # at midnight: a day begins at one, another one twice
    "Asia/Kathmandu": ("2025-03-30T01:00", "2025-10-26T01:00"),  # never, and three quarters of an hour off
}


def micros(text: str) -> int:
    return (dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)


def label(unit: str, zone: str, instant: int) -> tuple[object, ...]:
    """What the wall calendar calls the unit of an instant; the hour that comes twice is told apart by its offset."""
    local = (EPOCH + dt.timedelta(microseconds=instant)).astimezone(ZoneInfo(zone))
    return {
        "hour": (local.date(), local.hour, local.utcoffset()),
        "day": (local.date(),),
        "week": local.isocalendar()[:2],
        "month": (local.year, local.month),
        "quarter": (local.year, (local.month - 1) // 3),
        "year": (local.year,),
    }[unit]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", UNIT_LENGTHS)
def test_a_unit_is_all_instants_with_its_label_and_no_other(unit, zone):
    random.seed(seed := 18)
    print("seed", seed)
    changes = [micros(text) for text in ZONES[zone]]
    around = [change + random.randrange(-30 * HOUR, 30 * HOUR) for change in changes for _ in range(40)]
    around += [change + off for change in changes for off in (-HOUR, -1, 0, 1, HOUR // 2, HOUR, 24 * HOUR)]
    for instant in around:
        start, end = find_unit(unit, zone, instant)
        assert start < instant <= end
        # Windows are (start, end], labels [start, end): the same, one microsecond apart.
        assert label(unit, zone, start) == label(unit, zone, instant - 1) == label(unit, zone, end - 1)
        assert label(unit, zone, start - 1) != label(unit, zone, start)
        assert label(unit, zone, end) != label(unit, zone, end - 1)
        assert find_unit(unit, zone, instant, 1)[1] == start
        assert find_last_end(unit, zone, instant) == (end if instant == end else start)
        assert end - start <= longest_span(unit, zone, 1, instant)


def test_days_have_23_and_25_hours_and_skipped_ones_none():
    lengths = {
        day: (end - start) / HOUR
        for day in ("2025-03-30", "2025-03-31", "2025-10-26")
        for start, end in [find_unit("day", "Europe/Berlin", micros(f"{day}T12:00"))]
    }
    assert lengths == {"2025-03-30": 23, "2025-03-31": 24, "2025-10-26": 25}
    # Samoa had no 30 December 2011: the day before its 31st is its 29th.
    new_year = micros("2011-12-30T20:00")
    assert label("day", "Pacific/Apia", find_unit("day", "Pacific/Apia", new_year)[0]) == (dt.date(2011, 12, 31),)
    assert label("day", "Pacific/Apia", find_unit("day", "Pacific/Apia", new_year, 1)[0]) == (dt.date(2011, 12, 29),)


@pytest.mark.parametrize("unit", UNIT_LENGTHS)
def test_the_nth_unit_before_is_n_steps_back(unit):
    instant = micros("2025-11-18T14:00")
    ends = [find_unit(unit, "Europe/Berlin", instant, number)[1] for number in range(8)]
    starts = [find_unit(unit, "Europe/Berlin", instant, number)[0] for number in range(8)]
    assert starts[:-1] == ends[1:]
    assert [count_units(unit, "Europe/Berlin", ends[7], end) for end in reversed(ends)] == list(range(8))


def test_clauses_and_the_function_form_mean_the_same():
    wanted = CalendarWindow("week", "Europe/Berlin", 2)
    for text in ("a [WEEK 'Europe/Berlin' PREVIOUS 2]", "window('a', week := 'Europe/Berlin', previous := 2)"):
        (reference,) = parse(f"SELECT 1 FROM {text}").references
        assert reference.window == wanted
    assert str(wanted) == "[WEEK 'Europe/Berlin' PREVIOUS 2]"
    assert parse("SELECT [day, 1] FROM (SELECT 2 AS day)").references == ()


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("[DAY 'Europe/Berlni']", "did you mean 'Europe/Berlin'"),
        ("[DAY '../../etc/passwd']", "there is no time zone"),
        ("[DAY 'Europe']", "there is no time zone"),
        ("[DAY 'UTC' PREVIOUS 0]", "PREVIOUS takes a whole number"),
        ("[DAY 'UTC' PREVIOUS 1000000]", "PREVIOUS takes a whole number"),
        ("[MONTH 'UTC' SLIDE 1 DAY]", "must end here"),
    ],
)
def test_what_is_no_calendar_window_is_said_at_its_place(clause, message):
    with pytest.raises(QueryError, match=message):
        parse(f"SELECT 1 FROM a {clause}")


def test_an_instant_beyond_the_calendar_is_refused_in_words():
    with pytest.raises(WindowError, match="the calendar of UTC ends"):
        find_unit("day", "UTC", 1 << 62)
