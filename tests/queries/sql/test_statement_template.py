"""Statements that differ only in constants are understood once, and each as if it had been read by itself.

The oracle is the full way: DuckDB's parser and the check of what a statement may do, for every text anew.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import packet_warehouse
import windrow
from windrow.errors import QueryError
from windrow.queries.sql import parse_tree
from windrow.queries.sql import statement as reading

VALUES = ("0", "7", "'a'", "'now'", "''", "'0'")


def hostile() -> list[str]:
    """All statements that the confinement is tried with."""
    texts = [path.read_text() for path in (Path(__file__).parent / "statements").glob("*.sql")]
    return [line.replace("\\n", "\n").replace("\\u00a0", "\u00a0") for text in texts for line in text.splitlines()]


def facts(statement: reading.Statement) -> object:
    """All that others read of a statement."""
    return statement.text, statement.sql, statement.references, statement.explain, statement.source, statement.tree


def outcome(read: object, text: str) -> object:
    try:
        return facts(read(text))
    except QueryError as error:
        return type(error), str(error)


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    reading.parse.cache_clear()
    reading._templates.clear()
    reading._constants.clear()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What DuckDB's parser was asked for."""
    asked: list[str] = []
    real = parse_tree.parse_statements
    monkeypatch.setattr(parse_tree, "parse_statements", lambda sql: (asked.append(sql), real(sql))[1])
    return asked


ALIKE = [
    "SELECT * FROM packets WHERE src = {}",
    "SELECT count(*) FROM packets [WINDOW 5 MINUTES] WHERE src={} AND len >={} /* five */",
    "SELECT * FROM packets p JOIN hosts h USING (src) WHERE (p.len <> {} AND h.name = 'ant') AND p.src < {}",
    "SELECT sum(len) AS s FROM window('packets', INTERVAL 5 MINUTE) AS p WHERE {} = len AND src = {} LIMIT 3",
    "WITH h AS (SELECT 1 AS x) SELECT * FROM packets, h\nWHERE src != {} -- the end",
]


ALIKE_IN_NUMBERS = [
    "SELECT * FROM packets WHERE src = 5 LIMIT {} OFFSET {}",
    "SELECT src = {}, len + {} FROM packets",
    "SELECT * FROM packets [WINDOW 5 MINUTES] WHERE src = {}::BIGINT",
    "SELECT * FROM packets WHERE src = {} OR len = {} + 1",
    "SELECT * FROM packets WHERE note = {} COLLATE NOCASE AND NOT src = {}",
    "SELECT * FROM packets WHERE ts > now() - INTERVAL {} MINUTE AND len = 5",
    "SELECT * FROM packets WHERE src = (SELECT max(src) FROM hosts WHERE src = {})",
    "SELECT * FROM packets p JOIN hosts h ON p.src = h.src AND h.src = {}",
    "SELECT count(*) FROM packets GROUP BY src HAVING src = {}",
    "SELECT j -> {} FROM (SELECT '[1]'::JSON AS j FROM packets WHERE src = 5)",
    "SELECT * FROM packets WHERE list_filter([1, {}], lambda x: x = {}) = [1]",
    "SELECT * FROM packets UNION ALL SELECT * FROM packets WHERE src BETWEEN {} AND {}",
    "SELECT * FROM packets WHERE len / 0.{} IN (1, {}, 3)",
    "SELECT CASE WHEN len > {} THEN 'a' ELSE 'b' END FROM packets",
]
ALIKE_IN_TEXTS = [
    "SELECT count(*) FROM packets WHERE note LIKE '{}%' AND note NOT ILIKE '%{}'",
    "SELECT count(*) FROM packets WHERE note IN ('a', '{}') OR note BETWEEN '{}' AND 'z'",
    "SELECT count(*) FROM packets [ROWS 9] WHERE ts >= TIMESTAMP '{}' AND ts < DATE '{}' + INTERVAL 1 DAY",
    "SELECT '{}'::DATE, CAST('{}' AS DATE) FROM packets",
    "SELECT count(*) FROM packets WHERE regexp_matches(note, '{}') AND contains(note, '{}')",
]


