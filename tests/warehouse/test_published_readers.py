"""Other engines beside running slides: whenever they look, they see the window of exactly one slide, whole."""

import json
import random
import subprocess
import time
from pathlib import Path

import polars
import pyarrow as pa
import pyspark
import pytest

import published_warehouse
from faulty_disks import join_child, start_child
from maven_jars import fetch, need_tools
from sample_streams import BASE
from windrow.indexes.arrow_arrays import to_numpy

deltalake = pytest.importorskip("deltalake", reason="deltalake, which reads the tables here, is not installed")

SLIDES = 30
KERNEL = [
    # Earlier releases than 4.4 (4.0 was tried) read no deletion vector that lies inside the log.
    *(f"io.delta:{name}:4.4.0" for name in ("delta-kernel-api", "delta-kernel-defaults", "delta-storage")),
]
PROGRAM = Path(__file__).with_name("DeltaRows.java")


class Oracle:
    """The windows of all slides, of the rows that the sliding process makes."""

    def __init__(self, seed: int, table: Path) -> None:
        self._log = table / "_delta_log"
        self._windows: dict[int, tuple[int, int]] = {0: (0, 0)}
        accepted: list[tuple[int, int, int]] = []
        for minute in range(1, SLIDES + 1):
            now = BASE + minute * 60_000_000
            rows = published_warehouse.make_minute(seed, minute)
            columns = [to_numpy(rows.column(name).cast(pa.int64())).tolist() for name in ("ts", "exp", "k")]
            dead_before = now - 60_000_000 if minute > 1 else 0
            accepted += [row for row in zip(*columns, strict=True) if row[1] > dead_before]
            keys = [k for ts, exp, k in accepted if ts <= now < exp]
            self._windows[now] = len(keys), sum(keys)

    def window(self, version: int) -> tuple[int, int]:
        """How many rows the window of a version has, and the sum of their keys."""
        first = json.loads((self._log / f"{version:020d}.json").read_text().splitlines()[0])
        parameters = first["commitInfo"]["operationParameters"]
        return self._windows[0 if parameters["slide"] == "None" else int(parameters["slide"]) * 60_000_000]


def publish(path: Path, seed: int) -> tuple[Path, Oracle]:
    """A published stream without rows; gives the table, and what it will have to show."""
    print("seed", seed)
    published_warehouse.make_published(str(path), slides=0, hold="1 hour")
    return path / "streams/s", Oracle(seed, path / "streams/s")


def query(table: Path, version: int | None) -> tuple[int, tuple[int, int]]:
    """The version, the rows and the sum of their keys, by deltalake's own engine."""
    opened = deltalake.DeltaTable(table, version=version)
    builder = deltalake.QueryBuilder().register("t", opened)
    rows = pa.table(builder.execute("SELECT count(*) AS n, coalesce(sum(k), 0) AS total FROM t").read_all())
    return opened.version(), (rows["n"][0].as_py(), rows["total"][0].as_py())


def scan(table: Path, version: int | None) -> tuple[int, tuple[int, int]]:
    """The same by Polars."""
    opened = deltalake.DeltaTable(table, version=version)
    keys = polars.scan_delta(opened).select("k").collect()["k"]
    return opened.version(), (len(keys), int(keys.sum()))


def test_engines_that_read_at_any_moment_see_one_slides_window(path: Path) -> None:
    noise, seen, over = random.Random(11), set(), False
    table, oracle = publish(path, seed=11)
    child = start_child(published_warehouse.slide_beside_readers, str(path), 11, SLIDES)
    while not over:
        over = not child.is_alive()  # and one more time, so that the last version is read too
        for read in (query, scan):
            version, shown = read(table, None)
            assert shown == oracle.window(version), (read, version)
            seen.add(version)
            earlier = noise.randrange(version + 1)
            assert read(table, earlier) == (earlier, oracle.window(earlier)), (read, earlier)
        time.sleep(noise.uniform(0, 0.02))
    assert join_child(child) == 0
    assert max(seen) == SLIDES


def test_deltas_own_library_for_java_sees_one_slides_window(path: Path) -> None:
    need_tools("java", "javac", "mvn")
    jars = fetch("delta-kernel-4.4.0", KERNEL, alone=True)
    if isinstance(jars, str):
        pytest.skip(jars)
    hadoop = Path(pyspark.__file__).parent / "jars"
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*:{hadoop}/*", str(PROGRAM)]
    table, oracle = publish(path, seed=12)
    with (path.parent / "problems").open("w+") as problems:
        reader = subprocess.Popen(
            [*command, str(table), "k", "12"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=problems, text=True,
        )  # fmt: skip
        try:
            assert reader.stdout is not None
            shown = [reader.stdout.readline()]  # from now on it reads, whatever else goes on
            assert join_child(start_child(published_warehouse.slide_beside_readers, str(path), 12, SLIDES)) == 0
            shown += reader.communicate("over\n", timeout=120)[0].splitlines()
        finally:
            reader.kill()
        problems.seek(0)
        assert reader.returncode == 0, problems.read()
    reads = [tuple(map(int, line.split())) for line in shown]
    for version, rows, total in reads:
        assert (rows, total) == oracle.window(version), version
    assert reads[0][0] == 0 and reads[-1][0] == SLIDES
