"""Servers as processes: a standby answers and takes over, what runs gets its grace, and the audit is a file."""

import json
import threading
import time

import httpx
import pytest

import windrow
from served_warehouse import SCHEMA, rows
from serving_processes import PATIENCE, ServingProcess
from windrow.access import create_token, put_role, revoke_token

HEAVY = "SELECT sum(a.i * b.i) AS n FROM range(1000000) a(i), range(1000000) b(i)"
LONG = "SELECT 'windrow' || range AS text FROM range(4000000)"


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "w"
    with windrow.open(path) as wh:
        wh.create_stream("seen", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
        wh.add_query("counted", "SELECT count(*) AS n FROM seen [WINDOW 1 MINUTE SLIDE 1 MINUTE]", missed="every")
        put_role(wh._store, "operator", ["read", "append", "operate"])
        return path, create_token(wh._store, "operator")[1]


def connect(server: ServingProcess, token: str) -> httpx.Client:
    return httpx.Client(base_url=server.http, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)


def until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_standby_answers_hears_and_takes_over(windrow_command, place):
    path, token = place
    with ServingProcess(windrow_command, path) as one, connect(one, token) as leader:
        until(lambda: leader.get("/status").json()["leading"])
        with ServingProcess(windrow_command, path) as other, connect(other, token) as standby:
            assert standby.get("/readyz").text == "ok (standby)\n"
            assert standby.head("/readyz").status_code == 200
            with windrow.connect(other.flight, token) as remote, standby.stream("GET", "/events") as events:
                lines = events.iter_lines()
                next(lines)
                assert remote.append("seen", rows(1, 60)).accepted == 60
                assert leader.post("/streams/seen/slide", json={"to": "2026-01-01T00:01:00Z"}).status_code == 200
                reply = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
                assert (reply["event"], reply["stream"]) == ("slide", "seen")
                until(lambda: remote.results("counted").fetchall())
                asked = standby.post("/sql", json={"statement": "SELECT count(*) AS n FROM seen"})
                assert asked.json()["rows"] == [[60]]
            one.kill()
            until(lambda: standby.get("/status").json()["leading"])
            assert standby.get("/readyz").text == "ok\n"
            standby.post("/streams/seen/slide", json={"to": "2026-01-01T00:02:00Z"})
            until(lambda: len(standby.get("/queries/counted/results").json()["rows"]) == 2)
            assert [row[-1] for row in standby.get("/queries/counted/results").json()["rows"]] == [60, 0]
            assert other.stop() == 0


def test_what_runs_ends_within_the_grace(windrow_command, place, tmp_path):
    """The rows of one statement are not yet taken when the server is told to end: they all come."""
    path, token = place
    audit = tmp_path / "audit.jsonl"
    options = ("--grace", str(PATIENCE), "--audit", str(audit))
    with ServingProcess(windrow_command, path, *options) as server, connect(server, token) as client:
        with client.stream("GET", "/events") as events:
            lines = events.iter_lines()
            next(lines)
            request = client.build_request("POST", "/sql", json={"statement": LONG}, headers={"Accept": "text/csv"})
            answer = client.send(request, stream=True)
            server.child.terminate()
            report = [line for line in lines if line.startswith("data: ")]
            assert json.loads(report[-1][6:]) == {"event": "end", "reason": "the server is ending"}
            assert sum(piece.count(b"\n") for piece in answer.iter_raw()) == 4_000_001
            answer.close()
        assert server.stop() == 0
    (line,) = map(json.loads, audit.read_text().splitlines())
    assert (line["role"], line["statement"], line["rows"], line["error"]) == ("operator", LONG, 4_000_000, None)
    assert audit.stat().st_mode & 0o077 == 0


def test_what_still_runs_after_the_grace_is_told_why_it_ends(windrow_command, place):
    path, token = place
    answers = []
    with ServingProcess(windrow_command, path, "--grace", "0.1") as server, connect(server, token) as client:
        threads = [
            threading.Thread(target=lambda: answers.append(client.post("/sql", json={"statement": HEAVY}))),
            threading.Thread(target=lambda: answers.append(ask_flight(server, token))),
        ]
        for thread in threads:
            thread.start()
        until(lambda: "windrow_statements_running 2.0" in client.get("/metrics").text)
        assert server.stop() == 0
        for thread in threads:
            thread.join(PATIENCE)
    (refused,) = (answer for answer in answers if isinstance(answer, httpx.Response))
    assert (refused.status_code, refused.json()) == (503, {"error": "the server is ending; ask another"})
    assert any(isinstance(answer, windrow.BusyError) for answer in answers), "over Flight, wherever it just was"


def ask_flight(server: ServingProcess, token: str) -> Exception | None:
    try:
        with windrow.connect(server.flight, token) as remote:
            remote.sql(HEAVY).arrow()
    except windrow.BusyError as error:
        return error
    return None


def test_an_event_stream_ends_when_its_token_is_revoked(served):
    put_role(served.wh._store, "guest", ["read"])
    number, served.tokens["guest"] = create_token(served.wh._store, "guest")
    with served.client("guest") as client, client.stream("GET", "/events") as events:
        lines = events.iter_lines()
        next(lines)
        revoke_token(served.wh._store, number)
        served.wh.slide("seen", to="2026-01-01T00:12:00Z")
        reply = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert reply == [{"event": "end", "reason": "the token is not, or no longer, valid"}]


def test_statements_go_on_when_the_audit_cannot_be_written(windrow_command, place):
    path, token = place
    with ServingProcess(windrow_command, path, "--audit", "/dev/full") as server, connect(server, token) as client:
        for _ in range(3):
            assert client.post("/sql", json={"statement": "SELECT 1 AS n"}).json()["rows"] == [[1]]
        server.child.terminate()
        message = "the audit /dev/full cannot be written (No space left on device); statements go on without"
        assert sum(message in line for line in server.child.stdout) == 1
        assert server.stop() == 0
