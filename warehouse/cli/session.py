"""What every command shares: where the warehouse is, `--json`, lazily imported commands, and errors told in one line.

A module with commands imports nothing heavy at its top, so that ``windrow --help`` stays quick.
"""

import contextlib
import errno
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windrow.errors import FormatError, WindrowError

if TYPE_CHECKING:
    from windrow.warehouse import Warehouse

MARKER_FILE = "windrow.json"
ENVIRONMENT_VARIABLE = "WINDROW_WAREHOUSE"
EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 130, 141


class Failure(click.ClickException):
    """A mistake of the user's or of the data's: one line on stderr, exit code 1."""

    def show(self, file: Any = None) -> None:
        """Say it."""
        click.echo(f"windrow: {self.message}", file=file or sys.stderr)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for.

    Args:
        homes: Where each command is, as ``module:attribute``, in the order in which help lists them.
        options: As for `click.Group`.
    """

    def __init__(self, *, homes: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.homes = dict(homes)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names of the commands, in the order of the table."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now."""
        if cmd_name not in self.homes:
            return None
        module, _, attribute = self.homes[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


class TopGroup(LazyGroup):
    """The outermost group: turns errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (KeyboardInterrupt, click.Abort):
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except WindrowError as error:
            raise Failure(to_shell_message(str(error))) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                _discard_output()
                raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}") from error
        return result


def to_shell_message(message: str) -> str:
    """A message of the Python interface, on one line and with its arguments named as options: force=True is --force."""
    named = re.sub(r"\b([a-z_]+)=(?:…|True)", lambda found: "--" + found[1].replace("_", "-"), message)
    return " ".join(named.split())


def _discard_output() -> None:
    """Nobody reads any more: what is still buffered goes nowhere, and the interpreter says nothing about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class Session:
    """How this command was called: which warehouse, and for whom it writes."""

    place: str | None
    json: bool

    @property
    def path(self) -> Path:
        """The warehouse's folder: as given, or the current folder if it holds one."""
        if self.place is not None:
            return Path(self.place)
        here = Path.cwd()
        if (here / MARKER_FILE).exists():
            return here
        raise FormatError(
            f"{here} holds no warehouse; give one with -w PATH or {ENVIRONMENT_VARIABLE}, or make one with 'windrow init'"
        )

    def open(self, *, read_only: bool = False) -> "Warehouse":
        """The warehouse; it must exist."""
        path = self.path
        from windrow.warehouse import Warehouse

        return Warehouse(path, create=False, read_only=read_only)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command's function, called with a `Session` first; adds ``-w`` and ``--json``."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        given, as_json = options.pop("warehouse"), options.pop("as_json")
        place = given or click.get_current_context().find_root().params.get("warehouse")
        function(Session(place, as_json), *args, **options)

    where = click.option("-w", "--warehouse", metavar="PATH", help="The warehouse's folder.")
    machine = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")
    return machine(where(run))
