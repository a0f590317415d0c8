"""Tallies that appends put beside their rows become nodes at the slide, and nobody can tell by the answers.

append   rows ──► file, tally of slot 7, tally of slot 8        one commit
slide    node of slot 7 names the tally; the rows are not read  one commit
late     ▲ into a node that is there: merged, and the tallies that it named go
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
    STREAM,
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
)
from windrow.append import Append
from windrow.catalog.environment import catalog_key, decode_last_int
from windrow.queries.periodic import evaluation
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import check as synopsis_check
from windrow.queries.synopses import kinds, maintenance, node_store, tally
from windrow.queries.synopses.array_engine import ArraySynopsis
from windrow.snapshot import Snapshot
from windrow.warehouse import SLIDE_HOOKS

CLOCK = BASE + HOUR
PLAIN = (
    "SELECT k, count(*), sum(v), min(v), max(v) FROM s{} GROUP BY k ORDER BY k",
    "SELECT count(*), sum(v), avg(v), count(v) FROM s{}",
    "SELECT k, median(v) FROM s{} GROUP BY k ORDER BY k",
    "SELECT v, k, count(*) FROM s{} GROUP BY v, k ORDER BY count(*) DESC, v, k LIMIT 5",
    "SELECT count(DISTINCT v), quantile_disc(v, 0.9) FROM s{}",
    "SELECT tag, sum(v) FROM s{} WHERE v > 10 GROUP BY tag ORDER BY tag",  # not tallied: DuckDB builds it
)


@pytest.fixture
def path():
    with scratch_folders.scratch_folder() as folder:
        yield folder / "w"


def world_at(path: Path, seed: int = 1, **more: bool) -> QueriedStream:
    return make_stream(windrow.open(path, clock=lambda: CLOCK), seed, lifetime=6, expiring=more.get("expiring", False))


def check(world: QueriedStream) -> None:
    """Every standing query from synopses alone, every node as rebuilt, and no tally that nobody will name."""
    store = world.wh._store
    with Snapshot(store, [STREAM]) as snapshot:
        stream = snapshot.view(STREAM).entry.id
        for text, slots in world.queries.values():
            try:
                actual = from_synopses(store, snapshot, text.format(clause(slots)))
            except CannotSplitError as error:
                if str(error) == "nothing is kept yet":
                    continue
                raise
            wanted = expected(world, text, slots)
            assert actual.schema.types == wanted.schema.types
            assert same(actual.to_pylist(), wanted.to_pylist()), f"{text}, {slots} slots"
        for entry in store.catalog.read(lambda tables: node_store.read_entries(tables, stream)):
            assert list(synopsis_check.find_differences(store, snapshot, STREAM, entry)) == []
    assert tallies(world) == named(world) | waiting(world)
    assert world.wh.check().problems == ()


def tallies(world: QueriedStream) -> set[tuple[int, int]]:
    """Synopsis and spooled file of each tally there is, however many slots it has."""

    def look(tables):
        stream = tables.get("streams", STREAM.encode()).id
        keys = [key for key, _ in tables.raw_items("synopses", catalog_key(stream, "t"))]
        return {(decode_last_int(key[:-16]), decode_last_int(key[:-8])) for key in keys}

    return world.wh._store.catalog.read(look)


def named(world: QueriedStream) -> set[tuple[int, int]]:
    """The same, of tallies that nodes are made of."""
    actual = set()

    def look(tables):
        stream = tables.get("streams", STREAM.encode()).id
        for entry in node_store.read_entries(tables, stream):
            for node, _ in node_store.list_nodes(tables, entry):
                places_ = node_store.find_node_keys(tables, entry, node)[1:]
                actual.update((entry.number, decode_last_int(key[:-8])) for key in places_)
                assert all(tables.raw("synopses", key) is not None for key in places_)

    world.wh._store.catalog.read(look)
    return actual


def waiting(world: QueriedStream) -> set[tuple[int, int]]:
    """The same, of files that no slide has taken in."""

    def look(tables):
        stream = tables.get("streams", STREAM.encode()).id
        return {decode_last_int(key) for key, _ in tables.raw_items("spool", catalog_key(stream))}

    spooled = world.wh._store.catalog.read(look)
    return {(number, spool) for number, spool in tallies(world) if spool in spooled}


def begun(world: QueriedStream, made: list[dict[str, object]]) -> Append:
    """An append that has staged its rows and not yet committed them."""
    columns = [pa.array([row[f.name] for row in made], pa.int64()).view(f.type) if pa.types.is_timestamp(f.type)
               else pa.array([row[f.name] for row in made], f.type) for f in world.schema]  # fmt: skip
    job = Append(world.wh._store, STREAM, None, None, SLIDE_HOOKS)
    job._take(pa.table(columns, schema=world.schema), write=True)
    return job


@settings(max_examples=max(6, settings().max_examples // 3))
@given(
    st.integers(0, 1 << 30), st.sampled_from([1, 2, tally.MAX_TALLIES_PER_NODE]), st.sampled_from([kinds.BASIC, None])
)
def test_answers_equal_plain_duckdb_whoever_tallied(seed: int, most: int, kind: str | None) -> None:
    """Several appends a slot and slots an append, late and early rows, jumps, queries and slides between the two."""
    chance = random.Random(seed)
    with scratch_folders.scratch_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "MAX_TALLIES_PER_NODE", most)
        patch.setattr(tally, "_MAX_SLOTS", chance.choice((2, 8, 8)))
        world = world_at(folder / "w", seed)
        pending: list[tuple[Append, list[dict[str, object]]]] = []
        for turn in range(7):
            if turn == 0 or chance.random() < 0.3:
                register_query(world, f"q{turn}", chance.choice(PLAIN), chance.randint(1, 6), kind)
            for _ in range(chance.randint(0, 4)):
                reach = chance.choice(((1, DELTA), (-3 * DELTA if turn else 1, 2 * DELTA)))
                made = rows(world, chance.randint(1, 25), reach, 6 * DELTA)
                if chance.random() < 0.2:
                    pending.append((begun(world, made), made))
                else:
                    append(world, made, CLOCK)
            if len(world.queries) > 1 and chance.random() < 0.2:
                drop_query(world, chance.choice(sorted(world.queries)), kind)
            while pending and chance.random() < 0.6:
                job, made = pending.pop()
                job.commit()
                world.truth.append(made, CLOCK)
            slide(world, chance.choice((1, 1, 1, 2, 9)), CLOCK)
            check(world)
        for job, _ in pending:
            job.discard()
        world.wh.close()


def test_a_slide_names_what_appends_have_tallied_and_reads_no_row(path, monkeypatch):
    world = world_at(path)
    register_query(world, "q", PLAIN[0], 4, kinds.BASIC)
    slide(world, 1, CLOCK)
    monkeypatch.setattr(maintenance, "read_ranges", None)
    for count in (1, 3):
        for _ in range(count):
            append(world, [row | {"ts": world.now + DELTA // 2} for row in rows(world, 20, (1, DELTA), 0)], CLOCK)
        assert len(waiting(world)) == count
        slide(world, 1, CLOCK)
    monkeypatch.undo()
    assert len(named(world)) == 4
    check(world)
    slide(world, 6, CLOCK)
    assert tallies(world) == set()
    check(world)
    world.wh.close()


@pytest.mark.parametrize("most", [1, tally.MAX_TALLIES_PER_NODE])
def test_late_rows_go_into_a_node_of_tallies_whose_tallies_go(path, monkeypatch, most):
    """Two appends for a slot, or more than a node may name; then a late one, and one that is ahead and comes twice."""
    monkeypatch.setattr(tally, "MAX_TALLIES_PER_NODE", most)
    world = world_at(path)
    register_query(world, "q", PLAIN[0], 4, kinds.BASIC)
    slide(world, 1, CLOCK)

    def come(slot: int) -> None:
        made = [row | {"ts": world.now + slot * DELTA - DELTA // 2} for row in rows(world, 20, (1, DELTA), 0)]
        append(world, made, CLOCK)

    for index in (1, 1, 3):
        come(index)
    slide(world, 1, CLOCK)
    assert len(named(world)) == (3 if most > 1 else 1)
    check(world)
    for index in (0, 0, 2):
        come(index)
    assert len(waiting(world)) == 3
    slide(world, 1, CLOCK)
    assert tallies(world) == set()
    check(world)
    slide(world, 1, CLOCK)
    check(world)
    world.wh.close()


def test_rows_that_were_spooled_before_a_query_came_are_tallied_by_the_slide(path):
    world = world_at(path)
    slide(world, 1, CLOCK)
    append(world, rows(world, 20, (1, DELTA), 0), CLOCK)
    register_query(world, "q", PLAIN[0], 4, kinds.BASIC)
    append(world, rows(world, 20, (1, DELTA), 0), CLOCK)
    assert len(waiting(world)) == 1
    slide(world, 1, CLOCK)
    assert tallies(world) == set()
    check(world)
    world.wh.close()


def test_a_query_that_goes_takes_its_tallies_with_it_also_those_of_appends_under_way(path):
    world = world_at(path)
    slide(world, 1, CLOCK)
    register_query(world, "q", PLAIN[0], 4, kinds.BASIC)
    register_query(world, "r", PLAIN[1], 4, kinds.BASIC)
    made = [rows(world, 20, (1, DELTA), 0) for _ in range(2)]
    append(world, made[0], CLOCK)
    job = begun(world, made[1])
    drop_query(world, "q", kinds.BASIC)
    job.commit()
    world.truth.append(made[1], CLOCK)
    assert len(waiting(world)) == 2
    slide(world, 1, CLOCK)
    check(world)
    world.wh.close()


def test_a_batch_that_comes_twice_is_tallied_once(path):
    world = world_at(path)
    slide(world, 1, CLOCK)
    register_query(world, "q", PLAIN[1], 4, kinds.BASIC)
    made = [row | {"ts": world.now + 1} for row in rows(world, 20, (1, DELTA), 0)]
    columns = [pa.array([row[f.name] for row in made], pa.int64()).view(f.type) if pa.types.is_timestamp(f.type)
               else pa.array([row[f.name] for row in made], f.type) for f in world.schema]  # fmt: skip
    for duplicate in (False, True):
        report = world.wh.append(STREAM, pa.table(columns, schema=world.schema), batch_id="b")
        assert report.duplicate == duplicate
    world.truth.append(made, CLOCK)
    assert len(waiting(world)) == 1
    slide(world, 1, CLOCK)
    check(world)
    world.wh.close()


def test_rows_that_died_between_append_and_slide_are_in_no_node(path):
    """The slide jumps over the whole life of some of them."""
    world = world_at(path)
    slide(world, 1, CLOCK)
    register_query(world, "q", PLAIN[0], 6, kinds.BASIC)
    append(world, rows(world, 60, (-3 * DELTA, 3 * DELTA), 0), CLOCK)
    slide(world, 5, CLOCK)
    check(world)
    world.wh.close()


def test_lifetimes_of_rows_that_differ_are_left_to_the_slide(path):
    world = world_at(path, expiring=True)
    slide(world, 1, CLOCK)
    register_query(world, "q", PLAIN[0], 4, kinds.BASIC)
    append(world, rows(world, 20, (1, DELTA), 6 * DELTA), CLOCK)
    assert tallies(world) == set()
    slide(world, 1, CLOCK)
    check(world)
    world.wh.close()


def test_a_node_of_several_tallies_is_not_taken_for_smaller_than_it_is(path, monkeypatch):
    """How far a group's sum can be from 0 counts it once for each tally, or sums could overflow unseen."""
    world = world_at(path)
    slide(world, 1, CLOCK)
    register_query(world, "q", PLAIN[0], 4, kinds.BASIC)
    for _ in range(3):
        append(world, [row | {"ts": world.now + 1, "k": 1, "v": 50} for row in rows(world, 2, (1, DELTA), 0)], CLOCK)
    slide(world, 1, CLOCK)
    seen, make_arrays = [], ArraySynopsis._make_arrays

    def remember(*given):
        arrays, ordered_by = make_arrays(*given)
        seen.append(arrays)
        return arrays, ordered_by

    monkeypatch.setattr(ArraySynopsis, "_make_arrays", remember)
    store = world.wh._store
    entries = store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
    with Snapshot(store, [STREAM]) as snapshot:
        (answered,) = evaluation.answer_due(store, snapshot, entries)
    assert answered.rows.column("sum(v)").to_pylist() == [300]
    assert [slot.largest[:2] for slot in seen] == [[6, 300]]
    world.wh.close()
