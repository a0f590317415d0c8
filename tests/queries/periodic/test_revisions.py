"""Windows that late rows change after they were delivered: run again as of their slide, each revision exactly once.

slides      1    2    3          the row of slot 1 that slide 3 takes in changes the windows of slides 1 and 2,
windows    (0,1]                 which are delivered again, each with what was known at slide 3
           (0,  2]
                (1,  3]
"""

import collections
import datetime as dt
import random
import signal
from pathlib import Path

import pyarrow as pa
import pytest

import child_processes
import periodic_histories
import recorded_history
import scratch_folders
import windrow
from child_processes import PER_SLOT, REVISED_SLOTS
from faulty_disks import join_child, start_child
from sample_streams import BASE, DELTA
from windrow.files import DELIVERY_CRASH_POINTS
from windrow.queries.planner.row_cache import RowCache

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
START, MINUTE = dt.datetime(2025, 3, 28, tzinfo=dt.UTC), dt.timedelta(minutes=1)
WINDOW = "a [WINDOW 3 MINUTES SLIDE 1 MINUTE]"


class LateHistory:
    """A stream with late rows, and which slide took each row in."""

    def __init__(self, wh: windrow.Warehouse, seed: int) -> None:
        self.wh, self.choice = wh, random.Random(seed)
        self.rows: list[tuple[int, dt.datetime, int]] = []
        """Slide, time and value of each row."""
        print("seed", seed)

    def slide(self, minute: int) -> None:
        backs = [self.choice.choice((0, 0, 0, 0, 1, 3, 6)) for _ in range(5)]
        new = [
            (START + MINUTE * (minute - back) - MINUTE * self.choice.random(), len(self.rows) + i)
            for i, back in enumerate(backs)
        ]
        self.rows += [(minute, ts, k) for ts, k in new]
        self.wh.append("a", pa.Table.from_pylist([{"ts": ts, "k": k} for ts, k in new], SCHEMA))
        self.wh.slide("a", to=START + MINUTE * minute)

    def window(self, minute: int, asked_at: int) -> list[int]:
        """The values of a window, as far as rows had come up to a slide."""
        end = START + MINUTE * minute
        return [k for slide, ts, k in self.rows if slide <= asked_at and end - 3 * MINUTE < ts <= end]


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "w") as warehouse:
        warehouse.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="20 minutes")
        warehouse.slide("a", to=START)
        yield warehouse


def test_every_revision_is_plain_sql_over_the_rows_of_its_window_known_then(wh):
    history = LateHistory(wh, 1805)
    wh.add_query("r", f"SELECT k FROM {WINDOW} ORDER BY k", revise="4 minutes")
    wh.add_query("sums", f"SELECT sum(k) AS s, count(*) AS n FROM {WINDOW}", revise="4 minutes", missed="every")
    wh.add_query("plain", f"SELECT k FROM {WINDOW}")
    first, expected, newest = wh.stream("a").slide, {}, {}
    for minute in range(1, 15):
        history.slide(minute)
        made = wh.run_due()
        assert [run.outcome for run in made] == ["delivered"] * len(made)
        numbers = [run.revision > 0 for run in made]
        assert numbers == sorted(numbers), "revisions come after what is due"
        newest[minute] = (0, minute)
        expected[minute, 0] = history.window(minute, minute)
        for window in range(max(1, minute - 4), minute):  # revised for four minutes
            if history.window(window, minute) != history.window(window, newest[window][1]):
                newest[window] = newest[window][0] + 1, minute
                expected[window, newest[window][0]] = history.window(window, minute)
        assert {(run.query, run.slide - first, run.revision) for run in made if run.revision} == {
            (query, window, number)
            for window, (number, taken_in) in newest.items()
            if taken_in == minute and number
            for query in ("r", "sums")
        }
        assert wh.run_due() == [], "at most one revision of a window per slide"
    delivered = collections.defaultdict(list)
    for row in wh.results("r", revisions=True).arrow().to_pylist():
        delivered[row["_slide"] - first, row["_revision"]].append(row["k"])
    assert delivered == {key: rows for key, rows in expected.items() if rows}
    sums = wh.results("sums", revisions=True).arrow().to_pylist()
    assert {(row["_slide"] - first, row["_revision"]): (row["s"], row["n"]) for row in sums} == {
        key: (sum(rows) if rows else None, len(rows)) for key, rows in expected.items()
    }
    shown = collections.defaultdict(list)
    for slide, k in wh.sql("SELECT _slide, k FROM r ORDER BY _slide, k").fetchall():
        shown[slide - first].append(k)
    assert shown == {window: rows for window, (number, _) in newest.items() if (rows := expected[window, number])}
    changed = {w for w in newest if history.window(w, 14) != history.window(w, w)}
    late = {w for w, (_, taken_in) in newest.items() if history.window(w, 14) != history.window(w, taken_in)}
    status = {query.name: query for query in wh.queries()}
    assert (status["plain"].outdated, status["plain"].revisions) == (len(changed), 0)
    assert status["r"].outdated == len(late)
    assert status["r"].revisions == sum(number for number, _ in newest.values())


