"""The ledger of gaps: what is missing of each source's event time, why, and by what it was closed.

Slides, appends, heartbeats, repairs and restores write it inside their own transactions; readers find the open gaps of
a stream, or of all inputs of a view, in their snapshot and measure windows by them. See docs/gaps.md.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream, refuse_view, resolve_source
from windrow.catalog.records import GapEntry, StreamEntry, StreamGaps, ViewEntry
from windrow.errors import GapError
from windrow.history import record_version
from windrow.indexes.row_model import Int64s

if TYPE_CHECKING:
    from windrow.store import Store

BEFORE_FIRST = "before first data"
COVERABLE = ("failed", "behind", BEFORE_FIRST, "restored", "declared")
"""Kinds of gaps that a source can close by saying that an interval is whole."""
EVER = -(1 << 63)
"""Before all times."""
_PRUNED_AT_ONCE = 64
"""Closed gaps that one slide forgets at most."""


@dataclass(frozen=True)
class Gap:
    """What is missing: (start, end] of the event time of a stream's source."""

    id: int | None
    """None if it is computed: the part of a window whose rows have expired."""
    stream: str
    source: str | None
    """None: all sources."""
    start: dt.datetime | None
    """None: since ever."""
    end: dt.datetime
    kind: str
    """failed, behind, before first data, expired, damaged, restored or declared."""
    cause: str
    opened: dt.datetime | None = None
    closed: dt.datetime | None = None
    closed_by: str = ""
    rows: int = 0
    """Rows that were lost, of a damaged file."""
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        since = "" if self.start is None else f"after {times.format_time(times.parse_instant(self.start))} "
        what = f"{self.kind}, {self.source}" if self.source else self.kind
        return f"{what}: {since}up to {times.format_time(times.parse_instant(self.end))} ({self.cause})"


class Ledger:
    """The gaps of one stream, in a transaction that changes them.

    Args:
        tables: Of the transaction.
        entry: The stream.
        ordinal: The slide that changes belong to.
        wall_time: What the wall clock shows.
    """

    def __init__(self, tables: Tables, entry: StreamEntry, ordinal: int, wall_time: int) -> None:
        self._tables = tables
        self._entry = entry
        self._stream = entry.id
        self._sources = entry.definition.sources
        self._ordinal = ordinal
        self._at = wall_time
        self.open: dict[int, GapEntry] = {gap.id: gap for gap in _read(tables, entry.id, closed=False)}

    def add(
        self, kind: str, source: str, start: int | None, end: int, cause: str, rows: int = 0, files: Sequence[str] = ()
    ) -> GapEntry:
        """Open a gap."""
        number = self._tables.allocate("gaps") + 1
        gap = GapEntry(
            id=number, source=source, start=start, end=end, kind=kind, cause=cause, opened=self._at,
            changed=self._ordinal, rows=rows, files=tuple(files),
        )  # fmt: skip
        self.put(gap)
        return gap

    def put(self, gap: GapEntry) -> None:
        """Record a gap that is open, if it differs from what is recorded."""
        if self.open.get(gap.id) != gap:
            self.open[gap.id] = gap
            self._tables.put("gaps", catalog_key(self._stream, 0, gap.id), gap)
            self._note()

    def _note(self) -> None:
        """Gaps are part of what a stream with history shows from a commit on."""
        note_version(self._tables, self._entry)

    def close(self, gap: GapEntry, by: str) -> None:
        """Close a gap."""
        self._tables.delete("gaps", catalog_key(self._stream, 0, gap.id))
        self.open.pop(gap.id, None)
        closed = replace(gap, closed=self._at, closed_by=by, changed=self._ordinal)
        self._tables.put("gaps", catalog_key(self._stream, 1, gap.id), closed)
        self._note()

    def cover(self, source: str, start: int, end: int, by: str) -> None:
        """Close what lies in (start, end] of a source's gaps; what sticks out stays open."""
        for gap in list(self.open.values()):
            after = EVER if gap.after is None else gap.after
            if gap.source not in (source, "") or gap.kind not in COVERABLE or start >= gap.end or end <= after:
                continue
            if not gap.source and self._sources:  # one source speaks for itself alone
                for other in (name for name in self._sources if name != source):
                    number = self._tables.allocate("gaps") + 1
                    self.put(replace(gap, id=number, source=other, changed=self._ordinal))
                gap = replace(gap, source=source)  # noqa: PLW2901
            before = [(gap.after, start)] if start > after else []
            rest = before + ([(end, gap.end)] if end < gap.end else [])
            covered = start if before else gap.after, min(end, gap.end)
            # The first piece that stays open keeps the number; if none does, what is closed has it.
            numbers = [gap.id, *(self._tables.allocate("gaps") + 1 for _ in rest)]
            pieces = [
                replace(gap, id=number, start=first, end=last, reached=None, changed=self._ordinal)
                for number, (first, last) in zip(numbers, [*rest, covered], strict=True)
            ]
            for piece in pieces[:-1]:
                self.put(piece)
            self.close(pieces[-1], by)

    def add_failure(self, source: str, progress: int | None, now: int, cause: str) -> None:
        """A source failed at `progress`: open what no gap of its failures holds up to `now`, be it open or closed."""
        gaps = (*self.open.values(), *_read(self._tables, self._stream, closed=True))
        failures = (gap for gap in gaps if gap.kind == "failed" and gap.source == source)
        failed_spans = sorted((EVER if gap.start is None else gap.start, gap.end) for gap in failures)
        reach = EVER if progress is None else progress
        for start, end in (*failed_spans, (now, now)):
            if start > reach:
                self.add("failed", source, None if reach == EVER else reach, start, cause)
            reach = max(reach, end)

    def shortened(self, gap: GapEntry, reached: int | None, end: int) -> GapEntry:
        """A gap that ends at `end` now, and in which the source has come to `reached`."""
        changed = gap.changed if reached == gap.reached else self._ordinal
        return replace(gap, reached=reached, end=end, changed=changed)

    def keep(self, source: str, dead: Int64s) -> None:
        """Rows of a source were rejected as dead: its progress cannot close the gaps that their times are in."""
        for gap in list(self.open.values()):
            if gap.kind == "behind" and gap.source == source and not gap.kept and _meets(gap, dead):
                self.put(replace(gap, kept=True))

    def prune(self, horizon: int | None) -> None:
        """Forget gaps of which no row can be live any more."""
        if horizon is None:
            return
        closed = next(iter(self._tables.items("gaps", catalog_key(self._stream, 1))), None)
        if (
            min((gap.end for gap in (*self.open.values(), *((closed[1],) if closed else ()))), default=horizon + 1)
            > horizon
        ):
            return
        horizon -= find_logged(self._tables, self._stream)
        for gap in [gap for gap in self.open.values() if gap.end <= horizon]:
            self._tables.delete("gaps", catalog_key(self._stream, 0, gap.id))
            del self.open[gap.id]
        obsolete: list[bytes] = []
        for key, gap in self._tables.items("gaps", catalog_key(self._stream, 1)):
            if gap.end > horizon or len(obsolete) == _PRUNED_AT_ONCE:
                break
            obsolete.append(key)
        for key in obsolete:
            self._tables.delete("gaps", key)


