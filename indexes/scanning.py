"""Scans: all rows of the selected segments, read ahead of the consumer, filtered only where an edge needs it.

Row groups that are wholly in the window are not copied: their texts are handed out where they lie, in the mapped file.
The others are read in units of some megabytes, across files, by a few threads if they are many; what a scan has copied
is kept for the next one, see `copies`.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from windrow.indexes.copies import Batches, Copies, Of
from windrow.indexes.model import RowModel
from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import Spans, read_group, read_live_spans, read_spans, row_groups
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.native import histograms

_UNIT_BYTES = 4 << 20
_ALONE_BYTES = 40 << 20
"""Up to so much is copied by the consumer alone: with a second thread both wait for each other and for memory."""
_SHARED_BYTES = 256 << 10
"""A segment's row groups from which on each is a batch of its own."""
_THREADS = min(8, os.cpu_count() or 1)

Work = Callable[[], Batches]


@dataclass(frozen=True)
class _Unit:
    """Rows that are copied in one call."""

    spans: Spans
    of: Of
    bytes: int
    """About so many of live rows."""


def scan_segments(
    selection: Selection,
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: FileReader,
    copies: Copies | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a selection with the columns of `schema`, streamed.

    Args:
        selection: Segments and bounds.
        model: How to read time and expiry.
        full: All columns that a file may have.
        schema: The wanted columns.
        reader: Of the files.
        copies: Those that earlier scans made.
    """
    if not schema.names:
        # Rows without columns still count; one column is read to count them.
        timed = pa.schema([full.field(model.time)])
        yield from (batch.select([]) for batch in scan_segments(selection, model, full, timed, reader))
        return

    def whole(spans: Spans) -> Work:
        return lambda: _batches(read_spans(spans, schema, full, reader))

    def group(file: str, start: int, stop: int) -> Work:
        def work() -> Batches:
            rows = read_group(file, start, stop, schema, full, reader)
            return whole(Spans.of({file: [(start, stop)]}))() if rows is None else [rows]

        return work

    bounds = selection.edge_bounds()

    def edge(spans: Spans) -> Work:
        return lambda: _batches(read_live_spans(spans, bounds, model, schema, full, reader))

    shared, small = [], []
    for segment in selection.whole:
        groups = row_groups(segment, full, reader)
        if segment.bytes >= _SHARED_BYTES * len(groups):
            shared += [group(segment.file, *rows) for rows in groups]
        else:
            small.append(segment)
    wholes = list(_units(small, [0] * len(small)))
    edges = list(_units(selection.edge, _dead(selection.edge, model.last_slot(bounds.now))))
    copied = [(unit, whole(unit.spans)) for unit in wholes] + [(unit, edge(unit.spans)) for unit in edges]
    if copies is not None and bounds.is_of_expiry and model.expires is not None:
        kept, copied = _kept(copies, schema, copied)
        shared += kept
    yield from _ahead(shared, [work for _, work in copied], sum(unit.bytes for unit, _ in copied))


def _kept(
    copies: Copies, schema: pa.Schema, copied: list[tuple[_Unit, Work]]
) -> tuple[list[Work], list[tuple[_Unit, Work]]]:
    """Copies that are there already, and those that must be made, and kept when they are."""
    folder = next((unit.spans.files[0].rpartition("/")[0] for unit, _ in copied), None)
    scan = folder, tuple(schema.names), tuple(map(str, schema.types))
    known = None if folder is None else copies.begin(scan, {unit.of: unit.bytes for unit, _ in copied})
    if known is None:
        return [], copied

    def keeping(of: Of, work: Work) -> Work:
        def made() -> Batches:
            batches = work()
            copies.keep(scan, of, batches)
            return batches

        return made

    def there(batches: Batches) -> Work:
        return lambda: batches

    ready = [there(known[unit.of]) for unit, _ in copied if unit.of in known]
    return ready, [(unit, keeping(unit.of, work)) for unit, work in copied if unit.of not in known]


def _dead(segments: Sequence[Segment], slide: int) -> list[int]:
    """How many rows of each segment are dead."""
    counted: list[int] = histograms.rows_between([segment.expiries for segment in segments], None, slide).tolist()
    return counted


def _batches(rows: pa.Table) -> Batches:
    return [batch for batch in rows.to_batches() if batch.num_rows]


def _units(segments: Sequence[Segment], dead: Sequence[int]) -> Iterator[_Unit]:
    """Segments, or parts of large ones, gathered into reads of about `_UNIT_BYTES` of live rows.

    Where that makes none very small, a unit is of one expiry column: only slides that take rows from it change it.
    """
    pending: dict[str, list[tuple[int, int]]] = {}
    of: list[tuple[int, int, int, bytes, int]] = []
    size, column = 0, (-1, -1)

    def unit() -> _Unit:
        made = _Unit(Spans.of(pending), tuple(of), size)
        pending.clear()
        of.clear()
        return made

    order = sorted(zip(segments, dead, strict=True), key=lambda pair: (pair[0].layout, pair[0].column, pair[0].id))
    for segment, gone in order:
        if (segment.layout, segment.column) != column and size >= _UNIT_BYTES // 4:
            yield unit()
            size = 0
        column = segment.layout, segment.column
        start, stop = segment.start, segment.start + segment.rows
        live = max(1, segment.bytes * (segment.rows - gone) // max(1, segment.rows))
        while start < stop:
            # A part is what fills the unit; the next unit begins where it ended.
            room = max(1, (_UNIT_BYTES - size) * segment.rows // live)
            upto = stop if stop - start <= room * 5 // 4 else start + room
            pending.setdefault(segment.file, []).append((start, upto))
            of.append((segment.id, start, upto, segment.expiries, gone))
            size += live * (upto - start) // segment.rows
            start = upto
            if size >= _UNIT_BYTES:
                yield unit()
                size = 0
    if pending:
        yield unit()


def _ahead(shared: Sequence[Work], copied: Sequence[Work], size: int) -> Iterator[pa.RecordBatch]:
    """Many copies are made by threads, a few ahead of the consumer, who is given between them what is there."""
    if len(copied) <= 1 or size <= _ALONE_BYTES or _THREADS == 1:
        for work in (*shared, *copied):
            yield from work()
        return
    with _Helped(copied) as made:
        for at, others in enumerate(_spread(shared, len(copied))):
            for other in others:
                yield from other()
            yield from made.result(at)


class _Helped:
    """Work that is done in order by whoever is free: threads a few pieces ahead, or the one who waits for the result.

    Args:
        works: The pieces.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works
        self._results: dict[int, Batches | BaseException] = {}
        self._next = 0
        self._taken = 0
        self._changed = threading.Condition()
        self._helpers = [
            threading.Thread(target=self._help, name=f"windrow-scan-{at}", daemon=True)
            for at in range(min(_THREADS, len(works)) - 1)
        ]

    def __enter__(self) -> Self:
        for helper in self._helpers:
            helper.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._next = len(self._works)
            self._changed.notify_all()
        for helper in self._helpers:
            helper.join()

    def result(self, at: int) -> Batches:
        """What piece `at` gave; each is asked for once, in order."""
        with self._changed:
            mine = self._next == at
            if mine:
                self._next += 1
            while not mine and at not in self._results:
                self._changed.wait()
            found = self._results.pop(at, None)
            self._taken = at + 1
            self._changed.notify_all()
        if isinstance(found, BaseException):
            raise found
        return self._works[at]() if found is None else found

    def _help(self) -> None:
        while True:
            with self._changed:
                while self._next < len(self._works) and self._next - self._taken >= 2 * _THREADS:
                    self._changed.wait()
                at = self._next
                if at >= len(self._works):
                    return
                self._next += 1
            found: Batches | BaseException
            try:
                found = self._works[at]()
            except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
                found = error
            with self._changed:
                self._results[at] = found
                self._changed.notify_all()


def _spread(work: Sequence[Work], parts: int) -> Iterator[Sequence[Work]]:
    """`work` in `parts` about equal parts."""
    for part in range(parts):
        yield work[len(work) * part // parts : len(work) * (part + 1) // parts]
