"""Tallies of spooled rows: an append stores what basic synopses will keep of its rows, by event slot.

The slide that takes the rows in only names these tallies and does not read the rows again. A synopsis that lacks the
tally of a file (it is younger than the append, or Spark wrote the file) is built from the rows. Tallies are computed
from integer columns by a kernel; DuckDB builds all other synopses (`node_store.build_sql`).
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
from windrow.queries.synopses import kinds, node_encoding, node_store
from windrow.queries.synopses.array_engine import Numbers
from windrow.queries.synopses.decomposition import ROW_ALIAS
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
    """How a synopsis is built by the kernel, from columns of the stream."""

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
        return [f"g{position}" for position in range(len(self.groups))] + [
            f"c{position}" for position in range(len(self.columns))
        ]


def make_build_plans(entries: Iterable[SynopsisEntry], schema: pa.Schema) -> list[BuildPlan | None]:
    """How each of some synopses is built here; None where DuckDB must. They are the same from slide to slide."""
    return list(
        _cached_build_plans(
            tuple((entry.where, entry.expiring, entry.groups, entry.columns) for entry in entries), schema
        )
    )


@lru_cache(maxsize=64)
def _cached_build_plans(entries: tuple[tuple[Any, ...], ...], schema: pa.Schema) -> tuple[BuildPlan | None, ...]:
    return tuple(
        None if where or expiring else _make_build_plan(groups, columns, schema)
        for where, expiring, groups, columns in entries
    )


def _make_build_plan(
    grouped: Iterable[tuple[str, str, str]], kept_columns: Iterable[SynopsisColumn], schema: pa.Schema
) -> BuildPlan | None:
    groups = []
    for text, _, kind in grouped:
        name = _column_name(_COLUMN.fullmatch(text), schema, 1)
        if name is None or _KINDS.get(schema.field(name).type) != kind:
            return None
        groups.append(name)
    columns = [_column(column, schema) for column in kept_columns]
    plain_columns = tuple(column for column in columns if column is not None)
    return BuildPlan(tuple(groups), plain_columns) if len(plain_columns) == len(columns) else None


def _column_name(match: "re.Match[str] | None", schema: pa.Schema, group: int) -> str | None:
    if match is None:
        return None
    wanted = (match[group] or match[group + 1]).lower()
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

    def build(self, plan: BuildPlan) -> pa.Table:
        """What a synopsis keeps of them, in the order of the groups."""
        groups = [self.column(name) for name in plan.groups]
        added = {
            (operation, name): self.column(name).added(operation)
            for operation, name in plan.columns
            if operation != "count"
        }
        for _, name in plan.columns:
            valid = self.column(name).valid if name else None
            if valid is not None:
                added["count", name] = valid
        keys, counts, results = kernels.tally(
            self.rows.num_rows,
            [(group.keys, group.least, group.bits) for group in groups],
            [(values, "sum" if operation == "count" else operation) for (operation, _), values in added.items()],
        )
        totals = dict(zip(added, results, strict=True))
        all_counts = pa.array(counts)
        arrays = [group.decoded(values) for group, values in zip(groups, keys, strict=True)]
        for operation, name in plan.columns:
            valued = totals.get(("count", name))
            if operation == "count":
                arrays.append(all_counts if valued is None else pa.array(valued))
            else:
                arrays.append(_array(totals[operation, name], None if valued is None else valued == 0))
        return pa.table(arrays, names=plan.kept)

    def fits(self, plan: BuildPlan) -> bool:
        """Whether its groups can be told apart by one number."""
        return sum(self.column(name).bits for name in plan.groups) <= _MAX_KEY_BITS


class _Column:
    """Whole numbers; as keys they are counted from the least one, and null is one more than the greatest."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column
        self._nulls = column.is_null().to_numpy() if column.null_count else None

    @cached_property
    def _present(self) -> Numbers:
        """What is not null; asked only of whole numbers, for others may be counted too."""
        not_null = self._column.drop_null() if self._column.null_count else self._column
        signed = pa.types.is_signed_integer(not_null.type)
        return np.ascontiguousarray(not_null.to_numpy()) if signed else np.asarray(not_null.to_numpy(), np.int64)

    @cached_property
    def least(self) -> int:
        """The least value."""
        return int(self._present.min()) if len(self._present) else 0

    @cached_property
    def _span(self) -> int:
        return int(self._present.max()) - self.least + 1 if len(self._present) else 0

    @cached_property
    def bits(self) -> int:
        """The bits that a value needs, counted from the least one."""
        return max(self._span - (self._nulls is None), 0).bit_length()

    @cached_property
    def valid(self) -> Numbers | None:
        """1 where there is a value; None: everywhere."""
        return None if self._nulls is None else (~self._nulls).astype(np.int8)

    @cached_property
    def keys(self) -> Numbers:
        """The key of each row."""
        return self._filled(self.least + self._span)

    def added(self, what: str) -> Numbers:
        """Of each row; what is null changes nothing."""
        return self._filled(_NEUTRAL[what])

    def _filled(self, instead: int) -> Numbers:
        """Of each row, with something for nulls; it may be one more than there is room for."""
        if self._nulls is None:
            return self._present
        filled = np.full(len(self._nulls), np.array(instead & _ALL_BITS, np.uint64).astype(np.int64))
        filled[~self._nulls] = self._present
        return filled

    def decoded(self, keys: Numbers) -> pa.Array:
        """Keys of groups as they are kept."""
        return _array(keys, None if self._nulls is None else keys.astype(np.int64) - self.least == self._span)


