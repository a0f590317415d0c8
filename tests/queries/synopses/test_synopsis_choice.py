"""Which queries get a synopsis: those for which it costs less than shared rows do, within a budget of bytes."""

import pytest

import packet_warehouse
from windrow.queries.periodic.evaluation import FROM_SNAPSHOT
from windrow.queries.synopses.cost_model import SynopsisCosts, SynopsisLoad, compare_with_rows, fit_budget

GROUPED = "SELECT src, sum(len) AS n, count(*) AS c FROM packets [WINDOW {} MINUTES SLIDE 1 MINUTE] GROUP BY src"


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
        return compare_with_rows("basic", load, slot_rows, groups * 24, built_by_arrays=False).pays(existing=False)

    assert not pays(uses=1, slot_rows=100, groups=10)
    assert pays(uses=1, slot_rows=50_000, groups=100)
    assert not pays(uses=1, slot_rows=50_000, groups=45_000)
    assert not pays(uses=20, slot_rows=100, groups=90)
