"""Rows that are kept in DuckDB's own tables: the same answers at every slide, no name for them, and no memory beyond."""

import gc
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading

import duckdb
import pyarrow as pa
import pytest

import windrow
from shapes import BASE, DELTA, LAYOUTS, when
from windrow import QueryError
from windrow.indexes import columns
from windrow.queries import held, naming, planner, pool
from windrow.queries.statements import parse

KINDS = {
    "i8": pa.int8(), "u64": pa.uint64(), "i64": pa.int64(), "f": pa.float64(), "g": pa.float32(), "b": pa.bool_(),
    "d": pa.date32(), "s": pa.timestamp("s"), "ms": pa.timestamp("ms", "Europe/Paris"), "us": pa.timestamp("us", "UTC"),
    "ns": pa.timestamp("ns"), "nsz": pa.timestamp("ns", "UTC"),
}  # fmt: skip
SCHEMA = pa.schema(
    [("ts", pa.timestamp("us")), ("k", pa.int64()), ("n", pa.int64()), *KINDS.items(), ("t", pa.string()),
     ("h", pa.float16()), ("l", pa.list_(pa.int32())), ("dec", pa.decimal128(10, 2))]
)  # fmt: skip
SLOTS = 5
STATEMENTS = (
    "SELECT count(*) FROM {p}",
    "SELECT count(*), sum(n), min(ts), max(ts) FROM {p}",
    "SELECT k, count(*), sum(i64) FROM {p} GROUP BY k ORDER BY k",
    "SELECT n, i8, u64, i64, f, g, b FROM {p} ORDER BY n",
    "SELECT n, d, s, ms, us, ns, nsz, ts FROM {p} ORDER BY n",
    "SELECT n, f FROM {p} WHERE f > 1 OR g IS NULL ORDER BY f DESC, n",
    "SELECT a.n, b.n FROM {p} a JOIN {p} b ON a.n = b.n - 1 ORDER BY ALL",
    "SELECT n FROM {p} QUALIFY row_number() OVER (PARTITION BY k ORDER BY n DESC) = 1 ORDER BY n",
    "SELECT n + 0 AS m FROM {p} ORDER BY m DESC LIMIT 3",
    "SELECT n, t FROM {p} ORDER BY n",
    "SELECT * FROM {p} ORDER BY n",
    "SELECT p FROM {p} AS p ORDER BY p.n",
    "SELECT k, any_value(p.l) FROM {p} AS p GROUP BY k ORDER BY k, 2",
    "SELECT n, h, dec FROM {p} ORDER BY n",
    "SELECT count(*) FROM {p} NATURAL JOIN {p} AS q",
    "SELECT sum(c) FROM {p} AS p(a, b, c)",
    "SELECT sum(#2), max(#3) FROM {p}",
)
WINDOWS = ("", f"[WINDOW {2 * DELTA} MICROSECONDS]", f"[WINDOW {3 * DELTA + 7} MICROSECONDS]")


def rows(slot: int, chance: random.Random, count: int = 40) -> pa.Table:
    """Extreme values, nulls, and some rows of an earlier slot."""
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    for number in range(count):
        at = BASE + (slot - 1) * DELTA + chance.randint(1, DELTA) - (DELTA if chance.random() < 0.1 and slot > 1 else 0)
        row = {
            "ts": at, "k": chance.randint(0, 3), "n": slot * 1000 + number, "i8": chance.choice((-128, 127, None)),
            "u64": chance.choice((0, 2**64 - 1, None)), "i64": chance.choice((-(2**63), 2**63 - 1, 5, None)),
            "f": chance.choice((float("nan"), -0.0, float("inf"), 1.5, None)), "g": chance.choice((0.1, None)),
            "b": chance.choice((True, False, None)), "d": chance.choice((0, 20_000, None)),
            "t": chance.choice(("x", "y", None)), "h": chance.choice((1.5, None)), "l": chance.choice(([1, None], None)),
            "dec": None,
        } | {name: chance.choice((1_700_000_000, 1, None)) for name in ("s", "ms", "us", "ns", "nsz")}  # fmt: skip
        for name, value in row.items():
            columns[name].append(value)
    return pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def slid(wh: windrow.Warehouse, slot: int, chance: random.Random) -> None:
    wh.append("p", rows(slot, chance))
    wh.slide("p", to=when(BASE + slot * DELTA))


