r"""Commands for SQL: `sql` answers statements, `explain` shows what one would read; `sql` alone opens a prompt.

The prompt takes statements over several lines that end with a semicolon, with history and completion of names; ``\d``
lists streams and tables, ``\d NAME`` the columns of one, ``\q`` leaves.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow import arguments
from windrow.cli import terminal
from windrow.cli.session import Failure, Session, command
from windrow.cli.worker_process import RunStatement, Worker, can_fork
from windrow.errors import QueryError, StorageError, WindrowError

if TYPE_CHECKING:
    from windrow.queries.answer import Answer, Explanation
    from windrow.warehouse import GapPolicy, Isolation, Warehouse

ISOLATION_LEVELS = ("snapshot", "latest", "serial")
_PARAM_WORDS = {"null": None, "true": True, "false": False}
_STDIN = "-"


@dataclass(frozen=True)
class OutputFormat:
    """How the rows of an answer are written."""

    json: bool = False
    csv: bool = False
    output: str | None = None
    limit: int | None = None
    about: bool = False


@dataclass(frozen=True)
class SqlOptions:
    """How statements are run."""

    params: list[Any] | dict[str, Any] | None = None
    isolation: "Isolation" = "snapshot"
    timeout: float | None = None
    memory_limit: str | None = None
    on_gap: "GapPolicy" = "tell"


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
    "--isolation",
    type=click.Choice(ISOLATION_LEVELS),
    default="snapshot",
    show_default=True,
    help="How slides are met.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Cancel it after this.")
@click.option("--memory-limit", metavar="SIZE", help="Such as 500MB; what needs more is spilled to disk, or refused.")
@click.option(
    "--on-gap",
    type=click.Choice(("tell", "error")),
    default="tell",
    show_default=True,
    help="An answer that is not complete says so, or is refused.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Show at most N rows; a table shows 20 by default."
)
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
@click.option("--output", metavar="FILE", help="Write to a .parquet, .arrow, .csv or .jsonl file.")
@click.option("--about", is_flag=True, help="Also say, as JSON on standard error, what is known of the answer.")
@command
def sql(
    session: Session,
    statement: str | None,
    file: str | None,
    params: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
    about: bool,
    **run_options: Any,
) -> None:
    """Ask in SQL, with windows behind the names of streams.

    STATEMENT is DuckDB's SQL, as in: SELECT src, sum(len) FROM packets [WINDOW 10 MINUTES] GROUP BY src. Without one,
    a prompt opens on a terminal, and standard input is read elsewhere.
    """
    if statement is not None and file is not None:
        raise click.UsageError("give either a statement or --file")
    if sum((session.json, as_csv, output is not None)) > 1:
        raise click.UsageError("choose one of --json, --csv and --output")
    output_format = OutputFormat(session.json, as_csv, output, limit, about)
    options = SqlOptions(parse_params(params), **run_options)
    with explain_query_errors(), contextlib.ExitStack() as stack:
        if statement is None and file is None and sys.stdin.isatty():
            run = _start_runner(session, options, output_format, stack, None)
            run_prompt(stack.enter_context(session.open(read_only=True)), run)
            return
        statements = _split(statement if statement is not None else _read_text(file or _STDIN))
        # Nothing that a single statement reads is worth keeping.
        run = _start_runner(session, options, output_format, stack, 0 if len(statements) == 1 else None)
        _run_statements(run, statements, output_format)


def _start_runner(
    session: Session,
    options: SqlOptions,
    output_format: OutputFormat,
    stack: contextlib.ExitStack,
    cache_bytes: int | None,
) -> RunStatement:
    """What runs statements: a worker process, or this one where the output is captured."""

    def start() -> RunStatement:
        wh = stack.enter_context(session.open(read_only=options.isolation != "serial", cache_bytes=cache_bytes))
        if memory is not None:
            wh.sql("SELECT count(*) FROM range(9)").fetchall()  # so that what DuckDB itself needs is there already
        return lambda statement: run_statement(wh, statement, options, output_format)

    memory = arguments.check_size(options.memory_limit, "memory")
    if not can_fork():
        return start()
    session.check_exists()
    worker = Worker(start, options.timeout, memory)
    stack.callback(worker.close)
    return worker.run


@click.command("explain")
@click.argument("statement")
@params_option
@command
def explain(session: Session, statement: str, params: tuple[str, ...]) -> None:
    """Show what a statement would read: cells, segments, rows and bytes, before and after pruning."""
    with explain_query_errors(), session.open(read_only=True) as wh:
        explanation = wh.explain(statement, parse_params(params))
    if session.json:
        terminal.write_json(_explanation_to_json(explanation))
        return
    show_explanation(explanation)


def _run_statements(run: RunStatement, statements: list[str], output_format: OutputFormat) -> None:
    if not statements:
        raise QueryError("there is no statement to run")
    if len(statements) > 1 and output_format.output is not None:
        raise QueryError(f"--output takes one statement, but there are {len(statements)}")
    for number, statement in enumerate(statements):
        if number and not (output_format.json or output_format.csv):
            terminal.say("")
        run(statement)


def _split(text: str) -> list[str]:
    """The statements of a text. Of most texts that is seen without DuckDB, which only the worker then has to import."""
    only = text.strip().rstrip(";")
    if ";" not in only and "--" not in only and "/*" not in only:
        return [only] if only else []
    from windrow.queries.sql.tokens import split_statements

    return split_statements(text)


def run_statement(wh: "Warehouse", statement: str, options: SqlOptions, output_format: OutputFormat) -> None:
    """Run one statement and write its rows."""
    answer = wh.sql(
        statement,
        options.params,
        isolation=options.isolation,
        timeout=options.timeout,
        memory_limit=options.memory_limit,
        on_gap=options.on_gap,
    )
    with answer:
        write_answer(answer, output_format)
        if output_format.about:
            terminal.write_about(answer.about())


def write_answer(answer: "Answer", output_format: OutputFormat) -> None:
    """Write the rows of an answer."""
    import pyarrow as pa

    from windrow.cli import writers
    from windrow.queries.answer import narrow_integers
    from windrow.queries.sql.statement import parse

    if output_format.output is None and not (output_format.json or output_format.csv) and parse(answer.text).explain:
        for row in answer:
            terminal.say(row[0])
        return
    if output_format.output is None and not (output_format.json or output_format.csv):
        shown, total = _show_rows(answer, writers.TABLE_ROWS if output_format.limit is None else output_format.limit)
        hint = f", {shown:,} shown (--limit, --csv, --json or --output give more)" if shown < total else ""
        terminal.say(f"{terminal.count(total, 'row')}{_describe_windows(answer)}{hint}")
        return
    rows = writers.limit_rows(pa.RecordBatchReader.from_stream(answer), output_format.limit)
    if output_format.output is not None:
        with terminal.progress_bar(f"write {output_format.output}") as report_progress:
            row_count = writers.write_file(rows, output_format.output, report_progress)
        terminal.say(f"{terminal.count(row_count, 'row')} written to {output_format.output}{_describe_windows(answer)}")
    elif output_format.csv:
        writers.print_csv(rows)
    else:
        writers.print_json(map(narrow_integers, rows))


def _show_rows(answer: "Answer", limit: int) -> tuple[int, int]:
    """Print the first rows; return how many, and how many there are in all."""
    import pyarrow as pa

    from windrow.cli import writers

    batches: list[pa.RecordBatch] = []
    shown = total = 0
    for batch in answer.batches():
        if shown < limit:
            batches.append(batch.slice(0, limit - shown))
            shown += batches[-1].num_rows
        total += batch.num_rows
    writers.show_rows(pa.RecordBatchReader.from_batches(answer.schema, batches))
    return shown, total


def _describe_windows(answer: "Answer") -> str:
    """Describe the windows of an answer in words."""
    from windrow.queries.answer import describe_windows

    described = describe_windows(answer.windows)
    words = f" of {described}" if described else ""
    seconds = answer.staleness.total_seconds()
    return f"{words}, {seconds:g} s behind" if seconds else words


def _read_text(file: str) -> str:
    if file == _STDIN:
        return sys.stdin.read()
    try:
        return Path(file).read_text()
    except UnicodeDecodeError:
        raise StorageError(f"{file} is not a text file") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror})") from None


def parse_params(texts: Sequence[str]) -> list[Any] | dict[str, Any] | None:
    """Parse parameters, all of them by position or all by name."""
    if not texts:
        return None
    names = [_find_param_name(text) for text in texts]
    if all(name is None for name in names):
        return [_parse_param(text) for text in texts]
    if any(name is None for name in names):
        raise click.UsageError("give all parameters by position, or all as NAME=VALUE")
    return {str(name): _parse_param(text.partition("=")[2]) for name, text in zip(names, texts, strict=True)}


def _find_param_name(text: str) -> str | None:
    name, equals, _ = text.partition("=")
    return name if equals and name.isidentifier() else None


def _parse_param(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if text.lower() in _PARAM_WORDS:
        return _PARAM_WORDS[text.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


@contextlib.contextmanager
def explain_query_errors() -> Iterator[None]:
    """Show an error in a statement over several lines, with the place of the error."""
    try:
        yield
    except QueryError as error:
        raise Failure.of(error, str(error)) from error


def show_explanation(explanation: "Explanation") -> None:
    """Print what would be read as a table, then DuckDB's plan."""
    columns = ("stream", "window", "slide", "read by", "cells", "segments", "rows", "bytes", "key")
    rows = []
    for relation, window in zip(explanation.relations, explanation.windows, strict=True):
        parts = (relation.cells, relation.segments, relation.rows)
        counts = [f"{read:,} of {stored:,}" for read, stored in parts]
        size = f"{terminal.size(relation.bytes[0])} of {terminal.size(relation.bytes[1])}"
        slide = "-" if window.slide is None else window.slide
        rows.append((window.stream, window.clause, slide, relation.path, *counts, size, relation.keys))
    if rows:
        terminal.print_table(columns, rows, right=columns[4:8])
    if explanation.pattern:
        terminal.say(f"update pattern: {explanation.pattern}")
    terminal.say(explanation.plan.rstrip())


