"""The truth about gaps: plain sets of seconds that each source lacks, kept by the definitions of docs/gaps.md.

Cell c is the second (c - 1, c]. A row of cell c has ts = c - 1 seconds and a microsecond; with a slack of that microsecond
its source has then reached c - 1. `LOW` stands for the beginning of time.
"""

from dataclasses import dataclass, field

LOW = -10_000


def cells(after: int | None, upto: int) -> set[int]:
    """The seconds of (after, upto]."""
    return set(range((LOW if after is None else after) + 1, upto + 1))


@dataclass
class Source:
    """One source, and what it lacks, by kind."""

    reached: int | None = None
    failed: bool = False
    heard: int = 0
    """When something came from it, by the wall clock."""
    spooled: list[int] = field(default_factory=list)
    claims: list[tuple[int, int]] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    """What it lacked because it failed, until it came or somebody said that it is no loss."""
    lost: dict[str, set[int]] = field(
        default_factory=lambda: {name: set() for name in ("failed", "behind", "kept", "before first data", "declared")}
    )

    def come_to(self, cell: int) -> None:
        """Progress."""
        self.reached = cell if self.reached is None else max(self.reached, cell)

    def settle(self) -> None:
        """What it said counts now: all that it sent is in the window."""
        if self.reached is not None:
            self.lost["behind"] -= cells(None, self.reached)
        self.take_claims()

    def take_claims(self) -> None:
        """All that it covers has come."""
        for start, end in self.claims:
            self.close("failed", cells(start, end))
            for lost in self.lost.values():
                lost.difference_update(cells(start, end))
        self.claims = []

    def close(self, kind: str, gone: set[int]) -> None:
        """Somebody says that this is missing no more."""
        if kind == "failed":
            self.closed |= self.lost[kind] & gone
        self.lost[kind] -= gone

    def since(self, time: int | None) -> int | None:
        """The later of its progress and a time."""
        return max((each for each in (self.reached, time) if each is not None), default=None)

    def add_failure(self, after: int | None, now: int) -> None:
        """The clock has gone from `after` to `now` without it."""
        self.lost["failed"] |= cells(after, now) - self.closed

    @property
    def missing(self) -> set[int]:
        """All that it lacks."""
        return set().union(*self.lost.values())


@dataclass
class GapOracle:
    """A stream with declared sources."""

    names: tuple[str, ...]
    life: int
    max_skew: int | None = None
    liveness: int | None = None
    now: int | None = None
    damaged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the gap's number, the first and the last cell of rows that were given up; of the last, only its row is missing."""
    sources: dict[str, Source] = field(init=False)

    def __post_init__(self) -> None:
        self.sources = {name: Source() for name in self.names}

    def hear(self, name: str, wall: int) -> Source:
        """Something came from a source: it is alive."""
        source = self.sources[name]
        source.failed, source.heard = False, wall
        return source

    def notice_silence(self, wall: int) -> None:
        """Somebody wants to slide: sources that were silent for too long have failed."""
        for name, source in self.sources.items():
            if self.liveness is not None and not source.failed and source.heard + self.liveness <= wall:
                self.fail(name)

    def append(self, name: str, rows: list[int], covers: tuple[int, int] | None, wall: int = 0) -> None:
        """Rows by their cells."""
        source = self.hear(name, wall)
        dead = {row for row in rows if self.now is not None and row <= self.now - self.life}
        if dead & source.lost["behind"]:
            source.lost["kept"] |= source.lost["behind"]
            source.lost["behind"] = set()
        taken = [row for row in rows if row not in dead]
        source.claims += [covers] if covers else []
        for row in taken:
            source.come_to(row - 1)
        source.spooled += taken
        if not source.spooled:
            source.settle()

    def heartbeat(self, name: str, upto: int, covers: int | None, wall: int = 0) -> None:
        """Nothing up to `upto` will follow."""
        source = self.hear(name, wall)
        source.come_to(upto)
        source.claims += [(covers, upto)] if covers is not None else []
        if not source.spooled:
            source.settle()

    def fail(self, name: str) -> None:
        """Somebody says that it has failed."""
        source = self.sources[name]
        source.failed = True
        if self.now is not None and (source.reached is None or source.reached < self.now):
            source.add_failure(source.reached, self.now)

    def slide(self, now: int) -> None:
        """The clock goes to `now`; what is spooled is taken in."""
        for source in self.sources.values():
            lost = source.lost
            unheard = any(LOW + 1 in lost[kind] for kind in ("failed", "behind", "kept"))
            if source.spooled and (self.now is None or unheard):
                before = cells(None, min(source.spooled) - 1)
                for kind in ("failed", "behind", "kept"):
                    if LOW + 1 in lost[kind]:
                        lost[kind] -= before
                lost["before first data"] |= before
            source.spooled = []
            if source.reached is None or source.reached < now:
                lost["behind"] -= cells(None, LOW if source.reached is None else source.reached)
                if source.failed:
                    source.add_failure(source.since(self.now), now)
                else:
                    lost["behind"] |= cells(source.since(self.now), now)
            else:
                lost["behind"] = set()
            source.take_claims()
            for kind in ("failed", "kept"):  # what nobody can ask about is forgotten, so that it is "unheard" no more
                if LOW + 1 in lost[kind] and (end := _end_of_run(lost[kind])) <= now - self.life:
                    lost[kind] -= cells(None, end)
        self.now = now

    def measure(self, after: int, upto: int) -> tuple[bool, float]:
        """Whether the window (after, upto] is complete, and its coverage."""
        assert self.now is not None
        window, gone = cells(after, upto), cells(None, self.now - self.life)
        whole = set().union(*(range(first, last) for first, last in self.damaged.values()))
        missing = [window & (source.missing | gone | whole) for source in self.sources.values()]
        torn = [window & {last for _, last in self.damaged.values()} - each for each in missing]
        share = sum(len(each) for each in missing) + sum(len(each) for each in torn) / 1e6
        return not any(missing) and not any(torn), 1 - share / (len(window) * len(missing))


def _end_of_run(slots: set[int]) -> int:
    end = LOW + 1
    while end + 1 in slots:
        end += 1
    return end
