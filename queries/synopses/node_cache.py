"""The synopsis nodes that this process has read, as DuckDB tables and arrays, brought up to date before each answer.

What is read is checked against the snapshot of the query: a node that a later slide changed does not answer for it. The
cache belongs to the warehouse and is closed with it.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.environment import Tables
from windrow.catalog.records import SynopsisEntry
from windrow.fork_safety import keep_in_child
from windrow.queries.engine import instance
from windrow.queries.synopses import kinds, node_store
from windrow.queries.synopses.array_engine import ArraySynopsis, GroupNumbering, JoinArrays
from windrow.queries.synopses.kinds import Node
from windrow.queries.synopses.node_store import StoredNode
from windrow.snapshot import StreamSnapshot
from windrow.store import Store

_MIN_REACH = 1024
"""Slots of a basic synopsis that are looked up at least: most windows are shorter, and one look serves them all.
Not measured."""


@dataclass
class LoadedSynopsis:
    """A synopsis in memory."""

    entry: SynopsisEntry
    table: str
    changed: dict[Node, int] = field(default_factory=dict)
    """When each node that is in the table was last changed."""


@dataclass(frozen=True)
class CatalogSynopses:
    """The synopses of a stream as one round sees them; nodes are looked up once, when they are asked for.

    Args:
        store: The warehouse.
        view: The stream as of the snapshot that is asked.
        entries: Its synopses.
    """

    store: Store
    view: StreamSnapshot
    entries: tuple[SynopsisEntry, ...]
    changed: dict[int, dict[Node, int]] = field(default_factory=dict)
    """By synopsis: when each node that was looked up and is not empty was last changed."""
    _windows: dict[tuple[int, int], tuple[tuple[Node, int], ...] | None] = field(default_factory=dict)
    """By synopsis and slots: the nodes of a window, None if they do not hold."""
    _reaches: dict[int, tuple[tuple[Node, int], ...]] = field(default_factory=dict)
    """By basic synopsis: the nodes that hold, youngest first, as windows have them."""

    @cached_property
    def by_identity(self) -> dict[tuple[str, tuple[str, ...]], list[SynopsisEntry]]:
        """Synopses of the same rows and groups."""
        entries: dict[tuple[str, tuple[str, ...]], list[SynopsisEntry]] = {}
        for entry in self.entries:
            entries.setdefault((entry.where_key, tuple(sorted(group[1] for group in entry.groups))), []).append(entry)
        return entries

    @cached_property
    def by_groups(self) -> dict[tuple[str, ...], list[SynopsisEntry]]:
        """Synopses whose rows are a plain disjunction, by their groups."""
        entries: dict[tuple[str, ...], list[SynopsisEntry]] = {}
        for entry in self.entries:
            if entry.terms:
                entries.setdefault(tuple(sorted(group[1] for group in entry.groups)), []).append(entry)
        return entries

    def window(self, entry: SynopsisEntry, slots: int) -> tuple[tuple[Node, int], ...] | None:
        """The nodes of a window of so many slots, if all are as they were at the snapshot's slide."""
        key = entry.number, slots
        if key not in self._windows:
            self._windows[key] = self._window(entry, slots)
        return self._windows[key]

    def _window(self, entry: SynopsisEntry, slots: int) -> tuple[tuple[Node, int], ...] | None:
        slide = self.view.state.slide
        if slide is None or entry.slide is None or entry.slide < slide or slots > entry.slots:
            return None
        if entry.kind == kinds.BASIC:  # every window is the beginning of the longest one
            reach = self._reaches.get(entry.number)
            if reach is None or len(reach) < slots:
                further = min(entry.slots, max(slots, _MIN_REACH))
                nodes = [node for node, _ in kinds.cover_slots(entry.kind, entry.slots, slide - further, slide)]
                holding = self._find_holding(entry, nodes)
                reach = self._reaches[entry.number] = tuple((node, 1) for node in holding)
            return reach[:slots] if slots <= len(reach) else None
        window = tuple(kinds.cover_slots(entry.kind, entry.slots, slide - slots, slide))
        return window if len(self._find_holding(entry, [node for node, _ in window])) == len(window) else None

    def _find_holding(self, entry: SynopsisEntry, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The first of some nodes that are as they were at the snapshot's slide."""

        def read(tables: Tables) -> Mapping[Node, int] | None:
            current = tables.get("synopses", node_store.encode_entry_key(entry.stream, entry.number))
            if current is None or current.slide != entry.slide:
                return None  # a slide came meanwhile, and nodes may be gone that are still asked for
            if entry.kind == kinds.BASIC:
                return dict(node_store.list_nodes(tables, entry, 0, nodes[-1].left))
            heads = {node: node_store.read_change(tables, entry, node) for node in nodes}
            return {node: changed for node, changed in heads.items() if changed is not None}

        new_nodes = self.store.catalog.read(read)
        if new_nodes is None:
            return ()
        changed = self.changed.setdefault(entry.number, {})
        changed.update(new_nodes)
        last = self.view.state.ordinal
        return tuple(takewhile(lambda node: node.left >= entry.floor and changed.get(node, 0) <= last, nodes))


class NodeCache:
    """The synopses of one warehouse that this process has read."""

    def __init__(self, root: Path, spill: Path) -> None:
        self.instance: duckdb.DuckDBPyConnection = instance.open_locked_instance(root, threads=1, spill=spill)
        self.lock = threading.RLock()
        self.loaded: dict[tuple[int, int], LoadedSynopsis] = {}
        self.arrays: dict[tuple[int, int], ArraySynopsis] = {}
        keep_in_child(self)

    def close(self) -> None:
        """Drop all nodes; the instance ends with the last of its cursors."""
        with self.lock:
            self.loaded.clear()
            self.arrays.clear()
            self.instance.close()

    def read_catalog(self, store: Store, view: StreamSnapshot) -> CatalogSynopses:
        """The synopses of a stream in the catalog, without their rows."""
        entries = store.catalog.read(lambda tables: node_store.read_entries(tables, view.entry.id))
        with self.lock:
            self.drop_missing(view.entry.id, entries)
        return CatalogSynopses(store, view, tuple(entries))

    def drop_missing(self, stream: int, entries: Iterable[SynopsisEntry]) -> None:
        """Drop synopses that are no longer in the catalog."""
        existing = {(stream, entry.number) for entry in entries}
        for key in [key for key in self.arrays if key[0] == stream and key not in existing]:
            del self.arrays[key]
        for key in [key for key in self.loaded if key[0] == stream and key not in existing]:
            self.instance.execute(f"DROP TABLE IF EXISTS {self.loaded.pop(key).table}")

    def load(
        self, store: Store, entry: SynopsisEntry, changes: Mapping[Node, int], wanted: Iterable[Node]
    ) -> LoadedSynopsis | None:
        """Bring nodes of a synopsis into memory; None if one has been changed again meanwhile.

        Args:
            store: The warehouse.
            entry: The synopsis.
            changes: When each of its nodes in the catalog was last changed.
            wanted: The nodes that are needed; those that are not there are empty.
        """
        loaded = self.loaded.get((entry.stream, entry.number))
        if loaded is None:
            loaded = self.loaded[entry.stream, entry.number] = LoadedSynopsis(entry, f"s{entry.stream}_{entry.number}")
        loaded.entry = entry
        stale = [node for node, changed in loaded.changed.items() if changes.get(node) != changed]
        missing = [node for node in wanted if node in changes and loaded.changed.get(node) != changes[node]]

        def read(tables: Tables) -> dict[Node, StoredNode | None]:
            return {node: node_store.read_node(tables, entry, node) for node in missing}

        stored_nodes = store.catalog.read(read) if missing else {}
        if any(stored is None or stored.changed != changes[node] for node, stored in stored_nodes.items()):
            return None
        self._remove(loaded, stale)
        self._put(loaded, {node: stored for node, stored in stored_nodes.items() if stored is not None})
        return loaded

    def load_arrays(
        self, store: Store, entry: SynopsisEntry, changes: Mapping[Node, int], wanted: Iterable[Node]
    ) -> ArraySynopsis | None:
        """Bring nodes into memory as arrays; None as for `load`."""
        key = entry.stream, entry.number
        arrays = self.arrays.get(key)
        if arrays is None:
            kind = JoinArrays if entry.span else ArraySynopsis
            arrays = self.arrays[key] = kind(entry, GroupNumbering(len(entry.groups)))
        return arrays if arrays.load(store, changes, wanted) else None

    def _remove(self, loaded: LoadedSynopsis, stale: Sequence[Node]) -> None:
        """Drop nodes that were changed or removed."""
        for level in {node.level for node in stale}:
            lefts = ", ".join(str(node.left) for node in stale if node.level == level)
            self.instance.execute(f"DELETE FROM {loaded.table} WHERE l = {level} AND p IN ({lefts})")
        for node in stale:
            del loaded.changed[node]

    def _put(self, loaded: LoadedSynopsis, fresh: Mapping[Node, StoredNode]) -> None:
        """Add nodes to the table."""
        if not fresh:
            return
        self.instance.register(
            "_fresh",
            node_store.concat_rows([_with_position(stored_node.table(), node) for node, stored_node in fresh.items()]),
        )
        columns = f"SELECT l, p, {node_store.columns_sql(loaded.entry)} FROM _fresh"
        if loaded.changed:
            self.instance.execute(f"INSERT INTO {loaded.table} {columns}")
        else:
            self.instance.execute(f"CREATE OR REPLACE TABLE {loaded.table} AS {columns}")
        self.instance.unregister("_fresh")
        loaded.changed.update({node: stored.changed for node, stored in fresh.items()})


def _with_position(rows: pa.Table, node: Node) -> pa.Table:
    """A node's rows with its level and position."""
    count = rows.num_rows
    level, left = (pa.repeat(pa.scalar(value, pa.int64()), count) for value in (node.level, node.left))
    return pa.table([level, left, *rows.columns], names=["l", "p", *rows.column_names])


def node_cache_of(store: Store) -> NodeCache:
    """The node cache of a warehouse in this process, shared by its handles and closed with the last of them."""
    cache: NodeCache = store.shared.attached("node cache", lambda: NodeCache(store.root, instance.spill_folder(store)))
    return cache


def open_node_cursor(cache: NodeCache) -> Any:
    """A new cursor on the tables of a cache."""
    return cache.instance.cursor()
