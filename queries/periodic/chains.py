"""Chained queries: those that read results of others run after them, over what these delivered for the same slide."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import QueryEntry, QueryState, ResultRead
from windrow.errors import DefinitionError, WindowError
from windrow.queries.periodic.due import is_due, read_committed_slides
from windrow.queries.sql.statement import Reference
from windrow.queries.sql.window_spec import CalendarWindow, OffsetWindow, RangeWindow


def find_reads(references: Sequence[tuple[Reference, QueryEntry]], deltas: Mapping[str, int]) -> tuple[ResultRead, ...]:
    """Whose results a query reads, and how far back; refuses windows longer than these keep.

    Args:
        references: To results, with the queries that deliver them.
        deltas: The slide of each stream.
    """
    reads = []
    for reference, query in references:
        pace, window = query.paces[0], reference.window
        period = pace.period * deltas[pace.stream]
        if pace.calendar is not None:
            calendar = CalendarWindow(pace.calendar.unit, pace.calendar.zone)
            period = calendar.longest(query.created)
        reach = None
        if isinstance(window, RangeWindow | OffsetWindow | CalendarWindow):
            reach = window.longest(query.created) if isinstance(window, CalendarWindow) else window.reach
            kept_time = query.keep_time if query.keep_runs is None else query.keep_runs * period
            if kept_time is not None and reach > kept_time:
                raise WindowError(
                    f"query {query.name!r} keeps results for {times.format_duration(kept_time)}; {window} would not be "
                    "complete: drop the query and add it with a longer keep="
                )
            reach += period
        reads.append(ResultRead(query=query.name, id=query.id, reach=reach))
    return tuple(reads)


def check_cycle(tables: Tables, entry: QueryEntry) -> None:
    """Refuse a query that would wait for itself: one of its name was read before it was dropped and added anew."""
    entries: dict[str, QueryEntry] = {each.name.lower(): each for _, each in tables.items("queries")}
    waiting: list[tuple[str, ...]] = [(entry.name, read.query) for read in entry.after]
    while waiting:
        path = waiting.pop()
        if path[-1].lower() == entry.name.lower():
            steps = ", ".join(f"{reader} reads {read}" for reader, read in pairwise(path))
            raise DefinitionError(f"query {entry.name!r} would wait for itself: {steps}; drop one of them first")
        read_entry = entries.get(path[-1].lower())
        waiting += [(*path, read.query) for read in read_entry.after] if read_entry is not None else []


def order_levels(entries: Iterable[QueryEntry], queries: Iterable[QueryEntry]) -> list[list[QueryEntry]]:
    """Queries in the order in which they run: none comes before one whose results it reads.

    Args:
        entries: To be ordered.
        queries: All there are.
    """
    by_name = {entry.name: entry for entry in queries}
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            depths[name] = 0
            entry = by_name.get(name)
            reads = () if entry is None else entry.after
            depths[name] = max((depth(read.query) + 1 for read in reads), default=0)
        return depths[name]

    levels: dict[int, list[QueryEntry]] = {}
    for entry in entries:
        levels.setdefault(depth(entry.name) if entry.after else 0, []).append(entry)
    return [levels[number] for number in sorted(levels)]


def find_undelivered(tables: Tables, entry: QueryEntry, slides: Mapping[str, int]) -> str | None:
    """A query whose results a run at `slides` needs and that has still to be run for them; None if all are there."""
    for read in entry.after:
        query: QueryEntry | None = tables.get("queries", read.query.encode())
        state: QueryState | None = None if query is None else tables.get("paced", catalog_key(query.id))
        if query is None or state is None:
            continue  # it was dropped: the statement will say so
        committed = read_committed_slides(tables, query)
        committed |= {name: slide for name, slide in slides.items() if name in committed}
        if is_due(query.paces, state.reached, committed) and (query.missed != "skip" or state.seen == committed):
            return query.name
    return None
