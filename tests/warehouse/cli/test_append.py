"""`windrow append` takes files of every format, types cells by the stream, and changes nothing where one does not fit."""

import datetime as dt
import math
from decimal import Decimal

import pytest

import windrow
from command_line import FILES, at, by_time, lines, rows, shown, table, write


class Test_appending:
    @pytest.mark.parametrize("name", FILES)
    def test_files_of_every_format(self, waiting, tmp_path, name):
        write(table(1, 2, 3), tmp_path / name)
        report = waiting.json("append", "packets", tmp_path / name)
        document = {k: report[k] for k in ("stream", "source", "rows", "accepted", "rejected", "late", "duplicate")}
        assert document == {
            "stream": "packets",
            "source": "default",
            "rows": 3,
            "accepted": 3,
            "rejected": {},
            "late": 0,
            "duplicate": False,
        }
        waiting("slide", "packets", "--to", at(60).isoformat())
        answer = lines(waiting("scan", "packets", "--json").stdout)
        assert by_time(answer) == [shown(row) for row in rows(1, 2, 3)]

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
        assert "row 1, column 'src': '' is not a whole number" in waiting.error(
            "append", "packets", "-", "--format", "csv", input=text
        )
        waiting("append", "packets", "-", "--format", "csv", "--null", "", input=text)

    def test_all_files_of_one_command_are_one_batch(self, waiting, tmp_path):
        write(table(1, 2), tmp_path / "good.csv")
        write(table(3), tmp_path / "good.parquet")
        (tmp_path / "bad.csv").write_text("ts,src,len\n2025-01-01T12:00:01Z,many,5\n")
        output = waiting.error("append", "packets", tmp_path / "good.csv", tmp_path / "bad.csv")
        assert "bad.csv: " in output
        assert "row 1, column 'src': 'many' is not a whole number from" in output
        assert "nothing was appended" in output
        assert waiting.json("stream", "show", "packets")["spooled_rows"] == 0
        assert waiting.json("append", "packets", tmp_path / "good.csv", tmp_path / "good.parquet")["accepted"] == 3

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.csv", "ts,src\n2025-01-01T12:00:01Z,1\n", "column 'len' (int32) is missing; nothing was appended"),
            ("a.csv", "ts,src,len,dst\n2025-01-01T12:00:01Z,1,2,3\n", "column 'dst' is not in the stream"),
            ("a.csv", "ts,src,len\nnoon,1,2\n", "row 1, column 'ts': 'noon' is not a time like 2025-01-01T12:00:00Z"),
            ("a.csv", "ts,src,len\n2025-01-01T12:00:00Z,1,2\n\n5,6\n", "row 2 has 2 cells, not 3: 5,6"),
            ("a.csv", "", "Empty CSV file"),
            ("a.jsonl", '{"ts": 1', "row 1 is not a whole JSON object"),
            ("a.jsonl", '{"ts":"2025-01-01T12:00:01Z","dst":1}\n', "column 'dst' is not in the stream"),
            ("a.json", "[{]", "nothing was appended"),
            ("a.parquet", "no parquet", "Parquet magic bytes not found"),
            ("a.arrow", "no arrow", "nothing was appended"),
            ("a.xls", "", "has no suffix that tells its format; say it with --format csv|json|parquet|arrow"),
        ],
    )
    def test_a_file_that_does_not_fit_changes_nothing(self, waiting, tmp_path, name, text, message):
        (tmp_path / name).write_text(text)
        output = waiting.error("append", "packets", tmp_path / name)
        assert message in output
        assert str(tmp_path / name) in output
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
        output = packets("append", "packets", "-", "--format", "csv", input=text).stdout.splitlines()
        assert output[0].startswith("packets: 1 row appended, 1 of them late (")
        assert sorted(output[1:]) == [
            "packets: 1 row rejected: the row had already expired on arrival",
            "packets: 2 rows rejected: the event time is null",
        ]
