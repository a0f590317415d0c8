"""Group commit: threads that commit small things at the same time share one transaction and its syncs.

Each thread leaves its work in a queue; whoever gets the turn does all that waits, commits, and wakes the others. The
first thread to come waits for nobody. Processes take turns by the catalog's lock, as ever.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from windrow.catalog.environment import Tables
from windrow.errors import StorageError
from windrow.store import Store

T = TypeVar("T")


class _Request:
    """What one thread wants done."""

    __slots__ = ("done", "error", "leads", "result", "woken", "work")

    def __init__(self, work: Callable[[Tables], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.leads = False
        """Whether this thread commits the next group."""
        self.woken = threading.Lock()
        self.woken.acquire()

    def settle(self, error: BaseException | None = None) -> None:
        self.error, self.done = error, True
        self.woken.release()


class GroupCommit:
    """The queue of one warehouse in this process; handles share it."""

    def __init__(self) -> None:
        self._waiting: deque[_Request] = deque()
        self._guard = threading.Lock()
        self._is_busy = False

    def run(self, store: Store, work: Callable[[Tables], T]) -> T:
        """Do `work` in a transaction, with that of other threads; it is durable when this returns.

        Work that raises must have changed nothing that matters: the transaction is undone, and the others' work is
        done again without it.
        """
        request = _Request(work)
        with self._guard:
            self._waiting.append(request)
            request.leads, self._is_busy = not self._is_busy, True
        try:
            if not request.leads:
                request.woken.acquire()
            if request.leads:
                self._lead(store, request)
        except BaseException:
            self._leave(request)
            raise
        if request.error is not None:
            raise request.error
        result: T = request.result
        return result

    def _lead(self, store: Store, request: _Request) -> None:
        with self._guard:
            group = list(self._waiting)
            self._waiting.clear()
        try:
            self._commit(store, group)
        finally:
            for each in group:
                if not each.done:
                    each.settle(StorageError("a commit was interrupted; whether it happened is not known"))
            request.leads = False
            with self._guard:
                self._hand_over()

    def _hand_over(self) -> None:
        """Wake who leads next. The guard must be held."""
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].woken.release()
        else:
            self._is_busy = False

    def _leave(self, request: _Request) -> None:
        """A thread was interrupted: what it has asked for and nobody has begun is not done."""
        with self._guard:
            if request in self._waiting:
                self._waiting.remove(request)
            if request.leads:
                request.leads = False
                self._hand_over()

    def _commit(self, store: Store, group: list[_Request]) -> None:
        failed: _Request | None = None
        try:
            with store.catalog.write() as tables:
                for request in group:
                    failed = request
                    request.result = request.work(tables)
                failed = None
        except Exception as error:  # noqa: BLE001 - each thread raises its own
            if failed is None or len(group) == 1:  # the commit itself failed
                for request in group:
                    request.settle(error)
            else:
                for request in group:
                    self._commit(store, [request])
            return
        for request in group:
            request.settle()


def group_commit_of(store: Store) -> GroupCommit:
    """The group commit of a warehouse in this process."""
    return store.shared.attached("group commit", GroupCommit)
