"""Brings a warehouse of format 1 to format 2: checksums for all records of the catalog, and for all files.

The catalog is changed in one transaction, and the marker after it. Whoever is killed before the commit has changed
nothing; after it, whoever opens the warehouse for writing next writes the marker.
"""

import os
import struct
from dataclasses import replace
from pathlib import Path

from windrow.catalog.environment import DATABASES, FORMAT, Catalog, Tables
from windrow.errors import BusyError, DamageError, FormatError
from windrow.files import FileSystem, compute_digest
from windrow.identity import read_marker, write_marker
from windrow.indexes.segment_reader import compute_checksums
from windrow.native import parquet_reader
from windrow.orphans import named_files, needed_files


def convert_warehouse(root: Path, catalog: Catalog, files: FileSystem) -> None:
    """Convert a warehouse that was written before this format; nothing is done to others."""
    if catalog.format < FORMAT:
        if not catalog.writable or not os.access(root, os.W_OK):
            raise FormatError(
                f"{root} has format {catalog.format} and is converted to {FORMAT} when it is opened for writing, which "
                "this process may not; open it with read_only=True"
            )
        _convert_catalog(root, catalog)
        files.reach("format.committed")
    marker = read_marker(root)
    if marker is not None and marker.format < FORMAT and os.access(root, os.W_OK):
        write_marker(root, replace(marker, format=FORMAT), files)


def _convert_catalog(root: Path, catalog: Catalog) -> None:
    checksums: dict[str, bytes] = {}  # most files are read before the transaction, for which writers wait
    for file, written in catalog.read(_list_files).items():
        _add_checksums(root, file, written, checksums)
    with catalog.exclusive() as tables:
        if tables.is_sealed:
            return  # by another process, meanwhile
        others = catalog.other_processes()
        if others:
            raise BusyError(
                f"{root} has format 1 and cannot be converted to {FORMAT} while another process has it open "
                f"({', '.join(map(str, sorted(others)))}); close it there and open it again"
            )
        for file, written in _list_files(tables).items():
            if file not in checksums:
                _add_checksums(root, file, written, checksums)
        records = {
            name: [(key, bytes(raw)) for key, raw in tables.raw_items(name)] for name in DATABASES if tables.count(name)
        }
        tables.is_sealed = True
        for name, stored in records.items():
            for key, value in stored:
                tables.put_raw(name, key, value)
        for file, blob in checksums.items():
            tables.put_raw("checksums", file.encode(), blob)
        tables.set_number("version", tables.version + 1)
        tables.set_number("format", FORMAT)


def _list_files(tables: Tables) -> dict[str, tuple[int, str] | None]:
    """Every file that a record names, with the size and digest with which it was written, where they are known."""
    needed = {name: (record.bytes, record.digest) for name, record in needed_files(tables).items()}
    return dict.fromkeys(file for file in named_files(tables) if file.endswith(".parquet")) | needed


def _add_checksums(root: Path, file: str, written: tuple[int, str] | None, checksums: dict[str, bytes]) -> None:
    """Compute a file's checksums; of one that is damaged already they are such that no reader takes it for sound."""
    path = root / file
    if not path.is_file():
        return
    sound = written is None or (path.stat().st_size == written[0] and compute_digest(path) == written[1])
    try:
        if sound:
            checksums[file] = compute_checksums(path)
    except (parquet_reader.Damaged, parquet_reader.Declined, DamageError):
        sound = False
    if not sound:
        checksums[file] = struct.pack("<QI", written[0] if written else 0, 0)
