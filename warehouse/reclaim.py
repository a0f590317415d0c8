"""Reclaiming: files and records that commits replaced are removed when no reader needs them any more."""

import contextlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from msgspec.structs import replace

from windrow.background import Steps, background_of
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.object_log import give_up_objects
from windrow.catalog.records import ReclaimEntry, StreamEntry, StreamState
from windrow.catalog.segment_log import retire_files
from windrow.files import disk_errors, remove_dead_staging
from windrow.history import forget_past_tables, list_past_tables
from windrow.locks import remove_unheld
from windrow.orphans import clear_orphans
from windrow.store import Store

_MOST_PER_SLIDE = 256
"""Reclaim records that one slide looks at. Not measured, as the next: bounds on what others wait for."""
_MOST_PER_STEP = 16
"""Reclaim records of one step in the background."""
_ABANDONED_SECONDS = 3600.0
"""Age from which on a pin that was never renamed into place counts as left by a dead process."""
_LARGE_BYTES = 64 << 20
"""Bytes of one record that are removed without anybody waiting; removing this much takes some ten milliseconds."""


@dataclass(frozen=True)
class GcReport:
    """What a clean-up removed, and what it had to leave."""

    files: int
    bytes: int
    orphans: int
    """Files that no record named and that were marked for long enough, and folders of dead writers; all removed, now or
    when this handle was opened."""
    pins: int
    """Living readers that were found."""
    waiting: int
    """Replaced files that somebody may still need."""
    batches: int
    """Batch ids that were forgotten, being older than twice the lifetime of their stream, and than a week."""
    rejected: int = 0
    """Rejected rows that were kept for as long as their stream says."""
    marked: int = 0
    """Files that no record names and that go when they have been marked for an hour."""
    held_by: tuple[str, ...] = ()
    """Who keeps the replaced files that wait, in words."""
    refused: str = ""
    """Why no file without a record was marked or removed, in one sentence; empty if nothing kept it from that."""


def find_oldest_pin(store: Store) -> tuple[int | None, int]:
    """The lowest version that a living reader pins (None: no reader) and how many there are; dead pins are removed."""
    folder = store.pins.folder
    idle = store.pins.idle()
    oldest, count = None, 0
    if folder.is_dir():
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name in idle or (name.startswith(".") and not _abandoned(path)) or remove_unheld(path):
                continue
            version = int(name.lstrip(".").split("-", 1)[0])
            count += 1
            oldest = version if oldest is None else min(oldest, version)
    return oldest, count


def _abandoned(path: str) -> bool:
    """Whether a pin that was never published is so old that its maker must be dead."""
    try:
        return time.time() - os.stat(path).st_mtime > _ABANDONED_SECONDS
    except OSError:
        return False


def find_reclaimable(store: Store, limit: int = _MOST_PER_SLIDE) -> list[tuple[bytes, ReclaimEntry]]:
    """Replaced things that no pin protects: `remove_files` removes their files, `forget_reclaimed` their records."""

    def read(tables: Tables) -> tuple[list[tuple[bytes, ReclaimEntry]], int | None]:
        published = find_oldest_published(tables, store.clock())
        free = (
            (key, record)
            for key, record in tables.items("reclaim")
            if record.stream not in published or _version_in_key(key) <= published[record.stream]
        )
        return _take_first(free, limit), find_oldest_hold(tables)

    pending, oldest_held = store.catalog.read(read)
    if not pending:
        return []
    oldest, _ = find_oldest_pin(store)
    limits = [version for version in (oldest, oldest_held) if version is not None]
    return [(key, record) for key, record in pending if not limits or _version_in_key(key) <= min(limits)]


def find_oldest_published(tables: Tables, now: int) -> dict[int, int]:
    """By stream, the oldest commit whose files a reader of its publication may still read at a wall time."""
    return {
        decode_last_int(key): min(held.commit for held in record.held if record.is_held(held, now))
        for key, record in tables.items("publications")
        if record.held
    }


def find_oldest_hold(tables: Tables) -> int | None:
    """The oldest commit whose slides a periodic query has still to be run for."""
    return next((_version_in_key(key) for key, _ in tables.raw_items("holds")), None)


def _has_a_lasting_name(file: str) -> bool:
    """Whether no other file will ever have the name; reports are named by their run, and a query may be added again."""
    return not file.startswith("results/") or "/parts/" in file


def remove_files(store: Store, ready: list[tuple[bytes, ReclaimEntry]]) -> None:
    """Remove the files of reclaimable records, but for reports, which `forget_reclaimed` removes.

    This may run before, after or while their records are settled: a record without files does no harm, and files
    without a record are orphans.
    """
    for _, record in ready:
        store.reader.forget(record.files)
        store.columns.forget(record.files)
        store.scan_cache.forget(record.segments)
        for file in filter(_has_a_lasting_name, record.files):
            store.files.unlink(store.root / file)
    if ready:
        store.files.reach("reclaim.unlinked")


