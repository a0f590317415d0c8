"""Groups of every type: a synopsis gives the groups that plain SQL makes of all rows, and harms no other query."""

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import plain_duckdb
import scratch_folders
import windrow
from packet_warehouse import NOON

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("i", pa.int64()), ("f", pa.float64())])
FLOATS = (0.0, -0.0, float("nan"), 1.5, None, -float("nan"))
WINDOW = "[WINDOW 4 MINUTES SLIDE 1 MINUTE]"
GROUPS = {
    "float": "f",
    "single": "f::FLOAT",
    "list": "[i, f]",
    "struct": "{'a': i, 'b': f::VARCHAR}",
    "map": "MAP {'a': i % 2}",
    "enum": "(CASE i % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END)::ENUM('a', 'b', 'c')",
    "interval": "CASE i % 2 WHEN 0 THEN INTERVAL 1 MONTH ELSE INTERVAL 30 DAYS END",
    "endless": "CASE i % 2 WHEN 0 THEN DATE 'infinity' ELSE DATE '2025-01-01' END",
    "before Christ": "CASE i % 2 WHEN 0 THEN TIMESTAMP '0044-03-15 (BC) 00:00:00' END",
    "midnight": "CASE i % 2 WHEN 0 THEN TIME '24:00:00' ELSE TIME '00:00:00' END",
    "uuid": "('00000000-0000-0000-0000-00000000000' || i % 3)::UUID",
    "bytes": "encode((i % 3)::VARCHAR)",
    "decimal": "(i % 3)::DECIMAL(30, 2)",
    "wide": "(i % 3)::HUGEINT",
    "nothing": "NULL",
}


def rows(minute: int) -> list[dict[str, Any]]:
    """Each minute has other signs of nothing and of what is no number, so that groups meet only when slots do."""
    instant = NOON + dt.timedelta(minutes=minute) - dt.timedelta(seconds=1)
    numbers = range(minute, minute + 4)
    return [{"ts": instant, "i": i, "f": FLOATS[i % len(FLOATS)]} for i in numbers]


@pytest.fixture
def wh():
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as made:
        create(made)
        yield made


def create(wh: windrow.Warehouse) -> None:
    wh.create_stream("s", SCHEMA, time="ts", key="i", slide="1 minute", lifetime="16 minutes")
    move(wh, 1, 1)


def move(wh: windrow.Warehouse, first: int, last: int) -> list[dict[str, Any]]:
    added = []
    for minute in range(first, last + 1):
        added += rows(minute)
        wh.append("s", pa.Table.from_pylist(rows(minute), SCHEMA))
        wh.slide("s", to=NOON + dt.timedelta(minutes=minute))
    return added


def plain(sql: str, live: list[dict[str, Any]]) -> Counter[str]:
    with plain_duckdb.connect() as connection:
        connection.register("s", pa.Table.from_pylist(live, SCHEMA))
        return told(connection.execute(sql).fetchall())


