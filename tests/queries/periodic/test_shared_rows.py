"""Statements over rows that a round reads once: each gives what plain SQL gives over the live rows, and goes in its turn."""

import datetime as dt
import os
import random
import threading
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import packet_warehouse
import plain_duckdb
import scratch_folders
import windrow
from windrow import arrow_input, small_append
from windrow.queries.periodic import evaluation
from windrow.queries.planner.row_cache import RowCache
from windrow.queries.priorities import BACKGROUND, PROCESS_GATE, PoliteWork, PriorityGate, YieldingReader

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("k", pa.int64()), ("v", pa.float64()), ("tag", pa.string()), ("ends", STAMP)])
STATEMENTS = [
    "SELECT a.k, count(*) AS n FROM s @7 a JOIN s @3 b USING (k) GROUP BY a.k",
    "SELECT * FROM s @2 WHERE v > 5",
    "SELECT s FROM s @4 s ORDER BY s.k, s.v, s.ts, s.tag LIMIT 3",
    "SELECT count(*) AS n FROM s @5 NATURAL JOIN names",
    "SELECT k, name, sum(v) AS total FROM s LEFT JOIN names USING (k) GROUP BY ALL",
    "SELECT tag, max(n) AS m FROM (SELECT tag, k, count(*) AS n FROM s @6 GROUP BY ALL) GROUP BY tag",
    "SELECT * FROM (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC, ts) AS r FROM s @6) WHERE r = 1",
    "WITH s2 AS (SELECT * FROM s @1) SELECT count(*) AS n, min(v) AS low FROM s2",
    "SELECT COLUMNS('k|v') FROM s @3 WHERE tag = 'a'",
    "SELECT count(*) AS n, (SELECT avg(v) FROM s @7 WHERE k = 2) AS mean FROM s @1",
]


class World:
    """A stream with late rows, rows ahead of the clock and, if wanted, lifetimes of their own; and all rows of it."""

    def __init__(self, wh: windrow.Warehouse, seed: int, *, variable: bool) -> None:
        self.wh, self.chance, self.minute, self.rows = wh, random.Random(seed), 0, list[dict[str, Any]]()
        self.variable = variable
        lives = {"expires": "ends", "max_lifetime": "8 minutes"} if variable else {"lifetime": "8 minutes"}
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", max_ahead="1 hour", **lives)
        wh.put_table("names", pa.table({"k": pa.array([1, 2, 3], pa.int64()), "name": ["x", "y", "z"]}))
        wh.slide("s", to=NOON)

    def move(self) -> None:
        """A minute."""
        self.minute += 1
        rows = []
        for _ in range(self.chance.randint(0, 30)):
            ts = NOON + dt.timedelta(minutes=self.minute, seconds=self.chance.randint(-150, 60))
            life = dt.timedelta(seconds=self.chance.randint(200, 480) if self.variable else 480)
            rows.append({"ts": ts, "k": self.chance.randint(0, 5), "v": self.chance.randint(0, 9) / 2,
                         "tag": self.chance.choice("ab"), "ends": ts + life})  # fmt: skip
        self.rows += rows
        self.wh.append("s", pa.Table.from_pylist(rows, SCHEMA))
        self.wh.slide("s", to=self.now)

    @property
    def now(self) -> dt.datetime:
        return NOON + dt.timedelta(minutes=self.minute)

    def plain(self, statements: list[str]) -> list[list[str]]:
        """What plain SQL gives over the live rows."""
        with plain_duckdb.connect() as connection:
            live = [row for row in self.rows if row["ts"] <= self.now < row["ends"]]
            connection.register("live", pa.Table.from_pylist(live, SCHEMA))
            connection.execute("CREATE TEMP TABLE s AS FROM live")
            connection.execute(
                "CREATE TEMP TABLE names AS SELECT unnest([1, 2, 3]) AS k, unnest(['x', 'y', 'z']) AS name"
            )
            for minutes in range(1, 8):
                after = self.now - dt.timedelta(minutes=minutes)
                connection.execute(f"CREATE TEMP TABLE s{minutes} AS FROM s WHERE ts > TIMESTAMPTZ '{after}'")
            texts = [text.replace("s @4 s", "s4 AS s").replace("NATURAL", "AS s NATURAL") for text in statements]
            return [_in_order(connection.execute(text.replace("s @", "s")).fetchall()) for text in texts]


