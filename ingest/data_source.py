"""`format("windrow")`: a Spark data source in Python, for users who want Spark's own interface.

Reading, writing and streaming writes have the guarantees of `read`, `append` and `write_stream`; rows go through Python
workers.
"""

import datetime as dt
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from windrow import times
from windrow.append import Append
from windrow.arguments import check_share
from windrow.catalog.environment import catalog_key
from windrow.catalog.lookups import find_checksums
from windrow.definitions import StreamDefinition
from windrow.errors import DefinitionError, SearchKeyError, WindowError
from windrow.files import disk_errors
from windrow.indexes.end_overrides import list_live_ranges
from windrow.indexes.probe import KeyRange, find_row_ranges
from windrow.indexes.row_model import NEVER, SEQ, RowModel, encode_key
from windrow.indexes.segment_reader import SegmentFileReader, conform_to_schema
from windrow.indexes.segments import SEQ_BITS
from windrow.indexes.selection import WindowBounds
from windrow.ingest.backpressure import try_slide
from windrow.ingest.checkpoints import StreamingBatch, read_query_id
from windrow.ingest.expressions import TimeLimits
from windrow.ingest.pin_keeper import start_pin_keeper
from windrow.ingest.schemas import build_read_schema, check_columns, evolve_stream, to_arrow_schema
from windrow.ingest.session import go_back, open_warehouse, use_this_interpreter
from windrow.ingest.stored_files import StoredFiles, find_stored_files, open_files
from windrow.ingest.verification import add_staged_files, count_staged_files
from windrow.ingest.worker_writer import WorkerPlan
from windrow.native import key_encoding as native_keys
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store
from windrow.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITION_BYTES = 32 << 20
"""A partition of a read holds about so many bytes of segments."""
_ABANDONED_SECONDS = 7 * 86400
"""A staging folder that nobody has touched for so long is removed."""
_FOLDER_PREFIX = "source-"


