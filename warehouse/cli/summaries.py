"""Commands for summaries, which bound what groups of a stream weigh: create, list, show, drop."""

from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import LazyGroup, Session, command, if_not_exists_option
from windrow.cli.streams import show_dropped
from windrow.errors import SummaryError

if TYPE_CHECKING:
    from windrow.queries.synopses.summaries import Summary

summary = LazyGroup(
    name="summary",
    help="Declare summaries of frequent items, look at them, drop them.",
    locations={
        "create": "windrow.cli.summaries:create",
        "list": "windrow.cli.summaries:list_summaries",
        "show": "windrow.cli.summaries:show",
        "drop": "windrow.cli.summaries:drop",
    },
)


@click.command()
@click.argument("name")
@click.argument("statement")
@click.option("--frequent", metavar="N", type=int, default=64, show_default=True, help="Groups kept of each slot.")
@if_not_exists_option
@command
def create(session: Session, name: str, statement: str, frequent: int, **options: Any) -> None:
    """Declare a summary; STATEMENT counts rows, or adds a column up, by groups of a stream.

    It is filled at once from what the stream holds, and moves in its slides from then on.
    """
    with session.open() as wh:
        existed = options["if_not_exists"] and name in [summary.name for summary in wh.summaries()]
        created = wh.create_summary(name, statement, frequent=frequent, **options)
    if session.json:
        terminal.write_json(_to_json(created))
        return
    lists = terminal.count(created.lists, "list")
    outcome = "there is already" if existed else "created"
    terminal.say(f"{outcome} summary {name} of stream {created.stream}: {lists} of {created.frequent}")


def _to_json(summary: "Summary") -> dict[str, Any]:
    return terminal.to_record(summary)


@click.command("list")
@command
def list_summaries(session: Session) -> None:
    """List the summaries."""
    with session.open(read_only=True) as wh:
        summaries = wh.summaries()
    if session.json:
        terminal.write_json([_to_json(each) for each in summaries])
        return
    if not summaries:
        terminal.say("there are no summaries; create one with 'windrow summary create'")
        return
    columns = ("summary", "of", "counts", "by", "frequent", "lists", "bytes")
    rows = [
        (
            each.name,
            each.stream,
            each.counts,
            ", ".join(each.columns),
            f"{each.frequent:,}",
            f"{each.lists:,}",
            f"{each.bytes:,}",
        )
        for each in summaries
    ]
    terminal.print_table(columns, rows, right=("frequent", "lists", "bytes"))


@click.command(short_help="Show one summary.")
@click.argument("name")
@command
def show(session: Session, name: str) -> None:
    """Show one summary: statement, what it counts, how far back, what it takes."""
    with session.open(read_only=True) as wh:
        summaries = wh.summaries()
    summary = next((candidate for candidate in summaries if candidate.name == name), None)
    if summary is None:
        names = ", ".join(candidate.name for candidate in summaries)
        raise SummaryError(f"there is no summary {name!r}; " + (f"there are {names}" if names else "none was created"))
    if session.json:
        terminal.write_json(_to_json(summary))
        return
    terminal.print_pairs(
        [
            ("summary", summary.name),
            ("statement", summary.sql),
            ("stream", summary.stream),
            ("counts", summary.counts),
            ("by", ", ".join(summary.columns)),
            ("frequent", f"{summary.frequent:,}"),
            ("windows", f"of whole slots, up to {summary.window}"),
            ("lists", f"{summary.lists:,}, of {summary.bytes:,} bytes"),
        ]
    )


@click.command(short_help="Drop a summary.")
@click.argument("name")
@command
def drop(session: Session, name: str) -> None:
    """Drop a summary; the rows of its stream stay."""
    with session.open() as wh:
        wh.drop_summary(name)
    show_dropped(session, "summary", name)
