"""Tables: put whole, replaced whole, joined by name, seen by a snapshot as they were."""

from decimal import Decimal

import pyarrow as pa
import pytest

import packet_warehouse
import windrow
from packet_warehouse import ROWS_PER_MINUTE
from windrow import DefinitionError, QueryError, UnknownTableError

JOIN = "SELECT name, count(*) FROM packets [WINDOW 1 MINUTE] JOIN hosts USING (src) GROUP BY name ORDER BY name"


@pytest.fixture
def wh():
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


def test_joined_by_name(wh):
    assert wh.tables() == ["hosts"]
    assert wh.sql(JOIN).fetchall() == [
        ("ant", ROWS_PER_MINUTE // 60),
        ("bee", ROWS_PER_MINUTE // 60),
        ("cat", ROWS_PER_MINUTE // 60),
    ]
    assert wh.sql('SELECT count(*) FROM "HOSTS" h, Hosts').fetchall() == [(9,)]


def test_the_file_of_a_replaced_table_stays_while_a_reader_has_pinned_its_version(wh):
    files = lambda: {file.name for file in (wh.path / "tables" / "versions").iterdir()}  # noqa: E731
    wh.put_table("versions", pa.table({"v": [1]}))
    with windrow.open(wh.path) as other, wh.snapshot() as before:
        (first,) = files()
        for version in (2, 3, 4):
            other.put_table("versions", pa.table({"v": [version]}))
            other.gc()
            assert first in files()
            assert before.sql("SELECT v FROM versions").fetchall() == [(1,)]
            with before.duckdb() as connection:
                assert connection.execute("SELECT v FROM versions").fetchall() == [(1,)]
    wh.gc()
    assert len(files()) == 1
    assert first not in files()


def test_replaced_atomically_and_versioned_with_the_snapshot(wh):
    with wh.snapshot() as before:
        wh.put_table("hosts", pa.table({"src": [4], "name": ["dog"], "since": [1]}))
        assert [row[0] for row in before.sql(JOIN).fetchall()] == ["ant", "bee", "cat"]
        assert [row[0] for row in wh.sql(JOIN).fetchall()] == ["dog"]
        wh.gc()
        assert [row[0] for row in before.sql(JOIN).fetchall()] == ["ant", "bee", "cat"]


def test_an_answer_that_is_being_read_keeps_its_table(wh):
    answer = wh.sql("SELECT name FROM hosts ORDER BY name")
    wh.put_table("hosts", pa.table({"src": [4], "name": ["dog"]}))
    wh.gc()
    assert answer.fetchall() == [("ant",), ("bee",), ("cat",)]


def test_dropped(wh):
    wh.drop_table("hosts")
    assert wh.tables() == []
    with pytest.raises(QueryError, match="hosts"):
        wh.sql(JOIN)
    with pytest.raises(UnknownTableError, match="hosts"):
        wh.drop_table("hosts")


@pytest.mark.parametrize("name", ["packets", "Packets", "HOSTS"])
def test_a_name_means_one_thing(wh, name):
    with pytest.raises(DefinitionError, match="exists already"):
        wh.put_table(name, pa.table({"a": [1]}))


def test_a_stream_cannot_take_a_tables_name(wh):
    with pytest.raises(DefinitionError):
        wh.create_stream("Hosts", packet_warehouse.SCHEMA, time="ts", slide="1 minute")


@pytest.mark.parametrize(
    "source",
    ["hosts [WINDOW 1 MINUTE]", "Hosts [ROWS 3] AS h", "window('hosts', INTERVAL 1 MINUTE)", '"hosts" [RANGE 1 DAY]'],
)
@pytest.mark.parametrize("level", ["snapshot", "latest", "serial"])
def test_a_window_of_a_table_is_refused(wh, source, level):
    with pytest.raises(QueryError, match=r"(?i)^hosts is a table, which has no windows; leave the clause out\nline 1"):
        wh.sql(f"SELECT count(*) FROM {source}", isolation=level)


def test_any_frame_will_do(wh):
    import pandas
    import polars

    for index, data in enumerate((
        pandas.DataFrame({"a": [1, 2], "b": ["x", None]}),
        polars.DataFrame({"a": [1, 2], "b": ["x", None]}),
        pa.table({"a": [1, 2], "b": ["x", None]}).to_reader(),
    )):  # fmt: skip
        assert wh.put_table(f"t{index}", data) == 2
        assert wh.sql(f"SELECT * FROM t{index} ORDER BY a").fetchall() == [(1, "x"), (2, None)]


def test_types_come_back_as_duckdb_reads_arrow(wh):
    data = pa.table({
        "d": pa.array([1, None], pa.duration("us")), "f": pa.array([1, 2], pa.float16()), "n": pa.nulls(2), "l": [[1], None],
        "nan": [float("nan"), 1.0],
    })  # fmt: skip
    wh.put_table("odd", data)
    assert wh.sql("SELECT typeof(d), typeof(n), typeof(f), max(nan) OVER () FROM odd LIMIT 1").fetchone()[:3] == (
        "INTERVAL", "INTEGER", "FLOAT",
    )  # fmt: skip
    assert wh.sql("SELECT count(*) FROM odd WHERE nan > 5").fetchall() == [(1,)]


def test_no_digit_of_a_decimal_is_lost(wh):
    """DuckDB counts with 38 digits, and reads wider decimals as floating numbers."""
    digits = [Decimal("9" * 35 + ".999"), Decimal("-0.001"), None]
    wh.put_table("exact", pa.table({"d": pa.array(digits, pa.decimal256(38, 3))}))
    assert [value for (value,) in wh.sql("SELECT d FROM exact").fetchall()] == digits
    for kind in (pa.decimal256(60, 3), pa.struct([("x", pa.decimal256(60, 3))])):
        with pytest.raises(
            DefinitionError, match=r"table 'wide': column 'd' of type .*60, 3.* more digits than the 38"
        ):
            wh.put_table("wide", pa.table({"d": pa.array([None], kind)}))
    assert "wide" not in wh.tables()


def test_an_empty_table_has_its_columns(wh):
    wh.put_table("empty", pa.table({"src": pa.array([], pa.int64())}))
    assert wh.sql("SELECT count(*) FROM packets JOIN empty USING (src)").fetchall() == [(0,)]


def test_windows_of_tables_are_none(wh):
    with wh.sql("SELECT * FROM hosts") as answer:
        assert answer.windows == ()
        assert isinstance(answer, windrow.queries.answer.Answer)
