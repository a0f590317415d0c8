"""Keeps the files of a data source read pinned: Spark plans such a read in a process that ends before the read begins.

A small process holds the pin instead, until Spark's driver is gone or the time that was asked for has passed.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.snapshot import Snapshot

_LOOK_EVERY = 0.5


def keep(snapshot: "Snapshot", root: Path, micros: int) -> None:
    """Let another process pin what `snapshot` pins; the caller may then let go."""
    store = snapshot.store
    if not store.catalog.writable:
        return
    pin = store.catalog.folder / "pins" / store.unique()
    command = [
        sys.executable,
        str(Path(__file__)),
        str(pin),
        str(snapshot.version),
        str(os.getppid()),
        str(micros / 1e6),
    ]
    keeper = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=root,
    )
    assert keeper.stdout is not None
    with keeper.stdout as said:
        if said.readline().strip() != b"pinned":
            raise OSError(f"the process that should pin {root} for Spark did not start")


def _hold(pin: str, version: str, parent: str, seconds: str) -> None:
    """Runs in the keeper: as `HeldFile` does, without importing it."""
    import fcntl

    path = Path(pin)
    hidden = path.with_name(f".{path.name}")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, version.encode())
    hidden.rename(path)
    print("pinned", flush=True)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and Path(f"/proc/{parent}").exists():
        time.sleep(_LOOK_EVERY)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    _hold(*sys.argv[1:])
