"""Calendar windows over rows and in reports, against rows kept by their wall-clock date in plain Python."""

import datetime as dt
import itertools
import random
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import windrow
from windrow.queries.sql.calendar_units import find_last_end, find_unit

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
HOUR = dt.timedelta(hours=1)
TICK = dt.timedelta(microseconds=1)
ZONES = ("Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "America/New_York", "Asia/Kathmandu")
"""Clocks that change at one, at midnight, by half an hour, at two, and never; Kathmandu is 5:45 ahead."""
UNITS = {
    "hour": lambda wall: (wall.date(), wall.hour, wall.utcoffset()),
    "day": lambda wall: wall.date(),
    "week": lambda wall: wall.isocalendar()[:2],
    "month": lambda wall: (wall.year, wall.month),
    "quarter": lambda wall: (wall.year, (wall.month - 1) // 3),
    "year": lambda wall: wall.year,
}
"""What all instants of a unit have in common."""


def rows_between(start: dt.datetime, end: dt.datetime) -> list[dict[str, object]]:
    """A row every twenty minutes after start, up to end."""
    count = int((end - start) / (HOUR / 3))
    return [{"ts": start + HOUR / 3 * number, "k": number} for number in range(1, count + 1)]


def day_of(row: dict[str, object], zone: str) -> dt.date:
    """The day of a row: midnight belongs to the day that ends with it."""
    return (row["ts"] - TICK).astimezone(ZoneInfo(zone)).date()


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "w") as warehouse:
        warehouse.create_stream("a", SCHEMA, time="ts", key="k", slide="1 hour", lifetime="8 days")
        yield warehouse


@pytest.mark.parametrize("zone", ZONES)
def test_units_are_runs_of_instants_that_the_wall_clock_calls_alike(zone):
    """Every quarter of an hour of eighteen months, with all changes of the clock, through Python's zoneinfo."""
    start, quarter = dt.datetime(2024, 11, 1, tzinfo=dt.UTC), dt.timedelta(minutes=15)
    starts = [start + quarter * number for number in range(18 * 30 * 96)]
    walls = [instant.astimezone(ZoneInfo(zone)) for instant in starts]
    choice, micros = random.Random(zone), lambda time: round(time.timestamp()) * 1_000_000
    for unit, label in UNITS.items():
        called = [label(wall) for wall in walls]
        runs = [starts[number] for number in range(1, len(starts)) if called[number] != called[number - 1]]
        units = list(itertools.pairwise(runs))
        assert len(units) > (0 if unit == "year" else 3)
        for number, (first, last) in enumerate(units):
            if unit in ("hour", "day") and choice.random() > 0.02 and last - first in (HOUR, 24 * HOUR):
                continue
            inside = choice.randrange(micros(first) + 1, micros(last))
            for instant in (micros(first) + 1, inside, micros(last)):
                assert find_unit(unit, zone, instant) == (micros(first), micros(last)), (unit, first)
            assert find_last_end(unit, zone, micros(last)) == micros(last)
            assert find_last_end(unit, zone, inside) == micros(first)
            back = choice.randrange(min(number, 30) + 1)
            assert find_unit(unit, zone, inside, back) == tuple(map(micros, units[number - back]))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("change", [dt.datetime(2025, 3, 30, tzinfo=dt.UTC), dt.datetime(2025, 11, 2, tzinfo=dt.UTC)])
def test_one_time_windows_are_the_rows_of_their_day(wh, zone, change):
    start, clock = change - dt.timedelta(days=3), change + dt.timedelta(days=2, hours=7)
    rows = rows_between(start, clock)
    wh.append("a", pa.Table.from_pylist(rows, SCHEMA))
    wh.slide("a", to=clock)
    today = (clock - TICK).astimezone(ZoneInfo(zone)).date()
    for back in range(4):
        previous = f" PREVIOUS {back}" if back else ""
        answer = wh.sql(f"SELECT k FROM a [DAY '{zone}'{previous}] ORDER BY k")
        assert [k for (k,) in answer.fetchall()] == [
            row["k"] for row in rows if day_of(row, zone) == today - dt.timedelta(days=back)
        ]
    (window,) = answer.windows
    assert str(window.start.tzinfo) == zone
    assert (window.start.hour, window.start.date()) in ((0, today - dt.timedelta(days=3)), (1, window.start.date()))


@pytest.mark.parametrize("missed", ["latest", "every"])
@pytest.mark.parametrize("change", [dt.datetime(2025, 3, 30, tzinfo=dt.UTC), dt.datetime(2025, 10, 26, tzinfo=dt.UTC)])
def test_a_daily_report_is_of_the_whole_day_and_due_a_lag_after_it(wh, missed, change):
    zone, start = "Europe/Berlin", change - dt.timedelta(days=2)
    rows = rows_between(start, change + dt.timedelta(days=3))
    sql = f"SELECT count(*) AS n, sum(k) AS total FROM a [DAY '{zone}']"
    wh.slide("a", to=start)
    wh.add_query("daily", sql, lag="2 hours", missed=missed)
    reported = []
    for hour in range(1, 5 * 24 + 1):
        clock = start + HOUR * hour
        wh.append("a", pa.Table.from_pylist([row for row in rows if clock - HOUR < row["ts"] <= clock], SCHEMA))
        wh.slide("a", to=clock)
        reported += [(clock, run.outcome) for run in wh.run_due()]
    midnights = [
        dt.datetime.combine(change.date() + dt.timedelta(days=day), dt.time(), ZoneInfo(zone)) for day in range(-2, 4)
    ]
    ended = [midnight for midnight in midnights if start < midnight.astimezone(dt.UTC) + 2 * HOUR <= start + HOUR * 120]
    assert reported == [(midnight.astimezone(dt.UTC) + 2 * HOUR, "delivered") for midnight in ended]
    results = wh.results("daily").arrow()
    assert results.schema.field("_window_end").type == pa.timestamp("us", zone)
    for row, midnight in zip(results.to_pylist(), ended, strict=True):
        day = midnight.date() - dt.timedelta(days=1)
        ours = [each["k"] for each in rows if day_of(each, zone) == day]
        assert (row["n"], row["total"]) == (len(ours), sum(ours) if ours else None)
        assert row["_window_end"] == midnight
        assert row["_window_start"] == dt.datetime.combine(day, dt.time(), ZoneInfo(zone))
    assert next(iter(wh.queries())).period == "day in Europe/Berlin"
    assert next(iter(wh.queries())).missed_runs == 0


def test_a_report_that_nobody_ran_counts_the_days_it_missed(wh):
    start = dt.datetime(2025, 3, 1, tzinfo=dt.UTC)
    wh.slide("a", to=start)
    wh.add_query("daily", "SELECT count(*) AS n FROM a [DAY 'UTC']", sink="html")
    wh.slide("a", to=start + dt.timedelta(days=4, hours=3))
    (run,) = wh.run_due()
    assert "up to 2025-03-05T00:00:00Z" in Path(run.file).read_text()
    (query,) = wh.queries()
    assert (query.runs, query.missed_runs) == (1, 3)


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("SELECT 1 FROM a [MONTH 'UTC']", {}, "keeps rows for 8 days"),
        ("SELECT 1 FROM a [WEEK 'UTC']", {"lag": "1 day"}, "keeps rows for 8 days"),
        ("SELECT 1 FROM a [DAY 'UTC'], a [DAY 'Europe/Berlin'] AS b", {}, "two periods"),
        ("SELECT 1 FROM a [DAY 'UTC'], a [WINDOW 1 DAY SLIDE 1 DAY] AS b", {}, "two periods"),
        ("SELECT 1 FROM a [DAY 'UTC']", {"slide": "1 day"}, "leave slide= out"),
        ("SELECT 1 FROM a [WINDOW 1 DAY SLIDE 1 DAY]", {"lag": "1 hour"}, "lag= is how long after a calendar unit"),
    ],
)
def test_what_cannot_be_reported_is_refused_and_nothing_is_registered(wh, sql, options, message):
    wh.slide("a", to=dt.datetime(2025, 3, 1, tzinfo=dt.UTC))
    with pytest.raises(windrow.WindrowError, match=message):
        wh.add_query("bad", sql, **options)
    assert wh.queries() == []


def test_a_view_has_no_calendar(wh):
    with pytest.raises(windrow.WindrowError, match="a view moves with its inputs"):
        wh.create_view("v", "SELECT ts, k FROM a [DAY 'UTC']")
