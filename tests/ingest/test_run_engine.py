"""Periodic queries that Spark runs: the same windows, delivered by the same code; the truth is plain DuckDB over all rows."""

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from plain_duckdb import connect
from spark_executors import find_executors

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("len", pa.int32())])
SEED = 20261119
PER_MINUTE = 30


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


class World:
    """A stream of packets with all rows that it was ever given."""

    def __init__(self, path: Path) -> None:
        print(f"seed {SEED}")
        self.wh = windrow.open(path)
        self.rng = random.Random(SEED)
        self.rows: list[dict[str, Any]] = []
        self.minute = 0
        self.wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="20 minutes")
        self.wh.put_table("hosts", pa.table({"src": pa.array(range(9), pa.int64()), "host": [*"abcdefghi"]}))

    def append(self, begin: float, end: float) -> None:
        made = [
            {"ts": at(self.rng.uniform(begin + 1e-6, end)), "src": self.rng.randrange(9), "len": self.rng.randrange(99)}
            for _ in range(PER_MINUTE)
        ]
        self.rows += made
        self.wh.append("packets", pa.Table.from_pylist(made, SCHEMA))

    def slide(self, minutes: int = 1) -> None:
        """Append rows of each of some minutes, and slide after it."""
        for _ in range(minutes):
            self.append(self.minute, self.minute + 1)
            self.minute += 1
            self.wh.slide("packets", to=at(self.minute))

    def truth(self, sql: str, end: int, length: int) -> list[tuple[Any, ...]]:
        """What plain SQL gives over the rows of a window of `length` minutes, whenever they came."""
        rows = [row for row in self.rows if at(end - length) < row["ts"] <= at(end)]
        with connect() as connection:
            connection.register("packets", pa.Table.from_pylist(rows, SCHEMA))
            connection.register("hosts", pa.table({"src": range(9), "host": [*"abcdefghi"]}))
            return sorted(connection.execute(sql).fetchall())

    def results(self, name: str, end: int) -> list[tuple[Any, ...]]:
        """The rows of the run whose window ends at a minute, without the columns of the run."""
        rows = self.wh.sql(f"SELECT * FROM {name} WHERE _window_end = $1", [at(end)]).fetchall()
        return sorted(row[6:] for row in rows)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "wh")
    made.slide()
    yield made
    made.wh.close()


JOINED = "SELECT h.host, sum(p.len) AS bytes FROM packets{} p JOIN hosts h ON p.src = h.src GROUP BY h.host"
COUNTED = "SELECT src, count(*) AS n FROM packets{} GROUP BY src"


