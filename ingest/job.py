"""The ingest job that `windrow ingest` runs: one batch, or a streaming query that goes on until it is stopped.

`spark-submit` can run this file directly, with the options of the command behind it.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from windrow.definitions import StreamDefinition
from windrow.errors import DefinitionError
from windrow.ingest import kafka
from windrow.ingest.append import append
from windrow.ingest.backpressure import try_slide
from windrow.ingest.errors import describe_error
from windrow.ingest.schemas import build_read_schema
from windrow.ingest.session import Totals, use_this_interpreter
from windrow.ingest.stream import DEFAULT_MAX_SPOOL_BYTES, stop, totals, write_stream
from windrow.warehouse import Evolution, Warehouse

_TEXT_FORMATS = ("csv", "json")
"""Formats whose files do not name the types of their columns."""
_POLL_SECONDS = 0.5
"""How often the progress of a streaming query is reported."""

ProgressCallback = Callable[[Totals], None]


@dataclass(frozen=True)
class Job:
    """The input of an ingest and its options. A job with a checkpoint reads its input as a stream."""

    stream: str
    format: str = "parquet"
    paths: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    schema: str | None = None
    sql: str | None = None
    where: str | None = None
    source: str | None = None
    source_column: str | None = None
    avro_schema: str | None = None
    batch_id: str | None = None
    checkpoint: str | None = None
    continuous: bool = False
    trigger: str | None = None
    heartbeat: str | None = None
    lag: str | None = None
    slide: bool = True
    max_spool_bytes: int | None = None
    max_rejected: float | None = None
    evolve: Evolution | None = None

    def run(self, warehouse: Warehouse, spark: SparkSession, report_progress: ProgressCallback) -> Totals:
        """Ingest the input, calling `report_progress` from time to time."""
        definition = warehouse.stream(self.stream).definition
        rows = self.load(spark, definition)
        if self.sql is not None:
            rows.createOrReplaceTempView("input")
            rows = spark.sql(self.sql)
        source_column = self.source_column
        if self.format == kafka.FORMAT and self.sql is None and source_column is None:
            # A stream that declares one source has all partitions under it.
            if self.checkpoint is None or self.source is not None or len(definition.sources) == 1:
                rows = rows.drop(kafka.SOURCE_COLUMN)
            else:
                source_column = kafka.SOURCE_COLUMN
        if self.checkpoint is None:
            return self._batch(warehouse, rows)
        return self._query(warehouse, rows, source_column, report_progress)

    def load(self, spark: SparkSession, definition: StreamDefinition) -> DataFrame:
        """Load the input as a DataFrame; text formats have the stream's columns unless a schema was given."""
        streaming = self.checkpoint is not None
        if streaming and len(self.paths) > 1:
            raise DefinitionError(f"a stream reads one folder, not {len(self.paths)}; give one --load")
        # Otherwise Spark would read a malformed record as nulls, without an error.
        strict = {"mode": "FAILFAST"} if self.format in _TEXT_FORMATS else {}
        reader: Any = (spark.readStream if streaming else spark.read).format(self.format)
        reader = reader.options(**strict)
        if self.format == kafka.FORMAT:
            messages = reader.options(**(kafka.STREAM_OPTIONS if streaming else {})).options(**self.options).load()
            if self.sql is not None:
                return messages  # type: ignore[no-any-return]
            schema = self.schema or build_read_schema(definition, definition.schema.names)
            return kafka.parse_messages(messages, schema, self.options, self.avro_schema)
        reader = reader.options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        elif self.format in _TEXT_FORMATS or (streaming and self.paths and self.format != "text"):
            reader = reader.schema(build_read_schema(definition, definition.schema.names))
        urls = [path if "://" in path else str(Path(path).absolute()) for path in self.paths]
        frame: DataFrame = reader.load(urls[0] if len(urls) == 1 else urls or None)
        return frame

    def _batch(self, warehouse: Warehouse, rows: DataFrame) -> Totals:
        counted = Totals()
        counted.add(
            append(
                rows,
                warehouse,
                self.stream,
                source=self.source,
                batch_id=self.batch_id,
                where=self.where,
                max_spool_bytes=self.max_spool_bytes,
                max_rejected=self.max_rejected,
                evolve=self.evolve,
            )
        )
        while self.slide and try_slide(warehouse, self.stream):
            counted.slides += 1
        return counted

    def _query(
        self, warehouse: Warehouse, rows: DataFrame, source_column: str | None, report_progress: ProgressCallback
    ) -> Totals:
        query = write_stream(
            rows,
            warehouse,
            self.stream,
            checkpoint=str(Path(self.checkpoint or "").absolute()),
            slide="auto" if self.slide else None,
            source=self.source,
            source_column=source_column,
            where=self.where,
            trigger=self.trigger if self.continuous else "available now",
            heartbeat=self.heartbeat,
            lag=self.lag,
            max_spool_bytes=DEFAULT_MAX_SPOOL_BYTES if self.max_spool_bytes is None else self.max_spool_bytes,
            max_rejected=self.max_rejected,
            evolve=self.evolve,
        )
        counted = totals(query)
        try:
            while query.isActive:
                time.sleep(_POLL_SECONDS)
                report_progress(counted)
        except KeyboardInterrupt:
            stop(query)
        totals(query)
        failure = query.exception()
        if failure is not None and counted.failure is None:
            counted.failure = describe_error(failure)
        return counted


@contextmanager
def spark_session(master: str | None, packages: str | None, settings: dict[str, str]) -> Iterator[SparkSession]:
    """Use the running session, which spark-submit has set up, or start one as asked and stop it afterwards."""
    use_this_interpreter()
    running = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName("windrow ingest")
    if master is not None:
        builder = builder.master(master)
    if packages is not None:
        builder = builder.config("spark.jars.packages", packages)
    if not sys.stderr.isatty():
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


if __name__ == "__main__":
    from windrow.cli.session import TopGroup

    TopGroup(locations={"ingest": "windrow.cli.ingest:ingest"}, name="windrow")(["ingest", *sys.argv[1:]])
