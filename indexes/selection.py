"""Which segments a window can need, and which of their rows: pruned by time and expiry, exact by row at the edges."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import Bools, RowModel
from windrow.indexes.segments import Segment

ColumnLimits = list[tuple[str, int, int]]
"""Columns and the values that are kept: above the first number, up to the second."""
_KNOWN = 8
_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class WindowBounds:
    """A window at one slide: rows with ``after < ts <= upto`` (None: no lower bound) and ``exp > now``."""

    after: int | None
    upto: int
    now: int

    def needs(self, segment: Segment) -> bool:
        """Whether a row of the segment can be in the window."""
        return (
            segment.max_exp > self.now
            and segment.min_ts <= self.upto
            and (self.after is None or segment.max_ts > self.after)
        )

    def holds(self, segment: Segment) -> bool:
        """Whether all rows of the segment are in the window."""
        return (
            segment.min_exp > self.now
            and segment.max_ts <= self.upto
            and (self.after is None or segment.min_ts > self.after)
        )

    @property
    def is_of_expiry(self) -> bool:
        """Whether every row is in the window as long as it lives."""
        return self.after is None and self.upto == _LAST

    def limits(self, model: RowModel, schema: pa.Schema) -> ColumnLimits | None:
        """The window as bounds on columns of microseconds, or None if the rows' times have to be computed first."""
        if model.expires is None and model.floor is not None:
            return None
        after, oldest = self.after, model.oldest(self.now)
        if oldest is not None:
            after = oldest if after is None else max(after, oldest)
        found = [] if model.expires is None else [(model.expires, self.now, _LAST)]
        if after is not None or self.upto < _LAST or not found:
            found.append((model.time, _FIRST if after is None else after, self.upto))
        kinds = [schema.field(name).type for name, _, _ in found]
        exact = all(pa.types.is_timestamp(kind) and kind.unit == "us" for kind in kinds)
        return found if exact and all(_FIRST <= low <= _LAST for _, low, _ in found) else None

    def mask(self, table: pa.Table, model: RowModel) -> Bools:
        """Which rows are in the window; `table` must have the time and expiry columns."""
        ts, _ = model.times(table)
        exp, _ = model.expiries(table, ts)
        inside = (exp > self.now) & (ts <= self.upto)
        return inside if self.after is None else inside & (ts > self.after)

    def filter(self, table: pa.Table, model: RowModel) -> pa.Table:
        """The rows in the window."""
        inside = self.mask(table, model)
        return table if bool(np.all(inside)) else table.filter(pa.array(inside))


@dataclass(frozen=True)
class Selection:
    """The segments that a window needs."""

    bounds: WindowBounds
    whole: tuple[Segment, ...]
    """All rows count: no filter is needed."""
    edge: tuple[Segment, ...]
    """Rows must be filtered."""

    def edge_bounds(self) -> WindowBounds:
        """The bounds without an upper one, if no row of an edge segment is beyond it: less to look at in each row."""
        if bool((Manifest.of(self.edge).figures.max_ts > self.bounds.upto).any()):
            return self.bounds
        return WindowBounds(self.bounds.after, _LAST, self.bounds.now)

    @cached_property
    def segments(self) -> Manifest:
        """All of them."""
        return Manifest.of(self.whole).then(Manifest.of(self.edge))


def select_segments(segments: Iterable[Segment], bounds: WindowBounds) -> Selection:
    """Prune `segments` to those that the window needs; a manifest remembers it, since many ask between two slides."""
    manifest = Manifest.of(segments)
    known = manifest.selected
    found: Selection | None = known.get(bounds)
    if found is None:
        if len(known) >= _KNOWN:
            known.clear()
        found = known[bounds] = _select(manifest, bounds)
    return found


def _select(manifest: Manifest, bounds: WindowBounds) -> Selection:
    figures = manifest.figures
    needed = (figures.max_exp > bounds.now) & (figures.min_ts <= bounds.upto)  # as `needs` and `holds`, of all at once
    holds = (figures.min_exp > bounds.now) & (figures.max_ts <= bounds.upto)
    if bounds.after is not None:
        needed &= figures.max_ts > bounds.after
        holds &= figures.min_ts > bounds.after
    whole, edge = np.flatnonzero(holds), np.flatnonzero(needed & ~holds)
    segments = manifest.at(np.concatenate((whole, edge)))
    selection = Selection(bounds, *segments.cut(len(whole)))
    selection.__dict__["segments"] = segments  # as they would be put together again
    return selection
