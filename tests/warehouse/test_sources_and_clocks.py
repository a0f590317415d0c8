"""How far a stream may slide: sources, slack, heartbeats, skew, failures, and what never moves a clock.

Everywhere Δ = 10 s and slots end at T(0), T(1), T(2) …

    T(0)        T(1)        T(2)        T(3)
    ──┤───────────┤───────────┤───────────┤──
"""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from oracle import HOUR, SECOND
from sample_streams import BASE, DELTA, US, when

SCHEMA = pa.schema([("ts", US), ("n", pa.int64())])


def moment(time: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time / SECOND, dt.UTC)


def end(slots: float) -> int:
    """T(slots)."""
    return BASE + round(slots * DELTA)


def rows(*slots: float | None) -> pa.Table:
    """Rows at these times."""
    return pa.table(
        {"ts": pa.array([None if s is None else end(s) for s in slots], US), "n": range(len(slots))}, schema=SCHEMA
    )


class Clock:
    """A wall clock that goes when it is told to."""

    def __init__(self) -> None:
        self.time = BASE + HOUR

    def __call__(self) -> int:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wh(path: Path, clock: Clock) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=clock) as warehouse:
        yield warehouse


@pytest.fixture
def make(wh: windrow.Warehouse) -> Callable[..., None]:
    def create(**options: Any) -> None:
        wh.create_stream("s", SCHEMA, time="ts", slide="10 seconds", lifetime="40 seconds", **options)

    return create


def now(wh: windrow.Warehouse) -> float | None:
    """The clock in slots."""
    instant = wh.stream("s").now
    return None if instant is None else (windrow.times.parse_instant(instant) - BASE) / DELTA


def test_before_the_first_slide_there_is_no_clock_and_nothing_is_late_or_dead(wh, make) -> None:
    make()
    assert wh.now("s") is None
    report = wh.append("s", rows(-100, 1, 0.5))
    assert (report.accepted, report.late, report.rejected) == (3, 0, {})
    assert wh.now("s") is None
    assert wh.scan("s").read_all().num_rows == 0
    assert wh.scan("s", window="10 seconds").read_all().num_rows == 0
    report = wh.slide("s")
    assert (report.now, report.inserted, report.expired, report.late) == (moment(end(1)), 3, 1, 0)
    assert wh.now("s") == dt.datetime.fromtimestamp(end(1) / SECOND, dt.UTC)


def test_slide_without_data_or_heartbeat_moves_nothing(wh, make, clock) -> None:
    """Wall time never moves a stream by itself."""
    make()
    clock.time += 10 * HOUR
    report = wh.slide("s")
    assert not report.moved
    assert wh.now("s") is None
    wh.append("s", rows(0.5))
    assert wh.slide("s").slide == wh.slide("s").slide
    before = now(wh)
    clock.time += 10 * HOUR
    assert not wh.slide("s").moved
    assert now(wh) == before


def test_the_clock_stops_at_the_last_slot_end_that_all_rows_have_reached(wh, make) -> None:
    """
    T(0)    T(1)    T(2)    T(3)
    ─┤───────┤───────┤───×───┤─     greatest row at 2.4: the clock goes to T(2)
    """
    make()
    wh.append("s", rows(0.5, 2.4, 1.5))
    wh.slide("s")
    assert now(wh) == 2
    wh.append("s", rows(3))
    wh.slide("s")
    assert now(wh) == 3, "a row exactly on a slot's end completes that slot"


def test_slack_holds_the_clock_back_by_as_much_as_rows_may_be_out_of_order(wh, make) -> None:
    make(slack="7 seconds")
    wh.append("s", rows(1.6))
    wh.slide("s")
    assert now(wh) == 0
    wh.append("s", rows(1.7))
    wh.slide("s")
    assert now(wh) == 1
    assert wh.append("s", rows(1.01)).late == 0
    wh.heartbeat("s", up_to=when(end(2)))
    wh.slide("s")
    assert now(wh) == 2, "a heartbeat is not weakened by slack"


