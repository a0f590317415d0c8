"""Any streams, any views, any history: what a view holds is what all combinations of its inputs' rows give.

Streams slide at different paces, rows come late and ahead of the clock, views are made at any time and of views, the
warehouse is closed and opened; each view is compared after every step, and the check must find nothing wrong.
"""

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import view_oracle
import windrow
from windrow import Index

MINUTE = 60_000_000
TICK = 10_000_000
START = 1_790_000_000_000_000 // (60 * MINUTE) * 60 * MINUTE
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LAYOUTS = (
    "auto",
    Index("round-robin", 2, 3),
    Index("round-robin", 3, 2, maintenance="rebuild"),
    Index("chronological", 2, 2, maintenance="norebuild"),
    Index("random", 2, 2),
    Index("wave-insertion", 3),
    Index("wave-expiry", 2, maintenance="rebuild"),
)


def time(micros: float) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


@dataclass(frozen=True)
class Kind:
    """A view: its statement and, for the truth, its joins. Windows are in minutes, None for all live rows."""

    sql: str
    names: tuple[str, ...]
    build: Any
    distinct: bool = False


def clause(window: int | None) -> str:
    return "" if window is None else f" [WINDOW {window} MINUTES]"


def selection(a, w, *_):
    return Kind(
        f"SELECT k, x + 1 AS y FROM {a}{clause(w)} WHERE x > 1", (a,),
        lambda s: [view_oracle.Join((part(s, a, w),), lambda r: r.values["x"] > 1, lambda r: {"k": r.values["k"], "y": r.values["x"] + 1})],
    )  # fmt: skip


def part(streams, name, window):
    return view_oracle.Part(streams[name], None if window is None else window * MINUTE)


def same(one, *others, column="k"):
    """Whether rows have a value in common; nulls are no values."""
    value = one.values[column]
    return value is not None and all(other.values[column] == value for other in others)


def pair(one, other):
    return {"k": one.values["k"], "ax": one.values["x"], "bx": other.values["x"]}


def join(a, w, b, v, *_):
    return Kind(
        f"SELECT p.k, p.x AS ax, q.x AS bx FROM {a}{clause(w)} p JOIN {b}{clause(v)} AS q ON p.k = q.k", (a, b),
        lambda s: [view_oracle.Join((part(s, a, w), part(s, b, v)), same, pair)],
    )  # fmt: skip


def chain(a, w, b, v, c, u):
    return Kind(
        f"SELECT p.k, p.x AS ax, q.x AS bx, r.k AS ck FROM {a}{clause(w)} p, {b}{clause(v)} q JOIN {c}{clause(u)} r ON q.x = r.x WHERE p.k = q.k",
        (a, b, c),
        lambda s: [
            view_oracle.Join(
                (part(s, a, w), part(s, b, v), part(s, c, u)),
                lambda p, q, r: same(p, q) and same(q, r, column="x"),
                lambda p, q, r: pair(p, q) | {"ck": r.values["k"]},
            )
        ],
    )


def common(a, w, b, v, c, u):
    return Kind(
        f"SELECT k, p.x AS ax, q.x AS bx, r.x AS cx FROM {a}{clause(w)} p JOIN {b}{clause(v)} q USING (k) JOIN {c}{clause(u)} r USING (k)",
        (a, b, c),
        lambda s: [
            view_oracle.Join(
                (part(s, a, w), part(s, b, v), part(s, c, u)),
                same,
                lambda p, q, r: pair(p, q) | {"cx": r.values["x"]},
            )
        ],
    )


def composite(a, w, b, v, *_):
    return Kind(
        f"SELECT p.k, p.x AS ax, q.x AS bx FROM {a}{clause(w)} p JOIN {b}{clause(v)} AS q USING (k, x)", (a, b),
        lambda s: [view_oracle.Join((part(s, a, w), part(s, b, v)), lambda p, q: same(p, q) and same(p, q, column="x"), pair)],
    )  # fmt: skip


def four(a, w, b, v, c, u):
    """The first stream comes twice: as it is, and in the window of the second."""
    return Kind(
        f"SELECT p.k, p.x AS ax, q.x AS bx, s.x AS sx FROM {a}{clause(w)} p JOIN {b}{clause(v)} q ON p.k = q.k "
        f"JOIN {c}{clause(u)} r ON r.x = p.x JOIN {a}{clause(v)} s ON s.x = r.x AND s.k = q.k",
        (a, b, c),
        lambda s: [
            view_oracle.Join(
                (part(s, a, w), part(s, b, v), part(s, c, u), part(s, a, v)),
                lambda p, q, r, s: same(p, q, s) and same(p, r, s, column="x"),
                lambda p, q, r, s: pair(p, q) | {"sx": s.values["x"]},
            )
        ],
    )


