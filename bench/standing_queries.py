"""`bench standing`: hundreds of standing queries that share little, after each slide, beside DuckDB from scratch.

A third of them has joins, window functions or nested aggregates. Beside them the queries of one template, which share
all, and slides of one second with a query over windows from an hour on. Only the public interface is used.
"""

import datetime as dt
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import windrow
from bench.generators import SECOND, Draw, Packets, WebEvents
from bench.measures import Timing, timed
from bench.query_grammar import CUT, SHARED, WHOLE, Grammar, StandingQuery
from bench.runner import WrongAnswerError
from bench.seeded import Lines, Measured, SeededBench, compare
from bench.standing_joins import measure_join
from bench.statistics import Aim
from bench.stores import Ours
from bench.workload import ORIGIN
from windrow.indexes.arrow_arrays import to_numpy
from windrow.times import to_datetime

SLOTS = 60
RUN_COLUMNS = ("_slide", "_window_start", "_window_end", "_complete", "_coverage", "_staleness")


@dataclass(frozen=True)
class Size:
    """How much is asked.

    Args:
        rows: Live rows of the smaller window.
        queries: Of all kinds, over the smaller window.
        large_rows: Live rows of the larger window.
        large_queries: Of each kind, over the larger window; of one template four times as many.
        slides: How many are measured.
        lives: Seconds that rows of the stream with one-second slides live.
        keys: Of which the heaviest are asked for.
    """

    rows: int
    queries: int
    large_rows: int
    large_queries: int
    slides: int
    lives: tuple[int, ...]
    keys: int


QUICK = Size(60_000, 30, 120_000, 12, 2, (600, 6000), 20_000)
FULL = Size(180_000, 1000, 5_000_000, 240, 3, (3600, 86_400, 30 * 86_400), 1_000_000)
COLUMNS = ("slide", "answers", "both, CPU", "from scratch", "from scratch, CPU", "ratio", "CPU ratio")


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return 3 * (6 + len((QUICK if quick else FULL).lives))


