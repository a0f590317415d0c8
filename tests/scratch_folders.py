"""Where tests keep their warehouses: in memory, if the machine has such a place. fsync costs nothing there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="windrow-test-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
