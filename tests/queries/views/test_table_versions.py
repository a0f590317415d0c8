"""Views meet the version of a table that was valid at the row's own time; statements the one that was put last.

put              v1          v2                v3
valid      ……────────────────┤├────────────────┤├────────────
rows            x       x          x    x           x            a late row meets what was valid at its time
"""

import random
from collections import Counter

import pyarrow as pa
import pytest

import windrow
from view_histories import MINUTE, SCHEMA, START, TICK, micros, open_warehouse, rows, time

VIEWS = {
    "named": "SELECT a.k, a.x, h.name FROM a JOIN hosts h ON a.k = h.k",
    "pairs": "SELECT a.k, a.x, b.x AS bx, h.name, c.colour FROM a JOIN b ON a.k = b.k JOIN hosts h ON a.k = h.k "
    "JOIN colours c ON b.k = c.k",
    "distinct_names": "SELECT DISTINCT h.name FROM a JOIN hosts h ON a.k = h.k",
    "log": "SELECT a.k, a.x, h.name FROM a JOIN hosts h ON a.k = h.k",
    "now_named": "SELECT a.k, a.x, h.name FROM a JOIN hosts h ON a.k = h.k",
}
OPTIONS = {"log": {"keep": "20 minutes"}, "now_named": {"retroactive": "hosts"}}
LIFE = 6 * MINUTE


class Versions:
    """What was put, and from when on it is valid."""

    def __init__(self) -> None:
        self.found: list[tuple[float, dict[int, str]]] = []

    def put(self, values: dict[int, str], since: float) -> None:
        self.found = [each for each in self.found if each[0] < since] + [(since, values)]

    @property
    def last(self) -> dict[int, str]:
        return self.found[-1][1]

    def at(self, ts: int) -> dict[int, str]:
        return next((values for since, values in reversed(self.found) if ts > since), self.found[0][1])


class World:
    """Two streams, two tables and views of them, in plain Python."""

    def __init__(self, path, seed: int) -> None:
        print("seed", seed)
        self.choice, self.path, self.clocks = random.Random(seed), path, {"a": START, "b": START}
        self.wh = open_warehouse(path)
        self.rows: dict[str, list[tuple[int, int, int]]] = {"a": [], "b": []}
        self.spool: dict[str, list[tuple[int, int, int]]] = {"a": [], "b": []}
        self.met: dict[tuple, tuple] = {}
        """Results by the rows that they are of: what they met when both had come."""
        self.logged: dict[tuple, tuple] = {}
        self.joined = START
        """The clock of the join."""
        self.tables = {"hosts": Versions(), "colours": Versions()}
        for name in ("a", "b"):
            self.wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime="6 minutes")
            self.wh.slide(name, to=time(START))
        for name in self.tables:
            self.put(name)
        for name, sql in VIEWS.items():
            self.wh.create_view(name, sql, **OPTIONS.get(name, {}))

    def put(self, name: str) -> None:
        word, actual = ("name", self.tables[name]) if name == "hosts" else ("colour", self.tables[name])
        values = {k: f"{name} {self.choice.randrange(100)}" for k in self.choice.sample(range(4), 3)}
        greatest = max(self.clocks.values())
        # What is dated back is for rows that come later; DISTINCT, which reads hosts, may find earlier ones again.
        earliest = 0 if name == "hosts" else -30
        since = greatest + self.choice.randrange(earliest, 10) * TICK if self.choice.random() < 0.4 else None
        first = not actual.found
        data = pa.table({"k": list(values), word: list(values.values())})
        self.wh.put_table(name, data, **({} if since is None or first else {"valid_from": time(since)}))
        actual.put(values, float("-inf") if first else greatest if since is None else since)

    def append(self, name: str) -> None:
        clock = self.clocks[name]
        given = [
            (clock + self.choice.randint(-30, 9) * TICK + self.choice.randrange(5), self.choice.randrange(4), n)
            for n in self.choice.sample(range(1000), self.choice.randrange(5))
        ]
        self.wh.append(name, rows([(ts, ts, k, x) for ts, k, x in given]))
        self.spool[name] += [row for row in given if row[0] + LIFE > clock]

    def slide(self, name: str) -> None:
        self.clocks[name] += self.choice.randint(1, 3) * MINUTE
        self.wh.slide(name, to=time(self.clocks[name]))
        self.rows[name] += self.spool[name]
        self.spool[name] = []
        hosts, colours = self.tables["hosts"], self.tables["colours"]
        if name == "a":
            for ts, k, x in self.rows["a"]:
                if ts <= self.clocks["a"] and (ts, k, x) not in self.logged:
                    self.logged[ts, k, x] = (hosts.at(ts).get(k),)
        if min(self.clocks.values()) == self.joined:
            return  # the other stream holds the join's clock
        now = self.joined = min(self.clocks.values())
        for a in self.rows["a"]:
            for b in self.rows["b"]:
                begins, ends = max(a[0], b[0]), min(a[0], b[0]) + LIFE
                if a[1] == b[1] and begins <= now < ends and (a, b) not in self.met:
                    self.met[a, b] = hosts.at(begins).get(a[1]), colours.at(begins).get(b[1])

    def expected(self, name: str) -> Counter:
        if name == "pairs":
            now = min(self.clocks.values())
            return Counter(
                (a[1], a[2], b[2], *met)
                for (a, b), met in self.met.items()
                if None not in met and min(a[0], b[0]) + LIFE > now
            )
        now = self.clocks["a"]
        if name == "now_named":
            last = self.tables["hosts"].last
            return Counter((k, x, last[k]) for ts, k, x in self.rows["a"] if ts <= now < ts + LIFE and k in last)
        life = 20 * MINUTE if name == "log" else LIFE
        live = [(k, x, host) for (ts, k, x), (host,) in self.logged.items() if host is not None and now < ts + life]
        return Counter({(host,): 1 for _, _, host in live}) if name == "distinct_names" else Counter(live)

    def check(self, slid: str | None) -> None:
        for name in VIEWS:
            if name == "now_named" and slid != "a":
                continue  # a retroactive change is shown from the next slide on
            times = {"_ts", "_exp"}
            actual = self.wh.sql(f"SELECT * FROM {name}").arrow()
            actual = actual.select([column for column in actual.column_names if column not in times])
            assert Counter(map(tuple, (row.values() for row in actual.to_pylist()))) == self.expected(name), name


