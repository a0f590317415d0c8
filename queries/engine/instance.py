"""DuckDB, locked up: one instance per warehouse and process, that can read the warehouse's files and nothing else.

Statements are confined before they get here; this is the second wall, which holds even if the first one leaks.

A DuckDB connection to hand out, for notebooks, ibis, SQLAlchemy and whatever else speaks to DuckDB itself.

Nobody reads the statements it will be given, so it has no file system at all: windows are offered to it as Arrow, and
COPY, ATTACH, EXPORT or a file function find no path that could be opened, in the warehouse or anywhere else.
"""

import contextlib
import json
import os
import re
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

import duckdb

from windrow.errors import QueryError
from windrow.queries.engine.fork_safety import forget_after_fork
from windrow.queries.engine.types import quote_text
from windrow.queries.sql import macros
from windrow.queries.sql.statement import Statement
from windrow.store import Store

_guard = threading.Lock()
_instances: dict[tuple[int, str], duckdb.DuckDBPyConnection] = {}
forget_after_fork(_instances, _guard)
_ERROR_CLASS = re.compile(r"^[A-Z][A-Za-z ]+ Error: ")
_ERROR_PLACE = re.compile(r"\n*LINE \d+:.*", re.DOTALL)
_SETTINGS_ADVICE = re.compile(r"\n+Possible solutions:.*| Use \"SET .*", re.DOTALL)
"""What DuckDB would have one do: settings, which are locked here."""
_SOURCE_ERROR = re.compile(r"^exporting a stream from the object registered as '.*?' failed: (?:\w+Error: )?")
"""How it begins to tell of an error in a relation of ours."""


def open_cursor(store: Store, memory_limit: str | None = None) -> Any:
    """A connection of its own to the warehouse's instance, or to one with a limit; close it when the query is done."""
    if memory_limit is not None:
        try:
            return open_locked_instance(store.root, memory_limit)
        except duckdb.ParserException:
            raise QueryError(f"{memory_limit!r} is not a memory limit; write one such as '500MB' or '2GB'") from None
    identity = os.getpid(), str(store.root)
    with _guard:
        instance = _instances.get(identity)
        if instance is None:
            instance = _instances[identity] = open_locked_instance(store.root)
    return instance.cursor()


def open_locked_instance(
    root: Path, memory_limit: str | None = None, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A new in-memory instance that may read files under the warehouse's folders, and whose settings cannot change."""
    settings: dict[str, Any] = {
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "temp_directory": str(Path(tempfile.gettempdir()) / f"windrow-{os.getpid()}-{uuid.uuid4().hex[:8]}"),
    }
    if memory_limit is not None:
        settings["memory_limit"] = memory_limit
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
    macros.define_macros(opened)
    opened.execute("SET GLOBAL enable_external_access = false")
    opened.execute("SET GLOBAL lock_configuration = true")
    return opened


def explain_error(statement: Statement, error: BaseException, before: int = 0) -> QueryError:
    """DuckDB's error in one sentence, shown at its place in the user's text where DuckDB names one.

    `before` is how many bytes stood before the statement in what DuckDB was given.
    """
    message, offset = _parse_error(error)
    return statement.error(None if offset is None else max(0, offset - before), message)


def read_error_message(error: BaseException) -> str:
    """What DuckDB says, in one line."""
    message, _ = _parse_error(error)
    return message.partition("\n")[0]


def _parse_error(error: BaseException) -> tuple[str, int | None]:
    """DuckDB's message without its frame, and the place that it names."""
    message = str(error)
    offset: int | None = None
    start = message.find("{")
    if start >= 0:
        with contextlib.suppress(ValueError):
            told = json.loads(message[start:])
            message = str(told.get("exception_message", message))
            position = told.get("position")
            offset = None if position is None else int(position)
    for frame in (_ERROR_CLASS, _SOURCE_ERROR, _ERROR_PLACE, _SETTINGS_ADVICE):
        message = frame.sub("", message)
    if message.startswith("failed to allocate"):
        message += "; ask for less, or with a greater memory_limit"
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
    # Each of these forbids something that the ones before it need.
    for statement in (
        "SET GLOBAL TimeZone = 'UTC'",
        "SET GLOBAL enable_external_access = false",
        "SET GLOBAL disabled_filesystems = 'LocalFileSystem'",
        f"SET GLOBAL allowed_configs = [{changeable}]",
        "SET GLOBAL lock_configuration = true",
    ):
        connection.execute(statement)
    return connection
