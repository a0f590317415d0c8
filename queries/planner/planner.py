"""From a statement and a snapshot to a plan: what is read of each stream, in which of three ways, and why.

What is left out could not have changed the answer: DuckDB applies every predicate itself to whatever is read. A plan is
data; `reads` makes it readable for DuckDB.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from windrow.errors import WindowError, WindrowError
from windrow.indexes.bounded_cache import cached_in_findings
from windrow.indexes.manifest import Manifest
from windrow.indexes.probe import KeyRange, LocatedRows
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.planner.key_ranges import KeyPredicate
from windrow.queries.planner.predicates import CollectedPredicates, PredicateCollector
from windrow.queries.planner.reads import WindowRead, is_in_memory, plan_window
from windrow.queries.sql import window_spec
from windrow.queries.sql.analysis import StatementAnalysis, analyse
from windrow.queries.sql.statement import Reference, Statement
from windrow.snapshot import Snapshot, StreamSnapshot

PROBE_ROWS, PROBE_RANGES = 20_000, 2_000
"""Up to so many rows in so many ranges are read by key (`bench sql`: statements by key)."""
PROBE_SHARE, PROBE_FEW_ROWS = 0.2, 1_000
"""Where more than this share of a stream, and more than so many rows, have the wanted keys, whole segments are read.
Not measured."""
MEMORY_ROWS, MEMORY_SHARE = 200_000, 0.01
"""Segments that are in memory are read from there, and not by key, if they have at most so many rows or at least this
share of their rows has the wanted keys (`bench realistic`: one symbol, 3 to 15,000 of 100,000 rows; `bench sql`: at
200,000 rows both take the same)."""
UNRESTRICTED = KeyPredicate(None, None, None)


@dataclass(frozen=True)
class RelationPlan:
    """What a reference to a stream reads, out of what the stream has."""

    reference: Reference
    view: StreamSnapshot
    bounds: WindowBounds | None
    path: str
    """How it is read: ``probe`` (rows by key), ``memory``, ``scan`` (files, at least in part), ``empty``."""
    why: str
    """The reason for that, in words."""
    selection: Selection
    """The segments that are read."""
    located: LocatedRows | None
    """The rows that are read if they are found by key; None: all of the segments."""
    read: WindowRead | None
    """The rows of the segments, as DuckDB is told to read them; None if they are found by key."""
    predicate: KeyPredicate
    origin: str = ""
    """Where keys come from that the statement does not name itself, for EXPLAIN."""
    joined: str = ""
    """By what joins segments were left out, for EXPLAIN."""

    @property
    def stored(self) -> Manifest:
        """The segments that the stream has."""
        return self.view.segments

    @property
    def cells(self) -> tuple[int, int]:
        """Cells that are read, and that the stream has."""
        read, stored = ({segment.cell for segment in segments} for segments in (self.selection.segments, self.stored))
        return len(read), len(stored)

    @property
    def segments(self) -> tuple[int, int]:
        """Segments that are read, and that the stream has."""
        return len(self.selection.segments), len(self.stored)

    @property
    def rows(self) -> tuple[int, int]:
        """Rows that are read, and that the stream has."""
        return self.selection.segments.rows if self.located is None else self.located.rows, self.stored.rows

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that are read (of rows that are found by key, their share), and that the stream has."""
        selected = self.selection.segments
        read, stored = (sum(segment.bytes for segment in segments) for segments in (selected, self.stored))
        return read if self.located is None else read * self.located.rows // max(1, selected.rows), stored

    @property
    def keys(self) -> str:
        """What the statement restricts the search key to, for EXPLAIN."""
        return _describe_ranges(self.predicate.keys) + (self.origin if self.predicate.keys else "") + self.joined


