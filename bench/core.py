"""`bench core`: updates, probes and scans of section 4.4 of [1] (docs/references.md), for Windrow, DuckDB and SQLite.

Beside them stand two lower bounds, which only write, and the growth of cost, memory and directory with the window.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine, memory, report
from bench.measures import PROBE, UPDATE
from bench.results import Results, verdicts
from bench.runner import Case, Contestant, Outcome, contestants, run
from bench.statistics import Aim, Figures, summarise
from bench.systems.duckdb_table import DuckTable
from bench.systems.floors import RawBytes, SortedParquet
from bench.systems.ours import Windrow, WindrowNoRebuild, WindrowRebuild
from bench.systems.sqlite_table import SqliteTable
from bench.workload import SlidingRows

SMALL = SlidingRows(150_000)
LARGE = SlidingRows(1_500_000)
LONG = SlidingRows(1_500_000, slots=360)
"""The large window, in batches as large as those of the small one."""
STEPS, QUICK_STEPS = 36, 24
UNIQUE = {
    quick: SlidingRows(rows, keys=1 << 40, row_bytes=100) for quick, rows in ((True, 300_000), (False, 3_000_000))
}
PEERS = (DuckTable, SqliteTable)
FLOORS = (SortedParquet, RawBytes)
MAINTENANCE = (Windrow, WindrowNoRebuild, WindrowRebuild)


def cases(*, quick: bool) -> dict[str, Case]:
    """The comparisons, by what they are for."""
    times, steps = (1, min(QUICK_STEPS, STEPS)) if quick else (3, STEPS)
    growth = tuple(
        Contestant(f"{system.name} {size}", system, workload)
        for system in (Windrow, WindrowNoRebuild, SortedParquet)
        for size, workload in (("150 MB", SMALL), ("1.5 GB", LONG))
        if not (system is SortedParquet and workload is LONG)
    )
    cases_by_name = {
        "small": Case(
            "Window of 150 MB", contestants([*MAINTENANCE, *PEERS, *FLOORS], SMALL), repetitions=times, steps=steps
        ),
        "growth": Case("Constant batch", growth, repetitions=times, measures=(UPDATE,), steps=steps),
        "unique": Case(
            "Near-unique key", contestants([Windrow, DuckTable], UNIQUE[quick]), measures=(UPDATE, PROBE), steps=steps
        ),
    }
    if not quick:
        cases_by_name["large"] = Case("Window of 1.5 GB", contestants([Windrow, *PEERS, *FLOORS], LARGE), steps=STEPS)
    return cases_by_name


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Run everything, save it, and give the report (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    outcomes: dict[str, Outcome] = {}
    for part, case in cases(quick=quick).items():
        outcome = results.load(case)
        if outcome is None:
            outcome = run(case, scratch, advance)
            results.save(outcome, host)
        outcomes[part] = outcome
    saved = results.read("memory")
    peaks: memory.Peaks = saved["peaks"] if saved else memory.run(quick=quick, scratch=scratch, advance=advance)
    results.write("memory", {"peaks": peaks})
    aims = [w for part, outcome in outcomes.items() for w in _AIM_LISTS[part](outcome)] + memory.list_aims(peaks)
    summary: dict[str, Any] = {
        "machine": host,
        "quick": quick,
        "wanted": verdicts(aims),
        "figures": {
            part: {f"{who}: {what}": vars(f) for (who, what), f in summarise(outcome.samples).items()}
            for part, outcome in outcomes.items()
        },
    }
    results.write("summary", summary)
    return _report(host, outcomes, peaks, aims), aims


def work(*, quick: bool) -> int:
    """How many times `advance` will be called, for a progress bar."""
    return sum(case.turns for case in cases(quick=quick).values()) + len(memory.settings(quick=quick))


def _peers(outcome: Outcome) -> list[str]:
    return [c.name for c in outcome.case.contestants if c.system in PEERS]


def _ahead(outcome: Outcome, figures: dict[tuple[str, str], Figures], measure: str) -> float:
    best = min(figures[name, measure].median for name in _peers(outcome))
    return figures["windrow", measure].median / best


def _list_window_aims(outcome: Outcome) -> list[Aim]:
    figures, where = summarise(outcome.samples), outcome.case.name
    ours, floor, duck = figures["windrow", "update"], figures["floor-sorted", "update"], figures["duckdb", "update"]
    aims = [
        Aim(f"{where}: update mean / sorted write floor", ours.mean / floor.mean, 1.5),
        Aim(f"{where}: update mean / DuckDB's mean", ours.mean / duck.mean, 0.75),
        Aim(f"{where}: update median / DuckDB's median", ours.median / duck.median, 0.75),
        Aim(f"{where}: update p95 / own mean", ours.p95 / ours.mean, 2.0),
        Aim(f"{where}: probe / best peer", _ahead(outcome, figures, "probe"), 1.0),
        Aim(f"{where}: scan / best peer", _ahead(outcome, figures, "scan"), 1.0),
    ]
    if ("windrow", "scan by SQL") in figures:
        best = min(figures[name, "scan"].median for name in _peers(outcome))
        value = figures["windrow", "scan by SQL"].median / best
        aims.append(Aim(f"{where}: scan by SQL / best peer", value, 1.0))
    return aims


def _list_small_aims(outcome: Outcome) -> list[Aim]:
    probe = summarise(outcome.samples)["windrow", "probe"]
    return [*_list_window_aims(outcome), Aim(f"{outcome.case.name}: probe, ms", probe.median, 5.0)]


def _list_growth_aims(outcome: Outcome) -> list[Aim]:
    figures = summarise(outcome.samples)
    return [
        Aim(
            f"{name}: update mean at 1.5 GB / at 150 MB, same batch",
            figures[f"{name} 1.5 GB", "update"].mean / figures[f"{name} 150 MB", "update"].mean,
            1.3,
        )
        for name in ("windrow", "windrow-norebuild")
    ]


def _list_unique_aims(outcome: Outcome) -> list[Aim]:
    notes, probe = outcome.notes["windrow"], summarise(outcome.samples)["windrow", "probe"]
    return [
        Aim("Near-unique key: directory bytes / segment bytes", notes["directory_bytes"] / notes["bytes"], 0.05),
        Aim("Near-unique key: probe, ms", probe.median, 5.0),
    ]


_AIM_LISTS: dict[str, Callable[[Outcome], list[Aim]]] = {
    "small": _list_small_aims,
    "large": _list_window_aims,
    "growth": _list_growth_aims,
    "unique": _list_unique_aims,
}


def _report(host: dict[str, Any], outcomes: dict[str, Outcome], peaks: memory.Peaks, aims: list[Aim]) -> str:
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims)]
    for outcome in outcomes.values():
        parts += [f"### {outcome.case.name}", _about(outcome), report.times_table(outcome)]
    return "\n\n".join([*parts, "### Peak memory", memory.table(peaks)])


def _about(outcome: Outcome) -> str:
    case = outcome.case
    sizes = {c.workload.batch_bytes for c in case.contestants}
    batches = " and ".join(f"{size / 1e6:.1f}" for size in sorted(sizes))
    return (
        f"{case.steps} updates of {batches} MB, {case.repetitions} repetition(s), milliseconds; ± is half the distance "
        "of the quartiles, relative to the median; CPU is the mean processor time of an update."
    )
