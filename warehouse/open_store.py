"""Opening a warehouse: its marker file, its catalog, whether the disk can carry it, and clearing up after the dead."""

import contextlib
import logging
import os
import random
import re
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.catalog.environment import Catalog
from windrow.catalog.lookups import find_checksums
from windrow.catalog.object_log import is_in_store
from windrow.errors import FormatError, StorageError, UnpinnedWarning
from windrow.files import FileSystem, disk_errors, remove_dead_staging
from windrow.format_conversion import convert_warehouse
from windrow.identity import Marker, assign_warehouse_id, check_owner, read_marker, read_owner, refuse_backup
from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.scan import ScanCache
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.orphans import clear_orphans, data_files
from windrow.store import Store, wall_clock
from windrow.times import Duration

if TYPE_CHECKING:
    from windrow.object_store.segment_store import StoreOptions

_log = logging.getLogger(__name__)
# A program that asks for no log gets none: Python would write our warnings to its stderr.
logging.getLogger("windrow").addHandler(logging.NullHandler())
_FOLDERS = ("catalog", "streams", "staging", "tables", "results")
"""What a half-made warehouse may hold: its maker was killed, or is another process that is just now making it."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
        "fuse.sshfs",
        "fuse.s3fs",
        "gpfs",
        "beegfs",
    )
)


def open_store(
    root: Path,
    *,
    catalog: Path | None,
    read_only: bool,
    create: bool,
    clock: Callable[[], int] | None,
    sleep: Callable[[float], None],
    files: FileSystem,
    randomness: random.Random | None,
    cache_bytes: int | None = None,
    object_store: "StoreOptions | None" = None,
) -> Store:
    """Open (or create) the warehouse in `root`."""
    for place in (root, catalog):
        if place is not None and (scheme := _URI.match(str(place))):
            # A path has lost slashes that a URI has.
            uri = scheme[0] + ("//" if scheme[0] == "file:/" else "/") + str(place)[scheme.end() :]
            raise FormatError(
                f"{uri} is a URI; a warehouse is a folder of this machine, so give its path; its files may lie in an "
                f"object store: windrow.open('folder', segments='{uri}')"
            )
    root = root.absolute()
    with disk_errors(f"opening warehouse {root}"):
        marker = read_marker(root)
        folder = _catalog_folder(root, marker, catalog, create and not read_only, files)
        refuse_network(folder if folder.exists() else root, folder, files)
        begun = marker is not None or bool(data_files(root))
        _check_catalog(root, folder, begun)
        opened = Catalog(folder, create=create and not read_only and not begun, read_only=read_only)
        if not begun and opened.writable:
            files.sync(folder)
            files.sync(folder.parent)
        try:
            may_write = not read_only and opened.writable and os.access(root, os.W_OK)
            _identify(root, opened, marker, may_write, files)
            if not read_only:
                convert_warehouse(root, opened, files)
        except BaseException:
            opened.close()
            raise
    published: dict[str, bytes] = {}
    page_options = {} if cache_bytes is None else {"page_bytes": cache_bytes}
    # What handles share holds on to the columns, so their reader must not keep a handle that was never closed.
    reader = SegmentFileReader(root, partial(find_checksums, weakref.proxy(opened), published), **page_options)
    columns = ColumnCache(reader, cache_bytes)
    store = Store(
        root=root,
        catalog=opened,
        files=files,
        reader=reader,
        columns=columns,
        scan_cache=ScanCache(columns),
        clock=clock or wall_clock,
        sleep=sleep,
        randomness=randomness or random.SystemRandom(),
        read_only=read_only,
        published=published,
    )
    try:
        if object_store is not None or opened.read(is_in_store):
            attach(store, object_store)
        if not store.can_pin and not os.statvfs(folder).f_flag & os.ST_RDONLY:
            warnings.warn(
                f"this process may not write {store.pins.folder}, so rows that it reads may be removed meanwhile; "
                "make that folder writable for it",
                UnpinnedWarning,
                stacklevel=4,  # where `windrow.open` was called
            )
        if not read_only and opened.writable and os.access(root, os.W_OK):
            _clear_up_after_the_dead(store)
    except BaseException:
        store.close()
        raise
    _log.debug("opened %s%s", root, " for reading" if read_only else "")
    if store.cleared:
        _log.info("removed %d files that ended processes had left in %s", store.cleared, root)
    return store


def _clear_up_after_the_dead(store: Store) -> None:
    """Remove what ended processes left behind, and finish what they published."""
    store.cleared = remove_dead_staging(store.root)
    with contextlib.suppress(StorageError):  # a full disk keeps nobody from opening what may free it
        store.cleared += clear_orphans(store).removed
    if store.catalog.read(lambda tables: next(iter(tables.raw_items("publications")), None)) is not None:
        from windrow.publication import finish_versions  # only here: few streams are published

        finish_versions(store)


def make_store_options(
    segments: str | None, segment_cache: str | None, copy_every: Duration | None, copy_commits: int | None
) -> "StoreOptions | None":
    """What is said of an object store; None if nothing is."""
    if all(value is None for value in (segments, segment_cache, copy_every, copy_commits)):
        return None
    from windrow.object_store.segment_store import StoreOptions

    return StoreOptions(segments, segment_cache, copy_every, copy_commits)


def attach(store: Store, options: "StoreOptions | None") -> None:
    """Give a handle the object store that its warehouse has, or is to have."""
    from windrow.object_store.segment_store import StoreOptions, attach_store  # few warehouses have one

    writes = not store.read_only and store.catalog.writable
    with disk_errors(f"opening warehouse {store.root}"):
        store.remote = attach_store(store.root, store.catalog, options or StoreOptions(), store.files, writes=writes)
    store.reader.provider = store.remote


def refuse_network(place: Path, folder: Path, files: FileSystem) -> None:
    """Refuse a catalog where LMDB cannot work; `place` is its folder, or where that will be."""
    kind = files.file_system(place)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StorageError(
            f"the catalog in {folder} would be on a network file system ({kind}), where LMDB is not safe; "
            "put it on a local disk with windrow.open(path, catalog='/local/folder')"
        )


def _identify(root: Path, opened: Catalog, marker: Marker | None, may_write: bool, files: FileSystem) -> None:
    """See that the catalog belongs to this folder, and give ids to a warehouse that has none."""
    owner = opened.read(read_owner)
    check_owner(root, opened.folder, owner, marker)
    if marker is None:
        # Last, so that a marker always stands for a whole warehouse, and a catalog that is missing later was lost.
        assign_warehouse_id(root, opened, None, files)
    elif may_write and (marker.uuid is None or owner.uuid is None):
        try:
            assign_warehouse_id(root, opened, marker, files)
        except FormatError:  # somebody else was first, in another folder
            raise
        except OSError:
            pass  # it was good enough without an id, and the disk may be full


def _catalog_folder(root: Path, marker: Marker | None, requested: Path | None, create: bool, files: FileSystem) -> Path:
    if marker is not None:
        folder = marker.folder(root)
        if requested is not None and requested.absolute() != folder:
            raise FormatError(f"the catalog of {root} is in {folder}, not in {requested}; leave catalog=… out")
        return folder
    refuse_backup(root)
    if not create:
        raise FormatError(f"{root} holds no warehouse; create one with 'windrow init' or check the path")
    if root.exists() and not root.is_dir():
        raise FormatError(f"{root} is a file; a warehouse is a folder")
    if root.is_dir() and any(entry.name not in _FOLDERS and not entry.name.startswith(".") for entry in root.iterdir()):
        raise FormatError(f"{root} is not empty and holds no warehouse; choose a new or empty folder")
    root.mkdir(0o700, parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # somebody else made the folder, and decides who may read it
        root.chmod(0o700)
    files.sync(root.parent)
    for name in _FOLDERS[1:]:
        files.make_folder(root / name)
    return requested.absolute() if requested is not None else root / "catalog"


def _check_catalog(root: Path, folder: Path, begun: bool) -> None:
    """Refuse to begin a new catalog over rows that a lost one names."""
    if (folder / "data.mdb").exists() or not begun:
        return
    raise FormatError(
        f"the catalog of {root} is missing from {folder}; mount its disk or restore it from a copy, "
        "the rows are untouched"
    )
