"""Brackets of every kind, in random company: a list is never taken for a window, and a window never for a list."""

import string

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import plain_duckdb
from windrow.errors import QueryError
from windrow.queries.sql import tokens
from windrow.queries.sql.statement import parse
from windrow.queries.sql.window_spec import AllRows, CountWindow, FixedWindow, LandmarkWindow, RangeWindow

MINUTE = 60_000_000
DAY = 1440 * MINUTE

# One row, with columns called after the words that clauses begin with, so that brackets around them are valid SQL.
ROW = "(SELECT 2 AS rows, 1 AS range, 3 AS since, [1, 2, 3] AS l, [[1], [2, 3]] AS ll, 'abc' AS s)"
CLAUSES = {
    "[WINDOW 10 MINUTES]": RangeWindow(10 * MINUTE),
    "[window 1.5 minutes slide 30 seconds]": RangeWindow(90_000_000, 30_000_000),
    "[RANGE 1 DAY]": RangeWindow(DAY),
    "[ROWS 7]": CountWindow(7),
    "[SINCE TIMESTAMP '1970-01-02']": LandmarkWindow(DAY),
    "[FROM TIMESTAMP '1970-01-02' TO DATE '1970-01-03']": FixedWindow(DAY, 2 * DAY),
    "[ROWS /* ] */ 7 -- ]\n]": CountWindow(7),
    "": AllRows(),
}

numbers = st.sampled_from(["rows", "range", "since", "1", "2", "l[1]", "ll[2][1]", "l[rows]", "l[range]", "-since"])
noise = st.sampled_from(
    [
        " ", "\n", "\t ", "/* [WINDOW 1 MINUTE] */", "-- x [ROWS 3]\n", "/* a /* ] */ [ */", " \u00a0 ", "/**/",
    ]
)  # fmt: skip
strings = st.sampled_from(
    [
        "'[ROWS 3]'", "'it''s [WINDOW 1 MINUTE]'", "$$[ROWS 3]$$", "$a$ [$a$", "E'\\'[ROWS 1]'", "s[1]",
        "s[range:rows]", "s", "']'", "'\u00a0[ROWS 1]\u00a0'", "E'\\\\'", "''", "'/*'", "'--'",
    ]
)  # fmt: skip


@st.composite
def expressions(draw, depth: int = 3) -> str:
    if depth == 0:
        return draw(numbers)
    inner = expressions(depth - 1)
    gap = draw(noise)
    kind = draw(st.integers(0, 8))
    a, b = draw(inner), draw(inner)
    return [
        lambda: f"[{gap}{a}, {b}{gap}][{draw(numbers)}]",
        lambda: f"len([{a},{gap}{b}][1:])",
        lambda: f"list_sum([rows{gap}FOR rows IN [{a}, {b}] IF rows > 1])",
        lambda: f"list_sum(list_transform([{a}]{gap}, lambda range: range + {draw(numbers)}))",
        lambda: f"({a}{gap}+{gap}{b})",
        lambda: f"length({draw(strings)}{gap})",
        lambda: f"(CASE WHEN {a} > {b} THEN l{gap}[1] ELSE [{a}]{gap}[range] END)",
        lambda: f"{{'rows': [{a}]}}.rows[1]",
        lambda: f'(SELECT {a} AS "[ROWS 3]"{gap})',
    ][kind]()


@given(expressions(), expressions(), noise)
def test_sql_without_windows_reaches_duckdb_as_written(a, b, gap):
    text = f"SELECT {a} AS rows,{gap}{b} range FROM {ROW} AS window_{gap}WHERE [rows, range][1] > 0{gap}"
    statement = parse(text)
    assert statement.references == ()
    spaced = text.replace("\u00a0", "  ")
    assert statement.sql.replace("\u00a0", "  ") == spaced
    if "\u00a0" not in text:
        assert statement.sql == text
    assert run(statement.sql) == run(spaced if "'\u00a0" not in text else text)


