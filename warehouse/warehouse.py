"""The front door: `Warehouse`, over one directory. Every method is a thin step into the module that does the work.

The part of the front door through which a live stream is changed.

What follows streams: synopses, views and periodic queries, each kind loaded when a stream has one.

Waiting for a stream's clock, whoever moves it.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from windrow import arguments, ddl, times
from windrow.advisor import Advice, advise, follow_advice
from windrow.append import Append, AppendReport
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import StreamEntry
from windrow.check import CheckReport, check_warehouse
from windrow.ddl import alter_stream
from windrow.errors import BusyError
from windrow.files import FileSystem
from windrow.indexes.partitioners import Index
from windrow.open_store import open_store
from windrow.reclaim import GcReport, collect_garbage
from windrow.reference_tables import drop_table, put_table
from windrow.rejected_rows import discard_rejected, read_rejected, replay_rejected
from windrow.relayout import STEP_BYTES, RelayoutReport, cancel_relayout, move_all, relayout
from windrow.slide import Slide, SlideReport
from windrow.slide_hooks import PrepareAppend, PrepareContribution, SlideHook
from windrow.snapshot import Snapshot, load_stream
from windrow.sources import fail_source, heartbeat
from windrow.status import StreamStatus, WarehouseStatus, stream_status, warehouse_status
from windrow.store import Store
from windrow.times import format_time

if TYPE_CHECKING:
    from windrow.queries.answer import Answer, Explanation
    from windrow.queries.periodic.query_plan import QueryPlanGroup
    from windrow.queries.periodic.registry import QueryStatus
    from windrow.queries.periodic.runner import RunReport
    from windrow.queries.views.ddl import View


class StreamChanges:
    """Layouts, search keys, columns and lifetimes of streams that are in use."""

    _store: Store

    def alter_stream(
        self,
        stream: str,
        *,
        add_column: tuple[str, pa.DataType] | pa.Field | None = None,
        lifetime: times.Duration | None = None,
        max_lifetime: times.Duration | None = None,
        slack: times.Duration | None = None,
        max_skew: times.Duration | None = None,
        max_ahead: times.Duration | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Change a stream while it is in use; what is not given stays as it is. One transaction.

        Args:
            stream: Its name.
            add_column: A pair (name, Arrow type) or a nullable field; stored rows have null there, and so do rows that
                are appended without it.
            lifetime: How long every row lives, stored rows too; ``"forever"`` for rows that never expire. Rows that
                have expired stay gone. Only for streams whose rows all live equally long.
            max_lifetime: The longest that rows to come may live, on a stream with `expires`; stored rows keep theirs.
            slack: How far out of order the rows of a source may be.
            max_skew: How far a silent source may fall behind before it is spoken for; ``"never"`` to wait for it.
            max_ahead: How far ahead of the wall clock a row may be.
            timeout: Seconds to wait for a slide.
        """
        alter_stream(
            self._store,
            stream,
            add_column=add_column,
            lifetime=lifetime,
            max_lifetime=max_lifetime,
            slack=slack,
            max_skew=max_skew,
            max_ahead=max_ahead,
            timeout=timeout,
        )

    def relayout(
        self,
        stream: str,
        index: Index | str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        move: bool | str = False,
        budget: int = STEP_BYTES,
        timeout: float = 60.0,
        progress: Callable[[RelayoutReport], None] | None = None,
    ) -> RelayoutReport:
        """Turn a stream to another layout or search key while it is read and written; answers stay exact throughout.

        Args:
            stream: Its name.
            index: An `Index`, ``"auto"``, or None to keep the one it has.
            key: Another search key, one column or several; None keeps the one it has, ``[]`` takes it away.
            move: False: rows go to the new layout as they come, older ones leave as they expire. ``"steps"``: besides,
                each slide moves stored rows. ``"now"``: stored rows are moved before this returns, step by step.
            budget: Bytes that one step moves at most; at least one segment.
            timeout: Seconds to wait for a slide.
            progress: Called after each step of ``"now"``.
        """
        return relayout(self._store, stream, index, key, move=move, budget=budget, timeout=timeout, progress=progress)

    def advise(self, stream: str, among: Sequence[Index] | None = None) -> Advice:
        """What layout and search key would serve a stream best, by what was measured of its rows and queries.

        Args:
            stream: Its name; it must have taken rows in.
            among: Only these layouts (and the present one); by default all that are worth a look.
        """
        return advise(self._store, stream, among)

    def relayout_step(self, stream: str, *, budget: int = STEP_BYTES, timeout: float = 60.0) -> RelayoutReport:
        """Move at most `budget` bytes of stored rows (at least one segment) from older layouts into the current one."""
        return move_all(self._store, stream, budget=budget, steps=1, timeout=timeout)

    def cancel_relayout(self, stream: str, *, timeout: float = 60.0) -> RelayoutReport:
        """Go back to the layout and key before a change that is under way; rows that were moved leave by expiring."""
        return cancel_relayout(self._store, stream, timeout)


