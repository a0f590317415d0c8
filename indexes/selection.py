"""Which segments a window can need, and which of their rows: pruned by time and expiry, exact by row at the edges.

A segment is left out only if none of its rows can be in the window; where only some can be, rows are filtered.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import SEQ, Bools, RowModel
from windrow.indexes.segments import Segment

ColumnLimits = list[tuple[str, int, int]]
"""Columns and the values that are kept: above the first number, up to the second."""
_CACHED_WINDOWS = 8
"""Selections that a manifest remembers. Not measured: a bound on memory."""
_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class WindowBounds:
    """A window at one slide: rows with ``after < ts <= upto`` (None: no lower bound) and ``exp > now``."""

    after: int | None
    upto: int
    now: int
    before: int | None = None
    """Only rows whose sequence is below this: those that had been taken in then. Segments of which only some rows were
    must not `hold` for the window; sequences that are relative to a segment are below every such number."""

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
        """Whether a row is in the window as long as it lives."""
        return self.after is None and self.upto == _LAST and self.before is None

    def limits(self, model: RowModel, schema: pa.Schema) -> ColumnLimits | None:
        """The window as bounds on columns of microseconds, or None if the rows' times have to be computed first."""
        if model.expires is None and model.floor is not None:
            return None
        after, oldest = self.after, model.find_expiry_cutoff(self.now)
        if oldest is not None:
            after = oldest if after is None else max(after, oldest)
        limits = [] if model.expires is None else [(model.expires, self.now, _LAST)]
        if after is not None or self.upto < _LAST or not limits:
            limits.append((model.time, _FIRST if after is None else after, self.upto))
        kinds = [schema.field(name).type for name, _, _ in limits]
        exact = all(pa.types.is_timestamp(kind) and kind.unit == "us" for kind in kinds)
        if self.before is not None:
            limits.append((SEQ, _FIRST, self.before - 1))
        return limits if exact and all(_FIRST <= low <= _LAST for _, low, _ in limits) else None

    def deciding(self, model: RowModel) -> list[str]:
        """The columns that say whether a row is in the window."""
        return [name for name in (model.time, model.expires, self.before and SEQ) if name]

    def mask(self, table: pa.Table, model: RowModel) -> Bools:
        """Which rows are in the window; `table` must have the `deciding` columns."""
        ts, _ = model.times(table)
        exp, _ = model.expiries(table, ts)
        inside = (exp > self.now) & (ts <= self.upto)
        if self.before is not None:
            inside &= table.column(SEQ).to_numpy() < self.before
        return inside if self.after is None else inside & (ts > self.after)

    def filter(self, table: pa.Table, model: RowModel) -> pa.Table:
        """The rows in the window."""
        inside = self.mask(table, model)
        return table if bool(np.all(inside)) else table.filter(to_arrow(inside))


@dataclass(frozen=True)
class Selection:
    """The segments that a window needs."""

    bounds: WindowBounds
    whole: tuple[Segment, ...]
    """All rows count: no filter is needed."""
    edge: tuple[Segment, ...]
    """Rows must be filtered."""
    joined: Manifest | None = field(default=None, repr=False, compare=False)
    """Both together, if they were made from one manifest."""

    def edge_bounds(self) -> WindowBounds:
        """The bounds without the upper one, if no row of an edge segment is beyond it: less to compare in each row."""
        if bool((Manifest.of(self.edge).arrays.max_ts > self.bounds.upto).any()):
            return self.bounds
        return replace(self.bounds, upto=_LAST)

    @cached_property
    def segments(self) -> Manifest:
        """All of them, first those that are whole."""
        return Manifest.of(self.whole).concat(Manifest.of(self.edge)) if self.joined is None else self.joined


def select_segments(segments: Iterable[Segment], bounds: WindowBounds) -> Selection:
    """Prune `segments` to those that the window needs; cached, because many queries ask between two slides."""
    manifest = Manifest.of(segments)
    cache = manifest.selections
    selection: Selection | None = cache.get(bounds)
    if selection is None:
        if len(cache) >= _CACHED_WINDOWS:
            cache.clear()
        selection = cache[bounds] = _select(manifest, bounds)
    return selection


def _select(manifest: Manifest, bounds: WindowBounds) -> Selection:
    arrays = manifest.arrays
    needed = (arrays.max_exp > bounds.now) & (arrays.min_ts <= bounds.upto)  # `needs` and `holds`, of all at once
    holds = (arrays.min_exp > bounds.now) & (arrays.max_ts <= bounds.upto)
    if bounds.after is not None:
        needed &= arrays.max_ts > bounds.after
        holds &= arrays.min_ts > bounds.after
    whole, edge = np.flatnonzero(holds), np.flatnonzero(needed & ~holds)
    segments = manifest.take(np.concatenate((whole, edge)))
    return Selection(bounds, *segments.split(len(whole)), segments)
