"""SQL and rows over HTTP: every format gives what `wh.sql` gives, and a role sees nothing that it may not see."""

import io
import json
import re
import threading

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from served_warehouse import ROWS, SCHEMA, rows
from windrow.access import create_token, put_role, revoke_token
from windrow.errors import GapError
from windrow.service import row_formats

STATEMENTS = (
    "SELECT count(*) AS n, max(k) AS top FROM seen",
    "SELECT k, ts, secret FROM seen [WINDOW 2 MINUTES] ORDER BY k LIMIT 5",
    "SELECT NULL AS nothing, 1.5::DECIMAL(5, 2) AS d, [1, 2] AS l, {'a': 'ö'} AS s, DATE '2026-01-02' AS day",
    "SELECT k FROM seen WHERE false",
)


def ask(client: httpx.Client, statement: str, accept: str = row_formats.JSON, **body) -> httpx.Response:
    return client.post("/sql", json={"statement": statement} | body, headers={"Accept": accept})


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_format_gives_what_the_library_gives(shared, statement):
    answer = shared.wh.sql(statement)
    known, expected = json.loads(json.dumps(answer.about())), answer.arrow()
    with shared.client("operator") as client:
        arrow = pa.ipc.open_stream(ask(client, statement, row_formats.ARROW).content).read_all()
        assert arrow.replace_schema_metadata().equals(expected.replace_schema_metadata())
        about = json.loads(arrow.schema.metadata[b"windrow"])
        assert about == known
        parquet = pq.read_table(io.BytesIO(ask(client, statement, row_formats.PARQUET).content))
        assert parquet.to_pylist() == expected.to_pylist()
        answer = ask(client, statement)
        body = answer.json()
        assert [column["name"] for column in body["columns"]] == expected.column_names
        assert len(body["rows"]) == expected.num_rows
        assert body["about"]["windows"] == json.loads(answer.headers["X-Windrow-Windows"])
        lines = [json.loads(line) for line in ask(client, statement, row_formats.JSON_LINES).text.splitlines()]
        assert [list(line.values()) for line in lines] == body["rows"]
        assert len(ask(client, statement, row_formats.CSV).text.splitlines()) == expected.num_rows + 1


def test_what_is_missing_is_told_to_those_who_may_read_the_stream(served):
    number = served.wh.declare_gap("seen", start="2026-01-01T00:08:00Z", end="2026-01-01T00:09:00Z", cause="lost")
    served.wh.declare_gap("hidden", start="2026-01-01T00:08:00Z", end="2026-01-01T00:09:00Z")
    statement = "SELECT count(*) FROM seen [WINDOW 2 MINUTES]"
    for role in ("operator", "analyst"):
        with served.client(role) as client:
            answer = ask(client, statement)
            headers = {name: answer.headers[f"X-Windrow-{name}"] for name in ("Complete", "Coverage")}
            assert (headers["Complete"], answer.json()["about"]["complete"]) == ("false", False)
            assert float(headers["Coverage"]) == pytest.approx(answer.json()["about"]["coverage"], rel=1e-5)
            assert 0 <= float(headers["Coverage"]) < 1, "a role may see old rows only"
            reply = client.get("/streams/seen").json()
            assert number in [gap["id"] for gap in reply["gaps"]] and reply["complete"] is False
            shown = ask(client, "SELECT DISTINCT stream FROM windrow.gaps").json()["rows"]
            assert ["seen"] in shown and (["hidden"] in shown) is (role == "operator")
    with served.connect("operator") as remote:
        window = remote.sql(statement).windows[0]
    assert not window.complete and [gap.id for gap in window.gaps] == [number]
    assert window == served.wh.sql(statement).windows[0]
    served.wh.close_gap(number)