def register(spark: "SparkSession") -> None:
    """Make ``format("windrow")`` known to a session, with filters pushed down."""
    use_this_interpreter()
    spark.dataSource.register(WindrowSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


class WindrowSource(DataSource):
    """The data source; see `docs/spark.md` for its options."""

    @classmethod
    def name(cls) -> str:
        """As in ``format("windrow")``."""
        return "windrow"

    def _option(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise DefinitionError(
                f'format("windrow") needs the option {name!r}, which tables of Spark\'s catalog lose: use load() and '
                "save(), a temporary view, or spark.read.options(…).table(…)"
            )
        return str(value)

    def schema(self) -> StructType:
        """Spark's schema of the columns that are read."""
        definition, columns = self._definition(), self.options.get("columns")
        names = [name.strip() for name in columns.split(",")] if columns else definition.schema.names
        return build_read_schema(definition, names)

    def reader(self, schema: StructType) -> "WindrowReader":
        """Make the reader of a window."""
        window, pin = self.options.get("window"), self.options.get("pin")
        return WindrowReader(self._option("path"), self._definition(), window, schema, pin, self._as_of())

    def _definition(self) -> StreamDefinition:
        """Of the stream, as it is or was."""
        stream = self._option("stream")
        with (
            Warehouse(self._option("path"), create=False, read_only=True) as wh,
            wh.snapshot([stream]) as snapshot,
        ):
            return go_back(snapshot, [stream], self._as_of()).view(stream).entry.definition

    def _as_of(self) -> int | str | None:
        """The number of a commit, or a time of the stream's clock."""
        as_of = self.options.get("as_of")
        return int(as_of) if as_of and str(as_of).isdecimal() else as_of

    def writer(self, schema: StructType, overwrite: bool) -> "WindrowWriter":
        """Make the writer of a batch."""
        return WindrowWriter(self._target(schema, overwrite))

    def streamReader(self, schema: StructType) -> "WindrowStreamReader":  # noqa: N802
        """Make the reader of what slides take in."""
        path, stream = self._option("path"), self._option("stream")
        with Warehouse(path, create=False, read_only=True) as wh:
            definition = wh.stream(stream).definition
        accept_loss = str(self.options.get("accept_loss", "")).lower() == "true"
        start = self.options.get("start", "earliest")
        if start not in ("earliest", "latest"):
            raise DefinitionError(f"the option start is {start!r}; it must be 'earliest' or 'latest'")
        return WindrowStreamReader(path, definition, schema, from_latest=start == "latest", accept_loss=accept_loss)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "WindrowStreamWriter":  # noqa: N802
        """Make the writer of micro-batches."""
        return WindrowStreamWriter(self._target(schema, overwrite), self._query())

    def _target(self, schema: StructType, overwrite: bool) -> "_WriteTarget":
        if overwrite:
            raise DefinitionError('a stream is append-only: write with mode("append"), or outputMode("append")')
        path, stream = self._option("path"), self._option("stream")
        share = self.options.get("max_rejected")
        try:
            max_rejected = check_share(None if share is None else float(str(share)), "max_rejected")
        except ValueError:
            raise DefinitionError(f"the option max_rejected is {share!r}; it must be a share from 0 to 1") from None
        with open_warehouse(path) as wh:
            evolve_stream(wh, stream, schema, self.options.get("evolve"))
            job = Append(wh._store, stream, self.options.get("source"), self.options.get("batch_id"))
            check_columns(schema, job.definition)
            folder = wh.path / "staging" / f"{_FOLDER_PREFIX}{uuid.uuid4().hex}"
            _remove_abandoned(folder.parent)
            plan = WorkerPlan(job.definition, job.layout, TimeLimits(job.now, job.horizon()), str(folder))
        return _WriteTarget(path, stream, job.source, job.batch_id, plan, self.options.get("slide"), max_rejected)

    def _query(self) -> "_Query":
        """Find the name of the query, which must be the same after a restart, and no other query's."""
        name, checkpoint = self.options.get("query"), self.options.get("checkpointLocation")
        accept_loss = str(self.options.get("accept_loss", "")).lower() == "true"
        if name:
            return _Query(str(name), str(name), accept_loss)
        if not checkpoint:
            raise DefinitionError(
                'writeStream.format("windrow") needs the option "checkpointLocation", or "query", a name that stays '
                "the same over restarts"
            )
        return _Query(read_query_id(str(checkpoint)), str(checkpoint), accept_loss)


@dataclass(frozen=True)
class _Query:
    """A streaming query."""

    id: str | None
    """The name that the user gave it, or the id in its checkpoint; None if that is nowhere to be read."""
    older_name: str
    """By which earlier releases knew it."""
    accept_loss: bool

    def batch(self, number: int) -> StreamingBatch:
        """One of its batches."""
        return StreamingBatch(self.id or self.older_name, number, f"{self.older_name}:{number}", self.accept_loss)


@dataclass(frozen=True)
class _WriteTarget:
    path: str
    stream: str
    source: str
    batch_id: str | None
    plan: WorkerPlan
    slide: str | None
    max_rejected: float | None


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files that one task wrote, sent to the driver."""

    partition: int
    files: tuple[str, ...]


class WindrowWriter(DataSourceArrowWriter):
    """Writes a batch: tasks stage files, the driver commits them.

    Args:
        target: The stream, and how its rows are staged.
    """

    def __init__(self, target: _WriteTarget) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Stage the rows of one task; runs in a worker."""
        return _stage_batches(self.target.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks; runs in a process of its own on the driver's machine."""
        _commit_files(self.target, messages, self.target.batch_id, self.target.plan.limits)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Remove the staged files."""
        shutil.rmtree(self.target.plan.folder, ignore_errors=True)


class WindrowStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches as `WindrowWriter` writes a batch.

    Args:
        target: The stream, and how its rows are staged.
        query: The query.
    """

    def __init__(self, target: _WriteTarget, query: _Query) -> None:
        self.target = target
        self.query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Stage the rows of one task; a worker does not know the stream's clock, so the driver rejects expired rows."""
        horizon = time.time_ns() // 1000 + self.target.plan.definition.max_ahead
        return _stage_batches(replace(self.target.plan, limits=TimeLimits(None, horizon)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files of all tasks; runs in a process of its own on the driver's machine."""
        _commit_files(self.target, messages, None, None, self.query.batch(batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove the staged files."""
        for path in _list_files(messages):
            path.unlink(missing_ok=True)


def _stage_batches(plan: WorkerPlan, batches: Iterable[pa.RecordBatch]) -> TaskFiles:
    Path(plan.folder).mkdir(parents=True, exist_ok=True)
    context = TaskContext.get()
    return TaskFiles(
        context.partitionId() if context else 0, tuple(f"{plan.folder}/{name}" for name in plan.run(batches))
    )


def _list_files(messages: Sequence[WriterCommitMessage | None]) -> list[Path]:
    staged = sorted((m for m in messages if isinstance(m, TaskFiles)), key=lambda message: message.partition)
    return [Path(file) for message in staged for file in message.files]


def _commit_files(
    target: _WriteTarget,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: str | None,
    limits: TimeLimits | None,
    batch: StreamingBatch | None = None,
) -> None:
    paths = _list_files(messages)
    with open_warehouse(target.path) as wh:
        job = Append(wh._store, target.stream, target.source, batch_id if batch is None else batch.id)
        job.max_rejected = target.max_rejected
        recorded_batch = job.known_batch() or (None if batch is None else batch.find_older(job))
        if batch is not None:
            batch.attach(job, is_recorded=recorded_batch is not None)
        with disk_errors(f"appending to stream {target.stream!r}"):
            try:
                if recorded_batch is None:
                    add_staged_files(job, paths, job.horizon() if limits is None else limits.horizon)
                    job.commit()
                elif recorded_batch.whole:
                    count_staged_files(job, paths)
                    job.duplicate(recorded_batch)
            except BaseException:
                job.discard()
                raise
        if target.slide == "auto":
            try_slide(wh, target.stream)
    for folder in {path.parent for path in paths} | {Path(target.plan.folder)}:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(staging: Path) -> None:
    """Remove old staging folders by age, because no process holds a lock that would tell."""
    for folder in staging.glob(f"{_FOLDER_PREFIX}*"):
        if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class RowRangePartition(InputPartition):
    """Row ranges of segment files: (file, start, stop, whether rows must be filtered by the window)."""

    parts: list[tuple[str, int, int, bool]]
    bounds: WindowBounds
    model: RowModel
    """Of the definition that the bounds belong to; the stream may have been altered since Spark analysed the query."""
    checksums: dict[str, bytes | None]
    """What the files are compared with."""
    stored: StoredFiles | None = None
    """Those that are in an object store."""


class WindrowReader(DataSourceReader):
    """Reads a window, through the directory where a condition on the search key allows it.

    Args:
        path: The warehouse.
        definition: The stream.
        window: The length of the window, None for all live rows.
        schema: The columns that are read.
        pin: How long the files stay pinned.
        as_of: An earlier state: the number of a commit, or a time of the stream's clock.
    """

    def __init__(
        self,
        path: str,
        definition: StreamDefinition,
        window: str | None,
        schema: StructType,
        pin: str | None,
        as_of: int | str | None = None,
    ) -> None:
        self.path = path
        self.as_of = as_of
        self.definition = definition
        self.window = window
        self.wanted = to_arrow_schema(schema, definition.name)
        self.pin = times.parse_duration(pin, "pin") if pin else 3600 * times.SECOND
        self.filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the conditions; Spark still checks them, because the directory may give more rows than match."""
        self.filters = list(filters)
        yield from filters

    def partitions(self) -> Sequence[RowRangePartition]:
        """Cut the pruned segments into partitions of similar size."""
        stream = self.definition.name
        with Warehouse(self.path, create=False, read_only=True) as wh, Snapshot(wh._store, [stream]) as snapshot:
            view = go_back(snapshot, [stream], self.as_of).view(stream)
            bounds = view.bounds() if self.window is None else view.last(times.parse_duration(self.window, "window"))
            if bounds is None:
                return []
            start_pin_keeper(snapshot, self.pin)
            ranges = self._find_ranges(snapshot, view, bounds)
            checksums = {file: find_checksums(wh._store.catalog, {}, file) for file in {part[0] for part in ranges}}
            partitions = _pack_partitions(ranges, bounds, view.entry.definition.model, checksums)
            return [replace(each, stored=find_stored_files(wh._store, each.checksums)) for each in partitions]

    def _find_ranges(
        self, snapshot: Snapshot, view: StreamSnapshot, bounds: WindowBounds
    ) -> list[tuple[str, int, int, bool, int]]:
        selection = view.select(bounds)
        edge_ids = {segment.id for segment in selection.edge}
        ranges = find_key_ranges(self.filters, view)
        if ranges is None:
            return [
                (s.file, start, stop, s.id in edge_ids, s.bytes * (stop - start) // s.rows)
                for s in selection.segments
                for start, stop in list_live_ranges(s, bounds.now)
            ]
        rows = find_row_ranges(selection.segments, ranges, snapshot.directories, view.sorted_by)
        return [
            (
                row_range.segment.file,
                start,
                stop,
                row_range.segment.id in edge_ids,
                row_range.segment.bytes * (stop - start) // row_range.segment.rows,
            )
            for row_range in rows
            for start, stop in list_live_ranges(row_range.segment, bounds.now, row_range.start, row_range.stop)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition; runs in a worker."""
        if not isinstance(partition, RowRangePartition):  # Spark's own, because there was none
            return
        model, full = partition.model, self.definition.stored_schema
        stored = pa.schema([full.field(name) for name in self.wanted.names])
        time_columns = [name for name in partition.bounds.deciding(model) if name not in stored.names]
        with_times = pa.schema([*stored, *(full.field(name) for name in time_columns)])
        with open_files(self.path, partition.checksums, partition.stored) as reader:
            for file, start, stop, at_edge in partition.parts:
                schema = with_times if at_edge else stored
                for table in reader.batches(file, start, stop, schema.names):
                    rows = conform_to_schema(table, schema)
                    if at_edge:
                        rows = partition.bounds.filter(rows, model).select(stored.names)
                    yield from conform_to_schema(rows, self.wanted).to_batches()


_ArrivalRange = tuple[str, int, int, int, bool]
"""A file, a range of its rows, the base of their sequence, and whether they must be told apart."""


@dataclass
class ArrivalPartition(InputPartition):
    """Row ranges of segment files that hold rows of some slides."""

    parts: list[_ArrivalRange]
    arrivals: tuple[int, int]
    """Rows that slides after the first and up to the second of these ordinals took in."""
    live_at: WindowBounds | None
    """At the beginning of a query only the rows that are live then."""
    model: RowModel
    checksums: dict[str, bytes | None]
    stored: StoredFiles | None = None
    """Those of the files that are in an object store."""


class WindrowStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what slides take in, each row once: an offset is a slide, by number and by the count of slides.

    The files of a micro-batch are pinned until Spark has committed it. An offset also tells how many rows the batch up
    to it has, so that a batch that is read again after a restart is the same one or an error.

    Args:
        path: The warehouse.
        definition: The stream.
        schema: The columns that are read.
        from_latest: Begin with the next slide, not with the rows that are live.
        accept_loss: Go on without rows that expired before they were read.
    """

    def __init__(
        self, path: str, definition: StreamDefinition, schema: StructType, *, from_latest: bool, accept_loss: bool
    ) -> None:
        self.path = path
        self.definition = definition
        self.wanted = to_arrow_schema(schema, definition.name)
        self.from_latest = from_latest
        self.accept_loss = accept_loss
        self._warehouse: Warehouse | None = None
        self._snapshots: dict[int, Snapshot] = {}
        self._last_ordinal: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers get what to read, not the pins."""
        return {**self.__dict__, "_warehouse": None, "_snapshots": {}}

    def _open(self) -> Warehouse:
        if self._warehouse is None:
            self._warehouse = Warehouse(self.path, create=False, read_only=True)
        return self._warehouse

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first slide, or at the newest."""
        if not self.from_latest:
            return {"ordinal": 0}
        with Snapshot(self._open()._store, [self.definition.name]) as snapshot:
            return _make_offset(snapshot.view(self.definition.name), 0)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802
        """The newest slide, and how many rows there are up to it."""
        snapshot = Snapshot(self._open()._store, [self.definition.name])
        try:
            view = snapshot.view(self.definition.name)
            self._check_stream(view, start)
            if view.state.ordinal == start["ordinal"] or start["ordinal"] >= (self._last_ordinal or sys.maxsize):
                snapshot.close()
                return start
            batch = _Arrivals(view, start, _make_offset(view, 0))
            present = batch.count(self._open()._store)
            if not self.accept_loss:
                self._refuse_loss(view, batch, present, start)
        except BaseException:
            snapshot.close()
            raise
        self._hold(view.state.ordinal, snapshot)
        return _make_offset(view, present)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End when what is there now has been read."""
        with Snapshot(self._open()._store, [self.definition.name]) as snapshot:
            self._last_ordinal = snapshot.view(self.definition.name).state.ordinal

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ArrivalPartition]:
        """Find the rows that the slides after `start` and up to `end` took in."""
        if start["ordinal"] == end["ordinal"]:
            return []
        store = self._open()._store
        if end["ordinal"] not in self._snapshots:  # after a restart
            self._hold(end["ordinal"], Snapshot(store, [self.definition.name]))
        view = self._snapshots[end["ordinal"]].view(self.definition.name)
        self._check_stream(view, end)
        batch = _Arrivals(view, start, end)
        present = batch.count(store)
        if present != end["rows"] and not self.accept_loss:
            raise WindowError(
                f"stream {self.definition.name!r}: the batch up to slide {end['slide']} had {end['rows']:,} rows and "
                f"has {present:,} now, because rows expired meanwhile; {_ACCEPT}"
            )
        return [replace(each, stored=find_stored_files(store, each.checksums)) for each in batch.partitions(store)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition; runs in a worker."""
        assert isinstance(partition, ArrivalPartition)
        full = self.definition.schema
        stored = pa.schema([full.field(name) for name in self.wanted.names])
        with open_files(self.path, partition.checksums, partition.stored) as reader:
            for part in partition.parts:
                for rows in _read_arrivals(reader, part, partition, full, stored.names):
                    yield from conform_to_schema(conform_to_schema(rows, stored), self.wanted).to_batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Release the files of batches that Spark has done with."""
        for ordinal in [ordinal for ordinal in self._snapshots if ordinal <= end["ordinal"]]:
            self._snapshots.pop(ordinal).close()

    def stop(self) -> None:
        """Release everything."""
        self.commit({"ordinal": max(self._snapshots, default=0)})
        if self._warehouse is not None:
            self._warehouse.close()
            self._warehouse = None

    def _hold(self, ordinal: int, snapshot: Snapshot) -> None:
        if (before := self._snapshots.pop(ordinal, None)) is not None:
            before.close()
        self._snapshots[ordinal] = snapshot

    def _check_stream(self, view: StreamSnapshot, offset: dict[str, Any]) -> None:
        name = self.definition.name
        if offset.get("stream", view.entry.id) != view.entry.id:
            raise WindowError(f"stream {name!r} was dropped and made again since the checkpoint; begin with a new one")
        if view.state.ordinal < offset["ordinal"]:
            raise WindowError(
                f"the checkpoint has read stream {name!r} up to slide {offset['slide']}, which the warehouse does not "
                "have: it was restored from an older backup; begin with a new checkpoint"
            )

    def _refuse_loss(self, view: StreamSnapshot, batch: "_Arrivals", present: int, start: dict[str, Any]) -> None:
        """Refuse to go on if a slide that was never read took in rows that are stored no more."""
        if start["ordinal"] == 0:
            return
        keys = [catalog_key(view.entry.id, ordinal) for ordinal in range(batch.after + 1, batch.upto + 1)]
        entries = self._open()._store.catalog.read(lambda tables: [tables.get("slides", key) for key in keys])
        inserted = sum(entry.inserted for entry in entries if entry is not None)
        if None in entries or inserted > present:
            lost = "some rows" if None in entries else f"{inserted - present:,} of {inserted:,} rows"
            raise WindowError(
                f"stream {view.name!r}: {lost} that came after slide {start['slide']} have expired before they were "
                f"read; {_ACCEPT}"
            )


_ACCEPT = "begin with a new checkpoint, or set the option accept_loss to true to go on without them"


def _make_offset(view: StreamSnapshot, rows: int) -> dict[str, Any]:
    return {"ordinal": view.state.ordinal, "slide": view.state.slide, "stream": view.entry.id, "rows": rows}


class _Arrivals:
    """The rows of a stream that some of its slides took in.

    Args:
        view: The stream.
        start: The offset of the slide before them.
        end: The offset of the last one.
    """

    def __init__(self, view: StreamSnapshot, start: dict[str, Any], end: dict[str, Any]) -> None:
        self.view = view
        self.after = start["ordinal"]
        self.upto = end["ordinal"]
        self.after_slide = start.get("slide", -(1 << 63))
        is_first = self.after == 0
        now = view.model.slot_end(end["slide"])
        self.live_at = WindowBounds(after=None, upto=NEVER, now=now) if is_first else None

    def _parts(self) -> Iterator[tuple[_ArrivalRange, int]]:
        for s in self.view.segments:
            # The base of a segment that one slide wrote has its ordinal; rows of merged ones are told apart one by one.
            if s.last_slide <= self.after_slide or (
                s.seq_base and not self.after < s.seq_base >> SEQ_BITS <= self.upto
            ):
                continue
            edge = not s.seq_base or (self.live_at is not None and s.min_exp <= self.live_at.now)
            # What a later slide ends has come all the same; at the beginning only what lives counts.
            ranges = [(s.start, s.stop)] if self.live_at is None else list_live_ranges(s, self.live_at.now)
            for start, stop in ranges:
                yield (s.file, start, stop, s.seq_base, edge), s.bytes * (stop - start) // s.rows

    def partitions(self, store: Store) -> list[ArrivalPartition]:
        """Partitions of similar size."""
        splits: list[ArrivalPartition] = []
        size = 0
        for part, part_bytes in self._parts():
            file = part[0]
            if not splits or size + part_bytes > _PARTITION_BYTES:
                splits.append(ArrivalPartition([], (self.after, self.upto), self.live_at, self.view.model, {}))
                size = 0
            splits[-1].parts.append(part)
            splits[-1].checksums[file] = find_checksums(store.catalog, {}, file)
            size += part_bytes
        return splits

    def count(self, store: Store) -> int:
        """How many they are; only segments that hold others too are read."""
        whole, time = (
            ArrivalPartition([], (self.after, self.upto), self.live_at, self.view.model, {}),
            self.view.model.time,
        )
        return sum(
            sum(rows.num_rows for rows in _read_arrivals(store.reader, part, whole, self.view.schema, [time]))
            if part[4]
            else part[2] - part[1]
            for part, _ in self._parts()
        )


def _read_arrivals(
    reader: SegmentFileReader, part: _ArrivalRange, partition: ArrivalPartition, schema: pa.Schema, names: list[str]
) -> Iterator[pa.Table]:
    """Read the rows of a part of a partition that are in it."""
    file, start, stop, base, is_edge = part
    if not is_edge:
        yield from reader.batches(file, start, stop, names)
        return
    model, live_at = partition.model, partition.live_at
    times_needed = [name for name in (model.time, model.expires) if name is not None and live_at is not None]
    columns = [*dict.fromkeys([*names, *times_needed]), SEQ]
    after, upto = partition.arrivals
    for table in reader.batches(file, start, stop, columns):
        ordinals = (table.column(SEQ).to_numpy() + base) >> SEQ_BITS
        rows = table.filter(pa.array((ordinals > after) & (ordinals <= upto))).drop_columns([SEQ])
        rows = conform_to_schema(rows, pa.schema([schema.field(name) for name in columns[:-1]]))
        yield (rows if live_at is None else live_at.filter(rows, model)).select(names)


def _pack_partitions(
    ranges: list[tuple[str, int, int, bool, int]],
    bounds: WindowBounds,
    model: RowModel,
    checksums: dict[str, bytes | None],
) -> list[RowRangePartition]:
    partitions: list[RowRangePartition] = []
    size = 0
    for file, start, stop, at_edge, range_bytes in ranges:
        if not partitions or size + range_bytes > _PARTITION_BYTES:
            partitions.append(RowRangePartition([], bounds, model, {}))
            size = 0
        partitions[-1].parts.append((file, start, stop, at_edge))
        partitions[-1].checksums[file] = checksums[file]
        size += range_bytes
    return partitions


def find_key_ranges(filters: Sequence[Filter], view: StreamSnapshot) -> list[KeyRange] | None:
    """Find the ranges of encoded keys that conditions on the first key column allow; None if they allow all."""
    definition = view.entry.definition
    if not definition.key:
        return None
    name, kind = definition.key[0], definition.key_types()[0]
    low: bytes | None = None
    high: bytes | None = None
    keys: set[bytes] | None = None
    for condition in filters:
        if getattr(condition, "attribute", None) != (name,):
            continue
        try:
            if isinstance(condition, EqualTo | EqualNullSafe):
                values = {_encode_value(condition.value, kind, name)}
            elif isinstance(condition, In):
                values = {_encode_value(value, kind, name) for value in condition.value}
            else:
                low, high = _narrow_range(condition, kind, name, low, high)
                continue
        except SearchKeyError:
            continue
        keys = values if keys is None else keys & values
    if keys is not None:
        return [KeyRange(key, native_keys.successor(key), open_ended=True) for key in sorted(keys)]
    return None if low is None and high is None else [KeyRange(low or b"", high, open_ended=high is not None)]


def _encode_value(value: Any, kind: pa.DataType, name: str) -> bytes:
    if isinstance(value, dt.datetime) and value.tzinfo is None and getattr(kind, "tz", None) is not None:
        value = value.astimezone(dt.UTC)
    return encode_key((value,), (kind,), (name,))


def _narrow_range(
    condition: Filter, kind: pa.DataType, name: str, low: bytes | None, high: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Narrow a range by one comparison. Both ends are included, because Spark checks the ends."""
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        edge = _encode_value(condition.value, kind, name)
        low = edge if low is None else max(low, edge)
    elif isinstance(condition, LessThan | LessThanOrEqual):
        edge = native_keys.successor(_encode_value(condition.value, kind, name)) or b"\xff"
        high = edge if high is None else min(high, edge)
    return low, high
