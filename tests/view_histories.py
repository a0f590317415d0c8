"""Histories of two streams and nine views: operations that can be repeated, and the expected state after each."""

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

import view_oracle
import windrow

MINUTE = 60_000_000
TICK = 10_000_000
START = 1_790_000_000_000_000 // (60 * MINUTE) * 60 * MINUTE
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("exp", STAMP), ("k", pa.int64()), ("x", pa.int64())])
VIEWS = {
    "pairs": "SELECT a.k, a.x AS ax, b.x AS bx FROM a JOIN b [WINDOW 4 MINUTES] ON a.k = b.k",
    "brief": "SELECT a.k, a.x AS ax, b.x AS bx FROM a [WINDOW 2 MINUTES] JOIN b ON a.k = b.k",
    "thrice": "SELECT p.*, b.x AS cx FROM pairs p JOIN b USING (k)",
    "keys": "SELECT k FROM a UNION SELECT k FROM b",
    "lonely": "SELECT a.k, a.x FROM a [WINDOW 5 MINUTES] ANTI JOIN b [WINDOW 1 MINUTE] ON a.k = b.k AND b.x > 0",
    "padded": "SELECT a.k, a.x AS ax, b.x AS bx FROM a [WINDOW 5 MINUTES] LEFT JOIN b [WINDOW 2 MINUTES] ON a.k = b.k",
    "absent": "SELECT k, x FROM a WHERE k NOT IN (SELECT k FROM b [WINDOW 1 MINUTE])",
    "newest": "SELECT k, x FROM a [ROWS 2 PARTITION BY k]",
    "totals": "SELECT a.k, count(*) AS n, sum(a.x) AS total, max(b.x) AS most "
    "FROM a JOIN b [WINDOW 4 MINUTES] ON a.k = b.k GROUP BY a.k HAVING count(*) > 1",
}
BY_VALUES = ("keys", "padded", "absent", "newest", "totals")
"""Views of which only the values are compared."""
OPTIONS: dict[str, dict[str, Any]] = {
    "pairs": {"key": "k", "index": windrow.Index("round-robin", 2, 2, maintenance="rebuild")},
    "brief": {"restore": True},
}


def time(micros: float) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


def micros(when: dt.datetime) -> int:
    return (when - EPOCH) // dt.timedelta(microseconds=1)


def open_warehouse(path: Path | str, files: Any = None) -> Any:
    return windrow.open(path, clock=lambda: START + 600 * MINUTE, files=files)


def rows(values: list[tuple[int, int, int, int]]) -> pa.Table:
    """Make a table of (ts, exp, k, x)."""
    return pa.Table.from_pylist([{"ts": time(t), "exp": time(e), "k": k, "x": x} for t, e, k, x in values], SCHEMA)


def read_view(wh: Any, name: str, *, by_values: bool = False) -> Counter[Any]:
    """Read what a view holds, in the form of `view_oracle.View.live`."""
    definition = wh.stream(name).definition
    time_columns = {definition.time, definition.expires, "_died"}
    counts: Counter[Any] = Counter()
    for row in wh.sql(f"SELECT * FROM {name}").arrow().to_pylist():
        values = tuple((column, value) for column, value in row.items() if column not in time_columns)
        if by_values:
            counts[values] += 1
            continue
        begins, died = micros(row["_ts"]), row.get("_died")
        if definition.expires is not None:
            ends: float = micros(row[definition.expires])
        else:
            ends = view_oracle.NEVER if definition.lifetime is None else begins + definition.lifetime
        counts[(values, begins, ends, None) if died is None else (values, None, None, micros(died))] += 1
    return counts


def create(path: Path) -> None:
    """Create the streams and views."""
    with open_warehouse(path) as wh:
        wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="6 minutes")
        wh.create_stream(
            "b", SCHEMA, time="ts", key="k", slide="2 minutes", expires="exp", max_lifetime="6 minutes",
            index=windrow.Index("round-robin", 2, 2, maintenance="rebuild"),
        )  # fmt: skip
        for name, sql in VIEWS.items():
            wh.create_view(name, sql, **OPTIONS.get(name, {}))


