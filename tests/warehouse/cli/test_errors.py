"""What is wrong with a file or a declaration is said so that it can be found: row, column, value, and what was expected."""

import pyarrow as pa
import pytest

import windrow
from command_line import at, lines, table

TIME = "is not a time like 2025-01-01T12:00:00Z; nothing was appended"
GOOD = "2025-01-01T12:00:01Z"


@pytest.fixture
def typed(empty):
    """A stream with a decimal, a list, a duration and a small number."""
    kinds = {"ts": "timestamptz", "n": "int8", "d": "decimal(4,1)", "l": "list<int64>", "span": "duration[s]"}
    columns = [part for name, kind in kinds.items() for part in ("--column", f"{name}:{kind}")]
    empty("stream", "create", "s", *columns, "--time", "ts", "--slide", "1m")
    return empty


class Test_cells:
    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            ("yesterday,1,1,[],", f"column 'ts': 'yesterday' {TIME}"),
            ("2025-02-30T00:00:00Z,1,1,[],", f"column 'ts': '2025-02-30T00:00:00Z' {TIME}"),
            ("1735732800,1,1,[],", f"column 'ts': '1735732800' {TIME}"),
            (f"{GOOD},many,1,[],", "column 'n': 'many' is not a whole number from -128 to 127"),
            (f"{GOOD},300,1,[],", "column 'n': '300' is not a whole number from -128 to 127"),
            (f"{GOOD},1,99999.5,[],", "column 'd': '99999.5' is not a number with at most 3 digits before the point and 1 after it"),
            (f'{GOOD},1,1,"[""a""]",', "column 'l': '[\"a\"]' is not JSON for list<"),
            (f"{GOOD},1,1,[],soon", "column 'span': 'soon' is not a duration like '20 minutes' that can be counted in s"),
        ],
    )  # fmt: skip
    def test_csv(self, typed, cells, message):
        text = "ts,n,d,l,span\n" + f"{GOOD},1,2,[3],4\n" * 5 + cells + "\n" + f"{GOOD},1,2,[3],4\n" * 3
        output = typed.error("append", "s", "-", "--format", "csv", input=text)
        assert output.startswith("windrow: standard input: row 6, column ")
        assert message in output

    @pytest.mark.parametrize(
        ("member", "message"),
        [
            ('"ts":1735732800', f"column 'ts': 1735732800 {TIME}"),
            ('"ts":"noon"', f"column 'ts': 'noon' {TIME}"),
            ('"n":300', "column 'n': 300 is not a whole number from -128 to 127"),
            ('"n":"1"', "column 'n': '1' is not a whole number"),
            ('"d":99999.5', "column 'd': 99999.5 is not a number with at most 3 digits"),
            ('"l":["a"]', "column 'l': [\"a\"] is not JSON for list<"),
            ('"span":"1.5 s"', "column 'span': '1.5 s' is not a duration"),
        ],
    )
    def test_json_lines_and_arrays(self, typed, member, message):
        rows = [f'{{"ts":"{GOOD}","n":1,"d":1,"l":[1],"span":"1 s"}}'] * 5 + [f"{{{member}}}"]
        for text in ("\n".join(rows), f"[{','.join(rows)}]"):
            output = typed.error("append", "s", "-", "--format", "json", input=text)
            assert output.startswith("windrow: standard input: row 6, column ")
            assert message in output

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"5", "row 2 is not a JSON object"),
            (b'{"ts":"\xff"}', "row 2 is not text in UTF-8"),
            (b'{"n":1,"n":2}', "row 2: Column(/n) was specified twice"),
            (b'{"m":1}', "column 'm' is not in the stream"),
        ],
    )
    def test_lines_that_are_no_rows(self, typed, line, message):
        output = typed.error("append", "s", "-", "--format", "json", input=f'{{"ts":"{GOOD}"}}\n'.encode() + line)
        assert f"{message}; nothing was appended" in output

    def test_json_may_leave_out_columns_that_may_be_null(self, typed):
        typed("append", "s", "-", "--format", "json", input=f'{{"ts":"{GOOD}"}}\n{{"ts":"{GOOD}","n":1}}\n')
        typed("slide", "s", "--to", at(60).isoformat())
        assert sorted(str(row["n"]) for row in lines(typed("scan", "s", "--json").stdout)) == ["1", "None"]
        typed("stream", "create", "whole", "--column", "ts:timestamptz", "--column", "n:int not null", "--time", "ts", "--slide", "1m")  # fmt: skip
        output = typed.error("append", "whole", "-", "--format", "json", input=f'{{"ts":"{GOOD}"}}\n')
        assert "column 'n' is not nullable but has 1 nulls; nothing was appended" in output


