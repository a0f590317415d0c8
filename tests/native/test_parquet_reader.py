"""Row ranges read from pages must be the rows that pyarrow reads, and damage must never be read past its end.

The oracle is pyarrow's own reader. Damaged files lie flush between two pages of memory that must not be touched, so a
single byte read outside a file ends the test run.
"""

import ctypes
import decimal
import io
import mmap
import random
import threading
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_values import VALUE_MAKERS, Maker
from windrow.indexes import segment_writer
from windrow.native import parquet_reader

DECLINED = [
    pa.list_(pa.int32()),
    pa.struct([("a", pa.int32())]),
    pa.map_(pa.string(), pa.int32()),
    pa.string_view(),
    pa.timestamp("s"),
    pa.date64(),
]


def column(kind: pa.DataType, make: Maker, rows: int, nulls: float, r: random.Random) -> pa.Array:
    values = [None if r.random() < nulls else make(r) for _ in range(rows)]
    if pa.types.is_dictionary(kind):
        plain = pa.array(values, kind.value_type).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            plain.indices.cast(kind.index_type), plain.dictionary, ordered=kind.ordered
        )
    return pa.array(values, kind)


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def plain(table: pa.Table) -> pa.Table:
    """The table with dictionaries resolved: two encodings of the same values are equal."""
    arrays = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(arrays, names=table.column_names).combine_chunks()


def by_pyarrow(file: bytes, starts: list[int], stops: list[int]) -> pa.Table:
    table = pq.read_table(io.BytesIO(file))
    return pa.concat_tables([table.slice(a, b - a) for a, b in zip(starts, stops, strict=True)] or [table.slice(0, 0)])


def packed(table: pa.Table) -> dict:
    """Settings for every column in the encoding that segment files use for values that do not repeat."""
    columns = pq.ParquetFile(io.BytesIO(written(table))).schema
    kinds = {columns.column(index).path: columns.column(index).physical_type for index in range(len(columns))}
    kinds = {name: kind for name, kind in kinds.items() if not pa.types.is_dictionary(table.schema.field(name).type)}
    encodings = {name: segment_writer._PACKED[kind] for name, kind in kinds.items() if kind in segment_writer._PACKED}
    return {"use_dictionary": False, "column_encoding": encodings or None}


def some_ranges(rows: int, r: random.Random) -> tuple[list[int], list[int]]:
    edges = [sorted((r.randint(0, rows), r.randint(0, rows))) for _ in range(r.randrange(6))]
    edges += [[a, min(rows, a + r.randrange(4))] for a in (r.randint(0, rows) for _ in range(r.randrange(9)))]
    if r.random() < 0.7:
        edges.sort()
    return [a for a, _ in edges], [b for _, b in edges]


