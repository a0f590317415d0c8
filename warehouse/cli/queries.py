"""Commands for periodic queries: add, list, plan, results, run, drop."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.ingest import parse_pairs, shorten_spark_errors
from windrow.cli.session import EXIT_TEMPORARY, Failure, Group, Session, command, if_not_exists_option, sending
from windrow.cli.sql import OutputFormat, explain_query_errors, params_option, parse_params, write_answer
from windrow.cli.streams import show_dropped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windrow.queries.periodic.registry import QueryStatus
    from windrow.queries.periodic.runner import RunReport

MISSED_POLICIES = ("latest", "every", "skip")
OUTPUT_KINDS = ("whole", "inserts", "deletes")
_PLANNING_MASTER = "local[1]"
"""Where a statement of Spark is planned when it is registered; nothing runs then."""


def spark_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of commands that start a Spark session."""
    master = click.option("--spark", "master", metavar="MASTER", help="Also run queries of engine spark, there.")
    setting = click.option("--conf", "spark_settings", metavar="KEY=VALUE", multiple=True, help="A setting of Spark.")
    return master(setting(function))


@contextlib.contextmanager
def spark_session(master: str | None, settings: tuple[str, ...]) -> "Iterator[SparkSession | None]":
    """The session that was asked for, if any."""
    conf = parse_pairs(settings, "--conf")
    if master is None:
        if conf:
            raise click.UsageError("--conf goes with --spark MASTER")
        yield None
        return
    from windrow.spark import load_module

    sessions = load_module("windrow.ingest.session")
    with shorten_spark_errors(), sessions.quiet_session("windrow queries", master, conf) as spark:
        yield spark


@click.group(cls=Group)
def query() -> None:
    """Register periodic queries, run them, and read what they delivered."""


@query.command("add")
@click.argument("name")
@click.argument("statement")
@params_option
@click.option("--slide", metavar="DURATION", help="The period of streams whose clause names none.")
@click.option("--lag", metavar="DURATION", help="How long after a calendar unit, as in [DAY 'UTC'], its run is due.")
@click.option(
    "--sink",
    metavar="KIND[:TARGET]",
    help="Also write or send each run: parquet, csv, jsonl, html, webhook:URL, command:PATH.",
)
@click.option("--priority", type=int, default=0, show_default=True, help="Higher ones are run first.")
@click.option(
    "--missed",
    type=click.Choice(MISSED_POLICIES),
    default="latest",
    show_default=True,
    help="What becomes of missed runs.",
)
@click.option(
    "--output", type=click.Choice(OUTPUT_KINDS), default="whole", show_default=True, help="The answer, or its changes."
)
@click.option(
    "--isolation",
    type=click.Choice(("snapshot", "latest")),
    default="snapshot",
    show_default=True,
    help="Slides that commit while it runs are for its next run, or absorbed.",
)
@click.option("--revise", metavar="DURATION", help="How long late rows make a delivered window run again.")
@click.option("--on-gap", metavar="POLICY", default="tell", show_default=True, help="tell, error or wait.")
@click.option("--deadline", metavar="DURATION", help="How long a run waits for what is missing, with --on-gap wait.")
@click.option("--keep", metavar="RUNS|DURATION", help="What the results table keeps.  [default: 1000 runs]")
@click.option("--timeout", type=float, metavar="SECONDS", help="Cancel a run after this.  [default: 600]")
@click.option(
    "--engine",
    type=click.Choice(("duckdb", "spark")),
    default="duckdb",
    show_default=True,
    help="Whose SQL it is, and who runs it.",
)
@click.option("--backfill", metavar="DURATION", help="Also make the runs of so long ago, from the streams' history.")
@if_not_exists_option
@command
@sending
def add(
    session: Session,
    name: str,
    statement: str,
    params: tuple[str, ...],
    keep: str | None,
    allowed: dict[str, Any],
    **options: Any,
) -> None:
    """Register a query, after running it once.

    STATEMENT is SQL with [WINDOW 10 MINUTES SLIDE 2 MINUTES] behind the streams that pace it; - reads it from
    standard input.
    """
    text = sys.stdin.read() if statement == "-" else statement
    retention = int(keep) if keep is not None and keep.isdigit() else keep
    planning = _PLANNING_MASTER if options["engine"] == "spark" else None
    with explain_query_errors(), spark_session(planning, ()) as spark, session.open(**allowed) as wh:
        added = wh.add_query(name, text, params=parse_params(params), keep=retention, spark=spark, **options)
    if session.json:
        terminal.write_json(_query_to_json(added))
        return
    destination = "" if added.sink == "table" else f", to {added.sink}"
    engine = "" if added.engine == "duckdb" else f", by {added.engine}"
    streams = terminal.names(added.streams)
    earlier = f", {terminal.count(added.to_backfill, 'earlier run')} to make" if added.to_backfill else ""
    terminal.say(
        f"{name}: every {added.period} of {streams}, missed runs: {added.missed}{destination}{engine}{earlier}"
    )


@query.command("backfill")
@click.argument("name")
@click.option("--since", metavar="TIME", required=True, help="Runs whose windows end after this time.")
@command
def backfill(session: Session, name: str, since: str) -> None:
    """Let a query make the runs that it would have made since a time, from the history of its streams.

    'windrow query run' and 'windrow serve' make them, oldest first, when nothing else is due.
    """
    with session.open() as wh:
        status = wh.backfill(name, since=since)
    if session.json:
        terminal.write_json(_query_to_json(status))
        return
    terminal.say(f"{status.name}: {terminal.count(status.to_backfill, 'earlier run')} to make")


