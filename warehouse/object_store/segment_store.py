"""A warehouse whose files are in an object store: where it is, what is uploaded, what is cached, what is copied.

Files are staged, sealed and published in the warehouse's folder as ever. Before the commit that names them they are
uploaded, so whatever a commit names is in the store; the files in the folder are its cache from then on.
"""

import datetime as dt
import os
import random
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from windrow import arguments, times
from windrow.catalog.environment import Catalog, Tables
from windrow.catalog.object_log import (
    find_objects,
    list_objects,
    read_copy,
    read_store_entry,
    read_successor,
    record_objects,
    write_store_entry,
)
from windrow.catalog.records import CatalogCopyEntry, ObjectEntry, ObjectStoreEntry
from windrow.errors import FormatError, StorageError
from windrow.files import FileSystem, compute_digest, disk_errors
from windrow.formats.html import TableRecord
from windrow.identity import read_owner
from windrow.object_store import epochs
from windrow.object_store.catalog_copies import CatalogCopies
from windrow.object_store.location import Location, ObjectStore, open_objects, parse_location
from windrow.object_store.segment_cache import SegmentCache
from windrow.orphans import named_files

_CACHE_BYTES = 20_000_000_000
_COPY_EVERY = 60 * 1_000_000
_COPY_COMMITS = 1000
"""What a warehouse has whose owner has said nothing: these are limits of use, not of speed."""


@dataclass(frozen=True)
class StoreOptions:
    """What a user says of the object store when a warehouse is opened; None leaves it as it is."""

    segments: str | None = None
    segment_cache: str | None = None
    copy_every: times.Duration | None = None
    copy_commits: int | None = None

    @property
    def is_given(self) -> bool:
        """Whether anything was said."""
        return any(value is not None for value in vars(self).values())

    def apply(self, entry: ObjectStoreEntry) -> ObjectStoreEntry:
        """The record with what was said."""
        if self.segment_cache is not None:
            entry = replace(entry, cache_bytes=arguments.check_size(self.segment_cache, "segment_cache") or 0)
        if self.copy_every is not None:
            entry = replace(entry, copy_every=times.parse_duration(self.copy_every, "copy_every"))
        if self.copy_commits is not None:
            if not isinstance(self.copy_commits, int) or self.copy_commits < 1:
                raise FormatError(f"copy_commits={self.copy_commits!r} must be a whole number, 1 or more")
            entry = replace(entry, copy_commits=self.copy_commits)
        return entry


@dataclass(frozen=True)
class StoreStatus(TableRecord):
    """What is in the object store of a warehouse, in its cache, and in the last copy of its catalog."""

    uri: str
    epoch: int
    objects: int
    object_bytes: int
    cached_bytes: int
    cache_limit: int
    copied_commit: int | None
    """What a machine that restores the warehouse would have."""
    copied_at: dt.datetime | None
    uncopied_commits: int
    """Commits that would be lost with this machine. Uploads never wait: they come before their commit."""
    waiting_deletions: int
    """Objects that nothing names any more but an earlier copy of the catalog."""
    taken_over_by: str
    """Who has restored the warehouse since, so that this machine may only read it."""
    problem: str
    """Why the last copy of this process could not be made."""


