"""Periodic queries over windows that are not complete: they tell, fail, or wait for what is missing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.errors import GapError, QueryError
from windrow.times import to_datetime

BASE = 1_767_225_600_000_000
SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
STATEMENT = "SELECT count(*) AS n FROM s [WINDOW 20 SECONDS SLIDE 10 SECONDS]"


def at(seconds: float):
    return to_datetime(BASE + round(seconds * SECOND))


def put(wh: windrow.Warehouse, source: str, *seconds: int) -> None:
    ts = [BASE + second * SECOND for second in seconds]
    rows = pa.table({"ts": pa.array(ts, SCHEMA.field("ts").type), "n": list(seconds)}, schema=SCHEMA)
    wh.append("s", rows, source=source)


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as warehouse:
        warehouse.create_stream(
            "s", SCHEMA, time="ts", slide="10 seconds", lifetime="2 minutes", sources=["a", "b"], max_ahead="2 hours"
        )
        for source in ("a", "b"):
            warehouse.heartbeat("s", source=source, up_to=at(0))
        warehouse.slide("s")
        yield warehouse


def force(wh: windrow.Warehouse, to: int) -> None:
    wh.slide("s", to=at(to), force=True)


def test_results_tell_what_their_window_lacks(wh, path):
    wh.add_query("q", STATEMENT, sink="parquet")
    put(wh, "a", 5, 10)
    force(wh, 10)
    assert [run.complete for run in wh.run_due()] == [False]
    answer = wh.sql("SELECT n, _complete, _coverage FROM q")
    assert answer.fetchall() == [(2, False, 0.75)]
    (window,) = answer.windows
    assert (window.kind, window.complete, window.coverage, window.end) == ("results", False, 0.75, at(10))
    about = json.loads(pq.read_schema(next(path.glob("results/q/*.parquet"))).metadata[b"windrow"])
    assert (about["complete"], about["windows"][0]["gaps"][0]["source"]) == (False, "b")
    assert wh.sql("SELECT coverage FROM windrow.runs").fetchall() == [(0.75,)]


def test_a_run_over_a_gap_can_be_an_error_until_the_gap_is_gone(wh):
    wh.add_query("q", STATEMENT, on_gap="error")
    put(wh, "a", 5, 10)
    force(wh, 10)
    (run,) = wh.run_due()
    assert (run.outcome, run.rows) == ("failed", 0) and "is not complete (behind, b" in run.error
    wh.heartbeat("s", source="b", up_to=at(10))
    (run,) = wh.run_due(now=True)
    assert (run.outcome, run.complete) == ("delivered", True)


def test_a_run_waits_for_what_is_missing_and_is_made_as_of_its_slide(wh):
    wh.add_query("q", STATEMENT, on_gap="wait", deadline="40 seconds")
    put(wh, "a", 5, 10)
    force(wh, 10)
    assert wh.run_due() == []
    put(wh, "a", 20)
    put(wh, "b", 7, 20)
    wh.slide("s")
    (run,) = wh.run_due()
    assert run.complete and wh.sql("SELECT _window_end, n FROM q").fetchall() == [(at(10), 3)], "with b's late row"
    assert [run.outcome for run in wh.run_due()] == ["delivered"]
    assert wh.sql("SELECT n FROM q ORDER BY _slide").fetchall() == [(3,), (5,)]


def test_a_run_waits_no_longer_than_its_deadline(wh):
    wh.add_query("q", STATEMENT, on_gap="wait", deadline="20 seconds")
    put(wh, "a", 5)
    wh.heartbeat("s", source="a", up_to=at(30))
    for to in (10, 20):
        force(wh, to)
        assert wh.run_due() == []
    force(wh, 30)
    (run,) = wh.run_due()
    assert not run.complete and wh.sql("SELECT _window_end, n, _coverage FROM q").fetchall() == [(at(10), 1, 0.75)]


def test_policies_that_cannot_be_are_refused(wh):
    for options, message in (
        ({"on_gap": "never"}, "on_gap='never' is unknown; choose one of tell, error, wait"),
        ({"on_gap": "wait"}, "goes with deadline="),
        ({"deadline": "1 minute"}, "goes with deadline="),
        ({"on_gap": "wait", "deadline": "1 minute", "missed": "every"}, "use missed='latest'"),
    ):
        with pytest.raises(GapError, match=message):
            wh.add_query("q", STATEMENT, **options)
    with pytest.raises(QueryError, match="too short for a window of 20 seconds and deadline='2 minutes'"):
        wh.add_query("q", STATEMENT, on_gap="wait", deadline="2 minutes")
    assert wh.queries() == []
