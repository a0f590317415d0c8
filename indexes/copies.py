"""Copies of live rows that scans have made, kept for the next scan of the same columns.

Arrow's texts lie side by side, so the live rows of a segment that also has dead ones must be copied to be handed out. A
slide takes rows from one expiry column only: the copies of the others are still right, and are handed out again. What
needs no copy is kept too, if next to nothing of it is memory of its own.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable

import pyarrow as pa

from windrow.indexes.column_cache import ColumnCache

Batches = list[pa.RecordBatch]
Of = tuple[tuple[int, int, int, bytes, int], ...]
"""What a copy is of: parts of segments, each with the segment's number, its first row and one past the last, when the
segment's rows expire, and how many have."""
_SHARE = 4
"""Of the budget for columns, the part that copies may take."""
_PLACES = 16
"""Scans, each of a stream and some of its columns, that are remembered."""


class Copies:
    """Copies by what they are of; a scan that is made for the second time begins to keep them.

    Args:
        cache: Whose budget they are taken from.
    """

    def __init__(self, cache: ColumnCache) -> None:
        self._cache = cache
        self._kept: OrderedDict[Hashable, dict[Of, tuple[Batches, int]]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        """Held now; memory is asked for in large pages, so that it may be some more."""

    def has_room_for(self, size: int) -> bool:
        """Whether copies of so many bytes can all be kept, if nothing else is."""
        return size <= self._cache.budget // _SHARE

    def begin(self, scan: Hashable, wanted: Collection[Of]) -> dict[Of, Batches] | None:
        """What is kept of the copies that a scan wants; what it no longer wants goes, and its memory is used again.

        Args:
            scan: What is scanned: a stream and columns.
            wanted: Of each copy what it is of.

        Returns:
            None if nothing is to be kept: nobody has made this scan before.
        """
        with self._lock:
            known = self._kept.get(scan)
            if known is None:
                self._kept[scan] = {}
                while len(self._kept) > _PLACES:
                    self._drop(self._kept.popitem(last=False)[1], ())
                return None
            self._kept.move_to_end(scan)
            self._drop(known, wanted)
            return {of: batches for of, (batches, _) in known.items()}

    def keep(self, scan: Hashable, of: Of, batches: Batches, size: int) -> None:
        """Keep a copy of so many bytes; those of scans that were not made for longest go for it."""
        with self._lock:
            known = self._kept.get(scan)
            if known is None or of in known:
                return
            for other in [other for other in self._kept if other != scan]:
                if self.has_room_for(self.bytes + size):
                    break
                self._drop(self._kept[other], ())
            if self.has_room_for(self.bytes + size):
                known[of] = batches, size
                self._count(size)

    def forget(self, segments: Collection[int]) -> None:
        """Drop copies of segments that are gone: a copy of one that was wholly live may be the file's own memory."""
        gone = frozenset(segments)
        with self._lock:
            for known in self._kept.values() if self.bytes else ():
                self._drop(known, {of for of in known if gone.isdisjoint(part[0] for part in of)})

    def _drop(self, known: dict[Of, tuple[Batches, int]], wanted: Collection[Of]) -> None:
        for of in [of for of in known if of not in wanted]:
            self._count(-known.pop(of)[1])

    def _count(self, size: int) -> None:
        self.bytes += size
        self._cache.lend(size)
