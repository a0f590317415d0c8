"""Rows as bytes come back as they were, whichever way they were written."""

import pyarrow as pa
import pytest

from windrow.queries.engine import arrow_ipc
from windrow.queries.periodic import result_store
from windrow.queries.synopses import node_store

SMALL = {
    "numbers": pa.table({"a": pa.array([1, None, 3], pa.int32()), "b": ["x", None, ""]}),
    "no rows": pa.table({"a": pa.array([], pa.int64())}),
    "an enumeration": pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()}),
    "one inside a struct": pa.table({"s": pa.StructArray.from_arrays([pa.array(["x"]).dictionary_encode()], ["d"])}),
    "lists": pa.table({"a": [[1, 2], None, []]}),
    "several chunks": pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3]})]),
    "a slice": pa.table({"a": list(range(100)), "b": list(map(str, range(100)))}).slice(17, 5),
}


@pytest.mark.parametrize("rows", SMALL.values(), ids=list(SMALL))
@pytest.mark.parametrize("few", [0, 1 << 20])
def test_results_come_back_as_they_were(monkeypatch, rows, few):
    monkeypatch.setattr(result_store, "_FEW_BYTES", few)
    back = result_store.decode_result_rows(result_store.encode_result_rows(rows))
    assert back.schema.equals(rows.schema)
    assert back.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("rows", SMALL.values(), ids=list(SMALL))
def test_nodes_come_back_as_they_were(rows):
    raw = node_store.encode_node(7, rows)
    assert node_store.StoredNode(7, (raw[8:],)).table().to_pylist() == rows.to_pylist()


def test_a_batch_with_values_of_its_own_needs_a_writer():
    assert arrow_ipc.as_single_batch(SMALL["an enumeration"]) is None
    assert arrow_ipc.as_single_batch(SMALL["one inside a struct"]) is None
    assert arrow_ipc.as_single_batch(SMALL["several chunks"]).num_rows == 3
