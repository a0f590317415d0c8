"""What a statement would read: cells, segments, rows and bytes before and after pruning, and DuckDB's own plan."""

from dataclasses import dataclass

from windrow.queries.answers import Window
from windrow.queries.planner import Pruned


@dataclass(frozen=True)
class Explanation:
    """What a statement would read. As text it is one line for each window, then the plan."""

    relations: tuple[Pruned, ...]
    windows: tuple[Window, ...]
    plan: str
    """DuckDB's own plan; with the times of a run for EXPLAIN ANALYZE."""
    pattern: str = ""
    """How its rows leave, and how a view of it would be kept; empty if it reads no stream."""

    def __str__(self) -> str:
        told = [_line(pruned, window) for pruned, window in zip(self.relations, self.windows, strict=True)]
        pattern = [f"update pattern: {self.pattern}"] if self.pattern else []
        return "\n".join([*told, *pattern, self.plan.rstrip()])


def _line(pruned: Pruned, window: Window) -> str:
    figures = {"cells": pruned.cells, "segments": pruned.segments, "rows": pruned.rows, "bytes": pruned.bytes}
    read = ", ".join(f"{name} {part:,} of {whole:,}" for name, (part, whole) in figures.items())
    slide = "before its first slide" if window.slide is None else f"at slide {window.slide}"
    return f"{window.stream} {window.clause} {slide}: {pruned.path}; {read}; key: {pruned.keys}"
