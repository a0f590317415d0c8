"""Rows that are kept in memory give the same as files at every slide, to every snapshot, and stay in their budget."""

import base64
import os
import random
import shutil
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

import row_caches
import windrow
from sample_streams import BASE, DELTA, LAYOUTS, when
from windrow.queries.planner import row_cache

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


def rows(slot: int, chance: random.Random, count: int = 40) -> pa.Table:
    """Extreme values, nulls, and some rows of an earlier slot."""
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    for number in range(count):
        instant = (
            BASE + (slot - 1) * DELTA + chance.randint(1, DELTA) - (DELTA if chance.random() < 0.1 and slot > 1 else 0)
        )
        row = {
            "ts": instant, "k": chance.randint(0, 3), "n": slot * 1000 + number, "i8": chance.choice((-128, 127, None)),
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
    wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA, **options)
    lifetime = f"{SLOTS * DELTA} microseconds"
    index = LAYOUTS[layout]
    wh.create_stream("p", SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime=lifetime, index=index)
    return wh


def test_a_statement_of_a_daemon_is_not_filled_by_one_which_would_abort_the_process_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(row_cache, "_REST_SECONDS", 2)
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(1))
        asking = threading.Thread(target=lambda: wh.sql("SELECT sum(n) FROM p").fetchall(), daemon=True)
        asking.start()
        asking.join()
        assert [thread.daemon for thread in threading.enumerate() if thread.name == "windrow-rows"] == [False]


def test_older_snapshots_and_unread_answers_keep_what_they_see(tmp_path):
    chance, text = random.Random(5), "SELECT n, k FROM p ORDER BY n"
    with made(tmp_path / "w") as wh:
        waiting, kept = [], []
        for slot in range(1, 12):
            slid(wh, slot, chance)
            wanted = wh.sql(text).fetchall()
            waiting.append((wh.sql(text), wanted))
            kept.append((wh.snapshot(), wanted))
            for snapshot, seen in kept:
                assert snapshot.sql(text).fetchall() == seen
            row_caches.settle(wh)
            if slot % 4 == 0:
                for answer, seen in waiting:
                    assert answer.fetchall() == seen
                waiting.clear()
        for snapshot, seen in kept:
            assert snapshot.sql(text).fetchall() == seen
            snapshot.close()


def test_rows_that_have_died_are_left_out_of_memory_and_older_snapshots_still_see_them(tmp_path):
    """Lives of half a slot to eight slots: a table is made anew when a third of its rows has died."""
    chance = random.Random(8)
    schema = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("n", pa.int64()), ("exp", pa.timestamp("us"))])
    number, given = 0, list[tuple[int, int, int]]()
    with windrow.open(tmp_path / "w", clock=lambda: BASE + 1000 * DELTA) as wh:
        life = f"{8 * DELTA} microseconds"
        wh.create_stream(
            "p", schema, time="ts", key="k", slide=f"{DELTA} microseconds", expires="exp", max_lifetime=life
        )
        kept = []
        for slot in range(1, 20):
            came = []
            for _ in range(60):
                number += 1
                ts = BASE + (slot - 1) * DELTA + chance.randint(1, DELTA)
                came.append((ts, number, ts + int(DELTA * chance.choice((0.5, 1, 1, 2, 8)))))
            given += came
            columns = (
                [ts for ts, _, _ in came],
                [n % 3 for _, n, _ in came],
                *zip(*[row[1:] for row in came], strict=True),
            )
            wh.append("p", pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema))
            wh.slide("p", to=when(BASE + slot * DELTA))
            live = sorted(n for _, n, exp in given if exp > BASE + slot * DELTA)
            if slot % 4 == 1:
                kept.append((wh.snapshot(), live))
            asked = "SELECT n FROM p ORDER BY n"
            for _ in range(2):
                assert [n for (n,) in wh.sql(asked).fetchall()] == live
                row_caches.settle(wh)
            assert row_caches.path_of(wh, asked) == "memory"
            for snapshot, seen in kept:
                assert [n for (n,) in snapshot.sql(asked).fetchall()] == seen
            assert len(live) <= row_caches.find_cache(wh).rows <= 1.6 * len(live)
        for snapshot, _ in kept:
            snapshot.close()


