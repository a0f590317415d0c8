"""`bench cold`: what comes first: a command of one statement, the first statements of a process, the first Spark action.

And what a warehouse of a thousand streams costs those who ask about one. Every process begins anew; `python -c` with
duckdb or sqlite3 stands beside `windrow sql`.
"""

import importlib.util
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import windrow
from bench.generators import Draw, WebEvents
from bench.measures import timed
from bench.runner import WrongAnswerError
from bench.seeded import Lines, Measured, SeededBench
from bench.statistics import Aim
from bench.stores import FreshDuckFile, Ours, SqliteFile
from bench.workload import ORIGIN
from windrow.times import to_datetime

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 10
FEW = 10
# An installed package has its bytecode; a shell that forbids to write it would make every process compile its modules.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Size:
    """How much is asked: rows, runs of each command, streams, rows and rounds of Spark (none if 0)."""

    rows: int
    runs: int
    streams: int
    spark_rows: int
    spark_rounds: int
    every_seed: bool = False
    """Whether Spark and the many streams are measured; with the first seed they are."""


QUICK = Size(100_000, 3, 200, 100_000, 2)
FULL = Size(3_000_000, 9, 1000, 2_000_000, 5, every_seed=True)

_FIRST = """
import json, sys, time
began = time.perf_counter(), time.process_time()
kind, path, statements = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if kind == "windrow":
    import windrow
    opened = windrow.open(path)
    ask = lambda sql: opened.sql(sql).fetchall()
else:
    import duckdb
    opened = duckdb.connect(path)
    ask = lambda sql: opened.execute(sql).fetchall()
found = [("import and open", time.perf_counter() - began[0], time.process_time() - began[1], "")]
for label, sql in statements.items():
    wall, cpu = time.perf_counter(), time.process_time()
    answer = ask(sql)
    found.append((label, time.perf_counter() - wall, time.process_time() - cpu, str(answer)))
print(json.dumps(found))
"""


def work(*, quick: bool) -> int:
    """How many times `advance` will be called."""
    return 3 * 2 + (2 if quick else 6)


def _measure(size: Size, seed: int, folder: Path, advance: Callable[[str], None]) -> Measured:
    measured = Measured()
    _measure_commands(size, seed, folder, measured, advance)
    if size.every_seed:
        advance("many streams")
        measure_streams(size, folder, measured)
        advance("Spark")
        if size.spark_rows:
            _measure_spark(size, seed, folder, measured)
    return measured


