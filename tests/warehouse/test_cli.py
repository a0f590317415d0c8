"""The command line does what the Python interface does, says it in words or in JSON, and never shows a traceback."""

import csv
import datetime as dt
import gzip
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import windrow
from windrow import cli, cli_terminal
from windrow.cli_values import parse_column, parse_type, parse_value

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("src", pa.int64()), ("len", pa.int32())])
COLUMNS = ["--column", "ts:timestamptz", "--column", "src:bigint", "--column", "len:int"]
PACKETS = [*COLUMNS, "--time", "ts", "--key", "src", "--slide", "1 minute", "--lifetime", "16 minutes"]


def at(seconds: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


def rows(*seconds: int) -> list[dict]:
    """One packet a second, from source second % 3."""
    return [{"ts": at(s), "src": s % 3, "len": 100 + s} for s in seconds]


def table(*seconds: int) -> pa.Table:
    return pa.Table.from_pylist(rows(*seconds), SCHEMA)


def shown(row: dict) -> dict:
    """A row as JSON has it."""
    return {k: v.isoformat().replace("+00:00", "Z") if isinstance(v, dt.datetime) else v for k, v in row.items()}


def by_time(found: list[dict]) -> list[dict]:
    return sorted(found, key=lambda row: row["ts"])


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


class Windrow:
    """The command line on one warehouse, called in this process."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, code=0, input=None, env=None):
        result = CliRunner(env={"COLUMNS": "200", **(env or {})}).invoke(
            cli.windrow, ["-w", str(self.path), *map(str, arguments)], input=input, prog_name="windrow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments, **options):
        return json.loads(self(*arguments, "--json", **options).stdout)

    def error(self, *arguments, code=1, **options):
        """The one line that a mistake is told in."""
        result = self(*arguments, code=code, **options)
        assert result.stdout == ""
        if code == 1:
            assert result.stderr.startswith("windrow: ")
            assert result.stderr.count("\n") == 1
        return result.stderr


@pytest.fixture
def empty(path):
    run = Windrow(path)
    run("init")
    return run


@pytest.fixture
def packets(empty):
    """A stream with the packets of three minutes, slid to its end."""
    empty("stream", "create", "packets", *PACKETS)
    with windrow.open(empty.path) as wh:
        wh.append("packets", table(*range(1, 181)))
        wh.slide("packets", to=at(180))
    return empty


class Test_where_the_warehouse_is:
    def test_it_is_made_once(self, path):
        run = Windrow(path)
        assert run("init").stdout == f"made an empty warehouse in {path}\n"
        assert run.json("init") == {"path": str(path), "created": False}

    def test_a_folder_with_other_things_is_left_alone(self, path):
        path.mkdir()
        (path / "letters.txt").write_text("dear")
        assert "is not empty" in Windrow(path).error("init")

    def test_it_is_named_by_option_before_or_after_the_command_or_by_environment(self, packets, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        called = [
            (["-w", str(packets.path), "stream", "list", "--json"], {}),
            (["stream", "list", "--json", "-w", str(packets.path)], {}),
            (["stream", "list", "--json"], {"WINDROW_WAREHOUSE": str(packets.path)}),
        ]
        for arguments, env in called:
            result = CliRunner(env=env).invoke(cli.windrow, arguments)
            assert [s["name"] for s in json.loads(result.stdout)] == ["packets"]

    def test_the_current_folder_is_taken_only_if_it_holds_one(self, packets, tmp_path, monkeypatch):
        monkeypatch.chdir(packets.path)
        assert CliRunner().invoke(cli.windrow, ["check"]).exit_code == 0
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(cli.windrow, ["check"])
        assert result.exit_code == 1
        assert "holds no warehouse; give one with -w PATH or WINDROW_WAREHOUSE" in result.stderr

    def test_nothing_is_made_by_mistake(self, path):
        assert "holds no warehouse" in Windrow(path).error("status")
        assert not path.exists()


class Test_types:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("bigint", pa.int64()),
            ("INT", pa.int32()),
            ("utinyint", pa.uint8()),
            ("double", pa.float64()),
            ("real", pa.float32()),
            ("varchar", pa.string()),
            ("blob", pa.binary()),
            ("boolean", pa.bool_()),
            ("date", pa.date32()),
            ("time", pa.time64("us")),
            ("time32[ms]", pa.time32("ms")),
            ("duration[s]", pa.duration("s")),
            ("timestamp", pa.timestamp("us")),
            ("timestamptz", UTC),
            ("timestamp[us, UTC]", UTC),
            ("timestamp[ms, tz=Europe/Berlin]", pa.timestamp("ms", "Europe/Berlin")),
            ("timestamp[ns, +02:00]", pa.timestamp("ns", "+02:00")),
            ("decimal(10,2)", pa.decimal128(10, 2)),
            ("numeric(50, 5)", pa.decimal256(50, 5)),
            ("list<int64>", pa.list_(pa.int64())),
            ("varchar[][]", pa.list_(pa.list_(pa.string()))),
            ("struct<a: int64, b: list<string>>", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
            ("struct(a bigint, b varchar)", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("map<string, int64>", pa.map_(pa.string(), pa.int64())),
            ("dictionary<values=string, indices=int32, ordered=0>", pa.dictionary(pa.int32(), pa.string())),
        ],
    )
    def test_arrow_and_sql_names(self, text, kind):
        assert parse_type(text) == kind

    @pytest.mark.parametrize("kind", [pa.list_(pa.int32()), UTC, pa.decimal128(7, 3), pa.struct([("x", pa.float64())])])
    def test_what_arrow_prints_is_read_back(self, kind):
        assert parse_type(str(kind)) == kind

    @pytest.mark.parametrize(
        "text", ["", "bigger", "list<", "list<int64", "decimal(2,9)", "int64 int64", "time32[us]", "os.system('x')"]
    )
    def test_anything_else_is_refused(self, text):
        with pytest.raises(windrow.DefinitionError, match="is unknown; write an Arrow or SQL type"):
            parse_type(text)

    def test_not_null(self):
        assert parse_column("a:bigint not null") == pa.field("a", pa.int64(), nullable=False)

    @pytest.mark.parametrize(
        ("text", "kind", "value"),
        [
            ("42", pa.int64(), 42),
            ("-1.5", pa.float64(), -1.5),
            ("12.50", pa.decimal128(10, 2), Decimal("12.50")),
            ("true", pa.bool_(), True),
            ("2025-01-01", pa.date32(), dt.date(2025, 1, 1)),
            ("42", pa.string(), "42"),
            ("42", pa.dictionary(pa.int8(), pa.string()), "42"),
            (r"\x00ff", pa.binary(), b"\x00\xff"),
            (r"\N", pa.int64(), None),
        ],
    )
    def test_search_keys_are_read_by_their_type(self, text, kind, value):
        assert parse_value(text, kind, "k") == value

    @pytest.mark.parametrize("text", ["2025-01-01T12:00:00Z", "2025-01-01 12:00:00", "2025-01-01T13:00+01:00"])
    def test_times_may_have_a_zone_or_not(self, text):
        assert parse_value(text, UTC, "k").as_py() == NOON


class Test_declaring:
    def test_every_parameter_arrives(self, empty):
        made = empty.json(
            "stream",
            "create",
            "leases",
            "--column",
            "ts:timestamptz",
            "--column",
            "exp:timestamptz",
            "--column",
            "host:varchar",
            "--column",
            "port:int not null",
            "--time",
            "ts",
            "--key",
            "host",
            "--key",
            "port",
            "--slide",
            "2 minutes",
            "--expires",
            "exp",
            "--max-lifetime",
            "1 hour",
            "--index",
            "round-robin 3 5",
            "--maintenance",
            "rebuild",
            "--source",
            "a",
            "--source",
            "b",
            "--slack",
            "5 seconds",
            "--max-skew",
            "30 seconds",
            "--max-ahead",
            "5 minutes",
            "--origin",
            "2025-01-01T00:00:30",
            "--on-source-failure",
            "exclude",
        )
        assert made["definition"] == {
            "columns": [
                {"name": "ts", "type": "timestamp[us, tz=UTC]", "nullable": True},
                {"name": "exp", "type": "timestamp[us, tz=UTC]", "nullable": True},
                {"name": "host", "type": "string", "nullable": True},
                {"name": "port", "type": "int32", "nullable": False},
            ],
            "time": "ts",
            "key": ["host", "port"],
            "expires": "exp",
            "sources": ["a", "b"],
            "origin": "2025-01-01T00:00:30Z",
            "on_source_failure": "exclude",
            "slide": "2 minutes",
            "lifetime": None,
            "max_lifetime": "1 hour",
            "slack": "5 seconds",
            "max_skew": "30 seconds",
            "max_ahead": "5 minutes",
            "inputs": [],
            "update_pattern": "weak",
        }
        index = {"name": "round-robin", "rows": 3, "columns": 5, "maintenance": "rebuild", "auto": False}
        assert made["index"] == {**index, "why": "chosen by the user", "layouts": 1, "relayout": None}
        assert made == empty.json("stream", "show", "leases") == empty.json("stream", "list")[0]

    def test_the_chosen_index_is_explained(self, empty):
        said = empty("stream", "create", "packets", *PACKETS).stdout
        assert said.startswith(
            "created stream packets: index wave-insertion 4x1 adaptive, because all rows live equally long"
        )
        assert "so they leave in the order in which they came" in empty("stream", "show", "packets").stdout

    @pytest.mark.parametrize("text", ["round-robin 4 4", "round-robin 4x4", "wave-expiry 8", "chronological"])
    def test_layouts_are_written_in_words(self, empty, text):
        empty("stream", "create", "s", *PACKETS, "--index", text)
        assert empty.json("stream", "show", "s")["index"]["name"] == text.split()[0]

    @pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
    def test_like_a_file(self, empty, tmp_path, suffix):
        file = tmp_path / f"like.{suffix}"
        write(table(1, 2), file)
        empty("stream", "create", "s", "--like", file, "--column", "extra:varchar", "--time", "ts", "--slide", "1m")
        kinds = {c["name"]: c["type"] for c in empty.json("stream", "show", "s")["definition"]["columns"]}
        exact = suffix in ("parquet", "arrow")
        length = "int32" if exact else "int64"
        assert kinds == {"ts": "timestamp[us, tz=UTC]", "src": "int64", "len": length, "extra": "string"}

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["--time", "ts", "--slide", "1m"], 2, "--column NAME:TYPE for each, or --like FILE"),
            ([*COLUMNS, "--slide", "1m"], 2, "Missing option '--time'"),
            ([*PACKETS, "--maintenance", "rebuild"], 2, "--maintenance goes with --index"),
            ([*PACKETS, "--index", "round-robin four"], 1, "index 'round-robin four' is not a layout"),
            ([*PACKETS, "--index", "heap"], 1, "index 'heap' is unknown"),
            ([*PACKETS, "--column", "x"], 1, "column 'x' is not a declaration"),
            ([*PACKETS, "--column", "x:wide"], 1, "type 'wide' is unknown"),
            ([*PACKETS, "--column", "src:int"], 1, "column 'src' is declared twice"),
            ([*PACKETS, "--slide", "1 fortnight"], 1, "'1 fortnight' is not a duration"),
            ([*PACKETS, "--lifetime", "1 second"], 1, "is shorter than the slide"),
            ([*PACKETS, "--key", "dst"], 1, "key column 'dst' is not in the schema"),
            (["--like", "nowhere.csv", "--time", "ts", "--slide", "1m"], 1, "there is no file nowhere.csv"),
        ],
    )
    def test_what_is_wrong_is_said(self, empty, arguments, code, message):
        assert message in empty.error("stream", "create", "s", *arguments, code=code)
        assert empty.json("stream", "list") == []

    def test_dropping_asks_first(self, packets):
        assert "180 live rows" in packets.error("stream", "drop", "packets")
        assert packets("stream", "drop", "packets", "--yes").stdout == "dropped stream packets\n"
        assert packets("stream", "list").stdout.startswith("there are no streams")
        assert "there is no stream 'packets'" in packets.error("stream", "drop", "packets", "--yes")


def write(data: pa.Table, file) -> None:
    """Write a table by other means than ours."""
    name = file.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(data, file)
    elif name.endswith((".arrow", ".arrows")):
        make = pa.ipc.new_file if name.endswith(".arrow") else pa.ipc.new_stream
        with pa.OSFile(str(file), "wb") as sink, make(sink, data.schema) as writer:
            writer.write_table(data)
    else:
        out = io.StringIO()
        plain = [shown(row) for row in data.to_pylist()]
        if name.endswith(".json"):
            json.dump(plain, out)
        elif name.endswith(".jsonl"):
            out.write("".join(json.dumps(row) + "\n" for row in plain))
        else:
            writer = csv.DictWriter(out, data.schema.names, delimiter="\t" if ".tsv" in name else ",")
            writer.writeheader()
            writer.writerows(plain)
        text = out.getvalue().encode()
        file.write_bytes(gzip.compress(text) if file.name.endswith(".gz") else text)


FILES = ["a.csv", "a.tsv", "a.csv.gz", "a.json", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.arrows"]


@pytest.fixture
def waiting(empty):
    """A stream without rows."""
    empty("stream", "create", "packets", *PACKETS)
    return empty


class Test_appending:
    @pytest.mark.parametrize("name", FILES)
    def test_files_of_every_format(self, waiting, tmp_path, name):
        write(table(1, 2, 3), tmp_path / name)
        report = waiting.json("append", "packets", tmp_path / name)
        told = {k: report[k] for k in ("stream", "source", "rows", "accepted", "rejected", "late", "duplicate")}
        assert told == {
            "stream": "packets",
            "source": "default",
            "rows": 3,
            "accepted": 3,
            "rejected": {},
            "late": 0,
            "duplicate": False,
        }
        waiting("slide", "packets", "--to", at(60).isoformat())
        found = lines(waiting("scan", "packets", "--json").stdout)
        assert by_time(found) == [shown(row) for row in rows(1, 2, 3)]

    @pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.parquet", "a.arrow", "a.arrows"])
    def test_standard_input(self, waiting, tmp_path, name):
        write(table(1, 2), tmp_path / name)
        format = {"jsonl": "json", "arrows": "arrow"}.get(name[2:], name[2:])
        result = waiting("append", "packets", "-", "--format", format, input=(tmp_path / name).read_bytes())
        assert result.stdout.startswith("packets: 2 rows appended (")
        assert "standard input has no suffix" in waiting.error("append", "packets", "-")

    def test_csv_cells_are_typed_by_the_stream(self, empty):
        kinds = {
            "ts": "timestamptz",
            "naive": "timestamp[ms]",
            "n": "utinyint",
            "x": "double",
            "d": "decimal(6,2)",
            "b": "boolean",
            "s": "varchar",
            "day": "date",
            "t": "time",
            "l": "list<int64>",
            "st": "struct<a: int64, b: string>",
            "dict": "dictionary<values=string, indices=int32>",
            "span": "duration[us]",
            "half": "float16",
        }
        columns = [part for name, kind in kinds.items() for part in ("--column", f"{name}:{kind}")]
        empty("stream", "create", "s", *columns, "--time", "ts", "--slide", "1m")
        header = ",".join(kinds)
        times = "2025-01-01 12:00:01,2025-01-01T13:00:00+01:00"
        full = times + ',7,nan,1.5,true,007,2025-01-01,12:30:00,"[1,2]","{""a"":1,""b"":""x""}",k,5,0.5'
        bare = '2025-01-01T12:00:02Z,,,,,,"",,,,,,,'
        empty("append", "s", "-", "--format", "csv", input=f"{header}\n{full}\n{bare}")
        empty("slide", "s", "--to", "2025-01-01T12:01:00")
        with windrow.open(empty.path) as wh:
            first, second = by_time(wh.scan("s").read_all().to_pylist())
        assert math.isnan(first.pop("x"))
        assert first == {
            "ts": at(1),
            "naive": dt.datetime(2025, 1, 1, 12),
            "n": 7,
            "d": Decimal("1.50"),
            "b": True,
            "s": "007",
            "day": dt.date(2025, 1, 1),
            "t": dt.time(12, 30),
            "l": [1, 2],
            "st": {"a": 1, "b": "x"},
            "dict": "k",
            "span": dt.timedelta(microseconds=5),
            "half": 0.5,
        }
        assert second == dict.fromkeys(kinds) | {"ts": at(2), "s": ""}

    def test_csv_without_header_with_another_delimiter_and_null(self, waiting):
        text = "2025-01-01T12:00:01Z;NA;5\n2025-01-01T12:00:02Z;7;6\n"
        waiting(
            "append", "packets", "-", "--format", "csv", "--no-header", "--delimiter", ";", "--null", "NA", input=text
        )
        waiting("slide", "packets", "--to", at(60).isoformat())
        assert [r["src"] for r in by_time(lines(waiting("scan", "packets", "--json").stdout))] == [None, 7]

    def test_quoted_empty_cells_are_text_unless_they_stand_for_null(self, waiting):
        text = 'ts,src,len\n"2025-01-01T12:00:01Z","","5"\n'
        assert "invalid value ''" in waiting.error("append", "packets", "-", "--format", "csv", input=text)
        waiting("append", "packets", "-", "--format", "csv", "--null", "", input=text)

    def test_all_files_of_one_command_are_one_batch(self, waiting, tmp_path):
        write(table(1, 2), tmp_path / "good.csv")
        write(table(3), tmp_path / "good.parquet")
        (tmp_path / "bad.csv").write_text("ts,src,len\n2025-01-01T12:00:01Z,many,5\n")
        said = waiting.error("append", "packets", tmp_path / "good.csv", tmp_path / "bad.csv")
        assert "bad.csv: " in said
        assert "invalid value 'many'; nothing was appended" in said
        assert waiting.json("stream", "show", "packets")["spooled_rows"] == 0
        assert waiting.json("append", "packets", tmp_path / "good.csv", tmp_path / "good.parquet")["accepted"] == 3

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.csv", "ts,src\n2025-01-01T12:00:01Z,1\n", "column 'len' (int32) is missing; nothing was appended"),
            ("a.csv", "ts,src,len,dst\n2025-01-01T12:00:01Z,1,2,3\n", "column 'dst' is not in the stream"),
            ("a.csv", "ts,src,len\nnoon,1,2\n", "column 'ts': Failed to parse string"),
            ("a.csv", "", "Empty CSV file"),
            ("a.jsonl", '{"ts": 1', "JSON parse error"),
            ("a.jsonl", '{"ts":"2025-01-01T12:00:01Z","dst":1}\n', "column 'dst' is not in the stream"),
            ("a.json", "[{]", "nothing was appended"),
            ("a.parquet", "no parquet", "Parquet magic bytes not found"),
            ("a.arrow", "no arrow", "nothing was appended"),
            ("a.xls", "", "has no suffix that tells its format; say it with --format csv|json|parquet|arrow"),
        ],
    )
    def test_a_file_that_does_not_fit_changes_nothing(self, waiting, tmp_path, name, text, message):
        (tmp_path / name).write_text(text)
        said = waiting.error("append", "packets", tmp_path / name)
        assert message in said
        assert str(tmp_path / name) in said
        assert waiting.json("stream", "show", "packets")["spooled_rows"] == 0

    def test_a_file_that_is_not_there(self, waiting):
        assert (
            waiting.error("append", "packets", "no.csv") == "windrow: there is no file no.csv; nothing was appended\n"
        )
        assert "Missing argument" in waiting.error("append", "packets", code=2)

    def test_the_same_batch_twice_is_one_append(self, waiting, tmp_path):
        write(table(1, 2), tmp_path / "a.csv")
        write(table(1, 3), tmp_path / "b.csv")
        assert waiting.json("append", "packets", tmp_path / "a.csv", "--batch-id", "1")["duplicate"] is False
        again = waiting("append", "packets", tmp_path / "a.csv", "--batch-id", "1").stdout
        assert again == "packets: batch '1' of source 'default' was appended before; nothing was changed\n"
        assert "with other rows" in waiting.error("append", "packets", tmp_path / "b.csv", "--batch-id", "1")
        assert waiting.json("status")["streams"][0]["spooled_rows"] == 2

    def test_late_and_rejected_rows_are_told(self, packets):
        text = 'ts,src,len\n2025-01-01T12:02:30Z,1,1\n,2,2\n"",3,3\n2025-01-01T11:00:00Z,4,4\n'
        said = packets("append", "packets", "-", "--format", "csv", input=text).stdout.splitlines()
        assert said[0].startswith("packets: 1 row appended, 1 of them late (")
        assert sorted(said[1:]) == [
            "packets: 1 row rejected: the row had already expired on arrival",
            "packets: 2 rows rejected: the event time is null",
        ]


class Test_asking:
    def truth(self, low, high):
        return [shown(row) for row in rows(*range(low, high + 1))]

    def test_a_scan_is_the_window(self, packets):
        found = lines(packets("scan", "packets", "--json", "--window", "2 minutes").stdout)
        assert by_time(found) == self.truth(61, 180)
        assert by_time(lines(packets("scan", "packets", "--json").stdout)) == self.truth(1, 180)

    def test_a_table_says_which_window_it_is_of(self, packets):
        said = packets("scan", "packets", "--window", "1 minute").stdout.splitlines()
        assert said[0].split() == ["ts", "src", "len"]
        assert len(said) == 2 + 20 + 1
        assert said[-1].startswith(
            "60 rows of packets at 2025-01-01T12:03:00Z (slide 28928883), the last 1 minute, 20 shown ("
        )
        assert packets("scan", "packets", "--limit", "0").stdout.splitlines()[-1].startswith("180 rows of packets at ")

    def test_columns_and_limit(self, packets):
        found = lines(packets("scan", "packets", "--json", "--columns", "len,src", "--limit", "7").stdout)
        assert [list(row) for row in found] == [["len", "src"]] * 7
        assert "has no column 'dst'; it has ts, src, len" in packets.error("scan", "packets", "--columns", "dst")

    def test_csv_is_read_back_by_others(self, packets):
        found = list(csv.DictReader(io.StringIO(packets("scan", "packets", "--csv").stdout)))
        assert sorted(int(row["len"]) for row in found) == [100 + s for s in range(1, 181)]

    @pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
    def test_what_is_written_to_a_file_can_be_appended_again(self, packets, tmp_path, suffix):
        file = tmp_path / f"out.{suffix}"
        told = packets.json("scan", "packets", "--window", "1 minute", "--output", file)
        assert told == {
            "file": str(file),
            "rows": 60,
            "stream": "packets",
            "slide": 28928883,
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
        found = lines(packets("probe", "packets", *arguments, "--window", "1 minute", "--json").stdout)
        assert by_time(found) == [row for row in self.truth(121, 180) if row["src"] in wanted]

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
        said = empty("scan", "s").stdout
        assert "\x1b" not in said
        assert r"\x1b[2J[red]boo[/red]" in said


class Test_the_clock:
    @pytest.fixture
    def sources(self, empty):
        empty("stream", "create", "packets", *PACKETS, "--source", "north", "--source", "south")
        with windrow.open(empty.path) as wh:
            wh.append("packets", table(*range(1, 121)), source="north")
            wh.append("packets", table(*range(1, 61)), source="south")
        return empty

    def test_a_slide_reports_what_it_did(self, waiting):
        with windrow.open(waiting.path) as wh:
            wh.append("packets", table(*range(1, 181)))
        report = waiting.json("slide", "packets", "--to", at(180).isoformat())
        assert report.pop("seconds") > 0
        assert report == {
            "stream": "packets",
            "slide": 28928883,
            "now": "2025-01-01T12:03:00Z",
            "previous": None,
            "inserted": 180,
            "expired": 0,
            "late": 0,
            "touched": 1,
            "rebuilt": 0,
            "dropped": 0,
            "bytes_written": 0,
            "moved": True,
            "missing": [],
            "spoken_for": [],
            "waiting_for": [],
            "relayout_bytes": 0,
            "relayout_problem": None,
        }
        later = waiting.json("slide", "packets", "--to", at(17 * 60).isoformat())
        assert (later["expired"], later["previous"]) == (60, 28928883)

    def test_the_stream_waits_and_says_for_whom(self, sources):
        sources("slide", "packets")
        assert sources("slide", "packets").stdout == "packets stays at 2025-01-01T12:01:00Z: it waits for south\n"
        said = sources("status").stdout
        assert "packets waits for source 'south', which has reached 2025-01-01T12:01:00Z" in said
        (told,) = sources.json("status")["streams"]
        assert told["waiting_for"] == ["south"]
        assert {s["name"]: s["progress"] for s in told["sources"]} == {
            "north": "2025-01-01T12:02:00Z",
            "south": "2025-01-01T12:01:00Z",
        }
        refused = sources.error("slide", "packets", "--to", at(120).isoformat())
        assert "source 'south' has reached 2025-01-01T12:01:00Z" in refused
        assert refused.endswith("slide with --force\n")

    def test_a_heartbeat_lets_it_go_on(self, sources):
        up_to = at(120).isoformat()
        said = sources("heartbeat", "packets", "--source", "south", "--up-to", up_to).stdout
        assert said == "packets: nothing at or before 2025-01-01T12:02:00Z will follow from source 'south'\n"
        report = sources.json("slide", "packets")
        assert (report["now"], report["inserted"], report["missing"]) == ("2025-01-01T12:02:00Z", 180, [])

    def test_force_goes_on_without_and_answers_say_so(self, sources):
        report = sources.json("slide", "packets", "--to", at(120).isoformat(), "--force")
        assert report["missing"] == ["south"]
        assert sources("scan", "packets").stdout.splitlines()[-1].count("without south") == 1
        assert "went on without south" in sources("status").stdout

    def test_a_source_may_be_declared_failed(self, sources):
        said = sources("heartbeat", "packets", "--source", "south", "--failed", "cable cut").stdout
        assert said == "packets: source 'south' has failed (cable cut); the stream waits for it\n"
        assert "failed (cable cut)" in sources("stream", "show", "packets").stdout

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["heartbeat", "packets", "--source", "south"], 2, "give either --up-to TIME or --failed WHY"),
            (["heartbeat", "packets", "--source", "west", "--up-to", "2025-01-01T12:00:00"], 1, "has no source 'west'"),
            (["heartbeat", "packets", "--source", "south", "--up-to", "noon"], 1, "'noon' is not a time"),
            (["heartbeat", "packets", "--source", "south", "--up-to", "2999-01-01"], 1, "ahead of the wall clock"),
            (["slide"], 2, "name a stream, or give --all"),
            (["slide", "packets", "--all"], 2, "name a stream, or give --all"),
            (["slide", "packets", "--to", "2999-01-01"], 1, "ahead of the wall clock"),
        ],
    )
    def test_what_is_wrong_is_said(self, sources, arguments, code, message):
        assert message in sources.error(*arguments, code=code)

    def test_all_streams_slide_and_one_that_refuses_holds_nobody_up(self, sources):
        sources("stream", "create", "other", *PACKETS)
        result = sources("slide", "--all", "--to", at(120).isoformat(), "--json", code=1)
        assert [(r["stream"], r["now"]) for r in json.loads(result.stdout)] == [("other", "2025-01-01T12:02:00Z")]
        assert result.stderr.startswith("windrow: stream 'packets' cannot slide")
        assert [r["stream"] for r in sources.json("slide", "--all")] == ["other", "packets"]


class Test_rejected_rows:
    @pytest.fixture
    def rejected(self, packets):
        text = "ts,src,len\n,1,10\n2999-01-01T00:00:00Z,2,20\n"
        packets("append", "packets", "-", "--format", "csv", "--batch-id", "x", input=text)
        return packets

    def test_they_are_shown_with_the_reason(self, rejected):
        found = lines(rejected("stream", "rejected", "packets", "--json").stdout)
        assert {row["len"]: (row["_batch"], row["_source"]) for row in found} == {
            10: ("x", "default"),
            20: ("x", "default"),
        }
        assert {row["len"]: "null" in row["_reason"] for row in found} == {10: True, 20: False}
        said = rejected("stream", "rejected", "packets", "--columns", "len,_reason").stdout
        assert said.splitlines()[0].split() == ["len", "_reason"]
        assert "packets: 2 rejected rows: 1 " in said
        assert "have no column 'x'" in rejected.error("stream", "rejected", "packets", "--columns", "x")

    def test_they_can_be_written_replayed_and_thrown_away(self, rejected, tmp_path):
        rejected("stream", "rejected", "packets", "--output", tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 2
        said = rejected("stream", "replay", "packets").stdout
        assert said == "packets: 0 of 2 rejected rows appended, 2 still rejected\n"
        assert rejected.json("stream", "rejected", "packets", "--discard") == {"stream": "packets", "discarded": 2}
        assert rejected("stream", "rejected", "packets").stdout == "packets: 0 rejected rows\n"


class Test_upkeep:
    def test_status_counts_what_there_is(self, packets):
        with windrow.open(packets.path) as wh:
            wh.append("packets", table(181))
            told = packets.json("status")
        (stream,) = told.pop("streams")
        wanted = {
            "name": "packets",
            "slide": 28928883,
            "now": "2025-01-01T12:03:00Z",
            "live_rows": 180,
            "spooled_rows": 1,
        }
        assert wanted.items() <= stream.items()
        assert set(told) >= {"path", "version", "readers", "oldest_reader", "reclaimable_files", "catalog_bytes"}
        assert packets("status").stdout.splitlines()[2].split()[:4] == ["packets", "2025-01-01T12:03:00Z", "180", "1"]

    def test_check_finds_nothing_wrong(self, packets):
        assert packets("check").stdout == "no problems in 1 stream, 1 segment, 1 file, 180 rows\n"
        told = packets.json("check")
        assert (told["ok"], told["problems"], told["rows"]) == (True, [], 180)

    def test_check_says_what_is_wrong_and_fails(self, packets):
        (file,) = packets.path.glob("streams/packets/segments/*.parquet")
        file.write_bytes(file.read_bytes()[:-100])
        result = packets("check", code=1)
        assert f"file streams/packets/segments/{file.name} has " in result.stdout
        assert result.stderr == ""
        assert packets.json("check", code=1)["ok"] is False

    def test_gc_reclaims(self, packets):
        packets("slide", "packets", "--to", at(60 * 60).isoformat())
        told = packets.json("gc")
        assert (told["files"], told["waiting"]) == (1, 0)
        assert told["bytes"] > 0
        assert packets("gc").stdout == "removed 0 replaced files (0 B) and 0 orphans, forgot 0 batch ids\n"


class Test_looks:
    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234567, "1.23 MB"), (999_900_000, "1 GB"), (5 * 10**12, "5 TB")],
    )
    def test_sizes(self, count, text):
        assert cli_terminal.size(count) == text

    def test_progress_is_silent_where_nobody_looks(self, capsys):
        with cli_terminal.progress("work", 10) as moved:
            moved(5)
        assert capsys.readouterr() == ("", "")

    def test_progress_on_a_terminal_goes_to_stderr(self, monkeypatch, capsys):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with cli_terminal.progress("work", 10, in_bytes=True) as moved:
            moved(5)
        assert capsys.readouterr().out == ""

    def test_a_narrow_terminal_loses_nothing_in_a_pipe(self, packets):
        assert "…" not in packets("scan", "packets", env={"COLUMNS": ""}).stdout


class Test_as_a_program:
    """In a process of its own, as a shell starts it."""

    def test_help_waits_for_nobody(self):
        heavy = ("pyarrow", "numpy", "duckdb", "lmdb", "rich", "pyspark")
        code = (
            "import sys\nfrom click.testing import CliRunner\nfrom windrow import cli\n"
            "r = CliRunner().invoke(cli.windrow, ['--help']); assert r.exit_code == 0, r\n"
            "r = CliRunner().invoke(cli.windrow, ['stream', 'create', '--help']); assert r.exit_code == 0, r\n"
            f"print(*sorted(set({heavy!r}) & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
        assert (done.stdout.split(), done.stderr) == ([], "")

    def test_version(self, windrow_command):
        done = subprocess.run([windrow_command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"windrow, version {windrow.__version__}\n"

    def test_a_mistake_is_one_line_and_exit_code_1(self, windrow_command, path):
        done = subprocess.run([windrow_command, "-w", path, "status"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"windrow: {path} holds no warehouse; create one with 'windrow init' or check the path\n"

    @pytest.mark.parametrize("buffered", [True, False])
    @pytest.mark.parametrize("how", ["--csv", "--json"])
    def test_a_closed_pipe_is_no_error(self, windrow_command, waiting, how, buffered):
        many = pa.table(
            {
                "ts": pa.array(range(10**15, 10**15 + 200_000), UTC),
                "src": range(200_000),
                "len": pa.array([1] * 200_000, pa.int32()),
            }
        )
        with windrow.open(waiting.path) as wh:
            wh.append("packets", many)
            wh.slide("packets", to="2001-09-09T02:00:00")
        script = f"{windrow_command} -w {waiting.path} scan packets {how} | head -2 | wc -l; echo ${{PIPESTATUS[0]}}"
        env = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
        assert done.stdout.split() == ["2", "141"]
        assert done.stderr == ""

    @pytest.mark.parametrize("format", ["csv", "json"])
    def test_control_c_ends_it_quietly(self, windrow_command, waiting, format):
        """Stdin stays open, so the append waits for rows when the signal comes."""
        with subprocess.Popen(
            [windrow_command, "-w", waiting.path, "append", "packets", "-", "--format", format],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            process.stdin.write(b"ts,src,len\n")
            process.stdin.flush()
            wait_until_it_reads(process.pid)
            process.send_signal(signal.SIGINT)
            assert (process.wait(30), process.stdout.read(), process.stderr.read()) == (130, b"", b"")
        assert waiting("check").stdout.startswith("no problems")
        assert waiting.json("status")["streams"][0]["spooled_rows"] == 0


def wait_until_it_reads(pid: int) -> None:
    """Until the process has opened the warehouse and its copy of standard input."""
    for _ in range(600):
        names = []
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                names.append(os.readlink(entry.path))
            except FileNotFoundError:
                continue
        if any("/windrow-" in name for name in names):
            return
        time.sleep(0.05)
    raise AssertionError("the append never began to read")
