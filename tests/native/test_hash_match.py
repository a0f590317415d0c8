"""The kernels that find rows with equal keys must find every pair, once, go on where they were stopped, and gather right."""

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native.hash_match import Matcher, can_gather, gather

NUMBERS = st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1, 1 << 40])
KEYS = st.lists(NUMBERS, max_size=30)
CHUNKS = st.lists(st.lists(st.none() | NUMBERS, max_size=12), max_size=5)


def whole(values: list[int | None], kind: str = "int64") -> pa.Array:
    """With something in front and behind, as slices of a segment have."""
    return pa.array([None, *values, 5], kind).slice(1, len(values))


@given(KEYS, CHUNKS, st.integers(1, 5))
def test_every_pair_is_found_once(keys: list[int], chunks: list[list[int | None]], most: int) -> None:
    matcher, actual, start = Matcher([np.array(keys, np.int64)]), [], 0
    assert matcher.distinct == len(set(keys))
    while start < len(chunks) << 32:
        places, partners, stop = matcher.match([[whole(chunk) for chunk in chunks]], start, most)
        assert start < stop <= len(chunks) << 32
        assert len(places) < most + len(keys)
        actual += list(zip(places.tolist(), partners.tolist(), strict=True))
        start = stop
    assert actual == [
        ((number << 32) + row, values_of_chunk)
        for number, chunk in enumerate(chunks)
        for row, value in enumerate(chunk)
        for values_of_chunk, key in enumerate(keys)
        if key == value
    ]


PAIR = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.integers(-2, 2))


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=20), st.lists(st.lists(PAIR, max_size=9)))
def test_all_numbers_of_a_key_must_be_equal(keys: list[tuple[int, int]], chunks: list[list[Any]]) -> None:
    matcher = Matcher([np.array([key[index] for key in keys], np.int64) for index in (0, 1)])
    assert matcher.distinct == len(set(keys))
    kinds = "int8", "int32"
    columns = [[whole([row[index] for row in chunk], kinds[index]) for chunk in chunks] for index in (0, 1)]
    places, partners, _ = matcher.match(columns)
    assert list(zip(places.tolist(), partners.tolist(), strict=True)) == [
        ((number << 32) + row, values_of_chunk)
        for number, chunk in enumerate(chunks)
        for row, value in enumerate(chunk)
        for values_of_chunk, key in enumerate(keys)
        if key == value
    ]


def test_many_values_go_through_in_blocks() -> None:
    chance = np.random.default_rng(5)
    keys, values = chance.integers(0, 5000, 700), chance.integers(0, 5000, 20_000)
    places, partners, stop = Matcher([keys]).match([[pa.array(values)]])
    assert stop == 1 << 32
    assert np.array_equal(values[places], keys[partners])
    assert len(places) == sum((keys == value).sum() for value in values)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_every_kind_of_whole_number(kind: str) -> None:
    ends = [np.iinfo(kind).min, 7, np.iinfo(kind).max]
    places, partners, _ = Matcher([np.array(ends, kind)]).match([[whole([7, 8, *ends], kind)]])
    assert (places.tolist(), partners.tolist()) == ([0, 2, 3, 4], [1, 0, 1, 2])
    strided = np.array([7, 0, ends[2], 0], kind)[::2]
    assert Matcher([strided]).match([[whole([ends[2], 7], kind)]])[1].tolist() == [1, 0]


