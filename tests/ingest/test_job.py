"""`windrow ingest`: Spark jobs from the command line."""

import contextlib
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import windrow
from windrow import cli
from windrow.ingest import job
from windrow.ingest.errors import describe_error

NOW = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("src", pa.int64()), ("len", pa.int32())])


@pytest.fixture
def run(spark, tmp_path):
    """Runs the command on a new warehouse, in this process, with the session that is there."""
    path = tmp_path / "warehouse"
    with windrow.open(path) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="1 hour")

    def call(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli.windrow, ["ingest", "packets", "-w", str(path), *arguments])
        assert done.exit_code == code, done.output
        return done.output if code else done.stdout

    call.path = path
    return call


def stamp(seconds: int) -> str:
    return (NOW - dt.timedelta(minutes=10) + dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def lengths(run) -> list[int]:
    with windrow.open(run.path) as wh:
        return sorted(wh.scan("packets").read_all().column("len").to_pylist())


def test_csv_files_have_the_streams_columns_by_default(run, tmp_path):
    lines = ["ts,src,len", *(f"{stamp(i)},{i},{i * 10}" for i in range(100)), ",1,1"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    arguments = ("--format", "csv", "--load", str(tmp_path / "a.csv"), "--option", "header=true", "--batch-id", "a")
    out = run(*arguments)
    assert "packets: 100 rows ingested" in out
    assert "packets: 1 row rejected: the event time is null" in out
    assert "packets: 1 slide, now " in out
    assert lengths(run) == [i * 10 for i in range(61)]  # the others are ahead of the clock, which is at a minute's end
    assert "had been ingested before" in run(*arguments)


def test_text_becomes_rows_by_sql(run, tmp_path):
    (tmp_path / "log.txt").write_text("\n".join(f"{stamp(i)} host{i} {i}" for i in range(60)))
    sql = (
        "SELECT to_timestamp(parts[0]) ts, cast(substr(parts[1], 5) as bigint) src, cast(parts[2] as int) len "
        "FROM (SELECT split(value, ' ') parts FROM input)"
    )
    totals = json.loads(run("--format", "text", "--load", str(tmp_path / "log.txt"), "--sql", sql, "--json"))
    assert (totals["rows"], totals["accepted"], totals["rejected"]) == (60, 60, {})


def test_a_folder_as_a_stream_goes_on_where_it_stopped(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()

    def grow(number: int) -> None:
        start = NOW - dt.timedelta(minutes=9 - number)
        stamps = pa.array([start + dt.timedelta(seconds=i) for i in range(10)], UTC)
        pq.write_table(pa.table([stamps, range(10), [number] * 10], schema=SCHEMA), folder / f"{number}.parquet")

    arguments = ("--load", str(folder), "--checkpoint", str(tmp_path / "checkpoint"), "--json")
    grow(0)
    assert json.loads(run(*arguments))["rows"] == 10
    grow(1)
    totals = json.loads(run(*arguments, "--where", "src < 5"))
    assert (totals["batches"], totals["rows"]) == (1, 5)


class Test_continuous:
    """The command runs in this process and ends by SIGTERM, as a service would be ended."""

    @contextlib.contextmanager
    def ended_when(self, run, rows: int):
        """Sends SIGTERM as soon as so many rows are in."""
        failed = []

        def watch() -> None:
            end = time.monotonic() + 100
            with windrow.open(run.path) as wh:
                while (state := wh.stream("packets")).inserted + state.spooled_rows < rows:
                    if time.monotonic() > end:
                        failed.append("the rows did not come")
                        break
                    time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)

        before = signal.signal(signal.SIGTERM, lambda *_: None)
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            signal.signal(signal.SIGTERM, before)
        assert failed == []

    def test_lines_of_a_socket(self, run):
        lines = "".join(f"{stamp(i)} {i} {i}\n" for i in range(30)).encode()
        sql = (
            "SELECT to_timestamp(p[0]) ts, cast(p[1] as bigint) src, cast(p[2] as int) len "
            "FROM (SELECT split(value, ' ') p FROM input)"
        )
        ended = threading.Event()

        def speak() -> None:
            line, _ = server.accept()
            with line:
                line.sendall(lines)
                ended.wait(150)

        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=speak, daemon=True).start()
            where = ("--option", "host=127.0.0.1", "--option", f"port={server.getsockname()[1]}")
            checkpoint = ("--checkpoint", str(run.path.parent / "checkpoint"), "--continuous")
            try:
                with self.ended_when(run, 30):
                    totals = json.loads(run("--format", "socket", *where, "--sql", sql, *checkpoint, "--json"))
            finally:
                ended.set()
        assert (totals["rows"], totals["rejected"], totals["failure"]) == (30, {}, None)

    def test_the_rate_source_with_a_projection(self, run):
        sql = "SELECT timestamp ts, value src, cast(value % 7 as int) len FROM input"
        given = ("--format", "rate-micro-batch", "--option", "rowsPerBatch=20", "--option", "numPartitions=1")
        start = int(NOW.timestamp() - 600) * 1000
        arguments = (*given, "--option", f"startTimestamp={start}", "--option", "advanceMillisPerBatch=1000")
        checkpoint = (
            "--checkpoint",
            str(run.path.parent / "checkpoint"),
            "--continuous",
            "--trigger",
            "200 milliseconds",
        )
        with self.ended_when(run, 60):
            totals = json.loads(run(*arguments, "--sql", sql, *checkpoint, "--json"))
        assert totals["rows"] >= 60
        assert (totals["rejected"], totals["failure"]) == ({}, None)
        with windrow.open(run.path) as wh:
            wh.slide("packets", NOW)
            rows = sorted(wh.scan("packets").read_all().column("src").to_pylist())
        assert rows == list(range(totals["rows"]))


def test_json_files_and_a_condition_that_no_row_meets(run, tmp_path):
    """The rows that are left out still tell how far the source has come."""
    for part in range(2):
        records = [{"ts": stamp(60 * part + i), "src": i, "len": 1} for i in range(60)]
        (tmp_path / f"{part}.json").write_text("\n".join(map(json.dumps, records)))
    files = ("--load", str(tmp_path / "0.json"), "--load", str(tmp_path / "1.json"))
    totals = json.loads(run("--format", "json", *files, "--where", "len > 1", "--json"))
    assert (totals["rows"], totals["slides"], totals["now"]) == (0, 1, stamp(60))


def test_under_spark_submit_the_options_stand_behind_the_file(tmp_path):
    """In a process of its own, since spark-submit starts the JVM first."""
    with windrow.open(tmp_path / "warehouse") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="1 hour")
    (tmp_path / "a.csv").write_text("\n".join(f"{stamp(i)},{i},{i * 10}" for i in range(61)))
    submit = Path(sys.executable).with_name("spark-submit")
    quiet = ("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR", "--driver-memory", "512m")
    given = (
        "packets",
        "-w",
        str(tmp_path / "warehouse"),
        "--format",
        "csv",
        "--load",
        str(tmp_path / "a.csv"),
        "--json",
    )
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *quiet, job.__file__, *given],
        capture_output=True, text=True, timeout=170, check=False, env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    totals = json.loads(done.stdout[done.stdout.index("{") :])  # spark-submit puts what Python says on stderr there too
    assert (totals["accepted"], totals["now"]) == (61, stamp(60))
    with windrow.open(tmp_path / "warehouse") as wh:
        assert sorted(wh.scan("packets").read_all().column("len").to_pylist()) == [i * 10 for i in range(61)]


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--continuous",), "--continuous needs --checkpoint", 2),
        (("--option", "header"), "--option is KEY=VALUE, not 'header'", 2),
        (("--checkpoint", "x", "--batch-id", "y"), "--batch-id is for a single batch", 2),
        (("--heartbeat", "1 second"), "--heartbeat is for an ingest that goes on", 2),
        (("--load", "a", "--load", "b", "--checkpoint", "x"), "windrow: a stream reads one folder, not 2", 1),
        (("--load", "/nowhere"), "windrow: Spark: [PATH_NOT_FOUND] Path does not exist: file:/nowhere", 1),
        (
            ("--format", "kafka", "--option", "subscribe=packets"),
            "windrow: Spark: [KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data source: kafka",
            1,
        ),
        (("--format", "rate", "--sql", "SELECT no FROM input"), "windrow: Spark: ", 1),
    ],
)
def test_a_mistake_is_one_line(run, arguments, words, code):
    out = run(*arguments, code=code)
    assert words in " ".join(out.split())
    assert code == 2 or len(out.strip().splitlines()) == 1


