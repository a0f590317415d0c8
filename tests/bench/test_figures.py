"""Samples become figures, files, tables and verdicts."""

import pytest

from bench import report
from bench.cli import BENCHES
from bench.measures import UPDATE
from bench.results import Results
from bench.runner import Case, Outcome, Sample, contestants
from bench.statistics import Aim, summarise, summarise_one
from bench.systems.floors import RawBytes, SortedParquet
from bench.workload import SlidingRows


def samples(*walls: float, name: str = "floor-raw", repetition: int = 0) -> list[Sample]:
    return [Sample("case", name, "update", repetition, step, wall, wall / 2) for step, wall in enumerate(walls)]


def case(**changes) -> Case:
    return Case("A case", contestants([RawBytes, SortedParquet], SlidingRows(360)), measures=(UPDATE,), **changes)


def test_figures_are_in_milliseconds():
    actual = summarise_one(samples(0.010, 0.020, 0.030, 0.100))
    assert (actual.mean, actual.median, actual.least, actual.cpu) == pytest.approx((40, 25, 10, 20))
    assert actual.p95 > 80
    assert actual.spread == pytest.approx((47.5 - 17.5) / 2 / 25)


def test_repetitions_damp_noise_but_not_what_a_step_always_costs():
    """Step 1 is slow in each repetition (a merge); step 0 was disturbed once."""
    actual = summarise_one(
        [
            *samples(0.010, 0.090, repetition=0),
            *samples(0.010, 0.090, repetition=1),
            *samples(0.500, 0.090, repetition=2),
        ]
    )
    assert actual.mean == pytest.approx(50)


def test_summaries_keep_contestants_apart():
    actual = summarise([*samples(0.001), *samples(0.003, name="floor-sorted")])
    assert actual["floor-raw", "update"].mean == pytest.approx(1)
    assert actual["floor-sorted", "update"].mean == pytest.approx(3)


def test_results_are_kept_and_resumed_only_for_the_same_case(tmp_path):
    outcome = Outcome(case(), samples(0.001, 0.002), {"floor-raw": {"space": 5}})
    Results(tmp_path).save(outcome, {"cores": 2})
    kept = Results(tmp_path, resume=True).load(case())
    assert kept is not None
    assert (kept.samples, kept.notes) == (outcome.samples, outcome.notes)
    assert Results(tmp_path).load(case()) is None
    assert Results(tmp_path, resume=True).load(case(steps=3)) is None


def test_tables_stand_between_the_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench x: begin -->\nold\n<!-- bench x: end -->\nafter\n")
    block = f"2026: a machine\n\n{report.aims_table([Aim('fast', 0.5, 1.0)])}"
    report.insert("x", block, page)
    assert page.read_text() == f"before\n<!-- bench x: begin -->\n{block}\n<!-- bench x: end -->\nafter\n"
    with pytest.raises(ValueError, match="markers"):
        report.insert("y", "new", page)


def test_of_a_report_the_page_has_what_was_wanted_and_few_tables():
    aims = [Aim(f"{name}: bytes", value, 2.0) for name, value in (("a", 1.0), ("b", 3.0), ("c", 2.0))]
    aims += [Aim("a: time", 0.0, 0.0), Aim("SQL", 1.0, 1.0)]
    shown, hidden = report.table(["", "x"], [["shown", "1"]]), report.table(["", "x"], [["hidden", "1"]])
    text = "\n\n".join(
        ["2026: here", "### What was wanted", report.aims_table(aims), "### Questions: all", shown, hidden]
    )
    short = report.shorten("sql", text)
    assert "| bytes: worst of 3, b | 3.00 | ≤ 2 | **no** |" in short
    assert "| a: time | 0.00 | ≤ 0 | yes |" in short
    assert "| SQL | 1.00 | ≤ 1 | yes |" in short
    assert ("shown" in short, "hidden" in short) == (True, False)
    assert "shown" not in report.shorten("core", text)


def test_the_page_has_the_markers_of_every_bench():
    page = report.PAGE.read_text()
    assert [name for name in BENCHES if f"<!-- bench {name}: begin -->" not in page] == []


def test_a_table_shows_floors_without_answers():
    outcome = Outcome(
        case(),
        [*samples(0.001, 0.002), *samples(0.003, 0.003, name="floor-sorted")],
        {"floor-raw": {"space": 1}, "floor-sorted": {"space": 1}},
    )
    lines = report.times_table(outcome).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| floor-raw | 1.5 | 1.5 ±")


def test_aims_that_are_missed_stand_out():
    text = report.aims_table([Aim("fast", 0.5, 1.0), Aim("small", 2.0, 1.0)])
    assert "| fast | 0.50 | ≤ 1 | yes |" in text
    assert "| small | 2.00 | ≤ 1 | **no** |" in text
