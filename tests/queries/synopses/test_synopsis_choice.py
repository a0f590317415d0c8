"""Which queries get a synopsis: those for which it costs less than shared rows do, within a budget of bytes."""

from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import packet_warehouse
import windrow
from windrow.queries.periodic.evaluation import FROM_SNAPSHOT
from windrow.queries.synopses.cost_model import SynopsisCosts, SynopsisLoad, compare_with_rows, fit_budget, sum_costs
from windrow.times import to_datetime

GROUPED = "SELECT src, sum(len) AS n, count(*) AS c FROM packets [WINDOW {} MINUTES SLIDE 1 MINUTE] GROUP BY src"
GROUPINGS = ("a", "b", "a, b", "b, c", "c", "len")


@pytest.fixture
def wh(monkeypatch):
    monkeypatch.delenv("WINDROW_SYNOPSES")
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


def test_one_query_over_few_rows_is_answered_from_them(wh):
    wh.add_query("q", GROUPED.format(2) + " HAVING count(*) > 1")
    for minute in (21, 22):
        packet_warehouse.append_and_slide(wh, minute)
        assert [run.how for run in wh.run_due()] == [FROM_SNAPSHOT]
    ((group),) = wh.query_plan()
    assert group.by == FROM_SNAPSHOT
    assert "its rows cost less: a synopsis" in group.why[0]
    assert wh._store.catalog.read(lambda tables: list(tables.raw_items("synopses"))) == []


def test_many_queries_that_share_get_a_synopsis_and_it_goes_with_the_last_of_them(wh):
    names = [f"q{number}" for number in range(24)]
    for number, name in enumerate(names):
        wh.add_query(name, GROUPED.format(number % 8 + 1))
    for minute in (21, 22):
        packet_warehouse.append_and_slide(wh, minute)
        runs = {run.query: run for run in wh.run_due()}
        for number, name in enumerate(names):
            minutes = number % 8 + 1
            rows = wh.results(name, slide=runs[name].slide).fetchall()
            assert sorted(row[6:] for row in rows) == [
                (src, minutes * sum(range(src, 600, 60)), minutes * 10) for src in range(60)
            ]
    assert {run.how for run in runs.values()} == {"basic synopsis"}
    (group,) = wh.query_plan()
    assert "bytes; the window's rows take" in group.why[-1]
    kept = wh._store.catalog.read(lambda tables: sum(len(raw) for _, raw in tables.raw_items("synopses")))
    ((window,),) = wh.sql("SELECT sum(bytes) FROM windrow.segments WHERE stream = 'packets'").fetchall()
    assert 0 < kept <= window
    for name in names:
        wh.drop_query(name)
    assert wh._store.catalog.read(lambda tables: list(tables.raw_items("synopses"))) == []


def test_the_most_useful_synopses_are_kept_within_the_budget():
    costs = {
        "large": SynopsisCosts(kept=1.0, rows=2.0, size=90.0),
        "good": SynopsisCosts(kept=1.0, rows=2.0, size=20.0),
        "small": SynopsisCosts(kept=1.0, rows=1.1, size=10.0),
    }
    assert fit_budget(costs, 100.0) == {"good", "small"}
    assert fit_budget(costs, 1000.0) == {"large", "good", "small"}
    assert fit_budget(costs, 0.0) == set()


def test_a_synopsis_pays_for_long_windows_and_many_users_and_not_for_as_many_groups_as_rows():
    def pays(uses: int, slot_rows: float, groups: float) -> bool:
        load = SynopsisLoad(60, groups, groups, 0.0, ((60, 1),) * uses, False)
        costs = compare_with_rows("basic", load, 64, slot_rows, groups * 24, groups * 4, built_by_arrays=False)
        return costs.pays(existing=False)

    assert not pays(uses=1, slot_rows=100, groups=10)
    assert pays(uses=1, slot_rows=50_000, groups=100)
    assert not pays(uses=1, slot_rows=50_000, groups=45_000)
    assert not pays(uses=20, slot_rows=100, groups=90)


def test_few_synopses_do_not_pay_for_putting_the_new_rows_where_duckdb_makes_their_nodes():
    each = SynopsisCosts(4e-3, 5.5e-3, 1000.0)
    assert each.pays(existing=False)
    assert not sum_costs([each], 2000.0).pays(existing=False)
    assert sum_costs([each], 2000.0).pays(existing=True)  # it would be filled again soon
    assert sum_costs([each] * 20, 2000.0).pays(existing=False)


def test_synopses_that_only_together_answer_a_query_do_not_each_save_all_of_it():
    def saved(shares):
        load = SynopsisLoad(60, 100.0, 100.0, 0.0, ((60, 1), (30, 2)), True, 0.02, shares)
        return compare_with_rows("basic", load, 64, 10_000.0, 2400.0, 400.0, built_by_arrays=True).rows

    assert saved((0.5, 0.5)) == pytest.approx(saved(()) / 2)
    assert saved((1.0, 0.5)) + saved((0.0, 0.5)) == pytest.approx(saved((1.0, 1.0)))


def test_synopses_of_as_many_groups_as_rows_fit_the_budget_where_their_bytes_do(tmp_path, monkeypatch):
    """Six groupings, some of as many groups as rows: what each would take is counted as it is stored."""
    monkeypatch.delenv("WINDROW_SYNOPSES")
    draw = np.random.default_rng(11)
    with windrow.open(tmp_path / "w", clock=lambda: 1 << 50) as wh:
        schema = pa.schema({"ts": pa.timestamp("us"), **dict.fromkeys(("a", "b", "c", "len"), pa.int32())})
        wh.create_stream("p", schema, time="ts", slide="1 second", lifetime="20 seconds")
        tables = []
        for slot in range(1, 22):
            times = (slot - 1) * 1_000_000 + np.sort(draw.integers(1, 1_000_000, 8000))
            columns = [draw.integers(0, most, 8000) for most in (200, 200, 30, 1500)]
            tables.append(pa.table([times.view("M8[us]"), *(c.astype(np.int32) for c in columns)],
                                   names=["ts", "a", "b", "c", "len"]))  # fmt: skip
            wh.append("p", tables[-1])
            wh.slide("p", to=to_datetime(slot * 1_000_000))
            if slot == 19:
                for number in range(48):
                    groups = GROUPINGS[number % 6]
                    wh.add_query(
                        f"q{number}",
                        f"SELECT {groups}, sum(len) AS total FROM p [WINDOW {number % 11 + 10} SECONDS SLIDE 1 SECOND] "
                        f"GROUP BY {groups} ORDER BY total DESC, {groups} LIMIT 9",
                    )
            runs = wh.run_due()  # what pays is decided after a query's first round
        assert Counter(run.how for run in runs) == {"basic synopsis": 48}
        with duckdb.connect() as plain:
            for run in runs:
                number = int(run.query[1:])
                groups = GROUPINGS[number % 6]
                plain.register("rows", pa.concat_tables(tables[-(number % 11 + 10) :]))
                text = f"SELECT {groups}, sum(len) FROM rows GROUP BY {groups} ORDER BY sum(len) DESC, {groups} LIMIT 9"
                delivered = [row[6:] for row in wh.results(run.query, slide=run.slide).fetchall()]
                assert delivered == plain.sql(text).fetchall()
        kept = wh._store.catalog.read(lambda tables: sum(len(raw) for _, raw in tables.raw_items("synopses")))
        assert 0 < kept <= wh.stream("p").bytes
