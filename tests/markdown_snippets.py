"""Reads the fenced snippets of a Markdown file and runs them, in order, as one session.

    ```python   shares one namespace with the file's other python blocks; a ```text block right after it is its output
    ```console  lines after "$ " are commands (continued by a final backslash), the other lines their output
    ```bash     run as a script that must succeed
    ```sql      asked of `wh`, which an earlier python block of the file has opened

In shown output, `...` stands for what varies. A comment on the line before a block changes how it is taken:

    <!-- not run: reason -->     the block is not run; the reason is for the reader
    <!-- exit 1 -->              the last command of the block ends with this code

and `<!-- run:` ... `-->` holds Python that is run and not shown, for data that would only distract.
Run as a program, with the file to run: it works in the current directory.
"""

import contextlib
import doctest
import io
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from windrow import program

RUN = {"python", "console", "bash", "sql"}
SHOWN = {"", "text", "json", "toml", "ini", "yaml", "makefile", "cython", "dockerfile", "mermaid", "html", "csv"}

NOT_RUN = re.compile(r"<!-- not run:(?P<reason>.*)-->$")
EXIT = re.compile(r"<!-- exit (?P<code>\d+) -->$")
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n?", re.MULTILINE)
QUOTED = r"'[^']*'|\"[^\"$`\\]*\""
PLAIN_COMMAND = re.compile(rf"windrow (?:{QUOTED}|\\\n|[^'\"|<>&;$`*?~(){{}}\[\]#!\\\n])*\n?")
"""A command that a shell would only split into words."""


class DocumentError(AssertionError):
    """A snippet is written in a way that cannot be run, or does not do what the page says."""


@dataclass(frozen=True)
class Block:
    """A fenced or hidden snippet; `line` is where its text begins, `output` what a python block is said to print."""

    file: str
    line: int
    language: str
    text: str
    skipped: str | None = None
    exit_code: int = 0
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def read_blocks(path: Path) -> list[Block]:
    """The snippets of a file, in order."""
    blocks: list[Block] = []
    before = ""  # the last line that is neither empty nor part of a block
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    for number, line in lines:
        fence = re.match(r"^( *)(`{3,})(.*)$", line)
        if fence:
            indent, ticks, language = len(fence[1]), fence[2], fence[3].strip()
            text = "".join(f"{inner[indent:]}\n" for inner in _until(lines, ticks, f"{path.name}:{number}"))
            block = _block(path.name, number + 1, language, text, before)
            if language == "text" and before == "```python" and blocks:
                block = Block(**{**vars(blocks.pop()), "output": text})
            blocks.append(block)
            before = f"```{language}"
        elif line.strip() == "<!-- run:":
            text = "".join(f"{inner}\n" for inner in _until(lines, "-->", f"{path.name}:{number}"))
            blocks.append(Block(path.name, number + 1, "python", text))
            before = ""
        elif line.strip():
            before = line.strip()
    return blocks


def _until(lines: Any, end: str, place: str) -> Any:
    for _, line in lines:
        if line.strip() == end:
            return
        yield line
    raise DocumentError(f"{place}: the block is never closed")


def _block(file: str, line: int, language: str, text: str, before: str) -> Block:
    if language not in RUN | SHOWN:
        raise DocumentError(f"{file}:{line}: '{language}' is neither run ({', '.join(sorted(RUN))}) nor plain text")
    not_run, exits = NOT_RUN.match(before), EXIT.match(before)
    skipped = not_run["reason"].strip() if not_run else None
    if skipped == "":
        raise DocumentError(f"{file}:{line}: 'not run' without a reason")
    return Block(file, line, language, text, skipped, int(exits["code"]) if exits else 0)


class Session:
    """One page's run: a namespace for Python, a shell for commands, the current directory for both."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["windrow.cli", "windrow.warehouse", "windrow.queries.answer"])
        here = str(Path(sys.executable).parent)
        self.environment = os.environ | {
            "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "TZ": "UTC",
        }

    def run(self, block: Block) -> None:
        if block.skipped is None and block.language in RUN:
            getattr(self, f"run_{block.language}")(block)

    def run_python(self, block: Block) -> None:
        # Empty lines in front make a traceback name the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, block.file, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, self.namespace)
        if block.output is not None:
            compare(block, block.output, printed.getvalue())

    def run_sql(self, block: Block) -> None:
        if "wh" not in self.namespace:
            raise DocumentError(f"{block.place}: no python block before this one opens `wh`")
        try:
            self.namespace["wh"].sql(block.text.strip().removesuffix(";")).fetchall()
        except Exception as error:
            raise DocumentError(f"{block.place}: {error}") from error

    def run_bash(self, block: Block) -> None:
        self.shell(block, "set -euo pipefail\n" + block.text, block.exit_code)

    def run_console(self, block: Block) -> None:
        parts = COMMAND.split(block.text)
        if parts[0].strip() or len(parts) < 3:
            raise DocumentError(f"{block.place}: a console block begins with '$ ' and a command")
        commands = list(zip(parts[1::2], parts[2::2], strict=True))
        for number, (command, shown) in enumerate(commands, 1):
            got = self.shell(block, command, block.exit_code if number == len(commands) else 0)
            if shown.strip():
                compare(block, shown, got, command)

    def shell(self, block: Block, script: str, code: int) -> str:
        with tempfile.TemporaryFile("w+") as output:
            if PLAIN_COMMAND.fullmatch(script):
                returned = self.fork(shlex.split(script.replace("\\\n", ""))[1:], output)
            else:
                inside = {"env": self.environment, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
                returned = subprocess.run(["bash", "-c", script], stdout=output, check=False, **inside).returncode
            output.seek(0)
            text = output.read()
        if returned != code:
            raise DocumentError(f"{block.place}: exit code {returned}, not {code}, of\n{script}\n{text}")
        return text

    def fork(self, arguments: list[str], output: IO[str]) -> int:
        """Run a plain `windrow` command in a process that need not import it: a page has dozens of them."""
        child = self.processes.Process(
            target=run_command, args=(arguments, os.getcwd(), self.environment, DupFd(output.fileno()))
        )
        child.start()
        child.join()
        assert child.exitcode is not None
        return child.exitcode


def run_command(arguments: list[str], folder: str, environment: dict[str, str], output: Any) -> None:
    """As the shell would: in its folder, with its environment, and both of its outputs into one file."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    descriptor = output.detach()
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.argv = ["windrow", *arguments]
    program.main()


def compare(block: Block, shown: str, got: str, command: str = "the block") -> None:
    """Shown and true output must be equal but for white space and `...`."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(shown.strip() + "\n", got.strip() + "\n", flags):
        raise DocumentError(f"{block.place}: {command} shows\n{shown}\nbut gives\n{got}")


def main() -> None:
    """Runs the snippets of the file named on the command line."""
    session = Session()
    for block in read_blocks(Path(sys.argv[1])):
        session.run(block)


if __name__ == "__main__":
    main()
