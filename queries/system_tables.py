"""The system tables, ``windrow.streams`` and the like: records of the catalog as relations of a snapshot.

All that they show is read in one transaction; `CatalogRecords.version` says whether that was the snapshot's own.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import (
    BatchEntry,
    GapEntry,
    QueryEntry,
    QueryState,
    RejectedEntry,
    Role,
    RunEntry,
    SlideEntry,
    SummaryEntry,
    TraceEntry,
)
from windrow.expired_rows import find_oldest_expired
from windrow.formats import text
from windrow.indexes.arrow_arrays import from_values
from windrow.indexes.row_model import NEVER
from windrow.indexes.segments import Segment
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.status import count_rows_ahead
from windrow.store import Store

_HIDDEN = frozenset(("statement", "sink", "streams", "stream", "file", "error"))
"""Of a query whose results are granted, what would tell of relations that are not."""
_COUNTS = frozenset((
    "segments", "live_rows", "stored_rows", "bytes", "inserted", "expired", "late", "touched", "rebuilt", "dropped",
    "bytes_written", "rows", "oldest_expired_on_disk",
))  # fmt: skip
"""What tells of rows that a role does not see for their age."""
_STAMP = pa.timestamp("us", "UTC")
_TEXT, _INT, _TEXTS = pa.string(), pa.int64(), pa.list_(pa.string())
RowValues = dict[str, Any]


@dataclass(frozen=True)
class CatalogRecords:
    """Records that a snapshot does not hold itself, by stream, as far as the tables that are asked for show them."""

    version: int
    slides: dict[str, list[SlideEntry]]
    batches: dict[str, list[BatchEntry]]
    rejected: dict[str, list[RejectedEntry]]
    ahead: dict[str, int]
    """Rows that are stored, but later than their stream's clock."""
    oldest: dict[str, int | None]
    """When the row expired that has been expired for longest of those in files."""
    queries: list[tuple[QueryEntry, QueryState]]
    runs: dict[str, list[RunEntry]]
    gaps: dict[str, list[GapEntry]]
    trace: list[TraceEntry]
    summaries: dict[str, list[SummaryEntry]]
    store: Store
    """For rows that lie in files: those that were rejected."""


def read_records(snapshot: Snapshot, names: Collection[str]) -> CatalogRecords:
    """What the named tables show of the snapshot's streams and of periodic queries, as the catalog has it now."""
    views = _views(snapshot)

    def read_catalog(tables: Tables) -> CatalogRecords:
        def of(database: str) -> dict[str, list[Any]]:
            shown = {database, f"{database}_rows", *(["relations"] if database == "summaries" else ())}
            wanted = views if shown & {*names} else ()
            return {v.name: [record for _, record in tables.items(database, catalog_key(v.entry.id))] for v in wanted}

        entries = tables.items("queries") if {*QUERY_TABLES, "relations"} & {*names} else ()
        visible = [entry for _, entry in entries if snapshot.role.sees(entry.name)]
        queries = [(entry, tables.get("paced", catalog_key(entry.id))) for entry in visible]
        running = queries if "runs" in names else ()
        runs = {
            entry.name: [run for kind in ("runs", "revisions") for _, run in tables.items(kind, catalog_key(entry.id))]
            for entry, _ in running
        }
        oldest = {view.name: find_oldest_expired(snapshot.store, tables, view) for view in views if "streams" in names}
        trace = [event for _, event in tables.items("trace")] if "trace" in names else []
        return CatalogRecords(
            tables.version, of("slides"), of("batches"), of("rejected"), ahead, oldest, queries, runs, of("gaps"),
            trace, of("summaries"), snapshot.store,
        )  # fmt: skip

    ahead = {view.name: count_rows_ahead(snapshot.store, view) for view in views} if "streams" in names else {}
    return snapshot.store.catalog.read(read_catalog)


