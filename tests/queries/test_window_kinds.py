"""Windows of each key, sessions, and windows that ended earlier: every answer is that of a loop over the live rows."""

import datetime as dt
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA
from windrow.access import put_role
from windrow.catalog.records import Role
from windrow.queries import execution, isolation
from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

SLOT = dt.timedelta(microseconds=DELTA)
PAUSE = DELTA // 5
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KINDS = {"zone": pa.timestamp("us", "UTC"), "nanoseconds": pa.timestamp("ns")}


@dataclass(frozen=True)
class Row:
    """A row that was stored, and its number among all that have come."""

    ts: int
    exp: int
    k: int | None
    j: str | None
    n: int


Window = Callable[[list[Row], int], list[Row]]


def when(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


def newest(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.ts, row.n), reverse=True)


def by_key(rows: list[Row], *names: str) -> list[list[Row]]:
    keys = {tuple(getattr(row, name) for name in names) for row in rows}
    return [newest(r for r in rows if tuple(getattr(r, name) for name in names) == key) for key in keys]


def rows_of_keys(count: int, *names: str) -> Window:
    return lambda rows, _: [row for group in by_key(rows, *names) for row in group[:count]]


def sessions(*names: str) -> Window:
    def find(rows: list[Row], _: int) -> list[Row]:
        actual = []
        for group in by_key(rows, *names):
            actual.append(group[0])
            for later, earlier in itertools.pairwise(group):
                if later.ts - earlier.ts >= PAUSE:
                    break
                actual.append(earlier)
        return actual

    return find


def offset(length: int, back: int) -> Window:
    return lambda rows, now: [row for row in rows if now - back - length < row.ts <= now - back]


