"""A driver that is killed anywhere loses and doubles nothing. Each kill is a process with a Spark of its own."""

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.files import CRASH_POINTS

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64()), ("pad", pa.string())])
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PROCESS = Path(__file__).with_name("query_process.py")
POINTS = [step for step in CRASH_POINTS if step.startswith(("append.", "slide."))]


class Ingest:
    """A folder of files that grows, and a warehouse that a query in another process fills from it."""

    def __init__(self, tmp_path: Path, beside: "Ingest | None" = None) -> None:
        self.folder, self.checkpoint = tmp_path / "input", tmp_path / "checkpoint"
        self.folder.mkdir(parents=True)
        self.files = 0
        self.stamps: list[dt.datetime] = []
        self.warehouse = tmp_path / "warehouse" if beside is None else beside.warehouse
        if beside is not None:
            return
        with windrow.open(self.warehouse) as wh:
            index = windrow.Index("round-robin", 2, 2)
            wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="2 weeks", index=index)

    @property
    def rows(self) -> int:
        return len(self.stamps)

    def grow(self, files: int, rows: int = 40) -> None:
        for _ in range(files):
            stamps = [START + dt.timedelta(minutes=self.files, seconds=i % 60) for i in range(rows)]
            table = pa.table(
                [pa.array(stamps, UTC), range(self.rows, self.rows + rows), ["x" * 50] * rows], schema=SCHEMA
            )
            hidden = self.folder / f".{self.files:05d}.parquet"
            pq.write_table(table, hidden)
            hidden.rename(self.folder / hidden.name[1:])
            self.files += 1
            self.stamps += stamps

    def start(self, step: str = "-", passes: int = 0, mode: str = "now", **env: str) -> subprocess.Popen[str]:
        arguments = [self.warehouse, self.folder, self.checkpoint, step, passes, mode]
        return subprocess.Popen(
            [sys.executable, str(PROCESS), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | env, start_new_session=True,
        )  # fmt: skip

    def verify(self) -> None:
        """Every row of the input is there, once; the windows and the files are sound."""
        with windrow.open(self.warehouse) as wh:
            wh.slide("s", START + dt.timedelta(minutes=self.files))
            keys = wh.scan("s", columns=["k"]).read_all().column("k").to_pylist()
            assert sorted(keys) == list(range(len(self.stamps)))
            assert wh.now("s") == START + dt.timedelta(minutes=self.files)
            window = wh.scan("s", "5 minutes").read_all()
            edge = wh.now("s") - dt.timedelta(minutes=5)
            inside = [n for n, ts in enumerate(self.stamps) if edge < ts <= wh.now("s")]
            assert sorted(window.column("k").to_pylist()) == inside
            wh.gc()
            assert wh.check().problems == ()
        assert not list((self.warehouse / "staging").iterdir())


def finish(process: subprocess.Popen[str], timeout: float = 240) -> str:
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err[-3000:]
    return out


def killed(process: subprocess.Popen[str], timeout: float = 240) -> None:
    """Wait for the driver to die, and for its JVM, which follows it."""
    _, err = process.communicate(timeout=timeout)
    assert process.returncode == -signal.SIGKILL, err[-3000:]


@pytest.fixture
def ingest(tmp_path):
    return Ingest(tmp_path)


@pytest.mark.timeout(600)
def test_a_driver_killed_before_its_commit_and_one_asked_to_end_lose_and_double_nothing(ingest):
    """The first is killed between writing and committing. The second goes on, and gets SIGTERM: it ends by itself."""
    ingest.grow(2)
    killed(ingest.start("append.committing", 1))
    process = ingest.start(mode="continuous")
    while len(list((ingest.checkpoint / "commits").glob("[0-9]*"))) < 2:
        time.sleep(0.1)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert "ended" in finish(process)
    ingest.verify()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_every_named_step(ingest):
    """One query, the input growing all the while. With the next test, a soak has at least twenty kills."""
    kills = 0
    for number, step in enumerate(POINTS):
        ingest.grow(2)
        process = ingest.start(step, number % 2)
        _, err = process.communicate(timeout=600)
        # A step that a run did not reach often enough is a run that ended well.
        assert process.returncode in (0, -signal.SIGKILL), err[-3000:]
        kills += process.returncode != 0
    assert kills >= 6
    ingest.grow(1)
    finish(ingest.start())
    ingest.verify()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_at_random_times(ingest):
    """Fourteen kills of one query; SEED repeats a run."""
    chance = random.Random(os.environ.get("SEED", "1"))
    for _ in range(14):
        ingest.grow(3, rows=2000)
        kill_at_random(ingest.start(mode="continuous"), chance, 6)
    ingest.grow(1)
    finish(ingest.start())
    ingest.verify()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_on_a_cluster_whose_tasks_fail_and_dawdle(ingest):
    """Two executors; tasks fail by chance, and slow ones are run a second time beside the first."""
    chance = random.Random(os.environ.get("SEED", "1"))
    cluster = {"WINDROW_TEST_MASTER": "local-cluster[2,1,1024]"}
    ingest.grow(2)
    killed(ingest.start("append.committing", 1, **cluster))
    for _ in range(3):
        ingest.grow(2, rows=500)
        kill_at_random(ingest.start(mode="continuous", **cluster), chance, 15)
    ingest.grow(2)
    finish(ingest.start(**cluster), 400)
    ingest.verify()


def kill_at_random(process: subprocess.Popen[str], chance: random.Random, seconds: float) -> None:
    """Kill a process at some time after its query has started."""
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(chance.uniform(0, seconds))
    process.kill()
    process.communicate(timeout=600)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_drivers_feed_one_stream_at_once_and_one_of_them_is_killed(ingest, tmp_path):
    """Each is a source of its own; what one leaves behind when it dies does not disturb the other."""
    other = Ingest(tmp_path / "other", ingest)
    for feed in (ingest, other):
        feed.grow(6)
    dying = ingest.start("append.published", 3, WINDROW_TEST_SOURCE="a")
    living = other.start(WINDROW_TEST_SOURCE="b")
    killed(dying)
    finish(living)
    finish(ingest.start(WINDROW_TEST_SOURCE="a"))
    with windrow.open(ingest.warehouse) as wh:
        wh.slide("s", START + dt.timedelta(minutes=6))
        keys = wh.scan("s", columns=["k"]).read_all().column("k").to_pylist()
        assert sorted(keys) == sorted([*range(ingest.rows), *range(other.rows)])
        wh.gc()
        assert wh.check().problems == ()
