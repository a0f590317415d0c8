"""Aggregates computed slot by slot, so that a slide that comes meanwhile is absorbed and nothing begins again.

Partial states are grouped by the slide at which their rows leave the window. At the end the states of rows that left
are dropped, the rows that came in (or that the clock has reached) are added, and the answer is that of the last
committed slide.
"""

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.errors import UnknownStreamError
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.indexes.selection import Selection, WindowBounds, select_segments
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.planner import find_bounds
from windrow.queries.planner.reads import find_partial_files, plan_window
from windrow.queries.planner.scan_sql import empty_sql, find_older_files, timestamp_literal, window_sql
from windrow.queries.sql import window_spec
from windrow.queries.sql.analysis import analyse
from windrow.queries.sql.split_aggregate import SplitStatement
from windrow.queries.sql.statement import Reference, Statement
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

SEPARATE_SLIDES, MAX_SEPARATE_SLIDES = 4, 64
"""How many of the next slides have states of their own, at first and at most; rows that leave later share one. Not
measured: bounds the states in memory."""
READ_BYTES = 64 << 20
"""Files are read together up to this size; between two reads a query can be suspended and looks at the clock."""
_NEVER = 1 << 62
MAX_ABSORPTIONS = 64
"""How often it is looked for slides before the answer is given as it is, with its staleness."""

StepHook = Callable[[str], None]
"""Called before each step with its name: ``read``, ``absorb``, ``check``."""


@dataclass(frozen=True)
class CommitCheck:
    """What was committed at one time."""

    at: dt.datetime
    version: int
    """The number of the last commit."""
    slide: int | None
    """The stream's last slide, None if it is gone."""
    dependencies: tuple[Any, ...]
    """What else the answer depends on: the stream's definition, and the versions of the statement's tables."""


@dataclass
class SegmentRead:
    """Rows of one snapshot that are read together, and until which slide their states are valid."""

    number: int
    view: StreamSnapshot
    upto: int
    """Rows after this time were ahead of the clock, and are not part of the read."""
    segments: tuple[Segment, ...]
    beyond: tuple[StreamSnapshot, int] | None = None
    """Only rows that this older view had not taken in, or that were after this time in it."""
    until: int = 0
    """From this slide on the states may hold rows that have left."""


class OvertakenError(Exception):
    """Something other than a slide changed while the query ran, so its states are useless; it never reaches a user."""


