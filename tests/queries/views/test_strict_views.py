"""Strict views kept up from new rows: at every slide they are what plain DuckDB says of the rows that live.

Requests and replies come late, in any order, and inputs slide apart from each other; a view's clock is the least.
"""

import datetime as dt
import random

import pyarrow as pa
import pytest

import plain_duckdb
import windrow

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("j", pa.int64()), ("word", pa.string())])
LIVES = {"a": 12, "b": 7, "c": 9}
A, B, C = (f"{name} [WINDOW {length} MINUTES]" for name, length in (("a", 10), ("b", 5), ("c", 6)))


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


class World:
    """Three streams, and every row that was ever sent to them."""

    def __init__(self, path, seed: int | None = None, keys: int = 8) -> None:
        print("seed", seed := random.randrange(1 << 30) if seed is None else seed)
        self.chance, self.keys, self.path = random.Random(seed), keys, path
        self.rows: dict[str, list[dict]] = {name: [] for name in LIVES}
        self.spooled: dict[str, list[dict]] = {name: [] for name in LIVES}
        self.views: dict[str, str] = {}
        self.wh = windrow.open(path)
        for name, life in LIVES.items():
            key = "k" if name != "c" else None
            self.wh.create_stream(name, SCHEMA, time="ts", key=key, slide="1 minute", lifetime=f"{life} minutes")

    def send(self, stream: str, minute: float, count: int, late: float = 0.0) -> None:
        rows = []
        for _ in range(count):
            back = self.chance.random() * (5 if self.chance.random() < late else 1)
            k = None if self.chance.random() < 0.05 else self.chance.randrange(self.keys)
            j = self.chance.randrange(3)
            rows.append({"ts": at(minute - back), "k": k, "j": j, "word": self.chance.choice(["x", "y", None])})
        clock = self.wh.now(stream)
        self.spooled[stream] += [
            row for row in rows if clock is None or row["ts"] + dt.timedelta(minutes=LIVES[stream]) > clock
        ]
        if rows:
            self.wh.append(stream, pa.Table.from_pylist(rows, SCHEMA))

    def create(self, name: str, sql: str, **options) -> windrow.View:
        view = self.wh.create_view(name, sql, **options)
        self.views[name] = sql
        self.check(name)
        return view

    def step(self, minute: int, count: int = 4, late: float = 0.2, apart: float = 0.0) -> None:
        for name in LIVES:
            self.send(name, minute, self.chance.randrange(count), late)
        for name in sorted(LIVES, key=lambda _: self.chance.random()):
            if self.chance.random() >= apart:
                self.slide(name, minute)

    def slide(self, stream: str, minute: int) -> None:
        """Slide, and compare the views that moved; the others do not show what came since."""
        clocks = {view: self.wh.now(view) for view in self.views}
        self.wh.slide(stream, to=at(minute))
        self.rows[stream] += self.spooled[stream]
        self.spooled[stream] = []
        for view, clock in clocks.items():
            if self.wh.now(view) != clock:
                self.check(view)

    def truth(self, sql: str, clock: dt.datetime) -> list:
        """The statement over the rows that live at `clock`, by plain DuckDB."""
        with plain_duckdb.connect() as connection:
            text = sql
            for name, length in (("a", 10), ("b", 5), ("c", 6)):
                text = text.replace(f"{name} [WINDOW {length} MINUTES]", f"{name}_window")
                for relation, life in ((name, LIVES[name]), (f"{name}_window", length)):
                    oldest = clock - dt.timedelta(minutes=life)
                    rows = [row for row in self.rows[name] if oldest < row["ts"] <= clock]
                    connection.register(relation, pa.Table.from_pylist(rows, SCHEMA))
            return sorted(connection.sql(text).fetchall(), key=repr)

    def answer(self, view: str) -> list:
        columns = [f'"{column}"' for column in self.wh.sql(f"FROM {view}").columns if not column.startswith("_")]
        return sorted(self.wh.sql(f"SELECT {', '.join(columns)} FROM {view}").fetchall(), key=repr)

    def check(self, view: str) -> None:
        clock = self.wh.now(view)
        if clock is not None:
            assert self.answer(view) == self.truth(self.views[view], clock), view


VIEWS = {
    "v_anti": f"SELECT a.k, a.j FROM {A} a ANTI JOIN {B} b ON a.k = b.k",
    "v_anti_of_all": "SELECT * EXCLUDE (ts) FROM a ANTI JOIN b USING (k)",
    "v_not_exists": f"SELECT x.k + 1 AS n, x.word FROM {A} x WHERE NOT EXISTS (SELECT * FROM {B} y WHERE y.k = x.k AND y.j >= x.j) AND x.j < 2",
    "v_semi": f"SELECT k, word FROM {A} a SEMI JOIN {C} c USING (k)",
    "v_exists": f"SELECT a.k FROM {A} a WHERE EXISTS (SELECT 1 FROM {C} c WHERE a.k = c.k AND c.word = a.word)",
    "v_in": f"SELECT a.k, a.j FROM {A} a WHERE a.k IN (SELECT k FROM {B})",
    "v_left": f"SELECT a.k, b.j, b.word FROM {A} a LEFT JOIN {B} b ON a.k = b.k AND a.j = b.j",
    "v_right": f"SELECT a.j, b.k AS other FROM {A} a RIGHT JOIN {B} b ON a.k = b.k",
    "v_full": f"SELECT * EXCLUDE (ts, word) FROM {A} FULL JOIN {B} USING (k)",
    "v_three": f"SELECT a.k, b.j, c.word FROM {A} a JOIN {B} b ON a.k = b.k LEFT JOIN {C} c ON c.k = b.k",
    "v_three_anti": f"SELECT a.k, b.word FROM {A} a JOIN {B} b ON a.k = b.k ANTI JOIN {C} c ON c.k = a.k",
    "v_except": f"SELECT k, j FROM {A} EXCEPT SELECT k, j FROM {B}",
    "v_except_all": f"SELECT k, j AS n FROM {A} WHERE j < 2 EXCEPT ALL SELECT k, j FROM {B} WHERE word = 'x'",
    "v_intersect": f"SELECT j, word FROM {A} INTERSECT SELECT j, word FROM {C}",
    "v_intersect_all": f"SELECT k FROM {A} INTERSECT ALL SELECT k FROM {C}",
}


@pytest.mark.parametrize("apart", [0.0, 0.4], ids=["together", "apart"])
def test_a_strict_view_is_its_statement_over_the_live_rows_at_each_slide(tmp_path, apart):
    world = World(tmp_path / "w")
    with world.wh as wh:
        waiting = list(VIEWS)
        for minute in range(1, 13):
            while waiting and (minute >= 4 or len(waiting) > len(VIEWS) // 2):  # the others are filled from old rows
                name = waiting.pop()
                view = world.create(name, VIEWS[name])
                assert not view.recomputed and view.pattern == "strict", name
            world.step(minute, apart=apart)
        assert not list(wh.check().problems)
        shown = {name: world.answer(name) for name in VIEWS}
    with windrow.open(world.path) as world.wh:
        assert {name: world.answer(name) for name in VIEWS} == shown
