"""A hostile user. Every attempt must end at one of two walls: the check of the statement, or the engine.

Both are tried alone: statements are confined without being run, and run without having been confined.
"""

import os
import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow.errors import ConfinementError, QueryError
from windrow.queries.engine import instance as duckdb_instance
from windrow.queries.engine.instance import CHANGEABLE_SETTINGS, open_connection
from windrow.queries.sql import confinement as rules
from windrow.queries.sql.confinement import confine
from windrow.queries.sql.statement import Reference, parse

STREAMS = {"packets", "leases", "my-stream"}


def known(reference: Reference) -> bool:
    return reference.name.lower() in STREAMS if not reference.schema else reference.name == "streams"


def check(text: str) -> None:
    confine(parse(text), known)


def statements(name: str) -> list[str]:
    """One statement a line; ``\\n`` and ``\\u00a0`` stand for themselves."""
    text = (Path(__file__).parent / "statements" / f"{name}.sql").read_text()
    return [line.replace("\\n", "\n").replace("\\u00a0", "\u00a0") for line in text.splitlines()]


class Test_the_statement_is_checked:
    @pytest.mark.parametrize("text", statements("not_queries"))
    def test_only_queries_are_asked(self, text):
        with pytest.raises(QueryError):
            check(text)

    @pytest.mark.parametrize("text", statements("several"))
    def test_one_at_a_time(self, text):
        with pytest.raises(ConfinementError):
            check(text)

    @pytest.mark.parametrize("text", statements("forbidden"))
    def test_nothing_outside_is_reached(self, text):
        with pytest.raises(QueryError):
            check(text)

    @pytest.mark.parametrize("text", statements("disguised"))
    def test_comments_and_quotes_hide_nothing(self, text):
        with pytest.raises(QueryError):
            check(text)

    def test_a_refusal_shows_its_place(self):
        with pytest.raises(ConfinementError, match="the table function read_text cannot be used") as caught:
            check("SELECT 'é',\n  (SELECT content FROM read_text('/etc/passwd')) FROM packets [ROWS 5]")
        assert (caught.value.line, caught.value.column) == (2, 24)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("SELECT * FROM nowhere", "there is no stream, table or view 'nowhere'; SHOW TABLES lists them"),
            ("SELECT * FROM 'x.csv'", "'x.csv' is not a stream or table, and a query cannot read files"),
            ("SELECT * FROM main.packets", "outside the warehouse; name streams, tables and views without a schema"),
            ("SHOW DATABASES", "SHOW TABLES lists what can be asked, and DESCRIBE its columns"),
            ("WITH x AS (DELETE FROM packets RETURNING *) FROM x", "DELETE cannot be used in a query"),
            ("COPY packets TO 'x'", "only queries can be asked here, not COPY"),
            ("INSERT INTO packets VALUES (1)", "not INSERT; rows come in by append()"),
            ("UPDATE packets SET src = 1", "not UPDATE; rows cannot be changed"),
            ("DELETE FROM packets", "not DELETE; rows leave when they expire, or for good by erase()"),
            ("CREATE VIEW v AS SELECT 1", "not CREATE; create_stream(), create_view() and put_table()"),
            ("CREATE TABLE v AS SELECT 1", "not CREATE; create_stream()"),
            ("DROP TABLE packets", "not DROP; drop_stream()"),
            ("ALTER TABLE packets ADD COLUMN a INTEGER", "not ALTER; alter_stream()"),
            ("PRAGMA table_info('packets')", "not PRAGMA; SHOW TABLES and DESCRIBE"),
        ],
    )
    def test_a_refusal_says_why(self, text, message):
        with pytest.raises(QueryError, match=re.escape(message)):
            check(text)


@pytest.mark.parametrize("text", statements("allowed"))
def test_everything_else_is_duckdbs_sql(text):
    check(text)


class Test_every_function_is_judged:
    """A new version of DuckDB may bring functions that reach outside; they must not slip in."""

    OUTSIDE = re.compile(
        r"env|file|path|read|write|copy|secret|setting|config|query|exec|sql|load|install|attach|http|url|glob|log(?!1|2|$)|"
        r"sleep|variable|seq|nextval|currval|setval|seed|plan|internal|pragma|duckdb|"
        r"catalog|schema|role|user|pg_|inet|invoke|stats|state"
    )
    HARMLESS = frozenset({
        # of their arguments alone
        "format_pg_type", "invoke", "json_copy_strftime_if_date", "json_copy_strftime_if_timestamp",
        "json_extract_path", "json_extract_path_text", "json_serialize_sql", "map_to_pg_oid", "parse_dirname",
        "parse_dirpath", "parse_duckdb_log_message", "parse_filename", "parse_path", "path_join", "stats",
        "url_decode", "url_encode",
        # of the session, which no query outlives
        "current_catalog", "current_query", "current_query_id", "current_role", "current_schema", "current_schemas",
        "current_user", "getvariable", "in_search_path", "inet_client_addr", "inet_client_port", "inet_server_addr",
        "inet_server_port", "session_user", "setseed", "user",
        # answers that PostgreSQL's tools expect: all true, or about views that no query can name
        "has_schema_privilege", "has_sequence_privilege", "pg_collation_is_visible", "pg_conf_load_time",
        "pg_conversion_is_visible", "pg_function_is_visible", "pg_has_role", "pg_is_other_temp_schema",
        "pg_my_temp_schema", "pg_opclass_is_visible", "pg_operator_is_visible", "pg_opfamily_is_visible",
        "pg_postmaster_start_time", "pg_size_pretty", "pg_table_is_visible", "pg_ts_config_is_visible",
        "pg_ts_dict_is_visible", "pg_ts_parser_is_visible", "pg_ts_template_is_visible", "pg_type_is_visible",
        "pg_typeof",
    })  # fmt: skip

    def functions(self, *kinds: str) -> set[str]:
        with duckdb.connect(":memory:") as connection:
            rows = connection.execute("SELECT DISTINCT function_name, function_type FROM duckdb_functions()").fetchall()
        return {name for name, kind in rows if kind in kinds}

    def test_expressions(self):
        suspects = {
            name for name in self.functions("scalar", "macro", "aggregate", "window") if self.OUTSIDE.search(name)
        }
        denied = {name for name in suspects if name in rules.DENIED_FUNCTIONS or name.startswith(rules.DENIED_PREFIXES)}
        assert suspects - denied - self.HARMLESS == set()

    def test_table_functions_are_those_that_compute(self):
        assert rules.TABLE_FUNCTIONS & self.functions("table") >= {"range", "unnest"}
        assert rules.TABLE_FUNCTIONS - self.functions("table", "scalar", "macro") == set()
        assert not {name for name in rules.TABLE_FUNCTIONS if re.search("read|scan|query|duckdb|pragma|glob", name)}


