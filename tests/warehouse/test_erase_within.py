"""`erase_within`: so long after its expiry, or the end of the history, no file of the warehouse holds a row.

The oracle reads every Parquet file below the warehouse's folder as it lies there, with nothing of the catalog.
"""

import datetime as dt
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import child_processes
import windrow
from faulty_disks import join_child, start_child
from windrow import Index
from windrow.files import LIMIT_CRASH_POINTS
from windrow.slide import Slide
from windrow.warehouse import SLIDE_HOOKS

MINUTE = dt.timedelta(minutes=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("exp", STAMP), ("k", pa.int64()), ("v", pa.int64())])
WITHIN = 3


def open_at(path: Path, **options: Any) -> windrow.Warehouse:
    return windrow.open(path, clock=lambda: int((START + 9000 * MINUTE).timestamp() * 1e6), **options)


def make(path: Path, **options: Any) -> windrow.Warehouse:
    wh = open_at(path)
    lives = {} if "lifetime" in options else {"expires": "exp", "max_lifetime": "30 minutes"}
    options = {"erase_within": f"{WITHIN} minutes", "max_ahead": "9 days", **lives, **options}
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", **options)
    return wh


def make_rows(chance: random.Random, minute: int, count: int, life: int = 20) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        ts = START + minute * MINUTE - chance.randrange(1, 120) * dt.timedelta(seconds=1)
        exp = ts + chance.choice((3, 4, 6, life)) * MINUTE
        rows.append({"ts": ts, "exp": exp, "k": chance.randrange(9), "v": minute * 1000 + number})
    return rows


def find_rows_on_disk(path: Path, life: int | None = None) -> list[dt.datetime]:
    """When the rows of all Parquet files expire."""
    ends: list[dt.datetime] = []
    for file in (path / "streams").glob("*/segments/*.parquet"):
        table = pq.ParquetFile(file).read()
        name = "exp" if life is None else "ts"
        if name in table.schema.names:
            ends += table.column(name).to_pylist()
    return ends if life is None else [ts + life * MINUTE for ts in ends]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 23))])
@pytest.mark.parametrize("history", [0, 7])
def test_no_file_holds_a_row_for_longer_than_its_stream_allows(tmp_path, seed, history):
    print("seed", seed)
    chance, rows, shown = random.Random(seed), [], []
    index = chance.choice(
        (Index("round-robin", 3, 3), Index("wave-insertion", 4, 1, maintenance="norebuild"), Index("round-robin", 2, 2, maintenance="rebuild"))
    )  # fmt: skip
    options = {"history": f"{history} minutes"} if history else {}
    with make(tmp_path / "w", index=index, **options) as wh:
        minute = 0
        for _ in range(40):
            minute += chance.choice((1, 1, 1, 1, 2, 5))
            new = make_rows(chance, minute, chance.randrange(1, 30))
            new = [row for row in new if row["exp"] > START + minute * MINUTE - MINUTE]
            if new:
                wh.append("s", new)
            now = START + minute * MINUTE
            if chance.random() < 0.3:  # nobody does background work: the slide has to
                Slide(wh._store, "s", int(now.timestamp() * 1e6), False, 60.0, SLIDE_HOOKS).run()
            else:
                wh.slide("s", to=now)
            rows += new
            ends = find_rows_on_disk(tmp_path / "w")
            limit = now - (history + WITHIN) * MINUTE
            assert min(ends, default=now) > limit
            live = sorted(row["v"] for row in rows if row["ts"] <= now < row["exp"])
            answer = wh.sql("SELECT v FROM s ORDER BY v")
            assert [v for (v,) in answer.fetchall()] == live
            shown.append((answer.version, now, live))
            dead = [end for end in ends if end <= now]
            oldest = wh.stream("s").oldest_expired_on_disk
            assert oldest == min(dead, default=None)
        assert wh.check().problems == ()
        for commit, then, live in shown if history else ():
            if then >= now - history * MINUTE:
                values = wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}] ORDER BY v").fetchall()
                assert [v for (v,) in values] == live
        if history:
            kept = [row["v"] for row in rows if row["ts"] <= now and row["exp"] > now - history * MINUTE]
            values = wh.sql("SELECT v FROM s [INCLUDING EXPIRED] ORDER BY v").fetchall()
            assert [v for (v,) in values] == sorted(kept)
        wh.close()


