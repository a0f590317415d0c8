"""Files go to the disk while Spark still writes them, so that the commit has little left to wait for."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE = 0.05
_WORTH_BYTES = 8 << 20


@contextmanager
def synced_meanwhile(folder: Path) -> Iterator[None]:
    """Let files that a job writes under `folder` reach the disk during the block.

    They are synced again when they are sealed, so this promises nothing. But the system tells a failed write to the
    first who asks, so one that is met here is raised.
    """
    over, failures = threading.Event(), list[OSError]()
    worker = threading.Thread(target=_keep_syncing, args=(folder, over, failures), name="windrow-syncing", daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
    if failures:
        raise failures[0]


def _written(folder: Path) -> Iterator[str]:
    """Files of tasks, finished or not, where Hadoop's committer keeps them until the whole job is done."""
    # Folders that go while we look do not disturb this walk.
    for inside, _, names in os.walk(folder / "_temporary"):
        yield from (os.path.join(inside, name) for name in names if name.endswith(".parquet") and name[0] != ".")


def _keep_syncing(folder: Path, over: threading.Event, failures: list[OSError]) -> None:
    synced: dict[int, int] = {}
    while not over.wait(_PAUSE):
        for path in _written(folder):
            try:
                opened = os.open(path, os.O_RDONLY)
            except OSError:  # its task was committed or given up meanwhile
                continue
            try:
                status = os.fstat(opened)
                if status.st_size >= synced.get(status.st_ino, 0) + _WORTH_BYTES:
                    os.fdatasync(opened)
                    synced[status.st_ino] = status.st_size
            except OSError as error:
                failures.append(error)
                return
            finally:
                os.close(opened)