def _load_retention_hook() -> PrepareContribution:
    from windrow.queries.periodic.retained_slides import prepare_retention

    return prepare_retention


def _load_synopsis_hook() -> PrepareContribution:
    from windrow.queries.synopses.maintenance import prepare_synopses

    return prepare_synopses


def _load_append_tally() -> PrepareAppend:
    from windrow.queries.synopses.tally import tally_rows

    return tally_rows


def _load_view_hook() -> PrepareContribution:
    from windrow.queries.views.slide_hook import prepare_views

    return prepare_views


def _needed_by_views(tables: Tables, entry: StreamEntry, now: int) -> int | None:
    from windrow.queries.views.slide_hook import find_needed_rows

    return find_needed_rows(tables, entry, now)


SLIDE_HOOKS: tuple[SlideHook, ...] = (
    SlideHook("views", _load_view_hook, _needed_by_views),  # first: what keeps a slide keeps that of its views too
    SlideHook("keepers", _load_retention_hook),
    SlideHook("synopses", _load_synopsis_hook, tally=_load_append_tally),
)
"""What changes with a slide, and what appends do for it."""


_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


def wait_for_clock(store: Store, stream: str, up_to: int, timeout: float | None) -> None:
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
            view = store.catalog.read(lambda tables: load_stream(store, tables, stream))
            waiting = view.progress().waiting_for()
            why = f"it waits for {', '.join(waiting)}" if waiting else "nobody has slid it"
            raise BusyError(
                f"stream {stream!r} has reached {format_time(view.now)}, not {format_time(up_to)}, within {timeout:g} s: {why}"
            )
        store.sleep(pause)
        waited += pause
        pause = min(pause * 2, _LONGEST_PAUSE)


