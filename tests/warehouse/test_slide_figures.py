"""What a slide does and says: cells touched, bytes written, segments merged, and the same answers in every layout."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recorded_history
import windrow
from faulty_disks import CallAtStep
from oracle import SECOND
from sample_streams import BASE, DELTA, LAYOUTS, SHAPES, US, assert_rows, when
from windrow.indexes.segments import SEQ_BITS

S = "s"


def segments(wh: windrow.Warehouse) -> Any:
    with wh.snapshot() as snapshot:
        return snapshot.view(S).segments


def data_files(wh: windrow.Warehouse) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (wh.path / "streams" / S / "segments").iterdir()}


@pytest.mark.parametrize("maintenance", ["rebuild", "norebuild", "adaptive"])
def test_touched_and_bytes_written_are_what_really_happened(path: Path, maintenance: str) -> None:
    """Cells by brute force: a row taken in by slide i with expiry slot x is in cell (i mod G, x mod E)."""
    rows_, columns = 3, 4
    shape, choice = SHAPES["per-row"], random.Random(8)
    truth, number, now = shape.oracle(), 0, BASE
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, windrow.Index("round-robin", rows_, columns, maintenance=maintenance, max_segments=2))
        wh._store.small_rows = 0
        for turn in range(40):
            batch = []
            for _ in range(choice.randint(0, 25)):
                ts = now + choice.randint(-2 * DELTA if turn else 1, DELTA)
                batch.append(shape.row(number, ts, choice.randint(1, 6 * DELTA), choice))
                number += 1
            wh.append(S, shape.table(batch))
            truth.append(batch, recorded_history.CLOCK)
            old, before = list(truth.stored), data_files(wh)
            now += DELTA * choice.choice((1, 1, 1, 2, 5))
            coming = [(truth.slot(row.exp), row) for row in truth.spool]
            expected = truth.slide(recorded_history.CLOCK, now)
            came = {(expected.slide % rows_, int(x) % columns) for x, _ in coming}
            left = {(row.slide % rows_, int(truth.slot(row.exp)) % columns) for row in old if row.exp <= now}
            report = wh.slide(S, to=when(now))
            assert report.touched == len(came | left), f"slide {turn}"
            written = sum(size for name, size in data_files(wh).items() if name not in before)
            assert report.bytes_written == written
            assert (report.rebuilt == 0) == (written == 0)
            assert (report.inserted, report.expired, report.late) == (
                expected.inserted,
                expected.expired,
                expected.late,
            )
            status = wh.stream(S)
            assert status.stored_rows == sum(s.rows for s in segments(wh))
            assert status.bytes == sum(s.bytes for s in segments(wh))
            if maintenance == "rebuild":
                cells = Counter((s.row, s.column) for s in segments(wh))
                touched_now = [count for cell, count in cells.items() if cell in came | left]
                assert set(touched_now) <= {1}, "every touched sub-index is one segment"
        assert_rows(wh.scan(S).read_all(), truth.live())
        recorded_history.assert_sound(wh)


def test_round_robin_touches_at_most_one_row_and_one_column_a_slide(path: Path) -> None:
    shape, choice = SHAPES["per-row"], random.Random(3)
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, windrow.Index("round-robin", 4, 4))
        most = 0
        for turn in range(30):
            batch = [
                shape.row(turn * 100 + i, BASE + turn * DELTA + 1, choice.randint(1, 6 * DELTA), choice)
                for i in range(60)
            ]
            wh.append(S, shape.table(batch))
            most = max(most, wh.slide(S, to=when(BASE + (turn + 1) * DELTA)).touched)
        assert most == 4 + 4 - 1


def test_sliding_sixty_slots_at_once_is_one_update(path: Path) -> None:
    """A stream that was quiet for an hour: one commit, one slide record, everything expired that had to."""
    shape, truth = SHAPES["fixed"], SHAPES["fixed"].oracle()
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, windrow.Index("round-robin", 4, 4))
        choice = random.Random(1)
        for turn in range(4):
            batch = [shape.row(turn * 10 + i, BASE + turn * DELTA + 1 + i, None, choice) for i in range(10)]
            wh.append(S, shape.table(batch))
            wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
            truth.append(batch, recorded_history.CLOCK)
            truth.slide(recorded_history.CLOCK, BASE + (turn + 1) * DELTA)
        last = [shape.row(100 + i, BASE + 63 * DELTA + i, None, choice) for i in range(10)]
        wh.append(S, shape.table(last))
        truth.append(last, recorded_history.CLOCK)
        version, ordinal = wh.status().version, wh.stream(S).last.ordinal
        report = wh.slide(S, to=when(BASE + 64 * DELTA))
        truth.slide(recorded_history.CLOCK, BASE + 64 * DELTA)
        assert report.slide - report.previous == 60
        assert (report.inserted, report.expired) == (10, 40)
        assert wh.status().version == version + 1
        assert wh.stream(S).last.ordinal == ordinal + 1
        assert report.touched <= 16
        assert_rows(wh.scan(S).read_all(), truth.live())
        assert wh.stream(S).segments == len({segment.cell for segment in segments(wh)})
        recorded_history.assert_sound(wh)


@pytest.mark.parametrize("shape_name", ["fixed", "per-row-rich", "never", "keyless"])
def test_all_layouts_and_maintenances_give_the_same_answers(path: Path, shape_name: str) -> None:
    shape = SHAPES[shape_name]
    operations = [op for op in recorded_history.operations(shape, seed=12) if op[0] != "table"]
    truths = recorded_history.expected_states(shape, operations)
    for layout, index in LAYOUTS.items():
        with recorded_history.open_warehouse(path / layout) as wh:
            shape.create(wh, S, index)
            for operation, truth in zip(operations, truths[1:], strict=True):
                recorded_history.perform(wh, shape, operation)
                for window in (None, DELTA, DELTA + 1, DELTA // 2) if operation[0] == "slide" else (None,):
                    length = None if window is None else f"{window} us"
                    assert_rows(wh.scan(S, window=length).read_all(), truth.live(window), f"{layout} {window}")
            recorded_history.assert_sound(wh)


def payload_rows(turn: int, rows: int, size: int, noise: np.random.Generator) -> pa.Table:
    stamps = pa.array(BASE + turn * DELTA + 1 + np.arange(rows), US)
    payload = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), rows, [None, pa.py_buffer(noise.bytes(rows * size))]
    )
    life = noise.integers(1, 20 * DELTA, rows)
    return pa.table(
        {
            "ts": stamps,
            "exp": pa.array(stamps.cast(pa.int64()).to_numpy() + life, US),
            "k": noise.integers(0, 100, rows),
            "payload": payload,
        }
    )


def test_a_slide_adopts_large_files_without_writing_their_rows_again(path: Path) -> None:
    noise = np.random.default_rng(2)
    table = payload_rows(0, 4000, 1000, noise)
    with recorded_history.open_warehouse(path) as wh:
        index = windrow.Index("round-robin", 2, 2, maintenance="norebuild")
        wh.create_stream(
            S,
            table.schema,
            time="ts",
            key="k",
            slide=f"{DELTA} us",
            expires="exp",
            max_lifetime=f"{20 * DELTA} us",
            index=index,
        )
        appended = wh.append(S, table)
        before = {
            p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "streams" / S / "segments").iterdir()
        }
        assert appended.bytes_written == sum(data_files(wh).values())
        report = wh.slide(S, to=when(BASE + DELTA))
        assert (report.bytes_written, report.rebuilt, report.inserted) == (0, 0, 4000)
        after = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "streams" / S / "segments").iterdir()}
        assert after == before


@pytest.mark.parametrize("maintenance", ["norebuild", "adaptive"])
def test_many_small_files_of_one_slide_are_merged_once(path: Path, maintenance: str) -> None:
    shape, choice, truth = SHAPES["fixed"], random.Random(4), SHAPES["fixed"].oracle()
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, windrow.Index("round-robin", 2, 2, maintenance=maintenance))
        wh._store.small_rows = 0
        for turn in range(3):
            for part in range(50):
                batch = [
                    shape.row(turn * 1000 + part * 3 + i, BASE + turn * DELTA + 1 + part, None, choice)
                    for i in range(3)
                ]
                wh.append(S, shape.table(batch))
                truth.append(batch, recorded_history.CLOCK)
            report = wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
            truth.slide(recorded_history.CLOCK, BASE + (turn + 1) * DELTA)
            assert report.rebuilt >= 1
            fresh = [s for s in segments(wh) if s.last_slide == report.slide == s.first_slide]
            assert len({s.file for s in fresh}) == 1, "one slide, one file"
            assert len(fresh) <= 2, "at most one segment per expiry column"
        assert wh.stream(S).files <= 3
        assert_rows(wh.scan(S).read_all(), truth.live())
        before = data_files(wh)
        quiet = wh.slide(S, to=when(BASE + 4 * DELTA))
        assert (quiet.bytes_written, quiet.rebuilt) == (0, 0), "merged once, not at every slide"
        assert data_files(wh).keys() <= before.keys()


def test_the_cost_of_a_slide_follows_its_batch_not_the_window(path: Path) -> None:
    """Adaptive maintenance pays for merges from a budget: no slide rewrites more than about a batch, and all together
    no more than the budget's share of what came in, though the window grows to twenty batches."""
    noise = np.random.default_rng(5)
    index = windrow.Index("round-robin", 2, 2, max_segments=2, dead_fraction=0.3)
    with recorded_history.open_warehouse(path) as wh:
        schema = payload_rows(0, 1, 1000, noise).schema
        wh.create_stream(
            S,
            schema,
            time="ts",
            key="k",
            slide=f"{DELTA} us",
            expires="exp",
            max_lifetime=f"{20 * DELTA} us",
            index=index,
        )
        taken, rewritten, most = 0, 0, 0.0
        for turn in range(45):
            batch = wh.append(S, payload_rows(turn, 1200, 1000, noise)).bytes_written
            report = wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
            taken, rewritten, most = (
                taken + batch,
                rewritten + report.bytes_written,
                max(most, report.bytes_written / batch),
            )
        assert most <= 2.2, "one slide never rewrites much more than what it takes in"
        assert 0 < rewritten <= 1.5 * taken, "merging was needed here, and was bounded"
        recorded_history.assert_sound(wh)


