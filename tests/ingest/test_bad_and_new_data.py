"""Bad and new data through Spark: refused shares, new columns, checks and mended rows, as with `wh.append`."""

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest

import windrow
import windrow.spark

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64()), ("amount", pa.int64())])
ROW = "timestamp'2026-11-16 11:59:00Z' ts, id k"


@pytest.fixture
def wh(make):
    wh = make()
    wh.create_stream(
        "s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour", checks={"amount >= 0": "reject"}
    )
    return wh


@pytest.fixture
def source(spark, wh):
    windrow.spark.register(spark)
    return {"path": str(wh.path), "stream": "s"}


def answers(wh, columns="k, amount"):
    wh.slide("s", NOW)
    return wh.sql(f"SELECT {columns} FROM s ORDER BY ALL").fetchall()


@pytest.fixture(params=["append", "format", "stream"])
def write(request, spark, wh, source, tmp_path):
    """Each way in: a batch, the data source, a streaming query."""

    def write(df, **options):
        if request.param == "append":
            windrow.spark.append(df, wh, "s", **options)
        elif request.param == "format":
            texts = {name: str(value) for name, value in options.items()}
            df.write.format("windrow").options(**source, **texts).mode("append").save()
        else:
            folder = tmp_path / f"in{len(list(tmp_path.glob('in*')))}"
            df.write.parquet(str(folder))
            rows = spark.readStream.schema(df.schema).parquet(str(folder))
            checkpoint = str(tmp_path / f"checkpoint-{folder.name}")
            windrow.spark.write_stream(
                rows, wh, "s", checkpoint=checkpoint, trigger="available now", slide=None, **options
            ).awaitTermination()

    return write


def test_a_batch_that_is_mostly_bad_is_refused_and_another_taken(spark, wh, write):
    bad = spark.sql(f"SELECT {ROW}, id - 3 amount FROM range(10)")
    with pytest.raises(Exception, match=r"3 of 10 rows would be rejected .*more than max_rejected=0\.2; nothing"):
        write(bad, max_rejected=0.2)
    assert (wh.stream("s").spooled_rows, wh.rejected("s").num_rows) == (0, 0)
    write(bad, max_rejected=0.3)
    assert wh.rejected("s").num_rows == 3
    assert answers(wh) == [(k, k - 3) for k in range(3, 10)]
    report = wh.replay("s", with_="SELECT * REPLACE (-amount AS amount) FROM rejected")
    assert (report.accepted, wh.rejected("s").num_rows) == (3, 0)
    wh.slide("s", NOW + dt.timedelta(minutes=1))
    assert wh.sql("SELECT k, amount FROM s ORDER BY ALL").fetchall() == [(k, abs(k - 3)) for k in range(10)]
    assert wh.check().ok


def test_the_progress_of_a_query_has_accepted_rejected_and_late_rows(spark, wh, tmp_path):
    wh.append("s", [{"ts": NOW - dt.timedelta(minutes=1), "k": 0, "amount": 0}])
    wh.slide("s", NOW)
    folder = str(tmp_path / "in")
    batches = [range(3), range(3, 10)]
    rows = spark.readStream.schema("ts timestamp, k bigint, amount bigint")
    messages = []
    for batch in batches:
        position = ROW.removesuffix("id k")
        df = spark.sql(f"SELECT {position} id + {batch.start} k, id - 1 amount FROM range({len(batch)})")
        df.coalesce(1).write.mode("append").parquet(folder)
        query = windrow.spark.write_stream(
            rows.parquet(folder), wh, "s", checkpoint=str(tmp_path / "c"), trigger="available now", slide=None
        )
        query.awaitTermination()
        messages += [entry for entry in windrow.spark.progress(query) if entry["numInputRows"]]
    assert [(entry["batchId"], entry["numInputRows"]) for entry in messages] == [(0, 3), (1, 7)]
    progress = [json.loads(entry.json) for entry in query.recentProgress]
    assert all(not entry.get("observedMetrics") and "metrics" not in entry["sink"] for entry in progress), (
        "no place in Spark's"
    )
    for entry, batch in zip(messages, batches, strict=True):
        accepted, reasons = entry["windrow"]["accepted"], entry["windrow"]["rejected"]
        assert (accepted, sum(reasons.values())) == (len(batch) - 1, 1)
        assert entry["windrow"]["late"] == accepted, "all of them belong to a slot that was slid past"


def test_new_columns_are_taken_in_when_asked(spark, wh, write):
    write(spark.sql(f"SELECT {ROW}, 1L amount FROM range(2)"))
    more = spark.sql(f"SELECT {ROW}, 2L amount, concat('n', id) note FROM range(2)")
    with pytest.raises(Exception, match="'note' is not in the stream"):
        write(more)
    with pytest.raises(Exception, match="evolve='all' is unknown"):
        write(more, evolve="all")
    write(more, evolve="add")
    write(spark.sql(f"SELECT {ROW}, 3L amount FROM range(1)"), evolve="add")
    assert answers(wh, "amount, k, note") == [(1, 0, None), (1, 1, None), (2, 0, "n0"), (2, 1, "n1"), (3, 0, None)]


