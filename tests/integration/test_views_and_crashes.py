"""kill -9 in the slide that moves views: streams and views are all as before it or all as after it."""

import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

import child_processes
import view_histories
from faulty_disks import CountingDisk, join_child, start_child

OPERATIONS = view_histories.operations(seed=20261116, count=60)
STEPS = (
    "slide.planned",
    "view.staged",
    "view.published",
    "view.merge.staged",
    "view.merge.published",
    "view.written",
    "slide.committing",
    "slide.committed",
)


def truths() -> list[dict]:
    """What must be seen after so many operations."""
    truth = view_histories.ExpectedViews()
    actual = [truth.state()]
    for operation in OPERATIONS:
        truth.do(operation)
        actual.append(truth.state())
    return actual


TRUTHS = truths()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh") / "wh"
    view_histories.create(path)
    return path


@pytest.fixture(scope="module")
def reached(fresh: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often each step is reached; every state on the way is the truth."""
    path = shutil.copytree(fresh, tmp_path_factory.mktemp("counted") / "wh")
    files = CountingDisk()
    with view_histories.open_warehouse(path, files=files) as wh:
        for number, operation in enumerate(OPERATIONS, 1):
            view_histories.perform(wh, operation)
            assert view_histories.state(wh) == TRUTHS[number]
        assert wh.check().ok
    return dict(files.steps)


def test_the_scenario_is_worth_being_killed_in(reached: dict[str, int]) -> None:
    assert all(reached.get(step, 0) >= 3 for step in STEPS), reached
    assert sum(len(rows) for state in TRUTHS for _, rows in state.values()) > 200
    died = [row for state in TRUTHS for row in state["brief"][1] if row[3] is not None]
    assert len(died) > 3


@pytest.mark.parametrize("step", STEPS)
def test_a_slide_killed_at_a_step_moves_all_views_or_none(
    step: str, fresh: Path, reached: dict[str, int], tmp_path: Path
) -> None:
    """Early for one half of the steps, at the last pass for the other; the sweep over all passes is a soak."""
    kill_at_passes(step, [reached[step] // 3 if STEPS.index(step) % 2 else reached[step]], fresh, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("step", STEPS)
def test_a_slide_killed_at_any_pass_of_a_step_moves_all_views_or_none(
    step: str, fresh: Path, reached: dict[str, int], tmp_path: Path
) -> None:
    kill_at_passes(step, range(1, reached[step] + 1), fresh, tmp_path)


def kill_at_passes(step: str, passes: Iterable[int], fresh: Path, tmp_path: Path) -> None:
    for nth in passes:
        path, progress = shutil.copytree(fresh, tmp_path / f"wh{nth}"), tmp_path / f"progress{nth}"
        child = start_child(child_processes.run_views_until_step, str(path), OPERATIONS, str(progress), step, nth)
        assert join_child(child) == -signal.SIGKILL
        done = len(progress.read_bytes())
        with view_histories.open_warehouse(path) as wh:
            actual = view_histories.state(wh)
            assert actual in TRUTHS[done : done + 2], f"killed in {OPERATIONS[done]}"
            for number, operation in enumerate(OPERATIONS[done:], done + 1):
                view_histories.perform(wh, operation)
                if number > done + 1 and number % 10 == 0:
                    assert view_histories.state(wh) == TRUTHS[number]
            wh.gc()
            assert wh.check().ok
        shutil.rmtree(path)
