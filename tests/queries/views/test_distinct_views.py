"""DISTINCT views: at every slide each live value once, in space of the order of the values."""

import datetime as dt
import random

import pyarrow as pa
import pytest

import scratch_folders
import windrow

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("k", pa.int64()), ("ends", STAMP)])


def at(minute: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minute)


def test_a_value_that_comes_in_every_slot_is_not_stored_for_every_slot():
    """A thousand values over 640 slots were 648,000 stored rows."""
    values, slots = 20, 60
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as wh:
        wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime=f"{slots} minutes")
        wh.create_view("d", "SELECT DISTINCT k FROM a", key="k")
        for minute in range(1, 2 * slots):
            rows = [{"ts": at(minute - 0.5), "k": k} for k in range(values)]
            wh.append("a", pa.Table.from_pylist(rows, SCHEMA))
            wh.slide("a", to=at(minute))
        assert sorted(wh.sql("SELECT k FROM d").fetchall()) == [(k,) for k in range(values)]
        ((stored,),) = wh.sql("SELECT sum(rows) FROM windrow.segments WHERE stream = 'd'").fetchall()
        assert stored <= 6 * values


@pytest.mark.parametrize(("seed", "variable"), [(0, False), (1, True)], ids=["fixed", "variable"])
def test_every_live_value_is_there_once_at_every_slide(seed, variable):
    """Values that come again and again, or long after, or never; late, ahead of the clock, and while slides jump."""
    chance = random.Random(seed)
    print("seed", seed)
    lives = {"expires": "ends", "max_lifetime": "24 minutes"} if variable else {"lifetime": "24 minutes"}
    taken_in: list[tuple[dt.datetime, int, dt.datetime]] = []
    with scratch_folders.scratch_folder() as path:
        wh = windrow.open(path / "w")
        wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", **lives)
        wh.create_view("d", "SELECT DISTINCT k FROM a", key="k")
        wh.create_view("e", "SELECT DISTINCT x.k FROM a [WINDOW 15 MINUTES] x JOIN a y ON x.k = y.k", key="k")
        minute, joined = 0, 0
        for _ in range(45):
            minute += chance.choice((1, 1, 1, 1, 1, 1, 2, 9))
            rows = []
            for _ in range(chance.randint(0, 6)):
                ts = at(minute - chance.choice((0.5, 0.5, 0.5, 4, -1.5)))
                life = dt.timedelta(minutes=chance.randint(2, 24) if variable else 24)
                rows.append((ts, chance.choice((0, 1, chance.randint(2, 40))), ts + life))
            taken_in += rows
            wh.append("a", pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA))
            wh.slide("a", to=at(minute))
            if chance.random() < 0.05:
                wh.close()
                wh = windrow.open(path / "w")
            live = {k for ts, k, ends in taken_in if ts <= at(minute) < ends}
            recent = {k for ts, k, ends in taken_in if at(minute - 15) < ts <= at(minute) < ends}
            assert sorted(wh.sql("SELECT k FROM d").fetchall()) == [(k,) for k in sorted(live)], minute
            assert sorted(wh.sql("SELECT k FROM e").fetchall()) == [(k,) for k in sorted(recent)], minute
            joined += len(recent)
        assert joined
        assert wh.check().ok
        wh.close()
