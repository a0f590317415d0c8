"""Maintains synopses: updated in the transaction of a slide from the new rows only, and filled for a new query.

Whoever changes which synopses there are holds the stream's lock, as a slide does; so a synopsis is always of the slide
that the stream is at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from windrow.catalog.environment import Tables
from windrow.catalog.records import SynopsisEntry
from windrow.definitions import StreamDefinition
from windrow.files import disk_errors
from windrow.indexes.row_model import RowModel
from windrow.indexes.segment_reader import read_ranges
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds, select_segments
from windrow.locks import locked
from windrow.queries.engine import instance
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.scan_sql import find_older_files, window_sql
from windrow.queries.synopses import kinds, node_store, tally
from windrow.queries.synopses.kinds import Node
from windrow.queries.synopses.node_store import EXPIRY, SLOT, NodeMerger, fetch_rows
from windrow.slide_hooks import Contribution, SlideContext
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_LOCK_SECONDS = 60.0
_NEVER_SLID = -(1 << 60)
_MAX_SLOTS = 64
"""Rows that came in for more slots than this are grouped by DuckDB, which does it for all of them at once."""
_MAX_PASSES = 2
"""Synopses that read the stored window each for itself; for more, its rows are read once."""
_MEASURED_SLOTS = 8
"""The newest slots say how large nodes would be. No trial of these three numbers is on record."""


PackedNodes = dict[Node, bytes | None]
"""Nodes as bytes; none for those that are empty now."""


@dataclass
class SynopsisUpdate:
    """One synopsis after a slide."""

    entry: SynopsisEntry
    nodes: dict[Node, pa.Table | None]
    obsolete_keys: list[bytes] = field(default_factory=list)
    """Keys of records that it no longer needs."""
    tally_nodes: dict[Node, tuple[int, ...]] = field(default_factory=dict)
    """Nodes that consist of tallies recorded by appends, with the spooled files of the tallies."""

    def pack(self, ordinal: int) -> PackedNodes:
        """The nodes as bytes, encoded before the transaction begins."""
        packed_nodes = {
            node: node_store.encode_node(ordinal, rows) if rows is not None and rows.num_rows else None
            for node, rows in self.nodes.items()
        }
        return packed_nodes | {
            node: node_store.encode_tally_names(ordinal, spools) for node, spools in self.tally_nodes.items()
        }

    def commit(self, tables: Tables, packed: PackedNodes) -> None:
        """Record it."""
        stream, number = self.entry.stream, self.entry.number
        for key in self.obsolete_keys:
            tables.delete("synopses", key)
        for node, rows in packed.items():
            key = node_store.encode_node_key(stream, number, node)
            if rows is None:
                tables.delete("synopses", key)
            else:
                tables.put_raw("synopses", key, rows)
        tables.put("synopses", node_store.encode_entry_key(stream, number), self.entry)


@dataclass(frozen=True)
class SynopsisContribution:
    """What synopses add to a slide's transaction."""

    changed: Sequence[tuple[SynopsisUpdate, PackedNodes]]
    files: Sequence[str] = ()

    def commit(self, tables: Tables) -> None:
        """Record what was prepared."""
        for update, packed in self.changed:
            update.commit(tables, packed)


# -- with a slide ----------------------------------------------------------------------------------------------------


@contextmanager
def prepare_synopses(store: Store, context: SlideContext) -> Iterator[Contribution | None]:
    """Prepare the synopses of a stream for a slide that is about to be committed."""
    entries = store.catalog.read(lambda tables: node_store.read_entries(tables, context.entry.id))
    if not entries:
        yield None
        return
    with ExitStack() as stack:
        open_cursor = cache(lambda: stack.enter_context(instance.open_cursor(store)))
        adopted, spent = store.catalog.read(lambda tables: _adopt_tallies(tables, context, entries))
        new_values = _build_from_rows(
            store, open_cursor, context, [entry for entry in entries if entry.number not in adopted]
        )
        for entry in entries:
            if entry.number in adopted:
                merger = NodeMerger(open_cursor, entry, context.slide)
                merged = adopted[entry.number].merged
                new_values[entry.number] = {slot: _prepare_one(merger, parts) for slot, parts in merged.items()}
        states = store.catalog.read(
            lambda tables: [_read_state(tables, entry, context.slide, new_values[entry.number]) for entry in entries]
        )
        updates = []
        for entry, state in zip(entries, states, strict=True):
            update = _advance(open_cursor, entry, context.slide, new_values[entry.number], state)
            if entry.number in adopted:
                update.tally_nodes = adopted[entry.number].tally_nodes
                update.obsolete_keys += adopted[entry.number].obsolete_keys
            updates.append(update)
        updates[0].obsolete_keys += spent
        yield SynopsisContribution([(update, update.pack(context.ordinal)) for update in updates])


