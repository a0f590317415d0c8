"""Rows here and there in files that are not in memory are the right ones, and little else is fetched for them."""

import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from windrow.indexes.row_model import RowModel
from windrow.indexes.segment_reader import SegmentFileReader, Spans, read_live_spans, read_spans
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.selection import WindowBounds

ROWS, WIDTH = 12_000, 1000
AT = pa.timestamp("us")
SCHEMA = pa.schema([("at", AT), ("gone", AT), ("n", pa.int64()), ("s", pa.string())])


LETTERS = "".join(map(chr, range(33, 127)))
"""Of texts that compression makes little smaller."""


def made(folder: Path, files: int) -> dict[str, pa.Table]:
    chance, actual = random.Random(11), {}
    for number in range(files):
        times = [pa.array([chance.randrange(100) for _ in range(ROWS)]).cast(AT) for _ in range(2)]
        texts = ["".join(chance.choices(LETTERS, k=WIDTH)) for _ in range(ROWS)]
        rows = pa.table([*times, pa.array(range(ROWS)), pa.array(texts)], schema=SCHEMA)
        with pa.OSFile(str(folder / f"f{number}"), "wb") as sink:
            writer = SegmentFileWriter(sink, SCHEMA, 256 << 10)
            writer.add(rows)
            writer.close()
        actual[f"f{number}"] = rows
    return actual


def forget(folder: Path) -> None:
    """Have the kernel drop what it holds of files; that they are written down first is needed for it."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def fetched() -> int:
    """Bytes that this process had read from disks."""
    report = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(report["read_bytes"])


@pytest.mark.parametrize("trusted", [True, False])
def test_a_probe_of_cold_files_fetches_what_it_reads(trusted: bool, tmp_path: Path) -> None:
    files = made(tmp_path, 3)
    starts = np.arange(100, ROWS, 1500, dtype=np.int64)
    part = np.repeat(np.arange(3, dtype=np.int64), len(starts))
    start = np.tile(starts, 3)
    spans = Spans(tuple(files), part, start, start + 20)
    wanted = [files[f"f{index}"].slice(first, 20) for index, first in zip(part.tolist(), start.tolist(), strict=True)]
    stored = sum((tmp_path / name).stat().st_size for name in files)
    for turn in range(2):
        reader = SegmentFileReader(tmp_path)
        if trusted:
            reader.trust(files)
        forget(tmp_path)
        before = fetched()
        if turn:
            actual = read_spans(spans, SCHEMA, SCHEMA, reader)
            assert actual.equals(pa.concat_tables(wanted).combine_chunks())
        else:
            model, bounds = RowModel("at", (), "gone", None, 0, 10), WindowBounds(None, (1 << 63) - 1, 50)
            actual = read_live_spans(spans, bounds, model, SCHEMA, SCHEMA, reader)
            live = [row for rows in wanted for row in rows.to_pylist() if row["gone"].microsecond > 50]
            assert actual.to_pylist() == live
        # Where the kernel could not be made to forget, nothing is fetched at all.
        assert fetched() - before < (stored // 8 if trusted else stored * 3 // 4)
    assert read_spans(Spans.of({"f1": [(0, ROWS)]}), SCHEMA, SCHEMA, reader).equals(files["f1"])
