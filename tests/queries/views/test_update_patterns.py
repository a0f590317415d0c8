"""Update patterns: which class each operator gives a plan, and what becomes of a view of that class."""

import pyarrow as pa
import pytest

import windrow
from windrow.queries.views.update_patterns import MAINTENANCE_TEXT, OVERRIDE_TEXT, Pattern

STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("exp", STAMP), ("k", pa.int64()), ("x", pa.int64())])
CASES = [
    # leaves
    ("SELECT k FROM ever", "monotonic"),
    ("SELECT k FROM ever [WINDOW 5 MINUTES]", "weakest"),
    ("SELECT k FROM a", "weakest"),
    ("SELECT k FROM own", "weak"),
    ("SELECT k FROM a [ROWS 10]", "strict"),
    # selections, projections
    ("SELECT k + 1 AS k FROM a WHERE x > 3", "weakest"),
    ("SELECT k FROM a [SINCE TIMESTAMP '2026-01-01']", "weakest"),
    # unions: one class only if all rows live equally long
    ("SELECT k FROM a UNION ALL SELECT k FROM b", "weakest"),
    ("SELECT k FROM a [WINDOW 5 MINUTES] UNION ALL SELECT k FROM b", "weak"),
    ("SELECT k FROM a UNION ALL SELECT k FROM own", "weak"),
    # joins: E8, one window is enough to be weak
    ("SELECT a.k FROM a JOIN b USING (k)", "weak"),
    ("SELECT a.k FROM a JOIN ever USING (k)", "weak"),
    ("SELECT p.k FROM ever p JOIN ever q USING (k)", "monotonic"),
    ("SELECT a.k FROM a, b, own WHERE a.k = b.k AND b.k = own.k", "weak"),
    ("SELECT a.k FROM a LEFT JOIN b USING (k)", "strict"),
    ("SELECT a.k FROM a ANTI JOIN b USING (k)", "strict"),
    ("SELECT a.k FROM a ASOF JOIN b ON a.k = b.k AND a.ts >= b.ts", "strict"),
    # tables
    ("SELECT a.k, name FROM a JOIN hosts USING (k)", "weakest"),
    ("SELECT a.k, name FROM a LEFT JOIN hosts USING (k)", "weakest"),
    ("SELECT a.k FROM a ANTI JOIN hosts USING (k)", "weakest"),
    ("SELECT ever.k, name FROM ever JOIN hosts USING (k)", "monotonic"),
    ("SELECT a.k, name FROM a JOIN b USING (k) JOIN hosts USING (k)", "weak"),
    ("SELECT hosts.k FROM hosts LEFT JOIN a USING (k)", "strict"),
    # duplicates
    ("SELECT DISTINCT k FROM a", "weak"),
    ("SELECT k FROM a UNION SELECT k FROM b", "weak"),
    ("SELECT DISTINCT k FROM ever", "monotonic"),
    ("SELECT DISTINCT ON (k) k, x FROM a", "strict"),
    # what later rows can change
    ("SELECT k, count(*) AS n FROM a GROUP BY k", "strict"),
    ("SELECT max(x) AS m FROM a", "strict"),
    ("SELECT k, row_number() OVER (ORDER BY ts) AS n FROM a", "strict"),
    ("SELECT k FROM a EXCEPT SELECT k FROM b", "strict"),
    ("SELECT k FROM a INTERSECT SELECT k FROM b", "strict"),
    ("SELECT k FROM a ORDER BY x LIMIT 3", "strict"),
    ("SELECT k FROM a WHERE k IN (SELECT k FROM b)", "strict"),
]


@pytest.fixture(scope="module")
def wh(tmp_path_factory):
    with windrow.open(tmp_path_factory.mktemp("patterns") / "warehouse") as wh:
        for name in "ab":
            wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        wh.create_stream("own", SCHEMA, time="ts", slide="1 minute", expires="exp", max_lifetime="10 minutes")
        wh.create_stream("ever", SCHEMA, time="ts", slide="1 minute")
        wh.put_table("hosts", pa.table({"k": pa.array([1, 2], pa.int64()), "name": ["one", "two"]}))
        yield wh


FROM_NEW_ROWS = {
    "SELECT k, count(*) AS n FROM a GROUP BY k",
    "SELECT max(x) AS m FROM a",
    "SELECT k FROM a [ROWS 10]",
}
"""Strict plans that are kept from what changes."""


