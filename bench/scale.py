"""`bench scale`: SQL on Spark beside plain Parquet, an object store beside the disk, and how far one catalog reaches.

What breaks first is found by putting records of ever more segments, streams and batches into a catalog by the code that
does so in real life, without the files that they name, and measuring what is done with such a catalog all day.
"""

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

import windrow
import windrow.spark
from bench import object_store
from bench.ingest import session
from bench.runner import WrongAnswerError
from bench.seeded import Lines, Measured, SeededBench
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import encode_batch_key, find_stream
from windrow.catalog.records import BatchEntry, FileEntry
from windrow.catalog.segment_log import exchange_segments, note_change
from windrow.ddl import choose_first_layout, record_stream
from windrow.times import to_datetime

MINUTE = 60_000_000
SLIDES = 20
WINDOW = 10
"""Slides of the window that is asked for."""
FILES = 4
"""Of plain Parquet."""
WARM_UP = 2
"""Turns that do not count: the JVM compiles."""
CHUNK = 5_000
"""Records that the simulation commits at once."""
INDEX = windrow.Index("wave-insertion", 8, maintenance="norebuild")
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("dst", pa.int64()), ("len", pa.int32()),
        ("port", pa.int32()), ("cost", pa.float64()), ("agent", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much is measured: rows in the window and repetitions; commits; and the catalogs that are simulated."""

    rows: int
    runs: int
    commits: int
    segments: tuple[int, ...]
    streams: tuple[int, ...]
    batches: tuple[int, ...]
    catalog: bool = False
    """Whether catalogs and object stores are measured; with the first seed they are."""
    large_store: bool = False
    """Whether the window in the object store is a large one."""


QUICK = Size(2_000_000, 3, 100, (1_000, 10_000), (100, 1_000), (10_000,))
FULL = Size(
    10_000_000, 5, 1_000, (1_000, 10_000, 100_000), (1_000, 10_000, 100_000), (10_000, 1_000_000), large_store=True
)


def work(*, quick: bool) -> int:  # noqa: ARG001 - every bench is asked
    """How many times `advance` will be called."""
    return 3 * 2 + 3


class World:
    """Packets of some minutes, and small hosts; rows, keys and constants are drawn from a seed."""

    def __init__(self, folder: Path, rows: int, seed: int) -> None:
        self.chance, self.folder = np.random.default_rng(seed), folder
        self.per_slide = max(10, rows // WINDOW)
        self.hosts = int(self.chance.integers(50, 500))
        agents = [f"agent/{number} ({self.chance.integers(1 << 30):x})" for number in range(60)]
        self.agents = np.array(agents, dtype=object)
        self.wh = windrow.open(folder / "wh")
        self.wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="1 hour")
        names = pa.array([f"host{number % 37}" for number in range(self.hosts)])
        self.wh.put_table("hosts", pa.table({"src": pa.array(range(self.hosts), pa.int64()), "host": names}))
        (folder / "plain").mkdir()
        kept = [self._slide(number) for number in range(SLIDES)][-WINDOW:]
        window = pa.concat_tables(kept)
        step = -(-window.num_rows // FILES)
        for part in range(FILES):
            pq.write_table(window.slice(part * step, step), folder / "plain" / f"{part}.parquet")

    def _slide(self, number: int) -> pa.Table:
        count, chance, start = self.per_slide, self.chance, ORIGIN + number * MINUTE
        table = pa.table(
            [
                pa.array(start + 1 + np.sort(chance.integers(0, MINUTE, count)), SCHEMA.field("ts").type),
                chance.zipf(1.3, count) % 100_000, chance.integers(0, 1 << 20, count),
                chance.integers(40, 1500, count).astype(np.int32), (chance.zipf(1.6, count) % 65536).astype(np.int32),
                chance.random(count).round(2), pa.array(self.agents[chance.zipf(1.4, count) % 60], pa.string()),
            ],
            schema=SCHEMA,
        )  # fmt: skip
        self.wh.append("packets", table)
        self.wh.slide("packets", to=to_datetime(start + MINUTE))
        return table

    def statements(self) -> dict[str, str]:
        """Spark's SQL; {} stands for the window clause."""
        chance = self.chance
        key, low = int(chance.integers(1, 40)), int(chance.integers(100, 800))
        recent = to_datetime(ORIGIN + SLIDES * MINUTE - int(chance.integers(1, 4)) * MINUTE)
        return {
            "GROUP BY key": "SELECT src, count(*), sum(len) FROM packets{} GROUP BY src ORDER BY 2 DESC, 1 LIMIT 9",
            "filter, average": f"SELECT port % 9, avg(cost), max(dst) FROM packets{{}} WHERE len > {low} GROUP BY 1",
            "GROUP BY text": "SELECT agent, count(*), min(len) FROM packets{} GROUP BY agent",
            "LIKE": f"SELECT count(*), sum(len) FROM packets{{}} WHERE agent LIKE 'agent/{key % 6}%'",
            "one key": f"SELECT count(*), sum(len), max(cost) FROM packets{{}} WHERE src = {key}",
            "last minutes": f"SELECT count(*), sum(dst) FROM packets{{}} WHERE ts > TIMESTAMP '{recent.isoformat()}'",
            "join a table": "SELECT host, sum(len) FROM packets{} p JOIN hosts h ON p.src = h.src GROUP BY host",
            "count distinct": f"SELECT count(DISTINCT src, dst % 64) FROM packets{{}} WHERE port < {low}",
            "top by a column": f"SELECT dst, src, ts FROM packets{{}} WHERE port > {low} ORDER BY 1 DESC, 2 LIMIT 20",
        }


def measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    """One seed: statements on Spark; with the first one, catalogs too."""
    measured = Measured()
    if size.catalog:  # first, as long as the disk has nothing else to write
        measured.tables.append(measure_commits(folder / "commits", size.commits))
        advance("commits")
        measured.tables += simulate(folder, size)
        advance("catalogs")
        measure_store(folder, size, measured)
        advance("object store")
    world = World(folder, size.rows, seed)
    advance(f"{size.rows:,} rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        measure_statements(world, session(), size, measured)
    world.wh.close()
    advance("statements")
    return measured


def measure_statements(world: World, spark: Any, size: Size, measured: Measured) -> None:
    """Each statement by turns over the stream's window and over Parquet files of its rows."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.read.parquet(str(world.folder / "plain")).createOrReplaceTempView("packets")
    hosts = world.wh.sql("SELECT * FROM hosts").arrow()
    spark.createDataFrame(hosts).createOrReplaceTempView("hosts")
    lines = Lines(
        "Window SQL on Spark",
        f"A window of half the rows of a stream, beside plain Parquet files of just these {size.rows:,} rows; seconds "
        "of planning and reading together, by the clock, and their processor time in driver and JVM.",
        ["window", "plain", "ratio", "window, processor", "plain, processor", "ratio, processor"], "ratio",
    )  # fmt: skip
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())

    def ask_window(text: str) -> list[Any]:
        df = windrow.spark.sql(spark, world.wh, text.format(f" [WINDOW {WINDOW} MINUTES]"))
        rows = df.collect()
        windrow.spark.release(df)
        return list(rows)

    asking = {"window": ask_window, "plain": lambda sql: spark.sql(sql.format("")).collect()}
    for label, text in world.statements().items():
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in asking}
        answers = {}
        for _ in range(WARM_UP + size.runs):
            for name, ask in asking.items():
                started, spent = time.perf_counter(), _find_processor_time(java)
                answers[name] = _rounded(ask(text))
                taken[name].append((time.perf_counter() - started, _find_processor_time(java) - spent))
        if answers["window"] != answers["plain"]:
            raise WrongAnswerError(f"{label}: the window's answer is not that of its rows")
        line = lines.lines[label] = {}
        for number, kind in enumerate(("", ", processor")):
            window, plain = (statistics.median(turn[number] for turn in taken[name][WARM_UP:]) for name in asking)
            line |= {f"window{kind}": window, f"plain{kind}": plain, f"ratio{kind}": window / plain}
    ratios = [line["ratio"] for line in lines.lines.values()]
    mean = statistics.geometric_mean(ratios)
    spent = statistics.geometric_mean(line["ratio, processor"] for line in lines.lines.values())
    lines.lines["geometric mean"] = {"ratio": mean, "ratio, processor": spent}
    measured.tables.append(lines)
    measured.aims.append(Aim("windrow.spark.sql / Spark's SQL over plain Parquet, geometric mean", mean, 1.1))
    measured.aims.append(Aim("the same, the worst statement", max(ratios), 1.1))


def _find_processor_time(java: int) -> float:
    """Seconds of processors that this process and a JVM have taken."""
    fields = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rounded(rows: Sequence[Any]) -> list[str]:
    """Rows in an order of their own, sums of floats without their last digits."""
    return sorted(repr([float(f"{v:.9g}") if isinstance(v, float) else v for v in row]) for row in rows)


def measure_store(folder: Path, size: Size, measured: Measured) -> None:
    """What an object store costs beside files on disk."""
    figures = object_store.measure(folder, quick=not size.large_store)
    lines = Lines(
        "Segments in an object store",
        f"{figures.files} files of {figures.file_bytes / 1e6:.0f} MB; a store that takes "
        f"{1e3 * object_store.FIRST_BYTE_SECONDS:.0f} ms to its first byte and gives "
        f"{object_store.BYTES_PER_SECOND / 1e6:.0f} MB/s. Warm: processor time in times of files on disk; cold: "
        "milliseconds.",
        ["warm / disk", "cold"], "cold",
    )  # fmt: skip
    lines.lines = {name: {"warm / disk": ratio} for name, ratio in figures.warm.items()} | {
        "a probe that fetches its files": {"cold": figures.cold_milliseconds},
        "the next key": {"cold": figures.second_milliseconds},
    }
    measured.tables.append(lines)
    warm = "warm cache of an object store / files on disk, processor time, geometric mean"
    measured.aims.append(Aim(warm, figures.warm_ratio, 1.1))
    measured.aims.append(Aim("cold probe, requests a file", figures.requests_per_file, 1.0))


def measure_commits(folder: Path, commits: int) -> Lines:
    """How many appends and slides one stream takes a second, and what they leave in the catalog."""
    lines = Lines(
        "Commits of one stream",
        "Durable, one after the other, by one process.",
        ["a second", "bytes of catalog each"], "a second",
    )  # fmt: skip
    with windrow.open(folder, clock=lambda: ORIGIN + 10 * commits * MINUTE) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="1 hour")
        slot = 0

        def append(rows: int) -> None:
            row = {"src": 7, "dst": 1, "len": 60, "port": 80, "cost": 0.5, "agent": "a"}
            time_of_row = to_datetime(ORIGIN + slot * MINUTE + 1)
            wh.append("packets", pa.Table.from_pylist([row | {"ts": time_of_row}] * rows, SCHEMA))

        def slide(rows: int) -> None:
            nonlocal slot
            append(rows)
            slot += 1
            wh.slide("packets", to=to_datetime(ORIGIN + slot * MINUTE))

        for label, act in {
            "appends of one row": lambda: append(1), "slides that take in one row": lambda: slide(1),
            "slides that take in 1,000 rows": lambda: slide(1000),
        }.items():  # fmt: skip
            act()
            before, started = wh._store.catalog.size(), time.perf_counter()
            for _ in range(commits):
                act()
            seconds = time.perf_counter() - started
            grown = (wh._store.catalog.size() - before) / commits
            lines.lines[label] = {"a second": commits / seconds, "bytes of catalog each": max(0.0, grown)}
    return lines


def simulate(folder: Path, size: Size) -> list[Lines]:
    """Catalogs with ever more segments, streams and batches, and what is done with them all day."""
    columns = ["slide", "first statement", "next statement", "bytes of catalog each", "seconds to record 1,000"]
    kinds: tuple[tuple[str, tuple[int, ...], Callable[..., None], str], ...] = (
        ("segments of one stream", size.segments, record_segments, "segments"),
        ("streams", size.streams, record_streams, "streams"),
        ("batch ids of one stream", size.batches, record_batches, "batches"),
    )
    tables = []
    for title, counts, record, name in kinds:
        about = (
            "Milliseconds of a slide that takes in 1,000 rows, of the first statement of a new handle and of one "
            "of the next commit, over catalogs whose records were put there without their files."
        )
        lines = Lines(title.capitalize(), about, columns, "slide")
        for count in counts:
            lines.lines[f"{count:,}"] = measure_catalog(folder / f"{name}-{count}", count, record)
        tables.append(lines)
    return tables


def measure_catalog(folder: Path, count: int, record: Callable[..., None]) -> dict[str, float]:
    """What slides and statements cost in a warehouse with so many records of one kind beside a small stream."""

    def ask(wh: windrow.Warehouse) -> None:
        rows = wh.sql("SELECT count(*), max(len) FROM packets [WINDOW 3 MINUTES]").fetchall()
        if rows[0][0] != 3 * 1000:
            raise WrongAnswerError(f"{rows[0][0]} rows are in the window")

    clock = ORIGIN + 1000 * MINUTE
    with windrow.open(folder, clock=lambda: clock) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", index=INDEX)
        slot = _slide_often(wh, 0, 5)
        before, started = wh._store.catalog.size(), time.perf_counter()
        for first in range(0, count, CHUNK):
            record(wh, first, min(CHUNK, count - first))
        recorded = time.perf_counter() - started
        size = wh._store.catalog.size() - before
    with windrow.open(folder, clock=lambda: clock) as wh:
        with _stopwatch() as first_statement:
            ask(wh)
        slides, following = [], []
        for _ in range(7):
            with _stopwatch() as slid:
                slot = _slide_often(wh, slot, 1)
            slides.append(slid[0])
            with _stopwatch() as asked:
                ask(wh)
            following.append(asked[0])
    return {
        "slide": 1e3 * statistics.median(slides[1:]),
        "first statement": 1e3 * first_statement[0],
        "next statement": 1e3 * statistics.median(following[1:]),
        "bytes of catalog each": size / count,
        "seconds to record 1,000": 1e3 * recorded / count,
    }


@contextmanager
def _stopwatch() -> Iterator[list[float]]:
    """The seconds that a block takes, when it is over."""
    taken: list[float] = []
    started = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - started)


def _slide_often(wh: windrow.Warehouse, slot: int, times: int) -> int:
    rows = np.arange(1000)
    for number in range(slot, slot + times):
        table = pa.table(
            [
                pa.array(ORIGIN + number * MINUTE + 1 + rows, SCHEMA.field("ts").type), rows, rows,
                rows.astype(np.int32), rows.astype(np.int32), rows / 7, pa.array(["agent"] * 1000),
            ],
            schema=SCHEMA,
        )  # fmt: skip
        wh.append("packets", table)
        wh.slide("packets", to=to_datetime(ORIGIN + (number + 1) * MINUTE))
    return slot + times


def record_segments(wh: windrow.Warehouse, first: int, count: int) -> None:
    """Record segments of files that are not there, older than the window that is asked for."""
    with wh._store.catalog.write() as tables:
        entry, state = find_stream(tables, "packets")
        stream = catalog_key(entry.id)
        _, model = next(iter(tables.items("segments", stream)))
        directory = tables.raw("directories", catalog_key(model.id))
        begin = tables.allocate("segments", count) + 1
        added = []
        for number in range(begin, begin + count):
            file = f"streams/packets/segments/simulated-{first}-{number}.parquet"
            tables.put(
                "files", file.encode(), FileEntry(stream=entry.id, rows=model.rows, bytes=1, digest="", segments=1)
            )
            tables.put_raw("directories", catalog_key(number), bytes(directory or b""))
            added.append(replace(model, id=number, file=file, start=0, file_rows=model.rows))
        exchange_segments(tables, entry.id, added, ())
        remaining = range((state.segments or 0) + count)
        state = note_change(state, tables.version, added, (), remaining)  # type: ignore[arg-type]  # only counted
        tables.put("states", stream, state)


def record_streams(wh: windrow.Warehouse, first: int, count: int) -> None:
    """Record streams as they are when they have just been made."""

    def find(tables: Tables) -> Any:
        return find_stream(tables, "packets")[0].definition

    definition = wh._store.catalog.read(find)
    layout = choose_first_layout(definition, INDEX)
    with wh._store.catalog.write() as tables:
        for number in range(first, first + count):
            record_stream(tables, replace(definition, name=f"stream{number}"), layout, ORIGIN)


def record_batches(wh: windrow.Warehouse, first: int, count: int) -> None:
    """Record ids of batches that were appended before."""
    with wh._store.catalog.write() as tables:
        entry, _ = find_stream(tables, "packets")
        for number in range(first, first + count):
            name = f"query-00000000-{number:012d}"
            batch = BatchEntry(
                source="default", batch_id=name, digest=1 << 60, rows=1000, accepted=1000, at=ORIGIN, whole=True
            )
            tables.put("batches", encode_batch_key(entry.id, "default", name), batch)


bench = SeededBench("scale", QUICK, FULL, measure, first=lambda size: dataclass_replace(size, catalog=True))
