"""The plain-Python truth of views: every combination of rows, and when it begins and ends. Nothing here is quick.

part 1      ├──────────────────┤
part 2             ├─────────────────────┤
result             ├───────────┤                begins with its last part, ends with its first
             ▲           ▲           ▲
          update      update      update        no-restore: what lives at an update
                                                restore: also what lived and died since the update before, once
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

NEVER = math.inf


@dataclass(frozen=True)
class Row:
    """A row of a stream or view, and the slide (counted from 1) that took it in."""

    values: dict[str, Any]
    ts: int
    exp: float
    taken: int = 0


@dataclass
class Stream:
    """A stream: its clock goes to slot ends, rows wait in the spool until it moves."""

    delta: int
    origin: int = 0
    lifetime: int | None = None
    clock: int | None = None
    slides: int = 0
    rows: list[Row] = field(default_factory=list)
    spooled: list[Row] = field(default_factory=list)

    def append(self, values: dict[str, Any], ts: int, exp: int | None = None) -> bool:
        """Spool a row, unless it is dead on arrival."""
        end = exp if exp is not None else NEVER if self.lifetime is None else ts + self.lifetime
        if self.clock is not None and end <= self.clock:
            return False
        self.spooled.append(Row(values, ts, end))
        return True

    def slide(self, to: int) -> bool:
        """Move the clock to the last slot end at or before `to`."""
        clock = self.origin + (to - self.origin) // self.delta * self.delta
        if self.clock is not None and clock <= self.clock:
            return False
        self.clock = clock
        self.slides += 1
        self.rows += [Row(row.values, row.ts, row.exp, self.slides) for row in self.spooled]
        self.spooled = []
        return True


@dataclass(frozen=True)
class Part:
    """An input of a join, with its window."""

    of: "Stream | View"
    window: int | None = None

    def ends(self, row: Row) -> float:
        """When a row of it ceases to count."""
        return min(row.exp, NEVER if self.window is None else row.ts + self.window)


@dataclass(frozen=True)
class Join:
    """Rows of several inputs that fit together, and what they give."""

    parts: tuple[Part, ...]
    fits: Callable[..., bool]
    gives: Callable[..., dict[str, Any]]


@dataclass
class View:
    """A union of joins."""

    joins: Sequence[Join]
    delta: int
    origin: int = 0
    restore: bool = False
    distinct: bool = False
    clock: int | None = None
    slides: int = 0
    rows: list[Row] = field(default_factory=list)
    restored: list[tuple[int, dict[str, Any], float]] = field(default_factory=list)
    """(the clock at which it is shown, its values, when it ended)."""
    seen: dict[int, int] = field(default_factory=dict)

    @property
    def inputs(self) -> "list[Stream | View]":
        return list({id(part.of): part.of for join in self.joins for part in join.parts}.values())

    def follow(self) -> bool:
        """Move to the least of the inputs' clocks, if that is further than before."""
        clocks = [each.clock for each in self.inputs]
        if any(clock is None for clock in clocks):
            return False
        now = self.origin + (min(clocks) - self.origin) // self.delta * self.delta  # type: ignore[type-var,operator]
        if self.clock is not None and now <= self.clock:
            return False
        before, self.slides = self.clock, self.slides + 1
        for join in self.joins:
            for rows in itertools.product(*(part.of.rows for part in join.parts)):
                self._meet(join, rows, before, now)
        self.clock = now
        self.seen = {id(each): each.slides for each in self.inputs}
        return True

    def _meet(self, join: Join, rows: tuple[Row, ...], before: int | None, now: int) -> None:
        begins = max(row.ts for row in rows)
        ends = min(part.ends(row) for part, row in zip(join.parts, rows, strict=True))
        if begins > now or begins >= ends or not join.fits(*rows) or self._known(join, rows, before):
            return
        if ends > now:
            self.rows.append(Row(join.gives(*rows), begins, ends, self.slides))
        elif self.restore and before is not None and ends > before:
            self.restored.append((now, join.gives(*rows), ends))

    def _known(self, join: Join, rows: tuple[Row, ...], before: int | None) -> bool:
        """Whether the last update already had all parts of a combination."""
        if before is None:
            return False
        return all(
            row.taken <= self.seen[id(part.of)] and row.ts <= before for part, row in zip(join.parts, rows, strict=True)
        )

    def live(self) -> Counter[Any]:
        """What the view holds at its clock, and how often: values, and unless duplicates go, begin and end."""
        if self.clock is None:
            return Counter()
        now = self.clock
        rows = [row for row in self.rows if row.ts <= now < row.exp]
        if self.distinct:
            return Counter({tuple(row.values.items()) for row in rows})
        actual = Counter((tuple(row.values.items()), row.ts, row.exp, None) for row in rows)
        for position, values, ended in self.restored:
            if position == now:
                actual[tuple(values.items()), None, None, ended] += 1
        return actual

    def from_scratch(self) -> Counter[Any]:
        """The same for plain views of streams, without any history: all combinations of rows taken in that live now."""
        actual: Counter[Any] = Counter()
        for join in self.joins:
            rows_seen = [[r for r in part.of.rows if r.taken <= self.seen.get(id(part.of), -1)] for part in join.parts]
            for rows in itertools.product(*rows_seen):
                begins = max(row.ts for row in rows)
                ends = min(part.ends(row) for part, row in zip(join.parts, rows, strict=True))
                if self.clock is not None and begins <= self.clock < ends and join.fits(*rows):
                    actual[tuple(join.gives(*rows).items()), begins, ends, None] += 1
        return actual


