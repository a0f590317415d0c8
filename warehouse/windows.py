"""Which window an answer is of, what is missing of it, and how both travel with its rows: as Arrow metadata."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from windrow import times
from windrow.catalog.records import StreamGaps
from windrow.gaps import EVER, Gap, to_gap
from windrow.indexes.bounded_cache import cached_in_findings
from windrow.indexes.selection import WindowBounds

if TYPE_CHECKING:
    from windrow.snapshot import StreamSnapshot

METADATA_KEY = b"windrow"
"""In the metadata of an Arrow schema: JSON of windows, gaps, isolation, staleness and commit."""


@dataclass(frozen=True)
class Window:
    """Which window of a stream an answer is of."""

    stream: str
    clause: str
    slide: int | None
    """The stream's slide number; None before its first slide."""
    start: dt.datetime | None
    """Rows after this time are in the window; None: no lower bound."""
    end: dt.datetime | None
    """Rows up to this time are in it; the stream's clock, or earlier if the window says so."""
    complete: bool
    """Whether nothing is known to be missing: no open gap meets the window."""
    sources: tuple[str, ...]
    missing: tuple[str, ...]
    """Sources that the slide went on without."""
    spoken_for: tuple[str, ...]
    rejected: int
    """Rows that the stream has rejected so far."""
    sampling: float | None = 1.0
    """The share of rows that TABLESAMPLE leaves; None for a fixed number of rows."""
    coverage: float = 1.0
    """Of the sources' time in the window, how much is in no open gap."""
    gaps: tuple[Gap, ...] = ()
    """The open gaps that meet it."""
    kind: str = "stream"
    """``results`` if it is of the results of a periodic query: complete if all its runs were."""
    revoked: tuple[str, ...] = ()
    """Of an earlier state: what was erased, corrected or given up since, so that it cannot be given again in full."""

    @cached_property
    def as_json(self) -> dict[str, Any]:
        """As JSON has it: many answers are of the same window."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _instants_to_text(values) | {"gaps": [gap_to_json(gap) for gap in self.gaps]}


@dataclass(frozen=True)
class Coverage:
    """What is known of a window."""

    gaps: tuple[Gap, ...]
    """The open gaps that meet it."""
    share: float
    """Of the sources' time in it, how much is in no open gap."""


def measure(parts: Sequence[StreamGaps], after: int, upto: int, expired: Gap | None = None) -> Coverage:
    """Which gaps meet the window (after, upto], and how much of it they leave.

    Args:
        parts: The stream, or the inputs of a view.
        after: Where the window begins.
        upto: Where it ends.
        expired: The part of it whose rows are gone.
    """
    gone = EVER if expired is None else times.parse_instant(expired.end)
    met: list[Gap] = [] if expired is None else [expired]
    covered, length = 0.0, 0
    for part in parts:
        start = min(after, find_start([part], upto)) if part.reach is None else after - part.reach
        meeting = [
            gap for gap in part.gaps if gap.end > start and (gap.after is None or gap.after < min(upto, gap.end))
        ]
        met += [to_gap(part.stream, gap) for gap in meeting]
        span = max(0, upto - start)
        if part.share is not None:
            length, covered = length + 1, covered + part.share
            continue
        for source in part.sources or ("",):
            of_source = [gap for gap in meeting if not part.sources or gap.source in ("", source)]
            lost = [(max(start, EVER if gap.after is None else gap.after), min(upto, gap.end)) for gap in of_source]
            length += span
            covered += span - _union(lost if gone <= after else [*lost, (start, min(gone, upto))])
    return Coverage(tuple(met), covered / length if length else float(not met))


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of intervals together, overlaps counted once."""
    total, reached = 0, EVER
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def find_start(parts: Sequence[StreamGaps], upto: int) -> int:
    """Where a window without a lower bound begins, if rows never expire: at the first data of any source."""
    begun = [gap.end for part in parts for gap in part.gaps if gap.after is None]
    starts = [gap.after for part in parts for gap in part.gaps if gap.after is not None]
    return min(begun or starts, default=upto)


@cached_in_findings
def make_window(view: "StreamSnapshot", bounds: WindowBounds | None, clause: str, zone: dt.tzinfo = dt.UTC) -> Window:
    """The window of a stream with these bounds, which are shown in `zone`."""
    state, coverage = view.state, view.coverage(bounds)
    return Window(
        stream=view.name,
        clause=clause,
        slide=state.slide,
        start=None if bounds is None or bounds.after is None else times.to_datetime(bounds.after).astimezone(zone),
        end=None if bounds is None else times.to_datetime(bounds.upto).astimezone(zone),
        complete=bounds is not None and not coverage.gaps and (state.ledger or not state.missing),
        sources=tuple(view.sources),
        missing=state.missing,
        spoken_for=state.spoken_for,
        rejected=state.rejected,
        coverage=coverage.share,
        gaps=coverage.gaps,
        revoked=view.revoked,
    )


def make_about(windows: Sequence[Window], isolation: str, staleness: float, commit: int | None) -> dict[str, Any]:
    """What is known of an answer, as JSON has it."""
    return {
        "windows": [window_to_json(window) for window in windows],
        "complete": all(window.complete for window in windows),
        "coverage": min((window.coverage for window in windows), default=1.0),
        "isolation": isolation,
        "staleness": staleness,
        "commit": commit,
    }


def attach(schema: pa.Schema, about: dict[str, Any]) -> pa.Schema:
    """The schema with what is known of the answer in its metadata."""
    return schema.with_metadata((schema.metadata or {}) | {METADATA_KEY: msgspec.json.encode(about)})


def window_to_json(window: Window) -> dict[str, Any]:
    """A window as JSON has it."""
    return {**window.as_json}


def gap_to_json(gap: Gap) -> dict[str, Any]:
    """A gap as JSON has it."""
    return _instants_to_text(vars(gap))


def _instants_to_text(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: times.format_time(times.parse_instant(value)) if isinstance(value, dt.datetime) else value
        for name, value in values.items()
    }
