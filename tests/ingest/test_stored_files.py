"""Spark reads a warehouse in an object store, in the folder's cache or from the store itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import maven_jars
import windrow
import windrow.spark
from object_stores import CREDENTIALS, serve_s3
from stored_packets import MINUTES, forget_files, make_stored_packets, truth
from windrow.orphans import data_files

HADOOP_AWS = ["org.apache.hadoop:hadoop-aws:{hadoop}"]
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
import windrow.spark
path, jars, master = sys.argv[1:]
settings = {"spark.driver.extraClassPath": jars + "/*", "spark.executor.extraClassPath": jars + "/*",
            "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
windrow.spark.register(spark)
def sums(frame):
    return [tuple(row) for row in frame.groupBy("src").sum("len").orderBy("src").collect()]
frame = windrow.spark.read(spark, path, "packets")
fetched = spark.read.format("windrow").options(path=path, stream="packets").load()
schemes = sorted({name.split(":")[0] for name in frame.inputFiles()})
asked = windrow.spark.sql(spark, path, "SELECT src, sum(len) FROM packets [WINDOW 16 MINUTES] GROUP BY src ORDER BY src")
by_sql = [tuple(row) for row in asked.collect()]
print(json.dumps([sums(frame), sums(fetched), by_sql, schemes]))
windrow.spark.release(frame)
spark.stop()
"""


def sums() -> list[tuple[int, int]]:
    """Of each source, by plain Python."""
    totals: dict[int, int] = {}
    for row in truth():
        totals[row["src"]] = totals.get(row["src"], 0) + row["len"]
    return sorted(totals.items())


def rows_of(frame) -> list[tuple[int, int]]:
    return [tuple(row) for row in frame.groupBy("src").sum("len").orderBy("src").collect()]


def test_executors_read_the_cache_the_store_or_what_they_fetch(spark, tmp_path) -> None:
    folder = tmp_path / "w"
    windrow.spark.register(spark)
    with make_stored_packets(folder, f"file://{tmp_path}/shared%20[1]") as wh:
        forget_files(folder)
        frame = windrow.spark.read(spark, wh, "packets")  # in one process: from the folder
        assert rows_of(frame) == sums()
        windrow.spark.release(frame)
        forget_files(folder)
        frame = spark.read.format("windrow").options(path=str(folder), stream="packets").load()
        assert rows_of(frame) == sums()
        assert not data_files(folder)  # its workers fetch into folders of their own
        spark.conf.set("spark.windrow.files", "store")
        try:
            frame = windrow.spark.read(spark, wh, "packets")
            assert rows_of(frame) == sums()
            assert not data_files(folder)
        finally:
            spark.conf.unset("spark.windrow.files")
        report = windrow.spark.append(frame.limit(10), wh, "packets", batch_id="from spark")
        assert report.accepted == 10
        assert wh._store.remote.status().objects == MINUTES + 1
        windrow.spark.release(frame)


def test_a_session_without_s3a_is_told_what_to_do(spark, tmp_path) -> None:
    with serve_s3() as s3, make_stored_packets(tmp_path / "w", s3.uri("spark")) as wh:
        spark.conf.set("spark.windrow.files", "store")
        try:
            with pytest.raises(windrow.StorageError, match="hadoop-aws"):
                windrow.spark.read(spark, wh, "packets")
        finally:
            spark.conf.unset("spark.windrow.files")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_hadoops_file_system_and_workers_read_s3_on_two_executors(tmp_path) -> None:
    """Soak, because Maven gives 700 MB for it. Executors need its jars on their own class path, as the driver does."""
    import pyspark

    jar_names = [path.name for path in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")]
    hadoop = jar_names[0].removeprefix("hadoop-client-api-").removesuffix(".jar")
    jars = maven_jars.fetch(f"hadoop-aws-{hadoop}", [each.format(hadoop=hadoop) for each in HADOOP_AWS], alone=False)
    if isinstance(jars, str):
        pytest.skip(jars)
    folder = tmp_path / "w"
    with serve_s3() as s3:
        make_stored_packets(folder, s3.uri("cluster")).close()
        forget_files(folder)
        s3.requests.clear()
        arguments = [str(folder), str(jars), "local-cluster[2,1,2048]"]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**os.environ, **CREDENTIALS}, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert not [request for request in s3.requests if "list-type" in request.path]  # sizes are in the catalog
    by_hadoop, by_workers, by_sql, schemes = json.loads(done.stdout.splitlines()[-1])
    for answer in (by_hadoop, by_workers, by_sql):
        assert [tuple(row) for row in answer] == sums()
    assert schemes == ["s3a"]
    assert not data_files(folder)
