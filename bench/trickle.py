"""`bench trickle`: rows that come one by one, from one writer and from eight, and slides of one second.

Percentiles and processor time, because a mean hides what a user waits for. Beside SQLite and DuckDB, both of them
durable at each commit, and a folder that takes a Parquet file for each append.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.generators import Definition, Packets, Quotes, Shape
from bench.measures import Timing
from bench.runner import WrongAnswerError
from bench.seeded import PERCENTILES, Lines, Measured, SeededBench, percentiles
from bench.statistics import Aim
from bench.stores import DuckFile, Ours, RowStore, SqliteFile

WRITERS = 8


@dataclass(frozen=True)
class Size:
    """How much is done.

    Args:
        appends: Appends of one row by one writer.
        shared: Rows of each of eight writers.
        gathered: After how many appends of one row a slide is measured.
        slots: Lifetime of the stream with slides of one second.
        slides: How many of them are measured, after a whole lifetime of them.
    """

    appends: int
    shared: int
    gathered: tuple[int, ...]
    slots: int
    slides: int
    rows: int = 200


QUICK = Size(200, 25, (250, 500, 1000), 30, 150)
FULL = Size(5000, 1000, (2000, 8000, 20_000, 60_000), 3600, 10_800)


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return 3 * (4 + len((QUICK if quick else FULL).gathered))


def measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    """All parts with one seed."""
    measured = Measured()
    _measure_appends(size, seed, folder / "appends", measured, advance)
    _measure_gathering(size, seed, folder / "gathered", measured, advance)
    for shape in (Packets, Quotes):
        advance(f"slides of a second: {shape.name}")
        _measure_slides(size, shape(seed, size.slots), folder / shape.name, measured)
    return measured


def _clocked(operation: Callable[[], Any]) -> Timing:
    """Without a collection of garbage before it, which would take longer than the append."""
    cpu, wall = time.process_time(), time.perf_counter()
    operation()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def _open(stores: Sequence[type[RowStore]], folder: Path, definition: Definition) -> dict[str, Any]:
    found = {}
    for store in stores:
        (folder / store.name).mkdir(parents=True)
        found[store.name] = store(folder / store.name, [definition])
    return found


def _single(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(number, 1) for number in range(rows.num_rows)]


def _measure_appends(size: Size, seed: int, folder: Path, measured: Measured, advance: Callable[[str], None]) -> None:
    """One writer, the stores in turn; then eight threads."""
    advance("appends of one row")
    shape = Packets(seed, 3600)
    stores = _open((Ours, SqliteFile, DuckFile, FileEach), folder, shape.definition)
    rows = _single(shape.batch(1, size.appends))
    prepared = {name: [store.prepare(row) for row in rows] for name, store in stores.items()}
    timings: dict[str, list[Timing]] = {name: [] for name in stores}
    gc.collect()
    gc.disable()
    names = list(stores)
    for number in range(size.appends):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            row = prepared[name][number]
            timings[name].append(_clocked(lambda s=stores[name], r=row: s.insert("packets", r)))  # type: ignore[misc]
    gc.enable()
    figures = {name: percentiles(of) for name, of in timings.items()}
    table = Lines(
        "Appends of one row", f"{size.appends} durable appends of each, in turn; milliseconds.", PERCENTILES, "p50"
    )
    table.lines = figures
    measured.tables.append(table)
    for percent in ("p50", "p99"):
        measured.aims.append(
            Aim(
                f"append of one row / SQLite's, {percent}",
                figures["windrow"][percent] / figures["sqlite"][percent],
                2.0,
            )
        )
    measured.aims.append(
        Aim("the same, processor time", figures["windrow"]["CPU mean"] / figures["sqlite"]["CPU mean"], 2.0)
    )
    advance("eight writers")
    shared = Lines(
        f"{WRITERS} writers",
        f"{WRITERS} threads, {size.shared} appends of one row each.",
        ("rows/s", "CPU ms a row"),
        "CPU ms a row",
    )
    for name in ("windrow", "sqlite", "duckdb"):
        batches = [
            [stores[name].prepare(row) for row in _single(shape.batch(2 + w, size.shared))] for w in range(WRITERS)
        ]
        wall, cpu = _write_together(stores[name], batches)
        count = WRITERS * size.shared
        shared.lines[name] = {"rows/s": count / wall, "CPU ms a row": 1e3 * cpu / count}
    measured.tables.append(shared)
    ratio = shared.lines["sqlite"]["rows/s"] / shared.lines["windrow"]["rows/s"]
    measured.aims.append(Aim(f"{WRITERS} writers: SQLite's rows a second / ours", ratio, 1.0))
    total = size.appends + WRITERS * size.shared
    for name in ("windrow", "sqlite", "duckdb"):
        stores[name].slide("packets", shape.definition.now(1 + WRITERS + 1))
        if (counted := stores[name].scan("packets")[0]) != total:
            raise WrongAnswerError(f"{name}: {counted} of {total} appended rows are there")
    for store in stores.values():
        store.close()


def _write_together(store: RowStore, batches: list[list[Any]]) -> tuple[float, float]:
    """Seconds and processor seconds of all writers at once."""
    writers = [store.writer("packets") for _ in batches]
    ready = threading.Barrier(len(batches) + 1)
    failed: list[BaseException] = []

    def write(insert: Callable[[Any], None], rows: list[Any]) -> None:
        ready.wait()
        try:
            for row in rows:
                insert(row)
        except Exception as error:  # noqa: BLE001 - told below, in the thread that can tell it
            failed.append(error)

    threads = [threading.Thread(target=write, args=given) for given in zip(writers, batches, strict=True)]
    for thread in threads:
        thread.start()
    cpu = time.process_time()
    ready.wait()
    wall = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - wall, time.process_time() - cpu


def _measure_gathering(size: Size, seed: int, folder: Path, measured: Measured, advance: Callable[[str], None]) -> None:
    """A slide after ever more appends of one row: its cost must follow the rows."""
    shape = Packets(seed, 3600)
    table = Lines("A slide after appends of one row", "Milliseconds; the appends before it are not counted.",
                  ("slide", "CPU", "CPU ms a row", "append and slide, CPU ms a row"), "CPU")  # fmt: skip
    points = []
    for count in size.gathered:
        advance(f"a slide after {count} appends")
        store = _open((Ours,), folder / str(count), shape.definition)["windrow"]
        rows = shape.batch(1, count)
        cpu = time.process_time()
        for row in _single(rows):
            store.insert("packets", row)
        appended = time.process_time() - cpu
        timing = _clocked(partial(store.slide, "packets", shape.definition.now(1)))
        if store.scan("packets") != (count, str(max(rows["len"].to_pylist()))):
            raise WrongAnswerError(f"{store.scan('packets')} after {count} appends and a slide")
        store.close()
        a_row = 1e3 * timing.cpu / count
        table.lines[f"{count:,}"] = {"slide": 1e3 * timing.wall, "CPU": 1e3 * timing.cpu, "CPU ms a row": a_row,
                                     "append and slide, CPU ms a row": a_row + 1e3 * appended / count}  # fmt: skip
        points.append((count, a_row))
    measured.tables.append(table)
    slope = float(np.polyfit(*np.log(np.array(points).T), 1)[0])
    measured.aims += [
        Aim("slide after the most appends of one row, processor ms a row", points[-1][1], 0.2),
        Aim("the same, fitted slope of the cost of a row (0: linear)", slope, 0.15),
    ]


def _measure_slides(size: Size, shape: Shape, folder: Path, measured: Measured) -> None:
    """A batch and a slide each second, stores in turn, after a whole lifetime of them."""
    stores = _open((Ours, DuckFile, SqliteFile), folder, shape.definition)
    timings: dict[str, list[Timing]] = {name: [] for name in stores}
    names = list(stores)
    gc.collect()
    gc.disable()
    for slot in range(1, size.slots + size.slides + 1):
        rows, now = shape.batch(slot, size.rows), shape.definition.now(slot)
        for name in names[slot % len(names) :] + names[: slot % len(names)]:
            prepared = stores[name].prepare(rows)
            timing = _clocked(partial(stores[name].update, shape.name, prepared, now))
            if slot > size.slots:
                timings[name].append(timing)
        if slot % 50 == 0 or slot == size.slots + size.slides:
            gc.collect()
            counts = {name: store.scan(shape.name) for name, store in stores.items()}
            if len(set(counts.values())) != 1:
                raise WrongAnswerError(f"{shape.name}, slot {slot}: {counts}")
    gc.enable()
    for store in stores.values():
        store.close()
    lives = "lifetimes that vary" if shape.expires else "one lifetime"
    figures = {name: percentiles(of) for name, of in timings.items()}
    about = f"{size.slides:,} slides after {size.slots} of warming up, {size.rows} rows each; append and slide, in ms."
    table = Lines(f"Slides of one second, {lives}", about, PERCENTILES, "p99", figures)
    measured.tables.append(table)
    ours, third = figures["windrow"], size.slides // 3
    first, last = (sum(t.cpu for t in part) for part in (timings["windrow"][:third], timings["windrow"][-third:]))
    measured.aims += [
        Aim(f"slides, {lives}: p99 / p50, processor time", ours["CPU p99"] / ours["CPU p50"], 8.0),
        Aim(f"slides, {lives}: greatest, ms of processor time", ours["CPU most"], 100.0),
        Aim(f"slides, {lives}: mean / DuckDB's", ours["mean"] / figures["duckdb"]["mean"], 1.0),
        Aim(f"slides, {lives}: processor time of the last third / of the first", last / first, 1.2),
    ]


class FileEach(RowStore):
    """A Parquet file for each append, as scripts do it."""

    name = "parquet"
    about = "a Parquet file for each append, synced and renamed"

    def __init__(self, folder: Path, definitions: Sequence[Definition]) -> None:
        super().__init__(folder, definitions)
        self._written = 0

    def insert(self, name: str, prepared: Any) -> None:
        """Write, sync, rename."""
        del name
        self._written += 1
        hidden = self.folder / f".{self._written}"
        pq.write_table(prepared, hidden)
        with hidden.open("rb") as file:
            os.fsync(file.fileno())
        hidden.rename(self.folder / f"{self._written}.parquet")

    def close(self) -> None:
        """Nothing is open."""


bench = SeededBench("trickle", QUICK, FULL, measure)