def test_a_source_closes_its_gaps_over_http_and_flight(served):
    """Each way names its own minute; an answer that must be complete is refused until all have come."""
    wh, header = served.wh, {"Content-Type": "application/json"}
    minute = [f"2026-01-01T00:{n:02}:00Z" for n in range(20)]
    wh.create_stream("told", SCHEMA, time="ts", slide="1 minute", lifetime="1 hour")
    wh.append("told", rows(0, ROWS), covers=("2020-01-01T00:00:00Z", minute[0]))
    wh.slide("told", to=minute[10])
    for n in (2, 4, 6):
        wh.declare_gap("told", start=minute[n], end=minute[n + 1], cause="lost")
    statement = "SELECT count(*) AS n FROM told [WINDOW 9 MINUTES]"
    with served.client("operator") as client, served.connect("operator") as remote:
        strict = {"statement": statement, "on_gap": "error"}
        refused = client.post("/sql", json=strict)
        assert refused.status_code == 400 and "is not complete" in refused.json()["error"]
        with pytest.raises(GapError, match="is not complete"):
            remote.sql(statement, on_gap="error")
        with pytest.raises(GapError, match="choose one of"):
            remote.sql(statement, on_gap="perhaps")
        row = {"ts": minute[2], "k": 1, "secret": "late"}
        for covers, status in ((f"{minute[3]}/{minute[2]}", 400), ("then", 400), (f"{minute[2]}/{minute[3]}", 200)):
            answer = client.post("/streams/told/append", params={"covers": covers}, json=[row], headers=header)
            assert (answer.status_code, "error" in answer.json()) == (status, status == 400), answer.text
        assert remote.append("told", rows(ROWS + 1, 1), covers=(minute[4], minute[5])).accepted == 1
        with pytest.raises(GapError, match="begin before it ends"):
            remote.append("told", rows(ROWS + 1, 1), covers=f"{minute[5]}/{minute[4]}")
        wh.slide("told", to=minute[11])
        assert [gap.start.minute for gap in wh.gaps("told")] == [6]
        client.post("/streams/told/heartbeat", json={"up_to": minute[11], "covers": minute[6]})
        assert wh.gaps("told") == []
        assert client.post("/sql", json=strict).json()["rows"] == [
            list(remote.sql(statement, on_gap="error").fetchone())
        ]


def test_revisions_are_read_and_announced(served):
    wh = served.wh
    wh.create_stream("revised", SCHEMA, time="ts", slide="1 minute", lifetime="1 hour")
    sql = "SELECT count(*) AS n FROM revised [WINDOW 1 MINUTE SLIDE 1 MINUTE]"
    body = {"name": "again", "sql": sql, "revise": "10 minutes", "on_gap": "wait", "deadline": "1 second"}
    with served.client("operator") as client, client.stream("GET", "/events") as events:
        lines = events.iter_lines()
        next(lines)
        assert client.post("/queries", json=body | {"deadline": None}).status_code == 400
        assert client.post("/queries", json=body | {"on_gap": "tell", "deadline": None}).status_code == 201
        for minute, first in ((1, 0), (2, 60), (3, 30)):  # the last rows are late: they lie in the first window
            wh.append("revised", rows(first, 20))
            wh.slide("revised", to=f"2026-01-01T00:0{minute}:00Z")
            wh.run_due()
        expected = wh.results("again", revisions=True).fetchall()
        for wanted, expected_rows in ((True, expected), (False, wh.results("again").fetchall())):
            answer = client.get("/queries/again/results", params={"revisions": str(wanted).lower()}).json()
            assert [row[-1] for row in answer["rows"]] == [row[-1] for row in expected_rows]
            assert ("_revision" in str(answer["columns"])) is wanted
        reply = next(e for line in lines if line[:6] == "data: " and (e := json.loads(line[6:]))["event"] == "revision")
    (revised,) = wh.sql("SELECT slide FROM windrow.runs WHERE query = 'again' AND revision = 1").fetchall()
    assert (reply["query"], reply["slide"], reply["revision"]) == ("again", *revised, 1)
    wh.drop_query("again")


def test_parameters_are_bound(shared):
    with shared.client("operator") as client:
        assert ask(client, "SELECT k FROM seen WHERE k = ?", params=[7]).json()["rows"] == [[7]]
        assert ask(client, "SELECT k FROM seen WHERE k = $x", params={"x": 8}).json()["rows"] == [[8]]


