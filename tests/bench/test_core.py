"""`windrow bench core`, on a workload so small that nothing is measured, only run."""

import json

import pytest
from click.testing import CliRunner

from bench import cli, core, memory, report
from bench.cli import bench
from bench.memory_child import Settings, anonymous, measure, streamed
from bench.workload import SlidingRows


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(core, "SMALL", SlidingRows(180, slots=3, row_bytes=100))
    monkeypatch.setattr(core, "STEPS", 2)
    monkeypatch.setattr(core, "LONG", SlidingRows(360, slots=6, row_bytes=100))
    monkeypatch.setattr(
        memory, "settings", lambda *, quick: {"window 1": Settings(100, 4), "batch 1": Settings(100, 4)}
    )
    page = tmp_path / "benchmarks.md"
    page.write_text("<!-- bench core: begin -->\n<!-- bench core: end -->\n")
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report.insert, "__defaults__", (page,))
    monkeypatch.setattr(core, "UNIQUE", {True: SlidingRows(180, slots=3, keys=1 << 40, row_bytes=100)})
    return page


def test_a_run_writes_samples_figures_and_the_page(small, tmp_path):
    results = tmp_path / "results"
    command = ["core", "--quick", "--write", "--results", str(results), "--scratch", str(tmp_path)]
    done = CliRunner().invoke(bench, command)
    assert done.exit_code in (0, 1), done.output
    assert "Window of 150 MB" in small.read_text()
    summary = json.loads((results / "summary.json").read_text())
    assert summary["machine"]["packages"]["duckdb"]
    assert {"statement", "value", "limit", "reached"} <= set(summary["wanted"][0])
    assert (results / "window-of-150-mb.parquet").exists()
    missed = sum(not wanted["reached"] for wanted in summary["wanted"])
    assert done.exit_code == (1 if missed else 0)
    again = CliRunner().invoke(bench, [*command, "--resume"])
    assert again.exit_code == done.exit_code
    assert json.loads((results / "summary.json").read_text())["figures"] == summary["figures"]


def test_all_runs_every_bench_and_counts_what_was_missed(monkeypatch, tmp_path):
    ran = []

    def run(name, seeds, *, results, **_):
        ran.append((name, seeds, results))
        return 2 if name in ("core", "sql") else 0

    monkeypatch.setattr(cli, "_run", run)
    done = CliRunner().invoke(bench, ["all", "--seeds", "17,4", "--results", str(tmp_path)])
    assert ran == [(name, [17, 4], tmp_path / name) for name in cli.BENCHES]
    assert done.exit_code == 1
    assert "4 aims were not reached" in done.output


def test_quick_and_full_exclude_each_other():
    done = CliRunner().invoke(bench, ["core", "--quick", "--full"])
    assert done.exit_code == 2


def test_the_full_run_has_all_sizes():
    assert set(core.cases(quick=False)) == {"small", "large", "growth", "unique"}
    batches = {c.workload.batch_rows for c in core.cases(quick=True)["growth"].contestants}
    assert batches == {8333}, "the batch is constant"


class Test_memory:
    def test_a_streamed_batch_has_its_rows_in_its_slot(self):
        workload = SlidingRows(36_000)
        batch = streamed(workload, 7, 5000)
        rows = batch.rows.read_all()
        assert rows.num_rows == 5000
        assert batch.now == workload.batch(7).now
        assert len(set(rows.column("payload").to_pylist())) == 5000

    def test_the_peak_is_seen(self, tmp_path):
        assert anonymous() > 1 << 20
        actual = measure(Settings(200, 4, batch_rows=4000, updates=1), tmp_path)
        assert actual["batch"] == 4_000_000
        assert actual["append"] >= 0
