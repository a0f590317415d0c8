"""A DuckDB connection to hand out, for notebooks, ibis, SQLAlchemy and whatever else speaks to DuckDB itself.

Nobody reads the statements it will be given, so it has no file system at all: windows are offered to it as Arrow, and
COPY, ATTACH, EXPORT or a file function find no path that could be opened, in the warehouse or anywhere else.
"""

from typing import Any

import duckdb

_SETTINGS: dict[str, Any] = {
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",  # DuckDB adds this folder to those that statements may read and write
}
CHANGEABLE = (
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
    config = _SETTINGS | {name: value for name, value in limits.items() if value is not None}
    connection = duckdb.connect(":memory:", config=config)
    changeable = ", ".join(f"'{name}'" for name in CHANGEABLE)
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
