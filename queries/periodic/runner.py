"""A round: finds the due queries, answers them over one snapshot and delivers the answers.

Any number of processes may make rounds at once. Each query is locked while it is run, so that two rounds do not do the
same work; that a run is delivered only once is decided by the commit, not by the lock.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import QueryEntry, QueryState, RunEntry
from windrow.errors import BusyError, GapError, QueryError, StorageError, UnknownQueryError, WindowError
from windrow.files import disk_errors
from windrow.locks import locked
from windrow.queries import execution
from windrow.queries.answer import refuse_gaps
from windrow.queries.periodic import backfill, evaluation, result_store, sinks
from windrow.queries.periodic.chains import find_undelivered, order_levels
from windrow.queries.periodic.delivery import DueRun, deliver_runs
from windrow.queries.periodic.due import (
    Clocks,
    count_late_slides,
    find_clocks,
    find_run_window,
    is_due,
    read_committed_slides,
    read_snapshot_slides,
)
from windrow.queries.periodic.evaluation import RunAnswer
from windrow.queries.periodic.join_views import reconcile_synopses
from windrow.queries.periodic.result_tables import PERIODIC_CONTEXT
from windrow.queries.periodic.result_views import move_result_views
from windrow.queries.periodic.revisions import LateRows, is_revisable
from windrow.queries.periodic.run_engine import SPARK, WAITS_FOR_SPARK, RunEngine, read_registered
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING, check_policy
from windrow.queries.periodic.shared_rows import SharedRows
from windrow.snapshot import Snapshot
from windrow.store import Store
from windrow.windows import window_to_json

_Ready = queue.Queue[RunAnswer | BaseException | None]
_BATCH_SECONDS = 0.02
"""Seconds that finished runs wait for others, so that they are committed together."""
_POLL_SECONDS = 0.1
"""Seconds between two checks whether to stop."""
_MAX_BATCH = 256
"""Runs that one commit delivers at most."""
_log = logging.getLogger(__name__)
_MIN_ROWS = 1000
"""Rows of a stream below which nothing is gained by a synopsis. Not measured: DuckDB reads so few in well under what a
statement costs anyway (`_SHARED_ROW` and `_SHARED_STATEMENT` of the synopses' cost model)."""
_READS_SEVERAL = "it does not read exactly one stream"
"""Why rows answered a join in earlier releases, which kept no views of joins: it is decided anew."""
_MAX_RERUNS = 3
"""How often a run at ``latest`` is made again because its streams slid meanwhile, as for one-time queries."""
_MAX_ROLLED = 8
"""Results tables that one round tidies."""


@dataclass(frozen=True)
class RunReport:
    """What became of one run."""

    query: str
    slide: int
    outcome: str
    """``delivered``; ``unplaced`` if only its file could not be written, which a later round does; ``failed``: then
    it is tried again after a while; or ``waiting``: it is due, and nobody was given that could run it."""
    rows: int
    seconds: float
    staleness: float
    """Seconds by which the streams had moved on when it was delivered."""
    complete: bool
    how: str
    """What answered: the snapshot's rows, or a synopsis."""
    error: str | None
    file: str | None
    """Where a file sink put it; None if it could not, or if there is none."""
    revision: int = 0
    """Which revision of a window that was delivered before; 0 for the run itself."""
    backfilled: bool = False
    """Whether it was made from history, for a slide from before the query was there."""


@dataclass(frozen=True)
class _RoundState:
    """The queries and retained slides at the begin of a round."""

    queries: list[tuple[QueryEntry, QueryState]]
    holds: list[tuple[bytes, tuple[int, ...]]]
    due: set[int]
    revising: set[int]
    """Queries some of whose delivered windows late rows, or revised results, may have changed."""
    waiting: list[tuple[QueryEntry, int]]
    """Queries that are due and that nobody can run here, with the slides that their streams have reached."""
    backfilling: set[int]
    """Queries that have runs to make from history."""


def run_due(
    store: Store,
    names: Sequence[str] | None = None,
    *,
    now: bool = False,
    policy: str = HYBRID_LATE_PENDING,
    engine: RunEngine | None = None,
) -> list[RunReport]:
    """Run what is due.

    Args:
        store: The warehouse.
        names: Only these queries.
        now: Run them for the newest slide even if they are not due, or failed just now.
        policy: Which of them are answered together, and in which order: one of `scheduler.POLICIES`.
        engine: What runs those that are not DuckDB's; without it they are reported as waiting.
    """
    store.check_writable()
    reports: list[RunReport] = []
    while True:
        query_round = QueryRound(store, names, now, policy=policy, engine=engine)
        reports += query_round.run()
        if not query_round.gave_way:
            return reports


class QueryRound:
    """One round over the registered queries.

    Args:
        store: The warehouse.
        names: Only these queries.
        now: Run them for the newest slide even if they are not due.
        stop: Ends the round early once it is set: what is answered is delivered, the rest stays due.
        policy: Which of them are answered together, and in which order.
        engine: What runs those that are not DuckDB's; without it they are reported as waiting.
        only: Only the queries of this engine: `run_engine.ENGINES`.

    Raises:
        DefinitionError: there is no such policy.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str] | None = None,
        now: bool = False,
        stop: threading.Event | None = None,
        policy: str = HYBRID_LATE_PENDING,
        engine: RunEngine | None = None,
        only: str | None = None,
    ) -> None:
        check_policy(policy)
        self.engine, self.only = engine, only
        self.policy = policy
        self.store = store
        self.names = None if names is None else {name.lower() for name in names}
        self.now = now
        self.stop = stop or threading.Event()
        self._failed: set[int] = set()
        self._put_off: set[int] = set()
        """Queries whose next run from history waits for what is missing of its windows."""
        self._placed: set[int] = set()
        """Queries whose files were put in their folders in this round, or could not be."""
        self._overtaken = False
        """Whether a slide was absorbed that the round's snapshot does not know."""
        self.gave_way = False
        """Whether runs from history were put off because something else became due."""

    def run(self) -> Iterator[RunReport]:
        """Make the round; reports come as runs are delivered."""
        round_state = self.store.catalog.read(self._read_state)
        self._check_names(round_state)
        for entry, slide in round_state.waiting:
            yield RunReport(entry.name, slide, "waiting", 0, 0.0, 0.0, False, entry.engine, WAITS_FOR_SPARK, None)
        with contextlib.ExitStack() as stack:
            if round_state.queries:
                self._make_room_for_locks()
            locked_queries = {
                entry.id: entry
                for entry, state in round_state.queries
                if self._needs_lock(round_state, entry, state) and self._lock(stack, entry)
            }
            due = {number: entry for number, entry in locked_queries.items() if number in round_state.due}
            yield from self._run_due_queries(round_state, due)
            yield from self._run_revisions([e for e in locked_queries.values() if e.id in round_state.revising])
            yield from self._run_backfills([e for e in locked_queries.values() if e.id in round_state.backfilling])
            self._settle(list(locked_queries.values()))
        move_result_views(self.store)

    def _read_state(self, tables: Tables) -> _RoundState:
        queries, due, revising, late = [], set(), set(), LateRows(tables)
        backfilling: set[int] = set()
        held, waiting = False, list[tuple[QueryEntry, int]]()
        clock = self.store.clock()
        slides: dict[int, int | None] = {}
        for _, entry in tables.items("queries"):
            if self.only not in (None, entry.engine) or (
                self.names is not None and entry.name.lower() not in self.names
            ):
                continue
            state: QueryState = tables.get("paced", catalog_key(entry.id))
            queries.append((entry, state))
            ready = self.now or state.retry_at is None or state.retry_at <= clock
            committed = read_committed_slides(tables, entry, slides)
            # Differences are told in the order of the slides.
            ready_for_slide = ready and (entry.output == "whole" or state.backfill is None)
            is_wanted = ready_for_slide and (bool(state.waiting or state.held) or self._is_due(entry, state, committed))
            if entry.engine == SPARK and self.engine is None:
                waiting += [(entry, committed[entry.paces[0].stream])] if is_wanted else []
                continue
            if is_wanted:
                due.add(entry.id)
                held = held or bool(state.waiting)
            if state.backfill is not None and not self.now and (state.backfill.retry_at or 0) <= clock:
                backfilling.add(entry.id)
            if ready and entry.revise is not None and late.have_come(entry, state.checked):
                revising.add(entry.id)
        chained = [e for e, s in queries if e.after and e.revise is not None and (s.retry_at or 0) <= clock]
        for level in order_levels(chained, (entry for entry, _ in queries)):
            revising |= {entry.id for entry in level if any(read.id in revising for read in entry.after)}
        holds = [(key, hold.queries) for key, hold in tables.items("holds")] if held else []
        return _RoundState(queries, holds, due, revising, waiting, backfilling)

    def _check_names(self, round_state: _RoundState) -> None:
        names = {entry.name.lower() for entry, _ in round_state.queries}
        for name in sorted((self.names or set()) - names):
            raise UnknownQueryError(f"there is no periodic query {name!r}; FROM windrow.queries lists them")

    @staticmethod
    def _needs_lock(round_state: _RoundState, entry: QueryEntry, state: QueryState) -> bool:
        todo = round_state.due | round_state.revising | round_state.backfilling
        return entry.id in todo or bool(state.unplaced or state.unplaced_revisions)

    def _is_due(self, entry: QueryEntry, state: QueryState, slides: dict[str, int]) -> bool:
        if self.now:
            ready = all(pace.stream in slides for pace in entry.paces)
            return ready and not state.waiting and state.delivered != slides[entry.paces[0].stream]
        if entry.missed == "every":
            return False  # its slides are retained for it (see retained_slides.py)
        if entry.missed == "skip":
            return state.seen == slides and is_due(entry.paces, state.reached, slides)
        return is_due(entry.paces, state.reached, slides)

    def _make_room_for_locks(self) -> None:
        with disk_errors("running queries"):
            result_store.lock_folder(self.store).mkdir(exist_ok=True)

    def _lock(self, stack: contextlib.ExitStack, entry: QueryEntry) -> bool:
        """Take the query's lock; whoever has it runs the query."""
        path = result_store.query_lock_path(self.store, entry)
        with disk_errors(f"running query {entry.name!r}"):
            try:
                stack.enter_context(locked(path, f"query {entry.name!r}", 0.0, self.store.sleep, signed=False))
            except BusyError:
                return False
        return True

    def _run_due_queries(self, round_state: _RoundState, due: dict[int, QueryEntry]) -> Iterator[RunReport]:
        """Runs of retained slides, and those of the newest slides, all over one snapshot; who is read goes first."""
        newest = {number: entry for number, entry in due.items() if self.now or entry.missed != "every"}
        changed: list[str] = []
        with contextlib.ExitStack() as stack:
            snapshot: Snapshot | None = None
            self._overtaken = False
            for level in order_levels(due.values(), (entry for entry, _ in round_state.queries)):
                yield from self._run_retained(round_state, {entry.id: entry for entry in level})
                wanted = [entry for entry in level if entry.id in newest]
                if wanted and not self.stop.is_set():
                    if snapshot is None or self._overtaken:
                        snapshot, self._overtaken = stack.enter_context(Snapshot(self.store)), False
                    yield from self._answer(snapshot, wanted, None)
            if snapshot is not None:
                changed = _find_changed_streams(
                    snapshot, [each for each in round_state.queries if each[0].id in newest]
                )
        if changed and not self.stop.is_set():
            reconcile_synopses(self.store, changed)

    def _run_retained(self, round_state: _RoundState, due: dict[int, QueryEntry]) -> Iterator[RunReport]:
        """The runs of retained slides, oldest first; after a failure the later runs of that query wait."""
        for key, numbers in round_state.holds:
            if self.stop.is_set():
                return
            wanted = [due[number] for number in numbers if number in due and number not in self._failed]
            snapshot = Snapshot.held(self.store, key) if wanted else None
            if snapshot is not None:
                with snapshot:
                    yield from self._answer(snapshot, wanted, key)

    def _run_revisions(self, entries: Sequence[QueryEntry]) -> Iterator[RunReport]:
        """Delivered windows that late rows have changed, run again as of their slides, oldest first."""
        if not entries or self.stop.is_set():
            return
        with Snapshot(self.store) as snapshot:
            for level in order_levels(entries, entries):
                yield from self._revise_together(snapshot, self._find_revisions(snapshot, level))

    def _revise_together(self, snapshot: Snapshot, revisions: Sequence[DueRun]) -> Iterator[RunReport]:
        """Revisions of several slides, over rows that are read once for all of them."""
        groups = [(snapshot.at(runs[0].clocks), runs) for runs in _group_runs(revisions)]
        with contextlib.closing(SharedRows(self.store, snapshot)) as shared:
            shared.plan((), *((s, [run.entry for run in runs if run.entry.engine != SPARK]) for s, runs in groups))
            for earlier, runs in groups:
                wanted = [run for run in runs if run.entry.id not in self._failed]
                if wanted and not self.stop.is_set():
                    yield from self._answer_together(earlier, wanted, shared.seen_at(earlier))

    def _find_revisions(self, snapshot: Snapshot, entries: Sequence[QueryEntry]) -> list[DueRun]:
        def find_changed(tables: Tables) -> list[tuple[QueryEntry, QueryState, dict[str, int], list[RunEntry]]]:
            late, revised = LateRows(tables), []
            for entry in entries:
                state: QueryState | None = tables.get("paced", catalog_key(entry.id))
                if state is not None:
                    changed = list(late.changed_runs(entry, state.checked))
                    revised.append((entry, state, late.marks(entry), changed))
            return revised

        revisions = []
        for entry, state, marks, runs in self.store.catalog.read(find_changed):
            slides = read_snapshot_slides(snapshot, entry)
            position = slides | marks
            now = snapshot.now(entry.paces[0].stream)
            for run in runs:
                if is_revisable(entry, run, now) and run.slides.keys() <= slides.keys():
                    calendars = find_clocks(entry, run.slides)
                    clocks: Clocks = {
                        name: (slide, calendars.get(name, (None, None))[1]) for name, slide in run.slides.items()
                    }
                    window = run.window_start, run.window_end
                    number = run.revisions + 1
                    due = DueRun(entry, state, run.slides, window, True, clocks=clocks, revision=number, known=position)
                    revisions.append(_with_coverage(due, snapshot))
        return revisions

    def _run_backfills(self, entries: Sequence[QueryEntry]) -> Iterator[RunReport]:
        """Runs from history, oldest first, until something else is due: that goes first, in a round of its own."""
        first = True
        while not self.stop.is_set():
            entries = [entry for entry in entries if entry.id not in self._failed | self._put_off]
            runs = backfill.find_next_runs(self.store, entries) if entries else []
            if not first and self.store.catalog.read(self._read_state).due - self._failed:
                self.gave_way = True
                return
            if not runs:
                return
            with Snapshot(self.store) as snapshot:
                done = [made for run in runs if (made := self._make_past_run(snapshot, run)) is not None]
            first = first and not done
            if not self.stop.is_set():
                yield from self._deliver(done)

    def _make_past_run(self, snapshot: Snapshot, run: backfill.PastRun) -> tuple[DueRun, RunAnswer] | None:
        """A run over its streams as they were; None if it has to wait, or can never be made, which is put down."""
        entry = run.entry
        first = snapshot.view(entry.paces[0].stream)
        end = first.model.slot_end(run.slides[first.name])
        window = find_run_window(entry.paces[0], run.slides[first.name], end)
        try:
            past = backfill.open_past(snapshot, run).at(find_clocks(entry, run.slides))
            due = DueRun(entry, run.state, run.slides, window, True, backfilled=run.commit)
            due = _with_coverage(due, past)
            if entry.deadline is not None and not due.complete:
                waited = self._wait_for_rows(snapshot, run, due, end + entry.deadline)
                if waited is None:
                    self._put_off.add(entry.id)
                    return None
                past, due = waited
            if entry.on_gap == "error" and not due.complete:
                raise _refuse(past, due).error or QueryError("its windows are not complete")
        except (GapError, WindowError) as error:
            backfill.pass_over(self.store, run, window, str(error))
            return None
        (answer,) = evaluation.answer_from_rows(self.store, past, [entry])
        return due, answer

    def _wait_for_rows(
        self, snapshot: Snapshot, run: backfill.PastRun, due: DueRun, deadline: int
    ) -> tuple[Snapshot, DueRun] | None:
        """A run as of its slide, over what was known when it became complete or its deadline passed; None: not yet."""
        calendars = find_clocks(run.entry, run.slides)
        clocks: Clocks = {name: (slide, calendars.get(name, (None, None))[1]) for name, slide in run.slides.items()}
        for commit in backfill.list_later_commits(self.store, run):
            then = backfill.open_past(snapshot, replace(run, commit=commit))
            over = (then.now(run.entry.paces[0].stream) or 0) >= deadline
            past = then.at(clocks)
            seen = _with_coverage(due, past)
            if seen.complete or over:
                return past, seen
        return None

    def _answer(self, snapshot: Snapshot, entries: Iterable[QueryEntry], hold: bytes | None) -> Iterator[RunReport]:
        """Answer and deliver over one snapshot, most important first."""
        for runs in _group_runs(self._find_runs(snapshot, entries, hold)):
            visible = snapshot.at(runs[0].clocks) if runs[0].clocks else snapshot
            yield from self._answer_together(visible, runs)

    def _answer_together(
        self, snapshot: Snapshot, runs: Sequence[DueRun], shared: SharedRows | None = None, reruns: int = 0
    ) -> Iterator[RunReport]:
        refused = [run for run in runs if run.entry.on_gap == "error" and not run.complete]
        runs = [run for run in runs if run not in refused]
        failed = [(run, _refuse(snapshot, run)) for run in refused]
        for entry, entered in deliver_runs(self.store, failed) if failed else ():
            self._failed.add(entry.id)
            yield _make_report(self.store, entered, None)
        due = {run.entry.name: run for run in runs}
        ordered = sorted((run.entry for run in runs), key=lambda entry: (-entry.priority, entry.id))
        late = {name: count_late_slides(run.entry.paces[0], run.state.reached, run.slides) for name, run in due.items()}
        again: list[tuple[DueRun, RunAnswer]] = []
        for batch in batch_answers(
            evaluation.answer_due(self.store, snapshot, ordered, self.policy, late, shared, self.engine), self.stop
        ):
            stopped = self.stop.is_set()
            done = [(due[answer.query], answer) for answer in batch if not (stopped and answer.error)]
            if reruns < _MAX_RERUNS and not stopped:
                overtaken = self._find_overtaken([run for run, _ in done])
                again += [each for each in done if each[0].entry.id in overtaken]
                done = [each for each in done if each[0].entry.id not in overtaken]
            yield from self._deliver(done)
            if stopped:
                return
        if again:
            yield from self._answer_again(again, reruns + 1)

    def _deliver(self, done: Sequence[tuple[DueRun, RunAnswer]]) -> Iterator[RunReport]:
        delivered = deliver_runs(self.store, done)
        unplaced = self._place_files([entry for entry, run in delivered if run.file])
        for entry, run in delivered:
            if run.outcome == "failed":
                self._failed.add(entry.id)
            yield _make_report(self.store, run, unplaced.get(entry.id))

    def _find_overtaken(self, runs: Sequence[DueRun]) -> set[int]:
        """The queries at ``latest`` of which a stream has slid since their run was begun."""
        latest = [run for run in runs if run.entry.isolation == "latest" and not run.revision]
        if not latest:
            return set()

        def compare(tables: Tables) -> set[int]:
            cached: dict[int, int | None] = {}
            return {run.entry.id for run in latest if read_committed_slides(tables, run.entry, cached) != run.slides}

        return self.store.catalog.read(compare)

    def _answer_again(self, overtaken: Sequence[tuple[DueRun, RunAnswer]], reruns: int) -> Iterator[RunReport]:
        """Runs that slides have overtaken, over the newest commit; what cannot be run there is delivered as it is."""
        self._overtaken = True
        with Snapshot(self.store) as snapshot:
            runs = list(self._find_runs(snapshot, [run.entry for run, _ in overtaken], None, again=True))
            revised = {run.entry.id for run in runs}
            yield from self._deliver([each for each in overtaken if each[0].entry.id not in revised])
            for group in _group_runs(runs):
                visible = snapshot.at(group[0].clocks) if group[0].clocks else snapshot
                yield from self._answer_together(visible, group, reruns=reruns)

    def _find_runs(
        self, snapshot: Snapshot, entries: Iterable[QueryEntry], hold: bytes | None, *, again: bool = False
    ) -> Iterator[DueRun]:
        """What is to be run over a snapshot, judged again under the lock: another round may have been quicker."""
        slides_of = {entry.id: read_snapshot_slides(snapshot, entry) for entry in entries}

        def read_states(tables: Tables) -> dict[int, tuple[QueryState | None, dict[str, int], str | None]]:
            late = LateRows(tables)
            return {
                entry.id: (
                    tables.get("paced", catalog_key(entry.id)),
                    late.marks(entry),
                    None if self.now else find_undelivered(tables, entry, slides_of[entry.id]),
                )
                for entry in entries
            }

        states = self.store.catalog.read(read_states)
        for entry in entries:
            (state, marks, undelivered), slides = states[entry.id], slides_of[entry.id]
            if state is None or undelivered:
                continue
            due = self._is_due(entry, state, slides) or (again and is_due(entry.paces, state.reached, slides))
            if hold is None and not state.held and not due:
                continue
            slides = state.held or slides
            first = snapshot.view(entry.paces[0].stream)
            assert first.now is not None
            end = first.model.slot_end(slides[first.name])
            window = find_run_window(entry.paces[0], slides[first.name], end)
            clocks = find_clocks(entry, slides)
            if state.held:
                clocks = {name: (slide, clocks.get(name, (None, None))[1]) for name, slide in slides.items()}
            run = DueRun(entry, state, slides, window, True, hold, clocks=clocks, known=marks)
            run = _with_coverage(run, snapshot)
            if entry.deadline is None or run.complete or self.now or first.now >= end + entry.deadline:
                yield run
            elif not state.held:
                self._hold(entry, slides)

    def _hold(self, entry: QueryEntry, slides: dict[str, int]) -> None:
        """Let a run wait until its windows are complete: it will be made as of these slides."""
        with self.store.catalog.write() as tables:
            state: QueryState | None = tables.get("paced", catalog_key(entry.id))
            if state is not None:
                tables.put("paced", catalog_key(entry.id), structs.replace(state, held=slides))

    def _place_files(self, entries: Sequence[QueryEntry]) -> dict[int, str]:
        """Put files in their folders; gives why some could not be, by their queries."""
        self._placed.update(entry.id for entry in entries)
        return sinks.place_waiting_files(self.store, entries)

    def _settle(self, entries: Sequence[QueryEntry]) -> None:
        """Put files in their folders that earlier rounds left, and roll what has gathered in the catalog into parts."""
        states = self.store.catalog.read(
            lambda tables: [tables.get("paced", catalog_key(entry.id)) for entry in entries]
        )
        registered = [(entry, state) for entry, state in zip(entries, states, strict=True) if state is not None]
        self._place_files(
            [
                entry
                for entry, state in registered
                if (state.unplaced or state.unplaced_revisions) and entry.id not in self._placed
            ]
        )
        full = [entry for entry, state in registered if result_store.is_tail_full(state)]
        with contextlib.suppress(StorageError):  # they stay where they are, and the next round tries again
            result_store.roll_tails(self.store, full[:_MAX_ROLLED])


def _find_changed_streams(snapshot: Snapshot, queries: Iterable[tuple[QueryEntry, QueryState]]) -> list[str]:
    """Streams whose synopses are to be decided upon: a query is new, or the rows are now twice or half as many."""
    changed: dict[str, None] = {}
    for entry, state in queries:
        pace = entry.paces[0]
        if pace.stream not in changed:
            rows = snapshot.view(pace.stream).segments.rows
            judged = 0 if state.from_rows == _READS_SEVERAL else state.judged
            if max(rows, judged) >= _MIN_ROWS and not rows <= 2 * judged <= 4 * rows:
                changed[pace.stream] = None
    return list(changed)


def _group_runs(runs: Iterable[DueRun]) -> list[list[DueRun]]:
    """Runs that see the streams alike, and are answered together; higher priorities first if there are several."""
    groups: dict[tuple[int, tuple[object, ...]], list[DueRun]] = {}
    waiting = list(runs)
    alike = all(run.clocks == waiting[0].clocks for run in waiting)
    for run in waiting:
        priority = 0 if alike else -run.entry.priority
        groups.setdefault((priority, tuple(sorted(run.clocks.items()))), []).append(run)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def _refuse(snapshot: Snapshot, due: DueRun) -> RunAnswer:
    """The answer of a run that is not made because its windows are not complete."""
    try:
        refuse_gaps(execution.describe_windows(snapshot, read_registered(due.entry), PERIODIC_CONTEXT))
    except GapError as error:
        return RunAnswer(due.entry.name, None, error)
    return RunAnswer(due.entry.name, None)


def _with_coverage(due: DueRun, snapshot: Snapshot) -> DueRun:
    """A run with what is known of its windows."""
    windows = execution.describe_windows(
        snapshot.at(due.clocks) if due.clocks else snapshot, read_registered(due.entry), PERIODIC_CONTEXT
    )
    packed = msgspec.json.encode([window_to_json(w) for w in windows]).decode() if due.entry.sink == "parquet" else ""
    complete, coverage = all(w.complete for w in windows), min((w.coverage for w in windows), default=1.0)
    return replace(due, complete=complete, coverage=coverage, windows=packed)


def batch_answers(answers: Iterator[RunAnswer], stop: threading.Event | None = None) -> Iterator[list[RunAnswer]]:
    """Answers in batches: those that are ready together come together, and none waits for one that takes long.

    Once `stop` is set, or nobody asks for more, the statements that are still running are ended.
    """
    ready: _Ready = queue.Queue()
    abandoned = threading.Event()

    def fetch() -> None:
        try:
            for answer in answers:
                ready.put(answer)
                if abandoned.is_set():
                    break
            ready.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            ready.put(error)

    fetching = threading.Thread(target=fetch, name="windrow-round", daemon=True)
    fetching.start()
    finished = False
    try:
        yield from _batches(ready, stop or abandoned)
        finished = stop is None or not stop.is_set()
    finally:
        abandoned.set()
        while fetching.is_alive():
            if not finished:
                evaluation.interrupt_periodic()
            fetching.join(0.02)


def _batches(ready: "_Ready", stop: threading.Event) -> Iterator[list[RunAnswer]]:
    batch: list[RunAnswer] = []
    while not stop.is_set():
        try:
            item = ready.get(timeout=_BATCH_SECONDS if batch else _POLL_SECONDS)
        except queue.Empty:
            if batch:
                yield batch
                batch = []
            continue
        if isinstance(item, RunAnswer):
            batch.append(item)
            if len(batch) < _MAX_BATCH:
                continue
        if batch:
            yield batch
            batch = []
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return
    if batch:
        yield batch


def _make_report(store: Store, run: RunEntry, unplaced: str | None) -> RunReport:
    """The report of a run; `unplaced` says why its file is still waiting."""
    report = RunReport(
        query=run.query,
        slide=run.slide,
        outcome=run.outcome if unplaced is None else "unplaced",
        rows=run.rows,
        seconds=run.seconds,
        staleness=run.staleness / times.SECOND,
        complete=run.complete,
        how=run.how,
        error=run.error or unplaced,
        file=str(store.root / run.file) if run.file and unplaced is None else None,
        revision=run.revision,
        backfilled=run.backfilled,
    )
    _log.log(
        logging.INFO if report.outcome == "delivered" else logging.WARNING,
        "%s %s slide %d, %d rows in %.3f s by %s%s",
        report.outcome, report.query, report.slide, report.rows, report.seconds, report.how,
        f": {report.error}" if report.error else "", extra={"report": report},
    )  # fmt: skip
    return report
