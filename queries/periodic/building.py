"""Kept values of new rows by arithmetic on arrays: groups of whole numbers, and sums, counts and extremes of such.

All synopses of a slide share what was decoded; whatever is not so plain is built by DuckDB (`synopses.build_sql`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.indexes.model import Int64s
from windrow.native import groups as kernels
from windrow.queries.periodic.decompose import ROW
from windrow.queries.periodic.passes import Numbers
from windrow.records import SynopsisColumn, SynopsisEntry

_NAME = rf'(?:{ROW}\.)?(?:(\w+)|"([^"]+)")'
_COLUMN = re.compile(rf"\s*{_NAME}\s*")
_AGGREGATE = re.compile(rf"(sum|count|min|max)\(\s*{_NAME}\s*\)")
_KINDS = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER",
}  # fmt: skip
_ADDED = {kind for kind in _KINDS if kind.bit_width <= 32 and kind != pa.int64()}
"""Sums of so many bits do not overflow in 64, however many rows a slide has."""
_NARROW = (np.int8, np.int16, np.int32)
_NEUTRAL = {"sum": 0, "min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}
_MOST_BITS = 62


@dataclass(frozen=True)
class Recipe:
    """A synopsis that is built here: columns of the stream, by name."""

    entry: SynopsisEntry
    groups: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """What is done, with which column; none for the number of rows."""

    @property
    def names(self) -> set[str]:
        """The columns that it reads."""
        return {*self.groups, *(name for _, name in self.columns if name)}


def recipe(entry: SynopsisEntry, schema: pa.Schema) -> Recipe | None:
    """How a synopsis is built here; None if DuckDB must."""
    if entry.where or entry.expiring:
        return None
    groups = []
    for text, _, kind in entry.groups:
        name = _named(_COLUMN.fullmatch(text), schema, 1)
        if name is None or _KINDS.get(schema.field(name).type) != kind:
            return None
        groups.append(name)
    columns = [_column(column, schema) for column in entry.columns]
    found = tuple(column for column in columns if column is not None)
    return Recipe(entry, tuple(groups), found) if len(found) == len(columns) else None


def _named(match: "re.Match[str] | None", schema: pa.Schema, at: int) -> str | None:
    if match is None:
        return None
    wanted = (match[at] or match[at + 1]).lower()
    names = [name for name in schema.names if name.lower() == wanted]
    return names[0] if len(names) == 1 else None


def _column(column: SynopsisColumn, schema: pa.Schema) -> tuple[str, str] | None:
    if column.build == "count(*)":
        return "count", ""
    match = _AGGREGATE.fullmatch(column.build)
    name = _named(match, schema, 2)
    if match is None or name is None:
        return None
    kind = schema.field(name).type
    right = {"count": "BIGINT", "sum": "HUGEINT"}.get(match[1], _KINDS.get(kind))
    return (match[1], name) if column.type == right and (match[1] == "count" or kind in _ADDED) else None


class Rows:
    """New rows of one slot, decoded once for all synopses."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._codes: dict[str, _Codes] = {}
        self._valid: dict[str, npt.NDArray[np.int8] | None] = {}

    def codes(self, name: str) -> "_Codes":
        """A column as small numbers."""
        if name not in self._codes:
            self._codes[name] = _Codes(self.rows.column(name))
        return self._codes[name]

    def valid(self, name: str) -> npt.NDArray[np.int8] | None:
        """1 where a column is not null; None: everywhere."""
        if name not in self._valid:
            column = self.rows.column(name)
            self._valid[name] = (
                np.ascontiguousarray(column.is_valid().to_numpy().astype(np.int8)) if column.null_count else None
            )
        return self._valid[name]

    def build(self, recipe: Recipe) -> pa.Table:
        """What a synopsis keeps of them."""
        numbers, counts, arrays = self._grouped(recipe)
        valued: dict[str, Numbers] = {"": counts}
        made: dict[int, pa.Array] = {}
        """Counts as they are kept, each once: without nulls all columns have the same."""
        for _, name in recipe.columns:
            valid = self.valid(name) if name else None
            if name and name not in valued:
                valued[name] = counts if valid is None else _merged(numbers, valid, "sum", len(counts))
        for what, name in recipe.columns:
            if what == "count":
                counted = valued[name]
                if id(counted) not in made:
                    made[id(counted)] = _array(counted, None)
                arrays.append(made[id(counted)])
                continue
            column = self.rows.column(name)
            filled = column.cast(pa.int64()).fill_null(_NEUTRAL[what]) if column.null_count else column
            wide = filled.to_numpy() if filled.type in (pa.int8(), pa.int16(), pa.int32()) else _whole(filled)
            total = _merged(numbers, np.ascontiguousarray(wide), what, len(counts))
            arrays.append(_array(total, valued[name] == 0 if column.null_count else None))
        names = [f"g{at}" for at in range(len(recipe.groups))] + [f"c{at}" for at in range(len(recipe.columns))]
        return pa.table(arrays, names=names)

    def _grouped(self, recipe: Recipe) -> tuple[npt.NDArray[np.int32], Int64s, list[pa.Array]]:
        """The number of each row's group, how many rows each group has, and the groups' columns."""
        codes = [self.codes(name) for name in recipe.groups]
        *shifts, bits = accumulate((each.bits for each in codes), initial=0)
        keys = np.zeros(self.rows.num_rows, np.int64)
        if codes:
            keys = kernels.codes([each.values for each in codes], [each.least for each in codes], shifts)
        numbers, distinct, counts = kernels.number(keys, bits)
        arrays = [
            each.decoded(distinct >> shift, last=at == len(codes) - 1)
            for at, (each, shift) in enumerate(zip(codes, shifts, strict=True))
        ]
        return numbers, counts, arrays

    def fits(self, recipe: Recipe) -> bool:
        """Whether its groups can be told apart by one number."""
        return sum(self.codes(name).bits for name in recipe.groups) <= _MOST_BITS


