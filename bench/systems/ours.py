"""Windrow: one stream with per-row expiry, doubly partitioned 4x4, in each kind of maintenance."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import windrow
from bench.systems.base import Scanned, System
from bench.workload import Batch, SlidingRows
from windrow import times

STREAM = "rows"


class Windrow(System):
    """Adaptive maintenance: the default. An update is an append and a slide."""

    name = "windrow"
    about = "adaptive 4x4, round-robin; update = append + slide, probe = wh.probe, scan = wh.scan and pyarrow's threads"
    index: ClassVar[windrow.Index] = windrow.Index("round-robin", 4, 4)

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.warehouse = windrow.open(folder / "warehouse")
        micro = dt.timedelta(microseconds=1)
        self.warehouse.create_stream(
            STREAM,
            workload.schema,
            time="ts",
            key="key",
            slide=workload.delta * micro,
            expires="exp",
            max_lifetime=workload.max_lifetime * micro,
            index=self.index,
        )
        self.merged_bytes = 0
        self.appended_bytes = 0
        if hasattr(self.warehouse, "sql"):
            self.scan_by_sql = self._scan_by_sql

    def update(self, batch: Batch, prepared: Any) -> None:
        """Append and slide."""
        self.append(prepared)
        self.slide(batch)

    def append(self, rows: Any) -> None:
        """The first half of an update."""
        self.appended_bytes += self.warehouse.append(STREAM, rows).bytes_written

    def slide(self, batch: Batch) -> None:
        """The second half of an update."""
        report = self.warehouse.slide(STREAM, to=times.to_datetime(batch.now))
        self.merged_bytes += report.bytes_written

    def probe(self, key: int) -> Any:
        """By the directory."""
        return self.warehouse.probe(STREAM, key)

    def scan(self) -> Scanned:
        """The Arrow reader as a table, of which little is copied; pyarrow folds its batches in all its threads."""
        rows = self.warehouse.scan(STREAM, columns=["payload"]).read_all()
        totals = rows.group_by([]).aggregate([([], "count_all"), ("payload", "max")])
        return totals["count_all"][0].as_py(), totals["payload_max"][0].as_py() or ""

    def _scan_by_sql(self) -> Scanned:
        count, greatest = self.warehouse.sql(f"SELECT count(*), max(payload) FROM {STREAM}").fetchall()[0]
        return int(count), str(greatest or "")

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """SQL without a filter of its own on the expiry."""
        asked = f"SELECT count(*) FILTER (exp <= make_timestamp(?)) FROM {STREAM}"
        return lambda now: int(self.warehouse.sql(asked, [now]).fetchall()[0][0]), lambda: None

    def notes(self) -> dict[str, Any]:
        """Segments at the end, and what merging wrote."""
        status = self.warehouse.stream(STREAM)
        wanted = ("live_rows", "stored_rows", "segments", "files", "bytes", "directory_bytes")
        written = {"merged_bytes": self.merged_bytes, "appended_bytes": self.appended_bytes}
        return {**written, **{name: getattr(status, name) for name in wanted}}

    def close(self) -> None:
        """Close the warehouse."""
        self.warehouse.close()


class WindrowNoRebuild(Windrow):
    """Nothing is merged."""

    name = "windrow-norebuild"
    about = "the same without merging"
    index = windrow.Index("round-robin", 4, 4, maintenance="norebuild")


class WindrowRebuild(Windrow):
    """Every touched sub-index is merged."""

    name = "windrow-rebuild"
    about = "the same, every touched sub-index rewritten at each update"
    index = windrow.Index("round-robin", 4, 4, maintenance="rebuild")


def with_index(label: str, index: windrow.Index) -> type[Windrow]:
    """Windrow under another layout."""
    about = f"{index}; otherwise as {Windrow.name}"
    return type(label, (Windrow,), {"name": label, "about": about, "index": index})
