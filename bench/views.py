"""`bench views`: a join of windows maintained from new rows, beside the same view computed from scratch at each slide.

The batch is equally large for every window, so only the computation from scratch grows with the window. Strict views
follow (`strict_views.py`).
"""

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench import machine, report, strict_views
from bench.measures import Timing, timed
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.times import to_datetime

DELTA = 60_000_000
ROWS, KEYS = 10_000, 400_000
"""Rows that arrive in each stream in a slot, and the keys that they are drawn from."""
SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("x", pa.float64()), ("who", pa.string())])
JOIN = "SELECT a.k, a.x AS ax, b.x AS bx, a.who FROM a JOIN b ON a.k = b.k"
THREE = "SELECT a.k, a.x AS ax, b.x AS bx, c.x AS cx FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
STRICT = " LIMIT 1000000000"
"""Makes a plan strict without making it dearer: its view is computed from scratch at each slide, and stored alike."""
UPDATES = ("slide without view", "slide with view", "slide with view from scratch", "run the join alone")
ASKED = ("probe the view", "SQL on the view", "run the join for the key", "run the join alone")
Figures = dict[str, dict[str, dict[str, list[float]]]]
"""By join, slots and measure: milliseconds in the median, of wall time and of processor time."""


def sizes(*, quick: bool) -> tuple[int, ...]:
    """Slots in the window."""
    return (10, 50) if quick else (10, 25, 50, 100)


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return 2 * len(sizes(quick=quick)) + strict_views.work()


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Measure, save, and give the report (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    steps = 4 if quick else 15
    figures: Figures = {"two": {}, "three": {}}
    for slots in sizes(quick=quick):
        for name, streams, sql in (("two", "ab", JOIN), ("three", "abc", THREE)):
            advance(f"{name} streams, {slots} slots")
            with TemporaryDirectory(dir=scratch) as folder:
                figures[name][str(slots)] = measured(Path(folder), slots, streams, sql, steps)
    with TemporaryDirectory(dir=scratch) as folder:
        strict = strict_views.measured(Path(folder), steps=steps, advance=advance)
    aims = [*_list_aims(figures), *strict_views.list_aims(strict)]
    results.write("views", {"machine": host, "figures": figures, "strict": strict, "wanted": verdicts(aims)})
    return "\n\n".join([_report(host, figures, aims), *strict_views.describe(strict)]), aims


class JoinedStreams:
    """Streams that slide together; the slide of the last one updates the view."""

    def __init__(self, path: Path, slots: int, streams: str, sql: str) -> None:
        self.wh = windrow.open(path)
        self.streams = streams
        self.slot = ORIGIN // DELTA
        for name in streams:
            self.wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime=f"{slots} minutes")
        for _ in range(slots):
            self.step()
        self.wh.create_view("joined", sql, key="k")

    def step(self) -> tuple[Timing, Timing]:
        """Append a batch to each stream and slide them; gives the times of the first and of the last slide."""
        self.slot += 1
        for number, name in enumerate(self.streams):
            self.wh.append(name, batch(self.slot, number))
        os.sync()
        to = to_datetime(self.slot * DELTA)
        taken = [timed(lambda name=name: self.wh.slide(name, to=to))[0] for name in self.streams]
        return taken[0], taken[-1]


def batch(slot: int, stream: int) -> pa.Table:
    """The rows of one slot of one stream."""
    chance = np.random.default_rng((slot, stream))
    ts = (slot - 1) * DELTA + 1 + np.sort(chance.integers(0, DELTA - 1, ROWS))
    who = np.char.add("host-", chance.integers(0, 500, ROWS).astype(str))
    keys, values = chance.integers(0, KEYS, ROWS), chance.random(ROWS)
    columns = [pa.array(ts).cast(SCHEMA.field("ts").type), pa.array(keys), pa.array(values), pa.array(who)]
    return pa.table(columns, schema=SCHEMA)


