"""Kafka with a real broker: partitions as sources, JSON and Avro, and kills of the driver and of the broker."""

from __future__ import annotations

import datetime as dt
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import kafka_broker
import windrow
import windrow.spark
from windrow import cli
from windrow.errors import DefinitionError
from windrow.ingest.kafka import find_positions, reads_only_kafka

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("word", pa.string())])
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PROCESS = Path(__file__).with_name("kafka_process.py")
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "k", "type": "long"},
        {"name": "word", "type": "string"},
    ],
}


def at(minute: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minute)


def in_micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def in_json(minute: float, k: int) -> bytes:
    return json.dumps({"ts": at(minute).isoformat(), "k": k, "word": f"w{k}"}).encode()


def in_avro(minute: float, k: int) -> bytes:
    def number(value: int) -> bytes:
        zigzag, digits = value << 1 if value >= 0 else (-value << 1) - 1, bytearray()
        while zigzag > 127:
            digits.append(zigzag & 127 | 128)
            zigzag >>= 7
        return bytes([*digits, zigzag])

    word = f"w{k}".encode()
    return b"".join([number(in_micros(at(minute))), number(k), number(len(word)), word])


class Driver:
    """A process with a Spark that knows Kafka; it runs one `windrow ingest` after the other."""

    def __init__(self, jars: list[str], step: str = "-", passes: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROCESS), ",".join(jars), step, str(passes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def begin(self, *arguments: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()

    def has_ended(self) -> bool:
        """Whether the command has ended, or the process."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def end(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the driver has ended with {self.process.wait()}"
        return json.loads(line)

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run a command that ends well; gives its summary."""
        self.begin(*arguments, "--json")
        done = self.end()
        assert done["code"] == 0, done["output"]
        return json.loads(done["stdout"])

    def close(self) -> None:
        self.process.communicate(timeout=120)


@pytest.fixture(scope="module")
def jars() -> tuple[Path, list[str]]:
    return kafka_broker.find_jars()


@pytest.fixture(scope="module")
def driver(jars: tuple[Path, list[str]]) -> Iterator[Driver]:
    one = Driver(jars[1])
    yield one
    one.close()


@pytest.fixture(scope="module")
def broker(
    jars: tuple[Path, list[str]], driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[kafka_broker.Broker]:
    one = kafka_broker.Broker(tmp_path_factory.mktemp("kafka"), jars[0])
    yield one
    one.close()


class Topic:
    """A topic with a stream of the same name, and the rows that were sent: the oracle."""

    def __init__(self, broker: kafka_broker.Broker, folder: Path, name: str, partitions: int, **options: Any) -> None:
        self.broker, self.name, self.path = broker, name, folder / "warehouse"
        self.sent: list[tuple[int, float, int]] = []
        broker.create_topic(name, partitions)
        with windrow.open(self.path) as wh:
            wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime="2 weeks", **options)
        self.arguments = [
            *(name, "-w", str(self.path), "--format", "kafka", "--checkpoint", str(folder / "checkpoint")),
            *("--option", f"kafka.bootstrap.servers={broker.address}", "--option", f"subscribe={name}"),
        ]

    def send(self, partition: int, minutes: list[float], write: Callable[[float, int], bytes] = in_json) -> None:
        rows = [(partition, minute, len(self.sent) + n) for n, minute in enumerate(minutes)]
        self.sent += rows
        self.broker.send(self.name, [(partition, write(minute, k)) for _, minute, k in rows])

    def reached(self, partition: int) -> dt.datetime:
        return at(max(minute for which, minute, _ in self.sent if which == partition))

    def verify(self) -> None:
        """Every message is a row of the stream, once."""
        with windrow.open(self.path) as wh:
            latest = max(minute for _, minute, _ in self.sent)
            wh.slide(self.name, at(int(latest) + 1), force=True)
            actual = wh.scan(self.name).read_all()
            got = zip(*(actual.column(name).to_pylist() for name in ("ts", "k", "word")), strict=True)
            assert sorted(got) == sorted((at(minute), k, f"w{k}") for _, minute, k in self.sent)
            assert wh.stream(self.name).rejected == 0
            assert wh.check().problems == ()

    def wait_for(self, rows: int, driver: Driver, *command: str) -> None:
        """Wait until so many rows are in; the command is started again if it failed for the broker was away too long."""
        end = time.monotonic() + 120
        with windrow.open(self.path) as wh:
            while (state := wh.stream(self.name)).inserted + state.spooled_rows < rows:
                if driver.has_ended():
                    done = driver.end()
                    assert done["code"] == 1, done["output"]
                    driver.begin(*command)
                assert time.monotonic() < end, f"{state.inserted} + {state.spooled_rows} of {rows} rows have come"
                time.sleep(0.05)


@pytest.mark.timeout(300)
def test_partitions_are_sources_and_a_silent_one_does_not_stop_the_window(broker, driver, tmp_path):
    names = [f"calls-{partition}" for partition in range(3)]
    topic = Topic(broker, tmp_path, "calls", 3, sources=names, max_skew="5 minutes")
    for partition in range(3):
        topic.send(partition, [n / 10 for n in range(20 + partition)])
    totals = driver.run(*topic.arguments)
    assert (totals["rows"], totals["batches"], totals["now"]) == (63, 1, "2026-01-01T00:01:00Z")
    assert totals["offsets"] == {"calls-0": 20, "calls-1": 21, "calls-2": 22}
    assert totals["lag"] == {"calls-0": 0, "calls-1": 0, "calls-2": 0}

    # The third partition is silent, the second behind the first by less than max_skew.
    topic.send(0, [2 + n / 2 for n in range(27)])
    topic.send(1, [2.5 + n / 2 for n in range(20)])
    totals = driver.run(*topic.arguments)
    slowest = max(topic.reached(2), topic.reached(0) - dt.timedelta(minutes=5))
    assert totals["now"] == slowest.replace(second=0).strftime("%Y-%m-%dT%H:%M:%SZ") == "2026-01-01T00:10:00Z"
    with windrow.open(topic.path) as wh:
        progress = {source.name: source.progress for source in wh.stream("calls").sources}
        assert progress == {name: in_micros(topic.reached(partition)) for partition, name in enumerate(names)}

    assert driver.run(*topic.arguments)["rows"] == 0
    # What is in the status is of the last batch, and this process asks neither Spark nor Kafka for it.
    topic.send(0, [16.5 + n / 100 for n in range(30)])
    driver.begin(*topic.arguments, "--option", "maxOffsetsPerTrigger=4")
    lags = {0}
    with windrow.open(topic.path) as wh:
        while not driver.has_ended():
            position = {each.name: (each.offset, each.lag) for each in wh.stream("calls").partitions}["calls-0"]
            assert sum(position) in (47, 77)
            lags.add(position[1])
            time.sleep(0.02)
        done = driver.end()
        assert done["code"] == 0, done["output"]
        assert len(lags) > 2, lags
        left = {each.name: (each.offset, each.lag) for each in wh.stream("calls").partitions}
        assert left == {"calls-0": (77, 0), "calls-1": (41, 0), "calls-2": (22, 0)}
        assert all(each.seen <= dt.datetime.now(dt.UTC) for each in wh.stream("calls").partitions)
    said = CliRunner().invoke(cli.windrow, ["status", "-w", str(topic.path)])
    assert "calls reads 3 partitions of Kafka and was 0 offsets behind, as last seen at 20" in said.output
    said = CliRunner().invoke(cli.windrow, ["stream", "show", "calls", "-w", str(topic.path), "--json"])
    assert [each["offset"] for each in json.loads(said.output)["partitions"]] == [77, 41, 22]
    topic.verify()


@pytest.mark.timeout(300)
def test_avro_and_messages_that_cannot_be_read(broker, driver, tmp_path):
    topic = Topic(broker, tmp_path, "packed", 1)
    (tmp_path / "row.avsc").write_text(json.dumps(AVRO))
    topic.send(0, [n / 7 for n in range(50)], in_avro)
    avro = ("--avro-schema", str(tmp_path / "row.avsc"))
    assert driver.run(*topic.arguments, *avro)["rows"] == 50
    topic.verify()
    broker.send("packed", [(0, b"{this is neither")])
    for arguments in ((), avro):
        driver.begin(*topic.arguments, *arguments)
        done = driver.end()
        assert done["code"] == 1, done["output"]
        assert "the ingest failed: " in done["output"]
    topic.verify()
    totals = driver.run(*topic.arguments, "--option", "mode=PERMISSIVE")
    assert totals["rejected"] == {"the event time is null": 1}


@pytest.mark.timeout(300)
def test_a_silent_partition_is_promised_silent_while_others_have_rows(broker, driver, tmp_path):
    def now() -> float:
        return (dt.datetime.now(dt.UTC) - START) / dt.timedelta(minutes=1)

    def progress_of_silent() -> int:
        with windrow.open(topic.path) as wh:
            return {source.name: source.progress for source in wh.stream("live").sources}["live-1"]

    topic = Topic(broker, tmp_path, "live", 2)
    for partition in range(2):
        topic.send(partition, [now()])
    # So seldom that only batches of the other partition can bring a promise.
    forever = (*topic.arguments, "--continuous", "--heartbeat", "3650 days", "--lag", "1 second")
    driver.begin(*forever)
    topic.wait_for(2, driver, *forever)
    sent, end = in_micros(topic.reached(1)), time.monotonic() + 200
    with ended(driver):
        while (reached := progress_of_silent()) <= sent:
            assert time.monotonic() < end, f"the silent partition is still at {reached}"
            topic.send(0, [now()])
            topic.wait_for(len(topic.sent), driver, *forever)
    assert reached < in_micros(dt.datetime.now(dt.UTC)) - 1_000_000


@pytest.mark.timeout(400)
def test_kills_of_the_driver_and_of_the_broker_lose_and_double_nothing(broker, driver, jars, tmp_path):
    topic = Topic(broker, tmp_path, "kills", 2)
    for partition in range(2):
        topic.send(partition, [n / 10 for n in range(10)])
    # The first driver dies between two partitions of its first batch.
    first = Driver(jars[1], "append.committing", 1)
    first.begin(*topic.arguments)
    first.process.communicate(timeout=200)
    assert first.process.returncode == -signal.SIGKILL
    with windrow.open(topic.path) as wh:
        assert [source.name for source in wh.stream("kills").sources] == ["kills-0"]

    forever = (*topic.arguments, "--continuous")
    driver.begin(*forever)
    topic.wait_for(20, driver, *forever)
    topic.send(1, [1 + n / 10 for n in range(10)])
    broker.kill()
    broker.start()
    topic.send(0, [2 + n / 10 for n in range(10)])
    topic.wait_for(40, driver, *forever)
    with ended(driver):
        topic.send(1, [3 + n / 10 for n in range(10)])
        topic.wait_for(50, driver, *forever)
    assert driver.run(*topic.arguments)["lag"] == {"kills-0": 0, "kills-1": 0}
    topic.verify()


@contextmanager
def ended(driver: Driver) -> Iterator[None]:
    """Ends a continuous command by SIGTERM."""
    yield
    os.kill(driver.process.pid, signal.SIGTERM)
    done = driver.end()
    assert done["code"] == 0, done["output"]


def test_positions_in_progress_of_spark():
    kafka = {
        "description": "KafkaV2[Subscribe[t, u]]",
        "endOffset": {"t": {"0": 5, "10": 7}, "u": {"0": 0}},
        "latestOffset": {"t": {"0": 9, "10": 7}, "u": {"0": 1}},
    }
    progress = {"sources": [kafka]}
    assert find_positions(progress) == ({"t-0": 5, "t-10": 7, "u-0": 0}, {"t-0": 4, "t-10": 0, "u-0": 1})
    assert reads_only_kafka(progress)
    mixed = {"sources": [kafka | {"endOffset": None}, {"description": "FileStreamSource[x]", "endOffset": {"a": 1}}]}
    assert find_positions(mixed) == ({}, {})
    assert not reads_only_kafka(mixed)
    assert not reads_only_kafka({"sources": []})


class Test_rows_that_say_their_source:
    """The same without Kafka: files whose rows name their source."""

    @pytest.fixture
    def feed(self, spark, make, frame, tmp_path):
        wh = make()
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="365 days")
        folder = tmp_path / "in"

        def add(*rows: tuple[float, int, str | None]) -> None:
            stamps = [at(minute) for minute, _, _ in rows]
            table = pa.table(
                [
                    pa.array(stamps, SCHEMA.field("ts").type),
                    pa.array([k for _, k, _ in rows]),
                    ["x"] * len(rows),
                    pa.array([source for _, _, source in rows], pa.string()),
                ],
                names=[*SCHEMA.names, "origin"],
            )
            frame(table, 1).write.mode("append").parquet(str(folder))

        def run(checkpoint: str = "ck", **options: Any) -> Any:
            rows = spark.readStream.schema("ts timestamp, k bigint, word string, origin string").parquet(str(folder))
            given = {"source_column": "origin"} | options
            rows = rows if given["source_column"] else rows.drop("origin")
            query = windrow.spark.write_stream(
                rows, wh, "s", checkpoint=str(tmp_path / checkpoint), trigger="available now", **given
            )
            query.awaitTermination()
            return query

        return wh, add, run

    def test_each_has_its_progress_and_the_clock_is_the_slowest(self, feed):
        wh, add, run = feed
        add((1, 1, "a"), (3, 2, "b"), (2, 3, "a"))
        query = run()
        assert {source.name: (source.progress, source.rows) for source in wh.stream("s").sources} == {
            "a": (in_micros(at(2)), 2),
            "b": (in_micros(at(3)), 1),
        }
        assert wh.now("s") == at(2)
        assert windrow.spark.totals(query).rows == 3
        assert windrow.spark.progress(query)[0]["windrow"]["accepted"] == 3
        add((5, 4, "b"))
        run()
        assert wh.now("s") == at(2)
        add((6, 5, "a"))
        run()
        assert wh.now("s") == at(5)

    def test_a_batch_of_which_a_part_is_wrong_is_refused_before_any_of_it_is_in(self, feed):
        wh, add, run = feed
        add((1, 1, "a"), (2, 2, None))
        with pytest.raises(Exception, match="'origin' is null in batch 0"):
            run()
        assert wh.stream("s").sources == ()

    def test_what_does_not_fit_is_refused(self, feed):
        _, add, run = feed
        add((1, 1, "a"))
        with pytest.raises(DefinitionError, match="exclude each other"):
            run(source="a")
        with pytest.raises(DefinitionError, match="'nowhere' is no text column of the DataFrame, which has ts, k"):
            run(source_column="nowhere")
        with pytest.raises(DefinitionError, match="'k' is no text column"):
            run(source_column="k")
        run()
        add((2, 2, "a"))
        with pytest.raises(Exception, match="has appended to stream 's' as the sources a; go on as before"):
            run(source_column=None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--source-column", "x"), "--source-column goes with --checkpoint"),
        (("--source-column", "x", "--checkpoint", "c", "--source", "a"), "without --source"),
        (("--avro-schema", __file__), "--avro-schema goes with --format kafka"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, arguments, words):
    windrow.open(tmp_path / "warehouse").close()
    done = CliRunner().invoke(cli.windrow, ["ingest", "s", "-w", str(tmp_path / "warehouse"), *arguments])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
