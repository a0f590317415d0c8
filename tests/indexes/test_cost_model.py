"""The advisor: plays slides through and counts. What it must get right is the order of things, not milliseconds."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, US, when
from windrow import Index
from windrow.indexes.cost_model import (
    Workload,
    compare_in_steps,
    finish,
    propose_layouts,
    simulate_slides,
)

UNIFORM = dict.fromkeys(range(1, 17), 1 / 16)


def segments(index, lives, slots=16, rows=1000):
    played, _ = simulate_slides(Workload(rows=rows, row_bytes=100, lives=lives), slots, index)
    return float(np.mean(played.segments))


def test_equal_lives_in_waves_leave_one_segment_for_each_slot():
    assert segments(Index("wave-insertion", 4, maintenance="norebuild"), {16: 1.0}) == 16


def test_a_rebuilt_grid_has_one_segment_in_each_cell():
    assert segments(Index("round-robin", 2, 2, maintenance="rebuild"), UNIFORM) == 4
    assert segments(Index("round-robin", 4, 4, maintenance="rebuild"), UNIFORM) == 16


@pytest.mark.parametrize(
    "index",
    [
        Index("round-robin", 2, 2, maintenance="rebuild"),
        Index("round-robin", 4, 4),
        Index("round-robin", 3, 2, maintenance="norebuild"),
        Index("wave-insertion", 4),
        Index("wave-expiry", 4),
    ],
    ids=str,
)
def test_the_play_has_as_many_segments_as_the_stream_that_it_stands_for(index, path):
    """The same rows, once as figures and once as rows on disk."""
    schema = pa.schema([("ts", US), ("exp", US), ("k", pa.int64())])
    rows, slots = 160, 8

    def batch(slot):
        ends = [BASE + (slot + 1 + n % slots) * DELTA for n in range(rows)]
        start = [BASE + slot * DELTA - 1] * rows
        return pa.table([pa.array(start, US), pa.array(ends, US), [n % 7 for n in range(rows)]], schema=schema)

    with windrow.open(path, clock=lambda: BASE + 1000 * DELTA) as wh:
        micro = dt.timedelta(microseconds=1)
        wh.create_stream(
            "s",
            schema,
            time="ts",
            key="k",
            slide=DELTA * micro,
            expires="exp",
            max_lifetime=10 * DELTA * micro,
            index=index,
        )
        counted = []
        for slot in range(1, 31):
            wh.append("s", batch(slot))
            wh.slide("s", to=when(BASE + slot * DELTA))
            counted.append(wh.stream("s").segments)
        size = wh.stream("s").bytes / wh.stream("s").stored_rows
        measured = wh.advise("s", among=[index]).workload
    lives = dict.fromkeys(range(1, slots + 1), 1 / slots)
    played, _ = simulate_slides(Workload(rows=rows, row_bytes=size, lives=lives), 10, index)
    assert np.mean(played.segments) == pytest.approx(np.mean(counted[-14:]), rel=0.15)
    assert sum(measured.lives.values()) == pytest.approx(1.0)
    assert sum(life * share for life, share in measured.lives.items()) == pytest.approx(4.5, rel=0.1)


def test_more_queries_ask_for_fewer_segments_and_more_updates_for_less_rewriting():
    def best(probes, scans):
        mix = Workload(rows=5000, row_bytes=200, lives=UNIFORM, probes=probes, scans=scans)
        return finish(compare_in_steps(mix, 16, propose_layouts(mix, 16)))[0]

    idle, busy = best(0, 0), best(10_000, 1000)
    assert idle.written <= busy.written
    assert busy.segments <= idle.segments
    assert idle.update <= busy.update


def test_a_total_is_the_update_and_the_questions_before_the_next():
    mix = Workload(rows=1000, row_bytes=100, lives=UNIFORM, probes=7, scans=3)
    (actual,) = finish(compare_in_steps(mix, 16, [Index("round-robin", 2, 2)]))
    assert actual.total == pytest.approx(actual.update + 7 * actual.probe + 3 * actual.scan)


def test_rows_that_never_expire_and_long_lifetimes_are_played_too():
    forever = Workload(rows=100, row_bytes=100, lives=None)
    assert [each.index.name for each in finish(compare_in_steps(forever, None, propose_layouts(forever, None)))] == [
        "append-only"
    ] * 2
    long = Workload(rows=100, row_bytes=100, lives={5000: 1.0})
    assert all(each.total > 0 for each in finish(compare_in_steps(long, 5000, propose_layouts(long, 5000))))
