"""The demo's scene with the advisor: which layout would serve a stream, and the move of a live one to another."""

from typing import TYPE_CHECKING

from windrow.cli import terminal
from windrow.indexes.partitioners import Index

if TYPE_CHECKING:
    from windrow.demo import Facts, Stage
    from windrow.indexes.cost_model import Estimate

SHOWN = 4
ASKED = "SELECT host, count(*), max(exp) FROM leases GROUP BY host ORDER BY host"


def another_layout(stage: "Stage") -> "Facts":
    """Ask the advisor, turn a live stream to another layout and key, and compare answers before and after."""
    advice = stage.wh.advise("leases")
    stage.tell("Nobody has to know how many cells an index should have. The advisor goes by what was measured:")
    stage.typed("windrow advise leases")
    layouts: dict[str, Estimate] = {}
    for each in advice.alternatives:  # some differ only in how much they merge
        layouts.setdefault(str(each.index), each)
    shown = list(layouts.values())[:SHOWN]
    if advice.current not in shown:
        shown.append(advice.current)
    times = [[terminal.milliseconds(t / 1e3) for t in (e.update, e.probe, e.scan, e.total)] for e in shown]
    marks = [" (now)" if each.index == advice.current.index else "" for each in shown]
    rows = [(f"{each.index}{mark}", *own) for each, mark, own in zip(shown, marks, times, strict=True)]
    columns = ("layout", "update", "probe", "scan", "a slide")
    stage.table(columns, rows, right=columns[1:])
    before = stage.wh.sql(ASKED).fetchall()
    stage.tell("A live stream can move to another layout and search key; nothing pauses, and every answer stays exact:")
    stage.typed("windrow stream relayout leases --index 'round-robin 2 2' --key host --move")
    report = stage.wh.relayout("leases", Index("round-robin", 2, 2), key="host", move="now")
    equal = stage.wh.sql(ASKED).fetchall() == before
    stage.tell(
        f"leases is {report.index} by {terminal.names(report.key)} now, {terminal.size(report.moved_bytes)} were moved;"
        f" all {terminal.count(len(before), 'host')} have {'the same rows as before' if equal else 'OTHER ROWS'}."
    )
    return {"layout": str(report.index), "key": list(report.key), "done": report.done, "equal": equal}
