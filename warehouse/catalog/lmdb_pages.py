"""What an LMDB file says of itself, before it is mapped: how many pages it has, and which commit is its last.

Who reads a mapped page that the file does not have is killed by a signal. A copy that was cut short is such a file.
"""

import os
import stat
import struct
from pathlib import Path
from typing import Any

from windrow.errors import FormatError

_META = struct.Struct("<IIQQ48s48sQQ")
"""Of LMDB 0.9: magic number, version, address, size of the map, free pages, main database, last page, commit."""
_DATABASE = struct.Struct("<IHHQQQQQ")
"""Page size (of the first one), flags, depth, counts of pages, entries, root."""
_READS = 100
"""Others may commit between two reads of one look."""
_MAGIC, _HEADER, _NO_PAGE = 0xBEEFC0DE, 16, (1 << 64) - 1
_BRANCH, _LEAF = 1, 2
_IN_OVERFLOW, _IS_DATABASE = 1, 2
"""Flags of pages, and of what a leaf has at a key."""


def check_file(path: Path) -> None:
    """Refuse a file that lacks pages which its last commit needs, that hides that commit, or that is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} is not a file; restore the catalog from a copy")
        if status.st_size and not _Pages(descriptor, status.st_size).are_complete():
            raise FormatError(
                f"{path} is shorter than its own pages say: it was cut off at {status.st_size} bytes; "
                "restore it from a copy, the rows are untouched"
            )
        if status.st_size and not _Pages(descriptor, status.st_size).have_successive_commits():
            raise FormatError(
                f"{path} is damaged: its two last commits have numbers that do not follow on each other; "
                "restore it from a copy, the rows are untouched"
            )
    finally:
        os.close(descriptor)


class _Pages:
    def __init__(self, descriptor: int, length: int) -> None:
        self._descriptor, self._length, self._size = descriptor, length, 4096

    def are_complete(self) -> bool:
        """Whether all pages are there; LMDB may leave the last ones unwritten if they were never used."""
        first = self._meta(0)
        if first is None:
            return self._length >= 2 * self._size  # LMDB says what it is
        self._size = _DATABASE.unpack(first[4])[0] or self._size
        metas = [meta for meta in (first, self._meta(self._size)) if meta is not None]
        newest = max(metas, key=lambda meta: int(meta[7]))
        if self._length < 2 * self._size:
            return False
        if (newest[6] + 1) * self._size <= self._length:
            return True
        return all(self._holds(_DATABASE.unpack(database)[7]) for database in newest[4:6])

    def have_successive_commits(self) -> bool:
        """Whether the first pages are of the last two commits, an even one and an odd one: LMDB takes the later."""
        for _ in range(_READS):
            first = self._meta(0)
            second = None if first is None else self._meta(_DATABASE.unpack(first[4])[0] or self._size)
            if first is None or second is None:
                return True  # LMDB says what it is
            even, odd = int(first[7]), int(second[7])
            if (even, odd) == (0, 0) or (even % 2 == 0 and abs(even - odd) == 1):
                return True
        return False

    def _meta(self, offset: int) -> tuple[Any, ...] | None:
        raw = os.pread(self._descriptor, _META.size, offset + _HEADER)
        meta = _META.unpack(raw) if len(raw) == _META.size else None
        return meta if meta is not None and meta[0] == _MAGIC else None

    def _holds(self, root: int) -> bool:
        """Whether a tree lies within the file."""
        pending, visited = [root], set[int]()
        while pending:
            number = pending.pop()
            if number == _NO_PAGE or number in visited:
                continue
            visited.add(number)
            page = os.pread(self._descriptor, self._size, number * self._size)
            if len(page) < self._size:
                return False
            flags, lower = struct.unpack_from("<HH", page, 10)
            nodes = struct.unpack_from(f"<{max(0, min(lower, self._size) - _HEADER) // 2}H", page, _HEADER)
            for offset in nodes if flags & (_BRANCH | _LEAF) else ():
                low, high, kind, key = struct.unpack_from("<HHHH", page, min(offset, self._size - 8))
                data = offset + 8 + key
                if flags & _BRANCH:
                    pending.append(low | high << 16 | kind << 32)
                elif kind & _IS_DATABASE and data + _DATABASE.size <= self._size:
                    pending.append(_DATABASE.unpack_from(page, data)[7])
                elif kind & _IN_OVERFLOW and data + 8 <= self._size:
                    size = (low | high << 16) + _HEADER
                    if struct.unpack_from("<Q", page, data)[0] * self._size + size > self._length:
                        return False
        return True
