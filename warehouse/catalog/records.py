"""The records of the catalog: frozen structs, stored as msgpack maps, one struct per kind of record."""

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
    key: tuple[str, ...] = ()
    """The columns by which its segments are sorted, and their directories made."""
    loose: bool = False
    """Rows of equal key may be in any order of expiry: they lived for ever when they were written. Never merged."""

    def partitioner(self) -> Partitioner:
        """The cells of this layout."""
        return Partitioner(self.index, self.lifetime_slots)


class RelayoutState(msgspec.Struct, frozen=True, kw_only=True):
    """A change of layout under way: older layouts still hold rows."""

    previous: Layout | None
    """Where a cancelled change goes back to; None if there is no way back."""
    started: int
    """Wall time."""
    total: int
    """Bytes that lay in older layouts when it began."""
    moved: int = 0
    """Bytes of them that steps have rewritten."""
    budget: int = 0
    """Bytes that each slide moves at most; 0: the older layouts empty out by themselves."""


class SegmentChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one commit did to a stream's segments: who knows them as of `before` need not read them all again."""

    before: int
    """The commit that had changed them last."""
    after: int
    """The commit itself."""
    come: tuple[int, ...]
    gone: tuple[int, ...]


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
    changes: tuple[SegmentChange, ...] = ()
    """What the last few commits did to them."""
    torn: tuple[str, ...] = ()
    """Files that hold live rows which are in no segment: they were rejected, or a merge took them elsewhere."""
    next_spool: int = 0
    next_rejected: int = 0
    next_layout: int = 0
    relayout: RelayoutState | None = None
    rewritten: int = 0
    """The commit that last changed the records of segments which keep their number."""
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


class UsageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a stream; old counts fade."""

    slides: int = 0
    """Slides in which it was asked."""
    probes: int = 0
    probe_rows: int = 0
    """Rows that those found."""
    scans: int = 0
    filters: dict[str, int] = {}
    """How often a column was compared with constants."""


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a table."""

    file: str
    schema_bytes: bytes
    rows: int
    digest: str
    at: int
    bytes: int


class ReclaimEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit replaced: it goes when no pin is older than that commit."""

    stream: int
    segments: tuple[int, ...] = ()
    files: tuple[str, ...] = ()


class ViewInput(msgspec.Struct, frozen=True, kw_only=True):
    """One stream that a view is derived from, and what was learned of it for the order of joins."""

    seen: int = 0
    """The ordinal of the input's last slide whose rows the view has."""
    slide: int | None = None
    """That slide's slot."""
    rows: float = 0.0
    """Rows that became visible to the view, fading as time goes on; with `span`, the arrival rate."""
    span: float = 0.0
    """Microseconds in which they did, fading alike."""
    distinct: dict[str, float] = {}
    """Of columns that are joined on: how many values a window has, by column."""


class ViewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A view as it was declared; its rows are those of the stream with the same number."""

    id: int
    name: str
    sql: str
    """As given, window clauses and all."""
    inputs: dict[str, int]
    """Numbers of the streams it reads, by name."""
    tables: tuple[str, ...] = ()
    retroactive: tuple[str, ...] = ()
    """Tables whose changes also affect results that are there already."""
    restore: bool = False
    recompute: bool = False
    """Whether every slide computes it from scratch, since its update pattern is strict."""
    distinct: bool = False
    why: str = ""
    """Why it has its update pattern."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How one stream paces a periodic query."""

    stream: str
    stream_id: int
    window: int | None
    """The window's length in microseconds, where the clause gives one; of several, the longest."""
    period: int
    """How many slots the window moves between two runs."""


class QueryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic query as it was registered; what changes with its runs is in `QueryState`."""

    id: int
    name: str
    sql: str
    """As given, window clauses and all."""
    params: bytes = b""
    """Arrow IPC of one row, empty without parameters; see `queries.periodic.definition`."""
    paces: tuple[Pace, ...]
    """One for each stream with a period, in the order of the text; the first one numbers the runs."""
    reads: tuple[str, ...]
    """All streams that the statement names."""
    schema_bytes: bytes
    """The query's own columns."""
    sink: str = "table"
    folder: str = ""
    """Where a file sink writes, if not in the warehouse's own results."""
    priority: int = 0
    missed: str = "latest"
    output: str = "whole"
    keep_runs: int | None = None
    keep_time: int | None = None
    timeout: float | None = None
    created: int
    created_slides: dict[str, int]
    """The slide of each pacing stream that had one at registration."""


