"""Commands for SQL: `sql` answers statements, `explain` shows what one would read; `sql` alone opens a prompt."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow import arguments
from windrow.cli import terminal
from windrow.cli.session import Failure, Session, command
from windrow.cli.worker_process import RunStatement, Worker, can_fork
from windrow.errors import QueryError, StorageError

if TYPE_CHECKING:
    from windrow.queries.answer import Answer, Explanation
    from windrow.service.client import RemoteWarehouse
    from windrow.warehouse import GapPolicy, Isolation, Warehouse

TOKEN_VARIABLE = "WINDROW_TOKEN"
ISOLATION_LEVELS = ("snapshot", "latest", "serial", "fresh")
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
    records: bool = False
    """One column a line."""
    screen: str | None = None
    """A file for what would be shown, whatever its width: the prompt pages it."""
    values: str | None = None
    """A file for the values of the rows, as JSON: for the prompt itself."""


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
@click.option("--connect", "address", metavar="URL", help="Ask a server, such as grpc+tls://host; see WINDROW_TOKEN.")
@click.option("--token-file", metavar="FILE", help="A file with the token for the server.")
@click.option("--tls-ca", metavar="FILE", help="Certificates that sign the server's, if the system does not know them.")
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
    address: str | None,
    token_file: str | None,
    tls_ca: str | None,
    **run_options: Any,
) -> None:
    """Ask in SQL, with windows behind the names of streams.

    STATEMENT is DuckDB's SQL, as in: SELECT src, sum(len) FROM packets [WINDOW 10 MINUTES] GROUP BY src. Without one,
    a prompt opens on a terminal, and standard input is read elsewhere. With --connect a server answers; its token is
    in WINDROW_TOKEN or a file.
    """
    if statement is not None and file is not None:
        raise click.UsageError("give either a statement or --file")
    if sum((session.json, as_csv, output is not None)) > 1:
        raise click.UsageError("choose one of --json, --csv and --output")
    output_format = OutputFormat(session.json, as_csv, output, limit, about)
    options = SqlOptions(parse_params(params), **run_options)
    with explain_query_errors(), contextlib.ExitStack() as stack:
        if address is None and (token_file or tls_ca):
            raise click.UsageError("--token-file and --tls-ca are for --connect")
        server = None if address is None else _find_server(address, token_file, tls_ca, options)
        if statement is None and file is None and sys.stdin.isatty():
            from windrow.cli.prompt import run_prompt

            where = address or str(session.path)
            run_prompt(_start_runner(session, server, options, output_format, stack, None), output_format, where)
            return
        statements = _split(statement if statement is not None else _read_text(file or _STDIN))
        # Nothing that a single statement reads is worth keeping.
        run = _start_runner(session, server, options, output_format, stack, 0 if len(statements) == 1 else None)
        _run_statements(run, statements, output_format)


def _find_server(
    address: str, token_file: str | None, certificates: str | None, options: SqlOptions
) -> Callable[[], "RemoteWarehouse"]:
    """What connects to a server; a token on the command line would be seen by other users."""
    if options.memory_limit is not None:
        raise click.UsageError("--memory-limit is for a warehouse on this machine; a server has limits of its own")
    token = os.environ.get(TOKEN_VARIABLE) if token_file is None else _read_text(token_file).strip()

    def connect() -> "RemoteWarehouse":
        import windrow

        return windrow.connect(address, token or None, certificates)

    return connect


def _start_runner(
    session: Session,
    server: Callable[[], "RemoteWarehouse"] | None,
    options: SqlOptions,
    output_format: OutputFormat,
    stack: contextlib.ExitStack,
    cache_bytes: int | None,
) -> RunStatement:
    """What runs statements: a worker process, or this one where the output is captured."""

    def start() -> RunStatement:
        wh: Any = (
            session.open(read_only=options.isolation != "serial", cache_bytes=cache_bytes)
            if server is None
            else server()
        )
        stack.enter_context(wh)
        if memory is not None:
            wh.sql("SELECT count(*) FROM range(9)").fetchall()  # so that what DuckDB itself needs is there already
        return lambda statement, settings: run_statement(wh, statement, options, replace(output_format, **settings))

    memory = arguments.check_size(options.memory_limit, "memory")
    if not can_fork():
        return start()
    if server is None:
        session.check_exists()
    worker = Worker(start, options.timeout, memory, stack.close)
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
        run(statement, {})


def _split(text: str) -> list[str]:
    """The statements of a text. Of most texts that is seen without DuckDB, which only the worker then has to import."""
    only = text.strip().rstrip(";")
    if ";" not in only and "--" not in only and "/*" not in only:
        return [only] if only else []
    from windrow.queries.sql.tokens import split_statements

    return split_statements(text)


def run_statement(
    wh: "Warehouse | RemoteWarehouse", statement: str, options: SqlOptions, output_format: OutputFormat
) -> None:
    """Run one statement and write its rows."""
    limits: dict[str, Any] = {"memory_limit": options.memory_limit} if options.memory_limit is not None else {}
    answer = wh.sql(
        statement,
        options.params,
        isolation=options.isolation,
        timeout=options.timeout,
        on_gap=options.on_gap,
        **limits,
    )
    with answer, contextlib.ExitStack() as stack:
        if output_format.values is not None:
            rows = answer.fetchall()
            Path(output_format.values).write_text(json.dumps(rows, default=str))
            return
        if output_format.screen is not None:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(output_format.screen, "w"))))
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
        limit = writers.TABLE_ROWS if output_format.limit is None else output_format.limit
        shown, total = _show_rows(answer, limit, output_format.records)
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


def _show_rows(answer: "Answer", limit: int, records: bool) -> tuple[int, int]:
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
    writers.show_rows(pa.RecordBatchReader.from_batches(answer.schema, batches), records=records)
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
    if explanation.summary:
        terminal.say(explanation.summary)
    if rows:
        terminal.print_table(columns, rows, right=columns[4:8])
    if explanation.pattern:
        terminal.say(f"update pattern: {explanation.pattern}")
    if explanation.plan:
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
    described = {"relations": relations, "update_pattern": explanation.pattern, "plan": explanation.plan}
    return described | ({"summary": explanation.summary} if explanation.summary else {})
