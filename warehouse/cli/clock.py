"""Commands that move a stream's clock: slide, and heartbeat for a source that has nothing to send or has failed."""

from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import Failure, Session, command, to_shell_message
from windrow.errors import ClockError, SourceBehindError
from windrow.times import format_time, parse_instant, to_datetime

if TYPE_CHECKING:
    from windrow.slide import SlideReport
    from windrow.warehouse import Warehouse


@click.command()
@click.argument("stream", required=False)
@click.option("--all", "every", is_flag=True, help="Slide every stream.")
@click.option(
    "--to",
    metavar="TIME",
    help="To the last slot end at or before TIME, or now; by default as far as the sources allow.",
)
@click.option(
    "--force", is_flag=True, help="Slide even if a declared source is behind; answers then say who was missing."
)
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, help="Seconds to wait for another slide of the stream."
)
@command
def slide(session: Session, stream: str | None, every: bool, to: str | None, force: bool, timeout: float) -> None:
    """Move a stream's clock: spooled rows come in, expired rows go."""
    if (stream is None) != every:
        raise click.UsageError("name a stream, or give --all")
    reports: list[SlideReport] = []
    refused: list[SourceBehindError | ClockError] = []
    with session.open() as wh:
        views = {view.name for view in wh.views()}  # they follow their inputs
        for name in [name for name in wh.streams() if name not in views] if stream is None else [stream]:
            try:
                reports.append(wh.slide(name, to, force=force, timeout=timeout))
            except (SourceBehindError, ClockError) as error:
                if not every:
                    raise
                refused.append(error)
    if session.json:
        documents = [slide_to_json(report) for report in reports]
        terminal.write_json(documents if every else documents[0])
    else:
        show_slides(reports)
    if refused:
        messages = [to_shell_message(str(error)) for error in refused]
        # One that will not pass by itself decides: trying again would never end well.
        raise Failure.of(
            min(refused, key=lambda error: error.temporary),
            ("; " if session.json else "\nwindrow: ").join(messages),
        )


@click.command()
@click.argument("stream")
@click.option("--up-to", metavar="TIME", required=True, help="Until the clock is at TIME or later.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after so long; by default never.")
@command
def wait(session: Session, stream: str, up_to: str, timeout: float | None) -> None:
    """Wait until a stream's clock has reached a time, whoever slides it."""
    with session.open(read_only=True) as wh:
        wh.wait_for(stream, up_to=up_to, timeout=timeout)
        now = wh.now(stream)
    if session.json:
        terminal.write_json({"stream": stream, "now": terminal.format_cell(now)})
    else:
        terminal.say(f"{stream} has reached {format_time(now)}")


def slide_over(wh: "Warehouse", stream: str) -> "SlideReport":
    """Slide a stream over all rows that it has; one that has named sources, as far as these allow."""
    status = wh.stream(stream)
    definition, model = status.definition, status.definition.model
    newest = max((source.progress for source in status.sources if source.progress is not None), default=None)
    if definition.sources or newest is None:
        return wh.slide(stream)
    end = model.slot_end(model.slot_of(newest + definition.slack))
    try:
        return wh.slide(stream, to_datetime(end))
    except ClockError:  # the slot of the newest rows ends too far ahead
        return wh.slide(stream)


def slide_to_json(report: "SlideReport") -> dict[str, Any]:
    """Convert the report of a slide for JSON."""
    return terminal.to_record(report, instants=("now",))


def show_slides(reports: "list[SlideReport]") -> None:
    """Print slides as a table, and why a stream did not move."""
    columns = ("stream", "slide", "now", "inserted", "late", "expired", "touched", "rebuilt", "written", "took")
    if slid := [report for report in reports if report.moved]:
        terminal.print_table(columns, [format_slide(report) for report in slid], right=columns[3:])
    for report in slid:
        if report.missing:
            terminal.say(f"{report.stream}: went on without {terminal.names(report.missing)}")
        if report.relayout_problem:
            terminal.say(f"{report.stream}: no rows were moved to the new layout: {report.relayout_problem}")
        if report.publish_problem:
            terminal.say(report.publish_problem)
        if report.erased_late:
            size = terminal.size(report.erased_late)
            terminal.say(f"{report.stream}: expired rows were due to be erased from their files, {size} written anew")
        if report.limit_problem:
            terminal.say(report.limit_problem)
        if report.spoken_for:
            terminal.say(f"{report.stream}: max_skew spoke for {terminal.names(report.spoken_for)}")
    for report in reports:
        if not report.moved:
            reason = (
                f"it waits for {terminal.format_waiting(report.waiting_for)}"
                if report.waiting_for
                else "there is nothing to slide to"
            )
            clock = f"stays at {format_time(report.now)}" if report.now is not None else "has not slid yet"
            terminal.say(f"{report.stream} {clock}: {reason}")


def format_slide(report: "SlideReport") -> tuple[str, ...]:
    """Format one slide for a table."""
    numbers = (report.inserted, report.late, report.expired, report.touched, report.rebuilt)
    return (
        report.stream,
        str(report.slide),
        format_time(report.now),
        *(f"{number:,}" for number in numbers),
        terminal.size(report.bytes_written),
        terminal.format_seconds(report.seconds),
    )


@click.command(short_help="Say that a source has nothing more to come.")
@click.argument("stream")
@click.option("--source", metavar="NAME", help="Who speaks; may be left out if the stream has one source.")
@click.option("--up-to", metavar="TIME", help="Nothing at or before TIME will follow.")
@click.option("--covers", metavar="TIME", help="With --up-to: all since TIME has come, which closes gaps there.")
@click.option(
    "--failed", metavar="WHY", help="Declare the source failed instead; its next append or heartbeat revives it."
)
@command
def heartbeat(
    session: Session, stream: str, source: str | None, up_to: str | None, covers: str | None, failed: str | None
) -> None:
    """Say that a source has nothing more up to a time, or that it has failed."""
    if (up_to is None) == (failed is None):
        raise click.UsageError("give either --up-to TIME or --failed WHY")
    if covers is not None and up_to is None:
        raise click.UsageError("--covers goes with --up-to")
    if failed is not None and source is None:
        raise click.UsageError("--failed needs --source NAME")
    with session.open() as wh:
        if up_to is not None:
            wh.heartbeat(stream, source=source, up_to=up_to, covers=covers)
        else:
            wh.fail_source(stream, str(source), str(failed))
        status = wh.stream(stream)
    name = source or (status.definition.sources[0] if status.definition.sources else "default")
    if session.json:
        source_status = next(s for s in status.sources if s.name == name)
        document = terminal.to_record(source_status, instants=("progress", "effective", "heard"))
        terminal.write_json({"stream": stream, **document, "waiting_for": list(status.waiting_for)})
    elif up_to is not None:
        terminal.say(
            f"{stream}: nothing at or before {format_time(parse_instant(up_to))} will follow from source {name!r}"
        )
    else:
        consequence = (
            "the stream waits for it"
            if status.definition.on_source_failure == "block"
            else "the stream goes on without it"
        )
        terminal.say(f"{stream}: source {name!r} has failed ({failed}); {consequence}")
