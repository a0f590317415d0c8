"""Statements run in processes with hard limits: time, memory, clients that go away, a queue that is full."""

import json
import socket
import threading
import time

import httpx
import pytest
from adbc_driver_flightsql import dbapi
from pyarrow import flight

import windrow
from served_warehouse import HEADER, Served, serve_warehouse
from windrow.access import create_token, put_role
from windrow.service import flight_messages
from windrow.service.http_api import Limits

HEAVY = "SELECT sum(a.i * b.i) AS n FROM range(1000000) a(i), range(1000000) b(i)"
ENDLESS = "SELECT 'x' AS a0" + "".join(f", a{i} || a{i} AS a{i + 1}" for i in range(60))
"""Never planned to its end, and deaf to DuckDB's own interrupts meanwhile."""
PATIENCE = 60


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A server with one worker and one place to wait."""
    limits = Limits(concurrency=1, waiting=1, patience=PATIENCE)
    with serve_warehouse(tmp_path_factory.mktemp("one") / "w", limits) as server:
        put_role(server.wh._store, "lean", ["read"], memory="100MB")
        server.tokens["lean"] = create_token(server.wh._store, "lean")[1]
        yield server


def ask(served: Served, statement: str, role: str = "operator", **body) -> httpx.Response:
    with served.client(role) as client:
        return client.post("/sql", json={"statement": statement} | body)


def still_answers(served: Served) -> None:
    """The next statement is answered, by the same worker or the one in its place."""
    assert ask(served, "SELECT count(*) AS n FROM seen").json()["rows"] == [[600]]


def audited(served: Served, statement: str, words: str) -> None:
    """The statement's last line in the audit has these words."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = [line for line in served.audit if line["statement"] == statement]
        if lines and words in (lines[-1]["error"] or ""):
            return
        time.sleep(0.02)
    raise AssertionError(f"the audit has {served.audit[-3:]}")


@pytest.mark.parametrize("statement", [HEAVY, ENDLESS])
def test_a_statement_that_takes_too_long_ends_with_its_process(one, statement):
    refused = ask(one, statement, timeout=0.5)
    assert refused.status_code == 400
    assert refused.json()["error"] == "the query was cancelled: it took longer than 0.5 s"
    still_answers(one)


def test_the_memory_of_a_role_is_limited_within_one_scalar_call(one):
    refused = ask(one, "SELECT len(range(300000000)) AS n", "lean")
    assert refused.status_code == 400
    assert "\n" not in refused.json()["error"]
    assert "or let Spark run it: windrow.spark.sql()" in refused.json()["error"]
    still_answers(one)


def test_a_worker_that_the_system_ends_is_replaced_and_the_client_is_told(one):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(one, HEAVY)))
    thread.start()
    _until(lambda: one.server.service.pool.running)
    for worker in list(one.server.service.pool._all):
        worker.kill()
    thread.join(PATIENCE)
    assert (answers[0].status_code, "was ended by the system" in answers[0].text) == (400, True)
    still_answers(one)


def test_a_process_that_starts_workers_is_replaced_too(one):
    """Its workers end with it."""
    process = one.server.service.pool._processes._process
    process.kill()
    process.wait()
    ask(one, "SELECT 1 AS n")  # by a worker that is gone, or by one that has come in its place
    _until(lambda: one.server.service.pool._processes._process is not process)
    still_answers(one)


