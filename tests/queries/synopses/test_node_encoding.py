"""The rows of a node come back from their bytes, in whatever order; nodes of earlier releases are read too."""

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.queries.engine import arrow_ipc
from windrow.queries.synopses import node_encoding, node_store

WIDE = st.integers(-(1 << 63), (1 << 63) - 1)
COLUMNS = {
    pa.int8(): st.integers(-128, 127),
    pa.uint32(): st.integers(0, (1 << 32) - 1),
    pa.int64(): WIDE,
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.decimal128(38, 0): st.one_of(st.integers(-5, 5), st.integers(-(1 << 70), 1 << 70)).map(Decimal),
    pa.decimal128(9, 2): st.integers(-500, 500).map(lambda cents: Decimal(cents) / 100),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=5),
    pa.bool_(): st.booleans(),
    pa.binary(): st.binary(max_size=9),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows with some groups and kept columns, with nulls, in no order."""
    count = draw(st.integers(0, 20))
    columns: dict[str, pa.Array] = {}
    for prefix, most in (("g", 3), ("c", 3)):
        for number in range(draw(st.integers(0 if prefix == "g" else 1, most))):
            kind = draw(st.sampled_from(list(COLUMNS)))
            values = st.one_of(st.none(), COLUMNS[kind])
            columns[f"{prefix}{number}"] = pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind)
    if draw(st.booleans()):
        columns["c9"] = columns["c0"]
    return pa.table(columns)


def count_rows(rows: pa.Table) -> Counter[Any]:
    """The rows as plain values, each with how often it is there."""
    return Counter(tuple(row.items()) for row in rows.to_pylist())


@given(rows=tables())
def test_rows_come_back(rows):
    assert count_rows(node_encoding.decode_rows(node_encoding.encode_rows(rows))) == count_rows(rows)


def test_a_group_in_any_order_takes_few_bits_and_equal_columns_are_kept_once():
    draw = np.random.default_rng(3)
    sources, targets = (part.ravel() for part in np.meshgrid(np.arange(1000), np.arange(1000)))
    picked = draw.choice(1_000_000, 10_000, replace=False)
    counts = pa.array(draw.integers(1, 4, 10_000))
    rows = pa.table({
        "g0": pa.array(sources[picked]), "g1": pa.array(targets[picked]), "c0": counts,
        "c1": pa.array(draw.integers(40, 4500, 10_000)), "c2": counts,
    })  # fmt: skip
    packed = node_encoding.encode_rows(rows)
    assert count_rows(node_encoding.decode_rows(packed)) == count_rows(rows)
    # A gap of 100 on average, a count below 4, a sum below 4,500: 10, 2 and 13 bits, and what blocks add to it.
    assert len(packed) < 10_000 * 28 / 8


@pytest.mark.parametrize("few", [3, 3000])
def test_long_texts_are_compressed(few):
    rows = pa.table({"g0": [f"https://www.example.org/a/long/path/{n}" for n in range(few)], "c0": [1] * few})
    packed = node_encoding.encode_rows(rows)
    assert node_encoding.decode_rows(packed).to_pylist() == rows.to_pylist()
    assert few == 3 or len(packed) < rows.nbytes / 4


def test_nodes_of_earlier_releases_are_read():
    rows = pa.table({"g0": [3, 1, None], "c0": [1, 2, 3], "c1": [1.5, None, 2.5]})
    node = node_store.StoredNode(4, (bytes(arrow_ipc.encode_table(rows)),))
    assert node.table().to_pylist() == rows.to_pylist()
    written = rows.select(["g0", "c0"]).replace_schema_metadata({"columns": "g0:0,c0:1,c1:1"})
    once = node_store.StoredNode(4, (bytes(arrow_ipc.encode_table(written)),)).table()
    assert once.to_pydict() == {"g0": [3, 1, None], "c0": [1, 2, 3], "c1": [1, 2, 3]}
    both = node_store.StoredNode(4, (bytes(arrow_ipc.encode_table(rows)), node_encoding.encode_rows(rows)))
    assert count_rows(both.table()) == count_rows(pa.concat_tables([rows, rows]))
