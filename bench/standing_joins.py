"""Standing aggregates over one join of windows, for `bench standing`: requests and replies, beside DuckDB from scratch.

Eight statements are asked over five lengths of windows each. Only the public interface is used.
"""

import datetime as dt
import statistics
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import windrow
from bench.generators import SECOND
from bench.measures import Timing, timed
from bench.seeded import Lines, Measured, compare
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.times import to_datetime

SLOTS = 60
_RUN_COLUMNS = ("_slide", "_window_start", "_window_end", "_complete", "_coverage", "_staleness")
_STATEMENTS = (
    "SELECT count(*) AS n, sum(y.took) AS total, max(y.took) AS most FROM {join}",
    "SELECT x.path, count(*) AS n, sum(y.took) AS total FROM {join} GROUP BY x.path ORDER BY n DESC, x.path LIMIT 10",
    "SELECT y.status, count(*) AS n, avg(y.took) AS mean FROM {join} GROUP BY y.status ORDER BY y.status",
    "SELECT x.path, y.status, count(*) AS n FROM {join} GROUP BY x.path, y.status ORDER BY x.path, y.status",
    "SELECT x.client % 50 AS part, sum(x.bytes) AS bytes FROM {join} WHERE y.status = 500 GROUP BY part ORDER BY part",
    "SELECT x.path, max(y.took) - min(y.took) AS span FROM {join} GROUP BY x.path HAVING count(*) > 5 ORDER BY x.path",
    "SELECT count(*) AS slow FROM {join} WHERE y.took > 900",
    "SELECT y.status, min(y.took) AS a, max(y.took) AS z FROM {join} WHERE x.path < 10 GROUP BY y.status ORDER BY 1",
)
_LENGTHS = (10, 20, 30, 45, 60)
"""Of windows, in slots."""
_SCHEMAS = {
    "asked": pa.schema(
        [
            ("ts", pa.timestamp("us")),
            ("id", pa.int64()),
            ("path", pa.int32()),
            ("client", pa.int32()),
            ("bytes", pa.int32()),
        ]
    ),
    "told": pa.schema([("ts", pa.timestamp("us")), ("id", pa.int64()), ("status", pa.int32()), ("took", pa.int32())]),
}


def measure_join(rows: int, slides: int, seed: int, folder: Path, measured: Measured) -> None:
    """Slides and answers beside the same SQL from scratch, with so many rows in the window of each stream."""
    about = (
        f"{rows:,} requests and replies in {SLOTS} slots; medians of {slides} slides, processor time in milliseconds."
    )
    columns = ("slides", "run_due", "from scratch", "ratio")
    table = Lines("Aggregates over one join", about, columns, "ratio")
    chance = np.random.default_rng((seed, 11))
    live: dict[str, list[pa.Table]] = {name: [] for name in _SCHEMAS}
    queries = {f"q{n}_{length}": (text, length) for n, text in enumerate(_STATEMENTS) for length in _LENGTHS}
    slid, answered, scratch = [], [], []
    with windrow.open(folder / "join") as wh:
        for name, schema in _SCHEMAS.items():
            wh.create_stream(name, schema, time="ts", key="id", slide="1 second", lifetime=dt.timedelta(seconds=SLOTS))
        for slot in range(1, SLOTS + slides + 2):
            for name, came in _draw_rows(chance, slot, rows // SLOTS).items():
                live[name] = [*live[name][-(SLOTS - 1) :], came]
                wh.append(name, came)
            end = to_datetime(ORIGIN + slot * SECOND)
            timing = timed(lambda e=end: [wh.slide(name, to=e) for name in live])[0]  # type: ignore[misc]
            if slot == SLOTS:
                _register(wh, queries)
            answers, runs = timed(wh.run_due)
            if slot > SLOTS + 1:  # the first round decides what is kept
                slid.append(timing)
                answered.append(answers)
                scratch.append(_ask_from_scratch(wh, queries, live, slot, {run.query: run.slide for run in runs}))
    cpu = [1e3 * statistics.median(each.cpu for each in timings) for timings in (slid, answered, scratch)]
    ratio = (cpu[0] + cpu[1]) / cpu[2]
    table.lines[f"{len(queries)} queries"] = dict(zip(columns, (*cpu, ratio), strict=True))
    measured.tables.append(table)
    what = f"{len(queries)} aggregates over one join: slides and answers / from scratch, processor time"
    measured.aims.append(Aim(what, ratio, 0.1))


def _register(wh: windrow.Warehouse, queries: dict[str, tuple[str, int]]) -> None:
    for name, (text, length) in queries.items():
        clause = f"[WINDOW {length} SECONDS SLIDE 1 SECOND]"
        wh.add_query(name, text.format(join=f"asked {clause} x JOIN told {clause} y USING (id)"))


def _draw_rows(chance: np.random.Generator, slot: int, count: int) -> dict[str, pa.Table]:
    """The requests of a slot, and replies to requests of this slot and of those before."""
    times = ORIGIN + (slot - 1) * SECOND + 1 + np.sort(chance.integers(0, SECOND - 1, count))
    number = np.arange(slot * count, (slot + 1) * count)
    columns = {
        "asked": [
            number, chance.integers(0, 100, count), chance.integers(0, 10_000, count), chance.integers(0, 1500, count)
        ],
        "told": [
            np.maximum(number - chance.integers(0, 8 * count, count), count),
            chance.choice([200, 304, 404, 500], count),
            chance.integers(1, 1000, count),
        ],
    }  # fmt: skip
    tables = {}
    for name, schema in _SCHEMAS.items():
        values = [pa.array(each).cast(f.type) for each, f in zip(columns[name], list(schema)[1:], strict=True)]
        tables[name] = pa.table([pa.array(times).view(pa.timestamp("us")), *values], schema=schema)
    return tables


def _ask_from_scratch(
    wh: windrow.Warehouse,
    queries: dict[str, tuple[str, int]],
    live: dict[str, list[pa.Table]],
    slot: int,
    slides: dict[str, int],
) -> Timing:
    """All queries over tables of the live rows; the rows that come and go are not counted. Answers must agree."""
    wall = cpu = 0.0
    with duckdb.connect() as plain:
        for name, tables in live.items():
            plain.register("given", pa.concat_tables(tables))
            plain.execute(f"CREATE TABLE {name} AS FROM given")
        for name, (text, length) in queries.items():
            start = ORIGIN + (slot - length) * SECOND
            window = f"(FROM {{}} WHERE ts > make_timestamp({start}))"
            sql = text.format(join=f"{window.format('asked')} x JOIN {window.format('told')} y USING (id)")
            timing, rows = timed(lambda s=sql: plain.sql(s).to_arrow_table())  # type: ignore[misc]
            wall, cpu = wall + timing.wall, cpu + timing.cpu
            ours = wh.results(name, slide=slides[name]).arrow()
            compare(text, ours.select([column for column in ours.column_names if column not in _RUN_COLUMNS]), rows)
    return Timing(wall, cpu)
