"""A run as an HTML page: its window, a chart and its rows, in one file without scripts or external resources.

Everything that comes from data or from a user's text is escaped; the chart is SVG with text that can be selected.
"""

import html
from typing import Any

import pyarrow as pa

from windrow import times
from windrow.catalog.records import QueryEntry, RunEntry
from windrow.formats.text import encode_json, json_values
from windrow.queries.answer import narrow_integers
from windrow.queries.charts import format_number, is_number, make_chart
from windrow.queries.periodic.definition import RUN_COLUMNS, find_shown_zone, read_own_schema
from windrow.queries.sql.calendar_units import find_zone

MAX_ROWS = 500
"""Rows of the table on the page."""
MAX_POINTS = 200
"""Earlier runs of a chart over the runs."""
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
    zone = find_zone(find_shown_zone(entry))
    bounds = [
        None if end is None else times.to_datetime(end).astimezone(zone) for end in (run.window_start, run.window_end)
    ]
    start, end = ("the beginning" if each is None else each.isoformat().replace("+00:00", "Z") for each in bounds)
    output_text = {"whole": "the whole answer", "inserts": "rows that have come", "deletes": "rows that have gone"}
    late = f", {times.format_duration(run.staleness)} behind the stream" if run.staleness else ""
    warning = "" if run.complete else '<p class="warn">Not every source had reached the end of this window.</p>'
    streams = ", ".join(pace.stream for pace in entry.paces)
    return (
        f"<p>{_text(streams)} after {_text(start)} up to {_text(end)} "
        f"(slide {run.slide}{late}), {run.rows} rows, {output_text[entry.output]}.</p>{warning}"
    )


def _render_table(rows: pa.Table) -> str:
    numeric = [is_number(field.type) for field in rows.schema]
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
    return _text(format_number(value) if isinstance(value, float) else value)


def _render_chart(entry: QueryEntry, rows: pa.Table, history: pa.Table) -> str:
    """The chart of the rows; for a single row, of its numbers over the runs."""
    if rows.num_rows == 1 and entry.output == "whole":
        end = RUN_COLUMNS.names[2]
        past = history.select([end, *(name for name in rows.schema.names if is_number(rows.schema.field(name).type))])
        chart = make_chart(narrow_integers(past)) if past.num_columns > 1 else None
    else:
        chart = make_chart(rows)
    return "" if chart is None else chart.svg()
