"""What every command shares: the choice of the warehouse, `--json`, errors in one line, commands imported on use.

A module with commands imports nothing heavy at its top, so that ``windrow --help`` stays fast.
"""

import contextlib
import errno
import functools
import importlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow.errors import FormatError, QueryError, WindrowError, is_temporary
from windrow.program import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from windrow.warehouse import Warehouse

MARKER_FILE = "windrow.json"
ENVIRONMENT_VARIABLE = "WINDROW_WAREHOUSE"
EXIT_REJECTED, EXIT_TEMPORARY, EXIT_PIPE_CLOSED = 3, 75, 141


class Failure(click.ClickException):
    """What a command ends with if it fails: a message on stderr, and an exit code that says whether to try again.

    Args:
        message: What is wrong.
        kind: The class of the error, for programs.
        exit_code: 1 for a mistake of the user or in the data, `EXIT_TEMPORARY` for what may pass by itself.
        details: What else a program may want to know, such as the line of a mistake.
    """

    def __init__(self, message: str, kind: str = "Failure", exit_code: int = 1, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class
        self.details = details
        self.as_json = False

    @classmethod
    def of(cls, error: Exception, message: str) -> "Failure":
        """The failure that an error means."""
        place = {key: getattr(error, key) for key in ("line", "column") if isinstance(error, QueryError)}
        return cls(message, type(error).__name__, EXIT_TEMPORARY if is_temporary(error) else 1, **place)

    def show(self, file: Any = None) -> None:
        """Print the message, or a JSON document of one line."""
        if not self.as_json:
            click.echo(f"windrow: {self.message}", file=file or sys.stderr)
            return
        facts = {"type": self.kind, "message": self.message, "retry": self.exit_code == EXIT_TEMPORARY}
        document = {"error": {**facts, "exit_code": self.exit_code, **self.details}}
        click.echo(json.dumps(document, ensure_ascii=False), file=file or sys.stderr)


class Group(click.Group):
    """A group whose help shows the whole first sentence of each command, where click would cut it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(200)) for name, each in commands if each is not None])


class LazyGroup(Group):
    """A group whose commands are imported when they are asked for.

    Args:
        locations: Where each command is, as ``module:attribute``, in the order in which help lists them.
        options: As for `click.Group`.
    """

    def __init__(self, *, locations: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.locations = dict(locations)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the commands in the given order."""
        return list(self.locations)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in self.locations:
            return None
        module, _, attribute = self.locations[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


class TopGroup(LazyGroup):
    """The outermost group: turns errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors of ours and of the system become a `Failure`."""
        as_json = "--json" in itertools.takewhile(lambda argument: argument != "--", _remaining_arguments(ctx))
        try:
            try:
                result = super().invoke(ctx)
                sys.stdout.flush()
            except (KeyboardInterrupt, click.Abort):
                raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
            except click.UsageError as error:
                if not as_json:
                    raise
                raise Failure(error.format_message(), "UsageError", error.exit_code) from error
            except WindrowError as error:
                raise Failure.of(error, to_shell_message(str(error))) from error
            except OSError as error:
                if error.errno == errno.EPIPE:
                    _discard_output()
                    raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None
                where = f"{error.filename}: " if error.filename else ""
                raise Failure.of(error, f"{where}{error.strerror or error}") from error
        except Failure as failure:
            failure.as_json = as_json
            raise
        return result


def _remaining_arguments(ctx: click.Context) -> list[str]:
    """What click has not parsed yet of the command line."""
    return [*ctx._protected_args, *ctx.args]


def to_shell_message(message: str) -> str:
    """Rewrite a message of the Python interface for the shell: on one line, and force=True becomes --force."""
    with_options = re.sub(r"\b([a-z_]+)=(?:…|True)", lambda match: "--" + match[1].replace("_", "-"), message)
    return " ".join(with_options.split())


def _discard_output() -> None:
    """Discard buffered output after the reader has gone, so that the interpreter does not complain at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class Session:
    """How a command was called: with which warehouse, and whether it writes JSON."""

    folder: str | None
    json: bool

    @property
    def path(self) -> Path:
        """The warehouse's folder, as given or the current folder if it holds a warehouse."""
        if self.folder is not None:
            return Path(self.folder)
        current = Path.cwd()
        if (current / MARKER_FILE).exists():
            return current
        raise FormatError(
            f"{current} holds no warehouse; give one with -w PATH or {ENVIRONMENT_VARIABLE}, "
            "or make one with 'windrow init'"
        )

    def check_exists(self) -> None:
        """Refuse a folder that holds no warehouse, before anything is started for it."""
        if not (self.path / MARKER_FILE).exists():
            raise FormatError(f"{self.path} holds no warehouse; create one with 'windrow init' or check the path")

    def open(self, *, read_only: bool = False, **options: Any) -> "Warehouse":
        """Open the warehouse, which must exist; `options` are those of `windrow.open`."""
        path = self.path
        from windrow.warehouse import Warehouse

        return Warehouse(path, create=False, read_only=read_only, **options)


def sending(function: Callable[..., None]) -> Callable[..., None]:
    """The options of commands whose process may send results away; they come as one argument, `allowed`."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        allowed = {name: options.pop(name) for name in ("allow_hosts", "allow_commands")}
        function(*args, allowed=allowed, **options)

    hosts = click.option(
        "--allow-host", "allow_hosts", multiple=True, metavar="HOST", help="A host that queries may post results to."
    )
    commands = click.option(
        "--allow-command", "allow_commands", multiple=True, metavar="PATH", help="A program that queries may run."
    )
    return hosts(commands(run))


fail_rejected_option = click.option(
    "--fail-rejected",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"End with exit code {EXIT_REJECTED} if more than N rows were rejected; the others are in.",
)


def check_rejected(stream: str, rejected: Mapping[str, int], limit: int | None) -> None:
    """Fail if more rows of an ended append were rejected than the user tolerates."""
    count = sum(rejected.values())
    if limit is not None and count > limit:
        rows = f"{count:,} row{' was' if count == 1 else 's were'}"
        raise Failure(
            f"stream {stream!r}: {rows} rejected, more than {limit:,}; the other rows are in, "
            f"'windrow stream rejected {stream}' shows these",
            "RejectedRows",
            EXIT_REJECTED,
            rejected=dict(rejected),
        )


if_not_exists_option = click.option("--if-not-exists", is_flag=True, help="Leave one of that name as it is.")


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function whose first argument is a `Session` into a command; adds ``-w`` and ``--json``."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        chosen, as_json = options.pop("warehouse"), options.pop("as_json")
        folder = chosen or click.get_current_context().find_root().params.get("warehouse")
        function(Session(folder, as_json), *args, **options)

    where = click.option("-w", "--warehouse", metavar="PATH", help="The warehouse's folder.")
    machine = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")
    return machine(where(run))
