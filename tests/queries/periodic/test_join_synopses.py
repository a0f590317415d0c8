"""Standing aggregates over joins of windows: answered from synopses of a view that they share, as plain SQL answers them.

join of (8, 8)      ├───────────────────────────────┤     a result ends with the first of its two rows
join of (7, 7)      ├───────────────────────────┤ · ·     the same results, each a slot sooner
join of (7, 9)      ├─────────────?─────────────┤         another view: the windows differ by two slots
"""

import random
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

import child_processes
import plain_duckdb
import windrow
from faulty_disks import join_child, start_child
from sample_streams import BASE, when
from windrow.catalog.environment import catalog_key
from windrow.ddl import drop_stream
from windrow.queries.periodic import runner
from windrow.queries.synopses import node_store

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


@pytest.mark.parametrize("seed", [20260801, *(pytest.param(20260802 + n, marks=pytest.mark.soak) for n in range(8))])
def test_answers_are_those_of_plain_sql(seed: int, tmp_path: Path) -> None:
    """Late rows, rows ahead, lagging streams, lives of their own; queries come and go, the warehouse is reopened."""
    print("seed", seed)
    world = World.open(tmp_path / "wh", seed)
    for number in range(len(QUERIES)):
        world.add(number)
    for step in range(14):
        for name in world.chance.sample(sorted(SCHEMAS), 3):
            world.append(name, world.chance.choice((0, 4, 12, 25)))
        slots = world.chance.choice((1, 1, 1, 2))
        last = max(world.clocks.values()) + slots * DELTA
        for name in world.chance.sample(sorted(SCHEMAS), 3):
            if step % 5 != 3 or world.chance.random() < 0.5:  # else it lags
                world.slide(name, (last - world.clocks[name]) // DELTA)
        world.check()
        if step == 6:
            world.reopen()
        if step in (8, 10):
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


def fill(world: World, slots: int, rows: int) -> None:
    """Slides of two streams, each with some rows."""
    for _ in range(slots):
        for name in ("s", "t"):
            world.append(name, rows)
            world.slide(name)


def test_nobody_sees_the_view_and_it_goes_with_the_last_query(tmp_path: Path) -> None:
    world = World.open(tmp_path / "wh", 1)
    fill(world, 3, 20)
    for number in (1, 2, 0):
        world.add(number)
    (view,) = hidden(world.wh)
    wh = world.wh
    assert sorted(wh.streams()) == ["s", "t", "u"]
    assert list(wh.views()) == []
    assert [stream.name for stream in wh.status().streams] == ["s", "t", "u"]
    for table in ("streams", "relations", "segments", "cells", "slides"):
        assert view not in str(wh.sql(f"FROM windrow.{table}").fetchall())
    with wh.snapshot() as snapshot, snapshot.duckdb() as plain:
        assert view not in str(plain.sql("SHOW TABLES").fetchall())
    with pytest.raises(windrow.WindrowError, match="there is no"):
        wh.sql(f'SELECT * FROM "{view}"')
    with pytest.raises(windrow.WindrowError) as unknown:
        wh.slide("nothing")
    assert view not in str(unknown.value)
    for call in (wh.create_view, wh.create_stream):
        with pytest.raises(windrow.WindrowError, match="not allowed"):
            call(view, "SELECT k FROM s" if call == wh.create_view else SCHEMAS["s"], **(
                {} if call == wh.create_view else {"time": "ts", "slide": "1 minute"}))  # fmt: skip
    with pytest.raises(windrow.DefinitionError, match="read by periodic queries"):
        wh.drop_stream("s")
    with pytest.raises(windrow.DefinitionError, match="standing queries or summaries keep synopses"):
        wh.alter_stream("s", lifetime="30 minutes")
    wh.backup(tmp_path / "copy")
    wh.close()
    windrow.restore(tmp_path / "copy", tmp_path / "restored")
    for path in (tmp_path / "restored", tmp_path / "wh"):
        world.wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA)
        assert hidden(world.wh) == [view]
        assert not world.wh.check().problems
        if path.name == "restored":
            world.wh.close()
    for name in ("q0", "q1"):
        world.wh.drop_query(name)
        assert hidden(world.wh) == [view]
    world.wh.drop_query("q2")
    assert hidden(world.wh) == []
    assert not list((tmp_path / "wh" / "streams").glob("~*/segments/*")) or world.wh.gc()
    world.wh.drop_stream("s")
    world.wh.close()


