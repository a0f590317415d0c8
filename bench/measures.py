"""The operations that are timed at each step, and how their answers are made comparable between systems."""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.systems.base import System
from bench.workload import Batch


@dataclass(frozen=True)
class Timing:
    """One measured operation in seconds: by the clock, and of processor time, which other programs disturb less."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Measure:
    """One kind of operation.

    Args:
        name: Of the operation.
        of: Which systems have the operation.
        make: Prepares the operation outside of the timing; calling what it gives is what is timed.
        answer: Turns what the operation gave into something that equals that of any other system with the right answer.
        question: What is asked; measures with the same question must give the same answer.
    """

    name: str
    of: Callable[[System], bool]
    make: Callable[[System, Batch], Callable[[], Any]]
    answer: Callable[[System, Any], Any]
    question: str

    def take(self, system: System, batch: Batch) -> tuple[Timing, Any]:
        """Time it once; gives the timing and the comparable answer."""
        operation = self.make(system, batch)
        timing, raw_answer = timed(operation)
        return timing, self.answer(system, raw_answer)


def timed(operation: Callable[[], Any]) -> tuple[Timing, Any]:
    """Run an operation with the garbage collector out of the way."""
    gc.collect()
    gc.disable()
    try:
        cpu, wall = time.process_time(), time.perf_counter()
        answer = operation()
        timing = Timing(time.perf_counter() - wall, time.process_time() - cpu)
    finally:
        gc.enable()
    return timing, answer


def _update(system: System, batch: Batch) -> Callable[[], None]:
    prepared = system.prepare(batch)
    # What others have left unwritten must not be waited for here.
    os.sync()
    return lambda: system.update(batch, prepared)


def _rows(system: System, answer: Any) -> Any:
    return system.as_arrow(answer).sort_by("payload").combine_chunks()


def _given(system: System, answer: Any) -> Any:
    del system
    return answer


def _anyone(system: System) -> bool:
    del system
    return True


def _can_answer(system: System) -> bool:
    return system.answers


def _has_sql(system: System) -> bool:
    return system.scan_by_sql is not None


def _scan(system: System, batch: Batch) -> Callable[[], Any]:
    del batch
    return system.scan


def _sql(system: System, batch: Batch) -> Callable[[], Any]:
    del batch
    assert system.scan_by_sql is not None
    return system.scan_by_sql


UPDATE = Measure("update", _anyone, _update, _given, "update")
PROBE = Measure("probe", _can_answer, lambda system, batch: lambda: system.probe(batch.key), _rows, "probe")
SCAN = Measure("scan", _can_answer, _scan, _given, "scan")
SQL_SCAN = Measure("scan by SQL", _has_sql, _sql, _given, "scan")
