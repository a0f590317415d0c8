"""Who goes first: work of lower priority pauses between its reads while a query of higher priority is running.

The gate is the process's own; other processes are the operating system's to schedule.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

ONE_TIME = 0
BACKGROUND = -1
"""Priorities: a one-time query's, and that of work that only keeps something up to date."""


class Gate:
    """Counts what is running, by priority."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[int] = Counter()

    @contextmanager
    def running(self, priority: int) -> Iterator[None]:
        """Whatever has a lower priority pauses meanwhile, as soon as it comes to its next read."""
        with self._changed:
            self._running[priority] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[priority] -= 1
                self._changed.notify_all()

    def pause(self, priority: int, timeout: float | None = None) -> bool:
        """Wait until nothing of a higher priority is running; gives whether it came about within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.held(priority), timeout)

    def held(self, priority: int) -> bool:
        """Whether something of a higher priority is running."""
        return any(count and other > priority for other, count in self._running.items())

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


GATE = Gate()
"""The process's gate."""
