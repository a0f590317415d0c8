"""How things look: tables and sentences for people, JSON for machines, progress bars on a terminal's stderr only."""

import contextlib
import datetime as dt
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import click

from windrow.times import format_duration, format_time

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNLIMITED_WIDTH = 4000
"""Columns when nobody looks at a terminal: wide enough that nothing is cut."""

ProgressCallback = Callable[[int], None]


def say(text: str) -> None:
    """A sentence on stdout."""
    click.echo(text)


def note(text: str) -> None:
    """A sentence on stderr, where it does not disturb what a program reads."""
    click.echo(text, err=True)


def write_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def open_console() -> "Console":
    """Rich's console on stdout, as wide as the terminal, or as its content if there is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _UNLIMITED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), title: str = ""
) -> "Table":
    """A table; the columns named in `right` are numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title=title or None,
        title_justify="left",
        pad_edge=False,
        header_style="bold",
    )
    for name in columns:
        made.add_column(Text(escape_controls(name)), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(format_cell(value)) for value in row))
    return made


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table."""
    made, out = make_table(columns, rows, right=right, title=title), open_console()
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as captured:
        out.print(made)
    for line in captured.get().splitlines():
        say(line.rstrip())


def print_pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and what they stand for, one pair a line."""
    known = [(name, format_cell(value)) for name, value in rows]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        say(f"{name:<{width}}  {value}".rstrip())


def escape_controls(text: str) -> str:
    """Text without control characters, which data could use to play tricks on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def format_cell(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (list, dict, tuple)):
        return escape_controls(json.dumps(value, ensure_ascii=False, default=format_cell))
    return escape_controls(str(value))


def size(count: int) -> str:
    """Bytes for people."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
    return f"{amount / 1000:.4g} TB"


def count(number: int, word: str) -> str:
    """A number and what is counted: 1 row, 2 rows."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """A short time for people."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def names(items: Iterable[str]) -> str:
    """Names in a table cell."""
    return ", ".join(items) or "-"


def format_waiting(sources: Sequence[str]) -> str:
    """Whom a stream waits for; a stream without named sources waits for rows."""
    from windrow.definitions import DEFAULT_SOURCE

    return "newer rows" if tuple(sources) == (DEFAULT_SOURCE,) else names(sources)


def to_record(record: Any, instants: Sequence[str] = (), durations: Sequence[str] = ()) -> dict[str, Any]:
    """A record as JSON has it: instants in ISO form, durations in words that windrow reads back."""
    found = asdict(record) if is_dataclass(record) and not isinstance(record, type) else dict(record)
    for name in instants:
        found[name] = None if found[name] is None else format_time(found[name])
    for name in durations:
        found[name] = None if found[name] is None else format_duration(found[name]) if found[name] else "0 seconds"
    return found


@contextlib.contextmanager
def progress_bar(what: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[ProgressCallback]:
    """A progress bar while the block runs, told how far it has come; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = DownloadColumn() if in_bytes else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        done,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda position: bar.update(task, completed=position)
