"""Ctrl-C and timeouts for calls into DuckDB, during which Python's main thread cannot handle a signal itself.

Python writes the number of an arriving signal to a file descriptor at once; a thread that reads there interrupts the
cursor, and the call that it ends becomes a KeyboardInterrupt. Where a program has a handler of its own for Ctrl-C, as
PySpark does, the call is made on a thread, so that the handler runs at once; the call ends if the handler raises.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from windrow.errors import QueryTimeoutError

T = TypeVar("T")
_GRACE_SECONDS = 0.5
"""How long after its time a call may still come back by itself, before its caller goes on without it."""
_POLL_SECONDS = 0.1
"""How often a call on a thread of its own looks for signals."""


def interrupt_cursor(cursor: Any) -> None:
    """Ask DuckDB to give up what the cursor is doing."""
    with contextlib.suppress(duckdb.Error):  # it was closed meanwhile
        cursor.interrupt()


_late_calls: set[Any] = set()


def has_late_calls() -> bool:
    """Whether this process still does what nobody waits for any more."""
    return bool(_late_calls)


class Deadline:
    """The time that a statement has. Calls are made on threads, so that the caller can go on without one that is late.

    DuckDB gives up only between two chunks of rows: not within one scalar call, and not while it plans. A call that is
    left alone ends when it ends; what it holds is let go then, by `when_idle`.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._late: Future[Any] | None = None

    def call(self, work: Callable[[], T], discard: Callable[[T], None] | None = None) -> T:
        """Do `work`; if it is late, its result is discarded when it comes."""
        outcome: Future[T] = Future()
        threading.Thread(target=_complete, args=[outcome, work], name="windrow-call", daemon=True).start()
        try:
            while not outcome.done() and time.monotonic() < self._end + _GRACE_SECONDS:
                wait([outcome], min(_POLL_SECONDS, max(0.0, self._end + _GRACE_SECONDS - time.monotonic())))
            if outcome.done():
                return outcome.result()
        except KeyboardInterrupt:
            self._leave(outcome, discard)
            raise
        self._leave(outcome, discard)
        raise self.error()

    def _leave(self, outcome: "Future[T]", discard: Callable[[T], None] | None) -> None:
        self._late = outcome
        _late_calls.add(outcome)

        def ended(future: "Future[T]") -> None:
            _late_calls.discard(future)
            if discard is not None and future.exception() is None:
                discard(future.result())

        outcome.add_done_callback(ended)

    def extend(self, seconds: float) -> None:
        """Give it more time, for what it had to wait for."""
        self._end += seconds

    def error(self) -> QueryTimeoutError:
        """What the caller is told."""
        return QueryTimeoutError(f"the query was cancelled: it took longer than {self.seconds:g} s")

    def when_idle(self, release: Callable[[], None]) -> None:
        """Let go of what calls use, at once or when the one that was left alone has ended."""
        if self._late is None or self._late.done():
            release()
        else:
            self._late.add_done_callback(lambda _: release())

    def batches(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The same rows, each batch read within the time."""

        def read() -> pa.RecordBatch | None:
            try:
                return reader.read_next_batch()
            except StopIteration:
                return None

        def following() -> Iterator[pa.RecordBatch]:
            while (batch := self.call(read)) is not None:
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, following())


class _Timer(threading.Timer):
    """A timer that drops its cursor when it is cancelled: its thread may outlive the program's last line."""

    def cancel(self) -> None:
        """Also drop the cursor at once: DuckDB reports one that is still held when Python ends as leaked."""
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
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._cursor: Any = None
        self._previous_fd = -1
        self._interrupted = False
        threading.Thread(target=self._forward, name="windrow-interrupts", daemon=True).start()

    def _forward(self) -> None:
        while signals := os.read(self._read_end, 64):
            cursor, previous = self._cursor, self._previous_fd
            if previous >= 0:  # whoever asked for signals before us, such as an event loop, still gets them all
                with contextlib.suppress(OSError):
                    os.write(previous, signals)
            if signal.SIGINT in signals and cursor is not None:
                self._interrupted = True
                interrupt_cursor(cursor)

    def call(self, cursor: Any, work: Callable[[], T]) -> T:
        """Do `work`; Ctrl-C ends it."""
        self._interrupted, self._cursor = False, cursor
        self._previous_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        try:
            return work()
        except (duckdb.InterruptException, RuntimeError, OSError) as error:
            if self._interrupted or str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise
        finally:
            self._cursor = None
            signal.set_wakeup_fd(self._previous_fd, warn_on_full_buffer=False)


_watchers: list[_SignalWatcher] = []


def run_interruptibly(cursor: Any, work: Callable[[], T]) -> T:
    """Do `work` on the cursor, so that Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        return work()  # Python handles signals only on the main thread
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
        while not outcome.done():  # a signal that woke another thread is handled at the next look
            wait([outcome], _POLL_SECONDS)
    except BaseException:
        while thread.is_alive():  # repeated, since a call that has not begun yet ignores it
            interrupt_cursor(cursor)
            thread.join(0.02)
        raise
    return outcome.result()


def _complete(outcome: "Future[T]", work: Callable[[], T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        outcome.set_exception(error)
