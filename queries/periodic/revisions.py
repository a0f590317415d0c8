"""Revisions: which delivered windows late rows have changed since, to be run again or counted as outdated.

A slide records which event slots its late rows fall in. A window is changed if a slide after those that its newest
revision knows took in rows of one of its slots.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import (
    Pace,
    QueryEntry,
    QueryState,
    ResultRead,
    RunEntry,
    SlideEntry,
    StreamEntry,
    StreamState,
)
from windrow.errors import QueryError
from windrow.indexes.row_model import RowModel
from windrow.queries.periodic.due import find_run_window
from windrow.queries.sql.statement import Reference
from windrow.queries.sql.window_spec import CalendarWindow, OffsetWindow, RangeWindow
from windrow.snapshot import StreamSnapshot


@dataclass
class _RecentSlides:
    """The last slides of a stream, newest first, as far as they were asked for."""

    model: RowModel
    next: int
    """The ordinal of the slide to be read next; 0 if there is none."""
    oldest: int | None
    """The slide that was read last."""
    late: list[SlideEntry]
    """Those that took in late rows."""


class LateRows:
    """Where late rows have come, as one transaction sees it.

    Args:
        tables: Of the transaction.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._streams: dict[str, _RecentSlides | None] = {}
        self._revised: dict[int, list[RunEntry]] = {}

    def _recent(self, pace: Pace) -> _RecentSlides | None:
        if pace.stream not in self._streams:
            entry: StreamEntry | None = self._tables.get("streams", pace.stream.encode())
            state: StreamState | None = self._tables.get("states", catalog_key(pace.stream_id))
            is_same_stream = entry is not None and state is not None and entry.id == pace.stream_id
            self._streams[pace.stream] = (
                _RecentSlides(entry.definition.model, state.ordinal, state.slide, [])
                if is_same_stream and entry is not None and state is not None
                else None
            )
        return self._streams[pace.stream]

    def since(self, pace: Pace, slide: int) -> list[SlideEntry] | None:
        """The slides after `slide` that took in late rows; None if some are no longer on record."""
        recent = self._recent(pace)
        if recent is None or recent.oldest is None:
            return []
        while recent.next and recent.oldest > slide:
            record: SlideEntry | None = self._tables.get("slides", catalog_key(pace.stream_id, recent.next))
            if record is None:
                return None
            recent.next -= 1
            recent.oldest = slide if record.previous is None else record.previous
            if record.late_slots:
                recent.late.append(record)
        return [record for record in recent.late if record.slide > slide]

    def clock(self, pace: Pace) -> int | None:
        """Where a stream stands."""
        state: StreamState | None = self._tables.get("states", catalog_key(pace.stream_id))
        recent = self._recent(pace)
        return None if recent is None or state is None or state.slide is None else recent.model.slot_end(state.slide)

    def have_come(self, entry: QueryEntry, checked: Mapping[str, int]) -> bool:
        """Whether streams of a query took in late rows since they were checked."""
        return any(
            pace.stream in checked and self.since(pace, checked[pace.stream]) != [] for pace in entry.paces
        ) or any(commit > checked.get(mark, 0) for mark, commit in self.marks(entry).items())

    def marks(self, entry: QueryEntry) -> dict[str, int]:
        """The commits of the last revisions of results that a query reads."""
        states = {read.query: self._tables.get("paced", catalog_key(read.id)) for read in entry.after}
        return {f"@{name}": state.revised_at for name, state in states.items() if state is not None}

    def change(self, entry: QueryEntry, run: RunEntry) -> bool:
        """Whether late rows have changed the window of a run since its newest revision."""
        return any(self._changes(pace, run) for pace in entry.paces if pace.stream in run.slides) or any(
            self._is_revised(read, run) for read in entry.after
        )

    def _is_revised(self, read: ResultRead, run: RunEntry) -> bool:
        """Whether results that a run has read were revised since."""
        since, end = run.known.get(f"@{read.query}", run.version), run.window_end or 0
        return any(
            revision.version > since
            and (revision.window_end or end) <= end
            and (read.reach is None or (revision.window_end or end) > end - read.reach)
            for revision in self._revisions(read.id)
        )

    def _revisions(self, query: int) -> list[RunEntry]:
        if query not in self._revised:
            self._revised[query] = [run for _, run in self._tables.items("revisions", catalog_key(query))]
        return self._revised[query]

    def _changes(self, pace: Pace, run: RunEntry) -> bool:
        slide, recent = run.slides[pace.stream], self._recent(pace)
        late = self.since(pace, run.known.get(pace.stream, slide))
        if recent is None or late is None or not late:
            return late is None
        start, end = find_run_window(pace, slide, recent.model.slot_end(slide))
        first, last = None if start is None else recent.model.slot_of(start + 1), recent.model.slot_of(end)
        ranges = (each for record in late for each in record.late_slots)
        return any(low <= last and (first is None or high >= first) for low, high in ranges)

    def changed_runs(self, entry: QueryEntry, checked: Mapping[str, int]) -> Iterator[RunEntry]:
        """The delivered runs of a query, not known to be outdated, that rows have changed since they were checked."""
        lowest = self._lowest(entry, checked)
        if lowest is None:
            return
        prefix = catalog_key(entry.id)
        for key in [key for key, _ in self._tables.raw_items("runs", prefix) if decode_last_int(key) >= lowest]:
            run: RunEntry = self._tables.get("runs", key)
            if run.outcome == "delivered" and not run.outdated and self.change(entry, run):
                yield run

    def _lowest(self, entry: QueryEntry, checked: Mapping[str, int]) -> int | None:
        """The first slide whose run can have changed: a window ends with its run, or before; None if none can have."""
        lows: list[int] = []
        if any(commit > checked.get(mark, 0) for mark, commit in self.marks(entry).items()):
            return -(1 << 63)
        for number, pace in enumerate(entry.paces):
            late = self.since(pace, checked[pace.stream]) if pace.stream in checked else []
            if late is None or (late and number):
                return -(1 << 63)  # runs are numbered by the slides of another stream
            lows += [record.late_slots[0][0] for record in late]
        return min(lows, default=None)


