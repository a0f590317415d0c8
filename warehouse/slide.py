"""The slide: one transaction that takes in spooled rows, removes expired ones, maintains cells and moves the clock.

Merges are written under the stream's own lock and outside LMDB. A slide that fails or is killed at any point leaves the
previous state, because no record names what it wrote before its commit.
"""

import datetime as dt
import itertools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from typing import Any

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream, refuse_view
from windrow.catalog.records import SlideEntry, SourceEntry, SpoolEntry, StreamEntry, StreamState
from windrow.catalog.segment_log import (
    exchange_segments,
    find_torn_files,
    load_segments,
    note_change,
    override_segments,
)
from windrow.definitions import choose_index
from windrow.errors import ClockError
from windrow.expired_rows import keep_limit
from windrow.files import disk_errors
from windrow.gaps import note_version
from windrow.history import move_to_history
from windrow.history_merge import offer_merge
from windrow.indexes.manifest import Manifest
from windrow.indexes.merge import merge_segments
from windrow.indexes.segments import Histogram
from windrow.indexes.update_plan import UpdatePlan, plan_update
from windrow.layouts import add_layout, drop_empty_layouts
from windrow.locks import locked
from windrow.reclaim import begin_removal, forget_old_rejected, forget_reclaimed, remove_replaced_files
from windrow.relayout import move_after_slide
from windrow.row_spool import WaitingRows, list_files, list_waiting, note_arrivals
from windrow.segment_files import (
    Placement,
    StagedFile,
    StagedWriter,
    count_late_rows,
    find_late_slots,
    make_segment,
    publish_files,
    record_placed,
)
from windrow.slide_hooks import Contribution, SlideContext, SlideHook, find_removal_limit, prepare_contributions
from windrow.small_append import gather_rows
from windrow.sources import SourceProgress, behind_error, compute_progress, fail_silent_sources, record_gaps
from windrow.store import Store
from windrow.times import format_duration, format_time, to_datetime

SLIDES_KEPT = 4096
"""Slides of a stream that stay on record."""


@dataclass(frozen=True)
class SlideReport:
    """What a slide did."""

    stream: str
    slide: int | None
    """The slot that the clock has reached; None before the first slide."""
    now: dt.datetime | None
    """That slot's end: the stream's clock."""
    previous: int | None
    inserted: int
    expired: int
    late: int
    touched: int
    """Cells that rows came into or left."""
    rebuilt: int
    """Segments that merges wrote."""
    dropped: int
    """Segments that went because all their rows were dead."""
    bytes_written: int
    """Bytes of data files that this slide wrote (appends wrote theirs before)."""
    seconds: float
    moved: bool
    """False if the clock could not move; nothing was changed then."""
    missing: tuple[str, ...] = ()
    spoken_for: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    relayout_bytes: int = 0
    """Bytes that this slide moved from older layouts into the current one."""
    relayout_problem: str | None = None
    """Why it could not; the slide itself is committed all the same."""
    publish_problem: str | None = None
    """Why a published window could not be written; the next slide tries again."""
    erased_late: int = 0
    """Bytes that this slide wrote because expired rows had been in their files for as long as `erase_within` allows."""
    limit_problem: str | None = None
    """Why it could not erase them; the slide itself is committed all the same."""


_log = logging.getLogger(__name__)
_REPORTED = tuple(set(SlideEntry.__struct_fields__) & set(SlideReport.__dataclass_fields__) - {"now", "seconds"})
"""Figures that the report of a slide takes from its record."""
_COUNTS = ("inserted", "expired", "late", "touched", "rebuilt", "dropped", "bytes_written")


def _log_report(report: SlideReport) -> None:
    if report.moved:
        _log.info(
            "slid %s to %s: %s in, %s out",
            report.stream, report.now, f"{report.inserted:,}", f"{report.expired:,}", extra={"report": report},
        )  # fmt: skip
    for problem in (report.relayout_problem, report.publish_problem, report.limit_problem):
        if problem:
            _log.warning("stream %r: %s", report.stream, problem)


@dataclass(frozen=True)
class SlideInput:
    """What a slide reads from the catalog before it begins."""

    entry: StreamEntry
    state: StreamState
    progress: SourceProgress
    sources: dict[str, SourceEntry]
    spooled: dict[int, SpoolEntry]
    waiting: tuple[WaitingRows, ...]
    segments: Manifest
    hooks: tuple[SlideHook, ...]
    gathered: tuple[SpoolEntry, ...] = ()
    """Those of the spooled files that it wrote itself, of rows that waited in the catalog."""


