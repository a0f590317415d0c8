"""Opening a warehouse: its marker file, its catalog, whether the disk can carry it, and clearing up after the dead."""

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

from windrow.catalog.environment import FORMAT, Catalog
from windrow.errors import FormatError, StorageError
from windrow.files import FileSystem, disk_errors, remove_dead_staging
from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.scan import ScanCache
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.orphans import clear_orphans, data_files
from windrow.store import Store, wall_clock

MARKER = "windrow.json"
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
        marked = (root / MARKER).exists()
        folder = _catalog_folder(root, catalog, create and not read_only)
        kind = files.file_system(folder if folder.exists() else root)
        if kind in _NETWORK_FILE_SYSTEMS:
            raise StorageError(
                f"the catalog in {folder} would be on a network file system ({kind}), where LMDB is not safe; "
                "put it on a local disk with windrow.open(path, catalog='/local/folder')"
            )
        begun = marked or bool(data_files(root))
        _check_catalog(root, folder, begun)
        opened = Catalog(folder, create=create and not read_only and not begun)
        if not marked:
            # Last, so that a marker always stands for a whole warehouse, and a catalog that is missing later was lost.
            _write_marker(root, catalog)
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


def _catalog_folder(root: Path, given: Path | None, create: bool) -> Path:
    marker = root / MARKER
    if marker.exists():
        return _read_marker(root, marker, given)
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


def _write_marker(root: Path, given: Path | None) -> None:
    hidden = root / f".{MARKER}.{os.getpid()}"
    hidden.write_text(json.dumps({"format": FORMAT, "catalog": None if given is None else str(given.absolute())}))
    hidden.rename(root / MARKER)


def _check_catalog(root: Path, folder: Path, begun: bool) -> None:
    """Refuse to begin a new catalog over rows that a lost one names."""
    if (folder / "data.mdb").exists() or not begun:
        return
    raise FormatError(
        f"the catalog of {root} is missing from {folder}; mount its disk or restore it from a copy, "
        "the rows are untouched"
    )


def _read_marker(root: Path, marker: Path, given: Path | None) -> Path:
    try:
        content = json.loads(marker.read_text())
        version, recorded = int(content["format"]), content.get("catalog")
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f'{marker} is damaged; restore it from a copy, or write {{"format": {FORMAT}, "catalog": null}} into it'
        ) from None
    if version != FORMAT:
        age = "newer" if version > FORMAT else "older"
        raise FormatError(
            f"{root} has warehouse format {version}, {age} than this release's {FORMAT}; "
            "open it with the release that wrote it"
        )
    folder = Path(recorded) if recorded else root / "catalog"
    if given is not None and given.absolute() != folder:
        raise FormatError(f"the catalog of {root} is in {folder}, not in {given}; leave catalog=… out")
    return folder