def _explanation_to_json(explanation: "Explanation") -> dict[str, Any]:
    def to_json(relation: Any, window: Any) -> dict[str, Any]:
        parts = {name: getattr(relation, name) for name in ("cells", "segments", "rows", "bytes")}
        return {
            "stream": window.stream,
            "window": window.clause,
            "slide": window.slide,
            "path": relation.path,
            "key": relation.keys,
            **{name: {"read": read, "stored": stored} for name, (read, stored) in parts.items()},
        }

    relations = [to_json(*pair) for pair in zip(explanation.relations, explanation.windows, strict=True)]
    return {"relations": relations, "update_pattern": explanation.pattern, "plan": explanation.plan}


WELCOME = "DuckDB's SQL, with windows: FROM stream [WINDOW 10 MINUTES]. End with ;  \\d lists streams, \\q leaves."
FIRST_PROMPT, NEXT_PROMPT = "windrow> ", "     ...> "
_HISTORY_LENGTH = 2000
_KEYWORDS = [
    "ALL", "AND", "AS", "ASC", "ASOF", "BETWEEN", "BY", "CASE", "COUNT", "DAYS", "DESC", "DESCRIBE", "DISTINCT", "ELSE",
    "END", "EXCEPT", "EXISTS", "EXPLAIN", "FILTER", "FROM", "FULL", "GROUP", "HAVING", "HOURS", "IN", "INTERSECT",
    "INTERVAL", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "MINUTES", "NOT", "NULL", "ON", "OR", "ORDER", "OVER",
    "PARTITION", "QUALIFY", "RANGE", "RIGHT", "ROWS", "SECONDS", "SELECT", "SINCE", "TIMESTAMP", "TO", "UNION",
    "USING", "VALUES", "WHERE", "WINDOW", "WITH",
]  # fmt: skip