def _meets(gap: GapEntry, ascending: Int64s) -> bool:
    first, last = np.searchsorted(ascending, (EVER if gap.after is None else gap.after, gap.end), "right")
    return bool(first < last)


def _read(tables: Tables, stream: int, *, closed: bool) -> list[GapEntry]:
    return [gap for _, gap in tables.items("gaps", catalog_key(stream, int(closed)))]


def read_gaps(tables: Tables, entry: StreamEntry) -> tuple[StreamGaps, ...]:
    """The open gaps of a stream, or of all inputs of a view."""
    if not entry.definition.inputs:
        gaps = tuple(_read(tables, entry.id, closed=False))
        return (StreamGaps(stream=entry.definition.name, sources=entry.definition.sources, gaps=gaps),)
    plan: ViewEntry = tables.get("plans", catalog_key(entry.id))
    if plan.results:
        return (_read_gaps_of_runs(tables, entry, plan),)
    by_stream: dict[str, StreamGaps] = {}
    for name, number in plan.inputs.items():
        source, state = find_stream(tables, name)
        ordinal = tables.get("views", catalog_key(number, entry.id)).seen
        reach = plan.reach.get(name, 0)
        for part in read_gaps(tables, source):
            gaps = part.gaps
            if ordinal < state.ordinal and not source.definition.inputs:
                gaps = _as_of(gaps, _read(tables, number, closed=True), ordinal)
            total = None if reach is None or part.reach is None else part.reach + reach
            if plan.since is not None:
                part = _since_creation(part, entry, plan, gaps, total)  # noqa: PLW2901
                gaps = part.gaps
            other = by_stream.get(part.stream)
            if other is None or (other.reach is not None and (total is None or other.reach < total)):
                by_stream[part.stream] = replace(part, gaps=gaps, reach=total)
    return tuple(by_stream.values())


def _since_creation(
    part: StreamGaps, entry: StreamEntry, view: ViewEntry, gaps: tuple[GapEntry, ...], reach: int | None
) -> StreamGaps:
    """An input of a log: of what came about before the log's first clock it has only what lived then."""
    end = (view.since or 0) - (reach or 0)
    cause = f"view {view.name!r} keeps results from its creation on"
    return replace(
        part,
        gaps=(*gaps, GapEntry(id=0, source="", start=None, end=end, kind="expired", cause=cause, opened=entry.created)),
    )


