"""The rows of some keys, out of the decoded columns of a stream's segments, with the places where they lie.

Keys are looked up in all rows at once, by a kernel where they are whole numbers; few keys by the directories. Other
columns are gathered for the rows that were found, when they are asked for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.column_cache import ColumnCache, SegmentRanges, list_rows
from windrow.indexes.end_overrides import find_ends
from windrow.indexes.row_model import NEVER, SEQ, Bools, Int64s
from windrow.indexes.segments import Segment
from windrow.native import key_encoding as native_keys
from windrow.native.hash_match import Matcher
from windrow.queries.views.part_rows import (
    ROW_BITS,
    ROW_MASK,
    PartRows,
    batch_segments,
    compact_column,
    list_positions,
    open_segments,
    take_values,
)
from windrow.queries.views.partner_filter import (
    MAX_LOOKUP_KEYS,
    encode_partner_ranges,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.queries.views.storage import RowEnding
from windrow.store import Store


class KeySet:
    """Some keys, each once.

    Args:
        keys: A column for each column of the key.
    """

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    @classmethod
    def collect(cls, rows: Sequence[pa.Table], schema: pa.Schema) -> "KeySet | None":
        """The keys of some rows; None if their types cannot be told apart here, so that any key may be among them."""
        if any(pa.types.is_nested(field.type) or pa.types.is_floating(field.type) for field in schema):
            return None
        table = pa.concat_tables([*rows, schema.empty_table()])
        return cls(table.group_by(table.column_names, use_threads=False).aggregate([]) if schema.names else table)

    @cached_property
    def _matcher(self) -> Matcher | None:
        """Finds keys of whole numbers, but no null; None of others, and where one number of several is null."""
        kinds = self.keys.schema.types
        if any(not pa.types.is_integer(kind) or pa.types.is_uint64(kind) for kind in kinds):
            return None
        if not kinds or len(self) >= 1 << 30 or (len(kinds) > 1 and self._has_null):
            return None
        return Matcher([column.drop_null().to_numpy() for column in self.keys.columns])

    @cached_property
    def _has_null(self) -> bool:
        return any(column.null_count for column in self.keys.columns)

    @cached_property
    def _encoded(self) -> pa.Array:
        return native_keys.encode([column.combine_chunks() for column in self.keys.columns])

    @cached_property
    def _selective(self) -> tuple[int, pa.Array]:
        """The column of the key that tells most keys apart, and its values."""
        counts = [pc.count_distinct(column, mode="all").as_py() for column in self.keys.columns]
        number = counts.index(max(counts))
        return number, self.keys.column(number).unique()

    def find(self, rows: PartRows, names: Sequence[str]) -> Int64s:
        """The positions of rows with such keys, ascending; a null equals a null.

        Args:
            rows: Where they are looked for.
            names: Of the key's columns there; one at least.
        """
        columns = [rows.column(name) for name in names]
        if self._matcher is not None:
            some = self._matcher.match(columns)[0] if self._matcher.distinct else np.empty(0, np.int64)
            if not self._has_null:
                return some
            nulls = [
                np.flatnonzero(chunk.is_null()) + (number << ROW_BITS)
                for number, chunk in enumerate(columns[0])
                if chunk.null_count
            ]
            return np.sort(np.concatenate([some, *nulls]))
        pieces = [
            self._find_in_chunk([column[chunk] for column in columns]) + (chunk << ROW_BITS)
            for chunk in range(len(columns[0]))
        ]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def _find_in_chunk(self, columns: Sequence[pa.Array]) -> Int64s:
        number, values = self._selective
        column = columns[number]
        if pa.types.is_dictionary(column.type):
            same = pc.is_in(column.dictionary, value_set=values).to_numpy(zero_copy_only=False)
            has_null = values.null_count > 0
            passing = np.append(same, has_null)[column.indices.cast(pa.int32()).fill_null(len(same)).to_numpy()]
        else:
            passing = pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False)
        positions = np.flatnonzero(passing)
        if len(columns) == 1 or not len(positions):
            return positions
        taken = [each.take(to_arrow(positions)) for each in columns]
        plain = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in taken]
        same = pc.is_in(native_keys.encode(plain), value_set=self._encoded)
        chosen: Int64s = positions[same.to_numpy(zero_copy_only=False)]
        return chosen

    def locate(
        self, store: Store, definition: StreamDefinition, columns: Sequence[str], segments: Sequence[Segment]
    ) -> tuple[Sequence[Segment], SegmentRanges] | None:
        """Where rows with such keys can be, by the directories; None if it is cheaper to look at all rows."""
        searched = list(takewhile(columns.__contains__, definition.key))
        can_match = self._matcher is not None
        if not searched or len(self) > min(max_lookup_keys(segments, by_kernel=can_match), MAX_LOOKUP_KEYS):
            return None
        picked = self.keys.select([columns.index(name) for name in searched])
        if any(column.null_count for column in picked.columns):
            return None
        if len(searched) < len(columns):
            picked = picked.group_by(picked.column_names, use_threads=False).aggregate([])
        ranges = encode_partner_ranges(definition, picked.columns)
        return None if ranges is None else prune_by_directory(store, definition, ranges)(segments)


@dataclass(frozen=True)
class PlacedRows:
    """Rows of several segments.

    Args:
        cache: Of their columns.
        definition: Of their stream.
        segments: Where they lie.
        places: Where each lies, ascending: the number of its segment in the high bits, its row in the file below them.
        begins: When each begins.
        ends: When each ends by what is stored, or by the window.
        overrides: When an override ends it; `NEVER` if none does.
    """

    cache: ColumnCache
    definition: StreamDefinition
    segments: Sequence[Segment]
    places: Int64s
    begins: Int64s
    ends: Int64s
    overrides: Int64s

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sequence(self) -> Int64s:
        """The hidden sequence of each."""
        bases = np.array([segment.seq_base for segment in self.segments], np.int64)
        sequence: Int64s = self.take(SEQ).to_numpy() + bases[self.places >> ROW_BITS]
        return sequence

    @cached_property
    def _pieces(self) -> list[tuple[list[Segment], Int64s]]:
        """Segments that are read together, and the positions of the rows in them."""
        return list(_find_pieces(self.segments, self.places))

    def take(self, name: str) -> pa.Array:
        """The values of a column."""
        return _take(self.cache, self.definition, self._pieces, name)

    def table(self, names: Iterable[str]) -> pa.Table:
        """The values of some columns."""
        return pa.table({name: self.take(name) for name in names})

    @property
    def last_ends(self) -> Int64s:
        """When each ends, by all that is known."""
        return np.minimum(self.ends, self.overrides)

    def select(self, chosen: Bools) -> "PlacedRows":
        """Some of them."""
        if chosen.all():
            return self
        arrays = (each[chosen] for each in (self.places, self.begins, self.ends, self.overrides))
        return PlacedRows(self.cache, self.definition, self.segments, *arrays)


class KeyedRows:
    """Reads rows of a stream by keys.

    Args:
        store: The warehouse.
        definition: Of the stream.
        columns: Of the key.
        window: How long rows count, if not as long as they live.
    """

    def __init__(
        self, store: Store, definition: StreamDefinition, columns: Sequence[str], window: int | None = None
    ) -> None:
        self._store, self._definition, self._window = store, definition, window
        self.columns = tuple(columns)

    def read(self, segments: Sequence[Segment], keys: KeySet | None = None) -> PlacedRows:
        """The rows of some keys (None: of all), also those that are dead."""
        if keys is not None and self.columns and not len(keys):
            return self.read_at(segments, np.empty(0, np.int64))
        if keys is None or not self.columns:
            places = list_positions([each.rows for each in segments], [each.start for each in segments])
            return self.read_at(segments, places)
        located = keys.locate(self._store, self._definition, self.columns, segments)
        if located is not None:
            return self._check_keys(segments, keys, located[1])
        pieces, first = list[Int64s](), 0
        for batch in batch_segments(segments):
            rows = open_segments(self._store.columns, self._definition, batch)
            positions = keys.find(rows, self.columns)
            starts = np.array([segment.start for segment in batch], np.int64)
            pieces.append(positions + (first << ROW_BITS) + starts[positions >> ROW_BITS])
            first += len(batch)
        return self.read_at(segments, np.concatenate([np.empty(0, np.int64), *pieces]))

    def _check_keys(self, segments: Sequence[Segment], keys: KeySet, ranges: SegmentRanges) -> PlacedRows:
        """Of the rows that directories name those that have the keys."""
        nothing = np.empty(0, np.int64)
        rows = [
            list_rows(*ranges[segment.id]) + (number << ROW_BITS) if segment.id in ranges else nothing
            for number, segment in enumerate(segments)
        ]
        places = np.concatenate([nothing, *rows])
        pieces = list(_find_pieces(segments, places))
        found = PartRows([len(places)], lambda name: [_take(self._store.columns, self._definition, pieces, name)])
        return self.read_at(segments, places[keys.find(found, self.columns)])

    def read_at(self, segments: Sequence[Segment], places: Int64s) -> PlacedRows:
        """The rows at some places."""
        definition, model = self._definition, self._definition.model
        pieces = list(_find_pieces(segments, places))
        names = [model.time, *([] if model.expires is None else [model.expires])]
        times = pa.table({name: _take(self._store.columns, definition, pieces, name) for name in names})
        begins, _ = model.times(times)
        ends, _ = model.expiries(times, begins)
        if self._window is not None:
            ends = np.minimum(ends, begins + self._window)
        overrides = _find_overrides(segments, places)
        return PlacedRows(self._store.columns, definition, segments, places, begins, ends, overrides)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def end_places(segments: Sequence[Segment], rows: PlacedRows, now: int) -> list[RowEnding]:
    """What ends stored rows now."""
    numbers, ends = rows.places & ROW_MASK, rows.last_ends
    return [
        RowEnding(segments[number].id, numbers[part], ends[part], np.full_like(ends[part], now))
        for number, part in _slice_segments(rows.places)
    ]


def _slice_segments(places: Int64s) -> Iterator[tuple[int, slice]]:
    """Numbers of segments, and which of ascending places are there."""
    numbers = places >> ROW_BITS
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(places)]
    for start, stop in pairwise(bounds):
        if start < stop:
            yield int(numbers[start]), slice(start, stop)


def _find_pieces(segments: Sequence[Segment], places: Int64s) -> Iterator[tuple[list[Segment], Int64s]]:
    """Segments with rows at some places, as many as are read together, and the positions of the rows in them."""
    slices = dict(_slice_segments(places))
    numbers, first = list(slices), 0
    for batch in batch_segments([segments[number] for number in numbers]):
        used = numbers[first : first + len(batch)]
        first += len(batch)
        here = places[slices[used[0]].start : slices[used[-1]].stop]
        shifts = [((chunk - number) << ROW_BITS) - segments[number].start for chunk, number in enumerate(used)]
        counts = [slices[number].stop - slices[number].start for number in used]
        yield batch, here + np.repeat(np.array(shifts, np.int64), counts)


def _take(
    cache: ColumnCache, definition: StreamDefinition, pieces: Sequence[tuple[list[Segment], Int64s]], name: str
) -> pa.Array:
    """The values of a column at some positions."""
    full = definition.stored_schema
    field = full.field(name)
    is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    taken = []
    for segments, positions in pieces:
        repeats = is_text and name in cache.find_repeating(segments, full)
        taken.append(take_values(cache.read_column(segments, compact_column(field, repeats), full), positions))
    if len(taken) == 1:
        return taken[0]
    return pa.concat_arrays(taken) if taken else pa.array([], plain_type(field.type))


def _find_overrides(segments: Sequence[Segment], places: Int64s) -> Int64s:
    """When overrides end the rows at some places; `NEVER` if none does."""
    ends = np.full(len(places), NEVER, np.int64)
    for number, part in _slice_segments(places):
        if segments[number].ended:
            ends[part] = find_ends(segments[number], places[part] & ROW_MASK)
    return ends
