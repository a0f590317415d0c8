"""The command `windrow advise`: what layout would serve a stream best, as a table, and why."""

from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import Session, command

if TYPE_CHECKING:
    from windrow.advisor import Advice
    from windrow.indexes.cost_model import Estimate

SHOWN = 8


@click.command(short_help="Say which layout and search key would serve a stream best.")
@click.argument("stream")
@click.option("--all", "every", is_flag=True, help="Show every layout that was compared.")
@click.option("--follow", is_flag=True, help="Turn the stream to the advised layout and search key.")
@click.option("--move", is_flag=True, help="With --follow: move stored rows too.")
@command
def advise(session: Session, stream: str, every: bool, follow: bool, move: bool) -> None:
    """Say which layout and search key would serve a stream best, by what was measured of its rows and queries."""
    if move and not follow:
        raise click.UsageError("--move goes with --follow")
    with session.open(read_only=not follow) as wh:
        found = wh.advise(stream)
        if follow:
            wh.relayout(stream, found.best.index, key=list(found.key), move="now" if move else False)
    if session.json:
        terminal.write_json(advice_json(found))
        return
    shown = found.alternatives if every else found.alternatives[:SHOWN]
    if found.current not in shown:
        shown = (*shown, found.current)
    columns = ("layout", "budget", "update", "probe", "scan", "a slide", "space", "segments")
    terminal.table(columns, [_row(each, found) for each in shown], right=columns[2:])
    terminal.say(f"{found.stream}: {found.why}")
    terminal.say(f"search key {terminal.names(found.key) or 'none'}: {found.key_why}")
    terminal.say(f"row groups of {terminal.size(found.row_group_bytes)}; {found.measured_slides} slides were looked at")


def _row(each: "Estimate", advice: "Advice") -> tuple[str, ...]:
    mark = " (now)" if each.index == advice.current.index else ""
    index = each.index
    budget = f"{index.merge_budget:g}, {index.max_segments}" if index.maintenance == "adaptive" else "-"
    times = (each.update, each.probe, each.scan, each.total)
    return (
        f"{index}{mark}",
        budget,
        *(terminal.milliseconds(time / 1e3) for time in times),
        terminal.size(int(each.space)),
        f"{each.segments:,.0f}",
    )


def advice_json(found: "Advice") -> dict[str, Any]:
    """Advice for machines."""

    def told(each: "Estimate") -> dict[str, Any]:
        index = {name: getattr(each.index, name) for name in each.index.__dataclass_fields__}
        return {**terminal.plain(each), "index": index}

    return {
        "stream": found.stream,
        "workload": terminal.plain(found.workload),
        "current": told(found.current),
        "best": told(found.best),
        "clearly_better": found.clearly_better,
        "alternatives": [told(each) for each in found.alternatives],
        "key": list(found.key),
        "key_why": found.key_why,
        "row_group_bytes": found.row_group_bytes,
        "why": found.why,
        "measured_slides": found.measured_slides,
    }
