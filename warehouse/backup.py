"""Backups: one commit of a warehouse with every file that it names, in a folder of its own, and their restoration.

Data files never change, so a backup shares them with the one before it, and slides and appends go on while it is made:
a pin keeps what they replace. The manifest is written last. Without it a folder is no backup, and the next run goes on
with the files that are there.
"""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from windrow.arguments import check_path
from windrow.catalog.environment import FORMAT, Catalog, Tables
from windrow.catalog.object_log import forget_store
from windrow.errors import DamageError, FormatError, StorageError
from windrow.files import FileSystem, compute_digest, disk_errors
from windrow.identity import (
    BACKUP_MANIFEST,
    UNFINISHED,
    Marker,
    Origin,
    Owner,
    read_marker,
    read_owner,
    write_marker,
    write_origin,
    write_owner,
)
from windrow.locks import locked
from windrow.open_store import refuse_network
from windrow.orphans import needed_files
from windrow.snapshot import Snapshot
from windrow.sources import record_restored
from windrow.store import Store, wall_clock

_BACKUP_FORMAT = 1
CATALOG_FILE = "catalog/data.mdb"
_FOLDERS = frozenset(("catalog", "streams", "tables", "results", "staging"))
_CHUNK = 1 << 20
_STEP = 2 << 20
"""Bytes after which a copy is synced, so that the disk never has much to do before others' commits,"""
_YIELD = 5.0
"""how long it then pauses, in times of what that took, while others commit,"""
_BUSY_SECONDS = 5.0
"""and for how long after a commit that is so."""


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a backup: its size, and the XXH3 digest of its bytes."""

    bytes: int
    digest: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says of itself."""

    format: int = _BACKUP_FORMAT
    catalog_format: int
    """Of the warehouse; an older one is converted when it was restored and is opened for writing."""
    warehouse: str
    """The id of the warehouse that it is of."""
    root: str
    commit: int
    at: int
    """Wall time at which it was begun, in microseconds."""
    files: dict[str, SavedFile]
    """By their names, which are those in the warehouse; the catalog is one of them."""

    @property
    def bytes(self) -> int:
        """What the files have together."""
        return sum(file.bytes for file in self.files.values())


class _Sealed(msgspec.Struct):
    """The manifest as it lies on disk, with the digest of its text."""

    digest: str
    backup: msgspec.Raw


@dataclass(frozen=True)
class BackupReport:
    """What was backed up."""

    path: Path
    commit: int
    files: int
    bytes: int
    copied: int
    """How many bytes were copied; the other files are shared with the base, or were there from an interrupted run."""
    seconds: float


@dataclass(frozen=True)
class FoundBackup:
    """A folder that holds a backup, or what is there of one."""

    path: Path
    manifest: Manifest | None
    problem: str = ""
    """Why it is no backup; empty if it is one."""


@dataclass(frozen=True)
class VerifyReport:
    """Whether the files of a backup are those that were written."""

    problems: tuple[str, ...]
    files: int
    bytes: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class Restored:
    """A warehouse that was restored."""

    path: Path
    catalog: Path
    commit: int
    files: int
    bytes: int
    seconds: float


Progress = Callable[[int], None]
"""Is told how many bytes are done."""


# -- making ------------------------------------------------------------------------------------------------------------


