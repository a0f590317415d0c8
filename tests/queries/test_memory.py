"""Memory: large answers are streamed, a limit holds for one query alone, and whatever ends a query frees all of it."""

import gc
import subprocess
import sys
import threading

import pytest

import packet_warehouse
import windrow
from windrow import QueryError

LARGE = "SELECT a.*, repeat(note, 4) AS more, r.i FROM packets a, range(900) r(i)"
"""Some 400 MB of rows."""
CHILD = """
import re, sys
from pathlib import Path
import windrow

def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

with windrow.open(sys.argv[1]) as wh:
    wh.sql("SELECT count(*), max(note), min(ts) FROM packets").fetchall()
    Path("/proc/self/clear_refs").write_text("5")
    before, answered = resident("VmRSS"), 0
    for batch in wh.sql(sys.argv[2], isolation=sys.argv[3]).batches():
        answered += batch.nbytes
    print(answered, resident("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def wh():
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


def spilling(wh: windrow.Warehouse) -> set[str]:
    """Folders that queries spill to."""
    return {each.name for each in (wh.path / "staging").glob("*/*") if each.is_dir()}


@pytest.mark.parametrize("level", ["snapshot", "serial"])
def test_a_large_answer_is_read_without_ever_being_whole_in_memory(wh, level):
    asked = [sys.executable, "-c", CHILD, str(wh.path), LARGE, level]
    report = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    answered, grown = map(int, report.split())
    assert answered > 300 << 20
    assert grown < 120 << 20


def test_what_does_not_fit_is_spilled_and_the_folder_goes(wh):
    text = "SELECT i, hash(i) AS h FROM range(3000000) r(i) ORDER BY h"
    before = spilling(wh)
    answer = wh.sql(text, memory_limit="60MB")
    assert spilling(wh) > before
    assert sum(batch.num_rows for batch in answer.batches()) == 3_000_000
    assert spilling(wh) == before


@pytest.mark.parametrize("level", ["snapshot", "latest", "serial"])
def test_a_limit_holds_at_every_level_and_a_refused_query_leaves_nothing(wh, level):
    threads, before = threading.active_count(), spilling(wh)
    text = "SELECT list(note || i) FROM packets, range(20000) r(i)"
    with pytest.raises(QueryError, match="memory"):
        wh.sql(text, memory_limit="60MB", isolation=level).fetchall()
    gc.collect()
    assert wh.status().readers == 0
    assert spilling(wh) == before
    assert threading.active_count() <= threads + 1  # the thread that listens for Ctrl-C stays
    assert wh.sql("SELECT count(*) FROM packets").fetchall() == [
        (packet_warehouse.LIVE_MINUTES * packet_warehouse.ROWS_PER_MINUTE,)
    ]


def test_an_answer_with_a_limit_that_is_thrown_away_frees_its_engine(wh):
    before = spilling(wh)
    answer = wh.sql("SELECT i FROM range(3000000) r(i) ORDER BY hash(i)", memory_limit="60MB")
    answer.close()
    assert spilling(wh) == before
    assert wh.status().readers == 0
