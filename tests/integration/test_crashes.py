"""kill -9 anywhere: nothing committed is lost, nothing is doubled, and the next open needs no repair step.

op 0     op 1     op k        ×  killed inside operation k
──●────────●─────────●────────×
                     k        after reopen: the truth after k operations or after k + 1, never between
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import child_processes
import recorded_history
import windrow
from faulty_disks import CountingDisk, RecordingDisk, join_child, start_child
from sample_streams import SHAPES
from windrow.files import CRASH_POINTS
from windrow.orphans import data_files, named_files

SHAPE = "per-row-rich"
INDEX = windrow.Index("round-robin", 2, 2, maintenance="rebuild")
OPERATIONS = recorded_history.operations(SHAPES[SHAPE], seed=20260101)
OWN_STEPS = [step for step in CRASH_POINTS if not step.startswith(("relayout.", "alter.", "objects."))]
"""Those of changes and of object stores have scenarios of their own: see test_relayout_crashes, object_store/."""
TRUTHS = recorded_history.expected_states(SHAPES[SHAPE], OPERATIONS)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with the stream and nothing in it, to be copied."""
    path = tmp_path_factory.mktemp("fresh") / "wh"
    recorded_history.create(path, SHAPE, INDEX)
    return path


@pytest.fixture(scope="module")
def reached(fresh: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often the scenario reaches each step."""
    path = shutil.copytree(fresh, tmp_path_factory.mktemp("counted") / "wh")
    files = CountingDisk()
    with recorded_history.open_warehouse(path, files=files) as wh:
        for operation in OPERATIONS:
            recorded_history.perform(wh, SHAPES[SHAPE], operation)
        assert recorded_history.state(wh) == recorded_history.expected(TRUTHS[-1], SHAPES[SHAPE])
    return dict(files.steps)


def assert_recovers(path: Path, progress: Path) -> None:
    """The state is the one before or the one after the operation that was killed, and everything goes on from there."""
    shape, done = SHAPES[SHAPE], len(progress.read_bytes()) if progress.exists() else 0
    with recorded_history.open_warehouse(path) as wh:
        recorded_history.assert_sound(wh)
        actual = recorded_history.state(wh)
        possible = [
            k for k in (done, done + 1) if k < len(TRUTHS) and actual == recorded_history.expected(TRUTHS[k], shape)
        ]
        assert possible, f"after {done} operations, killed in {OPERATIONS[done : done + 1]}: {actual}"
        for k in range(done, len(OPERATIONS)):
            if OPERATIONS[k] == ("replay",) and k < possible[-1]:
                continue
            again = recorded_history.perform(wh, shape, OPERATIONS[k])
            if k < possible[-1] and OPERATIONS[k][0] == "append":
                assert again.duplicate, "a retried batch that was in must be seen as such"
        assert recorded_history.state(wh) == recorded_history.expected(TRUTHS[-1], shape)
        recorded_history.assert_sound(wh)
    assert not any((path / "staging").iterdir())
    assert not any((path / "catalog" / "pins").iterdir())
    with windrow.open(path, clock=lambda: recorded_history.CLOCK + 3600 * 1_000_000) as wh:
        assert wh._store.catalog.read(named_files) >= set(data_files(path)), "an hour later nothing is left unnamed"
        assert recorded_history.state(wh) == recorded_history.expected(TRUTHS[-1], shape)


def test_the_scenario_reaches_every_named_step(reached: dict[str, int]) -> None:
    assert set(reached) == set(OWN_STEPS)


def kill_at_passes(step: str, passes: Iterable[int], fresh: Path, tmp_path: Path) -> None:
    for nth in passes:
        path, progress = shutil.copytree(fresh, tmp_path / f"wh{nth}"), tmp_path / f"progress{nth}"
        child = start_child(child_processes.run_until_step, str(path), SHAPE, OPERATIONS, str(progress), step, nth)
        assert join_child(child) == -signal.SIGKILL
        assert_recovers(path, progress)
        shutil.rmtree(path)


@pytest.mark.parametrize("step", OWN_STEPS)
def test_a_process_killed_at_a_named_step_leaves_the_state_before_or_after(
    step: str, fresh: Path, reached: dict[str, int], tmp_path: Path
) -> None:
    """At the first pass and at the one in the middle; the sweep over all is a soak."""
    kill_at_passes(step, sorted({1, reached[step] // 2 + 1}), fresh, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("step", OWN_STEPS)
def test_a_process_killed_at_any_pass_of_a_step_leaves_the_state_before_or_after(
    step: str, fresh: Path, reached: dict[str, int], tmp_path: Path
) -> None:
    kill_at_passes(step, range(1, reached[step] + 1), fresh, tmp_path)


def kills(fresh: Path, tmp_path: Path, seed: int, count: int, how: str) -> Iterator[tuple[Path, Path, BaseProcess]]:
    choice = random.Random(seed)
    for turn in range(count):
        path, progress = shutil.copytree(fresh, tmp_path / f"wh{turn}"), tmp_path / f"progress{turn}"
        if how == "call":
            instant: Any = choice.randint(1, 60_000)
            child = start_child(child_processes.run_until_call, str(path), SHAPE, OPERATIONS, str(progress), instant)
        else:
            instant = choice.uniform(0.001, 0.8)
            child = start_child(child_processes.run_until_alarm, str(path), SHAPE, OPERATIONS, str(progress), instant)
        print(f"seed {seed}, turn {turn}: killed by {how} at {instant}")
        yield path, progress, child
        shutil.rmtree(path)


@pytest.mark.parametrize("how", ["call", "alarm"])
def test_a_process_killed_at_a_random_moment_leaves_the_state_before_or_after(
    how: str, fresh: Path, tmp_path: Path
) -> None:
    for path, progress, child in kills(fresh, tmp_path, 7, 4, how):
        join_child(child)
        assert_recovers(path, progress)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["call", "alarm"])
def test_a_process_killed_at_any_of_many_random_moments_leaves_the_state_before_or_after(
    how: str, fresh: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED", time.time_ns() % 10**9))
    for path, progress, child in kills(fresh, tmp_path, seed, 500, how):
        join_child(child)
        assert_recovers(path, progress)


@pytest.mark.parametrize("shape", ["per-row", SHAPE])
def test_nothing_is_named_by_a_commit_before_it_is_durable(shape: str, tmp_path: Path) -> None:
    """File and folder are synced before the commit: in another order a power cut could lose a named file.

    Nested columns are written by another writer than plain ones, and synced at another time.
    """
    path, files, operations = (
        tmp_path / "wh",
        RecordingDisk(),
        recorded_history.operations(SHAPES[shape], seed=20260101),
    )
    recorded_history.create(path, shape, INDEX)
    with recorded_history.open_warehouse(path, files=files) as wh:
        for operation in operations:
            recorded_history.perform(wh, SHAPES[shape], operation)
    renamed = [(index, event) for index, event in enumerate(files.events) if event[0] == "rename"]
    assert len(renamed) > len(operations) // 2
    for index, (_, source, target) in renamed:
        commits = (
            i for i, e in enumerate(files.events) if i > index and e[0] == "reach" and e[1].endswith(".committing")
        )
        until = files.events[index : next(commits)]
        assert ("sync", source) in files.events[:index] or ("sync", target) in until, f"{target} could be lost"
        folder = str(Path(target).parent)
        assert ("sync", folder) in until, f"{folder} was not durable at the commit"


def test_a_folder_where_creating_a_warehouse_was_interrupted_can_be_opened(tmp_path: Path) -> None:
    """Creation makes folders and then the marker; whoever comes next finishes what was begun."""
    for left in ("streams", "staging", "tables", "catalog"):
        path = tmp_path / f"after-{left}"
        for name in ("streams", "staging", "tables", "catalog"):
            (path / name).mkdir(parents=True)
            if name == left:
                break
        with windrow.open(path) as wh:
            assert wh.streams() == []
