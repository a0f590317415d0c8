"""The cache of segment files: the warehouse's own folder, which holds what was read last of the object store.

A file lies where it would lie without an object store, so that every reader opens and maps it by the same path. What is
not there is brought as a whole, by one request, and compared with its digest; what was not read for longest is removed
when the folder holds more than it may. A mapped file stays readable when it is removed; one that is opened by its name
later is leased first (`file_leases`).
"""

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import xxhash

from windrow.catalog.records import ObjectEntry
from windrow.errors import DamageError
from windrow.files import FileSystem, SpillFolder, compute_digest, disk_errors, file_mode
from windrow.object_store.file_leases import FileLeases
from windrow.object_store.location import MOST_REQUESTS, ObjectStore
from windrow.orphans import data_files

_TRIMMED_TO = 0.9
"""The part of the limit that is left when files are removed, so that this is not done for each file that comes."""
_ATTEMPTS = 2
"""How often an object is fetched whose bytes have another digest."""
_MOST_NOTED = 1 << 16
"""Files whose last use is remembered until it is put down on them. Not measured: a bound."""


FindEntries = Callable[[Collection[str]], Mapping[str, ObjectEntry]]
"""Of files, those that are in the store, with what the catalog says of them."""


class SegmentCache:
    """Files of the object store in the warehouse's folder; all handles of a process share it.

    Args:
        root: The warehouse.
        objects: Where the files come from.
        lock_path: The lock file of the leases.
        name: For a folder in staging, unique for ever.
        limit: Bytes that files in the folder may take.
    """

    def __init__(
        self,
        root: Path,
        objects: ObjectStore,
        lock_path: Path,
        name: str,
        limit: int,
    ) -> None:
        self.root, self.objects, self.limit = root, objects, limit
        self._guard = threading.RLock()
        self._leases = FileLeases(lock_path)
        self._lock_path = lock_path
        self._name = name
        self._folder: SpillFolder | None = None
        self._numbers = itertools.count(1)
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[str, Future[None]] = {}
        self._used: dict[str, int] = {}
        self._tickets = itertools.count(1)
        self._last_ticket = 0
        self._open: set[int] = set()
        self._left: deque[int] = deque()
        self._held: deque[tuple[int, frozenset[str]]] = deque()
        self._seen_evictions = self._count_evictions()
        self.bytes = sum(size for _, size, _ in self._list_files())
        """What files of the folder take, as far as this process knows."""
        self.requests = 0
        """Objects that this process has asked for."""

    # -- bringing ------------------------------------------------------------------------------------------------------

    def touch(self, files: Iterable[str]) -> None:
        """Note that files are read now."""
        self._used.update(dict.fromkeys(files, time.time_ns()))
        if len(self._used) > _MOST_NOTED:
            self._note_uses()

    def bring(self, files: Collection[str], find_entries: FindEntries) -> None:
        """See that files are in the folder: all that are missing are asked for at once."""
        missing = [file for file in files if not os.path.exists(f"{self.root}/{file}")]
        if not missing:
            return
        entries = find_entries(missing)
        work = [self._begin(file, entry) for file, entry in entries.items()]
        errors = [error for future in work if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        self._trim_if_full(find_entries)

    def _begin(self, file: str, entry: ObjectEntry) -> Future[None]:
        """Fetch a file in the background, once for all who want it."""
        with self._guard:
            future = self._under_way.get(file)
            if future is None:
                future = self._run(self._fetch, file, entry)
                self._under_way[file] = future
                future.add_done_callback(lambda _: self._under_way.pop(file, None))
            return future

    def _run(self, work: Callable[..., None], *arguments: object) -> Future[None]:
        with self._guard:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MOST_REQUESTS, thread_name_prefix="windrow-objects")
            return self._pool.submit(work, *arguments)

    def run_all(self, work: Callable[..., None], items: Iterable[Sequence[object]]) -> None:
        """Call `work` with each of `items`, many at a time; raises the first error when all have ended."""
        running = [self._run(work, *item) for item in items]
        errors = [error for future in running if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _fetch(self, file: str, entry: ObjectEntry) -> None:
        target = self.root / file
        with disk_errors(f"caching {file}"):
            if not target.parent.is_dir():
                FileSystem().make_folder(target.parent)
            for _ in range(_ATTEMPTS):
                hidden = self._stage()
                try:
                    with hidden.open("xb") as stream:
                        os.fchmod(stream.fileno(), file_mode(target.parent))
                        sink = _DigestingSink(stream)
                        self.requests += 1
                        self.objects.fetch(file, sink)
                    if (sink.count, sink.digest()) == (entry.bytes, entry.digest):
                        hidden.rename(target)
                        with self._guard:
                            self.bytes += entry.bytes
                        return
                finally:
                    hidden.unlink(missing_ok=True)
        raise DamageError(
            f"object {self.objects.uri(file)} does not have the checksum with which it was written; run 'windrow check'"
        )

    def _stage(self) -> Path:
        with self._guard:
            if self._folder is None:
                self._folder = SpillFolder(self.root, self._name)
            return self._folder.folder / f"{next(self._numbers)}.part"

    def replace(self, file: str, find_entries: FindEntries) -> bool:
        """Bring a damaged file again; False if it is not in the store, or is not damaged."""
        entry = find_entries([file]).get(file)
        path = self.root / file
        if entry is None or (path.exists() and compute_digest(path) == entry.digest):
            return False
        with self._guard:
            if path.exists():
                self.bytes -= path.stat().st_size
                path.unlink(missing_ok=True)
        self.bring([file], find_entries)
        return True

    # -- leases --------------------------------------------------------------------------------------------------------

    def enter(self) -> int:
        """Note that a snapshot is opened; gives a number for `leave`."""
        with self._guard:
            self._settle()
            self._last_ticket = next(self._tickets)
            self._open.add(self._last_ticket)
            return self._last_ticket

    def leave(self, ticket: int) -> None:
        """Note that a snapshot has ended; waits for nobody, as the garbage collector may call this."""
        self._left.append(ticket)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """What is held in this block stays until its end."""
        ticket = self.enter()
        try:
            yield
        finally:
            self.leave(ticket)

    def hold(self, files: Collection[str], find_entries: FindEntries) -> None:
        """See that files are in the folder, and stay there until the snapshots that are open now have ended."""
        with self._guard:
            self._settle()
            for file in files:
                self._leases.acquire(file)
            self._held.append((self._last_ticket, frozenset(files)))
        self.touch(files)
        self.bring(files, find_entries)

    def _settle(self) -> None:
        """Give back the leases that no open snapshot can need."""
        while self._left:
            self._open.discard(self._left.popleft())
        oldest = min(self._open, default=self._last_ticket + 1)
        while self._held and self._held[0][0] < oldest:
            for file in self._held.popleft()[1]:
                self._leases.release(file)

    # -- eviction ------------------------------------------------------------------------------------------------------

    def note_added(self, size: int, find_entries: FindEntries) -> None:
        """Count bytes of files that this process has put into the folder itself."""
        with self._guard:
            self.bytes += size
        self._trim_if_full(find_entries)

    def _trim_if_full(self, find_entries: FindEntries) -> None:
        if self.bytes > self.limit:
            self.trim(find_entries)

    def trim(self, find_entries: FindEntries) -> list[str]:
        """Remove the files that were not read for longest, as far as the folder holds too much; gives which."""
        with self._guard:
            self._settle()
            self._note_uses()
            files = sorted(self._list_files())
            self.bytes = sum(size for _, size, _ in files)
            if self.bytes <= self.limit:
                return []
            in_store = find_entries([file for *_, file in files])
            evicted = []
            for _, size, file in files:
                if self.bytes <= self.limit * _TRIMMED_TO:
                    break
                if file not in in_store or not self._leases.take_alone(file):
                    continue
                try:
                    (self.root / file).unlink(missing_ok=True)
                finally:
                    self._leases.free(file)
                self.bytes -= size
                evicted.append(file)
            if evicted:
                os.utime(self._lock_path)
            return evicted

    def _list_files(self) -> list[tuple[int, int, str]]:
        """Last use, size and name of each file in the folder."""
        listed = []
        for file in data_files(self.root):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(f"{self.root}/{file}")
                listed.append((status.st_atime_ns, status.st_size, file))
        return listed

    def _note_uses(self) -> None:
        """Put down on the files when they were read last, which processes share."""
        used, self._used = self._used, {}
        for file, read_at in used.items():
            with contextlib.suppress(OSError):
                path = f"{self.root}/{file}"
                os.utime(path, ns=(read_at, os.stat(path).st_mtime_ns))

    def _count_evictions(self) -> int:
        return os.stat(self._lock_path).st_mtime_ns

    def find_evicted(self, list_mapped: Callable[[], Iterable[str]]) -> list[str]:
        """Of files that are mapped here, those that some process has removed since this was asked last."""
        evictions = self._count_evictions()
        if evictions == self._seen_evictions:
            return []
        self._seen_evictions = evictions
        return [file for file in list_mapped() if not os.path.exists(f"{self.root}/{file}")]

    def close(self) -> None:
        """End all leases and requests."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._folder is not None:
            self._folder.close()
        with contextlib.suppress(OSError):
            self._note_uses()
        self._leases.close()


class _DigestingSink:
    """Writes into a file, and computes the digest of what is written."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._hasher = xxhash.xxh3_64()
        self.count = 0

    def write(self, chunk: bytes) -> int:
        self._hasher.update(chunk)
        self.count += len(chunk)
        return self._sink.write(chunk)

    def digest(self) -> str:
        return self._hasher.hexdigest()