OPTIONS = st.fixed_dictionaries(
    {
        "row_group_size": st.sampled_from([1, 7, 100, 100_000]),
        "write_batch_size": st.sampled_from([1, 5, 64, 1024]),
        "data_page_size": st.sampled_from([1, 300, 1 << 20]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "dictionary_pagesize_limit": st.sampled_from([10, 1 << 20]),  # 10: falls back to plain pages in mid-chunk
        "compression": st.sampled_from(["none", "snappy", "lz4", "zstd", "gzip", "brotli"]),
        "write_statistics": st.booleans(),
        "store_decimal_as_integer": st.booleans(),
        "write_page_checksum": st.booleans(),
        "write_page_index": st.booleans(),
    }
)


@given(OPTIONS, st.integers(0, 400), st.sampled_from([0, 0.05, 0.9, 1]), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=6 * settings.default.max_examples)
def test_any_rows_of_any_file_equal_what_pyarrow_reads(options, rows, nulls, nullable, seed):
    r = random.Random(seed)
    kinds = r.sample(list(VALUE_MAKERS), r.randint(1, 6))
    parts, wanted, schema = [], [], None
    for _ in range(r.randint(1, 3)):
        columns = [column(k, VALUE_MAKERS[k], rows, nulls if nullable or k == pa.null() else 0, r) for k in kinds]
        fields = [pa.field(f"c{i}", k, nullable or k == pa.null()) for i, k in enumerate(kinds)]
        table = pa.table(columns, schema=pa.schema(fields))
        file = written(table, **(options | (packed(table) if r.random() < 0.5 else {})))
        schema = schema or pq.ParquetFile(io.BytesIO(file)).schema_arrow
        layout = parquet_reader.open_file_layout(file, schema)
        assert layout.declined == {}
        assert layout.num_rows == rows
        for _ in range(2):  # pages are found the first time, and remembered
            ranges = some_ranges(rows, r)
            parts.append((file, layout, *ranges))
            wanted.append(by_pyarrow(file, *ranges))
    names = r.sample(schema.names, r.randint(1, len(kinds)))
    result = parquet_reader.read_ranges(parts, names, schema)
    result.validate(full=True)
    assert result.schema == pa.schema([schema.field(n) for n in names])
    assert plain(result).equals(plain(pa.concat_tables(wanted).select(names)))
    assert all(c.num_chunks <= 1 for c in result.columns)


@pytest.mark.parametrize("kind", VALUE_MAKERS, ids=str)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("way", ["dictionary", "plain", "packed"])
def test_every_readable_type_is_read(kind, version, way):
    r = random.Random(1)
    table = pa.table({"c": column(kind, VALUE_MAKERS[kind], 500, 0.2, r)})
    settings = packed(table) if way == "packed" else {"use_dictionary": way == "dictionary"}
    file = written(table, data_page_version=version, row_group_size=90, **settings)
    schema = pq.ParquetFile(io.BytesIO(file)).schema_arrow
    layout = parquet_reader.open_file_layout(file, schema)
    starts, stops = [0, 85, 499, 20, 130], [1, 300, 500, 20, 140]
    result = parquet_reader.read_ranges([(file, layout, np.array(starts), np.array(stops))], ["c"], schema)
    result.validate(full=True)
    assert plain(result).equals(plain(by_pyarrow(file, starts, stops)))
    assert layout.row_groups() == [0, 90, 180, 270, 360, 450, 500]
    for start, stop in [(0, 500), (90, 180), (89, 181), (90, 91), (100, 360), (450, 500), (0, 0), (499, 600)]:
        inside = [first for first in layout.row_groups()[:-1] if start < first < stop]
        assert layout.cuts(start, min(stop, 500)) == inside


@pytest.mark.parametrize("kind", DECLINED, ids=str)
def test_types_left_to_pyarrow_are_declined_and_the_others_still_read(kind):
    table = pa.table({"odd": pa.nulls(3, kind), "n": pa.array([1, 2, 3])})
    file = written(table)
    layout = parquet_reader.open_file_layout(file, table.schema)
    assert list(layout.declined) == ["odd"]
    assert parquet_reader.read_ranges([(file, layout, [1], [3])], ["n"], table.schema)["n"].to_pylist() == [2, 3]
    with pytest.raises(parquet_reader.Declined, match="'odd'") as caught:
        parquet_reader.read_ranges([(file, layout, [1], [3])], ["n", "odd"], table.schema)
    assert caught.value.part == 0


def test_a_leaf_after_nested_columns_is_not_mistaken_for_theirs():
    nested = pa.array([{"x": 1, "y": [{"z": "a"}, {"z": "b"}]}] * 3)
    table = pa.table({"s": nested, "m": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64())), "n": [7, 8, 9]})
    file = written(table)
    layout = parquet_reader.open_file_layout(file, table.schema)
    assert set(layout.declined) == {"s", "m"}
    assert parquet_reader.read_ranges([(file, layout, [0], [3])], ["n"], table.schema)["n"].to_pylist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.int64(), pa.timestamp("us")),
        (pa.int64(), pa.duration("us")),
        (pa.duration("ms"), pa.duration("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.int32(), pa.int64()),
        (pa.uint32(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.binary(4), pa.binary(5)),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.float32(), pa.float64()),
    ],
    ids=str,
)
def test_a_column_stored_as_something_else_is_declined_not_reinterpreted(stored, wanted):
    file = written(pa.table({"c": pa.nulls(2, stored)}))
    assert "c" in parquet_reader.open_file_layout(file, pa.schema([("c", wanted)])).declined