def test_threads_ask_while_the_window_slides(tmp_path):
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


def test_another_warehouse_in_the_same_place_has_rows_of_its_own(tmp_path):
    text = "SELECT n, t FROM p WHERE k = 1 ORDER BY n"
    for seed in range(3):
        with made(tmp_path / "w") as wh:
            slid(wh, 1, random.Random(seed))
            wanted = wh.sql(text.replace("k =", "k + 0 =")).fetchall()
            assert [wh.sql(text).fetchall() for _ in range(4)] == [wanted] * 4
        shutil.rmtree(tmp_path / "w")


def test_a_column_that_is_added_is_null_before(tmp_path):
    chance = random.Random(10)
    with made(tmp_path / "w") as wh:
        slid(wh, 1, chance)
        assert wh.sql("SELECT count(n) FROM p").fetchall()[0][0] > 0
        row_caches.settle(wh)
        wh.alter_stream("p", add_column=("later", pa.int64()))
        for path in ("scan", "memory"):
            assert row_caches.path_of(wh, "SELECT count(later) FROM p") == path
            assert wh.sql("SELECT count(later), count(n) > 0 FROM p").fetchall() == [(0, True)]
            row_caches.settle(wh)


def test_tables_are_read_again_as_of_the_snapshot(tmp_path):
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
            wh.put_table("h", given.slice(0, 2))
            assert [wh.sql("SELECT count(*) FROM h").fetchall() for _ in range(3)] == [[(2,)]] * 3
            assert before.sql("SELECT count(*) FROM h").fetchall() == [(40,)]
        for number in range(40):
            wh.put_table(f"t{number}", pa.table({"a": [number]}))
            assert [wh.sql(f"SELECT a FROM t{number}").fetchall() for _ in range(3)] == [[(number,)]] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_opens_the_warehouse_that_its_parent_reads(tmp_path):
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(12))
        wanted = wh.sql("SELECT sum(n) FROM p").fetchall()
    fork = f"""
import os, sys, windrow
wh = windrow.open({str(tmp_path / "w")!r}, read_only=True)
assert wh.sql("SELECT sum(n) FROM p").fetchall() == {wanted!r}
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


def test_every_type_is_the_same_from_memory(tmp_path):
    with made(tmp_path / "w") as wh:
        for slot in range(1, 4):
            slid(wh, slot, random.Random(slot))
        columns = [f"SELECT n, {name} FROM p ORDER BY n" for name in SCHEMA.names]
        first = [wh.sql(text).arrow() for text in columns]
        row_caches.settle(wh)
        for text, before in zip(columns, first, strict=True):
            assert row_caches.path_of(wh, text) == "memory"
            after = wh.sql(text).arrow()
            assert after.schema == before.schema
            assert str(after.to_pylist()) == str(before.to_pylist())


@pytest.mark.parametrize(
    ("layout", "slides"), [("auto", 50), pytest.param("round-robin-norebuild", 500, marks=pytest.mark.soak)]
)
def test_many_slides_with_readers_that_overlap_stay_in_bounds(tmp_path, layout, slides):
    """An answer is always open when the next one is asked, so that no table is ever without a reader."""
    chance, most = random.Random(3), 0
    with made(tmp_path / "w", layout) as wh:
        cache, open_answer = row_caches.find_cache(wh), None
        for slot in range(1, slides):
            wh.append("p", rows(slot, chance, 3))
            wh.slide("p", to=when(BASE + slot * DELTA))
            following = wh.sql("SELECT k, sum(n), count(*) FROM p GROUP BY k ORDER BY k")
            if slot % 10 == 0:
                plain = wh.snapshot().scan("p").read_all().group_by("k").aggregate([("n", "sum"), ("n", "count")])
                wanted = sorted(
                    zip(*(plain.column(name).to_pylist() for name in ("k", "n_sum", "n_count")), strict=True)
                )
                assert wh.sql("SELECT k, sum(n), count(*) FROM p GROUP BY k ORDER BY k").fetchall() == wanted
                row_caches.settle(wh)
                most = max(most, cache.bytes)
                assert cache.rows <= 3 * wh.stream("p").stored_rows + 3 * 10
            if open_answer is not None:
                open_answer.fetchall()
            open_answer = following
        row_caches.settle(wh)
        # A table that an answer still reads stands beside its successor, and each takes whole blocks of 256 kB.
        assert max(cache.bytes, most) <= 4 << 20
        assert len(cache._retired) <= 1


def test_a_window_that_does_not_fit_is_read_from_files(tmp_path):
    with made(tmp_path / "w", cache_bytes=64 << 10) as wh:
        for slot in range(1, 4):
            slid(wh, slot, random.Random(slot))
        wanted = wh.sql("SELECT * FROM p ORDER BY n").arrow()
        row_caches.settle(wh)
        cache = row_caches.find_cache(wh)
        assert cache.bytes <= 64 << 10
        assert row_caches.path_of(wh, "SELECT * FROM p") == "scan"
        assert str(wh.sql("SELECT * FROM p ORDER BY n").arrow().to_pylist()) == str(wanted.to_pylist())


def table_columns(wh: windrow.Warehouse) -> dict[str, str]:
    """The columns of the only table in memory, and how their values are compressed."""
    cache = row_caches.find_cache(wh)
    (table,) = cache._tables.values()
    sql = (
        f"SELECT column_name, compression FROM pragma_storage_info('{table.sql_name}') WHERE segment_type <> 'VALIDITY'"
    )
    return {name: compression for name, compression in cache._run(sql) if name in table.columns}


def test_where_not_all_columns_fit_those_that_are_asked_for_are_kept(tmp_path):
    """The texts take little in the files, and much more in memory."""
    count, schema = (
        4000,
        pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("n", pa.int64()), ("t", pa.string())]),
    )
    words = [
        f"{number} {number * 7919 % 4001} " + "a phrase that comes again and again, " * 40 for number in range(count)
    ]
    given = [[BASE + 1 + k for k in range(count)], [k % 5 for k in range(count)], list(range(count)), words]
    with windrow.open(tmp_path / "w", clock=lambda: BASE + 1000 * DELTA, cache_bytes=1 << 20) as wh:
        wh.create_stream("p", schema, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime="1 hour")
        wh.append("p", pa.table([pa.array(c, f.type) for c, f in zip(given, schema, strict=True)], schema=schema))
        wh.slide("p", to=when(BASE + DELTA))
        for _ in range(2):
            assert wh.sql("SELECT sum(n) FROM p").fetchall() == [(sum(range(count)),)]
            row_caches.settle(wh)
        assert row_caches.path_of(wh, "SELECT sum(n) FROM p") == "memory"
        assert table_columns(wh).keys() == {"ts", "n"}
        assert row_caches.find_cache(wh).bytes <= 1 << 20
        assert wh.sql("SELECT sum(length(t)) FROM p").fetchall() == [(sum(map(len, words)),)]


def test_all_columns_are_kept_at_once_and_texts_that_do_not_compress_as_they_are(tmp_path):
    chance, count = random.Random(20), 130_000
    schema = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("few", pa.string()), ("many", pa.string())])
    many = [base64.b64encode(chance.randbytes(18)).decode() for _ in range(count)]
    given = [[BASE + 1 + k for k in range(count)], [k % 5 for k in range(count)], ["x", "y"] * (count // 2), many]
    with windrow.open(tmp_path / "w", clock=lambda: BASE + 1000 * DELTA) as wh:
        wh.create_stream("p", schema, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime="1 hour")
        wh.append("p", pa.table([pa.array(c, f.type) for c, f in zip(given, schema, strict=True)], schema=schema))
        wh.slide("p", to=when(BASE + DELTA))
        texts = "SELECT count(DISTINCT few), count(DISTINCT many), max(many) FROM p"
        wanted = [(2, len(set(many)), max(many))]
        assert wh.sql(texts).fetchall() == wanted
        row_caches.settle(wh)
        assert row_caches.path_of(wh, "SELECT sum(k) FROM p") == "memory", "which no statement has asked for"
        assert wh.sql(texts).fetchall() == wanted
        compression = table_columns(wh)
        assert compression["many"] == "Uncompressed"
        assert compression["few"] != "Uncompressed"


def test_a_statement_that_was_only_planned_gives_its_cursor_back(tmp_path):
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(4))
        wh.explain("SELECT sum(n) FROM p")
        pool = wh._store.shared.attached("cursor pool", lambda: None)
        (first,) = pool._idle
        wh.explain("SELECT sum(n) FROM p")
        assert [each is first for each in pool._idle] == [True]
        assert wh.sql("SELECT sum(n), count(*) FROM p").fetchall()[0][1] == 40


def test_tables_that_were_not_read_for_longest_make_room(tmp_path, monkeypatch):
    with made(tmp_path / "w", cache_bytes=1 << 20) as wh:
        monkeypatch.setattr(row_cache, "_STEP_BYTES", 100 << 10)
        names = [f"p{number}" for number in range(12)]
        for name in names:
            wh.create_stream(name, SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime="1 hour")
            wh.append(name, rows(1, random.Random(1)))
            wh.slide(name, to=when(BASE + DELTA))
            assert wh.sql(f"SELECT count(*), count(t) FROM {name}").fetchall()[0][0] == 40
            row_caches.settle(wh)
            assert row_caches.find_cache(wh).bytes <= 1 << 20
        paths = [row_caches.path_of(wh, f"SELECT count(t) FROM {name}") for name in names]
        assert paths[-1] == "memory"
        assert paths[0] == "scan"


def test_handles_share_what_is_in_memory_and_the_last_one_ends_the_filling(tmp_path):
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(4))
        with windrow.open(tmp_path / "w", read_only=True) as other:
            assert other.sql("SELECT sum(n) FROM p").fetchall() == wh.sql("SELECT sum(n) FROM p").fetchall()
            row_caches.settle(other)
            assert row_caches.path_of(wh, "SELECT sum(n) FROM p") == "memory"
            assert wh.status().memory_bytes > 0
            assert wh.status().memory_rows == 40
        wh.sql("SELECT sum(n), count(t) FROM p").fetchall()
    assert not [thread for thread in threading.enumerate() if thread.name == "windrow-rows"]


def test_a_memory_limit_has_an_engine_of_its_own(tmp_path):
    with made(tmp_path / "w") as wh:
        slid(wh, 1, random.Random(4))
        wanted = wh.sql("SELECT sum(n) FROM p").fetchall()
        row_caches.settle(wh)
        assert wh.sql("SELECT sum(n) FROM p", memory_limit="200MB").fetchall() == wanted


def test_a_file_that_went_before_it_was_kept_harms_nothing(tmp_path, monkeypatch):
    with made(tmp_path / "w") as wh:
        monkeypatch.setattr(row_cache, "_REST_SECONDS", 0.2)
        slid(wh, 1, random.Random(4))
        wh.sql("SELECT sum(n) FROM p").fetchall()
        for slot in (8, 9):
            wh.slide("p", to=when(BASE + slot * DELTA))
        assert not list((tmp_path / "w").rglob("*.parquet"))
        row_caches.settle(wh)
        assert wh.sql("SELECT count(*) FROM p").fetchall() == [(0,)]


def test_files_have_only_encodings_that_duckdb_reads(tmp_path):
    """Of fixed-length values, as decimals are stored, DuckDB reads no split bytes."""
    count, schema = 3000, pa.schema([("ts", pa.timestamp("us")), ("d", pa.decimal128(12, 2)), ("b", pa.binary(16))])
    given = [[BASE + k for k in range(1, count + 1)], list(range(count)), [bytes([k % 251]) * 16 for k in range(count)]]
    with windrow.open(tmp_path / "w", clock=lambda: BASE + 1000 * DELTA, cache_bytes=0) as wh:
        wh.create_stream("f", schema, time="ts", slide=f"{DELTA} microseconds", lifetime="1 hour")
        wh.append("f", pa.table([pa.array(c, f.type) for c, f in zip(given, schema, strict=True)], schema=schema))
        wh.slide("f", to=when(BASE + DELTA))
        assert wh.sql("SELECT sum(d), count(DISTINCT b) FROM f").fetchall() == [(sum(range(count)), 251)]
