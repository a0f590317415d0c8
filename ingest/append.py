"""Append of a DataFrame: Spark sorts and writes the rows, the driver verifies and commits all of them or none.

Rows stay in the JVM unless the stream has a type that Spark cannot write; then Spark's Python workers write with Arrow.
Files are synced while Spark still writes them, so that the commit has little left to wait for.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.append import Append, AppendReport
from windrow.arguments import check_share
from windrow.catalog.lookups import find_stream, resolve_source
from windrow.errors import DefinitionError
from windrow.files import disk_errors
from windrow.indexes.row_model import SEQ
from windrow.ingest.backpressure import wait_for_spool_space
from windrow.ingest.errors import SPARK_ERRORS, translate_error
from windrow.ingest.expressions import TimeLimits, can_sort_in_sql, find_latest_time, leave_unsorted, sort_rows
from windrow.ingest.schemas import ColumnPlan, evolve_stream, plan_columns
from windrow.ingest.session import (
    WRITE_SETTINGS,
    WarehouseOrPath,
    apply_settings,
    borrow_or_open,
    to_file_url,
    use_this_interpreter,
)
from windrow.ingest.sort_key import find_profile
from windrow.ingest.verification import add_staged_files, count_staged_files
from windrow.sources import parse_covers
from windrow.store import Store
from windrow.times import Instant
from windrow.warehouse import Evolution

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.column import Column

    from windrow.ingest.checkpoints import StreamingBatch

# Sizes in the files that Spark writes: small row groups, because a probe reads few rows, and small dictionaries.
_ROW_GROUP_BYTES = 8 << 20
_DICTIONARY_BYTES = 32 << 10
# One task for so many bytes (not measured: bounds what it sorts); above the second size Spark does not know how much
# there is, and only cores count.
_TASK_BYTES = 512 << 20
_UNKNOWN_BYTES = 1 << 50
DRIVER_SORT_BYTES = 64 << 20
"""Frames up to this size, by Spark's estimate, are written unsorted: the driver, which reads them anyway, has sorted
them sooner than a job with a sort is planned, compiled and run (`bench cold`)."""
# How often, in seconds, files under construction are looked at, and after how many new bytes one is synced.
_SYNC_INTERVAL = 0.05
_SYNC_STEP_BYTES = 8 << 20


@contextmanager
def sync_in_background(folder: Path) -> Iterator[None]:
    """Sync the files that a job writes under `folder` while the block runs.

    This promises nothing, because sealing syncs the files again. But the system reports a failed write only once, so a
    failure that is met here is raised.
    """
    over, failures = threading.Event(), list[OSError]()
    worker = threading.Thread(
        target=_sync_until_over, args=(folder, over, failures), name="windrow-syncing", daemon=True
    )
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
    if failures:
        raise failures[0]


def _list_task_files(folder: Path) -> Iterator[str]:
    """List the files of all tasks where Hadoop's committer keeps them until the job is done."""
    # os.walk does not mind folders that disappear meanwhile.
    for inside, _, names in os.walk(folder / "_temporary"):
        yield from (os.path.join(inside, name) for name in names if name.endswith(".parquet") and name[0] != ".")


def _sync_until_over(folder: Path, over: threading.Event, failures: list[OSError]) -> None:
    synced: dict[int, int] = {}
    while not over.wait(_SYNC_INTERVAL):
        for path in _list_task_files(folder):
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError:  # the task was committed or aborted meanwhile
                continue
            try:
                status = os.fstat(descriptor)
                if status.st_size >= synced.get(status.st_ino, 0) + _SYNC_STEP_BYTES:
                    os.fdatasync(descriptor)
                    synced[status.st_ino] = status.st_size
            except OSError as error:
                failures.append(error)
                return
            finally:
                os.close(descriptor)


