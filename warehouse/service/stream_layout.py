"""How a stream lies on disk, for a page: cells and what the last slide did to them, lifetimes left, segments."""

from collections import Counter
from typing import Any

import numpy as np

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import GapEntry, RejectedEntry, SlideEntry
from windrow.errors import AccessError
from windrow.formats.text import json_values
from windrow.indexes.partitioners import NEVER
from windrow.indexes.segments import Segment, unpack_histogram
from windrow.queries.system_tables import shows
from windrow.rejected_rows import read_rejected_file
from windrow.rejection import rejected_schema
from windrow.service.overview import (
    describe_partitions,
    describe_sizes,
    describe_slides,
    describe_sources,
    format_instant,
    gap_to_values,
    read_recent,
)
from windrow.service.role_session import RoleSession
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.status import stream_status
from windrow.store import Store

_RECENT = 120
_MOST_SEGMENTS, _MOST_BUCKETS, _MOST_REJECTED_ROWS = 200, 48, 100
"""What one page shows. Bounds, not measured."""


def read_stream_page(session: RoleSession, name: str) -> dict[str, Any]:
    """What there is to see of one stream; what the role may not see is None."""
    store, role = session.warehouse._store, session.role
    visible = session.stream(name)  # which also checks that the role sees it
    status = stream_status(store, name)
    with Snapshot(store, [name]) as snapshot:
        view = snapshot.view(name)
        slides, rejected, gaps = store.catalog.read(lambda tables: _read_records(tables, view.entry.id))
        layout = None
        if role.sees_counts and shows(role, "cells"):
            layout = describe_layout(view, slides[-1] if slides else None)
    tells = role.grants is None or "operate" in role.rights
    return visible | describe_sizes(status, role) | {
        "kind": "view" if view.entry.definition.inputs else "stream",
        "lag": None if view.now is None else (store.clock() - view.now) / times.SECOND,
        "slide_seconds": view.entry.definition.slide / times.SECOND,
        "waits_for": status.waits_for if tells else ", ".join(status.waiting_for),
        "sources": describe_sources(status),
        "partitions": describe_partitions(status, role),
        "gaps": [gap_to_values(gap) for gap in gaps],
        "recent": describe_slides(slides, rejected, counts=role.sees_counts),
        "reasons": _count_reasons(rejected) if shows(role, "rejected") else None,
        "layout": layout,
        "index": status.index if tells else None,
        "why": status.index_why if tells else None,
    }  # fmt: skip


def _read_records(tables: Tables, stream: int) -> tuple[list[SlideEntry], list[RejectedEntry], list[GapEntry]]:
    slides, _ = read_recent(tables, stream, _RECENT)
    rejected = [file for _, file in tables.items("rejected", catalog_key(stream))]
    return slides, rejected, [gap for _, gap in tables.items("gaps", catalog_key(stream)) if gap.closed is None]


def _count_reasons(files: list[RejectedEntry]) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for file in files:
        reasons.update(file.reasons)
    return dict(reasons)


def describe_layout(view: StreamSnapshot, last: SlideEntry | None) -> dict[str, Any]:
    """Cells of all layouts, what the last slide touched in the newest of them, lifetimes left and segments."""
    slide, layouts = view.state.slide, view.state.layouts
    newest = layouts[-1]
    partitioner = newest.partitioner()
    filled, emptied = None, []
    if last is not None:
        filled = partitioner.row(last.slide)
        if newest.lifetime_slots is not None:
            previous = last.slide - 1 if last.previous is None else last.previous
            emptied = sorted(partitioner.expiring(last.slide, previous))
    relayout = view.state.relayout
    return {
        "layouts": [
            {"layout": each.id, "rows": each.partitioner().rows, "columns": each.partitioner().columns,
             "index": str(each.index), "why": each.why, "key": list(each.key)}
            for each in layouts
        ],
        "filled": filled,
        "emptied": emptied,
        "moved": None if relayout is None else {"moved": relayout.moved, "total": relayout.total},
        "cells": _cells(view.segments, slide),
        "lifetimes": _lifetimes(view.segments, slide),
        "segments": _segments(view.segments, slide),
        "segment_count": len(view.segments),
    }  # fmt: skip


