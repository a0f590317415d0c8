"""Strict views kept up from new rows: at every slide they are what plain DuckDB says of the rows that live.

Requests and replies come late, in any order, and inputs slide apart from each other; a view's clock is the least.
"""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

import plain_duckdb
import windrow
from strict_views import follow
from windrow.queries.views.storage import ViewSlide, match_copies
from windrow.queries.views.strict_update import StrictUpdate

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
        self.shown: dict[str, dict[dt.datetime | None, pa.Table]] = {}
        """What each view should have held, by its clock: a view above one that is ahead sees that as it was then."""
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

    def truth(self, sql: str, clock: dt.datetime) -> pa.Table:
        """The statement over the rows that live at `clock`, and over views as they were then, by plain DuckDB."""
        with plain_duckdb.connect() as connection:
            text = sql
            for name, length in (("a", 10), ("b", 5), ("c", 6)):
                text = text.replace(f"{name} [WINDOW {length} MINUTES]", f"{name}_window")
                for relation, life in ((name, LIVES[name]), (f"{name}_window", length)):
                    oldest = clock - dt.timedelta(minutes=life)
                    rows = [row for row in self.rows[name] if oldest < row["ts"] <= clock]
                    connection.register(relation, pa.Table.from_pylist(rows, SCHEMA))
            for view, by_clock in self.shown.items():
                if clock in by_clock:
                    connection.register(view, by_clock[clock])
            return connection.sql(text).to_arrow_table()

    def answer(self, view: str) -> list:
        columns = [f'"{column}"' for column in self.wh.sql(f"FROM {view}").columns if not column.startswith("_")]
        return sorted(self.wh.sql(f"SELECT {', '.join(columns)} FROM {view}").fetchall(), key=repr)

    def check(self, view: str) -> None:
        clock = self.wh.now(view)
        if clock is not None:
            table = self.shown.setdefault(view, {})[clock] = self.truth(self.views[view], clock)
            assert self.answer(view) == sort_rows(table), view


def sort_rows(table: pa.Table) -> list:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


