"""Responses of the HTTP interface: values and errors as JSON, and bounds for slow clients and long headers."""

import asyncio
import logging
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from windrow import errors
from windrow.errors import WindrowError
from windrow.service.row_formats import dump_json

_STATUS_OF_ERRORS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.AccessError, 403),
    (errors.UnknownStreamError, 404),
    (errors.BatchConflictError, 409),
    (errors.InUseError, 409),
    (errors.BusyError, 503),
    (errors.DamageError, 503),
    (errors.QueryError, 400),
    (errors.StorageError, 503),
    (WindrowError, 400),
)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
MOST_HEAD_BYTES = 64 << 10
"""Request line and headers."""
_log = logging.getLogger("windrow.service")


class RequestError(WindrowError):
    """A request that HTTP has a status of its own for."""

    status = 400


class UnauthorizedError(RequestError):
    """No token, or none that is valid."""

    status = 401


class TooLargeError(RequestError):
    """A body that is too long."""

    status = 413


class UnsupportedError(RequestError):
    """A body in a format that is not read."""

    status = 415


class BrokenAnswerError(Exception):
    """Rows ended with an error after the first of them were sent."""


def error_response(status: int, message: str) -> Response:
    """An error as JSON."""
    headers = dict(HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = "1"
    return JSONResponse({"error": message}, status, headers=headers)


def to_response(error: BaseException) -> Response:
    """The response to a request that failed."""
    if isinstance(error, RequestError):
        return error_response(error.status, str(error))
    for kind, status in _STATUS_OF_ERRORS:
        if isinstance(error, kind):
            return error_response(status, str(error))
    _log.error("a request failed", exc_info=error)
    return error_response(500, f"the server failed: {type(error).__name__}; its log says more")


def to_json(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(dump_json(value), status, media_type="application/json", headers=HEADERS)


async def not_found(request: Request, error: Exception) -> Response:
    """There is no such page, or not by that method."""
    status = getattr(error, "status_code", 404)
    message = "there is no such page; GET /openapi.json lists what there is"
    return error_response(status, message if status == 404 else f"{request.method} is not possible there")


def bounded_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """HTTP whose request line and headers are bounded, in bytes and in the time that they may take."""

    class BoundedProtocol(HttpToolsProtocol):
        _head_bytes = 0
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_complete()
            super().connection_lost(exc)

        def _expect_head(self) -> None:
            self._head_is_complete()
            self._head_bytes = 0
            self._deadline = asyncio.get_running_loop().call_later(seconds, self.transport.close)

        def _head_is_complete(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline, self._head_bytes = None, -1

        def data_received(self, data: bytes) -> None:
            if self._head_bytes >= 0:
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES and b"\r\n\r\n" not in data[:MOST_HEAD_BYTES]:
                    self.send_400_response("The headers are too long.")
                    return
            super().data_received(data)

        def on_message_begin(self) -> None:
            if self._head_bytes < 0:
                self._expect_head()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head_is_complete()
            super().on_headers_complete()

    return BoundedProtocol


class BoundedApplication:
    """Ends requests of clients that neither send nor take anything for too long."""

    def __init__(self, application: Any, seconds: float) -> None:
        self._application = application
        self._seconds = seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        body_is_complete = False

        async def bounded_receive() -> Any:
            nonlocal body_is_complete
            if body_is_complete:  # what comes now is the end of the connection, which may be long after
                return await receive()
            try:
                async with asyncio.timeout(self._seconds):
                    message = await receive()
            except TimeoutError:
                raise ClientDisconnect from None
            body_is_complete = not message.get("more_body", False)
            return message

        async def bounded_send(message: Any) -> None:
            async with asyncio.timeout(self._seconds):
                await send(message)

        try:
            await self._application(scope, bounded_receive, bounded_send)
        except (BrokenAnswerError, TimeoutError, ClientDisconnect) as error:
            _log.info("an answer was broken off: %s", error)