def _in_order(rows: list[tuple[Any, ...]]) -> list[str]:
    return sorted(repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "<UTC>") for row in rows)


@pytest.mark.parametrize(("synopses", "variable"), [("always", True), ("where they pay", False)])
def test_shared_rows_give_what_plain_sql_gives(variable, synopses, monkeypatch):
    monkeypatch.setenv("WINDROW_SYNOPSES", synopses)
    monkeypatch.setattr(evaluation._RowStatements, "_answer_alone", _refuse)
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as wh:
        world = World(wh, 5, variable=variable)
        world.move()
        for number, text in enumerate(STATEMENTS):
            windowed = text
            for minutes in range(1, 8):
                windowed = windowed.replace(f"@{minutes}", f"[WINDOW {minutes} MINUTES SLIDE 1 MINUTE]")
            wh.add_query(f"q{number}", windowed, slide="1 minute")
        for _ in range(10):
            world.move()
            runs = {run.query: run for run in wh.run_due()}
            assert {run.outcome for run in runs.values()} == {"delivered"}, [run.error for run in runs.values()]
            for number, (text, plain) in enumerate(zip(STATEMENTS, world.plain(STATEMENTS), strict=True)):
                rows = wh.results(f"q{number}", slide=runs[f"q{number}"].slide).fetchall()
                assert _in_order([row[6:] for row in rows]) == plain, (text, world.minute)


def test_rows_stay_in_memory_from_round_to_round_if_they_may(monkeypatch):
    """A round adds the segments that came since the last one; without memory for them statements run by themselves."""
    monkeypatch.delenv("WINDROW_SYNOPSES", raising=False)
    added, alone = [], []
    add, answer_alone = RowCache._add, evaluation._RowStatements._answer_alone

    def note(cache, demand, table, wanted):
        if cache._engine.threads == 1:  # not that of one-time statements
            added.append({*wanted} - {*table.numbers})
        return add(cache, demand, table, wanted)

    monkeypatch.setattr(RowCache, "_add", note)
    monkeypatch.setattr(
        evaluation._RowStatements,
        "_answer_alone",
        lambda work, query: alone.append(query.name) or answer_alone(work, query),
    )
    for cache_bytes in (None, 0):
        with scratch_folders.scratch_folder() as path, windrow.open(path / "w", cache_bytes=cache_bytes) as wh:
            world, statement = World(wh, 6, variable=False), STATEMENTS[1]
            for _ in range(3):
                world.move()
            wh.add_query("q", statement.replace("@2", "[WINDOW 2 MINUTES SLIDE 1 MINUTE]"))
            for _ in range(4):
                world.move()
                (run,) = wh.run_due()
                rows = wh.results("q", slide=run.slide).fetchall()
                assert _in_order([row[6:] for row in rows]) == world.plain([statement])[0]
            assert (wh.status().memory_rows > 0) == (cache_bytes is None)
    places = [place for batch in added for place in batch]
    assert len(added) >= 4 and len(places) == len(set(places)), "no segment is read a second time"
    assert alone == ["q"] * 4, "of the warehouse that may keep nothing"


def _refuse(_: object, query: Any) -> Any:
    raise AssertionError(f"{query.sql} was not answered from shared rows")


