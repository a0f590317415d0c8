"""`bench ingest`: every way to append rows, beside plain writes of the same rows to Parquet.

Each batch covers one lifetime, so that each slide expires the batch before. Contestants take turns on the same batch,
so that other load on the machine affects them equally.
"""

import contextlib
import datetime as dt
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import windrow
import windrow.spark
from bench import machine, report
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from windrow.ingest.session import use_this_interpreter

LIFETIME = 16 * 60_000_000
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("src", pa.int64()),
        ("dst", pa.int64()),
        ("len", pa.int32()),
        ("port", pa.int32()),
        ("bytes", pa.int64()),
        ("flags", pa.int32()),
        ("payload", pa.string()),
    ]
)
FILES = 4
ROWS = {True: 500_000, False: 5_000_000}
"""Of a batch, by whether the run is to be quick."""
BATCHES = 9
WARM_UP = 3
"""Batches that do not count: the first has no keys to sort by, the second compiles code for them, and the JVM turns the
hot parts of every contestant into machine code during the third."""
AIMS = [
    ("spark.append + slide", "df.write.parquet", 1.2),
    ("spark.append + slide", "format windrow", 0.5),
    ("wh.append + slide", "DuckDB sorted COPY", 1.25),
    ("spark.read + aggregate", "spark.read.parquet", 1.2),
]
ASK = "src % 16 AS bucket, len, bytes"


def rows(count: int, end: int, seed: int) -> pa.Table:
    """Packets of 90 bytes in the order of their time, sources as uneven as in real traffic."""
    chance = np.random.default_rng(seed)
    text = chance.integers(33, 126, (count, 40), dtype=np.uint8)
    offsets = pa.py_buffer((np.arange(count + 1, dtype=np.int32) * 40).tobytes())
    payload = pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(text.tobytes())])
    return pa.table(
        [
            pa.array(end - LIFETIME + 1 + np.sort(chance.integers(0, LIFETIME, count)), SCHEMA.field("ts").type),
            chance.zipf(1.3, count) % 100_000,
            chance.integers(0, 1 << 31, count),
            chance.integers(40, 1500, count).astype(np.int32),
            chance.integers(0, 65535, count).astype(np.int32),
            chance.integers(0, 1 << 40, count),
            chance.integers(0, 255, count).astype(np.int32),
            payload,
        ],
        schema=SCHEMA,
    )


