"""The demo's scene with periodic queries: minutes pass without anybody asking, and every run is there all the same.

What the runs say is compared with plain arithmetic over all that was generated.
"""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.cli import terminal
from windrow.times import SECOND, show, to_datetime

if TYPE_CHECKING:
    from windrow.demo import Facts, Stage

MINUTES = 4
EACH = "SELECT count(*) AS packets, sum(len) AS bytes FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]"
BUSIEST = (
    "SELECT src, sum(len) AS bytes FROM packets [WINDOW 10 MINUTES SLIDE 1 MINUTE] "
    "GROUP BY src ORDER BY bytes DESC, src LIMIT 5"
)
NEWCOMERS = "SELECT DISTINCT src FROM packets [WINDOW 2 MINUTES SLIDE 2 MINUTES] WHERE src < 50"
TREND = "SELECT strftime(_window_end, '%H:%M') AS minute, packets, bytes FROM each_minute ORDER BY minute"


def again_and_again(stage: "Stage") -> "Facts":
    """Queries that are answered as their windows slide."""
    wh = stage.wh
    stage.tell("Three questions are asked once, and answered from now on. One wants every run, and a report of each:")
    stage.typed(
        f'windrow query add each_minute "{EACH}" --missed every --sink html',
        f'windrow query add busiest "{BUSIEST}" --missed every',
        f'windrow query add newcomers "{NEWCOMERS}" --output inserts',
    )
    wh.add_query("each_minute", EACH, missed="every", sink="html")
    wh.add_query("busiest", BUSIEST, missed="every")
    wh.add_query("newcomers", NEWCOMERS, output="inserts")
    stage.tell(f"{MINUTES} minutes pass, and nobody makes a round ('windrow serve' would after each slide). Then:")
    ends = _minutes_pass(stage)
    stage.typed("windrow query run")
    reports = wh.run_due()
    columns = ("query", "slide", "outcome", "rows", "behind", "answered by")
    rows = [(r.query, r.slide, r.outcome, r.rows, f"{r.staleness:g} s", r.how) for r in reports]
    stage.table(columns, rows, right=("slide", "rows", "behind"))
    stage.tell("What was delivered is a table like any other:")
    stage.typed(f'windrow sql "{TREND}"')
    trend = wh.sql(TREND).fetchall()
    stage.table(("minute", "packets", "bytes"), trend, right=("packets", "bytes"))
    equal = [(count, size) for _, count, size in trend] == [_sent(stage, end) for end in ends]
    stage.tell(f"Plain arithmetic gives {'the same' if equal else 'something else'} for each of the minutes.")
    files = sorted(path for path in (wh.path / "results" / "each_minute").glob("*.html") if "latest" not in path.name)
    stage.tell(f"{terminal.count(len(files), 'report')} with a chart: results/each_minute/each_minute-latest.html")
    made = {query.name: query.runs for query in wh.queries()}
    return {"equal": equal, "runs": made, "files": len(files), "trend": [list(row) for row in trend]}


def _minutes_pass(stage: "Stage") -> list[int]:
    """Packets of both probes, minute by minute; gives the ends of the minutes."""
    from windrow.demo import START, generate_packets

    now = stage.wh.stream("packets").now or START
    first = (now - START) // (60 * SECOND) + 1
    ends = []
    for minute in range(first, first + MINUTES):
        for source in ("north", "south"):
            stage.wh.append("packets", generate_packets(stage, minute, max(50, stage.rows // 4)), source=source)
        ends.append(START + minute * 60 * SECOND)
        report = stage.wh.slide("packets", to=to_datetime(ends[-1]))
        stage.tell(f"  slide {report.slide}, now {show(report.now)}: {report.inserted:,} packets in")
    stage.tell("")
    return ends


def _sent(stage: "Stage", end: int) -> tuple[int, int]:
    """Packets and bytes of the minute that ends at `end`."""
    rows = pa.concat_tables(stage.packets)
    ts = rows.column("ts").cast(pa.int64()).to_numpy()
    inside = (ts > end - 60 * SECOND) & (ts <= end)
    return int(inside.sum()), int(rows.column("len").to_numpy()[inside].astype(np.int64).sum())
