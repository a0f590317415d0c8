"""The demo's scene with Spark: a DataFrame goes into a stream without leaving the JVM; a window comes out as one."""

import importlib.util
from typing import TYPE_CHECKING

from windrow.times import instant, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windrow.demo import Facts, Stage

CLICKS = 300_000
_BEGIN = "2025-06-02T08:00:00"


def spark_ingest(stage: "Stage") -> "Facts":
    """Clicks arrive through Spark, minute by minute; a report takes a window out again."""
    if importlib.util.find_spec("pyspark") is None:
        stage.tell("Spark is not installed here; 'pip install windrow[spark]' and Java 17 add this scene.")
        return {"skipped": "pyspark is not installed"}
    stage.tell(
        f"{CLICKS:,} clicks of three minutes, made and written by Spark in local mode; starting it takes a while."
    )
    stage.typed(
        "windrow.spark.append(df, wh, 'clicks', batch_id='job-1'); wh.slide('clicks')",
        "with windrow.spark.window(spark, wh, 'clicks', '2 minutes') as df: df.groupBy('page').count()",
    )
    from windrow.ingest.session import quiet_session

    with quiet_session("windrow demo") as spark:
        return _play(stage, spark)


def _play(stage: "Stage", spark: "SparkSession") -> "Facts":
    import pyarrow as pa

    import windrow.spark as door

    start = instant(_BEGIN)
    clicks = spark.range(CLICKS).selectExpr(
        f"timestamp_micros({start} + 1 + id * {180_000_000 // CLICKS}) AS ts",
        "id % 5000 AS user",
        "concat('/page/', CAST(pmod(hash(id), 20) AS STRING)) AS page",
        "CAST(pmod(hash(id, 7), 900) AS INT) AS millis",
    )
    stamp = pa.timestamp("us", "UTC")
    schema = pa.schema([("ts", stamp), ("user", pa.int64()), ("page", pa.string()), ("millis", pa.int32())])
    stage.wh.create_stream("clicks", schema, time="ts", key="user", slide="1 minute", lifetime="10 minutes")
    report = door.append(clicks, stage.wh, "clicks", batch_id="job-1")
    again = door.append(clicks, stage.wh, "clicks", batch_id="job-1")
    slid = stage.wh.slide("clicks", to="2025-06-02T08:03:00")
    stage.tell(
        f"{report.accepted:,} rows in; the retried job changed nothing: {again.duplicate}; now {show(slid.now)}\n"
    )
    with door.window(spark, stage.wh, "clicks", "2 minutes") as window:
        rows = window.groupBy("page").count().orderBy("count", "page", ascending=False).limit(5).collect()
    stage.table(("page", "clicks in two minutes, by Spark"), [(row["page"], row["count"]) for row in rows])
    return {"accepted": report.accepted, "duplicate": again.duplicate, "top": [[r["page"], r["count"]] for r in rows]}
