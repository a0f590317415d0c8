"""Plain DuckDB, with whose answers over all rows ours are compared."""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import duckdb


@cache
def _instance() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:", config={"python_enable_replacements": False})


atexit.register(_instance.cache_clear)  # or DuckDB's binding reports a leak


@contextmanager
def connect() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose relations are its own, to one instance: opening another takes longer than most answers."""
    with _instance().cursor() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
