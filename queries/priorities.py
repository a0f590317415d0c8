"""Who goes first: work of lower priority pauses between its reads while a query of higher priority is running.

The gate is the process's own; other processes are the operating system's to schedule.
"""

import threading
import time
from collections.abc import Callable
from typing import Self

import pyarrow as pa

ONE_TIME = 0
BACKGROUND = -1
"""Priorities: a one-time query's, and that of work that only keeps something up to date."""
MAX_PAUSE = 1.0
"""Seconds that work waits for others at a time; what is more urgent than it may never end."""


class PriorityGate:
    """Counts the running queries by priority; whatever has a lower priority waits at the gate."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, int] = {}
        """How many queries run, by priority; a priority without any is left out."""

    def running(self, priority: int) -> "_Running":
        """Whatever has a lower priority pauses meanwhile, as soon as it comes to its next read."""
        return _Running(self, priority)

    def begin(self, priority: int) -> None:
        """Count one more."""
        with self._changed:
            self._running[priority] = self._running.get(priority, 0) + 1

    def end(self, priority: int) -> None:
        """Count one less."""
        with self._changed:
            count = self._running.pop(priority) - 1
            if count:
                self._running[priority] = count
            self._changed.notify_all()

    def pause(self, priority: int, timeout: float | None = None) -> bool:
        """Wait until nothing of a higher priority is running; gives whether it came about within `timeout` seconds."""
        with self._changed:
            if not self._running:
                return True
            return self._changed.wait_for(lambda: not self.held(priority), timeout)

    def held(self, priority: int) -> bool:
        """Whether something of a higher priority is running."""
        return any(other > priority for other in self._running)

    def batches(
        self, reader: pa.RecordBatchReader, priority: int, pause: Callable[[], object] | None = None
    ) -> "YieldingReader":
        """The same rows, fetched at a priority: a slow consumer holds nobody up between two batches."""
        return YieldingReader(self, reader, priority, pause)


class YieldingReader:
    """A reader of record batches that lets more urgent queries go first before each of them.

    Args:
        gate: Where it waits.
        reader: Of the rows.
        priority: At which they are fetched.
        pause: What to do instead of waiting at the gate.
    """

    def __init__(
        self, gate: PriorityGate, reader: pa.RecordBatchReader, priority: int, pause: Callable[[], object] | None
    ) -> None:
        self.schema: pa.Schema = reader.schema
        self._gate, self._reader, self._priority, self._pause = gate, reader, priority, pause

    def read_next_batch(self) -> pa.RecordBatch:
        """The next rows; StopIteration after the last."""
        if self._pause is None:
            self._gate.pause(self._priority, MAX_PAUSE)
        else:
            self._pause()
        with self._gate.running(self._priority):
            return self._reader.read_next_batch()

    def __next__(self) -> pa.RecordBatch:
        return self.read_next_batch()

    def __iter__(self) -> Self:
        return self

    def read_all(self) -> pa.Table:
        """All rows that are left."""
        return pa.Table.from_batches(list(self), self.schema)


class _Running:
    """Something that runs at a priority, as long as its block lasts."""

    def __init__(self, gate: PriorityGate, priority: int) -> None:
        self._gate, self._priority = gate, priority

    def __enter__(self) -> None:
        self._gate.begin(self._priority)

    def __exit__(self, *_: object) -> None:
        self._gate.end(self._priority)


PROCESS_GATE = PriorityGate()
"""The process's gate."""


class PoliteWork:
    """Work that yields to one-time queries, but not for ever: after a wait it may go on for as long as it has waited.

    Args:
        gate: Where the queries are counted.
        longest: Seconds that one wait may last.
    """

    def __init__(self, gate: PriorityGate, longest: float = MAX_PAUSE) -> None:
        self._gate, self._longest = gate, longest
        self._guard = threading.Lock()
        self._free_until = 0.0

    def pause(self) -> float:
        """Wait for one-time queries where it is this work's turn to wait; gives the seconds that it took."""
        started = time.monotonic()
        if started < self._free_until or self._gate.pause(BACKGROUND, 0):
            return 0.0
        passed = self._gate.pause(BACKGROUND, self._longest)
        now = time.monotonic()
        if not passed:
            with self._guard:
                self._free_until = now + (now - started)
        return now - started


YIELDING = PoliteWork(PROCESS_GATE)
"""How the standing queries of this process yield."""
