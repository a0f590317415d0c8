"""The process that `memory` starts: it appends and slides, and reports its peak memory.

Only anonymous memory counts, because the kernel can take back pages of mapped segment files at any time.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from bench.systems.ours import Windrow
from bench.workload import Batch, SlidingRows

_PIECE_ROWS = 2000

S = TypeVar("S")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Args:
        window_rows: Rows of 1000 bytes in the window.
        slots: Updates per window.
        batch_rows: Rows of the measured updates; the same as in the window's own if 0.
        updates: How many of them.
    """

    window_rows: int
    slots: int
    batch_rows: int = 0
    updates: int = 4


def streamed(workload: SlidingRows, slot: int, rows: int) -> Batch:
    """A batch that is made while it is read, so that the input itself takes no memory."""

    def pieces() -> Iterator[pa.RecordBatch]:
        for number in range(-(-rows // _PIECE_ROWS)):
            count = min(_PIECE_ROWS, rows - number * _PIECE_ROWS)
            part = replace(workload, window_rows=count * workload.slots // 2, seed=workload.seed + 1 + number)
            yield from part.batch(slot).rows.to_batches()

    now = workload.batch_end(slot)
    return Batch(slot, now, pa.RecordBatchReader.from_batches(workload.schema, pieces()), 0)


class Peak:
    """Watches the process's anonymous memory while something runs."""

    def __init__(self) -> None:
        self.bytes = 0

    def during(self, work: Callable[[], Any]) -> int:
        """Run `work`; gives by how much memory rose above where it stood before."""
        before = self.bytes = anonymous()
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,))
        watcher.start()
        try:
            work()
        finally:
            done.set()
            watcher.join()
        return self.bytes - before

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.001):
            self.bytes = max(self.bytes, anonymous())


def anonymous() -> int:
    """Bytes of anonymous memory that this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


def measure(settings: Settings, folder: Path) -> dict[str, int]:
    """Peak growth of memory in bytes, of append and of slide."""
    workload = SlidingRows(settings.window_rows, settings.slots)
    system = Windrow(folder, workload)
    for slot in range(1, settings.slots + 1):
        batch = workload.batch(slot)
        system.update(batch, batch.rows)
    peak, appends, slides = Peak(), [], []
    rows = settings.batch_rows or workload.batch_rows
    for slot in range(settings.slots + 1, settings.slots + 1 + settings.updates):
        batch = streamed(workload, slot, rows)
        appends.append(peak.during(lambda given=batch: system.append(given.rows)))  # type: ignore[misc]
        slides.append(peak.during(lambda given=batch: system.slide(given)))  # type: ignore[misc]
    system.close()
    return {"append": max(appends), "slide": max(slides), "batch": rows * workload.row_bytes}


def run_child(kind: type[S], measure: Callable[[S, Path], Any]) -> None:
    """Read settings of a kind as JSON from the command line, measure, and print the figures as JSON."""
    settings, scratch = kind(**json.loads(sys.argv[1])), sys.argv[2] or None
    with tempfile.TemporaryDirectory(prefix="windrow-bench-", dir=scratch, ignore_cleanup_errors=True) as folder:
        sys.stdout.write(json.dumps(measure(settings, Path(folder))))


if __name__ == "__main__":
    run_child(Settings, measure)
