"""The thesis's histories H_a to H_h with the isolation they have, and its schedulers over real slots of a stream.

A window of five sub-windows; movement j replaces sub-window j mod 5 (figures 7.4 and 7.5):

    s0 s1 s2 s3 s4 | s0' s1'       H_a reads  s0 . s2 s3 s4 . s1'    never a window
     0  1  2  3  4    5   6        H_b reads  s0 s1 s2 s3 s4         as of 4
                                   H_c reads     s1 s2 s3 s4 s0'     as of 5
                                   H_d reads        s2 s3 s4 s0' s1' as of 6, the latest
"""

import random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import windrow
from bench import histories
from bench.histories import parse
from bench.schedulers import APART, LWS, POLICIES, SERIAL, TTU, WS, Executor, ScheduledQuery
from sample_streams import BASE, DELTA, when
from windrow.queries import execution

WINDOW = 5


class Case(NamedTuple):
    """A history and what it is."""

    history: str
    state: int | None
    windows: bool
    latest: bool
    commits: bool


CASES = {
    "a": Case("rQ1[0] w5[0] c5 w6[1] c6 rQ1[1] rQ1[2] rQ1[3] rQ1[4] cQ1", None, False, False, False),
    "b": Case("rQ1[0] w5[0] c5 rQ1[1] w6[1] c6 rQ1[2] rQ1[3] rQ1[4] cQ1", 4, True, False, False),
    "c": Case("w5[0] c5 rQ1[0] rQ1[1] rQ1[2] rQ1[3] w6[1] c6 rQ1[4] cQ1", 5, True, False, False),
    "d": Case("w5[0] c5 rQ1[0] w6[1] c6 rQ1[1] rQ1[2] rQ1[3] rQ1[4] cQ1", 6, True, True, True),
    "e": Case("rQ1[4] w5[0] c5 rQ1[0] rQ1[3] rQ1[2] w6[1] c6 rQ1[1] cQ1", 6, True, True, True),
    "f": Case("rQ1[0] w5[0] c5 rQ1[1] rQ1[2] rQ1[3] w6[1] c6 rQ1[4] cQ1", 4, True, False, False),
    "g": Case("rQ1[0] w5[0] w6[1] c6 rQ1[1] rQ1[2] rQ1[3] rQ1[4] cQ1 c5", None, False, False, True),
    "h": Case("rQ1[0] rQ1[1] rQ1[2] rQ1[3] w9[4] rQ1[4] cQ1 c9", 9, True, True, False),
}
"""All are conflict-serializable, which is why that is not enough."""


@pytest.mark.parametrize("name", CASES)
def test_the_histories_of_the_thesis_have_the_isolation_it_says(name):
    case = CASES[name]
    history = parse(case.history)
    assert histories.is_serializable(history)
    assert histories.state_read(history, "Q1", WINDOW) == case.state
    assert histories.is_window_serializable(history) == case.windows
    assert histories.is_latest_window_serializable(history) == case.latest
    assert histories.is_commit_order_preserving(history) == case.commits


def test_a_cycle_is_not_serializable():
    assert not histories.is_serializable(parse("w5[0] rQ1[0] rQ1[1] w5[1] c5 cQ1"))


def test_notation_goes_both_ways():
    text = CASES["a"].history
    assert " ".join(map(str, parse(text))) == text
    with pytest.raises(ValueError, match="'x5'"):
        parse("x5")


def test_what_was_aborted_does_not_count():
    assert histories.is_latest_window_serializable(parse("rQ1[0] w5[0] c5 aQ1 rQ2[0] rQ2[1] cQ2"))


# -- the schedulers --------------------------------------------------------------------------------------------------


class Stream:
    """Slots of a real stream, read through the planner; each row carries its slot."""

    def __init__(self, path: Any, slots: int) -> None:
        self.wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA)
        self.schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("slot", pa.int64())])
        self.wh.create_stream("s", self.schema, time="ts", slide="10 seconds", lifetime=f"{slots * 10} seconds")
        self.base = self.wh._store and windrow.times.parse_instant(when(BASE)) // DELTA
        self.number = self.base
        for _ in range(slots):
            self.slide()

    def slide(self) -> int:
        self.number += 1
        ts = self.number * DELTA - 1
        self.wh.append("s", pa.table([[ts, ts], [self.number, self.number]], schema=self.schema))
        return self.wh.slide("s", to=when(self.number * DELTA)).slide

    def pin(self) -> Any:
        return self.wh.snapshot(["s"])

    def read(self, task: ScheduledQuery, slot: int, pinned: Any) -> Any:
        start, stop = (when(instant * DELTA).replace("T", " ")[:19] for instant in (slot - 1, slot))
        text = f"SELECT slot, count(*) FROM s [FROM TIMESTAMP '{start}' TO TIMESTAMP '{stop}'] GROUP BY slot"
        return execution.answer_from_snapshot(self.wh._store, text, snapshot=pinned).fetchall()

    def merge(self, task: ScheduledQuery, parts: list[Any]) -> Any:
        return sorted(row for part in parts for row in part)


