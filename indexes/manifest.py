"""The segments of a stream at one commit, with their statistics side by side in arrays.

A slide and a snapshot ask something of every segment; with a Python step for each, they would slow down as the window
grows (the growth lines of `bench core`). So they ask the arrays, and touch only the segments that the answer names. The
next manifest is made from the last one.
"""

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from windrow.indexes.row_model import Bools, Int64s
from windrow.indexes.segments import Segment
from windrow.native import rows as native_rows


class SegmentArrays(NamedTuple):
    """The statistics of segments, one array each."""

    id: Int64s
    start: Int64s
    rows: Int64s
    bytes: Int64s
    layout: Int64s
    row: Int64s
    column: Int64s
    min_ts: Int64s
    max_ts: Int64s
    min_exp: Int64s
    max_exp: Int64s
    file_rows: Int64s
    file: Int64s
    """A number that stands for the file: that of one of its segments, so no other file has it."""
    matrix: Int64s
    """All of the above as rows of one array: what is done to each of them is done to this."""

    @classmethod
    def of(cls, segments: Collection[Segment]) -> "SegmentArrays":
        """Read from each segment: for those that no manifest has yet."""
        numbers: dict[str, int] = {}
        rows = [(*_statistics(segment), numbers.setdefault(segment.file, segment.id)) for segment in segments]
        matrix = np.array(rows, np.int64).reshape(-1, len(cls._fields) - 1).T.copy()
        return cls._make((*matrix, matrix))

    def filter(self, mask: Bools) -> "SegmentArrays":
        """Those of the segments for which `mask` is true."""
        return self.take(np.flatnonzero(mask))

    def take(self, positions: Int64s) -> "SegmentArrays":
        """Those of the segments at some positions."""
        matrix = self.matrix[:, positions]
        return SegmentArrays._make((*matrix, matrix))

    def slice(self, start: int, stop: int) -> "SegmentArrays":
        """Those of segments that follow one another; nothing is copied."""
        matrix = self.matrix[:, start:stop]
        return SegmentArrays._make((*matrix, matrix))

    def concat(self, others: "SegmentArrays") -> "SegmentArrays":
        """These, followed by others."""
        matrix = np.concatenate((self.matrix, others.matrix), axis=1)
        return SegmentArrays._make((*matrix, matrix))


_statistics = attrgetter(*SegmentArrays._fields[:-2])


class DeadRows(NamedTuple):
    """How many rows of each segment of a manifest are dead at a slide."""

    slide: int
    counts: Int64s


class Manifest(tuple[Segment, ...]):  # noqa: SLOT001 - a tuple's subclass cannot have any
    """Segments, with arrays that are made when they are first used: a tuple to everybody who needs nothing else."""

    _arrays: SegmentArrays | None = None
    _make_arrays: Callable[[], SegmentArrays] | None = None
    _dead: DeadRows | None = None

    @cached_property
    def selections(self) -> dict[Any, Any]:
        """The cache of `selection.select_segments`: what is left of the manifest for a window."""
        return {}

    @cached_property
    def by_file(self) -> tuple[tuple[str, ...], Int64s]:
        """The files that have segments here, and for each segment the position of its file among them."""
        _, first, file_of = np.unique(self.arrays.file, return_index=True, return_inverse=True)
        return tuple(self[position].file for position in first.tolist()), file_of

    @cached_property
    def ended(self) -> tuple[Segment, ...]:
        """The segments of which rows have ended by an override."""
        return tuple(segment for segment in self if segment.ended)

    @cached_property
    def rows(self) -> int:
        """Rows of all segments together."""
        return int(self.arrays.rows.sum())

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "Manifest":
        """The segments as a manifest, which they may be already."""
        return segments if isinstance(segments, Manifest) else cls(segments)

    @property
    def arrays(self) -> SegmentArrays:
        """The statistics of all segments."""
        if self._arrays is None:
            self._arrays = SegmentArrays.of(self) if self._make_arrays is None else self._make_arrays()
        return self._arrays

    def filter(self, mask: Bools) -> list[Segment]:
        """The segments for which `mask` is true."""
        return list(compress(self, mask.tolist()))

    def take(self, positions: Int64s) -> "Manifest":
        """The segments at some positions, in their order; their arrays are taken when they are used."""
        arrays = self.arrays
        chosen = Manifest(map(self.__getitem__, positions.tolist()))
        chosen._make_arrays = lambda: arrays.take(positions)
        return chosen

    def split(self, position: int) -> "tuple[Manifest, Manifest]":
        """The segments before a position, and the others."""
        before, after = Manifest(self[:position]), Manifest(self[position:])
        before._make_arrays = lambda: self.arrays.slice(0, position)
        after._make_arrays = lambda: self.arrays.slice(position, len(self))
        return before, after

    def concat(self, others: "Manifest") -> "Manifest":
        """These segments, followed by others."""
        joined = Manifest((*self, *others))
        joined._make_arrays = lambda: self.arrays.concat(others.arrays)
        return joined

    def replace(self, gone: Collection[int], come: Collection[Segment], dead: DeadRows | None = None) -> "Manifest":
        """The manifest after a commit.

        Args:
            gone: Numbers of the segments that leave.
            come: Segments that are added.
            dead: The dead rows of this manifest's segments as `expire` gave them; the next slide begins with them.
        """
        arrays = self.arrays
        stays = (
            ~np.isin(arrays.id, np.fromiter(gone, np.int64, len(gone)), kind="sort")
            if gone
            else np.ones(len(self), bool)
        )
        changed = Manifest((*(compress(self, stays.tolist()) if gone else self), *come))
        changed._arrays = (arrays.filter(stays) if gone else arrays).concat(SegmentArrays.of(come))
        dead = self._dead if dead is None else dead
        if dead is not None:
            added = native_rows.count_rows_between([segment.expiries for segment in come], None, dead.slide)
            changed._dead = DeadRows(dead.slide, np.concatenate((dead.counts[stays], added)))
        return changed

    def dead_rows(self, slide: int) -> Int64s:
        """How many rows of each segment are dead at `slide`."""
        if self._dead is not None and self._dead.slide == slide:
            return self._dead.counts
        return native_rows.count_rows_between([segment.expiries for segment in self], None, slide)

    def expire(self, previous: int, slide: int, positions: Int64s) -> tuple[Int64s, DeadRows]:
        """What dies in the slots (previous, slide], where only segments at some positions lose rows.

        Returns:
            How many rows of the segments at `positions` die, and the dead rows of all segments at `slide`.
        """
        losing = [self[position].expiries for position in positions.tolist()]
        expired = native_rows.count_rows_between(losing, previous, slide)
        counts = self.dead_rows(previous).copy()
        counts[positions] += expired
        return expired, DeadRows(slide, counts)

    def files(self) -> set[str]:
        """The files that have segments here."""
        return set(self.by_file[0])

    def layouts(self) -> set[int]:
        """The numbers of the layouts that have segments here."""
        return set(np.unique(self.arrays.layout).tolist())