class Warehouse(StreamChanges):
    """A disk-archived sliding-window warehouse.

    Many processes may open the same folder; each opens its own handle. Use it as a context manager or call `close`.

    Args:
        path: The folder; it is created if it is missing.
        catalog: Where the catalog lies, if not inside `path`; it must be on a local disk.
        read_only: Refuse every change through this handle; nothing is removed or created.
        create: Create the warehouse if the folder holds none.
        clock: Wall clock in microseconds since the epoch.
        sleep: How to wait.
        files: The disk.
        randomness: For names.
        cache_bytes: How much of the columns that queries read may be kept in memory; by default an eighth of the
            machine's, at most a gigabyte; 0 keeps none.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        catalog: str | Path | None = None,
        read_only: bool = False,
        create: bool = True,
        clock: Callable[[], int] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        files: FileSystem | None = None,
        randomness: random.Random | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._store = open_store(
            Path(path),
            catalog=None if catalog is None else Path(catalog),
            read_only=read_only,
            create=create,
            clock=clock,
            sleep=sleep,
            files=files or FileSystem(),
            randomness=randomness,
            cache_bytes=cache_bytes,
        )

    @property
    def path(self) -> Path:
        """The warehouse's folder."""
        return self._store.root

    def create_stream(
        self,
        name: str,
        schema: pa.Schema,
        *,
        time: str,
        key: str | Sequence[str] | None = None,
        slide: times.Duration,
        lifetime: times.Duration | None = None,
        expires: str | None = None,
        max_lifetime: times.Duration | None = None,
        index: Index | str = "auto",
        sources: Sequence[str] | None = None,
        slack: times.Duration = "0 seconds",
        max_skew: times.Duration | None = None,
        max_ahead: times.Duration = "1 hour",
        origin: times.Instant | None = None,
        on_source_failure: str = "block",
    ) -> None:
        """Declare a stream.

        Args:
            name: Letters, digits, ``_`` and ``-``.
            schema: Arrow schema of its rows.
            time: The event-time column, a timestamp.
            key: The search key, one column or several.
            slide: Δ, the update interval.
            lifetime: How long every row lives. Leave it and `expires` out for rows that never expire.
            expires: The column with each row's own expiry; needs `max_lifetime`.
            max_lifetime: The longest that a row may live.
            index: An `Index`, or ``"auto"`` to choose by update pattern.
            sources: Names of the sources that must all have reached a slot before the stream slides past it.
            slack: How far out of order the rows of a source may be.
            max_skew: How far a silent source may fall behind the others before it is spoken for.
            max_ahead: How far ahead of the wall clock a row may be.
            origin: τ₀, where slots are aligned; by default the Unix epoch.
            on_source_failure: ``"block"`` or ``"exclude"`` a source that is declared failed.
        """
        ddl.create_stream(
            self._store,
            name,
            schema,
            time=time,
            key=key,
            slide=slide,
            lifetime=lifetime,
            expires=expires,
            max_lifetime=max_lifetime,
            index=index,
            sources=sources,
            slack=slack,
            max_skew=max_skew,
            max_ahead=max_ahead,
            origin=origin,
            on_source_failure=on_source_failure,
        )

    def drop_stream(self, name: str) -> None:
        """Remove a stream and its rows; readers that have pinned it go on reading."""
        ddl.drop_stream(self._store, name)

    def streams(self) -> list[str]:
        """Names of the streams."""
        return self._store.catalog.read(lambda tables: [at.decode() for at, _ in tables.raw_items("streams")])

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        key: str | Sequence[str] | None = None,
        restore: bool = False,
        index: Index | str = "auto",
        retroactive: str | Sequence[str] = (),
        slide: times.Duration | None = None,
        time: str = "_ts",
        expires: str = "_exp",
    ) -> "View":
        """Declare a derived stream; it is filled at once, and moves in the slides of its inputs from then on.

        Args:
            name: Letters, digits, ``_`` and ``-``.
            sql: Such as ``SELECT a.k, a.x, b.y FROM a [WINDOW 10 MINUTES] JOIN b [WINDOW 5 MINUTES] ON a.k = b.k``.
            key: The search key, among its columns.
            restore: Also show results that lived and died between two slides, once, at the later one.
            index: An `Index`, or ``"auto"`` to choose by update pattern.
            retroactive: Tables whose changes also affect results that are there already; the view is then recomputed.
            slide: Its update interval; by default the longest that meets every slide of its inputs.
            time: What to call the column with the time of a result, the latest of its parts' times.
            expires: What to call the column with its expiry, the earliest of its parts'.
        """
        from windrow.queries.views import ddl

        return ddl.create_view(
            self._store,
            name,
            sql,
            key=key,
            restore=restore,
            index=index,
            retroactive=(retroactive,) if isinstance(retroactive, str) else tuple(retroactive),
            slide=slide,
            time=time,
            expires=expires,
        )

    def drop_view(self, name: str) -> None:
        """Remove a view and its rows; readers that have pinned it go on reading."""
        ddl.drop_stream(self._store, name, view=True)

    def views(self) -> "list[View]":
        """What is known of each view: its statement, inputs, update pattern and why, clock and whom it waits for."""
        from windrow.queries.views import ddl

        return ddl.list_views(self._store)

    def append(self, stream: str, data: Any, *, source: str | None = None, batch_id: str | None = None) -> AppendReport:
        """Spool rows: durable when this returns, in the window after the next slide.

        Args:
            stream: Its name.
            data: An Arrow table, batches or reader, a pandas or polars frame, or a DuckDB relation.
            source: Which of the stream's sources the rows come from.
            batch_id: Appending the same (source, batch_id) again changes nothing.
        """
        return Append(self._store, stream, source, batch_id, SLIDE_HOOKS).run(data)

    def heartbeat(self, stream: str, *, source: str | None = None, up_to: times.Instant) -> None:
        """Promise that nothing at or before `up_to` will follow from a source."""
        heartbeat(self._store, stream, source, times.parse_instant(up_to, "up_to"))

    def fail_source(self, stream: str, source: str, reason: str = "declared failed") -> None:
        """Declare a source failed; `on_source_failure` says what happens. Its next append or heartbeat revives it."""
        fail_source(self._store, stream, source, reason)

    def slide(
        self, stream: str, to: times.Instant | None = None, *, force: bool = False, timeout: float = 60.0
    ) -> SlideReport:
        """Move the stream's clock: spooled rows come in, expired rows go, in one transaction.

        Args:
            stream: Its name.
            to: Slide to the last slot end at or before this time; by default as far as the sources allow.
            force: Slide even if a declared source is behind; answers then say who was missing.
            timeout: Seconds to wait for another slide of the same stream.
        """
        target = None if to is None else times.parse_instant(to, "to")
        report = Slide(self._store, stream, target, force, timeout, SLIDE_HOOKS).run()
        if report.moved:
            follow_advice(self._store, stream)
        return report

    def now(self, stream: str) -> Any:
        """The stream's clock as a UTC datetime, None before its first slide."""
        status = stream_status(self._store, stream)
        return None if status.now is None else times.to_datetime(status.now)

    def wait_for(self, stream: str, *, up_to: times.Instant, timeout: float | times.Duration | None = None) -> None:
        """Wait until the stream's clock has reached `up_to`, whoever slides it."""
        limit = None if timeout is None else 0.0 if timeout == 0 else times.parse_seconds(timeout, "timeout")
        wait_for_clock(self._store, stream, times.parse_instant(up_to, "up_to"), limit)

    def scan(
        self, stream: str, window: times.Duration | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a window (by default all live rows), streamed, consistent with one slide."""
        return Snapshot(self._store, [stream]).scan(stream, window, columns)

    def probe(
        self,
        stream: str,
        key: Any = None,
        *,
        keys: Sequence[Any] | None = None,
        between: tuple[Any, Any] | None = None,
        window: times.Duration | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of a window whose key equals `key`, is one of `keys`, or lies in `between` (both ends included).

        For a composite key give a tuple; a shorter tuple finds all keys that begin with it. None is the key that
        is null; nulls come before all other keys, so ``between=(None, 5)`` has them too.
        """
        with Snapshot(self._store, [stream]) as snapshot:
            return snapshot.probe(stream, key, keys=keys, between=between, window=window, columns=columns)

    def snapshot(self, streams: Sequence[str] | None = None) -> Snapshot:
        """A pinned, consistent view of all (or the named) streams."""
        return Snapshot(self._store, streams)

    def sql(
        self,
        statement: str,
        params: Sequence[Any] | dict[str, Any] | None = None,
        *,
        isolation: str = "snapshot",
        timeout: float | times.Duration | None = None,
        memory_limit: str | None = None,
    ) -> "Answer":
        """Ask in DuckDB's SQL, with window clauses behind the names of streams.

        Args:
            statement: Such as ``SELECT src, sum(len) FROM packets [WINDOW 10 MINUTES] GROUP BY src``.
            params: Bound to ``?``, ``$1`` or ``$name``.
            isolation: ``snapshot`` (one whole slide), ``latest`` (the last slide committed when the answer is finished)
                or ``serial`` (slides wait for the query).
            timeout: Seconds after which the query is cancelled.
            memory_limit: Such as ``"500MB"``; what needs more is spilled to disk, or refused.
        """
        from windrow.queries import isolation as levels

        arguments.check_statement(statement, params)
        limit = None if timeout is None else times.parse_seconds(timeout, "timeout")
        return levels.answer_query(
            self._store, statement, params, isolation=isolation, timeout=limit, memory_limit=memory_limit
        )

    def explain(self, statement: str, params: Sequence[Any] | dict[str, Any] | None = None) -> "Explanation":
        """What a statement would read: cells, segments, rows and bytes before and after pruning, and DuckDB's plan."""
        from windrow.queries import execution

        arguments.check_statement(statement, params)
        return execution.explain(self._store, statement, params)

    def add_query(
        self,
        name: str,
        sql: str,
        *,
        params: Sequence[Any] | dict[str, Any] | None = None,
        slide: times.Duration | None = None,
        sink: str | None = None,
        priority: int = 0,
        missed: str = "latest",
        output: str = "whole",
        keep: int | times.Duration | None = None,
        timeout: float | times.Duration | None = None,
    ) -> "QueryStatus":
        """Register a periodic query, after running it once: it is answered again each time its window has moved on.

        Args:
            name: Of the query, and of the table that its results are asked under.
            sql: With ``[WINDOW 10 MINUTES SLIDE 2 MINUTES]`` behind the streams that pace it.
            params: Bound to ``?``, ``$1`` or ``$name`` in every run.
            slide: The period of streams whose clause names none.
            sink: Also write each run to a file: ``"parquet"``, ``"csv"``, ``"jsonl"`` or ``"html"``, in the
                warehouse's ``results/<name>/`` or in a folder of yours, as in ``"csv:/reports"``.
            priority: Higher ones are run first.
            missed: Of runs that nobody made in time, make the ``"latest"``, ``"every"`` one, or ``"skip"`` them.
            output: The ``"whole"`` answer, or only the ``"inserts"`` or ``"deletes"`` since the one before.
            keep: How many runs, or for how long, the results table keeps; by default 1000 runs.
            timeout: Seconds after which a run is cancelled; by default 600.
        """
        from windrow.queries.periodic import registry

        return registry.add_query(
            self._store,
            name,
            sql,
            params=params,
            slide=slide,
            sink=sink,
            priority=priority,
            missed=missed,
            output=output,
            keep=keep,
            timeout=timeout,
        )

    def promote(
        self, answer: "Answer | str", name: str, *, slide: times.Duration | None = None, **delivery: Any
    ) -> "QueryStatus":
        """Make a periodic query of one that was asked once, every `slide`; `delivery` is what `add_query` takes."""
        from windrow.queries.periodic import registry

        return registry.promote_statement(self._store, answer, name, slide=slide, **delivery)

    def queries(self) -> "list[QueryStatus]":
        """The periodic queries and how they are doing."""
        from windrow.queries.periodic import registry

        return registry.list_queries(self._store)

    def drop_query(self, name: str) -> None:
        """Remove a periodic query and its results."""
        from windrow.queries.periodic import registry

        registry.drop_query(self._store, name)

    def run_due(
        self, names: Sequence[str] | None = None, *, now: bool = False, policy: str = "hybrid+late-pending"
    ) -> "list[RunReport]":
        """Run the periodic queries that are due and deliver their results, each run exactly once.

        Args:
            names: Only these.
            now: Run them for the newest slide even if they are not due.
            policy: Which of them are answered together, and in which order: ``no-sharing``, ``aggressive``,
                ``conservative``, ``hybrid``, ``hybrid+late`` or ``hybrid+late-pending``.
        """
        from windrow.queries.periodic import runner

        wanted = None if names is None else arguments.check_names(names, "names")
        return runner.run_due(self._store, wanted, now=now, policy=policy)

    def query_plan(self) -> "list[QueryPlanGroup]":
        """Which periodic queries are answered together, what they share and why."""
        from windrow.queries.periodic import query_plan

        return query_plan.plan_queries(self._store)

    def results(self, name: str, *, slide: int | None = None) -> "Answer":
        """What a periodic query has delivered, oldest run first; also to be had in SQL, under the query's name.

        Args:
            name: Of the query.
            slide: Only the run of that slide.
        """
        from windrow.queries.periodic import registry

        return registry.read_results(self._store, name, slide)

    def rejected(self, stream: str) -> pa.Table:
        """The rows that were not taken, with ``_reason, _source, _batch, _rejected_at`` behind their own columns."""
        return read_rejected(self._store, stream)

    def replay(self, stream: str) -> AppendReport:
        """Append the rejected rows again; those that are still not acceptable stay rejected."""
        return replay_rejected(self._store, stream)

    def discard_rejected(self, stream: str) -> int:
        """Throw the rejected rows away; gives how many there were."""
        return discard_rejected(self._store, stream)

    def put_table(self, name: str, data: Any) -> int:
        """Store a small relation to join with, or replace it atomically; gives its number of rows."""
        return put_table(self._store, name, data)

    def drop_table(self, name: str) -> None:
        """Remove a table."""
        drop_table(self._store, name)

    def tables(self) -> list[str]:
        """Names of the tables."""
        return self._store.catalog.read(lambda tables: [at.decode() for at, _ in tables.raw_items("tables")])

    def stream(self, name: str) -> StreamStatus:
        """All that is known of one stream: definition, index and why, clock, sources, sizes."""
        return stream_status(self._store, name)

    def status(self) -> WarehouseStatus:
        """The state of the warehouse: each stream's clock, whom it waits for, sizes, readers."""
        return warehouse_status(self._store)

    def check(self, progress: Callable[[str], None] | None = None) -> CheckReport:
        """Verify everything: files, checksums, order, directories, cells, synopses; nothing is changed."""
        report = check_warehouse(self._store, progress)
        if not self._store.catalog.read(lambda tables: next(iter(tables.raw_items("synopses")), None) is not None):
            return report
        from windrow.queries.synopses.check import find_problems

        return replace(report, problems=(*report.problems, *find_problems(self._store)))

    def gc(self) -> GcReport:
        """Remove what can go now. Slides do this as they pass; answers never depend on it."""
        return collect_garbage(self._store)

    def close(self) -> None:
        """Close the handle. Snapshots and readers that are still open keep their files, not their catalog."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