def _array(values: Numbers, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
    return pa.array(values) if nulls is None else pa.array(np.where(nulls, 0, values), mask=nulls)


def split_slots(rows: pa.Table, slots: Int64s, max_slots: int) -> dict[int, SlotRows] | None:
    """New rows, cut by their event slots; None if those are more than `max_slots`."""
    if not len(slots):
        return {}
    if int(slots.min()) == int(slots.max()):
        return {int(slots[0]): SlotRows(rows)}
    distinct = np.unique(slots)
    if len(distinct) > max_slots:
        return None
    return {int(slot): SlotRows(rows.filter(pa.array(slots == slot))) for slot in distinct}


def list_columns(plans: Iterable[BuildPlan]) -> set[str]:
    """The columns that some of them read."""
    return {name for plan in plans for name in plan.names}


_MAX_SLOTS = 8
"""Rows of more slots than this are left to the slide: a tally of few rows saves nothing. Not measured, as the next."""
MAX_TALLIES_PER_NODE = 8
"""Tallies that one node may be made of; more are merged into one."""


@dataclass(frozen=True)
class FileTallies:
    """What synopses will keep of one file's rows."""

    parts: tuple[tuple[int, int, bytes], ...]
    """Number of the synopsis, slot, and the kept values as bytes."""

    def commit(self, tables: Tables, stream: int, spool: int) -> None:
        """Put them beside a spooled file, for the synopses that are still there."""
        existing = {entry.number for entry in node_store.read_entries(tables, stream)}
        for number, slot, body in self.parts:
            if number in existing:
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
    synopses = store.catalog.read(lambda tables: node_store.read_entries(tables, entry.id))
    plans = zip(synopses, make_build_plans(synopses, definition.schema), strict=True)
    plain = {synopsis.number: plan for synopsis, plan in plans if plan is not None and synopsis.kind == kinds.BASIC}
    if not plain:
        return None
    wanted = list_columns(plain.values()) | {definition.model.time}
    rows_by_slot = split_slots(rows.select([name for name in rows.column_names if name in wanted]), slots, _MAX_SLOTS)
    if rows_by_slot is None:
        return None
    return FileTallies(
        tuple(
            (number, slot, node_encoding.encode_rows(slot_rows.build(plan)))
            for number, plan in plain.items()
            if all(slot_rows.fits(plan) for slot_rows in rows_by_slot.values())
            for slot, slot_rows in rows_by_slot.items()
        )
    )


@dataclass
class AdoptedTallies:
    """What a slide makes of the tallies of one synopsis."""

    tally_nodes: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    """New nodes, each by the spooled files whose tallies it is made of."""
    merged: dict[int, list[pa.Table]] = field(default_factory=dict)
    """By slot: tallies that go into a node that is there already, or are too many."""
    obsolete_keys: list[bytes] = field(default_factory=list)
    """Keys of tallies that no node names."""


def adopt_tallies(tables: Tables, context: SlideContext, entry: SynopsisEntry) -> AdoptedTallies | None:
    """The tallies of all rows that a slide takes in; None if some are lacking, and the rows must say."""
    if context.spooled is None or entry.kind != kinds.BASIC:
        return None
    spools_by_slot: dict[int, list[int]] = {}
    for spool in context.spooled:
        slots = node_store.find_tallied_slots(tables, entry, spool)
        if not slots:
            return None
        for slot in slots:
            spools_by_slot.setdefault(slot, []).append(spool)
    model, floor = context.entry.definition.model, context.slide - entry.slots
    oldest = model.find_expiry_cutoff(context.now)
    adopted = AdoptedTallies()
    for slot, spools in spools_by_slot.items():
        keys = [node_store.encode_tally_key(entry.stream, entry.number, spool, slot) for spool in spools]
        node = kinds.slot_node(slot)
        if slot <= floor:
            adopted.obsolete_keys += keys
        elif oldest is not None and model.slot_end(slot - 1) < oldest:
            return None  # some of its rows have died meanwhile
        elif len(spools) > MAX_TALLIES_PER_NODE or node_store.read_change(tables, entry, node) is not None:
            adopted.merged[slot] = [node_encoding.decode_rows(bytes(tables.raw("synopses", key))) for key in keys]
            adopted.obsolete_keys += keys
        else:
            adopted.tally_nodes[node] = tuple(spools)
    return adopted


def find_leftover_tallies(tables: Tables, context: SlideContext, entries: Sequence[SynopsisEntry]) -> list[bytes]:
    """Where tallies of the slide's files lie, of synopses that are made from the rows."""
    return [
        node_store.encode_tally_key(entry.stream, entry.number, spool, slot)
        for entry in entries
        for spool in context.spooled or ()
        for slot in node_store.find_tallied_slots(tables, entry, spool)
    ]
