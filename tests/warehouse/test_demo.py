"""The demo shows true figures, the same ones each time, and leaves nothing behind unless it is asked to."""

import json
import re
import tempfile

import pytest
from click.testing import CliRunner

import windrow
from windrow import cli
from windrow.demo import SCENES

SMALL = ["--updates", "12", "--rows", "600", "--skip", "spark"]


def play(*arguments, code=0):
    result = CliRunner(env={"COLUMNS": "160"}).invoke(cli.windrow, ["demo", *SMALL, *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def figures(tree: object, place: str = "") -> dict[str, object]:
    """Every single figure by its place, without what the clock on the wall decides."""
    if not isinstance(tree, (dict, list)):
        return {place: tree}
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    kept = (figures(value, f"{place}/{key}") for key, value in inner if key not in ("seconds", "bytes", "path"))
    return {position: value for each in kept for position, value in each.items()}


def differences(one: object, other: object) -> dict[str, tuple[object, object]]:
    """What is not the same, by its place: a report of the whole would hide it."""
    left, right = figures(one), figures(other)
    places = left.keys() | right.keys()
    return {
        position: (left.get(position), right.get(position))
        for position in sorted(places)
        if left.get(position) != right.get(position)
    }


@pytest.fixture(scope="module")
def report():
    return json.loads(play("--json").stdout)


def test_every_scene_gives_its_figures(report):
    assert list(report["scenes"]) == [scene.name for scene in SCENES if scene.name != "spark"]


def test_answers_equal_plain_arithmetic(report):
    asked = report["scenes"]["asking"]
    assert asked["equal"] is True
    assert asked["probe_rows"] > 0
    assert [row[2] for row in asked["top"]] == sorted((row[2] for row in asked["top"]), reverse=True)


def test_rows_come_and_go(report):
    slides = report["scenes"]["lifetimes"]["slides"]
    assert len(slides) == 12
    assert all(slide["moved"] and slide["touched"] <= 7 for slide in slides)
    assert sum(slide["expired"] for slide in slides) > 0
    assert sum(slide["late"] for slide in slides) > 0


def test_the_silent_source_is_named_and_the_stream_catches_up_in_one_slide(report):
    silence = report["scenes"]["silence"]
    assert silence["waited_for"] == ["south"]
    assert silence["slide"]["slide"] - silence["slide"]["previous"] == 5


def test_broken_rows_are_rejected_and_doubled_batches_are_not(report):
    assert "the row had already expired on arrival" in report["scenes"]["rejected"]["rejected"]
    assert report["scenes"]["twice"]["duplicate"] == [False, True]


def test_a_layout_changes_and_answers_do_not(report):
    layout = report["scenes"]["layout"]
    assert layout == {"layout": "round-robin 2x2 adaptive", "key": ["host"], "done": True, "equal": True}


def test_everything_checks_out(report):
    assert report["scenes"]["upkeep"]["check"]["problems"] == []


def test_it_is_the_same_each_time(report, path):
    again = json.loads(play("--json", "--folder", path).stdout)
    assert differences(again, report) == {}
    assert differences(again | {"scenes": {}}, report) != {}
    with windrow.open(path) as wh:
        assert wh.streams() == ["answered", "leases", "packets"], "a folder that is given is kept"
    assert "holds a warehouse already; the demo wants a new or empty folder" in play("--folder", path, code=1).stderr


def test_another_seed_gives_other_figures(report):
    other = json.loads(
        play("--json", "--seed", "2", *(f"--skip={s.name}" for s in SCENES[2:] if s.name != "spark")).stdout
    )
    assert differences(other["scenes"][SCENES[1].name], report["scenes"][SCENES[1].name]) != {}


def test_it_tells_a_story_leaves_nothing_and_touches_no_warehouse_of_the_users(tmp_path, path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("WINDROW_WAREHOUSE", str(path))
    windrow.open(path).close()
    said = play().stdout
    assert re.findall(r"^(\d+)\. (.*)$", said, re.MULTILINE) == [
        (str(n), s.title) for n, s in enumerate((s for s in SCENES if s.name != "spark"), 1)
    ]
    assert "packets waits for source 'south'" in said
    assert "gives the same." in said
    assert "0 problems in" in said
    assert list((tmp_path / "temporary").iterdir()) == []
    with windrow.open(path) as wh:
        assert wh.streams() == []


def test_sql_answers_equal_plain_arithmetic_and_read_little(report):
    asked = report["scenes"]["sql"]
    assert asked["equal"] is True
    assert len(asked["joined"]) == 5
    assert asked["path"] == "probe"
    assert asked["rows"][0] < asked["rows"][1]


def test_periodic_queries_deliver_every_run_once_and_agree_with_plain_arithmetic(report):
    periodic = report["scenes"]["periodic"]
    assert periodic["equal"] is True
    assert periodic["runs"] == {"busiest": 4, "each_minute": 4, "newcomers": 1}
    assert periodic["files"] == 4


def test_the_kept_join_has_the_rows_of_its_query(report):
    view = report["scenes"]["views"]
    assert view["equal"] is True
    assert view["rows"] > 10
    assert view["pattern"] == "weak"
