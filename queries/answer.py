"""Answers, which are rows streamed out of a pinned snapshot, and explanations of what a statement would read.

An answer is read once, batch by batch; the pin goes when the last row is read, on `close`, or with the answer itself.
"""

import atexit
import contextlib
import datetime as dt
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from windrow import times
from windrow.errors import ClosedError, GapError, QueryError
from windrow.formats.html import ShownAsTable
from windrow.formats.text import HUGE, contains_type, type_name
from windrow.gaps import BEFORE_FIRST
from windrow.queries.engine import python_values
from windrow.queries.planner.planner import RelationPlan
from windrow.windows import Window, attach, make_about

if TYPE_CHECKING:
    from windrow.queries.charts import Chart

SHOWN_ROWS = 20
"""Rows of an answer that a notebook shows."""
RowsType = TypeVar("RowsType", pa.Table, pa.RecordBatch)
GAP_POLICIES = ("tell", "error")
_CLOSED = "this answer was read or closed already; ask again"


_open: "weakref.WeakSet[Answer]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close unread answers when the program ends, and drop an error: DuckDB reports cursors that are held as leaked."""
    for answer in list(_open):
        answer.close()
    if (trace := getattr(sys, "last_traceback", None)) is not None:
        import traceback

        traceback.clear_frames(trace)


class Answer(ShownAsTable):
    """The rows of one query. Read them once, as you like; the snapshot is let go when they are used up or it is closed.

    Args:
        reader: The rows.
        windows: What they are of, one for each stream in the statement.
        isolation: The level at which it was asked.
        release: Lets go of everything that the rows need.
        staleness: How far the streams' clocks have moved on since; asked when the answer is finished.
        text: The statement.
        checked_at: When a query at ``latest`` made its final check; its staleness is the one at that instant.
        version: The commit that it saw; at ``latest``, the last one at that instant.
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

    def about(self) -> dict[str, Any]:
        """What is known of the answer, as JSON has it: its windows, whether they are complete, how stale they are."""
        return make_about(self.windows, self.isolation, self.staleness.total_seconds(), self.version)

    def without_gaps(self) -> Self:
        """The answer, if its windows are complete; otherwise it is closed and refused."""
        try:
            refuse_gaps(self.windows)
        except GapError:
            self.close()
            raise
        return self

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
        """All rows as an Arrow table; its schema's metadata says, under ``windrow``, which windows they are of."""
        rows = pa.Table.from_batches(list(self.batches()), self.schema)
        return rows.replace_schema_metadata(attach(rows.schema, self.about()).metadata)

    def df(self) -> Any:
        """All rows as a pandas frame; intervals are timedelta64, a month being 30 days."""
        rows = _intervals_as_durations(narrow_integers(self.arrow()))
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

    def plot(self, measures: Sequence[str] | None = None) -> "Chart":
        """Read all rows and chart them: their numbers (or `measures`) over their first time, or as bars.

        Notebooks show the chart; `Chart.specification` is Vega-Lite, `Chart.save` writes a file.
        """
        from windrow.queries.charts import plot

        return plot(narrow_integers(self.arrow()), measures)

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
        reader = pa.RecordBatchReader.from_batches(attach(self.schema, self.about()), self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {type_name(field)}" for field in self.schema)
        state = "read" if self._used else "not read yet"
        of = f" of {describe_windows(self.windows)}" if self.windows else ""
        return f"<Answer ({columns}){of}; {state}>"

    def peek(self, count: int = SHOWN_ROWS) -> pa.Table:
        """The first rows; they stay to be read. None of an answer that was read."""
        if self._used or self._reader is None:
            return self.schema.empty_table()
        reader = self._reader
        batches: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in batches) < count and (batch := next(reader, None)) is not None:
            batches.append(batch)
        self._reader = pa.RecordBatchReader.from_batches(self.schema, chain(batches, reader))
        return pa.Table.from_batches(batches, self.schema).slice(0, count)

    def _table(self) -> tuple[Sequence[str], Iterable[Sequence[Any]], str]:
        first = narrow_integers(self.peek(SHOWN_ROWS + 1))
        columns = zip(first.columns, first.schema, strict=True)
        shown = [python_values.to_python_values(column.combine_chunks(), field) for column, field in columns]
        complete = "" if all(window.complete for window in self.windows) else "; not complete"
        more = "; read already" if self._used else ""
        more = f"; the first {SHOWN_ROWS} rows" if first.num_rows > SHOWN_ROWS else more
        caption = f"{describe_windows(self.windows)}{complete}{more}".removeprefix("; ")
        return self.columns, islice(zip(*shown, strict=True), SHOWN_ROWS), caption

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


