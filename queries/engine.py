"""DuckDB, locked up: one instance per warehouse and process, that can read the warehouse's files and nothing else.

Statements are confined before they get here; this is the second wall, which holds even if the first one leaks.
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
from windrow.queries import macros
from windrow.queries.forks import leave_to_parent
from windrow.queries.statements import Statement
from windrow.queries.types import text
from windrow.store import Store

_guard = threading.Lock()
_instances: dict[tuple[int, str], duckdb.DuckDBPyConnection] = {}
leave_to_parent(_instances, _guard)
_LEAD = re.compile(r"^[A-Z][A-Za-z ]+ Error: ")
_PLACE = re.compile(r"\n*LINE \d+:.*", re.DOTALL)
_ADVICE = re.compile(r"\n+Possible solutions:.*| Use \"SET .*", re.DOTALL)
"""What DuckDB would have one do: settings, which are locked here."""
_FRAME = re.compile(r"^exporting a stream from the object registered as '.*?' failed: (?:\w+Error: )?")
"""How it begins to tell of an error in a relation of ours."""


def cursor(store: Store, memory_limit: str | None = None) -> Any:
    """A connection of its own to the warehouse's instance, or to one with a limit; close it when the query is done."""
    if memory_limit is not None:
        try:
            return locked_instance(store.root, memory_limit)
        except duckdb.ParserException:
            raise QueryError(f"{memory_limit!r} is not a memory limit; write one such as '500MB' or '2GB'") from None
    identity = os.getpid(), str(store.root)
    with _guard:
        instance = _instances.get(identity)
        if instance is None:
            instance = _instances[identity] = locked_instance(store.root)
    return instance.cursor()


def locked_instance(
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
    allowed = ", ".join(text(f"{root / folder}/") for folder in ("streams", "tables", "results"))
    opened.execute(f"SET allowed_directories = [{allowed}]")
    opened.execute("SET GLOBAL parquet_metadata_cache = true")
    # The files are in the page cache or on a local disk: reading ahead only copies what is not asked for.
    opened.execute("SET GLOBAL disable_parquet_prefetching = true")
    opened.execute("SET GLOBAL errors_as_json = true")
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    macros.define(opened)
    opened.execute("SET GLOBAL enable_external_access = false")
    opened.execute("SET GLOBAL lock_configuration = true")
    return opened


def explain_error(statement: Statement, error: BaseException, before: int = 0) -> QueryError:
    """DuckDB's error in one sentence, shown at its place in the user's text where DuckDB names one.

    `before` is how many bytes stood before the statement in what DuckDB was given.
    """
    message, offset = _told(error)
    return statement.error(None if offset is None else max(0, offset - before), message)


def message_of(error: BaseException) -> str:
    """What DuckDB says, in one line."""
    message, _ = _told(error)
    return message.partition("\n")[0]


def _told(error: BaseException) -> tuple[str, int | None]:
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
    for frame in (_LEAD, _FRAME, _PLACE, _ADVICE):
        message = frame.sub("", message)
    if message.startswith("failed to allocate"):
        message += "; ask for less, or with a greater memory_limit"
    return message.strip(), offset
