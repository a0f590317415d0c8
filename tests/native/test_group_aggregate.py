"""The kernels over numbered groups must give what a few lines of plain Python give, ties and empty groups included."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.native import group_aggregate

SMALL = st.integers(-4, 4)
PAIRS = st.lists(st.tuples(st.integers(0, 5), SMALL), max_size=30)


@given(PAIRS, st.sampled_from(["sum", "min", "max"]), st.sampled_from(["int8", "int16", "int32", "int64", "float64"]))
def test_merging_is_what_python_merges(pairs: list[tuple[int, int]], how: str, kind: str) -> None:
    totals = [{"sum": 0, "min": 100, "max": -100}[how]] * 6
    given_ = np.array(totals, "float64" if kind == "float64" else "int64")
    for number, value in pairs:
        totals[number] = {"sum": sum, "min": min, "max": max}[how]([totals[number], value])
    group_aggregate.merge_totals(
        given_, np.array([n for n, _ in pairs], np.int32), np.array([v for _, v in pairs], kind), how
    )
    assert given_.tolist() == totals


@given(st.lists(st.tuples(SMALL, st.integers(0, 1)), max_size=30), st.integers(1, 8), st.booleans(), st.booleans())
def test_the_first_and_all_that_equal_the_last(
    pairs: list[tuple[int, int]], most: int, descending: bool, floats: bool
) -> None:
    there = sorted((value for value, count in pairs if count), reverse=descending)
    edge = there[min(most, len(there)) - 1] if there else 0
    right = [
        index
        for index, (value, count) in enumerate(pairs)
        if count and (value >= edge if descending else value <= edge)
    ]
    values = np.array([value for value, _ in pairs], "float64" if floats else "int64")
    actual = group_aggregate.find_top(
        values, np.array([count for _, count in pairs], np.int64), most, descending=descending
    )
    assert sorted(actual.tolist()) == right


def test_edges_are_checked() -> None:
    totals, numbers, values = np.zeros(2, np.int64), np.array([0, 1], np.int32), np.array([1, 2], np.int64)
    for wrong in (2, -1):
        with pytest.raises(IndexError, match="not below 2"):
            group_aggregate.merge_totals(totals, np.array([0, wrong], np.int32), values, "sum")
    with pytest.raises(ValueError, match="2 numbers for 1 values"):
        group_aggregate.merge_totals(totals, numbers, values[:1], "sum")
    with pytest.raises(TypeError, match="float64 values for int64 totals"):
        group_aggregate.merge_totals(totals, numbers, values.astype(float), "sum")
    with pytest.raises(ValueError, match="2 values for 1 counts"):
        group_aggregate.find_top(totals, values[:1], 1, descending=True)
    with pytest.raises(ValueError, match="at least one"):
        group_aggregate.find_top(totals, values, 0, descending=True)
    assert totals.tolist() == [0, 0]


KEYS = st.tuples(st.integers(-128, 127), st.integers(-(2**40), 2**40) | st.integers(-3, 3), st.integers(-5, 9))


@example([((1, 2**61, 0), 7), ((1, -(2**60), 0), 7), ((1, 2**61, 0), -1)], [1])
@given(
    st.lists(st.tuples(KEYS, SMALL | st.integers(-(2**30), 2**30)), max_size=60),
    st.sampled_from([[], [0], [1], [0, 2], [2, 1], [0, 1, 2]]),
)
def test_groups_are_tallied_as_python_would(rows: list[tuple[tuple[int, ...], int]], used: list[int]) -> None:
    """In a table where codes are short, by sorting where they are long, in two steps where no row number fits above."""
    kinds = (np.int8, np.int64, np.int32)
    keys, plain = [], [tuple(key[index] for index in used) for key, _ in rows]
    for number, index in enumerate(used):
        group_keys = [key[number] for key in plain] or [0]
        keys.append(
            (
                np.array([key[number] for key in plain], kinds[index]),
                min(group_keys),
                (max(group_keys) - min(group_keys)).bit_length(),
            )
        )
    values = np.array([value for _, value in rows], np.int32)
    actual, counts, totals = group_aggregate.tally(len(rows), keys, [(values, how) for how in ("sum", "min", "max")])
    expected: dict[tuple[int, ...], list[int]] = {}
    for key, (_, value) in sorted(zip(plain, rows, strict=True), key=lambda each: each[0][::-1]):
        expected.setdefault(key, []).append(value)
    assert list(zip(*actual, strict=True)) == list(expected) if used else len(counts) == len(expected)
    assert counts.tolist() == [len(group_keys) for group_keys in expected.values()]
    for total, how in zip(totals, (sum, min, max), strict=True):
        assert total.tolist() == [how(group_keys) for group_keys in expected.values()]
        assert total.dtype == next(k for k in (np.int8, np.int16, np.int32, np.int64) if not len(total) or
                                   (np.iinfo(k).min <= total.min() and total.max() <= np.iinfo(k).max))  # fmt: skip


def test_many_rows_are_tallied_as_numpy_would() -> None:
    """More rows than a block has, more groups than a digit has."""
    chance = np.random.default_rng(3)
    one, two = chance.integers(-500, 500, 70_000).astype(np.int16), chance.integers(0, 3000, 70_000)
    values = chance.integers(-1000, 1000, 70_000).astype(np.int16)
    first, second, long = (one, -500, 10), (two, 0, 12), (two << 37, 0, 49)
    for keys in ([first], [first, second], [second, long]):
        actual, counts, (totals,) = group_aggregate.tally(70_000, keys, [(values, "sum")])
        order = np.lexsort([key for key, _, _ in keys])
        rows = np.stack([key.astype(np.int64)[order] for key, _, _ in keys], 1)
        distinct, starts = [*np.unique(rows[:, ::-1], axis=0, return_index=True)]
        assert np.array_equal(np.stack(actual, 1), distinct[:, ::-1])
        assert np.array_equal(counts, np.diff(np.append(starts, 70_000)))
        assert np.array_equal(totals, np.add.reduceat(values[order].astype(np.int64), starts))


def test_what_cannot_be_tallied_is_refused() -> None:
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int64)
    for value, bits in ((-1, 62), (4, 2), (1, 0)):
        with pytest.raises(ValueError, match="does not fit"):
            group_aggregate.tally(1, [(np.array([value], np.int64), 0, bits)], [])
    with pytest.raises(ValueError, match="2 values for 1 rows"):
        group_aggregate.tally(1, [(one, 0, 1), (two, 0, 1)], [])
    with pytest.raises(ValueError, match="1 values for 2 rows"):
        group_aggregate.tally(2, [(two, 0, 1)], [(one, "sum")])
    for bits in ([63], [40, 23], [-1]):
        with pytest.raises(ValueError, match="bits behind"):
            group_aggregate.tally(1, [(one, 0, wide) for wide in bits], [])
    with pytest.raises(TypeError, match="uint16"):
        group_aggregate.tally(1, [(one.astype(np.uint16), 0, 1)], [])
    with pytest.raises(ValueError, match="rows"):
        group_aggregate.tally(-1, [], [])