def plan_relations(
    snapshot: Snapshot, statement: Statement, parameters: Any, pooled: PooledCursor, references: Sequence[Reference]
) -> list[RelationPlan]:
    """What is read of every stream of a statement.

    Args:
        snapshot: What is seen.
        statement: As parsed and confined.
        parameters: Of the statement.
        pooled: Where the statement will run.
        references: To streams, one for each relation.
    """
    streams = {reference.relation: reference for reference in references}
    collected = PredicateCollector(snapshot, pooled, statement, parameters, streams).collect()
    selected = {name: _select(snapshot, reference, collected) for name, reference in streams.items()}
    joined = _prune_by_joins(snapshot, streams, selected, collected)
    return [
        _plan_relation(snapshot, statement, pooled, reference, collected, *selected[name], joined.get(name, ""))
        for name, reference in streams.items()
    ]


def _select(
    snapshot: Snapshot, reference: Reference, collected: CollectedPredicates
) -> tuple[KeyPredicate, Selection, LocatedRows | None]:
    """What the conditions on a stream itself allow, the segments that may hold such rows, and the rows in them."""
    view, relation, window = snapshot.view(reference.name), reference.relation, reference.window
    predicate = collected.by_relation.get(relation, UNRESTRICTED)
    if isinstance(window, window_spec.OrderedWindow):
        # The newest rows must be found before any are left out, but for rows of other keys.
        by_key = {*view.entry.definition.key} <= {*resolve_keys(view.name, view.schema, window).keys}
        predicate = replace(predicate, after=None, upto=None) if by_key else UNRESTRICTED
    selection, located = prune_by_time(view.select(find_bounds(view, window)), predicate), None
    if predicate.keys is not None and selection.segments:
        located = collected.located(relation, selection.segments, snapshot.directories, view.sorted_by)
        if not located.touches_all():
            selection = keep_segments(selection, located.segment_ids())
    return predicate, selection, located


def _prune_by_joins(
    snapshot: Snapshot,
    streams: Mapping[str, Reference],
    selected: dict[str, tuple[KeyPredicate, Selection, LocatedRows | None]],
    collected: CollectedPredicates,
) -> dict[str, str]:
    """Leave out segments that match nothing on the other side of a join; gives what EXPLAIN says of it, by relation.

    Rows that were found by key stay found: they are few.
    """
    descriptions = {}
    for pair in collected.joined:
        predicate, selection, located = selected[pair.relation]
        if located is not None or isinstance(streams[pair.relation].window, window_spec.OrderedWindow):
            continue
        view, other = snapshot.view(streams[pair.relation].name), snapshot.view(streams[pair.other].name)
        others = selected[pair.other][1].segments
        from windrow.queries.planner.join_ranges import prune

        overlapping = prune(snapshot, selection.segments, view, pair.column, others, other, pair.other_column)
        if overlapping is not None and len(overlapping) < len(selection.segments):
            selected[pair.relation] = predicate, keep_segments(selection, overlapping), None
            descriptions[pair.relation] = f"; segments that {streams[pair.other].name}.{pair.other_column} can match"
    return descriptions


def _plan_relation(
    snapshot: Snapshot,
    statement: Statement,
    pooled: PooledCursor,
    reference: Reference,
    collected: CollectedPredicates,
    predicate: KeyPredicate,
    selection: Selection,
    located: LocatedRows | None,
    joined: str,
) -> RelationPlan:
    """How the selected segments of a stream are read."""
    view, relation, window = snapshot.view(reference.name), reference.relation, reference.window
    ordered = resolve_keys(view.name, view.schema, window) if isinstance(window, window_spec.OrderedWindow) else None
    analysis = analyse(statement)
    numbered = analysis.uses_sequence
    definition, (names, compared) = view.entry.definition, _find_columns(view, analysis)
    if located is not None:
        plain = ordered is None and not numbered
        probes = plain and bool(selection.segments) and _is_probe(located, view)
        if probes and _is_quick_in_memory(located, selection):
            probes = not is_in_memory(snapshot.store, pooled, view, selection, names)
        located = located if probes else None
    if located is None:
        read = plan_window(snapshot, pooled, view, selection, names, window=ordered, numbered=numbered)
        path, why = read.path, read.why
        snapshot.store.count_scan(view.entry.id, compared)
    else:
        read, path, why = None, "probe", f"{located.rows:,} rows have the wanted keys"
        snapshot.store.count_probe(view.entry.id, located.rows, definition.key[:1])
    bounds = None if view.state.slide is None else selection.bounds
    origin = collected.origins.get(relation, "")
    return RelationPlan(reference, view, bounds, path, why, selection, located, read, predicate, origin, joined)


