"""Scans that are made again and again while the window slides: kept copies never change an answer, old or new."""

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
from windrow.indexes import scan

S = "s"
SLOT = dt.timedelta(microseconds=DELTA)
SCHEMA = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("text", pa.string())])


def create(wh: windrow.Warehouse, index: windrow.Index | str) -> None:
    wh.create_stream(S, SCHEMA, time="ts", expires="exp", key="k", slide=SLOT, max_lifetime=8 * SLOT, index=index)


def batch(choice: random.Random, now: int, count: int) -> list[dict[str, Any]]:
    """Rows of the slot that ends at `now`, some late, some ahead of the clock, that live for up to eight slots."""
    rows = []
    for _ in range(count):
        ts = now - choice.randint(-DELTA // 4, 2 * DELTA)
        text = choice.choice((None, "", "x" * choice.randint(1, 900)))
        rows.append({"ts": ts, "exp": ts + choice.randint(1, 8 * DELTA), "k": choice.randint(0, 5), "text": text})
    return rows


def table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = [pa.array([row[name] for row in rows], pa.int64()).view(US) for name in ("ts", "exp")]
    columns += [pa.array([row[field.name] for row in rows], field.type) for field in list(SCHEMA)[2:]]
    return pa.table(columns, schema=SCHEMA)


def bag(rows: pa.Table) -> list[tuple[Any, ...]]:
    times = [rows.column(name).cast(pa.int64()).to_pylist() for name in ("ts", "exp")]
    return sorted(zip(*times, *(rows.column(name).to_pylist() for name in ("k", "text")), strict=True), key=str)


def live(rows: list[dict[str, Any]], now: int) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows if row["exp"] > now and row["ts"] <= now), key=str)


@pytest.mark.parametrize("alone", [0, 1 << 40])
@pytest.mark.parametrize("index", [("round-robin", 3, 4), ("wave-insertion", 4, 1), ("chronological", 2, 3)])
def test_every_scan_of_a_sliding_window_gives_its_live_rows(
    path: Path, index: tuple[str, int, int], alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_SERIAL_COPY_BYTES", alone)
    monkeypatch.setattr(scan, "_UNIT_BYTES", 8 << 10)  # many units of a few rows
    choice, rows, kept = random.Random(7), list[dict[str, Any]](), 0
    with recorded_history.open_warehouse(path) as wh:
        create(wh, windrow.Index(*index))
        earlier: list[tuple[pa.Table, list[tuple[Any, ...]]]] = []
        for turn in range(1, 24):
            now = BASE + turn * DELTA
            fresh = batch(choice, now, choice.randint(0, 40))
            report = wh.append(S, table(fresh)) if fresh else None
            taken = [row for row in fresh if turn == 1 or row["exp"] > now - DELTA]
            assert report is None or report.accepted == len(taken)
            rows += taken
            wh.slide(S, to=when(now))
            expected = live(rows, now)
            for _ in range(choice.randint(1, 3)):
                assert bag(wh.scan(S).read_all()) == expected
            assert wh.scan(S, columns=["text"]).read_all().num_rows == len(expected)
            half = [row for row in expected if row[0] > now - 2 * DELTA]
            assert bag(wh.scan(S, window=2 * SLOT).read_all()) == half
            earlier.append((wh.scan(S).read_all(), expected))
            kept = max(kept, wh._store.scan_cache.bytes)
        for actual, expected in earlier:
            assert bag(actual) == expected, "an answer that was given stays as it is"
        assert kept > 0


def incompressible(choice: random.Random, length: int) -> str:
    """Text that no encoding makes shorter, so that it lies open in its file."""
    return "".join(choice.choices(string.ascii_letters + string.digits + string.punctuation, k=length))


def test_what_lies_open_in_files_is_kept_for_its_offsets_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of long texts: those of segments that are wholly live are not copied, and are made once."""
    monkeypatch.setattr(scan, "_GROUP_BYTES", 8 << 10)
    monkeypatch.setattr(scan, "_BATCH_BYTES", 0)
    choice, rows, made = random.Random(11), list[dict[str, Any]](), list[tuple[str, int]]()
    read = scan.read_row_group

    def counted(file: str, start: int, *rest: Any) -> pa.RecordBatch | None:
        made.append((file, start))
        return read(file, start, *rest)

    monkeypatch.setattr(scan, "read_row_group", counted)
    with recorded_history.open_warehouse(path) as wh:
        create(wh, windrow.Index("round-robin", 2, 2, row_group_bytes=256 << 10))
        earlier: list[tuple[pa.Table, list[tuple[Any, ...]]]] = []
        for turn in range(1, 14):
            now = BASE + turn * DELTA
            fresh = [
                {**row, "text": choice.choice((None, incompressible(choice, 3000), incompressible(choice, 2000)))}
                for row in batch(choice, now, 300)
                if now - DELTA < row["ts"] <= now and row["exp"] > now
            ]
            wh.append(S, table(fresh))
            wh.slide(S, to=when(now))
            rows += fresh
            expected = live(rows, now)
            before = wh._store.scan_cache.bytes
            for _ in range(3):
                actual = wh.scan(S).read_all()
                assert bag(actual) == expected
            earlier.append((actual, expected))
            if turn > 1:
                assert len(made) == len(set(made)), "what is kept is not made again"
            else:
                made.clear()
                assert before == 0
                assert 0 < wh._store.scan_cache.bytes < actual.nbytes / 8, (
                    "only offsets and times are memory of its own"
                )
        for actual, expected in earlier:
            assert bag(actual) == expected, "an answer that was given stays as it is"
        wh.slide(S, to=when(now + 20 * DELTA))
        wh.slide(S, to=when(now + 21 * DELTA))
        assert wh.scan(S).read_all().num_rows == 0
        assert wh._store.scan_cache.bytes == 0, "nothing holds files that are gone"


def test_nothing_is_kept_where_columns_are_not(path: Path) -> None:
    with windrow.open(path, clock=lambda: recorded_history.CLOCK, cache_bytes=0) as wh:
        create(wh, "auto")
        rows = batch(random.Random(1), BASE + DELTA, 50)
        wh.append(S, table(rows))
        wh.slide(S, to=when(BASE + DELTA))
        for _ in range(3):
            assert bag(wh.scan(S).read_all()) == live(rows, BASE + DELTA)
        assert wh._store.scan_cache.bytes == 0