def test_cells_that_a_spreadsheet_would_run_are_escaped_on_request(shared):
    with shared.client("operator") as client:
        statement = {"statement": "SELECT name FROM names ORDER BY k"}
        plain = client.post("/sql", json=statement, headers={"Accept": "text/csv"}).text
        safe = client.post("/sql?escape=spreadsheet", json=statement, headers={"Accept": "text/csv"}).text
    assert (plain.splitlines()[1], safe.splitlines()[1]) == ('"=one"', '"\'=one"')


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT secret FROM seen",
        "SELECT * FROM hidden",
        "SELECT count(*) FROM windrow.segments",
        "SELECT k FROM names",
        "SELECT * FROM seen AS s JOIN hidden USING (k)",
        "EXPLAIN SELECT * FROM hidden",
    ],
)
def test_a_role_gets_nothing_that_was_not_granted(shared, statement):
    with shared.client("analyst") as client:
        refused = ask(client, statement)
        assert refused.status_code == 400
        assert "s1" not in refused.text
        assert client.post("/explain", json={"statement": statement}).status_code == 400


def test_a_role_sees_what_was_granted_and_no_more(shared):
    with shared.client("analyst") as client:
        assert ask(client, "SELECT * FROM seen LIMIT 1").json()["columns"][0]["name"] == "ts"
        assert len(ask(client, "SELECT * FROM seen LIMIT 1").json()["columns"]) == 2
        # The newest minute is hidden; times are inclusive at the end.
        assert ask(client, "SELECT max(k) FROM seen").json()["rows"] == [[ROWS - 60]]
        assert ask(client, "SELECT k FROM seen WHERE k = 599").json()["rows"] == []
        assert ask(client, "SELECT n FROM counted").json()["rows"] == [[299]]
        assert ask(client, "SELECT * FROM names").json()["rows"] == [["=one"], ["two"]]
        assert [row[0] for row in ask(client, "SELECT stream FROM windrow.streams").json()["rows"]] == ["seen"]
        shown = ask(client, "SELECT query, statement FROM windrow.queries").json()["rows"]
        assert shown == [["counted", None]]
        for page in ("/streams", "/queries", "/views", "/summaries", "/tables", "/status", "/metrics"):
            answer = client.get(page)
            assert answer.status_code == 200
            assert "hidden" not in answer.text
            assert "secret" not in answer.text
        assert client.get("/streams/hidden").status_code == 403
        assert client.get("/queries/counted/results").json()["rows"][0][-1] == 299


def test_summaries_are_created_asked_and_dropped(shared):
    with shared.client("operator") as client:
        body = {"name": "often", "sql": "SELECT k % 4 AS g, count(*) AS n FROM seen GROUP BY 1", "frequent": 2}
        assert client.post("/summaries", json=body).json()["frequent"] == 2
        assert client.post("/summaries", json=body).status_code == 400
        assert [each["name"] for each in client.get("/summaries").json()["summaries"]] == ["often"]
        assert ask(client, "SELECT sum(upper) >= 2 * max(lower) FROM often").json()["rows"] == [[True]]
        with shared.client("analyst") as other:
            assert other.get("/summaries").json() == {"summaries": []}
            assert ask(other, "SELECT * FROM often").status_code == 400
        assert client.delete("/summaries/often").json() == {"dropped": "often"}


