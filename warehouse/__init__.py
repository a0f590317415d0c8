"""Windrow: a disk-archived sliding-window warehouse.

Names are imported when they are first used, so that ``windrow --help`` does not wait for Arrow.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from windrow.errors import (
    BatchConflictError,
    BusyError,
    ClockError,
    ClosedError,
    ConfinementError,
    DamageError,
    DefinitionError,
    FormatError,
    InUseError,
    InvalidNameError,
    QueryError,
    SchemaError,
    SearchKeyError,
    SourceBehindError,
    StorageError,
    StreamExistsError,
    UnknownQueryError,
    UnknownSourceError,
    UnknownStreamError,
    UnknownTableError,
    ViewError,
    WindowError,
    WindrowError,
)

if TYPE_CHECKING:
    from windrow.adoption import Adoption
    from windrow.append import AppendReport
    from windrow.indexes.partitioners import Index
    from windrow.relayout import RelayoutReport
    from windrow.slide import SlideReport
    from windrow.snapshot import Snapshot
    from windrow.warehouse import Warehouse
else:
    _HOMES = {
        "AppendReport": "windrow.append",
        "RelayoutReport": "windrow.relayout",
        "Index": "windrow.indexes.partitioners",
        "SlideReport": "windrow.slide",
        "Snapshot": "windrow.snapshot",
        "Warehouse": "windrow.warehouse",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'windrow' has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


__version__ = "0.1.0"


def open(path: str | os.PathLike[str], **options: Any) -> "Warehouse":  # noqa: A001
    """Open the warehouse in the folder `path`, creating it if it is missing; see `Warehouse` for the options."""
    from windrow.warehouse import Warehouse

    return Warehouse(os.fspath(path), **options)


def adopt(path: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None) -> "Adoption":
    """Make a copied or moved folder, whose catalog lies elsewhere, a warehouse of its own; see `windrow.adoption`."""
    from windrow.adoption import adopt

    return adopt(path, catalog)


__all__ = [
    "AppendReport",
    "BatchConflictError",
    "BusyError",
    "ClockError",
    "ClosedError",
    "ConfinementError",
    "DamageError",
    "DefinitionError",
    "FormatError",
    "InUseError",
    "Index",
    "InvalidNameError",
    "QueryError",
    "RelayoutReport",
    "SchemaError",
    "SearchKeyError",
    "SlideReport",
    "Snapshot",
    "SourceBehindError",
    "StorageError",
    "StreamExistsError",
    "UnknownQueryError",
    "UnknownSourceError",
    "UnknownStreamError",
    "UnknownTableError",
    "ViewError",
    "Warehouse",
    "WindowError",
    "WindrowError",
    "adopt",
    "open",
]
