"""Which warehouse a folder is: its marker file and its catalog carry the same id, and the catalog knows its folder.

Without that, a copied folder whose catalog lies elsewhere would change the catalog of its original, and remove what the
original still needs.
"""

import json
import os
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from windrow.catalog.environment import FORMAT, Catalog, Tables
from windrow.errors import FormatError
from windrow.files import FileSystem

MARKER = "windrow.json"
BACKUP_MANIFEST = "backup.json"
"""What a backup has instead."""
UNFINISHED = ".unfinished"
"""Locked by who makes a backup or restores one in its folder; gone when all of it is durable."""


@dataclass(frozen=True)
class Marker:
    """What the marker file says."""

    format: int = FORMAT
    catalog: str | None = None
    """Where the catalog lies, if not inside."""
    uuid: str | None = None
    """None in a warehouse that was made before there were ids, and that nobody has opened for writing since."""
    root: str | None = None
    """The folder in which it was written."""

    def folder(self, root: Path) -> Path:
        """The catalog's folder."""
        return Path(self.catalog) if self.catalog else root / "catalog"


def read_marker(root: Path) -> Marker | None:
    """The marker of a folder; None if it has none."""
    path = root / MARKER
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        marker = Marker(int(fields["format"]), fields.get("catalog"), fields.get("uuid"), fields.get("root"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(
            f'{path} is damaged; restore it from a copy, or write {{"format": {FORMAT}, "catalog": null}} into it'
        ) from None
    if not 1 <= marker.format <= FORMAT:
        age = "newer" if marker.format > FORMAT else "older"
        raise FormatError(
            f"{root} has warehouse format {marker.format}, {age} than this release's {FORMAT}; "
            "open it with the release that wrote it"
        )
    return marker


def write_marker(root: Path, marker: Marker, files: FileSystem) -> None:
    """Put a marker in the place of the one that is there, durably and all at once."""
    hidden = root / f".{MARKER}.{uuid.uuid4().hex}"
    try:
        with files.sink(hidden) as sink:
            sink.write(json.dumps(asdict(marker)).encode())
        files.sync(hidden)
        files.rename(hidden, root / MARKER)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    files.sync(root)


def refuse_backup(root: Path) -> None:
    """Refuse a folder without a marker that holds a backup, or a part of one: neither is a warehouse."""
    if (root / BACKUP_MANIFEST).exists():
        raise FormatError(f"{root} holds a backup; restore it with 'windrow backup restore {root} FOLDER'")
    if (root / UNFINISHED).exists():
        raise FormatError(
            f"{root} holds a part of a backup, or of a warehouse that was being restored; "
            "run what was interrupted again, or remove the folder"
        )


@dataclass(frozen=True)
class Origin:
    """The backup that a warehouse was restored from: what came after it is lost, unless its sources send it again."""

    commit: int
    taken: int
    """Wall time at which the backup was begun, in microseconds."""
    at: int
    """Wall time at which it was restored."""


def read_origin(tables: Tables) -> Origin | None:
    """What a warehouse was restored from; None if it never was."""
    raw = tables.raw("meta", b"restored")
    return None if raw is None else Origin(*json.loads(bytes(raw)))


def write_origin(tables: Tables, origin: Origin) -> None:
    """Remember what a warehouse was restored from."""
    tables.put_raw("meta", b"restored", json.dumps([origin.commit, origin.taken, origin.at]).encode())


@dataclass(frozen=True)
class Owner:
    """The warehouse that a catalog belongs to; nothing is known of one that was made before there were ids."""

    uuid: str | None
    root: str | None

    def is_in(self, root: Path) -> bool:
        """Whether the catalog belongs to the warehouse in this very folder, by whatever name it is called."""
        try:
            return self.root is None or os.path.samefile(self.root, root)
        except OSError:
            return False

    def is_alive(self, folder: Path) -> bool:
        """Whether the warehouse that this catalog belongs to is still where it was; what cannot be read may be it."""
        root = Path(self.root or "")
        try:
            marker = read_marker(root)
            if marker is None:
                return False
            # Whoever gave the catalog its id may have been killed before the marker got it.
            return marker.uuid == self.uuid or (marker.uuid is None and os.path.samefile(marker.folder(root), folder))
        except FileNotFoundError:
            return False
        except OSError:
            return True


def read_owner(tables: Tables) -> Owner:
    """Whose catalog this is."""
    records = [tables.raw("meta", name) for name in (b"uuid", b"root")]
    owner_id, root = (None if raw is None else os.fsdecode(bytes(raw)) for raw in records)
    return Owner(owner_id, root)


def write_owner(tables: Tables, owner: Owner) -> None:
    """Give a catalog to a warehouse."""
    assert owner.uuid is not None
    assert owner.root is not None
    tables.put_raw("meta", b"uuid", owner.uuid.encode())
    tables.put_raw("meta", b"root", os.fsencode(owner.root))


def lies_inside(root: Path, folder: Path) -> bool:
    """Whether a catalog goes where its warehouse goes."""
    return folder.resolve().is_relative_to(root.resolve())


def check_owner(root: Path, folder: Path, owner: Owner, marker: Marker | None) -> None:
    """Refuse a catalog that belongs to another warehouse."""
    if marker is not None and marker.uuid not in (None, owner.uuid):
        raise FormatError(
            f"the catalog in {folder} is not the one of {root}: its id is {owner.uuid or 'missing'}, {MARKER} says "
            f"{marker.uuid}; bring back the one that belongs to it, the rows are untouched"
        )
    if lies_inside(root, folder) or owner.is_in(root):
        return
    if owner.is_alive(folder):
        raise FormatError(
            f"{root} is a copy of the warehouse in {owner.root} and would change its catalog in {folder}; "
            f"make it a warehouse of its own with 'windrow adopt {root}'"
        )
    raise FormatError(
        f"the catalog in {folder} belongs to the warehouse in {owner.root}, which is not there; "
        f"if that was moved to {root}, say so with 'windrow adopt {root}'"
    )


def assign_warehouse_id(root: Path, opened: Catalog, marker: Marker | None, files: FileSystem) -> None:
    """Give marker and catalog the same id where one of them has none.

    The catalog is first, in a transaction, so that all who do this at the same time come to the same id.
    """
    with opened.exclusive() as tables:
        owner = read_owner(tables)
        if owner.uuid is None:
            owner = Owner(uuid.uuid4().hex, str(root))
            write_owner(tables, owner)
    check_owner(root, opened.folder, owner, marker)
    inside = opened.folder == root / "catalog"
    marker = marker or Marker(catalog=None if inside else str(opened.folder))
    if marker.uuid != owner.uuid:
        write_marker(root, replace(marker, uuid=owner.uuid, root=str(root)), files)
