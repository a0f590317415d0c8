"""Rows of a workload: the same from the same seed, of the right size, and steady."""

import numpy as np
import pyarrow as pa

from bench.workload import ORIGIN, SlidingRows


def micros(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.int64()).to_numpy()


def test_the_same_slot_gives_the_same_rows():
    one, other = SlidingRows(900), SlidingRows(900)
    assert one.batch(5).rows == other.batch(5).rows
    assert one.batch(5).rows != one.batch(6).rows
    assert one.batch(5).rows != SlidingRows(900, seed=1).batch(5).rows


def test_rows_have_their_size_and_do_not_compress():
    rows = SlidingRows(1800).batch(1).rows
    fixed, text = 3 * 8, {len(value.as_py()) for value in rows.column("payload")}
    assert {fixed + size for size in text} == {1000}
    plain = rows.column("payload").chunk(0).buffers()[2]
    assert len(pa.Codec("lz4").compress(plain)) > 0.98 * plain.size


def test_a_batch_lies_in_its_slot_and_lives_at_most_s():
    """Slot j is (origin + (j-1)Δ, origin + jΔ]."""
    workload = SlidingRows(3600, slots=12)
    batch = workload.batch(3)
    ts, exp = micros(batch.rows.column("ts")), micros(batch.rows.column("exp"))
    assert batch.now == ORIGIN + 3 * workload.delta
    assert ts.min() > batch.now - workload.delta
    assert ts.max() <= batch.now
    assert (exp - ts).min() >= 1
    assert (exp - ts).max() <= workload.max_lifetime


def test_the_window_is_as_large_as_it_says_once_it_is_full():
    workload = SlidingRows(6000, slots=12)
    now = workload.batch(24).now
    live = sum(int((micros(workload.batch(slot).rows.column("exp")) > now).sum()) for slot in range(13, 25))
    assert abs(live / 6000 - 1) < 0.1


def test_the_question_has_an_answer():
    batch = SlidingRows(360, keys=1 << 40, row_bytes=100).batch(1)
    assert batch.key in batch.rows.column("key").to_pylist()