class Slide:
    """One batch update of one stream.

    Args:
        store: The warehouse.
        stream: Its name.
        target: Slide to the last slot end at or before this time; None: as far as the sources allow.
        force: Slide even if a declared source is behind.
        timeout: Seconds to wait for another slide of the stream.
        hooks: What may have to change in the same transaction.
    """

    def __init__(
        self,
        store: Store,
        stream: str,
        target: int | None,
        force: bool,
        timeout: float,
        hooks: Sequence[SlideHook] = (),
    ) -> None:
        store.check_writable()
        self.store = store
        self.stream = stream
        self.target = target
        self.force = force
        self.timeout = timeout
        self.hooks = hooks

    def run(self) -> SlideReport:
        """Slide, and report."""
        entry, _ = self.store.catalog.read(lambda tables: find_stream(tables, self.stream))
        refuse_view(entry, "slid")
        if entry.definition.liveness is not None:
            fail_silent_sources(self.store, self.stream)
        path = self.store.lock_path(entry.id)
        with disk_errors(f"sliding stream {self.stream!r}"):
            if not os.path.isdir(path.parent):
                path.parent.mkdir(exist_ok=True)
            with (
                locked(path, f"the slide of stream {self.stream!r}", self.timeout, self.store.sleep),
                self.store.reading(),
            ):
                report = self._slide(time.perf_counter())
                if report.moved:
                    report = replaced(report, **vars(move_after_slide(self.store, self.stream)))
                    report = replaced(report, **vars(keep_limit(self.store, self.stream, self.hooks)))
                    offer_merge(self.store, self.stream)
        report = self._publish(report)
        _log_report(report)
        return report

    def _publish(self, report: SlideReport) -> SlideReport:
        """Publish what has moved, the views of this stream included; here, where no other slide waits for it."""
        if not self.store.catalog.read(lambda tables: next(iter(tables.raw_items("publications")), None)):
            return report
        from windrow.publication import publish_due  # only here: few streams are published

        problem = publish_due(self.store, at_once=report.erased_late > 0)
        return replaced(report, publish_problem=problem) if problem else report

    def _slide(self, started: float) -> SlideReport:
        store = self.store
        inputs = store.catalog.read(self._read_inputs)
        model, state = inputs.entry.definition.model, inputs.state
        reached = self._choose_target(inputs)
        slot = None if reached is None else model.last_slot(reached)
        if slot is None or (state.slide is not None and slot <= state.slide):
            return self._report_unmoved(inputs, started)
        now = model.slot_end(slot)
        if inputs.waiting:
            gathered = gather_rows(store, self.stream, inputs.waiting, self.hooks)
            inputs = replaced(inputs, spooled=inputs.spooled | gathered, gathered=tuple(gathered.values()))
        update = plan_update(
            slot,
            state.slide,
            now,
            state.ordinal + 1,
            {layout.id: layout.partitioner() for layout in state.layouts},
            [inputs.spooled[number].segments for number in sorted(inputs.spooled)],
            inputs.segments,
            state.bucket,
            store.catalog.read(lambda tables: find_removal_limit(tables, inputs.hooks, inputs.entry, slot))
            if inputs.hooks
            else None,
            [inputs.spooled[number].arrivals for number in sorted(inputs.spooled)],
        )
        loose = {layout.id for layout in state.layouts if layout.loose}
        update.merges = [task for task in update.merges if task.cell[0] not in loose]
        store.files.reach("slide.planned")
        placed, hooks = tuple(update.placed), tuple(self.hooks)
        context = SlideContext(
            inputs.entry, state, slot, now, state.ordinal + 1, placed, inputs.segments, hooks, self.timeout,
            tuple(inputs.spooled),
        )  # fmt: skip
        early = [hook for hook in inputs.hooks if not hook.after_merges]
        with prepare_contributions(store, early, context) as contributions:
            record = self._commit(inputs, update, context, contributions, started)
        if record.rebuilt:
            remove_replaced_files(store)
        figures = {name: getattr(record, name) for name in _REPORTED}
        seconds = time.perf_counter() - started
        return SlideReport(stream=self.stream, now=to_datetime(now), seconds=seconds, moved=True, **figures)

    def _commit(
        self,
        inputs: SlideInput,
        update: UpdatePlan,
        context: SlideContext,
        contributions: Sequence[Contribution],
        started: float,
    ) -> SlideEntry:
        """Write the merges, then record everything in one transaction."""
        store, definition, entry, state = self.store, inputs.entry.definition, inputs.entry, inputs.state
        now = context.now
        merged = write_merges(store, entry, state, update, now)
        dead = None if definition.history is None else write_merges(store, entry, state, update, now, dead=True)
        folder, written = store.stream_folder(self.stream) / "segments", [file for file in (merged, dead) if file]
        names = publish_files(store, written, folder, "slide")
        record = make_slide_entry(
            store, state, update, now, [spooled.events for spooled in inputs.spooled.values()], merged,
            written=[*inputs.gathered, *written],
            seconds=time.perf_counter() - started,
            missing=inputs.progress.excluded + (inputs.progress.waiting_for(now) if definition.sources else ()),
            spoken_for=inputs.progress.spoken_for(now),
        )  # fmt: skip
        store.files.reach("slide.committing")
        removal = begin_removal(store)
        files = [file for contribution in contributions for file in contribution.files]
        context = replaced(context, remaining=partial(foresee_segments, inputs.segments, update, merged))
        late = [hook for hook in inputs.hooks if hook.after_merges]
        with (
            prepare_contributions(store, late, context) as late_contributions,
            store.write_with_files([*names, *files]) as tables,
        ):
            for number in inputs.spooled:
                tables.delete("spool", catalog_key(entry.id, number))
            segments = record_slide(store, tables, entry, inputs.segments, update, record, merged, self.target, dead)
            note_arrivals(tables, entry.id, inputs.spooled, update.placed, record.slide, record.at)
            record_gaps(tables, entry, state, record, inputs.sources, inputs.progress, inputs.spooled.values())
            note_version(tables, entry)
            for contribution in (*contributions, *late_contributions):
                contribution.commit(tables)
            if definition.rejected_retention is not None:
                slid = tables.get("states", catalog_key(entry.id))
                tables.put("states", catalog_key(entry.id), forget_old_rejected(tables, entry, slid, store.clock()))
            forget_reclaimed(store, tables, removal.ready)
            version = tables.version
        store.manifests[entry.id] = version, segments
        removal.finish()
        store.files.reach("slide.committed")
        return record

    def _read_inputs(self, tables: Tables) -> SlideInput:
        entry, state = find_stream(tables, self.stream)
        stream = catalog_key(entry.id)
        sources = {key[len(stream) :].decode(): record for key, record in tables.items("sources", stream)}
        spooled = {decode_last_int(key): record for key, record in list_files(tables, stream)}
        waiting = tuple(list_waiting(tables, stream))
        segments = load_segments(self.store, tables, entry.id, state)
        hooks = tuple(hook for hook in self.hooks if hook.applies_to(tables, entry.id))
        progress = compute_progress(entry.definition, state, sources)
        return SlideInput(entry, state, progress, sources, spooled, waiting, segments, hooks)

    def _choose_target(self, inputs: SlideInput) -> int | None:
        """The time to slide to: as far as the sources allow, or what the user asked for, if nothing forbids it."""
        if self.target is None:
            return inputs.progress.upto
        definition, model = inputs.entry.definition, inputs.entry.definition.model
        if self.target > self.store.clock() + definition.max_ahead:
            raise ClockError(
                f"stream {self.stream!r} cannot slide to {format_time(self.target)}: that is more than max_ahead "
                f"({format_duration(definition.max_ahead)}) ahead of the wall clock, "
                "and would expire rows before their time"
            )
        end = model.slot_end(model.last_slot(self.target))
        if definition.sources and not self.force and inputs.progress.waiting_for(end):
            raise behind_error(definition, inputs.progress, end)
        return end

    def _report_unmoved(self, inputs: SlideInput, started: float) -> SlideReport:
        slide = inputs.state.slide
        now = None if slide is None else to_datetime(inputs.entry.definition.model.slot_end(slide))
        figures: dict[str, Any] = {"slide": slide, "previous": slide, **dict.fromkeys(_COUNTS, 0)}
        seconds = time.perf_counter() - started
        waiting = inputs.progress.waiting_for() if self.target is None else ()
        return SlideReport(stream=self.stream, now=now, seconds=seconds, moved=False, waiting_for=waiting, **figures)


