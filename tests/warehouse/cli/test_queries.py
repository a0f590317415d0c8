"""`windrow query …`: the same as in Python, on a terminal and for machines."""

import datetime as dt
import json

import pytest
from click.testing import CliRunner

import packet_warehouse
import windrow
from packet_warehouse import NOON, SCHEMA
from windrow import cli

TOP = (
    "SELECT src, sum(len) AS n FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] WHERE src < $1 GROUP BY src ORDER BY src"
)


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "w"
    with windrow.open(place) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
        packet_warehouse.append_and_slide(wh, 1)
    return place


@pytest.fixture
def run(path):
    def call(*arguments, code=0, input=None):
        result = CliRunner(env={"COLUMNS": "250"}).invoke(
            cli.windrow, ["-w", str(path), *map(str, arguments)], input=input, prog_name="windrow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return call


def advance(path, number: int) -> None:
    with windrow.open(path) as wh:
        packet_warehouse.append_and_slide(wh, number)


def test_a_file_that_cannot_be_written_is_told_by_table_and_exit_code(run, path, tmp_path):
    run("query", "add", "top", TOP, "-p", "2", "--sink", f"csv:{tmp_path}/reports")
    (tmp_path / "reports").write_text("in the way")
    advance(path, 2)
    assert run("query", "run", code=75) == "windrow: top: results are kept, but their files could not be written yet\n"
    (tmp_path / "reports").unlink()
    assert run("query", "run") == "nothing is due\n"
    assert len(list((tmp_path / "reports").iterdir())) == 1


def test_a_life_of_a_query(run, path, tmp_path):
    output = run("query", "add", "top", TOP, "-p", "2", "--sink", f"csv:{tmp_path}/reports", "--keep", "50")
    assert output == f"top: every 1 minute of packets, missed runs: latest, to csv:{tmp_path}/reports\n"
    assert run("query", "run") == "nothing is due\n"
    assert "up to date" in run("query", "list")
    advance(path, 2)
    assert run("query", "list").splitlines()[-1].split()[-1] == "due"
    shown = run("query", "run").splitlines()
    assert shown[-1].split()[:5] == ["top", str(traffic_slide(2)), "delivered", "2", shown[-1].split()[4]]
    assert str(tmp_path / "reports") in shown[-1]
    rows = [json.loads(line) for line in run("query", "results", "top", "--json").splitlines()]
    assert [(row["src"], row["n"], row["_slide"]) for row in rows] == [
        (src, 2 * sum(range(src, 600, 60)), traffic_slide(2)) for src in (0, 1)
    ]
    assert "2 rows" in run("query", "results", "top").splitlines()[-1]
    advance(path, 3)
    run("query", "run", "top")
    assert len(run("query", "results", "top", "--csv").splitlines()) == 5
    assert len(run("query", "results", "top", "--last", "--csv").splitlines()) == 3
    assert len(run("query", "results", "top", "--slide", traffic_slide(2), "--csv").splitlines()) == 3
    (listed,) = json.loads(run("query", "list", "--json"))
    assert (listed["name"], listed["runs"], listed["keep"], listed["sql"]) == ("top", 2, "50 runs", TOP)
    assert json.loads(run("query", "plan", "--json"))[0]["queries"] == ["top"]
    assert "top" in run("query", "plan")
    assert json.loads(run("query", "run", "--json")) == []
    assert run("query", "drop", "top") == "dropped query top\n"
    assert "no periodic query 'top'" in run("query", "results", "top", code=1)


def traffic_slide(number: int) -> int:
    return int((NOON + dt.timedelta(minutes=number)).timestamp()) // 60


def test_a_statement_from_standard_input(run, path):
    run(
        "query",
        "add",
        "piped",
        "-",
        "--slide",
        "2 minutes",
        input="SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES]",
    )
    assert json.loads(run("query", "list", "--json"))[0]["period"] == "2 minutes"
    (ran,) = json.loads(run("query", "run", "piped", "--now", "--json"))
    assert (ran["outcome"], ran["rows"]) == ("delivered", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "q", "SELECT nothing FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]"), "nothing"),
        (("add", "q", "SELECT 1 FROM packets [WINDOW 2 MINUTES SLIDE 90 SECONDS]"), "the nearest is 2 minutes"),
        (("add", "packets", TOP, "-p", "1"), "exists already"),
        (("add", "q", TOP, "-p", "1", "--sink", "pdf"), "not a sink"),
        (("add", "q", TOP, "-p", "1", "--keep", "long"), "not a duration"),
        (("drop", "q"), "no periodic query 'q'"),
        (("run", "q"), "no periodic query 'q'"),
    ],
)
def test_mistakes_are_told_in_one_line(run, arguments, message):
    error = run("query", *arguments, code=1)
    assert message in error
    assert error.startswith("windrow: ")
    assert "Traceback" not in error


def test_a_failed_run_is_an_exit_code(run, path):
    run("query", "add", "bad", "SELECT CASE WHEN count(*) > 600 THEN error('too many') END AS x "
        "FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]")  # fmt: skip
    advance(path, 2)
    assert "bad failed" in run("query", "run", code=1)
    assert "1 failure: too many" in run("query", "list")


def test_the_table_put_over_a_query_is_refused(run, path, tmp_path):
    run("query", "add", "q", TOP, "-p", "1")
    file = tmp_path / "q.csv"
    file.write_text("a\n1\n")
    assert "'q' exists already" in run("table", "put", "q", file, code=1)


def test_runs_from_history_are_asked_for_and_told(run, path):
    with windrow.open(path) as wh:
        wh.alter_stream("packets", history="1 hour")
    for number in (2, 3, 4, 5):
        advance(path, number)
    since = (NOON + dt.timedelta(minutes=1)).isoformat()
    output = run("query", "add", "top", TOP, "-p", "2", "--backfill", "4 minutes")
    assert output == "top: every 1 minute of packets, missed runs: latest, 4 earlier runs to make\n"
    assert "4 earlier runs to make" in run("query", "list")
    assert run("query", "run").count("delivered, backfilled") == 4
    assert run("query", "backfill", "top", "--since", since) == "top: 0 earlier runs to make\n"
    assert json.loads(run("query", "backfill", "top", "--since", since, "--json"))["to_backfill"] == 0
    message = run("query", "backfill", "top", "--since", "2025-01-01T11:59:00Z", code=1)
    assert "the history of stream 'packets' reaches back to" in message
