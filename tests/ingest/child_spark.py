"""What the child processes of the ingest tests share: a small Spark of their own, and tasks that fail and dawdle."""

import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.task.maxFailures": "8",
}


def session(master: str, **settings: str) -> Any:
    """A Spark that says nothing; on a cluster it runs slow tasks a second time."""
    from pyspark import cloudpickle
    from pyspark.sql import SparkSession

    # Executors do not find this module: its functions travel with the tasks.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    for name, value in (SPECULATION if "cluster" in master else {}).items():
        builder = builder.config(name, value)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF" if "cluster" in master else "ERROR")
    return spark


def shaky(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are; one task fails when it is tried first, another one is so slow that Spark starts it again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 1 and context.attemptNumber() == 0:
        raise RuntimeError("this task fails when it is tried first")
    if context.partitionId() == 2 and context.attemptNumber() == 0:
        time.sleep(5)


def unlucky(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are; tasks fail and dawdle by chance, before and after they have given their rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    first, dice = context.attemptNumber() == 0, random.random()
    if first and dice < 0.2:
        raise RuntimeError("this task fails before it has given a row")
    yield from batches
    if first and dice < 0.4:
        raise RuntimeError("this task fails when it has given all rows")
    if first and dice < 0.6:
        time.sleep(4)
