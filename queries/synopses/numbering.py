"""Numbers for the groups of a synopsis, so that merging is arithmetic on arrays: each group has one, whatever its slot.

Values of a group column have codes in the order in which they came; a group's codes are packed into one integer, whose
number is looked up in a table if all possible ones are few, and searched for otherwise.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_TABLE_BITS = 22
"""A table of numbers has at most so many places (16 MiB)."""
_LEAST_BITS = 4


class TooLargeError(Exception):
    """Numbers do not fit here, or only DuckDB can tell values apart; DuckDB must merge them."""


class Numbering:
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
            ordered = _ordered(values)
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


def _ordered(values: pa.Array) -> npt.NDArray[np.int64] | None:
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
