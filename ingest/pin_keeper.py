"""A process that keeps the files of a data source read pinned, because Spark's planning process ends too early.

The pin is held until Spark's driver has ended or the given time has passed, whichever comes first.
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
    """Let another process pin what `snapshot` pins; the caller may then close the snapshot."""
    from windrow import pins

    store = snapshot.store
    if not store.catalog.writable:
        return
    pin = pins.pin_path(store.pins.folder, snapshot.version, store.unique_name())
    # -P keeps the folder of this file off the import path, where it would come before the standard library.
    command = [sys.executable, "-P", str(Path(__file__)), str(pin), str(os.getppid()), str(micros / 1e6)]
    started = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if started.returncode:
        raise OSError(f"the process that should pin {store.root} for Spark did not start")


def _hold_pin(pin: str, parent: str, seconds: str) -> None:
    """Pin as `HeldFile` does, without importing the package, and go on in the background."""
    path = Path(pin)
    hidden = path.with_name(f".{path.name}")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    hidden.rename(path)
    if os.fork():
        # The child inherits the lock.
        os._exit(0)
    os.setsid()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and Path(f"/proc/{parent}").exists():
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    _hold_pin(*sys.argv[1:])
