"""Runs contestants side by side on the same rows and queries, and fails on the first wrong answer.

The machine is never idle, so contestants take turns at each step, in rotating order, and only ratios within one run
are compared.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measures import PROBE, SCAN, SQL_SCAN, UPDATE, Measure
from bench.systems.base import System
from bench.workload import SlidingRows


class WrongAnswerError(AssertionError):
    """Two systems were asked the same and gave different answers."""


@dataclass(frozen=True)
class Contestant:
    """A system under a name, and the workload that it is given."""

    name: str
    system: type[System]
    workload: SlidingRows


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        name: Of the comparison.
        contestants: Who takes part; those with equal workloads must give equal answers.
        steps: Updates that are measured. Before them each contestant lives through a whole window of updates.
        repetitions: How often all of it is done, from empty folders.
        measures: What is measured after each update.
    """

    name: str
    contestants: tuple[Contestant, ...]
    steps: int = 36
    repetitions: int = 1
    measures: tuple[Measure, ...] = (UPDATE, PROBE, SCAN, SQL_SCAN)

    @property
    def turns(self) -> int:
        """How many updates a run of the case makes, for a progress bar."""
        return self.repetitions * sum(c.workload.slots + self.steps for c in self.contestants)


@dataclass(frozen=True)
class Sample:
    """One measured operation."""

    case: str
    contestant: str
    measure: str
    repetition: int
    step: int
    wall: float
    cpu: float


_FirstAnswers = dict[tuple[SlidingRows, str], tuple[str, Any]]
"""By workload and question: the first contestant that answered, and its answer."""


@dataclass
class Outcome:
    """The samples and notes of a run of a case."""

    case: Case
    samples: list[Sample] = field(default_factory=list)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per contestant, at the end of the last repetition: bytes on disk and figures of its own."""


def silent(doing: str) -> None:
    """No progress bar."""
    del doing


def run(case: Case, scratch: Path | None = None, advance: Callable[[str], None] = silent) -> Outcome:
    """Run a case.

    Args:
        case: What to compare.
        scratch: Where the systems put their files; it should be on a disk, not in memory.
        advance: Called once per update, with a word on what is being done.
    """
    outcome = Outcome(case)
    for repetition in range(case.repetitions):
        with _open_systems(case, scratch) as systems:
            _warm_up(case, systems, advance)
            for step in range(case.steps):
                _step(case, systems, repetition, step, outcome, advance)
            for name, system in systems.items():
                outcome.notes[name] = {"space": system.space(), "about": system.about, **system.notes()}
    return outcome


def _warm_up(case: Case, systems: dict[str, System], advance: Callable[[str], None]) -> None:
    """Fill a whole window of each contestant, slot by slot, so that equal workloads share their batches."""
    for slot in range(1, max(contestant.workload.slots for contestant in case.contestants) + 1):
        warming = [contestant for contestant in case.contestants if slot <= contestant.workload.slots]
        batches = {workload: workload.batch(slot) for workload in {contestant.workload for contestant in warming}}
        for contestant in warming:
            advance(f"{case.name}: warming up {contestant.name}")
            system, batch = systems[contestant.name], batches[contestant.workload]
            system.update(batch, system.prepare(batch))


@contextmanager
def _open_systems(case: Case, scratch: Path | None) -> Iterator[dict[str, System]]:
    root = Path(tempfile.mkdtemp(prefix="windrow-bench-", dir=scratch))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        systems: dict[str, System] = {}
        for contestant in case.contestants:
            folder = root / contestant.name.replace(" ", "-")
            folder.mkdir()
            systems[contestant.name] = contestant.system(folder, contestant.workload)
            stack.callback(systems[contestant.name].close)
        yield systems


def _step(
    case: Case, systems: dict[str, System], repetition: int, step: int, outcome: Outcome, advance: Callable[[str], None]
) -> None:
    workloads = {contestant.workload for contestant in case.contestants}
    batches = {workload: workload.batch(workload.slots + 1 + step) for workload in workloads}
    turn = (step + repetition) % len(case.contestants)
    order = case.contestants[turn:] + case.contestants[:turn]
    first_answers: _FirstAnswers = {}
    for measure in case.measures:
        for contestant in order:
            system = systems[contestant.name]
            if not measure.of(system):
                continue
            if measure is UPDATE:
                advance(f"{case.name}: {contestant.name}")
            timing, answer = measure.take(system, batches[contestant.workload])
            outcome.samples.append(
                Sample(case.name, contestant.name, measure.name, repetition, step, timing.wall, timing.cpu)
            )
            _compare(contestant, measure, step, answer, first_answers)


def _compare(contestant: Contestant, measure: Measure, step: int, answer: Any, first_answers: _FirstAnswers) -> None:
    if answer is None:
        return
    other, expected = first_answers.setdefault((contestant.workload, measure.question), (contestant.name, answer))
    if answer != expected:
        raise WrongAnswerError(
            f"step {step}: {measure.name} of {contestant.name} differs from that of {other}: "
            f"{_short(answer)} against {_short(expected)}"
        )


def _short(answer: Any) -> str:
    return f"{answer.num_rows} rows" if hasattr(answer, "num_rows") else str(answer)[:60]


def contestants(systems: Sequence[type[System]], workload: SlidingRows) -> tuple[Contestant, ...]:
    """Systems under their own names, all with one workload."""
    return tuple(Contestant(system.name, system, workload) for system in systems)