def itself(a, w, *_):
    return Kind(
        f"SELECT p.k, p.x AS ax, q.x AS bx FROM {a} p, {a}{clause(w)} q WHERE p.k = q.k AND p.x < q.x", (a,),
        lambda s: [view_oracle.Join((part(s, a, None), part(s, a, w)), lambda p, q: same(p, q) and p.values["x"] < q.values["x"], pair)],
    )  # fmt: skip


def theta(a, w, b, v, *_):
    return Kind(
        f"SELECT p.k, p.x AS ax, q.x AS bx FROM {a}{clause(w)} p CROSS JOIN {b}{clause(v)} q WHERE p.x + q.x = 3", (a, b),
        lambda s: [view_oracle.Join((part(s, a, w), part(s, b, v)), lambda p, q: p.values["x"] + q.values["x"] == 3, pair)],
    )  # fmt: skip


def union(a, w, b, v, *_):
    def plain(s, name, window):
        return view_oracle.Join(
            (part(s, name, window),), lambda r: True, lambda r: {"k": r.values["k"], "x": r.values["x"]}
        )

    return Kind(
        f"SELECT k, x FROM {a}{clause(w)} UNION ALL SELECT k, x FROM {b}{clause(v)}",
        (a, b),
        lambda s: [plain(s, a, w), plain(s, b, v)],
    )


def distinct(a, w, b, v, *_):
    def plain(s, name, window):
        return view_oracle.Join((part(s, name, window),), lambda r: True, lambda r: {"k": r.values["k"]})

    return Kind(
        f"SELECT k FROM {a}{clause(w)} UNION SELECT k FROM {b}{clause(v)}",
        (a, b),
        lambda s: [plain(s, a, w), plain(s, b, v)],
        distinct=True,
    )


def distinct_join(a, w, b, v, *_):
    return Kind(
        f"SELECT DISTINCT p.k, q.x AS bx FROM {a}{clause(w)} p JOIN {b}{clause(v)} q ON p.k = q.k", (a, b),
        lambda s: [view_oracle.Join((part(s, a, w), part(s, b, v)), same, lambda p, q: {"k": p.values["k"], "bx": q.values["x"]})],
        distinct=True,
    )  # fmt: skip


KINDS = (selection, join, composite, chain, common, four, itself, theta, union, distinct, distinct_join)
WINDOWS = st.sampled_from([None, 1, 2, 3, 5])