def find_logged(tables: Tables, stream: int) -> int:
    """How long views above a stream keep results at most, whatever becomes of its rows: so long its gaps are needed."""
    longest = 0
    for key, _ in tables.raw_items("views", catalog_key(stream)):
        number = decode_last_int(key)
        view: ViewEntry = tables.get("plans", catalog_key(number))
        longest = max(longest, view.keep or 0, find_logged(tables, number))
    return longest


def note_version(tables: Tables, entry: StreamEntry) -> None:
    """Put down what a stream with history shows from the commit under way on, when all else of it is put down."""
    if entry.definition.history is not None:
        record_version(tables, entry, read_gaps(tables, entry))


def _read_gaps_of_runs(tables: Tables, entry: StreamEntry, plan: ViewEntry) -> StreamGaps:
    """What a view of results does not know: what the runs did not know that it was computed from."""
    slide = tables.get("states", catalog_key(entry.id)).slide
    gaps: tuple[GapEntry, ...] = ()
    if slide is not None and not plan.complete:
        end = entry.definition.model.slot_end(slide)
        cause = f"runs of {', '.join(plan.results)} had incomplete windows"
        gaps = (GapEntry(id=0, source="", start=None, end=end, kind="runs", cause=cause, opened=entry.created),)
    return StreamGaps(stream=entry.definition.name, sources=(), gaps=gaps, share=plan.coverage)


def _as_of(open_gaps: Iterable[GapEntry], closed: Iterable[GapEntry], ordinal: int) -> tuple[GapEntry, ...]:
    """The gaps of a view that has not yet seen the slide which closed or shortened them."""
    gaps = [replace(gap, reached=None) if gap.changed > ordinal else gap for gap in open_gaps]
    return (*gaps, *(replace(gap, closed=None) for gap in closed if gap.changed > ordinal))


def to_gap(stream: str, gap: GapEntry) -> Gap:
    """A gap as users see it."""

    def instant(time: int | None) -> dt.datetime | None:
        return None if time is None else times.to_datetime(time)

    start = gap.start if gap.closed is not None else gap.after
    return Gap(
        gap.id or None, stream, gap.source or None, instant(start), times.to_datetime(gap.end), gap.kind, gap.cause,
        instant(gap.opened), instant(gap.closed), gap.closed_by, gap.rows, gap.files,
    )  # fmt: skip


def list_gaps(store: "Store", stream: str | None, *, closed: bool) -> list[Gap]:
    """The gaps of a stream, or of all; of a view, those of its inputs."""

    def read(tables: Tables) -> list[Gap]:
        if stream is None:
            entries = [entry for _, entry in tables.items("streams") if not entry.definition.inputs]
        else:
            entries = [find_stream(tables, stream)[0]]
        chosen = [
            to_gap(part.stream, gap) for entry in entries for part in read_gaps(tables, entry) for gap in part.gaps
        ]
        for part in (part for entry in entries if closed for part in read_gaps(tables, entry)):
            number = find_stream(tables, part.stream)[0].id
            chosen += [to_gap(part.stream, gap) for gap in _read(tables, number, closed=True)]
        return sorted(chosen, key=lambda gap: gap.id or 0)

    return store.catalog.read(read)


def declare_gap(store: "Store", stream: str, source: str | None, start: int | None, end: int, cause: str) -> int:
    """Record what an operator knows to be missing; gives the gap's number."""
    store.check_writable()
    if start is not None and start >= end:
        raise GapError(
            f"a gap after {times.format_time(start)} up to {times.format_time(end)} is empty; start it earlier"
        )
    with store.catalog.write() as tables:
        entry, state = find_stream(tables, stream)
        refuse_view(entry, "given gaps")
        name = "" if source is None else resolve_source(entry, source)
        ledger = Ledger(tables, entry, state.ordinal, store.clock())
        return ledger.add("declared", name, start, end, cause or "declared by an operator").id


def close_gap(store: "Store", number: int, note: str) -> None:
    """Close a gap, because an operator knows better."""
    store.check_writable()
    if not isinstance(number, int) or isinstance(number, bool):
        raise GapError(f"there is no gap {number!r}; see wh.gaps() or 'windrow stream gaps'")
    with store.catalog.write() as tables:
        for _, entry in list(tables.items("streams")):
            if (gap := tables.get("gaps", catalog_key(entry.id, 1, number))) is not None:
                closed = times.format_time(gap.closed or 0)
                raise GapError(
                    f"gap {number} of stream {entry.definition.name!r} was closed at {closed} ({gap.closed_by})"
                )
            if tables.raw("gaps", catalog_key(entry.id, 0, number)) is not None:
                _, state = find_stream(tables, entry.definition.name)
                ledger = Ledger(tables, entry, state.ordinal, store.clock())
                ledger.close(ledger.open[number], f"operator: {note}" if note else "operator")
                return
    raise GapError(f"there is no gap {number!r}; see wh.gaps() or 'windrow stream gaps'")