class Test_are_read_once:
    @pytest.mark.parametrize("text", ALIKE)
    @pytest.mark.parametrize(
        ("first", "others"), [("1", "290"), ("345", ("777", "100", "999")), ("'ab'", ("'cd'", "'=='"))]
    )
    def test_and_each_is_what_it_would_be_by_itself(self, parsed, text, first, others):
        places = text.count("{}")
        model = reading.parse(text.format(*[first] * places))
        for other in others:
            given = text.format(*[first] * (places - 1), other)
            parsed.clear()
            statement = reading.parse(given)
            assert statement.representative is model and not parsed
            assert facts(statement) == facts(reading._parse_uncached(given))

    @pytest.mark.parametrize("text", ALIKE_IN_NUMBERS)
    def test_wherever_a_number_is_only_a_number(self, parsed, text):
        for first, other in (("5", "7"), ("345", "100")):
            model = reading.parse(text.replace("{}", first))
            parsed.clear()
            statement = reading.parse(text.replace("{}", other))
            assert statement.representative is model and not parsed
            assert facts(statement) == facts(reading._parse_uncached(text.replace("{}", other)))

    @pytest.mark.parametrize("text", ALIKE_IN_TEXTS)
    def test_wherever_a_text_is_only_compared_matched_or_cast(self, parsed, text):
        model = reading.parse(text.replace("{}", "2025-01-01"))
        parsed.clear()
        statement = reading.parse(text.replace("{}", "2024-12-31"))
        assert statement.representative is model and not parsed
        assert facts(statement) == facts(reading._parse_uncached(text.replace("{}", "2024-12-31")))

    def test_what_is_known_of_one_is_known_of_all(self, parsed):
        first, second = (reading.parse(f"SELECT * FROM packets WHERE src = {key}") for key in (11, 22))
        assert second.representative is first.representative is first and len(parsed) == 1
        assert first != second and first.tree["where_clause"]["right"]["literal"]["text"] == "11"


NOT_ALIKE = [
    "SELECT * FROM packets [ROWS {}] WHERE src = len",
    "PIVOT packets ON note USING sum(len) GROUP BY src, len = {}",
    "EXPLAIN SELECT * FROM packets WHERE src = {}",
    'SELECT "a = {}" FROM packets WHERE src = len',
    "SELECT '= {}' FROM packets WHERE src = len",
    "SELECT $$= {} $$ FROM packets WHERE src = len",
    "SELECT * FROM packets -- = {}\n WHERE src = len",
    "SELECT * FROM packets WHERE src = {} 5",
    "SELECT * FROM packets WHERE note = E{}",
    "SELECT * FROM packets WHERE note = -{}",
    "SELECT 'a{}' AS x, {{'b{}': len}} FROM packets",
    "SELECT COLUMNS('l{}') FROM packets",
    "SELECT * FROM packets TABLESAMPLE {}%",
]


class Test_are_not_taken_for_alike:
    @pytest.mark.parametrize("text", [*ALIKE, *ALIKE_IN_NUMBERS, *NOT_ALIKE])
    def test_where_more_than_a_value_may_differ(self, text):
        """Whatever was read before, in any order: the answer is that of reading each by itself."""
        for first in VALUES:
            for second in VALUES:
                reading.parse.cache_clear()
                for value in (first, second, first):
                    given = text.replace("{}", value)
                    assert outcome(reading.parse, given) == outcome(reading._parse_uncached, given)

    @pytest.mark.parametrize("text", NOT_ALIKE)
    def test_and_have_a_look_of_their_own(self, parsed, text):
        for value in ("12", "34"):
            outcome(reading.parse, text.replace("{}", value))
        assert len(parsed) >= 2 and not any(reading._templates.get(key)[0].template for key in reading._templates)

    def test_nor_are_hostile_ones(self):
        for text in hostile():
            where = "" if re.search(r"(?i)\bwhere\b", text) else " WHERE 1 = 12"
            for given in (text, f"{text}{where} AND 2 = 34 AND '' = 'ab'"):
                for other in (given, re.sub(r"[1-9]", "8", given), re.sub(r"(?<=')\w(?=\w*')", "q", given)):
                    assert outcome(reading.parse, other) == outcome(reading._parse_uncached, other)


@pytest.fixture(scope="module")
def wh() -> Iterator[windrow.Warehouse]:
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


class Test_the_check_of_what_a_statement_may_do:
    def test_refuses_all_that_are_alike_and_says_so_of_each(self, wh):
        for key in (11, 22, 33):
            text = f"SELECT getenv('HOME') FROM packets WHERE src = {key}"
            with pytest.raises(windrow.ConfinementError, match=rf"getenv cannot be used(?s:.*)src = {key}"):
                wh.sql(text)

    def test_looks_again_for_what_exists(self, wh):
        texts = [f"SELECT count(*) FROM later WHERE src = {key}" for key in (1, 2, 3, 4)]
        with pytest.raises(windrow.QueryError, match="no stream, table or view 'later'"):
            wh.sql(texts[0])
        wh.put_table("later", wh.sql("SELECT 2 AS src").arrow())
        assert [wh.sql(text).fetchone() for text in texts[:3]] == [(0,), (1,), (0,)]
        wh.drop_table("later")
        with pytest.raises(windrow.QueryError, match=r"(?s)'later'.*src = 4"):
            wh.sql(texts[3])

    def test_errors_of_duckdb_show_the_text_that_was_asked(self, wh):
        for key in (11, 22):
            with pytest.raises(windrow.QueryError, match=rf"(?s)absent.*src = {key}"):
                wh.sql(f"SELECT absent FROM packets [ROWS 5] WHERE src = {key}")
