"""Appends are exactly once when a client or a server dies at any point, and a full disk loses nothing: real processes."""

import io
import os
import resource
import signal
import socket
import subprocess
import time

import httpx
import pyarrow as pa
import pytest

import windrow
from served_warehouse import SCHEMA, START, rows
from serving_processes import PATIENCE, ServingProcess
from windrow.access import create_token, put_role
from windrow.service import row_formats


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "w"
    with windrow.open(path) as wh:
        wh.create_stream("seen", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
        put_role(wh._store, "operator", ["read", "append", "operate"])
        token = create_token(wh._store, "operator")[1]
    return path, token


def encode(batch: pa.Table) -> bytes:
    body = io.BytesIO()
    with pa.ipc.new_stream(body, batch.schema) as writer:
        writer.write_table(batch)
    return body.getvalue()


def send_http(server: ServingProcess, token: str, number: int, part: float = 1.0) -> socket.socket:
    """Send (a part of) a batch and read nothing."""
    host, port = server.http.removeprefix("http://").split(":")
    body = encode(rows(number * 10, 10))
    head = (
        f"POST /streams/seen/append?batch_id=b{number} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {row_formats.ARROW}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)))
    connection.sendall(head.encode() + body[: int(len(body) * part)])
    return connection


def append_again(server: ServingProcess, token: str, numbers: range) -> None:
    """Send every batch again, by both protocols: each is taken or known already."""
    with httpx.Client(base_url=server.http, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE) as client:
        for number in numbers:
            answer = client.post(
                f"/streams/seen/append?batch_id=b{number}",
                content=encode(rows(number * 10, 10)),
                headers={"Content-Type": row_formats.ARROW},
            )
            assert answer.status_code == 200, answer.text
    with windrow.connect(server.flight, token) as remote:
        reports = [remote.append("seen", rows(number * 10, 10), batch_id=f"b{number}") for number in numbers]
        assert all(report.duplicate and not report.accepted for report in reports)


CLIENT_POINTS = {"in the head": 0.0, "in the body": 0.5, "after the body": 1.0}
SERVER_POINTS = {"as the body comes": 0.0, "while it commits": 0.02}
MORE_POINTS = SERVER_POINTS | {f"{n} ms after it": n / 1000 for n in (1, 2, 5, 10, 15, 30, 40, 60, 100, 200)}


@pytest.mark.parametrize("points", [SERVER_POINTS, pytest.param(MORE_POINTS, marks=pytest.mark.soak)])
def test_appends_are_exactly_once_whoever_is_killed(windrow_command, place, points):
    path, token = place
    server, number = ServingProcess(windrow_command, path), 0
    try:
        for part in CLIENT_POINTS.values():
            send_http(server, token, number, part).close()
            number += 1
        uploader = (
            "import sys, os, windrow; sys.path.insert(0, sys.argv[3]); from served_warehouse import rows\n"
            "def parts(n):\n"
            "    for piece in rows(n * 10, 10).to_batches(5):\n"
            "        yield piece\n"
            "        if n == 3: os._exit(9)\n"
            "import pyarrow as pa\n"
            "for n in (3, 4):\n"
            "    if os.fork() == 0:\n"
            "        remote = windrow.connect(sys.argv[1], sys.argv[2])\n"
            "        batches = pa.RecordBatchReader.from_batches(rows(0, 1).schema, parts(n))\n"
            "        remote.append('seen', batches, batch_id=f'b{n}')\n"
            "        os._exit(9)\n"  # in the midst of an upload, or before its answer is used
            "    os.wait()\n"
        )
        folder = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        child = subprocess.run(
            [os.path.join(os.path.dirname(windrow_command), "python"), "-c", uploader, server.flight, token, folder],
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert child.returncode == 0
        number = 5
        for delay in points.values():
            connection = send_http(server, token, number)
            number += 1
            time.sleep(delay)
            server.kill()
            connection.close()
            server = ServingProcess(windrow_command, path)
        append_again(server, token, range(number))
        assert server.stop() == 0
    finally:
        server.kill() if server.child.poll() is None else None
    with windrow.open(path) as wh:
        wh.slide("seen", to=START.replace(minute=5))
        assert wh.sql("SELECT k FROM seen ORDER BY k").fetchall() == [(k,) for k in range(number * 10)]
        assert wh.check().ok


def test_a_full_disk_is_told_in_one_sentence_and_loses_nothing(windrow_command, place):
    """No file may grow beyond some megabytes, as under a quota."""
    path, token = place

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, resource.RLIM_INFINITY))

    server = ServingProcess(windrow_command, path, preexec_fn=limit_files)
    try:
        header = {"Authorization": f"Bearer {token}", "Content-Type": row_formats.ARROW}
        with httpx.Client(base_url=server.http, headers=header, timeout=PATIENCE) as client:
            assert client.post("/streams/seen/append", content=encode(rows(0, 10))).json()["accepted"] == 10
            wide = rows(10, 10).set_column(2, "secret", pa.array([os.urandom(1 << 20).hex() for _ in range(10)]))
            refused = client.post("/streams/seen/append", content=encode(wide))
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"].count("\n") == 0
            assert client.post("/streams/seen/append", content=encode(rows(20, 10))).json()["accepted"] == 10
        assert server.stop() == 0
    finally:
        server.kill() if server.child.poll() is None else None
    with windrow.open(path) as wh:
        wh.slide("seen", to=START.replace(minute=1))
        assert wh.sql("SELECT k FROM seen ORDER BY k").fetchall() == [(k,) for k in (*range(10), *range(20, 30))]
