"""Corrected batches: after `append(replace=True)` the stream is as if the batch had had these rows, wherever it is."""

import datetime as dt
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import child_processes
import windrow
from command_line import CommandLine
from faulty_disks import join_child, start_child
from windrow import Index
from windrow.errors import BatchConflictError, DefinitionError
from windrow.files import FileSystem

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("who", pa.int64()), ("v", pa.int64())])
LIFE, HISTORY = 4, 6
"""Minutes."""
STEPS = (
    "append.staged",
    "append.committing",
    "append.published",
    "erase.staged",
    "erase.published",
    "erase.committing",
    "erase.committed",
    "append.committed",
)

Rows = list[tuple[int, int]]
"""Minute and value of each row."""


def table(rows: Rows) -> pa.Table:
    made = [{"ts": START + m * MINUTE + dt.timedelta(seconds=1 + v % 58), "who": v % 5, "v": v} for m, v in rows]
    return pa.Table.from_pylist(made, SCHEMA)


def create(path: Path, maintenance: str = "rebuild", **options: Any) -> windrow.Warehouse:
    wh = windrow.open(path, **options)
    index = Index("round-robin", 2, 2, maintenance=maintenance)
    lives = {"lifetime": f"{LIFE} minutes", "history": f"{HISTORY} minutes"}
    wh.create_stream("s", SCHEMA, time="ts", key="who", slide="1 minute", index=index, **lives)
    return wh


def values(answer: Any) -> list[int]:
    return sorted(v for (v,) in answer.fetchall())


class Oracle:
    """The rows of each batch, in plain Python; a slide shows what was appended before it."""

    def __init__(self) -> None:
        self.now = 0
        self.batches: dict[str, Rows] = {}
        self.taken: dict[str, Rows] = {}
        """Accepted rows that slides have taken in."""
        self.spooled: dict[str, Rows] = {}
        self.rejected: dict[str, Rows] = {}

    def put(self, batch: str, rows: Rows) -> None:
        if rows and self.batches.get(batch) == rows:
            return
        self.batches[batch] = rows
        self.taken.pop(batch, None)
        self.spooled[batch] = [(m, v) for m, v in rows if m + LIFE >= self.now]
        self.rejected[batch] = [(m, v) for m, v in rows if m + LIFE < self.now]

    def slide(self, now: int) -> None:
        self.now = now
        self.taken |= self.spooled
        self.spooled = {}

    def erase(self, who: int) -> None:
        if any(
            v % 5 == who
            for place in (self.taken, self.spooled, self.rejected)
            for rows in place.values()
            for _, v in rows
        ):
            self.batches = {batch: [] for batch in self.batches}  # they are not recognised by their rows any more
        for place in (self.taken, self.spooled, self.rejected):
            for batch, rows in place.items():
                place[batch] = [(m, v) for m, v in rows if v % 5 != who]

    def live(self) -> list[int]:
        return sorted(v for rows in self.taken.values() for m, v in rows if m + LIFE >= self.now)

    def kept(self) -> list[int]:
        return sorted(v for rows in self.taken.values() for m, v in rows if m + LIFE + HISTORY >= self.now)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))])
