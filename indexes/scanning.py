"""Scans: all rows of the selected segments, read ahead of the consumer, filtered only where an edge needs it."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from windrow.indexes.model import RowModel
from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import read_live, read_ranges
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection

_UNIT_BYTES = 8 << 20
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class _Unit:
    """Rows [start, stop) of a file, read at one go."""

    file: str
    start: int
    stop: int
    edge: bool


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

    def read(unit: _Unit) -> list[pa.RecordBatch]:
        if unit.edge:
            rows = read_live(unit.file, unit.start, unit.stop, selection.bounds, model, schema, full, reader)
        else:
            rows = read_ranges({unit.file: [(unit.start, unit.stop)]}, schema, full, reader)
        return [batch for batch in rows.to_batches() if batch.num_rows]

    units = _units(selection.whole, edge=False) + _units(selection.edge, edge=True)
    if len(units) == 1:
        yield from read(units[0])
        return
    yield from _ahead(units, read)


def _units(segments: Iterable[Segment], *, edge: bool) -> list[_Unit]:
    """Neighbouring segments of a file as one read, large ones as several."""
    units: list[_Unit] = []
    for file, group in groupby(sorted(segments, key=lambda s: (s.file, s.start)), key=lambda s: s.file):
        for start, stop, size in _runs(list(group)):
            step = max(1, (stop - start) * _UNIT_BYTES // max(1, size))
            units += [_Unit(file, at, min(at + step, stop), edge) for at in range(start, stop, step)]
    return units


def _runs(segments: list[Segment]) -> Iterator[tuple[int, int, int]]:
    start, stop, size = segments[0].start, segments[0].stop, segments[0].bytes
    for segment in segments[1:]:
        if segment.start == stop:
            stop, size = segment.stop, size + segment.bytes
        else:
            yield start, stop, size
            start, stop, size = segment.start, segment.stop, segment.bytes
    yield start, stop, size


def _ahead(units: list[_Unit], read: Callable[[_Unit], list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    pending: deque[Future[list[pa.RecordBatch]]] = deque()
    waiting = iter(units)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-scan") as pool:
        try:
            for unit in waiting:
                pending.append(pool.submit(read, unit))
                if len(pending) > _THREADS:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
