"""Counts what queries ask of streams, for the advisor: in memory first, in the catalog with a slide or now and then.

No query waits for a write transaction of its own, and a handle that may not write counts nothing.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from windrow.catalog.environment import Catalog, Tables, catalog_key
from windrow.catalog.records import UsageEntry

COMMIT_EVERY = 1000
"""Queries after which a process records its counts in a transaction of their own."""
LEAST_AT_CLOSE = 100
"""Fewer counts than these are lost when a handle is closed: a command with one query must not write."""
FADE_AFTER_SLIDES = 256
"""Slides after which old counts are halved, so that advice follows a changing mix of queries."""


@dataclass
class _StreamCounters:
    probes: int = 0
    probe_rows: int = 0
    scans: int = 0
    filters: Counter[str] = field(default_factory=Counter)


class UsageCounters:
    """The counters of one handle."""

    def __init__(self) -> None:
        self._counters: dict[int, _StreamCounters] = {}
        self._guard = threading.Lock()
        self._pending = 0

    def probe(self, stream: int, rows: int, columns: Iterable[str]) -> None:
        """Count a probe by these columns that found so many rows."""
        with self._guard:
            counters = self._counters.setdefault(stream, _StreamCounters())
            counters.probes += 1
            counters.probe_rows += rows
            for column in columns:
                counters.filters[column] += 1
            self._pending += 1

    def scan(self, stream: int, columns: Iterable[str] = ()) -> None:
        """Count a scan in which `columns` are compared with constants."""
        with self._guard:
            counters = self._counters.setdefault(stream, _StreamCounters())
            counters.scans += 1
            for column in columns:  # of a few names, `update` takes ten times as long
                counters.filters[column] += 1
            self._pending += 1

    def record(self, tables: Tables, stream: int | None = None, slides: int = 0) -> None:
        """Add what was counted (of one stream) to the catalog, in a transaction that is under way.

        Args:
            tables: Of that transaction.
            stream: Only this one; None: all.
            slides: Slides of the stream that the transaction commits.
        """
        for number, counters in self._take_counters(stream).items():
            if tables.get("states", catalog_key(number)) is None:
                continue  # dropped meanwhile
            entry = tables.get("usage", catalog_key(number)) or UsageEntry()
            tables.put("usage", catalog_key(number), _add(entry, counters, slides))

    def _take_counters(self, stream: int | None) -> dict[int, _StreamCounters]:
        with self._guard:
            if stream is None:
                counters, self._counters, self._pending = self._counters, {}, 0
                return counters
            return {stream: self._counters.pop(stream, _StreamCounters())}

    def record_if_many(self, catalog: Catalog, limit: int = COMMIT_EVERY) -> None:
        """Record everything in a transaction of its own, if there are at least `limit` counts."""
        if self._pending >= limit:
            with catalog.write() as tables:
                self.record(tables)


def _add(old: UsageEntry, counters: _StreamCounters, slides: int) -> UsageEntry:
    filters = Counter(old.filters)
    filters.update(counters.filters)
    entry = replace(
        old,
        slides=old.slides + slides,
        probes=old.probes + counters.probes,
        probe_rows=old.probe_rows + counters.probe_rows,
        scans=old.scans + counters.scans,
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