def _intervals_as_durations(rows: pa.Table) -> pa.Table:
    """Intervals as durations, which pandas computes with; those that are too long stay as they are."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_interval(field.type):
            chunks = [python_values.to_durations(chunk) for chunk in rows.column(index).chunks]
            if all(chunk is not None for chunk in chunks):
                rows = rows.set_column(index, field.name, pa.chunked_array(chunks, pa.duration("us")))
    return rows


def narrow_integers(rows: RowsType) -> RowsType:
    """Sums and other wide integers as 64-bit integers where they fit, which frames and JSON have as numbers."""
    for index, field in enumerate(rows.schema):
        if field.metadata == HUGE:
            with contextlib.suppress(pa.ArrowInvalid):
                rows = rows.set_column(index, field.name, rows.column(index).cast(pa.int64()))
    return rows


def describe_windows(windows: tuple[Window, ...]) -> str:
    """The windows of an answer in words, for terminals and logs."""
    return "; ".join(_describe_window(window) for window in windows if window.kind == "stream")


def check_gap_policy(on_gap: str, policies: tuple[str, ...] = GAP_POLICIES) -> None:
    """Refuse a word that does not say what is to happen with an answer that is not complete."""
    if on_gap not in policies:
        raise GapError(f"on_gap={on_gap!r} is unknown; choose one of {', '.join(policies)}")


def refuse_gaps(windows: Iterable[Window]) -> None:
    """Refuse windows that are not complete, and say what is missing."""
    for window in windows:
        if not window.complete:
            missing = "; ".join(map(str, window.gaps)) or "it has not slid yet"
            raise GapError(
                f"the window of stream {window.stream!r} is not complete ({missing}); "
                "wait until that has come, close the gap, or ask with on_gap='tell'"
            )


def _describe_window(window: Window) -> str:
    if window.slide is None or window.end is None:
        return f"{window.stream}, which has not slid yet"
    start = "" if window.start is None else f"after {times.format_time(times.parse_instant(window.start))} "
    missing = f", without {', '.join(window.missing)}" if window.missing else ""
    if any(gap.kind != BEFORE_FIRST for gap in window.gaps):
        missing += f", {window.coverage:.1%} covered"
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
    counts: bool = True
    """Whether it may be shown how many rows are stored."""
    summary: str = ""
    """Which summary answers it, or says which rows do; in the first case no relation is read."""

    def __str__(self) -> str:
        pairs = zip(self.relations, self.windows, strict=True)
        lines = [self.summary] if self.summary else []
        lines += [_describe_relation(plan, window, self.counts) for plan, window in pairs]
        pattern = [f"update pattern: {self.pattern}"] if self.pattern else []
        return "\n".join([*lines, *pattern, self.plan.rstrip()]).rstrip("\n")

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def _describe_relation(plan: RelationPlan, window: Window, counts: bool) -> str:
    slide = "before its first slide" if window.slide is None else f"at slide {window.slide}"
    opening = f"{window.stream} {window.clause} {slide}"
    if not counts:
        return f"{opening}; key: {plan.keys}"
    figures = {"cells": plan.cells, "segments": plan.segments, "rows": plan.rows, "bytes": plan.bytes}
    read = ", ".join(f"{name} {part:,} of {whole:,}" for name, (part, whole) in figures.items())
    return f"{opening}: {plan.path}; {read}; key: {plan.keys}"
