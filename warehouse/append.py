"""Appends: rows become durable in the spool, sorted and split by expiry column, all of them or none.

Rows that cannot be taken go to the rejected rows in the same transaction. Memory is bounded by a chunk, not by the
batch.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from windrow import arrow_input
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import encode_batch_key, encode_checkpoint_key, find_stream, refuse_view, resolve_source
from windrow.catalog.records import (
    BatchEntry,
    CheckpointEntry,
    Layout,
    RejectedEntry,
    SourceEntry,
    SpoolEntry,
    StreamEntry,
    StreamState,
)
from windrow.catalog.segment_log import retire_files
from windrow.definitions import check_label
from windrow.errors import BatchConflictError, BusyError, SchemaError, UnknownStreamError
from windrow.files import disk_errors
from windrow.gaps import Ledger
from windrow.indexes.row_model import Int64s, RowModel
from windrow.indexes.segment_builder import SortedBatch, number_arrivals, sort_into_segments
from windrow.indexes.segments import Histogram, pack_histogram
from windrow.layouts import recompute_expiries, with_layout, without_expiry_columns
from windrow.native import rows as native_rows
from windrow.native.row_digest import digest_rows
from windrow.rejection import RejectedRowsWriter, classify_rows
from windrow.row_checks import apply_checks
from windrow.schema_changes import in_first_types
from windrow.segment_files import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Placement,
    StagedFile,
    StagedWriter,
    count_late_rows,
    make_segment,
    publish_files,
    record_file,
    split_chunks,
)
from windrow.slide_hooks import AppendContribution, PrepareAppend, SlideHook
from windrow.sources import merge_claims, settle_source
from windrow.store import Store

if TYPE_CHECKING:
    from windrow.cli.flawed_lines import FlawedLines

_log = logging.getLogger(__name__)
_MASK = (1 << 64) - 1
_MOST_DEAD_TIMES = 1 << 20
"""Event times of dead rows that are compared with gaps; a bound of memory."""


@dataclass(frozen=True)
class AppendReport:
    """The outcome of an append."""

    stream: str
    source: str
    batch_id: str | None
    rows: int
    """Rows given."""
    accepted: int
    rejected: dict[str, int]
    """Rows rejected, by reason."""
    late: int
    """Accepted rows whose slot had already been slid past."""
    duplicate: bool
    """The batch had been appended before; nothing was changed."""
    bytes_written: int
    seconds: float
    replaced: int = 0
    """Rows that these took the place of, with ``replace=True``."""
    copied_commit: int | None = None
    """Of a warehouse in an object store: the last commit whose catalog is copied there. If this machine is lost, so are
    rows whose commit is later, unless ``durable="store"`` has waited for them. None: there is no copy, or no store."""
    durable: str = "disk"
    """What keeps the rows: this machine's disk, or the object store."""


@dataclass
class _AppendCounts:
    rows: int = 0
    accepted: int = 0
    late: int = 0
    max_ts: int | None = None
    digest: int = 0
    files: list[StagedFile] = field(default_factory=list)


