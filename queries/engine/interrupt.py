"""Ctrl-C and timeouts for calls into DuckDB, which may hear neither while its work keeps Python's main thread busy.

Python writes the number of an arriving signal to a file descriptor at once; a thread that reads there interrupts the
cursor, and the call that it ends becomes a KeyboardInterrupt. Where a program has a handler of its own for Ctrl-C, as
PySpark does, the call is made on a thread, so that the handler runs at once; the call ends if the handler raises.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import duckdb

T = TypeVar("T")
_POLL_SECONDS = 0.1
"""Seconds."""


def interrupt_cursor(cursor: Any) -> None:
    """Ask DuckDB to give up what the cursor is doing."""
    with contextlib.suppress(duckdb.Error):  # it was closed meanwhile
        cursor.interrupt()


class _Timer(threading.Timer):
    """A timer that forgets what it was to do when it is cancelled: its thread may outlive the program's last line."""

    def cancel(self) -> None:
        """Let go of the cursor at once; of one that is still held when Python ends, DuckDB says that it leaked."""
        super().cancel()
        self.args = ()


def interrupt_after(seconds: float, cursor: Any) -> threading.Timer:
    """A running timer that interrupts the cursor; cancel it when the query is done."""
    timer = _Timer(seconds, interrupt_cursor, [cursor])
    timer.daemon = True
    timer.start()
    return timer


class _SignalWatcher:
    """Reads arriving signals while the main thread is inside DuckDB. One per process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.hearing, self.told = os.pipe()
        os.set_blocking(self.told, False)
        self._cursor: Any = None
        self._before = -1
        self._stopped = False
        threading.Thread(target=self._listen, name="windrow-interrupts", daemon=True).start()

    def _listen(self) -> None:
        while signals := os.read(self.hearing, 64):
            cursor, before = self._cursor, self._before
            if before >= 0:  # whoever listened before us, such as an event loop, still hears everything
                with contextlib.suppress(OSError):
                    os.write(before, signals)
            if signal.SIGINT in signals and cursor is not None:
                self._stopped = True
                interrupt_cursor(cursor)

    def call(self, cursor: Any, work: Callable[[], T]) -> T:
        """Do `work`; Ctrl-C ends it."""
        self._stopped, self._cursor = False, cursor
        self._before = signal.set_wakeup_fd(self.told, warn_on_full_buffer=False)
        try:
            return work()
        except (duckdb.InterruptException, RuntimeError, OSError) as error:
            if self._stopped or str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise
        finally:
            self._cursor = None
            signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)


_watchers: list[_SignalWatcher] = []


def run_interruptibly(cursor: Any, work: Callable[[], T]) -> T:
    """Do `work` on the cursor, so that Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        return work()  # only the main thread is told of Ctrl-C
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        return _run_on_thread(cursor, work) if callable(handler) else work()
    if not _watchers or _watchers[-1].process != os.getpid():
        _watchers.append(_SignalWatcher())
    return _watchers[-1].call(cursor, work)


def _run_on_thread(cursor: Any, work: Callable[[], T]) -> T:
    """Do `work` on a thread of its own while this one, the main one, runs whatever handlers signals have."""
    outcome: Future[T] = Future()
    thread = threading.Thread(target=_complete, args=[outcome, work], name="windrow-call", daemon=True)
    thread.start()
    try:
        while not outcome.done():  # a signal that another thread was woken for is handled when this one looks again
            wait([outcome], _POLL_SECONDS)
    except BaseException:
        while thread.is_alive():  # again and again: what has not begun yet does not hear it
            interrupt_cursor(cursor)
            thread.join(0.02)
        raise
    return outcome.result()


def _complete(outcome: "Future[T]", work: Callable[[], T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        outcome.set_exception(error)
