"""Arrow arrays without pyarrow's converters are those that the converters make."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.indexes.arrow_arrays import from_values, to_arrow, to_numpy

SEED = random.randrange(1 << 32)

VALUES: dict[pa.DataType, Any] = {
    pa.bool_(): lambda rng: rng.random() < 0.5,
    pa.int64(): lambda rng: rng.randrange(-(1 << 63), 1 << 63),
    pa.float64(): lambda rng: rng.choice([rng.random(), float("inf"), -0.0]),
    pa.timestamp("us", "UTC"): lambda rng: rng.randrange(1 << 50),
    pa.string(): lambda rng: "".join(rng.choices("aé漢\0 ", k=rng.randrange(5))),
    pa.large_string(): lambda rng: "x" * rng.randrange(5),
    pa.binary(): lambda rng: rng.randbytes(rng.randrange(5)),
    pa.large_binary(): lambda rng: rng.randbytes(rng.randrange(5)),
}
VALUES |= {
    pa.list_(kind): (lambda rng, one=one: [rng.choice([None, one(rng)]) for _ in range(rng.randrange(4))])
    for kind, one in list(VALUES.items())
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_values_become_the_column_that_pyarrow_makes(kind: pa.DataType, nulls: float) -> None:
    rng = random.Random(SEED)
    for count in (0, 1, 7, 8, 9, 100):
        values = [None if rng.random() < nulls else VALUES[kind](rng) for _ in range(count)]
        made = from_values(values, kind)
        made.validate(full=True)
        assert made.equals(pa.array(values, kind)), f"seed {SEED}"


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64])
def test_numbers_go_there_and_back(dtype: type) -> None:
    rng = np.random.default_rng(SEED)
    for count in (0, 1, 8, 9, 50):
        numbers = rng.integers(0, 2 if dtype is bool else 100, count).astype(dtype)
        for view in (numbers, numbers[::2], numbers[1:]):
            column = to_arrow(view)
            assert column.equals(pa.array(view)), f"seed {SEED}"
            for part in (column, column[1:], column[3:7], pa.chunked_array([column, column[2:]]), column[:0]):
                back = to_numpy(part)
                assert back.dtype == dtype
                assert back.tolist() == part.to_pylist(), f"seed {SEED}"
    assert to_numpy(pa.chunked_array([], pa.from_numpy_dtype(dtype))).tolist() == []
