"""Lines about object stores, for `bench scale`: what a warm cache costs, what a cold probe asks, whole files or ranges.

The store is a folder behind a delay: each request waits as long as S3 takes to its first byte, and its bytes pass at
one connection's rate. So the figures are of our code and of that delay, not of anybody's network.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import windrow
from bench.runner import WrongAnswerError
from bench.workload import SlidingRows
from windrow.object_store import location
from windrow.orphans import data_files
from windrow.times import to_datetime

FIRST_BYTE_SECONDS = 0.02
BYTES_PER_SECOND = 90e6
"""Of one connection; both are of the order that AWS gives for S3 within a region."""
_PAGE_BYTES, _FOOTER_BYTES = 512 << 10, 64 << 10
"""What a probe by ranges would ask of a file: first its footer, then, knowing that, a row group."""


@dataclass(frozen=True)
class ObjectStoreFigures:
    """What was measured."""

    warm: dict[str, float]
    """By operation: the time with a warm cache, in times of files on disk."""
    requests_per_file: float
    """What a cold probe asks of the store, for each file that it reads."""
    files: int
    file_bytes: float
    cold_milliseconds: float
    """A cold probe that fetches whole files, all at once."""
    cold_by_ranges: float
    """The same by ranges, if nothing but the delays took time: two requests of each file, one after the other."""
    second_milliseconds: float
    """A probe of another key afterwards."""

    @property
    def warm_ratio(self) -> float:
        """The geometric mean over the operations."""
        return statistics.geometric_mean(self.warm.values())


def measure(scratch: Path, *, quick: bool, advance: Callable[[str], None] = lambda _: None) -> ObjectStoreFigures:
    """Measure it all with one window of rows.

    Args:
        scratch: A folder for the warehouses.
        quick: A small window, few repetitions.
        advance: Is told what is done.
    """
    rows = SlidingRows(40_000 if quick else 150_000, slots=12)
    repetitions = 15 if quick else 60
    stored, local = scratch / "stored", scratch / "local"
    uri = (scratch / "objects").absolute().as_uri()
    with _make(local, rows) as one, _make(stored, rows, segments=uri) as other:
        advance("warm cache")
        warm = {}
        for name, ask in _OPERATIONS.items():
            if ask(one) != ask(other):
                raise WrongAnswerError(f"{name} gives other rows where the files are in an object store")
            warm[name] = _compare(lambda ask=ask: ask(other), lambda ask=ask: ask(one), repetitions)
    advance("cold probes")
    cold, second, asked, files, size = [], [], 0, 0, 0.0
    with _delayed():
        for key in range(3 if quick else 9):
            sizes = [(stored / file).stat().st_size for file in data_files(stored)]
            for file in data_files(stored):
                (stored / file).unlink()
            gc.collect()
            with windrow.open(stored) as wh:
                cold.append(_seconds(lambda wh=wh, key=key: wh.probe("rows", key=key)))
                remote = wh._store.remote
                assert remote is not None
                fetched = data_files(stored)
                asked += remote.cache.requests
                files += len(fetched)
                size = sum((stored / file).stat().st_size for file in fetched) / max(1, len(fetched))
                second.append(_seconds(lambda wh=wh, key=key: wh.probe("rows", key=key + 50)))
                wh.scan("rows").read_all()
            assert len(data_files(stored)) == len(sizes)
    rounds = -(-(files // len(cold)) // location.MOST_REQUESTS)
    by_ranges = rounds * (2 * FIRST_BYTE_SECONDS + (_FOOTER_BYTES + _PAGE_BYTES) / BYTES_PER_SECOND)
    return ObjectStoreFigures(
        warm=warm,
        requests_per_file=asked / files,
        files=files // len(cold),
        file_bytes=size,
        cold_milliseconds=1e3 * statistics.median(cold),
        cold_by_ranges=1e3 * by_ranges,
        second_milliseconds=1e3 * statistics.median(second),
    )


_OPERATIONS: dict[str, Callable[[windrow.Warehouse], object]] = {
    "probe": lambda wh: wh.probe("rows", key=7).num_rows,
    "scan": lambda wh: wh.scan("rows").read_all().num_rows,
    "sql": lambda wh: wh.sql("SELECT count(*), max(payload) FROM rows WHERE key % 3 = 1").fetchall(),
}


@contextlib.contextmanager
def _make(path: Path, rows: SlidingRows, **options: str) -> Iterator[windrow.Warehouse]:
    """A warehouse that has lived through a window, opened anew."""
    with windrow.open(path, **options) as wh:
        wh.create_stream(
            "rows",
            rows.schema,
            time="ts",
            key="key",
            slide=f"{rows.delta} microseconds",
            expires="exp",
            max_lifetime=f"{rows.max_lifetime} microseconds",
        )
        for slot in range(1, rows.slots + 1):
            batch = rows.batch(slot)
            wh.append("rows", batch.rows)
            wh.slide("rows", to=to_datetime(batch.now))
    with windrow.open(path) as wh:
        yield wh


def _compare(one: Callable[[], object], other: Callable[[], object], repetitions: int) -> float:
    """The processor time of the first in times of the second: medians, in turns; nothing is waited for here."""
    for work in (one, other):
        work()
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repetitions):
        for place in (0, 1) if turn % 2 else (1, 0):
            times[place].append(_seconds((one, other)[place], time.process_time))
    return statistics.median(times[0]) / statistics.median(times[1])


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    work()
    return clock() - began


@contextlib.contextmanager
def _delayed() -> Iterator[None]:
    """Let each object that is fetched take as long as from S3."""
    fetch = location._FolderStore._fetch

    def fetch_slowly(self: location.ObjectStore, name: str, sink: location.Sink) -> None:
        time.sleep(FIRST_BYTE_SECONDS + (self.size(name) or 0) / BYTES_PER_SECOND)
        fetch(self, name, sink)  # type: ignore[arg-type]

    with mock.patch.object(location._FolderStore, "_fetch", fetch_slowly):
        yield