def _cells(segments: Any, slide: int | None) -> list[dict[str, Any]]:
    cells: dict[tuple[int, int, int], list[Segment]] = {}
    for segment in segments:
        cells.setdefault(segment.cell, []).append(segment)
    shown = []
    for (layout, row, column), in_cell in sorted(cells.items()):
        live = sum(segment.bytes if slide is None else segment.live_bytes(slide) for segment in in_cell)
        total = sum(segment.bytes for segment in in_cell)
        dead_rows = 0 if slide is None else sum(segment.dead(slide) for segment in in_cell)
        shown.append({
            "layout": layout, "row": row, "column": column, "segments": len(in_cell),
            "rows": sum(segment.rows for segment in in_cell), "dead_rows": dead_rows,
            "live_bytes": live, "dead_bytes": total - live,
        })  # fmt: skip
    return shown


def _lifetimes(segments: Any, slide: int | None) -> dict[str, Any]:
    """How many rows have how many slots left to live."""
    rows_by_expiry: Counter[int] = Counter()
    for segment in segments:
        slots, counts = unpack_histogram(segment.expiries)
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            rows_by_expiry[slot] += count
    now = slide or 0
    forever = sum(count for slot, count in rows_by_expiry.items() if slot >= NEVER)
    finite = {slot - now: count for slot, count in rows_by_expiry.items() if now < slot < NEVER}
    if not finite:
        return {"forever": forever, "width": 1, "buckets": []}
    width = max(1, -(-max(finite) // _MOST_BUCKETS))
    buckets = np.zeros((max(finite) - 1) // width + 1, np.int64)
    for slots_left, count in finite.items():
        buckets[(slots_left - 1) // width] += count
    return {"forever": forever, "width": width, "buckets": buckets.tolist()}


def _segments(segments: Any, slide: int | None) -> list[dict[str, Any]]:
    """The largest of them."""
    largest = sorted(segments, key=lambda segment: -segment.bytes)[:_MOST_SEGMENTS]
    return [
        {
            "segment": segment.id, "layout": segment.layout, "row": segment.row, "column": segment.column,
            "rows": segment.rows, "dead_rows": 0 if slide is None else segment.dead(slide), "bytes": segment.bytes,
            "first_slide": segment.first_slide, "last_slide": segment.last_slide,
            "min_time": format_instant(segment.min_ts), "max_time": format_instant(segment.max_ts),
            "max_expiry": None if segment.max_exp >= NEVER else format_instant(segment.max_exp),
        }
        for segment in largest
    ]  # fmt: skip


def read_rejected_page(session: RoleSession, name: str) -> dict[str, Any]:
    """The newest rejected rows of a stream."""
    session.role.check("read", name)
    if not shows(session.role, "rejected_rows"):
        raise AccessError(f"role {session.role.name!r} may not see rows that were rejected; an operator may")
    store: Store = session.warehouse._store
    with Snapshot(store, [name]) as snapshot:
        view = snapshot.view(name)
        stream = catalog_key(view.entry.id)
        files = store.catalog.read(lambda tables: [file for _, file in tables.items("rejected", stream)])
        schema = rejected_schema(view.entry.definition.schema)
    rows: list[dict[str, Any]] = []
    for file in reversed(files):
        table = read_rejected_file(store, file, schema).slice(0, _MOST_REJECTED_ROWS - len(rows)).combine_chunks()
        for batch in table.to_batches():
            values = [json_values(column, field) for column, field in zip(batch.columns, batch.schema, strict=True)]
            for each in zip(*values, strict=True):
                row = dict(zip(batch.schema.names, each, strict=True))
                reason = row.pop("_reason")
                about = {"at": times.format_time(file.at), "source": file.source, "batch_id": file.batch_id}
                rows.append(about | {"reason": reason, "row": row})
        if len(rows) >= _MOST_REJECTED_ROWS:
            break
    return {"stream": name, "rows": rows, "total": sum(file.rows for file in files)}
