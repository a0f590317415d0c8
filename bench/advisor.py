"""`bench advisor`: every layout measured on a dozen workloads, and how near the advisor's choice is to the best.

The advisor knows only what the catalog has recorded of a stream in its default layout. It chooses among the layouts
that are measured, and its choice is judged by its measured cost.
"""

import datetime as dt
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench import machine, report
from bench.results import Results, verdicts
from bench.statistics import Aim
from bench.workload import ORIGIN, payload
from windrow import Index, times
from windrow.indexes.cost_model import CostConstants, simulate_slides

STREAM = "rows"
NEAR_BEST = 1.2
"""A choice that costs at most so many times the best counts as equally good."""
_CHUNK_PROBES = 10
"""Probes that are timed after a slide."""


@dataclass(frozen=True)
class AdvisorWorkload:
    """A workload: the rows of a slide, their lifetimes, and the probes and scans between two slides.

    Args:
        name: In the table.
        rows: Rows of a slide.
        row_bytes: Size of a row.
        slots: The longest lifetime in slots.
        keys: Distinct search keys.
        lives: ``equal``, ``uniform`` or ``skewed`` (nine of ten rows live for an eighth of the longest).
        late: Share of rows that come some slots late.
        bursts: Every fourth slide is this many times as large as the others.
        probes: Between two slides.
        scans: Between two slides.
    """

    name: str
    rows: int
    row_bytes: int = 200
    slots: int = 10
    keys: int = 1000
    lives: str = "uniform"
    late: float = 0.0
    bursts: float = 1.0
    probes: float = 10
    scans: float = 1
    delta: int = 60_000_000

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        time_type = pa.timestamp("us")
        fields = [("key", pa.int64()), ("ts", time_type), ("exp", time_type), ("payload", pa.string())]
        return pa.schema([field for field in fields if field[0] != "exp" or self.lives != "equal"])

    @property
    def declared(self) -> int:
        """The longest lifetime that the stream declares, in slots: rows with their own expiry stay well below it."""
        return self.slots if self.lives == "equal" else 2 * self.slots

    def batch(self, slot: int) -> pa.Table:
        """Make the rows of a slot."""
        chance = np.random.default_rng([7, slot])
        count = self.rows
        if self.bursts != 1.0:
            count = round(count * 4 / (3 + self.bursts) * (self.bursts if slot % 4 == 0 else 1))
        start = ORIGIN + (slot - 1) * self.delta
        ts = np.sort(start + chance.integers(1, self.delta, count, endpoint=True))
        if self.late:
            late = chance.random(count) < self.late
            ts = np.where(late, ts - chance.integers(1, self.slots * 3 // 4 + 1, count) * self.delta, ts)
        longest = self.slots * self.delta
        lives = chance.integers(1, longest, count, endpoint=True)
        if self.lives == "skewed":
            lives = np.where(chance.random(count) < 0.9, np.maximum(1, lives // 8), lives)
        columns = {
            "key": pa.array(chance.integers(0, self.keys, count)),
            "ts": pa.array(ts).view(pa.timestamp("us")),
            "exp": pa.array(np.maximum(ts + lives, start + self.delta + 1)).view(pa.timestamp("us")),
            "payload": payload(chance, count, max(1, self.row_bytes - 24)),
        }
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def create(self, wh: windrow.Warehouse, index: Index | str) -> None:
        """Create the stream of the workload."""
        micro = dt.timedelta(microseconds=1)
        life: dict[str, Any] = {"lifetime": self.slots * self.delta * micro}
        if self.lives != "equal":
            life = {"expires": "exp", "max_lifetime": self.declared * self.delta * micro}
        wh.create_stream(STREAM, self.schema, time="ts", key="key", slide=self.delta * micro, index=index, **life)


WORKLOADS = (
    AdvisorWorkload("small window, a few of each", 1_000),
    AdvisorWorkload("small window, many probes", 1_000, probes=200, scans=0),
    AdvisorWorkload("small window, many scans", 1_000, probes=0, scans=20),
    AdvisorWorkload("small window, updates only", 1_000, probes=0, scans=0),
    AdvisorWorkload("large window, a few of each", 10_000, probes=10, scans=1),
    AdvisorWorkload("large window, few keys, many probes", 10_000, keys=20, probes=100, scans=0),
    AdvisorWorkload("large window, many keys, many probes", 10_000, keys=1_000_000, probes=300, scans=0),
    AdvisorWorkload("large window, many scans", 10_000, probes=0, scans=10),
    AdvisorWorkload("equal lifetimes, in order", 5_000, lives="equal"),
    AdvisorWorkload("equal lifetimes, late rows", 5_000, lives="equal", late=0.2, probes=30, scans=2),
    AdvisorWorkload("skewed lifetimes, scans", 5_000, lives="skewed", probes=5, scans=5),
    AdvisorWorkload("bursts", 4_000, bursts=8, probes=50, scans=1),
    AdvisorWorkload("long lifetimes, small batches", 500, slots=30, probes=100, scans=2),
)
LAYOUTS = tuple(
    Index(*layout, maintenance=maintenance)
    for layout in (
        ("round-robin", 2, 2), ("round-robin", 4, 4), ("chronological", 2, 2), ("chronological", 4, 4),
        ("random", 4, 4), ("wave-insertion", 4), ("wave-expiry", 4),
    )
    for maintenance in ("rebuild", "norebuild", "adaptive")
)  # fmt: skip
"""Every partitioner with every kind of maintenance."""


def work(*, quick: bool) -> int:  # noqa: ARG001
    """How many times `advance` will be called."""
    return len(WORKLOADS) * 2


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None]
) -> tuple[str, list[Aim]]:
    """Measure, save, and give the report (Markdown) and what was wanted."""
    host = machine.describe(scratch or Path.cwd())
    steps = 8 if quick else 48
    measured: dict[str, Any] = results.read("advisor-measured") or {}
    for workload in WORKLOADS:
        advance(workload.name)
        if workload.name not in measured:
            measured[workload.name] = run(workload, steps, scratch)
        figures_by_layout = measured[workload.name]
        advance(f"{workload.name}: advice")
        figures_by_layout["advice"] = find_advised_layout(workload, scratch)
        results.write("advisor-measured", measured)
    rows, ratios = [], []
    for workload in WORKLOADS:
        figures_by_layout = measured[workload.name]
        totals = {name: total(workload, figures) for name, figures in figures_by_layout.items() if name != "advice"}
        best, chosen = min(totals, key=lambda name: totals[name]), figures_by_layout["advice"]
        ratio = totals[chosen] / totals[best]
        ratios.append(ratio)
        auto = totals["round-robin 4x4 adaptive"] / totals[best]
        rows.append(
            [workload.name, best, f"{totals[best]:.1f}", chosen, f"{totals[chosen]:.1f}", f"{ratio:.2f}", f"{auto:.2f}"]
        )
    near = sum(ratio <= NEAR_BEST for ratio in ratios)
    aims = [
        Aim("workloads on which the choice is further than 20 % from the best", len(ratios) - near, len(ratios) // 10)
    ]
    results.write("advisor", {"machine": host, "measured": measured, "wanted": verdicts(aims)})
    header = [
        "workload",
        f"best of {len(LAYOUTS)}",
        "ms a slide",
        "advised",
        "ms a slide",
        "advised / best",
        "round-robin 4x4 / best",
    ]
    about = (
        f"The advisor's choice is within 20 % of the best on {near} of {len(ratios)} workloads. A slide costs its "
        "update and the probes and scans before the next one; processor time, without waiting for the disk."
    )
    parts = [machine.summarise(host), about, report.aims_table(aims), report.table(header, rows)]
    return "\n\n".join(parts), aims


def total(workload: AdvisorWorkload, figures: dict[str, float]) -> float:
    """Milliseconds of one slide and the questions before the next."""
    return figures["update"] + workload.probes * figures["probe"] + workload.scans * figures["scan"]


def run(workload: AdvisorWorkload, steps: int, scratch: Path | None) -> dict[str, dict[str, float]]:
    """Milliseconds of an update, a probe and a scan in each layout, after it has settled.

    All layouts take turns at every step, so that what disturbs the machine disturbs them alike.
    """
    folder = Path(tempfile.mkdtemp(prefix="windrow-advisor-", dir=scratch))
    times_by_layout = {str(layout): _LayoutTimes() for layout in LAYOUTS}
    try:
        with ExitStack() as opened:
            warehouses = {}
            for number, layout in enumerate(LAYOUTS):
                warehouses[str(layout)] = wh = opened.enter_context(windrow.open(folder / str(number)))
                workload.create(wh, layout)
            warm_up = workload.slots + 4
            for slot in range(1, warm_up + steps + 1):
                rows = workload.batch(slot)
                for name, wh in warehouses.items():
                    spent = slide(wh, workload, slot, rows)
                    if slot > warm_up:
                        times_by_layout[name].take(wh, workload, slot, spent)
            return {name: times_by_layout[name].figures(wh.stream(STREAM).segments) for name, wh in warehouses.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _LayoutTimes:
    """Milliseconds of one layout."""

    update: list[float] = field(default_factory=list)
    probe: list[float] = field(default_factory=list)
    scan: list[float] = field(default_factory=list)

    def take(self, wh: windrow.Warehouse, workload: AdvisorWorkload, slot: int, spent: float) -> None:
        """Time probes and scans after a slide."""
        self.update.append(spent)
        for number in range(_CHUNK_PROBES):
            key = (slot * 31 + number * 7) % workload.keys
            self.probe.append(timed(lambda key=key: wh.probe(STREAM, key)))
        self.scan += [timed(lambda: [batch.num_rows for batch in wh.scan(STREAM)]) for _ in range(2)]

    def figures(self, segments: int) -> dict[str, float]:
        """Of updates the mean without the largest fifth, since merges count; of questions the lower quartile."""
        return {
            "update": trimmed_mean(self.update),
            "probe": float(np.percentile(self.probe, 25)),
            "scan": float(np.percentile(self.scan, 25)),
            "segments": segments,
        }


def trimmed_mean(values: list[float]) -> float:
    """The mean without the largest fifth."""
    return float(np.mean(sorted(values)[: max(1, len(values) - len(values) // 5)]))


def slide(wh: windrow.Warehouse, workload: AdvisorWorkload, slot: int, rows: pa.Table) -> float:
    """Append and slide; return the milliseconds."""
    to = times.to_datetime(ORIGIN + slot * workload.delta)

    def update() -> None:
        wh.append(STREAM, rows)
        wh.slide(STREAM, to=to)

    return timed(update)


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of processor time, of all threads: what others do on the machine then hardly matters."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


def find_advised_layout(workload: AdvisorWorkload, scratch: Path | None) -> str:
    """What the advisor says of a stream in its default layout, with the workload's questions."""
    folder = Path(tempfile.mkdtemp(prefix="windrow-advisor-", dir=scratch))
    try:
        with windrow.open(folder / "wh") as wh:
            workload.create(wh, "auto")
            for slot in range(1, workload.slots + 9):
                slide(wh, workload, slot, workload.batch(slot))
                ask(wh, workload, slot)
            wh.slide(STREAM, to=times.to_datetime(ORIGIN + (workload.slots + 9) * workload.delta))
            allowed = set(LAYOUTS)
            estimates = wh.advise(STREAM, among=LAYOUTS).alternatives
            return str(next(estimate.index for estimate in estimates if estimate.index in allowed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask(wh: windrow.Warehouse, workload: AdvisorWorkload, slot: int) -> None:
    """Run one probe and one scan of those between two slides, and only count the others."""
    if workload.probes:
        row_count = wh.probe(STREAM, slot % workload.keys).num_rows
        for _ in range(round(workload.probes) - 1):
            wh._store.count_probe(1, row_count, ["key"])
    for _ in range(round(workload.scans)):
        wh._store.count_scan(1)


# -- calibrating -----------------------------------------------------------------------------------------------------


def fit(measured: dict[str, Any]) -> CostConstants:
    """The constants of the cost model that come nearest to what was measured; run this module to print them."""
    rows: dict[str, list[tuple[list[float], float]]] = {"update": [], "probe": [], "scan": []}
    for workload in WORKLOADS:
        for layout in LAYOUTS:
            figures = measured[workload.name][str(layout)]
            shape = to_cost_workload(workload)
            played, _ = simulate_slides(shape, workload.declared, layout)
            mean = {name: float(np.mean(values)) for name, values in vars(played).items()}
            merged = mean["merged_bytes"] / 1e6
            features_of = {
                "update": [
                    1.0,
                    shape.batch_bytes / 1e6,
                    mean["arrived"],
                    mean["segments"],
                    mean["merges"],
                    merged,
                    mean["merged_segments"],
                ],
                "probe": [1.0, mean["segments"], shape.probe_rows],
                "scan": [1.0, mean["segments"], mean["live"] / 1e6, mean["mixed"] / 1e6, mean["edge"] / 1e6],
            }
            for kind, features in features_of.items():
                rows[kind].append((features, figures[kind]))
    update, probe, scan = (_solve(rows[kind]) for kind in ("update", "probe", "scan"))
    return CostConstants(
        append=update[0] * 0.7, slide=update[0] * 0.3, append_mb=update[1], append_segment=update[2],
        slide_segment=update[3], merge=update[4], merge_mb=update[5], merge_segment=update[6],
        probe=probe[0], probe_segment=probe[1], probe_row=probe[2],
        scan=scan[0], scan_segment=scan[1], scan_mb=scan[2], scan_mixed_mb=scan[3], scan_dead_mb=scan[4],
    )  # fmt: skip


def to_cost_workload(workload: AdvisorWorkload) -> Any:
    """A workload as the advisor would measure it, from its own rows."""
    from windrow.indexes.cost_model import Workload

    lives: dict[int, float] = {}
    slot = 100
    rows = workload.batch(slot)
    ts = rows.column("ts").cast(pa.int64()).to_numpy()
    exp = (
        ts + workload.slots * workload.delta
        if workload.lives == "equal"
        else rows.column("exp").cast(pa.int64()).to_numpy()
    )
    remaining, counts = np.unique(-(-(exp - ORIGIN) // workload.delta) - slot, return_counts=True)
    for life, count in zip(remaining.tolist(), counts.tolist(), strict=True):
        lives[max(1, life)] = lives.get(max(1, life), 0.0) + count / len(ts)
    mean = sum(life * share for life, share in lives.items())
    return Workload(
        rows=workload.rows, row_bytes=workload.row_bytes + 8, lives=lives, probes=workload.probes, scans=workload.scans,
        spread=0.9 if workload.bursts != 1 else 0.0, probe_rows=workload.rows * mean / workload.keys,
    )  # fmt: skip


def _solve(rows: list[tuple[list[float], float]]) -> list[float]:
    """Least squares of relative errors, without negative constants."""
    features, target = np.array([row for row, _ in rows]), np.array([value for _, value in rows])
    weighted, ones = features / target[:, None], np.ones(len(target))
    active = list(range(features.shape[1]))
    while True:
        constants, *_ = np.linalg.lstsq(weighted[:, active], ones, rcond=None)
        if (constants >= 0).all():
            solution = np.zeros(features.shape[1])
            solution[active] = constants
            return [float(value) for value in solution]
        active.pop(int(np.argmin(constants)))


if __name__ == "__main__":
    import sys

    document = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(asdict(fit(document.get("measured", document))), indent=1))
