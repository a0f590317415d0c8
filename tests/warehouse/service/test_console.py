"""The console in a browser: each page, live changes, errors at their place, an expired token, hostile names, a million rows.

Screenshots for docs/console are made on request: WINDROW_SCREENSHOTS=docs/console pytest tests/warehouse/service/test_console.py
"""

import importlib.util
import os
import re
from pathlib import Path

import pytest

from console_browser import HOSTILE, PATIENCE_MS, find_chromium, open_browser, serve_console, slide_minute
from windrow.access import create_token, revoke_token

if find_chromium() is None:
    pytest.skip("there is no Chromium (Debian: apt-get install chromium)", allow_module_level=True)
if importlib.util.find_spec("playwright") is None:
    pytest.skip("there is no Playwright (pip install playwright)", allow_module_level=True)

from playwright.sync_api import expect

expect.set_options(timeout=PATIENCE_MS)
HAS_CHARTS = importlib.util.find_spec("vl_convert") is not None
needs_charts = pytest.mark.skipif(not HAS_CHARTS, reason="charts need vl-convert-python")
EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of (400|401|404)")


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    with serve_console(tmp_path_factory.mktemp("console") / "traffic") as served:
        yield served


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


class Reader:
    """A person before a page; what the browser complains of is kept."""

    def __init__(self, page, served) -> None:
        self.page, self.served = page, served
        self.complaints: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def _note(self, message) -> None:
        if message.type in ("error", "warning") and not EXPECTED.match(message.text):
            self.complaints.append(message.text)

    def open(self, role: str, address: str = "") -> "Reader":
        self.page.goto(f"http://127.0.0.1:{self.served.server.port}/console/#/{address}")
        self.page.fill("#token", self.served.tokens[role])
        self.page.click("form.token button")
        self.page.locator("#live.live").wait_for()
        return self

    def go(self, address: str) -> None:
        self.page.evaluate("address => { location.hash = address }", f"#/{address}")

    def run(self, statement: str) -> None:
        self.page.fill(".editor textarea", statement)
        self.page.keyboard.press("Control+Enter")

    def answered(self, rows: str) -> None:
        self.page.locator("#progress", has_text=re.compile(rf"^{rows} rows,")).wait_for()

    def picture(self, name: str) -> None:
        folder = os.environ.get("WINDROW_SCREENSHOTS")
        if folder:
            self.page.mouse.move(2, 400)
            self.page.locator("#said p").wait_for(state="detached")
            Path(folder).mkdir(parents=True, exist_ok=True)
            tall = {"full_page": True, "clip": {"x": 0, "y": 0, "width": 1280, "height": 1060}}
            options = tall if name in ("stream", "dark") else {}
            self.page.screenshot(path=Path(folder) / f"{name}.png", animations="disabled", **options)


@pytest.fixture
def reader(browser, console):
    page = browser.new_page()
    reader = Reader(page, console)
    yield reader
    page.close()
    assert reader.complaints == []


def test_the_overview_shows_what_fails_and_every_stream(reader):
    page = reader.open("operator").page
    page.get_by_role("heading", name="Failing queries").wait_for()
    page.get_by_text("Could not convert string 'many'").wait_for()
    names = page.locator("[data-key^='stream-']").all_inner_texts()
    assert names[0] == "sensors" and set(names) == {"sensors", "requests", "payments", "slow"}
    assert page.get_by_text("went on without south").count() == 1
    assert page.locator("svg.bars").first.get_attribute("aria-label").startswith("rows that came and left")
    reader.picture("overview")
    page.fill("[data-find]", "pay")
    expect(page.locator("[data-key^='stream-']")).to_have_count(1)


@needs_charts
def test_a_stream_shows_cells_lifetimes_and_rejected_rows(reader):
    page = reader.open("operator", "stream/requests").page
    page.locator("svg.cells").wait_for()
    assert page.locator("svg.cells > g").count() == 24
    assert re.fullmatch(
        r"4 by 6 cells; the last slide filled row \d and emptied column \d",
        page.locator("svg.cells").get_attribute("aria-label"),
    )
    assert page.locator(".dead-part").count() > 0
    page.locator(".chart svg").nth(1).wait_for()
    reader.picture("stream")
    page.click("text=Show rows")
    page.get_by_text("the expiry is not after the event time").nth(1).wait_for()
    page.click("text=Ask the advisor")
    page.get_by_text("wave-insertion").first.wait_for()


