"""A streaming query brings every row in once and slides the stream by itself."""

import datetime as dt
import logging
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
import windrow.spark

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64())])
HOUR = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "1 hour"}


def minutes(value: float) -> dt.timedelta:
    return dt.timedelta(minutes=value)


class Folder:
    """A growing folder of files, each with rows of one minute."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.rows: list[tuple[dt.datetime, int]] = []

    def add(self, minute: int, count: int = 10) -> None:
        new = [(NOW + minutes(minute) + dt.timedelta(seconds=i), len(self.rows) + i) for i in range(count)]
        table = pa.table({"ts": pa.array([t for t, _ in new], UTC), "k": [k for _, k in new]}, schema=SCHEMA)
        hidden = self.path / f".{minute:04d}-{len(self.rows)}.parquet"
        pq.write_table(table, hidden)
        hidden.rename(self.path / hidden.name[1:])
        self.rows += new

    def stream(self, spark):
        reader = spark.readStream.schema("ts timestamp, k bigint").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.path))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "input")


@pytest.fixture
def checkpoint(tmp_path):
    return str(tmp_path / "checkpoint")


def run(query):
    """Let a query read what is there; its failure is ours."""
    assert query.awaitTermination(150)
    return windrow.spark.totals(query)


def wait_until(what, timeout=100.0):
    end = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def stored(wh, stream="s"):
    table = wh.scan(stream).read_all()
    return sorted(zip(table["ts"].to_pylist(), table["k"].to_pylist(), strict=True))


class Test_exactly_once:
    def test_across_restarts_and_a_crash_between_our_commit_and_sparks(self, spark, make, folder, checkpoint):
        """Without its record of the last batch, Spark runs that batch again: it is known, and changes nothing."""
        wh = make()
        wh.create_stream("s", SCHEMA, max_ahead="100 weeks", **HOUR)
        for minute in (-9, -8, -7):
            folder.add(minute)
        start = {"checkpoint": checkpoint, "trigger": "available now"}
        first = run(windrow.spark.write_stream(folder.stream(spark), str(wh.path), "s", **start))
        assert (first.batches, first.rows) == (3, 30)
        assert 1 <= first.slides <= 3  # Spark may take files of the same moment in any order
        assert wh.now("s") == NOW - minutes(7)
        folder.add(-6)
        for file in ("2", ".2.crc"):
            Path(checkpoint, "commits", file).unlink()
        second = run(windrow.spark.write_stream(folder.stream(spark), wh, "s", **start))
        assert (second.batches, second.duplicates) == (1, 1)
        wh.slide("s", NOW)
        assert stored(wh) == sorted(folder.rows)
        assert wh.check().ok

    def test_a_query_that_fails_says_so_of_its_source(self, spark, make, folder, checkpoint):
        wh = make()
        wh.create_stream("s", SCHEMA, sources=["a", "b"], on_source_failure="exclude", **HOUR)
        folder.add(-9)
        (folder.path / "broken.parquet").write_bytes(b"this is no Parquet file")
        query = windrow.spark.write_stream(
            folder.stream(spark), wh, "s", source="a", checkpoint=checkpoint, trigger="available now"
        )
        with pytest.raises(Exception, match=r"broken\.parquet"):
            query.awaitTermination(150)
        wait_until(lambda: wh.stream("s").sources[0].failed)
        wh.append("s", pa.table({"ts": pa.array([NOW], UTC), "k": [1]}, schema=SCHEMA), source="b")
        assert wh.slide("s").missing == ("a",)


class Test_windows_move:
    def test_although_a_condition_rejects_every_row(self, spark, make, folder, checkpoint):
        wh = make()
        wh.create_stream("s", SCHEMA, **HOUR)
        folder.add(-9)
        folder.add(-5)
        run(
            windrow.spark.write_stream(
                folder.stream(spark), wh, "s", where="k < 0", checkpoint=checkpoint, trigger="available now"
            )
        )
        assert stored(wh) == []
        assert wh.now("s") == NOW - minutes(5)

    def test_while_the_source_is_silent_by_heartbeats_of_a_timer(self, spark, make, folder, checkpoint):
        """
        rows      |--------|
        clock     ^NOW-5                 (no heartbeats)
                  ^NOW-5 ......... ^NOW  (with heartbeats, lag 0)
        """
        wh = make()
        wh.create_stream("s", SCHEMA, **HOUR)
        folder.add(-5)
        run(windrow.spark.write_stream(folder.stream(spark), wh, "s", checkpoint=checkpoint, trigger="available now"))
        assert wh.now("s") == NOW - minutes(5)
        query = windrow.spark.write_stream(
            folder.stream(spark), wh, "s", checkpoint=checkpoint, heartbeat="50 milliseconds"
        )
        try:
            wait_until(lambda: wh.now("s") == NOW)
            assert windrow.spark.totals(query).heartbeats > 0
        finally:
            query.stop()

    def test_no_further_than_the_slowest_source(self, spark, make, folder, checkpoint):
        wh = make()
        wh.create_stream("s", SCHEMA, sources=["fast", "slow"], **HOUR)
        folder.add(-9)
        folder.add(-5)
        wh.append("s", pa.table({"ts": pa.array([NOW - minutes(7)], UTC), "k": [0]}, schema=SCHEMA), source="slow")
        run(
            windrow.spark.write_stream(
                folder.stream(spark), wh, "s", source="fast", checkpoint=checkpoint, trigger="available now"
            )
        )
        assert wh.now("s") == NOW - minutes(7)
        assert wh.stream("s").waiting_for == ("slow",)


class Test_several_at_once:
    def test_streams_queries_and_batches_into_one_warehouse(self, spark, make, tmp_path, frame):
        """Two queries are sources of one stream, a third feeds another, and batches come beside them."""
        wh = make()
        wh.create_stream("s", SCHEMA, sources=["a", "b", "c"], **HOUR)
        wh.create_stream("t", SCHEMA, **HOUR)
        feeds = {name: Folder(tmp_path / name) for name in ("a", "b", "t")}
        for minute in range(-6, 0):
            for feed in feeds.values():
                feed.add(minute)
        queries = [
            windrow.spark.write_stream(
                feed.stream(spark),
                wh,
                "t" if name == "t" else "s",
                source=None if name == "t" else name,
                checkpoint=str(tmp_path / f"checkpoint {name}"),
                trigger="available now",
            )
            for name, feed in feeds.items()
        ]
        batches = []
        for minute in range(-6, 0):
            rows = [(NOW + minutes(minute), 1000 + minute), (NOW + minutes(minute), 2000 + minute)]
            table = pa.table({"ts": pa.array([t for t, _ in rows], UTC), "k": [k for _, k in rows]}, schema=SCHEMA)
            if minute % 2:
                wh.append("s", table, source="c", batch_id=str(minute))
            else:
                windrow.spark.append(frame(table), wh, "s", source="c", batch_id=str(minute))
            batches += rows
        assert [run(query).rows for query in queries] == [60, 60, 60]
        for stream in ("s", "t"):
            for source in ("a", "b", "c") if stream == "s" else (None,):
                wh.heartbeat(stream, source=source, up_to=NOW)
            wh.slide(stream)
        assert stored(wh, "s") == sorted([*feeds["a"].rows, *feeds["b"].rows, *batches])
        assert stored(wh, "t") == sorted(feeds["t"].rows)
        assert wh.check().ok


class Test_back_pressure:
    def test_a_writer_waits_and_says_so_and_loses_nothing(self, spark, make, folder, checkpoint, caplog):
        wh = make()
        wh.create_stream("s", SCHEMA, sources=["a", "b"], **HOUR)
        for minute in (-9, -8, -7):
            folder.add(minute)
        with caplog.at_level(logging.WARNING, "windrow.ingest"):
            query = windrow.spark.write_stream(
                folder.stream(spark),
                wh,
                "s",
                source="a",
                checkpoint=checkpoint,
                trigger="available now",
                max_spool_bytes=0,
            )
            wait_until(lambda: "waits for source b" in caplog.text)
        assert wh.stream("s").spooled_rows == 10
        wh.heartbeat("s", source="b", up_to=NOW)
        assert run(query).rows == 30
        wh.heartbeat("s", source="a", up_to=NOW)
        wh.slide("s")
        assert stored(wh) == sorted(folder.rows)


class Test_what_is_refused:
    def test_before_the_query_starts(self, spark, make, folder, checkpoint):
        wh = make()
        wh.create_stream("s", SCHEMA, **HOUR)
        folder.add(-1)
        streaming, plain = folder.stream(spark), spark.range(1)
        with pytest.raises(windrow.DefinitionError, match=r"use windrow\.spark\.append"):
            windrow.spark.write_stream(plain, wh, "s", checkpoint=checkpoint)
        with pytest.raises(windrow.DefinitionError, match=r"use windrow\.spark\.write_stream"):
            windrow.spark.append(streaming, wh, "s")
        with pytest.raises(windrow.SchemaError, match="'more' is not in the stream"):
            windrow.spark.write_stream(streaming.selectExpr("*", "1 more"), wh, "s", checkpoint=checkpoint)
        with pytest.raises(windrow.DefinitionError, match="slide='yes' is unknown"):
            windrow.spark.write_stream(streaming, wh, "s", checkpoint=checkpoint, slide="yes")
        with pytest.raises(windrow.UnknownStreamError):
            windrow.spark.write_stream(streaming, wh, "nothing", checkpoint=checkpoint)
