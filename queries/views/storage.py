"""A view's new results become rows of its stream: written to files first, named and slid by the transaction to come."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import FileEntry, SlideEntry, StreamEntry, StreamState, ViewEntry
from windrow.definitions import StreamDefinition
from windrow.files import disk_errors
from windrow.indexes.maintenance import Merge
from windrow.indexes.manifest import Manifest
from windrow.indexes.segment_builder import SegmentDraft, number_arrivals, sort_into_segments
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.segments import Segment, pack_histogram
from windrow.indexes.update_plan import UpdatePlan, plan_update
from windrow.native import rows as native_rows
from windrow.queries.views.inputs import InputState, UpdateInterval
from windrow.segment_files import CHUNK_BYTES, StagedFile, count_late_rows, make_segment, split_chunks
from windrow.slide import Slide, SlideInput
from windrow.sources import SourceProgress
from windrow.store import Store

DIED_COLUMN = "_died"
"""Of a view with restore semantics: when a result that lived only between two slides has ended."""


def to_stream_rows(
    results: Iterable[pa.RecordBatch], view: ViewEntry, definition: StreamDefinition, moment: UpdateInterval
) -> Iterator[pa.RecordBatch]:
    """Results as rows of the view's stream."""
    schema = definition.schema
    times = {definition.time, definition.expires, DIED_COLUMN if view.restore else definition.time}
    for batch in results:
        if not batch.num_rows:
            continue
        columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
        if view.recompute:
            begins = np.full(batch.num_rows, moment.now, np.int64)
            ends = begins
        else:
            begins, ends = (batch.column(at).to_numpy(zero_copy_only=False) for at in (0, 1))
        own = {definition.time: pa.array(begins)}
        if definition.expires is not None:
            over = ends <= moment.now
            shown = np.where(over, moment.now + definition.slide, ends) if view.restore else ends
            own[definition.expires] = pa.array(shown)
            if view.restore:
                own[DIED_COLUMN] = pa.array(ends, mask=~over)
        arrays = [
            _with_times(own[field.name], field.type) if field.name in times else columns[field.name].cast(field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_times(micros: pa.Array, kind: pa.TimestampType) -> pa.Array:
    return micros.cast(pa.timestamp("us", kind.tz))


@dataclass
class ViewSlide:
    """A view that moves: what was written for it, and what its slide will change."""

    store: Store
    entry: StreamEntry
    state: StreamState
    slide: int
    now: int
    segments: tuple[Segment, ...]
    """What was in its cells before."""
    staged: list[StagedFile] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The published files of `staged`."""
    update: UpdatePlan = field(default_factory=lambda: UpdatePlan(0))
    merged: list[tuple[Merge, SegmentDraft]] = field(default_factory=list)
    merged_file: StagedFile | None = None
    merged_name: str = ""
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
        return [*self.names, *([self.merged_name] if self.merged_name else [])]

    def side(self) -> InputState:
        """The view as views of it see it after this slide."""
        return InputState(self.entry, self.slide, self.ordinal, (*self.segments, *self.update.placed))

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
            if self.staged:
                self.names = self.store.writer.publish([each.path for each in self.staged], folder, "view")
                self.store.reader.trust(self.names)
            layout = self.state.layout
            arrivals = [
                [make_segment(cut, next(numbers), name, staged, layout.id, row=-1, slide=0) for cut in staged.cuts]
                for name, staged in zip(self.names, self.staged, strict=True)
            ]
            partitioners = {each.id: each.partitioner() for each in self.state.layouts}
            self.update = plan_update(
                self.slide, self.state.slide, self.now, self.ordinal, partitioners, arrivals, self.segments,
                self.state.bucket, needed,
            )  # fmt: skip
            self.merged_file, self.merged = self._slide().merge(self.update, self.now, self.entry, self.state)
            if self.merged_file is not None:
                self.merged_name = self.store.writer.publish([self.merged_file.path], folder, "view.merge")[0]

    def _slide(self) -> Slide:
        return Slide(self.store, self.name, None, False, 0.0)

    def _stage(self, chunk: pa.Table) -> StagedFile:
        definition, layout = self.entry.definition, self.state.layout
        model = definition.model
        ts, _ = model.times(chunk)
        exp, _ = model.expiries(chunk, ts)
        arranged = sort_into_segments(chunk, model, layout.partitioner(), ts, exp, number_arrivals(chunk.num_rows, 0))
        store = self.store
        with store.writer.staging() as path:
            with store.files.sink(path) as sink:
                grouped, judge = layout.index.row_group_bytes, store.judges[self.entry.id]
                output = SegmentFileWriter(sink, arranged.table.schema, grouped, definition.key, judge)
                arranged.write(output)
                output.close()
            size, digest = store.writer.seal(path, output.digest, soon=True)
        events = pack_histogram(*native_rows.histogram(model.slots(ts)))
        return StagedFile(path, output.rows, size, digest, arranged.cuts, events, written_here=True)

    def discard(self) -> None:
        """Remove what was written, for a slide that will not happen."""
        self.store.writer.discard([each.path for each in self.staged])
        for name in self.files:
            self.store.files.unlink(self.store.root / name)

    def commit(self, tables: Tables, inputs: Sequence[int]) -> None:
        """Name the files and move the view's clock."""
        update = self._numbered(tables)
        states = [tables.get("states", catalog_key(number)) for number in inputs]
        missing = tuple(sorted({source for state in states for source in state.missing}))
        record = SlideEntry(
            slide=self.slide,
            previous=self.state.slide,
            ordinal=self.ordinal,
            now=self.now,
            at=self.store.clock(),
            inserted=update.inserted,
            expired=update.expired,
            late=sum(count_late_rows(staged.events, self.state.slide) for staged in self.staged),
            touched=len(update.touched),
            rebuilt=len(self.merged),
            dropped=len(update.dropped),
            bytes_written=sum(each.bytes for each in self.staged)
            + (0 if self.merged_file is None else self.merged_file.bytes),
            seconds=time.perf_counter() - self.started,
            missing=missing,
            spoken_for=tuple(sorted({source for state in states for source in state.spoken_for})),
        )
        slide = self._slide()
        placed = slide.place(tables, self.entry.id, self.merged, self.merged_name, self.merged_file)
        look = SlideInput(
            self.entry, find_stream(tables, self.name)[1], SourceProgress((), None), {}, Manifest.of(self.segments), ()
        )
        slide.record(tables, look, update, record, placed)

    def _numbered(self, tables: Tables) -> UpdatePlan:
        """Give the new segments their numbers, and put down their files and directories."""
        numbers: dict[int, int] = {}
        segments = iter(self.update.placed)
        for name, staged in zip(self.names, self.staged, strict=True):
            for cut in staged.cuts:
                numbers[(stand_in := next(segments)).id] = tables.allocate("segments")
                tables.put_raw("directories", catalog_key(numbers[stand_in.id]), cut.directory)
            record = FileEntry(
                stream=self.entry.id, rows=staged.rows, bytes=staged.bytes, digest=staged.digest,
                segments=len(staged.cuts),
            )  # fmt: skip
            tables.put("files", name.encode(), record)

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
        )
