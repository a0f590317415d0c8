"""`format("windrow")` reads and writes what the other ways do, with the same guarantees."""

import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
import windrow.spark

# The data source is planned in processes of Spark's, whose wall clock is the machine's.
NOW = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64()), ("word", pa.string()), ("u", pa.uint32())])
HOUR = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "1 hour"}

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def table(start: int, count: int) -> pa.Table:
    stamps = [NOW - dt.timedelta(minutes=20) + dt.timedelta(seconds=i % 600) for i in range(start, start + count)]
    numbers = range(start, start + count)
    words = [None if i % 5 == 0 else f"w{i % 7}" for i in numbers]
    return pa.table([pa.array(stamps, UTC), [i % 50 for i in numbers], words, list(numbers)], schema=SCHEMA)


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "warehouse") as opened:
        opened.create_stream("s", SCHEMA, index=windrow.Index("round-robin", 2, 3), **HOUR)
        yield opened


@pytest.fixture
def source(spark, wh):
    windrow.spark.register(spark)
    return {"path": str(wh.path), "stream": "s"}


def numbers(frame) -> list[int]:
    return sorted(row.u for row in frame.select("u").collect())


def stored(wh) -> list[int]:
    return sorted(wh.scan("s", columns=["u"]).read_all().column("u").to_pylist())


class Test_reading:
    def test_a_window_with_conditions(self, spark, wh, source):
        wh.append("s", table(0, 500))
        wh.slide("s", NOW - dt.timedelta(minutes=14))
        wh.append("s", table(500, 500))
        wh.slide("s", NOW)
        frame = spark.read.format("windrow").options(**source).load()
        assert numbers(frame) == list(range(1000))
        rows = frame.where("k = 7 and word = 'w1'").select("u", "word").collect()
        assert sorted(row.u for row in rows) == [i for i in range(1000) if i % 50 == 7 and i % 7 == 1 and i % 5]
        assert numbers(frame.where("k in (3, 4) and k < 4")) == [i for i in range(1000) if i % 50 == 3]
        assert numbers(frame.where("k > 47")) == [i for i in range(1000) if i % 50 > 47]
        assert numbers(frame.where("k is null")) == []
        short = spark.read.format("windrow").options(window="12 minutes", columns="u,ts", **source).load()
        assert short.columns == ["u", "ts"]
        expected = [
            row["u"] for row in table(0, 1000).to_pylist() if row["ts"] > wh.now("s") - dt.timedelta(minutes=12)
        ]
        assert numbers(short) == sorted(expected)

    def test_conditions_on_the_key_read_only_what_the_directory_names(self, wh):
        from pyspark.sql.datasource import EqualTo, In, LessThan

        from windrow.ingest.data_source import WindrowReader
        from windrow.ingest.schemas import build_read_schema

        wh.append("s", table(0, 20_000))
        wh.slide("s", NOW)
        read = []
        schema = build_read_schema(wh.stream("s").definition, ["u"])
        for filters in ([], [EqualTo(("k",), 7)], [In(("k",), (7, 8)), EqualTo(("k",), 8)], [LessThan(("k",), 5)]):
            reader = WindrowReader(str(wh.path), wh.stream("s").definition, None, schema, "1 second")
            assert list(reader.pushFilters(filters)) == filters
            read.append(sum(stop - start for part in reader.partitions() for _, start, stop, _ in part.parts))
        assert read[0] == 20_000
        assert max(read[1:3]) < 1000
        assert 2000 <= read[3] < 4000

    def test_the_files_stay_until_the_driver_is_gone_or_the_time_is_over(self, wh):
        from windrow.ingest.data_source import WindrowReader
        from windrow.ingest.schemas import build_read_schema

        wh.append("s", table(0, 10))
        wh.slide("s", NOW)
        definition = wh.stream("s").definition
        reader = WindrowReader(str(wh.path), definition, None, build_read_schema(definition, ["u"]), "3 seconds")
        assert reader.partitions()
        assert wh.status().readers == 1
        end = time.monotonic() + 60
        while wh.status().readers:
            time.sleep(0.1)
            assert time.monotonic() < end


class Test_writing:
    def test_a_batch_is_in_once(self, spark, wh, source, frame):
        data = frame(table(0, 300))
        for _ in range(2):
            data.write.format("windrow").options(batch_id="b1", **source).mode("append").save()
        assert wh.stream("s").spooled_rows == 300
        wh.slide("s", NOW)
        assert stored(wh) == list(range(300))
        assert wh.check().problems == ()
        assert [p.name for p in (wh.path / "staging").iterdir() if p.name.startswith("source-")] == []

    def test_what_does_not_fit_is_refused(self, spark, wh, source, frame):
        data = frame(table(0, 3))
        with pytest.raises(Exception, match="append-only"):
            data.write.format("windrow").options(**source).mode("overwrite").save()
        with pytest.raises(Exception, match="'more' is not in the stream"):
            data.selectExpr("*", "1 more").write.format("windrow").options(**source).mode("append").save()
        with pytest.raises(Exception, match="needs the option 'stream'"):
            data.write.format("windrow").options(path=str(wh.path)).mode("append").save()

    def test_a_stream_is_in_once_over_restarts_and_slides(self, spark, wh, source, tmp_path):
        folder, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
        folder.mkdir()
        plain = pa.schema([*list(SCHEMA)[:3], ("u", pa.int64())])

        def grow(start: int) -> None:
            pq.write_table(table(start, 100).cast(plain), tmp_path / "new.parquet")
            os.replace(tmp_path / "new.parquet", folder / f"{start}.parquet")

        def run() -> None:
            rows = spark.readStream.schema("ts timestamp, k bigint, word string, u bigint").parquet(str(folder))
            writer = rows.writeStream.format("windrow").options(slide="auto", **source)
            query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination(150)

        grow(0)
        run()
        for file in ("0", ".0.crc"):
            Path(checkpoint, "commits", file).unlink()
        grow(100)
        run()
        assert wh.now("s") is not None
        wh.slide("s", NOW)
        assert stored(wh) == list(range(200))
        assert wh.check().problems == ()
