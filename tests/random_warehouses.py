"""Random warehouses: streams of random schema, lifetime and layout, each with its oracle.

A `RandomWarehouse` has gone through appends, late rows, rows ahead of the clock, slides and reclaims; statements for it
come from `random_statements`.
"""

import datetime as dt
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import oracle
import windrow
from oracle import Oracle, Row
from sample_streams import BASE, DELTA, LAYOUTS, Shape, when

CLOCK = BASE + 1000 * DELTA
NAN, INF = float("nan"), float("inf")
_HOUR = 3_600_000_000

COLUMN_POOL: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "i": (pa.int64(), (0, 1, 2, -5, 2**62, None)),
    "small": (pa.int8(), (0, 1, -1, 127, None)),
    "u": (pa.uint64(), (0, 1, 2**64 - 1, None)),
    "f": (pa.float64(), (0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, None)),
    "g": (pa.float32(), (0.25, -1.5, NAN, None)),
    "h": (pa.float16(), tuple(np.float16(v) for v in (0.5, -1.5, 2.0))),
    "s": (pa.string(), ("", "a", "ab", "b", "Ä", "a'b", None)),
    "big": (pa.large_string(), ("x", "xy", "λ" * 80, None)),
    "raw": (pa.binary(), (b"", b"\x00", b"a", b"\xff\x00", None)),
    "flag": (pa.bool_(), (True, False, None)),
    "d": (pa.decimal128(12, 3), (Decimal("-1.500"), Decimal("0.001"), Decimal("99.000"), None)),
    "wide": (pa.decimal256(20, 2), (Decimal("1.50"), Decimal("-3.25"), None)),
    "day": (pa.date32(), (dt.date(2025, 12, 31), dt.date(2026, 1, 1), None)),
    "at": (pa.timestamp("ms"), (BASE // 1000, BASE // 1000 + 1, None)),
    "zoned": (pa.timestamp("us", "Europe/Paris"), (BASE, BASE + 1, BASE + DELTA, None)),
    "kind": (pa.dictionary(pa.int32(), pa.string()), ("x", "yy", "zzz", None)),
    "tags": (pa.list_(pa.int16()), ([], [1, 2], [None], None)),
    "where": (pa.struct([("x", pa.float32()), ("y", pa.string())]), ({"x": 0.5, "y": None}, {"x": 1.5, "y": "q"}, None)),
    "span": (pa.duration("us"), (0, 5_000_000, -7, None)),
    "nothing": (pa.null(), (None,)),
    "Mixed Case": (pa.int32(), (1, 2, 3)),
}  # fmt: skip
"""Columns that a stream may have, by name: so that two streams can be joined by what they share."""
KEYS = ("i", "small", "u", "f", "g", "s", "big", "raw", "flag", "d", "day", "at", "zoned", "kind", "h", "Mixed Case")
TIMES = (
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "UTC"),
    pa.timestamp("ms"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("ns"),
)


@dataclass
class RandomStream:
    """A stream under a name and the truth about it."""

    name: str
    shape: Shape
    truth: Oracle

    def rows(self, chosen: Sequence[Row]) -> pa.Table:
        """The rows as plain DuckDB will read them, and as it would read them from Parquet."""
        table = self.shape.table([row.values for row in chosen])
        for index, kind in enumerate(table.schema):
            plain = _plain(kind.type)
            if plain != kind.type:
                column = table.column(index)
                table = table.set_column(
                    index,
                    kind.name,
                    pa.nulls(len(column), plain) if pa.types.is_null(kind.type) else column.cast(plain),
                )
        return table

    def newest_first(self) -> list[Row]:
        """Live rows by (time, arrival), newest first."""
        numbered = list(enumerate(self.truth.live()))
        return [row for _, row in sorted(numbered, key=lambda pair: (pair[1].values["ts"], pair[0]), reverse=True)]


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    return {pa.float16(): pa.float32(), pa.null(): pa.int32(), pa.decimal256(20, 2): pa.decimal128(20, 2)}.get(
        kind, kind
    )


def random_shape(choice: random.Random, number: int) -> Shape:
    """A schema with one, two or no key columns, and one of the three kinds of lifetime."""
    columns = choice.sample(sorted(COLUMN_POOL), choice.randint(3, 6))
    if not set(columns) & set(KEYS):
        columns.append("i")
    fields: dict[str, pa.DataType] = {"ts": choice.choice(TIMES)}
    lifetime = max_lifetime = None
    kind = choice.choice(("fixed", "per-row", "never"))
    if kind == "fixed":
        lifetime = choice.choice((3 * DELTA, 4 * DELTA, 4 * DELTA + DELTA // 3))
    elif kind == "per-row":
        max_lifetime = 6 * DELTA
        fields["exp"] = choice.choice(TIMES)
    fields |= {name: COLUMN_POOL[name][0] for name in columns}
    able = [name for name in columns if name in KEYS]
    key = tuple(choice.sample(able, min(len(able), choice.choice((0, 1, 1, 1, 2, 2)))))
    return Shape(
        f"random-{number}", fields, key, lifetime=lifetime, max_lifetime=max_lifetime,
        origin=choice.choice((0, 0, BASE + 3 * oracle.SECOND)), values={name: COLUMN_POOL[name][1] for name in columns},
    )  # fmt: skip


@dataclass
class RandomWarehouse:
    """A warehouse with a history."""

    wh: windrow.Warehouse
    streams: list[RandomStream]
    hosts: pa.Table
    number: int = 0

    def history(self, choice: random.Random, rounds: int, rows: int) -> None:
        """Appends with late, early and dead rows, slides of one and several slots, clean-ups."""
        for stream in self.streams:
            now = BASE
            for turn in range(rounds):
                for _ in range(choice.choice((0, 1, 1, 2))):
                    self._append(stream, choice, now, choice.randint(1, rows), first=turn == 0)
                now += choice.choice((1, 1, 1, 2)) * DELTA
                self.wh.slide(stream.name, to=when(now))
                stream.truth.slide(CLOCK, now)
                if choice.random() < 0.3:
                    self.wh.gc()
            if choice.random() < 0.5:
                self._append(stream, choice, now, rows, first=False)

    def _append(self, stream: RandomStream, choice: random.Random, now: int, count: int, *, first: bool) -> None:
        batch = []
        for _ in range(count):
            ts = now + choice.choice((choice.randint(1 if first else -3 * DELTA, DELTA), choice.randint(0, 3 * DELTA)))
            if choice.random() < 0.2:
                ts -= ts % oracle.SECOND  # ties
            life = choice.randint(1, 6) * DELTA - choice.randint(0, 1)
            batch.append(stream.shape.row(self.number, ts, life, choice))
            self.number += 1
        self.wh.append(stream.name, stream.shape.table(batch))
        stream.truth.append(batch, CLOCK)


def make_warehouse(path: Path, seed: int, streams: int = 3, rounds: int = 7, rows: int = 25) -> RandomWarehouse:
    """A warehouse that has been through something; the last of its streams may not have slid yet."""
    choice = random.Random(seed)
    wh = windrow.open(path, clock=lambda: CLOCK)
    made = []
    for number in range(streams):
        shape = random_shape(choice, number)
        name = choice.choice(("packets", "Leases", "odd-name", "ticks")) + str(number)
        shape.create(wh, name, LAYOUTS[choice.choice(sorted(LAYOUTS))])
        made.append(RandomStream(name, shape, shape.oracle()))
    hosts = pa.table({
        "i": pa.array([0, 1, 2, 7, None], pa.int64()), "s": ["a", "ab", "zz", "b", None], "label": ["one", "two", "two", None, "six"],
    })  # fmt: skip
    wh.put_table("hosts", hosts)
    world = RandomWarehouse(wh, made, hosts)
    world.history(choice, rounds, rows)
    shape = random_shape(choice, streams)
    shape.create(wh, "fresh", "auto")
    world.streams.append(RandomStream("fresh", shape, shape.oracle()))
    if choice.random() < 0.5:
        world._append(world.streams[-1], choice, BASE, 3, first=True)
    return world
