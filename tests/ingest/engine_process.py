"""Rounds of a periodic query that Spark runs, in a process of its own, for tests that kill its executors or itself.

Run as: engine_process.py <warehouse> <master>. It makes a round for each line that it is given, and prints ``running``
once a job of it runs, and ``ended`` with the outcomes.
"""

import os
import sys
import threading
import time

from child_spark import session

import windrow


def announce(tracker: object) -> None:
    while not tracker.getActiveJobsIds():  # type: ignore[attr-defined]
        time.sleep(0.05)
    print("running", flush=True)


def main(warehouse: str, master: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(master)
    with windrow.open(warehouse) as wh:
        # Executors are there before the round, so that a kill meets its own job.
        spark.sparkContext.parallelize(range(4), 4).count()
        tracker = spark.sparkContext.statusTracker()
        for _ in sys.stdin:
            threading.Thread(target=announce, args=[tracker], daemon=True).start()
            reports = wh.run_due(spark=spark)
            print("ended", *(report.outcome for report in reports), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
