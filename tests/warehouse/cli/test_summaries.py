"""`windrow summary`: declared, listed, shown, asked and dropped, for people and for machines."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import windrow
from windrow import cli

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64())])
STATEMENT = "SELECT src, count(*) AS n FROM s GROUP BY src"


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "w"
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        wh.append("s", [{"ts": NOON + dt.timedelta(seconds=1), "src": src} for src in (1, 1, 1, 2, 2, 3)])
        wh.slide("s", to=NOON + dt.timedelta(minutes=1))

    def call(*arguments, code=0):
        arguments = ["-w", str(path), *map(str, arguments)]
        result = CliRunner(env={"COLUMNS": "250"}).invoke(cli.windrow, arguments, prog_name="windrow")
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return call


def test_a_summary_is_created_listed_shown_asked_and_dropped(run):
    assert "there are no summaries" in run("summary", "list")
    created = run("summary", "create", "talkers", STATEMENT, "--frequent", 2)
    assert created == "created summary talkers of stream s: 1 list of 2\n"
    header, _, row = run("summary", "list").splitlines()
    assert header.split() == ["summary", "of", "counts", "by", "frequent", "lists", "bytes"]
    assert row.split()[:6] == ["talkers", "s", "rows", "src", "2", "1"]
    shown = dict(line.split("  ", 1) for line in run("summary", "show", "talkers").splitlines())
    assert shown["statement"].strip() == STATEMENT
    assert shown["windows"].strip() == "of whole slots, up to 10 minutes"
    bounds = "SELECT src, lower, upper, certain FROM talkers"
    assert [json.loads(line) for line in run("sql", bounds, "--json").splitlines()] == [
        {"src": 1, "lower": 3, "upper": 3, "certain": True},
        {"src": 2, "lower": 2, "upper": 2, "certain": True},
    ]
    assert "talkers" in run("explain", STATEMENT.replace("GROUP BY src", "GROUP BY src ORDER BY n DESC LIMIT 1"))
    assert "dropped summary talkers" in run("summary", "drop", "talkers")
    assert json.loads(run("summary", "list", "--json")) == []


def test_errors_are_one_sentence(run):
    assert "there is no summary 'x'; none was created" in run("summary", "show", "x", code=1)
    assert "a summary is of one count(*)" in run("summary", "create", "x", "SELECT count(*) FROM s", code=1)
    assert "frequent is 0" in run("summary", "create", "x", STATEMENT, "--frequent", 0, code=1)
    run("summary", "create", "x", STATEMENT)
    assert "'x' exists already" in run("summary", "create", "x", STATEMENT, code=1)
    assert "there is already summary x" in run("summary", "create", "x", STATEMENT, "--if-not-exists")
