"""Helpers for views tried by hand: streams of a key and a number, with times in minutes."""

from typing import Any

import pyarrow as pa

from view_histories import MINUTE, STAMP, START, time

SCHEMA = pa.schema([("ts", STAMP), ("k", pa.int64()), ("x", pa.int64())])


def append_rows(wh: Any, name: str, *rows: tuple[float, int, int]) -> None:
    """Rows as (minutes after the start, k, x)."""
    values = [{"ts": time(START + int(minute * MINUTE)), "k": k, "x": x} for minute, k, x in rows]
    wh.append(name, pa.Table.from_pylist(values, SCHEMA))


def slide(wh: Any, names: str, minute: float) -> None:
    for name in names:
        wh.slide(name, to=time(START + minute * MINUTE))


def fetch_sorted(wh: Any, sql: str) -> list[Any]:
    return sorted(wh.sql(sql).fetchall())
