"""The catalog: one LMDB environment per warehouse and process, short reads, write transactions that are all or nothing.

LMDB's own lock can be lost behind our back (any code in the process that closes a descriptor of lock.mdb, such as a
copy of the folder, drops it), so writers and openers also take a lock of our own, and readers check that they were not
overtaken twice while they read.
"""

import contextlib
import ctypes
import errno
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec
import xxhash

from windrow.catalog import records
from windrow.catalog.lmdb_pages import check_file
from windrow.definitions import StreamDefinition
from windrow.errors import BusyError, ClosedError, FormatError, StorageError, WindrowError
from windrow.files import disk_errors, file_mode, make_folder
from windrow.indexes.segments import Segment
from windrow.locks import locked

FORMAT = 2
"""Of new warehouses. In one of format 1, which can be read and is converted by `format_conversion`, records have no
checksum and files none in the catalog."""
ENGINE = "lmdb 0.9"
SUPERSEDED = b"superseded"
"""The record of `meta` that says that another machine has taken the warehouse over: nothing is committed any more."""
MAP_SIZE = 1 << 40
MAX_READERS = 1024
DATABASES = (
    "meta",
    "streams",
    "states",
    "files",
    "segments",
    "directories",
    "spool",
    "slides",
    "sources",
    "batches",
    "rejected",
    "reclaim",
    "tables",
    "queries",
    "runs",
    "synopses",
    "usage",
    "paced",
    "keepers",
    "holds",
    "results",
    "views",
    "plans",
    "orphans",
    "roles",
    "tokens",
    "checksums",
    "checkpoints",
    "gaps",
    "trace",
    "revisions",
    "publications",
    "published",
    "versions",
    "waiting",
    "history",
    "stream_versions",
    "past_definitions",
    "past_tables",
    "erasures",
    "blank",
    "arrivals",
    "summaries",
    "objects",
    "deletions",
    "published_versions",
)
_LATER = frozenset(DATABASES[DATABASES.index("orphans") :])
"""Databases that an older catalog may lack, until somebody who may write opens it."""

