"""kill -9 while a stream changes its layout, key, lifetime or columns: the state before or after, and it goes on.

relayout   slide + step   alter    step … step
───●───────────●────────────●────────●──×        every step is one transaction; the next open goes on from there
"""

import random
import shutil
import signal
from pathlib import Path

import pytest

import child_processes
import recorded_history
from faulty_disks import CountingDisk, join_child, start_child
from recorded_history import Operation
from sample_streams import DELTA, SHAPES
from windrow import Index
from windrow.files import CRASH_POINTS

SHAPE = "fixed"
INDEX = Index("round-robin", 2, 2, maintenance="rebuild")
CHANGES = [step for step in CRASH_POINTS if step.startswith(("relayout.", "alter.")) or step == "slide.committed"]


def operations() -> list[Operation]:
    """Rounds of appends and slides, with a change between any two of them."""
    rounds = recorded_history.operations(SHAPES[SHAPE], seed=7, rounds=8)
    changes: list[Operation] = [
        ("relayout", ("chronological", 3, 2), ("text",), "steps", 1),
        ("lifetime", 7 * DELTA + 5),
        ("step", 1),
        ("cancel",),
        ("column", "note"),
        ("relayout", ("wave-insertion", 3), ("k", "text"), "now", 2_000),
        ("lifetime", 3 * DELTA),
        ("relayout", ("round-robin", 2, 2), ("k",), False, 1),
        ("step", 1 << 20),
    ]
    made: list[Operation] = []
    for operation in rounds:
        made.append(operation)
        if operation[0] in ("slide", "append") and len(made) > 3 and changes:
            made.append(changes.pop(0))
    return [*made, *changes]


OPERATIONS = operations()
TRUTHS = recorded_history.expected_states(SHAPES[SHAPE], OPERATIONS)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh") / "wh"
    recorded_history.create(path, SHAPE, INDEX)
    return path


@pytest.fixture(scope="module")
def reached(fresh: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    path = shutil.copytree(fresh, tmp_path_factory.mktemp("counted") / "wh")
    files = CountingDisk()
    with recorded_history.open_warehouse(path, files=files) as wh:
        for k, operation in enumerate(OPERATIONS):
            recorded_history.perform(wh, SHAPES[SHAPE], operation)
            assert recorded_history.state(wh) == recorded_history.expected(TRUTHS[k + 1], SHAPES[SHAPE]), (k, operation)
            recorded_history.assert_sound(wh)
    return dict(files.steps)


def assert_goes_on(path: Path, progress: Path) -> None:
    shape, done = SHAPES[SHAPE], len(progress.read_bytes()) if progress.exists() else 0
    with recorded_history.open_warehouse(path) as wh:
        recorded_history.assert_sound(wh)
        actual = recorded_history.state(wh)
        possible = [
            k for k in (done, done + 1) if k < len(TRUTHS) and actual == recorded_history.expected(TRUTHS[k], shape)
        ]
        assert possible, f"after {done} operations, killed in {OPERATIONS[done : done + 1]}: {actual}"
        for k in range(done, len(OPERATIONS)):
            if OPERATIONS[k][0] in ("replay", "cancel") and k < possible[-1]:
                continue
            recorded_history.perform(wh, shape, OPERATIONS[k])
        assert recorded_history.state(wh) == recorded_history.expected(TRUTHS[-1], shape)
        recorded_history.assert_sound(wh)
    assert not any((path / "staging").iterdir())


def test_the_changes_reach_every_step_of_their_own(reached: dict[str, int]) -> None:
    assert set(CHANGES) <= set(reached)


@pytest.mark.parametrize("step", CHANGES)
def test_a_process_killed_at_a_step_of_a_change_leaves_the_state_before_or_after(
    step: str, fresh: Path, reached: dict[str, int], tmp_path: Path
) -> None:
    for nth in range(1, min(reached[step], 5) + 1):
        path, progress = shutil.copytree(fresh, tmp_path / f"wh{nth}"), tmp_path / f"progress{nth}"
        child = start_child(child_processes.run_until_step, str(path), SHAPE, OPERATIONS, str(progress), step, nth)
        assert join_child(child) == -signal.SIGKILL
        assert_goes_on(path, progress)
        shutil.rmtree(path)


def test_a_process_killed_at_a_random_moment_of_a_change_leaves_the_state_before_or_after(
    fresh: Path, tmp_path: Path
) -> None:
    choice = random.Random(11)
    for turn in range(4):
        path, progress = shutil.copytree(fresh, tmp_path / f"wh{turn}"), tmp_path / f"progress{turn}"
        child = start_child(
            child_processes.run_until_call, str(path), SHAPE, OPERATIONS, str(progress), choice.randint(20_000, 120_000)
        )
        join_child(child)
        assert_goes_on(path, progress)
        shutil.rmtree(path)
