"""The calls by which a process changes the disk: traced, counted, and the process killed after any one of them.

`system_calls.c` stands between a process and the C library. A server that was started with it has imported all of windrow
and forks a child for each thing that is asked of it, so that a kill costs a fork and not a start of Python.

    python tests/system_calls.py --trace > file            what each operation does to the disk, in order
    python tests/system_calls.py --trace --sizes append    the same of one operation, call by call, with sizes
"""

import argparse
import ctypes
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "WINDROW_TEST_SYSTEM_CALLS"
PATIENCE = 60
"""Seconds after which the server is taken for hanging."""

_UNIQUE = (
    (re.compile(r"[0-9a-f]+_[0-9a-f]+_[0-9a-f]+_[0-9a-f]{12}"), "WRITER"),
    (re.compile(r"\d+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]{12}"), "PIN"),
    (re.compile(r"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]{12}"), "NAME"),
)
_WRITES = frozenset(("write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev64"))
_PAGE = 4096


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "system_calls.so"
    command = [str(compiler()), "-std=c11", "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True, capture_output=True, text=True)
    return library


# -- traces ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call that changed the disk or synced it; names that are never the same twice are replaced."""

    name: str
    path: str
    target: str = ""
    size: int = 0
    offset: int = -1

    @classmethod
    def parse(cls, line: str) -> Self:
        """A line of the library's log."""
        name, path, target, size, offset = line.rstrip("\n").split("\t")
        return cls(name, normalised(path), normalised(target), int(size), int(offset))

    @property
    def is_meta(self) -> bool:
        """Whether LMDB names a new root here: with this call a commit is on disk."""
        is_write = self.path.endswith("data.mdb") and self.name in _WRITES
        return is_write and 0 <= self.offset < 2 * _PAGE and self.size < _PAGE

    @property
    def is_publishing(self) -> bool:
        """Whether a file gets the name that a commit will use; pins and the like do not count."""
        return self.name.startswith("rename") and not self.target.startswith("catalog/")

    def __str__(self) -> str:
        """In words, without sizes."""
        name = "write" if self.name in _WRITES else self.name
        what = " (meta page)" if self.is_meta else ""
        return f"{name} {self.path}{what}{' -> ' + self.target if self.target else ''}"


def read_log(log: Path) -> list[Call]:
    """The calls that a process wrote down; the log is gone then."""
    if not log.exists():
        return []
    calls = [Call.parse(line) for line in log.read_text().splitlines()]
    log.unlink()
    return calls


def place(calls: Sequence[Call], nth: int) -> tuple[str, int]:
    """What the nth call is, and how many such calls there were up to it: the same in every run, unlike its number.

    How many pages LMDB writes depends on the length of names.
    """
    what = str(calls[nth - 1])
    return what, sum(str(call) == what for call in calls[:nth])


def normalised(path: str) -> str:
    """A path without what is unique in it: process, time and chance."""
    for pattern, word in _UNIQUE:
        path = pattern.sub(word, path)
    return path


def lines(calls: Sequence[Call], *, sizes: bool = False) -> Iterator[str]:
    """A trace as text. Without sizes, writes to one file that follow each other are one line."""
    if sizes:
        yield from (f"{call}{f' {call.size} bytes' if call.size else ''}" for call in calls)
        return
    for _, same in groupby(enumerate(calls), lambda at: str(at[1]) if at[1].name in _WRITES else at[0]):
        yield str(next(same)[1])


# -- in the server's children ------------------------------------------------------------------------------------------


@contextmanager
def watched(root: str, *, log: str | None = None, nth: int = 0, before: bool = False) -> Iterator[None]:
    """Count (and log) the calls below a folder while the block runs, and die after, or before, the nth of them."""
    library = ctypes.CDLL(os.environ[LIBRARY])
    to = -1 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    library.system_calls_watch(root.encode(), to, ctypes.c_long(nth), int(before))
    yield
    library.system_calls_end()


def work_in_turn() -> None:
    """From now on what would be done beside is done at once: the order of calls is then the same each time."""

    def submit(self: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work(*args, **named))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)
        return future

    start, join, is_alive = threading.Thread.start, threading.Thread.join, threading.Thread.is_alive
    endless = ("windrow-interrupts", "windrow-http", "windrow-scan")
    finished: set[int] = set()

    def start_or_run(self: threading.Thread) -> None:
        if isinstance(self, threading.Timer) or self.name.startswith(endless):
            start(self)
        else:
            self.run()
            finished.add(id(self))

    def join_unless_done(self: threading.Thread, timeout: float | None = None) -> None:
        if id(self) not in finished:
            join(self, timeout)

    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign, assignment]
    threading.Thread.start = start_or_run  # type: ignore[method-assign]
    threading.Thread.join = join_unless_done  # type: ignore[method-assign]
    threading.Thread.is_alive = lambda self: id(self) not in finished and is_alive(self)  # type: ignore[method-assign]


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of a child."""

    status: int
    """Its exit code, negative for the signal that ended it."""
    acknowledged: bool
    """Whether what it had to do was done before it ended."""
    value: Any
    """What it gave, if it came that far."""

    @property
    def killed(self) -> bool:
        """Whether it was ended as the power switch would."""
        return self.status == -signal.SIGKILL


class Child:
    """What a child says to those who wait for it."""

    def __init__(self, to: int) -> None:
        self._to = to

    def acknowledge(self) -> None:
        """What was asked is done, as far as a user can know."""
        os.write(self._to, b"a")

    def give(self, value: Any) -> None:
        """The child's answer."""
        data = pickle.dumps(value)
        with os.fdopen(os.dup(self._to), "wb") as stream:
            stream.write(b"v" + data)


