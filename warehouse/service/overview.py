"""What the console's first page shows: streams with their clocks and last slides, gaps, the disk, failing queries.

A page of streams is read in full; of the others only what decides their order.
"""

import shutil
from typing import Any

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import GapEntry, RejectedEntry, Role, SlideEntry, StreamEntry, StreamState
from windrow.gaps import BEFORE_FIRST
from windrow.queries.periodic.registry import list_queries
from windrow.service.role_session import RoleSession
from windrow.status import StreamStatus, stream_status
from windrow.store import Store

_RECENT = 40
"""Slides of the small charts."""
_DRAWN = ("now", "in", "out", "late", "rejected")
_MOST_REJECTED_FILES = 40
_MOST_GAPS = 100
"""Files of rejected rows that are looked through, and gaps that are listed. Bounds of one page, not measured."""


def format_instant(instant: int | None) -> str | None:
    """A time for a page, None if there is none."""
    return None if instant is None else times.format_time(instant)


def read_overview(session: RoleSession, find: str, offset: int, limit: int) -> dict[str, Any]:
    """The first page: of the streams whose name contains `find`, `limit` from the `offset`-th on."""
    store, role = session.warehouse._store, session.role
    wall = store.clock()

    def read(tables: Tables) -> tuple[int, list[tuple[StreamEntry, StreamState]], dict[int, list[GapEntry]]]:
        entries = [entry for _, entry in tables.items("streams") if role.sees(entry.definition.name)]
        matching = [entry for entry in entries if find.lower() in entry.definition.name.lower()]
        states = [(entry, tables.get("states", catalog_key(entry.id))) for entry in matching]
        gaps = {entry.id: list(_open_gaps(tables, entry.id)) for entry in matching}
        return len(entries), states, gaps

    total, streams, gaps = store.catalog.read(read)
    order = {id(entry): _urgency(entry, state, gaps[entry.id], wall) for entry, state in streams}
    streams.sort(key=lambda stream: order[id(stream[0])])
    page = [_describe(store, role, entry, gaps[entry.id], wall) for entry, _ in streams[offset : offset + limit]]
    named = {entry.id: entry.definition.name for entry, _ in streams}
    disk = shutil.disk_usage(store.root)
    return {
        "warehouse": store.root.name,
        "at": times.format_time(wall),
        "commit": store.catalog.version(),
        "disk": {"free": disk.free, "total": disk.total, "catalog": store.catalog.size()},
        "streams": page,
        "total": total,
        "found": len(streams),
        "behind": sum(1 for _, state in streams if state.missing),
        "open_gaps": sum(map(len, gaps.values())),
        "gaps": [
            gap_to_values(gap) | {"stream": named[number]} for number, each in gaps.items() for gap in each
        ][:_MOST_GAPS],
        "failing": failing_queries(session),
    }  # fmt: skip


def _open_gaps(tables: Tables, stream: int) -> list[GapEntry]:
    """What came before a stream's first rows was never promised, and is not shown here."""
    records = (gap for _, gap in tables.items("gaps", catalog_key(stream)))
    return [gap for gap in records if gap.closed is None and gap.kind != BEFORE_FIRST]


