"""A process that runs statements for the command line, under limits that hold whatever DuckDB does.

DuckDB keeps its own limits only between two chunks of rows. The worker is forked before the warehouse is opened, writes
to the same output, and is ended and replaced when a statement takes longer than it may; its memory is limited by the
operating system, so that a statement that asks for more fails and the worker lives on.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from windrow.errors import MEMORY_ADVICE, QueryError, QueryTimeoutError, WindrowError

_GRACE_SECONDS = 0.9
"""How long after its time a statement may still end by itself."""
_SPARE_BYTES, _THREAD_BYTES = 256 << 20, 16 << 20
"""What the worker needs beside a statement's own memory: parse trees, buffers of output; and stacks for each core."""

_RESTART_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
RESTART = 75
"""The exit code of a worker that wants to be replaced."""

RunStatement = Callable[[str, dict[str, Any]], None]
"""Runs a statement; what the other argument names is set for this one."""


def can_fork() -> bool:
    """Whether a worker would write where this process does; under a test that captures output it would not."""
    return sys.stdout is sys.__stdout__ and hasattr(os, "fork")


class Worker:
    """Runs statements in a process of its own.

    Args:
        start: Called in the worker; gives what runs a statement there.
        timeout: Seconds that each statement has.
        memory: Bytes that the statements of the worker may use; by default all that the machine has.
        finish: Called in the worker when nobody asks any more.
    """

    def __init__(
        self,
        start: Callable[[], RunStatement],
        timeout: float | None,
        memory: int | None,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._start, self._timeout, self._memory, self._finish = start, timeout, memory, finish
        self._pid = 0
        self._channel: socket.socket | None = None
        self._fork()

    def _fork(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid:
            theirs.close()
            self._channel = ours
            return
        ours.close()
        end_with_parent(signal.SIGKILL)
        code = 1
        try:
            _serve(theirs, self._start, self._memory)
            self._finish()
            code = 0
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(code)

    def run(self, statement: str, settings: dict[str, Any]) -> None:
        """Run one statement there; its errors are raised here."""
        if self._channel is None:
            self._fork()
        channel = self._channel
        assert channel is not None
        channel.sendall(json.dumps([statement, settings]).encode() + b"\n")
        raise_reply(self._wait(channel))

    def _wait(self, channel: socket.socket) -> dict[str, Any]:
        end = None if self._timeout is None else time.monotonic() + self._timeout + _GRACE_SECONDS
        received = b""
        while not received.endswith(b"\n"):
            try:
                seconds = None if end is None else max(0.0, end - time.monotonic())
                if not select.select([channel], [], [], seconds)[0]:
                    self.close(kill=True)
                    raise QueryTimeoutError(f"the query was cancelled: it took longer than {self._timeout:g} s")
                piece = channel.recv(1 << 16)
            except KeyboardInterrupt:  # the worker got it too, and ends the statement; what does not end is killed
                end = time.monotonic() + _GRACE_SECONDS
                if not select.select([channel], [], [], _GRACE_SECONDS)[0]:
                    self.close(kill=True)
                    raise
                continue
            if not piece:
                status = self.close()
                raise QueryError(f"the process that ran the statement was ended ({_describe(status)}); ask for less")
            received += piece
        reply: dict[str, Any] = json.loads(received)
        return reply

    def close(self, *, kill: bool = False) -> int:
        """End the worker; gives its exit status."""
        if self._channel is None:
            return 0
        if kill:
            os.kill(self._pid, signal.SIGKILL)
        self._channel.close()
        self._channel = None
        return os.waitpid(self._pid, 0)[1]


def _describe(status: int) -> str:
    return (
        f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
    )


def raise_reply(reply: dict[str, Any]) -> None:
    """Raise the error that a worker tells of."""
    kinds: dict[str, type[BaseException]] = {
        "timeout": QueryTimeoutError, "query": QueryError, "other": WindrowError, "pipe": BrokenPipeError,
        "cancelled": KeyboardInterrupt,
    }  # fmt: skip
    if reply["kind"] != "done":
        raise kinds[reply["kind"]](*reply["message"])


def _serve(channel: socket.socket, start: Callable[[], RunStatement], memory: int | None) -> None:
    """The worker: run what is asked until nobody asks any more."""
    run: RunStatement | None = None
    requests = channel.makefile("rb")
    with contextlib.suppress(Exception):  # it is tried again, and its error told, when something is asked
        run = start()
        limit_memory(memory)
    while True:
        try:
            request = requests.readline()
        except KeyboardInterrupt:  # of a prompt, at which no statement runs
            continue
        if not request:
            return
        kind, message = "done", list[Any]()
        try:
            if run is None:
                run = start()
                limit_memory(memory)
            run(*json.loads(request))
            sys.stdout.flush()
        except QueryTimeoutError as error:
            kind, message = "timeout", [str(error)]
        except QueryError as error:
            kind, message = "query", [str(error)]
        except MemoryError:
            kind, message = "query", [f"the statement needs more memory than it may use; {MEMORY_ADVICE}"]
        except WindrowError as error:
            kind, message = "other", [str(error)]
        except BrokenPipeError as error:
            kind, message = "pipe", [error.errno, error.strerror]
        except KeyboardInterrupt:
            kind = "cancelled"
        except Exception as error:  # noqa: BLE001 - told to the user, who cannot see the worker
            kind, message = "other", [f"{type(error).__name__}: {error}"]
        channel.sendall(json.dumps({"kind": kind, "message": message}).encode() + b"\n")


def supervise(work: Callable[[], int]) -> int:
    """Do `work` in a worker, and again in a new one whenever it was killed or asks for it; gives its exit code.

    The operating system ends a process that takes more memory than there is; a statement that does not end is left
    alone in its process. Either way the next worker goes on where this one was.
    """
    worker, stopping = 0, False

    def stop(number: int, _: object) -> None:
        nonlocal stopping
        stopping = True
        if worker:
            os.kill(worker, number)

    while True:
        sys.stdout.flush()
        worker = os.fork()
        if not worker:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            end_with_parent(signal.SIGTERM)
            code = 1
            try:
                limit_memory(None)
                code = work()
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                os._exit(code)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        if stopping or (code >= 0 and code != RESTART):
            return max(code, 0)
        time.sleep(_RESTART_SECONDS)


def end_with_parent(number: int) -> None:
    """Get a signal when the process that started this one ends, however that ends; only Linux has this."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def limit_memory(size: int | None) -> None:
    """Limit what this process may use from here on; None for all memory of the machine."""
    import resource

    if size is None:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        limit = _used_bytes() + size + _SPARE_BYTES + _THREAD_BYTES * (os.cpu_count() or 1)
    # Mapped files are not counted: the catalog's map alone is larger than any memory.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _used_bytes() -> int:
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return 0
