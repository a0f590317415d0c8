"""Answers in pieces: every piece is of one answer, only for the token that asked, and bounded in bytes and number."""

import json
import random
import time

import pyarrow as pa
import pytest

from served_warehouse import ROWS
from windrow.access import create_token, put_role
from windrow.service.kept_answers import AnswerStore, KeepLimits

SEED = 23


def begin(client, statement: str) -> str:
    answer = client.post("/answers", json={"statement": statement})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def read(client, key: str, start: int = 0, count: int = 200, **options):
    return client.get(f"/answers/{key}", params={"start": start, "count": count, "wait": 20} | options)


def read_to_end(client, key: str) -> dict:
    reply = read(client, key).json()
    while not reply["done"]:
        reply = read(client, key, reply["rows"], 1).json()
    return read(client, key).json()


def test_pieces_are_the_rows_of_the_answer(shared):
    with shared.client("operator") as client:
        number = 100_003
        key = begin(
            client, f"SELECT range AS n, range + 9007199254740993 AS big, 'v' || range AS t FROM range({number})"
        )
        reply = read_to_end(client, key)
        assert reply["rows"] == number and reply["cut"] == ""
        assert [column["kind"] for column in reply["columns"]] == ["number", "number", "text"]
        chance = random.Random(SEED)
        for start in [0, number - 5, *(chance.randrange(number) for _ in range(20))]:
            count = chance.randrange(1, 500)
            cells = read(client, key, start, count).json()["cells"]
            expected = range(start, min(number, start + count))
            assert cells == [[str(n), str(n + 9007199254740993), f"v{n}"] for n in expected], (SEED, start, count)
        assert read(client, key, number, 10).json()["cells"] == []


def test_values_are_written_as_everywhere_and_long_ones_are_cut(shared):
    with shared.client("operator") as client:
        key = begin(
            client,
            "SELECT NULL AS a, '' AS b, true AS c, 0.1::DOUBLE AS d, [1, NULL] AS e, TIMESTAMP '2026-01-01 00:00:01' AS f, "
            "repeat('ü', 5000) AS g, '\\x00'::BLOB AS h, 1.50::DECIMAL(5, 2) AS i",
        )
        row = read_to_end(client, key)["cells"][0]
        assert row[:5] == [None, "", "true", "0.1", "[1,null]"] and row[5].startswith("2026-01-01T00:00:01")
        assert row[6] == "ü" * 400 + "…" and row[8] == "1.50"
        assert read(client, key, whole=True).json()["cells"][0][6] == "ü" * 5000


def test_the_whole_answer_can_be_had_as_a_file(shared):
    with shared.client("operator") as client:
        key = begin(client, "SELECT k FROM seen ORDER BY k")
        read_to_end(client, key)
        text = client.get(f"/answers/{key}/rows", headers={"Accept": "text/csv"})
        assert text.text.splitlines() == ['"k"', *map(str, range(ROWS))]
        arrow = client.get(f"/answers/{key}/rows", headers={"Accept": "application/vnd.apache.arrow.stream"})
        assert pa.ipc.open_stream(arrow.content).read_all()["k"].to_pylist() == list(range(ROWS))


def test_a_chart_of_it_is_a_specification(shared):
    with shared.client("operator") as client:
        key = begin(client, "SELECT ts, k, k * 2 AS twice FROM seen")
        read_to_end(client, key)
        drawn = client.get(f"/answers/{key}/chart", params={"measures": json.dumps(["twice"])}).json()["chart"]
        assert {value["series"] for value in drawn["data"]["values"]} == {"twice"}
        assert client.get(f"/answers/{key}/chart", params={"measures": "twice"}).status_code == 400
        key = begin(client, "SELECT 'x' AS x")
        read_to_end(client, key)
        assert client.get(f"/answers/{key}/chart").json() == {"chart": None, "cut": ""}


def test_errors_are_those_of_the_statement(shared):
    with shared.client("operator") as client:
        answer = read(client, begin(client, "SELECT nothing FROM seen"))
        assert answer.status_code == 400 and "nothing" in answer.json()["error"] and "^" in answer.json()["error"]
    with shared.client("small") as client:
        key = begin(client, "SELECT k FROM seen")
        answer = read(client, key)
        assert answer.status_code == 400 and "more than 10 rows" in answer.json()["error"]


def test_nobody_else_reads_it_and_nobody_after_its_role_has_changed(served):
    with served.client("operator") as client, served.client("small") as other:
        key = begin(client, "SELECT 1 AS x")
        read_to_end(client, key)
        for request in (
            other.get(f"/answers/{key}"),
            other.get(f"/answers/{key}/rows"),
            other.delete(f"/answers/{key}"),
        ):
            assert request.status_code == 404
        assert client.delete(f"/answers/{key}").status_code == 200
        assert read(client, key).status_code == 404
    put_role(served.wh._store, "passing", ["read"])
    served.tokens["passing"] = create_token(served.wh._store, "passing")[1]
    with served.client("passing") as client:
        key = begin(client, "SELECT k FROM seen")
        read_to_end(client, key)
        put_role(served.wh._store, "passing", ["read"], {"hidden": None})
        assert read(client, key).status_code == 404


def test_a_statement_that_is_not_wanted_any_more_ends(served):
    with served.client("operator") as client:
        key = begin(client, "SELECT count(*) FROM range(100000000000)")
        assert client.delete(f"/answers/{key}").status_code == 200
        end = time.monotonic() + 60
        while served.server.service.pool.running and time.monotonic() < end:
            assert client.get("/session").status_code == 200
        assert not served.server.service.pool.running


@pytest.fixture
def bounded(served, request):
    before = served.server.service.answers
    served.server.service.answers = AnswerStore(request.param)
    yield served
    served.server.service.answers.close()
    served.server.service.answers = before


@pytest.mark.parametrize("bounded", [KeepLimits(answer_bytes=1_000_000, all_bytes=3_000_000)], indirect=True)
def test_of_an_answer_that_is_too_large_the_first_rows_are_kept_and_it_says_so(bounded):
    with bounded.client("operator") as client:
        key = begin(client, "SELECT md5(range::VARCHAR) AS t FROM range(200000)")
        reply = read_to_end(client, key)
        assert 0 < reply["rows"] < 200_000 and "ask for less" in reply["cut"]
        assert len(read(client, key, reply["rows"] - 3, 10).json()["cells"]) == 3


@pytest.mark.parametrize("bounded", [KeepLimits(all_bytes=3_000_000)], indirect=True)
def test_whole_answers_give_way_to_new_ones(bounded):
    with bounded.client("operator") as client:
        keys = []
        for number in range(3):  # about 2 MB each
            keys.append(begin(client, f"SELECT md5((range + {number})::VARCHAR) AS t FROM range(60000)"))
            assert read_to_end(client, keys[-1])["cut"] == ""
        assert [read(client, key).status_code for key in keys] == [404, 404, 200]


@pytest.mark.parametrize("bounded", [KeepLimits(of_one_token=2)], indirect=True)
def test_the_oldest_of_too_many_answers_is_dropped(bounded):
    with bounded.client("operator") as client:
        keys = [begin(client, f"SELECT {n} AS x") for n in range(3)]
        assert [read(client, key).status_code for key in keys] == [404, 200, 200]


@pytest.mark.parametrize("bounded", [KeepLimits(idle_seconds=0.0)], indirect=True)
def test_an_answer_that_nobody_asks_for_is_dropped(bounded):
    with bounded.client("operator") as client:
        first = begin(client, "SELECT 1 AS x")
        begin(client, "SELECT 2 AS x")
        assert read(client, first).status_code == 404