def _until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("where", ["running", "waiting"])
def test_a_statement_ends_when_its_client_goes_away_before_the_first_row(one, where):
    body = json.dumps({"statement": HEAVY}).encode()
    head = (
        f"POST /sql HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {one.tokens['operator']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    pool, clients = one.server.service.pool, []
    for _ in range(1 if where == "running" else 2):
        clients.append(socket.create_connection(("127.0.0.1", one.server.port)))
        clients[-1].sendall(head.encode() + body)
        _until(lambda: pool.running)
    _until(lambda: pool.waiting == len(clients) - 1)
    clients.pop().close()
    audited(one, HEAVY, "the client went away")
    for client in clients:
        client.close()
    _until(lambda: not pool.running and not pool.waiting)
    still_answers(one)


def test_what_is_beyond_the_queue_is_refused_at_once(one):
    pool = one.server.service.pool
    threads = [threading.Thread(target=ask, args=[one, HEAVY], kwargs={"timeout": 20}) for _ in range(2)]
    threads[0].start()
    _until(lambda: pool.running)
    threads[1].start()
    _until(lambda: pool.waiting)
    refused = ask(one, "SELECT 1")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["error"] == "1 statements run and 1 wait already; ask again later"
    with one.connect("operator") as remote, pytest.raises(windrow.BusyError, match="wait already"):
        remote.sql("SELECT 1")
    while any(thread.is_alive() for thread in threads):
        for worker in list(pool._all):
            worker.kill()
        threads[0].join(0.1)
    still_answers(one)


def test_a_flight_statement_is_cancelled_by_its_driver(one):
    errors = []
    with (
        dbapi.connect(
            one.flight, db_kwargs={HEADER: f"Bearer {one.tokens['operator']}"}, autocommit=True
        ) as connection,
        connection.cursor() as cursor,
    ):

        def run() -> None:
            try:
                cursor.execute(HEAVY)
                cursor.fetchall()
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        _until(lambda: any(s._worker for s in one.server.service.pool.watched))
        time.sleep(0.3)  # past the description of its columns
        cursor.adbc_cancel()
        thread.join(PATIENCE)
    assert errors
    _until(lambda: not one.server.service.pool.running)
    still_answers(one)


@pytest.mark.parametrize("action", ["CancelQuery", "CancelFlightInfo"])
def test_a_flight_statement_is_cancelled_by_an_action_of_its_own_token(one, action):
    options = {
        role: flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {one.tokens[role]}".encode())])
        for role in ("operator", "small")
    }
    command = flight_messages.pack("CommandStatementQuery", query=HEAVY)
    errors = []
    with flight.FlightClient(one.flight) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options["operator"])

        def run() -> None:
            try:
                client.do_get(info.endpoints[0].ticket, options["operator"]).read_all()
            except flight.FlightError as error:
                errors.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        _until(lambda: any(s._worker for s in one.server.service.pool.watched))
        name = "ActionCancelQueryRequest" if action == "CancelQuery" else "CancelFlightInfoRequest"
        pack = flight_messages.pack if action == "CancelQuery" else flight_messages.plain
        body = flight.Action(action, pack(name, info=info.serialize()))
        with pytest.raises(flight.FlightError, match="not, or no longer, known"):
            list(client.do_action(body, options["small"]))
        assert list(client.do_action(body, options["operator"]))
        thread.join(PATIENCE)
    assert "cancelled: by its client" in errors[0]
    still_answers(one)


def test_answers_are_kept_apart_by_role(one):
    """The same statements by turns, through one worker: a role gets its own columns and rows, each time."""
    statements = ("SELECT * FROM seen ORDER BY k", "SELECT max(k) AS m FROM seen", "SELECT * FROM names ORDER BY 1")
    expected = {
        "operator": [(600, 3), (1, 1), (2, 2)],
        "analyst": [(541, 2), (1, 1), (2, 1)],
    }
    for _ in range(3):
        for role, shapes in expected.items():
            for statement, (rows, columns) in zip(statements, shapes, strict=True):
                actual = ask(one, statement, role).json()
                assert (len(actual["rows"]), len(actual["columns"])) == (rows, columns)


def test_headers_and_slow_clients_are_bounded(tmp_path):
    limits = Limits(concurrency=1, client_seconds=0.5)
    with serve_warehouse(tmp_path / "w", limits) as served:
        for sent, words in ((b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 200_000, b"too long"), (b"GET /hea", b"")):
            with socket.create_connection(("127.0.0.1", served.server.port)) as client:
                client.settimeout(PATIENCE)
                client.sendall(sent)
                received = b""
                try:
                    while piece := client.recv(4096):
                        received += piece
                except ConnectionResetError:
                    pass
                assert words in received
