"""Statements taken apart: which relations they read, what reaches DuckDB, and where errors point."""

import duckdb
import pytest

import plain_duckdb
from windrow.errors import ConfinementError, QueryError
from windrow.queries.sql import parse_tree, tokens
from windrow.queries.sql.statement import parse
from windrow.queries.sql.window_spec import AllRows


def names(text: str) -> list[str]:
    references = parse(text).references
    return [f"{reference.schema}.{reference.name}".removeprefix(".") for reference in references]


class Test_streams_without_a_clause:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT 1", []),
            ("FROM packets", ["packets"]),
            ("SELECT * FROM packets p, leases AS l", ["packets", "leases"]),
            ("SELECT (SELECT max(src) FROM packets), EXISTS (FROM leases)", ["packets", "leases"]),
            ("SELECT * FROM a UNION ALL SELECT * FROM b EXCEPT SELECT * FROM c", ["a", "b", "c"]),
            ("FROM a JOIN (b JOIN c USING (x)) USING (y)", ["a", "b", "c"]),
            ("SELECT * FROM a ORDER BY (SELECT x FROM b) LIMIT (SELECT y FROM c)", ["b", "c", "a"]),
            ("PIVOT a ON x IN (SELECT y FROM b) USING sum(z)", ["a", "b"]),
            ("DESCRIBE a", ["a"]),
            ('FROM "select"', ["select"]),
            ("FROM main.packets", ["main.packets"]),
            ("FROM windrow.streams", ["windrow.streams"]),
            ("DESCRIBE windrow.streams", ["windrow.streams"]),
            ("SELECT windrow.src FROM packets AS windrow", ["packets"]),
            ('FROM windrow.streams s JOIN Windrow."slides" USING (x)', ["windrow.streams", "windrow.slides"]),
        ],
    )
    def test_are_found(self, text, expected):
        assert sorted(names(text)) == sorted(expected)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("WITH a AS (SELECT 1) FROM a", []),
            ("WITH a AS (SELECT 1) FROM A", []),
            ('WITH "A" AS (SELECT 1) FROM a', []),
            ("WITH a AS (FROM a) FROM a", ["a"]),
            ("WITH a AS (FROM b), b AS (FROM a) FROM b", ["b"]),
            ("WITH a AS (SELECT 1), b AS (FROM a) FROM a, b", []),
            ("WITH a AS (SELECT 1) FROM main.a", ["main.a"]),
            ("SELECT (WITH a AS (SELECT 1) SELECT * FROM a) FROM a", ["a"]),
            ("FROM (WITH a AS (SELECT 1) FROM a), a", ["a"]),
            ("WITH a AS (SELECT 1) SELECT * FROM (SELECT * FROM a WHERE EXISTS (FROM a))", []),
            ("WITH a AS (SELECT 1) (FROM a) UNION ALL (FROM a)", []),
            ("WITH RECURSIVE a AS (SELECT 1 x UNION ALL SELECT x + 1 FROM a WHERE x < 3) FROM a", []),
            ("WITH RECURSIVE a AS (FROM a UNION ALL SELECT x + 1 FROM a WHERE x < 3) FROM a", ["a"]),
            ("WITH RECURSIVE b AS (FROM a), a AS (SELECT 1) FROM b", ["a"]),
        ],
    )
    def test_are_told_from_common_table_expressions(self, text, expected):
        """Checked against DuckDB: with no relation of these names it can bind the statement iff none was found."""
        assert names(text) == expected
        with plain_duckdb.connect() as connection:
            if expected:
                with pytest.raises(duckdb.Error):
                    connection.execute(text)
            else:
                connection.execute(text)

    def test_have_their_place_in_the_text(self):
        text = "SELECT 'é', * FROM p: \"packets\" JOIN windrow.streams ON true, leases [ROWS 3]"
        spans = [text[slice(*reference.span)] for reference in parse(text).references]
        assert spans == ['p: "packets"', "windrow.streams", "leases [ROWS 3]"]

    def test_stand_for_all_live_rows(self):
        assert [reference.window for reference in parse("FROM a, b").references] == [AllRows(), AllRows()]