class _Itself(Child):
    """A server that works itself."""

    def __init__(self) -> None:
        self.acknowledged = False
        self.value: Any = None

    def acknowledge(self) -> None:
        self.acknowledged = True

    def give(self, value: Any) -> None:
        self.value = value


class Server:
    """A process in which functions of `kills` are called by name.

    Args:
        library: To preload. The process then forks a child for each call; without it, it does everything itself, and
            what it has warmed up stays warm.
    """

    def __init__(self, library: Path | None = None) -> None:
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join([str(SOURCE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--serve", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
            | ({} if library is None else {"LD_PRELOAD": str(library), LIBRARY: str(library)}),
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def call(self, function: str, *args: Any) -> Outcome:
        """Call a function of `kills`; it gets a `Child` first."""
        self._connection.send((function, args))
        if not self._connection.poll(PATIENCE):
            raise AssertionError(f"{function}{args} did not end within {PATIENCE} s")
        outcome: Outcome = self._connection.recv()
        return outcome

    def prepare(self, case: str, path: Path) -> None:
        """Make the warehouse that an operation is done in."""
        outcome = self.call("prepare", case, str(path))
        assert outcome.acknowledged, outcome.value

    def trace(self, case: str, path: Path, log: Path) -> list[Call]:
        """The calls of an operation, done in turn; the warehouse must be as it was prepared."""
        outcome = self.call("trace", case, str(path), str(log))
        assert outcome.status == 0 and outcome.acknowledged, outcome.value
        return read_log(log)

    def close(self) -> None:
        """End it."""
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(descriptor: int) -> None:
    work = _in_child if LIBRARY in os.environ else _here
    os.environ.pop("LD_PRELOAD", None)
    import kills
    import preloaded_modules  # noqa: F401 - so that no child imports it by itself

    connection = Connection(descriptor)
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            return
        connection.send(work(getattr(kills, function), args))


def _here(function: Callable[..., None], args: tuple[Any, ...]) -> Outcome:
    report = _Itself()
    try:
        function(report, *args)
    except Exception:  # noqa: BLE001 - whatever it was, it is told
        return Outcome(1, report.acknowledged, traceback.format_exc())
    return Outcome(0, report.acknowledged, report.value)


def _in_child(function: Callable[..., None], args: tuple[Any, ...]) -> Outcome:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            function(Child(writing), *args)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it was, it is told
            Child(writing).give(traceback.format_exc())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(pid, 0)
    acknowledged = said.startswith(b"a")
    rest = said[1:] if acknowledged else said
    return Outcome(os.waitstatus_to_exitcode(status), acknowledged, pickle.loads(rest[1:]) if rest else None)


# -- by hand -----------------------------------------------------------------------------------------------------------


def print_traces(names: Sequence[str], *, sizes: bool) -> None:
    """What each operation does to the disk, in order."""
    import kills
    import scratch_folders

    with scratch_folders.scratch_folder() as folder, Server(build(folder)) as server:
        for name in names or kills.CASES:
            path = folder / name
            server.prepare(name, path)
            print(f"== {name}")
            print(*lines(server.trace(name, path, folder / "log"), sizes=sizes), sep="\n", end="\n\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What operations do to the disk, call by call.")
    parser.add_argument("--trace", action="store_true", help="print the calls of each operation")
    parser.add_argument("--sizes", action="store_true", help="every single write, with its size")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", help="only these operations")
    asked = parser.parse_args()
    if asked.serve is not None:
        _serve(asked.serve)
    elif asked.trace:
        print_traces(asked.cases, sizes=asked.sizes)
    else:
        parser.print_help()


if __name__ == "__main__":
    # As a module of its own name: what the server's children pickle must be found under it by the others.
    import system_calls

    system_calls.main()