@pytest.mark.parametrize("bits", [0, 1, 7, 8, 31, 33, 57, 63, 64])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()], ids=str)
def test_differences_of_any_width_are_read(kind, bits):
    r = random.Random(bits)
    least = -(1 << kind.bit_width - 1)
    values = [least + r.getrandbits(min(bits, kind.bit_width)) for _ in range(700)]
    table = pa.table({"c": pa.array(values, kind)})
    file = written(table, use_dictionary=False, column_encoding={"c": "DELTA_BINARY_PACKED"}, data_page_size=1000)
    layout = parquet_reader.open_file_layout(file, table.schema)
    assert parquet_reader.read_ranges([(file, layout, [0, 3], [700, 690])], ["c"], table.schema)["c"].to_pylist() == (
        values + values[3:690]
    )


def test_int96_and_texts_as_differences_are_declined():
    instant = pa.table({"c": pa.array([1, 2], pa.timestamp("ns"))})
    assert (
        "c"
        in parquet_reader.open_file_layout(
            written(instant, use_deprecated_int96_timestamps=True), instant.schema
        ).declined
    )
    words = pa.table({"c": ["a", "b"]})
    delta = written(words, use_dictionary=False, column_encoding={"c": "DELTA_BYTE_ARRAY"})
    assert "c" in parquet_reader.open_file_layout(delta, words.schema).declined


def test_a_column_added_later_is_null_in_older_files():
    old, new = pa.table({"a": [1, 2, 3]}), pa.table({"a": [4, 5], "b": ["x", "y"], "c": pa.array([1, 2], pa.int8())})
    schema = new.schema.append(pa.field("d", pa.decimal128(9, 2)))
    files = [written(t) for t in (old, new, old)]
    parts = [(f, parquet_reader.open_file_layout(f, schema), [1], [2]) for f in files]
    result = parquet_reader.read_ranges(parts, schema.names, schema)
    result.validate(full=True)
    assert result.to_pydict() == {"a": [2, 5, 2], "b": [None, "y", None], "c": [None, 2, None], "d": [None] * 3}


def test_decimals_stored_in_two_ways_meet_in_one_column():
    table = pa.table(
        {"d": pa.array([decimal.Decimal("-1.25"), None, decimal.Decimal("99999.99")], pa.decimal128(7, 2))}
    )
    files = [written(table, store_decimal_as_integer=flag, use_dictionary=flag) for flag in (True, False)]
    parts = [(f, parquet_reader.open_file_layout(f, table.schema), [0], [3]) for f in files]
    assert parquet_reader.read_ranges(parts, ["d"], table.schema)["d"].to_pylist() == table["d"].to_pylist() * 2


def test_no_rows_give_an_empty_table_of_the_right_types():
    table = pa.table({"a": [1], "d": pa.array(["x"]).dictionary_encode()})
    file = written(table)
    layout = parquet_reader.open_file_layout(file, table.schema)
    for parts in ([], [(file, layout, [], [])], [(file, layout, [1, 0], [1, 0])]):
        result = parquet_reader.read_ranges(parts, ["d", "a"], table.schema)
        assert (result.num_rows, result.schema) == (0, table.schema.empty_table().select(["d", "a"]).schema)
    empty = written(table.slice(0, 0))
    assert parquet_reader.open_file_layout(empty, table.schema).num_rows == 0


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 4), (4, 4), (0, 2**62)])
def test_rows_that_the_file_does_not_have_are_refused(start, stop):
    table = pa.table({"a": [1, 2, 3]})
    file = written(table)
    with pytest.raises(ValueError, match="are not among its 3 rows"):
        parquet_reader.read_ranges(
            [(file, parquet_reader.open_file_layout(file, table.schema), [start], [stop])], ["a"], table.schema
        )