VIEWS = {
    "v_anti": f"SELECT a.k, a.j FROM {A} a ANTI JOIN {B} b ON a.k = b.k",
    "v_anti_of_all": "SELECT * EXCLUDE (ts) FROM a ANTI JOIN b USING (k)",
    "v_not_exists": f"SELECT x.k + 1 AS n, x.word FROM {A} x WHERE NOT EXISTS (SELECT * FROM {B} y WHERE y.k = x.k AND y.j >= x.j) AND x.j < 2",
    "v_semi": f"SELECT k, word FROM {A} a SEMI JOIN {C} c USING (k)",
    "v_exists": f"SELECT a.k FROM {A} a WHERE EXISTS (SELECT 1 FROM {C} c WHERE a.k = c.k AND c.word = a.word)",
    "v_in": f"SELECT a.k, a.j FROM {A} a WHERE a.k IN (SELECT k FROM {B})",
    "v_not_in": f"SELECT a.k, a.j FROM {A} a WHERE a.k NOT IN (SELECT k FROM {B})",
    "v_not_in_word": f"SELECT word, j FROM {A} WHERE j > 0 AND word NOT IN (SELECT c.word FROM c)",
    "v_not_in_either": f"SELECT a.j FROM {A} a WHERE a.j NOT IN (SELECT j FROM {B}) AND a.j NOT IN (SELECT j FROM {C})",
    "v_two_columns": f"""SELECT a.k FROM {A} a ANTI JOIN {B} b ON a.k = b.k
        WHERE NOT EXISTS (SELECT 1 FROM {C} c WHERE c.k = a.k AND c.k = a.j)""",
    "v_full_plain": f"SELECT a.k, b.j FROM {A} a FULL JOIN {B} b ON a.k = b.k",
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
        for minute in range(1, 11):
            while waiting and (minute >= 4 or len(waiting) > len(VIEWS) // 2):  # the others are filled from old rows
                name = waiting.pop()
                view = world.create(name, VIEWS[name])
                assert not view.recomputed and view.pattern == "strict", name
            world.step(minute, apart=apart)
        assert not list(wh.check().problems)
        shown = {name: world.answer(name) for name in VIEWS}
    with windrow.open(world.path) as world.wh:
        assert {name: world.answer(name) for name in VIEWS} == shown


ABOVE = {
    "w_plain": "SELECT k, word FROM v WHERE j < 2",
    "w_join": f"SELECT v.j, c.word AS other FROM v JOIN {C} c ON v.k = c.k",
    "w_anti": f"SELECT c.k, c.j FROM {C} c ANTI JOIN v ON v.k = c.k",
    "w_not_in": f"SELECT c.k, c.j FROM {C} c WHERE c.j NOT IN (SELECT j FROM v)",
    "w_newest": "SELECT k, j FROM v [ROWS 2 PARTITION BY k]",
    "w_of_w": "SELECT word FROM w_plain EXCEPT SELECT word FROM c",
    "w_count": "SELECT j, count(*) AS n FROM v GROUP BY j",
}


@pytest.mark.parametrize("apart", [0.0, 0.4], ids=["together", "apart"])
def test_views_of_a_strict_view_are_their_statements_too(tmp_path, apart):
    """Rows that end early below end early above: v is computed from a and b, w from v, and from c; rows come late."""
    world = World(tmp_path / "w")
    with world.wh as wh:
        world.create("v", f"SELECT a.ts AS born, a.k, a.j, a.word FROM {A} a ANTI JOIN {B} b ON a.k = b.k")
        for name, sql in ABOVE.items():
            assert wh.create_view(name, sql).recomputed is (name == "w_count")
            world.views[name] = sql.replace(
                "v [ROWS 2 PARTITION BY k]",
                "(FROM v QUALIFY row_number() OVER (PARTITION BY k ORDER BY born DESC) <= 2)",
            )
        for minute in range(1, 12):
            world.step(minute, apart=apart)
        assert not list(wh.check().problems)


def test_rows_that_end_are_found_copy_by_copy():
    stored, wanted = (pa.table({"c": values}) for values in (["x", "y", "x", None, "x"], ["x", None, "x", "z"]))
    matches = [mask.tolist() for mask in match_copies(stored, wanted)]
    assert matches == [[True, False, True, True, False], [True, True, True, False]]


KINDS = {
    pa.bool_(): [True, False], pa.uint64(): [1 << 63, 7], pa.int8(): [-5, 7], pa.date32(): [dt.date(2026, 1, 1), dt.date(1969, 1, 1)],
    pa.time64("us"): [dt.time(1), dt.time(2)], pa.timestamp("ns"): [dt.datetime(2026, 1, 1), dt.datetime(1960, 1, 1)],
    pa.decimal128(9, 2): [Decimal("1.25"), Decimal("-3.00")], pa.large_string(): ["a", ""], pa.binary(): [b"a", b"\0"],
    pa.dictionary(pa.int32(), pa.string()): ["a", "b"],
}  # fmt: skip


def test_rows_are_compared_by_values_of_any_exact_type(path):
    """Also by nulls, and by two columns; rows come back when those of the other side expire."""
    fields = [pa.field(f"c{number}", kind) for number, kind in enumerate(KINDS)]
    schema = pa.schema([("ts", pa.timestamp("us")), *fields])
    with windrow.open(path) as wh:
        for name, life in (("p", 9), ("q", 2)):
            wh.create_stream(name, schema, time="ts", slide="1 minute", lifetime=f"{life} minutes")
        pairs = [(f"c{number}", f"c{(number + 1) % len(KINDS)}") for number in range(len(KINDS))]
        texts = [f"SELECT {one}, {two} FROM p EXCEPT ALL SELECT {one}, {two} FROM q" for one, two in pairs[::2]]
        texts += [f"SELECT p.{one}, q.{two} FROM p LEFT JOIN q ON p.{one} = q.{one}" for one, two in pairs]
        for number, sql in enumerate(texts):
            assert not wh.create_view(f"v{number}", sql).recomputed, sql
        for minute, which in enumerate([("p", 0), ("q", 1), ("q", 0), ("p", 2), ("q", 2), (None, 0), (None, 0)], 1):
            ts = (NOON + dt.timedelta(minutes=minute - 0.5)).replace(tzinfo=None)
            values = [[*choices, None][which[1]] for choices in KINDS.values()]
            for name in "pq":
                if name == which[0]:
                    columns = [pa.array([value], field.type) for value, field in zip(values, fields, strict=True)]
                    wh.append(name, pa.table([pa.array([ts], schema.field("ts").type), *columns], schema=schema))
                wh.slide(name, to=at(minute))
            for number, sql in enumerate(texts):
                shown = [f'"{name}"' for name in wh.sql(f"FROM v{number}").columns if not name.startswith("_")]
                answer = wh.sql(f"SELECT {', '.join(shown)} FROM v{number}").fetchall()
                assert sorted(answer, key=repr) == sorted(wh.sql(sql).fetchall(), key=repr), (minute, sql)


def test_dictionaries_of_all_segments_may_have_more_values_than_those_of_one(path):
    """Indices of eight bits number 128 values; three files of 60 have more."""
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("d", kind), ("v", pa.int64())])
    anti = "SELECT d, v FROM p WHERE d NOT IN (SELECT d FROM q)"
    with windrow.open(path) as wh:
        for name in "pq":
            wh.create_stream(name, schema, time="ts", key="d", slide="1 minute", lifetime="20 minutes")
        assert not wh.create_view("lonely", anti).recomputed
        for minute in range(1, 5):
            words = {"p": range(60 * minute, 60 * minute + 60), "q": range(0, 200, 3) if minute == 4 else range(1)}
            for name, numbers in words.items():
                texts = pa.array([f"k{number}" for number in numbers]).dictionary_encode().cast(kind)
                columns = [pa.array([at(minute - 0.5)] * len(texts), schema.field("ts").type), texts, list(numbers)]
                wh.append(name, pa.table(columns, schema=schema))
                wh.slide(name, to=at(minute))
            answer = wh.sql("SELECT d, v FROM lonely").fetchall()
            assert sorted(answer) == sorted(wh.sql(anti).fetchall()) and answer, minute


