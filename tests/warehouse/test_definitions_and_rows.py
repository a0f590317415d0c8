"""Declaring streams and giving them rows: what is wrong is said, what is right comes back exactly as it went in."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import windrow
from oracle import SECOND
from shapes import BASE, DELTA, LAYOUTS, US, when

SCHEMA = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("v", pa.list_(pa.int8())), ("text", pa.string())])
GOOD: dict[str, Any] = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "16 minutes"}


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as warehouse:
        yield warehouse


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "time is not a column": ({"time": "when"}, "time column 'when' is not in the schema; it has ts, exp"),
    "time is no timestamp": ({"time": "k"}, "time column 'k' is int64; it must be a timestamp"),
    "key is not a column": ({"key": "key"}, "key column 'key' is not in the schema"),
    "one of the keys is not a column": ({"key": ["k", "z"]}, "key column 'z'"),
    "key named twice": ({"key": ["k", "k"]}, "twice"),
    "key has no order": ({"key": "v"}, "key column 'v'.*has no order"),
    "slide is no duration": ({"slide": "soon"}, "slide 'soon' is not a duration; write it like '10 minutes'"),
    "slide has a strange unit": ({"slide": "3 fortnights"}, "not a duration"),
    "slide is zero": ({"slide": "0 seconds"}, "slide '0 seconds' must be longer than zero"),
    "slide is negative": ({"slide": dt.timedelta(seconds=-1)}, "longer than zero"),
    "slide is a number": ({"slide": 60}, "slide must be a string like '10 minutes' or a timedelta, not int"),
    "slide is endless": ({"slide": "99999999999 weeks", "lifetime": None}, "longer than can be counted"),
    "lifetime shorter than the slide": (
        {"lifetime": "59 seconds"},
        "lifetime 59 seconds is shorter than the slide 1 minute",
    ),
    "max_lifetime shorter than the slide": (
        {"lifetime": None, "expires": "exp", "max_lifetime": "1 second"},
        "shorter than the slide",
    ),
    "both kinds of lifetime": ({"expires": "exp", "max_lifetime": "1 hour"}, "either lifetime .* or expires"),
    "expires without max_lifetime": ({"lifetime": None, "expires": "exp"}, "needs max_lifetime"),
    "max_lifetime without expires": ({"lifetime": None, "max_lifetime": "1 hour"}, "goes with expires"),
    "expires is not a column": ({"lifetime": None, "expires": "x", "max_lifetime": "1 hour"}, "expires column 'x'"),
    "expires is no timestamp": ({"lifetime": None, "expires": "k", "max_lifetime": "1 hour"}, "'k' is int64"),
    "expires is the time": ({"lifetime": None, "expires": "ts", "max_lifetime": "1 hour"}, "same column 'ts'"),
    "sources is a string": ({"sources": "abc"}, "sources must be a list of names"),
    "source named twice": ({"sources": ["a", "a"]}, "named twice"),
    "source without a name": ({"sources": [""]}, "source '' is not allowed"),
    "source with a control character": ({"sources": ["a\nb"]}, "control characters"),
    "slack is no duration": ({"slack": "some"}, "slack 'some'"),
    "max_skew is no duration": ({"max_skew": "x"}, "max_skew 'x'"),
    "max_ahead is no duration": ({"max_ahead": 5}, "max_ahead must be"),
    "origin is no time": ({"origin": "yesterday"}, "origin 'yesterday' is not a time"),
    "failure policy": (
        {"on_source_failure": "ignore"},
        "on_source_failure 'ignore' is unknown; choose block or exclude",
    ),
    "index": ({"index": "best"}, "index must be 'auto' or windrow.Index"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_definition_that_cannot_work_says_what_is_wrong_and_creates_nothing(wh: windrow.Warehouse, case: str) -> None:
    change, words = WRONG[case]
    with pytest.raises(windrow.DefinitionError, match=words) as error:
        wh.create_stream("s", SCHEMA, **(GOOD | change))
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)
    assert wh.streams() == []
    assert not (wh.path / "streams" / "s").exists()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([]), "no columns|is not in the schema"),
        (pa.schema([("ts", US), ("ts", pa.int64())]), "'ts' occurs twice"),
        (pa.schema([("ts", US), ("TS", pa.int64())]), "capitals"),
        (pa.schema([("ts", US), ("_seq", pa.int64())]), "'_seq' is reserved"),
        (pa.schema([("ts", US), ("", pa.int64())]), "reserved or empty"),
        (
            pa.schema([("ts", US), ("x", pa.month_day_nano_interval())]),
            "'x' of type month_day_nano_interval cannot be stored",
        ),
        (pa.schema([("ts", US), ("x", pa.string_view())]), "'x' of type string_view cannot be stored"),
        (pa.schema([("ts", US), ("x", pa.list_(pa.binary_view()))]), "'x' of type list.* cannot be stored"),
        ([("ts", US)], "must be a pyarrow.Schema, not list"),
    ],
)
def test_a_schema_that_cannot_be_stored_says_which_column(wh: windrow.Warehouse, schema: Any, words: str) -> None:
    with pytest.raises(windrow.DefinitionError, match=words):
        wh.create_stream("s", schema, time="ts", slide="1 minute", lifetime="1 hour")
    assert wh.streams() == []


BAD_NAMES = [
    "..", ".", "", "a/b", "../x", "/etc/passwd", "a\\b", "a\x00b", "a b", "é", "1a", "-a", "a" * 64, "CON", "nul",
    "com1", "~", "a.b", "a\n", "%2e%2e", "windrow", "Window", "a;b", "'a'", None, 5, b"a", "\u202ea", "ａ",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_can_never_leave_the_folder(wh: windrow.Warehouse, name: Any) -> None:
    before = sorted(str(p) for p in wh.path.parent.rglob("*") if "catalog" not in p.parts)
    with pytest.raises(windrow.InvalidNameError):
        wh.create_stream(name, SCHEMA, **GOOD)
    assert sorted(str(p) for p in wh.path.parent.rglob("*") if "catalog" not in p.parts) == before


def test_good_names_are_taken(wh: windrow.Warehouse) -> None:
    names = ["a", "A1", "_x", "a-b_c", "x" * 63]
    for name in names:
        wh.create_stream(name, SCHEMA, **GOOD)
    assert wh.streams() == sorted(names)
    with pytest.raises(windrow.StreamExistsError, match="'a' exists already"):
        wh.create_stream("a", SCHEMA, **GOOD)
    with pytest.raises(windrow.StreamExistsError, match="capitals"):
        wh.create_stream("a1", SCHEMA, **GOOD)


def test_a_stream_that_is_not_there_is_named_with_those_that_are(wh: windrow.Warehouse) -> None:
    calls = [
        lambda: wh.append("nosuch", pa.table({})),
        lambda: wh.slide("nosuch"),
        lambda: wh.scan("nosuch"),
        lambda: wh.probe("nosuch", 1),
        lambda: wh.drop_stream("nosuch"),
        lambda: wh.rejected("nosuch"),
        lambda: wh.replay("nosuch"),
        lambda: wh.now("nosuch"),
        lambda: wh.heartbeat("nosuch", up_to="2026-01-01"),
        lambda: wh.stream("nosuch"),
        lambda: wh.discard_rejected("nosuch"),
    ]
    for call in calls:
        with pytest.raises(windrow.UnknownStreamError, match="no stream 'nosuch'; none was created yet"):
            call()
    wh.create_stream("known", SCHEMA, **GOOD)
    for call in calls:
        with pytest.raises(windrow.UnknownStreamError, match="known") as error:
            call()
        assert isinstance(error.value, KeyError)


def test_every_parameter_is_kept(wh: windrow.Warehouse) -> None:
    wh.create_stream(
        "leases", SCHEMA, time="ts", key=["k", "text"], slide="2 minutes", expires="exp", max_lifetime="1 hour",
        index=windrow.Index("round-robin", 4, 4, maintenance="adaptive"), sources=["a", "b"], slack="5 seconds",
        max_skew="30 seconds", max_ahead="5 minutes", origin="2026-01-01T00:00:30+01:00", on_source_failure="exclude",
    )  # fmt: skip
    wh.close()
    with windrow.open(wh.path) as again:
        kept = again.stream("leases").definition
    assert kept.schema == SCHEMA
    found = (kept.time, kept.key, kept.slide, kept.lifetime, kept.expires, kept.max_lifetime, kept.sources, kept.slack)
    assert found == ("ts", ("k", "text"), 120 * SECOND, None, "exp", 3600 * SECOND, ("a", "b"), 5 * SECOND)
    found = (kept.max_skew, kept.max_ahead, kept.origin, kept.on_source_failure)
    assert found == (30 * SECOND, 300 * SECOND, BASE - 3600 * SECOND + 30 * SECOND, "exclude")


@pytest.mark.parametrize(
    ("options", "index", "why"),
    [
        ({}, "append-only", "never expire"),
        ({"lifetime": "16 minutes"}, "wave-insertion", "arrive in order"),
        ({"lifetime": "16 minutes", "slack": "1 second"}, "round-robin", "late rows"),
        ({"expires": "exp", "max_lifetime": "1 hour"}, "round-robin", "own lifetimes"),
    ],
)
def test_the_automatic_index_follows_the_update_pattern_and_says_why(wh, options, index, why) -> None:
    wh.create_stream("s", SCHEMA, time="ts", slide="1 minute", **options)
    status = wh.stream("s")
    assert status.index.startswith(index)
    assert why in status.index_why


# -- types -----------------------------------------------------------------------------------------------------------

UTC = dt.UTC
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, 127, None]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1, None]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "uint8": (pa.uint8(), [0, 255, None]),
    "uint16": (pa.uint16(), [0, 65535, None]),
    "uint32": (pa.uint32(), [0, 2**32 - 1, None]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
    "float16": (pa.float16(), [np.float16(0.5), np.float16("inf"), None]),
    "float32": (pa.float32(), [1.5, float("-inf"), None]),
    "float64": (pa.float64(), [-0.0, 5e-324, None]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("-999.99"), Decimal("0.01"), None]),
    "decimal64": (pa.decimal64(15, 2), [Decimal("-9999999999999.99"), Decimal("0.01"), None]),
    "decimal128": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal(0), None]),
    "decimal256": (pa.decimal256(60, 3), [Decimal("9" * 57 + ".999"), Decimal("-0.001"), None]),
    "string": (pa.string(), ["", "ä\x00€😀", None]),
    "large_string": (pa.large_string(), ["", "x" * 1000, None]),
    "binary": (pa.binary(), [b"", b"\x00\xff", None]),
    "large_binary": (pa.large_binary(), [b"", b"\x00" * 700, None]),
    "fixed_binary": (pa.binary(4), [b"abcd", b"\x00\x00\x00\x00", None]),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "date64": (pa.date64(), [dt.date(1969, 12, 31), dt.date(2026, 11, 16), None]),
    "time32_s": (pa.time32("s"), [dt.time(0, 0, 0), dt.time(23, 59, 59), None]),
    "time32_ms": (pa.time32("ms"), [dt.time(0, 0, 0, 1000), dt.time(23, 59, 59, 999000), None]),
    "time64_us": (pa.time64("us"), [dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999999), None]),
    "time64_ns": (pa.time64("ns"), [1, 86_399_999_999_999, None]),
    "timestamp_s": (pa.timestamp("s"), [0, -1, None]),
    "timestamp_ms": (pa.timestamp("ms", "UTC"), [0, 1, None]),
    "timestamp_us": (pa.timestamp("us", "Europe/Berlin"), [0, -1, None]),
    "timestamp_ns": (pa.timestamp("ns", "+05:30"), [2**62, -(2**62), None]),
    "duration_s": (pa.duration("s"), [0, -(2**40), None]),
    "duration_ns": (pa.duration("ns"), [2**62, 1, None]),
    "null": (pa.null(), [None, None, None]),
    "list": (pa.list_(pa.int32()), [[], [1, None, 3], None]),
    "large_list": (pa.large_list(pa.string()), [[], ["a", None], None]),
    "fixed_list": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [None, 0.5], None]),
    "struct": (
        pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]),
        [{"x": 1, "y": ["a"]}, {"x": None, "y": None}, None],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], None]),
    "deep": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 1))))])),
        [[{"m": [("k", [Decimal("1.5"), None])]}], [], None],
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
    "dictionary_small": (pa.dictionary(pa.int8(), pa.large_string()), ["a", "b", None]),
    "dictionary_int": (pa.dictionary(pa.int16(), pa.int64()), [7, 8, None]),
    "dictionary_ordered": (pa.dictionary(pa.int32(), pa.string(), ordered=True), ["b", "a", None]),
    "dictionary_in_list": (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a", "b"], [None], None]),
    "dictionary_in_struct": (
        pa.struct([("d", pa.dictionary(pa.int32(), pa.string()))]),
        [{"d": "a"}, {"d": None}, None],
    ),
}


def column_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        plain = pa.array(values, kind.value_type).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            plain.indices.cast(kind.index_type), plain.dictionary, ordered=kind.ordered
        )
    return pa.array(values, kind)


@pytest.mark.parametrize("maintenance", ["norebuild", "rebuild"])
@pytest.mark.parametrize("name", VALUES)
def test_every_type_comes_back_exactly_as_it_went_in(wh: windrow.Warehouse, name: str, maintenance: str) -> None:
    """Through append, slide, (with rebuild) two merges, scan and probe; type, values, nulls and zones."""
    kind, values = VALUES[name]
    schema = pa.schema([("ts", US), ("k", pa.int64()), ("v", kind), ("n", pa.int64())])
    index = windrow.Index("round-robin", 1, 1, maintenance=maintenance)
    wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute", index=index)
    expected = []
    for turn in range(3):
        numbers = range(10 * turn, 10 * turn + len(values))
        table = pa.table(
            [
                pa.array([BASE + turn * DELTA + 1] * len(values), US),
                pa.array(numbers),
                column_of(kind, values),
                pa.array(numbers),
            ],
            schema=schema,
        )
        wh.append("s", table)
        wh.slide("s", to=when(BASE + (turn + 1) * DELTA))
        expected.append(table)
    found = wh.scan("s").read_all().sort_by("n")
    assert found.schema.equals(schema), found.schema
    want = pa.concat_tables(expected, promote_options="none")
    if pa.types.is_dictionary(kind):
        assert found.column("v").cast(kind.value_type).to_pylist() == want.column("v").cast(kind.value_type).to_pylist()
    else:
        assert found.column("v").to_pylist() == want.column("v").to_pylist()
    probed = wh.probe("s", keys=[0, 11, 22])
    assert probed.schema.equals(schema)
    assert [str(v) for v in probed.sort_by("n").column("v").to_pylist()] == [
        str(v) for v in want.take([0, 4, 8]).column("v").to_pylist()
    ]
    assert wh.check().ok


KEYABLE = [name for name, (kind, _) in VALUES.items() if name != "null" and not pa.types.is_nested(kind)]


@pytest.mark.parametrize("name", KEYABLE)
def test_every_ordered_type_can_be_the_search_key(wh: windrow.Warehouse, name: str) -> None:
    kind, values = VALUES[name]
    schema = pa.schema([("ts", US), ("v", kind), ("n", pa.int64())])
    wh.create_stream("s", schema, time="ts", key="v", slide="10 seconds", lifetime="1 minute")
    numbers = range(len(values))
    wh.append(
        "s",
        pa.table([pa.array([BASE + 1] * len(values), US), column_of(kind, values), pa.array(numbers)], schema=schema),
    )
    wh.slide("s", to=when(BASE + DELTA))
    for number, value in enumerate(values):
        if value is None:
            assert wh.probe("s", keys=[None]).column("n").to_pylist() == [number]
        else:
            assert wh.probe("s", value).column("n").to_pylist() == [number], value
    assert wh.probe("s", keys=values).num_rows == len(values)
    assert wh.check().ok


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_longer_than_lmdb_allows_are_no_problem(wh: windrow.Warehouse, layout: str) -> None:
    """511 bytes is LMDB's limit for its own keys; ours live inside blobs. Keys differ only at their very end."""
    schema = pa.schema([("ts", US), ("k", pa.string()), ("n", pa.int64())])
    wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute", index=LAYOUTS[layout])
    keys = ["x" * size + tail for size in (510, 511, 512, 5000, 70_000) for tail in ("", "a", "b")]
    for turn in range(3):
        stamps = pa.array([BASE + turn * DELTA + 1] * len(keys), US)
        wh.append("s", pa.table([stamps, pa.array(keys), pa.array(range(len(keys)))], schema=schema))
        wh.slide("s", to=when(BASE + (turn + 1) * DELTA))
    for number, key in enumerate(keys):
        assert wh.probe("s", key).column("n").to_pylist() == [number] * 3
    assert wh.probe("s", between=("x" * 5000, "x" * 5000 + "a")).num_rows == 3 * sum(
        "x" * 5000 <= k <= "x" * 5000 + "a" for k in keys
    )
    assert wh.check().ok


