"""Encoded keys must compare as bytes the way their values compare, for every type and for any mix of nulls.

The oracle is Python's own order of the values, with NaN greatest and nulls where they were asked to be.
"""

import datetime as dt
import decimal
import itertools
import math
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native import key_encoding

DECIMAL = st.integers(-(10**9) + 1, 10**9 - 1).map(lambda unscaled: decimal.Decimal(unscaled).scaleb(-3))
WIDE_DECIMAL = st.integers(-(10**70), 10**70).map(decimal.Decimal)
TEXT = st.text(alphabet=st.sampled_from("\x00\x01abé\uffff😀"), max_size=6)
BINARY = st.lists(st.sampled_from([0, 1, 2, 254, 255]), max_size=6).map(bytes)
INSTANT = st.datetimes()


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    """Integers of a width, often at its ends."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.sampled_from([low, low + 1, 0, 1, high - 1, high]), st.integers(low, high))


def seconds(bound: int) -> st.SearchStrategy[int]:
    """Whole numbers for time types that Python cannot hold in full."""
    return st.integers(0, bound - 1)


TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *[(getattr(pa, f"int{bits}")(), integers(bits, signed=True)) for bits in (8, 16, 32, 64)],
    *[(getattr(pa, f"uint{bits}")(), integers(bits, signed=False)) for bits in (8, 16, 32, 64)],
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal32(9, 3), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda u: decimal.Decimal(u).scaleb(-3))),
    (pa.decimal64(18, 3), DECIMAL),
    (pa.decimal128(38, 3), DECIMAL),
    (pa.decimal256(76, 0), WIDE_DECIMAL),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time32("s"), seconds(86_400)),
    (pa.time32("ms"), seconds(86_400_000)),
    (pa.time64("us"), seconds(86_400_000_000)),
    (pa.time64("ns"), seconds(86_400_000_000_000)),
    (pa.timestamp("s"), integers(40, signed=True)),
    (pa.timestamp("us"), INSTANT),
    (pa.timestamp("us", "Europe/Zurich"), INSTANT.map(lambda t: t.replace(tzinfo=dt.UTC))),
    (pa.timestamp("ns"), integers(64, signed=True)),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-99999), dt.timedelta(99999))),
    (pa.duration("ns"), integers(64, signed=True)),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.binary(), BINARY),
    (pa.large_binary(), BINARY),
    (pa.binary_view(), BINARY),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.dictionary(pa.int8(), pa.string()), TEXT),
    (pa.dictionary(pa.int16(), pa.int64()), integers(64, signed=True)),
    (pa.null(), st.none()),
]


def rank(value: Any, *, nulls_last: bool) -> Any:
    """Sort key of a value as the oracle sees it: nulls at an end, NaN greatest, text by its bytes."""
    if value is None:
        return (1 if nulls_last else -1,)
    if isinstance(value, float | np.floating):
        return (0, math.isnan(value), 0.0 if math.isnan(value) else float(value))
    return (0, value.encode() if isinstance(value, str) else value)


def assert_same_order(ranks: list[Any], encoded: list[bytes]) -> None:
    """Bytes are equal where values are equal, and in order where values are in order."""
    order = sorted(range(len(ranks)), key=lambda row: ranks[row])
    for before, after in itertools.pairwise(order):
        if ranks[before] == ranks[after]:
            assert encoded[before] == encoded[after]
        else:
            assert encoded[before] < encoded[after]


@pytest.mark.parametrize(("type", "values"), TYPES, ids=[str(row[0]) for row in TYPES])
@given(data=st.data(), nulls_last=st.booleans())
def test_byte_order_is_value_order(
    type: pa.DataType, values: st.SearchStrategy[Any], nulls_last: bool, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.one_of(st.none(), values), max_size=12))
    encoded = key_encoding.encode([pa.array(rows, type)], nulls_last=nulls_last)
    assert encoded.null_count == 0
    assert_same_order([rank(row, nulls_last=nulls_last) for row in rows], encoded.to_pylist())


@given(data=st.data(), nulls_last=st.booleans())
def test_a_composite_is_ordered_by_its_first_column_then_the_next(nulls_last: bool, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    count = data.draw(st.integers(0, 8))
    columns = [
        data.draw(st.lists(st.one_of(st.none(), values), min_size=count, max_size=count)) for _, values in chosen
    ]
    encoded = key_encoding.encode(
        [pa.array(rows, case[0]) for rows, case in zip(columns, chosen, strict=True)], nulls_last=nulls_last
    )
    ranks = [tuple(rank(value, nulls_last=nulls_last) for value in row) for row in zip(*columns, strict=True)]
    assert_same_order(ranks, encoded.to_pylist())


@given(data=st.data())
def test_a_composite_is_the_concatenation_of_its_columns(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=3))
    columns = [
        pa.array(data.draw(st.lists(st.one_of(st.none(), values), min_size=4, max_size=4)), kind)
        for kind, values in chosen
    ]
    parts = [key_encoding.encode([column]).to_pylist() for column in columns]
    assert key_encoding.encode(columns).to_pylist() == [b"".join(row) for row in zip(*parts, strict=True)]


@pytest.mark.parametrize(("type", "values"), TYPES, ids=[str(row[0]) for row in TYPES])
@given(data=st.data())
def test_slices_and_chunks_encode_like_the_whole(
    type: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    rows = pa.array(data.draw(st.lists(st.one_of(st.none(), values), min_size=20, max_size=20)), type)
    whole = key_encoding.encode([rows]).to_pylist()
    start, size = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    assert key_encoding.encode([rows.slice(start, size)]).to_pylist() == whole[start : start + size]
    assert key_encoding.encode([pa.chunked_array([rows[:start], rows[start:]])]).to_pylist() == whole
    assert (
        key_encoding.encode([rows.slice(start), rows[: 20 - start]]).slice(1).to_pylist()
        == [a + b for a, b in zip(whole[start:], whole, strict=False)][1:]
    )


def test_zeros_and_nans_have_one_form_each() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    assert len(set(key_encoding.encode([pa.array(bits)]).to_pylist())) == 1
    assert len(set(key_encoding.encode([pa.array([0.0, -0.0])]).to_pylist())) == 1
    infinity, nan = key_encoding.encode([pa.array([math.inf, math.nan])]).to_pylist()
    assert infinity < nan


def test_unsigned_values_above_the_signed_range_are_greater() -> None:
    encoded = key_encoding.encode([pa.array([0, 2**63 - 1, 2**63, 2**64 - 1], pa.uint64())]).to_pylist()
    assert encoded == sorted(encoded)


def test_an_embedded_zero_is_not_an_end() -> None:
    values = [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x01", b"a", b"a\x00", b"a\x00b", b"a\x01", b"ab"]
    encoded = key_encoding.encode([pa.array(values)]).to_pylist()
    assert encoded == sorted(encoded)
    assert encoded[1] == b"\x01\x00\xff\x00\x00"


@pytest.mark.parametrize(
    ("columns", "type"),
    [
        ([pa.array([1])], pa.binary(9)),
        ([pa.array([1], pa.int8()), pa.array([True])], pa.binary(11)),
        ([pa.array([None])], pa.binary(1)),
        ([pa.array(["a"])], pa.large_binary()),
        ([pa.array([1]), pa.array(["a"])], pa.large_binary()),
        ([pa.array([], pa.int64())], pa.binary(9)),
        ([pa.chunked_array([], pa.string())], pa.large_binary()),
    ],
    ids=["integer", "integer and boolean", "null", "string", "integer and string", "empty", "no chunks"],
)
def test_width_is_fixed_where_all_columns_are(columns: list[pa.Array], type: pa.DataType) -> None:
    encoded = key_encoding.encode(columns)
    assert encoded.type == type
    assert len(encoded) == len(columns[0])
    encoded.validate(full=True)


def test_an_extension_is_encoded_as_its_storage() -> None:
    ids = [uuid.UUID(int=value) for value in (0, 1, 2**127, 2**128 - 1)]
    encoded = key_encoding.encode([pa.array([value.bytes for value in ids], pa.uuid())]).to_pylist()
    assert encoded == [b"\x01" + value.bytes for value in ids]


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_a_type_without_order_is_refused_by_name(type: pa.DataType) -> None:
    assert not key_encoding.is_supported(type)
    with pytest.raises(TypeError, match=str(type)[:4]):
        key_encoding.encode([pa.array([None], type)])


@pytest.mark.parametrize("type", [row[0] for row in TYPES], ids=str)
def test_every_listed_type_says_that_it_is_supported(type: pa.DataType) -> None:
    assert key_encoding.is_supported(type)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: key_encoding.encode([]), ValueError),
        (lambda: key_encoding.encode([pa.array([1]), pa.array([1, 2])]), ValueError),
        (lambda: key_encoding.encode([[1, 2]]), TypeError),
        (lambda: key_encoding.successor(None), TypeError),
    ],
    ids=["no column", "columns of different length", "a list", "no prefix"],
)
def test_misuse_is_an_error(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@given(prefix=BINARY, tail=BINARY, other=BINARY)
def test_the_successor_is_the_least_upper_bound_of_a_prefix(prefix: bytes, tail: bytes, other: bytes) -> None:
    bound = key_encoding.successor(prefix)
    if bound is None:
        assert prefix.strip(b"\xff") == b""
        return
    assert prefix + tail < bound
    assert other < bound or not other.startswith(prefix)
    # Whatever lies below the bound and above the prefix starts with the prefix.
    assert not prefix <= other < bound or other.startswith(prefix)
