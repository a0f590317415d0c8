"""Commands about what is missing: the gaps of a stream, and the repair of one whose files are damaged."""

from dataclasses import asdict

import click

from windrow.cli import terminal
from windrow.cli.session import Failure, Session, command
from windrow.times import format_time


@click.command(short_help="Show what is missing, or close a gap.")
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Closed gaps too.")
@click.option("--close", "number", metavar="GAP", type=int, help="Close a gap: it has come another way, or is no loss.")
@click.option("--note", metavar="TEXT", default="", help="Why it is closed.")
@command
def gaps(session: Session, name: str | None, every: bool, number: int | None, note: str) -> None:
    """Show the gaps of a stream, or of all: what is known to be missing, since when and why."""
    if note and number is None:
        raise click.UsageError("--note goes with --close")
    with session.open() as wh:
        if number is not None:
            wh.close_gap(number, note=note)
        gaps = wh.gaps(name, closed=every)
    if session.json:
        instants = ("start", "end", "opened", "closed")
        terminal.write_json([terminal.to_record(gap, instants=instants) for gap in gaps])
        return
    if number is not None:
        terminal.say(f"closed gap {number}")
    columns = ("gap", "stream", "source", "kind", "after", "up to", "cause", "closed by")
    shown = columns if every else columns[:-1]
    rows = [
        (
            str(gap.id), gap.stream, gap.source or "all", gap.kind,
            "ever" if gap.start is None else format_time(gap.start), format_time(gap.end), gap.cause, gap.closed_by,
        )
        for gap in gaps
    ]  # fmt: skip
    if rows:
        terminal.print_table(shown, [row[: len(shown)] for row in rows], right=("gap",))
    else:
        terminal.say("nothing is known to be missing")


@click.command(short_help="Go on without files that are damaged or missing.")
@click.argument("stream")
@click.option("--give-up", is_flag=True, help="Give up the rows that cannot be read; without it nothing is changed.")
@click.option("--timeout", metavar="SECONDS", type=float, default=60.0, show_default=True, help="Wait for a slide.")
@command
def repair(session: Session, stream: str, give_up: bool, timeout: float) -> None:
    """Look for damaged files of a stream; with --give-up, save what can be read and go on without the rest."""
    with session.open() as wh:
        report = wh.repair(stream, give_up=give_up, timeout=timeout)
    if session.json:
        terminal.write_json(asdict(report))
    else:
        for problem in report.problems:
            terminal.say(problem)
        if not report.files:
            terminal.say(f"{stream}: no file is damaged")
        elif report.repaired:
            numbers = f"; gap {terminal.names(tuple(map(str, report.gaps)))}" if report.gaps else ""
            lost, saved = (terminal.count(rows, "row") for rows in (report.rows_lost, report.rows_saved))
            terminal.say(f"{stream}: {lost} given up, {saved} saved{numbers}")
    if report.files and not report.repaired:
        lost = terminal.count(report.rows_lost, "row")
        raise Failure(f"{stream}: {lost} cannot be read; restore a backup, or give them up with --give-up")
