"""Sinks outside the warehouse: a run is posted to a URL, or given to a command, again and again until it is taken.

Only hosts and commands that the process was started with are used, whatever a query was registered with. Errors and
listings name the host, never the rest of a URL, which may hold a secret.
"""

import os
import shlex
import signal
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa

from windrow import times
from windrow.catalog.records import QueryEntry, RunEntry
from windrow.errors import DefinitionError, StorageError
from windrow.formats.text import encode_json, write_json_lines
from windrow.identity import read_owner
from windrow.store import Store

if TYPE_CHECKING:
    import http.client

WEBHOOK, COMMAND = "webhook", "command"
OUTBOUND = (WEBHOOK, COMMAND)
_SOCKET_SECONDS, _POST_SECONDS, _COMMAND_SECONDS = 10.0, 30.0, 60.0
"""How long one step of a connection may take, a whole request, and a command. Bounds, not measured."""
_PORTS = {"https": 443, "http": 80}


def check_permissions(hosts: Iterable[str], commands: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Allowed hosts as ``https://host:port``, and allowed commands as paths; refuses what is neither."""
    if isinstance(hosts, str) or isinstance(commands, str):
        raise DefinitionError("allow_hosts and allow_commands are lists, such as ['hooks.example.org']")
    origins = set()
    for name in (*hosts, *commands):
        if not isinstance(name, str) or not name.isprintable():
            raise DefinitionError(f"{name!r} is neither a host nor the path of a command")
    for host in hosts:
        parts = _split(host if "://" in host else f"https://{host}")
        if parts is None or parts.path not in ("", "/") or parts.query:
            raise DefinitionError(
                f"{host!r} is not a host; write it like 'hooks.example.org' or 'http://localhost:8080'"
            )
        origins.add(_origin(parts))
    for command in commands:
        if not os.path.isabs(command):
            raise DefinitionError(f"{command!r} is not the absolute path of a command")
    return frozenset(origins), frozenset(commands)


def _split(url: str) -> SplitResult | None:
    """The parts of a URL that may be posted to; None if it is none, or carries a name or a control character."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in _PORTS and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        return None
    return parts if fine and not parts.fragment and url.isascii() and url.isprintable() and " " not in url else None


def _origin(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"


def check_target(store: Store, kind: str, target: str) -> None:
    """Refuse a sink that this process may not use.

    Raises:
        DefinitionError: it is no URL or command, or not among the allowed ones.
    """
    if kind == WEBHOOK:
        parts = _split(target)
        if parts is None:
            raise DefinitionError("sink='webhook:URL' takes an address such as https://hooks.example.org/path")
        if _origin(parts) not in store.allowed_hosts:
            raise DefinitionError(
                f"the host {_origin(parts)} is not allowed; whoever runs the warehouse allows it with "
                "'windrow serve --allow-host' or open(…, allow_hosts=[…])"
            )
        return
    try:
        if "\0" in target:
            raise ValueError("it holds a NUL")
        command = shlex.split(target)[:1]
    except ValueError as error:
        raise DefinitionError(f"sink='command:…' cannot be read: {error}") from None
    if not command or command[0] not in store.allowed_commands:
        raise DefinitionError(
            f"the command {command[0] if command else ''!r} is not allowed; whoever runs the warehouse allows it with "
            "'windrow serve --allow-command' or open(…, allow_commands=[…])"
        )


def describe_sink(entry: QueryEntry) -> str:
    """A sink as it may be shown: the kind, and the folder or host."""
    if not entry.folder:
        return entry.sink
    if entry.sink == WEBHOOK:
        return f"{WEBHOOK}:{_origin(urlsplit(entry.folder))}/…"
    return f"{COMMAND}:{shlex.split(entry.folder)[0]} …" if entry.sink == COMMAND else f"{entry.sink}:{entry.folder}"


def make_run_key(store: Store, entry: QueryEntry, run: RunEntry) -> str:
    """The same for every attempt to send a run, and for no other run of any warehouse."""
    owner = store.catalog.read(read_owner).uuid or str(store.root)
    return f"{owner}-{entry.id}-{run.slide}-{run.revision}"


def send_run(store: Store, entry: QueryEntry, run: RunEntry, rows: pa.Table) -> None:
    """Post a run, or give it to its command; returns when it was taken.

    Raises:
        StorageError: it was not; it is to be tried again later.
    """
    try:
        check_target(store, entry.sink, entry.folder)
    except DefinitionError as error:
        raise StorageError(str(error)) from None
    body, key = _render(entry, run, rows), make_run_key(store, entry, run)
    (_post if entry.sink == WEBHOOK else _execute)(entry, run, body, key)


def _render(entry: QueryEntry, run: RunEntry, rows: pa.Table) -> bytes:
    """A run as one JSON object."""
    head = {
        "query": entry.name,
        "slide": run.slide,
        "revision": run.revision,
        "window_start": None if run.window_start is None else times.format_time(run.window_start),
        "window_end": times.format_time(run.window_end),
        "complete": run.complete,
    } | ({"backfilled": True} if run.backfilled else {})
    pieces: list[bytes] = []
    write_json_lines(rows.to_batches(), pieces.append)
    lines = b",".join(line for piece in pieces for line in piece.splitlines())
    return encode_json(head)[:-1] + b',"rows":[' + lines + b"]}"


def _post(entry: QueryEntry, run: RunEntry, body: bytes, key: str) -> None:
    import http.client  # here, because who only asks should not wait for it
    import ssl

    parts = urlsplit(entry.folder)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_SOCKET_SECONDS, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=_SOCKET_SECONDS)
    )
    headers = {"Content-Type": "application/json", "Idempotency-Key": key, "User-Agent": "windrow"}
    where = f"posting slide {run.slide} of query {entry.name!r} to {_origin(parts)}"
    limit = threading.Timer(_POST_SECONDS, _cut, [connection])
    try:
        connection.connect()
        limit.start()
        connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
        status = connection.getresponse().status
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: a name that none can resolve
        raise StorageError(f"{where} failed: {type(error).__name__}") from None
    finally:
        limit.cancel()
        connection.close()
    if not 200 <= status < 300:
        moved = "; redirects are not followed" if 300 <= status < 400 else ""
        raise StorageError(f"{where} was answered with status {status}{moved}")


def _cut(connection: "http.client.HTTPConnection") -> None:
    """End a request that takes too long, whatever it waits for."""
    try:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _execute(entry: QueryEntry, run: RunEntry, body: bytes, key: str) -> None:
    """Run the command without a shell, with the run on its standard input."""
    import subprocess

    words = shlex.split(entry.folder)
    names = {"QUERY": entry.name, "SLIDE": str(run.slide), "REVISION": str(run.revision), "RUN": key}
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8"} | {f"WINDROW_{name}": text for name, text in names.items()}
    where = f"giving slide {run.slide} of query {entry.name!r} to {Path(words[0]).name}"
    try:
        child = subprocess.Popen(
            words, env=environment, cwd="/", start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise StorageError(f"{where} failed: {getattr(error, 'strerror', None) or error}") from None
    try:
        child.communicate(body, timeout=_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise StorageError(f"{where} took longer than {_COMMAND_SECONDS:g} s") from None
    if child.returncode:
        raise StorageError(f"{where} ended with status {child.returncode}")