T = TypeVar("T")
_U64 = struct.Struct(">Q")
_SEEDS = {name: xxhash.xxh3_64_intdigest(name.encode()) for name in DATABASES}
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.IncompatibleError,
    lmdb.NotFoundError,
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.InvalidError,
    lmdb.PanicError,
    struct.error,
)
"""What LMDB, or a number of the wrong length, raises over pages that are not what was written."""
_UNSEALED = frozenset((b"format", b"engine"))
"""Records of `meta` without a checksum: every release reads them before it knows what else it can read."""
_RECORD_TYPES: dict[str, Any] = {
    "streams": records.StreamEntry,
    "states": records.StreamState,
    "files": records.FileEntry,
    "segments": Segment,
    "spool": records.SpoolEntry | records.WaitingEntry,
    "slides": records.SlideEntry,
    "sources": records.SourceEntry,
    "batches": records.BatchEntry,
    "rejected": records.RejectedEntry,
    "reclaim": records.ReclaimEntry,
    "tables": records.TableEntry,
    "versions": records.TableEntry,
    "usage": records.UsageEntry,
    "queries": records.QueryEntry,
    "runs": records.RunEntry,
    "revisions": records.RunEntry,
    "synopses": records.SynopsisEntry,
    "paced": records.QueryState,
    "holds": records.RetainedSlideEntry,
    "views": records.ViewInput,
    "plans": records.ViewEntry,
    "orphans": int,
    "checkpoints": records.CheckpointEntry,
    "gaps": records.GapEntry,
    "trace": records.TraceEntry,
    "publications": records.PublicationEntry,
    "published": records.PublishedFile,
    "history": records.HistoryEntry,
    "stream_versions": records.StreamVersion,
    "past_definitions": StreamDefinition,
    "past_tables": records.PastTable,
    "erasures": records.ErasureEntry,
    "arrivals": records.ArrivalEntry,
    "summaries": records.SummaryEntry,
    "objects": records.ObjectEntry,
    "roles": records.Role,
    "tokens": records.Token,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {name: msgspec.msgpack.Decoder(kind) for name, kind in _RECORD_TYPES.items()}
_CACHED_DATABASES = frozenset(("streams", "states", "sources", "tables"))
"""Databases that every query reads and few commits change; equal bytes share one decoded, immutable record."""


@lru_cache(maxsize=512)
def _decode_cached(table: str, raw: bytes) -> Any:
    return _DECODERS[table].decode(raw)


def catalog_key(*parts: int | str) -> bytes:
    """An LMDB key: integers as 8 big-endian bytes (negative ones before), text as its bytes, in order."""
    return b"".join(
        [_U64.pack((part + (1 << 63)) & ((1 << 64) - 1)) if isinstance(part, int) else part.encode() for part in parts]
    )


def decode_last_int(raw: bytes) -> int:
    """The integer at the end of a key made by `key`."""
    number: int = _U64.unpack(raw[-8:])[0]
    return number - (1 << 63)


def seal_record(table: str, key: bytes, value: bytes | memoryview) -> bytes:
    """A record's bytes with their checksum, which also covers the key and the name of the database."""
    seed = xxhash.xxh3_64_intdigest(key, _SEEDS[table])
    return b"".join((value, xxhash.xxh3_64_digest(value, seed)))


def unseal_record(table: str, key: bytes, sealed: Any) -> Any:
    """The bytes of a record, compared with their checksum."""
    value = sealed[:-8]
    if sealed[-8:] != xxhash.xxh3_64_digest(value, xxhash.xxh3_64_intdigest(key, _SEEDS[table])):
        raise FormatError(
            f"a record of the catalog's {table} is damaged: it does not have the checksum with which it was written; "
            "restore the catalog from a copy"
        )
    return value


class SharedState:
    """What all handles of one warehouse in this process share beside its environment; closed with the last of them."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._guard = threading.RLock()

    def attached(self, name: str, make: Callable[[], T]) -> T:
        """The shared value of a name, made when first asked for; its `close`, if it has one, is called at the end."""
        with self._guard:
            if name not in self._values:
                self._values[name] = make()
            value: T = self._values[name]
            return value

    def find(self, name: str) -> Any:
        """The shared value of a name, None if nobody asked for it yet."""
        return self._values.get(name)

    def close(self) -> None:
        """Close what was attached, the newest first."""
        with self._guard:
            values = list(self._values.values())
            self._values.clear()
        for value in reversed(values):
            close = getattr(value, "close", None)
            if close is not None:
                close()


class _SharedEnvironment:
    """The one environment of a path in this process, counted by its handles."""

    def __init__(self, env: lmdb.Environment, handles: dict[str, Any]) -> None:
        self.env = env
        self.databases = handles
        self.lacks_a_note = False
        """Whether it has databases that it does not say it has."""
        self.is_sealed = False
        """Whether its records are known to have checksums; another process may be converting it."""
        self.users = 0
        self.thread_lock = threading.Lock()
        self.state = SharedState()

    def tables(self, txn: lmdb.Transaction) -> "Tables":
        """The databases inside a transaction."""
        if not self.is_sealed:
            raw = txn.get(b"format", db=self.databases["meta"])
            self.is_sealed = raw is not None and _U64.unpack(raw)[0] >= 2
        return Tables(txn, self.databases, is_sealed=self.is_sealed)

    def add_later_databases(self, *, create: bool) -> None:
        """Open the databases that an older catalog may lack, and make them if asked to."""
        for name in _LATER - self.databases.keys():
            with contextlib.suppress(lmdb.NotFoundError):
                self.databases[name] = self.env.open_db(name.encode(), create=create)
                self.lacks_a_note |= create

    def noted_databases(self) -> set[str]:
        """The databases that the catalog says it has: one of them that is not found is lost, and not yet to come."""
        with self.env.begin(buffers=True) as txn:
            noted = bytes(self.tables(txn).raw("meta", b"databases") or b"").decode(errors="replace").split()
        self.lacks_a_note = not self.databases.keys() <= set(noted)
        return set(noted).intersection(DATABASES)

    def note_databases(self, tables: "Tables") -> None:
        """Put down which databases there are."""
        tables.put_raw("meta", b"databases", " ".join(sorted(self.databases)).encode())
        self.lacks_a_note = False


class _OpenEnvironments:
    """What this process has open."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, int], _SharedEnvironment] = {}
        self.guard = threading.RLock()
        self.leaked: list[_SharedEnvironment] = []
        self.abandoned: deque[tuple[int, tuple[int, int], _SharedEnvironment]] = deque()
        """Of handles that were collected and never closed, with the process that had them."""

    def release(self, identity: tuple[int, int], shared: _SharedEnvironment) -> None:
        """One handle less; the last one closes the environment. The guard must be held."""
        shared.users -= 1
        if shared.users == 0:
            if self.open.get(identity) is shared:
                del self.open[identity]
            try:
                shared.state.close()
            finally:
                shared.env.close()

    def release_abandoned(self) -> None:
        """Let go of what nobody can close any more: each environment reserves addresses, of which 128 TiB are all."""
        while self.abandoned:
            pid, identity, shared = self.abandoned.popleft()
            if pid == os.getpid():
                self.release(identity, shared)


_environments = _OpenEnvironments()


def _after_fork() -> None:
    # The child must never close an inherited environment: that would free its parent's reader slot.
    for shared in _environments.open.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared.env))
        for handle in shared.databases.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        _environments.leaked.append(shared)
    _environments.open.clear()
    _environments.guard = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Tables:
    """The named databases inside one transaction."""

    def __init__(self, txn: lmdb.Transaction, databases: dict[str, Any], *, is_sealed: bool = True) -> None:
        self._txn = txn
        self._databases = databases
        self.is_sealed = is_sealed

    def get(self, table: str, key: bytes) -> Any:
        """The record at a key, or None."""
        raw = self.raw(table, key)
        return None if raw is None else self.decode(table, raw)

    def raw(self, table: str, key: bytes) -> Any:
        """The bytes at a key (valid only inside the transaction), or None."""
        if table in _LATER and table not in self._databases:
            return None
        raw = self._txn.get(key, db=self._databases[table])
        return raw if raw is None or not self._is_sealed(table, key) else unseal_record(table, key, raw)

    def _is_sealed(self, table: str, key: bytes) -> bool:
        return self.is_sealed and not (table == "meta" and key in _UNSEALED)

    def decode(self, table: str, raw: Any) -> Any:
        """The record that `raw` bytes of a table hold."""
        try:
            return _decode_cached(table, bytes(raw)) if table in _CACHED_DATABASES else _DECODERS[table].decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(
                f"a record of the catalog's {table} cannot be read ({error}); "
                "another release wrote it, or it is damaged"
            ) from None

    def put(self, table: str, key: bytes, record: Any) -> None:
        """Store a record."""
        self.put_raw(table, key, _ENCODER.encode(record))

    def put_raw(self, table: str, key: bytes, value: bytes | memoryview) -> None:
        """Store bytes."""
        stored = seal_record(table, key, value) if self._is_sealed(table, key) else value
        self._txn.put(key, stored, db=self._databases[table])

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key."""
        self._txn.delete(key, db=self._databases[table])

    def items(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, Any]]:
        """Records whose key begins with `prefix`, in key order."""
        for key, raw in self.raw_items(table, prefix):
            yield key, self.decode(table, raw)

    def raw_items(self, table: str, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, Any]]:
        """Bytes whose key begins with `prefix`, in key order; those before the key `start` are left out."""
        if table in _LATER and table not in self._databases:
            return
        with self._txn.cursor(db=self._databases[table]) as cursor:
            if not cursor.set_range(start or prefix):
                return
            for key, raw in cursor.iternext():
                plain = bytes(key)
                if not plain.startswith(prefix):
                    return
                yield plain, unseal_record(table, plain, raw) if self._is_sealed(table, plain) else raw

    def last_item(self, table: str, prefix: bytes, upto: bytes) -> tuple[bytes, Any] | None:
        """The last record whose key begins with `prefix` and is not after the key `upto`."""
        if table in _LATER and table not in self._databases:
            return None
        with self._txn.cursor(db=self._databases[table]) as cursor:
            there = cursor.set_range(upto)
            if not (there and bytes(cursor.key()) == upto) and not (cursor.prev() if there else cursor.last()):
                return None
            key, raw = bytes(cursor.key()), cursor.value()
            if not key.startswith(prefix):
                return None
            return key, self.decode(table, unseal_record(table, key, raw) if self._is_sealed(table, key) else raw)

    def delete_prefix(self, table: str, prefix: bytes) -> None:
        """Remove every key that begins with `prefix`."""
        for key in [key for key, _ in self.raw_items(table, prefix)]:
            self.delete(table, key)

    def rewrite(self, table: str) -> int:
        """Put all records of a database on new pages: what was removed from the old ones stays only on free pages.

        Returns:
            How many bytes they have.
        """
        if table not in self._databases:
            return 0
        with self._txn.cursor(db=self._databases[table]) as cursor:
            stored = [(bytes(key), bytes(raw)) for key, raw in cursor.iternext()]
        self._txn.drop(self._databases[table], delete=False)
        for key, raw in stored:
            self._txn.put(key, raw, db=self._databases[table], append=True)
        return sum(len(key) + len(raw) for key, raw in stored)

    def count(self, table: str) -> int:
        """How many records a database has by LMDB's own count."""
        if table in _LATER and table not in self._databases:
            return 0
        return int(self._txn.stat(self._databases[table])["entries"])

    def find_disorder(self, table: str) -> str | None:
        """Why records of a database may not be found, although each is what was written; None if all can be."""
        if table in _LATER and table not in self._databases:
            return None
        with self._txn.cursor(db=self._databases[table]) as cursor:
            keys = [bytes(key) for key in cursor.iternext(values=False)]
        if any(later <= key for key, later in pairwise(keys)):
            return f"the catalog's {table} are out of order, so that some of them cannot be found"
        if len(keys) != self.count(table):
            return f"the catalog's {table} should have {self.count(table)} records, {len(keys)} can be found"
        return None

    def number(self, name: str) -> int:
        """A counter or number of the `meta` table, 0 if unset."""
        raw = self.raw("meta", name.encode())
        return 0 if raw is None else int(_U64.unpack(raw)[0])

    def set_number(self, name: str, value: int) -> None:
        """Set a number of the `meta` table."""
        self.put_raw("meta", name.encode(), _U64.pack(value))

    def allocate(self, name: str, count: int = 1) -> int:
        """Reserve `count` numbers of a counter; gives the first."""
        first = self.number(name)
        self.set_number(name, first + count)
        return first

    @property
    def version(self) -> int:
        """The number of the last commit; inside a write transaction, of the one under way."""
        return self.number("version")


