"""Hostile rows through every way in: refused with one sentence and nothing stored, or read back as they were sent.

Each hostile column is one that Arrow builds without looking at its values: text that is not UTF-8, offsets that run
backwards, indices beyond their dictionary, decimals too long for their type, times that SQL has no number for.
"""

import datetime as dt

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import windrow
from windrow import arrow_input, cli, reference_tables, small_append

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
TS = pa.timestamp("us", "UTC")


def _text(*values: bytes, kind=None, offsets=None) -> pa.Array:
    _, given, data = pa.array(values, pa.binary()).buffers()
    given = given if offsets is None else pa.py_buffer(np.array(offsets, np.int32))
    return pa.Array.from_buffers(kind or pa.string(), len(values), [None, given, data])


def _numbers(kind: pa.DataType, *values: int) -> pa.Array:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


BAD = _text(b"ok", b"\xff\xfe", b"\xc0\x80")
LONG = duckdb.sql("SELECT '-170141183460469231731687303715884105728'::HUGEINT AS v").to_arrow_table()["v"].chunk(0)
REFUSED = {
    "text": BAD,
    "a character torn in two": _text(b"\xc3", b"\xa4", b"b"),
    "large text": BAD.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()),
    "text in a list": pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), BAD),
    "text in a struct": pa.StructArray.from_arrays([BAD], ["a"]),
    "text in a dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), BAD),
    "text offsets that run backwards": _text(b"abc", b"def", offsets=[0, 5, 3]),
    "an index beyond its dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False
    ),
    "a decimal of 39 digits": LONG,
    "a decimal in a list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), LONG),
    "a duration in a list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), _numbers(pa.duration("s"), 1 << 60)),
    "a duration that microseconds cannot count": _numbers(pa.duration("s"), 1 << 60),
    "an instant before all": _numbers(pa.timestamp("s"), -(1 << 62)),
    "an instant after all, with a zone": _numbers(pa.timestamp("ms", "UTC"), (1 << 63) - 2),
    "a time of no day": _numbers(pa.time64("us"), 86_400_000_001),
    "a negative time": _numbers(pa.time32("s"), -1),
}
TAKEN = {
    "the end of the day": _numbers(pa.time64("us"), 0, 86_400_000_000),
    "the end of the day in a list": pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()), _numbers(pa.time32("ms"), 86_400_000)
    ),
    "other alphabets": pa.array(["Ω", None, "", "日本", "a\x00b"]),
    "a slice": pa.array(["x", "Ω", "y", None]).slice(1, 2),
    "whole microseconds": _numbers(pa.duration("ns"), 5000, -7000),
    "views of lists": pa.array([[1, None], None, [], [3]], pa.list_view(pa.int32())),
    "views of lists out of order": pa.ListViewArray.from_arrays(
        pa.array([2, 0], pa.int32()), pa.array([1, 2], pa.int32()), pa.array([1, 2, 3])
    ),
    "large views of lists": pa.array([["a"], None], pa.large_list_view(pa.string())),
    "no text at all": pa.array([None, None], pa.string()),
    "intervals of centuries": _numbers(pa.duration("s"), 10**10),
}


def _rows(column: pa.Array) -> pa.Table:
    return pa.table({"ts": pa.array([NOON] * len(column), TS), "v": column})


def _by_table(wh, rows, tmp_path):
    wh.append("s", rows)


def _by_arrow_file(wh, rows, tmp_path):
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    _command(wh, "append", "s", tmp_path / "rows.arrow")


def _by_parquet_file(wh, rows, tmp_path):
    try:
        pq.write_table(rows, tmp_path / "rows.parquet")
    except pa.ArrowException:
        pytest.skip("Arrow itself refuses to write such a file")
    _command(wh, "append", "s", tmp_path / "rows.parquet")


def _command(wh, *arguments):
    result = CliRunner().invoke(cli.windrow, ["-w", str(wh.path), *map(str, arguments)])
    if result.exit_code:
        raise windrow.WindrowError(result.output)


WAYS = (_by_table, _by_arrow_file, _by_parquet_file)


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "warehouse") as opened:
        yield opened


def _create(wh, rows: pa.Table) -> None:
    wh.create_stream("s", rows.schema, time="ts", slide="1 minute", lifetime="1 hour")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__[4:])
@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_column_is_refused_by_every_way_into_a_stream(wh, tmp_path, name, way):
    rows = _rows(REFUSED[name])
    _create(wh, rows)
    with pytest.raises(windrow.WindrowError) as error:
        way(wh, rows, tmp_path)
    assert "\n" not in str(error.value).strip()
    assert "'v'" in str(error.value)
    assert wh.stream("s").spooled_rows == 0
    wh.slide("s", to=NOON + dt.timedelta(minutes=1))
    assert wh.sql("SELECT count(*) FROM s").fetchall() == [(0,)]


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_column_is_refused_as_a_table(wh, name):
    with pytest.raises(windrow.WindrowError, match="'v'"):
        wh.put_table("t", pa.table({"v": REFUSED[name]}))
    assert wh.tables() == []


@pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: way.__name__[4:])
@pytest.mark.parametrize("name", TAKEN)
def test_an_odd_column_that_is_taken_is_read_back(wh, tmp_path, name, way):
    column = TAKEN[name]
    rows, wanted = _rows(column), column.to_pylist() if "day" not in name else None
    _create(wh, rows)
    way(wh, rows, tmp_path)
    wh.put_table("t", pa.table({"v": column}))
    wh.slide("s", to=NOON + dt.timedelta(minutes=1))
    if wanted is not None:
        assert wh.scan("s").read_all()["v"].to_pylist() == wanted
    truth = duckdb.sql("SELECT v, v::VARCHAR FROM rows").fetchall()
    shown = [(None if v is None else text, text) for v, text in truth] if "day" in name else truth
    for relation in ("s", "t"):
        answer = wh.sql(f"SELECT v, v::VARCHAR FROM {relation}").fetchall()
        assert [row[1] for row in answer] == [row[1] for row in shown]
        if wanted is not None:
            assert answer == truth
        assert wh.sql(f"SELECT count(*), count(v) FROM {relation}").fetchall() == [
            (len(column), len(column) - column.null_count)
        ]


@pytest.mark.parametrize("nested", [False, True])
def test_a_duration_finer_than_sql_counts_is_kept_and_never_cut(wh, nested):
    column = _numbers(pa.duration("ns"), 1001)
    column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column) if nested else column
    rows = _rows(column)
    _create(wh, rows)
    wh.append("s", rows)
    wh.put_table("t", rows)
    wh.slide("s", to=NOON + dt.timedelta(minutes=1))
    assert wh.scan("s").read_all()["v"].combine_chunks().equals(column)
    for relation in ("s", "t"):
        with pytest.raises(windrow.QueryError, match="finer than a microsecond"):
            wh.sql(f"SELECT v FROM {relation}").fetchall()


def test_types_that_only_metadata_names_are_refused(wh):
    for sql in ("SELECT 1::VARIANT AS v", "SELECT 'POINT (1 2)'::GEOMETRY AS v"):
        rows = duckdb.sql(f"{sql}, TIMESTAMPTZ '2026-01-01 12:00:00+00' AS ts").to_arrow_table()
        with pytest.raises(windrow.DefinitionError, match="cast it to text"):
            wh.create_stream("s", rows.schema, time="ts", slide="1 minute", lifetime="1 hour")
        with pytest.raises(windrow.DefinitionError, match="cast it to text"):
            wh.put_table("t", rows)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_event_times_at_the_limits_are_absurd(wh, unit):
    """A row of the year -292 million is no row of 1970."""
    kind = pa.timestamp(unit, "UTC")
    wh.create_stream("s", pa.schema([("ts", kind), ("k", pa.int64())]), time="ts", slide="1 minute", lifetime="1 hour")
    limits = [-(1 << 63), -(1 << 63) + 1, (1 << 63) - 1]
    rows = pa.table({"ts": pa.array([*limits, 0], pa.int64()).view(kind), "k": [1, 2, 3, 4]})
    if unit == "s":  # files count in milliseconds, so not even a rejected row could be kept
        with pytest.raises(windrow.SchemaError, match="'ts' of type"):
            wh.append("s", rows)
        return
    wh.append("s", rows)
    wh.slide("s", to=dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC))
    assert wh.sql("SELECT k FROM s").fetchall() == [(4,)]
    rejected = wh.rejected("s").select(["k", "_reason"]).to_pylist()
    reasons = {row["k"]: row["_reason"] for row in rejected}
    assert reasons.keys() == {1, 2, 3}
    assert reasons[1] == reasons[2] == "the event time is absurd"


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ("a decimal of 39 digits", "DuckDB itself failed"),
        ("a decimal in a list", "DuckDB itself failed"),
        ("text", "is not valid UTF8"),  # which DuckDB's reader of Parquet sees before any function fails by it
    ],
)
def test_a_statement_that_ends_duckdb_ends_no_other_statement(tmp_path, monkeypatch, refused, message):
    """As with rows of older warehouses, which nobody checked."""
    for module in (arrow_input, reference_tables, small_append):
        monkeypatch.setattr(module, "check_values", lambda *_, **__: None)
    with windrow.open(tmp_path / "w") as wh, windrow.open(tmp_path / "w") as other:
        rows = _rows(REFUSED[refused])
        _create(wh, rows)
        wh.append("s", rows)
        wh.slide("s", to=NOON + dt.timedelta(minutes=1))
        wh.put_table("t", pa.table({"k": [1, 2]}))
        unread = [each.sql("SELECT k FROM t WHERE k > 0") for each in (wh, other)]
        unread[0].fetchall()
        for _ in range(3):
            with pytest.raises(windrow.QueryError, match=message):
                wh.sql("SELECT upper(v::VARCHAR) FROM s").fetchall()
            for each in (wh, other):
                assert each.sql("SELECT count(*) FROM s").fetchall() == [(rows.num_rows,)]
                assert each.sql("SELECT sum(k) FROM t").fetchall() == [(3,)]
