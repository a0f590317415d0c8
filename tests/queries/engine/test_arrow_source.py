"""DuckDB's private hook for relations that are read from Python: what `arrow_source` needs of it, part by part.

If a test of `TestThePrivateHook` fails after DuckDB was updated, mend ``queries/engine/arrow_source.py``, the only module
that knows the hook, or hold DuckDB back in ``pyproject.toml``.
"""

import dataclasses
import importlib

import duckdb
import pyarrow as pa
import pytest

from windrow.queries.engine import arrow_source
from windrow.queries.engine.arrow_source import FilteringSource, RelationSource

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ROWS = pa.table({"k": [1, 2, 3], "v": ["a", "b", None]}, SCHEMA)
CHANGED = f"DuckDB {duckdb.__version__} changed its private hook; mend queries/engine/arrow_source.py: "


@pytest.fixture
def connection():
    with duckdb.connect(":memory:") as opened:
        yield opened


class TestThePrivateHook:
    @pytest.mark.parametrize(
        ("module", "name"),
        [
            ("duckdb._sources", "ArrowScanSource"),
            ("duckdb._sources", "nodes"),
            ("duckdb._sources.to_arrow", "to_arrow"),
        ],
    )
    def test_is_where_it_was(self, module, name):
        assert hasattr(importlib.import_module(module), name), f"{CHANGED}{module}.{name} is gone"

    @pytest.mark.parametrize("method", ["_register_arrow_source", "_submit"])
    def test_is_offered_by_a_connection(self, connection, method):
        assert hasattr(connection, method), f"{CHANGED}a connection has no {method}"

    @pytest.mark.parametrize(
        ("node", "fields"),
        [
            ("Binary", ["op", "left", "right"]),
            ("Col", ["parts"]),
            ("Lit", ["value", "type"]),
            ("In", ["operand", "values"]),
            ("Postfix", ["op", "operand"]),
        ],
    )
    def test_has_predicates_of_the_same_nodes(self, node, fields):
        nodes = importlib.import_module("duckdb._sources.nodes")
        actual = [field.name for field in dataclasses.fields(getattr(nodes, node))]
        assert actual == fields, f"{CHANGED}nodes.{node} has the fields {actual}"

    def test_a_source_is_told_predicates_and_asked_for_columns(self, connection):
        asked: list[list[str]] = []
        source = RelationSource(
            SCHEMA, lambda schema: asked.append(schema.names) or ROWS.select(schema.names).to_batches()
        )
        connection._register_arrow_source("r", source)
        assert connection.execute("SELECT v FROM r WHERE k >= 2").fetchall() == [("b",), (None,)], CHANGED
        assert [predicate.fragment() for predicate in source.predicates] == ['("k" >= 2)'], f"{CHANGED}accepts"
        assert asked in ([["k", "v"]], [["v", "k"]]), f"{CHANGED}stream was asked for {asked}"

    def test_a_plan_names_the_scan_and_its_number_of_rows(self, connection):
        actual = arrow_source.collect_predicates(
            connection, "SELECT * FROM r WHERE k = 2 AND v = 'b'", None, {"r": SCHEMA}
        )
        assert list(actual) == ["r"], f"{CHANGED}EXPLAIN (FORMAT JSON) shows no scan of the relation"
        assert sorted(predicate.fragment() for predicate in actual["r"]) == ['("k" = 2)', "(\"v\" = 'b')"], CHANGED

    def test_a_statement_streams_its_rows_and_names_its_types(self, connection):
        reader, types = arrow_source.run_streaming(connection, "SELECT 1 AS a, 'x' AS b WHERE 1 = ?", [1], 10)
        assert types == ["INTEGER", "VARCHAR"], f"{CHANGED}_submit"
        assert reader.read_all().to_pylist() == [{"a": 1, "b": "x"}], f"{CHANGED}_submit"


def test_predicates_of_a_relation_that_is_scanned_twice_are_not_told(connection):
    sql = "SELECT * FROM r AS a JOIN r AS b ON a.k = b.k WHERE a.v = 'b'"
    assert arrow_source.collect_predicates(connection, sql, None, {"r": SCHEMA}) == {}


def test_a_filtering_source_leaves_out_rows_that_a_predicate_excludes(connection):
    messages: list[str] = []

    def read(filters, schema):
        messages.extend(predicate.fragment() for predicate in filters)
        yield from ROWS.select(schema.names).to_batches()

    arrow_source.register_source(connection, "r", FilteringSource(SCHEMA, read))
    assert connection.execute("SELECT v FROM r WHERE k IN (1, 3) ORDER BY k").fetchall() == [("a",), (None,)]
    assert messages
    arrow_source.unregister_source(connection, "r")
    with pytest.raises(duckdb.CatalogException):
        connection.execute("FROM r")