@pytest.fixture
def folders(tmp_path):
    """A warehouse's folder, and another beside it that holds a secret; a link leads from the first to the second."""
    inside, outside = tmp_path / "warehouse" / "streams", tmp_path / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (outside / "secret.csv").write_text("a,b\n1,2\n")
    (inside / "link.txt").symlink_to(outside / "secret.txt")
    pq.write_table(pa.table({"src": [1, 2]}), inside / "segment.parquet")
    return inside, outside


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Test_the_engine_is_locked:
    """The second wall: what happens to a statement that nobody checked."""

    @pytest.mark.parametrize("text", statements("escapes"))
    def test_it_leads_nowhere(self, folders, text):
        inside, outside = folders
        before = everything_in(outside)
        cursor = duckdb_instance.open_locked_instance(inside.parent).cursor()
        with pytest.raises(duckdb.Error):
            cursor.execute(text.format(inside=inside, outside=outside)).fetchall()
        assert everything_in(outside) == before
        assert "evil" not in "".join(os.listdir(inside.parent.parent))

    def test_it_counts_time_in_utc_whatever_the_process_does(self, folders):
        cursor = duckdb_instance.open_locked_instance(folders[0].parent).cursor()
        assert cursor.execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]

    def test_python_variables_are_no_relations(self, folders):
        secret = pa.table({"x": [1]})
        cursor = duckdb_instance.open_locked_instance(folders[0].parent).cursor()
        with pytest.raises(duckdb.Error):
            cursor.execute("SELECT * FROM secret").fetchall()
        assert secret.num_rows == 1

    def test_sessions_do_not_see_each_other(self, folders):
        instance = duckdb_instance.open_locked_instance(folders[0].parent)
        mine, yours = instance.cursor(), instance.cursor()
        mine.register("packets", pa.table({"x": [1]}))
        with pytest.raises(duckdb.Error):
            yours.execute("SELECT * FROM packets").fetchall()


@pytest.fixture(scope="module")
def connection():
    with open_connection(threads=1) as connection:
        connection.register("packets", pa.table({"src": [1, 2]}))
        yield connection


class Test_a_connection_to_hand_out:
    """No statement of it is checked by anyone, and it may be in any tool's hands: it has no file system."""

    @pytest.mark.parametrize("text", statements("escapes") + statements("overwrites"))
    def test_no_file_is_reached(self, connection, folders, text):
        inside, outside = folders
        before = everything_in(inside.parent.parent)
        with pytest.raises(duckdb.Error):
            connection.execute(text.format(inside=inside, outside=outside)).fetchall()
        assert everything_in(inside.parent.parent) == before

    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_nor_by_methods(self, connection, folders, suffix):
        inside, _ = folders
        before = everything_in(inside)
        with pytest.raises(duckdb.Error):
            getattr(connection.sql("FROM packets"), f"write_{suffix}")(str(inside / f"segment.{suffix}"))
        with pytest.raises(duckdb.Error):
            getattr(connection, f"read_{suffix}")(str(inside / "segment.parquet")).fetchall()
        assert everything_in(inside) == before

    def test_views_tables_and_macros_of_ones_own(self, connection):
        connection.execute("CREATE TEMP VIEW twice AS SELECT src * 2 AS src FROM packets")
        connection.execute("CREATE TEMP TABLE kept AS FROM twice")
        connection.execute("CREATE TEMP MACRO more(x) AS x + 1")
        assert connection.execute("SELECT more(src) FROM kept ORDER BY 1").fetchall() == [(3,), (5,)]

    @pytest.mark.parametrize("setting", CHANGEABLE_SETTINGS)
    def test_settings_that_tools_change_can_be(self, connection, setting):
        value = connection.execute(f"SELECT current_setting('{setting}')").fetchone()[0]
        connection.execute(f"SET {setting} = '{value}'")
