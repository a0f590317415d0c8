"""What a slide of a view by keys reads and writes follows the keys that change, however long the window is."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.queries.views import key_rows

BEGIN = dt.datetime(2026, 1, 1)
SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64()), ("x", pa.int64())])
CHANGED = 20
"""Rows of a later slide: half of them with keys that the window has."""


def rows(slot: int, keys: np.ndarray) -> pa.Table:
    """Rows of the minute that ends with a slot."""
    ts = [BEGIN + dt.timedelta(minutes=slot, seconds=-30)] * len(keys)
    return pa.table([pa.array(ts, SCHEMA.field("ts").type), pa.array(keys), pa.array(keys * 3)], schema=SCHEMA)


def count_work(path, sql: str, count: int, monkeypatch) -> tuple[int, int]:
    """Rows that a view's slide reads and writes, with a window of so many rows."""
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
        wh.append("s", rows(1, np.arange(count)))
        wh.slide("s", to=BEGIN + dt.timedelta(minutes=1))
        view = wh.create_view("v", sql)
        assert not view.recomputed
        read, take_values, find = 0, key_rows.take_values, key_rows.KeySet.find

        def count_taken(chunks, positions):
            nonlocal read
            read += len(positions)
            return take_values(chunks, positions)

        def count_searched(keys, rows, names):
            nonlocal read
            read += len(rows.positions)
            return find(keys, rows, names)

        monkeypatch.setattr(key_rows, "take_values", count_taken)
        monkeypatch.setattr(key_rows.KeySet, "find", count_searched)
        wh.append("s", rows(2, np.arange(CHANGED) + count - CHANGED // 2))
        wh.slide("s", to=BEGIN + dt.timedelta(minutes=2))
        monkeypatch.undo()
        written = sum(wh.stream(name).last.inserted for name in (view.name, view.partials) if name is not None)
        columns = "k, n, s" if view.partials else "k, x"
        assert sorted(wh.sql(f"SELECT {columns} FROM v").fetchall()) == sorted(wh.sql(sql).fetchall())
        return read, written


@pytest.mark.parametrize(
    "sql",
    ["SELECT k, count(*) AS n, sum(x) AS s FROM s GROUP BY k", "SELECT k, x FROM s [ROWS 1 PARTITION BY k]"],
    ids=["groups", "newest"],
)
def test_work_follows_the_change(path, sql, monkeypatch):
    short, long = (count_work(path / str(count), sql, count, monkeypatch) for count in (10_000, 100_000))
    assert short[1] == long[1] == (2 if "count" in sql else 1) * CHANGED
    assert max(short[0], long[0]) <= 40 * CHANGED  # each column of each row that the directories name
