"""kill -9 in a slide that synopses follow: afterwards each of them holds what the stored rows say, before or after it."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import child_processes
import recorded_history
import windrow
from faulty_disks import join_child, start_child
from sample_streams import SHAPES
from standing_queries import from_synopses
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.queries.synopses import node_store, synopsis_choice
from windrow.snapshot import Snapshot

SHAPE = "per-row-rich"
OPERATIONS = recorded_history.operations(SHAPES[SHAPE], seed=20260202)
QUERIES = [
    "SELECT count(*) AS c, sum(n) AS s, max(n) AS m FROM s [WINDOW 40 SECONDS SLIDE 10 SECONDS]",
    (
        "SELECT n % 3 AS g, count(DISTINCT n % 5) AS d, median(n) AS m, stddev(n) AS v "
        "FROM s [WINDOW 50 SECONDS SLIDE 20 SECONDS] WHERE n % 2 = 0 GROUP BY 1 ORDER BY 1"
    ),
]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with standing queries and nothing in it, to be copied."""
    path = tmp_path_factory.mktemp("fresh") / "wh"
    recorded_history.create(path, SHAPE, windrow.Index("round-robin", 2, 2, maintenance="rebuild"))
    with recorded_history.open_warehouse(path) as wh:
        for index, sql in enumerate(QUERIES):
            wh.add_query(f"q{index}", sql)
    return path


def kept(wh: windrow.Warehouse) -> int:
    return len(wh._store.catalog.read(lambda tables: list(tables.raw_items("synopses"))))


def kills(steps: Sequence[str], nths: Sequence[int]) -> list[Any]:
    """Each step at one of its passes, in turn; all passes in a soak."""
    return [
        pytest.param(step, nth, marks=() if nth == nths[index % len(nths)] else pytest.mark.soak)
        for index, step in enumerate(steps)
        for nth in nths
    ]


@pytest.mark.parametrize(("step", "nth"), kills(["slide.planned", "slide.committing", "slide.committed"], [1, 3, 6]))
def test_synopses_are_whole_after_a_kill(step: str, nth: int, fresh: Path, tmp_path: Path) -> None:
    path, progress = shutil.copytree(fresh, tmp_path / "wh"), tmp_path / "progress"
    child = start_child(child_processes.run_until_step, str(path), SHAPE, OPERATIONS, str(progress), step, nth)
    assert join_child(child) == -signal.SIGKILL
    with recorded_history.open_warehouse(path) as wh:
        assert wh.check().problems == ()
        for operation in OPERATIONS[len(progress.read_bytes()) :]:
            if operation != ("replay",):
                recorded_history.perform(wh, SHAPES[SHAPE], operation)
        assert wh.check().problems == ()
        assert kept(wh) > len(QUERIES)


def test_check_finds_a_synopsis_that_lies(fresh: Path, tmp_path: Path) -> None:
    path = shutil.copytree(fresh, tmp_path / "wh")
    with recorded_history.open_warehouse(path) as wh:
        for operation in OPERATIONS[:8]:
            recorded_history.perform(wh, SHAPES[SHAPE], operation)
        store = wh._store
        with store.catalog.write() as tables:
            entry = next(e for e in node_store.read_entries(tables, 1) if not e.groups)
            node = next(node for node, _ in node_store.list_nodes(tables, entry) if node.right <= (entry.slide or 0))
            tables.delete("synopses", node_store.encode_node_key(entry.stream, entry.number, node))
        assert any("does not hold what the rows say" in problem for problem in wh.check().problems)


def test_check_tells_of_a_synopsis_whose_rows_are_gone(fresh: Path, tmp_path: Path) -> None:
    path = shutil.copytree(fresh, tmp_path / "wh")
    with recorded_history.open_warehouse(path) as wh:
        for operation in OPERATIONS[:8]:
            recorded_history.perform(wh, SHAPES[SHAPE], operation)
    for file in path.glob("streams/*/segments/*.parquet"):
        file.unlink()
    with recorded_history.open_warehouse(path) as wh:
        problems = wh.check().problems
    assert any("is missing" in problem for problem in problems)
    assert any("it cannot be compared with its rows (" in problem for problem in problems)
    assert not any("\n" in problem for problem in problems)


# -- tallies that appends put down -----------------------------------------------------------------------------------

FIXED = "fixed"
FIXED_OPERATIONS = recorded_history.operations(SHAPES[FIXED], seed=20260303)
TALLIED = "SELECT n, count(*) AS c FROM s [WINDOW 30 SECONDS SLIDE 10 SECONDS] GROUP BY n ORDER BY n"


@pytest.fixture(scope="module")
def tallied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with lifetimes that are fixed, so that appends tally."""
    path = tmp_path_factory.mktemp("tallied") / "wh"
    recorded_history.create(path, FIXED, windrow.Index("round-robin", 2, 2, maintenance="rebuild"))
    with recorded_history.open_warehouse(path) as wh:
        wh.add_query("q", TALLIED)
        synopsis_choice.reconcile_stream(wh._store, "s", kind="basic")
    return path


def spooled_tallies(wh: windrow.Warehouse) -> int:
    def look(tables: Tables) -> int:
        entries = node_store.read_entries(tables, 1)
        spooled = [decode_last_int(key) for key, _ in tables.raw_items("spool", catalog_key(1))]
        return sum(bool(node_store.find_tallied_slots(tables, entry, spool)) for entry in entries for spool in spooled)

    return wh._store.catalog.read(look)


def test_appends_of_the_scenario_are_tallied(tallied: Path, tmp_path: Path) -> None:
    with recorded_history.open_warehouse(shutil.copytree(tallied, tmp_path / "wh")) as wh:
        recorded_history.perform(wh, SHAPES[FIXED], FIXED_OPERATIONS[0])
        assert spooled_tallies(wh) == 1


@pytest.mark.parametrize(
    ("step", "nth"),
    kills(["append.committing", "append.committed", "slide.committing", "slide.committed"], [1, 3, 5]),
)
def test_tallies_are_there_with_their_rows_or_not_at_all(step: str, nth: int, tallied: Path, tmp_path: Path) -> None:
    """A batch that the killed process had committed is appended again, and counts once."""
    path, progress = shutil.copytree(tallied, tmp_path / "wh"), tmp_path / "progress"
    child = start_child(child_processes.run_until_step, str(path), FIXED, FIXED_OPERATIONS, str(progress), step, nth)
    assert join_child(child) == -signal.SIGKILL
    with recorded_history.open_warehouse(path) as wh:
        assert wh.check().problems == ()
        for operation in FIXED_OPERATIONS[len(progress.read_bytes()) :]:
            recorded_history.perform(wh, SHAPES[FIXED], operation)
        assert wh.check().problems == ()
        window = TALLIED.replace(" SLIDE 10 SECONDS", "")
        with Snapshot(wh._store) as snapshot:
            actual = from_synopses(wh._store, snapshot, window)
        rows = wh.sql("SELECT n FROM s [WINDOW 30 SECONDS]").fetchall()
        assert actual.to_pylist() == [{"n": n, "c": 1} for n in sorted(n for (n,) in rows)]
