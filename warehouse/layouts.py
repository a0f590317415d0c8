"""The layouts of a stream: numbered, the last of them current, older ones kept until no segment lies in them any more.

A changed lifetime leaves rows and files as they are and gives their segments new expiries, in layouts without expiry
columns.
"""

from dataclasses import replace as changed

import pyarrow as pa
from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import Layout, RelayoutState, StreamState
from windrow.definitions import StreamDefinition
from windrow.indexes.manifest import Manifest
from windrow.indexes.partitioners import Index
from windrow.indexes.row_model import RowModel
from windrow.indexes.segment_reader import SegmentFileReader, read_ranges
from windrow.indexes.segments import Segment, pack_histogram
from windrow.native import rows as native_rows
from windrow.row_spool import list_files

STEP_BYTES = 64 << 20
"""Bytes of stored rows that one step of a relayout moves by default."""


def recompute_expiries(segment: Segment, model: RowModel, full: pa.Schema, reader: SegmentFileReader) -> Segment:
    """A segment's record with the expiries that `model` gives its rows; see `without_expiry_columns`.

    All rows of such a stream live equally long, so their event times are all that is read.
    """
    rows = read_ranges(
        {segment.file: [(segment.start, segment.stop)]}, pa.schema([full.field(model.time)]), full, reader
    )
    ts, _ = model.times(rows)
    exp, _ = model.expiries(rows, ts)
    return replace(
        segment,
        column=0,
        min_exp=int(exp.min()),
        max_exp=int(exp.max()),
        expiries=pack_histogram(*native_rows.histogram(model.slots(exp))),
    )


def make_first_layout(definition: StreamDefinition, index: Index, why: str) -> Layout:
    """The layout of a new stream."""
    return Layout(id=0, index=index, lifetime_slots=definition.lifetime_slots, why=why, key=definition.key)


def add_layout(
    state: StreamState,
    definition: StreamDefinition,
    index: Index,
    why: str,
    *,
    now: int,
    total: int,
    budget: int = 0,
    way_back: bool = True,
) -> StreamState:
    """The stream with a new layout, into which everything goes from now on.

    Args:
        state: As it is.
        definition: As it will be.
        index: The new layout.
        why: Its reason, in a sentence.
        now: Wall time.
        total: Bytes that lie in the layouts there are.
        budget: Bytes that each slide moves.
        way_back: Whether the change can be cancelled.
    """
    number = max(state.next_layout, *(layout.id + 1 for layout in state.layouts))
    layout = Layout(id=number, index=index, lifetime_slots=definition.lifetime_slots, why=why, key=definition.key)
    change = RelayoutState(previous=state.layout if way_back else None, started=now, total=total, budget=budget)
    return replace(state, layouts=(*state.layouts, layout), next_layout=number + 1, relayout=change)


def with_layout(state: StreamState, layout: Layout) -> StreamState:
    """The stream with a layout that it may have forgotten: an append that began before still writes for it."""
    if any(existing.id == layout.id for existing in state.layouts):
        return state
    return replace(state, layouts=(layout, *state.layouts))


def without_expiry_columns(layout: Layout, *, loose: bool = False) -> Layout:
    """A layout without expiry columns, for segments whose rows no longer expire when they were written to expire."""
    return replace(layout, index=changed(layout.index, columns=1), loose=layout.loose or loose)


def drop_empty_layouts(tables: Tables, stream: int, state: StreamState, segments: Manifest) -> StreamState:
    """The stream without the layouts that are empty; a change of layout is over when only the current one is left.

    Args:
        tables: Of the commit under way.
        stream: Its number.
        state: To be put down by that commit.
        segments: What is in the cells after it.
    """
    if len(state.layouts) == 1 and state.relayout is None:
        return state
    used = segments.layouts() | {state.layout.id}
    for _, entry in list_files(tables, catalog_key(stream)):
        used |= {segment.layout for segment in entry.segments}
    used_layouts = tuple(layout for layout in state.layouts if layout.id in used)
    return replace(state, layouts=used_layouts, relayout=state.relayout if len(used_layouts) > 1 else None)
