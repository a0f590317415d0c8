"""What the page writer writes, everybody must read as the rows that were given: pyarrow and DuckDB are the oracles.

pyarrow compares the checksum of each page while it reads; zlib says what the checksums have to be.
"""

import io
import random
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_values import VALUE_MAKERS
from windrow.native import parquet_reader, parquet_writer

OURS = [kind for kind in VALUE_MAKERS if not pa.types.is_dictionary(kind) and not pa.types.is_null(kind)]
LEFT = [
    pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.null(),
    pa.timestamp("s"),
    pa.time32("s"),
    pa.date64(),
]
COUNTED = [kind for kind in OURS if pa.types.is_integer(kind)]


def written(table: pa.Table, orders: list[list[int]], extremes: tuple[str, ...] = ()) -> bytes:
    """A file with a row group for each order."""
    sink = io.BytesIO()
    writer = parquet_writer.PageWriter(sink, table.schema, extremes)
    columns = [column.chunk(0) for column in table.columns]
    for order in orders:
        writer.add_group(columns, np.array(order, np.int64))
    writer.close()
    raw = sink.getvalue()
    assert (writer.size, writer.digest) == (len(raw), xxhash.xxh3_64_hexdigest(raw))
    assert writer.rows == sum(map(len, orders))
    return raw


def read(raw: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True).read().combine_chunks()


def random_table(r: random.Random, kinds: list[pa.DataType], rows: int, nulls: float) -> pa.Table:
    """Columns of some types, that begin in the middle of their buffers."""
    arrays = [
        pa.array([None if r.random() < nulls else VALUE_MAKERS[kind](r) for _ in range(rows + 3)], kind).slice(3)
        for kind in kinds
    ]
    return pa.table(arrays, names=[f"c{i}" for i in range(len(kinds))])


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(OURS), min_size=1, max_size=6),
    rows=st.sampled_from([1, 7, 8, 9, 33, 129, 600]),
    nulls=st.sampled_from([0.0, 0.3, 1.0]),
    groups=st.integers(0, 3),
)
def test_everybody_reads_the_rows_in_the_given_order(
    seed: int, kinds: list[pa.DataType], rows: int, nulls: float, groups: int
) -> None:
    r = random.Random(seed)
    table = random_table(r, kinds, rows, nulls)
    orders = [[r.randrange(rows) for _ in range(r.choice([0, 1, rows, 2 * rows]))] for _ in range(groups)]
    raw = written(table, orders)
    expected = table.take(pa.array([at for order in orders for at in order], pa.int64())).combine_chunks()
    assert pq.read_schema(pa.BufferReader(raw)).equals(table.schema)
    assert read(raw).to_pylist() == expected.to_pylist()
    layout = parquet_reader.open_file_layout(raw, table.schema)
    assert not layout.declined
    ours = parquet_reader.read_ranges([(raw, layout, [0], [expected.num_rows])], table.schema.names, table.schema)
    assert ours.to_pylist() == expected.to_pylist()


def duck(path: Path) -> Any:
    return duckdb.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table().to_pylist()


@pytest.mark.parametrize("kind", OURS, ids=str)
def test_duckdb_reads_each_type_as_it_does_from_pyarrow(kind: pa.DataType, tmp_path: Path) -> None:
    r = random.Random(str(kind))
    table = random_table(r, [kind], 300, 0.2)
    order = [r.randrange(300) for _ in range(500)]
    (tmp_path / "ours").write_bytes(written(table, [order[:100], order[100:]]))
    pq.write_table(table.take(pa.array(order)), tmp_path / "theirs", compression="none", use_dictionary=False)
    try:
        expected = duck(tmp_path / "theirs")
    except duckdb.Error:
        pytest.skip("DuckDB cannot read it from pyarrow either")
    assert duck(tmp_path / "ours") == expected


