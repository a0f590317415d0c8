"""Output of the command line: tables and sentences for people, JSON for machines.

Progress bars appear on stderr, and only on a terminal, so that a program can read stdout.
"""

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
"""Width without a terminal, so that no cell is cut."""

ProgressCallback = Callable[[int], None]


def say(text: str) -> None:
    """Print a line on stdout."""
    click.echo(text)


def note(text: str) -> None:
    """Print a line on stderr, where it does not disturb what a program reads."""
    click.echo(text, err=True)


def write_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def open_console() -> "Console":
    """Open Rich's console on stdout, as wide as the terminal, or as its content if there is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _UNLIMITED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), title: str = ""
) -> "Table":
    """Make a table; the columns named in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title=title or None,
        title_justify="left",
        pad_edge=False,
        header_style="bold",
    )
    for name in columns:
        table.add_column(Text(escape_controls(name)), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_cell(value)) for value in row))
    return table


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table."""
    rich_table, console = make_table(columns, rows, right=right, title=title), open_console()
    if console.is_terminal:
        console.print(rich_table)
        return
    with console.capture() as captured:
        console.print(rich_table)
    for line in captured.get().splitlines():
        say(line.rstrip())


def print_pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line."""
    pairs = [(name, format_cell(value)) for name, value in rows]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        say(f"{name:<{width}}  {value}".rstrip())


def escape_controls(text: str) -> str:
    """Escape control characters, because data could otherwise command the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def format_cell(value: Any) -> str:
    """Format a value for a cell of a table."""
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
    """Format a number of bytes."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
    return f"{amount / 1000:.4g} TB"


def count(number: int, word: str) -> str:
    """Format a number and what it counts: 1 row, 2 rows."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """Format a short time."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def names(items: Iterable[str]) -> str:
    """Format a list of names."""
    return ", ".join(items) or "-"


def format_waiting(sources: Sequence[str]) -> str:
    """Format the sources that a stream waits for; a stream without named sources waits for rows."""
    from windrow.definitions import DEFAULT_SOURCE

    return "newer rows" if tuple(sources) == (DEFAULT_SOURCE,) else names(sources)


def to_record(record: Any, instants: Sequence[str] = (), durations: Sequence[str] = ()) -> dict[str, Any]:
    """Convert a record for JSON: instants in ISO form, durations in words that windrow can read."""
    plain = asdict(record) if is_dataclass(record) and not isinstance(record, type) else dict(record)
    for name in instants:
        plain[name] = None if plain[name] is None else format_time(plain[name])
    for name in durations:
        plain[name] = None if plain[name] is None else format_duration(plain[name]) if plain[name] else "0 seconds"
    return plain


@contextlib.contextmanager
def progress_bar(description: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[ProgressCallback]:
    """Show a progress bar while the block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda position: bar.update(task, completed=position)
