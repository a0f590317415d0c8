"""A Structured Streaming query that appends to a stream: each micro-batch exactly once, with slides in between.

The query's id and the batch's number are committed with the rows, so a batch that Spark repeats after a crash changes
nothing. A thread of ours watches the query and sends heartbeats while its source is silent.
"""

import contextlib
import json
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from windrow import times
from windrow.append import AppendReport
from windrow.arguments import check_share
from windrow.catalog.lookups import find_stream, resolve_source
from windrow.catalog.records import StreamEntry
from windrow.errors import BusyError, DefinitionError, SchemaError, WindrowError
from windrow.ingest.append import append_rows
from windrow.ingest.backpressure import try_slide, wait_for_spool_space
from windrow.ingest.checkpoints import StreamingBatch, list_sources
from windrow.ingest.errors import describe_error
from windrow.ingest.kafka import describe_batch, find_positions, reads_only_kafka
from windrow.ingest.schemas import check_columns, evolve_stream
from windrow.ingest.session import Totals, WarehouseOrPath, open_warehouse, use_this_interpreter
from windrow.ingest.sort_key import quote_name
from windrow.sources import heartbeat as send_heartbeat
from windrow.warehouse import Evolution, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.column import Column
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("windrow.ingest")
DEFAULT_MAX_SPOOL_BYTES = 4 << 30
"""The query waits while more is spooled."""
_REPORTS = 1000
"""Batches whose reports are kept; Spark keeps the progress of 100."""
_POLL_SECONDS = 0.5
"""How often the watching thread looks at its query, at least."""


def write_stream(
    df: "DataFrame",
    warehouse: WarehouseOrPath,
    stream: str,
    *,
    checkpoint: str,
    slide: str | None = "auto",
    source: str | None = None,
    source_column: str | None = None,
    where: "Column | str | None" = None,
    trigger: str | None = None,
    heartbeat: times.Duration | None = None,
    lag: times.Duration | None = None,
    max_spool_bytes: int | None = DEFAULT_MAX_SPOOL_BYTES,
    name: str | None = None,
    stop_on_sigterm: bool = True,
    accept_loss: bool = False,
    max_rejected: float | None = None,
    evolve: Evolution | None = None,
) -> "StreamingQuery":
    """Start a query that appends a streaming DataFrame to a stream, exactly once.

    Args:
        df: A streaming DataFrame with the stream's columns.
        warehouse: An open warehouse, or its path.
        stream: Its name.
        checkpoint: Where Spark keeps what it has read. The same folder again goes on where the query stopped.
        slide: ``"auto"`` slides whenever the sources have passed a slot, None leaves that to others.
        source: Which of the stream's sources this query is.
        source_column: The text column of the DataFrame that says for each row which source it is of, such as the
            partition of Kafka that it came from. It is left out of the rows unless the stream has such a column.
        where: Only rows that meet this condition are appended. The others still tell how far the source has come, which
            rows that were filtered out of the DataFrame do not.
        trigger: ``"available now"`` to stop when all is read, or an interval like ``"5 seconds"``; by default at once.
        heartbeat: While the source is silent, promise so often that nothing older than the wall clock less `lag` will
            follow. For live sources only: a replay's rows would be dead on arrival.
        lag: By default the stream's slack.
        max_spool_bytes: While more is spooled than this, the query waits.
        name: Of the query.
        stop_on_sigterm: End the query after the batch under way when the process is asked to end.
        accept_loss: Go on although the checkpoint is ahead of the warehouse, which was restored from a backup: the
            batches between them are lost, because Spark never sends them again.
        max_rejected: The share of a batch's rows that may be rejected; with more, the query ends without that batch.
        evolve: ``"add"`` takes new columns of the DataFrame into the stream, ``"widen"`` wider types too.

    Returns:
        Spark's query. `totals(query)` says what it brought in.
    """
    _check_arguments(df, source, source_column, slide)
    check_share(max_rejected, "max_rejected")
    use_this_interpreter()
    borrowed = isinstance(warehouse, Warehouse)
    wh = warehouse if isinstance(warehouse, Warehouse) else open_warehouse(warehouse)
    try:
        entry, apart = _match_columns(df, wh, stream, source_column, evolve)
        streaming = _StreamingAppend(
            warehouse=wh,
            closes_warehouse=not borrowed,
            stream=stream,
            sources=set() if source_column is not None else {resolve_source(entry, source)},
            source_column=source_column,
            drops_source_column=apart,
            slide=slide == "auto",
            where=where,
            interval=None if heartbeat is None else times.parse_duration(heartbeat, "heartbeat"),
            lag=entry.definition.slack if lag is None else times.parse_slack(lag, "lag"),
            limit=max_spool_bytes,
            stop_on_sigterm=stop_on_sigterm,
            accept_loss=accept_loss,
            max_rejected=max_rejected,
        )
        query = _start_query(df.writeStream.foreachBatch(streaming.on_batch), checkpoint, name, trigger)
    except BaseException:
        if not borrowed:
            wh.close()
        raise
    streaming.begin(query)
    if stop_on_sigterm:
        _install_sigterm_handler()
    return query


