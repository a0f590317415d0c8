"""Backfill: a query that was added late has, in the end, the runs of a twin that was there from the beginning.

The twin is run after each slide and is compared with plain lists of rows elsewhere (test_runner.py); nothing of what it
delivers goes through history. Rows come late, a table changes between slides, and most rows have expired in the end.
"""

import datetime as dt
import random
import signal
from pathlib import Path

import pyarrow as pa
import pytest

import child_processes
import windrow
from faulty_disks import join_child, start_child

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])
START, MINUTE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.timedelta(minutes=1)
STATEMENTS = {
    "sums": "SELECT k, count(*) AS n, sum(v) AS total FROM s [WINDOW 4 MINUTES SLIDE 1 MINUTE] GROUP BY k ORDER BY k",
    "every_third": "SELECT v FROM s [WINDOW 5 MINUTES SLIDE 3 MINUTES] ORDER BY v",
    "joined": "SELECT s.k, count(*) AS n FROM s [WINDOW 3 MINUTES SLIDE 2 MINUTES] JOIN b [WINDOW 4 MINUTES SLIDE "
    "2 MINUTES] ON s.k = b.k GROUP BY s.k ORDER BY s.k",
    "named": "SELECT name, count(*) AS n FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE] JOIN names USING (k) GROUP BY name "
    "ORDER BY name",
    "hours": "SELECT count(*) AS n, max(v) AS most FROM s [HOUR 'UTC' PREVIOUS 1]",
    "newest": "SELECT v FROM s [ROWS 3] ORDER BY v",
}
DIFFERENCES = {
    f"{name}_{output}": (STATEMENTS[name], {"output": output})
    for name, output in (("sums", "inserts"), ("sums", "deletes"), ("joined", "inserts"), ("every_third", "deletes"))
}
COLUMNS = "* EXCLUDE (_staleness)"


def make_streams(path: Path, **options: object) -> windrow.Warehouse:
    wh = windrow.open(path, clock=lambda: int((START + 5000 * MINUTE).timestamp() * 1e6))
    life = {"lifetime": "6 minutes", "history": "1 day", "max_ahead": "5 days", "slide": "1 minute"} | options
    wh.create_stream("s", SCHEMA, time="ts", key="k", **life)
    wh.create_stream("b", SCHEMA, time="ts", key="k", **life)
    wh.put_table("names", pa.table({"k": [0, 1], "name": ["zero", "one"]}))
    return wh


def make_rows(chance: random.Random, minute: int, number: int) -> list[dict[str, object]]:
    """Rows of a minute and of those before it."""
    times = [START + MINUTE * (minute - chance.choice((0.2, 0.5, 0.9, 2.5, 4.5))) for _ in range(number)]
    return [{"ts": ts, "k": chance.randrange(4), "v": minute * 100 + place} for place, ts in enumerate(times)]


def slide_on(wh: windrow.Warehouse, chance: random.Random, minute: int) -> None:
    for stream in ("s", "b"):
        if chance.random() < 0.9:
            wh.append(stream, make_rows(chance, minute, chance.randrange(1, 9)))
        if chance.random() < 0.8:
            wh.slide(stream, to=START + minute * MINUTE)
            wh.run_due()


def options_of(name: str) -> dict[str, object]:
    return {"slide": "2 minutes"} if name == "newest" else {}


