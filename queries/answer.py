"""Answers, which are rows streamed out of a pinned snapshot, and explanations of what a statement would read.

An answer is read once, batch by batch; the pin goes when the last row is read, on `close`, or with the answer itself.
"""

import atexit
import contextlib
import datetime as dt
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from windrow import times
from windrow.errors import ClosedError, QueryError
from windrow.formats.text import HUGE, contains_type
from windrow.queries.engine import python_values
from windrow.queries.planner.planner import RelationPlan

RowsType = TypeVar("RowsType", pa.Table, pa.RecordBatch)
_CLOSED = "this answer was read or closed already; ask again"


@dataclass(frozen=True)
class Window:
    """Which window of a stream an answer is of."""

    stream: str
    clause: str
    slide: int | None
    """The stream's slide number; None before its first slide."""
    start: dt.datetime | None
    """Rows after this time are in the window; None: no lower bound."""
    end: dt.datetime | None
    """Rows up to this time are in it; the stream's clock, or earlier if the window says so."""
    complete: bool
    """Whether every source had reached the window's end."""
    sources: tuple[str, ...]
    missing: tuple[str, ...]
    """Sources that the slide went on without."""
    spoken_for: tuple[str, ...]
    rejected: int
    """Rows that the stream has rejected so far."""
    sampling: float = 1.0
    """The share of rows that the answer is computed from."""


_open: "weakref.WeakSet[Answer]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close unread answers when the program ends, or DuckDB reports their cursors as leaked."""
    for answer in list(_open):
        answer.close()


class Answer:
    """The rows of one query. Read them once, as you like; the snapshot is let go when they are used up or it is closed.

    Args:
        reader: The rows.
        windows: What they are of, one for each stream in the statement.
        isolation: The level at which it was asked.
        release: Lets go of everything that the rows need.
        staleness: How far the streams' clocks have moved on since; asked when the answer is finished.
        text: The statement.
        checked_at: When a query at ``latest`` made its final check; its staleness is the one at that instant.
        version: The number of the last commit at that instant.
    """

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        windows: tuple[Window, ...],
        isolation: str,
        release: Callable[[], None],
        staleness: Callable[[], dt.timedelta],
        text: str = "",
        *,
        params: Any = None,
        checked_at: dt.datetime | None = None,
        version: int | None = None,
    ) -> None:
        self._reader: pa.RecordBatchReader | None = reader
        self._schema = reader.schema
        self.windows = windows
        self.isolation = isolation
        self.text = text
        self.params = params
        self.checked_at = checked_at
        self.version = version
        self._measure = staleness
        self._staleness: dt.timedelta | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._used = False
        self._release = weakref.finalize(self, release)
        self._release.atexit = False  # `_close_all` does that, with all that an answer holds
        _open.add(self)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._schema.names)

    @property
    def staleness(self) -> dt.timedelta:
        """How far the streams' clocks had moved past the windows when the answer was finished (or have, until then)."""
        return self._measure() if self._staleness is None else self._staleness

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch."""
        self._take()
        return self._stream()

    def _stream(self) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                reader = self._reader
                if reader is None or not self._release.alive:
                    raise ClosedError(_CLOSED)
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                del reader  # a loop that is left early must not hold it
                if batch.num_rows:
                    yield batch
        finally:
            self._finish()

    def _take(self) -> None:
        if self._used or not self._release.alive:
            raise ClosedError(_CLOSED)
        self._used = True

    def _finish(self) -> None:
        if self._release.alive:
            with contextlib.suppress(ClosedError):
                self._staleness = self._measure()
            self._reader = None  # it holds what DuckDB keeps for rows that are not read yet
            self._release()

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    def df(self) -> Any:
        """All rows as a pandas frame."""
        rows = narrow_integers(self.arrow())
        try:
            return rows.to_pandas()
        except (OverflowError, ValueError, pa.ArrowNotImplementedError) as error:
            raise QueryError(f"pandas cannot hold this answer ({error}); read it with arrow() or pl()") from None

    def pl(self) -> Any:
        """All rows as a polars frame."""
        import polars

        rows = narrow_integers(self.arrow())
        for field in rows.schema:
            if contains_type(field.type, _unknown_to_polars):
                raise QueryError(
                    f"polars cannot hold column {field.name!r} (of type {field.type}); cast it, or read it with arrow()"
                )
        return polars.from_arrow(rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left, as tuples."""
        return list(self)

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row as a tuple, None after the last."""
        return next(iter(self), None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._rows is None:
            self._rows = self._tuples(self.batches())
        return self._rows

    @staticmethod
    def _tuples(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            columns = [
                python_values.to_python_values(column, field)
                for column, field in zip(batch.columns, batch.schema, strict=True)
            ]
            yield from zip(*columns, strict=True)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Let go of the snapshot without reading on."""
        self._used, self._rows = True, None
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unknown_to_polars(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal256(kind) or pa.types.is_interval(kind) or pa.types.is_union(kind))


def narrow_integers(rows: RowsType) -> RowsType:
    """Sums and other wide integers as 64-bit integers where they fit, which frames and JSON have as numbers."""
    for index, field in enumerate(rows.schema):
        if field.metadata == HUGE:
            with contextlib.suppress(pa.ArrowInvalid):
                rows = rows.set_column(index, field.name, rows.column(index).cast(pa.int64()))
    return rows


def describe_windows(windows: tuple[Window, ...]) -> str:
    """The windows of an answer in words, for terminals and logs."""
    return "; ".join(_describe_window(window) for window in windows)


def _describe_window(window: Window) -> str:
    if window.slide is None or window.end is None:
        return f"{window.stream}, which has not slid yet"
    start = "" if window.start is None else f"after {times.format_time(times.parse_instant(window.start))} "
    missing = f", without {', '.join(window.missing)}" if window.missing else ""
    end = times.format_time(times.parse_instant(window.end))
    window_name = f"{window.stream}, {window.clause}" if window.clause[0] != "[" else f"{window.stream} {window.clause}"
    return f"{window_name} {start}up to {end} (slide {window.slide}){missing}"


@dataclass(frozen=True)
class Explanation:
    """What a statement would read. As text it is one line for each window, then the plan."""

    relations: tuple[RelationPlan, ...]
    windows: tuple[Window, ...]
    plan: str
    """DuckDB's own plan; with the times of a run for EXPLAIN ANALYZE."""
    pattern: str = ""
    """How its rows leave, and how a view of it would be maintained; empty if it reads no stream."""

    def __str__(self) -> str:
        lines = [_describe_relation(plan, window) for plan, window in zip(self.relations, self.windows, strict=True)]
        pattern = [f"update pattern: {self.pattern}"] if self.pattern else []
        return "\n".join([*lines, *pattern, self.plan.rstrip()])


def _describe_relation(plan: RelationPlan, window: Window) -> str:
    figures = {"cells": plan.cells, "segments": plan.segments, "rows": plan.rows, "bytes": plan.bytes}
    read = ", ".join(f"{name} {part:,} of {whole:,}" for name, (part, whole) in figures.items())
    slide = "before its first slide" if window.slide is None else f"at slide {window.slide}"
    return f"{window.stream} {window.clause} {slide}: {plan.path}; {read}; key: {plan.keys}"
