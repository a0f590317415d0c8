"""A window as a DataFrame is what `wh.scan` gives, whatever happened to the files, and stays so while it is held."""

import datetime as dt
import gc
import random
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col

import windrow
import windrow.spark

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("exp", UTC), ("k", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))])
LEASES = {"time": "ts", "key": "k", "slide": "1 minute", "expires": "exp", "max_lifetime": "20 minutes"}


def minutes(value: float) -> dt.timedelta:
    return dt.timedelta(minutes=value)


def rows(seed: int, count: int, until: dt.datetime) -> pa.Table:
    chance = random.Random(seed)
    stamps = [until - dt.timedelta(microseconds=chance.randrange(3 * 60_000_000)) for _ in range(count)]
    ends = [t + dt.timedelta(microseconds=chance.randrange(1, 20 * 60_000_000)) for t in stamps]
    words = pa.array([chance.choice(["x", "y", None]) for _ in range(count)]).dictionary_encode()
    keys = pa.array([chance.randrange(9) for _ in range(count)])
    return pa.table([pa.array(stamps, UTC), pa.array(ends, UTC), keys, words], schema=SCHEMA)


def scanned(wh, window, columns=None):
    table = wh.scan("s", window, columns).read_all()
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


def collected(frame):
    # Through Arrow, as a Python datetime would come back in the machine's own zone.
    table = frame.toArrow()
    table = table.cast(pa.schema([f.with_type(UTC) if pa.types.is_timestamp(f.type) else f for f in table.schema]))
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


@pytest.fixture
def warehouse(make):
    """Several slides of rows with lifetimes of their own, half of them appended directly and half by Spark."""

    def create(frame, index, slides=6):
        wh = make()
        wh.create_stream("s", SCHEMA, index=index, **LEASES)
        for number in range(slides):
            until = NOW - minutes(slides - 1 - number)
            table = rows(number, 120, until)
            wh.append("s", table) if number % 2 else windrow.spark.append(frame(table), wh, "s")
            wh.slide("s", until)
        return wh

    return create


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
class Test_the_window_is_what_scan_gives:
    @pytest.mark.parametrize(
        "index",
        [windrow.Index("round-robin", 2, 3, "norebuild"), windrow.Index("round-robin", 2, 3, "rebuild")],
        ids=str,
    )
    def test_at_every_length(self, spark, frame, warehouse, index):
        """Rebuilding merges segments of files away, so that only row ranges of what Spark wrote are left."""
        wh = warehouse(frame, index)
        for window in (None, "1 minute", "2 minutes", "150 seconds", "20 minutes"):
            with windrow.spark.window(spark, wh, "s", window) as df:
                assert df.columns == SCHEMA.names
                assert collected(df) == scanned(wh, window)

    def test_columns_and_conditions(self, spark, frame, warehouse):
        wh = warehouse(frame, windrow.Index("round-robin", 2, 3))
        with windrow.spark.window(spark, wh, "s", "3 minutes", columns=["word", "k"], where="k in (1, 2)") as df:
            expected = [row for row in scanned(wh, "3 minutes", ["word", "k"]) if row.endswith((", 1)", ", 2)"))]
            assert collected(df) == expected
            assert expected
        with windrow.spark.window(spark, wh, "s", columns=["k"]) as df:
            assert df.columns == ["k"]
            assert collected(df) == scanned(wh, None, ["k"])

    def test_conditions_on_the_key_read_only_files_that_the_directory_names(self, spark, make):
        """Keys come in files of their own, five to a slide, so that a key is in one file of ten."""
        wh = make()
        wh.create_stream("s", SCHEMA, index=windrow.Index("round-robin", 10, 1), **LEASES)
        for number in range(10):
            until = NOW - minutes(9 - number)
            table = rows(number, 60, until)
            keys = pa.array([5 * number + i % 5 for i in range(60)])
            wh.append("s", table.set_column(2, "k", keys))
            wh.slide("s", until)
        whole = collected(windrow.spark.read(spark, wh, "s"))
        for where, test, most in (
            ("k = 17", lambda k: k == 17, 1),
            (col("k") == 17, lambda k: k == 17, 1),
            ("k IN (3, 48) AND word = 'x'", lambda k: k in (3, 48), 2),
            ("k >= 40 AND k < 45", lambda k: 40 <= k < 45, 2),
            ("k = 1000", lambda k: False, 0),
            ("k % 50 = 7", lambda k: k % 50 == 7, 10),
        ):
            frame = windrow.spark.read(spark, wh, "s", where=where)
            assert len(frame.inputFiles()) <= most, where
            expected = [
                row for row in whole if test(int(row.split(", ")[-2])) and ("word" not in str(where) or "'x'" in row)
            ]
            assert collected(frame) == expected, where
            windrow.spark.release(frame)

    def test_an_empty_stream_is_an_empty_frame(self, spark, make):
        wh = make()
        wh.create_stream("s", SCHEMA, **LEASES)
        with windrow.spark.window(spark, wh, "s") as df:
            assert df.columns == SCHEMA.names
            assert df.count() == 0

    def test_many_partly_used_files_share_a_scan(self, spark, frame, warehouse, monkeypatch):
        monkeypatch.setattr("windrow.ingest.reader._MAX_SEPARATE_SCANS", 0)
        wh = warehouse(frame, windrow.Index("round-robin", 2, 3, "rebuild"))
        with windrow.spark.window(spark, wh, "s", "4 minutes") as df:
            assert collected(df) == scanned(wh, "4 minutes")

    def test_a_path_with_odd_characters(self, spark, frame, make):
        wh = make("odd [name] {a,b} 100% *")
        wh.create_stream("s", SCHEMA, **LEASES)
        windrow.spark.append(frame(rows(1, 20, NOW)), wh, "s")
        wh.slide("s", NOW)
        with windrow.spark.window(spark, wh, "s") as df:
            assert collected(df) == scanned(wh, None)


