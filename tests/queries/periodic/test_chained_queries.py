"""Periodic queries over results of others, against the same SQL over what plain Python says these delivered."""

import datetime as dt
import random
from dataclasses import replace

import pyarrow as pa
import pytest

import windrow
from windrow.catalog.records import Role
from windrow.queries import isolation
from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
START, MINUTE = dt.datetime(2025, 3, 28, tzinfo=dt.UTC), dt.timedelta(minutes=1)
EACH = "SELECT count(*) AS n FROM a [WINDOW 1 MINUTE SLIDE 1 MINUTE]"


def fill(wh: windrow.Warehouse, minute: int, count: int, late: tuple[int, ...] = ()) -> None:
    rows = [{"ts": START + MINUTE * minute, "k": 1}] * count + [{"ts": START + MINUTE * m, "k": 2} for m in late]
    wh.append("a", pa.Table.from_pylist(rows, SCHEMA))
    wh.slide("a", to=START + MINUTE * minute)


def read(wh: windrow.Warehouse, name: str, columns: str) -> list[tuple[object, ...]]:
    slide = wh.stream("a").slide
    minute = (wh.now("a") - START) // MINUTE
    return wh.sql(f"SELECT _slide - {slide - minute}, {columns} FROM {name} ORDER BY ALL").fetchall()


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "w") as warehouse:
        warehouse.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
        warehouse.slide("a", to=START)
        yield warehouse


def test_a_query_over_results_reads_those_of_its_own_slide(wh):
    """The reproduction thesis-query-over-results-is-one-run-behind."""
    wh.add_query("alone", EACH)
    wh.add_query("alarm", f"SELECT ({EACH}) AS now_n, max(n) AS best, max(_window_end) AS upto FROM alone")
    for minute in (1, 2, 3):
        fill(wh, minute, minute)
        assert [(run.query, run.outcome) for run in wh.run_due()] == [("alone", "delivered"), ("alarm", "delivered")]
    assert read(wh, "alarm", "now_n, best, upto") == [(m, m, m, START + MINUTE * m) for m in (1, 2, 3)]


@pytest.mark.parametrize("missed", ["latest", "every"])
def test_chained_results_are_sql_over_the_oracles_results(wh, missed):
    choice = random.Random(seed := 186)
    print("seed", seed)
    wh.add_query("each", EACH, revise="5 minutes", missed=missed)
    wh.add_query(
        "sums",
        "SELECT sum(n) AS s, count(*) AS c FROM each [WINDOW 4 MINUTES SLIDE 2 MINUTES]",
        revise="6 minutes",
        missed=missed,
    )
    wh.add_query(
        "best", "SELECT max(s) AS m, list(c ORDER BY _slide) AS l FROM sums", missed=missed, revise="9 minutes"
    )
    counts: dict[int, int] = {}
    for minute in range(1, 17):
        late = tuple(minute - choice.randint(1, 4) for _ in range(choice.choice((0, 0, 2))) if minute > 5)
        counts[minute] = choice.randint(0, 3)
        for each in late:
            counts[each] += 1
        fill(wh, minute, counts[minute], late)
        for run in wh.run_due():
            assert run.outcome == "delivered"
        assert wh.run_due() == []
    assert read(wh, "each", "n") == sorted(counts.items())
    sums = {m: [counts[w] for w in range(m - 3, m + 1) if w in counts] for m in range(2, 17, 2)}
    assert read(wh, "sums", "s, c")[-7:] == [(m, sum(rows), len(rows)) for m, rows in sums.items()][-7:]
    newest = read(wh, "best", "m, len(l)")[-1]
    assert newest == (16, max(sum(rows) for rows in sums.values()), len(sums))
    statuses = {query.name: query for query in wh.queries()}
    assert statuses["each"].revisions
    assert statuses["sums"].revisions
    assert statuses["sums"].outdated == 0


