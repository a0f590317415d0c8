"""Leases on cached files: a process that lets DuckDB or Spark open a file by its name keeps others from evicting it.

Each file is one byte of a lock file, by its hash, locked for the open file description (OFD): one descriptor per
process however many files there are, and all leases end with it. Two files of one hash only keep each other.
"""

import errno
import fcntl
import os
import struct
from collections import Counter
from pathlib import Path

import xxhash

_FLOCK = struct.Struct("hhqqi4x")


class FileLeases:
    """The leases of one process. Not for several threads at a time.

    Args:
        path: The lock file.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except PermissionError:  # who may only read has leases, and evicts nothing
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._users: Counter[int] = Counter()

    def acquire(self, file: str) -> None:
        """Keep a file from being evicted; waits while somebody does that."""
        place = _place(file)
        if not self._users[place]:
            self._lock(fcntl.F_RDLCK, place, wait=True)
        self._users[place] += 1

    def release(self, file: str) -> None:
        """Give one lease back."""
        place = _place(file)
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self._lock(fcntl.F_UNLCK, place)

    def take_alone(self, file: str) -> bool:
        """Whether nobody has a lease on a file; nobody gets one then until `free` is called."""
        place = _place(file)
        return place not in self._users and self._lock(fcntl.F_WRLCK, place)

    def free(self, file: str) -> None:
        """End `take_alone`."""
        self._lock(fcntl.F_UNLCK, _place(file))

    def _lock(self, kind: int, place: int, *, wait: bool = False) -> bool:
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        try:
            fcntl.fcntl(self._descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES, errno.EBADF):
                return False
            raise
        return True

    def close(self) -> None:
        """End all leases of this process."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _place(file: str) -> int:
    return xxhash.xxh3_64_intdigest(file.encode()) >> 2
