"""`windrow sql`, `explain` and `table`: the same answers as in Python, in every form, and mistakes shown at their place."""

import csv
import datetime as dt
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import windrow
from windrow import cli
from windrow.cli.sql import parse_params
from windrow.queries.sql.tokens import is_finished, split_statements

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("len", pa.int32())])
TOP = "SELECT src, sum(len) AS bytes FROM packets [WINDOW 1 MINUTE] GROUP BY src ORDER BY src"
ROWS = [{"src": s, "bytes": sum(100 + n for n in range(121, 181) if n % 3 == s)} for s in range(3)]


@pytest.fixture
def path(tmp_path):
    """A stream with one packet a second for three minutes, from source second % 3."""
    place = tmp_path / "w"
    with windrow.open(place) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
        rows = [{"ts": NOON + dt.timedelta(seconds=n), "src": n % 3, "len": 100 + n} for n in range(1, 181)]
        wh.append("packets", pa.Table.from_pylist(rows, SCHEMA))
        wh.slide("packets", to=NOON + dt.timedelta(minutes=3))
    return place


@pytest.fixture
def run(path):
    def call(*arguments, code=0, input=None):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(
            cli.windrow, ["-w", str(path), *map(str, arguments)], input=input, prog_name="windrow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return call


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


class Test_asking:
    def test_a_table_says_what_it_is_of(self, run):
        shown = run("sql", TOP).splitlines()
        assert shown[0].split() == ["src", "bytes"]
        assert [line.split() for line in shown[2:5]] == [[str(row["src"]), str(row["bytes"])] for row in ROWS]
        assert shown[5] == (
            "3 rows of packets [WINDOW 1 MINUTE] after 2025-01-01T12:02:00Z up to 2025-01-01T12:03:00Z (slide 28928883)"
        )

    def test_json_and_csv(self, run):
        assert lines(run("sql", TOP, "--json")) == ROWS
        assert list(csv.DictReader(io.StringIO(run("sql", TOP, "--csv")))) == [
            {name: str(value) for name, value in row.items()} for row in ROWS
        ]

    def test_files(self, run, tmp_path):
        output = run("sql", TOP, "--output", tmp_path / "top.parquet")
        assert output.startswith(f"3 rows written to {tmp_path / 'top.parquet'} of packets [WINDOW 1 MINUTE] ")
        assert pq.read_table(tmp_path / "top.parquet").column("src").to_pylist() == [0, 1, 2]
        run("sql", TOP, "--output", tmp_path / "top.arrow")
        assert pa.ipc.open_file(tmp_path / "top.arrow").read_all().num_rows == 3
        run("sql", TOP, "--output", tmp_path / "top.jsonl")
        assert [row["src"] for row in lines((tmp_path / "top.jsonl").read_text())] == [0, 1, 2]
        assert "suffix" in run("sql", TOP, "--output", tmp_path / "top.xyz", code=1)

    def test_a_long_answer_is_cut_and_counted(self, run):
        assert (
            run("sql", "SELECT * FROM packets").splitlines()[-1].startswith("180 rows of packets, all live rows up to")
        )
        assert "20 shown" in run("sql", "SELECT * FROM packets").splitlines()[-1]
        assert len(run("sql", "SELECT * FROM packets", "--limit", 2).splitlines()) == 5
        assert len(lines(run("sql", "SELECT * FROM packets", "--limit", 2, "--json"))) == 2

    def test_parameters(self, run):
        sql = "SELECT count(*) AS n FROM packets WHERE src = ? AND len > ?"
        assert lines(run("sql", sql, "-p", 1, "-p", 200, "--json")) == [{"n": 26}]
        named = "SELECT count(*) AS n FROM packets WHERE src = $src"
        assert lines(run("sql", named, "-p", "src=1", "--json")) == [{"n": 60}]
        assert "position" in run("sql", named, "-p", "src=1", "-p", 2, code=2)

    def test_values_of_parameters(self):
        given = ["1", "-2.5", "null", "TRUE", "word", "'7'", "'it''s'", "2025-01-01", "a b=c"]
        assert parse_params(given) == [1, -2.5, None, True, "word", "7", "it's", "2025-01-01", "a b=c"]
        assert parse_params(["a=1", "b='x'"]) == {"a": 1, "b": "x"}
        assert parse_params([]) is None

    @pytest.mark.parametrize("level", ["snapshot", "latest", "serial"])
    def test_isolation(self, run, level):
        assert lines(run("sql", TOP, "--isolation", level, "--json")) == ROWS

    def test_files_and_standard_input(self, run, tmp_path):
        script = "-- first; not this one\nSELECT 1 AS a;\n\nSELECT ';' AS b, 2 AS c"
        (tmp_path / "script.sql").write_text(script)
        expected = [{"a": 1}, {"b": ";", "c": 2}]
        assert lines(run("sql", "-f", tmp_path / "script.sql", "--json")) == expected
        assert lines(run("sql", "-f", "-", "--json", input=script)) == expected
        assert lines(run("sql", "--json", input=script)) == expected
        assert "no statement" in run("sql", "-f", "-", input=" ; ; ", code=1)
        assert "cannot be read" in run("sql", "-f", tmp_path / "missing.sql", code=1)

    def test_explain_statements_are_shown_as_they_are(self, run):
        shown = run("sql", f"EXPLAIN {TOP}").splitlines()
        assert shown[0].startswith("packets [WINDOW 1 MINUTE] at slide 28928883: ")


class Test_mistakes:
    def test_the_place_is_shown(self, run):
        document = run("sql", "SELECT *\nFROM packets [WINDOW 1 MINUET]", code=1).splitlines()
        assert document[0].startswith("windrow: MINUET is not a unit")
        assert document[1] == "line 2: FROM packets [WINDOW 1 MINUET]"
        assert document[2].index("^") == document[1].index("MINUET")

    @pytest.mark.parametrize("sql", ["DROP TABLE x", "SELECT * FROM nope", "SELECT nope FROM packets", "SELEC"])
    def test_no_traceback(self, run, sql):
        assert run("sql", sql, code=1).startswith("windrow: ")

    def test_forms_exclude_each_other(self, run):
        assert "choose one" in run("sql", TOP, "--csv", "--json", code=2)
        assert "either" in run("sql", TOP, "-f", "x.sql", code=2)

    def test_a_timeout(self, run):
        heavy = "SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(1000000) b(i)"
        assert "longer than 0.2 s" in run("sql", heavy, "--timeout", 0.2, code=75)


class Test_explaining:
    def test_what_would_be_read(self, run):
        document = json.loads(run("explain", "SELECT * FROM packets [WINDOW 1 MINUTE] WHERE src = 1", "--json"))
        (relation,) = document["relations"]
        assert (relation["stream"], relation["window"]) == ("packets", "[WINDOW 1 MINUTE]")
        assert relation["rows"]["read"] <= relation["rows"]["stored"] == 180
        assert document["plan"]

    def test_as_a_table(self, run):
        shown = run("explain", "SELECT * FROM packets WHERE src = ?", "-p", 1)
        assert shown.split("\n")[0].split()[:5] == ["stream", "window", "slide", "read", "by"]
        assert run("explain", "SELECT 1")


class Test_tables:
    def test_put_list_join_drop(self, run, tmp_path):
        file = tmp_path / "hosts.csv"
        file.write_text("src,name\n0,ant\n1,bee\n")
        assert run("table", "put", "hosts", file) == "hosts: 2 rows stored; columns src int64, name string\n"
        join = "SELECT name, count(*) AS n FROM packets JOIN hosts USING (src) GROUP BY name ORDER BY name"
        assert lines(run("sql", join, "--json")) == [{"name": "ant", "n": 60}, {"name": "bee", "n": 60}]
        (listed,) = json.loads(run("table", "list", "--json"))
        assert (listed["table"], listed["rows"], listed["columns"]) == ("hosts", 2, ["src", "name"])
        assert "hosts" in run("table", "list")
        file.write_text("src,name\n2,cat\n")
        assert json.loads(run("table", "put", "hosts", file, "--json"))["rows"] == 1
        assert lines(run("sql", join, "--json")) == [{"name": "cat", "n": 60}]
        assert run("table", "drop", "hosts") == "dropped table hosts\n"
        assert "no table 'hosts'" in run("table", "drop", "hosts", code=1)

    def test_several_files_of_any_kind(self, run, tmp_path):
        pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "one.parquet")
        (tmp_path / "two.jsonl").write_text('{"a": 2, "b": "y"}\n')
        run("table", "put", "pair", tmp_path / "one.parquet", tmp_path / "two.jsonl")
        assert lines(run("sql", "SELECT * FROM pair ORDER BY a", "--json")) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]

    def test_files_that_do_not_fit(self, run, tmp_path):
        (tmp_path / "one.csv").write_text("a\n1\n")
        (tmp_path / "two.csv").write_text("b\n1\n")
        document = run("table", "put", "t", tmp_path / "one.csv", tmp_path / "two.csv", code=1)
        assert "table 't'" in document
        assert "stored" in document
        assert "there is no file" in run("table", "put", "t", tmp_path / "none.csv", code=1)


class Test_cutting_scripts:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT 1", ["SELECT 1"]),
            (" SELECT 1 ;; SELECT 'a;b' ; ", ["SELECT 1", "SELECT 'a;b'"]),
            ("SELECT 1 -- ; no\n; SELECT 2 /* ; */", ["SELECT 1 -- ; no", "SELECT 2 /* ; */"]),
            ("SELECT $$;$$; SELECT * FROM p [WINDOW 1 MINUTE]", ["SELECT $$;$$", "SELECT * FROM p [WINDOW 1 MINUTE]"]),
            ("", []),
            ("-- nothing", []),
        ],
    )
    def test_split(self, text, expected):
        assert split_statements(text) == expected

    @pytest.mark.parametrize(("text", "finished"), [("SELECT 1", False), ("SELECT 1;", True), ("SELECT ';", False), (";", False), ("", False), ("SELECT 1; SELECT", False)])  # fmt: skip
    def test_finished(self, text, finished):
        assert is_finished(text) is finished
