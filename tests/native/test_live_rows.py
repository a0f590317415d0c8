"""Rows within limits are those that pyarrow's filter keeps, however many there are, and texts may stay in their files."""

import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_values import VALUE_MAKERS
from tests.native.test_parquet_reader import OPTIONS, column, plain, some_ranges, written
from windrow.native import parquet_reader

TEXTS = {pa.string(): pa.string_view(), pa.large_string(): pa.string_view(), pa.binary(): pa.binary_view()}
OPEN = {"compression": "none", "use_dictionary": False}
"""How a file is written whose texts lie in it as they are."""


def limits_of(rows: int, r: random.Random) -> pa.Array:
    """Numbers whose runs within bounds are long, or as short as can be."""
    values = [r.randrange(100) for _ in range(rows)]
    return pa.array(sorted(values) if r.random() < 0.4 else values, pa.int64())


def kept(table: pa.Table, limits: list[tuple[str, int, int]]) -> pa.Table:
    for name, after, upto in limits:
        values = table[name]
        table = table.filter(pc.and_(pc.greater(values, after), pc.less_equal(values, upto)))
    return table


@given(OPTIONS, st.integers(0, 400), st.sampled_from([0, 0.05, 0.9, 1]), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=4 * settings.default.max_examples)
def test_rows_within_limits_equal_what_pyarrow_keeps(options, rows, nulls, as_views, seed):
    r = random.Random(seed)
    if r.random() < 0.5:
        options |= OPEN
    kinds = r.sample(list(VALUE_MAKERS), r.randint(1, 5))
    files, part, start, stop, expected = [], [], [], [], []
    limits = [(name, r.randrange(-1, 70), r.randrange(30, 101)) for name in ("a", "b")[: r.randint(1, 2)]]
    schema = None
    for index in range(r.randint(1, 3)):
        columns = {f"c{i}": column(kind, VALUE_MAKERS[kind], rows, nulls, r) for i, kind in enumerate(kinds)}
        file = written(pa.table({**columns, "a": limits_of(rows, r), "b": limits_of(rows, r)}), **options)
        schema = schema or pq.ParquetFile(io.BytesIO(file)).schema_arrow
        files.append((file, parquet_reader.open_file_layout(file, schema)))
        table = pq.read_table(io.BytesIO(file))
        for low, high in zip(*some_ranges(rows, r), strict=True):
            part.append(index)
            start.append(low)
            stop.append(high)
            expected.append(kept(table.slice(low, high - low), limits))
    fields = [schema.field(name) for name in r.sample(schema.names, r.randint(1, len(schema.names)))]
    wanted = pa.schema([f.with_type(TEXTS.get(f.type, f.type)) if as_views else f for f in fields])
    ranges = [np.array(each, np.int64) for each in (part, start, stop)]
    try:
        actual = parquet_reader.read_live(files, *ranges, limits, wanted, schema)
    except parquet_reader.Declined:
        if as_views and (options["compression"] != "none" or options["use_dictionary"]):
            return  # texts are unpacked into memory of no file
        raise
    actual.validate(full=True)
    assert actual.schema == wanted
    rows_kept = pa.concat_tables(expected or [table.slice(0, 0)]).select(wanted.names)
    assert plain(pa.Table.from_batches([actual])).equals(plain(rows_kept.cast(wanted)))


@pytest.mark.parametrize("every", [1, 2, 3, 700])
def test_views_are_of_the_files_and_short_texts_are_in_them(every: int) -> None:
    texts = [None if n % 7 == 0 else f"{n}" * (1 + n % 9) for n in range(1500)]
    live = [n % every == 0 for n in range(1500)]
    table = pa.table({"t": pa.array(texts), "a": pa.array([int(each) for each in live])})
    file = written(table, row_group_size=200, **OPEN)
    layout = parquet_reader.open_file_layout(file, table.schema)
    whole = [np.array([index], np.int64) for index in (0, 0, 1500)]
    wanted = pa.schema([("t", pa.string_view())])
    before = pa.total_allocated_bytes()
    actual = parquet_reader.read_live([(file, layout)], *whole, [("a", 0, 1)], wanted, table.schema)
    assert actual.column(0).to_pylist() == [text for text, lives in zip(texts, live, strict=True) if lives]
    assert pa.total_allocated_bytes() - before < 40_000, "no text is copied"
    for name in ("t", "a"):
        alone = pa.schema([table.schema.field(name)])
        given_whole = parquet_reader.read_live([(file, layout)], *whole, [("a", 0, 1)], alone, table.schema)
        assert given_whole.column(0).to_pylist() == table.filter(pa.array(live))[name].to_pylist()


def test_texts_in_a_file_beyond_what_a_view_can_say_are_declined() -> None:
    table = pa.table({"t": pa.array(["a text that is longer than a view"] * 3), "a": pa.array([1, 1, 1])})
    file = written(table, compression="zstd", use_dictionary=False)
    layout = parquet_reader.open_file_layout(file, table.schema)
    whole = [np.array([index], np.int64) for index in (0, 0, 3)]
    with pytest.raises(parquet_reader.Declined, match="'t' has texts that do not lie open"):
        parquet_reader.read_live(
            [(file, layout)], *whole, [("a", 0, 1)], pa.schema([("t", pa.string_view())]), table.schema
        )


@pytest.mark.parametrize("every", [2, 3, 50])
def test_what_is_kept_of_chosen_rows_is_about_as_large_as_it_says(every: int) -> None:
    rows = 200_000
    table = pa.table({"n": pa.array(range(rows)), "a": pa.array([int(n % every == 0) for n in range(rows)])})
    file = written(table, **OPEN)
    layout = parquet_reader.open_file_layout(file, table.schema)
    whole = [np.array([index], np.int64) for index in (0, 0, rows)]
    parquet_reader.read_live([(file, layout)], *whole, [("a", 0, 1)], table.schema, table.schema)
    before = pa.total_allocated_bytes()
    actual = parquet_reader.read_live(
        [(file, layout)], *whole, [("a", 0, 1)], pa.schema([table.schema.field("n")]), table.schema
    )
    assert actual.column(0).to_pylist() == list(range(0, rows, every))
    assert pa.total_allocated_bytes() - before <= 2 * actual.nbytes + rows // 8 + 4096
