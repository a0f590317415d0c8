"""Scans: all rows of the selected segments, read ahead of the consumer, filtered only where an edge needs it.

Row groups that are wholly in the window are not copied: their texts are handed out where they lie, in the mapped file.
The others are read in units of some megabytes, across files, by a few threads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import pyarrow as pa

from windrow.indexes.model import RowModel
from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import Spans, read_live_spans, read_spans
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection

_UNIT_BYTES = 8 << 20
_SHARED_BYTES = 256 << 10
"""A segment's row groups from which on each is a batch of its own."""
_THREADS = min(8, os.cpu_count() or 1)

Batches = list[pa.RecordBatch]
Work = Callable[[], Batches]


def scan_segments(
    selection: Selection, model: RowModel, full: pa.Schema, schema: pa.Schema, reader: FileReader
) -> Iterator[pa.RecordBatch]:
    """The rows of a selection with the columns of `schema`, streamed.

    Args:
        selection: Segments and bounds.
        model: How to read time and expiry.
        full: All columns that a file may have.
        schema: The wanted columns.
        reader: Of the files.
    """
    if not schema.names:
        # Rows without columns still count; one column is read to count them.
        timed = pa.schema([full.field(model.time)])
        yield from (batch.select([]) for batch in scan_segments(selection, model, full, timed, reader))
        return

    def whole(spans: Spans) -> Work:
        return lambda: _batches(read_spans(spans, schema, full, reader))

    def edge(spans: Spans) -> Work:
        return lambda: _batches(read_live_spans(spans, selection.bounds, model, schema, full, reader))

    shared, small = [], []
    for segment in selection.whole:
        groups = _row_groups(segment, full, reader)
        if segment.bytes >= _SHARED_BYTES * len(groups):
            shared += [whole(Spans.of({segment.file: [group]})) for group in groups]
        else:
            small.append(segment)
    copied = [whole(spans) for spans in _units(small)] + [edge(spans) for spans in _units(selection.edge)]
    yield from _ahead(shared, copied)


def _batches(rows: pa.Table) -> Batches:
    return [batch for batch in rows.to_batches() if batch.num_rows]


def _row_groups(segment: Segment, full: pa.Schema, reader: FileReader) -> list[tuple[int, int]]:
    """A segment cut at the row groups of its file."""
    _, layout = reader.mapped(segment.file, full)
    inner = [first for first in layout.row_groups() if segment.start < first < segment.stop]
    return list(pairwise([segment.start, *inner, segment.stop]))


def _units(segments: Iterable[Segment]) -> Iterator[Spans]:
    """Segments, or parts of large ones, gathered into reads of about `_UNIT_BYTES`."""
    pending: dict[str, list[tuple[int, int]]] = {}
    size = 0
    for segment in sorted(segments, key=lambda s: (s.file, s.start)):
        step = max(1, segment.rows * _UNIT_BYTES // max(1, segment.bytes))
        for start in range(segment.start, segment.stop, step):
            stop = min(start + step, segment.stop)
            pending.setdefault(segment.file, []).append((start, stop))
            size += segment.bytes * (stop - start) // max(1, segment.rows)
            if size >= _UNIT_BYTES:
                yield Spans.of(pending)
                pending, size = {}, 0
    if pending:
        yield Spans.of(pending)


def _ahead(shared: Sequence[Work], copied: Sequence[Work]) -> Iterator[pa.RecordBatch]:
    """Copies are made by threads, a few ahead of the consumer; between them it is given what need not be copied."""
    if len(copied) <= 1:
        for work in (*shared, *copied):
            yield from work()
        return
    pending: deque[Future[Batches]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-scan") as pool:
        try:
            for work, others in zip(copied, _spread(shared, len(copied)), strict=True):
                pending.append(pool.submit(work))
                for other in others:
                    yield from other()
                if len(pending) > _THREADS:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _spread(work: Sequence[Work], parts: int) -> Iterator[Sequence[Work]]:
    """`work` in `parts` about equal parts."""
    for part in range(parts):
        yield work[len(work) * part // parts : len(work) * (part + 1) // parts]
