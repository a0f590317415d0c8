"""Row ranges as arrays must name the rows that a loop over them names; oracles are plain lists and pyarrow's reader."""

import datetime as dt
import gc
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import DamageError, SearchKeyError
from windrow.indexes import scan
from windrow.indexes.row_model import RowModel, encode_key, encode_value
from windrow.indexes.scan import scan_segments
from windrow.indexes.segment_reader import SegmentFileReader, Spans, read_live_spans, read_spans
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds
from windrow.native import key_encoding, parquet_reader

EPOCH, MICRO = dt.datetime(1970, 1, 1), dt.timedelta(microseconds=1)
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


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_key_that_is_a_whole_number_is_encoded_as_in_the_directories(number: int) -> None:
    encoded = key_encoding.encode([pa.array([number], pa.int64())])[0].as_py()
    assert encode_key([number], [pa.int64()], ["n"]) == encoded


NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


@given(st.sampled_from(NUMBERS), st.one_of(st.integers(-(1 << 64), 1 << 64), st.integers(-300, 300)))
def test_a_whole_number_is_encoded_as_in_the_directories_if_its_type_can_hold_it(
    kind: pa.DataType, number: int
) -> None:
    try:
        encoded = key_encoding.encode([pa.array([number], kind)])[0].as_py()
    except (pa.ArrowInvalid, OverflowError):
        encoded = None
    assert encode_value(number, kind) == encoded


@given(st.sampled_from((pa.string(), pa.large_string())), st.text(st.sampled_from("a\0\x01\xffé\u2028𝄞"), max_size=6))
def test_a_text_is_encoded_as_in_the_directories(kind: pa.DataType, text: str) -> None:
    assert encode_value(text, kind) == key_encoding.encode([pa.array([text], kind)])[0].as_py()


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, pa.int64()), (1.0, pa.int64()), (1, pa.float64()), (1, pa.timestamp("us")), ("1", pa.int64()),
     (1, pa.string()), ("\ud800", pa.string()), (None, pa.int64()), (b"a", pa.string()), ("a", pa.binary())],
)  # fmt: skip
def test_what_is_not_plainly_of_its_type_is_left_to_the_kernel(value: object, kind: pa.DataType) -> None:
    assert encode_value(value, kind) is None


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, "1"])
def test_a_key_that_is_not_of_its_type_is_refused(value: object) -> None:
    with pytest.raises(SearchKeyError, match="'n'"):
        encode_key([value], [pa.int64()], ["n"])


def test_no_ranges_are_no_rows(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    assert read_spans(Spans.of({}), schema, schema, SegmentFileReader(tmp_path)).equals(schema.empty_table())
    assert rows_of(Spans.of_segments([])) == []


SCHEMAS = {
    "flat columns": pa.schema([("n", pa.int64()), ("s", pa.string())]),
    "by pyarrow": pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))]),
}


def table_of(schema: pa.Schema, rows: int, width: int) -> pa.Table:
    """Rows that gain nothing from dictionary or compression."""
    chance = random.Random(width)
    letters = "".join(map(chr, range(33, 127)))
    texts = [None if n % 7 == 0 else "".join(chance.choices(letters, k=2 * width)) for n in range(rows)]
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
    reader = SegmentFileReader(tmp_path)
    files = {name: pq.read_table(tmp_path / name) for name in ("a", "b")}
    assert files["a"].equals(table.take(pa.array(order)))
    ranges = [(0, 5, 300), (1, 0, 400), (0, 0, 900), (1, 399, 1), (0, 100, 0)]
    columns = np.array(ranges, np.int64)
    spans = Spans(("a", "b"), columns[:, 0].copy(), columns[:, 1].copy(), (columns[:, 1] + columns[:, 2]).copy())
    expected = pa.concat_tables([files["ab"[part]].slice(start, count) for part, start, count in ranges])
    assert read_spans(spans, schema, schema, reader).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("limit", [0, 40_000, 1 << 20])
