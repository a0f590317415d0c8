"""The process that runs periodic queries: it watches the catalog for slides of any process, and runs what is due.

Any number may be started; the one that holds the lock leads, the others wait and take over when it ends. Only delay
depends on the leader: rounds of several processes do not harm each other.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from windrow.background import background_of
from windrow.errors import WindrowError
from windrow.expired_rows import offer_erasure
from windrow.files import disk_errors
from windrow.history_merge import offer_merges
from windrow.locks import describe_holder, try_lock
from windrow.queries.periodic import evaluation
from windrow.queries.periodic.counters import ServerCounters
from windrow.queries.periodic.run_engine import DUCKDB, SPARK, RunEngine
from windrow.queries.periodic.runner import QueryRound, RunReport
from windrow.queries.periodic.scheduler import HYBRID_LATE_PENDING, check_policy
from windrow.reclaim import offer_removal
from windrow.sources import fail_silent_sources
from windrow.store import Store
from windrow.warehouse import SLIDE_HOOKS

_MAX_WAIT_SECONDS = 1.0
"""Seconds after which a round is made though nothing was committed: a failed query's time may have come."""

_log = logging.getLogger("windrow.serve")


class PeriodicServer:
    """Runs what is due until it is stopped.

    Args:
        store: The warehouse.
        poll: Seconds between two checks of the catalog.
        policy: Which due queries are answered together, and in which order.
        engine: What runs the queries that are not DuckDB's, in rounds of their own: they may take long.
        ran: Called with each run.
        before: Called before each look at the catalog.
    """

    def __init__(
        self,
        store: Store,
        *,
        poll: float = 0.2,
        policy: str = HYBRID_LATE_PENDING,
        engine: RunEngine | None = None,
        ran: Callable[[RunReport], None] = lambda _: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        store.check_writable()
        check_policy(policy)
        self._policy, self._engine = policy, engine
        self._waiting: set[str] = set()
        """Queries of which it was said that nobody runs them here."""
        self.store = store
        self.counts = ServerCounters(store.clock())
        self._poll = poll
        self._ran = ran
        self._before = before
        self._stop = threading.Event()

    def stop(self) -> None:
        """End: what is answered is still delivered, statements that are running are ended."""
        self._stop.set()
        evaluation.interrupt_periodic()

    def run(self) -> None:
        """Lead as soon as nobody else does, and serve."""
        with self._leading() as leads:
            if not leads:
                return
            self.counts.leading = True
            _log.info("serving %s", self.store.root)
            try:
                self._serve()
            finally:
                self.counts.leading = False
        _log.info("stopped")

    @contextlib.contextmanager
    def _leading(self) -> Iterator[bool]:
        """Hold the leader's lock; False if we were stopped before we had it."""
        path = self.store.catalog.folder / "locks" / "serve.lock"
        with disk_errors("serving"):
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            announced = False
            while not (leads := try_lock(descriptor)) and not self._stop.wait(self._poll):
                if not announced:
                    _log.info("%s is serving; waiting to take over", describe_holder(path))
                    announced = True
            if leads:
                os.pwrite(descriptor, f"process {os.getpid()}".ljust(128).encode(), 0)
            yield leads
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _serve(self) -> None:
        if self._engine is None:
            self._watch(None)
            return
        other = threading.Thread(target=self._watch, args=[SPARK], name="windrow-spark-rounds", daemon=True)
        other.start()
        try:
            self._watch(DUCKDB)
        finally:
            self._stop.set()
            while other.is_alive():
                evaluation.interrupt_periodic()
                other.join(self._poll)

    def _watch(self, only: str | None) -> None:
        """Make rounds of the queries of one engine, or of all; those of Spark do nothing else."""
        last_commit, last_round = -1, 0.0
        while not self._stop.is_set():
            if only != SPARK:
                self._before()
            commit = self.store.catalog.last_transaction()
            if commit != last_commit or time.monotonic() - last_round >= _MAX_WAIT_SECONDS:
                last_commit, last_round = commit, time.monotonic()
                self._round(only)
            if only == SPARK or not background_of(self.store).run(self._poll):
                self._stop.wait(self._poll)

    def _count(self, report: RunReport) -> None:
        if report.outcome != "waiting":
            self.counts.add(report)
            self._ran(report)
        elif report.query not in self._waiting:
            self._waiting.add(report.query)
            _log.warning("query %r is due: %s", report.query, report.error)

    def _round(self, only: str | None) -> None:
        try:
            if only != SPARK:
                fail_silent_sources(self.store)
            for report in QueryRound(
                self.store, stop=self._stop, policy=self._policy, engine=self._engine, only=only
            ).run():
                self._count(report)
            if only != SPARK:
                offer_removal(self.store)
                offer_erasure(self.store, SLIDE_HOOKS)
                offer_merges(self.store)
        except WindrowError as error:
            # A full disk, a catalog that cannot grow: the round is tried again, and the error is published.
            if str(error) != self.counts.last_error:
                _log.warning("a round failed: %s", error)
            self.counts.errors += 1
            self.counts.last_error = self.counts.failing = str(error)
        else:
            self.counts.failing = None
        self.counts.rounds += 1
