"""A round: finds the due queries, answers them over one snapshot and delivers the answers.

Any number of processes may make rounds at once. Each query is locked while it is run, so that two rounds do not do the
same work; that a run is delivered only once is decided by the commit, not by the lock.
"""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import QueryEntry, QueryState, RunEntry
from windrow.errors import BusyError, StorageError, UnknownQueryError
from windrow.files import disk_errors
from windrow.locks import locked
from windrow.queries.periodic import evaluation, result_store, sinks
from windrow.queries.periodic.delivery import DueRun, deliver_runs
from windrow.queries.periodic.due import count_late_slides, is_due, read_committed_slides, read_snapshot_slides
from windrow.queries.periodic.evaluation import RunAnswer
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING, check_policy
from windrow.snapshot import Snapshot
from windrow.store import Store

_Ready = queue.Queue[RunAnswer | BaseException | None]
_BATCH_SECONDS = 0.02
"""Seconds that finished runs wait for others, so that they are committed together."""
_POLL_SECONDS = 0.1
"""Seconds between two checks whether to stop."""
_MAX_BATCH = 256
"""Runs that one commit delivers at most."""
_MAX_ROLLED = 8
"""Results tables that one round tidies."""


@dataclass(frozen=True)
class RunReport:
    """What became of one run."""

    query: str
    slide: int
    outcome: str
    """``delivered``; ``unplaced`` if only its file could not be written, which a later round does; or ``failed``: then
    it is tried again after a while."""
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


@dataclass(frozen=True)
class _RoundState:
    """The queries and retained slides at the begin of a round."""

    queries: list[tuple[QueryEntry, QueryState]]
    holds: list[tuple[bytes, tuple[int, ...]]]
    due: set[int]


def run_due(
    store: Store, names: Sequence[str] | None = None, *, now: bool = False, policy: str = HYBRID_LATE_PENDING
) -> list[RunReport]:
    """Run what is due.

    Args:
        store: The warehouse.
        names: Only these queries.
        now: Run them for the newest slide even if they are not due, or failed a moment ago.
        policy: Which of them are answered together, and in which order: one of `scheduler.POLICIES`.
    """
    store.check_writable()
    return list(QueryRound(store, names, now, policy=policy).run())


class QueryRound:
    """One round over the registered queries.

    Args:
        store: The warehouse.
        names: Only these queries.
        now: Run them for the newest slide even if they are not due.
        stop: Ends the round early once it is set: what is answered is delivered, the rest stays due.
        policy: Which of them are answered together, and in which order.

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
    ) -> None:
        check_policy(policy)
        self.policy = policy
        self.store = store
        self.names = None if names is None else {name.lower() for name in names}
        self.now = now
        self.stop = stop or threading.Event()
        self._failed: set[int] = set()
        self._placed: set[int] = set()
        """Queries whose files were put in their folders in this round, or could not be."""

    def run(self) -> Iterator[RunReport]:
        """Make the round; reports come as runs are delivered."""
        round_state = self.store.catalog.read(self._read_state)
        self._check_names(round_state)
        with contextlib.ExitStack() as stack:
            if round_state.queries:
                self._make_room_for_locks()
            locked_queries = {
                entry.id: entry
                for entry, state in round_state.queries
                if self._needs_lock(round_state, entry, state) and self._lock(stack, entry)
            }
            due = {number: entry for number, entry in locked_queries.items() if number in round_state.due}
            yield from self._run_retained(round_state, due)
            yield from self._run_newest(due)
            self._settle(list(locked_queries.values()))

    def _read_state(self, tables: Tables) -> _RoundState:
        queries, due, waiting = [], set(), False
        clock = self.store.clock()
        slides: dict[int, int | None] = {}
        for _, entry in tables.items("queries"):
            if self.names is not None and entry.name.lower() not in self.names:
                continue
            state: QueryState = tables.get("paced", catalog_key(entry.id))
            queries.append((entry, state))
            ready = self.now or state.retry_at is None or state.retry_at <= clock
            if ready and (state.waiting or self._is_due(entry, state, read_committed_slides(tables, entry, slides))):
                due.add(entry.id)
                waiting = waiting or bool(state.waiting)
        holds = [(key, hold.queries) for key, hold in tables.items("holds")] if waiting else []
        return _RoundState(queries, holds, due)

    def _check_names(self, round_state: _RoundState) -> None:
        names = {entry.name.lower() for entry, _ in round_state.queries}
        for name in sorted((self.names or set()) - names):
            raise UnknownQueryError(f"there is no periodic query {name!r}; FROM windrow.queries lists them")

    @staticmethod
    def _needs_lock(round_state: _RoundState, entry: QueryEntry, state: QueryState) -> bool:
        return entry.id in round_state.due or bool(state.unplaced)

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

    def _run_newest(self, due: dict[int, QueryEntry]) -> Iterator[RunReport]:
        """The runs of the newest slides, all over one snapshot."""
        wanted = [entry for entry in due.values() if self.now or entry.missed != "every"]
        if wanted and not self.stop.is_set():
            with Snapshot(self.store) as snapshot:
                yield from self._answer(snapshot, wanted, None)

    def _answer(self, snapshot: Snapshot, entries: Iterable[QueryEntry], hold: bytes | None) -> Iterator[RunReport]:
        """Answer and deliver over one snapshot, most important first."""
        due = {run.entry.name: run for run in self._find_runs(snapshot, entries, hold)}
        ordered = sorted((run.entry for run in due.values()), key=lambda entry: (-entry.priority, entry.id))
        if not ordered:
            return
        late = {name: count_late_slides(run.entry.paces[0], run.state.reached, run.slides) for name, run in due.items()}
        for batch in batch_answers(evaluation.answer_due(self.store, snapshot, ordered, self.policy, late), self.stop):
            stopped = self.stop.is_set()
            done = [(due[answer.query], answer) for answer in batch if not (stopped and answer.error)]
            delivered = deliver_runs(self.store, done)
            unplaced = self._place_files([entry for entry, run in delivered if run.file])
            for entry, run in delivered:
                if run.outcome == "failed":
                    self._failed.add(entry.id)
                yield _make_report(self.store, run, unplaced.get(entry.id))
            if stopped:
                return

    def _find_runs(self, snapshot: Snapshot, entries: Iterable[QueryEntry], hold: bytes | None) -> Iterator[DueRun]:
        """What is to be run over a snapshot, judged again under the lock: another round may have been quicker."""
        states = self.store.catalog.read(
            lambda tables: {entry.id: tables.get("paced", catalog_key(entry.id)) for entry in entries}
        )
        for entry in entries:
            state: QueryState | None = states[entry.id]
            slides = read_snapshot_slides(snapshot, entry)
            if state is None or (hold is None and not self._is_due(entry, state, slides)):
                continue
            first = snapshot.view(entry.paces[0].stream)
            end = first.now
            length = entry.paces[0].window
            start = None if length is None or end is None else end - length
            missing = [name for name in entry.reads if snapshot.view(name).state.missing]
            yield DueRun(entry, state, slides, (start, end), not missing, hold)

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
        self._place_files([entry for entry, state in registered if state.unplaced and entry.id not in self._placed])
        full = [entry for entry, state in registered if result_store.is_tail_full(state)]
        with contextlib.suppress(StorageError):  # they stay where they are, and the next round tries again
            result_store.roll_tails(self.store, full[:_MAX_ROLLED])


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
    return RunReport(
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
    )
