"""Records and rows as HTML tables, which notebooks show; everything in them is escaped."""

import datetime as dt
import html
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from windrow.times import to_datetime

Record = TypeVar("Record")
_INSTANTS = frozenset(("now", "created", "delivered_at", "retry_at"))
"""Fields that count microseconds since 1970."""


def render_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Rows under the names of their columns; numbers stand to the right."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _render_cell(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    style = ' style="text-align:right"' if is_number else ""
    return f"<td{style}>{html.escape(to_text(value))}</td>"


def to_text(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return ""
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    if isinstance(value, (tuple, list)):
        return ", ".join(map(to_text, value))
    return str(value)


class HtmlRecord:
    """A dataclass that notebooks show as a table of its fields."""

    def _repr_html_(self) -> str:
        return render_table(("", ""), _plain_fields(self).items(), type(self).__name__)


class HtmlList(list[Record]):
    """A list of dataclasses that notebooks show as one table."""

    def _repr_html_(self) -> str:
        records = [_plain_fields(record) for record in self]
        return render_table(tuple(records[0]), ([*record.values()] for record in records)) if records else "none"


def _plain_fields(record: Any) -> dict[str, Any]:
    """The fields of a record that are values, not other records."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    values |= {name: to_datetime(values[name]) for name in _INSTANTS & values.keys() if isinstance(values[name], int)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (str, int, float, dt.datetime, dt.timedelta, type(None)))
        or (isinstance(value, tuple) and not any(is_dataclass(item) for item in value))
    }
