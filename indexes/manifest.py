"""The segments of a stream at one commit, with their figures side by side in columns.

A slide and a snapshot ask something of every segment; with a Python step for each they would cost more, the more the
window holds. So they ask the columns and touch only what the answer names. The next manifest is made out of the last.
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
    """What segments are known by, one array each."""

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
    file: Int64s
    """A number that stands for the file: that of one of its segments, so no other file has it."""
    all: Int64s
    """All of the above, one below the other: what is done to each is done to this."""

    @classmethod
    def of(cls, segments: Collection[Segment]) -> "SegmentArrays":
        """Asked of each segment: for those that no manifest has yet."""
        numbers: dict[str, int] = {}
        rows = [(*_asked(segment), numbers.setdefault(segment.file, segment.id)) for segment in segments]
        columns = np.array(rows, np.int64).reshape(-1, len(cls._fields) - 1).T.copy()
        return cls._make((*columns, columns))

    def where(self, mask: Bools) -> "SegmentArrays":
        """Those of some segments."""
        return self.at(np.flatnonzero(mask))

    def at(self, places: Int64s) -> "SegmentArrays":
        """Those of the segments at some places."""
        columns = self.all[:, places]
        return SegmentArrays._make((*columns, columns))

    def between(self, start: int, stop: int) -> "SegmentArrays":
        """Those of some segments that follow one another; nothing is copied."""
        columns = self.all[:, start:stop]
        return SegmentArrays._make((*columns, columns))

    def then(self, others: "SegmentArrays") -> "SegmentArrays":
        """With those of others behind."""
        columns = np.concatenate((self.all, others.all), axis=1)
        return SegmentArrays._make((*columns, columns))


_asked = attrgetter(*SegmentArrays._fields[:-2])


class Manifest(tuple[Segment, ...]):  # noqa: SLOT001 - a tuple's subclass cannot have any
    """Segments, and their figures, computed once: a tuple to everybody who asks for nothing else."""

    _figures: SegmentArrays | None = None
    _later: Callable[[], SegmentArrays] | None = None
    _dead: tuple[int, Int64s] | None = None

    @cached_property
    def selected(self) -> dict[Any, Any]:
        """What windows that were asked for have left of it."""
        return {}

    @cached_property
    def by_file(self) -> tuple[tuple[str, ...], Int64s]:
        """The files that have segments here, and of each segment the position of its own among them."""
        _, first, part = np.unique(self.figures.file, return_index=True, return_inverse=True)
        return tuple(self[at].file for at in first.tolist()), part

    @cached_property
    def rows(self) -> int:
        """Of all segments together."""
        return int(self.figures.rows.sum())

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "Manifest":
        """The segments as a manifest, which they may be already."""
        return segments if isinstance(segments, Manifest) else cls(segments)

    @property
    def figures(self) -> SegmentArrays:
        """The columns."""
        if self._figures is None:
            self._figures = SegmentArrays.of(self) if self._later is None else self._later()
        return self._figures

    def where(self, mask: Bools) -> list[Segment]:
        """The segments for which `mask` is true."""
        return list(compress(self, mask.tolist()))

    def at(self, places: Int64s) -> "Manifest":
        """The segments at some places, in their order, with their figures, which are picked when they are asked for."""
        figures = self.figures
        made = Manifest(map(self.__getitem__, places.tolist()))
        made._later = lambda: figures.at(places)
        return made

    def cut(self, at: int) -> "tuple[Manifest, Manifest]":
        """Those before a place, and the others."""
        before, after = Manifest(self[:at]), Manifest(self[at:])
        before._later = lambda: self.figures.between(0, at)
        after._later = lambda: self.figures.between(at, len(self))
        return before, after

    def then(self, others: "Manifest") -> "Manifest":
        """With others behind."""
        made = Manifest((*self, *others))
        made._later = lambda: self.figures.then(others.figures)
        return made

    def changed(self, gone: Collection[int], come: Collection[Segment]) -> "Manifest":
        """The manifest after a commit, without the segments of some numbers and with new ones."""
        figures = self.figures
        kept = (
            ~np.isin(figures.id, np.fromiter(gone, np.int64, len(gone)), kind="sort")
            if gone
            else np.ones(len(self), bool)
        )
        made = Manifest((*(compress(self, kept.tolist()) if gone else self), *come))
        made._figures = (figures.where(kept) if gone else figures).then(SegmentArrays.of(come))
        if self._dead is not None:
            slide, dead = self._dead
            fresh = native_rows.rows_between([segment.expiries for segment in come], None, slide)
            made._dead = slide, np.concatenate((dead[kept], fresh))
        return made

    def dead(self, slide: int) -> Int64s:
        """How many rows of each segment are dead at `slide`."""
        known = self._dead
        if known is not None and known[0] == slide:
            return known[1]
        found = native_rows.rows_between([segment.expiries for segment in self], None, slide)
        self._dead = slide, found
        return found

    def expire(self, previous: int, slide: int, places: Int64s) -> Int64s:
        """How many rows of the segments at `places` die in the slots (previous, slide], if none of the others' do."""
        gone = native_rows.rows_between([self[at].expiries for at in places.tolist()], previous, slide)
        dead = self.dead(previous).copy()
        dead[places] += gone
        self._dead = slide, dead
        return gone

    def files(self) -> set[str]:
        """The files that have segments here."""
        return set(self.by_file[0])

    def layouts(self) -> set[int]:
        """The numbers of the layouts that have segments here."""
        return set(np.unique(self.figures.layout).tolist())
