"""Probes: from a search key, through the directories, straight to the rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import DamageError, SearchKeyError
from windrow.indexes.model import RowModel, key_bytes
from windrow.indexes.parquet import FileReader, conform
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.native import directory as native_directory
from windrow.native import keys as native_keys
from windrow.native import pages

UseDirectories = Callable[[list[Any]], Any]
Directories = Callable[[Sequence[Segment], UseDirectories], Any]


@dataclass(frozen=True)
class KeyRange:
    """Encoded keys from `low` to `high`; `high` is None for no upper bound, and itself left out if `open_ended`."""

    low: bytes
    high: bytes | None
    open_ended: bool = False

    @property
    def is_point(self) -> bool:
        """Whether it is one key."""
        return self.low == self.high


def key_ranges(
    stream: str,
    names: Sequence[str],
    types: Sequence[pa.DataType],
    key: Any,
    keys: Sequence[Any] | None,
    between: tuple[Any, Any] | None,
) -> list[KeyRange]:
    """The encoded ranges of a probe, from what the user gave."""
    if not names:
        raise SearchKeyError(f"stream {stream!r} has no search key; use a scan, or create the stream with key=…")
    given = [key is not None, keys is not None, between is not None]
    if sum(given) != 1:
        raise SearchKeyError(
            f"a probe of stream {stream!r} takes one of key, keys or between (use keys=[None] for null), "
            f"not {sum(given)} of them"
        )
    if between is not None:
        if len(between) != 2:
            raise SearchKeyError(f"between takes a pair (low, high), not {between!r}")
        low = key_bytes(_parts(between[0], names), types, names)
        upper = _parts(between[1], names)
        high = key_bytes(upper, types, names)
        if len(upper) == len(names):
            return [KeyRange(low, high)]
        return [KeyRange(low, native_keys.successor(high), open_ended=True)]
    values = [key] if keys is None else list(keys)
    return sorted({_point(_parts(value, names), types, names) for value in values}, key=lambda r: r.low)


def _parts(value: Any, names: Sequence[str]) -> tuple[Any, ...]:
    if len(names) == 1:
        return (value[0],) if isinstance(value, (tuple, list)) and len(value) == 1 else (value,)
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _point(parts: tuple[Any, ...], types: Sequence[pa.DataType], names: Sequence[str]) -> KeyRange:
    low = key_bytes(parts, types, names)
    if len(parts) == len(names):
        return KeyRange(low, low)
    return KeyRange(low, native_keys.successor(low), open_ended=True)


@dataclass(frozen=True)
class RowRange:
    """Rows [start, stop) of a segment's file that may match; `exact` if all of them have a matching key."""

    segment: Segment
    start: int
    stop: int
    exact: bool


def find_rows(segments: Sequence[Segment], ranges: Sequence[KeyRange], directories: Directories) -> list[RowRange]:
    """Where rows with a key in `ranges` are, by the segments' directories."""
    lows, highs = [r.low for r in ranges], [r.high for r in ranges]
    if not segments or not ranges:
        return []
    found = directories(segments, lambda blobs: native_directory.lookup(blobs, lows, highs))
    exact_ranges = not any(r.open_ended for r in ranges)
    return [
        RowRange(segments[at], segments[at].start + start, segments[at].start + stop, exact and exact_ranges)
        for at, start, stop, exact in zip(
            found.blob.tolist(), found.start.tolist(), found.stop.tolist(), found.exact.tolist(), strict=True
        )
    ]


def probe_segments(
    selection: Selection,
    ranges: Sequence[KeyRange],
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: FileReader,
    directories: Directories,
) -> pa.Table:
    """The rows of the selected segments whose key lies in `ranges`, with the columns of `schema`."""
    found = find_rows(selection.segments, ranges, directories)
    return read_found(found, selection, ranges, model, full, schema, reader)


def read_found(
    found: Sequence[RowRange],
    selection: Selection,
    ranges: Sequence[KeyRange],
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: FileReader,
) -> pa.Table:
    """The rows of `found` that are in the window and whose key lies in `ranges`, with the columns of `schema`."""
    whole = {segment.id for segment in selection.whole}
    groups: dict[tuple[bool, bool], list[RowRange]] = {}
    for part in found:
        groups.setdefault((part.segment.id in whole, part.exact), []).append(part)
    tables = []
    for (is_whole, exact), rows in groups.items():
        extra = [] if is_whole else [name for name in (model.time, model.expires) if name]
        extra += [] if exact else list(model.key)
        wide = pa.schema([*schema, *(full.field(name) for name in dict.fromkeys(extra) if name not in schema.names)])
        table = read_ranges(rows, wide, full, reader)
        if not exact:
            table = table.filter(_in_ranges(model.encoded_keys(table), ranges))
        if not is_whole:
            table = selection.bounds.filter(table, model)
        tables.append(table.select(schema.names))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_ranges(rows: Sequence[RowRange], schema: pa.Schema, full: pa.Schema, reader: FileReader) -> pa.Table:
    """The rows of several ranges, as one table of the columns of `schema`: by page where we can, else by row group."""
    by_file: dict[str, list[RowRange]] = {}
    for part in rows:
        by_file.setdefault(part.segment.file, []).append(part)
    parts, by_group = [], []
    for file, own in by_file.items():
        memory, layout = reader.mapped(file, full)
        if layout.declined and any(name in layout.declined for name in schema.names):
            by_group += own
        else:
            parts.append((memory, layout, [part.start for part in own], [part.stop for part in own]))
    tables = [_by_page(parts, schema, full, by_file)] if parts else []
    tables += [
        conform(table, schema)
        for part in by_group
        for table in reader.batches(part.segment.file, part.start, part.stop, schema.names)
    ]
    return pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()


def _by_page(parts: list[Any], schema: pa.Schema, full: pa.Schema, files: Iterable[str]) -> pa.Table:
    try:
        return pages.read_ranges(parts, schema.names, full)
    except pages.Damaged as error:
        names = ", ".join(files)
        raise DamageError(f"one of the segment files {names} is damaged ({error}); run 'windrow check'") from None


def _in_ranges(keys: pa.Array, ranges: Sequence[KeyRange]) -> pa.Array:
    encoded = keys.cast(pa.large_binary()) if not pa.types.is_large_binary(keys.type) else keys
    points = [r.low for r in ranges if r.is_point]
    mask = (
        pc.is_in(encoded, value_set=pa.array(points, pa.large_binary()))
        if points
        else pa.array(np.zeros(len(keys), bool))
    )
    for item in ranges:
        if item.is_point:
            continue
        inside = pc.greater_equal(encoded, pa.scalar(item.low, pa.large_binary()))
        if item.high is not None:
            compare = pc.less if item.open_ended else pc.less_equal
            inside = pc.and_(inside, compare(encoded, pa.scalar(item.high, pa.large_binary())))
        mask = pc.or_(mask, inside)
    return mask
