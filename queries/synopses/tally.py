"""Tallies of spooled rows: an append puts what basic synopses will keep of its rows beside them, by event slot.

The slide that takes the rows in only names these tallies, as it names the files, and does not read the rows again. A
synopsis that lacks the tally of a file (it is younger than the append, or Spark wrote the file) is built from the rows.

Kept values of new rows by arithmetic on arrays: groups of whole numbers, and sums, counts and extremes of such.

All synopses of a slide share what was decoded; whatever is not so plain is built by DuckDB (`synopses.build_sql`).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.catalog.environment import Tables
from windrow.catalog.records import StreamEntry, SynopsisColumn, SynopsisEntry
from windrow.indexes.row_model import Int64s
from windrow.native import group_aggregate as kernels
from windrow.queries.synopses import kinds, node_store
from windrow.queries.synopses.array_engine import Numbers
from windrow.queries.synopses.decompose import ROW_ALIAS
from windrow.queries.synopses.kinds import Node
from windrow.slide_hooks import SlideContext
from windrow.store import Store

_NAME = rf'(?:{ROW_ALIAS}\.)?(?:(\w+)|"([^"]+)")'
_COLUMN = re.compile(rf"\s*{_NAME}\s*")
_AGGREGATE = re.compile(rf"(sum|count|min|max)\(\s*{_NAME}\s*\)")
_KINDS = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER",
}  # fmt: skip
_ADDED = {kind for kind in _KINDS if kind.bit_width <= 32 and kind != pa.int64()}
"""Sums of so many bits do not overflow in 64, however many rows a slide has."""
_NEUTRAL = {"sum": 0, "min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}
_MAX_KEY_BITS = 62
_ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class BuildPlan:
    """A synopsis that is built here: columns of the stream, by name."""

    groups: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """What is done, with which column; none for the number of rows."""

    @cached_property
    def names(self) -> frozenset[str]:
        """The columns that it reads."""
        return frozenset({*self.groups, *(name for _, name in self.columns if name)})

    @cached_property
    def kept(self) -> list[str]:
        """The columns that are kept."""
        return [f"g{at}" for at in range(len(self.groups))] + [f"c{at}" for at in range(len(self.columns))]


def make_build_plans(entries: Iterable[SynopsisEntry], schema: pa.Schema) -> list[BuildPlan | None]:
    """How each of some synopses is built here; None where DuckDB must. They are the same from slide to slide."""
    return list(
        _cached_build_plans(tuple((each.where, each.expiring, each.groups, each.columns) for each in entries), schema)
    )


@lru_cache(maxsize=64)
def _cached_build_plans(entries: tuple[tuple[Any, ...], ...], schema: pa.Schema) -> tuple[BuildPlan | None, ...]:
    return tuple(
        None if where or expiring else _make_build_plan(groups, columns, schema)
        for where, expiring, groups, columns in entries
    )


def _make_build_plan(
    grouped: Iterable[tuple[str, str, str]], kept: Iterable[SynopsisColumn], schema: pa.Schema
) -> BuildPlan | None:
    groups = []
    for text, _, kind in grouped:
        name = _column_name(_COLUMN.fullmatch(text), schema, 1)
        if name is None or _KINDS.get(schema.field(name).type) != kind:
            return None
        groups.append(name)
    columns = [_column(column, schema) for column in kept]
    found = tuple(column for column in columns if column is not None)
    return BuildPlan(tuple(groups), found) if len(found) == len(columns) else None


def _column_name(match: "re.Match[str] | None", schema: pa.Schema, at: int) -> str | None:
    if match is None:
        return None
    wanted = (match[at] or match[at + 1]).lower()
    names = [name for name in schema.names if name.lower() == wanted]
    return names[0] if len(names) == 1 else None


def _column(column: SynopsisColumn, schema: pa.Schema) -> tuple[str, str] | None:
    if column.build == "count(*)":
        return "count", ""
    match = _AGGREGATE.fullmatch(column.build)
    name = _column_name(match, schema, 2)
    if match is None or name is None:
        return None
    kind = schema.field(name).type
    right = {"count": "BIGINT", "sum": "HUGEINT"}.get(match[1], _KINDS.get(kind))
    return (match[1], name) if column.type == right and (match[1] == "count" or kind in _ADDED) else None


class SlotRows:
    """New rows of one slot, decoded once for all synopses."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._columns: dict[str, _Column] = {}

    def column(self, name: str) -> "_Column":
        """One of them as numbers."""
        if name not in self._columns:
            self._columns[name] = _Column(self.rows.column(name))
        return self._columns[name]

    def build(self, recipe: BuildPlan) -> pa.Table:
        """What a synopsis keeps of them, in the order of the groups."""
        groups = [self.column(name) for name in recipe.groups]
        added = {(what, name): self.column(name).added(what) for what, name in recipe.columns if what != "count"}
        for _, name in recipe.columns:
            valid = self.column(name).valid if name else None
            if valid is not None:
                added["count", name] = valid
        keys, counts, found = kernels.tally(
            self.rows.num_rows,
            [(each.keys, each.least, each.bits) for each in groups],
            [(values, "sum" if what == "count" else what) for (what, _), values in added.items()],
        )
        totals = dict(zip(added, found, strict=True))
        every = pa.array(counts)
        arrays = [each.decoded(values) for each, values in zip(groups, keys, strict=True)]
        for what, name in recipe.columns:
            valued = totals.get(("count", name))
            if what == "count":
                arrays.append(every if valued is None else pa.array(valued))
            else:
                arrays.append(_array(totals[what, name], None if valued is None else valued == 0))
        return pa.table(arrays, names=recipe.kept)

    def fits(self, recipe: BuildPlan) -> bool:
        """Whether its groups can be told apart by one number."""
        return sum(self.column(name).bits for name in recipe.groups) <= _MAX_KEY_BITS


