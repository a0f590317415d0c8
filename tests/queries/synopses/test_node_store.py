"""Standing queries answered from synopses give what plain DuckDB gives over the live rows, whatever came and went.

slots     ├────┼────┼────┼────┼────┼────┤now
window              (              ]      whole slots; every kind of synopsis, at every slide
late           ▲ into the right old slot
ahead                                  ▲ counts when the clock is there
"""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scratch_folders
import windrow
from oracle import HOUR
from sample_streams import BASE, DELTA
from standing_queries import (
    COUNTED,
    OTHERS,
    STREAM,
    SUMS,
    QueriedStream,
    append,
    clause,
    drop_query,
    expected,
    from_synopses,
    make_stream,
    register_query,
    rows,
    same,
    slide,
    statement,
)  # fmt: skip
from windrow.catalog.environment import catalog_key
from windrow.queries.periodic import evaluation
from windrow.queries.periodic.scheduler import POLICIES
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import check as synopsis_check
from windrow.queries.synopses import kinds, merged_answers, node_store
from windrow.snapshot import Snapshot

CLOCK = BASE + HOUR
AGGREGATES = {
    "sums": SUMS,
    "states": (*SUMS, *OTHERS),
    "counted": (*COUNTED, *SUMS[:4]),
    "all": (*SUMS, *OTHERS, *COUNTED),
}


def from_synopses_or_none(world: QueriedStream, snapshot: Snapshot, text: str) -> pa.Table:
    """The answer out of synopses; where nothing at all is kept yet, the rows say that there are none."""
    try:
        return from_synopses(world.wh._store, snapshot, text)
    except CannotSplitError as error:
        if str(error) != "nothing is kept yet":
            raise
        return world.wh.sql(text).arrow()


def check_together(world: QueriedStream, snapshot: Snapshot) -> None:
    """All standing queries in one go, as a round answers them."""
    entries = world.wh._store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
    policy = world.chance.choice(POLICIES)
    for answered in evaluation.answer_due(world.wh._store, snapshot, entries, policy):
        assert answered.rows is not None, answered.error
        text, slots = world.queries[answered.query]
        assert same(answered.rows.to_pylist(), expected(world, text, slots).to_pylist()), f"{text}, {answered.how}"


def check(world: QueriedStream) -> None:
    """Every standing query, from synopses alone."""
    with Snapshot(world.wh._store, [STREAM]) as snapshot:
        for text, slots in world.queries.values():
            given_ = from_synopses_or_none(world, snapshot, text.format(clause(slots)))
            wanted = expected(world, text, slots)
            assert given_.schema.names == wanted.schema.names
            assert [str(f.type) for f in given_.schema] == [str(f.type) for f in wanted.schema]
            assert same(given_.to_pylist(), wanted.to_pylist()), f"{text}, {slots} slots"
        check_together(world, snapshot)
    assert_as_rebuilt(world)


def assert_as_rebuilt(world: QueriedStream) -> None:
    """Every node holds what it would if it were made from the stored rows now."""
    store = world.wh._store
    with Snapshot(store, [STREAM]) as snapshot:
        stream = snapshot.view(STREAM).entry.id
        for entry in store.catalog.read(lambda tables: node_store.read_entries(tables, stream)):
            assert entry.slide == snapshot.view(STREAM).state.slide
            assert list(synopsis_check.find_differences(store, snapshot, STREAM, entry)) == []


FLAVOURS = ("fixed", "per row", "for ever", "nanoseconds")


