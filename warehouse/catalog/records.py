"""The records of the catalog: frozen structs, stored as msgpack maps, one struct per kind of record."""

from typing import NamedTuple

import msgspec

from windrow.definitions import StreamDefinition, is_hidden
from windrow.errors import AccessError
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
    ledger: bool = False
    """Whether the last slide has put down its gaps; earlier releases only named the missing sources."""
    inserted: int = 0
    expired: int = 0
    late: int = 0
    rejected: int = 0
    bucket: int = 0
    """Bytes that adaptive maintenance may still rewrite."""
    manifest: int = 0
    """The commit that last changed the stream's segments."""
    segments: int | None = None
    """How many there are since, so that a damaged catalog cannot hide some; None if an earlier release wrote this."""
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
    overridden: int = 0
    """The commit that last ended rows of segments by overrides: `changes` lists those as gone and come."""
    history_from: int | None = None
    """The clock from which on nothing was given up before its time, by those who changed how long history is kept."""
    history_rows: int = 0
    history_bytes: int = 0
    """What the stream has in its history."""
    revoked: tuple[tuple[int, str], ...] = ()
    """Commits that changed the past, and what they did: what was asked before cannot be given again in full."""
    past_layouts: tuple[Layout, ...] = ()
    """Layouts that are empty but for history."""

    @property
    def layout(self) -> Layout:
        """The layout that new rows are cut for."""
        return self.layouts[-1]

    def layout_of(self, number: int) -> Layout:
        """The layout with that number."""
        return next(layout for layout in (*self.layouts, *self.past_layouts) if layout.id == number)


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A data file."""

    stream: int
    rows: int
    bytes: int
    digest: str
    segments: int
    """How many segments of it are spooled or in a cell."""
    min_ts: int | None = None
    min_exp: int | None = None
    """The least time and expiry of its rows, also of those whose segments have gone; None: the file tells."""


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
    arrivals: int = 0
    """How many rows it had when it was made, if some were erased since."""


class WaitingEntry(NamedTuple):
    """The place in the spool of rows that wait in the catalog (`row_spool`) until they are written to a file.

    An array, which releases that know nothing of it cannot take for a file: their slides say so, and lose nothing.
    """

    source: str
    schema: bytes
    """The columns of the rows, as Arrow IPC."""
    at: int

    @property
    def segments(self) -> tuple[Segment, ...]:
        """None yet."""
        return ()


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
    spooled: int = -1
    """The last number in the spool with rows of it."""
    covers: tuple[tuple[int, int], ...] = ()
    """Intervals that it says are whole, for the slide that takes in what it had sent by then."""


class GapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An interval (start, end] of event time about which less is known than that everything has come."""

    id: int
    source: str
    """Empty: the whole stream."""
    start: int | None
    """None: since ever."""
    end: int
    kind: str
    cause: str
    opened: int
    reached: int | None = None
    """How far inside it the source has come since; only what follows is still open."""
    closed: int | None = None
    """When, None while it is open."""
    closed_by: str = ""
    changed: int = 0
    """The ordinal of the slide from which on it is as it is."""
    kept: bool = False
    """Rows of it were rejected as dead, so that the source's progress does not close it."""
    rows: int = 0
    """Rows that were lost."""
    files: tuple[str, ...] = ()

    @property
    def after(self) -> int | None:
        """Where the open part begins."""
        return self.start if self.reached is None else self.reached


class TraceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a source said without rows, or what was said of it."""

    stream: int
    source: str
    event: str
    """heartbeat or failed."""
    at: int
    up_to: int | None = None
    note: str = ""


class StreamGaps(msgspec.Struct, frozen=True, kw_only=True):
    """The open gaps of a stream, as a reader of it, or of a view of it, has them."""

    stream: str
    sources: tuple[str, ...]
    """Those that are declared; empty: the stream counts as one source."""
    gaps: tuple[GapEntry, ...]
    reach: int | None = 0
    """Of an input of a view: how much earlier than the view's window its rows may matter; None: all of them may."""
    share: float | None = None
    """Of a view of results: how much of their windows the runs knew."""


class BatchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An append that must not be taken twice."""

    source: str
    batch_id: str
    digest: int
    rows: int
    accepted: int
    at: int
    whole: bool = False
    """Whether the digest is of all values; in entries of earlier releases it is of times and search key."""
    erased: bool = False
    """Whether it was forgotten, because rows were erased: the batch is known by its id and number of rows."""
    places: tuple[tuple[int, int, int], ...] | None = None
    """Where its rows were spooled: number in the spool, first arrival there, how many; None in older entries."""


class ArrivalEntry(NamedTuple):
    """What became of a number in the spool, as long as the ids of its batches are remembered."""

    at: int
    base: int | None = None
    """What a slide has added to its arrivals; None: they are in the spool."""
    slide: int | None = None
    """The slot of that slide."""
    after: int | None = None
    """Arrivals from this one on moved to another number before a file was made of the others."""
    moved: int | None = None


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How far a streaming query, known by the id in its checkpoint, has come; its batches are never sent again."""

    source: str
    batch: int
    """The number of its last batch."""
    at: int
    sources: tuple[str, ...] = ()
    """All that its rows came from, if they say so themselves; `source` is empty then."""
    partitions: dict[str, tuple[int, int]] = {}
    """Of each partition of Kafka, by topic-partition: the next offset, and how many lay behind it at `seen`."""
    seen: int = 0
    """When Kafka was asked for its last offsets, before the batch was read."""


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
    late_slots: tuple[tuple[int, int], ...] = ()
    """Ranges of event slots that its late rows fall in, by which windows that they change are found."""


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
    valid_from: int | None = None
    """Rows after this event time meet it, in views that are not recomputed; None: since ever."""


class ReclaimEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit replaced: it goes when no pin is older than that commit."""

    stream: int
    segments: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    history: tuple[bytes, ...] = ()
    """Keys of history entries."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A segment all of whose rows have expired, kept aside. Its key is (stream, when its last row expired, number)."""

    segment: Segment
    came: int
    """The commit since which it is history."""
    gone: int | None = None
    """The commit that gave it up; the entry stays for readers that have pinned an earlier one."""


class StreamVersion(msgspec.Struct, frozen=True, array_like=True):
    """What a stream showed from one commit on, in short, so that it can be asked again. Key: (stream, commit)."""

    slide: int | None
    ordinal: int
    missing: tuple[str, ...] = ()
    spoken_for: tuple[str, ...] = ()
    ledger: bool = False
    rejected: int = 0
    gaps: tuple[StreamGaps, ...] = ()
    """Those that were open."""


class ErasureEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of an erasure: how much went from where, and a digest in the place of what was asked for."""

    at: int
    digest: str
    by: str
    """``keys`` or ``where``."""
    rows: dict[str, int]
    files: int
    untouched: tuple[str, ...]


class PastTable(msgspec.Struct, frozen=True, array_like=True):
    """What a table was until a commit. Key: its name, a zero byte, and that commit."""

    entry: "TableEntry | None"
    """None: it did not exist."""


class HeldVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version of a published table that readers may read."""

    commit: int
    """Whose files it names."""
    version: int
    replaced: int = 0
    """When the next version came, in microseconds; 0 for the newest."""


class PublicationEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is published to other engines, and how far."""

    format: str
    table: str
    """The table's id."""
    every: int = 60_000_000
    """At most one version in so many microseconds."""
    hold: int = 600_000_000
    """How long the files of a version stay after the next one came."""
    version: int = -1
    schema: str = ""
    at: int = 0
    """When the window was last looked at."""
    slide: int | None = None
    manifest: int = 0
    held: tuple[HeldVersion, ...] = ()
    checkpoint: int = 0
    """The last version that has a checkpoint; what later ones say is in `published_versions`."""
    pending: str = ""
    """The hidden name of the last version's file, where an earlier release ended between its record and its name."""

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the last version should have one: every tenth does, as those of Delta's own writers."""
        return self.version - self.checkpoint >= 10

    def is_held(self, held: HeldVersion, now: int) -> bool:
        """Whether readers may still read a version at a wall time: the newest one, and for a while those before it."""
        return not held.replaced or now - held.replaced < self.hold


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the last published version."""

    fingerprint: int
    """Of its segments and of how many of their rows are dead."""
    size: int
    rows: int
    dead: int
    """Rows that are not in the window."""
    vector: str = ""
    """Which ones, as an inline deletion vector."""


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
    pending: int | None = None
    """Of a view with DISTINCT: from this time on a value may live longer than its stored rows say; None: none does."""


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
    written: str = ""
    """As the user wrote it, if `sql` has the statements of recomputed views in place of their names."""
    start: int | None = None
    """The earliest time that its clock can have: before, an input that was ahead had let rows expire already."""
    reach: dict[str, int | None] = {}
    """Of inputs whose rows can make results later than themselves: how much later; None: at any time."""
    results: dict[str, int] = {}
    """Numbers of the periodic queries whose results it reads, by name; it then reads no streams."""
    seen: int = 0
    """Of a view of results: the commit whose results it was computed from."""
    coverage: float = 1.0
    """Of a view of results: the least that their runs knew of their windows."""
    complete: bool = True
    """Of a view of results: whether all their windows were complete."""
    error: str = ""
    """Of a view of results: why it could not be computed again; it stays where it is."""
    keep: int | None = None
    """How long results stay after they came about, whatever becomes of their parts."""
    since: int | None = None
    """Of a view with `keep`: its first clock, or how far back it was filled from history; of the results before, it has
    those that lived then."""
    grouped: "GroupedStatement | None" = None
    """Of a view with GROUP BY that is kept from new rows, and of the view of its partial aggregates."""
    partials_of: str = ""
    """Of a view of partial aggregates: the view that finishes them."""
    joined: "JoinedWindows | None" = None
    """Of a view of a join that standing queries share: which join it is."""


class GroupedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with GROUP BY in pieces: what is kept by group and expiry slot, and how that becomes its rows."""

    statement: str
    """The whole of it."""
    keys: tuple[str, ...]
    """The columns of its result that are its groups."""
    types: tuple[str, ...]
    """DuckDB's types of the groups."""
    columns: "tuple[SynopsisColumn, ...]"
    """The partial aggregates."""
    finished: str
    """A SELECT that finishes ``{merged}`` partial aggregates."""
    final: str
    """The rest of the statement over ``{finished}`` aggregates."""
    names: tuple[str, ...]
    """The columns of its result."""


class JoinedWindows(msgspec.Struct, frozen=True, kw_only=True):
    """A join of windows of which standing queries keep a view in common."""

    key: str
    """What joins that it serves have in common; see `queries.synopses.join_statement`."""
    window: int
    """The length of the shortest of its windows; of each join that it serves, at least as long as that one's."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How one stream paces a periodic query."""

    stream: str
    stream_id: int
    window: int | None
    """How many microseconds before the clock its window begins, where the clause says so; of several, the first."""
    period: int
    """How many slots the window moves between two runs."""
    calendar: "CalendarPace | None" = None
    """If it moves with the calendar, not by slots."""
    offset: int = 0
    """How many microseconds before the clock its window ends; of several, the last."""


class CalendarPace(msgspec.Struct, frozen=True, kw_only=True):
    """A run for each calendar unit, when the stream's clock has passed its end by `lag`."""

    unit: str
    zone: str
    lag: int
    first: int
    """How many units before the one that has ended the query's windows begin,"""
    last: int
    """and how many before it they end."""
    origin: int
    delta: int
    """Of the stream's slots."""


