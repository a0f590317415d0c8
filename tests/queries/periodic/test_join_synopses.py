"""Standing aggregates over joins of windows: answered from synopses of a view that they share, as plain SQL answers them.

join of (8, 8)      ├───────────────────────────────┤     a result ends with the first of its two rows
join of (7, 7)      ├───────────────────────────┤ · ·     the same results, each a slot sooner
join of (7, 9)      ├─────────────?─────────────┤         another view: the windows differ by two slots
"""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import plain_duckdb
import windrow
from sample_streams import BASE, when

SECOND = 1_000_000
DELTA = 10 * SECOND
LIFE = 12 * DELTA
STAMP = pa.timestamp("us", "UTC")
COLUMNS = {"ts": STAMP, "k": pa.int64(), "h": pa.int32(), "v": pa.int32(), "f": pa.float64(), "tag": pa.string()}
SCHEMAS = {
    "s": pa.schema(COLUMNS),
    "t": pa.schema(COLUMNS),
    "u": pa.schema({**COLUMNS, "exp": STAMP}),
}
USING = "{s} x JOIN {t} y USING (k)"
QUERIES = (
    # One join, three lengths; every kind of aggregate that is kept.
    (f"SELECT count(*) AS c, sum(y.v) AS total FROM {USING}", 4, 4),
    (f"SELECT k, count(*) AS c, sum(x.v) AS s, min(y.v) AS least, max(x.v) FROM {USING} GROUP BY k ORDER BY c DESC, k LIMIT 3", 8, 8),
    (f"SELECT x.tag, avg(y.v) AS a, stddev(x.f) FROM {USING} WHERE y.v > 20 GROUP BY 1 ORDER BY 1", 7, 7),
    (f"SELECT y.h AS host, count(DISTINCT x.v) AS d, median(y.v) AS m FROM {USING} GROUP BY host ORDER BY host", 8, 8),
    (f"SELECT x.k + 1 AS k1, sum(x.v * y.v) AS w FROM {USING} GROUP BY x.k + 1 HAVING count(*) > 2 ORDER BY 1", 5, 5),
    # The same join written otherwise.
    ("SELECT b.k, count(*) FROM {t} AS b, {s} AS a WHERE a.k = b.k AND a.v < 70 GROUP BY b.k ORDER BY b.k", 8, 8),
    # Windows that differ, equalities of two columns, and rows with lifetimes of their own.
    (f"SELECT count(*) AS c FROM {USING}", 5, 8),
    (f"SELECT k, count(*) AS c FROM {USING} GROUP BY k ORDER BY k", 3, 6),
    ("SELECT count(*) AS c, sum(x.v) FROM {s} x JOIN {t} y ON x.k = y.k AND x.h = y.h", 6, 6),
    ("SELECT x.tag, count(*) AS c, max(z.v) FROM {s} x JOIN {u} z USING (k) GROUP BY x.tag ORDER BY x.tag", 8, 6),
    ("SELECT count(*) AS c FROM {s} x JOIN {u} z USING (k) WHERE z.v > x.v", 8, 6),
    ("SELECT count(*) AS c, sum(b.v) FROM {s} a JOIN {s2} b ON a.k = b.k WHERE a.tag = 'a'", 6, 6),
    ("SELECT count(*) AS c FROM {s} x JOIN {t} y USING (k) JOIN {u} z ON z.k = y.k", 2, 2),
)  # fmt: skip


