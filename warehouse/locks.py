"""Locks between processes, on flock: they end with their holder and survive what LMDB's own lock does not."""

import contextlib
import fcntl
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from windrow.errors import BusyError

_POLL_SECONDS = 0.002
"""First pause between two attempts to take a lock; it grows to a tenth of a second."""
_SIGNATURE_BYTES = 128


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take an flock if nobody holds it; a shared one, if nobody holds it alone."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(
    path: Path,
    what: str,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    *,
    signed: bool = True,
    shared: bool = False,
) -> Iterator[None]:
    """Hold the lock file `path`, waiting up to `timeout` seconds (None: for ever) and then naming the holder.

    With `signed` the holder writes its process and host into the file, only for that message: the lock is the flock.
    Several may hold it together if all of them share it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        waited = 0.0
        if timeout is None:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        while timeout is not None and not try_lock(descriptor, shared=shared):
            if waited >= timeout:
                raise BusyError(
                    f"{what} is held by {describe_holder(path)}; it was not free within {timeout:g} s, try again later"
                )
            pause = min(_POLL_SECONDS * (1 + waited * 20), 0.1)
            sleep(pause)
            waited += pause
        if signed:
            # Of one length, so that the file need not be truncated first: that would wait for the disk.
            with contextlib.suppress(OSError):  # a full disk must not keep anybody from what frees space
                os.pwrite(
                    descriptor, f"process {os.getpid()} on {socket.gethostname()}".ljust(_SIGNATURE_BYTES).encode(), 0
                )
        yield
    finally:
        # Unlocked by hand: a child that was forked meanwhile holds a copy of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def describe_holder(path: Path) -> str:
    """Who holds a lock file, in words."""
    try:
        return path.read_text().strip() or "another process"
    except OSError:
        return "another process"


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock file; a missing file is not held."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def remove_unheld(path: str) -> bool:
    """Remove a file that no living process holds; False if one does. Locked meanwhile, so that nobody wakes it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:  # what cannot be looked at may be held
        return False
    try:
        if not try_lock(descriptor):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return True
    finally:
        os.close(descriptor)


_locked_files: "weakref.WeakSet[LockedFile]" = weakref.WeakSet()


def _after_fork() -> None:
    # A child's copy of the descriptor would keep the lock alive after the parent's death.
    for held in list(_locked_files):
        held.close()


os.register_at_fork(after_in_child=_after_fork)


class LockedFile:
    """An empty file that shows that its owner lives: locked before it appears under its name, gone when closed."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        folder, name = os.path.split(path)  # and not by pathlib: a pin is a good part of a probe
        hidden = os.path.join(folder, f".{name}")
        self._descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self._pid = os.getpid()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            os.rename(hidden, path)
            _locked_files.add(self)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(hidden)
            raise

    @classmethod
    def claim(cls, path: Path) -> "LockedFile | None":
        """Hold a file that may be there already; None if somebody else holds it, or removes it or its folder."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except FileNotFoundError:
            return None
        try:
            # Whoever removes it holds it meanwhile: one that is still there now stays.
            ours = try_lock(descriptor) and os.fstat(descriptor).st_nlink > 0
        except BaseException:
            os.close(descriptor)
            raise
        if not ours:
            os.close(descriptor)
            return None
        locked_file = cls.__new__(cls)
        locked_file.path, locked_file._descriptor, locked_file._pid = str(path), descriptor, os.getpid()
        _locked_files.add(locked_file)
        return locked_file

    def unlock(self) -> bool:
        """Let go of the lock but leave the file, which anybody may now remove; False if it is closed."""
        if self._descriptor < 0 or os.getpid() != self._pid:
            return False
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return True

    def relock(self) -> bool:
        """Lock an unlocked file again; False if it was removed, or is just being looked at."""
        try:
            return self._descriptor >= 0 and try_lock(self._descriptor) and os.fstat(self._descriptor).st_nlink > 0
        except OSError:
            return False

    def rename(self, path: Path) -> None:
        """Give it another name."""
        os.rename(self.path, path)
        self.path = str(path)

    def close(self) -> None:
        """Remove the file and let go. In a forked child, only the descriptor is closed: the lock is the parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._pid:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            os.close(descriptor)

    def __del__(self) -> None:
        # Of a warehouse that nobody closed: as long as its locks are held, its staged files count as a living writer's.
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()
