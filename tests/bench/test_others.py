"""The other benches, on workloads so small that nothing is measured, only run: every system, every statement, every point."""

import json

import pytest

from bench import growth, index, peers
from bench.growth_child import Point, measure
from bench.results import Results
from bench.runner import silent
from bench.systems.ours import Windrow
from bench.thesis_statements import STATEMENTS, LayoutFigures
from bench.workload import SlidingRows


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    monkeypatch.setattr("bench.plots._drawn", lambda name, *rest: f"(plot {name})")


def test_every_layout_of_the_thesis_is_there():
    layouts = index.layouts()
    assert {f"{kind}-{way}{n}" for kind in "RN" for way in ("ins", "exp") for n in (1, 2, 4, 9, 16, 25)} <= set(layouts)
    grids = ("2x2", "3x3", "4x4", "5x5", "2x8", "8x2")
    assert {f"{kind}-{way}{grid}" for kind in "RNA" for way in ("chr", "rr") for grid in grids} <= set(layouts)
    for layout in layouts.values():
        slots = index.slots_for(layout)
        assert slots >= 36
        assert all(slots % side == 0 for side in layout.grid)


def test_statements_are_judged_by_the_figures():
    flat = {label: LayoutFigures(update=1.0, probe=1.0, scan=1.0, written=1.0, space=1.0) for label in index.layouts()}
    quick = flat | {"R-rr4x4": LayoutFigures(update=0.7, probe=1.0, scan=1.0, written=1.0, space=1.0)}
    first = STATEMENTS[0]
    assert first.verdict(flat, flat, flat) == "**no**"
    assert first.verdict(quick, flat, flat) == "yes"
    assert "0.70" in first.measured(quick, flat, flat)
    assert all(statement.measured(flat, flat, flat) for statement in STATEMENTS)


@pytest.mark.soak
def test_a_small_run_confirms_or_denies_every_statement(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "slots_for", lambda layout: max(layout.grid))
    size = index.Size(window_rows=60, steps=1, large_rows=120, large_steps=1)
    text, wanted = index.bench(
        quick=True, results=Results(tmp_path / "results"), scratch=tmp_path, advance=silent, size=size
    )
    assert len(wanted) == 2
    assert all(statement.says in text for statement in STATEMENTS)
    assert set(json.loads((tmp_path / "results" / "index.json").read_text())["figures"]) >= {"Index: large window"}


@pytest.mark.parametrize("system", [Windrow, *peers.PEERS], ids=lambda system: system.name)
def test_a_reader_beside_updates_is_watched(system, tmp_path):
    if why := peers.missing(system):
        pytest.skip(why)
    seen = peers.watch(system, SlidingRows(120, slots=4, row_bytes=100), updates=2, folder=tmp_path)
    assert seen.alone > 0
    if system is Windrow:
        assert seen.expired == 0
        assert seen.errors == []


def test_all_systems_give_the_same_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "SIZES", {True: (SlidingRows(120, slots=4, row_bytes=100), 2)})
    monkeypatch.setattr(peers, "READ_UPDATES", {True: 1})
    text, wanted = peers.bench(quick=True, results=Results(tmp_path / "results"), scratch=tmp_path, advance=silent)
    assert {system.name for system in peers.present()} <= set(text.split())
    assert len(wanted) == 5


def test_a_point_of_growth_has_all_its_figures(tmp_path):
    actual = measure(Point(200, 50, row_bytes=100, steps=2), tmp_path)
    assert set(actual) == set(growth.COLUMNS)


def test_a_slope_is_one_where_cost_is_proportional():
    assert growth.slope([(1.0, {"x": 2.0}), (10.0, {"x": 20.0}), (100.0, {"x": 200.0})], "x") == pytest.approx(1)
    assert growth.slope([(1.0, {"x": 5.0}), (10.0, {"x": 5.0})], "x") == pytest.approx(0)