def measured(folder: Path, slots: int, streams: str, sql: str, steps: int) -> dict[str, list[float]]:
    """Milliseconds in the median, by the clock and of the processor, once the windows are full."""
    maintained, recomputed = (
        JoinedStreams(folder / "kept", slots, streams, sql),
        JoinedStreams(folder / "anew", slots, streams, sql + STRICT),
    )
    times: dict[str, list[Timing]] = {}
    for number in range(steps):
        alone, with_view = maintained.step()
        _, from_scratch = recomputed.step()
        running, rows = timed(lambda: recomputed.wh.sql(sql).arrow())
        for name, timing in zip(UPDATES, (alone, with_view, from_scratch, running), strict=True):
            times.setdefault(name, []).append(timing)
        _compare(maintained, recomputed, rows)
        _ask(times, maintained, sql, int(np.random.default_rng(number).choice(rows.column("k"))))
    figures = {
        name: [1e3 * statistics.median(t.wall for t in taken), 1e3 * statistics.median(t.cpu for t in taken)]
        for name, taken in times.items()
    }
    last = maintained.wh.stream("joined").last
    figures["results"] = [float(maintained.wh.stream("joined").live_rows)]
    figures["new results"] = [float(0 if last is None else last.inserted)]
    maintained.wh.close()
    recomputed.wh.close()
    return figures


def _ask(times: dict[str, list[Timing]], maintained: JoinedStreams, sql: str, key: int) -> None:
    """All results of one key: out of the view, and by running the join for it."""
    questions: dict[str, Callable[[], Any]] = {
        "probe the view": lambda: maintained.wh.probe("joined", key),
        "SQL on the view": lambda: maintained.wh.sql(f"SELECT * FROM joined WHERE k = {key}").arrow(),
        "run the join for the key": lambda: maintained.wh.sql(f"{sql} WHERE a.k = {key}").arrow(),
    }
    for _ in range(3):
        counts = set()
        for name, question in questions.items():
            timing, rows = timed(question)
            times.setdefault(name, []).append(timing)
            counts.add(rows.num_rows)
        if len(counts) != 1:
            raise WrongAnswerError(f"key {key}: {counts} rows, by probe and by the join")


def _compare(maintained: JoinedStreams, anew: JoinedStreams, rows: pa.Table) -> None:
    counted = "SELECT count(*), sum(ax)::DECIMAL(18, 3), sum(bx)::DECIMAL(18, 3) FROM joined"
    one, other = (world.wh.sql(counted).fetchall() for world in (maintained, anew))
    if one != other or one[0][0] != rows.num_rows:
        raise WrongAnswerError(f"the view holds {one}, from scratch it is {other}, the join gives {rows.num_rows}")


def _list_aims(figures: Figures) -> list[Aim]:
    at_fifty = {name: of[0] for name, of in figures["two"]["50"].items()}
    cpu = {name: of[-1] for name, of in figures["two"]["50"].items()}
    scratch = "slide with view from scratch"
    return [
        Aim("slide with view / from scratch, 50 slots", at_fifty["slide with view"] / at_fifty[scratch], 0.1),
        Aim("the same in processor time", cpu["slide with view"] / cpu[scratch], 0.1),
        Aim(
            "probe the view / run the join, 50 slots", at_fifty["probe the view"] / at_fifty["run the join alone"], 0.05
        ),
        Aim("the same in processor time", cpu["probe the view"] / cpu["run the join alone"], 0.05),
    ]


def _report(host: dict[str, Any], figures: Figures, aims: list[Aim]) -> str:
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims)]
    for name, by_slots in figures.items():
        header = ["slots", "results", "new in a slide", *UPDATES, "scratch / new rows"]
        rows = []
        for slots, of in by_slots.items():
            ratios = [a / b for a, b in zip(of["slide with view from scratch"], of["slide with view"], strict=True)]
            cells = [f"{of['results'][0]:,.0f}", f"{of['new results'][0]:,.0f}", *map(_cell, (of[m] for m in UPDATES))]
            rows.append([slots, *cells, f"{ratios[0]:.1f}x ({ratios[1]:.1f}x)"])
        asked = [[slots, *(_cell(of[measure]) for measure in ASKED)] for slots, of in by_slots.items()]
        parts += [
            f"### A join of {name} streams: {ROWS:,} rows each in a slot, {KEYS:,} keys",
            "Milliseconds in the median, in brackets processor time (of all threads).",
            report.table(header, rows),
            "All results of one key:",
            report.table(["slots", *ASKED], asked),
        ]
    return "\n\n".join(parts)


def _cell(both: list[float]) -> str:
    return f"{both[0]:.1f} ({both[1]:.1f})"
