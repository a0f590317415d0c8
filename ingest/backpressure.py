"""Back-pressure: a writer waits, and logs it, while the spool holds more bytes than allowed.

No row is dropped. A source that the stream waits for is never held back, because then neither could go on.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from windrow.catalog.environment import Tables, catalog_key
from windrow.errors import BusyError
from windrow.row_spool import list_files, list_waiting
from windrow.snapshot import load_stream
from windrow.times import format_time
from windrow.warehouse import Warehouse

log = logging.getLogger("windrow.ingest")
# Seconds. Pauses between two looks at the spool double, so that waiting costs little; none of these was benchmarked.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_WARNING_INTERVAL = 10.0
_SLIDE_TIMEOUT = 1.0
"""How long to wait for another slide of the same stream."""


@dataclass(frozen=True)
class SpoolState:
    """The size of a stream's spool, and the sources that the stream waits for."""

    bytes: int
    waiting_for: tuple[str, ...]
    now: int | None


def read_spool_state(warehouse: Warehouse, stream: str) -> SpoolState:
    """Read the state of a stream's spool from the catalog."""
    store = warehouse._store

    def read(tables: Tables) -> SpoolState:
        view = load_stream(store, tables, stream)
        key = catalog_key(view.entry.id)
        size = sum(record.bytes for _, record in list_files(tables, key))
        size += sum(waiting.head.bytes for waiting in list_waiting(tables, key))
        return SpoolState(size, view.progress().waiting_for(), view.now)

    return store.catalog.read(read)


def wait_for_spool_space(
    warehouse: Warehouse,
    stream: str,
    source: str,
    limit: int | None,
    *,
    slide: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until at most `limit` bytes are spooled, sliding where `slide` allows; False if `stopping` became true."""
    if limit is None:
        return True
    pause, warned = _FIRST_PAUSE, 0.0
    while not stopping():
        state = read_spool_state(warehouse, stream)
        if state.bytes <= limit or source in state.waiting_for:
            return True
        if slide and try_slide(warehouse, stream):
            continue
        if time.monotonic() - warned >= _WARNING_INTERVAL:
            warned = time.monotonic()
            reason = f"it waits for source {', '.join(state.waiting_for)}" if state.waiting_for else "nobody slides it"
            log.warning(
                "stream %r has %.1f MB spooled, more than max_spool_bytes (%.1f MB): source %r waits; now is %s, %s",
                stream, state.bytes / 1e6, limit / 1e6, source, format_time(state.now), reason,
            )  # fmt: skip
        warehouse._store.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    return False


def try_slide(warehouse: Warehouse, stream: str) -> bool:
    """Slide as far as the sources allow; False if the clock could not move or another writer slides."""
    try:
        return warehouse.slide(stream, timeout=_SLIDE_TIMEOUT).moved
    except BusyError:
        return False