@pytest.mark.parametrize(("dead_fraction", "stored"), [(0.75, 2.2), (0.2, 1.45)])
def test_dead_rows_take_a_bounded_share_of_the_disk(path: Path, dead_fraction: float, stored: float) -> None:
    """Lives up to twenty slots, most of them short: without merging, three of four stored rows would be dead.
    What was replaced goes with the slide that replaces it, unless a reader still has it."""
    noise = np.random.default_rng(7)
    with recorded_history.open_warehouse(path) as wh:
        schema = payload_rows(0, 1, 1000, noise).schema
        wh.create_stream(
            S, schema, time="ts", key="k", slide=f"{DELTA} us", expires="exp", max_lifetime=f"{20 * DELTA} us",
            index=windrow.Index("round-robin", 4, 4, dead_fraction=dead_fraction),
        )  # fmt: skip
        shares, taken, rewritten, replaced = [], 0, 0, 0
        for turn in range(46):
            rows = payload_rows(turn, 1000, 1000, noise)
            begins = rows["ts"].cast(pa.int64()).to_numpy()
            lives = (noise.random(len(rows)) ** 3 * 20 * DELTA).astype(np.int64) + 1
            rows = rows.set_column(1, "exp", pa.array(begins + lives, US))
            taken += wh.append(S, rows).bytes_written
            reader = wh.snapshot() if turn > 40 else None
            seen = None if reader is None else sum(batch.num_rows for batch in reader.scan(S))
            report = wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
            rewritten += report.bytes_written
            if reader is not None:
                replaced += report.rebuilt
                assert sum(batch.num_rows for batch in reader.scan(S)) == seen, "what a reader sees stays"
                reader.close()
            elif turn > 30:
                live = sum(segment.live_bytes(report.slide) for segment in segments(wh))
                shares.append(sum(data_files(wh).values()) / live)
        assert np.median(shares) < stored
        assert replaced, "merging was needed while readers were there"
        assert rewritten <= 1.5 * taken
        recorded_history.assert_sound(wh)


