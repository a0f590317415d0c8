"""The process that `cold` starts: a JVM of its own, one first action, and maybe some more by turns."""

import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import windrow
import windrow.spark
from bench.ingest import session

LIFETIME = "1 hour"


def main() -> None:
    """Read settings as JSON from the command line, print the figures as JSON."""
    given = json.loads(sys.argv[1])
    folder, kind = Path(given["folder"]), given["kind"]
    warnings.simplefilter("ignore", FutureWarning)
    spark = session()
    frame = spark.read.parquet(str(folder / "spark-input"))
    schema = pq.read_schema(folder / "spark-input" / "0.parquet")
    opened = windrow.open(folder / f"spark-{kind.replace(' ', '-')}")

    def make(name: str) -> str:
        opened.create_stream(name, schema, time="ts", key="user_id", slide="1 second", lifetime=LIFETIME)
        return name

    def act(what: str, number: int, stream: str = "") -> float:
        target = stream or (make(f"s{number}") if what == "append" else "")
        started = time.perf_counter()
        if what == "append":
            windrow.spark.append(frame, opened, target)
        else:
            sorted_frame = frame.sortWithinPartitions("user_id", "ts") if what == "sort and write" else frame
            sorted_frame.write.parquet(str(folder / f"out-{kind}-{what}-{number}".replace(" ", "-")))
        return time.perf_counter() - started

    seconds: dict[str, Any] = {"first": act(kind, 0), "later": {}}
    if given["rounds"]:
        old = make("old")
        act("append", -1, old)
        taken: dict[str, list[float]] = {}
        for number in range(1, 2 + given["rounds"]):
            for what in ("write", "sort and write", "append"):
                taken.setdefault(what, []).append(act(what, number))
            taken.setdefault("append to an old stream", []).append(act("append", number, old))
        seconds["later"] = {what: statistics.median(times[1:]) for what, times in taken.items()}
    opened.close()
    spark.stop()
    sys.stdout.write("\n" + json.dumps(seconds))


if __name__ == "__main__":
    main()
