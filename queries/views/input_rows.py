"""The rows of one input that a slide of a view has to do with: those that came or ended, and those with the same keys.

A row is known, new, or not seen yet, as `inputs.py` says; here that is told of rows that were read, not of relations.
"""

from collections.abc import Sequence
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
from windrow.queries.views.key_rows import KeyedRows, KeySet, PlacedRows
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
        self._rows = KeyedRows(store, state.definition, columns, part.window)
        reached = -1 if state.slide is None else state.slide
        self._segments = [s for s in state.segments if state.slide is not None and s.first_slide <= reached]

    def find_changed(self, *, watched: bool) -> ChangedRows:
        """What came or ended; rows that ended as was known are only looked for if they are `watched`."""
        known = self._list_known()
        chosen = {s.id: s for s in self._segments if self._may_have(s, NEW)}
        if watched:
            chosen |= {s.id: s for s in known if self._may_expire(s)}
        rows = self._rows.read(list(chosen.values()))
        is_known, is_visible = self._classify(rows)
        new = ~is_known & is_visible & (rows.begins <= self._now) & (rows.last_ends > self._now)
        expired = is_known & is_visible & (rows.ends > self._before) & (rows.ends <= self._now)
        return ChangedRows(rows.select(new), self._find_ended(known), rows.select(expired & watched))

    def _find_ended(self, known: Sequence[Segment]) -> PlacedRows:
        pieces = [
            find_ended_between(segment, self._before, self._now) + (number << ROW_BITS)
            for number, segment in enumerate(known)
            if segment.ended
        ]
        rows = self._rows.read_at(known, np.concatenate([np.empty(0, np.int64), *pieces]))
        is_known, is_visible = self._classify(rows)
        return rows.select(is_known & is_visible & (rows.ends > self._before))

    def read_known(self, keys: KeySet | None) -> PlacedRows:
        """The known rows of some keys (None: of all) that no override has ended by now; they may have expired since."""
        rows = self._rows.read(self._list_known(), keys)
        is_known, is_visible = self._classify(rows)
        return rows.select(is_known & is_visible & (rows.ends > self._before) & (rows.overrides > self._now))

    def read_live(self, segments: Sequence[Segment], keys: KeySet | None) -> PlacedRows:
        """The rows of some keys (None: of all) that live now, as far as they lie in some segments."""
        rows = self._rows.read(segments, keys)
        _, is_visible = self._classify(rows)
        return rows.select(is_visible & (rows.begins <= self._now) & (rows.last_ends > self._now))

    def list_live(self) -> list[Segment]:
        """The segments that may have rows that live now."""
        return [s for s in self._segments if s.max_exp > self._now and s.min_ts <= self._now]

    def collect_keys(self, rows: Sequence[PlacedRows], schema: pa.Schema) -> pa.Table:
        """The keys of some rows, as columns of `schema`."""
        columns = [pa.concat_arrays([each.take(name) for each in rows if len(each)]) for name in self.columns]
        return pa.table(columns, schema.names).cast(schema)

    def _list_known(self) -> list[Segment]:
        return [segment for segment in self._segments if self._may_have(segment, KNOWN)]

    def _may_have(self, segment: Segment, which: str) -> bool:
        """Whether a segment may have known rows that lived before, or new ones that live now."""
        at = UpdateInterval(self._before, self._now, self._now) if which == NEW else UpdateInterval(*[self._before] * 3)
        has_rows = find_row_filter(segment, self._position, which, self._before) is not None
        return has_rows and may_matter(self._part, segment, at)

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