class ExpectedViews:
    """The expected state of the views, computed by the oracle."""

    def __init__(self) -> None:
        self.a = view_oracle.Stream(MINUTE, 0, 6 * MINUTE)
        self.b = view_oracle.Stream(2 * MINUTE)
        a, b = view_oracle.Part(self.a), view_oracle.Part(self.b)

        def same(one: Any, other: Any) -> bool:
            return bool(one.values["k"] == other.values["k"])

        def pair(one: Any, other: Any) -> dict[str, Any]:
            return {"k": one.values["k"], "ax": one.values["x"], "bx": other.values["x"]}

        pairs = view_oracle.View([view_oracle.Join((a, view_oracle.Part(self.b, 4 * MINUTE)), same, pair)], MINUTE)
        brief = view_oracle.View(
            [view_oracle.Join((view_oracle.Part(self.a, 2 * MINUTE), b), same, pair)], MINUTE, restore=True
        )
        top = view_oracle.Join((view_oracle.Part(pairs), b), same, lambda p, c: {**p.values, "cx": c.values["x"]})
        keys = [view_oracle.Join((part,), lambda r: True, lambda r: {"k": r.values["k"]}) for part in (a, b)]
        self.views = {
            "pairs": pairs,
            "brief": brief,
            "thrice": view_oracle.View([top], MINUTE),
            "keys": view_oracle.View(keys, MINUTE, distinct=True),
            "lonely": view_oracle.Negation(
                view_oracle.Part(self.a, 5 * MINUTE),
                view_oracle.Part(self.b, MINUTE),
                lambda one, other: same(one, other) and other.values["x"] > 0,
                lambda row: dict(row.values),
                MINUTE,
            ),
            "padded": view_oracle.Computed(
                (view_oracle.Part(self.a, 5 * MINUTE), view_oracle.Part(self.b, 2 * MINUTE)),
                lambda left, right: [
                    pair(row, other) if other else {"k": row.values["k"], "ax": row.values["x"], "bx": None}
                    for row in left
                    for other in [other for other in right if same(row, other)] or [None]
                ],
                MINUTE,
            ),
            "absent": view_oracle.Computed(
                (a, view_oracle.Part(self.b, MINUTE)),
                lambda left, right: [dict(row.values) for row in left if not any(same(row, other) for other in right)],
                MINUTE,
            ),
            "newest": view_oracle.Computed(
                (a,),
                lambda rows: [
                    dict(row.values)
                    for number, row in enumerate(rows)
                    if sum(same(row, later) for later in rows[number + 1 :]) < 2
                ],
                MINUTE,
            ),
        }

    def do(self, operation: tuple[Any, ...]) -> None:
        kind, name, given = operation[:3]
        stream = self.a if name == "a" else self.b
        if kind == "append":
            for t, e, k, x in given:
                stream.append({"k": k, "x": x}, t, e if name == "b" else None)
        else:
            stream.slide(given)
            for view in self.views.values():
                view.follow()

    def state(self) -> dict[str, Any]:
        states = {name: (view.clock, dict(view.live())) for name, view in self.views.items()}
        return states | {"totals": (self.views["pairs"].clock, self._totals())}

    def _totals(self) -> dict[Any, int]:
        """The groups of the pairs that there are."""
        groups: dict[int, list[dict[str, Any]]] = {}
        for (values, *_), count in self.views["pairs"].live().items():
            groups.setdefault(dict(values)["k"], []).extend([dict(values)] * count)
        return {
            (
                ("k", k),
                ("n", len(pairs)),
                ("total", sum(pair["ax"] for pair in pairs)),
                ("most", max(pair["bx"] for pair in pairs)),
            ): 1
            for k, pairs in groups.items()
            if len(pairs) > 1
        }


def state(wh: Any) -> dict[str, Any]:
    """Read the state of the views, in the form of `ExpectedViews.state`."""
    states = {}
    for name in VIEWS:
        now = wh.now(name)
        states[name] = (
            None if now is None else micros(now),
            dict(read_view(wh, name, by_values=name in BY_VALUES)),
        )
    return states


def operations(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Appends with late, short-lived and early rows, and slides at different paces."""
    choice = random.Random(seed)
    clock, done = START, []
    for number in range(count):
        name = choice.choice("ab")
        if number % 2 == 0:
            given = []
            for _ in range(choice.randint(2, 6)):
                ts = clock + choice.randint(-18, 12) * TICK
                given.append((ts, ts + choice.randint(1, 36) * TICK, choice.randint(0, 2), choice.randint(0, 3)))
            done.append(("append", name, given, f"batch {number}"))
        else:
            clock += choice.randint(0, 15) * TICK
            done.append(("slide", name, clock))
    return done


def perform(wh: Any, operation: tuple[Any, ...]) -> None:
    kind, name, argument = operation[:3]
    if kind == "append":
        wh.append(name, rows(argument), batch_id=operation[3])
    else:
        wh.slide(name, to=time(argument))
