"""What gives something else each time is told by what is called, and nothing else is taken for it."""

import datetime as dt
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

import scratch_folders
import windrow
from windrow.queries.planner import predicates
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.sql.statement import parse
from windrow.queries.sql.volatility import _volatile_functions, has_volatile_constant, list_volatile_functions
from windrow.queries.synopses.query_shape import analyse_statement
from windrow.snapshot import Snapshot

HOUR = dt.timedelta(hours=1)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("user", pa.string()), ("now", pa.int64())])
CLOCKS = (
    "now()",
    "today()",
    "NOW ( )",
    '"now"()',
    "main.now()",
    "ago(INTERVAL 1 HOUR)",
    "age(ts)",
    "ts.age()",
    "current_date",
    "CURRENT_TIMESTAMP",
    "localtimestamp",
    "transaction_timestamp()",
    "get_current_timestamp()",
    "pg_postmaster_start_time()",
)
STEADY = ('"now"', "nowhere", "current_price", "known", "'now'", "'unknown'", "age", '"user"', "sum(known)", "l[now]")


@pytest.fixture
def wh() -> Iterator[windrow.Warehouse]:
    """A row for every hour from some before this test to some after it."""
    start = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0) - 4 * HOUR
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w", clock=lambda: 1 << 60) as made:
        made.create_stream("s", SCHEMA, time="ts", key="src", slide="1 hour", lifetime="1 week")
        for number in range(9):
            row = {"ts": start + number * HOUR, "src": number, "user": "ann", "now": 1}
            made.append("s", pa.Table.from_pylist([row], SCHEMA))
            made.slide("s", to=start + number * HOUR)
        yield made


@pytest.mark.parametrize("clock", CLOCKS)
def test_clocks_are_told(clock):
    assert has_volatile_constant(parse(f"SELECT * FROM s WHERE ts > {clock}"))


@pytest.mark.parametrize("steady", STEADY)
def test_other_words_are_not_taken_for_them(steady):
    assert not has_volatile_constant(parse(f"SELECT * FROM s WHERE ts > {steady}"))


@pytest.mark.parametrize("word", ["now", "today", "tomorrow", "yesterday"])
@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMPTZ", "DATE", "TIME"])
def test_duckdb_reads_no_clock_out_of_strings(word, kind):
    """If it ever does, statements with such strings ask the clock."""
    assert duckdb.sql(f"SELECT try_cast('{word}' AS {kind})").fetchall() == [(None,)]


def test_predicates_on_the_clock_are_not_remembered(wh):
    """The clock moves on, so a bound that was collected before would leave out rows."""
    on_the_clock = (
        "SELECT count(*) FROM s WHERE ts <= ago(INTERVAL 0 HOUR)",
        "SELECT count(*) FROM s WHERE ts <= now()",
    )
    assert wh.sql(on_the_clock[0]).fetchall() == wh.sql(on_the_clock[1]).fetchall()
    cached = wh._store.shared.attached("predicates", predicates.PredicateCache)
    assert not [statement for statement, *_ in cached if statement in on_the_clock]
    assert [relation.segments[0] < relation.segments[1] for relation in wh.explain(on_the_clock[0]).relations] == [True]


@pytest.mark.parametrize("clock", ["ago(INTERVAL 1 HOUR)", "now()", "age(ts)", "current_date", "random()", "uuid()"])
def test_views_and_synopses_refuse_it(wh, clock):
    with pytest.raises(windrow.ViewError, match="gives something else each time"):
        wh.create_view("v", f"SELECT src, {clock} AS at FROM s")
    with Snapshot(wh._store) as snapshot, pytest.raises(CannotSplitError, match="differs from query to query"):
        analyse_statement(wh._store, snapshot, f"SELECT count(*) AS n, max({clock}) AS at FROM s [WINDOW 1 DAY]")


def test_columns_and_texts_with_such_names_are_theirs_to_keep(wh):
    statement = 'SELECT "user", "now" AS known FROM s WHERE "user" <> \'unknown\' AND age(ts, ts) = INTERVAL 0 DAY'
    wh.create_view("v", statement)
    assert wh.sql("SELECT count(*) FROM v").fetchall() == wh.sql(f"SELECT count(*) FROM ({statement})").fetchall()
    by_user = "SELECT user, count(*) AS n FROM s [WINDOW 1 DAY SLIDE 1 HOUR] GROUP BY user"
    wh.add_query("q", by_user)
    assert ["synopsis" in group.by for group in wh.query_plan()] == [True]
    assert wh.sql(by_user).fetchall() == [("ann", wh.sql("SELECT count(*) FROM s").fetchone()[0])]


def test_the_volatile_functions_that_are_known_are_those_that_duckdb_lists():
    assert _volatile_functions() == list_volatile_functions()