def test_what_is_not_plain_and_what_fails_harms_no_other(monkeypatch):
    monkeypatch.delenv("WINDROW_SYNOPSES")
    with packet_warehouse.open_packet_warehouse() as wh:
        clause = "packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]"
        for number in range(3):
            wh.add_query(f"sum{number}", f"SELECT sum(len) + {number} AS n FROM {clause}")
        wh.add_query("newest", "SELECT max(len) AS n FROM packets [ROWS 10]", slide="1 minute")
        wh.add_query("bound", f"SELECT count(*) AS n FROM {clause} WHERE src = $1", params=[7])
        wh.add_query(
            "breaks",
            f"SELECT CASE WHEN max(len) >= 599 AND max(note) = 'm21' THEN error('many') END AS n FROM {clause}",
        )
        packet_warehouse.append_and_slide(wh, 21)
        runs = {run.query: run for run in wh.run_due()}
        assert "many" in (runs["breaks"].error or "")
        assert {name for name, run in runs.items() if run.outcome == "delivered"} == {*runs} - {"breaks"}
        answers = {name: wh.results(name).fetchall()[0][6] for name in runs if name != "breaks"}
        assert answers == {"sum0": 359400, "sum1": 359401, "sum2": 359402, "newest": 599, "bound": 20}


# -- who goes first --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synopses", ["always", "where they pay"])
def test_a_query_of_higher_priority_goes_first_with_or_without_a_synopsis(synopses, monkeypatch):
    """A priority-100 join ran after every query that a synopsis answered."""
    monkeypatch.setenv("WINDROW_SYNOPSES", synopses)
    with packet_warehouse.open_packet_warehouse() as wh:
        for number in range(4):
            clause = f"packets [WINDOW {number + 2} MINUTES SLIDE 1 MINUTE]"
            wh.add_query(f"low{number}", f"SELECT src, count(*) AS n FROM {clause} GROUP BY src", priority=number % 2)
        wh.add_query("urgent", "SELECT count(*) AS n FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE] JOIN hosts USING (src)",
                     priority=100)  # fmt: skip
        packet_warehouse.append_and_slide(wh, 21)
        order = [run.query for run in wh.run_due()]
        assert order[0] == "urgent"
        assert {*order[1:3]} == {"low1", "low3"}
        assert {*order[3:]} == {"low0", "low2"}


def test_standing_queries_are_not_starved_and_their_wait_counts_not(monkeypatch):
    """One-time queries that overlap for ever held them back for ever; now they wait a while, and run."""
    monkeypatch.delenv("WINDROW_SYNOPSES")
    monkeypatch.setattr(evaluation, "YIELDING", PoliteWork(PROCESS_GATE, 0.4))
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("q", "SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]", timeout=0.3)
        packet_warehouse.append_and_slide(wh, 21)
        with PROCESS_GATE.running(0):
            assert [(run.query, run.outcome) for run in wh.run_due()] == [("q", "delivered")]


def test_polite_work_goes_on_for_as_long_as_it_has_waited():
    gate = PriorityGate()
    work = PoliteWork(gate, 0.05)
    assert work.pause() == 0.0
    with gate.running(0):
        waited = work.pause()
        assert waited >= 0.05
        assert work.pause() == 0.0, "it has waited, and may go on"
    assert work.pause() == 0.0


def test_a_standing_statement_is_suspended_between_its_reads():
    gate, order = PriorityGate(), list[str]()
    batches = [pa.RecordBatch.from_pydict({"x": [number]}) for number in range(3)]
    work = PoliteWork(gate, 60)
    reader = gate.batches(pa.RecordBatchReader.from_batches(batches[0].schema, batches), BACKGROUND, work.pause)
    assert reader.read_next_batch().num_rows == 1
    gate.begin(0)
    thread = threading.Thread(target=lambda: order.append(f"read {reader.read_next_batch().to_pylist()}"))
    thread.start()
    thread.join(0.05)
    order.append("one-time query ends")
    gate.end(0)
    thread.join(10)
    assert order == ["one-time query ends", "read [{'x': 1}]"]


