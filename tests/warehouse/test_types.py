"""Values of every type come back exactly as they went in, and those that have an order can be searched for."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from oracle import SECOND
from sample_streams import BASE, DELTA, LAYOUTS, US, when


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as warehouse:
        yield warehouse


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
    "decimal256": (pa.decimal256(38, 3), [Decimal("9" * 35 + ".999"), Decimal("-0.001"), None]),
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
    actual = wh.scan("s").read_all().sort_by("n")
    assert actual.schema.equals(schema), actual.schema
    want = pa.concat_tables(expected, promote_options="none")
    if pa.types.is_dictionary(kind):
        assert (
            actual.column("v").cast(kind.value_type).to_pylist() == want.column("v").cast(kind.value_type).to_pylist()
        )
    else:
        assert actual.column("v").to_pylist() == want.column("v").to_pylist()
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
