"""When a query is due: its streams' slots are cut into periods, counted from each stream's origin or by the calendar.

A run is due at a committed slide at which every stream that paces the query has entered a later period than at the
last due one. So a query over one stream is due at the first slide in each of its periods, and one over several when
the slowest has moved on.
"""

from collections.abc import Mapping, Sequence

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import CalendarPace, Pace, QueryEntry, StreamState
from windrow.queries.sql.calendar_units import count_units, find_last_end, find_unit
from windrow.snapshot import Snapshot

SlideNumbers = dict[str, int]
"""The slide of each stream that has one."""
Clocks = dict[str, tuple[int | None, int | None]]
"""At which slide, and with calendars reckoned from where, streams are seen; see `Snapshot.at`."""


def is_due(paces: Sequence[Pace], before: Mapping[str, int], slides: Mapping[str, int]) -> bool:
    """Whether a run is due at `slides`, the last one having been at `before`."""
    return all(
        pace.stream in slides
        and (
            pace.stream not in before or find_period(pace, slides[pace.stream]) > find_period(pace, before[pace.stream])
        )
        for pace in paces
    )


def find_period(pace: Pace, slide: int) -> int:
    """A number that grows with the periods of a stream, and is the same for all slides in one."""
    return slide // pace.period if pace.calendar is None else find_ended_unit(pace.calendar, slide)


def find_ended_unit(pace: CalendarPace, slide: int) -> int:
    """The end of the last calendar unit that is over, and its lag too, at a slide."""
    return find_last_end(pace.unit, pace.zone, pace.origin + slide * pace.delta - pace.lag)


def count_missed_periods(paces: Sequence[Pace], before: Mapping[str, int], slides: Mapping[str, int]) -> int:
    """How many whole periods lie between two runs without one of their own."""
    if any(pace.stream not in before for pace in paces):
        return 0
    return max(0, min(_count_periods(pace, before[pace.stream], slides[pace.stream]) for pace in paces) - 1)


def _count_periods(pace: Pace, before: int, slide: int) -> int:
    first, last = find_period(pace, before), find_period(pace, slide)
    return last - first if pace.calendar is None else count_units(pace.calendar.unit, pace.calendar.zone, first, last)


def count_late_slides(pace: Pace, before: Mapping[str, int], slides: Mapping[str, int]) -> int:
    """By how many slides a run of a due query comes after the first slide of the period that it is due in."""
    if pace.stream not in before or pace.stream not in slides or pace.calendar is not None:
        return 0
    return max(0, slides[pace.stream] - (before[pace.stream] // pace.period + 1) * pace.period)


def find_clocks(entry: QueryEntry, slides: Mapping[str, int]) -> Clocks:
    """From where the calendar windows of a run at `slides` are reckoned."""
    return {
        pace.stream: (None, find_ended_unit(pace.calendar, slides[pace.stream]))
        for pace in entry.paces
        if pace.calendar is not None
    }


def find_run_window(pace: Pace, slide: int, now: int) -> tuple[int | None, int]:
    """The bounds of a stream's window in a run at a slide that ends at `now`."""
    calendar = pace.calendar
    if calendar is None:
        return None if pace.window is None else now - pace.window, now - pace.offset
    ended = find_ended_unit(calendar, slide)
    start, _ = find_unit(calendar.unit, calendar.zone, ended, calendar.first)
    return start, find_unit(calendar.unit, calendar.zone, ended, calendar.last)[1]


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
