"""kill -9 anywhere in a delivery: every due run is there once, with its file, and nothing else is."""

import csv
import io
import json
import signal
from pathlib import Path

import pytest

import child_processes
import periodic_histories
import recorded_history
import scratch_folders
from child_processes import PER_SLOT
from faulty_disks import PROCESSES, join_child, start_child
from sample_streams import BASE, DELTA
from windrow.files import DELIVERY_CRASH_POINTS

SLOTS = 7
FIRST = BASE // DELTA
"""The slide at BASE."""


def expected(name: str, slot: int) -> list[tuple[int, int]]:
    """What the run of a slot says: the window holds this slot and the one before."""
    whole = [(n, PER_SLOT) for n in (slot - 1, slot) if n >= 1]
    if name == "come":
        return [(slot, PER_SLOT)]
    if name == "gone":
        return [(slot - 2, PER_SLOT)] if slot > 2 else []
    return whole


def due(name: str) -> list[int]:
    """The slots at which a query is due."""
    if name != "each":
        return list(range(1, SLOTS + 1))
    return [slot for slot in range(1, SLOTS + 1) if slot == 1 or (FIRST + slot) % 2 == 0]


def assert_delivered(path: Path) -> None:
    """Exactly the runs that were due, each with its rows and its file."""
    with recorded_history.open_warehouse(path) as wh:
        wh.gc()
        runs = wh.sql("SELECT query, slide, outcome, file FROM windrow.runs ORDER BY ALL").fetchall()
        for name in ("newest", "each", "come", "gone"):
            kept = due(name)[-3:] if name == "each" else due(name)
            of_query = [run for run in runs if run[0] == name]
            assert [run[1] - FIRST for run in of_query] == kept
            assert {run[2] for run in of_query} == {"delivered"}
            rows = [(row[0] - FIRST, *row[-2:]) for row in wh.results(name).fetchall()]
            assert rows == [(slot, *row) for slot in kept for row in expected(name, slot)]
            assert wh.sql(f"SELECT count(*), count(DISTINCT (_slide, slot)) FROM {name}").fetchall() == [
                (len(rows),) * 2
            ]
            files = {str(p.relative_to(path)) for p in (path / "results" / name).glob("*") if p.is_file()}
            assert files == ({run[3] for run in of_query} if name in ("each", "come") else set())
            for _, slide, _, file in of_query if files else ():
                assert _read(path / file) == expected(name, slide - FIRST)
        assert wh.check().problems == ()
        assert wh._store.catalog.read(lambda tables: list(tables.raw_items("holds"))) == []
        assert {query.missed_runs for query in wh.queries()} == {0}
    assert not any((path / "staging").iterdir())
    assert not any((path / "catalog" / "pins").iterdir())


def _read(path: Path) -> list[tuple[int, int]]:
    text = path.read_text()
    rows = csv.DictReader(io.StringIO(text)) if path.suffix == ".csv" else map(json.loads, text.splitlines())
    return [(int(row["slot"]), int(row["n"])) for row in rows]


@pytest.fixture(scope="module")
def reached():
    return periodic_histories.count_delivery_steps(
        child_processes.create_periodic, child_processes.slide_and_run, SLOTS, assert_delivered
    )


def test_every_step_of_a_delivery_is_reached(reached):
    assert set(DELIVERY_CRASH_POINTS) <= set(reached)


STEPS = (*DELIVERY_CRASH_POINTS, "slide.committing", "slide.committed")


def kill_and_go_on(step: str, nth: int) -> None:
    """A process ends at the nth pass of a step; the next one goes on from there."""
    with scratch_folders.scratch_folder() as folder:
        path, progress = folder / "w", folder / "progress"
        child_processes.create_periodic(str(path))
        child = start_child(child_processes.run_periodic_until_step, str(path), str(progress), step, nth, SLOTS)
        # Runs that are ready together are committed together: the last time may not come.
        assert join_child(child) in ((-signal.SIGKILL,) if nth == 1 else (-signal.SIGKILL, 0))
        with recorded_history.open_warehouse(path) as wh:
            for slot in range(len(progress.read_bytes()) + 1, SLOTS + 1):
                child_processes.slide_and_run(wh, slot)
        assert_delivered(path)


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_a_named_step_delivers_each_run_once(step, reached):
    """At the first pass of every other step, and at the one in the middle, when there are results, of the rest."""
    kill_and_go_on(step, 1 if STEPS.index(step) % 2 else reached[step] // 2 + 1)


@pytest.mark.soak
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_any_pass_of_a_step_delivers_each_run_once(step, reached):
    for nth in range(1, reached[step] + 1):
        kill_and_go_on(step, nth)


def test_two_processes_that_make_rounds_at_once_deliver_each_run_once(tmp_path):
    """Both run whatever is due, all the time, while a third slides."""
    with scratch_folders.scratch_folder() as folder:
        path, stop = folder / "w", folder / "stop"
        child_processes.create_periodic(str(path))
        queues = [PROCESSES.Queue() for _ in range(2)]
        running = [start_child(child_processes.run_periodic_rounds, str(path), str(stop), queue) for queue in queues]
        with recorded_history.open_warehouse(path) as wh:
            for slot in range(1, SLOTS + 1):
                child_processes.slide_numbered(wh, slot)
        stop.touch()
        done = [queue.get(timeout=60) for queue in queues]
        assert [join_child(child) for child in running] == [0, 0]
        together = [(name, slide - FIRST) for part in done for name, slide, outcome in part if outcome == "delivered"]
        assert len(together) == len(set(together)), "no run was delivered twice"
        for name in ("each", "come"):
            assert sorted(slot for n, slot in together if n == name) == due(name), "no run was missed"
        with recorded_history.open_warehouse(path) as wh:
            delivered = wh.sql("SELECT query, slide FROM windrow.runs").fetchall()
            for name, slide in delivered:
                if name in ("newest", "each"):
                    rows = [row[-2:] for row in wh.results(name, slide=slide).fetchall()]
                    assert rows == expected(name, slide - FIRST)
            assert max(slide for name, slide in delivered if name == "newest") - FIRST == SLOTS
            assert wh.check().problems == ()