def made(path, layout="auto", **options) -> windrow.Warehouse:
    wh = windrow.open(path, clock=lambda: BASE + 100 * DELTA, **options)
    lifetime = f"{SLOTS * DELTA} microseconds"
    index = LAYOUTS[layout]
    wh.create_stream("p", SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime=lifetime, index=index)
    return wh


@pytest.fixture
def eager(monkeypatch):
    """Every window is put into a table at once, whatever is asked of it; gives the tables that were read."""
    monkeypatch.setattr(naming, "adds_up", lambda *_: True)
    monkeypatch.setattr(pool, "WORTH_ROWS", 1)
    monkeypatch.setattr(pool, "PATIENCE", 0)
    monkeypatch.setattr(pool, "PAYS", 0)
    found: list[pool.Found] = []
    real = pool.Pool.find

    def find(self, *arguments):
        given = real(self, *arguments)
        found.extend(() if given is None else [given])
        return given

    monkeypatch.setattr(pool.Pool, "find", find)
    return found


def plainly(ask, monkeypatch):
    """An answer without tables."""
    with monkeypatch.context() as patch:
        patch.setattr(pool, "WORTH_ROWS", 1 << 60)
        return ask()


@pytest.mark.parametrize("layout", ["auto", "round-robin-norebuild", "wave-expiry-rebuild", "adaptive-eager"])
def test_answers_are_the_same_at_every_slide(tmp_path, monkeypatch, eager, layout):
    chance = random.Random(3)
    with made(tmp_path / "w", layout) as wh:
        for slot in range(1, 13):
            slid(wh, slot, chance)
            for text, clause in chance.sample(list(itertools.product(STATEMENTS, WINDOWS)), 14):
                sql = text.format(p=f"p {clause}")
                wanted = plainly(lambda: wh.sql(sql).arrow(), monkeypatch)  # noqa: B023 - asked at once
                given = wh.sql(sql).arrow()
                assert given.schema == wanted.schema, sql
                assert str(given.to_pylist()) == str(wanted.to_pylist()), f"slide {slot}: {sql}"
        assert len(eager) > 20


def test_a_slide_is_followed_when_the_window_is_asked_for_often(tmp_path, monkeypatch, eager):
    monkeypatch.setattr(pool, "PATIENCE", 2)
    chance, text = random.Random(4), "SELECT count(*), sum(n), max(k) FROM p"
    changed: list[int] = []
    real = pool.Pool._change
    monkeypatch.setattr(pool.Pool, "_change", lambda *given: (changed.append(1), real(*given))[1])
    with made(tmp_path / "w", "round-robin-norebuild") as wh:
        for slot in range(1, 10):
            slid(wh, slot, chance)
            wanted = plainly(lambda: wh.sql(text).fetchall(), monkeypatch)
            eager.clear()
            assert [wh.sql(text).fetchall() for _ in range(6)] == [wanted] * 6
            assert len(eager) == 4
            assert len({found.sql for found in eager}) == 1
        assert len(changed) == 8