@pytest.mark.parametrize("seed", [19, 20, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(21, 41))])
def test_a_backfilled_query_has_the_runs_of_one_that_was_always_there(tmp_path, seed):
    print("seed", seed)
    chance = random.Random(seed)
    lives = {"lifetime": "150 minutes", "history": "1 day"} if seed % 2 == 0 else {}
    with make_streams(tmp_path / "w", **lives) as wh:
        statements = {name: (sql, options_of(name)) for name, sql in STATEMENTS.items() if name != "hours" or lives}
        statements |= DIFFERENCES
        for name, (sql, options) in statements.items():
            wh.add_query(f"{name}_twin", sql, **options)
        for minute in range(1, 25):
            slide_on(wh, chance, minute if seed % 2 else minute * 5)
            if minute % 5 == 0:
                wh.put_table("names", pa.table({"k": [0, 1], "name": [f"zero {minute}", "one"]}))
            if minute % 11 == 0:
                wh.gc()
        for name, (sql, options) in statements.items():
            added = wh.add_query(name, sql, backfill="1 day", sink="csv" if name == "sums" else None, **options)
            assert added.to_backfill >= 3
        for minute in (25, 26):  # it goes on where history ends
            slide_on(wh, chance, minute if seed % 2 else minute * 5)
        reports = wh.run_due()
        assert not reports  # rounds above have made them all
        wh.close()
    with windrow.open(tmp_path / "w", clock=lambda: int((START + 5000 * MINUTE).timestamp() * 1e6)) as wh:
        for name in statements:
            assert (
                wh.sql(f"SELECT {COLUMNS} FROM {name}").fetchall()
                == wh.sql(f"SELECT {COLUMNS} FROM {name}_twin").fetchall()
            )
            made, twin = (
                wh.sql(
                    "SELECT slide, outcome, window_start, window_end, rows, complete FROM windrow.runs "
                    f"WHERE query = '{query}' ORDER BY slide"
                ).fetchall()
                for query in (name, f"{name}_twin")
            )
            assert made == twin
        marked = wh.sql("SELECT query, bool_or(backfilled) FROM windrow.runs GROUP BY query").fetchall()
        assert {name for name, is_marked in marked if is_marked} == set(statements)
        assert {query.to_backfill for query in wh.queries()} == {0}
        count = wh.sql("SELECT count(*) FROM windrow.runs WHERE query = 'sums'").fetchall()[0][0]
        assert len(list((wh.path / "results" / "sums").glob("*.csv"))) == count


def fill(wh: windrow.Warehouse, minutes: int) -> None:
    chance = random.Random(5)
    for minute in range(1, minutes + 1):
        wh.append("s", make_rows(chance, minute, 5))
        wh.slide("s", to=START + minute * MINUTE)


def test_missed_runs_are_made_by_backfill_and_delivered_ones_are_not_made_again(tmp_path):
    with make_streams(tmp_path / "w") as wh:
        wh.add_query("sums", STATEMENTS["sums"])
        wh.add_query("twin", STATEMENTS["sums"], missed="every")
        chance = random.Random(7)
        for minute in range(1, 20):
            wh.append("s", make_rows(chance, minute, 5))
            wh.slide("s", to=START + minute * MINUTE)
            if minute % 4 == 0:
                assert len(wh.run_due(["sums"])) == 1
        wh.run_due()
        assert wh.backfill("sums", since=START).to_backfill == 14
        reports = wh.run_due()
        assert len(reports) == 14
        assert all(report.backfilled and report.outcome == "delivered" for report in reports)
        assert [report.slide for report in reports] == sorted(report.slide for report in reports)
        assert wh.sql(f"SELECT {COLUMNS} FROM sums").fetchall() == wh.sql(f"SELECT {COLUMNS} FROM twin").fetchall()
        assert wh.backfill("sums", since=START).to_backfill == 0