def test_any_course_of_appends_corrections_and_slides(path: Path, seed: int) -> None:
    print(f"seed {seed}")
    choice, truth, numbers = random.Random(seed), Oracle(), iter(range(1, 1 << 30))
    with create(path, choice.choice(["rebuild", "adaptive"])) as wh:
        wh.create_view("newest", "SELECT who, v FROM s", key="who")
        wh.add_query(
            "sums", "SELECT who, count(*) AS n, sum(v) AS t FROM s [WINDOW 4 MINUTES SLIDE 1 MINUTE] GROUP BY 1"
        )
        for minute in range(14):
            for _ in range(choice.randint(1, 6)):
                batch_ids = list(truth.batches)
                replaces = bool(batch_ids) and choice.random() < 0.5
                batch = choice.choice(batch_ids) if replaces else f"batch {len(batch_ids)}"
                count = choice.choice([0, 1, 2, 3, 5, 40]) if replaces else choice.choice([1, 2, 3, 5, 40])
                base = minute if choice.random() < 0.7 else max(0, minute - choice.randint(1, 6))
                rows = [(max(0, base - choice.randint(0, 1)), next(numbers)) for _ in range(count)]
                if replaces and choice.random() < 0.2 and truth.batches[batch]:
                    rows = truth.batches[batch]
                report = wh.append("s", table(rows), batch_id=batch, replace=replaces or choice.random() < 0.1)
                truth.put(batch, rows)
                assert report.duplicate or report.accepted == len(truth.spooled[batch])
            if minute == 7 and seed % 2:
                wh.relayout("s", index=Index("chronological", 3, 2))
            if choice.random() < 0.3:
                who = choice.randint(0, 4)
                wh.erase("s", keys=[who])
                truth.erase(who)
            fresh = wh.sql("SELECT v FROM s", isolation="fresh") if choice.random() < 0.3 else None
            if fresh is not None:
                fresh.fetchall()
            wh.slide("s", to=START + (minute + 1) * MINUTE)
            truth.slide(minute + 1)
            assert values(wh.sql("SELECT v FROM s")) == truth.live()
            assert values(wh.sql("SELECT v FROM s [INCLUDING EXPIRED]")) == truth.kept()
            assert values(wh.sql("SELECT v FROM newest")) == truth.live()
            assert sorted(wh.rejected("s")["v"].to_pylist()) == sorted(
                v for rows in truth.rejected.values() for _, v in rows
            )
            wh.run_due()
            expected: dict[int, list[int]] = {}
            for v in truth.live():
                expected.setdefault(v % 5, []).append(v)
            actual = wh.sql(f"SELECT who, n, t FROM sums WHERE _slide = {wh.stream('s').slide}").fetchall()
            assert sorted(actual) == [(who, len(some), sum(some)) for who, some in sorted(expected.items())]
        assert wh.check().ok, wh.check().problems


def test_the_synopses_of_a_query_know_the_correction(path: Path) -> None:
    with create(path) as wh:
        wh.add_query("sums", "SELECT count(*) AS n, sum(v) AS t FROM s [WINDOW 4 MINUTES SLIDE 1 MINUTE]")
        for minute in range(3):
            wh.append("s", table([(minute, 100 * minute + n) for n in range(30)]), batch_id=str(minute))
            wh.slide("s", to=START + (minute + 1) * MINUTE)
            wh.run_due()
        wh.append("s", table([(1, 5), (1, 6)]), batch_id="1", replace=True)
        wh.append("s", table([(3, 7)]), batch_id="3")
        wh.append("s", table([(3, 8)]), batch_id="3", replace=True)
        wh.slide("s", to=START + 4 * MINUTE)
        wh.run_due()
        left = [*range(30), 5, 6, *range(200, 230), 8]
        last = wh.results("sums").arrow().select(["n", "t"]).to_pylist()[-1]
        assert last == {"n": len(left), "t": sum(left)}
        assert wh.stream("s").sources[0].rows == len(left)


def test_the_past_says_that_rows_were_corrected(path: Path) -> None:
    with create(path) as wh:
        wh.append("s", table([(0, 1), (0, 2)]), batch_id="a")
        wh.append("s", table([(0, 3)]), batch_id="b")
        wh.slide("s", to=START + MINUTE)
        commit = wh.sql("SELECT v FROM s").version
        report = wh.append("s", table([(0, 9)]), batch_id="a", replace=True)
        assert (report.replaced, report.accepted, report.late) == (2, 1, 1)
        then = wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}]")
        assert then.windows[0].revoked[0].startswith("2 rows were corrected at commit ")
        assert values(then) == [3]
        assert values(wh.sql("SELECT v FROM s", isolation="fresh")) in ([3], [3, 9])
        assert wh.append("s", table([(0, 9)]), batch_id="a", replace=True).duplicate
        with pytest.raises(BatchConflictError, match="appended to stream 's' before with other rows"):
            wh.append("s", table([(0, 1), (0, 2)]), batch_id="a")


class _Meanwhile(FileSystem):
    """Does something when a file of waiting rows is in place and not yet named."""

    then: Callable[[], Any] | None = None

    def reach(self, step: str) -> None:
        if step == "append.published" and self.then is not None:
            then, self.then = self.then, None
            then()


def test_rows_that_come_while_a_file_is_made_are_found_behind_it(path: Path) -> None:
    files = _Meanwhile()
    with create(path, files=files) as wh:
        wh.append("s", table([(0, 1), (0, 2)]), batch_id="a")
        files.then = lambda: wh.append("s", table([(0, 3)]), batch_id="b")
        wh.slide("s", to=START + MINUTE)
        assert files.then is None
        wh.append("s", table([(1, 4)]), batch_id="c")
        assert wh.append("s", table([(1, 30)]), batch_id="b", replace=True).replaced == 1
        wh.slide("s", to=START + 2 * MINUTE)
        assert values(wh.sql("SELECT v FROM s")) == [1, 2, 4, 30]
        assert wh.append("s", table([(1, 40)]), batch_id="c", replace=True).replaced == 1
        wh.slide("s", to=START + 3 * MINUTE)
        assert values(wh.sql("SELECT v FROM s")) == [1, 2, 30, 40]


