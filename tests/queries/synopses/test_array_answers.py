"""Answers straight from arrays are those of plain DuckDB: every order, null, tie, limit and number that may be asked.

What arrays cannot say exactly (sums beyond 64 bits, HAVING, expressions) goes to DuckDB, and is the same as well.
"""

import random

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
    drop_query,
    expected,
    make_stream,
    register_query,
    rows,
    same,
    slide,
)
from windrow.queries.periodic import evaluation
from windrow.queries.synopses import array_answers
from windrow.snapshot import Snapshot

CLOCK = BASE + HOUR
GROUPS = ("k", "tag", "tag, k", "b, k", "v", "k, tag, b")
PLAIN = ("count(*)", "sum(v)", "avg(v)", "count(v)", "min(v)", "max(v)", "sum(n)", "min(n)", "max(n)", "avg(n)",
         "sum(v) FILTER (WHERE k = 1)", "sum(f)", "avg(f)")  # fmt: skip
COUNTED = ("median(v)", "quantile_cont(v, 0.95)", "quantile_disc(v, 0.5)", "quantile_disc(v, 0.99)", "count(DISTINCT v)",
           "quantile_cont(v, 0)", "quantile_disc(v, 1)", "median(v) FILTER (WHERE k > 1)")  # fmt: skip
HUGE = (1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63))


def question(chance: random.Random) -> str:
    """A statement of the common form, in a total order, so that ties have one answer."""
    groups = chance.choice((*GROUPS, ""))
    aggregates = chance.sample(chance.choice((PLAIN, PLAIN, COUNTED)), chance.randint(1, 3))
    named = [f"{text} AS a{index}" for index, text in enumerate(aggregates)]
    if not groups:
        return f"SELECT {', '.join(named)} FROM {STREAM}{{}}"
    keys = groups.split(", ")
    selected = [*keys, *named]
    chance.shuffle(selected)
    orders = chance.sample([*range(1, len(selected) + 1), "a0", aggregates[-1], *keys], chance.randint(0, 3))
    report = [f"{by}{chance.choice(('', ' ASC', ' DESC'))}{chance.choice(('', ' NULLS FIRST', ' NULLS LAST'))}"
            for by in [*orders, *keys]]  # fmt: skip
    limit = chance.choice(("", " LIMIT 2", " LIMIT 3 OFFSET 1", " LIMIT 0", " LIMIT 100", " OFFSET 2"))
    return f"SELECT {', '.join(selected)} FROM {STREAM}{{}} GROUP BY {groups} ORDER BY {', '.join(report)}{limit}"


def more(world: QueriedStream, chance: random.Random, count: int, huge: bool) -> list[dict]:
    """Rows with negative numbers, many ties, and where asked numbers at the edges of 64 bits."""
    made = rows(world, count, (-3 * DELTA, DELTA), 6 * DELTA)
    for row in made:
        row["v"] = chance.choice((None, -5, 0, 3, 3, 3, (1 << 31) - 1, -(1 << 31)))
        row["n"] = chance.choice((None, 1, -1, 7, *(HUGE if huge else ())))
    return made


def check(world: QueriedStream) -> None:
    store = world.wh._store
    entries = store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
    with Snapshot(store, [STREAM]) as snapshot:
        for answered in evaluation.answer_due(store, snapshot, entries):
            assert answered.rows is not None, answered.error
            text, slots = world.queries[answered.query]
            wanted = expected(world, text, slots)
            assert [str(f.type) for f in answered.rows.schema] == [str(f.type) for f in wanted.schema], text
            assert answered.rows.column_names == wanted.column_names, text
            assert same(answered.rows.to_pylist(), wanted.to_pylist()), f"{text}, {slots} slots, {answered.how}"


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("lifetimes", ["fixed", "per row"])
@settings(max_examples=max(3, settings().max_examples // 6))
@given(st.integers(0, 1 << 30))
def test_every_common_form_equals_plain_duckdb(lifetimes: str, huge: bool, seed: int) -> None:
    """Late rows, rows ahead of the clock, jumps, added and dropped queries, several windows in one pass."""
    chance = random.Random(seed)
    with scratch_folders.scratch_folder() as path:
        world = make_stream(
            windrow.open(path / "w", clock=lambda: CLOCK), seed, lifetime=6, expiring=lifetimes == "per row"
        )
        for turn in range(4):
            append(world, more(world, chance, chance.randint(1, 30), huge), CLOCK)
            for number in range(3):
                register_query(world, f"q{turn}{number}", question(chance), chance.randint(1, 6), "basic")
            if turn and chance.random() < 0.5:
                drop_query(world, chance.choice(sorted(world.queries)), "basic")
            slide(world, chance.choice((1, 1, 2)), CLOCK)
            check(world)
        world.wh.close()


def answered_directly(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> list[bool]:
    """Which of some statements arrays answered; all are compared with plain DuckDB."""
    report: dict[str, bool] = {}
    real = array_answers.answer_from_totals

    def answer(window, planned, direct) -> pa.Table | None:
        actual = real(window, planned, direct)
        report[planned.statement.statement.text] = actual is not None
        return actual

    monkeypatch.setattr(array_answers, "answer_from_totals", answer)
    chance = random.Random(3)
    with scratch_folders.scratch_folder() as path:
        world = make_stream(windrow.open(path / "w", clock=lambda: CLOCK), 3, lifetime=6, expiring=False)
        for _ in range(3):
            append(world, more(world, chance, 60, huge=False), CLOCK)
            slide(world, 1, CLOCK)
        for index, text in enumerate(texts):
            register_query(world, f"q{index}", text, 3, "basic")
        check(world)
        entries = world.wh._store.catalog.read(lambda tables: dict(tables.items("queries")))
        answered = [report.get(entries[f"q{index}".encode()].sql, False) for index in range(len(texts))]
        world.wh.close()
    return answered


def test_the_common_forms_need_no_statement_in_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "SELECT k, sum(v) AS bytes FROM s{} GROUP BY k ORDER BY bytes DESC, k LIMIT 2",
        "SELECT tag, k, count(*), avg(v) FROM s{} GROUP BY tag, k ORDER BY 3 DESC, tag, k LIMIT 5 OFFSET 1",
        "SELECT k, median(v) AS mid, quantile_cont(v, 0.95) AS high FROM s{} GROUP BY k ORDER BY k",
        "SELECT quantile_disc(v, 0.5), quantile_disc(v, 0.99) FROM s{}",
        "SELECT k, min(v), max(v) FROM s{} GROUP BY ALL ORDER BY min(v), k",
        "SELECT count(*), sum(v) FROM s{} WHERE k = 1",
    ]
    assert answered_directly(monkeypatch, texts) == [True] * len(texts)


def test_whatever_else_is_left_to_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "SELECT k, sum(v) FROM s{} GROUP BY k HAVING count(*) > 2 ORDER BY k",
        "SELECT k, sum(v) / count(*) FROM s{} GROUP BY k ORDER BY k",
        "SELECT DISTINCT count(*) FROM s{} GROUP BY k ORDER BY 1",
        "SELECT k, sum(v) FROM s{} GROUP BY k ORDER BY -sum(v), k LIMIT 2",
        "SELECT k, sum(v) FROM s{} GROUP BY k ORDER BY k LIMIT 20 PERCENT",
        "SELECT k, count(*), median(v) FROM s{} GROUP BY k ORDER BY k",
    ]
    assert answered_directly(monkeypatch, texts) == [False] * len(texts)