@dataclass
class Negation:
    """The rows of one input that fit no row of another one that lives."""

    left: Part
    right: Part
    fits: Callable[..., bool]
    gives: Callable[..., dict[str, Any]]
    delta: int
    clock: int | None = None
    rows: list[Row] = field(default_factory=list)

    def follow(self) -> bool:
        """Move to the lesser of the inputs' clocks, if that is further than before; all is computed from scratch."""
        clocks = [part.of.clock for part in (self.left, self.right)]
        if any(clock is None for clock in clocks):
            return False
        now = min(clocks) // self.delta * self.delta  # type: ignore[type-var,operator]
        if self.clock is not None and now <= self.clock:
            return False
        kept, partners = (
            [row for row in part.of.rows if row.ts <= now < part.ends(row)] for part in (self.left, self.right)
        )
        self.clock = now
        self.rows = [
            Row(self.gives(row), row.ts, self.left.ends(row))
            for row in kept
            if not any(self.fits(row, partner) for partner in partners)
        ]
        return True

    def live(self) -> Counter[Any]:
        """What the view holds at its clock."""
        return Counter((tuple(row.values.items()), row.ts, row.exp, None) for row in self.rows)


@dataclass
class Computed:
    """A view of which each state is computed from scratch, from the rows of its inputs that live then."""

    parts: tuple[Part, ...]
    compute: Callable[..., list[dict[str, Any]]]
    """Given the living rows of each part, in order of time and arrival."""
    delta: int
    clock: int | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    def follow(self) -> bool:
        """Move to the least of the inputs' clocks, if that is further than before."""
        clocks = [part.of.clock for part in self.parts]
        if any(clock is None for clock in clocks):
            return False
        now = min(clocks) // self.delta * self.delta  # type: ignore[type-var,operator]
        if self.clock is not None and now <= self.clock:
            return False
        living = [
            sorted((row for row in part.of.rows if row.ts <= now < part.ends(row)), key=lambda row: row.ts)
            for part in self.parts
        ]
        self.clock, self.results = now, self.compute(*living)
        return True

    def live(self) -> Counter[Any]:
        """What the view holds at its clock: values only."""
        return Counter(tuple(result.items()) for result in self.results)
