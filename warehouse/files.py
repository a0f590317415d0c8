"""The warehouse's files: staged under a living writer's name, synced and renamed into place, then named by a commit.

Everything that touches the disk outside LMDB goes through `FileSystem`, so that a test can fail any write and stop at
any named crash point.
"""

import errno
import itertools
import mmap
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from windrow.errors import StorageError, WindrowError
from windrow.locks import LockedFile, is_held

CRASH_POINTS = (
    "append.staged",
    "append.published",
    "append.committing",
    "append.committed",
    "rejected.staged",
    "rejected.published",
    "slide.planned",
    "slide.staged",
    "slide.published",
    "slide.committing",
    "slide.committed",
    "relayout.planned",
    "relayout.staged",
    "relayout.published",
    "relayout.committing",
    "relayout.committed",
    "alter.committing",
    "alter.committed",
    "reclaim.unlinked",
    "reclaim.committed",
    "table.staged",
    "table.published",
    "table.committed",
)
"""Named points at which a crash test stops a process; see `FileSystem.reach`."""
REPAIR_CRASH_POINTS = ("repair.staged", "repair.published", "repair.committing", "repair.committed")
"""The same, of a repair that saves rows."""
LIMIT_CRASH_POINTS = ("limit.staged", "limit.published", "limit.committing", "limit.committed")
"""The same, of erasing expired rows."""
HISTORY_CRASH_POINTS = ("history.staged", "history.published", "history.committing", "history.committed")
"""The same, of a merge of history."""
ERASURE_CRASH_POINTS = ("erase.staged", "erase.published", "erase.committing", "erase.committed", "erase.reclaimed")
"""The same, of an erasure."""
OBJECT_STORE_CRASH_POINTS = (
    "objects.uploaded",
    "objects.attached",
    "copy.uploaded",
    "copy.published",
    "copy.recorded",
    "copy.deleted",
)
"""The same, of uploads and of copies of the catalog."""
PUBLICATION_CRASH_POINTS = ("publish.staged", "publish.committed", "publish.placed", "publish.checkpointed")
"""The same, of a version of a published table."""
DELIVERY_CRASH_POINTS = (
    "query.staged",
    "query.published",
    "query.committing",
    "query.committed",
    "query.placed",
    "query.settled",
    "query.rolled",
)
"""The same, of what periodic queries deliver."""

_OWNER_FILE = "owner.lock"
_WRITER_NAME = re.compile(r"[0-9a-f]+_[0-9a-f]+_[0-9a-f]+_[0-9a-f]{12}")
"""Names of writers, as `Store.unique_name` makes them."""