def run_history(path, seed: int, steps: int) -> None:
    world = World(path, seed)
    for number in range(steps):
        action, slid = world.choice.random(), None
        if action < 0.35:
            world.append(world.choice.choice("ab"))
        elif action < 0.75:
            # Neither goes further ahead than rows of the other live.
            slid = min(world.clocks, key=world.clocks.get) if number % 3 else world.choice.choice("ab")
            world.slide(slid)
        elif action < 0.92:
            world.put(world.choice.choice(("hosts", "colours")))
        else:
            world.wh.close()
            world.wh = open_warehouse(path)
            world.wh.gc()
        world.check(slid)
        last = world.wh.sql("SELECT k, name FROM hosts").fetchall()
        assert dict(last) == world.tables["hosts"].last, "a statement meets what was put last"
    assert world.wh.check().ok, world.wh.check().problems
    world.wh.close()


@pytest.mark.parametrize("seed", [2220, 2221])
def test_a_row_meets_the_version_of_its_own_time(tmp_path, seed):
    run_history(tmp_path / "w", seed, 50)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_row_meets_the_version_of_its_own_time_for_long(tmp_path, seed):
    run_history(tmp_path / "w", seed, 300)


def test_versions_are_kept_as_long_as_rows_can_meet_them(tmp_path):
    def files():
        return len(list((tmp_path / "w" / "tables").glob("**/*.parquet")))

    with open_warehouse(tmp_path / "w") as wh:
        wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="6 minutes")
        for number in range(5):  # no view joins it: each is replaced
            wh.put_table("hosts", pa.table({"k": [1], "name": [f"{number}"]}))
        wh.gc()
        assert files() == 1
        wh.create_view("v", VIEWS["named"])
        for minute in range(20):
            wh.slide("a", to=time(START + minute * MINUTE))
            wh.put_table("hosts", pa.table({"k": [1], "name": [f"minute {minute}"]}))
        wh.gc()
        assert files() == 7, "those of the last six minutes, and the one before"
        wh.append("a", rows([(START + 15 * MINUTE + TICK, START, 1, 1), (START + 19 * MINUTE + TICK, START, 1, 2)]))
        wh.slide("a", to=time(START + 20 * MINUTE))
        assert sorted(wh.sql("SELECT x, name FROM v").fetchall()) == [(1, "minute 15"), (2, "minute 19")]
        wh.drop_view("v")
        wh.drop_table("hosts")
        wh.gc()
        assert files() == 0 and wh.check().ok


def test_a_time_that_is_none_is_refused_and_the_table_stays(tmp_path):
    with open_warehouse(tmp_path / "w") as wh:
        wh.put_table("hosts", pa.table({"k": [1]}))
        with pytest.raises(windrow.WindrowError, match="valid_from"):
            wh.put_table("hosts", pa.table({"k": [2]}), valid_from="yesterday")
        assert wh.sql("SELECT k FROM hosts").fetchall() == [(1,)]
        assert micros(time(START)) == START