class _Column:
    """Whole numbers; as keys they are counted from the least one, and null is one more than the greatest."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column
        self._nulls = column.is_null().to_numpy() if column.null_count else None

    @cached_property
    def _there(self) -> Numbers:
        """What is not null; asked only of whole numbers, for others may be counted too."""
        there = self._column.drop_null() if self._column.null_count else self._column
        signed = pa.types.is_signed_integer(there.type)
        return np.ascontiguousarray(there.to_numpy()) if signed else np.asarray(there.to_numpy(), np.int64)

    @cached_property
    def least(self) -> int:
        """Of the values."""
        return int(self._there.min()) if len(self._there) else 0

    @cached_property
    def _span(self) -> int:
        return int(self._there.max()) - self.least + 1 if len(self._there) else 0

    @cached_property
    def bits(self) -> int:
        """Of what is above the least one."""
        return max(self._span - (self._nulls is None), 0).bit_length()

    @cached_property
    def valid(self) -> Numbers | None:
        """1 where there is a value; None: everywhere."""
        return None if self._nulls is None else (~self._nulls).astype(np.int8)

    @cached_property
    def keys(self) -> Numbers:
        """Of each row."""
        return self._filled(self.least + self._span)

    def added(self, what: str) -> Numbers:
        """Of each row; what is null changes nothing."""
        return self._filled(_NEUTRAL[what])

    def _filled(self, instead: int) -> Numbers:
        """Of each row, with something for nulls; it may be one more than there is room for."""
        if self._nulls is None:
            return self._there
        filled = np.full(len(self._nulls), np.array(instead & _ALL_BITS, np.uint64).astype(np.int64))
        filled[~self._nulls] = self._there
        return filled

    def decoded(self, keys: Numbers) -> pa.Array:
        """Keys of groups as they are kept."""
        return _array(keys, None if self._nulls is None else keys.astype(np.int64) - self.least == self._span)


def _array(values: Numbers, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    return pa.array(values) if nulls is None else pa.array(np.where(nulls, 0, values), mask=nulls)


def split_slots(rows: pa.Table, slots: Int64s, most: int) -> dict[int, SlotRows] | None:
    """New rows, cut by their event slots; None if those are more than `most`."""
    if not len(slots):
        return {}
    if int(slots.min()) == int(slots.max()):
        return {int(slots[0]): SlotRows(rows)}
    distinct = np.unique(slots)
    if len(distinct) > most:
        return None
    return {int(slot): SlotRows(rows.filter(pa.array(slots == slot))) for slot in distinct}


def list_columns(recipes: Iterable[BuildPlan]) -> set[str]:
    """The columns that some of them read."""
    return {name for each in recipes for name in each.names}


_MAX_SLOTS = 8
"""Rows of more slots than this are left to the slide: a tally of few rows saves nothing."""
MAX_TALLIES_PER_NODE = 8
"""Tallies that one node may be made of; more are merged into one."""


@dataclass(frozen=True)
class FileTallies:
    """What synopses will keep of one file's rows."""

    parts: tuple[tuple[int, int, bytes], ...]
    """Number of the synopsis, slot, and the kept values as bytes."""

    def commit(self, tables: Tables, stream: int, spool: int) -> None:
        """Put them beside a spooled file, for the synopses that are still there."""
        kept = {entry.number for entry in node_store.read_entries(tables, stream)}
        for number, slot, body in self.parts:
            if number in kept:
                tables.put_raw("synopses", node_store.encode_tally_key(stream, number, spool, slot), body)