# -- inputs ----------------------------------------------------------------------------------------------------------

ROWS = pa.table(
    {"ts": pa.array([BASE + 1, BASE + 2, BASE + 3], US), "k": pa.array([3, 1, 2], pa.int64()), "text": ["a", None, "c"]}
)


def relation() -> duckdb.DuckDBPyRelation:
    return duckdb.connect().from_arrow(ROWS)


INPUTS = {
    "table": lambda: ROWS,
    "chunked table": lambda: pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)]),
    "record batch": lambda: ROWS.to_batches()[0],
    "list of batches": lambda: ROWS.to_batches(max_chunksize=1),
    "generator of batches": lambda: (batch for batch in ROWS.to_batches(max_chunksize=2)),
    "list of tables": lambda: [ROWS.slice(0, 2), ROWS.slice(2)],
    "reader": lambda: ROWS.to_reader(max_chunksize=1),
    "columns in another order": lambda: ROWS.select(["text", "ts", "k"]),
    "narrower integers": lambda: ROWS.set_column(1, "k", ROWS.column("k").cast(pa.int16())),
    "large strings": lambda: ROWS.set_column(2, "text", ROWS.column("text").cast(pa.large_string())),
    "string views": lambda: ROWS.set_column(2, "text", ROWS.column("text").cast(pa.string_view())),
    "dictionary": lambda: ROWS.set_column(2, "text", ROWS.column("text").dictionary_encode()),
    "other time unit": lambda: ROWS.set_column(0, "ts", ROWS.column("ts").cast(pa.timestamp("ns", "UTC"))),
    "pandas": ROWS.to_pandas,
    "polars": lambda: pl.from_arrow(ROWS),
    "polars lazily collected": lambda: pl.from_arrow(ROWS).lazy().collect(),
    "DuckDB relation": relation,
    "arrow stream": lambda: _Stream(ROWS),
}


