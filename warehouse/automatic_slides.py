"""Slides by the wall clock, for installations without a scheduler: `windrow serve --slide` makes them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from windrow.catalog.lookups import find_stream, refuse_view
from windrow.errors import SourceBehindError, WindrowError
from windrow.times import to_datetime

if TYPE_CHECKING:
    from windrow.slide import SlideReport
    from windrow.warehouse import Warehouse


class AutomaticSlides:
    """Keeps streams at the wall clock less a lag, in which late rows may still come.

    Args:
        warehouse: Whose streams.
        streams: Their names.
        lag: Microseconds by which they stay behind.
        slid: Called with each slide.
        say: Called with each sentence about what went wrong, once until it changes.
    """

    def __init__(
        self,
        warehouse: "Warehouse",
        streams: Sequence[str],
        lag: int,
        slid: "Callable[[SlideReport], None]",
        say: Callable[[str], None],
    ) -> None:
        self._warehouse = warehouse
        self._streams = tuple(dict.fromkeys(streams))
        self._lag = lag
        self._slid = slid
        self._say = say
        self._problems: dict[str, str] = {}
        for name in self._streams:
            entry, _ = warehouse._store.catalog.read(partial(find_stream, name=name))
            refuse_view(entry, "slid")

    def run(self) -> None:
        """Slide what is due; a stream that waits for a source goes as far as its sources allow."""
        for name in self._streams:
            try:
                self._slide(name)
            except WindrowError as error:
                if self._problems.get(name) != str(error):
                    self._say(f"{name} was not slid: {error}")
                self._problems[name] = str(error)
            else:
                self._problems.pop(name, None)

    def _slide(self, name: str) -> None:
        store = self._warehouse._store
        entry, state = store.catalog.read(lambda tables: find_stream(tables, name))
        model = entry.definition.model
        slot = model.last_slot(store.clock() - self._lag)
        if state.slide is not None and slot <= state.slide:
            return
        behind = None
        try:
            report = self._warehouse.slide(name, to_datetime(model.slot_end(slot)))
        except SourceBehindError as error:
            behind = error
            report = self._warehouse.slide(name)
        if report.moved:
            self._slid(report)
        if behind is not None:
            raise behind
