"""Basic synopses as NumPy arrays: merging the slots of a window is one addition by group number (rule CS2).

Each group of a synopsis has one number in all slots, so one pass from the youngest slot to the oldest gives every
shorter window on the way. Only sums, counts, minima and maxima of integers and floats are merged here; DuckDB merges
everything else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.catalog.environment import Tables
from windrow.catalog.records import SynopsisColumn, SynopsisEntry
from windrow.native import group_aggregate as kernels
from windrow.queries.synopses import kinds, node_store
from windrow.queries.synopses.kinds import Node
from windrow.store import Store

_TABLE_BITS = 22
"""A table of group numbers has at most 2 to this power entries (16 MiB)."""
_LEAST_BITS = 4


class TooLargeError(Exception):
    """Values do not fit into these arrays, or only DuckDB can compare them; DuckDB must merge them."""


class GroupNumbering:
    """The groups of one synopsis.

    Args:
        columns: How many columns a group has.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.bits = 62 // max(1, columns)
        """Of one column's code."""
        self.column_values: list[pa.Array] = []
        """The distinct values of each group column; their positions are codes."""
        self.packed: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The codes of each group, by number."""
        self._table_bits: tuple[int, ...] = ()
        self._table: npt.NDArray[np.int32] | None = None
        self._sorted: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self._ranks: dict[int, tuple[int, npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None] = {}

    def __len__(self) -> int:
        return len(self.packed)

    def numbers(self, rows: pa.Table) -> npt.NDArray[np.int32]:
        """The numbers of a node's groups, columns ``g0…``; new groups get the next ones."""
        packed = np.zeros(rows.num_rows, np.int64)
        for column in range(self.columns):
            packed |= self._coded(column, rows.column(f"g{column}").combine_chunks()) << (self.bits * column)
        group_numbers = self._find(packed)
        missing = group_numbers < 0
        if missing.any():
            self._add(np.unique(packed[missing]))
            group_numbers = self._find(packed)
        return group_numbers.astype(np.int32)

    def _coded(self, position: int, column: pa.Array) -> npt.NDArray[np.int64]:
        if pa.types.is_integer(column.type) and column.type != pa.uint64():
            column = column.cast(pa.int64())  # nodes have numbers as narrow as they fit
        if len(self.column_values) <= position:
            self.column_values.append(column.slice(0, 0))
        if column.type != self.column_values[position].type:
            column = column.cast(self.column_values[position].type)
        column = _comparable(column)
        codes = pc.index_in(column, value_set=self.column_values[position])
        if codes.null_count:
            fresh = pc.unique(column.filter(codes.is_null()))
            self.column_values[position] = pa.concat_arrays([self.column_values[position], fresh])
            codes = pc.index_in(column, value_set=self.column_values[position])
        if len(self.column_values[position]) >= 1 << self.bits:
            raise TooLargeError
        return np.asarray(codes.to_numpy(), np.int64)

    # -- from packed codes to numbers --------------------------------------------------------------------------------

    def _find(self, packed: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The number of each, -1 where there is none yet."""
        table_bits = tuple(max(_LEAST_BITS, len(values).bit_length()) for values in self.column_values)
        if sum(table_bits) <= _TABLE_BITS:
            if self._table is None or table_bits != self._table_bits:
                self._table_bits, self._table = table_bits, np.full(1 << sum(table_bits), -1, np.int32)
                self._table[self._dense(self.packed)] = np.arange(len(self.packed))
            return self._table[self._dense(packed)]
        if self._sorted is None:
            order = np.argsort(self.packed)
            self._table, self._sorted = None, (self.packed[order], order)
        keys, order = self._sorted
        if not len(keys):
            return np.full(len(packed), -1)
        positions = np.minimum(np.searchsorted(keys, packed), len(keys) - 1)
        return np.where(keys[positions] == packed, order[positions], -1)

    def _dense(self, packed: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions in the table."""
        positions, shift, mask = np.zeros(len(packed), np.int64), 0, (1 << self.bits) - 1
        for column, bits in enumerate(self._table_bits):
            positions |= ((packed >> (self.bits * column)) & mask) << shift
            shift += bits
        return positions

    def _add(self, fresh: npt.NDArray[np.int64]) -> None:
        before = len(self.packed)
        self.packed = np.concatenate([self.packed, fresh])
        if self._sorted is not None:
            keys, order = self._sorted
            positions = np.searchsorted(keys, fresh)
            numbers = np.arange(before, len(self.packed))
            self._sorted = np.insert(keys, positions, fresh), np.insert(order, positions, numbers)
        if len(self.packed) >= 1 << 31:
            raise TooLargeError
        if self._table is not None:
            self._table[self._dense(fresh)] = np.arange(before, len(self.packed))

    # -- and back ----------------------------------------------------------------------------------------------------

    def codes(self, column: int, numbers: npt.NDArray[Any] | None = None) -> npt.NDArray[np.int64]:
        """The codes that groups have in a column; of all groups if none are given."""
        packed = self.packed if numbers is None else self.packed[numbers]
        return (packed >> (self.bits * column)) & ((1 << self.bits) - 1)

    def values(self, column: int, numbers: npt.NDArray[Any] | None = None) -> pa.Array:
        """The values that groups have in a column."""
        values = self.column_values[column] if column < len(self.column_values) else pa.nulls(0)
        return values.take(pa.array(self.codes(column, numbers)))

    def ranks(self, column: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None:
        """Integers in the order of a column's values, by code, and which are null; None if only DuckDB knows it."""
        if column >= len(self.column_values):
            return None
        values, cached = self.column_values[column], self._ranks.get(column)
        if cached is None or cached[0] != len(values):
            ordered = _rank_values(values)
            cached = (
                None if ordered is None else (len(values), ordered, values.is_null().to_numpy(zero_copy_only=False))
            )
            self._ranks[column] = cached
        return None if cached is None else cached[1:]


def _comparable(column: pa.Array) -> pa.Array:
    """The values such that those are the same bits that SQL puts into one group.

    Raises:
        TooLargeError: Arrow compares them otherwise than DuckDB, or not at all: nested values, intervals (a month is 30
            days), enumerations, types of DuckDB's own.
    """
    kind, is_ = column.type, pa.types
    if is_.is_floating(kind):  # 0 and -0 are one group, and so are all that are no numbers
        return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), pc.add(column, pa.scalar(0.0, kind)))
    texts = is_.is_string(kind) or is_.is_large_string(kind) or is_.is_binary(kind) or is_.is_large_binary(kind)
    if texts or is_.is_decimal(kind) or is_.is_null(kind) or (is_.is_primitive(kind) and not is_.is_interval(kind)):
        return column
    raise TooLargeError


