r"""Commands that ask in SQL: `sql` for rows, `explain` for what would be read.

The prompt of `windrow sql`: statements over several lines, history, and completion of streams, tables and columns.

A statement ends with a semicolon. ``\d`` lists what can be asked, ``\d NAME`` its columns, ``\q`` leaves.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import Failure, Session, command
from windrow.errors import QueryError, StorageError, WindrowError

if TYPE_CHECKING:
    from windrow.queries.answer import Answer, Explanation
    from windrow.warehouse import Warehouse

LEVELS = ("snapshot", "latest", "serial")
_WORDS = {"null": None, "true": True, "false": False}
_STDIN = "-"

Option = Callable[[Callable[..., None]], Callable[..., None]]


@dataclass(frozen=True)
class Form:
    """How rows are to be written."""

    json: bool = False
    csv: bool = False
    output: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Asking:
    """How statements are to be asked."""

    params: list[Any] | dict[str, Any] | None = None
    isolation: str = "snapshot"
    timeout: float | None = None
    memory_limit: str | None = None


def params_option(function: Callable[..., None]) -> Callable[..., None]:
    """Adds ``-p`` to a command."""
    return click.option(
        "-p",
        "--param",
        "params",
        metavar="VALUE",
        multiple=True,
        help="A value for ?, in order, or NAME=VALUE for $NAME. Put '…' around text that looks like a number.",
    )(function)


@click.command("sql")
@click.argument("statement", required=False)
@click.option("-f", "--file", "file", metavar="FILE", help="Run the statements of a file; - is standard input.")
@params_option
@click.option(
    "--isolation", type=click.Choice(LEVELS), default="snapshot", show_default=True, help="How slides are met."
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Cancel it after this.")
@click.option("--memory-limit", metavar="SIZE", help="Such as 500MB; what needs more is spilled to disk, or refused.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Show at most N rows; a table shows 20 by default."
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
@click.option("--output", metavar="FILE", help="Write to a .parquet, .arrow, .csv or .jsonl file.")
@command
def sql(
    session: Session,
    statement: str | None,
    file: str | None,
    params: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
    **how: Any,
) -> None:
    """Ask in SQL, with windows behind the names of streams.

    STATEMENT is DuckDB's SQL, as in: SELECT src, sum(len) FROM packets [WINDOW 10 MINUTES] GROUP BY src. Without one,
    a prompt opens on a terminal, and standard input is read elsewhere.
    """
    if statement is not None and file is not None:
        raise click.UsageError("give either a statement or --file")
    if sum((session.json, as_csv, output is not None)) > 1:
        raise click.UsageError("choose one of --json, --csv and --output")
    form = Form(session.json, as_csv, output, limit)
    asking = Asking(parse_params(params), **how)
    with telling(), session.open(read_only=asking.isolation != "serial") as wh:
        if statement is None and file is None and sys.stdin.isatty():
            prompt(wh, asking, form)
            return
        _run(wh, statement if statement is not None else _read(file or _STDIN), asking, form)


@click.command("explain")
@click.argument("statement")
@params_option
@command
def explain(session: Session, statement: str, params: tuple[str, ...]) -> None:
    """Show what a statement would read: cells, segments, rows and bytes, before and after pruning."""
    with telling(), session.open(read_only=True) as wh:
        told = wh.explain(statement, parse_params(params))
    if session.json:
        terminal.write_json(_explanation_json(told))
        return
    show_explanation(told)


def _run(wh: "Warehouse", text: str, asking: Asking, form: Form) -> None:
    from windrow.queries.sql.tokens import split

    statements = split(text)
    if not statements:
        raise QueryError("there is no statement to run")
    if len(statements) > 1 and form.output is not None:
        raise QueryError(f"--output takes one statement, but there are {len(statements)}")
    for number, statement in enumerate(statements):
        if number and not (form.json or form.csv):
            terminal.say("")
        ask(wh, statement, asking, form)


def ask(wh: "Warehouse", statement: str, asking: Asking, form: Form) -> None:
    """Ask one statement and write its rows."""
    answer = wh.sql(
        statement,
        asking.params,
        isolation=asking.isolation,
        timeout=asking.timeout,
        memory_limit=asking.memory_limit,
    )
    with answer:
        write_answer(answer, form)


def write_answer(answer: "Answer", form: Form) -> None:
    """Write the rows of an answer in a form."""
    import pyarrow as pa

    from windrow.cli import writers
    from windrow.queries.answer import narrow
    from windrow.queries.sql.statement import parse

    if form.output is None and not (form.json or form.csv) and parse(answer.text).explain:
        for row in answer:
            terminal.say(row[0])
        return
    if form.output is None and not (form.json or form.csv):
        shown, total = _show(answer, writers.TABLE_ROWS if form.limit is None else form.limit)
        few = f", {shown:,} shown (--limit, --csv, --json or --output give more)" if shown < total else ""
        terminal.say(f"{terminal.count(total, 'row')}{_of(answer)}{few}")
        return
    rows = writers.limited(pa.RecordBatchReader.from_stream(answer), form.limit)
    if form.output is not None:
        with terminal.progress(f"write {form.output}") as moved:
            done = writers.write_file(rows, form.output, moved)
        terminal.say(f"{terminal.count(done, 'row')} written to {form.output}{_of(answer)}")
    elif form.csv:
        writers.print_csv(rows)
    else:
        writers.print_json(map(narrow, rows))


def _show(answer: "Answer", limit: int) -> tuple[int, int]:
    """Print the first rows; gives how many, and how many there are."""
    import pyarrow as pa

    from windrow.cli import writers

    kept: list[pa.RecordBatch] = []
    shown = total = 0
    for batch in answer.batches():
        if shown < limit:
            kept.append(batch.slice(0, limit - shown))
            shown += kept[-1].num_rows
        total += batch.num_rows
    writers.show_rows(pa.RecordBatchReader.from_batches(answer.schema, kept))
    return shown, total


def _of(answer: "Answer") -> str:
    """Which windows an answer is of, in words."""
    from windrow.queries.answer import show_windows

    words = f" of {show_windows(answer.windows)}" if answer.windows else ""
    seconds = answer.staleness.total_seconds()
    return f"{words}, {seconds:g} s behind" if seconds else words


def _read(file: str) -> str:
    if file == _STDIN:
        return sys.stdin.read()
    try:
        return Path(file).read_text()
    except UnicodeDecodeError:
        raise StorageError(f"{file} is not a text file") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror})") from None


def parse_params(given: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Parameters as they are bound: all by position, or all by name."""
    if not given:
        return None
    named = [_name_of(text) for text in given]
    if all(name is None for name in named):
        return [_value(text) for text in given]
    if any(name is None for name in named):
        raise click.UsageError("give all parameters by position, or all as NAME=VALUE")
    return {str(name): _value(text.partition("=")[2]) for name, text in zip(named, given, strict=True)}


