"""Probes: from a search key, through the directories, straight to the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import SearchKeyError
from windrow.indexes.model import Bools, RowModel, key_bytes
from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import Parts, narrow, read_ranges
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.native import directory as native_directory
from windrow.native import keys as native_keys

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
    parts: Parts = _by_file(found)
    edge = any(part.segment.id not in whole for part in found)
    inexact = any(not part.exact for part in found)
    if edge or inexact:
        # First the few bytes that decide, then only rows that count: the rest of a row may be long.
        names = [name for name in (model.time, model.expires) if name is not None] if edge else []
        names += [name for name in model.key if inexact and name not in names]
        looked = read_ranges(parts, pa.schema([full.field(name) for name in names]), full, reader)
        mask = selection.bounds.mask(looked, model) if edge else np.ones(looked.num_rows, bool)
        if inexact:
            mask &= _in_ranges(model.encoded_keys(looked), ranges)
        parts = narrow(parts, mask)
    return read_ranges(parts, schema, full, reader) if parts else schema.empty_table()


def _by_file(rows: Sequence[RowRange]) -> dict[str, list[tuple[int, int]]]:
    files: dict[str, list[tuple[int, int]]] = {}
    for part in rows:
        files.setdefault(part.segment.file, []).append((part.start, part.stop))
    return files


def _in_ranges(keys: pa.Array, ranges: Sequence[KeyRange]) -> Bools:
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
    found: Bools = mask.to_numpy(zero_copy_only=False)
    return found
