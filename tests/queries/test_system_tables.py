"""The system tables say what the warehouse knows, in SQL, as of the snapshot that the statement reads."""

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest

import packet_warehouse
import windrow
from packet_warehouse import LIVE_MINUTES, MINUTES, NOON, ROWS_PER_MINUTE
from windrow import QueryError

NAMES = ("streams", "slides", "sources", "batches", "segments", "cells", "queries", "runs", "rejected")


@pytest.fixture(scope="module")
def wh() -> Iterator[windrow.Warehouse]:
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_asked(wh, name):
    assert wh.sql(f"SELECT * FROM windrow.{name}").arrow().num_columns > 3
    assert wh.sql(f'SELECT count(*) FROM WINDROW."{name.upper()}"').fetchone() is not None


def test_an_unknown_one_is_refused(wh):
    with pytest.raises(QueryError, match="secrets"):
        wh.sql("SELECT * FROM windrow.secrets")


def test_streams_agree_with_status(wh):
    columns = "stream, slide, now, live_rows, stored_rows, segments, bytes, inserted, expired"
    rows = wh.sql(f"SELECT {columns} FROM windrow.streams ORDER BY stream").fetchall()
    for row, status in zip(rows, wh.status().streams, strict=True):
        assert row == (
            status.name, status.slide, status.now, status.live_rows, status.stored_rows, status.segments, status.bytes,
            status.inserted, status.expired,
        )  # fmt: skip


def test_slides_are_all_there(wh):
    rows = wh.sql(
        "SELECT now, inserted, expired FROM windrow.slides WHERE stream = 'packets' ORDER BY ordinal"
    ).fetchall()
    gone = [0] * (LIVE_MINUTES - 1) + [ROWS_PER_MINUTE] * (MINUTES - LIVE_MINUTES + 1)
    assert [row[0] for row in rows] == [NOON + dt.timedelta(minutes=n) for n in range(1, MINUTES + 1)]
    assert [row[1] for row in rows] == [ROWS_PER_MINUTE] * MINUTES
    assert sum(row[2] for row in rows) <= sum(gone)


def test_segments_and_cells_add_up(wh):
    (whole,) = wh.sql("SELECT sum(rows), sum(bytes), sum(dead_rows) FROM windrow.segments").fetchall()
    (cells,) = wh.sql("SELECT sum(rows), sum(bytes), sum(dead_rows) FROM windrow.cells").fetchall()
    assert whole == cells


def test_batches_and_rejected_rows(tmp_path):
    with packet_warehouse.open_packet_warehouse() as wh:
        late = packet_warehouse.make_minute(1)
        wh.append("packets", late, batch_id="too late")
        rows = wh.sql("SELECT batch_id, reason, rows FROM windrow.rejected").fetchall()
        assert rows == [("too late", "the row had already expired on arrival", ROWS_PER_MINUTE)]
        batch = wh.sql("SELECT rows, accepted FROM windrow.batches WHERE batch_id = 'too late'").fetchall()
        assert batch == [(ROWS_PER_MINUTE, 0)]


def test_they_join_with_streams_and_each_other(wh):
    sql = """
        SELECT s.stream, count(DISTINCT g.segment), (SELECT count(*) FROM packets)
        FROM windrow.streams s JOIN windrow.segments g USING (stream) GROUP BY s.stream
    """
    ((stream, segments, rows),) = wh.sql(sql).fetchall()
    assert (stream, segments, rows) == ("packets", wh.stream("packets").segments, LIVE_MINUTES * ROWS_PER_MINUTE)


def test_a_snapshot_shows_its_own_slides():
    with packet_warehouse.open_packet_warehouse() as wh, wh.snapshot() as snapshot:
        packet_warehouse.append_and_slide(wh, MINUTES + 1)
        asked = "SELECT max(ordinal), (SELECT max(now) FROM windrow.streams) FROM windrow.slides"
        assert snapshot.sql(asked).fetchall() == [(MINUTES, NOON + dt.timedelta(minutes=MINUTES))]
        assert wh.sql(asked).fetchall() == [(MINUTES + 1, NOON + dt.timedelta(minutes=MINUTES + 1))]


def test_show_tables_lists_all_that_can_be_asked(tmp_path):
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
    with windrow.open(tmp_path / "w") as wh:
        wh.create_stream("s", schema, time="ts", slide="1 minute")
        wh.put_table("hosts", pa.table({"k": [1]}))
        wh.create_view("v", "SELECT k FROM s")
        wh.add_query("q", "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        truth = [("hosts", "table"), ("q", "results"), ("s", "stream"), ("v", "view")]
        for text in ("SHOW TABLES", " show all tables ;", "SELECT * FROM windrow.relations ORDER BY name"):
            assert wh.sql(text).fetchall() == truth
        for name in ("s", "hosts", "v"):
            assert "k" in [row[0] for row in wh.sql(f"DESCRIBE {name}").fetchall()]
        with wh.snapshot() as snapshot:
            assert {row[0] for row in snapshot.duckdb().execute("SHOW TABLES").fetchall()} >= {"s", "hosts", "v"}