class Test_what_reaches_duckdb:
    @pytest.mark.parametrize(
        "text",
        [
            "SELECT 1",
            "select\t*\r\nfrom  packets  -- [WINDOW 1 MINUTE]\n;",
            "SELECT '[WINDOW 1 MINUTE]', $$[ROWS 3]$$, E'\\'[ROWS 3]' -- packets [ROWS 1]",
            'SELECT "[ROWS 1]", `[ROWS 2]` /* packets [ROWS 1] /* */ */',
            "SELECT rows[1], l[rows], [rows], [range], since[1:2], l[since], range[-1] FROM t",
            "SELECT x::INT[], y::STRUCT(a INT[3])[], MAP {1: [2]}, {'rows': [3]} FROM t",
            "SELECT [rows FOR rows IN l IF rows > 1], list_transform(l, lambda range: range + 1) FROM t",
            'SELECT a AS rows, b range, c AS "window" FROM t ORDER BY rows',
            "SELECT sum(x) OVER (ORDER BY y ROWS 3 PRECEDING) FROM t",
            "SELECT sum(x) OVER (ORDER BY y RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) FROM t",
            "SELECT sum(x) OVER w FROM t WINDOW w AS (PARTITION BY y ROWS 3 PRECEDING)",
            "PIVOT t ON a USING sum(b)",
        ],
    )
    def test_is_the_text_as_written_when_it_has_no_window(self, text):
        assert parse(text).sql == text

    def test_is_as_long_as_the_text(self):
        text = "SELECT 'é' FROM packets [WINDOW 10 MINUTES] JOIN \"ß\" [ROWS 3] USING (ü), windrow.x"
        statement = parse(text)
        assert len(statement.sql.encode()) == len(text.encode())
        assert statement.sql == "SELECT 'é' FROM _w0 AS packets              JOIN _w1 AS \"ß\"   USING (ü), _w2 AS x "

    def test_has_plain_spaces_where_duckdb_would_put_them(self):
        statement = parse("SELECT\u00a0'a\u00a0b'\u3000FROM packets\u2003[ROWS\ufeff3]\u00a0AS\u00a0p")
        assert statement.sql == "SELECT  'a\u00a0b'   FROM _w0                   AS  p"
        assert len(statement.sql.encode()) == len(statement.text.encode())

    @pytest.mark.parametrize("space", "\u00a0\u2000\u200a\u200b\u202f\u205f\u2060\u3000\ufeff")
    def test_spaces_are_those_of_duckdbs_parser(self, space):
        text = f"SELECT{space}1"
        assert parse(text).sql == "SELECT" + " " * len(space.encode()) + "1"
        assert isinstance(parse_tree.parse_statements(text), list)

    def test_is_blank_where_explain_stood(self):
        statement = parse("EXPLAIN FROM packets")
        assert (statement.explain, statement.sql) == ("explain", "        FROM packets")
        statement = parse("explain /* well */ Analyze FROM packets [ROWS 3]")
        assert (statement.explain, statement.sql) == (
            "explain analyze",
            "        /* well */         FROM _w0 AS packets  ",
        )


class Test_places_of_errors:
    @pytest.mark.parametrize(
        ("text", "line", "column"),
        [
            ("SELECT\n  1 +\nFROM packets [ROWS 5]", 3, 1),
            ("SELECT * FROM packets [WINDOW 10 MINUTES] WHER src = 1 AND", 1, 48),
            ("SELECT é é é FROM packets [ROWS 5]", 1, 12),
            ("SELECT 'é\u00a0', * FROM\u00a0packets [ROWS 5] WHERE WHERE", 1, 44),
            ("SELECT 'abc", 1, 8),
            ("SELECT /* abc", 1, 8),
        ],
    )
    def test_of_syntax(self, text, line, column):
        with pytest.raises(QueryError) as caught:
            parse(text)
        assert (caught.value.line, caught.value.column) == (line, column)
        shown, caret = str(caught.value).splitlines()[-2:]
        assert shown == f"line {line}: {text.splitlines()[line - 1]}"
        assert caret.index("^") == len(f"line {line}: ") + column - 1

    def test_in_a_long_line_show_the_part_that_matters(self):
        text = "SELECT " + ", ".join(f"column_{n}" for n in range(200)) + " FROM packets [WINDOW x]"
        with pytest.raises(QueryError) as caught:
            parse(text)
        _, shown, caret = str(caught.value).splitlines()
        assert len(shown) < 120
        assert shown[caret.index("^")] == "x"

    def test_of_binding_are_those_of_the_text_too(self):
        statement = parse("SELECT 'é',\n  wrong\nFROM packets [WINDOW 10 MINUTES]")
        offset = statement.sql.encode().index(b"wrong")
        error = statement.error(offset, 'Table "_w0" has no column "wrong"')
        assert (error.line, error.column) == (2, 3)
        assert str(error).startswith('Table "packets" has no column')


class Test_what_is_no_query:
    @pytest.mark.parametrize(
        "text", ["", " ", ";", "-- none", "/* none */", "SELECT 1; SELECT 2", "SELECT 1;;SELECT 2"]
    )
    def test_one_statement_is_wanted(self, text):
        with pytest.raises(ConfinementError, match="one statement"):
            parse(text)

    @pytest.mark.parametrize("text", ["SELECT 1;", "SELECT 1 ; -- done", ";SELECT 1"])
    def test_an_end_is_no_second_statement(self, text):
        assert parse(text).sql == text

    @pytest.mark.parametrize("text", ["SELECT \x00 1", "SELECT '\ud800'"])
    def test_broken_text(self, text):
        with pytest.raises(QueryError, match=r"NUL|surrogate"):
            parse(text)

    def test_deep_nesting_is_read_as_far_as_duckdb_reads_it(self):
        assert parse("SELECT " + "+".join(["1"] * 900)).references == ()
        with pytest.raises(QueryError, match="depth"):
            parse("SELECT " + "(" * 3000 + "1" + ")" * 3000)


def test_tokens_cover_the_text():
    text = 'SELECT \'é\' , "a""b" FROM x /* c */ [ROWS 3] -- d'
    source = tokens.tokenize(text)
    rest = source.data
    for token in reversed(source.tokens):
        assert rest[token.start : token.stop].decode() == token.text
        rest = rest[: token.start]
    assert " ".join(token.text for token in source.tokens) == 'SELECT \'é\' , "a""b" FROM x [ ROWS 3 ]'
    assert source.tokens[3].name == 'a"b'