@dataclass
class Run:
    """The contestants, their warehouses and what they took."""

    folder: Path
    spark: Any
    count: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warehouses = {}
        for name in ("spark.append", "format windrow", "wh.append"):
            path = self.folder / name.replace(" ", "-")
            self.warehouses[name] = windrow.open(path)
            self.warehouses[name].create_stream(
                "packets",
                SCHEMA,
                time="ts",
                key="src",
                slide="1 minute",
                lifetime="16 minutes",
                index=windrow.Index("round-robin", 4, 4),
            )

    def clock(self, name: str, work: Callable[[], Any]) -> Any:
        """Do something, and remember how long it took, and how much of the processors."""
        before, started = processor_seconds(), time.perf_counter()
        result = work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - started)
        self.processor.setdefault(name, []).append(processor_seconds() - before)
        return result

    def batch(self, number: int, end: int) -> None:
        """One batch through every contestant."""
        table = rows(self.count, end, number)
        source = self.folder / "input"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        for part in range(FILES):
            step = -(-self.count // FILES)
            part_of = table.slice(part * step, step)
            pq.write_table(part_of, source / f"{part}.parquet", compression="none", use_dictionary=False)
        frame = self.spark.read.parquet(str(source))
        upto = dt.datetime.fromtimestamp(end / 1e6, dt.UTC)
        self.clock("df.write.parquet", lambda: frame.write.mode("overwrite").parquet(str(self.folder / "plain")))
        self.clock("spark.append", lambda: self._spark(frame, number, upto))
        self.clock("format windrow", lambda: self._source(frame, number, upto))
        self.clock("DuckDB sorted COPY", lambda: self._copy(table))
        self.clock("wh.append", lambda: self._direct(table, number, upto))
        self._read()
        self._verify(table)

    def _spark(self, frame: Any, number: int, upto: dt.datetime) -> None:
        wh = self.warehouses["spark.append"]
        windrow.spark.append(frame, wh, "packets", batch_id=str(number))
        wh.slide("packets", upto)

    def _source(self, frame: Any, number: int, upto: dt.datetime) -> None:
        wh = self.warehouses["format windrow"]
        options = {"path": str(wh.path), "stream": "packets", "batch_id": str(number)}
        frame.write.format("windrow").options(**options).mode("append").save()
        wh.slide("packets", upto)

    def _direct(self, table: pa.Table, number: int, upto: dt.datetime) -> None:
        wh = self.warehouses["wh.append"]
        wh.append("packets", table, batch_id=str(number))
        wh.slide("packets", upto)

    def _copy(self, table: pa.Table) -> None:
        with duckdb.connect() as connection:
            connection.register("packets", table)
            target = self.folder / "copy.parquet"
            connection.execute(f"COPY (SELECT * FROM packets ORDER BY src, ts) TO '{target}' (FORMAT parquet)")

    def _read(self) -> None:
        """The window, and the same files read by nobody's rules."""
        wh = self.warehouses["spark.append"]

        def asked(frame: Any) -> Any:
            return frame.selectExpr(*ASK.split(", ")).groupBy("bucket").agg({"len": "avg", "bytes": "max"}).collect()

        def window() -> Any:
            with windrow.spark.window(self.spark, wh, "packets", "16 minutes") as frame:
                return asked(frame)

        with wh.snapshot(["packets"]) as snapshot:
            files = sorted({str(wh.path / segment.file) for segment in snapshot.view("packets").segments})
            plain = self.clock("spark.read.parquet", lambda: asked(self.spark.read.parquet(*files)))
        if sorted(self.clock("spark.read", window)) != sorted(plain):
            raise WrongAnswerError("windrow.spark.read and spark.read.parquet of the same files differ")

    def _verify(self, table: pa.Table) -> None:
        """Every warehouse holds exactly the last batch."""
        right = pc.sum(table.column("bytes")).as_py()
        for name, wh in self.warehouses.items():
            sizes = wh.scan("packets", columns=["bytes"]).read_all().column("bytes")
            if (len(sizes), pc.sum(sizes).as_py()) != (table.num_rows, right):
                raise WrongAnswerError(f"{name}: {len(sizes)} rows are live, not {table.num_rows}")

    def close(self) -> None:
        """Close the warehouses."""
        for wh in self.warehouses.values():
            wh.close()

    def best(self, name: str) -> float:
        """The median, without the batches in which everything warms up and keys are learned."""
        return statistics.median(self.seconds[name][WARM_UP:])

    def line(self, name: str) -> list[str]:
        """Of the table."""
        median, taken = self.best(name), self.seconds[name][WARM_UP:]
        used = statistics.median(self.processor[name][WARM_UP:])
        spread = f"{min(taken):.2f} to {max(taken):.2f}"
        return [name, f"{median:.2f}", spread, f"{used:.2f}", f"{self.count / median / 1e6:.2f}"]


def processor_seconds() -> float:
    """What this process, Spark's JVM and its Python workers have used so far."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process], ticks[process] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[process] for process in ours) / os.sysconf("SC_CLK_TCK")


def session() -> Any:
    """Two cores, as the aims have it."""
    use_this_interpreter()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("windrow bench ingest")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def work(*, quick: bool) -> int:  # noqa: ARG001
    """How many times `advance` will be called."""
    return 1 + BATCHES


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    advance("starting Spark")
    with TemporaryDirectory(dir=scratch) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        spark = session()
        windrow.spark.register(spark)
        run = Run(Path(folder), spark, ROWS[quick])
        last = time.time_ns() // 1000 // LIFETIME
        for number in range(BATCHES):
            run.batch(number, (last - BATCHES + number + 1) * LIFETIME)
            results.write("ingest-samples", {"rows": run.count, "seconds": run.seconds, "processor": run.processor})
            advance(f"batch {number + 1} of {BATCHES}")
        run.close()
        spark.stop()
    aims = [
        Aim(f"{ours} / {theirs}", run.best(ours.split()[0]) / run.best(theirs), limit) for ours, theirs, limit in AIMS
    ]
    parts = [
        machine.summarise(host),
        f"{run.count:,} rows of 90 bytes a batch, {BATCHES} batches; medians without the first {WARM_UP}.",
        "### What was wanted",
        report.aims_table(aims),
        "### Seconds",
        report.table(
            ["", "median", "least to most", "CPU", "million rows/s"], [run.line(name) for name in run.seconds]
        ),
    ]
    figures = {"machine": host, "seconds": run.seconds, "processor": run.processor, "wanted": verdicts(aims)}
    results.write("ingest", figures)
    return "\n\n".join(parts), aims
