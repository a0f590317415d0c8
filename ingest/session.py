"""What every Spark path needs: the interpreter for workers, an open warehouse, settings for one job, file addresses.

A user's settings are changed only while a job of ours runs, and counted, so that jobs in several threads do not clash.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import DefinitionError
from windrow.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WarehouseOrPath = Warehouse | str | os.PathLike[str]
_GLOB_ESCAPES = str.maketrans({character: f"\\{character}" for character in "\\*?[]{},"})

# Timestamps in the form that Arrow and DuckDB read, and days and times as they are, however old.
_DEFAULT_PYTHON = "python3"
"""What Spark takes where nothing is said."""
WRITE_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    # Quoted names in our SQL are names.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # So is ${…} in them, which Spark would replace by the setting of that name.
    "spark.sql.variable.substitute": "false",
}

QUIET_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def use_this_interpreter() -> None:
    """Let Spark's Python workers run under the interpreter that runs us; what the user has set stays."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None and running.pythonExec == _DEFAULT_PYTHON:  # it was started before anybody said which
        running.pythonExec = sys.executable


def find_or_start_session() -> "SparkSession":
    """The running Spark session, or a new local one."""
    use_this_interpreter()
    from pyspark.sql import SparkSession

    running: SparkSession | None = SparkSession.getActiveSession()
    return running if running is not None else SparkSession.builder.appName("windrow").getOrCreate()


@contextmanager
def borrow_or_open(warehouse: WarehouseOrPath) -> Iterator[Warehouse]:
    """The warehouse; one that was given as a path is closed again."""
    if isinstance(warehouse, Warehouse):
        yield warehouse
        return
    with open_warehouse(warehouse) as own:
        yield own


def open_warehouse(path: str | os.PathLike[str]) -> Warehouse:
    """Open a warehouse that must exist."""
    if not isinstance(path, (str, os.PathLike)):
        raise DefinitionError(f"give an open warehouse or a path, not {type(path).__name__}")
    return Warehouse(os.fspath(path), create=False)


def to_write_url(path: Path) -> str:
    """A local path as Hadoop wants to write to it, whatever the default file system is."""
    return f"file://{path}"


def to_read_pattern(path: Path) -> str:
    """A local path as Hadoop wants to read it: read paths are glob patterns."""
    return f"file://{str(path).translate(_GLOB_ESCAPES)}"


class _ChangedSettings:
    """The settings of one session that jobs of ours have changed for the time being."""

    def __init__(self) -> None:
        self.users = 0
        self.before: dict[str, str | None] = {}


_changed_settings: dict[str, _ChangedSettings] = {}
_guard = threading.Lock()


@contextmanager
def apply_settings(spark: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Set options of a session while a job runs; the last job to end puts back what was there before the first."""
    with _guard:
        held = _changed_settings.setdefault(find_session_id(spark), _ChangedSettings())
        held.users += 1
        for name, value in values.items():
            if name not in held.before:
                held.before[name] = _read_setting(spark, name)
            spark.conf.set(name, value)
    try:
        yield
    finally:
        with _guard:
            held.users -= 1
            if not held.users:
                del _changed_settings[find_session_id(spark)]
                for name, before in held.before.items():
                    if before is None:
                        spark.conf.unset(name)
                    else:
                        spark.conf.set(name, before)


def find_session_id(spark: Any) -> str:
    """What tells Spark's sessions apart: several Python objects may stand for one of them."""
    return str(spark._jsparkSession.sessionUUID())


def _read_setting(spark: Any, name: str) -> str | None:
    value: str | None = spark.conf.get(name, None)
    return value


@contextmanager
def quiet_session(name: str) -> "Iterator[SparkSession]":
    """The running session, or a small local one that says nothing and ends with the block."""
    use_this_interpreter()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.appName(name).master("local[2]")
    for setting, value in QUIET_SETTINGS.items():
        builder = builder.config(setting, value)
    with _silence_stderr():
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Keep what the JVM says while it starts off the terminal; it inherits our standard error."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
