"""`bench realistic`: seven kinds of rows as users have them: updates, probes, scans, SQL cold and warm, bytes, memory.

Each store works in a process of its own. SQL, bytes and memory are compared with the live rows in a new DuckDB file,
which no delete has made worse; updates, probes and scans with a DuckDB file that lived through the same updates.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from bench.generators import SHAPES, Draw, Shape
from bench.measures import Timing
from bench.runner import WrongAnswerError
from bench.seeded import Lines, Measured, SeededBench, compare, geometric_mean, percentiles
from bench.statistics import Aim
from bench.stores import ClickHouseParts, DuckFile, FreshDuckFile, Ours, ParquetFolder, SqliteFile, WindowStore
from bench.worker import Worker

MORE: tuple[type[WindowStore], ...] = (SqliteFile, ClickHouseParts, ParquetFolder)
"""Stores that take part with the first seed only where a run is to be quick."""


@dataclass(frozen=True)
class Size:
    """How much is done: live rows, slots of a lifetime, updates after it, turns of SQL."""

    rows: int
    slots: int
    updates: int
    turns: int
    shapes: tuple[type[Shape], ...] = SHAPES
    more: bool = True
    """Whether all stores take part; with the first seed they do."""


QUICK = Size(100_000, 8, 5, 2, more=False)
FULL = Size(3_000_000, 60, 40, 7)
UPDATED = ("update mean", "update p50", "update most", "update CPU", "probe", "scan", "bytes a live row")


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return 3 * len((QUICK if quick else FULL).shapes)


def _measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    measured = Measured()
    peers = [store for store in MORE if size.more and not store.missing()]
    left = [f"{store.name}: {store.missing()}" for store in MORE if store.missing()]
    if left:
        measured.notes.append(f"Left out: {'; '.join(left)}.")
    asked = Lines(
        "SQL",
        "Milliseconds over all statements of a turn; ratios are geometric means over the statements.",
        (
            "first",
            "first, DuckDB",
            "warm",
            "warm, DuckDB",
            "first ratio",
            "warm ratio",
            "CPU ratio",
            "MB",
            "MB, DuckDB",
        ),
        "warm ratio",
    )
    single = Lines("SQL, statement by statement", "Milliseconds in the median.",
                   ("first", "first, DuckDB", "warm", "warm, DuckDB", "ratio"), "ratio")  # fmt: skip
    warm: dict[str, float] = {}
    firsts: list[float] = []
    for kind in size.shapes:
        advance(kind.name)
        shape = kind(seed, size.slots)
        table = _live_through(size, shape, folder / kind.name, peers, measured)
        measured.tables.append(table)
        lines = _ask(size, shape, folder / kind.name, asked, measured)
        single.lines |= lines
        firsts += [line["first"] / line["first, DuckDB"] for line in lines.values()]
        warm |= {name: line["ratio"] for name, line in lines.items()}
    worst = max(warm.values())
    measured.aims += [
        Aim("SQL, first time / DuckDB file, geometric mean", geometric_mean(firsts), 1.5),
        Aim("SQL, warm / DuckDB file, geometric mean", geometric_mean(warm.values()), 1.25),
        Aim("SQL, warm, worst statement / DuckDB file", worst, 2.0),
    ]
    measured.aims.sort(key=lambda aim: aim.statement)
    measured.tables = [asked, *measured.tables, single]
    return measured


def _live_through(
    size: Size, shape: Shape, folder: Path, peers: Sequence[type[WindowStore]], measured: Measured
) -> Lines:
    """A lifetime of updates and some more, with a probe and a scan after each; the live rows end in a fresh file."""
    definition, count = shape.definition, max(10, round(size.rows * shape.scale / size.slots))
    if definition.expires:
        count *= 3
    stores = [Worker(store, folder / store.name, [definition]) for store in (Ours, DuckFile, *peers)]
    taken: dict[str, dict[str, list[Timing]]] = {w.name: {"update": [], "probe": [], "scan": []} for w in stores}
    live = definition.schema.empty_table()
    for slot in range(1, size.slots + size.updates + 1):
        rows, now = shape.batch(slot, count), definition.now(slot)
        live = definition.live(pa.concat_tables([live, rows]), slot)
        key = Draw(shape.seed, 4, slot).one(rows[definition.key]).as_py()
        answers = {}
        for worker in stores[slot % len(stores) :] + stores[: slot % len(stores)]:
            timing, _ = worker.call("update", shape.name, rows, now)
            if slot <= size.slots:
                continue
            taken[worker.name]["update"].append(timing)
            timing, probed = worker.call("probe", shape.name, key)
            taken[worker.name]["probe"].append(timing)
            timing, scanned = worker.call("scan", shape.name)
            taken[worker.name]["scan"].append(timing)
            answers[worker.name] = (scanned[0], scanned[1] if shape.scanned != "v001" else "", _digest(probed))
        if len(set(answers.values())) > 1:
            raise WrongAnswerError(f"{shape.name}, slot {slot}: {answers}")
    if answers["windrow"][0] != live.num_rows:
        raise WrongAnswerError(f"{shape.name}: {answers['windrow'][0]} rows live, not {live.num_rows}")
    about = f"{size.updates} updates of {count:,} rows, {live.num_rows:,} live; milliseconds."
    table = Lines(f"Updates: {shape.name}", about, UPDATED, "update mean")
    for worker in stores:
        updates = percentiles(taken[worker.name]["update"])
        table.lines[worker.name] = {
            "update mean": updates["mean"],
            "update p50": updates["p50"],
            "update most": updates["most"],
            "update CPU": updates["CPU mean"],
            **{what: 1e3 * statistics.median(t.wall for t in taken[worker.name][what]) for what in ("probe", "scan")},
            "bytes a live row": worker.call("space")[1] / live.num_rows,
        }
        worker.close()
    fresh = Worker(FreshDuckFile, folder / FreshDuckFile.name, [definition])
    fresh.call("update", shape.name, live.sort_by("ts"), now)
    bytes_a_row = fresh.call("space")[1] / live.num_rows
    fresh.close()
    table.lines[FreshDuckFile.name] = {"bytes a live row": bytes_a_row}
    ours, duck = table.lines["windrow"], table.lines["duckdb"]
    measured.aims += [
        Aim(f"{shape.name}: update mean / DuckDB's", ours["update mean"] / duck["update mean"], 1.0),
        Aim(f"{shape.name}: bytes a live row / a new DuckDB file's", ours["bytes a live row"] / bytes_a_row, 1.5),
    ]
    return table


def _digest(rows: pa.Table) -> tuple[int, int, int]:
    """Of a probe's rows, in whatever order: how many, and sums over their times."""
    times = sorted(rows["ts"].cast(pa.int64()).to_pylist())
    return rows.num_rows, sum(times), rows.num_columns


