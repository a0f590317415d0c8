"""The process that runs statements for a server: one at a time, under limits of the operating system.

DuckDB keeps its own limits only between two chunks of rows. A worker's memory is limited by the operating system, and
its time by the server, which ends it: a worker only reads, or commits as whole, so it can be ended anywhere.
"""

import contextlib
import itertools
import os
import pickle
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from windrow.arguments import check_size
from windrow.background import background_of
from windrow.catalog.records import Role
from windrow.cli.worker_process import end_with_parent, limit_memory
from windrow.errors import MEMORY_ADVICE, WindrowError
from windrow.formats.text import encode_json
from windrow.queries.answer import Answer
from windrow.service import row_formats
from windrow.service.role_session import RoleSession
from windrow.warehouse import Warehouse

FRAME = struct.Struct("<BI")
"""Before each piece of a reply: what it is, and how many bytes."""
READY, HEAD, DATA, END, ERROR = range(5)
FLIGHT = "flight"
"""The format of rows for Flight SQL: Arrow's, in whole batches."""
_ROWS_AT_ONCE = 16_384
"""Rows of one message. A choice, not measured: a few hundred KB for most rows."""
_IDLE_SECONDS = 0.02
"""A worker without a statement for so long does background work, for as long at a time. A choice, not measured."""
_SEND_BYTES = 1 << 20
"""Buffer of the connection to the server. A choice, not measured."""
_MOST_VECTORS = 512
"""Buffers of one system call; the system allows 1,024."""


@dataclass(frozen=True)
class Request:
    """What a server asks of a worker."""

    method: str
    """Of `RoleSession`."""
    role: Role
    arguments: dict[str, Any] = field(default_factory=dict)
    media: str | None = None
    """The format of the rows; None if it gives a value and no rows."""
    escape: bool = False
    memory: str | None = None
    """What the statement may use, if that is less than the worker may."""


class _Channel:
    """The worker's end of the connection; small pieces are sent together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._kept: list[bytes] = []

    def receive(self) -> Request | None:
        size = self._read(FRAME.size)
        return None if size is None else pickle.loads(self._read(FRAME.unpack(size)[1]) or b"")

    def _read(self, size: int) -> bytes | None:
        pieces = bytearray()
        while len(pieces) < size:
            piece = self._connection.recv(size - len(pieces))
            if not piece:
                return None
            pieces += piece
        return bytes(pieces)

    def is_idle(self, seconds: float) -> bool:
        return not select.select([self._connection], [], [], seconds)[0]

    def send(self, kind: int, pieces: Sequence[Any], *, wait: bool = False) -> None:
        """Send a piece; with `wait` it may go with what comes next."""
        size = sum(len(piece) for piece in pieces)
        self._kept += [FRAME.pack(kind, size), *pieces]
        if not wait:
            self._flush()

    def _flush(self) -> None:
        views = [memoryview(piece).cast("B") for piece in self._kept if len(piece)]
        self._kept.clear()
        while views:
            sent = self._connection.sendmsg(views[:_MOST_VECTORS])
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]


def serve(connection: socket.socket, path: str, memory: int) -> None:
    """Run what is asked until nobody asks any more.

    Args:
        connection: To the server.
        path: Of the warehouse.
        memory: Bytes that a statement may use.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    channel = _Channel(connection)
    with Warehouse(path, create=False, memory=f"{memory}B") as wh:
        wh.sql("SELECT count(*) FROM range(9)").fetchall()  # so that what DuckDB itself needs is there already
        limit_memory(memory)
        channel.send(READY, [])
        while True:
            while channel.is_idle(_IDLE_SECONDS) and background_of(wh._store).run(_IDLE_SECONDS):
                pass
            request = channel.receive()
            if request is None:
                return
            limited = check_size(request.memory, "memory")
            if limited is not None and limited < memory:
                limit_memory(limited)
            _answer(wh, request, channel)
            if limited is not None and limited < memory:
                limit_memory(memory)


def _answer(wh: Warehouse, request: Request, channel: _Channel) -> None:
    try:
        result = getattr(RoleSession(wh, request.role), request.method)(**request.arguments)
        if isinstance(result, Answer):
            with result:
                rows = _send_rows(RoleSession(wh, request.role), result, request, channel)
            channel.send(END, [encode_json({"rows": rows})])
        elif isinstance(result, bytes):
            channel.send(END, [result])
        else:
            channel.send(END, [row_formats.dump_json(result)])
    except BrokenPipeError:
        raise SystemExit(0) from None
    except MemoryError:
        _tell(channel, "QueryError", f"the statement needs more memory than it may use; {MEMORY_ADVICE}")
    except WindrowError as error:
        _tell(channel, type(error).__name__, str(error))
    except Exception as error:  # noqa: BLE001 - told to the server, whose log it is
        _tell(channel, "", f"{type(error).__name__}: {error}")


def _tell(channel: _Channel, kind: str, message: str) -> None:
    channel.send(ERROR, [encode_json({"kind": kind, "message": message})])


def _send_rows(session: RoleSession, answer: Answer, request: Request, channel: _Channel) -> int:
    """The rows of an answer in the format that was asked for; gives how many."""
    rows, pulled = 0, 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows, pulled
        for batch in session.limited(answer.batches()):
            rows, pulled = rows + batch.num_rows, pulled + 1
            yield batch

    batches = counted() if request.media == FLIGHT else _in_pieces(counted())
    first = next(batches, None)  # errors of the first rows come before anything else
    small = first is None or first.num_rows < _ROWS_AT_ONCE
    about = answer.about()
    channel.send(HEAD, [encode_json(about)], wait=True)
    media = row_formats.ARROW if request.media == FLIGHT else str(request.media)
    following = iter(()) if first is None else itertools.chain([first], batches)
    for pieces in row_formats.encode(media, answer.schema, following, about, escape=request.escape):
        channel.send(DATA, pieces, wait=small and pulled < 2)
    return rows


def _in_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(start, _ROWS_AT_ONCE)


def start_workers(descriptor: int, path: str, memory: int) -> None:
    """Fork a worker for each connection that a server sends, until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends its workers
    channel = socket.socket(fileno=descriptor)
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        _, connections, _, _ = socket.recv_fds(channel, 1, 1)
        if not connections:
            return
        process = os.fork()
        if not process:
            _work(channel, connections[0], path, memory)
        os.close(connections[0])
        handle = os.pidfd_open(process)
        socket.send_fds(channel, [b"w"], [handle])
        os.close(handle)


def _work(channel: socket.socket, descriptor: int, path: str, memory: int) -> NoReturn:
    """Be a worker, to the end of the process."""
    code = 1
    try:
        end_with_parent(signal.SIGKILL)
        channel.close()
        with contextlib.suppress(ConnectionError):
            serve(socket.socket(fileno=descriptor), path, memory)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the process ends
        sys.stderr.write(f"windrow: a worker ended: {type(error).__name__}: {error}\n")
    finally:
        os._exit(code)
