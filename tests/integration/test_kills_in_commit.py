"""kill -9 inside LMDB's commit, while another process has the warehouse open: that one must not remove what it cannot see.

files renamed      meta page written      readers told
──────●───────────────────●──────×──────────────●─────    × the writer dies: the commit is there, and readers miss it
"""

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import windrow

SOURCE = Path(__file__).parent.parent / "kill_in_commit.c"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
HOUR = 3600 * 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("id", pa.int64())])
PER_MINUTE = 50
INDEX = windrow.Index("round-robin", 2, 2, maintenance="rebuild")


def at(minute: int) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minute)


def rows(minute: int) -> pa.Table:
    seconds = [dt.timedelta(seconds=number + 1) for number in range(PER_MINUTE)]
    return pa.table(
        {
            "ts": [at(minute) - second for second in seconds],
            "k": [number % 5 for number in range(PER_MINUTE)],
            "id": ids(minute),
        },
        schema=SCHEMA,
    )


def ids(*minutes: int) -> list[int]:
    """The truth: the rows of some minutes."""
    return sorted(minute * 1000 + number for minute in minutes for number in range(PER_MINUTE))


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler, and without one no process can be killed inside LMDB")
    library = tmp_path_factory.mktemp("preload") / "kill_in_commit.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


CHANGES = {
    "append": "wh.append('s', here.rows(4), batch_id='four')",
    "slide": "wh.slide('s', to=here.at(4))",
    "table": "wh.put_table('names', pa.table({'v': [2] * 7}))",
    "relayout": "wh.relayout_step('s')",
}
CHILD = """
import sys
from pathlib import Path
import pyarrow as pa
import test_kills_in_commit as here
import windrow
path, armed = sys.argv[1:]
wh = windrow.open(path)
Path(armed).touch()
"""


def die_in_commit(preload: Path, path: Path, change: str) -> None:
    """Make a change in another process, which is killed in its commit."""
    armed = path.with_name("armed")
    folder = str(Path(__file__).parent)
    env = os.environ | {"LD_PRELOAD": str(preload), "KILL_IN_COMMIT": str(armed), "PYTHONPATH": folder}
    command = [sys.executable, "-c", CHILD + CHANGES[change], str(path), str(armed)]
    dead = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr


class Clock:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.now = int(at(600).timestamp() * 1_000_000)

    def __call__(self) -> int:
        return self.now


def answers(wh: windrow.Warehouse) -> tuple[list[int], list[int]]:
    """The ids in the window, and the table."""
    found = [row[0] for row in wh.sql("SELECT id FROM s ORDER BY id").fetchall()]
    return found, [row[0] for row in wh.sql("SELECT v FROM names").fetchall()]


@pytest.mark.parametrize("change", CHANGES)
def test_files_of_a_writer_that_died_in_its_commit_are_not_taken_for_orphans(
    change: str, preload: Path, tmp_path: Path
) -> None:
    path, clock = tmp_path / "wh", Clock()
    with windrow.open(path, clock=clock) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="60 minutes", index=INDEX)
        wh.put_table("names", pa.table({"v": [1] * 7}))
        for minute in (1, 2, 3):
            wh.append("s", rows(minute))
            wh.slide("s", to=at(minute))
        if change == "slide":
            wh.append("s", rows(4), batch_id="four")
        if change == "relayout":
            wh.relayout("s", key="id")
    with windrow.open(path, clock=clock) as wh:
        wh.gc()
        before = answers(wh)
        assert before == (ids(1, 2, 3), [1] * 7)
        die_in_commit(preload, path, change)
        assert answers(wh) == before, "the commit is not seen yet; if it is, this test tests nothing"
        if change == "table":
            assert wh.check().problems == (), "check looks as closely as gc does"
        for _ in range(3):
            wh.gc()
            clock.now += 2 * HOUR
        table = [2] * 7 if change == "table" else [1] * 7
        assert answers(wh) == (ids(1, 2, 3, 4) if change == "slide" else ids(1, 2, 3), table)
        assert wh.append("s", rows(4), batch_id="four").duplicate == (change in ("append", "slide"))
        wh.slide("s", to=at(4))
        assert answers(wh) == (ids(1, 2, 3, 4), table)
        wh.slide("s", to=at(5))
        report = wh.gc()
        assert (report.marked, report.refused) == (0, "")
        assert answers(wh) == (ids(1, 2, 3, 4), table)
        assert wh.check().problems == ()