def test_only_runs_that_would_be_kept_are_made_and_what_is_due_goes_first(tmp_path):
    with make_streams(tmp_path / "w") as wh:
        fill(wh, 20)
        wh.add_query("live", "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        assert wh.add_query("few", STATEMENTS["sums"], backfill="1 day", keep=5).to_backfill == 5
        assert wh.add_query("short", STATEMENTS["sums"], backfill="1 day", keep="7 minutes").to_backfill == 7
        wh.append("s", [{"ts": START + 21 * MINUTE, "k": 1, "v": 1}])
        wh.slide("s", to=START + 21 * MINUTE)
        reports = wh.run_due()
        assert [report.backfilled for report in reports] == [False] * 3 + [True] * 12
        assert wh.run_due() == []


def test_a_run_that_fails_is_tried_again_and_one_that_history_lost_is_missed(tmp_path):
    now = [int((START + 5000 * MINUTE).timestamp() * 1e6)]
    with make_streams(tmp_path / "w") as wh:
        fill(wh, 10)
    with windrow.open(tmp_path / "w", clock=lambda: now[0]) as wh:
        wh.add_query("strict", "SELECT 1 // (max(v) - 504) AS x FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        wh.drop_query("strict")
        failing = "SELECT CASE WHEN max(v) BETWEEN 500 AND 599 THEN error('five') ELSE max(v) END AS x FROM s"
        wh.add_query("f", f"{failing} [WINDOW 1 MINUTE SLIDE 1 MINUTE]", backfill="1 day")
        outcomes = [report.outcome for report in wh.run_due()]
        assert outcomes == ["delivered"] * 4 + ["failed"]
        assert "five" in wh.queries()[0].error
        assert wh.run_due() == []
        wh.alter_stream("s", history="4 minutes")
        now[0] += 10_000_000_000
        outcomes = [report.outcome for report in wh.run_due()]
        assert outcomes == ["delivered"] * 5
        status = wh.queries()[0]
        assert (status.to_backfill, status.missed_runs, status.error) == (0, 1, None)


COUNT = "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]"
REFUSED = [
    (COUNT, {"backfill": "40 minutes"}, "the history of stream 's' reaches back to 2026-01-01T00:11:00Z"),
    (COUNT.replace("s [", "plain ["), {}, "'plain', which keeps no history"),
    (COUNT.replace("count(*)", "now()"), {}, "volatile"),
    ("SELECT n FROM other [WINDOW 5 MINUTES SLIDE 1 MINUTE]", {}, "results of 'other'"),
    (f"{COUNT}, windrow.streams", {}, "windrow.streams"),
]


def test_what_cannot_be_made_from_history_is_refused_in_a_sentence(tmp_path):
    with make_streams(tmp_path / "w", history="20 minutes") as wh:
        wh.create_stream("plain", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="5 minutes")
        wh.slide("plain", to=START + 30 * MINUTE)
        wh.add_query("other", COUNT, keep="1 hour")
        fill(wh, 31)
        wh.run_due()
        for sql, options, says in REFUSED:
            with pytest.raises(windrow.WindrowError, match=says) as error:
                wh.add_query("q", sql, **{"backfill": "10 minutes", **options})
            assert "\n" not in str(error.value)
        assert [query.name for query in wh.queries()] == ["other"]
        with pytest.raises(windrow.WindrowError, match="the clock of stream 's' is at"):
            wh.backfill("other", since=START + 500 * MINUTE)
        wh.add_query("told", COUNT, output="inserts")
        slide_on(wh, random.Random(0), 32)
        wh.slide("s", to=START + 33 * MINUTE)
        assert [report.query for report in wh.run_due(["told"])] == ["told"]
        with pytest.raises(windrow.WindrowError, match="has told its inserts from run to run"):
            wh.backfill("told", since=START + 20 * MINUTE)


SENT_BY_B = {1: [1], 2: [2], 6: [3, 4, 5, 6], 7: [7], 13: [8, 9, 10, 11, 12, 13]}
"""At each step, the slots of its rows; it is silent at the others."""


class Test_waiting_for_rows:
    """Two sources; `b` is late twice. What a run sees, and when it is made, is reckoned by hand from what `b` had sent."""

    SLOT = dt.timedelta(seconds=10)
    DEADLINE = 2
    """Slots that a run waits at most."""

    def expect(self, steps: int) -> list[tuple[object, ...]]:
        """Of each run that is over after so many steps: the end of its window, its rows, and whether all were there."""
        runs = []
        for slot in range(1, 13):
            for step in range(slot, steps + 1):
                sent = {each for at, slots in SENT_BY_B.items() if at <= step for each in slots}
                is_complete = max(sent) >= slot
                if is_complete or step >= slot + self.DEADLINE:
                    rows = sum((each in sent) + 1 for each in (slot - 1, slot) if each)
                    runs.append((START + slot * self.SLOT, rows, is_complete))
                    break
            else:
                break
        return runs

    def go_on(self, wh: windrow.Warehouse, first: int, last: int) -> None:
        for step in range(first, last + 1):
            for source, slots in (("a", [step]), ("b", SENT_BY_B.get(step, []))):
                if slots:
                    rows = [{"ts": START + slot * self.SLOT, "k": 0, "v": slot} for slot in slots]
                    wh.append("s", rows, source=source)
            wh.slide("s", to=START + step * self.SLOT, force=True)

    def test_each_run_is_made_with_what_had_come_when_it_was_complete_or_its_deadline_had_passed(self, tmp_path):
        options = {"slide": "10 seconds", "lifetime": "2 minutes", "sources": ["a", "b"]}
        with make_streams(tmp_path / "w", **options) as wh:
            for stream, source in (("s", "a"), ("s", "b")):
                wh.heartbeat(stream, source=source, up_to=START)
            wh.slide("s")
            self.go_on(wh, 1, 12)
            statement = "SELECT count(*) AS n FROM s [WINDOW 20 SECONDS SLIDE 10 SECONDS]"
            wh.add_query("q", statement, on_gap="wait", deadline="20 seconds", backfill="119 seconds")
            shown = "SELECT _window_end, n, _complete FROM q ORDER BY _slide"
            for _ in range(2):
                wh.run_due()
                assert wh.sql(shown).fetchall() == self.expect(12), "the last ones have still to wait"
            assert self.expect(12)[-1] == (START + 10 * self.SLOT, 2, False)
            self.go_on(wh, 13, 13)
            wh.run_due()
            assert wh.sql(shown).fetchall()[:-1] == self.expect(13)
            assert wh.sql(shown).fetchall()[-1] == (START + 13 * self.SLOT, 4, True)
            assert wh.queries()[0].to_backfill == 0


@pytest.mark.parametrize(
    "step",
    [
        "query.committing",
        "query.committed",
        pytest.param("query.placed", marks=pytest.mark.soak),
        pytest.param("query.rolled", marks=pytest.mark.soak),
    ],
)
def test_a_backfill_that_was_killed_goes_on_where_it_stood(tmp_path, step):
    with make_streams(tmp_path / "w") as wh:
        fill(wh, 15)
        wh.add_query("sums", STATEMENTS["sums"], backfill="1 day", sink="csv")
        wh.add_query("news", STATEMENTS["sums"], backfill="1 day", output="inserts")
    nth = 1 if step == "query.rolled" else 4
    child = start_child(child_processes.run_due_until_step, str(tmp_path / "w"), step, nth)
    assert join_child(child) == -signal.SIGKILL
    with windrow.open(tmp_path / "w", clock=lambda: int((START + 5000 * MINUTE).timestamp() * 1e6)) as wh:
        wh.run_due()
        rows = wh.sql(f"SELECT {COLUMNS} FROM sums").fetchall()
        runs = wh.sql("SELECT slide, outcome, file FROM windrow.runs WHERE query = 'sums' ORDER BY slide").fetchall()
        assert [outcome for _, outcome, _ in runs] == ["delivered"] * 15
        assert {file for *_, file in runs} == {
            str(path.relative_to(wh.path)) for path in (wh.path / "results" / "sums").glob("*.csv")
        }
        news = wh.sql(f"SELECT {COLUMNS} FROM news").fetchall()
        wh.add_query("again", STATEMENTS["sums"], backfill="1 day")
        wh.add_query("news_again", STATEMENTS["sums"], backfill="1 day", output="inserts")
        wh.run_due()
        assert rows == wh.sql(f"SELECT {COLUMNS} FROM again").fetchall()
        assert news == wh.sql(f"SELECT {COLUMNS} FROM news_again").fetchall()
        assert wh.check().problems == ()
