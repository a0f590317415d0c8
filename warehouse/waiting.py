"""Waiting for a stream's clock, whoever moves it."""

from windrow.catalog.lookups import find_stream
from windrow.errors import BusyError
from windrow.snapshot import load_view
from windrow.store import Store
from windrow.times import show

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


def wait_for(store: Store, stream: str, up_to: int, timeout: float | None) -> None:
    """Return when the clock has reached `up_to`; say who holds it up if it has not within `timeout` seconds."""
    waited, pause, seen = 0.0, _FIRST_PAUSE, -1
    while True:
        latest = store.catalog.last_transaction()
        if latest != seen:
            seen, pause = latest, _FIRST_PAUSE
            entry, state = store.catalog.read(lambda tables: find_stream(tables, stream))
            if state.slide is not None and entry.definition.model.slot_end(state.slide) >= up_to:
                return
        if timeout is not None and waited >= timeout:
            view = store.catalog.read(lambda tables: load_view(store, tables, stream))
            waiting = view.progress().waiting_for()
            why = f"it waits for {', '.join(waiting)}" if waiting else "nobody has slid it"
            raise BusyError(
                f"stream {stream!r} has reached {show(view.now)}, not {show(up_to)}, within {timeout:g} s: {why}"
            )
        store.sleep(pause)
        waited += pause
        pause = min(pause * 2, _LONGEST_PAUSE)