@pytest.mark.parametrize(("sql", "pattern"), CASES)
def test_a_view_has_the_class_of_its_plan_and_the_index_of_its_class(wh, sql, pattern):
    view = wh.create_view("v", sql)
    try:
        status = wh.stream("v")
        assert view.pattern == pattern == status.definition.update_pattern
        operators = ("LEFT JOIN", "ANTI JOIN", "EXCEPT", "INTERSECT", " IN ")
        kept_up = (
            pattern == "strict"
            and "hosts" not in sql
            and (any(word in sql for word in operators) or sql in FROM_NEW_ROWS)
        )
        assert view.recomputed == (pattern == "strict" and not kept_up)
        layout = {
            "monotonic": "append-only",
            "weakest": "wave-insertion",
            "weak": "round-robin",
            "strict": "round-robin" if kept_up else "wave-insertion",
        }
        assert status.index.startswith(layout[pattern])
        lines = str(wh.explain(sql)).splitlines()
        assert any(line.startswith(f"update pattern: {pattern}") for line in lines)
        text = OVERRIDE_TEXT if kept_up else MAINTENANCE_TEXT[Pattern[pattern.upper()]]
        assert any(text in line for line in lines)
    finally:
        wh.drop_view("v")


def test_a_retroactive_table_makes_a_plan_strict(wh):
    view = wh.create_view("v", "SELECT a.k, name FROM a JOIN hosts USING (k)", retroactive="hosts")
    assert (view.pattern, view.recomputed) == ("strict", True)
    assert "hosts" in view.why
    wh.drop_view("v")


def test_streams_have_a_class_too(wh):
    actual = {name: wh.stream(name).definition.update_pattern for name in ("a", "own", "ever")}
    assert actual == {"a": "weakest", "own": "weak", "ever": "monotonic"}


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT k, now() AS t FROM a", "now()"),
        ("SELECT k, random() AS r FROM a", "random()"),
        ("SELECT k FROM a WHERE ts > current_timestamp", "current_timestamp"),
        ("SELECT k, epoch(age(CAST(ts AS TIMESTAMP))) AS t FROM a", "age()"),
        ("SELECT k FROM a TABLESAMPLE 50% (bernoulli)", "a sample is another one each time"),
        ("SELECT k FROM a USING SAMPLE 3 ROWS", "a sample is another one each time"),
        ("SELECT a.k FROM a JOIN b TABLESAMPLE 50% (system) USING (k)", "a sample is another one each time"),
        ("SELECT name FROM windrow.streams", "is of the catalog; a view reads streams and tables"),
        ("SELECT k FROM a WHERE x = $1", "parameters"),
        ("SELECT k FROM hosts", "no stream"),
        ("SELECT k FROM a ORDER BY k", "ORDER BY"),
        ("WITH q AS (SELECT k FROM a) SELECT k FROM q", "view of its own"),
        ("SELECT k FROM (SELECT k FROM a)", "view of its own"),
        ("SELECT DISTINCT k FROM a UNION ALL SELECT k FROM b", "view of its own"),
        ("SELECT COLUMNS('k') FROM a", "name the columns"),
        ("SELECT k FROM a [WINDOW 1 HOUR]", "would not be complete"),
        ("SELECT k FROM a [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "leave SLIDE out"),
        ("SELECT k FROM a UNION ALL SELECT k FROM ever", "never do"),
        ("EXPLAIN SELECT k FROM a", "without EXPLAIN"),
        ("FROM a", "SELECT"),
        ("SELECT ts FROM nowhere", "nowhere"),
        ("SELECT nothing FROM a", "nothing.*check the names and types in its statement"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_view_is_refused_with_the_reason(wh, sql, says):
    with pytest.raises(windrow.WindrowError, match=says.replace("(", r"\(").replace(")", r"\)")):
        wh.create_view("v", sql)
    assert wh.views() == []


@pytest.mark.parametrize("sql", ["SELECT k, count(*) AS n FROM a GROUP BY k", "SELECT DISTINCT k FROM a"])
def test_restore_is_refused_where_it_has_no_meaning(wh, sql):
    with pytest.raises(windrow.ViewError, match="restore"):
        wh.create_view("v", sql, restore=True)