WINDOWS: dict[str, tuple[str, Window]] = {
    "[ROWS 2 PARTITION BY k]": ("rows := 2, partition_by := 'k'", rows_of_keys(2, "k")),
    '[ROWS 1 PARTITION BY K, "j"]': ("rows := 1, partition_by := ['k', 'J']", rows_of_keys(1, "k", "j")),
    f"[SESSION {PAUSE} MICROSECONDS PARTITION BY k]": (
        f"session := INTERVAL {PAUSE} MICROSECONDS, partition_by := 'k'", sessions("k"),
    ),
    f"[SESSION INTERVAL '{PAUSE} microseconds']": (f"session := INTERVAL {PAUSE} MICROSECONDS", sessions()),
    f"[WINDOW {DELTA} MICROSECONDS OFFSET {2 * DELTA} MICROSECONDS]": (
        f"INTERVAL {DELTA} MICROSECONDS, offset := INTERVAL {2 * DELTA} MICROSECONDS", offset(DELTA, 2 * DELTA),
    ),
    f"[WINDOW {DELTA + 7} MICROSECONDS OFFSET {DELTA // 3} MICROSECONDS]": (
        f"INTERVAL {DELTA + 7} MICROSECONDS, offset := INTERVAL {DELTA // 3} MICROSECONDS", offset(DELTA + 7, DELTA // 3),
    ),
}  # fmt: skip


class History:
    """A stream whose rows come late and live as long as they say, some of them beyond the clock or at equal times."""

    def __init__(self, wh: windrow.Warehouse, kind: pa.DataType, seed: int) -> None:
        self.wh, self.kind, self.choice = wh, kind, random.Random(seed)
        self.rows: list[Row] = []
        self.turn = 0
        schema = pa.schema([("ts", kind), ("exp", kind), ("k", pa.int64()), ("j", pa.string()), ("n", pa.int64())])
        wh.create_stream(
            "s", schema, time="ts", expires="exp", key="k", slide=SLOT, max_lifetime=6 * SLOT,
            index=windrow.Index("round-robin", 2, 2),
        )  # fmt: skip

    @property
    def now(self) -> int:
        return BASE + self.turn * DELTA

    def move(self, count: int) -> None:
        """Some rows come, in two batches, and the stream slides."""
        before = self.now
        self.turn += 1
        for _ in range(2):
            fresh = [row for row in (self._row() for _ in range(count)) if row.exp > before]
            fresh = [replace(row, n=len(self.rows) + number) for number, row in enumerate(fresh)]
            self.rows += fresh
            scale = 1000 if self.kind.unit == "ns" else 1
            columns = [
                pa.array([getattr(row, name) * scale for row in fresh], pa.int64()).view(self.kind)
                for name in ("ts", "exp")
            ]
            columns += [pa.array([row.k for row in fresh], pa.int64()), pa.array([row.j for row in fresh], pa.string())]
            columns.append(pa.array([row.n for row in fresh], pa.int64()))
            self.wh.append("s", pa.table(columns, names=["ts", "exp", "k", "j", "n"]))
        self.wh.slide("s", to=when(self.now))

    def _row(self) -> Row:
        age = self.choice.choice((0, 0, 0, 1, 2, 4)) * DELTA + self.choice.randint(-DELTA // 5, DELTA)
        ts = (self.now - age) // (DELTA // 50) * (DELTA // 50)
        keys = self.choice.choice((None, 1, 2, 3, 4)), self.choice.choice((None, "", "x"))
        return Row(ts, ts + self.choice.randint(1, 6 * DELTA), *keys, 0)

    def live(self, newest: int = 0, oldest: int | None = None) -> list[Row]:
        """The rows that are live, of those ages."""
        oldest = 100 * DELTA if oldest is None else oldest
        return [r for r in self.rows if self.now - oldest < r.ts <= self.now - newest and r.exp > self.now]

    def expected(self, window: Window, rows: list[Row] | None = None) -> list[int]:
        return sorted(row.n for row in window(self.live() if rows is None else rows, self.now))


def numbers(answer: Any) -> list[int]:
    return sorted(row["n"] for row in answer.arrow().to_pylist())


def opened(path: Path) -> windrow.Warehouse:
    return windrow.open(path, clock=lambda: BASE + 1000 * DELTA)


@pytest.mark.parametrize(("kind", "seed"), [("zone", 11), ("nanoseconds", 12)])
def test_every_way_of_asking_gives_what_a_loop_over_the_live_rows_gives(path: Path, kind: str, seed: int) -> None:
    with opened(path) as wh:
        history = History(wh, KINDS[kind], seed)
        for _ in range(6):
            history.move(16)
            with wh.snapshot() as snap:
                for clause, (arguments, window) in WINDOWS.items():
                    truth = history.expected(window)
                    assert numbers(snap.sql(f"SELECT n FROM s {clause}")) == truth, (seed, clause)
                    assert numbers(wh.sql(f"SELECT n FROM window('s', {arguments})")) == truth, (seed, arguments)
        for clause, (_, window) in WINDOWS.items():
            actual = history.expected(window)
            for level in ("latest", "serial"):
                assert numbers(wh.sql(f"SELECT n FROM s {clause}", isolation=level)) == actual, (seed, clause, level)
            kept = {row.n: row for row in window(history.live(), history.now)}
            for condition, holds in CONDITIONS.items():
                truth = [n for n in actual if holds(kept[n])]
                assert numbers(wh.sql(f"SELECT n FROM s {clause} WHERE {condition}")) == truth, (seed, clause)
            pairs = sorted((a.k, a.n, b.n) for a in kept.values() for b in history.live() if a.k == b.k is not None)
            joined = wh.sql(f"SELECT a.k, a.n, b.n FROM s {clause} a JOIN s b USING (k) ORDER BY ALL")
            assert joined.fetchall() == pairs, (seed, clause)
            assert clause.split()[0][1:] in str(wh.explain(f"SELECT n FROM s {clause}"))


CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "k = 2": lambda row: row.k == 2,
    "k IS NULL": lambda row: row.k is None,
    "k IN (1, 4) AND j = 'x'": lambda row: row.k in (1, 4) and row.j == "x",
    "n % 3 = 0": lambda row: row.n % 3 == 0,
    "k = 1 AND ts <= TIMESTAMP '2026-01-01 00:01:00'": lambda row: row.k == 1 and row.ts <= BASE + 6 * DELTA,
}


def test_a_condition_on_all_of_a_windows_keys_leaves_segments_out(path: Path) -> None:
    schema = pa.schema([("ts", KINDS["zone"]), ("k", pa.int64())])
    with opened(path) as wh:
        wh.create_stream("s", schema, time="ts", key="k", slide=SLOT, lifetime=50 * SLOT)
        for turn in range(1, 7):
            instant = [when(BASE + turn * DELTA)] * 2
            wh.append("s", pa.table({"ts": instant, "k": [2 * turn, 2 * turn + 1]}, schema=schema))
            wh.slide("s", to=instant[0])
        for clause, segments in {"[ROWS 3 PARTITION BY k]": 1, "[ROWS 3 PARTITION BY ts]": 6, "[ROWS 3]": 6}.items():
            plan = str(wh.explain(f"SELECT * FROM s {clause} WHERE k = 5"))
            assert f"segments {segments} of 6" in plan, plan


def test_a_role_sees_no_hidden_ages_in_any_kind_of_window(path: Path) -> None:
    with opened(path) as wh:
        history = History(wh, KINDS["zone"], 21)
        for _ in range(8):
            history.move(12)
        ages = {"old": (DELTA, None), "young": (0, 4 * DELTA), "middle": (DELTA // 2, 4 * DELTA)}
        for name, (least, most) in ages.items():
            limits = {"newest": None if not least else dt.timedelta(microseconds=least),
                      "oldest": None if most is None else dt.timedelta(microseconds=most)}  # fmt: skip
            role = put_role(wh._store, name, ["read"], **limits)
            seen = history.live(least, most)
            for clause, (_, window) in WINDOWS.items():
                for level in isolation.LEVELS:
                    answer = ask(wh, f"SELECT n FROM s {clause}", role, level)
                    assert numbers(answer) == history.expected(window, seen), (name, clause, level)
        with pytest.raises(windrow.WindowError, match=r"sees the last 40 seconds.*begins 50 seconds before the clock"):
            ask(wh, "SELECT n FROM s [WINDOW 10 SECONDS OFFSET 40 SECONDS]", role)
        narrow = put_role(wh._store, "narrow", ["read"], {"s": ["n"]})
        with pytest.raises(windrow.WindowError, match="no column 'k' to partition by; it has ts, exp, n"):
            ask(wh, "SELECT n FROM s [ROWS 1 PARTITION BY k]", narrow)


def ask(wh: windrow.Warehouse, text: str, role: Role, level: str = "snapshot") -> Any:
    return isolation.answer_query(wh._store, text, isolation=level, context=replace(STATEMENT_CONTEXT, role=role))


def test_a_slide_that_overtakes_a_statement_at_latest_moves_its_window(path: Path) -> None:
    with opened(path) as wh:
        history = History(wh, KINDS["zone"], 31)
        for _ in range(4):
            history.move(10)
        for clause, (_, window) in WINDOWS.items():
            left = [1]

            def overtake(step: str, left: list[int] = left) -> None:
                if step == "check" and left:
                    left.pop()
                    history.move(6)

            text = f"SELECT n FROM s {clause}"
            answer = isolation.answer_query(wh._store, text, isolation="latest", between=overtake)
            assert not left
            assert numbers(answer) == history.expected(window), clause
            assert answer.windows[0].end <= when(history.now)


def test_the_window_of_an_answer_and_its_gaps_are_those_of_the_interval_that_was_asked(path: Path) -> None:
    with opened(path) as wh:
        schema = pa.schema([("ts", KINDS["zone"]), ("k", pa.int64())])
        wh.create_stream("s", schema, time="ts", slide=SLOT, lifetime=20 * SLOT, sources=["a", "b"])
        for turn in range(1, 9):
            for source in "ab" if turn != 5 else "a":
                wh.append("s", pa.table({"ts": [when(BASE + turn * DELTA)], "k": [turn]}, schema=schema), source=source)
            wh.slide("s", to=when(BASE + turn * DELTA), force=True)
            if turn == 5:
                wh.declare_gap("s", start=when(BASE + 4 * DELTA), end=when(BASE + 5 * DELTA), source="b")
        now = BASE + 8 * DELTA
        for back, complete, share in ((2, True, 1.0), (3, False, 0.5), (4, True, 1.0)):
            text = f"SELECT k FROM s [WINDOW 10 SECONDS OFFSET {10 * back} SECONDS]"
            window = wh.sql(text).windows[0]
            assert (window.start, window.end) == (when(now - (back + 1) * DELTA), when(now - back * DELTA))
            assert (window.complete, window.coverage) == (complete, share), back
            assert window.clause == f"[WINDOW 10 SECONDS OFFSET {10 * back} SECONDS]".replace("60 SECONDS", "1 MINUTE")
            assert execution.explain(wh._store, text)
        assert not wh.sql("SELECT k FROM s [ROWS 1 PARTITION BY k]").windows[0].complete, "all rows are looked at"


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("[WINDOW 30 SECONDS OFFSET 31 SECONDS]", "keeps rows for 1 minute; .* begins 61 seconds before"),
        ("[ROWS 2 PARTITION BY z]", "stream 's' has no column 'z' to partition by; it has ts, exp, k, j, n"),
        ("[ROWS 2 PARTITION k]", "PARTITION goes on with BY"),
        ("[ROWS 2 PARTITION BY]", "the name of a column is expected here"),
        ("[ROWS 2 PARTITION BY k,]", "the name of a column is expected here"),
        ("[ROWS 2 PARTITION BY 3]", "the name of a column is expected here"),
        ("[SESSION 0 SECONDS]", "more than zero"),
        ("[SESSION 5]", "a unit is expected here: microseconds"),
        ("[WINDOW 5 SECONDS OFFSET]", "a number is expected here"),
        ("[WINDOW 5 SECONDS SLIDE 5 SECONDS OFFSET 5 SECONDS]", "must end here with ]"),
        ("[WINDOW 5 SECONDS PARTITION BY k]", "must end here with ]"),
    ],
)
def test_what_is_refused(path: Path, clause: str, message: str) -> None:
    with opened(path) as wh:
        History(wh, KINDS["zone"], 1).move(3)
        with pytest.raises(windrow.WindrowError, match=message):
            wh.sql(f"SELECT * FROM s {clause}")


def test_views_and_periodic_queries_of_every_kind(path: Path) -> None:
    wh = opened(path)
    history, names = History(wh, KINDS["zone"], 41), [f"w{number}" for number in range(len(WINDOWS))]
    history.move(8)
    for name, clause in zip(names, WINDOWS, strict=True):
        view = wh.create_view(f"{name}_view", f"SELECT k, n FROM s {clause}", key="n")
        assert view.recomputed == ('"j"' in clause)  # which is not in the result
        assert view.pattern == ("weak" if "OFFSET" in clause else "strict")
        wh.create_view(f"{name}_above", f"SELECT k, max(n) AS n FROM {name}_view GROUP BY k")
        wh.add_query(name, f"SELECT n FROM s {clause}", slide=SLOT)
    for turn in range(8):
        if turn == 4:
            wh.close()
            wh = history.wh = opened(path)
        history.move(10)
        wh.run_due()
        for name, (_, window) in zip(names, WINDOWS.values(), strict=True):
            actual = window(history.live(), history.now)
            truth = history.expected(window)
            assert numbers(wh.sql(f"SELECT n FROM {name}_view")) == truth, name
            assert numbers(wh.sql(f"SELECT n FROM {name}_above")) == sorted(group[0] for group in tops(actual)), name
            last = wh.sql(f"SELECT * FROM {name} WHERE _slide = (SELECT max(_slide) FROM {name})")
            assert numbers(last) == truth, name
    assert not wh.check().problems
    ended = [run.window_end for run in wh._store.catalog.read(lambda t: [r for _, r in t.items("runs")])]
    assert {history.now, history.now - 2 * DELTA, history.now - DELTA // 3} <= set(ended)
    with pytest.raises(windrow.ViewError, match="begins 70 seconds before the clock"):
        wh.create_view("far", "SELECT n FROM s [WINDOW 10 SECONDS OFFSET 1 MINUTE]")
    with pytest.raises(windrow.ViewError, match="no column 'z'"):
        wh.create_view("other", "SELECT n FROM s [ROWS 1 PARTITION BY z]")
    wh.close()


def tops(rows: list[Row]) -> list[list[int]]:
    return [sorted((row.n for row in group), reverse=True) for group in by_key(rows, "k")]


def test_results_are_asked_for_a_window_that_ended_earlier(path: Path) -> None:
    with opened(path) as wh:
        history = History(wh, KINDS["zone"], 51)
        wh.add_query("each", "SELECT count(*) AS c FROM s", slide=SLOT)
        ends = []
        for _ in range(6):
            history.move(4)
            wh.run_due()
            ends.append(when(history.now))
        actual = wh.sql("SELECT _window_end FROM each [WINDOW 20 SECONDS OFFSET 10 SECONDS] ORDER BY 1").fetchall()
        assert [row[0] for row in actual] == ends[-3:-1]
        with pytest.raises(windrow.QueryError, match="windows go by _window_end"):
            wh.sql("SELECT * FROM each [SESSION 20 SECONDS]")
