"""The `windrow` program: the command line in a process of its own, which Ctrl-C ends quietly at any moment.

Python imports this module before anything else of the command line, because the signal may come during imports.
"""

import gc
import os
import signal
import sys
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130
_OBJECTS_BEFORE_COLLECTION = 50_000
"""Imports make objects that stay: to look for garbage among them after each 700 took a tenth of a short command."""


def main() -> None:
    """Run the command; the process ends at once, since what an error still holds would be reported as leaked."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _report_unraisable
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *gc.get_threshold()[1:])
    import atexit
    import contextlib

    from windrow.cli import windrow

    code: Any = 1
    try:
        windrow(prog_name="windrow")
    except SystemExit as end:
        code = end.code
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt where a command can clean up after it; anywhere else there is nothing to clean up.

    A native module whose import is interrupted aborts the process, turns the exception into another or swallows it.
    """
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_qualname == "TopGroup.invoke":
            signal.default_int_handler(number, frame)
        frame = frame.f_back
    os._exit(EXIT_INTERRUPTED)


def _report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python only reports what is raised in a finalizer; an interrupt there would be lost."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        os._exit(EXIT_INTERRUPTED)
    sys.__unraisablehook__(unraisable)