class ResultRead(msgspec.Struct, frozen=True, kw_only=True):
    """That a periodic query reads the results of another."""

    query: str
    id: int
    reach: int | None
    """How long before the reader's window end a result can have ended that it reads; None: any time."""


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
    memory_limit: str | None = None
    created: int
    created_slides: dict[str, int]
    """The slide of each pacing stream that had one at registration."""
    revise: int | None = None
    """For how long after its end a delivered window is run again when late rows have changed it."""
    after: tuple[ResultRead, ...] = ()
    """The queries whose results it reads: it is run when these have been, for the same slides."""
    on_gap: str = "tell"
    """What becomes of a run whose windows are not complete: tell, error or wait."""
    deadline: int | None = None
    """How long, by the stream's clock, a run waits for what is missing."""
    isolation: str = "snapshot"
    """Whether slides that commit while a round runs are for the next one, or absorbed: snapshot or latest."""
    engine: str = "duckdb"
    """Whose SQL the statement is, and who runs it: duckdb or spark."""
    unwindowed: tuple[str, ...] = ()
    """Of Spark's SQL: the relations that it names without a window clause, which only Spark's parser can tell."""


class ResultPart(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the rows of one or several runs of a query."""

    file: str
    first: int
    last: int
    rows: int
    bytes: int
    digest: str


class BackfillState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a periodic query has come with runs of slides that were committed before it was there."""

    commit: int
    """Of the last run that was made or passed over; later ones are still to be made."""
    reached: dict[str, int]
    """The slide of each pacing stream at that run."""
    upto: int
    """The last slide of the first pacing stream that may have a run."""
    left: int
    """How many runs are to be made."""
    failures: int = 0
    """How many times in a row the next run has failed."""
    retry_at: int | None = None
    """Not before this wall time: it failed, and is left alone for a while."""


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
    judged: int = 0
    """How many rows its stream had when it was last decided whether synopses answer it; 0: it was not yet."""
    from_rows: str = ""
    """Why its rows answer it; empty if synopses do."""
    checked: dict[str, int] = {}
    """Late rows that slides of its streams up to these took in are accounted for, and under ``@query`` the commits up
    to which revisions of results are that it reads."""
    revised_at: int = 0
    """The commit of its last revision."""
    revisions: int = 0
    """Delivered so far."""
    outdated: int = 0
    """Delivered windows that late rows have changed since, without a revision."""
    unplaced_revisions: tuple[tuple[int, int], ...] = ()
    """Slides and numbers of revisions whose file is not yet in its folder."""
    place_failures: int = 0
    """How many times in a row a run could not be sent to its webhook or command."""
    place_at: int | None = None
    """Not before this wall time is it tried again."""
    held: dict[str, int] = {}
    """The slides of a run that waits until its windows are complete."""
    backfill: BackfillState | None = None
    """Runs of slides before it was there that are still to be made."""


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
    coverage: float = 1.0
    windows: str = ""
    """JSON of its windows with their gaps, for file sinks that carry it."""
    how: str = ""
    """What answered: the snapshot, or a synopsis."""
    error: str | None = None
    attempts: int = 1
    file: str = ""
    """Where a file sink puts it."""
    revision: int = 0
    """0 for the run itself; its revisions are counted from 1."""
    revisions: int = 0
    """Of the run itself: how many revisions of its window were delivered."""
    known: dict[str, int] = {}
    """Of the run itself: up to which slides late rows are in its newest revision, and under ``@query`` up to which
    commit revisions of results; what is not there is as of the run."""
    outdated: bool = False
    """Whether late rows have changed its window, and it was not revised."""
    backfilled: bool = False
    """Whether it was made from history, later than its slide."""


class RetainedStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream as it was at a held slide."""

    entry: StreamEntry
    state: StreamState
    segments: tuple[Segment, ...]
    sources: dict[str, SourceEntry]
    gaps: tuple[StreamGaps, ...] = ()


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
    span: int = 0
    """Of a view of a join that standing queries share: in how many slots a result expires at most; windows that are
    shorter by some slots leave out what expires so much sooner. 0: of all other streams."""
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
    slot_bytes: float = 0.0
    """Bytes of a node in memory, on average, when it was filled."""
    slot_stored: float = 0.0
    """Bytes that a node takes in the catalog, on average, when it was filled; 0 if that was not counted yet."""
    why: str = ""
    """Why it has its kind."""


class SummaryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of frequent items, as it was declared; its lists lie beside the synopses of its stream."""

    stream: int
    number: int
    name: str
    sql: str
    kind: str
    """What is counted: rows, or the sum of a column."""
    frequent: int
    """How many groups a list names."""
    columns: tuple[tuple[str, int], ...]
    """The columns of its relation that are groups: name, and which group."""
    weight: str
    """Key of the aggregate that it counts."""
    counted: SynopsisEntry
    """Which rows and groups, and how many slots back."""
    created: int


class ObjectEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that is in the object store, from the commit that names it until it is to be deleted."""

    bytes: int
    digest: str


class ObjectStoreEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files of the warehouse lie, if not only in its folder; a record of `meta`."""

    uri: str
    epoch: int
    """The number that this machine has claimed; whoever claims a later one takes the warehouse over."""
    cache_bytes: int
    """How much of the files is kept in the folder."""
    copy_every: int
    """The catalog is copied to the store when the oldest commit without a copy is so many microseconds old,"""
    copy_commits: int
    """or when there are so many of them."""
    place: int = 0
    """The inode of the catalog's folder, by which a copy of the folder knows that it is one."""


class CatalogCopyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The last copy of the catalog in the object store; a record of `meta`, and in the store what leads to the copy."""

    name: str
    commit: int
    at: int
    bytes: int
    """Of the object, which is compressed."""
    digest: str
    """Of its bytes."""
    warehouse: str
    catalog_format: int


class EpochEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who has claimed an epoch; an object of the store, and in `meta` of a machine that was overtaken."""

    epoch: int
    host: str
    at: int
    nonce: str
    """Unlike all others, so that who repeats a request knows whether it succeeded."""


RIGHTS = ("read", "append", "operate")


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What the bearers of a token may do."""

    name: str
    rights: tuple[str, ...]
    """Of `RIGHTS`: ask, append rows and heartbeats, change everything else."""
    grants: dict[str, tuple[str, ...] | None] | None = None
    """Streams, views, tables and results by name, each with its columns or None for all of them; None: everything."""
    newest: int | None = None
    """Rows are seen only when they are this old, in microseconds before the stream's clock."""
    oldest: int | None = None
    """Rows older than this are not seen."""
    rows: int | None = None
    """Rows that an answer may have."""
    seconds: float | None = None
    """How long a statement may run."""
    memory: str | None = None
    """How much memory a statement may take."""

    @property
    def is_restricted(self) -> bool:
        """Whether some relations, columns or rows are hidden from it."""
        return self.grants is not None or self.newest is not None or self.oldest is not None

    @property
    def sees_counts(self) -> bool:
        """Whether counts of stored rows may be shown: not if rows of some ages are hidden."""
        return (self.newest is None and self.oldest is None) or "operate" in self.rights

    def sees(self, name: str) -> bool:
        """Whether a relation may be used at all; names are compared as SQL does."""
        return not is_hidden(name) and (self.grants is None or name.lower() in self._folded())

    def columns(self, name: str) -> tuple[str, ...] | None:
        """The columns of a relation that may be used, None for all."""
        return None if self.grants is None else self._folded()[name.lower()]

    def check(self, right: str, name: str | None = None) -> None:
        """Refuse what the role may not do; a relation that it does not see is not named as existing."""
        if right not in self.rights:
            raise AccessError(f"role {self.name!r} may not {right}; it may {', '.join(self.rights) or 'do nothing'}")
        if name is not None and not self.sees(name):
            raise AccessError(f"role {self.name!r} knows no {name!r}; it may use {', '.join(self.grants or ())}")

    def _folded(self) -> dict[str, tuple[str, ...] | None]:
        return {name.lower(): columns for name, columns in (self.grants or {}).items()}


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as the catalog knows it; its secret is not stored."""

    id: str
    role: str
    digest: bytes
    created: int
    expires: int | None = None
    note: str = ""


OWNER = Role(name="owner", rights=RIGHTS)
"""Whoever can open the folder can do everything."""