def test_results_with_lists_are_recomputed(tmp_path):
    world = World(tmp_path / "w")
    with world.wh as wh:
        sql = f"SELECT [a.k, a.j] AS both FROM {A} a ANTI JOIN {B} b ON a.k = b.k"
        assert world.create("v", sql).recomputed
        assert wh.create_view("forced", VIEWS["v_anti"], recompute=True).recomputed
        for minute in range(1, 4):
            world.step(minute)
        assert world.answer("forced") == sort_rows(world.truth(VIEWS["v_anti"], wh.now("forced")))


def test_old_snapshots_and_backups_see_the_rows_of_their_commit(tmp_path):
    world = World(tmp_path / "w", keys=4)
    with world.wh as wh:
        world.create("v", VIEWS["v_left"], key="k")
        for minute in range(1, 8):
            world.step(minute, count=8)
        shown = world.answer("v")
        with wh.snapshot() as snapshot:
            for minute in range(8, 11):
                world.step(minute, count=8)
            assert sorted(snapshot.sql("SELECT k, j, word FROM v").fetchall(), key=repr) == shown
        shown = world.answer("v")
        wh.backup(tmp_path / "copy")
        wh.gc()
        assert world.answer("v") == shown
    windrow.restore(tmp_path / "copy", tmp_path / "again")
    with windrow.open(tmp_path / "again") as world.wh:
        assert world.answer("v") == shown
        assert not list(world.wh.check().problems)


def test_erasing_rows_below_fills_a_strict_view_anew(tmp_path):
    world = World(tmp_path / "w", keys=3)
    with world.wh as wh:
        world.create("v", VIEWS["v_anti"])
        for minute in range(1, 7):
            world.step(minute, count=6)
        wh.erase("b", keys=[1])
        world.rows["b"] = [row for row in world.rows["b"] if row["k"] != 1]
        world.check("v")
        world.step(7)


