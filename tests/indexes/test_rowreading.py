"""Row ranges as arrays must name the rows that a loop over them names; oracles are plain lists and pyarrow's reader."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import DamageError
from windrow.indexes.parquet import FileReader
from windrow.indexes.rowreading import Spans, read_spans
from windrow.indexes.writing import SegmentFileWriter

RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 6)), max_size=12)


def spans_of(ranges: list[tuple[int, int, int]]) -> Spans:
    columns = np.array(ranges, np.int64).reshape(-1, 3)
    return Spans(("a", "b", "c"), columns[:, 0].copy(), columns[:, 1].copy(), (columns[:, 1] + columns[:, 2]).copy())


def rows_of(spans: Spans) -> list[tuple[int, int]]:
    ranges = zip(spans.part.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
    return [(part, row) for part, start, stop in ranges for row in range(start, stop)]


@given(RANGES, st.randoms())
def test_a_mask_leaves_those_rows_for_which_it_is_true(
    ranges: list[tuple[int, int, int]], chance: random.Random
) -> None:
    spans = spans_of(ranges)
    rows = rows_of(spans)
    mask = [chance.random() < 0.6 for _ in rows]
    kept = spans.where(np.array(mask, bool))
    assert rows_of(kept) == [row for row, there in zip(rows, mask, strict=True) if there]
    assert kept.rows == sum(mask)


def test_no_ranges_are_no_rows(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    assert read_spans(Spans.of({}), schema, schema, FileReader(tmp_path)).equals(schema.empty_table())
    assert rows_of(Spans.of_segments([])) == []


SCHEMAS = {
    "by our own writer": pa.schema([("n", pa.int64()), ("s", pa.string())]),
    "by pyarrow": pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))]),
}


def table_of(schema: pa.Schema, rows: int, width: int) -> pa.Table:
    """Rows that gain nothing from dictionary or compression."""
    chance = random.Random(width)
    texts = [None if n % 7 == 0 else chance.randbytes(width).hex() for n in range(rows)]
    columns = {"n": [chance.getrandbits(62) for _ in range(rows)], "s": texts}
    return pa.table({**columns, "l": [[n, n] for n in range(rows)]}).select(schema.names).cast(schema)


@pytest.mark.parametrize("how", SCHEMAS)
@pytest.mark.parametrize("width", [5, 200])
def test_ranges_of_written_files_are_the_rows_that_pyarrow_reads(how: str, width: int, tmp_path: Path) -> None:
    schema = SCHEMAS[how]
    table = table_of(schema, 900, width)
    order = np.random.default_rng(3).permutation(900).astype(np.int64)
    for name, cut in (("a", 900), ("b", 400)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink:
            writer = SegmentFileWriter(sink, schema, 64 << 10, ["n"])
            writer.add(table, order[:cut])
            writer.close()
    reader = FileReader(tmp_path)
    files = {name: pq.read_table(tmp_path / name) for name in ("a", "b")}
    assert files["a"].equals(table.take(pa.array(order)))
    ranges = [(0, 5, 300), (1, 0, 400), (0, 0, 900), (1, 399, 1), (0, 100, 0)]
    columns = np.array(ranges, np.int64)
    spans = Spans(("a", "b"), columns[:, 0].copy(), columns[:, 1].copy(), (columns[:, 1] + columns[:, 2]).copy())
    expected = pa.concat_tables([files["ab"[part]].slice(start, count) for part, start, count in ranges])
    assert read_spans(spans, schema, schema, reader).to_pylist() == expected.to_pylist()


def test_text_that_is_not_copied_outlives_its_file(tmp_path: Path) -> None:
    """A whole page is handed out where it lies; removing the file, as reclaiming does, must not change it."""
    schema = SCHEMAS["by our own writer"]
    table = table_of(schema, 500, 200)
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink:
        writer = SegmentFileWriter(sink, schema, 1 << 20)
        writer.add(table)
        writer.close()
    reader = FileReader(tmp_path)
    before = pa.total_allocated_bytes()
    rows = read_spans(Spans.of({"a": [(0, 500)]}), schema, schema, reader)
    assert pa.total_allocated_bytes() - before < table.nbytes / 4, "the text was copied"
    (tmp_path / "a").unlink()
    reader.forget(["a"])
    del reader
    assert rows.equals(table)


def test_a_flipped_bit_in_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    schema = SCHEMAS["by our own writer"]
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink:
        writer = SegmentFileWriter(sink, schema, 1 << 20)
        writer.add(table_of(schema, 500, 40))
        writer.close()
    raw = bytearray((tmp_path / "a").read_bytes())
    raw[len(raw) // 2] ^= 4
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(DamageError, match="segment file a is damaged"):
        read_spans(Spans.of({"a": [(0, 500)]}), schema, schema, FileReader(tmp_path))