class Catalog:
    """A handle to a warehouse's catalog.

    Args:
        folder: The catalog's folder; it must be on a local disk.
        create: Make it if it is missing.
        read_only: Add nothing that an older catalog lacks.
    """

    def __init__(self, folder: Path, *, create: bool, read_only: bool = False) -> None:
        self.folder = folder
        self._writer_lock = folder / "writer.lock"
        self.after_commit: Callable[[], None] | None = None
        """Called after each commit of this handle that made a new version."""
        self._pid = os.getpid()
        self._closed = False
        with disk_errors("opening the catalog"):
            if create:
                folder.parent.mkdir(parents=True, exist_ok=True)
                make_folder(folder)
            elif not (folder / "data.mdb").exists():
                raise FormatError(
                    f"{folder} holds no catalog; create a warehouse with 'windrow init' or check the path"
                )
            elif not (folder / "data.mdb").stat().st_size:
                raise _emptied(folder)
            check_file(folder / "data.mdb")
            self.writable = os.access(folder, os.W_OK)
            status = folder.stat()
        self._identity = (status.st_dev, status.st_ino)
        with _environments.guard:
            _environments.release_abandoned()
            shared = _environments.open.get(self._identity)
            if shared is None:
                with self._opening():
                    shared = _open_environment(folder, self.writable, create)
                _environments.open[self._identity] = shared
            if self.writable and not read_only:
                make_folder(folder / "locks")
                with self._opening():
                    shared.add_later_databases(create=True)
            shared.users += 1
            self._shared = shared
        try:
            self._check_format(create=create, read_only=read_only)
        except BaseException:
            self.close()
            raise

    def _opening(self) -> Any:
        return locked(self._writer_lock, "the catalog", signed=False) if self.writable else contextlib.nullcontext()

    def _check_format(self, *, create: bool, read_only: bool) -> None:
        stored = self.read(
            lambda tables: (
                tables.number("format"),
                bytes(tables.raw("meta", b"engine") or b"").decode(errors="replace"),
            )
        )
        if stored in ((FORMAT, ENGINE), (1, ENGINE)):
            if self.writable and not read_only and stored[0] == FORMAT and self._shared.lacks_a_note:
                with self.exclusive() as tables:
                    self._shared.note_databases(tables)
            return
        if stored == (0, ""):
            if not create or not self.writable:
                raise _emptied(self.folder)
            with self.exclusive() as tables:
                if not tables.number("format"):
                    tables.set_number("format", FORMAT)
                    tables.put_raw("meta", b"engine", ENGINE.encode())
                    tables.is_sealed = True
                    self._shared.note_databases(tables)
            return
        age = "newer" if stored[0] > FORMAT else "older"
        raise FormatError(
            f"{self.folder} has catalog format {stored[0]} ({stored[1] or 'unknown engine'}), {age} than this "
            f"release's {FORMAT} ({ENGINE}); "
            "open it with the release that wrote it"
        )

    @property
    def format(self) -> int:
        """The format that its records have now."""
        return self.read(lambda tables: tables.number("format"))

    def other_processes(self) -> set[int]:
        """Living processes, other than this one, that have read this catalog and not closed it since."""
        env = self._live().env
        env.reader_check()
        pids = {
            int(line.split()[0])
            for line in env.readers().splitlines()
            if line.split()[:1] and line.split()[0].isdigit()
        }
        return pids - {os.getpid()}

    def _live(self) -> _SharedEnvironment:
        if self._pid != os.getpid():
            raise ClosedError("this warehouse was opened before a fork; open it again in the child process")
        if self._closed:
            raise ClosedError("this warehouse is closed; open it again")
        return self._shared

    @property
    def shared(self) -> SharedState:
        """What all handles of this warehouse in this process share."""
        return self._live().state

    def read(self, fetch: Callable[[Tables], T]) -> T:
        """What `fetch` takes out of one short, consistent read; it must copy what it keeps."""
        shared = self._live()
        began = 0
        for attempt in range(64):
            try:
                with shared.env.begin(buffers=True) as txn:
                    began = txn.id()
                    result = fetch(shared.tables(txn))
            except lmdb.ReadersFullError:
                self._readers_full(shared, attempt)
                continue
            except lmdb.MapResizedError:
                shared.env.set_mapsize(0)
                continue
            except Exception as error:
                if self._overtaken(shared, began, commits=1) and attempt < 63:
                    # What it read may have been torn: a reader whose slot is lost is not protected, and the second
                    # commit after it writes over pages that it reads before that commit can be seen.
                    continue
                if isinstance(error, _DAMAGE):
                    raise _damaged(self.folder, error) from None
                disorder = None if isinstance(error, WindrowError) else self._find_disorder()
                if disorder is not None:  # what was read could not be understood because some of it was not found
                    raise _damaged(self.folder, disorder) from error
                raise
            if not self._overtaken(shared, began) or attempt == 63:
                return result
        raise BusyError(f"all {MAX_READERS} reader slots of {self.folder} are taken; close some readers and try again")

    def _find_disorder(self) -> str | None:
        shared = self._live()
        try:
            with shared.env.begin(buffers=True) as txn:
                tables = shared.tables(txn)
                return next(filter(None, map(tables.find_disorder, shared.databases)), None)
        except _DAMAGE as error:
            return str(error)

    @staticmethod
    def _overtaken(shared: _SharedEnvironment, began: int, commits: int = 2) -> bool:
        return int(shared.env.info()["last_txnid"]) - began >= commits

    def _readers_full(self, shared: _SharedEnvironment, attempt: int) -> None:
        shared.env.reader_check()
        if attempt > 8:
            raise BusyError(
                f"all {MAX_READERS} reader slots of {self.folder} are taken; close some readers and try again"
            )

    @contextlib.contextmanager
    def write(self) -> Iterator[Tables]:
        """One write transaction: committed and durable when the block ends, undone if it raises."""
        with self.exclusive() as tables:
            if tables.raw("meta", SUPERSEDED) is not None:
                raise StorageError(
                    f"the warehouse of {self.folder} was restored elsewhere from its object store, and is changed "
                    "there; this one can be read only, see 'windrow status'"
                )
            tables.set_number("version", tables.version + 1)
            yield tables
        if self.after_commit is not None:
            self.after_commit()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Tables]:
        """As `write`, but no new version, and no commit at all if nothing is changed: for a look while nobody writes.

        An ordinary read may miss the last commit: its writer was killed after LMDB had written it and before readers
        were told. Whoever takes LMDB's lock next learns that the holder died, and sees that commit.
        """
        shared = self._live()
        if not self.writable:
            raise StorageError(f"the catalog in {self.folder} is read-only; it cannot be changed from here")
        with (
            shared.thread_lock,
            disk_errors("writing the catalog"),
            locked(self._writer_lock, "the catalog", signed=False),
        ):
            try:
                with shared.env.begin(write=True, buffers=False) as txn:
                    yield shared.tables(txn)
            except (lmdb.MapFullError, lmdb.DiskError) as error:
                raise StorageError(
                    errno.ENOSPC,
                    f"the catalog in {self.folder} cannot grow ({error}); free some disk space, nothing was changed",
                ) from error
            except _DAMAGE as error:
                raise _damaged(self.folder, error) from None
            except lmdb.Error as error:
                raise _disk_error(error, self.folder) from error

    def used_pages(self) -> int:
        """Pages of the file that have been used so far, free ones too."""
        return int(self._live().env.info()["last_pgno"])

    def page_room(self) -> int:
        """The longest record that a page of its own can hold: it has a header, and the record its checksum."""
        return int(self._live().env.stat()["psize"]) - 16 - 8

    def version(self) -> int:
        """The number of the last commit."""
        return self.read(lambda tables: tables.version)

    def last_transaction(self) -> int:
        """LMDB's own number of the last commit: a cheap way to see that something changed."""
        return int(self._live().env.info()["last_txnid"])

    def copy_to(self, folder: Path) -> None:
        """Write a compact copy of the last commit into an existing folder that holds no catalog."""
        try:
            self._live().env.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise _disk_error(error, self.folder) from error

    def size(self) -> int:
        """Bytes of the catalog on disk."""
        return sum(entry.stat().st_size for entry in self.folder.glob("*.mdb"))

    def close(self) -> None:
        """Let go of the environment; the last handle in the process closes it."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        with _environments.guard:
            _environments.release(self._identity, self._shared)

    def __del__(self, abandoned: deque[Any] = _environments.abandoned) -> None:
        # This may run in any thread and at any time, so the next handle that is opened does the rest.
        if not self._closed and hasattr(self, "_shared"):
            abandoned.append((self._pid, self._identity, self._shared))


@contextlib.contextmanager
def _allow_reopening() -> Iterator[None]:
    """Let a forked child open what its parent has open: py-lmdb's list of open files is inherited, locks are not."""
    identity = getattr(lmdb, "_envid", None)
    if identity is None or not _environments.leaked:
        yield
        return
    env_keys = identity.env_keys
    identity.env_keys = lambda *_: ()
    try:
        yield
    finally:
        identity.env_keys = env_keys


