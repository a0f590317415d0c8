"""A Kafka broker on this machine's loopback, and Spark's package for it, as Maven gives them."""

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from maven_jars import fetch, need_tools

KAFKA = "3.9.1"
BROKER = [f"org.apache.kafka:kafka_2.13:{KAFKA}"]
SPARK = [
    "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:{spark}",
    "org.apache.spark:spark-avro_2.13:{spark}",
    f"org.apache.kafka:kafka-clients:{KAFKA}",
    "org.apache.commons:commons-pool2:2.12.0",
]
# A mirror of Maven Central may not have those of the installed version; these were tried with PySpark 4.3.0.
SPARK_OLDER = [
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.spark:spark-avro_2.13:4.1.1",
    *SPARK[3:],
]
PRODUCER = Path(__file__).with_name("KafkaLines.java")
SMALL = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]


def find_jars() -> tuple[Path, list[str]]:
    """The broker's jars, and those that Spark needs; skips the test where they cannot be had."""
    import pyspark

    need_tools("java", "javac", "mvn")
    broker = fetch(f"kafka-{KAFKA}", BROKER, alone=False)
    if isinstance(broker, str):
        pytest.skip(broker)
    wanted = [each.format(spark=pyspark.__version__) for each in SPARK]
    spark = fetch(f"spark-kafka-{pyspark.__version__}", wanted, alone=True)
    if isinstance(spark, str):
        spark = fetch("spark-kafka-older", SPARK_OLDER, alone=True)
    if isinstance(spark, str):
        pytest.skip(spark)
    return broker, sorted(map(str, spark.glob("*.jar")))


def _free_ports(count: int) -> list[int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


class Broker:
    """One broker that is its own controller, and a process that sends messages to it."""

    def __init__(self, folder: Path, jars: Path) -> None:
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._port = port
        self._java = [*SMALL, "-cp", f"{jars}/*"]
        self._log = folder / "broker.log"
        self._settings = folder / "server.properties"
        self._settings.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\nlog.dirs={folder / 'log'}\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
            # A broker that was killed may come back only when it is taken for dead.
            "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        )
        format_storage = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"]
        subprocess.run(
            [*self._java, *format_storage, str(self._settings)], check=True, capture_output=True, timeout=120
        )
        self.start()
        self._producer = subprocess.Popen(
            [*self._java, str(PRODUCER), self.address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def start(self) -> None:
        """Start the broker, or start it again after a kill, and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings)], stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 120
        while True:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                assert time.monotonic() < end, self._log.read_text()[-2000:]
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End the broker without a warning."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._tell([f"create {topic} {partitions}"])

    def send(self, topic: str, messages: list[tuple[int, bytes]]) -> None:
        """Send (partition, value) messages; they are on the broker when this returns."""
        self._tell([f"send {topic} {partition} {value.hex()}" for partition, value in messages])

    def _tell(self, lines: list[str]) -> None:
        assert self._producer.stdin is not None
        assert self._producer.stdout is not None
        self._producer.stdin.write("".join(f"{line}\n" for line in [*lines, "flush"]))
        self._producer.stdin.flush()
        answer = self._producer.stdout.readline()
        assert answer == "done\n", answer or "the producer has ended"

    def close(self) -> None:
        """End both processes."""
        self._producer.kill()
        self._producer.communicate()
        self.kill()
