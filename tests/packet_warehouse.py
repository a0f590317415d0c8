"""A small warehouse for tests of SQL: packets that live 16 minutes, a table of hosts, twenty minutes of history."""

import atexit
import datetime as dt
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

import scratch_folders
import windrow

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", STAMP), ("src", pa.int64()), ("len", pa.int32()), ("note", pa.string())])
MINUTES = 20
LIVE_MINUTES = 16
ROWS_PER_MINUTE = 600
"""Rows per minute: source i % 60 at the minute's second i % 60 + 1/10, with length i."""


@cache
def make_minute(number: int) -> pa.Table:
    """The rows of one minute, counted from 1."""
    start = NOON + dt.timedelta(minutes=number - 1)
    times = [start + dt.timedelta(seconds=i % 60, milliseconds=100) for i in range(ROWS_PER_MINUTE)]
    columns = [
        times,
        [i % 60 for i in range(ROWS_PER_MINUTE)],
        list(range(ROWS_PER_MINUTE)),
        [f"m{number}" for _ in range(ROWS_PER_MINUTE)],
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def append_and_slide(wh: windrow.Warehouse, number: int) -> None:
    """Append and slide in one minute."""
    wh.append("packets", make_minute(number), batch_id=f"minute {number}")
    wh.slide("packets", to=NOON + dt.timedelta(minutes=number))


@contextmanager
def open_packet_warehouse(**options: Any) -> Iterator[windrow.Warehouse]:
    """The warehouse, in memory: a copy of one that was made once, unless the clock is to be another one."""
    with scratch_folders.scratch_folder() as folder:
        path = folder / "w"
        if "clock" in options:
            _make(path, **options)
        else:
            shutil.copytree(_made(), path)
            windrow.adopt(path)
        with windrow.open(path, **options) as wh:
            yield wh


@cache
def _made() -> Path:
    folder = scratch_folders.scratch_folder()
    path = folder.__enter__() / "w"
    atexit.register(folder.__exit__, None, None, None)
    _make(path)
    return path


def _make(path: Path, **options: Any) -> None:
    with windrow.open(path, **options) as wh:
        wh.create_stream(
            "packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes",
            index=windrow.Index("round-robin", 4, 4, maintenance="norebuild"),
        )  # fmt: skip
        wh.create_stream("quiet", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
        wh.put_table("hosts", pa.table({"src": pa.array([1, 2, 3], pa.int64()), "name": ["ant", "bee", "cat"]}))
        for number in range(1, MINUTES + 1):
            append_and_slide(wh, number)
