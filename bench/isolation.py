"""`bench isolation`: the experiment of section 7.5 of [1] (docs/references.md), its four schedulers and ours.

Time is virtual, so that other programs do not decide which scheduler wins: a read and a slide cost what they cost on
this machine in the median. Sub-windows are read through the planner.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench import machine, plots, report
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.schedulers import POLICIES, Executor, Finished, ScheduledQuery
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.queries import execution
from windrow.times import to_datetime

DELTA = 10_000_000
ROWS = 200
READS_PER_SECOND = 100
"""Reads that fit into a second of [1]: with 100 sub-windows nearly every query then meets a slide."""
SLIDES = 40
"""Slides of a run at least: with twelve, the share of aborts in the worst case went from 48 to 92 % between runs."""
SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("src", pa.int64()), ("len", pa.int64())])


@dataclass(frozen=True)
class Setting:
    """One column of the figures of [1]: sub-windows, their length in seconds, periodic and one-time queries."""

    count: int
    seconds: int
    periodic: int
    once: bool = False

    def __str__(self) -> str:
        return f"{self.count} × {self.seconds} s, {self.periodic} periodic" + (" + one-time" if self.once else "")


def settings(*, quick: bool) -> list[Setting]:
    """Ten to a hundred sub-windows: short ones with 40 queries, long ones with 100, also with one-time queries."""
    counts = (10, 40, 100) if quick else (10, 25, 50, 75, 100)
    plain = [Setting(count, *kind) for kind in ((1, 40), (5, 100)) for count in counts]
    return plain + [Setting(count, 5, 100, once=True) for count in counts]


_ABOUT = """Times are in the thesis's seconds, throughput in queries (groups of five periodic ones) per second. A read
and a slide are counted at one cost, the median here: throughput can differ only by aborts and by what the scheduler
itself needs, so it does not measure how reads and slides get into each other's way on the disk. How many aborts there
are depends on how many reads are taken to fit between two slides (here {reads} in a second)."""


Figures = dict[Setting, dict[str, dict[str, float]]]


class Stream:
    """A stream whose slots are read one by one, each only once from disk."""

    def __init__(self, path: Path, count: int) -> None:
        self.wh = windrow.open(path)
        self.wh.create_stream(
            "packets", SCHEMA, time="ts", key="src", slide="10 seconds", lifetime=f"{count * 10} seconds"
        )
        self.number = ORIGIN // DELTA
        self.totals: dict[int, int] = {}
        self.parts: dict[int, int] = {}
        self.reads: list[float] = []
        self.slides: list[float] = []
        for _ in range(count):
            self.slide()
        pinned = self.pin()
        for slot in range(self.number - count + 1, self.number + 1):
            self.read(ScheduledQuery("warm", 1), slot, pinned)

    def slide(self) -> int:
        """Append and slide one slot."""
        self.number += 1
        chance = np.random.default_rng(self.number)
        length = chance.integers(1, 100, ROWS)
        self.totals[self.number] = int(length.sum())
        ts = pa.array((self.number - 1) * DELTA + 1 + np.arange(ROWS)).cast(pa.timestamp("us"))
        self.wh.append(
            "packets", pa.table([ts, pa.array(chance.integers(0, 1000, ROWS)), pa.array(length)], schema=SCHEMA)
        )
        started = time.perf_counter()
        self.wh.slide("packets", to=to_datetime(self.number * DELTA))
        self.slides.append(time.perf_counter() - started)
        return self.number

    def pin(self) -> Any:
        """What is there now."""
        return self.wh.snapshot(["packets"])

    def read(self, task: ScheduledQuery, slot: int, pinned: Any) -> int:
        """The bytes of one sub-window."""
        del task
        if slot not in self.parts:
            start, stop = (to_datetime(edge * DELTA).strftime("%Y-%m-%d %H:%M:%S") for edge in (slot - 1, slot))
            text = f"SELECT sum(len)::BIGINT FROM packets [FROM TIMESTAMP '{start}' TO TIMESTAMP '{stop}']"
            started = time.perf_counter()
            self.parts[slot] = int(
                execution.answer_from_snapshot(self.wh._store, text, snapshot=pinned).fetchall()[0][0]
            )
            self.reads.append(time.perf_counter() - started)
        return self.parts[slot]

    def merge(self, task: ScheduledQuery, parts: list[int]) -> int:
        """Of the window."""
        del task
        return sum(parts)


def workload(
    setting: Setting, period: float, until: float
) -> tuple[list[ScheduledQuery], list[tuple[float, ScheduledQuery]]]:
    """Periodic queries in groups of five that share one scan, and five one-time queries between two slides."""
    chance = random.Random(setting.count * 1000 + setting.seconds)
    groups = [
        ScheduledQuery(f"group {number}", max(chance.randint(1, setting.count) for _ in range(5)))
        for number in range(setting.periodic // 5)
    ]
    once, time = [], 0.0
    while setting.once and (time := time + chance.expovariate(5 / period)) < until:
        once.append((time, ScheduledQuery("once", chance.randint(1, setting.count), priority=0)))
    return groups, once


def run(stream: Stream, setting: Setting, slides: int, advance: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """All policies on the same stream and the same questions."""
    figures = {}
    unit = statistics.median(stream.reads)
    costs = {"read": unit, "slide": min(statistics.median(stream.slides), unit * READS_PER_SECOND / 10)}
    period = setting.seconds * READS_PER_SECOND * unit
    for name, policy in POLICIES.items():
        advance(f"{setting}: {name}")
        groups, once = workload(setting, period, slides * period)
        executor = Executor(
            stream, stream.number, setting.count, policy, period, groups, once,
            cost=costs.get,  # what is not in it costs what was measured
        )  # fmt: skip
        done = executor.run(slides * period)
        for finished in done:
            window = range(finished.slide - finished.task.length + 1, finished.slide + 1)
            if finished.answer != sum(stream.totals[slot] for slot in window):
                raise WrongAnswerError(f"{name}: an answer is not that of slide {finished.slide}")
        figures[name] = summarise(done, executor.aborted, period / setting.seconds)
    return figures


def summarise(done: list[Finished], aborted: int, second: float) -> dict[str, float]:
    """Compute means, in seconds of [1]."""
    once = [finished for finished in done if finished.task.priority >= 0]
    again = [finished for finished in done if finished.task.priority < 0]
    ends: dict[str, list[float]] = {}
    for finished in again:
        ends.setdefault(finished.task.name, []).append(finished.at)
    gaps = [later - earlier for times in ends.values() for earlier, later in itertools.pairwise(times)]
    return {
        "aborted %": 100 * aborted / max(1, aborted + len(done)),
        "staleness": _mean([finished.staleness for finished in again]) / second,
        "inter-execution": _mean(gaps) / second,
        "throughput": len(done) / (done[-1].at / second) if done else 0.0,
        "one-time response": _mean([finished.response for finished in once]) / second,
        "one-time staleness": _mean([finished.staleness for finished in once]) / second,
    }


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    by_setting: Figures = {}
    for count in dict.fromkeys(setting.count for setting in settings(quick=quick)):
        with TemporaryDirectory(dir=scratch) as folder:
            stream = Stream(Path(folder) / "warehouse", count)
            for setting in settings(quick=quick):
                if setting.count == count:
                    by_setting[setting] = run(stream, setting, SLIDES if quick else max(SLIDES, count), advance)
            stream.wh.close()
    host = machine.describe(scratch or Path.cwd())
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(list_aims(by_setting))]
    about = _ABOUT.format(reads=READS_PER_SECOND)
    parts += ["### What the thesis says", statements(by_setting), about, *_plots(by_setting)]
    for title, once in (("Periodic queries", False), ("Periodic and one-time queries", True)):
        measures = ["aborted %", "staleness", "inter-execution", "throughput"]
        measures += ["one-time response", "one-time staleness"] if once else []
        parts += [f"### {title}", _table({s: f for s, f in by_setting.items() if s.once == once}, measures)]
    figures = {f"{setting}": of for setting, of in by_setting.items()}
    results.write("isolation", {"machine": host, "figures": figures, "wanted": verdicts(list_aims(by_setting))})
    return "\n\n".join(parts), list_aims(by_setting)


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return len(settings(quick=quick)) * len(POLICIES)


def list_aims(by_setting: Figures) -> list[Aim]:
    """List the statements of [1], and the aims of our scheduler."""

    def worst(value: Callable[[dict[str, dict[str, float]]], float]) -> float:
        return max(value(figures) for figures in by_setting.values())

    def slower(name: str) -> float:
        return worst(lambda f: 1 - f[name]["throughput"] / f["Serial"]["throughput"])

    return [
        Aim("TTU: aborted, %", worst(_aborts("TTU")), 0.0),
        Aim("apart: aborted, %", worst(_aborts("apart")), 0.0),
        Aim("TTU: throughput below Serial's, reads at one cost", slower("TTU"), 0.04),
        Aim("apart: throughput below Serial's, reads at one cost", slower("apart"), 0.04),
        Aim("apart: staleness / TTU's", worst(lambda f: f["apart"]["staleness"] / f["TTU"]["staleness"]), 1.05),
        Aim("apart: staleness / Serial's", worst(lambda f: f["apart"]["staleness"] / f["Serial"]["staleness"]), 1.0),
    ]


def statements(by_setting: Figures) -> str:
    """Compare what [1] says of its schedulers with what was measured here; ours has a column of its own."""
    once = {setting: figures for setting, figures in by_setting.items() if setting.once}

    def least_and_most(measure: str, name: str, peer: str | None = None, of: Figures | None = None) -> str:
        values = [f[name][measure] / (f[peer][measure] if peer else 1) for f in (of or by_setting).values()]
        return f"{min(values):.2f} to {max(values):.2f}"

    def worst_aborts(name: str) -> str:
        return f"{max(_aborts(name)(figures) for figures in by_setting.values()):.0f} %"

    rows = [
        ["algorithm 7 (LWS) aborts over half of all queries at worst", worst_aborts("LWS"), worst_aborts("apart")],
        ["algorithm 8 (TTU) aborts none", worst_aborts("TTU"), worst_aborts("apart")],
    ]
    for statement, measure, peer, among in (
        ("TTU's throughput is at most 4 % below Serial's", "throughput", "Serial", by_setting),
        ("TTU's answers are fresher than Serial's", "staleness", "Serial", by_setting),
        ("and than those of WS", "staleness", "WS", by_setting),
        ("TTU answers one-time queries as quickly as WS", "one-time response", "WS", once),
        ("and more quickly than Serial, which cannot suspend anything", "one-time response", "Serial", once),
        ("its one-time answers are the freshest (Serial's)", "one-time staleness", "Serial", once),
    ):
        cells = [least_and_most(measure, name, peer, among) for name in ("TTU", "apart")]
        rows.append([f"{statement}: {measure} / {peer}'s", *cells])
    return report.table(["the thesis", "its scheduler here", "ours (apart)"], rows)


_PLOTS = (
    ("aborted %", "Aborted queries, 40 periodic queries, slides every second", "% of all runs", 1, False),
    ("staleness", "Staleness, 100 periodic queries, slides every 5 seconds", "seconds", 5, False),
    ("throughput", "Throughput, 40 periodic queries, slides every second", "queries per second", 1, False),
    ("one-time response", "Response time of one-time queries among 100 periodic ones", "seconds", 5, True),
)


def _plots(by_setting: Figures) -> list[str]:
    """Draw figures 7.8, 7.9, 7.11 and 7.12 of [1]: one line per scheduler over the number of sub-windows."""
    drawn = []
    for measure, title, unit, seconds, once in _PLOTS:
        chosen = {s: figures for s, figures in by_setting.items() if (s.seconds, s.once) == (seconds, once)}
        series = {name: [(s.count, figures[name][measure]) for s, figures in chosen.items()] for name in POLICIES}
        file = f"isolation-{measure.replace(' %', '').replace(' ', '-')}"
        drawn.append(plots.lines(file, title, series, x="sub-windows", y=unit))
    return drawn


def _aborts(name: str) -> Callable[[dict[str, dict[str, float]]], float]:
    return lambda figures: figures[name]["aborted %"]


def _table(by_setting: Figures, measures: list[str]) -> str:
    rows = []
    for setting, figures in by_setting.items():
        for measure in measures:
            rows.append([f"{setting}: {measure}", *(_figure(figures[name][measure]) for name in POLICIES)])
    return report.table(["", *POLICIES], rows)


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
