"""The command `windrow ingest`: runs a Spark job, shows its progress, and prints what it brought in."""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.server_log import warnings_on_stderr
from windrow.cli.session import Failure, Session, check_rejected, command, fail_rejected_option

if TYPE_CHECKING:
    from windrow.ingest.session import Totals
    from windrow.warehouse import Warehouse

_PROGRESS_SECONDS = 30.0
"""Between two lines of progress without a terminal."""

_OPTIONS: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
    click.option(
        "--format",
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
        help="Of the input, as in 'ts TIMESTAMP, src BIGINT'; CSV, JSON and Kafka have the stream's.",
    ),
    click.option(
        "--avro-schema",
        "avro_file",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Of Kafka's messages, if they are Avro and not JSON.",
    ),
    click.option("--sql", metavar="SELECT", help="What becomes of the input, as in 'SELECT … FROM input'."),
    click.option(
        "--where", metavar="CONDITION", help="Only these rows; the others still tell how far the source has come."
    ),
    click.option("--source", metavar="NAME", help="Which of the stream's sources this is."),
    click.option("--source-column", metavar="NAME", help="The text column that says which source each row is of."),
    click.option("--batch-id", metavar="ID", help="Ingesting the same source and ID again changes nothing."),
    click.option(
        "--checkpoint", metavar="FOLDER", help="Where Spark remembers what it has read; makes the ingest a stream."
    ),
    click.option("--continuous", is_flag=True, help="Go on until stopped (SIGTERM, Ctrl-C); needs --checkpoint."),
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
    click.option(
        "--max-rejected", type=click.FloatRange(0, 1), metavar="SHARE", help="Append nothing if more are rejected."
    ),
    click.option("--evolve", type=click.Choice(("add", "widen")), help="Take new columns in; or wider types, too."),
    fail_rejected_option,
    click.option("--master", metavar="URL", help="Spark's master; by default what spark-submit says, or local[*]."),
    click.option("--packages", metavar="COORDINATES", help="Maven packages for Spark, as for Kafka."),
    click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of Spark."),
]
_ONLY_CONTINUOUS = ("trigger", "heartbeat", "lag")


def _add_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command()
@click.argument("stream")
@_add_options
@command
def ingest(
    session: Session,
    stream: str,
    master: str | None,
    packages: str | None,
    settings: tuple[str, ...],
    options: tuple[str, ...],
    fail_rejected: int | None,
    avro_file: str | None,
    **job_options: Any,
) -> None:
    """Ingest rows with Spark: files, Kafka, sockets, whatever Spark can read.

    Without --checkpoint the input is one batch: all of it is in, or nothing. With --checkpoint it is read as a stream,
    exactly once over restarts, until everything is read or, with --continuous, until the command is stopped.
    """
    _check_options(job_options)
    if avro_file is not None and (job_options["format"] != "kafka" or job_options["sql"] or job_options["schema"]):
        raise click.UsageError("--avro-schema goes with --format kafka, and without --sql and --schema")
    source, conf = parse_pairs(options, "--option"), parse_pairs(settings, "--conf")
    started = time.monotonic()
    from windrow.spark import load_module

    job = load_module("windrow.ingest.job")
    with session.open() as wh:
        wh.stream(stream)
        with (
            shorten_spark_errors(),
            warnings_on_stderr(),
            job.spark_session(master, packages, conf) as spark,
            _show_progress(wh, stream) as report_progress,
        ):
            avro_schema = None if avro_file is None else Path(avro_file).read_text()
            described = job.Job(stream=stream, options=source, avro_schema=avro_schema, **job_options)
            counted = described.run(wh, spark, report_progress)
        show_summary(session, wh, stream, counted, time.monotonic() - started)
    if counted.failure:
        raise Failure(f"stream {stream!r}: the ingest failed: {counted.failure}")
    check_rejected(stream, counted.rejected, fail_rejected)


def _check_options(options: dict[str, Any]) -> None:
    if options["continuous"] and not options["checkpoint"]:
        raise click.UsageError("--continuous needs --checkpoint, or a restart would read everything again")
    if options["source_column"] and (options["source"] or not options["checkpoint"]):
        raise click.UsageError("--source-column goes with --checkpoint, and without --source")
    if options["checkpoint"] and options["batch_id"]:
        raise click.UsageError("--batch-id is for a single batch; with --checkpoint batches have ids of their own")
    misplaced = [name for name in _ONLY_CONTINUOUS if options[name] and not options["continuous"]]
    if misplaced:
        raise click.UsageError(f"--{misplaced[0]} is for an ingest that goes on; add --continuous and --checkpoint")


def parse_pairs(arguments: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse KEY=VALUE arguments."""
    for argument in arguments:
        if "=" not in argument:
            raise click.UsageError(f"{option} is KEY=VALUE, not {argument!r}")
    return dict(argument.split("=", 1) for argument in arguments)


@contextlib.contextmanager
def shorten_spark_errors() -> Iterator[None]:
    """Raise Spark's errors in one line; Spark's own log has the rest."""
    from windrow.ingest.errors import SPARK_ERRORS, describe_error

    try:
        with warnings.catch_warnings():
            # PySpark 4.3 warns of pandas 3 whenever Arrow is used; our rows do not go through pandas.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    except SPARK_ERRORS as error:
        raise Failure(f"Spark: {describe_error(error)}") from error


@contextlib.contextmanager
def _show_progress(wh: "Warehouse", stream: str) -> "Iterator[Callable[[Totals], None]]":
    """Show how many rows have come: with a bar on a terminal, elsewhere with a line now and then."""
    last_line = [time.monotonic(), 0]

    def print_progress(counted: "Totals") -> None:
        if time.monotonic() - last_line[0] >= _PROGRESS_SECONDS and counted.rows > last_line[1]:
            last_line[:] = [time.monotonic(), counted.rows]
            terminal.note(
                f"{stream}: {terminal.count(counted.rows, 'row')} so far, now {terminal.format_cell(wh.now(stream))}"
            )

    if not sys.stderr.isatty():
        yield print_progress
        return
    with terminal.progress_bar(f"ingest {stream}") as report_progress:
        yield lambda counted: report_progress(counted.rows)


def show_summary(session: Session, wh: "Warehouse", stream: str, counted: "Totals", seconds: float) -> None:
    """Print what the ingest brought in."""
    now = wh.now(stream)
    if session.json:
        terminal.write_json(
            {
                "stream": stream,
                **terminal.to_record(counted),
                "now": None if now is None else terminal.format_cell(now),
                "seconds": seconds,
            }
        )
        return
    if counted.duplicates:
        batches = "1 batch" if counted.duplicates == 1 else f"{counted.duplicates:,} batches"
        terminal.say(f"{stream}: {batches} had been ingested before; nothing was changed by that")
    late = f", {counted.late:,} of them late" if counted.late else ""
    rate = f"{counted.rows / max(seconds, 1e-9):,.0f} rows/s"
    terminal.say(f"{stream}: {terminal.count(counted.accepted, 'row')} ingested{late} in {seconds:.1f} s ({rate})")
    for reason, number in sorted(counted.rejected.items()):
        terminal.say(f"{stream}: {terminal.count(number, 'row')} rejected: {reason}")
    if counted.offsets:
        behind = sum(counted.lag.values())
        terminal.say(f"{stream}: {terminal.count(len(counted.offsets), 'partition')} read, {behind:,} offsets behind")
    clock = "not slid yet" if now is None else f"now {terminal.format_cell(now)}"
    terminal.say(f"{stream}: {terminal.count(counted.slides, 'slide')}, {clock}")
