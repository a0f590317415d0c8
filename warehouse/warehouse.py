"""The front door: `Warehouse`, over one directory. Every method is a thin step into the module that does the work.

Here, too, is the list of slide hooks, each of which is imported when a stream needs it.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
from msgspec.structs import replace as with_fields

from windrow import arguments, times
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream, refuse_hidden
from windrow.catalog.records import StreamEntry
from windrow.definitions import is_hidden, make_definition
from windrow.errors import BusyError, DefinitionError, QueryError, StorageError
from windrow.files import FileSystem
from windrow.formats.html import TableList
from windrow.indexes.partitioners import Index
from windrow.layouts import STEP_BYTES
from windrow.open_store import make_store_options, open_store
from windrow.slide_hooks import PrepareAppend, PrepareContribution, SlideHook
from windrow.snapshot import Snapshot, load_stream
from windrow.store import Store
from windrow.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windrow.advisor import Advice
    from windrow.append import AppendReport
    from windrow.backup import BackupReport
    from windrow.check import CheckReport
    from windrow.cli.flawed_lines import FlawedLines
    from windrow.erasure import EraseReport
    from windrow.gaps import Gap
    from windrow.publication import Publication
    from windrow.queries.answer import Answer, Explanation
    from windrow.queries.periodic.query_plan import QueryPlanGroup
    from windrow.queries.periodic.registry import QueryStatus
    from windrow.queries.periodic.runner import RunReport
    from windrow.queries.synopses.summaries import Summary
    from windrow.queries.views.ddl import View
    from windrow.reclaim import GcReport
    from windrow.relayout import RelayoutReport
    from windrow.repair import RepairReport
    from windrow.row_checks import Checks
    from windrow.schema_changes import Column
    from windrow.slide import SlideReport
    from windrow.status import StreamStatus, WarehouseStatus


FailurePolicy = Literal["block", "exclude"]
CheckOutcome = Literal["reject", "refuse"]
GapPolicy = Literal["tell", "error"]
RunGapPolicy = Literal["tell", "error", "wait"]
RunIsolation = Literal["snapshot", "latest"]
Isolation = Literal["snapshot", "latest", "serial", "fresh"]
Evolution = Literal["add", "widen"]
MissedRuns = Literal["latest", "every", "skip"]
Output = Literal["whole", "inserts", "deletes"]
Durability = Literal["disk", "store"]
Engine = Literal["duckdb", "spark"]
Policy = Literal["no-sharing", "aggressive", "conservative", "hybrid", "hybrid+late", "hybrid+late-pending"]


class StreamChanges:
    """Layouts, search keys, columns and lifetimes of streams that are in use."""

    _store: Store

    def _seen(self, name: str) -> str:
        """A name of a stream or view that users see."""
        return refuse_hidden(self._store.catalog, name)

    def alter_stream(
        self,
        stream: str,
        *,
        add_column: "Column | None" = None,
        widen_column: "Column | None" = None,
        lifetime: times.Duration | None = None,
        max_lifetime: times.Duration | None = None,
        slack: times.Duration | None = None,
        max_skew: times.Duration | None = None,
        max_ahead: times.Duration | None = None,
        checks: Mapping[str, CheckOutcome] | None = None,
        rejected_retention: times.Duration | None = None,
        history: times.Duration | None = None,
        erase_within: times.Duration | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Change a stream while it is in use; what is not given stays as it is. One transaction.

        Args:
            stream: Its name.
            add_column: A pair (name, Arrow type) or a nullable field; stored rows have null there, and so do rows that
                are appended without it.
            widen_column: A column and its new type, of which every value of the old type must be one: larger integers,
                double for float, decimals with more digits. Files stay as they are, and are read as the wider type.
            lifetime: How long every row lives, stored rows too; ``"forever"`` for rows that never expire. Rows that
                have expired stay gone. Only for streams whose rows all live equally long.
            max_lifetime: The longest that rows to come may live, on a stream with `expires`; stored rows keep theirs.
            slack: How far out of order the rows of a source may be.
            max_skew: How far a silent source may fall behind before it is spoken for; ``"never"`` to wait for it.
            max_ahead: How far ahead of the wall clock a row may be.
            checks: In place of the checks that it has, for rows to come; ``{}`` takes them away.
            rejected_retention: How long rejected rows are kept; ``"forever"`` until somebody discards them.
            history: How long expired rows are kept aside and earlier slides can be asked again; ``"none"`` gives up
                what there is. What has gone already does not come back.
            erase_within: How long after its expiry, or the end of the history, a file may hold a row; ``"none"``
                takes the limit away.
            timeout: Seconds to wait for a slide.
        """
        from windrow.ddl import Alteration, alter_stream

        stream, predicates = self._seen(stream), None
        if checks is not None:
            entry, _ = self._store.catalog.read(lambda tables: find_stream(tables, stream))
            predicates = _check_predicates(stream, entry.definition.schema, checks)
        limits = {
            "slack": slack, "max_skew": max_skew, "max_ahead": max_ahead, "rejected_retention": rejected_retention,
            "history": history, "erase_within": erase_within,
        }  # fmt: skip
        change = Alteration(add_column, widen_column, lifetime, max_lifetime, predicates, limits)
        alter_stream(self._store, stream, change, timeout)
        if widen_column is not None:
            from windrow.queries.periodic.registry import renew_result_types
            from windrow.queries.synopses.synopsis_choice import renew_synopses

            renew_result_types(self._store, stream)
            renew_synopses(self._store)
        if add_column is not None or widen_column is not None or erase_within is not None:
            from windrow.queries.periodic.join_views import renew_join_views

            renew_join_views(self._store, stream)

    def relayout(
        self,
        stream: str,
        index: Index | str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        move: bool | Literal["steps", "now"] = False,
        budget: int = STEP_BYTES,
        timeout: float = 60.0,
        progress: Callable[["RelayoutReport"], None] | None = None,
    ) -> "RelayoutReport":
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
        from windrow.relayout import relayout

        stream = self._seen(stream)
        return relayout(self._store, stream, index, key, move=move, budget=budget, timeout=timeout, progress=progress)

    def advise(self, stream: str, among: Sequence[Index] | None = None) -> "Advice":
        """What layout and search key would serve a stream best, by what was measured of its rows and queries.

        Args:
            stream: Its name; it must have taken rows in.
            among: Only these layouts (and the present one); by default all that are worth a look.
        """
        from windrow.advisor import advise

        return advise(self._store, self._seen(stream), among)

    def relayout_step(self, stream: str, *, budget: int = STEP_BYTES, timeout: float = 60.0) -> "RelayoutReport":
        """Move at most `budget` bytes of stored rows (at least one segment) from older layouts into the current one."""
        from windrow.relayout import move_all

        return move_all(self._store, self._seen(stream), budget=budget, steps=1, timeout=timeout)

    def cancel_relayout(self, stream: str, *, timeout: float = 60.0) -> "RelayoutReport":
        """Go back to the layout and key before a change that is under way; rows that were moved leave by expiring."""
        from windrow.relayout import cancel_relayout

        return cancel_relayout(self._store, self._seen(stream), timeout)

    def publish(
        self,
        stream: str,
        format: Literal["delta"] = "delta",
        *,
        every: times.Duration | None = None,
        hold: times.Duration | None = None,
    ) -> "Publication":
        """Publish the live rows of a stream or view as a Delta table beside its segments; no row is copied.

        Slides write the next version. Called again, it changes the intervals that are given and publishes at once.

        Args:
            stream: Its name.
            format: What is written.
            every: At most one version in this time, by the wall clock; a minute if nothing else was said.
            hold: How long a reader of a version that was replaced finds its files; ten minutes if nothing was said.
        """
        from windrow.publication import publish

        return publish(self._store, self._seen(stream), format, every, hold)

    def unpublish(self, stream: str) -> None:
        """End the publication of a stream; the table's log is removed, the rows stay."""
        from windrow.publication import unpublish

        unpublish(self._store, self._seen(stream))

    def publications(self) -> "list[Publication]":
        """The streams that are published, and where."""
        from windrow.publication import list_publications

        return TableList(list_publications(self._store))