def test_a_dictionary_too_small_for_all_files_together_is_declined():
    kind = pa.dictionary(pa.int8(), pa.string())
    words = [[f"{part}-{i}" for i in range(100)] for part in range(2)]
    files = [written(pa.table({"c": pa.array(w).dictionary_encode().cast(kind)})) for w in words]
    schema = pa.schema([("c", kind)])
    parts = [(f, parquet_reader.open_file_layout(f, schema), [0], [100]) for f in files]
    assert parquet_reader.read_ranges(parts[:1], ["c"], schema)["c"].to_pylist() == words[0]
    with pytest.raises(parquet_reader.Declined, match="distinct"):
        parquet_reader.read_ranges(parts, ["c"], schema)


def test_wrong_arguments_are_python_errors():
    table = pa.table({"a": [1]})
    file = written(table)
    layout = parquet_reader.open_file_layout(file, table.schema)
    with pytest.raises(TypeError):
        parquet_reader.FileLayout()
    with pytest.raises(TypeError):
        parquet_reader.read_ranges([(file, "layout", [0], [1])], ["a"], table.schema)
    with pytest.raises(TypeError, match="another type"):
        parquet_reader.read_ranges([(file, layout, [0], [1])], ["a"], pa.schema([("a", pa.string())]))
    with pytest.raises(KeyError):
        parquet_reader.read_ranges([(file, layout, [0], [1])], ["b"], table.schema)
    with pytest.raises(ValueError, match="zip"):
        parquet_reader.read_ranges([(file, layout, [0], [])], ["a"], table.schema)
    for other in (b"", b"PAR1", b"x" * 100, file[:-1]):
        with pytest.raises(parquet_reader.Damaged):
            parquet_reader.open_file_layout(other, table.schema)


