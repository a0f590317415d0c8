"""Plots are drawn where matplotlib is, are the same for the same figures, and are missed in a word where it is not."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import cli, core, plots, report

SERIES = {"ours": [(1.0, 2.0), (10.0, 2.1)], "theirs <&>": [(1.0, 3.0), (10.0, 30.0)]}


def test_a_plot_is_a_wellformed_picture_and_the_same_again(tmp_path):
    pytest.importorskip("matplotlib")
    shown = plots.lines("growth", "Growth", SERIES, x="MB", y="ms", log_x=True, log_y=True, folder=tmp_path)
    first = (tmp_path / "growth.svg").read_bytes()
    plots.lines("growth", "Growth", SERIES, x="MB", y="ms", log_x=True, log_y=True, folder=tmp_path)
    assert shown == "![Growth](plots/growth.svg)"
    assert (tmp_path / "growth.svg").read_bytes() == first
    assert "theirs <&>" in "".join(ET.fromstring(first).itertext())


def test_bars_name_every_group(tmp_path):
    pytest.importorskip("matplotlib")
    plots.bars("b", "Bars", {"a": [1, 2], "b": [3, 4]}, ["first", "second"], y="ms", folder=tmp_path)
    text = "".join(ET.fromstring((tmp_path / "b.svg").read_bytes()).itertext())
    assert "first" in text
    assert "second" in text


def test_without_matplotlib_a_sentence_stands_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib is not installed" in plots.lines("x", "X", SERIES, x="", y="", folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_a_bench_that_writes_its_page_changes_the_pages_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = plots.FOLDER / "no such plot.svg"
    with plots.into(tmp_path):
        plots.lines("no such plot", "Growth", SERIES, x="MB", y="ms")
    assert (tmp_path / drawn.name).exists()
    assert not drawn.exists()


def test_the_command_has_plots_drawn_beside_the_figures_unless_it_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(core, "bench", lambda **_: (asked.append(plots._place.get()), ("", []))[1])
    monkeypatch.setattr(report, "insert", lambda *_: None)
    for more in ([], ["--write"]):
        done = CliRunner().invoke(cli.bench, ["core", "--quick", "--results", str(tmp_path), *more])
        assert done.exit_code == 0, done.output
    assert asked == [tmp_path, plots.FOLDER]