@cached_in_findings
def _find_columns(view: StreamSnapshot, analysis: StatementAnalysis) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of a stream that a statement may read, and those that it compares, but for time and expiry."""
    definition, names = view.entry.definition, view.schema.names
    others = [name for name in names if name not in (definition.time, definition.expires)]
    return tuple(analysis.columns_read(names)), tuple(analysis.columns_compared(others))


def _is_probe(located: LocatedRows, view: StreamSnapshot) -> bool:
    """Whether the rows are so few, and in so few places, that they are read by key."""
    few = located.rows <= max(PROBE_FEW_ROWS, PROBE_SHARE * view.segments.rows)
    return few and len(located.start) <= PROBE_RANGES and located.rows <= PROBE_ROWS


def _is_quick_in_memory(located: LocatedRows, selection: Selection) -> bool:
    """Whether the segments are read from memory at least as quickly as the rows by key, if they are there."""
    stored = selection.segments.rows
    return stored <= MEMORY_ROWS or located.rows >= MEMORY_SHARE * stored


def _filter_segments(selection: Selection, keep: Callable[[Segment], bool]) -> Selection:
    return Selection(selection.bounds, tuple(filter(keep, selection.whole)), tuple(filter(keep, selection.edge)))


def keep_segments(selection: Selection, numbers: set[int]) -> Selection:
    """Of a selection, only the segments with these numbers."""
    return _filter_segments(selection, lambda segment: segment.id in numbers)


def prune_by_time(selection: Selection, predicate: KeyPredicate) -> Selection:
    """Without the segments that a predicate on the time excludes; DuckDB filters the rest."""
    after, upto = predicate.after, predicate.upto
    if after is None and upto is None:
        return selection
    return _filter_segments(
        selection,
        lambda segment: (after is None or segment.max_ts > after) and (upto is None or segment.min_ts <= upto),
    )


def _describe_ranges(ranges: Sequence[KeyRange] | None) -> str:
    if ranges is None:
        return "any"
    points = sum(key_range.is_point for key_range in ranges)
    counts = {"key": points, "range": len(ranges) - points}
    words = [f"{number:,} {word}{'' if number == 1 else 's'}" for word, number in counts.items() if number]
    return " and ".join(words) or "none"


def resolve_keys(
    stream: str, schema: pa.Schema, window: window_spec.OrderedWindow, error: type[WindrowError] = WindowError
) -> window_spec.OrderedWindow:
    """The window with the columns of PARTITION BY as the stream spells them."""
    names = {name.lower(): name for name in schema.names}
    for key in window.keys:
        if key.lower() not in names:
            raise error(f"stream {stream!r} has no column {key!r} to partition by; it has {', '.join(schema.names)}")
    return replace(window, keys=tuple(names[key.lower()] for key in window.keys))


def find_bounds(view: StreamSnapshot, window: window_spec.WindowSpec) -> WindowBounds | None:
    """The bounds of a window at the stream's clock; None before its first slide."""
    if isinstance(window, window_spec.RangeWindow):
        return view.last(window.length)
    if isinstance(window, window_spec.OffsetWindow):
        start = None if view.now is None else view.now - window.reach
        view.check_kept(window.reach, start, f"{window}, which begins {{}} before the clock,")
        return None if view.now is None else view.bounds(after=start, upto=view.now - window.offset)
    if isinstance(window, window_spec.LandmarkWindow):
        return view.bounds(after=window.start)
    if isinstance(window, window_spec.FixedWindow):
        if window.stop <= window.start:
            raise WindowError(f"{window} is empty: it ends before it begins")
        return view.bounds(after=window.start, upto=window.stop)
    if isinstance(window, window_spec.CalendarWindow):
        if view.reckoned is None:
            return None
        start, stop = window.find(view.reckoned)
        view.check_kept(window.longest(view.reckoned), start, f"{window}, which can be {{}} long,")
        return view.bounds(after=start, upto=stop)
    return view.bounds()
