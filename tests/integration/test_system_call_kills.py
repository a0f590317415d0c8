"""kill -9 after every call that changes the disk, also inside LMDB's commit, while another process has the warehouse open.

the other process   open ─────────────────────────── read  gc  read ─────────────────────────── read  close
the victim                open  call 1 … call n ×
the third                                                          commit  retry  slide  check

Nothing acknowledged is lost, the killed operation is wholly in or wholly out, nothing is doubled by the retry, and no
file is missing that a record names. `kills` has the operations with their truths, `system_calls` the killing.
"""

import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import kills
import scratch_folders
import system_calls
import windrow
from kills import CASES, Case, State
from system_calls import Call, Server

SEED = int(os.environ.get("SEED", "20261118"))

pytestmark = pytest.mark.skipif(
    system_calls.compiler() is None, reason="there is no C compiler to build the preloaded library with"
)


@dataclass
class Stage:
    """Where operations are killed: for each of them a warehouse to copy, and its calls."""

    server: Server
    """Forks the processes that are killed."""
    third: Server
    """Comes after them."""
    folder: Path
    calls: dict[str, list[Call]] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Where the warehouse of an operation is."""
        return self.folder / name

    def traced(self, name: str) -> list[Call]:
        """The calls of an operation, the first of which has number 1."""
        if name not in self.calls:
            self.server.prepare(name, self.path(name))
            self.path(name).rename(self._kept(name))
            # Beside a reader, as later: what it has pinned is not removed.
            with CASES[name].open(self.restore(name)) as wh, wh.snapshot():
                self.calls[name] = self.server.trace(name, self.path(name), self.folder / "log")
        return self.calls[name]

    def restore(self, name: str) -> Path:
        """The warehouse as it was prepared, always at the same path. Row files never change, so links are enough."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        return Path(shutil.copytree(self._kept(name), self.path(name), copy_function=_copy))

    def _kept(self, name: str) -> Path:
        return self.folder / f"{name}.kept"


def _copy(source: str, target: str) -> str:
    if source.endswith(".parquet"):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with scratch_folders.scratch_folder() as folder, Server(system_calls.build(folder)) as server, Server() as third:
        yield Stage(server, third, folder)


# -- one kill ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kill:
    """Where a process is killed."""

    case: str
    nth: int
    before: bool = False
    in_turn: bool = True
    """Whether the victim has one thread only, so that the nth call is the same one each time."""

    def told(self, calls: list[Call]) -> str:
        """Which call that is, in words."""
        where = str(calls[self.nth - 1]) if self.nth <= len(calls) else "the end"
        how = "before" if self.before else "after"
        return f"{self.case}, killed {how} call {self.nth} of {len(calls)} ({where})"


def found_after(stage: Stage, kill: Kill) -> list[str]:
    """Kill, read, clean up, retry and go on; gives all that was not as it must be."""
    calls, wrong = stage.traced(kill.case), []
    wanted = system_calls.place(calls, kill.nth) if kill.nth <= len(calls) and kill.in_turn else None
    nth = kill.nth
    for _ in range(4):
        more, made = _attempt(stage, replace(kill, nth=nth))
        if wanted is None or kill.before or (made and system_calls.place(made, len(made)) == wanted):
            wrong += more
            break
        wrong += [f"after {made[-1] if made else 'nothing'}: {line}" for line in more]
        # Now and then LMDB writes a page more or less.
        earlier = [index for index in range(1, len(made) + 1) if system_calls.place(made, index) == wanted]
        nth = earlier[0] if earlier else nth + 1
    else:
        wrong.append(f"the process was never killed {kill.told(calls)}")
    return wrong


def _attempt(stage: Stage, kill: Kill) -> tuple[list[str], list[Call]]:
    """What was wrong, and the calls that the killed process had made."""
    case, path, log = CASES[kill.case], stage.restore(kill.case), stage.folder / "log"
    wrong: list[str] = []
    passed = [0]
    with case.open(path, later=lambda: passed[0]) as wh:
        observer = Observer(case, wh, passed)
        outcome = stage.server.call("operate", kill.case, str(path), str(log), kill.nth, kill.before, kill.in_turn)
        made = system_calls.read_log(log)
        if not outcome.killed and outcome.status:
            return [f"the operation failed: {outcome.value}"], made
        observer.look("right after the kill", acknowledged=outcome.acknowledged)
        observer.clean_up()
        observer.look("after the other process cleaned up", acknowledged=outcome.acknowledged)
        observer.let_go()
        wrong += observer.wrong
        wrong += _told(stage.third.call("succeed", kill.case, str(path), outcome.acknowledged))
        wrong += observer.last()
    wrong += _told(stage.third.call("clean_up", kill.case, str(path)))
    return wrong, made


