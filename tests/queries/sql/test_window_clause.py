"""What each window clause means, and where it may stand: checked by what a reference binds to when DuckDB runs it."""

import datetime as dt

import pyarrow as pa
import pytest

import plain_duckdb
from windrow.errors import QueryError
from windrow.queries.sql.statement import Statement, parse
from windrow.queries.sql.window_spec import (
    AllRows,
    CountWindow,
    FixedWindow,
    LandmarkWindow,
    OffsetWindow,
    RangeWindow,
    SessionWindow,
)

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
NEW_YEAR = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()) * SECOND


def windows(text: str) -> list[object]:
    return [reference.window for reference in parse(text).references]


def ask(text: str, params: object = None) -> list[tuple[object, ...]]:
    """Run a statement over relations of two rows whose column `w` says which stream and window they stand for."""
    statement = parse(text)
    with plain_duckdb.connect() as connection:
        for reference in statement.references:
            label = f"{reference.name} {reference.window}"
            rows = pa.table({"src": [1, 2], "len": [10, 20], "l": [[1, 2], [3, 4]], "w": [label, label]})
            connection.register(reference.relation, rows)
        return connection.execute(statement.sql, params).fetchall()


def unchanged_outside(statement: Statement) -> bool:
    """The SQL differs from the text only where a window was cut out, and nothing moved."""
    text, sql = statement.text.encode(), statement.sql.encode()
    for reference in statement.references:
        if reference.span is not None and reference.relation != reference.name:
            start, stop = (len(statement.text[:position].encode()) for position in reference.span)
            text = text[:start] + sql[start:stop] + text[stop:]
    return text == sql


