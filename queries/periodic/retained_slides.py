"""Slides that stay readable until their runs are made: how `missed="every"` stays exact when rows expire meanwhile.

The slide's own transaction decides that a run is due and records the segments of the stream; files that later slides
replace are not reclaimed while such a record is older. For queries that skip missed runs only the slide is recorded.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import QueryEntry, QueryState, RetainedSlideEntry, RetainedStream, RunEntry
from windrow.gaps import read_gaps
from windrow.queries.periodic.due import is_due, read_committed_slides
from windrow.queries.periodic.result_store import record_trouble
from windrow.slide_hooks import Contribution, SlideContext
from windrow.store import Store

MAX_RETAINED = 256
"""Runs of one query that wait for a retained slide; beyond that the oldest is given up."""


@contextmanager
def prepare_retention(store: Store, context: SlideContext) -> Iterator[Contribution]:
    """Find the queries that are due at a slide, and retain it for those that need every run."""
    yield _RetentionContribution(context.entry.id, store.clock())


class _RetentionContribution:
    """What a slide does for the queries that its stream paces."""

    def __init__(self, stream: int, time: int) -> None:
        self._stream = stream
        self._time = time

    @property
    def files(self) -> Sequence[str]:
        """None: the files that it names exist already."""
        return ()

    def commit(self, tables: Tables) -> None:
        """Find the queries that are due at the slide that is being committed."""
        waiting: list[QueryEntry] = []
        prefix = catalog_key(self._stream)
        for name in [key[len(prefix) :] for key, _ in tables.raw_items("keepers", prefix)]:
            entry: QueryEntry = tables.get("queries", name)
            state: QueryState = tables.get("paced", catalog_key(entry.id))
            slides = read_committed_slides(tables, entry)
            if not is_due(entry.paces, state.seen, slides):
                continue
            state = replace(state, seen=slides)
            if entry.missed == "every":
                waiting.append(entry)
                state = replace(self._limit_waiting(tables, entry, state), waiting=min(state.waiting + 1, MAX_RETAINED))
            tables.put("paced", catalog_key(entry.id), state)
        if waiting:
            hold, before = _make_retained_slide(tables, waiting), tables.get("holds", catalog_key(tables.version))
            if before is not None:  # views move in the transaction of their input's slide, each with queries of its own
                hold = replace(hold, queries=before.queries + hold.queries, streams=before.streams | hold.streams)
            tables.put("holds", catalog_key(tables.version), hold)

    def _limit_waiting(self, tables: Tables, entry: QueryEntry, state: QueryState) -> QueryState:
        """Give the oldest waiting run up if there are too many: the disk cannot keep every slide for ever."""
        if state.waiting < MAX_RETAINED:
            return state
        key, hold = next((key, hold) for key, hold in tables.items("holds") if entry.id in hold.queries)
        slides = {pace.stream: hold.streams[pace.stream].state.slide or 0 for pace in entry.paces}
        run = RunEntry(
            query=entry.name,
            slide=slides[entry.paces[0].stream],
            slides=slides,
            outcome="missed",
            version=tables.version,
            at=self._time,
            error=f"{MAX_RETAINED} later runs were waiting; run them more often, or use missed='latest'",
        )
        release_slide(tables, key, [entry.id])
        return replace(record_trouble(tables, entry, state, run), reached=slides, missed=state.missed + 1)


def _make_retained_slide(tables: Tables, waiting: Iterable[QueryEntry]) -> RetainedSlideEntry:
    waiting = tuple(waiting)
    return RetainedSlideEntry(
        version=tables.version,
        queries=tuple(entry.id for entry in waiting),
        streams={
            name: _retained_stream(tables, name) for name in sorted({name for entry in waiting for name in entry.reads})
        },
        tables={key.decode(): record for key, record in tables.items("tables")},
    )


def _retained_stream(tables: Tables, name: str) -> RetainedStream:
    entry, state = find_stream(tables, name)
    stream = catalog_key(entry.id)
    return RetainedStream(
        entry=entry,
        state=state,
        segments=tuple(segment for _, segment in tables.items("segments", stream)),
        sources={key[len(stream) :].decode(): record for key, record in tables.items("sources", stream)},
        gaps=read_gaps(tables, entry),
    )


def release_slide(tables: Tables, key: bytes, queries: Iterable[int]) -> bool:
    """Release a retained slide for some queries; returns whether it was retained for all of them."""
    hold: RetainedSlideEntry | None = tables.get("holds", key)
    released = set(queries)
    if hold is None or not released <= set(hold.queries):
        return False
    waiting = tuple(number for number in hold.queries if number not in released)
    if waiting:
        tables.put("holds", key, replace(hold, queries=waiting))
    else:
        tables.delete("holds", key)
    return True


def release_query(tables: Tables, query: int) -> None:
    """Release all slides that are retained for a query."""
    for key in [key for key, hold in tables.items("holds") if query in hold.queries]:
        release_slide(tables, key, [query])


def set_retention(tables: Tables, entry: QueryEntry, *, watched: bool) -> None:
    """Let the slides of a query's streams retain slides for it, or no longer."""
    for pace in entry.paces:
        key = catalog_key(pace.stream_id) + entry.name.encode()
        if watched:
            tables.put_raw("keepers", key, b"")
        else:
            tables.delete("keepers", key)