def _check_predicates(stream: str, schema: pa.Schema, checks: Mapping[str, str]) -> "Checks":
    from windrow.queries.sql.row_predicate import check_predicates

    return check_predicates(stream, schema, checks)


def _load_retention_hook() -> PrepareContribution:
    from windrow.queries.periodic.retained_slides import prepare_retention

    return prepare_retention


def _load_synopsis_hook() -> PrepareContribution:
    from windrow.queries.synopses.maintenance import prepare_synopses

    return prepare_synopses


def _load_summary_hook() -> PrepareContribution:
    from windrow.queries.synopses.summaries import prepare_summaries

    return prepare_summaries


def _load_append_hook() -> PrepareAppend:
    from windrow.queries.synopses.tally import tally_rows

    return tally_rows


def _load_view_hook() -> PrepareContribution:
    from windrow.queries.views.slide_hook import prepare_views

    return prepare_views


def _load_publication_hook() -> PrepareContribution:
    from windrow.publication import prepare_version

    return prepare_version


def _needed_by_views(tables: Tables, entry: StreamEntry, now: int) -> int | None:
    from windrow.queries.views.slide_hook import find_needed_rows

    return find_needed_rows(tables, entry, now)


SLIDE_HOOKS: tuple[SlideHook, ...] = (
    SlideHook("views", _load_view_hook, _needed_by_views),  # first: what keeps a slide keeps that of its views too
    SlideHook("keepers", _load_retention_hook),
    SlideHook("synopses", _load_synopsis_hook, load_append=_load_append_hook),
    SlideHook("summaries", _load_summary_hook),
    SlideHook("publications", _load_publication_hook, after_merges=True),
)
"""What changes with a slide, and what appends do for it."""


def check_durability(store: Store, durable: str) -> None:
    """Refuse to wait for what cannot come."""
    if durable not in ("disk", "store"):
        raise DefinitionError(f"durable={durable!r} must be 'disk' or 'store'")
    if durable == "store" and store.remote is None:
        raise StorageError(
            f"durable='store' waits for the object store of a warehouse, and {store.root} has none; "
            "give it one with windrow.open(…, segments='s3://bucket/prefix')"
        )


def note_copy(store: Store, report: "AppendReport", durable: Durability) -> "AppendReport":
    """The report of an append, with what of the catalog is in the object store; waits for that if it is asked to."""
    if store.remote is None:
        return report
    copy = store.remote.wait_for_copy() if durable == "store" else store.remote.last_copy()
    return replace(report, copied_commit=None if copy is None else copy.commit, durable=durable)


