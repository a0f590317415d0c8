"""A warehouse of packets whose files are in an object store, and what it must answer."""

from pathlib import Path
from typing import Any

import pyarrow as pa

import windrow
from packet_warehouse import NOON, SCHEMA, append_and_slide, make_minute
from windrow.orphans import data_files

MINUTES = 6
"""Those that `make_stored_packets` appends; rows live longer."""


def make_stored_packets(path: Path, uri: str, **options: Any) -> windrow.Warehouse:
    """A warehouse with some minutes of packets."""
    wh = windrow.open(path, segments=uri, **options)
    wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
    for minute in range(1, MINUTES + 1):
        append_and_slide(wh, minute)
    return wh


def truth(minutes: int = MINUTES) -> list[dict[str, Any]]:
    """The rows of the first minutes."""
    return sorted_rows(pa.concat_tables([make_minute(minute) for minute in range(1, minutes + 1)]))


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows in an order of their values."""
    return sorted(rows.to_pylist(), key=lambda row: (row["ts"], row["src"], row["len"]))


def forget_files(path: Path) -> None:
    """Empty the cache."""
    for file in data_files(path):
        (path / file).unlink()


def answers(wh: windrow.Warehouse) -> list[Any]:
    """All ways to read, as values."""
    return [
        sorted_rows(wh.sql("SELECT * FROM packets").arrow()),
        sorted_rows(wh.scan("packets").read_all()),
        sorted_rows(wh.probe("packets", key=7)),
        wh.sql("SELECT src, sum(len) FROM packets [WINDOW 3 MINUTES] GROUP BY src ORDER BY src").fetchall(),
    ]


def expected() -> list[Any]:
    """The same from plain Python."""
    rows = truth()
    sums: dict[int, int] = {}
    for row in rows:
        if row["ts"] > NOON + (MINUTES - 3) * (make_minute(2)["ts"][0].as_py() - make_minute(1)["ts"][0].as_py()):
            sums[row["src"]] = sums.get(row["src"], 0) + row["len"]
    return [rows, rows, [row for row in rows if row["src"] == 7], sorted(sums.items())]
