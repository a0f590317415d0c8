"""Restoring a warehouse from its object store: a local folder from the last copy of the catalog, and a new epoch.

The epoch is claimed before the last copy is looked for. Machines of older epochs find the claim before they delete
anything that a later copy of theirs no longer needs, and refuse to commit from then on (see `epochs`).
"""

import os
import shutil
import time
import uuid
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from windrow.arguments import check_path
from windrow.backup import CATALOG_FILE, Manifest, Restored, SavedFile, clear_catalog, restore_catalog, working_in
from windrow.catalog.environment import FORMAT, Catalog, Tables
from windrow.catalog.object_log import forget_successor, list_objects, read_store_entry, write_copy, write_store_entry
from windrow.catalog.records import CatalogCopyEntry
from windrow.errors import DamageError, FormatError
from windrow.files import FileSystem, compute_digest, disk_errors
from windrow.identity import Marker, read_marker, write_marker
from windrow.object_store import epochs
from windrow.object_store.location import Location, ObjectStore, open_objects, parse_location
from windrow.object_store.segment_store import find_place
from windrow.open_store import refuse_network


def restore_from_store(
    uri: str,
    path: str | os.PathLike[str],
    catalog: str | os.PathLike[str] | None = None,
    files: FileSystem | None = None,
) -> Restored:
    """Make a warehouse of this machine out of what is in an object store, in a new or empty folder.

    Commits after the last copy of the catalog are lost; a gap says so. Files come when they are read.

    Args:
        uri: Where the files of the warehouse are.
        path: Where the warehouse is to be.
        catalog: Where it is to have its catalog, if not inside; it must be on a local disk.
        files: The disk.

    Raises:
        FormatError: there is no warehouse in the store, or the folder holds something.
        StorageError: another machine restores it at the same time, or the store cannot be used.
        DamageError: the last copy of the catalog is damaged.
    """
    started, disk = time.perf_counter(), files or FileSystem()
    location, root = parse_location(uri), check_path(path).absolute()
    place = root / "catalog" if catalog is None else check_path(catalog).absolute()
    objects = open_objects(location)
    epochs.refuse_unconditional(objects)
    with disk_errors(f"restoring {location.uri} to {root}"):
        if read_marker(root) is not None:
            raise FormatError(f"{root} holds a warehouse already; choose a new or empty folder")
        refuse_network(place if place.exists() else place.parent, place, disk)
        newest = _find_newest(objects, location)
        with working_in(root, "a warehouse is restored"):
            clear_catalog(place, root)
            epoch = epochs.claim_next(objects, newest).epoch
            copy = _find_copy(objects, location, epoch)
            scratch = root / f".restored-{uuid.uuid4().hex}"
            try:
                manifest = _fetch_copy(objects, copy, scratch, root)
                stored: dict[str, int] = {}

                def adapt(tables: Tables) -> None:
                    entry = read_store_entry(tables)
                    if entry is None:
                        raise DamageError(f"the catalog in {objects.uri(copy.name)} knows no object store")
                    forget_successor(tables)
                    write_store_entry(tables, replace(entry, uri=location.uri, epoch=epoch, place=0))
                    write_copy(tables, copy)
                    stored.update({file: each.bytes for file, each in list_objects(tables).items()})

                owner = restore_catalog(manifest, scratch, root, place, disk, adapt)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            _settle_in(place)
            epochs.publish_copy(objects, epoch, copy)
            for name in ("streams", "staging", "tables", "results"):
                disk.make_folder(root / name)
            write_marker(
                root, Marker(copy.catalog_format, str(place) if catalog else None, owner.uuid, str(root)), disk
            )
    return Restored(root, place, copy.commit, len(stored), sum(stored.values()), time.perf_counter() - started)


def _settle_in(place: Path) -> None:
    """Tell the catalog where it is, which it got by being renamed."""
    catalog = Catalog(place, create=False)
    try:
        with catalog.exclusive() as tables:
            entry = read_store_entry(tables)
            assert entry is not None
            write_store_entry(tables, replace(entry, place=find_place(catalog)))
    finally:
        catalog.close()


def _find_newest(objects: ObjectStore, location: Location) -> int:
    """The last epoch that was claimed; refuses a location that no warehouse could be restored from."""
    claimed = [epoch.epoch for epoch in epochs.find_epochs(objects, 0)]
    if not claimed:
        raise FormatError(f"{location.uri} holds no warehouse; check the URI")
    _find_copy(objects, location, claimed[-1])  # before a machine that lives is refused its commits
    return claimed[-1]


def _find_copy(objects: ObjectStore, location: Location, epoch: int) -> CatalogCopyEntry:
    """The last copy of the catalog: of this epoch, or of the last one before it that has made any."""
    while epoch >= epochs.FIRST:
        copy = epochs.find_copy(objects, epoch)
        if copy is not None:
            if copy.catalog_format > FORMAT:
                raise FormatError(f"{location.uri} was written by a newer release; restore it with that")
            return copy
        epoch -= 1
    raise FormatError(
        f"{location.uri} has no copy of the catalog, which a warehouse makes when it is closed; nothing can be restored"
    )


def _fetch_copy(objects: ObjectStore, copy: CatalogCopyEntry, scratch: Path, root: Path) -> Manifest:
    """Fetch a copy of the catalog into a folder as a backup has it; gives the manifest of that."""
    packed, unpacked = scratch / "copy.zst", scratch / CATALOG_FILE
    unpacked.parent.mkdir(parents=True)
    with packed.open("xb") as sink:
        objects.fetch(copy.name, sink)
    if compute_digest(packed) != copy.digest:
        raise DamageError(
            f"object {objects.uri(copy.name)} does not have the checksum with which it was written; restore a backup"
        )
    with pa.CompressedInputStream(str(packed), "zstd") as source, unpacked.open("xb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    saved = SavedFile(unpacked.stat().st_size, compute_digest(unpacked))
    return Manifest(
        catalog_format=copy.catalog_format,
        warehouse=copy.warehouse,
        root=str(root),
        commit=copy.commit,
        at=copy.at,
        files={CATALOG_FILE: saved},
    )
