"""Merging: whatever the number and size of the runs, the rows that live come out in (key, expiry, arrival) order."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow.indexes import merge
from windrow.indexes.partitioners import Index, Partitioner
from windrow.indexes.row_model import SEQ, RowModel
from windrow.indexes.segment_builder import sort_into_segments
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.segments import Segment

SCHEMA = pa.schema([("ts", pa.timestamp("us")), ("k", pa.string()), ("exp", pa.timestamp("us")), (SEQ, pa.int64())])
MODEL = RowModel("ts", ("k",), "exp", None, 0, 1_000_000)
NOW = 5_000_000


def write_run(folder, number: int, rows: list[tuple]) -> Segment:
    """A file with one segment, as a slide would have placed it."""
    table = pa.Table.from_pylist([dict(zip(("ts", "k", "exp"), row, strict=True)) for row in rows], SCHEMA.remove(3))
    ts, exp = MODEL.times(table)[0], MODEL.expiries(table, MODEL.times(table)[0])[0]
    batch = sort_into_segments(table, MODEL, Partitioner(Index("round-robin", 1, 1), 10), ts, exp, np.arange(len(rows)))
    name = f"{number}.parquet"
    with pa.OSFile(str(folder / name), "wb") as sink:
        writer = SegmentFileWriter(sink, SCHEMA, 2048, ["k"])
        batch.write(writer)
        writer.close()
    [cut] = batch.cuts
    return Segment(
        id=number, file=name, start=0, rows=len(rows), file_rows=len(rows), bytes=(folder / name).stat().st_size,
        layout=0, row=0, column=0, first_slide=1, last_slide=1, seq_base=number * 1000, min_ts=cut.min_ts,
        max_ts=cut.max_ts, min_exp=cut.min_exp, max_exp=cut.max_exp, expiries=cut.expiries,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_runs_of_any_size_become_one(tmp_path, monkeypatch, seed):
    print("seed", seed)
    chance = random.Random(seed)
    monkeypatch.setattr(merge, "_LEAST_CHUNK", chance.choice([1, 4096, 1 << 20]))
    monkeypatch.setattr(merge, "_PORTION", chance.choice([4096, 20_000, 8 << 20]))
    segments, expected = [], []
    for number in range(40):
        rows = [
            (chance.randrange(10**6), chance.choice([None, "a", "b", "c" * 40]), chance.randrange(1, 10) * 1_000_000)
            for _ in range(chance.choice([1, 1, 1, 7, 300]))
        ]
        segments.append(write_run(tmp_path, number, rows))
        expected += [(*row, number * 1000 + index) for index, row in enumerate(rows) if row[2] > NOW]
    expected.sort(key=lambda row: (row[1] is not None, row[1] or "", row[2], row[3]))
    with pa.OSFile(str(tmp_path / "merged"), "wb") as sink:
        writer = SegmentFileWriter(sink, SCHEMA, 4096, ["k"])
        draft = merge.merge_segments(segments, 0, NOW, MODEL, SCHEMA, SegmentFileReader(tmp_path), writer)
        writer.close()
    merged = pq.read_table(tmp_path / "merged")
    plain = merged.cast(pa.schema([(name, pa.string() if name == "k" else pa.int64()) for name in SCHEMA.names]))
    assert [tuple(row.values()) for row in plain.to_pylist()] == expected
    assert (draft.rows, draft.min_exp) == (len(expected), 6_000_000)


def test_single_rows_are_read_together(tmp_path, monkeypatch):
    blocks = []
    next_block = merge._next_block
    monkeypatch.setattr(merge, "_next_block", lambda *given: blocks.append(len(given[0])) or next_block(*given))
    segments = [write_run(tmp_path, number, [(1, str(number % 7), 9_000_000)]) for number in range(200)]
    with pa.OSFile(str(tmp_path / "merged"), "wb") as sink:
        writer = SegmentFileWriter(sink, SCHEMA, 4096, ["k"])
        merge.merge_segments(segments, 0, NOW, MODEL, SCHEMA, SegmentFileReader(tmp_path), writer)
        writer.close()
    assert blocks == [1]  # one run, one block: the time is linear