def _told(outcome: system_calls.Outcome) -> list[str]:
    given = outcome.value
    return given if isinstance(given, list) else [f"the next process failed: {str(given).strip().splitlines()[-1]}"]


class Observer:
    """The other process: it had the warehouse open before, and a snapshot, and goes on with both."""

    def __init__(self, case: Case, wh: windrow.Warehouse, passed: list[int]) -> None:
        self.case, self.wh = case, wh
        self.passed = passed
        """Microseconds that its clock is ahead of the others'."""
        self.wrong: list[str] = []
        self.seen: State = case.before()
        self._pin = wh.snapshot()
        self._asked: list[Any] = wh.streams()

    def look(self, when: str, *, acknowledged: bool) -> None:
        """Everything is as before the operation or as after it, and never goes back."""
        try:
            actual, pinned = self.case.see(self.wh), self.case.pinned(self._pin)
        except (windrow.WindrowError, OSError) as error:
            self.wrong.append(f"{when}: {type(error).__name__}: {error}")
            return
        self.wrong += kills.neither(self.case, when, actual, acknowledged=acknowledged)
        self.wrong += kills.missing_files(when, self.wh)
        before, after = self.case.before(), self.case.after()
        back = [name for name in actual if actual[name] == before[name] != after[name] == self.seen[name]]
        self.wrong += [f"{when}: {name} is what it was before, although it had changed" for name in back]
        self.seen = actual
        if pinned != self.case.pinned_is():
            self.wrong.append(f"{when}: a snapshot that was taken before shows something else")

    def clean_up(self) -> None:
        """Remove what can go, as this process sees it, at once and when what it marked is older than an hour."""
        try:
            for _ in range(3):
                self.wh.gc()
                self.passed[0] += 2 * kills.HOUR
        except (windrow.WindrowError, OSError) as error:
            self.wrong.append(f"cleaning up: {type(error).__name__}: {error}")

    def let_go(self) -> None:
        """End the snapshot and clean up again."""
        self._pin.close()
        self.clean_up()

    def last(self) -> list[str]:
        """What is not as it must be when everything is done."""
        try:
            return kills.differences("at last, to the other process", self.case.see(self.wh), self.case.last())
        except (windrow.WindrowError, OSError) as error:
            return [f"at last, to the other process: {type(error).__name__}: {error}"]


def assert_survives(stage: Stage, made: list[Kill]) -> None:
    """Every kill leaves everything as it must be."""
    failed: dict[Kill, list[str]] = {}
    started = time.perf_counter()
    for kill in made:
        wrong = found_after(stage, kill)
        if wrong:
            failed[kill] = wrong
    spent = time.perf_counter() - started
    print(f"{len(made)} kills in {spent:.1f} s ({1000 * spent / max(1, len(made)):.0f} ms each), {len(failed)} failed")
    report = [
        "\n    ".join([kill.told(stage.traced(kill.case)), *(line[:400] for line in wrong)])
        for kill, wrong in failed.items()
    ]
    assert not failed, f"{len(failed)} of {len(made)} kills\n" + "\n".join(report)


# -- tests -------------------------------------------------------------------------------------------------------------


def chosen(name: str, calls: list[Call], seed: int) -> list[Kill]:
    """A write of LMDB's meta page and the call before it, a rename into place, and any other call; all drawn."""
    choice = random.Random(f"{seed} {name}")
    metas = [number for number, call in enumerate(calls, 1) if call.is_meta]
    assert metas, "every one of these operations commits"
    commit = choice.choice(metas)
    numbers = {max(1, commit - 1), commit}
    renames = [number for number, call in enumerate(calls, 1) if call.is_publishing]
    others = sorted(set(range(1, len(calls) + 1)) - {*metas, *renames})
    numbers |= {choice.choice(kind) for kind in (renames, others) if kind}
    return [Kill(name, number) for number in sorted(numbers)]


@pytest.mark.parametrize("name", CASES)
def test_a_process_killed_around_its_commit_leaves_the_state_before_or_after(name: str, stage: Stage) -> None:
    print(f"SEED={SEED}")
    assert_survives(stage, chosen(name, stage.traced(name), SEED))


@pytest.mark.soak
@pytest.mark.parametrize("how", ["behind", "ahead", "threads"])
@pytest.mark.parametrize("name", CASES)
def test_a_process_killed_after_any_call_leaves_the_state_before_or_after(name: str, how: str, stage: Stage) -> None:
    """Right after each call, right before it, and with the threads that a process really has."""
    calls = stage.traced(name)
    print(f"SEED={SEED}")
    made = [Kill(name, number, how == "ahead", how != "threads") for number in range(1, len(calls) + 1)]
    made.append(Kill(name, len(calls) + 1000))  # never
    assert_survives(stage, made)