@dataclass(frozen=True)
class Removal:
    """Files that are being removed while a commit is made."""

    ready: list[tuple[bytes, ReclaimEntry]]
    """Whose records that commit settles."""
    under_way: Future[None] | None

    def finish(self) -> None:
        """Wait until they are gone."""
        if self.under_way is not None:
            self.under_way.result()


def begin_removal(store: Store) -> Removal:
    """Remove what is ready to go beside the caller's commit.

    The disk takes long to remove very large files, so nobody waits for those: their records stay until a later commit
    finds the files gone. A process that ends before they are leaves both, for the next slide or `gc`.
    """
    small, large = _split_by_size(store)
    store.removals.update(key for key, _ in large)
    if large:
        store.run_slow_in_background(_remove_large, store, large)
    return Removal(small, store.run_in_background(remove_files, store, small) if small else None)


def _split_by_size(store: Store) -> tuple[list[tuple[bytes, ReclaimEntry]], list[tuple[bytes, ReclaimEntry]]]:
    """What is ready to go: what is removed soon, and what takes long."""
    ready = [(key, record) for key, record in find_reclaimable(store) if key not in store.removals]
    large = [item for item in ready if _remaining_bytes(store, item[1]) > _LARGE_BYTES]
    return [item for item in ready if item not in large], large


def remove_replaced_files(store: Store) -> None:
    """Remove what the last commit has replaced and no reader needs; the next slide settles the records.

    Until then the files would take as much space as those in their place. Very large ones are left to that slide.
    """
    small, _ = _split_by_size(store)
    with contextlib.suppress(OSError):  # they wait for the next slide
        remove_files(store, small)


def _remove_large(store: Store, large: list[tuple[bytes, ReclaimEntry]]) -> None:
    """Remove files without anybody waiting; what could not be removed is tried again by a later slide, or by `gc`."""
    try:
        remove_files(store, large)
    finally:
        store.removals.difference_update(key for key, _ in large)


def offer_removal(store: Store) -> None:
    """Let what readers needed at the last slide, and need no longer, go in the background."""
    if store.catalog.read(lambda tables: next(iter(tables.raw_items("reclaim")), None)) is not None:
        background_of(store).add(store, "removal of replaced files", _remove_in_steps(store))


def _remove_in_steps(store: Store) -> Steps:
    settled = True
    while settled and (ready := find_reclaimable(store, _MOST_PER_STEP)):
        with disk_errors("removing replaced files"):
            remove_files(store, ready)
            with store.catalog.write() as tables:
                settled = bool(forget_reclaimed(store, tables, ready))
        yield


def _remaining_bytes(store: Store, record: ReclaimEntry) -> int:
    """How much there is to remove still; another process may be at it too."""
    size = 0
    for file in filter(_has_a_lasting_name, record.files):
        with contextlib.suppress(FileNotFoundError):
            size += (store.root / file).stat().st_size
    return size


def _take_first(items: Iterable[tuple[bytes, ReclaimEntry]], limit: int) -> list[tuple[bytes, ReclaimEntry]]:
    return [item for _, item in zip(range(limit), items, strict=False)]


def _version_in_key(key: bytes) -> int:
    return int.from_bytes(key[:8], "big") - (1 << 63)


def forget_reclaimed(store: Store, tables: Tables, ready: list[tuple[bytes, ReclaimEntry]]) -> int:
    """Forget things whose files are gone; gives how many.

    Reports go only here, where nobody else commits: a run that is to write one of the same name takes it out of the
    record in the commit that comes before the file. What cannot be removed stays on record, and keeps nobody from the
    commit.
    """
    settled = 0
    for key, record in ready:
        current: ReclaimEntry | None = tables.get("reclaim", key)
        reports = () if current is None else [file for file in current.files if not _has_a_lasting_name(file)]
        try:
            for file in reports:
                store.files.unlink(store.root / file)
        except OSError:
            continue
        for segment in record.segments:
            tables.delete("directories", catalog_key(segment))
        for entry_key in record.history:
            tables.delete("history", entry_key)
        for file in record.files:
            tables.delete("checksums", file.encode())
        give_up_objects(tables, record.files)
        tables.delete("reclaim", key)
        settled += 1
    return settled


def remove_replaced(store: Store) -> None:
    """Remove at once what was replaced, and what the catalog knew of it, as far as no reader needs it."""
    while True:
        store.pins.clear()
        ready = find_reclaimable(store)
        if not ready:
            return
        remove_files(store, ready)
        with store.catalog.write() as tables:
            if not forget_reclaimed(store, tables, ready):
                return


