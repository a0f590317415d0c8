"""Who goes first: work of lower priority pauses between its reads while a query of higher priority is running.

The gate is the process's own; other processes are the operating system's to schedule.
"""

import threading
from collections.abc import Iterator

import pyarrow as pa

ONE_TIME = 0
BACKGROUND = -1
"""Priorities: a one-time query's, and that of work that only keeps something up to date."""


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

    def batches(self, reader: pa.RecordBatchReader, priority: int) -> pa.RecordBatchReader:
        """The same rows, fetched at a priority: a slow consumer holds nobody up between two batches."""
        return pa.RecordBatchReader.from_batches(reader.schema, self._fetch(reader, priority))

    def _fetch(self, reader: pa.RecordBatchReader, priority: int) -> Iterator[pa.RecordBatch]:
        while True:
            self.pause(priority)
            with self.running(priority):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch


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
