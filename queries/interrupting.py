"""Ctrl-C and timeouts for calls into DuckDB, which hears neither while its own main thread is busy.

Only Python's main thread is told of Ctrl-C, so its calls are made on a thread beside it; an interrupt ends them there.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import duckdb

T = TypeVar("T")
_AGAIN = 0.1


def interrupt(cursor: Any) -> None:
    """Ask DuckDB to give up what the cursor is doing."""
    with contextlib.suppress(duckdb.Error):  # it was closed meanwhile
        cursor.interrupt()


def interruptible(cursor: Any, work: Callable[[], T]) -> T:
    """Do `work` on the cursor, so that Ctrl-C ends it at once; nothing is running any more when this is left."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: Future[T] = Future()

    def beside() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it belongs
            done.set_exception(error)

    threading.Thread(target=beside, name="windrow-query", daemon=True).start()
    try:
        while not done.done():
            wait([done], _AGAIN)  # now and then awake: the signal may have been given to another thread
    except KeyboardInterrupt:
        while not done.done():
            interrupt(cursor)
            wait([done], _AGAIN)
        raise
    return done.result()


def after(seconds: float, cursor: Any) -> threading.Timer:
    """A running timer that interrupts the cursor; cancel it when the query is done."""
    timer = threading.Timer(seconds, interrupt, [cursor])
    timer.daemon = True
    timer.start()
    return timer