def test_rows_that_no_slide_had_taken_in_change_no_earlier_answer(path: Path) -> None:
    """So answers as of then are all that there was, and do not say otherwise."""
    with create(path) as wh:
        wh.append("s", table([(0, 1), (0, 2)]), batch_id="a")
        wh.slide("s", to=START + MINUTE)
        commit = wh.sql("SELECT 1 FROM s").version
        wh.append("s", table([(1, 3), (1, 4)]), batch_id="b")
        assert wh.append("s", table([(1, 5)]), batch_id="b", replace=True).replaced == 2
        assert wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}]").windows[0].revoked == ()
        assert wh.append("s", table([(0, 6)]), batch_id="a", replace=True).replaced == 2
        assert len(wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}]").windows[0].revoked) == 1


def test_what_cannot_be_corrected_is_refused_and_nothing_changes(path: Path) -> None:
    with create(path) as wh:
        with pytest.raises(DefinitionError, match="by its batch_id; give one"):
            wh.append("s", table([(0, 1)]), replace=True)
        wh.append("s", table([(0, 1)]), batch_id="a")
        with pytest.raises(windrow.SchemaError, match="more than max_rejected=0"):
            late = pa.Table.from_pylist([{"ts": None, "who": 1, "v": 5}], SCHEMA)
            wh.append("s", late, batch_id="a", replace=True, max_rejected=0.0)
        with wh._store.catalog.write() as tables:  # as earlier releases recorded it
            for key, entry in list(tables.items("batches")):
                tables.put("batches", key, msgspec.structs.replace(entry, places=None))
        with pytest.raises(BatchConflictError, match="by an earlier release; erase its rows"):
            wh.append("s", table([(0, 2)]), batch_id="a", replace=True)
        wh.slide("s", to=START + MINUTE)
        assert values(wh.sql("SELECT v FROM s")) == [1]
        assert wh.check().ok


def test_the_command_replaces_a_batch(path: Path, tmp_path: Path) -> None:
    create(path).close()
    file = tmp_path / "rows.csv"
    cli = CommandLine(path)
    for rows in ("2026-01-01T00:00:10Z,1,7\n2026-01-01T00:00:20Z,1,8\n", "2026-01-01T00:00:30Z,1,9\n"):
        file.write_text("ts,who,v\n" + rows)
        shown = cli("append", "s", file, "--batch-id", "day", "--replace")
        assert "1 row appended in the place of 2" in shown.output or "2 rows appended (" in shown.output
    with windrow.open(path) as wh:
        wh.slide("s", to=START + MINUTE)
        assert values(wh.sql("SELECT v FROM s")) == [9]


@pytest.mark.parametrize(
    ("slid", "step"),  # a whole file in the spool goes without a new one
    [(True, step) for step in STEPS] + [(False, step) for step in STEPS if step not in STEPS[3:5]],
)
def test_a_kill_leaves_the_old_rows_or_the_new_ones(path: Path, tmp_path: Path, step: str, slid: bool) -> None:
    with create(path) as wh:
        for batch in range(3):
            wh.append("s", table([(0, 10 * batch + n) for n in range(9)]), batch_id=str(batch))
        if slid:
            wh.slide("s", to=START + MINUTE)
    killed = shutil.copytree(path, tmp_path / "killed")
    child = start_child(child_processes.replace_until_step, str(killed), table([(0, 77)]), step)
    assert join_child(child) == -signal.SIGKILL
    others = [*range(9), *range(20, 29)]
    old, new = sorted([*others, *range(10, 19)]), [*others, 77]
    with windrow.open(killed) as wh:
        wh.slide("s", to=START + 2 * MINUTE)
        assert values(wh.sql("SELECT v FROM s")) == (new if step.endswith("committed") else old)
        again = wh.append("s", table([(0, 77)]), batch_id="1", replace=True)
        assert again.duplicate == step.endswith("committed")
        wh.slide("s", to=START + 3 * MINUTE)
        assert values(wh.sql("SELECT v FROM s")) == new
        wh.gc()
        assert not [problem for problem in wh.check().problems if "named by no record" not in problem]
