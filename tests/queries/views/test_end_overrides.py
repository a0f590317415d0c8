"""Rows that end before what is stored with them: every reader leaves them out, and old snapshots still have them.

Rows of a view are ended at random at its slides; a plain dict of the rows that live says what readers must find.
"""

import datetime as dt
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.indexes.end_overrides import count_ended, find_live_ranges, override_ends, read_ends
from windrow.indexes.row_model import to_microseconds
from windrow.queries.views.storage import RowEnding, ViewSlide
from windrow.snapshot import Snapshot

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("n", pa.int64()), ("word", pa.string())])


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


class World:
    """A view of whose rows some are ended at each slide."""

    def __init__(self, path, chance: random.Random, monkeypatch, **options) -> None:
        self.chance, self.path, self.live = chance, path, {}
        self.numbers = iter(range(1 << 30))
        self.share = 0.0
        self.wh = windrow.open(path)
        self.wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="12 minutes")
        self.wh.create_view("v", "SELECT k, n, word FROM a [WINDOW 10 MINUTES]", key="k", **options)
        write = ViewSlide.write

        def end_some(view: ViewSlide, *arguments) -> None:
            if view.name == "v":
                self._end_rows(view)
            write(view, *arguments)

        monkeypatch.setattr(ViewSlide, "write", end_some)

    def _end_rows(self, view: ViewSlide) -> None:
        model, reader, endings = view.entry.definition.model, view.store.reader, []
        for segment in view.segments:
            (table,) = reader.batches(segment.file, segment.start, segment.stop, ["_ts", "n"], 1 << 30)
            ends, _ = model.expiries(table, to_microseconds(table.column("_ts"))[0])
            ended = set(read_ends(segment).rows.tolist())
            chosen = [
                row
                for row, end in enumerate(ends.tolist())
                if row + segment.start not in ended and end > view.now and self.chance.random() < self.share
            ]
            if chosen:
                rows, new_ends = np.array(chosen, np.int64), np.full(len(chosen), view.now, np.int64)
                endings.append(RowEnding(segment.id, rows + segment.start, ends[rows], new_ends))
                for n in table.column("n").take(pa.array(rows)).to_pylist():
                    del self.live[n]
        view.end_rows(endings)

    def slide(self, minute: int, count: int, share: float) -> None:
        self.share = share
        sent = [
            {"ts": at(minute - self.chance.random()), "k": self.chance.randrange(9), "n": next(self.numbers)}
            for _ in range(count)
        ]
        sent = [{**row, "word": f"w{row['n']}"} for row in sent]
        self.wh.append("a", pa.Table.from_pylist(sent, SCHEMA))
        self.wh.slide("a", to=at(minute))
        self.live |= {row["n"]: row for row in sent}
        self.live = {n: row for n, row in self.live.items() if row["ts"] + dt.timedelta(minutes=10) > at(minute)}

    def check(self, wh=None) -> None:
        wh = wh or self.wh
        expected = Counter(self.live.keys())
        assert Counter(wh.sql("SELECT n FROM v").arrow().column("n").to_pylist()) == expected
        assert Counter(n for b in wh.scan("v", columns=["n"]) for n in b.column(0).to_pylist()) == expected
        key = self.chance.randrange(9)
        of_key = Counter(n for n, row in self.live.items() if row["k"] == key)
        assert Counter(wh.probe("v", key=key).column("n").to_pylist()) == of_key
        assert wh.sql("SELECT count(*), sum(n) FROM v WHERE k = ?", [key]).fetchall() == [
            (sum(of_key.values()), sum(of_key) if of_key else None)
        ]
        recent = [n for n, row in self.live.items() if row["ts"] > wh.now("v") - dt.timedelta(minutes=3)]
        rows = wh.sql("SELECT count(*) FROM v [WINDOW 3 MINUTES]").fetchall()
        assert rows == [(len(recent),)]
        newest = sorted(self.live, key=lambda n: self.live[n]["ts"])[-5:]
        assert sorted(n for (n,) in wh.sql("SELECT n FROM v [ROWS 5]").fetchall()) == sorted(newest)
        assert wh.stream("v").live_rows == len(self.live)


