"""Benches whose rows and statements are drawn from seeds: what is reported is the worst of three.

One seed is fixed and the others are new in every run unless they are given, so nothing can have been tuned to them.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from bench import machine, report
from bench.measures import Timing
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim

FIXED = 17


@dataclass
class Lines:
    """A table of figures; of several seeds each line is shown as in the seed that was worst for it.

    Args:
        title: Heading.
        about: A sentence under it.
        columns: Names of the figures.
        by: The column that says which seed is worst: the one where it is greatest.
        lines: The figures of each line by column.
    """

    title: str
    about: str
    columns: Sequence[str]
    by: str
    lines: dict[str, dict[str, float]] = field(default_factory=dict)

    def markdown(self) -> str:
        """As a table."""
        rows = [[name, *(_cell(of.get(column)) for column in self.columns)] for name, of in self.lines.items()]
        return report.table(["", *self.columns], rows)


@dataclass
class Measured:
    """What one seed gave."""

    aims: list[Aim] = field(default_factory=list)
    tables: list[Lines] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


S = TypeVar("S")


@dataclass(frozen=True)
class SeededBench(Generic[S]):
    """What runs a bench: its name, its sizes, and what measures one size with one seed, given a folder.

    Args:
        name: Of the command.
        quick: Size of a quick run.
        full: Size of a full one.
        measure: Takes size, seed, folder, and what to call before each part.
        first: The size for the first seed; a quick run may do with it what it does not do with the others.
    """

    name: str
    quick: S
    full: S
    measure: Callable[[S, int, Path, Callable[[str], None]], Measured]
    first: Callable[[S], S] = lambda size: size

    def __call__(
        self,
        *,
        quick: bool,
        results: Results,
        scratch: Path | None,
        advance: Callable[[str], None],
        seeds: Sequence[int] | None = None,
        size: S | None = None,
    ) -> tuple[str, list[Aim]]:
        """Run everything, save it, and give the report (Markdown) and what was wanted."""
        chosen = size or (self.quick if quick else self.full)
        drawn = tuple(seeds or fresh_seeds())

        def measure(seed: int, folder: Path) -> Measured:
            return self.measure(self.first(chosen) if seed == drawn[0] else chosen, seed, folder, advance)

        return run(self.name, measure, drawn, results, scratch)


def fresh_seeds() -> tuple[int, ...]:
    """The fixed seed and two that nobody has seen."""
    return FIXED, *(secrets.randbelow(1_000_000) for _ in range(2))


def run(
    name: str, measure: Callable[[int, Path], Measured], seeds: Sequence[int], results: Results, scratch: Path | None
) -> tuple[str, list[Aim]]:
    """Measure with each seed; gives the report of the worst (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    by_seed: dict[int, Measured] = {}
    for seed in seeds:
        with TemporaryDirectory(prefix="windrow-bench-", dir=scratch) as folder:
            by_seed[seed] = measure(seed, Path(folder))
    aims, tables = worst_aims(by_seed.values()), worst_lines([of.tables for of in by_seed.values()])
    every = {
        str(seed): {"wanted": verdicts(of.aims), "tables": [vars(t) for t in of.tables]} for seed, of in by_seed.items()
    }
    results.write(name, {"machine": host, "seeds": seeds, "by seed": every, "wanted": verdicts(aims)})
    listed = ", ".join(map(str, seeds))
    parts = [
        machine.summarise(host),
        f"Seeds {listed}; each figure is the worst of them.",
        *dict.fromkeys(note for of in by_seed.values() for note in of.notes),
        "### What was wanted",
        report.aims_table(aims),
    ]
    for table in tables:
        parts += [f"### {table.title}", table.about, table.markdown()]
    return "\n\n".join(parts), aims


def worst_aims(measured: Iterable[Measured]) -> list[Aim]:
    """Each aim with the seed that was worst for it."""
    worst: dict[str, Aim] = {}
    for aim in (aim for of in measured for aim in of.aims):
        if aim.statement not in worst or aim.value > worst[aim.statement].value:
            worst[aim.statement] = aim
    return list(worst.values())


def worst_lines(tables_by_seed: Sequence[Sequence[Lines]]) -> list[Lines]:
    """Each table with the worst of its lines."""
    worst: dict[str, Lines] = {}
    for table in (table for tables in tables_by_seed for table in tables):
        kept = worst.setdefault(table.title, Lines(table.title, table.about, table.columns, table.by))
        for name, line in table.lines.items():
            if name not in kept.lines or line.get(table.by, 0) > kept.lines[name].get(table.by, 0):
                kept.lines[name] = line
    return list(worst.values())


def percentiles(timings: Sequence[Timing]) -> dict[str, float]:
    """Of the clock and of processor time, in milliseconds."""
    wall, cpu = (1e3 * np.array([getattr(t, kind) for t in timings]) for kind in ("wall", "cpu"))
    figures = {"mean": float(wall.mean()), "CPU mean": float(cpu.mean())}
    for label, values in (("", wall), ("CPU ", cpu)):
        for percent in (50, 95, 99):
            figures[f"{label}p{percent}"] = float(np.percentile(values, percent))
        figures[f"{label}most"] = float(values.max())
    return figures


PERCENTILES = ("mean", "p50", "p95", "p99", "most", "CPU mean", "CPU p50", "CPU p99", "CPU most")


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers."""
    return math.exp(float(np.mean([math.log(value) for value in values])))


def compare(question: str, ours: pa.Table, theirs: pa.Table) -> None:
    """Both answers must have the same rows in the same order, floating numbers within 1e-9."""
    one, other = (list(zip(*(_plain(column) for column in rows.columns), strict=True)) for rows in (ours, theirs))
    if len(one) != len(other):
        raise WrongAnswerError(f"{question}: {len(one)} rows against {len(other)}")
    for a, b in zip(one, other, strict=True):
        if a != b and not all(_same(x, y) for x, y in zip(a, b, strict=True)):
            raise WrongAnswerError(f"{question}: {a} against {b}")


def _plain(column: pa.ChunkedArray) -> list[Any]:
    return [float(v) if isinstance(v, Decimal) else v for v in column.to_pylist()]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return (
            one == other
            or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
            or (math.isnan(one) and math.isnan(other))
        )
    return bool(one == other)


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
