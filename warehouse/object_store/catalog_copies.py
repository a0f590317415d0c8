"""Copies of the catalog in the object store, from which a lost machine is restored; objects are deleted after them.

A copy is one commit, compacted and compressed, under a name of its own. A small object leads to the last one; only then
is the one before it deleted, with all objects that the new one names nowhere.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from windrow.catalog.environment import Catalog, Tables
from windrow.catalog.object_log import (
    decode_deletion,
    list_deletions,
    read_copy,
    read_pending_copy,
    read_successor,
    write_copy,
    write_pending_copy,
    write_successor,
)
from windrow.catalog.records import CatalogCopyEntry, EpochEntry, ObjectStoreEntry
from windrow.errors import StorageError, WindrowError
from windrow.files import FileSystem, SpillFolder, compute_digest, disk_errors
from windrow.identity import read_owner
from windrow.locks import locked
from windrow.object_store import epochs
from windrow.object_store.location import ObjectStore

_log = logging.getLogger(__name__)
_AT_ONCE = 1000
"""Objects that are deleted between two commits."""
_SECONDS_AT_CLOSE = 2.0
"""A copy that takes longer is made when a handle is closed only if it is due."""


class CatalogCopies:
    """Makes the copies of one warehouse in this process; all handles share it.

    Args:
        root: The warehouse.
        objects: Where they go.
        entry: How often, and this machine's epoch.
        files: The disk; its steps are told before and after what must not be torn.
        unique_name: Names that nobody else has.
    """

    def __init__(
        self,
        root: Path,
        objects: ObjectStore,
        entry: ObjectStoreEntry,
        files: FileSystem,
        unique_name: Callable[[], str],
    ) -> None:
        self._root, self.objects, self.entry, self._files = root, objects, entry, files
        self._unique_name = unique_name
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._uncopied = 0
        """Commits of this process since it has last seen a copy."""
        self._timer: threading.Timer | None = None
        self._seconds = 0.0
        """How long the last copy took."""
        self.problem = ""
        """Why the last copy could not be made."""

    def note_commit(self, catalog: Catalog) -> None:
        """Count a commit, and see that it is copied when it is time."""
        with self._guard:
            self._uncopied += 1
            is_due = self._uncopied == self.entry.copy_commits
            if self._timer is None or is_due:
                if self._timer is not None:
                    self._timer.cancel()
                self._start(catalog, 0.0 if is_due else self.entry.copy_every / 1e6)

    def _start(self, catalog: Catalog, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._copy_in_background, (catalog,))
        self._timer.daemon = True
        self._timer.name = "windrow-catalog-copy"
        self._timer.start()

    def _copy_in_background(self, catalog: Catalog) -> None:
        with self._guard:
            self._timer = None
        try:
            self.copy(catalog)
        except ReferenceError:  # its handle was never closed, and is gone
            return
        except WindrowError as error:
            _log.warning("the catalog of %s was not copied: %s", self._root, error)
            with self._guard, contextlib.suppress(WindrowError):
                if self._timer is None and catalog.read(read_successor) is None:
                    self._start(catalog, self.entry.copy_every / 1e6)

    def finish(self, catalog: Catalog) -> None:
        """Copy what has no copy yet, before a handle is closed; what takes long is left to the next process."""
        with self._guard:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            is_wanted = self._uncopied and (
                self._seconds <= _SECONDS_AT_CLOSE or self._uncopied >= self.entry.copy_commits
            )
        if is_wanted:
            try:
                self.copy(catalog)
            except WindrowError as error:
                _log.warning("the catalog of %s was not copied: %s", self._root, error)

    def copy(self, catalog: Catalog) -> CatalogCopyEntry:
        """Copy the last commit, unless that is done already, and delete objects that it names nowhere.

        When this returns, a machine that restores the warehouse from now on has that commit.
        """
        with self._turn, locked(catalog.folder / "locks" / "catalog-copy.lock", "the copy of the catalog"):
            began = time.perf_counter()
            try:
                with self._guard:
                    counted = self._uncopied
                last, pending, version = catalog.read(
                    lambda tables: (read_copy(tables), read_pending_copy(tables), tables.version)
                )
                if pending is not None:
                    self._settle_pending(catalog, pending, last)
                    last = catalog.read(read_copy)
                if last is None or last.commit < version:
                    last = self._copy(catalog, last)
                with self._guard:
                    self._uncopied -= counted
                self._delete(catalog, last.commit)
                self.problem = ""
                self._seconds = time.perf_counter() - began
                return last
            except WindrowError as error:
                self.problem = str(error)
                raise

    def _settle_pending(self, catalog: Catalog, pending: str, last: CatalogCopyEntry | None) -> None:
        """Find out what became of a copy whose writer has died."""
        published = epochs.find_copy(self.objects, self.entry.epoch)
        if published is not None and published.name == pending:
            self.check_epoch(catalog)
            self._record(catalog, published, last)
            return
        self.objects.delete([pending])
        with catalog.exclusive() as tables:
            if last is not None:
                write_copy(tables, last)

    def _copy(self, catalog: Catalog, last: CatalogCopyEntry | None) -> CatalogCopyEntry:
        self.check_epoch(catalog)
        self._check_alone(catalog, None if last is None else last.name)
        name = f"catalog/{self.entry.epoch:08d}-{self._unique_name()}.mdb.zst"
        with catalog.exclusive() as tables:
            write_pending_copy(tables, name)
        with disk_errors("copying the catalog"), _scratch_folder(self._root, self._unique_name()) as folder:
            copy = _write_copy(catalog, folder, name)
            self.objects.put_file(name, folder / "copy.zst")
        self._files.reach("copy.uploaded")
        epochs.publish_copy(self.objects, self.entry.epoch, copy)
        self._files.reach("copy.published")
        self.check_epoch(catalog)
        self._check_alone(catalog, copy.name)
        self._record(catalog, copy, last)
        return copy

    def _record(self, catalog: Catalog, copy: CatalogCopyEntry, last: CatalogCopyEntry | None) -> None:
        with catalog.exclusive() as tables:
            write_copy(tables, copy)
            if last is not None and last.name != copy.name:
                tables.put_raw("deletions", bytes(8) + last.name.encode(), b"")
        self._files.reach("copy.recorded")

    def _delete(self, catalog: Catalog, commit: int) -> None:
        """Delete what a copy that is in the store names nowhere; this machine's epoch was looked at after it was."""
        while keys := catalog.read(lambda tables: list_deletions(tables, commit))[:_AT_ONCE]:
            self.objects.delete([decode_deletion(key) for key in keys])
            self._files.reach("copy.deleted")
            with catalog.exclusive() as tables:
                for key in keys:
                    tables.delete("deletions", key)

    def check_epoch(self, catalog: Catalog) -> None:
        """Refuse, now and for ever, if another machine has taken the warehouse over."""
        successor = epochs.find_epoch(self.objects, self.entry.epoch + 1)
        if successor is None:
            return
        with catalog.exclusive() as tables:
            write_successor(tables, successor)
        raise superseded_error(self._root, successor)

    def _check_alone(self, catalog: Catalog, expected: str | None) -> None:
        """Refuse, for ever, if a clone of this machine has published a copy as the same epoch."""
        published = epochs.find_copy(self.objects, self.entry.epoch)
        if (None if published is None else published.name) == expected or (expected and published is None):
            return
        clone = EpochEntry(epoch=self.entry.epoch, host="a clone of this machine", at=0, nonce="")
        with catalog.exclusive() as tables:
            write_successor(tables, clone)
        raise superseded_error(self._root, clone)