def test_a_table_that_does_not_pay_is_waited_for_longer(tmp_path, monkeypatch, eager):
    """Six statements a slide: two of them before the first table, then four, then it is too late for one."""
    monkeypatch.setattr(pool, "PATIENCE", 2)
    monkeypatch.setattr(pool, "PAYS", 8)
    chance, read = random.Random(4), []
    with made(tmp_path / "w", "round-robin-norebuild") as wh:
        for slot in range(1, 7):
            slid(wh, slot, chance)
            eager.clear()
            for _ in range(6):
                wh.sql("SELECT sum(n) FROM p").fetchall()
            read.append(len(eager))
    assert read == [4, 4, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT count(*), sum(n) FROM p", True),
        ("SELECT max(s) FROM (SELECT k, avg(n) AS s FROM p GROUP BY p.k)", True),
        ("SELECT count(*), max(n) FROM p", False),
        ("SELECT sum(n) FROM p WHERE k = 1", False),
        ("SELECT sum(n) FILTER (k = 1) FROM p", False),
        ("SELECT k % 2, sum(n) FROM p GROUP BY ALL", True),
        ("SELECT k % 2 AS g, sum(n) FROM p GROUP BY g", False),
        ("SELECT k % 2, sum(n) FROM p GROUP BY k % 2", False),
        ("SELECT sum(n) FROM p JOIN h USING (k)", False),
        ("SELECT sum(n) FROM (SELECT n FROM p WHERE k > 1)", False),
        ("WITH a AS (SELECT n FROM p) SELECT sum(n) FROM a", True),
    ],
)
def test_only_what_is_added_up_is_worth_a_table(text, wanted):
    assert naming.adds_up(parse(text), ("k", "n")) is wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT sum(n) FROM p", {"n"}),
        ("SELECT count(*) FROM p", set()),
        ('SELECT sum("N"), p.T FROM p AS q', {"n", "t"}),
        ("SELECT 1 AS n FROM p", {"n"}),
        ("SELECT q.n FROM p AS q JOIN p AS r USING (k)", {"n", "k"}),
        ("SELECT * FROM p", None),
        ("FROM p", None),
        ("TABLE p", None),
        ("SELECT count(*) FROM (FROM p)", None),
        ("SELECT COLUMNS('n') FROM p", None),
        ("SELECT p FROM p", None),
        ("SELECT q FROM p AS q", None),
        ("SELECT q.n FROM p AS q NATURAL JOIN h", None),
        ("SELECT b FROM p AS q(a, b)", None),
        ("SUMMARIZE p", None),
        ("DESCRIBE p", None),
        ("PIVOT p ON k IN (1, 2) USING sum(n)", None),
        ("UNPIVOT p ON n, k", None),
    ],
)
def test_columns_that_a_statement_can_read(text, wanted):
    assert naming.columns_named(parse(text), ("k", "n", "t")) == wanted
    assert naming.columns_named(parse(text), ("k", "n", "t", "Ä")) is None


def test_older_snapshots_and_unread_answers_keep_what_they_see(tmp_path, monkeypatch, eager):
    chance, text = random.Random(5), "SELECT n, k FROM p ORDER BY n"
    with made(tmp_path / "w") as wh:
        waiting, kept = [], []
        for slot in range(1, 12):
            slid(wh, slot, chance)
            wanted = plainly(lambda: wh.sql(text).fetchall(), monkeypatch)
            waiting.append((wh.sql(text), wanted))
            kept.append((wh.snapshot(), wanted))
            for snapshot, seen in kept:
                assert snapshot.sql(text).fetchall() == seen
            if slot % 4 == 0:
                for answer, seen in waiting:
                    assert answer.fetchall() == seen
                waiting.clear()
        for snapshot, seen in kept:
            assert snapshot.sql(text).fetchall() == seen
            snapshot.close()
        assert eager


def test_threads_ask_while_the_window_slides(tmp_path, eager):
    chance = random.Random(6)
    wrong: list[object] = []
    with made(tmp_path / "w") as wh:
        slid(wh, 1, chance)
        over = threading.Event()

        def ask() -> None:
            try:
                while not over.is_set():
                    with wh.snapshot() as snapshot:
                        seen = {snapshot.sql("SELECT count(*), sum(n), min(k) FROM p").fetchall()[0] for _ in range(3)}
                        seen.add(snapshot.sql("SELECT count(t) * 0 + count(*), sum(n), min(k) FROM p").fetchall()[0])
                        if len(seen) != 1:
                            wrong.append(seen)
            except Exception as error:  # noqa: BLE001 - shown below
                wrong.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for slot in range(2, 14):
            slid(wh, slot, chance)
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert eager


