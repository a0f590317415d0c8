"""Pins: locked files that say from which commit on a reader of this process still needs what commits replace.

A reader that has ended leaves its pin resting, unlocked, for the next one: to make and remove a file takes longer than
to lock it again. A resting pin protects nothing and may be removed by whoever finds it, under its lock; so one that is
woken is looked at before it counts.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

from windrow.locks import HeldFile

_RESTING = 4
"""That are kept: as many readers as a process usually has at a time."""


class Pins:
    """The pins of one handle, of which nothing else is known here: snapshots that nobody closed must not keep it alive.

    Nothing waits for a lock either: the garbage collector gives pins back at any moment.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._resting: deque[HeldFile] = deque()
        self._ended = False
        weakref.finalize(self, _end, self._resting)

    def path(self, version: int, name: str) -> Path:
        """Where a new pin lies. The version is in the name and the file is empty: a full disk can still be read."""
        return self.folder / f"{version}-{name}"

    def take(self, version: int, unique: Callable[[], str]) -> HeldFile:
        """A pin of what commits after `version` replace, published when this returns; a new one needs a unique name."""
        while self._resting:
            try:
                held = self._resting.pop()
            except IndexError:  # another thread was quicker
                break
            tag = os.path.basename(held.path).split("-", 1)[1]
            if held.wake(os.path.join(self.folder, f"{version}-{tag}")):
                return held
            held.close()
        path = self.path(version, unique())
        try:
            return HeldFile(path)
        except FileNotFoundError:  # the first pin of a warehouse
            path.parent.mkdir(exist_ok=True)
            return HeldFile(path)

    def give(self, held: HeldFile) -> None:
        """Let a pin rest, or go."""
        if self._ended or len(self._resting) >= _RESTING or not held.rest():
            held.close()
            return
        self._resting.append(held)
        if self._ended:
            _end(self._resting)

    def resting(self) -> frozenset[str]:
        """The names of pins that protect nothing at this moment; a reader that wakes one has yet to read."""
        return frozenset(os.path.basename(held.path) for held in self._resting.copy())

    def clear(self) -> None:
        """Remove those that rest."""
        _end(self._resting)

    def close(self) -> None:
        """Remove those that rest, and keep none from now on."""
        self._ended = True
        _end(self._resting)


def _end(resting: deque[HeldFile]) -> None:
    while resting:
        try:
            held = resting.pop()
        except IndexError:
            return
        held.close()