@pytest.mark.parametrize("word", ["EXPLAIN", "EXPLAIN ANALYZE"])
def test_no_figure_tells_a_role_of_rows_whose_age_is_hidden(shared, word):
    with shared.client("analyst") as client:
        reply = ask(client, f"{word} SELECT max(k) FROM seen WHERE k > 590").text
        reply += client.post("/explain", json={"statement": "SELECT k FROM seen WHERE k = 599"}).text
        assert "role 'analyst' does not see" in reply
        assert not re.search(r"rows? \d|\d+ rows?|\b600\b|\b599\b", reply), reply
        figures = "segments, live_rows, stored_rows, bytes, inserted, expired"
        assert ask(client, f"SELECT {figures} FROM windrow.streams").json()["rows"] == [[None] * 6]
        slides = ask(client, "SELECT DISTINCT inserted, expired, touched, bytes_written FROM windrow.slides").json()
        assert slides["rows"] == [[None] * 4]
        assert ask(client, "SELECT DISTINCT rows FROM windrow.sources").json()["rows"] in ([], [[None]])
    put_role(shared.wh._store, "old", ["read"], newest="1 minute")
    shared.tokens["old"] = create_token(shared.wh._store, "old")[1]
    with shared.client("old") as client:
        assert ask(client, "SELECT rows FROM windrow.segments").status_code == 400
    with shared.client("operator") as client:
        assert "rows 600 of 600" in ask(client, f"{word} SELECT max(k) FROM seen").text


def test_rights_are_checked(served):
    send = {"content": encode(rows(ROWS, 2), row_formats.ARROW), "headers": {"Content-Type": row_formats.ARROW}}
    with served.client("analyst") as client:
        assert client.post("/streams/seen/append", **send).status_code == 403
        assert client.post("/streams/seen/slide", json={}).status_code == 403
        assert client.delete("/queries/counted").status_code == 403
    with served.client("producer") as client:
        assert ask(client, "SELECT 1").status_code == 403
        assert client.post("/streams/hidden/append", **send).status_code == 403
        assert client.post("/streams/seen/append", **send).json()["accepted"] == 2
    with served.client("small") as client:
        too_many = ask(client, "SELECT k FROM seen")
        assert (too_many.status_code, "more than 10 rows" in too_many.text) == (400, True)


def encode(batch: pa.Table, media: str) -> bytes:
    body = io.BytesIO()
    if media == row_formats.ARROW:
        with pa.ipc.new_stream(body, batch.schema) as writer:
            writer.write_table(batch)
    elif media == row_formats.PARQUET:
        pq.write_table(batch, body)
    else:
        records = [{"ts": r["ts"].isoformat(), "k": r["k"], "secret": r["secret"]} for r in batch.to_pylist()]
        if media == row_formats.CSV:
            lines = ["ts,k,secret", *(f"{r['ts']},{r['k']},{r['secret']}" for r in records)]
            return "\n".join(lines).encode()
        return (json.dumps(records) if media == row_formats.JSON else "\n".join(map(json.dumps, records))).encode()
    return body.getvalue()


def test_appends_are_exactly_once_in_every_format(served):
    with served.client("operator") as client:
        for number, media in enumerate(row_formats.READ):
            body = encode(rows(ROWS + 10 * number + 5, 3), media)
            for duplicate in (False, True):
                answer = client.post(
                    f"/streams/seen/append?batch_id={number}", content=body, headers={"Content-Type": media}
                )
                assert answer.status_code == 200, answer.text
                assert answer.json()["duplicate"] is duplicate
        assert client.post("/streams/seen/slide", json={"to": "2026-01-01T00:11:00Z"}).status_code == 200
        assert ask(client, "SELECT count(*) FROM seen WHERE k >= 605").json()["rows"] == [[3 * len(row_formats.READ)]]


