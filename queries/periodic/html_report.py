"""A run as an HTML page: its window, a chart and its rows, in one file without scripts or external resources.

Everything that comes from data or from a user's text is escaped; the chart is SVG with text that can be selected.
"""

import datetime as dt
import html
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from windrow import times
from windrow.catalog.records import QueryEntry, RunEntry
from windrow.formats.text import encode_json, json_values
from windrow.queries.answer import narrow_integers
from windrow.queries.periodic.definition import RUN_COLUMNS, read_own_schema

MAX_ROWS = 500
"""Rows of the table on the page."""
MAX_BARS = 25
MAX_POINTS = 200
_WIDTH, _BAR, _LABEL, _HEIGHT, _PAD = 720, 22, 200, 240, 36
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}pre{background:#f4f4f2;padding:.8rem;overflow:auto}
table{border-collapse:collapse;width:100%}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.warn{color:#a33}svg{max-width:100%;height:auto}
svg text{font-size:12px;fill:#333}.bar{fill:#3b6ea5}.line{fill:none;stroke:#3b6ea5;stroke-width:2}
.axis{stroke:#999}.null{color:#999}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}pre{background:#262626}
th,td{border-color:#444}svg text{fill:#ccc}.bar{fill:#6ba3dd}.line{stroke:#6ba3dd}}
"""


def render_page(entry: QueryEntry, run: RunEntry, rows: pa.Table, history: pa.Table) -> str:
    """The page of one run.

    Args:
        entry: The query.
        run: The run.
        rows: What it delivered, with the columns of the run before the query's own.
        history: The results table, for a line over earlier runs where an answer is a single row.
    """
    answer = narrow_integers(rows.select(read_own_schema(entry).names))
    chart_svg = _render_chart(entry, answer, history)
    shown = answer.slice(0, MAX_ROWS)
    more = (
        f"<p>{answer.num_rows - MAX_ROWS} more rows are in the results table.</p>" if answer.num_rows > MAX_ROWS else ""
    )
    chart = f"<h2>Chart</h2>\n{chart_svg}\n" if chart_svg else ""
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_text(entry.name)}, slide {run.slide}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(entry.name)}</h1>\n{_render_header(entry, run)}\n{chart}"
        f"<h2>Rows</h2>\n{_render_table(shown)}\n{more}\n<h2>Query</h2>\n<pre>{_text(entry.sql)}</pre>\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _render_header(entry: QueryEntry, run: RunEntry) -> str:
    start = "the beginning" if run.window_start is None else times.format_time(run.window_start)
    output_text = {"whole": "the whole answer", "inserts": "rows that have come", "deletes": "rows that have gone"}
    late = f", {times.format_duration(run.staleness)} behind the stream" if run.staleness else ""
    warning = "" if run.complete else '<p class="warn">Not every source had reached the end of this window.</p>'
    streams = ", ".join(pace.stream for pace in entry.paces)
    return (
        f"<p>{_text(streams)} after {_text(start)} up to {_text(times.format_time(run.window_end))} "
        f"(slide {run.slide}{late}), {run.rows} rows, {output_text[entry.output]}.</p>{warning}"
    )


def _render_table(rows: pa.Table) -> str:
    numeric = [_is_number(field.type) for field in rows.schema]
    kinds = [' class="n"' if number else "" for number in numeric]
    head = "".join(f"<th{kind}>{_text(name)}</th>" for kind, name in zip(kinds, rows.schema.names, strict=True))
    columns = [_values(rows, name) for name in rows.schema.names]
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_render_cell(value)}</td>" for kind, value in zip(kinds, row, strict=True))
        + "</tr>"
        for row in zip(*columns, strict=True)
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _values(rows: pa.Table, name: str) -> list[Any]:
    """A column in the forms that all files have."""
    return json_values(rows.column(name).combine_chunks(), rows.schema.field(name))


def _render_cell(value: Any) -> str:
    if value is None:
        return '<span class="null">null</span>'
    if isinstance(value, (list, dict)):
        return _text(encode_json(value).decode())
    return _text(_number(value) if isinstance(value, float) else value)


def _number(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1e15 else f"{value:g}"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _render_chart(entry: QueryEntry, rows: pa.Table, history: pa.Table) -> str:
    """Bars of the first number by what stands before it; for a single row, a line of that number over the runs."""
    value = next((field.name for field in rows.schema if _is_number(field.type)), None)
    if value is None:
        return ""
    if rows.num_rows == 1 and entry.output == "whole":
        past = history.slice(max(0, history.num_rows - MAX_POINTS))
        ends, numbers = past.column(RUN_COLUMNS.names[2]).to_pylist(), past.column(value).to_pylist()
        points = [(end, float(n)) for end, n in zip(ends, numbers, strict=True) if end is not None and _finite(n)]
        return _render_line(value, points)
    labels = [name for name in rows.schema.names if not _is_number(rows.schema.field(name).type)]
    first = rows.slice(0, MAX_BARS)
    bar_labels = _values(first, labels[0]) if labels else list(range(1, first.num_rows + 1))
    bars = [
        (str(name), float(number))
        for name, number in zip(bar_labels, first.column(value).to_pylist(), strict=True)
        if _finite(number)
    ]
    return _render_bars(value, bars)


def _finite(value: float | Decimal | None) -> bool:
    return value is not None and abs(float(value)) < float("inf")


def _render_bars(name: str, bars: Sequence[tuple[str, float]]) -> str:
    if not bars:
        return ""
    low, high = min(0.0, *(v for _, v in bars)), max(0.0, *(v for _, v in bars))
    scale = (_WIDTH - _LABEL - 90) / ((high - low) or 1.0)
    zero = _LABEL - low * scale
    height = len(bars) * _BAR + 8
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_text(name)}">']
    for position, (label, value) in enumerate(bars):
        y = position * _BAR + 4
        left, width = (zero, value * scale) if value >= 0 else (zero + value * scale, -value * scale)
        short = label if len(label) <= 28 else label[:27] + "…"
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{_text(short)}</text>'
            f'<rect class="bar" x="{left:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{_BAR - 5}"/>'
            f'<text x="{left + width + 6:.1f}" y="{y + 14}">{_text(_number(value))}</text>'
        )
    parts.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{height}"/></svg>')
    return "\n".join(parts)


def _render_line(name: str, points: Sequence[tuple[dt.datetime, float]]) -> str:
    if not points:
        return ""
    values = [value for _, value in points]
    low, high = min(values), max(values)
    x_step = (_WIDTH - 2 * _PAD) / max(1, len(points) - 1)
    y_scale = (_HEIGHT - 2 * _PAD) / ((high - low) or 1.0)
    coordinates = [
        (_PAD + position * x_step, _HEIGHT - _PAD - (value - low) * y_scale) for position, value in enumerate(values)
    ]
    polyline = " ".join(f"{x:.1f},{y:.1f}" for x, y in coordinates)
    dots = "".join(
        f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
        f"<title>{_text(f'{when.isoformat()}: {value:g}')}</title></circle>"
        for (x, y), (when, value) in zip(coordinates, points, strict=True)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(name)}">\n'
        f'<text x="{_PAD}" y="16">{_text(name)}: {_text(_number(low))} to {_text(_number(high))}</text>\n'
        f'<line class="axis" x1="{_PAD}" x2="{_WIDTH - _PAD}" y1="{_HEIGHT - _PAD}" y2="{_HEIGHT - _PAD}"/>\n'
        f'<polyline class="line" points="{polyline}"/>\n{dots}\n'
        f'<text x="{_PAD}" y="{_HEIGHT - 12}">{_text(points[0][0].isoformat())}</text>\n'
        f'<text x="{_WIDTH - _PAD}" y="{_HEIGHT - 12}" text-anchor="end">{_text(points[-1][0].isoformat())}</text>\n'
        "</svg>"
    )
