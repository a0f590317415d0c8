"""The rows of one input that a slide of a view has to do with: those that came or ended, and those with the same keys.

A row is known, new, or not seen yet, as `inputs.py` says; here that is told of rows that were read, not of relations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from windrow.indexes.end_overrides import find_ended_between
from windrow.indexes.row_model import Bools, Int64s
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.queries.views.inputs import (
    KNOWN,
    NEW,
    InputPosition,
    InputState,
    UpdateInterval,
    find_row_filter,
    may_matter,
)
from windrow.queries.views.key_rows import KeyedRows, KeySet, PlacedRows, plain_type
from windrow.queries.views.part_rows import ROW_BITS
from windrow.queries.views.plan import PlanPart
from windrow.store import Store


class ChangedRows(NamedTuple):
    """Rows of an input that came or ended since the last update.

    Args:
        new: Rows that have come and live.
        ended: Known rows that overrides have ended.
        expired: Known rows that ended as was known when they came; none where nobody asks.
    """

    new: PlacedRows
    ended: PlacedRows
    expired: PlacedRows


@dataclass(frozen=True)
class ComparedRows:
    """Rows of an input, as they were at the last update of a view and as they are now.

    Args:
        pieces: Some of them after others.
        had: Which of them lived at the last update.
        has: Which of them live now.
    """

    pieces: Sequence[PlacedRows]
    had: Bools
    has: Bools

    def __len__(self) -> int:
        return len(self.had)

    @cached_property
    def begins(self) -> Int64s:
        """When each begins."""
        return np.concatenate([rows.begins for rows in self.pieces])

    @cached_property
    def ends(self) -> Int64s:
        """When each ends, as far as was known when it came."""
        return np.concatenate([rows.ends for rows in self.pieces])

    @property
    def sequence(self) -> Int64s:
        """The hidden sequence of each."""
        return np.concatenate([rows.sequence for rows in self.pieces])

    def take(self, column: str) -> pa.Array:
        """The values of a column."""
        return pa.concat_arrays([rows.take(column) for rows in self.pieces])

    def select(self, chosen: Bools) -> "ComparedRows":
        """Some of them."""
        starts = np.cumsum([len(rows) for rows in self.pieces[:-1]])
        pieces = [rows.select(of) for rows, of in zip(self.pieces, np.split(chosen, starts), strict=True)]
        return ComparedRows(pieces, self.had[chosen], self.has[chosen])


class InputRows:
    """The rows of one input at one update of a view that had one before.

    Args:
        store: The warehouse.
        part: Of the view's plan.
        state: The input.
        position: How far the view has read it.
        interval: Of the update.
        columns: Of the keys.
    """

    def __init__(
        self,
        store: Store,
        part: PlanPart,
        state: InputState,
        position: InputPosition,
        interval: UpdateInterval,
        columns: Sequence[str],
    ) -> None:
        assert interval.before is not None
        self.columns, self.definition = tuple(columns), state.definition
        self._part, self._state, self._position = part, state, position
        self._before, self._now = interval.before, interval.now
        self._intervals = {
            NEW: UpdateInterval(self._before, self._now, self._now),
            KNOWN: UpdateInterval(self._before, self._before, self._before),
        }
        self._rows = KeyedRows(store, state.definition, columns, part.window)
        reached = -1 if state.slide is None else state.slide
        self._segments = [s for s in state.segments if state.slide is not None and s.first_slide <= reached]

    def find_changed(self, *, watched: bool) -> ChangedRows:
        """What came or ended; rows that ended as was known are only looked for if they are `watched`."""
        chosen = {s.id: s for s in self._segments if self._may_have(s, NEW)}
        if watched:
            chosen |= {s.id: s for s in self._known if self._may_expire(s)}
        rows = self._rows.read(list(chosen.values()))
        is_known, is_visible = self._classify(rows)
        new = ~is_known & is_visible & (rows.begins <= self._now) & (rows.last_ends > self._now)
        expired = is_known & is_visible & (rows.ends > self._before) & (rows.ends <= self._now)
        return ChangedRows(rows.select(new), self._find_ended(), rows.select(expired & watched))

    def _find_ended(self) -> PlacedRows:
        pieces = [
            find_ended_between(segment, self._before, self._now) + (number << ROW_BITS)
            for number, segment in enumerate(self._known)
            if segment.ended
        ]
        rows = self._rows.read_at(self._known, np.concatenate([np.empty(0, np.int64), *pieces]))
        is_known, is_visible = self._classify(rows)
        return rows.select(is_known & is_visible & (rows.ends > self._before))

    def compare(self, changed: ChangedRows, keys: KeySet | None, newest: int | None = None) -> ComparedRows:
        """Rows that came or that overrides have ended, and the known rows of some keys (None: of all).

        With `newest`, of the known rows only segments are read that can have some of so many newest ones.
        """
        segments = self._known if newest is None else self._choose_newest(newest)
        known = self._rows.read(segments, keys)
        is_known, is_visible = self._classify(known)
        known = known.select(is_known & is_visible & (known.ends > self._before) & (known.overrides > self._now))
        counts = len(known), len(changed.ended), len(changed.new)
        had = np.repeat([True, True, False], counts)
        has = np.concatenate([known.ends > self._now, np.repeat([False, True], counts[1:])])
        return ComparedRows([known, changed.ended, changed.new], had, has)

    def describe(self, changed: ChangedRows) -> tuple[tuple[bool, bool], tuple[bool, bool]]:
        """Whether there were rows at the last update, and one with a null as its key; and whether there are now."""
        (name,) = self.columns
        nulls = pa.table({name: pa.nulls(1, plain_type(self.definition.schema.field(name).type))})
        rows = self.compare(changed, KeySet(nulls))
        is_null = rows.take(name).is_null().to_numpy(zero_copy_only=False)
        lasts = any(self._is_whole(segment) for segment in self._known)
        every = rows if lasts else self.compare(changed, None)
        had, has = (
            (lasts or bool(lived[0].any()), bool((lived[1] & is_null).any()))
            for lived in ((every.had, rows.had), (every.has, rows.has))
        )
        return had, has

    def _is_whole(self, segment: Segment) -> bool:
        """Whether all rows of a segment are known, and live."""
        rows_known = find_row_filter(segment, self._position, KNOWN, self._before) == (False, False)
        window = self._part.window
        return rows_known and segment.min_exp > self._now and (window is None or segment.min_ts + window > self._now)

    def _choose_newest(self, count: int) -> list[Segment]:
        """The known segments that have the newest rows, now or at the last update."""
        for segment in sorted(self._known, key=lambda each: each.min_ts, reverse=True):
            count -= segment.rows if self._is_whole(segment) else 0
            if count <= 0:
                return [each for each in self._known if each.max_ts >= segment.min_ts]
        return self._known

    def read_live(self, keys: KeySet | None) -> PlacedRows:
        """The rows of some keys (None: of all) that live now."""
        segments = [s for s in self._segments if s.max_exp > self._now and s.min_ts <= self._now]
        rows = self._rows.read(segments, keys)
        _, is_visible = self._classify(rows)
        return rows.select(is_visible & (rows.begins <= self._now) & (rows.last_ends > self._now))

    def collect_keys(self, rows: Sequence[PlacedRows], schema: pa.Schema) -> pa.Table:
        """The keys of some rows, as columns of `schema`."""
        columns = [pa.concat_arrays([each.take(name) for each in rows if len(each)]) for name in self.columns]
        return pa.table(columns, schema.names).cast(schema)

    @cached_property
    def _known(self) -> list[Segment]:
        """The segments that have known rows which lived at the last update."""
        return [segment for segment in self._segments if self._may_have(segment, KNOWN)]

    def _may_have(self, segment: Segment, which: str) -> bool:
        """Whether a segment may have known rows that lived before, or new ones that live now."""
        has_rows = find_row_filter(segment, self._position, which, self._before) is not None
        return has_rows and may_matter(self._part, segment, self._intervals[which])

    def _may_expire(self, segment: Segment) -> bool:
        window = self._part.window
        return segment.min_exp <= self._now or (window is not None and segment.min_ts + window <= self._now)

    def _classify(self, rows: PlacedRows) -> tuple[Bools, Bools]:
        """Which rows the view knows, and which its input has taken in, as far as the view sees it."""
        numbers, position, state = rows.places >> ROW_BITS, self._position, self._state
        slides = np.array([(segment.first_slide, segment.last_slide) for segment in rows.segments], np.int64)
        first, last = slides.reshape(-1, 2).T
        read, reached = (-(1 << 62) if slide is None else slide for slide in (position.slide, state.slide))
        is_known, is_visible = (last <= read)[numbers], (last <= reached)[numbers]
        is_mixed = ((last > read) & (first <= read))[numbers]
        if is_mixed.any() or not is_visible.all():
            arrived: Int64s = rows.sequence >> SEQ_BITS
            is_known |= is_mixed & (arrived <= position.ordinal)
            is_visible |= arrived <= state.ordinal
        return is_known & (rows.begins <= self._before), is_visible
