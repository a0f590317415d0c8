"""Probes: from a search key, through the directories, straight to the rows (the probe lines of `bench core`).

A directory may name rows that do not match, never leave out one that does; such rows are compared by key when read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.errors import SearchKeyError
from windrow.indexes.arrow_arrays import compute as pc
from windrow.indexes.arrow_arrays import from_values, to_numpy
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import Bools, Int64s, RowModel, encode_key
from windrow.indexes.segment_reader import SegmentFileReader, Spans, read_live_spans, read_spans
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.native import directory as native_directory
from windrow.native import key_encoding as native_keys
from windrow.native import rows as native_rows

DirectoryCallback = Callable[[list[Any]], Any]
"""Uses the directories of some segments, which are valid only while it runs."""
DirectoryLoader = Callable[[Manifest, DirectoryCallback], Any]
"""Loads the directories of segments, and gives what the callback gives."""


@dataclass(frozen=True)
class KeyRange:
    """Encoded keys from `low` to `high`; `high` is None for no upper bound, and excluded if `open_ended`."""

    low: bytes
    high: bytes | None
    open_ended: bool = False

    @property
    def is_point(self) -> bool:
        """Whether it is one key."""
        return self.low == self.high


def encode_key_ranges(
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
    kinds = [key is not None, keys is not None, between is not None]
    if sum(kinds) != 1:
        raise SearchKeyError(
            f"a probe of stream {stream!r} takes one of key, keys or between (use keys=[None] for null), "
            f"not {sum(kinds)} of them"
        )
    if keys is not None and isinstance(keys, (str, bytes, int, float)):
        raise SearchKeyError(f"keys={keys!r} must be a list of keys; for one, give [{keys!r}]")
    if between is not None:
        if not isinstance(between, (tuple, list)) or len(between) != 2:
            raise SearchKeyError(f"between takes a pair (low, high), not {between!r}")
        low = encode_key(_parts(between[0], names), types, names)
        upper = _parts(between[1], names)
        high = encode_key(upper, types, names)
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
    low = encode_key(parts, types, names)
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


@dataclass(frozen=True)
class LocatedRows:
    """Row ranges as directories give them, in arrays: positions of segments, first rows, one past the last rows."""

    segments: Manifest
    segment: Int64s
    start: Int64s
    stop: Int64s
    exact: Bools

    @cached_property
    def rows(self) -> int:
        """Rows of all ranges together."""
        return int((self.stop - self.start).sum())

    def touches_all(self) -> bool:
        """Whether every segment has a range."""
        return len(self.segment) >= len(self.segments) == len(set(self.segment.tolist()))

    def segment_ids(self) -> set[int]:
        """The numbers of the segments that have a range."""
        return {self.segments[position].id for position in set(self.segment.tolist())}

    def spans(self) -> Spans:
        """The same as ranges of files."""
        first, part = native_rows.number_distinct(self.segments.arrays.file[self.segment])
        files = tuple([self.segments[self.segment[position]].file for position in first])
        return Spans(files, part, self.start, self.stop)

    def ranges(self) -> list[RowRange]:
        """The ranges one by one."""
        return [
            RowRange(self.segments[position], start, stop, exact)
            for position, start, stop, exact in zip(
                self.segment.tolist(), self.start.tolist(), self.stop.tolist(), self.exact.tolist(), strict=True
            )
        ]

    def by_segment(self) -> dict[int, tuple[Int64s, Int64s]]:
        """First rows and one past the last rows, by the segment's number."""
        ranges = {}
        for position in np.unique(self.segment).tolist():
            mask = self.segment == position
            ranges[self.segments[position].id] = self.start[mask], self.stop[mask]
        return ranges


@dataclass(frozen=True)
class SortOrders:
    """How the layouts of a stream are sorted: those that are not named here, by exactly its search key."""

    longer: frozenset[int] = frozenset()
    """By the search key and then by more columns: a key is a range in their directories."""
    other: frozenset[int] = frozenset()
    """By other columns: their directories say nothing, so every row is read."""


SORTED_BY_KEY = SortOrders()


def find_sort_orders(key: tuple[str, ...], layouts: Iterable[tuple[int, tuple[str, ...]]]) -> SortOrders:
    """Compare the sort columns of layouts (by their number) with a search key."""
    unlike = {number: columns for number, columns in layouts if columns != key}
    if not unlike:
        return SORTED_BY_KEY
    longer = frozenset(number for number, columns in unlike.items() if key and columns[: len(key)] == key)
    return SortOrders(longer, frozenset(unlike) - longer)


def locate_rows(
    segments: Sequence[Segment],
    ranges: Sequence[KeyRange],
    directories: DirectoryLoader,
    sorted_by: SortOrders = SORTED_BY_KEY,
) -> LocatedRows:
    """Where rows with a key in `ranges` may be: by directory, or all rows where the directory is of another key."""
    if not segments or not ranges:
        empty = np.zeros(0, np.int64)
        return LocatedRows(Manifest.of(segments), empty, empty, empty, np.zeros(0, bool))
    if sorted_by is not SORTED_BY_KEY:
        return _locate_in_layouts(segments, ranges, directories, sorted_by)
    lows, highs = [r.low for r in ranges], [r.high for r in ranges]
    manifest = Manifest.of(segments)
    candidates = directories(manifest, lambda blobs: native_directory.lookup(blobs, lows, highs))
    first = manifest.arrays.start[candidates.blob]
    exact = candidates.exact & (not any(r.open_ended for r in ranges))
    return LocatedRows(manifest, candidates.blob, first + candidates.start, first + candidates.stop, exact)