def _adopt_tallies(
    tables: Tables, context: SlideContext, entries: Sequence[SynopsisEntry]
) -> tuple[dict[int, tally.AdoptedTallies], list[bytes]]:
    """The tallies recorded by appends, by the synopsis's number, and the keys of tallies that no synopsis uses."""
    adopted = {entry.number: tally.adopt_tallies(tables, context, entry) for entry in entries}
    others = [entry for entry in entries if adopted[entry.number] is None]
    return {number: tallies for number, tallies in adopted.items() if tallies is not None}, tally.find_leftover_tallies(
        tables, context, others
    )


def _prepare_one(merger: NodeMerger, parts: list[pa.Table]) -> pa.Table:
    return parts[0] if len(parts) == 1 else merger.merge(parts)


def _build_from_rows(
    store: Store, open_cursor: Callable[[], Any], context: SlideContext, entries: Sequence[SynopsisEntry]
) -> dict[int, dict[int, pa.Table]]:
    """The values that new rows add to synopses, by number and slot."""
    if not entries:
        return {}
    after = context.entry.definition.model.slot_end(context.slide - max(entry.slots for entry in entries))
    built, others = _build_without_duckdb(store, context, entries, after)
    if others:
        register_new_rows(store, open_cursor(), context, others, after)
        for entry in others:
            built[entry.number] = node_store.split_rows_by_slot(
                fetch_rows(open_cursor(), node_store.build_sql(entry, "_came"))
            )
        open_cursor().execute("DROP TABLE IF EXISTS _came")
    return built


def _build_without_duckdb(
    store: Store, context: SlideContext, entries: Sequence[SynopsisEntry], after: int
) -> tuple[dict[int, dict[int, pa.Table]], list[SynopsisEntry]]:
    """The new values of the synopses that need no DuckDB, by number and slot, and the synopses that do."""
    definition = context.entry.definition
    model = definition.model
    entry_plans = zip(entries, tally.make_build_plans(entries, definition.schema), strict=True)
    plans = {entry.number: plan for entry, plan in entry_plans if plan is not None}
    if not plans or model.expires is not None:
        return {}, list(entries)
    selection = _select_new_rows(context.arrived, after, context.now)
    slots = _split_by_slot(store, selection, model, definition.stored_schema, tally.list_columns(plans.values()))
    if slots is None:
        return {}, list(entries)
    # A second thread was tried: passing the interpreter's lock between the short kernels took what it gained.
    tables = {
        number: {slot: rows.build(plan) for slot, rows in slots.items()}
        for number, plan in plans.items()
        if all(rows.fits(plan) for rows in slots.values())
    }
    return tables, [entry for entry in entries if entry.number not in tables]


