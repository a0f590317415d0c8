"""Giving rows to streams and reading them: any common form is taken as it is, and what is wrong changes nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow
from oracle import SECOND
from sample_streams import BASE, DELTA, US, when


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as warehouse:
        yield warehouse


ROWS = pa.table(
    {"ts": pa.array([BASE + 1, BASE + 2, BASE + 3], US), "k": pa.array([3, 1, 2], pa.int64()), "text": ["a", None, "c"]}
)


def relation() -> duckdb.DuckDBPyRelation:
    return duckdb.connect().from_arrow(ROWS)


INPUTS = {
    "table": lambda: ROWS,
    "chunked table": lambda: pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)]),
    "record batch": lambda: ROWS.to_batches()[0],
    "list of batches": lambda: ROWS.to_batches(max_chunksize=1),
    "generator of batches": lambda: (batch for batch in ROWS.to_batches(max_chunksize=2)),
    "list of tables": lambda: [ROWS.slice(0, 2), ROWS.slice(2)],
    "reader": lambda: ROWS.to_reader(max_chunksize=1),
    "columns in another order": lambda: ROWS.select(["text", "ts", "k"]),
    "narrower integers": lambda: ROWS.set_column(1, "k", ROWS.column("k").cast(pa.int16())),
    "large strings": lambda: ROWS.set_column(2, "text", ROWS.column("text").cast(pa.large_string())),
    "string views": lambda: ROWS.set_column(2, "text", ROWS.column("text").cast(pa.string_view())),
    "dictionary": lambda: ROWS.set_column(2, "text", ROWS.column("text").dictionary_encode()),
    "other time unit": lambda: ROWS.set_column(0, "ts", ROWS.column("ts").cast(pa.timestamp("ns", "UTC"))),
    "pandas": ROWS.to_pandas,
    "polars": lambda: pl.from_arrow(ROWS),
    "polars lazily collected": lambda: pl.from_arrow(ROWS).lazy().collect(),
    "DuckDB relation": relation,
    "arrow stream": lambda: _Stream(ROWS),
}


class _Stream:
    """Anything with the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def declare(wh: windrow.Warehouse) -> None:
    wh.create_stream("s", ROWS.schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute")


@pytest.mark.parametrize("kind", INPUTS)
def test_rows_may_come_in_any_common_form(wh: windrow.Warehouse, kind: str) -> None:
    declare(wh)
    report = wh.append("s", INPUTS[kind](), batch_id="b")
    assert (report.rows, report.accepted, report.rejected) == (3, 3, {})
    wh.slide("s", to=when(BASE + DELTA))
    assert wh.scan("s").read_all().sort_by("ts").equals(ROWS)
    assert wh.append("s", ROWS, batch_id="b").duplicate, "the same rows in another form are the same batch"


def test_an_empty_table_is_a_batch_like_any_other(wh: windrow.Warehouse) -> None:
    declare(wh)
    assert wh.append("s", ROWS.schema.empty_table(), batch_id="b").rows == 0
    assert wh.append("s", ROWS.schema.empty_table(), batch_id="b").duplicate
    assert not wh.slide("s").moved
    assert wh.slide("s", to=when(BASE + DELTA)).inserted == 0
    assert wh.scan("s").read_all().num_rows == 0
    assert wh.probe("s", 1).num_rows == 0


def broken() -> Iterator[pa.RecordBatch]:
    yield ROWS.to_batches()[0]
    yield ROWS.rename_columns(["ts", "k", "other"]).to_batches()[0]


MISFITS: dict[str, tuple[Any, str]] = {
    "missing column": (lambda: ROWS.drop_columns(["text"]), "column 'text' .* is missing"),
    "unknown column": (lambda: ROWS.append_column("z", ROWS.column("k")), "column 'z' is not in the stream"),
    "wrong type": (lambda: ROWS.set_column(1, "k", ROWS.column("text")), "column 'k' is string, the stream has int64"),
    "two things at once": (
        lambda: ROWS.drop_columns(["k"]).append_column("z", ROWS.column("k")),
        "'z'.*'k'.*nothing was appended",
    ),
    "a number for a time": (lambda: ROWS.set_column(0, "ts", ROWS.column("ts").cast(pa.int64())), "'ts' is int64"),
    "fractions": (
        lambda: ROWS.set_column(1, "k", pc.add(ROWS.column("k").cast(pa.float64()), 0.5)),
        "row 1, column 'k'",
    ),
    "doubled column": (
        lambda: pa.table([*ROWS.columns, ROWS.column(1)], names=["ts", "k", "text", "k"]),
        "'k' occurs twice",
    ),
    "batches that differ": (broken, "different schemas"),
    "a string": (lambda: "ts,k,text", "cannot take rows from builtins.str"),
    "a dict": (lambda: {"ts": []}, "cannot take rows from"),
    "a list of dicts": (lambda: [{"ts": 1}], "'ts' is int64.*column 'k' .* is missing"),
    "dicts of two minds": (lambda: [{"ts": 1}, {"ts": "x"}], "column 'ts' has values that are not of one type"),
    "a dict and a batch": (lambda: [{"ts": 1}, ROWS], "give only dicts"),
    "nothing": (lambda: None, "cannot take rows from"),
    "an empty list": (list, "has no schema"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_rows_that_do_not_fit_are_refused_as_a_whole_and_change_nothing(wh: windrow.Warehouse, case: str) -> None:
    declare(wh)
    wh.append("s", ROWS, batch_id="first")
    before = (wh.stream("s").spooled_rows, sorted(p.name for p in wh.path.rglob("*.parquet")), wh.stream("s").sources)
    make, words = MISFITS[case]
    with pytest.raises(windrow.SchemaError, match=words) as error:
        wh.append("s", make(), batch_id="second")
    assert isinstance(error.value, ValueError)
    after = (wh.stream("s").spooled_rows, sorted(p.name for p in wh.path.rglob("*.parquet")), wh.stream("s").sources)
    assert after == before
    assert not wh.append("s", ROWS, batch_id="second").duplicate


def test_a_value_that_would_be_changed_by_the_streams_type_refuses_the_batch(wh: windrow.Warehouse) -> None:
    """Nanoseconds that do not fit microseconds are not rounded; nulls where none may be count in every batch."""
    schema = pa.schema([("ts", US), pa.field("k", pa.int64(), nullable=False)])
    wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute")
    fine = pa.table({"ts": pa.array([BASE * 1000], pa.timestamp("ns", "UTC")), "k": [1]})
    odd = pa.table({"ts": pa.array([BASE * 1000 + 1], pa.timestamp("ns", "UTC")), "k": [1]})
    with pytest.raises(windrow.SchemaError, match=r"'ts' cannot become .* without loss"):
        wh.append("s", [fine, odd])
    for text in ("noon", "noon" * 100):
        with pytest.raises(
            windrow.SchemaError, match=f"row 2, column 'ts': '{text[:70]}.* cannot be read as timestamp"
        ):
            wh.append("s", [{"ts": "2026-01-01", "k": 1}, {"ts": text, "k": 1}])
    null = pa.table({"ts": pa.array([BASE], US), "k": pa.array([None], pa.int64())})
    with pytest.raises(windrow.SchemaError, match="'k' is not nullable but has 1 null"):
        wh.append("s", [pa.table({"ts": pa.array([BASE], US), "k": [1]}), null])
    assert wh.stream("s").spooled_rows == 0
    assert not list(wh.path.rglob("*.parquet"))
    wh.append("s", fine)
    wh.slide("s", to=when(BASE))
    assert wh.scan("s").read_all().schema.equals(schema)


@pytest.mark.parametrize("batch_id", ["", "a\x00b", "x" * 257, 5])
def test_a_batch_id_that_cannot_be_kept_is_refused(wh: windrow.Warehouse, batch_id: Any) -> None:
    declare(wh)
    with pytest.raises(windrow.InvalidNameError, match="batch id"):
        wh.append("s", ROWS, batch_id=batch_id)


def test_batch_ids_of_different_sources_are_different_batches(wh: windrow.Warehouse) -> None:
    declare(wh)
    assert not wh.append("s", ROWS, source="a", batch_id="1").duplicate
    assert not wh.append("s", ROWS, source="b", batch_id="1").duplicate
    assert not wh.append("s", ROWS, source="a1", batch_id="1").duplicate
    assert not wh.append("s", ROWS, source="a", batch_id="11").duplicate
    assert wh.append("s", ROWS, source="a", batch_id="1").duplicate
    assert wh.stream("s").spooled_rows == 12


def test_batch_ids_are_kept_at_least_as_long_as_rows_live(path: Path) -> None:
    clock = [BASE]
    with windrow.open(path, clock=lambda: clock[0]) as wh:
        declare(wh)
        wh.append("s", ROWS, batch_id="b")
        wh.slide("s", to=when(BASE + DELTA))
        clock[0] += 60 * SECOND
        wh.gc()
        assert wh.append("s", ROWS, batch_id="b").duplicate


@pytest.mark.parametrize("rejecting", [False, True])
def test_the_memory_of_an_append_follows_its_chunks_not_its_rows(path: Path, rejecting: bool) -> None:
    """A reader of 40 batches of 8 MB: what is alive at once must stay far below the 320 MB that pass through."""
    size, count = 8 << 20, 40
    noise = np.random.default_rng(1)
    schema = pa.schema([("ts", US), ("k", pa.int64()), ("payload", pa.binary(1024))])
    most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        rows = size // 1024
        for turn in range(count):
            payload = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(1024), rows, [None, pa.py_buffer(noise.bytes(rows * 1024))]
            )
            stamp = None if rejecting else BASE + turn
            most = max(most, pa.total_allocated_bytes())
            yield pa.record_batch(
                [pa.array([stamp] * rows, US), pa.array(range(rows), pa.int64()), payload], schema=schema
            )

    with windrow.open(path, clock=lambda: BASE) as wh:
        wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute")
        before = pa.total_allocated_bytes()
        report = wh.append("s", pa.RecordBatchReader.from_batches(schema, batches()))
        assert report.rows == count * size // 1024
        assert most - before < 200 << 20, f"{(most - before) >> 20} MB alive while 320 MB passed through"


def test_dropping_a_stream_removes_its_rows_and_a_new_one_of_the_name_knows_nothing_of_it(
    wh: windrow.Warehouse,
) -> None:
    declare(wh)
    wh.append("s", ROWS, batch_id="b")
    wh.slide("s", to=when(BASE + DELTA))
    wh.append("s", ROWS)
    with wh.snapshot() as snapshot:
        wh.drop_stream("s")
        assert wh.streams() == []
        wh.gc()
        assert snapshot.scan("s").read_all().sort_by("ts").equals(ROWS), "a reader that has pinned it goes on"
        wh.create_stream("s", ROWS.schema, time="ts", slide="1 minute", lifetime="1 hour")
        assert wh.now("s") is None
        assert wh.scan("s").read_all().num_rows == 0
        assert not wh.append("s", ROWS, batch_id="b").duplicate
    wh.gc()
    assert wh.check().ok
    assert not list(wh.path.rglob("*.parquet")), "few rows wait in the catalog"
    wh.slide("s", to=when(BASE + DELTA))
    assert len(list(wh.path.rglob("*.parquet"))) == 1


def test_unknown_columns_and_windows_that_cannot_be_answered_are_named(wh: windrow.Warehouse) -> None:
    declare(wh)
    for call in (lambda: wh.scan("s", columns=["z"]), lambda: wh.probe("s", 1, columns=["z"])):
        with pytest.raises(windrow.SchemaError, match="no column 'z'; it has ts, k, text"):
            call()
    with pytest.raises(windrow.WindowError, match="keeps rows for 1 minute; a window of 61 seconds"):
        wh.scan("s", window="61 seconds")
    with pytest.raises(windrow.DefinitionError, match="window 'x'"):
        wh.scan("s", window="x")


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ({"key": "text"}, "'k' is of type int64, which 'text' is not"),
        ({"key": (1, 2)}, "int64, which"),
        ({"key": 2**70}, "int64"),
        ({"key": 1.5}, "int64, which 1.5 is not"),
        ({"keys": [1, 2.5]}, "int64, which 2.5 is not"),
        ({}, "one of key, keys or between"),
        ({"key": 1, "keys": [1]}, "one of key, keys or between"),
        ({"between": (1, 2, 3)}, "pair"),
    ],
)
def test_a_search_key_that_does_not_fit_is_refused(wh: windrow.Warehouse, probe: dict[str, Any], words: str) -> None:
    declare(wh)
    with pytest.raises(windrow.SearchKeyError, match=words):
        wh.probe("s", **probe)