class _Stream:
    """Anything with the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def declare(wh: windrow.Warehouse) -> None:
    wh.create_stream("s", ROWS.schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute")


@pytest.mark.parametrize("kind", INPUTS)
def test_rows_may_come_in_any_common_form(wh: windrow.Warehouse, kind: str) -> None:
    declare(wh)
    report = wh.append("s", INPUTS[kind](), batch_id="b")
    assert (report.rows, report.accepted, report.rejected) == (3, 3, {})
    wh.slide("s", to=when(BASE + DELTA))
    assert wh.scan("s").read_all().sort_by("ts").equals(ROWS)
    assert wh.append("s", ROWS, batch_id="b").duplicate, "the same rows in another form are the same batch"


def test_an_empty_table_is_a_batch_like_any_other(wh: windrow.Warehouse) -> None:
    declare(wh)
    assert wh.append("s", ROWS.schema.empty_table(), batch_id="b").rows == 0
    assert wh.append("s", ROWS.schema.empty_table(), batch_id="b").duplicate
    assert not wh.slide("s").moved
    assert wh.slide("s", to=when(BASE + DELTA)).inserted == 0
    assert wh.scan("s").read_all().num_rows == 0
    assert wh.probe("s", 1).num_rows == 0


def broken() -> Iterator[pa.RecordBatch]:
    yield ROWS.to_batches()[0]
    yield ROWS.rename_columns(["ts", "k", "other"]).to_batches()[0]


MISFITS: dict[str, tuple[Any, str]] = {
    "missing column": (lambda: ROWS.drop_columns(["text"]), "column 'text' .* is missing"),
    "unknown column": (lambda: ROWS.append_column("z", ROWS.column("k")), "column 'z' is not in the stream"),
    "wrong type": (lambda: ROWS.set_column(1, "k", ROWS.column("text")), "column 'k' is string, the stream has int64"),
    "two things at once": (
        lambda: ROWS.drop_columns(["k"]).append_column("z", ROWS.column("k")),
        "'z'.*'k'.*nothing was appended",
    ),
    "time without zone": (
        lambda: ROWS.set_column(0, "ts", ROWS.column("ts").cast(pa.timestamp("us"))),
        "'ts' is timestamp",
    ),
    "wider integers": (lambda: ROWS.set_column(1, "k", ROWS.column("k").cast(pa.float64())), "'k' is double"),
    "doubled column": (
        lambda: pa.table([*ROWS.columns, ROWS.column(1)], names=["ts", "k", "text", "k"]),
        "'k' occurs twice",
    ),
    "batches that differ": (broken, "different schemas"),
    "a string": (lambda: "ts,k,text", "cannot take rows from builtins.str"),
    "a dict": (lambda: {"ts": []}, "cannot take rows from"),
    "a list of dicts": (lambda: [{"ts": 1}], "cannot take rows from"),
    "nothing": (lambda: None, "cannot take rows from"),
    "an empty list": (list, "has no schema"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_rows_that_do_not_fit_are_refused_as_a_whole_and_change_nothing(wh: windrow.Warehouse, case: str) -> None:
    declare(wh)
    wh.append("s", ROWS, batch_id="first")
    before = (wh.stream("s").spooled_rows, sorted(p.name for p in wh.path.rglob("*.parquet")), wh.stream("s").sources)
    make, words = MISFITS[case]
    with pytest.raises(windrow.SchemaError, match=words) as error:
        wh.append("s", make(), batch_id="second")
    assert isinstance(error.value, ValueError)
    after = (wh.stream("s").spooled_rows, sorted(p.name for p in wh.path.rglob("*.parquet")), wh.stream("s").sources)
    assert after == before
    assert not wh.append("s", ROWS, batch_id="second").duplicate


def test_a_value_that_would_be_changed_by_the_streams_type_refuses_the_batch(wh: windrow.Warehouse) -> None:
    """Nanoseconds that do not fit microseconds are not rounded; nulls where none may be count in every batch."""
    schema = pa.schema([("ts", US), pa.field("k", pa.int64(), nullable=False)])
    wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute")
    fine = pa.table({"ts": pa.array([BASE * 1000], pa.timestamp("ns", "UTC")), "k": [1]})
    odd = pa.table({"ts": pa.array([BASE * 1000 + 1], pa.timestamp("ns", "UTC")), "k": [1]})
    with pytest.raises(windrow.SchemaError, match=r"'ts' cannot become .* without loss"):
        wh.append("s", [fine, odd])
    null = pa.table({"ts": pa.array([BASE], US), "k": pa.array([None], pa.int64())})
    with pytest.raises(windrow.SchemaError, match="'k' is not nullable but has 1 null"):
        wh.append("s", [pa.table({"ts": pa.array([BASE], US), "k": [1]}), null])
    assert wh.stream("s").spooled_rows == 0
    assert not list(wh.path.rglob("*.parquet"))
    wh.append("s", fine)
    wh.slide("s", to=when(BASE))
    assert wh.scan("s").read_all().schema.equals(schema)


@pytest.mark.parametrize("batch_id", ["", "a\x00b", "x" * 257, 5])
def test_a_batch_id_that_cannot_be_kept_is_refused(wh: windrow.Warehouse, batch_id: Any) -> None:
    declare(wh)
    with pytest.raises(windrow.InvalidNameError, match="batch id"):
        wh.append("s", ROWS, batch_id=batch_id)


def test_batch_ids_of_different_sources_are_different_batches(wh: windrow.Warehouse) -> None:
    declare(wh)
    assert not wh.append("s", ROWS, source="a", batch_id="1").duplicate
    assert not wh.append("s", ROWS, source="b", batch_id="1").duplicate
    assert not wh.append("s", ROWS, source="a1", batch_id="1").duplicate
    assert not wh.append("s", ROWS, source="a", batch_id="11").duplicate
    assert wh.append("s", ROWS, source="a", batch_id="1").duplicate
    assert wh.stream("s").spooled_rows == 12


def test_batch_ids_are_kept_at_least_as_long_as_rows_live(path: Path) -> None:
    clock = [BASE]
    with windrow.open(path, clock=lambda: clock[0]) as wh:
        declare(wh)
        wh.append("s", ROWS, batch_id="b")
        wh.slide("s", to=when(BASE + DELTA))
        clock[0] += 60 * SECOND
        wh.gc()
        assert wh.append("s", ROWS, batch_id="b").duplicate


@pytest.mark.parametrize("rejecting", [False, True])
def test_the_memory_of_an_append_follows_its_chunks_not_its_rows(path: Path, rejecting: bool) -> None:
    """A reader of 40 batches of 8 MB: what is alive at once must stay far below the 320 MB that pass through."""
    size, count = 8 << 20, 40
    noise = np.random.default_rng(1)
    schema = pa.schema([("ts", US), ("k", pa.int64()), ("payload", pa.binary(1024))])
    most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        rows = size // 1024
        for turn in range(count):
            payload = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(1024), rows, [None, pa.py_buffer(noise.bytes(rows * 1024))]
            )
            stamp = None if rejecting else BASE + turn
            most = max(most, pa.total_allocated_bytes())
            yield pa.record_batch(
                [pa.array([stamp] * rows, US), pa.array(range(rows), pa.int64()), payload], schema=schema
            )

    with windrow.open(path, clock=lambda: BASE) as wh:
        wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute")
        before = pa.total_allocated_bytes()
        report = wh.append("s", pa.RecordBatchReader.from_batches(schema, batches()))
        assert report.rows == count * size // 1024
        assert most - before < 200 << 20, f"{(most - before) >> 20} MB alive while 320 MB passed through"


def test_dropping_a_stream_removes_its_rows_and_a_new_one_of_the_name_knows_nothing_of_it(
    wh: windrow.Warehouse,
) -> None:
    declare(wh)
    wh.append("s", ROWS, batch_id="b")
    wh.slide("s", to=when(BASE + DELTA))
    wh.append("s", ROWS)
    with wh.snapshot() as snapshot:
        wh.drop_stream("s")
        assert wh.streams() == []
        wh.gc()
        assert snapshot.scan("s").read_all().sort_by("ts").equals(ROWS), "a reader that has pinned it goes on"
        wh.create_stream("s", ROWS.schema, time="ts", slide="1 minute", lifetime="1 hour")
        assert wh.now("s") is None
        assert wh.scan("s").read_all().num_rows == 0
        assert not wh.append("s", ROWS, batch_id="b").duplicate
    wh.gc()
    assert wh.check().ok
    assert len(list(wh.path.rglob("*.parquet"))) == 1


def test_unknown_columns_and_windows_that_cannot_be_answered_are_named(wh: windrow.Warehouse) -> None:
    declare(wh)
    for call in (lambda: wh.scan("s", columns=["z"]), lambda: wh.probe("s", 1, columns=["z"])):
        with pytest.raises(windrow.WindowError, match="no column 'z'; it has ts, k, text"):
            call()
    with pytest.raises(windrow.WindowError, match="keeps rows for 1 minute; a window of 61 seconds"):
        wh.scan("s", window="61 seconds")
    with pytest.raises(windrow.DefinitionError, match="window 'x'"):
        wh.scan("s", window="x")


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ({"key": "text"}, "'k' is of type int64, which 'text' is not"),
        ({"key": (1, 2)}, "int64, which"),
        ({"key": 2**70}, "int64"),
        ({"key": 1.5}, "int64, which 1.5 is not"),
        ({"keys": [1, 2.5]}, "int64, which 2.5 is not"),
        ({}, "one of key, keys or between"),
        ({"key": 1, "keys": [1]}, "one of key, keys or between"),
        ({"between": (1, 2, 3)}, "pair"),
    ],
)
def test_a_search_key_that_does_not_fit_is_refused(wh: windrow.Warehouse, probe: dict[str, Any], words: str) -> None:
    declare(wh)
    with pytest.raises(windrow.SearchKeyError, match=words):
        wh.probe("s", **probe)


def test_a_stream_without_key_refuses_probes(wh: windrow.Warehouse) -> None:
    wh.create_stream("s", ROWS.schema, time="ts", slide="1 minute", lifetime="1 hour")
    with pytest.raises(windrow.SearchKeyError, match="no search key"):
        wh.probe("s", 1)


def test_no_column_at_all_still_counts_the_rows(wh: windrow.Warehouse) -> None:
    declare(wh)
    wh.append("s", ROWS)
    wh.slide("s", to=when(BASE + DELTA))
    assert wh.scan("s", columns=[]).read_all().num_rows == 3
    assert sum(batch.num_rows for batch in wh.scan("s", columns=[], window="9.999998 seconds")) == 1
    assert wh.probe("s", 1, columns=[]).num_rows == 1


def test_a_closed_warehouse_says_so(wh: windrow.Warehouse) -> None:
    declare(wh)
    snapshot = wh.snapshot()
    snapshot.close()
    with pytest.raises(windrow.ClosedError, match="snapshot is closed"):
        snapshot.scan("s")
    wh.close()
    wh.close()
    for call in (
        lambda: wh.scan("s"),
        lambda: wh.append("s", ROWS),
        lambda: wh.slide("s"),
        wh.streams,
        wh.gc,
        wh.check,
        wh.status,
        wh.snapshot,
    ):
        with pytest.raises(windrow.ClosedError, match="closed; open it again"):
            call()


def test_pandas_with_its_own_index_gives_only_its_columns(wh: windrow.Warehouse) -> None:
    declare(wh)
    frame = ROWS.to_pandas().set_index(pd.Index([7, 8, 9], name="i"))
    assert wh.append("s", frame).accepted == 3
