"""The system tables: what the catalog knows, as relations of a snapshot."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from windrow.catalog import key
from windrow.snapshot import Snapshot, StreamView

_STAMP = pa.timestamp("us", "UTC")


def table(snapshot: Snapshot, name: str) -> pa.Table:
    """One system table, current with the snapshot."""
    return TABLES[name](snapshot)


def _rows(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def _views(snapshot: Snapshot) -> list[StreamView]:
    return [snapshot.view(name) for name in snapshot.streams()]


def _streams(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema(
        [
            ("stream", pa.string()), ("slide", pa.int64()), ("now", _STAMP), ("time", pa.string()), ("key", pa.list_(pa.string())),
            ("index", pa.string()), ("why", pa.string()), ("segments", pa.int64()), ("live_rows", pa.int64()), ("stored_rows", pa.int64()),
            ("bytes", pa.int64()), ("inserted", pa.int64()), ("expired", pa.int64()), ("late", pa.int64()), ("rejected", pa.int64()),
            ("waiting_for", pa.list_(pa.string())), ("missing", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    rows = []
    for view in _views(snapshot):
        state, definition = view.state, view.entry.definition
        stored = sum(s.rows for s in view.segments)
        dead = 0 if state.slide is None else sum(s.dead(state.slide) for s in view.segments)
        rows.append({
            "stream": view.name, "slide": state.slide, "now": view.now, "time": definition.time, "key": list(definition.key),
            "index": str(state.layout.index), "why": state.layout.why, "segments": len(view.segments), "live_rows": stored - dead,
            "stored_rows": stored, "bytes": sum(s.bytes for s in view.segments), "inserted": state.inserted, "expired": state.expired,
            "late": state.late, "rejected": state.rejected, "waiting_for": list(view.progress().waiting_for()),
            "missing": list(state.missing),
        })  # fmt: skip
    return _rows(schema, rows)


def _slides(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema(
        [
            ("stream", pa.string()), ("slide", pa.int64()), ("previous", pa.int64()), ("ordinal", pa.int64()), ("now", _STAMP), ("at", _STAMP),
            ("inserted", pa.int64()), ("expired", pa.int64()), ("late", pa.int64()), ("touched", pa.int64()), ("rebuilt", pa.int64()),
            ("dropped", pa.int64()), ("bytes_written", pa.int64()), ("seconds", pa.float64()), ("missing", pa.list_(pa.string())),
            ("spoken_for", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for view in _views(snapshot):
        kept = snapshot.store.catalog.read(lambda t, v=view: [r for _, r in t.items("slides", key(v.entry.id))])
        rows += [
            {name: getattr(record, name) for name in schema.names if name != "stream"} | {"stream": view.name}
            for record in kept
            if record.ordinal <= view.state.ordinal
        ]
    return _rows(schema, rows)


def _sources(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema(
        [
            ("stream", pa.string()), ("source", pa.string()), ("progress", _STAMP), ("effective", _STAMP), ("spoken_for", pa.bool_()),
            ("failed", pa.string()), ("excluded", pa.bool_()), ("rows", pa.int64()), ("rejected", pa.int64()), ("heard", _STAMP),
        ]
    )  # fmt: skip
    return _rows(schema, [
        {"stream": view.name, "source": s.name, "progress": s.progress, "effective": s.effective, "spoken_for": s.spoken_for,
         "failed": s.failed, "excluded": s.excluded, "rows": s.rows, "rejected": s.rejected, "heard": s.heard}
        for view in _views(snapshot) for s in view.progress().sources
    ])  # fmt: skip


def _batches(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema([
        ("stream", pa.string()), ("source", pa.string()), ("batch_id", pa.string()), ("rows", pa.int64()), ("accepted", pa.int64()), ("at", _STAMP)])  # fmt: skip
    rows: list[dict[str, Any]] = []
    for view in _views(snapshot):
        kept = snapshot.store.catalog.read(lambda t, v=view: [r for _, r in t.items("batches", key(v.entry.id))])
        rows += [
            {
                "stream": view.name,
                "source": b.source,
                "batch_id": b.batch_id,
                "rows": b.rows,
                "accepted": b.accepted,
                "at": b.at,
            }
            for b in kept
        ]
    return _rows(schema, rows)


def _segments(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema(
        [
            ("stream", pa.string()), ("segment", pa.int64()), ("layout", pa.int64()), ("row", pa.int64()), ("column", pa.int64()),
            ("file", pa.string()), ("start", pa.int64()), ("rows", pa.int64()), ("dead_rows", pa.int64()), ("bytes", pa.int64()),
            ("first_slide", pa.int64()), ("last_slide", pa.int64()), ("min_time", _STAMP), ("max_time", _STAMP), ("min_expiry", _STAMP),
            ("max_expiry", _STAMP),
        ]
    )  # fmt: skip
    never = (1 << 63) - 1
    return _rows(schema, [
        {"stream": view.name, "segment": s.id, "layout": s.layout, "row": s.row, "column": s.column, "file": s.file, "start": s.start,
         "rows": s.rows, "dead_rows": s.dead(view.state.slide) if view.state.slide is not None else 0, "bytes": s.bytes,
         "first_slide": s.first_slide, "last_slide": s.last_slide, "min_time": s.min_ts, "max_time": s.max_ts,
         "min_expiry": None if s.min_exp == never else s.min_exp, "max_expiry": None if s.max_exp == never else s.max_exp}
        for view in _views(snapshot) for s in view.segments
    ])  # fmt: skip


def _cells(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema([
        ("stream", pa.string()), ("layout", pa.int64()), ("row", pa.int64()), ("column", pa.int64()), ("segments", pa.int64()),
        ("rows", pa.int64()), ("dead_rows", pa.int64()), ("bytes", pa.int64())])  # fmt: skip
    return (
        _segments(snapshot)
        .group_by(["stream", "layout", "row", "column"])
        .aggregate([("segment", "count"), ("rows", "sum"), ("dead_rows", "sum"), ("bytes", "sum")])
        .select(["stream", "layout", "row", "column", "segment_count", "rows_sum", "dead_rows_sum", "bytes_sum"])
        .rename_columns(schema.names)
    )


def _rejected(snapshot: Snapshot) -> pa.Table:
    schema = pa.schema([
        ("stream", pa.string()), ("source", pa.string()), ("batch_id", pa.string()), ("reason", pa.string()), ("rows", pa.int64()),
        ("at", _STAMP)])  # fmt: skip
    rows: list[dict[str, Any]] = []
    for view in _views(snapshot):
        kept = snapshot.store.catalog.read(lambda t, v=view: [r for _, r in t.items("rejected", key(v.entry.id))])
        rows += [
            {"stream": view.name, "source": r.source, "batch_id": r.batch_id, "reason": reason, "rows": count, "at": r.at}
            for r in kept for reason, count in r.reasons.items()
        ]  # fmt: skip
    return _rows(schema, rows)


TABLES: dict[str, Callable[[Snapshot], pa.Table]] = {
    "streams": _streams,
    "slides": _slides,
    "sources": _sources,
    "batches": _batches,
    "segments": _segments,
    "cells": _cells,
    "rejected": _rejected,
}
"""By name, without the schema ``windrow``."""