def run(sql: str) -> object:
    with plain_duckdb.connect() as connection:
        try:
            return connection.execute(sql).fetchall()
        except duckdb.Error as error:  # a random index may lead nowhere, but it must lead to the same nowhere
            return type(error)


@given(st.data())
def test_windows_are_found_between_all_other_brackets(data):
    names = st.sampled_from(["packets", '"my-stream"', "rows", "since"])
    streams = data.draw(st.lists(st.tuples(names, st.sampled_from(sorted(CLAUSES))), min_size=1, max_size=4))
    pieces, wanted = [], []
    for number, (stream, clause) in enumerate(streams):
        gap = data.draw(noise) if clause else " "
        alias = data.draw(st.sampled_from([f"AS a{number}", f"a{number}", f'"[{number}]"']))
        pieces.append(f"{stream}{gap}{clause} {alias}")
        wanted.append((stream.strip('"'), CLAUSES[clause]))
    joined = data.draw(st.sampled_from([", ", " CROSS JOIN ", "\n POSITIONAL JOIN "])).join(pieces)
    text = f"SELECT {data.draw(expressions())} FROM {ROW} r, {joined} WHERE {data.draw(expressions())} > [0][1]"
    statement = parse(text)
    assert [(r.name, r.window) for r in statement.references] == wanted
    assert len(statement.sql.encode()) == len(text.encode())
    outside = text
    for reference in reversed(statement.references):
        start, stop = reference.span
        if reference.window != AllRows():
            outside = outside[:start] + statement.sql_of(reference) + outside[stop:]
    assert outside.replace("\u00a0", "  ") == statement.sql.replace("\u00a0", "  ")


words = st.sampled_from(
    [
        "SELECT", "FROM", "packets", "[", "]", "WINDOW", "ROWS", "RANGE", "SINCE", "SLIDE", "TO", "TIMESTAMP", "10",
        "'2026-01-01'", "MINUTES", "(", ")", ",", "AS", "p", "JOIN", "ON", "WHERE", "*", "1", "window", "'packets'",
        "INTERVAL", ":=", "PIVOT", "USING", "UNION", "WITH", "x", ";", ".", "windrow", "streams", "EXPLAIN", "TABLE",
        "DESCRIBE", "VALUES", "?", "$1", "'", '"', "/*", "--", "$$", "\u00a0", "é", "\n", "IN", "IN (SELECT 1)", "COPY",
        "INSERT INTO t", "LIMIT", "{", "}", ":", "lambda", "=", "-", "E'\\",
    ]
)  # fmt: skip


@given(st.lists(words, max_size=25).map(" ".join))
def test_nonsense_is_understood_or_refused_at_a_place(text):
    understood_or_refused(text)


@given(st.text(max_size=60) | st.text(string.printable, max_size=60))
def test_any_text_is_understood_or_refused_at_a_place(text):
    understood_or_refused(text)


def understood_or_refused(text: str) -> None:
    try:
        assert len(parse(text).sql.encode()) == len(text.encode())
    except QueryError as error:
        line, column = error.line, error.column
    else:
        return
    if line is not None:
        lines = text.split("\n")
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 2


@given(st.lists(words | st.text(max_size=5), max_size=12).map("".join))
@example("$[")
@example("SELECT 1$[ROWS 3]")
def test_tokens_are_pieces_of_the_text(text):
    try:
        source = tokens.tokenize(text)
    except QueryError:
        assert "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text)
        return
    assert len(source.data) == len(text.encode())
    before = 0
    for token in source.tokens:
        assert before <= token.start < token.stop <= len(source.data)
        assert source.data[token.start : token.stop].decode() == token.text
        before = token.stop


@pytest.mark.parametrize("word", ["rows", "range", "since"])
@pytest.mark.parametrize(
    "form",
    ["l[{}]", "[{}]", "[{}][1]", "l[{}:]", "l[{} + 1]", "[{}, 1]", "[[{}]]", "[{}[1]]", "[{}.x]", "[{}(3)]"],
)
def test_words_of_clauses_are_only_words(word, form):
    text = f"SELECT {form.format(word)} FROM t"
    assert parse(text).sql == text