def build_table(snapshot: Snapshot, records: CatalogRecords, name: str) -> pa.Table:
    """One system table."""
    if name == "store":
        schema, remote = _STORE, snapshot.store.remote
        rows = [] if remote is None else [{column: getattr(remote.status(), column) for column in schema.names}]
    elif name in QUERY_TABLES:
        schema, describe = QUERY_TABLES[name]
        rows = [row for entry, state in records.queries for row in describe(entry, state, records)]
        if snapshot.role.grants is not None and "operate" not in snapshot.role.rights:
            rows = [row | dict.fromkeys(_HIDDEN & row.keys()) for row in rows]
    else:
        schema, show = STREAM_TABLES[name]
        rows = [row for view in _views(snapshot) for row in show(view, records)]
        if name == "relations":
            rows = [row for row in rows if snapshot.role.sees(row["name"])]
            visible = filter(snapshot.role.sees, snapshot.tables)
            rows += [{"name": table, "kind": "table"} for table in visible]
            rows += [{"name": entry.name, "kind": "results"} for entry, _ in records.queries]
        if not snapshot.role.sees_counts:
            rows = [row | dict.fromkeys(_COUNTS & row.keys()) for row in rows]
    return pa.table([from_values([row[field.name] for row in rows], field.type) for field in schema], schema=schema)


def _views(snapshot: Snapshot) -> list[StreamSnapshot]:
    return [snapshot.view(name) for name in snapshot.streams()]


def _dead(view: StreamSnapshot, segment: Segment) -> int:
    return 0 if view.state.slide is None else segment.dead(view.state.slide)


