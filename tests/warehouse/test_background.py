"""Background work: done in steps by those who cause it, bounded, shown, and never by a thread of its own."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import windrow
from windrow import advisor, background, reclaim
from windrow.background import background_of
from windrow.errors import QueryError

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path) as handle:
        yield handle


def slide(wh: windrow.Warehouse, first: int, last: int) -> None:
    for minute in range(first, last + 1):
        end = NOON + dt.timedelta(minutes=minute)
        wh.append("s", pa.table([[end] * 20, list(range(20))], schema=SCHEMA))
        wh.slide("s", to=end)


def count(done: list[int], steps: int) -> background.Steps:
    for step in range(steps):
        done.append(step)
        yield


def test_a_slide_does_some_steps_and_closing_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_MOST_SECONDS", 0.0)
    monkeypatch.setattr(background, "_LEAST_SECONDS", 0.0)
    done: list[int] = []
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="4 minutes")
        assert background_of(wh._store).add(wh._store, "counting", count(done, 10))
        slide(wh, 1, 3)
        assert done == [0, 1, 2], "without time to spend, each slide does one step"
        assert wh.status().background == ("counting",)
        list(wh.scan("s"))
        assert wh.sql("SELECT count(*) FROM s").fetchall() == [(60,)]
        assert done == [0, 1, 2], "reading does none"
    assert done == list(range(10))


def test_what_waits_is_bounded_and_each_task_waits_once(wh: windrow.Warehouse) -> None:
    work, store, done = background_of(wh._store), wh._store, []
    assert work.add(store, "0", count(done, 1))
    assert not work.add(store, "0", count(done, 1))
    taken = [work.add(store, str(number), count(done, 1)) for number in range(1, 200)]
    assert sum(taken) + 1 == len(work.waiting()) == background._MOST_TASKS
    assert not work.run(10.0)
    assert len(done) == background._MOST_TASKS
    assert work.waiting() == ()


def test_work_of_a_closed_handle_goes_and_that_of_others_stays(
    wh: windrow.Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_CLOSING_SECONDS", 0.0)
    mine: list[int] = []
    theirs: list[int] = []
    with windrow.open(wh.path) as other:
        assert background_of(other._store) is background_of(wh._store)
        background_of(wh._store).add(wh._store, "mine", count(mine, 5))
        background_of(other._store).add(other._store, "theirs", count(theirs, 5))
    assert (mine, theirs) == ([], [0])
    assert wh.status().background == ("mine",)


def test_a_task_that_fails_is_given_up(wh: windrow.Warehouse) -> None:
    def fail() -> background.Steps:
        yield
        raise QueryError("of no use")

    done: list[int] = []
    background_of(wh._store).add(wh._store, "failing", fail())
    background_of(wh._store).add(wh._store, "counting", count(done, 3))
    assert not background_of(wh._store).run(10.0)
    assert done == [0, 1, 2]


def test_files_that_a_reader_kept_go_in_the_background(wh: windrow.Warehouse) -> None:
    """A slide cannot remove what a snapshot still needs; when it is closed, no further slide is needed."""
    index = windrow.Index("round-robin", 2, 2, maintenance="rebuild")
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="40 minutes", index=index)
    slide(wh, 1, 3)
    with wh.snapshot() as snapshot:
        slide(wh, 4, 30)
        kept = wh.status().reclaimable_files
        assert kept > reclaim._MOST_PER_STEP
        reclaim.offer_removal(wh._store)
        assert not background_of(wh._store).run(10.0)
        assert wh.status().reclaimable_files == kept
        assert snapshot.scan("s").read_all().num_rows == 60
    reclaim.offer_removal(wh._store)
    assert wh.status().background == ("removal of replaced files",)
    assert not background_of(wh._store).run(10.0)
    assert wh.status().reclaimable_files == 0
    assert wh.check().ok
    assert wh.scan("s").read_all().num_rows == 600


def test_a_process_that_slides_once_and_ends_does_its_share(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command slides and closes; the review that it caused is made."""
    monkeypatch.setattr(advisor, "FIRST_REVIEW", 8)
    reviewed = []
    real = advisor.advise_in_steps

    def advise(*arguments: object) -> background.Steps:
        reviewed.append((yield from real(*arguments)))  # type: ignore[arg-type]
        return reviewed[-1]

    monkeypatch.setattr(advisor, "advise_in_steps", advise)
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="4 minutes")
    for minute in range(1, 12):
        with windrow.open(path) as wh:
            slide(wh, minute, minute)
    assert [advice.stream for advice in reviewed] == ["s"]
