"""Orphans: data files that no record names and whose writer is dead. They are marked first, and removed an hour later.

A file that is removed by mistake is lost, and one that stays for an hour costs nothing. So files are marked and removed
only while nobody writes (see `Catalog.exclusive`), and not at all where the catalog itself seems to have lost a name.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.catalog.environment import Tables
from windrow.catalog.object_log import find_objects, give_up_objects, is_in_store
from windrow.catalog.records import FileEntry, RejectedEntry, ResultPart, TableEntry
from windrow.errors import FormatError
from windrow.files import find_living_writers, parse_writer_name
from windrow.indexes.segments import Segment
from windrow.row_spool import list_files

if TYPE_CHECKING:
    from windrow.store import Store

_REMOVAL_DELAY = 3600 * 1_000_000
"""Microseconds of wall time between the mark of an orphan and its removal."""
_AT_ONCE = 64
"""Files that one transaction removes; writers wait for it."""


@dataclass(frozen=True)
class Cleared:
    """What became of the orphans."""

    removed: int
    marked: int
    """How many are marked and wait."""
    refused: str = ""
    """Why none was marked or removed; empty if there was no reason."""


def data_files(root: Path) -> list[str]:
    """Every data file in the warehouse's folders, relative to it."""

    def inside(folder: str) -> list[str]:
        try:
            return [f"{folder}/{name}" for name in os.listdir(f"{root}/{folder}")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    folders = [kind for stream in inside("streams") for kind in inside(stream) if not kind.endswith("_log")]
    folders += [*inside("tables"), *(f"{query}/parts" for query in inside("results"))]
    return [file for folder in folders for file in inside(folder) if file.endswith(".parquet")]


def needed_files(tables: Tables) -> dict[str, FileEntry | RejectedEntry | TableEntry | ResultPart]:
    """Files that answers are read from, with their records: all that are named, but for those that commits replaced."""
    listed = {key.decode(errors="replace"): record for key, record in tables.items("files")}
    return listed | {record.file: record for record in _others(tables)}


def named_files(tables: Tables) -> set[str]:
    """Every file that a committed record names."""
    replaced = {file for _, record in tables.items("reclaim") for file in record.files}
    return replaced | _listed(tables) | {record.file for record in _others(tables)}


def _listed(tables: Tables) -> set[str]:
    """Files with segments; there may be many, so their records are not decoded."""
    return {key.decode(errors="replace") for key, _ in tables.raw_items("files")}


def _others(tables: Tables) -> Iterator[RejectedEntry | TableEntry | ResultPart]:
    """Records of files without segments."""
    for kind in ("rejected", "tables", "versions"):
        for _, record in tables.items(kind):
            yield record
    for _, past in tables.items("past_tables"):
        if past.entry is not None:
            yield past.entry
    for _, state in tables.items("paced"):
        yield from (part for part in (*state.parts, state.previous) if part is not None)


def marked_files(tables: Tables) -> dict[str, int]:
    """The files that are marked, and the wall time at which they were."""
    return {key.decode(): since for key, since in tables.items("orphans")}


@dataclass(frozen=True)
class _OrphanChanges:
    """Which files are to be marked, unmarked and removed, by the records of one transaction."""

    unnamed: list[str]
    """Orphans."""
    new: list[str]
    """Those to be marked. A mark from the future was made by a clock that was wrong, and is made again."""
    due: list[str]
    """Those to be removed."""
    cleared: list[str]
    """Files that lose their mark: they were named meanwhile, or are gone."""
    now: int


def _find_orphan_changes(tables: Tables, present: set[str], alive: set[str], now: int) -> _OrphanChanges:
    named, marked = named_files(tables), marked_files(tables)
    unnamed = sorted(file for file in present - named if parse_writer_name(file.rsplit("/", 1)[1]) not in alive)
    return _OrphanChanges(
        unnamed,
        [file for file in unnamed if marked.get(file, now + 1) > now],
        [file for file in unnamed if marked.get(file, now) <= now - _REMOVAL_DELAY],
        [file for file in marked if file in named or file not in present],
        now,
    )


def clear_orphans(store: "Store") -> Cleared:
    """Mark new orphans, remove those that have been marked for an hour, take back the marks of files that got a name.

    An ordinary read finds out whether there is anything to do, so that nobody waits for writers without need.
    """
    present = set(data_files(store.root))
    alive = find_living_writers(store.root)
    removed = 0
    try:
        while True:
            find_changes = partial(_find_orphan_changes, present=present, alive=alive, now=store.clock())
            changes = store.catalog.read(find_changes)
            if not (changes.new or changes.due or changes.cleared):
                return Cleared(removed, len(changes.unnamed))
            with store.catalog.exclusive() as tables:
                changes = find_changes(tables)
                why = find_catalog_gap(tables, store.root, present) if changes.unnamed else None
                removed_files = _apply(store, tables, changes) if why is None else set()
            removed += len(removed_files)
            present -= removed_files
            if len(removed_files) < _AT_ONCE:
                return Cleared(removed, 0 if why else len(changes.unnamed) - len(removed_files), why or "")
    except FormatError as error:
        return Cleared(removed, 0, str(error))


def _apply(store: "Store", tables: Tables, changes: _OrphanChanges) -> set[str]:
    """Mark, unmark and remove; gives what is removed. A file goes before its mark: one without a file does no harm."""
    for file in changes.new:
        tables.put("orphans", file.encode(), changes.now)
    for file in changes.cleared:
        tables.delete("orphans", file.encode())
    removed_files: set[str] = set()
    for file in changes.due[:_AT_ONCE]:
        try:
            store.files.unlink(store.root / file)
        except OSError:
            continue
        tables.delete("orphans", file.encode())
        removed_files.add(file)
    if is_in_store(tables):
        give_up_objects(tables, removed_files, uploaded=True)
    return removed_files


def find_catalog_gap(tables: Tables, root: Path, present: set[str]) -> str | None:
    """Why the catalog cannot say which files are orphans: it has lost some names, or all. None if it can.

    Args:
        tables: Its records.
        root: The warehouse.
        present: Data files that were listed before, so that few are looked for while writers wait.
    """
    if not any(True for kind in ("streams", "tables", "queries") for _ in tables.raw_items(kind)):
        return (
            f"the catalog of {root} has no stream, table or query, so files without a record are left alone; "
            "restore the catalog from a copy, or remove the files by hand"
        )
    listed = _listed(tables)
    for segment in _segments(tables):
        if segment.file not in listed:
            return (
                f"segment {segment.id} is in file {segment.file}, which the catalog does not list; "
                "files without a record are left alone, run 'windrow check'"
            )
    needed = listed | {record.file for record in _others(tables)}
    absent = {file for file in needed - present if not (root / file).exists()}
    missing = list(absent - find_objects(tables, absent).keys())
    named = named_files(tables)
    retained = (s.file for _, hold in tables.items("holds") for view in hold.streams.values() for s in view.segments)
    missing += [file for file in retained if file not in named]
    if not missing:
        return None
    return (
        f"the catalog needs file {min(missing)}, which is not there; files without a record are left alone, "
        "run 'windrow check'"
    )


def _segments(tables: Tables) -> Iterator[Segment]:
    """All segments, in cells and spooled."""
    for _, segment in tables.items("segments"):
        yield segment
    for _, record in tables.items("history"):
        if record.gone is None:
            yield record.segment
    for _, entry in list_files(tables):
        yield from entry.segments
