"""`bench peers`: the workload of `bench core` on every store that a user would take instead, and what its readers see.

Peers are an optional extra; one that is not installed is left out, and the report says so.
"""

import importlib.util
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import machine, plots, report
from bench.measures import PROBE, SCAN, SQL_SCAN, UPDATE
from bench.results import Results, verdicts
from bench.runner import Case, Outcome, contestants, run
from bench.statistics import Aim, summarise
from bench.systems.base import System
from bench.systems.clickhouse_table import ClickHouse, ClickHouseAlter, ClickHouseDelete
from bench.systems.delta_table import Delta
from bench.systems.duckdb_table import DuckTable, PlainDuckTable
from bench.systems.ours import Windrow, WindrowNoRebuild
from bench.systems.parquet_folders import ParquetFolders
from bench.systems.postgres_table import Postgres, binaries
from bench.systems.sqlite_table import SqliteTable
from bench.workload import SlidingRows

OURS: tuple[type[System], ...] = (Windrow, WindrowNoRebuild)
PEERS: tuple[type[System], ...] = (
    DuckTable,
    PlainDuckTable,
    SqliteTable,
    Postgres,
    ClickHouse,
    ClickHouseAlter,
    ClickHouseDelete,
    Delta,
    ParquetFolders,
)
SIZES = {True: (SlidingRows(36_000), 12), False: (SlidingRows(150_000), 36)}
"""Quick and full: the workload, and how many updates are measured."""
_ABOUT = "Window of {:.0f} MB, {} updates of {:.1f} MB."
_READERS = (
    "A second thread asks without a pause for the rows that had expired by the last finished update, with no filter of "
    "its own on the expiry: what a user sees who forgets it."
)
READ_UPDATES = {True: 6, False: 24}


def missing(system: type[System]) -> str:
    """Why a system cannot take part; empty if it can."""
    if system.needs and importlib.util.find_spec(system.needs) is None:
        return f"{system.needs} is not installed"
    if system is Postgres and binaries() is None:
        return "PostgreSQL's server is not installed (Debian: apt-get install postgresql)"
    return ""


def present() -> list[type[System]]:
    """The peers that are installed."""
    return [system for system in PEERS if not missing(system)]