@pytest.mark.parametrize(
    ("clause", "window"),
    [
        ("", AllRows()),
        ("[WINDOW 10 MINUTES]", RangeWindow(10 * MINUTE)),
        ("[window 1 minute]", RangeWindow(MINUTE)),
        ("[Range 1 Hour]", RangeWindow(HOUR)),
        ("[WINDOW 1.5 HOURS]", RangeWindow(90 * MINUTE)),
        ("[WINDOW 1 HOUR 30 MINUTES]", RangeWindow(90 * MINUTE)),
        ("[WINDOW 2 WEEKS]", RangeWindow(14 * DAY)),
        ("[WINDOW 1 DAY]", RangeWindow(DAY)),
        ("[WINDOW 250 MILLISECONDS]", RangeWindow(250_000)),
        ("[WINDOW 7 microseconds]", RangeWindow(7)),
        ("[WINDOW 1_000 us]", RangeWindow(1000)),
        ("[WINDOW 1e3 ms]", RangeWindow(SECOND)),
        ("[WINDOW 10MINUTES]", RangeWindow(10 * MINUTE)),
        ("[WINDOW INTERVAL '10 minutes']", RangeWindow(10 * MINUTE)),
        ("[WINDOW INTERVAL 10 MINUTE]", RangeWindow(10 * MINUTE)),
        ("[WINDOW 10 MINUTES SLIDE 2 MINUTES]", RangeWindow(10 * MINUTE, 2 * MINUTE)),
        ("[RANGE 6 SECONDS SLIDE 6 SECONDS]", RangeWindow(6 * SECOND, 6 * SECOND)),
        ("[ROWS 100]", CountWindow(100)),
        ("[rows 1]", CountWindow(1)),
        ("[ROWS 3 PARTITION BY src]", CountWindow(3, ("src",))),
        ('[rows 3 partition /* ] */ by src, "a ]b"]', CountWindow(3, ("src", "a ]b"))),
        ("[SESSION 5 MINUTES]", SessionWindow(5 * MINUTE)),
        ("[session INTERVAL '90 seconds' PARTITION BY src, len]", SessionWindow(90 * SECOND, ("src", "len"))),
        ("[WINDOW 1 HOUR OFFSET 1 DAY]", OffsetWindow(60 * MINUTE, DAY)),
        ("[WINDOW 1 HOUR OFFSET 1 DAY SLIDE 1 MINUTE]", OffsetWindow(60 * MINUTE, DAY, MINUTE)),
        ("[SINCE TIMESTAMP '2026-01-01']", LandmarkWindow(NEW_YEAR)),
        ("[SINCE TIMESTAMP '2026-01-01 00:00:00.000001']", LandmarkWindow(NEW_YEAR + 1)),
        ("[SINCE TIMESTAMPTZ '2026-01-01 02:00:00+02']", LandmarkWindow(NEW_YEAR)),
        ("[SINCE TIMESTAMP WITH TIME ZONE '2026-01-01 02:00:00+02']", LandmarkWindow(NEW_YEAR)),
        ("[SINCE DATE '2026-01-01']", LandmarkWindow(NEW_YEAR)),
        ("[FROM TIMESTAMP '2026-01-01' TO TIMESTAMP '2026-01-02']", FixedWindow(NEW_YEAR, NEW_YEAR + DAY)),
        ("[ WINDOW\n10 -- comment\n MINUTES /* [ROWS 1] */ ]", RangeWindow(10 * MINUTE)),
    ],
)
def test_a_clause_means(clause, window):
    assert windows(f"SELECT * FROM packets {clause} WHERE src = 1") == [window]


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        ("", AllRows()),
        (", INTERVAL 10 MINUTE", RangeWindow(10 * MINUTE)),
        (", INTERVAL '10' MINUTE", RangeWindow(10 * MINUTE)),
        (", INTERVAL '10 minutes'", RangeWindow(10 * MINUTE)),
        (", INTERVAL (10) MINUTES", RangeWindow(10 * MINUTE)),
        (", '10 minutes'", RangeWindow(10 * MINUTE)),
        (", INTERVAL 10 MINUTE, slide := INTERVAL 2 MINUTE", RangeWindow(10 * MINUTE, 2 * MINUTE)),
        (", INTERVAL 10 MINUTE, slide => INTERVAL '2' MINUTE", RangeWindow(10 * MINUTE, 2 * MINUTE)),
        (", rows := 100", CountWindow(100)),
        (", rows := 3, partition_by := 'src'", CountWindow(3, ("src",))),
        (", rows := 3, partition_by := ['src', 'it''s']", CountWindow(3, ("src", "it's"))),
        (", session := INTERVAL 5 MINUTE, partition_by => 'src'", SessionWindow(5 * MINUTE, ("src",))),
        (", INTERVAL 1 HOUR, offset := INTERVAL 1 DAY", OffsetWindow(60 * MINUTE, DAY)),
        (
            ", INTERVAL 1 HOUR, slide := INTERVAL 1 MINUTE, offset := INTERVAL 1 DAY",
            OffsetWindow(60 * MINUTE, DAY, MINUTE),
        ),
        (", since := TIMESTAMP '2026-01-01'", LandmarkWindow(NEW_YEAR)),
        (", since := CAST('2026-01-01' AS TIMESTAMP)", LandmarkWindow(NEW_YEAR)),
        (", TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-02'", FixedWindow(NEW_YEAR, NEW_YEAR + DAY)),
    ],
)
@pytest.mark.parametrize("function", ["window", "WINDOW", '"window"'])
def test_the_function_form_means_the_same(function, arguments, window):
    text = f"SELECT packets.src FROM {function}('packets'{arguments}) WHERE packets.src = 1"
    assert windows(text) == [window]
    assert ask(text) == [(1,)]


