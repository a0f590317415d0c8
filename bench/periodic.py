"""`bench periodic`: 240 periodic queries after one slide, beside the same SQL computed from scratch.

Answers are compared with DuckDB over the same rows. The policies are those of section 8.5 of [1] (docs/references.md).
"""

import random
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import windrow
from bench import machine, plots, report
from bench.measures import Timing
from bench.periodic_schedules import COUNTS, RATES, Outcome, counted, experiment, gains
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.catalog.records import Pace, QueryEntry
from windrow.queries.periodic import evaluation, registry, result_store, scheduler
from windrow.queries.periodic.definition import KEEP_RUNS, RUN_COLUMNS
from windrow.queries.synopses import synopsis_choice
from windrow.snapshot import Snapshot
from windrow.times import to_datetime

DELTA = 10_000_000
SLOTS = 100
SCHEMA = pa.schema(
    [("ts", pa.timestamp("us")), ("src", pa.int32()), ("dst", pa.int32()), ("proto", pa.int16()), ("port", pa.int32()),
     ("len", pa.int32())]
)  # fmt: skip
TOP = "SELECT {keys}, sum(len) AS bytes FROM {window} GROUP BY {keys} ORDER BY bytes DESC, {keys} LIMIT {k}"
GROUPS = {
    "source": TOP.replace("{keys}", "src"),
    "destination": TOP.replace("{keys}", "dst"),
    "source and destination": TOP.replace("{keys}", "src, dst"),
    "protocol": TOP.replace("{keys}", "proto"),
    "port": TOP.replace("{keys}", "port"),
    "protocol and port": TOP.replace("{keys}", "proto, port"),
    "quantiles by protocol": "SELECT proto, median(len) AS mid, quantile_cont(len, 0.95) AS high FROM {window} "
    "GROUP BY proto ORDER BY proto",
    "quantiles": "SELECT quantile_disc(len, 0.5) AS mid, quantile_disc(len, 0.99) AS high FROM {window}",
}
"""Top-k lists and quantiles over bandwidth, as in [1], with ties in an order that all systems share."""


@dataclass(frozen=True)
class Query:
    """A periodic query."""

    group: str
    name: str
    sql: str
    window: int


@dataclass
class SlidStream:
    """A stream that has slid for a whole window, and its live rows."""

    wh: windrow.Warehouse
    per_slot: int
    slot: int = 0
    live: list[pa.Table] = field(default_factory=list)
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(8))

    def make(self, back: int = 0) -> pa.Table:
        """The rows of the next slot, sorted by time; with `back`, rows of one so many slots before the last."""
        count, chance = self.per_slot, self.chance
        slot = self.slot - back
        ts = ORIGIN + slot * DELTA + 1 + chance.integers(0, DELTA, count)
        columns = [chance.integers(0, 1000, count), chance.integers(0, 1000, count), chance.integers(0, 100, count),
                   chance.integers(0, 100, count), chance.integers(40, 1500, count)]  # fmt: skip
        arrays = [pa.array(np.sort(ts)).view(SCHEMA.field(0).type)]
        arrays += [
            pa.array(values.astype(f.type.to_pandas_dtype()))
            for values, f in zip(columns, list(SCHEMA)[1:], strict=True)
        ]
        self.slot += not back
        return pa.table(arrays, schema=SCHEMA)

    def slide(self) -> tuple[float, float]:
        """Append a slot and slide; gives the seconds of both."""
        rows = self.make()
        self.live = [*self.live[-(SLOTS - 1) :], rows]
        started = time.perf_counter()
        self.wh.append("packets", rows)
        appended = time.perf_counter()
        self.wh.slide("packets", to=to_datetime(ORIGIN + self.slot * DELTA))
        return appended - started, time.perf_counter() - appended


def queries(count: int) -> list[Query]:
    """So many queries in eight groups, windows of 20 to 100 slots, all of them due at every slide."""
    chance, chosen = random.Random(7), []
    for group, text in GROUPS.items():
        for number in range(count // len(GROUPS)):
            window = chance.randint(20, 100)
            clause = f"packets [WINDOW {window * 10} SECONDS SLIDE 10 SECONDS]"
            sql = text.format(window=clause, k=chance.choice((5, 10, 20)))
            chosen.append(Query(group, f"{group.replace(' ', '_')}_{number}", sql, window))
    return chosen


def register(
    world: SlidStream, added: Sequence[Query], revise: Mapping[str, int] = MappingProxyType({})
) -> list[QueryEntry]:
    """Put the queries down at once, and let their synopses be filled together; `revise` as of `add_query`, by name."""
    store = world.wh._store
    firsts = {query.group: query.sql for query in reversed(added)}
    columns = {
        group: result_store.to_storable_schema(world.wh.sql(sql).arrow().schema).serialize().to_pybytes()
        for group, sql in firsts.items()
    }
    with store.catalog.write() as tables:
        stream = tables.get("streams", b"packets").id
        for query in added:
            pace = Pace(stream="packets", stream_id=stream, window=query.window * DELTA, period=1)
            entry = QueryEntry(
                id=0, name=query.name, sql=query.sql, paces=(pace,), reads=("packets",), keep_runs=KEEP_RUNS,
                schema_bytes=columns[query.group], created=0, created_slides={}, revise=revise.get(query.name),
            )  # fmt: skip
            registry.record_query(tables, entry)
    synopsis_choice.reconcile_stream(store, "packets")
    return store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])