class Test_damage:
    def test_a_flipped_bit_is_told_before_spark_reads_it(self, spark, make):
        """Spark compares no checksum itself: both of our ways into Spark do so."""
        wh = make()
        wh.create_stream("s", SCHEMA, **LEASES)
        wh.append("s", rows(1, 120, NOW))
        wh.slide("s", NOW)
        path = wh.path
        wh.close()
        file = min((path / "streams" / "s" / "segments").iterdir())
        sound, group = bytearray(file.read_bytes()), pq.ParquetFile(file).metadata.row_group(0)
        columns = {group.column(position).path_in_schema: group.column(position) for position in range(len(SCHEMA))}
        chunk = columns["k"]
        sound[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 4
        file.write_bytes(sound)
        windrow.spark.register(spark)
        with pytest.raises(windrow.DamageError, match="is damaged"):
            windrow.spark.read(spark, str(path), "s")
        with pytest.raises(PySparkException, match="is damaged"):
            spark.read.format("windrow").options(path=str(path), stream="s").load().collect()


class Test_pins:
    def test_a_frame_is_of_one_slide_and_stays_readable_until_it_is_released(self, spark, frame, warehouse):
        wh = warehouse(frame, windrow.Index("round-robin", 2, 3, "rebuild"))
        df = windrow.spark.read(spark, str(wh.path), "s")
        before = df.groupBy("k").count().orderBy("k").collect()
        for step in range(1, 5):
            wh.append("s", rows(50 + step, 50, NOW + minutes(step)))
            wh.slide("s", NOW + minutes(step))
            wh.gc()
        assert df.groupBy("k").count().orderBy("k").collect() == before
        assert wh.gc().waiting > 0
        windrow.spark.release(df)
        wh.gc()
        assert wh.gc().waiting == 0
        assert wh.status().readers == 0
        with pytest.raises(windrow.ClosedError, match="pins nothing"):
            windrow.spark.release(df)

    def test_several_reads_of_one_commit(self, spark, frame, warehouse):
        wh = warehouse(frame, windrow.Index("round-robin", 2, 2), slides=2)
        before = scanned(wh, None)
        with windrow.spark.snapshot(spark, wh) as snap:
            first = snap.read("s")
            wh.append("s", rows(77, 50, NOW))
            wh.slide("s", NOW + minutes(1))
            assert collected(first) == collected(snap.read("s")) == before
            assert len(collected(snap.read("s", columns=["k"], where="k = 3"))) == sum(
                row.split(", ")[-2] == "3" for row in before
            )
            assert snap.commit < wh.status().version
            assert wh.status().readers == 1
        assert wh.status().readers == 0
        with windrow.spark.snapshot(spark, str(wh.path), ["s"]) as snap:
            assert collected(snap.read("s")) == scanned(wh, None) != before

    def test_a_dropped_frame_lets_go_of_its_files_but_not_while_something_is_made_of_it(self, spark, frame, warehouse):
        wh = warehouse(frame, windrow.Index("round-robin", 2, 2), slides=2)
        live = len(scanned(wh, None))
        counted = windrow.spark.read(spark, wh, "s").groupBy("k").count()
        wh.append("s", rows(77, 50, NOW))
        wh.slide("s", NOW + minutes(30))
        for _ in range(3):
            gc.collect()
            spark._jvm.System.gc()
            time.sleep(1.1)  # more than the pause between two looks for unused pins
        assert wh.status().readers == 1
        wh.gc()
        assert sum(row["count"] for row in counted.collect()) == live
        del counted
        end = time.monotonic() + 120
        while wh.status().readers and time.monotonic() < end:
            gc.collect()
            # Spark's own record of the last execution lets go when another one has run.
            spark.range(1).count()
            spark._jvm.System.gc()
            time.sleep(0.2)
        assert wh.status().readers == 0

    def test_a_window_longer_than_the_stream_keeps_is_refused(self, spark, frame, warehouse):
        wh = warehouse(frame, windrow.Index("round-robin", 2, 2), slides=1)
        with pytest.raises(windrow.WindowError, match="keeps rows for 20 minutes"):
            windrow.spark.read(spark, wh, "s", "1 hour")
        assert wh.status().readers == 0

    def test_a_type_that_spark_has_not_is_named(self, spark, make):
        wh = make()
        wh.create_stream("s", pa.schema([("ts", UTC), ("at", pa.time64("us"))]), time="ts", slide="1 minute")
        with pytest.raises(windrow.SchemaError, match=r"no type for column 'at' \(time64\[us\]\)"):
            windrow.spark.read(spark, wh, "s")
        with windrow.spark.window(spark, wh, "s", columns=["ts"]) as df:
            assert df.columns == ["ts"]


def test_a_frame_says_which_window_it_is_of_and_rows_of_spark_close_gaps(spark, frame, make):
    wh = make()
    wh.create_stream("s", SCHEMA, index="auto", **LEASES)
    wh.append("s", rows(1, 20, NOW))
    wh.slide("s", NOW)
    df = windrow.spark.read(spark, wh, "s", "10 minutes")
    about = windrow.spark.about(df)
    assert about["complete"] is False and about["windows"][0]["gaps"][0]["kind"] == "before first data"
    assert about["commit"] == wh.status().version
    windrow.spark.release(df)
    with pytest.raises(windrow.ClosedError, match=r"was released, or did not come from windrow.spark.read"):
        windrow.spark.about(df)
    windrow.spark.append(frame(rows(2, 20, NOW)), wh, "s", covers=(NOW - minutes(60), NOW))
    wh.slide("s", NOW + minutes(1))
    assert wh.sql("SELECT count(*) FROM s [WINDOW 10 MINUTES]").windows[0].complete
