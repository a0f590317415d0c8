"""Hooks into appends and slides, by which synopses, views and retained slides change in the same transaction.

A hook prepares its contribution (reads, computes, writes files) under the stream's lock and outside LMDB; the commit
only records it. A slide whose hook fails does not happen.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import StreamEntry, StreamState
from windrow.indexes.manifest import Manifest
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
    hooks: "tuple[SlideHook, ...]" = ()
    """All kinds of hooks: a view that slides with this stream has hooks itself."""
    timeout: float = 60.0
    """Seconds that the slide may wait for a lock."""
    spooled: tuple[int, ...] | None = None
    """The numbers of the spooled files that `arrived` is all of; None if the rows come from elsewhere, as a view's."""
    remaining: Callable[[], Manifest] | None = None
    """Gives what will be in the cells after it, once its merges are written; new segments have stand-in numbers."""


class Contribution(Protocol):
    """What a hook adds to the transaction of a slide."""

    @property
    def files(self) -> Sequence[str]:
        """Published files that `commit` names; they are removed again if the transaction fails."""

    def commit(self, tables: Tables) -> None:
        """Record what was prepared."""


PrepareContribution = Callable[[Store, SlideContext], AbstractContextManager[Contribution | None]]
"""Prepares a contribution; its locks and pins are released after the commit."""


class AppendContribution(Protocol):
    """What a hook adds to the transaction of an append, so that the slide has less to do."""

    def commit(self, tables: Tables, stream: int, spool: int) -> None:
        """Record it for a spooled file, which has the number `spool` in its stream."""


PrepareAppend = Callable[[Store, StreamEntry, pa.Table, Int64s], AppendContribution | None]
"""Given a stream, rows that are about to be spooled, and the event slot of each; works on memory only."""


@dataclass(frozen=True)
class SlideHook:
    """One kind of hook."""

    table: str
    """The catalog's database of what depends on a stream, under keys that begin with the stream's number."""
    load: Callable[[], PrepareContribution]
    """Imports the function that prepares the contribution: most slides need none."""
    needed_after: "Callable[[Tables, StreamEntry, int], int | None] | None" = None
    """Given a stream and its next clock: rows that expire after the returned time must stay, though they are dead."""
    load_append: Callable[[], PrepareAppend] | None = None
    """Imports the function that prepares an append's contribution, if there is one."""
    after_merges: bool = False
    """Whether it needs what `SlideContext.remaining` gives; it is asked last then."""

    def applies_to(self, tables: Tables, stream: int) -> bool:
        """Whether anything of this kind depends on the stream."""
        return next(iter(tables.raw_items(self.table, catalog_key(stream))), None) is not None


def find_removal_limit(
    tables: Tables, hooks: Sequence[SlideHook], entry: StreamEntry, slide: int
) -> tuple[int, int] | None:
    """The slot, and its end, up to which dead rows may be removed by a slide to `slide`; None: all dead rows."""
    model = entry.definition.model
    answers = [hook.needed_after(tables, entry, model.slot_end(slide)) for hook in hooks if hook.needed_after]
    times = [time for time in answers if time is not None]
    slot = model.last_slot(min(times)) if times else slide
    return (slot, model.slot_end(slot)) if slot < slide else None


@contextmanager
def prepare_contributions(
    store: Store, hooks: Sequence[SlideHook], context: SlideContext
) -> Iterator[list[Contribution]]:
    """The contributions of all hooks to a slide."""
    with ExitStack() as stack:
        prepared = [stack.enter_context(hook.load()(store, context)) for hook in hooks]
        yield [contribution for contribution in prepared if contribution is not None]
