"""The entry to Spark: everything here is in `windrow.ingest`, and is imported when it is first used.

So `import windrow` never needs Spark, and `windrow.spark.append` is there for those who have it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.ingest.append import append
    from windrow.ingest.data_source import register
    from windrow.ingest.reader import about, read, release, snapshot, window
    from windrow.ingest.statement import explain, sql
    from windrow.ingest.stream import progress, stop, totals, write_stream

_MODULES = {
    "about": "windrow.ingest.reader",
    "append": "windrow.ingest.append",
    "progress": "windrow.ingest.stream",
    "explain": "windrow.ingest.statement",
    "read": "windrow.ingest.reader",
    "register": "windrow.ingest.data_source",
    "release": "windrow.ingest.reader",
    "snapshot": "windrow.ingest.reader",
    "sql": "windrow.ingest.statement",
    "stop": "windrow.ingest.stream",
    "totals": "windrow.ingest.stream",
    "window": "windrow.ingest.reader",
    "write_stream": "windrow.ingest.stream",
}

__all__ = [
    "about",
    "append",
    "explain",
    "progress",
    "read",
    "register",
    "release",
    "snapshot",
    "sql",
    "stop",
    "totals",
    "window",
    "write_stream",
]


def load_module(module: str) -> Any:
    """A module of `windrow.ingest`, imported now; if Spark is not installed, the error says how to install it."""
    import importlib

    from windrow.errors import DefinitionError

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "py4j", "pandas"):
            raise
        raise DefinitionError(
            f"windrow.spark needs {error.name}, which is not installed; install it with: pip install 'windrow[spark]'"
        ) from None


def find_engine(spark: Any = None) -> Any:
    """What runs periodic queries of ``engine="spark"``: a session, or the active one of this process if there is any.

    Args:
        spark: The session. Without it Spark is not even imported for this: None if this process has none.
    """
    import sys

    pyspark: Any = sys.modules.get("pyspark")
    if spark is None and (pyspark is None or pyspark.SparkContext._active_spark_context is None):
        return None
    return load_module("windrow.ingest.run_engine").SparkEngine(spark)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'windrow.spark' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(load_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
