"""Files reach the disk while Spark writes them; a write that failed is told, not swallowed."""

import os
import threading
from pathlib import Path

import pytest

from windrow.ingest import append


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    file = tmp_path / "_temporary" / "0" / "_temporary" / "attempt_1" / "part-00000.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 100)
    return file


def test_a_file_is_synced_each_time_it_has_grown_enough(
    tmp_path: Path, growing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "_SYNC_STEP_BYTES", 50)
    sizes, events = [], threading.Semaphore(0)

    def sync(opened: int) -> None:
        sizes.append(os.fstat(opened).st_size)
        events.release()

    monkeypatch.setattr(os, "fdatasync", sync)
    with append.sync_in_background(tmp_path):
        assert events.acquire(timeout=60)
        with growing.open("ab") as more:
            more.write(b"x" * 200)
        assert events.acquire(timeout=60)
        committed = tmp_path / "_temporary" / "0" / "task_1" / growing.name
        committed.parent.mkdir()
        growing.rename(committed)
        assert not events.acquire(timeout=5 * append._SYNC_INTERVAL), "the same bytes under another name"
    assert sizes == [100, 300]


def test_a_failed_write_is_raised_after_the_block(
    tmp_path: Path, growing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "_SYNC_STEP_BYTES", 50)
    asked = threading.Event()

    def fail(_: int) -> None:
        asked.set()
        raise OSError(5, "Input/output error", str(growing))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output"), append.sync_in_background(tmp_path):
        assert asked.wait(60)
    with pytest.raises(ValueError, match="first"), append.sync_in_background(tmp_path):
        asked.clear()
        asked.wait(60)
        raise ValueError("what went wrong first")