def test_a_stream_without_key_refuses_probes(wh: windrow.Warehouse) -> None:
    wh.create_stream("s", ROWS.schema, time="ts", slide="1 minute", lifetime="1 hour")
    with pytest.raises(windrow.SearchKeyError, match="no search key"):
        wh.probe("s", 1)


def test_no_column_at_all_still_counts_the_rows(wh: windrow.Warehouse) -> None:
    declare(wh)
    wh.append("s", ROWS)
    wh.slide("s", to=when(BASE + DELTA))
    assert wh.scan("s", columns=[]).read_all().num_rows == 3
    assert sum(batch.num_rows for batch in wh.scan("s", columns=[], window="9.999998 seconds")) == 1
    assert wh.probe("s", 1, columns=[]).num_rows == 1
    assert wh.probe("s", 99, columns=[]).num_rows == 0


def test_a_closed_warehouse_says_so(wh: windrow.Warehouse) -> None:
    declare(wh)
    snapshot = wh.snapshot()
    snapshot.close()
    with pytest.raises(windrow.ClosedError, match="snapshot is closed"):
        snapshot.scan("s")
    wh.close()
    wh.close()
    for call in (
        lambda: wh.scan("s"),
        lambda: wh.append("s", ROWS),
        lambda: wh.slide("s"),
        wh.streams,
        wh.gc,
        wh.check,
        wh.status,
        wh.snapshot,
    ):
        with pytest.raises(windrow.ClosedError, match="closed; open it again"):
            call()


def test_pandas_with_its_own_index_gives_only_its_columns(wh: windrow.Warehouse) -> None:
    declare(wh)
    frame = ROWS.to_pandas().set_index(pd.Index([7, 8, 9], name="i"))
    assert wh.append("s", frame).accepted == 3
