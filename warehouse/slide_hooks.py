"""What follows a slide: synopses and views, which change in the very transaction that moves a stream's clock.

The work (reading the new rows, computing, writing files) is done under the stream's lock and outside LMDB, before the
commit; the commit only puts down what was prepared. A slide whose follower fails does not happen.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import StreamEntry, StreamState
from windrow.indexes.row_model import Int64s
from windrow.indexes.segments import Segment
from windrow.store import Store


@dataclass(frozen=True)
class SlideContext:
    """A slide that is about to be committed."""

    entry: StreamEntry
    state: StreamState
    """As it was before this slide."""
    slide: int
    """The slot that the clock moves to; `state.slide` is where it stands, None before the first."""
    now: int
    """The end of that slot in microseconds."""
    ordinal: int
    """This slide's number among the stream's committed ones; the high bits of its rows' sequence."""
    arrived: tuple[Segment, ...]
    """All rows that it takes in, where they were spooled; also rows ahead of the clock, and ones that have died."""
    segments: tuple[Segment, ...]
    """What was in the cells before it."""
    followers: "tuple[SlideHook, ...]" = ()
    """All kinds there are: a view that moves with this slide is itself followed."""
    timeout: float = 60.0
    """Seconds that the slide may wait for whoever holds what it needs."""
    spooled: tuple[int, ...] | None = None
    """The numbers of the spooled files that `arrived` is all of; None if the rows come from elsewhere, as a view's."""


class Contribution(Protocol):
    """What a follower adds to the slide's transaction."""

    @property
    def files(self) -> Sequence[str]:
        """Published files that `commit` names; they are removed again if the transaction fails."""

    def commit(self, tables: Tables) -> None:
        """Put down what was prepared."""


PrepareContribution = Callable[[Store, SlideContext], AbstractContextManager[Contribution | None]]
"""Prepares a contribution; what it holds (locks, pins) is let go after the commit."""


class AppendContribution(Protocol):
    """What an append adds to its transaction, so that the slide has less to do."""

    def commit(self, tables: Tables, stream: int, spool: int) -> None:
        """Put it down beside a spooled file, which has the number `spool` in its stream."""


PrepareAppend = Callable[[Store, StreamEntry, pa.Table, Int64s], AppendContribution | None]
"""Given a stream, rows that are about to be spooled, and the event slot of each; works on memory only."""


@dataclass(frozen=True)
class SlideHook:
    """One kind of follower."""

    table: str
    """The catalog's table that lists what follows a stream, under keys that begin with the stream's number."""
    load: Callable[[], PrepareContribution]
    """Imports what does the work: most slides need none of it."""
    needs: "Callable[[Tables, StreamEntry, int], int | None] | None" = None
    """Given a stream and where its clock goes: what expires after which time must stay, though it is dead by then."""
    tally: Callable[[], PrepareAppend] | None = None
    """Imports what appends do for it, if they do anything."""

    def concerns(self, tables: Tables, stream: int) -> bool:
        """True if anything of this kind follows the stream."""
        return next(iter(tables.raw_items(self.table, catalog_key(stream))), None) is not None


def find_removal_limit(
    tables: Tables, followers: Sequence[SlideHook], entry: StreamEntry, slide: int
) -> tuple[int, int] | None:
    """The slot, and its end, up to which dead rows may go when the stream slides to `slide`; None: all of them."""
    model = entry.definition.model
    asked = [follower.needs(tables, entry, model.slot_end(slide)) for follower in followers if follower.needs]
    times = [time for time in asked if time is not None]
    slot = model.last_slot(min(times)) if times else slide
    return (slot, model.slot_end(slot)) if slot < slide else None


@contextmanager
def prepare_contributions(
    store: Store, followers: Sequence[SlideHook], moving: SlideContext
) -> Iterator[list[Contribution]]:
    """The contributions of all followers of a slide."""
    with ExitStack() as held:
        prepared = [held.enter_context(follower.load()(store, moving)) for follower in followers]
        yield [contribution for contribution in prepared if contribution is not None]
