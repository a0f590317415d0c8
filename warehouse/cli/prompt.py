r"""The prompt of `windrow sql`: statements over several lines, history, and completion of streams, tables and columns.

A statement ends with a semicolon. ``\d`` lists what can be asked, ``\d NAME`` its columns, ``\q`` leaves.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from windrow.cli import terminal
from windrow.cli.sql import Asking, Form, ask
from windrow.errors import QueryError, WindrowError

if TYPE_CHECKING:
    from windrow.warehouse import Warehouse

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
    from windrow.queries.sql.scripts import is_finished, split

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