def _measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    measured = Measured()
    about = f"After a slide; {SLOTS} slots, milliseconds, medians of {size.slides} slides. Answers are delivered by run_due."
    table = Lines(
        "Standing queries", about, (*COLUMNS, "registering, first", "registering, last", "bytes / window's"), "ratio"
    )
    measured.tables.append(table)
    shape = WebEvents(seed, SLOTS)
    grammar = Grammar(shape, Draw(seed, 5), SLOTS)
    mixed, large = grammar.queries(size.queries), grammar.queries(3 * size.large_queries)
    sets = {
        f"all kinds, {size.rows:,} rows": (mixed, size.rows),
        f"{CUT}, {size.large_rows:,} rows": (
            [q for q in large if q.kind == CUT][: size.large_queries],
            size.large_rows,
        ),
        f"{WHOLE}, {size.large_rows:,} rows": ([q for q in large if q.kind == WHOLE], size.large_rows),
        f"{SHARED}, {size.large_rows:,} rows": (grammar.shared(4 * size.large_queries), size.large_rows),
    }
    limits = (1.0, 0.2, 1.0, 1 / 50)
    for (label, (queries, rows)), limit in zip(sets.items(), limits, strict=True):
        advance(label)
        line = Stream(shape, rows // SLOTS, folder / label.split(",")[0].replace(" ", "-")).measure(
            queries, size.slides
        )
        table.lines[f"{len(queries)} {label}"] = line
        shared = queries[0].kind == SHARED
        what, ratio = (
            ("answers", line["answers"] / line["from scratch"]) if shared else ("slide and answers", line["ratio"])
        )
        measured.aims += [
            Aim(f"{len(queries)} {label}: {what} / from scratch", ratio, limit),
            Aim(
                f"{len(queries)} {label}: registering the last / the first",
                line["registering, last"] / line["registering, first"],
                1.5,
            ),
            Aim(f"{len(queries)} {label}: bytes that they add / the window's", line["bytes / window's"], 1.0),
        ]
    _measure_growth(size, seed, folder, measured, advance)
    _measure_top(size, seed, folder, measured, advance)
    advance("aggregates over a join")
    measure_join(size.large_rows // 5, size.slides, seed, folder, measured)
    return measured


class Stream:
    """A stream of page views that has slid for a whole lifetime, with its live rows beside it."""

    def __init__(self, shape: WebEvents, per_slot: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.shape, self.per_slot, self.slot = shape, per_slot, 0
        self.store = Ours(folder, [shape.definition])
        self.live: list[pa.Table] = []
        self.places = pa.table(
            {"country": shape.countries, "zone": [f"zone {n % 7}" for n in range(len(shape.countries))]}
        )
        self.store.put_table("places", self.places)
        for _ in range(SLOTS):
            self.slide()

    def slide(self) -> Timing:
        """Append the rows of a slot and slide."""
        self.slot += 1
        rows = self.shape.batch(self.slot, self.per_slot)
        self.live = [*self.live[-(SLOTS - 1) :], rows]
        return timed(lambda: self.store.update(self.shape.name, rows, self.shape.definition.now(self.slot)))[0]

    def measure(self, queries: Sequence[StandingQuery], slides: int) -> dict[str, float]:
        """Register, slide, answer, and compare with DuckDB."""
        wh, before = self.store.warehouse, self.store.space()
        registering = []
        for query in queries:
            clause = f"views [WINDOW {query.window} SECONDS SLIDE 1 SECOND]"
            registering.append(timed(lambda q=query, c=clause: wh.add_query(q.name, q.sql(c)))[0].wall)  # type: ignore[misc]
        self.slide()
        wh.run_due()
        slid, answered, scratch = [], [], []
        for _ in range(slides):
            slid.append(self.slide())
            timing, runs = timed(wh.run_due)
            answered.append(timing)
            scratch.append(self._from_scratch(queries, {run.query: run for run in runs}))
        added = self.store.space() - before
        window = wh.stream(self.shape.name).bytes
        self.store.close()
        median = statistics.median
        both = median(s.wall + a.wall for s, a in zip(slid, answered, strict=True))
        cpu = median(s.cpu + a.cpu for s, a in zip(slid, answered, strict=True))
        wall, other = median(s.wall for s in scratch), median(s.cpu for s in scratch)
        few = max(1, min(5, len(registering) // 3))
        return {
            "slide": 1e3 * median(s.wall for s in slid),
            "answers": 1e3 * median(a.wall for a in answered),
            "both, CPU": 1e3 * cpu,
            "from scratch": 1e3 * wall,
            "from scratch, CPU": 1e3 * other,
            "ratio": both / wall,
            "CPU ratio": cpu / other,
            "registering, first": 1e3 * median(registering[1 : 1 + few] or registering),
            "registering, last": 1e3 * median(registering[-few:]),
            "bytes / window's": added / window,
        }

    def _from_scratch(self, queries: Sequence[StandingQuery], runs: dict[str, Any]) -> Timing:
        """All queries over a table of the live rows; the rows that come and go are not counted. Answers must agree."""
        now, wall, cpu = self.shape.definition.now(self.slot), 0.0, 0.0
        with duckdb.connect() as plain:
            plain.register("given", pa.concat_tables(self.live))
            plain.execute("CREATE TABLE views AS FROM given ORDER BY ts")
            plain.register("places", self.places)
            for query in queries:
                sql = query.sql(f"(FROM views WHERE ts > make_timestamp({now - query.window * SECOND})) AS views")
                timing, rows = timed(lambda s=sql: plain.sql(s).to_arrow_table())  # type: ignore[misc]
                wall, cpu = wall + timing.wall, cpu + timing.cpu
                run = runs.get(query.name)
                if run is None or run.outcome != "delivered":
                    raise WrongAnswerError(f"{query.text}: not delivered ({run})")
                ours = self.store.warehouse.results(query.name, slide=run.slide).arrow()
                compare(query.text, ours.select([n for n in ours.column_names if n not in RUN_COLUMNS]), rows)
        return Timing(wall, cpu)


def _measure_growth(size: Size, seed: int, folder: Path, measured: Measured, advance: Callable[[str], None]) -> None:
    """Slides of one second with one query over ever longer lives: the cost must not follow them."""
    table = Lines("A slide of ten rows with a query over all of them", "By seconds that rows live, one row in each at first; milliseconds.",
                  ("slide p50", "slide most", "CPU", "with run_due, CPU"), "CPU")  # fmt: skip
    shape, figures = Packets(seed, 1), []
    for life in size.lives:
        advance(f"rows that live {life} seconds")
        with windrow.open(folder / f"life-{life}") as wh:
            wh.create_stream(
                "packets",
                shape.definition.schema,
                time="ts",
                key="src",
                slide="1 second",
                lifetime=dt.timedelta(seconds=life),
            )
            rows = shape.batch(1, life)
            spread = pa.array(range(ORIGIN + SECOND, ORIGIN + (life + 1) * SECOND, SECOND)).view(pa.timestamp("us"))
            wh.append("packets", rows.set_column(0, "ts", spread))
            wh.slide("packets", to=to_datetime(ORIGIN + life * SECOND))
            sql = f"SELECT proto, count(*) AS n, sum(len) AS bytes, max(len) AS most FROM packets [WINDOW {life} SECONDS SLIDE 1 SECOND] GROUP BY proto ORDER BY proto"
            wh.add_query("totals", sql)
            slides, answers = [], []
            for number in range(life + 1, life + 13):
                slid = shape.batch(number, 10)
                wh.append("packets", slid)
                slides.append(timed(lambda n=number, w=wh: w.slide("packets", to=to_datetime(ORIGIN + n * SECOND)))[0])  # type: ignore[misc]
                answers.append(timed(wh.run_due)[0])
            ours = wh.results("totals").arrow()
            last = ours.filter(pa.compute.equal(ours["_slide"], pa.compute.max(ours["_slide"])))
            if sum(last["n"].to_pylist()) != life - 12 + 120:
                raise WrongAnswerError(f"{sum(last['n'].to_pylist())} rows live, not {life + 108}")
        wall, cpu = [1e3 * t.wall for t in slides[2:]], [1e3 * t.cpu for t in slides[2:]]
        figures.append(statistics.median(cpu))
        table.lines[f"{life:,}"] = {
            "slide p50": statistics.median(wall), "slide most": max(wall), "CPU": figures[-1],
            "with run_due, CPU": figures[-1] + 1e3 * statistics.median(t.cpu for t in answers[2:]),
        }  # fmt: skip
    measured.tables.append(table)
    measured.aims.append(
        Aim("slide with a synopsis: longest life / shortest, processor time", figures[-1] / figures[0], 1.3)
    )


def _measure_top(size: Size, seed: int, folder: Path, measured: Measured, advance: Callable[[str], None]) -> None:
    """The ten heaviest of a million skewed keys, standing and asked once, with a summary and from scratch."""
    about = f"{size.large_rows:,} rows in {SLOTS} slots; medians of {size.slides} slides, in milliseconds of processor time."
    columns = ("slide", "run_due", "asked once", "from scratch", "scratch / run_due", "scratch / asked once")
    table = Lines(f"Ten heaviest of {size.keys:,} keys", about, columns, "run_due")
    draw, live = Draw(seed, 9), list[pa.Table]()
    schema = pa.schema([("ts", pa.timestamp("us")), ("src", pa.int64())])
    top = "SELECT src, count(*) AS n FROM {} GROUP BY src ORDER BY n DESC, src LIMIT 10"
    advance(f"the heaviest of {size.keys:,} keys")
    with windrow.open(folder / "top") as wh:
        wh.create_stream(
            "packets", schema, time="ts", key="src", slide="1 second", lifetime=dt.timedelta(seconds=SLOTS)
        )
        wh.create_summary("talkers", "SELECT src, count(*) AS n FROM packets GROUP BY src", frequent=64)
        slid, standing, asked, scratch = [], [], [], []
        for slot in range(1, SLOTS + size.slides + 1):
            end, count = ORIGIN + slot * SECOND, size.large_rows // SLOTS
            times = pa.array(draw.times(end - SECOND, SECOND, count)).cast(pa.int64()).view(pa.timestamp("us"))
            live = [*live[-(SLOTS - 1) :], pa.table([times, pa.array(draw.zipf(count, size.keys, 0.8))], schema=schema)]
            wh.append("packets", live[-1])
            slide = timed(lambda e=end: wh.slide("packets", to=to_datetime(e)))[0]  # type: ignore[misc]
            if slot == SLOTS:
                wh.add_query("top", top.format(f"packets [WINDOW {SLOTS} SECONDS SLIDE 1 SECOND]"))
                wh.run_due()
            if slot <= SLOTS:
                continue
            slid.append(slide)
            standing.append(timed(wh.run_due)[0])
            timing, once = timed(lambda: wh.sql(top.format(f"packets [WINDOW {SLOTS} SECONDS]")).arrow())
            asked.append(timing)
            with duckdb.connect() as plain:
                plain.register("given", pa.concat_tables(live))
                plain.execute("CREATE TABLE packets AS FROM given")
                timing, rows = timed(lambda p=plain: p.sql(top.format("packets")).to_arrow_table())  # type: ignore[misc]
                scratch.append(timing)
            delivered = wh.results("top", slide=wh.stream("packets").slide).arrow().select(["src", "n"])
            compare("top", delivered, rows)
            compare("top", once, rows)
    cpu = [1e3 * statistics.median(timing.cpu for timing in timings) for timings in (slid, standing, asked, scratch)]
    groups = len(np.unique(np.concatenate([to_numpy(rows.column("src")) for rows in live])))
    table.lines[f"{groups:,} groups"] = dict(zip(columns, (*cpu, cpu[3] / cpu[1], cpu[3] / cpu[2]), strict=True))
    measured.tables.append(table)
    measured.aims.append(Aim("ten heaviest groups with a summary, asked once / from scratch", cpu[2] / cpu[3], 1 / 50))


bench = SeededBench("standing", QUICK, FULL, _measure)
