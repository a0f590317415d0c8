"""Commands for periodic queries: add, list, plan, results, run, drop."""

import sys
from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import Failure, Session, command
from windrow.cli.sql import OutputFormat, explain_query_errors, params_option, parse_params, write_answer

if TYPE_CHECKING:
    from windrow.queries.periodic.registry import QueryStatus
    from windrow.queries.periodic.runner import RunReport

MISSED_POLICIES = ("latest", "every", "skip")
OUTPUT_KINDS = ("whole", "inserts", "deletes")


@click.group()
def query() -> None:
    """Register periodic queries, run them, and read what they delivered."""


@query.command("add")
@click.argument("name")
@click.argument("statement")
@params_option
@click.option("--slide", metavar="DURATION", help="The period of streams whose clause names none.")
@click.option("--sink", metavar="KIND[:FOLDER]", help="Also write each run to a file: parquet, csv, jsonl or html.")
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
@click.option("--keep", metavar="RUNS|DURATION", help="What the results table keeps.  [default: 1000 runs]")
@click.option("--timeout", type=float, metavar="SECONDS", help="Cancel a run after this.  [default: 600]")
@command
def add(session: Session, name: str, statement: str, params: tuple[str, ...], keep: str | None, **how: Any) -> None:
    """Register a query, after running it once.

    STATEMENT is SQL with [WINDOW 10 MINUTES SLIDE 2 MINUTES] behind the streams that pace it; - reads it from
    standard input.
    """
    text = sys.stdin.read() if statement == "-" else statement
    kept = int(keep) if keep is not None and keep.isdigit() else keep
    with explain_query_errors(), session.open() as wh:
        added = wh.add_query(name, text, params=parse_params(params), keep=kept, **how)
    if session.json:
        terminal.write_json(_query_to_json(added))
        return
    where = "" if added.sink == "table" else f", to {added.sink}"
    terminal.say(f"{name}: every {added.period} of {terminal.names(added.streams)}, missed runs: {added.missed}{where}")


def _query_to_json(query: "QueryStatus") -> dict[str, Any]:
    return terminal.to_record(query, instants=("created", "delivered_at", "retry_at"))


@query.command("list")
@command
def list_(session: Session) -> None:
    """List the queries and how they are doing."""
    with session.open(read_only=True) as wh:
        found = wh.queries()
    if session.json:
        terminal.write_json([_query_to_json(each) for each in found])
        return
    columns = ("query", "every", "of", "sink", "priority", "missed", "runs", "slide", "took", "state")
    rows = [
        (
            each.name,
            each.period,
            terminal.names(each.streams),
            each.sink,
            each.priority,
            each.missed,
            f"{each.runs:,}",
            "-" if each.slide is None else each.slide,
            "-" if each.seconds is None else terminal.format_seconds(each.seconds),
            _describe_state(each),
        )
        for each in found
    ]
    terminal.print_table(columns, rows, right=("priority", "runs", "slide", "took"))


def _describe_state(query: "QueryStatus") -> str:
    if query.error is not None:
        return f"{terminal.count(query.failures, 'failure')}: {query.error}" if query.failures else query.error
    if query.waiting:
        return f"{terminal.count(query.waiting, 'run')} to make"
    return "due" if query.due else "up to date"


@query.command("plan")
@command
def plan(session: Session) -> None:
    """Show which queries are answered together, what they share and why."""
    with session.open(read_only=True) as wh:
        groups = wh.query_plan()
    if session.json:
        terminal.write_json([terminal.to_record(group) for group in groups])
        return
    columns = ("group", "queries", "answered by", "why")
    rows = [
        (number, terminal.names(group.queries), group.by, "; ".join(group.why))
        for number, group in enumerate(groups, 1)
    ]
    terminal.print_table(columns, rows, right=("group",))


@query.command("results")
@click.argument("name")
@click.option("--slide", type=int, metavar="N", help="Only the run of that slide.")
@click.option("--last", is_flag=True, help="Only the last run.")
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
            slide = next((each.slide for each in wh.queries() if each.name.lower() == name.lower()), None)
        with wh.results(name, slide=slide) as answer:
            write_answer(answer, OutputFormat(session.json, as_csv, output, limit))


_policy_option = click.option(
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
@_policy_option
@command
def run(session: Session, names: tuple[str, ...], now: bool, policy: str) -> None:
    """Run what is due and deliver it; all queries, or those that are named."""
    with session.open() as wh:
        reports = wh.run_due(names or None, now=now, policy=policy)
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
        raise Failure(f"{terminal.names(unplaced)}: results are kept, but their files could not be written yet")


def _format_run(report: "RunReport") -> tuple[Any, ...]:
    return (
        report.query,
        report.slide,
        report.outcome,
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
    if session.json:
        terminal.write_json({"query": name, "dropped": True})
    else:
        terminal.say(f"dropped query {name}")


@click.command(short_help="Run periodic queries as their streams slide.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="For metrics and status; 0: any."
)
@click.option("--no-http", is_flag=True, help="Open no port.")
@click.option(
    "--poll", type=click.FloatRange(0.01, 60), default=0.2, show_default=True, help="Seconds between two looks."
)
@_policy_option
@command
def serve(session: Session, port: int, no_http: bool, poll: float, policy: str) -> None:
    """Watch for slides, run what is due, write results; until it is told to stop.

    One line is written for each run. Metrics for Prometheus are on http://127.0.0.1:PORT/metrics, a JSON status on
    /status. A second process on the same warehouse waits and takes over.
    """
    import json
    import signal

    from windrow.queries.periodic.server import PeriodicServer

    def say(text: str) -> None:
        if session.json:
            click.echo(json.dumps({"said": text}))
        else:
            click.echo(text)
        sys.stdout.flush()

    def ran(report: "RunReport") -> None:
        click.echo(json.dumps(terminal.to_record(report)) if session.json else format_log_line(report))
        sys.stdout.flush()

    with session.open() as wh:
        server = PeriodicServer(wh._store, port=None if no_http else port, poll=poll, policy=policy, ran=ran, say=say)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        server.run()


def format_log_line(report: "RunReport") -> str:
    """One run in a log."""
    took = f"{terminal.count(report.rows, 'row')} in {terminal.format_seconds(report.seconds)} by {report.how}"
    late = f", {report.staleness:g} s behind" if report.staleness else ""
    part = "" if report.complete else ", incomplete"
    end = f": {report.error}" if report.error else f" -> {report.file}" if report.file else ""
    return terminal.escape_controls(f"{report.outcome} {report.query} slide {report.slide}, {took}{late}{part}{end}")
