"""Decoded columns kept in memory: segments never change, so a column that was read once need not be decoded again.

The cache is bounded, and only a cache: what it holds can be dropped at any moment and read again from the files.
"""

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.indexes.model import Int64s
from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import own_bytes, read_group, read_ranges, row_groups
from windrow.indexes.segments import Segment

Key = tuple[str, int, int, str, str]
"""A file, the first row and one past the last, a column, and the form in which it is held."""
PLAIN, DICTIONARY = "plain", "dictionary"
Wanted = list[tuple[pa.Field, str]]
"""Columns, each with the form in which it is wanted."""
Picks = Mapping[int, tuple[Int64s, Int64s]]
"""First rows and one past the last rows of ranges in a file, by segment."""
_THREADS = min(4, os.cpu_count() or 1)
_BATCH_ROWS = 1 << 19
_SAMPLES, _SAMPLE = 8, 256
_JUDGED = 4096
_ALONE_BYTES = 4 << 20
"""Segments of up to so many bytes are decoded where they are wanted: a thread would cost more than it saves."""
_SOON_BYTES = 64 << 20
"""Where no more than this is to be decoded, a reader had better wait for all of it than take it one by one."""
_LENT = 64
_MAPPED = 4
"""Times the budget: bytes of mapped files that a window in the cache may have, beside the cache's own memory."""


def default_budget() -> int:
    """An eighth of the machine's memory, at most a gigabyte."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(1 << 30, memory // 8))


class Sized(Protocol):
    """What can be held: it says how large it is."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""


