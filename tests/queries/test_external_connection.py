"""`snap.duckdb()`: a plain DuckDB connection over a snapshot sees the live rows by name and reaches no file."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import plain_duckdb
import windrow

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("exp", STAMP), ("src", pa.int64()), ("note", pa.string())])
MINUTE = 60_000_000


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[windrow.Warehouse, pa.Table]]:
    """A warehouse that slid for twelve minutes, and every row that was ever appended."""
    random = np.random.default_rng(7)
    start = int(NOON.timestamp()) * 1_000_000
    parts = []
    with windrow.open(tmp_path / "wh") as wh:
        index = windrow.Index("round-robin", 2, 2)
        wh.create_stream(
            "calls",
            SCHEMA,
            time="ts",
            key="src",
            slide="1 minute",
            expires="exp",
            max_lifetime="8 minutes",
            index=index,
        )
        wh.put_table("hosts", pa.table({"src": [1, 2, 3], "name": ["ant", "bee", "cat"]}))
        for minute in range(12):
            ts = start + minute * MINUTE + random.integers(1, MINUTE + 1, 500)
            exp = ts + random.integers(1, 8 * MINUTE + 1, 500)
            src = random.integers(0, 40, 500)
            columns = [
                pa.array(ts, STAMP),
                pa.array(exp, STAMP),
                pa.array(src),
                pa.array(random.integers(0, 99, 500)).cast("string"),
            ]
            parts.append(pa.table(columns, schema=SCHEMA))
            wh.append("calls", parts[-1])
            wh.slide("calls", to=NOON + dt.timedelta(minutes=minute + 1))
        yield wh, pa.concat_tables(parts)


def truth(rows: pa.Table, minutes: int, sql: str) -> list[Any]:
    """The same SQL in plain DuckDB over the rows that are live when `minutes` have passed."""
    now = int(NOON.timestamp()) * 1_000_000 + minutes * MINUTE
    ts, exp = rows["ts"].cast(pa.int64()).to_numpy(), rows["exp"].cast(pa.int64()).to_numpy()
    live = rows.filter(pa.array((ts <= now) & (exp > now)))
    with plain_duckdb.connect() as plain:
        plain.register("calls", live)
        plain.register("hosts", pa.table({"src": [1, 2, 3], "name": ["ant", "bee", "cat"]}))
        return plain.execute(sql).fetchall()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM calls",
        "SELECT src, count(*), max(note) FROM calls GROUP BY src ORDER BY src",
        "SELECT count(*), min(note) FROM calls WHERE src = 7",
        "SELECT count(*) FROM calls WHERE src IN (1, 5, 9) AND note > '3'",
        "SELECT count(*) FROM calls WHERE src BETWEEN 10 AND 12 OR note = '8'",
        "SELECT count(*) FROM calls WHERE ts > TIMESTAMPTZ '2025-01-01 12:09:00+00' AND src < 20",
        "SELECT name, count(*) FROM calls JOIN hosts USING (src) GROUP BY name ORDER BY name",
        "SELECT a.src, count(*) FROM calls a JOIN calls b USING (src) WHERE a.note < b.note GROUP BY 1 ORDER BY 1",
    ],
)
def test_it_sees_exactly_the_live_rows(filled: tuple[windrow.Warehouse, pa.Table], sql: str) -> None:
    wh, rows = filled
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        assert connection.execute(sql).fetchall() == truth(rows, 12, sql)


def test_the_function_form_gives_a_window(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    """Half-open: a window of three minutes at 12:12 holds 12:09 < ts <= 12:12."""
    wh, rows = filled
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        actual = connection.execute("SELECT count(*) FROM \"window\"('calls', INTERVAL 3 MINUTE)").fetchall()
    assert actual == truth(rows, 12, "SELECT count(*) FROM calls WHERE ts > TIMESTAMPTZ '2025-01-01 12:09:00+00'")


def test_a_window_longer_than_the_stream_keeps_is_refused(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    wh, _ = filled
    with wh.snapshot() as snap:
        connection = snap.duckdb()
        whole = connection.execute("""SELECT count(*) FROM "window"('calls', INTERVAL 8 MINUTE)""").fetchall()
        assert whole == connection.execute("SELECT count(*) FROM calls").fetchall()
        for length in ("INTERVAL 481 SECOND", "INTERVAL 1 DAY"):
            with pytest.raises(duckdb.Error, match="'calls' keeps rows for 8 minutes; a longer window"):
                connection.execute(f"""SELECT count(*) FROM "window"('calls', {length})""")


def test_a_window_of_no_length_is_refused(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    wh, _ = filled
    with wh.snapshot() as snap, snap.duckdb() as connection:
        for length in ("INTERVAL 0 SECOND", "INTERVAL (-1) MINUTE"):
            with pytest.raises(duckdb.Error, match="a window must be longer than zero"):
                connection.execute(f"""SELECT count(*) FROM "window"('calls', {length})""")


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_and_zone_have_windows(path: Path, unit: str, zone: str | None) -> None:
    schema = pa.schema([("ts", pa.timestamp(unit, zone)), ("n", pa.int64())])
    micros = [int((NOON + dt.timedelta(minutes=n)).timestamp() * 10**6) for n in (1, 2, 3)]
    times = pa.array(micros, pa.timestamp("us", zone)).cast(schema.field("ts").type)
    with windrow.open(path) as wh:
        wh.create_stream("s", schema, time="ts", slide="1 minute", lifetime="10 minutes")
        wh.append("s", pa.table([times, [1, 2, 3]], schema=schema))
        wh.slide("s", to=NOON + dt.timedelta(minutes=3))
        with wh.snapshot() as snap, snap.duckdb() as connection:
            actual = connection.execute("""SELECT n FROM "window"('s', INTERVAL 2 MINUTE) ORDER BY n""").fetchall()
    assert actual == [(2,), (3,)]


def test_it_stays_at_its_slide_while_the_stream_goes_on(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    wh, rows = filled
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        wh.slide("calls", to=NOON + dt.timedelta(minutes=30))
        wh.gc()
        assert connection.execute("SELECT count(*) FROM calls").fetchall() == truth(
            rows, 12, "SELECT count(*) FROM calls"
        )
    assert wh.scan("calls").read_all().num_rows == 0


def test_summaries_are_there(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    wh, rows = filled
    wh.create_summary("talkers", "SELECT src, count(*) AS n FROM calls GROUP BY src", frequent=5)
    expected = dict(truth(rows, 12, "SELECT src, count(*) FROM calls GROUP BY src"))
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        shown = connection.sql("SELECT src, lower, upper FROM talkers").fetchall()
        assert shown == snapshot.sql("SELECT src, lower, upper FROM talkers").fetchall()
        assert shown
        assert all(lower <= expected[src] <= upper for src, lower, upper in shown)
        assert ("talkers",) in connection.sql("SHOW TABLES").fetchall()


def test_temporary_views_are_allowed(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    wh, rows = filled
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        connection.execute("CREATE TEMP VIEW busy AS SELECT src FROM calls GROUP BY src HAVING count(*) > 50")
        sql = "SELECT count(*) FROM (SELECT src FROM calls GROUP BY src HAVING count(*) > 50)"
        assert connection.execute("SELECT count(*) FROM busy").fetchall() == truth(rows, 12, sql)


def test_cursors_see_what_the_connection_sees(filled: tuple[windrow.Warehouse, pa.Table]) -> None:
    """pandas asks by a cursor, and tools that keep several connections by cursors of cursors."""
    import pandas

    wh, rows = filled
    sql = "SELECT src, count(*) AS n FROM calls JOIN hosts USING (src) GROUP BY src ORDER BY src"
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        connection.execute("CREATE VIEW recent AS FROM \"window\"('calls', INTERVAL 3 MINUTE)")
        inner = connection.cursor().cursor()
        assert inner.execute(sql).fetchall() == truth(rows, 12, sql)
        newest = "SELECT count(*) FROM calls WHERE ts > TIMESTAMPTZ '2025-01-01 12:09:00+00'"
        assert inner.execute("SELECT count(*) FROM recent").fetchall() == truth(rows, 12, newest)
        with pytest.warns(UserWarning, match="SQLAlchemy"):
            frame = pandas.read_sql(sql, connection)
        assert list(frame.itertuples(index=False, name=None)) == truth(rows, 12, sql)


@pytest.mark.parametrize("setting", ["TimeZone = 'UTC'", "python_enable_replacements = false"])
def test_what_tools_set_when_they_connect_may_be_set(filled: tuple[windrow.Warehouse, pa.Table], setting: str) -> None:
    with filled[0].snapshot() as snapshot, snapshot.duckdb() as connection:
        connection.execute(f"SET {setting}")


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{wh}/streams/calls/segments/x.parquet'",
        "COPY (SELECT 1) TO '{wh}/x.csv'",
        "EXPORT DATABASE '{wh}/dump'",
        "ATTACH '{wh}/x.duckdb'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '{wh}/windrow.json'",
        "INSTALL httpfs",
        "SET disabled_filesystems = ''",
        "SET enable_external_access = true",
    ],
)
def test_it_reaches_no_file(filled: tuple[windrow.Warehouse, pa.Table], statement: str) -> None:
    wh, _ = filled
    with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
        before = sorted(wh.path.rglob("*"))
        with pytest.raises(duckdb.Error):
            connection.execute(statement.format(wh=wh.path)).fetchall()
        assert sorted(wh.path.rglob("*")) == before


MANY = ("first", "Second", "third-one")


def test_relations_that_no_text_names_are_found_too(path: Path) -> None:
    """Relations are registered when a statement may need them, whatever way it comes to their names."""
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    with windrow.open(path) as wh:
        for number, name in enumerate(MANY):
            wh.create_stream(name, schema, time="ts", slide="1 minute", lifetime="10 minutes")
            wh.append(name, pa.table([[NOON] * (number + 1), list(range(number + 1))], schema=schema))
            wh.slide(name, to=NOON)
        wh.put_table("hosts", pa.table({"n": [0, 1, 2, 3]}))
        with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
            assert connection.execute("SELECT count(*) FROM second").fetchall() == [(2,)]
            assert connection.execute('SELECT count(*) FROM hosts JOIN "third-one" USING (n)').fetchall() == [(3,)]
            inner = connection.cursor()
            connection.execute("CREATE VIEW joined AS SELECT n FROM first UNION ALL SELECT n FROM second")
            assert inner.execute("SELECT count(*) FROM joined").fetchall() == [(3,)]
            inner = connection.cursor()
            assert inner.execute("FROM query('SELECT count(*) FROM ' || 'fir' || 'st')").fetchall() == [(1,)]
            assert inner.execute("SELECT count(*) FROM query_table(?)", ["hosts"]).fetchall() == [(4,)]
            names = {name for (name,) in connection.cursor().execute("SHOW TABLES").fetchall()}
            assert names == {*MANY, "hosts", "joined"}
            assert connection.cursor().table("second").query("s", "SELECT count(*) FROM s, first").fetchall() == [(2,)]
            for ask in ("sql", "query", "from_query"):
                lazy = getattr(connection.cursor(), ask)("SELECT n FROM second")
                assert lazy.filter("n IN (SELECT n FROM first)").fetchall() == [(0,)]
                assert lazy.order("n").fetchall() == [(0,), (1,)]
                assert getattr(connection.cursor(), ask)("SELECT count(*) FROM joined").fetchall() == [(3,)]
                with pytest.raises(duckdb.CatalogException, match="nothing"):
                    getattr(connection.cursor(), ask)("SELECT * FROM nothing")
            with pytest.raises(duckdb.CatalogException, match="nothing"):
                connection.cursor().sql("FROM second").filter("n IN (SELECT n FROM nothing)")
            several = "CREATE TEMP TABLE kept AS FROM first; SELECT count(*) FROM kept, second"
            assert connection.cursor().execute(several).fetchall() == [(2,)]
            with pytest.raises(duckdb.CatalogException, match="nothing"):
                connection.cursor().execute("SELECT * FROM nothing")
            tool = connection.cursor()  # SQLAlchemy asks within transactions that it rolls back
            for roll_back in (tool.rollback, lambda: tool.execute("ROLLBACK"), lambda: tool.sql("ROLLBACK")):
                tool.begin()
                assert tool.execute("SELECT count(*) FROM second").fetchall() == [(2,)]
                roll_back()
                assert tool.execute("SELECT count(*) FROM second").fetchall() == [(2,)]
