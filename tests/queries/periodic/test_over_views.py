"""Periodic queries over what is itself derived: views move in their inputs' slides, and so do the queries that they pace."""

import pyarrow as pa
import pytest

import packet_warehouse
import windrow


@pytest.fixture
def wh():
    with packet_warehouse.open_packet_warehouse() as made:
        made.create_view(
            "known",
            "SELECT p.ts AS at, p.src, p.len, h.name FROM packets [WINDOW 4 MINUTES] AS p JOIN hosts AS h USING (src)",
        )
        yield made


@pytest.mark.parametrize("missed", ["latest", "every", "skip"])
def test_a_view_paces_a_query(wh, missed):
    sql = "SELECT name, count(*) AS n, sum(len) AS bytes FROM known {} GROUP BY name ORDER BY name"
    wh.add_query("q", sql.format("[WINDOW 2 MINUTES SLIDE 1 MINUTE]"), missed=missed)
    wh.add_query("combined", "SELECT (SELECT count(*) FROM known [WINDOW 1 MINUTE SLIDE 1 MINUTE]) AS k, "
                 "(SELECT count(*) FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]) AS p", missed=missed)  # fmt: skip
    expected = []
    for number in range(21, 25):
        packet_warehouse.append_and_slide(wh, number)
        expected.append(wh.sql(sql.format("[WINDOW 2 MINUTES]")).fetchall())
        assert sorted(run.query for run in wh.run_due()) == ["combined", "q"]
    rows = wh.results("q").fetchall()
    slides = sorted({row[0] for row in rows})
    assert [[row[6:] for row in rows if row[0] == slide] for slide in slides] == expected
    assert all(len(answer) == 3 and answer[0][1] == 20 for answer in expected)
    assert [row[6:] for row in wh.results("combined").fetchall()] == [(30, 600)] * 4


def test_a_view_that_queries_read_is_not_dropped(wh):
    wh.add_query("q", "SELECT count(*) AS n FROM known [WINDOW 2 MINUTES SLIDE 1 MINUTE]")
    with pytest.raises(windrow.WindrowError, match="q"):
        wh.drop_view("known")
    wh.drop_query("q")
    wh.drop_view("known")


def test_a_view_cannot_take_a_querys_name(wh):
    wh.add_query("q", "SELECT count(*) AS n FROM known [WINDOW 2 MINUTES SLIDE 1 MINUTE]")
    with pytest.raises(windrow.WindrowError, match="exists already"):
        wh.create_view("Q", "SELECT ts AS at, src FROM packets [WINDOW 4 MINUTES]")
    assert pa.table(wh.results("q")).num_rows == 0