def test_the_stream_waits_for_the_slowest_source_and_says_for_which(wh, make) -> None:
    make(sources=["a", "b", "c"])
    wh.append("s", rows(5), source="a")
    wh.append("s", rows(3), source="b")
    assert set(wh.stream("s").waiting_for) == {"c"}, "c was never heard"
    report = wh.slide("s")
    assert not report.moved
    assert report.waiting_for == ("c",)
    wh.heartbeat("s", source="c", up_to=when(end(4)))
    assert wh.stream("s").waiting_for == ("b",)
    assert wh.slide("s").now == moment(end(3))
    progress = {source.name: source.progress for source in wh.stream("s").sources}
    assert progress == {"a": end(5), "b": end(3), "c": end(4)}


def test_a_heartbeat_never_goes_back_and_needs_no_rows(wh, make) -> None:
    make(sources=["a"])
    wh.heartbeat("s", source="a", up_to=when(end(3)))
    wh.heartbeat("s", source="a", up_to=when(end(1)))
    assert wh.slide("s").now == moment(end(3))
    assert wh.slide("s").moved is False


def test_only_declared_names_are_sources(wh, make) -> None:
    make(sources=["a", "b"])
    for call in (
        lambda: wh.append("s", rows(1), source="x"),
        lambda: wh.heartbeat("s", source="x", up_to=when(end(1))),
        lambda: wh.fail_source("s", "x"),
    ):
        with pytest.raises(windrow.UnknownSourceError, match=r"'x'.*a, b"):
            call()
    with pytest.raises(windrow.UnknownSourceError, match="say which one"):
        wh.append("s", rows(1))
    assert wh.stream("s").spooled_rows == 0
    assert isinstance(windrow.UnknownSourceError("x"), KeyError)


def test_undeclared_sources_may_come_as_they_like_and_then_all_count(wh, make) -> None:
    make()
    wh.append("s", rows(5), source="a")
    wh.append("s", rows(2), source="b")
    assert wh.slide("s").now == moment(end(2))
    assert wh.stream("s").waiting_for == ("b",)


def test_sliding_past_a_source_is_refused_with_its_name_and_progress(wh, make) -> None:
    make(sources=["a", "b"])
    wh.append("s", rows(5), source="a")
    wh.append("s", rows(1), source="b")
    with pytest.raises(windrow.SourceBehindError, match=r"'b' has reached 2026-01-01T00:00:10Z") as error:
        wh.slide("s", to=when(end(2)))
    assert "'a'" not in str(error.value)
    assert "force=True" in str(error.value)
    assert wh.now("s") is None
    assert wh.slide("s", to=when(end(1))).now == moment(end(1)), "as far as b has come is fine"


def test_force_goes_on_without_a_source_and_says_who_was_missing(wh, make) -> None:
    make(sources=["a", "b"])
    wh.append("s", rows(2), source="a")
    report = wh.slide("s", to=when(end(2)), force=True)
    assert report.now == moment(end(2))
    assert report.missing == ("b",)
    assert wh.stream("s").missing == ("b",)
    wh.append("s", rows(1.5), source="b")
    assert wh.stream("s").spooled_rows == 1, "what b sends now is late, but still live and taken"
    wh.heartbeat("s", source="b", up_to=when(end(3)))
    wh.heartbeat("s", source="a", up_to=when(end(3)))
    report = wh.slide("s")
    assert (report.late, report.missing) == (1, ())
    assert wh.stream("s").missing == ()


def test_max_skew_speaks_for_a_silent_source_while_others_go_on(wh, make) -> None:
    """b is silent; a has reached T(5); with max_skew = 2 slots b counts as T(3)."""
    make(sources=["a", "b"], max_skew="20 seconds")
    wh.append("s", rows(5), source="a")
    report = wh.slide("s")
    assert report.now == moment(end(3))
    assert report.spoken_for == ("b",)
    assert report.missing == ()
    effective = {source.name: source.effective for source in wh.stream("s").sources}
    assert effective == {"a": end(5), "b": end(3)}
    assert not wh.slide("s").moved, "when all are silent nothing moves"
    wh.append("s", rows(4.5), source="b")
    assert wh.slide("s").now == moment(end(4)), "its own progress counts when it is further"
    with pytest.raises(windrow.SourceBehindError, match="'b'"):
        wh.slide("s", to=when(end(5)))