def case(*, quick: bool) -> Case:
    """Everybody on one workload."""
    workload, steps = SIZES[quick]
    measures = (UPDATE, PROBE, SCAN, SQL_SCAN)
    return Case("Peers", contestants([*OURS, *present()], workload), steps=steps, measures=measures)


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return case(quick=quick).turns + 1 + len(present())


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Run everything, save it, and give the report (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    chosen_case = case(quick=quick)
    outcome = results.load(chosen_case)
    if outcome is None:
        outcome = run(chosen_case, scratch, advance)
        results.save(outcome, host)
    counts = {}
    for system in (Windrow, *present()):
        advance(f"readers of {system.name}")
        with TemporaryDirectory(prefix="windrow-bench-", dir=scratch) as folder:
            counts[system.name] = watch(system, SIZES[quick][0], READ_UPDATES[quick], Path(folder))
    aims = _list_aims(outcome)
    counts_as_json = {name: vars(of) for name, of in counts.items()}
    results.write("peers", {"machine": host, "readers": counts_as_json, "wanted": verdicts(aims)})
    return _report(host, outcome, counts, aims), aims


def _list_aims(outcome: Outcome) -> list[Aim]:
    figures = summarise(outcome.samples)
    peers = [c.name for c in outcome.case.contestants if c.system in PEERS]

    def against(ours: str, theirs: str, statistic: str) -> float:
        best = min(getattr(figures[name, theirs], statistic) for name in peers)
        return float(getattr(figures["windrow", ours], statistic) / best)

    return [
        Aim("update mean / best peer's", against("update", "update", "mean"), 1.0),
        Aim("update median / best peer's", against("update", "update", "median"), 1.0),
        Aim("probe / best peer's", against("probe", "probe", "median"), 1.0),
        Aim("scan / best peer's", against("scan", "scan", "median"), 1.0),
        Aim("scan by SQL / best peer's", against("scan by SQL", "scan", "median"), 1.0),
    ]


@dataclass
class ReaderCounts:
    """What a reader counted while updates went on."""

    alone: float = 0.0
    """Median milliseconds of a read while nothing else happens."""
    during: float = 0.0
    longest: float = 0.0
    reads: int = 0
    expired: int = 0
    """The most rows in an answer without a filter that had expired by the last finished update."""
    errors: list[str] = field(default_factory=list)


def watch(kind: type[System], workload: SlidingRows, updates: int, folder: Path) -> ReaderCounts:
    """Ask in one thread, update in another."""
    (folder / "system").mkdir()
    system = kind(folder / "system", workload)
    try:
        for slot in range(1, workload.slots + 1):
            batch = workload.batch(slot)
            system.update(batch, system.prepare(batch))
        reader, counts = _Reader(system, workload.batch_end(workload.slots)), ReaderCounts()
        counts.alone = statistics.median(reader.read() for _ in range(9))
        batches = [workload.batch(workload.slots + 1 + number) for number in range(updates)]
        reader.start()
        for batch in batches:
            system.update(batch, system.prepare(batch))
            reader.now = batch.now
        reader.stop()
        counts.reads, counts.expired, counts.errors = len(reader.times), reader.expired, sorted(set(reader.errors))
        if reader.times:
            counts.during, counts.longest = statistics.median(reader.times), max(reader.times)
        reader.close()
        return counts
    finally:
        system.close()


class _Reader:
    """Counts expired rows in unfiltered answers, over and over, on a connection of its own."""

    def __init__(self, system: System, now: int) -> None:
        self.ask, self.close = system.reader()
        self.now = now
        self._folder = f"{system.folder}/"
        self.times: list[float] = []
        self.errors: list[str] = []
        self.expired = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def read(self) -> float:
        """One read; gives its milliseconds."""
        now, started = self.now, time.perf_counter()
        self.expired = max(self.expired, self.ask(now))
        return 1e3 * (time.perf_counter() - started)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                self.times.append(self.read())
            except Exception as error:  # noqa: BLE001 - whatever a store throws at its reader is a finding
                message = str(error).replace(self._folder, "")
                self.errors.append(f"{type(error).__name__}: {message}".splitlines()[0][:120])
                time.sleep(0.01)


def _report(host: dict[str, Any], outcome: Outcome, counts: dict[str, ReaderCounts], aims: list[Aim]) -> str:
    setups = [[c.name, c.system.about] for c in outcome.case.contestants]
    left = [f"{system.name}: {why}" for system in PEERS if (why := missing(system))]
    workload = outcome.case.contestants[0].workload
    rows = [
        [
            name,
            f"{of.alone:.1f}",
            f"{of.during:.1f}",
            f"{of.longest:.1f}",
            str(of.reads),
            f"{of.expired:,}",
            _shorten(of.errors),
        ]
        for name, of in counts.items()
    ]
    header = ["", "read alone, ms", "during updates", "longest", "reads", "expired rows seen", "errors"]
    parts = [
        machine.summarise(host),
        _ABOUT.format(workload.window_rows * workload.row_bytes / 1e6, outcome.case.steps, workload.batch_bytes / 1e6),
        *([f"Not installed here, so left out: {'; '.join(left)}."] if left else []),
        "### What was wanted",
        report.aims_table(aims),
        "### How each is set up",
        report.text_table(["system", "set up as"], setups),
        "### Update, probe, scan, space",
        report.times_table(outcome),
        _plot(outcome),
        "### What a reader sees while updates go on",
        _READERS,
        report.table(header, rows),
    ]
    return "\n\n".join(parts)


def _shorten(errors: list[str]) -> str:
    """Name the first ones and count the others."""
    if not errors:
        return "none"
    more = f" and {len(errors) - 1} like it" if len(errors) > 1 else ""
    return errors[0].replace("|", "/") + more


def _plot(outcome: Outcome) -> str:
    figures = summarise(outcome.samples)
    names = [c.name for c in outcome.case.contestants]
    series = {measure: [figures[name, measure].median for name in names] for measure in ("update", "probe", "scan")}
    return plots.bars("peers", "Median milliseconds beside other stores", series, names, y="ms", log_y=True)
