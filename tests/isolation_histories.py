"""Random histories of one stream for tests of isolation: a warehouse, its oracle, and statements for both."""

import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import oracle
import plain_duckdb
import windrow
from sample_streams import BASE, DELTA, LAYOUTS, US, Shape, when

STREAM = "packets"
CLOCK = BASE + 1000 * DELTA

_COLUMNS = {"k": pa.int64(), "v": pa.float64(), "s": pa.string()}
_VALUES = {"k": (0, 1, 2, 3, None), "v": (0.25, -1.5, 3.0, 1e6, None), "s": ("a", "b", "quoted'", None)}
_AHEAD = 3600 * oracle.SECOND
KINDS = {
    "fixed": Shape("fixed", {"ts": US, **_COLUMNS}, ("k",), lifetime=6 * DELTA, values=_VALUES, max_ahead=_AHEAD),
    "fixed-odd": Shape(
        "fixed-odd", {"ts": pa.timestamp("ns"), **_COLUMNS}, ("k",), lifetime=5 * DELTA + DELTA // 3, values=_VALUES,
        origin=BASE + 3 * oracle.SECOND, max_ahead=_AHEAD,
    ),
    "per-row": Shape(
        "per-row", {"ts": US, "exp": US, **_COLUMNS}, ("k", "s"), max_lifetime=8 * DELTA, values=_VALUES,
        max_ahead=_AHEAD,
    ),
    "never": Shape("never", {"ts": pa.timestamp("ms"), **_COLUMNS}, ("s",), values=_VALUES, max_ahead=_AHEAD),
}  # fmt: skip
"""Fixed lifetimes, lifetimes that no slot's end meets, a lifetime for each row, and rows that never expire."""


