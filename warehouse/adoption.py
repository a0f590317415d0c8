"""Adoption: a copied or moved folder, whose catalog lies elsewhere, becomes a warehouse of its own.

A copy gets a copy of the catalog, and the catalog of the original is only read. The marker is written last: until then
the copy refuses to be opened, from then on it is complete.
"""

import os
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from windrow.arguments import check_path
from windrow.catalog.environment import Catalog
from windrow.catalog.object_log import is_in_store, list_objects, read_store_entry
from windrow.errors import BusyError, FormatError, StorageError
from windrow.files import FileSystem, disk_errors, make_folder
from windrow.identity import (
    Marker,
    Owner,
    assign_warehouse_id,
    check_owner,
    lies_inside,
    read_marker,
    read_owner,
    write_marker,
    write_owner,
)
from windrow.locks import LockedFile
from windrow.open_store import refuse_network
from windrow.orphans import needed_files


@dataclass(frozen=True)
class Adoption:
    """What became of a folder."""

    path: Path
    catalog: Path
    outcome: str
    """copied, moved, or own: it was a warehouse of its own already."""


def adopt(
    path: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None, files: FileSystem | None = None
) -> Adoption:
    """Make a copied or moved folder a warehouse of its own; one that is already is left as it is.

    Args:
        path: The folder.
        catalog: Where a copy is to have its catalog, if not inside; it must be on a local disk.
        files: The disk.

    Raises:
        FormatError: the folder holds no warehouse, or not all files that the catalog names.
        StorageError: the disk or its rights do not allow it.
    """
    root = check_path(path).absolute()
    target = None if catalog is None else check_path(catalog).absolute()
    disk = files or FileSystem()
    with disk_errors(f"adopting {root}"):
        marker = read_marker(root)
        if marker is None:
            raise FormatError(f"{root} holds no warehouse; adopt is for the folder of one that was copied or moved")
        folder = marker.folder(root)
        opened = Catalog(folder, create=False)
        try:
            if not opened.writable:
                raise StorageError(f"the catalog in {folder} is read-only; adopt as a user who may write there")
            with opened.exclusive() as tables:  # and not a read, which could miss the commit of a writer that died
                owner = read_owner(tables)
            if not lies_inside(root, folder) and not owner.is_in(root) and owner.is_alive(folder):
                return _part(root, opened, marker, owner, target or root / "catalog", disk)
            if target not in (None, folder):
                raise FormatError(f"the catalog of {root} is in {folder} and stays there; leave catalog=… out")
            if not lies_inside(root, folder) and not owner.is_in(root):
                return _take_over(root, opened, marker, owner, disk)
            check_owner(root, folder, owner, marker)
            assign_warehouse_id(root, opened, marker, disk)
            return Adoption(root, folder, "moved" if _claim_store(opened) else "own")
        finally:
            opened.close()


def _take_over(root: Path, opened: Catalog, marker: Marker, owner: Owner, files: FileSystem) -> Adoption:
    """Tell the catalog of a warehouse that was moved where that is now."""
    _check_uuid(root, opened, marker, owner)
    _check_files(root, opened)
    with opened.exclusive() as tables:
        write_owner(tables, replace(owner, root=str(root)))
    write_marker(root, replace(marker, uuid=owner.uuid, root=str(root)), files)
    _claim_store(opened)
    return Adoption(root, opened.folder, "moved")


def _claim_store(opened: Catalog) -> bool:
    """Take over the object store of a folder that is not where it was; whoever else has it may then only read."""
    from windrow.object_store.segment_store import find_place, take_over  # few warehouses have one

    entry = opened.read(read_store_entry)
    return entry is not None and entry.place != find_place(opened) and take_over(opened)


def _part(root: Path, opened: Catalog, marker: Marker, owner: Owner, target: Path, files: FileSystem) -> Adoption:
    """Give a copy a catalog of its own."""
    if opened.read(is_in_store):
        raise FormatError(
            f"{root} is a copy of a warehouse in an object store, which has one owner; restore it elsewhere with "
            "'windrow restore --from URI FOLDER', which takes it over, or move rows into another with a backup"
        )
    _check_uuid(root, opened, marker, owner)
    refuse_network(target if target.exists() else target.parent, target, files)
    new_owner = _finished(root, target, owner) if (target / "data.mdb").exists() else _copy(root, opened, target, files)
    place = None if target == root / "catalog" else str(target)
    write_marker(root, Marker(catalog=place, uuid=new_owner.uuid, root=str(root)), files)
    return Adoption(root, target, "copied")


def _check_uuid(root: Path, opened: Catalog, marker: Marker, owner: Owner) -> None:
    if marker.uuid not in (None, owner.uuid):
        check_owner(root, opened.folder, owner, marker)


def _finished(root: Path, target: Path, original: Owner) -> Owner:
    """The owner of a catalog that an adoption has made which was interrupted before its last step."""
    catalog = Catalog(target, create=False)
    try:
        owner = catalog.read(read_owner)
        if owner.root is None or not owner.is_in(root) or owner.uuid == original.uuid:
            raise FormatError(f"{target} holds the catalog of another warehouse; choose a new or empty folder")
        _check_files(root, catalog)
    finally:
        catalog.close()
    return owner


def _copy(root: Path, opened: Catalog, target: Path, files: FileSystem) -> Owner:
    """Copy a catalog for a new owner; it appears in its place when it is whole and durable."""
    if target.is_dir() and any(target.iterdir()):
        raise FormatError(f"{target} is not empty; choose a new or empty folder for the catalog")
    hidden = target.with_name(f".{target.name}.adopting")
    hidden.parent.mkdir(parents=True, exist_ok=True)
    make_folder(hidden)
    lock = LockedFile.claim(hidden / "owner.lock")
    if lock is None:
        raise BusyError(f"another process is just adopting {root}; wait until it has ended")
    owner = Owner(uuid.uuid4().hex, str(root))
    try:
        for rest in hidden.iterdir():
            if rest.is_dir():
                shutil.rmtree(rest)
            elif rest.name != "owner.lock":
                rest.unlink()
        opened.copy_to(hidden)
        catalog = Catalog(hidden, create=False)
        try:
            _check_files(root, catalog)
            with catalog.exclusive() as tables:
                write_owner(tables, owner)
                tables.delete_prefix("orphans", b"")
        finally:
            catalog.close()
        files.sync(hidden / "data.mdb")
        files.sync(hidden)
        files.rename(hidden, target)
        (target / "owner.lock").unlink()
        files.sync(target.parent)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    finally:
        lock.close()
    return owner


def _check_files(root: Path, catalog: Catalog) -> None:
    """Refuse a folder that lacks what the catalog names: it was copied in part, or while rows came and went."""
    needed, stored = catalog.read(lambda tables: (needed_files(tables), list_objects(tables)))
    wrong = [file for file, record in needed.items() if file not in stored and _size(root / file) != record.bytes]
    if wrong:
        raise FormatError(
            f"{root} lacks {len(wrong)} of the {len(needed)} files that the catalog names, such as {wrong[0]}; "
            "copy the whole folder while nobody writes to it, nothing was changed"
        )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