class _Codes:
    """A column's values counted from its least one; null is one more than the greatest."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.nulls = column.null_count > 0
        signed = pa.types.is_signed_integer(column.type)
        given = column.drop_null() if self.nulls else column
        self._column = column
        self._given: npt.NDArray[Any] = np.ascontiguousarray(given.to_numpy()) if signed else _whole(given)
        there = len(self._given) > 0
        self.least = int(self._given.min()) if there else 0
        self.span = int(self._given.max()) - self.least + 1 if there else 0

    @property
    def bits(self) -> int:
        """Of a code."""
        return (self.span - 1 + self.nulls).bit_length() if self.span or self.nulls else 0

    @cached_property
    def values(self) -> npt.NDArray[Any]:
        """Of each row; a null is what the code after the last one stands for."""
        if not self.nulls:
            return self._given
        filled = _whole(self._column.cast(pa.int64()).fill_null(self.least)) - self.least
        return np.where(self._column.is_null().to_numpy(), self.span, filled) + self.least

    def decoded(self, codes: Int64s, *, last: bool) -> pa.Array:
        """The values of codes; unless it is the last column, those of the next ones stand above them."""
        own = codes if last else codes & ((1 << self.bits) - 1)
        kind = _narrowest(self.least, self.least + max(self.span - 1, 0))
        nulls = own == self.span if self.nulls else None
        return pa.array((own + self.least).astype(kind), mask=nulls)


def _whole(column: pa.ChunkedArray) -> Int64s:
    return np.asarray(column.to_numpy(), np.int64)


def _merged(numbers: npt.NDArray[np.int32], values: Numbers, how: str, count: int) -> Numbers:
    totals = np.full(count, _NEUTRAL[how], np.int64)
    kernels.merge(totals, numbers, values, how)
    return totals


def _array(values: Numbers, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Numbers as narrow as they fit: what is kept is written with every slide."""
    if nulls is not None:
        values = np.where(nulls, 0, values)
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return pa.array(values.astype(_narrowest(least, most)), mask=nulls)


def _narrowest(least: int, most: int) -> type[np.signedinteger[Any]]:
    return next((k for k in _NARROW if np.iinfo(k).min <= least and most <= np.iinfo(k).max), np.int64)


def by_slot(rows: pa.Table, slots: Int64s) -> dict[int, Rows]:
    """New rows, cut by their event slots."""
    if not len(slots):
        return {}
    if int(slots.min()) == int(slots.max()):
        return {int(slots[0]): Rows(rows)}
    return {int(slot): Rows(rows.filter(pa.array(slots == slot))) for slot in np.unique(slots)}


def names(recipes: Sequence[Recipe]) -> set[str]:
    """The columns that some of them read."""
    return {name for each in recipes for name in each.names}