@pytest.mark.parametrize(
    ("kind", "flavour"),
    [
        pytest.param(kind, flavour, marks=pytest.mark.soak if (i + j) % 2 else ())
        for i, kind in enumerate(kinds.KINDS)
        for j, flavour in enumerate(FLAVOURS)
    ],
)
@settings(max_examples=max(3, settings().max_examples // 6))
@given(st.integers(0, 1 << 30), st.sampled_from(sorted(AGGREGATES)))
def test_answers_equal_plain_duckdb(kind: str, flavour: str, seed: int, aggregates: str) -> None:
    """Late rows, rows ahead of the clock, quiet slides, jumps, reopening, added and dropped queries."""
    chance, expiring = random.Random(seed), flavour in ("per row", "nanoseconds")
    unit = "ns" if flavour == "nanoseconds" else "us"
    lifetime = None if flavour == "for ever" else 6
    with scratch_folders.scratch_folder() as path:
        wh = windrow.open(path / "w", clock=lambda: CLOCK)
        world = make_stream(wh, seed, lifetime=lifetime, expiring=expiring, unit=unit)
        for turn in range(5):
            for _ in range(chance.randint(0, 2)):
                append(
                    world, rows(world, chance.randint(1, 25), (-3 * DELTA if turn else 1, 2 * DELTA), 6 * DELTA), CLOCK
                )
            if turn == 0 or chance.random() < 0.3:
                register_query(world, f"q{turn}", statement(chance, AGGREGATES[aggregates]), chance.randint(1, 6), kind)
            if len(world.queries) > 1 and chance.random() < 0.2:
                drop_query(world, chance.choice(sorted(world.queries)), kind)
            slide(world, chance.choice((1, 1, 1, 2, 9)), CLOCK)
            check(world)
            if chance.random() < 0.3:
                world.wh.close()
                world.wh = windrow.open(path / "w", clock=lambda: CLOCK)
        world.wh.close()


def small(path: Path, *, expiring: bool = False) -> QueriedStream:
    """A few slots of rows."""
    world = make_stream(windrow.open(path, clock=lambda: CLOCK), 1, lifetime=6, expiring=expiring)
    for _ in range(4):
        append(world, rows(world, 40, (1, DELTA), 6 * DELTA), CLOCK)
        slide(world, 1, CLOCK)
    return world


def test_a_shorter_window_under_another_alias_is_answered_from_the_same_synopsis(path: Path) -> None:
    world = small(path)
    register_query(world, "sums", "SELECT k, sum(v), count(v) FROM s{} GROUP BY k", 4, None)
    shorter = "SELECT avg(q.v) AS mean, Q.K FROM s{} AS q GROUP BY q.k ORDER BY mean DESC LIMIT 2"
    with Snapshot(world.wh._store, [STREAM]) as snapshot:
        given_ = from_synopses(world.wh._store, snapshot, shorter.format(clause(2)))
    assert same(given_.to_pylist(), expected(world, shorter, 2).to_pylist())
    for isolation in ("snapshot", "latest", "serial"):
        rows_ = world.wh.sql(shorter.format(clause(2)), isolation=isolation).arrow()
        assert same(rows_.to_pylist(), given_.to_pylist())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT count(*) FROM s [WINDOW 20 SECONDS] a, hosts", "it reads more than streams"),
        ("SELECT a.k FROM s [WINDOW 20 SECONDS] a JOIN s [WINDOW 20 SECONDS] b USING (n)", "have the same name"),
        ("SELECT x.k FROM s [WINDOW 20 SECONDS] x JOIN s [WINDOW 20 SECONDS] y USING (n)", "aggregates nor groups"),
        ("SELECT sum(x.v) FROM s [WINDOW 20 SECONDS] x JOIN s [WINDOW 20 SECONDS] y USING (n)", "no view of its join"),
        ("SELECT sum(x.v) FROM s [WINDOW 20 SECONDS] x LEFT JOIN s y USING (n)", "another join than a plain inner one"),
        ("SELECT sum(x.v) FROM s [WINDOW 20 SECONDS] x, s y WHERE x.n < y.n", "without columns that are equal"),
        ("SELECT sum(x.v) FROM s [WINDOW 20 SECONDS] x, s y WHERE x.n = y.v", "different types"),
        ("SELECT sum(x.v) FROM s [WINDOW 20 SECONDS] x JOIN s [ROWS 5] y USING (n)", "does not go by time"),
        ("SELECT sum(v) FROM s [WINDOW 20 SECONDS] x JOIN s y USING (n)", "a column that two streams have"),
        ("SELECT sum(v) OVER () FROM s [WINDOW 20 SECONDS]", "neither aggregates nor groups"),
        ("SELECT max(c) FROM (SELECT count(*) AS c FROM s [WINDOW 20 SECONDS] GROUP BY k)", "FROM"),
        ("SELECT sum(v) FROM s [WINDOW 15 SECONDS]", "no multiple of the stream's slide"),
        ("SELECT sum(v) FROM s [ROWS 5]", "a count of rows"),
        ("SELECT list(v) FROM s [WINDOW 20 SECONDS]", "list"),
        ("SELECT sum(v) FROM s [WINDOW 60 SECONDS]", "does not reach back far enough"),  # it keeps four slots
        ("SELECT sum(v) FROM s [WINDOW 20 SECONDS] WHERE b", "no synopsis keeps what it needs"),
        ("SELECT sum(v) FROM s [WINDOW 20 SECONDS] WHERE ts < now()", "differs from query to query"),
    ],
)  # fmt: skip
def test_a_statement_that_rows_must_answer_says_why(path: Path, text: str, why: str) -> None:
    world = small(path)
    world.wh.put_table("hosts", pa.table({"name": ["one"]}))
    register_query(world, "sums", "SELECT sum(v) FROM s{}", 4, None)
    with Snapshot(world.wh._store) as snapshot, pytest.raises(CannotSplitError, match=why):
        merged_answers.plan_answer(world.wh._store, snapshot, text, {})


def test_a_statement_over_several_windows_and_kinds_of_counts_is_joined_from_its_synopses(path: Path) -> None:
    world = small(path)
    register_query(
        world,
        "both",
        "SELECT tag, count(*), count(DISTINCT v), median(k), sum(d) FROM s{} GROUP BY tag ORDER BY tag",
        3,
        None,
    )
    check(world)
    assert len(_entries(world)) == 3


