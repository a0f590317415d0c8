"""A streaming query in a process of its own, for tests that kill it: a folder into a stream.

Run as: query_process.py <warehouse> <input> <checkpoint> <step to die at, or -> <times to pass it> <now | continuous>
"""

import os
import signal
import sys

from pyspark.sql import SparkSession

import windrow
import windrow.spark
from windrow.files import Files


class Dying(Files):
    """A disk that ends the process at a named step."""

    def __init__(self, step: str, passes: int) -> None:
        self.step = step
        self.passes = passes

    def reach(self, step: str) -> None:
        if step == self.step:
            if not self.passes:
                os.kill(os.getpid(), signal.SIGKILL)
            self.passes -= 1


def main(warehouse: str, folder: str, checkpoint: str, step: str, passes: str, mode: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(os.environ.get("WINDROW_TEST_MASTER", "local[2]"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    wh = windrow.open(warehouse, files=Dying(step, int(passes)))
    rows = spark.readStream.schema("ts timestamp, k bigint, pad string").option("maxFilesPerTrigger", 1).parquet(folder)
    query = windrow.spark.write_stream(
        rows, wh, "s", checkpoint=checkpoint, trigger="available now" if mode == "now" else None
    )
    print("started", flush=True)
    query.awaitTermination()
    counted = windrow.spark.totals(query)
    print(f"ended batches={counted.batches} duplicates={counted.duplicates} rows={counted.rows}", flush=True)
    wh.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
