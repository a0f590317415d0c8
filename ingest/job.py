"""The command `windrow ingest`: a Spark job from the command line, as a batch or as a query that runs until stopped.

`spark-submit` takes this file as it is: the options behind it are those of the command.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow import cli_terminal as terminal
from windrow.cli_support import Failure, Session, TopGroup, command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windrow.definitions import StreamDefinition
    from windrow.ingest.totals import Totals
    from windrow.warehouse import Warehouse

_TYPED = ("csv", "json")
_LOOK_EVERY = 0.5


_OPTIONS: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
    click.option(
        "--format",
        "kind",
        default="parquet",
        show_default=True,
        metavar="NAME",
        help="Spark's name of the source: csv, json, parquet, text, rate, socket, kafka, …",
    ),
    click.option("--load", "paths", metavar="PATH", multiple=True, help="What to read; may be given several times."),
    click.option(
        "--option", "options", metavar="KEY=VALUE", multiple=True, help="An option of the source, in Spark's words."
    ),
    click.option(
        "--schema",
        metavar="DDL",
        help="Of the input, as in 'ts TIMESTAMP, src BIGINT'; CSV and JSON have the stream's.",
    ),
    click.option("--sql", metavar="SELECT", help="What becomes of the input, as in 'SELECT … FROM input'."),
    click.option(
        "--where", metavar="CONDITION", help="Only these rows; the others still tell how far the source has come."
    ),
    click.option("--source", metavar="NAME", help="Which of the stream's sources this is."),
    click.option("--batch-id", metavar="ID", help="Ingesting the same source and ID again changes nothing."),
    click.option("--continuous", is_flag=True, help="Go on until stopped (SIGTERM, Ctrl-C); needs --checkpoint."),
    click.option(
        "--checkpoint", metavar="FOLDER", help="Where Spark remembers what it has read; makes the ingest a stream."
    ),
    click.option("--trigger", metavar="INTERVAL", help="How often to look for new rows; by default at once."),
    click.option(
        "--heartbeat", metavar="INTERVAL", help="While a live source is silent, promise that nothing old will follow."
    ),
    click.option(
        "--lag",
        metavar="DURATION",
        help="How far behind the wall clock that promise is; by default the stream's slack.",
    ),
    click.option("--slide/--no-slide", default=True, show_default=True, help="Slide as far as the sources allow."),
    click.option(
        "--max-spool-bytes", type=click.IntRange(min=0), metavar="N", help="Wait while more than this is spooled."
    ),
    click.option("--master", metavar="URL", help="Spark's master; by default what spark-submit says, or local[*]."),
    click.option("--packages", metavar="COORDINATES", help="Maven packages for Spark, as for Kafka."),
    click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of Spark."),
]


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@click.argument("stream")
@_with_options
@command
def ingest(session: Session, stream: str, **given: Any) -> None:
    """Ingest rows with Spark: files, Kafka, sockets, whatever Spark can read.

    Without --checkpoint the input is one batch: all of it is in, or nothing. With --checkpoint it is read as a stream,
    exactly once over restarts, until everything is read or, with --continuous, until the command is stopped.
    """
    if given["continuous"] and not given["checkpoint"]:
        raise click.UsageError("--continuous needs --checkpoint, or a restart would read everything again")
    if given["checkpoint"] and given["batch_id"]:
        raise click.UsageError("--batch-id is for a single batch; with --checkpoint batches have ids of their own")
    options = pairs(given["options"], "--option")
    settings = pairs(given["settings"], "--conf")
    started = time.monotonic()
    with session.open() as wh:
        definition = wh.stream(stream).definition
        spark = spark_session(given["master"], given["packages"], settings)
        streaming = given["checkpoint"] is not None
        rows = load(spark, definition, given["kind"], given["paths"], options, given["schema"], streaming)
        if given["sql"]:
            rows.createOrReplaceTempView("input")
            rows = spark.sql(given["sql"])
        counted = run_query(wh, stream, rows, given) if streaming else run_batch(wh, stream, rows, given)
        summary(session, wh, stream, counted, time.monotonic() - started)
    if counted.failure:
        raise Failure(counted.failure)


def pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    """KEY=VALUE arguments."""
    for item in given:
        if "=" not in item:
            raise click.UsageError(f"{option} is KEY=VALUE, not {item!r}")
    return dict(item.split("=", 1) for item in given)


def spark_session(master: str | None, packages: str | None, settings: dict[str, str]) -> "SparkSession":
    """Spark, as it was asked for; under spark-submit, as that has set it up."""
    from windrow.ingest.sessions import use_this_interpreter

    use_this_interpreter()
    from pyspark.sql import SparkSession

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
    return spark


def load(
    spark: "SparkSession",
    definition: "StreamDefinition",
    kind: str,
    paths: tuple[str, ...],
    options: dict[str, str],
    schema: str | None,
    streaming: bool,
) -> "DataFrame":
    """The input as a DataFrame."""
    from windrow.ingest.types import read_schema

    reader: Any = (spark.readStream if streaming else spark.read).format(kind).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    elif kind in _TYPED or (streaming and paths):
        reader = reader.schema(read_schema(definition, definition.schema.names))
    if streaming and len(paths) > 1:
        raise click.UsageError("a stream reads one folder: give one --load")
    resolved = [path if "://" in path else str(Path(path).absolute()) for path in paths]
    frame: DataFrame = (
        reader.load(resolved[0]) if len(resolved) == 1 else reader.load(resolved) if resolved else reader.load()
    )
    return frame


def run_batch(wh: "Warehouse", stream: str, rows: "DataFrame", given: dict[str, Any]) -> "Totals":
    """One append, and a slide."""
    from windrow.ingest.append import append
    from windrow.ingest.pressure import slid
    from windrow.ingest.totals import Totals

    counted = Totals()
    if given["where"]:
        rows = rows.where(given["where"])
    report = append(
        rows, wh, stream, source=given["source"], batch_id=given["batch_id"], max_spool_bytes=given["max_spool_bytes"]
    )
    counted.add(report)
    while given["slide"] and slid(wh, stream):
        counted.slides += 1
    return counted


def run_query(wh: "Warehouse", stream: str, rows: "DataFrame", given: dict[str, Any]) -> "Totals":
    """A streaming query until it ends or is stopped, with its progress told as it goes."""
    from windrow.ingest.streaming import MAX_SPOOL_BYTES, stop, totals, write_stream

    limit = given["max_spool_bytes"]
    query = write_stream(
        rows,
        wh,
        stream,
        checkpoint=str(Path(given["checkpoint"]).absolute()),
        slide="auto" if given["slide"] else None,
        source=given["source"],
        where=given["where"],
        trigger=given["trigger"] if given["continuous"] else "available now",
        heartbeat=given["heartbeat"],
        lag=given["lag"],
        max_spool_bytes=MAX_SPOOL_BYTES if limit is None else limit,
    )
    counted = totals(query)
    try:
        with terminal.progress(f"ingest {stream}") as moved:
            while query.isActive:
                time.sleep(_LOOK_EVERY)
                moved(counted.rows)
    except KeyboardInterrupt:
        stop(query)
    failure = query.exception()
    if failure is not None and counted.failure is None:
        counted.failure = str(failure).strip().splitlines()[0]
    return counted


def summary(session: Session, wh: "Warehouse", stream: str, counted: "Totals", seconds: float) -> None:
    """What came of it."""
    now = wh.now(stream)
    if session.json:
        terminal.write_json({"stream": stream, **terminal.plain(counted), "now": now, "seconds": seconds})
        return
    if counted.duplicates:
        terminal.say(f"{stream}: {terminal.count(counted.duplicates, 'batch')} had been ingested before")
    late = f", {counted.late:,} of them late" if counted.late else ""
    rate = f"{counted.rows / max(seconds, 1e-9):,.0f} rows/s"
    terminal.say(f"{stream}: {terminal.count(counted.accepted, 'row')} ingested{late} in {seconds:.1f} s ({rate})")
    for reason, number in sorted(counted.rejected.items()):
        terminal.say(f"{stream}: {terminal.count(number, 'row')} rejected: {reason}")
    terminal.say(f"{stream}: {terminal.count(counted.slides, 'slide')}, now {terminal.cell(now)}")


if __name__ == "__main__":
    TopGroup(homes={"ingest": "windrow.ingest.job:ingest"}, name="windrow")(["ingest", *sys.argv[1:]])