def told(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(repr(row).replace("-0.0", "0.0").replace("-nan", "nan") for row in rows)


ALONE = "SELECT n, total FROM (SELECT {} AS g, count(*) AS n, sum(i) AS total FROM s @ GROUP BY g)"
SIMPLE = "SELECT {} AS g, count(*) AS n, max(i) AS m FROM s @ GROUP BY g"


@pytest.fixture(scope="module")
def grouped():
    """A warehouse with two queries for each type of a group, all of them run once; its runs, and its live rows."""
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as made:
        create(made)
        for index, group in enumerate(GROUPS.values()):
            for kind, text in (("alone", ALONE), ("simple", SIMPLE)):
                made.add_query(f"{kind}{index}", text.format(group).replace("@", WINDOW))
        made.add_query("other", f"SELECT i % 2 AS odd, count(*) AS n FROM s {WINDOW} GROUP BY 1")
        live = move(made, 2, 5)
        yield made, {run.query: run for run in made.run_due()}, live


@pytest.mark.parametrize("name", GROUPS)
def test_a_synopsis_makes_the_groups_of_plain_sql(grouped, name):
    (wh, ran, live), group, position = grouped, GROUPS[name], [*GROUPS].index(name)
    assert {ran[query].outcome for query in (f"alone{position}", f"simple{position}")} == {"delivered"}, ran
    simple = SIMPLE.format(group)
    counted = plain(f"SELECT n, m FROM ({simple.replace('@', '')})", live)
    assert told([row[-2:] for row in wh.results(f"simple{position}").fetchall()]) == counted
    alone = plain(ALONE.format(group).replace("@", ""), live)
    assert told([row[-2:] for row in wh.results(f"alone{position}").fetchall()]) == alone
    for level in ("snapshot", "latest"):
        again = wh.sql(f"SELECT n, m FROM ({simple.replace('@', WINDOW)})", isolation=level).fetchall()
        assert told(again) == counted
        once = wh.sql(simple.replace("@", "[WINDOW 4 MINUTES]"), isolation=level).fetchall()
        assert told([row[1:] for row in once]) == counted


def test_groups_of_every_type_harm_no_other_query(grouped):
    wh, ran, _ = grouped
    assert {run.outcome for run in ran.values()} == {"delivered"}, ran
    assert ran["other"].how != "snapshot", "what is tested here are synopses"
    assert wh.check().ok


@pytest.mark.parametrize(
    "value", ["CASE i % 2 WHEN 0 THEN '101'::BIT END", "md5_number((i % 3)::VARCHAR)"], ids=["bits", "unsigned"]
)
def test_what_arrow_has_not_is_never_kept_but_computed(wh, value):
    """Bit strings came back as the bits of their bytes."""
    sql = f"SELECT {value} AS g, count(*) AS n FROM s @ GROUP BY g"
    wh.add_query("hidden", f"SELECT n FROM ({sql.replace('@', WINDOW)})")
    wh.add_query("same", f"SELECT count(*) AS n FROM s {WINDOW} GROUP BY {value}")
    live = move(wh, 2, 5)
    assert {run.outcome for run in wh.run_due()} == {"delivered"}
    assert told(wh.sql(sql.replace("@", "[WINDOW 4 MINUTES]")).fetchall()) == plain(sql.replace("@", ""), live)
    assert told(wh.sql(sql.replace("@", "[WINDOW 4 MINUTES]"), isolation="latest").fetchall()) == plain(
        sql.replace("@", ""), live
    )


@pytest.mark.parametrize(("value", "kind"), [("'101'::BIT", "BIT"), ("i::BIGNUM", "BIGNUM")])
def test_results_views_and_tables_refuse_what_would_come_back_as_bytes(wh, value, kind):
    with pytest.raises(windrow.DefinitionError, match=f"column 'x' has the type {kind}, .*cast it"):
        wh.add_query("q", f"SELECT {value} AS x FROM s {WINDOW}")
    with pytest.raises(windrow.ViewError, match=f"column 'x' is of type {kind}; cast it"):
        wh.create_view("v", f"SELECT {value} AS x FROM s")
    with pytest.raises(windrow.DefinitionError, match=f"column 'x' of type {kind} would come back as bytes; cast it"):
        wh.put_table("t", wh.sql(f"SELECT {value} AS x FROM s"))


def test_an_interval_that_results_cannot_keep_fails_its_own_run(wh):
    """Counted in microseconds it would have become another one."""
    text = "SELECT CASE WHEN max(i) > 4 THEN INTERVAL 200000000 DAYS ELSE INTERVAL 100000000 DAYS END AS x"
    wh.add_query("long", f"{text} FROM s {WINDOW}")
    wh.add_query("other", f"SELECT count(*) AS n FROM s {WINDOW}")
    outcomes = []
    for minute in (2, 3):
        move(wh, minute, minute)
        outcomes.append({run.query: (run.outcome, run.error) for run in wh.run_due()})
    error = "the interval '200000000 days' is longer than results can keep; cast it to text"
    assert outcomes[0]["long"] == ("failed", error)
    assert outcomes[1]["other"] == ("delivered", None)


@pytest.mark.parametrize("value", ["INTERVAL 1 DAY", "[INTERVAL 1 DAY]", "union_value(x := 1)"])
def test_frames_that_cannot_hold_a_type_say_so(wh, value):
    with pytest.raises(windrow.QueryError, match=r"polars cannot hold column 'x' .*cast it, or read it with arrow\(\)"):
        wh.sql(f"SELECT {value} AS x").pl()
    if "union" in value:
        with pytest.raises(windrow.QueryError, match=r"pandas cannot hold this answer .*arrow\(\)"):
            wh.sql(f"SELECT {value} AS x").df()


@pytest.mark.parametrize("by", ["", "i % 2", "f", "{'a': f, 'b': i % 2}"])
@pytest.mark.parametrize("counted", ["f", "f::FLOAT", "[f]", "i", "f > 1"])
def test_values_of_every_type_are_counted_once(wh, counted, by):
    grouped = f" GROUP BY {by}" if by else ""
    sql = f"SELECT count(DISTINCT {counted}) AS d FROM s @{grouped}"
    for name, window in (("a", 4), ("b", 3), ("c", 8)):
        wh.add_query(name, sql.replace("@", f"[WINDOW {window} MINUTES SLIDE 1 MINUTE]"))
    live = rows(1) + move(wh, 2, 9)
    assert {run.outcome for run in wh.run_due()} == {"delivered"}
    for name, window in (("a", 4), ("b", 3), ("c", 8)):
        within = [row for row in live if row["ts"] > NOON + dt.timedelta(minutes=9 - window)]
        assert told([row[-1:] for row in wh.results(name).fetchall()]) == plain(sql.replace("@", ""), within)
    assert wh.check().ok
