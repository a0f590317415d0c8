"""The process that `growth` starts: it fills a window, then reports what further updates cost and its peak memory."""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import windrow
from bench.measures import timed
from bench.memory_child import Peak, run_child
from bench.systems.floors import SortedParquet
from bench.systems.ours import STREAM, Windrow
from bench.workload import SlidingRows


@dataclass(frozen=True)
class Point:
    """One setting.

    Args:
        window_rows: Live rows.
        batch_rows: Rows of one update.
        keys: Distinct search keys.
        row_bytes: Size of a row.
        steps: Updates that are measured.
        readers: Processes that scan and probe meanwhile.
    """

    window_rows: int
    batch_rows: int
    keys: int = 100
    row_bytes: int = 1000
    steps: int = 36
    readers: int = 0

    @property
    def workload(self) -> SlidingRows:
        """With as many slots as batches of this size need to fill the window."""
        slots = max(4, round(2 * self.window_rows / self.batch_rows))
        return SlidingRows(self.batch_rows * slots // 2, slots, self.keys, row_bytes=self.row_bytes)


def measure(point: Point, folder: Path) -> dict[str, float]:
    """Mean milliseconds of append, slide, both and the floor, medians of probe and scan, the most memory in MB.

    The floor is the batch sorted, written and synced beside the same readers: what they take from it is the machine's
    doing, and only what they take from an update beyond that can be waiting for them.
    """
    workload, places = point.workload, (folder / "ours", folder / "floor")
    for place in places:
        place.mkdir()
    system, floor = Windrow(places[0], workload), SortedParquet(places[1], workload)
    for slot in range(1, workload.slots + 1):
        batch = workload.batch(slot)
        system.update(batch, batch.rows)
    times: dict[str, list[float]] = {"append": [], "slide": [], "probe": [], "scan": [], "floor": []}
    peaks = []
    with reading(places[0] / "warehouse", point.readers):
        for slot in range(workload.slots + 1, workload.slots + 1 + point.steps):
            batch = workload.batch(slot)
            given_rows = floor.prepare(batch)
            work = (
                ("append", lambda given=batch: system.append(given.rows)),
                ("slide", lambda given=batch: system.slide(given)),
                ("probe", lambda given=batch: system.probe(given.key)),
                ("scan", system.scan),
                ("floor", lambda given=batch, rows=given_rows: floor.update(given, rows)),
            )
            for name, operation in work:
                times[name].append(1e3 * timed(operation)[0].wall)
        peak = Peak()
        for slot in range(workload.slots + 1 + point.steps, workload.slots + 4 + point.steps):
            batch = workload.batch(slot)
            peaks.append(peak.during(lambda given=batch: system.update(given, given.rows)))  # type: ignore[misc]
    system.close()
    floor.close()
    both = [a + s for a, s in zip(times["append"], times["slide"], strict=True)]
    means = {name: statistics.mean(times[name]) for name in ("append", "slide", "floor")}
    means |= {name: statistics.median(times[name]) for name in ("probe", "scan")}
    return {**means, "update": statistics.mean(both), "peak": max(peaks) / 1e6}


@contextmanager
def reading(path: Path, count: int) -> Iterator[None]:
    """Processes that ask without a pause until the block ends."""
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    readers = [context.Process(target=_read, args=(path, done), daemon=True) for _ in range(count)]
    for reader in readers:
        reader.start()
    if readers:
        time.sleep(2)
    try:
        yield
    finally:
        done.set()
        for reader in readers:
            reader.join()
            if reader.exitcode:
                raise RuntimeError(f"a reader ended with exit code {reader.exitcode}")


def _read(path: Path, done: Any) -> None:
    with windrow.open(path, read_only=True) as warehouse:
        key = 0
        while not done.is_set():
            key = (key + 1) % 100
            warehouse.probe(STREAM, key)
            for _ in warehouse.scan(STREAM, columns=["payload"]):
                pass


if __name__ == "__main__":
    run_child(Point, measure)
