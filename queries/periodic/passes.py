"""One pass over a basic synopsis, from youngest slot to oldest, that gives every shorter window on the way (rule CS2).

Groups are numbered once, so that merging a slot is one addition into arrays by number. Only sums, counts, minima and
maxima of whole numbers and floats are done here; everything else is merged by DuckDB.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.catalog import Tables
from windrow.queries.periodic import kinds, synopses
from windrow.queries.periodic.kinds import Node
from windrow.records import SynopsisColumn, SynopsisEntry
from windrow.store import Store

Numbers = npt.NDArray[Any]
_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_LIMIT = 1 << 62
_LOW, _HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class TooLargeError(Exception):
    """Numbers do not fit here; DuckDB must merge them."""


def possible(entry: SynopsisEntry) -> bool:
    """Whether a synopsis can be passed over here."""
    return entry.kind == kinds.BASIC and quick(entry.expiring, len(entry.groups), entry.columns)


def quick(expiring: bool, groups: int, columns: Iterable[SynopsisColumn]) -> bool:
    """Whether a synopsis of such columns could be, if it were a basic one."""
    return not expiring and groups <= 3 and all(map(_simple, columns))


def _simple(column: SynopsisColumn) -> bool:
    if column.merge == "sum":
        return column.type in _WHOLE or column.type == "DOUBLE"
    return column.merge in ("min", "max") and column.type in _WHOLE - {"HUGEINT"}


@dataclass
class _Slot:
    """A node as arrays."""

    changed: int
    numbers: npt.NDArray[np.int64]
    """Of its groups."""
    values: list[Numbers]


@dataclass(frozen=True)
class _Ranking:
    """Groups in the order of their other columns and then of one column's values."""

    column: int
    count: int
    """Groups that there were when it was made."""
    places: npt.NDArray[np.int64]
    """In `keys`."""
    parts: npt.NDArray[np.int64]
    """Which run of equal other columns each belongs to."""
    starts: npt.NDArray[np.int64]
    valued: npt.NDArray[np.bool_]
    """Where the value is not null."""