def _split_by_slot(
    store: Store, selection: Selection, model: RowModel, full: pa.Schema, names: set[str]
) -> dict[int, tally.SlotRows] | None:
    """The rows of a selection by event slot, None if those are too many.

    Their times are not even read where all are known to be of one slot.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    for segment in selection.segments:
        ranges.setdefault(segment.file, []).append((segment.start, segment.stop))
    slots = {model.slot_of(time) for segment in selection.whole for time in (segment.min_ts, segment.max_ts)}
    single_slot = names and len(slots) == 1 and not selection.edge
    narrow = pa.schema([field for field in full if field.name in (names if single_slot else names | {model.time})])
    rows = read_ranges(ranges, narrow, full, store.reader) if ranges else narrow.empty_table()
    if single_slot:
        return {slots.pop(): tally.SlotRows(rows)}
    if selection.edge:
        rows = selection.bounds.filter(rows, model)
    return tally.split_slots(rows, model.slots(model.times(rows)[0]), _MAX_SLOTS)


def register_new_rows(
    store: Store, cursor: Any, context: SlideContext, entries: Sequence[SynopsisEntry], after: int
) -> None:
    """The new rows that can be in a window, with their slots, as a table."""
    row_counts: dict[str, int] = {}
    for segment in context.arrived:
        row_counts[segment.file] = row_counts.get(segment.file, 0) + segment.rows
    torn = {segment.file for segment in context.arrived if row_counts[segment.file] != segment.file_rows}
    rows = rows_sql(store, context.entry.definition, context.arrived, after, context.now, torn, entries)
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE _came AS {rows}")


def _select_new_rows(segments: Sequence[Segment], after: int, now: int) -> Selection:
    last = max((segment.max_ts for segment in segments), default=now)
    return select_segments(segments, WindowBounds(after, max(last, now), now))


def rows_sql(
    store: Store,
    definition: StreamDefinition,
    segments: Sequence[Segment],
    after: int,
    now: int,
    torn: set[str],
    entries: Sequence[SynopsisEntry],
) -> str:
    """The rows of segments that can be in a window, with the columns that synopses need and their slots, as SQL."""
    model, schema, selection = definition.model, definition.schema, _select_new_rows(segments, after, now)
    wanted = find_columns(schema, entries)
    units = {name: schema.field(name).type.unit for name in (model.time, model.expires) if name is not None}
    columns = [quote_name(name) for name in wanted]
    columns.append(f"{node_store.slot_sql(model, model.time, units[model.time])} AS {SLOT}")
    if model.expires is not None:
        columns.append(f"{node_store.slot_sql(model, model.expires, units[model.expires])} AS {EXPIRY}")
    needed = dict.fromkeys([*wanted, *units])
    narrow = pa.schema([schema.field(name) for name in needed])
    store.reader.verify_columns({segment.file for segment in segments}, narrow.names)
    older_files = find_older_files(definition, segments, store.reader)
    rows = window_sql(store.root, model, narrow, selection, torn, older_files)
    return f"SELECT {', '.join(columns)} FROM ({rows})"


def find_columns(schema: pa.Schema, entries: Sequence[SynopsisEntry]) -> list[str]:
    """The columns that some synopsis names; a name that only seems to be one costs a little, never an answer."""
    text = "\n".join(
        [entry.where for entry in entries]
        + [group[0] for entry in entries for group in entry.groups]
        + [column.build for entry in entries for column in entry.columns]
    ).lower()
    return [name for name in schema.names if name.lower() in text or name.lower().replace('"', '""') in text]


@dataclass(frozen=True)
class _SynopsisState:
    """What a slide must know of a synopsis."""

    nodes: Mapping[Node, pa.Table]
    """Those that it may have to read."""
    obsolete_keys: list[bytes]
    """Of what it leaves behind."""
    ahead: tuple[int, ...] = ()
    """Slots after the slide before in which something is kept already."""


def _read_state(tables: Tables, entry: SynopsisEntry, slide: int, new_values: Mapping[int, pa.Table]) -> _SynopsisState:
    """What a slide must know of a synopsis; read by key, so that it costs what came in and what goes."""
    floor = slide - entry.slots
    last = _NEVER_SLID if entry.slide is None else entry.slide
    ahead = tuple(node.right for node, _ in node_store.list_nodes(tables, entry, 0, last))
    if entry.kind == kinds.BASIC:
        wanted = set(map(kinds.slot_node, new_values))
    elif entry.kind == kinds.INTERVAL:
        wanted = kinds.interval_nodes_read(entry.slots, entry.slide, new_values, ahead)
    else:
        wanted = _running_nodes_read(tables, entry, slide, new_values, ahead)
    gone = [
        node
        for level in kinds.levels(entry.kind, entry.slots)
        for node, _ in takewhile(
            lambda item: kinds.reaches_behind(item[0], floor), node_store.list_nodes(tables, entry, level)
        )
    ]
    stored = {node: node_store.read_node(tables, entry, node) for node in wanted}
    keys = [key for node in gone for key in node_store.find_node_keys(tables, entry, node)]
    if entry.kind == kinds.BASIC:  # what comes into a node is put down in its place, and tallies that it named go
        keys += [key for node in wanted for key in node_store.find_node_keys(tables, entry, node)[1:]]
    nodes = {node: node_rows.table() for node, node_rows in stored.items() if node_rows is not None}
    return _SynopsisState(nodes, keys, ahead)


def _running_nodes_read(
    tables: Tables, entry: SynopsisEntry, slide: int, new_values: Mapping[int, pa.Table], ahead: Iterable[int]
) -> set[Node]:
    """The prefixes that a slide looks at: the last one, and all from the oldest late slot on."""
    if _must_rebase(entry, slide) or entry.slide is None:
        return {node for node, _ in node_store.list_nodes(tables, entry)}
    oldest = max(min(new_values, default=slide), slide - entry.slots)
    prefixes = {entry.slide, slide - entry.slots, *range(oldest, entry.slide + 1)}
    return {*map(kinds.prefix_node, prefixes), *map(kinds.slot_node, ahead)}


def _must_rebase(entry: SynopsisEntry, slide: int) -> bool:
    """Whether running sums are counted anew with a slide."""
    return entry.kind == kinds.RUNNING and slide - entry.rebased >= entry.slots


def _advance(
    open_cursor: Callable[[], Any],
    entry: SynopsisEntry,
    slide: int,
    new_values: Mapping[int, pa.Table],
    state: _SynopsisState,
) -> SynopsisUpdate:
    """A synopsis after a slide, with what came in by slot and what is known of it."""
    rebase = _must_rebase(entry, slide)
    merger = NodeMerger(open_cursor, entry, slide)
    operations = merger.operations(state.nodes)
    nodes = kinds.advance_nodes(
        entry.kind, entry.slots, entry.slide, slide, new_values, operations, ahead=state.ahead, rebase=rebase
    )
    advanced = replace(entry, slide=slide, floor=slide - entry.slots, rebased=slide if rebase else entry.rebased)
    return SynopsisUpdate(advanced, nodes, state.obsolete_keys)


# -- a new synopsis --------------------------------------------------------------------------------------------------


@contextmanager
def stream_lock(store: Store, stream: int, name: str) -> Iterator[None]:
    """Hold off slides of a stream."""
    store.check_writable()
    path = store.lock_path(stream)
    with disk_errors(f"changing synopses of stream {name!r}"):
        path.parent.mkdir(exist_ok=True)
        with locked(path, f"the slide of stream {name!r}", _LOCK_SECONDS, store.sleep):
            yield


ChooseKind = Callable[[SynopsisEntry, "NodeSizes"], SynopsisEntry]
"""Gives a synopsis its kind, knowing how large its nodes are."""


def fill_synopses(
    store: Store, snapshot: Snapshot, stream: str, wanted: Sequence[SynopsisEntry], choose: ChooseKind | None = None
) -> list[SynopsisUpdate]:
    """New synopses out of the stored window; the caller holds the stream's lock, and the snapshot was taken under it.

    Args:
        store: The warehouse.
        snapshot: Of the stream.
        stream: Its name.
        wanted: The synopses, without nodes.
        choose: Chooses the kind of each; None: as it says.
    """
    view = snapshot.view(stream)
    slide = view.state.slide
    if slide is None:
        return [SynopsisUpdate(replace(entry, slide=None, floor=_NEVER_SLID), {}) for entry in wanted]
    with instance.open_cursor(store) as cursor:
        rows = offer_stored_rows(store, cursor, view, slide, wanted)
        return [_fill_one(cursor, rows, slide, entry, choose) for entry in wanted]


@dataclass(frozen=True)
class NodeSizes:
    """How large the nodes of a synopsis are."""

    groups: float
    """Rows of a slot's node."""
    distinct: float
    """Rows of all slots merged."""
    bytes: float
    """Of a slot's node in memory."""
    stored: float
    """Of a slot's node in the catalog."""