class SegmentStore:
    """The object store of one handle; cache and copies are shared by all handles of the process.

    Args:
        root: The warehouse.
        catalog: Its catalog.
        entry: The record of the store.
        files: The disk.
        writes: Whether this handle may commit.
    """

    def __init__(
        self, root: Path, catalog: Catalog, entry: ObjectStoreEntry, files: FileSystem, *, writes: bool
    ) -> None:
        self.entry = entry
        # What handles share holds on to readers, and they to this: it must not keep a handle that was never closed.
        self._root, self._catalog, self._writes = root, weakref.proxy(catalog), writes
        location = parse_location(entry.uri)
        shared = catalog.shared
        self.objects: ObjectStore = shared.attached("objects", lambda: open_objects(location))
        self.cache: SegmentCache = shared.attached(
            "segment cache",
            lambda: SegmentCache(
                root,
                self.objects,
                catalog.folder / "locks" / "segment-cache.lock",
                _unique_name("_"),
                entry.cache_bytes,
            ),
        )
        self.cache.limit = entry.cache_bytes
        self.copies: CatalogCopies = shared.attached(
            "catalog copies", lambda: CatalogCopies(root, self.objects, entry, files, partial(_unique_name, "-"))
        )
        self.copies.entry = entry
        if writes:
            self.note_added(0)
            catalog.after_commit = partial(self.copies.note_commit, self._catalog)

    # -- a reader's files ----------------------------------------------------------------------------------------------

    def touch(self, files: Iterable[str]) -> None:
        """See `FileProvider`."""
        self.cache.touch(files)

    def bring(self, files: Collection[str]) -> None:
        """See `FileProvider`."""
        self.cache.bring(files, self._find_entries)

    def hold(self, files: Collection[str]) -> None:
        """See `FileProvider`."""
        self.cache.hold(files, self._find_entries)

    def replace(self, file: str) -> bool:
        """See `FileProvider`."""
        return self.cache.replace(file, self._find_entries)

    def _find_entries(self, files: Collection[str]) -> dict[str, ObjectEntry]:
        entries: dict[str, ObjectEntry] = self._catalog.read(lambda tables: find_objects(tables, files))
        return entries

    # -- a writer's files ----------------------------------------------------------------------------------------------

    def upload(self, names: Sequence[str]) -> None:
        """Write published files to the store, all at once, and see that nobody else has taken the warehouse over.

        A commit that names no file asks nothing of the store: it is refused once a copy or an upload has found out.
        """
        if not names:
            return
        work = [(self.objects.put_file, name, self._root / name) for name in names]
        self.cache.run_all(_call, [*work, (self.copies.check_epoch, self._catalog)])

    def record(self, tables: Tables, names: Sequence[str], sealed: Mapping[str, tuple[int, str]]) -> None:
        """Note uploaded files in the commit that names them."""
        record_objects(tables, {name: ObjectEntry(*sealed[name]) for name in names})

    def note_added(self, size: int) -> None:
        """Count what was uploaded as a part of the cache, which then may have to give something up."""
        self.cache.note_added(size, self._find_entries)

    def wait_for_copy(self) -> CatalogCopyEntry:
        """Return when all that is committed now could be restored."""
        return self.copies.copy(self._catalog)

    def last_copy(self) -> CatalogCopyEntry | None:
        """The last copy of the catalog."""
        copy: CatalogCopyEntry | None = self._catalog.read(read_copy)
        return copy

    def find_problems(self) -> list[str]:
        """Objects that are missing from the store, or have another size than what was written."""
        entries = self._catalog.read(list_objects)
        problems: list[str] = []

        def look(name: str, expected: int) -> None:
            size = self.objects.size(name)
            if size is None:
                problems.append(f"object {self.objects.uri(name)} is missing")
            elif size != expected:
                problems.append(f"object {self.objects.uri(name)} has {size} bytes, {expected} were written")

        try:
            self.cache.run_all(look, [(name, entry.bytes) for name, entry in entries.items()])
        except StorageError as error:
            problems.append(str(error))
        return sorted(problems)

    def erase_traces(self) -> tuple[str, ...]:
        """Copy the catalog without what was erased, and delete the copy before it and all that was replaced.

        Returns:
            In words, what still holds it.
        """
        try:
            self.copies.copy(self._catalog)
        except StorageError as error:
            return (f"objects and the last copy of the catalog in {self.objects.location.uri} ({error})",)
        waiting = self._catalog.read(lambda tables: tables.count("deletions"))
        return (f"{waiting} objects that are still to be deleted",) if waiting else ()

    def status(self) -> "StoreStatus":
        """Where things stand."""

        def read(tables: Tables) -> StoreStatus:
            copy, successor = read_copy(tables), read_successor(tables)
            return StoreStatus(
                uri=self.entry.uri,
                epoch=self.entry.epoch,
                objects=tables.count("objects"),
                object_bytes=sum(entry.bytes for _, entry in tables.items("objects")),
                cached_bytes=self.cache.bytes,
                cache_limit=self.entry.cache_bytes,
                copied_commit=None if copy is None else copy.commit,
                copied_at=None if copy is None else times.to_datetime(copy.at),
                uncopied_commits=tables.version - (0 if copy is None else copy.commit),
                waiting_deletions=tables.count("deletions"),
                taken_over_by="" if successor is None else f"{successor.host}, as epoch {successor.epoch}",
                problem=self.copies.problem,
            )

        status: StoreStatus = self._catalog.read(read)
        return status

    def collect_garbage(self) -> None:
        """Copy the catalog, delete objects that the copy names nowhere, and keep the cache's limit."""
        self.copies.copy(self._catalog)
        self.note_added(0)

    def finish(self) -> None:
        """Copy what has no copy, before the handle is closed."""
        if self._writes:
            self.copies.finish(self._catalog)


def _call(work: Callable[..., object], *arguments: object) -> None:
    work(*arguments)


def _unique_name(separator: str) -> str:
    """As `Store.unique_name`, for what handles share."""
    parts = (f"{os.getpid():x}", f"{time.time_ns():x}", "0", f"{random.SystemRandom().getrandbits(48):012x}")
    return separator.join(parts)


def attach_store(
    root: Path, catalog: Catalog, options: StoreOptions, files: FileSystem, *, writes: bool
) -> SegmentStore | None:
    """The object store of a warehouse that is opened: the one that it remembers, or the one that it now gets."""
    entry = catalog.read(read_store_entry)
    if entry is not None and writes and entry.place != find_place(catalog):
        raise FormatError(
            f"{root} is a copy of a warehouse in {entry.uri}, or was moved here; if this one is to go on, say so with "
            f"'windrow adopt {root}': any other can then be read only"
        )
    is_new = entry is None
    if options.is_given:
        entry = _apply_options(root, catalog, entry, options, files, writes=writes)
    if entry is None:
        return None
    store = SegmentStore(root, catalog, entry, files, writes=writes)
    if is_new:
        store.wait_for_copy()  # from now on there is something to restore
    return store


