"""Markdown tables for the terminal and, between markers, for docs/benchmarks.md."""

from collections.abc import Sequence
from pathlib import Path

from bench.runner import Outcome
from bench.statistics import Aim, Figures, summarise

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: text to the left, figures to the right."""
    marks = ["---"] + ["---:"] * (len(header) - 1)
    lines = [header, marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of text: all to the left."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times_table(outcome: Outcome) -> str:
    """In milliseconds: mean, median and p95 of updates, medians of the rest with their spread; space at the end."""
    summary = summarise(outcome.samples)
    measured = {measure for _, measure in summary}
    measures = [measure.name for measure in outcome.case.measures if measure.name in measured]
    rows = []
    for contestant in outcome.case.contestants:
        figures = [summary.get((contestant.name, measure)) for measure in measures]
        update, rest = figures[0], figures[1:]
        cells = [contestant.name, *(_update_cells(update) if update else ["–"] * 4)]
        cells += [with_spread(figure) if figure else "–" for figure in rest]
        cells.append(f"{outcome.notes[contestant.name]['space'] / 1e6:.0f}" if rest and rest[0] else "–")
        rows.append(cells)
    header = [
        "",
        "update mean",
        "median",
        "p95",
        "CPU",
        *(f"{measure} median" for measure in measures[1:]),
        "MB on disk",
    ]
    return table(header, rows)


def _update_cells(update: Figures) -> list[str]:
    return [f"{update.mean:.1f}", with_spread(update), f"{update.p95:.1f}", f"{update.cpu:.1f}"]


def with_spread(figures: Figures) -> str:
    """A median and how far the middle half of the values lies from it."""
    return f"{figures.median:.1f} ±{100 * figures.spread:.0f}%"


def aims_table(aims: Sequence[Aim]) -> str:
    """What was wanted, what was measured, and whether it was reached."""
    rows = [[w.statement, f"{w.value:.2f}", f"≤ {w.limit:g}", "yes" if w.reached else "**no**"] for w in aims]
    return table(["wanted", "measured", "limit", "reached"], rows)


_SHOWN = {
    "peers": ("### Update, probe, scan, space",),
    "realistic": ("### SQL",),
    "sql": ("### Questions",),
    "views": ("### Strict views",),
}
"""The sections of a report that stand in the page beside what was wanted; the others are in the results."""


_ALIKE = 3
"""So many workloads of which the same was wanted share a line."""


def shorten(section: str, text: str) -> str:
    """What of a report stands in the page: when and where, what was wanted, and few of its tables."""
    parts, shown, heading = text.strip().split("\n\n"), list[str](), ""
    about = [part for part in parts[:3] if part[0].isdigit() or part.startswith(("Left out", "Window of"))]
    for part in parts:
        if part.startswith("#"):
            heading = part
        elif part.startswith("| wanted"):
            shown.append(_group_aims(part))
        elif part.startswith("|") and heading.partition(":")[0] in _SHOWN.get(section, ()):
            shown.append(part)
            heading = ""
    return "\n".join(about) + "\n\n" + "\n\n".join(shown)


def _group_aims(aims: str) -> str:
    """A table of aims with one line, of the worst, for what was wanted of several workloads alike."""
    head, marks, *lines = aims.splitlines()
    groups: dict[str, list[tuple[float, str, str]]] = {}
    for line in lines:
        wanted, measured, limit, _ = (cell.strip() for cell in line.strip("|").split("|"))
        workload, _, rest = wanted.rpartition(": ")
        share = float(measured) / (float(limit.removeprefix("≤ ")) or 1)
        groups.setdefault(rest if workload else wanted, []).append((share, workload, line))
    rows = []
    for wanted, group in groups.items():
        if len(group) < _ALIKE:
            rows += [line for *_, line in group]
        else:
            _, workload, line = max(group)
            rows.append(line.replace(f"{workload}: {wanted}", f"{wanted}: worst of {len(group)}, {workload}"))
    return "\n".join([head, marks, *rows])


def insert(section: str, text: str, page: Path = PAGE) -> None:
    """Put what `shorten` leaves of `text` between the section's markers in a page, which must have them."""
    begin, end = f"<!-- bench {section}: begin -->", f"<!-- bench {section}: end -->"
    content = page.read_text()
    if begin not in content or end not in content:
        raise ValueError(f"{page} has no markers {begin} and {end}; add them where the tables should stand")
    before, rest = content.split(begin, 1)
    _, after = rest.split(end, 1)
    page.write_text(f"{before}{begin}\n{shorten(section, text)}\n{end}{after}")
