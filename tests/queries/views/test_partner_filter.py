"""What is left out of a partner never had a match: all values, near and far, with and without nulls."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.queries.views.partner_filter import filter_rows, make_mask

NEAR = st.integers(-50, 50)
FAR = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(NEAR | FAR, max_size=30), st.lists(st.lists(st.none() | NEAR | FAR, max_size=20), max_size=4))
def test_integers_pass_exactly_if_they_are_known(partners, columns):
    batches = [
        pa.record_batch({"v": pa.array(column, pa.int64()), "n": pa.array(range(len(column)), pa.int64())})
        for column in columns
    ]
    schema = pa.schema([("v", pa.int64()), ("n", pa.int64())])
    actual = filter_rows(batches, schema, "v", make_mask(pa.array(partners, pa.int64())))
    passed = [row for batch in actual for row in batch.to_pylist()]
    assert passed == [{"v": v, "n": n} for column in columns for n, v in enumerate(column) if v in partners]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint8(), pa.uint64(), pa.string()])
def test_every_kind_of_value(kind):
    values = [str(n) if kind == pa.string() else n for n in range(100)]
    batch = pa.record_batch({"v": pa.array(values, kind)})
    partners = pa.array([values[3], values[7], values[99]], kind)
    (actual,) = filter_rows([batch], batch.schema, "v", make_mask(partners))
    assert actual.column(0).to_pylist() == [values[3], values[7], values[99]]


def test_the_ends_of_a_narrow_type_do_not_wrap_around():
    """-128 and 127 are neighbours only if a difference is taken in eight bits."""
    batch = pa.record_batch({"v": pa.array([-128, -1, 0, 127], pa.int8())})
    (actual,) = filter_rows([batch], batch.schema, "v", make_mask(pa.array([-128, 127], pa.int8())))
    assert actual.column(0).to_pylist() == [-128, 127]