def test_threads_may_share_layouts():
    table = pa.table({"a": range(5000), "s": [f"word{i % 50}" for i in range(5000)]})
    file = written(table, row_group_size=50, write_batch_size=8, data_page_size=64)
    for _ in range(5):
        layout, wrong = parquet_reader.open_file_layout(file, table.schema), []

        def read(layout=layout, wrong=wrong):
            for start in range(0, 4900, 37):
                if not parquet_reader.read_ranges(
                    [(file, layout, [start], [start + 90])], ["a", "s"], table.schema
                ).equals(table.slice(start, 90)):
                    wrong.append(start)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class Guarded:
    """A copy of some bytes with untouchable memory right before or right after it."""

    def __init__(self, data: bytes, *, at_end: bool) -> None:
        page = mmap.PAGESIZE
        room = -(-len(data) // page) * page
        self._region = mmap.mmap(-1, room + 2 * page)
        start = page + (room - len(data) if at_end else 0)
        self._region[start : start + len(data)] = data
        self._anchor = (ctypes.c_char * len(self._region)).from_buffer(self._region)
        self._edges = [ctypes.addressof(self._anchor), ctypes.addressof(self._anchor) + page + room]
        self._protect(0)
        self.view = memoryview(self._anchor).cast("B")[start : start + len(data)]

    def _protect(self, flags: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for edge in self._edges:
            assert libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(mmap.PAGESIZE), flags) == 0


def survive(data: bytes, schema: pa.Schema, rows: int, r: random.Random) -> None:
    """Read damaged bytes: an error or some rows, but nothing from beyond the edges."""
    guarded = Guarded(data, at_end=r.random() < 0.7)
    try:
        layout = parquet_reader.open_file_layout(guarded.view, schema)
        limit = min(layout.num_rows, rows)
        starts = sorted(r.randint(0, limit) for _ in range(4))
        for names in [[n] for n in schema.names if n not in layout.declined]:
            try:
                part = (guarded.view, layout, starts, [min(limit, s + r.randrange(60)) for s in starts])
                parquet_reader.read_ranges([part], names, schema).validate()
            except ValueError:
                pass
    except ValueError:
        pass


def damageable(r: random.Random) -> tuple[bytes, pa.Schema]:
    kinds = [
        pa.int64(),
        pa.string(),
        pa.bool_(),
        pa.decimal128(5, 2),
        pa.binary(5),
        pa.dictionary(pa.int32(), pa.string()),
    ]
    table = pa.table({str(k): column(k, VALUE_MAKERS[k], 200, r.choice([0, 0.2]), r) for k in kinds})
    file = written(
        table,
        compression=r.choice(["none", "none", "snappy", "lz4", "zstd"]),
        data_page_version=r.choice(["1.0", "2.0"]),
        **(packed(table) if r.random() < 0.4 else {"use_dictionary": r.random() < 0.5}),
        row_group_size=r.choice([70, 200]),
        write_batch_size=16,
        data_page_size=r.choice([100, 10_000]),
    )
    return file, table.schema


@given(st.integers(0, 2**32))
@settings(max_examples=2 * settings.default.max_examples)
def test_flipped_bytes_are_an_error_or_other_rows_but_never_a_crash(seed):
    r = random.Random(seed)
    file, schema = damageable(r)
    footer = len(file) - 8 - int.from_bytes(file[-8:-4], "little")
    for _ in range(40):
        damaged = bytearray(file)
        for _ in range(r.choice([1, 1, 2, 20])):
            position = r.randrange(footer) if r.random() < 0.6 else r.randrange(footer, len(file))
            damaged[position] = r.choice([0, 0xFF, 0x7F, 0x80, damaged[position] ^ 1 << r.randrange(8)])
        survive(bytes(damaged), schema, 200, r)


@given(st.integers(0, 2**32))
def test_a_file_cut_short_is_an_error(seed):
    r = random.Random(seed)
    file, schema = damageable(r)
    layout = parquet_reader.open_file_layout(file, schema)
    for _ in range(20):
        short = Guarded(file[: r.randrange(1, len(file) // 2)], at_end=True)
        with pytest.raises(parquet_reader.Damaged):
            parquet_reader.open_file_layout(short.view, schema)
        for fresh in (layout, parquet_reader.open_file_layout(file, schema)):  # pages known, pages unknown
            with pytest.raises(parquet_reader.Damaged):
                parquet_reader.read_ranges([(short.view, fresh, [0], [200])], schema.names, schema)


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "lz4_raw"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_files_of_duckdb_are_read_right_or_declined(tmp_path, codec, version):
    path = tmp_path / "file.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT i, (i % 7)::TINYINT AS small, i::UINTEGER AS u, i / 3 AS d, (i % 9 = 0) AS b, "
            "CASE WHEN i % 5 > 0 THEN 'word' || i % 40 END AS s, 'long ' || i AS t, s::BLOB AS raw, "
            "TIMESTAMP '2026-01-01' + to_seconds(i) AS ts, ts::TIMESTAMPTZ AS tz, ts::DATE AS day, ts::TIME AS clock, "
            "(i / 4)::DECIMAL(9, 2) AS d9, (i / 4)::DECIMAL(18, 2) AS d18, (i / 4)::DECIMAL(38, 2) AS d38, "
            "uuid() AS id, [i] AS list, INTERVAL 1 DAY AS gap, i::HUGEINT AS huge "
            f"FROM range(5000) t(i)) TO '{path}' "
            f"(FORMAT parquet, CODEC {codec}, ROW_GROUP_SIZE 2048, PARQUET_VERSION {version})"
        )
    file = path.read_bytes()
    schema = pq.ParquetFile(path).schema_arrow
    layout = parquet_reader.open_file_layout(file, schema)
    names = [n for n in schema.names if n not in layout.declined]
    if version == "v1":
        assert {"i", "s", "t", "ts", "tz", "d9", "d18", "d38", "b"} <= set(names)
    starts, stops = [0, 2040, 4990], [10, 2300, 5000]
    result = parquet_reader.read_ranges([(file, layout, starts, stops)], names, schema)
    result.validate(full=True)
    assert plain(result).equals(plain(by_pyarrow(file, starts, stops).select(names)))


def test_files_of_spark_are_read_right(spark, tmp_path):
    frame = spark.sql(
        "SELECT id AS i, CAST(id % 7 AS TINYINT) AS small, CASE WHEN id % 5 > 0 THEN concat('word', id % 40) END AS s, "
        "timestamp_micros(id * 1000003) AS ts, CAST(timestamp_micros(id) AS DATE) AS day, id % 3 = 0 AS b, "
        "CAST(id / 4 AS DECIMAL(9, 2)) AS d9, CAST(id / 4 AS DECIMAL(38, 2)) AS d38, CAST(id AS DOUBLE) AS f "
        "FROM range(0, 5000, 1, 1)"
    )
    kind = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(kind, "TIMESTAMP_MICROS")
    frame.write.option("parquet.block.size", 20_000).option("compression", "snappy").parquet(str(tmp_path / "out"))
    spark.conf.unset(kind)
    (path,) = (tmp_path / "out").glob("*.parquet")
    file = path.read_bytes()
    schema = pq.ParquetFile(path).schema_arrow
    layout = parquet_reader.open_file_layout(file, schema)
    assert layout.declined == {}
    starts, stops = [0, 2040, 4990], [10, 2300, 5000]
    result = parquet_reader.read_ranges([(file, layout, starts, stops)], schema.names, schema)
    assert plain(result).equals(plain(by_pyarrow(file, starts, stops)))


def test_only_long_texts_that_are_stored_bare_are_said_to_lie_open() -> None:
    texts = [f"{n:0500d}" for n in range(2000)]
    table = pa.table({"n": range(2000), "long": texts, "short": [t[-40:] for t in texts]})
    ways: list[tuple[dict[str, Any], bool]] = [
        ({"compression": "none", "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"}, True),
        ({"compression": "none", "column_encoding": "PLAIN"}, False),
        ({"compression": "zstd", "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"}, False),
    ]
    for options, is_open in ways:
        chosen = options.pop("column_encoding")
        encodings = {"long": chosen, "short": chosen}
        file = written(table, use_dictionary=False, column_encoding=encodings, row_group_size=500, **options)
        layout = parquet_reader.open_file_layout(file, table.schema)
        actual = [layout.open_bytes([name], 0, 2000) for name in table.column_names]
        assert actual == [0, pytest.approx(2000 * 500, rel=0.05) if is_open else 0, 0]
        if is_open:
            assert layout.open_bytes(table.column_names, 500, 1200) == pytest.approx(500 * 500, rel=0.05)
            assert layout.open_bytes(["absent"], 0, 2000) == 0


def test_texts_are_plain_where_nothing_made_them_smaller() -> None:
    texts = pa.array([f"text {number}" for number in range(1000)])
    table = pa.table({"n": pa.array(range(1000)), "a": texts, "b": texts, "c": texts, "d": texts})
    file = written(
        table, use_dictionary=["b"], compression={"n": "none", "a": "none", "b": "none", "c": "zstd", "d": "none"},
        column_encoding={"a": "DELTA_LENGTH_BYTE_ARRAY"}, row_group_size=300,
    )  # fmt: skip
    schema = table.schema.append(pa.field("absent", pa.string()))
    assert sorted(parquet_reader.open_file_layout(file, schema).plain_texts()) == ["a", "d"]


def test_a_mapped_file_knows_which_memory_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    with (tmp_path / "file").open("rb") as file:
        mapped = parquet_reader.FileMap(file.fileno(), 10_000)
    first = pa.py_buffer(mapped).address
    assert [mapped.holds(index) for index in (first - 1, first, first + 9_999, first + 10_000)] == [
        False,
        True,
        True,
        False,
    ]