class ResultPart(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the rows of one or several runs of a query."""

    file: str
    first: int
    last: int
    rows: int
    bytes: int
    digest: str


class QueryState(msgspec.Struct, frozen=True, kw_only=True):
    """What changes with each run of a periodic query."""

    reached: dict[str, int]
    """The slide of each pacing stream at the last run that was delivered or given up."""
    seen: dict[str, int]
    """The slide of each pacing stream at the last run that was found due; ahead of `reached` while runs wait."""
    delivered: int | None = None
    """The slide of the last delivered run."""
    delivered_at: int | None = None
    runs: int = 0
    missed: int = 0
    """Periods that passed without a run of their own."""
    waiting: int = 0
    """Held slides that it has still to be run for."""
    unplaced: tuple[int, ...] = ()
    """Slides of delivered runs whose file is not yet in its folder."""
    failures: int = 0
    """How many times in a row it has failed."""
    error: str | None = None
    retry_at: int | None = None
    """Not before this wall time: it failed, and is left alone for a while."""
    seconds: float | None = None
    """How long the last run took."""
    parts: tuple[ResultPart, ...] = ()
    tail_runs: int = 0
    tail_bytes: int = 0
    """Runs whose rows are in the catalog, not yet in a part."""
    stored_runs: int = 0
    """Delivered runs that are kept."""
    troubles: int = 0
    """Runs on record that were not delivered."""
    previous: ResultPart | None = None
    """The last whole answer, where only differences are delivered and it is too large for the catalog."""


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a periodic query, for one slide."""

    query: str
    slide: int
    slides: dict[str, int]
    """The slide of every stream that paces it."""
    outcome: str
    """delivered, failed (it will be tried again) or missed (it will not)."""
    version: int = 0
    """The commit that recorded it."""
    window_start: int | None = None
    window_end: int | None = None
    at: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    staleness: int = 0
    complete: bool = True
    how: str = ""
    """What answered: the snapshot, or a synopsis."""
    error: str | None = None
    attempts: int = 1
    file: str = ""
    """Where a file sink puts it."""


class RetainedStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream as it was at a held slide."""

    entry: StreamEntry
    state: StreamState
    segments: tuple[Segment, ...]
    sources: dict[str, SourceEntry]


class RetainedSlideEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A slide that is kept readable until the runs that need it have been made: a pin that outlives its process."""

    version: int
    queries: tuple[int, ...]
    """Numbers of the periodic queries that still wait for it."""
    streams: dict[str, RetainedStream]
    tables: dict[str, TableEntry]


class StateCall(msgspec.Struct, frozen=True, kw_only=True):
    """Whose state a synopsis column is: what DuckDB must be told to read it again."""

    name: str
    signature: tuple[str, ...]
    """The types that DuckDB bound, not those that were written."""
    constants: tuple[str, ...]
    """As SQL; NULL for arguments that are no constants."""


class SynopsisColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One kept value of each group: a partial aggregate."""

    key: str
    """What it is, however it was written."""
    build: str
    """The aggregate over rows, in SQL."""
    merge: str
    """The aggregate that makes one value of several; ``state`` for states of DuckDB's own."""
    type: str
    """DuckDB's type of the kept value; empty for a state."""
    state: StateCall | None = None

    @property
    def subtractable(self) -> bool:
        """Whether what left can be taken out again exactly."""
        return self.merge == "sum" and not self.type.startswith(("DOUBLE", "FLOAT"))


class SynopsisEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of each slot of a stream for standing queries; the slots themselves lie beside it."""

    stream: int
    number: int
    where: str = ""
    where_key: str = ""
    terms: tuple[tuple[str, str, str, str], ...] | None = None
    """WHERE as a disjunction of (column, operator, kind of constant, constant), None if it is something else."""
    groups: tuple[tuple[str, str, str], ...]
    """Text, key and DuckDB type of each group; of frequency counts the value is the last one."""
    columns: tuple[SynopsisColumn, ...]
    kind: str
    slots: int
    """How many slots back it reaches."""
    expiring: bool
    """Whether groups are kept apart by expiry slot, since lifetimes differ."""
    floor: int
    """Slots up to this one are gone."""
    slide: int | None
    """The slide that it is of; None before the stream's first."""
    rebased: int = 0
    """The slide at which running sums were last counted anew, from the oldest slot on."""
    slot_groups: float = 0.0
    """Rows of a node, on average, when it was filled; 0 if there were none."""
    all_groups: float = 0.0
    """Rows of all nodes together, merged."""
    why: str = ""
    """Why it has its kind."""
