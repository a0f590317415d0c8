"""The `Store`: what every part of one open warehouse shares, such as its folder, catalog, caches, clock and writer.

All state of a warehouse in this process hangs here, and is gone when the store is closed.
"""

import contextlib
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from windrow.catalog.environment import Catalog, SharedState, Tables, catalog_key
from windrow.catalog.object_log import give_up_objects, is_in_store
from windrow.errors import ClosedError, FormatError, StorageError, WindrowError
from windrow.files import FileSystem, StagingWriter
from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.manifest import Manifest
from windrow.indexes.scan import ScanCache
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.native import parquet_reader
from windrow.orphans import named_files
from windrow.pins import PinPool
from windrow.row_spool import SMALL_ROWS
from windrow.usage import LEAST_AT_CLOSE, UsageCounters

if TYPE_CHECKING:
    from windrow.indexes.segment_writer import EncodingChooser
    from windrow.object_store.segment_store import SegmentStore

T = TypeVar("T")
_DIRECTORY_CACHE = 64 << 20
"""Bytes of directories in memory. Not measured: a bound."""


def _make_chooser() -> "EncodingChooser":
    from windrow.indexes.segment_writer import EncodingChooser

    return EncodingChooser()


def wall_clock() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


def _read_directory(tables: Tables, segment: int) -> bytes:
    stored = tables.raw("directories", catalog_key(segment))
    if stored is None:
        raise FormatError(
            f"the directory of segment {segment} is not in the catalog: a slide has removed it, if this process may "
            "not pin what it reads, and asking again helps; otherwise the catalog is damaged, see 'windrow check'"
        )
    return bytes(stored)