def tally_rows(store: Store, entry: StreamEntry, rows: pa.Table, slots: Int64s) -> FileTallies | None:
    """The tallies of rows that are about to be spooled; None if the slide had better make them.

    Args:
        store: The warehouse.
        entry: The stream.
        rows: All of them acceptable.
        slots: The event slot of each.
    """
    definition = entry.definition
    if definition.model.expires is not None:
        return None
    kept = store.catalog.read(lambda tables: node_store.read_entries(tables, entry.id))
    recipes = zip(kept, make_build_plans(kept, definition.schema), strict=True)
    plain = {each.number: recipe for each, recipe in recipes if recipe is not None and each.kind == kinds.BASIC}
    if not plain:
        return None
    wanted = list_columns(plain.values()) | {definition.model.time}
    cut = split_slots(rows.select([name for name in rows.column_names if name in wanted]), slots, _MAX_SLOTS)
    if cut is None:
        return None
    return FileTallies(
        tuple(
            (number, slot, node_store.encode_rows(own.build(recipe)))
            for number, recipe in plain.items()
            if all(own.fits(recipe) for own in cut.values())
            for slot, own in cut.items()
        )
    )


@dataclass
class AdoptedTallies:
    """What a slide makes of the tallies of one synopsis."""

    named: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    """New nodes, each by the spooled files whose tallies it is made of."""
    merged: dict[int, list[pa.Table]] = field(default_factory=dict)
    """By slot: tallies that go into a node that is there already, or are too many."""
    spent: list[bytes] = field(default_factory=list)
    """Where tallies lie that no node names."""


def adopt_tallies(tables: Tables, moving: SlideContext, entry: SynopsisEntry) -> AdoptedTallies | None:
    """The tallies of all rows that a slide takes in; None if some are lacking, and the rows must say."""
    if moving.spooled is None or entry.kind != kinds.BASIC:
        return None
    found: dict[int, list[int]] = {}
    for spool in moving.spooled:
        own = node_store.find_tallied_slots(tables, entry, spool)
        if not own:
            return None
        for slot in own:
            found.setdefault(slot, []).append(spool)
    model, floor = moving.entry.definition.model, moving.slide - entry.slots
    oldest = model.oldest(moving.now)
    adopted = AdoptedTallies()
    for slot, spools in found.items():
        keys = [node_store.encode_tally_key(entry.stream, entry.number, spool, slot) for spool in spools]
        node = kinds.slot_node(slot)
        if slot <= floor:
            adopted.spent += keys
        elif oldest is not None and model.slot_end(slot - 1) < oldest:
            return None  # some of its rows have died meanwhile
        elif len(spools) > MAX_TALLIES_PER_NODE or node_store.node_exists(tables, entry, node):
            adopted.merged[slot] = [node_store.decode_rows(bytes(tables.raw("synopses", at))) for at in keys]
            adopted.spent += keys
        else:
            adopted.named[node] = tuple(spools)
    return adopted


def find_leftover_tallies(tables: Tables, moving: SlideContext, entries: Sequence[SynopsisEntry]) -> list[bytes]:
    """Where tallies of the slide's files lie, of synopses that are made from the rows."""
    return [
        node_store.encode_tally_key(entry.stream, entry.number, spool, slot)
        for entry in entries
        for spool in moving.spooled or ()
        for slot in node_store.find_tallied_slots(tables, entry, spool)
    ]
