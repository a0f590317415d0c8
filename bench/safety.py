"""`bench safety`: what checksums and backups cost: a cold scan with and without them, backups, slides beside one.

Rows of 1000 bytes that do not compress, as in `bench core`. For a cold scan the files are dropped from the machine's
memory and the warehouse is opened anew; without checksums means that nothing is compared, as in files that were written
before there were any.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

import windrow
from bench.measures import Timing, timed
from bench.seeded import Lines, Measured, SeededBench
from bench.statistics import Aim
from bench.workload import SlidingRows

_NAME = "rows"
_COLUMNS = ("key", "ts", "payload")
_COLUMNS_SHOWN = ("ms", "CPU ms")


@dataclass(frozen=True)
class Size:
    """How much is done.

    Args:
        rows: Live rows, of 1000 bytes.
        slots: In how many slides they came, all of which live.
        scans: Cold scans of each kind.
        slides: Slides before and after the backup that they are compared with.
        slide_rows: Rows of each of those slides.
    """

    rows: int
    slots: int
    scans: int
    slides: int
    slide_rows: int


QUICK = Size(150_000, 18, 5, 20, 2_000)
FULL = Size(1_500_000, 18, 5, 40, 2_000)


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    del quick
    return 3 * 4


def measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    """All parts with one seed."""
    measured = Measured()
    advance("rows")
    made = SlidingRows(size.rows // 2, size.slots, seed=seed)
    root = folder / "warehouse"
    with windrow.open(root) as wh:
        wh.create_stream(
            _NAME, made.schema, time="ts", key="key", slide=f"{made.delta} us", lifetime=f"{1000 * made.delta} us"
        )
        for slot in range(1, size.slots + 1):
            _take_in(wh, made, slot)
    advance("cold scans")
    _measure_scans(size, root, measured)
    advance("backups")
    _measure_backups(root, folder, measured)
    advance("slides beside a backup")
    _measure_slides(size, SlidingRows(size.slide_rows * size.slots // 2, size.slots, seed=seed), root, folder, measured)
    return measured


def _take_in(wh: windrow.Warehouse, made: SlidingRows, slot: int) -> Timing:
    batch = made.batch(slot)
    wh.append(_NAME, batch.rows)
    timing, _ = timed(lambda: wh.slide(_NAME, to=windrow.times.to_datetime(batch.now)))
    return timing


# -- checksums ---------------------------------------------------------------------------------------------------------


def _scan(wh: windrow.Warehouse) -> Any:
    return max(pc.max(batch.column("payload")).as_py() for batch in wh.scan(_NAME, columns=_COLUMNS))


def _ask(wh: windrow.Warehouse) -> Any:
    return wh.sql(f"SELECT max(payload), max(ts), sum(key) FROM {_NAME}").fetchall()


def _drop_from_memory(root: Path) -> None:
    os.sync()
    for file in root.rglob("*.parquet"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _measure_scans(size: Size, root: Path, measured: Measured) -> None:
    """With and without in turn, so that both meet the same machine."""
    table = Lines("Cold scans of all columns but one", "Medians.", _COLUMNS_SHOWN, "ms")
    for way, read in (("scan", _scan), ("SQL", _ask)):
        timings: dict[bool, list[Timing]] = {True: [], False: []}
        for turn in range(2 * size.scans):
            checked = turn % 2 == 0
            _drop_from_memory(root)
            with windrow.open(root, cache_bytes=0) as wh:
                if not checked:
                    reader = wh._store.reader
                    reader.trust(str(file.relative_to(root)) for file in root.rglob("*.parquet"))
                    reader._find_checksums = lambda _: b""
                timings[checked].append(timed(lambda wh=wh, read=read: read(wh))[0])
        for checked, label in ((True, "with checksums"), (False, "without")):
            table.lines[f"{way}, {label}"] = _medians(timings[checked])
        added = table.lines[f"{way}, with checksums"]["CPU ms"] - table.lines[f"{way}, without"]["CPU ms"]
        cold = table.lines[f"{way}, without"]["ms"]
        measured.aims.append(
            Aim(f"cold {way}: processor time of checksums / the scan by the clock", added / cold, 0.05)
        )
        ratio = table.lines[f"{way}, with checksums"]["ms"] / cold
        measured.aims.append(Aim(f"cold {way}: with checksums / without, by the clock", ratio, 1.05))
    measured.tables.append(table)


def _medians(timings: list[Timing]) -> dict[str, float]:
    return {
        "ms": 1e3 * float(np.median([timing.wall for timing in timings])),
        "CPU ms": 1e3 * float(np.median([timing.cpu for timing in timings])),
    }


# -- backups -----------------------------------------------------------------------------------------------------------


def _measure_backups(root: Path, folder: Path, measured: Measured) -> None:
    table = Lines("Backups of a warehouse that nobody changes", "One full, three on its base.", _COLUMNS_SHOWN, "ms")
    with windrow.open(root) as wh:
        first, report = timed(lambda: wh.backup(folder / "full"))
        later = [timed(lambda n=n: wh.backup(folder / f"later-{n}", base=folder / "full"))[0] for n in range(3)]
    table.lines[f"full, {report.bytes / 1e6:,.0f} MB"] = _medians([first])
    table.lines["incremental"] = _medians(later)
    measured.tables.append(table)
    measured.aims.append(Aim("incremental backup, nothing changed, s", table.lines["incremental"]["ms"] / 1e3, 1.0))


def _measure_slides(size: Size, made: SlidingRows, root: Path, folder: Path, measured: Measured) -> None:
    """Slides without a pause, before, while and after another process makes a full backup."""
    program = "import sys, windrow; windrow.open(sys.argv[1]).backup(sys.argv[2])"
    timings: dict[str, list[Timing]] = {"alone": [], "beside a full backup": []}
    slot = size.slots
    with windrow.open(root) as wh:
        for phase in ("before", "while", "after"):
            if phase == "while":
                backup = subprocess.Popen([sys.executable, "-c", program, str(root), str(folder / "beside")])
                while backup.poll() is None:
                    slot += 1
                    timings["beside a full backup"].append(_take_in(wh, made, slot))
                if backup.returncode:
                    raise RuntimeError("the backup failed")
                continue
            for _ in range(size.slides):
                slot += 1
                timings["alone"].append(_take_in(wh, made, slot))
    table = Lines(
        "Slides", f"Of {made.batch_rows:,} rows, without a pause; medians.", (*_COLUMNS_SHOWN, "slides"), "ms"
    )
    table.lines = {name: {**_medians(of), "slides": len(of)} for name, of in timings.items()}
    measured.tables.append(table)
    ratio = table.lines["beside a full backup"]["ms"] / table.lines["alone"]["ms"]
    measured.aims.append(Aim("slides beside a full backup / alone", ratio, 1.1))


bench = SeededBench("safety", QUICK, FULL, measure)