class Test_where_a_clause_may_stand:
    def test_the_stream_keeps_its_own_name(self):
        assert ask("SELECT packets.src FROM packets [WINDOW 1 MINUTE] WHERE packets.src = 1") == [(1,)]

    @pytest.mark.parametrize("alias", ["p", "AS p", 'AS "p"', "data", "AS data", "p(src, len)"])
    def test_an_alias_follows_the_clause(self, alias):
        name = alias.removeprefix("AS ").partition("(")[0]
        assert ask(f"SELECT {name}.src FROM packets [ROWS 5] {alias} ORDER BY 1") == [(1,), (2,)]

    def test_an_alias_before_a_colon(self):
        assert ask("SELECT p.w FROM p: packets [ROWS 5] LIMIT 1") == [("packets [ROWS 5]",)]

    def test_two_windows_of_one_stream_are_joined(self):
        text = "SELECT DISTINCT a.w, b.w FROM packets [ROWS 5] a JOIN packets [WINDOW 2 HOURS] AS b USING (src)"
        assert ask(text) == [("packets [ROWS 5]", "packets [WINDOW 2 HOURS]")]

    def test_a_windowed_and_a_plain_reference(self):
        text = "SELECT DISTINCT a.w, packets.w FROM packets [ROWS 5] a JOIN packets USING (src)"
        assert ask(text) == [("packets [ROWS 5]", "packets all live rows")]

    def test_a_comma_join_of_streams(self):
        text = "SELECT DISTINCT packets.w, leases.w FROM packets [ROWS 5], leases [ROWS 6]"
        assert ask(text) == [("packets [ROWS 5]", "leases [ROWS 6]")]

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT max(w) FROM (SELECT * FROM packets [ROWS 5])",
            "SELECT (SELECT max(w) FROM packets [ROWS 5])",
            "SELECT w FROM packets WHERE src IN (SELECT src FROM packets [ROWS 5] WHERE src = 1)",
            "WITH recent AS (SELECT * FROM packets [ROWS 5]) SELECT max(w) FROM recent",
            "WITH packets AS (SELECT * FROM packets [ROWS 5]) SELECT max(w) FROM packets",
            "WITH RECURSIVE r AS (SELECT src FROM packets [ROWS 5] UNION SELECT src + 1 FROM r WHERE src < 5) FROM r",
            "SELECT w FROM packets [ROWS 5] UNION ALL SELECT w FROM leases",
            "FROM packets [ROWS 5] SELECT w",
            "TABLE packets [ROWS 5]",
            "DESCRIBE packets [ROWS 5]",
            "DESCRIBE SELECT * FROM packets [ROWS 5]",
            "SUMMARIZE packets [ROWS 5]",
            "SELECT * FROM packets[ROWS 5]",
            "SELECT * FROM (packets [ROWS 5] JOIN leases USING (src))",
            "SELECT * FROM packets [ROWS 5] TABLESAMPLE 100%",
            "SELECT * FROM packets [ROWS 5] ASOF JOIN leases [ROWS 6] ON packets.src >= leases.src",
            "SELECT * FROM packets [ROWS 5] POSITIONAL JOIN leases",
            "SELECT * FROM packets [ROWS 5] SEMI JOIN leases USING (src)",
            "SELECT * FROM packets [ROWS 5] p, LATERAL (SELECT p.src + 1) q",
            "SELECT sum(len) OVER o FROM packets [ROWS 5] WINDOW o AS (ORDER BY src) QUALIFY rank() OVER o = 1",
            "PIVOT packets [ROWS 5] ON src USING sum(len)",
            "PIVOT packets [ROWS 5] ON src IN (1, 2) USING sum(len)",
            "UNPIVOT packets [ROWS 5] ON src, len",
            "SELECT * FROM packets [ROWS 5] PIVOT (sum(len) FOR src IN (1, 2))",
            "SELECT l[1], [src, len][2], [x + 1 FOR x IN l IF x > 1] FROM packets [ROWS 5] WHERE l[1:2] = [1, 2]",
        ],
    )
    def test_anywhere_a_relation_may_stand(self, text):
        statement = parse(text)
        assert CountWindow(5) in [reference.window for reference in statement.references]
        assert unchanged_outside(statement)
        assert ask(text)

    def test_quoted_names(self):
        text = 'SELECT "my-stream".w FROM "my-stream" [ROWS 5] LIMIT 1'
        assert ask(text) == [("my-stream [ROWS 5]",)]

    def test_a_quoted_name_with_quotes_and_brackets(self):
        (reference,) = parse('SELECT * FROM "a""b [ROWS 1]" [ROWS 5]').references
        assert (reference.name, reference.window) == ('a"b [ROWS 1]', CountWindow(5))

    def test_parameters_stay_where_they_are(self):
        text = "SELECT src FROM packets [ROWS 5] WHERE src = ? AND len = ?"
        assert ask(text, [2, 20]) == [(2,)]

    def test_more_windows_than_digits(self):
        text = " UNION ALL ".join(f"SELECT w FROM packets [ROWS {n}]" for n in range(1, 51))
        assert ask(text)[::2] == [(f"packets [ROWS {n}]",) for n in range(1, 51)]

    def test_names_that_look_like_placeholders(self):
        text = "SELECT _w0.src _w1, _a0.w FROM packets AS _w0 JOIN packets [ROWS 5] _a0 USING (src) WHERE _w0.src = 1"
        assert ask(text) == [(1, "packets [ROWS 5]")]