def append(
    df: "DataFrame",
    warehouse: WarehouseOrPath,
    stream: str,
    *,
    source: str | None = None,
    batch_id: str | None = None,
    where: "Column | str | None" = None,
    max_spool_bytes: int | None = None,
    covers: tuple[Instant, Instant] | None = None,
    max_rejected: float | None = None,
    evolve: Evolution | None = None,
) -> AppendReport:
    """Spool the rows of a DataFrame: durable when this returns, in the window after the next slide.

    Args:
        df: Rows with the stream's columns.
        warehouse: An open warehouse, or its path.
        stream: Its name.
        source: Which of the stream's sources the rows come from.
        batch_id: Appending the same (source, batch_id) again changes nothing.
        where: Only rows that meet this condition are appended. The others still tell how far the source has come, which
            rows that were filtered out of the DataFrame do not.
        max_spool_bytes: While more than this is spooled, wait until slides have taken it in.
        covers: (start, end): with these rows the source has sent all that it had there, which closes gaps.
        max_rejected: The share of rows that may be rejected, such as 0.01; with more, nothing is appended.
        evolve: ``"add"`` takes columns into the stream that it does not have yet; stored rows have null there.
            ``"widen"`` does so too, and columns of a wider type than the stream's give it that type.
    """
    if df.isStreaming:
        raise DefinitionError("this DataFrame is a stream; use windrow.spark.write_stream")
    with borrow_or_open(warehouse) as wh:
        if max_spool_bytes is not None:
            entry, _ = wh._store.catalog.read(lambda tables: find_stream(tables, stream))
            wait_for_spool_space(wh, stream, resolve_source(entry, source), max_spool_bytes, slide=False)
        evolve_stream(wh, stream, df.schema, evolve)
        return append_rows(
            df, wh._store, stream, source, batch_id, where, covers=parse_covers(covers), max_rejected=max_rejected
        )


def append_rows(
    df: "DataFrame",
    store: Store,
    stream: str,
    source: str | None,
    batch_id: str | None,
    where: "Column | str | None" = None,
    *,
    batch: "StreamingBatch | None" = None,
    covers: tuple[int, int] | None = None,
    max_rejected: float | None = None,
) -> AppendReport:
    """`append` on an open store; the id of a streaming query's `batch` stands for its rows unseen."""
    use_this_interpreter()
    job = Append(store, stream, source, batch_id if batch is None else batch.id)
    job.covers = covers
    job.max_rejected = check_share(max_rejected, "max_rejected")
    columns = plan_columns(df.schema, job.definition)
    limits = TimeLimits(job.now, job.horizon())
    rows, latest = _filter_rows(df, where, job, limits)
    known_batch = job.known_batch()
    if batch is not None:
        job.digests = False
        batch.attach(job, is_recorded=known_batch is not None)
    if known_batch is not None and (batch is not None or not known_batch.whole):
        job.count(known_batch.rows if batch is not None else rows.count(), known_batch.digest)
        return job.duplicate(known_batch)
    folder = store.writer.stage("")
    try:
        with disk_errors(f"appending to stream {stream!r}"):
            files = _write_files(rows, job, columns, limits, folder)
            if known_batch is not None:
                count_staged_files(job, files)
                return job.duplicate(known_batch)
            add_staged_files(job, files, limits.horizon)
            if latest is not None:
                _record_progress(job, latest.get["upto"])
            return job.commit()
    except BaseException:
        job.discard()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filter_rows(
    df: "DataFrame", where: "Column | str | None", job: Append, limits: TimeLimits
) -> "tuple[DataFrame, Observation | None]":
    """Give the rows that meet a condition, and an observation of the latest time of all rows."""
    if where is None:
        return df, None
    from pyspark.sql import Observation

    observation = Observation()
    return df.observe(observation, find_latest_time(df, job.definition.time, limits.horizon).alias("upto")).where(
        where
    ), observation


def _record_progress(job: Append, latest: int | None) -> None:
    """Count rows that were filtered out as progress of the source, in the same transaction as the other rows."""
    times = [time for time in (job.tally.max_ts, latest) if time is not None]
    job.tally.max_ts = max(times, default=None)