class IncrementalAggregation:
    """One statement, computed in reads from youngest to oldest.

    Args:
        store: The warehouse.
        snapshot: Where it begins; it stays open until the end.
        pooled: The cursor, with the statement's tables.
        statement: As a whole.
        stream: The reference to the stream.
        segments: Of the stream, that can matter.
        tables: Names of the tables that the statement reads.
        split: The statement in two.
        params: Its parameters, by name.
        between: Called before each step.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        pooled: PooledCursor,
        statement: Statement,
        stream: Reference,
        segments: Iterable[Segment],
        tables: tuple[str, ...],
        split: SplitStatement,
        params: dict[str, Any],
        between: StepHook,
    ) -> None:
        self.store, self.snapshot, self.pooled, self.cursor = store, snapshot, pooled, pooled.cursor
        self.stream, self.tables = stream, tables
        self.split, self.params, self.between = split, params, between
        self._near = select_parameters(params, split.near_parameters)
        self.view = snapshot.view(stream.name)
        self.model = self.view.entry.definition.model
        read = {*analyse(statement).columns_read(self.view.schema.names), self.model.time, self.model.expires}
        self._names = tuple(name for name in self.view.schema.names if name in read)
        lengths = [stream.window.length if isinstance(stream.window, window_spec.RangeWindow) else None]
        self.length = min([each for each in (*lengths, snapshot.role.oldest) if each is not None], default=None)
        """Rows that are older have left: the window is no longer than this, or the role sees no older rows."""
        self.first = self._check_commit(snapshot.tables)
        if len(self.first.dependencies) > len(tables):
            raise OvertakenError
        self.pinned: list[Snapshot] = []
        self.reads: list[SegmentRead] = []
        self.separate = SEPARATE_SLIDES
        """How many slides have states of their own; grows with the slides that come, so that little is read again."""
        self.rounds = 0
        """How often it was looked whether a slide has come."""
        self.absorbed = 0
        """How often slides were absorbed, one or several at once."""
        self.reread = 0
        """Reads that were repeated because more slides came than had states of their own."""
        self._states = f"{split.prefix}states"
        self._segments = tuple(segments)
        self._created = False
        self._numbers = itertools.count()

    def run(self) -> tuple[pa.Table, StreamSnapshot, CommitCheck]:
        """The answer, the view of the stream that it is of, and the check after which nothing newer was known."""
        try:
            for read in self._plan():
                self.between("read")
                self._take(read, self._clock())
                self.reads.append(read)
            return self._settle()
        finally:
            for snapshot in self.pinned:
                snapshot.close()

    # -- what is committed -----------------------------------------------------------------------------------------

    def _check_commit(self, tables_of: Any = None) -> CommitCheck:
        def check(tables: Tables) -> CommitCheck:
            time = times.to_datetime(self.store.clock())
            try:
                entry, state = find_stream(tables, self.stream.name)
            except UnknownStreamError:
                return CommitCheck(time, tables.version, None, ())
            same = entry.id == self.view.entry.id
            dependencies: tuple[Any, ...] = tuple(_find_table_file(tables, tables_of, name) for name in self.tables)
            if same and entry.definition != self.view.entry.definition:
                dependencies += ("the stream was altered",)  # other columns, another key or lifetime: begin again
            return CommitCheck(time, tables.version, state.slide if same else None, dependencies)

        return self.store.catalog.read(check)

    def _clock(self) -> int:
        """The slide that the stream has reached by now."""
        begun, slide = _slide_of(self.view), self._check_commit().slide
        return begun if slide is None else max(begun, slide)

    def _settle(self) -> tuple[pa.Table, StreamSnapshot, CommitCheck]:
        """Absorb, finish and check until nothing new has arrived."""
        covered = self.view
        while True:
            self.rounds += 1
            check = self._check_commit()
            if check.dependencies != self.first.dependencies and check.slide is not None:
                raise OvertakenError
            if check.slide is not None and check.slide > _slide_of(covered) and self.rounds < MAX_ABSORPTIONS:
                self.between("absorb")
                covered = self._absorb(covered)
                continue
            rows = self._finish(_slide_of(covered))
            self.between("check")
            check = self._check_commit()
            current = check.slide in (None, covered.state.slide) and check.dependencies == self.first.dependencies
            if current or check.slide is None or self.rounds >= MAX_ABSORPTIONS:
                return rows, covered, check

    def _absorb(self, covered: StreamSnapshot) -> StreamSnapshot:
        """Add the rows that a later slide added to `covered`, and repeat reads whose states are no longer valid."""
        snapshot = Snapshot(self.store, [self.stream.name], role=self.snapshot.role)
        self.pinned.append(snapshot)
        view = snapshot.view(self.stream.name)
        if view.entry != covered.entry:
            raise OvertakenError
        slide, upto = _slide_of(view), self._bounds(covered, _slide_of(covered)).upto
        segments = tuple(s for s in view.segments if s.last_slide > _slide_of(covered) or s.max_ts > upto)
        added = SegmentRead(next(self._numbers), view, self._bounds(view, slide).upto, segments, (covered, upto))
        self.separate = min(max(self.separate, 2 * (slide - _slide_of(self.view))), MAX_SEPARATE_SLIDES)
        self._take(added, slide)
        self.reads.append(added)
        for read in [read for read in self.reads if read.until <= slide]:
            self.cursor.execute(f"DELETE FROM {self._states} WHERE {self.split.prefix}read = {read.number}")
            if all(self._left(segment) < slide for segment in read.segments):
                self.reads.remove(read)
            else:
                self.reread += 1
                self._take(read, slide)
        self.absorbed += 1
        return view

    # -- reading ---------------------------------------------------------------------------------------------------

    def _plan(self) -> Iterator[SegmentRead]:
        """The snapshot's files, those that leave last first."""
        upto = self._bounds(self.view, _slide_of(self.view)).upto
        by_file: dict[str, list[Segment]] = {}
        for segment in self._segments:
            by_file.setdefault(segment.file, []).append(segment)
        files = sorted(by_file.values(), key=lambda segments: -min(map(self._leaves, segments)))
        together, size = list[Segment](), 0
        for segments in files:
            near = min(map(self._leaves, segments)) <= _slide_of(self.view) + SEPARATE_SLIDES
            far = bool(together) and min(map(self._leaves, together)) > _slide_of(self.view) + SEPARATE_SLIDES
            if together and (size >= READ_BYTES or (near and far)):
                yield SegmentRead(next(self._numbers), self.view, upto, tuple(together))
                together, size = [], 0
            together += segments
            size += sum(segment.bytes for segment in segments)
        yield SegmentRead(next(self._numbers), self.view, upto, tuple(together))

    def _leaves(self, segment: Segment) -> int:
        """The slide at which the first row of a segment leaves the window."""
        if self.length is None:
            return self.model.slot_of(segment.min_exp)
        return self.model.slot_of(min(segment.min_exp, segment.min_ts + self.length))

    def _left(self, segment: Segment) -> int:
        """The slide at which its last row has left the window."""
        if self.length is None:
            return self.model.slot_of(segment.max_exp)
        return self.model.slot_of(min(segment.max_exp, segment.max_ts + self.length))

    def _take(self, read: SegmentRead, slide: int) -> None:
        """Read the states of what is still in the window at `slide`."""
        split, prefix = self.split, self.split.prefix
        first = min(map(self._leaves, read.segments), default=_NEVER)
        last = max(map(self._left, read.segments), default=_NEVER)
        separate = max(1, min(self.separate, last - slide))
        far = first > slide + separate
        # States are valid until a row without a state of its own leaves: of a far read the first row, else the next.
        read.until = first if far else _NEVER if last <= slide + separate else slide + separate + 1
        states = f"SELECT {_bigint_sql(read.until)} AS {split.leave}, * FROM ({split.far})" if far else split.near
        self._store_states(
            self._rows(read, slide, 0 if far else separate),
            f"SELECT {_bigint_sql(read.number)} AS {prefix}read, * FROM ({states})",
        )

    def _store_states(self, rows: str, states: str) -> None:
        """Store the states of `rows`, which replace the stream in the statement; DuckDB would bind a view twice."""
        source = f"WITH {quote_name(self.stream.relation)} AS ({rows}) {states}"
        if self._created:
            self.cursor.execute(f"INSERT INTO {self._states} {source}", self._near)
            return
        self.cursor.execute(f"CREATE TEMP TABLE {self._states} AS {source}", self._near)
        self._created = True
        if not self.split.groups:
            # Without groups there is an answer even if no row is left: the state of nothing.
            self._store_states(empty_sql(self.view.schema), f"SELECT -1, {_NEVER}, * FROM ({self.split.far})")

    def _rows(self, read: SegmentRead, slide: int, separate: int) -> str:
        """The rows of a read that are in the window at `slide`, with which of the next `apart` slides they leave at."""
        now = self._bounds(read.view, slide)
        bounds = WindowBounds(now.after, read.upto, now.now)
        names = ", ".join(quote_name(name) for name in self._names)
        if separate:
            names += f", {self._leave_case(slide, separate)} AS {self.split.leave}"
        return " UNION ALL ".join(f"SELECT {names} FROM ({part})" for part in self._parts_of(read, bounds))

    def _parts_of(self, read: SegmentRead, bounds: WindowBounds) -> Iterator[str]:
        view = read.view
        if read.beyond is None:
            yield self._offered("read", view, select_segments(read.segments, bounds))
            return
        covered, upto = read.beyond
        slide = _slide_of(covered)
        fresh = [s for s in read.segments if s.first_slide > slide]
        older = [s for s in read.segments if s.last_slide <= slide]
        ahead = changed(bounds, after=upto if bounds.after is None else max(bounds.after, upto))
        yield self._offered("fresh", view, select_segments(fresh, bounds))
        if older:
            yield self._offered("ahead", view, select_segments(older, ahead))
        # Segments merged from rows of both kinds: each row's sequence tells which slide added it.
        mixed = [s for s in read.segments if s.first_slide <= slide < s.last_slide]
        limit, stored = (covered.state.ordinal + 1) << SEQ_BITS, pa.schema([*view.schema, pa.field(SEQ, pa.int64())])
        after = f"{quote_name(self.model.time)} > {timestamp_literal(upto, view.schema.field(self.model.time).type)}"
        for base in {segment.seq_base for segment in mixed}:
            segments = [s for s in mixed if s.seq_base == base]
            chosen = select_segments(segments, bounds)
            self.store.reader.verify_columns({segment.file for segment in segments}, stored.names)
            older_files = find_older_files(view.entry.definition, segments, self.store.reader)
            rows = window_sql(self.store.root, self.model, stored, chosen, find_partial_files(segments), older_files)
            yield f"SELECT * FROM ({rows}) WHERE {quote_name(SEQ)} + {base} >= {limit} OR {after}"

    def _offered(self, what: str, view: StreamSnapshot, selection: Selection) -> str:
        """A query for the rows of a selection."""
        name = f"{self.split.prefix}{what}"
        torn = find_partial_files(selection.segments)
        read = plan_window(self.snapshot, self.pooled, view, selection, self._names, torn)
        self.pooled.create_view(name, read.sql)
        return f"SELECT * FROM {name}"

    def _leave_case(self, slide: int, separate: int) -> str:
        """When a row leaves, as SQL: one of the next slides, or later."""
        lifetime = self.model.lifetime if self.model.expires is None else None
        lives = [length for length in (self.length, lifetime) if length is not None]
        schema, cases = self.view.schema, []
        for leave in range(slide + 1, slide + separate + 1):
            end, terms = self.model.slot_end(leave), []
            if lives:
                oldest = timestamp_literal(end - min(lives), schema.field(self.model.time).type)
                terms.append(f"{quote_name(self.model.time)} <= {oldest}")
            if self.model.expires is not None:
                expired = timestamp_literal(end, schema.field(self.model.expires).type)
                terms.append(f"{quote_name(self.model.expires)} <= {expired}")
            if terms:
                cases.append(f"WHEN {' OR '.join(terms)} THEN {_bigint_sql(leave)}")
        later = _bigint_sql(slide + separate + 1)
        return f"CASE {' '.join(cases)} ELSE {later} END" if cases else later

    def _bounds(self, view: StreamSnapshot, slide: int) -> WindowBounds:
        bounds = find_bounds(changed(view, state=replace(view.state, slide=slide)), self.stream.window)
        assert bounds is not None
        return bounds

    # -- finishing -------------------------------------------------------------------------------------------------

    def _finish(self, slide: int) -> pa.Table:
        """The user's rows out of the states of all rows that are in the window at `slide`."""
        groups, aggregates = self.split.columns
        columns = [*groups, *(f"finalize(combine_aggr({name})) AS {name}" for name in aggregates)]
        grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
        source = f"SELECT {', '.join(columns)} FROM {self._states} WHERE {self.split.leave} > {slide}{grouped}"
        self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {self.split.finished} AS {source}")
        rows: pa.Table = self.cursor.sql(
            self.split.final, params=select_parameters(self.params, self.split.final_parameters)
        ).to_arrow_table()
        return rows


def select_parameters(params: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The parameters that a part of the statement takes; DuckDB refuses others."""
    return {name: value for name, value in params.items() if name in names}


def _bigint_sql(number: int) -> str:
    """A number as an SQL constant of one type, however small it is."""
    return f"CAST({number} AS BIGINT)"


def _slide_of(view: StreamSnapshot) -> int:
    assert view.state.slide is not None
    return view.state.slide


def _find_table_file(tables: Tables, entries: Any, name: str) -> str | None:
    """Which version of a table there is, in a snapshot or in the catalog."""
    entry = entries.get(name) if entries is not None else tables.get("tables", name.encode())
    return None if entry is None else str(entry.file)