def costs(operation: str, measured: float) -> float:
    """A read is one unit of time, a slide costs nothing."""
    return 1.0 if operation == "read" else 0.0


def window_at(slide: int, length: int) -> list[tuple[int, int]]:
    return [(slot, 2) for slot in range(slide - length + 1, slide + 1)]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_every_answer_is_the_state_of_one_slide(path, policy):
    """Periodic queries of all lengths, one-time queries at random moments, slides every seven reads."""
    chance = random.Random(1)
    stream = Stream(path, WINDOW)
    tasks = [ScheduledQuery(f"p{length}", length) for length in (5, 2, 4, 1, 3)]
    arrivals = [
        (chance.uniform(0, 60), ScheduledQuery("once", chance.randint(1, WINDOW), priority=0)) for _ in range(6)
    ]
    executor = Executor(stream, stream.number, WINDOW, policy, 7.0, tasks, arrivals, costs)
    done = executor.run(80)
    assert len(done) > 10
    for finished in done:
        assert finished.answer == window_at(finished.slide, finished.task.length)
        assert finished.staleness >= 0 and finished.response > 0
        if policy.follows:
            newest = max(
                slide for slide, position in executor.slid_at.items() if position < finished.at or position == 0
            )
            assert finished.slide == newest
    assert sum(finished.task.name == "once" for finished in done) == 6


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
@pytest.mark.parametrize("period", [2.0, 3.0, 4.0, 11.0])
def test_histories_have_the_isolation_that_their_scheduler_promises(path, policy, period):
    stream = Stream(path, WINDOW)
    executor = Executor(stream, stream.number, WINDOW, policy, period, [ScheduledQuery("all", WINDOW)], (), costs)
    executor.run(40)
    running = {running.number for running in executor._running}
    history = [o for o in executor.history if o.who not in {f"Q{n}" for n in running}]
    assert histories.is_window_serializable(history)
    if policy is not WS:
        assert histories.is_latest_window_serializable(history)
    elif period < WINDOW:
        assert not histories.is_latest_window_serializable(history)


def test_oldest_first_aborts_where_youngest_first_does_not(path):
    """Slides every seven reads: algorithm 7 aborts what a slide meets, algorithm 8 has not read that slot yet."""
    aborted = {}
    for policy in (LWS, TTU, APART):
        stream = Stream(path.with_name(policy.name), WINDOW)
        executor = Executor(stream, stream.number, WINDOW, policy, 7.0, [ScheduledQuery("all", WINDOW)], (), costs)
        executor.run(70)
        aborted[policy.name] = executor.aborted
    assert aborted["LWS"] > 0 and aborted["TTU"] == aborted["apart"] == 0


def test_where_slides_are_faster_than_queries_only_states_apart_still_answer(path):
    """A slide after each two reads: whatever order is read, an old slot is always read before it leaves."""
    answered = {}
    for policy in (LWS, TTU, APART):
        stream = Stream(path.with_name(policy.name), WINDOW)
        executor = Executor(stream, stream.number, WINDOW, policy, 1.0, [ScheduledQuery("all", 3)], (), costs)
        answered[policy.name] = len(executor.run(30))
        assert policy.aborts or executor.aborted == 0
    assert answered["apart"] >= answered["TTU"] >= answered["LWS"]


def test_only_a_serial_scheduler_makes_the_urgent_wait(path):
    response = {}
    for policy in (SERIAL, WS, TTU, APART):
        stream = Stream(path.with_name(policy.name), WINDOW)
        urgent = ScheduledQuery("once", 1, priority=0)
        executor = Executor(
            stream, stream.number, WINDOW, policy, 50.0, [ScheduledQuery("all", WINDOW)], [(1.0, urgent)], costs
        )
        done = {finished.task.name: finished for finished in executor.run(20)}
        response[policy.name] = done["once"].response
    assert response["Serial"] == WINDOW
    assert {response[name] for name in ("WS", "TTU", "apart")} == {1.0}
