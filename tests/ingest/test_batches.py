"""A batch is known by all values of its rows, whichever way it comes, and a streaming query by its checkpoint.

first     b1 ─▶ taken
again     b1 ─▶ the same rows: nothing changes          other rows: refused, and told what to do
"""

import datetime as dt
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
import windrow.spark
from command_line import CommandLine

NOW = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64()), ("v", pa.float64()), ("tags", pa.list_(pa.string()))])
HOUR = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "1 hour"}

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def table(start: int, count: int, times: float = 1.0) -> pa.Table:
    numbers = range(start, start + count)
    stamps = [NOW - dt.timedelta(seconds=600 - i % 600) for i in numbers]
    tags = [None if i % 3 == 0 else [f"t{i % 4}"] * (i % 3) for i in numbers]
    return pa.table([stamps, [i % 50 for i in numbers], [i * times for i in numbers], tags], schema=SCHEMA)


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "warehouse") as opened:
        opened.create_stream("s", SCHEMA, **HOUR)
        yield opened


def save(frame, wh, **options):
    windrow.spark.register(frame.sparkSession)
    frame.write.format("windrow").options(path=str(wh.path), stream="s", **options).mode("append").save()


class Test_a_batch_that_comes_again:
    def test_is_known_by_all_its_rows_whichever_way_they_come(self, wh, frame, tmp_path):
        rows, other = table(0, 200), table(0, 200, times=7.0)
        files = {}
        for name, data in (("rows", rows.take(list(range(199, -1, -1)))), ("other", other)):
            files[name] = tmp_path / f"{name}.parquet"
            pq.write_table(data, files[name])
        run = CommandLine(wh.path)
        ways = {
            "python": lambda batch, data, name: wh.append("s", data, batch_id=batch),
            "spark": lambda batch, data, name: windrow.spark.append(frame(data), wh, "s", batch_id=batch),
            "format": lambda batch, data, name: save(frame(data), wh, batch_id=batch),
            "command line": lambda batch, data, name: run("append", "s", files[name], "--batch-id", batch),
        }
        names = [*ways, "python"]
        for first, second in pairwise(names):
            for way in (first, second):
                ways[way](first, rows, "rows")
        assert wh.stream("s").spooled_rows == 4 * 200
        for way, append in ways.items():
            if way == "command line":
                report = run("append", "s", files["other"], "--batch-id", "python", code=1).output
                assert "before with other rows" in report and "under a new batch id" in report
                continue
            with pytest.raises(Exception, match=r"(?s)before with other rows.*under a new batch id"):
                append("python", other, "other")
        assert wh.stream("s").spooled_rows == 4 * 200

    def test_of_a_job_that_drops_what_it_cannot_read(self, spark, wh, tmp_path):
        """Spark counts the rows of such a file without looking at them: the count alone is another one."""
        path = tmp_path / "rows.csv"
        lines = [f"{(NOW - dt.timedelta(seconds=i)).isoformat()},{i if i % 10 else 'bad'},{i}" for i in range(100)]
        path.write_text("\n".join(["ts,k,v", *lines]))
        columns = "ts timestamp, k bigint, v double"
        reader = spark.read.option("header", True)
        jobs = {
            "dropped": lambda: reader.schema(columns).option("mode", "DROPMALFORMED").csv(str(path)),
            "filtered": lambda: (
                reader.schema(f"{columns}, _corrupt_record string")
                .csv(str(path))
                .where("_corrupt_record is null")
                .drop("_corrupt_record")
            ),
        }
        wh.create_stream("plain", pa.schema(list(SCHEMA)[:3]), **HOUR)
        for name, job in jobs.items():
            assert windrow.spark.append(job(), wh, "plain", batch_id=name).accepted == 90
            assert windrow.spark.append(job(), wh, "plain", batch_id=name).duplicate
        assert wh.stream("plain").spooled_rows == 180

    def test_of_an_earlier_release_is_known_by_its_count(self, wh, frame):
        from msgspec.structs import replace

        wh.append("s", table(0, 10), batch_id="old")
        with wh._store.catalog.write() as tables:
            for key, entry in list(tables.items("batches")):
                tables.put("batches", key, replace(entry, whole=False))
        assert windrow.spark.append(frame(table(0, 10)), wh, "s", batch_id="old").duplicate
        with pytest.raises(windrow.BatchConflictError, match="10 then, 11 now"):
            windrow.spark.append(frame(table(0, 11)), wh, "s", batch_id="old")

    def test_after_a_column_was_added(self, wh, frame):
        wh.append("s", table(0, 10), batch_id="b")
        wh.alter_stream("s", add_column=("note", pa.string()))
        assert wh.append("s", table(0, 10), batch_id="b").duplicate
        assert windrow.spark.append(frame(table(0, 10)), wh, "s", batch_id="b").duplicate

    def test_two_columns_of_one_name_are_refused_in_one_sentence(self, wh, frame):
        with pytest.raises(windrow.SchemaError, match=r"2 columns of the name 'k'; drop or rename all but one"):
            windrow.spark.append(frame(table(0, 3)).selectExpr("*", "k"), wh, "s")