@needs_charts
def test_a_statement_is_typed_completed_and_its_chart_seen(reader):
    page = reader.open("operator", "sql").page
    page.locator(".editor textarea").focus()
    page.keyboard.type("SELECT ts, ms FROM requ")
    page.locator(".words li", has_text="requests").wait_for()
    page.keyboard.press("Tab")
    assert page.input_value(".editor textarea") == "SELECT ts, ms FROM requests"
    page.keyboard.type(" [WINDOW 5 MINUTES] ORDER BY ho")
    page.locator(".words li", has_text="host").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+Enter")
    page.locator(".row .cell").wait_for()
    aside = page.locator("aside[aria-label=Window]")
    for word in ("requests", "Complete", "Stale by", "Coverage"):
        aside.get_by_text(word, exact=True).wait_for()
    page.get_by_role("tab", name="Chart").click()
    page.locator(".chart svg path").first.wait_for()
    reader.run(
        "SELECT host, date_trunc('minute', ts) AS minute, count(*) AS n, max(ms) AS slowest\n"
        "FROM requests [WINDOW 20 MINUTES]\nGROUP BY host, minute ORDER BY minute, host"
    )
    reader.answered("120")
    page.get_by_label("slowest").check()
    page.locator(".chart text", has_text=re.compile("^web0$")).first.wait_for()
    reader.picture("chart")
    page.get_by_role("tab", name="Rows").click()
    page.locator(".row .cell").wait_for()
    reader.picture("sql")
    page.get_by_role("tab", name="Plan").click()
    page.get_by_text(re.compile(r"cells \d+ of 24, segments \d+ of")).wait_for()


def test_a_slide_changes_the_pages_without_loading_them_again(reader):
    page = reader.open("operator").page
    clock = page.locator("tr", has=page.locator("[data-key='stream-payments']")).locator("time").first
    clock.wait_for()
    before = clock.inner_text()
    page.evaluate("window.sameDocument = true")
    slide_minute(reader.served.wh, "payments", 40)
    expect(clock).not_to_have_text(before)
    reader.go("stream/payments")
    page.locator("svg.cells").wait_for()
    slide = page.locator(".page.stream").get_attribute("data-slide")
    slide_minute(reader.served.wh, "payments", 41)
    expect(page.locator(".page.stream")).not_to_have_attribute("data-slide", slide)
    assert page.evaluate("window.sameDocument") is True


def test_an_error_is_shown_at_its_place(reader):
    page = reader.open("operator", "sql").page
    reader.run("SELECT host\nFROM requests\nWHERE hst = 'x'")
    page.locator(".problem:visible", has_text="hst").wait_for()
    assert page.locator(".back .wrong").inner_text() == "hst"
    page.get_by_role("button", name="line 3, column 7").click()
    assert page.evaluate("document.querySelector('.editor textarea').selectionStart") == len(
        "SELECT host\nFROM requests\nWHERE "
    )
    reader.run("SELECT 1 AS x")
    reader.answered("1")
    assert page.locator(".problem:visible").count() == 0 and page.locator(".back .wrong").count() == 0
    page.locator("summary", has_text="History").click()
    page.locator(".history li", has_text="not found").wait_for()


def test_a_token_that_is_no_longer_valid_is_asked_for_again(reader):
    number, text = create_token(reader.served.wh._store, "operator")
    reader.served.tokens["passing"] = text
    page = reader.open("passing").page
    page.locator("[data-key='stream-requests']").wait_for()
    revoke_token(reader.served.wh._store, number)
    reader.go("sql")
    page.locator("[role=alert]", has_text="not, or no longer, valid").wait_for()
    page.fill("#token", reader.served.tokens["operator"])
    page.click("form.token button")
    page.locator(".editor textarea").wait_for()
    assert page.evaluate("Object.keys(localStorage).some(key => key.includes('token'))") is False


@needs_charts
def test_a_hostile_name_and_value_are_only_text(reader):
    page = reader.open("operator", "sql").page
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    reader.run("SELECT * FROM sites ORDER BY n")
    reader.answered("2")
    page.locator(".row span", has_text=HOSTILE).first.wait_for()
    assert page.locator(".names span", has_text=HOSTILE).count() == 1
    page.locator(".row.active").dblclick()
    page.locator("dialog td", has_text=HOSTILE).wait_for()
    page.keyboard.press("Escape")
    reader.run(f'SELECT {quoted} AS "__proto__", n AS {quoted} FROM sites')
    reader.answered("2")
    page.get_by_role("tab", name="Chart").click()
    page.locator(".chart svg path").first.wait_for()
    reader.run(f"SELECT nothing AS {quoted} FROM sites")
    page.locator(".problem:visible").wait_for()
    page.locator("summary", has_text="History").click()
    page.locator(".history li", has_text=HOSTILE[:20]).first.wait_for()
    assert page.locator("main img, main script").count() == 0


def test_a_million_rows_are_scrolled_with_bounded_memory(reader):
    page = reader.open("operator", "sql").page
    protocol = page.context.new_cdp_session(page)

    def heap() -> float:
        protocol.send("HeapProfiler.collectGarbage")
        return protocol.send("Runtime.getHeapUsage")["usedSize"] / 1e6

    reader.run("SELECT range AS n, md5(range::VARCHAR) AS digest, 'row ' || range AS words FROM range(1000000)")
    reader.answered("1,000,000")
    page.locator(".rows").focus()
    before = heap()

    def shows(number: int) -> None:
        page.locator(".body .row span", has_text=re.compile(rf"^row {number}$")).wait_for()

    page.keyboard.press("Control+End")
    shows(999_999)
    for place in range(1, 60):
        page.evaluate(
            "share => { const rows = document.querySelector('.rows'); rows.scrollTop = share * rows.scrollHeight }",
            place / 60,
        )
        expect(page.locator(".body")).not_to_contain_text("…")
    page.keyboard.press("Control+Home")
    shows(0)
    page.keyboard.press("PageDown")
    assert page.locator(".rows .row").count() < 200
    assert heap() - before < 30, "each row that was seen stayed in memory"