def test_max_skew_is_counted_from_the_source_that_is_furthest(wh, make) -> None:
    """a at T(5), b at T(1), c silent: b and c both count as T(5) − 2 slots = T(3); a does not wait for itself."""
    make(sources=["a", "b", "c"], max_skew="20 seconds")
    wh.append("s", rows(1), source="b")
    wh.append("s", rows(5), source="a")
    effective = {source.name: source.effective for source in wh.stream("s").sources}
    assert effective == {"a": end(5), "b": end(3), "c": end(3)}
    report = wh.slide("s")
    assert report.now == moment(end(3))
    assert set(report.spoken_for) == {"b", "c"}


def test_a_failed_source_blocks_by_default(wh, make) -> None:
    make(sources=["a", "b"])
    wh.append("s", rows(5), source="a")
    wh.append("s", rows(1), source="b")
    wh.fail_source("s", "b", "its disk broke")
    assert wh.slide("s").now == moment(end(1))
    with pytest.raises(windrow.SourceBehindError, match="its disk broke"):
        wh.slide("s", to=when(end(2)))


def test_a_failed_source_may_be_excluded_and_answers_list_it_as_missing_until_it_comes_back(wh, make) -> None:
    make(sources=["a", "b"], on_source_failure="exclude")
    wh.append("s", rows(5), source="a")
    wh.append("s", rows(1), source="b")
    wh.fail_source("s", "b")
    report = wh.slide("s")
    assert report.now == moment(end(5))
    assert report.missing == ("b",)
    assert wh.stream("s").missing == ("b",)
    wh.heartbeat("s", source="b", up_to=when(end(5.5)))
    wh.append("s", rows(9), source="a")
    assert not wh.slide("s").moved
    assert wh.stream("s").waiting_for == ("b",), "it is heard again, so it counts again"
    wh.heartbeat("s", source="b", up_to=when(end(6)))
    assert wh.slide("s").missing == ()


def test_an_explicit_target_is_itself_the_heartbeat_where_no_sources_are_declared(wh, make) -> None:
    """The target between two slot ends takes the clock to the earlier one, and is remembered."""
    make()
    wh.append("s", rows(1.5))
    assert wh.slide("s", to=when(end(3.7))).now == moment(end(3))
    assert not wh.slide("s").moved
    assert not wh.slide("s", to=when(end(2))).moved, "a clock never goes back"
    assert now(wh) == 3
    assert wh.slide("s", to=dt.datetime.fromtimestamp(end(4) / SECOND, dt.UTC)).now == moment(end(4))


def test_a_row_ahead_of_the_clock_stays_out_of_every_answer_until_the_clock_has_reached_it(wh, make) -> None:
    """
    T(1)    T(2)    T(3)
    ─┤───●───┤───●───┤      clock at T(2): only the first row is seen, though both are taken in
    """
    make()
    wh.append("s", rows(1.5, 2.5))
    assert wh.slide("s", to=when(end(2))).inserted == 2
    assert wh.scan("s").read_all().column("n").to_pylist() == [0]
    assert wh.slide("s", to=when(end(3))).inserted == 0
    assert sorted(wh.scan("s").read_all().column("n").to_pylist()) == [0, 1]
    assert wh.stream("s").late == 0


def test_a_far_future_stamp_never_moves_the_clock_or_expires_anything(wh, make, clock) -> None:
    make(max_ahead="1 minute")
    wh.append("s", rows(1))
    wh.slide("s")
    ahead = clock.time + 60 * SECOND
    table = pa.table({"ts": pa.array([ahead, ahead + 1, 2**62], US), "n": [0, 1, 2]}, schema=SCHEMA)
    report = wh.append("s", table)
    assert report.accepted == 1, "exactly max_ahead is still fine"
    assert report.rejected == {"the event time is too far ahead of the clock": 2}
    progress = wh.stream("s").sources[0].progress
    assert progress == ahead
    for call in (
        lambda: wh.heartbeat("s", up_to=when(ahead + 1)),
        lambda: wh.slide("s", to=when(ahead + 1)),
        lambda: wh.slide("s", to=when(ahead + 1), force=True),
    ):
        with pytest.raises(windrow.ClockError, match="max_ahead"):
            call()
    assert now(wh) == 1
    assert wh.scan("s").read_all().num_rows == 1


