r"""Values go out in one form for each type, as text, JSON, CSV and Parquet, and `windrow append` reads that form back."""

import csv
import datetime as dt
import io
import json
import math
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from command_line import UTC, at, by_time, lines
from windrow.formats import durations
from windrow.formats import text as text_format
from windrow.formats.timestamps import format_iso, parse_iso

MONTHS = "interval '1 month -2 days 90 seconds'"


def fill(run, schema: pa.Schema, *rows: dict, name: str = "s") -> None:
    """A stream with rows that are in its window, and an empty one like it to append to."""
    with windrow.open(run.path) as wh:
        for created in (name, "copy"):
            wh.create_stream(created, schema, time="ts", slide="1 minute")
        wh.append(name, pa.Table.from_pylist(list(rows), schema))
        wh.slide(name, to=at(60))


def copied(run, file) -> list[dict]:
    """What is in the copy after a file was appended to it."""
    run("append", "copy", file)
    run("slide", "copy", "--to", at(60).isoformat())
    with windrow.open(run.path) as wh:
        return by_time(wh.scan("copy").read_all().to_pylist())


def forms(run, sql: str, folder) -> dict[str, list]:
    """The rows of a statement in every form, as a program reads them."""
    for suffix in ("parquet", "arrow", "jsonl", "csv"):
        run("sql", sql, "--output", folder / f"x.{suffix}")
    return {
        "json": [list(row.values()) for row in lines(run("sql", sql, "--json").stdout)],
        "jsonl": [list(row.values()) for row in lines((folder / "x.jsonl").read_text())],
        "csv": list(csv.reader(io.StringIO(run("sql", sql, "--csv").stdout)))[1:],
        "csv file": list(csv.reader(io.StringIO((folder / "x.csv").read_text())))[1:],
        "parquet": [list(row.values()) for row in pq.read_table(folder / "x.parquet").to_pylist()],
        "table": [re.split(" {3,}", run("sql", sql).stdout.splitlines()[2])],
    }


class Test_durations:
    SCHEMA = pa.schema([("ts", UTC), ("life", pa.duration("us")), ("fine", pa.duration("ns"))])
    ROWS = (
        {"ts": at(1), "life": dt.timedelta(seconds=90), "fine": dt.timedelta(microseconds=-7)},
        {"ts": at(2), "life": dt.timedelta(0), "fine": dt.timedelta(weeks=2)},
        {"ts": at(3), "life": None, "fine": None},
    )

    def test_an_interval_is_in_words_in_every_form(self, empty, tmp_path):
        document = forms(empty, f"SELECT interval '20 minutes' AS life, {MONTHS} AS odd", tmp_path)
        assert document == {form: [["20 minutes", "1 month -2 days 90 seconds"]] for form in document}

    @pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
    @pytest.mark.parametrize("command", [["scan", "s"], ["sql", "FROM s"]])
    def test_durations_are_appended_again(self, empty, tmp_path, suffix, command):
        fill(empty, self.SCHEMA, *self.ROWS)
        empty(*command, "--output", tmp_path / f"x.{suffix}")
        assert copied(empty, tmp_path / f"x.{suffix}") == list(self.ROWS)

    def test_they_are_in_words_wherever_they_come_from(self, empty):
        fill(empty, self.SCHEMA, *self.ROWS)
        expected = [
            {"ts": "2025-01-01T12:00:01Z", "life": "90 seconds", "fine": "-7 microseconds"},
            {"ts": "2025-01-01T12:00:02Z", "life": "0 seconds", "fine": "2 weeks"},
            {"ts": "2025-01-01T12:00:03Z", "life": None, "fine": None},
        ]
        assert by_time(lines(empty("scan", "s", "--json").stdout)) == expected
        rows = list(csv.DictReader(io.StringIO(empty("sql", "FROM s", "--csv").stdout)))
        assert by_time(rows) == [{k: v or "" for k, v in row.items()} for row in expected]

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("PT90S", 90), ("P1DT2H", 93600), ("-PT1.5S", -1.5), ("1 hour 30 minutes", 5400), ("1h30m", 5400),
            ("1 day 02:00:00", 93600), ("00:01:30", 90), ("-90 seconds", -90), ("5", 5e-6), ("1.5 s", 1.5), ("", None),
        ],
    )  # fmt: skip
    def test_words_iso_clocks_and_numbers_are_read(self, text, seconds):
        (rows,) = durations.parse_durations(pa.array([text]), pa.duration("us")).to_pylist()
        assert rows == (None if seconds is None else dt.timedelta(seconds=seconds))

    @pytest.mark.parametrize("text", ["soon", "1 month", "P1M", "P", "PT", "1 nanosecond", "5 5", "99999999999 weeks"])
    def test_what_is_no_duration_is_refused(self, text):
        with pytest.raises(pa.ArrowInvalid):
            durations.parse_durations(pa.array([text]), pa.duration("us"))

    def test_json_may_have_numbers_for_them(self, empty, tmp_path):
        fill(empty, self.SCHEMA)
        (tmp_path / "x.jsonl").write_text('{"ts":"2025-01-01T12:00:01Z","life":5,"fine":"1 s"}\n')
        (row,) = copied(empty, tmp_path / "x.jsonl")
        assert (row["life"], row["fine"]) == (dt.timedelta(microseconds=5), dt.timedelta(seconds=1))

    def test_a_table_takes_intervals_unless_they_have_months(self, empty):
        fill(empty, self.SCHEMA, *self.ROWS)
        with windrow.open(empty.path) as wh:
            assert wh.put_table("t", wh.sql("SELECT life FROM s")) == 3
            assert sorted(wh.sql("FROM t WHERE life IS NOT NULL").fetchall()) == [
                (dt.timedelta(0),),
                (dt.timedelta(seconds=90),),
            ]
            with pytest.raises(windrow.SchemaError, match="table 't': the interval '1 month -2 days 90 seconds'"):
                wh.put_table("t", wh.sql(f"SELECT {MONTHS} AS m"))
            with pytest.raises(windrow.DefinitionError, match=r"column 'u' of type sparse_union.* cannot be stored"):
                wh.put_table("t", wh.sql("SELECT union_value(a := 1) AS u"))
            wh.append("copy", wh.sql("FROM s"))
            wh.slide("copy", to=at(60))
            assert by_time(wh.scan("copy").read_all().to_pylist()) == list(self.ROWS)