def test_differences_of_a_revision_are_to_the_revision_before(wh):
    history = LateHistory(wh, 1806)
    for output in ("inserts", "deletes"):
        wh.add_query(output, f"SELECT count(*) AS n, sum(k) AS s FROM {WINDOW}", revise="4 minutes", output=output)
    first = wh.stream("a").slide
    answers: dict[int, tuple[int, int]] = {}
    for minute in range(1, 12):
        history.slide(minute)
        for run in wh.run_due():
            now = history.window(run.slide - first, minute)
            now = len(now), sum(now) if now else None
            before = answers.get((run.query, run.slide - first) if run.revision else (run.query, "last"))
            rows = wh.results(run.query, slide=run.slide, revisions=True).arrow().to_pylist()
            rows = [(row["n"], row["s"]) for row in rows if row["_revision"] == run.revision]
            differs = [] if now == before else [now if run.query == "inserts" else before]
            assert rows == [row for row in differs if row is not None]
            answers[run.query, run.slide - first] = now
            if not run.revision or run.slide == wh.stream("a").slide:
                answers[run.query, "last"] = now


def test_revisions_of_several_slides_share_rows_that_are_read_once(wh, monkeypatch):
    monkeypatch.setattr("windrow.queries.periodic.shared_rows._STATEMENT", 1.0)  # it always pays
    loaded = []
    load = RowCache._fill
    monkeypatch.setattr(RowCache, "_fill", lambda *args: loaded.append(1) or load(*args))
    history, first = LateHistory(wh, 1808), wh.stream("a").slide
    for number in range(3):
        wh.add_query(f"q{number}", f"SELECT k + {number} AS k FROM {WINDOW} ORDER BY k", revise="4 minutes")
    for minute in range(1, 9):
        history.slide(minute)
        loaded.clear()
        made = wh.run_due()
        assert len(loaded) <= 2, "once for what is due, once for all revisions"
    assert len({run.slide for run in made if run.revision}) > 1
    for number in range(3):
        shown = collections.defaultdict(list)
        for slide, k in wh.sql(f"SELECT _slide, k FROM q{number} ORDER BY ALL").fetchall():
            shown[slide - first].append(k - number)
        assert {m: shown[m] for m in range(5, 9)} == {m: sorted(history.window(m, 8)) for m in range(5, 9)}


def test_synopses_answer_revisions_too(wh):
    """With many rows, slots are kept aggregated; late rows go into their slot, so that a past window is there anew."""
    choice = random.Random(seed := 1807)
    print("seed", seed)
    wh.add_query("r", f"SELECT k, count(*) AS n, sum(k) AS s FROM {WINDOW} GROUP BY k ORDER BY k", revise="6 minutes")
    first, rows, how, newest = wh.stream("a").slide, [], set(), {}
    for minute in range(1, 14):
        backs = [0] * 900 + [choice.choice((1, 2, 5)) for _ in range(choice.choice((0, 9)))]
        new = [(START + MINUTE * (minute - back) - MINUTE * choice.random(), choice.randrange(7)) for back in backs]
        rows += new
        wh.append("a", pa.Table.from_pylist([{"ts": ts, "k": k} for ts, k in new], SCHEMA))
        wh.slide("a", to=START + MINUTE * minute)
        for run in wh.run_due():
            how |= {run.how} if run.revision else set()
            end = START + MINUTE * (run.slide - first)
            counts = collections.Counter(k for ts, k in rows if end - 3 * MINUTE < ts <= end)
            newest[run.slide] = [(run.slide, k, n, k * n) for k, n in sorted(counts.items())]
    assert wh.sql("SELECT _slide, k, n, s FROM r ORDER BY ALL").fetchall() == [
        row for rows in newest.values() for row in rows
    ]
    assert any("synopsis" in each for each in how)


