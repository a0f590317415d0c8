"""One pass over a basic synopsis, from youngest slot to oldest, that gives every shorter window on the way (rule CS2).

Groups are numbered once, so that merging a slot is one addition into arrays by number. Only sums, counts, minima and
maxima of whole numbers and floats are done here; everything else is merged by DuckDB.

Numbers for the groups of a synopsis, so that merging is arithmetic on arrays: each group has one, whatever its slot.

Values of a group column have codes in the order in which they came; a group's codes are packed into one integer, whose
number is looked up in a table if all possible ones are few, and searched for otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
"""A table of numbers has at most so many places (16 MiB)."""
_LEAST_BITS = 4


class TooLargeError(Exception):
    """Numbers do not fit here, or only DuckDB can tell values apart; DuckDB must merge them."""


class GroupNumbering:
    """The groups of one synopsis.

    Args:
        columns: How many columns a group has.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.bits = 62 // max(1, columns)
        """Of one column's code."""
        self.known: list[pa.Array] = []
        """The distinct values of each group column; their places are codes."""
        self.packed: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The codes of each group, by number."""
        self._room: tuple[int, ...] = ()
        self._table: npt.NDArray[np.int32] | None = None
        self._sorted: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self._ranks: dict[int, tuple[int, npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None] = {}

    def __len__(self) -> int:
        return len(self.packed)

    def numbers(self, rows: pa.Table) -> npt.NDArray[np.int32]:
        """The numbers of a node's groups, columns ``g0…``; new groups get the next ones."""
        packed = np.zeros(rows.num_rows, np.int64)
        for at in range(self.columns):
            packed |= self._coded(at, rows.column(f"g{at}").combine_chunks()) << (self.bits * at)
        found = self._find(packed)
        missing = found < 0
        if missing.any():
            self._add(np.unique(packed[missing]))
            found = self._find(packed)
        return found.astype(np.int32)

    def _coded(self, at: int, column: pa.Array) -> npt.NDArray[np.int64]:
        if pa.types.is_integer(column.type) and column.type != pa.uint64():
            column = column.cast(pa.int64())  # nodes have numbers as narrow as they fit
        if len(self.known) <= at:
            self.known.append(column.slice(0, 0))
        if column.type != self.known[at].type:
            column = column.cast(self.known[at].type)
        column = _comparable(column)
        codes = pc.index_in(column, value_set=self.known[at])
        if codes.null_count:
            fresh = pc.unique(column.filter(codes.is_null()))
            self.known[at] = pa.concat_arrays([self.known[at], fresh])
            codes = pc.index_in(column, value_set=self.known[at])
        if len(self.known[at]) >= 1 << self.bits:
            raise TooLargeError
        return np.asarray(codes.to_numpy(), np.int64)

    # -- from packed codes to numbers --------------------------------------------------------------------------------

    def _find(self, packed: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The number of each, -1 where there is none yet."""
        room = tuple(max(_LEAST_BITS, len(values).bit_length()) for values in self.known)
        if sum(room) <= _TABLE_BITS:
            if self._table is None or room != self._room:
                self._room, self._table = room, np.full(1 << sum(room), -1, np.int32)
                self._table[self._dense(self.packed)] = np.arange(len(self.packed))
            return self._table[self._dense(packed)]
        if self._sorted is None:
            order = np.argsort(self.packed)
            self._table, self._sorted = None, (self.packed[order], order)
        keys, order = self._sorted
        if not len(keys):
            return np.full(len(packed), -1)
        places = np.minimum(np.searchsorted(keys, packed), len(keys) - 1)
        return np.where(keys[places] == packed, order[places], -1)

    def _dense(self, packed: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Places in the table."""
        places, shift, mask = np.zeros(len(packed), np.int64), 0, (1 << self.bits) - 1
        for at, bits in enumerate(self._room):
            places |= ((packed >> (self.bits * at)) & mask) << shift
            shift += bits
        return places

    def _add(self, fresh: npt.NDArray[np.int64]) -> None:
        before = len(self.packed)
        self.packed = np.concatenate([self.packed, fresh])
        if self._sorted is not None:
            keys, order = self._sorted
            places = np.searchsorted(keys, fresh)
            numbers = np.arange(before, len(self.packed))
            self._sorted = np.insert(keys, places, fresh), np.insert(order, places, numbers)
        if len(self.packed) >= 1 << 31:
            raise TooLargeError
        if self._table is not None:
            self._table[self._dense(fresh)] = np.arange(before, len(self.packed))

    # -- and back ----------------------------------------------------------------------------------------------------

    def codes(self, at: int, numbers: npt.NDArray[Any] | None = None) -> npt.NDArray[np.int64]:
        """The codes that groups have in a column; of all groups if none are given."""
        packed = self.packed if numbers is None else self.packed[numbers]
        return (packed >> (self.bits * at)) & ((1 << self.bits) - 1)

    def values(self, at: int, numbers: npt.NDArray[Any] | None = None) -> pa.Array:
        """The values that groups have in a column."""
        values = self.known[at] if at < len(self.known) else pa.nulls(0)
        return values.take(pa.array(self.codes(at, numbers)))

    def ranks(self, at: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None:
        """Integers in the order of a column's values, by code, and which are null; None if only DuckDB knows it."""
        if at >= len(self.known):
            return None
        values, known = self.known[at], self._ranks.get(at)
        if known is None or known[0] != len(values):
            ordered = _rank_values(values)
            known = None if ordered is None else (len(values), ordered, values.is_null().to_numpy(zero_copy_only=False))
            self._ranks[at] = known
        return None if known is None else known[1:]


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
    """Whether a synopsis can be passed over here."""
    return entry.kind == kinds.BASIC and would_use_arrays(entry.expiring, len(entry.groups), entry.columns)


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

    @property
    def stops(self) -> npt.NDArray[np.int64]:
        """Where each run ends."""
        return np.append(self.starts[1:], len(self.numbers))


@dataclass
class ArraySynopsis:
    """A basic synopsis in memory, as arrays."""

    entry: SynopsisEntry
    numbering: GroupNumbering
    slots: dict[Node, _SlotArrays] = field(default_factory=dict)
    rankings: dict[int, Ranking] = field(default_factory=dict)
    decoded: tuple[int, Ranking | None, dict[str, pa.Array]] | None = None

    def load(self, store: Store, there: Mapping[Node, int], wanted: Iterable[Node]) -> bool:
        """Bring nodes into memory; false if one has been changed again meanwhile."""
        self.slots = {node: slot for node, slot in self.slots.items() if there.get(node) == slot.changed}
        missing = [node for node in wanted if node in there and node not in self.slots]
        if not missing:
            return True

        def read(tables: Tables) -> dict[Node, node_store.StoredNode | None]:
            return {node: node_store.read_node(tables, self.entry, node) for node in missing}

        for node, kept in store.catalog.read(read).items():
            if kept is None or kept.changed != there[node]:
                return False
            self.slots[node] = self._slot(kept)
        return True

    def _slot(self, kept: node_store.StoredNode) -> _SlotArrays:
        rows = kept.table()
        numbers = self.numbering.numbers(rows)
        order = np.argsort(numbers, kind="stable")  # totals are then gone through in one direction
        values = [
            np.ascontiguousarray(_to_numbers(rows.column(f"c{at}"), column)[order])
            for at, column in enumerate(self.entry.columns)
        ]
        same = [
            next(first for first in range(at + 1) if self._alike(first, at) and np.array_equal(values[first], own))
            for at, own in enumerate(values)
        ]
        # A group is once in each of the tallies that a node is made of.
        largest = [_greatest_magnitude(own) * len(kept.bodies) for own in values]
        return _SlotArrays(kept.changed, numbers[order], values, same, largest)

    def _alike(self, one: int, other: int) -> bool:
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
            _neutral_values(column, len(self.numbering) if source.get(at) == at else 0)
            for at, column in enumerate(self.entry.columns)
        ]
        for at, first in source.items():
            totals[at] = totals[first]
            if self.entry.columns[at].merge == "sum" and sum(slot.largest[at] for slot in slots) > _SUM_LIMIT:
                raise TooLargeError
        youngest, merged = slide, [at for at, first in source.items() if at == first]
        for length in ordered:
            for number in range(youngest, slide - length, -1):
                self._add(totals, merged, kinds.slot_node(number))
            youngest = slide - length
            yield length, totals

    def _sources(self, slots: Sequence[_SlotArrays], columns: Iterable[int]) -> dict[int, int]:
        """Which columns are merged, and for each the one that has the same values in every slot, which need be once."""
        found = {}
        for at in sorted({0, *columns}):
            first = {slot.same[at] for slot in slots}
            found[at] = first.pop() if len(first) == 1 else at
            if found[at] not in found or not self._alike(found[at], at):
                found[at] = at
        return found

    def _add(self, totals: list[Numbers], columns: Sequence[int], node: Node) -> None:
        slot = self.slots.get(node)
        if slot is None:
            return
        for at in columns:
            kernels.merge(totals[at], slot.numbers, slot.values[at], self.entry.columns[at].merge)

    def rankable(self, column: int) -> bool:
        """Whether the values of a group column are whole numbers."""
        return self.entry.groups[column][2] in _INTEGER_TYPES - {"HUGEINT"}

    def ranked(self, column: int) -> Ranking:
        """Groups in the order of a group column's values."""
        known, numbering = self.rankings.get(column), self.numbering
        if known is not None and len(known.numbers) == len(numbering):
            return known
        codes = numbering.codes(column)
        others = numbering.packed & ~(((1 << numbering.bits) - 1) << (numbering.bits * column))
        values = numbering.known[column] if numbering.known else pa.array([], pa.int64())
        whole = values.cast(pa.int64()).fill_null(_HIGH).to_numpy()
        rank = np.argsort(np.argsort(whole, kind="stable"))
        valued = values.is_valid().to_numpy(zero_copy_only=False)
        # With ranks in the lowest bits, and what was there in the column's own, one sort gives both orders.
        first = numbering.packed & ((1 << numbering.bits) - 1) if column else np.int64(0)
        places = np.argsort(others - first | first << (numbering.bits * column) | rank[codes])
        begins = np.ones(len(places), bool)
        begins[1:] = others[places][1:] != others[places][:-1]
        ordered = codes[places]
        found = self.rankings[column] = Ranking(
            column, places, np.cumsum(begins) - 1, begins.nonzero()[0], valued[ordered], whole[ordered]
        )
        return found

    def table(self, totals: Sequence[Numbers], ranking: Ranking | None) -> pa.Table:
        """All groups with the columns that were wanted; who reads it leaves out those where ``c0`` is 0.

        If ranked, there is beside each count ``c`` also ``h_c``, how many values are not after it among groups that
        are equal otherwise, and ``t_c``, how many there are.
        """
        columns: dict[str, pa.Array] = dict(self._groups(ranking))
        for at, (column, total) in enumerate(zip(self.entry.columns, totals, strict=True)):
            if len(total) != len(self.numbering):
                continue  # nobody wants it
            own = total.copy() if ranking is None else total[ranking.numbers]
            empty = {"min": own == _HIGH, "max": own == _LOW}.get(column.merge)
            columns[f"c{at}"] = pa.array(own, mask=empty) if empty is not None else pa.array(own)
            if ranking is not None and len(own):
                counts = np.where(ranking.valued, own, 0)
                upto = np.cumsum(counts)
                before = (upto - counts)[ranking.starts]
                columns[f"h_c{at}"] = pa.array(upto - before[ranking.parts])
                columns[f"t_c{at}"] = pa.array((upto[ranking.stops - 1] - before)[ranking.parts])
        return pa.table(columns)

    def _groups(self, ranking: Ranking | None) -> dict[str, pa.Array]:
        """The group columns of all groups, by number or ranked; they change only when a new group comes."""
        known = self.decoded
        if known is not None and known[0] == len(self.numbering) and known[1] is ranking:
            return known[2]
        numbers = None if ranking is None else ranking.numbers
        found = {f"g{at}": self.numbering.values(at, numbers) for at in range(len(self.entry.groups))}
        self.decoded = len(self.numbering), ranking, found
        return found


def _neutral_values(column: SynopsisColumn, count: int) -> Numbers:
    if column.merge == "sum":
        return np.zeros(count, np.float64 if column.type == "DOUBLE" else np.int64)
    return np.full(count, _HIGH if column.merge == "min" else _LOW, np.int64)


def _to_numbers(column: pa.ChunkedArray, kept: SynopsisColumn) -> Numbers:
    """A kept column as numbers, as narrow as they fit; nothing counts as what changes no merge."""
    neutral = {"sum": 0, "min": _HIGH, "max": _LOW}[kept.merge]
    if kept.type == "DOUBLE":
        floats: Numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        return floats
    try:
        bare = column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise TooLargeError from None
    whole: Numbers = bare.fill_null(neutral).to_numpy()
    if kept.merge != "sum" and (whole == neutral).sum() > bare.null_count:
        raise TooLargeError  # a value that means nothing here
    largest = _greatest_magnitude(whole)
    return whole.astype(next((kind for kind in _NARROW_TYPES if largest <= np.iinfo(kind).max), np.int64))


def _greatest_magnitude(values: Numbers) -> int:
    """How far whole numbers are from 0; floats do not overflow."""
    if values.dtype == np.float64 or not len(values):
        return 0
    return max(abs(int(values.max())), abs(int(values.min())))
