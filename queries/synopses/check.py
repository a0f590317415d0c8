"""Checks synopses against the stored rows: each synopsis is built again and compared, node by node."""

from collections.abc import Iterator

import duckdb
import pyarrow as pa

from windrow.catalog.environment import Tables
from windrow.catalog.records import SynopsisEntry
from windrow.check import without_advice
from windrow.queries.engine import instance
from windrow.queries.synopses import kinds, maintenance, node_store
from windrow.queries.synopses.kinds import Node
from windrow.queries.synopses.node_store import NodeMerger
from windrow.snapshot import Snapshot
from windrow.store import Store


def find_differences(store: Store, snapshot: Snapshot, stream: str, entry: SynopsisEntry) -> Iterator[str]:
    """How the nodes of a synopsis differ from what the stored rows say, in words; the snapshot is of its slide."""
    view = snapshot.view(stream)
    slide = view.state.slide
    if slide is None or entry.slide != slide:
        return
    with instance.open_cursor(store) as cursor:
        expected = maintenance.rebuild_nodes(store, cursor, view, slide, entry)

        def read(tables: Tables) -> dict[Node, pa.Table] | None:
            current = tables.get("synopses", node_store.encode_entry_key(entry.stream, entry.number))
            if current is None or current.slide != slide:
                return None  # a slide came meanwhile; what it left is another state
            stored_nodes = {
                node: node_store.read_node(tables, entry, node) for node, _ in node_store.list_nodes(tables, entry)
            }
            return {node: node_rows.table() for node, node_rows in stored_nodes.items() if node_rows is not None}

        stored = store.catalog.read(read)
        if stored is None:
            return
        base = stored.get(kinds.prefix_node(slide - entry.slots))
        worker = NodeMerger(lambda: cursor, entry, slide)
        for node in sorted(set(expected) | set(stored)):
            node_rows, expected_rows = stored.get(node), expected.get(node)
            if node_rows is not None and node.level < 0 and base is not None:
                node_rows = worker.subtract(node_rows, base)  # counted from further back, which answers do not see
            if not worker.equal(node_rows, expected_rows):
                yield f"node {node.level}, {node.left} does not hold what the rows say"


def find_problems(store: Store) -> Iterator[str]:
    """What is wrong with the synopses of all streams, in words."""
    with Snapshot(store) as snapshot:
        for name in (*snapshot.streams(), *snapshot.hidden()):
            stream = snapshot.view(name).entry.id
            for entry in store.catalog.read(lambda tables, stream=stream: node_store.read_entries(tables, stream)):  # type: ignore[misc]
                try:
                    problems = list(find_differences(store, snapshot, name, entry))
                except (duckdb.Error, pa.ArrowException, OSError) as error:
                    problems = [
                        f"it cannot be compared with its rows ({without_advice(instance.read_error_message(error))})"
                    ]
                for problem in problems:
                    yield f"stream {name}: synopsis {entry.number}: {problem}"
