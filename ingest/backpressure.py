"""Back-pressure: a writer waits, and says so, while more is spooled than the stream's slides have taken in.

Nothing is dropped, and a source that the stream itself waits for is never held back, or nobody could go on.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from windrow.catalog.environment import Tables, catalog_key
from windrow.errors import BusyError
from windrow.snapshot import load_stream
from windrow.times import format_time
from windrow.warehouse import Warehouse

log = logging.getLogger("windrow.ingest")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_WARNING_INTERVAL = 10.0


@dataclass(frozen=True)
class SpoolState:
    """How much a stream has spooled, and whom it waits for."""

    bytes: int
    waiting_for: tuple[str, ...]
    now: int | None


def read_spool_state(warehouse: Warehouse, stream: str) -> SpoolState:
    """Look at a stream's spool."""
    store = warehouse._store

    def look(tables: Tables) -> SpoolState:
        view = load_stream(store, tables, stream)
        size = sum(record.bytes for _, record in tables.items("spool", catalog_key(view.entry.id)))
        return SpoolState(size, view.progress().waiting_for(), view.now)

    return store.catalog.read(look)


def wait_for_spool_space(
    warehouse: Warehouse,
    stream: str,
    source: str,
    limit: int | None,
    *,
    slide: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Return when at most `limit` bytes are spooled, sliding if that helps; False if `stopping` said so meanwhile."""
    if limit is None:
        return True
    pause, said = _FIRST_PAUSE, 0.0
    while not stopping():
        found = read_spool_state(warehouse, stream)
        if found.bytes <= limit or source in found.waiting_for:
            return True
        if slide and try_slide(warehouse, stream):
            continue
        if time.monotonic() - said >= _WARNING_INTERVAL:
            said = time.monotonic()
            others = f"it waits for source {', '.join(found.waiting_for)}" if found.waiting_for else "nobody slides it"
            log.warning(
                "stream %r has %.1f MB spooled, more than max_spool_bytes (%.1f MB): source %r waits; now is %s, %s",
                stream, found.bytes / 1e6, limit / 1e6, source, format_time(found.now), others,
            )  # fmt: skip
        warehouse._store.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    return False


def try_slide(warehouse: Warehouse, stream: str, timeout: float = 1.0) -> bool:
    """Slide as far as the sources allow; False if the clock could not move, or somebody else is moving it."""
    try:
        return warehouse.slide(stream, timeout=timeout).moved
    except BusyError:
        return False
