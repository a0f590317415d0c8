"""What the catalog knows of the object store: where it is, which files are in it, and which are to be deleted there.

A file is on record from the commit that names it. When nothing names it any more it is put on the list of deletions,
and is deleted when a copy of the catalog is in the store in which it is on that list too.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from windrow.catalog.environment import SUPERSEDED, Tables, catalog_key, decode_last_int
from windrow.catalog.records import CatalogCopyEntry, EpochEntry, ObjectEntry, ObjectStoreEntry
from windrow.errors import FormatError

T = TypeVar("T")
_STORE = b"object_store"
_COPY = b"catalog_copy"
_PENDING = b"pending_copy"


def _read(tables: Tables, name: bytes, kind: type[T]) -> T | None:
    raw = tables.raw("meta", name)
    if raw is None:
        return None
    try:
        record = msgspec.msgpack.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise FormatError(f"the catalog's record {name.decode()} cannot be read ({error})") from None
    return record


def _write(tables: Tables, name: bytes, record: Any) -> None:
    tables.put_raw("meta", name, msgspec.msgpack.encode(record))


def read_store_entry(tables: Tables) -> ObjectStoreEntry | None:
    """Where the files are; None if only in the warehouse's folder."""
    return _read(tables, _STORE, ObjectStoreEntry)


def write_store_entry(tables: Tables, entry: ObjectStoreEntry) -> None:
    """Remember where the files are."""
    _write(tables, _STORE, entry)


def forget_store(tables: Tables) -> None:
    """Make the warehouse one whose files are only in its folder, as in what was restored from a backup."""
    for name in (_STORE, _COPY, _PENDING, SUPERSEDED):
        tables.delete("meta", name)
    for database in ("objects", "deletions"):
        tables.delete_prefix(database, b"")


def is_in_store(tables: Tables) -> bool:
    """Whether the files are in an object store."""
    return tables.raw("meta", _STORE) is not None


def read_copy(tables: Tables) -> CatalogCopyEntry | None:
    """The last copy of the catalog in the store."""
    return _read(tables, _COPY, CatalogCopyEntry)


def write_copy(tables: Tables, copy: CatalogCopyEntry) -> None:
    """Remember the last copy of the catalog, which is no longer pending."""
    _write(tables, _COPY, copy)
    tables.delete("meta", _PENDING)


def read_pending_copy(tables: Tables) -> str | None:
    """The object that a copy was being written to whose outcome is not known."""
    raw = tables.raw("meta", _PENDING)
    return None if raw is None else bytes(raw).decode()


def write_pending_copy(tables: Tables, name: str) -> None:
    """Remember an object before it is written, so that it is deleted if its writer dies."""
    tables.put_raw("meta", _PENDING, name.encode())


def read_successor(tables: Tables) -> EpochEntry | None:
    """Who has taken the warehouse over; None if nobody has."""
    return _read(tables, SUPERSEDED, EpochEntry)


def write_successor(tables: Tables, epoch: EpochEntry) -> None:
    """Refuse all commits from now on."""
    _write(tables, SUPERSEDED, epoch)


def forget_successor(tables: Tables) -> None:
    """Allow commits again, in a copy of the catalog that belongs to the successor."""
    tables.delete("meta", SUPERSEDED)


def record_objects(tables: Tables, objects: Mapping[str, ObjectEntry]) -> None:
    """Note files that are in the store."""
    for file, entry in objects.items():
        tables.put("objects", file.encode(), entry)


def find_objects(tables: Tables, files: Collection[str]) -> dict[str, ObjectEntry]:
    """Those of the files that are in the store."""
    entries = ((file, tables.get("objects", file.encode())) for file in files)
    return {file: entry for file, entry in entries if entry is not None}


def list_objects(tables: Tables) -> dict[str, ObjectEntry]:
    """All files that are in the store."""
    return {key.decode(): entry for key, entry in tables.items("objects")}


def give_up_objects(tables: Tables, files: Collection[str], *, uploaded: bool = False) -> None:
    """Put files on the list of deletions that nothing names any more.

    Args:
        tables: In a write transaction.
        files: Their names.
        uploaded: They may be in the store though they are not on record.
    """
    commit = tables.version + uploaded  # nothing says that, so the next copy is the first that can
    for file in files:
        if uploaded or tables.raw("objects", file.encode()) is not None:
            tables.delete("objects", file.encode())
            tables.put_raw("deletions", catalog_key(commit) + file.encode(), b"")


def list_deletions(tables: Tables, upto: int) -> list[bytes]:
    """Keys of the deletions that commits up to this one asked for."""
    keys = []
    for key, _ in tables.raw_items("deletions"):
        if decode_last_int(key[:8]) > upto:
            break
        keys.append(key)
    return keys


def decode_deletion(key: bytes) -> str:
    """The name of the object that a deletion is of."""
    return key[8:].decode()