def test_a_stream_that_chose_for_itself_changes_its_layout_when_late_rows_come(path: Path) -> None:
    """wave-insertion as long as rows leave in the order in which they came; round-robin when late rows show otherwise.
    What was spooled for the old layout meanwhile is adopted as it is."""
    shape, truth, choice = SHAPES["fixed"], SHAPES["fixed"].oracle(), random.Random(6)
    number = iter(range(10_000))

    def batch(ts: int, rows: int = 20) -> list[dict[str, Any]]:
        return [shape.row(next(number), ts + i, None, choice) for i in range(rows)]

    with recorded_history.open_warehouse(path) as other:
        shape.create(other, S, "auto")
        for turn in range(3):
            rows = batch(BASE + turn * DELTA + 1)
            other.append(S, shape.table(rows))
            truth.append(rows, recorded_history.CLOCK)
            assert other.slide(S, to=when(BASE + (turn + 1) * DELTA)).late == 0
            truth.slide(recorded_history.CLOCK, BASE + (turn + 1) * DELTA)
        assert other.stream(S).index.startswith("wave-insertion")
        late, meanwhile = batch(BASE + 2 * DELTA + 5), batch(BASE + 4 * DELTA + 5)
        other.append(S, shape.table(late))
        truth.append(late, recorded_history.CLOCK)
        hook = CallAtStep("slide.planned", lambda: other.append(S, shape.table(meanwhile)))
        with recorded_history.open_warehouse(path, files=hook) as wh:
            report = wh.slide(S, to=when(BASE + 4 * DELTA))
            assert report.late == 20
            truth.slide(recorded_history.CLOCK, BASE + 4 * DELTA)
            truth.append(meanwhile, recorded_history.CLOCK)
            status = wh.stream(S)
            assert status.index.startswith("round-robin")
            assert "late rows" in status.index_why
            assert status.spooled_rows == 20
            for turn in range(5, 14):
                rows = batch(BASE + turn * DELTA - 5)
                wh.append(S, shape.table(rows))
                truth.append(rows, recorded_history.CLOCK)
                expected = truth.slide(recorded_history.CLOCK, BASE + turn * DELTA)
                report = wh.slide(S, to=when(BASE + turn * DELTA))
                assert (report.inserted, report.expired, report.late) == (
                    expected.inserted,
                    expected.expired,
                    expected.late,
                )
                assert_rows(wh.scan(S).read_all(), truth.live(), f"slide {turn}")
                assert_rows(wh.probe(S, 1), truth.probe(keys=[(1,)]), f"slide {turn}")
                recorded_history.assert_sound(wh)
            assert {segment.layout for segment in segments(wh)} == {1}, "the old layout has emptied out"


