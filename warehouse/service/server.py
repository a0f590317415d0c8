"""The serving process: HTTP and Flight SQL on their ports, and periodic queries while it leads."""

import contextlib
import ipaddress
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvicorn

from windrow.access import list_tokens
from windrow.errors import AccessError, StorageError
from windrow.queries.periodic.counters import ServerCounters
from windrow.service.http_api import AuditLine, Limits, Service
from windrow.service.responses import bounded_protocol
from windrow.warehouse import Warehouse

HTTP_PORT = 9464
_START_SECONDS = 30.0
"""How long a start may take before it counts as failed. A bound, not measured."""
_END_SECONDS = 5
"""After the grace: for statements that were cancelled to tell it."""
LogLine = Callable[[str], None]


@dataclass(frozen=True)
class ServerSettings:
    """Where and how a process serves.

    Args:
        host: The address to listen on.
        port: Of HTTP; 0 for any that is free.
        flight_port: Of Flight SQL; 0 for any that is free, None for no Flight SQL.
        certificate: A file with the certificate chain, in PEM.
        key: A file with its private key, in PEM.
        insecure: Listen also without TLS and tokens; whoever reaches the port is the owner.
        grace: Seconds that running statements get when the process is stopped.
        limits: What the process takes on.
    """

    host: str = "127.0.0.1"
    port: int = HTTP_PORT
    flight_port: int | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    grace: float = 10.0
    limits: Limits = field(default_factory=Limits)

    def check(self, wh: Warehouse) -> None:
        """Refuse to open a door that nobody guards."""
        if (self.certificate is None) != (self.key is None):
            raise AccessError("TLS needs both a certificate and its key: give --tls-cert and --tls-key")
        if self.certificate is not None and self.key is not None:
            _check_certificate(self.certificate, self.key)
        if self.insecure or _is_loopback(self.host):
            return
        if self.certificate is None:
            raise AccessError(
                f"{self.host} can be reached from other machines, and without TLS tokens and rows could be read on "
                "the way: give --tls-cert and --tls-key, or --insecure if the network is trusted"
            )
        if not list_tokens(wh._store):
            raise AccessError(
                f"{self.host} can be reached from other machines and there is no token yet: make one with "
                "'windrow role create' and 'windrow token create', or give --insecure"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_certificate(certificate: Path, key: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise AccessError(f"{certificate} and {key} are no certificate with its key: {error}") from None
    details: dict[str, Any] = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
    expires = details.get("notAfter")
    if expires is not None and ssl.cert_time_to_seconds(expires) <= time.time():
        raise AccessError(f"the certificate {certificate} has expired ({expires}); clients would refuse it")


class NetworkServer:
    """Listens until it is closed. While its port is taken, as by a leader that is still ending, it tries again.

    Args:
        warehouse: What is served.
        settings: Where and how.
        counts: Of the process that runs periodic queries.
        audit: Called with one record for each statement.
        say: Called with each sentence about the process itself.
    """

    def __init__(
        self, warehouse: Warehouse, settings: ServerSettings, counts: ServerCounters, audit: AuditLine, say: LogLine
    ) -> None:
        settings.check(warehouse)
        self.service = Service(warehouse, settings.limits, audit, counts, insecure=settings.insecure)
        self.port: int | None = None
        self.flight_port: int | None = None
        self._settings = settings
        self._say = say
        self._ended = threading.Event()
        self._listening = threading.Event()
        self._http: uvicorn.Server | None = None
        self._flight: Any = None
        self._thread = threading.Thread(target=self._run, name="windrow-http", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns when it does, or when the port is taken."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection is a file
        self._thread.start()
        self._listening.wait(_START_SECONDS)

    def _run(self) -> None:
        listener = self._listen()
        if listener is None:
            return
        settings = self._settings
        self.port = listener.getsockname()[1]
        self._http = uvicorn.Server(
            uvicorn.Config(
                self.service.app(),
                log_level="warning",
                access_log=False,
                server_header=False,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
                limit_concurrency=settings.limits.event_streams + 1000,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=int(settings.grace) + _END_SECONDS,
                http=bounded_protocol(settings.limits.client_seconds),
                ws="none",
                lifespan="off",
            )
        )
        if settings.flight_port is not None:
            self._listen_flight()
        self.service.pool.wait_until_ready(_START_SECONDS)
        scheme = "http" if settings.certificate is None else "https"
        self._say(f"answering on {scheme}://{settings.host}:{self.port}")
        if settings.insecure:
            self._say("INSECURE: whoever reaches the port may read and change everything")
        self._listening.set()
        with contextlib.closing(listener):
            self._http.run(sockets=[listener])

    def _listen(self) -> socket.socket | None:
        """The listening socket; None if the process is to end before there is one."""
        reported = False
        while not self._ended.is_set():
            try:
                return _bind(self._settings.host, self._settings.port)
            except StorageError as error:
                if not reported:
                    self._say(f"{error}; trying again until it is free, and queries run meanwhile")
                    reported = True
                self._listening.set()
                self._ended.wait(1.0)
        return None

    def _listen_flight(self) -> None:
        from windrow.service.flight_sql import FlightSqlServer

        try:
            self._flight = FlightSqlServer(self.service, self._settings)
        except (pa.ArrowException, OSError) as error:
            self._say(f"Flight SQL cannot be offered on port {self._settings.flight_port}: {error}")
            return
        self.flight_port = self._flight.port
        self._say(f"answering Flight SQL on {self._flight.location}")

    def close(self) -> None:
        """Stop: running statements end, or are cancelled after the grace."""
        self._ended.set()
        self.service.events.end()
        ending = [self._thread]
        if self._http is not None:
            self._http.should_exit = True
        if self._flight is not None:
            ending.append(threading.Thread(target=self._flight.shutdown, name="windrow-flight-end", daemon=True))
            ending[-1].start()
        end = time.monotonic() + self._settings.grace
        for thread in ending:
            thread.join(max(0.0, end - time.monotonic()))
        self.service.answers.close()
        self.service.pool.close()
        for thread in ending:
            thread.join(_END_SECONDS)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.ExitStack() as stack:
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which connections inherit: no answer waits
            bound.bind((host, port))
            bound.listen(2048)
            stack.pop_all()
    except OSError as error:
        raise StorageError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}; choose another --port"
        ) from None
    return bound


@contextlib.contextmanager
def serving(
    warehouse: Warehouse, settings: ServerSettings, counts: ServerCounters, audit: AuditLine, say: LogLine
) -> Iterator[NetworkServer]:
    """A server for the block."""
    server = NetworkServer(warehouse, settings, counts, audit, say)
    server.start()
    try:
        yield server
    finally:
        server.close()
