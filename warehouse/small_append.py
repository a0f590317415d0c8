"""Small appends: rows go into the catalog's own commit, where a file would cost two syncs more.

What a small append cannot do at once (rows that are rejected, batches that were sent before) is left to `Append`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from windrow import arrow_input
from windrow.append import Append, AppendReport, log_report
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import encode_batch_key, find_stream, refuse_view, resolve_source
from windrow.catalog.records import BatchEntry, SourceEntry, SpoolEntry, StreamEntry, StreamState, WaitingEntry
from windrow.definitions import StreamDefinition, check_label
from windrow.errors import BusyError, SchemaError, StorageError, UnknownStreamError
from windrow.files import disk_errors
from windrow.group_commit import group_commit_of
from windrow.indexes.row_model import RowModel
from windrow.indexes.segment_builder import number_arrivals
from windrow.layouts import with_layout, without_expiry_columns
from windrow.locks import locked
from windrow.native.row_digest import digest_rows
from windrow.rejection import classify_rows
from windrow.relayout import hold_stream_lock
from windrow.row_checks import apply_checks
from windrow.row_spool import (
    SMALL_BYTES,
    Head,
    WaitingRows,
    add_rows,
    find_waiting,
    list_waiting,
    read_rows,
    replace_waiting,
)
from windrow.schema_changes import in_first_types
from windrow.segment_files import StagedFile
from windrow.slide_hooks import SlideHook
from windrow.sources import merge_claims
from windrow.store import Store
from windrow.value_checks import check_values, is_checked

if TYPE_CHECKING:
    from windrow.cli.flawed_lines import FlawedLines

_GATHER_SECONDS = 60.0
"""How long who needs waiting rows in a file waits for a slide that is under way."""
_MOST_TRIES = 8
"""How often an append looks again at a stream that others change meanwhile, before it goes the long way."""


def append_rows(
    store: Store,
    stream: str,
    data: Any,
    *,
    source: str | None,
    batch_id: str | None,
    covers: tuple[int, int] | None,
    max_rejected: float | None,
    flaws: "FlawedLines | None",
    hooks: Sequence[SlideHook],
) -> AppendReport:
    """Append rows, few of them in the catalog's own commit, others in files; see `Warehouse.append`."""
    if flaws is None:
        few, data = _take_few(data, stream, store.small_rows)
        if few is not None:
            report = SmallAppend(store, stream, source, batch_id, covers, hooks).run(few)
            if report is not None:
                log_report(report)
                return report
    append = Append(store, stream, source, batch_id, hooks)
    append.covers, append.max_rejected = covers, max_rejected
    return append.run(data, flaws=flaws)


def _take_few(data: Any, stream: str, most: int) -> tuple[pa.Table | pa.RecordBatch | None, Any]:
    """All rows, if they are few (else None), and something that still has all rows."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return (data if 0 < data.num_rows <= most else None), data
    if most <= 0:
        return None, data
    reader = arrow_input.open_reader(data, f"stream {stream!r}")
    batches, rows = [], 0
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if rows > most:
            return None, pa.RecordBatchReader.from_batches(reader.schema, chain(batches, reader))
    table = pa.Table.from_batches(batches, reader.schema)
    return (table if rows else None), table


@dataclass(frozen=True)
class _KnownStream:
    """A stream as an append last saw it, and the bytes of its records: the commit compares them."""

    entry: StreamEntry
    state: StreamState
    model: RowModel
    entry_bytes: bytes
    state_bytes: bytes
    schema: bytes | None
    """Its columns, as Arrow IPC; None if their values cannot be kept row by row."""
    key: bytes
    """The stream's in the catalog."""
    watched: tuple[int, ...]
    """The places of columns whose values may be wrong in themselves."""
    required: tuple[int, ...]
    """The places of columns that may have no nulls."""

    @classmethod
    def read(cls, tables: Tables, name: str) -> "_KnownStream":
        entry, state = find_stream(tables, name)
        refuse_view(entry, "appended to")
        raw = bytes(tables.raw("streams", name.encode())), bytes(tables.raw("states", catalog_key(entry.id)))
        schema = entry.definition.schema
        has_dictionary = any(_has_dictionary(field.type) for field in schema)
        return cls(
            entry,
            state,
            entry.definition.model,
            *raw,
            schema=None if has_dictionary else schema.serialize().to_pybytes(),
            key=catalog_key(entry.id),
            watched=tuple(index for index, field in enumerate(schema) if is_checked(field.type)),
            required=tuple(index for index, field in enumerate(schema) if not field.nullable),
        )

    def is_current(self, tables: Tables) -> bool:
        """Whether nobody has changed the stream since, or moved its clock."""
        name = self.entry.definition.name.encode()
        return bool(
            tables.raw("streams", name) == self.entry_bytes and tables.raw("states", self.key) == self.state_bytes
        )


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


class _StaleError(Exception):
    """The stream has changed since the rows were judged."""


class _NotSmallError(Exception):
    """The append has to go the long way."""


