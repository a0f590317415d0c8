"""How the warehouse and the serving process are: pins and who holds them, work that waits, the disk, versions."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow import times
from windrow.background import background_of
from windrow.catalog.environment import ENGINE, Tables
from windrow.definitions import is_hidden
from windrow.locks import is_held
from windrow.service.role_session import RoleSession
from windrow.store import Store

if TYPE_CHECKING:
    from windrow.service.http_api import Service

_PACKAGES = ("duckdb", "pyarrow", "lmdb", "numpy", "starlette", "uvicorn", "vl-convert-python")


def versions() -> dict[str, str | None]:
    """Of Windrow and what it stands on; None for what is not installed."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("windrow", *_PACKAGES):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    return installed


def read_health(service: "Service", session: RoleSession) -> dict[str, Any]:
    """The page; who holds pins and what failed only for operators and those from whom nothing is hidden."""
    store, counts = service.store, service.counts
    tells = not session.role.is_restricted or "operate" in session.role.rights

    def read(tables: Tables) -> tuple[int, int, int, int]:
        waiting = sum(len(record.files) for _, record in tables.items("reclaim"))
        streams = sum(not is_hidden(key.decode()) for key, _ in tables.raw_items("streams"))
        return tables.version, waiting, streams, tables.count("queries")

    commit, waiting, streams, queries = store.catalog.read(read)
    disk = shutil.disk_usage(store.root)
    return {
        "warehouse": store.root.name,
        "path": str(store.root) if tells else None,
        "at": times.format_time(store.clock()),
        "commit": commit,
        "format": store.catalog.format,
        "engine": ENGINE,
        "streams": streams if tells else None,
        "queries": queries if tells else None,
        "catalog_bytes": store.catalog.size(),
        "disk": {"free": disk.free, "total": disk.total},
        "pins": list_pins(store, commit) if tells else None,
        "reclaimable_files": waiting,
        "background": list(background_of(store).waiting()) if tells else None,
        "statements": {"running": service.pool.running, "waiting": service.pool.waiting, "workers": service.pool.size},
        "listeners": service.events.listeners,
        "leading": counts.leading,
        "started": times.format_time(counts.started) if counts.started else None,
        "process": os.getpid() if tells else None,
        "rounds": counts.rounds,
        "runs": sum(counts.runs.values()),
        "errors": counts.errors,
        "failing": counts.failing if tells else counts.failing is not None,
        "last_error": counts.last_error if tells else None,
        "versions": versions(),
    }


def list_pins(store: Store, commit: int) -> list[dict[str, Any]]:
    """The pins that living readers hold: of which commit, since when, and by which process."""
    folder: Path = store.pins.folder
    idle = store.pins.idle()
    pins = []
    for name in os.listdir(folder) if folder.is_dir() else ():
        version, _, rest = name.partition("-")
        if name.startswith(".") or name in idle or not version.isdigit() or not is_held(folder / name):
            continue
        process, since = (int(part, 16) for part in rest.split("-")[:2])
        pins.append({
            "commit": int(version),
            "behind": commit - int(version),
            "process": process,
            "program": _program(process),
            "made": times.format_time(since),
        })  # fmt: skip
    return sorted(pins, key=lambda pin: (pin["commit"], pin["process"]))


def _program(process: int) -> str | None:
    """What a process of this machine is called; None if it cannot be told."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return " ".join(Path(word.decode(errors="replace")).name for word in words[:3] if word)[:80] or None