def test_runs_on_spark_are_delivered_like_others(spark, world, tmp_path):
    """Missed runs by policy, revisions after late rows, files, differences, priorities and chains, in one history."""
    wh = world.wh
    wh.add_query("every", COUNTED.format(" [WINDOW 3 MINUTES SLIDE 1 MINUTE]"), engine="spark", missed="every")
    wh.add_query(
        "joined", JOINED.format(" [WINDOW 4 MINUTES SLIDE 2 MINUTES]"), engine="spark", spark=spark,
        sink=f"csv:{tmp_path / 'reports'}", revise="5 minutes", priority=3,
    )  # fmt: skip
    wh.add_query("newest", "SELECT max(len) AS top FROM packets WHERE src = ?", params=[4], slide="1 minute", engine="spark")  # fmt: skip
    wh.add_query(
        "fresh", "SELECT DISTINCT src FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]", engine="spark", output="inserts"
    )
    wh.add_query("skipped", COUNTED.format(" [WINDOW 1 MINUTE SLIDE 4 MINUTES]"), engine="spark", missed="skip")
    wh.add_query("above", "SELECT sum(n) AS total FROM every [WINDOW 2 MINUTES SLIDE 1 MINUTE]", engine="spark")
    assert {query.engine for query in wh.queries()} == {"spark"}
    world.slide(5)  # to minute 6
    reports = wh.run_due(spark=spark)
    assert {report.outcome for report in reports} == {"delivered"}, reports
    assert {report.how for report in reports} == {"spark"}
    newest = [report.query for report in reports if report.query in ("joined", "newest", "fresh")]
    assert newest[0] == "joined"
    for end in range(2, 7):
        assert world.results("every", end) == world.truth(COUNTED.format(""), end, 3)
    assert world.results("joined", 6) == world.truth(JOINED.format(" AS"), 6, 4)
    assert world.results("newest", 6) == world.truth("SELECT max(len) FROM packets WHERE src = 4", 6, 20)
    assert world.results("fresh", 6) == world.truth("SELECT DISTINCT src FROM packets", 6, 1)
    assert world.results("skipped", 4) == []
    totals = [sum(n for _, n in world.truth(COUNTED.format(""), end, 3)) for end in (5, 6)]
    assert world.results("above", 6) == [(sum(totals),)]
    (report,) = (tmp_path / "reports").iterdir()
    assert len(report.read_text().splitlines()) == 1 + len(world.truth(JOINED.format(" AS"), 6, 4))

    before = world.truth("SELECT DISTINCT src FROM packets", 6, 1)
    world.append(4, 5)  # late rows, of a window that was delivered
    world.slide()
    again = wh.run_due(["joined", "fresh"])
    assert ("joined", 1) in [(each.query, each.revision) for each in again]
    assert world.results("joined", 6) == world.truth(JOINED.format(" AS"), 6, 4)
    new = world.truth("SELECT DISTINCT src FROM packets", 7, 1)
    assert world.results("fresh", 7) == sorted(set(new) - set(before))
    assert [run for run in wh.run_due(["joined", "fresh"]) if run.outcome != "delivered"] == []
    assert wh.check().ok