@pytest.mark.parametrize("layout", ["round-robin-rebuild", "adaptive-eager", "chronological-norebuild"])
def test_every_row_keeps_its_place_in_arrival_order_through_slides_and_merges(path: Path, layout: str) -> None:
    """The hidden sequence: the slide in its high bits, arrival within it in the low ones; never in an answer."""
    shape, choice = SHAPES["per-row"], random.Random(10)
    arrived: list[list[int]] = []
    number = iter(range(100_000))
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, LAYOUTS[layout])
        for turn in range(6):
            taken: list[int] = []
            for _ in range(3):
                batch = [
                    shape.row(next(number), BASE + turn * DELTA + choice.randint(1, DELTA), 6 * DELTA, choice)
                    for _ in range(15)
                ]
                wh.append(S, shape.table(batch))
                taken += [row["n"] for row in batch]
            arrived.append(taken)
            wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
        actual: dict[int, int] = {}
        for segment in segments(wh):
            rows = pq.read_table(path / segment.file, columns=["n", "_seq"]).slice(segment.start, segment.rows)
            actual |= dict(
                zip(
                    rows.column("n").to_pylist(),
                    (rows.column("_seq").to_numpy() + segment.seq_base).tolist(),
                    strict=True,
                )
            )
        live = wh.scan(S).read_all()
        assert "_seq" not in live.schema.names
    in_order = sorted(actual, key=actual.__getitem__)
    everything = [n for taken in arrived for n in taken if n in actual]
    assert len(everything) > 45
    assert in_order == everything
    for ordinal, taken in enumerate(arrived, 1):
        assert {actual[n] >> SEQ_BITS for n in taken if n in actual} <= {ordinal}


