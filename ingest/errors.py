"""What Spark says of a failure, made short: our own error where a task or a batch met one, else Spark's first line."""

import re

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from windrow.errors import SchemaError
from windrow.ingest.schemas import NULL_ERROR_PREFIX

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError)
"""What calls into Spark raise."""

_OWN_ERROR = re.compile(r"windrow\.errors\.(?P<kind>\w+): (?P<words>[^\n]+)")
_SPARK_CONDITION = re.compile(r"^(?:: |Caused by: )[\w.$]+: (?P<words>\[[A-Z_.]+\][^\n]+)", re.MULTILINE)
_QUERY_PREFIX = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_SQLSTATE_SUFFIX = re.compile(r" *SQLSTATE: \w+$")


def describe_error(error: BaseException) -> str:
    """Why something failed, in one line: our own words, else the reasons that Spark has names for, outermost first."""
    text = str(error).strip()
    ours = _OWN_ERROR.search(text)
    if ours is not None:
        return ours["words"].strip()
    named = dict.fromkeys(_SQLSTATE_SUFFIX.sub("", found["words"].strip()) for found in _SPARK_CONDITION.finditer(text))
    if named:
        return "; ".join(named)
    first = text.splitlines()[0] if text else type(error).__name__
    return _SQLSTATE_SUFFIX.sub("", _QUERY_PREFIX.sub("", first).strip())


def translate_error(error: Exception, stream: str) -> Exception:
    """Spark's report of a failed task as the error that the task met, if that was one of ours."""
    text = str(error)
    if NULL_ERROR_PREFIX in text:
        column = text.partition(NULL_ERROR_PREFIX)[2].split(maxsplit=1)[0].rstrip(".'\"")
        return SchemaError(f"stream {stream!r}: column {column!r} is not nullable but has nulls; nothing was appended")
    ours = _OWN_ERROR.search(text)
    return SchemaError(ours["words"].strip()) if ours is not None and ours["kind"] == "SchemaError" else error