def test_a_snapshot_sees_the_revision_that_was_newest_then(wh):
    wh.add_query("r", f"SELECT count(*) AS n FROM {WINDOW}", revise="4 minutes", sink="html", keep=3)
    for minute in range(1, 4):
        wh.append("a", pa.Table.from_pylist([{"ts": START + MINUTE * m, "k": m} for m in {1, minute}], SCHEMA))
        wh.slide("a", to=START + MINUTE * minute)
        files = {Path(run.file).name for run in wh.run_due()}
        if minute == 2:
            held = wh.snapshot()
    slide = wh.stream("a").slide
    assert f"r-20250328T000100Z-{slide - 2}-r2.html" in files
    asked = "SELECT _slide - ?, n FROM r ORDER BY ALL"
    assert wh.sql(asked, [slide]).fetchall() == [(-2, 3), (-1, 4), (0, 5)]
    with held:
        assert held.sql(asked, [slide]).fetchall() == [(-2, 2), (-1, 3)]
    for minute in range(4, 7):
        wh.slide("a", to=START + MINUTE * minute)
        wh.run_due()
    assert wh.sql("SELECT count(*), max(revision) FROM windrow.runs").fetchall() == [(3, 0)], "retention takes both"
    assert "up to 2025-03-28T00:06:00Z" in (wh.path / "results" / "r" / "r-latest.html").read_text()
    assert wh.check().problems == ()
    wh.drop_query("r")
    assert wh._store.catalog.read(lambda tables: list(tables.raw_items("revisions"))) == []


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        (f"SELECT 1 FROM {WINDOW}", {"revise": "18 minutes"}, "there is room for 17 minutes"),
        ("SELECT 1 FROM a", {"revise": "1 minute", "slide": "1 minute"}, "a window of a fixed length"),
        ("SELECT 1 FROM a [ROWS 3]", {"revise": "1 minute", "slide": "1 minute"}, "a window of a fixed length"),
        (f"SELECT 1 FROM {WINDOW}, e [WINDOW 1 MINUTE]", {"revise": "1 minute"}, "give stream 'e' a SLIDE too"),
        ("SELECT 1 FROM e [WINDOW 1 MINUTE SLIDE 1 MINUTE]", {"revise": "1 minute"}, "say themselves when they expire"),
        (f"SELECT 1 FROM {WINDOW}", {"revise": "soon"}, "is not a duration"),
    ],
)
def test_what_cannot_be_revised_is_refused_and_nothing_is_registered(wh, sql, options, message):
    expiring = SCHEMA.append(pa.field("e", pa.timestamp("us", "UTC")))
    wh.create_stream("e", expiring, time="ts", slide="1 minute", expires="e", max_lifetime="1 hour")
    with pytest.raises(windrow.WindrowError, match=message):
        wh.add_query("bad", sql, **options)
    assert wh.queries() == []


# -- kills ---------------------------------------------------------------------------------------------------------


def assert_revised(path: Path) -> None:
    """Every window is there in full, each revision once, each with its file."""
    counts = collections.Counter(dict.fromkeys(range(1, REVISED_SLOTS + 1), PER_SLOT))
    for slot in range(1, REVISED_SLOTS + 1):
        counts.update({slot - back: 3 for back in (1, 2) if slot > back and slot % (back + 1) == 0})
    with recorded_history.open_warehouse(path) as wh:
        wh.run_due()
        wh.gc()
        first = BASE // DELTA
        for name in ("whole", "wide"):
            rows = wh.sql(f"SELECT _slide - {first}, slot, n FROM {name} ORDER BY ALL").fetchall()
            assert rows == [
                (slide, slot, counts[slot])
                for slide in range(1, REVISED_SLOTS + 1)
                for slot in (slide - 1, slide)
                if slot >= 1
            ]
        runs = wh.sql("SELECT query, slide, revision, outcome, file FROM windrow.runs ORDER BY ALL").fetchall()
        assert len({run[:3] for run in runs}) == len(runs)
        assert {run[3] for run in runs} == {"delivered"}
        for name in ("whole", "wide", "come"):
            numbers = collections.defaultdict(list)
            for run in runs:
                if run[0] == name:
                    numbers[run[1]].append(run[2])
            assert all(each == list(range(len(each))) for each in numbers.values())
            assert len(numbers) == REVISED_SLOTS
        files = {str(each.relative_to(path)) for each in (path / "results" / "whole").glob("*.csv")}
        assert files == {run[4] for run in runs if run[0] == "whole"}
        assert wh.check().problems == ()


@pytest.fixture(scope="module")
def reached():
    return periodic_histories.count_delivery_steps(
        child_processes.create_revised, child_processes.revise_slot, REVISED_SLOTS, assert_revised
    )


OFTEN = ("query.committing", "query.committed", "query.placed")


@pytest.mark.parametrize(
    ("step", "share"),
    [
        pytest.param(step, share, marks=() if step in OFTEN and share == 0.5 else pytest.mark.soak)
        for step in DELIVERY_CRASH_POINTS
        for share in (0.25, 0.5, 0.75, 1)
    ],
)
def test_a_process_killed_at_a_named_step_delivers_each_revision_once(step, share, reached):
    for nth in {max(1, int(reached[step] * share))}:
        with scratch_folders.scratch_folder() as folder:
            path, progress = folder / "w", folder / "progress"
            child_processes.create_revised(str(path))
            child = start_child(child_processes.revise_until_step, str(path), str(progress), step, nth)
            assert join_child(child) in (-signal.SIGKILL, 0)
            with recorded_history.open_warehouse(path) as wh:
                for slot in range(len(progress.read_bytes()) + 1, REVISED_SLOTS + 1):
                    child_processes.revise_slot(wh, slot)
            assert_revised(path)
