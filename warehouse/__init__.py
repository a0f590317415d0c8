"""Windrow: a disk-archived sliding-window warehouse.

Names are imported when they are first used, so that ``windrow --help`` does not wait for Arrow.
"""

import importlib
import os
import time
from typing import TYPE_CHECKING, Any

from windrow.errors import (
    AccessError,
    BatchConflictError,
    BusyError,
    ClockError,
    ClosedError,
    ConfinementError,
    DamageError,
    DefinitionError,
    FormatError,
    GapError,
    InUseError,
    InvalidNameError,
    QueryError,
    QueryTimeoutError,
    SchemaError,
    SearchKeyError,
    SourceBehindError,
    StorageError,
    StreamExistsError,
    SummaryError,
    UnknownQueryError,
    UnknownSourceError,
    UnknownStreamError,
    UnknownTableError,
    ViewError,
    WindowError,
    WindrowError,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from windrow.adoption import Adoption
    from windrow.advisor import Advice
    from windrow.append import AppendReport
    from windrow.backup import BackupReport, Restored
    from windrow.check import CheckReport
    from windrow.erasure import EraseReport
    from windrow.files import FileSystem
    from windrow.gaps import Gap
    from windrow.indexes.partitioners import Index
    from windrow.publication import Publication
    from windrow.queries.answer import Answer, Explanation
    from windrow.queries.periodic.registry import QueryStatus
    from windrow.queries.periodic.runner import RunReport
    from windrow.queries.synopses.summaries import Summary
    from windrow.queries.views.ddl import View
    from windrow.reclaim import GcReport
    from windrow.relayout import RelayoutReport
    from windrow.repair import RepairReport
    from windrow.service.client import RemoteWarehouse
    from windrow.slide import SlideReport
    from windrow.snapshot import Snapshot
    from windrow.status import StreamStatus, WarehouseStatus
    from windrow.times import Duration
    from windrow.warehouse import Warehouse
    from windrow.windows import Window
else:
    _LAZY_MODULES = {
        "Adoption": "windrow.adoption",
        "Advice": "windrow.advisor",
        "Answer": "windrow.queries.answer",
        "AppendReport": "windrow.append",
        "BackupReport": "windrow.backup",
        "CheckReport": "windrow.check",
        "Explanation": "windrow.queries.answer",
        "EraseReport": "windrow.erasure",
        "Gap": "windrow.gaps",
        "GcReport": "windrow.reclaim",
        "Index": "windrow.indexes.partitioners",
        "QueryStatus": "windrow.queries.periodic.registry",
        "Publication": "windrow.publication",
        "RelayoutReport": "windrow.relayout",
        "RepairReport": "windrow.repair",
        "RemoteWarehouse": "windrow.service.client",
        "Restored": "windrow.backup",
        "RunReport": "windrow.queries.periodic.runner",
        "SlideReport": "windrow.slide",
        "Snapshot": "windrow.snapshot",
        "StreamStatus": "windrow.status",
        "Summary": "windrow.queries.synopses.summaries",
        "View": "windrow.queries.views.ddl",
        "Warehouse": "windrow.warehouse",
        "WarehouseStatus": "windrow.status",
        "Window": "windrow.windows",
    }

    def __getattr__(name: str) -> Any:
        if name not in _LAZY_MODULES:
            raise AttributeError(f"module 'windrow' has no attribute {name!r}")
        value = getattr(importlib.import_module(_LAZY_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)


__version__ = "0.1.0"


def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    catalog: str | os.PathLike[str] | None = None,
    read_only: bool = False,
    create: bool = True,
    clock: "Callable[[], int] | None" = None,
    sleep: "Callable[[float], None]" = time.sleep,
    files: "FileSystem | None" = None,
    randomness: "random.Random | None" = None,
    cache_bytes: int | None = None,
    memory: str | None = None,
    spill: str | None = None,
    allow_hosts: "Sequence[str]" = (),
    allow_commands: "Sequence[str]" = (),
    segments: str | None = None,
    segment_cache: str | None = None,
    copy_every: "Duration | None" = None,
    copy_commits: int | None = None,
) -> "Warehouse":
    """Open the warehouse in the folder `path`, creating it if it is missing; see `Warehouse` for the options."""
    from windrow.warehouse import Warehouse

    return Warehouse(
        os.fspath(path),
        catalog=None if catalog is None else os.fspath(catalog),
        read_only=read_only,
        create=create,
        clock=clock,
        sleep=sleep,
        files=files,
        randomness=randomness,
        cache_bytes=cache_bytes,
        memory=memory,
        spill=spill,
        allow_hosts=allow_hosts,
        allow_commands=allow_commands,
        segments=segments,
        segment_cache=segment_cache,
        copy_every=copy_every,
        copy_commits=copy_commits,
    )


def adopt(path: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None) -> "Adoption":
    """Make a copied or moved folder, whose catalog lies elsewhere, a warehouse of its own; see `windrow.adoption`."""
    from windrow.adoption import adopt

    return adopt(path, catalog)


def connect(address: str, token: str | None = None, certificates: str | None = None) -> "RemoteWarehouse":
    """Connect to a server's Flight SQL port, such as ``grpc+tls://host``; needs ``windrow[client]``."""
    try:
        from windrow.service.client import connect
    except ImportError as error:
        raise AccessError(
            f"asking a server needs more packages ({error.name}): pip install 'windrow[client]'"
        ) from None

    return connect(address, token, certificates)


def restore(
    backup: str | os.PathLike[str], path: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None
) -> "Restored":
    """Make a warehouse out of a backup, in a new or empty folder; see `windrow.backup`.

    Or out of its object store, whose URI stands in the place of the backup; see `windrow.object_store.restoration`.
    """
    if isinstance(backup, str) and "://" in backup:
        from windrow.object_store.restoration import restore_from_store

        return restore_from_store(backup, path, catalog)
    from windrow.backup import restore

    return restore(backup, path, catalog)


__all__ = [
    "AccessError",
    "Adoption",
    "Advice",
    "Answer",
    "AppendReport",
    "BackupReport",
    "BatchConflictError",
    "BusyError",
    "CheckReport",
    "ClockError",
    "ClosedError",
    "ConfinementError",
    "DamageError",
    "DefinitionError",
    "EraseReport",
    "Explanation",
    "FormatError",
    "Gap",
    "GapError",
    "GcReport",
    "InUseError",
    "Index",
    "InvalidNameError",
    "Publication",
    "QueryError",
    "QueryStatus",
    "QueryTimeoutError",
    "RelayoutReport",
    "RemoteWarehouse",
    "RepairReport",
    "Restored",
    "RunReport",
    "SchemaError",
    "SearchKeyError",
    "SlideReport",
    "Snapshot",
    "SourceBehindError",
    "StorageError",
    "StreamExistsError",
    "StreamStatus",
    "Summary",
    "SummaryError",
    "UnknownQueryError",
    "UnknownSourceError",
    "UnknownStreamError",
    "UnknownTableError",
    "View",
    "ViewError",
    "Warehouse",
    "WarehouseStatus",
    "Window",
    "WindowError",
    "WindrowError",
    "__version__",
    "adopt",
    "connect",
    "open",
    "restore",
]
