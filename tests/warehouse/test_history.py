"""History: every answer that was given can be given again, and expired rows are there exactly as long as they should be.

The oracle is a plain list of rows, each with its time, its expiry and the slide that took it in; what was shown at each
commit is put down at once, and asked again at the end.
"""

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from windrow import Index

MINUTE = dt.timedelta(minutes=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64()), ("t", pa.string())])
LEASES = SCHEMA.append(pa.field("exp", pa.timestamp("us", "UTC")))
INDEXES = {
    "rebuild": Index("round-robin", 2, 3, maintenance="rebuild"),
    "norebuild": Index("wave-insertion", 4, 1, maintenance="norebuild"),
    "adaptive": Index("round-robin", 3, 3, maintenance="adaptive"),
}


@dataclass
class Taken:
    """A row as the oracle knows it."""

    ts: dt.datetime
    exp: dt.datetime
    v: int
    slide: int


@dataclass
class History:
    """A stream with history beside its oracle."""

    folder: Path
    chance: random.Random
    variable: bool
    index: Any
    history: int = 12
    lifetime: int = 5
    clock: int = 0
    number: int = 0
    rows: list[Taken] = field(default_factory=list)
    spool: list[Taken] = field(default_factory=list)
    shown: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Commit, clock and the values that were live then."""

    def __post_init__(self) -> None:
        self.wh = windrow.open(self.folder, clock=lambda: int((START + 500 * MINUTE).timestamp() * 1e6))
        life = {"expires": "exp", "max_lifetime": "8 minutes"} if self.variable else {"lifetime": "5 minutes"}
        self.wh.create_stream(
            "s", LEASES if self.variable else SCHEMA, time="ts", key="k", slide="1 minute", index=self.index,
            history=f"{self.history} minutes", max_ahead="1 day", **life,
        )  # fmt: skip

    @property
    def now(self) -> dt.datetime:
        return START + self.clock * MINUTE

    def append(self) -> None:
        values, taken = [], []
        for _ in range(self.chance.randrange(1, 40)):
            ts = self.now + dt.timedelta(seconds=self.chance.randrange(-150, 80))
            life = self.chance.randrange(10, 480) if self.variable else self.lifetime * 60
            exp = ts + dt.timedelta(seconds=life)
            if self.shown and exp <= self.now:
                continue
            self.number += 1
            row = {"ts": ts, "k": self.chance.randrange(12), "v": self.number, "t": f"text {self.number % 7}"}
            values.append(row | ({"exp": exp} if self.variable else {}))
            taken.append(Taken(ts, exp, self.number, 0))
        if values:
            self.wh.append("s", values)
            self.spool += taken

    def slide(self) -> None:
        self.clock += self.chance.choice((1, 1, 1, 2))
        self.wh.slide("s", to=self.now)
        self.rows += [Taken(row.ts, row.exp, row.v, self.clock) for row in self.spool]
        self.spool = []
        self.show()

    def alter(self) -> None:
        """Another lifetime: a longer one brings no row back, a shorter one ends rows now."""
        self.lifetime = self.chance.choice((3, 5, 7))
        self.wh.alter_stream("s", lifetime=f"{self.lifetime} minutes")
        for row in (*self.rows, *self.spool):
            if row.exp > self.now or row in self.spool:
                row.exp = max(row.ts + self.lifetime * MINUTE, row.ts)
        self.show()

    def show(self) -> None:
        """Put down what is shown now, and compare it with the oracle."""
        live = sorted(row.v for row in self.rows if row.ts <= self.now < row.exp)
        answer = self.wh.sql("SELECT v FROM s ORDER BY v")
        assert [v for (v,) in answer.fetchall()] == live
        self.shown.append((answer.version, self.clock, live))

    def change_otherwise(self) -> None:
        what = self.chance.randrange(5)
        if what == 0:
            self.wh.relayout("s", self.chance.choice(list(INDEXES.values())), move=self.chance.choice((False, "now")))
        elif what == 1:
            self.wh.relayout("s", key=self.chance.choice(("k", ["k", "v"], "v")), move="now")
        elif what == 2:
            self.wh.gc()
        elif what == 3:
            self.wh.close()
            self.wh = windrow.open(self.folder, clock=lambda: int((START + 500 * MINUTE).timestamp() * 1e6))
        elif not self.variable:
            self.alter()

    def ask_again(self) -> None:
        """Every answer of the last while, as it was; what is older is refused."""
        cutoff = self.clock - self.history
        for commit, clock, live in self.shown:
            if clock < cutoff:
                with pytest.raises(windrow.WindowError, match="before the history"):
                    self.wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}]")
                continue
            answer = self.wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}] ORDER BY v")
            assert [v for (v,) in answer.fetchall()] == live, (commit, clock)
            assert answer.version == commit
        commit, clock, live = self.chance.choice([each for each in self.shown if each[1] >= cutoff])
        with self.wh.snapshot(as_of=commit) as then:
            assert sorted(then.scan("s").read_all()["v"].to_pylist()) == live
            actual = [v for key in range(12) for v in then.probe("s", key)["v"].to_pylist()] if self.by_key else live
            assert sorted(actual) == live
            assert [v for (v,) in then.sql("SELECT v FROM s ORDER BY v").fetchall()] == live
            newest = then.sql("SELECT v FROM s [ROWS 7]").fetchall()
            assert len(newest) == min(7, len(live))

    @property
    def by_key(self) -> bool:
        return self.wh.stream("s").definition.key[0] == "k"

    def ask_for_slides(self) -> None:
        """By slide and by time the last state of that slide is meant."""
        last = {clock: live for _, clock, live in self.shown}
        first = int(START.timestamp()) // 60
        for clock in sorted(last)[-6:]:
            if clock < self.clock - self.history:
                continue
            instant = (START + clock * MINUTE + dt.timedelta(seconds=self.chance.randrange(60))).isoformat()
            by_slide = self.wh.sql(f"SELECT v FROM s [AS OF SLIDE {first + clock}] ORDER BY v")
            assert [v for (v,) in by_slide.fetchall()] == last[clock]
            if clock < self.clock:
                later = max((other for other in last if other <= clock), default=clock)
                by_time = self.wh.sql(f"SELECT v FROM s [WINDOW 2 MINUTES AS OF TIMESTAMP '{instant}'] ORDER BY v")
                since = START + (later - 2) * MINUTE
                wanted = sorted(row.v for row in self.rows if row.v in set(last[later]) and row.ts > since)
                assert [v for (v,) in by_time.fetchall()] == wanted

    def ask_for_expired(self) -> None:
        since = max(self.now - self.history * MINUTE, START - 100 * MINUTE)
        kept = sorted(row.v for row in self.rows if row.ts <= self.now and row.exp > since)
        assert [v for (v,) in self.wh.sql("SELECT v FROM s [INCLUDING EXPIRED] ORDER BY v").fetchall()] == kept
        recent = sorted(row.v for row in self.rows if self.now - 9 * MINUTE < row.ts <= self.now and row.exp > since)
        if not self.altered:
            clause = "[WINDOW 9 MINUTES INCLUDING EXPIRED]"
            assert [v for (v,) in self.wh.sql(f"SELECT v FROM s {clause} ORDER BY v").fetchall()] == recent

    @property
    def altered(self) -> bool:
        return self.wh.stream("s").definition.floor is not None or self.lifetime != 5


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[list[History]]:
    made: list[History] = []
    yield made
    for each in made:
        each.wh.close()


@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("maintenance", INDEXES)
@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
def test_every_answer_can_be_given_again(
    tmp_path: Path, histories: list[History], seed: int, maintenance: str, variable: bool
) -> None:
    chance = random.Random(f"{seed} {maintenance} {variable}")
    stream = History(tmp_path / "w", chance, variable, INDEXES[maintenance])
    histories.append(stream)
    stream.append()
    stream.slide()
    for step in range(28):
        for _ in range(chance.randrange(3)):
            stream.append()
        stream.slide()
        if seed % 2 and chance.random() < 0.3:
            stream.change_otherwise()
        if step % 9 == 8:
            stream.ask_again()
    stream.ask_again()
    stream.ask_for_slides()
    if variable or seed % 2 == 0:
        stream.ask_for_expired()
    report = stream.wh.check()
    assert report.ok, report.problems
    stream.wh.gc()
    assert stream.wh.check().ok
    stored = Counter(stream.wh.sql("SELECT v FROM s [INCLUDING EXPIRED]").arrow()["v"].to_pylist())
    assert max(stored.values(), default=1) == 1, "a row is there twice"