def test_repairing_a_stream_below_fills_a_strict_view_anew(tmp_path):
    """Rows of b that are lost have ended others before; nobody knows which, so the view is what the rest gives."""
    world = World(tmp_path / "w", keys=3)
    with world.wh as wh:
        world.create("v", VIEWS["v_left"])
        world.create("w", VIEWS["v_not_in"])
        for minute in range(1, 7):
            world.step(minute, count=6)
        world.send("b", 7, 5)
        world.slide("b", 7)
        world.slide("a", 7)
        (file,) = wh.sql(
            "SELECT file FROM windrow.segments WHERE stream = 'b' ORDER BY max_time DESC LIMIT 1"
        ).fetchone()
    (world.path / file).unlink()
    with windrow.open(world.path) as world.wh:
        assert world.wh.repair("b", give_up=True).rows_lost
        left = {ts for batch in world.wh.scan("b", columns=["ts"]) for ts in batch.column(0).to_pylist()}
        world.rows["b"] = [row for row in world.rows["b"] if row["ts"] in left]
        world.check("v")
        world.check("w")
        world.step(8)


@pytest.mark.parametrize(
    ("sql", "came"),
    [
        ("SELECT p.k, p.word, q.j FROM p LEFT JOIN q ON p.k = q.k", 10),
        ("SELECT p.k, p.word, q.j FROM p LEFT JOIN q ON p.k = q.k AND q.j < 100", 10),
        ("SELECT p.k, p.word FROM p WHERE p.k NOT IN (SELECT k FROM q)", 0),
    ],
    ids=["plain", "by statement", "not in"],
)
def test_the_work_of_a_slide_follows_the_change_and_not_the_window(tmp_path, monkeypatch, sql, came):
    """The same new rows beside ten times as many old ones: as many rows are computed with, written and ended."""

    def work(minutes: int) -> tuple[int, ...]:
        world, counts = World(tmp_path / str(minutes), seed=5), [0, 0]
        compute_changes, end_rows = StrictUpdate._compute_changes, ViewSlide.end_rows

        def count_rows(update: StrictUpdate, changed) -> pa.Table:
            counts[0] += sum(map(len, changed.values()))
            return compute_changes(update, changed)

        def count_ended(view: ViewSlide, endings) -> None:
            counts[1] += sum(len(ending.rows) for ending in endings)
            end_rows(view, endings)

        with world.wh as wh:
            for name in "pq":
                wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 day")
            wh.create_view("v", sql, key="k")
            for minute in range(1, minutes + 1):
                for name in "pq":
                    keys = [100 * minute + n for n in range(50)]
                    rows = [
                        {"ts": at(minute - 0.5), "k": k, "j": 1, "word": "x"}
                        for k in keys[len(keys) // 2 * (name == "q") :]
                    ]
                    wh.append(name, pa.Table.from_pylist(rows, SCHEMA))
                    wh.slide(name, to=at(minute))
            with monkeypatch.context() as patch:
                patch.setattr(StrictUpdate, "_compute_changes", count_rows)
                patch.setattr(ViewSlide, "end_rows", count_ended)
                rows = [{"ts": at(minutes + 0.5), "k": 100 * minutes + n, "j": 2, "word": "y"} for n in range(10)]
                wh.append("q", pa.Table.from_pylist(rows, SCHEMA))
                wh.slide("p", to=at(minutes + 1))
                wh.slide("q", to=at(minutes + 1))
            return (*counts, wh.stream("v").last.inserted)

    assert work(30) == work(3) == (20, 10, came)


HISTORIES = {
    "absent": "SELECT k, x FROM {a} WHERE k NOT IN (SELECT k FROM {b:1})",
    "odd": "SELECT w, x FROM {a:3} WHERE x NOT IN (SELECT x FROM {b:2}) AND w <> 'c'",
    "other": "SELECT p.w, q.x FROM {a} p LEFT JOIN {b:3} q ON p.k = q.k",
    "either": "SELECT p.k, q.w FROM {b} p FULL JOIN {a:2} q ON p.k = q.k AND p.x = q.x",
    "less": "SELECT x FROM {a:4} EXCEPT ALL SELECT x FROM {b}",
}


@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
def test_any_lifetimes_layouts_and_late_rows(path, variable):
    """Nulls, rows of different lives, slides of several slots, other layouts, warehouses that are opened again."""
    follow(path, HISTORIES, random.randrange(1 << 30), 20, variable=variable)


@pytest.mark.soak
@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
@pytest.mark.parametrize("seed", range(100, 130))
def test_any_history(path, seed, variable):
    follow(path, HISTORIES, seed, 60, variable=variable)