def create_backup(
    store: Store,
    path: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Back up the last commit of a warehouse into a new or empty folder, or go on where a run was interrupted.

    Args:
        store: The warehouse; others may append and slide meanwhile.
        path: The folder.
        base: An earlier backup, whose files are shared by hard links as far as the disk can.
        progress: Is told of the progress.

    Raises:
        FormatError: the folder holds something else, or `base` is no backup.
        DamageError: a file of the warehouse is missing or damaged, so that no backup was made.
    """
    started, target = time.perf_counter(), check_path(path).absolute()
    if not store.catalog.writable:
        raise StorageError(
            f"the catalog of {store.root} is read-only, so nothing keeps files from being removed while they are "
            "copied; back up as a user who may write there"
        )
    for inner, outer in ((target, store.root), (store.root, target)):
        if inner.resolve().is_relative_to(outer.resolve()):
            raise FormatError(f"the backup folder {target} must lie outside of the warehouse {store.root}")
    earlier = None if base is None else (check_path(base).absolute(), read_manifest(check_path(base).absolute()))
    with disk_errors(f"backing up {store.root} to {target}"), working_in(target, "a backup is written"):
        begun = store.clock()
        with Snapshot(store, ()):  # its pin is there before the catalog is copied, and holds until the files are
            copy, facts, wanted = _copy_catalog(store, target)
            transfer = _Transfer(
                store.root, target, store.files, earlier, progress or (lambda _: None), _make_pause(store)
            )
            saved = {}
            for name, expected in wanted.items():
                store.reader.prepare([name])
                saved[name] = transfer.bring(name, *expected)
        files = {CATALOG_FILE: copy} | {name: file for name, file in saved.items() if file is not None}
        _remove_others(target, files, store.files)
        _sync_folders(target, store.files)
        manifest = Manifest(root=str(store.root), at=begun, files=dict(sorted(files.items())), **facts)
        _write_manifest(target, manifest, store.files)
    return BackupReport(
        target, manifest.commit, len(files), manifest.bytes, transfer.copied + copy.bytes, time.perf_counter() - started
    )


def _copy_catalog(
    store: Store, target: Path
) -> tuple[SavedFile, dict[str, Any], dict[str, tuple[int | None, str | None, bool]]]:
    """Copy the catalog; gives the copy, facts for the manifest, and what `_Transfer.bring` is told of its files."""
    folder = target / "catalog"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    store.catalog.copy_to(folder)
    copy = Catalog(folder, create=False, read_only=True)
    try:
        facts, wanted = copy.read(lambda tables: (_facts(tables), _wanted(tables)))
    finally:
        copy.close()
        _remove_locks(folder)
    store.files.sync(target / CATALOG_FILE)
    return SavedFile((target / CATALOG_FILE).stat().st_size, compute_digest(target / CATALOG_FILE)), facts, wanted


def _facts(tables: Tables) -> dict[str, Any]:
    return {
        "warehouse": read_owner(tables).uuid or "",
        "commit": tables.version,
        "catalog_format": tables.number("format"),
    }


def _wanted(tables: Tables) -> dict[str, tuple[int | None, str | None, bool]]:
    """What a commit needs: size and digest of each file if they are known, and whether it may be missing."""
    wanted: dict[str, tuple[int | None, str | None, bool]] = {
        name: (record.bytes, record.digest, False) for name, record in needed_files(tables).items()
    }
    for _, hold in tables.items("holds"):
        for stream in hold.streams.values():
            for segment in stream.segments:
                wanted.setdefault(segment.file, (None, None, False))
        for table in hold.tables.values():
            wanted.setdefault(table.file, (table.bytes, table.digest, False))
    for _, run in (*tables.items("runs"), *tables.items("revisions")):
        # A report comes after the commit of its run. One in a folder of the user's own is not ours to back up.
        if run.file and not os.path.isabs(run.file):
            wanted.setdefault(run.file, (None, None, True))
            if run.file.endswith(".html"):
                wanted.setdefault(f"{os.path.dirname(run.file)}/{run.query}-latest.html", (None, None, True))
    return wanted


def _make_pause(store: Store) -> Callable[[float], None]:
    """What waits after a step of so many seconds, if somebody has just committed: slides go before backups."""
    last, busy_until = store.catalog.last_transaction(), 0.0

    def pause(seconds: float) -> None:
        nonlocal last, busy_until
        before, last = last, store.catalog.last_transaction()
        if last != before:
            busy_until = time.monotonic() + _BUSY_SECONDS
        if time.monotonic() < busy_until:
            store.sleep(_YIELD * seconds)

    return pause


def _remove_locks(folder: Path) -> None:
    """Remove what opening a copied catalog has left beside it."""
    for entry in folder.iterdir():
        if entry.name != "data.mdb":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class _Transfer:
    """Brings files from one folder to the same names in another: durable, and with the digest that they must have.

    Args:
        source: The folder that they come from.
        target: The folder that they go to.
        files: The disk.
        base: A backup that may have them already.
        progress: Is told of the progress.
        pause: Is called after each step with the seconds that it took.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        files: FileSystem,
        base: tuple[Path, Manifest] | None,
        progress: Progress,
        pause: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._source, self._target, self._files, self._progress = source, target, files, progress
        self._pause = pause
        self._base: Path | None = None if base is None else base[0]
        self._base_files: Mapping[str, SavedFile] = {} if base is None else base[1].files
        self._done = 0
        self.copied = 0

    def bring(self, name: str, size: int | None, digest: str | None, optional: bool = False) -> SavedFile | None:
        """Bring a file; gives what it is, or None if it is missing and may be."""
        path = self._target / name
        if not path.resolve().is_relative_to(self._target.resolve()):
            raise DamageError(f"the file name {name!r} leads out of {self._target}; the catalog or manifest is damaged")
        if not path.parent.is_dir():
            self._files.make_folder(path.parent)
        if digest is not None and _matches(path, size, digest):
            saved: SavedFile | None = SavedFile(path.stat().st_size, digest)
        else:
            saved = self._share(name, path, digest) or self._copy(name, path, size, digest, optional)
        self._done += 0 if saved is None else saved.bytes
        self._progress(self._done)
        return saved

    def _share(self, name: str, path: Path, digest: str | None) -> SavedFile | None:
        """Link the file of the base; None if it has none, or cannot be linked to."""
        saved = self._base_files.get(name)
        # Reports, which alone have no digest, may have been written again under the same name.
        if self._base is None or saved is None or digest is None or saved.digest != digest:
            return None
        try:
            if (self._base / name).stat().st_size != saved.bytes:
                return None
            path.unlink(missing_ok=True)
            os.link(self._base / name, path)
        except OSError:  # another disk, a disk without links, or too many of them
            return None
        return saved

    def _copy(self, name: str, path: Path, size: int | None, digest: str | None, optional: bool) -> SavedFile | None:
        try:
            saved = _copy_file(self._source / name, path, self._files, self._pause)
        except FileNotFoundError:
            if optional:
                return None
            raise DamageError(f"file {name} is missing from {self._source}; {self._advice()}") from None
        if size not in (None, saved.bytes) or digest not in (None, saved.digest):
            path.unlink()
            raise DamageError(
                f"file {name} of {self._source} does not have the checksum with which it was written; {self._advice()}"
            )
        self.copied += saved.bytes
        return saved

    def _advice(self) -> str:
        if (self._source / BACKUP_MANIFEST).exists():
            return f"run 'windrow backup verify {self._source}', or restore another backup"
        return "run 'windrow check'; no backup was made"


def _copy_file(
    source: Path, target: Path, files: FileSystem, pause: Callable[[float], None] = lambda _: None
) -> SavedFile:
    """Copy a file, which appears under its name when it is whole and durable; gives what was read."""
    hidden = target.with_name(f".{target.name}.copied")
    hasher, count, began = xxhash.xxh3_64(), 0, time.perf_counter()
    with source.open("rb") as reading, hidden.open("wb", buffering=0) as writing:
        while chunk := reading.read(_CHUNK):
            hasher.update(chunk)
            writing.write(chunk)
            count += len(chunk)
            if count % _STEP == 0:
                os.fdatasync(writing)
                pause(time.perf_counter() - began)
                began = time.perf_counter()
        shutil.copymode(source, hidden)
    files.sync(hidden)
    files.rename(hidden, target)
    pause(time.perf_counter() - began)
    return SavedFile(count, hasher.hexdigest())


def _matches(path: Path, size: int | None, digest: str) -> bool:
    try:
        return size in (None, path.stat().st_size) and compute_digest(path) == digest
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def working_in(target: Path, what: str) -> Iterator[None]:
    """Hold a folder that is new, empty, or left by an interrupted run, until everything in it is durable."""
    if (target / BACKUP_MANIFEST).exists():
        raise FormatError(f"{target} holds a backup already; choose a new or empty folder")
    if target.exists() and not target.is_dir():
        raise FormatError(f"{target} is a file; choose a new or empty folder")
    names = {entry.name for entry in target.iterdir()} if target.is_dir() else set()
    foreign = [name for name in names - _FOLDERS if not name.startswith(".")]
    if names and (UNFINISHED not in names or foreign):
        raise FormatError(f"{target} is not empty; choose a new or empty folder")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(target / UNFINISHED, f"{target}, to which {what},", timeout=0):
        yield
        (target / UNFINISHED).unlink()


def _remove_others(target: Path, needed: Mapping[str, SavedFile], files: FileSystem) -> None:
    """Remove what an interrupted run has left that this backup does not need."""
    for path in sorted(target.rglob("*")):
        name = str(path.relative_to(target))
        if path.is_file() and name not in needed and name != UNFINISHED:
            files.unlink(path)


def _sync_folders(target: Path, files: FileSystem) -> None:
    for folder, _, _ in os.walk(target):
        files.sync(Path(folder))
    files.sync(target.parent)


# -- reading -----------------------------------------------------------------------------------------------------------


def _write_manifest(target: Path, manifest: Manifest, files: FileSystem) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    hidden = target / f".{BACKUP_MANIFEST}"
    sealed = _Sealed(xxhash.xxh3_128_hexdigest(text), msgspec.Raw(text))
    hidden.write_bytes(msgspec.json.encode(sealed) + b"\n")
    files.sync(hidden)
    files.rename(hidden, target / BACKUP_MANIFEST)
    files.sync(target)


def read_manifest(path: Path) -> Manifest:
    """What a backup says of itself; refuses a folder that is none."""
    try:
        raw = (path / BACKUP_MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "was never finished" if (path / UNFINISHED).exists() else f"has no {BACKUP_MANIFEST}"
        raise FormatError(f"{path} is no backup: it {what}; see 'windrow backup list'") from None
    try:
        sealed = msgspec.json.decode(raw, type=_Sealed)
        if xxhash.xxh3_128_hexdigest(sealed.backup) != sealed.digest:
            raise ValueError("its checksum is another")
        manifest = msgspec.json.decode(sealed.backup, type=Manifest)
    except (ValueError, msgspec.MsgspecError) as error:
        raise FormatError(f"{path / BACKUP_MANIFEST} is damaged ({error}); use another backup") from None
    if manifest.format != _BACKUP_FORMAT or manifest.catalog_format > FORMAT:
        raise FormatError(f"{path} was written by a newer release; restore it with that")
    return manifest


def list_backups(folder: str | os.PathLike[str]) -> list[FoundBackup]:
    """The backups in a folder, or the one that it is, the oldest first; also those that were never finished."""
    root = check_path(folder).absolute()
    if not root.is_dir():
        raise FormatError(f"{root} is no folder; name the folder that your backups lie in")
    backups = []
    for path in (root, *sorted(root.iterdir())):
        if path.is_dir() and ((path / BACKUP_MANIFEST).exists() or (path / UNFINISHED).exists()):
            try:
                backups.append(FoundBackup(path, read_manifest(path)))
            except FormatError as error:
                backups.append(FoundBackup(path, None, str(error)))
    return sorted(backups, key=lambda each: (each.manifest.at if each.manifest else 1 << 63, each.path))


def verify_backup(path: str | os.PathLike[str], progress: Progress | None = None) -> VerifyReport:
    """Read every file of a backup and compare it with the manifest.

    Raises:
        FormatError: the folder is no backup.
    """
    root = check_path(path).absolute()
    manifest = read_manifest(root)
    problems, bytes_read = [], 0
    with disk_errors(f"reading the backup {root}"):
        for name, file in manifest.files.items():
            if not (root / name).is_file():
                problems.append(f"file {name} is missing")
            elif (size := (root / name).stat().st_size) != file.bytes:
                problems.append(f"file {name} has {size} bytes, {file.bytes} were written")
            elif compute_digest(root / name) != file.digest:
                problems.append(f"file {name} does not have the checksum with which it was written")
            bytes_read += file.bytes
            (progress or (lambda _: None))(bytes_read)
    return VerifyReport(tuple(problems), len(manifest.files), manifest.bytes)


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore(
    backup: str | os.PathLike[str],
    path: str | os.PathLike[str],
    catalog: str | os.PathLike[str] | None = None,
    files: FileSystem | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make a warehouse of its own out of a backup, in a new or empty folder of any machine.

    Every file is compared with its digest. The catalog and then the marker come last, so that an interrupted
    restoration cannot be opened, and the next one goes on.

    Args:
        backup: The folder of the backup, which stays as it is.
        path: Where the warehouse is to be.
        catalog: Where it is to have its catalog, if not inside; it must be on a local disk.
        files: The disk.
        progress: Is told of the progress.

    Raises:
        FormatError: `backup` is no backup, or the folder holds something.
        DamageError: a file of the backup is missing or damaged.
    """
    started, disk = time.perf_counter(), files or FileSystem()
    source, root = check_path(backup).absolute(), check_path(path).absolute()
    place = root / "catalog" if catalog is None else check_path(catalog).absolute()
    manifest = read_manifest(source)
    with disk_errors(f"restoring {source} to {root}"):
        if read_marker(root) is not None:
            raise FormatError(f"{root} holds a warehouse already; choose a new or empty folder")
        refuse_network(place if place.exists() else place.parent, place, disk)
        with working_in(root, "a backup is restored"):
            clear_catalog(place, root)
            transfer = _Transfer(source, root, disk, None, progress or (lambda _: None))
            for name, file in manifest.files.items():
                if name != CATALOG_FILE:
                    transfer.bring(name, file.bytes, file.digest)
            for name in ("streams", "staging", "tables", "results"):
                disk.make_folder(root / name)
            _remove_others(root, manifest.files, disk)
            owner = restore_catalog(manifest, source, root, place, disk)
            _sync_folders(root, disk)
            marker = Marker(manifest.catalog_format, str(place) if catalog else None, owner.uuid, str(root))
            write_marker(root, marker, disk)
    return Restored(root, place, manifest.commit, len(manifest.files), manifest.bytes, time.perf_counter() - started)


def clear_catalog(place: Path, root: Path) -> None:
    """Remove the catalog that an interrupted restoration has left; refuse one of another warehouse."""
    if not (place / "data.mdb").exists():
        if place.is_dir() and any(place.iterdir()) and place != root / "catalog":
            raise FormatError(f"{place} is not empty; choose a new or empty folder for the catalog")
    elif place != root / "catalog":
        catalog = Catalog(place, create=False, read_only=True)
        try:
            if catalog.read(read_owner).root != str(root):
                raise FormatError(f"{place} holds the catalog of another warehouse; choose a new or empty folder")
        finally:
            catalog.close()
    shutil.rmtree(place, ignore_errors=True)


def restore_catalog(
    manifest: Manifest,
    source: Path,
    root: Path,
    place: Path,
    files: FileSystem,
    adapt: Callable[[Tables], None] = forget_store,
) -> Owner:
    """Give a copy of the catalog to its new warehouse; it gets its place when it is whole and durable.

    Args:
        manifest: Of the backup.
        source: Where the copy is.
        root: The new warehouse.
        place: Where its catalog is to be.
        files: The disk.
        adapt: Changes what else is another thing in the new warehouse; one of a backup has all files in its folder.
    """
    hidden = place.with_name(f".{place.name}.restored")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(mode=0o700, parents=True)
    try:
        same = _copy_file(source / CATALOG_FILE, hidden / "data.mdb", files) == manifest.files[CATALOG_FILE]
    except FileNotFoundError:
        same = False
    if not same:
        raise DamageError(
            f"the catalog of {source} is missing or does not have the checksum with which it was written; "
            "restore another backup"
        )
    owner = Owner(uuid.uuid4().hex, str(root))
    opened = Catalog(hidden, create=False)
    try:
        with opened.exclusive() as tables:
            write_owner(tables, owner)
            write_origin(tables, Origin(manifest.commit, manifest.at, wall_clock()))
            tables.delete_prefix("orphans", b"")
            record_restored(tables, manifest.at, wall_clock())
            adapt(tables)
    finally:
        opened.close()
        _remove_locks(hidden)
    files.sync(hidden / "data.mdb")
    files.sync(hidden)
    files.rename(hidden, place)
    files.sync(place.parent)
    return owner
