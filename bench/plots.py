"""Plots as SVG files, in docs/plots/ or beside the figures, by matplotlib, which the extra `peers` installs.

Without matplotlib a bench still measures and writes its tables; it only says that no plot was drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "plots"
_WIDTH, _HEIGHT = 7.0, 3.8
_COLOURS = ("#1f5f8b", "#d1603d", "#4a8f4a", "#8a5fa0", "#b0892c", "#5c6770", "#c04f86", "#3aa0a0")

Points = Sequence[tuple[float, float]]
_place: ContextVar[Path] = ContextVar("place", default=FOLDER)


@contextmanager
def into(folder: Path) -> Iterator[None]:
    """Have plots drawn into a folder: only a bench that writes its tables into the page changes the page's plots."""
    before = _place.set(folder)
    try:
        yield
    finally:
        _place.reset(before)


def lines(
    name: str,
    title: str,
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    folder: Path | None = None,
) -> str:
    """A line a series, with its points marked.

    Args:
        name: Of the file, without suffix.
        title: Above the plot, and the text for those who cannot see it.
        series: Points (x, y) by name.
        x: Label of the axis, with its unit.
        y: Likewise.
        log_x: Logarithmic axis.
        log_y: Likewise.
        folder: Where the file goes; by default where `into` says, else into docs/.

    Returns:
        The Markdown that shows it on a page in docs/, or a sentence if it could not be drawn.
    """

    def draw(axes: Any) -> None:
        for colour, (label, points) in zip(_colours(len(series)), series.items(), strict=True):
            ordered = sorted(points)
            axes.plot([p[0] for p in ordered], [p[1] for p in ordered], "o-", label=label, color=colour, markersize=4)
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        elif all(value >= 0 for points in series.values() for _, value in points):
            axes.set_ylim(bottom=0)

    return _drawn(name, title, draw, x, y, folder or _place.get())


def bars(
    name: str,
    title: str,
    series: Mapping[str, Sequence[float]],
    groups: Sequence[str],
    *,
    y: str,
    x: str = "",
    log_y: bool = False,
    folder: Path | None = None,
) -> str:
    """Bars side by side: one colour a series, one place a group; see `lines`."""

    def draw(axes: Any) -> None:
        width = 0.8 / len(series)
        for place, (colour, (label, values)) in enumerate(zip(_colours(len(series)), series.items(), strict=True)):
            at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(groups))]
            axes.bar(at, values, width, label=label, color=colour)
        slanted = max(len(group) for group in groups) * len(groups) > 70
        axes.set_xticks(range(len(groups)), groups, rotation=30 if slanted else 0, ha="right" if slanted else "center")
        if log_y:
            axes.set_yscale("log")

    return _drawn(name, title, draw, x, y, folder or _place.get())


def _colours(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]


def _drawn(name: str, title: str, draw: Any, x: str, y: str, folder: Path) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return f"(no plot of {title}: matplotlib is not installed, the extra `peers` brings it)"
    # The same figures must give the same file, or every run would be a change.
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}):
        figure = Figure((_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(visible=True, axis="y", alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Title": title})
    return f"![{title}](plots/{name}.svg)"
