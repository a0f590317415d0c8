"""The schedulers of chapter 7 of [1] (docs/references.md) beside ours, on slots of a real stream.

Time is virtual: each read and slide adds its cost, so a run with given costs can be repeated exactly.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.histories import Operation
from windrow.queries.priorities import BACKGROUND


@dataclass(frozen=True)
class Policy:
    """How queries and slides are interleaved.

    Args:
        name: As in [1], or ours.
        waits: Slides wait until the running query is finished, and no query interrupts another.
        youngest: Sub-windows are read from youngest to oldest (time-to-update order), else from oldest to youngest.
        follows: A query reads the window as it moves, else as it was when the query began.
        aborts: A query that has read a sub-window which then left begins again, else the sub-window's state is dropped.
    """

    name: str
    waits: bool = False
    youngest: bool = True
    follows: bool = True
    aborts: bool = False


SERIAL = Policy("Serial", waits=True, follows=False)
WS = Policy("WS", follows=False)
LWS = Policy("LWS", youngest=False, aborts=True)
TTU = Policy("TTU", aborts=True)
APART = Policy("apart")
"""Ours: states are kept apart by the slide at which they leave, so nothing is aborted or read twice."""
POLICIES = {policy.name: policy for policy in (SERIAL, WS, LWS, TTU, APART)}


class Slots(Protocol):
    """A stream, as the executor reads it."""

    def slide(self) -> int:
        """Commit the next slide; gives its number."""

    def pin(self) -> Any:
        """What is there now."""

    def read(self, task: "ScheduledQuery", slot: int, pinned: Any) -> Any:
        """One sub-window of what is pinned."""

    def merge(self, task: "ScheduledQuery", parts: list[Any]) -> Any:
        """The answer out of its sub-windows."""


@dataclass(frozen=True)
class ScheduledQuery:
    """A query: how many of the youngest sub-windows it reads, and how urgent it is."""

    name: str
    length: int
    priority: int = BACKGROUND
    what: Any = None
    """Whatever `Slots` needs to know."""


@dataclass(frozen=True)
class Finished:
    """A query that was answered."""

    task: ScheduledQuery
    asked: float
    at: float
    slide: int
    """The last slide that the answer reflects."""
    slid_at: float
    aborts: int
    answer: Any

    @property
    def staleness(self) -> float:
        """From the last reflected slide to the answer."""
        return self.at - self.slid_at

    @property
    def response(self) -> float:
        """From the question to the answer."""
        return self.at - self.asked


@dataclass
class _Running:
    task: ScheduledQuery
    number: int
    asked: float
    slide: int
    pinned: Any
    parts: dict[int, Any] = field(default_factory=dict)
    aborts: int = 0

    def left(self) -> list[int]:
        """Sub-windows that were not read yet, oldest first."""
        return [slot for slot in range(self.slide - self.task.length + 1, self.slide + 1) if slot not in self.parts]


Cost = Callable[[str, float], float]


class Executor:
    """Runs periodic queries round and round, one-time queries when they come, and slides when they are due.

    Args:
        slots: The stream.
        slide: Its last slide.
        count: Sub-windows of the window.
        policy: Who waits for whom.
        period: Time between two slides.
        periodic: Asked again as soon as they are answered.
        arrivals: One-time queries and when they come.
        cost: Time that an operation (``read``, ``slide``, or ``plan`` for what the executor itself needs between them)
            takes, given the measured one; by default just that.
    """

    def __init__(
        self,
        slots: Slots,
        slide: int,
        count: int,
        policy: Policy,
        period: float,
        periodic: Iterable[ScheduledQuery] = (),
        arrivals: Iterable[tuple[float, ScheduledQuery]] = (),
        cost: Cost | None = None,
    ) -> None:
        self.slots, self.policy, self.period, self.count = slots, policy, period, count
        self.now, self.due, self.slide = 0.0, period, slide
        self.slid_at = {slide: 0.0}
        self.finished: list[Finished] = []
        self.aborted = 0
        self.history: list[Operation] = []
        self._cost = cost or (lambda _, measured: measured)
        self._waiting = list(periodic)
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival[0])
        self._running: list[_Running] = []
        self._numbers = 0
        self._planned = 0.0
        self._pinned = slots.pin()

    def run(self, until: float) -> list[Finished]:
        """Go on until the counted time has come; gives what was answered."""
        self._planned = time.thread_time()
        while self.now < until:
            if self.now >= self.due and not (self.policy.waits and self._running):
                self._slide()
                continue
            chosen = self._choose()
            if chosen is None:
                self.now = min([until, self.due, *(arrival for arrival, _ in self._arrivals)])
                continue
            self._step(chosen)
        return self.finished

    # -- slides ----------------------------------------------------------------------------------------------------

    def _slide(self) -> None:
        self._timed("slide", self._move)
        self.slid_at[self.slide] = self.now
        self.due += self.period
        item = self.slide % self.count
        self.history += [Operation("w", str(self.slide), item), Operation("c", str(self.slide))]
        for running in self._running if self.policy.follows else ():
            gone = self.slide - running.task.length
            running.slide, running.pinned = self.slide, self._pinned
            if gone in running.parts:
                self._conflict(running, gone)

    def _move(self) -> None:
        self.slide = self.slots.slide()
        self._pinned = self.slots.pin()

    def _conflict(self, running: _Running, gone: int) -> None:
        """The query has read what just left its window."""
        if not self.policy.aborts:
            del running.parts[gone]
            self._forget(f"Q{running.number}", gone % self.count)
            return
        self.aborted += 1
        running.aborts += 1
        self.history.append(Operation("a", f"Q{running.number}"))
        running.parts.clear()
        running.number = self._next()

    def _forget(self, query: str, item: int) -> None:
        """A dropped state is as if it had not been read."""
        place = max(position for position, done in enumerate(self.history) if done == Operation("r", query, item))
        del self.history[place]

    # -- queries ---------------------------------------------------------------------------------------------------

    def _choose(self) -> _Running | None:
        """The most urgent query, begun if it was waiting; a serial executor finishes the one it has."""
        if self.policy.waits and self._running:
            return self._running[0]
        while self._arrivals and self._arrivals[0][0] <= self.now:
            arrival, task = self._arrivals.pop(0)
            self._begin(task, arrival)
        if self._waiting and not self._running:
            self._begin(self._waiting.pop(0), self.now)
        return max(self._running, key=lambda running: running.task.priority, default=None)

    def _begin(self, task: ScheduledQuery, asked: float) -> None:
        self._running.append(_Running(task, self._next(), asked, self.slide, self._pinned))
        if self.policy.waits:
            self._running.sort(key=lambda running: -running.task.priority)

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _step(self, running: _Running) -> None:
        if self.policy.waits and not running.parts:
            running.slide, running.pinned = self.slide, self._pinned
        left = running.left()
        slot = left[-1] if self.policy.youngest else left[0]
        running.parts[slot] = self._timed("read", lambda: self.slots.read(running.task, slot, running.pinned))
        self._record(Operation("r", f"Q{running.number}", slot % self.count), slot)
        if not running.left():
            self._commit(running)

    def _record(self, read: Operation, slot: int) -> None:
        """A history knows one version of a sub-window, so reading a replaced one counts as read before that."""
        if slot + self.count > self.slide:
            self.history.append(read)
        else:
            self.history.insert(self.history.index(Operation("w", str(slot + self.count), read.item)), read)

    def _commit(self, running: _Running) -> None:
        answer = self.slots.merge(running.task, [running.parts[slot] for slot in sorted(running.parts)])
        self.history.append(Operation("c", f"Q{running.number}"))
        self._running.remove(running)
        self.finished.append(
            Finished(
                running.task,
                running.asked,
                self.now,
                running.slide,
                self.slid_at[running.slide],
                running.aborts,
                answer,
            )
        )
        if running.task.priority <= BACKGROUND:
            self._waiting.append(running.task)

    def _timed(self, operation: str, work: Callable[[], Any]) -> Any:
        # The executor's own share is small, so it is counted in processor time, which other programs do not stretch.
        self.now += self._cost("plan", time.thread_time() - self._planned)
        started = time.perf_counter()
        done = work()
        self.now += self._cost(operation, time.perf_counter() - started)
        self._planned = time.thread_time()
        return done