def _open_environment(folder: Path, writable: bool, create: bool) -> _SharedEnvironment:
    try:
        with _allow_reopening():
            env = lmdb.open(
                str(folder),
                map_size=MAP_SIZE,
                max_dbs=64,
                max_readers=MAX_READERS,
                readonly=not writable,
                lock=writable,
                readahead=False,
                meminit=True,  # what other memory held must not come into the file
                create=writable,
                mode=file_mode(folder),
            )
    except lmdb.VersionMismatchError as error:
        raise FormatError(
            f"{folder} was written by another LMDB engine ({error}); open it with the release that wrote it"
        ) from None
    except (lmdb.InvalidError, lmdb.CorruptedError) as error:
        raise FormatError(
            f"{folder}/data.mdb is not a catalog or is damaged ({error}); restore it from a copy"
        ) from None
    except (lmdb.MemoryError, MemoryError) as error:
        raise _address_space_error(folder) from error
    except lmdb.Error as error:
        if "memory" in str(error).lower():
            raise _address_space_error(folder) from error
        raise _disk_error(error, folder) from error
    try:
        if not create and not env.stat()["entries"]:
            raise _emptied(folder)
        is_new = writable and not _has_format(env)
        databases = {name: env.open_db(name.encode(), create=is_new) for name in DATABASES if name not in _LATER}
        shared = _SharedEnvironment(env, databases)
        shared.add_later_databases(create=False)
        lost = shared.noted_databases() - databases.keys()
        if lost:
            raise _damaged(folder, f"its {', '.join(sorted(lost))} cannot be found")
        return shared
    except _DAMAGE as error:
        env.close()
        raise _damaged(folder, error) from None
    except BaseException:
        env.close()
        raise


def _has_format(env: lmdb.Environment) -> bool:
    """Whether the catalog was finished once: a database that it lacks then is lost, and no new one takes its place."""
    if not env.stat()["entries"]:
        return False
    meta = env.open_db(b"meta", create=False)
    with env.begin(db=meta) as txn:
        return txn.get(b"format") is not None


def _damaged(folder: Path, error: Exception | str) -> FormatError:
    return FormatError(f"the catalog in {folder} is damaged ({error}); restore it from a copy")


def _emptied(folder: Path) -> FormatError:
    return FormatError(f"the catalog in {folder} is empty; restore it from a copy, the rows are untouched")


def _address_space_error(folder: Path) -> StorageError:
    return StorageError(
        f"the catalog in {folder} reserves {MAP_SIZE >> 40} TiB of addresses (not memory) and this process may not; "
        "raise 'ulimit -v'"
    )


def _disk_error(error: lmdb.Error, folder: Path) -> StorageError:
    text = str(error)
    if "No space left" in text:
        return StorageError(
            errno.ENOSPC,
            f"the catalog in {folder} cannot grow: the disk is full; free some space, nothing was changed",
        )
    return StorageError(f"the catalog in {folder} could not be used ({text}); nothing was changed")