def superseded_error(root: Path, successor: EpochEntry) -> StorageError:
    """Why nothing is committed any more."""
    who = f"was restored from its object store by {successor.host}, as epoch {successor.epoch}, and is changed there"
    if not successor.nonce:
        who = f"goes on in {successor.host}, which was the first to copy its catalog to the object store"
    return StorageError(f"warehouse {root} {who}; this one can be read only")


@contextlib.contextmanager
def _scratch_folder(root: Path, name: str) -> Iterator[Path]:
    spill = SpillFolder(root, name.replace("-", "_"))
    try:
        yield spill.folder
    finally:
        spill.close()


def _write_copy(catalog: Catalog, folder: Path, name: str) -> CatalogCopyEntry:
    """Write the last commit, compacted and compressed, to ``copy.zst``."""
    (folder / "catalog").mkdir()
    catalog.copy_to(folder / "catalog")
    opened = Catalog(folder / "catalog", create=False, read_only=True)
    try:
        commit, owner, form = opened.read(_read_facts)
    finally:
        opened.close()
    with (
        (folder / "catalog" / "data.mdb").open("rb") as source,
        pa.CompressedOutputStream(str(folder / "copy.zst"), "zstd") as sink,
    ):
        while chunk := source.read(1 << 20):
            sink.write(chunk)
    return CatalogCopyEntry(
        name=name,
        commit=commit,
        at=time.time_ns() // 1000,
        bytes=(folder / "copy.zst").stat().st_size,
        digest=compute_digest(folder / "copy.zst"),
        warehouse=owner,
        catalog_format=form,
    )


def _read_facts(tables: Tables) -> tuple[int, str, int]:
    return tables.version, read_owner(tables).uuid or "", tables.number("format")
