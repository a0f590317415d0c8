"""Scans: all rows of a selection, streamed batch by batch, filtered only where an edge of the window needs it.

Row groups that are wholly in the window are not copied: their text is handed out where it lies, in the mapped file. The
others are copied in units of some megabytes, by a few threads if they are many, and kept for the next scan of the same
columns: a slide takes rows from one expiry column only, so the copies of the other columns are still right.
"""

import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import pyarrow as pa

from windrow.indexes.bounded_cache import BoundedCache
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
ReadTask = Callable[[], Batches]
CopySource = tuple[tuple[int, int, int, bytes, int], ...]
"""What a copy is of: parts of segments, each with the segment's number, its first row and one past the last, when the
segment's rows expire, and how many have."""

# Thresholds, all set by the scan lines of `bench core`.
_CACHE_SHARE = 4
"""Copies may take one part in so many of the column cache's budget."""
_CACHED_SCANS = 16
"""Scans, each of a stream and some of its columns, that are remembered."""
_UNIT_BYTES = 4 << 20
"""Live rows that are copied in one call."""
_SERIAL_COPY_BYTES = 40 << 20
"""Up to so much is copied by the consumer alone: with a second thread, both wait for each other and for memory. (The
column cache decodes values, which is more work for each byte: its threshold is lower.)"""
_GROUP_BYTES = 256 << 10
"""A segment whose row groups have so many bytes on average gives each of them as a batch, without copying."""
_BATCH_BYTES = 2048
"""About what a batch takes besides its buffers."""
_MAPPED_SHARE = 8
"""Batches that were not copied are kept if at most one byte in so many is memory of their own."""
_THREADS = min(8, os.cpu_count() or 1)


class ScanCache:
    """Copies of live rows by what they are of; a scan that is made for the second time begins to keep them.

    Arrow's texts lie side by side, so the live rows of a segment that also has dead ones must be copied to be handed
    out. Batches that need no copy are kept too, if next to nothing of them is memory of their own.

    Args:
        cache: Whose budget the copies are taken from.
    """

    def __init__(self, cache: ColumnCache) -> None:
        self._cache = cache
        self._scans: BoundedCache[Hashable, dict[CopySource, tuple[Batches, int]]] = BoundedCache(
            _CACHED_SCANS, dropped=lambda _, copies: self._drop(copies, ())
        )
        self._lock = threading.Lock()
        self.bytes = 0
        """Held now, without what is lost because memory is allocated in large pages."""

    def has_room_for(self, size: int) -> bool:
        """Whether copies of so many bytes can all be kept, if nothing else is."""
        return size <= self._cache.budget // _CACHE_SHARE

    def begin(self, scan: Hashable, wanted: Collection[CopySource]) -> dict[CopySource, Batches] | None:
        """The cached copies that a scan wants; those that it no longer wants are dropped, and their memory reused.

        Args:
            scan: What is scanned: a stream and columns.
            wanted: The source of each copy.

        Returns:
            None if nothing is to be kept: nobody has made this scan before.
        """
        with self._lock:
            copies = self._scans.get(scan)
            if copies is None:
                self._scans.put(scan, {})
                return None
            self._drop(copies, wanted)
            return {source: batches for source, (batches, _) in copies.items()}

    def keep(self, scan: Hashable, source: CopySource, batches: Batches, size: int) -> None:
        """Keep a copy of so many bytes; those of the least recently made scans are dropped for it."""
        with self._lock:
            copies = self._scans.get(scan)
            if copies is None or source in copies:
                return
            for other, others in self._scans.items():
                if other == scan or self.has_room_for(self.bytes + size):
                    break
                self._drop(others, ())
            if self.has_room_for(self.bytes + size):
                copies[source] = batches, size
                self._count(size)

    def forget(self, segments: Collection[int]) -> None:
        """Drop copies of segments that are gone: a copy of one that was wholly live may be the file's own memory."""
        numbers = frozenset(segments)
        with self._lock:
            for _, copies in self._scans.items() if self.bytes else ():
                self._drop(copies, {source for source in copies if numbers.isdisjoint(part[0] for part in source)})

    def clear(self) -> None:
        """Drop all copies."""
        with self._lock:
            self._scans.clear()

    def _drop(self, copies: dict[CopySource, tuple[Batches, int]], wanted: Collection[CopySource]) -> None:
        for source in [source for source in copies if source not in wanted]:
            self._count(-copies.pop(source)[1])

    def _count(self, size: int) -> None:
        self.bytes += size
        self._cache.reserve(size)


