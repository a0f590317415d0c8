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
from windrow.queries.engine import instance
from windrow.queries.engine.fork_safety import keep_in_child
from windrow.queries.synopses import kinds, node_store
from windrow.queries.synopses.array_engine import ArraySynopsis, GroupNumbering
from windrow.queries.synopses.kinds import Node
from windrow.queries.synopses.node_store import StoredNode
from windrow.snapshot import StreamSnapshot
from windrow.store import Store


@dataclass
class LoadedSynopsis:
    """A synopsis in memory."""

    entry: SynopsisEntry
    table: str
    changed: dict[Node, int] = field(default_factory=dict)
    """When each node that is in the table was last changed."""


@dataclass(frozen=True)
class CatalogSynopses:
    """The synopses of a stream in the catalog at one instant."""

    entries: tuple[SynopsisEntry, ...]
    changed: Mapping[int, dict[Node, int]]
    """By synopsis: when each of its nodes was last changed."""
    windows: dict[tuple[int, int], tuple[tuple[Node, int], ...] | None] = field(default_factory=dict)
    """By synopsis and slots: the nodes of a window, None if they do not hold; filled on demand."""
    _reaches: dict[int, tuple[tuple[Node, int], ...]] = field(default_factory=dict)

    @cached_property
    def by_identity(self) -> dict[tuple[str, tuple[str, ...]], list[SynopsisEntry]]:
        """Synopses of the same rows and groups."""
        entries: dict[tuple[str, tuple[str, ...]], list[SynopsisEntry]] = {}
        for entry in self.entries:
            entries.setdefault((entry.where_key, tuple(sorted(group[1] for group in entry.groups))), []).append(entry)
        return entries

    def window(self, entry: SynopsisEntry, view: StreamSnapshot, slots: int) -> tuple[tuple[Node, int], ...] | None:
        """The nodes of a window of so many slots, if all are as they were at the snapshot's slide."""
        key = entry.number, slots
        if key not in self.windows:
            self.windows[key] = self._window(entry, view, slots)
        return self.windows[key]

    def _window(self, entry: SynopsisEntry, view: StreamSnapshot, slots: int) -> tuple[tuple[Node, int], ...] | None:
        slide = view.state.slide
        if slide is None or entry.slide is None or entry.slide < slide or slots > entry.slots:
            return None
        if entry.kind == kinds.BASIC:  # every window is the beginning of the longest one
            if entry.number not in self._reaches:
                nodes = kinds.cover_slots(entry.kind, entry.slots, slide - entry.slots, slide)
                self._reaches[entry.number] = tuple(takewhile(lambda node: self._holds(entry, view, node[0]), nodes))
            reach = self._reaches[entry.number]
            return reach[:slots] if slots <= len(reach) else None
        window = tuple(kinds.cover_slots(entry.kind, entry.slots, slide - slots, slide))
        return window if all(self._holds(entry, view, node) for node, _ in window) else None

    def _holds(self, entry: SynopsisEntry, view: StreamSnapshot, node: Node) -> bool:
        return node.left >= entry.floor and self.changed[entry.number].get(node, 0) <= view.state.ordinal


class NodeCache:
    """The synopses of one warehouse that this process has read."""

    def __init__(self, root: Path) -> None:
        self.instance: duckdb.DuckDBPyConnection = instance.open_locked_instance(root, threads=1)
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

        def read(tables: Tables) -> CatalogSynopses:
            entries = node_store.read_entries(tables, view.entry.id)
            return CatalogSynopses(
                tuple(entries), {entry.number: dict(node_store.list_nodes(tables, entry)) for entry in entries}
            )

        return store.catalog.read(read)

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
            arrays = self.arrays[key] = ArraySynopsis(entry, GroupNumbering(len(entry.groups)))
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
    cache: NodeCache = store.shared.attached("node cache", lambda: NodeCache(store.root))
    return cache


def open_node_cursor(cache: NodeCache) -> Any:
    """A new cursor on the tables of a cache."""
    return cache.instance.cursor()
