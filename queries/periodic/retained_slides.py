"""Slides that are kept readable until their runs are made: how `missed="every"` stays exact when rows expire meanwhile.

The slide's own transaction decides that a run is due and writes down what the stream was made of; files that later
slides replace are not reclaimed while such a hold is older. Queries that skip missed runs only have the slide noted.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import QueryEntry, QueryState, RetainedSlideEntry, RetainedStream, RunEntry
from windrow.queries.periodic.due import is_due, read_committed_slides
from windrow.queries.periodic.result_store import record_trouble
from windrow.slide_hooks import Contribution, SlideContext
from windrow.store import Store

MAX_RETAINED = 256
"""Runs of one query that wait for a held slide; beyond that the oldest is given up."""


@contextmanager
def prepare_retention(store: Store, moving: SlideContext) -> Iterator[Contribution]:
    """Note which queries are due at a slide, and keep it for those that want every run."""
    yield _RetentionContribution(moving.entry.id, store.clock())


class _RetentionContribution:
    """What a slide does for the queries that its stream paces."""

    def __init__(self, stream: int, at: int) -> None:
        self._stream = stream
        self._at = at

    @property
    def files(self) -> Sequence[str]:
        """None: a hold names files that are there."""
        return ()

    def commit(self, tables: Tables) -> None:
        """Find the queries that are due at the slide that is being committed."""
        waiting: list[QueryEntry] = []
        prefix = catalog_key(self._stream)
        for name in [at[len(prefix) :] for at, _ in tables.raw_items("keepers", prefix)]:
            entry: QueryEntry = tables.get("queries", name)
            state: QueryState = tables.get("paced", catalog_key(entry.id))
            slides = read_committed_slides(tables, entry)
            if not is_due(entry.paces, state.seen, slides):
                continue
            state = replace(state, seen=slides)
            if entry.missed == "every":
                waiting.append(entry)
                state = replace(self._with_room(tables, entry, state), waiting=min(state.waiting + 1, MAX_RETAINED))
            tables.put("paced", catalog_key(entry.id), state)
        if waiting:
            hold, before = _make_retained_slide(tables, waiting), tables.get("holds", catalog_key(tables.version))
            if before is not None:  # views move in the transaction of their input's slide, each with queries of its own
                hold = replace(hold, queries=before.queries + hold.queries, streams=before.streams | hold.streams)
            tables.put("holds", catalog_key(tables.version), hold)

    def _with_room(self, tables: Tables, entry: QueryEntry, state: QueryState) -> QueryState:
        """Give the oldest waiting run up if there are too many: the disk cannot keep every slide for ever."""
        if state.waiting < MAX_RETAINED:
            return state
        at, hold = next((at, hold) for at, hold in tables.items("holds") if entry.id in hold.queries)
        slides = {pace.stream: hold.streams[pace.stream].state.slide or 0 for pace in entry.paces}
        run = RunEntry(
            query=entry.name,
            slide=slides[entry.paces[0].stream],
            slides=slides,
            outcome="missed",
            version=tables.version,
            at=self._at,
            error=f"{MAX_RETAINED} later runs were waiting; run them more often, or use missed='latest'",
        )
        release_slide(tables, at, [entry.id])
        return replace(record_trouble(tables, entry, state, run), reached=slides, missed=state.missed + 1)


def _make_retained_slide(tables: Tables, waiting: Iterable[QueryEntry]) -> RetainedSlideEntry:
    waiting = tuple(waiting)
    return RetainedSlideEntry(
        version=tables.version,
        queries=tuple(entry.id for entry in waiting),
        streams={
            name: _retained_stream(tables, name) for name in sorted({name for entry in waiting for name in entry.reads})
        },
        tables={at.decode(): record for at, record in tables.items("tables")},
    )


def _retained_stream(tables: Tables, name: str) -> RetainedStream:
    entry, state = find_stream(tables, name)
    stream = catalog_key(entry.id)
    return RetainedStream(
        entry=entry,
        state=state,
        segments=tuple(segment for _, segment in tables.items("segments", stream)),
        sources={at[len(stream) :].decode(): record for at, record in tables.items("sources", stream)},
    )


def release_slide(tables: Tables, at: bytes, queries: Iterable[int]) -> bool:
    """Let a hold go for some queries; gives whether it was there for all of them."""
    hold: RetainedSlideEntry | None = tables.get("holds", at)
    gone = set(queries)
    if hold is None or not gone <= set(hold.queries):
        return False
    left = tuple(number for number in hold.queries if number not in gone)
    if left:
        tables.put("holds", at, replace(hold, queries=left))
    else:
        tables.delete("holds", at)
    return True


def release_query(tables: Tables, query: int) -> None:
    """Let every hold of a query go."""
    for at in [at for at, hold in tables.items("holds") if query in hold.queries]:
        release_slide(tables, at, [query])


def set_retention(tables: Tables, entry: QueryEntry, *, watched: bool) -> None:
    """Let the slides of a query's streams look at it, or no longer."""
    for pace in entry.paces:
        at = catalog_key(pace.stream_id) + entry.name.encode()
        if watched:
            tables.put_raw("keepers", at, b"")
        else:
            tables.delete("keepers", at)
