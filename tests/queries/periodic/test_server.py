"""`windrow serve`: it runs what other processes' slides make due, one leads, the next takes over, and it stops when told to."""

import contextlib
import datetime as dt
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import child_processes
import recorded_history
import scratch_folders
import windrow
from child_processes import PER_SLOT
from sample_streams import BASE, DELTA
from windrow.queries.periodic import evaluation
from windrow.queries.periodic.server import PeriodicServer

PATIENCE = 60
FIRST = BASE // DELTA


class Served:
    """A `windrow serve` process whose lines are read as they come."""

    def __init__(self, command: Path, path: Path, *options: str) -> None:
        self.child = subprocess.Popen(
            [str(command), "-w", str(path), "serve", "--json", "--poll", "0.02", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: queue.Queue[dict] = queue.Queue()
        self.seen: list[dict] = []
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(json.loads(line))

    def until(self, test) -> dict:
        """The first line for which `test` holds."""
        while True:
            line = self.lines.get(timeout=PATIENCE)
            self.seen.append(line)
            if test(line):
                return line

    def said(self, words: str) -> str:
        return self.until(lambda line: words in line.get("said", ""))["said"]

    def ran(self, query: str, slot: int) -> dict:
        """A run; the runs of one round come in any order, so it may have been read on the way to another."""

        def is_it(line: dict) -> bool:
            return line.get("query") == query and line["slide"] == FIRST + slot

        return next(filter(is_it, self.seen), None) or self.until(is_it)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        os.kill(self.child.pid, number)
        code = self.child.wait(PATIENCE)
        assert self.child.stderr is not None
        return code, self.child.stderr.read()


@contextmanager
def serving(command: Path, path: Path, *options: str) -> Iterator[Served]:
    served = Served(command, path, *options)
    try:
        yield served
    finally:
        if served.child.poll() is None:
            served.child.kill()
            served.child.wait()
        served.reading.join(PATIENCE)
        for pipe in (served.child.stdout, served.child.stderr):
            assert pipe is not None
            pipe.close()


def fetch(port: int, page: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{page}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def path():
    with scratch_folders.scratch_folder() as folder:
        child_processes.create_periodic(str(folder / "w"))
        yield folder / "w"


def test_it_runs_what_other_processes_make_due_and_shows_itself(windrow_command, path):
    with serving(windrow_command, path, "--port", "0") as served, recorded_history.open_warehouse(path) as wh:
        port = int(served.said("http://").rpartition(":")[2])
        for slot in range(1, 5):
            child_processes.slide_numbered(wh, slot)
            served.ran("come", slot)
        served.ran("newest", 4)
        assert [row[-2:] for row in wh.results("newest", slide=FIRST + 4).fetchall()] == [(3, PER_SLOT), (4, PER_SLOT)]
        code, text = fetch(port, "/metrics")
        assert code == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}

        def value(name: str, **labels: str) -> float:
            family = families[name.removesuffix("_total")]
            return next(s.value for s in family.samples if s.name == name and s.labels == labels)

        assert value("windrow_runs_total", query="come", outcome="delivered") == 4
        assert value("windrow_leader") == 1
        assert value("windrow_query_slide", query="newest") == FIRST + 4
        assert value("windrow_stream_slide", stream="s") == FIRST + 4
        status = wh.stream("s")
        assert value("windrow_stream_live_rows", stream="s") == status.live_rows == 4 * PER_SLOT
        assert value("windrow_stream_bytes", stream="s") == status.bytes
        for name in ("spooled_rows", "late_rows_total", "rejected_rows_total"):
            assert value(f"windrow_stream_{name}", stream="s") == 0
        assert value("windrow_stream_lag_seconds", stream="s") > 0
        assert value("windrow_disk_free_bytes") > 0
        assert value("windrow_oldest_pin_commits") >= 0
        code, text = fetch(port, "/status?x")
        reply = json.loads(text)
        assert (code, reply["leading"], reply["errors"]) == (200, True, 0)
        assert {query["name"]: query["slide"] for query in reply["queries"]}["come"] == FIRST + 4
        assert reply["streams"] == [{"stream": "s", "slide": FIRST + 4, "now": reply["streams"][0]["now"]}]
        assert fetch(port, "/healthz") == (200, "ok\n")
        assert fetch(port, "/etc/passwd")[0] == 404
        assert fetch(port, "/status", host="evil.example")[0] == 403
        code, wrong = served.stop()
        assert (code, wrong) == (0, "")
        assert wh.check().ok


def test_a_second_one_waits_and_takes_over_when_the_leader_is_killed(windrow_command, path):
    with serving(windrow_command, path, "--port", "0") as first, recorded_history.open_warehouse(path) as wh:
        first.said("serving")
        with serving(windrow_command, path, "--port", "0") as second:
            second.said("is serving; waiting to take over")
            child_processes.slide_numbered(wh, 1)
            first.ran("come", 1)
            first.child.kill()
            first.child.wait()
            second.said("serving")
            for slot in (2, 3):
                child_processes.slide_numbered(wh, slot)
                second.ran("come", slot)
            second.ran("newest", 3)
            assert second.stop(signal.SIGINT) == (0, "")
            assert not any(line.get("slide") == FIRST + 1 for line in second.seen if line.get("query") == "come")
        slides = [row[0] - FIRST for row in wh.results("come").fetchall()]
        assert slides == [1, 2, 3]


def test_a_waiting_one_stops_too(windrow_command, path):
    with serving(windrow_command, path, "--no-http") as leader:
        leader.said("serving")
        with serving(windrow_command, path, "--no-http") as waiter:
            waiter.said("waiting")
            assert waiter.stop() == (0, "")
        assert leader.stop() == (0, "")


def test_a_port_in_use_stops_nobody(windrow_command, path):
    """Queries run meanwhile; when the port is free, the process that waited for it answers."""
    with recorded_history.open_warehouse(path) as wh, contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(windrow_command, path, "--port", str(port)) as served:
            assert "cannot be listened on" in served.said(str(port))
            child_processes.slide_numbered(wh, 1)
            served.ran("come", 1)
            taken.close()
            served.said("answering on")
            assert fetch(port, "/healthz") == (200, "ok\n")
            assert served.stop() == (0, "")
        assert wh.queries()[0].error is None


def test_stopping_ends_a_long_statement_and_leaves_its_run_due(path, monkeypatch):
    """The run is not counted as a failure: the next process makes it."""
    started = threading.Event()
    with recorded_history.open_warehouse(path) as wh:
        child_processes.slide_numbered(wh, 1)
        wh.run_due()
        for name in ("newest", "each", "come", "gone"):
            wh.drop_query(name)
        sql = f"SELECT count(*) AS n FROM s [WINDOW {DELTA} MICROSECONDS SLIDE {DELTA} MICROSECONDS]"
        wh.add_query("long", sql)
        real = evaluation._RowStatements._run

        def slow(self, query, limit):
            started.set()
            long = "SELECT count(*) AS n FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = 7"
            return real(self, msgspec.structs.replace(query, sql=long), limit)

        monkeypatch.setattr(evaluation, "answer_due", lambda *what: evaluation.answer_from_rows(*what[:3]))
        monkeypatch.setattr(evaluation._RowStatements, "_run", slow)
        child_processes.slide_numbered(wh, 2)
        server = PeriodicServer(wh._store, poll=0.01)
        thread = threading.Thread(target=server.run)
        thread.start()
        assert started.wait(PATIENCE)
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        (long,) = wh.queries()
        assert (long.runs, long.failures, long.error, long.due) == (0, 0, None, True)
        monkeypatch.setattr(evaluation._RowStatements, "_run", real)
        assert [run.outcome for run in wh.run_due()] == ["delivered"]


def test_it_slides_by_the_wall_clock_on_request(windrow_command, tmp_path):
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    with windrow.open(tmp_path / "w") as wh:
        wh.create_stream("ticks", schema, time="ts", slide="100 milliseconds")
        wh.append("ticks", [{"ts": dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5), "n": 1}])
        with serving(windrow_command, tmp_path / "w", "--no-http", "--slide", "ticks", "--lag", "1 second") as served:
            assert served.until(lambda line: line.get("inserted") == 1)["stream"] == "ticks"
            assert wh.sql("SELECT n FROM ticks").fetchall() == [(1,)]
            assert served.stop()[0] == 0
