"""Results that leave the machine: posted or given to a command, until they are taken, and nowhere that is not allowed."""

import datetime as dt
import http.server
import json
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import child_processes
import windrow
from faulty_disks import join_child, start_child

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
START, MINUTE = dt.datetime(2025, 3, 28, tzinfo=dt.UTC), dt.timedelta(minutes=1)
COUNTED = "SELECT count(*) AS n FROM a [WINDOW 1 MINUTE SLIDE 1 MINUTE]"


class Receiver:
    """A web server that keeps what it gets, and answers as it is told to."""

    def __init__(self) -> None:
        self.status, self.got = 204, []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.got.append((self.path, self.headers["Idempotency-Key"], body))
                self.send_response(receiver.status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


class Clock:
    now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now


def open_warehouse(path: Path, receiver: Receiver, **options: object) -> windrow.Warehouse:
    wh = windrow.open(path, allow_hosts=[receiver.address], **options)
    if "a" not in wh.streams():
        wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
        wh.slide("a", to=START)
    return wh


def fill(wh: windrow.Warehouse, minute: int, *late: int) -> None:
    rows = [{"ts": START + MINUTE * m, "k": m} for m in (minute, *late)]
    wh.append("a", pa.Table.from_pylist(rows, SCHEMA))
    wh.slide("a", to=START + MINUTE * minute)


def test_a_run_is_posted_until_it_is_taken_with_one_key_and_later_runs_wait(tmp_path, receiver):
    clock = Clock()
    with open_warehouse(tmp_path / "w", receiver, clock=clock) as wh:
        wh.add_query("h", COUNTED, sink=f"webhook:{receiver.address}/hook?token=secret", revise="5 minutes")
        receiver.status, tries = 503, []
        for minute in (1, 2):
            fill(wh, minute)
            assert [run.outcome for run in wh.run_due()] == ["delivered"]
        for _ in range(12):  # every second, but with back-off: after 1, 2, 4 and 8 seconds
            clock.now += 1_000_000
            before = len(receiver.got)
            wh.run_due()
            tries.append(len(receiver.got) - before)
        assert tries == [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]
        (query,) = wh.queries()
        assert "status 503" in query.error
        receiver.status = 302
        clock.now += 60_000_000
        wh.run_due()
        (query,) = wh.queries()
        assert "redirects are not followed" in query.error
        shown = f"{query.sink} {query.error} {wh.sql('SELECT sink, error FROM windrow.queries').fetchall()}"
        assert "secret" not in shown
        assert "hook" not in shown.replace("webhook", "")
        receiver.status = 204
        clock.now += 60_000_000
        wh.run_due()
        fill(wh, 3, 2)
        wh.run_due()
        assert wh.queries()[0].error is None
        taken = {key: (body["window_end"], body["revision"], body["rows"]) for _, key, body in receiver.got}
        assert list(taken.values()) == [
            ("2025-03-28T00:01:00Z", 0, [{"n": 1}]), ("2025-03-28T00:02:00Z", 0, [{"n": 1}]),
            ("2025-03-28T00:03:00Z", 0, [{"n": 1}]), ("2025-03-28T00:02:00Z", 1, [{"n": 2}]),
        ]  # fmt: skip


def test_a_command_gets_a_run_on_its_input_and_no_shell(tmp_path, receiver):
    script = tmp_path / "take.sh"
    script.write_text(
        f"#!/bin/sh\n[ \"$1\" = 'a; touch {tmp_path}/no' ] || exit 3\ncat > {tmp_path}/got-$WINDROW_SLIDE\n"
    )
    script.chmod(0o755)
    with open_warehouse(tmp_path / "w", receiver, allow_commands=[str(script)]) as wh:
        wh.add_query("c", COUNTED, sink=f"command:{script} 'a; touch {tmp_path}/no'")
        fill(wh, 1)
        (run,) = wh.run_due()
        assert wh.queries()[0].error is None
        assert json.loads((tmp_path / f"got-{run.slide}").read_text())["rows"] == [{"n": 1}]
        assert not (tmp_path / "no").exists()
        wh.add_query("wrong", COUNTED, sink=f"command:{script} other")
        fill(wh, 2)
        wh.run_due()
        assert "ended with status 3" in {query.name: query.error for query in wh.queries()}["wrong"]
    with open_warehouse(tmp_path / "w", receiver) as wh:  # a process that may not run it keeps the results
        fill(wh, 3)
        assert {run.outcome for run in wh.run_due()} == {"delivered"}
        assert "is not allowed" in {query.name: query.error for query in wh.queries()}["c"]
        assert wh.sql("SELECT count(*) FROM c").fetchall() == [(3,)]


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("webhook:https://evil.example/x", "the host https://evil.example:443 is not allowed"),
        ("webhook:http://127.0.0.1:1/", "is not allowed"),
        ("webhook:http://user:word@127.0.0.1/", "takes an address such as"),
        ("webhook:file:///etc/passwd", "takes an address such as"),
        ("webhook:http://127.0.0.1/ HTTP/1.1\r\nX: y", "takes an address such as"),
        ("webhook:", "takes an address such as"),
        ("command:/bin/sh -c true", "the command '/bin/sh' is not allowed"),
        ("command:'", "cannot be read"),
        ("command:/bin/cat a\0b", "cannot be read: it holds a NUL"),
        ("command:/bin/cat \udc80", "is not text that can be stored"),
        ("mail:me", "is not a sink"),
    ],
)
def test_what_is_not_allowed_is_refused_and_nothing_is_registered(tmp_path, receiver, sink, message):
    with open_warehouse(tmp_path / "w", receiver) as wh:
        with pytest.raises(windrow.DefinitionError, match=message):
            wh.add_query("bad", COUNTED, sink=sink)
        assert wh.queries() == []
    for options in (
        {"allow_hosts": ["a b"]},
        {"allow_hosts": "host"},
        {"allow_commands": ["sh"]},
        {"allow_hosts": [5]},
    ):
        with pytest.raises(windrow.DefinitionError):
            windrow.open(tmp_path / "w", **options)