def test_mode_and_top_k_come_from_counts(path: Path) -> None:
    world = small(path)
    made = rows(world, 30, (1, DELTA), 6 * DELTA)
    for index, row in enumerate(made):
        row["v"] = 5 if index < 16 else 7 if index < 26 else index
    append(world, made, CLOCK)
    slide(world, 1, CLOCK)
    register_query(world, "most", "SELECT mode(v), approx_top_k(v, 2) FROM s{}", 1, None)
    check(world)


def test_a_sketch_is_merged_for_standing_queries_and_not_for_one_time_ones(path: Path) -> None:
    world = small(path)
    register_query(world, "sketch", "SELECT approx_quantile(f, 0.5) FROM s{}", 3, None)
    text = "SELECT approx_quantile(f, 0.5) FROM s" + clause(3)
    with Snapshot(world.wh._store, [STREAM]) as snapshot:
        given_ = from_synopses(world.wh._store, snapshot, text)
    exact = expected(world, "SELECT quantile_cont(f, 0.4), quantile_cont(f, 0.6) FROM s", 3).to_pylist()[0]
    low, high = exact.values()
    assert low <= given_.column(0)[0].as_py() <= high
    assert same(world.wh.sql(text).arrow().to_pylist(), expected(world, text.replace(clause(3), "{}"), 3).to_pylist())


def _entries(world: QueriedStream) -> list[node_store.SynopsisEntry]:
    store = world.wh._store
    with Snapshot(store, [STREAM]) as snapshot:
        stream = snapshot.view(STREAM).entry.id
    return store.catalog.read(lambda tables: node_store.read_entries(tables, stream))


def test_queries_share_a_synopsis_and_leave_none_behind(path: Path) -> None:
    world = small(path)
    register_query(world, "short", "SELECT k, avg(v) FROM s{} GROUP BY k ORDER BY k", 2, None)
    register_query(
        world,
        "long",
        "SELECT sum(x.v) / count(x.v) AS m, x.K FROM s{} x GROUP BY x.k HAVING count(*) > 0 ORDER BY x.k",
        5,
        None,
    )
    assert [(entry.slots, len(entry.columns)) for entry in _entries(world)] == [(6, 3)]
    check(world)
    drop_query(world, "long", None)
    assert len(_entries(world)) == 1
    drop_query(world, "short", None)
    assert _entries(world) == []
    left = world.wh._store.catalog.read(lambda tables: list(tables.raw_items("synopses", catalog_key())))
    assert left == []


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_covers_add_up_and_subtract(path: Path, kind: str) -> None:
    """Rows of a or b are those of a and those of b; rows of a are those of both without those of b."""
    world = small(path)
    register_query(world, "a", "SELECT k, sum(v), count(*) FROM s{} WHERE tag = 'a' GROUP BY k ORDER BY k", 3, kind)
    register_query(world, "b", "SELECT k, sum(v), count(*) FROM s{} WHERE tag = 'b' GROUP BY k ORDER BY k", 3, kind)
    register_query(
        world,
        "either",
        "SELECT k, sum(v), count(*) FROM s{} WHERE tag = 'b' OR tag = 'a' GROUP BY k ORDER BY k",
        2,
        kind,
    )
    assert {entry.where for entry in _entries(world)} == {"tag = 'a'", "tag = 'b'"}
    check(world)
    append(world, rows(world, 20, (-DELTA, DELTA), 6 * DELTA), CLOCK)
    slide(world, 1, CLOCK)
    check(world)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_difference_of_two_synopses_answers_a_third_query(path: Path, kind: str) -> None:
    world = small(path)
    register_query(
        world,
        "either",
        "SELECT k, sum(v), count(*) FROM s{} WHERE tag = 'b' OR tag = 'a' GROUP BY k ORDER BY k",
        3,
        kind,
    )
    register_query(world, "b", "SELECT k, sum(v), count(*) FROM s{} WHERE tag = 'b' GROUP BY k ORDER BY k", 3, kind)
    register_query(world, "a", "SELECT k, sum(v), count(*) FROM s{} WHERE tag = 'a' GROUP BY k ORDER BY k", 3, kind)
    assert len(_entries(world)) == 2
    check(world)


def test_a_stream_that_is_dropped_takes_its_synopses_along(path: Path) -> None:
    world = small(path)
    register_query(world, "sums", "SELECT sum(v) FROM s{}", 3, None)
    with world.wh._store.catalog.write() as tables:  # as if dropping the query had been killed before its synopses went
        tables.delete("queries", b"sums")
    world.wh.drop_stream(STREAM)
    assert world.wh._store.catalog.read(lambda tables: list(tables.raw_items("synopses"))) == []


def test_an_older_snapshot_is_not_answered_from_a_newer_synopsis(path: Path) -> None:
    world = small(path)
    register_query(world, "sums", "SELECT count(*), sum(v) FROM s{}", 3, "basic")
    text = "SELECT count(*), sum(v) FROM s" + clause(3)
    with world.wh.snapshot() as old:
        before = old.sql(text).arrow().to_pylist()
        late = rows(world, 30, (-2 * DELTA, -DELTA), 6 * DELTA)
        append(world, late, CLOCK)
        slide(world, 1, CLOCK)
        assert old.sql(text).arrow().to_pylist() == before
    check(world)
