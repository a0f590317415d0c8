"""`bench statements`: 22 statements of the shapes of TPC-H's and 43 of ClickBench's, over streams, in our own words.

Beside the same rows in a new DuckDB file and in Parquet files. Every process begins cold, stores take turns at each
statement, constants change from turn to turn, and all answers are compared.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.hits import Hits
from bench.measures import Timing
from bench.seeded import Lines, Measured, SeededBench, compare, geometric_mean
from bench.shop import Shop
from bench.statistics import Aim
from bench.stores import FreshDuckFile, Ours, ParquetFolder, SqlStore
from bench.worker import Worker

SLOTS = 12


@dataclass(frozen=True)
class Size:
    """How much is asked: orders (with four lines each), hits, turns after the first."""

    orders: int
    hits: int
    turns: int


QUICK = Size(25_000, 150_000, 2)
FULL = Size(750_000, 5_000_000, 5)
STORES: tuple[type[SqlStore], ...] = (Ours, FreshDuckFile, ParquetFolder)
COLUMNS = ("first", "first, DuckDB", "warm", "warm, DuckDB", "warm, Parquet", "ratio", "CPU ratio")


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    del quick
    return 3 * 4


def _measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    measured = Measured()
    advance("the shop's rows")
    shop = Shop(seed, size.orders)
    for store in STORES:
        worker = Worker(store, folder / "shop" / store.name, shop.definitions)
        for name, rows, now in shop.slots():
            worker.call("update", name, rows, now)
        for name, rows in shop.tables.items():
            worker.call("put_table", name, rows)
        worker.close()
    advance("the shop's statements")
    lines = _ask(shop.turn, shop.definitions, size.turns, folder / "shop")
    _conclude(
        "Shapes of TPC-H", f"{len(shop.rows['lines']):,} lines of orders, six streams, two tables.", lines, measured
    )
    advance("hits")
    hits = Hits(seed, SLOTS)
    for store in STORES:
        worker = Worker(store, folder / "hits" / store.name, [hits.definition])
        for slot in range(1, SLOTS + 1):
            worker.call("update", hits.name, hits.batch(slot, size.hits // SLOTS), hits.definition.now(slot))
        worker.close()
    advance("statements about hits")
    lines = _ask(hits.turn, [hits.definition], size.turns, folder / "hits")
    _conclude("Shapes of ClickBench", f"{size.hits:,} hits of {len(hits.definition.schema)} columns.", lines, measured)
    return measured


def _ask(
    turns: Callable[[int], dict[str, str]], definitions: Sequence, count: int, folder: Path
) -> dict[str, dict[str, float]]:
    workers = [Worker(store, folder / store.name, definitions) for store in STORES]
    taken: dict[str, dict[str, list[Timing]]] = {worker.name: {} for worker in workers}
    for turn in range(count + 1):
        for number, (label, sql) in enumerate(turns(turn).items()):
            place = (turn + number) % len(workers)
            answers = {}
            for worker in workers[place:] + workers[:place]:
                timing, answers[worker.name] = worker.call("ask", sql)
                taken[worker.name].setdefault(label, []).append(timing)
            for other in STORES[1:]:
                compare(sql, answers[Ours.name], answers[other.name])
    for worker in workers:
        worker.close()
    ours, duck, parquet = (taken[store.name] for store in STORES)
    lines = {}
    for label in ours:
        medians = [1e3 * statistics.median(t.wall for t in of[label][1:]) for of in (ours, duck, parquet)]
        cpu = [max(1e-6, sum(t.cpu for t in of[label][1:])) for of in (ours, duck)]
        figures = (
            1e3 * ours[label][0].wall,
            1e3 * duck[label][0].wall,
            *medians,
            medians[0] / medians[1],
            cpu[0] / cpu[1],
        )
        lines[label] = dict(zip(COLUMNS, figures, strict=True))
    return lines


def _conclude(title: str, rows: str, lines: dict[str, dict[str, float]], measured: Measured) -> None:
    """What was wanted of one set of statements, and its table."""
    measured.aims += [
        Aim(f"{title}: warm / DuckDB file, geometric mean", geometric_mean(of["ratio"] for of in lines.values()), 1.3),
        Aim(f"{title}: the same, processor time", geometric_mean(of["CPU ratio"] for of in lines.values()), 1.3),
        Aim(f"{title}: warm, worst statement", max(of["ratio"] for of in lines.values()), 3.0),
        Aim(
            f"{title}: first time / DuckDB file, geometric mean",
            geometric_mean(of["first"] / of["first, DuckDB"] for of in lines.values()),
            1.5,
        ),
    ]
    measured.tables.append(
        Lines(title, f"{rows} Milliseconds, medians of the turns after the first.", COLUMNS, "ratio", lines)
    )


bench = SeededBench("statements", QUICK, FULL, _measure)