@pytest.mark.parametrize("kind", LEFT, ids=str)
def test_what_pyarrow_must_convert_is_left_to_it(kind: pa.DataType) -> None:
    with pytest.raises(parquet_writer.Declined):
        parquet_writer.PageWriter(io.BytesIO(), pa.schema([("a", pa.int64()), ("b", kind)]))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from([*COUNTED, pa.timestamp("us"), pa.date32()]),
    nulls=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_least_and_greatest_of_a_row_group_are_true(seed: int, kind: pa.DataType, nulls: float) -> None:
    r = random.Random(seed)
    table = random_table(r, [kind], 50, nulls)
    order = [r.randrange(50) for _ in range(40)]
    cuts = [0, 13, 40]
    raw = written(table, [order[a:b] for a, b in pairwise(cuts)], ("c0",))
    for group, (a, b) in enumerate(pairwise(cuts)):
        found = pq.read_metadata(pa.BufferReader(raw)).row_group(group).column(0).statistics
        rows = table.column("c0").take(pa.array(order[a:b]))
        assert found.null_count == rows.null_count
        assert found.has_min_max == (rows.null_count < len(rows))
        if found.has_min_max:
            extremes = pc.min_max(rows)
            low, high = extremes["min"].as_py(), extremes["max"].as_py()
            if pa.types.is_timestamp(kind):
                low, high = (at.replace(tzinfo=found.min.tzinfo) for at in (low, high))
            assert (found.min, found.max) == (low, high)


def test_texts_of_many_lengths_and_several_pages_come_back() -> None:
    """Lengths jump by millions of bytes and pages end inside a row group."""
    r = random.Random(5)
    texts = [r.randbytes(r.choice([0, 1, 100, 5000, 3_000_000 if at % 97 == 0 else 9])) for at in range(700)]
    table = pa.table({"b": pa.array(texts, pa.large_binary()), "n": pa.array(range(700))})
    order = list(range(699, -1, -1))
    back = read(written(table, [order]))
    assert back.column("b").to_pylist() == texts[::-1]
    assert back.column("n").to_pylist() == order


@given(st.binary(max_size=700), st.integers(0, 90))
def test_checksums_are_those_of_gzip(data: bytes, skipped: int) -> None:
    assert parquet_writer.crc32(data) == zlib.crc32(data)
    assert parquet_writer.crc32(data[skipped:]) == zlib.crc32(data[skipped:])


def test_a_flipped_bit_in_a_page_is_told_and_not_returned() -> None:
    table = pa.table({"n": pa.array(range(1000)), "s": pa.array([f"text {at}" for at in range(1000)])})
    raw = bytearray(written(table, [list(range(1000))]))
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    r = random.Random(3)
    for at in r.sample(range(60, footer - 60), 200):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << r.randrange(8)
        layout = parquet_reader.open_file_layout(damaged, table.schema)
        for name in table.schema.names:
            try:
                rows = parquet_reader.read_ranges([(damaged, layout, [0], [1000])], [name], table.schema)
            except (parquet_reader.Damaged, parquet_reader.Declined):
                continue
            assert rows.column(0).to_pylist() == table.column(name).to_pylist()


def test_rows_that_are_not_there_and_nulls_that_may_not_be_are_refused() -> None:
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    writer = parquet_writer.PageWriter(io.BytesIO(), required)
    for order in ([3], [-1], [0, 1 << 62]):
        with pytest.raises(IndexError, match="order"):
            writer.add_group([pa.array([1, 2, 3])], np.array(order, np.int64))
    with pytest.raises(ValueError, match="never null"):
        parquet_writer.PageWriter(io.BytesIO(), required).add_group([pa.array([1, None])], np.array([0, 1], np.int64))
    with pytest.raises(ValueError, match="2 columns"):
        writer.add_group([pa.array([1]), pa.array([1])], np.array([0], np.int64))
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 99, 5], np.int32)), pa.py_buffer(b"short")]
    )
    with pytest.raises(ValueError, match="offsets"):
        parquet_writer.PageWriter(io.BytesIO(), pa.schema([("s", pa.string())])).add_group(
            [broken], np.array([0], np.int64)
        )
