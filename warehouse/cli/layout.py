"""Commands that change a live stream: relayout, alter."""

from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.literals import parse_column
from windrow.cli.session import Session, command
from windrow.errors import DefinitionError

if TYPE_CHECKING:
    from windrow.relayout import RelayoutReport
    from windrow.warehouse import Warehouse

MEGABYTE = 1 << 20


@click.command(short_help="Turn a stream to another layout or search key.")
@click.argument("name")
@click.option("--index", metavar="LAYOUT", help="A layout such as 'round-robin 4 4', or auto.")
@click.option("--maintenance", metavar="KIND", help="rebuild, norebuild or adaptive; goes with --index.")
@click.option("--key", metavar="COLUMN", multiple=True, help="Another search key; several times for several columns.")
@click.option("--no-key", is_flag=True, help="Take the search key away.")
@click.option("--move", is_flag=True, help="Move stored rows too, now, step by step.")
@click.option("--move-with-slides", is_flag=True, help="Let each slide move stored rows, one step at a time.")
@click.option("--step", is_flag=True, help="Move one step of what older layouts hold.")
@click.option("--cancel", is_flag=True, help="Go back to the layout and key before the change that is under way.")
@click.option("--budget", metavar="MB", type=float, default=64.0, show_default=True, help="Megabytes of one step.")
@click.option("--timeout", metavar="SECONDS", type=float, default=60.0, show_default=True, help="Wait for a slide.")
@command
def relayout(
    session: Session,
    name: str,
    index: str | None,
    maintenance: str | None,
    key: tuple[str, ...],
    no_key: bool,
    move: bool,
    move_with_slides: bool,
    step: bool,
    cancel: bool,
    budget: float,
    timeout: float,
) -> None:
    """Turn a stream to another layout or search key while it is read and written, or say how far that has come."""
    from windrow.cli.streams import parse_index

    if key and no_key:
        raise click.UsageError("give either --key or --no-key")
    if sum((move, move_with_slides, step, cancel)) > 1:
        raise click.UsageError("give one of --move, --move-with-slides, --step and --cancel")
    if maintenance is not None and index is None:
        raise click.UsageError("--maintenance goes with --index")
    changing = index is not None or bool(key) or no_key
    if changing and (step or cancel):
        raise click.UsageError("--step and --cancel go without --index and --key")
    options: dict[str, Any] = {"budget": max(1, int(budget * MEGABYTE)), "timeout": timeout}
    with session.open() as wh:
        if cancel:
            report = wh.cancel_relayout(name, timeout=timeout)
        elif step:
            report = wh.relayout_step(name, **options)
        elif changing or move or move_with_slides:
            layout = None if index is None else parse_index(index, maintenance)
            keys = [] if no_key else list(key) or None
            how = "now" if move else "steps" if move_with_slides else False
            report = _turn(wh, name, layout, keys, how, options)
        else:
            from windrow.relayout import relayout_report

            report = relayout_report(wh._store, name)
    if session.json:
        terminal.write_json(report_json(report))
    else:
        terminal.say(in_words(report))


def _turn(wh: "Warehouse", name: str, layout: Any, keys: Any, how: Any, options: dict[str, Any]) -> "RelayoutReport":
    if how != "now":
        return wh.relayout(name, layout, key=keys, move=how, **options)
    with terminal.progress("move", wh.stream(name).bytes, in_bytes=True) as moved:
        return wh.relayout(
            name, layout, key=keys, move=how, progress=lambda report: moved(report.moved_bytes), **options
        )


def report_json(report: "RelayoutReport") -> dict[str, Any]:
    """A change of layout for machines."""
    return {**terminal.plain(report), "done": report.done}


def in_words(report: "RelayoutReport") -> str:
    """Where a change of layout stands, for people."""
    key = f"key {terminal.names(report.key)}" if report.key else "no key"
    into = f"{report.stream}: rows go to {report.index}, {key}"
    moved = f"; {terminal.size(report.moved_bytes)} moved" if report.moved_bytes else ""
    return f"{into}{moved}; {left_in_words(report)}"


def left_in_words(report: "RelayoutReport") -> str:
    """What lies in older layouts, and how it leaves them."""
    if report.done:
        return "nothing lies in older layouts"
    left = f"{terminal.size(report.left_bytes)} of {terminal.size(report.total_bytes)} in older layouts"
    how = (
        f"each slide moves up to {terminal.size(report.budget)}"
        if report.budget
        else "they empty out as their rows expire"
    )
    return f"{left}, {how}"


@click.command(short_help="Add a column, change lifetime, slack, skew or max_ahead.")
@click.argument("name")
@click.option("--add-column", metavar="NAME:TYPE", help="A nullable column; stored rows have null there.")
@click.option("--lifetime", metavar="DURATION", help="How long every row lives, stored ones too; or forever.")
@click.option("--max-lifetime", metavar="DURATION", help="The longest that rows to come may live, with --expires.")
@click.option("--slack", metavar="DURATION", help="How far out of order a source's rows may be.")
@click.option("--max-skew", metavar="DURATION", help="How far a silent source may fall behind; or never.")
@click.option("--max-ahead", metavar="DURATION", help="How far ahead of the wall clock a row may be.")
@click.option("--timeout", metavar="SECONDS", type=float, default=60.0, show_default=True, help="Wait for a slide.")
@command
def alter(session: Session, name: str, add_column: str | None, timeout: float, **options: str | None) -> None:
    """Change a stream while it is in use; what is not named stays as it is."""
    from windrow.cli.streams import stream_json

    if add_column is None and all(value is None for value in options.values()):
        raise click.UsageError("say what to change: --add-column, --lifetime, --max-lifetime, --slack, --max-skew …")
    column = None if add_column is None else parse_column(add_column)
    if column is not None and not column.nullable:
        raise DefinitionError(
            f"stream {name!r}: column {column.name!r} cannot be added as not null; stored rows have no value for it"
        )
    with session.open() as wh:
        wh.alter_stream(name, add_column=column, timeout=timeout, **options)
        status = wh.stream(name)
    if session.json:
        terminal.write_json(stream_json(status))
    else:
        told = [] if column is None else [f"column {column.name} {column.type}"]
        told += [f"{option.replace('_', ' ')} {value}" for option, value in options.items() if value is not None]
        terminal.say(f"altered stream {name}: {', '.join(told)}; {terminal.count(status.live_rows, 'live row')}")
