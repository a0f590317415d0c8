"""Kafka: rows from the values of messages, the partition that each came from, and how far the partitions are read.

A partition is a source of its own, called topic-partition. So a partition that lags is waited for, and its rows are not
late because another one was faster.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

FORMAT = "kafka"
SOURCE_COLUMN = "_source"
"""The column that says which partition a row came from."""
# Otherwise the first query of a checkpoint would read only what comes after it was started.
STREAM_OPTIONS = {"startingOffsets": "earliest"}
_VALUE = "_value"
_DESCRIPTION = "KafkaV2["
"""How Spark describes its Kafka source."""


def parse_messages(
    messages: DataFrame, schema: T.StructType | str, options: Mapping[str, str], avro_schema: str | None
) -> DataFrame:
    """Turn the values of messages into rows, with the partition that each came from in `SOURCE_COLUMN`.

    Args:
        messages: As Spark's Kafka source gives them.
        schema: Of JSON values.
        options: Of the ingest; those for the parser, such as ``mode`` or ``timestampFormat``, count here.
        avro_schema: The schema of Avro values, as JSON text; None if the values are JSON.
    """
    # Otherwise Spark would read a malformed value as nulls, without an error.
    parsing = {"mode": "FAILFAST"} | {name: value for name, value in options.items() if not name.startswith("kafka.")}
    if avro_schema is None:
        value = F.from_json(F.col("value").cast("string"), schema, parsing)
    else:
        from pyspark.sql.avro.functions import from_avro

        value = from_avro("value", avro_schema, {"mode": parsing["mode"]})
    source = F.concat_ws("-", "topic", F.col("partition").cast("string"))
    return messages.select(value.alias(_VALUE), source.alias(SOURCE_COLUMN)).select(f"{_VALUE}.*", SOURCE_COLUMN)


def reads_only_kafka(progress: Mapping[str, Any]) -> bool:
    """Whether all that a query reads is Kafka, by an entry of Spark's progress."""
    sources = progress["sources"]
    return bool(sources) and all(str(source["description"]).startswith(_DESCRIPTION) for source in sources)


def describe_batch(query: Any) -> dict[str, Any]:
    """The batch under way of a query, as far as an entry of Spark's progress would have it when it is done."""
    if not hasattr(query, "_jsq"):  # a client of Spark Connect
        return {"sources": []}
    execution = query._jsq.streamingQuery()
    latest, ends, sources = execution.latestOffsets(), execution.availableOffsets().iterator(), []
    while ends.hasNext():
        end = ends.next()
        source, newest = {"description": end._1().toString()}, latest.get(end._1())
        if source["description"].startswith(_DESCRIPTION):
            offsets = {"endOffset": end._2()} | ({"latestOffset": newest.get()} if newest.isDefined() else {})
            sources.append(source | {name: json.loads(offset.json()) for name, offset in offsets.items()})
    return {"sources": sources}


def find_positions(progress: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Find the next offset of each partition, and how many offsets are behind it, in an entry of Spark's progress."""
    offsets: dict[str, int] = {}
    lag: dict[str, int] = {}
    for source in progress["sources"]:
        end, latest = source.get("endOffset"), source.get("latestOffset")
        if not str(source["description"]).startswith(_DESCRIPTION) or not isinstance(end, dict):
            continue
        for topic, partitions in end.items():
            newest = latest.get(topic, {}) if isinstance(latest, dict) else {}
            for partition, offset in partitions.items():
                name = f"{topic}-{partition}"
                offsets[name] = offset
                lag[name] = max(0, newest.get(partition, offset) - offset)
    return dict(sorted(offsets.items())), dict(sorted(lag.items()))