def _write_files(df: "DataFrame", job: Append, columns: ColumnPlan, limits: TimeLimits, folder: Path) -> list[Path]:
    """Let Spark write the rows under `folder`; return the files in the order of arrival."""
    size = estimate_bytes(df)
    is_small = size <= DRIVER_SORT_BYTES
    rows = coalesce_partitions(df, size)
    if columns.expressions is not None:
        rows = rows.select(*columns.expressions)
    try:
        if not columns.written_by_spark or not can_sort_in_sql(job):
            from windrow.ingest.worker_writer import stage_in_workers

            return stage_in_workers(rows, job, limits, folder)
        with apply_settings(df.sparkSession, WRITE_SETTINGS):
            arranged = leave_unsorted(rows, job) if is_small else sort_rows(rows, job, limits)
            output = arranged.write.mode("error")
            for name, value in choose_writer_options(job).items():
                output = output.option(name, value)
            with sync_in_background(folder):
                output.parquet(to_file_url(folder))
    except SPARK_ERRORS as error:
        raise translate_error(error, job.definition.name) from error
    # File names carry the number of the task, so they sort in the order of the partitions.
    return sorted(path for path in folder.iterdir() if path.name.startswith("part-") and path.suffix == ".parquet")


def choose_writer_options(job: Append) -> dict[str, str]:
    """Choose the options of Spark's Parquet writer for files that become segments."""
    profile = find_profile(job)
    return {
        "compression": "snappy" if profile.compresses else "none",
        "parquet.block.size": str(_ROW_GROUP_BYTES),
        # A large dictionary is given up early, because each of the many row groups would build it again.
        "parquet.dictionary.page.size": str(_DICTIONARY_BYTES),
        "parquet.page.write-checksum.enabled": "true",
        "maxRecordsPerFile": "0",
        # Only with the first version of the commit algorithm does a failed or speculative task leave no file.
        "mapreduce.fileoutputcommitter.algorithm.version": "1",
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        **_column_options(profile.settings or {}),
    }


def _column_options(settings: dict[str, Any]) -> dict[str, str]:
    """Ask for dictionaries and statistics only where they pay, as in the files that we write ourselves.

    Trying both for every column of every row group took a third of the time of an append.
    """
    options = {
        "parquet.enable.dictionary": "false",
        "parquet.column.statistics.enabled": "false",
        "parquet.size.statistics.enabled": "false",
        f"parquet.column.statistics.enabled#{SEQ}": "true",
    }
    for name in settings.get("use_dictionary") or ():
        options[f"parquet.enable.dictionary#{name}"] = "true"
    for name in settings.get("write_statistics") or ():
        options[f"parquet.column.statistics.enabled#{name}"] = "true"
    return options


def coalesce_partitions(df: "DataFrame", size: int) -> "DataFrame":
    """Reduce partitions to about the number of cores, so that a slide does not merge one file per small task.

    Very large frames keep more partitions, and a frame that has few is left alone; of a small one they are not even
    counted, since Spark would compile its plan for that.
    """
    cores, execution = count_cores(df), df._jdf.queryExecution()
    analyzed, plan = execution.analyzed(), execution.executedPlan()
    if analyzed.getClass().getSimpleName() == "Repartition" and analyzed.numPartitions() <= 2 * cores:
        return df
    # An adaptive plan knows its number of partitions only after it has run.
    is_adaptive = plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec"
    if size > DRIVER_SORT_BYTES and not is_adaptive and execution.toRdd().getNumPartitions() <= 2 * cores:
        return df
    return df.coalesce(cores if size > _UNKNOWN_BYTES else max(cores, size // _TASK_BYTES))


def count_cores(df: "DataFrame") -> int:
    """How many tasks the session runs at once."""
    spark: Any = df.sparkSession
    return max(1, int(spark.sparkContext.defaultParallelism))


def estimate_bytes(df: "DataFrame") -> int:
    """How large a frame is, by Spark's estimate."""
    return int(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
