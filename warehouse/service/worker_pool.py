"""The workers that run a server's statements: started beforehand, waited for in turn, ended with what may not go on.

Whatever ends a statement early, its time, a client that went away, the end of the server, ends its worker; the
statement's reader then finds the connection closed and the reason beside it. Another worker is started in its place.
"""

import asyncio
import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from windrow import errors
from windrow.errors import BusyError, QueryError, WindrowError
from windrow.queries.priorities import ONE_TIME, PROCESS_GATE
from windrow.service.statement_worker import END, ERROR, FRAME, READY, Request

_POLL_SECONDS = 0.1
_RECEIVE_BYTES = 256 << 10
_START_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_WATCH_SECONDS = 1.0
_END_SECONDS = 5.0
"""Between two looks for a free worker; bytes read at once; a worker's start; the pause after a failed one; between
two looks for dead workers; until a worker that was ended is killed. Choices, not measured."""

Frame = tuple[int, Any]
"""What a piece of a reply is, and its bytes."""


class WorkerStarter:
    """A process without threads that has imported everything; workers are forked from it.

    Args:
        path: Of the warehouse.
        memory: Bytes that a statement of a worker may use.
    """

    def __init__(self, path: str, memory: int) -> None:
        self._path, self._memory = path, memory
        self._guard = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._channel, theirs = socket.socketpair()
        call = f"start_workers({theirs.fileno()}, {self._path!r}, {self._memory})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from windrow.service import statement_worker as w; w.{call}"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self) -> "Worker | None":
        """Start a worker; None if the process had been ended: the next call finds another in its place."""
        ours, theirs = socket.socketpair()
        handles: list[int] = []
        with theirs, self._guard:
            with contextlib.suppress(OSError):
                socket.send_fds(self._channel, [b"w"], [theirs.fileno()])
                _, handles, _, _ = socket.recv_fds(self._channel, 1, 1)
            if not handles:
                ours.close()
                self.close()
                self._begin()
                return None
        return Worker(ours, handles[0])

    def close(self) -> None:
        """End the process, and with it the workers that are left."""
        self._channel.close()
        self._process.wait()


