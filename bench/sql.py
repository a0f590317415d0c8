"""`bench sql`: queries over a window of a stream that has slid many times, beside a native DuckDB table and Parquet.

All answers of the first turn are compared. Systems take turns at each query, and only ratios within one run count.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow
from bench import machine, report
from bench.measures import Timing
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.queries import execution
from windrow.times import to_datetime

DELTA = 60_000_000
SLOTS = 16
WINDOWS = 3
"""Windows that the stream slides through before it is asked."""
SCHEMA = pa.schema([
    ("ts", pa.timestamp("us")), ("src", pa.int64()), ("dst", pa.int64()), ("len", pa.int32()), ("proto", pa.string()),
    ("note", pa.string()),
])  # fmt: skip
KEYS = 50_000
HOSTS = 500
PROBED = 777

QUESTIONS = {
    "aggregate": "SELECT count(*), sum(len), max(len) FROM {t}",
    "group by": "SELECT proto, count(*), sum(len) FROM {t} GROUP BY proto ORDER BY proto",
    "group by key": "SELECT count(*), max(s) FROM (SELECT src, sum(len) AS s FROM {t} GROUP BY src)",
    "filtered aggregate": "SELECT count(*), sum(len) FROM {t} WHERE dst < 1000000 AND len > 7{n:02}",
    "join with a table": "SELECT name, count(*), sum(len) FROM {t} JOIN hosts USING (src) GROUP BY name ORDER BY name",
    "distinct": "SELECT count(DISTINCT dst) FROM {t}",
    "median": "SELECT median(len), median(dst) FROM {t}",
    "top-k": "SELECT * FROM {t} ORDER BY dst DESC, ts LIMIT 1{n}",
    "string scan": "SELECT count(*) FROM {t} WHERE note LIKE '%z{letter}%'",
}
"""Of the whole window; constants differ from turn to turn, so that no answer is one that was given before."""
PROBES_IN_TURN = 3
PROBES = {
    "probe, all columns": "SELECT * FROM {t} WHERE src = {key}",
    "probe, aggregate": "SELECT count(*), sum(len), max(ts) FROM {t} WHERE src = {key}",
    "the same probe again, all columns": f"SELECT * FROM {{t}} WHERE src = {PROBED}",
    "the same probe again, aggregate": f"SELECT count(*), sum(len), max(ts) FROM {{t}} WHERE src = {PROBED}",
}


@dataclass(frozen=True)
class Size:
    """How much is asked."""

    rows: int
    rounds: int


def size(*, quick: bool) -> Size:
    """The quick run is for a look, the full one has the 5 million rows that are wanted."""
    return Size(500_000, 5) if quick else Size(5_000_000, 7)


def work(*, quick: bool) -> int:
    """How many times `advance` is called."""
    return SLOTS * WINDOWS + 3 + size(quick=quick).rounds + 1 + 2


def batch(slot: int, count: int) -> pa.Table:
    """The rows of one slot, about 90 bytes each, in order of time."""
    chance = np.random.default_rng([9, slot])
    ts = np.sort(ORIGIN + (slot - 1) * DELTA + chance.integers(1, DELTA, count, endpoint=True))
    letters = chance.integers(97, 123, count * 40, dtype=np.uint8)
    notes = pa.StringArray.from_buffers(
        count, pa.py_buffer(np.arange(0, 40 * count + 1, 40, dtype=np.int32)), pa.py_buffer(letters)
    )
    columns = [
        pa.array(ts).view(pa.timestamp("us")),
        pa.array((KEYS * chance.random(count) ** 2).astype(np.int64)),
        pa.array(chance.integers(0, 10_000_000, count)),
        pa.array(chance.integers(40, 1500, count).astype(np.int32)),
        pa.array(np.array(["tcp", "udp", "icmp", "gre"])[chance.integers(0, 4, count)]),
        notes,
    ]
    return pa.table(columns, schema=SCHEMA)


def hosts() -> pa.Table:
    """A table to join with."""
    return pa.table({"src": np.arange(HOSTS, dtype=np.int64) * 7, "name": [f"host {n % 20}" for n in range(HOSTS)]})


Ask = Callable[[str], pa.Table]


def _native(folder: Path, rows: pa.Table, stack: ExitStack) -> tuple[Ask, Ask]:
    """The same rows, freshly loaded and sorted, in a native table; and again with an ART index on the key."""
    connection = stack.enter_context(duckdb.connect(str(folder / "native.duckdb")))
    connection.register("given", rows)
    connection.execute("CREATE TABLE packets AS FROM given ORDER BY src, ts")
    connection.execute("CREATE TABLE indexed AS FROM given ORDER BY ts")
    connection.execute("CREATE INDEX by_src ON indexed (src)")
    connection.unregister("given")
    connection.register("given", hosts())
    connection.execute("CREATE TABLE hosts AS FROM given")
    connection.unregister("given")
    connection.execute("CHECKPOINT")
    return (
        lambda sql: connection.sql(sql.format(t="packets")).to_arrow_table(),
        lambda sql: connection.sql(sql.format(t="indexed")).to_arrow_table(),
    )


def _parquet(folder: Path, rows: pa.Table, stack: ExitStack) -> Ask:
    """The same rows in order of arrival, in Parquet as pyarrow writes it."""
    path = folder / "rows.parquet"
    pq.write_table(rows, path)
    connection = stack.enter_context(duckdb.connect())
    connection.execute(f"CREATE VIEW packets AS FROM '{path}'")
    connection.register("given", hosts())
    connection.execute("CREATE TABLE hosts AS FROM given")
    return lambda sql: connection.sql(sql.format(t="packets")).to_arrow_table()


@contextmanager
def contestants(
    folder: Path, rows: int, advance: Callable[[str], None]
) -> Iterator[tuple[windrow.Warehouse, dict[str, Ask]]]:
    """The warehouse and all who are asked."""
    each = rows // SLOTS
    with ExitStack() as stack:
        wh = stack.enter_context(windrow.open(folder / "warehouse"))
        lifetime = f"{SLOTS} minutes"
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime=lifetime)
        wh.put_table("hosts", hosts())
        live: list[pa.Table] = []
        for slot in range(1, SLOTS * WINDOWS + 1):
            advance("sliding")
            live = [*live[-SLOTS + 1 :], batch(slot, each)]
            wh.append("packets", live[-1])
            wh.slide("packets", to=to_datetime(ORIGIN + slot * DELTA))
        now = ORIGIN + SLOTS * WINDOWS * DELTA
        everything = pa.concat_tables(live)
        ts = everything.column("ts").cast(pa.int64()).to_numpy()
        everything = everything.filter(pa.array(ts > now - SLOTS * DELTA)).combine_chunks()
        advance("loading a native table")
        native, indexed = _native(folder, everything, stack)
        advance("writing Parquet")
        plain = _parquet(folder, everything, stack)
        yield (
            wh,
            {
                "windrow": lambda sql: wh.sql(sql.format(t="packets")).arrow(),
                "DuckDB, sorted": native,
                "DuckDB, ART": indexed,
                "Parquet, unsorted": plain,
            },
        )


def in_turn(sql: str, turn: int) -> str:
    """The question with the constants of one turn; the relation is still to be filled in."""
    return sql.format(t="{t}", n=turn, key=PROBED + turn, letter=chr(ord("a") + turn % 26))


Taken = dict[str, dict[str, list[Timing]]]
"""What each contestant took for each question, turn by turn."""
Medians = dict[str, dict[str, float]]
"""Milliseconds of each contestant for each question."""


def ask_in_turns(systems: dict[str, Ask], rounds: int, advance: Callable[[str], None]) -> tuple[Taken, Taken]:
    """All questions in each turn; gives what the first one took, whose answers are compared, and those after it.

    A store that keeps in memory what it was asked for does so after the first turn, as in the benches of statements.
    """
    first: Taken = {}
    taken: Taken = {}
    for turn in range(rounds + 1):
        advance(f"turn {turn}")
        for question, sql in (QUESTIONS | PROBES).items():
            names = [name for name in systems if question in PROBES or name != "DuckDB, ART"]
            times = 1 if turn == 0 or question in QUESTIONS else PROBES_IN_TURN
            for number in range(times):
                place = (turn + number) % len(names)
                statement, answers = in_turn(sql, PROBES_IN_TURN * turn + number), dict[str, pa.Table]()
                for name in names[place:] + names[:place]:
                    cpu, wall = time.process_time(), time.perf_counter()
                    answers[name] = systems[name](statement)
                    timing = Timing(time.perf_counter() - wall, time.process_time() - cpu)
                    (taken if turn else first).setdefault(question, {}).setdefault(name, []).append(timing)
                if turn == 0:
                    _compare(question, answers)
    return first, taken


def _compare(question: str, answers: dict[str, pa.Table]) -> None:
    rows = {name: sorted(map(str, answer.to_pylist())) for name, answer in answers.items()}
    ours = rows["windrow"]
    for name, others in rows.items():
        if others != ours:
            raise WrongAnswerError(f"{question}: {name} differs from windrow: {others[:2]} against {ours[:2]}")


def planning(folder: Path, rounds: int) -> tuple[int, dict[str, float]]:
    """Milliseconds before DuckDB runs anything, on a stream of 64 segments: parsing, pinning, planning; medians."""
    index = windrow.Index("round-robin", 8, 8, maintenance="norebuild")
    with windrow.open(folder / "planned") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="64 minutes", index=index)
        for slot in range(1, 65):
            wh.append("packets", batch(slot, 200))
            wh.slide("packets", to=to_datetime(ORIGIN + slot * DELTA))
        milliseconds = {}
        for name, sql in {"aggregate": QUESTIONS["aggregate"], "probe": PROBES["probe, aggregate"]}.items():
            statement = in_turn(sql, 0).format(t="packets [WINDOW 60 MINUTES]")
            times = []
            for _ in range(20 * rounds):
                started = time.perf_counter()
                execution.prepare(wh._store, statement, None).close()
                times.append(1e3 * (time.perf_counter() - started))
            milliseconds[name] = statistics.median(times)
        return wh.stream("packets").segments, milliseconds


def bench(
    *,
    quick: bool,
    results: Results,
    scratch: Path | None,
    advance: Callable[[str], None],
    sized: Size | None = None,
) -> tuple[str, list[Aim]]:
    """Run everything, save it, and give the report (Markdown) and what was wanted."""
    measured = sized or size(quick=quick)
    host = machine.describe(scratch or Path.cwd())
    with tempfile.TemporaryDirectory(prefix="windrow-bench-", dir=scratch) as place:
        folder = Path(place)
        with contestants(folder, measured.rows, advance) as (wh, everybody):
            first, taken = ask_in_turns(everybody, measured.rounds, advance)
            advance("a sixteenth")
            part = wh.explain("SELECT sum(len) FROM packets [WINDOW 1 MINUTE]").relations[0].bytes
            segments = wh.stream("packets").segments
        advance("planning")
        counted, planned = planning(folder, measured.rounds)
    medians, processor, firsts = _medians(taken, "wall"), _medians(taken, "cpu"), _medians(first, "wall")
    aims = _list_aims(medians, processor, firsts, part, planned, counted)
    samples = {q: {who: [vars(each) for each in times] for who, times in by.items()} for q, by in taken.items()}
    figures = {"machine": host, "rows": measured.rows, "segments": segments, "samples": samples, "planning": planned}
    results.write("sql", {**figures, "first": firsts, "wanted": verdicts(aims)})
    return _report(host, measured, segments, (medians, processor, firsts), aims), aims


def _medians(taken: Taken, kind: str) -> Medians:
    """Milliseconds of one kind."""
    return {
        question: {who: 1e3 * statistics.median(getattr(each, kind) for each in times) for who, times in by.items()}
        for question, by in taken.items()
    }


def _ratios(medians: Medians, peer: str, questions: dict[str, str]) -> dict[str, float]:
    return {question: medians[question]["windrow"] / medians[question][peer] for question in questions}


def _list_aims(
    medians: Medians,
    processor: Medians,
    firsts: Medians,
    part: tuple[int, int],
    planned: dict[str, float],
    segments: int,
) -> list[Aim]:
    native = _ratios(medians, "DuckDB, sorted", QUESTIONS)
    parquet = _ratios(medians, "Parquet, unsorted", QUESTIONS)
    worst = max(native, key=lambda question: native[question])
    return [
        Aim("geometric mean / native DuckDB table", statistics.geometric_mean(native.values()), 1.1),
        Aim(
            "the same, processor time",
            statistics.geometric_mean(_ratios(processor, "DuckDB, sorted", QUESTIONS).values()),
            1.1,
        ),
        Aim(
            "first answers: geometric mean / DuckDB over unsorted Parquet",
            statistics.geometric_mean(_ratios(firsts, "Parquet, unsorted", QUESTIONS).values()),
            1.5,
        ),
        Aim(f"worst question ({worst}) / native DuckDB table", native[worst], 1.75),
        Aim("geometric mean / DuckDB over unsorted Parquet", statistics.geometric_mean(parquet.values()), 1.0),
        *(
            Aim(f"{question} / DuckDB with an ART index", ratio, 1.0)
            for question, ratio in _ratios(medians, "DuckDB, ART", PROBES).items()
        ),
        Aim("bytes of the last 1/16 of the window, times 16", 16 * part[0] / part[1], 1.25),
        *(Aim(f"planning over {segments} segments ({name}), ms", ms, 3.0) for name, ms in planned.items()),
    ]


def _report(
    host: dict[str, Any],
    measured: Size,
    segments: int,
    measures: tuple[Medians, Medians, Medians],
    aims: list[Aim],
) -> str:
    names = ["windrow", "DuckDB, sorted", "DuckDB, ART", "Parquet, unsorted"]
    medians, processor, firsts = measures
    rows = []
    for question, by in medians.items():
        cells = [f"{by[name]:.1f}" if name in by else "–" for name in names]
        ratios = [of[question]["windrow"] / of[question]["DuckDB, sorted"] for of in (medians, processor)]
        rows.append([question, f"{firsts[question]['windrow']:.1f}", *cells, *(f"{ratio:.2f}" for ratio in ratios)])
    about = (
        f"{measured.rows:,} live rows of about 90 bytes in {segments} segments, after {WINDOWS} windows of slides; "
        f"medians of {measured.rounds} turns after the first ({PROBES_IN_TURN * measured.rounds} of probes), ms."
    )
    table = report.table(["", "windrow, first", *names, "windrow / sorted", "CPU"], rows)
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims), "### Questions", about, table]
    return "\n\n".join(parts)