def _measure_commands(size: Size, seed: int, folder: Path, measured: Measured, advance: Callable[[str], None]) -> None:
    """One statement as one command; then the first statements of a process."""
    advance("rows")
    shape = WebEvents(seed, SLOTS)
    for store in (Ours, FreshDuckFile, SqliteFile):
        (folder / store.name).mkdir()
        opened = store(folder / store.name, [shape.definition])
        for slot in range(1, SLOTS + 1):
            rows = opened.prepare(shape.batch(slot, size.rows // SLOTS))
            opened.update(shape.name, rows, shape.definition.now(slot))
        opened.close()
    paths = {"windrow": folder / "windrow/warehouse", "duckdb": folder / "duckdb, fresh/rows.duckdb"}
    user = int(shape.users[Draw(seed, 6).zipf(1, 1000)[0]])
    point = f"SELECT count(*), max(millis) FROM views WHERE user_id = {user}"
    grouped = "SELECT status, count(*), sum(millis) FROM views GROUP BY status ORDER BY status"
    advance("commands")
    lines = Lines("One statement as one command", f"{size.rows:,} page views; milliseconds in the median of {size.runs}, CPU of the command.",
                  ("windrow sql", "python -c, duckdb", "python -c, sqlite3", "windrow, CPU", "duckdb, CPU", "ratio", "CPU ratio"), "ratio")  # fmt: skip
    for label, sql in {"point": point, "GROUP BY": grouped}.items():
        plain = f"import duckdb; print(duckdb.connect({str(paths['duckdb'])!r}, read_only=True).execute({sql!r}).fetchall())"
        lite = f"import sqlite3; print(sqlite3.connect({str(folder / 'sqlite/rows.sqlite')!r}).execute({sql!r}).fetchall())"
        commands = {
            "windrow": [
                str(Path(sys.executable).with_name("windrow")),
                "sql",
                "--csv",
                "-w",
                str(paths["windrow"]),
                sql,
            ],
            "duckdb": [sys.executable, "-c", plain],
            "sqlite": [sys.executable, "-c", lite],
        }
        taken: dict[str, list[tuple[float, float, str]]] = {name: [] for name in commands}
        for _ in range(size.runs):
            for name, command in commands.items():
                taken[name].append(_command(command))
        if taken["duckdb"][0][2] != taken["sqlite"][0][2] or not agrees(taken["windrow"][0][2], taken["duckdb"][0][2]):
            raise WrongAnswerError(f"{sql}: {[of[0][2][:200] for of in taken.values()]}")
        wall = {name: 1e3 * statistics.median(of[0] for of in times) for name, times in taken.items()}
        cpu = {name: 1e3 * statistics.median(of[1] for of in times) for name, times in taken.items()}
        figures = (wall["windrow"], wall["duckdb"], wall["sqlite"], cpu["windrow"], cpu["duckdb"],
                   wall["windrow"] / wall["duckdb"], cpu["windrow"] / cpu["duckdb"])  # fmt: skip
        lines.lines[label] = dict(zip(lines.columns, figures, strict=True))
        measured.aims.append(Aim(f"windrow sql, {label} / python -c with duckdb", lines.lines[label]["ratio"], 2.0))
    measured.tables.append(lines)
    _measure_first(size, shape, paths, {"point": point, "GROUP BY": grouped}, measured)


def _measure_first(
    size: Size, shape: WebEvents, paths: dict[str, Path], two: dict[str, str], measured: Measured
) -> None:
    """A process that imports, opens, and asks some statements, each of them twice."""
    turn = shape.turn(0)
    asked = two | {label: turn[label] for label in ("LIKE", "top pages", "slowest")}
    asked |= {f"{label}, again": sql for label, sql in asked.items()}
    taken: dict[str, list[list[Any]]] = {"windrow": [], "duckdb": []}
    for _ in range(size.runs):
        for kind, path in paths.items():
            done = subprocess.run(
                [sys.executable, "-c", _FIRST, kind, str(path), json.dumps(asked)],
                capture_output=True,
                text=True,
                check=True,
                env=ENVIRONMENT,
            )
            taken[kind].append(json.loads(done.stdout))
    for ours, theirs in zip(taken["windrow"][0], taken["duckdb"][0], strict=True):
        if ours[0] in two and ours[3] != theirs[3]:
            raise WrongAnswerError(f"{ours[0]}: {ours[3][:200]} against {theirs[3][:200]}")
    lines = Lines("First statements of a process", "Milliseconds in the median; each statement for the first time, then again.",
                  ("windrow", "duckdb", "windrow, CPU", "duckdb, CPU", "ratio"), "ratio")  # fmt: skip
    for number, (label, *_) in enumerate(taken["windrow"][0]):
        ours, theirs = (
            [1e3 * statistics.median(of[number][which] for of in taken[kind]) for which in (1, 2)]
            for kind in ("windrow", "duckdb")
        )
        lines.lines[label] = dict(
            zip(lines.columns, (ours[0], theirs[0], ours[1], theirs[1], ours[0] / theirs[0]), strict=True)
        )
    whole = {
        kind: statistics.median(sum(of[number][1] for number in range(1 + len(asked) // 2)) for of in taken[kind])
        for kind in taken
    }
    measured.tables.append(lines)
    measured.aims.append(
        Aim("import, open and five first statements / duckdb's", whole["windrow"] / whole["duckdb"], 2.0)
    )


def _command(command: Sequence[str]) -> tuple[float, float, str]:
    """Seconds, processor seconds and output of a command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr[-500:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def agrees(printed: str, tuples: str) -> bool:
    """Whether CSV under a header and printed tuples hold the same numbers in the same order."""
    return re.findall(r"-?\d+", printed.split("\n", 1)[1]) == re.findall(r"-?\d+", tuples)


def measure_streams(size: Size, folder: Path, measured: Measured) -> None:
    """Questions about one stream of few and of many."""
    schema = pa.schema([("ts", pa.timestamp("us")), ("k", pa.int64())])
    questions: dict[str, Callable[[windrow.Warehouse], Any]] = {
        "SQL over one stream": lambda wh: wh.sql("SELECT count(*) FROM s1").fetchall(),
        "a system table, one stream": lambda wh: wh.sql(
            "SELECT live_rows FROM windrow.streams WHERE stream = 's1'"
        ).fetchall(),
        "status of one stream": lambda wh: wh.stream("s1"),
        "status": lambda wh: wh.status(),
        "snapshot of one stream, duckdb()": lambda wh: _snapshot(wh, ["s1"]),
        "snapshot().duckdb()": lambda wh: _snapshot(wh, None),
    }
    medians: dict[int, dict[str, float]] = {}
    for count in (FEW, size.streams):
        with windrow.open(folder / f"streams-{count}") as wh:
            for number in range(count):
                wh.create_stream(f"s{number}", schema, time="ts", key="k", slide="1 second", lifetime="1 hour")
            for number in range(FEW):
                wh.append(
                    f"s{number}", pa.table({"ts": pa.array([ORIGIN + 1]).view(pa.timestamp("us")), "k": [number]})
                )
                wh.slide(f"s{number}", to=to_datetime(ORIGIN + 1_000_000))
            medians[count] = {
                label: 1e3 * statistics.median(timed(lambda a=ask, w=wh: a(w))[0].wall for _ in range(5))  # type: ignore[misc]
                for label, ask in questions.items()
            }
    few, many = f"{FEW} streams", f"{size.streams} streams"
    lines = Lines("Many streams", "Milliseconds in the median of five.", (few, many, "ratio"), "ratio")
    for label in questions:
        a, b = medians[FEW][label], medians[size.streams][label]
        lines.lines[label] = {few: a, many: b, "ratio": b / a}
        if label != "status":
            measured.aims.append(Aim(f"{label}: of {size.streams} streams / of {FEW}", b / a, 2.0))
    measured.tables.append(lines)


def _snapshot(wh: windrow.Warehouse, streams: list[str] | None) -> Any:
    with wh.snapshot(streams) as snapshot:
        connection = snapshot.duckdb()
        answer = connection.sql("SELECT count(*) FROM s1").fetchall()
        connection.close()
        return answer


def _measure_spark(size: Size, seed: int, folder: Path, measured: Measured) -> None:
    """The first action of a JVM, for each contestant in a JVM of its own; then all of them by turns in one."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        measured.notes.append("Spark is left out: pyspark or Java is not installed.")
        return
    source = folder / "spark-input"
    source.mkdir()
    shape = WebEvents(seed, SLOTS)
    for part in range(2):
        pq.write_table(shape.batch(1 + part, size.spark_rows // 2), source / f"{part}.parquet")
    first, later = {}, {}
    for kind in ("append", "sort and write", "write"):  # ours first, with the coldest disk
        rounds = size.spark_rounds if kind == "append" else 0
        given = json.dumps({"kind": kind, "rounds": rounds, "folder": str(folder), "seed": seed})
        done = subprocess.run(
            [sys.executable, "-m", "bench.cold_spark", given], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"Spark, {kind}: {done.stderr[-800:]}")
        output = json.loads(done.stdout.splitlines()[-1])
        first[kind], later = output["first"], output["later"] or later
    lines = Lines("Spark", f"{size.spark_rows:,} rows into a fresh stream; seconds: the first action of a JVM, and medians of {size.spark_rounds} later ones.",
                  ("first action", "later", "later / sort and write"), "first action")  # fmt: skip
    for kind in ("write", "sort and write", "append", "append to an old stream"):
        line = {"later": later[kind], "later / sort and write": later[kind] / later["sort and write"]}
        lines.lines[kind] = line | ({"first action": first[kind]} if kind in first else {})
    measured.tables.append(lines)
    measured.aims += [
        Aim("Spark, first action of a JVM: append / df.write.parquet", first["append"] / first["write"], 1.4),
        Aim("Spark, append to a fresh stream / sort and write", later["append"] / later["sort and write"], 1.0),
        Aim(
            "Spark, append to an old stream / sort and write",
            later["append to an old stream"] / later["sort and write"],
            1.0,
        ),
    ]


bench = SeededBench("cold", QUICK, FULL, _measure, first=lambda size: replace(size, every_seed=True))
