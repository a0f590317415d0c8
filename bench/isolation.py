"""`bench isolation`: the experiment of the thesis's section 7.5, its four schedulers and ours over slots of a stream.

Sub-windows are read through the planner. Time is counted: a read and a slide cost what they cost on this machine in the
median, and what the scheduler itself needs is measured, so that other programs do not decide who wins.
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
from bench import machine, report
from bench.runner import WrongAnswerError
from bench.statistics import Wanted
from bench.workload import ORIGIN
from windrow.queries import execution
from windrow.queries.policies import POLICIES, Executor, Finished, Task
from windrow.times import to_datetime

DELTA = 10_000_000
ROWS = 200
READS_PER_SECOND = 100
"""Reads that fit into what the thesis calls a second: with 100 sub-windows nearly every query then meets a slide."""
SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("src", pa.int64()), ("len", pa.int64())])


@dataclass(frozen=True)
class Setting:
    """One column of the thesis's figures: sub-windows, their length in seconds, periodic and one-time queries."""

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
            self.read(Task("warm", 1), slot, pinned)

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

    def read(self, task: Task, slot: int, pinned: Any) -> int:
        """The bytes of one sub-window."""
        del task
        if slot not in self.parts:
            start, stop = (to_datetime(at * DELTA).strftime("%Y-%m-%d %H:%M:%S") for at in (slot - 1, slot))
            text = f"SELECT sum(len)::BIGINT FROM packets [FROM TIMESTAMP '{start}' TO TIMESTAMP '{stop}']"
            started = time.perf_counter()
            self.parts[slot] = int(execution.sql(self.wh._store, text, snapshot=pinned).fetchall()[0][0])
            self.reads.append(time.perf_counter() - started)
        return self.parts[slot]

    def merge(self, task: Task, parts: list[int]) -> int:
        """Of the window."""
        del task
        return sum(parts)


def workload(setting: Setting, period: float, until: float) -> tuple[list[Task], list[tuple[float, Task]]]:
    """Periodic queries in groups of five that share one scan, and five one-time queries between two slides."""
    chance = random.Random(setting.count * 1000 + setting.seconds)
    groups = [
        Task(f"group {number}", max(chance.randint(1, setting.count) for _ in range(5)))
        for number in range(setting.periodic // 5)
    ]
    once, at = [], 0.0
    while setting.once and (at := at + chance.expovariate(5 / period)) < until:
        once.append((at, Task("once", chance.randint(1, setting.count), priority=0)))
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
    """Means, in the thesis's seconds."""
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


def bench(*, quick: bool, scratch: Path | None, advance: Callable[[str], None]) -> tuple[str, list[Wanted]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    found: dict[Setting, dict[str, dict[str, float]]] = {}
    for count in dict.fromkeys(setting.count for setting in settings(quick=quick)):
        with TemporaryDirectory(dir=scratch) as folder:
            stream = Stream(Path(folder) / "warehouse", count)
            for setting in settings(quick=quick):
                if setting.count == count:
                    found[setting] = run(stream, setting, 12 if quick else count, advance)
            stream.wh.close()
    here = machine.describe(scratch or Path.cwd())
    parts = [machine.in_words(here), "### What was wanted", report.wanted_table(wanted(found))]
    parts.append(
        "The thesis: algorithm 7 (LWS) aborts over half of all queries in the worst case, algorithm 8 (TTU) none; "
        "TTU's throughput is at most 4 % below Serial's; Serial answers one-time queries slowest, TTU has the freshest "
        "answers. Times are in its seconds, throughput in queries (groups of five periodic ones) per second."
    )
    for title, once in (("Periodic queries", False), ("Periodic and one-time queries", True)):
        measures = ["aborted %", "staleness", "inter-execution", "throughput"]
        measures += ["one-time response", "one-time staleness"] if once else []
        parts += [f"### {title}", _table({s: f for s, f in found.items() if s.once == once}, measures)]
    return "\n\n".join(parts), wanted(found)


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return len(settings(quick=quick)) * len(POLICIES)


def wanted(found: dict[Setting, dict[str, dict[str, float]]]) -> list[Wanted]:
    """The thesis's statements, and what ours must be."""

    def worst(value: Callable[[dict[str, dict[str, float]]], float]) -> float:
        return max(value(figures) for figures in found.values())

    def slower(name: str) -> float:
        return worst(lambda f: 1 - f[name]["throughput"] / f["Serial"]["throughput"])

    return [
        Wanted("LWS: share of queries not aborted in the worst case", 1 - worst(_aborts("LWS")) / 100, 0.5),
        Wanted("TTU: aborted, %", worst(_aborts("TTU")), 0.0),
        Wanted("apart: aborted, %", worst(_aborts("apart")), 0.0),
        Wanted("TTU: throughput below Serial's, as a share", slower("TTU"), 0.04),
        Wanted("apart: throughput below Serial's, as a share", slower("apart"), 0.04),
        Wanted("apart: staleness / TTU's", worst(lambda f: f["apart"]["staleness"] / f["TTU"]["staleness"]), 1.05),
        Wanted("apart: staleness / Serial's", worst(lambda f: f["apart"]["staleness"] / f["Serial"]["staleness"]), 1.0),
    ]


def _aborts(name: str) -> Callable[[dict[str, dict[str, float]]], float]:
    return lambda figures: figures[name]["aborted %"]


def _table(found: dict[Setting, dict[str, dict[str, float]]], measures: list[str]) -> str:
    rows = []
    for setting, figures in found.items():
        for measure in measures:
            rows.append([f"{setting}: {measure}", *(_figure(figures[name][measure]) for name in POLICIES)])
    return report.table(["", *POLICIES], rows)


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
