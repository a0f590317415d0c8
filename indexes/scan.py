"""Scans: all rows of the selected segments, read ahead of the consumer, filtered only where an edge needs it.

Row groups that are wholly in the window are not copied: their texts are handed out where they lie, in the mapped file.
The others are read in units of some megabytes, across files, by a few threads if they are many; what a scan has made
is kept for the next one, see `copies`.

Copies of live rows that scans have made, kept for the next scan of the same columns.

Arrow's texts lie side by side, so the live rows of a segment that also has dead ones must be copied to be handed out. A
slide takes rows from one expiry column only: the copies of the others are still right, and are handed out again. What
needs no copy is kept too, if next to nothing of it is memory of its own.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import pyarrow as pa

from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.row_model import RowModel
from windrow.indexes.segment_reader import (
    SegmentFileReader,
    Spans,
    count_unmapped_bytes,
    read_live_spans,
    read_row_group,
    read_spans,
    split_at_row_groups,
)
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.native import parquet_reader
from windrow.native import rows as native_rows

Batches = list[pa.RecordBatch]
CopySource = tuple[tuple[int, int, int, bytes, int], ...]
"""What a copy is of: parts of segments, each with the segment's number, its first row and one past the last, when the
segment's rows expire, and how many have."""
_SHARE = 4
"""Of the budget for columns, the part that copies may take."""
_PLACES = 16
"""Scans, each of a stream and some of its columns, that are remembered."""


