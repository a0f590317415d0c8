"""The merge of history: days become few files, and nothing that is asked of the past is answered otherwise.

The oracle is a plain list of rows with their times, expiries and the slide that took them in.
"""

import datetime as dt
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import child_processes
import windrow
from faulty_disks import join_child, start_child
from windrow import Index
from windrow.background import background_of
from windrow.files import HISTORY_CRASH_POINTS
from windrow.history_merge import merge_in_steps

MINUTE = dt.timedelta(minutes=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])


def open_at(path: Path, **options: Any) -> windrow.Warehouse:
    return windrow.open(path, clock=lambda: int((START + 9000 * MINUTE).timestamp() * 1e6), **options)


class World:
    """A stream with history beside its oracle, and what it showed at each commit."""

    def __init__(self, path: Path, seed: int, history: int = 64, **options: Any) -> None:
        self.chance, self.rows, self.shown, self.minute = random.Random(seed), [], [], 0
        self.wh, self.history, self.life = open_at(path), history, 24
        self.wh.create_stream(
            "s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="24 minutes", max_ahead="9 days",
            history=f"{history} minutes", **options,
        )  # fmt: skip

    @property
    def now(self) -> dt.datetime:
        return START + self.minute * MINUTE

    def slide(self) -> None:
        self.minute += self.chance.choice((1, 1, 1, 2))
        new = [
            {
                "ts": self.now - self.chance.randrange(0, 100) * dt.timedelta(seconds=1),
                "k": self.chance.randrange(50),
                "v": self.minute * 100 + number,
            }
            for number in range(self.chance.randrange(0, 20))
        ]
        if new:
            self.wh.append("s", new)
        self.wh.slide("s", to=self.now)
        self.rows += [(row["ts"], row["ts"] + self.life * MINUTE, row["k"], row["v"]) for row in new]
        answer = self.wh.sql("SELECT v FROM s ORDER BY v")
        live = sorted(v for ts, exp, _, v in self.rows if ts <= self.now < exp)
        assert [v for (v,) in answer.fetchall()] == live
        self.shown.append((answer.version, self.now, live))

    def check(self) -> None:
        reach = self.now - self.history * MINUTE
        kept = sorted((k, v) for ts, exp, k, v in self.rows if ts <= self.now and exp > reach)
        if self.life == 24:  # else what expired counts by the lifetime that holds now
            assert self.wh.sql("SELECT k, v FROM s [INCLUDING EXPIRED] ORDER BY ALL").fetchall() == kept
            key = self.chance.choice(kept)[0]
            rows = self.wh.sql("SELECT v FROM s [INCLUDING EXPIRED] WHERE k = ? ORDER BY v", [key]).fetchall()
            assert rows == [(v,) for k, v in kept if k == key]
        for commit, then, live in self.shown:
            if then >= reach:
                asked = self.wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}] ORDER BY v").fetchall()
                assert [v for (v,) in asked] == live
        assert self.wh.check().problems == ()

    def count_files(self) -> int:
        return len(list((self.wh.path / "streams" / "s" / "segments").iterdir()))


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 23))])
def test_days_of_history_become_few_files_and_every_answer_is_given_again(tmp_path, seed):
    print("seed", seed)
    index = (Index("round-robin", 2, 2, maintenance="rebuild"), Index("wave-insertion", 4, 1))[seed % 2]
    within = {"erase_within": "2 minutes"} if seed % 3 == 0 else {}
    world = World(tmp_path / "w", seed, index=index, **within)
    for number in range(80):
        world.slide()
        if number == 40 and seed % 4 == 1:
            world.wh.alter_stream("s", lifetime="40 minutes")
            ended = world.now
            world.rows = [(ts, exp if exp <= ended else ts + 40 * MINUTE, k, v) for ts, exp, k, v in world.rows]
            world.life = 40
    world.check()
    while background_of(world.wh._store).run(1.0):
        pass
    world.wh.gc()
    # An eighth of the lifetime is three minutes: of them one file is left, beside those of the live window.
    assert world.count_files() < (70 if within else 55)
    world.check()
    world.slide()
    world.check()
    world.wh.close()


def test_a_reader_keeps_what_it_pinned_and_an_erasure_is_not_undone_by_a_merge(tmp_path):
    world = World(tmp_path / "w", 5, index=Index("round-robin", 2, 2, maintenance="norebuild"))
    store = world.wh._store
    background_of(store).add = lambda *_: True  # nothing is merged but what is merged here
    for _ in range(60):
        world.slide()
    with world.wh.snapshot() as snap:
        before = snap.sql("SELECT v FROM s [INCLUDING EXPIRED] ORDER BY v").fetchall()
        steps = merge_in_steps(store, "s")
        next(steps)  # rows are read, and nothing is committed
        key = world.rows[20][2]
        assert world.wh.erase("s", keys=[key]).rows["history"] > 0
        for _ in steps:
            pass
        world.rows = [row for row in world.rows if row[2] != key]
        left = world.wh.sql("SELECT DISTINCT k FROM s [INCLUDING EXPIRED]").fetchall()
        assert (key,) not in left and len(left) > 10
        assert snap.sql("SELECT v FROM s [INCLUDING EXPIRED] ORDER BY v").fetchall() == before
    world.shown.clear()
    world.slide()
    world.wh.gc()
    world.check()
    world.wh.close()


@pytest.mark.parametrize("step", HISTORY_CRASH_POINTS)
def test_a_kill_leaves_the_history_as_it_was(tmp_path, step):
    world = World(tmp_path / "w", 6)
    background_of(world.wh._store).add = lambda *_: True
    for _ in range(45):
        world.slide()
    world.wh.close()
    child = start_child(child_processes.merge_history_until_step, str(tmp_path / "w"), step)
    assert join_child(child) == -signal.SIGKILL
    world.wh = open_at(tmp_path / "w")
    world.check()
    world.slide()
    world.wh.gc()
    world.check()
    world.wh.close()