def test_live_rows_are_those_that_an_answer_would_give(path: Path) -> None:
    """Also when rows are ahead of the clock: taken in, but not live yet."""
    shape = SHAPES["fixed"]
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, windrow.Index("round-robin", 2, 2))
        times = [BASE + 1, BASE + DELTA, BASE + DELTA + 1, BASE + 2 * DELTA]
        wh.append(S, shape.table([{"ts": ts, "k": 1, "text": "", "n": i} for i, ts in enumerate(times)]))
        for now in (BASE + DELTA, BASE + 2 * DELTA, BASE + 4 * DELTA, BASE + 5 * DELTA, BASE + 6 * DELTA):
            wh.slide(S, to=when(now))
            assert wh.stream(S).live_rows == wh.scan(S).read_all().num_rows


def test_a_slide_that_does_not_move_changes_nothing(path: Path) -> None:
    shape = SHAPES["fixed"]
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, "auto")
        wh.append(S, shape.table([{"ts": BASE + 1, "k": 1, "text": "", "n": 1}]))
        wh.slide(S, to=when(BASE + DELTA))
        wh.append(S, shape.table([{"ts": BASE + DELTA + 1, "k": 1, "text": "", "n": 2}]))
        version = wh.status().version
        for to in (None, when(BASE + DELTA), when(BASE), when(BASE + 2 * DELTA - 1)):
            report = wh.slide(S, to=to)
            assert not report.moved
            assert (report.inserted, report.expired, report.late, report.touched, report.bytes_written) == (
                0,
                0,
                0,
                0,
                0,
            )
        assert wh.status().version == version
        assert wh.stream(S).spooled_rows == 1


def test_clean_up_is_never_needed_for_right_answers(path: Path) -> None:
    """norebuild, and a reader that pins all from the start: nothing can go, and no expired row shows up."""
    shape, truth, choice = SHAPES["per-row"], SHAPES["per-row"].oracle(), random.Random(2)
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, S, windrow.Index("round-robin", 2, 2, maintenance="norebuild"))
        with wh.snapshot():
            for turn in range(12):
                batch = [
                    shape.row(turn * 50 + i, BASE + turn * DELTA + 1 + i, choice.randint(1, 3 * DELTA), choice)
                    for i in range(20)
                ]
                wh.append(S, shape.table(batch))
                truth.append(batch, recorded_history.CLOCK)
                wh.slide(S, to=when(BASE + (turn + 1) * DELTA))
                truth.slide(recorded_history.CLOCK, BASE + (turn + 1) * DELTA)
                assert_rows(wh.scan(S).read_all(), truth.live())
            assert wh.gc().waiting > 0
        assert wh.gc().waiting == 0
        assert_rows(wh.scan(S).read_all(), truth.live())


def test_reports_name_the_time_that_passed_only_as_a_figure(path: Path) -> None:
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, "auto")
        assert wh.append(S, SHAPES["fixed"].table([{"ts": BASE + SECOND, "k": 1, "text": "", "n": 1}])).seconds >= 0
        assert wh.slide(S, to=when(BASE + DELTA)).seconds >= 0