@dataclass
class World:
    """Streams with all rows that they ever took, and the queries over them."""

    path: Path
    chance: random.Random
    wh: windrow.Warehouse
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in SCHEMAS})
    clocks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCHEMAS, BASE))
    queries: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    how: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, seed: int) -> "World":
        wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA)
        for name, schema in SCHEMAS.items():
            own = {"expires": "exp", "max_lifetime": f"{LIFE // SECOND} seconds"} if name == "u" else {}
            lives = own or {"lifetime": f"{LIFE // SECOND} seconds"}
            wh.create_stream(name, schema, time="ts", key="k", slide=f"{DELTA // SECOND} seconds", **lives)
        return cls(path, random.Random(seed), wh)

    def reopen(self) -> None:
        self.wh.close()
        self.wh = windrow.open(self.path, clock=lambda: BASE + 1000 * DELTA)

    def append(self, name: str, count: int) -> None:
        """Rows around the clock of a stream: late ones, and ones ahead of it."""
        chance, made = self.chance, []
        for _ in range(count):
            ts = self.clocks[name] + chance.choice((1, 1, 1, -3, -7, 2)) * chance.randint(1, DELTA)
            row = {
                "ts": ts, "k": chance.choice((None, *range(6))), "h": chance.randint(0, 2), "v": chance.randint(0, 90),
                "f": chance.random(), "tag": chance.choice(("a", "b", None)),
            }  # fmt: skip
            if name == "u":
                row["exp"] = ts + chance.randint(1, LIFE)
            end = row.get("exp", ts + LIFE)
            if end > self.clocks[name]:
                made.append(row)
        columns = [
            pa.array([row[f.name] for row in made], pa.int64()).cast(f.type) if f.type == STAMP
            else pa.array([row[f.name] for row in made], f.type) for f in SCHEMAS[name]
        ]  # fmt: skip
        self.wh.append(name, pa.table(columns, schema=SCHEMAS[name]))
        self.rows[name] += made

    def slide(self, name: str, slots: int = 1) -> None:
        self.clocks[name] += slots * DELTA
        self.wh.slide(name, to=when(self.clocks[name]))

    def add(self, number: int) -> None:
        sql, first, second = QUERIES[number]
        name = f"q{len(self.how)}"
        windows = iter((first, second, second))

        def clause(match: re.Match[str]) -> str:
            return f"{match[1][0]} [WINDOW {next(windows) * DELTA // SECOND} SECONDS SLIDE {DELTA // SECOND} SECONDS]"

        self.wh.add_query(name, re.sub(r"\{(\w+)\}", clause, sql))
        self.queries[name], self.how[name] = (sql, first, second), []

    def truth(self, name: str) -> list[tuple[Any, ...]]:
        """What plain DuckDB says over the rows that live."""
        sql, first, second = self.queries[name]
        windows = iter((first, second, second))
        with plain_duckdb.connect() as plain:
            relations: dict[str, str] = {}
            for written in re.findall(r"\{(\w+)\}", sql):
                stream, length = written[0], next(windows) * DELTA
                now = self.clocks[stream]
                live = [
                    row for row in self.rows[stream]
                    if now - length < row["ts"] <= now < row.get("exp", row["ts"] + LIFE)
                ]  # fmt: skip
                relations[written] = f"live_{len(relations)}"
                plain.register(relations[written], pa.Table.from_pylist(live, SCHEMAS[stream]))
            return plain.execute(re.sub(r"\{(\w+)\}", lambda m: relations[m[1]], sql)).fetchall()

    def check(self) -> None:
        """Run what is due and compare all answers."""
        for run in self.wh.run_due():
            assert run.outcome == "delivered", run
            answer = self.wh.results(run.query, slide=run.slide).fetchall()
            own = [row[6:] for row in answer]
            self.how[run.query].append(run.how)
            truth = self.truth(run.query)
            assert _are_equal(own, truth), (self.queries[run.query], run.how, own, truth)


def _are_equal(ours: list[tuple[Any, ...]], plain: list[tuple[Any, ...]]) -> bool:
    return len(ours) == len(plain) and all(
        a == b or (isinstance(a, float) and a == pytest.approx(b, rel=1e-9))
        for one, other in zip(ours, plain, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def hidden(wh: windrow.Warehouse) -> list[str]:
    with wh.snapshot() as snapshot:
        return snapshot.hidden()


@pytest.mark.parametrize("seed", [20260801, 20260802])
def test_answers_are_those_of_plain_sql(seed: int, tmp_path: Path) -> None:
    """Late rows, rows ahead, lagging streams, lives of their own; queries come and go, the warehouse is reopened."""
    print("seed", seed)
    world = World.open(tmp_path / "wh", seed)
    for number in range(len(QUERIES)):
        world.add(number)
    for step in range(26):
        for name in world.chance.sample(sorted(SCHEMAS), 3):
            world.append(name, world.chance.choice((0, 4, 12, 25)))
        slots = world.chance.choice((1, 1, 1, 2))
        last = max(world.clocks.values()) + slots * DELTA
        for name in world.chance.sample(sorted(SCHEMAS), 3):
            if step % 5 != 3 or world.chance.random() < 0.5:  # else it lags
                world.slide(name, (last - world.clocks[name]) // DELTA)
        world.check()
        if step == 9:
            world.reopen()
        if step in (12, 17):
            gone = world.chance.choice(sorted(world.queries))
            world.wh.drop_query(gone)
            del world.queries[gone]
            world.add(world.chance.randrange(len(QUERIES)))
    shared = [how for name in world.how for how in world.how[name] if how != "snapshot"]
    print(len(shared), "of", sum(map(len, world.how.values())))
    assert len(shared) > sum(map(len, world.how.values())) // 2
    assert not world.wh.check().problems
    for name in sorted(world.queries):
        world.wh.drop_query(name)
    assert hidden(world.wh) == []
    for name in SCHEMAS:
        world.wh.drop_stream(name)
    world.wh.close()
