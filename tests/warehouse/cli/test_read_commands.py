"""`windrow scan` and `windrow probe`: the rows of a window, on a terminal, for machines and in files."""

import csv
import datetime as dt
import io
from decimal import Decimal

import pyarrow as pa
import pytest

import windrow
from command_line import PACKETS, UTC, at, by_time, lines, rows, shown


class Test_asking:
    def truth(self, low, high):
        return [shown(row) for row in rows(*range(low, high + 1))]

    def test_a_scan_is_the_window(self, packets):
        rows = lines(packets("scan", "packets", "--json", "--window", "2 minutes").stdout)
        assert by_time(rows) == self.truth(61, 180)
        assert by_time(lines(packets("scan", "packets", "--json").stdout)) == self.truth(1, 180)

    def test_a_table_says_which_window_it_is_of(self, packets):
        output = packets("scan", "packets", "--window", "1 minute").stdout.splitlines()
        assert output[0].split() == ["ts", "src", "len"]
        assert len(output) == 2 + 20 + 1
        assert output[-1].startswith(
            "60 rows of packets at 2025-01-01T12:03:00Z (slide 28928883), the last 1 minute, 20 shown ("
        )
        assert packets("scan", "packets", "--limit", "0").stdout.splitlines()[-1].startswith("180 rows of packets at ")

    def test_columns_and_limit(self, packets):
        rows = lines(packets("scan", "packets", "--json", "--columns", "len,src", "--limit", "7").stdout)
        assert [list(row) for row in rows] == [["len", "src"]] * 7
        assert "has no column 'dst'; it has ts, src, len" in packets.error("scan", "packets", "--columns", "dst")

    def test_csv_is_read_back_by_others(self, packets):
        rows = list(csv.DictReader(io.StringIO(packets("scan", "packets", "--csv").stdout)))
        assert sorted(int(row["len"]) for row in rows) == [100 + s for s in range(1, 181)]

    @pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
    def test_what_is_written_to_a_file_can_be_appended_again(self, packets, tmp_path, suffix):
        file = tmp_path / f"out.{suffix}"
        document = packets.json("scan", "packets", "--window", "1 minute", "--output", file)
        assert document == {
            "file": str(file),
            "rows": 60,
            "stream": "packets",
            "slide": 28928883,
            "complete": True,
            "coverage": 1.0,
            "gaps": [],
            "now": "2025-01-01T12:03:00Z",
            "window": "1 minute",
            "missing": [],
        }
        packets("stream", "create", "copy", *PACKETS)
        packets("append", "copy", file)
        packets("slide", "copy", "--to", at(180).isoformat())
        assert by_time(lines(packets("scan", "copy", "--json").stdout)) == self.truth(121, 180)
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []

    def test_every_type_survives_json_and_csv_files(self, empty, tmp_path):
        schema = pa.schema(
            [
                ("ts", UTC),
                ("day", pa.date32()),
                ("d", pa.decimal128(8, 2)),
                ("s", pa.string()),
                ("l", pa.list_(pa.int32())),
                ("st", pa.struct([("a", pa.float64()), ("b", pa.string())])),
                ("dict", pa.dictionary(pa.int32(), pa.string())),
                ("b", pa.bool_()),
                ("raw", pa.binary()),
                ("t", pa.time64("us")),
                ("ll", pa.large_list(pa.string())),
            ]
        )
        full = {
            "ts": at(1.25),
            "day": dt.date(2025, 1, 2),
            "d": Decimal("-3.25"),
            "s": 'a "b", c\nd',
            "l": [1, None],
            "dict": "x",
            "st": {"a": 0.5, "b": "é"},
            "b": False,
            "raw": b"text",
            "t": dt.time(1, 2, 3, 4),
            "ll": ["p"],
        }
        everything = [full, dict.fromkeys(full) | {"ts": at(2)}]
        with windrow.open(empty.path) as wh:
            for name in ("s", "csv", "jsonl", "arrow"):
                wh.create_stream(name, schema, time="ts", slide="1 minute")
            wh.append("s", pa.Table.from_pylist(everything, schema))
            wh.slide("s", to=at(60))
        for suffix in ("csv", "jsonl", "arrow"):
            empty("scan", "s", "--output", tmp_path / f"out.{suffix}")
            empty("append", suffix, tmp_path / f"out.{suffix}")
            empty("slide", suffix, "--to", at(60).isoformat())
            with windrow.open(empty.path) as wh:
                assert by_time(wh.scan(suffix).read_all().to_pylist()) == everything

    @pytest.mark.parametrize(
        ("arguments", "wanted"),
        [
            (["--key", "1"], {1}),
            (["--key", "0", "--key", "2"], {0, 2}),
            (["--keys", "0,1"], {0, 1}),
            (["--keys", "1,99"], {1}),
            (["--between", "1", "7"], {1, 2}),
            (["--key", "99"], set()),
        ],
    )
    def test_probes(self, packets, arguments, wanted):
        rows = lines(packets("probe", "packets", *arguments, "--window", "1 minute", "--json").stdout)
        assert by_time(rows) == [row for row in self.truth(121, 180) if row["src"] in wanted]

    def test_composite_and_null_keys(self, empty):
        columns = ["--column", "ts:timestamptz", "--column", "host:varchar", "--column", "port:int"]
        empty("stream", "create", "s", *columns, "--time", "ts", "--key", "host", "--key", "port", "--slide", "1m")
        text = "ts,host,port\n" + "".join(
            f"2025-01-01T12:00:0{n}Z,{host},{port}\n"
            for n, (host, port) in enumerate([("ant", 80), ("ant", 443), ("bee", 80), ("", 80), ('"c,d"', 1)])
        )
        empty("append", "s", "-", "--format", "csv", input=text)
        empty("slide", "s", "--to", at(60).isoformat())

        def found(*arguments):
            return sorted((r["host"] or "", r["port"]) for r in lines(empty("probe", "s", *arguments, "--json").stdout))

        assert found("--key", "ant,80") == [("ant", 80)]
        assert found("--key", "ant") == [("ant", 80), ("ant", 443)]
        assert found("--key", r"\N,80", "--key", '"c,d",1') == [("", 80), ("c,d", 1)]
        assert found("--between", "ant,100", "bee") == [("ant", 443), ("bee", 80)]
        assert "but 'a,1,2' has 3 values" in empty.error("probe", "s", "--key", "a,1,2")
        assert "several columns" in empty.error("probe", "s", "--keys", "a,b", code=2)

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["probe", "packets"], 2, "give either --key (or --keys) or --between"),
            (["probe", "packets", "--key", "1", "--between", "1", "2"], 2, "give either --key"),
            (["probe", "packets", "--key", "one"], 1, "search key column 'src' is of type int64, which 'one' is not"),
            (["scan", "packets", "--window", "1 hour"], 1, "keeps rows for 16 minutes"),
            (["scan", "packets", "--window", "soon"], 1, "'soon' is not a duration"),
            (["scan", "packets", "--json", "--csv"], 2, "choose one of --csv and --json"),
            (["scan", "packets", "--output", "out.xls"], 1, "has no suffix that tells its format"),
            (["scan", "packets", "--output", "no/where/out.csv"], 1, "no/where/out.csv cannot be written"),
            (["scan", "nobody"], 1, "there is no stream 'nobody'; the streams are packets"),
            (["scan", "packets", "--limit", "-1"], 2, "--limit"),
            (["scan", "packets", "--nonsense"], 2, "No such option"),
            (["nonsense"], 2, "No such command 'nonsense'"),
        ],
    )
    def test_what_is_wrong_is_said(self, packets, arguments, code, message):
        assert message in packets.error(*arguments, code=code)

    def test_before_the_first_slide_there_is_nothing(self, waiting):
        assert waiting("scan", "packets").stdout.splitlines()[-1] == "0 rows of packets, which has not slid yet"
        assert waiting("scan", "packets", "--json").stdout == ""

    def test_data_cannot_play_tricks_on_the_terminal(self, empty):
        empty(
            "stream",
            "create",
            "s",
            "--column",
            "ts:timestamptz",
            "--column",
            "s:varchar",
            "--time",
            "ts",
            "--slide",
            "1m",
        )
        with windrow.open(empty.path) as wh:
            rows = [{"ts": at(1), "s": "\x1b[2J[red]boo[/red]"}]
            wh.append("s", pa.Table.from_pylist(rows, pa.schema([("ts", UTC), ("s", pa.string())])))
            wh.slide("s", to=at(60))
        output = empty("scan", "s").stdout
        assert "\x1b" not in output
        assert r"\x1b[2J[red]boo[/red]" in output
