"""The rows of some keys, out of the decoded columns of a stream's segments, with the places where they lie."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.column_cache import SegmentRanges, list_rows
from windrow.indexes.end_overrides import read_ends
from windrow.indexes.row_model import SEQ, Bools, Int64s
from windrow.indexes.segments import Segment
from windrow.native import key_encoding as native_keys
from windrow.queries.views.partner_filter import (
    MAX_LOOKUP_KEYS,
    Mask,
    encode_partner_ranges,
    make_mask,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.store import Store

_ROW = (1 << 32) - 1
"""The bits of a place that are the row in its file; those above are the number of the segment in a list."""


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
    def _encoded(self) -> pa.Array:
        return native_keys.encode([column.combine_chunks() for column in self.keys.columns])

    @cached_property
    def _first_filter(self) -> tuple[int, Mask] | None:
        """The column of the key that tells most keys apart, if it can be compared quickly, and its values."""
        choices = []
        for number, column in enumerate(self.keys.columns):
            kind = column.type
            if column.null_count or not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
                continue
            choices.append((pc.count_distinct(column).as_py(), number))
        if not choices:
            return None
        number = max(choices)[1]
        return number, make_mask(self.keys.column(number).unique())

    def find(self, columns: Sequence[pa.Array]) -> Int64s | None:
        """The positions of rows with such keys; None: all of them."""
        if not columns:
            return None
        passing: Int64s | None = None
        if self._first_filter is not None:
            passing = self._first_filter[1](columns[self._first_filter[0]])
            if len(columns) == 1 or not len(passing):
                return passing
            columns = [column.take(to_arrow(passing)) for column in columns]
        same = pc.is_in(native_keys.encode(columns), value_set=self._encoded)
        positions: Int64s = np.flatnonzero(same.to_numpy(zero_copy_only=False))
        return positions if passing is None else passing[positions]

    def locate(
        self, store: Store, definition: StreamDefinition, columns: Sequence[str], segments: Sequence[Segment]
    ) -> tuple[Sequence[Segment], SegmentRanges] | None:
        """Where rows with such keys can be, by the directories; None if it is cheaper to look at all rows."""
        few = len(self) <= min(max_lookup_keys(segments), MAX_LOOKUP_KEYS)
        if not columns or not few or tuple(columns) != definition.key[: len(columns)]:
            return None
        if any(column.null_count for column in self.keys.columns):
            return None
        ranges = encode_partner_ranges(definition, self.keys.columns)
        return None if ranges is None else prune_by_directory(store, definition, ranges)(segments)


@dataclass(frozen=True)
class PlacedRows:
    """Rows of several segments.

    Args:
        rows: Their columns.
        segments: Where they lie.
        places: Where each lies: the number of its segment in the high bits, its row in the file in the low ones.
        begins: When each begins.
        ends: When each ends, by what is stored, overrides and the window.
    """

    rows: pa.Table
    segments: Sequence[Segment]
    places: Int64s
    begins: Int64s
    ends: Int64s

    @property
    def sequence(self) -> Int64s:
        """The hidden sequence of each, which must be among the columns."""
        bases = np.array([segment.seq_base for segment in self.segments], np.int64)
        sequence: Int64s = self.rows.column(SEQ).to_numpy() + bases[self.places >> 32]
        return sequence

    def select(self, chosen: Bools) -> "PlacedRows":
        """Some of them."""
        positions = np.flatnonzero(chosen)
        if len(positions) == len(chosen):
            return self
        taken = self.rows.take(to_arrow(positions))
        return PlacedRows(taken, self.segments, self.places[positions], self.begins[positions], self.ends[positions])


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

    def read(
        self, segments: Sequence[Segment], names: Iterable[str], keys: KeySet | None = None, *, ended_by: int
    ) -> PlacedRows:
        """The rows of some keys (None: of all).

        Args:
            segments: Where they may be.
            names: The columns that are wanted.
            keys: The keys.
            ended_by: Rows that an override has ended by this time may be left out.
        """
        definition, model = self._definition, self._definition.model
        wanted = {*names, *self.columns, model.time, *([] if model.expires is None else [model.expires])}
        full = definition.stored_schema
        schema = pa.schema([field for field in full if field.name in wanted])
        located = None if keys is None else keys.locate(self._store, definition, self.columns, segments)
        ranges = None if located is None else located[1]
        numbers = {segment.id: number for number, segment in enumerate(segments)}
        batches, places, overrides = [], [], []
        for segment in segments if located is None else located[0]:
            for batch, rows in self._read_segment(segment, schema, keys, ranges):
                batches.append(batch)
                places.append(rows + (numbers[segment.id] << 32))
            if segment.ended:
                row_ends = read_ends(segment)
                overrides.append((row_ends.rows + (numbers[segment.id] << 32), row_ends.ends))
        table = pa.Table.from_batches(batches, schema)
        if table.column(0).num_chunks > 1:
            table = table.combine_chunks()
        placed = self._measure(table, segments, np.concatenate([np.empty(0, np.int64), *places]))
        return self._shorten(placed, overrides, ended_by) if overrides else placed

    def _read_segment(
        self, segment: Segment, schema: pa.Schema, keys: KeySet | None, ranges: SegmentRanges | None
    ) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        rows, start = _rows_read(segment, ranges), 0
        full = self._definition.stored_schema
        for batch in self._store.columns.read_batches([segment], schema, full, ranges):
            these, start = rows[start : start + batch.num_rows], start + batch.num_rows
            passing = None if keys is None else keys.find([batch.column(name) for name in self.columns])
            if passing is None or len(passing) == batch.num_rows:
                yield batch, these
            elif len(passing):
                yield batch.take(to_arrow(passing)), these[passing]

    def _measure(self, rows: pa.Table, segments: Sequence[Segment], places: Int64s) -> PlacedRows:
        model = self._definition.model
        begins, _ = model.times(rows)
        ends, _ = model.expiries(rows, begins)
        if self._window is not None:
            ends = np.minimum(ends, begins + self._window)
        return PlacedRows(rows, segments, places, begins, ends)

    @staticmethod
    def _shorten(placed: PlacedRows, overrides: Sequence[tuple[Int64s, Int64s]], ended_by: int) -> PlacedRows:
        """The rows with the ends that overrides give them."""
        places, ends = (np.concatenate([each[number] for each in overrides]) for number in (0, 1))
        order = np.argsort(places)
        places, ends = places[order], ends[order]
        positions = np.minimum(np.searchsorted(places, placed.places), len(places) - 1)
        shortened = np.where(places[positions] == placed.places, np.minimum(ends[positions], placed.ends), placed.ends)
        result = replace(placed, ends=shortened)
        return result.select(shortened > ended_by)


def split_place(places: Int64s) -> tuple[Int64s, Int64s]:
    """The number of the segment, and the row in its file."""
    return places >> 32, places & _ROW


def _rows_read(segment: Segment, ranges: SegmentRanges | None) -> Int64s:
    """The rows of a segment that are read, as its file counts them."""
    if ranges is None:
        return np.arange(segment.start, segment.stop, dtype=np.int64)
    return list_rows(*ranges[segment.id])
