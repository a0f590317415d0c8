r"""The prompt of `windrow sql`: statements over several lines that end with a semicolon, and commands of its own.

Statements are run by whatever runs them for the command, a process of its own or a server; so are those that the prompt
asks for itself, with the same rights. Commands begin with a backslash, as psql's; `help` lists them.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from windrow.cli import terminal
from windrow.cli.completion import Names
from windrow.cli.sql import OutputFormat
from windrow.cli.worker_process import RunStatement
from windrow.errors import QueryError, WindrowError

WELCOME = "DuckDB's SQL, with windows: FROM stream [WINDOW 10 MINUTES]. End with ;  help lists commands."
FIRST_PROMPT, NEXT_PROMPT = "windrow> ", "     ...> "
_PAGED_ROWS = 1000
_WATCH_SECONDS = 0.5
_LEAVING = ("exit", "quit", "\\q", "\\quit")
_HELPING = ("help", "?", "\\?", "\\h", "\\help")
_HELP = (
    ("\\d", "lists streams, views, tables and results"),
    ("\\d NAME", "lists the columns of one, such as \\d windrow.slides"),
    ("\\watch", "asks the last statement again after each slide, until Ctrl-C"),
    ("\\timing", "says after each statement how long it took, or no longer"),
    ("\\x", "shows rows with a line for each column, or as tables again"),
    ("\\limit N", "shows at most N rows of an answer"),
    ("\\o FILE", "writes the next answer to a .parquet, .arrow, .csv or .jsonl file"),
    ("help, exit", "lists these, leaves; so does Ctrl-D"),
)
ReadLine = Callable[[str], str]


def run_prompt(run: RunStatement, form: OutputFormat, where: str, read_line: ReadLine | None = None) -> None:
    """Run the prompt until the input ends.

    Args:
        run: Runs a statement.
        form: How rows are written, as long as no command says otherwise.
        where: Of the warehouse, for the first line.
        read_line: By default the editor, or plain lines where that is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="windrow-prompt-") as folder:
        prompt = Prompt(run, form, Path(folder))
        terminal.say(f"{where}: {WELCOME}")
        for text in _read_statements(read_line or _line_reader(prompt.names)):
            try:
                if not prompt.take(text):
                    return
            except WindrowError as error:
                terminal.note(str(error))
            except KeyboardInterrupt:
                terminal.note("cancelled")
            except BrokenPipeError:
                return
    terminal.say("")


def is_finished(text: str) -> bool:
    """Whether Enter ends what was typed: a command, or a statement with its semicolon."""
    from windrow.queries.sql import tokens

    stripped = text.strip()
    if not stripped or _is_command(stripped):
        return True
    try:
        return tokens.is_finished(text)
    except QueryError:  # as within quotes
        return False


def _is_command(text: str) -> bool:
    return text.startswith("\\") or text.rstrip("; ").lower() in (*_LEAVING, *_HELPING)


def _line_reader(names: Names) -> ReadLine:
    try:
        from windrow.cli.line_editor import LineEditor
    except ImportError:
        terminal.note("completion, highlighting and history need 'windrow[prompt]': pip install 'windrow[prompt]'")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - lets the cursor move in what `input` reads
        return input
    return LineEditor(names.complete, is_finished, history_file(), NEXT_PROMPT)


