"""The kernel that finds rows with equal keys must find every pair, once, and go on where it was stopped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native.matches import Matcher

KEYS = st.lists(st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1, 1 << 40]), max_size=30)


@given(KEYS, KEYS, st.integers(1, 5))
def test_every_pair_is_found_once(keys: list[int], values: list[int], most: int) -> None:
    matcher, found, start = Matcher(np.array(keys, np.int64)), [], 0
    assert matcher.distinct == len(set(keys))
    while start < len(values):
        places, partners, stop = matcher.match(np.array(values, np.int64), start, most)
        assert start < stop <= len(values)
        assert len(places) < most + len(keys)
        found += list(zip(places.tolist(), partners.tolist(), strict=True))
        start = stop
    assert found == [(at, own) for at, value in enumerate(values) for own, key in enumerate(keys) if key == value]


def test_many_values_go_through_in_blocks() -> None:
    chance = np.random.default_rng(5)
    keys, values = chance.integers(0, 5000, 700), chance.integers(0, 5000, 20_000)
    places, partners, stop = Matcher(keys).match(values)
    assert stop == len(values)
    assert np.array_equal(values[places], keys[partners])
    assert len(places) == sum((keys == value).sum() for value in values)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_every_kind_of_whole_number(kind: str) -> None:
    ends = [np.iinfo(kind).min, 7, np.iinfo(kind).max]
    places, partners, _ = Matcher(np.array(ends, kind)).match(np.array([7, 8, *ends], kind)[::1])
    assert (places.tolist(), partners.tolist()) == ([0, 2, 3, 4], [1, 0, 1, 2])
    strided = np.array([7, 0, ends[2], 0], kind)[::2]
    assert Matcher(strided).match(strided)[0].tolist() == [0, 1]


def test_what_cannot_be_matched_is_refused() -> None:
    matcher = Matcher(np.array([1]))
    for wrong in (np.array([1.0]), np.array([1], np.uint64), np.array([[1]])):
        with pytest.raises(TypeError, match="whole numbers"):
            matcher.match(wrong)
        with pytest.raises(TypeError, match="whole numbers"):
            Matcher(wrong)
    with pytest.raises(IndexError, match="2 of 1 values"):
        matcher.match(np.array([1]), 2)
    with pytest.raises(ValueError, match="at least one"):
        matcher.match(np.array([1]), 0, 0)