class ColumnCache:
    """Columns of segments, the least recently used of which go first.

    Args:
        reader: Of the files.
        budget: Bytes that may be held.
    """

    def __init__(self, reader: FileReader, budget: int | None = None) -> None:
        self._reader = reader
        self.budget = default_budget() if budget is None else budget
        self._held: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        """With the bytes of each that are not a mapped file's."""
        self._open: dict[tuple[str, int], int] = {}
        self._repeating: dict[tuple[str, int], frozenset[str]] = {}
        self._lent: dict[str, tuple[frozenset[str], int]] = {}
        """By folder: what was found in a large segment, and for how many more it is taken."""
        self._bytes = 0
        self.lent = 0
        """Bytes of the budget that somebody else holds the same columns with, in another form."""
        self._lock = threading.Lock()

    def batches(
        self,
        segments: Sequence[Segment],
        schema: pa.Schema,
        full: pa.Schema,
        picks: Picks | None = None,
        noted_as: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of segments with the columns of `schema`, segment by segment, decoded ahead of the consumer.

        Args:
            segments: Which.
            schema: The wanted columns; text that is stored plain may be wanted as a dictionary.
            full: All columns of the files.
            picks: Row ranges by segment, if not all rows are wanted.
            noted_as: A name for these picks, if they will be wanted again: the rows that they give are noted then.
        """
        wanted = _wanted(schema)
        if picks is not None:
            segments = [segment for segment in segments if len(picks[segment.id][0])]
        missing = self._missing(segments, wanted)
        if len(missing) <= 1 or self._effort(missing, full) <= _ALONE_BYTES:
            for segment in segments:
                yield from self._rows(segment, schema, wanted, full, picks, noted_as)
            return
        absent = {segment.id for segment in missing}
        pending: deque[Callable[[], list[pa.RecordBatch]]] = deque()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-columns") as pool:
            try:
                for segment in segments:
                    asked = segment, schema, wanted, full, picks, noted_as
                    is_absent = segment.id in absent
                    pending.append(pool.submit(self._rows, *asked).result if is_absent else partial(self._rows, *asked))
                    if len(pending) > _THREADS:
                        yield from pending.popleft()()
                while pending:
                    yield from pending.popleft()()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def column(self, segments: Sequence[Segment], field: pa.Field, full: pa.Schema) -> list[pa.Array]:
        """One column of segments, whole, an array for each; arguments as of `batches`."""
        form, found, absent = _form(field), list[Any](), list[int]()
        with self._lock:
            for at, segment in enumerate(segments):
                key = _key(segment, field.name, form)
                held = self._held.get(key)
                if held is None:
                    absent.append(at)
                else:
                    self._held.move_to_end(key)
                found.append(held and held[0])
        if absent:
            decode = partial(self._decode, fields=[field], full=full)
            missing = [segments[at] for at in absent]
            if len(missing) > 1 and sum(segment.bytes for segment in missing) > _ALONE_BYTES:
                with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-columns") as pool:
                    decoded = list(pool.map(decode, missing))
            else:
                decoded = [decode(segment) for segment in missing]
            for at, (column,) in zip(absent, decoded, strict=True):
                found[at] = column
        return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in found]

    def _missing(self, segments: Sequence[Segment], wanted: Wanted) -> list[Segment]:
        """The segments of which some column is not held."""
        columns = [(field.name, form) for field, form in wanted]
        with self._lock:
            held = self._held
            return [
                segment
                for segment in segments
                for place in [(segment.file, segment.start, segment.start + segment.rows)]
                if not all((*place, *column) in held for column in columns)
            ]

    def holds(self, segments: Sequence[Segment], schema: pa.Schema) -> bool:
        """Whether nothing of this needs to be decoded."""
        return not self._missing(segments, _wanted(schema))

    def nearly_holds(self, segments: Sequence[Segment], schema: pa.Schema, full: pa.Schema) -> bool:
        """Whether so little of this needs to be decoded that it had better be waited for."""
        return self._effort(self._missing(segments, _wanted(schema)), full) <= _SOON_BYTES

    def _effort(self, segments: Sequence[Segment], full: pa.Schema) -> int:
        """How many bytes to decode segments is worth; texts that lie open are at most looked through for damage."""
        return sum(segment.bytes - self._open_bytes(segment, full) * 7 // 8 for segment in segments)

    def _rows(
        self,
        segment: Segment,
        schema: pa.Schema,
        wanted: Wanted,
        full: pa.Schema,
        picks: Picks | None,
        noted_as: str | None,
    ) -> list[pa.RecordBatch]:
        """A segment in batches that several threads can share."""
        # Columns come in the order in which DuckDB asks for them, and text in one of two forms.
        named = "" if noted_as is None else str([(field.name, form) for field, form in wanted])
        if noted_as is not None and (noted := self.noted(segment, named, noted_as)) is not None:
            return list(noted.to_batches(max_chunksize=_BATCH_ROWS))
        place = segment.file, segment.start, segment.start + segment.rows
        columns: list[Any] = []
        missing = []
        with self._lock:
            for field, form in wanted:
                key = (*place, field.name, form)
                found = self._held.get(key)
                if found is None:
                    missing.append(field)
                else:
                    self._held.move_to_end(key)
                columns.append(found and found[0])
        if missing:
            decoded = iter(self._decode(segment, missing, full))
            columns = [next(decoded) if column is None else column for column in columns]
        if picks is None and 0 < segment.rows <= _BATCH_ROWS and all(column.num_chunks == 1 for column in columns):
            # Windows have many small segments: a table for each would cost more than what is done with its rows.
            return [pa.RecordBatch.from_arrays([column.chunk(0) for column in columns], schema=schema)]
        rows = pa.table(columns, schema=schema)
        if picks is not None:
            rows = rows.take(_indices(*picks[segment.id], segment.start))
            if noted_as is not None:
                self.note(segment, named, noted_as, rows)
        return [batch for batch in rows.to_batches(max_chunksize=_BATCH_ROWS) if batch.num_rows]

    def held_rows(self, places: Iterable[tuple[Segment, int, int]], schema: pa.Schema) -> pa.RecordBatch | None:
        """A few ranges of rows, each of a segment, in one batch; None if something of that would have to be decoded."""
        wanted = _wanted(schema)
        parts: list[list[pa.Array]] = [[] for _ in wanted]
        with self._lock:
            for segment, start, stop in places:
                for own, (field, form) in zip(parts, wanted, strict=True):
                    key = _key(segment, field.name, form)
                    found = self._held.get(key)
                    if found is None:
                        return None
                    self._held.move_to_end(key)
                    own.extend(found[0].slice(start - segment.start, stop - start).chunks)
        arrays = [
            pa.concat_arrays(own) if own else pa.nulls(0, field.type) for own, field in zip(parts, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def has_room_for(self, segments: Sequence[Segment], full: pa.Schema) -> bool:
        """Whether all columns of segments can be kept; texts that lie open in their files take hardly any room."""
        size = sum(segment.bytes for segment in segments)
        if size <= self.budget:
            return True
        if size > (1 + _MAPPED) * self.budget:
            return False
        mapped = sum(self._open_bytes(segment, full) for segment in segments)
        return size - mapped <= self.budget and mapped <= _MAPPED * self.budget

    def _open_bytes(self, segment: Segment, full: pa.Schema) -> int:
        place = segment.file, segment.start
        known = self._open.get(place)
        if known is None:
            known = self._reader.mapped(segment.file, full)[1].open_bytes(full.names, segment.start, segment.stop)
            with self._lock:
                if len(self._open) > _JUDGED:
                    self._open.clear()
                self._open[place] = known
        return known

    def _decode(self, segment: Segment, fields: list[pa.Field], full: pa.Schema) -> list[pa.ChunkedArray]:
        memory, layout = self._reader.mapped(segment.file, full)
        lie_open = [
            field.name
            for field in fields
            if _form(field) == PLAIN and layout.open_bytes([field.name], segment.start, segment.stop)
        ]
        read = self._by_group(segment, lie_open, full) if lie_open else {}
        stored = pa.schema([full.field(field.name) for field in fields if field.name not in read])
        if stored.names:
            rows = read_ranges({segment.file: [(segment.start, segment.stop)]}, stored, full, self._reader)
            read |= zip(stored.names, rows.columns, strict=True)
        columns = [
            column if column.type.equals(field.type) else column.dictionary_encode().cast(field.type)
            for field in fields
            for column in [read[field.name]]
        ]
        with self._lock:
            for field, column in zip(fields, columns, strict=True):
                self._hold(_key(segment, field.name, _form(field)), column, own_bytes(column.chunks, memory))
        return columns

    def _by_group(self, segment: Segment, names: Sequence[str], full: pa.Schema) -> dict[str, pa.ChunkedArray]:
        """Columns of text, a chunk for each row group, so that none is copied; empty if our own reader cannot."""
        schema, found = pa.schema([full.field(name) for name in names]), []
        for start, stop in row_groups(segment, full, self._reader):
            rows = read_group(segment.file, start, stop, schema, full, self._reader)
            if rows is None:
                return {}
            found.append(rows)
        return dict(zip(names, pa.Table.from_batches(found, schema).columns, strict=True))

    def _hold(self, key: Key, value: Any, size: int) -> None:
        """Keep something, and let go of what was not used for longest until all fits again."""
        _, before = self._held.pop(key, (None, 0))
        self._held[key] = value, size
        self._bytes += size - before
        self._shrink()

    def _shrink(self) -> None:
        while self._bytes + self.lent > self.budget and self._held:
            _, (_, size) = self._held.popitem(last=False)
            self._bytes -= size

    def noted(self, segment: Segment, column: str, form: str) -> Any:
        """What was noted of a column of a segment; None if nothing was, or if it had to go."""
        key = _key(segment, column, form)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found and found[0]

    def note(self, segment: Segment, column: str, form: str, value: Sized) -> None:
        """Keep what somebody found out of a column of a segment, as long as there is room."""
        with self._lock:
            self._hold(_key(segment, column, form), value, value.nbytes)

    def lend(self, count: int) -> None:
        """Give bytes of the budget away, or take them back."""
        with self._lock:
            self.lent += count
            self._shrink()

    def repeating(self, segments: Sequence[Segment], full: pa.Schema) -> frozenset[str]:
        """Names of the text columns whose values repeat so often that a dictionary of them is small.

        What is known of one of the segments is taken for all: columns that are held in one form stay of use.
        """
        judged = (self._repeating.get((segment.file, segment.start)) for segment in segments)
        known = next((names for names in judged if names is not None), None)
        return self._judge(max(segments, key=lambda segment: segment.rows), full) if known is None else known

    def _judge(self, segment: Segment, full: pa.Schema) -> frozenset[str]:
        """The same by a sample of one segment; what a large one shows is taken for the stream's next ones too."""
        place, folder = (segment.file, segment.start), segment.file.rpartition("/")[0]
        names = [field for field in full if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
        with self._lock:
            known = self._repeating.get(place)
            lent, left = self._lent.get(folder, (frozenset(), 0))
            if known is None and left:
                self._lent[folder] = lent, left - 1
                # A stream that was dropped may have had other columns.
                self._repeating[place] = known = lent & {field.name for field in names}
        if known is None:
            starts = np.linspace(segment.start, max(segment.start, segment.stop - _SAMPLE), _SAMPLES).astype(int)
            ranges = [(int(at), min(int(at) + _SAMPLE, segment.stop)) for at in dict.fromkeys(starts.tolist())]
            sample = read_ranges({segment.file: ranges}, pa.schema(names), full, self._reader) if names else None
            known = frozenset(
                field.name
                for field in names
                if sample is not None and pc.count_distinct(sample.column(field.name)).as_py() * 8 <= sample.num_rows
            )
            with self._lock:
                if len(self._repeating) > _JUDGED:
                    self._repeating.clear()
                    self._lent.clear()
                self._repeating[place] = known
                if segment.rows >= _SAMPLES * _SAMPLE:
                    self._lent[folder] = known, _LENT
        return known

    def retain(self, folder: str, files: set[str]) -> None:
        """Drop the columns of files below `folder` that are not in `files`."""
        with self._lock:
            for key in [key for key in self._held if key[0].startswith(folder) and key[0] not in files]:
                self._bytes -= self._held.pop(key)[1]

    def forget(self, files: Collection[str]) -> None:
        """Drop the columns of files that are gone."""
        with self._lock:
            for key in [key for key in self._held if key[0] in files]:
                self._bytes -= self._held.pop(key)[1]

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self._bytes


def _form(field: pa.Field) -> str:
    return DICTIONARY if pa.types.is_dictionary(field.type) else PLAIN


def _wanted(schema: pa.Schema) -> Wanted:
    return [(field, _form(field)) for field in schema]


def _key(segment: Segment, column: str, form: str) -> Key:
    return segment.file, segment.start, segment.stop, column, form


def _indices(starts: Int64s, stops: Int64s, first: int) -> Int64s:
    """The rows of ranges, counted from `first`."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    steps: Int64s = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    found: Int64s = steps + np.repeat(starts - first - (ends - lengths), lengths)
    return found