def measure_nodes(store: Store, view: StreamSnapshot, entries: Sequence[SynopsisEntry]) -> list[NodeSizes]:
    """How large the nodes of synopses would be that are not kept."""
    slide = view.state.slide
    if slide is None or not entries:
        return [NodeSizes(1.0, 1.0, 0.0, 0.0) for _ in entries]
    recent = [replace(entry, slots=min(entry.slots, _MEASURED_SLOTS)) for entry in entries]
    with instance.open_cursor(store) as cursor:
        rows = offer_stored_rows(store, cursor, view, slide, recent)
        return [_measure(cursor, entry, fetch_rows(cursor, _build_sql(entry, rows, slide))) for entry in recent]


def _measure(cursor: Any, entry: SynopsisEntry, built: pa.Table) -> NodeSizes:
    nodes = node_store.split_rows_by_slot(built)
    slots, newest = max(1, len(nodes)), sorted(nodes, reverse=True)[:_MEASURED_SLOTS]
    stored = [node_store.estimate_stored(len(node_store.encode_node(0, nodes[slot]))) for slot in newest]
    return NodeSizes(
        groups=built.num_rows / slots,
        distinct=_count_groups(cursor, entry, built),
        bytes=built.nbytes / slots,
        stored=sum(stored) / max(1, len(stored)),
    )