class Test_bytes:
    SCHEMA = pa.schema([("ts", UTC), ("raw", pa.binary()), ("two", pa.binary(2)), ("l", pa.list_(pa.binary()))])
    ROWS = (
        {"ts": at(1), "raw": b"\x00\xff", "two": b"\x00\xff", "l": [b"\xff", None, b"a"]},
        {"ts": at(2), "raw": rb"\x00", "two": b"ab", "l": []},
        {"ts": at(3), "raw": b"", "two": None, "l": None},
        {"ts": at(4), "raw": "é, plain".encode(), "two": rb"\x", "l": [rb"\x41"]},
    )

    @pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
    def test_bytes_are_appended_again_as_they_were(self, empty, tmp_path, suffix):
        fill(empty, self.SCHEMA, *self.ROWS)
        empty("scan", "s", "--output", tmp_path / f"x.{suffix}")
        assert copied(empty, tmp_path / f"x.{suffix}") == list(self.ROWS)

    def test_digits_that_are_none_are_refused(self, empty):
        fill(empty, self.SCHEMA)
        text = "ts,raw,two,l\n2025-01-01T12:00:01Z,\\xzz,,\n"
        output = empty.error("append", "copy", "-", "--format", "csv", input=text)
        assert "row 1, column 'raw': '\\\\xzz' is not bytes: text, or \\x and hexadecimal digits" in output