class SmallAppend:
    """One append of few rows.

    Args:
        store: The warehouse.
        stream: Its name.
        source: Which source the rows come from.
        batch_id: Makes the append idempotent.
        covers: The interval that is whole with these rows.
        hooks: For the file that gathers rows, if it is time for one.
    """

    def __init__(
        self,
        store: Store,
        stream: str,
        source: str | None,
        batch_id: str | None,
        covers: tuple[int, int] | None,
        hooks: Sequence[SlideHook],
    ) -> None:
        store.check_writable()
        self.store = store
        self.stream = stream
        self.source = source
        self.batch_id = None if batch_id is None else check_label(batch_id, "batch id")
        self.covers = covers
        self.hooks = hooks

    def run(self, data: pa.Table | pa.RecordBatch) -> AppendReport | None:
        """Take the rows; None if the append must go the long way, and nothing was changed."""
        started = time.perf_counter()
        for _ in range(_MOST_TRIES):
            cached: _KnownStream | None = self.store.known_streams.get(self.stream)
            if cached is None:
                cached = self.store.catalog.read(lambda tables: _KnownStream.read(tables, self.stream))
                self.store.known_streams[self.stream] = cached
            try:
                return self._append(cached, data, started)
            except _NotSmallError:
                return None
            except _StaleError:
                self.store.known_streams.pop(self.stream, None)
        return None

    def _append(self, cached: _KnownStream, data: pa.Table | pa.RecordBatch, started: float) -> AppendReport:
        definition, model, state = cached.entry.definition, cached.model, cached.state
        if cached.schema is None:
            raise _NotSmallError
        try:
            source = resolve_source(cached.entry, self.source)
            rows = _conform(data, cached)
            now = None if state.slide is None else model.slot_end(state.slide)
            ts, _, codes = classify_rows(rows, definition, now, self.store.clock() + definition.max_ahead)
            if definition.checks:
                codes = _apply_checks(pa.Table.from_batches([rows]), definition, codes)
            body = rows.serialize().to_pybytes()
            if codes.any() or len(body) > SMALL_BYTES:
                raise _NotSmallError
        except Exception:
            # What is wrong with them is said of the stream as it is now.
            if self.store.catalog.read(cached.is_current):
                raise
            raise _StaleError from None
        late = 0 if state.slide is None else int((model.slots(ts) <= state.slide).sum())
        work = _Recording(
            cached,
            WaitingEntry(source, cached.schema, self.store.clock()),
            rows.num_rows,
            body,
            int(ts.max()),
            self.batch_id,
            0 if self.batch_id is None else digest_rows(in_first_types(rows, definition)),
            () if self.covers is None else (self.covers,),
        )
        files = self.store.files
        with disk_errors(f"appending to stream {definition.name!r}"):
            files.reach("append.committing")
            head = group_commit_of(self.store).run(self.store, work.record)
            files.reach("append.committed")
        if head.is_full:
            gather_if_free(self.store, self.stream, self.hooks)
        return AppendReport(
            stream=definition.name,
            source=source,
            batch_id=self.batch_id,
            rows=rows.num_rows,
            accepted=rows.num_rows,
            rejected={},
            late=late,
            duplicate=False,
            bytes_written=len(body),
            seconds=time.perf_counter() - started,
        )