def test_a_record_that_cannot_be_read_fails_the_batch_unless_told_otherwise(run, tmp_path):
    (tmp_path / "a.csv").write_text(f"{stamp(0)},1,10\n{stamp(1)},two,20\n")
    arguments = ("--format", "csv", "--load", str(tmp_path / "a.csv"))
    assert "Malformed records are detected in record parsing" in run(*arguments, code=1)
    with windrow.open(run.path) as wh:
        assert wh.stream("packets").spooled_rows == 0
    assert "1 row ingested" in run(*arguments, "--option", "mode=DROPMALFORMED")


def test_a_stream_that_fails_says_why_and_what_came_before(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text(f"{stamp(0)},1,10\n")
    (folder / "b.csv").write_text("this,is,odd\n")
    os.utime(folder / "a.csv", (0, 0))
    arguments = ("--format", "csv", "--load", str(folder), "--option", "maxFilesPerTrigger=1")
    out = run(*arguments, "--checkpoint", str(tmp_path / "checkpoint"), code=1)
    assert "packets: 1 row ingested" in out
    assert "the ingest failed: " in out


def test_a_failure_of_ours_is_told_in_its_own_words():
    text = "[STREAM_FAILED] Query [id = 1] terminated with exception: boo\n...\nwindrow.errors.SchemaError: 'a' is odd\n at"
    assert describe_error(RuntimeError(text)) == "'a' is odd"
    assert (
        describe_error(RuntimeError("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: boo\nmore"))
        == "boo"
    )
    assert describe_error(RuntimeError()) == "RuntimeError"