def _clock(operation: Callable[[], Any]) -> tuple[Timing, Any]:
    """Run an operation, with whatever the garbage collector does meanwhile."""
    cpu, wall = time.process_time(), time.perf_counter()
    done = operation()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu), done


def answers(world: SlidStream, entries: Sequence[QueryEntry]) -> tuple[Timing, dict[str, pa.Table]]:
    """All queries after a slide; gives the time and the rows."""
    store = world.wh._store
    with Snapshot(store, ["packets"]) as snapshot:
        timing, found = _clock(lambda: list(evaluation.answer_due(store, snapshot, entries)))
    return timing, {answer.query: answer.rows for answer in found if answer.rows is not None}


def delivered(world: SlidStream, registered: Sequence[Query]) -> tuple[Timing, dict[str, pa.Table]]:
    """The same as `run_due` does it, with a results table for each; gives the time and the rows."""
    timing, done = _clock(world.wh.run_due)
    runs = {run.query: run for run in done}
    if len(runs) != len(registered) or any(r.outcome != "delivered" for r in runs.values()):
        raise WrongAnswerError("a query was not delivered")
    stored = {name: world.wh.results(name, slide=run.slide).arrow() for name, run in runs.items()}
    return timing, {name: rows.select(rows.column_names[len(RUN_COLUMNS) :]) for name, rows in stored.items()}


def from_scratch(world: SlidStream, compared: Sequence[Query], *ours: dict[str, pa.Table]) -> dict[str, Timing]:
    """The same SQL over a native table of the same rows, sorted by time; times by group. Answers must be the same."""
    now, spent = ORIGIN + world.slot * DELTA, dict.fromkeys(GROUPS, Timing(0.0, 0.0))
    with duckdb.connect() as plain:
        plain.register("rows", pa.concat_tables(world.live))
        plain.execute("CREATE TABLE packets AS FROM rows ORDER BY ts")
        for query in compared:
            window = f"(FROM packets WHERE ts > make_timestamp({now - query.window * DELTA})) AS p"
            sql = re.sub(r"packets \[.*?\]", window, query.sql)
            timing, rows = _clock(lambda text=sql: plain.sql(text).to_arrow_table())  # type: ignore[misc]
            before = spent[query.group]
            spent[query.group] = Timing(before.wall + timing.wall, before.cpu + timing.cpu)
            for expected in ours:
                if not _same(expected[query.name].to_pylist(), rows.to_pylist()):
                    raise WrongAnswerError(
                        f"{query.sql}: {expected[query.name].to_pylist()[:2]} {rows.to_pylist()[:2]}"
                    )
    return spent


def _same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    pairs = zip((v for row in one for v in row.values()), (v for row in other for v in row.values()), strict=True)
    return all(a == b or abs(float(a) - float(b)) <= 1e-9 * abs(float(b)) for a, b in pairs)


def clickhouse(world: SlidStream, compared: Sequence[Query], folder: Path) -> tuple[float, int] | str:
    """ClickHouse with an aggregating view for each top-k group: seconds and how many queries, or why not."""
    try:
        import chdb
    except ImportError:
        return "chdb is not installed"
    views = {"source": "src", "destination": "dst", "source and destination": "src, dst", "protocol": "proto",
             "port": "port", "protocol and port": "proto, port"}  # fmt: skip
    connection = chdb.connect(str(folder / "clickhouse"))
    connection.query("CREATE TABLE packets (slot Int64, src Int32, dst Int32, proto Int16, port Int32, len Int32) "
                     "ENGINE = MergeTree ORDER BY slot")  # fmt: skip
    for number, keys in enumerate(views.values()):
        connection.query(
            f"CREATE MATERIALIZED VIEW v{number} ENGINE = AggregatingMergeTree ORDER BY (slot, {keys}) "
            f"AS SELECT slot, {keys}, sumState(len) AS bytes FROM packets GROUP BY slot, {keys}"
        )
    for number, rows in enumerate(world.live):
        file = folder / "rows.parquet"
        slot = pa.array(np.full(rows.num_rows, world.slot - len(world.live) + number + 1))
        import pyarrow.parquet as pq

        pq.write_table(rows.drop_columns(["ts"]).add_column(0, "slot", slot), file)
        connection.query(f"INSERT INTO packets SELECT * FROM file('{file}', Parquet)")
    shared = [query for query in compared if query.group in views]
    started = time.perf_counter()
    for query in shared:
        keys, number = views[query.group], list(views).index(query.group)
        limit = query.sql.rsplit(" ", 1)[1]
        connection.query(
            f"SELECT {keys}, sumMerge(bytes) AS bytes FROM v{number} WHERE slot > {world.slot - query.window} "
            f"GROUP BY {keys} ORDER BY bytes DESC, {keys} LIMIT {limit}", "Arrow"
        )  # fmt: skip
    seconds = time.perf_counter() - started
    connection.close()
    return seconds, len(shared)


