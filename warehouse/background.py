"""Work that nobody waits for, such as advice: done in small steps, within a budget, by those who cause it.

There is no thread for it. A slide pays for some steps with a share of its own processor time, `windrow serve` does
steps while nothing is due, and a handle that is closed does what it left for a short time more. What is not done
then is lost, so only work that comes again by itself belongs here.
"""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from windrow.errors import WindrowError
from windrow.store import Store

Steps = Generator[None, None, Any]
"""Work that pauses after each small step."""
SHARE, SMALL_SHARE = 0.5, 0.1
"""Of the processor time of a slide, which it adds for a task; and for one that is as good later."""
_LEAST_SECONDS, _MOST_SECONDS = 0.001, 0.02
"""Limits of what a slide adds."""
_CLOSING_SECONDS = 0.5
"""Processor time that a handle spends on what it has left when it is closed."""
_MOST_TASKS = 64
"""Tasks that may wait; more are not taken, and come again when they are due next."""


@dataclass(frozen=True)
class Task:
    """Some work of a handle, begun or not."""

    store: Store
    name: str
    steps: Steps
    share: float = SHARE
    """Of a slide's processor time, which the slide adds for it."""


class Background:
    """The work that waits in this process for one warehouse, oldest first; handles share it."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._guard = threading.Lock()

    def add(self, store: Store, name: str, steps: Steps, share: float = SHARE) -> bool:
        """Take on some work; False if work of that name waits already, or too much does."""
        with self._guard:
            if len(self._tasks) >= _MOST_TASKS or any(task.name == name for task in self._tasks):
                return False
            if all(task.store is not store for task in self._tasks):
                store.closing.append(partial(self.leave, store))
            self._tasks.append(Task(store, name, steps, share))
            return True

    def waiting(self) -> tuple[str, ...]:
        """The names of tasks that are not done."""
        with self._guard:
            return tuple(task.name for task in self._tasks)

    def run(self, seconds: float, store: Store | None = None) -> bool:
        """Do steps for so much processor time, at least one (of one handle's tasks); False if nothing was left to do.

        A task that fails is given up: nobody waits for it, and it comes again.
        """
        end = time.thread_time() + seconds
        while (task := self._take(store)) is not None:
            try:
                for _ in task.steps:
                    if time.thread_time() >= end:
                        with self._guard:
                            self._tasks.appendleft(task)
                        return True
            except WindrowError:
                continue
        return False

    def pay(self, seconds: float) -> None:
        """Do steps after a slide that took so much processor time."""
        with self._guard:
            share = max((task.share for task in self._tasks), default=0.0)
        if share:
            self.run(min(_MOST_SECONDS, max(_LEAST_SECONDS, share * seconds)))

    def _take(self, store: Store | None) -> Task | None:
        """A task that nobody else is at."""
        with self._guard:
            task = next((task for task in self._tasks if store in (None, task.store)), None)
            if task is not None:
                self._tasks.remove(task)
            return task

    def drop(self, prefix: str) -> None:
        """Give up tasks whose names begin so, with what they pin; they come again."""
        with self._guard:
            dropped = [task for task in self._tasks if task.name.startswith(prefix)]
            self._tasks = deque(task for task in self._tasks if task not in dropped)
        for task in dropped:
            task.steps.close()

    def leave(self, store: Store) -> None:
        """Do what a handle that is closed has left, as far as a short time suffices, and drop the rest."""
        self.run(_CLOSING_SECONDS, store)
        with self._guard:
            self._tasks = deque(task for task in self._tasks if task.store is not store)


def background_of(store: Store) -> Background:
    """The background work of a warehouse in this process."""
    return store.shared.attached("background", Background)


@contextmanager
def paying(store: Store) -> Iterator[None]:
    """Do steps of background work after the block, in proportion to the processor time that the block took."""
    started = time.thread_time()
    yield
    background_of(store).pay(time.thread_time() - started)