def _match_columns(
    df: "DataFrame", wh: Warehouse, stream: str, source_column: str | None, evolve: str | None
) -> tuple[StreamEntry, bool]:
    """Check the columns that will be appended; gives the stream, and whether the source column is not one of them."""
    entry, _ = wh._store.catalog.read(lambda tables: find_stream(tables, stream))
    apart = source_column is not None and source_column not in entry.definition.schema.names
    columns = df.drop(source_column).schema if source_column is not None and apart else df.schema
    evolve_stream(wh, stream, columns, evolve)
    entry, _ = wh._store.catalog.read(lambda tables: find_stream(tables, stream))
    check_columns(columns, entry.definition)
    return entry, apart


def _check_arguments(df: "DataFrame", source: str | None, source_column: str | None, slide: str | None) -> None:
    if not df.isStreaming:
        raise DefinitionError("this DataFrame is not a stream; use windrow.spark.append")
    if slide not in ("auto", None):
        raise DefinitionError(f"slide={slide!r} is unknown; use 'auto', or None to slide yourself")
    if source_column is None:
        return
    if source is not None:
        raise DefinitionError(f"source={source!r} and source_column={source_column!r} exclude each other; give one")
    if source_column not in df.columns or df.schema[source_column].dataType.simpleString() != "string":
        raise DefinitionError(
            f"source_column={source_column!r} is no text column of the DataFrame, which has {', '.join(df.columns)}"
        )


def _start_query(writer: Any, checkpoint: str, name: str | None, trigger: str | None) -> "StreamingQuery":
    writer = writer.option("checkpointLocation", str(checkpoint))
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        now = trigger.replace(" ", "").lower() == "availablenow"
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime=trigger)
    query: StreamingQuery = writer.start()
    return query


def totals(query: "StreamingQuery") -> Totals:
    """Return what a query that `write_stream` started has brought in so far, and how far it has read Kafka."""
    streaming = _find_streaming_append(query)
    latest = streaming.read_progress()
    if latest is not None:
        streaming.totals.offsets, streaming.totals.lag = find_positions(latest)
    return streaming.totals


def progress(query: "StreamingQuery") -> list[dict[str, Any]]:
    """Return Spark's own progress of the last batches of a query that `write_stream` started, with what became of rows.

    Each entry has ``windrow`` besides: the batch's accepted and late rows, and rejected ones by reason; None for a
    batch that is not appended yet. For Kafka ``lag`` says how many offsets of each partition were left.
    """
    reports = _find_streaming_append(query).reports
    entries: list[dict[str, Any]] = [json.loads(entry.json) for entry in query.recentProgress]
    for entry in entries:
        report = reports.get(entry["batchId"])
        entry["windrow"] = report and {
            "accepted": report.accepted,
            "rejected": dict(report.rejected),
            "late": report.late,
            "duplicate": report.duplicate,
            "lag": find_positions(entry)[1],
        }
    return entries


def stop(query: "StreamingQuery") -> None:
    """End a query that `write_stream` started, after the batch under way."""
    _find_streaming_append(query).stop()


