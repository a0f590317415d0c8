"""Who has seen a stream's segments before follows what later commits did, and sees what a newcomer would see."""

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recorded_history
import windrow
from sample_streams import BASE, DELTA, SHAPES, when
from windrow.catalog import segment_log
from windrow.catalog.environment import catalog_key
from windrow.catalog.records import SegmentChange, StreamState
from windrow.indexes.manifest import Manifest, SegmentArrays

S = "s"
SHAPE = SHAPES["per-row"]


def segments(wh: windrow.Warehouse) -> Manifest:
    with wh.snapshot() as snapshot:
        return snapshot.view(S).segments


def newcomer(path: Path) -> Manifest:
    with recorded_history.open_warehouse(path, read_only=True) as wh:
        return segments(wh)


def update(wh: windrow.Warehouse, turn: int, choice: random.Random) -> None:
    rows = [
        SHAPE.row(turn * 100 + n, BASE + turn * DELTA + 1 + n, choice.randint(1, 6) * DELTA, choice) for n in range(20)
    ]
    wh.append(S, SHAPE.table(rows))
    wh.slide(S, to=when(BASE + (turn + 1) * DELTA))


@pytest.mark.parametrize("maintenance", ["rebuild", "norebuild", "adaptive"])
def test_a_reader_that_missed_any_number_of_slides_sees_what_a_newcomer_sees(path: Path, maintenance: str) -> None:
    choice, turn = random.Random(3), 0
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path, read_only=True) as reader:
        SHAPE.create(wh, S, windrow.Index("round-robin", 2, 3, maintenance=maintenance, max_segments=2))
        for missed in (1, 1, 2, 7, 8, 9, 1, 20, 0):
            for _ in range(missed):
                update(wh, turn, choice)
                turn += 1
            seen, truth = segments(reader), newcomer(path)
            assert sorted(seen, key=lambda s: s.id) == sorted(truth, key=lambda s: s.id)
            assert seen.arrays.matrix[:-1].tolist() == SegmentArrays.of(seen).matrix[:-1].tolist()
            assert sorted(segments(wh), key=lambda s: s.id) == sorted(truth, key=lambda s: s.id)


def test_a_reader_follows_slides_without_going_through_all_records(path: Path, monkeypatch: Any) -> None:
    choice = random.Random(4)
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path, read_only=True) as reader:
        SHAPE.create(wh, S, windrow.Index("round-robin", 2, 3))
        update(wh, 0, choice)
        segments(reader)
        monkeypatch.setattr(segment_log, "_read_all", lambda *_: pytest.fail("all records were gone through"))
        for turn in range(1, 20):
            update(wh, turn, choice)
            if turn % 3 == 0:
                assert segments(reader)


def test_altered_records_are_read_again_and_not_followed(path: Path) -> None:
    """A lifetime that changes rewrites records in place: what was decoded before is no longer true."""
    shape, choice = SHAPES["fixed"], random.Random(5)
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path, read_only=True) as reader:
        shape.create(wh, S, windrow.Index("round-robin", 2, 3))
        for turn in range(3):
            wh.append(S, shape.table([shape.row(turn, BASE + turn * DELTA + 1, None, choice)]))
            wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
            before = segments(reader)
        wh.alter_stream(S, lifetime="1 hour")
        after = segments(reader)
        assert sorted(after, key=lambda s: s.id) == sorted(newcomer(path), key=lambda s: s.id)
        assert {s.max_exp for s in after} != {s.max_exp for s in before}


def test_a_scan_of_many_files_keeps_no_descriptor_of_them(path: Path) -> None:
    choice = random.Random(6)
    with recorded_history.open_warehouse(path) as wh:
        SHAPE.create(wh, S, windrow.Index("round-robin", 2, 3, maintenance="norebuild"))
        for turn in range(6):
            update(wh, turn, choice)
        wh.scan(S).read_all()
        before = len(os.listdir("/proc/self/fd"))
        for turn in range(6, 18):
            update(wh, turn, choice)
            wh.scan(S).read_all()
        assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_commit_that_moved_a_stream_twice_is_followed_once(path: Path) -> None:
    """A view may move several times in one commit: 1 -> 5, 5 -> 5, 5 -> 9. Who knows it as of 5 needs only the last."""
    choice = random.Random(7)
    with recorded_history.open_warehouse(path) as wh:
        SHAPE.create(wh, S, windrow.Index("round-robin", 2, 3))
        update(wh, 0, choice)
        stored = segments(wh)
    records = {catalog_key(1, one.id): one for one in stored}

    class Records:
        def get(self, _: str, key: bytes) -> Any:
            return records[key]

    first, *rest = stored
    changes = (
        SegmentChange(1, 5, (first.id,), ()),
        SegmentChange(5, 5, (), ()),
        SegmentChange(5, 9, tuple(one.id for one in rest), ()),
    )
    twice = (changes[0], SegmentChange(5, 5, (first.id,), ()), changes[2])
    for noted in (changes, twice):
        state = StreamState(layouts=(), manifest=9, changes=noted)
        for version, manifest_before in ((1, Manifest()), (5, Manifest([first]))):
            actual = segment_log._apply_changes(Records(), 1, state, version, manifest_before)  # type: ignore[arg-type]
            assert actual is not None and list(actual) == list(stored)
    assert segment_log._apply_changes(Records(), 1, state, 4, Manifest()) is None  # type: ignore[arg-type]


def test_nothing_is_held_of_streams_that_were_dropped(path: Path) -> None:
    """Whoever drops one forgets it at once, others when they look at a stream that they have not seen."""
    choice = random.Random(5)
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path, read_only=True) as reader:
        stores = wh._store, reader._store
        for turn in range(3):
            SHAPE.create(wh, S, windrow.Index("round-robin", 2, 3))
            update(wh, turn, choice)
            for handle in (wh, reader):
                handle.scan(S).read_all()
                handle.sql(f"SELECT * FROM {S}").fetchall()
            old = {segment.file for segment in segments(reader)}
            assert [len(store.manifests) for store in stores] == [1, 1]
            assert len(stores[0].encodings) == 1
            assert all(file in old for store in stores for file in store.reader._maps)
            wh.drop_stream(S)
            assert (stores[0].manifests, stores[0].encodings, list(stores[0].reader._maps)) == ({}, {}, [])


def test_snapshots_of_one_commit_share_what_was_read_and_those_of_the_next_do_not(path: Path) -> None:
    """Whoever made the commit: this handle, another one, or one that changes only tables."""
    choice = random.Random(5)
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path, read_only=True) as reader:
        SHAPE.create(wh, S, windrow.Index("round-robin", 2, 3))
        for turn in range(4):
            update(wh, turn, choice)
            for asking in (wh, reader):
                with asking.snapshot([S]) as one, asking.snapshot([S]) as other, asking.snapshot() as every:
                    assert one.view(S) is other.view(S) and one.tables is other.tables
                    assert one.version == other.version == every.version
                    assert sorted(one.view(S).segments, key=lambda s: s.id) == sorted(
                        newcomer(path), key=lambda s: s.id
                    )
                    assert one.view(S).state.slide == every.view(S).state.slide
            with reader.snapshot([S]) as before:
                wh.put_table("t", pa.table({"n": [turn]}))
                with reader.snapshot([S]) as after:
                    assert after.tables["t"] != before.tables.get("t")
                    assert after.version == before.version + 1
            assert reader.sql("FROM t").fetchall() == [(turn,)]
        wh.drop_stream(S)
        with pytest.raises(windrow.UnknownStreamError):
            reader.snapshot([S])