def test_tables_are_put_in_every_format_and_rejected_rows_are_told(served):
    with served.client("operator") as client:
        for media in row_formats.READ:
            batch = pa.table({"k": [1, 2, 3], "name": ["a", "b", "c"]})
            content = encode(batch, media) if media in (row_formats.ARROW, row_formats.PARQUET) else None
            if content is None:
                text = [{"k": k, "name": n} for k, n in zip([1, 2, 3], "abc", strict=True)]
                content = {
                    row_formats.JSON: json.dumps(text),
                    row_formats.JSON_LINES: "\n".join(map(json.dumps, text)),
                    row_formats.CSV: "k,name\n1,a\n2,b\n3,c\n",
                }[media].encode()
            since = {"valid_from": "2025-01-01T00:00:00Z"} if media == row_formats.JSON else {}
            answer = client.put("/tables/more", params=since, content=content, headers={"Content-Type": media})
            assert (answer.status_code, answer.json()) == (200, {"table": "more", "rows": 3}), answer.text
            assert ask(client, "SELECT sum(k)::BIGINT AS s FROM more").json()["rows"] == [[6]]
        assert client.delete("/tables/more").status_code == 200
        timeless = rows(0, 2).set_column(0, "ts", pa.nulls(2, rows(0, 1).schema.field("ts").type))
        report = client.post(
            "/streams/hidden/append",
            content=encode(timeless, row_formats.ARROW),
            headers={"Content-Type": row_formats.ARROW},
        ).json()
        assert (report["accepted"], sum(report["rejected"].values())) == (0, 2), report
    with served.client("producer") as client:
        refused = client.put("/tables/more", content=b"k\n1", headers={"Content-Type": "text/csv"})
        assert refused.status_code == 403


def test_tokens_are_needed_and_can_be_taken_away(served):
    with served.client(None) as client:
        refused = ask(client, "SELECT 1")
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.get("/healthz").status_code == 200
        assert client.head("/healthz").status_code == 200
        client.headers["Authorization"] = "Bearer windrow_0_x"
        assert ask(client, "SELECT 1").status_code == 401
    put_role(served.wh._store, "guest", ["read"])
    number, served.tokens["guest"] = create_token(served.wh._store, "guest")
    with served.client("guest") as client:
        assert ask(client, "SELECT 1").status_code == 200
        put_role(served.wh._store, "guest", ["append"])
        assert ask(client, "SELECT 1").status_code == 403
        revoke_token(served.wh._store, number)
        assert ask(client, "SELECT 1").status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"statement": 5}', 400),
        (b'{"statement": "SELECT 1", "more": 1}', 400),
        (b'{"statement": "SELEC"}', 400),
        (b'{"statement": "COPY seen TO \'/tmp/x\'"}', 400),
        (b'{"statement": "SELECT * FROM read_csv(\'/etc/passwd\')"}', 400),
        (b'{"statement": "SELECT 1", "timeout": -1}', 400),
        (b'{"statement": "SELECT 1", "isolation": "none"}', 400),
        (b"\xff", 400),
        (b'{"statement": "' + b"x" * (5 << 20) + b'"}', 413),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(shared, body, status):
    with shared.client("operator") as client:
        answer = client.post("/sql", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}


def test_a_fresh_answer_has_spooled_rows_and_says_so(served):
    served.wh.create_stream("coming", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
    served.wh.append("coming", rows(0, 3))
    counting = "SELECT count(*) AS n FROM coming"
    with served.client("operator") as client:
        for isolation, number in (("snapshot", 0), ("fresh", 3)):
            answer = ask(client, counting, isolation=isolation)
            assert answer.status_code == 200, answer.text
            assert answer.json()["rows"] == [[number]]
            assert answer.json()["about"]["isolation"] == isolation
    served.wh.drop_stream("coming")


def test_events_tell_slides_as_a_role_may_know_them(served):
    events: list[dict] = []
    listening = threading.Event()

    def listen() -> None:
        with served.client("analyst") as client, client.stream("GET", "/events") as answer:
            for line in answer.iter_lines():
                listening.set()
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    assert listening.wait(30)
    served.wh.slide("hidden", to="2026-01-01T00:12:00Z")
    served.wh.slide("seen", to="2026-01-01T00:12:00Z")
    thread.join(30)
    assert [(event["event"], event["stream"]) for event in events] == [("slide", "seen")]


def test_every_statement_leaves_a_line_in_the_audit(shared):
    with shared.client("analyst") as client:
        ask(client, "SELECT 1 AS x")
        ask(client, "SELECT * FROM hidden")
    first, second = shared.audit[-2:]
    assert (first["role"], first["statement"], first["error"]) == ("analyst", "SELECT 1 AS x", None)
    assert "hidden" in second["error"]
