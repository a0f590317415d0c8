"""What the console asks for: pages show a role only what it may see, and the files carry a strict policy."""

import os
import time
from pathlib import Path

import pytest

import windrow.service
from console_browser import SCHEMA, serve_console, slide_minute
from windrow.service import console_files

CONSOLE = Path(windrow.service.__file__).parent / "console"


def test_the_pages_are_there_without_a_token_and_carry_a_strict_policy(shared):
    with shared.client(None) as client:
        assert client.get("/", follow_redirects=True).headers["content-type"].startswith("text/html")
        for file in sorted(path.name for path in CONSOLE.iterdir()):
            answer = client.get(f"/console/{file}")
            policy = answer.headers["content-security-policy"]
            assert answer.status_code == 200 and answer.content == (CONSOLE / file).read_bytes()
            assert "default-src 'none'" in policy and "unsafe" not in policy and "require-trusted-types-for" in policy
        for absent in ("server.py", "..%2fserver.py", "%2e%2e", "x.js"):
            assert client.get(f"/console/{absent}").status_code == 404
        assert client.get("/overview").status_code == 401


def test_the_files_write_no_html_and_load_nothing_from_elsewhere():
    for file in CONSOLE.iterdir():
        text = file.read_text()
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "document.write" not in text, file
        allowed = ("http://www.w3.org/", "https://vega.github.io/schema/")
        for scheme in ("http://", "https://"):
            for rest in text.split(scheme)[1:]:
                assert (scheme + rest).startswith(allowed), (file, rest[:40])


def test_without_the_library_the_page_says_what_to_install(shared, monkeypatch):
    monkeypatch.setattr(console_files, "_charts_library", lambda: None)
    with shared.client(None) as client:
        answer = client.get("/console/vega.js")
        assert answer.status_code == 404 and "windrow[plot]" in answer.json()["error"]


def test_a_role_sees_only_what_it_may(shared):
    with shared.client("operator") as client:
        everything = client.get("/overview").json()
        assert {stream["name"] for stream in everything["streams"]} == {"seen", "hidden"}
        page = client.get("/streams/seen/layout").json()
        assert sum(cell["rows"] for cell in page["layout"]["cells"]) == page["stored_rows"]
        assert sum(page["layout"]["lifetimes"]["buckets"]) == page["live_rows"] == 600
        assert page["recent"][-1]["in"] == 600
        assert client.get("/health").json()["pins"] is not None
    with shared.client("analyst") as client:
        reply = client.get("/overview").json()
        assert [stream["name"] for stream in reply["streams"]] == ["seen"]
        assert reply["streams"][0]["live_rows"] is None and reply["streams"][0]["recent"][-1]["in"] is None
        page = client.get("/streams/seen/layout").json()
        assert page["layout"] is None and page["live_rows"] is None and page["reasons"] is None
        assert client.get("/streams/hidden/layout").status_code == 403
        assert client.get("/streams/seen/rejected").status_code == 403
        names = {relation["name"] for relation in client.get("/vocabulary").json()["relations"]}
        assert {"seen", "counted", "names"} <= names and not {"hidden", "windrow.segments"} & names
        health = client.get("/health").json()
        assert health["pins"] is None and health["path"] is None
        for path in ("/check", "/gc", "/streams/seen/replay"):
            assert client.post(path).status_code == 403
    with shared.client("producer") as client:
        for path in ("/overview", "/health", "/vocabulary", "/streams/seen/layout"):
            assert client.get(path).status_code == 403


def test_a_page_of_streams_is_found_by_a_part_of_the_name(shared):
    with shared.client("operator") as client:
        reply = client.get("/overview", params={"find": "HID"}).json()
        assert (
            [stream["name"] for stream in reply["streams"]] == ["hidden"]
            and reply["found"] == 1
            and reply["total"] == 2
        )
        assert client.get("/overview", params={"limit": 1, "offset": 1}).json()["streams"][0]["name"] in (
            "seen",
            "hidden",
        )


def test_a_pin_is_shown_with_the_process_that_holds_it(served):
    with served.client("operator") as client, served.wh.snapshot() as snapshot:
        rows = [pin for pin in client.get("/health").json()["pins"] if pin["process"] == os.getpid()]
        assert rows and rows[0]["commit"] <= snapshot.version and "py" in rows[0]["program"]


@pytest.mark.soak
def test_pages_of_a_thousand_streams(tmp_path):
    """Tells what each page takes of the server's processor; the figures of docs/console.md."""

    def fill(wh) -> None:
        for number in range(1_000):
            wh.create_stream(
                f"s{number:03}", SCHEMA, time="ts", key="host", slide="1 minute", expires="until", max_lifetime="1 hour"
            )
            for minute in range(45 if number < 50 else 1):
                slide_minute(wh, f"s{number:03}", minute, 20)

    with serve_console(tmp_path / "w", fill) as served, served.client("operator") as client:
        for path in (
            "session",
            "overview",
            "overview?offset=950",
            "streams/s001/layout",
            "vocabulary",
            "queries",
            "views",
            "health",
        ):
            spent = []
            for _ in range(9):
                began = time.process_time()
                assert client.get("/" + path).status_code == 200
                spent.append(time.process_time() - began)
            print(f"{path}: {sorted(spent)[4] * 1e3:.0f} ms, first {spent[0] * 1e3:.0f} ms")


def test_check_and_advice_are_had_over_the_network(served):
    with served.client("operator") as client:
        assert client.post("/check").json()["ok"] is True
        assert "files" in client.post("/gc").json()
        advice = client.get("/streams/seen/advice").json()
        assert advice["why"] and advice["alternatives"]


def test_rejected_rows_are_shown_and_replayed(served):
    text = b"ts,k,secret\n,1,none\n2026-01-01T00:10:30Z,2,there\n"
    with served.client("operator") as client:
        assert (
            client.post("/streams/seen/append", content=text, headers={"Content-Type": "text/csv"}).status_code == 200
        )
        reasons = client.get("/streams/seen/layout").json()["reasons"]
        assert sum(reasons.values()) == 1
        rows = client.get("/streams/seen/rejected").json()
        assert rows["total"] == 1 and rows["rows"][0]["row"]["k"] == 1 and rows["rows"][0]["reason"] in reasons
        assert client.post("/streams/seen/replay").json()["rejected"] == reasons
