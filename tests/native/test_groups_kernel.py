"""The kernels over numbered groups must give what a few lines of plain Python give, ties and empty groups included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native import groups

SMALL = st.integers(-4, 4)
PAIRS = st.lists(st.tuples(st.integers(0, 5), SMALL), max_size=30)


@given(PAIRS, st.sampled_from(["sum", "min", "max"]), st.sampled_from(["int8", "int16", "int32", "int64", "float64"]))
def test_merging_is_what_python_merges(pairs: list[tuple[int, int]], how: str, kind: str) -> None:
    totals = [{"sum": 0, "min": 100, "max": -100}[how]] * 6
    given_ = np.array(totals, "float64" if kind == "float64" else "int64")
    for number, value in pairs:
        totals[number] = {"sum": sum, "min": min, "max": max}[how]([totals[number], value])
    groups.merge(given_, np.array([n for n, _ in pairs], np.int32), np.array([v for _, v in pairs], kind), how)
    assert given_.tolist() == totals


@given(st.lists(st.tuples(SMALL, st.integers(0, 1)), max_size=30), st.integers(1, 8), st.booleans(), st.booleans())
def test_the_first_and_all_that_equal_the_last(
    pairs: list[tuple[int, int]], most: int, descending: bool, floats: bool
) -> None:
    there = sorted((value for value, count in pairs if count), reverse=descending)
    edge = there[min(most, len(there)) - 1] if there else 0
    right = [
        at for at, (value, count) in enumerate(pairs) if count and (value >= edge if descending else value <= edge)
    ]
    values = np.array([value for value, _ in pairs], "float64" if floats else "int64")
    found = groups.first(values, np.array([count for _, count in pairs], np.int64), most, descending=descending)
    assert sorted(found.tolist()) == right


def test_edges_are_checked() -> None:
    totals, numbers, values = np.zeros(2, np.int64), np.array([0, 1], np.int32), np.array([1, 2], np.int64)
    for wrong in (2, -1):
        with pytest.raises(IndexError, match="not below 2"):
            groups.merge(totals, np.array([0, wrong], np.int32), values, "sum")
    with pytest.raises(ValueError, match="2 numbers for 1 values"):
        groups.merge(totals, numbers, values[:1], "sum")
    with pytest.raises(TypeError, match="float64 values for int64 totals"):
        groups.merge(totals, numbers, values.astype(float), "sum")
    with pytest.raises(ValueError, match="2 values for 1 counts"):
        groups.first(totals, values[:1], 1, descending=True)
    with pytest.raises(ValueError, match="at least one"):
        groups.first(totals, values, 0, descending=True)
    assert totals.tolist() == [0, 0]


@given(st.lists(st.integers(0, 9), max_size=40), st.sampled_from([0, 13, 50]))
def test_numbers_are_given_in_the_order_of_keys(values: list[int], shift: int) -> None:
    """Looked up in a table where keys are short, hashed where they are long."""
    keys = [value << shift for value in values]
    numbers, distinct, counts = groups.number(np.array(keys, np.int64), 4 + shift)
    assert distinct.tolist() == list(dict.fromkeys(keys))
    assert [distinct[number] for number in numbers] == keys
    assert counts.tolist() == [keys.count(key) for key in distinct]


def test_keys_that_do_not_fit_are_refused() -> None:
    for keys, bits in (([-1], 62), ([4], 2), ([1], 0)):
        with pytest.raises(ValueError, match="does not fit"):
            groups.number(np.array(keys, np.int64), bits)
    with pytest.raises(ValueError, match="63 bits"):
        groups.number(np.array([1], np.int64), 63)


class Test_codes:
    @given(
        st.lists(st.tuples(st.integers(-128, 127), st.integers(-(2**31), 2**31 - 1), st.integers(-5, 9)), min_size=1)
    )
    def test_codes_are_the_values_side_by_side(self, rows):
        kinds = (np.int8, np.int32, np.int64)
        columns = [np.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
        leasts = [min(row[at] for row in rows) for at in range(3)]
        found = groups.codes(columns, leasts, [0, 8, 40])
        expected = [sum((value - least) << shift for value, least, shift in zip(row, leasts, (0, 8, 40), strict=True))
                    for row in rows]  # fmt: skip
        assert found.tolist() == expected

    def test_what_does_not_fit_is_refused(self):
        one, two = np.zeros(1, np.int32), np.zeros(2, np.int64)
        with pytest.raises(ValueError, match="2 values beside 1"):
            groups.codes([one, two], [0, 0], [0, 8])
        with pytest.raises(ValueError, match="63 bits"):
            groups.codes([one], [0], [63])
        with pytest.raises(TypeError, match="uint16"):
            groups.codes([one.astype(np.uint16)], [0], [0])
