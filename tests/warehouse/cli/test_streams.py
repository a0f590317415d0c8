"""Types, columns and streams as they are written on the command line."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

import windrow
from command_line import COLUMNS, NOON, PACKETS, UTC, table, write
from windrow.cli.literals import parse_column, parse_type, parse_value


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
        created = empty.json(
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
        assert created["definition"] == {
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
            "liveness": None,
            "checks": {},
            "rejected_retention": None,
            "history": None,
            "erase_within": None,
            "inputs": [],
            "update_pattern": "weak",
        }
        index = {"name": "round-robin", "rows": 3, "columns": 5, "maintenance": "rebuild", "auto": False}
        assert created["index"] == {**index, "why": "chosen by the user", "layouts": 1, "relayout": None}
        assert created == empty.json("stream", "show", "leases") == empty.json("stream", "list")[0]

    def test_the_chosen_index_is_explained(self, empty):
        output = empty("stream", "create", "packets", *PACKETS).stdout
        assert output.startswith(
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