def test_rows_that_a_join_picks_are_noted_by_segment(tmp_path, monkeypatch, eager):
    monkeypatch.setattr(planner, "PROBE_RANGES", 0)
    chance = random.Random(14)
    keys = pa.table({"k": [1], "name": ["one"]})
    taken: list[int] = []
    real = columns._indices
    monkeypatch.setattr(columns, "_indices", lambda *given: (taken.append(1), real(*given))[1])
    texts = [
        f"SELECT {what} FROM p {clause} JOIN h USING (k) ORDER BY n"
        for what in ("n, name", "name, t, n", "p.t, n")
        for clause in WINDOWS
    ]
    with made(tmp_path / "w", "round-robin-norebuild") as wh:
        wh.put_table("h", keys)
        for slot in range(1, 10):
            slid(wh, slot, chance)
            for text in texts:
                wanted = wh.sql(text.replace("JOIN h USING (k)", ", h WHERE p.k + 0 = h.k")).fetchall()
                assert [wh.sql(text).fetchall() for _ in range(3)] == [wanted] * 3
                taken.clear()
                assert wh.sql(text).fetchall() == wanted
                assert not taken
            if slot == 5:
                keys = pa.table({"k": [2], "name": ["two"]})
                wh.put_table("h", keys)


@pytest.mark.parametrize("layout", ["auto", "round-robin-norebuild"])
def test_rows_that_a_probe_found_are_remembered_until_something_changes(tmp_path, monkeypatch, layout):
    """Of a window without an edge; of one with an edge rows die between statements, so nothing is remembered."""
    chance = random.Random(15)
    texts = [
        f"SELECT {what} FROM p {clause} WHERE k = {key} ORDER BY n"
        for what in ("n, ts, t, h, l", "n, i64, f")
        for clause in WINDOWS
        for key in (1, 9)
    ]
    opened: list[int] = []
    for name in ("read_found", "read_near"):
        real = getattr(planner, name)
        monkeypatch.setattr(planner, name, lambda *given, real=real: (opened.append(1), real(*given))[1])
    with made(tmp_path / "w", layout) as wh:
        for slot in range(1, 10):
            slid(wh, slot, chance)
            for text in texts:
                wanted = str(wh.sql(text.replace("k =", "k + 0 =")).fetchall())
                assert [str(wh.sql(text).fetchall()) for _ in range(3)] == [wanted] * 3
                opened.clear()
                assert str(wh.sql(text).fetchall()) == wanted
                if slot <= SLOTS and "[" not in text:
                    assert not opened


def test_another_warehouse_in_the_same_place_has_rows_of_its_own(tmp_path):
    text = "SELECT n, t FROM p WHERE k = 1 ORDER BY n"
    for seed in range(3):
        with made(tmp_path / "w") as wh:
            slid(wh, 1, random.Random(seed))
            wanted = wh.sql(text.replace("k =", "k + 0 =")).fetchall()
            assert [wh.sql(text).fetchall() for _ in range(4)] == [wanted] * 4
        shutil.rmtree(tmp_path / "w")


HOSTILE = (
    "FROM {table}",
    'SELECT * FROM "_pool"."{bare}"',
    "SELECT * FROM memory._pool.{bare}",
    "SELECT * FROM {bare}",
    "SELECT table_name FROM information_schema.tables",
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM query_table('_pool.{bare}')",
    "SELECT * FROM query('FROM _pool.{bare}')",
    "SHOW ALL TABLES",
    "DESCRIBE _pool.{bare}",
    "SUMMARIZE _pool.{bare}",
    "SELECT _segment FROM p",
    "SELECT rowid FROM p",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_statements_cannot_name_a_table(tmp_path, eager, text):
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(7))
        wh.sql("SELECT sum(n) FROM p").fetchall()
        table = eager[-1].sql.rpartition(" FROM ")[2]
        with pytest.raises(QueryError):
            wh.sql(text.format(table=table, bare=table.partition(".")[2])).fetchall()


