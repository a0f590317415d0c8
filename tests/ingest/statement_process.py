"""Answers statements in Spark's SQL on a small cluster, in a process of its own, for tests that kill its executors.

Run as: statement_process.py <warehouse> <master>. Each line it is given is a statement as JSON; it prints the sorted rows.
"""

import json
import os
import sys

from child_spark import session

import windrow
import windrow.spark


def main(warehouse: str, master: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(master, **{"spark.executor.maxNumFailures": "1000", "spark.deploy.maxExecutorRetries": "-1"})
    with windrow.open(warehouse) as wh:
        for line in sys.stdin:
            df = windrow.spark.sql(spark, wh, json.loads(line))
            print(json.dumps(sorted(repr(tuple(row)) for row in df.collect())), flush=True)
            windrow.spark.release(df)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
