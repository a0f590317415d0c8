"""A view's new results become rows of its stream: written to files first, named and slid by the transaction to come."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import StreamEntry, StreamState, ViewEntry
from windrow.definitions import StreamDefinition
from windrow.files import disk_errors
from windrow.indexes.end_overrides import override_ends
from windrow.indexes.maintenance import Merge
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import Bools, Int64s
from windrow.indexes.segment_builder import number_arrivals, sort_into_segments
from windrow.indexes.segments import Segment, pack_histogram
from windrow.indexes.update_plan import UpdatePlan, plan_update
from windrow.native import key_encoding as native_keys
from windrow.native import rows as native_rows
from windrow.queries.views.inputs import InputState, UpdateInterval
from windrow.segment_files import (
    CHUNK_BYTES,
    Placement,
    StagedFile,
    StagedWriter,
    make_segment,
    publish_files,
    record_file,
    split_chunks,
)
from windrow.slide import foresee_segments, make_slide_entry, record_slide, write_merges
from windrow.slide_hooks import SlideContext, SlideHook
from windrow.store import Store

DIED_COLUMN = "_died"
"""Of a view with restore semantics: when a result that lived only between two slides has ended."""


def to_stream_rows(
    results: Iterable[pa.RecordBatch], view: ViewEntry, definition: StreamDefinition, interval: UpdateInterval
) -> Iterator[pa.RecordBatch]:
    """Results as rows of the view's stream."""
    schema = definition.schema
    times = {definition.time, definition.expires, DIED_COLUMN if view.restore else definition.time}
    for batch in results:
        if not batch.num_rows:
            continue
        columns = {name: batch.column(position) for position, name in enumerate(batch.schema.names)}
        if view.recompute:
            begins = np.full(batch.num_rows, interval.now, np.int64)
            ends = begins
        else:
            begins, ends = (batch.column(position).to_numpy(zero_copy_only=False) for position in (0, 1))
        if view.joined is not None and interval.before is not None:
            # Only the end counts; so a slide changes no earlier slot of its synopses.
            begins = np.full(batch.num_rows, interval.now, np.int64)
        bounds = {definition.time: pa.array(begins)}
        if definition.expires is not None:
            over = ends <= interval.now
            shown = np.where(over, interval.now + definition.slide, ends) if view.restore else ends
            bounds[definition.expires] = pa.array(shown)
            if view.restore:
                bounds[DIED_COLUMN] = pa.array(ends, mask=~over)
        arrays = [
            _with_times(bounds[field.name], field.type) if field.name in times else columns[field.name].cast(field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_times(micros: pa.Array, kind: pa.TimestampType) -> pa.Array:
    return micros.cast(pa.timestamp("us", kind.tz))


class RowEnding(NamedTuple):
    """Rows of one segment that end sooner than is stored with them.

    Args:
        segment: Its number.
        rows: As its file counts them.
        old_ends: When they end by what is stored.
        new_ends: When they end now.
    """

    segment: int
    rows: Int64s
    old_ends: Int64s
    new_ends: Int64s


def match_copies(one: pa.Table, other: pa.Table) -> tuple[Bools, Bools]:
    """Of the rows of two tables with the same columns, which have an equal row in the other one, each copy its own."""
    rows = pa.concat_arrays([native_keys.encode(table.columns) for table in (one, other)])
    groups = rows.dictionary_encode().indices.to_numpy().astype(np.int64)
    sides = groups[: one.num_rows], groups[one.num_rows :]
    copies = [np.bincount(side, minlength=int(groups.max(initial=0)) + 1) for side in sides]
    return _rank(sides[0]) < copies[1][sides[0]], _rank(sides[1]) < copies[0][sides[1]]


def _rank(groups: Int64s) -> Int64s:
    """The number of each member among those of its group."""
    order = native_rows.sort_order(None, None, groups)
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(starts, append=len(groups)))
    return rank


@dataclass
class ViewSlide:
    """A view that moves: what was written for it, and what its slide will change."""

    store: Store
    entry: StreamEntry
    state: StreamState
    slide: int
    now: int
    segments: tuple[Segment, ...]
    """What was in its cells before; with the overrides of this slide, once they are known."""
    staged: list[StagedFile] = field(default_factory=list)
    update: UpdatePlan = field(default_factory=lambda: UpdatePlan(0))
    ended: list[int] = field(default_factory=list)
    """The numbers of the segments with rows that this slide ends sooner."""
    merged: StagedFile | None = None
    """The file that its merges wrote."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def name(self) -> str:
        """Of the view."""
        return self.entry.definition.name

    @property
    def ordinal(self) -> int:
        """The number of this slide."""
        return self.state.ordinal + 1

    @property
    def files(self) -> list[str]:
        """Everything that was published for it."""
        return [file.name for file in self._written if file.name]

    @property
    def _written(self) -> list[StagedFile]:
        return [*self.staged, *([self.merged] if self.merged else [])]

    def side(self) -> InputState:
        """The view as views of it see it after this slide."""
        return InputState(self.entry, self.slide, self.ordinal, (*self.segments, *self.update.placed))

    def context(self, hooks: tuple[SlideHook, ...] = ()) -> SlideContext:
        """The slide as hooks see it."""
        placed, segments = tuple(self.update.placed), Manifest.of(self.segments)
        return SlideContext(
            self.entry, self.state, self.slide, self.now, self.ordinal, placed, self.segments, hooks,
            remaining=partial(foresee_segments, segments, self.update, self.merged),
        )  # fmt: skip

    def end_rows(self, endings: Sequence[RowEnding]) -> None:
        """End stored rows sooner than is stored with them; `write` comes after it, and `commit` records it.

        Args:
            endings: The rows; each segment at most once, and each row at most once.
        """
        model = self.entry.definition.model
        by_number = {segment.id: segment for segment in self.segments}
        changed = []
        for ending in endings:
            segment = by_number[ending.segment]
            shortened = override_ends(segment, ending.rows, ending.old_ends, ending.new_ends, model)
            if shortened is not segment:
                changed.append(shortened)
        self.ended = [segment.id for segment in changed]
        self.segments = Manifest.of(self.segments).replace(set(self.ended), changed) if changed else self.segments

    def write(self, rows: Iterable[pa.RecordBatch], numbers: Iterator[int], needed: tuple[int, int] | None) -> None:
        """Write the rows, plan the slide and write its merges; nothing is named yet.

        Args:
            rows: Of the view's stream.
            numbers: Stand-ins for the segments' numbers, below zero.
            needed: See `plan_update`.
        """
        with disk_errors(f"writing view {self.name!r}"):
            for chunk in split_chunks(rows, self.entry.definition.schema, CHUNK_BYTES):
                self.staged.append(self._stage(chunk))
            folder = self.store.stream_folder(self.name) / "segments"
            publish_files(self.store, self.staged, folder, "view")
            spooled = Placement(self.state.layout.id)
            arrivals = [
                [make_segment(file, draft, next(numbers), spooled) for draft in file.drafts] for file in self.staged
            ]
            partitioners = {layout.id: layout.partitioner() for layout in self.state.layouts}
            self.update = plan_update(
                self.slide, self.state.slide, self.now, self.ordinal, partitioners, arrivals, self.segments,
                self.state.bucket, needed, ended=self.ended,
            )  # fmt: skip
            self.merged = write_merges(self.store, self.entry, self.state, self.update, self.now)
            publish_files(self.store, [self.merged] if self.merged else [], folder, "view.merge")

    def _stage(self, chunk: pa.Table) -> StagedFile:
        definition, layout = self.entry.definition, self.state.layout
        model = definition.model
        ts, _ = model.times(chunk)
        exp, _ = model.expiries(chunk, ts)
        batch = sort_into_segments(chunk, model, layout.partitioner(), ts, exp, number_arrivals(chunk.num_rows, 0))
        events = pack_histogram(*native_rows.histogram(model.slots(ts)))
        with StagedWriter(self.store) as file:
            batch.write(file.write_segments(self.entry, layout, batch.table.schema))
            return file.seal(batch.cuts, events, soon=True)

    def discard(self) -> None:
        """Remove what was written, for a slide that will not happen."""
        self.store.writer.discard([file.path for file in self.staged])
        for name in self.files:
            self.store.files.unlink(self.store.root / name)

    def commit(self, tables: Tables, inputs: Sequence[int]) -> None:
        """Name the files and move the view's clock."""
        update = self._numbered(tables)
        states = [tables.get("states", catalog_key(number)) for number in inputs]
        record = make_slide_entry(
            self.store, self.state, update, self.now, [file.events for file in self.staged], self.merged,
            written=self._written,
            seconds=time.perf_counter() - self.started,
            missing=tuple(sorted({source for state in states for source in state.missing})),
            spoken_for=tuple(sorted({source for state in states for source in state.spoken_for})),
        )  # fmt: skip
        record_slide(self.store, tables, self.entry, Manifest.of(self.segments), update, record, self.merged)

    def _numbered(self, tables: Tables) -> UpdatePlan:
        """Give the new segments their numbers, and put down their files and directories."""
        numbers: dict[int, int] = {}
        segments = iter(self.update.placed)
        for file in self.staged:
            for number in record_file(tables, self.entry.id, file):
                numbers[next(segments).id] = number

        def named(segment: Segment) -> Segment:
            return replace(segment, id=numbers[segment.id]) if segment.id in numbers else segment

        update = self.update
        return UpdatePlan(
            update.slide,
            placed=[named(segment) for segment in update.placed],
            dropped=[named(segment) for segment in update.dropped],
            merges=[Merge(m.cell, tuple(named(s) for s in m.segments), m.cost) for m in update.merges],
            touched=update.touched,
            inserted=update.inserted,
            expired=update.expired,
            bucket=update.bucket,
            needed=update.needed,
            ended=update.ended,
        )
