"""The HTTP interface: who asks, turns, bodies, and rows that are streamed."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from windrow import errors, times
from windrow.access import authenticate, list_tokens
from windrow.catalog.records import OWNER, Role
from windrow.errors import AccessError, WindrowError
from windrow.files import disk_errors
from windrow.formats.text import encode_json
from windrow.queries.periodic.counters import ServerCounters
from windrow.service import row_formats
from windrow.service.events import EventFeed
from windrow.service.kept_answers import AnswerStore
from windrow.service.operations import EVENTS, OPERATIONS, Ask, Call, Operation, stream_events
from windrow.service.responses import (
    HEADERS,
    BoundedApplication,
    BrokenAnswerError,
    TooLargeError,
    UnauthorizedError,
    UnsupportedError,
    error_response,
    not_found,
    to_json,
    to_response,
)
from windrow.service.role_session import RoleSession
from windrow.service.statement_worker import END
from windrow.service.worker_pool import RunningStatement, WorkerPool, WorkerStarter, memory_share
from windrow.store import Store
from windrow.warehouse import Warehouse

_GAPS_IN_HEADER = 8
"""A header with more gaps could pass the 8 KB that proxies allow. A bound, not measured."""
LOCAL = Role(name="local", rights=("read",))
"""Requests from this machine while there is no token at all: they may ask, and change nothing."""
_LOCAL_HOSTS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\]|testserver)(:\d+)?")
"""Other names may come from a web page that rebinds its DNS name to this machine."""
_WATCH_AFTER_SECONDS = 0.02
"""A statement that is shorter is answered before anybody looks whether its client has gone. Not measured."""
AuditLine = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Limits:
    """What one process takes on."""

    concurrency: int = 4
    """Statements that run at once."""
    waiting: int = 64
    """Statements that may wait for their turn."""
    patience: float = 30.0
    """Seconds that one waits at most."""
    seconds: float = 600.0
    """How long a statement may run."""
    memory: int | None = None
    """Bytes that one may use; None for an even share of 80 % of the machine's."""
    body_bytes: int = 256 << 20
    """The longest body of a request with rows."""
    text_bytes: int = 4 << 20
    """The longest body of any other."""
    client_seconds: float = 60.0
    """How long a client may neither send nor take anything."""
    event_streams: int = 2_000


@dataclass
class Outcome:
    """How something ended: for the audit."""

    rows: int | None = None
    error: str | None = None