def test_a_column_that_is_not_there_is_an_error_when_it_is_read():
    """Never wrong rows: this cannot happen unless a statement reads what it does not name."""
    kept = held.Kept("held", {"n": SCHEMA.field("n")})
    with duckdb.connect() as con:
        con.execute("CREATE TABLE held AS SELECT 1 AS _segment, 2 AS n")
        for field in SCHEMA:
            con.execute(f"CREATE OR REPLACE VIEW v AS SELECT {held.column_sql(field, kept)}, n AS m FROM held")
            assert con.execute("SELECT sum(m) FROM v").fetchone() == (2,)
            kind = con.execute(f'SELECT typeof("{field.name}") FROM v LIMIT 0').description
            assert kind
            if field.name != "n":
                for text in ('count("{}")', '"{}" IS NULL', '"{}"', 'any_value("{}")'):
                    with pytest.raises(duckdb.Error, match="not held"):
                        con.execute(f"SELECT {text.format(field.name)} FROM v").fetchall()


def test_tables_share_the_budget_and_go_with_the_warehouse(tmp_path, eager):
    with made(tmp_path / "w", cache_bytes=1 << 20) as wh:
        cache, chance = wh._store.columns, random.Random(8)
        for slot in range(1, 8):
            slid(wh, slot, chance)
            wh.sql("SELECT sum(n), max(f) FROM p").fetchall()
            assert 0 < cache.lent <= cache.budget // 2
            assert cache.bytes + cache.lent <= cache.budget
        answer = wh.sql("SELECT n FROM p")
    assert cache.lent > 0
    answer.close()
    assert cache.lent == 0


def test_tables_of_dropped_streams_go_when_another_is_asked_for(tmp_path, eager):
    wh, chance = made(tmp_path), random.Random(9)
    index, life = LAYOUTS["auto"], f"{SLOTS * DELTA} microseconds"
    for turn in range(1, 4):
        slid(wh, turn, chance)
        assert wh.sql("SELECT sum(n) FROM p").fetchall() == wh.sql("SELECT sum(n + 0) FROM p WHERE true").fetchall()
        tables = pool.pool_of(wh._store)
        assert len(eager) >= turn
        assert [asked.kept is not None for asked in tables._streams.values()] == [True]
        wh.drop_stream("p")
        wh.create_stream("p", SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime=life, index=index)
    wh.close()


def test_what_does_not_fit_is_read_as_before(tmp_path, eager):
    with made(tmp_path / "w", cache_bytes=8000) as wh:
        for slot in range(1, 8):
            slid(wh, slot, random.Random(slot))
            assert wh.sql("SELECT count(*) FROM p WHERE n > $1", [0]).fetchall()[0][0] > 0
            assert wh._store.columns.lent <= 4000


def test_a_table_that_cannot_be_filled_is_done_without(tmp_path, monkeypatch, eager):
    chance = random.Random(9)
    with made(tmp_path / "w") as wh:
        for slot in range(1, 6):
            slid(wh, slot, chance)
            with monkeypatch.context() as patch:
                if slot % 2:
                    patch.setattr(pool.Pool, "_insert", lambda *_: (_ for _ in ()).throw(OSError("no room")))
                wanted = plainly(lambda: wh.sql("SELECT sum(n), count(*) FROM p").fetchall(), monkeypatch)
                assert wh.sql("SELECT sum(n), count(*) FROM p").fetchall() == wanted
                assert wh.sql("SELECT sum(n), count(*) FROM p").fetchall() == wanted
        assert eager


