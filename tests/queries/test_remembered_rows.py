"""What is asked again and again: rows that are remembered, older snapshots and tables give the same at every slide."""

import os
import random
import shutil
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, LAYOUTS, when
from windrow.indexes import column_cache as columns
from windrow.queries.planner import planner

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


def made(path, layout="auto") -> windrow.Warehouse:
    wh = windrow.open(path, clock=lambda: BASE + 100 * DELTA)
    lifetime = f"{SLOTS * DELTA} microseconds"
    index = LAYOUTS[layout]
    wh.create_stream("p", SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime=lifetime, index=index)
    return wh


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
            if slot % 4 == 0:
                for answer, seen in waiting:
                    assert answer.fetchall() == seen
                waiting.clear()
        for snapshot, seen in kept:
            assert snapshot.sql(text).fetchall() == seen
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


def test_rows_that_a_join_picks_are_noted_by_segment(tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "PROBE_RANGES", 0)
    chance = random.Random(14)
    keys = pa.table({"k": [1], "name": ["one"]})
    taken: list[int] = []
    real = columns._range_indices
    monkeypatch.setattr(columns, "_range_indices", lambda *given: (taken.append(1), real(*given))[1])
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
    for name in ("read_matching", "read_candidates"):
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


def test_a_column_that_is_added_is_null_before(tmp_path):
    chance = random.Random(10)
    with made(tmp_path / "w") as wh:
        slid(wh, 1, chance)
        assert wh.sql("SELECT count(n) FROM p").fetchall()[0][0] > 0
        wh.alter_stream("p", add_column=("later", pa.int64()))
        assert wh.sql("SELECT count(later), count(n) > 0 FROM p").fetchall() == [(0, True)]


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
