"""Segment files: how row ranges of them are read, with footers and maps kept, and damage told in our words."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.errors import DamageError
from windrow.native import parquet_reader

_DAMAGE = (pa.lib.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises when a file is not what it was."""
_CACHED_FOOTERS = 4096
_CACHED_MAPS = 8192
"""Addresses and not descriptors: Linux lets a process have some 65,000."""


class FileReader:
    """Reads row ranges of segment files under one root, keeping footers (not file handles) in memory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, np.ndarray[Any, Any]]] = OrderedDict()
        self._maps: OrderedDict[str, tuple[pa.Schema, parquet_reader.FileMap, parquet_reader.Layout]] = OrderedDict()
        self._columns: dict[str, frozenset[str]] = {}
        self._packed: set[str] = set()
        self._written: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, file: str) -> Path:
        """Where a file of the catalog lies."""
        return self._root / file

    def open(self, file: str) -> tuple[pq.ParquetFile, Any]:
        """An open Parquet file and the first row of each of its row groups (with the total at the end)."""
        with self._lock:
            known = self._footers.get(file)
        try:
            source = pa.memory_map(str(self.path(file)))
            opened = pq.ParquetFile(source, metadata=known[0] if known else None, page_checksum_verification=True)
        except FileNotFoundError:
            raise _missing(file) from None
        except _DAMAGE as error:
            raise DamageError(
                f"segment file {file} cannot be read ({_first_line(error)}); run 'windrow check'"
            ) from None
        if known is None:
            footer = opened.metadata
            counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            known = (footer, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64))
            with self._lock:
                self._footers[file] = known
                while len(self._footers) > _CACHED_FOOTERS:
                    self._footers.popitem(last=False)
        return opened, known[1]

    def mapped(self, file: str, schema: pa.Schema) -> tuple[parquet_reader.FileMap, parquet_reader.Layout]:
        """A whole file as memory, and where its columns lie, for reading single rows without its row groups.

        Args:
            file: Of the catalog.
            schema: The stream's schema.
        """
        with self._lock:
            known = self._maps.get(file)
        if known is not None and known[0] is schema:
            return known[1], known[2]
        try:
            memory = _map(f"{self._root}/{file}")
            layout = parquet_reader.open_layout(memory, schema)
            layout.trusted = file in self._written
        except FileNotFoundError:
            raise _missing(file) from None
        except (parquet_reader.Damaged, parquet_reader.Declined, OSError, ValueError) as error:
            raise DamageError(f"segment file {file} is damaged ({_first_line(error)}); run 'windrow check'") from None
        with self._lock:
            self._maps[file] = (schema, memory, layout)
            if layout.packed or layout.declined:
                self._packed.add(file)
            while len(self._maps) > _CACHED_MAPS:
                self._maps.popitem(last=False)
        return memory, layout

    def mapped_all(
        self, files: Sequence[str], schema: pa.Schema
    ) -> list[tuple[parquet_reader.FileMap, parquet_reader.Layout]]:
        """`mapped` of many files."""
        with self._lock:
            known = [self._maps.get(file) for file in files]
        return [
            (each[1], each[2]) if each is not None and each[0] is schema else self.mapped(file, schema)
            for file, each in zip(files, known, strict=True)
        ]

    def unpacks(self, files: Iterable[str]) -> bool:
        """Whether some of these files that were read before have pages that are compressed, or not ours to read."""
        return not self._packed.isdisjoint(files)

    def columns(self, file: str) -> frozenset[str]:
        """The names of a file's columns: one that was written before a column was added lacks it."""
        known = self._columns.get(file)
        if known is None:
            known = frozenset(self.open(file)[0].schema_arrow.names)
            with self._lock:
                if len(self._columns) > _CACHED_FOOTERS:
                    self._columns.clear()
                self._columns[file] = known
        return known

    def trust(self, files: Iterable[str]) -> None:
        """Files that this process has just written: their pages need not be compared with their checksums."""
        with self._lock:
            self._written.update(dict.fromkeys(files))
            while len(self._written) > _CACHED_MAPS:
                self._written.popitem(last=False)

    def forget(self, files: Iterable[str]) -> None:
        """Drop what is known of files that are gone."""
        with self._lock:
            for file in files:
                self._footers.pop(file, None)
                self._maps.pop(file, None)
                self._packed.discard(file)
                self._columns.pop(file, None)

    def retain(self, folder: str, files: set[str]) -> None:
        """Let go of maps of files below `folder` that are not in `files`: a map keeps a deleted file's space."""
        with self._lock:
            for file in [file for file in self._maps if file.startswith(folder) and file not in files]:
                del self._maps[file]
                self._packed.discard(file)

    def batches(
        self, file: str, start: int, stop: int, columns: Sequence[str], chunk_bytes: int = 8 << 20
    ) -> Iterator[pa.Table]:
        """Rows [start, stop) of a file as tables of about `chunk_bytes`, in file order."""
        opened, firsts = self.open(file)
        first = int(np.searchsorted(firsts, start, side="right")) - 1
        last = int(np.searchsorted(firsts, stop, side="left"))
        group_bytes = max(1, opened.metadata.row_group(first).total_byte_size) if last > first else 1
        step = max(1, chunk_bytes // group_bytes)
        present = set(opened.schema_arrow.names)
        wanted = [name for name in columns if name in present]
        for group in range(first, last, step):
            groups = list(range(group, min(group + step, last)))
            table = read_groups(opened, groups, wanted, file)
            low, high = int(firsts[groups[0]]), int(firsts[groups[-1] + 1])
            if low < start or high > stop:
                table = table.slice(max(0, start - low), min(high, stop) - max(low, start))
            yield table


def read_groups(opened: pq.ParquetFile, groups: list[int], columns: list[str], file: str) -> pa.Table:
    """Row groups of an open file, with damage told in our words."""
    try:
        return opened.read_row_groups(groups, columns=columns, use_threads=False)
    except _DAMAGE as error:
        raise DamageError(f"segment file {file} is damaged ({_first_line(error)}); run 'windrow check'") from None


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema`: older files lack added columns, Spark's files lack Arrow's own types."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            column = table.column(at)
            columns.append(column if column.type.equals(field.type) else _cast(column, field.type))
    return pa.table(columns, schema=schema) if columns else table.select([])


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([_encode(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _encode(chunk: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
    return plain.cast(kind.value_type).dictionary_encode().cast(kind)


def _map(path: str) -> parquet_reader.FileMap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parquet_reader.FileMap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _missing(file: str) -> DamageError:
    return DamageError(f"segment file {file} is missing; run 'windrow check' to see what is affected")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
