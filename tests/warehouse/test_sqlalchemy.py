"""SQLAlchemy over a warehouse: tables are listed and reflected, and statements written by it give what DuckDB gives."""

import datetime as dt

import pyarrow as pa
import pytest

import windrow

sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy, which asks here, is not installed")
pytest.importorskip("duckdb_engine", reason="duckdb-engine, which writes DuckDB's SQL for it, is not installed")
pd = pytest.importorskip("pandas")

from windrow.sqlalchemy import to_sql_type  # noqa: E402

NOON = dt.datetime(2026, 11, 19, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("Key", pa.int64()),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64())])),
    ]
)


def rows(count):
    return [{"ts": NOON, "Key": n, "price": None, "tags": [str(n)], "place": {"x": 0.5}} for n in range(count)]


@pytest.fixture
def wh(path):
    with windrow.open(path, clock=lambda: int(NOON.timestamp() * 1_000_000)) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="Key", slide="1 minute", lifetime="1 hour")
        wh.put_table("Host-names", pa.table({"Key": [1, 2], "name": ["a", "b"]}))
        wh.create_view("odd", "SELECT ts, Key FROM packets WHERE Key % 2 = 1")
        wh.append("packets", rows(5))
        wh.slide("packets", to=NOON)
        wh.add_query("counts", "SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]")
        yield wh


@pytest.fixture
def engine(wh):
    return sqlalchemy.create_engine(f"windrow:///{wh.path}")


def test_streams_views_tables_and_results_are_listed_and_reflected(engine):
    inspector = sqlalchemy.inspect(engine)
    names = ["Host-names", "counts", "odd", "packets"]
    assert inspector.get_table_names() == names
    assert (inspector.get_schema_names(), inspector.get_table_names("other")) == (["main"], [])
    assert inspector.has_table("odd")
    assert not inspector.has_table("even")
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    assert sorted(metadata.tables) == names
    kinds = {column.name: str(column.type) for column in metadata.tables["packets"].columns if column.name != "place"}
    assert kinds == {"ts": "DATETIME", "Key": "BIGINT", "price": "NUMERIC(9, 2)", "tags": "ARRAY"}
    assert not any(table.primary_key for table in metadata.tables.values()), "a search key is not unique"
    with pytest.raises(sqlalchemy.exc.NoSuchTableError, match="even"):
        sqlalchemy.Table("even", sqlalchemy.MetaData(), autoload_with=engine)


def test_statements_over_reflected_tables_give_what_duckdb_gives(engine, wh):
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    packets, hosts = metadata.tables["packets"], metadata.tables["Host-names"]
    joined = sqlalchemy.select(hosts.c.name, sqlalchemy.func.count()).join_from(
        packets, hosts, packets.c.Key == hosts.c.Key
    )
    with engine.connect() as connection:
        counts = connection.execute(joined.where(packets.c.Key < 9).group_by(hosts.c.name).order_by(hosts.c.name)).all()
        assert counts == [("a", 1), ("b", 1)]
        assert (
            connection.execute(sqlalchemy.select(packets).order_by(packets.c.Key)).all()
            == wh.sql("SELECT * FROM packets ORDER BY Key").fetchall()
        )
        wh.append("packets", rows(7))
        wh.slide("packets", to=NOON + dt.timedelta(minutes=1))
        again = connection.execute(sqlalchemy.select(sqlalchemy.func.count()).select_from(packets)).scalar()
        assert again == 5, "a connection is of one commit"
    assert pd.read_sql_table("packets", engine)["Key"].tolist() == [*range(5), *range(7)]
    window = "SELECT count(*) AS n FROM \"window\"('packets', INTERVAL 1 MINUTE)"
    assert pd.read_sql(sqlalchemy.text(window), engine)["n"].tolist() == [0]
    assert wh.status().readers == 0, "closed connections pin nothing"


def test_a_connection_reads_only_what_is_in_the_warehouse(engine, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError, match="disabled by configuration"):
        connection.execute(sqlalchemy.text(f"SELECT * FROM read_csv('{tmp_path}/secret.csv')"))
    for url, message in (
        ("windrow://", "names no warehouse; write windrow:////data/warehouse"),
        (f"windrow:///{tmp_path}/nothing", "holds no warehouse"),
        (f"{engine.url}?memory=1GB", "by its path alone, without memory"),
    ):
        with pytest.raises(windrow.WindrowError, match=message):
            sqlalchemy.create_engine(url).connect()


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ('INSERT INTO packets ("Key") VALUES (9)', "packets is not an table"),
        ("DELETE FROM packets", "Can only delete from base table"),
        ('UPDATE packets SET "Key" = 1', "Can only update base table"),
        ("DROP TABLE packets", '"packets" is of type View'),
        ("SELECT * FROM nothing", "Table with name nothing does not exist"),
        ("SELECT nothing FROM packets", 'Referenced column "nothing" not found'),
    ],
)
def test_a_statement_that_is_refused_says_why_although_it_ended_the_transaction(engine, statement, cause):
    with engine.connect() as connection:
        with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
            connection.execute(sqlalchemy.text(statement))
        assert cause in str(refused.value)
        assert ("add rows with wh.append()" in str(refused.value)) == (not statement.startswith("SELECT"))
        connection.rollback()
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM packets")).scalar() == 5


def test_many_rows_cannot_be_inserted_but_a_copy_can_be_changed(engine):
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        with pytest.raises(sqlalchemy.exc.DBAPIError, match=r"only read; add rows with wh\.append\(\)"):
            connection.execute(sqlalchemy.insert(metadata.tables["odd"]), [{"Key": 7}, {"Key": 9}])
        connection.rollback()
        connection.execute(sqlalchemy.text('CREATE TABLE copied AS SELECT "Key" FROM packets'))
        connection.execute(sqlalchemy.text('DELETE FROM copied WHERE "Key" > 1'))
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM copied")).scalar() == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TIMESTAMP WITH TIME ZONE", "DATETIME"),
        ("TIMESTAMP_NS", "DATETIME"),
        ("DECIMAL(38,10)", "NUMERIC(38, 10)"),
        ("UBIGINT", "NUMERIC(20, 0)"),
        ("VARCHAR", "VARCHAR"),
        ("STRUCT(a INTEGER)", "NULL"),
    ],
)
def test_types_of_duckdb_are_types_of_sqlalchemy(name, text):
    assert str(to_sql_type(name)) == text
    assert str(to_sql_type(f"{name}[]").item_type) == text