def test_a_column_that_is_added_is_null_before(tmp_path, eager):
    chance = random.Random(10)
    with made(tmp_path / "w") as wh:
        slid(wh, 1, chance)
        assert wh.sql("SELECT count(n) FROM p").fetchall()[0][0] > 0
        wh.alter_stream("p", add_column=("later", pa.int64()))
        assert wh.sql("SELECT count(later), count(n) > 0 FROM p").fetchall() == [(0, True)]
        assert len(eager) == 2


def test_a_lifetime_that_is_changed_is_seen_at_once(tmp_path, monkeypatch, eager):
    chance, text = random.Random(13), "SELECT n, ts FROM p ORDER BY n"
    with made(tmp_path / "w") as wh:
        for slot in range(1, 10):
            slid(wh, slot, chance)
            wh.sql(text).fetchall()
            wh.alter_stream("p", lifetime=f"{(2 + slot * 3 % 5) * DELTA} us")
            wanted = plainly(lambda: wh.sql(text).fetchall(), monkeypatch)
            assert wh.sql(text).fetchall() == wanted
            assert wh.sql(text).fetchall() == wanted


def test_small_tables_are_read_from_memory_as_of_the_snapshot(tmp_path):
    """Types too: what Arrow and Parquet tell apart stays apart."""
    given = pa.table({field.name: rows(1, random.Random(11)).column(field.name) for field in SCHEMA})
    with windrow.open(tmp_path / "w") as wh:
        wh.put_table("h", given)
        first = wh.sql("FROM h").arrow()
        with wh.snapshot() as before:
            for _ in range(3):
                again = wh.sql("FROM h").arrow()
                assert again.schema == first.schema
                assert str(again.to_pylist()) == str(first.to_pylist())
            assert "_pool" in str(wh.explain("FROM h"))
            wh.put_table("h", given.slice(0, 2))
            assert [wh.sql("SELECT count(*) FROM h").fetchall() for _ in range(3)] == [[(2,)]] * 3
            assert before.sql("SELECT count(*) FROM h").fetchall() == [(40,)]
        for number in range(40):
            wh.put_table(f"t{number}", pa.table({"a": [number]}))
            assert [wh.sql(f"SELECT a FROM t{number}").fetchall() for _ in range(3)] == [[(number,)]] * 3
        assert len(pool.pool_of(wh._store)._tables) == 16
    assert wh._store.columns.lent == 0


def test_a_warehouse_that_was_dropped_unclosed_leaves_its_tables_to_nobody(tmp_path):
    """Its number in memory may be given to the next one, which has another DuckDB."""
    one = windrow.open(tmp_path / "one")
    one.put_table("h", pa.table({"a": [1]}))
    for _ in range(3):
        assert one.sql("SELECT a FROM h").fetchall() == [(1,)]
    stale = pool.pool_of(one._store)
    del one
    gc.collect()
    assert stale.is_of(None)
    with windrow.open(tmp_path / "two") as two:
        two.put_table("h", pa.table({"a": [2]}))
        pool._pools[os.getpid(), id(two._store)] = stale
        for _ in range(3):
            assert two.sql("SELECT a FROM h").fetchall() == [(2,)]
        assert pool.pool_of(two._store) is not stale
        assert stale not in pool._pools.values()
        assert not stale._tables


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_has_tables_of_its_own(tmp_path, eager):
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(12))
        wanted = wh.sql("SELECT sum(n) FROM p").fetchall()
        assert eager
    fork = f"""
import os, sys, windrow
from windrow.queries import pool
pool.WORTH_ROWS, pool.PATIENCE = 1, 0
wh = windrow.open({str(tmp_path / "w")!r}, read_only=True)
assert wh.sql("SELECT sum(n) FROM p").fetchall() == {wanted!r}
assert wh._store.columns.lent
child = os.fork()
if child == 0:
    with windrow.open({str(tmp_path / "w")!r}, read_only=True) as own:
        assert own.sql("SELECT sum(n) FROM p").fetchall() == {wanted!r}
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert wh.sql("SELECT sum(n) FROM p").fetchall() == {wanted!r}
wh.close()
"""
    done = subprocess.run([sys.executable, "-c", fork], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