def test_results_alone_pace_a_query_and_it_waits_for_them(wh):
    wh.put_table("limits", pa.table({"most": [1]}))
    wh.add_query("each", "SELECT count(*) // (SELECT most FROM limits) AS n FROM a [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
    wh.add_query("above", "SELECT count(*) AS c, max(n) AS n FROM each")
    assert {query.name: query.period for query in wh.queries()}["above"] == "1 minute"
    fill(wh, 1, 1)
    assert [(run.query, run.outcome) for run in wh.run_due()] == [("each", "delivered"), ("above", "delivered")]
    wh.put_table("limits", pa.table({"most": [0]}))
    fill(wh, 2, 2)
    assert [(run.query, run.outcome) for run in wh.run_due()] == [("each", "failed")]
    assert read(wh, "above", "c") == [(1, 1)], "it waits for the run that failed"
    wh.put_table("limits", pa.table({"most": [1]}))
    assert wh.run_due(["each"], now=True)[0].outcome == "delivered"
    assert [(run.query, run.outcome) for run in wh.run_due()] == [("above", "delivered")]
    assert read(wh, "above", "c, n") == [(1, 1, 1), (2, 2, 2)]


def test_windows_of_results_go_by_the_end_of_their_window(wh):
    wh.add_query("each", EACH, keep=10)
    for minute in range(1, 8):
        fill(wh, minute, minute)
        wh.run_due()
    fill(wh, 8, 1)  # not yet delivered: the clock of results is their newest window
    asked = {
        "[WINDOW 3 MINUTES]": [5, 6, 7],
        "[SINCE TIMESTAMP '2025-03-28 00:05:00']": [6, 7],
        "[FROM TIMESTAMP '2025-03-28 00:01:00' TO TIMESTAMP '2025-03-28 00:03:00']": [2, 3],
        "[HOUR 'Europe/Berlin']": [1, 2, 3, 4, 5, 6, 7],
        "[HOUR 'Europe/Berlin' PREVIOUS 1]": [],
        "": [1, 2, 3, 4, 5, 6, 7],
    }
    for clause, rows in asked.items():
        assert wh.sql(f"SELECT n FROM each {clause} ORDER BY n").fetchall() == [(n,) for n in rows]
    with pytest.raises(windrow.QueryError, match="whose windows go by _window_end"):
        wh.sql("SELECT n FROM each [ROWS 3]")
    with pytest.raises(windrow.WindowError, match="keeps results for 10 minutes"):
        wh.add_query("bad", "SELECT 1 FROM each [WINDOW 11 MINUTES SLIDE 1 MINUTE]")


def test_cycles_are_refused_and_the_plan_shows_the_order(wh):
    wh.add_query("each", EACH)
    wh.add_query("second", "SELECT max(n) AS n FROM each")
    wh.add_query("third", "SELECT max(n) AS n FROM second")
    assert [(group.queries, group.after) for group in wh.query_plan()] == [
        (("each",), ()), (("second",), ("each",)), (("third",), ("second",)),
    ]  # fmt: skip
    wh.drop_query("each")
    with pytest.raises(windrow.DefinitionError, match="each reads third, third reads second, second reads each"):
        wh.add_query("each", "SELECT max(n) AS n FROM third")
    assert [query.name for query in wh.queries()] == ["second", "third"]


def test_a_role_that_may_not_use_the_windows_end_still_gets_windows(wh):
    wh.add_query("each", EACH)
    for minute in range(1, 4):
        fill(wh, minute, minute)
        wh.run_due()
    role = Role(name="guest", rights=("read",), grants={"each": ("n",)})
    context = replace(STATEMENT_CONTEXT, role=role)
    answer = isolation.answer_query(wh._store, "SELECT * FROM each [WINDOW 2 MINUTES] ORDER BY n", context=context)
    assert (answer.columns, answer.fetchall()) == (["n"], [(2,), (3,)])
    with pytest.raises(windrow.QueryError, match="_window_end"):
        isolation.answer_query(wh._store, "SELECT _window_end FROM each", context=context)