def collect_garbage(store: Store) -> GcReport:
    """Remove all that can go: replaced files, dead writers' leavings, forgotten batch ids."""
    store.check_writable()
    store.pins.clear()
    removed, size, rejected = 0, 0, _forget_rejected(store)
    if store.catalog.read(list_past_tables):
        with store.catalog.write() as tables:
            forget_past_tables(tables)
    while True:
        before = _reclaimable_sizes(store)
        ready = find_reclaimable(store)
        if not ready:
            break
        remove_files(store, ready)
        with store.catalog.write() as tables:
            settled = forget_reclaimed(store, tables, ready)
        vanished = [file for _, record in ready for file in record.files if not (store.root / file).exists()]
        removed += len(vanished)
        size += sum(before.get(file, 0) for file in vanished)
        store.files.reach("reclaim.committed")
        if not settled:
            break
    if store.remote is not None:
        store.remote.collect_garbage()
    cleared = clear_orphans(store)
    folders = remove_dead_staging(store.root)
    forgotten = _forget_batches(store)
    waiting = store.catalog.read(lambda tables: sum(len(record.files) for _, record in tables.items("reclaim")))
    _, pins = find_oldest_pin(store)
    opened, store.cleared = store.cleared, 0
    return GcReport(
        files=removed,
        bytes=size,
        orphans=cleared.removed + folders + opened,
        pins=pins,
        waiting=waiting,
        batches=forgotten,
        rejected=rejected,
        marked=cleared.marked,
        held_by=find_holders(store) if waiting else (),
        refused=cleared.refused,
    )


def find_holders(store: Store) -> tuple[str, ...]:
    """In words, who keeps replaced things that could not be removed."""
    _, pins = find_oldest_pin(store)
    holders = [f"{pins} open reader{'s' if pins > 1 else ''}"] if pins else []
    if store.catalog.read(find_oldest_hold) is not None:
        holders.append("slides that wait for periodic queries")
    if store.catalog.read(lambda tables: find_oldest_published(tables, store.clock())):
        holders.append("published versions, until their hold is over")
    return tuple(holders) or ("files that could not be removed",)


def _reclaimable_sizes(store: Store) -> dict[str, int]:
    names = store.catalog.read(lambda tables: [file for _, record in tables.items("reclaim") for file in record.files])
    paths = {name: store.root / name for name in names}
    return {name: path.stat().st_size for name, path in paths.items() if path.exists()}


def _forget_batches(store: Store) -> int:
    """Forget batch ids older than twice the stream's lifetime, and at least a week; never-expiring streams keep all."""
    now = store.clock()

    def old(tables: Tables, what: str) -> list[bytes]:
        keys = []
        for _, entry in tables.items("streams"):
            retention = batch_retention(entry)
            if retention is not None:
                keys += [
                    key for key, record in tables.items(what, catalog_key(entry.id)) if record.at < now - retention
                ]
        return keys

    batches, arrivals = store.catalog.read(lambda tables: (old(tables, "batches"), old(tables, "arrivals")))
    if batches or arrivals:
        with store.catalog.write() as tables:
            for key in batches:
                tables.delete("batches", key)
            for key in arrivals:
                tables.delete("arrivals", key)
    return len(batches)


def _forget_rejected(store: Store) -> int:
    """Forget rejected rows that are kept no longer."""
    now, rows = store.clock(), 0
    streams = store.catalog.read(lambda tables: [entry for _, entry in tables.items("streams")])
    if all(entry.definition.rejected_retention is None for entry in streams):
        return 0
    with store.catalog.write() as tables:
        for _, entry in list(tables.items("streams")):
            state = tables.get("states", catalog_key(entry.id))
            remaining = forget_old_rejected(tables, entry, state, now)
            if remaining is not state:
                tables.put("states", catalog_key(entry.id), remaining)
                rows += state.rejected - remaining.rejected
    return rows


def forget_old_rejected(tables: Tables, entry: StreamEntry, state: StreamState, now: int) -> StreamState:
    """The state of a stream without rejected rows that it keeps no longer; their files go when nobody reads them."""
    retention = entry.definition.rejected_retention
    if retention is None or not state.rejected:
        return state
    old = [
        (key, record) for key, record in tables.items("rejected", catalog_key(entry.id)) if record.at < now - retention
    ]
    for key, _ in old:
        tables.delete("rejected", key)
    retire_files(tables, [record.file for _, record in old], entry.id)
    rows = sum(record.rows for _, record in old)
    return replace(state, rejected=state.rejected - rows) if old else state


def batch_retention(entry: StreamEntry) -> int | None:
    """How long, in microseconds of wall time, a stream remembers batch ids; None: for ever."""
    life = entry.definition.longest_life
    return None if life is None else max(2 * life, 7 * 86400 * 1_000_000)