def foresee_segments(segments: Manifest, update: UpdatePlan, merged: StagedFile | None) -> Manifest:
    """What will be in the cells after an update; the segments that its merges wrote have stand-ins for numbers."""
    added = update.kept()
    if merged is not None:
        numbers = itertools.count(-(1 << 40), -1)
        added += map(partial(make_segment, merged), merged.drafts, numbers, merged.placements)
    return segments.replace({segment.id for segment in update.replaced()}, added, update.dead)


def write_merges(
    store: Store, entry: StreamEntry, state: StreamState, update: UpdatePlan, now: int, *, dead: bool = False
) -> StagedFile | None:
    """Write all merges of a slide, or the dead rows that they leave out, into one file; None if there is no row."""
    definition = entry.definition
    schema = definition.stored_schema
    gone_at = now if update.needed is None else update.needed
    merges = [task for task in update.merges if not dead or any(s.min_exp <= gone_at for s in task.segments)]
    if not merges:
        return None
    drafts, placements = [], []
    with StagedWriter(store) as file:
        output = file.write_segments(entry, state.layout, schema)
        for task in merges:
            layout, row, column = task.cell
            model = definition.model.with_key(state.layout_of(layout).key)
            draft = merge_segments(list(task.segments), column, gone_at, model, schema, store.reader, output, dead=dead)
            if draft is not None:
                first, last = min(s.first_slide for s in task.segments), max(s.last_slide for s in task.segments)
                drafts.append(draft)
                placements.append(Placement(layout, row, first, last))
        return file.seal(drafts, placements=placements, soon=True) if drafts else None


