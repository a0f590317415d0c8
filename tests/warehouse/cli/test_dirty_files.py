"""Files as the world has them: bad lines, other times, other nulls; what is good comes in, the rest is kept with its line."""

import datetime as dt
import gzip
import json
import random

import pyarrow as pa
import pytest

import windrow
from command_line import NOON, at, lines

GOOD = "2025-01-01T12:00:{:02d}Z,{},{}"


def rejected(run) -> list[dict]:
    return [
        {key: row[key] for key in ("_file", "_line", "_reason", "_text")}
        for row in lines(run("stream", "rejected", "packets", "--json").stdout)
    ]


def stored(path) -> list[tuple]:
    with windrow.open(path) as wh:
        wh.slide("packets", to=at(600))
        return wh.sql("SELECT ts, src, len FROM packets ORDER BY ts, src").fetchall()


class Test_bad_lines:
    def test_good_lines_come_in_and_bad_ones_are_kept_with_their_place(self, waiting, tmp_path):
        """The oracle is a plain loop over the lines that were written."""
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rnd = random.Random(seed)
        kinds = {
            "x,1,1": "column 'ts' is not a time like 2025-01-01T12:00:00Z",
            "2025-01-01T12:00:01Z,one,1": "column 'src' is not a whole number from -9223372036854775808 to 9223372036854775807",
            "2025-01-01T12:00:01Z,1": "it has 2 cells, not 3",
            "2025-01-01T12:00:01Z,1,2,3": "it has 4 cells, not 3",
            "2025-01-01T12:00:01Z,1,99999999999": "column 'len' is not a whole number from -2147483648 to 2147483647",
        }
        text, bad, good = ["ts,src,len"], [], []
        for number in range(2, 402):
            if rnd.random() < 0.1:
                line, why = rnd.choice(list(kinds.items()))
                bad.append({"_line": number, "_reason": why, "_text": line})
            elif rnd.random() < 0.05:
                line = ""
            else:
                second, src, length = rnd.randrange(60), rnd.randrange(5), rnd.randrange(100)
                line = GOOD.format(second, src, f" {length} " if rnd.random() < 0.2 else length)
                good.append((at(second), src, length))
            text.append(line)
        file = tmp_path / "day.csv.gz"
        file.write_bytes(gzip.compress("\n".join(text).encode()))
        report = waiting.json("append", "packets", file, "--on-error", "reject")
        assert (report["rows"], report["accepted"]) == (len(good) + len(bad), len(good))
        assert rejected(waiting) == [{"_file": str(file)} | each for each in bad]
        assert sorted(stored(waiting.path)) == sorted(good)

    def test_without_the_option_the_first_bad_line_stops_everything(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text("ts,src,len\n" + GOOD.format(1, 1, 1) + "\n" + GOOD.format(2, "x", 1) + "\n")
        assert "row 2, column 'src': 'x' is not a whole number" in waiting.error("append", "packets", file)

    def test_quoted_cells_may_go_over_lines(self, empty, tmp_path):
        empty(
            "stream",
            "create",
            "packets",
            "--column",
            "ts:timestamptz",
            "--column",
            "t:varchar",
            "--time",
            "ts",
            "--slide",
            "1m",
        )
        file = tmp_path / "day.csv"
        rows = ['2025-01-01T12:00:01Z,"a\nb"', 'never,"c\nd"', "2025-01-01T12:00:03Z,e", "x,y,z"]
        file.write_text("ts,t\n" + "\n".join(rows) + "\n")
        empty("append", "packets", file, "--on-error", "reject")
        assert [(each["_line"], each["_text"]) for each in rejected(empty)] == [(4, rows[1]), (7, rows[3])]
        with windrow.open(empty.path) as wh:
            wh.slide("packets", to=at(60))
            assert wh.sql("SELECT t FROM packets ORDER BY ts").fetchall() == [("a\nb",), ("e",)]

    def test_json_lines_and_bytes_that_are_no_text(self, waiting, tmp_path):
        file = tmp_path / "day.jsonl"
        good = [json.dumps({"ts": at(s).isoformat(), "src": s, "len": None}) for s in (1, 2)]
        bad = ["[1]", '{"ts": 1}', '{"src": 1, "nope": 2}', "{", '{"ts": "soon"}']
        file.write_bytes("\n".join([good[0], *bad, good[1]]).encode() + b'\n{"src": "\xff"}\n')
        waiting("append", "packets", file, "--on-error", "reject")
        actual = rejected(waiting)
        assert [each["_line"] for each in actual] == [2, 3, 4, 5, 6, 8]
        assert [each["_text"] for each in actual[:5]] == bad
        assert actual[0]["_reason"] == "it is not a JSON object"
        assert actual[2]["_reason"] == "column 'nope' is not in the stream"
        assert actual[5]["_reason"] == "it is not text in UTF-8"
        assert [row[1] for row in stored(waiting.path)] == [1, 2]

    def test_kept_lines_are_read_again(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text("ts,src,len\n01.01.2025 12:00:01,1,1\n" + GOOD.format(2, 2, "NA") + "\nnever,3,3\n")
        waiting("append", "packets", file, "--on-error", "reject")
        assert len(rejected(waiting)) == 3
        assert "0 of 3" in waiting("stream", "replay", "packets").stdout
        assert "1 of 3" in waiting("stream", "replay", "packets", "--null", "NA").stdout
        output = waiting("stream", "replay", "packets", "--time-format", "%d.%m.%Y %H:%M:%S").stdout
        assert "1 of 2 rejected rows appended, 1 still rejected" in output
        (left,) = rejected(waiting)
        assert (left["_file"], left["_line"], left["_text"]) == (str(file), 4, "never,3,3")
        assert stored(waiting.path) == [(at(1), 1, 1), (at(2), 2, None)]

    def test_a_batch_that_is_mostly_bad_is_refused(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text("ts,src,len\n" + GOOD.format(1, 1, 1) + "\n" + "bad,1,1\n" * 3)
        message = waiting.error("append", "packets", file, "--on-error", "reject", "--max-rejected", "0.5")
        assert "3 of 4 rows would be rejected (3 column 'ts' is not a time" in message
        assert rejected(waiting) == []
        with windrow.open(waiting.path) as wh:
            with pytest.raises(windrow.SchemaError, match=r"1 of 1 rows .* max_rejected=0"):
                wh.append("packets", [{"ts": None, "src": 1, "len": 1}], max_rejected=0)
            with pytest.raises(windrow.DefinitionError, match="no share"):
                wh.append("packets", [], max_rejected=2)

    def test_the_same_dirty_batch_twice_is_one(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text("ts,src,len\n" + GOOD.format(1, 1, 1) + "\nbad,1,1\n")
        for _ in range(2):
            waiting("append", "packets", file, "--on-error", "reject", "--batch-id", "1")
        assert len(rejected(waiting)) == len(stored(waiting.path)) == 1
        file.write_text("ts,src,len\n" + GOOD.format(1, 1, 1) + "\nworse,1,1\n")
        assert "other rows" in waiting.error("append", "packets", file, "--on-error", "reject", "--batch-id", "1")

    def test_a_trial_changes_nothing(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text("ts,src,len\n" + GOOD.format(1, 7, 1) + "\nbad,1,1\n,1,1\n")
        output = waiting("append", "packets", file, "--dry-run").stdout
        assert "columns: ts timestamp[us, tz=UTC], src int64, len int32" in output
        assert "packets: 1 row would be appended" in output
        assert "1 row would be rejected: the event time is null" in output
        assert f"{file}, line 3: column 'ts' is not a time like 2025-01-01T12:00:00Z: bad,1,1" in output
        document = waiting.json("append", "packets", file, "--dry-run")
        assert (document["accepted"], [line["line"] for line in document["lines"]]) == (1, [3])
        assert waiting.json("status")["streams"][0]["spooled_rows"] == 0


class Test_other_ways_to_write:
    @pytest.mark.parametrize("on_error", ["stop", "reject"])
    @pytest.mark.parametrize(
        ("options", "cell", "truth"),
        [
            (["--epoch", "s"], "1735732801", at(1)),
            (["--epoch", "s"], "1735732801.25", at(1.25)),
            (["--epoch", "ms"], "1735732801250", at(1.25)),
            (["--epoch", "us"], "1735732801250000", at(1.25)),
            (["--epoch", "ns"], "1735732801250000999", at(1.25)),
            (["--time-format", "%d/%b/%Y:%H:%M:%S %z"], "01/Jan/2025:13:00:01 +0100", at(1)),
            (["--time-format", "%d.%m.%Y %H:%M:%S", "--timezone", "Europe/Berlin"], "01.01.2025 13:00:01", at(1)),
            (["--timezone", "Europe/Berlin"], "2025-01-01 13:00:01", at(1)),
            (["--timezone", "Europe/Berlin"], "2025-01-01T12:00:01Z", at(1)),
        ],
    )
    def test_times(self, waiting, tmp_path, options, cell, truth, on_error):
        file = tmp_path / "day.csv"
        file.write_text(f"ts,src,len\n{cell},1,1\n")
        waiting("append", "packets", file, *options, "--on-error", on_error)
        rows = [{"ts": float(cell) if "--epoch" in options and "." in cell else int(cell) if cell.isdigit() else cell}]
        (tmp_path / "day.jsonl").write_text(json.dumps(rows[0] | {"src": 2, "len": 1}) + "\n")
        waiting("append", "packets", tmp_path / "day.jsonl", *options, "--on-error", on_error)
        assert stored(waiting.path) == [(truth, 1, 1), (truth, 2, 1)]

    def test_times_that_are_not_written_like_that_are_named(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text(f"ts,src,len\n{NOON.isoformat()},1,1\n")
        assert "row 1, column 'ts'" in waiting.error("append", "packets", file, "--epoch", "s")
        assert "row 1, column 'ts'" in waiting.error("append", "packets", file, "--time-format", "%d.%m.%Y")
        assert "cannot be read" in waiting.error("append", "packets", file, "--timezone", "Nowhere/City")
        assert "give one of the two" in waiting.error("append", "packets", file, "--epoch", "s", "--time-format", "%d")

    def test_lines_before_the_header_patterns_and_standard_input(self, waiting, tmp_path):
        text = "# made by hand\n#\nts;src;len\n" + GOOD.format(1, 1, "-").replace(",", ";") + "\n"
        for name in ("a.csv", "b.csv"):
            (tmp_path / name).write_text(text)
        options = ["--skip", 2, "--delimiter", ";", "--null", "-"]
        for on_error in ("stop", "reject"):
            assert (
                waiting.json("append", "packets", tmp_path / "*.csv", *options, "--on-error", on_error)["accepted"] == 2
            )
            given = waiting.json(
                "append", "packets", "-", "--format", "csv", *options, "--on-error", on_error, input=text
            )
            assert given["accepted"] == 1
            for packed in ("gzip", "bz2", "zstd", "lz4"):  # told by the first bytes, since there is no suffix
                sink = pa.BufferOutputStream()
                with pa.CompressedOutputStream(sink, packed) as stream:
                    stream.write(text.encode())
                arguments = ["append", "packets", "-", "--format", "csv", *options, "--on-error", on_error]
                assert waiting.json(*arguments, input=sink.getvalue().to_pybytes())["accepted"] == 1, packed
        assert "no file is called like" in waiting.error("append", "packets", tmp_path / "*.tsv")
        assert {row[2] for row in stored(waiting.path)} == {None}

    def test_a_file_of_other_columns_is_refused_also_when_lines_are_rejected(self, waiting, tmp_path):
        file = tmp_path / "day.csv"
        file.write_text("ts,src,size\n" + GOOD.format(1, 1, 1) + "\n")
        message = waiting.error("append", "packets", file, "--on-error", "reject")
        assert "column 'size' is not in the stream" in message and "column 'len' (int32) is missing" in message


def test_rows_that_came_from_no_file_have_no_line(waiting):
    with windrow.open(waiting.path) as wh:
        wh.append("packets", [{"ts": None, "src": 1, "len": 1}])
        table = wh.rejected("packets")
        assert table.column_names[-4:] == ["_file", "_line", "_text", "_format"]
        assert table.column("_text").to_pylist() == [None]
        assert isinstance(table.column("_rejected_at")[0].as_py(), dt.datetime)
        assert table.schema.field("_line").type == pa.int64()
