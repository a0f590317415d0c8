"""Figures computed from samples: mean, median, spread and ratios per contestant and measure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.runner import Sample


@dataclass(frozen=True)
class Figures:
    """Milliseconds of one contestant and measure.

    With several repetitions each step counts once, with the median of its repetitions: noise is damped, and what a
    system does at that step each time (a merge, a checkpoint) stays.
    """

    count: int
    mean: float
    median: float
    p95: float
    least: float
    quartiles: tuple[float, float]
    cpu: float
    """Mean processor time."""

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, relative to the median."""
        return (self.quartiles[1] - self.quartiles[0]) / 2 / self.median if self.median else 0.0


def summarise_one(samples: Sequence[Sample]) -> Figures:
    """Compute the figures of one contestant and measure."""
    steps: dict[int, list[Sample]] = {}
    for sample in samples:
        steps.setdefault(sample.step, []).append(sample)
    wall = 1e3 * np.array([np.median([s.wall for s in same]) for same in steps.values()])
    cpu = 1e3 * np.array([np.median([s.cpu for s in same]) for same in steps.values()])
    low, high = np.percentile(wall, [25, 75])
    return Figures(
        count=len(samples),
        mean=float(wall.mean()),
        median=float(np.median(wall)),
        p95=float(np.percentile(wall, 95)),
        least=float(wall.min()),
        quartiles=(float(low), float(high)),
        cpu=float(cpu.mean()),
    )


def summarise(samples: Iterable[Sample]) -> dict[tuple[str, str], Figures]:
    """Compute figures by (contestant, measure)."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.contestant, sample.measure), []).append(sample)
    return {key: summarise_one(group) for key, group in groups.items()}


@dataclass(frozen=True)
class Aim:
    """What a figure should be at most, and whether it is.

    Args:
        statement: In words.
        value: The figure.
        limit: What it may be at most.
    """

    statement: str
    value: float
    limit: float

    @property
    def reached(self) -> bool:
        """Whether the aim is reached."""
        return self.value <= self.limit