def make_slide_entry(
    store: Store,
    state: StreamState,
    update: UpdatePlan,
    now: int,
    events: Iterable[Histogram],
    merged: StagedFile | None,
    *,
    written: Iterable[StagedFile | SpoolEntry],
    seconds: float,
    missing: tuple[str, ...],
    spoken_for: tuple[str, ...],
) -> SlideEntry:
    """The record of a slide that is about to be committed.

    Args:
        store: The warehouse.
        state: Of the stream, before the slide.
        update: What the slide changes.
        now: The stream's clock after it.
        events: Of each file that it takes in, the event slots of its rows.
        merged: The file that its merges wrote.
        written: All files that it wrote.
        seconds: How long it has taken.
        missing: Sources that it does not wait for.
        spoken_for: Silent sources that max_skew speaks for.
    """
    spooled = list(events)
    late = sum(count_late_rows(slots, state.slide) for slots in spooled)
    return SlideEntry(
        slide=update.slide,
        previous=state.slide,
        ordinal=state.ordinal + 1,
        now=now,
        at=store.clock(),
        inserted=update.inserted,
        expired=update.expired,
        late=late,
        touched=len(update.touched),
        rebuilt=0 if merged is None else len(merged.drafts),
        dropped=len(update.dropped),
        bytes_written=sum(file.bytes for file in written),
        seconds=seconds,
        missing=missing,
        spoken_for=spoken_for,
        late_slots=find_late_slots(spooled, state.slide) if late else (),
    )


def record_slide(
    store: Store,
    tables: Tables,
    entry: StreamEntry,
    segments: Manifest,
    update: UpdatePlan,
    record: SlideEntry,
    merged: StagedFile | None,
    target: int | None = None,
    dead: StagedFile | None = None,
) -> Manifest:
    """Record a slide: segments that it placed and replaced, and the stream's new state; gives the segments afterwards.

    Args:
        store: The warehouse.
        tables: Of the transaction.
        entry: The stream or view.
        segments: What was in its cells before, with the overrides of this slide.
        update: What the slide changes.
        record: The slide.
        merged: The published file that its merges wrote.
        target: The time that the user asked it to slide to.
        dead: The published file of the dead rows that its merges left out, if they become history.
    """
    stream, has_history = catalog_key(entry.id), entry.definition.history is not None
    added, replaced_segments = [*update.kept(), *record_placed(tables, entry.id, merged)], update.replaced()
    rewritten = [segment for task in update.merges for segment in task.segments]
    exchange_segments(tables, entry.id, added, rewritten if has_history else replaced_segments)
    override_segments(tables, entry.id, update.ended)
    tables.put("slides", stream + catalog_key(record.ordinal), record)
    tables.delete("slides", stream + catalog_key(record.ordinal - SLIDES_KEPT))
    # Read again: appends may have changed it since we looked.
    _, state = find_stream(tables, entry.definition.name)
    remaining = segments.replace({segment.id for segment in replaced_segments}, added, update.dead)
    state = replace(
        note_change(state, tables.version, [*added, *update.ended], [*replaced_segments, *update.ended], remaining),
        slide=record.slide,
        ordinal=record.ordinal,
        missing=record.missing,
        spoken_for=record.spoken_for,
        ledger=True,
        inserted=state.inserted + record.inserted,
        expired=state.expired + record.expired,
        late=state.late + record.late,
        bucket=update.bucket,
        overridden=tables.version if update.ended else state.overridden,
        # The times of rows that overrides have ended do not say that they are dead.
        torn=find_torn_files(
            state.torn, [*rewritten, *(s for s in update.dropped if s.ended)], update.placed, remaining
        ),
        heartbeat=state.heartbeat if target is None else max(state.heartbeat or target, target),
    )
    if has_history:
        state = move_to_history(tables, entry, state, [*update.dropped, *record_placed(tables, entry.id, dead)])
    state = _adapt_index(entry, state, record, int(remaining.arrays.bytes.sum()))
    tables.put("states", stream, drop_empty_layouts(tables, entry.id, state, remaining))
    store.usage.record(tables, entry.id, slides=1)
    return remaining


def _adapt_index(entry: StreamEntry, state: StreamState, record: SlideEntry, total: int) -> StreamState:
    """A stream that chooses its own index changes it when late rows show that arrival order is not expiry order."""
    if not (entry.definition.index_auto and record.late and state.layout.index.name == "wave-insertion"):
        return state
    index, why = choose_index(entry.definition, late_rows=True)
    return add_layout(state, entry.definition, index, why, now=record.at, total=total)
