"""A real S3 interface for tests: moto's server in a thread, behind a proxy that counts requests and makes faults."""

import contextlib
import http.client
import http.server
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

BUCKET = "rows"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request that came to the proxy."""

    method: str
    path: str

    @property
    def is_of_data(self) -> bool:
        """Whether it is for a file of rows, and not for epochs or copies of the catalog."""
        return "/epochs/" not in self.path and "/catalog/" not in self.path and "?delete" not in self.path


Fault = Callable[[Request], str | None]
"""What to do with a request: nothing, ``"503"``, ``"lost"`` (before it is made), ``"unanswered"`` (after it was made),
``"cut"`` (half of an answer or of an upload arrives), ``"denied"``."""


@dataclass
class FaultyS3:
    """The proxy."""

    port: int
    behind: int
    requests: list[Request] = field(default_factory=list)
    fault: Fault = lambda _: None
    delay: float = 0.0

    def uri(self, prefix: str) -> str:
        """Where a warehouse's files may lie."""
        return f"s3://{BUCKET}/{prefix}?endpoint=127.0.0.1:{self.port}&region=us-east-1&scheme=http"

    def reads(self) -> list[str]:
        """The paths of data that were asked for."""
        return [request.path for request in self.requests if request.method == "GET" and request.is_of_data]

    @contextlib.contextmanager
    def faulty(self, fault: Fault) -> Iterator[None]:
        """Make faults while the block runs."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = lambda _: None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyS3

    def log_message(self, *_: Any) -> None:
        pass

    def _read_body(self) -> bytes:
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def handle_expect_100(self) -> bool:
        return True

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> None:
        proxy = self.proxy
        request = Request(self.command, self.path)
        proxy.requests.append(request)
        body, fault = self._read_body(), proxy.fault(request)
        if proxy.delay:
            time.sleep(proxy.delay)
        if fault == "lost" or (fault == "cut" and body):
            self._drop()
            return
        if fault in ("503", "denied"):
            code = "SlowDown" if fault == "503" else "AccessDenied"
            content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self.send_response(503 if fault == "503" else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        link = http.client.HTTPConnection("127.0.0.1", proxy.behind, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            link.request(self.command, self.path, body, headers)
            answer = link.getresponse()
            content = answer.read()
        finally:
            link.close()
        if fault == "unanswered":
            self._drop()
            return
        self.send_response(answer.status)
        hops = {"transfer-encoding", "connection", "server", "date"}
        for name, value in answer.getheaders():
            if name.lower() not in hops and (name.lower() != "content-length" or self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._drop()
        elif self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815


@contextlib.contextmanager
def serve_s3() -> Iterator[FaultyS3]:
    """A bucket behind a proxy, and the credentials for it in the environment."""
    import boto3
    from moto.server import ThreadedMotoServer

    with mock.patch.dict(os.environ, CREDENTIALS):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        behind = server.get_host_and_port()[1]
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{behind}").create_bucket(Bucket=BUCKET)
        listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        listening.daemon_threads = True
        proxy = FaultyS3(listening.server_address[1], behind)
        listening.RequestHandlerClass = type("Handler", (_Handler,), {"proxy": proxy})
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listening.shutdown()
            listening.server_close()
            server.stop()


def fail_once(number: int, kind: str) -> Fault:
    """A fault of the `number`-th request, and of those that repeat it."""
    counter = itertools.count()
    failed: list[Request] = []

    def fault(request: Request) -> str | None:
        if request in failed:
            return kind
        if next(counter) == number:
            failed.append(request)
            return kind
        return None

    return fault