@dataclass
class Service:
    """A warehouse behind HTTP.

    Args:
        warehouse: What is served.
        limits: What it takes on.
        audit: Called with one record for each statement.
        counts: What the process that runs periodic queries has done.
        insecure: Requests without a token are the owner's.
    """

    warehouse: Warehouse
    limits: Limits = field(default_factory=Limits)
    audit: AuditLine = lambda _: None
    counts: ServerCounters = field(default_factory=lambda: ServerCounters(0))
    insecure: bool = False

    def __post_init__(self) -> None:
        store, limits = self.store, self.limits
        memory = limits.memory or memory_share(limits.concurrency)
        self.pool = WorkerPool(
            WorkerStarter(str(store.root), memory), limits.concurrency, limits.waiting, limits.patience
        )
        self.events = EventFeed(self.store, self.counts)
        self.answers = AnswerStore()
        self._threads: anyio.CapacityLimiter | None = None

    @property
    def store(self) -> Store:
        """The warehouse's store."""
        return self.warehouse._store

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route(operation.path, self._endpoint(operation), methods=[operation.method]) for operation in OPERATIONS
        ]
        application = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found})
        return BoundedApplication(application, self.limits.client_seconds)  # type: ignore[return-value]

    def session(self, request: Request) -> RoleSession:
        """Who asks."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if text and scheme.lower() == "bearer":
            credentials = authenticate(self.store, text.strip())
            if credentials is None:
                raise UnauthorizedError("the token is not, or no longer, valid")
            token, role = credentials
            return self.session_of(role, token.id)
        if self.insecure:
            return self.session_of(OWNER, "none")
        if list_tokens(self.store):
            raise UnauthorizedError("send a token in the header 'Authorization: Bearer …'")
        if not _LOCAL_HOSTS.fullmatch(request.headers.get("host", "")):
            raise AccessError("there are no tokens, so only requests to localhost are answered")
        return self.session_of(LOCAL, "none")

    def session_of(self, role: Role, who: str) -> RoleSession:
        """A role's way to the warehouse."""
        return RoleSession(self.warehouse, role, who)

    def _endpoint(self, operation: Operation) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            try:
                return await self._handle(operation, request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:  # noqa: BLE001 - every error becomes a response
                return to_response(error)

        return endpoint

    async def _handle(self, operation: Operation, request: Request) -> Response:
        session = self.session(request) if operation.right else None
        if session is not None:
            if operation.right != "any":
                session.role.check(operation.right)
        else:
            session = self.session_of(Role(name="nobody", rights=()), "none")
        if operation.path == EVENTS:
            return await stream_events(self, session, request)
        media = ""
        if operation.gives_rows:
            chosen = row_formats.choose(request.headers.get("accept", ""))
            if chosen is None:
                return error_response(406, f"rows can be had as {', '.join(row_formats.WRITTEN)}")
            media = chosen
        query = _parse_query(operation.query, request)
        path = {name: str(value) for name, value in request.path_params.items()}
        if operation.takes_rows:
            return await self._take_rows(operation, request, session, path, query)
        body = await self._parse_body(operation.body, request)
        call = Call(session, path, query, body, media)
        if operation.asks:
            return await self._ask(operation, call, request)
        result = await self._in_thread(operation.handler, self, call)
        return result if isinstance(result, Response) else to_json(result, operation.status)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self.limits.concurrency + self.limits.waiting + 16)
        return await anyio.to_thread.run_sync(work, *arguments, limiter=self._threads, abandon_on_cancel=True)

    async def _parse_body(self, kind: type[msgspec.Struct] | None, request: Request) -> Any:
        if kind is None:
            return None
        content = bytearray()
        async for piece in request.stream():
            content += piece
            if len(content) > self.limits.text_bytes:
                raise TooLargeError(f"the body is longer than {self.limits.text_bytes:,} bytes")
        if not request.headers.get("content-type", "").lower().startswith(row_formats.JSON):
            raise UnsupportedError(f"send the body as {row_formats.JSON}")
        try:
            return msgspec.json.decode(bytes(content), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise errors.SchemaError(f"the body is not what was expected: {error}") from None

    async def _take_rows(
        self, operation: Operation, request: Request, session: RoleSession, path: dict[str, str], query: Any
    ) -> Response:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media not in row_formats.READ:
            raise UnsupportedError(f"send rows as {', '.join(row_formats.READ)}")
        with disk_errors("receiving rows"), row_formats.received() as file:
            size = 0
            async for piece in request.stream():
                size += len(piece)
                if size > self.limits.body_bytes:
                    raise TooLargeError(f"the body is longer than {self.limits.body_bytes:,} bytes; send less at once")
                await self._in_thread(file.write, piece)
            await self._in_thread(file.flush)
            call = Call(session, path, query, None, media, file.name)
            return await asyncio.shield(self._ask(operation, call, None))  # it commits, whoever still waits for it

    # -- statements, which workers run --------------------------------------------------------------------------------

    def statement(self, session: RoleSession, ask: Ask) -> RunningStatement:
        """A statement of a role, which leaves a line in the audit when it is over."""
        began = time.monotonic()
        limits = [limit for limit in (ask.timeout, session.role.seconds, self.limits.seconds) if limit is not None]

        def ended(error: str | None, rows: int | None) -> None:
            if ask.audited or error is not None:
                self._write_audit(session, ask.text, began, Outcome(rows, error))

        return RunningStatement(self.pool, min(limits), ended)

    def _write_audit(self, session: RoleSession, text: str, began: float, outcome: "Outcome") -> None:
        self.audit(
            {
                "at": times.format_time(self.store.clock()),
                "token": session.who,
                "role": session.role.name,
                "statement": text,
                "rows": outcome.rows,
                "seconds": round(time.monotonic() - began, 6),
                "error": outcome.error,
            }
        )

    @contextlib.contextmanager
    def audited(self, session: RoleSession, text: str) -> Iterator["Outcome"]:
        """Leaves a line in the audit for what is done in the block, without a worker."""
        began, outcome = time.monotonic(), Outcome()
        try:
            yield outcome
        except BaseException as error:
            outcome.error = str(error).partition("\n")[0] or type(error).__name__
            raise
        finally:
            self._write_audit(session, text, began, outcome)

    async def _ask(self, operation: Operation, call: Call, request: Request | None) -> Response:
        ask: Ask = operation.handler(self, call)
        escape = getattr(call.query, "escape", "none") == "spreadsheet"
        media = call.media if operation.gives_rows else None
        statement = self.statement(call.session, ask)
        watch = None if request is None else _ClientWatch(request.receive, statement)
        try:
            await statement.begin_async(ask.request(call.session.role, media, escape=escape))
            kind, content = await statement.frame_async()
            if kind == END:
                content = content if not ask.name else b'{"%s":%s}' % (ask.name.encode(), content)
                return Response(content, operation.status, media_type=row_formats.JSON, headers=HEADERS)
            return self._give_rows(call, json.loads(content), statement)
        except BaseException:
            statement.close()
            raise
        finally:
            if watch is not None:
                watch.stop()

    def _give_rows(self, call: Call, about: dict[str, Any], statement: RunningStatement) -> Response:
        headers = HEADERS | {
            "X-Windrow-Windows": encode_json([_shorten(window) for window in about["windows"]]).decode(
                "ascii", "backslashreplace"
            ),
            "X-Windrow-Complete": "true" if about["complete"] else "false",
            "X-Windrow-Coverage": f"{about['coverage']:.6g}",
            "X-Windrow-Staleness": f"{about['staleness']:g}",
            "X-Windrow-Isolation": about["isolation"],
        }
        pieces: list[bytes] = []
        while (frame := statement.frame_at_hand()) is not None:
            if frame[0] == END:
                return Response(b"".join(pieces), media_type=call.media, headers=headers)
            pieces.append(frame[1])
        return RowsResponse(b"".join(pieces), statement, call.media, headers)


class RowsResponse(Response):
    """Rows that are sent as they come; the statement ends with the client."""

    def __init__(self, first: bytes, statement: RunningStatement, media: str, headers: dict[str, str]) -> None:
        self.background = None
        self.status_code, self.media_type = 200, media
        self.init_headers(headers)
        self._first, self._statement = first, statement

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        """Send them."""
        watch = _ClientWatch(receive, self._statement)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            while (frame := await self._statement.frame_async())[0] != END:
                await send({"type": "http.response.body", "body": frame[1], "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except WindrowError as error:
            # The status is out: the body ends without its end, and the connection with it.
            raise BrokenAnswerError(str(error)) from error
        finally:
            watch.stop()
            self._statement.close()


class _ClientWatch:
    """Ends a statement when its client goes away; most statements are over before it looks."""

    def __init__(self, receive: Any, statement: RunningStatement) -> None:
        self._receive, self._statement = receive, statement
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        with contextlib.suppress(ClientDisconnect):
            while (await self._receive())["type"] != "http.disconnect":
                pass
        self._statement.cancel("the client went away")

    def stop(self) -> None:
        """Look no longer."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


def _parse_query(kind: type[msgspec.Struct] | None, request: Request) -> Any:
    if kind is None:
        return None
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise errors.SchemaError(f"the query's parameters are not what was expected: {error}") from None


def _shorten(window: dict[str, Any]) -> dict[str, Any]:
    """A window for a header, whose length proxies limit: the body and `/streams/{name}` have all of its gaps."""
    return window | {"gaps": window["gaps"][:_GAPS_IN_HEADER]}
