"""Random histories of two streams, and views of them that must be what plain SQL gives over the live rows.

Rows come late and ahead of the clock, one input lags, slides are of several slots, warehouses are opened again, layouts
change; the truth is DuckDB over a Python list of the rows that live at a view's clock.
"""

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

import windrow

BEGIN = dt.datetime(2026, 1, 1)
MINUTE = dt.timedelta(minutes=1)
STAMP = pa.timestamp("us")
COLUMNS = [("ts", STAMP), ("k", pa.int64()), ("x", pa.int64()), ("w", pa.string()), ("f", pa.float64())]
FIXED, VARIABLE = pa.schema(COLUMNS), pa.schema([*COLUMNS, ("exp", STAMP)])
LAYOUTS = (
    "auto",
    windrow.Index("round-robin", 2, 3),
    windrow.Index("round-robin", 3, 2, maintenance="rebuild"),
    windrow.Index("chronological", 2, 2, maintenance="norebuild"),
    windrow.Index("wave-expiry", 2),
)


class Windowed(str):
    """The name of a stream, to which a format such as ``{a:3}`` or ``{a:rows 2 k}`` gives a window."""

    __slots__ = ()

    def __format__(self, window: str) -> str:
        kind, *more = window.split() or [""]
        keys = f" PARTITION BY {', '.join(more[1:])}" if more[1:] else ""
        if kind == "rows":
            return f"{self} [ROWS {more[0]}{keys}]"
        if kind == "session":
            return f"{self} [SESSION {more[0]} SECONDS{keys}]"
        if kind == "offset":
            return f"{self} [WINDOW {more[0]} MINUTES OFFSET {more[1]} MINUTES]"
        return f"{self} [WINDOW {kind} MINUTES]" if kind else str(self)


class Live(str):
    """The same as a query over the live rows."""

    __slots__ = ()

    def __format__(self, window: str) -> str:
        kind, *more = window.split() or [""]
        keys = f"PARTITION BY {', '.join(more[1:])} " if more[1:] else ""
        if kind == "rows":
            return f"(FROM {self} QUALIFY row_number() OVER ({keys}ORDER BY ts DESC) <= {more[0]})"
        if kind == "session":
            later = f"lead(ts) OVER ({keys}ORDER BY ts)"
            paused = f"FROM (SELECT *, {later} - ts >= INTERVAL {more[0]} SECOND AS paused FROM {self})"
            return f"({paused} QUALIFY coalesce(count_if(paused) OVER ({keys}ORDER BY ts DESC), 0) = 0)"
        if kind == "offset":
            begins = f"ts > now - INTERVAL {int(more[0]) + int(more[1])} MINUTE"
            return f"(FROM {self} WHERE {begins} AND ts <= now - INTERVAL {more[1]} MINUTE)"
        return f"(FROM {self} WHERE ts > now - INTERVAL {kind} MINUTE)" if kind else str(self)


@dataclass
class Stream:
    """The rows that a stream has taken, and those that wait for its slide."""

    name: str
    now: dt.datetime | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)

    def live(self, now: dt.datetime) -> list[dict[str, Any]]:
        return [row for row in self.taken if row["ts"] <= now < row["end"]]


class Truth:
    """What views should hold, computed when their clocks move."""

    def __init__(self) -> None:
        self.streams = {name: Stream(name) for name in "ab"}
        self.held: dict[str, Counter[Any]] = {}

    def slide(self, name: str, to: dt.datetime, read: dict[str, str]) -> None:
        stream = self.streams[name]
        before = {each: self.clock(read[each]) for each in read}
        stream.now = to
        stream.taken, stream.waiting = stream.taken + stream.waiting, []
        for each, sql in read.items():
            if self.clock(sql) != before[each]:
                self.held[each] = self.compute(sql)

    def clock(self, sql: str) -> dt.datetime | None:
        clocks = [stream.now for name, stream in self.streams.items() if f"{{{name}" in sql]
        return None if None in clocks else min(clocks)

    def compute(self, sql: str) -> Counter[Any]:
        now = self.clock(sql)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name, stream in self.streams.items():
                rows = [{column: row[column] for column, _ in COLUMNS} for row in stream.live(now)]
                connection.register(f"{name}_rows", pa.Table.from_pylist(rows, FIXED))
                connection.execute(f"CREATE VIEW {name} AS SELECT *, TIMESTAMP '{now}' AS now FROM {name}_rows")
            return counted(connection.execute(sql.format(a=Live("a"), b=Live("b"))).fetchall())