def history_file() -> Path:
    """Where statements are kept that were typed."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "windrow" / "statements"


def _read_statements(read_line: ReadLine) -> Iterator[str]:
    """Read one statement or command after the other; Ctrl-C discards an unfinished one."""
    from windrow.queries.sql import tokens

    lines: list[str] = []
    while True:
        try:
            lines.append(read_line(NEXT_PROMPT if lines else FIRST_PROMPT))
        except EOFError:
            return
        except KeyboardInterrupt:
            lines = []
            terminal.say("")
            continue
        text = "\n".join(lines)
        if not text.strip():
            lines = []
        elif _is_command(text.strip()):
            lines = []
            yield text.strip()
        else:
            try:
                finished = tokens.is_finished(text)
            except QueryError as error:
                terminal.note(str(error))
                lines = []
                continue
            if finished:
                lines = []
                yield from tokens.split_statements(text)


class Prompt:
    """Runs what was typed; keeps what commands have set.

    Args:
        run: Runs a statement.
        form: How rows are written otherwise.
        folder: For files between the prompt and what runs its statements.
    """

    def __init__(self, run: RunStatement, form: OutputFormat, folder: Path) -> None:
        self.names = Names(self._ask)
        self._run, self._form, self._folder = run, form, folder
        self._pager = _find_pager() if sys.stdout.isatty() and not (form.json or form.csv) else None
        self._settings: dict[str, Any] = {}
        self._timing = False
        self._file: str | None = None
        """Where the next answer goes."""
        self._last: str | None = None

    def take(self, text: str) -> bool:
        """Run a statement or a command; False to leave."""
        word, _, rest = text.partition(" ")
        word, rest = word.rstrip("; ").lower(), rest.strip().rstrip(";").strip()
        if word in _LEAVING:
            return False
        if word in _HELPING:
            terminal.print_pairs(_HELP)
        elif not text.startswith("\\"):
            self._answer(text, paged=True)
        elif word in self._COMMANDS:
            self._COMMANDS[word](self, rest)
        else:
            terminal.note(f"{word} is not a command; help lists those there are")
        return True

    def _ask(self, statement: str) -> list[list[Any]]:
        """The rows of a statement of the prompt itself."""
        file = self._folder / "values.json"
        self._run(statement, {"values": str(file)})
        rows: list[list[Any]] = json.loads(file.read_text())
        return rows

    def _answer(self, statement: str, *, paged: bool) -> None:
        settings, self._last = dict(self._settings), statement
        began = time.perf_counter()
        screen = self._folder / "screen" if paged and self._pager is not None and self._file is None else None
        if screen is not None:
            screen.write_text("")
            settings = {"limit": self._form.limit or _PAGED_ROWS, **settings, "screen": str(screen)}
        if self._file is not None:
            settings |= {"output": self._file, "json": False, "csv": False}
            self._file = None
        try:
            self._run(statement, settings)
        finally:
            self.names.forget()
        seconds = time.perf_counter() - began
        if screen is not None:
            self._show(screen)
        if self._timing:
            terminal.say(f"took {terminal.format_seconds(seconds)}")

    def _show(self, screen: Path) -> None:
        """Show rows, in the pager if they are more or wider than the terminal, and the sentence below them."""
        text, size = screen.read_text(), shutil.get_terminal_size()
        rows, _, sentence = text.rstrip("\n").rpartition("\n")
        lines = rows.splitlines()
        if len(lines) + 2 < size.lines and max(map(len, lines), default=0) <= size.columns:
            terminal.say(text.rstrip("\n"))
            return
        assert self._pager is not None
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pager's
        try:
            subprocess.run(self._pager, input=rows, text=True, check=False)
        finally:
            signal.signal(signal.SIGINT, before)
        terminal.say(sentence)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _describe(self, name: str) -> None:
        self.names.forget()
        if not name:
            terminal.print_table(("name", "kind"), list(self.names.relations().items()))
            return
        columns = self.names.columns(name)
        if columns:
            terminal.print_table(("column", "type"), columns)
        else:
            terminal.note(f"there is no stream, view, table or result {name!r}")

    def _time(self, rest: str) -> None:
        self._timing = _switch(rest, self._timing)
        terminal.say(f"timing is {'on' if self._timing else 'off'}")

    def _show_records(self, rest: str) -> None:
        self._settings["records"] = _switch(rest, self._settings.get("records", False))
        terminal.say(f"a line for each column: {'on' if self._settings['records'] else 'off'}")

    def _limit(self, rest: str) -> None:
        if not rest.isdecimal():
            terminal.note(f"{rest!r} is not a number of rows; give one, such as \\limit 100")
            return
        self._settings["limit"] = int(rest)
        terminal.say(f"at most {terminal.count(int(rest), 'row')} of an answer")

    def _write_next(self, rest: str) -> None:
        self._file = rest or None
        terminal.say(f"the next answer goes to {rest}" if rest else "the next answer is shown")

    def _watch(self, rest: str) -> None:
        statement = rest or self._last
        if statement is None:
            terminal.note("there is no statement yet that could be asked again")
            return
        streams = self._watched(statement)
        while True:
            slides = self._slides(streams)
            self._answer(statement, paged=False)
            while self._slides(streams) == slides:
                time.sleep(_WATCH_SECONDS)
            terminal.say("")

    def _watched(self, statement: str) -> set[str]:
        """The streams that a statement names; of all, if it names none."""
        moving = [name for name, kind in self.names.relations().items() if kind in ("stream", "view")]
        return {name for name in moving if name.lower() in statement.lower()} or set(moving)

    def _slides(self, streams: set[str]) -> dict[str, Any]:
        rows = self._ask("SELECT stream, slide FROM windrow.streams")
        return {name: slide for name, slide in rows if name in streams}

    _COMMANDS: ClassVar[dict[str, Callable[["Prompt", str], None]]] = {
        "\\d": _describe, "\\timing": _time, "\\x": _show_records, "\\limit": _limit, "\\o": _write_next,
        "\\watch": _watch,
    }  # fmt: skip


def _switch(word: str, now: bool) -> bool:
    """What a switch becomes: the other, or what is said."""
    return {"on": True, "off": False}.get(word.lower(), not now)


def _find_pager() -> list[str] | None:
    chosen = shlex.split(os.environ.get("PAGER", "")) or ["less", "-S"]
    if chosen == ["less"]:
        chosen = ["less", "-S"]
    return chosen if shutil.which(chosen[0]) else None