def _rank_values(values: pa.Array) -> npt.NDArray[np.int64] | None:
    kind = values.type
    if pa.types.is_date32(kind):
        values, kind = values.cast(pa.int32()), pa.int32()
    if pa.types.is_boolean(kind) or pa.types.is_timestamp(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return np.asarray(values.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        ranks = np.empty(len(values), np.int64)
        ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
        return ranks
    return None


Numbers = npt.NDArray[Any]
_INTEGER_TYPES = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_SUM_LIMIT = 1 << 62
_NARROW_TYPES = (np.int8, np.int16, np.int32)
_LOW, _HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def can_use_arrays(entry: SynopsisEntry) -> bool:
    """Whether a synopsis can be merged here."""
    by_expiry = entry.expiring and not entry.span
    return entry.kind == kinds.BASIC and would_use_arrays(by_expiry, len(entry.groups), entry.columns)


def would_use_arrays(expiring: bool, groups: int, columns: Iterable[SynopsisColumn]) -> bool:
    """Whether a synopsis of such columns could be, if it were a basic one."""
    return not expiring and groups <= 3 and all(map(_is_simple, columns))


def _is_simple(column: SynopsisColumn) -> bool:
    if column.merge == "sum":
        return column.type in _INTEGER_TYPES or column.type == "DOUBLE"
    return column.merge in ("min", "max") and column.type in _INTEGER_TYPES - {"HUGEINT"}


@dataclass
class _SlotArrays:
    """A node as arrays."""

    changed: int
    numbers: npt.NDArray[np.int32]
    """Of its groups."""
    values: list[Numbers]
    same: list[int]
    """The first column that has the same values as each."""
    largest: list[int]
    """How far what a group has of each can be from 0."""


@dataclass(frozen=True)
class Ranking:
    """Groups in the order of their other columns and then of one column's values."""

    column: int
    numbers: npt.NDArray[np.int64]
    """Of the groups in this order."""
    parts: npt.NDArray[np.int64]
    """Which run of equal other columns each belongs to."""
    starts: npt.NDArray[np.int64]
    valued: npt.NDArray[np.bool_]
    """Where the value is not null."""
    values: npt.NDArray[np.int64]

    @cached_property
    def stops(self) -> npt.NDArray[np.int64]:
        """Where each run ends."""
        return np.append(self.starts[1:], len(self.numbers))

    @cached_property
    def all_valued(self) -> bool:
        """Whether no value is null."""
        return bool(self.valued.all())


@dataclass
class ArraySynopsis:
    """A basic synopsis in memory, as arrays."""

    entry: SynopsisEntry
    numbering: GroupNumbering
    slots: dict[Node, _SlotArrays] = field(default_factory=dict)
    rankings: dict[int, Ranking] = field(default_factory=dict)
    decoded: tuple[int, Ranking | None, dict[str, pa.Array]] | None = None

    def load(self, store: Store, changes: Mapping[Node, int], wanted: Iterable[Node]) -> bool:
        """Bring nodes into memory; false if one has been changed again meanwhile."""
        self.slots = {node: slot for node, slot in self.slots.items() if changes.get(node) == slot.changed}
        missing = [node for node in wanted if node in changes and node not in self.slots]
        if not missing:
            return True

        def read(tables: Tables) -> dict[Node, node_store.StoredNode | None]:
            return {node: node_store.read_node(tables, self.entry, node) for node in missing}

        for node, stored in store.catalog.read(read).items():
            if stored is None or stored.changed != changes[node]:
                return False
            self.slots[node] = self._make_arrays(stored)[0]
        return True

    def _make_arrays(self, stored: node_store.StoredNode, by: str | None = None) -> tuple[_SlotArrays, Numbers]:
        """A node as arrays, in the order of another column if one is given, and that column."""
        rows = stored.table()
        numbers = self.numbering.numbers(rows)
        ordered_by = np.zeros(0, np.int64) if by is None else np.asarray(rows.column(by).to_numpy(), np.int64)
        # Totals are then gone through in one direction.
        order = np.argsort(numbers, kind="stable") if by is None else np.lexsort((numbers, ordered_by))
        values = [
            np.ascontiguousarray(_to_numbers(rows.column(f"c{position}"), column)[order])
            for position, column in enumerate(self.entry.columns)
        ]
        same = [
            next(
                first
                for first in range(position + 1)
                if self._merge_equally(first, position) and np.array_equal(values[first], column_values)
            )
            for position, column_values in enumerate(values)
        ]
        # A group is once in each of the tallies that a node is made of.
        largest = [_greatest_magnitude(column_values) * len(stored.bodies) for column_values in values]
        arrays = _SlotArrays(stored.changed, numbers[order], values, same, largest)
        return arrays, ordered_by if by is None else ordered_by[order]

    def _merge_equally(self, one: int, other: int) -> bool:
        first, second = self.entry.columns[one], self.entry.columns[other]
        return first.merge == second.merge and (first.type == "DOUBLE") == (second.type == "DOUBLE")

    def walk(self, slide: int, lengths: Iterable[int], columns: Iterable[int]) -> Iterator[tuple[int, list[Numbers]]]:
        """The totals of each window that ends at a slide, shortest first; they are changed on the way to the next.

        Args:
            slide: The last slot.
            lengths: Of the windows, in slots.
            columns: Those that are wanted; the others stay empty.
        """
        ordered = sorted(set(lengths))
        nodes = map(kinds.slot_node, range(slide, slide - max(ordered, default=0), -1))
        slots = [slot for node in nodes if (slot := self.slots.get(node)) is not None]
        source = self._sources(slots, columns)
        totals = [
            _neutral_values(column, len(self.numbering) if source.get(position) == position else 0)
            for position, column in enumerate(self.entry.columns)
        ]
        for position, source_column in source.items():
            totals[position] = totals[source_column]
            if (
                self.entry.columns[position].merge == "sum"
                and sum(slot.largest[position] for slot in slots) > _SUM_LIMIT
            ):
                raise TooLargeError
        youngest, merged = slide, [position for position, source_column in source.items() if position == source_column]
        for length in ordered:
            for number in range(youngest, slide - length, -1):
                self._add(totals, merged, kinds.slot_node(number))
            youngest = slide - length
            yield length, totals

    def _sources(self, slots: Sequence[_SlotArrays], columns: Iterable[int]) -> dict[int, int]:
        """Which columns are merged, and for each the one that has the same values in every slot, which need be once."""
        sources = {}
        for column in sorted({0, *columns}):
            first = {slot.same[column] for slot in slots}
            sources[column] = first.pop() if len(first) == 1 else column
            if sources[column] not in sources or not self._merge_equally(sources[column], column):
                sources[column] = column
        return sources

    def _add(self, totals: list[Numbers], columns: Sequence[int], node: Node) -> None:
        slot = self.slots.get(node)
        if slot is None:
            return
        for column in columns:
            kernels.merge_totals(totals[column], slot.numbers, slot.values[column], self.entry.columns[column].merge)

    def rankable(self, column: int) -> bool:
        """Whether the values of a group column are whole numbers."""
        return self.entry.groups[column][2] in _INTEGER_TYPES - {"HUGEINT"}

    def ranked(self, column: int) -> Ranking:
        """Groups in the order of a group column's values."""
        cached, numbering = self.rankings.get(column), self.numbering
        if cached is not None and len(cached.numbers) == len(numbering):
            return cached
        codes = numbering.codes(column)
        others = numbering.packed & ~(((1 << numbering.bits) - 1) << (numbering.bits * column))
        values = numbering.column_values[column] if numbering.column_values else pa.array([], pa.int64())
        whole = values.cast(pa.int64()).fill_null(_HIGH).to_numpy()
        rank = np.argsort(np.argsort(whole, kind="stable"))
        valued = values.is_valid().to_numpy(zero_copy_only=False)
        # With ranks in the lowest bits, and what was there in the column's own, one sort gives both orders.
        first = numbering.packed & ((1 << numbering.bits) - 1) if column else np.int64(0)
        order = np.argsort(others - first | first << (numbering.bits * column) | rank[codes])
        begins = np.ones(len(order), bool)
        begins[1:] = others[order][1:] != others[order][:-1]
        ordered = codes[order]
        ranking = self.rankings[column] = Ranking(
            column, order, np.cumsum(begins) - 1, begins.nonzero()[0], valued[ordered], whole[ordered]
        )
        return ranking

    def table(self, totals: Sequence[Numbers], ranking: Ranking | None) -> pa.Table:
        """All groups with the columns that were wanted; who reads it leaves out those where ``c0`` is 0.

        If ranked, there is beside each count ``c`` also ``h_c``, how many values are not after it among groups that
        are equal otherwise, and ``t_c``, how many there are.
        """
        columns: dict[str, pa.Array] = dict(self._groups(ranking))
        for position, (column, total) in enumerate(zip(self.entry.columns, totals, strict=True)):
            if len(total) != len(self.numbering):
                continue  # no query needs it
            values = total.copy() if ranking is None else total[ranking.numbers]
            empty = {"min": values == _HIGH, "max": values == _LOW}.get(column.merge)
            columns[f"c{position}"] = pa.array(values, mask=empty) if empty is not None else pa.array(values)
            if ranking is not None and len(values):
                counts = np.where(ranking.valued, values, 0)
                upto = np.cumsum(counts)
                before = (upto - counts)[ranking.starts]
                columns[f"h_c{position}"] = pa.array(upto - before[ranking.parts])
                columns[f"t_c{position}"] = pa.array((upto[ranking.stops - 1] - before)[ranking.parts])
        return pa.table(columns)

    def _groups(self, ranking: Ranking | None) -> dict[str, pa.Array]:
        """The group columns of all groups, by number or ranked; they change only when a new group comes."""
        cached = self.decoded
        if cached is not None and cached[0] == len(self.numbering) and cached[1] is ranking:
            return cached[2]
        numbers = None if ranking is None else ranking.numbers
        columns = {
            f"g{position}": self.numbering.values(position, numbers) for position in range(len(self.entry.groups))
        }
        self.decoded = len(self.numbering), ranking, columns
        return columns


_MAX_PIECES = 8
"""Pieces of a slot's arrays before equal groups in them are merged. Not measured."""


@dataclass
class JoinArrays(ArraySynopsis):
    """A basic synopsis of a view of a join, as arrays by expiry slot.

    Nodes are of what came with one slide. What a window has of it depends on the expiry alone: so what all nodes have
    of one expiry slot is added up, and stands at the slot that is `span` earlier: a window of so many slots ends there.
    """

    loaded: dict[Node, int] = field(default_factory=dict)
    """When each node that was added was last changed."""
    pieces: dict[Node, int] = field(default_factory=dict)
    """Of how many nodes each slot's arrays are."""

    last: int | None = None
    """The slot before the last one of the window that was asked for last."""

    def load(self, store: Store, changes: Mapping[Node, int], wanted: Iterable[Node]) -> bool:
        """Bring nodes into memory; false if one has been changed again meanwhile."""
        window = list(wanted)
        last, first = window[0].left, window[-1].left
        changed_since = (changes.get(node) != when for node, when in self.loaded.items() if node.left >= first)
        if self.last is not None and (last < self.last or any(changed_since)):
            self.loaded, self.slots, self.pieces = {}, {}, {}
        expired, self.last = last - self.entry.span, last  # what came by then has expired by now
        self.loaded = {node: changed for node, changed in self.loaded.items() if node.left > expired}
        self.slots = {node: arrays for node, arrays in self.slots.items() if node.left > expired}
        missing = [node for node in window if node in changes and node not in self.loaded]

        def read(tables: Tables) -> dict[Node, node_store.StoredNode | None]:
            return {node: node_store.read_node(tables, self.entry, node) for node in missing}

        for node, stored in (store.catalog.read(read) if missing else {}).items():
            if stored is None or stored.changed != changes[node]:
                return False
            self._add_node(stored, expired)
            self.loaded[node] = stored.changed
        return True

    def _add_node(self, stored: node_store.StoredNode, expired: int) -> None:
        """Add what a node has to the slots."""
        arrays, expiries = self._make_arrays(stored, "x")
        cuts = [0, *(np.flatnonzero(np.diff(expiries)) + 1).tolist(), len(expiries)]
        for start, stop in pairwise(cuts):
            place = kinds.slot_node(int(expiries[start]) - self.entry.span)
            if place.left > expired:
                values = [column[start:stop] for column in arrays.values]
                self._add_piece(place, replace(arrays, numbers=arrays.numbers[start:stop], values=values))

    def _add_piece(self, place: Node, added: _SlotArrays) -> None:
        old = self.slots.get(place)
        if old is None:
            self.slots[place], self.pieces[place] = added, 1
            return
        values = [np.concatenate(pair) for pair in zip(old.values, added.values, strict=True)]
        numbers = np.concatenate([old.numbers, added.numbers])
        largest = [one + other for one, other in zip(old.largest, added.largest, strict=True)]
        same = old.same if old.same == added.same else list(range(len(values)))
        self.slots[place] = _SlotArrays(added.changed, numbers, values, same, largest)
        self.pieces[place] += 1
        if self.pieces[place] >= _MAX_PIECES:
            self._merge_pieces(place)

    def _merge_pieces(self, place: Node) -> None:
        """Every group once."""
        arrays = self.slots[place]
        numbers = np.unique(arrays.numbers)
        values = []
        for column, column_values, largest in zip(self.entry.columns, arrays.values, arrays.largest, strict=True):
            if column.merge == "sum" and largest > _SUM_LIMIT:
                raise TooLargeError
            totals = _neutral_values(column, len(self.numbering))
            kernels.merge_totals(totals, arrays.numbers, column_values, column.merge)
            values.append(totals[numbers])
        self.slots[place], self.pieces[place] = replace(arrays, numbers=numbers, values=values), 1


def _neutral_values(column: SynopsisColumn, count: int) -> Numbers:
    if column.merge == "sum":
        return np.zeros(count, np.float64 if column.type == "DOUBLE" else np.int64)
    return np.full(count, _HIGH if column.merge == "min" else _LOW, np.int64)


def _to_numbers(column: pa.ChunkedArray, synopsis_column: SynopsisColumn) -> Numbers:
    """A kept column as numbers, as narrow as they fit; nothing counts as what changes no merge."""
    neutral = {"sum": 0, "min": _HIGH, "max": _LOW}[synopsis_column.merge]
    if synopsis_column.type == "DOUBLE":
        floats: Numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        return floats
    try:
        integers = column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise TooLargeError from None
    whole: Numbers = integers.fill_null(neutral).to_numpy()
    if synopsis_column.merge != "sum" and (whole == neutral).sum() > integers.null_count:
        raise TooLargeError  # a value that means nothing here
    largest = _greatest_magnitude(whole)
    return whole.astype(next((kind for kind in _NARROW_TYPES if largest <= np.iinfo(kind).max), np.int64))


def _greatest_magnitude(values: Numbers) -> int:
    """How far whole numbers are from 0; floats do not overflow."""
    if values.dtype == np.float64 or not len(values):
        return 0
    return max(abs(int(values.max())), abs(int(values.min())))
