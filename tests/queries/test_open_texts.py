"""Long texts that lie open in their files are not copied into the column cache: a window may be larger than its budget.

Every answer is compared with plain Python, slide after slide, with nulls and empty texts among the long ones.
"""

import datetime as dt
import random
import string
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recorded_history
import windrow
from sample_streams import BASE, DELTA, US, when

S = "s"
SLOT = dt.timedelta(microseconds=DELTA)
BUDGET = 256 << 10
KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def opened(path: Path, kind: pa.DataType, cache_bytes: int = BUDGET) -> windrow.Warehouse:
    """A warehouse whose segments have several row groups each."""
    wh = windrow.open(path, clock=lambda: recorded_history.CLOCK, cache_bytes=cache_bytes)
    index = windrow.Index("round-robin", 2, 2, row_group_bytes=64 << 10)
    schema = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("text", kind)])
    wh.create_stream(S, schema, time="ts", expires="exp", key="k", slide=SLOT, max_lifetime=4 * SLOT, index=index)
    return wh


def batch(choice: random.Random, now: int, count: int, kind: pa.DataType) -> list[dict[str, Any]]:
    rows = []
    for _ in range(count):
        ts = now - choice.randint(0, DELTA - 1)
        long = "".join(choice.choices(string.printable, k=choice.randint(300, 900)))
        text: Any = choice.choices((None, "", long), (1, 1, 30))[0]
        if text is not None and "binary" in str(kind):
            text = text.encode()
        rows.append({"ts": ts, "exp": ts + choice.randint(1, 4 * DELTA), "k": choice.randint(0, 5), "text": text})
    return rows


def taken(wh: windrow.Warehouse, rows: list[dict[str, Any]], kind: pa.DataType, now: int) -> None:
    columns = [pa.array([row[name] for row in rows], pa.int64()).view(US) for name in ("ts", "exp")]
    columns += [pa.array([row["k"] for row in rows], pa.int64()), pa.array([row["text"] for row in rows], kind)]
    wh.append(S, pa.table(columns, names=["ts", "exp", "k", "text"]))
    wh.slide(S, to=when(now))


def path_of(wh: windrow.Warehouse, sql: str) -> str:
    (pruned,) = wh.explain(sql).relations
    return pruned.path


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_window_of_open_texts_is_answered_from_memory_beyond_the_budget(path: Path, kind: pa.DataType) -> None:
    choice, rows = random.Random(5), list[dict[str, Any]]()
    with opened(path, kind) as wh:
        for turn in range(1, 10):
            now = BASE + turn * DELTA
            fresh = batch(choice, now, 400, kind)
            taken(wh, fresh, kind, now)
            rows += fresh
            live = [row for row in rows if row["exp"] > now]
            texts = [row["text"] for row in live if row["text"] is not None]
            for _ in range(2):
                found = wh.sql(f"SELECT count(*), count(text), min(text), max(text) FROM {S}").fetchall()
                assert found == [(len(live), len(texts), min(texts), max(texts))]
            length = "octet_length" if "binary" in str(kind) else "strlen"
            by_key: dict[int, list[int]] = {}
            for row in live:
                by_key.setdefault(row["k"], []).append(len(row["text"] or ""))
            summed = wh.sql(f"SELECT k, count(*), sum({length}(text)) FROM {S} GROUP BY k ORDER BY k").fetchall()
            assert summed == [(k, len(own), sum(own)) for k, own in sorted(by_key.items())]
            all_of_it = wh.sql(f"SELECT k, text FROM {S}").fetchall()
            assert sorted(all_of_it, key=str) == sorted(((row["k"], row["text"]) for row in live), key=str)
            stored = wh.stream(S).bytes
            assert path_of(wh, f"SELECT max(text) FROM {S}") == "columns"
            assert wh._store.columns.bytes <= BUDGET
        assert stored > 2 * BUDGET


def test_a_window_that_is_many_times_the_budget_is_left_to_files(path: Path) -> None:
    with opened(path, pa.string(), cache_bytes=64 << 10) as wh:
        rows = batch(random.Random(3), BASE + DELTA, 1500, pa.string())
        taken(wh, rows, pa.string(), BASE + DELTA)
        assert path_of(wh, f"SELECT max(text) FROM {S}") == "scan"
        live = [row for row in rows if row["exp"] > BASE + DELTA]
        greatest = max(row["text"] for row in live if row["text"] is not None)
        assert wh.sql(f"SELECT count(*), max(text) FROM {S}").fetchall() == [(len(live), greatest)]


def test_texts_that_are_compressed_take_the_room_that_they_have(path: Path) -> None:
    with opened(path, pa.string(), cache_bytes=64 << 10) as wh:
        rows = batch(random.Random(3), BASE + DELTA, 600, pa.string())
        for row in rows:
            row["text"] = None if row["text"] is None else f"{row['k'] + row['ts']}" * 60
        taken(wh, rows, pa.string(), BASE + DELTA)
        columns, stored = wh._store.columns, wh.stream(S)
        assert path_of(wh, f"SELECT max(text) FROM {S}") == ("columns" if stored.bytes <= columns.budget else "scan")
        live = [row["text"] for row in rows if row["exp"] > BASE + DELTA and row["text"] is not None]
        assert wh.sql(f"SELECT max(text) FROM {S}").fetchall() == [(max(live),)]
        assert columns.bytes <= columns.budget


def test_answers_outlive_the_files_that_they_came_from(path: Path) -> None:
    with opened(path, pa.string(), cache_bytes=1 << 20) as wh:
        rows = batch(random.Random(8), BASE + DELTA, 800, pa.string())
        taken(wh, rows, pa.string(), BASE + DELTA)
        live = sorted(row["text"] or "" for row in rows if row["exp"] > BASE + DELTA)
        before = wh.sql(f"SELECT text FROM {S}").arrow()
        for turn in (8, 9):
            wh.slide(S, to=when(BASE + turn * DELTA))
        assert not list(path.rglob("*.parquet"))
        assert sorted(text or "" for text in before.column("text").to_pylist()) == live
        assert wh.sql(f"SELECT count(*) FROM {S}").fetchall() == [(0,)]
        assert wh._store.columns.bytes == 0