@dataclass
class Store:
    """One open warehouse. Clock, disk, sleep and randomness are injected."""

    root: Path
    catalog: Catalog
    files: FileSystem
    reader: SegmentFileReader
    columns: ColumnCache
    scan_cache: ScanCache
    clock: Callable[[], int] = wall_clock
    sleep: Callable[[float], None] = time.sleep
    randomness: random.Random = field(default_factory=random.SystemRandom)
    read_only: bool = False
    cleared: int = 0
    """Leavings of dead processes that were removed when the warehouse was opened, until `gc` has told it."""
    memory: str | None = None
    spill: str | None = None
    """What statements may use of memory and of the disk; see `Warehouse`."""
    allowed_hosts: frozenset[str] = frozenset()
    allowed_commands: frozenset[str] = frozenset()
    """Where periodic queries of this process may send their results; see `Warehouse`."""
    statements: set[Any] = field(default_factory=set)
    """Statements of this handle that are running now; each has `interrupt`."""
    manifests: dict[int, tuple[int, Manifest]] = field(default_factory=dict)
    snapshots: dict[Any, Any] = field(default_factory=dict)
    """What snapshots of the last commit share; see `snapshot.SnapshotContents`."""
    known_streams: dict[str, Any] = field(default_factory=dict)
    """Streams as small appends last saw them; see `small_append`."""
    small_rows: int = SMALL_ROWS
    """Appends of at most so many rows wait in the catalog; 0: all are written to files."""
    usage: UsageCounters = field(default_factory=UsageCounters)
    encodings: "defaultdict[int, EncodingChooser]" = field(default_factory=lambda: defaultdict(_make_chooser))
    """By the number of a stream: which columns of its files get a dictionary or compression."""
    published: dict[str, bytes] = field(default_factory=dict)
    """Checksums of files that were published and that the next commit will name; see `write_with_files`."""
    sealed: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Size and digest of those files."""
    remote: "SegmentStore | None" = None
    """The object store that has all files, if there is one; the folder then holds what was read last of them."""
    removals: set[bytes] = field(default_factory=set)
    """Keys of reclaim records whose files are being removed; see `reclaim`."""
    closing: list[Callable[[], None]] = field(default_factory=list)
    """Called when the handle is closed, before anything else is."""
    _writer: StagingWriter | None = None
    _directories: dict[int, bytes] = field(default_factory=dict)
    _directory_bytes: int = 0
    _pool: ThreadPoolExecutor | None = None
    _slow: ThreadPoolExecutor | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _pid: int = field(default_factory=os.getpid)
    _names: int = 0

    def __post_init__(self) -> None:
        self.pins = PinPool(self.catalog.folder / "pins")
        self.can_pin = self.catalog.writable or os.access(self.pins.folder, os.W_OK)
        """Whether what a snapshot reads stays while it lives; a group of readers may be given this right alone."""

    def unique_name(self) -> str:
        """A name that nobody else has: process, time and chance."""
        with self._guard:
            self._names += 1
            return f"{self._pid:x}-{self.clock():x}-{self._names:x}-{self.randomness.getrandbits(48):012x}"

    @property
    def writer(self) -> StagingWriter:
        """This process's writer, made when it is first needed."""
        self.check_writable()
        if self._writer is None:
            name = self.unique_name()
            with self._guard:
                if self._writer is None:
                    self._writer = StagingWriter(self.root, name.replace("-", "_"), self.files, self.run_in_background)
        return self._writer

    def directories(self, segments: Manifest) -> list[bytes]:
        """The directories of segments, from memory where this process has seen them."""
        cached = self._directories  # when some are dropped, a new one takes its place
        numbers = segments.arrays.id.tolist()
        try:
            return list(map(cached.__getitem__, numbers))
        except KeyError:
            missing = [number for number in numbers if number not in cached]
        read = self.catalog.read(lambda tables: {number: _read_directory(tables, number) for number in missing})
        directories = [cached[number] if number in cached else read[number] for number in numbers]
        if not self.cache_directories(read):
            with self._guard:
                self._directories = dict(zip(numbers, directories, strict=True))
                self._directory_bytes = sum(map(len, directories))
        return directories

    def cache_directories(self, directories: Mapping[int, bytes]) -> bool:
        """Keep directories of committed segments in memory; False if they would be too many."""
        size = sum(map(len, directories.values()))
        with self._guard:
            if self._directory_bytes + size > _DIRECTORY_CACHE:
                return False
            self._directories |= directories
            self._directory_bytes += size
            return True

    @contextmanager
    def write_with_files(self, names: Sequence[str]) -> Iterator[Tables]:
        """A write transaction that names published files; if it fails, they are removed again."""
        try:
            if self.remote is not None:
                self.remote.upload(names)
                self.files.reach("objects.uploaded")
            with self.catalog.write() as tables:
                if self.remote is None and names and is_in_store(tables):
                    raise StorageError(
                        f"the files of warehouse {self.root} were moved to an object store while it was open here; "
                        "open it again"
                    )
                for name in names:
                    if name in self.published:
                        tables.put_raw("checksums", name.encode(), self.published[name])
                if self.remote is not None:
                    self.remote.record(tables, names, self.sealed)
                yield tables
            if self.remote is not None and names:
                self.remote.note_added(sum(self.sealed[name][0] for name in names))
        except Exception:
            self.withdraw(names)
            raise
        finally:
            for name in names:
                self.published.pop(name, None)
                self.sealed.pop(name, None)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What the block lets others read by its name stays in the folder until it ends; snapshots do the same."""
        with contextlib.nullcontext() if self.remote is None else self.remote.cache.reading():
            yield

    def drop_lost_files(self) -> None:
        """Let go of what is cached of files that became shorter while they were mapped: they are compared again.

        And of those that were evicted: a map keeps their space.
        """
        if self.remote is not None and (evicted := self.remote.cache.find_evicted(self.reader.mapped)):
            self.reader.forget(evicted)
            self.columns.forget(evicted)
            self.scan_cache.clear()
        if parquet_reader.count_lost_pages() and self.reader.drop_lost():
            self.columns.retain("", set())
            self.scan_cache.clear()
            self.snapshots.clear()

    def withdraw(self, names: Sequence[str]) -> None:
        """Remove published files, but only what no record names: a commit that failed late may have happened.

        Where even that cannot be found out, they stay, and become orphans when this process ends.
        """
        if not names:
            return
        with contextlib.suppress(WindrowError), self.catalog.exclusive() as tables:
            named = named_files(tables)
            unnamed = [name for name in names if name not in named]
            for name in unnamed:
                self.files.unlink(self.root / name)
            if self.remote is not None:
                give_up_objects(tables, unnamed, uploaded=True)

    def run_in_background(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run disk work beside the caller's."""
        with self._guard:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(2, thread_name_prefix="windrow-disk")
            return self._pool.submit(work, *arguments)

    def run_slow_in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run disk work that takes long and that nobody waits for, out of the way of what somebody waits for."""
        with self._guard:
            if self._slow is None:
                self._slow = ThreadPoolExecutor(1, thread_name_prefix="windrow-removal")
            self._slow.submit(work, *arguments)

    def count_probe(self, stream: int, rows: int, columns: Sequence[str]) -> None:
        """Count a probe by `columns` for the advisor."""
        if not self.read_only and self.catalog.writable:
            self.usage.probe(stream, rows, columns)
            self.usage.record_if_many(self.catalog)

    def count_scan(self, stream: int, columns: Sequence[str] = ()) -> None:
        """Count a scan in which `columns` are compared with constants."""
        if not self.read_only and self.catalog.writable:
            self.usage.scan(stream, columns)
            self.usage.record_if_many(self.catalog)

    @property
    def shared(self) -> SharedState:
        """What all handles of this warehouse in this process share: closed with the last of them."""
        return self.catalog.shared

    def check_writable(self) -> None:
        """Refuse a change on a handle that may not make it."""
        self.check_process()
        if not self.catalog.writable:  # first: without read_only it would not be writable either
            raise StorageError(
                f"this process may not write {self.catalog.folder}, so warehouse {self.root} is open for reading only; "
                "ask its owner for the permission"
            )
        if self.read_only:
            raise StorageError(
                f"warehouse {self.root} is open for reading only; open it without read_only to change it"
            )

    def check_process(self) -> None:
        """Refuse a handle that was inherited by a fork."""
        if os.getpid() != self._pid:
            raise ClosedError("this warehouse was opened before a fork; open it again in the child process")

    def stream_folder(self, name: str) -> Path:
        """The folder of a stream."""
        return self.root / "streams" / name

    def lock_path(self, stream_id: int) -> Path:
        """The lock file that serialises slides of a stream."""
        return self.catalog.folder / "locks" / f"stream-{stream_id}.lock"

    def interrupt(self) -> None:
        """Cancel the statements that are running; they end with an error."""
        for statement in list(self.statements):
            statement.interrupt()

    def close(self) -> None:
        """End the writer and the catalog handle."""
        if os.getpid() == self._pid:
            self.interrupt()
            while self.closing:
                self.closing.pop()()
        self.pins.close()
        if os.getpid() == self._pid:
            if self.remote is not None:
                self.remote.finish()
            for pool in (self._pool, self._slow):
                if pool is not None:
                    pool.shutdown()
            self._pool = self._slow = None
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            if not self.read_only and self.catalog.writable:
                with contextlib.suppress(WindrowError):
                    self.usage.record_if_many(self.catalog, LEAST_AT_CLOSE)
            self.catalog.close()
            # Also while somebody still holds the closed handle: a map keeps the space of a file that is removed.
            self.scan_cache.clear()
            self.columns.retain("", set())
            self.reader.retain("", set())
