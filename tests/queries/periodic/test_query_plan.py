"""`query plan` says which queries go together, by which rules, and why others cannot."""

import packet_warehouse
from windrow.queries.periodic.evaluation import FROM_SNAPSHOT


def test_queries_that_share_a_synopsis_are_one_group():
    with packet_warehouse.open_packet_warehouse() as wh:
        grouped = "SELECT src, {} FROM packets [WINDOW {} MINUTES SLIDE 1 MINUTE] GROUP BY src"
        wh.add_query("sums", grouped.format("sum(len) AS n", 5))
        wh.add_query("peaks", grouped.format("max(len) AS n, count(*) AS c", 10))
        wh.add_query("means", grouped.format("avg(len) AS n", 10))
        wh.add_query(
            "pairs", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] a JOIN hosts USING (src)"
        )
        wh.add_query("bound", grouped.format("count(*) AS n", 3).replace(" GROUP", " WHERE src > $1 GROUP"), params=[3])
        groups = wh.query_plan()
        named = {name: group for group in groups for name in group.queries}
        assert sorted(named) == ["bound", "means", "pairs", "peaks", "sums"]
        for name in ("sums", "means", "peaks"):
            assert "synops" in named[name].by
            assert any(rule.startswith("SS1") for rule in named[name].why)
        assert named["sums"].by == named["means"].by == named["peaks"].by, "one synopsis keeps what all three need"
        assert named["means"] is named["peaks"], "the same window is put together once"
        assert any(rule.startswith("SS2") for rule in named["means"].why)
        for name in ("pairs", "bound"):
            assert (named[name].queries, named[name].by) == ((name,), FROM_SNAPSHOT)
            assert named[name].why != ("",)
        packet_warehouse.append_and_slide(wh, 21)
        how = {run.query: run.how for run in wh.run_due()}
        assert how["pairs"] == how["bound"] == FROM_SNAPSHOT
        assert "synopsis" in how["sums"]
        assert "synopsis" in how["means"]


def test_there_may_be_nothing_to_plan():
    with packet_warehouse.open_packet_warehouse() as wh:
        assert wh.query_plan() == []