def test_rejected_rows_are_kept_with_reason_source_batch_and_time_and_are_no_progress(wh, make, clock) -> None:
    make(sources=["a", "b"])
    wh.append("s", rows(1), source="a")
    wh.append("s", rows(2), source="b")
    wh.slide("s")
    wh.heartbeat("s", source="a", up_to=when(end(9)))
    wh.heartbeat("s", source="b", up_to=when(end(9)))
    wh.slide("s")
    report = wh.append("s", rows(5, None, 10), source="b", batch_id="x")
    assert report.rejected == {"the row had already expired on arrival": 1, "the event time is null": 1}
    assert (report.accepted, report.late) == (1, 0)
    actual = wh.rejected("s")
    assert actual.schema.names == [
        "ts",
        "n",
        "_reason",
        "_source",
        "_batch",
        "_rejected_at",
        "_file",
        "_line",
        "_text",
        "_format",
    ]
    assert actual.column("n").to_pylist() == [0, 1]
    assert set(actual.column("_source").to_pylist()) == {"b"}
    assert set(actual.column("_batch").to_pylist()) == {"x"}
    assert actual.column("_rejected_at").cast(pa.int64()).to_pylist() == [clock.time] * 2
    status = {source.name: (source.rows, source.rejected, source.progress) for source in wh.stream("s").sources}
    assert status == {"a": (1, 0, end(9)), "b": (2, 2, end(10))}
    assert wh.stream("s").rejected == 2


def test_replayed_rows_are_progress_of_the_source_that_sent_them(wh, make, clock) -> None:
    make(sources=["a", "b"], max_ahead="10 seconds")
    ahead = clock.time + HOUR
    wh.append("s", pa.table({"ts": pa.array([ahead], US), "n": [7]}, schema=SCHEMA), source="b")
    wh.append("s", rows(None), source="a")
    clock.time += HOUR
    report = wh.replay("s")
    assert (report.rows, report.accepted, report.rejected) == (2, 1, {"the event time is null": 1})
    progress = {source.name: source.progress for source in wh.stream("s").sources}
    assert progress == {"a": None, "b": ahead}
    assert wh.rejected("s").column("n").to_pylist() == [0]
    assert wh.discard_rejected("s") == 1
    assert wh.rejected("s").num_rows == 0
    assert wh.stream("s").rejected == 0
    assert wh.check().ok


def test_two_replays_at_the_same_moment_take_the_rows_once(path, wh, make, clock) -> None:
    from faulty_disks import CallAtStep

    make(max_ahead="10 seconds")
    wh.append("s", pa.table({"ts": pa.array([clock.time + HOUR], US), "n": [7]}, schema=SCHEMA))
    clock.time += HOUR
    hook = CallAtStep("append.committing", lambda: wh.replay("s"))
    busy = pytest.raises(windrow.BusyError, match="nothing was changed")
    with windrow.open(path, clock=clock, files=hook) as second, busy:
        second.replay("s")
    assert hook.called
    assert wh.stream("s").spooled_rows == 1
    assert wh.rejected("s").num_rows == 0


def test_waiting_for_a_window_ends_when_somebody_else_has_slid(path, wh, make, clock) -> None:
    make()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            wh.append("s", rows(2.2))
            wh.slide("s")

    with windrow.open(path, clock=clock, sleep=sleep) as other:
        other.wait_for("s", up_to=when(end(2)))
        assert len(pauses) == 3
        other.wait_for("s", up_to=when(end(2)))
        other.wait_for("s", up_to=when(end(1)), timeout=0)
        assert len(pauses) == 3, "what is complete already needs no waiting"