def test_few_rows_of_compressed_pages_are_right_whatever_is_kept_of_them(
    codec: str, limit: int, tmp_path: Path
) -> None:
    """Pages that were unpacked for single rows are kept within a limit; a scan leaves them alone."""
    count, chance = 4000, np.random.default_rng(8)
    table = pa.table(
        {
            "n": pa.array(chance.integers(0, 50, count), mask=chance.random(count) < 0.1),
            "s": pa.array([f"text {n % 700} of many {n}" for n in range(count)], mask=chance.random(count) < 0.1),
        }
    )
    settings = {"compression": codec, "use_dictionary": ["n"], "column_encoding": {"s": "DELTA_LENGTH_BYTE_ARRAY"}}
    for name in "ab":
        with pq.ParquetWriter(tmp_path / name, table.schema, max_rows_per_page=500, **settings) as writer:
            writer.write_table(table)
    reader = SegmentFileReader(tmp_path, page_bytes=limit)
    assert read_spans(Spans.of({"a": [(0, count)]}), table.schema, table.schema, reader).equals(table)
    assert reader._pages.used == 0
    for start in chance.integers(0, count - 3, 60).tolist():
        actual = read_spans(Spans.of({name: [(start, start + 3)] for name in "ab"}), table.schema, table.schema, reader)
        assert actual.to_pylist() == 2 * table.slice(start, 3).to_pylist()
        assert reader._pages.used <= limit
    assert (reader._pages.used > 0) == (limit > 0)


def test_text_that_is_not_copied_outlives_its_file(tmp_path: Path) -> None:
    """A whole page is handed out where it lies; removing the file, as reclaiming does, must not change it."""
    schema = SCHEMAS["flat columns"]
    table = table_of(schema, 500, 200)
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink:
        writer = SegmentFileWriter(sink, schema, 1 << 20)
        writer.add(table)
        writer.close()
    reader = SegmentFileReader(tmp_path)
    before = pa.total_allocated_bytes()
    rows = read_spans(Spans.of({"a": [(0, 500)]}), schema, schema, reader)
    assert pa.total_allocated_bytes() - before < table.nbytes / 4, "the text was copied"
    (tmp_path / "a").unlink()
    reader.forget(["a"])
    del reader
    assert rows.equals(table)


