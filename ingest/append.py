"""A DataFrame into the spool: Spark sorts and writes, the driver verifies and commits, all of it or nothing.

Rows stay in the JVM unless the stream has a type that Spark cannot write; then its Python workers write it with Arrow.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import BatchConflictError, DefinitionError, SchemaError
from windrow.files import disk_errors
from windrow.ingest.expressions import Limits, arranged, can_place
from windrow.ingest.packing import learned
from windrow.ingest.pressure import wait_for_room
from windrow.ingest.sessions import WRITE_SETTINGS, WarehouseOrPath, address, opened, settings, use_this_interpreter
from windrow.ingest.staged import take_in
from windrow.ingest.types import NOT_NULLABLE, Columns, plan_columns
from windrow.lookups import find_stream, source_name
from windrow.spool import Append, AppendReport
from windrow.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TASK_BYTES = 512 << 20
_ROW_GROUP_BYTES = 4 << 20
_DICTIONARY_BYTES = 32 << 10
_ABSURD_BYTES = 1 << 50
_WORKER_SAID = "windrow.errors.SchemaError: "


def append(
    df: "DataFrame",
    warehouse: WarehouseOrPath,
    stream: str,
    *,
    source: str | None = None,
    batch_id: str | None = None,
    max_spool_bytes: int | None = None,
) -> AppendReport:
    """Spool the rows of a DataFrame: durable when this returns, in the window after the next slide.

    Args:
        df: Rows with the stream's columns.
        warehouse: An open warehouse, or its path.
        stream: Its name.
        source: Which of the stream's sources the rows come from.
        batch_id: Appending the same (source, batch_id) again changes nothing.
        max_spool_bytes: While more than this is spooled, wait until slides have taken it in.
    """
    if df.isStreaming:
        raise DefinitionError("this DataFrame is a stream; use windrow.spark.write_stream")
    with opened(warehouse) as wh:
        if max_spool_bytes is not None:
            entry, _ = wh._store.catalog.read(lambda tables: find_stream(tables, stream))
            wait_for_room(wh, stream, source_name(entry, source), max_spool_bytes, slide=False)
        return append_rows(df, wh._store, stream, source, batch_id)


def append_rows(
    df: "DataFrame", store: Store, stream: str, source: str | None, batch_id: str | None, *, trusted: bool = False
) -> AppendReport:
    """`append` on an open store; a `trusted` batch id, of a streaming query, stands for its rows unseen."""
    use_this_interpreter()
    job = Append(store, stream, source, batch_id)
    columns = plan_columns(df.schema, job.definition)
    known = job.known_batch()
    if known is not None:
        job.tally.rows, job.tally.digest = known.rows, known.digest
        if not trusted and (rows := df.count()) != known.rows:
            raise BatchConflictError(
                f"batch {batch_id!r} of source {job.source!r} was appended to stream {stream!r} before with other rows "
                f"({known.rows} then, {rows} now); use a new batch id, nothing was changed"
            )
        return job.duplicate(known)
    limits = Limits(job.now, job.horizon())
    folder = store.writer.stage("")
    try:
        with disk_errors(f"appending to stream {stream!r}"):
            take_in(job, _written(df, job, columns, limits, folder), limits.horizon)
            return job.commit()
    except BaseException:
        job.discard()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _written(df: "DataFrame", job: Append, columns: Columns, limits: Limits, folder: Path) -> list[Path]:
    """Let Spark write the rows under `folder`; gives the files in arrival order."""
    from pyspark.errors import PySparkException

    rows = gathered(df).select(*columns.select)
    try:
        if not columns.native or not can_place(job):
            from windrow.ingest.workers import stage_in_workers

            return stage_in_workers(rows, job, limits, folder)
        with settings(df.sparkSession, WRITE_SETTINGS):
            output = arranged(rows, job, limits).write.mode("error")
            for name, value in writer_options(job).items():
                output = output.option(name, value)
            output.parquet(address(folder))
    except PySparkException as error:
        raise _translated(error, job) from error
    # Numbered by task, so that names are in the order of the partitions.
    return sorted(path for path in folder.iterdir() if path.name.startswith("part-") and path.suffix == ".parquet")


def writer_options(job: Append) -> dict[str, str]:
    """Options of Spark's Parquet writer for segment files."""
    return {
        "compression": "snappy" if learned(job).compresses else "none",
        "parquet.block.size": str(_ROW_GROUP_BYTES),
        # A dictionary that does not stay small is given up early: row groups are small too, and each would try again.
        "parquet.dictionary.page.size": str(_DICTIONARY_BYTES),
        "parquet.page.write-checksum.enabled": "false",
        "maxRecordsPerFile": "0",
        # The first version of the commit algorithm is the one in which a failed or speculative task leaves nothing.
        "mapreduce.fileoutputcommitter.algorithm.version": "1",
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


def gathered(df: "DataFrame") -> "DataFrame":
    """`df` in about as many partitions as there are cores, so that a slide does not take in a file per small task.

    Very large frames keep more, and what the user has gathered further stays so.
    """
    spark: Any = df.sparkSession
    cores = max(1, spark.sparkContext.defaultParallelism)
    plans = df._jdf.queryExecution()
    # A plan that adapts itself would have to run to say how many partitions it has.
    if plans.executedPlan().getClass().getSimpleName() != "AdaptiveSparkPlanExec":
        if plans.toRdd().getNumPartitions() <= 2 * cores:
            return df
    elif plans.analyzed().getClass().getSimpleName() == "Repartition" and plans.analyzed().numPartitions() <= 2 * cores:
        return df
    size = int(plans.optimizedPlan().stats().sizeInBytes())
    return df.coalesce(cores if size > _ABSURD_BYTES else max(cores, size // _TASK_BYTES))


def _translated(error: Exception, job: Append) -> Exception:
    """Spark's report of a failed task as the error that the task met, if that was one of ours."""
    text = str(error)
    if NOT_NULLABLE in text:
        column = text.partition(NOT_NULLABLE)[2].split(maxsplit=1)[0].rstrip(".'\"")
        return SchemaError(
            f"stream {job.definition.name!r}: column {column!r} is not nullable but has nulls; nothing was appended"
        )
    if _WORKER_SAID in text:
        return SchemaError(text.partition(_WORKER_SAID)[2].splitlines()[0])
    return error
