"""`bench index`: chapter 4 of [1] (docs/references.md) with our index: all layouts, maintenance and sizes.

Where S/Δ is no multiple of G and E another Δ is chosen, so layouts differ in the number of updates of a window. Time
and bytes are therefore compared per megabyte that was inserted.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import machine, plots, report
from bench.measures import PROBE, SCAN, UPDATE
from bench.results import Results, verdicts
from bench.runner import Case, Contestant, Outcome, run
from bench.statistics import Aim, summarise
from bench.systems.ours import with_index
from bench.thesis_statements import STATEMENTS, LayoutFigures
from bench.workload import SlidingRows
from windrow import Index

WAVES = (1, 2, 4, 9, 16, 25)
GRIDS = ((2, 2), (3, 3), (4, 4), (5, 5), (2, 8), (8, 2))
KINDS = {"rebuild": "R", "norebuild": "N", "adaptive": "A"}
FLUCTUATION = 4.0


@dataclass(frozen=True)
class Size:
    """How much of everything a run takes."""

    window_rows: int
    steps: int
    large_rows: int
    large_steps: int


QUICK = Size(window_rows=6_000, steps=10, large_rows=60_000, large_steps=6)
FULL = Size(window_rows=500_000, steps=12, large_rows=5_000_000, large_steps=6)
"""The sizes of [1]. Before its first measured step each layout slides through a whole window, 36 updates or more."""


def layouts() -> dict[str, Index]:
    """All of them, by the abbreviations of [1]: R(ebuild), N(oRebuild) or A(daptive), then how cells are chosen."""
    by_label = {}
    for maintenance, letter in KINDS.items():
        if letter != "A":
            for count in WAVES:
                by_label[f"{letter}-ins{count}"] = Index("wave-insertion", count, maintenance=maintenance)
                by_label[f"{letter}-exp{count}"] = Index("wave-expiry", count, maintenance=maintenance)
        for rows, columns in GRIDS:
            by_label[f"{letter}-chr{rows}x{columns}"] = Index("chronological", rows, columns, maintenance=maintenance)
            by_label[f"{letter}-rr{rows}x{columns}"] = Index("round-robin", rows, columns, maintenance=maintenance)
    return by_label


def slots_for(index: Index, least: int = 36) -> int:
    """The smallest number of updates per window, from 36 on, that is a multiple of G and E."""
    step = math.lcm(*index.grid)
    return -(-least // step) * step


def _family(label: str) -> str:
    return {"ins": "waves by insertion", "exp": "waves by expiry", "chr": "chronological"}.get(
        label[2:5], "round-robin"
    )


def cases(size: Size) -> list[Case]:
    """A case a family, so that the disk holds one at a time; then the fluctuating rate, then the large window."""
    measures = (UPDATE, PROBE, SCAN)

    def contestant(label: str, index: Index, rows: int, fluctuation: float = 1.0) -> Contestant:
        workload = SlidingRows(rows, slots_for(index), fluctuation=fluctuation)
        return Contestant(label, with_index(label, index), workload)

    by_label = layouts()
    families: dict[str, list[str]] = {}
    for label in by_label:
        families.setdefault(_family(label), []).append(label)
    all_cases = [
        Case(
            f"Index: {family}",
            tuple(contestant(label, by_label[label], size.window_rows) for label in labels),
            steps=size.steps,
            measures=measures,
        )
        for family, labels in families.items()
    ]
    uneven = ["R-ins4", "R-ins16", "N-ins4", "N-ins16", "R-rr2x2", "R-rr4x4", "N-rr2x2", "N-rr4x4", "A-rr4x4"]
    all_cases.append(
        Case(
            "Index: fluctuating rate",
            tuple(contestant(label, by_label[label], size.window_rows, FLUCTUATION) for label in uneven),
            steps=size.steps,
            measures=measures,
        )
    )
    # The best wave with rebuild, by the window before. Of each, twice its live rows are on the disk.
    large = ["R-ins9", "R-rr4x4", "N-rr4x4", "A-rr4x4"]
    all_cases.append(
        Case(
            "Index: large window",
            tuple(contestant(label, by_label[label], size.large_rows) for label in large),
            steps=size.large_steps,
            measures=measures,
        )
    )
    return all_cases


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return sum(case.turns for case in cases(QUICK if quick else FULL))


def bench(
    *,
    quick: bool,
    results: Results,
    scratch: Path | None,
    advance: Callable[[str], None],
    size: Size | None = None,
) -> tuple[str, list[Aim]]:
    """Run everything, save it, and give the report (Markdown) and what was wanted."""
    chosen = size or (QUICK if quick else FULL)
    host = machine.describe(scratch or Path.cwd())
    outcomes: dict[str, Outcome] = {}
    for case in cases(chosen):
        outcome = results.load(case)
        if outcome is None:
            outcome = run(case, scratch, advance)
            results.save(outcome, host)
        outcomes[case.name] = outcome
    by_case = {name: figures(outcome) for name, outcome in outcomes.items()}
    even = {label: of for name, of in by_case.items() if _is_even(name) for label, of in of.items()}
    uneven, large = by_case["Index: fluctuating rate"], by_case["Index: large window"]
    wave = min(of.update for label, of in large.items() if label.startswith("R-ins"))
    aims = [
        Aim("large window: round-robin 4x4 rebuild / best wave rebuild, update", large["R-rr4x4"].update / wave, 1 / 3),
        Aim(
            "large window: round-robin 4x4 adaptive / best wave rebuild, update", large["A-rr4x4"].update / wave, 1 / 3
        ),
    ]
    results.write("index", {"machine": host, "figures": _plain(by_case), "wanted": verdicts(aims)})
    return _report(host, chosen, even, uneven, large, aims), aims


def _is_even(name: str) -> bool:
    return name not in ("Index: fluctuating rate", "Index: large window")


def figures(outcome: Outcome) -> dict[str, LayoutFigures]:
    """Per layout: milliseconds and bytes per megabyte taken in, milliseconds of a probe and of a scan, space."""
    summary = summarise(outcome.samples)
    by_layout = {}
    for contestant in outcome.case.contestants:
        workload, notes = contestant.workload, outcome.notes[contestant.name]
        inserted = workload.batch_bytes / 1e6
        live = workload.window_rows * workload.row_bytes
        updates = workload.slots + outcome.case.steps
        by_layout[contestant.name] = LayoutFigures(
            update=summary[contestant.name, "update"].mean / inserted,
            probe=summary[contestant.name, "probe"].median,
            scan=summary[contestant.name, "scan"].median,
            written=(notes["merged_bytes"] + notes["appended_bytes"]) / (updates * workload.batch_bytes),
            space=notes["space"] / live,
        )
    return by_layout


def _plain(by_case: dict[str, dict[str, LayoutFigures]]) -> dict[str, Any]:
    return {case: {label: vars(of) for label, of in by_layout.items()} for case, by_layout in by_case.items()}


def _report(
    host: dict[str, Any],
    size: Size,
    even: dict[str, LayoutFigures],
    uneven: dict[str, LayoutFigures],
    large: dict[str, LayoutFigures],
    aims: list[Aim],
) -> str:
    header = ["", "update, ms per MB", "probe, ms", "scan, ms", "bytes written / taken in", "bytes on disk / live"]

    def table(figures: dict[str, LayoutFigures]) -> str:
        return report.table(header, [_row(label, of) for label, of in figures.items()])

    statements = [
        [s.section, s.says, s.measured(even, uneven, large), s.verdict(even, uneven, large)] for s in STATEMENTS
    ]
    parts = [
        machine.summarise(host),
        "### What was wanted",
        report.aims_table(aims),
        "### The statements of the thesis",
        report.text_table(["section", "the thesis says", "here", "confirmed"], statements),
        f"### All layouts, window of {size.window_rows / 1000:.0f} MB",
        table(even),
        *_plots(even),
        f"### Rate that varies up to {FLUCTUATION:g} times",
        table(uneven),
        f"### Window of {size.large_rows / 1000:.0f} MB",
        table(large),
    ]
    return "\n\n".join(parts)


def _row(label: str, of: LayoutFigures) -> list[str]:
    return [label, *(f"{value:.2f}" for value in (of.update, of.probe, of.scan, of.written, of.space))]


def _plots(even: dict[str, LayoutFigures]) -> Iterator[str]:
    waves = {"R-ins": "R-ins", "N-ins": "D-ins"}
    grids = {"R-chr": "Rebuild, chr", "R-rr": "Rebuild, rr", "N-rr": "NoRebuild, rr", "A-rr": "Adaptive, rr"}
    for measure, unit in (("update", "ms per MB"), ("probe", "ms"), ("scan", "ms")):
        series = {
            name: [(float(n), getattr(even[f"{label}{n}"], measure)) for n in WAVES] for label, name in waves.items()
        }
        series |= {
            name: [(float(n * n), getattr(even[f"{label}{n}x{n}"], measure)) for n in (2, 3, 4, 5)]
            for label, name in grids.items()
        }
        title = f"{measure} times by number of sub-indices (figures 4.5 to 4.7)"
        yield plots.lines(f"index-{measure}", title, series, x="sub-indices", y=unit, log_y=measure == "update")


def smaller(size: Size, factor: int) -> Size:
    """For tests: the same with windows that many times smaller."""
    return replace(
        size, window_rows=size.window_rows // factor, large_rows=size.large_rows // factor, steps=2, large_steps=2
    )
