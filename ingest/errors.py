"""Spark's errors made short, because its reports run over many lines of two stack traces.

Where a task met an error of ours, that error is given; otherwise the reasons that Spark names, in one line.
"""

import re

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from windrow.errors import SchemaError
from windrow.ingest.schemas import NULL_ERROR_PREFIX

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError)
"""The errors that a call into Spark can raise."""

_OWN_ERROR = re.compile(r"windrow\.errors\.(?P<kind>\w+): (?P<words>[^\n]+)")
_SPARK_CONDITION = re.compile(r"^(?:: |Caused by: )[\w.$]+: (?P<words>\[[A-Z_.]+\][^\n]+)", re.MULTILINE)
_QUERY_PREFIX = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_SQLSTATE_SUFFIX = re.compile(r" *SQLSTATE: \w+$")


def describe_error(error: BaseException) -> str:
    """Say in one line why something failed: our own message, or else Spark's reasons, outermost first."""
    text = str(error).strip()
    own_error = _OWN_ERROR.search(text)
    if own_error is not None:
        return own_error["words"].strip()
    conditions = dict.fromkeys(
        _SQLSTATE_SUFFIX.sub("", match["words"].strip()) for match in _SPARK_CONDITION.finditer(text)
    )
    if conditions:
        return "; ".join(conditions)
    first_line = text.splitlines()[0] if text else type(error).__name__
    return _SQLSTATE_SUFFIX.sub("", _QUERY_PREFIX.sub("", first_line).strip())


def translate_error(error: Exception, stream: str) -> Exception:
    """Turn Spark's report of a failed task into the error of ours that the task met, if it was one."""
    text = str(error)
    if NULL_ERROR_PREFIX in text:
        column = text.partition(NULL_ERROR_PREFIX)[2].split(maxsplit=1)[0].rstrip(".'\"")
        return SchemaError(f"stream {stream!r}: column {column!r} is not nullable but has nulls; nothing was appended")
    own_error = _OWN_ERROR.search(text)
    return (
        SchemaError(own_error["words"].strip())
        if own_error is not None and own_error["kind"] == "SchemaError"
        else error
    )
