"""On a cluster executors only write files; tasks that fail, and tasks that Spark runs twice, leave nothing behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = 4000


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "streams",
    ["native,source", pytest.param("workers", marks=pytest.mark.soak)],
    ids=["in the JVM", "through Python workers"],
)
def test_failed_and_speculative_tasks_on_two_executors_change_nothing(tmp_path, streams):
    """The catalog is elsewhere than the files, as it is where these are on a shared file system."""
    process = Path(__file__).with_name("cluster_process.py")
    arguments = [str(tmp_path / "warehouse"), str(tmp_path / "catalog"), "local-cluster[2,1,1024]", streams]
    done = subprocess.run(
        [sys.executable, str(process), *arguments], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    right = [ROWS, ROWS, sum(range(ROWS))]
    assert report["found"] == {stream: {"spark": [right], "scan": right} for stream in streams.split(",")}
    assert report["leftover"] == []
    assert report["problems"] == []
