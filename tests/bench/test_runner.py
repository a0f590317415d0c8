"""The harness: everybody gets the same, in turn, and a wrong answer ends the run."""

import pytest

from bench.measures import PROBE, SCAN, UPDATE
from bench.runner import Case, Contestant, WrongAnswerError, contestants, run
from bench.systems.duckdb_table import DuckTable
from bench.systems.floors import RawBytes, SortedParquet
from bench.systems.ours import Windrow, WindrowNoRebuild, WindrowRebuild
from bench.systems.sqlite_table import SqliteTable
from bench.workload import SlidingRows

TINY = SlidingRows(180, slots=3, row_bytes=100)
ALL = (Windrow, WindrowNoRebuild, WindrowRebuild, DuckTable, SqliteTable, SortedParquet, RawBytes)


def test_all_systems_agree_at_every_step(tmp_path):
    case = Case("tiny", contestants(ALL, TINY), steps=3)
    outcome = run(case, tmp_path)
    counted = {(c.name, m): 0 for c in case.contestants for m in ("update", "probe", "scan")}
    for sample in outcome.samples:
        if sample.measure in ("update", "probe", "scan"):
            counted[sample.contestant, sample.measure] += 1
        assert sample.wall > 0
    floors = {"floor-sorted", "floor-raw"}
    assert counted == {(name, m): 0 if name in floors and m != "update" else 3 for name, m in counted}
    assert all(notes["space"] > 0 for notes in outcome.notes.values())
    assert list(tmp_path.iterdir()) == []


class Forgetful(DuckTable):
    """Loses a row for each answer."""

    name = "forgetful"

    def probe(self, key):
        return super().probe(key).slice(1)


class Undying(DuckTable):
    """Never lets a row go."""

    name = "undying"

    def update(self, batch, prepared):
        self.connection.register("arrived", prepared)
        self.connection.execute("INSERT INTO rows SELECT * FROM arrived")
        self.connection.unregister("arrived")


@pytest.mark.parametrize("wrong", [Forgetful, Undying])
def test_a_wrong_answer_ends_the_run(wrong, tmp_path):
    case = Case("tiny", contestants([DuckTable, wrong], TINY), steps=2)
    with pytest.raises(WrongAnswerError, match=wrong.name):
        run(case, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_contestants_take_turns_in_an_order_that_rotates(tmp_path):
    case = Case("tiny", contestants([RawBytes, SortedParquet], TINY), steps=4, repetitions=2, measures=(UPDATE,))
    outcome = run(case, tmp_path)
    first = [s.contestant for s in outcome.samples[::2]]
    assert first == ["floor-raw", "floor-sorted"] * 2 + ["floor-sorted", "floor-raw"] * 2


def test_different_workloads_are_not_compared(tmp_path):
    larger = SlidingRows(720, slots=6, row_bytes=100)
    pair = (Contestant("small", DuckTable, TINY), Contestant("large", DuckTable, larger))
    outcome = run(Case("two", pair, steps=2, measures=(UPDATE, PROBE, SCAN)), tmp_path)
    assert len(outcome.samples) == 2 * 2 * 3


def test_progress_is_told_once_per_update(tmp_path):
    case = Case("tiny", contestants([RawBytes, SortedParquet], TINY), steps=3, repetitions=2)
    messages = []
    run(case, tmp_path, messages.append)
    assert len(messages) == case.turns