def test_a_stream_may_be_joined_with_itself(tmp_path: Path) -> None:
    world = World.open(tmp_path / "wh", 6)
    fill(world, 4, 20)
    for number in (11, 11):
        world.add(number)
    assert len(hidden(world.wh)) == 1
    fill(world, 2, 20)
    world.check()
    assert {how for runs in world.how.values() for how in runs} == {"basic synopsis"}
    world.wh.close()


def test_columns_may_change_under_it(tmp_path: Path) -> None:
    world = World.open(tmp_path / "wh", 2)
    fill(world, 3, 20)
    world.add(1)
    world.wh.alter_stream("s", widen_column=("v", pa.int64()))
    for name in ("s", "t"):
        world.append(name, 10) if name == "t" else None
        world.slide(name)
    world.check()
    assert world.how["q0"] == ["basic synopsis"]
    world.wh.erase("t", keys=[3])
    world.rows["t"] = [row for row in world.rows["t"] if row["k"] != 3]
    for name in ("s", "t"):
        world.slide(name)
    world.check()
    assert world.how["q0"] == ["basic synopsis"] * 2
    world.wh.close()


def test_no_view_is_kept_over_a_stream_with_erase_within(tmp_path: Path) -> None:
    """It would hold rows that are to go, as long as another stream lags: also over a view of that stream."""
    world = World.open(tmp_path / "wh", 7)
    fill(world, 3, 20)
    world.add(0)
    world.add(1)
    world.wh.create_view("w", "SELECT k, v FROM s")
    for number in range(2):
        world.wh.add_query(
            f"over{number}",
            "SELECT count(*) FROM w [WINDOW 40 SECONDS SLIDE 10 SECONDS] x "
            "JOIN t [WINDOW 40 SECONDS SLIDE 10 SECONDS] y USING (k)",
        )
    assert len(hidden(world.wh)) == 2
    with pytest.raises(windrow.WindrowError, match="shorter than the slide"):
        world.wh.alter_stream("s", erase_within="1 second")
    assert len(hidden(world.wh)) == 2
    world.wh.alter_stream("s", erase_within="20 seconds")
    world.add(1)
    assert hidden(world.wh) == []
    for name in ("over0", "over1"):
        world.wh.drop_query(name)
    assert "no view of its join is kept, since 's' is under erase_within" in str(world.wh.query_plan())
    for _ in range(LIFE // DELTA + 4):
        world.append("s", 10)
        world.slide("s")
    world.wh.gc()
    assert not list((tmp_path / "wh" / "streams").glob("~*/segments/*"))
    world.slide("t", LIFE // DELTA + 4)
    world.check()
    assert {how for runs in world.how.values() for how in runs} == {"snapshot"}
    world.wh.alter_stream("s", erase_within="none")
    fill(world, 1, 20)
    assert len(hidden(world.wh)) == 1
    world.wh.close()


def test_a_view_outlives_a_refused_change_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round after it went decides anew, and so for queries that an earlier release has decided on."""
    monkeypatch.setattr(runner, "_MIN_ROWS", 10)
    world = World.open(tmp_path / "wh", 8)
    fill(world, 4, 20)
    world.add(0)
    world.add(1)
    (view,) = hidden(world.wh)
    for change in ({"add_column": pa.field("v", pa.int64())}, {"widen_column": ("v", pa.string())}):
        with pytest.raises(windrow.WindrowError):
            world.wh.alter_stream("s", **change)
    assert hidden(world.wh) == [view]
    store = world.wh._store
    for by_earlier_release in (False, True):
        drop_stream(store, view, view=True)
        with store.catalog.write() as tables:
            for _, query in list(tables.items("queries")) if by_earlier_release else ():
                state = tables.get("paced", catalog_key(query.id))
                state = replace(state, judged=80, from_rows="it does not read exactly one stream")
                tables.put("paced", catalog_key(query.id), state)
        fill(world, 1, 5)
        world.check()
        (view,) = hidden(world.wh)
        fill(world, 1, 5)
        world.check()
        assert hidden(world.wh) == [view]
    assert {tuple(runs) for runs in world.how.values()} == {("snapshot", "basic synopsis") * 2}
    world.wh.close()


def test_users_cannot_name_the_view(tmp_path: Path, windrow_command: Path) -> None:
    world = World.open(tmp_path / "wh", 9)
    fill(world, 3, 20)
    world.add(0)
    (view,) = hidden(world.wh)
    wh, one = world.wh, [{"k": 1}]
    calls: list[Callable[[str], Any]] = [
        wh.scan, wh.probe, wh.stream, wh.now, wh.publish, wh.unpublish, wh.drop_view, wh.drop_stream, wh.slide, wh.advise,
        wh.relayout, wh.relayout_step, wh.cancel_relayout, wh.alter_stream, wh.rejected, wh.replay, wh.discard_rejected,
        wh.erasures, wh.repair, wh.gaps, lambda name: wh.snapshot([name]), lambda name: wh.append(name, one),
        lambda name: wh.wait_for(name, up_to=when(BASE)), lambda name: wh.erase(name, keys=[1]),
        lambda name: wh.heartbeat(name, up_to=when(BASE)), lambda name: wh.fail_source(name, "a"),
        lambda name: wh.declare_gap(name, start=when(BASE), end=when(BASE + DELTA)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(windrow.WindrowError, match=rf"there is no stream '{view}'; the streams are s, t, u"):
            call(view)
    with wh.snapshot() as snapshot:
        for read in (snapshot.scan, snapshot.probe):
            with pytest.raises(windrow.WindrowError, match="has no stream"):
                read(view)
    assert hidden(wh) == [view]
    wh.close()
    for words in (["scan", view], ["stream", "relayout", view]):
        told = subprocess.run([windrow_command, "-w", world.path, *words], check=False, capture_output=True, text=True)
        assert told.returncode != 0
        assert "there is no stream" in told.stderr


def test_it_keeps_no_rows_back_while_a_stream_lags(tmp_path: Path) -> None:
    """One stream goes on for more than a lifetime; when the other has come to it, synopses answer again."""
    world = World.open(tmp_path / "wh", 5)
    fill(world, 4, 30)
    for number in (0, 1, 6):
        world.add(number)
    fill(world, 1, 30)
    world.check()
    for _ in range(15):
        world.append("s", 30)
        world.slide("s")
    live = sum(row["ts"] + LIFE > world.clocks["s"] for row in world.rows["s"])
    with world.wh.snapshot() as snapshot:
        assert live <= snapshot.view("s").segments.rows < 1.5 * live
    for slots in (14, 1):
        world.append("t", 30)
        world.slide("t", slots)
        world.check()
    fill(world, 1, 30)
    world.check()
    assert {tuple(runs[-2:]) for runs in world.how.values()} == {("snapshot", "basic synopsis")}
    world.wh.close()


def test_longer_windows_and_more_columns_make_another_view(tmp_path: Path) -> None:
    world = World.open(tmp_path / "wh", 3)
    fill(world, 4, 20)
    world.add(0)
    (first,) = hidden(world.wh)
    world.add(0)
    assert hidden(world.wh) == [first]
    world.add(1)
    (second,) = hidden(world.wh)
    assert first != second
    fill(world, 2, 20)
    world.check()
    assert {how for runs in world.how.values() for how in runs} == {"basic synopsis"}
    world.wh.close()


def test_costs_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for one query, not where a join has more rows than its windows; the plan says so."""
    monkeypatch.delenv("WINDROW_SYNOPSES")
    world = World.open(tmp_path / "wh", 4)
    fill(world, 2, 700)
    world.add(0)
    fill(world, 1, 700)
    world.check()
    assert hidden(world.wh) == []
    assert "no other query has its join" in str(world.wh.query_plan())
    world.add(1)
    fill(world, 1, 700)
    world.check()
    assert hidden(world.wh) == []
    assert "its join multiplies rows" in str(world.wh.query_plan())
    world.wh.close()


def test_what_a_slide_and_a_round_read_follows_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and replies, of which each has one partner: ten times the window is no more work."""
    monkeypatch.delenv("WINDROW_SYNOPSES")
    work: dict[str, list[int]] = {"written": [], "read": []}
    encode, read = node_store.encode_node, node_store.read_node

    def encode_counted(changed: int, rows: pa.Table) -> bytes:
        work["written"].append(rows.num_rows)
        return encode(changed, rows)

    def read_counted(*arguments: Any) -> node_store.StoredNode | None:
        stored = read(*arguments)
        work["read"].append(0 if stored is None else stored.table().num_rows)
        return stored

    monkeypatch.setattr(node_store, "encode_node", encode_counted)
    monkeypatch.setattr(node_store, "read_node", read_counted)
    found = []
    for slots in (12, 120):
        with windrow.open(tmp_path / f"wh{slots}", clock=lambda: BASE + 1000 * DELTA) as wh:
            found.append(_ask_many(wh, slots, work))
    print(found)
    assert found[0] == found[1]


def _ask_many(wh: windrow.Warehouse, slots: int, work: dict[str, list[int]]) -> dict[str, int]:
    """What the last slide and round read and wrote of synopses, in rows."""
    schema = pa.schema([("ts", STAMP), ("id", pa.int64()), ("n", pa.int32())])
    for name in "ab":
        wh.create_stream(name, schema, time="ts", key="id", slide="10 seconds", lifetime=f"{10 * slots} seconds")
    late = np.arange(0)
    for slot in range(slots, slots + 4):
        for counted in work.values():
            counted.clear()
        numbers = np.arange(400 if slot == slots else slot * 400, slot * 400 + 400)  # the whole window at first
        times = pa.array(BASE + numbers // 400 * DELTA - numbers % 97).cast(STAMP)
        for name in "ab":
            wh.append(name, pa.table([times, pa.array(numbers), pa.array(numbers % 7, pa.int32())], schema=schema))
            if name == "b" and slot > slots:  # second replies, late by two slots
                late = np.concatenate([late, numbers[:20] - 800])
                rows = [pa.array(times).take(pa.array(range(20))).cast(pa.int64()), late[-20:], late[-20:] % 7]
                rows[0] = pa.array(rows[0].to_numpy() - 2 * DELTA).cast(STAMP)
                wh.append(name, pa.table([pa.array(each) for each in rows], names=schema.names).cast(schema))
            wh.slide(name, to=when(BASE + slot * DELTA))
        for number in range(20) if slot == slots else ():
            clause = f"[WINDOW {10 * (slots - number % 4)} SECONDS SLIDE 10 SECONDS]"
            join = f"a {clause} x JOIN b {clause} y USING (id)"
            wh.add_query(f"q{number}", f"SELECT x.n, count(*) AS c FROM {join} GROUP BY x.n ORDER BY x.n")
        runs = wh.run_due()
    assert len(hidden(wh)) == 1
    assert {run.how for run in runs} == {"basic synopsis"}
    (plan,) = wh.query_plan()
    assert len(plan.queries) == 20
    assert any("SS3" in rule for rule in plan.why)
    assert any("CS5" in rule for rule in plan.why)
    for number in range(20):
        rows = wh.results(f"q{number}", slide=runs[0].slide).fetchall()
        first = (4 + number % 4) * 400
        live = np.concatenate([np.arange(first, (slots + 4) * 400), late[late >= first]])
        assert [row[6:] for row in rows] == list(enumerate(np.bincount(live % 7).tolist()))
    assert len(work["written"]) == 1
    return {name: sum(counted) for name, counted in work.items()}


@pytest.mark.parametrize(
    ("step", "nth"),
    [("view.created", 1), ("view.written", 3), ("slide.committing", 8)],
)
def test_a_kill_leaves_views_and_synopses_whole(step: str, nth: int, tmp_path: Path) -> None:
    path = tmp_path / "wh"
    child = start_child(child_processes.join_until_step, str(path), step, nth)
    assert join_child(child) == -signal.SIGKILL
    with windrow.open(path, clock=lambda: BASE + 360 * DELTA) as wh:
        assert wh.check().problems == ()
        child_processes.ask_joins(wh)
        assert wh.check().problems == ()
        for number, slots in enumerate((4, 3)):
            rows = wh.results(f"q{number}", slide=wh.stream("s").slide).fetchall()
            live = [
                (BASE + slot * DELTA - n * DELTA // 8, (n + slot) % 5, n * slot)
                for slot in range(1, 8) for n in range(12)
            ]  # fmt: skip
            live = [row for row in live if BASE + (7 - slots) * DELTA < row[0]]
            pairs = [(one[1], one[2]) for one in live for other in live if one[1] == other[1]]
            sums = [(k, sum(key == k for key, _ in pairs), sum(v for key, v in pairs if key == k)) for k in range(5)]
            assert [row[6:] for row in rows] == sums
            wh.drop_query(f"q{number}")
        assert hidden(wh) == []
        wh.drop_stream("s")