def test_waiting_in_vain_ends_and_names_the_source_that_holds_the_stream_up(path, wh, make, clock) -> None:
    make(sources=["a", "b"])
    wh.append("s", rows(3), source="a")
    pauses: list[float] = []
    busy = pytest.raises(windrow.BusyError, match=r"'s'.*5 s.*waits for b")
    with windrow.open(path, clock=clock, sleep=pauses.append) as other, busy:
        other.wait_for("s", up_to=when(end(2)), timeout=5)
    assert 5 <= sum(pauses) < 6
    with pytest.raises(windrow.UnknownStreamError, match=r"'nosuch'.*s"):
        wh.wait_for("nosuch", up_to=when(end(1)))


def test_slots_are_aligned_on_the_origin(wh, make) -> None:
    """origin = T(0) + 3 s: slots end at 3 s, 13 s, 23 s …"""
    make(origin=when(BASE + 3 * SECOND))
    wh.append("s", rows(2.0))
    assert wh.slide("s").now == moment(BASE + 13 * SECOND)
    assert wh.stream("s").slide == 1


def test_times_before_the_origin_have_slots_too(wh, make) -> None:
    make(origin="2027-01-01T00:00:00")
    wh.append("s", rows(0.5, 1.5))
    report = wh.slide("s")
    assert report.now == moment(end(1))
    assert report.slide < 0
    assert wh.scan("s").read_all().column("n").to_pylist() == [0]


@pytest.mark.parametrize(
    ("window", "seen"),
    [
        ("10 seconds", [2, 3]),
        ("10.000001 seconds", [1, 2, 3]),
        ("20 seconds", [1, 2, 3]),
        ("1 us", [3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_a_window_is_open_at_its_old_end_and_closed_at_now(wh, make, window, seen) -> None:
    """
           T(1)        T(2)        T(3) = now
    ────────0────────────1────2─────3
            (─── 20 s ──────────────]      0 is out: now − w < ts
                         (── 10 s ──]      1 is out
    """
    make()
    wh.append("s", rows(1, 2, 2.5, 3))
    wh.slide("s")
    assert sorted(wh.scan("s", window=window).read_all().column("n").to_pylist()) == seen


def test_a_row_is_gone_at_the_very_slide_at_which_it_expires(wh, make) -> None:
    """lifetime 4 slots: a row at T(1) lives in [T(1), T(5)) and one 1 µs later is still there at T(5)."""
    make()
    table = pa.table({"ts": pa.array([end(1), end(1) + 1], US), "n": [0, 1]}, schema=SCHEMA)
    wh.append("s", table)
    assert wh.slide("s", to=when(end(4))).expired == 0
    assert wh.scan("s").read_all().num_rows == 2
    assert wh.slide("s", to=when(end(5))).expired == 1
    assert wh.scan("s").read_all().column("n").to_pylist() == [1]
    assert wh.slide("s", to=when(end(6))).expired == 1
    assert wh.scan("s").read_all().num_rows == 0


def test_a_row_that_dies_between_append_and_slide_counts_as_inserted_and_expired(wh, make) -> None:
    make()
    wh.append("s", rows(1))
    wh.slide("s")
    assert wh.append("s", rows(1.5)).late == 0
    report = wh.slide("s", to=when(end(10)))
    assert (report.inserted, report.expired) == (1, 2)
    assert wh.rejected("s").num_rows == 0


def test_nanoseconds_are_rounded_up_so_that_a_row_is_never_seen_before_its_time(wh) -> None:
    wh.create_stream(
        "ns",
        pa.schema([("ts", pa.timestamp("ns")), ("n", pa.int64())]),
        time="ts",
        slide="10 seconds",
        lifetime="20 seconds",
    )
    stamps = [end(1) * 1000, end(1) * 1000 + 1]
    wh.append("ns", pa.table({"ts": pa.array(stamps, pa.timestamp("ns")), "n": [0, 1]}))
    wh.slide("ns", to=when(end(1)))
    assert wh.scan("ns").read_all().column("n").to_pylist() == [0]
    wh.slide("ns", to=when(end(3)))
    actual = wh.scan("ns").read_all()
    assert actual.column("n").to_pylist() == [1]
    assert actual.column("ts").cast(pa.int64()).to_pylist() == [end(1) * 1000 + 1], "the stored value is untouched"
