"""The feed of events: one task watches the catalog for all who listen, and tells slides, runs, failures and gaps."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import Role, RunEntry
from windrow.definitions import is_hidden
from windrow.queries.periodic.counters import ServerCounters
from windrow.store import Store

_POLL_SECONDS = 0.2
"""Between two looks whether another process has committed. `bench service` has what 1,000 idle listeners cost."""
_MOST_QUEUED = 1000
"""Events that wait for a slow listener; of more, the oldest are left out and the listener is told."""

Event = dict[str, Any]


@dataclass(frozen=True)
class _CatalogState:
    """What the catalog held when it was last read."""

    slides: dict[str, tuple[int, int | None, int | None, tuple[str, ...]]]
    """Of each stream: number of slides, the slide, the clock, sources that the slide went on without."""
    queries: dict[str, tuple[int, int, int | None, str | None, int]]
    """Of each query: runs, failures, the slide, the error, the commit of its last revision."""
    revised: list[RunEntry]
    """Revisions since the catalog was read before."""


class EventFeed:
    """Tells all who listen what happens in a warehouse, in this process or another.

    Args:
        store: The warehouse.
        counts: Of the process that runs periodic queries.
    """

    def __init__(self, store: Store, counts: ServerCounters) -> None:
        self._store = store
        self._counts = counts
        self._queues: dict[asyncio.Queue[Event], Role] = {}
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """The server ends: so does what everybody listens to. Any thread may."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self._send, {"event": "end", "reason": "the server is ending"}, None)

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._queues)

    @contextlib.contextmanager
    def listening(self, role: Role) -> Iterator["asyncio.Queue[Event]"]:
        """A queue of the events that a role may know of."""
        queue: asyncio.Queue[Event] = asyncio.Queue(_MOST_QUEUED)
        self._queues[queue] = role
        self._loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield queue
        finally:
            del self._queues[queue]
            if not self._queues and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        commit, current = self._store.catalog.last_transaction(), await asyncio.to_thread(self._read_state)
        failing = self._counts.failing
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._counts.failing != failing:
                failing = self._counts.failing
                self._send({"event": "rounds", "failing": failing}, None)
            latest = self._store.catalog.last_transaction()
            if latest != commit:
                commit, before = latest, current
                current = await asyncio.to_thread(self._read_state, before)
                self._compare(before, current)

    def _read_state(self, before: _CatalogState | None = None) -> _CatalogState:
        def read_records(tables: Tables) -> _CatalogState:
            slides, queries, revised = {}, {}, list[RunEntry]()
            for entry in (entry for key, entry in tables.items("streams") if not is_hidden(key.decode())):
                state = tables.get("states", catalog_key(entry.id))
                now = None if state.slide is None else entry.definition.model.slot_end(state.slide)
                slides[entry.definition.name] = state.ordinal, state.slide, now, tuple(state.missing)
            for _, entry in tables.items("queries"):
                state = tables.get("paced", catalog_key(entry.id))
                queries[entry.name] = state.runs, state.failures, state.delivered, state.error, state.revised_at
                revised_at = None if before is None else before.queries.get(entry.name, (0,))[-1]
                if revised_at is not None and revised_at != state.revised_at:
                    revisions = [run for _, run in tables.items("revisions", catalog_key(entry.id))]
                    revised += [run for run in revisions if run.version > revised_at]
            return _CatalogState(slides, queries, revised)

        return self._store.catalog.read(read_records)

    def _compare(self, before: _CatalogState, after: _CatalogState) -> None:
        for name, (ordinal, slide, now, missing) in after.slides.items():
            earlier_slides = before.slides.get(name, (0,))[0]
            if ordinal != earlier_slides:
                clock = None if now is None else times.format_time(now)
                slid = {"stream": name, "slide": slide, "now": clock}
                self._send({"event": "slide", **slid, "slides": ordinal - earlier_slides}, name)
                if missing:
                    self._send({"event": "gap", **slid, "missing": list(missing)}, name)
        for name, (runs, failures, slide, error, _) in after.queries.items():
            earlier = before.queries.get(name, (0, 0))
            if runs != earlier[0]:
                self._send({"event": "run", "query": name, "slide": slide, "runs": runs}, name)
            if failures > earlier[1]:
                self._send({"event": "failure", "query": name, "failures": failures, "error": error}, name)
        for run in sorted(after.revised, key=lambda each: each.version):
            of_run = {"query": run.query, "slide": run.slide, "revision": run.revision}
            self._send({"event": "revision", **of_run, "complete": run.complete}, run.query)

    def _send(self, event: Event, name: str | None) -> None:
        for queue, role in self._queues.items():
            if name is None or role.sees(name):
                if queue.full():  # whoever is so slow is told that there was more
                    dropped = queue.get_nowait()
                    number = dropped.get("lost", 0) + 1 + queue.get_nowait().get("lost", 1)
                    queue.put_nowait({"event": "lost", "lost": number})
                queue.put_nowait(event)
