"""The digest of a batch: the same for the same rows however they are cut, ordered and laid out, and else another one."""

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native.row_digest import digest_rows

NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [1, -1, 0]),
    (pa.uint64(), [1, (1 << 64) - 1]),
    (pa.float16(), [1.5, -2.0]),
    (pa.float32(), [1.5, float("inf")]),
    (pa.float64(), [0.0, 1e300]),
    (pa.decimal128(20, 3), [Decimal("1.234"), Decimal("-1.234")]),
    (pa.decimal256(50, 3), [Decimal("1.234"), Decimal("1e40")]),
    (pa.date32(), [dt.date(2025, 1, 1), dt.date(1969, 1, 1)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2025, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, tzinfo=dt.UTC)]),
    (pa.time32("s"), [dt.time(1), dt.time(2)]),
    (pa.duration("ns"), [5, 6]),
    (pa.string(), ["", "a", "é" * 40, "x" * 100, "x" * 99 + "y"]),
    (pa.string_view(), ["", "a", "x" * 100]),
    (pa.large_binary(), [b"", b"\0", b"\0\0", b"q" * 48]),
    (pa.binary(3), [b"abc", b"abd"]),
    (pa.dictionary(pa.int8(), pa.string()), ["one", "two"]),
    (pa.list_(pa.int64()), [[], [1], [1, None], [None, 1], [1, 1]]),
    (pa.list_(pa.int16(), 2), [[1, 2], [2, 1]]),
    (pa.large_list(pa.list_(pa.int8())), [[[1], [2]], [[1, 2]], [[], [1, 2]]]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 2)], [("b", 1)], []]),
    (NESTED, [{"a": 1, "b": ["x"]}, {"a": None, "b": ["x"]}, {"a": 1, "b": None}, {"a": 1, "b": []}]),
]


def table(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"v": pa.array(values, kind)})


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_every_value_of_a_type_counts_wherever_it_lies(kind: pa.DataType, values: list[Any]) -> None:
    values = [*values, None]
    alone = [digest_rows(table(kind, [value])) for value in values]
    assert len(set(alone)) == len(values)
    many = [random.Random(1).choice(values) for _ in range(200)]
    whole = table(kind, many)
    expected = sum(alone[[repr(v) for v in values].index(repr(value))] for value in many) % 2**64
    assert digest_rows(whole) == expected, "rows add up"
    parts = pa.concat_tables([whole.slice(position, 7) for position in range(0, 200, 7)][::-1])
    assert digest_rows(parts) == expected, "slices, chunks and order"
    assert digest_rows(whole.combine_chunks().to_batches()[0]) == expected


@given(
    rows=st.lists(st.tuples(st.integers(-3, 3) | st.none(), st.sampled_from(["", "a", "b", None])), max_size=8),
    other=st.lists(st.tuples(st.integers(-3, 3) | st.none(), st.sampled_from(["", "a", "b", None])), max_size=8),
)
def test_digests_are_equal_just_where_the_rows_are(rows: list[Any], other: list[Any]) -> None:
    def digest(given: list[Any]) -> tuple[int, int]:
        columns = [pa.array([row[0] for row in given], pa.int64()), pa.array([row[1] for row in given], pa.string())]
        return len(given), digest_rows(pa.table(columns, ["n", "s"]))

    assert (digest(rows) == digest(other)) == (sorted(map(repr, rows)) == sorted(map(repr, other)))


def test_the_same_value_in_another_column_is_another_row() -> None:
    def digest(a: int | None, b: int | None) -> int:
        return digest_rows(pa.table({"a": pa.array([a], pa.int64()), "b": pa.array([b], pa.int64())}))

    assert len({digest(5, None), digest(None, 5), digest(5, 5), digest(None, None)}) == 4


def test_a_column_that_came_later_and_is_null_changes_nothing() -> None:
    old = pa.table({"a": [1, 2], "b": ["x", None]})
    assert digest_rows(old) == digest_rows(old.append_column("c", pa.nulls(2, NESTED)))
    assert digest_rows(old) == digest_rows(old.select(["b", "a"]))


def test_zeros_and_not_a_numbers_are_one_value() -> None:
    bits = pa.array([0x7FF8000000000000, 0xFFF8000000000001 - (1 << 64)], pa.int64()).view(pa.float64())
    assert digest_rows(pa.table({"v": bits.slice(0, 1)})) == digest_rows(pa.table({"v": bits.slice(1, 1)}))
    assert digest_rows(table(pa.float64(), [0.0])) == digest_rows(table(pa.float64(), [-0.0]))


def test_text_is_its_bytes_in_every_layout() -> None:
    words = ["", "a", None, "x" * 60]
    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
    assert len({digest_rows(table(kind, words)) for kind in kinds}) == 1


def test_offsets_that_point_elsewhere_are_refused() -> None:
    offsets = pa.array([0, 999, 1], pa.int32()).buffers()[1]  # pyarrow looks at the first and the last
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(ValueError, match="outside of its bytes"):
        digest_rows(pa.table({"v": broken}))
    lists = pa.Array.from_buffers(pa.list_(pa.int8()), 2, [None, offsets], children=[pa.array([1], pa.int8())])
    with pytest.raises(ValueError, match="outside of its elements"):
        digest_rows(pa.table({"v": lists}))
