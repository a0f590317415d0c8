"""Pins: locked files that say from which commit on a reader of this process still needs what commits replace.

A reader that has ended leaves its pin idle, unlocked, for the next one, because to create and remove a file takes
longer than to lock it again. An idle pin protects nothing, and anybody may remove it while holding its lock; so one
that is locked again is checked before it counts. It may keep the name of an earlier commit: it then protects a little
more than it must, but the reader need not ask for the last commit first, nor change a folder and wait for the disk.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

from windrow.files import make_folder
from windrow.locks import LockedFile

_MOST_IDLE = 4
"""Idle pins that a handle keeps: as many readers as a process usually has at a time."""
_MOST_COMMITS_BEHIND = 8
"""How many commits a reused pin may be behind its reader."""


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

    def move_to(self, version: int) -> bool:
        """Whether it could be made to pin what commits after `version` replace; it must be locked."""
        if version != self.version:
            try:
                # Nobody removes it while it is locked.
                self.rename(pin_path(Path(self.path).parent, version, self._name))
            except OSError:
                return False
            self.version = version
        return True


class PinPool:
    """The pins of one handle. It does not refer to the handle, which an unclosed snapshot would otherwise keep alive.

    Nothing here waits for a lock, because the garbage collector may release a pin at any time.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._idle: deque[Pin] = deque()
        self._closed = False
        self.last_read = 0
        """The last commit that a reader of this handle has read."""
        weakref.finalize(self, _close_all, self._idle)

    def acquire(self, version: Callable[[], int], unique: Callable[[], str]) -> Pin:
        """A locked pin for a reader that reads the last commit after this returns.

        It is of the commit that `version` gives, or of an earlier one if an idle pin is reused. It is renamed only
        here, before anything is read: a process that lists the folder meanwhile may find neither name.
        """
        pin = self._relock_idle()
        if pin is not None and (self.last_read - pin.version <= _MOST_COMMITS_BEHIND or pin.move_to(self.last_read)):
            return pin
        if pin is not None:
            pin.close()
        return self._new(version(), unique())

    def acquire_at(self, version: int, unique: Callable[[], str]) -> Pin:
        """A pin of what commits after `version` replace, locked when this returns."""
        pin = self._relock_idle()
        if pin is not None and pin.move_to(version):
            return pin
        if pin is not None:
            pin.close()
        return self._new(version, unique())

    def _relock_idle(self) -> Pin | None:
        while self._idle:
            try:
                pin = self._idle.pop()
            except IndexError:  # another thread was quicker
                return None
            if pin.relock():
                return pin
            pin.close()
        return None

    def _new(self, version: int, name: str) -> Pin:
        try:
            return Pin(self.folder, version, name)
        except FileNotFoundError:  # the first pin of a warehouse
            make_folder(self.folder)
            return Pin(self.folder, version, name)

    def release(self, pin: Pin) -> None:
        """Keep a pin unlocked for the next reader, or remove it."""
        if self._closed or len(self._idle) >= _MOST_IDLE or not pin.unlock():
            pin.close()
            return
        self._idle.append(pin)
        if self._closed:
            _close_all(self._idle)

    def idle(self) -> frozenset[str]:
        """The names of pins that protect nothing now; a reader that locks one again has yet to read."""
        return frozenset(os.path.basename(pin.path) for pin in self._idle.copy())

    def clear(self) -> None:
        """Remove the idle ones."""
        _close_all(self._idle)

    def close(self) -> None:
        """Remove the idle ones, and keep none from now on."""
        self._closed = True
        _close_all(self._idle)


def _close_all(idle: deque[Pin]) -> None:
    while idle:
        try:
            pin = idle.pop()
        except IndexError:
            return
        pin.close()
