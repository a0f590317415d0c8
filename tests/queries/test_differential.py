"""Random SQL over random windows gives what plain DuckDB gives over a table of exactly the rows of those windows."""

import random
from pathlib import Path

import pytest

import row_caches
import scratch_folders
from random_statements import StatementGenerator, StatementPair, comparable, open_plain, our_answer, plain_answer
from random_warehouses import make_warehouse
from windrow.queries.planner import planner, point_lookup, row_cache
from windrow.queries.sql.statement import parse

WORLDS, EACH = 5, 40
POINTED = ("i", "small", "u", "s", "big", "kind", "Mixed Case")
"""Key columns whose constants are compared as they are."""


def check(given: object, expected: object, question: StatementPair, label: str) -> None:
    about = f"{label}\nours:  {question.ours}\nplain: {question.plain}\nparameters: {question.parameters}"
    if isinstance(expected, str) or isinstance(given, str):
        assert isinstance(expected, str) and isinstance(given, str), f"{about}\nplain: {expected}\nours: {given}"
        return
    assert given.schema.names == expected.schema.names, about
    assert [str(field.type) for field in given.schema] == [str(field.type) for field in expected.schema], about
    rows, wanted = (comparable(table, ordered=question.ordered) for table in (given, expected))
    assert rows == wanted, about


def compare(path: Path, seed: int, count: int, **size: int) -> None:
    """Make a world and ask `count` questions of it and of plain DuckDB."""
    world = make_warehouse(path / "w", seed, **size)
    questions = StatementGenerator(world, random.Random(seed + 1000))
    with world.wh as wh, open_plain() as plain:
        for number in range(count):
            question = questions.ask()
            expected, label = plain_answer(plain, question), f"world {seed}, question {number}, {size}"
            check(our_answer(wh, question), expected, question, f"{label}, as rows come")
            row_caches.settle(wh)
            check(our_answer(wh, question), expected, question, f"{label}, from memory where it can be")
        assert wh.status().readers == 0


@pytest.mark.parametrize("seed", range(WORLDS))
def test_answers_equal_plain_duckdb(seed, monkeypatch):
    if seed % 2:  # nothing is read by key, as if there were many rows
        monkeypatch.setattr(planner, "PROBE_RANGES", 0)
    if seed % 4 > 1:  # rows are added in small parts, and tables replaced early
        monkeypatch.setattr(row_cache, "_STEP_BYTES", 4000)
        monkeypatch.setattr(row_cache, "_DEAD_SHARE", 20)
    with scratch_folders.scratch_folder() as path:
        compare(path, seed, EACH)


@pytest.mark.parametrize("seed", range(WORLDS))
def test_the_same_statement_with_other_constants(seed, monkeypatch):
    """Statements that were read once for all that are alike, and whose keys were read off their tree."""
    pointed: list[bool] = []
    real = point_lookup.find_point_predicate

    def noted(*arguments: object) -> object:
        predicate = real(*arguments)
        pointed.append(predicate is not None)
        return predicate

    monkeypatch.setattr(point_lookup, "find_point_predicate", noted)
    alike = 0
    with scratch_folders.scratch_folder() as path:
        world = make_warehouse(path / "w", seed, rows=60)
        questions = StatementGenerator(world, random.Random(seed + 2000))
        with world.wh as wh, open_plain() as plain:
            for number in range(8):
                for question in questions.ask_alike(5):
                    expected, given = plain_answer(plain, question), our_answer(wh, question)
                    check(given, expected, question, f"world {seed}, question {number}")
                    alike += parse(question.ours).template is not None
            assert wh.status().readers == 0
    assert alike
    if any(set(POINTED) & set(stream.shape.key[:1]) for stream in world.streams):
        assert any(pointed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_answers_equal_plain_duckdb(pytestconfig):
    seeds = random.Random(pytestconfig.getoption("--hypothesis-seed", None))
    for _ in range(60):
        with scratch_folders.scratch_folder() as path:
            compare(path, seeds.randrange(1 << 30), 100, rounds=12, rows=60)
