"""The executors of a small cluster on this machine, for tests that kill them."""

import contextlib
from pathlib import Path


def find_executors(driver: int) -> list[int]:
    """The processes of executors that a driver's JVM has started, and theirs."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    executors, waiting = [], [driver]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
                    executors.append(child)
    return executors