class AnyView(RuleBasedStateMachine):
    """The warehouse beside the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.folder: Any = None
        self.wh: Any = None
        self.streams: dict[str, view_oracle.Stream | view_oracle.View] = {}
        self.variable: dict[str, bool] = {}
        self.views: dict[str, tuple[view_oracle.View, bool]] = {}

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.open()
        for name in "abc":
            kind = data.draw(st.sampled_from(["fixed", "fixed", "variable"]))
            delta = data.draw(st.sampled_from([1, 1, 2, 3]))
            origin = data.draw(st.sampled_from([0, 0, 30_000_000]))
            schema = pa.schema(
                [
                    ("ts", pa.timestamp("us", "UTC")),
                    ("exp", pa.timestamp("us", "UTC")),
                    ("k", pa.int64()),
                    ("x", pa.int64()),
                ]
            )
            self.wh.create_stream(
                name, schema, time="ts", key=data.draw(st.sampled_from([None, "k", ["x", "k"]])), slide=f"{delta} minutes",
                origin=time(origin), index=data.draw(st.sampled_from(LAYOUTS)),
                **({"lifetime": "6 minutes"} if kind == "fixed" else {"expires": "exp", "max_lifetime": "6 minutes"}),
            )  # fmt: skip
            self.variable[name] = kind == "variable"
            self.streams[name] = view_oracle.Stream(delta * MINUTE, origin, None if kind == "variable" else 6 * MINUTE)

    def open(self) -> None:
        self.wh = windrow.open(self.folder.name, clock=lambda: START + 600 * MINUTE)

    def base(self) -> int:
        return max([each.clock for each in self.streams.values() if each.clock is not None], default=START)

    @rule(
        name=st.sampled_from("abc"),
        rows=st.lists(
            st.tuples(st.integers(-36, 12), st.integers(0, 2) | st.none(), st.integers(0, 3), st.integers(1, 36)),
            min_size=1,
            max_size=6,
        ),
    )
    def append(self, name: str, rows: list[tuple[int, int | None, int, int]]) -> None:
        base = self.base()
        given = []
        for position, k, x, life in rows:
            ts = base + position * TICK
            exp = ts + life * TICK
            self.streams[name].append({"k": k, "x": x}, ts, exp if self.variable[name] else None)  # type: ignore[union-attr]
            given.append({"ts": time(ts), "exp": time(exp), "k": k, "x": x})
        self.wh.append(name, pa.Table.from_pylist(given, self.wh.stream(name).definition.schema))

    @rule(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), ahead=st.integers(0, 30))
    def slide(self, names: list[str], ahead: int) -> None:
        to = self.base() + ahead * TICK
        for name in names:
            moved = self.streams[name].slide(to)  # type: ignore[union-attr]
            assert self.wh.slide(name, to=time(to)).moved == moved
            for view, _ in self.views.values():
                view.follow()

    @precondition(lambda self: len(self.views) < 4)
    @rule(
        data=st.data(), kind=st.sampled_from(KINDS), windows=st.tuples(WINDOWS, WINDOWS, WINDOWS), restore=st.booleans()
    )
    def create(self, data: Any, kind: Any, windows: tuple[int | None, ...], restore: bool) -> None:
        joined = [
            name
            for name, (view, plain) in self.views.items()
            if plain and view.joins[0].gives is pair and not view.restore
        ]
        names = data.draw(st.permutations("abc"))
        arguments = [each for pair_ in zip(names, windows, strict=True) for each in pair_]
        made = kind(*arguments)
        restore = restore and not made.distinct
        deltas = [self.streams[name].delta for name in made.names]
        if any(w is not None and w * MINUTE < max(deltas) for w in windows) or (
            kind is union and len(set(windows[:2])) > 1 and None in windows[:2] and not any(self.variable.values())
        ):
            windows = (None, None, None)
            made = kind(*[each for pair_ in zip(names, windows, strict=True) for each in pair_])
        name = f"v{len(self.views)}"
        key = data.draw(st.sampled_from([None, "k"]))
        self.wh.create_view(name, made.sql, key=key, restore=restore, index=data.draw(st.sampled_from(LAYOUTS)))
        self.enter(name, made.build(self.streams), restore, made.distinct)
        if joined:
            self.on_top(joined[-1])

    def on_top(self, below: str) -> None:
        name = f"v{len(self.views)}"
        self.wh.create_view(name, f"SELECT p.*, c.x AS cx FROM {below} p JOIN c USING (k)", key=["cx", "k"])
        join = view_oracle.Join(
            (view_oracle.Part(self.views[below][0]), view_oracle.Part(self.streams["c"])),
            same,
            lambda p, c: {**p.values, "cx": c.values["x"]},
        )
        self.enter(name, [join], False, False)

    def enter(self, name: str, joins: list[view_oracle.Join], restore: bool, distinct: bool) -> None:
        definition = self.wh.stream(name).definition
        view = view_oracle.View(joins, definition.slide, definition.origin, restore, distinct)
        view.follow()
        plain = not distinct and all(isinstance(part.of, view_oracle.Stream) for join in joins for part in join.parts)
        self.views[name] = view, plain

    @rule()
    def reopen(self) -> None:
        self.wh.close()
        self.open()

    @rule()
    def check(self) -> None:
        report = self.wh.check()
        assert report.ok, report.problems

    @invariant()
    def every_view_holds_what_it_should(self) -> None:
        for name, (view, plain) in self.views.items():
            actual = self.wh.now(name)
            assert (None if actual is None else time(view.clock)) == actual, name
            assert self.held(name, view) == view.live(), name
            if plain and not view.restore:
                assert view.live() == view.from_scratch()

    def held(self, name: str, view: view_oracle.View) -> Counter[Any]:
        definition = self.wh.stream(name).definition
        rows = self.wh.sql(f"SELECT * FROM {name}").arrow().to_pylist()
        hidden = {definition.time, definition.expires, "_died"}
        actual: Counter[Any] = Counter()
        for row in rows:
            values = tuple((column, value) for column, value in row.items() if column not in hidden)
            if view.distinct:
                actual[values] += 1
                continue
            begins, died = micros(row["_ts"]), row.get("_died")
            if definition.expires is not None:
                ends = micros(row[definition.expires])
            else:
                ends = view_oracle.NEVER if definition.lifetime is None else begins + definition.lifetime
            actual[(values, begins, ends, None) if died is None else (values, None, None, micros(died))] += 1
        return actual

    def teardown(self) -> None:
        if self.wh is not None:
            report = self.wh.check()
            self.wh.close()
            self.folder.cleanup()
            assert report.ok, report.problems


def micros(when: dt.datetime) -> int:
    return (when - EPOCH) // dt.timedelta(microseconds=1)


TestAnyView = AnyView.TestCase
