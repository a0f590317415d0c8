"""Packets through Spark: streamed in exactly once, asked in SQL, read back as a DataFrame, and a report.

Run it with a folder, ``python network_packets.py FOLDER``; it makes its own data, and needs ``windrow[spark]`` with
Java.
"""

import datetime as dt
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import windrow
import windrow.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = dt.datetime(2025, 2, 3, 10, tzinfo=dt.UTC)
SCHEMA = pa.schema([
    ("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("dst", pa.int64()), ("len", pa.int32()),
])  # fmt: skip


def make_minute(minute: int) -> list[dict[str, object]]:
    """The packets of a minute, as a capture leaves them in a file."""
    choice = random.Random(minute)
    times = sorted(choice.uniform(0.001, 60) for _ in range(200))
    return [
        {
            "ts": START + dt.timedelta(minutes=minute, seconds=round(second, 3)),
            "src": choice.randint(1, 9), "dst": choice.randint(1, 99), "len": choice.choice((40, 576, 1500)),
        }
        for second in times
    ]  # fmt: skip


def main(folder: Path, spark: "SparkSession | None" = None) -> dict[str, object]:
    """Six files, read by a streaming query in two parts."""
    incoming = folder / "incoming"
    incoming.mkdir(exist_ok=True)
    with windrow.open(folder / "warehouse") as wh:
        wh.create_stream(
            "packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="1 hour", if_not_exists=True
        )
        wh.add_query(
            "talkers",
            "SELECT src, count(*) AS n, sum(len) AS bytes FROM packets [WINDOW 3 MINUTES SLIDE 1 MINUTE] GROUP BY src",
            sink="html", if_not_exists=True,
        )  # fmt: skip
        spark = spark or _start_spark()
        for part in (range(4), range(4, 6)):
            for minute in part:
                pq.write_table(pa.Table.from_pylist(make_minute(minute), SCHEMA), incoming / f"{minute}.parquet")
            # The second part is a new query with the same checkpoint, as after a restart: nothing is read twice.
            rows = spark.readStream.schema("ts timestamp, src bigint, dst bigint, len int").parquet(str(incoming))
            query = windrow.spark.write_stream(
                rows, wh, "packets", checkpoint=str(folder / "checkpoint"), trigger="available now"
            )
            query.awaitTermination()
            print(windrow.spark.totals(query).accepted, "packets streamed in")
        wh.slide("packets", to=START + dt.timedelta(minutes=6))
        (run,) = wh.run_due()
        with windrow.spark.window(spark, wh, "packets", "2 minutes") as df:
            by_dst = df.groupBy("dst").count().orderBy("dst").collect()
        talkers = "SELECT src, count(*), sum(len) FROM packets [WINDOW 3 MINUTES] GROUP BY src ORDER BY src"
        facts: dict[str, object] = {
            "talkers": wh.sql(talkers).fetchall(),
            "destinations": [tuple(row) for row in by_dst],
            "report": run.file,
        }
        print("the report is", run.file)
    return facts


def _start_spark() -> "SparkSession":
    from pyspark.sql import SparkSession

    return SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
