"""A forked child reads statements like its parent, and ends like any other process."""

import subprocess
import sys

import pytest

FORKING = """
import os, sys, threading
from windrow.queries.sql.statement import parse

def go_on():
    for number in range(200):
        parse(f"SELECT {number} FROM packets [ROWS 5]")

parse("SELECT 1")
if "busy" in sys.argv:
    threading.Thread(target=go_on).start()
child = os.fork()
if child == 0:
    if "idle" not in sys.argv:
        assert parse("SELECT 2 FROM packets [ROWS 5]").sql == "SELECT 2 FROM _w0 AS packets  "
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
parse("SELECT 3")
"""


@pytest.mark.parametrize("how", ["quiet", "busy", "idle"])
def test_a_child_has_a_parser_of_its_own(how):
    """Without care the child crashes at its end, in the destructor of an instance whose threads it does not have."""
    done = subprocess.run([sys.executable, "-c", FORKING, how], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