ReadLine = Callable[[str], str]


def run_prompt(wh: "Warehouse", run: RunStatement, read_line: ReadLine = input) -> None:
    """Run the prompt until the input ends; `wh` is for its own commands and for completion."""
    with _line_editing(wh):
        terminal.say(WELCOME)
        for text in _read_statements(read_line):
            try:
                if text.startswith("\\"):
                    if _run_prompt_command(wh, text) is False:
                        return
                else:
                    run(text)
            except WindrowError as error:
                terminal.note(str(error))
            except KeyboardInterrupt:
                terminal.note("cancelled")
            except BrokenPipeError:
                return
    terminal.say("")


def _read_statements(read_line: ReadLine) -> Iterator[str]:
    """Read one statement or command after the other; Ctrl-C discards an unfinished one."""
    from windrow.queries.sql.tokens import is_finished, split_statements

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
                yield from split_statements(text)


def _run_prompt_command(wh: "Warehouse", text: str) -> bool:
    """Run a command of the prompt itself; False to leave the prompt."""
    word, _, name = text.partition(" ")
    if word in ("\\q", "\\quit"):
        return False
    if word == "\\d" and name.strip():
        columns = _find_columns(wh).get(name.strip().lower())
        if columns is None:
            terminal.note(f"there is no stream or table {name.strip()!r}")
        else:
            terminal.print_table(("column", "type"), columns)
    elif word == "\\d":
        kinds = [(name, "stream") for name in wh.streams()] + [(name, "table") for name in wh.tables()]
        terminal.print_table(("name", "kind"), sorted(kinds))
    else:
        terminal.note(f"{word} is not a command; there are \\d, \\d NAME and \\q")
    return True


