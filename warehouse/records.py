"""What the catalog remembers: frozen records, stored as msgpack, one struct per kind of record."""

import msgspec

from windrow.definitions import StreamDefinition
from windrow.indexes.partitioners import Index, Partitioner
from windrow.indexes.segments import Histogram, Segment


class StreamEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's identity and definition."""

    id: int
    definition: StreamDefinition
    created: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered layout of a stream; segments say which one they belong to."""

    id: int
    index: Index
    lifetime_slots: int | None
    why: str

    def partitioner(self) -> Partitioner:
        """The cells of this layout."""
        return Partitioner(self.index, self.lifetime_slots)


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """What changes with each append and slide of a stream."""

    layouts: tuple[Layout, ...]
    slide: int | None = None
    """The slot that the clock has reached."""
    ordinal: int = 0
    """How many slides were committed."""
    heartbeat: int | None = None
    """The latest explicit `to` of a slide, on a stream without declared sources."""
    missing: tuple[str, ...] = ()
    """Sources that had not reached the last slide (it was forced, or they were excluded)."""
    spoken_for: tuple[str, ...] = ()
    """Silent sources that max_skew spoke for at the last slide."""
    inserted: int = 0
    expired: int = 0
    late: int = 0
    rejected: int = 0
    bucket: int = 0
    """Bytes that adaptive maintenance may still rewrite."""
    manifest: int = 0
    """The commit that last changed the stream's segments."""
    torn: tuple[str, ...] = ()
    """Files that hold live rows which are in no segment: they were rejected, or a merge took them elsewhere."""
    next_spool: int = 0
    next_rejected: int = 0
    batch_floor: int = 0
    """Batch ids recorded before this wall time may have been forgotten."""

    @property
    def layout(self) -> Layout:
        """The layout that new rows are cut for."""
        return self.layouts[-1]

    def layout_of(self, number: int) -> Layout:
        """The layout with that number."""
        return next(layout for layout in self.layouts if layout.id == number)


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A data file."""

    stream: int
    rows: int
    bytes: int
    digest: str
    segments: int
    """How many segments of it are spooled or in a cell."""


class SpoolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One spooled file: its segments lack only their insertion row."""

    segments: tuple[Segment, ...]
    rows: int
    bytes: int
    events: Histogram
    """How many rows fall in each event slot."""
    source: str
    batch_id: str | None
    at: int


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How far one source has come."""

    max_ts: int | None = None
    heartbeat: int | None = None
    failed: str | None = None
    """Why it was declared failed, None if it was not."""
    rows: int = 0
    rejected: int = 0
    heard: int = 0
    """Wall time of its last append or heartbeat."""


class BatchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An append that must not be taken twice."""

    source: str
    batch_id: str
    digest: int
    rows: int
    accepted: int
    at: int


class RejectedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rejected rows."""

    file: str
    rows: int
    bytes: int
    digest: str
    reasons: dict[str, int]
    source: str
    batch_id: str | None
    at: int


class SlideEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One committed slide."""

    slide: int
    previous: int | None
    ordinal: int
    now: int
    at: int
    inserted: int
    expired: int
    late: int
    touched: int
    rebuilt: int
    dropped: int
    bytes_written: int
    seconds: float
    missing: tuple[str, ...] = ()
    spoken_for: tuple[str, ...] = ()


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a table."""

    file: str
    schema_bytes: bytes
    rows: int
    digest: str
    at: int
    bytes: int


class Reclaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit replaced: it goes when no pin is older than that commit."""

    stream: int
    segments: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
