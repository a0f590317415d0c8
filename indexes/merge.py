"""Merging segments: several sorted runs become one, dead rows are left out, arrival sequences become absolute.

Large segments are runs of their own, read a few row groups at a time, so that memory is bounded by the number of runs
and not by their size. Small ones are read together and sorted once: their number costs no more than their rows do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.row_model import NEVER, SEQ, Int64s, RowModel
from windrow.indexes.segment_builder import SegmentDraft, build_directory
from windrow.indexes.segment_reader import SegmentFileReader, Spans, read_live_spans, read_spans
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.segments import Histogram, Segment, pack_histogram
from windrow.indexes.selection import WindowBounds
from windrow.native import rows as native_rows

_MEMORY = 32 << 20
"""Stored bytes of all runs together that are read at a time. These three are not measured: bounds on memory."""
_LEAST_CHUNK = 1 << 20
"""Stored bytes of one run that are read at a time, at least; smaller segments share a run."""
_PORTION = 8 << 20
"""Stored bytes of the small segments that share a run."""


@dataclass
class _Run:
    """One sorted input, and its rows that were read and not merged yet."""

    source: Iterator[pa.Table]
    rows: pa.Table | None = None
    keys: pa.Array | None = None
    exp: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    done: bool = False


def merge_segments(
    segments: list[Segment],
    column: int,
    now: int | None,
    model: RowModel,
    schema: pa.Schema,
    reader: SegmentFileReader,
    writer: SegmentFileWriter,
    *,
    dead: bool = False,
) -> SegmentDraft | None:
    """Merge `segments` into the next segment of `writer`, leaving out rows that are dead at `now`.

    With `dead`, what is left out without it is merged, and nothing else.

    Returns:
        A draft of the new segment, or None if no row was left.
    """
    if dead:
        assert now is not None
        segments = [segment for segment in segments if segment.min_exp <= now]
    merged = MergedSegment(column, model, schema, writer)
    for block in read_merged(segments, now, model, schema, reader, dead=dead):
        merged.add(block)
    return merged.draft()


class MergedBlock(NamedTuple):
    """Some rows of several segments, in the order of a segment."""

    rows: pa.Table
    """As they were read."""
    order: Int64s | None
    """Their sorted order; None: as they are."""
    keys: pa.Array | None
    exp: Int64s
    """Keys and expiries in that order."""


def read_merged(
    segments: list[Segment],
    now: int | None,
    model: RowModel,
    schema: pa.Schema,
    reader: SegmentFileReader,
    *,
    dead: bool = False,
) -> Iterator[MergedBlock]:
    """The rows of segments that are live (or dead) at `now`, merged, a bounded number at a time."""
    runs = [_Run(source) for source in _open_runs(segments, now, model, schema, reader, dead=dead)]
    for run in runs:
        _refill(run, model)
    while runs := [run for run in runs if run.rows is not None]:
        yield MergedBlock(*_next_block(runs, model))


class MergedSegment:
    """The next segment of a file, of merged rows."""

    def __init__(self, column: int, model: RowModel, schema: pa.Schema, writer: SegmentFileWriter) -> None:
        self._column, self._model, self._schema, self._writer = column, model, schema, writer
        self._start, self._totals = writer.rows, _SegmentTotals()
        self._keys: list[pa.Array] = []

    @property
    def bytes(self) -> int:
        """Of its rows in memory."""
        return self._totals.bytes

    def add(self, block: MergedBlock) -> None:
        """Write rows that come after those before."""
        ts, _ = self._model.times(block.rows)
        self._totals.add(ts, block.exp, self._model.slots(block.exp))
        self._totals.bytes += block.rows.nbytes
        if block.keys is not None:
            self._keys.append(block.keys)
        self._writer.add(block.rows, block.order, last=False)

    def draft(self) -> SegmentDraft | None:
        """The segment that these rows are, which ends here; None if there are none."""
        rows = self._writer.rows - self._start
        if not rows:
            return None
        self._writer.add(self._schema.empty_table())
        return self._totals.draft(self._column, self._start, rows, self._keys)


def _open_runs(
    segments: list[Segment],
    now: int | None,
    model: RowModel,
    schema: pa.Schema,
    reader: SegmentFileReader,
    *,
    dead: bool,
) -> Iterator[Iterator[pa.Table]]:
    """Sorted inputs; equal rows come in the order of their segments, so that only neighbours share a run."""
    portions: list[list[Segment]] = []
    space_left = 0
    for segment in segments:
        if segment.bytes > space_left:
            portions.append([])
            space_left = _PORTION if segment.bytes < _LEAST_CHUNK else segment.bytes
        portions[-1].append(segment)
        space_left -= segment.bytes
    chunk = max(_LEAST_CHUNK, _MEMORY // max(1, len(portions)))
    for portion in portions:
        if len(portion) == 1:
            yield read_live_rows(portion[0], now, model, schema, reader, chunk, dead=dead)
        else:
            yield _read_together(portion, now, model, schema, reader, dead=dead)


def rewrite_segment(
    segment: Segment,
    choose: Callable[[pa.Table], pa.Table],
    model: RowModel,
    schema: pa.Schema,
    reader: SegmentFileReader,
    writer: SegmentFileWriter,
) -> tuple[SegmentDraft, Histogram] | None:
    """Write the rows of a segment that `choose` leaves as the next segment of `writer`, in the order that they have.

    Returns:
        A draft of the new segment and how many rows fall in each event slot; None if no row was left.
    """
    start, keys, totals, events = writer.rows, [], _SegmentTotals(), _SegmentTotals()
    for rows in read_live_rows(segment, None, model, schema, reader, _MEMORY):
        table = choose(rows).combine_chunks()
        if not table.num_rows:
            continue
        ts, _ = model.times(table)
        exp, _ = model.expiries(table, ts)
        totals.add(ts, exp, model.slots(exp))
        events.add(ts, exp, model.slots(ts))
        totals.bytes += table.nbytes
        if model.key:
            keys.append(model.encoded_keys(table))
        writer.add(table, None, last=False)
    if writer.rows == start:
        return None
    writer.add(schema.empty_table())
    draft = totals.draft(segment.column, start, writer.rows - start, keys)
    return draft, pack_histogram(*events.histogram())


def _choose_dead(table: pa.Table, now: int, model: RowModel) -> pa.Table:
    """The rows that are dead at `now`."""
    exp, _ = model.expiries(table, model.times(table)[0])
    return table.filter(to_arrow(exp <= now))


def _read_together(
    segments: list[Segment],
    now: int | None,
    model: RowModel,
    schema: pa.Schema,
    reader: SegmentFileReader,
    *,
    dead: bool,
) -> Iterator[pa.Table]:
    """The rows of small segments that are live at `now`, in one sorted table."""
    table = read_spans(Spans.of_segments(segments).without_ended(segments, now), schema, schema, reader)
    position = table.schema.get_field_index(SEQ)
    counts = [segment.rows - len(find_ended_rows(segment, now)) for segment in segments]
    bases = np.repeat([segment.seq_base for segment in segments], counts)
    table = table.set_column(position, schema.field(SEQ), pa.array(table.column(position).to_numpy() + bases))
    if now is not None and dead:
        table = _choose_dead(table, now, model)
    elif now is not None and any(segment.min_exp <= now for segment in segments):
        table = WindowBounds(after=None, upto=NEVER, now=now).filter(table, model)
    if table.num_rows:
        exp, _ = model.expiries(table, model.times(table)[0])
        keys = model.encoded_keys(table) if model.key else None
        yield table.take(pa.array(native_rows.sort_order(None, keys, exp)))


def read_live_rows(
    segment: Segment,
    now: int | None,
    model: RowModel,
    schema: pa.Schema,
    reader: SegmentFileReader,
    chunk: int,
    *,
    dead: bool = False,
) -> Iterator[pa.Table]:
    """The rows of a segment that are live (or dead) at `now`, some `chunk` bytes at a time, with absolute sequences."""
    step = max(1, segment.rows * chunk // max(1, segment.bytes))
    for start in range(segment.start, segment.stop, step):
        stop = min(start + step, segment.stop)
        spans = Spans.of({segment.file: [(start, stop)]}).without_ended([segment], now)
        if now is not None and dead:
            table = _choose_dead(read_spans(spans, schema, schema, reader), now, model)
        elif now is not None and segment.min_exp <= now:
            bounds = WindowBounds(after=None, upto=NEVER, now=now)
            table = read_live_spans(spans, bounds, model, schema, schema, reader)
        else:
            table = read_spans(spans, schema, schema, reader)
        if segment.seq_base and table.num_rows:
            position = table.schema.get_field_index(SEQ)
            absolute = table.column(position).to_numpy() + segment.seq_base
            table = table.set_column(position, schema.field(SEQ), pa.array(absolute))
        if table.num_rows:
            yield table


def _refill(run: _Run, model: RowModel) -> None:
    table = next(run.source, None)
    if table is None:
        run.rows, run.keys, run.done = None, None, True
        return
    table = table.combine_chunks()
    ts, _ = model.times(table)
    run.rows = table
    run.exp, _ = model.expiries(table, ts)
    run.keys = model.encoded_keys(table) if model.key else None


def _next_block(runs: list[_Run], model: RowModel) -> tuple[pa.Table, Int64s | None, pa.Array | None, Int64s]:
    """All rows up to the smallest last row of the runs: no row that is still unread can come before them.

    Returns:
        The rows as they were read, their sorted order (None: as they are), keys and expiries in that order.
    """
    bound = min(_row_key(run, run.rows.num_rows - 1) for run in runs if run.rows is not None)
    tables, keys, expiries = [], [], []
    for run in runs:
        assert run.rows is not None
        count = _count_through(run, bound)
        if not count:
            continue
        tables.append(run.rows.slice(0, count))
        expiries.append(run.exp[:count])
        if run.keys is not None:
            keys.append(run.keys.slice(0, count))
        if count == run.rows.num_rows:
            _refill(run, model)
        else:
            run.rows, run.exp = run.rows.slice(count), run.exp[count:]
            run.keys = run.keys.slice(count) if run.keys is not None else None
    exp = np.concatenate(expiries)
    merged_keys = pa.concat_arrays(keys) if keys else None
    table = pa.concat_tables(tables)
    if len(tables) == 1:
        return table, None, merged_keys, exp
    order = native_rows.sort_order(None, merged_keys, exp)
    return table, order, merged_keys.take(pa.array(order)) if merged_keys is not None else None, exp[order]


def _row_key(run: _Run, row: int) -> tuple[bytes, int]:
    return (run.keys[row].as_py() if run.keys is not None else b""), int(run.exp[row])


def _count_through(run: _Run, bound: tuple[bytes, int]) -> int:
    first, last = 0, len(run.exp)
    while first < last:
        middle = (first + last) // 2
        if _row_key(run, middle) <= bound:
            first = middle + 1
        else:
            last = middle
    return first


class _SegmentTotals:
    """Statistics of a segment, gathered block by block."""

    def __init__(self) -> None:
        self.min_ts = self.min_exp = (1 << 63) - 1
        self.max_ts = self.max_exp = -(1 << 63)
        self.bytes = 0
        self._parts: list[tuple[Int64s, Int64s]] = []

    def add(self, ts: Int64s, exp: Int64s, slots: Int64s) -> None:
        self.min_ts, self.max_ts = min(self.min_ts, int(ts.min())), max(self.max_ts, int(ts.max()))
        self.min_exp, self.max_exp = min(self.min_exp, int(exp.min())), max(self.max_exp, int(exp.max()))
        self._parts.append(native_rows.histogram(slots))

    def histogram(self) -> tuple[Int64s, Int64s]:
        slots = np.concatenate([part[0] for part in self._parts])
        counts = np.concatenate([part[1] for part in self._parts])
        distinct, inverse = np.unique(slots, return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, inverse, counts)
        return distinct, sums

    def draft(self, column: int, start: int, rows: int, keys: list[pa.Array]) -> SegmentDraft:
        """The segment that has these rows, with their encoded keys."""
        return SegmentDraft(
            column=column,
            start=start,
            rows=rows,
            min_ts=self.min_ts,
            max_ts=self.max_ts,
            min_exp=self.min_exp,
            max_exp=self.max_exp,
            expiries=pack_histogram(*self.histogram()),
            directory=build_directory(pa.concat_arrays(keys), self.bytes / max(1, rows)) if keys else b"",
        )