def _locate_in_layouts(
    segments: Sequence[Segment], ranges: Sequence[KeyRange], directories: DirectoryLoader, sorted_by: SortOrders
) -> LocatedRows:
    """`locate_rows` among segments that are not all sorted by the same columns."""
    longer = [s for s in segments if s.layout in sorted_by.longer]
    other = Manifest(s for s in segments if s.layout in sorted_by.other)
    same = [s for s in segments if s.layout not in sorted_by.longer and s.layout not in sorted_by.other]
    prefixes = [
        KeyRange(r.low, None if r.high is None else native_keys.successor(r.high), open_ended=True) for r in ranges
    ]
    parts = [locate_rows(same, ranges, directories), locate_rows(longer, prefixes, directories)]
    starts, stops = (np.array([getattr(s, end) for s in other], np.int64) for end in ("start", "stop"))
    positions = np.arange(len(other), dtype=np.int64)
    parts.append(LocatedRows(other, positions, starts, stops, np.zeros(len(other), bool)))
    offsets = np.cumsum([0, *(len(part.segments) for part in parts[:-1])])
    return LocatedRows(
        Manifest(segment for part in parts for segment in part.segments),
        np.concatenate([part.segment + offset for part, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.stop for part in parts]),
        np.concatenate([part.exact for part in parts]),
    )


def find_row_ranges(
    segments: Sequence[Segment],
    ranges: Sequence[KeyRange],
    directories: DirectoryLoader,
    sorted_by: SortOrders = SORTED_BY_KEY,
) -> list[RowRange]:
    """Where rows with a key in `ranges` may be, range by range."""
    return locate_rows(segments, ranges, directories, sorted_by).ranges()


def probe_segments(
    selection: Selection,
    ranges: Sequence[KeyRange],
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: SegmentFileReader,
    directories: DirectoryLoader,
    sorted_by: SortOrders = SORTED_BY_KEY,
) -> pa.Table:
    """The rows of the selected segments whose key lies in `ranges`, with the columns of `schema`."""
    located = locate_rows(selection.segments, ranges, directories, sorted_by)
    if sorted_by is SORTED_BY_KEY:  # segments come in the order of the selection: first those that are whole
        edge = bool((located.segment >= len(selection.whole)).any())
    else:
        inside = {segment.id for segment in selection.whole}
        whole = np.array([segment.id in inside for segment in located.segments], bool)
        edge = not bool(whole[located.segment].all())
    inexact = not bool(located.exact.all())
    return _read(located.spans(), selection, ranges, model, full, schema, reader, edge=edge, inexact=inexact)


def read_candidates(
    spans: Spans,
    selection: Selection,
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: SegmentFileReader,
) -> pa.Table:
    """The rows of `spans` that are in the window; some have other keys, which the caller must leave out."""
    if selection.edge:
        spans = spans.without_ended(selection.edge, selection.bounds.now)
        return read_live_spans(spans, selection.edge_bounds(), model, schema, full, reader)
    return read_spans(spans, schema, full, reader)


def read_matching(
    row_ranges: Sequence[RowRange],
    selection: Selection,
    ranges: Sequence[KeyRange],
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: SegmentFileReader,
) -> pa.Table:
    """The rows of `row_ranges` that are in the window and whose key lies in `ranges`, with the columns of `schema`."""
    whole = {segment.id for segment in selection.whole}
    edge = any(row_range.segment.id not in whole for row_range in row_ranges)
    inexact = any(not row_range.exact for row_range in row_ranges)
    spans = Spans.of(_by_file(row_ranges))
    return _read(spans, selection, ranges, model, full, schema, reader, edge=edge, inexact=inexact)


def _read(
    spans: Spans,
    selection: Selection,
    ranges: Sequence[KeyRange],
    model: RowModel,
    full: pa.Schema,
    schema: pa.Schema,
    reader: SegmentFileReader,
    *,
    edge: bool,
    inexact: bool,
) -> pa.Table:
    if edge:
        spans = spans.without_ended(selection.edge, selection.bounds.now)
    if edge and not inexact:
        return read_live_spans(spans, selection.edge_bounds(), model, schema, full, reader)
    if edge or inexact:
        # First the few bytes that decide, then only rows that count: the rest of a row may be long.
        names = selection.bounds.deciding(model) if edge else []
        names += [name for name in model.key if inexact and name not in names]
        deciding = read_spans(spans, pa.schema([full.field(name) for name in names]), full, reader)
        mask = selection.bounds.mask(deciding, model) if edge else np.ones(deciding.num_rows, bool)
        if inexact:
            mask &= match_keys(model.encoded_keys(deciding), ranges)
        spans = spans.where(mask)
    return read_spans(spans, schema, full, reader)


def _by_file(row_ranges: Sequence[RowRange]) -> dict[str, list[tuple[int, int]]]:
    files: dict[str, list[tuple[int, int]]] = {}
    for row_range in row_ranges:
        files.setdefault(row_range.segment.file, []).append((row_range.start, row_range.stop))
    return files


def match_keys(keys: pa.Array, ranges: Sequence[KeyRange]) -> Bools:
    """Which encoded keys lie in one of the ranges."""
    encoded = keys.cast(pa.large_binary()) if not pa.types.is_large_binary(keys.type) else keys
    points = [r.low for r in ranges if r.is_point]
    mask = pc.is_in(encoded, value_set=from_values(points, encoded.type))
    for key_range in ranges:
        if key_range.is_point:
            continue
        inside = pc.greater_equal(encoded, from_values([key_range.low], encoded.type)[0])
        if key_range.high is not None:
            compare = pc.less if key_range.open_ended else pc.less_equal
            inside = pc.and_(inside, compare(encoded, from_values([key_range.high], encoded.type)[0]))
        mask = pc.or_(mask, inside)
    matches: Bools = to_numpy(mask)
    return matches
