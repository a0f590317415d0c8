"""`windrow view`: declared, listed, shown and dropped, for people and for machines."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import windrow
from windrow import cli

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("len", pa.int64())])
JOIN = "SELECT a.src, a.len, b.len AS other FROM a [WINDOW 2 MINUTES] JOIN b USING (src)"


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "w"
    with windrow.open(place) as wh:
        for name in "ab":
            wh.create_stream(name, SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
            rows = [{"ts": NOON + dt.timedelta(seconds=10 * n), "src": n % 3, "len": n} for n in range(1, 7)]
            wh.append(name, pa.Table.from_pylist(rows, SCHEMA))
        wh.slide("a", to=NOON + dt.timedelta(minutes=2))
        wh.slide("b", to=NOON + dt.timedelta(minutes=1))
    return place


@pytest.fixture
def run(path):
    def call(*arguments, code=0):
        result = CliRunner(env={"COLUMNS": "250"}).invoke(
            cli.windrow, ["-w", str(path), *map(str, arguments)], prog_name="windrow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return call


def test_a_view_is_created_with_the_reason_of_its_index(run):
    output = run("view", "create", "pairs", JOIN, "--key", "src").splitlines()
    assert output[0].startswith(
        "created view pairs: weak (a join of windows: a result ends with the first of its parts)"
    )
    assert output[1] == "12 rows at 2025-01-01T12:01:00Z; waits for b"


def test_views_are_listed_and_shown(run):
    assert "there are no views" in run("view", "list")
    run("view", "create", "pairs", JOIN, "--key", "src", "--restore", "--index", "round-robin 2 3")
    header, _, row = run("view", "list").splitlines()
    assert header.split() == ["view", "of", "pattern", "index", "live", "rows", "now"]
    assert row.split()[:6] == ["pairs", "a,", "b", "weak", "round-robin", "2x3"]
    shown = dict(line.split("  ", 1) for line in run("view", "show", "pairs").splitlines())
    document = {label: text.strip() for label, text in shown.items()}
    assert document["statement"] == JOIN
    assert document["restore"] == "yes"
    assert document["kept"] == "from the new rows of each slide"
    assert "_died timestamp" in document["columns"]
    assert "derived from a, b" in run("stream", "show", "pairs")


def test_machines_are_told_the_same(run):
    created = json.loads(run("view", "create", "counts", "SELECT src, count(*) AS n FROM a GROUP BY src", "--json"))
    assert created["pattern"] == "strict"
    assert (created["recomputed"], created["partials"]) == (False, "counts_partials")
    assert (created["inputs"], created["waiting_for"]) == (["a"], [])
    assert created["live_rows"] == 3
    (listed,) = json.loads(run("view", "list", "--json"))
    assert listed == created == json.loads(run("view", "show", "counts", "--json"))
    assert json.loads(run("explain", JOIN, "--json"))["update_pattern"].startswith("weak (")
    assert json.loads(run("stream", "show", "counts", "--json"))["definition"]["inputs"] == ["counts_partials"]
    assert json.loads(run("view", "drop", "counts", "--yes", "--json")) == {"view": "counts", "dropped": True}


def test_mistakes_are_one_sentence(run):
    assert "now() gives something else each time" in run("view", "create", "v", "SELECT now() AS n FROM a", code=1)
    assert "there is no view 'v'; none was created yet" in run("view", "show", "v", code=1)
    run("view", "create", "v", JOIN)
    assert "the views are v" in run("view", "show", "w", code=1)
    assert "takes 12 live rows with it; say --yes" in run("view", "drop", "v", code=1)
    assert "needed by the view v" in run("stream", "drop", "a", "--yes", code=1)
    assert "is a view; drop it with drop_view" in run("stream", "drop", "v", "--yes", code=1)
    assert run("view", "drop", "v", "--yes") == "dropped view v\n"
