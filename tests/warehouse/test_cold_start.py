"""A process that asks one question loads what the question needs: neither pandas nor what writes, and no thread."""

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import windrow

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("note", pa.string())])
HEAVY = ("pandas", "polars", "pyspark", "rich", "windrow.append", "windrow.slide", "windrow.relayout", "windrow.ddl",
         "windrow.advisor", "windrow.check", "windrow.segment_files")  # fmt: skip
PROGRAM = """
import json, sys, threading
started = []
threading.Thread.start = lambda thread, start=threading.Thread.start: started.append(thread.name) or start(thread)
sys.__stdout__ = None  # as if the output were captured: statements then run in this process, not in a worker
from windrow.cli import windrow
for arguments in json.loads(sys.argv[3]):
    windrow(["-w", sys.argv[2], *arguments], prog_name="windrow", standalone_mode=False)
    print("loaded:", *sorted(set(sys.argv[1].split(",")) & set(sys.modules)), *started)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cold") / "wh"
    times = [NOON + dt.timedelta(seconds=n) for n in range(1, 100)]
    with windrow.open(folder) as wh:
        wh.create_stream("calls", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        wh.append("calls", pa.table([times, [n % 7 for n in range(99)], [str(n) for n in range(99)]], schema=SCHEMA))
        wh.slide("calls", to=NOON + dt.timedelta(minutes=2))
    return folder


COMMANDS = (
    ("sql", "SELECT * FROM calls WHERE src = 3 LIMIT 1"),
    ("sql", "SELECT note, count(*), avg(src) FROM calls [WINDOW 90 SECONDS] GROUP BY note ORDER BY note LIMIT 2"),
    ("sql", "SELECT stream, now, live_rows, waiting_for FROM windrow.streams"),
    ("sql", "--json", "SELECT ts, src FROM calls WHERE src BETWEEN 2 AND 3 ORDER BY ts LIMIT 2"),
    ("sql", "--csv", "SELECT src, sum(src), max(ts) FROM calls GROUP BY src ORDER BY src"),
    ("probe", "calls", "--key", "3"),
    ("status",),
)


def test_commands_load_no_pandas_and_nothing_that_writes_and_start_no_thread(folder: Path) -> None:
    """One process makes them all, one after the other: what all of them have loaded, each had to load at most."""
    command = [sys.executable, "-c", PROGRAM, ",".join(HEAVY), str(folder), json.dumps(COMMANDS)]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = [line.split() for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert len(loaded) == len(COMMANDS)
    for arguments, actual in zip(COMMANDS, loaded, strict=True):
        # One thread waits for Ctrl-C.
        assert [name for name in actual if name != "windrow-interrupts"] == ["loaded:"], arguments


def test_the_first_statement_of_a_program_loads_no_pandas(folder: Path) -> None:
    program = """
import sys, windrow
wh = windrow.open(sys.argv[1])
import windrow.queries.execution
# What a statement may need or not.
rare = {"pyarrow.compute", "pyarrow.csv", "difflib", "fractions", "zoneinfo"} & set(sys.modules)
print(wh.sql("SELECT src, sum(src), max(ts), min(note) FROM calls GROUP BY src ORDER BY src LIMIT 1").fetchall())
print("pandas" in sys.modules, *rare)
"""
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    rows, loaded = done.stdout.splitlines()
    assert rows.startswith("[(0, 0, datetime.datetime(2025, 1, 1, 12, 1, 39, ")
    assert loaded == "False"
