"""Bit packing gives the numbers back, and refuses bytes that are not so many numbers."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native import bit_packing

LEAST, MOST = -(1 << 63), (1 << 63) - 1
NUMBERS = st.one_of(
    st.lists(st.integers(LEAST, MOST), max_size=300),
    st.lists(st.integers(-3, 3), max_size=300),
    st.lists(st.sampled_from([LEAST, -1, 0, 1, MOST, 1 << 55, 1 << 56, 1 << 57]), max_size=300),
)


@given(numbers=NUMBERS, differences=st.booleans())
def test_numbers_come_back(numbers, differences):
    packed = bit_packing.pack(np.array(numbers, np.int64), differences=differences)
    assert bit_packing.unpack(packed, len(numbers), differences=differences).tolist() == numbers


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 256])
def test_blocks_end_where_numbers_end(count):
    numbers = np.arange(count) * 7 - 5
    packed = bit_packing.pack(numbers, differences=False)
    assert bit_packing.unpack(packed, count, differences=False).tolist() == numbers.tolist()
    for wrong in (count + 128, -1):
        with pytest.raises(ValueError, match="are not"):
            bit_packing.unpack(packed, wrong, differences=False)
    with pytest.raises(ValueError, match="are not"):
        bit_packing.unpack(packed + b"\0", count, differences=False)


@given(packed=st.binary(max_size=200), count=st.integers(0, 600), differences=st.booleans())
def test_any_bytes_are_numbers_or_refused(packed, count, differences):
    with contextlib.suppress(ValueError):
        assert len(bit_packing.unpack(packed, count, differences=differences)) == count


def test_small_differences_take_few_bits():
    numbers = np.cumsum(np.random.default_rng(1).integers(0, 8, 10_000))
    assert len(bit_packing.pack(numbers, differences=True)) < 10_000 * 3.5 / 8
    assert len(bit_packing.pack(np.ones(10_000, np.int64), differences=False)) < 200