class History:
    """A stream and its oracle, which take the same appends and slides."""

    def __init__(self, path: Path, kind: str, chance: random.Random) -> None:
        self.shape, self.chance, self.number = KINDS[kind], chance, 0
        self.wh = windrow.open(path, clock=lambda: CLOCK)
        self.shape.create(self.wh, STREAM, LAYOUTS[chance.choice(list(LAYOUTS))])
        self.truth = self.shape.oracle()

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Make rows around the clock: some in time, some late, some far ahead."""
        new_rows = []
        now = self.truth.now if self.truth.now is not None else BASE
        for _ in range(count):
            reach = self.chance.choice((1, 1, 1, 4))
            ts = now + self.chance.randint(-3 * DELTA if self.truth.now else 1, reach * DELTA)
            life = self.chance.choice((self.chance.randint(1, 2 * DELTA), self.chance.randint(1, 8) * DELTA))
            new_rows.append(self.shape.row(self.number, ts, life, self.chance))
            self.number += 1
        return new_rows

    def move(self, slots: int = 1, rows: int | None = None) -> None:
        """Append and slide, in the warehouse and in the oracle."""
        new_rows = self.rows(self.chance.randint(0, 14) if rows is None else rows)
        if new_rows:
            self.wh.append(STREAM, self.shape.table(new_rows))
            self.truth.append(new_rows, CLOCK)
        now = self.truth.now if self.truth.now is not None else self.truth.end(math.ceil(self.truth.slot(BASE)))
        to = now + slots * DELTA
        assert self.wh.slide(STREAM, to=when(to)).slide == self.truth.slide(CLOCK, to).slide

    def window(self) -> tuple[str, Any]:
        """Choose a window clause, and a function that finds its rows in the oracle."""
        kind = self.chance.choice(("all", "range", "range", "range", "odd", "since", "between"))
        lengths = [n * DELTA for n in range(1, 6)]
        if kind == "all":
            return "", lambda truth: truth.live()
        if kind in ("range", "odd"):
            length = self.chance.choice(lengths) - (self.chance.randint(1, DELTA - 1) if kind == "odd" else 0)
            return f"[WINDOW {length} MICROSECONDS]", lambda truth: truth.live(length)
        start = BASE + self.chance.randint(0, 6 * DELTA)
        if kind == "since":
            return f"[SINCE TIMESTAMP '{stamp(start)}']", lambda truth: [r for r in truth.live() if r.ts > start]
        stop = start + self.chance.randint(1, 12) * DELTA
        clause = f"[FROM TIMESTAMP '{stamp(start)}' TO TIMESTAMP '{stamp(stop)}']"
        return clause, lambda truth: [r for r in truth.live() if start < r.ts <= stop]

    def expected(self, statement: str, rows: Iterable[oracle.Row], params: Any = None) -> list[tuple[Any, ...]]:
        """Ask plain DuckDB over exactly these rows."""
        with plain_duckdb.connect() as plain:
            plain.register(STREAM, self.shape.table([row.values for row in rows]))
            plain.register("hosts", hosts())
            return [tuple(r.values()) for r in plain.sql(statement, params=params).to_arrow_table().to_pylist()]


def hosts() -> pa.Table:
    """Make a table to join with, which lacks some keys and has one twice."""
    return pa.table({"id": [0, 1, 1, 2], "name": ["zero", "one", "uno", "two"]})


def stamp(time: int) -> str:
    """Write a time for a window clause."""
    return windrow.times.to_datetime(time).strftime("%Y-%m-%d %H:%M:%S.%f")  # type: ignore[attr-defined]


AGGREGATES = (
    "count(*)", "sum(k)", "sum(v)", "avg(v)", "min(s)", "max(ts)", "count(s)", "stddev(v)", "median(k)",
    "quantile_cont(v, 0.25)", "approx_count_distinct(n)", "bool_or(k > 1)", "sum(k) FILTER (WHERE v > 0)",
    "count(*) FILTER (v IS NULL)", "max(n) - min(n)", "sum(v) / count(*)", "coalesce(sum(k), -1)",
    "CASE WHEN count(*) > 3 THEN 'many' ELSE 'few' END", "regr_slope(v, n)", "corr(v, n)", "var_pop(k)",
    "max(n)::VARCHAR || '!'", "[min(n), max(n)]", "bit_xor(n)", "sum(k + n) BETWEEN 3 AND 300",
)  # fmt: skip
GROUPS = ("k", "s", "k, s", "k + 1", "date_trunc('minute', ts)", "s || 'x'", "p.k", "k % 2, s IS NULL", "")
# Not `s IS DISTINCT FROM 'a'`: from a plain Parquet chunk of nothing but 'a' and NULL, DuckDB 2.0.0 reads 'a' as NULL.
FILTERS = (
    "", "v > 0", "k IN (1, 2, 3)", "n IS DISTINCT FROM 7", "n % 3 <> 1 AND (k IS NULL OR k < 3)", "k = 1", "k = $1",
)  # fmt: skip
NOT_SPLIT = (
    "SELECT k, n FROM {p} WHERE v > 0 ORDER BY n",
    "SELECT count(DISTINCT k) FROM {p}",
    "SELECT mode(k) FROM {p} WHERE k = 1",
    "SELECT a.k, count(*) FROM {p} JOIN {q} ON a.k = b.k GROUP BY 1 ORDER BY 1",
    "SELECT count(*) FROM (SELECT DISTINCT k, s FROM {p})",
    "WITH w AS (SELECT * FROM {p}) SELECT s, sum(n) FROM w GROUP BY s ORDER BY s",
    "SELECT k, sum(n) FROM {p} GROUP BY ROLLUP (k) ORDER BY ALL",
    "SELECT h.name, count(n) FROM hosts h LEFT JOIN {p} ON a.k = h.id GROUP BY h.name ORDER BY 1",
    "SELECT list(n ORDER BY n) FROM {p}",
)
"""Statements that are not computed slot by slot; `latest` must be right about them too."""


def statement(chance: random.Random) -> tuple[str, list[Any] | None]:
    """An aggregate statement with ``{p}`` for the stream and its clause, and its parameters."""
    groups = chance.choice(GROUPS)
    items = chance.sample(AGGREGATES, chance.randint(1, 4))
    joined = "{p} AS p" + (" JOIN hosts h ON h.id = p.k" if chance.random() < 0.2 else "")
    where = chance.choice(FILTERS)
    selected = [f"{item} AS c{number}" if chance.random() < 0.5 else item for number, item in enumerate(items)]
    by = ""
    if groups:
        form = chance.choice(("written", "positions", "all", "aliases"))
        columns = groups.split(", ") if "(" not in groups else [groups]
        if form == "aliases":
            selected = [f"{c} AS g{number}" for number, c in enumerate(columns)] + selected
            by = ", ".join(f"g{number}" for number in range(len(columns)))
        else:
            selected = [*columns, *selected]
            by = {"written": groups, "positions": ", ".join(str(n + 1) for n in range(len(columns))), "all": "ALL"}[
                form
            ]
    text = f"SELECT {', '.join(selected)} FROM {joined}" + (f" WHERE {where}" if where else "")
    text += f" GROUP BY {by}" if by else ""
    text += chance.choice(("", "", " HAVING count(*) > 1", " HAVING sum(n) > 20 AND count(*) < 30"))
    text += f" ORDER BY {', '.join(str(n + 1) for n in range(len(selected)))}" if chance.random() < 0.5 else ""
    return text, [2] if "$1" in where else None


def assert_same(answer: list[tuple[Any, ...]], expected_rows: list[tuple[Any, ...]], description: str) -> None:
    """The same rows in any order; sums of floats up to rounding."""
    assert len(answer) == len(expected_rows), f"{description}: {answer} instead of {expected_rows}"
    for one, other in zip(sorted(answer, key=_order), sorted(expected_rows, key=_order), strict=True):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert _close(a, b), f"{description}: {one} instead of {other}"


def _order(row: tuple[Any, ...]) -> str:
    return repr([round(v, 3) if isinstance(v, float) else v for v in row])


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


# -- Several processes: rows follow from their slot's number, so every process knows the state of every slide. --------

SPAN, LIVES = 4, 6
"""Slots of the window that readers ask for, and the longest life of a row."""
GROUPED = f"SELECT k, count(*), sum(n) FROM numbered [WINDOW {SPAN * DELTA} MICROSECONDS] GROUP BY k ORDER BY k"
WHOLE = f"SELECT n FROM numbered [WINDOW {SPAN * DELTA} MICROSECONDS] ORDER BY n"


def numbered(slot: int) -> list[tuple[int, int, int, int]]:
    """What is appended before slide `slot`, as (ts, exp, k, n): in time, late, and ahead of the clock."""
    chance = random.Random(slot)
    rows = []
    for number in range(12):
        time = BASE + (slot - chance.choice((1, 1, 1, 2, -1, -2))) * DELTA + chance.randint(1, DELTA)
        rows.append((time, time + chance.randint(1, LIVES * DELTA), number % 3, slot * 100 + number))
    return rows


def state_at(slide: int) -> list[tuple[int, int]]:
    """(k, n) of the rows in the window at a slide."""
    now = BASE + slide * DELTA
    rows = []
    for slot in range(max(1, slide - LIVES - 3), slide + 1):
        appended_at = BASE + (slot - 1) * DELTA  # rows that were dead when they were appended are rejected
        first = slot == 1
        rows += [
            (k, n)
            for ts, exp, k, n in numbered(slot)
            if ts <= now < exp and ts > now - SPAN * DELTA and (first or exp > appended_at)
        ]
    return rows


def answer_at(text: str, slide: int) -> list[tuple[Any, ...]]:
    """What a statement must give at a slide."""
    rows = state_at(slide)
    if text == WHOLE:
        return sorted((n,) for _, n in rows)
    keys = sorted({k for k, _ in rows})
    return [(k, sum(o == k for o, _ in rows), sum(n for o, n in rows if o == k)) for k in keys]


def write_numbered(path: str, stop: str, log: str) -> None:
    """Slide on until told to stop; writes down which commit each slide was."""
    from windrow.append import find_stream

    schema = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("n", pa.int64())])
    slot = 0
    with windrow.open(path, clock=lambda: CLOCK + 10**12) as wh, Path(log).open("a", buffering=1) as book:
        while not Path(stop).exists():
            slot += 1
            wh.append(
                "numbered", pa.table([list(column) for column in zip(*numbered(slot), strict=True)], schema=schema)
            )
            wh.slide("numbered", to=when(BASE + slot * DELTA))
            _, state = wh._store.catalog.read(lambda tables: find_stream(tables, "numbered"))
            book.write(f"{slot} {state.manifest}\n")


def create_numbered(path: str, layout: str) -> None:
    """The warehouse that `write_numbered` writes to."""
    schema = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("n", pa.int64())])
    with windrow.open(path) as wh:
        wh.create_stream(
            "numbered", schema, time="ts", key="k", slide=f"{DELTA} microseconds", expires="exp",
            max_lifetime=f"{LIVES * DELTA} microseconds", index=LAYOUTS[layout],
        )  # fmt: skip


class ReaderObservation(NamedTuple):
    """One answer that `read_numbered` was given."""

    level: str
    text: str
    slide: int
    version: int | None
    """The last commit at the final check."""
    stale: float
    """In slides."""
    rounds: int
    """How often a query that is computed slot by slot looked for slides; 0 for others."""


def read_numbered(path: str, rounds: int, queue: Any) -> None:
    """Run statements at every level again and again; report a `ReaderObservation` of each."""
    from windrow.queries import incremental

    incremental.READ_BYTES = 1
    observations, works = [], []
    real = incremental.IncrementalAggregation.run
    incremental.IncrementalAggregation.run = lambda self: (works.append(self), real(self))[1]
    base = BASE // DELTA
    with windrow.open(path, clock=lambda: CLOCK + 10**12) as wh:
        while wh.stream("numbered").slide is None:
            pass
        for turn in range(rounds):
            for level in ("snapshot", "latest", "serial"):
                text = (GROUPED, WHOLE)[turn % 2]
                works.clear()
                answer = wh.sql(text, isolation=level, timeout=60)
                slide = answer.windows[0].slide - base
                if level == "serial" and wh.stream("numbered").slide - base != slide:
                    raise AssertionError("a slide did not wait for a serial query")
                rows = answer.fetchall()
                if rows != answer_at(text, slide):
                    raise AssertionError(
                        f"{level}: not the state of slide {slide}: {rows} but {answer_at(text, slide)}"
                    )
                looks = works[-1].rounds if works else 0
                stale = answer.staleness.total_seconds() * 1e6 / DELTA
                observations.append(ReaderObservation(level, text, slide, answer.version, stale, looks))
    queue.put(observations)