class Test_a_streaming_query:
    """Files of ten rows each are its batches."""

    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "input").mkdir()
        return tmp_path / "input"

    def add(self, folder: Path, number: int) -> None:
        hidden = folder / f".{number}.parquet"
        pq.write_table(table(10 * number, 10), hidden)
        time.sleep(0.01)
        hidden.rename(folder / f"{number}.parquet")

    def rows(self, spark, folder):
        reader = spark.readStream.schema("ts timestamp, k bigint, v double, tags array<string>")
        return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))

    def run_format(self, spark, path, folder, checkpoint, **options):
        windrow.spark.register(spark)
        writer = self.rows(spark, folder).writeStream.format("windrow").options(path=str(path), stream="s", **options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(150)

    def run_each(self, spark, path, folder, checkpoint, **options):
        query = windrow.spark.write_stream(
            self.rows(spark, folder),
            path,
            "s",
            checkpoint=str(checkpoint),
            trigger="available now",
            slide=None,
            **options,
        )
        assert query.awaitTermination(150)

    def values(self, path: Path) -> list[float]:
        with windrow.open(path) as wh:
            wh.slide("s", NOW)
            return sorted(wh.scan("s").read_all()["v"].to_pylist())

    def test_with_a_new_checkpoint_is_another_query(self, spark, wh, folder, tmp_path):
        """Its batches begin at 0 again: they must not be taken for those of the query before."""
        checkpoint = tmp_path / "checkpoint"
        self.add(folder, 0)
        self.run_format(spark, wh.path, folder, checkpoint)
        shutil.rmtree(checkpoint)
        (folder / "0.parquet").unlink()
        self.add(folder, 1)
        self.run_format(spark, wh.path, folder, checkpoint)
        self.add(folder, 2)
        self.run_format(spark, wh.path, folder, checkpoint)
        assert self.values(wh.path) == list(range(30))

    def test_of_a_name_with_a_new_checkpoint_is_told_that_its_rows_are_others(self, spark, wh, folder, tmp_path):
        self.add(folder, 0)
        self.run_format(spark, wh.path, folder, tmp_path / "one", query="mine")
        self.run_format(spark, wh.path, folder, tmp_path / "two", query="mine")
        (folder / "0.parquet").unlink()
        self.add(folder, 1)
        with pytest.raises(Exception, match="before with other rows"):
            self.run_format(spark, wh.path, folder, tmp_path / "three", query="mine")
        assert self.values(wh.path) == list(range(10))

    @pytest.mark.parametrize("way", ["format", "each"])
    def test_ahead_of_a_restored_warehouse_is_refused_until_the_loss_is_accepted(
        self, spark, wh, folder, tmp_path, way
    ):
        """
        batches      0   1   2 │ 3
        backup         ▲       │
        restored     0 ────────┤ 3 is refused: 1 and 2 will never come again
        """
        run = self.run_format if way == "format" else self.run_each
        checkpoint, restored = tmp_path / "checkpoint", tmp_path / "restored"
        self.add(folder, 0)
        run(spark, wh.path, folder, checkpoint)
        wh.backup(tmp_path / "backup")
        for number in (1, 2):
            self.add(folder, number)
        run(spark, wh.path, folder, checkpoint)
        windrow.restore(tmp_path / "backup", restored)
        self.add(folder, 3)
        with pytest.raises(Exception, match=r"(?s)batches 1 to 2 of it are not in.*accept_loss"):
            run(spark, restored, folder, checkpoint)
        run(spark, restored, folder, checkpoint, accept_loss=True)
        self.add(folder, 4)
        run(spark, restored, folder, checkpoint)
        assert self.values(restored) == [*range(10), *range(30, 50)]
        assert self.values(wh.path) == list(range(30))