def test_an_answer_that_is_gone_is_told_once(reader):
    page = reader.open("operator", "sql").page
    reader.run("SELECT range AS n FROM range(20000)")
    reader.answered("20,000")
    refused = []
    page.on("response", lambda response: refused.append(response.url) if response.status == 404 else None)
    reader.served.server.service.answers.close()
    page.locator(".rows").focus()
    page.keyboard.press("Control+End")
    page.locator(".problem:visible", has_text="no such answer").wait_for()
    reader.run("SELECT 7 AS n")
    reader.answered("1")
    assert 1 <= len(refused) <= 4  # pieces in view, and the page that lets go of the answer


def test_without_charts_the_page_says_what_to_install(reader):
    def without_charts(route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"charts": None})

    reader.page.route("**/session", without_charts)
    page = reader.open("operator", "stream/requests").page
    page.get_by_text("Charts need vl-convert-python").first.wait_for()
    page.locator("svg.cells").wait_for()
    reader.go("stream/%E0%A4%A")
    page.locator(".problem", has_text="%E0%A4%A").wait_for()


def test_a_statement_is_linked_exported_and_asked_again(reader):
    page = reader.open("operator", "sql").page
    reader.run("SELECT count(*) AS n FROM payments [WINDOW 5 MINUTES]")
    reader.answered("1")
    assert "q=SELECT%20count" in page.url
    with page.expect_download() as waiting:
        page.get_by_label("Export").select_option("0")
    assert Path(waiting.value.path()).read_text().startswith('"n"\n')
    page.get_by_role("button", name="Ask again every…").click()
    page.fill("#new-name", "counted")
    page.fill("#new-slide", "1 minute")
    page.click("text=Add query")
    page.locator("dialog").wait_for(state="detached")
    reader.go("queries/counted")
    page.locator("[data-key='query-counted']").wait_for()
    page.locator("[data-key='drop-counted']").click()
    page.locator("dialog button", has_text="Drop").click()
    page.locator("[data-key='query-counted']").wait_for(state="detached")
    page.goto(page.url.split("#")[0] + "#/sql?q=SELECT%2042%20AS%20answer")
    expect(page.locator(".editor textarea")).to_have_value("SELECT 42 AS answer")
    assert page.locator(".rows").count() == 0, "a link opens a statement and does not run it"


def test_queries_show_results_failures_and_run(reader):
    page = reader.open("operator", "queries/per_host").page
    page.get_by_role("heading", name="Last runs").wait_for()
    if HAS_CHARTS:
        page.locator(".results .chart svg path").first.wait_for()
    reader.picture("queries")
    page.locator("[data-key='run-too_slow']").click()
    page.locator("#said .bad", has_text="many").or_(page.locator("#said", has_text="has run")).or_(
        page.locator("#said", has_text="nothing to do")
    ).first.wait_for()
    reader.go("queries/too_slow")
    page.locator(".problem", has_text="Could not convert string 'many'").first.wait_for()


def test_health_checks_files(reader):
    page = reader.open("operator", "health").page
    page.get_by_role("heading", name="Versions").wait_for()
    page.click("text=Check all files")
    page.get_by_text(re.compile("No problem in 4 streams")).wait_for()
    reader.picture("health")


def test_an_analyst_sees_only_what_was_granted(reader):
    page = reader.open("analyst").page
    page.locator("[data-key='stream-requests']").wait_for()
    assert page.locator("[data-key^='stream-']").count() == 1
    reader.go("stream/requests")
    page.get_by_text("Your role may not see how rows are stored.").first.wait_for()
    assert page.get_by_role("button", name="Ask the advisor").is_disabled()
    reader.go("sql")
    assert page.get_by_role("button", name="Ask again every…").is_disabled()
    reader.run("SELECT ms FROM requests")
    page.locator(".problem:visible", has_text="ms").wait_for()


def test_pages_are_reached_by_keyboard_and_drawn_in_the_dark(reader):
    page = reader.page
    page.emulate_media(color_scheme="dark")
    reader.open("operator")
    page.keyboard.press("Alt+2")
    page.locator(".page.sql").wait_for()
    page.keyboard.press("Alt+4")
    page.locator(".page.health").wait_for()
    page.keyboard.press("Alt+1")
    page.locator("[data-key='stream-requests']").focus()
    page.keyboard.press("Enter")
    page.locator("svg.cells").wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 25, 29)"
    if HAS_CHARTS:
        page.locator(".chart svg").nth(1).wait_for()
        reader.picture("dark")
