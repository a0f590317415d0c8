"""Views of results, against plain Python over the counts that runs up to the view's clock must have given."""

import datetime as dt
import random
import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import child_processes
import recorded_history
import windrow
from child_processes import append_minutes, open_result_views
from faulty_disks import CountingDisk, join_child, start_child

START, MINUTE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.timedelta(minutes=1)
COLUMNS = {"busy": "_window_end, n", "recent": "total, runs", "joined": "upto, n, pair"}


@pytest.fixture
def wh(tmp_path):
    with open_result_views(str(tmp_path / "w")) as warehouse:
        yield warehouse


def read(wh: windrow.Warehouse, view: str) -> list[tuple[object, ...]]:
    return wh.sql(f"SELECT {COLUMNS[view]} FROM {view} ORDER BY ALL").fetchall()


def find_minute(wh: windrow.Warehouse, view: str) -> int | None:
    clock = wh.now(view)
    return None if clock is None else (clock - START) // MINUTE


def compute_view(view: str, counts: Counter[int], minutes: list[int], upto: int) -> list[tuple[object, ...]]:
    """What a view holds if rounds were made at `minutes`, and all of them up to a minute are delivered."""
    ends = {m: START + MINUTE * m for m in minutes if m <= upto}
    each = {m: counts[m] for m in ends}
    if view == "busy":
        return [(ends[m], n) for m, n in each.items() if n > 1]
    if view == "recent":
        newest = [n for m, n in each.items() if m > max(each) - 3]
        return [(sum(newest), len(newest))]
    due = [m for before, m in zip((0, *ends), ends, strict=False) if m // 2 > before // 2]
    return [(ends[m], each[m], counts[m] + counts[m - 1]) for m in due]


@pytest.mark.parametrize("seed", [1807, 1808])
def test_a_view_of_results_holds_its_statement_over_what_was_delivered(wh, seed):
    """Rounds are left out now and then, and late rows make revisions of windows that a view has read already."""
    choice, counts, minutes = random.Random(seed), Counter[int](), []
    print("seed", seed)
    for minute in range(1, 15):
        new = [minute] * choice.randint(0, 3) + [m for m in minutes[-4:] if choice.random() < 0.2]
        counts.update(new)
        append_minutes(wh, *new, to=minute)
        before = {view: (find_minute(wh, view), read(wh, view)) for view in COLUMNS}
        if choice.random() < 0.3:
            continue
        wh.run_due()
        minutes.append(minute)
        for view in COLUMNS:
            assert find_minute(wh, view) == minute
            assert read(wh, view) == compute_view(view, counts, minutes, minute), (view, minute, before[view])
    assert {query.name for query in wh.queries() if query.revisions} == {"each", "pairs"}
    assert wh.check().ok


def test_a_view_waits_until_every_query_that_it_reads_has_delivered(wh):
    append_minutes(wh, 1, 2, 2, to=2)
    wh.run_due(["each"])
    assert find_minute(wh, "busy") == 2
    assert find_minute(wh, "joined") == 1, "pairs is due at minute 2"
    assert read(wh, "joined") == []
    wh.run_due(["pairs"])
    assert find_minute(wh, "joined") == 2
    assert read(wh, "joined") == [(START + 2 * MINUTE, 2, 3)]


def test_queries_and_views_may_read_a_view_of_results(wh):
    wh.create_view("most", "SELECT max(n) AS n FROM busy")
    wh.add_query("alarm", "SELECT count(*) AS c, max(n) AS m FROM busy", slide="1 minute")
    for minute in (1, 2, 3):
        append_minutes(wh, *[minute] * minute, to=minute)
        assert {run.outcome for run in wh.run_due()} == {"delivered"}
        assert [run.query for run in wh.run_due()] == ["alarm"], "it is due when the view has moved"
        assert wh.sql("SELECT n FROM most").fetchall() == [(minute if minute > 1 else None,)]
    runs = wh.sql("SELECT c, m FROM alarm ORDER BY _slide").fetchall()
    assert runs == [(0, None), (1, 2), (2, 3)]
    with wh.sql("SELECT * FROM most") as answer:
        assert answer.windows[0].end == START + 3 * MINUTE


def test_a_view_of_incomplete_results_is_not_complete(tmp_path):
    with recorded_history.open_warehouse(tmp_path / "w") as wh:
        schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
        options = {"sources": ["x", "y"], "on_source_failure": "exclude"}
        wh.create_stream("a", schema, time="ts", slide="1 minute", lifetime="1 hour", **options)
        for source in ("x", "y"):
            wh.heartbeat("a", source=source, up_to=START)
        wh.slide("a")
        wh.add_query("each", "SELECT count(*) AS n FROM a [WINDOW 2 MINUTES SLIDE 1 MINUTE]")
        wh.create_view("newest", "SELECT n FROM each [WINDOW 1 MINUTE]")
        for minute in (1, 2, 3, 4):
            wh.heartbeat("a", source="x", up_to=START + minute * MINUTE)
            if minute != 2:
                wh.heartbeat("a", source="y", up_to=START + minute * MINUTE)
            else:
                wh.fail_source("a", "y", "burnt")
            wh.slide("a")
            if minute == 3:  # heard again, and nobody vouches for what it missed
                assert [gap.kind for gap in wh.gaps("a")] == ["failed"]
            wh.run_due()
            with wh.sql("SELECT _complete, _coverage FROM each [WINDOW 1 MINUTE]") as answer:
                (complete, coverage) = answer.fetchall()[0]
            with wh.sql("SELECT * FROM newest") as answer:
                window = answer.windows[0]
                assert (window.complete, window.coverage) == (complete, coverage)
                assert [gap.kind for gap in window.gaps] == ([] if complete else ["runs"])


def test_what_a_view_of_results_refuses(wh):
    for sql, message in (
        ("SELECT n FROM each, a", "add a query that reads both"),
        ("SELECT n FROM each [WINDOW 2 MINUTES SLIDE 1 MINUTE]", "leave SLIDE out"),
        ("SELECT n FROM each [ROWS 2]", "windows go by _window_end"),
        ("SELECT random() AS r FROM each", "depend on its rows alone"),
        ("SELECT e.n FROM each e, windrow.streams", "reads no system tables"),
        ("SELECT m FROM each", '"m"'),
    ):
        with pytest.raises(windrow.WindrowError, match=message):
            wh.create_view("v", sql)
    with pytest.raises(windrow.ViewError, match="leave restore out"):
        wh.create_view("v", "SELECT n FROM each", restore=True)
    assert {view.name for view in wh.views()} == set(COLUMNS)
    with pytest.raises(windrow.InUseError, match="read by views"):
        wh.drop_query("each")
    with pytest.raises(windrow.ViewError, match="follows each by itself"):
        wh.slide("busy", to=START)
    for view in COLUMNS:
        wh.drop_view(view)
    wh.drop_query("each")


def test_a_view_whose_statement_fails_stays_where_it_is_and_says_why(wh):
    wh.create_view("inverse", "SELECT CAST(CASE WHEN n = 2 THEN 'two' ELSE n::VARCHAR END AS BIGINT) AS i FROM each")
    append_minutes(wh, 1, to=1)
    wh.run_due()
    append_minutes(wh, 2, 2, to=2)
    assert {run.outcome for run in wh.run_due()} == {"delivered"}
    (view,) = [view for view in wh.views() if view.name == "inverse"]
    assert "two" in view.error
    assert wh.sql("SELECT i FROM inverse").fetchall() == [(1,)]
    assert find_minute(wh, "inverse") == 1


def test_a_kill_between_delivery_and_view_leaves_it_behind_and_the_next_round_moves_it(tmp_path: Path) -> None:
    files = CountingDisk()
    with open_result_views(str(tmp_path / "whole"), files) as wh:
        before = dict(files.steps)
        truths = []
        for number in range(child_processes.RESULT_STEPS):
            child_processes.perform_result_step(wh, number)
            truths.append({view: (find_minute(wh, view), read(wh, view)) for view in COLUMNS})
    for step in ("query.committed", "view.staged", "view.published", "view.written", "view.moved"):
        passes = range(before.get(step, 0) + 1, files.steps[step] + 1)
        assert passes, step
        for nth in random.Random(step).sample(passes, 1):
            killed, progress = tmp_path / f"{step}-{nth}", tmp_path / f"{step}-{nth}.progress"
            child = start_child(child_processes.move_result_views_until_step, str(killed), str(progress), step, nth)
            assert join_child(child) == -signal.SIGKILL
            done = len(progress.read_bytes())
            with open_result_views(str(killed)) as wh:
                for view in COLUMNS:
                    minute = find_minute(wh, view)
                    assert minute in ((None, 1) if done == 0 else (done, done + 1)), (step, nth, view)
                    if minute is not None and minute <= done and done != 5:  # at the sixth, late rows revise others
                        assert (minute, read(wh, view)) == truths[minute - 1][view]
                wh.run_due()
                assert {view: (find_minute(wh, view), read(wh, view)) for view in COLUMNS} == truths[done]
                assert wh.check().ok