class Worker:
    """One process that runs statements, one at a time.

    Args:
        connection: To it.
        handle: Of the process, as Linux's ``pidfd``: whatever ends it ends no other.
    """

    def __init__(self, connection: socket.socket, handle: int) -> None:
        self.connection, self._handle = connection, handle
        connection.setblocking(False)
        self._guard = threading.Lock()
        self.buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self.failed = False

    def wait_until_ready(self) -> bool:
        """Whether it has opened the warehouse."""
        ready = select.select([self.connection], [], [], _START_SECONDS)[0]
        return bool(ready) and self.connection.recv(FRAME.size) == FRAME.pack(READY, 0)

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._guard, contextlib.suppress(ProcessLookupError):
            self.failed = True
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; it ends when nobody asks any more."""
        self.connection.close()
        if not select.select([self._handle], [], [], _END_SECONDS)[0]:
            self.kill()
        with self._guard:
            os.close(self._handle)
            self._handle = -1


class WorkerPool:
    """Workers, and the statements that wait for one.

    Args:
        starter: Starts workers.
        size: How many there are, which is how many statements run at once.
        waiting: How many may wait; more are refused at once.
        patience: Seconds that one waits at most.
    """

    def __init__(self, starter: WorkerStarter, size: int, waiting: int, patience: float) -> None:
        self.size, self.patience = size, patience
        self._most_waiting = waiting
        self._processes = starter
        self._guard = threading.Lock()
        self._idle: list[Worker] = []
        self._waiting: deque[Future[Worker]] = deque()
        self._all: set[Worker] = set()
        self._closed = False
        self.watched: set[RunningStatement] = set()
        """Statements whose reader may be held up by its client and so cannot end them itself."""
        self._ended, self._ready = threading.Event(), threading.Event()
        self._starter = ThreadPoolExecutor(1, "windrow-workers")
        for _ in range(size):
            self._starter.submit(self._start_one)
        threading.Thread(target=self._watch, name="windrow-deadlines", daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_SECONDS):
            for statement in list(self.watched):
                statement.end_if_late()

    def wait_until_ready(self, seconds: float) -> None:
        """Wait for the first worker."""
        self._ready.wait(seconds)

    @property
    def is_closed(self) -> bool:
        """Whether the server is ending."""
        return self._closed

    @property
    def waiting(self) -> int:
        """How many statements wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many statements run."""
        return len(self._all) - len(self._idle)

    def _start_one(self) -> None:
        while not self._closed:
            worker = self._processes.start()
            if worker is None:
                time.sleep(_RETRY_SECONDS)
                continue
            if worker.wait_until_ready():
                with self._guard:
                    self._all.add(worker)
                self.give_back(worker)
                self._ready.set()
                return
            worker.kill()
            worker.close()
            time.sleep(_RETRY_SECONDS)

    def take(self) -> "Future[Worker]":
        """The worker that was used last, now or when one is free."""
        turn: Future[Worker] = Future()
        with self._guard:
            if self._closed:
                raise ending_error()
            if self._idle:
                turn.set_result(self._idle.pop())
            elif len(self._waiting) >= self._most_waiting:
                raise BusyError(f"{self.size} statements run and {len(self._waiting)} wait already; ask again later")
            else:
                self._waiting.append(turn)
        return turn

    def give_up(self, turn: "Future[Worker]") -> None:
        """Wait no longer."""
        with self._guard, contextlib.suppress(ValueError):
            self._waiting.remove(turn)
            return
        if turn.done() and not turn.cancelled():
            self.give_back(turn.result())

    def give_back(self, worker: Worker) -> None:
        """A statement is over: the worker takes the next, or another comes in its place."""
        with self._guard:
            if not worker.failed and not self._closed:
                while self._waiting:
                    turn = self._waiting.popleft()
                    if turn.set_running_or_notify_cancel():
                        turn.set_result(worker)
                        return
                self._idle.append(worker)
                return
            self._all.discard(worker)
        worker.kill()
        if not self._closed:
            self._starter.submit(self._replace, worker)
        else:
            worker.close()

    def _replace(self, worker: Worker) -> None:
        self._start_one()
        worker.close()

    def busy_error(self) -> BusyError:
        """What a statement is told that waited too long."""
        return BusyError(f"no statement ended within {self.patience:g} s; ask again later")

    def close(self) -> None:
        """End all workers, and the statements that run or wait."""
        self._ended.set()
        with self._guard:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            idle, self._idle = self._idle, []
            running = self._all - set(idle)
        for turn in waiting:
            if turn.set_running_or_notify_cancel():
                turn.set_exception(ending_error())
        for worker in running:  # their readers find the end, and give them back
            worker.kill()
        self._starter.shutdown(wait=True)
        for worker in idle:
            worker.close()
        self._processes.close()


class RunningStatement:
    """A statement that a worker runs; its reply is read by a thread or by a task of an event loop.

    Args:
        pool: Of the worker.
        seconds: That it may take, from its first read on.
        ended: Called once with its error, None if it went well, and its rows.
    """

    def __init__(self, pool: WorkerPool, seconds: float, ended: Callable[[str | None, int | None], None]) -> None:
        self._pool, self._seconds, self._ended = pool, seconds, ended
        self._turn: Future[Worker] | None = None
        self._worker: Worker | None = None
        self._reason: WindrowError | None = None
        self.is_over = False
        self._guard = threading.Lock()
        self._counted = False
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self._is_gone: Callable[[], bool] = lambda: False

    def cancel(self, why: str) -> None:
        """End it, whether it waits or runs; whoever reads it gets an error. Any thread may."""
        self._end(QueryError(f"the query was cancelled: {why}"))

    def _end(self, reason: WindrowError) -> None:
        if not self.is_over and self._reason is None:
            self._reason = reason
            if self._worker is not None:
                self._worker.kill()
            elif self._turn is not None:
                self._turn.cancel()

    def _time_out(self) -> None:
        self._end(errors.QueryTimeoutError(f"the query was cancelled: it took longer than {self._seconds:g} s"))

    def _begin(self, worker: Worker) -> None:
        self._worker = worker
        PROCESS_GATE.begin(ONE_TIME)  # standing queries of this process yield until the first rows are there
        self._counted = True

    def _stop_counting(self) -> None:
        if self._counted:
            self._counted = False
            PROCESS_GATE.end(ONE_TIME)

    def end_if_late(self) -> None:
        """End it and let go of its worker if its time is over, also while its reader is held up by a slow client."""
        if time.monotonic() > self._until + _WATCH_SECONDS:
            self._time_out()
            self.close()

    def close(self, error: str | None = None, rows: int | None = None) -> None:
        """The statement is over; if its reply was not read to its end, neither is its worker used again."""
        with self._guard:
            if self.is_over:
                return
            self.is_over = True
        self._pool.watched.discard(self)
        self._stop_counting()
        if self._worker is None and self._turn is not None:
            self._pool.give_up(self._turn)
        if error is None and rows is None:
            error = str(self._reason or "the query was cancelled: its answer was not read to the end")
            if self._worker is not None:
                self._worker.failed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._worker is not None:
            self._pool.give_back(self._worker)
        self._ended(error, rows)

    def _take_frame(self) -> Frame | None:
        """A frame out of what was received."""
        received = self._received
        if len(received) < FRAME.size:
            return None
        kind, size = FRAME.unpack_from(received)
        if len(received) < FRAME.size + size:
            return None
        content = bytes(memoryview(received)[FRAME.size : FRAME.size + size])
        del received[: FRAME.size + size]
        return kind, content

    def _check(self, frame: Frame) -> Frame:
        """Note the end of a reply, and raise its error."""
        kind, content = frame
        self._stop_counting()
        if kind == ERROR:
            failure = json.loads(content)
            self.close(str(failure["message"]).partition("\n")[0])
            raise _error_of(failure)
        if kind == END:
            value = json.loads(content) if content[:1] == b"{" else None
            self.close(None, value.get("rows", 0) if value is not None else 0)
        return frame

    def _connection_ended(self) -> WindrowError:
        assert self._worker is not None
        self._worker.failed = True
        if self._reason is None and self._pool.is_closed:
            self._reason = ending_error()
        if self._reason is None:
            self._reason = QueryError("the process that ran the statement was ended by the system; ask for less")
        reason = self._reason
        self.close()
        return reason

    # -- for an event loop --------------------------------------------------------------------------------------------

    async def begin_async(self, request: Request) -> None:
        """Wait for a worker and ask it."""
        try:
            self._turn = self._pool.take()
            if not self._turn.done():
                async with asyncio.timeout(self._pool.patience):
                    await asyncio.wrap_future(self._turn)
            self._begin(self._turn.result())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._time_out)
            await loop.sock_sendall(self._worker.connection, _pack(request))  # type: ignore[union-attr]
        except BaseException as error:  # noqa: BLE001 - raised again
            raise self._failed_to_begin(error) from None

    def _failed_to_begin(self, error: BaseException) -> BaseException:
        if self._reason is not None:
            error = self._reason
        elif isinstance(error, OSError) and not isinstance(error, WindrowError):
            if self._worker is not None:
                return self._connection_ended()
            error = self._pool.busy_error()
        self.close(str(error) or type(error).__name__)
        return error

    async def frame_async(self) -> Frame:
        """The next piece of the reply."""
        assert self._worker is not None
        loop = asyncio.get_running_loop()
        while (frame := self._take_frame()) is None:
            try:
                size = await loop.sock_recv_into(self._worker.connection, self._worker.buffer)
            except OSError:
                size = 0
            if not size:
                raise self._connection_ended()
            self._received += self._worker.buffer[:size]
        return self._check(frame)

    def frame_at_hand(self) -> Frame | None:
        """The next piece of the reply if it was received already."""
        frame = self._take_frame()
        return None if frame is None else self._check(frame)

    # -- for a thread -------------------------------------------------------------------------------------------------

    def begin(self, request: Request, is_gone: Callable[[], bool]) -> None:
        """Wait for a worker and ask it; `is_gone` tells whether anybody still waits."""
        self._is_gone = is_gone
        try:
            self._turn = self._pool.take()
            end = time.monotonic() + self._pool.patience
            while not self._turn.done() and time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    self._turn.exception(_POLL_SECONDS)
                if is_gone():
                    self.cancel("the client went away")
            self._begin(self._turn.result(0))
            self._until = time.monotonic() + self._seconds
            self._pool.watched.add(self)
            unsent = memoryview(_pack(request))
            while unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[self._worker.connection.send(unsent) :]  # type: ignore[union-attr]
                if unsent:
                    self._poll(select.POLLOUT)
        except BaseException as error:  # noqa: BLE001 - raised again
            raise self._failed_to_begin(error) from None

    def _poll(self, events: int) -> None:
        """Wait until the worker can be read or written; end it if nobody wants it any more."""
        assert self._worker is not None
        poll = select.poll()
        poll.register(self._worker.connection, events)
        while not poll.poll(_POLL_SECONDS * 1000):
            if time.monotonic() > self._until:
                self._time_out()
            elif self._is_gone():
                self.cancel("the client went away")

    def _receive(self, size: int) -> Any:
        """Exactly so many bytes, as a buffer."""
        assert self._worker is not None
        content = pa.allocate_buffer(size)
        view, filled = memoryview(content), 0
        while filled < size:
            try:
                count = self._worker.connection.recv_into(view[filled:])
            except BlockingIOError:
                self._poll(select.POLLIN)
                continue
            except OSError:
                count = 0
            if not count:
                raise self._connection_ended()
            filled += count
        return content

    def header(self) -> tuple[int, int]:
        """What comes next, and how many bytes."""
        kind, size = FRAME.unpack(self._receive(FRAME.size))
        return kind, size

    def frame(self) -> Frame:
        """The next piece of the reply."""
        kind, size = self.header()
        return self._check((kind, self._receive(size).to_pybytes()))

    def value(self) -> bytes:
        """The reply of a statement that has no rows."""
        return bytes(self.frame()[1])


class ReplyFile:
    """The pieces of a reply as one file, for a reader of Arrow IPC streams; large reads are not copied.

    Args:
        statement: After its head was read.
    """

    def __init__(self, statement: RunningStatement) -> None:
        self._statement = statement
        self._left = 0
        self.closed = False

    def readable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Nothing to do: the statement is closed by whoever began it."""

    def read(self, size: int = -1) -> Any:
        """So many bytes, fewer only at the end."""
        pieces: list[Any] = []
        while size > 0:
            if not self._left:
                kind, self._left = self._statement.header()
                if kind in (END, ERROR):
                    size_left, self._left = self._left, 0
                    self._statement._check((kind, self._statement._receive(size_left).to_pybytes()))
                    break
                continue
            piece = self._statement._receive(min(size, self._left))
            pieces.append(piece)
            self._left -= len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(piece.to_pybytes() for piece in pieces)

    def finish(self) -> None:
        """Read what comes behind the last batch."""
        while not self._statement.is_over:
            self.read(1 << 20)


def read_batches(statement: RunningStatement) -> Iterator[Any]:
    """First the schema, then the batches of a reply whose head was read."""
    file = ReplyFile(statement)
    try:
        reader = pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
        yield reader.schema
        yield from reader
        file.finish()
    finally:
        statement.close()


def _pack(request: Request) -> bytes:
    content = pickle.dumps(request)
    return FRAME.pack(READY, len(content)) + content


def _error_of(failure: dict[str, str]) -> BaseException:
    """The error that a worker tells of."""
    kind = getattr(errors, failure["kind"], None)
    return kind(failure["message"]) if kind is not None else RuntimeError(failure["message"])


def ending_error() -> BusyError:
    """What statements are told that the end of the server ends."""
    return BusyError("the server is ending; ask another")


def memory_share(size: int) -> int:
    """Bytes for each of `size` workers: together 80 % of the machine's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 8 // 10 // size
