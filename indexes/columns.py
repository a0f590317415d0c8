"""Decoded columns kept in memory: segments never change, so a column that was read once need not be decoded again.

The cache is bounded, and only a cache: what it holds can be dropped at any moment and read again from the files.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import read_ranges
from windrow.indexes.segments import Segment

Key = tuple[str, int, int, str]
_THREADS = min(4, os.cpu_count() or 1)


def default_budget() -> int:
    """An eighth of the machine's memory, at most a gigabyte."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(1 << 30, memory // 8))


class ColumnCache:
    """Columns of segments, the least recently used of which go first.

    Args:
        reader: Of the files.
        budget: Bytes that may be held.
    """

    def __init__(self, reader: FileReader, budget: int | None = None) -> None:
        self._reader = reader
        self.budget = default_budget() if budget is None else budget
        self._held: OrderedDict[Key, pa.ChunkedArray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def table(self, segments: Sequence[Segment], schema: pa.Schema, full: pa.Schema) -> pa.Table:
        """The rows of whole segments, a chunk or more for each, with the columns of `schema`."""
        self._fetch(segments, schema, full)
        columns = []
        for field in schema:
            chunks: list[pa.Array] = []
            for segment in segments:
                chunks += self._one(segment, field, full).chunks
            columns.append(pa.chunked_array(chunks, field.type))
        return pa.table(columns, schema=schema)

    def _fetch(self, segments: Sequence[Segment], schema: pa.Schema, full: pa.Schema) -> None:
        """Decode what is missing, several segments at a time."""
        missing: list[tuple[Segment, pa.Schema]] = []
        with self._lock:
            for segment in segments:
                fields = [field for field in schema if _key(segment, field.name) not in self._held]
                if fields:
                    missing.append((segment, pa.schema(fields)))
        if len(missing) == 1:
            self._decode(*missing[0], full)
        elif missing:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="windrow-columns") as pool:
                for done in [pool.submit(self._decode, segment, fields, full) for segment, fields in missing]:
                    done.result()

    def _one(self, segment: Segment, field: pa.Field, full: pa.Schema) -> pa.ChunkedArray:
        with self._lock:
            found = self._held.get(_key(segment, field.name))
            if found is not None:
                self._held.move_to_end(_key(segment, field.name))
                return found
        return self._decode(segment, pa.schema([field]), full).column(0)  # it was pushed out meanwhile

    def _decode(self, segment: Segment, schema: pa.Schema, full: pa.Schema) -> pa.Table:
        rows = read_ranges({segment.file: [(segment.start, segment.stop)]}, schema, full, self._reader)
        with self._lock:
            for name, column in zip(schema.names, rows.columns, strict=True):
                if _key(segment, name) not in self._held:
                    self._held[_key(segment, name)] = column
                    self._bytes += column.nbytes
            while self._bytes > self.budget and self._held:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.nbytes
        return rows

    def retain(self, folder: str, files: set[str]) -> None:
        """Drop the columns of files below `folder` that are not in `files`."""
        with self._lock:
            for key in [key for key in self._held if key[0].startswith(folder) and key[0] not in files]:
                self._bytes -= self._held.pop(key).nbytes

    def forget(self, files: Collection[str]) -> None:
        """Drop the columns of files that are gone."""
        with self._lock:
            for key in [key for key in self._held if key[0] in files]:
                self._bytes -= self._held.pop(key).nbytes

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self._bytes


def _key(segment: Segment, column: str) -> Key:
    return segment.file, segment.start, segment.stop, column
