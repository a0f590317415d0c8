"""Spark reads and writes a stream whose columns, lifetime and key have changed as `wh.scan` and `wh.append` do."""

import datetime as dt

import pyarrow as pa
import pytest

import windrow.spark
from windrow import Index

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("word", pa.string())])

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def rows(minute):
    start = NOW + dt.timedelta(minutes=minute - 1)
    times = [start + dt.timedelta(seconds=second + 1) for second in range(30)]
    keys, words = [n % 4 for n in range(30)], [f"w{n % 3}" for n in range(30)]
    return pa.table([pa.array(times, SCHEMA.field(0).type), keys, words], schema=SCHEMA)


def found(table):
    return sorted(zip(*(table.column(name).to_pylist() for name in ("k", "word", "note")), strict=True), key=repr)


def test_a_stream_that_was_altered_and_turned(spark, frame, make):
    wh = make(clock=lambda: int((NOW + dt.timedelta(hours=1)).timestamp() * 1_000_000))
    wh.create_stream(
        "s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="4 minutes", index=Index("round-robin", 2, 2)
    )
    for minute in range(1, 7):
        windrow.spark.append(frame(rows(minute)), wh, "s", batch_id=str(minute))
        wh.slide("s", NOW + dt.timedelta(minutes=minute))
    wh.alter_stream("s", add_column=("note", pa.string()), lifetime="6 minutes")
    wh.relayout("s", Index("chronological", 3, 2), key="word")
    assert windrow.spark.append(frame(rows(6)), wh, "s", batch_id="6").duplicate
    windrow.spark.append(frame(rows(7)), wh, "s")
    wh.slide("s", NOW + dt.timedelta(minutes=7))
    wh.relayout_step("s", budget=1)
    with windrow.spark.window(spark, wh, "s") as window:
        got = window.toArrow()
    assert got.num_rows == 5 * 30
    assert found(got) == found(wh.scan("s").read_all())
    with windrow.spark.window(spark, wh, "s", where="word = 'w1'") as window:
        assert window.count() == wh.probe("s", "w1").num_rows == 5 * 10
    assert wh.check().ok
