"""Disks that fail, stop or record where a test wants it, and child processes that may be killed."""

import errno
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from windrow.files import FileSystem

# Children come from a server process that has imported everything and holds nothing: quick, and no threads to inherit.
PROCESSES = multiprocessing.get_context("forkserver")
STARTED: list[BaseProcess] = []
PATIENCE = 200
"""Seconds after which a child that should have ended is taken for hanging."""


def start_child(target: Callable[..., Any], *args: Any) -> BaseProcess:
    """Run a function of `child_processes` in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:  # a server that starts finds the tests' modules only by this variable
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        PROCESSES.set_forkserver_preload(["preloaded_modules"])
        forkserver.ensure_running()
    child = PROCESSES.Process(target=target, args=args, daemon=True)
    child.start()
    STARTED.append(child)
    return child


def end_children() -> None:
    """Kill what a test that failed has left behind: it would keep a core busy for all that follow."""
    for child in STARTED:
        if child.is_alive():
            child.kill()
            child.join()
    STARTED.clear()


def join_child(child: BaseProcess) -> int:
    """Wait for a child; return its exit code, negative for the signal that ended it."""
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"child {child.name} did not end within {PATIENCE} s")
    return child.exitcode


def kill_child(child: BaseProcess) -> None:
    """Kill a child, as a power failure would."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()


class CountingDisk(FileSystem):
    """Counts how often each step is reached and each call is made."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._guard = threading.Lock()

    def reach(self, step: str) -> None:
        self.steps[step] += 1

    def counted(self, call: str) -> int:
        """Count a call among those of its kind, which threads may make at once."""
        with self._guard:
            self.calls[call] += 1
            return self.calls[call]

    def sink(self, path: Path) -> Any:
        self.counted("sink")
        return super().sink(path)

    def sync(self, path: Path) -> None:
        self.counted("sync")
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self.counted("rename")
        super().rename(source, target)


class KillAtStep(FileSystem):
    """Kills its own process at the nth pass of a step."""

    def __init__(self, step: str, nth: int) -> None:
        self.step = step
        self.left = nth

    def reach(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class KillAtCall(FileSystem):
    """Ends its own process before the nth sync or rename."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(self, path: Path) -> None:
        self._count()
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)


class CallAtStep(FileSystem):
    """Calls a function once, the first time that a step is reached."""

    def __init__(self, step: str, call: Callable[[], Any]) -> None:
        self.step = step
        self.call: Callable[[], Any] | None = call

    def reach(self, step: str) -> None:
        if step == self.step and self.call is not None:
            call, self.call = self.call, None
            call()

    @property
    def called(self) -> bool:
        """Whether the step was reached."""
        return self.call is None


class FailAtCall(CountingDisk):
    """Fails the nth sink, write, sync or rename; the next try goes well."""

    def __init__(self, call: str, nth: int, error: int = errno.ENOSPC) -> None:
        super().__init__()
        self.call = call
        self.nth = nth
        self.error = error
        self.failed = False

    def counted(self, call: str) -> int:
        number = super().counted(call)
        if call == self.call and number == self.nth and not self.failed:
            self.failed = True
            raise OSError(self.error, os.strerror(self.error))
        return number

    def sink(self, path: Path) -> Any:
        stream = FileSystem.sink(self, path)
        self.counted("sink")
        return stream if self.call != "write" else pa.PythonFile(_Writes(path, self), "w")

    def written(self) -> None:
        """One write to a file."""
        self.counted("write")


class _Writes:
    """A file whose writes may fail."""

    def __init__(self, path: Path, disk: FailAtCall) -> None:
        self._file = path.open("wb")
        self._disk = disk

    def write(self, data: Any) -> int:
        self._disk.written()
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class RecordingDisk(FileSystem):
    """Records what was done to the disk, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def reach(self, step: str) -> None:
        self.events.append(("reach", step))

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.events.append(("sync", str(path)))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.events.append(("rename", str(source), str(target)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.events.append(("unlink", str(path)))


@contextmanager
def small_disk(path: Path, size: str, options: str = "") -> Any:
    """A tmpfs of a given size, where mounting is permitted; otherwise None."""
    import subprocess

    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "windrow-test", str(path)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield path if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)