class Append:
    """One append under way: rows are staged chunk by chunk, then committed in one transaction.

    Args:
        store: The warehouse.
        stream: Its name.
        source: Which source the rows come from.
        batch_id: Makes the append idempotent.
        hooks: What may add to the same transaction.
    """

    def __init__(
        self,
        store: Store,
        stream: str,
        source: str | None,
        batch_id: str | None,
        hooks: Sequence[SlideHook] = (),
    ) -> None:
        store.check_writable()
        self.store = store
        self._hooks = [hook for hook in hooks if hook.load_append is not None]
        self.entry, self.state, self._preparers = store.catalog.read(lambda tables: self._read_stream(tables, stream))
        refuse_view(self.entry, "appended to")
        self.definition = self.entry.definition
        self.model = self.definition.model
        self.identity = self.definition.identity
        self.schema = self.definition.schema
        self.source = self._resolve_source(source)
        self.batch_id = None if batch_id is None else check_label(batch_id, "batch id")
        self.digests = batch_id is not None
        """Whether the batch is remembered by its rows; otherwise only by how many there were."""
        self.checkpoint: tuple[str, CheckpointEntry] | None = None
        """The streaming query whose batch this is, and the batch's number."""
        self.covers: tuple[int, int] | None = None
        """The interval that is whole, as the source says, with these rows."""
        self._dead: Int64s = np.empty(0, np.int64)
        """Event times of rows that were rejected because they had already expired, ascending."""
        self._previous: BatchEntry | None = None
        self.max_rejected: float | None = None
        """The share of rows that may be rejected; with more, nothing is appended."""
        self.layout: Layout = self.state.layout
        self.tally = _AppendCounts()
        self.rejected = RejectedRowsWriter(store, self.source, self.batch_id, self.definition.checks)
        self._writing: list[tuple[Future[StagedFile], int]] = []
        self._staged: list[Path] = []
        self._contributing: list[
            tuple[StagedFile, Future[tuple[AppendContribution, ...]], Callable[[], tuple[AppendContribution, ...]]]
        ] = []
        self._directories: dict[int, bytes] = {}
        self._started = time.perf_counter()
        self._partitioner = self.layout.partitioner()

    def _resolve_source(self, source: str | None) -> str:
        return resolve_source(self.entry, source)

    def _read_stream(self, tables: Tables, stream: str) -> tuple[StreamEntry, StreamState, list[PrepareAppend]]:
        entry, state = find_stream(tables, stream)
        applying = (hook for hook in self._hooks if hook.applies_to(tables, entry.id))
        return entry, state, [hook.load_append() for hook in applying if hook.load_append is not None]

    def run(self, data: Any, replacing: list[int] | None = None, flaws: "FlawedLines | None" = None) -> AppendReport:
        """Take the rows of `data`.

        Args:
            data: Whatever a user holds rows in.
            replacing: Rejected entries that this append replays.
            flaws: Where the reader of `data` puts lines that it cannot read; they are rejected.
        """
        previous = self._previous = self.known_batch()
        judged = (self.definition.time, self.definition.expires or "")
        rows = arrow_input.conform_batches(data, self.schema, self.definition.name, self.definition.added, judged)
        try:
            with disk_errors(f"appending to stream {self.definition.name!r}"):
                for chunk in split_chunks(rows, self.schema, CHUNK_BYTES):
                    self._take(chunk, write=previous is None)
                    self._take_flaws(flaws, write=previous is None)
                self._take_flaws(flaws, write=previous is None)
                if previous is not None:
                    return self.duplicate(previous)
                return self.commit(replacing or [])
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was staged; files that are still being written go when they are done."""
        for writing, _ in self._writing:
            writing.cancel()
            with contextlib.suppress(Exception):
                writing.result()
        self.rejected.discard()
        self.store.writer.discard([*self._staged, *(staged.path for staged in self.tally.files)])

    def known_batch(self) -> BatchEntry | None:
        """The record of this batch, if it was appended before."""
        if self.batch_id is None:
            return None
        key = encode_batch_key(self.entry.id, self.source, self.batch_id)
        batch: BatchEntry | None = self.store.catalog.read(lambda tables: tables.get("batches", key))
        return batch

    def _take(self, chunk: pa.Table, *, write: bool) -> None:
        ts, exp, codes = classify_rows(chunk, self.definition, self.now, self.horizon())
        before = self.tally.rows
        self.count(chunk.num_rows, self._digest(chunk, ts, exp))
        if not write:
            return
        codes = apply_checks(chunk, self.definition, codes, before)
        if codes.any():
            accepted = codes == 0
            self.reject(chunk.filter(pa.array(~accepted)), codes[~accepted])
            chunk, ts, exp = chunk.filter(pa.array(accepted)), ts[accepted], exp[accepted]
        if chunk.num_rows:
            self.stage(chunk, ts, exp, number_arrivals(chunk.num_rows, 0))

    def _check_share(self) -> None:
        rejected = sum(self.rejected.reasons.values())
        if self.max_rejected is not None and rejected > self.max_rejected * self.tally.rows:
            reasons = "; ".join(f"{number:,} {reason}" for reason, number in sorted(self.rejected.reasons.items())[:3])
            raise SchemaError(
                f"stream {self.definition.name!r}: {rejected:,} of {self.tally.rows:,} rows would be rejected "
                f"({reasons}), more than max_rejected={self.max_rejected:g}; nothing was appended"
            )

    def _take_flaws(self, flaws: "FlawedLines | None", *, write: bool) -> None:
        """Reject the lines that could not be read so far."""
        lines = [] if flaws is None else flaws.take()
        if lines:
            self.count(len(lines), self.digest(pa.table({"text": [line.text for line in lines]})))
            if write:
                self.rejected.add_lines(lines, self.schema)

    def _digest(self, chunk: pa.Table, ts: Int64s, exp: Int64s) -> int:
        if self._previous is None or self._previous.whole:
            return self.digest(chunk)
        # An entry of an earlier release has the digest of times and first search key only.
        keys = self.identity.encoded_keys(chunk) if self.identity.key else None
        return native_rows.digest(ts, ts if self.model.expires is None else exp, keys)

    def digest(self, rows: pa.Table | pa.RecordBatch) -> int:
        """By what rows are recognised if they are appended again; 0 where nobody will ask."""
        return digest_rows(in_first_types(rows, self.definition)) if self.digests else 0

    def count(self, rows: int, digest: int) -> None:
        """Count rows that were given, taken or not; a batch with an id is remembered by their digest."""
        self.tally.rows += rows
        self.tally.digest = (self.tally.digest + digest) & _MASK

    @property
    def now(self) -> int | None:
        """The clock by which this append judges what is dead."""
        return None if self.state.slide is None else self.model.slot_end(self.state.slide)

    def horizon(self) -> int:
        """The latest event time that is not too far ahead now."""
        return self.store.clock() + self.definition.max_ahead

    def reject(self, rows: pa.Table, codes: np.ndarray[Any, Any]) -> None:
        """Keep rows that are not taken, with the reason of each."""
        self.rejected.add(rows, codes)
        if (dead := codes == native_rows.DEAD_ON_ARRIVAL).any():
            dead_times, _ = self.model.times(rows.filter(pa.array(dead)))
            self._dead = np.unique(np.concatenate([self._dead, dead_times]))
            while len(self._dead) > _MOST_DEAD_TIMES:  # a gap between two of what is left is not likely
                self._dead = self._dead[::2]

    def stage(self, chunk: pa.Table, ts: Int64s, exp: Int64s, seq: Int64s) -> None:
        """Write rows that are taken, whose arrival order within the file is `seq`."""
        batch = sort_into_segments(chunk, self.model, self._partitioner, ts, exp, seq)
        slots = self.model.slots(ts)
        events = pack_histogram(*native_rows.histogram(slots))
        contribute = partial(self._contribute, chunk, slots)
        # The next chunk is sorted while one is written. A small chunk is the last one and is written here.
        self._drain(1)
        path, max_ts = self._new_path(), int(ts.max())
        if chunk.nbytes < CHUNK_BYTES // 4 and chunk.num_rows < CHUNK_ROWS // 4:
            pending = self.store.run_in_background(contribute) if self._preparers else None
            staged = self._write(path, batch, events, soon=True)
            if pending is not None:
                self._contributing.append((staged, pending, contribute))
            self._drain(0)
            self.adopt(staged, max_ts)
        else:
            self._writing.append((self.store.run_in_background(self._write, path, batch, events, contribute), max_ts))

    def _new_path(self) -> Path:
        self._staged.append(self.store.writer.stage())
        return self._staged[-1]

    def _contribute(self, rows: pa.Table, slots: Int64s) -> tuple[AppendContribution, ...]:
        """What the hooks of the stream record with rows."""
        contributions = [prepare(self.store, self.entry, rows, slots) for prepare in self._preparers]
        return tuple(contribution for contribution in contributions if contribution is not None)

    def _await_contributions(self) -> None:
        """Wait for contributions that were prepared while their file was written and synced."""
        for staged, pending, contribute in self._contributing:
            # If no thread has begun with it, it is done here.
            staged.contributions = contribute() if pending.cancel() else pending.result()

    def _write(
        self,
        path: Path,
        batch: SortedBatch,
        events: Histogram,
        contribute: Callable[[], tuple[AppendContribution, ...]] = tuple,
        *,
        soon: bool = False,
    ) -> StagedFile:
        with StagedWriter(self.store, path) as file:
            batch.write(file.write_segments(self.entry, self.layout, batch.table.schema))
            staged = file.seal(batch.cuts, events, soon=soon)
        staged.contributions = contribute()
        return staged

    def _drain(self, most: int) -> None:
        """Wait until at most `most` files are being written, and count the others."""
        while len(self._writing) > most:
            writing, max_ts = self._writing[0]
            self.adopt(writing.result(), max_ts)
            self._writing.pop(0)

    def adopt(self, staged: StagedFile, max_ts: int) -> None:
        """Count a sealed file, whoever wrote it; rows that are in none of its segments are never seen."""
        tally = self.tally
        tally.files.append(staged)
        tally.accepted += staged.taken
        tally.late += count_late_rows(staged.events, self.state.slide)
        tally.max_ts = max_ts if tally.max_ts is None else max(tally.max_ts, max_ts)

    def duplicate(self, previous: BatchEntry) -> AppendReport:
        """The report of a batch that was appended before, or a refusal if it had other rows."""
        if previous.rows != self.tally.rows or not (previous.erased or previous.digest == self.tally.digest):
            raise BatchConflictError(
                f"batch {self.batch_id!r} of source {self.source!r} was appended to stream "
                f"{self.definition.name!r} before with other rows "
                f"({previous.rows} then, {self.tally.rows} now); send other rows under a new batch id, nothing was "
                "changed"
            )
        return self._report(duplicate=True, bytes_written=0)

    def commit(self, replacing: Sequence[int] = ()) -> AppendReport:
        """Publish what was staged and record it in one transaction."""
        store = self.store
        published, rejected = self.publish()
        store.files.reach("append.committing")
        with store.write_with_files(published) as tables:
            previous = (
                tables.get("batches", encode_batch_key(self.entry.id, self.source, self.batch_id))
                if self.batch_id
                else None
            )
            if previous is None:
                self._record(tables, rejected, replacing)
            else:
                for name in published:
                    tables.delete("checksums", name.encode())
        store.cache_directories(self._directories)
        store.files.reach("append.committed")
        if previous is not None:
            # Another process appended the same batch since we looked; no record names our files.
            store.withdraw(published)
            return self.duplicate(previous)
        return self.report(rejected)

    def publish(self) -> tuple[list[str], StagedFile | None]:
        """Publish what was staged; gives the names of all files, and the one of rejected rows."""
        store, published = self.store, list[str]()
        self._drain(0)
        self._check_share()
        folder = store.stream_folder(self.definition.name)
        rejected = self.rejected.seal()
        try:
            published += publish_files(store, [rejected] if rejected else [], folder / "rejected", "rejected")
            published += publish_files(store, self.tally.files, folder / "segments", "append")
            self._await_contributions()
        except BaseException:
            store.writer.discard([store.root / name for name in published])
            raise
        return published, rejected

    def report(self, rejected: StagedFile | None, replaced: int = 0) -> AppendReport:
        """The report of what was recorded."""
        written = sum(f.bytes for f in self.tally.files) + (rejected.bytes if rejected else 0)
        return self._report(duplicate=False, bytes_written=written, replaced=replaced)

    def _record(self, tables: Tables, rejected: StagedFile | None, replacing: Sequence[int]) -> None:
        entry, state = find_stream(tables, self.definition.name)
        if entry.id != self.entry.id:
            raise UnknownStreamError(
                f"stream {self.definition.name!r} was dropped and made anew while rows were appended; append them again"
            )
        now, tally, stream = self.store.clock(), self.tally, catalog_key(entry.id)
        # The stream may have been turned to another layout or altered since this append began.
        new_model = entry.definition.model if entry.definition.lasts_otherwise(self.definition) else None
        if tally.files:
            state = with_layout(state, self.layout if new_model is None else without_expiry_columns(self.layout))
        places = []
        for staged in tally.files:
            places.append((state.next_spool, 0, staged.taken))
            file = self._record_file(tables, state.next_spool, staged, now, new_model)
            tables.put("spool", stream + catalog_key(state.next_spool), file)
            state = replace(state, next_spool=state.next_spool + 1)
        if rejected is not None:
            record = RejectedEntry(
                file=rejected.name,
                rows=rejected.rows,
                bytes=rejected.bytes,
                digest=rejected.digest,
                reasons=self.rejected.reasons,
                source=self.source,
                batch_id=self.batch_id,
                at=now,
            )
            tables.put("rejected", stream + catalog_key(state.next_rejected), record)
            state = replace(state, next_rejected=state.next_rejected + 1, rejected=state.rejected + rejected.rows)
        replayed = 0
        for number in replacing:
            old = tables.get("rejected", stream + catalog_key(number))
            if old is None:
                raise BusyError(
                    f"rejected rows of stream {self.definition.name!r} were replayed or discarded by somebody else "
                    "meanwhile; nothing was changed"
                )
            tables.delete("rejected", stream + catalog_key(number))
            replayed += old.rows
            state = replace(state, rejected=state.rejected - old.rows)
            retire_files(tables, [old.file], entry.id)
        tables.put("states", stream, state)
        self._record_source(tables, entry, state, now, (0 if rejected is None else rejected.rows) - replayed)
        if self.batch_id is not None:
            batch = BatchEntry(
                source=self.source,
                batch_id=self.batch_id,
                digest=tally.digest,
                whole=self.digests,
                rows=tally.rows,
                accepted=tally.accepted,
                at=now,
                places=tuple(places),
            )
            tables.put("batches", encode_batch_key(entry.id, self.source, self.batch_id), batch)
        if self.checkpoint is not None:
            query, reached = self.checkpoint
            reached = replace(reached, source=self.source, at=now)
            tables.put("checkpoints", encode_checkpoint_key(entry.id, query), reached)

    def _record_file(
        self, tables: Tables, number: int, staged: StagedFile, now: int, new_model: RowModel | None
    ) -> SpoolEntry:
        """Name a file, with what hooks have made of its rows; gives its record in the spool, for that number."""
        for contribution in staged.contributions if new_model is None else ():
            contribution.commit(tables, self.entry.id, number)
        spooled = Placement(self.layout.id)
        numbers = record_file(tables, self.entry.id, staged)
        segments = [make_segment(staged, *each, spooled) for each in zip(staged.drafts, numbers, strict=True)]
        self._directories |= {number: draft.directory for draft, number in zip(staged.drafts, numbers, strict=True)}
        if new_model is not None:
            schema = self.definition.stored_schema
            segments = [recompute_expiries(segment, new_model, schema, self.store.reader) for segment in segments]
        return SpoolEntry(
            segments=tuple(segments),
            rows=staged.taken,
            bytes=staged.bytes,
            events=staged.events,
            source=self.source,
            batch_id=self.batch_id,
            at=now,
        )

    def _record_source(self, tables: Tables, entry: StreamEntry, state: StreamState, now: int, rejected: int) -> None:
        key = catalog_key(entry.id) + self.source.encode()
        previous: SourceEntry = tables.get("sources", key) or SourceEntry()
        reached = [t for t in (previous.max_ts, self.tally.max_ts) if t is not None]
        record = replace(
            previous,
            max_ts=max(reached) if reached else None,
            failed=None,
            rows=previous.rows + self.tally.accepted,
            rejected=previous.rejected + rejected,
            heard=now,
            spooled=state.next_spool - 1 if self.tally.files else previous.spooled,
            covers=merge_claims(previous.covers, () if self.covers is None else (self.covers,)),
        )
        if len(self._dead):
            Ledger(tables, entry, state.ordinal, now).keep(self.source, self._dead)
        if not self.tally.files:
            record = settle_source(tables, entry, state, self.source, record, now)
        tables.put("sources", key, record)

    def _report(self, *, duplicate: bool, bytes_written: int, replaced: int = 0) -> AppendReport:
        tally = self.tally
        report = AppendReport(
            stream=self.definition.name,
            source=self.source,
            batch_id=self.batch_id,
            rows=tally.rows,
            accepted=tally.accepted,
            rejected=dict(self.rejected.reasons),
            late=tally.late,
            duplicate=duplicate,
            bytes_written=bytes_written,
            seconds=time.perf_counter() - self._started,
            replaced=replaced,
        )
        log_report(report)
        return report


def log_report(report: AppendReport) -> None:
    """Tell the log what became of an append."""
    batch = f"source {report.source!r}" + ("" if report.batch_id is None else f", batch {report.batch_id!r}")
    if report.duplicate:
        _log.debug("stream %r: %s was appended before", report.stream, batch, extra={"report": report})
    elif report.rejected:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in sorted(report.rejected.items()))
        _log.warning(
            "stream %r: %d of %d rows rejected (%s): %s",
            report.stream, sum(report.rejected.values()), report.rows, batch, reasons, extra={"report": report},
        )  # fmt: skip
    else:
        _log.debug("stream %r: %d rows appended (%s)", report.stream, report.rows, batch, extra={"report": report})
