"""Limits of statements, measured from outside the process that runs them, and what holds inside of one."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import windrow
from windrow.queries.engine import interrupt

HEAVY = "SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(1000000) b(i)"
ONE_CALL = "SELECT levenshtein(repeat('a', 25000), repeat('b', 25000))"
"""Seconds inside one scalar call, in which DuckDB hears of nothing."""
ENDLESS = "SELECT 'x' AS a0" + "".join(f", a{i} || a{i} AS a{i + 1}" for i in range(60))
"""Never planned to its end."""
COMMAND = Path(sys.executable).with_name("windrow")


@pytest.fixture
def path(tmp_path):
    with windrow.open(tmp_path / "w") as wh:
        wh.put_table("t", pa.table({"k": [1, 2]}))
    return tmp_path / "w"


def run(path, *arguments: str, text: str | None = None) -> tuple[int, str, str]:
    """Run a command; gives its exit code and what it wrote."""
    process = subprocess.Popen(
        [COMMAND, "-w", path, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(text, timeout=120)
    return process.returncode, out, err


def run_measured(path, *arguments: str) -> tuple[int, str, int]:
    """Run a command under a process that waits for it and says how much memory it and its worker had."""
    code = (
        "import os, resource, subprocess, sys; p = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "print(p.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024); print(p.stdout + p.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, COMMAND, "-w", path, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    first, _, rest = shown.partition("\n")
    returned, peak = map(int, first.split())
    return returned, rest.strip(), peak


def test_the_memory_of_a_statement_is_limited_within_one_scalar_call(path):
    code, said, peak = run_measured(path, "sql", "--memory-limit", "100MB", "SELECT len(range(100000000))")
    assert code == 1
    assert said.startswith("windrow: ")
    assert "\n" not in said
    assert peak < 700, said


def test_a_worker_lives_on_after_a_statement_that_wants_too_much(path):
    text = "SELECT 1 AS a; SELECT sum(k) AS b FROM t;"
    code, out, err = run(path, "sql", "--csv", "--memory-limit", "100MB", text=text)
    assert (code, out.split(), err) == (0, ['"a"', "1", '"b"', "3"], "")


def test_a_statement_that_is_never_planned_ends_with_its_process(path):
    code, out, err = run(path, "sql", "--timeout", "1", ENDLESS)
    assert (code, out) == (75, "")  # it may be tried again
    assert err == "windrow: the query was cancelled: it took longer than 1 s\n"


@pytest.mark.soak
def test_errors_and_ctrl_c_leave_no_report_of_leaks(path):
    code, _, err = run(path, "sql", "SELECT * FROM nothing")
    assert code == 1
    assert err.startswith("windrow: there is no stream")
    assert "leaked" not in err
    process = subprocess.Popen(
        [COMMAND, "-w", path, "sql", HEAVY],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "leaked" not in err


@pytest.mark.parametrize("isolation", ["snapshot", "latest"])
def test_the_caller_gets_its_time_back_although_duckdb_goes_on(path, isolation):
    with windrow.open(path) as wh:
        with pytest.raises(windrow.QueryTimeoutError, match="it took longer than") as error:
            wh.sql(ONE_CALL, timeout=0.2, isolation=isolation).fetchall()
        assert isinstance(error.value, TimeoutError)
        assert wh.sql("SELECT sum(k) FROM t", timeout=60).fetchall() == [(3,)]
        while interrupt.has_late_calls():
            time.sleep(0.05)
        assert wh.sql("SELECT sum(k) FROM t", timeout=60).fetchall() == [(3,)]


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_another_thread_cancels(path, how):
    wh = windrow.open(path)
    timer = threading.Timer(0.5, getattr(wh, how))
    timer.start()
    with pytest.raises(windrow.QueryError, match="cancelled by interrupt"):
        wh.sql(HEAVY).fetchall()
    timer.join()
    wh.close()


@pytest.mark.soak
def test_sizes_are_checked_and_held(path):
    for options in ({"memory": "lots"}, {"spill": 5}):
        with pytest.raises(windrow.QueryError, match="is not a"):
            windrow.open(path, **options)
    with windrow.open(path, memory="64MB", spill="0MB") as wh:
        with pytest.raises(windrow.QueryError, match="memory"):
            wh.sql("SELECT i, md5(i::VARCHAR) AS m FROM range(3000000) t(i) ORDER BY m").fetchone()
        assert wh.sql("SELECT sum(k) FROM t").fetchall() == [(3,)]


def test_a_periodic_query_has_a_memory_limit(path):
    with windrow.open(path) as wh, pytest.raises(windrow.QueryError, match="is not a"):
        wh.add_query("q", "SELECT 1", memory_limit="much")


@pytest.mark.soak
def test_serve_goes_on_in_a_new_process_when_its_worker_is_killed(path):
    process = subprocess.Popen([COMMAND, "-w", path, "serve", "--no-http"], stdout=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        first = _wait_for(lambda: children.read_text().split())
        os.kill(int(first[0]), signal.SIGKILL)
        assert _wait_for(lambda: [child for child in children.read_text().split() if child not in first])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _wait_for(look):
    while not (actual := look()):
        time.sleep(0.05)
    return actual


def test_an_error_that_ends_a_program_leaves_no_report_of_leaks(path):
    code = "import sys, windrow; wh = windrow.open(sys.argv[1]); wh.sql('SELECT * FROM nothing').fetchall()"
    shown = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False).stderr
    assert "QueryError: there is no stream" in shown
    assert "leaked" not in shown
