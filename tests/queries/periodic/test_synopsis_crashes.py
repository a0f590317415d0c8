"""kill -9 in a slide that synopses follow: afterwards each of them holds what the stored rows say, before or after it."""

import shutil
import signal
from pathlib import Path

import pytest

import children
import scenario
import windrow
from faults import finish, start
from shapes import SHAPES
from windrow.queries.periodic import synopses

SHAPE = "per-row-rich"
OPERATIONS = scenario.operations(SHAPES[SHAPE], seed=20260202)
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
    scenario.create(path, SHAPE, windrow.Index("round-robin", 2, 2, maintenance="rebuild"))
    with scenario.open_warehouse(path) as wh:
        for at, sql in enumerate(QUERIES):
            wh.add_query(f"q{at}", sql)
    return path


def kept(wh: windrow.Warehouse) -> int:
    return len(wh._store.catalog.read(lambda tables: list(tables.raw_items("synopses"))))


@pytest.mark.parametrize("step", ["slide.planned", "slide.committing", "slide.committed"])
@pytest.mark.parametrize("nth", [1, 3, 6])
def test_synopses_are_whole_after_a_kill(step: str, nth: int, fresh: Path, tmp_path: Path) -> None:
    path, progress = shutil.copytree(fresh, tmp_path / "wh"), tmp_path / "progress"
    child = start(children.run_until_step, str(path), SHAPE, OPERATIONS, str(progress), step, nth)
    assert finish(child) == -signal.SIGKILL
    with scenario.open_warehouse(path) as wh:
        assert wh.check().problems == ()
        for operation in OPERATIONS[len(progress.read_bytes()) :]:
            if operation != ("replay",):
                scenario.do(wh, SHAPES[SHAPE], operation)
            assert wh.check().problems == ()
        assert kept(wh) > len(QUERIES)


def test_check_finds_a_synopsis_that_lies(fresh: Path, tmp_path: Path) -> None:
    path = shutil.copytree(fresh, tmp_path / "wh")
    with scenario.open_warehouse(path) as wh:
        for operation in OPERATIONS[:8]:
            scenario.do(wh, SHAPES[SHAPE], operation)
        store = wh._store
        with store.catalog.write() as tables:
            entry = next(e for e in synopses.entries(tables, 1) if not e.groups)
            node = next(node for node, _ in synopses.nodes(tables, entry) if node.right <= (entry.slide or 0))
            tables.delete("synopses", synopses.node_key(entry.stream, entry.number, node))
        assert any("does not hold what the rows say" in problem for problem in wh.check().problems)


def test_check_tells_of_a_synopsis_whose_rows_are_gone(fresh: Path, tmp_path: Path) -> None:
    path = shutil.copytree(fresh, tmp_path / "wh")
    with scenario.open_warehouse(path) as wh:
        for operation in OPERATIONS[:8]:
            scenario.do(wh, SHAPES[SHAPE], operation)
    for file in path.glob("streams/*/segments/*.parquet"):
        file.unlink()
    with scenario.open_warehouse(path) as wh:
        problems = wh.check().problems
    assert any("is missing" in problem for problem in problems)
    assert any("it cannot be compared with its rows (" in problem for problem in problems)
    assert not any("\n" in problem for problem in problems)
