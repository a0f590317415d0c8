"""The part of `bench views` that asks what a slide costs with each kind of view, in a short and in a long window.

The batch stays, and the join view beside them shows what is cheap. The streams are the same for all views; their keys
are as many as twice the rows of the window, so a row has as many partners in each window.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench import report
from bench.measures import Timing, timed
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.times import to_datetime

DELTA = 60_000_000
ROWS, USERS, HOSTS = 10_000, 1_000_000, 500
"""Rows that arrive in each stream in a slot, and the groups that they are drawn from: users unevenly."""
STAMP, WHOLE, TEXT = pa.timestamp("us"), pa.int64(), pa.string()
SCHEMA = pa.schema([("ts", STAMP), ("k", WHOLE), ("u", WHOLE), ("x", WHOLE), ("who", TEXT)])
VIEWS = {
    "join": "SELECT a.k, a.x AS x, b.x AS bx, a.who FROM a JOIN b ON a.k = b.k",
    "ANTI JOIN": "SELECT a.k, a.x, a.who FROM a ANTI JOIN b ON a.k = b.k",
    "LEFT JOIN": "SELECT a.k, a.x AS x, b.x AS bx, a.who FROM a LEFT JOIN b ON a.k = b.k",
    "GROUP BY, 500 groups": "SELECT who, count(*) AS n, sum(x) AS x FROM a GROUP BY who",
    "GROUP BY, a million groups": "SELECT u, count(*) AS n, sum(x) AS x FROM a GROUP BY u",
    "ROWS 10 of a million keys": "SELECT u, x, who FROM a [ROWS 10 PARTITION BY u]",
}
JOIN, NEWEST = "join", "ROWS 10 of a million keys"
FROM_SCRATCH = "the same from scratch"
SHORT, LONG = 20, 200
"""Slots in the window: 200,000 and 2 million rows of each stream."""
Figures = dict[str, dict[str, list[float]]]
"""By view and slots: milliseconds in the median, of wall time and of processor time."""


def work() -> int:
    """How many times `advance` will be called."""
    return 2 * (len(VIEWS) + 1)


def measured(folder: Path, *, steps: int, advance: Callable[[str], None]) -> Figures:
    """What a slide of 10,000 new rows costs with each view."""
    figures: Figures = {}
    for slots in (SHORT, LONG):
        for name, taken in _measure(folder / str(slots), slots, steps, advance):
            both = [1e3 * statistics.median(t.wall for t in taken), 1e3 * statistics.median(t.cpu for t in taken)]
            figures.setdefault(name, {})[str(slots)] = both
    return figures


def _measure(
    folder: Path, slots: int, steps: int, advance: Callable[[str], None]
) -> Iterator[tuple[str, list[Timing]]]:
    """The slides of full windows, with one view after the other."""
    streams = TwoStreams(folder, slots)
    advance(f"no view, {slots * ROWS:,} rows")
    yield "no view", [streams.step() for _ in range(steps + 1)][1:]
    for name, sql in VIEWS.items():
        advance(f"{name}, {slots * ROWS:,} rows")
        yield name, streams.measure_view(sql, steps)
    yield FROM_SCRATCH, streams.measure_view(VIEWS[NEWEST], 2, recompute=True)
    streams.wh.close()


class TwoStreams:
    """Streams that slide together; the slide of `a` is the last one, and moves the view."""

    def __init__(self, path: Path, slots: int) -> None:
        self.wh = windrow.open(path)
        self.slot, self.keys = ORIGIN // DELTA, 2 * slots * ROWS
        for name in "ba":
            self.wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime=f"{slots} minutes")
        for _ in range(SHORT):
            self.step(slots // SHORT)

    def step(self, slots: int = 1) -> Timing:
        """Append the rows of some slots to each stream and slide them; gives the time of the last slide."""
        for number, name in enumerate("ba"):
            batches = [batch(self.slot + ahead, number, self.keys) for ahead in range(1, slots + 1)]
            self.wh.append(name, pa.concat_tables(batches))
        self.slot += slots
        os.sync()
        to = to_datetime(self.slot * DELTA)
        self.wh.slide("b", to=to)
        return timed(lambda: self.wh.slide("a", to=to))[0]

    def measure_view(self, sql: str, steps: int, *, recompute: bool = False) -> list[Timing]:
        """Make a view, slide, compare it with its statement and drop it."""
        view = self.wh.create_view("v", sql, recompute=recompute)
        if view.recomputed is not recompute:
            raise WrongAnswerError(f"{sql} is not kept from new rows: {view.why}")
        taken = [self.step() for _ in range(steps + 1)][1:]
        counted = "SELECT count(*), sum(x)::DECIMAL(38, 0) FROM"
        stored, computed = (self.wh.sql(f"{counted} {source}").fetchall() for source in ("v", f"({sql})"))
        if stored != computed or not stored[0][0]:
            raise WrongAnswerError(f"{sql}: the view holds {stored}, from scratch it is {computed}")
        self.wh.drop_view("v")
        return taken


def batch(slot: int, stream: int, keys: int) -> pa.Table:
    """The rows of one slot of one stream."""
    chance = np.random.default_rng((slot, stream))
    ts = (slot - 1) * DELTA + 1 + np.sort(chance.integers(0, DELTA - 1, ROWS))
    users = (USERS * chance.random(ROWS) ** 2).astype(np.int64)
    who = np.char.add("host-", chance.integers(0, HOSTS, ROWS).astype(str))
    drawn = (ts, chance.integers(0, keys, ROWS), users, chance.integers(0, 1000, ROWS), who)
    return pa.table([pa.array(v).cast(f.type) for v, f in zip(drawn, SCHEMA, strict=True)], schema=SCHEMA)


def list_aims(figures: Figures) -> list[Aim]:
    """What was wanted, in processor time."""
    short, long = ({name: of[str(slots)][1] for name, of in figures.items()} for slots in (SHORT, LONG))
    strict = [name for name in VIEWS if name != JOIN]
    return [
        *(Aim(f"{name}: slide / with a join view, 2 million rows, CPU", long[name] / long[JOIN], 2) for name in strict),
        *(
            Aim(f"{name}: slide with 2 million rows / with 200,000, CPU", long[name] / short[name], 1.5)
            for name in VIEWS
        ),
        Aim(f"{NEWEST}: slide / from scratch, 2 million rows, CPU", long[NEWEST] / long[FROM_SCRATCH], 0.05),
    ]


def describe(figures: Figures) -> list[str]:
    """The section of the report (Markdown)."""
    rows: list[list[Any]] = []
    for name, of in figures.items():
        cells = [f"{of[str(slots)][0]:.1f} ({of[str(slots)][1]:.1f})" for slots in (SHORT, LONG)]
        rows.append([name, *cells, f"{of[str(LONG)][1] / of[str(SHORT)][1]:.1f}x"])
    header = ["slide with", f"{SHORT * ROWS:,} rows", f"{LONG * ROWS:,} rows", "in processor time"]
    return [
        f"### Strict views: {ROWS:,} new rows in a slide, two streams",
        "Milliseconds of the slide that moves the view, in the median; in brackets processor time (of all threads).",
        report.table(header, rows),
    ]