def is_revisable(entry: QueryEntry, run: RunEntry, now: int | None) -> bool:
    """Whether the window of a run ended so lately that it is still revised."""
    return entry.revise is not None and now is not None and now - (run.window_end or now) <= entry.revise


def note_late_rows(
    tables: Tables, late: LateRows, entry: QueryEntry, state: QueryState, slides: Mapping[str, int]
) -> QueryState:
    """With the delivery of a run, mark the windows that changed for good, and go on unless some wait for a revision."""
    if not late.have_come(entry, state.checked):
        return replace(state, checked={**slides, **late.marks(entry)})
    now, waiting, marked = late.clock(entry.paces[0]), False, 0
    for run in late.changed_runs(entry, state.checked):
        if is_revisable(entry, run, now):
            waiting = True
            continue
        tables.put("runs", catalog_key(entry.id, run.slide), replace(run, outdated=True))
        marked += 1
    return replace(
        state, outdated=state.outdated + marked, checked=state.checked if waiting else {**slides, **late.marks(entry)}
    )


def count_outdated(tables: Tables, entry: QueryEntry, state: QueryState) -> int:
    """How many delivered windows have changed, and are not, or not yet, revised."""
    late = LateRows(tables)
    if not late.have_come(entry, state.checked):
        return state.outdated
    return state.outdated + sum(1 for _ in late.changed_runs(entry, state.checked))


def check_room(
    streams: Sequence[tuple[Reference | None, StreamSnapshot]],
    paced: Collection[str],
    room: int,
    option: str = "revise",
) -> None:
    """Refuse an option that runs a window later where rows of a window may be gone by then.

    Raises:
        QueryError: a window has no fixed length, a stream does not pace the query, or its rows live too short.
    """
    for reference, view in streams:
        definition, window = view.entry.definition, None if reference is None else reference.window
        if view.name not in paced:
            raise QueryError(
                f"{option}= needs to know which window each run had: give stream {view.name!r} a SLIDE too"
            )
        if reference is not None and (definition.expires is not None or definition.inputs):
            why = "is derived from others" if definition.inputs else "has rows that say themselves when they expire"
            raise QueryError(f"stream {view.name!r} {why}, so a past window cannot be made again; leave {option}= out")
        life = definition.lifetime
        if life is None or reference is None:
            continue
        if not isinstance(window, RangeWindow | OffsetWindow | CalendarWindow):
            raise QueryError(f"{option}= needs a window of a fixed length over stream {view.name!r}, not {window}")
        length = window.longest(view.now or 0) if isinstance(window, CalendarWindow) else window.reach
        if length + room > life:
            raise QueryError(
                f"stream {view.name!r} keeps rows for {times.format_duration(life)}, too short for a window of "
                f"{times.format_duration(length)} and {option}={times.format_duration(room)!r}; there is room for "
                f"{times.format_duration(life - length) if life > length else 'none'}"
            )