def bench(*, quick: bool, results: Results, scratch: Path, advance: Callable[[str], None]) -> tuple[str, list[Aim]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    host = machine.describe(scratch)
    measured = _measure_queries(1_000_000 if quick else 5_000_000, scratch, advance)
    schedules = experiment(counted, 200 if quick else 400, advance)
    aims = _list_aims(measured, schedules)
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims), *_describe(measured)]
    parts += ["### The experiment of section 8.5", _ABOUT, *_tables(schedules), *_plots(schedules)]
    parts += ["### Hybrid's throughput / conservative's", _GAINS, _gains_table(200 if quick else 400)]
    figures = {f"{rate} {count}": {p: vars(o) for p, o in of.items()} for (rate, count), of in schedules.items()}
    results.write("periodic", {"machine": host, "standing": measured, "schedules": figures, "wanted": verdicts(aims)})
    return "\n\n".join(parts), aims


def work(*, quick: bool) -> int:  # noqa: ARG001 - every bench is asked
    """How many times `advance` will be called."""
    return 4 + len(COUNTS) * len(RATES)


def _measure_queries(rows: int, scratch: Path, advance: Callable[[str], None]) -> dict[str, Any]:
    """Measure 240 periodic queries over 100 slots."""
    asked = queries(240)
    with TemporaryDirectory(dir=scratch) as folder:
        wh = windrow.open(Path(folder) / "w", clock=lambda: ORIGIN + 100_000 * DELTA)
        wh.create_stream("packets", SCHEMA, time="ts", slide="10 seconds", lifetime="1000 seconds")
        world = SlidStream(wh, rows // SLOTS)
        for _ in range(SLOTS):
            world.slide()
        bare = [world.slide() for _ in range(10)]
        advance("a window of rows")
        entries = register(world, asked)
        world.slide()
        delivered(world, asked)
        followed, spent, ran, given, kept = [], [], [], {}, {}
        for _ in range(5):
            followed.append(world.slide())
            timing, given = answers(world, entries)
            spent.append(timing)
            followed.append(world.slide())
            timing, kept = delivered(world, asked)
            ran.append(timing)
        timing, given = answers(world, entries)
        advance("answers from synopses")
        scratched = from_scratch(world, asked, given, kept)
        advance("answers from scratch")
        peer = clickhouse(world, asked, Path(folder))
        advance("ClickHouse")
        wh.close()
    median = statistics.median
    return {
        "rows": rows,
        "ours": median(timing.wall for timing in spent),
        "run_due": median(timing.wall for timing in ran),
        "scratch": {group: timing.wall for group, timing in scratched.items()},
        "processor": {
            "ours": median(timing.cpu for timing in spent),
            "run_due": median(timing.cpu for timing in ran),
            "scratch": sum(timing.cpu for timing in scratched.values()),
        },
        "clickhouse": peer,
        "followed append": median(a for a, _ in followed),
        "bare slide": median(s for _, s in bare),
        "bare append": median(a for a, _ in bare),
        "followed slide": median(s for _, s in followed),
    }


def _list_aims(measured: dict[str, Any], schedules: dict[tuple[int, int], dict[str, Outcome]]) -> list[Aim]:
    scratch, processor = sum(measured["scratch"].values()), measured["processor"]
    bare, followed = measured["bare slide"], measured["followed slide"]
    both = bare + measured["bare append"]
    followed_both = followed + measured["followed append"]
    aims = [
        Aim("240 answers after a slide / from scratch in DuckDB", measured["ours"] / scratch, 1 / 50),
        Aim("the same delivered by run_due / from scratch in DuckDB", measured["run_due"] / scratch, 1 / 50),
        Aim("240 answers after a slide, processor time", processor["ours"] / processor["scratch"], 1 / 50),
        Aim("the same delivered by run_due, processor time", processor["run_due"] / processor["scratch"], 1 / 50),
        Aim("what eight synopses add to a slide, share of the slide", (followed - bare) / bare, 0.5),
        Aim("what they add to append and slide, share of both", (followed_both - both) / both, 0.5),
    ]
    if not isinstance(measured["clickhouse"], str):
        seconds, count = measured["clickhouse"]
        aims.append(Aim(f"all 240 answers / ClickHouse's {count} of them", measured["ours"] / seconds, 1.0))
    for rate, count in ((RATES[0], 40), (RATES[0], 240)):
        of = schedules[rate, count]
        ratio = of["conservative"].throughput / of["hybrid"].throughput
        aims.append(Aim(f"conservative / hybrid, throughput, {count} queries, {rate} rows", ratio, 0.5))
    of = schedules[RATES[1], 240]
    ratio = of["hybrid"].throughput / of["hybrid+late-pending"].throughput
    return [*aims, Aim("hybrid / hybrid+late-pending, throughput, 240 queries, 3000 rows", ratio, 0.5)]


def _describe(measured: dict[str, Any]) -> list[str]:
    scratch = sum(measured["scratch"].values())
    peer = measured["clickhouse"]
    rows = [["from synopses, all 240", f"{measured['ours'] * 1000:,.0f}", "1"]]
    due = measured["run_due"]
    rows.append(["and delivered to 240 results tables", f"{due * 1000:,.0f}", f"{due / measured['ours']:.1f}"])
    rows.append(["from scratch in DuckDB", f"{scratch * 1000:,.0f}", f"{scratch / measured['ours']:.0f}"])
    if isinstance(peer, str):
        rows.append(["ClickHouse", peer, ""])
    else:
        rows.append(
            [f"ClickHouse, the {peer[1]} top-k lists", f"{peer[0] * 1000:,.0f}", f"{peer[0] / measured['ours']:.1f}"]
        )
    by_group = [[name, f"{seconds * 1000:,.0f}"] for name, seconds in measured["scratch"].items()]
    slides = [
        [what, f"{measured[name] * 1000:,.1f}"]
        for what, name in (
            ("append", "bare append"),
            ("append with eight synopses", "followed append"),
            ("slide", "bare slide"),
            ("slide with eight synopses", "followed slide"),
        )
    ]
    return [
        f"### 240 standing queries, 100 slots, {measured['rows']:,} rows",
        report.table(["all answers after one slide", "ms", "times ours"], rows),
        f"From scratch takes {scratch / due:.0f} times as long as `run_due`, which also makes them durable, each once.",
        report.table(["from scratch, 30 queries each", "ms"], by_group),
        report.table(["one slot of rows", "ms"], slides),
    ]


_ABOUT = """Eight groups of top-k lists and quantiles, windows of 20 to 100 slots, periods up to half of that. Time is
virtual: an execution costs the counters that it touches, and a slide takes as long as makes 40 queries without sharing
1.2 times too many. The thesis says that hybrid doubles the throughput of conservative at the low rate with half as
many tasks, and that late-pending sharing more than doubles hybrid under heavy overload; also that aggressive scheduling
falls back at the high rate, which it does not do here: nothing but merges and finishing is counted."""


_GAINS = """The thesis says that hybrid easily doubles conservative at the low rate. Whether it does depends on what
finishing an answer costs, which no schedule shares and the thesis does not tell: here as a share of touching every
counter of the window once."""


def _gains_table(slides: int) -> str:
    rows = [[f"{finishing:g}", *map("{:.2f}".format, factors)] for finishing, factors in gains(slides).items()]
    return report.table(["finishing", *(f"{count} queries" for count in COUNTS)], rows)


def _tables(schedules: dict[tuple[int, int], dict[str, Outcome]]) -> list[str]:
    tables = []
    for title, value in (
        ("throughput, queries per slide", "throughput"),
        ("latency, slides", "latency"),
        ("tasks", "tasks"),
    ):
        rows = []
        for (rate, count), of in schedules.items():
            rows.append([f"{rate}", f"{count}", *(f"{getattr(of[p], value):,.1f}" for p in scheduler.POLICIES)])
        tables += [f"**{title}**", report.table(["rows a slide", "queries", *scheduler.POLICIES], rows)]
    return tables


def _plots(schedules: dict[tuple[int, int], dict[str, Outcome]]) -> list[str]:
    drawn = []
    for rate in RATES:
        for value, unit in (("throughput", "queries per slide"), ("latency", "slides")):
            series = {
                policy: [(float(count), float(getattr(schedules[rate, count][policy], value))) for count in COUNTS]
                for policy in scheduler.POLICIES
            }
            title = f"{value.capitalize()} of six policies, {rate} rows a slide"
            drawn.append(plots.lines(f"periodic-{value}-{rate}", title, series, x="standing queries", y=unit))
    return drawn