def _find_columns(wh: "Warehouse") -> dict[str, list[tuple[str, str]]]:
    """Find the columns and types of every stream and table, by its name in lower case."""
    columns = {}
    for name in [*wh.streams(), *wh.tables()]:
        quoted_name = '"' + name.replace('"', '""') + '"'
        with contextlib.suppress(WindrowError):
            rows = wh.sql(f"DESCRIBE {quoted_name}").fetchall()
            columns[name.lower()] = [(str(row[0]), str(row[1])) for row in rows]
    return columns


def find_completions(wh: "Warehouse", word: str, line: str) -> list[str]:
    """Find completions of a word: columns (of the relations on the line, if any), streams, tables, keywords."""
    from windrow.queries.system_tables import TABLE_NAMES

    prefix, lower_line = word.lower(), line.lower()
    columns = _find_columns(wh)
    relations = [name for name in columns if name in lower_line]
    column_names = [column for name in relations or columns for column, _ in columns[name]]
    names = [*column_names, *wh.streams(), *wh.tables(), *(f"windrow.{name}" for name in TABLE_NAMES)]
    keywords = [keyword if word[:1].isupper() else keyword.lower() for keyword in _KEYWORDS]
    return [name for name in dict.fromkeys([*names, *keywords]) if name.lower().startswith(prefix)]


@contextlib.contextmanager
def _line_editing(wh: "Warehouse") -> Iterator[None]:
    """Provide history and completion while the block runs, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    matches: list[str] = []

    def complete(word: str, state: int) -> str | None:
        if state == 0:
            matches[:] = find_completions(wh, word, readline.get_line_buffer())
        return matches[state] if state < len(matches) else None

    history = _find_history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    saved = readline.get_completer(), readline.get_completer_delims()
    readline.set_history_length(_HISTORY_LENGTH)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()[]=<>+-*/;")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(saved[0])
        readline.set_completer_delims(saved[1])
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


def _find_history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "windrow" / "sql_history"
