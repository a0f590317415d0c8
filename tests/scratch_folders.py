"""Folders for the warehouses of tests, in memory if the machine has such a place, where fsync costs nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a new folder and remove it afterwards."""
    path = Path(tempfile.mkdtemp(prefix="windrow-test-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
