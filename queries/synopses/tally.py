"""Tallies of spooled rows: an append puts what basic synopses will keep of its rows beside them, by event slot.

The slide that takes the rows in only names these tallies, as it names the files, and does not read the rows again. A
synopsis that lacks the tally of a file (it is younger than the append, or Spark wrote the file) is built from the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from windrow.catalog.environment import Tables
from windrow.catalog.records import StreamEntry, SynopsisEntry
from windrow.indexes.row_model import Int64s
from windrow.queries.synopses import building, kinds, node_store
from windrow.queries.synopses.kinds import Node
from windrow.slide_hooks import Moving
from windrow.store import Store

_MOST_SLOTS = 8
"""Rows of more slots than this are left to the slide: a tally of few rows saves nothing."""
MOST_NAMED = 8
"""Tallies that one node may be made of; more are merged into one."""


@dataclass(frozen=True)
class Tallies:
    """What synopses will keep of one file's rows."""

    parts: tuple[tuple[int, int, bytes], ...]
    """Number of the synopsis, slot, and the kept values as bytes."""

    def commit(self, tables: Tables, stream: int, spool: int) -> None:
        """Put them beside a spooled file, for the synopses that are still there."""
        kept = {entry.number for entry in node_store.entries(tables, stream)}
        for number, slot, body in self.parts:
            if number in kept:
                tables.put_raw("synopses", node_store.tally_key(stream, number, spool, slot), body)


def tally(store: Store, entry: StreamEntry, rows: pa.Table, slots: Int64s) -> Tallies | None:
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
    kept = store.catalog.read(lambda tables: node_store.entries(tables, entry.id))
    recipes = zip(kept, building.recipes(kept, definition.schema), strict=True)
    plain = {each.number: recipe for each, recipe in recipes if recipe is not None and each.kind == kinds.BASIC}
    if not plain:
        return None
    wanted = building.names(plain.values()) | {definition.model.time}
    cut = building.by_slot(rows.select([name for name in rows.column_names if name in wanted]), slots, _MOST_SLOTS)
    if cut is None:
        return None
    return Tallies(
        tuple(
            (number, slot, node_store.body(own.build(recipe)))
            for number, recipe in plain.items()
            if all(own.fits(recipe) for own in cut.values())
            for slot, own in cut.items()
        )
    )


@dataclass
class Adopted:
    """What a slide makes of the tallies of one synopsis."""

    named: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    """New nodes, each by the spooled files whose tallies it is made of."""
    merged: dict[int, list[pa.Table]] = field(default_factory=dict)
    """By slot: tallies that go into a node that is there already, or are too many."""
    spent: list[bytes] = field(default_factory=list)
    """Where tallies lie that no node names."""


def adopt(tables: Tables, moving: Moving, entry: SynopsisEntry) -> Adopted | None:
    """The tallies of all rows that a slide takes in; None if some are lacking, and the rows must say."""
    if moving.spooled is None or entry.kind != kinds.BASIC:
        return None
    found: dict[int, list[int]] = {}
    for spool in moving.spooled:
        own = node_store.tallied_slots(tables, entry, spool)
        if not own:
            return None
        for slot in own:
            found.setdefault(slot, []).append(spool)
    model, floor = moving.entry.definition.model, moving.slide - entry.slots
    oldest = model.oldest(moving.now)
    adopted = Adopted()
    for slot, spools in found.items():
        keys = [node_store.tally_key(entry.stream, entry.number, spool, slot) for spool in spools]
        node = kinds.slot_node(slot)
        if slot <= floor:
            adopted.spent += keys
        elif oldest is not None and model.slot_end(slot - 1) < oldest:
            return None  # some of its rows have died meanwhile
        elif len(spools) > MOST_NAMED or node_store.is_there(tables, entry, node):
            adopted.merged[slot] = [node_store.table_of(bytes(tables.raw("synopses", at))) for at in keys]
            adopted.spent += keys
        else:
            adopted.named[node] = tuple(spools)
    return adopted


def leftovers(tables: Tables, moving: Moving, entries: Sequence[SynopsisEntry]) -> list[bytes]:
    """Where tallies of the slide's files lie, of synopses that are made from the rows."""
    return [
        node_store.tally_key(entry.stream, entry.number, spool, slot)
        for entry in entries
        for spool in moving.spooled or ()
        for slot in node_store.tallied_slots(tables, entry, spool)
    ]
