"""What is asked of streams, counted in memory and put down rarely: with a slide, now and then, or at the end.

A query never waits for a write transaction of its own, and a handle that may not write counts for nobody.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from windrow.catalog.environment import Catalog, Tables, catalog_key
from windrow.catalog.records import UsageEntry

COMMIT_EVERY = 1000
"""Queries that one process asks before it puts them down by itself."""
LEAST_AT_CLOSE = 100
"""Fewer are forgotten when a handle is closed: a command that asks once must not write."""
FADE_AFTER_SLIDES = 256
"""Slides after which what was counted begins to fade: a mix of queries that changes is followed."""


@dataclass
class _StreamCounters:
    probes: int = 0
    probe_rows: int = 0
    scans: int = 0
    filters: Counter[str] = field(default_factory=Counter)


class UsageCounters:
    """The counters of one handle."""

    def __init__(self) -> None:
        self._counted: dict[int, _StreamCounters] = {}
        self._guard = threading.Lock()
        self._pending = 0

    def probe(self, stream: int, rows: int, columns: Iterable[str]) -> None:
        """A probe, by these columns, that found so many rows."""
        with self._guard:
            own = self._counted.setdefault(stream, _StreamCounters())
            own.probes += 1
            own.probe_rows += rows
            own.filters.update(columns)
            self._pending += 1

    def scan(self, stream: int, columns: Iterable[str] = ()) -> None:
        """A scan; `columns` are compared with constants in it."""
        with self._guard:
            own = self._counted.setdefault(stream, _StreamCounters())
            own.scans += 1
            own.filters.update(columns)
            self._pending += 1

    def put_down(self, tables: Tables, stream: int | None = None, slides: int = 0) -> None:
        """Add what was counted (of one stream) to the catalog, in a transaction that is under way.

        Args:
            tables: Of that transaction.
            stream: Only this one; None: all.
            slides: Slides of the stream that the transaction commits.
        """
        for number, own in self._taken(stream).items():
            if tables.get("states", catalog_key(number)) is None:
                continue  # dropped meanwhile
            known = tables.get("usage", catalog_key(number)) or UsageEntry()
            tables.put("usage", catalog_key(number), _add(known, own, slides))

    def _taken(self, stream: int | None) -> dict[int, _StreamCounters]:
        with self._guard:
            if stream is None:
                taken, self._counted, self._pending = self._counted, {}, 0
                return taken
            return {stream: self._counted.pop(stream, _StreamCounters())}

    def put_down_if_many(self, catalog: Catalog, limit: int = COMMIT_EVERY) -> None:
        """Put everything down in a transaction of its own, if enough has come together."""
        if self._pending >= limit:
            with catalog.write() as tables:
                self.put_down(tables)


def _add(known: UsageEntry, own: _StreamCounters, slides: int) -> UsageEntry:
    filters = Counter(known.filters)
    filters.update(own.filters)
    entry = replace(
        known,
        slides=known.slides + slides,
        probes=known.probes + own.probes,
        probe_rows=known.probe_rows + own.probe_rows,
        scans=known.scans + own.scans,
        filters=dict(filters),
    )
    return _halve(entry) if entry.slides >= 2 * FADE_AFTER_SLIDES else entry


def _halve(entry: UsageEntry) -> UsageEntry:
    """Half of everything: what was asked long ago counts less and less."""
    return UsageEntry(
        slides=entry.slides // 2,
        probes=entry.probes // 2,
        probe_rows=entry.probe_rows // 2,
        scans=entry.scans // 2,
        filters={name: count // 2 for name, count in entry.filters.items() if count > 1},
    )
