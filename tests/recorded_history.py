"""A history as data, so that any process can perform it, and the expected state after each operation."""

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import windrow
from oracle import Oracle
from sample_streams import BASE, DELTA, SHAPES, Shape, plain, when
from windrow.reference_tables import find_table

Operation = tuple[Any, ...]
STREAM = "s"
CLOCK = BASE + 1000 * DELTA
"""The wall clock: all of a history lies in the past."""


def operations(shape: Shape, seed: int, rounds: int = 5, rows: int = 12) -> list[Operation]:
    """Appends (with late, dead and unacceptable rows), slides of one and of several slots, and clean-ups."""
    choice = random.Random(seed)
    made: list[Operation] = []
    now, number = BASE, 0
    for turn in range(rounds):
        for part in range(1 + turn % 2):
            batch = []
            for _ in range(rows):
                ts = now + choice.randint(-3 * DELTA if turn else 1, DELTA)
                batch.append(shape.row(number, ts, choice.randint(1, 6) * DELTA - choice.randint(0, 1), choice))
                number += 1
            batch.append(shape.row(number, None, DELTA, choice))
            number += 1
            made.append(("append", batch, f"batch {turn}.{part}"))
        now += choice.choice((1, 1, 2)) * DELTA
        made.append(("slide", now))
        if turn in (0, 3):
            made.append(("table", turn))
        if turn % 2:
            made.append(("gc",))
    return [*made, ("replay",), ("slide", now + 3 * DELTA), ("gc",)]


def perform(wh: windrow.Warehouse, shape: Shape, operation: Operation) -> Any:
    """Perform one operation on a warehouse."""
    match operation:
        case ("append", rows, batch_id):
            return wh.append(STREAM, shape.table(rows), batch_id=batch_id)
        case ("slide", to):
            return wh.slide(STREAM, to=when(to))
        case ("gc",):
            return wh.gc()
        case ("replay",):
            return wh.replay(STREAM)
        case ("table", version):
            return wh.put_table("hosts", pa.table({"version": [version] * (version + 1)}))
        case ("relayout", index, key, move, budget):
            return wh.relayout(STREAM, windrow.Index(*index), key=key, move=move, budget=budget)
        case ("step", budget):
            return wh.relayout_step(STREAM, budget=budget)
        case ("cancel",):
            # What it goes back to depends on whether a kill came first; nothing that can be seen depends on that.
            change = wh.stream(STREAM).relayout
            return wh.cancel_relayout(STREAM) if change is not None and change.can_cancel else None
        case ("lifetime", length):
            return wh.alter_stream(STREAM, lifetime=f"{length} microseconds")
        case ("column", name):
            there = name in wh.stream(STREAM).definition.schema.names
            return None if there else wh.alter_stream(STREAM, add_column=(name, pa.string()))
    raise ValueError(operation)


def expected_states(shape: Shape, done: Sequence[Operation]) -> list[Oracle]:
    """Compute the oracle's state before the first operation and after each."""
    states = [shape.oracle()]
    for operation in done:
        truth = copy.deepcopy(states[-1])
        match operation:
            case ("append", rows, batch_id):
                truth.append(rows, CLOCK, None, batch_id)
            case ("slide", to):
                truth.slide(CLOCK, to)
            case ("replay",):
                truth.replay(CLOCK)
            case ("table", version):
                truth.hosts = [version] * (version + 1)  # type: ignore[attr-defined]
            case ("lifetime", length):
                truth.alter_lifetime(length)
            case ("column", name):
                truth.added = [*getattr(truth, "added", []), name]  # type: ignore[attr-defined]
        states.append(truth)
    return states


def create(path: Path, shape: str, index: windrow.Index | str) -> None:
    """Create a warehouse with the stream of the history."""
    with open_warehouse(path) as wh:
        SHAPES[shape].create(wh, STREAM, index)


def open_warehouse(path: Path, **options: Any) -> windrow.Warehouse:
    """Open the warehouse at the wall time of the history."""
    return windrow.open(path, clock=lambda: CLOCK, **options)


def state(wh: windrow.Warehouse) -> tuple[Any, ...]:
    """Read all that a user can see of the stream."""
    status, rejected = wh.stream(STREAM), wh.rejected(STREAM)
    why = sorted(zip(rejected.column("n").to_pylist(), rejected.column("_reason").to_pylist(), strict=True))
    now = None if status.now is None else windrow.times.parse_instant(status.now)
    totals = (now, status.inserted, status.expired, status.late, status.spooled_rows)
    hosts = []
    if "hosts" in wh.tables():
        file = wh._store.catalog.read(lambda tables: find_table(tables, "hosts").file)
        hosts = pq.read_table(wh.path / file).column("version").to_pylist()
    return (*totals, why, hosts, repr(plain(wh.scan(STREAM).read_all())))


def expected(truth: Oracle, shape: Shape) -> tuple[Any, ...]:
    """Compute what `state` must be."""
    why = sorted((values["n"], reason) for values, reason, _ in truth.rejects)
    names = [*shape.schema.names, *getattr(truth, "added", [])]
    rows = sorted((row.values for row in truth.live()), key=lambda values: values["n"])
    totals = (truth.now, truth.inserted, truth.expired, truth.late, len(truth.spool))
    return (
        *totals,
        why,
        getattr(truth, "hosts", []),
        repr([{name: values.get(name) for name in names} for values in rows]),
    )


def assert_sound(wh: windrow.Warehouse) -> None:
    """Assert that `check` finds no problem."""
    report = wh.check()
    assert report.ok, report.problems