@dataclass(eq=False)
class _StreamingAppend:
    """One query and the warehouse it appends to."""

    warehouse: Warehouse
    closes_warehouse: bool
    """Whether the warehouse was opened for the query and is closed with it."""
    stream: str
    sources: set[str]
    """What it speaks for; where rows say so themselves, those of which rows have come."""
    source_column: str | None
    drops_source_column: bool
    slide: bool
    where: "Column | str | None"
    interval: int | None
    """Between two heartbeats, in microseconds; None for no heartbeats."""
    lag: int
    """How far behind the wall clock a heartbeat is, in microseconds."""
    limit: int | None
    """Of the spool, in bytes; None for no limit."""
    stop_on_sigterm: bool
    accept_loss: bool
    """Whether the first batch may follow on batches that the warehouse does not have."""
    max_rejected: float | None
    totals: Totals = field(default_factory=Totals)
    reports: dict[int, AppendReport] = field(default_factory=dict)
    """Of the last batches, by their numbers."""
    stopping: threading.Event = field(default_factory=threading.Event)
    running: bool = True
    _query: Any = None
    _begun: threading.Event = field(default_factory=threading.Event)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _last_heartbeat: float = 0.0
    _read_until: int | None = None
    """When the last batch ended: what had come to Kafka by then is in the batches up to the next one."""

    @property
    def source(self) -> str:
        """Its sources, as messages name them."""
        return ", ".join(sorted(self.sources)) or f"column {self.source_column}"

    def begin(self, query: Any) -> None:
        """Let batches in, which have waited until the query was known."""
        self._query = query
        if self.source_column is not None:
            self.sources |= list_sources(self.warehouse._store, self.stream, str(query.id))
        _forget_ended()
        _streaming_appends[str(query.runId)] = self
        self._begun.set()
        threading.Thread(target=self._watch, name=f"windrow-{self.stream}", daemon=True).start()

    def on_batch(self, batch: "DataFrame", number: int) -> None:
        """Append one micro-batch."""
        self._begun.wait()
        with self._busy:
            offsets, lag = find_positions(describe_batch(self._query))
            identity = StreamingBatch(
                str(self._query.id),
                number,
                accept_loss=self.accept_loss,
                partitions={name: (offset, lag[name]) for name, offset in offsets.items()},
                began=self.warehouse._store.clock(),
            )
            if self.source_column is None:
                (source,) = self.sources
                self._wait_for_space(source)
                report = self._append(batch, source, identity)
            else:
                report = self._append_parts(batch, identity)
            self.accept_loss = False
            self.totals.add(report)
            self.reports[number] = report
            self.reports.pop(number - _REPORTS, None)
            self._slide()

    def _wait_for_space(self, source: str) -> None:
        room = wait_for_spool_space(
            self.warehouse, self.stream, source, self.limit, slide=self.slide, stopping=self.stopping.is_set
        )
        if not room:
            # A return would tell Spark that the batch is appended.
            raise BusyError(f"stream {self.stream!r}: stopped while waiting for room in the spool; nothing was lost")

    def _append(self, rows: "DataFrame", source: str, batch: StreamingBatch) -> AppendReport:
        store = self.warehouse._store
        return append_rows(
            rows, store, self.stream, source, None, self.where, batch=batch, max_rejected=self.max_rejected
        )

    def _append_parts(self, batch: "DataFrame", identity: StreamingBatch) -> AppendReport:
        """Append what each source has in a micro-batch as a batch of its own.

        Nothing waits for room in the spool here: the source that the stream waits for may be one of this query.
        """
        store, column = self.warehouse._store, self.source_column or ""
        reports: list[AppendReport] = []
        whole = _add_reports(self.stream, identity, reports)
        if identity.begin(store, self.stream):
            return replace(whole, duplicate=True)
        rows = batch.persist()  # each source reads it
        try:
            names = {row[0] for row in rows.select(quote_name(column)).distinct().collect()}
            self._check_sources(names, identity.number)
            for name in sorted(names):
                part = rows.where(rows[quote_name(column)] == name)
                part = part.drop(column) if self.drops_source_column else part
                reports.append(self._append(part, name, replace(identity, is_part=True)))
        finally:
            rows.unpersist()
        silent = self.sources - names
        self.sources |= names
        identity.finish(store, self.stream, self.sources)
        self._promise_silence(silent)
        return _add_reports(self.stream, identity, reports)

    def _check_sources(self, names: set[str | None], number: int) -> None:
        """Refuse a batch before any of it is appended."""
        if None in names:
            raise SchemaError(
                f"stream {self.stream!r}: column {self.source_column!r} is null in batch {number}; each row has to say "
                "which source it is of; nothing was appended"
            )
        entry, _ = self.warehouse._store.catalog.read(lambda tables: find_stream(tables, self.stream))
        for name in names:
            resolve_source(entry, name)

    def _promise_silence(self, silent: set[str]) -> None:
        """Send heartbeats for partitions of Kafka that had nothing to be read while others had."""
        store, until = self.warehouse._store, self._read_until
        self._read_until = store.clock()
        latest = self.read_progress() if silent and until is not None and self.interval is not None else None
        if until is None or latest is None or not reads_only_kafka(latest):
            return
        for name in sorted(silent):
            send_heartbeat(store, self.stream, name, until - self.lag)
            self.totals.heartbeats += 1

    def read_progress(self) -> dict[str, Any] | None:
        """Read the last entry of Spark's progress; None if there is none."""
        try:
            latest = self._query.lastProgress
            return None if latest is None else json.loads(latest.json)
        except Exception:  # noqa: BLE001 - an ended session raises errors of many classes
            return None

    def _slide(self) -> None:
        while self.slide and try_slide(self.warehouse, self.stream):
            self.totals.slides += 1

    def _watch(self) -> None:
        """Watch the query in a thread of its own until it ends."""
        while self._is_active():
            time.sleep(_POLL_SECONDS if self.interval is None else min(_POLL_SECONDS, self.interval / times.SECOND))
            with contextlib.suppress(WindrowError):
                self._send_heartbeat()
        failure = None
        with contextlib.suppress(Exception):
            failure = self._query.exception()
        if failure is not None and not self.stopping.is_set():
            reason = describe_error(failure)
            self.totals.failure = reason
            log.error("stream %r: the query of source %r failed: %s", self.stream, self.source, reason)
            for name in sorted(self.sources):
                with contextlib.suppress(WindrowError):
                    self.warehouse.fail_source(self.stream, name, reason[:200])
        self.running = False
        if self.closes_warehouse:
            with self._busy:
                self.warehouse.close()

    def _is_active(self) -> bool:
        try:
            return bool(self._query.isActive)
        except Exception:  # noqa: BLE001 - an ended session raises errors of many classes
            return False

    def _send_heartbeat(self) -> None:
        """Between batches, send a heartbeat if the source is silent, and slide if another source has moved on."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            status = self._query.status
            if (
                self.stopping.is_set()
                or not self._is_active()
                or status["isDataAvailable"]
                or status["isTriggerActive"]
            ):
                return
            if self.interval is not None and time.monotonic() - self._last_heartbeat >= self.interval / times.SECOND:
                self._last_heartbeat = time.monotonic()
                store = self.warehouse._store
                for name in sorted(self.sources):
                    send_heartbeat(store, self.stream, name, store.clock() - self.lag)
                    self.totals.heartbeats += 1
            self._slide()
        finally:
            self._busy.release()

    def stop(self) -> None:
        """End the query after the batch under way."""
        self.stopping.set()
        with self._busy:
            pass
        self._query.stop()


def _add_reports(stream: str, batch: StreamingBatch, reports: list[AppendReport]) -> AppendReport:
    """Add up what became of a micro-batch of several sources; what a run before a crash appended is not in it."""
    added = [report for report in reports if not report.duplicate]
    reasons = sorted({reason for report in added for reason in report.rejected})
    return AppendReport(
        stream=stream,
        source=", ".join(report.source for report in reports),
        batch_id=batch.id,
        rows=sum(report.rows for report in added),
        accepted=sum(report.accepted for report in added),
        rejected={reason: sum(report.rejected.get(reason, 0) for report in added) for reason in reasons},
        late=sum(report.late for report in added),
        duplicate=bool(reports) and not added,
        bytes_written=sum(report.bytes_written for report in added),
        seconds=sum(report.seconds for report in added),
    )


_streaming_appends: dict[str, _StreamingAppend] = {}
_ENDED_QUERIES = 64
"""Ended queries whose totals can still be asked for."""


def _forget_ended() -> None:
    ended = [run for run, streaming in list(_streaming_appends.items()) if not streaming.running]
    for run in ended[:-_ENDED_QUERIES]:
        _streaming_appends.pop(run, None)


def _find_streaming_append(query: Any) -> _StreamingAppend:
    streaming = _streaming_appends.get(str(query.runId))
    if streaming is None:
        raise DefinitionError("this query was not started by windrow.spark.write_stream in this process")
    return streaming


def _install_sigterm_handler() -> None:
    """Let SIGTERM end the running queries, besides what it did before.

    Only the main thread may set handlers; in another thread the caller has to end the query.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or getattr(previous, "stops_queries", False):
        return

    def stop(number: int, frame: Any) -> None:
        running_queries = [query for query in _streaming_appends.values() if query.stop_on_sigterm and query.running]
        for query in running_queries:
            threading.Thread(target=query.stop, name="windrow-stop", daemon=True).start()
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL and not running_queries:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    stop.stops_queries = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, stop)
