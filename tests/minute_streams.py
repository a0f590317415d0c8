"""A stream of ten rows a minute, a few of them late, each minute followed by a slide; what it shows follows from that."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])
LIFETIME = 4


def minute_start(minute: int) -> dt.datetime:
    """When a minute begins."""
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


def create_stream(path: Path, name: str = "s", **options: Any) -> windrow.Warehouse:
    """A new warehouse with the stream."""
    wh = windrow.open(path)
    options = {"key": "k", "slide": "1 minute", "lifetime": f"{LIFETIME} minutes", **options}
    wh.create_stream(name, SCHEMA, time="ts", **options)
    return wh


def rows_of(minute: int) -> list[dict[str, Any]]:
    """The rows that come in a minute."""
    return [
        {"ts": minute_start(minute) + dt.timedelta(seconds=6 * n - 18), "k": n % 5, "v": minute * 100 + n}
        for n in range(10)
    ]


def fill_minutes(wh: windrow.Warehouse, name: str, first: int, last: int) -> None:
    """Append and slide from one minute to another; what was appended before is appended once."""
    for minute in range(first, last):
        wh.append(name, rows_of(minute), batch_id=f"minute {minute}")
        wh.slide(name, to=minute_start(minute + 1))


def expected(minutes: int, *, back: int = LIFETIME) -> list[int]:
    """The values whose rows have come in so many minutes and are not older than `back` minutes."""
    now = minute_start(minutes)
    since = now - dt.timedelta(minutes=back)
    return sorted(row["v"] for minute in range(minutes) for row in rows_of(minute) if since < row["ts"] <= now)
