"""Opening a warehouse: its marker file, its catalog, whether the disk can carry it, and clearing up after the dead."""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

from windrow.catalog.environment import Catalog
from windrow.errors import FormatError, StorageError
from windrow.files import FileSystem, disk_errors, remove_dead_staging
from windrow.identity import Marker, check_owner, own, read_marker, read_owner
from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.scan import ScanCache
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.orphans import clear_orphans, data_files
from windrow.store import Store, wall_clock

_FOLDERS = ("catalog", "streams", "staging", "tables", "results")
"""What a half-made warehouse may hold: its maker was killed, or is another process that is just now making it."""
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
) -> Store:
    """Open (or create) the warehouse in `root`."""
    root = root.absolute()
    with disk_errors(f"opening warehouse {root}"):
        marker = read_marker(root)
        folder = _catalog_folder(root, marker, catalog, create and not read_only)
        refuse_network(folder if folder.exists() else root, folder, files)
        begun = marker is not None or bool(data_files(root))
        _check_catalog(root, folder, begun)
        opened = Catalog(folder, create=create and not read_only and not begun, read_only=read_only)
        try:
            _identify(root, opened, marker, not read_only and opened.writable and os.access(root, os.W_OK), files)
        except BaseException:
            opened.close()
            raise
    reader = SegmentFileReader(root)
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
    )
    try:
        if not read_only and opened.writable and os.access(root, os.W_OK):
            remove_dead_staging(root)
            with contextlib.suppress(StorageError):  # a full disk keeps nobody from opening what may free it
                clear_orphans(store)
    except BaseException:
        store.close()
        raise
    return store


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
        own(root, opened, None, files)
    elif may_write and (marker.uuid is None or owner.uuid is None):
        try:
            own(root, opened, marker, files)
        except FormatError:  # somebody else was first, in another folder
            raise
        except OSError:
            pass  # it was good enough without an id, and the disk may be full


def _catalog_folder(root: Path, marker: Marker | None, given: Path | None, create: bool) -> Path:
    if marker is not None:
        folder = marker.folder(root)
        if given is not None and given.absolute() != folder:
            raise FormatError(f"the catalog of {root} is in {folder}, not in {given}; leave catalog=… out")
        return folder
    if not create:
        raise FormatError(f"{root} holds no warehouse; create one with 'windrow init' or check the path")
    if root.exists() and not root.is_dir():
        raise FormatError(f"{root} is a file; a warehouse is a folder")
    if root.is_dir() and any(entry.name not in _FOLDERS and not entry.name.startswith(".") for entry in root.iterdir()):
        raise FormatError(f"{root} is not empty and holds no warehouse; choose a new or empty folder")
    root.mkdir(parents=True, exist_ok=True)
    for name in _FOLDERS[1:]:
        (root / name).mkdir(exist_ok=True)
    return given.absolute() if given is not None else root / "catalog"


def _check_catalog(root: Path, folder: Path, begun: bool) -> None:
    """Refuse to begin a new catalog over rows that a lost one names."""
    if (folder / "data.mdb").exists() or not begun:
        return
    raise FormatError(
        f"the catalog of {root} is missing from {folder}; mount its disk or restore it from a copy, "
        "the rows are untouched"
    )