def _name_of(text: str) -> str | None:
    name, equals, _ = text.partition("=")
    return name if equals and name.isidentifier() else None


def _value(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """A wrong statement is shown with the place where it is wrong, on lines of its own."""
    try:
        yield
    except QueryError as error:
        raise Failure(str(error)) from error


def show_explanation(told: "Explanation") -> None:
    """What would be read as a table, then DuckDB's plan."""
    columns = ("stream", "window", "slide", "read by", "cells", "segments", "rows", "bytes", "key")
    rows = []
    for pruned, window in zip(told.relations, told.windows, strict=True):
        parts = (pruned.cells, pruned.segments, pruned.rows)
        counts = [f"{read:,} of {stored:,}" for read, stored in parts]
        size = f"{terminal.size(pruned.bytes[0])} of {terminal.size(pruned.bytes[1])}"
        slide = "-" if window.slide is None else window.slide
        rows.append((window.stream, window.clause, slide, pruned.path, *counts, size, pruned.keys))
    if rows:
        terminal.table(columns, rows, right=columns[4:8])
    if told.pattern:
        terminal.say(f"update pattern: {told.pattern}")
    terminal.say(told.plan.rstrip())


def _explanation_json(told: "Explanation") -> dict[str, Any]:
    def one(pruned: Any, window: Any) -> dict[str, Any]:
        parts = {name: getattr(pruned, name) for name in ("cells", "segments", "rows", "bytes")}
        return {
            "stream": window.stream,
            "window": window.clause,
            "slide": window.slide,
            "path": pruned.path,
            "key": pruned.keys,
            **{name: {"read": read, "stored": stored} for name, (read, stored) in parts.items()},
        }

    relations = [one(*pair) for pair in zip(told.relations, told.windows, strict=True)]
    return {"relations": relations, "update_pattern": told.pattern, "plan": told.plan}


WELCOME = "DuckDB's SQL, with windows: FROM stream [WINDOW 10 MINUTES]. End with ;  \\d lists streams, \\q leaves."
FIRST, NEXT = "windrow> ", "     ...> "
_HISTORY_LENGTH = 2000
_KEYWORDS = [
    "ALL", "AND", "AS", "ASC", "ASOF", "BETWEEN", "BY", "CASE", "COUNT", "DAYS", "DESC", "DESCRIBE", "DISTINCT", "ELSE",
    "END", "EXCEPT", "EXISTS", "EXPLAIN", "FILTER", "FROM", "FULL", "GROUP", "HAVING", "HOURS", "IN", "INTERSECT",
    "INTERVAL", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "MINUTES", "NOT", "NULL", "ON", "OR", "ORDER", "OVER",
    "PARTITION", "QUALIFY", "RANGE", "RIGHT", "ROWS", "SECONDS", "SELECT", "SINCE", "TIMESTAMP", "TO", "UNION",
    "USING", "VALUES", "WHERE", "WINDOW", "WITH",
]  # fmt: skip

ReadLine = Callable[[str], str]


def prompt(wh: "Warehouse", asking: Asking, form: Form, read_line: ReadLine = input) -> None:
    """Ask, statement by statement, until the input ends."""
    with _editing(wh):
        terminal.say(WELCOME)
        for text in _statements(read_line):
            try:
                if text.startswith("\\"):
                    if _command(wh, text) is False:
                        return
                else:
                    ask(wh, text, asking, form)
            except WindrowError as error:
                terminal.note(str(error))
            except KeyboardInterrupt:
                terminal.note("cancelled")
            except BrokenPipeError:
                return
    terminal.say("")


def _statements(read_line: ReadLine) -> Iterator[str]:
    """What was typed, one statement or command at a time; Ctrl-C drops what was begun."""
    from windrow.queries.sql.tokens import is_finished, split

    lines: list[str] = []
    while True:
        try:
            lines.append(read_line(NEXT if lines else FIRST))
        except EOFError:
            return
        except KeyboardInterrupt:
            lines = []
            terminal.say("")
            continue
        text = "\n".join(lines)
        if not text.strip():
            lines = []
        elif text.startswith("\\"):
            lines = []
            yield text.strip()
        else:
            try:
                finished = is_finished(text)
            except QueryError as error:
                terminal.note(str(error))
                lines = []
                continue
            if finished:
                lines = []
                yield from split(text)


def _command(wh: "Warehouse", text: str) -> bool:
    """A command of the prompt itself; False if it was to leave."""
    word, _, name = text.partition(" ")
    if word in ("\\q", "\\quit"):
        return False
    if word == "\\d" and name.strip():
        columns = _columns(wh).get(name.strip().lower())
        if columns is None:
            terminal.note(f"there is no stream or table {name.strip()!r}")
        else:
            terminal.table(("column", "type"), columns)
    elif word == "\\d":
        kinds = [(name, "stream") for name in wh.streams()] + [(name, "table") for name in wh.tables()]
        terminal.table(("name", "kind"), sorted(kinds))
    else:
        terminal.note(f"{word} is not a command; there are \\d, \\d NAME and \\q")
    return True


def _columns(wh: "Warehouse") -> dict[str, list[tuple[str, str]]]:
    """Columns and types of every stream and table, by name in lower case."""
    found = {}
    for name in [*wh.streams(), *wh.tables()]:
        quoted = '"' + name.replace('"', '""') + '"'
        with contextlib.suppress(WindrowError):
            rows = wh.sql(f"DESCRIBE {quoted}").fetchall()
            found[name.lower()] = [(str(row[0]), str(row[1])) for row in rows]
    return found


def completions(wh: "Warehouse", word: str, line: str) -> list[str]:
    """What a word may become: columns (of the relations on the line, if any), streams, tables, words of SQL."""
    from windrow.queries.system_tables import TABLES

    folded, words = word.lower(), line.lower()
    columns = _columns(wh)
    named = [name for name in columns if name in words]
    wanted = [column for name in named or columns for column, _ in columns[name]]
    names = [*wanted, *wh.streams(), *wh.tables(), *(f"windrow.{name}" for name in TABLES)]
    keywords = [keyword if word[:1].isupper() else keyword.lower() for keyword in _KEYWORDS]
    return [name for name in dict.fromkeys([*names, *keywords]) if name.lower().startswith(folded)]


@contextlib.contextmanager
def _editing(wh: "Warehouse") -> Iterator[None]:
    """Line editing with history and completion while the prompt is open, where the terminal has it."""
    try:
        import readline
    except ImportError:
        yield
        return
    found: list[str] = []

    def complete(word: str, state: int) -> str | None:
        if state == 0:
            found[:] = completions(wh, word, readline.get_line_buffer())
        return found[state] if state < len(found) else None

    history = _history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_history_length(_HISTORY_LENGTH)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()[]=<>+-*/;")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "windrow" / "sql_history"