def counted(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(tuple(map(comparable, row)) for row in rows)


def comparable(value: Any) -> Any:
    """Stored sums of integers are decimals; a NaN is equal to no other."""
    if isinstance(value, Decimal):
        return int(value)
    return "NaN" if value != value else value  # noqa: PLR0124 - only a NaN is not itself


def held(wh: Any, name: str) -> Counter[Any]:
    """What a view holds, by SQL; probe and scan must agree with it."""
    definition = wh.stream(name).definition
    columns = [each for each in definition.schema.names if each not in (definition.time, definition.expires)]
    rows = counted(wh.sql(f"SELECT {', '.join(columns)} FROM {name}").fetchall())
    scanned = [tuple(row.values()) for batch in wh.scan(name, columns=columns) for row in batch.to_pylist()]
    assert counted(scanned) == rows
    return rows


def random_row(choice: random.Random, to: dt.datetime, *, variable: bool) -> dict[str, Any]:
    ts = to - dt.timedelta(seconds=choice.choice([0, 0, 0, 60, 120]) + choice.uniform(-20, 59))
    row = {
        "ts": ts,
        "k": choice.choice([1, 2, 3, 7, None]),
        "x": choice.choice([1, 2, 5, -4, None, 2**62]),
        "w": choice.choice("abc"),
        "f": choice.choice([1.5, 2.25, -3.0, None]),
    }
    end = ts + (dt.timedelta(seconds=choice.randint(1, 480)) if variable else 5 * MINUTE)
    return row | ({"exp": end} if variable else {}) | {"end": end}


def create(wh: Any, *, variable: bool) -> None:
    for name in "ab":
        lives = {"expires": "exp", "max_lifetime": "8 minutes"} if variable else {"lifetime": "5 minutes"}
        wh.create_stream(name, VARIABLE if variable else FIXED, time="ts", key="k", slide="1 minute", **lives)


def append(wh: Any, truth: Truth, name: str, rows: list[dict[str, Any]], *, variable: bool) -> None:
    stream = truth.streams[name]
    stream.waiting += [row for row in rows if stream.now is None or row["end"] > stream.now]
    plain = [{key: value for key, value in row.items() if key != "end"} for row in rows]
    if plain:
        wh.append(name, pa.Table.from_pylist(plain, VARIABLE if variable else FIXED))


def follow(path: Any, statements: dict[str, str], seed: int, steps: int, *, variable: bool) -> None:
    """Perform a random history and compare each view after each slide."""
    print("seed", seed)
    choice, truth = random.Random(seed), Truth()
    wh = windrow.open(path)
    create(wh, variable=variable)
    clocks = dict.fromkeys("ab", BEGIN)
    made: dict[str, str] = {}
    waiting = list(statements)
    for step in range(steps):
        while waiting and choice.random() < 0.6:
            name = waiting.pop(choice.randrange(len(waiting)))
            sql = statements[name].format(a=Windowed("a"), b=Windowed("b"))
            view = wh.create_view(name, sql, index=choice.choice(LAYOUTS))
            assert not view.recomputed
            made[name] = statements[name]
            if truth.clock(made[name]) is not None and view.now is not None:
                truth.held[name] = truth.compute(made[name])
        stream = choice.choice("ab")
        clocks[stream] += choice.choice([1, 1, 1, 2, 4]) * MINUTE
        if abs(clocks["a"] - clocks["b"]) > 4 * MINUTE:
            stream = min("ab", key=clocks.__getitem__)
            clocks[stream] = max(clocks.values())
        rows = [random_row(choice, clocks[stream], variable=variable) for _ in range(choice.choice([0, 2, 8]))]
        append(wh, truth, stream, rows, variable=variable)
        wh.slide(stream, to=clocks[stream])
        truth.slide(stream, clocks[stream], made)
        for name in made:
            if name in truth.held and wh.now(name) is not None:
                assert held(wh, name) == truth.held[name], (seed, step, name)
        if choice.random() < 0.1:
            wh.close()
            wh = windrow.open(path)
        if choice.random() < 0.1:
            wh.relayout(
                choice.choice("ab"), windrow.Index("round-robin", choice.choice([1, 2, 3]), choice.choice([1, 2]))
            )
    assert wh.check().ok
    wh.close()