def offer_stored_rows(
    store: Store, cursor: Any, view: StreamSnapshot, slide: int, entries: Sequence[SynopsisEntry]
) -> str:
    """A relation of the stored rows that any of some synopses takes in; in memory if many read them."""
    model = view.entry.definition.model
    after = model.slot_end(slide - max((entry.slots for entry in entries), default=1))
    torn = set(view.state.torn)
    rows = rows_sql(store, view.entry.definition, view.segments, after, model.slot_end(slide), torn, entries)
    if len(entries) <= _MAX_PASSES:
        return f"({rows})"
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE _stored AS {rows}")
    return "_stored"


def _build_sql(entry: SynopsisEntry, rows: str, slide: int) -> str:
    return node_store.build_sql(entry, f"(SELECT * FROM {rows} WHERE {SLOT} > {slide - entry.slots})")


def _fill_one(cursor: Any, rows: str, slide: int, entry: SynopsisEntry, choose: ChooseKind | None) -> SynopsisUpdate:
    built = fetch_rows(cursor, _build_sql(entry, rows, slide))
    new_values = node_store.split_rows_by_slot(built)
    if choose is not None and built.num_rows:
        entry = choose(entry, _measure(cursor, entry, built))
    fresh = replace(entry, slide=None, rebased=slide)
    return _advance(lambda: cursor, fresh, slide, new_values, _SynopsisState({}, []))


def rebuild_nodes(
    store: Store, cursor: Any, view: StreamSnapshot, slide: int, entry: SynopsisEntry
) -> dict[Node, pa.Table | None]:
    """The nodes of a synopsis as the stored rows say."""
    rows = offer_stored_rows(store, cursor, view, slide, [entry])
    return _fill_one(cursor, rows, slide, replace(entry, slide=None), None).nodes


def _count_groups(cursor: Any, entry: SynopsisEntry, built: pa.Table) -> float:
    """How many groups there are in all slots together."""
    names = node_store.list_group_names(entry)
    if not names:
        return 1.0
    cursor.register("_built", built)
    rows = cursor.execute(f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(names)} FROM _built)").fetchall()
    return float(rows[0][0])


def commit_synopses(
    store: Store, ordinal: int, updates: Sequence[SynopsisUpdate], obsolete: Sequence[SynopsisEntry]
) -> None:
    """Record new synopses and drop others, in one transaction."""
    with store.catalog.write() as tables:
        for entry in obsolete:
            node_store.drop_synopsis(tables, entry)
        for update in updates:
            update.commit(tables, update.pack(ordinal))


def allocate_numbers(store: Store, count: int) -> int:
    """Numbers for new synopses; gives the first. Numbers are never used twice."""
    with store.catalog.write() as tables:
        return tables.allocate("synopses", count) + 1