class FileSystem:
    """The disk, as the warehouse uses it. Tests inject a subclass that fails or stops where they want."""

    def reach(self, step: str) -> None:
        """Called at each of `CRASH_POINTS`; does nothing here."""

    def file_system(self, path: Path) -> str:
        """The kind of file system that holds `path`, as the kernel names it; empty if it does not say."""
        try:
            mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        except OSError:
            return ""
        target = path.resolve()
        kinds = {Path(place.split()[4]): system.split()[0] for place, system in mounts}
        holders = [mount for mount in kinds if target.is_relative_to(mount)]
        return kinds[max(holders, key=lambda mount: len(mount.parts))] if holders else ""

    def sink(self, path: Path) -> Any:
        """An Arrow output stream to a new file, which whoever may read its folder may read, and nobody else."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.fchmod(descriptor, file_mode(path.parent))
            return pa.OSFile(f"/proc/self/fd/{descriptor}", "wb")
        finally:
            os.close(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, durably, with the rights of the folder that the first of them is in."""
        missing = list(itertools.takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
        for path in reversed(missing):
            make_folder(path)
            self.sync(path.parent)

    def sync(self, path: Path) -> None:
        """Make a file's or folder's content durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file into place."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file; it may be gone already."""
        path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder with the rights of the one that it is in; it may be there already."""
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode) & 0o2770 | 0o700)


def file_mode(folder: Path) -> int:
    """The rights of files in a folder: who may list it may read them, and only their owner may change them."""
    return 0o600 | folder.stat().st_mode & 0o044


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn the operating system's errors into ours: what failed, why, and that nothing was changed."""
    try:
        yield
    except WindrowError:  # also BusyError, which is a TimeoutError and so an OSError
        raise
    except OSError as error:
        why = {
            errno.ENOSPC: "the disk is full; free some space and try again",
            errno.EDQUOT: "the disk quota is used up; free some space and try again",
            errno.EROFS: "the file system is read-only",
            errno.EACCES: "permission was denied; check the folder's owner and mode",
        }.get(error.errno or 0, str(error))
        raise StorageError(error.errno, f"{what} failed: {why}; nothing was changed") from error


class StagingWriter:
    """A living writer: its folder under `staging/`, whose lock says that files named after it may still be committed.

    Args:
        root: The warehouse.
        name: Unique for ever.
        files: The disk.
        beside: Runs disk work beside the caller's.
    """

    def __init__(self, root: Path, name: str, files: FileSystem, beside: Callable[..., Future[None]]) -> None:
        self.name = name
        self.root = root
        self.files = files
        self._beside = beside
        self.folder = root / "staging" / name
        with disk_errors("opening a writer"):
            self._held = _claim_folder(self.folder)
        self._numbers = itertools.count(1)
        self._unsynced: set[Path] = set()

    def stage(self, suffix: str = ".parquet") -> Path:
        """The path of a new staged file."""
        return self.folder / f"{self.name}-{next(self._numbers):06d}{suffix}"

    def seal(self, path: Path, *, soon: bool = False) -> tuple[int, str]:
        """Make a staged file durable; gives its size and digest.

        With `soon` it is published at once, and made durable then: the disk does that and the folder in one go.
        """
        digest = compute_digest(path)
        if soon:
            self._unsynced.add(path)
        else:
            self.files.sync(path)
        return path.stat().st_size, digest

    def publish(self, staged: list[Path], folder: Path, step: str) -> list[str]:
        """Move sealed files into `folder` and make that durable; give their paths relative to the warehouse."""
        self.files.reach(f"{step}.staged")
        if not os.path.isdir(folder):
            self.files.make_folder(folder)
        try:
            for path in staged:
                self.files.rename(path, folder / path.name)
            unsynced = [path for path in staged if path in self._unsynced]
            if unsynced:
                syncing = self._beside(self.files.sync, folder)
                try:
                    for path in unsynced:
                        self.files.sync(folder / path.name)
                finally:  # if all who help are at something else, nobody waits for them
                    self.files.sync(folder) if syncing.cancel() else syncing.result()
                self._unsynced.difference_update(unsynced)
            else:
                self.files.sync(folder)
        except OSError:
            self.discard([*staged, *(folder / path.name for path in staged)])
            raise
        self.files.reach(f"{step}.published")
        return [str((folder / path.name).relative_to(self.root)) for path in staged]

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """The path of a new staged file, that goes again if the block raises."""
        path = self.stage()
        try:
            yield path
        except BaseException:
            self.discard([path])
            raise

    def discard(self, paths: list[Path]) -> None:
        """Remove staged files that will not be published."""
        self._unsynced.difference_update(paths)
        for path in paths:
            self.files.unlink(path)

    def close(self) -> None:
        """End the writer; what is left in its folder goes with it."""
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _claim_folder(folder: Path) -> LockedFile:
    """The lock on a folder in staging. Until it is held, whoever cleans up may take the folder for a dead writer's."""
    while True:
        try:
            make_folder(folder)
        except FileNotFoundError:
            if not folder.parent.is_dir():
                raise
            continue  # somebody cleaned it up right after it was made
        lock = LockedFile.claim(folder / _OWNER_FILE)
        if lock is not None:
            return lock


class SpillFolder:
    """Where DuckDB puts rows that do not fit in memory: a folder in staging, which goes with its process.

    One that may not write there spills into a folder of its own among the machine's temporary ones.

    Args:
        root: The warehouse.
        name: Unique for ever.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / "staging" / name
        try:
            self._held: LockedFile | None = _claim_folder(self.folder)
        except OSError:
            self._held, self.folder = None, Path(tempfile.mkdtemp(prefix="windrow-"))
        self.folder.chmod(0o700)

    def close(self) -> None:
        """Remove it."""
        if self._held is not None:
            self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def parse_writer_name(file_name: str) -> str:
    """The writer's name in a file's name."""
    return file_name.rsplit("-", 1)[0]


def find_living_writers(root: Path) -> set[str]:
    """Names of writers whose process lives."""
    staging = root / "staging"
    if not staging.is_dir():
        return set()
    return {entry.name for entry in staging.iterdir() if is_held(entry / _OWNER_FILE)}


def remove_dead_staging(root: Path) -> int:
    """Remove the folders of dead writers; gives how many. Other folders there are Spark's, which has no locks."""
    staging = root / "staging"
    removed = 0
    for entry in staging.iterdir() if staging.is_dir() else ():
        if not _WRITER_NAME.fullmatch(entry.name):
            continue
        lock = LockedFile.claim(entry / _OWNER_FILE)  # a writer that is just being made will make its folder again
        if lock is not None:
            shutil.rmtree(entry, ignore_errors=True)
            lock.close()
            removed += 1
    return removed


def compute_digest(path: Path) -> str:
    """XXH3 digest of a file's bytes."""
    with path.open("rb") as stream:
        if not path.stat().st_size:
            return xxhash.xxh3_64_hexdigest(b"")
        with mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ) as content:
            return xxhash.xxh3_64_hexdigest(content)