def _apply_options(
    root: Path,
    catalog: Catalog,
    entry: ObjectStoreEntry | None,
    options: StoreOptions,
    files: FileSystem,
    *,
    writes: bool,
) -> ObjectStoreEntry:
    location = None if options.segments is None else parse_location(options.segments)
    if entry is None and location is None:
        raise FormatError(
            f"segment_cache, copy_every and copy_commits are of an object store, and {root} has none; "
            "give it one with segments='s3://bucket/prefix'"
        )
    if entry is not None and location is not None:
        current = parse_location(entry.uri)
        if _place(current) != _place(location):
            raise FormatError(
                f"the segments of {root} are in {current.uri}, not in {location.uri}; leave segments=… out"
            )
    changed = options.apply(
        entry
        or ObjectStoreEntry(
            uri="",
            epoch=epochs.FIRST,
            cache_bytes=_CACHE_BYTES,
            copy_every=_COPY_EVERY,
            copy_commits=_COPY_COMMITS,
            place=find_place(catalog),
        )
    )
    if location is not None:
        changed = replace(changed, uri=location.uri)
    if changed == entry:
        return changed
    if not writes:
        raise StorageError(f"warehouse {root} is open for reading only, so its object store stays as it is")
    if entry is None:
        assert location is not None
        _move_into_store(root, catalog, open_objects(location), changed, files)
    else:
        with catalog.exclusive() as tables:
            write_store_entry(tables, changed)
    return changed


def find_place(catalog: Catalog) -> int:
    """What is another thing in a copy of the catalog's folder."""
    return catalog.folder.stat().st_ino


def take_over(catalog: Catalog) -> bool:
    """Claim the next epoch for a folder that was moved or copied; False if its files are in no object store."""
    entry: ObjectStoreEntry | None = catalog.read(read_store_entry)
    if entry is None:
        return False
    objects, last = open_objects(parse_location(entry.uri)), catalog.read(read_copy)
    epochs.refuse_unconditional(objects)

    def check_copy() -> None:
        published = epochs.find_copy(objects, entry.epoch)
        if published is not None and (last is None or last.name != published.name):
            raise FormatError(
                f"the warehouse that {catalog.folder} was copied from has gone on since; take it over with "
                f"'windrow restore --from {entry.uri} FOLDER'"
            )

    check_copy()  # before a machine that lives is refused its commits
    claimed = epochs.claim_next(objects, entry.epoch)
    check_copy()
    with catalog.exclusive() as tables:
        write_store_entry(tables, replace(entry, epoch=claimed.epoch, place=find_place(catalog)))
    return True


def _place(location: Location) -> tuple[str, str, str]:
    """A location without what says how it is reached."""
    return location.scheme, location.host, location.prefix


def _move_into_store(
    root: Path, catalog: Catalog, objects: ObjectStore, entry: ObjectStoreEntry, files: FileSystem
) -> None:
    """Upload what a warehouse has, and remember the store; from then on the files in the folder are a cache."""
    if catalog.read(lambda tables: next(iter(tables.raw_items("publications")), None)) is not None:
        raise StorageError(
            f"{root} publishes streams from its folder, which an object store cannot follow; unpublish them first"
        )
    owner = catalog.read(read_owner)
    epochs.claim_first(objects, owner.uuid or "")
    _try_rights(objects)
    uploaded: dict[str, ObjectEntry] = {}

    def upload(names: Collection[str]) -> None:
        for name in sorted(names - uploaded.keys()):
            path = root / name
            with disk_errors(f"uploading {name}"):
                objects.put_file(name, path)
                uploaded[name] = ObjectEntry(path.stat().st_size, compute_digest(path))

    upload({name for name in catalog.read(named_files) if (root / name).exists()})
    with catalog.exclusive() as tables:  # nobody else commits until this has; the few that came meanwhile are uploaded
        there = read_store_entry(tables)
        if there is not None:
            raise FormatError(f"{root} was given the object store {there.uri} just now; open it again")
        upload({name for name in named_files(tables) if (root / name).exists()})
        record_objects(tables, uploaded)
        write_store_entry(tables, entry)
    files.reach("objects.attached")


def _try_rights(objects: ObjectStore) -> None:
    """See that this machine may write, read and delete, before anything relies on it."""
    name = f"epochs/probe-{_unique_name('-')}"
    objects.put(name, b"rights")
    if objects.read_if_present(name) != b"rights":
        raise StorageError(f"{objects.uri(name)} could not be read after it was written; check the store")
    objects.delete([name])
