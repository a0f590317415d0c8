"""`bench growth`: what an update, a probe and a scan cost as the window, the batch, the keys or the readers grow.

Each point is a warehouse in a process of its own, so that its peak memory can be measured. Slopes are fitted to the
logarithms of both axes, so 0 is flat and 1 is proportional.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, plots, report
from bench.growth_child import Point
from bench.results import Results, verdicts
from bench.statistics import Aim

ROOT = Path(__file__).resolve().parent.parent

Series = dict[str, list[Point]]
AXES = {
    "window": ("live MB", lambda point: point.window_rows * point.row_bytes / 1e6),
    "batch": ("rows in a batch", lambda point: point.batch_rows),
    "keys": ("distinct keys", lambda point: point.keys),
    "readers": ("reader processes", lambda point: point.readers),
}
"""What each series varies, in words and as a number."""
LEAST = {"peak": 1.0}
"""What is less than this is none: memory rises and falls by some pages whatever one does."""
COLUMNS = ("append", "slide", "update", "floor", "probe", "scan", "peak")


def series(*, quick: bool) -> Series:
    """The points of each series."""
    windows = (20, 80, 320) if quick else (100, 300, 1000, 3000, 5000)
    batch = 1_000 if quick else 5_000
    batches = (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    keys = (10, 1_000, 100_000) if quick else (10, 1_000, 100_000, 10_000_000)
    readers = (0, 2) if quick else (0, 1, 2, 4, 8)
    steps = 12 if quick else 36
    return {
        "window": [Point(mb * 1000, batch, steps=steps) for mb in windows],
        "batch": [Point(max(batches) * 2, rows, row_bytes=100, steps=min(steps, 12)) for rows in batches],
        "keys": [Point(50_000 if quick else 1_000_000, batch, keys=n, row_bytes=100, steps=steps) for n in keys],
        "readers": [Point(20_000 if quick else 150_000, batch, readers=n, steps=steps) for n in readers],
    }


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return sum(len(points) for points in series(quick=quick).values())


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Run everything, save it, and give the report (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    measured_before = results.read("growth-points") or {}
    for name, points in series(quick=quick).items():
        for point in points:
            advance(f"{name}: {point}")
            if str(point) not in measured_before:
                measured_before[str(point)] = measured(point, scratch)
                results.write("growth-points", measured_before)
    figures = {
        name: [(float(AXES[name][1](point)), measured_before[str(point)]) for point in points]
        for name, points in series(quick=quick).items()
    }
    aims = [
        Aim("update time by window, fitted slope", slope(figures["window"], "update"), 0.1),
        Aim("probe time by distinct keys, fitted slope", slope(figures["keys"], "probe"), 0.1),
        Aim("peak memory by window, fitted slope", slope(figures["window"], "peak"), 0.1),
        Aim("update with most readers / with none", _last_to_first(figures["readers"], "update"), 2.0),
        Aim("update / sorted write, with most readers / with none", _beside_readers(figures["readers"]), 1.25),
    ]
    results.write("growth", {"machine": host, "figures": figures, "wanted": verdicts(aims)})
    return _report(host, figures, aims), aims


def measured(point: Point, scratch: Path | None) -> dict[str, float]:
    """Of one point, in a process of its own."""
    command = [sys.executable, "-m", "bench.growth_child", json.dumps(asdict(point)), str(scratch or "")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{point} could not be measured: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def slope(points: list[tuple[float, dict[str, float]]], measure: str) -> float:
    """Of the line through the logarithms."""
    x = np.log([size for size, _ in points])
    y = np.log([max(of[measure], LEAST.get(measure, 1e-9)) for _, of in points])
    return float(np.polyfit(x, y, 1)[0])


def _last_to_first(points: list[tuple[float, dict[str, float]]], measure: str) -> float:
    return points[-1][1][measure] / points[0][1][measure]


def _beside_readers(points: list[tuple[float, dict[str, float]]]) -> float:
    """What readers take from an update beyond what they take from a sorted write, which waits for nobody."""
    alone, beside = (of["update"] / of["floor"] for of in (points[0][1], points[-1][1]))
    return beside / alone


def _report(host: dict[str, Any], figures: dict[str, Any], aims: list[Aim]) -> str:
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims)]
    for name, points in figures.items():
        axis = AXES[name][0]
        rows = [[f"{size:,.0f}", *(f"{of[column]:.1f}" for column in COLUMNS)] for size, of in points]
        if name != "readers":
            rows.append(["slope", *(f"{slope(points, column):.2f}" for column in COLUMNS)])
        header = [axis, "append, ms", "slide", "update mean", "sorted write", "probe", "scan", "peak MB"]
        curves = {column: [(size, of[column]) for size, of in points] for column in ("update", "probe", "scan")}
        logarithmic = name != "readers"
        parts += [
            f"### Growing: {axis}",
            report.table(header, rows),
            plots.lines(
                f"growth-{name}",
                f"Milliseconds by {axis}",
                curves,
                x=axis,
                y="ms",
                log_x=logarithmic,
                log_y=logarithmic,
            ),
        ]
    return "\n\n".join(parts)