class _Read(NamedTuple):
    """Rows that are read in one call."""

    source: CopySource
    bytes: int
    """About so many are copied."""
    task: ReadTask
    measure: Callable[[Batches], int | None]
    """The memory that keeping the result would take; None if it is not worth that."""


@dataclass(frozen=True)
class _Unit:
    """Rows that are copied in one call."""

    spans: Spans
    source: CopySource
    bytes: int
    """About so many of live rows."""


def scan_segments(
    selection: Selection,
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: SegmentFileReader,
    cache: ScanCache | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a selection with the columns of `schema`, streamed.

    Args:
        selection: Segments and bounds.
        model: How to read time and expiry.
        full: All columns that a file may have.
        schema: The wanted columns.
        reader: Of the files.
        cache: Copies that earlier scans made.
    """
    if not schema.names:
        # Rows without columns still count; one column is read to count them.
        timed = pa.schema([full.field(model.time)])
        yield from (batch.select([]) for batch in scan_segments(selection, model, full, timed, reader))
        return

    def read_whole(spans: Spans) -> ReadTask:
        return lambda: _batches(read_spans(spans, schema, full, reader))

    def read_groups(segment: Segment, groups: list[tuple[int, int]]) -> ReadTask:
        def read(start: int, stop: int) -> Batches:
            rows = read_row_group(segment.file, start, stop, schema, full, reader)
            return read_whole(Spans.of({segment.file: [(start, stop)]}))() if rows is None else [rows]

        return lambda: [batch for start, stop in groups for batch in read(start, stop)]

    bounds = selection.edge_bounds()
    reader.prepare(segment.file for segment in selection.segments)

    def read_edge(spans: Spans) -> ReadTask:
        live = spans.without_ended(selection.edge, bounds.now)
        return lambda: _batches(read_live_spans(live, bounds, model, schema, full, reader))

    shared, small = list[_Read](), []
    for segment in selection.whole:
        groups = split_at_row_groups(segment, full, reader)
        if segment.bytes >= _GROUP_BYTES * len(groups):
            source = ((segment.id, segment.start, segment.stop, segment.expiries, 0),)
            memory, _ = reader.map_file(segment.file, full)
            shared.append(_Read(source, 0, read_groups(segment, groups), partial(_measure_if_mapped, memory)))
        else:
            small.append(segment)
    wholes = list(_units(small, [0] * len(small)))
    edges = list(_units(selection.edge, _dead_rows(selection.edge, model.last_slot(bounds.now))))
    copied = [_Read(unit.source, unit.bytes, read_whole(unit.spans), _measure) for unit in wholes]
    copied += [_Read(unit.source, unit.bytes, read_edge(unit.spans), _measure) for unit in edges]
    ready = list[ReadTask]()
    if cache is not None and bounds.is_of_expiry and model.expires is not None and selection.segments:
        folder = selection.segments[0].file.rpartition("/")[0]
        scan = folder, tuple(schema.names), tuple(map(str, schema.types))
        ready, shared, copied = _use_cache(cache, scan, shared, copied)
    uncopied = [*ready, *(read.task for read in shared)]
    yield from _run(uncopied, [read.task for read in copied], sum(read.bytes for read in copied))


def _use_cache(
    cache: ScanCache, scan: Hashable, shared: list[_Read], copied: list[_Read]
) -> tuple[list[ReadTask], list[_Read], list[_Read]]:
    """What is cached already, and what must be read, and kept when it is."""
    cacheable = [*shared, *copied] if cache.has_room_for(sum(read.bytes for read in copied)) else shared
    cached = cache.begin(scan, {read.source for read in cacheable})
    if cached is None:
        return [], shared, copied

    def keeping(read: _Read) -> _Read:
        def task() -> Batches:
            batches = read.task()
            size = read.measure(batches)
            if size is not None:
                cache.keep(scan, read.source, batches, size)
            return batches

        return read._replace(task=task)

    def giving(batches: Batches) -> ReadTask:
        return lambda: batches

    ready = [giving(cached[read.source]) for read in cacheable if read.source in cached]
    missing = [keeping(read) for read in shared if read.source not in cached]
    if cacheable is shared:
        return ready, missing, copied
    return ready, missing, [keeping(read) for read in copied if read.source not in cached]


def _measure(batches: Batches) -> int:
    return sum(batch.nbytes for batch in batches)


def _measure_if_mapped(memory: parquet_reader.FileMap, batches: Batches) -> int | None:
    """Bytes of batches that are not a mapped file's; None if they are many."""
    size = sum(count_unmapped_bytes(batch.columns, memory) + _BATCH_BYTES for batch in batches)
    return size if size * _MAPPED_SHARE <= _measure(batches) else None


def _dead_rows(segments: Sequence[Segment], slide: int) -> list[int]:
    """How many rows of each segment are dead."""
    counts: list[int] = native_rows.count_rows_between([segment.expiries for segment in segments], None, slide).tolist()
    return counts


def _batches(rows: pa.Table) -> Batches:
    return [batch for batch in rows.to_batches() if batch.num_rows]


def _units(segments: Sequence[Segment], dead: Sequence[int]) -> Iterator[_Unit]:
    """Segments, or parts of large ones, gathered into reads of about `_UNIT_BYTES` of live rows.

    Where that makes none very small, a unit is of one expiry column: only slides that take rows from it change it.
    """
    pending: dict[str, list[tuple[int, int]]] = {}
    source: list[tuple[int, int, int, bytes, int]] = []
    size, column = 0, (-1, -1)

    def finish() -> _Unit:
        unit = _Unit(Spans.of(pending), tuple(source), size)
        pending.clear()
        source.clear()
        return unit

    order = sorted(zip(segments, dead, strict=True), key=lambda pair: (pair[0].layout, pair[0].column, pair[0].id))
    for segment, dead_rows in order:
        if (segment.layout, segment.column) != column and size >= _UNIT_BYTES // 4:
            yield finish()
            size = 0
        column = segment.layout, segment.column
        start, stop = segment.start, segment.start + segment.rows
        live = max(1, segment.bytes * (segment.rows - dead_rows) // max(1, segment.rows))
        while start < stop:
            # A part is what fills the unit; the next unit begins where it ended.
            rows = max(1, (_UNIT_BYTES - size) * segment.rows // live)
            end = stop if stop - start <= rows * 5 // 4 else start + rows
            pending.setdefault(segment.file, []).append((start, end))
            source.append((segment.id, start, end, segment.expiries, dead_rows))
            size += live * (end - start) // segment.rows
            start = end
            if size >= _UNIT_BYTES:
                yield finish()
                size = 0
    if pending:
        yield finish()


def _run(uncopied: Sequence[ReadTask], copied: Sequence[ReadTask], size: int) -> Iterator[pa.RecordBatch]:
    """Make many copies by threads, a few ahead of the consumer, who is given the uncopied batches in between."""
    if len(copied) <= 1 or size <= _SERIAL_COPY_BYTES or _THREADS == 1:
        for task in (*uncopied, *copied):
            yield from task()
        return
    with _ReadAhead(copied) as reads:
        for number, between in enumerate(_spread(uncopied, len(copied))):
            for task in between:
                yield from task()
            yield from reads.result(number)


class _ReadAhead:
    """Tasks that are run in order by whoever is free: threads a few tasks ahead, or the consumer who needs the result.

    A ThreadPoolExecutor does the same in fewer lines, but took about 5 % more time for a threaded scan.

    Args:
        tasks: In the order in which their results are wanted.
    """

    def __init__(self, tasks: Sequence[ReadTask]) -> None:
        self._tasks = tasks
        self._results: dict[int, Batches | BaseException] = {}
        self._next = 0
        """The first task that nobody has begun."""
        self._taken = 0
        """Results that the consumer has asked for."""
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"windrow-scan-{number}", daemon=True)
            for number in range(min(_THREADS, len(tasks)) - 1)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._next = len(self._tasks)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def result(self, number: int) -> Batches:
        """The result of a task; each is asked for once, in order."""
        with self._changed:
            is_unbegun = self._next == number
            if is_unbegun:
                self._next += 1
            while not is_unbegun and number not in self._results:
                self._changed.wait()
            result = self._results.pop(number, None)
            self._taken = number + 1
            self._changed.notify_all()
        if isinstance(result, BaseException):
            raise result
        return self._tasks[number]() if result is None else result

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._next < len(self._tasks) and self._next - self._taken >= 2 * _THREADS:
                    self._changed.wait()
                number = self._next
                if number >= len(self._tasks):
                    return
                self._next += 1
            result: Batches | BaseException
            try:
                result = self._tasks[number]()
            except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
                result = error
            with self._changed:
                self._results[number] = result
                self._changed.notify_all()


def _spread(tasks: Sequence[ReadTask], parts: int) -> Iterator[Sequence[ReadTask]]:
    """`tasks` in `parts` about equal parts."""
    for part in range(parts):
        yield tasks[len(tasks) * part // parts : len(tasks) * (part + 1) // parts]