class Test_files:
    def test_what_is_no_file(self, waiting, tmp_path):
        (tmp_path / "dir.csv").mkdir()
        assert "dir.csv is a folder; name the files in it" in waiting.error("append", "packets", tmp_path / "dir.csv")
        assert "dir.csv is a folder; name a file" in waiting.error("table", "put", "t", tmp_path / "dir.csv")
        output = waiting.error("table", "put", "t", tmp_path / "no.csv")
        assert "there is no file" in output
        assert "stream" not in output

    def test_a_table_without_columns(self, waiting, tmp_path):
        (tmp_path / "t.json").write_text("{}\n")
        assert "table 't' has no columns" in waiting.error("table", "put", "t", tmp_path / "t.json")
        with windrow.open(waiting.path) as wh:
            with pytest.raises(windrow.DefinitionError, match="table 'et' has no columns"):
                wh.put_table("et", pa.table({}))
            assert wh.tables() == []


class Test_batches:
    def test_other_types_are_told_what_to_do(self, waiting):
        with windrow.open(waiting.path) as wh:
            wide = table(1).set_column(2, "len", pa.array([b"1"]))
            with pytest.raises(windrow.SchemaError, match="is binary, the stream has int32; cast it first"):
                wh.append("packets", wide)

    def test_what_is_no_batch_is_named(self, waiting):
        with windrow.open(waiting.path) as wh:
            with pytest.raises(windrow.SchemaError, match="among the batches is a dict"):
                wh.append("packets", [table(1), {"ts": 1}])
            with pytest.raises(windrow.SchemaError, match="different schemas"):
                wh.append("packets", [table(1), table(1).select(["ts"])])


class Test_declarations:
    def test_dictionaries_either_way_round(self, empty):
        for kind in (
            "dictionary<int32,string>",
            "dictionary<string, int32>",
            "dictionary<values=string, indices=int32>",
        ):
            empty("stream", "create", "s", "--column", "ts:timestamptz", "--column", f"a:{kind}", "--time", "ts", "--slide", "1m")  # fmt: skip
            with windrow.open(empty.path) as wh:
                assert wh.stream("s").definition.schema.field("a").type == pa.dictionary(pa.int32(), pa.string())
            empty("stream", "drop", "s", "--yes")
        output = empty.error("stream", "create", "s", "--column", "a:dictionary<string,double>", "--time", "a", "--slide", "1m")  # fmt: skip
        assert "'dictionary<string,double>' has no integer for its indices" in output

    @pytest.mark.parametrize("nested", [False, True])
    def test_zones_that_nobody_knows(self, empty, nested):
        output = empty.error("stream", "create", "s", "--column", "ts:timestamp[us, Mars/Olympus]", "--time", "ts", "--slide", "1m")  # fmt: skip
        assert "column 'ts' has the time zone 'Mars/Olympus', which is unknown" in output
        mars = pa.timestamp("us", "Mars/Olympus")
        schema = pa.schema([("ts", pa.timestamp("us", "+01:00")), ("x", pa.list_(mars) if nested else mars)])
        with windrow.open(empty.path) as wh:
            with pytest.raises(windrow.DefinitionError, match="column 'x' has the time zone 'Mars/Olympus'"):
                wh.create_stream("s", schema, time="ts", slide="1 minute")
            wh.create_stream("s", schema.remove(1), time="ts", slide="1 minute")