class Test_json:
    def test_no_name_occurs_twice(self, empty, tmp_path):
        sql = "SELECT 1 a, 2 a, 3 a_1, 4 AS a"
        assert lines(empty("sql", sql, "--json").stdout) == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]
        assert empty("sql", sql, "--csv").stdout.splitlines()[0] == '"a","a_2","a_1","a_3"'
        empty("sql", sql, "--output", tmp_path / "x.parquet")
        assert pq.read_table(tmp_path / "x.parquet").schema.names == ["a", "a_2", "a_1", "a_3"]
        assert text_format.distinct_names(["a", "a"]) == ["a", "a_1"]

    @pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
    def test_numbers_without_bounds_go_out_and_in(self, empty, tmp_path, suffix):
        schema = pa.schema([("ts", UTC), ("x", pa.float64()), ("h", pa.float16()), ("l", pa.list_(pa.float32())), ("s", pa.string()),
                            ("st", pa.struct([("x", pa.float64()), ("s", pa.string())]))])  # fmt: skip
        rows = [
            {"ts": at(n), "x": x, "h": x, "l": [1.5, x], "s": "NaN", "st": {"x": x, "s": "Infinity"}}
            for n, x in enumerate([math.nan, math.inf, -math.inf, 0.5], 1)
        ]
        fill(empty, schema, *rows)
        document = by_time(lines(empty("scan", "s", "--json").stdout))
        assert [row["x"] for row in document] == ["NaN", "Infinity", "-Infinity", 0.5]
        assert document[2]["st"] == {"x": "-Infinity", "s": "Infinity"}
        if suffix == "json":
            (tmp_path / "x.json").write_text(json.dumps(document))
        else:
            empty("scan", "s", "--output", tmp_path / f"x.{suffix}")
        answer = copied(empty, tmp_path / f"x.{suffix}")
        assert [repr(row | {"ts": None}) for row in answer] == [repr(row | {"ts": None}) for row in rows]

    def test_types_of_duckdb_that_nobody_else_has(self, empty, tmp_path):
        big = 123456789012345678901234567890123456789012345
        document = forms(empty, f"SELECT '{big}'::BIGNUM AS big, -256::BIGNUM AS small, '0101'::BIT AS bits", tmp_path)
        assert document == {form: [[str(big), "-256", "0101"]] for form in document}
        document = forms(empty, "SELECT union_value(a := 1) AS u", tmp_path)
        assert [row[0] for rows in document.values() for row in rows] == [1, 1, "1", "1", "1", "1"]

    def test_nested_values_are_in_the_same_words(self, empty):
        sql = "SELECT {'d': interval '1 day', 't': timestamp 'infinity', 'b': '\\xFF'::BLOB, 'm': map{'k': 1.50}} AS v"
        assert lines(empty("sql", sql, "--json").stdout) == [
            {"v": {"d": "1 day", "t": "infinity", "b": "\\xff", "m": [["k", "1.50"]]}}
        ]


class Test_times:
    def test_early_late_and_endless_ones(self, empty, tmp_path):
        sql = """SELECT date '0044-01-01 (BC)' AS a, date 'infinity' AS b, timestamptz '-infinity' AS c,
            timestamp '12345-01-01 00:00:00.5' AS d, time '24:00:00' AS e"""
        expected = ["-0043-01-01", "infinity", "-infinity", "+12345-01-01T00:00:00.5", "24:00:00"]
        assert [list(row.values()) for row in lines(empty("sql", sql, "--json").stdout)] == [expected]
        assert empty("sql", sql).stdout.splitlines()[2].split() == expected
        assert list(csv.reader(io.StringIO(empty("sql", sql, "--csv").stdout)))[1] == expected
        for suffix in ("csv", "jsonl", "parquet", "arrow"):
            empty("sql", sql, "--output", tmp_path / f"x.{suffix}")

    @pytest.mark.parametrize(
        "kind", [pa.date32(), pa.date64(), *(pa.timestamp(u, z) for u in ("s", "ms", "us", "ns") for z in (None, "UTC"))]
    )  # fmt: skip
    def test_what_is_written_is_read_back(self, kind):
        day = 86_400_000 if kind == pa.date64() else 1
        numbers = [0, None, -1, 1, 20_000] + ([-735_000, 3_800_000] if kind.bit_width == 32 else [])
        if pa.types.is_timestamp(kind) and kind.unit != "ns":
            numbers += [-62_198_755_200_000, 400_000_000_000_000]
        if day == 1:
            numbers += [(1 << kind.bit_width - 1) - 1, 1 - (1 << kind.bit_width - 1)]
        column = pa.array([n and n * day for n in numbers], pa.int32() if kind.bit_width == 32 else pa.int64()).cast(
            kind
        )
        for some in (column, column.slice(0, 5)):
            assert parse_iso(format_iso(some), kind).equals(some)

    def test_csv_and_json_have_the_same_times(self, packets):
        (document,) = lines(packets("scan", "packets", "--limit", 1, "--json").stdout)
        (row,) = csv.DictReader(io.StringIO(packets("scan", "packets", "--limit", 1, "--csv").stdout))
        assert row["ts"] == document["ts"]
        assert document["ts"].endswith("Z")


def test_decimals_keep_their_digits(empty, tmp_path):
    schema = pa.schema([("ts", UTC), ("d", pa.decimal128(30, 8)), ("w", pa.decimal256(38, 2))])
    rows = [{"ts": at(1), "d": Decimal("1234567890123456789012.00000001"), "w": Decimal("-0.05")}]
    fill(empty, schema, *rows)
    empty("scan", "s", "--output", tmp_path / "x.csv")
    assert copied(empty, tmp_path / "x.csv") == rows