def test_without_a_session_a_query_waits_and_says_so(spark, world, windrow_command):
    wh = world.wh
    wh.add_query("big", COUNTED.format(" [WINDOW 3 MINUTES SLIDE 1 MINUTE]"), engine="spark")
    wh.add_query("small", COUNTED.format(" [WINDOW 3 MINUTES SLIDE 1 MINUTE]"))
    world.slide()

    def ask(*words: str) -> Any:
        command = [windrow_command, "-w", wh.path, *words, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    runs = {run["query"]: run for run in ask("query", "run")}
    assert runs["small"]["outcome"] == "delivered"
    assert runs["big"]["outcome"] == "waiting"
    assert "waits for a Spark session" in runs["big"]["error"]
    assert {query["name"]: (query["engine"], query["due"], query["failures"]) for query in ask("query", "list")} == {
        "big": ("spark", True, 0), "small": ("duckdb", False, 0),
    }  # fmt: skip
    listed = subprocess.run([windrow_command, "-w", wh.path, "query", "list"], capture_output=True, text=True)  # noqa: PLW1510
    assert "waits for rounds with a Spark session" in listed.stdout
    assert [(run.query, run.outcome) for run in wh.run_due(spark=spark)] == [("big", "delivered")]
    assert world.results("big", 2) == world.results("small", 2) == world.truth(COUNTED.format(""), 2, 3)
    assert [group.by for group in wh.query_plan() if group.queries == ("big",)] == ["spark"]
    assert wh.sql("SELECT engine FROM windrow.queries ORDER BY query").fetchall() == [("spark",), ("duckdb",)]


def test_a_run_that_takes_too_long_ends_and_harms_no_other(spark, world):
    wh = world.wh
    slow = "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE], range(1L << 45) r WHERE len <> r.id"
    wh.add_query("slow", slow, engine="spark", timeout=0.5)
    wh.add_query("quick", COUNTED.format(" [WINDOW 1 MINUTE SLIDE 1 MINUTE]"), engine="spark")
    world.slide()
    runs = {run.query: run for run in wh.run_due(spark=spark)}
    assert runs["quick"].outcome == "delivered"
    assert runs["slow"].outcome == "failed"
    assert "it took longer than 0.5 s" in runs["slow"].error
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert wh.queries()[1].failures == 1


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("SELECT INTERVAL 1 MONTH AS m, count(*) FROM packets {}", {}, "column 'm' has Spark's type interval month"),
        ("SELECT parse_json('1') AS v FROM packets {}", {}, "column 'v' has Spark's type variant"),
        ("SELECT src AS a, len AS A FROM packets {}", {}, "two columns of the results would be called 'A'"),
        ("SELECT nope FROM packets {}", {}, "`nope` cannot be resolved"),
        ("SELECT src FROM packets [WINDOW 5 MINUTES]", {}, "says how often it is due"),
        ("SELECT src FROM packets [WINDOW 5 MINUTES SLIDE 90 SECONDS]", {}, "no multiple of that"),
        ("SELECT src FROM packets [WINDOW 3 HOURS SLIDE 1 MINUTE]", {}, "keeps rows for 20 minutes"),
        ("SELECT src FROM packets [AS OF COMMIT 2]", {"slide": "1 minute"}, "cannot stand in it"),
        ("SELECT id FROM packets {} JOIN mine ON id = src", {}, "and not mine that"),
        (
            "SELECT text.value FROM packets {}, text.`/etc/passwd` AS text",
            {},
            "and not a table or file that another Spark session",
        ),
        ("DROP TABLE packets", {"slide": "1 minute"}, "only queries can be asked here"),
        ("SELECT src FROM packets {}", {"memory_limit": "1GB"}, "memory_limit= is DuckDB's"),
        ("SELECT src FROM packets {}", {"backfill": "5 minutes"}, "past runs are made by DuckDB only"),
        ("SELECT src FROM packets {}", {"engine": "flink"}, "engine='flink' is not an engine"),
    ],
)
def test_what_could_not_be_delivered_is_refused_when_it_is_added(spark, world, sql, options, message):
    spark.range(3).createOrReplaceTempView("mine")
    try:
        with pytest.raises(windrow.WindrowError) as raised:
            text = sql.format("[WINDOW 5 MINUTES SLIDE 1 MINUTE]")
            world.wh.add_query("q", text, **{"engine": "spark", "spark": spark} | options)
    finally:
        spark.catalog.dropTempView("mine")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert world.wh.queries() == []
    assert world.wh.status().readers == 0


@pytest.mark.timeout(300)
def test_a_killed_executor_and_a_killed_driver_lose_and_double_no_run(spark, world):
    """On two executors. The run that loses one of them is made all the same; that of the killed driver by another one."""
    wh = world.wh
    # Each row is paired with millions of others, so that a run takes seconds.
    many = 500_000
    pairs = f"packets [WINDOW 3 MINUTES SLIDE 1 MINUTE], range(0, {many}, 1, 4) r WHERE hash(r.id, len) % 2 < 9"
    wh.add_query("slow", f"SELECT src, count(*) AS n FROM {pairs} GROUP BY src", engine="spark", sink="jsonl")
    process = Path(__file__).with_name("engine_process.py")
    command = [sys.executable, process, wh.path, "local-cluster[2,1,1024]"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for number in range(2):
            world.slide()
            child.stdin.write("run\n")
            child.stdin.flush()
            assert child.stdout.readline() == "running\n"
            if number == 0:
                executors = find_executors(child.pid)
                assert len(executors) == 2
                os.kill(executors[0], signal.SIGKILL)
                assert child.stdout.readline() == "ended delivered\n"
        child.kill()
    assert wh.queries()[0].runs == 1
    assert [run.outcome for run in wh.run_due(spark=spark)] == ["delivered"]
    assert [run.outcome for run in wh.run_due(spark=spark)] == []
    for end in (2, 3):
        assert world.results("slow", end) == [(src, n * many) for src, n in world.truth(COUNTED.format(""), end, 3)]
    assert len(list((wh.path / "results" / "slow").glob("*.jsonl"))) == 2
    wh.gc()
    assert wh.check().ok