@pytest.mark.parametrize(("index", "count"), [("auto", 40), ("round-robin", 300), ("wave-expiry", 40)])
def test_no_reader_shows_a_row_that_has_ended(tmp_path, monkeypatch, index, count):
    print("seed", seed := random.randrange(1 << 30))
    kind = index if index == "auto" else windrow.Index(index, *((2, 2) if index == "round-robin" else (1, 4)))
    world = World(tmp_path / "w", random.Random(seed), monkeypatch, index=kind)
    with world.wh as wh:
        for minute in range(1, 16):
            world.slide(minute, count, world.chance.choice([0.0, 0.02, 0.3]))
            world.check()
            if minute == 7:
                snapshot, then = wh.snapshot(), sorted(world.live)
            if minute in (8, 9):  # what was committed later is not seen
                assert sorted(n for (n,) in snapshot.sql("SELECT n FROM v").fetchall()) == then
                assert sorted(n for b in snapshot.scan("v") for n in b.column("n").to_pylist()) == then
            if minute == 9:
                snapshot.close()
        assert not list(wh.check().problems)
    with windrow.open(world.path, read_only=True) as other:
        world.check(other)


def test_another_process_sees_each_override_of_its_commit(tmp_path, monkeypatch):
    print("seed", seed := random.randrange(1 << 30))
    world = World(tmp_path / "w", random.Random(seed), monkeypatch)
    with world.wh as wh:
        with wh.snapshot():  # nothing is reclaimed meanwhile
            for minute in range(1, 20):
                world.slide(minute, 20, 0.1)
                if minute % 3 == 0:
                    wh._store.manifests.clear()  # as of a process that has not seen the commits between
                world.check()
        wh.gc()
        world.check()


def test_a_segment_of_which_many_rows_have_ended_is_written_again(tmp_path, monkeypatch):
    print("seed", seed := random.randrange(1 << 30))
    world = World(tmp_path / "w", random.Random(seed), monkeypatch)
    with world.wh as wh:
        world.slide(1, 500, 0.0)
        for minute in range(2, 9):
            world.slide(minute, 50, 0.08)
            with Snapshot(wh._store) as snapshot:
                for segment in snapshot.view("v").segments:
                    assert count_ended(segment) * 10 <= segment.rows
            world.check()
        assert wh.stream("v").stored_rows < 1.5 * len(world.live)


def test_an_override_only_shortens_and_the_statistics_follow(tmp_path, monkeypatch):
    world = World(tmp_path / "w", random.Random(1), monkeypatch)
    with world.wh as wh:
        world.slide(1, 100, 0.0)
        with Snapshot(wh._store) as snapshot:
            view = snapshot.view("v")
        segment, model, now = view.segments[0], view.model, view.now
        rows = np.array([3, 5], np.int64) + segment.start
        ends = np.array([segment.max_exp, segment.max_exp], np.int64)
        assert override_ends(segment, rows, ends, ends + 1, model) is segment
        once = override_ends(segment, rows, ends, np.array([now, now + 60_000_000]), model)
        assert once.min_exp == now and once.max_exp == segment.max_exp
        assert once.dead(view.state.slide) == 1 and once.dead(view.state.slide + 1) == 2
        starts, stops = find_live_ranges(once, now)
        assert int((stops - starts).sum()) == segment.rows - 1
        twice = override_ends(once, rows[1:], np.array([now + 60_000_000]), np.array([now]), model)
        assert twice.dead(view.state.slide) == 2 and read_ends(twice).ends.tolist() == [now, now]


def test_published_versions_leave_ended_rows_out_also_after_a_relayout_below(tmp_path, monkeypatch):
    deltalake = pytest.importorskip("deltalake", reason="deltalake, which reads the tables here, is not installed")
    print("seed", seed := random.randrange(1 << 30))
    world = World(tmp_path / "w", random.Random(seed), monkeypatch, index=windrow.Index("round-robin", 2, 2))
    with world.wh as wh:
        published = wh.publish("v", every="1 microsecond", hold="1 hour")
        for minute in range(1, 9):
            world.slide(minute, 100, world.chance.choice([0.02, 0.06, 0.3]))
            world.check()
            if minute % 3 == 0:
                wh.relayout("a", windrow.Index("round-robin", minute // 3, 3), move="now")
                world.check()
            table = deltalake.DeltaTable(published.path)
            rows = pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT n FROM t").read_all())
            assert sorted(rows.column("n").to_pylist()) == sorted(world.live)
        assert not list(wh.check().problems)
