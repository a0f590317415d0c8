"""The row kernels must give what a few lines of plain Python give, at every edge of int64 too.

Slots are drawn as (origin + (j-1)Δ, origin + jΔ]: with origin 0 and Δ 10

    time   -10 -9 ...  0   1 ... 10  11 ... 20
    slot    -1  0 ...  0   1 ...  1   2 ...  2
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native import key_encoding, rows

LEAST, MOST = -(2**63), 2**63 - 1
DECADE = 10 * 365_25 * 864 * 10**6
INT64 = st.one_of(
    st.sampled_from([LEAST, LEAST + 1, -1, 0, 1, MOST - 1, MOST]), st.integers(-50, 50), st.integers(LEAST, MOST)
)


def int64(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """An int64 array."""
    return np.array(values, np.int64)


def test_a_slot_holds_its_upper_end_and_not_its_lower_end() -> None:
    times = int64([-10, -9, 0, 1, 10, 11, 20, MOST])
    assert rows.slots(times, 0, 10).tolist() == [-1, 0, 0, 1, 1, 2, 2, MOST]


@given(times=st.lists(INT64, max_size=10), origin=INT64, delta=st.one_of(st.integers(1, 20), st.integers(1, MOST)))
def test_slots_equal_unbounded_arithmetic_and_saturate(times: list[int], origin: int, delta: int) -> None:
    def slot(time: int) -> int:
        return MOST if time == MOST else min(max(-((origin - time) // delta), LEAST), MOST)

    assert rows.slots(int64(times), origin, delta).tolist() == [slot(time) for time in times]


def reason(
    time: int | None, end: int | None, *, never: bool, now: int | None, horizon: int, limit: int | None, earliest: int
) -> int:
    """The plain reference of classify for one row: the first reason that applies, by its number."""
    start, stop = (0 if time is None else time), (MOST if never else 0 if end is None else end)
    applies = [
        time is None,
        start < earliest or start > MOST - DECADE or start == LEAST,
        start > horizon,
        not never and end is None,
        not never and stop <= start,
        not never and limit is not None and stop - start > limit,
        not never and now is not None and stop <= now,
        True,
    ]
    return (applies.index(True) + 1) % len(applies)


@pytest.mark.parametrize("never", [False, True], ids=["rows expire", "rows never expire"])
@pytest.mark.parametrize("mask", [np.bool_, np.uint8], ids=["boolean masks", "byte masks"])
@given(
    pairs=st.lists(st.tuples(st.one_of(st.none(), INT64), st.one_of(st.none(), INT64)), max_size=12),
    now=st.one_of(st.none(), INT64),
    horizon=INT64,
    limit=st.one_of(st.none(), st.integers(0, 60), st.integers(0, MOST)),
    earliest=INT64,
)
def test_reasons_equal_the_plain_reference(
    never: bool, mask: Any, pairs: list[Any], now: int | None, horizon: int, limit: int | None, earliest: int
) -> None:
    times, ends = [time for time, _ in pairs], [end for _, end in pairs]
    given = rows.classify(
        int64([time or 0 for time in times]),
        np.array([time is not None for time in times], mask),
        None if never else int64([end or 0 for end in ends]),
        np.array([end is not None for end in ends], mask),
        now=now,
        horizon=horizon,
        max_lifetime=limit,
        earliest=earliest,
    )
    expected = [
        reason(time, end, never=never, now=now, horizon=horizon, limit=limit, earliest=earliest) for time, end in pairs
    ]
    assert given.dtype == np.uint8
    assert given.tolist() == expected


def test_every_reason_has_a_sentence_and_a_name() -> None:
    names = ["OK", "NULL_TIME", "ABSURD_TIME", "TOO_FAR_AHEAD", "NULL_EXPIRY"]
    names += ["EXPIRY_NOT_AFTER_TIME", "LIFETIME_TOO_LONG", "DEAD_ON_ARRIVAL"]
    assert [getattr(rows, name) for name in names] == list(range(len(rows.REASONS)))


KEY_LISTS: dict[str, Callable[[random.Random], Any]] = {
    "near-unique integers": lambda r: key_encoding.encode([pa.array([r.randrange(10**12) for _ in range(900)])]),
    "repeated integers": lambda r: key_encoding.encode([pa.array([r.randrange(7) for _ in range(900)])]),
    "doubles": lambda r: key_encoding.encode([pa.array([r.gauss(0, 1) for _ in range(900)])]),
    "repeated names": lambda r: key_encoding.encode(
        [pa.array([f"host-{r.randrange(40)}.example.org" for _ in range(900)])]
    ),
    "long common prefixes": lambda r: key_encoding.encode(
        [pa.array([f"{'/a' * r.randrange(40)}{r.randrange(90)}" for _ in range(900)])]
    ),
    "composites": lambda r: key_encoding.encode(
        [pa.array([r.choice("ab") for _ in range(900)]), pa.array([r.randrange(9) for _ in range(900)])]
    ),
    "raw prefixes of each other": lambda r: pa.array(
        [b"\x00" * r.randrange(30) for _ in range(900)], pa.large_binary()
    ),
    "raw short strings": lambda r: pa.array(
        [bytes(r.choices(b"\x00\x01", k=r.randrange(12))) for _ in range(900)], pa.binary()
    ),
    "empty keys": lambda _: pa.array([b""] * 900, pa.large_binary()),
    "wide fixed keys": lambda r: pa.array(
        [b"p" * 11 + r.randbytes(1) * 9 + r.randbytes(1) for _ in range(900)], pa.binary(21)
    ),
    "already sorted": lambda _: key_encoding.encode([pa.array(range(900))]),
    "reversed": lambda _: key_encoding.encode([pa.array(range(900, 0, -1))]),
    "digits": lambda r: key_encoding.encode([pa.array([f"user-{r.randrange(10**12)}" for _ in range(900)])]),
    "no keys": lambda _: None,
}
EXPIRIES: dict[str, Callable[[random.Random], Any]] = {
    "few expiries": lambda r: int64([r.choice([LEAST, -5, 0, 3, MOST]) for _ in range(900)]),
    "many expiries": lambda r: int64([r.randrange(-(10**15), 10**15) for _ in range(900)]),
    "expiries in order": lambda _: int64(list(range(900))),
    "no expiries": lambda _: None,
}
COLUMNS: dict[str, Callable[[random.Random], Any]] = {
    "four columns": lambda r: np.array([r.randrange(4) for _ in range(900)], np.uint16),
    "far columns": lambda r: np.array([r.choice([0, 999, 65535]) for _ in range(900)], np.uint16),
    "no columns": lambda _: None,
}


ORDERS = [
    names
    for names in itertools.product(KEY_LISTS, EXPIRIES, COLUMNS)
    if names != ("no keys", "no expiries", "no columns")
]


@pytest.mark.parametrize(("key", "expiry", "column"), ORDERS, ids=[", ".join(names) for names in ORDERS])
def test_order_is_by_column_then_key_then_expiry_then_arrival(key: str, expiry: str, column: str) -> None:
    r = random.Random(f"{key}{expiry}{column}")
    made = KEY_LISTS[key](r), EXPIRIES[expiry](r), COLUMNS[column](r)
    # Slices, so that the kernels meet offsets; small ones are sorted in another way than large ones.
    for size in (0, 1, 2, 24, 25, 300, 900):
        keyed, expiries, columns = (None if part is None else part[900 - size :] for part in made)
        ranks = list(
            zip(
                [0] * size if columns is None else columns.tolist(),
                [b""] * size if keyed is None else keyed.to_pylist(),
                [0] * size if expiries is None else expiries.tolist(),
                strict=True,
            )
        )
        assert rows.sort_order(columns, keyed, expiries).tolist() == sorted(range(size), key=ranks.__getitem__)


@pytest.mark.parametrize("distinct", [1, 2, 100, 312, 313, 5000])
@pytest.mark.parametrize("column", COLUMNS)
def test_order_of_many_rows_does_not_depend_on_how_often_keys_repeat(column: str, distinct: int) -> None:
    r = random.Random(f"{column}{distinct}")
    names = [f"{'x' * r.randrange(20)}{number}" for number in range(distinct)]
    chosen = [r.choice(names) for _ in range(5000)]
    columns, expiries = COLUMNS[column](r), int64([r.randrange(5) for _ in range(5000)])
    columns = None if columns is None else np.resize(columns, 5000)
    ranks = list(zip([0] * 5000 if columns is None else columns.tolist(), chosen, expiries.tolist(), strict=True))
    order = rows.sort_order(columns, key_encoding.encode([pa.array(chosen)]), expiries)
    assert order.tolist() == sorted(range(5000), key=ranks.__getitem__)


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 255]), max_size=20).map(bytes), min_size=1, max_size=200),
    st.integers(1, 3),
)
def test_order_of_any_byte_strings_is_their_order(values: list[bytes], times: int) -> None:
    values = values * times * (30 // len(values) + 1)
    order = rows.sort_order(None, pa.array(values, pa.large_binary()), None)
    assert order.tolist() == sorted(range(len(values)), key=values.__getitem__)


@given(values=st.lists(INT64, max_size=60))
def test_histogram_counts_each_distinct_value(values: list[int]) -> None:
    actual, counts = rows.histogram(int64(values))
    assert list(zip(actual.tolist(), counts.tolist(), strict=True)) == sorted(Counter(values).items())


@given(values=st.lists(st.integers(0, 65535), max_size=60))
def test_boundaries_are_the_runs_of_a_sorted_column(values: list[int]) -> None:
    values.sort()
    actual, starts = rows.find_run_starts(np.array(values, np.uint16))
    assert actual.tolist() == sorted(set(values))
    assert starts.tolist() == [values.index(value) for value in actual]


@given(
    values=st.lists(st.integers(-20, 20) | INT64, max_size=60),
    low=st.integers(-20, 20) | INT64,
    members=st.lists(st.booleans(), max_size=20),
)
def test_members_are_the_values_that_the_table_knows(values: list[int], low: int, members: list[bool]) -> None:
    """What lies below `low` must not be taken for something far above it, also at the ends of int64."""
    members = members[: (1 << 63) - low]
    wanted = [index for index, value in enumerate(values) if 0 <= value - low < len(members) and members[value - low]]
    assert rows.find_members(int64(values), low, np.array(members, bool)).tolist() == wanted


@given(st.lists(st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1)))
def test_numbered_values_are_told_apart_in_the_order_of_their_first_appearance(values: list[int]) -> None:
    first, which = rows.number_distinct(int64(values))
    assert [values[index] for index in first] == list(dict.fromkeys(values))
    assert [values[first[number]] for number in which.tolist()] == values


ROW = st.tuples(INT64, INT64, st.binary(max_size=20))


def digest_of(multiset: list[tuple[int, int, bytes]]) -> int:
    """Digest of rows given as tuples."""
    return rows.digest(
        int64([ts for ts, _, _ in multiset]),
        int64([exp for _, exp, _ in multiset]),
        pa.array([key for _, _, key in multiset], pa.large_binary()),
    )


@given(multiset=st.lists(ROW, max_size=20), cut=st.integers(0, 20), r=st.randoms(use_true_random=False))
def test_a_digest_forgets_order_and_chunks(multiset: list[tuple[int, int, bytes]], cut: int, r: random.Random) -> None:
    shuffled = r.sample(multiset, len(multiset))
    assert digest_of(shuffled) == digest_of(multiset)
    assert (digest_of(shuffled[:cut]) + digest_of(shuffled[cut:])) % 2**64 == digest_of(multiset)


@given(multiset=st.lists(ROW, max_size=5), row=ROW, other=ROW)
def test_a_digest_tells_multisets_apart(multiset: list[tuple[int, int, bytes]], row: Any, other: Any) -> None:
    assert digest_of([*multiset, row]) != digest_of(multiset)
    assert digest_of([*multiset, row, row]) != digest_of([*multiset, row])
    assert (digest_of([*multiset, row]) == digest_of([*multiset, other])) == (row == other)


def test_a_digest_is_of_key_bytes_and_not_of_their_layout() -> None:
    ts, words = int64([1, 2]), [b"ab", b"cd"]
    assert rows.digest(ts, None, pa.array(words, pa.binary(2))) == rows.digest(
        ts, None, pa.array(words, pa.large_binary())
    )
    assert rows.digest(ts, None, None) == rows.digest(ts, int64([MOST, MOST]), None)
    assert rows.digest(ts, None, pa.array(words)) != rows.digest(ts, None, pa.array(words[::-1]))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: rows.slots(int64([1]), 0, 0), ValueError),
        (lambda: rows.slots(np.zeros(2), 0, 1), TypeError),
        (lambda: rows.slots(np.zeros((2, 2), np.int64), 0, 1), TypeError),
        (lambda: rows.histogram(np.zeros(2, np.int32)), TypeError),
        (lambda: rows.find_run_starts(np.array([2, 1], np.uint16)), ValueError),
        (lambda: rows.find_run_starts(np.array([1, 2])), TypeError),
        (lambda: rows.find_members(np.zeros(2), 0, np.ones(1, bool)), TypeError),
        (lambda: rows.find_members(int64([1]), 0, np.ones(1, np.uint8)), TypeError),
        (lambda: rows.sort_order(None, None, None), ValueError),
        (lambda: rows.sort_order(None, pa.array([b"a"]), int64([1, 2])), ValueError),
        (lambda: rows.sort_order(None, pa.array([b"a", None]), None), ValueError),
        (lambda: rows.sort_order(None, pa.array(["a"]), None), TypeError),
        (lambda: rows.digest(int64([1]), int64([1, 2]), None), ValueError),
        (lambda: rows.digest(int64([1]), None, pa.array([b"a", b"b"])), ValueError),
        (
            lambda: rows.classify(
                int64([1]), np.ones(2, np.bool_), None, None, now=0, horizon=0, max_lifetime=0, earliest=0
            ),
            ValueError,
        ),
        (
            lambda: rows.classify(int64([1]), None, int64([1, 2]), None, now=0, horizon=0, max_lifetime=0, earliest=0),
            ValueError,
        ),
        (
            lambda: rows.classify(int64([1]), None, None, None, now=0, horizon=0, max_lifetime=-1, earliest=0),
            ValueError,
        ),
    ],
    ids=lambda value: None if isinstance(value, type) else "",
)
def test_misuse_is_an_error(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