def _as_batch(rows: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _conform(data: pa.Table | pa.RecordBatch, stream: _KnownStream) -> pa.RecordBatch:
    """The rows in the stream's schema, as one batch."""
    definition = stream.entry.definition
    judged = (definition.time, definition.expires or "")
    if data.schema.equals(definition.schema):
        rows = _as_batch(data)
        if not any(rows.column(index).null_count for index in stream.required):
            for index in stream.watched:
                name = rows.schema.names[index]
                check_values(rows.column(index), name, f"stream {definition.name!r}", rejected=name in judged)
            return rows
    batches = list(arrow_input.conform_batches(data, definition.schema, definition.name, definition.added, judged))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _apply_checks(rows: pa.Table, definition: StreamDefinition, codes: Any) -> Any:
    try:
        return apply_checks(rows, definition, codes, 0)
    except SchemaError:  # a batch that is known may be sent again, whatever the checks say now
        raise _NotSmallError from None


@dataclass(frozen=True)
class _Recording:
    """What a small append does in its transaction."""

    known: _KnownStream
    place: WaitingEntry
    rows: int
    body: bytes
    max_ts: int
    batch_id: str | None
    digest: int
    covers: tuple[tuple[int, int], ...]

    def record(self, tables: Tables) -> Head:
        """Put everything down; raises before it changes anything."""
        cached, place = self.known, self.place
        if not cached.is_current(tables):
            raise _StaleError
        stream, batch = cached.key, b""
        if self.batch_id is not None:
            batch = encode_batch_key(cached.entry.id, place.source, self.batch_id)
            if tables.raw("batches", batch) is not None:
                raise _NotSmallError
        key = stream + place.source.encode()
        previous: SourceEntry = tables.get("sources", key) or SourceEntry()
        added = add_rows(tables, stream, cached.state, previous, place, self.rows, self.body)
        if added is None:
            raise _NotSmallError
        number, head = added
        record = replace(
            previous,
            max_ts=self.max_ts if previous.max_ts is None else max(previous.max_ts, self.max_ts),
            failed=None,
            rows=previous.rows + self.rows,
            heard=place.at,
            spooled=number,
            covers=merge_claims(previous.covers, self.covers),
        )
        tables.put("sources", key, record)
        if self.batch_id is not None:
            entry = BatchEntry(
                source=place.source, batch_id=self.batch_id, digest=self.digest, whole=True, rows=self.rows,
                accepted=self.rows, at=place.at, places=((number, head.rows - self.rows, self.rows),),
            )  # fmt: skip
            tables.put("batches", batch, entry)
        return head


class _Gathering(Append):
    """Writes the waiting rows of one source to a file, under the stream's lock.

    Args:
        store: The warehouse.
        stream: Its name.
        waiting: What waits.
        hooks: What may add to the same transaction.
    """

    def __init__(self, store: Store, stream: str, waiting: WaitingRows, hooks: Sequence[SlideHook]) -> None:
        self.waiting = waiting
        self.file: SpoolEntry | None = None
        super().__init__(store, stream, waiting.entry.source, None, hooks)

    def _resolve_source(self, source: str | None) -> str:
        return source or ""  # it was checked when the rows came

    def gather(self) -> SpoolEntry:
        """Write the file and record it; gives its record."""
        waiting, definition, key = self.waiting, self.definition, catalog_key(self.entry.id)
        rows = read_rows(self.store.catalog, key, waiting)
        rows = pa.Table.from_batches(
            arrow_input.conform_batches(rows, self.schema, definition.name, definition.added), self.schema
        ).combine_chunks()
        ts, _ = self.model.times(rows)
        exp, _ = self.model.expiries(rows, ts)
        try:
            self.count(rows.num_rows, 0)
            self.stage(rows, ts, exp, number_arrivals(rows.num_rows, 0))
            self.commit()
        except BaseException:
            self.discard()
            raise
        assert self.file is not None
        return self.file

    def _record(self, tables: Tables, rejected: StagedFile | None, replacing: Sequence[int]) -> None:
        del rejected, replacing
        entry, state = find_stream(tables, self.definition.name)
        if entry.id != self.entry.id:
            raise UnknownStreamError(f"stream {self.definition.name!r} was dropped while its rows were gathered")
        new_model = entry.definition.model if entry.definition.lasts_otherwise(self.definition) else None
        (staged,) = self.tally.files
        state = with_layout(state, self.layout if new_model is None else without_expiry_columns(self.layout))
        self.file = self._record_file(tables, self.waiting.number, staged, self.store.clock(), new_model)
        stream = catalog_key(entry.id)
        tables.put("states", stream, replace_waiting(tables, stream, state, self.waiting, self.file))


def gather_rows(
    store: Store, stream: str, waiting: Sequence[WaitingRows], hooks: Sequence[SlideHook]
) -> dict[int, SpoolEntry]:
    """Write waiting rows to files, one for each source; the stream's lock must be held.

    Returns:
        By their numbers, the records of the files that have taken the rows' places.
    """
    return {each.number: _Gathering(store, stream, each, hooks).gather() for each in waiting}


def gather_waiting(store: Store, stream: str, hooks: Sequence[SlideHook]) -> None:
    """Write all waiting rows of a stream to files, for who has to see them and does not slide."""
    if store.read_only or not store.catalog.writable:
        advice = "open the warehouse without read_only"
        if not store.catalog.writable:
            advice = "ask the owner of the warehouse for the permission to write"
        raise StorageError(
            f"rows of stream {stream!r} wait in the catalog until somebody writes them to a file, which a handle that "
            f"is open for reading only may not; ask a snapshot, or {advice}"
        )
    with disk_errors(f"gathering rows of stream {stream!r}"), hold_stream_lock(store, stream, _GATHER_SECONDS):
        gather_rows(store, stream, store.catalog.read(lambda tables: find_waiting(tables, stream)), hooks)


def gather_if_free(store: Store, stream: str, hooks: Sequence[SlideHook]) -> None:
    """Write waiting rows to files where much waits, unless somebody slides the stream, which does the same."""

    def read(tables: Tables) -> tuple[int, list[WaitingRows]]:
        entry, _ = find_stream(tables, stream)
        return entry.id, [each for each in list_waiting(tables, catalog_key(entry.id)) if each.head.is_full]

    number, _ = store.catalog.read(read)
    path = store.lock_path(number)
    path.parent.mkdir(exist_ok=True)
    try:
        with (
            disk_errors(f"gathering rows of stream {stream!r}"),
            locked(path, f"the slide of stream {stream!r}", 0, store.sleep),
        ):
            gather_rows(store, stream, store.catalog.read(read)[1], hooks)
    except BusyError:
        return
