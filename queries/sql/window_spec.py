"""The kinds of windows that a clause can mean: which rows of a stream, relative to its clock, a reference reads.

All bounds are half-open like the slots they are made of, ``after < ts <= upto``, so windows that meet share no row.
"""

from dataclasses import dataclass

from windrow import times
from windrow.queries.sql import calendar_units


@dataclass(frozen=True)
class AllRows:
    """Every live row: a stream named without a clause."""

    def __str__(self) -> str:
        return "all live rows"


@dataclass(frozen=True)
class RangeWindow:
    """The last `length` microseconds, ``now - length < ts <= now``; `slide` is how often a periodic query wants it."""

    length: int
    slide: int | None = None

    @property
    def reach(self) -> int:
        """How long before the clock it begins."""
        return self.length

    def __str__(self) -> str:
        moved = "" if self.slide is None else f" SLIDE {times.format_duration(self.slide).upper()}"
        return f"[WINDOW {times.format_duration(self.length).upper()}{moved}]"


@dataclass(frozen=True)
class OffsetWindow:
    """A window that ended `offset` microseconds ago: live rows with ``now - offset - length < ts <= now - offset``."""

    length: int
    offset: int
    slide: int | None = None

    @property
    def reach(self) -> int:
        """How long before the clock it begins."""
        return self.length + self.offset

    def __str__(self) -> str:
        moved = "" if self.slide is None else f" SLIDE {times.format_duration(self.slide).upper()}"
        length, offset = (times.format_duration(each).upper() for each in (self.length, self.offset))
        return f"[WINDOW {length} OFFSET {offset}{moved}]"


@dataclass(frozen=True)
class CountWindow:
    """The `count` newest live rows by (time, arrival), of each combination of values of `keys` if there are any."""

    count: int
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[ROWS {self.count}{_format_keys(self.keys)}]"


@dataclass(frozen=True)
class SessionWindow:
    """The newest session: going back from the newest live row (of each key) until none came for `pause` or longer."""

    pause: int
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[SESSION {times.format_duration(self.pause).upper()}{_format_keys(self.keys)}]"


def _format_keys(keys: tuple[str, ...]) -> str:
    return f" PARTITION BY {', '.join(keys)}" if keys else ""


@dataclass(frozen=True)
class LandmarkWindow:
    """A landmark window: live rows with ``start < ts <= now``."""

    start: int

    def __str__(self) -> str:
        return f"[SINCE TIMESTAMP '{times.format_time(self.start)}']"


@dataclass(frozen=True)
class FixedWindow:
    """A fixed window: live rows with ``start < ts <= stop``."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"[FROM TIMESTAMP '{times.format_time(self.start)}' TO TIMESTAMP '{times.format_time(self.stop)}']"


@dataclass(frozen=True)
class CalendarWindow:
    """The calendar unit of a zone that holds the clock, or the n-th before it: live rows in it up to the clock."""

    unit: str
    zone: str
    previous: int = 0

    def find(self, instant: int) -> tuple[int, int]:
        """Start and end of the window at an instant."""
        return calendar_units.find_unit(self.unit, self.zone, instant, self.previous)

    def longest(self, around: int) -> int:
        """The longest that it and the units after it, up to the one that holds the clock, can be."""
        return calendar_units.longest_span(self.unit, self.zone, self.previous + 1, around)

    def __str__(self) -> str:
        before = f" PREVIOUS {self.previous}" if self.previous else ""
        return f"[{self.unit.upper()} '{self.zone}'{before}]"


OrderedWindow = CountWindow | SessionWindow
"""Windows in which a row's place depends on the rows after it, so that none may be left out before they are cut."""
WindowSpec = AllRows | RangeWindow | OffsetWindow | OrderedWindow | LandmarkWindow | FixedWindow | CalendarWindow
