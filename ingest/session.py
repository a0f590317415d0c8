"""What every way into the warehouse shares: the Spark session and its settings, an open warehouse, totals of an ingest.

A user's Spark settings are changed only while a job of ours runs. Jobs are counted, so that threads do not disturb
each other; nothing here imports Spark before it is needed, because adapters work without it.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow import times
from windrow.append import AppendReport
from windrow.errors import DefinitionError, WindowError
from windrow.past import AsOf
from windrow.snapshot import Snapshot
from windrow.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WarehouseOrPath = Warehouse | str | os.PathLike[str]
_GLOB_ESCAPES = str.maketrans({character: f"\\{character}" for character in "\\*?[]{},"})

_DEFAULT_PYTHON = "python3"
"""The interpreter of Spark's workers when nobody has chosen one."""
# Timestamps in the form that Arrow and DuckDB read; old dates are written unchanged.
WRITE_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    # A quoted name in our SQL is a name, not a regular expression.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # Spark would replace ${…} in a name by the setting of that name.
    "spark.sql.variable.substitute": "false",
}

QUIET_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
_LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Of a session that has this machine only."""


@dataclass
class Totals:
    """What an ingest has brought in since it was started."""

    batches: int = 0
    duplicates: int = 0
    """Batches that had been appended before and changed nothing."""
    rows: int = 0
    accepted: int = 0
    late: int = 0
    slides: int = 0
    heartbeats: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    """Rows rejected, by reason."""
    offsets: dict[str, int] = field(default_factory=dict)
    """The next offset of each partition of Kafka."""
    lag: dict[str, int] = field(default_factory=dict)
    """How many offsets of each partition were still to be read when it was last looked at."""
    failure: str | None = None
    """Why the ingest ended early; None if it did not."""

    def add(self, report: AppendReport) -> None:
        """Count one batch."""
        if report.duplicate:
            self.duplicates += 1
            return
        self.batches += 1
        self.rows += report.rows
        self.accepted += report.accepted
        self.late += report.late
        for reason, count in report.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count


def use_this_interpreter() -> None:
    """Let Spark's Python workers run under the interpreter that runs us; what the user has set stays."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None and running.pythonExec == _DEFAULT_PYTHON:  # Spark was started before the choice was made
        running.pythonExec = sys.executable


@contextmanager
def borrow_or_open(warehouse: WarehouseOrPath) -> Iterator[Warehouse]:
    """Give the open warehouse itself, or open the one at a path and close it afterwards."""
    if isinstance(warehouse, Warehouse):
        yield warehouse
        return
    with open_warehouse(warehouse) as opened:
        yield opened


def open_warehouse(path: str | os.PathLike[str]) -> Warehouse:
    """Open a warehouse that must exist."""
    if not isinstance(path, (str, os.PathLike)):
        raise DefinitionError(f"give an open warehouse or a path, not {type(path).__name__}")
    return Warehouse(os.fspath(path), create=False)


def go_back(snapshot: Snapshot, streams: Sequence[str] | None, as_of: int | times.Instant | None) -> Snapshot:
    """The snapshot as of an earlier commit or, if it is of one stream, of a time of that stream's clock."""
    if as_of is None:
        return snapshot
    if isinstance(as_of, int):
        return snapshot.as_of(as_of)
    if streams is None or len(streams) != 1:
        raise WindowError(f"as_of={as_of!r} is a time, which each stream has its own clock for; give a commit")
    return snapshot.with_pasts({streams[0]: (streams[0], AsOf("timestamp", times.parse_instant(as_of, "as_of")))})


def to_file_url(path: Path) -> str:
    """Turn a local path into a URL, because the default file system may be another one."""
    return f"file://{path}"


def escape_pattern(url: str) -> str:
    """A URL as a glob pattern that means only itself: Hadoop expects patterns where Spark's reader takes paths."""
    return url.translate(_GLOB_ESCAPES)


class _ChangedSettings:
    """The settings of one session as they were before our jobs changed them."""

    def __init__(self) -> None:
        self.users = 0
        self.before: dict[str, str | None] = {}


_changed_settings: dict[str, _ChangedSettings] = {}
_guard = threading.Lock()


@contextmanager
def apply_settings(spark: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Set options of a session while a job runs; the last job to end puts back what was there before the first."""
    with _guard:
        changed = _changed_settings.setdefault(find_session_id(spark), _ChangedSettings())
        changed.users += 1
        for name, value in values.items():
            if name not in changed.before:
                changed.before[name] = _read_setting(spark, name)
            spark.conf.set(name, value)
    try:
        yield
    finally:
        with _guard:
            changed.users -= 1
            if not changed.users:
                del _changed_settings[find_session_id(spark)]
                for name, before in changed.before.items():
                    if before is None:
                        spark.conf.unset(name)
                    else:
                        spark.conf.set(name, before)


_active_guard = threading.RLock()
"""PySpark's active session is one for all threads of the process; the JVM's is one for each."""


@contextmanager
def keep_active_session(spark: Any) -> Iterator[None]:
    """Leave the active session as it is: PySpark makes whichever session creates a DataFrame the active one."""
    sessions, kind = spark._get_j_spark_session_class(spark._jvm), type(spark)
    with _active_guard:
        active, java_active = kind._activeSession, sessions.getActiveSession()
        try:
            yield
        finally:
            kind._activeSession = active
            if java_active.isDefined():
                sessions.setActiveSession(java_active.get())
            else:
                sessions.clearActiveSession()


def find_session_id(spark: Any) -> str:
    """Identify a session, for which there may be several Python objects."""
    return str(spark._jsparkSession.sessionUUID())


def _read_setting(spark: Any, name: str) -> str | None:
    value: str | None = spark.conf.get(name, None)
    return value


@contextmanager
def quiet_session(
    name: str, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """Use the running session, or a silent one that ends with the block."""
    use_this_interpreter()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.appName(name).master(master)
    local = _LOCAL_SETTINGS if master.startswith("local") else {}
    for setting, value in {**QUIET_SETTINGS, **local, **(settings or {})}.items():
        builder = builder.config(setting, value)
    with _silence_stderr():
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        with suppress(OSError, Py4JError):  # its JVM is gone already
            spark.stop()


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Keep messages of the starting JVM off the terminal: it inherits our standard error."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