def test_wider_types_are_taken_in_when_asked(spark, wh, source):
    """Files that Spark wrote with the narrower types are read as the wider ones: by Spark itself, in SQL and by key."""
    step = "id % 2 + {} k, CAST({} AS {}) small, CAST({} AS {}) ratio, CAST({} AS {}) price"
    narrow = step.format(0, "id - 9", "INT", "0.5", "FLOAT", "1.5", "DECIMAL(4,1)")
    wide = step.format(2, "id + 5000000000", "BIGINT", "1e300", "DOUBLE", "1234567.125", "DECIMAL(20,4)")
    columns = [("k", pa.int64()), ("small", pa.int32()), ("ratio", pa.float32()), ("price", pa.decimal128(4, 1))]
    wh.create_stream("w", pa.schema([SCHEMA.field("ts"), *columns]), time="ts", key="k", slide="1 minute",
                     lifetime="10 minutes")  # fmt: skip
    position = ROW.removesuffix("id k")
    windrow.spark.append(spark.sql(f"SELECT {position} {narrow} FROM range(4)"), wh, "w")
    more = spark.sql(f"SELECT {position} {wide} FROM range(2)")
    with pytest.raises(windrow.SchemaError, match="column 'small' is bigint, the stream has int32"):
        windrow.spark.append(more, wh, "w", evolve="add")
    windrow.spark.append(more, wh, "w", evolve="widen")
    wh.slide("w", NOW)
    price = decimal.Decimal
    expected = [(id % 2, id - 9, 0.5, price("1.5")) for id in range(4)]
    expected += [(id % 2 + 2, id + 5_000_000_000, 1e300, price("1234567.125")) for id in range(2)]
    by_price = sorted(expected)
    names = ["k", "small", "ratio", "price"]
    frame = windrow.spark.read(spark, wh, "w")
    assert dict(frame.dtypes) | {"ts": ""} == {
        "ts": "", "k": "bigint", "small": "bigint", "ratio": "double", "price": "decimal(20,4)"
    }  # fmt: skip
    assert sorted(map(tuple, frame.select(names).collect())) == by_price
    assert [row.k for row in frame.where("small > 5000000000").collect()] == [3]
    by_key = windrow.spark.read(spark, wh, "w", where="k = 1").select(names)
    assert sorted(map(tuple, by_key.collect())) == [row for row in by_price if row[0] == 1]
    source = spark.read.format("windrow").options(**{**source, "stream": "w"}).load().select(names)
    assert sorted(map(tuple, source.collect())) == by_price
    assert wh.sql("SELECT k, small, ratio, price FROM w ORDER BY ALL").fetchall() == by_price
    assert wh.check().ok


def test_an_option_that_is_no_share_is_refused(spark, wh, source):
    df = spark.sql(f"SELECT {ROW}, 1L amount FROM range(2)")
    for share in ("many", "2"):
        with pytest.raises(Exception, match="max_rejected"):
            df.write.format("windrow").options(max_rejected=share, **source).mode("append").save()
    assert wh.stream("s").spooled_rows == 0


def test_what_was_saved_as_a_table_is_in_the_stream_and_the_table_is_read_with_its_options(spark, wh, source):
    """Spark's catalog drops the options of a Python source, and tells the source nothing of the table.

    The source is made with the same options and flags for `save` and for `saveAsTable`, in a process of its own, so it
    cannot refuse the one and take the other.
    """
    df = spark.sql(f"SELECT {ROW}, 1L amount FROM range(2)")
    df.write.format("windrow").options(**source).mode("append").saveAsTable("s_table")
    try:
        with pytest.raises(Exception, match="needs the option 'path', which tables of Spark's catalog lose: use load"):
            spark.table("s_table").collect()
        assert spark.read.options(**source).table("s_table").collect() == [], "the stream has not slid yet"
        assert answers(wh) == [(0, 1), (1, 1)]
        named = spark.read.options(**source).table("s_table").select("k", "amount")
        assert sorted(map(tuple, named.collect())) == [(0, 1), (1, 1)]
        options = ", ".join(f"{name} = '{value}'" for name, value in source.items())
        assert spark.sql(f"SELECT count(*) FROM s_table WITH ({options})").collect() == [(2,)], "in SQL"
        with pytest.raises(Exception, match="a stream is append-only"):
            df.write.format("windrow").options(**source).mode("overwrite").saveAsTable("s_table")
    finally:
        spark.sql("DROP TABLE IF EXISTS s_table")
    assert answers(wh) == [(0, 1), (1, 1)], "only Spark's name for it is gone"