def test_what_cannot_be_matched_is_refused() -> None:
    matcher, two = Matcher([np.array([1])]), Matcher([np.array([1]), np.array([2])])
    for wrong in (np.array([1.0]), np.array([1], np.uint64), np.array([[1]])):
        with pytest.raises(TypeError, match="whole numbers"):
            Matcher([wrong])
    for kind in ("double", "uint64", "string"):
        with pytest.raises(TypeError, match="whole numbers"):
            matcher.match([[pa.array([], kind)]])
    for start in (2, -1, 1 << 33, (1 << 32) + 1):
        with pytest.raises(IndexError, match="in none of 1 chunks"):
            matcher.match([[pa.array([1])]], start)
    with pytest.raises(ValueError, match="at least one"):
        matcher.match([[pa.array([1])]], 0, 0)
    with pytest.raises(ValueError, match="same length"):
        Matcher([np.array([1]), np.array([1, 2])])
    with pytest.raises(ValueError, match="same length"):
        Matcher([])
    for columns in ([], [[]], [[pa.array([1])], []]):
        with pytest.raises(ValueError, match="same chunks"):
            two.match(columns)
    with pytest.raises(ValueError, match="equally long"):
        two.match([[pa.array([1])], [pa.array([1, 2])]])


SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, -2, None, 3],
    pa.uint16(): [1, 65535, None],
    pa.float32(): [0.5, None, -1.5],
    pa.int64(): [1 << 60, None, -5],
    pa.date32(): [dt.date(2026, 1, 1), None],
    pa.timestamp("ns", "UTC"): [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None],
    pa.decimal128(20, 2): [decimal.Decimal("12.50"), None, decimal.Decimal("-0.01")],
    pa.string(): ["", "long enough for no one's inline form", None, "ö"],
    pa.binary(): [b"\0", None, b"xyz"],
    pa.dictionary(pa.int32(), pa.string()): ["here", None, "there", "here"],
}


@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize("kind", SAMPLES, ids=str)
def test_what_is_gathered_is_what_stands_there(kind: pa.DataType, nulls: bool) -> None:
    """Chunks of different lengths, one of them without rows, some slices; places in any order and again."""
    values = [value for value in SAMPLES[kind] if nulls or value is not None]
    lists = [values, [], values[::-1] * 20, values[:1]]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    chunks = [
        pa.array([values[0], *values_of_chunk, values[0]], plain).cast(kind).slice(1, len(values_of_chunk))
        for values_of_chunk in lists
    ]
    every = [(index << 32) + row for index, values_of_chunk in enumerate(lists) for row in range(len(values_of_chunk))]
    chance = np.random.default_rng(3)
    places = chance.choice(np.array(every), 200)
    actual = gather(chunks, places)
    actual.validate(full=True)
    expected = pa.array([lists[place >> 32][place & 0xFFFFFFFF] for place in places.tolist()], plain)
    assert actual.equals(expected)
    assert actual.null_count == expected.null_count
    assert gather(chunks, places[:0]).equals(expected[:0])


def test_gathering_checks_its_places_and_types() -> None:
    chunks = [pa.array([1, 2]), pa.array([3])]
    for wrong in (2, -1, (1 << 32) + 1, 2 << 32, -(1 << 63)):
        with pytest.raises(IndexError, match="outside"):
            gather(chunks, np.array([0, wrong]))
    for odd in ([], [pa.array([1]), pa.array([1.0])], [pa.array([True])], [pa.array([[1]])]):
        with pytest.raises(TypeError, match="one type"):
            gather(odd, np.array([0]))
    assert not can_gather(pa.large_string())
    assert not can_gather(pa.dictionary(pa.int32(), pa.int64()))
    unnamed = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([None], pa.string()))
    with pytest.raises(ValueError, match="a null stands"):
        gather([unnamed], np.array([0]))


def test_gathering_checks_what_texts_say_of_themselves() -> None:
    offsets = np.array([0, 2, 9, 4], np.int32)
    astray = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcd")])
    assert gather([astray], np.array([0])).to_pylist() == ["ab"]
    for row in (1, 2):
        with pytest.raises(ValueError, match="outside of the data"):
            gather([astray], np.array([row]))
    for index in (7, -1):
        named = pa.DictionaryArray.from_arrays(pa.array([index], pa.int32()), pa.array(["a"]), safe=False)
        with pytest.raises(ValueError, match="outside of the data"):
            gather([named], np.array([0]))