def test_a_host_whose_name_cannot_be_resolved_stops_no_other_query(tmp_path, receiver):
    with windrow.open(tmp_path / "w", allow_hosts=["http://a..b"]) as wh:
        wh.create_stream("a", SCHEMA, time="ts", slide="1 minute", lifetime="1 hour")
        wh.add_query("sent", COUNTED, sink="webhook:http://a..b/x")
        wh.add_query("kept", COUNTED)
        wh.slide("a", to=START + MINUTE)
        assert sorted(run.query for run in wh.run_due()) == ["kept", "sent"]
        assert {query.name: query.error for query in wh.queries()} == {
            "kept": None, "sent": f"posting slide {wh.stream('a').slide} of query 'sent' to http://a..b:80 failed: UnicodeError",
        }  # fmt: skip


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("query.committing", marks=pytest.mark.soak),
        pytest.param("query.committed", marks=pytest.mark.soak),
        "query.placed",
        pytest.param("query.settled", marks=pytest.mark.soak),
    ],
)
def test_a_process_killed_while_it_sends_is_followed_by_one_that_sends_the_same_again(tmp_path, receiver, step):
    with open_warehouse(tmp_path / "w", receiver) as wh:
        wh.add_query("h", COUNTED, sink=f"webhook:{receiver.address}/")
        fill(wh, 1)
    child = start_child(child_processes.send_until_step, str(tmp_path / "w"), receiver.address, step)
    assert join_child(child) == -signal.SIGKILL
    with open_warehouse(tmp_path / "w", receiver) as wh:
        wh.run_due()
        assert wh.run_due() == []
        assert wh.sql("SELECT n FROM h").fetchall() == [(1,)]
    assert len(receiver.got) == (2 if step == "query.placed" else 1)
    assert len({key for _, key, _ in receiver.got}) == 1, "whoever gets it twice can tell"
