"""When a query is due: its streams' slots are cut into periods, counted from each stream's origin.

A run is due at a committed slide at which every stream that paces the query has entered a later period than at the
last due one. So a query over one stream is due at the first slide in each of its periods, and one over several when
the slowest has moved on.
"""

from collections.abc import Mapping, Sequence

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import Pace, QueryEntry, StreamState
from windrow.snapshot import Snapshot

SlideNumbers = dict[str, int]
"""The slide of each stream that has one."""


def is_due(paces: Sequence[Pace], before: Mapping[str, int], slides: Mapping[str, int]) -> bool:
    """Whether a run is due at `slides`, the last one having been at `before`."""
    return all(
        pace.stream in slides
        and (pace.stream not in before or slides[pace.stream] // pace.period > before[pace.stream] // pace.period)
        for pace in paces
    )


def count_missed_periods(paces: Sequence[Pace], before: Mapping[str, int], slides: Mapping[str, int]) -> int:
    """How many whole periods lie between two runs without one of their own."""
    if any(pace.stream not in before for pace in paces):
        return 0
    return max(0, min(slides[p.stream] // p.period - before[p.stream] // p.period for p in paces) - 1)


def count_late_slides(pace: Pace, before: Mapping[str, int], slides: Mapping[str, int]) -> int:
    """By how many slides a run of a due query comes after the first slide of the period that it is due in."""
    if pace.stream not in before or pace.stream not in slides:
        return 0
    return max(0, slides[pace.stream] - (before[pace.stream] // pace.period + 1) * pace.period)


def read_committed_slides(
    tables: Tables, entry: QueryEntry, cached: dict[int, int | None] | None = None
) -> SlideNumbers:
    """Where the query's streams stand in a transaction; `cached` holds the slides that were already read in it."""
    by_stream = {} if cached is None else cached
    slides: SlideNumbers = {}
    for pace in entry.paces:
        if pace.stream_id not in by_stream:
            state: StreamState | None = tables.get("states", catalog_key(pace.stream_id))
            by_stream[pace.stream_id] = None if state is None else state.slide
        slide = by_stream[pace.stream_id]
        if slide is not None:
            slides[pace.stream] = slide
    return slides


def read_snapshot_slides(snapshot: Snapshot, entry: QueryEntry) -> SlideNumbers:
    """Where the query's streams stand in a snapshot."""
    streams = set(snapshot.streams())
    views = [snapshot.view(pace.stream) for pace in entry.paces if pace.stream in streams]
    return {view.name: view.state.slide for view in views if view.state.slide is not None}