def _ask(size: Size, shape: Shape, folder: Path, asked: Lines, measured: Measured) -> dict[str, dict[str, float]]:
    """The statements of some turns, in new processes: the first turn is cold."""
    pair = [Worker(store, folder / store.name, [shape.definition]) for store in (Ours, FreshDuckFile)]
    taken: dict[str, dict[str, list[Timing]]] = {w.name: {} for w in pair}
    for turn in range(size.turns + 1):
        for number, (label, sql) in enumerate(shape.turn(turn).items()):
            answers = {}
            for worker in pair[:: 1 if (turn + number) % 2 else -1]:
                timing, answers[worker.name] = worker.call("ask", sql)
                taken[worker.name].setdefault(label, []).append(timing)
            compare(sql, answers[Ours.name], answers[FreshDuckFile.name])
    ours, duck = taken[Ours.name], taken[FreshDuckFile.name]
    lines = {}
    cpu = []
    for label in ours:
        warm, other = (1e3 * statistics.median(t.wall for t in of[label][1:]) for of in (ours, duck))
        lines[f"{shape.name}: {label}"] = {
            "first": 1e3 * ours[label][0].wall,
            "first, DuckDB": 1e3 * duck[label][0].wall,
            "warm": warm,
            "warm, DuckDB": other,
            "ratio": warm / other,
        }
        cpu.append(sum(t.cpu for t in ours[label][1:]) / max(1e-6, sum(t.cpu for t in duck[label][1:])))
    total = {
        column: sum(line[column] for line in lines.values())
        for column in ("first", "first, DuckDB", "warm", "warm, DuckDB")
    }
    asked.lines[shape.name] = {
        **total,
        "first ratio": geometric_mean(line["first"] / line["first, DuckDB"] for line in lines.values()),
        "warm ratio": geometric_mean(line["ratio"] for line in lines.values()),
        "CPU ratio": geometric_mean(cpu),
        "MB": pair[0].peak / 1e6,
        "MB, DuckDB": pair[1].peak / 1e6,
    }
    for worker in pair:
        worker.close()
    measured.aims.append(Aim(f"{shape.name}: memory of SQL / DuckDB's", pair[0].peak / max(1, pair[1].peak), 2.0))
    return lines


bench = SeededBench("realistic", QUICK, FULL, _measure, first=lambda size: replace(size, more=True))
