"""A description of the machine and the versions of a run, so that its figures can be judged later."""

import datetime as dt
import os
import platform
import sqlite3
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("windrow", "numpy", "pyarrow", "duckdb", "lmdb", "chdb", "deltalake", "pyspark", "polars")


def describe(scratch: Path) -> dict[str, Any]:
    """The machine, the versions, the load now, and the code's revision if git knows it."""
    return {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(scratch),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "revision": _revision(),
    }


def summarise(machine: dict[str, Any]) -> str:
    """One line for a report."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['at'][:10]}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_bytes'] >> 30} GiB, {machine['file_system']}, {machine['system']}, "
        f"load {machine['load'][0]:.1f} at the start; "
        f"Python {machine['python']}, {packages}, SQLite {machine['sqlite']}."
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _first(path: str, field: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), None)


def _file_system(path: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    target = path.resolve()
    held = [(len(Path(mount[1]).parts), mount[2]) for mount in mounts if target.is_relative_to(mount[1])]
    return max(held)[1] if held else "unknown file system"


def _revision() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None
