"""Locked DuckDB instances: one per warehouse and process for statements, and connections that users get for themselves.

An instance for statements can read the warehouse's files and nothing else; statements are confined before they get
here, and this holds even if the confinement has a gap. Nobody checks the statements that a user's own connection is
given, so it has no file system at all: COPY, ATTACH, EXPORT and file functions find no path that could be opened.
"""

import contextlib
import json
import os
import re
import threading
import uuid
import weakref
from pathlib import Path
from typing import Any

import duckdb

from windrow import arguments
from windrow.errors import MEMORY_ADVICE
from windrow.files import SpillFolder
from windrow.fork_safety import keep_in_child
from windrow.queries.engine.macros import define_macros
from windrow.queries.engine.types import quote_text
from windrow.store import Store

_ERROR_CLASS = re.compile(r"^[A-Z][A-Za-z ]+ Error: ")
_ERROR_PLACE = re.compile(r"\n*LINE \d+:.*", re.DOTALL)
_SETTINGS_ADVICE = re.compile(r"\n+Possible solutions:.*| Use \"SET .*", re.DOTALL)
"""Settings that DuckDB advises to change; they are locked here."""
_FATAL_ERROR = re.compile(
    r'(?:previous fatal error.*Original error: "|not marked as fallible.*?Error: |^INTERNAL Error: )(.*?)"?(?:\n|$)',
    re.DOTALL,
)
"""What DuckDB says of an error that ends its instance, in the statement that meets it and in those after it."""
_MEMORY_ERROR = re.compile(r"(?:could not|failed to) (?:allocate|pin|offload|reserve|resize)\b", re.IGNORECASE)
"""How DuckDB says that memory, or the room that it may spill to, is at its end."""
_SOURCE_ERROR = re.compile(r"^exporting a stream from the object registered as '.*?' failed: (?:\w+Error: )?")
"""How DuckDB introduces an error that a `RelationSource` raised."""


_opened: "weakref.WeakSet[WarehouseInstance]" = weakref.WeakSet()
"""Those that are open, for `borrow_cursor`."""


class WarehouseInstance:
    """The instance of one warehouse in this process, opened when it is first needed and closed with the warehouse."""

    def __init__(
        self,
        root: Path,
        spill: Path,
        memory: str | None = None,
        spill_limit: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._root, self._spill, self._memory, self._spill_limit = root, spill, memory, spill_limit
        self.threads = threads
        """Of its statements; one: that of whoever asks, whose priority is then theirs. None: one for each core."""
        self._guard, self._process = threading.Lock(), os.getpid()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.generation = 0
        """How many instances came before this one: a fatal error inside DuckDB ends an instance for good."""
        keep_in_child(self)

    def open_cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the instance."""
        with self._guard:
            return self._open().cursor()

    def open(self) -> None:
        """Open it now; statements are then parsed by it, and not by another instance that takes as long to open."""
        if self._connection is None:
            with self._guard:
                self._open()

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = open_locked_instance(
                self._root, self._memory, self.threads, self._spill, self._spill_limit
            )
            _opened.add(self)
        return self._connection

    def lend_cursor(self) -> duckdb.DuckDBPyConnection | None:
        """A cursor if the instance is open in this process; None if it is not, or is being opened."""
        if self._process != os.getpid() or not self._guard.acquire(blocking=False):
            return None
        try:
            return None if self._connection is None else self._connection.cursor()
        finally:
            self._guard.release()

    def replace_if_dead(self, cursor: Any, generation: int) -> None:
        """After a statement that failed: if its error has ended the instance, the next cursor is of a new one."""
        try:
            cursor.execute("SELECT 1")
        except duckdb.FatalException:
            with self._guard:
                if generation == self.generation:
                    self._connection, self.generation = None, generation + 1
        except (duckdb.Error, RuntimeError):
            pass  # it was closed or interrupted

    def close(self) -> None:
        """Let go of the instance; it ends with the last of its cursors, which answers may still be reading from."""
        with self._guard:
            self._connection = None  # its `close` would also close all its cursors


def borrow_cursor() -> duckdb.DuckDBPyConnection | None:
    """A cursor of any open instance, for work that is of no warehouse, such as parsing; close it at once."""
    return next(filter(None, (opened.lend_cursor() for opened in list(_opened))), None)


def open_cursor(store: Store, memory_limit: str | None = None) -> Any:
    """A cursor of the warehouse's instance, or of a new one with a limit; close it when the query is done."""
    if memory_limit is not None:
        return open_locked_instance(store.root, memory_limit, spill=spill_folder(store), spill_limit=store.spill)
    return warehouse_instance(store).open_cursor()


def warehouse_instance(store: Store) -> WarehouseInstance:
    """The instance that statements of this process share."""
    instance: WarehouseInstance = store.shared.attached(
        "duckdb", lambda: WarehouseInstance(store.root, spill_folder(store), store.memory, store.spill)
    )
    return instance


def standing_instance(store: Store) -> WarehouseInstance:
    """The instance that standing statements of this process share."""
    instance: WarehouseInstance = store.shared.attached(
        "duckdb of standing statements",
        lambda: WarehouseInstance(store.root, spill_folder(store), store.memory, store.spill, threads=1),
    )
    return instance


def spill_folder(store: Store) -> Path:
    """Where the instances of this process put what does not fit in memory; it goes with the last handle."""
    spill = store.shared.attached("spill", lambda: SpillFolder(store.root, store.unique_name().replace("-", "_")))
    return spill.folder


def open_locked_instance(
    root: Path,
    memory_limit: str | None = None,
    threads: int | None = None,
    spill: Path | None = None,
    spill_limit: str | None = None,
) -> duckdb.DuckDBPyConnection:
    """A new in-memory instance that may read files under the warehouse's folders, and whose settings cannot change."""
    settings: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # Not that of another instance, which would take its files; without one, what does not fit in memory fails.
        "temp_directory": "" if spill is None else str(spill / uuid.uuid4().hex),
    }
    if memory_limit is not None:
        settings["memory_limit"] = memory_limit
    if spill_limit is not None:
        settings["max_temp_directory_size"] = spill_limit
        if not arguments.check_size(spill_limit, "spill"):
            settings["temp_directory"] = ""  # which DuckDB heeds in every operator
    if threads is not None:
        settings["threads"] = threads
    opened = duckdb.connect(":memory:", config=settings)
    allowed = ", ".join(quote_text(f"{root / folder}/") for folder in ("streams", "tables", "results"))
    opened.execute(f"SET allowed_directories = [{allowed}]")
    opened.execute("SET GLOBAL parquet_metadata_cache = true")
    # The files are in the page cache or on a local disk: reading ahead only copies what is not asked for.
    opened.execute("SET GLOBAL disable_parquet_prefetching = true")
    opened.execute("SET GLOBAL errors_as_json = true")
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    define_macros(opened)
    opened.execute("SET GLOBAL enable_external_access = false")
    opened.execute("SET GLOBAL lock_configuration = true")
    return opened