class ScanCache:
    """Copies by what they are of; a scan that is made for the second time begins to keep them.

    Args:
        cache: Whose budget they are taken from.
    """

    def __init__(self, cache: ColumnCache) -> None:
        self._cache = cache
        self._kept: OrderedDict[Hashable, dict[CopySource, tuple[Batches, int]]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        """Held now; memory is asked for in large pages, so that it may be some more."""

    def has_room_for(self, size: int) -> bool:
        """Whether copies of so many bytes can all be kept, if nothing else is."""
        return size <= self._cache.budget // _SHARE

    def begin(self, scan: Hashable, wanted: Collection[CopySource]) -> dict[CopySource, Batches] | None:
        """What is kept of the copies that a scan wants; what it no longer wants goes, and its memory is used again.

        Args:
            scan: What is scanned: a stream and columns.
            wanted: Of each copy what it is of.

        Returns:
            None if nothing is to be kept: nobody has made this scan before.
        """
        with self._lock:
            known = self._kept.get(scan)
            if known is None:
                self._kept[scan] = {}
                while len(self._kept) > _PLACES:
                    self._drop(self._kept.popitem(last=False)[1], ())
                return None
            self._kept.move_to_end(scan)
            self._drop(known, wanted)
            return {of: batches for of, (batches, _) in known.items()}

    def keep(self, scan: Hashable, of: CopySource, batches: Batches, size: int) -> None:
        """Keep a copy of so many bytes; those of scans that were not made for longest go for it."""
        with self._lock:
            known = self._kept.get(scan)
            if known is None or of in known:
                return
            for other in [other for other in self._kept if other != scan]:
                if self.has_room_for(self.bytes + size):
                    break
                self._drop(self._kept[other], ())
            if self.has_room_for(self.bytes + size):
                known[of] = batches, size
                self._count(size)

    def forget(self, segments: Collection[int]) -> None:
        """Drop copies of segments that are gone: a copy of one that was wholly live may be the file's own memory."""
        gone = frozenset(segments)
        with self._lock:
            for known in self._kept.values() if self.bytes else ():
                self._drop(known, {of for of in known if gone.isdisjoint(part[0] for part in of)})

    def _drop(self, known: dict[CopySource, tuple[Batches, int]], wanted: Collection[CopySource]) -> None:
        for of in [of for of in known if of not in wanted]:
            self._count(-known.pop(of)[1])

    def _count(self, size: int) -> None:
        self.bytes += size
        self._cache.lend(size)


_UNIT_BYTES = 4 << 20
_SERIAL_COPY_BYTES = 40 << 20
"""Up to so much is copied by the consumer alone: with a second thread both wait for each other and for memory."""
_SHARED_BYTES = 256 << 10
"""A segment's row groups from which on each is a batch of its own."""
_THREADS = min(8, os.cpu_count() or 1)
_BATCH_BYTES = 2048
"""What a batch takes beside its buffers, about."""
_OPEN_SHARE = 8
"""What needs no copy is kept if at most one byte in so many is memory of its own."""

ReadTask = Callable[[], Batches]


class _Task(NamedTuple):
    """Rows that are read in one go."""

    of: CopySource
    bytes: int
    """About so many are copied."""
    work: ReadTask
    own: Callable[[Batches], int | None]
    """What keeping the result would take; None if it is not worth that."""


@dataclass(frozen=True)
class _Unit:
    """Rows that are copied in one call."""

    spans: Spans
    of: CopySource
    bytes: int
    """About so many of live rows."""


def scan_segments(
    selection: Selection,
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: SegmentFileReader,
    copies: ScanCache | None = None,
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

    def whole(spans: Spans) -> ReadTask:
        return lambda: _batches(read_spans(spans, schema, full, reader))

    def groups(segment: Segment, cut: list[tuple[int, int]]) -> ReadTask:
        def group(start: int, stop: int) -> Batches:
            rows = read_row_group(segment.file, start, stop, schema, full, reader)
            return whole(Spans.of({segment.file: [(start, stop)]}))() if rows is None else [rows]

        return lambda: [batch for start, stop in cut for batch in group(start, stop)]

    bounds = selection.edge_bounds()

    def edge(spans: Spans) -> ReadTask:
        return lambda: _batches(read_live_spans(spans, bounds, model, schema, full, reader))

    shared, small = list[_Task](), []
    for segment in selection.whole:
        cut = split_at_row_groups(segment, full, reader)
        if segment.bytes >= _SHARED_BYTES * len(cut):
            of = ((segment.id, segment.start, segment.stop, segment.expiries, 0),)
            memory, _ = reader.mapped(segment.file, full)
            shared.append(_Task(of, 0, groups(segment, cut), partial(_own_if_open, memory)))
        else:
            small.append(segment)
    wholes = list(_units(small, [0] * len(small)))
    edges = list(_units(selection.edge, _dead(selection.edge, model.last_slot(bounds.now))))
    copied = [_Task(unit.of, unit.bytes, whole(unit.spans), _size) for unit in wholes]
    copied += [_Task(unit.of, unit.bytes, edge(unit.spans), _size) for unit in edges]
    ready = list[ReadTask]()
    if copies is not None and bounds.is_of_expiry and model.expires is not None and selection.segments:
        folder = selection.segments[0].file.rpartition("/")[0]
        scan = folder, tuple(schema.names), tuple(map(str, schema.types))
        ready, shared, copied = _kept(copies, scan, shared, copied)
    done = [*ready, *(task.work for task in shared)]
    yield from _ahead(done, [task.work for task in copied], sum(task.bytes for task in copied))


def _kept(
    copies: ScanCache, scan: Hashable, shared: list[_Task], copied: list[_Task]
) -> tuple[list[ReadTask], list[_Task], list[_Task]]:
    """What is there already, and what must be made, and kept when it is."""
    lasting = [*shared, *copied] if copies.has_room_for(sum(task.bytes for task in copied)) else shared
    known = copies.begin(scan, {task.of for task in lasting})
    if known is None:
        return [], shared, copied

    def keeping(task: _Task) -> _Task:
        def made() -> Batches:
            batches = task.work()
            size = task.own(batches)
            if size is not None:
                copies.keep(scan, task.of, batches, size)
            return batches

        return task._replace(work=made)

    def there(batches: Batches) -> ReadTask:
        return lambda: batches

    ready = [there(known[task.of]) for task in lasting if task.of in known]
    missing = [keeping(task) for task in shared if task.of not in known]
    if lasting is shared:
        return ready, missing, copied
    return ready, missing, [keeping(task) for task in copied if task.of not in known]


def _size(batches: Batches) -> int:
    return sum(batch.nbytes for batch in batches)


def _own_if_open(memory: parquet_reader.FileMap, batches: Batches) -> int | None:
    """Bytes of batches that are not a mapped file's; None if they are many."""
    own = sum(count_unmapped_bytes(batch.columns, memory) + _BATCH_BYTES for batch in batches)
    return own if own * _OPEN_SHARE <= _size(batches) else None


def _dead(segments: Sequence[Segment], slide: int) -> list[int]:
    """How many rows of each segment are dead."""
    counted: list[int] = native_rows.rows_between([segment.expiries for segment in segments], None, slide).tolist()
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


def _ahead(shared: Sequence[ReadTask], copied: Sequence[ReadTask], size: int) -> Iterator[pa.RecordBatch]:
    """Many copies are made by threads, a few ahead of the consumer, who is given between them what is there."""
    if len(copied) <= 1 or size <= _SERIAL_COPY_BYTES or _THREADS == 1:
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

    def __init__(self, works: Sequence[ReadTask]) -> None:
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


def _spread(work: Sequence[ReadTask], parts: int) -> Iterator[Sequence[ReadTask]]:
    """`work` in `parts` about equal parts."""
    for part in range(parts):
        yield work[len(work) * part // parts : len(work) * (part + 1) // parts]
