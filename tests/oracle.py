"""The oracle: a stream in plain Python, as a list of rows, with which all answers of the warehouse are compared.

It is slow, and shares no code with the package: lists, comparisons and integer arithmetic, straight from the design.
Times are integers, microseconds UTC.

        slot j-1            slot j             slot j+1
    ───────────────┤────────────────────┤────────────────────┤
               τ(j-1)                  τj                 τ(j+1)      slot j = (τ(j-1), τj]

    a row lives in [ts, exp)            live at now  <=>  ts <= now < exp
    a window of length w at now         live rows with now - w < ts <= now
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
NEVER = math.inf
EARLIEST = -25_567 * 24 * HOUR
"""1900-01-01: a stamp before it is absurd."""

NULL_TIME = "the event time is null"
ABSURD = "the event time is absurd"
AHEAD = "the event time is too far ahead of the clock"
NULL_EXPIRY = "the expiry is null"
EXPIRY_FIRST = "the expiry is not after the event time"
TOO_LONG = "the expiry is further after the event time than max_lifetime"
DEAD = "the row had already expired on arrival"

PER_MICROSECOND = {"ns": (1, 1000), "us": (1, 1), "ms": (1000, 1), "s": (SECOND, 1)}


def micros(raw: int | None, unit: str) -> int | None:
    """A raw Arrow timestamp in microseconds, rounded up."""
    if raw is None:
        return None
    times, over = PER_MICROSECOND[unit]
    return -(-raw * times // over)


class SlideRefused(Exception):
    """The stream does not slide; `sources` are behind, or (none) the target is too far ahead of the wall clock."""

    def __init__(self, sources: tuple[str, ...] = ()) -> None:
        super().__init__(sources)
        self.sources = sources


class BatchConflict(Exception):
    """A batch id that was used with other rows."""


@dataclass(frozen=True)
class Row:
    """A row that was taken."""

    values: dict[str, Any]
    ts: int
    exp: float
    slide: int | None = None
    """The slot whose slide took it in; None while it is spooled."""


@dataclass(frozen=True)
class ExpectedAppend:
    """What an append must report."""

    rows: int
    accepted: int
    rejected: dict[str, int]
    late: int
    duplicate: bool = False


@dataclass(frozen=True)
class ExpectedSlide:
    """What a slide must report."""

    moved: bool
    slide: int | None
    inserted: int = 0
    expired: int = 0
    late: int = 0
    missing: frozenset[str] = frozenset()


@dataclass
class Source:
    """How far a source has come."""

    max_ts: int | None = None
    heartbeat: int | None = None
    failed: bool = False


@dataclass
class Oracle:
    """One stream. The parameters are those of `create_stream`, in microseconds."""

    delta: int
    time: Callable[[dict[str, Any]], int | None]
    expiry: Callable[[dict[str, Any]], int | None] | None = None
    key: tuple[str, ...] = ()
    lifetime: int | None = None
    max_lifetime: int | None = None
    sources: tuple[str, ...] = ()
    slack: int = 0
    max_skew: int | None = None
    max_ahead: int = HOUR
    origin: int = 0
    on_source_failure: str = "block"
    floor: int | None = None
    """Rows at or before this time are gone for good: they had expired when a lifetime was lengthened."""

    slide_number: int | None = None
    stored: list[Row] = field(default_factory=list)
    """Rows that slides took in and that had not expired then."""
    spool: list[Row] = field(default_factory=list)
    rejects: list[tuple[dict[str, Any], str, str]] = field(default_factory=list)
    """Rows that were not taken, why, and whose they were."""
    batches: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    source_states: dict[str, Source] = field(default_factory=dict)
    latest_target: int | None = None
    """The latest explicit `to` of a slide."""
    inserted: int = 0
    expired: int = 0
    late: int = 0

    # -- time ------------------------------------------------------------------------------------------------------

    def slot(self, time: float) -> float:
        """The slot that holds `time`."""
        return NEVER if time == NEVER else -(-(int(time) - self.origin) // self.delta)

    def end(self, slot: int) -> int:
        """τ of a slot."""
        return self.origin + slot * self.delta

    @property
    def now(self) -> int | None:
        """The stream's clock."""
        return None if self.slide_number is None else self.end(self.slide_number)

    # -- append ----------------------------------------------------------------------------------------------------

    def append(
        self, rows: Sequence[dict[str, Any]], clock: int, source: str | None = None, batch_id: str | None = None
    ) -> ExpectedAppend:
        """Take a batch."""
        source = source or (self.sources[0] if self.sources else "default")
        if batch_id is not None:
            earlier = self.batches.get((source, batch_id))
            if earlier is not None:
                if _bag(earlier) != _bag(rows):
                    raise BatchConflict
                return ExpectedAppend(len(rows), 0, {}, 0, duplicate=True)
            self.batches[source, batch_id] = list(rows)
        accepted, reasons = [], Counter()
        for values in rows:
            reason = self.reason(values, clock)
            if reason is None:
                accepted.append(self._row(values))
            else:
                reasons[reason] += 1
                self.rejects.append((values, reason, source))
        self.spool += accepted
        state = self.source_states.setdefault(source, Source())
        state.failed = False
        if accepted:
            greatest = max(row.ts for row in accepted)
            state.max_ts = greatest if state.max_ts is None else max(state.max_ts, greatest)
        return ExpectedAppend(len(rows), len(accepted), dict(reasons), sum(self.is_late(row) for row in accepted))

    def _row(self, values: dict[str, Any]) -> Row:
        ts = self.time(values)
        assert ts is not None
        if self.expiry is not None:
            exp: float = self.expiry(values)  # type: ignore[assignment]
        else:
            exp = NEVER if self.lifetime is None else ts + self.lifetime
            if self.floor is not None and ts <= self.floor:
                exp = ts + 1
        return Row(values, ts, exp)

    def reason(self, values: dict[str, Any], clock: int) -> str | None:
        """Why a row is not taken, None if it is."""
        ts = self.time(values)
        if ts is None:
            return NULL_TIME
        if ts < EARLIEST:
            return ABSURD
        if ts > clock + self.max_ahead:
            return AHEAD
        if self.expiry is not None:
            exp = self.expiry(values)
            if exp is None:
                return NULL_EXPIRY
            if exp <= ts:
                return EXPIRY_FIRST
            if self.max_lifetime is not None and exp - ts > self.max_lifetime:
                return TOO_LONG
        if self.now is not None and self._row(values).exp <= self.now:
            return DEAD
        return None

    # -- altering --------------------------------------------------------------------------------------------------

    def alter_lifetime(self, length: int | None) -> None:
        """Every row lives that long from now on (None: for ever); what has expired stays gone."""
        now = self.now
        if now is not None and self.lifetime is not None and (length is None or length > self.lifetime):
            gone = now - self.lifetime
            self.floor = gone if self.floor is None else max(self.floor, gone)
        self.lifetime = length
        stored = [Row(row.values, row.ts, self._row(row.values).exp, row.slide) for row in self.stored]
        self.stored = [row for row in stored if now is None or row.exp > now]
        self.expired += len(stored) - len(self.stored)
        self.spool = [self._row(row.values) for row in self.spool]

    def complete(self, window: int) -> bool:
        """Whether the stream keeps all rows of a window of that length."""
        longest = self.lifetime if self.expiry is None else self.max_lifetime
        if longest is not None and window > longest:
            return False
        return self.floor is None or self.now is None or self.now - window >= self.floor

    def add_column(self, name: str) -> None:
        """Rows that are there have null in it."""
        values = [row.values for row in (*self.stored, *self.spool)] + [values for values, _, _ in self.rejects]
        for row_values in [*values, *(row for rows in self.batches.values() for row in rows)]:
            row_values.setdefault(name, None)

    def is_late(self, row: Row) -> bool:
        """Whether its slot has already been slid past."""
        return self.slide_number is not None and self.slot(row.ts) <= self.slide_number

    def replay(self, clock: int) -> ExpectedAppend:
        """Append the rejected rows again, each for the source it came from."""
        old, self.rejects = self.rejects, []
        parts = [
            self.append([values for values, _, of in old if of == source], clock, source)
            for source in dict.fromkeys(source for _, _, source in old)
        ]
        reasons = sum((Counter(part.rejected) for part in parts), Counter())
        return ExpectedAppend(len(old), sum(p.accepted for p in parts), dict(reasons), sum(p.late for p in parts))

    # -- sources ---------------------------------------------------------------------------------------------------

    def heartbeat(self, up_to: int, clock: int, source: str | None = None) -> None:
        """Nothing at or before `up_to` will follow."""
        if up_to > clock + self.max_ahead:
            raise SlideRefused
        state = self.source_states.setdefault(source or (self.sources[0] if self.sources else "default"), Source())
        state.heartbeat = up_to if state.heartbeat is None else max(state.heartbeat, up_to)
        state.failed = False

    def fail(self, source: str) -> None:
        """The source is declared failed."""
        self.source_states.setdefault(source, Source()).failed = True

    def names(self) -> tuple[str, ...]:
        """The sources that count."""
        return self.sources or tuple(self.source_states)

    def excluded(self, name: str) -> bool:
        """Whether the stream goes on without it."""
        return self.on_source_failure == "exclude" and name in self.source_states and self.source_states[name].failed

    def own_progress(self, name: str) -> int | None:
        """The greater of its last heartbeat and its greatest accepted ts minus slack."""
        state = self.source_states.get(name, Source())
        seen = [state.heartbeat, None if state.max_ts is None else state.max_ts - self.slack]
        return max((t for t in seen if t is not None), default=None)

    def progress(self, name: str) -> int | None:
        """Its own progress, or what max_skew says for it while others go on."""
        own_progress = self.own_progress(name)
        if self.max_skew is None:
            return own_progress
        others = [t for other in self.names() if other != name and (t := self.own_progress(other)) is not None]
        times = [t for t in (own_progress, max(others) - self.max_skew if others else None) if t is not None]
        return max(times, default=None)

    def behind(self, time: int) -> frozenset[str]:
        """Sources that have not reached `time`."""
        counted = [name for name in self.names() if not self.excluded(name)]
        return frozenset(name for name in counted if (p := self.progress(name)) is None or p < time)

    def allowed(self) -> int | None:
        """How far the stream may slide by itself."""
        reached = [self.progress(name) for name in self.names() if not self.excluded(name)]
        upto = None if not reached or None in reached else min(t for t in reached if t is not None)
        if not self.sources and self.latest_target is not None:
            upto = self.latest_target if upto is None else max(upto, self.latest_target)
        return upto

    # -- slide -----------------------------------------------------------------------------------------------------

    def slide(self, clock: int, to: int | None = None, force: bool = False) -> ExpectedSlide:
        """Move the clock."""
        if to is None:
            reached = self.allowed()
        else:
            if to > clock + self.max_ahead:
                raise SlideRefused
            reached = self.end((to - self.origin) // self.delta)
            if self.sources and not force and self.behind(reached):
                raise SlideRefused(tuple(sorted(self.behind(reached))))
        slot = None if reached is None else (reached - self.origin) // self.delta
        if slot is None or (self.slide_number is not None and slot <= self.slide_number):
            return ExpectedSlide(False, self.slide_number)
        now = self.end(slot)
        missing = frozenset(name for name in self.names() if self.excluded(name))
        if self.sources:
            missing |= self.behind(now)
        late = sum(self.is_late(row) for row in self.spool)
        came = [Row(row.values, row.ts, row.exp, slot) for row in self.spool]
        everything = self.stored + came
        self.stored = [row for row in everything if row.exp > now]
        gone = len(everything) - len(self.stored)
        self.spool, self.slide_number = [], slot
        self.inserted, self.expired, self.late = self.inserted + len(came), self.expired + gone, self.late + late
        if to is not None:
            self.latest_target = to if self.latest_target is None else max(self.latest_target, to)
        return ExpectedSlide(True, slot, len(came), gone, late, missing)

    # -- answers ---------------------------------------------------------------------------------------------------

    def live(self, window: int | None = None) -> list[Row]:
        """The rows of a window at now; by default all live rows."""
        now = self.now
        if now is None:
            return []
        return [row for row in self.stored if row.ts <= now < row.exp and (window is None or row.ts > now - window)]

    def probe(
        self,
        *,
        keys: Iterable[tuple[Any, ...]] = (),
        between: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None,
        window: int | None = None,
    ) -> list[Row]:
        """Rows of a window whose key begins with one of `keys`, or lies between two prefixes (both ends included)."""
        prefixes = [comparable_key(prefix) for prefix in keys]
        rows = []
        for row in self.live(window):
            key = comparable_key([row.values[name] for name in self.key])
            if between is not None:
                low, high = comparable_key(between[0]), comparable_key(between[1])
                hit = key[: len(low)] >= low and key[: len(high)] <= high
            else:
                hit = any(key[: len(prefix)] == prefix for prefix in prefixes)
            if hit:
                rows.append(row)
        return rows


def comparable_key(values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Keys as something that Python compares as the design does: null first, NaN last, one zero."""
    return [_rank(value) for value in values]


def _rank(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


def _bag(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)
