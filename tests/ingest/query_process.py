"""A streaming query in a process of its own, for tests that kill it: a folder into a stream.

Run as: query_process.py <warehouse> <input> <checkpoint> <step to die at, or -> <times to pass it> <now | continuous>
with WINDROW_TEST_MASTER for another master than local[2], and WINDROW_TEST_SOURCE for the name of the source.
"""

import os
import sys
from pathlib import Path

from child_spark import session, unlucky

import windrow
import windrow.spark


def main(warehouse: str, folder: str, checkpoint: str, step: str, passes: str, mode: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    sys.path.append(str(Path(__file__).parents[1]))
    from faulty_disks import KillAtStep

    master = os.environ.get("WINDROW_TEST_MASTER", "local[2]")
    spark = session(master)
    wh = windrow.open(warehouse, files=KillAtStep(step, int(passes) + 1))
    rows = spark.readStream.schema("ts timestamp, k bigint, pad string").option("maxFilesPerTrigger", 1).parquet(folder)
    if "cluster" in master:
        rows = rows.repartition(3).mapInArrow(unlucky, rows.schema)
    query = windrow.spark.write_stream(
        rows,
        wh,
        "s",
        source=os.environ.get("WINDROW_TEST_SOURCE"),
        checkpoint=checkpoint,
        trigger="available now" if mode == "now" else None,
    )
    print("started", flush=True)
    query.awaitTermination()
    counted = windrow.spark.totals(query)
    print(f"ended batches={counted.batches} duplicates={counted.duplicates} rows={counted.rows}", flush=True)
    wh.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