def test_a_flipped_bit_in_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    schema = SCHEMAS["flat columns"]
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink:
        writer = SegmentFileWriter(sink, schema, 1 << 20)
        writer.add(table_of(schema, 500, 40))
        writer.close()
    raw = bytearray((tmp_path / "a").read_bytes())
    raw[len(raw) // 2] ^= 4
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(DamageError, match="file a is damaged"):
        read_spans(Spans.of({"a": [(0, 500)]}), schema, schema, SegmentFileReader(tmp_path))


AT = pa.timestamp("us")
TIMED = pa.schema([("at", AT), ("gone", AT), ("s", pa.string())])


def timed_files(folder: Path, counts: list[int], width: int) -> dict[str, pa.Table]:
    """Files of rows with random times, as their tables."""
    chance, files = random.Random(width), {}
    for number, count in enumerate(counts):
        position, gone = ([chance.randrange(100) for _ in range(count)] for _ in range(2))
        texts = [None if n % 11 == 5 else chance.randbytes(width).hex() for n in range(count)]
        files[f"f{number}"] = pa.table(
            [pa.array(position).cast(AT), pa.array(gone).cast(AT), pa.array(texts, pa.string())], schema=TIMED
        )
        with pa.OSFile(str(folder / f"f{number}"), "wb") as sink:
            writer = SegmentFileWriter(sink, TIMED, 1 << 20)
            writer.add(files[f"f{number}"])
            writer.close()
    return files


@pytest.mark.parametrize("width", [4, 600])
@pytest.mark.parametrize(("after", "upto", "now"), [(None, 99, 0), (None, 60, 30), (20, 99, 98), (40, 39, 0)])
def test_rows_within_limits_are_those_that_a_loop_over_all_rows_keeps(
    width: int, after: int | None, upto: int, now: int, tmp_path: Path
) -> None:
    files = timed_files(tmp_path, [1, 700, 3000], width)
    ranges = {"f1": [(0, 10), (10, 10), (500, 700)], "f2": [(7, 2900)], "f0": [(0, 1)]}
    model = RowModel("at", (), "gone", None, 0, 10)
    bounds = WindowBounds(after, upto, now)
    actual = read_live_spans(Spans.of(ranges), bounds, model, TIMED, TIMED, SegmentFileReader(tmp_path))
    expected = [
        row
        for file, pairs in ranges.items()
        for start, stop in pairs
        for row in files[file].slice(start, stop - start).to_pylist()
        if row["gone"] > EPOCH + now * MICRO
        and row["at"] <= EPOCH + upto * MICRO
        and (after is None or row["at"] > EPOCH + after * MICRO)
    ]
    assert actual.to_pylist() == expected
    assert bounds.limits(model, TIMED) is not None


def test_a_flipped_bit_is_told_where_only_live_rows_are_read(tmp_path: Path) -> None:
    timed_files(tmp_path, [4000], 600)
    raw = bytearray((tmp_path / "f0").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "f0").write_bytes(raw)
    model, bounds = RowModel("at", (), "gone", None, 0, 10), WindowBounds(None, 99, 30)
    with pytest.raises(DamageError, match="f0"):
        read_live_spans(Spans.of({"f0": [(0, 4000)]}), bounds, model, TIMED, TIMED, SegmentFileReader(tmp_path))


def test_memory_of_long_texts_is_used_again_but_never_while_an_array_looks_at_it(tmp_path: Path) -> None:
    files = timed_files(tmp_path, [3000], 600)
    reader, wanted = SegmentFileReader(tmp_path), pa.schema([TIMED.field("s")])
    model, bounds = RowModel("at", (), "gone", None, 0, 10), WindowBounds(None, 99, 10)

    def read() -> pa.Table:
        return read_live_spans(Spans.of({"f0": [(0, 3000)]}), bounds, model, wanted, TIMED, reader)

    rows = files["f0"].filter(pc.greater(files["f0"]["gone"], pa.scalar(10, AT))).column("s").to_pylist()
    first, second = read(), read()
    held = parquet_reader.count_idle_bytes()
    assert first.column(0).to_pylist() == second.column(0).to_pylist() == rows
    del first
    gc.collect()
    assert parquet_reader.count_idle_bytes() > held
    third = read()
    assert parquet_reader.count_idle_bytes() == held
    assert third.column(0).to_pylist() == second.column(0).to_pylist() == rows


@pytest.mark.parametrize("alone", [0, 1 << 40])
def test_a_scan_gives_every_live_row_once_whoever_reads_it_and_tells_of_damage(
    alone: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_SERIAL_COPY_BYTES", alone)
    files = timed_files(tmp_path, [9000, 12_000], 700)
    model, bounds = RowModel("at", (), "gone", None, 0, 10), WindowBounds(None, 99, 40)
    segments = [segment_over(name, rows, start) for name, rows in files.items() for start in range(0, len(rows), 1000)]
    selection = Selection(bounds, (), tuple(segments))
    expected = [r for rows in files.values() for r in rows.to_pylist() if r["gone"] > EPOCH + 40 * MICRO]
    scanned = pa.Table.from_batches(scan_segments(selection, model, TIMED, TIMED, SegmentFileReader(tmp_path)), TIMED)
    assert scanned.to_pylist() == expected
    unfinished = scan_segments(selection, model, TIMED, TIMED, SegmentFileReader(tmp_path))
    next(unfinished)
    unfinished.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("windrow-scan")]
    raw = bytearray((tmp_path / "f1").read_bytes())
    raw[len(raw) - 1_000_000] ^= 1
    (tmp_path / "f1").write_bytes(raw)
    with pytest.raises(DamageError, match="f1"):
        list(scan_segments(selection, model, TIMED, TIMED, SegmentFileReader(tmp_path)))


def segment_over(file: str, rows: pa.Table, start: int) -> Segment:
    """A segment of a thousand rows; only its place matters here."""
    count = min(1000, len(rows) - start)
    numbers = dict.fromkeys(
        ["id", "layout", "row", "column", "first_slide", "last_slide", "seq_base", "min_ts", "min_exp"], 0
    )
    return Segment(
        file=file,
        start=start,
        rows=count,
        file_rows=len(rows),
        bytes=count * 1400,
        max_ts=99,
        max_exp=99,
        expiries=b"",
        **numbers,
    )
