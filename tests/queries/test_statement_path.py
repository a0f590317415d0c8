"""How much code a SELECT passes: few modules, few functions, and every one of its streams in one of three ways."""

import sys
from collections.abc import Iterator
from types import FrameType

import pytest

import packet_warehouse
import row_caches
import windrow
from windrow.queries.planner import planner

MOST_MODULES, MOST_FUNCTIONS = 35, 200
"""Wanted are 25 modules; there were 47, and 33 to 35 are left."""
STATEMENTS = {
    "memory": "SELECT note, count(*) FROM packets WHERE len > 3 GROUP BY note ORDER BY note",
    "probe": "SELECT count(*), max(len) FROM packets [WINDOW 1 MINUTE] WHERE src = 7",
    "scan": "SELECT src FROM packets [ROWS 5]",
}


@pytest.fixture(scope="module")
def wh() -> Iterator[windrow.Warehouse]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "MEMORY_ROWS", 0)
        patch.setattr(planner, "MEMORY_SHARE", 2)
        yield from open_packets()


def open_packets() -> Iterator[windrow.Warehouse]:
    with packet_warehouse.open_packet_warehouse() as made:
        for _ in range(2):
            for text in STATEMENTS.values():
                made.sql(text).fetchall()
            row_caches.settle(made)
        yield made


def passed(wh: windrow.Warehouse, text: str) -> set[tuple[str, str]]:
    """The modules and functions of ours that run until the rows are there."""
    seen = set[tuple[str, str]]()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("windrow"):
            seen.add((module, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        wh.sql(text).fetchall()
    finally:
        sys.setprofile(None)
    return {(module, name) for module, name in seen if "<" not in name.rpartition(".")[2]}


@pytest.mark.parametrize("path", STATEMENTS)
def test_a_select_passes_few_modules_and_functions(wh, path):
    text = STATEMENTS[path]
    assert row_caches.path_of(wh, text) == path
    functions = passed(wh, text)
    modules = {module for module, _ in functions}
    assert len(modules) <= MOST_MODULES, "\n".join(sorted(modules))
    assert len(functions) <= MOST_FUNCTIONS, "\n".join(map(str, sorted(functions)))