def test_statements_over_shared_rows_are_suspended_too(monkeypatch):
    """They were read in one piece: who asked meanwhile waited for the whole answer."""
    reads = []
    suspended = PriorityGate()
    following = YieldingReader.read_next_batch
    monkeypatch.setattr(YieldingReader, "read_next_batch", lambda self: reads.append(b := following(self)) or b)
    monkeypatch.setattr("windrow.queries.periodic.shared_rows.PROCESS_GATE", suspended)
    monkeypatch.setattr(evaluation, "YIELDING", work := PoliteWork(suspended, 0.4))
    monkeypatch.setattr(evaluation._RowStatements, "_answer_alone", _refuse)
    pauses, pause = [], work.pause
    monkeypatch.setattr(work, "pause", lambda: pauses.append(len(reads)) or pause())
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("q", "SELECT src, len FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] JOIN hosts USING (src)")
        packet_warehouse.append_and_slide(wh, 21)
        assert [run.outcome for run in wh.run_due()] == ["delivered"]
    assert reads
    assert pauses == [0, *range(len(reads) + 1)], "before it starts, and before each read of its answer"


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="the system has no priorities of threads")
def test_the_system_runs_one_time_statements_before_standing_ones(monkeypatch):
    """Inside a statement only the system can suspend: its threads of standing queries come after all others."""
    actual, read = [], evaluation._RowStatements.answer

    def answer(self, query, pooled):
        actual.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return read(self, query, pooled)

    monkeypatch.setattr(evaluation._RowStatements, "answer", answer)
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("q", "SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] JOIN hosts USING (src)")
        packet_warehouse.append_and_slide(wh, 21)
        assert [run.outcome for run in wh.run_due()] == ["delivered"]
    priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert actual == [min(19, priority + evaluation._NICE)]


def test_a_statement_has_the_priority_that_it_is_given(monkeypatch):
    asked = []
    monkeypatch.setattr(PROCESS_GATE, "pause", lambda priority, timeout=None: asked.append(priority) or True)
    with packet_warehouse.open_packet_warehouse() as wh:
        assert wh.sql("SELECT count(*) FROM packets [WINDOW 1 MINUTE]", priority=7).fetchall() == [(600,)]
        with pytest.raises(windrow.QueryError, match="priority is 'high'; it must be a whole number"):
            wh.sql("SELECT 1", priority="high")
    assert set(asked) == {7}


def test_a_statement_that_ends_duckdb_ends_neither_the_round_nor_the_sharing(monkeypatch):
    """As with rows of older warehouses, which nobody checked."""
    for module in (arrow_input, small_append):
        monkeypatch.setattr(module, "check_values", lambda *_, **__: None)
    lowest = duckdb.sql(f"SELECT '{-(1 << 127)}'::HUGEINT AS v").to_arrow_table()["v"]
    rows = pa.table({"ts": pa.array([NOON], STAMP), "v": lowest})
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as wh:
        wh.create_stream("s", rows.schema, time="ts", slide="1 minute", lifetime="1 hour")
        wh.slide("s", to=NOON - dt.timedelta(minutes=1))
        read = "s [WINDOW 9 MINUTES SLIDE 1 MINUTE] a, s b"
        wh.add_query("fatal", f"SELECT upper(a.v::VARCHAR) AS u FROM {read}", priority=1)
        for number in range(3):
            wh.add_query(f"q{number}", f"SELECT a.ts, {number} AS n FROM {read}")
        wh.append("s", rows)
        wh.slide("s", to=NOON)
        runs = {run.query: run for run in wh.run_due()}
        assert "DuckDB itself failed" in (runs.pop("fatal").error or "")
        assert [run.outcome for run in runs.values()] == ["delivered"] * 3
        wh.drop_query("fatal")
        monkeypatch.setattr(evaluation._RowStatements, "_answer_alone", _refuse)
        wh.slide("s", to=NOON + dt.timedelta(minutes=1))
        assert [run.outcome for run in wh.run_due()] == ["delivered"] * 3
