"""Output of the command line: tables and sentences for people, JSON for machines.

Progress bars appear on stderr, and only on a terminal, so that a program can read stdout.
"""

import contextlib
import datetime as dt
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from windrow.times import format_duration, format_time

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


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), records: bool = False
) -> None:
    """Print a table; the columns named in `right`, which are numbers, are aligned to the right and never broken.

    With `records` each row is printed with one line for each of its columns.
    """
    lines = [[escape_controls(name) for name in columns], *([format_cell(value) for value in row] for row in rows)]
    if records:
        _print_records(lines)
        return
    widths = [max(map(_measure, cells)) for cells in zip(*lines, strict=True)]
    on_terminal = sys.stdout.isatty()
    if on_terminal or os.environ.get("COLUMNS"):
        room = shutil.get_terminal_size().columns - 3 * (len(widths) - 1)
        fitting = _fit_widths(widths, [name not in right for name in columns], room)
        if fitting is None:
            _print_records(lines)
            return
        widths = fitting
    sides = [name in right for name in columns]
    head = _lay_out(lines[0], widths, sides)
    say("\n".join(click.style(line, bold=True) for line in head) if on_terminal else "\n".join(head))
    say("─" * (sum(widths) + 3 * (len(widths) - 1)))
    for start in range(1, len(lines), _LINES_AT_ONCE):
        some = lines[start : start + _LINES_AT_ONCE]
        say("\n".join(line for cells in some for line in _lay_out(cells, widths, sides)))


_LINES_AT_ONCE = 1000
_LEAST_WIDTH = 8
"""Of a column whose cells are folded; where even that is too wide, rows are printed one under the other."""


def _fit_widths(widths: Sequence[int], foldable: Sequence[bool], room: int) -> list[int] | None:
    """Widths that fit into the room, None if there are none: wide columns of text are folded, numbers stay whole."""
    fixed = sum(width for width, may in zip(widths, foldable, strict=True) if not may)
    texts = sorted(width for width, may in zip(widths, foldable, strict=True) if may)
    most, rest = max(texts, default=0), room - fixed
    for position, width in enumerate(texts):
        share = rest // (len(texts) - position)
        if width > share:
            most = share
            break
        rest -= width
    if sum(texts) + fixed <= room:
        return list(widths)
    if not texts or (most < _LEAST_WIDTH and most < max(texts)) or rest < 0:
        return None
    return [min(width, most) if may else width for width, may in zip(widths, foldable, strict=True)]


def _lay_out(cells: Sequence[str], widths: Sequence[int], sides: Sequence[bool]) -> list[str]:
    """One row as lines of text; cells that are too wide go on below."""
    parts = [_fold(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, parts), default=0)):
        pieces = [part[number] if number < len(part) else "" for part in parts]
        padded = [
            " " * (width - _measure(piece)) + piece if right else piece + " " * (width - _measure(piece))
            for piece, width, right in zip(pieces, widths, sides, strict=True)
        ]
        lines.append("   ".join(padded).rstrip())
    return lines


def _fold(cell: str, width: int) -> list[str]:
    if _measure(cell) <= width:
        return [cell]
    if cell.isascii():
        return [cell[start : start + width] for start in range(0, len(cell), width)]
    pieces, taken = [""], 0
    for character in cell:
        size = _measure(character)
        if taken + size > width:
            pieces.append("")
            taken = 0
        pieces[-1] += character
        taken += size
    return pieces


def _print_records(lines: Sequence[Sequence[str]]) -> None:
    """Print rows that are too wide for a table one under the other, a line for each column."""
    width = max(map(_measure, lines[0]))
    for number, cells in enumerate(lines[1:], 1):
        pairs = zip(lines[0], cells, strict=True)
        say(
            "\n".join(
                [f"─ row {number:,}", *(f"{name}{' ' * (width - _measure(name))}  {cell}" for name, cell in pairs)]
            )
        )


def _measure(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


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

    return "newer rows, or a slide --to a time" if tuple(sources) == (DEFAULT_SOURCE,) else names(sources)


def to_record(record: Any, instants: Sequence[str] = (), durations: Sequence[str] = ()) -> dict[str, Any]:
    """Convert a record for JSON: instants in ISO form, durations in words that windrow can read."""
    plain = asdict(record) if is_dataclass(record) and not isinstance(record, type) else dict(record)
    for name in instants:
        plain[name] = None if plain[name] is None else format_time(plain[name])
    for name in durations:
        plain[name] = None if plain[name] is None else format_duration(plain[name]) if plain[name] else "0 seconds"
    return plain


def write_about(about: Any) -> None:
    """What is known of an answer, as a line of JSON beside its rows."""
    import msgspec

    print(msgspec.json.encode(about).decode(), file=sys.stderr, flush=True)


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
