"""Window clauses in Spark's SQL: answers equal plain DuckDB's over all rows, and what cannot count is not read."""

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
import windrow.spark
from plain_duckdb import connect
from spark_executors import find_executors

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("len", pa.int32()), ("note", pa.string())])
LEASES = pa.schema([*SCHEMA, ("gone", pa.timestamp("us", "UTC"))])
SEED = 20261118
NOW = NOON + dt.timedelta(minutes=12)


UNMET = "SELECT p.ts AS at, p.src, p.len FROM packets p ANTI JOIN calls [WINDOW 1 MINUTE] c ON p.src = c.src"
"""A view of which later calls end rows."""


def at(seconds: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    """All rows that were ever appended, by stream: `leases` end when they say so, `packets` after ten minutes."""
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    made: dict[str, list[dict[str, Any]]] = {"packets": [], "calls": [], "leases": []}
    for minute in range(12):
        for stream, kept in made.items():
            for _ in range(40):
                ts = at(60 * minute + rng.uniform(0.001, 60))
                # Each minute of `calls` has keys of its own, so that its segments can be told apart.
                src = minute * 4 + rng.randrange(4) if stream == "calls" else rng.randrange(50)
                row = {"ts": ts, "src": src, "len": rng.randrange(1000), "note": rng.choice(["a", "b c", None])}
                kept.append(
                    row | ({"gone": ts + dt.timedelta(seconds=rng.uniform(60, 1200))} if stream == "leases" else {})
                )
    return made


@pytest.fixture(scope="module")
def wh(rows: dict[str, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[windrow.Warehouse]:
    with windrow.open(tmp_path_factory.mktemp("statement") / "wh") as wh:
        for name in ("packets", "calls"):
            wh.create_stream(name, SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        wh.create_stream(
            "leases", LEASES, time="ts", key="src", slide="1 minute", expires="gone", max_lifetime="30 minutes"
        )
        wh.create_view("short", "SELECT ts, src, len FROM packets WHERE len < 200", key="src")
        wh.create_view("unmet", UNMET, key="src")
        wh.add_query("counted", "SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES SLIDE 2 MINUTES]", missed="every")
        for minute in range(12):
            for name, kept in rows.items():
                batch = [row for row in kept if at(60 * minute) < row["ts"] <= at(60 * minute + 60)]
                wh.append(name, pa.Table.from_pylist(batch, LEASES if name == "leases" else SCHEMA))
                wh.slide(name, to=at(60 * minute + 60))
        wh.put_table("hosts", pa.table({"src": pa.array(range(50), pa.int64()), "host": [f"h{n}" for n in range(50)]}))
        wh.run_due()
        yield wh


def plain(rows: dict[str, list[dict[str, Any]]], sql: str) -> list[tuple[Any, ...]]:
    """The answer of plain DuckDB over tables of the live rows; windows are conditions on `ts` there."""
    tables = {
        name: pa.Table.from_pylist(
            [row for row in kept if row.get("gone", row["ts"] + dt.timedelta(minutes=10)) > NOW],
            LEASES if name == "leases" else SCHEMA,
        )
        for name, kept in rows.items()
    }
    tables["short"] = tables["packets"].filter(pc.less(tables["packets"]["len"], 200)).drop(["note"])
    tables["hosts"] = pa.table({"src": pa.array(range(50), pa.int64()), "host": [f"h{n}" for n in range(50)]})
    with connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.execute(sql).fetchall()


def collected(df: Any) -> list[str]:
    return sorted(repr(tuple(row)) for row in df.collect())


def last(seconds: int, stream: str = "packets") -> str:
    return f"(SELECT * FROM {stream} WHERE ts > TIMESTAMPTZ '{at(720 - seconds).isoformat()}')"


# (the statement for Spark, the same over plain tables of the live rows)
CASES = [
    ("SELECT src, count(*) AS n, sum(len) FROM packets [WINDOW 5 MINUTES] GROUP BY src",
     f"SELECT src, count(*), sum(len) FROM {last(300)} GROUP BY src"),
    ("SELECT count(*), min(len) FROM packets", "SELECT count(*), min(len) FROM packets"),
    ("SELECT src, len FROM leases [WINDOW 90 SECONDS] WHERE len > 500", f"SELECT src, len FROM {last(90, 'leases')} WHERE len > 500"),
    ("SELECT packets.src, c.len FROM packets [WINDOW 90 SECONDS] JOIN calls [WINDOW 3 MINUTES] AS c ON packets.src = c.src",
     f"SELECT p.src, c.len FROM {last(90)} p JOIN {last(180, 'calls')} c ON p.src = c.src"),
    ("SELECT p.len FROM packets p LEFT SEMI JOIN calls [WINDOW 2 MINUTES] c ON p.src = c.src WHERE p.note IS NOT NULL",
     f"SELECT len FROM packets WHERE note IS NOT NULL AND src IN (SELECT src FROM {last(120, 'calls')})"),
    ("SELECT h.host, count(*) FROM packets [WINDOW 2 MINUTES] p JOIN hosts h ON p.src = h.src WHERE p.src IN (17, 3) GROUP BY h.host",
     f"SELECT host, count(*) FROM {last(120)} p JOIN hosts USING (src) WHERE src IN (17, 3) GROUP BY host"),
    ("WITH w AS (SELECT src FROM packets [WINDOW 3 MINUTES] WHERE src < 9) SELECT src, count(*) FROM w WHERE src IN (SELECT src FROM leases) GROUP BY src",
     f"SELECT src, count(*) FROM {last(180)} WHERE src < 9 AND src IN (SELECT src FROM leases) GROUP BY src"),
    ("SELECT count(*) FROM packets WHERE ts > TIMESTAMP '2025-01-01 12:09:00Z' AND ts <= TIMESTAMP '2025-01-01 12:10:00Z'",
     "SELECT count(*) FROM packets WHERE ts > TIMESTAMPTZ '2025-01-01 12:09:00Z' AND ts <= TIMESTAMPTZ '2025-01-01 12:10:00Z'"),
    ("SELECT a.len, b.len FROM packets a JOIN packets b ON a.src = b.src AND a.len < b.len WHERE a.src = 5",
     "SELECT a.len, b.len FROM packets a JOIN packets b ON a.src = b.src AND a.len < b.len WHERE a.src = 5"),
    ("SELECT p.src, c.len FROM packets p LEFT JOIN calls [WINDOW 1 MINUTE] c ON p.src = c.src",
     f"SELECT p.src, c.len FROM packets p LEFT JOIN {last(60, 'calls')} c ON p.src = c.src"),
    ("SELECT src FROM packets [WINDOW 1 MINUTE] UNION ALL SELECT src FROM calls [WINDOW 1 MINUTE]",
     f"SELECT src FROM {last(60)} UNION ALL SELECT src FROM {last(60, 'calls')}"),
    ("SELECT (SELECT max(len) FROM calls [WINDOW 4 MINUTES] WHERE src < 40), 'it\\'s [WINDOW 1 MINUTE]', count(*) FROM short",
     f"SELECT (SELECT max(len) FROM {last(240, 'calls')} WHERE src < 40), 'it''s [WINDOW 1 MINUTE]', count(*) FROM short"),
    ("SELECT `src`, len FROM `packets` [FROM TIMESTAMP '2025-01-01 12:05:00Z' TO TIMESTAMP '2025-01-01 12:06:30Z'] WHERE note = 'b c'",
     "SELECT src, len FROM packets WHERE note = 'b c' AND ts > TIMESTAMPTZ '2025-01-01 12:05:00Z' AND ts <= TIMESTAMPTZ '2025-01-01 12:06:30Z'"),
    ("SELECT src, count(*), sum(len) FROM unmet WHERE len > 50 GROUP BY src",
     f"SELECT src, count(*), sum(len) FROM packets WHERE len > 50 AND src NOT IN (SELECT src FROM {last(60, 'calls')}) GROUP BY src"),
    ("SELECT src, len FROM packets [ROWS 7]", "SELECT src, len FROM packets ORDER BY ts DESC LIMIT 7"),
]  # fmt: skip


STREAMS = {"packets": 10, "calls": 10, "leases": 30}
"""How many minutes a window of each may be long."""


class StatementGenerator:
    """Writes statements that Spark and DuckDB both understand, each over windows and over conditions on `ts`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def relation(self, alias: str) -> tuple[str, str]:
        """A window of a stream, and the same of a plain table."""
        rng, stream = self.rng, self.rng.choice(list(STREAMS))
        start = at(rng.randrange(0, 720)).isoformat()
        stop = (dt.datetime.fromisoformat(start) + dt.timedelta(seconds=rng.randrange(1, 300))).isoformat()
        since = f"ts > TIMESTAMPTZ '{start}'"
        seconds = rng.randrange(1, 60 * STREAMS[stream] + 1)
        clause, condition = rng.choice([
            ("", "true"), (f"[WINDOW {seconds} SECONDS]", f"ts > TIMESTAMPTZ '{at(720 - seconds).isoformat()}'"),
            (f"[SINCE TIMESTAMP '{start}']", since),
            (f"[FROM TIMESTAMP '{start}' TO TIMESTAMP '{stop}']", f"{since} AND ts <= TIMESTAMPTZ '{stop}'"),
        ])  # fmt: skip
        return f"{stream} {clause} {alias}", f"(SELECT * FROM {stream} WHERE {condition}) {alias}"

    def condition(self, alias: str) -> str:
        """On columns that each stream has."""
        rng = self.rng
        one = rng.choice([
            f"{alias}.src = {rng.randrange(50)}", f"{alias}.src BETWEEN {rng.randrange(20)} AND {rng.randrange(15, 50)}",
            f"{alias}.src IN ({rng.randrange(50)}, {rng.randrange(50)})", f"{alias}.len % 3 = {rng.randrange(3)}",
            f"{alias}.len < {rng.randrange(1000)}", f"{alias}.note IS NOT NULL", f"{alias}.note = 'b c'",
            f"{alias}.ts > CAST('{at(rng.randrange(720)).isoformat()}' AS TIMESTAMP WITH TIME ZONE)",
        ])  # fmt: skip
        if rng.random() < 0.5:
            return one
        return f"({one} {rng.choice(['AND', 'OR'])} {'NOT ' if rng.random() < 0.3 else ''}{self.condition(alias)})"

    def ask(self) -> tuple[str, str]:
        """The next statement, for Spark and for plain DuckDB."""
        rng = self.rng
        (ours, plain), (ours_too, plain_too) = self.relation("a"), self.relation("b")
        where, other = self.condition("a"), self.condition("b")
        text = rng.choice([
            f"SELECT a.src, count(*), sum(a.len) FROM {{0}} WHERE {where} GROUP BY a.src",
            f"SELECT count(*), min(a.len), max(a.note) FROM {{0}} WHERE {where}",
            f"SELECT a.src, a.len, a.note FROM {{0}} WHERE {where}",
            f"SELECT DISTINCT a.src % 5, a.note FROM {{0}} WHERE {where}",
            f"SELECT a.len, b.len FROM {{0}} {rng.choice(['', 'LEFT', 'FULL'])} JOIN {{1}} ON a.src = b.src AND {other}",
            f"SELECT a.src, b.note, count(*) FROM {{0}} JOIN {{1}} ON a.src = b.src WHERE {where} GROUP BY a.src, b.note",
            f"SELECT a.src, a.len FROM {{0}} WHERE {where} AND a.src IN (SELECT b.src FROM {{1}} WHERE {other})",
            f"SELECT a.src, a.len FROM {{0}} WHERE NOT EXISTS (SELECT 1 FROM {{1}} WHERE a.src = b.src AND {other})",
            f"SELECT a.src FROM {{0}} WHERE {where} UNION ALL SELECT b.len FROM {{1}} WHERE {other}",
            f"WITH w AS (SELECT a.src, a.len FROM {{0}} WHERE {where}) SELECT x.len FROM w x JOIN w y ON x.src = y.len % 50",
            f"SELECT src, len FROM (SELECT a.*, row_number() OVER (PARTITION BY a.src ORDER BY a.len DESC, a.ts) AS n FROM {{0}}) x WHERE n <= {rng.randrange(1, 4)}",
            f"SELECT count(*), (SELECT max(b.len) FROM {{1}} WHERE {other}) FROM {{0}} WHERE {where}",
        ])  # fmt: skip
        sparks = text.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
        return sparks.format(ours, ours_too), text.format(plain, plain_too)


def check_random(
    spark: Any, wh: windrow.Warehouse, rows: dict[str, list[dict[str, Any]]], seed: int, count: int
) -> None:
    generator = StatementGenerator(seed)
    for number in range(count):
        text, truth = generator.ask()
        df = windrow.spark.sql(spark, wh, text)
        expected = sorted(repr(row) for row in plain(rows, truth))
        assert collected(df) == expected, f"seed {seed}, statement {number}: {text}\n{truth}"
        windrow.spark.release(df)


def test_random_statements_are_answered_as_by_plain_sql(spark, wh, rows):
    check_random(spark, wh, rows, SEED, 8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_random_statements_are_answered_as_by_plain_sql(spark, wh, rows):
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    check_random(spark, wh, rows, seed, 300)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_on_a_cluster_answers_are_the_same_though_executors_are_killed(wh, rows):
    """The cases above and random statements, on two executors; every eighth statement one of them is killed."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    generator = StatementGenerator(seed)
    asked = [*CASES, *(generator.ask() for _ in range(40))]
    process = Path(__file__).with_name("statement_process.py")
    command = [sys.executable, process, wh.path, "local-cluster[2,1,2048]"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for number, (text, truth) in enumerate(asked):
            child.stdin.write(json.dumps(text) + "\n")
            child.stdin.flush()
            if number % 8 == 7:
                os.kill(find_executors(child.pid)[-1], signal.SIGKILL)
            answer = json.loads(child.stdout.readline())
            assert answer == sorted(repr(row) for row in plain(rows, truth)), f"seed {seed}, statement {number}: {text}"
        child.stdin.close()
    assert child.returncode == 0


@pytest.mark.parametrize(("text", "truth"), CASES, ids=[str(number) for number in range(len(CASES))])
def test_the_answer_is_that_of_plain_sql_over_the_live_rows(spark, wh, rows, text, truth):
    df = windrow.spark.sql(spark, wh, text)
    expected = plain(rows, truth)
    assert collected(df) == sorted(repr(row) for row in expected)
    windrow.spark.release(df)


def test_results_and_system_tables_can_be_read(spark, wh):
    df = windrow.spark.sql(spark, wh, "SELECT s.stream, c.n FROM windrow.streams s CROSS JOIN counted c")
    expected = wh.sql("SELECT s.stream, c.n FROM windrow.streams s CROSS JOIN counted c").fetchall()
    assert collected(df) == sorted(repr(row) for row in expected)


def test_summaries_can_be_read(spark, wh, rows):
    wh.create_summary("heavy", "SELECT src, count(*) AS n FROM packets GROUP BY src", frequent=8)
    try:
        for clause in ("", " [WINDOW 2 MINUTES]"):
            text = f"SELECT h.src, h.lower, h.upper, h.certain FROM heavy{clause} h"
            ours = windrow.spark.sql(spark, wh, text)
            assert collected(ours) == sorted(repr(row) for row in wh.sql(text).fetchall())
        joined = "SELECT count(*) FROM packets p JOIN heavy h ON p.src = h.src WHERE h.certain"
        bounds = windrow.spark.sql(spark, wh, joined).collect()
        assert [tuple(row) for row in bounds] == wh.sql(joined).fetchall()
        true_counts = dict(plain(rows, "SELECT src, count(*) FROM packets GROUP BY src"))
        shown = windrow.spark.sql(spark, wh, "SELECT src, lower, upper FROM heavy").collect()
        assert shown
        assert all(lower <= true_counts[src] <= upper for src, lower, upper in shown)
    finally:
        wh.drop_summary("heavy")


def test_values_are_bound_and_the_sessions_own_views_stay(spark, wh, rows):
    spark.range(3).createOrReplaceTempView("packets")
    try:
        df = windrow.spark.sql(spark, wh, "SELECT len FROM packets WHERE src = :key", {"key": 3})
        assert collected(df) == sorted(repr(row) for row in plain(rows, "SELECT len FROM packets WHERE src = 3"))
        assert spark.sql("SELECT * FROM packets").count() == 3
        assert spark.getActiveSession().sql("SELECT * FROM packets").count() == 3
        spark.range(2).createOrReplaceTempView("mine")
        joined = windrow.spark.sql(spark, wh, "SELECT len FROM mine JOIN packets ON mine.id = packets.src")
        assert collected(joined) == sorted(repr(row) for row in plain(rows, "SELECT len FROM packets WHERE src < 2"))
    finally:
        spark.catalog.dropTempView("packets")
        spark.catalog.dropTempView("mine")


def read_segments(explanation: Any) -> dict[str, tuple[int, int]]:
    return {plan.view.name: plan.segments for plan in explanation.relations}


def test_what_cannot_count_is_not_read(spark, wh):
    by_time = windrow.spark.explain(spark, wh, "SELECT len FROM packets WHERE ts > TIMESTAMP '2025-01-01 12:11:00Z'")
    assert read_segments(by_time)["packets"][0] == 1
    by_key = windrow.spark.explain(spark, wh, "SELECT len FROM calls WHERE src = 47")  # only the last minute has it
    assert read_segments(by_key)["calls"][0] == 1
    assert "key: 1 range" in str(by_key)
    joined = "SELECT c.len FROM calls c JOIN (SELECT * FROM packets WHERE src = 47) p ON c.src = p.src"
    assert read_segments(windrow.spark.explain(spark, wh, joined))["calls"][0] == 1
    ranged = windrow.spark.explain(
        spark, wh, "SELECT a.len FROM calls a LEFT SEMI JOIN calls [WINDOW 1 MINUTE] b ON a.src = b.src"
    )
    assert [plan.segments[0] for plan in ranged.relations] == [1, 1]
    assert "segments that calls.src can match" in str(ranged)
    kept = windrow.spark.explain(spark, wh, "SELECT a.len FROM calls a LEFT JOIN calls [WINDOW 1 MINUTE] b USING (src)")
    assert [plan.segments[0] for plan in kept.relations if plan.reference.window is not None][-1] >= 10


def test_an_answer_keeps_its_files_until_it_is_released(spark, tmp_path):
    """In a warehouse of its own: frames that other tests have dropped let go of their pins when they like."""
    with windrow.open(tmp_path / "wh") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        wh.append(
            "packets",
            pa.Table.from_pylist([{"ts": at(n), "src": n, "len": n, "note": None} for n in range(1, 50)], SCHEMA),
        )
        wh.slide("packets", to=at(60))
        df = windrow.spark.sql(spark, wh, "SELECT s.src FROM (SELECT src FROM packets WHERE len >= 0) s")
        assert windrow.spark.about(df)["windows"][0]["stream"] == "packets"
        assert wh.status().readers == 1
        assert df.where("src >= 10").count() == 40
        windrow.spark.release(df)
        assert wh.status().readers == 0
        with pytest.raises(windrow.ClosedError):
            windrow.spark.about(df)


def test_one_snapshot_answers_several_statements(spark, wh):
    with windrow.spark.snapshot(spark, wh) as taken:
        counts = [
            windrow.spark.sql(spark, taken, f"SELECT count(*) FROM {name}").collect()[0][0]
            for name in ("packets", "calls")
        ]
    assert counts == [wh.sql(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in ("packets", "calls")]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("SELECT nope FROM packets [WINDOW 5 MINUTES]", windrow.QueryError, "`nope` cannot be resolved"),
        (
            "SELECT * FROM pakets [WINDOW 1 MINUTE]",
            windrow.UnknownStreamError,
            "there is no stream 'pakets'; the streams are",
        ),
        ("SELECT * FROM nothing", windrow.QueryError, "`nothing` cannot be found"),
        ("SELECT 1 FROM packets [WINDOW 3 HOURS]", windrow.WindowError, "keeps rows for 10 minutes"),
        ("SELECT * FRM packets [WINDOW 1 MINUTE]", windrow.QueryError, "Syntax error"),
        ("SELECT * FROM packets [WINDOW 1 PARSEC]", windrow.QueryError, "PARSEC"),
        ("DROP VIEW packets", windrow.ConfinementError, "only queries can be asked here, not DropView"),
        ("INSERT INTO t SELECT * FROM packets", windrow.ConfinementError, "not InsertIntoStatement"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", windrow.ConfinementError, "only queries"),
        ("EXPLAIN SELECT 1", windrow.ConfinementError, "windrow.spark.explain"),
    ],
)
def test_a_mistake_is_one_sentence(spark, wh, text, error, message):
    with pytest.raises(error) as raised:
        windrow.spark.sql(spark, wh, text)
    assert message in str(raised.value)
    assert "== SQL" not in str(raised.value)
    assert "+-" not in str(raised.value)


def test_a_damaged_file_is_an_error_and_no_answer(spark, tmp_path):
    with windrow.open(tmp_path / "damaged") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        made = [{"ts": at(n), "src": n, "len": n * 7919 % 1000, "note": "a"} for n in range(1, 2000)]
        wh.append("packets", pa.Table.from_pylist(made, SCHEMA))
        wh.slide("packets", to=at(3600 * 2))
        wh.append("packets", pa.Table.from_pylist([row | {"ts": at(7201)} for row in made[:5]], SCHEMA))
        wh.slide("packets", to=at(7260))
        (file,) = (path for path in Path(tmp_path / "damaged").rglob("segments/*.parquet") if path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[40] ^= 1
        file.chmod(0o600)
        file.write_bytes(data)
    with windrow.open(tmp_path / "damaged") as wh, pytest.raises(windrow.DamageError):
        windrow.spark.sql(spark, wh, "SELECT sum(len), max(note), count(ts), sum(src) FROM packets").collect()


def test_windows_that_the_optimizer_could_take_for_one_are_both_compared_with_their_checksums(spark, tmp_path):
    """Spark merges subqueries over equal relations, and knows nothing yet of windows at the edge of files."""
    with windrow.open(tmp_path / "alike") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        for minute in range(2):
            made = [{"ts": at(60 * minute + n / 10), "src": n, "len": n, "note": "a"} for n in range(1, 500)]
            wh.append("packets", pa.Table.from_pylist(made, SCHEMA))
            wh.slide("packets", to=at(60 * minute + 60))
        newest = max(Path(tmp_path / "alike").rglob("segments/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        chunk = pq.read_metadata(newest).row_group(0).column(SCHEMA.get_field_index("len"))
        data = bytearray(newest.read_bytes())
        data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
        newest.chmod(0o600)
        newest.write_bytes(data)
    value = "(SELECT sum(len) FROM packets [FROM TIMESTAMP '{}' TO TIMESTAMP '{}'])"
    windows = [value.format(at(start).isoformat(), at(start + 20).isoformat()) for start in (10, 70)]
    with windrow.open(tmp_path / "alike") as wh:
        assert windrow.spark.sql(spark, wh, f"SELECT {windows[0]}").collect()[0][0]
        for both in (windows, windows[::-1]):
            with pytest.raises(windrow.DamageError):
                windrow.spark.sql(spark, wh, f"SELECT {', '.join(both)}").collect()


def test_the_past_is_asked_in_sparks_sql_too(spark, tmp_path):
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    with windrow.open(tmp_path / "past") as wh:
        wh.create_stream(
            "packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="3 minutes", history="1 hour",
            index=windrow.Index("round-robin", 2, 2, maintenance="rebuild"),
        )  # fmt: skip
        wh.put_table("hosts", pa.table({"src": pa.array(range(5), pa.int64()), "host": [f"h{n}" for n in range(5)]}))
        kept: list[dict[str, Any]] = []
        live, commits = {}, {}
        for minute in range(8):
            batch = [
                {"ts": at(60 * minute + rng.uniform(0.001, 60)), "src": rng.randrange(9), "len": n, "note": None}
                for n in range(30)
            ]
            kept += batch
            wh.append("packets", pa.Table.from_pylist(batch, SCHEMA))
            wh.slide("packets", to=at(60 * minute + 60))
            live[minute] = sorted((row["src"], row["len"]) for row in kept if row["ts"] > at(60 * minute - 120))
            commits[minute] = wh.sql("SELECT 1 FROM packets").version

        def ask_spark(text: str) -> list[tuple[Any, ...]]:
            return sorted(tuple(row) for row in windrow.spark.sql(spark, wh, text).collect())

        then = at(60 * 4).isoformat()
        assert ask_spark(f"SELECT src, len FROM packets [AS OF TIMESTAMP '{then}']") == live[3]
        assert ask_spark(f"SELECT src, len FROM packets [AS OF COMMIT {commits[5]}]") == live[5]
        everything = sorted((row["src"], row["len"]) for row in kept)
        assert ask_spark("SELECT src, len FROM packets [INCLUDING EXPIRED]") == everything
        both = f"SELECT count(*), (SELECT count(*) FROM packets) FROM packets [AS OF TIMESTAMP '{then}'] WHERE src = 3"
        assert ask_spark(both) == [(sum(src == 3 for src, _ in live[3]), len(live[7]))]
        with pytest.raises(windrow.QueryError, match="cannot be asked of the past"):
            windrow.spark.sql(spark, wh, f"SELECT now() FROM packets [AS OF TIMESTAMP '{then}']")


def test_a_mistake_pins_nothing(spark, tmp_path):
    with windrow.open(tmp_path / "wh") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", slide="1 minute", lifetime="10 minutes")
        for text in ("SELECT nope FROM packets", "SELECT 1 FROM packets [WINDOW 3 HOURS]", "DROP VIEW packets"):
            with pytest.raises(windrow.WindrowError):
                windrow.spark.sql(spark, wh, text)
        assert wh.status().readers == 0


def test_rows_that_a_view_has_ended_are_not_read(spark, wh, rows):
    with wh.snapshot() as snapshot:
        assert any(segment.ended for segment in snapshot.view("unmet").segments)
    frame = windrow.spark.read(spark, wh, "unmet", columns=["src", "len"])
    expected = plain(rows, f"SELECT src, len FROM packets WHERE src NOT IN (SELECT src FROM {last(60, 'calls')})")
    assert collected(frame) == sorted(map(repr, expected))
    windrow.spark.release(frame)