class Test_a_wrong_clause_is_refused_at_its_place:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("FROM packets [WINDOW ten MINUTES]", "a number is expected"),
            ("FROM packets [WINDOW -1 MINUTES]", "a number is expected"),
            ("FROM packets [WINDOW 10]", "a unit is expected here: microseconds"),
            ("FROM packets [WINDOW 10 PARSECS]", "PARSECS is not a unit"),
            ("FROM packets [WINDOW 2 MONTHS]", "MONTHS has no fixed length"),
            ("FROM packets [WINDOW 0 MINUTES]", "more than zero"),
            ("FROM packets [WINDOW 0.1 MICROSECONDS]", "whole number of microseconds"),
            ("FROM packets [WINDOW 9999999999 WEEKS]", "less than 70000 years"),
            ("FROM packets [WINDOW 10 MINUTES SLIDE]", "a number is expected"),
            ("FROM packets [WINDOW 10 MINUTES 5]", "unit"),
            ("FROM packets [WINDOW 10 MINUTES, 5 SECONDS]", "must end here"),
            ("FROM packets [WINDOW 10 MINUTES", "must end here"),
            ("FROM packets [WINDOW ? MINUTES]", "not a parameter"),
            ("FROM packets [WINDOW $1 MINUTES]", "not a parameter"),
            ("FROM packets [ROWS 0]", "at least 1"),
            ("FROM packets [ROWS 1.5]", "whole number"),
            ("FROM packets [ROWS x]", "not a window clause"),
            ("FROM packets [SINCE '2026-01-01']", "not a window clause"),
            ("FROM packets [SINCE TIMESTAMP 'soon']", "'soon' is not a timestamp"),
            ("FROM packets [SINCE TIMESTAMP 'infinity']", "'infinity' is not a timestamp"),
            ("FROM packets [FROM TIMESTAMP '2026-01-01']", "goes on with TO"),
            ("FROM packets [FROM TIMESTAMP '2026-01-02' TO TIMESTAMP '2026-01-01']", "not after it begins"),
            ("FROM packets p [ROWS 5]", r"before the alias: packets \[WINDOW …\] AS p"),
            ("FROM packets AS p [ROWS 5]", r"before the alias: packets \[WINDOW …\] AS p"),
            ("SELECT packets [ROWS 5]", "directly after the name of a stream"),
            ("FROM (SELECT 1) [ROWS 5]", "directly after the name of a stream"),
            ("FROM range(3) [ROWS 5]", "directly after the name of a stream"),
            ("SELECT [WINDOW 5 MINUTES]", "directly after the name of a stream"),
            ("WITH x AS (SELECT 1) SELECT * FROM x [ROWS 5]", "x is the WITH query"),
            ("SELECT window('packets', INTERVAL 1 MINUTE)", "directly after the name of a stream"),
            ("FROM window(packets)", "begins with the stream's name as a string"),
            ("FROM window('packets', 5)", "unit"),
            ("FROM window('packets', nonsense := 5)", "takes INTERVAL n unit"),
            ("FROM window('packets', rows := 5, rows := 6)", "takes INTERVAL n unit"),
            ("FROM window('packets', TIMESTAMP '2026-01-01')", "needs both ends"),
        ],
    )
    def test_with_a_message(self, text, message):
        with pytest.raises(QueryError, match=message) as caught:
            parse(text)
        assert caught.value.line == 1
        assert 1 <= caught.value.column <= len(text) + 1

    def test_the_caret_points_at_the_word(self):
        text = "SELECT é,\n\tsum(len)\nFROM packets [WINDOW\n  ten MINUTES]"
        with pytest.raises(QueryError) as caught:
            parse(text)
        assert (caught.value.line, caught.value.column) == (4, 3)
        assert str(caught.value).splitlines()[1:] == ["line 4:   ten MINUTES]", "          ^"]
