"""Keeps the files of a data source read pinned: Spark plans such a read in a process that ends before the read begins.

A small process holds the pin instead, until Spark's driver is gone or the time that was asked for has passed.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.snapshot import Snapshot

_POLL_SECONDS = 0.5


def start_pin_keeper(snapshot: "Snapshot", micros: int) -> None:
    """Let another process pin what `snapshot` pins; the caller may then let go."""
    from windrow import pins

    store = snapshot.store
    if not store.catalog.writable:
        return
    pin = pins.pin_path(store.pins.folder, snapshot.version, store.unique_name())
    # -P: the folder of this file must not stand before the standard library.
    command = [sys.executable, "-P", str(Path(__file__)), str(pin), str(os.getppid()), str(micros / 1e6)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise OSError(f"the process that should pin {store.root} for Spark did not start")


def _hold_pin(pin: str, parent: str, seconds: str) -> None:
    """Runs in the keeper: pins as `HeldFile` does, without importing the package, and goes on in the background."""
    path = Path(pin)
    hidden = path.with_name(f".{path.name}")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    hidden.rename(path)
    if os.fork():
        # The lock is the child's too, and stays.
        os._exit(0)
    os.setsid()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and Path(f"/proc/{parent}").exists():
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    _hold_pin(*sys.argv[1:])