@dataclass
class Pass:
    """A basic synopsis in memory, as arrays."""

    entry: SynopsisEntry
    known: list[pa.Array] = field(default_factory=list)
    """The distinct values of each group column; their places are codes."""
    keys: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Codes of all groups in one number each, ascending."""
    order: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The number of each of these groups."""
    slots: dict[Node, _Slot] = field(default_factory=dict)
    ranking: "_Ranking | None" = None
    decoded: tuple[int, "_Ranking | None", dict[str, pa.Array]] | None = None

    @property
    def bits(self) -> int:
        """Of one column's code."""
        return 62 // max(1, len(self.entry.groups))

    def load(self, store: Store, there: Mapping[Node, int], wanted: Iterable[Node]) -> bool:
        """Bring nodes into memory; false if one has been changed again meanwhile."""
        self.slots = {node: slot for node, slot in self.slots.items() if there.get(node) == slot.changed}
        missing = [node for node in wanted if node in there and node not in self.slots]
        if not missing:
            return True

        def read(tables: Tables) -> dict[Node, synopses.Kept | None]:
            return {node: synopses.fetch(tables, self.entry, node) for node in missing}

        for node, kept in store.catalog.read(read).items():
            if kept is None or kept.changed != there[node]:
                return False
            self.slots[node] = self._slot(kept)
        return True

    def _slot(self, kept: synopses.Kept) -> _Slot:
        rows = kept.table()
        values = [_values(rows.column(f"c{at}"), column) for at, column in enumerate(self.entry.columns)]
        return _Slot(kept.changed, self._numbered(rows), values)

    def _numbered(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """The numbers of a node's groups; new groups get the next ones."""
        packed = np.zeros(rows.num_rows, np.int64)
        for at in range(len(self.entry.groups)):
            column = rows.column(f"g{at}").combine_chunks()
            if len(self.known) <= at:
                self.known.append(column.slice(0, 0))
            fresh = pc.unique(column)
            unseen = pc.is_null(pc.index_in(fresh, value_set=self.known[at]))
            if pc.any(unseen).as_py():
                self.known[at] = pa.concat_arrays([self.known[at], fresh.filter(unseen)])
            if len(self.known[at]) >= 1 << self.bits:
                raise TooLargeError
            packed |= pc.index_in(column, value_set=self.known[at]).to_numpy().astype(np.int64) << (self.bits * at)
        places = np.searchsorted(self.keys, packed)
        inside = np.minimum(places, max(0, len(self.keys) - 1))
        missing = self.keys[inside] != packed if len(self.keys) else np.ones(len(packed), bool)
        if missing.any():
            self._add_groups(np.unique(packed[missing]))
            places = np.searchsorted(self.keys, packed)
        return self.order[places] if len(self.order) else places

    def _add_groups(self, fresh: npt.NDArray[np.int64]) -> None:
        places = np.searchsorted(self.keys, fresh)
        numbers = np.arange(len(self.keys), len(self.keys) + len(fresh))
        self.keys, self.order = np.insert(self.keys, places, fresh), np.insert(self.order, places, numbers)

    def windows(self, slide: int, lengths: Sequence[int], ranked: int | None = None) -> dict[int, pa.Table]:
        """The merged groups and columns of each window that ends at a slide.

        Args:
            slide: The last slot.
            lengths: Of the windows, in slots.
            ranked: A group column whose values are counted: beside each count ``c`` there is then ``h_c``, how many
                values are not after it among groups that are equal otherwise, and ``t_c``, how many there are.
        """
        totals = [_start(column, len(self.keys)) for column in self.entry.columns]
        found, youngest = {}, slide
        bound = [0] * len(totals)
        ranking = None if ranked is None else self._ranked(ranked)
        for length in sorted(set(lengths)):
            for slot in range(youngest, slide - length, -1):
                self._add(totals, bound, self.slots.get(kinds.slot_node(slot)))
            youngest = slide - length
            found[length] = self._table(totals, ranking)
        return found

    def rankable(self, column: int) -> bool:
        """Whether the values of a group column are whole numbers."""
        return self.entry.groups[column][2] in _WHOLE - {"HUGEINT"}

    def _ranked(self, column: int) -> _Ranking:
        known = self.ranking
        if known is not None and known.column == column and known.count == len(self.keys):
            return known
        mask = (1 << self.bits) - 1
        codes, others = (self.keys >> (self.bits * column)) & mask, self.keys & ~(mask << (self.bits * column))
        values = self.known[column] if self.known else pa.array([], pa.int64())
        rank = np.argsort(np.argsort(values.cast(pa.int64()).fill_null(_HIGH).to_numpy(), kind="stable"))
        valued = values.is_valid().to_numpy(zero_copy_only=False)
        places = np.lexsort((rank[codes], others))
        begins = np.ones(len(places), bool)
        begins[1:] = others[places][1:] != others[places][:-1]
        ranking = _Ranking(
            column, len(self.keys), places, np.cumsum(begins) - 1, begins.nonzero()[0], valued[codes[places]]
        )
        self.ranking = ranking
        return ranking

    def _add(self, totals: list[Numbers], bound: list[int], slot: _Slot | None) -> None:
        if slot is None:
            return
        for at, (column, total, values) in enumerate(zip(self.entry.columns, totals, slot.values, strict=True)):
            if column.merge == "sum":
                if values.dtype == np.int64 and len(values):
                    bound[at] += int(max(abs(int(values.max())), abs(int(values.min()))))
                    if bound[at] > _LIMIT:
                        raise TooLargeError
                total[slot.numbers] += values
            elif column.merge == "min":
                total[slot.numbers] = np.minimum(total[slot.numbers], values)
            else:
                total[slot.numbers] = np.maximum(total[slot.numbers], values)

    def _table(self, totals: Sequence[Numbers], ranking: _Ranking | None) -> pa.Table:
        """All groups, also those without rows: who reads it leaves out where ``c0`` is 0."""
        columns: dict[str, pa.Array] = dict(self._groups(ranking))
        for at, (column, total) in enumerate(zip(self.entry.columns, totals, strict=True)):
            own = total.copy() if ranking is None else total[self.order[ranking.places]]
            empty = {"min": own == _HIGH, "max": own == _LOW}.get(column.merge)
            columns[f"c{at}"] = pa.array(own, mask=empty) if empty is not None else pa.array(own)
            if ranking is not None and len(own):
                counts = np.where(ranking.valued, own, 0)
                upto = np.cumsum(counts)
                before = (upto - counts)[ranking.starts]
                ends = np.append(ranking.starts[1:], len(upto)) - 1
                columns[f"h_c{at}"] = pa.array(upto - before[ranking.parts])
                columns[f"t_c{at}"] = pa.array((upto[ends] - before)[ranking.parts])
        return pa.table(columns)

    def _groups(self, ranking: _Ranking | None) -> dict[str, pa.Array]:
        """The group columns of all groups, by number or ranked; they change only when a new group comes."""
        known = self.decoded
        if known is not None and known[0] == len(self.keys) and known[1] is ranking:
            return known[2]
        if ranking is None:
            keys = np.empty(len(self.keys), np.int64)
            keys[self.order] = self.keys
        else:
            keys = self.keys[ranking.places]
        mask, found = (1 << self.bits) - 1, {}
        for at in range(len(self.entry.groups)):
            values = self.known[at] if at < len(self.known) else pa.nulls(0)
            found[f"g{at}"] = values.take(pa.array((keys >> (self.bits * at)) & mask))
        self.decoded = len(self.keys), ranking, found
        return found


def _start(column: SynopsisColumn, count: int) -> Numbers:
    if column.merge == "sum":
        return np.zeros(count, np.float64 if column.type == "DOUBLE" else np.int64)
    return np.full(count, _HIGH if column.merge == "min" else _LOW, np.int64)


def _values(column: pa.ChunkedArray, kept: SynopsisColumn) -> Numbers:
    """A kept column as numbers; nothing counts as what changes no merge."""
    neutral = {"sum": 0, "min": _HIGH, "max": _LOW}[kept.merge]
    if kept.type == "DOUBLE":
        floats: Numbers = column.fill_null(0.0).to_numpy()
        return floats
    try:
        whole: Numbers = column.cast(pa.int64()).fill_null(neutral).to_numpy()
    except pa.ArrowInvalid:
        raise TooLargeError from None
    return whole