def _urgency(entry: StreamEntry, state: StreamState, gaps: list[GapEntry], wall: int) -> tuple[int, float, str]:
    """First what lacks something, then what is most slides behind the wall clock."""
    definition = entry.definition
    lag = 0 if state.slide is None else wall - definition.model.slot_end(state.slide)
    return -bool(state.missing or gaps), -(lag // max(1, definition.slide)), definition.name


def gap_to_values(gap: GapEntry) -> dict[str, Any]:
    """An open gap for a page."""
    return {
        "gap": gap.id,
        "source": gap.source or None,
        "start": format_instant(gap.after),
        "end": times.format_time(gap.end),
        "kind": gap.kind,
        "cause": gap.cause,
    }


def failing_queries(session: RoleSession) -> list[dict[str, Any]]:
    """Queries whose last run failed, the worst first; the reason for those who may see it."""
    role = session.role
    tells = role.grants is None or "operate" in role.rights
    failing = [query for query in list_queries(session.warehouse._store) if query.failures and role.sees(query.name)]
    return [
        {
            "name": query.name,
            "failures": query.failures,
            "error": query.error if tells else None,
            "retry_at": None if query.retry_at is None else times.format_time(query.retry_at),
            "delivered_at": None if query.delivered_at is None else times.format_time(query.delivered_at),
        }
        for query in sorted(failing, key=lambda query: -query.failures)
    ]


def _describe(store: Store, role: Role, entry: StreamEntry, gaps: list[GapEntry], wall: int) -> dict[str, Any]:
    definition = entry.definition
    status = stream_status(store, definition.name)
    slides, rejected = store.catalog.read(lambda tables: read_recent(tables, entry.id, _RECENT))
    now = None if status.now is None else times.parse_instant(status.now)
    tells = role.grants is None or "operate" in role.rights
    return {
        "name": definition.name,
        "kind": "view" if definition.inputs else "stream",
        "now": format_instant(now),
        "lag": None if now is None else (wall - now) / times.SECOND,
        "slide_seconds": definition.slide / times.SECOND,
        "waits_for": status.waits_for if tells else ", ".join(status.waiting_for),
        "missing": list(status.missing),
        "sources": describe_sources(status),
        "partitions": describe_partitions(status, role),
        "gaps": len(gaps),
        "recent": [
            {name: slide[name] for name in _DRAWN}
            for slide in describe_slides(slides, rejected, counts=role.sees_counts)
        ],
    } | describe_sizes(status, role)


def describe_sizes(status: StreamStatus, role: Role) -> dict[str, Any]:
    """Rows and bytes, for those who may see them."""
    names = ("live_rows", "stored_rows", "bytes", "spooled_rows", "segments", "inserted", "expired", "late")
    return {name: getattr(status, name) if role.sees_counts else None for name in names} | {"rejected": status.rejected}


def describe_sources(status: StreamStatus) -> list[dict[str, Any]]:
    """The sources of a stream and how each is doing."""
    now = None if status.now is None else times.parse_instant(status.now)
    return [
        {
            "name": source.name,
            "state": source.state(now),
            "progress": format_instant(source.progress),
            "spoken_for": source.spoken_for,
            "excluded": source.excluded,
            "waited_for": source.name in status.waiting_for,
            "heard": format_instant(source.heard),
            "rejected": source.rejected,
        }
        for source in status.sources
    ]


def describe_partitions(status: StreamStatus, role: Role) -> list[dict[str, Any]] | None:
    """Where the stream's queries are in Kafka, for those who may see how many rows there are."""
    if not role.sees_counts:
        return None
    return [vars(each) | {"seen": times.format_time(each.seen)} for each in status.partitions]


def read_recent(tables: Tables, stream: int, count: int) -> tuple[list[SlideEntry], list[RejectedEntry]]:
    """The last slides of a stream, oldest first, and the last files of rejected rows."""
    state = tables.get("states", catalog_key(stream))
    ordinals = range(max(1, state.ordinal - count + 1), state.ordinal + 1)
    slides = [tables.get("slides", catalog_key(stream, ordinal)) for ordinal in ordinals]
    numbers = range(max(0, state.next_rejected - _MOST_REJECTED_FILES), state.next_rejected)
    files = [tables.get("rejected", catalog_key(stream, number)) for number in numbers]
    return [slide for slide in slides if slide is not None], [file for file in files if file is not None]


def describe_slides(slides: list[SlideEntry], rejected: list[RejectedEntry], *, counts: bool) -> list[dict[str, Any]]:
    """Slides with the rows that came, left, were late, and were rejected since the slide before."""
    shown = []
    before = 0
    for slide in slides:
        refused = sum(file.rows for file in rejected if before < file.at <= slide.at) if before else 0
        before = slide.at
        shown.append({
            "slide": slide.slide,
            "now": times.format_time(slide.now),
            "at": times.format_time(slide.at),
            "in": slide.inserted if counts else None,
            "out": slide.expired if counts else None,
            "late": slide.late if counts else None,
            "rejected": refused,
            "seconds": slide.seconds,
            "bytes_written": slide.bytes_written if counts else None,
            "missing": list(slide.missing),
        })  # fmt: skip
    return shown
