"""The column cache: segments never change, so a column that was read once need not be decoded again.

The cache is bounded; what it holds can be dropped at any time and read again from the files.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import compute as pc
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.row_model import Int64s
from windrow.indexes.segment_reader import (
    SegmentFileReader,
    count_unmapped_bytes,
    read_ranges,
    read_row_group,
    split_at_row_groups,
)
from windrow.indexes.segments import Segment

ColumnKey = tuple[str, int, int, str, str]
"""A file, the first row and one past the last, a column, and the form in which it is cached."""
PLAIN, DICTIONARY = "plain", "dictionary"
WantedColumns = list[tuple[pa.Field, str]]
"""Columns, each with the form in which it is wanted."""
SegmentRanges = Mapping[int, tuple[Int64s, Int64s]]
"""First rows and one past the last rows of ranges in a file, by segment."""

# Thresholds of decoding; set by `bench sql` when SQL read through this cache. Views do now: not measured again.
_THREADS = min(4, os.cpu_count() or 1)
_BATCH_ROWS = 1 << 19
"""Rows of a batch: DuckDB's threads share a window batch by batch."""
_SERIAL_DECODE_BYTES = 4 << 20
"""Segments of up to so many bytes are decoded by the consumer alone: a thread would cost more than it saves."""

# Thresholds of which text columns are cached as dictionaries; set by the group-by lines of `bench sql`, as above.
_SAMPLES, _SAMPLE_ROWS = 8, 256
"""Parts of a segment that are looked at, and the rows of each."""
_REPEATS = 8
"""Values must repeat so often in the sample."""
_REUSED_FOR = 64
"""Segments of a stream for which the finding of a large segment is taken."""
_KNOWN_SEGMENTS = 4096
"""Segments of which it is remembered what was found."""