def _query_to_json(query: "QueryStatus") -> dict[str, Any]:
    return terminal.to_record(query, instants=("created", "delivered_at", "retry_at"))


@query.command("list")
@command
def list_(session: Session) -> None:
    """List the queries and how they are doing."""
    with session.open(read_only=True) as wh:
        statuses = wh.queries()
    if session.json:
        terminal.write_json([_query_to_json(query) for query in statuses])
        return
    columns = ("query", "every", "of", "sink", "priority", "missed", "runs", "slide", "took", "state")
    rows = [
        (
            query.name,
            query.period,
            terminal.names(query.streams),
            query.sink,
            query.priority,
            query.missed,
            f"{query.runs:,}",
            "-" if query.slide is None else query.slide,
            "-" if query.seconds is None else terminal.format_seconds(query.seconds),
            _describe_state(query),
        )
        for query in statuses
    ]
    terminal.print_table(columns, rows, right=("priority", "runs", "slide", "took"))


def _describe_state(query: "QueryStatus") -> str:
    if query.error is not None:
        return f"{terminal.count(query.failures, 'failure')}: {query.error}" if query.failures else query.error
    if query.waiting:
        return f"{terminal.count(query.waiting, 'run')} to make{' by Spark' if query.engine == 'spark' else ''}"
    if query.to_backfill and not query.due:
        return f"{terminal.count(query.to_backfill, 'earlier run')} to make"
    if query.outdated:
        return f"{terminal.count(query.outdated, 'outdated window')}"
    if query.due and query.engine == "spark":
        return "due; waits for rounds with a Spark session"
    return "due" if query.due else "up to date"


@query.command("plan")
@command
def plan(session: Session) -> None:
    """Show which queries are answered together, what they share and why, in the order in which they run."""
    with session.open(read_only=True) as wh:
        groups = wh.query_plan()
    if session.json:
        terminal.write_json([terminal.to_record(group) for group in groups])
        return
    columns = ("group", "queries", "after", "answered by", "why")
    rows = [
        (number, terminal.names(group.queries), terminal.names(group.after), group.by, "; ".join(group.why))
        for number, group in enumerate(groups, 1)
    ]
    terminal.print_table(columns, rows, right=("group",))


@query.command("results")
@click.argument("name")
@click.option("--slide", type=int, metavar="N", help="Only the run of that slide.")
@click.option("--last", is_flag=True, help="Only the last run.")
@click.option("--revisions", is_flag=True, help="All revisions of each window, not only the newest.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Show at most N rows; a table shows 20 by default."
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
@click.option("--output", metavar="FILE", help="Write to a .parquet, .arrow, .csv or .jsonl file.")
@command
def results(
    session: Session,
    name: str,
    slide: int | None,
    last: bool,
    revisions: bool,
    limit: int | None,
    as_csv: bool,
    output: str | None,
) -> None:
    """Read what a query has delivered, oldest run first."""
    if sum((session.json, as_csv, output is not None)) > 1:
        raise click.UsageError("choose one of --json, --csv and --output")
    if last and slide is not None:
        raise click.UsageError("give either --slide or --last")
    with session.open(read_only=True) as wh:
        if last:
            slide = next((query.slide for query in wh.queries() if query.name.lower() == name.lower()), None)
        with wh.results(name, slide=slide, revisions=revisions) as answer:
            write_answer(answer, OutputFormat(session.json, as_csv, output, limit))


policy_option = click.option(
    "--policy",
    metavar="NAME",
    default="hybrid+late-pending",
    show_default=True,
    help="Which due queries are answered together and in which order: no-sharing, aggressive, conservative, hybrid, "
    "hybrid+late, hybrid+late-pending.",
)


@query.command("run")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--now", is_flag=True, help="Run them for the newest slide even if they are not due.")
@policy_option
@spark_options
@command
@sending
def run(
    session: Session,
    names: tuple[str, ...],
    now: bool,
    policy: Any,
    master: str | None,
    spark_settings: tuple[str, ...],
    allowed: dict[str, Any],
) -> None:
    """Run what is due and deliver it; all queries, or those that are named."""
    with spark_session(master, spark_settings) as spark, session.open(**allowed) as wh:
        reports = wh.run_due(names or None, now=now, policy=policy, spark=spark)
    if session.json:
        terminal.write_json([terminal.to_record(report) for report in reports])
    elif reports:
        columns = ("query", "slide", "outcome", "rows", "took", "behind", "answered by", "file or error")
        terminal.print_table(
            columns, [_format_run(report) for report in reports], right=("slide", "rows", "took", "behind")
        )
    else:
        terminal.say("nothing is due")
    failed = [report.query for report in reports if report.outcome == "failed"]
    if failed:
        raise Failure(f"{terminal.names(failed)} failed; 'windrow query list' says why and when it is tried again")
    unplaced = [report.query for report in reports if report.outcome == "unplaced"]
    if unplaced:
        message = f"{terminal.names(unplaced)}: results are kept, but their files could not be written yet"
        raise Failure(message, exit_code=EXIT_TEMPORARY)


def _format_run(report: "RunReport") -> tuple[Any, ...]:
    return (
        report.query,
        f"{report.slide} r{report.revision}" if report.revision else report.slide,
        f"{report.outcome}, backfilled" if report.backfilled else report.outcome,
        f"{report.rows:,}",
        terminal.format_seconds(report.seconds),
        f"{report.staleness:g} s",
        report.how,
        report.error or report.file or "",
    )


@query.command("drop")
@click.argument("name")
@command
def drop(session: Session, name: str) -> None:
    """Remove a query and its results; files in a folder of yours stay."""
    with session.open() as wh:
        wh.drop_query(name)
    show_dropped(session, "query", name)
