"""Appends on a small cluster whose tasks fail and dawdle, in a process of its own.

Run as: cluster_process.py <warehouse> <catalog> <master> <streams, separated by commas>
"""

import datetime as dt
import json
import os
import sys
import warnings

import pyarrow as pa
from child_spark import session, shaky

ROWS, PARTS = 4000, 4


def main(warehouse: str, catalog: str, master: str, streams: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.simplefilter("ignore")
    import windrow
    import windrow.spark

    spark = session(master)
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    wh = windrow.open(warehouse, catalog=catalog)
    utc = pa.timestamp("us", "UTC")
    layout = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "1 hour"}
    plain = pa.schema([("ts", utc), ("k", pa.int64())])
    wh.create_stream("native", plain, index=windrow.Index("round-robin", 2, 3), **layout)
    wh.create_stream("workers", plain.append(pa.field("u", pa.uint16())), **layout)
    wh.create_stream("source", plain, **layout)
    base = f"timestamp_micros({int((now - dt.timedelta(minutes=5)).timestamp()) * 1_000_000} + id * 1000) ts, id k"
    frame = spark.range(0, ROWS, 1, PARTS).selectExpr(*base.split(", "))
    rows = frame.mapInArrow(shaky, frame.schema)
    windrow.spark.register(spark)
    answers = {}
    for stream in streams.split(","):
        if stream == "source":
            rows.write.format("windrow").options(path=warehouse, stream=stream, batch_id="b").mode("append").save()
        else:
            given = rows if stream == "native" else rows.selectExpr("*", "cast(k % 60000 as int) u")
            windrow.spark.append(given, wh, stream, batch_id="b")
        wh.slide(stream, now)
        with windrow.spark.window(spark, wh, stream) as df:
            by_spark = [tuple(row) for row in df.selectExpr("count(*)", "count(distinct k)", "sum(k)").collect()]
        keys = wh.scan(stream, columns=["k"]).read_all().column("k").to_pylist()
        answers[stream] = {"spark": by_spark, "scan": [len(keys), len(set(keys)), sum(keys)]}
    leftover = [str(p) for p in (wh.path / "staging").rglob("*.parquet")]
    checked = wh.check().problems
    wh.close()
    spark.stop()
    print(json.dumps({"found": answers, "leftover": leftover, "problems": checked}))


if __name__ == "__main__":
    main(*sys.argv[1:])
