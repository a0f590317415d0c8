"""Pins: locked files that say from which commit on a reader of this process still needs what commits replace.

A reader that has ended leaves its pin resting, unlocked, for the next one: to make and remove a file takes longer than
to lock it again. A resting pin protects nothing and may be removed by whoever finds it, under its lock; so one that is
woken is looked at before it counts. It may keep the name of an earlier commit: it then protects a little more than it
must, and a reader neither asks for the last commit first nor changes a folder, which waits for the disk's journal.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

from windrow.locks import LockedFile

_MOST_IDLE = 4
"""That are kept: as many readers as a process usually has at a time."""
_MOST_COMMITS_BEHIND = 8
"""Commits that a woken pin may be behind its reader."""


def pin_path(folder: Path, version: int, name: str) -> Path:
    """Where a pin lies: its name says the commit, and it is empty, so a full disk can still be read.

    Args:
        folder: Of the pins.
        version: The commit.
        name: What else is in its name, unlike all others.
    """
    return folder / f"{version}-{name}"


class Pin(LockedFile):
    """One pin.

    Args:
        folder: Of the pins.
        version: The commit.
        name: What else is in its name, unlike all others.
    """

    def __init__(self, folder: Path, version: int, name: str) -> None:
        self.version, self._name = version, name
        super().__init__(pin_path(folder, version, name))

    def moved(self, version: int) -> bool:
        """Whether it could be made to pin what commits after `version` replace; it must be held."""
        if version != self.version:
            try:
                self.rename(pin_path(Path(self.path).parent, version, self._name))  # nobody removes it while it is held
            except OSError:
                return False
            self.version = version
        return True


class PinPool:
    """The pins of one handle, of which nothing else is known here: snapshots that nobody closed must not keep it alive.

    Nothing waits for a lock either: the garbage collector gives pins back at any moment.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._resting: deque[Pin] = deque()
        self._ended = False
        self.seen = 0
        """The last commit that a reader of this handle has read."""
        weakref.finalize(self, _close_all, self._resting)

    def take(self, version: Callable[[], int], unique: Callable[[], str]) -> Pin:
        """A pin, held when this returns, for one who then reads the last commit.

        It is of the commit that `version` gives, or of an earlier one, if one rests. It is renamed only here, before
        anything is read: who looks through the folder meanwhile may find neither name.
        """
        held = self._woken()
        if held is not None and (self.seen - held.version <= _MOST_COMMITS_BEHIND or held.moved(self.seen)):
            return held
        if held is not None:
            held.close()
        return self._new(version(), unique())

    def exact(self, version: int, unique: Callable[[], str]) -> Pin:
        """A pin of what commits after `version` replace, held when this returns."""
        held = self._woken()
        if held is not None and held.moved(version):
            return held
        if held is not None:
            held.close()
        return self._new(version, unique())

    def _woken(self) -> Pin | None:
        while self._resting:
            try:
                held = self._resting.pop()
            except IndexError:  # another thread was quicker
                return None
            if held.wake():
                return held
            held.close()
        return None

    def _new(self, version: int, name: str) -> Pin:
        try:
            return Pin(self.folder, version, name)
        except FileNotFoundError:  # the first pin of a warehouse
            self.folder.mkdir(exist_ok=True)
            return Pin(self.folder, version, name)

    def give(self, held: Pin) -> None:
        """Let a pin rest, or go."""
        if self._ended or len(self._resting) >= _MOST_IDLE or not held.rest():
            held.close()
            return
        self._resting.append(held)
        if self._ended:
            _close_all(self._resting)

    def resting(self) -> frozenset[str]:
        """The names of pins that protect nothing at this moment; a reader that wakes one has yet to read."""
        return frozenset(os.path.basename(held.path) for held in self._resting.copy())

    def clear(self) -> None:
        """Remove those that rest."""
        _close_all(self._resting)

    def close(self) -> None:
        """Remove those that rest, and keep none from now on."""
        self._ended = True
        _close_all(self._resting)


def _close_all(resting: deque[Pin]) -> None:
    while resting:
        try:
            held = resting.pop()
        except IndexError:
            return
        held.close()