def read_error_message(error: BaseException) -> str:
    """DuckDB's message in one line."""
    message, _ = parse_error(error)
    return message.partition("\n")[0]


def parse_error(error: BaseException) -> tuple[str, int | None]:
    """DuckDB's message without what DuckDB puts around it, and the byte offset that it names."""
    message = str(error)
    offset: int | None = None
    start = message.find("{")
    if start >= 0:
        with contextlib.suppress(ValueError):
            details, _ = json.JSONDecoder().raw_decode(message[start:])
            message = str(details.get("exception_message", message))
            position = details.get("position")
            offset = None if position is None else int(position)
    if fatal := _FATAL_ERROR.search(message):
        message = f"DuckDB itself failed ({fatal[1]}) and was started anew; ask otherwise, and report it, please"
    for pattern in (_ERROR_CLASS, _SOURCE_ERROR, _ERROR_PLACE, _SETTINGS_ADVICE):
        message = pattern.sub("", message)
    if _MEMORY_ERROR.match(message):
        first_line = message.partition("\n")[0].strip()
        message = f"the statement needs more memory than it may use ({first_line}); {MEMORY_ADVICE}"
    return message.strip(), offset


_CONNECTION_SETTINGS: dict[str, Any] = {
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",  # DuckDB adds this folder to those that statements may read and write
}
CHANGEABLE_SETTINGS = (
    "Calendar", "TimeZone", "default_collation", "default_null_order", "default_order", "enable_progress_bar",
    "python_enable_replacements",
)  # fmt: skip
"""Settings that tools like to change when they connect, and that reach nothing outside."""


def open_connection(memory: str | None = None, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A locked DuckDB of its own; temporary views, tables and macros work, files do not.

    Args:
        memory: Such as ``"2GB"``; a sort that needs more fails, since there is no folder to spill to.
        threads: Worker threads; all cores if None.
    """
    limits = {"memory_limit": memory, "threads": threads}
    config = _CONNECTION_SETTINGS | {name: value for name, value in limits.items() if value is not None}
    connection = duckdb.connect(":memory:", config=config)
    changeable = ", ".join(f"'{name}'" for name in CHANGEABLE_SETTINGS)
    # The order matters: each of these forbids something that the ones before it need.
    for statement in (
        "SET GLOBAL TimeZone = 'UTC'",
        "SET GLOBAL enable_external_access = false",
        "SET GLOBAL disabled_filesystems = 'LocalFileSystem'",
        f"SET GLOBAL allowed_configs = [{changeable}]",
        "SET GLOBAL lock_configuration = true",
    ):
        connection.execute(statement)
    return connection
