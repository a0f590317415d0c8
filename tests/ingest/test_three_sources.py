"""The heartbeat paper's experiment with three Spark queries: two fast sources, and one ten times slower that falls silent.

fast 1, 2   |=|=|=|=|=|=|=|=|=|=|=|=|=|=|=|   a file every half second
control     |-|         (silence)         |-|   a file every five seconds
clock       |>>|........................|>>>>   heartbeats off: it waits, and the spool fills
            |>>>>>>>>>>>>>>>>>>>>>>>>>>>>>>>>   heartbeats on
"""

import datetime as dt
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
import windrow.spark

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64())])
SOURCES = ("fast 1", "fast 2", "control")
RUN, SILENT_FROM, SILENT_TO = 60.0, 15.0, 45.0


class Feeder:
    """Writes files of rows that happen now."""

    def __init__(self, root: Path) -> None:
        self.folders = {source: root / source.replace(" ", "-") for source in SOURCES}
        self.rows = 0
        for folder in self.folders.values():
            folder.mkdir(parents=True)

    def write(self, source: str, count: int) -> None:
        now = dt.datetime.now(dt.UTC)
        stamps = [now - dt.timedelta(milliseconds=count - i) for i in range(count)]
        table = pa.table([pa.array(stamps, UTC), range(self.rows, self.rows + count)], schema=SCHEMA)
        hidden = self.folders[source] / f".{self.rows:09d}.parquet"
        pq.write_table(table, hidden)
        hidden.rename(hidden.with_name(hidden.name[1:]))
        self.rows += count

    def run(self, started: float) -> None:
        tick = 0
        while (instant := time.monotonic() - started) < RUN:
            for source in SOURCES[:2]:
                self.write(source, 100)
            if tick % 10 == 0 and not SILENT_FROM < instant < SILENT_TO:
                self.write("control", 10)
            tick += 1
            time.sleep(0.5)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def experiment(spark, tmp_path, heartbeat):
    feeder = Feeder(tmp_path / "input")
    wh = windrow.open(tmp_path / "warehouse")
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 second", lifetime="10 minutes", sources=SOURCES)
    queries = []
    for source, folder in feeder.folders.items():
        frame = spark.readStream.schema("ts timestamp, k bigint").parquet(str(folder))
        beats = {"heartbeat": heartbeat, "lag": "2 seconds"} if source == "control" and heartbeat else {}
        options = {"source": source, "checkpoint": str(tmp_path / f"ck {source}"), "trigger": "500 milliseconds"}
        queries.append(windrow.spark.write_stream(frame, wh, "s", **options, **beats))
    before = resident()
    feeding = threading.Thread(target=feeder.run, args=(time.monotonic(),))
    feeding.start()
    spooled, behind = [], []
    while feeding.is_alive():
        time.sleep(0.5)
        spooled.append(wh.stream("s").spooled_rows)
        clock = wh.now("s")
        behind.append(0.0 if clock is None else (dt.datetime.now(dt.UTC) - clock).total_seconds())
    for query in queries:
        query.processAllAvailable()
        windrow.spark.stop(query)
    grown = resident() - before
    wh.slide("s", dt.datetime.now(dt.UTC), force=True)
    keys = wh.scan("s", columns=["k"]).read_all().column("k").to_pylist()
    assert sorted(keys) == list(range(feeder.rows))
    assert wh.check().problems == ()
    wh.close()
    return max(spooled), max(behind), grown


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_windows_move_with_heartbeats_and_wait_without(spark, tmp_path):
    off = experiment(spark, tmp_path / "off", None)
    on = experiment(spark, tmp_path / "on", "1 second")
    silence = SILENT_TO - SILENT_FROM
    assert off[1] > silence
    assert on[1] < silence / 2 < off[1]
    assert on[0] < off[0] / 2
    assert max(off[2], on[2]) < 400 << 20