_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


def wait_for_clock(store: Store, stream: str, up_to: int, timeout: float | None) -> None:
    """Return when the clock has reached `up_to`; say who holds it up if it has not within `timeout` seconds."""
    waited, pause, last_seen = 0.0, _FIRST_PAUSE, -1
    while True:
        latest = store.catalog.last_transaction()
        if latest != last_seen:
            last_seen, pause = latest, _FIRST_PAUSE
            entry, state = store.catalog.read(lambda tables: find_stream(tables, stream))
            if state.slide is not None and entry.definition.model.slot_end(state.slide) >= up_to:
                return
        if timeout is not None and waited >= timeout:
            view = store.catalog.read(lambda tables: load_stream(store, tables, stream))
            waiting = view.progress().waiting_for()
            why = f"it waits for {', '.join(waiting)}" if waiting else "nobody has slid it"
            raise BusyError(
                f"stream {stream!r} has reached {format_time(view.now)}, not {format_time(up_to)}, "
                f"within {timeout:g} s: {why}"
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
        memory: How much memory the statements of this process may use together, such as ``"4GB"``; by default 80 % of
            the machine's. The first handle of a warehouse in a process decides. See docs/limits.md.
        spill: How much of what does not fit may be spilled to the disk, such as ``"20GB"``; ``"0GB"`` for nothing.
        allow_hosts: Hosts that periodic queries may post to (``sink="webhook:URL"``): ``"hooks.example.org"`` for
            HTTPS, or ``"http://localhost:8080"``; by default none.
        allow_commands: Absolute paths of programs that they may run (``sink="command:…"``); by default none.
        segments: Where the files of the warehouse lie if not only in its folder, which then is their cache:
            ``"s3://bucket/prefix"``, or a location of gs, hdfs or file. It is remembered; see docs/object-store.md.
        segment_cache: How much of them is kept in the folder, such as ``"50GB"``; remembered, as the next two.
        copy_every: The catalog is copied there when the oldest commit without a copy is as old as this,
        copy_commits: or when there are so many of them.
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
        memory: str | None = None,
        spill: str | None = None,
        allow_hosts: Sequence[str] = (),
        allow_commands: Sequence[str] = (),
        segments: str | None = None,
        segment_cache: str | None = None,
        copy_every: times.Duration | None = None,
        copy_commits: int | None = None,
    ) -> None:
        for name, size in (("memory", memory), ("spill", spill)):
            arguments.check_size(size, name)
        if cache_bytes is not None:
            arguments.check_count(cache_bytes, "cache_bytes", "a number of bytes")
        allowed: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        if allow_hosts or allow_commands:
            from windrow.queries.periodic.outbound import check_permissions

            allowed = check_permissions(allow_hosts, allow_commands)
        self._store = open_store(
            arguments.check_path(path),
            catalog=None if catalog is None else arguments.check_path(catalog),
            read_only=read_only,
            create=create,
            clock=clock,
            sleep=sleep,
            files=files or FileSystem(),
            randomness=randomness,
            cache_bytes=cache_bytes,
            object_store=make_store_options(segments, segment_cache, copy_every, copy_commits),
        )
        self._store.memory, self._store.spill = memory, spill
        self._store.allowed_hosts, self._store.allowed_commands = allowed

    @property
    def path(self) -> Path:
        """The warehouse's folder."""
        return self._store.root

    def __repr__(self) -> str:
        return f"<Warehouse {self.path}{', for reading' if self._store.read_only else ''}>"

    def create_stream(
        self,
        name: str,
        schema: pa.Schema | None = None,
        *,
        like: Any = None,
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
        on_source_failure: FailurePolicy = "block",
        liveness: times.Duration | None = None,
        checks: Mapping[str, CheckOutcome] | None = None,
        rejected_retention: times.Duration | None = None,
        history: times.Duration | None = None,
        erase_within: times.Duration | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """Declare a stream.

        Args:
            name: Letters, digits, ``_`` and ``-``.
            schema: Arrow schema of its rows; or leave it out, and give
            like: A frame, table or list of dicts, or the path of a file, that has the columns.
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
            if_not_exists: Leave a stream of that name as it is.
            liveness: A declared source from which nothing arrived for so long, by the wall clock, is failed by whoever
                slides or serves; it revives when something arrives.
            checks: SQL predicates over a row, such as ``{"amount >= 0": "reject", "price IS NOT NULL": "refuse"}``: a
                row that fails one is rejected, or refuses the whole append. As in SQL, null passes.
            rejected_retention: How long, by the wall clock, rejected rows are kept; by default until somebody discards
                them.
            history: How long, by the stream's clock, expired rows are kept aside and earlier slides can be asked again;
                see docs/history.md. By default expired rows go.
            erase_within: How long after its expiry, or the end of the history, by the stream's clock, a file of the
                warehouse may hold a row; by default until its file is merged or goes.
        """
        from windrow import ddl

        self._store.check_writable()
        if if_not_exists and name in self.streams():
            return
        if (schema is None) == (like is None):
            raise DefinitionError(f"stream {name!r}: give either its schema or like=…, which has its columns")
        if schema is None:
            from windrow.arrow_input import infer_schema

            schema = infer_schema(like, [column for column in (time, expires) if column], f"stream {name!r}")
        definition = make_definition(
            name, schema, time=time, key=key, slide=slide, lifetime=lifetime, expires=expires,
            max_lifetime=max_lifetime, sources=sources, slack=slack, max_skew=max_skew, max_ahead=max_ahead,
            origin=origin, on_source_failure=on_source_failure, index_auto=index == "auto", liveness=liveness,
            rejected_retention=rejected_retention, history=history, erase_within=erase_within,
        )  # fmt: skip
        if checks:
            definition = with_fields(definition, checks=_check_predicates(name, definition.schema, checks))
        ddl.create_stream(self._store, definition, index)

    def drop_stream(self, name: str) -> None:
        """Remove a stream and its rows; readers that have pinned it go on reading."""
        from windrow import ddl

        ddl.drop_stream(self._store, self._seen(name))

    def streams(self) -> list[str]:
        """Names of the streams."""
        names = self._store.catalog.read(lambda tables: [key.decode() for key, _ in tables.raw_items("streams")])
        return [name for name in names if not is_hidden(name)]

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
        keep: times.Duration | None = None,
        recompute: bool = False,
        if_not_exists: bool = False,
    ) -> "View":
        """Declare a derived stream; it is filled at once, and moves in the slides of its inputs from then on.

        One that reads results of periodic queries moves when their runs have been delivered.

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
            keep: How long results stay after they came about, whatever becomes of their parts: a log of matches.
            recompute: Have every slide compute it from scratch, also where new rows would do.
            if_not_exists: Leave a view of that name as it is.
        """
        from windrow.queries.periodic import result_views
        from windrow.queries.views import ddl

        if if_not_exists and (existing := [view for view in self.views() if view.name == name]):
            return existing[0]
        reads_results = result_views.reads_results(self._store, name, sql)  # those are computed anew for each run
        create = result_views.create_view if reads_results else ddl.create_view
        tables = (retroactive,) if isinstance(retroactive, str) else tuple(retroactive)
        options = ddl.ViewOptions(key, index, slide, time, expires, restore, tables, keep, recompute)
        return create(self._store, name, sql, options)

    def drop_view(self, name: str) -> None:
        """Remove a view and its rows; readers that have pinned it go on reading."""
        from windrow import ddl

        ddl.drop_stream(self._store, self._seen(name), view=True)

    def views(self) -> "list[View]":
        """What is known of each view: its statement, inputs, update pattern and why, clock and whom it waits for."""
        from windrow.queries.views import ddl

        return ddl.list_views(self._store)

    def create_summary(self, name: str, sql: str, *, frequent: int = 64, if_not_exists: bool = False) -> "Summary":
        """Declare a summary: bounds of what groups of a stream weigh, in any window of whole slots.

        Under its name it is a relation with the group columns, ``lower``, ``upper`` and ``certain``; statements that
        ask for the heaviest groups use it by themselves where the answer is certain.

        Args:
            name: Letters, digits, ``_`` and ``-``.
            sql: Such as ``SELECT src, count(*) AS n FROM packets GROUP BY src``, or with ``sum(len)``; a window behind
                the stream says how far back it can be asked, by default as long as rows live.
            frequent: How many groups are kept of each slot and slide.
            if_not_exists: Leave a summary of that name as it is.
        """
        from windrow.queries.synopses import summaries
        from windrow.queries.synopses.synopsis_choice import renew_synopses

        if if_not_exists and (existing := [summary for summary in self.summaries() if summary.name == name]):
            return existing[0]
        created = summaries.create_summary(self._store, name, sql, frequent)
        renew_synopses(self._store)  # some are not needed beside it
        return created

    def drop_summary(self, name: str) -> None:
        """Remove a summary; the rows of its stream stay."""
        from windrow.queries.synopses import summaries
        from windrow.queries.synopses.synopsis_choice import renew_synopses

        summaries.drop_summary(self._store, name)
        renew_synopses(self._store)

    def summaries(self) -> "list[Summary]":
        """What is known of each summary: its statement, what it counts, how far back, and what it takes."""
        from windrow.queries.synopses import summaries

        return summaries.list_summaries(self._store)

    def append(
        self,
        stream: str,
        data: Any,
        *,
        source: str | None = None,
        batch_id: str | None = None,
        max_rejected: float | None = None,
        evolve: Evolution | None = None,
        flaws: "FlawedLines | None" = None,
        covers: tuple[times.Instant, times.Instant] | str | None = None,
        replace: bool = False,
        durable: Durability = "disk",
    ) -> "AppendReport":
        """Spool rows: durable when this returns, in the window after the next slide.

        Args:
            stream: Its name.
            data: An Arrow table, batches or reader, a pandas or polars frame, a DuckDB relation, or a list of dicts.
            source: Which of the stream's sources the rows come from.
            batch_id: Appending the same (source, batch_id) again changes nothing, while the id is remembered: twice the
                stream's lifetime, and at least a week.
            covers: (start, end), or ``"START/END"``: with these rows the source has sent all that it had after start up
                to end, which closes gaps there.
            max_rejected: The share of rows that may be rejected, such as 0.01; with more, nothing is appended.
            evolve: ``"add"`` takes columns into the stream that it does not have yet; stored rows have null there.
                ``"widen"`` does so too, and columns of a wider type than the stream's give it that type.
            flaws: Where the reader of a text file puts lines that it cannot read; they are rejected.
            replace: These rows take the place of those that the batch of that id had, in one transaction, in the window
                and the history too; after its slide they come late. A batch that is not known is appended.
            durable: ``"store"`` returns only when a machine that restores the warehouse from its object store would
                have the rows; ``"disk"`` when this machine's disk has them.
        """
        from windrow.small_append import append_rows
        from windrow.sources import parse_covers

        check_durability(self._store, durable)
        stream = self._seen(stream)
        if evolve is not None:
            data = self._evolve_for(stream, data, evolve)
        if replace:
            report = self._replace_batch(stream, data, source, batch_id, parse_covers(covers), max_rejected, flaws)
            return note_copy(self._store, report, durable)
        report = append_rows(
            self._store,
            stream,
            data,
            source=source,
            batch_id=batch_id,
            covers=parse_covers(covers),
            max_rejected=arguments.check_share(max_rejected, "max_rejected"),
            flaws=flaws,
            hooks=SLIDE_HOOKS,
        )
        return note_copy(self._store, report, durable)

    def _replace_batch(
        self,
        stream: str,
        data: Any,
        source: str | None,
        batch_id: str | None,
        covers: tuple[int, int] | None,
        max_rejected: float | None,
        flaws: "FlawedLines | None",
    ) -> "AppendReport":
        from windrow.correction import Correction
        from windrow.publication import publish_due
        from windrow.queries.synopses.synopsis_choice import renew_synopses
        from windrow.queries.views.slide_hook import prepare_refill

        append = Correction(self._store, stream, source, batch_id, SLIDE_HOOKS, prepare_refill)
        append.covers, append.max_rejected = covers, arguments.check_share(max_rejected, "max_rejected")
        report = append.run(data, flaws=flaws)
        if report.replaced:
            renew_synopses(self._store)
            publish_due(self._store)
        return report

    def _evolve_for(self, stream: str, data: Any, evolve: str) -> pa.RecordBatchReader:
        """A reader over `data`, for whose columns the stream was changed."""
        from windrow.arrow_input import open_reader

        reader = open_reader(data, f"stream {stream!r}")
        self._evolve(stream, reader.schema, evolve)
        return reader

    def _evolve(self, stream: str, schema: pa.Schema, evolve: str) -> None:
        """Take new columns of a schema into a stream, and wider types if that is asked for."""
        from windrow.schema_changes import find_changes

        added, widened = find_changes(evolve, schema, self.stream(stream).definition.schema)
        for field in added:
            self.alter_stream(stream, add_column=field)
        for field in widened:
            self.alter_stream(stream, widen_column=field)

    def heartbeat(
        self, stream: str, *, source: str | None = None, up_to: times.Instant, covers: times.Instant | None = None
    ) -> None:
        """Promise that nothing at or before `up_to` will follow from a source.

        With `covers` also that it has sent all that it had from then on, which closes gaps there.
        """
        from windrow.sources import heartbeat

        start = None if covers is None else times.parse_instant(covers, "covers")
        heartbeat(self._store, self._seen(stream), source, times.parse_instant(up_to, "up_to"), start)

    def gaps(self, stream: str | None = None, *, closed: bool = False) -> "list[Gap]":
        """What is known to be missing of a stream, or of all: the open gaps, or those that were closed too."""
        from windrow.gaps import list_gaps

        return TableList(list_gaps(self._store, None if stream is None else self._seen(stream), closed=closed))

    def declare_gap(
        self,
        stream: str,
        *,
        start: times.Instant | None,
        end: times.Instant,
        source: str | None = None,
        cause: str = "declared by an operator",
    ) -> int:
        """Say that something is missing after `start` (None: since ever) up to `end`; gives the gap's number."""
        from windrow.gaps import declare_gap

        first = None if start is None else times.parse_instant(start, "start")
        return declare_gap(self._store, self._seen(stream), source, first, times.parse_instant(end, "end"), cause)

    def close_gap(self, id: int, note: str = "") -> None:
        """Close a gap: what it lacks has come by another way, or will never come and is no loss."""
        from windrow.gaps import close_gap

        close_gap(self._store, id, note)

    def fail_source(self, stream: str, source: str, reason: str = "declared failed") -> None:
        """Declare a source failed; `on_source_failure` says what happens. Its next append or heartbeat revives it."""
        from windrow.sources import fail_source

        fail_source(self._store, self._seen(stream), source, reason)

    def slide(
        self, stream: str, to: times.Instant | None = None, *, force: bool = False, timeout: float = 60.0
    ) -> "SlideReport":
        """Move the stream's clock: spooled rows come in, expired rows go, in one transaction.

        Args:
            stream: Its name.
            to: Slide to the last slot end at or before this time, or before ``"now"``, the wall clock; by default as
                far as the sources allow.
            force: Slide even if a declared source is behind; answers then say who was missing.
            timeout: Seconds to wait for another slide of the same stream.
        """
        from windrow.advisor import follow_advice
        from windrow.background import paying
        from windrow.slide import Slide

        target = None if to is None else self._store.clock() if to == "now" else times.parse_instant(to, "to")
        with paying(self._store):
            report = Slide(self._store, self._seen(stream), target, force, timeout, SLIDE_HOOKS).run()
            if report.moved:
                follow_advice(self._store, stream)
        return report

    def now(self, stream: str) -> Any:
        """The stream's clock as a UTC datetime, None before its first slide."""
        stream = self._seen(stream)
        entry, state = self._store.catalog.read(lambda tables: find_stream(tables, stream))
        return None if state.slide is None else times.to_datetime(entry.definition.model.slot_end(state.slide))

    def wait_for(self, stream: str, *, up_to: times.Instant, timeout: float | times.Duration | None = None) -> None:
        """Wait until the stream's clock has reached `up_to`, whoever slides it."""
        limit = None if timeout is None else 0.0 if timeout == 0 else times.parse_seconds(timeout, "timeout")
        wait_for_clock(self._store, self._seen(stream), times.parse_instant(up_to, "up_to"), limit)

    def scan(
        self, stream: str, window: times.Duration | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a window (by default all live rows), streamed, consistent with one slide."""
        return Snapshot(self._store, [self._seen(stream)]).scan(stream, window, columns)

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
        with Snapshot(self._store, [self._seen(stream)]) as snapshot:
            return snapshot.probe(stream, key, keys=keys, between=between, window=window, columns=columns)

    def snapshot(self, streams: Sequence[str] | None = None, *, as_of: int | None = None) -> Snapshot:
        """A pinned, consistent view of all (or the named) streams.

        Args:
            streams: Their names; by default all.
            as_of: The number of an earlier commit, which each answer has as its `version`: what streams with history,
                and tables, were then.
        """
        snapshot = Snapshot(self._store, None if streams is None else [self._seen(name) for name in streams])
        return snapshot if as_of is None else snapshot.as_of(as_of)

    def sql(
        self,
        statement: str,
        params: Sequence[Any] | dict[str, Any] | None = None,
        *,
        isolation: Isolation = "snapshot",
        timeout: float | times.Duration | None = None,
        memory_limit: str | None = None,
        priority: int = 0,
        on_gap: GapPolicy = "tell",
    ) -> "Answer":
        """Ask in DuckDB's SQL, with window clauses behind the names of streams.

        Args:
            statement: Such as ``SELECT src, sum(len) FROM packets [WINDOW 10 MINUTES] GROUP BY src``.
            params: Bound to ``?``, ``$1`` or ``$name``.
            isolation: ``snapshot`` (one whole slide), ``latest`` (the last slide committed when the answer is
                finished), ``serial`` (slides wait for the query) or ``fresh`` (what a forced slide would show now).
            timeout: Seconds after which a `QueryTimeoutError` is raised, at most a second late.
            memory_limit: Such as ``"500MB"``; what needs more is spilled to disk, or refused. See docs/limits.md.
            priority: It waits a while between its reads while a query with a higher number runs in this process; below
                0, also for those that have none.
            on_gap: ``"tell"``: the answer says what is missing; ``"error"``: a `GapError` if anything is.
        """
        from windrow.queries import isolation as levels
        from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

        arguments.check_statement(statement, params)
        arguments.check_size(memory_limit, "memory")
        limit = None if timeout is None else times.parse_seconds(timeout, "timeout")
        if not isinstance(priority, int):
            raise QueryError(f"priority is {priority!r}; it must be a whole number such as 0 or 5")
        return levels.answer_query(
            self._store,
            statement,
            params,
            isolation=isolation,
            timeout=limit,
            memory_limit=memory_limit,
            priority=priority,
            context=STATEMENT_CONTEXT,
            on_gap=on_gap,
        )

    def explain(self, statement: str, params: Sequence[Any] | dict[str, Any] | None = None) -> "Explanation":
        """What a statement would read: cells, segments, rows and bytes before and after pruning, and DuckDB's plan."""
        from windrow.queries import execution
        from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT

        arguments.check_statement(statement, params)
        return execution.explain(self._store, statement, params, context=STATEMENT_CONTEXT)

    def add_query(
        self,
        name: str,
        sql: str,
        *,
        params: Sequence[Any] | dict[str, Any] | None = None,
        slide: times.Duration | None = None,
        lag: times.Duration | None = None,
        sink: str | None = None,
        priority: int = 0,
        missed: MissedRuns = "latest",
        output: Output = "whole",
        revise: times.Duration | None = None,
        keep: int | times.Duration | None = None,
        timeout: float | times.Duration | None = None,
        memory_limit: str | None = None,
        on_gap: RunGapPolicy = "tell",
        deadline: times.Duration | None = None,
        isolation: RunIsolation = "snapshot",
        engine: Engine = "duckdb",
        spark: "SparkSession | None" = None,
        backfill: times.Duration | None = None,
        if_not_exists: bool = False,
    ) -> "QueryStatus":
        """Register a periodic query, after running it once: it is answered again each time its window has moved on.

        Args:
            name: Of the query, and of the table that its results are asked under.
            sql: With ``[WINDOW 10 MINUTES SLIDE 2 MINUTES]`` behind the streams that pace it.
            params: Bound to ``?``, ``$1`` or ``$name`` in every run.
            slide: The period of streams whose clause names none.
            lag: How long after the end of a calendar unit, as in ``[DAY 'Europe/Berlin']``, its run is due.
            sink: Also write each run to a file: ``"parquet"``, ``"csv"``, ``"jsonl"`` or ``"html"``, in the
                warehouse's ``results/<name>/`` or in a folder of yours, as in ``"csv:/reports"``; or send it away:
                ``"webhook:URL"`` or ``"command:/path and arguments"``, if the host or command is allowed.
            priority: Higher ones are run first.
            missed: Of runs that nobody made in time, make the ``"latest"``, ``"every"`` one, or ``"skip"`` them.
            output: The ``"whole"`` answer, or only the ``"inserts"`` or ``"deletes"`` since the one before.
            revise: For how long after its end a delivered window is run again, as of that window, when late rows have
                changed it; its rows must live as long as window and `revise` together.
            keep: How many runs, or for how long, the results table keeps; by default 1000 runs.
            timeout: Seconds after which a run is cancelled; by default 600.
            memory_limit: Such as ``"500MB"``, for runs that are not answered from synopses.
            if_not_exists: Leave a query of that name as it is.
            on_gap: Of a run whose windows are not complete, ``"tell"`` it in ``_complete`` and ``_coverage``, make an
                ``"error"`` of it, or let it ``"wait"`` until they are.
            deadline: How long, by the stream's clock, a run waits at most; then it is made, and tells.
            isolation: Of slides that commit while a round runs: ``"snapshot"``: they are for the next round;
                ``"latest"``: they are absorbed, and the run is of the newest slide.
            engine: ``"spark"``: the statement is Spark's SQL, with our window clauses, and runs there.
            spark: The session that plans it now; by default the active one of this process.
            backfill: Also make the runs of so long a time before now, from the history of its streams.
        """
        from windrow.queries.periodic import registry
        from windrow.spark import find_engine

        if if_not_exists and (existing := [query for query in self.queries() if query.name == name]):
            return existing[0]

        return registry.add_query(
            self._store, name, sql, params=params, slide=slide, lag=lag, sink=sink, priority=priority, missed=missed,
            output=output, revise=revise, keep=keep, timeout=timeout, memory_limit=memory_limit, on_gap=on_gap,
            deadline=deadline, isolation=isolation, backfill=backfill, engine=engine,
            run_engine=find_engine(spark) if engine == "spark" else None,
        )  # fmt: skip

    def backfill(self, name: str, *, since: times.Instant) -> "QueryStatus":
        """Let a periodic query make the runs that it would have made since a time, from the history of its streams.

        What is due goes first. Runs that were delivered already are not made again.
        """
        from windrow.queries.periodic import registry

        return registry.backfill_query(self._store, name, since)

    def promote(
        self, answer: "Answer | str", name: str, *, slide: times.Duration | None = None, **delivery: Any
    ) -> "QueryStatus":
        """Make a periodic query of one that was asked once, every `slide`; `delivery` is what `add_query` takes."""
        if isinstance(answer, str):
            return self.add_query(name, answer, slide=slide, **delivery)
        return self.add_query(name, answer.text, slide=slide, **({"params": answer.params} | delivery))

    def queries(self) -> "list[QueryStatus]":
        """The periodic queries and how they are doing."""
        from windrow.queries.periodic import registry

        return registry.list_queries(self._store)

    def drop_query(self, name: str) -> None:
        """Remove a periodic query and its results."""
        from windrow.queries.periodic import registry

        registry.drop_query(self._store, name)

    def run_due(
        self,
        names: Sequence[str] | None = None,
        *,
        now: bool = False,
        policy: Policy = "hybrid+late-pending",
        spark: "SparkSession | None" = None,
    ) -> "list[RunReport]":
        """Run the periodic queries that are due and deliver their results, each run exactly once.

        Args:
            names: Only these.
            now: Run them for the newest slide even if they are not due.
            policy: Which of them are answered together, and in which order: ``no-sharing``, ``aggressive``,
                ``conservative``, ``hybrid``, ``hybrid+late`` or ``hybrid+late-pending``.
            spark: The session that runs those of ``engine="spark"``; by default the active one of this process. Without
                any they are reported as ``waiting``.
        """
        from windrow.queries.periodic import runner
        from windrow.spark import find_engine

        wanted = None if names is None else arguments.check_names(names, "names")
        return TableList(runner.run_due(self._store, wanted, now=now, policy=policy, engine=find_engine(spark)))

    def query_plan(self) -> "list[QueryPlanGroup]":
        """Which periodic queries are answered together, what they share and why."""
        from windrow.queries.periodic import query_plan

        return query_plan.plan_queries(self._store)

    def results(self, name: str, *, slide: int | None = None, revisions: bool = False) -> "Answer":
        """What a periodic query has delivered, oldest run first; also to be had in SQL, under the query's name.

        Args:
            name: Of the query.
            slide: Only the run of that slide.
            revisions: Show all revisions, with their number as ``_revision``, and not only the newest of each slide.
        """
        from windrow.queries.periodic import registry

        return registry.read_results(self._store, name, slide, revisions=revisions)

    def rejected(self, stream: str) -> pa.Table:
        """The rows that were not taken, with ``_reason, _source, _batch, _rejected_at`` behind their own columns."""
        from windrow.rejected_rows import read_rejected

        return read_rejected(self._store, self._seen(stream))

    def replay(self, stream: str, with_: str | None = None) -> "AppendReport":
        """Append the rejected rows again; those that are still not acceptable stay rejected.

        Args:
            stream: Its name.
            with_: SQL over ``rejected`` that mends them, such as ``SELECT * REPLACE (abs(len) AS len) FROM rejected``;
                rows that it leaves out are thrown away.
        """
        from windrow.rejected_rows import replay_rejected

        if with_ is None:
            return replay_rejected(self._store, self._seen(stream))
        from windrow.queries.external_connection import select_from

        return replay_rejected(self._store, self._seen(stream), mend=lambda rows: select_from("rejected", rows, with_))

    def erase(
        self, stream: str, *, keys: Sequence[Any] | None = None, where: str | None = None, timeout: float = 60.0
    ) -> "EraseReport":
        """Erase rows for good, by search key or by condition, wherever the stream keeps any; gives a receipt.

        Rows go from the window, the history, the spool, rejected rows and views; synopses are made anew, and traces in
        the catalog are overwritten. The past is changed too: answers as of earlier commits say so.

        Args:
            stream: Its name.
            keys: Search keys, tuples where the key has several columns; a shorter tuple means all that begin with it.
            where: A predicate over one row, such as ``"host = 'a' AND len > 10"``.
            timeout: Seconds to wait for a slide.
        """
        from windrow.erasure import erase
        from windrow.queries.sql.row_predicate import find_predicate_problem
        from windrow.queries.synopses.synopsis_choice import renew_synopses
        from windrow.queries.views.slide_hook import prepare_refill

        stream = self._seen(stream)
        if where is not None:
            entry, _ = self._store.catalog.read(lambda tables: find_stream(tables, stream))
            problem = find_predicate_problem(where, entry.definition.schema)
            if problem is not None:
                raise QueryError(f"where={where!r} cannot be used on stream {stream!r}: {problem}; nothing was erased")
        report = erase(self._store, stream, keys, where, refill=prepare_refill, hooks=SLIDE_HOOKS, timeout=timeout)
        if report.total:
            renew_synopses(self._store)
        return report

    def erasures(self, stream: str) -> "list[EraseReport]":
        """The receipts of what was erased from a stream."""
        from windrow.erasure import list_erasures

        return TableList(list_erasures(self._store, self._seen(stream)))

    def discard_rejected(self, stream: str) -> int:
        """Throw the rejected rows away; gives how many there were."""
        from windrow.rejected_rows import discard_rejected

        return discard_rejected(self._store, self._seen(stream))

    def put_table(self, name: str, data: Any, *, valid_from: times.Instant | None = None) -> int:
        """Store a small relation to join with, or replace it atomically; gives its number of rows.

        Args:
            name: Of the table.
            data: Its rows.
            valid_from: In views, rows of streams after this time meet it, and earlier ones what was valid before;
                by default the greatest clock of a stream. Statements meet the version that was put last.
        """
        from windrow.reference_tables import put_table

        return put_table(self._store, name, data, valid_from)

    def drop_table(self, name: str) -> None:
        """Remove a table."""
        from windrow.reference_tables import drop_table

        drop_table(self._store, name)

    def tables(self) -> list[str]:
        """Names of the tables."""
        return self._store.catalog.read(lambda tables: [key.decode() for key, _ in tables.raw_items("tables")])

    def stream(self, name: str) -> "StreamStatus":
        """All that is known of one stream: definition, index and why, clock, sources, sizes."""
        from windrow.status import stream_status

        return stream_status(self._store, self._seen(name))

    def status(self) -> "WarehouseStatus":
        """The state of the warehouse: each stream's clock, whom it waits for, sizes, readers."""
        from windrow.status import warehouse_status

        return warehouse_status(self._store)

    def check(self, progress: Callable[[str], None] | None = None) -> "CheckReport":
        """Verify everything: files, checksums, order, directories, cells, synopses; nothing is changed."""
        from windrow.check import check_warehouse

        report = check_warehouse(self._store, progress)
        if not report.streams:  # there are none, or the catalog is too damaged to be read
            return report
        if not self._store.catalog.read(lambda tables: next(iter(tables.raw_items("synopses")), None) is not None):
            return report
        from windrow.queries.synopses import check, summaries

        problems = (*check.find_problems(self._store), *summaries.find_problems(self._store))
        return replace(report, problems=(*report.problems, *problems))

    def repair(self, stream: str, *, give_up: bool = False, timeout: float = 60.0) -> "RepairReport":
        """Say which files of a stream are damaged or missing; with `give_up`, go on without what cannot be read.

        Readable rows of damaged files are saved, a gap says what is missing, and views of the stream are filled anew.
        Restore a backup if there is one.
        """
        from windrow.queries.synopses.synopsis_choice import renew_synopses
        from windrow.queries.views.slide_hook import prepare_refill
        from windrow.repair import repair

        report = repair(self._store, self._seen(stream), give_up=give_up, refill=prepare_refill, timeout=timeout)
        if report.repaired:
            renew_synopses(self._store)
        return report

    def gc(self) -> "GcReport":
        """Remove what can go now. Slides do this as they pass; answers never depend on it."""
        from windrow.reclaim import collect_garbage

        return collect_garbage(self._store)

    def interrupt(self) -> None:
        """Cancel the statements that other threads are running through this handle; each ends with a `QueryError`."""
        self._store.interrupt()

    def backup(
        self,
        path: str | os.PathLike[str],
        base: str | os.PathLike[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> "BackupReport":
        """Back up the last commit into a new or empty folder, while others append and slide; see `windrow.backup`.

        Args:
            path: The folder. One that an interrupted run has left is gone on with.
            base: An earlier backup, whose files are shared by hard links.
            progress: Is told how many bytes are done.
        """
        from windrow.backup import create_backup

        return create_backup(self._store, path, base, progress)

    def close(self) -> None:
        """Close the handle; statements that other threads are running are cancelled.

        Snapshots and readers that are still open keep their files, not their catalog.
        """
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
