"""The statements of sections 4.4.2 to 4.4.6 of [1] (docs/references.md) about indexes, each checked on our figures."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LayoutFigures:
    """The figures of one layout."""

    update: float
    """Milliseconds per megabyte taken in."""
    probe: float
    scan: float
    """Milliseconds."""
    written: float
    """Bytes written per byte taken in."""
    space: float
    """Bytes on disk per live byte."""


FiguresByLayout = dict[str, LayoutFigures]
_Figure = Callable[[FiguresByLayout, FiguresByLayout, FiguresByLayout], float]


@dataclass(frozen=True)
class Statement:
    """One statement of [1].

    Args:
        section: Where it stands.
        says: What it says, in our words.
        text: How our figure is told, with one place for it.
        figure: Takes it from the even, the fluctuating and the large workload.
        holds: Whether that figure confirms the sentence.
        why: What is different here, if it is not confirmed.
    """

    section: str
    says: str
    text: str
    figure: _Figure
    holds: Callable[[float], bool]
    why: str = ""

    def measured(self, even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> str:
        """Our figure in words."""
        return self.text.format(self.figure(even, uneven, large))

    def verdict(self, even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> str:
        """Confirmed, or not and why."""
        if self.holds(self.figure(even, uneven, large)):
            return "yes"
        return f"**no**: {self.why}" if self.why else "**no**"


def _ratio(measure: str, above: list[str], below: list[str]) -> _Figure:
    """Geometric mean of the one over that of the other, on the even workload."""

    def figure(even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> float:
        del uneven, large
        return _mean(even, measure, above) / _mean(even, measure, below)

    return figure


def _mean(figures: FiguresByLayout, measure: str, labels: list[str]) -> float:
    return float(np.exp(np.mean([np.log(getattr(figures[label], measure)) for label in labels])))


def _grid(kind: str, sides: tuple[int, ...] = (2, 3, 4, 5)) -> list[str]:
    return [f"{kind}{side}x{side}" for side in sides]


def _best_n(counts: tuple[int, ...], label: Callable[[int], str]) -> _Figure:
    def figure(even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> float:
        del uneven, large
        return float(min(counts, key=lambda n: even[label(n)].update))

    return figure


def _slowed(ours: list[str], others: list[str]) -> _Figure:
    """How much more the fluctuating rate slows the one than the other."""

    def figure(even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> float:
        del large
        slowed = [_mean(uneven, "update", labels) / _mean(even, "update", labels) for labels in (ours, others)]
        return slowed[0] / slowed[1]

    return figure


def _best(figures: FiguresByLayout, labels: Iterable[str]) -> float:
    return min(figures[label].update for label in labels)


def _large_gain(even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> float:
    del even, uneven
    waves = [label for label in large if label.startswith("R-ins")]
    return _best(large, waves) / _best(large, ("R-rr4x4", "N-rr4x4"))


def _gap(even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> float:
    del uneven
    return (large["R-rr4x4"].update / large["N-rr4x4"].update) / (even["R-rr4x4"].update / even["N-rr4x4"].update)


def _against_rebuild(even: FiguresByLayout, uneven: FiguresByLayout, large: FiguresByLayout) -> float:
    del uneven, large
    return even["N-rr4x4"].update / _best(even, (label for label in even if label.startswith("R-")))


_WAVES = (1, 2, 4, 9, 16, 25)

STATEMENTS = (
    Statement(
        "4.4.2",
        "Rebuild4x4 updates about 20 % faster than 2x8 and 8x2",
        "4x4 takes {:.2f} of the time of 2x8 and 8x2",
        _ratio("update", ["R-rr4x4"], ["R-rr2x8", "R-rr8x2"]),
        lambda value: value < 0.95,
    ),
    Statement(
        "4.4.2",
        "Rebuild8x2 updates faster than Rebuild2x8",
        "8x2 takes {:.2f} of the time of 2x8",
        _ratio("update", ["R-rr8x2"], ["R-rr2x8"]),
        lambda value: value < 1,
        "both are merged by one streaming pass here, which costs the same for insertions and deletions",
    ),
    Statement(
        "4.4.2",
        "The shape hardly matters to probes",
        "4x4's probe takes {:.2f} of that of 2x8 and 8x2",
        _ratio("probe", ["R-rr4x4"], ["R-rr2x8", "R-rr8x2"]),
        lambda value: 0.8 < value < 1.2,
    ),
    Statement(
        "4.4.3",
        "Partitioning by expiry alone updates slower than by insertion alone",
        "R-exp takes {:.2f} of the time of R-ins",
        _ratio("update", [f"R-exp{n}" for n in _WAVES[1:]], [f"R-ins{n}" for n in _WAVES[1:]]),
        lambda value: value > 1,
        "a wave by expiry rewrites only sub-indices that rows come into or leave; here rows are sorted by key first",
    ),
    Statement(
        "4.4.3",
        "Even chronological double partitioning updates twice as fast as the waves as n grows",
        "at n = 16 and 25 it takes {:.2f} of the time of R-ins",
        _ratio("update", _grid("R-chr", (4, 5)), ["R-ins16", "R-ins25"]),
        lambda value: value < 0.6,
    ),
    Statement(
        "4.4.3",
        "Round-robin updates another 10 to 20 % faster than chronological",
        "it takes {:.2f} of the time",
        _ratio("update", _grid("R-rr"), _grid("R-chr")),
        lambda value: value < 0.95,
    ),
    Statement(
        "4.4.3",
        "NoRebuild updates faster than Rebuild, by 2 to 5 %",
        "NoRebuild takes {:.2f} of the time",
        _ratio("update", _grid("N-rr"), _grid("R-rr")),
        lambda value: 0.9 < value < 1,
        "the gap is another one: nothing stored is written again here",
    ),
    Statement(
        "4.4.3",
        "NoRebuild probes slower than Rebuild, by less than 1 %",
        "NoRebuild takes {:.2f} of the time",
        _ratio("probe", _grid("N-rr"), _grid("R-rr")),
        lambda value: 1 < value < 1.05,
        "the gap is another one: a probe looks into every segment, and NoRebuild has more of them",
    ),
    Statement(
        "4.4.3",
        "Probe times grow with n",
        "Rebuild5x5 takes {:.2f} of the time of 2x2",
        _ratio("probe", ["R-rr5x5"], ["R-rr2x2"]),
        lambda value: value > 1,
    ),
    Statement(
        "4.4.3",
        "R-ins is quickest to update below n = 9",
        "R-ins is quickest at n = {:.0f}",
        _best_n(_WAVES, lambda n: f"R-ins{n}"),
        lambda value: value <= 9,
        "an untouched sub-index costs nothing here: its rows are filtered when they are read, not deleted",
    ),
    Statement(
        "4.4.3",
        "Rebuild is quickest to update at n = 16",
        "Rebuild is quickest at n = {:.0f}",
        _best_n((4, 9, 16, 25), lambda n: f"R-rr{round(n**0.5)}x{round(n**0.5)}"),
        lambda value: value in (16, 25),
    ),
    Statement(
        "4.4.3",
        "Rebuild needs less space than NoRebuild",
        "NoRebuild needs {:.2f} of the space",
        _ratio("space", _grid("N-rr"), _grid("R-rr")),
        lambda value: value > 1,
        "files replaced by a merge stay until no reader can need them",
    ),
    Statement(
        "4.4.4",
        "A fluctuating rate slows double partitioning less than waves",
        "the slow-down of Rebuild and NoRebuild is {:.2f} of that of the waves",
        _slowed(["R-rr2x2", "R-rr4x4", "N-rr2x2", "N-rr4x4"], ["R-ins4", "R-ins16", "N-ins4", "N-ins16"]),
        lambda value: value < 1,
    ),
    Statement(
        "4.4.5",
        "On the large window double partitioning updates up to three times as fast as the waves",
        "the best wave with rebuild takes {:.2f} times as long as the best round-robin",
        _large_gain,
        lambda value: value >= 2,
    ),
    Statement(
        "4.4.5",
        "The gap between Rebuild and NoRebuild widens with the window",
        "Rebuild4x4 / NoRebuild4x4 is {:.2f} times what it was on the small window",
        _gap,
        lambda value: value > 1,
    ),
    Statement(
        "4.4.6",
        "Small window, few queries: NoRebuild4x4 updates quickest",
        "it takes {:.2f} of the time of the best other layout with rebuild",
        _against_rebuild,
        lambda value: value < 1,
    ),
    Statement(
        "4.4.6",
        "Small window, many queries: Rebuild2x2 probes as fast as R-ins and updates faster",
        "its update takes {:.2f} of that of R-ins4",
        _ratio("update", ["R-rr2x2"], ["R-ins4"]),
        lambda value: value < 1,
    ),
)
