"""Join pruning: segments of a stream whose values lie outside all ranges of the column that they must be equal to.

The least and greatest values of a segment come from its directory for the first search key column, from the statistics
of its file for others. Where either side's are not known, or their types differ, nothing is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.manifest import Manifest
from windrow.indexes.segments import Segment
from windrow.native import directory as native_directory
from windrow.native import key_encoding as native_keys
from windrow.snapshot import Snapshot, StreamSnapshot

MAX_COLUMNS = 4
"""Columns of a statement whose ranges are compared. Not measured: bounds the time of planning."""
_VALUE = b"\x01"
_MAX_CACHED = 1 << 16
"""Segments and columns whose extremes are remembered. Not measured: a bound on memory."""

Extremes = tuple[bytes, bytes | None] | None
"""Encoded values from the first, up to but without the second (None: without end); None if they are not known."""


@dataclass(frozen=True)
class JoinedColumns:
    """A column of a stream that must be equal to one of another stream, or the row does not count."""

    relation: str
    column: str
    other: str
    other_column: str


def find_comparable_type(view: StreamSnapshot, column: str, other: StreamSnapshot, other_column: str) -> Any:
    """The type of two columns whose encoded values are equal where SQL says so; None if they have no such type."""
    left, right = (
        kind.value_type if pa.types.is_dictionary(kind) else kind
        for kind in (view.schema.field(column).type, other.schema.field(other_column).type)
    )
    return None if left != right or pa.types.is_nested(left) else left


def prune(
    snapshot: Snapshot,
    segments: Sequence[Segment],
    view: StreamSnapshot,
    column: str,
    others: Sequence[Segment],
    other: StreamSnapshot,
    other_column: str,
) -> set[int] | None:
    """The numbers of those segments that may hold a value of `other_column` in `others`; None: any may."""
    kind = find_comparable_type(view, column, other, other_column)
    if kind is None or not segments:
        return None
    ranges = []
    for extremes in _find_all(snapshot, other, others, other_column, kind):
        if extremes is None:
            return None
        ranges.append(extremes)
    bounds = _find_all(snapshot, view, segments, column, kind)
    return {
        segment.id
        for segment, extremes in zip(segments, bounds, strict=True)
        if extremes is None or any(_overlap(extremes, each) for each in ranges)
    }


def _overlap(one: tuple[bytes, bytes | None], other: tuple[bytes, bytes | None]) -> bool:
    return (other[1] is None or one[0] < other[1]) and (one[1] is None or other[0] < one[1])


def _find_all(
    snapshot: Snapshot, view: StreamSnapshot, segments: Sequence[Segment], column: str, kind: pa.DataType
) -> list[Extremes]:
    store = snapshot.store
    cache: BoundedCache[Any, tuple[Extremes]] = store.shared.attached("extremes", lambda: BoundedCache(_MAX_CACHED))
    encoded_as = str(kind)  # files are older than a type that became wider
    keys = [(segment.file, segment.start, column, encoded_as) for segment in segments]
    cached = [cache.get(key) for key in keys]
    missing = [segment for segment, entry in zip(segments, cached, strict=True) if entry is None]
    computed = {}
    if missing:
        by_key = view.entry.definition.key[:1] == (column,)
        directories = store.directories(Manifest.of(missing)) if by_key else [b""] * len(missing)
        for segment, directory in zip(missing, directories, strict=True):
            if directory and segment.layout not in view.sorted_by.other:
                extremes = _read_directory(directory, kind)
                if (
                    extremes is not None and extremes[0][:1] != _VALUE
                ):  # nulls match nothing, and statistics pass them by
                    extremes = _read_statistics(snapshot, segment, column, kind) or extremes
            else:
                extremes = _read_statistics(snapshot, segment, column, kind)
            computed[segment.file, segment.start, column, encoded_as] = (extremes,)
            cache.put((segment.file, segment.start, column, encoded_as), (extremes,))
    return [(computed[key] if entry is None else entry)[0] for key, entry in zip(keys, cached, strict=True)]


def _read_directory(directory: bytes, kind: pa.DataType) -> Extremes:
    """From the keys of a segment, which may have more columns behind the first one, and may be cut."""
    extremes = native_directory.find_extremes(directory)
    if extremes is None:
        return b"", b""  # no rows: overlaps nothing
    low, high = (_cut_first_column(key, kind) for key in extremes)
    return low, native_keys.successor(high)


def _cut_first_column(key: bytes, kind: pa.DataType) -> bytes:
    """What of an encoded key is its first column; see `native/key_encoding.pyx`."""
    if kind not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return key[: len(native_keys.encode([pa.nulls(1, kind)])[0].as_py())]
    if key[:1] != _VALUE:
        return key[:1]
    end = key.find(b"\0\0", 1)
    return key if end < 0 else key[: end + 2]


def _read_statistics(snapshot: Snapshot, segment: Segment, column: str, kind: pa.DataType) -> Extremes:
    """From the footer of a segment's file; files that were written before the column was added have only nulls."""
    opened, firsts = snapshot.store.reader.open(segment.file)
    metadata, values = opened.metadata, []
    position = opened.schema_arrow.get_field_index(column)
    if position < 0 or metadata.num_columns != len(opened.schema_arrow.names):
        return None
    try:
        for group in range(metadata.num_row_groups):
            if firsts[group] < segment.stop and firsts[group + 1] > segment.start:
                statistics = metadata.row_group(group).column(position).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                values += [statistics.min, statistics.max]
        encoded = native_keys.encode([pa.array(values, kind)]).to_pylist()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return (min(encoded), native_keys.successor(max(encoded))) if encoded else None
