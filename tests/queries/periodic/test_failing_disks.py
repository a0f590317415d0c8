"""A disk that fails during a delivery changes nothing, and the next round delivers what this one could not."""

import shutil
from pathlib import Path

import pytest

import child_processes
import recorded_history
import scratch_folders
import windrow
from child_processes import PER_SLOT
from faulty_disks import CountingDisk, FailAtCall
from sample_streams import BASE, DELTA
from windrow.queries.periodic import result_store

FIRST = BASE // DELTA


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(result_store, "INLINE_BYTES", 1800)
    patch.setattr(result_store, "TAIL_RUNS", 2)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def kept():
    """A warehouse whose queries have run three times, as `w` and, to put back, as `kept`."""
    with scratch_folders.scratch_folder() as folder, pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        child_processes.create_periodic(str(folder / "w"))
        with recorded_history.open_warehouse(folder / "w") as wh:
            for slot in range(1, 4):
                child_processes.slide_and_run(wh, slot)
        shutil.copytree(folder / "w", folder / "kept")
        yield folder


def put_back(folder: Path, files: CountingDisk) -> windrow.Warehouse:
    shutil.rmtree(folder / "w")
    shutil.copytree(folder / "kept", folder / "w")
    return recorded_history.open_warehouse(folder / "w", files=files)


@pytest.fixture(scope="module")
def reached(kept):
    """How often a round makes each call."""
    files = CountingDisk()
    with put_back(kept, files) as wh, pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        child_processes.slide_numbered(wh, 4)
        before = files.calls.copy()
        wh.run_due()
        return files.calls - before


@pytest.mark.parametrize("call", ["sink", "write", "sync", "rename"])
def test_a_round_that_failed_is_made_again(call, kept, reached):
    for nth in range(1, max(1, reached["sink" if call == "write" else call]) + 1):
        files = FailAtCall(call, 0)
        with put_back(kept, files) as wh:
            child_processes.slide_numbered(wh, 4)
            files.nth = files.calls[call] + nth
            try:
                wh.run_due()
            except windrow.StorageError as error:
                message = str(error)
                assert "failed" in message
            assert files.failed, f"{call} {nth}"
            assert wh.check().problems == ()
            wh.run_due(now=True)  # a run that failed waits a while; not here
            child_processes.slide_and_run(wh, 5)
            for name in ("newest", "come"):
                rows = [(row[0] - FIRST, *row[-2:]) for row in wh.results(name).fetchall()]
                slots = [slot for slot, *_ in rows]
                assert sorted(set(slots)) == [1, 2, 3, 4, 5], f"{name} after {call} {nth}"
                assert len(set(rows)) == len(rows)
                assert {row[-1] for row in rows} == {PER_SLOT}
            assert len(list((kept / "w" / "results" / "come").glob("*.jsonl"))) == 5
            assert {query.error for query in wh.queries()} == {None}
            assert wh.check().problems == ()
        with recorded_history.open_warehouse(kept / "w") as wh:
            report = wh.gc()
            assert (report.orphans, report.marked) == (0, 0), "nothing was left lying about"
