"""Debian's Chromium, driven by Playwright, before a served warehouse that has something to show."""

import contextlib
import datetime as dt
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import windrow
from served_warehouse import Served
from windrow.access import create_token, put_role
from windrow.errors import WindrowError
from windrow.queries.periodic.counters import ServerCounters
from windrow.service.http_api import Limits
from windrow.service.server import ServerSettings, serving

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
SCHEMA = pa.schema([
    ("ts", pa.timestamp("us", "UTC")), ("until", pa.timestamp("us", "UTC")), ("host", pa.string()), ("ms", pa.int64()),
])  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--js-flags=--expose-gc",
)  # fmt: skip
PATIENCE_MS = 120_000


def find_chromium() -> str | None:
    """The system's browser; Playwright's own would have to be downloaded."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def open_browser() -> Iterator[object]:
    """A browser with an empty profile."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="windrow-chromium-") as profile, sync_playwright() as play:
        context = play.chromium.launch_persistent_context(
            profile, executable_path=find_chromium(), args=list(OPTIONS), headless=True,
            viewport={"width": 1280, "height": 800}, accept_downloads=True,
        )  # fmt: skip
        context.set_default_timeout(PATIENCE_MS)
        try:
            yield context
        finally:
            context.close()


def rows(minute: int, number: int, seed: int = 23) -> pa.Table:
    """Rows of one minute that live for 1 to 60 minutes; every 40th is some minutes late."""
    chance = random.Random(f"{seed}/{minute}")
    made = []
    for position in range(number):
        late = 5 * MINUTE if position % 40 == 39 and minute > 6 else dt.timedelta()
        ts = START + MINUTE * minute + dt.timedelta(seconds=chance.random() * 59) - late
        made.append(
            (ts, ts + MINUTE * chance.choice([6, 15, 30, 45, 60]), f"web{chance.randrange(6)}", chance.randrange(900))
        )
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def slide_minute(wh: windrow.Warehouse, stream: str, minute: int, number: int = 200) -> None:
    """Append a minute and slide to its end."""
    wh.append(stream, rows(minute, number))
    wh.slide(stream, to=START + MINUTE * (minute + 1))


def fill(wh: windrow.Warehouse) -> None:
    """Three streams, a view, queries of which one fails, a source that is missing, rejected rows and a hostile name."""
    for name, layout in (("requests", windrow.Index("round-robin", 4, 6)), ("payments", None)):
        options = {} if layout is None else {"index": layout}
        wh.create_stream(
            name, SCHEMA, time="ts", key="host", slide="1 minute", expires="until", max_lifetime="1 hour", **options
        )
        for minute in range(30):
            slide_minute(wh, name, minute, 120 + 60 * (minute % 7))
    wh.create_stream(
        "sensors",
        SCHEMA.remove(1),
        time="ts",
        key="host",
        slide="1 minute",
        lifetime="2 hours",
        sources=["north", "south"],
    )
    readings = rows(0, 300).drop_columns("until")
    wh.append("sensors", readings, source="north")
    wh.heartbeat("sensors", source="north", up_to=START + 3 * MINUTE)
    wh.slide("sensors", to=START + 2 * MINUTE, force=True)
    old = rows(0, 5).set_column(1, SCHEMA.field(1), pa.array([START] * 5, SCHEMA.field(1).type))
    wh.append("requests", old)
    wh.create_view("slow", "SELECT ts, host, ms FROM requests WHERE ms > 700")
    wh.put_table("sites", pa.table({HOSTILE: [HOSTILE, "plain"], "n": [1, 2]}))
    wh.add_query(
        "per_host",
        "SELECT host, count(*) AS n, avg(ms) AS ms FROM requests [WINDOW 10 MINUTES SLIDE 1 MINUTE] GROUP BY host",
    )
    wh.put_table("limits", pa.table({"ms": ["700"]}))
    wh.add_query(
        "too_slow",
        "SELECT count(*) AS n FROM payments [WINDOW 5 MINUTES SLIDE 1 MINUTE] p, limits l WHERE p.ms > CAST(l.ms AS BIGINT)",
    )
    wh.run_due(now=True)
    wh.put_table("limits", pa.table({"ms": ["many"]}))
    for minute in (30, 31, 32):
        for name in ("requests", "payments"):
            slide_minute(wh, name, minute)
        with contextlib.suppress(WindrowError):
            wh.run_due(now=True)


@contextmanager
def serve_console(path: Path, fill_it=fill) -> Iterator[Served]:
    """A server of a warehouse that `fill_it` fills; roles operator and analyst."""
    with windrow.open(path) as wh:
        fill_it(wh)
        put_role(wh._store, "operator", ["read", "append", "operate"])
        put_role(wh._store, "analyst", ["read"], {"requests": ("ts", "until", "host")})
        tokens = {role: create_token(wh._store, role)[1] for role in ("operator", "analyst")}
        audit: list[dict] = []
        limits = Limits(concurrency=2, waiting=16, patience=120)
        settings = ServerSettings(port=0, flight_port=None, grace=1, limits=limits)
        with serving(wh, settings, ServerCounters(0), audit.append, lambda _: None) as server:
            yield Served(wh, server, tokens, audit)
