"""The log of a serving process: what `logging.getLogger("windrow")` is told, a line each with time and level."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windrow.cli import terminal
from windrow.cli.clock import slide_to_json
from windrow.times import format_time

if TYPE_CHECKING:
    from windrow.queries.periodic.runner import RunReport

_NAME = "windrow"


@contextlib.contextmanager
def server_log(as_json: bool) -> Iterator[logging.Logger]:
    """Write what happens from INFO on to stdout; gives the logger for sentences about the process itself."""
    logger = logging.getLogger(_NAME)
    level = logger.level
    logger.setLevel(logging.INFO)
    with _handling(logging.StreamHandler(sys.stdout), JsonFormatter() if as_json else TextFormatter()):
        yield logger.getChild("serve")
    logger.setLevel(level)


@contextlib.contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Write warnings to stderr, for commands whose output is not a log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    with _handling(handler, logging.Formatter("windrow: %(message)s")):
        yield


@contextlib.contextmanager
def _handling(handler: logging.Handler, formatter: logging.Formatter) -> Iterator[None]:
    handler.setFormatter(formatter)
    logging.getLogger(_NAME).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(_NAME).removeHandler(handler)


class TextFormatter(logging.Formatter):
    """Lines for people: time, level, sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line; control characters are shown, never sent to a terminal."""
        report: Any = getattr(record, "report", None)
        text = format_run(report) if hasattr(report, "outcome") else record.getMessage()
        return f"{_format_instant(record)} {record.levelname} {terminal.escape_controls(text)}"


class JsonFormatter(logging.Formatter):
    """Lines for machines: time, level, logger, and the figures of a run or slide, or what is said."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        line = {"time": _format_instant(record), "level": record.levelname, "logger": record.name}
        return json.dumps(line | _figures(record), ensure_ascii=False)


def _figures(record: logging.LogRecord) -> dict[str, Any]:
    report: Any = getattr(record, "report", None)
    if hasattr(report, "outcome"):
        return terminal.to_record(report)
    if hasattr(report, "inserted"):
        return slide_to_json(report)
    return {"said": record.getMessage()}


def _format_instant(record: logging.LogRecord) -> str:
    return format_time(int(record.created * 1000) * 1000)


def format_run(report: "RunReport") -> str:
    """Format one run for the log."""
    took = f"{terminal.count(report.rows, 'row')} in {terminal.format_seconds(report.seconds)} by {report.how}"
    late = f", {report.staleness:g} s behind" if report.staleness else ""
    part = "" if report.complete else ", incomplete"
    end = f": {report.error}" if report.error else f" -> {report.file}" if report.file else ""
    return f"{report.outcome} {report.query} slide {report.slide}, {took}{late}{part}{end}"