def test_a_byte_is_rewritten_at_most_once_in_each_limit(tmp_path):
    """A row that lives for L is in at most L / limit rewrites; counted in bytes of files, merges switched off."""
    chance, within, count, slides = np.random.default_rng(4), 6, 3000, 70
    written = appended = rewrites = 0
    index = Index("wave-insertion", 4, 1, maintenance="norebuild")
    with make(tmp_path / "w", index=index, erase_within=f"{within} minutes") as wh:
        seen: set[Path] = set()
        for minute in range(1, slides):
            lives = np.where(chance.random(count) < 0.5, 24, chance.integers(2, 24, count))
            ts = int((START + minute * MINUTE).timestamp() * 1e6) - chance.integers(0, 60, count) * 1_000_000
            columns = [
                ts,
                ts + lives * 60_000_000,
                chance.integers(0, 1 << 60, count),
                chance.integers(0, 1 << 60, count),
            ]
            wh.append(
                "s",
                pa.table(
                    [pa.array(each).cast(kind) for each, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
                ),
            )
            for is_slide in (False, True):
                if is_slide:
                    wh.slide("s", to=START + minute * MINUTE)
                files = set((tmp_path / "w" / "streams" / "s" / "segments").iterdir()) - seen
                size = sum(file.stat().st_size for file in files)
                appended, written = (appended, written + size) if is_slide else (appended + size, written)
                seen |= files
            rewrites += int((lives // within).sum())
        assert 0.5 * rewrites / (count * slides) < written / appended <= 1.05 * rewrites / (count * slides)
        assert wh.check().problems == ()


def test_a_slide_says_what_it_had_to_erase_and_background_work_spares_it_that(tmp_path):
    chance = random.Random(5)
    with make(tmp_path / "w") as wh:
        for minute in range(1, 12):
            wh.append("s", make_rows(chance, minute, 20))
            assert wh.slide("s", to=START + minute * MINUTE).erased_late == 0
        report = wh.slide("s", to=START + 18 * MINUTE)
        assert report.erased_late > 0 and report.limit_problem is None


def test_who_keeps_a_row_for_too_long_is_named_and_it_goes_when_they_let_go(tmp_path):
    chance = random.Random(6)
    with make(tmp_path / "w") as wh:
        for minute in range(1, 4):
            wh.append("s", make_rows(chance, minute, 20))
            wh.slide("s", to=START + minute * MINUTE)
        with wh.snapshot() as snap:
            live = snap.sql("SELECT count(*) FROM s").fetchall()
            wh.slide("s", to=START + 30 * MINUTE)
            problems = wh.check().problems
            assert problems
            assert all("erase_within 3 minutes allows; it is kept by 1 open reader" in each for each in problems)
            assert snap.sql("SELECT count(*) FROM s").fetchall() == live
            assert wh.stream("s").oldest_expired_on_disk is not None
        wh.slide("s", to=START + 31 * MINUTE)
        assert find_rows_on_disk(tmp_path / "w") == []
        assert wh.check().problems == ()
        assert wh.stream("s").oldest_expired_on_disk is None


def test_views_of_such_streams_keep_to_the_limit_too(tmp_path):
    chance = random.Random(7)
    with make(tmp_path / "w", index=Index("round-robin", 2, 2, maintenance="norebuild")) as wh:
        wh.create_view("odd", "SELECT k, v FROM s WHERE v % 2 = 1", expires="exp")
        rows = []
        for minute in range(1, 40):
            new = make_rows(chance, minute, 12)
            rows += new
            wh.append("s", new)
            wh.slide("s", to=START + minute * MINUTE)
            now = START + minute * MINUTE
            files = (tmp_path / "w" / "streams" / "odd" / "segments").glob("*.parquet")
            ends = [end for file in files for end in pq.ParquetFile(file).read().column("exp").to_pylist()]
            assert min(ends, default=now) > now - WITHIN * MINUTE
            live = sorted(row["v"] for row in rows if row["ts"] <= now < row["exp"] and row["v"] % 2)
            assert [v for (v,) in wh.sql("SELECT v FROM odd ORDER BY v").fetchall()] == live


def test_it_is_set_and_taken_away_while_a_stream_is_in_use(tmp_path):
    chance = random.Random(8)
    with make(tmp_path / "w", lifetime="5 minutes", erase_within=None) as wh:
        for minute in range(1, 14):
            wh.append("s", make_rows(chance, minute, 9))
            wh.slide("s", to=START + minute * MINUTE)
        wh.alter_stream("s", erase_within="1 minute")
        assert wh.stream("s").definition.erase_within == 60_000_000
        wh.slide("s", to=START + 14 * MINUTE)
        assert min(find_rows_on_disk(tmp_path / "w", 5)) > START + 13 * MINUTE
        wh.alter_stream("s", erase_within="none")
        assert wh.stream("s").definition.erase_within is None
        with pytest.raises(windrow.WindrowError, match="shorter than the slide"):
            wh.alter_stream("s", erase_within="10 seconds")
        with pytest.raises(windrow.WindrowError, match="its rows never expire"):
            wh.create_stream("ever", SCHEMA, time="ts", slide="1 minute", erase_within="1 day")


@pytest.mark.parametrize("step", LIMIT_CRASH_POINTS)
def test_a_kill_leaves_all_rows_and_the_next_slide_keeps_the_limit(tmp_path, step):
    chance = random.Random(9)
    with make(tmp_path / "w", history="2 minutes", index=Index("round-robin", 2, 2, maintenance="norebuild")) as wh:
        rows = []
        for minute in range(1, 8):
            rows += (new := make_rows(chance, minute, 30))
            wh.append("s", new)
            wh.slide("s", to=START + minute * MINUTE)
    child = start_child(child_processes.slide_until_step, str(tmp_path / "w"), str(START + 14 * MINUTE), step)
    assert join_child(child) == -signal.SIGKILL
    with open_at(tmp_path / "w") as wh:
        for minute in (14, 15):
            now = START + minute * MINUTE
            wh.slide("s", to=now)
            live = sorted(row["v"] for row in rows if row["ts"] <= now < row["exp"])
            assert [v for (v,) in wh.sql("SELECT v FROM s ORDER BY v").fetchall()] == live
            kept = sorted(row["v"] for row in rows if row["exp"] > now - 2 * MINUTE)
            assert [v for (v,) in wh.sql("SELECT v FROM s [INCLUDING EXPIRED] ORDER BY v").fetchall()] == kept
        wh.gc()
        assert min(find_rows_on_disk(tmp_path / "w")) > now - (2 + WITHIN) * MINUTE
        assert wh.check().problems == ()