def _streams(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    state, definition = view.state, view.entry.definition
    stored = sum(segment.rows for segment in view.segments)
    yield {
        "stream": view.name,
        "slide": state.slide,
        "now": view.now,
        "time": definition.time,
        "key": [name for name in definition.key if name in view.schema.names],
        "index": str(state.layout.index),
        "why": state.layout.why,
        "segments": len(view.segments),
        "live_rows": stored - sum(_dead(view, segment) for segment in view.segments) - records.ahead[view.name],
        "stored_rows": stored,
        "oldest_expired_on_disk": records.oldest[view.name],
        "bytes": sum(segment.bytes for segment in view.segments),
        "inserted": state.inserted,
        "expired": state.expired,
        "late": state.late,
        "rejected": state.rejected,
        "waiting_for": list(view.progress().waiting_for()),
        "missing": list(state.missing),
    }


def _slides(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    for record in records.slides[view.name]:
        if record.ordinal <= view.state.ordinal:
            yield {"stream": view.name} | {name: getattr(record, name) for name in _SLIDES.names[1:]}


def _sources(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:  # noqa: ARG001
    for source in view.progress().sources:
        values = {name: getattr(source, name) for name in _SOURCES.names[2:-1]}
        yield {"stream": view.name, "source": source.name, "state": source.state(view.now)} | values


def _gaps(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    for gap in records.gaps[view.name]:
        names = [name for name in _GAPS.names if name not in ("stream", "gap", "start", "source")]
        start = gap.start if gap.closed is not None else gap.after
        values = {"stream": view.name, "gap": gap.id, "source": gap.source or None, "start": start}
        yield values | {name: getattr(gap, name) for name in names}


def _trace(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    for event in records.trace:
        if event.stream == view.entry.id:
            yield {"stream": view.name} | {name: getattr(event, name) for name in _TRACE.names[1:]}


def _batches(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    for record in records.batches[view.name]:
        yield {"stream": view.name} | {name: getattr(record, name) for name in _BATCHES.names[1:]}


def _segments(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:  # noqa: ARG001
    names = ("layout", "row", "column", "file", "start", "rows", "bytes", "first_slide", "last_slide")
    for segment in view.segments:
        yield {
            "stream": view.name,
            "segment": segment.id,
            "dead_rows": _dead(view, segment),
            "min_time": segment.min_ts,
            "max_time": segment.max_ts,
            "min_expiry": None if segment.min_exp == NEVER else segment.min_exp,
            "max_expiry": None if segment.max_exp == NEVER else segment.max_exp,
        } | {name: getattr(segment, name) for name in names}


def _cells(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:  # noqa: ARG001
    cells: dict[tuple[int, int, int], list[Segment]] = {}
    for segment in view.segments:
        cells.setdefault(segment.cell, []).append(segment)
    for (layout, row, column), segments in sorted(cells.items()):
        yield {
            "stream": view.name,
            "layout": layout,
            "row": row,
            "column": column,
            "segments": len(segments),
            "rows": sum(segment.rows for segment in segments),
            "dead_rows": sum(_dead(view, segment) for segment in segments),
            "bytes": sum(segment.bytes for segment in segments),
        }


def _relations(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    yield {"name": view.name, "kind": "view" if view.entry.definition.inputs else "stream"}
    yield from ({"name": summary.name, "kind": "summary"} for summary in records.summaries[view.name])


def _summaries(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    for summary in records.summaries[view.name]:
        yield {
            "summary": summary.name,
            "stream": view.name,
            "statement": summary.sql,
            "counts": summary.kind,
            "columns": [column for column, _ in summary.columns],
            "frequent": summary.frequent,
            "slots": summary.counted.slots,
            "created": summary.created,
        }


def _rejected(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    for record in records.rejected[view.name]:
        common = {"stream": view.name, "source": record.source, "batch_id": record.batch_id, "at": record.at}
        for reason, count in record.reasons.items():
            yield common | {"reason": reason, "rows": count}


def _rejected_rows(view: StreamSnapshot, records: CatalogRecords) -> Iterator[RowValues]:
    """The rows themselves: a stream's own columns as one JSON object, since each stream has others."""
    # They bring what writes files with them, which other questions do without.
    from windrow.rejected_rows import read_rejected_file
    from windrow.rejection import rejected_schema

    schema = rejected_schema(view.schema)
    for record in records.rejected[view.name]:
        for batch in read_rejected_file(records.store, record, schema).to_batches():
            columns = [text.json_values(batch.column(field.name), field) for field in view.schema]
            shown = [batch.column(name).to_pylist() if name in batch.schema.names else None for name in _SHOWN]
            for position in range(batch.num_rows):
                values = {field.name: column[position] for field, column in zip(view.schema, columns, strict=True)}
                texts = [None if column is None else column[position] for column in shown]
                yield {
                    "stream": view.name, "source": record.source, "batch_id": record.batch_id, "at": record.at,
                    **dict(zip(("reason", "file", "line", "text"), texts, strict=True)),
                    "row": text.encode_json(values).decode(),
                }  # fmt: skip


def _queries(entry: QueryEntry, state: QueryState, records: CatalogRecords) -> Iterator[RowValues]:  # noqa: ARG001
    yield {
        "query": entry.name,
        "statement": entry.sql,
        "sink": entry.sink
        if entry.sink in ("webhook", "command") or not entry.folder
        else f"{entry.sink}:{entry.folder}",
        "streams": [pace.stream for pace in entry.paces],
        "missed_runs": state.missed,
        "slide": state.delivered,
        "to_backfill": 0 if state.backfill is None else state.backfill.left,
    } | {
        name: getattr(source, name)
        for source, names in (
            (entry, ("engine", "missed", "output", "priority", "created")),
            (state, ("delivered_at", "runs", "waiting", "failures", "error", "retry_at", "seconds")),
        )
        for name in names
    }


def _runs(entry: QueryEntry, state: QueryState, records: CatalogRecords) -> Iterator[RowValues]:  # noqa: ARG001
    for run in records.runs[entry.name]:
        values = {name: getattr(run, name) for name in _RUNS.names if name not in ("stream", "staleness")}
        yield values | {"stream": entry.paces[0].stream, "staleness": run.staleness / 1e6, "file": run.file or None}


def _columns(kind: pa.DataType, names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names.split()]


_STREAMS = pa.schema([
    ("stream", _TEXT), ("slide", _INT), ("now", _STAMP), ("time", _TEXT), ("key", _TEXTS),
    *_columns(_TEXT, "index why"),
    *_columns(_INT, "segments live_rows stored_rows bytes inserted expired late rejected"),
    ("waiting_for", _TEXTS), ("missing", _TEXTS), ("oldest_expired_on_disk", _STAMP),
])  # fmt: skip
_SLIDES = pa.schema([
    ("stream", _TEXT), *_columns(_INT, "slide previous ordinal"), *_columns(_STAMP, "now at"),
    *_columns(_INT, "inserted expired late touched rebuilt dropped bytes_written"), ("seconds", pa.float64()),
    ("missing", _TEXTS), ("spoken_for", _TEXTS),
])  # fmt: skip
_SOURCES = pa.schema([
    *_columns(_TEXT, "stream source"), *_columns(_STAMP, "progress effective"), ("spoken_for", pa.bool_()),
    ("failed", _TEXT), ("excluded", pa.bool_()), *_columns(_INT, "rows rejected"), ("heard", _STAMP), ("state", _TEXT),
])  # fmt: skip
_GAPS = pa.schema([
    ("gap", _INT), *_columns(_TEXT, "stream source kind"), *_columns(_STAMP, "start end"), ("cause", _TEXT),
    *_columns(_STAMP, "opened closed"), ("closed_by", _TEXT), ("rows", _INT), ("files", _TEXTS),
])  # fmt: skip
_TRACE = pa.schema([*_columns(_TEXT, "stream source event"), *_columns(_STAMP, "at up_to"), ("note", _TEXT)])
_BATCHES = pa.schema([*_columns(_TEXT, "stream source batch_id"), *_columns(_INT, "rows accepted"), ("at", _STAMP)])
_SEGMENTS = pa.schema([
    ("stream", _TEXT), *_columns(_INT, "segment layout row column"), ("file", _TEXT),
    *_columns(_INT, "start rows dead_rows bytes first_slide last_slide"),
    *_columns(_STAMP, "min_time max_time min_expiry max_expiry"),
])  # fmt: skip
_CELLS = pa.schema([("stream", _TEXT), *_columns(_INT, "layout row column segments rows dead_rows bytes")])
_SUMMARIES = pa.schema([
    *_columns(_TEXT, "summary stream statement counts"), ("columns", _TEXTS), *_columns(_INT, "frequent slots"),
    ("created", _STAMP),
])  # fmt: skip
_REJECTED = pa.schema([*_columns(_TEXT, "stream source batch_id reason"), ("rows", _INT), ("at", _STAMP)])
_REJECTED_ROWS = pa.schema([
    *_columns(_TEXT, "stream source batch_id reason"), ("at", _STAMP), ("file", _TEXT), ("line", _INT),
    *_columns(_TEXT, "text row"),
])  # fmt: skip
_SHOWN = ("_reason", "_file", "_line", "_text")
_QUERIES = pa.schema([
    *_columns(_TEXT, "query statement engine sink missed output"), ("streams", _TEXTS), ("priority", _INT),
    ("created", _STAMP), ("slide", _INT), ("delivered_at", _STAMP),
    *_columns(_INT, "runs missed_runs waiting failures"), ("error", _TEXT), ("retry_at", _STAMP),
    ("seconds", pa.float64()), ("to_backfill", _INT),
])  # fmt: skip
_RUNS = pa.schema([
    *_columns(_TEXT, "query stream"), ("slide", _INT), ("outcome", _TEXT),
    *_columns(_STAMP, "window_start window_end at"), *_columns(_INT, "rows bytes attempts"),
    ("seconds", pa.float64()), ("staleness", pa.float64()), ("complete", pa.bool_()),
    *_columns(_TEXT, "how error file"), ("revision", _INT), ("coverage", pa.float64()),
    ("backfilled", pa.bool_()),
])  # fmt: skip

_STORE = pa.schema([
    ("uri", _TEXT), *_columns(_INT, "epoch objects object_bytes cached_bytes cache_limit copied_commit"),
    ("copied_at", _STAMP), *_columns(_INT, "uncopied_commits waiting_deletions"),
    *_columns(_TEXT, "taken_over_by problem"),
])  # fmt: skip

STREAM_TABLES: dict[str, tuple[pa.Schema, Callable[[StreamSnapshot, CatalogRecords], Iterator[RowValues]]]] = {
    "streams": (_STREAMS, _streams),
    "slides": (_SLIDES, _slides),
    "sources": (_SOURCES, _sources),
    "batches": (_BATCHES, _batches),
    "segments": (_SEGMENTS, _segments),
    "cells": (_CELLS, _cells),
    "rejected": (_REJECTED, _rejected),
    "rejected_rows": (_REJECTED_ROWS, _rejected_rows),
    "relations": (pa.schema(_columns(_TEXT, "name kind")), _relations),
    "gaps": (_GAPS, _gaps),
    "trace": (_TRACE, _trace),
    "summaries": (_SUMMARIES, _summaries),
}
QUERY_TABLES: dict[str, tuple[pa.Schema, Callable[[QueryEntry, QueryState, CatalogRecords], Iterator[RowValues]]]] = {
    "queries": (_QUERIES, _queries),
    "runs": (_RUNS, _runs),
}
TABLE_NAMES = {*STREAM_TABLES, *QUERY_TABLES, "store"}
"""Names, without the schema ``windrow``: those that speak of streams, of periodic queries, and of the object store."""
_FOR_OPERATORS = frozenset(("store", "segments", "cells", "batches", "rejected", "rejected_rows", "summaries"))
"""They tell of rows and values that a role may not be allowed to see."""


def shows(role: Role, name: str) -> bool:
    """Whether a system table is there for a role."""
    return name in TABLE_NAMES and (not role.is_restricted or "operate" in role.rights or name not in _FOR_OPERATORS)
