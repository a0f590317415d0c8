"""The edge of a window, in files and in memory: every answer is that of plain Python, slide after slide."""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import row_caches
import windrow
from sample_streams import BASE, DELTA, US, when

S = "s"
SLOT = dt.timedelta(microseconds=DELTA)
TZ = pa.timestamp("us", "UTC")
NANOS = pa.timestamp("ns")


def opened(path: Path, kind: pa.DataType, cache_bytes: int | None) -> windrow.Warehouse:
    wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA, cache_bytes=cache_bytes)
    columns = [("ts", kind), ("exp", kind), ("k", pa.int64()), ("text", pa.string()), ("raw", pa.large_binary())]
    wh.create_stream(
        S, pa.schema(columns), time="ts", expires="exp", key="k", slide=SLOT, max_lifetime=4 * SLOT,
        index=windrow.Index("round-robin", 2, 2),
    )  # fmt: skip
    return wh


def batch(choice: random.Random, now: int, count: int) -> list[dict[str, Any]]:
    rows = []
    for _ in range(count):
        ts = now - choice.randint(0, DELTA - 1)
        text = choice.choice((None, "", "short", "exactly 12 b", "é" * 7, "a text that does not fit into a view"))
        raw = None if choice.random() < 0.1 else choice.randbytes(choice.randint(0, 40))
        life = choice.randint(1, 4 * DELTA)
        rows.append({"ts": ts, "exp": ts + life, "k": choice.randint(0, 9), "text": text, "raw": raw})
    return rows


def taken(wh: windrow.Warehouse, rows: list[dict[str, Any]], at: pa.DataType, now: int) -> None:
    scale = 1000 if at.unit == "ns" else 1
    times = [pa.array([row[name] * scale for row in rows], pa.int64()).view(at) for name in ("ts", "exp")]
    others = [pa.array([row[name] for row in rows], kind) for name, kind in
              (("k", pa.int64()), ("text", pa.string()), ("raw", pa.large_binary()))]  # fmt: skip
    wh.append(S, pa.table([*times, *others], names=["ts", "exp", "k", "text", "raw"]))
    wh.slide(S, to=when(now))


@pytest.mark.parametrize("cache_bytes", [0, None], ids=["files", "memory"])
@pytest.mark.parametrize("position", [US, TZ, NANOS], ids=str)
def test_answers_of_a_window_with_an_edge_are_those_of_a_loop(
    path: Path, cache_bytes: int | None, position: pa.DataType
) -> None:
    choice, rows = random.Random(7), list[dict[str, Any]]()
    with opened(path, position, cache_bytes) as wh:
        for turn in range(1, 9):
            now = BASE + turn * DELTA
            fresh = batch(choice, now, 60)
            taken(wh, fresh, position, now)
            rows += fresh
            for slots in (4, 2):
                live = [row for row in rows if row["exp"] > now and row["ts"] > now - slots * DELTA]
                window = f"{S} [WINDOW {slots * DELTA} MICROSECONDS]"
                actual = wh.sql(f"SELECT k, text, raw FROM {window}").fetchall()
                assert sorted(actual, key=str) == sorted(((r["k"], r["text"], r["raw"]) for r in live), key=str)
                by_text: dict[Any, list[int]] = {}
                for row in live:
                    by_text.setdefault(row["text"], []).append(row["k"])
                grouped = wh.sql(f"SELECT text, count(*), sum(k) FROM {window} WHERE k <> 3 GROUP BY text").fetchall()
                wanted = [(text, len(keys), sum(keys)) for text, all_of in by_text.items()
                          for keys in [[k for k in all_of if k != 3]] if keys]  # fmt: skip
                assert sorted(grouped, key=str) == sorted(wanted, key=str)
                assert wh.sql(f"SELECT count(*) FROM {window}").fetchall() == [(len(live),)]
            row_caches.settle(wh)