def default_budget() -> int:
    """An eighth of the machine's memory, at most a gigabyte."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(1 << 30, memory // 8))


class ColumnCache:
    """Columns of segments, the least recently used of which are dropped first.

    Args:
        reader: Of the files.
        budget: Bytes that may be cached.
    """

    def __init__(self, reader: SegmentFileReader, budget: int | None = None) -> None:
        self._reader = reader
        self.budget = default_budget() if budget is None else budget
        self._cached: BoundedCache[ColumnKey, tuple[Any, int]] = BoundedCache(self.budget, lambda entry: entry[1])
        """With the bytes of each that are not a mapped file's."""
        self._mapped_text: dict[tuple[str, int], int] = {}
        self._repeating: dict[tuple[str, int], frozenset[str]] = {}
        self._reusable: dict[str, tuple[frozenset[str], int]] = {}
        """By folder: repeating columns of a large segment, and for how many more segments they are taken."""
        self.reserved = 0
        """Bytes of the budget that the same columns take elsewhere, in another form."""
        self._lock = threading.Lock()

    def read_batches(
        self,
        segments: Sequence[Segment],
        schema: pa.Schema,
        full: pa.Schema,
        picks: SegmentRanges | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of segments with the columns of `schema`, segment by segment, decoded ahead of the consumer.

        Args:
            segments: Which.
            schema: The wanted columns; text that is stored plain may be wanted as a dictionary.
            full: All columns of the files.
            picks: Row ranges by segment, if not all rows are wanted.
        """
        wanted = _wanted(schema)
        if picks is not None:
            segments = [segment for segment in segments if len(picks[segment.id][0])]
        missing = self._missing(segments, wanted)
        if len(missing) <= 1 or self._effort(missing, full) <= _SERIAL_DECODE_BYTES:
            for segment in segments:
                yield from self._rows(segment, schema, wanted, full, picks)
            return
        absent = {segment.id for segment in missing}
        pending: deque[Callable[[], list[pa.RecordBatch]]] = deque()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-columns") as pool:
            try:
                for segment in segments:
                    request = segment, schema, wanted, full, picks
                    is_absent = segment.id in absent
                    read = pool.submit(self._rows, *request).result if is_absent else partial(self._rows, *request)
                    pending.append(read)
                    if len(pending) > _THREADS:
                        yield from pending.popleft()()
                while pending:
                    yield from pending.popleft()()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def read_column(self, segments: Sequence[Segment], field: pa.Field, full: pa.Schema) -> list[pa.Array]:
        """One column of segments, whole, an array for each; arguments as of `read_batches`."""
        name, form = field.name, _form(field)
        entries = self._cached.get_all([_key(segment, name, form) for segment in segments])
        columns: list[Any] = [None if entry is None else entry[0] for entry in entries]
        absent = [position for position, column in enumerate(columns) if column is None]
        if absent:
            decode = partial(self._decode, fields=[field], full=full)
            missing = [segments[position] for position in absent]
            if len(missing) > 1 and sum(segment.bytes for segment in missing) > _SERIAL_DECODE_BYTES:
                with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-columns") as pool:
                    decoded = list(pool.map(decode, missing))
            else:
                decoded = [decode(segment) for segment in missing]
            for position, (column,) in zip(absent, decoded, strict=True):
                columns[position] = column
        return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]

    def _get(self, key: ColumnKey) -> Any:
        """What is cached under a key, or None."""
        entry = self._cached.get(key)
        return None if entry is None else entry[0]

    def _missing(self, segments: Sequence[Segment], wanted: WantedColumns) -> list[Segment]:
        """The segments of which some column is not cached."""
        columns = [(field.name, form) for field, form in wanted]
        return [
            segment
            for segment in segments
            for place in [(segment.file, segment.start, segment.start + segment.rows)]
            if not all((*place, *column) in self._cached for column in columns)
        ]

    def _effort(self, segments: Sequence[Segment], full: pa.Schema) -> int:
        """Bytes that must be decoded; text that is used where it lies in its file is at most checked for damage."""
        return sum(segment.bytes - self._mapped_bytes(segment, full) * 7 // 8 for segment in segments)

    def _rows(
        self,
        segment: Segment,
        schema: pa.Schema,
        wanted: WantedColumns,
        full: pa.Schema,
        picks: SegmentRanges | None,
    ) -> list[pa.RecordBatch]:
        """A segment in batches that several threads can share."""
        place = segment.file, segment.start, segment.start + segment.rows
        columns: list[Any] = []
        missing = []
        for field, form in wanted:
            columns.append(self._get((*place, field.name, form)))
            if columns[-1] is None:
                missing.append(field)
        if missing:
            decoded = iter(self._decode(segment, missing, full))
            columns = [next(decoded) if column is None else column for column in columns]
        if picks is None and 0 < segment.rows <= _BATCH_ROWS and all(column.num_chunks == 1 for column in columns):
            # Windows have many small segments: a table for each would cost more than what is done with its rows.
            return [pa.RecordBatch.from_arrays([column.chunk(0) for column in columns], schema=schema)]
        rows = pa.table(columns, schema=schema)
        if picks is not None:
            rows = rows.take(list_rows(*picks[segment.id], segment.start))
        return [batch for batch in rows.to_batches(max_chunksize=_BATCH_ROWS) if batch.num_rows]

    def _mapped_bytes(self, segment: Segment, full: pa.Schema) -> int:
        """Bytes of text that can be used where they lie in the file."""
        place = segment.file, segment.start
        size = self._mapped_text.get(place)
        if size is None:
            size = self._reader.map_file(segment.file, full)[1].open_bytes(full.names, segment.start, segment.stop)
            with self._lock:
                if len(self._mapped_text) > _KNOWN_SEGMENTS:
                    self._mapped_text.clear()
                self._mapped_text[place] = size
        return size

    def _decode(self, segment: Segment, fields: list[pa.Field], full: pa.Schema) -> list[pa.ChunkedArray]:
        memory, layout = self._reader.map_file(segment.file, full)
        mapped = [
            field.name
            for field in fields
            if _form(field) == PLAIN and layout.open_bytes([field.name], segment.start, segment.stop)
        ]
        read = self._by_group(segment, mapped, full) if mapped else {}
        stored = pa.schema([full.field(field.name) for field in fields if field.name not in read])
        if stored.names:
            rows = read_ranges({segment.file: [(segment.start, segment.stop)]}, stored, full, self._reader)
            read |= zip(stored.names, rows.columns, strict=True)
        columns = [
            column if column.type.equals(field.type) else column.dictionary_encode().cast(field.type)
            for field in fields
            for column in [read[field.name]]
        ]
        for field, column in zip(fields, columns, strict=True):
            entry = column, count_unmapped_bytes(column.chunks, memory)
            self._cached.put(_key(segment, field.name, _form(field)), entry)
        return columns

    def _by_group(self, segment: Segment, names: Sequence[str], full: pa.Schema) -> dict[str, pa.ChunkedArray]:
        """Columns of text, a chunk for each row group, so that none is copied; empty if pyarrow must read them."""
        schema, batches = pa.schema([full.field(name) for name in names]), []
        for start, stop in split_at_row_groups(segment, full, self._reader):
            rows = read_row_group(segment.file, start, stop, schema, full, self._reader)
            if rows is None:
                return {}
            batches.append(rows)
        return dict(zip(names, pa.Table.from_batches(batches, schema).columns, strict=True))

    def reserve(self, count: int) -> None:
        """Take bytes of the budget for another cache, or give them back."""
        with self._lock:
            self.reserved += count
            self._cached.resize(self.budget - self.reserved)

    def find_repeating(self, segments: Sequence[Segment], full: pa.Schema) -> frozenset[str]:
        """Names of the text columns whose values repeat so often that a dictionary of them is small.

        What was found in one of the segments is taken for all, so that columns that are cached in one form stay of use.
        """
        cached_names = (self._repeating.get((segment.file, segment.start)) for segment in segments)
        repeating = next((names for names in cached_names if names is not None), None)
        if repeating is not None:
            return repeating
        return self._sample_repeating(max(segments, key=lambda segment: segment.rows), full)

    def _sample_repeating(self, segment: Segment, full: pa.Schema) -> frozenset[str]:
        """The same from a sample of one segment; that of a large one is taken for the stream's next ones too."""
        place, folder = (segment.file, segment.start), segment.file.rpartition("/")[0]
        texts = [field for field in full if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
        with self._lock:
            repeating = self._repeating.get(place)
            reusable, uses_left = self._reusable.get(folder, (frozenset(), 0))
            if repeating is None and uses_left:
                self._reusable[folder] = reusable, uses_left - 1
                # A stream that was dropped may have had other columns.
                self._repeating[place] = repeating = reusable & {field.name for field in texts}
        if repeating is None:
            starts = np.linspace(segment.start, max(segment.start, segment.stop - _SAMPLE_ROWS), _SAMPLES).astype(int)
            ranges = [(row, min(row + _SAMPLE_ROWS, segment.stop)) for row in dict.fromkeys(starts.tolist())]
            sample = read_ranges({segment.file: ranges}, pa.schema(texts), full, self._reader) if texts else None
            repeating = frozenset(
                field.name
                for field in texts
                if sample is not None
                and pc.count_distinct(sample.column(field.name)).as_py() * _REPEATS <= sample.num_rows
            )
            with self._lock:
                if len(self._repeating) > _KNOWN_SEGMENTS:
                    self._repeating.clear()
                    self._reusable.clear()
                self._repeating[place] = repeating
                if segment.rows >= _SAMPLES * _SAMPLE_ROWS:
                    self._reusable[folder] = repeating, _REUSED_FOR
        return repeating

    def retain(self, folder: str, files: set[str]) -> None:
        """Drop the columns of files below `folder` that are not in `files`."""
        for key in self._cached:
            if key[0].startswith(folder) and key[0] not in files:
                self._cached.pop(key)

    def forget(self, files: Collection[str]) -> None:
        """Drop the columns of files that are gone."""
        for key in self._cached:
            if key[0] in files:
                self._cached.pop(key)

    @property
    def bytes(self) -> int:
        """Bytes cached now."""
        return self._cached.used


def _form(field: pa.Field) -> str:
    return DICTIONARY if pa.types.is_dictionary(field.type) else PLAIN


def _wanted(schema: pa.Schema) -> WantedColumns:
    return [(field, _form(field)) for field in schema]


def _key(segment: Segment, column: str, form: str) -> ColumnKey:
    return segment.file, segment.start, segment.stop, column, form


def list_rows(starts: Int64s, stops: Int64s, first: int = 0) -> Int64s:
    """The rows of ranges, counted from `first`."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    steps: Int64s = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    indices: Int64s = steps + np.repeat(starts - first - (ends - lengths), lengths)
    return indices
