"""Charts of rows: a series over time as lines with axes, anything else as bars; the newest points are never left out.

One description of a chart, as a Vega-Lite specification for notebooks and other tools, and as SVG without scripts for
reports. What was cut is said under the chart.
"""

import datetime as dt
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.errors import QueryError
from windrow.formats.text import json_values

MAX_BARS, MAX_POINTS, _MOST_SERIES = 25, 1000, 6
_WIDTH, _BAR, _LABEL, _HEIGHT, _PAD, _LEFT = 720, 22, 200, 260, 36, 70
_TICKS = 4
_COLORS = ("#3b6ea5", "#c8782a", "#4f9a54", "#a33f5a", "#7a5aa6", "#6b6b6b")
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


@dataclass(frozen=True)
class Chart:
    """What is drawn: one point for each label in each series; None where there is no number."""

    kind: str
    """``line`` or ``bar``."""
    axis: str
    labels: tuple[Any, ...]
    """Datetimes of lines, texts of bars."""
    series: dict[str, tuple[float | None, ...]]
    cut: str = ""
    """What was left out, in one sentence; empty if nothing was."""

    def specification(self) -> dict[str, Any]:
        """The chart as a Vega-Lite specification, with its data."""
        is_line = self.kind == "line"
        shown = [label.isoformat() if isinstance(label, dt.datetime) else label for label in self.labels]
        field = "label" if self.axis in ("series", "value", "__proto__") else self.axis
        values = [
            {field: label, "series": name, "value": number}
            for name, numbers in self.series.items()
            for label, number in zip(shown, numbers, strict=True)
        ]
        axis: dict[str, Any] = {
            "field": _escape_field(field),
            "type": "temporal" if is_line else "nominal",
            "title": self.axis,
        }
        value = {"field": "value", "type": "quantitative", "title": ", ".join(self.series)}
        axis |= {"type": "temporal", "scale": {"type": "utc"}} if is_line else {"type": "nominal", "sort": None}
        sides = {"x": axis, "y": value} if is_line else {"x": value, "y": axis}
        color: dict[str, Any] = {"field": "series", "type": "nominal", "legend": {} if len(self.series) > 1 else None}
        offset = {"yOffset": {"field": "series", "sort": None}} if len(self.series) > 1 and not is_line else {}
        spec = {
            "$schema": _SCHEMA,
            "data": {"values": values},
            "mark": {"type": "line", "point": len(self.labels) <= 100} if is_line else {"type": "bar"},
            "encoding": {**sides, **offset, "color": color},
        }
        return spec | ({"title": {"text": "", "subtitle": self.cut}} if self.cut else {})

    def svg(self) -> str:
        """The chart as SVG, with text that can be selected and no scripts."""
        return (_draw_lines if self.kind == "line" else _draw_bars)(self)

    def save(self, path: str) -> None:
        """Write the chart to an ``.svg`` or ``.json`` file, or to ``.png``, which needs ``windrow[plot]``."""
        import json
        from pathlib import Path

        suffix = Path(path).suffix
        if suffix == ".svg":
            Path(path).write_text(self.svg().replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))
        elif suffix == ".json":
            Path(path).write_text(json.dumps(self.specification()))
        elif suffix == ".png":
            try:
                import vl_convert
            except ImportError:
                raise QueryError("a chart as .png needs vl-convert-python: pip install 'windrow[plot]'") from None
            Path(path).write_bytes(vl_convert.vegalite_to_png(self.specification()))
        else:
            raise QueryError(f"{path} has no suffix of a chart; use .svg, .json or .png")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:  # noqa: ARG002
        spec = self.specification()
        return {"application/vnd.vegalite.v6+json": spec, "text/html": self.svg(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        of = f"{len(self.labels)} {'points' if self.kind == 'line' else 'bars'} of {', '.join(self.series)}"
        return f"<Chart of {of} by {self.axis}{'; ' + self.cut if self.cut else ''}>"


def make_chart(rows: pa.Table, measures: Sequence[str] | None = None) -> Chart | None:
    """The chart of rows: their numbers (or those of `measures`) by their first time, or by what stands first.

    None if they have no numbers.
    """
    names = rows.schema.names
    unknown = [name for name in measures or () if name not in names]
    if unknown:
        raise QueryError(f"the answer has no column {unknown[0]!r}; it has {', '.join(names)}")
    times = [f.name for f in rows.schema if pa.types.is_timestamp(f.type) or pa.types.is_date(f.type)]
    numbers = [name for name in measures or names if is_number(rows.schema.field(name).type)]
    if not numbers or not rows.num_rows:
        return None
    numbers, unseen = numbers[:_MOST_SERIES], numbers[_MOST_SERIES:]
    cut = [f"not shown: {', '.join(unseen)}"] if unseen else []
    if times:
        rows = rows.filter(rows.column(times[0]).is_valid()).sort_by(times[0])
        text = next((name for name in names if pa.types.is_string(rows.schema.field(name).type)), None)
        return _make_lines(rows, times[0], text, numbers, cut)
    labels = next((field.name for field in rows.schema if not is_number(field.type)), "row")
    if rows.num_rows > MAX_BARS:
        cut.append(f"the first {MAX_BARS} of {rows.num_rows:,} rows")
    first = rows.slice(0, MAX_BARS)
    if labels in names:
        texts: Iterable[Any] = json_values(first.column(labels).combine_chunks(), first.schema.field(labels))
    else:
        texts = range(1, first.num_rows + 1)
    series = {name: _numbers(first, name) for name in numbers}
    return Chart("bar", labels, tuple(map(str, texts)), series, "; ".join(cut))


def _make_lines(rows: pa.Table, time: str, text: str | None, numbers: list[str], cut: list[str]) -> Chart:
    """Lines over time: one for each measure, or for each text where there is one measure and a column of text."""
    instants = rows.column(time).cast(pa.timestamp("us", "UTC"), safe=False).to_pylist()
    labels = sorted(set(instants))
    if len(labels) > MAX_POINTS:
        cut.append(f"the newest {MAX_POINTS:,} of {len(labels):,} points")
    labels = labels[-MAX_POINTS:]
    place = {label: number for number, label in enumerate(labels)}
    lines: dict[str, list[float | None]] = {}
    several = text is not None and len(labels) < rows.num_rows
    groups = rows.column(text).to_pylist() if several else [None] * len(instants)
    for name in numbers:
        for instant, group, number in zip(instants, groups, _numbers(rows, name), strict=True):
            key = name if group is None else str(group) if len(numbers) == 1 else f"{group}, {name}"
            if instant in place:
                lines.setdefault(key, [None] * len(labels))[place[instant]] = number
    if len(lines) > _MOST_SERIES:
        cut.append(f"{_MOST_SERIES} of {len(lines):,} lines")
    drawn = dict(list(lines.items())[:_MOST_SERIES])
    return Chart("line", time, tuple(labels), {name: tuple(points) for name, points in drawn.items()}, "; ".join(cut))


def is_number(kind: pa.DataType) -> bool:
    """Whether a column can be drawn."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _numbers(rows: pa.Table, name: str) -> tuple[float | None, ...]:
    values = (None if value is None else float(value) for value in rows.column(name).to_pylist())
    return tuple(value if value is not None and abs(value) < float("inf") else None for value in values)


def _escape_field(name: str) -> str:
    return "".join(f"\\{character}" if character in ".[]\\'\"" else character for character in name)


def format_number(value: float) -> str:
    """A number on an axis or a bar."""
    return f"{value:,.6g}" if abs(value) < 1e15 else f"{value:g}"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _legend(chart: Chart, y: int) -> str:
    parts, x = [], _LEFT
    for name, color in zip(chart.series, _COLORS, strict=False):
        short = name if len(name) <= 24 else name[:23] + "…"
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{_text(short)}</text>')
        x += 30 + 7 * len(short)
    return "".join(parts)


def _cut_text(chart: Chart, y: int) -> str:
    return f'<text x="{_WIDTH - 8}" y="{y}" text-anchor="end" font-style="italic">{_text(chart.cut)}</text>'


def _open_svg(chart: Chart, height: int) -> str:
    name = _text(", ".join(chart.series))
    look = 'font-family="sans-serif" font-size="12" role="img"'
    return f'<svg viewBox="0 0 {_WIDTH} {height}" {look} aria-label="{name}">'


def _draw_bars(chart: Chart) -> str:
    values = [value for points in chart.series.values() for value in points if value is not None]
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    scale = (_WIDTH - _LABEL - 90) / ((high - low) or 1.0)
    zero = _LABEL - low * scale
    rows = len(chart.labels) * len(chart.series)
    height = rows * _BAR + 44
    parts = [_open_svg(chart, height)]
    for position, label in enumerate(chart.labels):
        for number, (points, color) in enumerate(zip(chart.series.values(), _COLORS, strict=False)):
            y = (position * len(chart.series) + number) * _BAR + 24
            value = points[position]
            short = label if len(label) <= 28 else label[:27] + "…"
            if number == 0:
                parts.append(f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{_text(short)}</text>')
            if value is None:
                continue
            left, width = (zero, value * scale) if value >= 0 else (zero + value * scale, -value * scale)
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{_BAR - 5}" fill="{color}"/>'
                f'<text x="{left + width + 6:.1f}" y="{y + 14}">{_text(format_number(value))}</text>'
            )
    axis = f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="20" y2="{height - 20}" stroke="#999"/>'
    return "\n".join([*parts, axis, _legend(chart, 14), _cut_text(chart, height - 6), "</svg>"])


def _draw_lines(chart: Chart) -> str:
    values = [value for points in chart.series.values() for value in points if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    first, last = chart.labels[0], chart.labels[-1]
    span = (last - first).total_seconds() or 1.0
    x_of = {label: _LEFT + (label - first).total_seconds() / span * (_WIDTH - _LEFT - _PAD) for label in chart.labels}

    def y_of(value: float) -> float:
        return _HEIGHT - _PAD - (value - low) * (_HEIGHT - 2 * _PAD) / ((high - low) or 1.0)

    parts = [_open_svg(chart, _HEIGHT + 20)]
    for tick in range(_TICKS + 1):
        value = low + (high - low) * tick / _TICKS
        y = y_of(value)
        parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _PAD}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_text(format_number(value))}</text>'
        )
    for tick in (0, 1, 2):
        when, anchor = first + (last - first) * tick / 2, ("start", "middle", "end")[tick]
        x, shown = _LEFT + (_WIDTH - _LEFT - _PAD) * tick / 2, when.isoformat(" ", "seconds").replace("+00:00", "Z")
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="{anchor}">{_text(shown)}</text>')
    for (name, points), color in zip(chart.series.items(), _COLORS, strict=False):
        pairs = zip(chart.labels, points, strict=True)
        drawn = [(x_of[label], y_of(value), label, value) for label, value in pairs if value is not None]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in drawn)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{line}"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{color}"><title>'
            f"{_text(f'{name}, {label.isoformat()}: {value:g}')}</title></circle>"
            for x, y, label, value in drawn
        ]
    return "\n".join([*parts, _legend(chart, 14), _cut_text(chart, _HEIGHT + 12), "</svg>"])


def plot(rows: pa.Table, measures: Sequence[str] | None) -> Chart:
    """The chart of an answer's rows, or an error where there is nothing to draw."""
    chart = make_chart(rows, measures)
    if chart is None:
        raise QueryError("the answer has no rows with numbers, so there is nothing to draw")
    return chart
