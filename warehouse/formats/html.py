"""Records and rows as tables: in HTML, which notebooks show and where everything is escaped, and as plain text."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from windrow.times import to_datetime

Record = TypeVar("Record")
_INSTANTS = frozenset(("now", "created", "delivered_at", "retry_at", "at"))
"""Fields that count microseconds since 1970."""


def render_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Rows under the names of their columns; numbers stand to the right."""
    import html  # few programs show anything in HTML

    def render_cell(value: Any) -> str:
        style = ' style="text-align:right"' if _is_number(value) else ""
        return f"<td{style}>{html.escape(to_text(value))}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(render_cell, row))}</tr>" for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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


def format_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """The same as plain text."""
    rows = list(rows)
    cells = [[to_text(value).replace("\n", " ") for value in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [all(value is None or _is_number(value) for value in column) for column in zip(*rows, strict=True)]
    sides = sides or [False] * len(widths)
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, sides, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join(filter(None, [caption, *lines]))


class ShownAsTable:
    """What notebooks show as a table, and `print` as one in plain text."""

    def _table(self) -> tuple[Sequence[str], Iterable[Sequence[Any]], str]:
        """Names of columns, rows, and a caption."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return render_table(*self._table())

    def __str__(self) -> str:
        return format_table(*self._table())


class TableRecord(ShownAsTable):
    """A dataclass that is shown as a table of its fields."""

    def _table(self) -> tuple[Sequence[str], Iterable[Sequence[Any]], str]:
        return ("", ""), _plain_fields(self).items(), type(self).__name__


class TableList(ShownAsTable, list[Record]):
    """A list of dataclasses that is shown as one table."""

    def _table(self) -> tuple[Sequence[str], Iterable[Sequence[Any]], str]:
        records = [_plain_fields(record) for record in self]
        return (tuple(records[0]), ([*record.values()] for record in records), "") if records else ((), (), "none")


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
