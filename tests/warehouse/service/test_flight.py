"""Arrow Flight SQL with the real ADBC driver and with windrow's own client, against the library's answers."""

import pyarrow as pa
import pytest
from adbc_driver_flightsql import dbapi
from pyarrow import flight

import windrow
from served_warehouse import HEADER, ROWS, SCHEMA, rows
from windrow.service import flight_messages
from windrow.service.parameters import describe_parameters

STATEMENTS = (
    "SELECT count(*) AS n, max(k) AS top FROM seen",
    "SELECT k, ts, secret FROM seen [WINDOW 2 MINUTES] ORDER BY k",
    "SELECT s.k, n.name FROM seen s JOIN names n ON s.k = n.k ORDER BY 1",
    "SELECT [1, 2] AS l, {'a': 1} AS s, 'ö' AS t, NULL AS n",
)


@pytest.fixture
def connection(shared):
    with dbapi.connect(shared.flight, db_kwargs={HEADER: f"Bearer {shared.tokens['operator']}"}, autocommit=True) as c:
        yield c


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_driver_gives_what_the_library_gives(shared, connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        assert cursor.fetch_arrow_table().to_pylist() == shared.wh.sql(statement).arrow().to_pylist()


def test_the_driver_binds_parameters_and_reads_frames(shared, connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT k FROM seen WHERE k BETWEEN ? AND ? ORDER BY k", (3, 5))
        assert [row[0] for row in cursor.fetchall()] == [3, 4, 5]
        cursor.execute("SELECT k FROM seen WHERE k < 2 ORDER BY k")
        assert cursor.fetch_df()["k"].tolist() == [0, 1]
        cursor.execute("SELECT k FROM seen WHERE k < 2 ORDER BY k")
        assert cursor.fetch_polars()["k"].to_list() == [0, 1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1", {}),
        ("SELECT k FROM seen WHERE k >= ? AND secret = ?", {"1": pa.int64(), "2": pa.string()}),
        ("SELECT k FROM seen s WHERE s.k IN (?, ?) AND \"ts\" > $3", dict(zip("123", [pa.int64()] * 2 + [pa.timestamp("us", "UTC")], strict=True))),
        ("SELECT ? + 1 FROM seen WHERE k BETWEEN $low AND $high -- $no", {"1": pa.string()}),
        ("SELECT '?', \"$a\" FROM seen WHERE k BETWEEN $low AND $high /* ? */", {"low": pa.int64(), "high": pa.int64()}),
    ],
)  # fmt: skip
def test_drivers_are_told_parameters_and_their_types(query, expected):
    schema = describe_parameters(query, {field.name: field.type for field in SCHEMA})
    assert dict(zip(schema.names, schema.types, strict=True)) == expected


def test_the_driver_lists_relations_and_columns(shared, connection):
    assert connection.adbc_get_info()["vendor_name"] == "windrow"
    (catalog,) = connection.adbc_get_objects(depth="columns").read_all().to_pylist()
    schemas = {schema["db_schema_name"]: schema["db_schema_tables"] for schema in catalog["catalog_db_schemas"]}
    tables = {t["table_name"]: [c["column_name"] for c in t["table_columns"]] for t in schemas["main"]}
    assert tables["seen"] == ["ts", "k", "secret"]
    system = {table["table_name"]: [c["column_name"] for c in table["table_columns"]] for table in schemas["windrow"]}
    assert "stream" in system["streams"] and "segments" in system
    assert {"names", "hidden", "counted"} <= tables.keys()
    with dbapi.connect(shared.flight, db_kwargs={HEADER: f"Bearer {shared.tokens['analyst']}"}, autocommit=True) as c:
        (catalog,) = c.adbc_get_objects(depth="columns").read_all().to_pylist()
        assert "hidden" not in str(catalog)
        assert "secret" not in str(catalog)


def test_the_driver_appends_exactly_once_by_batch_id(served):
    name = "adbc.flight.sql.rpc.call_header.x-windrow-batch-id"
    token = {HEADER: f"Bearer {served.tokens['operator']}"}
    for expected in (4, 0):
        with (
            dbapi.connect(served.flight, db_kwargs=token, autocommit=True) as connection,
            connection.cursor(adbc_stmt_kwargs={name: "first"}) as cursor,
        ):
            assert cursor.adbc_ingest("seen", rows(ROWS, 4), mode="append") == expected
    served.wh.slide("seen", to="2026-01-01T00:11:00Z")
    assert served.wh.sql("SELECT count(*) FROM seen WHERE k >= 600").fetchall() == [(4,)]


@pytest.mark.parametrize(
    ("role", "statement", "words"),
    [
        ("analyst", "SELECT secret FROM seen", "secret"),
        ("analyst", "SELECT * FROM hidden", "no stream, table or view"),
        ("producer", "SELECT 1", "may not read"),
        ("operator", "COPY seen TO '/tmp/x'", "(?i)copy|read"),
        ("operator", "SELEC", "syntax error"),
    ],
)
def test_errors_come_in_the_servers_words(shared, role, statement, words):
    token = {HEADER: f"Bearer {shared.tokens[role]}"}
    with (
        dbapi.connect(shared.flight, db_kwargs=token, autocommit=True) as c,
        c.cursor() as cursor,
        pytest.raises(dbapi.Error, match=words),
    ):
        cursor.execute(statement)
    with shared.connect(role) as wh, pytest.raises(windrow.WindrowError, match=words):
        wh.sql(statement).arrow()


def test_our_client_has_the_words_of_the_library(served):
    with served.connect("operator") as remote:
        wh = served.wh
        answer = remote.sql("SELECT k FROM seen [WINDOW 1 MINUTE] WHERE k > ? ORDER BY k", [590])
        expected = wh.sql("SELECT k FROM seen [WINDOW 1 MINUTE] WHERE k > ? ORDER BY k", [590])
        assert answer.windows == expected.windows
        assert answer.fetchall() == expected.fetchall()
        assert remote.streams() == wh.streams()
        assert remote.now("seen") == wh.now("seen")
        assert remote.tables() == wh.tables()
        for options in ({"key": 5}, {"keys": [1, 2, 9999]}, {"between": (3, 6)}, {"key": 599, "window": "1 minute"}):
            actual = remote.probe("seen", **options).sort_by("k")
            assert actual.to_pylist() == wh.probe("seen", **options).sort_by("k").to_pylist()
        assert (
            remote.scan("seen", "2 minutes", ["k"]).read_all().num_rows
            == wh.scan("seen", "2 minutes").read_all().num_rows
        )
        assert remote.results("counted").fetchall() == wh.results("counted").fetchall()
        assert remote.results("counted", slide=1, revisions=True).fetchall() == []
        reports = [remote.append("seen", rows(ROWS + 80, 2), batch_id="x") for _ in range(2)]
        assert [(report.accepted, report.duplicate) for report in reports] == [(2, False), (0, True)]
        timeless = rows(0, 2).set_column(0, "ts", pa.nulls(2, rows(0, 1).schema.field("ts").type))
        assert remote.append("hidden", timeless).rejected == {"the event time is null": 2}
        with pytest.raises(windrow.SchemaError, match="nothing was appended"):
            remote.append("hidden", timeless, max_rejected=0.5)
        assert remote.sql("SELECT k FROM seen WHERE k = $x", {"x": 8}).fetchall() == [(8,)]
        assert remote.sql("SELECT count(*) FROM seen", isolation="latest", timeout="1 minute").isolation == "latest"
        assert remote.gaps("seen") == wh.gaps("seen")
        remote.wait_for("seen", up_to="2026-01-01T00:10:00Z", timeout=0)
        remote.heartbeat("seen", up_to="2026-01-01T00:12:00Z")
        assert "seen" in remote.explain("SELECT * FROM seen")


def test_errors_of_the_server_are_of_the_librarys_classes(shared):
    heavy = "SELECT sum(a.i * b.i) AS n FROM range(1000000) a(i), range(1000000) b(i)"
    with shared.connect("operator") as remote:
        for kind, call in (
            (windrow.UnknownStreamError, lambda: remote.stream("nope")),
            (windrow.QueryTimeoutError, lambda: remote.sql(heavy, timeout=0.2).arrow()),
            (windrow.QueryError, lambda: remote.sql("SELECT 1", isolation="none")),
            (windrow.BusyError, lambda: remote.wait_for("seen", up_to="2030-01-01T00:00:00Z", timeout=0)),
            (windrow.SchemaError, lambda: remote.append("seen", pa.table({"x": [1]}))),
        ):
            with pytest.raises(kind):
                call()


def test_pandas_and_polars_read_and_append_through_the_driver(served):
    import pandas as pd
    import polars as pl

    statement = "SELECT k, secret FROM seen WHERE k < 5 ORDER BY k"
    expected = served.wh.sql(statement).arrow()
    token = {HEADER: f"Bearer {served.tokens['operator']}"}
    with dbapi.connect(served.flight, db_kwargs=token, autocommit=True) as connection:
        assert pd.read_sql(statement, connection).to_dict("list") == expected.to_pydict()
        assert pd.read_sql_table("names", connection)["k"].tolist() == [1, 2]
        assert pl.read_database(statement, connection).to_dict(as_series=False) == expected.to_pydict()
        before = served.wh.stream("seen").spooled_rows
        assert rows(7000, 3).to_pandas().to_sql("seen", connection, if_exists="append", index=False) == 3
        polars_rows = pl.DataFrame(rows(7010, 3))
        assert polars_rows.write_database("seen", connection, if_table_exists="append", engine="adbc") == 3
        assert served.wh.stream("seen").spooled_rows == before + 6


def test_a_server_that_is_not_there_is_named(shared):
    with (
        windrow.connect("grpc+tcp://127.0.0.1:1", token="x") as remote,
        pytest.raises(windrow.BusyError, match="reached"),
    ):
        remote.streams()
    with (
        windrow.connect(shared.flight, token="windrow_0_x") as remote,
        pytest.raises(windrow.AccessError, match="valid"),
    ):
        remote.streams()


@pytest.mark.parametrize(("announced", "taken"), [(None, 0), (b"7", 0), (b"x", 0), (b"8", 8)])
def test_an_upload_with_a_counted_end_is_appended_only_as_a_whole(served, announced, taken):
    """A client that dies half-way ends its upload without the message that says how many rows it has."""
    options = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {served.tokens['operator']}".encode()), (b"x-windrow-end", b"counted")]
    )
    modes = flight_messages.CLASSES["TableDefinitionOptions"](if_not_exist=2, if_exists=2)
    command = flight_messages.pack("CommandStatementIngest", table="seen", table_definition_options=modes)
    before = served.wh.stream("seen").spooled_rows
    sent = rows(5000, 8)
    with flight.connect(served.flight) as client:
        writer, replies = client.do_put(flight.FlightDescriptor.for_command(command), sent.schema, options)
        writer.write_table(sent, max_chunksize=5)
        if announced is not None:
            writer.write_metadata(announced)
        writer.done_writing()
        if taken:
            assert replies.read() is not None
            writer.close()
        else:
            with pytest.raises(flight.FlightServerError, match="ended before all its rows had come"):
                writer.close()
    assert served.wh.stream("seen").spooled_rows == before + taken


def test_a_client_whose_rows_fail_half_way_appends_nothing(served):
    def broken():
        yield from rows(6000, 4).to_batches()
        raise RuntimeError("no more")

    before = served.wh.stream("seen").spooled_rows
    with windrow.connect(served.flight, served.tokens["operator"]) as remote, pytest.raises(RuntimeError):
        remote.append("seen", pa.RecordBatchReader.from_batches(rows(0, 1).schema, broken()))
    assert served.wh.stream("seen").spooled_rows == before
